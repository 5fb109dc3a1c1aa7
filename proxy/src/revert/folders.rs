//! The folders in which HAMi-core counts what containers use of GPUs.
//!
//! A container is made with one, and has it mounted until it goes. So those of containers that live stay.

use super::PATIENCE;
use crate::{
    hami_core::{self, FolderError, GivenBack},
    hub::Hub,
    ledger::{Ledger, Life},
    neighbour::Resting,
    relist::Unsaid,
};
use std::collections::BTreeSet;
use tokio::time::timeout;

/// By whose doing they are there.
const HOOK: &str = "HamiCoreVGPUMonitor";

/// What came of them.
pub(super) struct Folders {
    /// `None` if that is not known in time.
    pub(super) given: Option<Result<GivenBack, FolderError>>,
    /// It is not known of all containers whether they live.
    pub(super) is_in_doubt: bool,
}

/// Removes those that are ours and not mounted any more, where the configuration has the hook on.
pub(super) async fn give_back(hub: &Hub, covered: &Resting, unsaid: Unsaid) -> Option<Folders> {
    let is_on = hub.policy().chain().hooks().any(|it| it.name == HOOK);
    let folders = hami_core::folders_of(hub).filter(|_| is_on)?;
    // Koordlet's are called as ours are.
    let are_koordlets = covered.contains(HOOK);
    let is_in_doubt = !are_koordlets && unsaid.sandboxes > 0;
    let is_known = !are_koordlets && !is_in_doubt;
    let living = is_known.then(|| living(&hub.ledger().borrow()));
    let given = timeout(PATIENCE, hub.folders().give_back(&folders, living)).await;
    Some(Folders {
        given: given.ok().flatten(),
        is_in_doubt,
    })
}

/// What the folders of containers are called that have not ended.
fn living(ledger: &Ledger) -> BTreeSet<String> {
    let names = ledger.pods().flat_map(|pod| {
        let containers = pod.containers.iter();
        let living = containers.filter(|it| it.life != Life::Exited);
        living.map(move |it| format!("{}_{}", pod.view.uid.as_str(), it.view.name))
    });
    names.collect()
}

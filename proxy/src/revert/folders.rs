//! The folders in which HAMi-core counts what containers use of GPUs.
//!
//! A container is made with one, and has it mounted until it goes. So those of pods that live stay, also of
//! those that another runtime has.

use super::PATIENCE;
use crate::{
    hami_core::{self, FolderError, GivenBack, Living},
    hub::Hub,
    neighbour::Resting,
    relist::Unsaid,
    worker::{Undone, in_time},
};
use koord_kernel::cgroup::{Driver, Layout};
use koord_model::{CgroupPath, KubeQos};

/// By whose doing they are there.
const HOOK: &str = "HamiCoreVGPUMonitor";

/// What came of them.
pub(super) struct Folders {
    pub(super) given: Result<Result<GivenBack, FolderError>, Undone>,
    /// It is not known of all pods whether they live.
    pub(super) is_in_doubt: bool,
}

/// Removes those that are ours and not mounted any more, where the configuration has the hook on.
pub(super) async fn give_back(
    hub: &Hub,
    above: &CgroupPath,
    covered: &Resting,
    unsaid: Unsaid,
) -> Option<Folders> {
    let is_on = hub.policy().chain().hooks().any(|it| it.name == HOOK);
    let folders = hami_core::folders_of(hub).filter(|_| is_on)?;
    // Koordlet's are called as ours are.
    let are_koordlets = covered.contains(HOOK);
    let living = living(hub, above).filter(|_| unsaid.sandboxes == 0);
    let is_in_doubt = !are_koordlets && living.is_none();
    let living = living.filter(|_| !are_koordlets);
    let given = async {
        let given = hub.folders().give_back(&folders, living).await;
        given.ok_or(Undone::NoThread)
    };
    Some(Folders {
        given: in_time(PATIENCE, given).await,
        is_in_doubt,
    })
}

/// The pods that live, with what control groups there are of any below this directory; `None` if those cannot
/// be read.
fn living(hub: &Hub, above: &CgroupPath) -> Option<Living> {
    let cgroups = hub.writer().cgroups();
    let mut groups = Vec::new();
    for driver in [Driver::Systemd, Driver::Cgroupfs] {
        let Ok(layout) = Layout::new(above, driver) else {
            continue;
        };
        for tier in KubeQos::ALL.iter().flat_map(|qos| layout.tier(*qos)) {
            if cgroups.exists(&tier).ok()? {
                groups.extend(cgroups.children(&tier).ok()?);
            }
        }
    }
    let ledger = hub.ledger().borrow();
    let pods = ledger.pods().filter(|pod| pod.ready);
    let uids = pods.map(|pod| pod.view.uid.as_str().to_owned()).collect();
    Some(Living { uids, groups })
}

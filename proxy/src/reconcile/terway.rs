//! What the network plugin of the node is told of all pods together.

use crate::{
    apply::terway::{Files, FolderError, Told},
    hub::Hub,
    ledger::{Applied, Target},
};
use koord_model::{Setting, Value};
use std::{error::Error, rc::Rc};
use tracing::warn;

/// What is to be told.
enum Wanted {
    /// Whatever was told before: nobody knows any better, or somebody else tells it.
    AsItIs,
    Nothing,
    Files(Files),
}

/// Brings in line what the plugin is told. Before the first list nobody knows which pods there are.
pub(super) async fn keep(hub: &Rc<Hub>) {
    if !hub.enforces() || !hub.is_whole() {
        return;
    }
    let files = match wanted(hub) {
        Wanted::AsItIs => return,
        Wanted::Nothing if !hub.terway().is_told() => return,
        Wanted::Nothing => None,
        Wanted::Files(files) => Some(files),
    };
    if let Some(told) = hub.terway().tell(files).await {
        note(hub, &told);
    }
}

fn wanted(hub: &Hub) -> Wanted {
    let (policy, ledger) = (hub.policy(), hub.ledger().borrow());
    let mut entries = ledger.node.iter().flat_map(|group| group.target.entries());
    let network = entries.find_map(|entry| match &entry.desired {
        Value::NodeNetwork(network) => Some(network),
        _ => None,
    });
    let chain = policy.chain();
    let decides = chain.settings().contains(&Setting::NodeNetwork);
    let is_unknown = decides && policy.node().policy.slo.is_none();
    match network {
        Some(network) => Wanted::Files(Files::of(network, ledger.pods())),
        None if is_unknown || chain.rests(Setting::NodeNetwork) => Wanted::AsItIs,
        None => Wanted::Nothing,
    }
}

/// Notes what became of it with whatever it was about, and writes a line when it begins to fail.
fn note(hub: &Hub, Told { classes, pods }: &Told) {
    let mut ledger = hub.ledger().borrow_mut();
    let groups = ledger.node.iter_mut().map(|group| &mut group.target);
    note_all(hub, groups, Setting::NodeNetwork, classes);
    let directories = ledger.pods_mut().map(|pod| &mut pod.own);
    note_all(hub, directories, Setting::PodNetwork, pods);
    let complained = &hub.terway().complained;
    let Some(error) = [classes, pods].into_iter().find_map(|it| it.as_ref().err()) else {
        complained.set(false);
        return;
    };
    if !complained.get()
        && let Some(suppressed) = hub.may_complain("-", Setting::PodNetwork.name())
    {
        complained.set(true);
        let error = error as &dyn Error;
        warn!(
            error,
            suppressed, "the network plugin is not told what pods and classes have"
        );
    }
}

fn note_all<'a>(
    hub: &Hub,
    targets: impl Iterator<Item = &'a mut Target>,
    setting: Setting,
    outcome: &Result<bool, FolderError>,
) {
    let result = match outcome {
        Ok(true) => Applied::Written,
        Ok(false) => Applied::Equal,
        Err(error) if error.is_absent() => Applied::Unsupported,
        Err(error) => Applied::Refused(error.errno()),
    };
    for entry in targets.filter_map(|target| target.entry_mut(setting)) {
        hub.metrics().kernel_setting(setting, &result);
        entry.applied = result.clone();
    }
}

//! What the network plugin of the node is told of all pods together.

use super::standing::{self, Standing};
use crate::{
    apply::terway::{Files, FolderError, Told},
    hub::Hub,
    ledger::Applied,
    worker::Undone,
};
use koord_model::{Setting, Value};
use std::{error::Error, rc::Rc};
use tracing::warn;

/// Brings in line what the plugin is told, and says what came of it, if there was anything to look at; an
/// error if there is no thread to do it. Before the first list nobody knows which pods there are.
pub(super) async fn keep(hub: &Rc<Hub>) -> Result<Option<Told>, Undone> {
    if !hub.enforces() || !hub.is_whole() {
        return Ok(None);
    }
    let files = match Standing::of(hub, Setting::NodeNetwork) {
        Standing::Decided(Value::NodeNetwork(network)) => {
            Some(Files::of(&network, hub.ledger().borrow().pods()))
        }
        Standing::Nothing if hub.terway().is_told() => None,
        _ => return Ok(None),
    };
    let told = hub.terway().tell(files).await.ok_or(Undone::NoThread)?;
    note(hub, &told);
    Ok(Some(told))
}

/// Notes what became of it with whatever it was about, and writes a line when it begins to fail.
fn note(hub: &Hub, Told { classes, pods }: &Told) {
    let mut ledger = hub.ledger().borrow_mut();
    let groups = ledger.node.iter_mut().map(|group| &mut group.target);
    standing::note(hub, groups, Setting::NodeNetwork, &applied(classes));
    let directories = ledger.pods_mut().map(|pod| &mut pod.own);
    standing::note(hub, directories, Setting::PodNetwork, &applied(pods));
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

fn applied(outcome: &Result<bool, FolderError>) -> Applied {
    match outcome {
        Ok(true) => Applied::Written,
        Ok(false) => Applied::Equal,
        Err(error) if error.is_absent() => Applied::Unsupported,
        Err(error) => Applied::Refused(error.errno()),
    }
}

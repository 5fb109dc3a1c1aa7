//! Whose values are written beside all else, long after they were asked for.

use super::{changes_now, note_node, note_pod};
use crate::{
    apply::kernel::Outcome,
    hub::Hub,
    ledger::{Ledger, Life, Scope, Target},
};
use koord_kernel::cgroup::Change;
use koord_model::SandboxId;

/// Who has a value.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub(super) enum Whose {
    Pod(SandboxId),
    /// Tiers and host applications.
    Node,
}

// === impl Whose ===

impl Whose {
    pub(super) fn is_in(&self, ledger: &Ledger) -> bool {
        match self {
            Self::Pod(sandbox) => ledger.pod(sandbox).is_some(),
            Self::Node => true,
        }
    }

    /// Where something of theirs is to be written.
    pub(super) fn targets<'a>(&self, ledger: &'a Ledger) -> Vec<(Scope, &'a Target)> {
        match self {
            Self::Pod(sandbox) => {
                let pod = ledger.pod(sandbox).into_iter();
                pod.flat_map(|pod| {
                    let own = [(Scope::Pod, &pod.own), (Scope::Container, &pod.pause)];
                    let own = own.into_iter().filter(|_| pod.ready);
                    let containers = pod.containers.iter();
                    let running = containers.filter(|it| it.life == Life::Running);
                    own.chain(running.map(|it| (Scope::Container, &it.target)))
                })
                .collect()
            }
            Self::Node => {
                let groups = ledger.node.iter();
                groups.map(|it| (it.kind.scope(), &it.target)).collect()
            }
        }
    }

    /// What is wanted now: what waited may have been decided otherwise since.
    pub(super) fn wanted(&self, hub: &Hub) -> Vec<Change> {
        if !hub.enforces() {
            return Vec::new();
        }
        let ledger = hub.ledger().borrow();
        let targets = self.targets(&ledger).into_iter();
        targets
            .flat_map(|target| changes_now(hub, target))
            .collect()
    }

    /// Notes what became of changes of theirs.
    pub(super) fn note(&self, hub: &Hub, changes: &[Change], applied: &[Outcome]) {
        match self {
            Self::Pod(sandbox) => {
                // Nothing takes the place of what is written beside.
                let moment = hub.ledger().borrow().now();
                note_pod(hub, sandbox, (moment, changes, applied));
            }
            Self::Node => note_node(hub, changes, applied),
        }
    }
}

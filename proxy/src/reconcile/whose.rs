//! Whose values are written beside all else, long after they were asked for.

use super::{changes_now, note_node, note_pod};
use crate::{
    apply::kernel::Outcome,
    hub::Hub,
    ledger::{Container, Ledger, Life, Scope, Target},
};
use koord_kernel::cgroup::Change;
use koord_model::SandboxId;
use tokio::time::Instant;

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

    /// Where something of theirs is to be written; not what waits for the runtime to say to what it was changed.
    pub(super) fn targets<'a>(&self, ledger: &'a Ledger) -> Vec<(Scope, &'a Target)> {
        match self {
            Self::Pod(sandbox) => {
                let now = Instant::now();
                let waits = |it: &Container| it.finding_out(now).is_some();
                let pod = ledger.pod(sandbox).into_iter();
                pod.flat_map(|pod| {
                    let containers = pod.containers.iter();
                    let running = containers.filter(|it| it.life == Life::Running);
                    let is_open = !running.clone().any(waits);
                    let own = is_open.then_some((Scope::Pod, &pod.own)).into_iter();
                    let own = own.chain([(Scope::Container, &pod.pause)]);
                    let running = running.filter(|it| !waits(it));
                    let running = running.map(|it| (Scope::Container, &it.target));
                    own.filter(|_| pod.ready).chain(running)
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

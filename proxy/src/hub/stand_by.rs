//! Whether decisions take effect: not while we only observe, and not while another one of us acts.

use super::{Effects, Hub};
use std::{cell::Cell, time::Duration};
use tokio::time::Instant;
use tracing::warn;

/// How long we stand by for another one that was met in what it had done.
const SPELL: Duration = Duration::from_secs(600);

/// What is known of another one of us on this node.
#[derive(Debug, Default)]
pub(super) struct Another {
    /// The lock is its.
    acts: Cell<bool>,
    /// Until when it counts, since a creation came that it had changed.
    met_until: Cell<Option<Instant>>,
}

// === impl Hub ===

impl Hub {
    /// Whether what is decided is done.
    pub(crate) fn enforces(&self) -> bool {
        self.effects == Effects::Enforce && self.standing_by().is_none()
    }

    /// Why nothing is done though it should be, for people.
    pub fn standing_by(&self) -> Option<&'static str> {
        if self.another.acts.get() {
            return Some(
                "standing by: another koord-runtime-proxy acts on this node, it has the lock of \
                 the directory of the runtime's socket",
            );
        }
        let met = self.another.met_until.get();
        met.filter(|until| *until > Instant::now()).map(|_| {
            "standing by: another koord-runtime-proxy changes containers before the runtime \
             asks us"
        })
    }

    /// Another one acts from now on, or no more: then all that was decided is put in force.
    pub(crate) fn set_another_acts(&self, acts: bool) {
        if self.another.acts.replace(acts) == acts {
            return;
        }
        self.metrics.another_acts(acts);
        if acts {
            return;
        }
        for pod in self.ledger.borrow().pods() {
            self.queue.push(pod.sandbox.clone());
        }
        self.queue.push_node();
    }

    /// The runtime asks about a creation that another one of us has changed before.
    pub(super) fn meet_another(&self) {
        if self.enforces() {
            warn!(
                "a container comes as another koord-runtime-proxy has changed it: standing by for \
                 ten minutes from each such"
            );
        }
        self.another.met_until.set(Some(Instant::now() + SPELL));
    }
}

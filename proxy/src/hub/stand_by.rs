//! Whether decisions take effect: not while we only observe, not while another one of us acts, and not
//! before it is known whether koordlet decides here.

use super::{Effects, Hub};
use std::{cell::Cell, time::Duration};
use tokio::time::{Instant, timeout_at};
use tracing::{info, warn};

/// How long we stand by for another one that was met in what it had done.
const SPELL: Duration = Duration::from_secs(600);

/// What is known of another one of us on this node.
#[derive(Debug, Default)]
pub(super) struct Another {
    lock: Cell<NodeLock>,
    /// Until when it counts, since a creation came that it had changed.
    met_until: Cell<Option<Instant>>,
}

/// Who has the lock of this node.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) enum NodeLock {
    Ours,
    Anothers,
    /// There is none that says anything.
    #[default]
    None,
}

// === impl Hub ===

impl Hub {
    /// Whether what is decided is done.
    pub(crate) fn enforces(&self) -> bool {
        self.acts() && self.knows_of_koordlet()
    }

    /// Whether it is up to us to do what is decided.
    pub(super) fn acts(&self) -> bool {
        self.effects == Effects::Enforce && self.standing_by().is_none()
    }

    /// Has nothing be said or written until it is known whether koordlet does the part of hooks here.
    /// Calls wait for that, none of them for longer than this from now on.
    pub(crate) fn await_koordlet(&self, patience: Duration) {
        let due = Instant::now() + patience;
        self.koordlet_due.send_replace(Some(due));
    }

    /// It is known whether koordlet runs here, or cannot be: all that was decided meanwhile, and still
    /// is, is put in force.
    pub(crate) fn tell_koordlet_known(&self) {
        if self.koordlet_due.send_replace(None).is_some() {
            self.put_all_in_force();
        }
    }

    pub fn knows_of_koordlet(&self) -> bool {
        self.koordlet_due.borrow().is_none()
    }

    /// Whether it is for want of that alone that what is decided is not done.
    pub(super) fn awaits_koordlet(&self) -> bool {
        self.acts() && !self.knows_of_koordlet()
    }

    /// Resolves once it is known whether koordlet runs here, at the latest then or when no call waits for
    /// it any longer; at once where nothing would be done anyway.
    pub(crate) async fn koordlet_known(&self, until: Instant) {
        let due = *self.koordlet_due.borrow();
        if let Some(due) = due.filter(|_| self.acts()) {
            let mut state = self.koordlet_due.subscribe();
            let known = state.wait_for(Option::is_none);
            timeout_at(until.min(due), known).await.ok();
        }
    }

    /// Why nothing is done though it should be, for people.
    pub fn standing_by(&self) -> Option<&'static str> {
        if self.another.lock.get() == NodeLock::Anothers {
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

    /// Hears who has the lock. What was decided meanwhile is put in force once we stand by no more.
    pub(crate) fn set_lock(&self, lock: NodeLock) {
        if self.another.lock.replace(lock) == lock {
            return;
        }
        // Whom we met before has its place now, or is gone.
        self.another.met_until.set(None);
        self.count_another();
        if lock != NodeLock::Anothers {
            self.put_all_in_force();
        }
    }

    /// The runtime asks about a creation that another one of us has changed before. A lock says more
    /// than that does.
    pub(super) fn meet_another(&self) {
        if self.effects == Effects::Observe || self.another.lock.get() != NodeLock::None {
            return;
        }
        if self.acts() {
            warn!(
                "a container comes as another koord-runtime-proxy has changed it: standing by for \
                 ten minutes from each such"
            );
        }
        self.another.met_until.set(Some(Instant::now() + SPELL));
        self.count_another();
    }

    /// Acts again once the other one was not met for long enough.
    pub(crate) fn end_spell(&self) {
        let met = self.another.met_until.get();
        if met.is_some_and(|until| until <= Instant::now()) {
            self.another.met_until.set(None);
            self.count_another();
            info!("no other koord-runtime-proxy was met for ten minutes: acting");
            self.put_all_in_force();
        }
    }

    fn count_another(&self) {
        self.metrics.another_acts(self.standing_by().is_some());
    }

    fn put_all_in_force(&self) {
        self.traffic.left.expect();
        for pod in self.ledger.borrow().pods() {
            self.queue.push(pod.sandbox.clone());
        }
        self.queue.push_node();
    }
}

//! What a process before us may have left in the queues, for pods of which it is not known yet from where
//! they send.
//!
//! Until that is known of all of them what is there beside ours stays, once for each time that we begin to
//! act and for ten minutes at most: a sandbox may never say it. But nothing is kept of an address from which
//! a known pod sends or has sent since: its queue is what we say, and who has the address next may be of
//! another class.

use super::Shape;
use std::{cell::RefCell, collections::BTreeSet, mem, net::IpAddr, time::Duration};
use tokio::time::Instant;

/// How long it is kept.
const PATIENCE: Duration = Duration::from_secs(600);

/// Whether there may be some.
#[derive(Debug, Default)]
pub(crate) struct Left(RefCell<State>);

#[derive(Debug)]
enum State {
    MayBe {
        until: Option<Instant>,
        /// From here pods have sent since we act.
        seen: BTreeSet<IpAddr>,
    },
    /// Whatever there is that is ours, is of this process.
    Gone,
}

// === impl State ===

impl Default for State {
    fn default() -> Self {
        Self::MayBe {
            until: None,
            seen: BTreeSet::new(),
        }
    }
}

// === impl Left ===

impl Left {
    /// What there is to be, with what is kept beside it if it `lacks` something. All the pods of which it is
    /// known send from `known`.
    pub(crate) fn keep(
        &self,
        shape: Shape,
        lacks: bool,
        known: impl Iterator<Item = IpAddr>,
    ) -> Shape {
        let mut state = self.0.borrow_mut();
        let State::MayBe { until, seen } = &mut *state else {
            return shape;
        };
        let now = Instant::now();
        if !lacks || *until.get_or_insert(now + PATIENCE) <= now {
            *state = State::Gone;
            return shape;
        }
        seen.extend(known);
        shape.keeping_others(seen.clone())
    }

    /// We act from now on, where another process may have acted.
    pub(crate) fn expect(&self) {
        mem::take(&mut *self.0.borrow_mut());
    }
}

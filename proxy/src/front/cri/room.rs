//! What all connections together may hold of messages in memory.
//!
//! Windows and slots bound what one stream holds; thousands of streams just below both would still
//! fill memory. So every connection is charged for what it holds. Whoever adds to a full room waits
//! for no message any more: what arrives passes unopened, as fast as the runtime takes it, and
//! reconcile repairs what that missed.

use crate::metrics::Metrics;
use std::{cell::Cell, rc::Rc};

/// The room, as all connections see it.
#[derive(Clone, Debug)]
pub(super) struct Room(Rc<State>);

#[derive(Debug)]
struct State {
    most: usize,
    held: Cell<usize>,
    metrics: Rc<Metrics>,
}

/// The room as one connection uses it; what it takes is given back when it is dropped.
#[derive(Debug)]
pub(super) struct Share {
    room: Room,
    held: usize,
}

// === impl Room ===

impl Room {
    /// `most`: bytes that messages may be waited for with.
    pub(super) fn new(most: usize, metrics: Rc<Metrics>) -> Self {
        let held = Cell::new(0);
        Self(Rc::new(State {
            most,
            held,
            metrics,
        }))
    }

    pub(super) fn share(&self) -> Share {
        Share {
            room: self.clone(),
            held: 0,
        }
    }
}

// === impl Share ===

impl Share {
    /// What was last taken notice of.
    pub(super) fn held(&self) -> usize {
        self.held
    }

    /// Whether all together hold too much.
    pub(super) fn is_full(&self) -> bool {
        self.room.0.held.get() > self.room.0.most
    }

    /// Takes notice of how many bytes are held now. True if that is more than before, and too much.
    pub(super) fn crowds(&mut self, held: usize) -> bool {
        let State {
            most,
            held: all,
            metrics,
        } = &*self.room.0;
        let grown = held > self.held;
        all.set(all.get() - self.held + held);
        metrics.messages_held(all.get());
        self.held = held;
        grown && all.get() > *most
    }
}

impl Drop for Share {
    fn drop(&mut self) {
        self.crowds(0);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn who_adds_to_a_full_room_is_told_and_who_leaves_makes_room() {
        let room = Room::new(100, Rc::new(Metrics::new()));
        let (mut a, mut b) = (room.share(), room.share());
        assert!(!a.crowds(100));
        assert!(!a.is_full() && !b.is_full());
        assert!(b.crowds(1));
        assert!(b.crowds(100));
        assert!(!b.crowds(90), "less is never too much");
        assert!(a.is_full() && b.is_full());
        drop(a);
        assert!(!b.is_full());
        assert!(!b.crowds(100));
        drop(b);
        assert!(room.share().crowds(101));
    }
}

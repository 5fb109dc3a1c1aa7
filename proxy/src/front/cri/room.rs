//! What all connections together may hold of messages in memory.
//!
//! Windows and slots bound what one stream holds; thousands of streams just below both would still
//! fill memory. So every connection is charged for what it holds. It has a part for itself, so that
//! nobody else can cost it its hooks; what it holds beyond that counts against a part that all share.
//! Whoever adds to that when it is full waits for no message any more: what arrives passes unopened, as
//! fast as the runtime takes it, and reconcile repairs what that missed.

use crate::metrics::Metrics;
use std::{cell::Cell, rc::Rc};

/// Bytes that messages may be waited for with.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bounds {
    /// Of each connection, for itself.
    pub(super) own: usize,
    /// Of all together, beyond that.
    pub(super) common: usize,
}

/// The room, as all connections see it.
#[derive(Clone, Debug)]
pub(super) struct Room(Rc<State>);

#[derive(Debug)]
struct State {
    bounds: Bounds,
    held: Cell<usize>,
    /// Of that, what is beyond the part that a connection has for itself.
    beyond: Cell<usize>,
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
    pub(super) fn new(bounds: Bounds, metrics: Rc<Metrics>) -> Self {
        Self(Rc::new(State {
            bounds,
            held: Cell::new(0),
            beyond: Cell::new(0),
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

    /// Whether this holds more than its own part, and all together too much.
    pub(super) fn is_full(&self) -> bool {
        let State { bounds, beyond, .. } = &*self.room.0;
        self.held > bounds.own && beyond.get() > bounds.common
    }

    /// Takes notice of how many bytes are held now. True if that is more than before, and too much.
    pub(super) fn crowds(&mut self, held: usize) -> bool {
        let before = std::mem::replace(&mut self.held, held);
        let room = &*self.room.0;
        let beyond = |held: usize| held.saturating_sub(room.bounds.own);
        room.held.set(room.held.get() - before + held);
        (room.beyond).set(room.beyond.get() - beyond(before) + beyond(held));
        room.metrics.messages_held(room.held.get());
        held > before && self.is_full()
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

    fn room(own: usize, common: usize) -> Room {
        Room::new(Bounds { own, common }, Rc::new(Metrics::new()))
    }

    #[test]
    fn who_adds_to_a_full_room_is_told_and_who_leaves_makes_room() {
        let room = room(0, 100);
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

    #[test]
    fn a_full_room_has_for_each_who_comes_its_own_part_and_no_more() {
        let room = room(10, 100);
        let (mut greedy, mut calm, mut later) = (room.share(), room.share(), room.share());
        assert!(!greedy.crowds(110));
        assert!(!calm.crowds(5), "that takes nothing from others");
        assert!(!greedy.is_full());
        assert!(greedy.crowds(500));
        assert!(greedy.is_full() && !calm.is_full());
        assert!(!calm.crowds(10));
        assert!(calm.crowds(11));
        assert!(calm.is_full());
        assert!(!calm.crowds(9));
        assert!(!calm.is_full());
        assert!(!later.crowds(10));
        drop(greedy);
        assert!(!later.crowds(110));
        assert!(later.crowds(111));
    }
}

//! Who is connected, and who goes first when there are too many.
//!
//! A stranger has not yet shown that it speaks HTTP/2, and is closed when its place is needed, the
//! oldest first. Of those that have spoken one without a call may be asked to go, by the same GOAWAY
//! as at a graceful stop: a client loses nothing by that and comes back when it wants something.

use super::ConnectionId;
use std::{
    cell::{Cell, RefCell},
    collections::BTreeMap,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
};
use tokio::sync::oneshot;

/// All connections of a front.
#[derive(Debug, Default)]
pub(super) struct Guests {
    /// Without a preface yet, oldest first.
    strangers: RefCell<BTreeMap<ConnectionId, Place>>,
    /// Have spoken, and were not asked to go.
    known: RefCell<BTreeMap<ConnectionId, Place>>,
    /// Counts what connections do: a clock that says who did something last.
    clock: Rc<Cell<u64>>,
}

/// A connection as all others see it.
#[derive(Debug)]
struct Place {
    last: Rc<Last>,
    ask: oneshot::Sender<()>,
}

/// What a connection did last.
#[derive(Debug, Default)]
struct Last {
    when: Cell<u64>,
    has_call: Cell<bool>,
}

/// A connection's own end of this.
#[derive(Debug)]
pub(super) struct Guest {
    last: Rc<Last>,
    clock: Rc<Cell<u64>>,
    /// `None` once it was asked.
    asked: Option<oneshot::Receiver<()>>,
}

// === impl Guests ===

impl Guests {
    pub(super) fn admit(&self, id: ConnectionId) -> Guest {
        let (ask, asked) = oneshot::channel();
        let last = Rc::<Last>::default();
        let place = Place {
            last: last.clone(),
            ask,
        };
        self.strangers.borrow_mut().insert(id, place);
        Guest {
            last,
            clock: self.clock.clone(),
            asked: Some(asked),
        }
    }

    /// It speaks HTTP/2.
    pub(super) fn note_spoken(&self, id: ConnectionId) {
        if let Some(place) = self.strangers.borrow_mut().remove(&id) {
            self.known.borrow_mut().insert(id, place);
        }
    }

    pub(super) fn gone(&self, id: ConnectionId) {
        self.strangers.borrow_mut().remove(&id);
        self.known.borrow_mut().remove(&id);
    }

    pub(super) fn strangers(&self) -> usize {
        self.strangers.borrow().len()
    }

    /// Asks the oldest stranger to go; false if there is none.
    pub(super) fn evict_stranger(&self) -> bool {
        let oldest = self.strangers.borrow_mut().pop_first();
        oldest.is_some_and(|(_, place)| place.ask.send(()).is_ok())
    }

    /// Asks the one to go that has had no call for the longest; false if all have one.
    pub(super) fn ask_idlest(&self) -> bool {
        let mut known = self.known.borrow_mut();
        let idle = known.iter().filter(|(_, place)| !place.last.has_call.get());
        let idlest = idle.min_by_key(|(_, place)| place.last.when.get());
        let idlest = idlest.map(|(id, _)| *id);
        let place = idlest.and_then(|id| known.remove(&id));
        place.is_some_and(|place| place.ask.send(()).is_ok())
    }
}

// === impl Guest ===

impl Guest {
    /// It did something just now, and has a call or none.
    pub(super) fn note(&self, has_call: bool) {
        self.clock.set(self.clock.get() + 1);
        self.last.when.set(self.clock.get());
        self.last.has_call.set(has_call);
    }

    /// Ready once, when it is asked to go.
    pub(super) fn poll_asked(&mut self, cx: &mut Context<'_>) -> Poll<()> {
        let Some(asked) = &mut self.asked else {
            return Poll::Pending;
        };
        match Pin::new(asked).poll(cx) {
            Poll::Pending => Poll::Pending,
            Poll::Ready(said) => {
                self.asked = None;
                // Nobody is left to ask: the front has gone, whose end has its own signal.
                said.map_or(Poll::Pending, Poll::Ready)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::task::Waker;

    fn was_asked(guest: &mut Guest) -> bool {
        let mut cx = Context::from_waker(Waker::noop());
        guest.poll_asked(&mut cx).is_ready()
    }

    #[test]
    fn the_longest_without_a_call_is_asked_and_once() {
        let guests = Guests::default();
        let mut all: Vec<_> = (0..4).map(|id| guests.admit(ConnectionId(id))).collect();
        for id in 0..3 {
            guests.note_spoken(ConnectionId(id));
        }
        all[1].note(true);
        all[2].note(false);
        all[0].note(false);
        assert!(guests.ask_idlest());
        let asked: Vec<_> = all.iter_mut().map(was_asked).collect();
        assert_eq!(asked, [false, false, true, false]);
        assert!(guests.ask_idlest());
        let asked: Vec<_> = all.iter_mut().map(was_asked).collect();
        assert_eq!(asked, [true, false, false, false]);
        assert!(!guests.ask_idlest(), "one has a call, one has not spoken");
        all[1].note(false);
        guests.gone(ConnectionId(1));
        assert!(!guests.ask_idlest(), "gone");
    }

    #[test]
    fn the_oldest_that_has_not_spoken_goes_first() {
        let guests = Guests::default();
        let mut all: Vec<_> = (0..3).map(|id| guests.admit(ConnectionId(id))).collect();
        guests.note_spoken(ConnectionId(0));
        assert_eq!(guests.strangers(), 2);
        assert!(guests.evict_stranger());
        let asked: Vec<_> = all.iter_mut().map(was_asked).collect();
        assert_eq!(asked, [false, true, false]);
        guests.gone(ConnectionId(2));
        assert!(!guests.evict_stranger());
    }
}

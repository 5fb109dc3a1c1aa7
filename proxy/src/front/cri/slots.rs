//! Places for large messages, a few per process.
//!
//! A claimed message is held whole, and one larger than its stream's window needs credit lent
//! beyond what the runtime granted. Without a bound on how many do so at once, large messages
//! could fill memory; with only a byte cap they could deadlock. So: first come, first served, and
//! while others wait, a message that does not move in its place is waited for no longer: it passes
//! unopened, and its place is free once what is here of it has gone on. Where it does not, because
//! the runtime does not take it, its connection is closed. One that moves keeps its place, however
//! slowly, and so does one that is whole and waits for us: no longer than a call may be held. Whoever
//! waits for a place for longer than that passes unopened.

use super::ConnectionId;
use koord_relay::StreamId;
use std::{
    cell::RefCell,
    collections::VecDeque,
    rc::Rc,
    task::{Context, Poll, Waker},
    time::Duration,
};
use tokio::{sync::Notify, time::Instant};

/// How long a message may stand still in its place while others wait. One of 16 MiB crosses a unix
/// socket in well under a second.
const PATIENCE: Duration = Duration::from_secs(10);

/// What the slots tell a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotNews {
    /// The stream has its place.
    Granted(StreamId),
    /// The stream waited too long for a place, and waits no more.
    Expired(StreamId),
    /// The stream's message stands still in its place while others wait.
    Overdue(StreamId),
}

/// All places, and who has or wants them.
#[derive(Clone, Debug)]
pub(super) struct Slots(Rc<Shared>);

#[derive(Debug)]
struct Shared {
    state: RefCell<State>,
    /// Somebody waits for a place.
    crowded: Notify,
}

/// The slots as one connection uses them. What it has or wants goes back when it is dropped.
#[derive(Debug)]
pub(super) struct Tenant {
    id: ConnectionId,
    slots: Slots,
    mailbox: Rc<RefCell<Mailbox>>,
    /// Messages that have a place or wait for one.
    messages: usize,
}

#[derive(Debug)]
struct State {
    places: usize,
    taken: Vec<Taken>,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Taken {
    by: (ConnectionId, StreamId),
    /// Bytes of the message that were here when it last moved; `None` while it waits for us.
    queued: Option<usize>,
    moved: Instant,
    mailbox: Rc<RefCell<Mailbox>>,
}

#[derive(Debug)]
struct Waiting {
    by: (ConnectionId, StreamId),
    since: Instant,
    mailbox: Rc<RefCell<Mailbox>>,
}

/// What a connection has not heard yet.
#[derive(Debug, Default)]
struct Mailbox {
    /// Each has a place, so there are never more than places.
    granted: Vec<StreamId>,
    /// Each waited, so there are never more than open streams.
    expired: Vec<StreamId>,
    /// Each has a place.
    overdue: Vec<StreamId>,
    waker: Option<Waker>,
}

// === impl Slots ===

impl Slots {
    pub(super) fn new(places: usize) -> Self {
        Self(Rc::new(Shared {
            state: RefCell::new(State {
                places,
                taken: Vec::new(),
                waiting: VecDeque::new(),
            }),
            crowded: Notify::new(),
        }))
    }

    /// Whether somebody waits for a place.
    pub(super) fn are_crowded(&self) -> bool {
        !self.0.state.borrow().waiting.is_empty()
    }

    /// Ready when somebody waits for a place.
    pub(super) async fn crowded(&self) {
        while !self.are_crowded() {
            self.0.crowded.notified().await;
        }
    }

    /// Tells connections whose message has stood still for too long while others wait, and those
    /// that wait for longer than `hold_timeout`.
    pub(super) fn evict_overdue(&self, now: Instant, hold_timeout: Duration) {
        let mut state = self.0.state.borrow_mut();
        if state.waiting.is_empty() {
            return;
        }
        for taken in &mut state.taken {
            if taken.queued.is_some() && now.duration_since(taken.moved) > PATIENCE {
                // What is done about it may take its time as well.
                taken.moved = now;
                let mut mailbox = taken.mailbox.borrow_mut();
                mailbox.overdue.push(taken.by.1);
                mailbox.wake();
            }
        }
        state.waiting.retain(|waiting| {
            let stays = now.duration_since(waiting.since) <= hold_timeout;
            if !stays {
                let mut mailbox = waiting.mailbox.borrow_mut();
                mailbox.expired.push(waiting.by.1);
                mailbox.wake();
            }
            stays
        });
    }
}

// === impl Tenant ===

impl Tenant {
    pub(super) fn new(id: ConnectionId, slots: Slots) -> Self {
        Self {
            id,
            slots,
            mailbox: Rc::default(),
            messages: 0,
        }
    }

    /// Queues a stream for a place; [`Tenant::poll_news`] has to be asked again after that.
    pub(super) fn want(&mut self, stream: StreamId) {
        self.messages += 1;
        let mut state = self.slots.0.state.borrow_mut();
        state.waiting.push_back(Waiting {
            by: (self.id, stream),
            since: Instant::now(),
            mailbox: self.mailbox.clone(),
        });
        state.hand_out();
        if !state.waiting.is_empty() {
            self.slots.0.crowded.notify_one();
        }
    }

    /// Gives a place back, or leaves the queue.
    pub(super) fn free(&mut self, stream: StreamId) {
        let this = (self.id, stream);
        let mut mailbox = self.mailbox.borrow_mut();
        mailbox.granted.retain(|granted| *granted != stream);
        mailbox.overdue.retain(|overdue| *overdue != stream);
        let expired = mailbox.expired.len();
        mailbox.expired.retain(|expired| *expired != stream);
        self.messages -= expired - mailbox.expired.len();
        drop(mailbox);
        self.messages -= self.slots.0.state.borrow_mut().give_back(|by| by == this);
    }

    /// What this connection has to hear. Pending also when it has no part in the slots.
    pub(super) fn poll_news(&mut self, cx: &mut Context<'_>) -> Poll<SlotNews> {
        if self.messages == 0 {
            return Poll::Pending;
        }
        let mut mailbox = self.mailbox.borrow_mut();
        if let Some(stream) = mailbox.overdue.pop() {
            return Poll::Ready(SlotNews::Overdue(stream));
        }
        if let Some(stream) = mailbox.granted.pop() {
            return Poll::Ready(SlotNews::Granted(stream));
        }
        if let Some(stream) = mailbox.expired.pop() {
            self.messages -= 1;
            return Poll::Ready(SlotNews::Expired(stream));
        }
        match &mut mailbox.waker {
            Some(waker) => waker.clone_from(cx.waker()),
            none => *none = Some(cx.waker().clone()),
        }
        Poll::Pending
    }

    /// Takes notice of which messages have moved: more of one is here than before, because it
    /// arrives, or less, because it goes on. What is `queued` of one that waits for us is `None`.
    pub(super) fn note_headway(&self, queued: impl Fn(StreamId) -> Option<usize>) {
        if self.messages == 0 {
            return;
        }
        let now = Instant::now();
        let mut state = self.slots.0.state.borrow_mut();
        let own = state.taken.iter_mut().filter(|taken| taken.by.0 == self.id);
        for taken in own {
            let queued = queued(taken.by.1);
            if taken.queued != queued {
                taken.queued = queued;
                taken.moved = now;
            }
        }
    }
}

impl Drop for Tenant {
    fn drop(&mut self) {
        self.slots
            .0
            .state
            .borrow_mut()
            .give_back(|by| by.0 == self.id);
    }
}

// === impl State ===

impl State {
    /// Returns how many had a place or waited for one.
    fn give_back(&mut self, whose: impl Fn((ConnectionId, StreamId)) -> bool) -> usize {
        let before = self.waiting.len() + self.taken.len();
        self.waiting.retain(|waiting| !whose(waiting.by));
        self.taken.retain(|taken| !whose(taken.by));
        let given = before - self.waiting.len() - self.taken.len();
        self.hand_out();
        given
    }

    fn hand_out(&mut self) {
        while self.taken.len() < self.places
            && let Some(Waiting { by, mailbox, .. }) = self.waiting.pop_front()
        {
            mailbox.borrow_mut().granted.push(by.1);
            mailbox.borrow_mut().wake();
            self.taken.push(Taken {
                by,
                queued: Some(0),
                moved: Instant::now(),
                mailbox,
            });
        }
    }
}

// === impl Mailbox ===

impl Mailbox {
    fn wake(&mut self) {
        if let Some(waker) = self.waker.take() {
            waker.wake();
        }
    }
}

#[cfg(test)]
mod tests;

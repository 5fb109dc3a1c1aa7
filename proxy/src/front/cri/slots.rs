//! Places for large messages, a few per process.
//!
//! A claimed message is held whole, and one larger than its stream's window needs credit lent
//! beyond what the runtime granted. Without a bound on how many do so at once, large messages
//! could fill memory; with only a byte cap they could deadlock. So: first come, first served, and
//! a place that makes no headway while others wait is taken back by closing its connection.

use koord_relay::StreamId;
use std::{cell::RefCell, collections::VecDeque, rc::Rc, time::Duration};
use tokio::{sync::mpsc, time::Instant};

/// How long one message may keep its place while others wait. A message of 16 MiB crosses a unix
/// socket in well under a second.
const PATIENCE: Duration = Duration::from_secs(10);

/// One connection, as the slots know it.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) struct ConnectionId(pub(super) u64);

/// What the slots tell a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SlotNews {
    /// The stream has its place.
    Granted(StreamId),
    /// Others waited too long for this connection's place: it is to be closed.
    Overdue,
}

#[derive(Clone, Debug)]
pub(super) struct Slots(Rc<RefCell<State>>);

#[derive(Debug)]
struct State {
    free: usize,
    taken: Vec<Taken>,
    waiting: VecDeque<Waiting>,
}

#[derive(Debug)]
struct Taken {
    by: (ConnectionId, StreamId),
    since: Instant,
    news: mpsc::UnboundedSender<SlotNews>,
}

#[derive(Debug)]
struct Waiting {
    by: (ConnectionId, StreamId),
    news: mpsc::UnboundedSender<SlotNews>,
}

// === impl Slots ===

impl Slots {
    pub(super) fn new(places: usize) -> Self {
        Self(Rc::new(RefCell::new(State {
            free: places,
            taken: Vec::new(),
            waiting: VecDeque::new(),
        })))
    }

    /// Queues a stream for a place; the answer comes by `news`, at once if a place is free.
    pub(super) fn want(
        &self,
        connection: ConnectionId,
        stream: StreamId,
        news: &mpsc::UnboundedSender<SlotNews>,
    ) {
        let mut state = self.0.borrow_mut();
        state.waiting.push_back(Waiting {
            by: (connection, stream),
            news: news.clone(),
        });
        state.hand_out();
    }

    /// Gives a place back, or leaves the queue.
    pub(super) fn free(&self, connection: ConnectionId, stream: StreamId) {
        self.0
            .borrow_mut()
            .give_back(|by| by == (connection, stream));
    }

    /// Gives back all that a closed connection had or wanted.
    pub(super) fn forget(&self, connection: ConnectionId) {
        self.0.borrow_mut().give_back(|by| by.0 == connection);
    }

    /// Takes places back from those who kept them too long while others wait.
    pub(super) fn evict_overdue(&self, now: Instant) {
        let state = self.0.borrow();
        if state.waiting.is_empty() {
            return;
        }
        for taken in &state.taken {
            if now.duration_since(taken.since) > PATIENCE {
                // A connection that is closing has no receiver any more; it frees its place itself.
                taken.news.send(SlotNews::Overdue).ok();
            }
        }
    }
}

// === impl State ===

impl State {
    fn give_back(&mut self, whose: impl Fn((ConnectionId, StreamId)) -> bool) {
        self.waiting.retain(|waiting| !whose(waiting.by));
        let before = self.taken.len();
        self.taken.retain(|taken| !whose(taken.by));
        self.free += before - self.taken.len();
        self.hand_out();
    }

    fn hand_out(&mut self) {
        while self.free > 0 {
            let Some(next) = self.waiting.pop_front() else {
                return;
            };
            if next.news.send(SlotNews::Granted(next.by.1)).is_err() {
                continue;
            }
            self.free -= 1;
            self.taken.push(Taken {
                by: next.by,
                since: Instant::now(),
                news: next.news,
            });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: ConnectionId = ConnectionId(1);
    const B: ConnectionId = ConnectionId(2);

    #[tokio::test]
    async fn places_go_to_the_first_who_asked() {
        let slots = Slots::new(1);
        let (news, mut heard) = mpsc::unbounded_channel();
        slots.want(A, 1, &news);
        slots.want(A, 3, &news);
        assert_eq!(heard.try_recv(), Ok(SlotNews::Granted(1)));
        assert!(heard.try_recv().is_err());
        slots.free(A, 1);
        assert_eq!(heard.try_recv(), Ok(SlotNews::Granted(3)));
    }

    #[tokio::test]
    async fn a_closed_connection_gives_everything_back() {
        let slots = Slots::new(1);
        let (news_a, _heard_a) = mpsc::unbounded_channel();
        let (news_b, mut heard_b) = mpsc::unbounded_channel();
        slots.want(A, 1, &news_a);
        slots.want(A, 3, &news_a);
        slots.want(B, 1, &news_b);
        slots.forget(A);
        assert_eq!(heard_b.try_recv(), Ok(SlotNews::Granted(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn a_place_is_taken_back_only_while_others_wait() {
        let slots = Slots::new(1);
        let (news, mut heard) = mpsc::unbounded_channel();
        slots.want(A, 1, &news);
        assert_eq!(heard.try_recv(), Ok(SlotNews::Granted(1)));
        let late = Instant::now() + Duration::from_secs(11);
        slots.evict_overdue(late);
        assert!(heard.try_recv().is_err());
        let (other, _heard_other) = mpsc::unbounded_channel();
        slots.want(B, 1, &other);
        slots.evict_overdue(late);
        assert_eq!(heard.try_recv(), Ok(SlotNews::Overdue));
    }
}

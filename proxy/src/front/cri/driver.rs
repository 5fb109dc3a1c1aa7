//! One client connection and its connection to the runtime: the I/O around [`koord_relay::Pair`].
//!
//! Hand-written polling, not a select of futures: a pass-through call costs one read and one write
//! a side and next to nothing else, and the one 64 KiB read buffer is shared by every connection of
//! the thread. Whatever ends one side ends the other, after what it had said was read and written.

use super::{
    ConnectionId, Shared,
    decisions::Decisions,
    ended::{Closing, Ended, PREFACE_TIMEOUT},
    guests::Guest,
    method::Method,
    room::Share,
    slots::{SlotNews, Tenant},
    stream::Stream,
};
use crate::{
    dial,
    hub::{Answer, Decision, Opening, Pending, Reply, Untouched},
};
use koord_relay::{Event, Pair, Released, Side, StreamId};
use std::{
    collections::HashMap,
    future::Future,
    io,
    pin::Pin,
    rc::Rc,
    task::{Context, Poll},
    time::Duration,
};
use tokio::{
    net::UnixStream,
    time::{Sleep, sleep},
};

/// Turns of one connection before the others get theirs.
const TURNS: usize = 32;
/// How long the last bytes to one side may take after the other side closed.
const FLUSH_TIMEOUT: Duration = Duration::from_secs(5);
/// How long a client without a call that is to go may leave unsaid that it has heard of it, and
/// unread what it was answered: one that lives does both at once, and a dead one is not to cost every
/// stop its whole grace.
const CLIENT_PATIENCE: Duration = Duration::from_secs(2);
/// How long a client that is to go, and has no call, may leave its preface unsaid and then wait for the
/// runtime's SETTINGS, which have to be there before it can be told. It is less than newcomers wait at a
/// stop: a runtime that takes connections and says nothing, and clients that do so, would else keep a stop
/// going for as long as it is given.
const PREFACE_PATIENCE: Duration = Duration::from_millis(300);

type Waited<T> = Pin<Box<dyn Future<Output = T>>>;

enum Runtime {
    /// Not before the client has shown a valid preface: a descriptor each is dear.
    Waiting,
    Dialling(Waited<io::Result<UnixStream>>),
    Connected(Stream),
}

/// Drives one pair until it ends.
pub(super) struct Driver {
    id: ConnectionId,
    guest: Guest,
    shared: Rc<Shared>,
    pair: Pair,
    client: Stream,
    runtime: Runtime,
    /// One side has closed its connection, and the other is written what is left for it.
    closing: Option<Closing>,
    /// By when the preface is there or, when closing, the rest written.
    deadline: Option<Pin<Box<Sleep>>>,
    /// Ready when all are told to go; `None` once this connection is to end, for that or to
    /// make room.
    stop: Option<Waited<()>>,
    /// By when the side that alone is waited for is to have read or said something.
    patience: Option<(Side, Pin<Box<Sleep>>)>,
    /// The announcements up to this one are to have come whole by then.
    arrival: Option<(StreamId, Pin<Box<Sleep>>)>,
    /// What claimed calls are held for.
    decisions: Decisions,
    /// What the replies of the claimed calls that went on will commit.
    pending: HashMap<StreamId, Pending>,
    slots: Tenant,
    share: Share,
}

fn stream_of<'a>(
    side: Side,
    client: &'a mut Stream,
    runtime: &'a mut Runtime,
) -> Option<&'a mut Stream> {
    match (side, runtime) {
        (Side::Client, _) => Some(client),
        (Side::Runtime, Runtime::Connected(stream)) => Some(stream),
        (Side::Runtime, _) => None,
    }
}

// === impl Driver ===

impl Driver {
    pub(super) fn new(id: ConnectionId, client: Stream, guest: Guest, shared: Rc<Shared>) -> Self {
        let stop = shared.drain.clone().told();
        Self {
            id,
            guest,
            pair: Pair::new(shared.claims.clone(), shared.limits).sharing(shared.spare.clone()),
            client,
            runtime: Runtime::Waiting,
            closing: None,
            deadline: Some(Box::pin(sleep(PREFACE_TIMEOUT))),
            stop: Some(Box::pin(stop)),
            patience: None,
            arrival: None,
            decisions: Decisions::default(),
            pending: HashMap::new(),
            slots: Tenant::new(id, shared.slots.clone()),
            share: shared.room.share(),
            shared,
        }
    }

    pub(super) async fn run(mut self) -> Ended {
        let ended = std::future::poll_fn(|cx| self.poll(cx)).await;
        let hub = &self.shared.hub;
        if ended.means_runtime_lost() {
            hub.runtime_lost();
        }
        // In the order in which they came.
        let mut pending: Vec<_> = self.pending.into_iter().collect();
        pending.sort_unstable_by_key(|(stream, _)| *stream);
        for (_, pending) in pending {
            hub.close(pending, Reply::Lost);
        }
        ended
    }

    fn poll(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        if let Some(stop) = &mut self.stop
            && stop.as_mut().poll(cx).is_ready()
        {
            self.ask_to_go();
        }
        if self.guest.poll_asked(cx).is_ready() {
            if !self.pair.preface_seen() {
                return Poll::Ready(Ended::PushedOut);
            }
            self.ask_to_go();
        }
        let polled = self.take_turns(cx);
        self.guest.note(self.pair.has_call());
        self.shared.metrics.relayed(&self.pair.take_counters());
        polled
    }

    /// The calls in flight finish, and the client takes new ones elsewhere.
    fn ask_to_go(&mut self) {
        if self.stop.take().is_some() {
            self.pair.drain();
        }
    }

    fn take_turns(&mut self, cx: &mut Context<'_>) -> Poll<Ended> {
        for _ in 0..TURNS {
            match self.turn(cx) {
                Err(ended) => return Poll::Ready(ended),
                Ok(true) => {}
                Ok(false) => return Poll::Pending,
            }
        }
        cx.waker().wake_by_ref();
        Poll::Pending
    }

    /// One round over everything that can make headway; false when nothing could.
    fn turn(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut progress = self.hear(cx)?;
        progress |= self.dial(cx)?;
        self.find_room();
        progress |= self.read(cx, Side::Client)?;
        progress |= self.read(cx, Side::Runtime)?;
        self.make_room();
        progress |= self.handle_events();
        progress |= self.write(cx, Side::Runtime)?;
        if self.write(cx, Side::Client)? {
            progress = true;
            self.patience = None;
        }
        self.slots.note_headway(|stream| {
            let waits_for_us = self.pair.held(stream).is_some();
            (!waits_for_us).then(|| self.pair.queued(stream))
        });
        if let Some(closing) = &self.closing
            && closing.is_silent
            && self.nothing_left_for(closing.side.other())
        {
            return Err(self.ended());
        }
        if self.stop.is_none() && (self.pair.is_drained() || self.is_given_up(cx)) {
            return Err(Ended::Drained);
        }
        if let Some(deadline) = &mut self.deadline
            && deadline.as_mut().poll(cx).is_ready()
        {
            return Err(self.ended());
        }
        Ok(progress)
    }

    /// Whether a client that is to go has waited for long without a call: for itself, who has neither read
    /// nor said a thing, or for the runtime.
    fn is_given_up(&mut self, cx: &mut Context<'_>) -> bool {
        let Some(side) = self.pair.awaits_alone() else {
            self.patience = None;
            return false;
        };
        let patience = match side {
            Side::Client => CLIENT_PATIENCE,
            Side::Runtime => PREFACE_PATIENCE,
        };
        let running = self.patience.take().filter(|(of, _)| *of == side);
        let (_, timer) = self
            .patience
            .insert(running.unwrap_or_else(|| (side, Box::pin(sleep(patience)))));
        timer.as_mut().poll(cx).is_ready()
    }

    /// Charges what is held to this connection's own part of the room, and what is beyond it to that of all.
    fn make_room(&mut self) {
        let held = self.pair.held_bytes() + self.decisions.kept_bytes();
        if held != self.share.held() {
            self.pair.set_crowded(self.share.crowds(held));
        }
    }

    /// Waits for messages again once others have made room, though what is held here is what it was.
    fn find_room(&mut self) {
        if self.pair.is_crowded() && !self.share.is_full() {
            self.pair.set_crowded(false);
        }
    }

    fn nothing_left_for(&self, side: Side) -> bool {
        let unheard = side == Side::Runtime && !matches!(self.runtime, Runtime::Connected(_));
        unheard || self.pair.output_len(side) == 0
    }

    /// What was awaited from beside: decisions and places.
    fn hear(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        let mut progress = false;
        while let Poll::Ready(decided) = self.decisions.poll_next(cx) {
            progress = true;
            self.answer(decided.stream, decided.method, decided.decision);
        }
        while let Poll::Ready(news) = self.slots.poll_news(cx) {
            progress = true;
            match news {
                SlotNews::Granted(stream) => {
                    if !self.pair.grant_slot(stream) {
                        self.slots.free(stream);
                    }
                }
                SlotNews::Expired(stream) => {
                    self.pair.give_up(stream);
                }
                SlotNews::Overdue(stream) => {
                    if !self.pair.give_up(stream) {
                        return Err(Ended::Overdue);
                    }
                }
            }
        }
        Ok(progress)
    }

    fn dial(&mut self, cx: &mut Context<'_>) -> Result<bool, Ended> {
        match &mut self.runtime {
            Runtime::Connected(_) => Ok(false),
            Runtime::Waiting => {
                if !self.pair.preface_seen() {
                    return Ok(false);
                }
                self.deadline = None;
                self.shared.guests.note_spoken(self.id);
                let endpoint = self.shared.runtime.clone();
                self.runtime = Runtime::Dialling(Box::pin(dial::connect(endpoint)));
                Ok(true)
            }
            Runtime::Dialling(dial) => match dial.as_mut().poll(cx) {
                Poll::Pending => Ok(false),
                Poll::Ready(dialled) => {
                    let stream = dialled.and_then(Stream::new);
                    self.runtime = Runtime::Connected(stream.map_err(Ended::Unreachable)?);
                    Ok(true)
                }
            },
        }
    }

    fn read(&mut self, cx: &mut Context<'_>, side: Side) -> Result<bool, Ended> {
        let heard = (self.closing.as_ref()).is_none_or(|closing| closing.hears(side));
        let answers_later = side == Side::Runtime && self.holds_announcement(cx);
        if !heard || answers_later || !self.pair.wants_read(side) {
            return Ok(false);
        }
        let shared = self.shared.clone();
        let mut buffer = shared.buffer.borrow_mut();
        let Some(stream) = stream_of(side, &mut self.client, &mut self.runtime) else {
            return Ok(false);
        };
        match stream.poll_read(cx, &mut buffer) {
            Poll::Pending => return Ok(false),
            Poll::Ready(Err(source)) => self.fell_silent(side, Ended::Io { side, source }),
            Poll::Ready(Ok(0)) => self.fell_silent(side, Ended::Closed(side)),
            Poll::Ready(Ok(count)) => {
                let through = self.pair.feed_through(side, &buffer[..count])?;
                // What a call is answered follows its headers in the same write.
                if self.pair.has_events() {
                    self.pair.keep(side.other(), through);
                } else {
                    self.write_through(cx, side.other(), through)?;
                }
            }
        }
        Ok(true)
    }

    /// Whether an announcement is held. Its client does next what it announces, whatever it is answered, so
    /// nothing is read from the runtime before it was decided. One that has not come whole when a call can
    /// be held no longer, or after twice that time if others were awaited when it began, passes unopened.
    fn holds_announcement(&mut self, cx: &mut Context<'_>) -> bool {
        loop {
            let Some(last) = self.pair.last_partial_announcement() else {
                self.arrival = None;
                break;
            };
            let longest = self.shared.hold_timeout;
            let arrival = self
                .arrival
                .get_or_insert_with(|| (last, Box::pin(sleep(longest))));
            if arrival.1.as_mut().poll(cx).is_pending() {
                break;
            }
            self.pair.give_up_announcements(arrival.0);
            self.arrival = None;
        }
        // One that closes is heard no more, and says only what it was to say.
        self.closing.is_none() && self.pair.has_announcement()
    }

    /// Writes what waits for one side and, behind it, what passes from the read buffer, in one go.
    /// What does not fit waits.
    fn write_through(
        &mut self,
        cx: &mut Context<'_>,
        side: Side,
        through: &[u8],
    ) -> Result<(), Ended> {
        if through.is_empty() {
            return Ok(());
        }
        let [waiting, payload] = self.pair.output(side);
        let mut written = 0;
        if let Some(stream) = stream_of(side, &mut self.client, &mut self.runtime) {
            match stream.poll_write(cx, [waiting, payload, through]) {
                Poll::Pending => {}
                Poll::Ready(Ok(count @ 1..)) => written = count,
                Poll::Ready(other) => return self.turned_away(side, other.err()),
            }
        }
        let waited = self.pair.output_len(side).min(written);
        self.pair.keep(side, &through[written - waited..]);
        self.pair.advance(side, waited);
        Ok(())
    }

    fn write(&mut self, cx: &mut Context<'_>, side: Side) -> Result<bool, Ended> {
        let mut progress = false;
        loop {
            let waiting = self.pair.output_len(side);
            if waiting == 0 {
                return Ok(progress);
            }
            if (self.closing.as_ref()).is_some_and(|closing| closing.side == side) {
                self.pair.advance(side, waiting);
                continue;
            }
            let Some(stream) = stream_of(side, &mut self.client, &mut self.runtime) else {
                return Ok(progress);
            };
            let [waiting, payload] = self.pair.output(side);
            match stream.poll_write(cx, [waiting, payload, &[]]) {
                Poll::Pending => return Ok(progress),
                Poll::Ready(Ok(written @ 1..)) => {
                    self.pair.advance(side, written);
                    progress = true;
                }
                Poll::Ready(other) => self.turned_away(side, other.err())?,
            }
        }
    }

    /// Nothing more comes from one side.
    fn fell_silent(&mut self, side: Side, why: Ended) {
        self.close(side, why).is_silent = true;
    }

    /// One side takes nothing more. What it said before is not lost for that: it may be the answer
    /// to a call, and without us the other end would read it.
    fn turned_away(&mut self, side: Side, error: Option<io::Error>) -> Result<(), Ended> {
        let why = Ended::unwritten(side, error);
        if self.closing.is_some() {
            return Err(why);
        }
        self.close(side, why);
        Ok(())
    }

    /// Why it is over.
    fn ended(&mut self) -> Ended {
        let closing = self.closing.take();
        closing.map_or(Ended::NoPreface, |closing| closing.why)
    }

    fn close(&mut self, side: Side, why: Ended) -> &mut Closing {
        if self.closing.is_none() {
            self.deadline = Some(Box::pin(sleep(FLUSH_TIMEOUT)));
        }
        self.closing.get_or_insert(Closing {
            side,
            why,
            is_silent: false,
        })
    }

    /// Does what the relay asks for; false if it asked for nothing.
    fn handle_events(&mut self) -> bool {
        let mut progress = false;
        while let Some(event) = self.pair.next_event() {
            progress = true;
            match event {
                Event::Request {
                    stream,
                    tag,
                    timeout,
                } => {
                    if let Some(method) = Method::of(tag) {
                        self.open(stream, method, timeout);
                    } else {
                        self.pair.release(stream);
                    }
                }
                Event::Unopened {
                    stream,
                    tag,
                    reason,
                } => {
                    self.decisions.abandon(stream);
                    if let Some(method) = Method::of(tag) {
                        self.shared.metrics.call_unopened(method, reason);
                        // Only the runtime's lists tell what comes of it, however it ends.
                        let Decision { pending, .. } = Decision::unthought(method);
                        self.pending.insert(stream, pending);
                    }
                }
                Event::Response {
                    stream,
                    grpc_status,
                    message,
                    ..
                } => self.close_call(
                    stream,
                    Reply::Answered {
                        grpc_status,
                        message,
                    },
                ),
                Event::Gone { stream, .. } => self.close_call(stream, Reply::Lost),
                Event::SlotWanted { stream } => self.slots.want(stream),
                Event::SlotFreed { stream } => self.slots.free(stream),
            }
        }
        progress
    }

    fn open(&mut self, stream: StreamId, method: Method, timeout: Option<Duration>) {
        let Some(message) = self.pair.held(stream) else {
            return;
        };
        let length = message.len();
        match self.shared.hub.open(method, message, timeout) {
            Opening::Now(decision) => self.answer(stream, method, decision),
            Opening::Later(decision) => self.decisions.begin(stream, (method, length), decision),
        }
    }

    fn answer(&mut self, stream: StreamId, method: Method, decision: Decision) {
        let Decision {
            answer,
            mut pending,
        } = decision;
        let (answer, goes_on) = match answer {
            Answer::Patched(appended) => match self.pair.release_with(stream, &appended) {
                Released::AsItCame => {
                    pending.leave_unsaid();
                    (Answer::AsIs(Untouched::TooLarge), true)
                }
                released => (Answer::Patched(appended), released != Released::Gone),
            },
            Answer::AsIs(_) => (answer, self.pair.release(stream)),
            Answer::Refused(ref status) => {
                self.pair.refuse(stream, status.code, &status.message);
                (answer, false)
            }
        };
        self.shared.metrics.call_answered(method, &answer);
        if goes_on {
            self.pending.insert(stream, pending);
        } else {
            self.shared.hub.close(pending, Reply::Lost);
        }
    }

    /// A call has ended: what it did is committed, or what it was held for is given up.
    fn close_call(&mut self, stream: StreamId, reply: Reply) {
        match self.pending.remove(&stream) {
            Some(pending) => self.shared.hub.close(pending, reply),
            // It was still held, so it did not happen.
            None => self.decisions.abandon(stream),
        }
    }
}

#[cfg(test)]
mod tests;

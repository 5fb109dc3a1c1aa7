//! What the driver decides about a claimed stream.

use crate::frame::{self, Code};
use crate::own;
use crate::pair::Pair;
use crate::stream::{Hold, PREFIX, Slot, Stream};
use crate::{Released, StreamId, Unopened};

impl Pair {
    /// The message that waits for an answer, without its prefix.
    #[must_use]
    pub fn held(&self, stream: StreamId) -> Option<&[u8]> {
        let stream = self.streams.get(&stream)?;
        (stream.hold() == Hold::Waiting).then(|| &stream.queue.pending()[PREFIX..])
    }

    /// Lets the request go on as it came. For a message that is still arriving, this gives up on
    /// holding it. False if there is nothing to release.
    pub fn release(&mut self, stream: StreamId) -> bool {
        if !self.is_holding(stream) {
            return false;
        }
        self.pass(stream);
        true
    }

    /// Lets the request go on with `appended`, encoded protobuf fields, behind the message; as it came
    /// if that would be over [`Limits::max_message`](crate::Limits::max_message).
    pub fn release_with(&mut self, stream: StreamId, appended: &[u8]) -> Released {
        let Some(message) = self.held(stream) else {
            return Released::Gone;
        };
        let length = message.len() + appended.len();
        let length = match u32::try_from(length) {
            Ok(fits) if length <= self.limits.max_message => fits,
            _ => {
                self.release(stream);
                return Released::AsItCame;
            }
        };
        if let Some(opened) = self.streams.get_mut(&stream) {
            opened.queue.patch(appended, length);
            opened.window.hold(appended.len());
            self.ledger.hold(appended.len());
        }
        self.pass(stream);
        Released::Patched
    }

    /// Ends the call with an error of our own; the runtime never sees the message. `message` is the
    /// `grpc-message` before percent-encoding. False if there is nothing to refuse.
    pub fn refuse(&mut self, stream: StreamId, grpc_status: u32, message: &str) -> bool {
        if !self.is_holding(stream) {
            return false;
        }
        let Some(opened) = self.detach(stream) else {
            return false;
        };
        let table_size = self.runtime.decoder.table_size();
        let resizes = self.runtime.rewrite.own_resizes(table_size);
        let block = own::error_block(resizes, opened.reply_begun, grpc_status, message);
        frame::headers(self.to_client.own(), stream, true, None, &block);
        self.bury(stream, opened.client_ended);
        self.settle();
        true
    }

    /// Lends credit for the rest of a large message. False if it is not wanted any more.
    pub fn grant_slot(&mut self, stream: StreamId) -> bool {
        let opened = self.streams.get_mut(&stream);
        let Some(claim) = opened.and_then(|opened| opened.claim.as_mut()) else {
            return false;
        };
        if claim.hold != Hold::Collecting || claim.slot != Slot::Wanted {
            return false;
        }
        claim.slot = Slot::Granted;
        self.settle_stream(stream);
        self.settle();
        true
    }

    /// Lets a message that is still arriving pass unopened: there is no room for it. False if the
    /// stream holds none.
    pub fn give_up(&mut self, stream: StreamId) -> bool {
        self.give_up_for(stream, Unopened::Crowded)
    }

    /// Lets the [announcements](crate::Claims::with_announcement) pass unopened that are still arriving and began
    /// no later than this one: they are late.
    pub fn give_up_announcements(&mut self, last: StreamId) {
        let late: Vec<StreamId> = self.announced.arriving_up_to(last).collect();
        for stream in late {
            self.give_up_for(stream, Unopened::Late);
        }
    }

    fn give_up_for(&mut self, stream: StreamId, reason: Unopened) -> bool {
        let arriving = self
            .streams
            .get(&stream)
            .is_some_and(|opened| opened.hold() == Hold::Collecting);
        if arriving {
            self.pass_unopened(stream, reason);
            self.settle_stream(stream);
            self.settle();
        }
        arriving
    }

    /// Says whether there is no room: every message that is still arriving then passes unopened,
    /// and so does every later one, until there is room again.
    pub fn set_crowded(&mut self, crowded: bool) {
        let begins = crowded && !self.crowded;
        self.crowded = crowded;
        if begins {
            let streams: Vec<StreamId> = self.streams.keys().copied().collect();
            for stream in streams {
                self.give_up(stream);
            }
        }
    }

    /// What was said last.
    pub fn is_crowded(&self) -> bool {
        self.crowded
    }

    fn is_holding(&self, stream: StreamId) -> bool {
        let opened = self.streams.get(&stream);
        opened.is_some_and(|opened| opened.hold().is_holding())
    }

    /// What is held goes on, and so does what follows.
    fn pass(&mut self, stream: StreamId) {
        let opened = self.streams.get_mut(&stream);
        if let Some(claim) = opened.and_then(|opened| opened.claim.as_mut()) {
            claim.hold = Hold::Passing;
        }
        self.announced.ends(stream);
        self.line_up(stream);
        self.settle_stream(stream);
        self.settle();
        self.free_slot_if_sent(stream);
    }

    /// Ends a detached stream that the client has an answer for: neither end is to send anything
    /// more on it.
    pub(super) fn bury(&mut self, id: StreamId, client_ended: bool) {
        frame::rst_stream(self.to_runtime.own(), id, Code::Cancel);
        if !client_ended {
            frame::rst_stream(self.to_client.own(), id, Code::NoError);
        }
        self.entomb(id);
    }

    /// Has what comes on a stream swallowed, for as long as it is remembered.
    pub(super) fn entomb(&mut self, id: StreamId) {
        self.streams.insert(id, Stream::tombstone());
        self.tombstones.push_back(id);
        if self.tombstones.len() > self.limits.tombstones
            && let Some(oldest) = self.tombstones.pop_front()
        {
            self.streams.remove(&oldest);
        }
    }
}

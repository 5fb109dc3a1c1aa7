//! What the driver decides about a claimed stream.

use crate::StreamId;
use crate::frame::{self, Code};
use crate::own;
use crate::pair::Pair;
use crate::stream::{Claim, Hold, PREFIX, Queue, Slot, Stream};

impl Pair {
    /// The message that waits for an answer, without its prefix.
    #[must_use]
    pub fn held(&self, stream: StreamId) -> Option<&[u8]> {
        let stream = self.streams.get(&stream)?;
        let waiting = stream.claim.as_ref()?.hold == Hold::Waiting;
        waiting.then(|| &stream.queue.pending()[PREFIX..])
    }

    /// Lets the request go on as it came. For a message that is still arriving, this gives up on
    /// holding it. False if there is nothing to release.
    pub fn release(&mut self, stream: StreamId) -> bool {
        let Some((_, claim)) = self.held_claim(stream) else {
            return false;
        };
        claim.hold = Hold::Passing;
        self.counters.released += 1;
        self.released(stream);
        true
    }

    /// Lets the request go on with `appended`, encoded protobuf fields, behind the message. False
    /// if there is nothing to release, or if the message would be over
    /// [`Limits::max_message`](crate::Limits::max_message); it then goes on as it came.
    pub fn release_with(&mut self, stream: StreamId, appended: &[u8]) -> bool {
        let Some(message) = self.held(stream) else {
            return false;
        };
        let length = message.len() + appended.len();
        let length = match u32::try_from(length) {
            Ok(fits) if length <= self.limits.max_message => fits,
            _ => {
                self.counters.patches_too_large += 1;
                self.release(stream);
                return false;
            }
        };
        let Some((opened, claim)) = self.held_claim(stream) else {
            return false;
        };
        opened.patch(appended, length);
        claim.hold = Hold::Passing;
        claim.window.hold(appended.len());
        self.ledger.hold(appended.len());
        self.counters.patched += 1;
        self.released(stream);
        true
    }

    /// Ends the call with an error of our own; the runtime never sees the message. `message` is the
    /// `grpc-message` before percent-encoding. False if there is nothing to refuse.
    pub fn refuse(&mut self, stream: StreamId, grpc_status: u32, message: &str) -> bool {
        if self.held_claim(stream).is_none() {
            return false;
        }
        let Some(opened) = self.detach(stream) else {
            return false;
        };
        let block = own::error_block(opened.reply_begun, grpc_status, message);
        let to_client = self.to_client.own();
        frame::headers(to_client, stream, true, None, &block);
        if !opened.client_ended {
            frame::rst_stream(to_client, stream, Code::NoError);
        }
        frame::rst_stream(self.to_runtime.own(), stream, Code::Cancel);
        self.counters.refused += 1;
        self.bury(stream);
        self.settle();
        true
    }

    /// Lends credit for the rest of a large message. False if it is not wanted any more.
    pub fn grant_slot(&mut self, stream: StreamId) -> bool {
        let Some((_, claim)) = self.held_claim(stream) else {
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

    fn held_claim(&mut self, stream: StreamId) -> Option<(&mut Queue, &mut Claim)> {
        let stream = self.streams.get_mut(&stream)?;
        let claim = stream.claim.as_deref_mut()?;
        claim.is_held().then_some((&mut stream.queue, claim))
    }

    fn released(&mut self, stream: StreamId) {
        self.line_up(stream);
        self.settle_stream(stream);
        self.settle();
        self.free_slot_if_sent(stream);
    }

    /// Remembers a refused stream, and forgets the oldest one over the limit.
    fn bury(&mut self, id: StreamId) {
        let tombstone = Stream {
            refused: true,
            ..Stream::default()
        };
        self.streams.insert(id, tombstone);
        self.tombstones.push_back(id);
        if self.tombstones.len() > self.limits.tombstones
            && let Some(oldest) = self.tombstones.pop_front()
        {
            self.streams.remove(&oldest);
        }
    }
}

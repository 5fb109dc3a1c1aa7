//! What is remembered of one open stream, and of one that we ended.
//!
//! An unclaimed stream costs a few words; what a claim needs is boxed.

use std::{mem, time::Duration};

use crate::Tag;
use crate::spare::Spare;
use crate::window::Ledger;

/// Bytes of a gRPC message prefix: one of flags, four of length.
pub(crate) const PREFIX: usize = 5;

#[derive(Debug)]
pub(crate) struct Stream {
    /// END_STREAM came from the client.
    pub(crate) client_ended: bool,
    /// END_STREAM came from the runtime.
    pub(crate) runtime_ended: bool,
    /// A header block of the runtime was forwarded.
    pub(crate) reply_begun: bool,
    /// We ended it; what still comes from either side is swallowed.
    pub(crate) buried: bool,
    /// It waits in the line of those that have something to send.
    pub(crate) in_line: bool,
    /// It ends with its connection.
    pub(crate) endless: bool,
    pub(crate) window: Ledger,
    /// DATA on its way to the runtime.
    pub(crate) queue: Queue,
    pub(crate) claim: Option<Box<Claim>>,
}

/// Payload that is sent from the front.
#[derive(Debug, Default)]
pub(crate) struct Queue {
    bytes: Vec<u8>,
    sent: usize,
    /// END_STREAM follows the last byte.
    pub(crate) ends: bool,
}

#[derive(Debug)]
pub(crate) struct Claim {
    pub(crate) tag: Tag,
    pub(crate) timeout: Option<Duration>,
    pub(crate) hold: Hold,
    /// Prefix and message, once the prefix is here.
    pub(crate) total: Option<usize>,
    /// This stream's share of what the connection needs.
    pub(crate) share: usize,
    pub(crate) slot: Slot,
    pub(crate) reply: ReplyCopy,
}

/// How far a request is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Hold {
    /// The message is not whole yet.
    Collecting,
    /// The message is whole, the driver was asked.
    Waiting,
    /// What is queued and what comes goes on.
    Passing,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Slot {
    None,
    Wanted,
    Granted,
}

/// A copy of the first reply message.
#[derive(Debug)]
pub(crate) struct ReplyCopy {
    prefix: [u8; PREFIX],
    prefix_len: usize,
    message: Vec<u8>,
    skipped: bool,
}

// === impl Stream ===

impl Stream {
    pub(crate) fn new(window: u32, claim: Option<Claim>) -> Self {
        Self {
            client_ended: false,
            runtime_ended: false,
            reply_begun: false,
            buried: false,
            in_line: false,
            endless: false,
            window: Ledger::new(window),
            queue: Queue::default(),
            claim: claim.map(Box::new),
        }
    }

    /// What is left of a stream that we ended.
    pub(crate) fn tombstone() -> Self {
        Self {
            buried: true,
            ..Self::new(0, None)
        }
    }

    pub(crate) fn hold(&self) -> Hold {
        self.claim
            .as_ref()
            .map_or(Hold::Passing, |claim| claim.hold)
    }
}

// === impl Queue ===

impl Queue {
    pub(crate) fn pending(&self) -> &[u8] {
        &self.bytes[self.sent..]
    }

    pub(crate) fn len(&self) -> usize {
        self.bytes.len() - self.sent
    }

    /// Nothing is left to send, END_STREAM included.
    pub(crate) fn is_done(&self) -> bool {
        self.len() == 0 && !self.ends
    }

    /// Appends, growing to at most `expected` bytes for as long as that is enough, so that a
    /// promised length costs nothing until it arrives. What was sent goes first where it is most of it:
    /// a queue need never be empty.
    pub(crate) fn push(&mut self, data: &[u8], expected: usize) {
        if self.sent > self.bytes.len() / 2 {
            self.bytes.drain(..mem::take(&mut self.sent));
        }
        let length = self.bytes.len() + data.len();
        if length > self.bytes.capacity() {
            let target = (2 * self.bytes.capacity()).clamp(length, expected.max(length));
            self.bytes.reserve_exact(target - self.bytes.len());
        }
        self.bytes.extend_from_slice(data);
    }

    /// Appends to a held message and corrects the length in its prefix.
    pub(crate) fn patch(&mut self, appended: &[u8], message_len: u32) {
        self.bytes.reserve_exact(appended.len());
        self.bytes.extend_from_slice(appended);
        self.bytes[1..PREFIX].copy_from_slice(&message_len.to_be_bytes());
    }

    /// Gives away what is queued, in its own buffer, if that is `count` bytes and nothing of it was sent.
    pub(crate) fn take_whole(&mut self, count: usize) -> Option<Vec<u8>> {
        let is_whole = count > 0 && self.sent == 0 && self.bytes.len() == count;
        is_whole.then(|| mem::take(&mut self.bytes))
    }

    pub(crate) fn advance(&mut self, count: usize, spare: &Spare) {
        self.sent += count;
        if self.sent == self.bytes.len() {
            spare.take_back(mem::take(&mut self.bytes));
            self.sent = 0;
        }
    }

    /// Uses a buffer that was used before for so many bytes, if it has none of its own.
    pub(crate) fn borrow(&mut self, length: usize, spare: &Spare) {
        if self.bytes.capacity() == 0 {
            self.bytes = spare.take(length);
        }
    }

    /// Forgets everything. Returns how many bytes that were.
    pub(crate) fn clear(&mut self) -> usize {
        let length = self.len();
        *self = Self::default();
        length
    }
}

// === impl Claim ===

impl Claim {
    pub(crate) fn new(tag: Tag, timeout: Option<Duration>) -> Self {
        Self {
            tag,
            timeout,
            hold: Hold::Collecting,
            total: None,
            share: 0,
            slot: Slot::None,
            reply: ReplyCopy::new(),
        }
    }

    /// Bytes that have to arrive before the driver can be asked.
    pub(crate) fn missing(&self, queued: usize) -> usize {
        match self.hold {
            Hold::Collecting => self.total.unwrap_or(PREFIX).saturating_sub(queued),
            Hold::Waiting | Hold::Passing => 0,
        }
    }
}

// === impl Hold ===

impl Hold {
    /// Nothing of the request's body goes on.
    pub(crate) fn is_holding(self) -> bool {
        matches!(self, Self::Collecting | Self::Waiting)
    }
}

// === impl ReplyCopy ===

impl ReplyCopy {
    fn new() -> Self {
        Self {
            prefix: [0; PREFIX],
            prefix_len: 0,
            message: Vec::new(),
            skipped: false,
        }
    }

    /// Takes what belongs to the first message, if that is at most `limit` bytes and plain.
    pub(crate) fn push(&mut self, mut data: &[u8], limit: usize) {
        if self.skipped {
            return;
        }
        let in_prefix = data.len().min(PREFIX - self.prefix_len);
        let (prefix, rest) = data.split_at(in_prefix);
        self.prefix[self.prefix_len..][..in_prefix].copy_from_slice(prefix);
        self.prefix_len += in_prefix;
        data = rest;
        let Some(length) = self.length() else { return };
        if self.prefix[0] != 0 || length > limit {
            self.skipped = true;
            return;
        }
        let wanted = data.len().min(length - self.message.len());
        self.message.extend_from_slice(&data[..wanted]);
    }

    /// The message, if all of it came.
    pub(crate) fn take(&mut self) -> Option<Vec<u8>> {
        let whole = !self.skipped && self.length() == Some(self.message.len());
        whole.then(|| mem::take(&mut self.message))
    }

    fn length(&self) -> Option<usize> {
        let [_, a, b, c, d] = self.prefix;
        (self.prefix_len == PREFIX).then(|| u32::from_be_bytes([a, b, c, d]) as usize)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn promised_length_costs_nothing_before_it_arrives() {
        let mut queue = Queue::default();
        queue.push(b"12345", 16 << 20);
        assert!(queue.bytes.capacity() <= 64);
        for _ in 0..100 {
            queue.push(&[0; 1_000], 100_005);
        }
        assert_eq!(queue.bytes.capacity(), 100_005);
    }

    #[test]
    fn what_was_sent_costs_nothing_though_the_queue_is_never_empty() {
        let mut queue = Queue::default();
        queue.push(&[0; 60_000], 60_000);
        for byte in 0..100 {
            queue.push(&[byte; 16_384], 16_384);
            queue.advance(16_384, &Spare::default());
        }
        assert_eq!(queue.len(), 60_000);
        assert_eq!((queue.pending()[59_999], queue.pending()[0]), (99, 96));
        let buffer = queue.bytes.capacity();
        assert!(buffer <= 4 * 60_000, "{buffer}");
    }

    #[test]
    fn patch_corrects_the_length_in_the_prefix() {
        let mut queue = Queue::default();
        queue.push(b"\x00\x00\x00\x00\x02ab", 7);
        queue.patch(b"cde", 5);
        assert_eq!(queue.pending(), b"\x00\x00\x00\x00\x05abcde");
    }

    #[test]
    fn a_sent_messages_buffer_is_used_again_unless_it_is_large() {
        let spare = Spare::default();
        for (size, kept) in [(8_000, 8_000), (100, 8_000), (100_000, 0)] {
            let mut queue = Queue::default();
            queue.borrow(size, &spare);
            queue.push(&vec![1; size], size);
            queue.advance(size, &spare);
            assert!(queue.is_done());
            let next = spare.take(8_000);
            assert_eq!((next.len(), next.capacity()), (0, kept));
            spare.take_back(next);
        }
    }

    #[test]
    fn first_reply_message_is_copied_however_it_is_cut() {
        for cut in 0..=12 {
            let (head, tail) = b"\x00\x00\x00\x00\x03abcNEXT".split_at(cut);
            let mut copy = ReplyCopy::new();
            copy.push(head, 3);
            copy.push(tail, 3);
            assert_eq!(copy.take().as_deref(), Some(&b"abc"[..]));
        }
    }

    #[test]
    fn reply_that_is_compressed_large_cut_short_or_absent_is_not_copied() {
        for reply in [
            &b"\x01\x00\x00\x00\x03abc"[..],
            b"\x00\x00\x00\x00\x04abcd",
            b"\x00\x00\x00\x00\x03ab",
            b"",
        ] {
            let mut copy = ReplyCopy::new();
            copy.push(reply, 3);
            assert_eq!(copy.take(), None);
        }
    }
}

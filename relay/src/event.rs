//! What a pair tells its driver: events about claimed streams, and plain counts.

use std::time::Duration;

use crate::{Side, StreamId, Tag};

/// Something that happened on a claimed stream.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// The whole request message is held. Answer with one of
    /// [`Pair::release`](crate::Pair::release), [`Pair::release_with`](crate::Pair::release_with)
    /// and [`Pair::refuse`](crate::Pair::refuse).
    Request {
        stream: StreamId,
        tag: Tag,
        /// The caller's `grpc-timeout`, counted from the arrival of its headers.
        timeout: Option<Duration>,
    },
    /// The stream passes unopened from here on. May follow a [`Event::Request`] that was not
    /// answered yet; the answer is then a no-op.
    Unopened {
        stream: StreamId,
        tag: Tag,
        reason: Unopened,
    },
    /// The runtime's answer has ended; all of it was forwarded already.
    Response {
        stream: StreamId,
        tag: Tag,
        grpc_status: Option<u32>,
        /// The first reply message without its prefix; `None` if there was none, or it was
        /// compressed or over [`Limits::reply_message`](crate::Limits::reply_message).
        message: Option<Vec<u8>>,
    },
    /// The stream was reset before its answer had ended.
    Gone {
        stream: StreamId,
        tag: Tag,
        by: Side,
    },
    /// A message is larger than the runtime's window for it. Credit is lent for the rest once
    /// [`Pair::grant_slot`](crate::Pair::grant_slot) says so.
    SlotWanted { stream: StreamId },
    /// The slot that a message had, or wanted, is not needed any more.
    SlotFreed { stream: StreamId },
}

/// What came of a request that was to go on with more than it had.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Released {
    Patched,
    /// It would have been too large.
    AsItCame,
    /// There was nothing to release.
    Gone,
}

/// Why a claimed stream passes unopened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unopened {
    /// The message is compressed.
    Compressed,
    /// The message is over [`Limits::max_message`](crate::Limits::max_message).
    TooLarge,
    /// The body is not one message with a valid prefix.
    Malformed,
    /// More bytes followed the message before it was answered.
    SecondMessage,
    /// The driver has no room for it.
    Crowded,
    /// The driver has waited for it for long enough.
    Late,
}

/// Counts since they were last taken.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counters {
    /// Frames read from either side.
    pub frames: u64,
    /// DATA bytes that were dropped and given back as credit: on refused, reset or answered
    /// streams.
    pub swallowed_bytes: u64,
    /// Header blocks encoded anew.
    pub reencoded: u64,
}

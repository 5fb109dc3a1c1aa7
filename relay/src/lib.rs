//! Paired HTTP/2 connections: what the client sends goes to the runtime and back, byte for byte.
//!
//! For each accepted connection there is one connection to the runtime, and a [`Pair`] between the
//! two. Every frame passes as it came, so header compression, flow control, keep-alive and limits
//! stay a matter between the two ends. Only the streams whose `:path` is claimed are opened: their
//! request message is held until the caller answers [`Event::Request`], and may go on with bytes
//! appended to it.
//!
//! The room does no I/O, has no clock and no task of its own: bytes go in with [`Pair::feed`],
//! bytes and events come out. That makes it possible to test every order of events there is, and
//! leaves sockets, deadlines and hooks to the caller.
//!
//! It knows nothing of what the claimed messages mean. Of gRPC it knows the five-byte message
//! prefix, `grpc-timeout`, `grpc-status` and how an error reply without a message looks.
#![forbid(unsafe_code)]

mod announced;
mod claims;
mod event;
mod frame;
pub mod hpack;
mod inbound;
mod limits;
mod output;
mod own;
mod pair;
mod settings;
mod spare;
mod stream;
mod violation;
mod window;

use std::fmt;

pub use claims::{Claims, Tag};
pub use event::{Counters, Event, Released, Unopened};
pub use limits::Limits;
pub use pair::Pair;
pub use spare::Spare;
pub use violation::{Breach, Violation};

/// An HTTP/2 stream identifier, 1 to 2³¹−1; 0 is the connection.
pub type StreamId = u32;

/// One end of a pair: who bytes come from, or go to.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Side {
    /// The accepted connection.
    Client,
    /// The connection that was dialled for it.
    Runtime,
}

// === impl Side ===

impl Side {
    /// The other end.
    #[must_use]
    pub fn other(self) -> Self {
        match self {
            Self::Client => Self::Runtime,
            Self::Runtime => Self::Client,
        }
    }
}

impl fmt::Display for Side {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Client => "client",
            Self::Runtime => "runtime",
        })
    }
}

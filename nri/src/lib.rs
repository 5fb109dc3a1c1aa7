//! The wire of the Node Resource Interface (NRI): logical connections multiplexed over one byte
//! stream, and ttrpc in each of them.
//!
//! A plugin and a runtime share one socket. On connection 1 the runtime calls the plugin, on
//! connection 2 the plugin calls the runtime. A [`Peer`] is either end: it cuts what arrives into
//! frames, frames into messages and messages into requests and answers, and makes frames of what
//! is called and replied.
//!
//! The room does no I/O, has no clock and no task of its own: bytes go in with [`Peer::feed`], bytes
//! and events come out. Sockets, deadlines and the meaning of a payload are the caller's.
//!
//! # Strict and generous
//!
//! What is sent keeps the rules that the Go implementation's reader depends on ([`mux`] has them),
//! and is never over 4 MiB. What is read may be cut into frames in any way, and be as large as
//! [`Limits`] say: runtimes before ttrpc 1.2.6 send whatever size it takes. What neither end could
//! have meant is a [`Violation`], after which the socket is to be closed: nothing in this protocol
//! tells where the next frame would begin.
//!
//! # Example
//!
//! ```
//! use koord_nri::{Event, Limits, Peer, Role};
//!
//! let mut plugin = Peer::new(Role::Plugin, Limits::default());
//! let mut runtime = Peer::new(Role::Runtime, Limits::default());
//! let call = plugin.call("example.Runtime", "Greet", b"hello", None)?;
//! runtime.feed(plugin.output())?;
//! let Some(Event::Request(request)) = runtime.next_event() else { unreachable!() };
//! assert_eq!((&*request.method, &*request.payload), ("Greet", &b"hello"[..]));
//! runtime.reply(request.id, Ok(b"hello yourself"))?;
//! plugin.feed(runtime.output())?;
//! let answer = Event::Answer { call, result: Ok(b"hello yourself".to_vec()) };
//! assert_eq!(plugin.next_event(), Some(answer));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

mod body;
mod event;
mod limits;
mod message;
pub mod mux;
mod output;
mod peer;
mod status;
mod violation;

pub use event::{CallId, Event, Request, RequestId};
pub use limits::{Limits, MAX_SENT};
pub use peer::{Peer, SendError};
pub use status::{Code, Status};
pub use violation::{Breach, Violation};

/// Which end of the stream a peer is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Role {
    /// Serves connection 1, calls on connection 2.
    Plugin,
    /// Serves connection 2, calls on connection 1.
    Runtime,
}

// === impl Role ===

impl Role {
    /// The connection on which this end is called.
    fn serves(self) -> u32 {
        match self {
            Self::Plugin => 1,
            Self::Runtime => 2,
        }
    }

    /// The connection on which this end calls.
    fn calls(self) -> u32 {
        match self {
            Self::Plugin => 2,
            Self::Runtime => 1,
        }
    }
}

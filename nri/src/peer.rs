//! One end of the stream: the way of every byte.
//!
//! ```text
//!  feed ── mux::Reader ──┬── the connection that we serve ── messages ── requests ── Event::Request
//!                        │                                      └── refused: answered at once
//!                        ├── the connection that we call on ── messages ── Event::Answer
//!                        └── any other ── dropped, counted
//!
//!  call, reply ── message ── one frame, or two ── output
//! ```
//!
//! `serve.rs` has the requests of the other end, `call.rs` our own.
//!
//! What holds after every call: the output is whole frames that keep the rules of [`mux`], calls
//! have rising odd numbers, and each request that was told of has at most one reply.

mod call;
mod serve;

use std::collections::VecDeque;

use crate::limits::{Limits, MAX_SENT};
use crate::output::Output;
use crate::violation::{Breach, Violation};
use crate::{Event, Role, message, mux};

use call::Calls;
use serve::Requests;

/// One end of a stream. See the crate's documentation.
#[derive(Debug)]
pub struct Peer {
    role: Role,
    limits: Limits,
    frames: mux::Reader,
    requests: Requests,
    calls: Calls,
    output: Output,
    events: VecDeque<Event>,
    /// Bytes in `events`.
    told: usize,
    /// Nothing more is read or written.
    over: bool,
    dead: Option<Violation>,
}

/// Why something was not sent. The peer is as it was before.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SendError {
    #[error("message of {length} bytes, where {limit} are allowed")]
    TooLarge { length: usize, limit: usize },
    #[error("{limit} calls wait for an answer already")]
    Calls { limit: usize },
    #[error("{waiting} bytes wait to be written already, where {limit} are allowed")]
    Output { waiting: usize, limit: usize },
    #[error("all numbers of calls are used up; a new connection has new ones")]
    Spent,
    #[error("no such request waits for a reply")]
    NotAsked,
    #[error("the connection is over")]
    Over,
}

// === impl Peer ===

impl Peer {
    /// An end of a fresh stream. There is no handshake: both ends may call at once.
    #[must_use]
    pub fn new(role: Role, limits: Limits) -> Self {
        Self {
            role,
            limits,
            frames: mux::Reader::new(limits.frame),
            requests: Requests::new(),
            calls: Calls::new(),
            output: Output::default(),
            events: VecDeque::new(),
            told: 0,
            over: false,
            dead: None,
        }
    }

    /// Takes bytes that arrived, in chunks of any size.
    ///
    /// # Errors
    ///
    /// What broke the protocol or a limit. The peer is dead then: close the socket. Every later call
    /// gives the same error.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        if let Some(violation) = &self.dead {
            return Err(violation.clone());
        }
        let result = self.read(bytes);
        self.judged(result)
    }

    /// Says that the stream has ended: nothing more will arrive, and nothing more is sent.
    ///
    /// # Errors
    ///
    /// [`Breach::CutShort`] if it ended inside of a frame or a message, which is no more than worth
    /// a line in a log: Go closes its socket so when it stops while it writes. Or what
    /// [`feed`](Self::feed) found before.
    pub fn end(&mut self) -> Result<(), Violation> {
        if let Some(violation) = &self.dead {
            return Err(violation.clone());
        }
        let cut = if !self.frames.is_between_frames() {
            Some((0, "frame"))
        } else if !self.requests.is_between_messages() {
            Some((self.role.serves(), "message"))
        } else if !self.calls.is_between_messages() {
            Some((self.role.calls(), "message"))
        } else {
            None
        };
        self.close();
        match cut {
            Some((connection, what)) => self.judged(Err((connection, Breach::CutShort(what)))),
            None => Ok(()),
        }
    }

    /// Bytes to be written to the stream. None once it is over.
    #[must_use]
    pub fn output(&self) -> &[u8] {
        self.output.pending()
    }

    /// Says that the first `count` bytes of [`output`](Self::output) were written.
    pub fn advance(&mut self, count: usize) {
        self.output.advance(count);
    }

    /// The next thing that the driver should know.
    pub fn next_event(&mut self) -> Option<Event> {
        let event = self.events.pop_front()?;
        self.told -= event.bytes();
        Some(event)
    }

    /// Bytes that are kept: messages that are not whole, events that nobody took, output that
    /// nobody wrote.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.requests.held() + self.calls.held() + self.told + self.output.len()
    }

    fn read(&mut self, mut bytes: &[u8]) -> Result<(), (u32, Breach)> {
        while let Some(piece) = self.frames.next(&mut bytes).map_err(|breach| (0, breach))? {
            if self.over {
                return Err((piece.connection, Breach::OutOfPlace("bytes behind the end")));
            }
            let result = if piece.connection == self.role.serves() {
                self.read_requests(piece.bytes)
            } else if piece.connection == self.role.calls() {
                self.read_answers(piece.bytes)
            } else {
                // Nobody has this connection.
                Ok(())
            };
            result.map_err(|breach| (piece.connection, breach))?;
        }
        Ok(())
    }

    /// Remembers what was found; a peer is dead from its first violation on.
    fn judged(&mut self, result: Result<(), (u32, Breach)>) -> Result<(), Violation> {
        result.map_err(|(connection, breach)| {
            let violation = Violation { connection, breach };
            self.dead = Some(violation.clone());
            self.close();
            violation
        })
    }

    fn close(&mut self) {
        self.over = true;
        self.output = Output::default();
        self.requests.forget();
        for call in self.calls.forget() {
            self.tell(Event::Lost { call });
        }
    }

    fn tell(&mut self, event: Event) {
        self.told += event.bytes();
        self.events.push_back(event);
    }

    /// Writes a message on `connection`, whole or not at all.
    fn send(
        &mut self,
        connection: u32,
        kind: u8,
        stream: u32,
        body: impl FnOnce(&mut Vec<u8>),
    ) -> Result<(), SendError> {
        let out = self.output.tail();
        let begun = mux::begin(out);
        match message::write(out, kind, stream, MAX_SENT, body) {
            Ok(()) => {
                mux::finish(out, begun, connection);
                Ok(())
            }
            Err(length) => {
                mux::undo(out, begun);
                let limit = MAX_SENT;
                Err(SendError::TooLarge { length, limit })
            }
        }
    }
}

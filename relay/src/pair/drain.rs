//! The graceful end: the client is asked to go, and its calls finish.
//!
//! As RFC 9113 advises in section 6.8: a first GOAWAY with the highest stream id, which stops new
//! calls without refusing those on their way; a PING, whose acknowledgement says that the client
//! has read it; then a GOAWAY with the last stream that was opened.
//!
//! Streams that are [endless](crate::Claims::with_endless) would have it wait for ever, so they are
//! not waited for; they end with the connection, as they would if the runtime went.

use crate::Side;
use crate::StreamId;
use std::ops::Bound;

use crate::frame::{self, Frame, HEAD_LEN, flag};
use crate::output::Piece;
use crate::pair::Pair;
use crate::stream::Stream;
use crate::violation::Breach;

/// Marks the one PING that is ours.
const OPAQUE: [u8; 8] = *b"drained?";

pub(super) const HIGHEST: StreamId = 0x7fff_ffff;

/// How far the end is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Drain {
    Off,
    /// Asked for before the runtime's SETTINGS went to the client, which have to be first.
    Asked,
    /// GOAWAY and PING are on their way.
    Announced,
    /// The last GOAWAY named this stream.
    Final(StreamId),
}

// === impl Drain ===

impl Drain {
    pub(super) fn is_final(self) -> bool {
        matches!(self, Self::Final(_))
    }
}

impl Pair {
    /// Begins the graceful end. Calls in flight go on; see [`Pair::is_drained`].
    pub fn drain(&mut self) {
        if self.drain == Drain::Off {
            self.drain = Drain::Asked;
            if self.runtime.begun {
                self.drain_if_asked();
            }
        }
    }

    /// True once a drain is over: no stream is open but endless ones, and all was written to the
    /// client.
    #[must_use]
    pub fn is_drained(&self) -> bool {
        let told = match self.drain {
            // The client is to be told yet, for which its preface and the runtime's SETTINGS have to be there.
            Drain::Off | Drain::Asked | Drain::Announced => false,
            Drain::Final(_) => self.to_client.len() == 0,
        };
        told && self.nothing_is_open()
    }

    /// Whom a drain still waits for that no call is left in: the runtime, without whose SETTINGS the
    /// client is told nothing, and which is asked for them once the client has shown its preface; or the
    /// client, which is to read what was written to it and to say that it has heard. A dead one never does.
    #[must_use]
    pub fn awaits_alone(&self) -> Option<Side> {
        let side = match self.drain {
            Drain::Off => return None,
            Drain::Asked => Side::Runtime,
            Drain::Announced | Drain::Final(_) => Side::Client,
        };
        (self.nothing_is_open() && !self.is_drained()).then_some(side)
    }

    /// True while a client waits for an answer, or listens to one that has no end.
    #[must_use]
    pub fn has_call(&self) -> bool {
        self.streams.values().any(|stream| !stream.buried)
    }

    fn nothing_is_open(&self) -> bool {
        let mut streams = self.streams.values();
        streams.all(|stream| stream.buried || stream.endless)
    }

    pub(super) fn drain_if_asked(&mut self) {
        if self.drain == Drain::Asked {
            self.drain = Drain::Announced;
            let last = self.lowest_goaway;
            let to_client = self.to_client.own();
            frame::goaway(to_client, last);
            frame::ping(to_client, OPAQUE);
        }
    }

    pub(super) fn client_ping(&mut self, frame: &Frame<'_>) -> Result<(), Breach> {
        let ours = frame.head.has(flag::ACK) && frame.payload() == OPAQUE;
        if ours && self.drain == Drain::Announced {
            let last = self.last_stream.min(self.lowest_goaway);
            self.lowest_goaway = last;
            self.drain = Drain::Final(last);
            frame::goaway(self.to_client.own(), last);
        } else {
            self.forward(Side::Client, frame.piece());
        }
        Ok(())
    }

    /// Passes the runtime's GOAWAY on. A client takes it for an error if a later one names a
    /// higher stream than an earlier one did, so ours is not exceeded.
    pub(super) fn runtime_goaway(&mut self, frame: &Frame<'_>) -> Result<(), Breach> {
        let last = frame.first_u32() & HIGHEST;
        if last <= self.lowest_goaway {
            self.lowest_goaway = last;
            self.forward(Side::Runtime, frame.piece());
        } else {
            let mut lowered = frame.bytes.to_vec();
            lowered[HEAD_LEN..HEAD_LEN + 4].copy_from_slice(&self.lowest_goaway.to_be_bytes());
            self.forward(Side::Runtime, Piece::apart(&lowered));
        }
        // The runtime will not answer these, and the client tries them elsewhere; neither says so.
        let above = (Bound::Excluded(last), Bound::Unbounded);
        let open = |(id, stream): (&StreamId, &Stream)| (!stream.buried).then_some(*id);
        let lost: Vec<StreamId> = self.streams.range(above).filter_map(open).collect();
        for id in lost {
            self.gone(id, Side::Runtime);
        }
        Ok(())
    }
}

//! One client connection and its runtime connection: the way of every frame.
//!
//! ```text
//!  feed ── preface, frame, place ──┬── HEADERS ── follow HPACK ── claimed? ── forward
//!                                  ├── DATA ───── claimed: hold ── answer ── queue ── send
//!                                  │              else: forward, or queue when the runtime's
//!                                  │              window is used up
//!                                  ├── WINDOW_UPDATE of the runtime ── ledger ── credit
//!                                  └── everything else ── forward
//! ```
//!
//! `request.rs` has the frames of the client, `reply.rs` those of the runtime, `answer.rs` what the
//! driver decides, `send.rs` what goes out under flow control, `drain.rs` the graceful end.
//!
//! What holds after every call: the client was granted exactly what [`Ledger::credit`] says, no
//! window of the runtime is overrun, and nothing comes within a frame. Both outputs hold whole
//! frames, but for large DATA of replies, which goes on as it comes.

mod answer;
mod drain;
mod reply;
mod request;
mod send;

use std::collections::{BTreeMap, VecDeque};

use crate::announced::Announced;
use crate::frame::{Frame, flag, kind};
use crate::inbound::{Block, Inbound, PREFACE, first_fragment};
use crate::limits::Limits;
use crate::output::{Output, Piece};
use crate::spare::Spare;
use crate::stream::Stream;
use crate::violation::{Breach, Violation};
use crate::window::{DEFAULT_WINDOW, Ledger};
use crate::{Claims, Counters, Event, Side, StreamId};

use drain::Drain;

/// Pending bytes at which the other side's reading pauses, and held bytes wait.
const HIGH_WATER: usize = 64 << 10;

/// Most credit that held messages of one connection are lent at a time, in bytes: one that promises
/// many messages and sends none of their ends cannot be told to send them all at once.
const LENT: u32 = 1 << 20;

/// Pending bytes of our own making at which a side that does not read is not read from.
const OWN_HIGH_WATER: usize = 1 << 20;

/// The core of one proxied connection. See the crate's documentation.
#[derive(Debug)]
pub struct Pair {
    claims: Claims,
    limits: Limits,
    /// Bytes of the preface seen.
    preface: usize,
    client: Inbound,
    runtime: Inbound,
    to_client: Output,
    to_runtime: Output,
    /// Open streams, and those that we ended. A closed stream is not remembered.
    streams: BTreeMap<StreamId, Stream>,
    spare: Spare,
    /// Streams that we ended, oldest first.
    tombstones: VecDeque<StreamId>,
    /// The highest stream that the client opened.
    last_stream: StreamId,
    announced: Announced,
    /// Streams with something to send, each once.
    line: VecDeque<StreamId>,
    ledger: Ledger,
    drain: Drain,
    /// No message is to be waited for.
    crowded: bool,
    /// The lowest last stream that a GOAWAY to the client named.
    lowest_goaway: StreamId,
    events: VecDeque<Event>,
    counters: Counters,
    dead: Option<Violation>,
}

// === impl Pair ===

impl Pair {
    /// A pair whose client has been accepted. The runtime may be dialled later; what is for it
    /// waits in [`Pair::output`].
    #[must_use]
    pub fn new(claims: Claims, limits: Limits) -> Self {
        Self {
            claims,
            limits,
            preface: 0,
            client: Inbound::default(),
            runtime: Inbound::default(),
            to_client: Output::default(),
            to_runtime: Output::default(),
            streams: BTreeMap::new(),
            spare: Spare::default(),
            tombstones: VecDeque::new(),
            last_stream: 0,
            announced: Announced::default(),
            line: VecDeque::new(),
            ledger: Ledger::new(DEFAULT_WINDOW).lending_at_most(LENT),
            drain: Drain::Off,
            crowded: false,
            lowest_goaway: drain::HIGHEST,
            events: VecDeque::new(),
            counters: Counters::default(),
            dead: None,
        }
    }

    /// The same pair, sharing the buffer of held messages with whoever else has this one.
    #[must_use]
    pub fn sharing(mut self, spare: Spare) -> Self {
        self.spare = spare;
        self
    }

    /// Takes bytes that arrived from `side`, in chunks of any size.
    ///
    /// # Errors
    ///
    /// What broke the protocol or a limit. The pair is dead then: close both sockets. Every later
    /// call gives the same error.
    pub fn feed(&mut self, side: Side, chunk: &[u8]) -> Result<(), Violation> {
        let through = self.feed_through(side, chunk)?;
        self.keep(side.other(), through);
        Ok(())
    }

    /// The same, but what may pass as it came is not copied where that can be avoided: it is given
    /// back, to be written to the other side right behind [`Pair::output`], before anything else is
    /// asked of the pair. What of it cannot be written at once is for [`Pair::keep`].
    ///
    /// # Errors
    ///
    /// Those of [`Pair::feed`].
    #[must_use = "what is not written has to be kept"]
    pub fn feed_through<'a>(&mut self, side: Side, chunk: &'a [u8]) -> Result<&'a [u8], Violation> {
        if let Some(violation) = &self.dead {
            return Err(violation.clone());
        }
        let result = self.read(side, chunk);
        let through = self.outlet(side.other()).end_chunk(chunk);
        if let Err((stream, breach)) = result {
            self.keep(side.other(), through);
            let violation = Violation {
                side,
                stream,
                breach,
            };
            self.dead = Some(violation.clone());
            return Err(violation);
        }
        Ok(through)
    }

    /// Puts what of [`Pair::feed_through`] was not written behind what waits for `side`. To be said
    /// before [`Pair::advance`], which may put frames behind it.
    pub fn keep(&mut self, side: Side, unwritten: &[u8]) {
        if !unwritten.is_empty() {
            self.outlet(side).keep(unwritten);
        }
    }

    /// Bytes to be written to `side`, in this order.
    #[must_use]
    pub fn output(&self, side: Side) -> [&[u8]; 2] {
        match side {
            Side::Client => self.to_client.pending(),
            Side::Runtime => self.to_runtime.pending(),
        }
    }

    /// How many bytes that is.
    #[must_use]
    pub fn output_len(&self, side: Side) -> usize {
        self.output(side).iter().map(|part| part.len()).sum()
    }

    /// Says that the first `count` bytes of [`Pair::output`] were written.
    pub fn advance(&mut self, side: Side, count: usize) {
        match side {
            Side::Client => {
                self.to_client.advance(count);
            }
            Side::Runtime => {
                if let Some(buffer) = self.to_runtime.advance(count) {
                    self.spare.take_back(buffer);
                }
                self.send();
            }
        }
    }

    /// False while so much waits that reading from `side` should pause.
    #[must_use]
    pub fn wants_read(&self, side: Side) -> bool {
        let (ahead, back) = match side {
            Side::Client => (&self.to_runtime, &self.to_client),
            Side::Runtime => (&self.to_client, &self.to_runtime),
        };
        // What waits for more of this side must not keep it from being read.
        ahead.writable() < HIGH_WATER && back.len() < OWN_HIGH_WATER
    }

    /// Whether an [announcement](Claims::with_announcement) is held, all of it or what has come.
    #[must_use]
    pub fn has_announcement(&self) -> bool {
        self.announced.has_any()
    }

    /// Of those that have not come whole the one that began last.
    #[must_use]
    pub fn last_partial_announcement(&self) -> Option<StreamId> {
        self.announced.last_arriving()
    }

    /// True once a valid client preface was seen: the moment to dial the runtime.
    #[must_use]
    pub fn preface_seen(&self) -> bool {
        self.preface == PREFACE.len()
    }

    /// Whether there is something that the driver should know: what it answers may follow what was
    /// fed in one write.
    #[must_use]
    pub fn has_events(&self) -> bool {
        !self.events.is_empty()
    }

    /// The next thing that the driver should know.
    pub fn next_event(&mut self) -> Option<Event> {
        self.events.pop_front()
    }

    /// Streams that are open between the two ends.
    #[must_use]
    pub fn open_streams(&self) -> usize {
        self.streams.len() - self.tombstones.len()
    }

    /// Bytes of request messages that are held or wait for the runtime's window.
    #[must_use]
    pub fn held_bytes(&self) -> usize {
        self.ledger.held()
    }

    /// Bytes of one request that are here: held, or waiting for the runtime's window. Any change
    /// means that the request makes headway.
    #[must_use]
    pub fn queued(&self, stream: StreamId) -> usize {
        let stream = self.streams.get(&stream);
        stream.map_or(0, |stream| stream.queue.len())
    }

    /// What was counted since the last call.
    pub fn take_counters(&mut self) -> Counters {
        std::mem::take(&mut self.counters)
    }

    fn inbound(&mut self, side: Side) -> &mut Inbound {
        match side {
            Side::Client => &mut self.client,
            Side::Runtime => &mut self.runtime,
        }
    }

    /// Lets bytes pass as they came.
    fn forward(&mut self, from: Side, piece: Piece<'_>) {
        self.outlet(from.other()).append(piece);
    }

    fn outlet(&mut self, to: Side) -> &mut Output {
        match to {
            Side::Client => &mut self.to_client,
            Side::Runtime => &mut self.to_runtime,
        }
    }

    fn read(&mut self, side: Side, chunk: &[u8]) -> Result<(), (StreamId, Breach)> {
        let mut bytes = chunk;
        if side == Side::Client {
            bytes = self.read_preface(bytes).map_err(|breach| (0, breach))?;
        }
        while !bytes.is_empty() {
            let limit = self.inbound(side.other()).settings.frame_limit();
            let offset = chunk.len() - bytes.len();
            if side == Side::Runtime && self.runtime_data_part(&mut bytes, offset, limit)? {
                continue;
            }
            let mut spare = Vec::new();
            let inbound = self.inbound(side);
            let Some(frame) = inbound.next_frame(&mut bytes, offset, limit, &mut spare)? else {
                break;
            };
            self.frame(side, &frame)
                .map_err(|breach| (frame.head.stream, breach))?;
            self.settle();
            self.inbound(side).recycle(spare);
        }
        Ok(())
    }

    fn read_preface<'a>(&mut self, bytes: &'a [u8]) -> Result<&'a [u8], Breach> {
        if self.preface_seen() {
            return Ok(bytes);
        }
        let expected = &PREFACE[self.preface..];
        let (seen, rest) = bytes.split_at(bytes.len().min(expected.len()));
        if !expected.starts_with(seen) {
            return Err(Breach::Preface);
        }
        self.preface += seen.len();
        if self.preface_seen() {
            self.to_runtime.append(Piece::apart(PREFACE));
        }
        Ok(rest)
    }

    fn frame(&mut self, side: Side, frame: &Frame<'_>) -> Result<(), Breach> {
        self.counters.frames += 1;
        self.inbound(side).check_place(frame.head)?;
        match (frame.head.kind, side) {
            (kind::DATA, Side::Client) => self.client_data(frame),
            (kind::DATA, Side::Runtime) => self.runtime_data(frame),
            (kind::HEADERS | kind::CONTINUATION, _) => self.header_frame(side, frame),
            (kind::WINDOW_UPDATE, Side::Client) => self.client_window_update(frame),
            (kind::WINDOW_UPDATE, Side::Runtime) => self.runtime_window_update(frame),
            (kind::RST_STREAM, Side::Client) => self.client_reset(frame),
            (kind::RST_STREAM, Side::Runtime) => self.runtime_reset(frame),
            (kind::SETTINGS, _) => self.settings(side, frame),
            (kind::PING, Side::Client) => self.client_ping(frame),
            (kind::GOAWAY, Side::Runtime) => self.runtime_goaway(frame),
            (kind::PUSH_PROMISE, _) => Err(Breach::OutOfPlace("PUSH_PROMISE")),
            _ => {
                self.forward(side, frame.piece());
                Ok(())
            }
        }
    }

    /// Takes part of a header block; a whole one is followed and goes on in one piece.
    fn header_frame(&mut self, side: Side, frame: &Frame<'_>) -> Result<(), Breach> {
        let whole = frame.head.kind == kind::HEADERS && frame.head.has(flag::END_HEADERS);
        if whole {
            let (priority, fragment) = first_fragment(frame)?;
            let block = Block {
                stream: frame.head.stream,
                ends_stream: frame.head.ends_stream(),
                priority,
                frames: frame.piece(),
                fragment,
            };
            return self.header_block(side, &block);
        }
        let limit = self.limits.header_block_of(side);
        match self.inbound(side).collect(frame, limit)? {
            Some(collected) => self.header_block(side, &collected.as_block()),
            None => Ok(()),
        }
    }

    fn header_block(&mut self, side: Side, block: &Block<'_>) -> Result<(), Breach> {
        match side {
            Side::Client => self.client_block(block),
            Side::Runtime => self.runtime_block(block),
        }
    }

    fn settings(&mut self, side: Side, frame: &Frame<'_>) -> Result<(), Breach> {
        let announcer = if frame.head.has(flag::ACK) {
            side.other()
        } else {
            side
        };
        let most = self.limits.header_table;
        let settings = &mut self.inbound(announcer).settings;
        let mut shift = 0;
        if announcer == side {
            settings.announce(frame.payload())?;
        } else {
            shift = settings.acknowledge()?;
        }
        let table = settings.table_limit().min(most);
        let acknowledged = settings.acknowledged_table();
        let encoding = self.inbound(announcer.other());
        encoding.decoder.set_limit(table);
        if announcer != side {
            encoding.rewrite.owe(acknowledged);
        }
        self.forward(side, frame.piece());
        if announcer == Side::Runtime && shift != 0 {
            self.shift_windows(shift)?;
        }
        if side == Side::Runtime {
            self.drain_if_asked();
        }
        Ok(())
    }
}

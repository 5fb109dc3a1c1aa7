//! Any bytes from both ends, cut anywhere, with any answers in between. The pair never panics,
//! sends whole frames with undivided header blocks, respects the runtime's window, and holds no
//! more than it was given.
//!
//! Input: a first byte whose lowest bit says whether the ends have greeted each other, then
//! operations, each of one byte and its operands; see [`Run::step`].
#![no_main]

use koord_relay::{Claims, Event, Limits, Pair, Released, Side, StreamId, Tag};
use libfuzzer_sys::fuzz_target;

const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";
const ACK: &[u8] = b"\0\0\0\x04\x01\0\0\0\0";

const DATA: u8 = 0;
const HEADERS: u8 = 1;
const WINDOW_UPDATE: u8 = 8;
const CONTINUATION: u8 = 9;

/// Most that may wait for one side: what pauses reading, and what one chunk can turn into.
const WAITING: usize = 10 << 20;

/// Frames of one direction, read as they go by.
#[derive(Default)]
struct Tap {
    skip: usize,
    bytes: Vec<u8>,
    /// The stream of a header block whose end is still to come.
    block: Option<u32>,
}

/// The stream of a header block that goes on behind this frame.
fn goes_on(kind: u8, flags: u8, stream: u32) -> Option<u32> {
    let block = kind == HEADERS || kind == CONTINUATION;
    (block && flags & 4 == 0).then_some(stream)
}

struct Run<'a> {
    input: &'a [u8],
    pair: Pair,
    from_runtime: Tap,
    to_runtime: Tap,
    to_client: Tap,
    /// What the runtime gave for DATA, less what it got.
    window: i64,
    fed: usize,
    requests: Vec<StreamId>,
    slots: Vec<StreamId>,
}

impl Tap {
    /// Calls `frame` with type, flags, stream and payload of each whole frame.
    fn push(&mut self, bytes: &[u8], mut frame: impl FnMut(u8, u8, u32, &[u8])) {
        self.bytes.extend_from_slice(bytes);
        let skipped = self.skip.min(self.bytes.len());
        self.bytes.drain(..skipped);
        self.skip -= skipped;
        let mut at = 0;
        while let Some(&[a, b, c, kind, flags, e, f, g, h]) = self.bytes[at..].first_chunk() {
            let length = u32::from_be_bytes([0, a, b, c]) as usize;
            let Some(payload) = self.bytes.get(at + 9..at + 9 + length) else {
                break;
            };
            let stream = u32::from_be_bytes([e, f, g, h]) & 0x7fff_ffff;
            frame(kind, flags, stream, payload);
            self.block = goes_on(kind, flags, stream);
            at += 9 + length;
        }
        self.bytes.drain(..at);
    }
}

impl Run<'_> {
    fn byte(&mut self) -> u8 {
        let Some((&byte, rest)) = self.input.split_first() else {
            return 0;
        };
        self.input = rest;
        byte
    }

    fn bytes(&mut self) -> Vec<u8> {
        let length = usize::from(self.byte()).min(self.input.len());
        let (bytes, rest) = self.input.split_at(length);
        self.input = rest;
        bytes.to_vec()
    }

    /// Does one thing. False when the pair is dead.
    fn step(&mut self) -> bool {
        let op = self.byte();
        let side = if op & 1 == 0 {
            Side::Client
        } else {
            Side::Runtime
        };
        match op >> 1 & 7 {
            0 | 1 => {
                // A frame with a valid head.
                let (kind, flags, stream) = (self.byte(), self.byte(), self.byte());
                let payload = self.bytes();
                let length = u8::try_from(payload.len()).unwrap_or(u8::MAX);
                let head = [0, 0, length, kind % 11, flags, 0, 0, 0, stream];
                self.feed(side, &[&head[..], &payload].concat())
            }
            2 => {
                // Much DATA at a time, so that windows matter.
                let (flags, stream) = (self.byte() & 1, self.byte());
                let mut frame = vec![0, 0x40, 0, DATA, flags, 0, 0, 0, stream];
                frame.extend_from_slice(&[0, 0, 0, self.byte(), 0]);
                frame.resize(9 + 0x4000, 0);
                self.feed(side, &frame)
            }
            3 => {
                let bytes = self.bytes();
                self.feed(side, &bytes)
            }
            4 => {
                let count = usize::from(self.byte()) * 256;
                self.take(side, count);
                true
            }
            5 => {
                self.answer();
                true
            }
            6 => {
                if !self.slots.is_empty() {
                    let stream = self.slots.remove(0);
                    self.pair.grant_slot(stream);
                }
                true
            }
            _ => {
                match op >> 6 {
                    0 | 1 => self.pair.set_crowded(op & 0x40 != 0),
                    2 => self.pair.drain(),
                    _ => {}
                }
                true
            }
        }
    }

    fn feed(&mut self, side: Side, bytes: &[u8]) -> bool {
        if !self.pair.wants_read(side) {
            return true;
        }
        if side == Side::Runtime {
            let window = &mut self.window;
            self.from_runtime.push(bytes, |kind, _, stream, payload| {
                if let (WINDOW_UPDATE, 0, Ok(increment)) = (kind, stream, payload.try_into()) {
                    *window += i64::from(u32::from_be_bytes(increment) & 0x7fff_ffff);
                }
            });
        }
        self.fed += bytes.len();
        let Ok(through) = self.pair.feed_through(side, bytes) else {
            return false;
        };
        // Half of what passes is written at once if nothing waits, and the rest has to follow.
        let idle = self.pair.output_len(side.other()) == 0;
        let written = if idle { through.len() / 2 } else { 0 };
        self.arrived(side.other(), &through[..written]);
        self.pair.keep(side.other(), &through[written..]);
        self.pair.advance(side.other(), 0);
        true
    }

    fn take(&mut self, side: Side, count: usize) {
        let pending = self.pair.output(side).concat();
        let count = count.min(pending.len());
        let bytes = pending[..count].to_vec();
        self.pair.advance(side, count);
        self.arrived(side, &bytes);
    }

    fn arrived(&mut self, side: Side, bytes: &[u8]) {
        let window = &mut self.window;
        match side {
            Side::Client => self.to_client.push(bytes, |_, _, _, _| {}),
            Side::Runtime => self.to_runtime.push(bytes, |kind, _, _, payload| {
                if kind == DATA {
                    *window -= i64::try_from(payload.len()).expect("24 bits");
                    assert!(*window >= 0, "the runtime's window was overrun");
                }
            }),
        }
    }

    fn answer(&mut self) {
        let how = self.byte();
        if self.requests.is_empty() {
            return;
        }
        let stream = self.requests.remove(0);
        if let Some(held) = self.pair.held(stream) {
            assert!(held.len() <= self.fed);
        }
        match how % 4 {
            0 => self.pair.release(stream),
            1 => self.pair.refuse(stream, 9, "no"),
            _ => {
                self.fed += usize::from(how);
                let patch = vec![how; usize::from(how)];
                self.pair.release_with(stream, &patch) != Released::Gone
            }
        };
    }

    fn check(&mut self) {
        while let Some(event) = self.pair.next_event() {
            match event {
                Event::Request { stream, .. } => self.requests.push(stream),
                Event::SlotWanted { stream } => self.slots.push(stream),
                _ => {}
            }
        }
        assert!(self.pair.held_bytes() <= self.fed);
        for side in [Side::Client, Side::Runtime] {
            assert!(self.pair.output_len(side) <= WAITING);
        }
    }
}

/// Whole frames, header blocks undivided. What was written before may have ended within this one.
fn check_blocks(bytes: &[u8], mut open: Option<u32>) {
    let mut tap = Tap::default();
    tap.push(bytes, |kind, flags, stream, _| {
        let expected = (kind == CONTINUATION).then_some(stream);
        assert_eq!(open, expected, "a frame inside a header block");
        open = goes_on(kind, flags, stream);
    });
    assert_eq!(open, None, "half a header block");
    // DATA may go on as it comes; all other frames go on whole.
    let begun = tap.bytes.get(3).copied();
    assert!(begun.is_none_or(|kind| kind == DATA), "half a frame");
    assert!(begun.is_some() || tap.bytes.is_empty(), "half a head");
}

fuzz_target!(|input: &[u8]| {
    let claims = Claims::new([("/c", Tag(1))]);
    let limits = Limits {
        max_message: 100_000,
        open_streams: 50,
        tombstones: 3,
        ..Limits::default()
    };
    let mut run = Run {
        input,
        pair: Pair::new(claims, limits),
        from_runtime: Tap::default(),
        to_runtime: Tap {
            skip: PREFACE.len(),
            ..Tap::default()
        },
        to_client: Tap::default(),
        window: 65_535,
        fed: 0,
        requests: Vec::new(),
        slots: Vec::new(),
    };
    if run.byte() & 1 == 1 {
        for (side, bytes) in [
            (Side::Client, PREFACE),
            (Side::Client, SETTINGS),
            (Side::Runtime, SETTINGS),
            (Side::Runtime, ACK),
            (Side::Client, ACK),
        ] {
            assert!(run.feed(side, bytes));
        }
    }
    let mut alive = true;
    while alive && !run.input.is_empty() {
        alive = run.step();
        run.check();
    }
    let whole = run.to_runtime.skip == 0 && run.to_runtime.bytes.is_empty();
    if whole {
        check_blocks(
            &run.pair.output(Side::Runtime).concat(),
            run.to_runtime.block,
        );
    }
    if run.to_client.bytes.is_empty() {
        check_blocks(&run.pair.output(Side::Client).concat(), run.to_client.block);
    }
});

//! One end of an HTTP/2 connection, strict in what it takes: every window, table and frame size is
//! accounted for, and whatever breaks a rule panics.

use std::collections::{BTreeMap, VecDeque};

use super::frame::{self, *};
use super::hpack::{Decoder, Encoder, Field};
use super::rng::Rng;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Values {
    pub table: u32,
    pub window: u32,
    pub frame: u32,
}

pub const INITIAL: Values = Values {
    table: 4_096,
    window: 65_535,
    frame: 16_384,
};

/// Something that a stream sends.
#[derive(Debug)]
pub enum Part {
    Headers(Vec<Field>, bool),
    Data(Vec<u8>, bool),
    Reset(u32),
}

#[derive(Debug, Default)]
pub struct Half {
    pub to_send: VecDeque<Part>,
    pub send_window: i64,
    pub receive_window: i64,
    pub headers: Vec<Vec<Field>>,
    pub body: Vec<u8>,
    pub got_end: bool,
    pub sent_end: bool,
    pub got_reset: Option<u32>,
    pub sent_reset: bool,
}

impl Half {
    pub fn is_reset(&self) -> bool {
        self.sent_reset || self.got_reset.is_some()
    }

    pub fn is_over(&self) -> bool {
        self.is_reset() || (self.got_end && self.sent_end)
    }
}

#[derive(Debug)]
pub struct End {
    is_client: bool,
    /// What it sent and nobody took.
    out: Vec<u8>,
    taken: usize,
    input: Vec<u8>,
    block: Option<(u32, bool, Vec<u8>)>,
    encoder: Encoder,
    decoder: Decoder,
    announced: VecDeque<Values>,
    mine: Values,
    theirs: Values,
    pub send_window: i64,
    pub receive_window: i64,
    /// What it keeps its connection's window at.
    pub window_target: i64,
    pub streams: BTreeMap<u32, Half>,
    /// The last streams of the GOAWAYs that came.
    pub goaways: Vec<u32>,
    preface_seen: bool,
}

impl End {
    pub fn new(is_client: bool) -> Self {
        Self {
            is_client,
            out: if is_client {
                PREFACE.to_vec()
            } else {
                Vec::new()
            },
            taken: 0,
            input: Vec::new(),
            block: None,
            encoder: Encoder::new(),
            decoder: Decoder::new(),
            announced: VecDeque::new(),
            mine: INITIAL,
            theirs: INITIAL,
            send_window: 65_535,
            receive_window: 65_535,
            window_target: 65_535,
            streams: BTreeMap::new(),
            goaways: Vec::new(),
            preface_seen: is_client,
        }
    }

    pub fn open(&mut self, id: u32) -> &mut Half {
        let half = Half {
            send_window: i64::from(self.theirs.window),
            receive_window: i64::from(self.mine.window),
            ..Half::default()
        };
        self.streams.entry(id).or_insert(half)
    }

    pub fn announce(&mut self, values: Values) {
        self.announced.push_back(values);
        let widest = self.announced.iter().map(|v| v.table as usize).max();
        self.decoder.limit = self.decoder.limit.max(widest.unwrap_or(0));
        let list = [(1, values.table), (4, values.window), (5, values.frame)];
        self.out.extend_from_slice(&frame::settings(&list));
    }

    /// The first bytes of what it sent, at most `most`.
    pub fn take(&mut self, most: usize) -> Vec<u8> {
        let bytes = &self.out[self.taken..];
        let bytes = bytes[..bytes.len().min(most)].to_vec();
        self.taken += bytes.len();
        if self.taken == self.out.len() {
            self.out.clear();
            self.taken = 0;
        }
        bytes
    }

    /// Sends one frame or header block of a random stream. False if none can.
    pub fn send(&mut self, rng: &mut Rng) -> bool {
        let connection = self.send_window;
        let ready: Vec<u32> = self
            .streams
            .iter()
            .filter(|(_, half)| match half.to_send.front() {
                None => false,
                Some(Part::Data(bytes, _)) => {
                    bytes.is_empty() || (half.send_window > 0 && connection > 0)
                }
                Some(_) => true,
            })
            .map(|(id, _)| *id)
            .collect();
        if ready.is_empty() {
            return false;
        }
        self.send_first(rng.pick(&ready), rng);
        true
    }

    /// Sends one frame or header block of a stream that has one and the windows for it.
    pub fn send_first(&mut self, id: u32, rng: &mut Rng) {
        let half = self.streams.get_mut(&id).unwrap();
        match half.to_send.pop_front().unwrap() {
            Part::Headers(fields, end) => {
                half.sent_end |= end;
                let block = self.encoder.encode(&fields, rng);
                self.send_block(id, &block, end, rng);
            }
            Part::Data(bytes, end) => self.send_data(id, bytes, end, rng),
            Part::Reset(code) => {
                half.to_send.clear();
                half.sent_reset = true;
                self.out.extend_from_slice(&frame::rst(id, code));
            }
        }
    }

    /// SETTINGS that were not acknowledged yet.
    pub fn announced_count(&self) -> usize {
        self.announced.len()
    }

    fn send_block(&mut self, id: u32, block: &[u8], end: bool, rng: &mut Rng) {
        let end_flag = if end { END_STREAM } else { 0 };
        let mut flags = end_flag;
        let mut payload = Vec::new();
        let pad = if rng.one_in(5) { rng.below(9) } else { 0 };
        if pad > 0 {
            flags |= PADDED;
            payload.push(u8::try_from(pad).unwrap());
        }
        if rng.one_in(5) {
            flags |= WITH_PRIORITY;
            payload.extend_from_slice(&[0, 0, 0, 0, 9]);
        }
        let cut = if rng.one_in(3) || block.len() > 16_000 {
            rng.below(block.len().min(16_000) + 1)
        } else {
            block.len()
        };
        let (first, mut rest) = block.split_at(cut);
        payload.extend_from_slice(first);
        payload.resize(payload.len() + pad, 0);
        if rest.is_empty() {
            flags |= END_HEADERS;
        }
        self.out
            .extend_from_slice(&raw(HEADERS, flags, id, &payload));
        while !rest.is_empty() {
            let (piece, after) = rest.split_at(1 + rng.below(rest.len().min(16_000)));
            rest = after;
            let flags = if rest.is_empty() { END_HEADERS } else { 0 };
            self.out
                .extend_from_slice(&raw(CONTINUATION, flags, id, piece));
        }
    }

    fn send_data(&mut self, id: u32, mut bytes: Vec<u8>, end: bool, rng: &mut Rng) {
        let half = self.streams.get_mut(&id).unwrap();
        let window = half.send_window.min(self.send_window).max(0);
        let window = usize::try_from(window).unwrap();
        let most = bytes.len().min(window).min(self.theirs.frame as usize);
        let count = match rng.below(4) {
            0 if most > 0 => 1 + rng.below(most),
            _ => most,
        };
        let rest = bytes.split_off(count);
        let last = rest.is_empty();
        let room = window.min(self.theirs.frame as usize) - count;
        let padded = rng.one_in(8) && room > 0;
        let pad = if padded { rng.below(room.min(256)) } else { 0 };
        // The end may come in an empty frame of its own.
        let end_now = end && last && !rng.one_in(4);
        if padded {
            let pad = u8::try_from(pad).unwrap();
            let sent = padded_data(id, &bytes, pad, end_now);
            self.out.extend_from_slice(&sent);
        } else {
            self.out.extend_from_slice(&data(id, &bytes, end_now));
        }
        let length = i64::try_from(count + if padded { pad + 1 } else { 0 }).unwrap();
        half.send_window -= length;
        self.send_window -= length;
        half.sent_end |= end_now;
        if !last || (end && !end_now) {
            half.to_send.push_front(Part::Data(rest, end));
        }
    }

    /// Gives credit back, all of it or some. False if there was none to give.
    pub fn grant(&mut self, all: bool, rng: &mut Rng) -> bool {
        let mut some = false;
        let mut amount = |missing: i64| {
            let missing = u32::try_from(missing).unwrap_or(0);
            if missing == 0 || all {
                return missing;
            }
            u32::try_from(rng.below(missing as usize + 1)).unwrap()
        };
        let granted = amount(self.window_target - self.receive_window);
        if granted > 0 {
            self.out
                .extend_from_slice(&frame::window_update(0, granted));
            self.receive_window += i64::from(granted);
            some = true;
        }
        for (id, half) in &mut self.streams {
            if half.got_end || half.is_reset() {
                continue;
            }
            let target = i64::from(self.mine.window).max(20_000);
            let granted = amount(target - half.receive_window);
            if granted > 0 {
                self.out
                    .extend_from_slice(&frame::window_update(*id, granted));
                half.receive_window += i64::from(granted);
                some = true;
            }
        }
        some
    }

    pub fn receive(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        if !self.preface_seen && self.input.len() >= PREFACE.len() {
            assert_eq!(&self.input[..PREFACE.len()], PREFACE);
            self.input.drain(..PREFACE.len());
            self.preface_seen = true;
        }
        if !self.preface_seen {
            return;
        }
        let mut input = std::mem::take(&mut self.input);
        let mut at = 0;
        while let Some(head) = input.get(at..at + 9) {
            let length = u32::from_be_bytes([0, head[0], head[1], head[2]]) as usize;
            let widest = self.announced.iter().map(|values| values.frame).max();
            let limit = self.mine.frame.max(widest.unwrap_or(0));
            assert!(length <= limit as usize, "frame over the limit");
            let (kind, flags) = (head[3], head[4]);
            let stream = u32::from_be_bytes([head[5], head[6], head[7], head[8]]);
            let Some(payload) = input.get(at + 9..at + 9 + length) else {
                break;
            };
            self.frame(kind, flags, stream, payload);
            at += 9 + length;
        }
        input.drain(..at);
        self.input = input;
    }

    fn frame(&mut self, kind: u8, flags: u8, id: u32, payload: &[u8]) {
        assert_eq!(
            self.block.as_ref().map(|block| block.0),
            (kind == CONTINUATION).then_some(id),
            "a header block is one piece"
        );
        match kind {
            DATA => self.data(flags, id, payload),
            HEADERS => {
                let mut fragment = unpadded(flags, payload);
                if flags & WITH_PRIORITY != 0 {
                    fragment = &fragment[5..];
                }
                self.block = Some((id, flags & END_STREAM != 0, fragment.to_vec()));
                self.block_piece(flags);
            }
            CONTINUATION => {
                self.block.as_mut().unwrap().2.extend_from_slice(payload);
                self.block_piece(flags);
            }
            RST_STREAM => {
                let half = self.streams.get_mut(&id).expect("a stream that was open");
                half.got_reset = Some(u32::from_be_bytes(payload.try_into().unwrap()));
                half.to_send.clear();
            }
            SETTINGS if flags & ACK != 0 => self.settings_acknowledged(),
            SETTINGS => self.settings(payload),
            PING if flags & ACK == 0 => self.out.extend_from_slice(&raw(PING, ACK, 0, payload)),
            GOAWAY => {
                let last = u32::from_be_bytes(payload[..4].try_into().unwrap());
                assert!(self.goaways.last().is_none_or(|before| last <= *before));
                self.goaways.push(last);
            }
            WINDOW_UPDATE => {
                let increment = u32::from_be_bytes(payload.try_into().unwrap());
                assert!(increment > 0);
                let window = match id {
                    0 => &mut self.send_window,
                    _ => match self.streams.get_mut(&id) {
                        Some(half) => &mut half.send_window,
                        None => panic!("WINDOW_UPDATE on an idle stream"),
                    },
                };
                *window += i64::from(increment);
                assert!(*window <= 0x7fff_ffff, "window overflow");
            }
            _ => panic!("unexpected frame of kind {kind}"),
        }
    }

    fn block_piece(&mut self, flags: u8) {
        if flags & END_HEADERS == 0 {
            return;
        }
        let (id, end, block) = self.block.take().unwrap();
        let fields = self.decoder.decode(&block);
        if !self.is_client {
            self.open(id);
        }
        let half = self.streams.get_mut(&id).expect("an open stream");
        if half.sent_reset {
            return;
        }
        assert!(
            !half.got_end && half.got_reset.is_none(),
            "HEADERS too late"
        );
        half.headers.push(fields);
        half.got_end |= end;
    }

    fn data(&mut self, flags: u8, id: u32, payload: &[u8]) {
        let length = i64::try_from(payload.len()).unwrap();
        assert!(length <= self.receive_window.max(0), "connection overrun");
        self.receive_window -= length;
        let half = self.streams.get_mut(&id).expect("an open stream");
        if half.sent_reset {
            return;
        }
        assert!(!half.got_end && half.got_reset.is_none(), "DATA too late");
        assert!(length <= half.receive_window.max(0), "stream {id} overrun");
        half.receive_window -= length;
        half.body.extend_from_slice(unpadded(flags, payload));
        half.got_end |= flags & END_STREAM != 0;
    }

    fn settings(&mut self, payload: &[u8]) {
        for entry in payload.chunks(6) {
            let value = u32::from_be_bytes(entry[2..].try_into().unwrap());
            match entry[1] {
                1 => {
                    self.theirs.table = value;
                    self.encoder.set_limit(value as usize);
                }
                4 => {
                    let delta = i64::from(value) - i64::from(self.theirs.window);
                    self.theirs.window = value;
                    for half in self.streams.values_mut() {
                        half.send_window += delta;
                    }
                }
                5 => self.theirs.frame = value,
                id => panic!("unexpected setting {id}"),
            }
        }
        self.out.extend_from_slice(&frame::settings_ack());
    }

    fn settings_acknowledged(&mut self) {
        let values = self.announced.pop_front().expect("SETTINGS were sent");
        let delta = i64::from(values.window) - i64::from(self.mine.window);
        for half in self.streams.values_mut() {
            half.receive_window += delta;
        }
        self.mine = values;
        let widest = self.announced.iter().map(|v| v.table).max();
        self.decoder.limit = values.table.max(widest.unwrap_or(0)) as usize;
        self.decoder.lowest = self.decoder.lowest.min(values.table as usize);
    }
}

fn unpadded(flags: u8, payload: &[u8]) -> &[u8] {
    if flags & PADDED == 0 {
        return payload;
    }
    &payload[1..payload.len() - usize::from(payload[0])]
}

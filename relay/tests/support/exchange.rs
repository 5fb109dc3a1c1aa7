//! A pair whose ends know each other, and the messages of one call.

use koord_relay::hpack::write_literal;
use koord_relay::{Claims, Event, Limits, Pair, Side, Tag};

use super::frame::{self, PREFACE};

pub const CLAIMED: &str = "/runtime.v1.RuntimeService/CreateContainer";
pub const OTHER: &str = "/runtime.v1.RuntimeService/Version";
pub const ENDLESS: &str = "/runtime.v1.RuntimeService/GetContainerEvents";
pub const TAG: Tag = Tag(7);

/// Client and runtime of the tests; `feed` and `take` by name read as an exchange does.
pub struct Exchange {
    pub pair: Pair,
}

impl Exchange {
    /// Nothing was sent yet.
    pub fn new(limits: Limits) -> Self {
        let claims = Claims::new([(CLAIMED, TAG)]).with_endless([ENDLESS, CLAIMED]);
        Self {
            pair: Pair::new(claims, limits),
        }
    }

    /// Prefaces and SETTINGS are behind us.
    pub fn connected() -> Self {
        Self::with_settings(&[], &[])
    }

    pub fn with_settings(client: &[(u16, u32)], runtime: &[(u16, u32)]) -> Self {
        Self::with(Limits::default(), client, runtime)
    }

    pub fn with(limits: Limits, client: &[(u16, u32)], runtime: &[(u16, u32)]) -> Self {
        let mut exchange = Self::new(limits);
        exchange.client(PREFACE);
        exchange.client(&frame::settings(client));
        exchange.runtime(&frame::settings(runtime));
        exchange.runtime(&frame::settings_ack());
        exchange.client(&frame::settings_ack());
        exchange.at_client();
        exchange.at_runtime();
        exchange
    }

    /// The client sends.
    pub fn client(&mut self, bytes: &[u8]) {
        self.pair.feed(Side::Client, bytes).unwrap();
    }

    /// The runtime sends.
    pub fn runtime(&mut self, bytes: &[u8]) {
        self.pair.feed(Side::Runtime, bytes).unwrap();
    }

    /// What arrives at the client.
    pub fn at_client(&mut self) -> Vec<u8> {
        self.take(Side::Client)
    }

    /// What arrives at the runtime.
    pub fn at_runtime(&mut self) -> Vec<u8> {
        self.take(Side::Runtime)
    }

    fn take(&mut self, side: Side) -> Vec<u8> {
        let mut taken = Vec::new();
        while self.pair.output_len(side) > 0 {
            let pending = self.pair.output(side).concat();
            let count = pending.len();
            taken.extend_from_slice(&pending);
            self.pair.advance(side, count);
        }
        taken
    }

    pub fn events(&mut self) -> Vec<Event> {
        std::iter::from_fn(|| self.pair.next_event()).collect()
    }

    /// A claimed call whose message, of `length` bytes, is held; what arrived is gone.
    pub fn held_call(&mut self, stream: u32, length: usize) {
        self.client(&frame::headers(stream, &request(CLAIMED), false));
        for piece in data_frames(stream, &message(length), true) {
            self.client(&piece);
        }
        self.at_runtime();
        assert_eq!(self.events(), [request_event(stream)]);
    }
}

pub fn request_event(stream: u32) -> Event {
    Event::Request {
        stream,
        tag: TAG,
        timeout: None,
    }
}

/// A request's header block, in literals.
pub fn request(path: &str) -> Vec<u8> {
    let mut block = b"\x83\x86".to_vec();
    write_literal(&mut block, b":path", path.as_bytes(), false);
    block
}

/// A message of `length` bytes with its prefix.
pub fn message(length: usize) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
    bytes.resize(5 + length, b'm');
    bytes
}

/// Trailers with a status.
pub fn trailers(grpc_status: &str) -> Vec<u8> {
    let mut block = Vec::new();
    write_literal(&mut block, b"grpc-status", grpc_status.as_bytes(), false);
    block
}

/// DATA frames of at most 16,384 bytes.
pub fn data_frames(stream: u32, payload: &[u8], end: bool) -> Vec<Vec<u8>> {
    let count = payload.chunks(16_384).count();
    payload
        .chunks(16_384)
        .enumerate()
        .map(|(at, piece)| frame::data(stream, piece, end && at + 1 == count))
        .collect()
}

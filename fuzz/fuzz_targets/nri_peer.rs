//! Any bytes from the other end, cut anywhere, with any calls and replies in between. The peer never
//! panics, tells of each request and each outcome once, writes what the Go reader can read, and holds
//! no more than it was given.
//!
//! Input: a first byte whose lowest bit is the role, then operations, each of one byte and its
//! operands; see [`Run::step`].
#![no_main]

use std::collections::BTreeSet;

use koord_nri::{CallId, Code, Event, Limits, Peer, RequestId, Role, Status};
use libfuzzer_sys::fuzz_target;

const REQUESTS: usize = 3;

/// Most that one refusal takes, and most of them for each byte that came.
const REFUSAL: usize = 120;

struct Run<'a> {
    input: &'a [u8],
    peer: Peer,
    calls: BTreeSet<CallId>,
    requests: Vec<RequestId>,
    /// What went in from either side.
    given: usize,
    written: Vec<u8>,
    last_stream: u32,
    over: bool,
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

    /// Does one thing. False when the peer is dead.
    fn step(&mut self) -> bool {
        let op = self.byte();
        match op & 7 {
            0 | 1 => {
                // A message with a valid head, in a frame with one.
                let (stream, kind, flags) = (self.byte(), self.byte() % 5, self.byte());
                let body = self.bytes();
                let length = u8::try_from(body.len()).expect("a byte's worth");
                let total = (u16::from(length) + 10).to_be_bytes();
                let frame = [0, 0, 0, 1 + (op >> 3 & 1), 0, 0, total[0], total[1]];
                let head = [0, 0, 0, length, 0, 0, 0, stream, kind, flags];
                self.feed(&[&frame[..], &head, &body].concat())
            }
            2 => {
                // Part of whatever is open.
                let body = self.bytes();
                let length = u8::try_from(body.len()).expect("a byte's worth");
                let frame = [0, 0, 0, op >> 3 & 3, 0, 0, 0, length];
                self.feed(&[&frame[..], &body].concat())
            }
            3 => {
                let bytes = self.bytes();
                self.feed(&bytes)
            }
            4 => {
                self.call();
                true
            }
            5 => {
                self.reply();
                true
            }
            6 => {
                self.take(self.input.len() % 500);
                true
            }
            _ if op >> 3 == 31 => {
                self.over = true;
                assert_eq!(self.peer.end(), self.peer.end());
                assert!(self.peer.output().is_empty());
                true
            }
            _ => {
                if let Some(call) = self.calls.pop_last() {
                    assert!(self.peer.give_up(call));
                }
                true
            }
        }
    }

    fn feed(&mut self, bytes: &[u8]) -> bool {
        self.given += bytes.len() * REFUSAL;
        let fed = self.peer.feed(bytes);
        assert_eq!(fed.is_err(), self.peer.feed(b"").is_err());
        fed.is_ok()
    }

    fn call(&mut self) {
        let length = usize::from(self.byte()) * 50;
        if let Ok(call) = self.peer.call("S", "M", &vec![1; length], None) {
            assert!(self.calls.insert(call));
            self.given += length + 50;
        }
    }

    fn reply(&mut self) {
        let how = self.byte();
        if self.requests.is_empty() {
            return;
        }
        let request = self.requests.remove(0);
        let payload = vec![2; usize::from(how) * 50];
        let status = Status::new(Code::INTERNAL, "no");
        let result = if how & 1 == 0 {
            Ok(&*payload)
        } else {
            Err(&status)
        };
        if self.peer.reply(request, result).is_ok() {
            self.given += payload.len() + 50;
        }
        assert!(self.peer.reply(request, Ok(b"")).is_err(), "answered twice");
    }

    fn take(&mut self, count: usize) {
        let pending = self.peer.output();
        let count = count.min(pending.len());
        self.written.extend_from_slice(&pending[..count]);
        self.peer.advance(count);
        self.check_written();
    }

    /// Frames that begin a message are small and hold all or part of one; a second holds the rest.
    fn check_written(&mut self) {
        while let Some((message, length)) = whole_message(&self.written) {
            let head = message.first_chunk::<10>().expect("a head");
            let [b0, b1, b2, b3, s0, s1, s2, s3, kind, flags] = *head;
            let body = u32::from_be_bytes([b0, b1, b2, b3]) as usize;
            assert_eq!((body, flags), (message.len() - 10, 0));
            let stream = u32::from_be_bytes([s0, s1, s2, s3]);
            match kind {
                1 => {
                    assert!(stream % 2 == 1 && stream > self.last_stream);
                    self.last_stream = stream;
                }
                kind => assert_eq!(kind, 2),
            }
            self.written.drain(..length);
        }
    }

    fn check(&mut self) {
        while let Some(event) = self.peer.next_event() {
            match event {
                Event::Request(request) => self.requests.push(request.id),
                Event::Answer { call, .. } | Event::Lost { call } => {
                    assert!(self.calls.remove(&call), "an outcome that nobody waits for");
                }
            }
        }
        assert!(self.requests.len() <= REQUESTS);
        assert!(self.peer.held_bytes() <= self.given);
    }
}

/// The first message of what was written, and the bytes that its frames take.
fn whole_message(written: &[u8]) -> Option<(Vec<u8>, usize)> {
    let first = payload(written)?;
    assert!((10..=4_096).contains(&first.len()));
    let [b0, b1, b2, b3] = *first.first_chunk().expect("ten bytes at least");
    let wanted = 10 + u32::from_be_bytes([b0, b1, b2, b3]) as usize;
    let mut message = first.to_vec();
    let mut length = 8 + first.len();
    if message.len() < wanted {
        let second = payload(&written[length..])?;
        message.extend_from_slice(second);
        length += 8 + second.len();
    }
    assert_eq!(message.len(), wanted);
    Some((message, length))
}

/// The payload of the first frame, if it is whole.
fn payload(written: &[u8]) -> Option<&[u8]> {
    let [c0, c1, c2, c3, l0, l1, l2, l3] = *written.first_chunk()?;
    assert!(matches!([c0, c1, c2, c3], [0, 0, 0, 1 | 2]));
    let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
    assert!(length > 0);
    written.get(8..8 + length)
}

fuzz_target!(|input: &[u8]| {
    let limits = Limits {
        message: 200,
        frame: 5_000,
        requests: REQUESTS,
        calls: 4,
        output: 30_000,
    };
    let mut run = Run {
        input,
        peer: Peer::new(Role::Plugin, limits),
        calls: BTreeSet::new(),
        requests: Vec::new(),
        given: 0,
        written: Vec::new(),
        last_stream: 0,
        over: false,
    };
    if run.byte() & 1 == 1 {
        run.peer = Peer::new(Role::Runtime, limits);
    }
    let mut alive = true;
    while alive && !run.input.is_empty() {
        alive = run.step();
        run.check();
    }
    run.take(usize::MAX);
    let cut_off = run.over || !alive;
    assert!(run.written.is_empty() || cut_off, "half a message");
});

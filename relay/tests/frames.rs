//! Single frames and short exchanges, byte for byte.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use koord_relay::{Claims, Event, Limits, Pair, Side, Tag};
use support::frame::{self, PREFACE};

const CLAIMED: &str = "/runtime.v1.RuntimeService/CreateContainer";

fn claims() -> Claims {
    Claims::new([(CLAIMED, Tag(7))])
}

/// A pair whose ends have exchanged preface and SETTINGS; what they said is gone from the outputs.
fn connected() -> Pair {
    let mut pair = Pair::new(claims(), Limits::default());
    pair.feed(Side::Client, PREFACE).unwrap();
    pair.feed(Side::Client, &frame::settings(&[])).unwrap();
    pair.feed(Side::Runtime, &frame::settings(&[])).unwrap();
    pair.feed(Side::Runtime, &frame::settings_ack()).unwrap();
    pair.feed(Side::Client, &frame::settings_ack()).unwrap();
    taken(&mut pair, Side::Client);
    taken(&mut pair, Side::Runtime);
    pair
}

fn taken(pair: &mut Pair, side: Side) -> Vec<u8> {
    let bytes = pair.output(side).to_vec();
    pair.advance(side, bytes.len());
    bytes
}

/// A request's header block, in literals.
fn request(path: &str) -> Vec<u8> {
    let mut block = b"\x83\x86".to_vec();
    koord_relay::hpack::write_literal(&mut block, b":path", path.as_bytes(), false);
    koord_relay::hpack::write_literal(&mut block, b"grpc-timeout", b"3S", false);
    block
}

fn message(length: usize) -> Vec<u8> {
    let mut bytes = vec![0];
    bytes.extend_from_slice(&u32::try_from(length).unwrap().to_be_bytes());
    bytes.resize(5 + length, 0x6d);
    bytes
}

#[test]
fn claimed_message_is_held_until_released_and_may_grow() {
    let mut pair = connected();
    let headers = frame::headers(1, &request(CLAIMED), false);
    pair.feed(Side::Client, &headers).unwrap();
    pair.feed(Side::Client, &frame::data(1, &message(3), true))
        .unwrap();
    assert_eq!(taken(&mut pair, Side::Runtime), headers);
    assert_eq!(
        pair.next_event(),
        Some(Event::Request {
            stream: 1,
            tag: Tag(7),
            timeout: Some(std::time::Duration::from_secs(3)),
        })
    );
    assert_eq!(pair.held(1), Some(&b"mmm"[..]));
    assert_eq!(pair.held_bytes(), 8);
    assert!(pair.release_with(1, b"PATCH"));
    assert!(!pair.release(1));
    assert_eq!(
        taken(&mut pair, Side::Runtime),
        frame::data(1, b"\x00\x00\x00\x00\x08mmmPATCH", true)
    );
    assert_eq!(pair.held_bytes(), 0);
    assert_eq!(taken(&mut pair, Side::Client), b"");
}

//! What an end must not send: the pair says who, where and what, and is dead from then on.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::error::Error;

use koord_relay::hpack::HpackError;
use koord_relay::{Breach, Limits, Pair, Side, Violation};
use support::exchange::{CLAIMED, Exchange, OTHER, data_frames, message, request};
use support::frame::{self, PREFACE};

/// What comes of bytes from `side` on a fresh connection with streams 1 (claimed) and 3 (not) open.
fn violation(side: Side, bytes: &[u8]) -> Violation {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(CLAIMED), false));
    exchange.client(&frame::headers(3, &request(OTHER), false));
    let violation = exchange.pair.feed(side, bytes).unwrap_err();
    let again = exchange.pair.feed(side.other(), b"").unwrap_err();
    assert_eq!(violation, again, "a dead pair stays dead");
    assert_eq!(violation.side, side);
    violation
}

fn assert_breach(side: Side, bytes: &[u8], stream: u32, breach: Breach) {
    let violation = violation(side, bytes);
    assert_eq!((violation.stream, violation.breach), (stream, breach));
}

#[test]
fn anything_but_the_preface_is_refused_at_its_first_byte() {
    for bytes in [
        &b"GET / HTTP/1.1\r\n"[..],
        b"PRI * HTTP/1",
        b"\x16\x03\x01",
        b"\0",
    ] {
        let mut exchange = Exchange::new(Limits::default());
        let violation = exchange.pair.feed(Side::Client, bytes).unwrap_err();
        assert_eq!((violation.stream, violation.breach), (0, Breach::Preface));
        assert!(!exchange.pair.preface_seen());
        assert_eq!(exchange.at_runtime(), b"");
    }
}

#[test]
fn first_frame_of_either_end_is_settings() {
    for first in [frame::settings_ack(), frame::window_update(0, 1)] {
        let mut exchange = Exchange::new(Limits::default());
        let sent = [PREFACE, &first].concat();
        let violation = exchange.pair.feed(Side::Client, &sent).unwrap_err();
        let breach = Breach::OutOfPlace("first frame is not SETTINGS");
        assert_eq!(violation.breach, breach);
        let mut exchange = Exchange::new(Limits::default());
        let violation = exchange.pair.feed(Side::Runtime, &first).unwrap_err();
        assert_eq!(violation.breach, breach);
    }
}

#[test]
fn frame_over_the_receivers_limit_is_refused_by_its_head() {
    for side in [Side::Client, Side::Runtime] {
        let breach = Breach::FrameSize {
            length: 16_385,
            limit: 16_384,
        };
        assert_breach(side, b"\x00\x40\x01\x00\x00\x00\x00\x00\x03", 3, breach);
    }
    // The runtime announced more; that is for the client alone.
    let mut exchange = Exchange::with_settings(&[], &[(5, 20_000)]);
    exchange.client(&frame::raw(0xfa, 0, 0, &[0; 20_000]));
    let large = frame::raw(0xfa, 0, 0, &[0; 20_000]);
    assert!(exchange.pair.feed(Side::Runtime, &large).is_err());
}

#[test]
fn nothing_may_stand_inside_a_header_block() {
    let open = frame::raw(frame::HEADERS, 0, 5, b"\x83");
    let breach = Breach::OutOfPlace("frame inside a header block");
    for intruder in [
        frame::data(3, b"x", false),
        frame::raw(frame::PING, 0, 0, &[0; 8]),
        frame::raw(0xfa, 0, 0, b""),
        frame::headers(7, &request(OTHER), true),
    ] {
        let stream = u32::from(intruder[8]);
        let sent = [&open[..], &intruder].concat();
        assert_breach(Side::Client, &sent, stream, breach.clone());
    }
    let other = frame::raw(frame::CONTINUATION, frame::END_HEADERS, 7, b"");
    assert_breach(Side::Client, &[open, other].concat(), 7, breach);
    let alone = frame::raw(frame::CONTINUATION, frame::END_HEADERS, 3, b"");
    let breach = Breach::OutOfPlace("CONTINUATION of no header block");
    assert_breach(Side::Runtime, &alone, 3, breach);
}

#[test]
fn continuation_flood_ends_at_a_quarter_of_a_megabyte() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::raw(frame::HEADERS, 0, 1, b"\x83"));
    let empty = frame::raw(frame::CONTINUATION, 0, 1, b"");
    let limit = 256 << 10;
    let breach = (0..limit).find_map(|_| exchange.pair.feed(Side::Client, &empty).err());
    assert_eq!(breach.unwrap().breach, Breach::HeaderBlock { limit });
    assert_eq!(exchange.at_runtime(), b"");
}

#[test]
fn a_flood_of_the_runtimes_ends_at_a_megabyte() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(OTHER), true));
    exchange.runtime(&frame::raw(frame::HEADERS, 0, 1, b"\x88"));
    let empty = frame::raw(frame::CONTINUATION, 0, 1, b"");
    let limit = 1 << 20;
    let breach = (0..limit).find_map(|_| exchange.pair.feed(Side::Runtime, &empty).err());
    assert_eq!(breach.unwrap().breach, Breach::HeaderBlock { limit });
}

#[test]
fn block_that_grows_by_encoding_anew_ends_at_a_quarter_of_a_megabyte() {
    let mut exchange = Exchange::connected();
    let mut block = request(CLAIMED);
    block.extend_from_slice(b"\x5c\x011\x40\x01a\x7f\xa1\x1e");
    block.extend_from_slice(&[b'x'; 4_000]);
    exchange.client(&frame::headers(1, &block, false));
    let mut bomb = request(OTHER);
    bomb.extend_from_slice(&[0xbe; 10_000]);
    let violation = exchange
        .pair
        .feed(Side::Client, &frame::headers(3, &bomb, true))
        .unwrap_err();
    assert_eq!(violation.breach, Breach::HeaderBlock { limit: 256 << 10 });
}

#[test]
fn header_blocks_that_nobody_could_decode_are_refused() {
    let bad = frame::headers(5, b"\xbe", true);
    let index = Breach::Hpack(HpackError::Index(62));
    assert_breach(Side::Client, &bad, 5, index.clone());
    assert_breach(Side::Runtime, &frame::headers(1, b"\xbe", true), 1, index);
    let huge = frame::headers(3, b"\x3f\xe2\x1f", true);
    let size = HpackError::TableSize {
        size: 4_097,
        limit: 4_096,
    };
    assert_breach(Side::Runtime, &huge, 3, Breach::Hpack(size));
}

#[test]
fn table_is_capped_whatever_the_receiver_announced() {
    let mut exchange = Exchange::with_settings(&[(1, u32::MAX)], &[]);
    exchange.client(&frame::headers(1, &request(OTHER), true));
    // 2^20 + 1.
    let reply = frame::headers(1, b"\x3f\xe2\xff\x3f\x88", true);
    let violation = exchange.pair.feed(Side::Runtime, &reply).unwrap_err();
    let size = HpackError::TableSize {
        size: (1 << 20) + 1,
        limit: 1 << 20,
    };
    assert_eq!(violation.breach, Breach::Hpack(size));
}

#[test]
fn streams_open_in_order_with_odd_numbers_and_one_path() {
    let cannot = Breach::OutOfPlace("HEADERS on a stream that cannot open");
    for stream in [2, 4] {
        let sent = frame::headers(stream, &request(OTHER), true);
        assert_breach(Side::Client, &sent, stream, cannot.clone());
    }
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(5, &request(OTHER), false));
    let lower = frame::headers(3, &request(OTHER), false);
    let violation = exchange.pair.feed(Side::Client, &lower).unwrap_err();
    assert_eq!(violation.breach, cannot);

    let mut two = request(OTHER);
    two.extend_from_slice(&request(CLAIMED)[2..]);
    let breach = Breach::Malformed("request with two paths");
    assert_breach(Side::Client, &frame::headers(5, &two, true), 5, breach);
}

#[test]
fn frames_on_idle_streams_are_refused() {
    for (side, bytes, breach) in [
        (
            Side::Client,
            frame::data(5, b"x", false),
            "DATA on an idle stream",
        ),
        (
            Side::Client,
            frame::rst(5, 8),
            "RST_STREAM on an idle stream",
        ),
        (
            Side::Client,
            frame::window_update(5, 1),
            "WINDOW_UPDATE on an idle stream",
        ),
        (
            Side::Runtime,
            frame::data(5, b"x", false),
            "DATA on an idle stream",
        ),
        (
            Side::Runtime,
            frame::headers(5, b"\x88", false),
            "HEADERS on an idle stream",
        ),
        (
            Side::Runtime,
            frame::rst(5, 8),
            "RST_STREAM on an idle stream",
        ),
        (
            Side::Runtime,
            frame::window_update(5, 1),
            "WINDOW_UPDATE on an idle stream",
        ),
    ] {
        assert_breach(side, &bytes, 5, Breach::OutOfPlace(breach));
    }
    let pushed = frame::headers(2, b"\x88", false);
    let breach = Breach::OutOfPlace("HEADERS on an idle stream");
    assert_breach(Side::Runtime, &pushed, 2, breach);
    for side in [Side::Client, Side::Runtime] {
        let promise = frame::raw(frame::PUSH_PROMISE, frame::END_HEADERS, 1, b"\0\0\0\x02");
        assert_breach(side, &promise, 1, Breach::OutOfPlace("PUSH_PROMISE"));
    }
}

#[test]
fn windows_are_not_overrun() {
    for stream in [1, 3] {
        let body = message(70_000);
        let sent = data_frames(stream, &body[..65_536], false).concat();
        assert_breach(Side::Client, &sent, stream, Breach::WindowOverrun);
    }
    // The connection's window ends before that of the second stream.
    let first = data_frames(1, &message(65_530), false).concat();
    let second = frame::data(3, b"x", false);
    let sent = [first, second].concat();
    assert_breach(Side::Client, &sent, 3, Breach::WindowOverrun);
}

#[test]
fn windows_do_not_grow_past_their_end() {
    let over = 0x7fff_ffff - 65_535 + 1;
    for stream in [0, 1, 3] {
        let sent = frame::window_update(stream, over);
        assert_breach(Side::Runtime, &sent, stream, Breach::WindowOverflow);
    }
    let zero = frame::window_update(0, 0);
    assert_breach(Side::Runtime, &zero, 0, Breach::Malformed("WINDOW_UPDATE"));
}

#[test]
fn malformed_frames_are_refused_by_name() {
    let cases = [
        ("DATA", frame::raw(frame::DATA, 0, 0, b"x")),
        ("HEADERS", frame::raw(frame::HEADERS, 4, 0, b"\x88")),
        ("HEADERS", frame::raw(frame::HEADERS, 0x24, 5, b"1234")),
        ("CONTINUATION", frame::raw(frame::CONTINUATION, 4, 0, b"")),
        ("RST_STREAM", frame::raw(frame::RST_STREAM, 0, 1, b"123")),
        ("RST_STREAM", frame::raw(frame::RST_STREAM, 0, 0, b"1234")),
        ("WINDOW_UPDATE", frame::raw(frame::WINDOW_UPDATE, 0, 1, b"")),
        ("PING", frame::raw(frame::PING, 0, 0, b"1234567")),
        ("PING", frame::raw(frame::PING, 0, 1, b"12345678")),
        ("GOAWAY", frame::raw(frame::GOAWAY, 0, 0, b"1234567")),
        ("GOAWAY", frame::raw(frame::GOAWAY, 0, 1, b"12345678")),
        ("SETTINGS", frame::raw(frame::SETTINGS, 0, 0, b"12345")),
        ("SETTINGS", frame::raw(frame::SETTINGS, 0, 1, b"")),
        (
            "SETTINGS",
            frame::raw(frame::SETTINGS, frame::ACK, 0, &[0; 6]),
        ),
        ("SETTINGS", frame::settings(&[(4, 0x8000_0000)])),
        ("SETTINGS", frame::settings(&[(5, 16_383)])),
        ("SETTINGS", frame::settings(&[(5, 16_777_216)])),
        ("padding", frame::raw(frame::DATA, frame::PADDED, 3, b"")),
        (
            "padding",
            frame::raw(frame::DATA, frame::PADDED, 3, b"\x03ab"),
        ),
        ("padding", frame::raw(frame::HEADERS, 0x0c, 5, b"\x01")),
    ];
    for (name, bytes) in cases {
        let breach = violation(Side::Client, &bytes).breach;
        assert_eq!(breach, Breach::Malformed(name), "{bytes:x?}");
    }
}

#[test]
fn settings_are_acknowledged_once_and_bounded_in_number() {
    let ack = frame::settings_ack();
    let breach = Breach::OutOfPlace("acknowledgement of no SETTINGS");
    assert_breach(Side::Runtime, &ack, 0, breach);
    let many = frame::settings(&[]).repeat(65);
    let breach = Breach::TooMany {
        what: "SETTINGS without acknowledgement",
        limit: 64,
    };
    assert_breach(Side::Client, &many, 0, breach);
}

#[test]
fn request_that_ended_says_no_more() {
    let end = frame::data(3, b"", true);
    let more = [&end[..], &frame::data(3, b"x", false)].concat();
    let breach = Breach::OutOfPlace("DATA after the end of its stream");
    assert_breach(Side::Client, &more, 3, breach);
    let again = [&end[..], &frame::headers(3, b"\x88", true)].concat();
    let breach = Breach::OutOfPlace("second HEADERS");
    assert_breach(Side::Client, &again, 3, breach.clone());
    let endless = frame::headers(3, b"\x88", false);
    assert_breach(Side::Client, &endless, 3, breach);
}

#[test]
fn reply_that_ended_says_no_more() {
    let end = frame::headers(3, b"\x88", true);
    for (name, more) in [
        ("HEADERS after the end of its stream", end.clone()),
        (
            "DATA after the end of its stream",
            frame::data(3, b"x", false),
        ),
    ] {
        let sent = [&end[..], &more].concat();
        assert_breach(Side::Runtime, &sent, 3, Breach::OutOfPlace(name));
    }
}

#[test]
fn trailers_of_a_request_pass_only_when_nothing_is_held() {
    let trailers = frame::headers(3, b"\x00\x01a\x01b", true);
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(3, &request(OTHER), false));
    exchange.at_runtime();
    exchange.client(&trailers);
    assert_eq!(exchange.at_runtime(), trailers);

    let held = frame::data(1, &message(3), false);
    let behind = [held, frame::headers(1, b"\x00\x01a\x01b", true)].concat();
    let breach = Breach::OutOfPlace("trailers behind held DATA");
    assert_breach(Side::Client, &behind, 1, breach);
}

#[test]
fn open_streams_are_bounded() {
    let limits = Limits {
        open_streams: 3,
        ..Limits::default()
    };
    let mut exchange = Exchange::with(limits, &[], &[]);
    for stream in [1, 3, 5] {
        exchange.client(&frame::headers(stream, &request(OTHER), false));
    }
    let fourth = frame::headers(7, &request(OTHER), false);
    let violation = exchange.pair.feed(Side::Client, &fourth).unwrap_err();
    let breach = Breach::TooMany {
        what: "open streams",
        limit: 3,
    };
    assert_eq!((violation.stream, violation.breach), (7, breach));
}

#[test]
fn violation_says_who_broke_which_rule_and_each_of_its_sources_why() {
    let mut exchange = Exchange::connected();
    // The dynamic table, whose indices begin at 62, is empty.
    let undecodable = frame::headers(1, b"\xbe", true);
    let violation = exchange.pair.feed(Side::Client, &undecodable).unwrap_err();
    let breach = violation.source();
    let reason = breach.and_then(Error::source);
    let told = [Some(&violation as &dyn Error), breach, reason];
    assert_eq!(
        told.map(|error| error.unwrap().to_string()),
        [
            "client broke the protocol on stream 1",
            "undecodable header block",
            "no entry at index 62",
        ]
    );
}

#[test]
fn tombstones_are_bounded_and_the_oldest_is_forgotten() {
    let limits = Limits {
        tombstones: 2,
        ..Limits::default()
    };
    let mut exchange = Exchange::with(limits, &[], &[]);
    for stream in [1, 3, 5] {
        exchange.held_call(stream, 10);
        assert!(exchange.pair.refuse(stream, 9, "x"));
    }
    assert_eq!(exchange.pair.open_streams(), 0);
    exchange.at_client();
    exchange.runtime(&frame::rst(5, 8));
    assert_eq!(exchange.at_client(), b"");
    exchange.runtime(&frame::rst(1, 8));
    assert_eq!(exchange.at_client(), frame::rst(1, 8));
}

#[test]
fn client_that_never_reads_is_not_read_from() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(CLAIMED), false));
    let padded = frame::padded_data(1, b"", 0, false);
    let mut fed = 0;
    while exchange.pair.wants_read(Side::Client) {
        exchange.client(&padded);
        fed += 1;
        assert!(fed < 1_000_000, "our frames to the client grow without end");
    }
    assert!(exchange.pair.output_len(Side::Client) < (1 << 20) + 100);
}

#[test]
fn dead_pair_answers_no_more_and_does_not_panic() {
    let mut exchange = Exchange::connected();
    exchange.held_call(1, 10);
    assert!(
        exchange
            .pair
            .feed(Side::Client, &frame::data(9, b"x", true))
            .is_err()
    );
    let pair: &mut Pair = &mut exchange.pair;
    pair.release(1);
    pair.drain();
    assert!(pair.feed(Side::Runtime, b"").is_err());
}

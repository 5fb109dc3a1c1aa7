//! What the other end must not send: the peer says on which connection and what, and is dead from
//! then on.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::error::Error;

use koord_nri::{Breach, Event, Limits, Peer, Role, SendError, Violation};
use support::wire::{
    DATA, REQUEST, RESPONSE, TO_PLUGIN, TO_RUNTIME, frame, framed, message, request, response,
};

/// A plugin that has made the calls 1 and 3, and is asked 1.
fn plugin() -> Peer {
    let mut peer = Peer::new(Role::Plugin, Limits::default());
    peer.call("S", "M", b"", None).unwrap();
    peer.call("S", "M", b"", None).unwrap();
    let sent = framed(TO_PLUGIN, 1, REQUEST, 0, &request(b""));
    peer.feed(&sent).unwrap();
    assert!(matches!(peer.next_event(), Some(Event::Request(_))));
    peer
}

fn violation(bytes: &[u8]) -> Violation {
    let mut peer = plugin();
    let violation = peer.feed(bytes).unwrap_err();
    assert_eq!(peer.feed(b""), Err(violation.clone()), "dead stays dead");
    assert_eq!(peer.end(), Err(violation.clone()));
    // Nobody waits for what will never come.
    for _ in 0..2 {
        assert!(matches!(peer.next_event(), Some(Event::Lost { .. })));
    }
    assert_eq!((peer.next_event(), peer.output()), (None, &b""[..]));
    assert_eq!(peer.call("S", "M", b"", None), Err(SendError::Over));
    assert_eq!(peer.held_bytes(), 0);
    violation
}

fn assert_breach(bytes: &[u8], connection: u32, breach: Breach) {
    assert_eq!(violation(bytes), Violation { connection, breach });
}

#[test]
fn a_frame_that_no_message_needs_is_refused_by_its_head() {
    let breach = Breach::FrameSize {
        length: 67_108_875,
        limit: 67_108_874,
    };
    assert_breach(b"\0\0\0\x01\x04\0\0\x0b", 0, breach);
    // What speaks another protocol ends here.
    let breach = Breach::FrameSize {
        length: 0x2048_5454,
        limit: 67_108_874,
    };
    assert_breach(b"GET  HTTP/1.1\r\n", 0, breach);
}

#[test]
fn answers_to_calls_that_were_never_made_are_refused_by_their_head() {
    for stream in [0, 2, 4, 5, u32::MAX] {
        let whole = message(stream, RESPONSE, 0, &response(b"x"));
        let breach = Breach::NeverCalled { stream };
        assert_breach(&frame(TO_RUNTIME, &whole[..10]), TO_RUNTIME, breach);
    }
}

#[test]
fn what_belongs_on_the_other_connection_is_refused() {
    let asked = framed(TO_RUNTIME, 5, REQUEST, 0, &request(b""));
    let breach = Breach::OutOfPlace("request on the connection of answers");
    assert_breach(&asked, TO_RUNTIME, breach);
    let answer = framed(TO_PLUGIN, 1, RESPONSE, 0, b"");
    let breach = Breach::OutOfPlace("answer on the connection of requests");
    assert_breach(&answer, TO_PLUGIN, breach);
}

#[test]
fn a_stream_of_data_is_no_answer() {
    let data = framed(TO_RUNTIME, 1, DATA, 0, b"abc");
    let breach = Breach::OutOfPlace("data in answer to a plain call");
    assert_breach(&data, TO_RUNTIME, breach);
}

#[test]
fn an_answer_that_cannot_be_decoded_is_refused() {
    for body in [&b"\x12\x05ab"[..], b"\x0a\x03\x12\x01\xff", b"\x13"] {
        let answer = framed(TO_RUNTIME, 3, RESPONSE, 0, body);
        assert_breach(&answer, TO_RUNTIME, Breach::Answer { stream: 3 });
    }
}

#[test]
fn an_end_that_asks_and_does_not_read_is_given_up() {
    let limits = Limits {
        output: 1_000,
        ..Limits::default()
    };
    let mut peer = Peer::new(Role::Plugin, limits);
    // Two heads of 18 bytes, the numbers and lengths of three fields, a code, 36 characters: 60
    // bytes for each.
    let bad = framed(TO_PLUGIN, 2, REQUEST, 0, b"");
    let mut told = 0;
    let breach = loop {
        match peer.feed(&bad) {
            Ok(()) => told += 1,
            Err(violation) => break violation.breach,
        }
    };
    let expected = Breach::NeverReads {
        waiting: 1_020,
        limit: 1_000,
    };
    assert_eq!((told, breach), (17, expected));

    // One that reads may ask for as long as it likes.
    let mut peer = Peer::new(Role::Plugin, limits);
    for _ in 0..1_000 {
        peer.feed(&bad).unwrap();
        peer.advance(60);
    }
}

#[test]
fn an_end_whose_questions_are_answered_has_to_read_the_answers() {
    let limits = Limits {
        output: 1_000,
        ..Limits::default()
    };
    let ask = |reads: bool| {
        let mut peer = Peer::new(Role::Plugin, limits);
        for number in (1..2_000).step_by(2) {
            peer.feed(&framed(TO_PLUGIN, number, REQUEST, 0, &request(b"")))?;
            let Some(Event::Request(asked)) = peer.next_event() else {
                panic!("it was not asked");
            };
            peer.reply(asked.id, Ok(&[0; 100])).unwrap();
            if reads {
                peer.advance(usize::MAX);
            }
        }
        Ok(())
    };
    let breach = ask(false).map_err(|violation: Violation| violation.breach);
    let Err(Breach::NeverReads { waiting, limit }) = breach else {
        panic!("{breach:?}");
    };
    // The first with which it was too much, and no more.
    assert!((1_001..1_200).contains(&waiting), "{waiting}");
    assert_eq!(limit, 1_000);
    ask(true).unwrap();
}

#[test]
fn a_stream_that_ends_in_the_middle_is_told_from_one_that_does_not() {
    let whole = framed(TO_PLUGIN, 3, REQUEST, 0, &request(b""));
    let answer = message(3, RESPONSE, 0, &response(b"abc"));
    for (sent, connection, what) in [
        (whole[..3].to_vec(), 0, "frame"),
        (whole[..8].to_vec(), 0, "frame"),
        (whole[..whole.len() - 1].to_vec(), 0, "frame"),
        (frame(TO_PLUGIN, &whole[8..10]), TO_PLUGIN, "message"),
        (frame(TO_RUNTIME, &answer[..12]), TO_RUNTIME, "message"),
    ] {
        let mut peer = plugin();
        peer.feed(&sent).unwrap();
        let breach = Breach::CutShort(what);
        assert_eq!(peer.end(), Err(Violation { connection, breach }));
    }
    let mut peer = plugin();
    peer.feed(&whole).unwrap();
    assert_eq!(peer.end(), Ok(()));
}

#[test]
fn nothing_comes_behind_the_end() {
    let mut peer = plugin();
    assert_eq!(peer.end(), Ok(()));
    let sent = framed(TO_PLUGIN, 3, REQUEST, 0, &request(b""));
    let breach = Breach::OutOfPlace("bytes behind the end");
    let connection = TO_PLUGIN;
    assert_eq!(peer.feed(&sent), Err(Violation { connection, breach }));
}

#[test]
fn promises_take_no_memory() {
    let mut peer = Peer::new(Role::Plugin, Limits::default());
    // 64 MiB on each connection, of which ten bytes come.
    peer.call("S", "M", b"", None).unwrap();
    peer.advance(usize::MAX);
    let head = b"\x04\0\0\0\0\0\0\x01\x01\x000123456789";
    peer.feed(&frame(TO_PLUGIN, head)).unwrap();
    let head = b"\x04\0\0\0\0\0\0\x01\x02\x000123456789";
    peer.feed(&frame(TO_RUNTIME, head)).unwrap();
    assert_eq!(peer.held_bytes(), 20);
}

#[test]
fn a_message_of_4_gib_is_skipped_and_not_kept() {
    let mut peer = Peer::new(Role::Plugin, Limits::default());
    let head = b"\xff\xff\xff\xff\0\0\0\x01\x01\0";
    peer.feed(&frame(TO_PLUGIN, head)).unwrap();
    let piece = frame(TO_PLUGIN, &vec![0; 1 << 20]);
    for _ in 0..100 {
        peer.feed(&piece).unwrap();
        assert_eq!(peer.held_bytes(), 0);
    }
}

#[test]
fn a_violation_says_where_and_its_source_what() {
    let violation = violation(b"\0\0\0\x02\0\0\0\x0a\0\0\0\0\0\0\0\x09\x02\0");
    assert_eq!(
        violation.to_string(),
        "the other end broke the protocol on connection 2"
    );
    let source = violation.source().unwrap();
    assert_eq!(source.to_string(), "answer to call 9, which was never made");
    assert!(source.source().is_none());
}

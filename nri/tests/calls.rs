//! Calls and requests as bytes, rule by rule of the multiplexer and of ttrpc.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::time::Duration;

use koord_nri::{Code, Event, Limits, Peer, Request, Role, SendError, Status};
use support::wire::{
    DATA, REQUEST, RESPONSE, TO_PLUGIN, TO_RUNTIME, failure, frame, framed, message, payload_field,
    request, response,
};

fn plugin() -> Peer {
    Peer::new(Role::Plugin, Limits::default())
}

fn limited(limits: Limits) -> Peer {
    Peer::new(Role::Plugin, limits)
}

/// What is to be written, and is.
fn written(peer: &mut Peer) -> Vec<u8> {
    let bytes = peer.output().to_vec();
    peer.advance(bytes.len());
    bytes
}

fn requested(peer: &mut Peer) -> Request {
    match peer.next_event() {
        Some(Event::Request(request)) => request,
        other => panic!("no request but {other:?}"),
    }
}

fn answered(peer: &mut Peer) -> Result<Vec<u8>, Status> {
    match peer.next_event() {
        Some(Event::Answer { result, .. }) => result,
        other => panic!("no answer but {other:?}"),
    }
}

/// What a plugin says at once to a message on its connection; nobody is told of it.
fn refusal(peer: &mut Peer, stream: u32, kind: u8, flags: u8, body: &[u8]) -> Vec<u8> {
    let sent = framed(TO_PLUGIN, stream, kind, flags, body);
    peer.feed(&sent).unwrap();
    assert_eq!(peer.next_event(), None);
    written(peer)
}

/// A refusal, spelt out.
fn refused(stream: u32, code: u8, text: &str) -> Vec<u8> {
    framed(TO_PLUGIN, stream, RESPONSE, 0, &failure(code, text))
}

#[test]
fn a_call_is_one_frame_of_two_heads_and_a_body() {
    let mut peer = plugin();
    let timeout = Some(Duration::from_secs(2));
    peer.call("S", "M", b"p", timeout).unwrap();
    assert_eq!(
        written(&mut peer),
        b"\0\0\0\x02\0\0\0\x19\
          \0\0\0\x0f\0\0\0\x01\x01\0\
          \x0a\x01S\x12\x01M\x1a\x01p\x20\x80\xa8\xd6\xb9\x07"
    );
}

#[test]
fn a_reply_is_one_frame_of_two_heads_and_a_body() {
    let mut peer = plugin();
    peer.feed(b"\0\0\0\x01\0\0\0\x13\0\0\0\x09\0\0\0\x07\x01\0\x0a\x01S\x12\x01M\x1a\x01p")
        .unwrap();
    let request = requested(&mut peer);
    assert_eq!((&*request.service, &*request.method), ("S", "M"));
    assert_eq!((&*request.payload, request.timeout), (&b"p"[..], None));
    peer.reply(request.id, Ok(b"abc")).unwrap();
    assert_eq!(peer.reply(request.id, Ok(b"")), Err(SendError::NotAsked));
    assert_eq!(
        written(&mut peer),
        b"\0\0\0\x01\0\0\0\x0f\0\0\0\x05\0\0\0\x07\x02\0\x12\x03abc"
    );
}

#[test]
fn a_reply_without_a_byte_is_written_all_the_same() {
    let mut peer = plugin();
    peer.feed(&framed(TO_PLUGIN, 1, REQUEST, 0, &request(b"")))
        .unwrap();
    let request = requested(&mut peer);
    peer.reply(request.id, Ok(b"")).unwrap();
    assert_eq!(
        written(&mut peer),
        b"\0\0\0\x01\0\0\0\x0a\0\0\0\0\0\0\0\x01\x02\0"
    );
}

#[test]
fn a_status_is_a_reply_without_a_payload() {
    let mut peer = plugin();
    peer.feed(&framed(TO_PLUGIN, 1, REQUEST, 0, &request(b"")))
        .unwrap();
    let request = requested(&mut peer);
    let status = Status::new(Code::UNIMPLEMENTED, "no");
    peer.reply(request.id, Err(&status)).unwrap();
    assert_eq!(
        written(&mut peer),
        b"\0\0\0\x01\0\0\0\x12\0\0\0\x08\0\0\0\x01\x02\0\x0a\x06\x08\x0c\x12\x02no"
    );
}

#[test]
fn a_runtime_is_the_same_on_the_other_connection() {
    let mut runtime = Peer::new(Role::Runtime, Limits::default());
    let call = runtime.call("S", "M", b"", None).unwrap();
    let expected = framed(TO_PLUGIN, 1, REQUEST, 0, &request(b""));
    assert_eq!(written(&mut runtime), expected);
    runtime
        .feed(&framed(TO_RUNTIME, 1, REQUEST, 0, &request(b"p")))
        .unwrap();
    let request = requested(&mut runtime);
    runtime.reply(request.id, Ok(b"q")).unwrap();
    let expected = framed(TO_RUNTIME, 1, RESPONSE, 0, &response(b"q"));
    assert_eq!(written(&mut runtime), expected);
    runtime
        .feed(&framed(TO_PLUGIN, 1, RESPONSE, 0, &response(b"a")))
        .unwrap();
    let result = Ok(b"a".to_vec());
    assert_eq!(runtime.next_event(), Some(Event::Answer { call, result }));
}

#[test]
fn calls_have_rising_odd_numbers_and_take_answers_in_any_order() {
    let mut peer = plugin();
    let first = peer.call("S", "M", b"", None).unwrap();
    let second = peer.call("S", "M", b"", None).unwrap();
    let expected = [1, 3].map(|stream| framed(TO_RUNTIME, stream, REQUEST, 0, &request(b"")));
    assert_eq!(written(&mut peer), expected.concat());
    for (stream, payload) in [(3, b"second"), (1, b"first.")] {
        let answer = framed(TO_RUNTIME, stream, RESPONSE, 0, &response(payload));
        peer.feed(&answer).unwrap();
    }
    for (call, payload) in [(second, b"second"), (first, b"first.")] {
        let result = Ok(payload.to_vec());
        assert_eq!(peer.next_event(), Some(Event::Answer { call, result }));
    }
    assert!(!peer.give_up(first) && !peer.give_up(second));
}

#[test]
fn an_answer_with_a_status_is_a_failed_call() {
    let mut peer = plugin();
    peer.call("S", "M", b"", None).unwrap();
    peer.feed(&framed(TO_RUNTIME, 1, RESPONSE, 0, &failure(9, "not now")))
        .unwrap();
    let expected = Status::new(Code::FAILED_PRECONDITION, "not now");
    assert_eq!(answered(&mut peer), Err(expected));
}

#[test]
fn a_message_of_more_than_4096_bytes_with_its_head_takes_two_frames() {
    // Service and method are six bytes, the payload's number and length three.
    for (payload, second) in [(4_077, 0), (4_078, 1), (10_000, 5_923)] {
        let mut peer = plugin();
        peer.call("S", "M", &vec![7; payload], None).unwrap();
        let bytes = written(&mut peer);
        let whole = message(1, REQUEST, 0, &request(&vec![7; payload]));
        let (one, two) = whole.split_at(4_096);
        let mut expected = frame(TO_RUNTIME, one);
        if second > 0 {
            expected.extend_from_slice(&frame(TO_RUNTIME, two));
        }
        assert_eq!(two.len(), second);
        assert!(bytes == expected);
    }
}

#[test]
fn a_call_of_4_mib_is_made_and_a_larger_one_leaves_no_trace() {
    let mut peer = plugin();
    // Six bytes before it, five of number and length.
    let error = peer.call("S", "M", &vec![0; 4_194_294], None).unwrap_err();
    let expected = SendError::TooLarge {
        length: 4_194_305,
        limit: 4_194_304,
    };
    assert_eq!(error, expected);
    assert_eq!(peer.output(), b"");
    peer.call("S", "M", &vec![0; 4_194_293], None).unwrap();
    assert_eq!(
        peer.output()[..18],
        *b"\0\0\0\x02\0\0\x10\0\0\x40\0\0\0\0\0\x01\x01\0"
    );
    assert_eq!(peer.output().len(), 8 + 4_096 + 8 + 4_190_218);
}

#[test]
fn a_reply_that_is_too_large_can_be_made_otherwise() {
    let mut peer = plugin();
    peer.feed(&framed(TO_PLUGIN, 1, REQUEST, 0, &request(b"")))
        .unwrap();
    let request = requested(&mut peer);
    let error = peer.reply(request.id, Ok(&vec![0; 4_194_300])).unwrap_err();
    let expected = SendError::TooLarge {
        length: 4_194_305,
        limit: 4_194_304,
    };
    assert_eq!(error, expected);
    assert_eq!(peer.output(), b"");
    peer.reply(request.id, Ok(&vec![0; 4_194_299])).unwrap();
    assert_eq!(peer.output().len(), 2 * 8 + 10 + 4_194_304);
}

#[test]
fn a_request_has_one_reply() {
    let mut peer = plugin();
    peer.feed(&framed(TO_PLUGIN, 1, REQUEST, 0, &request(b"")))
        .unwrap();
    let request = requested(&mut peer);
    peer.reply(request.id, Ok(b"")).unwrap();
    written(&mut peer);
    let again = peer.reply(request.id, Ok(b""));
    assert_eq!(again, Err(SendError::NotAsked));
    assert_eq!(peer.output(), b"");
}

#[test]
fn connections_take_turns_in_the_middle_of_messages() {
    let mut peer = plugin();
    peer.call("S", "M", b"", None).unwrap();
    let asked = message(1, REQUEST, 0, &request(b"asked"));
    let answer = message(1, RESPONSE, 0, &response(b"answer"));
    let (asked_1, asked_2) = asked.split_at(4);
    let (answer_1, answer_2) = answer.split_at(12);
    let frames = [
        frame(TO_PLUGIN, asked_1),
        frame(TO_RUNTIME, answer_1),
        frame(TO_PLUGIN, asked_2),
        frame(TO_RUNTIME, answer_2),
    ];
    peer.feed(&frames.concat()).unwrap();
    assert_eq!(requested(&mut peer).payload, b"asked");
    assert_eq!(answered(&mut peer), Ok(b"answer".to_vec()));
}

#[test]
fn several_messages_come_in_one_frame() {
    let mut peer = plugin();
    let both = [(1, b"a"), (3, b"b")];
    let both = both.map(|(stream, payload)| message(stream, REQUEST, 0, &request(payload)));
    peer.feed(&frame(TO_PLUGIN, &both.concat())).unwrap();
    assert_eq!(requested(&mut peer).payload, b"a");
    assert_eq!(requested(&mut peer).payload, b"b");
}

#[test]
fn frames_of_unknown_connections_are_dropped() {
    let mut peer = plugin();
    let asked = framed(TO_PLUGIN, 1, REQUEST, 0, &request(b"p"));
    for connection in [0, 3, u32::MAX] {
        peer.feed(&frame(connection, &asked)).unwrap();
    }
    assert_eq!(peer.next_event(), None);
    peer.feed(&asked).unwrap();
    assert_eq!(requested(&mut peer).payload, b"p");
}

#[test]
fn a_number_that_is_even_or_does_not_rise_is_refused() {
    let mut peer = plugin();
    peer.feed(&framed(TO_PLUGIN, 5, REQUEST, 0, &request(b"")))
        .unwrap();
    let open = requested(&mut peer);
    for (stream, text) in [
        (0, "the number of a stream has to be odd"),
        (8, "the number of a stream has to be odd"),
        (5, "the numbers of streams have to rise"),
        (3, "the numbers of streams have to rise"),
    ] {
        let said = refusal(&mut peer, stream, REQUEST, 0, &request(b""));
        assert_eq!(said, refused(stream, 3, text));
    }
    // None of that has changed what was there.
    peer.reply(open.id, Ok(b"")).unwrap();
    peer.feed(&framed(TO_PLUGIN, 7, REQUEST, 0, &request(b"")))
        .unwrap();
    requested(&mut peer);
}

#[test]
fn a_request_that_cannot_be_decoded_is_refused() {
    let mut peer = plugin();
    let said = refusal(&mut peer, 1, REQUEST, 0, b"\x0a\x05S");
    assert_eq!(said, refused(1, 3, "undecodable request"));
}

#[test]
fn one_oversized_message_is_a_request_like_any_other() {
    // As runtimes before ttrpc 1.2.6 send a Synchronize of 6 MiB: one head, one frame behind it.
    let mut peer = plugin();
    let payload = vec![9; 6 << 20];
    let whole = message(1, REQUEST, 0, &request(&payload));
    let (one, two) = whole.split_at(4_096);
    peer.feed(&[frame(TO_PLUGIN, one), frame(TO_PLUGIN, two)].concat())
        .unwrap();
    assert!(requested(&mut peer).payload == payload);
    assert_eq!(peer.held_bytes(), 0);
}

#[test]
fn a_request_over_the_limit_is_skipped_and_refused() {
    let mut peer = limited(Limits {
        message: 7,
        ..Limits::default()
    });
    // Eight bytes: a payload of none would be six.
    let said = refusal(&mut peer, 1, REQUEST, 0, b"\x0a\x01S\x12\x03ABC");
    let text = "message of 8 bytes, where 7 are allowed";
    assert_eq!(said, refused(1, 8, text));
    // It was not taken, so its number is free.
    peer.feed(&framed(TO_PLUGIN, 1, REQUEST, 0, b"\x0a\x01S\x12\x02AB"))
        .unwrap();
    assert_eq!(requested(&mut peer).method, "AB");
}

#[test]
fn an_answer_over_the_limit_is_skipped_and_fails_its_call() {
    let mut peer = limited(Limits {
        message: 5,
        ..Limits::default()
    });
    peer.call("S", "M", b"", None).unwrap();
    peer.call("S", "M", b"", None).unwrap();
    for (stream, payload) in [(1, &b"abcd"[..]), (3, b"abc")] {
        peer.feed(&framed(TO_RUNTIME, stream, RESPONSE, 0, &response(payload)))
            .unwrap();
    }
    let text = "answer of 6 bytes, where 5 are allowed";
    let expected = Status::new(Code::RESOURCE_EXHAUSTED, text);
    assert_eq!(answered(&mut peer), Err(expected));
    assert_eq!(answered(&mut peer), Ok(b"abc".to_vec()));
}

#[test]
fn streams_are_not_served_and_the_end_of_a_plain_call_is_nothing() {
    let mut peer = plugin();
    let body = request(b"");
    let said = refusal(&mut peer, 1, REQUEST, 0x02, &body);
    let text = "plain calls alone are served, no streams";
    assert_eq!(said, refused(1, 12, text));
    let said = refusal(&mut peer, 1, DATA, 0, b"more");
    assert_eq!(said, refused(1, 3, "no stream is open by this number"));

    // "Remote closed" says that nothing more follows.
    peer.feed(&framed(TO_PLUGIN, 3, REQUEST, 0x01, &body))
        .unwrap();
    let open = requested(&mut peer);
    let said = refusal(&mut peer, 3, DATA, 0x05, b"");
    assert_eq!(said, b"");
    peer.reply(open.id, Ok(b"")).unwrap();
}

#[test]
fn a_message_of_an_unknown_type_is_skipped() {
    let mut peer = plugin();
    for connection in [TO_PLUGIN, TO_RUNTIME] {
        let sent = [
            message(1, 9, 0xff, b"what"),
            message(2, 0, 0, b""),
            message(3, 4, 0, &request(b"")),
        ];
        peer.feed(&frame(connection, &sent.concat())).unwrap();
    }
    assert_eq!((peer.next_event(), peer.output()), (None, &b""[..]));
    peer.feed(&framed(TO_PLUGIN, 1, REQUEST, 0, &request(b"")))
        .unwrap();
    requested(&mut peer);
}

#[test]
fn an_answer_that_nobody_waits_for_is_dropped() {
    let mut peer = plugin();
    let first = peer.call("S", "M", b"", None).unwrap();
    let second = peer.call("S", "M", b"", None).unwrap();
    assert!(peer.give_up(first));
    assert!(!peer.give_up(first));
    let late = framed(TO_RUNTIME, 1, RESPONSE, 0, &response(b"late"));
    peer.feed(&[&late[..], &late].concat()).unwrap();
    assert_eq!(peer.next_event(), None);
    // Nor is it kept while it arrives.
    written(&mut peer);
    peer.feed(&frame(TO_RUNTIME, b"\0\0\0\x0a\0\0\0\x01\x02\0"))
        .unwrap();
    peer.feed(&frame(TO_RUNTIME, b"12345")).unwrap();
    assert_eq!(peer.held_bytes(), 0);
    peer.feed(&frame(TO_RUNTIME, b"67890")).unwrap();
    assert_eq!(peer.next_event(), None);
    peer.feed(&framed(TO_RUNTIME, 3, RESPONSE, 0, b"")).unwrap();
    let result = Ok(Vec::new());
    let call = second;
    assert_eq!(peer.next_event(), Some(Event::Answer { call, result }));
}

#[test]
fn metadata_of_a_request_is_passed_over() {
    let mut peer = plugin();
    let metadata = [request(b"p"), payload_field(5, b"\x0a\x01k\x12\x01v")].concat();
    peer.feed(&framed(TO_PLUGIN, 1, REQUEST, 0, &metadata))
        .unwrap();
    assert_eq!(requested(&mut peer).payload, b"p");
}

#[test]
fn requests_over_their_number_are_refused_until_one_is_answered() {
    let mut peer = limited(Limits {
        requests: 2,
        ..Limits::default()
    });
    let asked = |stream| framed(TO_PLUGIN, stream, REQUEST, 0, &request(b""));
    peer.feed(&[asked(1), asked(3)].concat()).unwrap();
    let (first, _second) = (requested(&mut peer), requested(&mut peer));
    let said = refusal(&mut peer, 5, REQUEST, 0, &request(b""));
    assert_eq!(said, refused(5, 8, "2 requests are being served already"));
    peer.reply(first.id, Ok(b"")).unwrap();
    peer.feed(&asked(7)).unwrap();
    requested(&mut peer);
}

#[test]
fn calls_are_bounded_in_number_and_by_what_waits_to_be_written() {
    let mut peer = limited(Limits {
        calls: 2,
        output: 50,
        ..Limits::default()
    });
    // Two heads and six bytes.
    peer.call("S", "M", b"", None).unwrap();
    assert_eq!(peer.output().len(), 24);
    let second = peer.call("S", "M", b"01234", None).unwrap();
    assert_eq!(peer.output().len(), 55);
    let error = peer.call("S", "M", b"", None).unwrap_err();
    assert_eq!(error, SendError::Calls { limit: 2 });
    peer.give_up(second);
    let error = peer.call("S", "M", b"", None).unwrap_err();
    let expected = SendError::Output {
        waiting: 55,
        limit: 50,
    };
    assert_eq!(error, expected);
    peer.advance(5);
    peer.call("S", "M", b"", None).unwrap();
}

#[test]
fn the_end_of_the_stream_loses_every_open_call() {
    let mut peer = plugin();
    let first = peer.call("S", "M", b"", None).unwrap();
    let second = peer.call("S", "M", b"", None).unwrap();
    peer.feed(&framed(TO_RUNTIME, 1, RESPONSE, 0, b"")).unwrap();
    peer.feed(&framed(TO_PLUGIN, 1, REQUEST, 0, &request(b"")))
        .unwrap();
    assert_eq!(peer.end(), Ok(()));
    let answer = Event::Answer {
        call: first,
        result: Ok(Vec::new()),
    };
    assert_eq!(peer.next_event(), Some(answer));
    let request = requested(&mut peer);
    assert_eq!(peer.next_event(), Some(Event::Lost { call: second }));
    assert_eq!(peer.next_event(), None);
    assert_eq!(peer.reply(request.id, Ok(b"")), Err(SendError::Over));
    assert_eq!(peer.call("S", "M", b"", None), Err(SendError::Over));
    assert_eq!((peer.output(), peer.held_bytes()), (&b""[..], 0));
    assert!(!peer.give_up(first) && !peer.give_up(second));
}

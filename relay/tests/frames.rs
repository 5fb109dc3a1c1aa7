//! Short exchanges, byte for byte: what passes, what is held, what is said on our own.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use std::time::Duration;

use koord_relay::hpack::write_literal;
use koord_relay::{Claims, Counters, Event, Limits, Pair, Released, Side, Tag, Unopened};
use support::exchange::{
    CLAIMED, Exchange, OTHER, TAG, data_frames, message, request, request_event, trailers,
};
use support::frame::{self, PREFACE};
use support::hpack::literal;

/// The PING of our own that follows the first GOAWAY of a stop.
fn drain_ping() -> Vec<u8> {
    frame::raw(frame::PING, 0, 0, b"drained?")
}

// --- What passes ---

#[test]
fn frames_that_are_not_opened_pass_as_they_came() {
    let mut exchange = Exchange::connected();
    let mut padded_headers = vec![3];
    padded_headers.extend_from_slice(&[0x80, 0, 0, 0, 200]);
    padded_headers.extend_from_slice(&request(OTHER));
    padded_headers.extend_from_slice(&[0; 3]);
    let flags = frame::END_HEADERS | frame::PADDED | frame::WITH_PRIORITY;
    let sent = [
        frame::raw(frame::HEADERS, flags, 1, &padded_headers),
        frame::raw(frame::PRIORITY, 0, 1, &[0, 0, 0, 0, 9]),
        frame::padded_data(1, b"body", 200, false),
        frame::data(1, b"", false),
        frame::raw(0xfa, 0xff, 1, b"unknown type"),
        frame::raw(0xfb, 0, 0, b""),
        frame::raw(frame::PING, 0, 0, b"8 octets"),
        frame::window_update(0, 1_000),
        frame::window_update(1, 1_000),
        frame::data(1, b"rest", true),
        frame::goaway(0, 0),
    ]
    .concat();
    exchange.client(&sent);
    assert_eq!(exchange.at_runtime(), sent);

    let sent = [
        frame::headers(1, b"\x88", false),
        frame::padded_data(1, &[0; 9], 7, false),
        frame::raw(frame::PING, frame::ACK, 0, b"8 octets"),
        frame::window_update(0, 4),
        frame::window_update(1, 4),
        frame::raw(0xfa, 0, 1, b"unknown type"),
        frame::headers(1, &trailers("0"), true),
        frame::goaway(1, 0),
    ]
    .concat();
    exchange.runtime(&sent);
    assert_eq!(exchange.at_client(), sent);
    assert_eq!(exchange.events(), []);
    assert_eq!(exchange.pair.open_streams(), 0);
}

#[test]
fn chunks_of_one_byte_give_the_same_bytes() {
    let requests = [
        PREFACE.to_vec(),
        frame::settings(&[]),
        frame::headers(1, &request(OTHER), false),
        frame::padded_data(1, &message(300), 9, true),
    ]
    .concat();
    let mut whole = Exchange::new(Limits::default());
    whole.client(&requests);
    let mut cut = Exchange::new(Limits::default());
    for byte in &requests {
        cut.client(&[*byte]);
        assert_eq!(
            cut.pair.preface_seen(),
            cut.pair.output_len(Side::Runtime) >= 24
        );
    }
    assert_eq!(whole.at_runtime(), requests);
    assert_eq!(cut.at_runtime(), requests);
}

#[test]
fn frame_that_is_cut_short_does_not_begin_at_the_other_end() {
    let mut exchange = Exchange::connected();
    let ping = frame::raw(frame::PING, 0, 0, b"8 octets");
    let headers = frame::headers(1, &request(OTHER), false);
    exchange.client(&[&ping[..], &headers[..headers.len() - 1]].concat());
    assert_eq!(exchange.at_runtime(), ping);
    exchange.client(&headers[headers.len() - 1..]);
    assert_eq!(exchange.at_runtime(), headers);
}

#[test]
fn large_data_of_a_reply_goes_on_as_it_comes_and_nothing_within_it() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(OTHER), true));
    exchange.at_runtime();
    let begun = frame::headers(1, b"\x88", false);
    let data = frame::data(1, &[7; 1_000], true);
    exchange.runtime(&[&begun[..], &data[..300]].concat());
    assert_eq!(exchange.at_client(), [&begun[..], &data[..300]].concat());
    // Our own GOAWAY and PING, when a stop begins, have to wait for the end of the frame.
    exchange.pair.drain();
    assert_eq!(exchange.at_client(), b"");
    exchange.runtime(&data[300..999]);
    assert_eq!(exchange.at_client(), data[300..999]);
    assert_eq!(exchange.pair.open_streams(), 1);
    exchange.runtime(&data[999..]);
    let said = exchange.at_client();
    assert_eq!(said[..10], data[999..]);
    assert_eq!(
        said[10..],
        [frame::goaway(0x7fff_ffff, 0), drain_ping()].concat()
    );
    assert_eq!(exchange.pair.open_streams(), 0);
}

#[test]
fn what_waits_for_the_end_of_a_frame_does_not_keep_that_end_from_being_read() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(OTHER), true));
    let begun = frame::headers(1, b"\x88", false);
    let data = frame::data(1, &[7; 1_000], true);
    exchange.runtime(&[&begun[..], &data[..300]].concat());
    // More refusals than may wait for a client that reads; this one does.
    for stream in (0..200).map(|call| 3 + 2 * call) {
        exchange.held_call(stream, 3);
        assert!(exchange.pair.refuse(stream, 9, &"no".repeat(200)));
    }
    exchange.at_client();
    assert!(exchange.pair.wants_read(Side::Runtime));
    exchange.runtime(&data[300..]);
    let said = exchange.at_client();
    assert_eq!(said[..709], data[300..]);
    assert!(said.len() > 709 + 200 * 400);
}

#[test]
fn what_waits_for_the_runtimes_settings_does_not_keep_them_from_being_read() {
    let mut exchange = Exchange::new(Limits::default());
    exchange.client(PREFACE);
    exchange.client(&frame::settings(&[]));
    for stream in (0..200).map(|call| 1 + 2 * call) {
        exchange.held_call(stream, 3);
        assert!(exchange.pair.refuse(stream, 9, &"no".repeat(200)));
    }
    assert_eq!(exchange.at_client(), b"");
    assert!(exchange.pair.wants_read(Side::Runtime));
    exchange.runtime(&frame::settings(&[]));
    assert!(exchange.at_client().starts_with(&frame::settings(&[])));
}

#[test]
fn data_of_a_claimed_reply_is_whole_before_it_goes_on() {
    let mut exchange = Exchange::connected();
    exchange.held_call(1, 3);
    assert!(exchange.pair.release(1));
    exchange.at_runtime();
    exchange.runtime(&frame::headers(1, b"\x88", false));
    exchange.at_client();
    let data = frame::data(1, &message(100), false);
    exchange.runtime(&data[..50]);
    assert_eq!(exchange.at_client(), b"");
    exchange.runtime(&data[50..]);
    assert_eq!(exchange.at_client(), data);
}

#[test]
fn what_passes_is_given_back_uncopied_and_what_is_said_on_our_own_comes_behind_it() {
    let mut exchange = Exchange::connected();
    let ping = frame::raw(frame::PING, 0, 0, b"8 octets");
    let chunk = [&frame::headers(1, &request(OTHER), true)[..], &ping].concat();
    let through = exchange.pair.feed_through(Side::Client, &chunk).unwrap();
    assert_eq!(through, chunk);
    assert_eq!(exchange.at_runtime(), b"");
    // Of this chunk 10 bytes are written, then a frame of our own is due.
    let reply = [frame::headers(1, b"\x88", false), ping.clone()].concat();
    let through = exchange.pair.feed_through(Side::Runtime, &reply).unwrap();
    assert_eq!(through, reply);
    exchange.pair.keep(Side::Client, &through[10..]);
    exchange.pair.advance(Side::Client, 0);
    exchange.pair.drain();
    let rest = [&reply[10..], &frame::goaway(0x7fff_ffff, 0), &drain_ping()].concat();
    assert_eq!(exchange.at_client(), rest);
    // A frame of our own between two that pass: the chunk is given back as far as it is in order.
    exchange.held_call(3, 3);
    assert!(exchange.pair.refuse(3, 9, "no"));
    exchange.at_client();
    exchange.at_runtime();
    let late = [ping.clone(), frame::data(3, b"late", true), ping.clone()].concat();
    let through = exchange.pair.feed_through(Side::Runtime, &late).unwrap();
    assert_eq!(through, b"");
    assert_eq!(exchange.at_client(), [&ping[..], &ping].concat());
    assert_eq!(exchange.at_runtime(), frame::window_update(0, 4));
}

#[test]
fn header_block_in_pieces_goes_on_as_one() {
    let mut exchange = Exchange::connected();
    exchange.held_call(1, 100_usize);
    let block = request(OTHER);
    let pieces = [
        frame::raw(frame::HEADERS, frame::END_STREAM, 3, &block[..4]),
        frame::raw(frame::CONTINUATION, 0, 3, b""),
        frame::raw(frame::CONTINUATION, 0, 3, &block[4..9]),
        frame::raw(frame::CONTINUATION, frame::END_HEADERS, 3, &block[9..]),
    ];
    exchange.client(&pieces[..3].concat());
    // The released message comes at a moment when a block is open.
    assert!(exchange.pair.release(1));
    let held = frame::data(1, &message(100), true);
    assert_eq!(exchange.at_runtime(), held);
    exchange.client(&pieces[3]);
    assert_eq!(exchange.at_runtime(), pieces.concat());
}

#[test]
fn trailers_of_64_kib_pass() {
    trailers_pass(64 << 10);
}

#[test]
fn trailers_of_a_megabyte_pass() {
    // Less the heads of the frames that they come in.
    trailers_pass((1 << 20) - 1_024);
}

fn trailers_pass(length: usize) {
    let mut exchange = Exchange::connected();
    exchange.held_call(1, 3);
    assert!(exchange.pair.release(1));
    let mut block = trailers("5");
    let details = vec![b'x'; length];
    write_literal(&mut block, b"grpc-status-details-bin", &details, false);
    let mut sent = frame::raw(frame::HEADERS, frame::END_STREAM, 1, &block[..16_384]);
    let rest: Vec<_> = block[16_384..].chunks(16_384).collect();
    for (at, piece) in rest.iter().enumerate() {
        let last = at + 1 == rest.len();
        let flags = if last { frame::END_HEADERS } else { 0 };
        sent.extend_from_slice(&frame::raw(frame::CONTINUATION, flags, 1, piece));
    }
    exchange.runtime(&sent);
    assert_eq!(exchange.at_client(), sent);
    let response = Event::Response {
        stream: 1,
        tag: TAG,
        grpc_status: Some(5),
        message: None,
    };
    assert_eq!(exchange.events(), [response]);
}

#[test]
fn reading_pauses_at_64_kib_and_before_the_runtime_is_there() {
    let mut exchange = Exchange::new(Limits::default());
    assert!(!exchange.pair.preface_seen());
    exchange.client(PREFACE);
    assert!(exchange.pair.preface_seen());
    exchange.client(&frame::settings(&[]));
    exchange.client(&frame::headers(1, &request(OTHER), false));
    for piece in data_frames(1, &[0; 65_000], false) {
        assert!(exchange.pair.wants_read(Side::Client));
        exchange.client(&piece);
    }
    exchange.client(&frame::data(1, &[0; 535], false));
    assert!(!exchange.pair.wants_read(Side::Client));
    assert!(exchange.pair.wants_read(Side::Runtime));
    exchange.pair.advance(Side::Runtime, 1_000);
    assert!(exchange.pair.wants_read(Side::Client));
}

// --- What is held ---

#[test]
fn claimed_message_is_held_until_released_and_may_grow() {
    let mut exchange = Exchange::connected();
    let mut block = request(CLAIMED);
    write_literal(&mut block, b"grpc-timeout", b"3S", false);
    let headers = frame::headers(1, &block, false);
    exchange.client(&headers);
    exchange.client(&frame::data(1, &message(3), true));
    assert_eq!(exchange.at_runtime(), headers);
    let timeout = Some(Duration::from_secs(3));
    let event = Event::Request {
        stream: 1,
        tag: TAG,
        timeout,
    };
    assert_eq!(exchange.events(), [event]);
    assert_eq!(exchange.pair.held(1), Some(&b"mmm"[..]));
    assert_eq!(exchange.pair.held_bytes(), 8);
    assert_eq!(exchange.pair.release_with(1, b"PATCH"), Released::Patched);
    assert!(!exchange.pair.release(1));
    assert_eq!(exchange.pair.release_with(1, b"PATCH"), Released::Gone);
    assert!(!exchange.pair.refuse(1, 9, ""));
    assert_eq!(
        exchange.at_runtime(),
        frame::data(1, b"\x00\x00\x00\x00\x08mmmPATCH", true)
    );
    assert_eq!(exchange.pair.held_bytes(), 0);
    assert_eq!(exchange.at_client(), b"");
}

#[test]
fn reply_of_a_claimed_call_is_forwarded_and_told() {
    let mut exchange = Exchange::connected();
    exchange.held_call(1, 3);
    assert!(exchange.pair.release(1));
    let reply = [
        frame::headers(1, b"\x88", false),
        frame::padded_data(1, b"\x00\x00\x00\x00\x02o", 30, false),
        frame::data(1, b"k", false),
        frame::headers(1, &trailers("0"), true),
    ]
    .concat();
    exchange.runtime(&reply);
    assert_eq!(exchange.at_client(), reply);
    let response = Event::Response {
        stream: 1,
        tag: TAG,
        grpc_status: Some(0),
        message: Some(b"ok".to_vec()),
    };
    assert_eq!(exchange.events(), [response]);
    assert_eq!(exchange.pair.open_streams(), 0);
}

#[test]
fn end_of_the_stream_may_come_after_the_release() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(CLAIMED), false));
    exchange.client(&frame::data(1, &message(0), false));
    assert_eq!(exchange.events(), [request_event(1)]);
    exchange.at_runtime();
    assert_eq!(exchange.pair.held(1), Some(&b""[..]));
    assert_eq!(exchange.pair.release_with(1, b"abc"), Released::Patched);
    let released = frame::data(1, b"\x00\x00\x00\x00\x03abc", false);
    assert_eq!(exchange.at_runtime(), released);
    let end = frame::data(1, b"", true);
    exchange.client(&end);
    assert_eq!(exchange.at_runtime(), end);
}

#[test]
fn padding_of_held_data_is_dropped_and_given_back() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(CLAIMED), false));
    exchange.at_runtime();
    exchange.client(&frame::padded_data(1, &message(4), 99, true));
    assert_eq!(exchange.at_client(), frame::window_update(0, 100));
    assert!(exchange.pair.release(1));
    assert_eq!(exchange.at_runtime(), frame::data(1, &message(4), true));
}

#[test]
fn bodies_that_are_not_one_plain_message_pass_unopened() {
    let compressed = b"\x01\x00\x00\x00\x02zz".to_vec();
    let odd_flag = b"\x02\x00\x00\x00\x02zz".to_vec();
    let two_gib = b"\x00\x80\x00\x00\x00some".to_vec();
    let second = [message(1), message(2)].concat();
    let cases = [
        (compressed, Unopened::Compressed),
        (odd_flag, Unopened::Malformed),
        (two_gib, Unopened::TooLarge),
        (second, Unopened::SecondMessage),
        (b"\x00\x00\x00\x00\x05four".to_vec(), Unopened::Malformed),
        (b"\x00\x00".to_vec(), Unopened::Malformed),
    ];
    for (body, reason) in cases {
        let mut exchange = Exchange::connected();
        exchange.client(&frame::headers(1, &request(CLAIMED), false));
        exchange.at_runtime();
        let sent = frame::data(1, &body, true);
        exchange.client(&sent);
        assert_eq!(exchange.at_runtime(), sent);
        let event = Event::Unopened {
            stream: 1,
            tag: TAG,
            reason,
        };
        assert_eq!(exchange.events(), [event]);
        assert!(!exchange.pair.release(1));
        assert_eq!(exchange.pair.held_bytes(), 0);
    }
}

#[test]
fn claimed_request_without_a_body_passes_unopened() {
    let mut exchange = Exchange::connected();
    let sent = frame::headers(1, &request(CLAIMED), true);
    exchange.client(&sent);
    assert_eq!(exchange.at_runtime(), sent);
    let event = Event::Unopened {
        stream: 1,
        tag: TAG,
        reason: Unopened::Malformed,
    };
    assert_eq!(exchange.events(), [event]);
}

#[test]
fn a_path_is_claimed_without_its_slash_too_and_goes_on_as_it_came() {
    let mut exchange = Exchange::connected();
    let without = request(CLAIMED.strip_prefix('/').unwrap());
    let sent = frame::headers(1, &without, false);
    exchange.client(&sent);
    assert_eq!(exchange.at_runtime(), sent);
    exchange.client(&frame::data(1, &message(3), true));
    assert_eq!(exchange.events(), [request_event(1)]);
    assert_eq!(exchange.at_runtime(), b"");
}

#[test]
fn second_message_before_the_answer_takes_the_first_along() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(CLAIMED), false));
    exchange.client(&frame::data(1, &message(1), false));
    exchange.at_runtime();
    exchange.client(&frame::data(1, &message(2), true));
    let both = [message(1), message(2)].concat();
    assert_eq!(exchange.at_runtime(), frame::data(1, &both, true));
    let unopened = Event::Unopened {
        stream: 1,
        tag: TAG,
        reason: Unopened::SecondMessage,
    };
    assert_eq!(exchange.events(), [request_event(1), unopened]);
    assert_eq!(exchange.pair.release_with(1, b"late"), Released::Gone);
}

#[test]
fn patch_over_the_limit_is_left_out() {
    let limits = Limits {
        max_message: 10,
        ..Limits::default()
    };
    let mut exchange = Exchange::with(limits, &[], &[]);
    exchange.held_call(1, 8);
    assert_eq!(exchange.pair.release_with(1, b"123"), Released::AsItCame);
    assert_eq!(exchange.at_runtime(), frame::data(1, &message(8), true));
}

#[test]
fn two_thousand_calls_are_held_at_once() {
    let mut exchange = Exchange::with_settings(&[], &[]);
    exchange.runtime(&frame::window_update(0, 1 << 20));
    exchange.at_client();
    let streams: Vec<u32> = (0..2_000).map(|call| 2 * call + 1).collect();
    for stream in &streams {
        exchange.held_call(*stream, 100);
    }
    assert_eq!(exchange.pair.open_streams(), 2_000);
    assert_eq!(exchange.pair.held_bytes(), 2_000 * 105);
    for stream in streams.iter().rev() {
        let released = exchange.pair.release_with(*stream, b"!");
        assert_eq!(released, Released::Patched);
        let patched = [&message(101)[..105], b"!"].concat();
        assert_eq!(exchange.at_runtime(), frame::data(*stream, &patched, true));
        exchange.runtime(&frame::headers(*stream, &trailers("0"), true));
    }
    assert_eq!(exchange.pair.open_streams(), 0);
    assert_eq!(exchange.pair.held_bytes(), 0);
}

#[test]
fn content_length_of_a_claimed_request_is_taken_out() {
    let mut exchange = Exchange::connected();
    // Indexed fields, so that what follows depends on the table.
    let mut block = b"\x83\x86\x44".to_vec();
    block.push(u8::try_from(CLAIMED.len()).unwrap());
    block.extend_from_slice(CLAIMED.as_bytes());
    block.extend_from_slice(b"\x10\x06secret\x01s\x5c\x018");
    exchange.client(&frame::headers(1, &block, false));
    let mut anew = Vec::new();
    literal(&mut anew, b":method", b"POST", false);
    literal(&mut anew, b":scheme", b"http", false);
    literal(&mut anew, b":path", CLAIMED.as_bytes(), false);
    literal(&mut anew, b"secret", b"s", true);
    assert_eq!(exchange.at_runtime(), frame::headers(1, &anew, false));

    // From here on the runtime's table is not the one that the client means: 62 is the length.
    exchange.client(&frame::headers(
        3,
        b"\x20\x83\x86\x04\x02/o\x0f\x0d\x012",
        false,
    ));
    let mut anew = b"\x20".to_vec();
    literal(&mut anew, b":method", b"POST", false);
    literal(&mut anew, b":scheme", b"http", false);
    literal(&mut anew, b":path", b"/o", false);
    literal(&mut anew, b"content-length", b"2", false);
    assert_eq!(exchange.at_runtime(), frame::headers(3, &anew, false));
    assert_eq!(exchange.pair.take_counters().reencoded, 2);
    assert_eq!(exchange.pair.take_counters(), Counters::default());
}

// --- What ends early ---

#[test]
fn reset_of_either_end_drops_what_is_held_and_gives_it_back() {
    for by in [Side::Client, Side::Runtime] {
        let mut exchange = Exchange::connected();
        exchange.held_call(1, 1_000);
        let reset = frame::rst(1, 8);
        exchange.pair.feed(by, &reset).unwrap();
        let (passed, credit) = match by {
            Side::Client => (exchange.at_runtime(), exchange.at_client()),
            Side::Runtime => {
                let at_client = exchange.at_client();
                assert_eq!(exchange.at_runtime(), b"");
                (at_client[..13].to_vec(), at_client[13..].to_vec())
            }
        };
        assert_eq!(passed, reset);
        assert_eq!(credit, frame::window_update(0, 1_005));
        let gone = Event::Gone {
            stream: 1,
            tag: TAG,
            by,
        };
        assert_eq!(exchange.events(), [gone]);
        assert!(!exchange.pair.release(1));
        assert_eq!(exchange.pair.open_streams(), 0);
    }
}

#[test]
fn data_on_a_stream_that_the_runtime_reset_is_given_back() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(OTHER), false));
    exchange.runtime(&frame::rst(1, 0));
    exchange.at_client();
    exchange.at_runtime();
    exchange.client(&frame::data(1, b"late", true));
    assert_eq!(exchange.at_runtime(), b"");
    assert_eq!(exchange.at_client(), frame::window_update(0, 4));
}

#[test]
fn early_reply_ends_the_call_at_both_ends() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(CLAIMED), false));
    exchange.client(&frame::data(1, b"\x00\x00\x00\x00\x09part", false));
    exchange.at_runtime();
    let reply = frame::headers(1, &trailers("16"), true);
    exchange.runtime(&reply);
    let at_client = [reply, frame::rst(1, 0), frame::window_update(0, 9)].concat();
    assert_eq!(exchange.at_client(), at_client);
    assert_eq!(exchange.at_runtime(), frame::rst(1, 8));
    // What was on its way goes nowhere.
    exchange.runtime(&frame::rst(1, 0));
    exchange.client(&frame::data(1, b"rest!", true));
    exchange.client(&frame::rst(1, 8));
    assert_eq!(exchange.at_client(), frame::window_update(0, 5));
    assert_eq!(exchange.at_runtime(), b"");
    let response = Event::Response {
        stream: 1,
        tag: TAG,
        grpc_status: Some(16),
        message: None,
    };
    assert_eq!(exchange.events(), [response]);
}

#[test]
fn an_announcement_is_to_be_waited_for_from_its_headers_until_it_goes_on_or_ends() {
    let announced = |message: &[u8]| {
        let claims = Claims::new([(CLAIMED, TAG), (OTHER, Tag(8))]).with_announcement(TAG);
        let pair = Pair::new(claims, Limits::default());
        let mut exchange = Exchange { pair };
        exchange.client(&[PREFACE, &frame::settings(&[])].concat());
        exchange.runtime(&frame::settings(&[]));
        // Another claimed call is none.
        exchange.client(&frame::headers(1, &request(OTHER), false));
        assert!(!exchange.pair.has_announcement());
        exchange.client(&frame::headers(3, &request(CLAIMED), false));
        assert!(exchange.pair.has_announcement());
        assert_eq!(exchange.pair.last_partial_announcement(), Some(3));
        exchange.client(&frame::data(3, message, false));
        assert!(exchange.pair.has_announcement());
        exchange
    };
    let ends: [fn(&mut Exchange); 6] = [
        |exchange| assert!(exchange.pair.release(3)),
        |exchange| assert!(exchange.pair.refuse(3, 9, "no")),
        |exchange| exchange.client(&frame::rst(3, 8)),
        |exchange| exchange.runtime(&frame::rst(3, 0)),
        |exchange| exchange.client(&frame::data(3, &message(1), false)),
        |exchange| exchange.runtime(&frame::goaway(1, 0)),
    ];
    for end in ends {
        let mut exchange = announced(&message(10));
        assert_eq!(exchange.pair.last_partial_announcement(), None);
        end(&mut exchange);
        assert!(!exchange.pair.has_announcement());
    }
    // There is no room for the rest, or it takes too long, or is not to come.
    let no_rest: [fn(&mut Exchange); 4] = [
        |exchange| exchange.pair.set_crowded(true),
        |exchange| exchange.pair.give_up_announcements(3),
        |exchange| exchange.client(&frame::data(3, b"", true)),
        |exchange| exchange.client(&frame::rst(3, 8)),
    ];
    for end in no_rest {
        let mut exchange = announced(&message(10)[..7]);
        end(&mut exchange);
        assert!(!exchange.pair.has_announcement());
        assert_eq!(exchange.pair.last_partial_announcement(), None);
    }
    // What is whole is decided about.
    let mut exchange = announced(&message(10));
    exchange.pair.give_up_announcements(3);
    assert!(exchange.pair.has_announcement());
}

#[test]
fn of_announcements_that_are_late_those_go_on_that_began_no_later() {
    let claims = Claims::new([(CLAIMED, TAG)]).with_announcement(TAG);
    let mut exchange = Exchange {
        pair: Pair::new(claims, Limits::default()),
    };
    exchange.client(&[PREFACE, &frame::settings(&[])].concat());
    exchange.runtime(&frame::settings(&[]));
    for stream in [1, 3, 5] {
        exchange.client(&frame::headers(stream, &request(CLAIMED), false));
    }
    exchange.client(&frame::data(1, &message(10), false));
    exchange.pair.give_up_announcements(3);
    let late = Event::Unopened {
        stream: 3,
        tag: TAG,
        reason: Unopened::Late,
    };
    let events = exchange.events();
    assert_eq!(events[1..], [late], "{events:?}");
    assert_eq!(exchange.pair.last_partial_announcement(), Some(5));
    exchange.client(&frame::data(5, &message(10), false));
    assert_eq!(exchange.pair.last_partial_announcement(), None);
    for stream in [1, 5] {
        assert!(exchange.pair.has_announcement());
        assert!(exchange.pair.release(stream));
    }
    assert!(!exchange.pair.has_announcement());
}

// --- What we say ourselves ---

fn refusal(status: &str, message: &str) -> Vec<u8> {
    let mut block = b"\x88".to_vec();
    literal(&mut block, b"content-type", b"application/grpc", false);
    literal(&mut block, b"grpc-status", status.as_bytes(), false);
    literal(&mut block, b"grpc-message", message.as_bytes(), false);
    block
}

#[test]
fn refusal_answers_the_client_and_cancels_at_the_runtime() {
    let mut exchange = Exchange::connected();
    exchange.held_call(1, 10);
    assert!(exchange.pair.refuse(1, 9, "no: 100 %"));
    let reply = frame::headers(1, &refusal("9", "no: 100 %25"), true);
    let credit = frame::window_update(0, 15);
    assert_eq!(exchange.at_client(), [reply, credit].concat());
    assert_eq!(exchange.at_runtime(), frame::rst(1, 8));
    assert_eq!(exchange.events(), []);
    assert_eq!(exchange.pair.open_streams(), 0);
}

#[test]
fn refusal_before_the_end_of_the_request_asks_the_client_to_stop() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(CLAIMED), false));
    exchange.client(&frame::data(1, &message(1), false));
    assert!(exchange.pair.refuse(1, 9, "x"));
    let reply = frame::headers(1, &refusal("9", "x"), true);
    let expected = [reply, frame::rst(1, 0), frame::window_update(0, 6)].concat();
    assert_eq!(exchange.at_client(), expected);
    exchange.client(&frame::window_update(1, 5));
    exchange.client(&frame::data(1, b"late", true));
    assert_eq!(exchange.at_client(), frame::window_update(0, 4));
}

#[test]
fn refusal_waits_for_the_settings_of_the_runtime() {
    let mut exchange = Exchange::new(Limits::default());
    exchange.client(PREFACE);
    exchange.client(&frame::settings(&[]));
    exchange.held_call(1, 10);
    assert!(exchange.pair.refuse(1, 14, "x"));
    assert_eq!(exchange.at_client(), b"");
    let settings = frame::settings(&[]);
    exchange.runtime(&settings);
    let reply = frame::headers(1, &refusal("14", "x"), true);
    let expected = [settings, reply, frame::window_update(0, 15)].concat();
    assert_eq!(exchange.at_client(), expected);
}

#[test]
fn late_reply_to_a_refused_call_is_swallowed_and_later_ones_stay_readable() {
    let mut exchange = Exchange::connected();
    exchange.held_call(1, 10);
    exchange.client(&frame::headers(3, &request(OTHER), true));
    assert!(exchange.pair.refuse(1, 9, "x"));
    exchange.at_client();
    exchange.at_runtime();
    // The reply that was on its way shrinks the table and puts `a: b` into it.
    let late = b"\x3f\x45\x3f\x81\x01\x88\x40\x01a\x01b";
    exchange.runtime(&frame::headers(1, late, false));
    exchange.runtime(&frame::data(1, b"1234567", false));
    exchange.runtime(&frame::window_update(1, 7));
    exchange.runtime(&frame::headers(1, &trailers("0"), true));
    assert_eq!(exchange.at_client(), b"");
    assert_eq!(exchange.at_runtime(), frame::window_update(0, 7));
    // The next reply refers to that entry.
    exchange.runtime(&frame::headers(3, b"\x88\xbe", true));
    let mut anew = b"\x3f\x45\x3f\x81\x01".to_vec();
    literal(&mut anew, b":status", b"200", false);
    literal(&mut anew, b"a", b"b", false);
    assert_eq!(exchange.at_client(), frame::headers(3, &anew, true));
    assert_eq!(exchange.events(), []);
}

#[test]
fn our_own_reply_says_which_size_a_swallowed_one_has_given_the_table() {
    let mut exchange = Exchange::connected();
    for call in [1, 3, 5] {
        exchange.held_call(call, 10);
    }
    assert!(exchange.pair.refuse(1, 9, "x"));
    exchange.at_client();
    // To 100, and to 160.
    let resizes = b"\x3f\x45\x3f\x81\x01";
    let late = [&resizes[..], b"\x88"].concat();
    exchange.runtime(&frame::headers(1, &late, true));
    for (call, resizes) in [(3, &resizes[..]), (5, b"")] {
        assert!(exchange.pair.refuse(call, 9, "x"));
        let block = [resizes, &refusal("9", "x")].concat();
        let expected = [
            frame::headers(call, &block, true),
            frame::window_update(0, 15),
        ];
        assert_eq!(exchange.at_client(), expected.concat());
    }
}

#[test]
fn trailers_that_crossed_the_end_of_their_stream_are_none_of_the_runtimes_table() {
    // Literal with indexing, "x: y".
    let late = b"\x40\x01x\x01y";
    for is_ours in [false, true] {
        let mut exchange = Exchange::connected();
        exchange.client(&frame::headers(1, &request(CLAIMED), false));
        exchange.client(&frame::headers(3, &request(OTHER), false));
        if is_ours {
            exchange.client(&frame::data(1, &message(1), false));
            assert!(exchange.pair.refuse(1, 9, "x"));
        } else {
            exchange.runtime(&frame::rst(1, 8));
        }
        exchange.at_runtime();
        exchange.client(&frame::headers(1, late, true));
        assert_eq!(exchange.at_runtime(), b"", "{is_ours}");
        // It refers to that.
        exchange.client(&frame::headers(3, b"\xbe", true));
        let anew = frame::headers(3, b"\x00\x01x\x01y", true);
        assert_eq!(exchange.at_runtime(), anew, "{is_ours}");
    }
}

#[test]
fn refusal_after_the_reply_began_comes_as_trailers() {
    let mut exchange = Exchange::connected();
    exchange.held_call(1, 10);
    exchange.runtime(&frame::headers(1, b"\x88", false));
    exchange.at_client();
    assert!(exchange.pair.refuse(1, 9, ""));
    let expected = [
        frame::headers(1, &trailers("9"), true),
        frame::window_update(0, 15),
    ];
    assert_eq!(exchange.at_client(), expected.concat());
}

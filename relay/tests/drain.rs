//! The graceful end, and the runtime's own.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use koord_relay::{Event, Limits, Side};
use support::exchange::{CLAIMED, ENDLESS, Exchange, OTHER, TAG, message, request, trailers};
use support::frame;

const EVERY: u32 = 0x7fff_ffff;

/// The client's acknowledgement of the PING that was sent to it.
fn acknowledgement(at_client: &[u8]) -> Vec<u8> {
    let frames = frame::parse(at_client);
    let ping = frames.iter().find(|frame| frame.kind == frame::PING);
    frame::raw(frame::PING, frame::ACK, 0, &ping.unwrap().payload)
}

#[test]
fn drain_lets_calls_finish_and_takes_no_new_ones() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(OTHER), true));
    exchange.pair.drain();
    exchange.pair.drain();
    let told = exchange.at_client();
    let frames = frame::parse(&told);
    assert_eq!(told[..17], frame::goaway(EVERY, 0));
    assert_eq!((frames.len(), frames[1].kind), (2, frame::PING));
    // A call that was on its way still counts.
    exchange.client(&frame::headers(3, &request(OTHER), true));
    exchange.at_runtime();
    exchange.client(&acknowledgement(&told));
    assert_eq!(exchange.at_runtime(), b"", "the runtime did not ask");
    assert_eq!(exchange.at_client(), frame::goaway(3, 0));
    assert!(!exchange.pair.is_drained());
    exchange.runtime(&frame::headers(1, &trailers("0"), true));
    exchange.runtime(&frame::headers(3, &trailers("0"), true));
    assert!(!exchange.pair.is_drained(), "the replies are not written");
    exchange.at_client();
    assert!(exchange.pair.is_drained());
}

#[test]
fn a_stream_that_crossed_the_last_goaway_is_dropped_and_no_other_for_it() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(OTHER), false));
    exchange.pair.drain();
    let told = exchange.at_client();
    exchange.client(&acknowledgement(&told));
    assert_eq!(exchange.at_client(), frame::goaway(1, 0));
    exchange.at_runtime();

    // The library had it ready, and wrote the acknowledgement first.
    exchange.client(&frame::headers(3, &request(OTHER), false));
    exchange.client(&frame::data(3, b"a message", true));
    assert_eq!(exchange.at_runtime(), b"");
    assert!(!exchange.pair.is_drained(), "a call is open");
    // The call in flight goes on, and its end comes.
    exchange.client(&frame::data(1, b"more", true));
    assert_eq!(exchange.at_runtime(), frame::data(1, b"more", true));
    exchange.runtime(&frame::headers(1, &trailers("0"), true));
    exchange.at_client();
    assert!(exchange.pair.is_drained());
}

#[test]
fn headers_of_a_dropped_stream_are_none_of_the_runtimes_table() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(OTHER), false));
    exchange.pair.drain();
    let told = exchange.at_client();
    exchange.client(&acknowledgement(&told));
    exchange.at_runtime();

    // Literal with indexing, "x: y"; then trailers of the other stream that refer to it (62).
    exchange.client(&frame::headers(3, b"\x40\x01x\x01y", true));
    exchange.client(&frame::headers(1, b"\xbe", true));
    assert_eq!(
        exchange.at_runtime(),
        frame::headers(1, b"\x00\x01x\x01y", true)
    );
}

#[test]
fn drain_waits_for_calls_and_not_for_endless_streams() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(ENDLESS), true));
    exchange.client(&frame::headers(3, &request(OTHER), true));
    // One that is claimed as well is a call like every other.
    exchange.held_call(5, 10);
    exchange.pair.drain();
    let told = exchange.at_client();
    exchange.client(&acknowledgement(&told));
    assert_eq!(exchange.at_client(), frame::goaway(5, 0));
    exchange.runtime(&frame::headers(3, &trailers("0"), true));
    exchange.at_client();
    assert!(!exchange.pair.is_drained());
    assert!(exchange.pair.refuse(5, 9, "no"));
    assert!(!exchange.pair.is_drained(), "the refusal is not written");
    exchange.at_client();
    assert_eq!(exchange.pair.open_streams(), 1);
    assert!(exchange.pair.is_drained());
    // Until somebody closes the connection it goes on.
    let event = frame::data(1, &message(3), false);
    exchange.runtime(&event);
    assert!(!exchange.pair.is_drained(), "the event is not written");
    assert_eq!(exchange.at_client(), event);
}

#[test]
fn drain_before_the_runtime_speaks_waits_for_its_settings() {
    let mut exchange = Exchange::new(Limits::default());
    exchange.client(frame::PREFACE);
    exchange.client(&frame::settings(&[]));
    exchange.client(&frame::headers(1, &request(OTHER), true));
    exchange.pair.drain();
    assert!(!exchange.pair.is_drained());
    assert_eq!(exchange.at_client(), b"");
    let settings = frame::settings(&[]);
    exchange.runtime(&settings);
    let told = exchange.at_client();
    assert_eq!(told[..9], settings);
    assert_eq!(told[9..26], frame::goaway(EVERY, 0));
}

#[test]
fn drain_of_a_silent_connection_waits_for_its_client_alone() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(OTHER), true));
    assert_eq!(exchange.pair.awaits_alone(), None);
    exchange.pair.drain();
    assert_eq!(exchange.pair.awaits_alone(), None, "a call is open");
    exchange.runtime(&frame::headers(1, &trailers("0"), true));
    assert_eq!(exchange.pair.awaits_alone(), Some(Side::Client));
    assert!(!exchange.pair.is_drained());
    // It has heard; the last GOAWAY is written, and then nothing is awaited.
    let told = exchange.at_client();
    exchange.client(&acknowledgement(&told));
    assert_eq!(exchange.pair.awaits_alone(), Some(Side::Client));
    exchange.at_client();
    assert!(exchange.pair.is_drained());
    assert_eq!(exchange.pair.awaits_alone(), None);
}

#[test]
fn who_has_just_connected_is_told_to_go_once_the_runtime_has_spoken() {
    let mut exchange = Exchange::new(Limits::default());
    exchange.client(frame::PREFACE);
    exchange.client(&frame::settings(&[]));
    exchange.pair.drain();
    assert!(!exchange.pair.is_drained(), "it would meet a closed door");
    assert_eq!(exchange.pair.awaits_alone(), Some(Side::Runtime));
    exchange.runtime(&frame::settings(&[]));
    let told = exchange.at_client();
    assert_eq!(told[9..26], frame::goaway(EVERY, 0));
    assert_eq!(exchange.pair.awaits_alone(), Some(Side::Client));
    exchange.client(&acknowledgement(&told));
    assert_eq!(exchange.at_client(), frame::goaway(0, 0));
    assert!(exchange.pair.is_drained());
}

#[test]
fn who_has_connected_and_said_nothing_yet_is_told_to_go_once_it_does() {
    let mut exchange = Exchange::new(Limits::default());
    exchange.pair.drain();
    assert!(!exchange.pair.is_drained(), "it would meet a closed door");
    assert_eq!(exchange.pair.awaits_alone(), Some(Side::Runtime));
    exchange.client(frame::PREFACE);
    exchange.client(&frame::settings(&[]));
    exchange.runtime(&frame::settings(&[]));
    let told = exchange.at_client();
    assert_eq!(told[9..26], frame::goaway(EVERY, 0));
    assert_eq!(exchange.pair.awaits_alone(), Some(Side::Client));
}

#[test]
fn no_goaway_names_a_higher_stream_than_one_before() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(OTHER), true));
    exchange.client(&frame::headers(3, &request(OTHER), true));
    let refused = frame::goaway(1, 0);
    exchange.runtime(&refused);
    assert_eq!(exchange.at_client(), refused);
    exchange.pair.drain();
    let told = exchange.at_client();
    assert_eq!(told[..17], frame::goaway(1, 0));
    exchange.client(&acknowledgement(&told));
    assert_eq!(exchange.at_client(), frame::goaway(1, 0));
    exchange.runtime(&frame::goaway(EVERY, 7));
    assert_eq!(exchange.at_client(), frame::goaway(1, 7));
}

#[test]
fn ping_of_somebody_else_is_not_ours() {
    let mut exchange = Exchange::connected();
    exchange.pair.drain();
    let told = exchange.at_client();
    let other = frame::raw(frame::PING, frame::ACK, 0, b"8 octets");
    exchange.client(&other);
    assert_eq!(exchange.at_runtime(), other);
    let ours = acknowledgement(&told);
    exchange.client(&ours);
    exchange.client(&ours);
    assert_eq!(exchange.at_runtime(), ours, "one of them was ours");
}

#[test]
fn calls_that_the_runtimes_goaway_leaves_out_are_gone() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(OTHER), true));
    exchange.held_call(3, 10);
    exchange.runtime(&frame::goaway(EVERY, 0));
    exchange.at_client();
    assert_eq!(exchange.events(), []);
    let last = frame::goaway(1, 0);
    exchange.runtime(&last);
    let credit = frame::window_update(0, 15);
    assert_eq!(exchange.at_client(), [last, credit].concat());
    let gone = Event::Gone {
        stream: 3,
        tag: TAG,
        by: Side::Runtime,
    };
    assert_eq!(exchange.events(), [gone]);
    assert_eq!(exchange.pair.open_streams(), 1);
    // This one crossed the GOAWAY. Its headers pass, for the sake of the table; the rest is dropped.
    let crossed = frame::headers(5, &request(CLAIMED), false);
    exchange.client(&crossed);
    exchange.client(&frame::data(5, &message(10), true));
    assert_eq!(exchange.at_runtime(), crossed);
    assert_eq!(exchange.at_client(), frame::window_update(0, 15));
    assert_eq!(exchange.events(), []);
    exchange.runtime(&frame::headers(1, &trailers("0"), true));
    assert_eq!(exchange.pair.open_streams(), 0);
}

//! Flow control, frame by frame: what the client is granted and when, and how held bytes go on.

#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use koord_relay::{Event, Released};
use support::exchange::{CLAIMED, Exchange, OTHER, data_frames, message, request, request_event};
use support::frame;

const INITIAL_WINDOW_SIZE: u16 = 4;

/// The client sends a message of `length` bytes, all but its last `short` bytes.
fn begin(exchange: &mut Exchange, stream: u32, length: usize, short: usize) {
    let message = message(length);
    exchange.client(&frame::headers(stream, &request(CLAIMED), false));
    for piece in data_frames(stream, &message[..message.len() - short], false) {
        exchange.client(&piece);
    }
    exchange.at_runtime();
}

#[test]
fn message_within_the_window_costs_no_frame() {
    let mut exchange = Exchange::connected();
    exchange.held_call(1, 65_530);
    assert_eq!(exchange.at_client(), b"");
}

#[test]
fn message_over_the_window_is_lent_the_difference_once_it_has_a_slot() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(CLAIMED), false));
    exchange.client(&frame::data(1, &message(100_000)[..5], false));
    assert_eq!(exchange.at_client(), b"");
    assert_eq!(exchange.events(), [Event::SlotWanted { stream: 1 }]);
    assert!(exchange.pair.grant_slot(1));
    assert!(!exchange.pair.grant_slot(1));
    // 100,000 are missing, the client has 65,530 on both windows.
    let lent = [
        frame::window_update(1, 34_470),
        frame::window_update(0, 34_470),
    ];
    assert_eq!(exchange.at_client(), lent.concat());
    for piece in data_frames(1, &message(100_000)[5..], true) {
        exchange.client(&piece);
    }
    assert_eq!(exchange.events(), [request_event(1)]);
    assert_eq!(exchange.pair.held_bytes(), 100_005);

    // The runtime's window takes 65,535; the slot is free when the rest is through as well.
    exchange.at_runtime();
    assert!(exchange.pair.release(1));
    let sent = frame::parse(&exchange.at_runtime());
    let lengths: Vec<usize> = sent.iter().map(|frame| frame.payload.len()).collect();
    assert_eq!(lengths, [16_384, 16_384, 16_384, 16_383]);
    assert_eq!(exchange.events(), []);
    exchange.runtime(&frame::window_update(0, 65_535));
    assert_eq!(exchange.at_runtime(), b"");
    exchange.runtime(&frame::window_update(1, 65_535));
    let sent = frame::parse(&exchange.at_runtime());
    let lengths: Vec<usize> = sent.iter().map(|frame| frame.payload.len()).collect();
    assert_eq!(lengths, [16_384, 16_384, 1_702]);
    assert_eq!(sent[2].flags, frame::END_STREAM);
    assert_eq!(exchange.events(), [Event::SlotFreed { stream: 1 }]);
    // All that was lent is back: the client has what the runtime has.
    assert_eq!(exchange.at_client(), frame::window_update(0, 31_065));
}

#[test]
fn slot_of_a_stream_that_is_gone_is_free() {
    let mut exchange = Exchange::connected();
    begin(&mut exchange, 1, 100_000, 90_000);
    begin(&mut exchange, 3, 100_000, 100_000);
    exchange.events();
    assert!(exchange.pair.grant_slot(1));
    exchange.client(&frame::rst(1, 8));
    let freed = Event::SlotFreed { stream: 1 };
    assert_eq!(exchange.events()[0], freed);
    assert!(!exchange.pair.grant_slot(1));
    assert!(exchange.pair.grant_slot(3));
    assert!(exchange.pair.refuse(3, 8, "too slow"));
    assert_eq!(exchange.events(), [Event::SlotFreed { stream: 3 }]);
}

#[test]
fn slot_that_a_stream_wanted_is_not_needed_when_it_is_gone() {
    let mut exchange = Exchange::connected();
    begin(&mut exchange, 1, 100_000, 90_000);
    assert_eq!(exchange.events(), [Event::SlotWanted { stream: 1 }]);
    exchange.client(&frame::rst(1, 8));
    let freed = Event::SlotFreed { stream: 1 };
    assert_eq!(exchange.events()[0], freed);
    assert!(!exchange.pair.grant_slot(1));
}

#[test]
fn headway_of_a_request_shows_as_it_arrives_and_as_it_goes_on() {
    let mut exchange = Exchange::connected();
    assert_eq!(exchange.pair.queued(1), 0);
    begin(&mut exchange, 1, 100_000, 90_000);
    assert_eq!(exchange.pair.queued(1), 10_005);
    assert!(exchange.pair.grant_slot(1));
    for piece in data_frames(1, &[0; 90_000], true) {
        exchange.client(&piece);
    }
    assert_eq!(exchange.pair.queued(1), 100_005);
    assert!(exchange.pair.release(1));
    // The runtime's windows take 65,535.
    exchange.at_runtime();
    assert_eq!(exchange.pair.queued(1), 34_470);
    exchange.runtime(&frame::window_update(0, 65_535));
    exchange.runtime(&frame::window_update(1, 65_535));
    assert_eq!(exchange.pair.queued(1), 0);
}

#[test]
fn release_gives_up_on_a_message_that_is_still_arriving() {
    let mut exchange = Exchange::connected();
    begin(&mut exchange, 1, 100, 60);
    assert!(exchange.pair.release(1));
    assert_eq!(
        exchange.at_runtime(),
        frame::data(1, &message(100)[..45], false)
    );
    let rest = frame::data(1, &message(100)[45..], true);
    exchange.client(&rest);
    assert_eq!(exchange.at_runtime(), rest);
    assert_eq!(exchange.events(), []);
}

#[test]
fn credit_for_a_patch_stays_here() {
    let mut exchange = Exchange::connected();
    exchange.held_call(1, 95);
    let released = exchange.pair.release_with(1, &[b'+'; 50]);
    assert_eq!(released, Released::Patched);
    assert_eq!(exchange.at_client(), b"");
    // The runtime gives 150 back, of which the client sent 100.
    exchange.runtime(&frame::window_update(0, 150));
    assert_eq!(exchange.at_client(), frame::window_update(0, 100));
}

#[test]
fn a_message_that_ends_with_trailers_is_lent_nothing_more() {
    let mut exchange = Exchange::with_settings(&[], &[(INITIAL_WINDOW_SIZE, 100_000)]);
    // Another stream uses up the runtime's window.
    exchange.client(&frame::headers(1, &request(OTHER), false));
    for piece in data_frames(1, &[0; 65_535], false) {
        exchange.client(&piece);
    }
    exchange.client(&frame::headers(3, &request(CLAIMED), false));
    // For the prefix of its message.
    assert_eq!(exchange.at_client(), frame::window_update(0, 5));
    exchange.client(&frame::headers(3, b"\x00\x01a\x01b", true));
    exchange.client(&frame::data(1, &[1; 5], false));
    assert_eq!(exchange.at_client(), b"");
}

#[test]
fn other_streams_that_use_up_what_was_lent_are_lent_again() {
    let mut exchange = Exchange::with_settings(&[], &[(INITIAL_WINDOW_SIZE, 100_000)]);
    // Another stream uses up the runtime's window but for 35.
    exchange.client(&frame::headers(1, &request(OTHER), false));
    exchange.client(&frame::headers(3, &request(OTHER), false));
    for piece in data_frames(1, &[0; 65_500], false) {
        exchange.client(&piece);
    }
    exchange.at_runtime();
    // A message of 100 needs 70 more than is left.
    begin(&mut exchange, 5, 100, 100);
    assert_eq!(exchange.at_client(), frame::window_update(0, 70));
    // A third stream takes all of it: what the runtime's window allows goes on, the rest waits.
    exchange.client(&frame::data(3, &[3; 100], false));
    assert_eq!(exchange.at_client(), frame::window_update(0, 100));
    assert_eq!(exchange.at_runtime(), frame::data(3, &[3; 35], false));
    assert_eq!(exchange.pair.held_bytes(), 5 + 65);
    exchange.client(&frame::data(5, &message(100)[5..], true));
    assert_eq!(exchange.events(), [request_event(5)]);
    assert!(exchange.pair.release(5));
    assert_eq!(exchange.at_runtime(), b"");
    exchange.runtime(&frame::window_update(0, 1_000));
    let expected = [
        frame::data(3, &[3; 65], false),
        frame::data(5, &message(100), true),
    ];
    assert_eq!(exchange.at_runtime(), expected.concat());
    // The other 170 stand in for what was lent.
    assert_eq!(exchange.at_client(), frame::window_update(0, 830));
}

#[test]
fn held_messages_go_on_in_turns_of_16_384() {
    let mut turns = Vec::new();
    let mut exchange = Exchange::connected();
    exchange.held_call(1, 30_000);
    exchange.held_call(3, 20_000);
    // Nothing goes while the output is full, so both wait for their turn.
    exchange.client(&frame::headers(5, &request(OTHER), false));
    for _ in 0..70 {
        exchange.client(&frame::raw(0xfa, 0, 5, &[0; 1_000]));
    }
    assert!(exchange.pair.release(1));
    assert!(exchange.pair.release(3));
    for frame in frame::parse(&exchange.at_runtime()) {
        if frame.kind == frame::DATA {
            turns.push((frame.stream, frame.payload.len(), frame.flags));
        }
    }
    assert_eq!(
        turns,
        [
            (1, 16_384, 0),
            (3, 16_384, 0),
            (1, 13_621, 1),
            (3, 3_621, 1)
        ]
    );
}

#[test]
fn new_initial_window_counts_from_the_acknowledgement() {
    let mut exchange = Exchange::connected();
    begin(&mut exchange, 1, 80_000, 80_000);
    exchange.events();
    let settings = frame::settings(&[(INITIAL_WINDOW_SIZE, 80_000)]);
    exchange.runtime(&settings);
    assert_eq!(exchange.at_client(), settings);
    exchange.client(&frame::settings_ack());
    // 65,530 + 14,465: five short of what is missing, and the slot was asked for already.
    assert!(exchange.pair.grant_slot(1));
    let expected = [
        // The connection's share of the stream's window comes with the acknowledgement.
        frame::window_update(0, 14_465),
        frame::window_update(1, 5),
        frame::window_update(0, 5),
    ];
    assert_eq!(exchange.at_client(), expected.concat());
}

#[test]
fn a_new_initial_window_grants_nothing_on_a_stream_that_we_have_ended() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(CLAIMED), false));
    exchange.client(&frame::data(1, &message(1), false));
    assert!(exchange.pair.refuse(1, 9, "x"));
    let settings = frame::settings(&[(INITIAL_WINDOW_SIZE, 80_000)]);
    exchange.runtime(&settings);
    exchange.at_client();
    exchange.client(&frame::settings_ack());
    assert_eq!(exchange.at_client(), b"");
    let smaller = frame::settings(&[(INITIAL_WINDOW_SIZE, 10)]);
    exchange.runtime(&smaller);
    exchange.at_client();
    exchange.client(&frame::settings_ack());
    assert_eq!(exchange.at_client(), b"");
}

#[test]
fn queued_data_waits_for_a_window_that_shrank_behind_it() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(OTHER), false));
    exchange.client(&frame::headers(3, &request(OTHER), false));
    for piece in data_frames(1, &[0; 65_535], false) {
        exchange.client(&piece);
    }
    // The runtime's window is used up; a claimed message makes us lend five bytes, and another
    // stream sends them.
    exchange.client(&frame::headers(5, &request(CLAIMED), false));
    assert_eq!(exchange.at_client(), frame::window_update(0, 5));
    exchange.client(&frame::data(3, b"12345", false));
    assert_eq!(exchange.pair.held_bytes(), 5);
    exchange.at_runtime();
    // The acknowledgement overtakes them, so they have to respect what it says.
    exchange.runtime(&frame::settings(&[(INITIAL_WINDOW_SIZE, 0)]));
    exchange.client(&frame::settings_ack());
    exchange.runtime(&frame::window_update(0, 1_000));
    assert_eq!(exchange.at_runtime(), frame::settings_ack());
    exchange.runtime(&frame::window_update(3, 3));
    assert_eq!(exchange.at_runtime(), frame::data(3, b"123", false));
    exchange.runtime(&frame::window_update(3, 9));
    assert_eq!(exchange.at_runtime(), frame::data(3, b"45", false));
    assert_eq!(exchange.pair.held_bytes(), 0);
}

#[test]
fn data_ahead_of_the_acknowledgement_waits_for_it() {
    let mut exchange = Exchange::connected();
    exchange.client(&frame::headers(1, &request(OTHER), false));
    exchange.runtime(&frame::window_update(0, 100_000));
    exchange.runtime(&frame::settings(&[(INITIAL_WINDOW_SIZE, 65_540)]));
    let pieces = data_frames(1, &[0; 65_540], false);
    for piece in &pieces {
        exchange.client(piece);
    }
    // The runtime knows of 65,535, so that is what goes.
    let sent = frame::parse(&exchange.at_runtime());
    let lengths: Vec<usize> = sent[1..].iter().map(|frame| frame.payload.len()).collect();
    assert_eq!(lengths, [16_384, 16_384, 16_384, 16_383]);
    exchange.client(&frame::settings_ack());
    let rest = [frame::settings_ack(), frame::data(1, &[0; 5], false)].concat();
    assert_eq!(exchange.at_runtime(), rest);
}

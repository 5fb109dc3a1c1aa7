use super::message::{Container, CreateContainerResponse, LinuxResources, PodSandbox};
use super::plugin::Line;
use super::wire::{Message, Violation, Wire};
use super::{Generation, Manner, NriError, NriRuntime, echo};
use std::io::Write as _;
use std::os::unix::net::UnixStream;
use std::thread;
use std::time::{Duration, Instant};

/// A frame for connection `id`.
fn frame(id: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap();
    [&id.to_be_bytes()[..], &length.to_be_bytes(), payload].concat()
}

/// A message with this many bytes of body.
fn message(number: u32, kind: u8, length: usize) -> Vec<u8> {
    let head = u32::try_from(length).unwrap().to_be_bytes();
    let mut bytes = [&head[..], &number.to_be_bytes(), &[kind, 0]].concat();
    bytes.resize(10 + length, b'x');
    bytes
}

fn wire() -> Wire {
    Wire::new((4 << 20) + 10)
}

/// What these bytes come to on a fresh wire on which one question was asked.
fn read(bytes: &[u8]) -> Result<Option<Message>, Violation> {
    let mut wire = wire();
    wire.ask(b"");
    wire.feed(bytes)?;
    wire.message()
}

#[test]
fn an_answer_is_read_in_the_frames_that_go_can_read() {
    let body = vec![b'x'; 5_000];
    let whole = message(1, 2, 5_000);
    let expected = Some(Message::Answer { number: 1, body });
    for first in [10, 11, 4096] {
        let (first, rest) = whole.split_at(first);
        let bytes = [frame(1, first), frame(1, rest)].concat();
        let mut wire = wire();
        wire.ask(b"");
        // However the stream itself is cut.
        for piece in bytes.chunks(7) {
            wire.feed(piece).unwrap();
        }
        assert_eq!(wire.message().unwrap(), expected);
        assert_eq!(wire.message().unwrap(), None);
    }
}

#[test]
fn frames_that_go_cannot_read_are_violations() {
    let two = [message(1, 2, 0), message(3, 2, 0)].concat();
    let long = message(1, 2, 9_000);
    let split = |at: &[usize]| {
        let mut frames = Vec::new();
        let mut from = 0;
        for &to in at.iter().chain([&long.len()]) {
            frames.extend(frame(1, &long[from..to]));
            from = to;
        }
        frames
    };
    for (bytes, violation) in [
        (frame(0, b"x"), Violation::Connection(0)),
        (frame(3, b"x"), Violation::Connection(3)),
        (frame(1, b""), Violation::EmptyFrame),
        (
            b"\0\0\0\x01\x00\x40\x00\x0b".to_vec(),
            Violation::LargeFrame(4_194_315),
        ),
        (frame(1, &long[..9]), Violation::CutHead(9)),
        (split(&[4_097]), Violation::LargeFirstFrame(4_097)),
        (split(&[10, 5_000]), Violation::ManyFrames),
        (frame(1, &two), Violation::TwoMessages(10)),
    ] {
        assert_eq!(read(&bytes), Err(violation));
    }
}

#[test]
fn messages_that_break_the_rules_of_ttrpc_are_violations() {
    let too_large = [&b"\x00\x40\x00\x01"[..], &message(1, 2, 0)[4..]].concat();
    let kind = |connection, kind, flags| Violation::Kind {
        connection,
        kind,
        flags,
    };
    let mut flagged = message(1, 2, 0);
    flagged[9] = 1;
    for (connection, bytes, violation) in [
        (1, too_large, Violation::LargeMessage(4_194_305)),
        (1, message(1, 1, 0), kind(1, 1, 0)),
        (1, message(1, 3, 0), kind(1, 3, 0)),
        (1, flagged, kind(1, 2, 1)),
        (1, message(3, 2, 0), Violation::Answer(3)),
        (2, message(1, 2, 0), kind(2, 2, 0)),
        (2, message(2, 1, 0), Violation::Number(2)),
    ] {
        assert_eq!(read(&frame(connection, &bytes)), Err(violation));
    }
}

#[test]
fn nothing_is_answered_twice_and_numbers_of_calls_rise() {
    let mut wire = wire();
    wire.ask(b"");
    let answer = frame(1, &message(1, 2, 0));
    wire.feed(&[&answer[..], &answer].concat()).unwrap();
    assert!(wire.message().unwrap().is_some());
    assert_eq!(wire.message(), Err(Violation::Answer(1)));

    let mut wire = self::wire();
    let call = |number| frame(2, &message(number, 1, 0));
    wire.feed(&[call(1), call(5), call(3)].concat()).unwrap();
    assert!(wire.message().unwrap().is_some());
    assert!(wire.message().unwrap().is_some());
    assert_eq!(wire.message(), Err(Violation::Number(3)));
}

#[test]
fn a_reader_that_is_slow_has_a_queue_of_256_frames() {
    let mut wire = wire();
    for number in 0..256 {
        wire.feed(&frame(2, &message(2 * number + 1, 1, 0)))
            .unwrap();
    }
    // The other connection has a queue of its own.
    wire.feed(&frame(1, b"x")).unwrap();
    let one_more = wire.feed(&frame(2, &message(513, 1, 0)));
    assert_eq!(one_more, Err(Violation::Queue(2)));
}

#[test]
fn what_has_come_waits_in_the_queue_however_it_is_read() {
    for (frames, violation) in [(256, None), (257, Some(Violation::Queue(1)))] {
        let (runtime, mut plugin) = UnixStream::pair().unwrap();
        let mut line = Line::new(runtime, Generation::V0_12, Manner::Swift);
        // In more than one read's worth of bytes.
        let answers: Vec<u8> = (0..frames)
            .flat_map(|index| frame(1, &message(2 * index + 1, 2, 300)))
            .collect();
        plugin.write_all(&answers).unwrap();
        let until = Instant::now() + Duration::from_secs(30);
        match (line.read(until, "answers").unwrap_err(), violation) {
            (NriError::Violation(told), Some(expected)) => assert_eq!(told, expected),
            // Nobody has asked anything: all of it was read, and then taken.
            (NriError::Violation(Violation::Answer(1)), None) => {}
            (other, _) => panic!("{other:?} of {frames} frames"),
        }
    }
}

#[test]
fn a_question_is_written_as_go_writes_it() {
    let mut wire = wire();
    let (number, bytes) = wire.ask(b"hi");
    assert_eq!(number, 1);
    assert_eq!(bytes, b"\0\0\0\x01\0\0\0\x0c\0\0\0\x02\0\0\0\x01\x01\x00hi");
    let (number, bytes) = wire.ask(&[b'x'; 5_000]);
    assert_eq!(number, 3);
    assert_eq!(bytes.len(), 5_000 + 10 + 16);
    assert_eq!(bytes[..8], *b"\0\0\0\x01\0\0\x10\0");
    // 5,010 - 4,096.
    assert_eq!(bytes[8 + 4096..][..8], *b"\0\0\0\x01\0\0\x03\x92");
}

#[test]
fn an_echo_is_registered_for_everything_and_says_nothing_to_any_question() {
    let directory = tempfile::tempdir().unwrap();
    let socket = directory.path().join("nri.sock");
    let runtime = NriRuntime::listen(&socket, Generation::V0_12).unwrap();
    let stream = UnixStream::connect(&socket).unwrap();
    let echo = thread::spawn(move || echo(stream));
    let mut plugin = runtime.take_plugin().unwrap();
    assert_eq!((&*plugin.name, &*plugin.index), ("echo", "00"));
    assert_eq!(plugin.events, 0x3fff);
    let pod = PodSandbox::default();
    let mut container = Container::default();
    // In one frame, and in two.
    for length in [1, 9_000] {
        container.env = vec!["x".repeat(length)];
        let created = plugin.create(&pod, &container).unwrap();
        assert_eq!(created, CreateContainerResponse::default());
        let asked = LinuxResources::best_effort();
        let updated = plugin.update(&pod, &container, &asked).unwrap();
        assert_eq!(updated.len(), 0);
        plugin.stop(&pod, &container).unwrap();
        plugin.resize(&pod, &asked).unwrap();
        let event = "StartContainer";
        plugin.tell(event, &pod, Some(&container)).unwrap();
    }
    // When its runtime goes it has nothing more to do.
    drop(plugin);
    echo.join().unwrap().unwrap();
}

#[test]
fn an_echo_writes_as_a_plugin_does_that_go_can_read() {
    let wire = wire();
    let said = wire.reply(5, b"");
    assert_eq!(said, b"\0\0\0\x01\0\0\0\x0a\0\0\0\0\0\0\0\x05\x02\0");
    let called = wire.call(1, b"hi");
    assert_eq!(called, b"\0\0\0\x02\0\0\0\x0c\0\0\0\x02\0\0\0\x01\x01\0hi");
}

#[test]
fn what_is_no_question_ends_an_echo() {
    let mut wire = wire();
    wire.feed(&frame(1, &message(1, 2, 0))).unwrap();
    let kind = Violation::Kind {
        connection: 1,
        kind: 2,
        flags: 0,
    };
    assert_eq!(wire.question(), Err(kind));
}

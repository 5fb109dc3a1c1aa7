//! Clients and runtimes that break the protocol: only their own connection ends, and nobody else
//! notices.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use koord_hooks::Chain;
use koord_testkit::{
    Frame, RawClient, RawRequest,
    poll::wait_until_async,
    scripted::{Gate, Otherwise, Script},
};
use std::{collections::BTreeSet, time::Duration};
use support::{
    bystander::{Bystander, DEAF, HOLD_TIMEOUT, WAIT, assert_closed, script_with},
    frame::{self, hello, raw},
    inside::{Inside, serve},
    node::Node,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    task::LocalSet,
};

const KIB: usize = 1 << 10;

/// Bytes without sense, the same for the same seed (xorshift).
fn noise(seed: u64, length: usize) -> Vec<u8> {
    let mut state = seed.wrapping_mul(0x9e37_79b9_7f4a_7c15) | 1;
    let mut next = || {
        state ^= state << 13;
        state ^= state >> 7;
        state ^= state << 17;
        state.to_le_bytes()
    };
    let words = std::iter::repeat_with(&mut next).take(length.div_ceil(8));
    words.flatten().take(length).collect()
}

fn violations(node: &Node, side: &str) -> u64 {
    node.metric(&format!("violations_total{{side=\"{side}\"}}"))
}

#[tokio::test]
async fn random_bytes_end_their_own_connection_and_never_reach_the_runtime() {
    let gate = Gate::new();
    let node = Node::with(script_with(&gate), &[HOLD_TIMEOUT]);
    let bystander = Bystander::at(&node).await;
    for seed in 0..200 {
        let mut bytes = noise(seed, 1 + usize::try_from(seed).unwrap() * 37);
        // Anything but the beginning of a preface.
        bytes[0] |= 0x80;
        assert_closed(&node, &format!("noise {seed}"), &bytes).await;
    }
    assert_eq!(violations(&node, "client"), 200);
    // Our own lists have connections too: each that the runtime has is of a call.
    let all_call = || async {
        let connections = node.script().connections();
        let calls = node.script().calls();
        let called: BTreeSet<u64> = calls.iter().map(|call| call.connection).collect();
        u64::try_from(called.len()).unwrap() == connections
    };
    wait_until_async("no noise has reached the runtime", all_call).await;
    for seed in 0..200 {
        let bytes = [hello(&[]), noise(seed, 4 * KIB)].concat();
        assert_closed(&node, &format!("noise {seed} in frames"), &bytes).await;
        if seed % 50 == 0 {
            bystander.works().await;
        }
    }
    bystander.noticed_nothing(&gate).await;
}

type Cases = Vec<(&'static str, Vec<u8>)>;

/// Two calls on a fresh connection, one of which is never read, and then these frames.
fn connected(frames: &[Vec<u8>]) -> Vec<u8> {
    let begun = [hello(&[]), frame::open(1, WAIT), frame::open(3, DEAF)];
    [begun.concat(), frames.concat()].concat()
}

/// HEADERS with these flags; 4 ends the block.
fn headers(stream: u32, flags: u8, block: &[u8]) -> Vec<u8> {
    raw(frame::HEADERS, flags, stream, block)
}

fn broken_beginnings() -> Cases {
    let ping = raw(frame::PING, 0, 0, &[0; 8]);
    vec![
        ("HTTP/1.1", b"GET / HTTP/1.1\r\nHost: x\r\n\r\n".to_vec()),
        ("TLS", b"\x16\x03\x01\x02\x00\x01\x00".to_vec()),
        (
            "a preface that turns wrong",
            b"PRI * HTTP/2.0\r\n\r\nSX".to_vec(),
        ),
        ("no SETTINGS", [frame::PREFACE, &ping].concat()),
    ]
}

fn broken_headers() -> Cases {
    let request = frame::request(WAIT);
    let intruder = raw(frame::DATA, 0, 3, b"x");
    let two_paths = [&request[..], &request[2..]].concat();
    let flood = vec![raw(frame::CONTINUATION, 0, 5, &[0; 16 * KIB]); 65];
    let flood = [vec![headers(5, 0, b"")], flood].concat();
    let backwards = [headers(7, 4, &request), headers(5, 4, &request)];
    vec![
        (
            "a block that is broken into",
            connected(&[headers(5, 0, &request), intruder]),
        ),
        ("a block without end", connected(&flood)),
        (
            "CONTINUATION of nothing",
            connected(&[raw(frame::CONTINUATION, 4, 3, b"")]),
        ),
        (
            "a header that is in no table",
            connected(&[headers(5, 4, b"\xff\xff\xff\xff\x07")]),
        ),
        (
            "a block cut short",
            connected(&[headers(5, 4, b"\x00\x05ab")]),
        ),
        ("two paths", connected(&[headers(5, 4, &two_paths)])),
        ("an even stream", connected(&[headers(6, 4, &request)])),
        ("a stream before the last", connected(&backwards)),
        (
            "trailers that are not the end",
            connected(&[headers(3, 4, b"\x88")]),
        ),
    ]
}

fn broken_frames() -> Cases {
    let overrun = vec![raw(frame::DATA, 0, 3, &[0; 16 * KIB]); 65];
    let settings = vec![raw(frame::SETTINGS, 0, 0, &[]); 200];
    let one = |kind, flags, stream, payload: &[u8]| connected(&[raw(kind, flags, stream, payload)]);
    vec![
        (
            "a frame that is too large",
            connected(&[vec![0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]]),
        ),
        ("DATA on no stream", one(frame::DATA, 0, 0, b"x")),
        (
            "DATA on a stream that is not open",
            one(frame::DATA, 0, 99, b"x"),
        ),
        (
            "DATA with padding longer than its frame",
            one(frame::DATA, 8, 3, b"\x09x"),
        ),
        ("DATA beyond the window", connected(&overrun)),
        (
            "RST_STREAM on a stream that is not open",
            one(frame::RST_STREAM, 0, 99, &[0; 4]),
        ),
        (
            "RST_STREAM cut short",
            one(frame::RST_STREAM, 0, 3, &[0; 3]),
        ),
        ("SETTINGS cut short", one(frame::SETTINGS, 0, 0, &[0; 5])),
        ("SETTINGS on a stream", one(frame::SETTINGS, 0, 3, &[])),
        ("SETTINGS without number", connected(&settings)),
        ("PING cut short", one(frame::PING, 0, 0, &[0; 7])),
        ("GOAWAY cut short", one(frame::GOAWAY, 0, 0, &[0; 7])),
        (
            "PUSH_PROMISE",
            one(frame::PUSH_PROMISE, 4, 3, b"\0\0\0\x02"),
        ),
    ]
}

#[tokio::test]
async fn broken_http2_of_each_kind_ends_its_own_connection() {
    let gate = Gate::new();
    let node = Node::with(script_with(&gate), &[HOLD_TIMEOUT]);
    let bystander = Bystander::at(&node).await;
    let cases = [broken_beginnings(), broken_headers(), broken_frames()].concat();
    let mut seen = 0;
    for (what, bytes) in cases {
        assert_closed(&node, what, &bytes).await;
        seen += 1;
        assert_eq!(violations(&node, "client"), seen, "{what}");
        bystander.works().await;
    }
    // What only the runtime can judge passes, and its judgement comes back.
    for by in [0, 0x7fff_ffff] {
        let frames = [hello(&[]), frame::window_update(0, by)].concat();
        assert_closed(&node, "a window that grows in no way it can", &frames).await;
    }
    assert_eq!(violations(&node, "client"), seen);
    // And none of them left anything behind.
    let gone = || async { node.metric("connections_open") == 1 };
    wait_until_async("one connection is open", gone).await;
    bystander.noticed_nothing(&gate).await;
}

/// Each kind of nonsense that a runtime could say to a client that has opened stream 1.
fn broken_replies() -> Cases {
    let begun = raw(frame::SETTINGS, 0, 0, &[]);
    let then = |frames: &[Vec<u8>]| [begun.clone(), frames.concat()].concat();
    vec![
        ("text", b"HTTP/1.1 400 Bad Request\r\n\r\n".to_vec()),
        ("no SETTINGS", raw(frame::PING, 0, 0, &[0; 8])),
        (
            "a frame that is too large",
            then(&[vec![0xff, 0xff, 0xff, 0, 0, 0, 0, 0, 1]]),
        ),
        (
            "a reply to no call",
            then(&[raw(frame::HEADERS, 4, 9, b"\x88")]),
        ),
        (
            "a pushed reply",
            then(&[raw(frame::PUSH_PROMISE, 4, 1, b"\0\0\0\x02\x88")]),
        ),
        (
            "a header that is in no table",
            then(&[raw(frame::HEADERS, 4, 1, b"\xfe")]),
        ),
        (
            "DATA after the end",
            then(&[
                raw(frame::HEADERS, 5, 1, b"\x88"),
                raw(frame::DATA, 0, 1, b"x"),
            ]),
        ),
        (
            "a window that grows past its end",
            then(&[frame::window_update(1, 0x7fff_ffff)]),
        ),
        (
            "an acknowledgement of nothing",
            then(&vec![raw(frame::SETTINGS, 1, 0, &[]); 3]),
        ),
    ]
}

#[tokio::test]
async fn a_runtime_that_breaks_http2_ends_the_connections_to_it_and_no_more() {
    let mut node = Node::without_runtime(&[]);
    for (seen, (what, bytes)) in broken_replies().into_iter().enumerate() {
        std::fs::remove_file(node.path("runtime.sock")).ok();
        let runtime = UnixListener::bind(node.path("runtime.sock")).unwrap();
        // Our own lists are told the same.
        let nonsense = tokio::spawn(async move {
            let mut served = Vec::new();
            while let Ok((mut stream, _)) = runtime.accept().await {
                stream.write_all(&bytes).await.ok();
                served.push(stream);
            }
        });
        let call = [hello(&[]), frame::open(1, WAIT)].concat();
        assert_closed(&node, what, &call).await;
        nonsense.abort();
        assert!(
            violations(&node, "runtime") > u64::try_from(seen).unwrap(),
            "{what}"
        );
    }
    node.runtime_returns();
    node.wait_until_ready();
    let reply = node.call(RawRequest::unary("/a.b/Echo", "x")).await;
    assert_eq!(reply.messages, [Frame::plain("x")]);
}

#[tokio::test]
async fn connections_without_a_preface_are_closed_after_ten_seconds() {
    let silent = async {
        let inside = Inside::start(Chain::empty());
        serve(
            &Script::new(Otherwise::Echo),
            &inside.runtime_socket(),
            &Script::settings(),
        );
        let client = RawClient::connect(&inside.socket()).await.unwrap();
        let echo = || client.call(RawRequest::unary("/a.b/Echo", "x"));
        echo().await.unwrap();
        let mut strangers = Vec::new();
        for said in [&b""[..], b"P", &frame::PREFACE[..23]] {
            let mut stranger = UnixStream::connect(inside.socket()).await.unwrap();
            stranger.write_all(said).await.unwrap();
            strangers.push(stranger);
        }
        // One who hangs up has not to be waited for.
        drop(UnixStream::connect(inside.socket()).await.unwrap());
        let met = || async { inside.metric("connections_total") == 5 };
        wait_until_async("all were accepted", met).await;
        echo().await.unwrap();

        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(11)).await;
        tokio::time::resume();
        for mut stranger in strangers {
            assert_eq!(stranger.read(&mut [0; 8]).await.unwrap(), 0);
        }
        echo().await.unwrap();
        let refused = inside.metric("connections_refused_total{reason=\"no_preface\"}");
        assert_eq!(refused, 3);
        assert_eq!(inside.metric("connections_open"), 1);
    };
    LocalSet::new().run_until(silent).await;
}

//! How streams live and die beside each other: for how long, how many, how slowly they may be read,
//! and how their ends pass.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use bytes::Bytes;
use h2::{Reason, RecvStream};
use http::HeaderMap;
use koord_hooks::{Chain, FailPolicies, FeatureGates};
use koord_testkit::{
    Frame, RawClient, RawEnd, RawRequest, RawStream,
    poll::wait_until_async,
    scripted::{CallEnd, Gate, Otherwise, Reply, Script, Step, status_block},
};
use std::{
    io,
    time::{Duration, Instant},
};
use support::{
    frame,
    inside::{Inside, serve},
    method,
    node::{Node, PATIENCE, script},
    pod::Pod,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    task::LocalSet,
    time::timeout,
};

const MIB: usize = 1 << 20;

/// Bound for what should happen at once, long for a loaded machine.
const AT_ONCE: Duration = Duration::from_secs(60);

async fn begin(client: &RawClient, path: &str, message: impl Into<Bytes>) -> RawStream {
    let mut stream = client.open(path, Vec::new()).await.unwrap();
    let frame = Frame::plain(message);
    stream.send_data(frame.encode(), true).unwrap();
    stream
}

async fn works(client: &RawClient) {
    let reply = client.call(RawRequest::unary("/a.b/Echo", "x")).await;
    assert_eq!(reply.unwrap().messages, [Frame::plain("x")]);
}

/// Waits until so many calls of a method have come to this end at the runtime.
async fn ended(script: &Script, method: &str, count: usize, end: CallEnd) {
    let so = || async {
        let calls = script.calls();
        let ended = |call: &&koord_testkit::scripted::Call| call.path == method && call.end == end;
        calls.iter().filter(ended).count() == count
    };
    wait_until_async(&format!("{count} calls of {method} end as {end:?}"), so).await;
}

/// The DATA of a reply that is next.
async fn next(body: &mut RecvStream) -> Bytes {
    let data = body.data().await.unwrap().unwrap();
    body.flow_control().release_capacity(data.len()).unwrap();
    data
}

#[tokio::test]
async fn streams_and_calls_outlive_ten_minutes_of_silence() {
    let gate = Gate::new();
    let events = vec![
        Step::AwaitEnd,
        Step::Headers(HeaderMap::new()),
        Step::Message(Frame::plain("first")),
        Step::Hold(gate.clone()),
        Step::Message(Frame::plain("second")),
        Step::Trailers(status_block(0, "")),
    ];
    let script = Script::new(Otherwise::Echo)
        .always(method::EVENTS, Reply::steps(events))
        .always(method::CREATE, Reply::message("late").held(&gate));
    let chain = Chain::new(&FeatureGates::default(), &FailPolicies::default());
    let quiet = async {
        let inside = Inside::start(chain);
        serve(&script, &inside.runtime_socket(), &Script::settings());
        let client = RawClient::connect(&inside.socket()).await.unwrap();
        let creation = begin(&client, method::CREATE, Pod::plain("p").create().encode()).await;
        let stream = begin(&client, method::EVENTS, "").await;
        let (_, mut body, _stream) = stream.response().await.unwrap();
        assert_eq!(next(&mut body).await, Frame::plain("first").encode());
        ended(&script, method::CREATE, 1, CallEnd::Complete).await;

        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(660)).await;
        tokio::time::resume();
        // Whatever had waited for its hour has had its turn when these are through.
        for _ in 0..10 {
            works(&client).await;
        }
        gate.open();
        assert_eq!(next(&mut body).await, Frame::plain("second").encode());
        let trailers = body.trailers().await.unwrap().unwrap();
        assert_eq!(trailers["grpc-status"], "0");
        assert_eq!(creation.collect().await.messages, [Frame::plain("late")]);
    };
    LocalSet::new().run_until(quiet).await;
}

#[tokio::test]
async fn two_thousand_streams_are_open_at_once_on_one_connection() {
    let gate = Gate::new();
    let held = |message: &'static str| Reply::message(message).held(&gate);
    let script = Script::new(Otherwise::Echo)
        .always(method::START, held("claimed"))
        .always(method::STATUS, held("not claimed"));
    let node = Node::with(script, &[]);
    let client = node.client().await;
    let mut streams = Vec::new();
    for _ in 0..1_000 {
        for (method, answer) in [(method::START, "claimed"), (method::STATUS, "not claimed")] {
            streams.push((begin(&client, method, "\x0a\x01x").await, answer));
        }
    }
    ended(node.script(), method::START, 1_000, CallEnd::Complete).await;
    ended(node.script(), method::STATUS, 1_000, CallEnd::Complete).await;
    works(&client).await;
    gate.open();
    for (stream, answer) in streams {
        let reply = stream.collect().await;
        assert_eq!(reply.messages, [Frame::plain(answer)]);
        assert_eq!(reply.grpc_status(), Some(0));
    }
}

#[tokio::test]
async fn messages_go_to_and_fro_on_one_stream() {
    let rounds = 100;
    let mut steps = vec![Step::Headers(HeaderMap::new())];
    for _ in 0..rounds {
        steps.extend([Step::AwaitMessages(1), Step::Echo]);
    }
    steps.extend([Step::AwaitEnd, Step::Trailers(status_block(0, ""))]);
    let path = "/a.b/Talk";
    let node = Node::with(
        Script::new(Otherwise::Echo).always(path, Reply::steps(steps)),
        &[],
    );
    let client = node.client().await;
    let stream = client.open(path, Vec::new()).await.unwrap();
    let (_, mut answers, mut questions) = stream.response().await.unwrap();
    for round in 0..rounds {
        let frame = Frame::plain(format!("round {round}")).encode();
        questions.send_data(frame.clone(), false).unwrap();
        assert_eq!(next(&mut answers).await, frame);
    }
    questions.send_data(Bytes::new(), true).unwrap();
    assert!(answers.data().await.is_none());
    let trailers = answers.trailers().await.unwrap().unwrap();
    assert_eq!(trailers["grpc-status"], "0");
}

#[tokio::test]
async fn a_stream_that_is_not_read_delays_no_other_on_its_connection() {
    let large: Vec<Frame> = vec![Frame::plain(vec![7; MIB]); 8];
    let node = Node::with(
        Script::new(Otherwise::Echo).always(method::STATUS, Reply::messages(large)),
        &[],
    );
    let client = node.client().await;
    let stream = begin(&client, method::STATUS, "").await;
    let (_, mut body, _stream) = stream.response().await.unwrap();
    for _ in 0..100 {
        works(&client).await;
    }
    let mut read = 0;
    while let Some(data) = body.data().await {
        let data = data.unwrap();
        body.flow_control().release_capacity(data.len()).unwrap();
        read += data.len();
    }
    assert_eq!(read, 8 * (5 + MIB));
}

#[tokio::test]
async fn clients_that_stop_reading_delay_nobody_and_cost_a_bounded_sum() {
    const IDLE: usize = 8;
    let large: Vec<Frame> = vec![Frame::plain(vec![7; MIB]); 16];
    let node = Node::with(
        Script::new(Otherwise::Echo).always(method::STATUS, Reply::messages(large)),
        &[],
    );
    let client = node.client().await;
    works(&client).await;
    let before = node.resident_kib();
    // SETTINGS_INITIAL_WINDOW_SIZE and the connection's window at their end: no window holds the
    // runtime back, only we do.
    let mut bytes = frame::hello(&[(4, 0x7fff_ffff)]);
    bytes.extend(frame::window_update(0, 0x7fff_ffff - 65_535));
    bytes.extend(frame::open(1, method::STATUS));
    bytes.extend(frame::raw(
        frame::DATA,
        frame::END_STREAM,
        1,
        &frame::message_head(0),
    ));
    let mut idle = Vec::new();
    for _ in 0..IDLE {
        let mut stream = UnixStream::connect(node.socket()).await.unwrap();
        stream.write_all(&bytes).await.unwrap();
        idle.push(stream);
    }
    ended(node.script(), method::STATUS, IDLE, CallEnd::Complete).await;
    let mut most = 0;
    for _ in 0..200 {
        works(&client).await;
        most = most.max(node.resident_kib());
    }
    // A megabyte each, where 16 were asked for.
    let grown = most.saturating_sub(before);
    assert!(grown < 8 * 1_024, "{before} KiB grew by {grown} KiB");

    let mut late = idle.pop().unwrap();
    let mut read = 0;
    let mut buffer = vec![0; 64 << 10];
    while read < 16 * MIB {
        let more = late.read(&mut buffer).await.unwrap();
        assert_ne!(more, 0, "closed after {read} bytes");
        read += more;
    }
}

#[tokio::test]
async fn a_reset_of_the_runtime_passes_with_its_code() {
    let half = Bytes::from_static(b"\0\0\0\0\x09half");
    let begun = || vec![Step::AwaitEnd, Step::Headers(HeaderMap::new())];
    for (code, steps) in [
        (Reason::REFUSED_STREAM, Vec::new()),
        (Reason::ENHANCE_YOUR_CALM, vec![Step::AwaitEnd]),
        (Reason::INTERNAL_ERROR, begun()),
        (Reason::CANCEL, [begun(), vec![Step::Data(half)]].concat()),
        (Reason::from(0x1234_5678), begun()),
    ] {
        for path in [method::START, method::STATUS] {
            let reply = Reply::steps([steps.clone(), vec![Step::Reset(code)]].concat());
            let node = Node::with(Script::new(Otherwise::Echo).always(path, reply), &[]);
            let client = node.client().await;
            let stream = begin(&client, path, "\x0a\x01x").await;
            assert_eq!(stream.collect().await.end, RawEnd::Reset(code), "{path}");
            works(&client).await;
        }
    }
}

#[tokio::test]
async fn a_reset_of_the_client_passes_with_its_code() {
    let gate = Gate::new();
    let never = Reply::message("never").held(&gate);
    for path in [method::CREATE, method::STATUS] {
        let node = Node::with(
            Script::new(Otherwise::Echo).always(path, never.clone()),
            &[],
        );
        let client = node.client().await;
        // A call that waits for its answer.
        let message = Pod::best_effort("be").create().encode();
        let mut whole = begin(&client, path, message.clone()).await;
        ended(node.script(), path, 1, CallEnd::Complete).await;
        whole.reset(Reason::CANCEL);
        ended(node.script(), path, 1, CallEnd::Reset(Reason::CANCEL)).await;
        // A call that is not said to its end, so that we hold what was said.
        let mut half = client.open(path, Vec::new()).await.unwrap();
        let half_of_it = Frame::plain(message).encode().slice(..100);
        half.send_data(half_of_it, false).unwrap();
        half.reset(Reason::ENHANCE_YOUR_CALM);
        let calm = CallEnd::Reset(Reason::ENHANCE_YOUR_CALM);
        ended(node.script(), path, 1, calm).await;
        works(&client).await;
    }
}

/// A call on a fresh connection, and what the runtime sees of both.
async fn paired(node: &Node) -> (UnixStream, UnixStream) {
    let runtime = UnixListener::bind(node.path("runtime.sock")).unwrap();
    let mut sent = frame::hello(&[]);
    sent.extend(frame::open(1, "/a.b/Wait"));
    let mut client = UnixStream::connect(node.socket()).await.unwrap();
    client.write_all(&sent).await.unwrap();
    let (mut served, _) = runtime.accept().await.unwrap();
    let mut arrived = vec![0; sent.len()];
    served.read_exact(&mut arrived).await.unwrap();
    assert_eq!(arrived, sent);
    (client, served)
}

#[tokio::test]
async fn a_client_that_goes_away_takes_its_connection_to_the_runtime_with_it() {
    // In pass-through nobody else connects to the runtime.
    let node = Node::without_runtime(&["--mode=pass-through"]);
    let (client, mut runtime) = paired(&node).await;
    drop(client);
    let mut nothing = Vec::new();
    assert_eq!(runtime.read_to_end(&mut nothing).await.unwrap(), 0);
}

#[tokio::test]
async fn the_last_words_of_a_runtime_arrive_before_its_end() {
    let node = Node::without_runtime(&["--mode=pass-through"]);
    let (mut client, mut runtime) = paired(&node).await;
    let mut words = frame::raw(frame::SETTINGS, 0, 0, &[]);
    words.extend(frame::raw(frame::RST_STREAM, 0, 1, &[0, 0, 0, 7]));
    let calm = b"\0\0\0\x01\0\0\0\x0btoo_many_pings";
    words.extend(frame::raw(frame::GOAWAY, 0, 0, calm));
    runtime.write_all(&words).await.unwrap();
    drop(runtime);
    let mut heard = Vec::new();
    client.read_to_end(&mut heard).await.unwrap();
    assert_eq!(heard, words);
}

#[tokio::test]
async fn goaway_passes_and_calls_that_are_open_finish() {
    let gate = Gate::new();
    let late = Reply::message("late").held(&gate);
    let script = Script::new(Otherwise::Echo)
        .always(method::START, late.clone())
        .always(method::STATUS, late);
    let node = Node::with(script, &[]);
    let client = node.client().await;
    let claimed = begin(&client, method::START, "\x0a\x01x").await;
    let other = begin(&client, method::STATUS, "").await;
    ended(node.script(), method::START, 1, CallEnd::Complete).await;
    ended(node.script(), method::STATUS, 1, CallEnd::Complete).await;
    node.script().go_away();
    // What is new goes to another connection, as without us.
    let refused = async || client.open("/a.b/New", Vec::new()).await.is_err();
    wait_until_async("the client has heard of it", refused).await;
    works(&node.client().await).await;
    gate.open();
    assert_eq!(claimed.collect().await.messages, [Frame::plain("late")]);
    assert_eq!(other.collect().await.messages, [Frame::plain("late")]);
    // What this client says at its end may come to one that has closed already.
    if let Err(error) = client.closed().await {
        let kind = error.get_io().map(io::Error::kind);
        assert_eq!(kind, Some(io::ErrorKind::BrokenPipe), "{error}");
    }
}

#[tokio::test]
async fn a_stop_waits_for_calls_and_not_for_the_stream_of_events() {
    for mode in ["--mode=enforce", "--mode=pass-through"] {
        let gate = Gate::new();
        let events = vec![
            Step::AwaitEnd,
            Step::Headers(HeaderMap::new()),
            Step::Message(Frame::plain("first")),
            Step::Hold(Gate::new()),
        ];
        let script = Script::new(Otherwise::Echo)
            .always(method::EVENTS, Reply::steps(events))
            .always(method::START, Reply::message("late").held(&gate));
        // Ten times as long as anything here is waited for.
        let mut node = Node::with(script, &[mode, "--grace-period=10m"]);
        let client = node.client().await;
        let stream = begin(&client, method::EVENTS, "").await;
        let (_, mut body, _stream) = stream.response().await.unwrap();
        assert_eq!(next(&mut body).await, Frame::plain("first").encode());
        let call = begin(&client, method::START, "\x0a\x01x").await;
        ended(node.script(), method::START, 1, CallEnd::Complete).await;

        node.signal("-TERM");
        let refused = async || client.open("/a.b/New", Vec::new()).await.is_err();
        wait_until_async("the client has heard of it", refused).await;
        gate.open();
        assert_eq!(call.collect().await.messages, [Frame::plain("late")]);
        let cut_off = timeout(PATIENCE, body.data()).await.expect("the end");
        assert!(cut_off.is_none_or(|data| data.is_err()));
        assert_eq!(node.ended().code(), Some(0));
    }
}

#[tokio::test]
async fn while_the_runtime_is_away_clients_know_at_once_and_no_call_is_sent_twice() {
    let mut node = Node::with(
        script().once(method::CREATE, Reply::message("never").held(&Gate::new())),
        &[],
    );
    let client = node.client().await;
    let message = Pod::best_effort("be").create().encode();
    let creation = begin(&client, method::CREATE, message.clone()).await;
    ended(node.script(), method::CREATE, 1, CallEnd::Complete).await;

    let start = Instant::now();
    node.runtime = None;
    // A gRPC library calls both UNAVAILABLE: a connection that closes under a call, and one that
    // is closed when a call wants it.
    assert_eq!(creation.collect().await.end, RawEnd::Lost);
    drop(client.closed().await);
    // So many that none may have waited for a runtime.
    for _ in 0..30 {
        let client = node.client().await;
        let ended = match client.call(RawRequest::unary("/a.b/Echo", "x")).await {
            Ok(reply) => reply.end == RawEnd::Lost,
            Err(_) => true,
        };
        assert!(ended, "answered by nobody");
    }
    let took = start.elapsed();
    assert!(took < AT_ONCE, "{took:?}");

    let start = Instant::now();
    node.runtime_returns();
    let reply = node.call(RawRequest::unary("/a.b/Echo", "x")).await;
    assert_eq!(reply.messages, [Frame::plain("x")]);
    let took = start.elapsed();
    assert!(took < AT_ONCE, "{took:?}");
    assert_eq!(node.calls(method::CREATE).len(), 1);
    // What was missed is listed again, without a restart of ours.
    node.wait_until_ready();
    let reply = node.call(RawRequest::unary(method::CREATE, message)).await;
    assert_eq!(reply.grpc_status(), Some(0));
}

#[tokio::test]
async fn what_the_runtime_had_said_before_it_went_reaches_the_client() {
    let gone = async {
        let inside = Inside::start(Chain::empty());
        let listener = UnixListener::bind(inside.runtime_socket()).unwrap();
        let mut client = UnixStream::connect(inside.socket()).await.unwrap();
        client.write_all(&frame::hello(&[])).await.unwrap();
        let (mut runtime, _) = listener.accept().await.unwrap();
        let hello = frame::raw(frame::SETTINGS, 0, 0, b"");
        runtime.write_all(&hello).await.unwrap();
        let call = frame::open(1, "/a.b/Last");
        client.write_all(&call).await.unwrap();
        let mut seen = vec![0; frame::hello(&[]).len() + call.len()];
        runtime.read_exact(&mut seen).await.unwrap();

        // It answers and goes, and there is something to write to it before that was read. Nobody
        // else runs in between.
        let reply = frame::raw(frame::HEADERS, 5, 1, b"\x88");
        runtime.try_write(&reply).unwrap();
        drop(runtime);
        let ping = frame::raw(frame::PING, 0, 0, b"8 octets");
        client.try_write(&ping).unwrap();

        let mut said = Vec::new();
        let read = client.read_to_end(&mut said);
        timeout(AT_ONCE, read).await.unwrap().unwrap();
        assert_eq!(said, [hello, reply].concat());
    };
    LocalSet::new().run_until(gone).await;
}

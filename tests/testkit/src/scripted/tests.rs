use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderName, HeaderValue};

use super::*;
use crate::raw::{RawClient, RawEnd, RawReply, RawRequest};
use crate::wire::Frame;

const METHOD: &str = "/runtime.v1.RuntimeService/Version";

/// A script served over an in-memory pipe, and a client at its other end.
async fn connected(script: &Script) -> RawClient {
    let (client, server) = tokio::io::duplex(64 << 10);
    let script = script.clone();
    tokio::spawn(async move { script.serve(server).await });
    RawClient::over(client, &RawClient::settings())
        .await
        .unwrap()
}

async fn answer(reply: Reply) -> RawReply {
    let script = Script::new(Otherwise::Fail).always(METHOD, reply);
    let client = connected(&script).await;
    client
        .call(RawRequest::unary(METHOD, "hello"))
        .await
        .unwrap()
}

#[tokio::test]
async fn a_call_is_recorded_as_it_was_sent() {
    let script = Script::new(Otherwise::Echo);
    let client = connected(&script).await;
    let compressed = Frame {
        compressed: true,
        message: Bytes::from_static(b"\x00\xff"),
    };
    let mut request = RawRequest::unary("/a.Service/Unknown", "hello")
        .header("grpc-timeout", HeaderValue::from_static("5S"))
        .header("x-bin", HeaderValue::from_bytes(b"\xfe\x80").unwrap());
    request.messages.push(compressed.clone());
    let reply = client.call(request).await.unwrap();

    let calls = script.calls();
    assert_eq!(calls.len(), 1);
    assert_eq!(calls[0].path, "/a.Service/Unknown");
    assert_eq!(calls[0].authority, "localhost");
    assert_eq!(calls[0].messages, [Frame::plain("hello"), compressed]);
    assert_eq!(calls[0].end, CallEnd::Complete);
    let sent = |name, value: &'static [u8]| {
        (
            HeaderName::from_static(name),
            HeaderValue::from_bytes(value).unwrap(),
        )
    };
    assert_eq!(
        calls[0].headers,
        [
            sent("content-type", b"application/grpc"),
            sent("te", b"trailers"),
            sent("grpc-timeout", b"5S"),
            sent("x-bin", b"\xfe\x80"),
        ]
    );
    assert_eq!(reply.messages, calls[0].messages);
    assert_eq!(reply.grpc_status(), Some(0));
}

#[tokio::test]
async fn replies_are_given_in_order_then_for_ever() {
    let script = Script::new(Otherwise::Fail)
        .once(METHOD, Reply::message("first"))
        .once(METHOD, Reply::message("second"))
        .always(METHOD, Reply::message("later"));
    let client = connected(&script).await;
    for expected in ["first", "second", "later", "later"] {
        let reply = client.call(RawRequest::unary(METHOD, "")).await.unwrap();
        assert_eq!(reply.messages, [Frame::plain(expected)]);
    }
}

#[tokio::test]
async fn an_unexpected_call_is_refused_and_remembered() {
    let script = Script::new(Otherwise::Fail);
    let client = connected(&script).await;
    let reply = client.call(RawRequest::unary(METHOD, "")).await.unwrap();
    assert_eq!(reply.grpc_status(), Some(12));
    assert_eq!(script.unexpected(), [METHOD]);
}

#[test]
#[should_panic(expected = "calls that the script does not expect: [\"/a/b\"]")]
fn a_strict_runtime_that_saw_an_unexpected_call_fails_its_test() {
    let socket = std::env::temp_dir().join(format!("ktb-strict-{}.sock", std::process::id()));
    let server = ScriptedRuntime::listen(&socket, Script::new(Otherwise::Fail)).unwrap();
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .unwrap();
    runtime.block_on(async {
        let client = RawClient::connect(server.socket()).await.unwrap();
        client.call(RawRequest::unary("/a/b", "")).await.unwrap();
    });
    assert_eq!(server.ended_calls(1)[0].path, "/a/b");
}

#[tokio::test]
async fn errors_come_with_code_message_and_details_in_one_block() {
    let details = HeaderValue::from_static("CAUSBG9vcHM");
    let reply = answer(Reply::error_with_details(5, "no such pod", details.clone())).await;
    assert_eq!(reply.grpc_status(), Some(5));
    assert_eq!(reply.ending("grpc-message").unwrap(), "no such pod");
    assert_eq!(reply.ending("grpc-status-details-bin"), Some(&details));
    assert_eq!((reply.trailers, reply.messages), (None, Vec::new()));
}

#[tokio::test]
async fn resets_carry_their_code() {
    let reply = answer(Reply::steps(vec![Step::Reset(Reason::ENHANCE_YOUR_CALM)])).await;
    assert_eq!(reply.end, RawEnd::Reset(Reason::ENHANCE_YOUR_CALM));

    let mid_message = vec![
        Step::Headers(HeaderMap::new()),
        Step::Data(Bytes::from_static(b"\0\0\0\0\x09half")),
        Step::Delay(Duration::from_millis(1)),
        Step::Reset(Reason::INTERNAL_ERROR),
    ];
    let reply = answer(Reply::steps(mid_message)).await;
    assert_eq!(reply.end, RawEnd::Reset(Reason::INTERNAL_ERROR));
}

#[tokio::test]
async fn large_trailers_and_large_messages_cross_both_ways() {
    let mut trailers = status_block(0, "");
    let long = "v".repeat(64 << 10);
    trailers.insert("x-long", HeaderValue::from_str(&long).unwrap());
    let script = Script::new(Otherwise::Fail).always(
        METHOD,
        Reply::steps(vec![
            Step::AwaitEnd,
            Step::Headers(HeaderMap::new()),
            Step::Echo,
            Step::Trailers(trailers),
        ]),
    );
    let client = connected(&script).await;
    let message = vec![7_u8; 16 << 20];
    let reply = client
        .call(RawRequest::unary(METHOD, message.clone()))
        .await
        .unwrap();
    assert_eq!(reply.messages, [Frame::plain(message)]);
    assert_eq!(reply.ending("x-long").unwrap(), &long);
}

#[tokio::test]
async fn a_held_call_ends_when_its_gate_opens_and_not_before() {
    let gate = Gate::new();
    let script = Script::new(Otherwise::Echo).once(METHOD, Reply::message("late").held(&gate));
    let client = connected(&script).await;
    let held = client.call(RawRequest::unary(METHOD, ""));
    tokio::pin!(held);
    // A second call runs from start to end meanwhile.
    tokio::select! {
        biased;
        _ = &mut held => panic!("answered through a closed gate"),
        quick = client.call(RawRequest::unary("/a/b", "quick")) => {
            assert_eq!(quick.unwrap().messages, [Frame::plain("quick")]);
        }
    }
    gate.open();
    assert_eq!(held.await.unwrap().messages, [Frame::plain("late")]);
}

#[tokio::test]
async fn a_clients_reset_is_recorded_with_its_code() {
    let script =
        Script::new(Otherwise::Fail).always(METHOD, Reply::message("never").held(&Gate::new()));
    let client = connected(&script).await;
    let mut call = client.open(METHOD, Vec::new()).await.unwrap();
    call.send_data(Frame::plain("x").encode(), true).unwrap();
    let complete = || async {
        script
            .calls()
            .iter()
            .any(|call| call.end == CallEnd::Complete)
    };
    poll::wait_until_async("the request", complete).await;
    call.reset(Reason::CANCEL);
    let reset = || async { script.calls()[0].end == CallEnd::Reset(Reason::CANCEL) };
    poll::wait_until_async("the reset", reset).await;
}

#[tokio::test]
async fn after_go_away_open_calls_end_well_and_the_connection_closes() {
    let gate = Gate::new();
    let script = Script::new(Otherwise::Fail).always(METHOD, Reply::message("late").held(&gate));
    let client = connected(&script).await;
    let mut call = client.open(METHOD, Vec::new()).await.unwrap();
    call.send_data(Frame::plain("x").encode(), true).unwrap();
    let complete = || async {
        script
            .calls()
            .iter()
            .any(|call| call.end == CallEnd::Complete)
    };
    poll::wait_until_async("the request", complete).await;
    script.go_away();
    gate.open();
    assert_eq!(call.collect().await.messages, [Frame::plain("late")]);
    client.closed().await.unwrap();
}

#[tokio::test]
async fn a_request_is_read_as_far_as_the_steps_await_it() {
    let gate = Gate::new();
    let script = Script::new(Otherwise::Fail).always(
        METHOD,
        Reply::steps(vec![
            Step::AwaitMessages(1),
            Step::Hold(gate.clone()),
            Step::AwaitEnd,
            Step::TrailersOnly(status_block(0, "")),
        ]),
    );
    let client = connected(&script).await;
    let mut call = client.open(METHOD, Vec::new()).await.unwrap();
    call.send_data(Frame::plain("one").encode(), false).unwrap();
    call.send_data(Frame::plain(vec![0; 4 << 20]).encode(), true)
        .unwrap();
    let one = || async { script.calls().iter().any(|call| call.messages.len() == 1) };
    poll::wait_until_async("the first message", one).await;
    gate.open();
    assert_eq!(call.collect().await.grpc_status(), Some(0));
    assert_eq!(script.calls()[0].messages[1].message.len(), 4 << 20);
}

#[tokio::test]
async fn a_message_that_is_cut_off_is_kept_as_the_rest() {
    let half = vec![
        Step::AwaitEnd,
        Step::Headers(HeaderMap::new()),
        Step::Data(Bytes::from_static(b"\0\0\0\0\x09half")),
        Step::Trailers(status_block(0, "")),
    ];
    let script = Script::new(Otherwise::Fail).always(METHOD, Reply::steps(half));
    let client = connected(&script).await;
    let mut call = client.open(METHOD, Vec::new()).await.unwrap();
    call.send_data(Frame::plain("x").encode(), false).unwrap();
    call.send_data(Bytes::from_static(b"\0\0"), true).unwrap();
    let reply = call.collect().await;
    assert_eq!(reply.rest, &b"\0\0\0\0\x09half"[..]);
    assert_eq!(script.calls()[0].messages, [Frame::plain("x")]);
    assert_eq!(script.calls()[0].rest, &b"\0\0"[..]);
}

#[tokio::test]
async fn a_reset_behind_a_whole_request_is_seen_while_the_call_is_held() {
    let script =
        Script::new(Otherwise::Fail).always(METHOD, Reply::message("never").held(&Gate::new()));
    let client = connected(&script).await;
    let mut call = client.open(METHOD, Vec::new()).await.unwrap();
    call.send_data(Frame::plain("x").encode(), true).unwrap();
    let ended_as = async |end| {
        let so = || async { script.calls().iter().any(|call| call.end == end) };
        poll::wait_until_async("the end of the call", so).await;
    };
    ended_as(CallEnd::Complete).await;
    call.reset(Reason::CANCEL);
    ended_as(CallEnd::Reset(Reason::CANCEL)).await;
}

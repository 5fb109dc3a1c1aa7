//! What arrives is what was sent, on both sides of the proxy: bytes, headers, trailers and errors.
//! How streams live and die beside each other is in `streams.rs`.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use bytes::Bytes;
use http::{HeaderMap, HeaderValue};
use koord_testkit::{
    Frame, RawReply, RawRequest,
    cri::message::{CreateContainerRequest, KeyValue},
    scripted::{Call, Otherwise, Reply, Script, Step, status_block},
};
use prost::Message;
use support::{
    method,
    node::{Node, listed_once},
    pod::{BATCH_MEMORY, BATCH_QUOTA, BATCH_SHARES, Pod},
};

/// Calls that are opened, that are not, and that nobody knows today.
const METHODS: [&str; 8] = [
    method::CREATE,
    method::STATUS,
    "/runtime.v1.ImageService/PullImage",
    "/runtime.v1alpha2.RuntimeService/Version",
    "/runtime.v1.RuntimeService/FreezeContainer",
    "/runtime.v2.RuntimeService/CreateContainer",
    "/containerd.services.unheard.v7.Of/Anything",
    "/",
];

/// A binary header's value as gRPC sends it, in base64, and one in bytes above ASCII.
const BINARY: &str = "AP/+gAE";
const OPAQUE: &[u8] = b"caf\xe9 \xff";

fn opaque() -> HeaderValue {
    HeaderValue::from_bytes(OPAQUE).unwrap()
}

/// What the runtime was sent, but for the connection's number.
fn without_connection(mut calls: Vec<Call>) -> Vec<Call> {
    calls.iter_mut().for_each(|call| call.connection = 0);
    calls
}

/// The reply to a call straight at the runtime and through the proxy, after it was seen that both
/// sent the same.
async fn twice(node: &Node, request: RawRequest) -> (RawReply, RawReply) {
    let direct = node.direct().await.call(request.clone()).await.unwrap();
    let through = node.call(request.clone()).await;
    let calls = without_connection(node.calls(&request.path));
    let [.., straight, proxied] = &calls[..] else {
        panic!("two calls of {}: {calls:?}", request.path);
    };
    assert_eq!(straight, proxied, "{}", request.path);
    (direct, through)
}

#[tokio::test]
async fn unknown_fields_at_every_level_arrive_when_nothing_is_changed() {
    let node = Node::start();
    let pod = Pod::plain("plain");
    for (method, message) in [
        (method::RUN, pod.run().salted()),
        (method::CREATE, pod.create().salted()),
        (method::RUN, Pod::best_effort("be").run().salted()),
    ] {
        let reply = node.call(RawRequest::unary(method, message.clone())).await;
        assert_eq!(reply.grpc_status(), Some(0));
        assert_eq!(node.arrived(method), message, "{method}");
    }
    let as_is = |method| {
        node.metric(&format!(
            "calls_total{{method=\"{method}\",result=\"as_is\"}}"
        ))
    };
    assert_eq!(as_is("RunPodSandbox"), 2);
    assert_eq!(as_is("CreateContainer"), 1);
}

#[tokio::test]
async fn a_changed_creation_is_the_bytes_that_were_sent_and_then_ours() {
    let node = Node::start();
    let message = Pod::best_effort("be").create().salted();
    let reply = node
        .call(RawRequest::unary(method::CREATE, message.clone()))
        .await;
    assert_eq!(reply.grpc_status(), Some(0));
    let arrived = node.arrived(method::CREATE);
    let ours = arrived.strip_prefix(&message[..]).expect("as it was sent");

    let ours = CreateContainerRequest::decode(ours).unwrap();
    assert_eq!(
        (ours.pod_sandbox_id.as_str(), ours.sandbox_config),
        ("", None)
    );
    let config = ours.config.unwrap();
    let originals = r#"{"cpuShares":2,"cpuPeriod":100000,"unified":{"memory.oom.group":"1"},"ours":{"cpuShares":512,"cpuQuota":100000,"memoryLimit":1073741824}}"#;
    assert_eq!(
        config.annotations.into_iter().collect::<Vec<_>>(),
        [(
            "runtimeproxy.koordinator.sh/originals".to_owned(),
            originals.to_owned()
        )]
    );
    assert_eq!((config.metadata, config.image), (None, None));
    assert!(config.envs.is_empty() && config.command.is_empty() && config.labels.is_empty());
    let resources = config.linux.unwrap().resources.unwrap();
    assert_eq!(resources.cpu_shares, BATCH_SHARES);
    assert_eq!(resources.cpu_quota, BATCH_QUOTA);
    assert_eq!(resources.memory_limit_in_bytes, BATCH_MEMORY);

    // A runtime reads both parts as one message.
    let whole = CreateContainerRequest::decode(&arrived[..]).unwrap();
    let resources = whole.config.unwrap().linux.unwrap().resources.unwrap();
    assert_eq!(resources.cpu_shares, BATCH_SHARES);
    assert_eq!(resources.cpu_period, 100_000);
    assert_eq!(resources.oom_score_adj, 1_000);
    assert_eq!(resources.unified["memory.oom.group"], "1");
}

#[tokio::test]
async fn environment_values_are_bytes_and_equal_names_keep_their_order() {
    let envs: [(&str, &[u8]); 5] = [
        ("PATH", b"/bin"),
        ("KEY", b"\xff\xfe\x00\x01\x80"),
        ("TWICE", b"first"),
        ("TWICE", b"second"),
        ("EMPTY", b""),
    ];
    let with_envs = |pod: Pod| {
        envs.iter()
            .fold(pod, |pod, (key, value)| pod.env(*key, *value))
    };
    let node = Node::start();
    for pod in [Pod::plain("plain"), Pod::best_effort("be")] {
        let message = with_envs(pod).create().encode();
        node.call(RawRequest::unary(method::CREATE, message.clone()))
            .await;
        let arrived = node.arrived(method::CREATE);
        assert!(arrived.starts_with(&message));
        let arrived = CreateContainerRequest::decode(&arrived[..]).unwrap();
        let expected = envs.map(|(key, value)| KeyValue {
            key: key.to_owned(),
            value: value.to_vec(),
        });
        assert_eq!(arrived.config.unwrap().envs, expected);
    }
    // The second was changed, so it is not for lack of change that the values are there.
    assert_eq!(
        node.metric("calls_total{method=\"CreateContainer\",result=\"patched\"}"),
        1
    );
}

#[tokio::test]
async fn messages_that_cannot_be_read_pass_as_they_came() {
    let node = Node::start();
    // The last is a group, of which proto3 has none.
    for message in [
        &b"\xff\xff\xff"[..],
        b"\x0a\xff",
        b"\x12\x05no",
        b"\x13\x0a\x01x\x14",
    ] {
        node.call(RawRequest::unary(method::CREATE, message)).await;
        assert_eq!(node.arrived(method::CREATE), message);
    }
    assert_eq!(
        node.metric("calls_total{method=\"CreateContainer\",result=\"unhooked_unreadable\"}"),
        4
    );
}

#[tokio::test]
async fn methods_and_services_that_nobody_knows_are_called_as_without_us() {
    let node = Node::with(Script::new(Otherwise::Echo), &[]);
    for path in METHODS {
        let mut request = RawRequest::unary(path, &b"\x0a\x03abc\xff\xff"[..]);
        if !path.ends_with("CreateContainer") {
            // Streams of requests, one of none, and empty messages.
            request
                .messages
                .extend([Frame::plain(""), Frame::plain("x")]);
        }
        let sent = request.messages.clone();
        let (direct, through) = twice(&node, request).await;
        assert_eq!(through, direct, "{path}");
        assert_eq!((through.grpc_status(), &through.messages), (Some(0), &sent));
    }
    let nothing = RawRequest {
        messages: Vec::new(),
        ..RawRequest::unary("/a.b/None", "")
    };
    let (direct, through) = twice(&node, nothing).await;
    assert_eq!(through, direct);
}

#[tokio::test]
async fn metadata_and_deadlines_arrive_as_they_were_said() {
    let mut headers = HeaderMap::new();
    headers.insert("x-trace-bin", HeaderValue::from_static(BINARY));
    headers.append("x-many", HeaderValue::from_static("one"));
    headers.append("x-many", HeaderValue::from_static("two"));
    headers.insert("x-opaque", opaque());
    let mut trailers = status_block(0, "");
    trailers.insert("x-end-bin", HeaderValue::from_static(BINARY));
    let answer = |headers: &HeaderMap, trailers: &HeaderMap| {
        Reply::steps(vec![
            Step::AwaitEnd,
            Step::Headers(headers.clone()),
            Step::Echo,
            Step::Trailers(trailers.clone()),
        ])
    };
    for path in [method::CREATE, method::STATUS] {
        let script = Script::new(Otherwise::Echo).always(path, answer(&headers, &trailers));
        let node = Node::with(script, &[]);
        let request = RawRequest::unary(path, Pod::plain("plain").create().encode())
            .header("grpc-timeout", HeaderValue::from_static("1500m"))
            .header("user-agent", HeaderValue::from_static("grpc-go/1.58.3"))
            .header("grpc-accept-encoding", HeaderValue::from_static("gzip"))
            .header("x-many", HeaderValue::from_static("a"))
            .header("x-many", HeaderValue::from_static("b"))
            .header("x-opaque", opaque())
            .header("x-trace-bin", HeaderValue::from_static(BINARY));
        let (direct, through) = twice(&node, request).await;
        assert_eq!(through, direct, "{path}");
        assert_eq!(through.headers["x-opaque"], OPAQUE);
        assert_eq!(through.ending("x-end-bin").unwrap(), BINARY);
        let call = node.calls(path).pop().unwrap();
        let said = |name: &str| {
            let values = call.headers.iter().filter(|(header, _)| *header == name);
            values.map(|(_, value)| value.clone()).collect::<Vec<_>>()
        };
        assert_eq!(said("grpc-timeout"), ["1500m"]);
        assert_eq!(said("x-many"), ["a", "b"]);
        assert_eq!(said("x-opaque"), [opaque()]);
        assert_eq!(said("x-trace-bin"), [BINARY]);
    }
}

#[tokio::test]
async fn errors_of_every_shape_pass_with_code_message_and_details() {
    let after_a_message = Reply::steps(vec![
        Step::AwaitEnd,
        Step::Headers(HeaderMap::new()),
        Step::Message(Frame::plain("half of it")),
        Step::Trailers(status_block(8, "too much%21")),
    ]);
    let cut_short = Reply::steps(vec![
        Step::AwaitEnd,
        Step::Headers(HeaderMap::new()),
        Step::Data(Bytes::from_static(b"\0\0\0\0\x09half")),
        Step::Trailers(status_block(0, "")),
    ]);
    let no_grpc = {
        let mut block = HeaderMap::new();
        block.insert("content-type", HeaderValue::from_static("text/html"));
        Reply::steps(vec![Step::AwaitEnd, Step::TrailersOnly(block)])
    };
    for reply in [
        Reply::error(5, "container \"x\" not found"),
        Reply::error_with_details(13, "no", HeaderValue::from_static(BINARY)),
        after_a_message,
        cut_short,
        no_grpc,
    ] {
        for path in [method::CREATE, method::STATUS] {
            let node = Node::with(
                Script::new(Otherwise::Echo).always(path, reply.clone()),
                &[],
            );
            let message = Pod::plain("plain").create().encode();
            let (direct, through) = twice(&node, RawRequest::unary(path, message)).await;
            assert_eq!(through, direct, "{path}");
        }
    }
}

#[tokio::test]
async fn compressed_messages_pass_unopened_and_are_counted() {
    let node = Node::start();
    let gzip = || HeaderValue::from_static("gzip");
    let mut request = RawRequest::unary(method::CREATE, "").header("grpc-encoding", gzip());
    let frame = Frame {
        compressed: true,
        message: Pod::best_effort("be").create().encode().into(),
    };
    request.messages = vec![frame.clone()];
    let reply = node.call(request).await;
    assert_eq!(reply.grpc_status(), Some(0));
    assert_eq!(node.calls(method::CREATE)[0].messages, [frame]);
    assert_eq!(
        node.metric("calls_total{method=\"CreateContainer\",result=\"unopened_compressed\"}"),
        1
    );
}

#[tokio::test]
async fn trailers_of_64_kib_pass() {
    let mut trailers = status_block(0, "");
    let long = "v".repeat(64 << 10);
    trailers.insert("x-long", HeaderValue::from_str(&long).unwrap());
    let reply = Reply::steps(vec![
        Step::AwaitEnd,
        Step::Headers(HeaderMap::new()),
        Step::Echo,
        Step::Trailers(trailers),
    ]);
    for path in [method::CREATE, method::STATUS] {
        let node = Node::with(
            Script::new(Otherwise::Echo).always(path, reply.clone()),
            &[],
        );
        let message = Pod::plain("plain").create().encode();
        let reply = node.call(RawRequest::unary(path, message)).await;
        assert_eq!(reply.ending("x-long").unwrap(), &long, "{path}");
    }
}

#[tokio::test]
async fn messages_of_16_mib_pass_both_ways() {
    const LARGE: usize = 16 << 20;
    let node = Node::with(Script::new(Otherwise::Echo), &[]);
    let message: Bytes = (0..=250).cycle().take(LARGE).collect();
    let reply = node
        .call(RawRequest::unary(method::STATUS, message.clone()))
        .await;
    assert_eq!(reply.messages, [Frame::plain(message.clone())]);
    assert_eq!(node.arrived(method::STATUS), message);

    // Claimed: held, read, changed, and echoed with the change.
    let node = Node::with(Script::new(Otherwise::Echo), &[]);
    let pod = |value: usize| Pod::best_effort("be").env("LARGE", vec![0xa5; value]);
    let spare = 1_024;
    let head = pod(0).create().encode().len() + 16;
    let message = pod(LARGE - head - spare).create().encode();
    let reply = node
        .call(RawRequest::unary(method::CREATE, message.clone()))
        .await;
    let arrived = node.arrived(method::CREATE);
    assert!(arrived.starts_with(&message));
    assert!((1..=spare).contains(&(arrived.len() - message.len())));
    assert_eq!(reply.messages, [Frame::plain(arrived)]);

    // With the change it would be more than the runtime takes.
    let message = pod(LARGE - head).create().encode();
    assert!((LARGE - spare..=LARGE).contains(&message.len()));
    node.call(RawRequest::unary(method::CREATE, message.clone()))
        .await;
    assert_eq!(node.arrived(method::CREATE), message);
    assert_eq!(
        node.metric("calls_total{method=\"CreateContainer\",result=\"unhooked_too_large\"}"),
        1
    );

    // Too large to be held at all.
    let message = pod(LARGE + spare).create().encode();
    let reply = node
        .call(RawRequest::unary(method::CREATE, message.clone()))
        .await;
    assert_eq!(node.arrived(method::CREATE), message);
    assert_eq!(reply.messages, [Frame::plain(message)]);
    assert_eq!(
        node.metric("calls_total{method=\"CreateContainer\",result=\"unopened_too_large\"}"),
        1
    );
}

#[tokio::test]
async fn a_creation_that_the_runtime_refuses_leaves_nothing_in_the_ledger() {
    let node = Node::with(
        listed_once().once(method::CREATE, Reply::error(6, "there already")),
        &[],
    );
    let pod = Pod::best_effort("be");
    node.call(RawRequest::unary(method::RUN, pod.run().encode()))
        .await;
    let reply = node
        .call(RawRequest::unary(method::CREATE, pod.create().encode()))
        .await;
    assert_eq!(reply.grpc_status(), Some(6));
    let ledger = node.ledger();
    assert_eq!(ledger["pods"][0]["name"], "be");
    assert_eq!(ledger["pods"][0]["containers"], serde_json::json!([]));
}

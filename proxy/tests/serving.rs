//! What the modes change and what they leave, whom hooks leave alone, and how the process ends.
//! Flags, exit codes and sockets are in `cli.rs`.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test's own files, and its own failures"
)]

mod support;

use bytes::Bytes;
use koord_proto::cri;
use koord_testkit::{
    Frame, RawClient, RawRequest, RawStream,
    poll::{wait_until, wait_until_async},
    scripted::{CallEnd, Gate, Reply, Script},
};
use prost::Message;
use std::{
    fs,
    future::ready,
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::PathBuf,
    time::{Duration, Instant},
};
use support::{
    method,
    node::{Node, PATIENCE, listed_once, script},
    pod::{Pod, SANDBOX},
    wire::Tree,
};
use tokio::{
    task::JoinSet,
    time::{sleep, timeout},
};

const WAIT: &str = "/a.b/Wait";
/// Another one.
const OTHER_WAIT: &str = "/a.b/OtherWait";
const POD_STATUS: &str = "/runtime.v1.RuntimeService/PodSandboxStatus";

/// Bound for what should happen at once, long for a loaded machine. What must not be waited for takes
/// longer.
const AT_ONCE: Duration = Duration::from_secs(60);

/// Runs a pod and creates its container; whether the creation arrived as it was sent.
async fn arrives_as_sent(node: &Node, pod: &Pod) -> bool {
    let client = node.client().await;
    for (method, tree) in [(method::RUN, pod.run()), (method::CREATE, pod.create())] {
        let request = RawRequest::unary(method, tree.encode());
        let reply = client.call(request).await.unwrap();
        assert_eq!(reply.grpc_status(), Some(0));
    }
    assert_eq!(node.arrived(method::RUN), pod.run().encode());
    node.arrived(method::CREATE) == pod.create().encode()
}

fn creations(node: &Node, result: &str) -> u64 {
    node.metric(&format!(
        "calls_total{{method=\"CreateContainer\",result=\"{result}\"}}"
    ))
}

/// Setting, desired value, owner and what was done, of the one container.
fn decisions(node: &Node) -> Vec<[String; 4]> {
    let ledger = node.ledger();
    let container = &ledger["pods"][0]["containers"][0];
    assert_eq!(container["name"], "main");
    let settings = container["settings"].as_array().unwrap().iter();
    let text = |value: &serde_json::Value| value.as_str().unwrap().to_owned();
    settings
        .map(|it| ["setting", "desired", "owner", "applied"].map(|key| text(&it[key])))
        .collect()
}

#[test]
fn code_that_the_start_alone_needs_is_resident_no_more() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy.yaml");
    let text =
        "{apiVersion: slo.koordinator.sh/v1alpha1, kind: NodeSLO, metadata: {name: node-1}}\n";
    fs::write(&policy, text).unwrap();
    let node = Node::with(script(), &[&format!("--node-policy={}", policy.display())]);
    // Without that a process that nobody has called yet goes on to have as much as it ever had: of code it has
    // four megabytes.
    wait_until("the code of the start is released", || {
        node.resident_kib() + 1_024 < node.peak_kib()
    });
}

#[tokio::test]
async fn observing_decides_and_keeps_the_ledger_and_changes_nothing() {
    let pod = Pod::best_effort("be");
    let observing = Node::with(listed_once(), &["--mode=observe"]);
    assert!(arrives_as_sent(&observing, &pod).await);
    assert_eq!(creations(&observing, "unhooked_observing"), 1);
    let batch = |setting: &str, desired: &str| {
        [setting, desired, "BatchResource", "pending"].map(str::to_owned)
    };
    let decided = [
        batch("cpu.shares", "512"),
        batch("cpu.cfs_quota_us", "100000"),
        batch("memory.limit_in_bytes", "1073741824"),
    ];
    assert_eq!(decisions(&observing), decided);

    // Enforcing decides the same and changes the request.
    let enforcing = Node::with(listed_once(), &[]);
    assert!(!arrives_as_sent(&enforcing, &pod).await);
    assert_eq!(creations(&enforcing, "patched"), 1);
    let values = |node| {
        decisions(node)
            .into_iter()
            .map(|[setting, desired, ..]| (setting, desired))
    };
    assert!(values(&enforcing).eq(values(&observing)));
}

#[tokio::test]
async fn pods_and_handlers_that_are_exempt_are_left_alone() {
    let skip = "runtimeproxy.koordinator.sh/skip-hookserver";
    let be = || Pod::best_effort("be");
    for (pod, args) in [
        (be().label(skip, "true"), &[][..]),
        (
            be().label("my/skip", "yes"),
            &[
                "--runtime-hook-server-key=my/skip",
                "--runtime-hook-server-val=yes",
            ],
        ),
        (be(), &["--excluded-namespaces=kube-system,default"]),
        (be().handler("kata"), &["--excluded-runtime-handlers=kata"]),
        (be().handler("mine"), &["--excluded-runtime-handlers=mine"]),
    ] {
        let node = Node::with(listed_once(), args);
        assert!(arrives_as_sent(&node, &pod).await, "{args:?}");
        assert_eq!(creations(&node, "unhooked_exempt"), 1);
    }
    for (pod, args) in [
        (be().label(skip, "false"), &[][..]),
        (be(), &["--excluded-namespaces=kube-system"]),
        (be().handler("kata"), &["--excluded-runtime-handlers=mine"]),
    ] {
        let node = Node::with(listed_once(), args);
        assert!(!arrives_as_sent(&node, &pod).await, "{args:?}");
    }
}

/// Has creations wait for a list for so long, where this one handler is excluded.
const WAITING: [&str; 2] = ["--hold-timeout=30s", "--excluded-runtime-handlers=kata"];

/// A list of the sandbox of the tests, with this handler.
fn listed(handler: &str) -> Reply {
    let metadata = Tree::new().bytes(1, "be").bytes(2, "uid-be");
    let sandbox = Tree::new()
        .bytes(1, SANDBOX)
        .message(2, metadata)
        .bytes(7, handler);
    Reply::message(Tree::new().message(1, sandbox).encode())
}

/// A node that was started again and whose runtime does not answer the list before the gate opens;
/// it has the sandbox of the tests, with this handler. How often it was listed before.
fn started_again(handler: &str, gate: &Gate, args: &[&str]) -> (Node, usize) {
    let listed = listed(handler);
    let answers = script()
        .once(method::LIST, listed.clone())
        .always(method::LIST, listed.held(gate))
        .always(POD_STATUS, Reply::message(""));
    let mut node = Node::with(answers, args);
    node.signal("-KILL");
    node.ended();
    let lists = node.calls(method::LIST).len();
    node.restart();
    (node, lists)
}

#[tokio::test]
async fn just_after_a_start_a_creation_waits_for_the_handler_of_its_pod() {
    let message = Pod::best_effort("be").create().encode();
    for (handler, untouched) in [("kata", true), ("", false)] {
        let gate = Gate::new();
        let (node, lists) = started_again(handler, &gate, &WAITING);
        let client = node.client().await;
        let call = begin(&client, method::CREATE, message.clone()).await;
        // A later call on the same connection is answered: the one before it is held.
        let status = client.call(RawRequest::unary(method::STATUS, ""));
        status.await.unwrap();
        wait_until_async("the list", || async {
            node.calls(method::LIST).len() > lists
        })
        .await;
        let held = &node.calls(method::CREATE)[0];
        assert_eq!((&held.messages[..], held.end), (&[][..], CallEnd::Open));

        gate.open();
        assert_eq!(call.collect().await.grpc_status(), Some(0));
        let as_sent = node.arrived(method::CREATE) == message;
        assert_eq!(as_sent, untouched, "{handler}");
    }
}

#[tokio::test]
async fn a_creation_waits_no_longer_than_it_may_and_not_at_all_where_nothing_follows_from_it() {
    let message = Pod::best_effort("be").create().encode();
    let kata = "--excluded-runtime-handlers=kata";
    let none = "--excluded-runtime-handlers=";
    for (args, as_sent, unknown) in [
        (&["--hold-timeout=100ms", kata][..], true, 5),
        (&["--hold-timeout=30s", none], false, 0),
        // Nothing would be said.
        (&["--hold-timeout=30s", kata, "--mode=observe"], true, 0),
    ] {
        let (node, _) = started_again("", &Gate::new(), args);
        let start = Instant::now();
        // So many that none may have waited for as long as it may.
        for _ in 0..5 {
            let request = RawRequest::unary(method::CREATE, message.clone());
            assert_eq!(node.call(request).await.grpc_status(), Some(0));
        }
        let took = start.elapsed();
        assert!(took < AT_ONCE, "{took:?}");
        // Without knowing the handler it is left as it is.
        assert_eq!(node.arrived(method::CREATE) == message, as_sent);
        assert_eq!(creations(&node, "unhooked_unknown_pod"), unknown);
        assert!(!node.is_ready());
    }
}

#[tokio::test]
async fn a_creation_in_a_sandbox_that_nobody_told_of_waits_for_the_next_list() {
    let message = Pod::best_effort("be").create().encode();
    for (handler, result) in [("kata", "unhooked_exempt"), ("", "patched")] {
        // When the first list came the sandbox was not there yet.
        let answers = script()
            .once(method::LIST, Reply::message(""))
            .always(method::LIST, listed(handler))
            .always(POD_STATUS, Reply::message(""));
        let node = Node::with(answers, &WAITING);
        let request = RawRequest::unary(method::CREATE, message.clone());
        assert_eq!(node.call(request).await.grpc_status(), Some(0));
        assert_eq!(creations(&node, result), 1, "{handler}");
        let as_sent = node.arrived(method::CREATE) == message;
        assert_eq!(as_sent, !handler.is_empty(), "{handler}");
    }
}

#[tokio::test]
async fn a_creation_in_a_sandbox_that_no_list_tells_of_passes_as_it_came() {
    let message = Pod::best_effort("be").create().encode();
    // The next list has no end, and then one comes that does not have the sandbox either.
    let kata = "--excluded-runtime-handlers=kata";
    for (answers, hold) in [(listed_once(), "100ms"), (script(), "30s")] {
        let node = Node::with(answers, &[&format!("--hold-timeout={hold}"), kata]);
        let request = RawRequest::unary(method::CREATE, message.clone());
        assert_eq!(node.call(request).await.grpc_status(), Some(0));
        assert_eq!(creations(&node, "unhooked_unknown_pod"), 1, "{hold}");
        assert_eq!(node.arrived(method::CREATE), message, "{hold}");
    }
}

#[tokio::test]
async fn after_three_crashes_in_a_minute_everything_passes_as_it_came() {
    let mut node = Node::start();
    let pod = Pod::best_effort("be");
    assert!(!arrives_as_sent(&node, &pod).await);
    for _ in 0..3 {
        node.signal("-KILL");
        node.ended();
        node.restart();
    }
    assert_eq!(node.metric("mode{mode=\"pass-through\"}"), 1);
    let lists = node.calls(method::LIST).len();
    assert!(arrives_as_sent(&node, &pod).await);
    // Claims are off: nothing was opened, decided or asked.
    assert_eq!(creations(&node, "as_is"), 0);
    let empty = serde_json::json!({"pods": [], "node": [], "leftSettings": []});
    assert_eq!(node.ledger(), empty);
    assert_eq!(node.calls(method::LIST).len(), lists);
}

async fn begin(client: &RawClient, path: &str, message: impl Into<Bytes>) -> RawStream {
    let mut stream = client.open(path, Vec::new()).await.unwrap();
    let frame = Frame::plain(message);
    stream.send_data(frame.encode(), true).unwrap();
    stream
}

/// Waits until the runtime has all of the one call of this method.
async fn arrived(script: &Script, method: &str) {
    let whole = || async {
        let calls = script.calls();
        let mut calls = calls.iter().filter(|call| call.path == method);
        calls.any(|call| call.end == CallEnd::Complete)
    };
    wait_until_async("the call", whole).await;
}

#[tokio::test]
async fn at_a_stop_calls_in_flight_finish_and_no_new_ones_are_taken() {
    let gate = Gate::new();
    let late = Reply::message("late").held(&gate);
    let mut node = Node::with(
        script()
            .always(WAIT, late.clone())
            .once(method::START, late),
        &["--grace-period=10m"],
    );
    let client = node.client().await;
    let idle = node.client().await;
    idle.call(RawRequest::unary("/a.b/Echo", "x"))
        .await
        .unwrap();
    let claimed = begin(&client, method::START, "\x0a\x01x").await;
    let other = begin(&client, WAIT, "").await;
    arrived(node.script(), method::START).await;
    arrived(node.script(), WAIT).await;

    node.signal("-TERM");
    // GOAWAY has come: the library opens no more streams here, and idle connections end.
    let refused = async || client.open("/a.b/New", Vec::new()).await.is_err();
    wait_until_async("the client has heard of it", refused).await;
    // Both ends close; which is first is chance, and the other may find nobody to tell.
    idle.closed().await.ok();
    assert!(UnixStream::connect(node.socket()).is_err());

    gate.open();
    for stream in [claimed, other] {
        let reply = stream.collect().await;
        assert_eq!(reply.messages, [Frame::plain("late")]);
        assert_eq!(reply.grpc_status(), Some(0));
    }
    // Long before the grace is over.
    assert_eq!(node.ended().code(), Some(0));
}

#[tokio::test]
async fn at_a_stop_a_socket_that_stays_is_served_until_the_calls_in_flight_are_done() {
    let (first, second) = (Gate::new(), Gate::new());
    let late = Reply::message("late");
    let script = script()
        .once(WAIT, late.clone().held(&first))
        .once(OTHER_WAIT, late.held(&second));
    let mut node = Node::handed(script, &["--grace-period=10m"]);
    let client = node.client().await;
    let call = begin(&client, WAIT, "").await;
    arrived(node.script(), WAIT).await;

    node.signal("-TERM");
    let refused = async || client.open("/a.b/New", Vec::new()).await.is_err();
    wait_until_async("the client has heard of it", refused).await;
    // The next of us is not there before this one has ended.
    let newcomer = node.client().await;
    let echo = || RawRequest::unary("/a.b/Echo", "x");
    let reply = newcomer.call(echo()).await.unwrap();
    assert_eq!(reply.messages, [Frame::plain("x")]);

    // It may have a long call of its own.
    let its_call = begin(&newcomer, OTHER_WAIT, "").await;
    arrived(node.script(), OTHER_WAIT).await;
    first.open();
    assert_eq!(call.collect().await.messages, [Frame::plain("late")]);
    let refused = async || newcomer.open("/a.b/New", Vec::new()).await.is_err();
    wait_until_async("the newcomer has heard of it", refused).await;
    let reply = node.call(echo()).await;
    assert_eq!(reply.messages, [Frame::plain("x")]);

    second.open();
    assert_eq!(its_call.collect().await.messages, [Frame::plain("late")]);
    // Long before the grace is over, and clients wait for the next of us.
    assert_eq!(node.ended().code(), Some(0));
    assert!(UnixStream::connect(node.socket()).is_ok());
    assert!(!node.log().contains("stopped with calls in flight"));
}

/// Calls one thing after another, and connects again where it is told to go.
async fn call_on(socket: PathBuf, begin: Duration) {
    sleep(begin).await;
    loop {
        // Who connects once nobody serves the socket waits there.
        let client = RawClient::connect(&socket).await.unwrap();
        while let Ok(reply) = client.call(RawRequest::unary(WAIT, "")).await {
            assert_eq!(reply.grpc_status(), Some(0));
        }
    }
}

#[tokio::test]
async fn at_a_stop_calls_that_follow_each_other_do_not_keep_it_going() {
    let reply = Reply::message("late").after(Duration::from_millis(1_500));
    let flags = ["--grace-period=10m"];
    let mut node = Node::handed(script().always(WAIT, reply), &flags);
    // No two of them begin or end together.
    let mut callers = JoinSet::new();
    for begin in [0, 375, 750, 1_125] {
        callers.spawn(call_on(node.socket(), Duration::from_millis(begin)));
    }
    arrived(node.script(), WAIT).await;
    sleep(Duration::from_secs(2)).await;
    node.signal("-TERM");
    wait_until_async("the end of the proxy", || ready(node.has_ended())).await;
    assert_eq!(node.ended().code(), Some(0));
    assert!(!node.log().contains("stopped with calls in flight"));
    callers.abort_all();
    while let Some(ended) = callers.join_next().await {
        assert!(ended.is_err_and(|ended| ended.is_cancelled()));
    }
}

#[tokio::test]
async fn at_a_stop_who_waits_for_a_place_waits_no_longer_than_else() {
    let flags = [
        "--large-message-slots=1",
        "--hold-timeout=2s",
        "--grace-period=10m",
    ];
    let mut node = Node::with(script(), &flags);
    // Three MiB are said to come, and do not; they have the one place.
    let halting = node.client().await;
    let mut half = halting.open(method::CREATE, Vec::new()).await.unwrap();
    half.send_data(Bytes::from_static(&[0, 0, 0x30, 0, 0, 1, 2, 3]), false)
        .unwrap();
    let holds = async |bytes| node.metric("held_bytes") >= bytes;
    wait_until_async("the start is held", async || holds(8).await).await;
    let client = node.client().await;
    let waiting = begin(&client, method::CREATE, vec![0; 2 << 20]).await;
    wait_until_async("the other waits", async || holds(1 << 20).await).await;
    node.signal("-TERM");
    let reply = timeout(PATIENCE, waiting.collect()).await;
    assert_eq!(reply.expect("it is let on").grpc_status(), Some(0));
    drop(half);
    halting.closed().await.ok();
    client.closed().await.ok();
    assert_eq!(node.ended().code(), Some(0));
}

#[tokio::test]
async fn a_runtime_that_takes_connections_and_says_nothing_does_not_cost_the_whole_grace() {
    let mut node = Node::without_runtime(&["--grace-period=10m"]);
    std::fs::remove_file(node.path("runtime.sock")).ok();
    let mute = UnixListener::bind(node.path("runtime.sock")).unwrap();
    let mut client = UnixStream::connect(node.socket()).unwrap();
    // Its SETTINGS are like nobody else's.
    let mut opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    opening.extend([0, 0, 6, 4, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 77]);
    client.write_all(&opening).unwrap();
    let mut taken = Vec::new();
    loop {
        let (mut connection, _) = mute.accept().unwrap();
        connection.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut seen = vec![0; opening.len()];
        connection.read_exact(&mut seen).unwrap();
        taken.push(connection);
        if seen == opening {
            break;
        }
    }
    node.signal("-TERM");
    assert_eq!(node.ended().code(), Some(0));
    assert!(!node.log().contains("stopped with calls in flight"));
}

#[tokio::test]
async fn a_dead_client_without_a_call_does_not_cost_the_whole_grace() {
    let mut node = Node::with(script(), &["--grace-period=10m"]);
    let mut client = UnixStream::connect(node.socket()).unwrap();
    client.set_read_timeout(Some(AT_ONCE)).unwrap();
    let mut opening = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    opening.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    client.write_all(&opening).unwrap();
    // The runtime's SETTINGS: from here on it would be told to go, and never says that it heard.
    client.read_exact(&mut [0; 9]).unwrap();
    node.signal("-TERM");
    assert_eq!(node.ended().code(), Some(0));
    assert!(!node.log().contains("stopped with calls in flight"));
}

/// A call that is never answered holds up the end of a node for as long as it was told to wait.
async fn is_waited_for(start: impl FnOnce(Script, &[&str]) -> Node, grace: Duration) {
    let never = Reply::message("never").held(&Gate::new());
    let grace_period = format!("--grace-period={}s", grace.as_secs());
    let mut node = start(script().always(WAIT, never), &[&grace_period]);
    let client = node.client().await;
    let call = begin(&client, WAIT, "").await;
    arrived(node.script(), WAIT).await;
    let begun = Instant::now();
    node.signal("-TERM");
    assert_eq!(call.collect().await.grpc_status(), None);
    assert_eq!(node.ended().code(), Some(0));
    let took = begun.elapsed();
    assert!(took >= grace, "{took:?}");
    assert!(node.log().contains("stopped with calls in flight"));
}

#[tokio::test]
async fn a_call_that_does_not_finish_is_waited_for_as_long_as_was_said() {
    is_waited_for(Node::with, Duration::from_secs(1)).await;
}

#[tokio::test]
async fn a_call_that_does_not_finish_holds_up_a_socket_that_stays_as_long() {
    is_waited_for(Node::handed, Duration::from_secs(5)).await;
}

#[test]
fn the_thread_for_groups_is_there_from_the_start_where_a_hook_can_use_it() {
    let has = |node: &Node, name: &str| node.threads().iter().any(|it| it == name);
    let node = Node::with(script(), &["--feature-gates=OOMScoreAdj=true"]);
    wait_until("it has started", || has(&node, "thread-groups"));
    let node = Node::with(script(), &["--feature-gates=RdtResctrl=false"]);
    // It starts after all of those that write.
    wait_until("the last one has started", || has(&node, "neighbour"));
    assert!(!has(&node, "thread-groups"));
}

fn remarks(node: &Node) -> Vec<String> {
    let status = node.status();
    let remarks = status["remarks"].as_array().unwrap().iter();
    remarks.map(|it| it.as_str().unwrap().to_owned()).collect()
}

#[tokio::test]
async fn what_a_person_should_know_of_this_moment_is_told_in_sentences() {
    let policy = "--node-policy=/no-such-directory/policy.yaml";
    let node = Node::with(
        listed_once(),
        &[policy, "--pods=/no-such-directory/pods.yaml"],
    );
    let request = cri::RunPodSandboxRequest {
        config: Some(cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata {
                uid: "uid-1".to_owned(),
                namespace: "default".to_owned(),
                name: "elsewhere".to_owned(),
                ..Default::default()
            }),
            linux: Some(cri::LinuxPodSandboxConfig {
                cgroup_parent: "/other/kubepods/poduid-1".to_owned(),
            }),
            ..Default::default()
        }),
        runtime_handler: String::new(),
    };
    let run = RawRequest::unary(method::RUN, request.encode_to_vec());
    assert_eq!(node.call(run).await.grpc_status(), Some(0));
    let policy = "the policy file cannot be used as it is, so there is no policy in force: cannot \
                  read /no-such-directory/policy.yaml: No such file or directory (os error 2)";
    wait_until(policy, || remarks(&node).iter().any(|it| it == policy));
    let pods = "the source of pods tells nothing, so what requests and lists say counts of pods: cannot read \
                /no-such-directory/pods.yaml: No such file or directory (os error 2)";
    wait_until(pods, || remarks(&node).iter().any(|it| it == pods));
    // What follows is the name that this machine's kubelet would give it.
    let elsewhere = "a pod's control group is /other/kubepods/poduid-1, which is not below \
                     /no-such-root/";
    let question = ", where the kubelet's pods are taken to be: is --cgroup-root the kubelet's \
                    cgroupRoot?";
    let is_told = |it: &String| it.starts_with(elsewhere) && it.ends_with(question);
    wait_until(elsewhere, || remarks(&node).iter().any(is_told));
    let runtime = |it: &String| it.contains("the runtime does not answer");
    assert!(!remarks(&node).iter().any(runtime), "it has been listed");
}

#[test]
fn a_runtime_that_does_not_answer_is_told_by_its_socket() {
    let node = Node::without_runtime(&[]);
    let remark = format!(
        "the runtime does not answer at {}: what is known of its pods may be old, and it is asked \
         again until it answers",
        node.path("runtime.sock").display()
    );
    wait_until(&remark, || remarks(&node).contains(&remark));
    let passing = Node::without_runtime(&["--mode=pass-through"]);
    let told = remarks(&passing).concat();
    assert!(!told.contains("does not answer"), "it is not asked there");
}

#[test]
fn a_policy_of_other_nodes_alone_is_told_with_the_name_of_this_one() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy.yaml");
    let of_another = "{apiVersion: slo.koordinator.sh/v1alpha1, kind: NodeSLO, \
                      metadata: {name: node-2}, spec: {}}\n";
    std::fs::write(&policy, of_another).unwrap();
    let node = Node::without_runtime(&[&format!("--node-policy={}", policy.display())]);
    let remark = "the policy file is about other nodes alone: is node-1 this node's name in the \
                  cluster?";
    wait_until(remark, || remarks(&node).iter().any(|it| it == remark));
}

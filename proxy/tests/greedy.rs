//! Clients that want more than their share: places and memory have bounds, and nobody else notices.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use bytes::Bytes;
use koord_hooks::Chain;
use koord_testkit::{
    Frame, RawClient, RawReply, RawRequest, RawStream,
    poll::wait_until_async,
    scripted::{Gate, Otherwise, Reply, Script},
};
use std::{collections::VecDeque, path::PathBuf, time::Duration};
use support::{
    bystander::{Bystander, HOLD_TIMEOUT, assert_closed, script_with},
    frame,
    inside::{Inside, serve, windows_of_64_kib},
    method,
    node::{self, Node, PATIENCE},
    pod::Pod,
    wire::Tree,
};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    task::{LocalSet, spawn_local},
    time::timeout,
};

const MIB: usize = 1 << 20;
/// Bytes before a message that tell its length.
const HEAD: usize = 5;
/// Bytes of what is sent of one that stays half sent.
const HALF: usize = HEAD + 8 * MIB;

#[tokio::test]
async fn a_request_that_names_a_million_files_costs_what_it_is_long() {
    const FILES: u32 = 1 << 20;
    let node = Node::start();
    // Each the name of a file and nothing more: field 9 of the resources in field 2.
    let mut resources = Vec::new();
    for number in 0..FILES {
        resources.extend([0x4a, 6, 0x0a, 4]);
        let digit = |shift: u32| b'0' + u8::try_from((number >> shift) & 63).unwrap();
        resources.extend([18, 12, 6, 0].map(digit));
    }
    let before = node.resident_kib();
    let request = Tree::new().bytes(1, "container-1").bytes(2, resources);
    let reply = node.call(RawRequest::unary(method::UPDATE, request.encode()));
    assert_eq!(reply.await.grpc_status(), Some(0));
    // 8 MiB of it came, and were held until the runtime had them.
    let grown = node.peak_kib() - before;
    assert!(grown < 40 * 1_024, "grew by {grown} KiB");
}

#[tokio::test]
async fn pods_with_tens_of_thousands_of_annotations_are_listed_for_what_the_list_is_long() {
    const PODS: usize = 32;
    const ANNOTATIONS: u32 = 60_000;
    // sandbox { metadata { name: "pod" uid: "uid-NN" namespace: "ns" } annotations { "abcd": "" } ... }
    let metadata = |pod: usize| {
        let metadata = Tree::new()
            .bytes(1, "pod")
            .bytes(2, format!("uid-{pod:02}"));
        metadata.bytes(3, "ns").encode()
    };
    let mut annotations = Vec::new();
    for number in 0..ANNOTATIONS {
        let digit = |shift: u32| b'a' + u8::try_from((number >> shift) & 15).unwrap();
        annotations.extend([0x32, 6, 0x0a, 4]);
        annotations.extend([12, 8, 4, 0].map(digit));
    }
    let list = (0..PODS).fold(Tree::new(), |list, pod| {
        let sandbox = Tree::new().bytes(1, format!("sandbox-{pod:02}"));
        let mut sandbox = sandbox.bytes(2, metadata(pod)).encode();
        sandbox.extend_from_slice(&annotations);
        list.bytes(1, sandbox)
    });
    let list = list.encode();
    // As much as containerd sends at most, nearly.
    assert_eq!(list.len(), 15_361_120);
    let parent = r#"{"config":{"linux":{"cgroup_parent":"/elsewhere"}}}"#;
    let info = Tree::new().bytes(1, "info").bytes(2, parent).encode();
    let status = Tree::new().bytes(2, info).encode();
    let script = node::script()
        .always(method::LIST, Reply::message(list))
        .always(method::SANDBOX_STATUS, Reply::message(status));
    let node = Node::with(script, &[]);
    assert_eq!(node.metric("ledger_pods"), 32);
    let peak = node.peak_kib();
    assert!(peak < 64 * 1_024, "{peak} KiB at the most");
}

#[tokio::test]
async fn ten_thousand_connects_push_out_each_other_and_nobody_who_has_spoken() {
    const CONNECTS: u64 = 10_000;
    const CAP: u64 = 512;
    const SPEAKERS: u64 = 20;
    koord_kernel::process::raise_nofile().unwrap();
    let gate = Gate::new();
    let node = Node::with(script_with(&gate), &[HOLD_TIMEOUT]);
    let mut speakers = Vec::new();
    for _ in 0..SPEAKERS {
        speakers.push(Bystander::at(&node).await);
    }
    let before = node.resident_kib();
    let mut strangers = VecDeque::new();
    for number in 1..=CONNECTS {
        strangers.push_back(UnixStream::connect(node.socket()).await.unwrap());
        if number % 100 == 0 {
            let met = || async { node.metric("connections_total") == SPEAKERS + number };
            wait_until_async("all were accepted", met).await;
            speakers[0].works().await;
            // Those that are dropped here were pushed out long ago.
            strangers.drain(..strangers.len().saturating_sub(600));
        }
    }
    assert_eq!(node.metric("connections_open"), CAP);
    let refused = || node.metric("connections_refused_total{reason=\"too_many\"}");
    assert_eq!(refused(), CONNECTS - (CAP - SPEAKERS));
    // A new one works though the house is full.
    let reply = node.call(RawRequest::unary("/a.b/Echo", "x")).await;
    assert_eq!(reply.messages, [Frame::plain("x")]);
    for speaker in &speakers {
        speaker.works().await;
    }
    let grown = node.resident_kib().saturating_sub(before);
    assert!(grown < 16 * 1_024, "{before} KiB grew by {grown} KiB");
    drop(strangers);
    let left = || async { node.metric("connections_open") <= SPEAKERS + 1 };
    wait_until_async("the strangers have gone", left).await;
    for speaker in speakers {
        speaker.noticed_nothing(&gate).await;
    }
}

#[tokio::test]
async fn when_all_places_are_taken_by_clients_that_speak_the_next_waits_outside() {
    let gate = Gate::new();
    let node = Node::with(script_with(&gate), &[HOLD_TIMEOUT, "--max-connections=3"]);
    let mut inside = Vec::new();
    for _ in 0..3 {
        inside.push(Bystander::at(&node).await);
    }
    for _ in 0..3 {
        assert_closed(&node, "one too many", &frame::hello(&[])).await;
    }
    assert_eq!(
        node.metric("connections_refused_total{reason=\"too_many\"}"),
        3
    );
    for bystander in &inside {
        bystander.works().await;
    }
    drop(inside.pop());
    let place = || async { node.metric("connections_open") == 2 };
    wait_until_async("a place is free", place).await;
    inside.push(Bystander::at(&node).await);
    for bystander in inside {
        bystander.noticed_nothing(&gate).await;
    }
}

#[tokio::test]
async fn connections_that_somebody_leaks_make_room_and_one_with_a_call_stays() {
    let gate = Gate::new();
    let node = Node::with(script_with(&gate), &[HOLD_TIMEOUT, "--max-connections=8"]);
    let bystander = Bystander::at(&node).await;
    let room = || async { node.metric("connections_open") < 8 };
    let mut dead = Vec::new();
    let mut leaked = Vec::new();
    for number in 0..16 {
        if number < 2 {
            // It has spoken, and never answers.
            let mut client = UnixStream::connect(node.socket()).await.unwrap();
            client.write_all(&frame::hello(&[])).await.unwrap();
            client.read_exact(&mut [0; 9]).await.unwrap();
            dead.push(client);
        } else {
            let client = node.client().await;
            let echo = RawRequest::unary("/a.b/Echo", "x");
            let reply = client.call(echo).await.unwrap();
            assert_eq!(reply.messages, [Frame::plain("x")]);
            leaked.push(client);
        }
        wait_until_async("there is room for the next", room).await;
    }
    // The eighth and all after it had somebody asked to go.
    assert_eq!(node.metric("connections_asked_to_go_total"), 10);
    bystander.noticed_nothing(&gate).await;
}

/// Begins many messages of 16 MiB and ends none of them.
async fn half_send(client: &RawClient, streams: usize) -> Vec<RawStream> {
    let head = frame::message_head(u32::try_from(16 * MIB).unwrap());
    let half: Bytes = [head, vec![0; HALF - HEAD]].concat().into();
    let mut opened = Vec::new();
    for _ in 0..streams {
        let mut stream = client.open(method::CREATE, Vec::new()).await.unwrap();
        stream.send_data(half.clone(), false).unwrap();
        opened.push(stream);
    }
    opened
}

/// Waits until so many bytes of requests have arrived and went no further.
async fn holds(inside: &Inside, bytes: usize) {
    let bytes = u64::try_from(bytes).unwrap();
    let held = || async { inside.metric("held_bytes") >= bytes };
    wait_until_async("the messages are there", held).await;
}

#[tokio::test]
async fn large_messages_half_sent_cost_a_bounded_sum_and_others_notice_nothing() {
    let attack = async {
        let gate = Gate::new();
        let script = script_with(&gate);
        // One that waits for it passes unopened, which is seen of a bystander's.
        let node = Node::without_runtime(&["--hold-timeout=2s"]);
        serve(&script, &node.path("runtime.sock"), &windows_of_64_kib());
        let bystander = Bystander::at(&node).await;
        let before = node.resident_kib();
        let grown = || node.resident_kib().saturating_sub(before);
        let attacker = node.client().await;
        let streams = half_send(&attacker, 64).await;
        // Four places of 8 MiB are filled.
        let filled = || async { grown() > 32 * 1_024 };
        wait_until_async("the places are taken", filled).await;
        let mut most = 0;
        for _ in 0..200 {
            bystander.works().await;
            most = most.max(grown());
        }
        // 4 places of 16 MiB and 64 MiB beside them, for messages that lost their place half sent, and
        // what the bookkeeping costs, where 512 MiB would come.
        assert!(most < 180 * 1_024, "{before} KiB grew by {most} KiB");
        // A large message that nobody opens needs no place.
        let large = RawRequest::unary("/a.b/Echo", vec![5; 4 * MIB]);
        let reply = bystander.client.call(large).await.unwrap();
        assert_eq!(reply.messages[0].message.len(), 4 * MIB);

        // One that is opened does not wait for a place for ever.
        let message = Pod::plain("p").env("LARGE", vec![5; MIB]).create().encode();
        let large = RawRequest::unary(method::CREATE, message);
        let reply = bystander.client.call(large).await.unwrap();
        assert_eq!(reply.grpc_status(), Some(0));
        let crowded = "calls_total{method=\"CreateContainer\",result=\"unopened_crowded\"}";
        assert!(node.metric(crowded) >= 1);
        // By now those that waited for a place have passed too.
        bystander.works().await;
        most = most.max(grown());
        assert!(most < 180 * 1_024, "{before} KiB grew by {most} KiB");

        drop((streams, attacker));
        let given_back = || async { grown() < 24 * 1_024 };
        wait_until_async("memory is given back", given_back).await;
        bystander.noticed_nothing(&gate).await;
    };
    LocalSet::new().run_until(attack).await;
}

/// Each just below its stream's window, so that none of them wants a place.
#[tokio::test]
async fn thousands_of_small_messages_half_sent_fill_their_room_and_no_more() {
    const STREAMS: usize = 6_000;
    let attack = async {
        let gate = Gate::new();
        let script = script_with(&gate);
        let node = Node::without_runtime(&[HOLD_TIMEOUT]);
        serve(&script, &node.path("runtime.sock"), &windows_of_64_kib());
        let bystander = Bystander::at(&node).await;
        let before = node.resident_kib();
        let grown = || node.resident_kib().saturating_sub(before);
        let attacker = node.client().await;
        let head = frame::message_head(65_000);
        let most: Bytes = [head, vec![0; 64_999]].concat().into();
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            let mut stream = attacker.open(method::CREATE, Vec::new()).await.unwrap();
            stream.send_data(most.clone(), false).unwrap();
            streams.push(stream);
            if streams.len() % 100 == 0 {
                bystander.works().await;
            }
        }
        let crowded = "calls_total{method=\"CreateContainer\",result=\"unopened_crowded\"}";
        let full = || async { node.metric(crowded) > 0 };
        wait_until_async("the room is full", full).await;
        bystander.works().await;
        // As much as 4 places of 16 MiB, not the 64 MiB that others have for themselves, and what the
        // bookkeeping costs, where 372 MiB would come.
        let most = grown();
        assert!(most < 140 * 1_024, "{before} KiB grew by {most} KiB");
        drop((streams, attacker));
        bystander.noticed_nothing(&gate).await;
    };
    LocalSet::new().run_until(attack).await;
}

#[tokio::test]
async fn messages_are_opened_again_once_others_have_made_room() {
    // With 64 MiB, and one that each of the 64 connections has for itself, the room is full.
    const STREAMS: usize = 1_100;
    let test = async {
        let inside = Inside::holding(Chain::empty(), Duration::from_secs(60));
        let listener = UnixListener::bind(inside.runtime_socket()).unwrap();
        spawn_local(never_grants(listener));
        let client = RawClient::connect(&inside.socket()).await.unwrap();
        // Of a container that nobody knows: it is held for a list, which never comes.
        let small = Tree::new().bytes(1, "x");
        let update = async |message: &Tree| {
            let mut stream = client.open(method::UPDATE, Vec::new()).await.unwrap();
            let whole = Frame::plain(message.encode()).encode();
            stream.send_data(whole, true).unwrap();
            stream
        };
        // Each counts twice: together they are more than the client has for itself.
        let large = small.clone().bytes(1_000, vec![5; 60_000]);
        let mut held = Vec::new();
        for _ in 0..9 {
            held.push(update(&large).await);
        }
        holds(&inside, 9 * 2 * 60_000).await;

        let attacker = RawClient::connect(&inside.socket()).await.unwrap();
        let head = frame::message_head(65_000);
        let most: Bytes = [head, vec![0; 64_999]].concat().into();
        let mut streams = Vec::new();
        for _ in 0..STREAMS {
            let mut stream = attacker.open(method::CREATE, Vec::new()).await.unwrap();
            stream.send_data(most.clone(), false).unwrap();
            streams.push(stream);
        }
        let creations = "calls_total{method=\"CreateContainer\",result=\"unopened_crowded\"}";
        let full = || async { inside.metric(creations) > 0 };
        wait_until_async("the room is full", full).await;
        // Who adds to it beyond that is told so, and its next one passes.
        let unopened =
            "calls_total{method=\"UpdateContainerResources\",result=\"unopened_crowded\"}";
        while inside.metric(unopened) == 0 {
            held.push(update(&small).await);
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        let passed = inside.metric(unopened);

        drop((streams, attacker));
        let is_free = || async { inside.metric("held_bytes") < 2 << 20 };
        wait_until_async("there is room", is_free).await;
        let before = inside.metric("held_bytes");
        let _last = update(&small).await;
        let is_held = || async { inside.metric("held_bytes") > before };
        wait_until_async("it is waited for", is_held).await;
        assert_eq!(inside.metric(unopened), passed);
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_place_that_is_held_without_headway_goes_to_who_waits_for_it() {
    let attack = async {
        let script = Script::new(Otherwise::Echo);
        let inside = Inside::start(Chain::empty());
        serve(&script, &inside.runtime_socket(), &windows_of_64_kib());
        let attacker = RawClient::connect(&inside.socket()).await.unwrap();
        // As many as there are places: who waits for one does so no longer than a call may be held.
        let _streams = half_send(&attacker, 4).await;
        holds(&inside, 4 * HALF).await;
        let client = RawClient::connect(&inside.socket()).await.unwrap();
        let message = Pod::plain("p").env("LARGE", vec![5; MIB]).create().encode();
        let large = RawRequest::unary(method::CREATE, message.clone());
        let large = timeout(PATIENCE, client.call(large));
        let waited = async {
            // Small ones do not wait.
            for _ in 0..20 {
                let small = Pod::plain("p").create().encode();
                let small = client.call(RawRequest::unary(method::CREATE, small)).await;
                assert_eq!(small.unwrap().grpc_status(), Some(0));
            }
            assert_eq!(inside.metric("connections_open"), 2);
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(12)).await;
            tokio::time::resume();
        };
        let (large, ()) = tokio::join!(large, waited);
        let large = large.expect("it gets a place").unwrap();
        assert_eq!(large.messages, [Frame::plain(message)]);
        // Nobody's connection was closed for it: what stood still goes on unopened.
        assert_eq!(inside.metric("connections_open"), 2);
        let crowded = "calls_total{method=\"CreateContainer\",result=\"unopened_crowded\"}";
        assert_eq!(inside.metric(crowded), 4);
    };
    LocalSet::new().run_until(attack).await;
}

/// A runtime that reads everything and never says that it has room for more.
async fn never_grants(listener: UnixListener) {
    let mut connections = Vec::new();
    loop {
        let (mut stream, _) = listener.accept().await.unwrap();
        connections.push(spawn_local(async move {
            let empty_settings = [0, 0, 0, 4, 0, 0, 0, 0, 0];
            stream.write_all(&empty_settings).await.unwrap();
            tokio::io::copy(&mut stream, &mut tokio::io::sink()).await
        }));
    }
}

#[tokio::test]
async fn a_place_whose_message_the_runtime_does_not_take_costs_its_connection() {
    let test = async {
        let inside = Inside::start(Chain::empty());
        let listener = UnixListener::bind(inside.runtime_socket()).unwrap();
        spawn_local(never_grants(listener));
        let stuck = RawClient::connect(&inside.socket()).await.unwrap();
        let _streams = half_send(&stuck, 4).await;
        holds(&inside, 4 * HALF).await;
        let waits = RawClient::connect(&inside.socket()).await.unwrap();
        let _waits = half_send(&waits, 1).await;
        holds(&inside, 4 * HALF + 1).await;
        let open = || inside.metric("connections_open");
        let crowded = "calls_total{method=\"CreateContainer\",result=\"unopened_crowded\"}";
        for (given_up, left) in [(4, 2), (4, 1)] {
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(12)).await;
            tokio::time::resume();
            let done = || async { inside.metric(crowded) == given_up && open() == left };
            wait_until_async("what stands still is given up", done).await;
        }
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_large_message_that_waits_for_us_keeps_its_place_and_costs_no_connection() {
    let test = async {
        let script = Script::new(Otherwise::Echo);
        let inside = Inside::holding(Chain::empty(), Duration::from_secs(60));
        serve(&script, &inside.runtime_socket(), &windows_of_64_kib());
        // Of a container that nobody knows: it is held for a list, which never comes.
        let message = Tree::new().bytes(1, "x").bytes(1_000, vec![5; MIB]);
        let message = message.encode();
        let update = async |client: &RawClient| {
            let mut stream = client.open(method::UPDATE, Vec::new()).await.unwrap();
            let whole = Frame::plain(message.clone()).encode();
            stream.send_data(whole, true).unwrap();
            stream
        };
        // Without a message: what is held may leave no credit for one.
        let works = async |client: &RawClient| {
            let mut call = client.open("/a.b/Echo", Vec::new()).await.unwrap();
            call.send_data(Bytes::new(), true).unwrap();
            assert_eq!(call.collect().await.grpc_status(), Some(0));
        };
        let advance = async |seconds| {
            tokio::time::pause();
            tokio::time::advance(Duration::from_secs(seconds)).await;
            tokio::time::resume();
        };
        let held = RawClient::connect(&inside.socket()).await.unwrap();
        let mut streams = Vec::new();
        for _ in 0..4 {
            streams.push(update(&held).await);
        }
        holds(&inside, 4 * (message.len() + HEAD)).await;
        let waits = RawClient::connect(&inside.socket()).await.unwrap();
        let _fifth = update(&waits).await;
        // Far longer than a message may stand still, and in the end longer than a call is held.
        for _ in 0..10 {
            works(&waits).await;
            works(&held).await;
            advance(5).await;
        }
        advance(11).await;
        for stream in streams {
            let reply = timeout(PATIENCE, stream.collect()).await;
            assert_eq!(reply.unwrap().messages, [Frame::plain(message.clone())]);
        }
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn large_messages_that_move_slowly_keep_their_places_from_who_waits_for_one() {
    const PIECES: usize = 8;
    let test = async {
        let script = Script::new(Otherwise::Echo);
        let inside = Inside::start(Chain::empty());
        serve(&script, &inside.runtime_socket(), &windows_of_64_kib());
        let message = Pod::plain("p").env("LARGE", vec![5; MIB]).create().encode();
        let whole = Frame::plain(message.clone()).encode();
        let slow = RawClient::connect(&inside.socket()).await.unwrap();
        let mut streams = Vec::new();
        for _ in 0..4 {
            streams.push(slow.open(method::CREATE, Vec::new()).await.unwrap());
        }
        let mut waits = None;
        let size = whole.len().div_ceil(PIECES);
        for number in 1..=PIECES {
            let piece = whole.slice((number - 1) * size..whole.len().min(number * size));
            let last = number == PIECES;
            for stream in &mut streams {
                stream.send_data(piece.clone(), last).unwrap();
            }
            if last {
                // They go on at once: no byte is held.
                break;
            }
            // Who waits has at most a window of 64 KiB here, which is less than a piece: all have moved.
            holds(&inside, 4 * number * size).await;
            let waits = waits.get_or_insert_with(|| {
                let large = RawRequest::unary(method::CREATE, message.clone());
                spawn_local(call_at(inside.socket(), large))
            });
            assert!(!waits.is_finished());
            // Somebody waits.
            holds(&inside, 4 * number * size + 1).await;
            tokio::time::pause();
            // Far less than it may stand still for, and in the end longer.
            tokio::time::advance(Duration::from_secs(2)).await;
            tokio::time::resume();
        }
        for stream in streams {
            let reply = stream.collect().await;
            assert_eq!(reply.messages, [Frame::plain(message.clone())]);
        }
        let reply = waits.unwrap().await.unwrap();
        assert_eq!(reply.messages, [Frame::plain(message)]);
    };
    LocalSet::new().run_until(test).await;
}

async fn call_at(socket: PathBuf, request: RawRequest) -> RawReply {
    let client = RawClient::connect(&socket).await.unwrap();
    let reply = timeout(PATIENCE, client.call(request)).await;
    reply.expect("it gets a place").unwrap()
}

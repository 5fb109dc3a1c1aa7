use crate::{
    front::cri::{Front, Options},
    hub::testing::{Bench, container, sandbox},
    ledger::Original,
    metrics::Metrics,
};
use koord_hooks::Requested;
use koord_kernel::{cgroup::Generation, fake::FakeTree};
use koord_model::{CpuSet, CpuShares, Setting, Value};
use koord_proto::cri;
use koord_testkit::{
    poll::wait_until_async,
    scripted::{CallEnd, Gate, Otherwise, Reply, Script, ScriptedRuntime},
};
use prost::Message;
use std::{path::Path, rc::Rc, time::Duration};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{UnixListener, UnixStream},
    task::{JoinHandle, LocalSet, spawn_local},
    time::{sleep, timeout},
};

const CREATE: &str = "/runtime.v1.RuntimeService/CreateContainer";
const UPDATE: &str = "/runtime.v1.RuntimeService/UpdateContainerResources";
const RESIZE: &str = "/runtime.v1.RuntimeService/UpdatePodSandboxResources";

/// Long for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(60);

fn options(runtime: &Path) -> Options {
    Options {
        runtime: runtime.into(),
        max_connections: 4,
        large_message_slots: 1,
        max_message_bytes: 1 << 20,
        hold_timeout: PATIENCE,
        hooks: true,
        socket_stays: false,
    }
}

fn frame(kind: u8, flags: u8, stream: u32, payload: &[u8]) -> Vec<u8> {
    let length = u32::try_from(payload.len()).unwrap().to_be_bytes();
    let mut frame = length[1..].to_vec();
    frame.extend([kind, flags]);
    frame.extend(stream.to_be_bytes());
    frame.extend_from_slice(payload);
    frame
}

/// With SETTINGS, which have nothing in them.
const PREFACE: &[u8] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\x04\0\0\0\0\0";

/// SETTINGS that have nothing in them.
const SETTINGS: &[u8] = b"\0\0\0\x04\0\0\0\0\0";

/// HEADERS with END_HEADERS and END_STREAM: `grpc-status: 12` as a literal of no table, which is all of the answer
/// to the first call.
const UNIMPLEMENTED: &[u8] = b"\0\0\x10\x01\x05\0\0\0\x01\0\x0bgrpc-status\x0212";

/// A call with this message, which has its prefix.
fn call(stream: u32, path: &str, message: &[u8]) -> Vec<u8> {
    // :method POST, :scheme http, and the :path as a literal of no table.
    let mut block = vec![0x83, 0x86, 0x04];
    block.push(u8::try_from(path.len()).unwrap());
    block.extend_from_slice(path.as_bytes());
    // HEADERS with END_HEADERS, DATA with END_STREAM.
    let said = [frame(1, 4, stream, &block), frame(0, 1, stream, message)];
    said.concat()
}

/// All that a client says who has one call.
fn one_call(path: &str, message: &[u8]) -> Vec<u8> {
    [PREFACE, &call(1, path, message)].concat()
}

/// Whether somebody asks for a list within this time.
async fn is_list_wanted(bench: &Bench, within: Duration) -> bool {
    timeout(within, bench.hub.relist_wanted()).await.is_ok()
}

#[tokio::test]
async fn a_call_that_passed_unopened_costs_a_list_when_its_connection_ends_too() {
    let test = async {
        let bench = Bench::new(FakeTree::new(Generation::V1, 2));
        let dir = tempfile::tempdir().unwrap();
        let (ours, runtimes) = (dir.path().join("ours"), dir.path().join("runtimes"));
        let never = Reply::message("never").held(&Gate::new());
        let script = Script::new(Otherwise::Echo).always(CREATE, never);
        let _runtime = ScriptedRuntime::listen(&runtimes, script.clone()).unwrap();
        let listener = UnixListener::bind(&ours).unwrap();
        let metrics = Rc::new(Metrics::new());
        let front = Front::new(listener, options(&runtimes), bench.hub.clone(), metrics);
        let serving = spawn_local(front.serve(std::future::pending(), Duration::ZERO));

        let mut client = UnixStream::connect(&ours).await.unwrap();
        // It is compressed.
        let said = one_call(CREATE, &[1, 0, 0, 0, 1, b'x']);
        client.write_all(&said).await.unwrap();
        let arrived = || async {
            let calls = script.calls();
            let mut calls = calls.iter().filter(|call| call.path == CREATE);
            calls.any(|call| call.end == CallEnd::Complete)
        };
        wait_until_async("the runtime has the call", arrived).await;
        assert!(!is_list_wanted(&bench, Duration::ZERO).await);
        drop(client);
        assert!(is_list_wanted(&bench, PATIENCE).await);
        serving.abort();
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn an_update_that_has_no_room_for_its_patch_is_followed_to_its_end() {
    let test = async {
        let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
        let dir = tempfile::tempdir().unwrap();
        let (ours, runtimes) = (dir.path().join("ours"), dir.path().join("runtimes"));
        let script = Script::new(Otherwise::Echo);
        let _runtime = ScriptedRuntime::listen(&runtimes, script.clone()).unwrap();
        let listener = UnixListener::bind(&ours).unwrap();
        let metrics = Rc::new(Metrics::new());
        let tight = Options {
            // As long as the request is; the hub knows of more.
            max_message_bytes: 20,
            ..options(&runtimes)
        };
        let front = Front::new(listener, tight, bench.hub.clone(), metrics.clone());
        let serving = spawn_local(front.serve(std::future::pending(), Duration::ZERO));

        let update = cri::UpdateContainerResourcesRequest {
            container_id: container().to_string(),
            linux: Some(cri::LinuxContainerResources {
                cpu_shares: 2_048,
                ..Default::default()
            }),
        };
        let message = update.encode_to_vec();
        let prefix = [0, 0, 0, 0, u8::try_from(message.len()).unwrap()];
        assert_eq!(message.len(), 18);
        let mut client = UnixStream::connect(&ours).await.unwrap();
        let said = one_call(UPDATE, &[&prefix[..], &message].concat());
        client.write_all(&said).await.unwrap();
        let asked = || async { !bench.hub.queue().drain().is_empty() };
        wait_until_async("the update has ended", asked).await;
        assert!(!is_list_wanted(&bench, Duration::ZERO).await);
        let shares = bench.entry(Setting::CpuShares).unwrap();
        let asked = Value::from(CpuShares::new(2_048).unwrap());
        assert_eq!(shares.original, Original::Value(asked));
        assert!(!shares.given);
        let counted = metrics.encode().unwrap();
        let updates = "koord_runtime_proxy_calls_total{method=\"UpdateContainerResources\",result=";
        let counted: Vec<_> = counted
            .lines()
            .filter(|it| it.starts_with(updates))
            .collect();
        assert_eq!(counted, [format!("{updates}\"unhooked_too_large\"}} 1")]);
        serving.abort();
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn what_is_held_for_a_decision_counts_twice() {
    let test = async {
        let bench = Bench::new(FakeTree::new(Generation::V1, 2));
        let dir = tempfile::tempdir().unwrap();
        let (ours, runtimes) = (dir.path().join("ours"), dir.path().join("runtimes"));
        let script = Script::new(Otherwise::Echo);
        let _runtime = ScriptedRuntime::listen(&runtimes, script.clone()).unwrap();
        let listener = UnixListener::bind(&ours).unwrap();
        let metrics = Rc::new(Metrics::new());
        let front = Front::new(
            listener,
            options(&runtimes),
            bench.hub.clone(),
            metrics.clone(),
        );
        let serving = spawn_local(front.serve(std::future::pending(), Duration::ZERO));

        // An update of the container `c1`, which waits for the first list.
        let mut client = UnixStream::connect(&ours).await.unwrap();
        let said = one_call(UPDATE, &[0, 0, 0, 0, 4, 0x0a, 2, b'c', b'1']);
        client.write_all(&said).await.unwrap();
        let holds = async |bytes: usize| {
            let line = format!("koord_runtime_proxy_held_bytes {bytes}");
            let is_there = || async {
                let metrics = metrics.encode().unwrap();
                metrics.lines().any(|it| it == line)
            };
            wait_until_async(&line, is_there).await;
        };
        // 9 bytes as they came, and the message's 4 once more.
        holds(13).await;
        bench.hub.list_taken();
        let arrived = || async { script.calls().iter().any(|call| call.path == UPDATE) };
        wait_until_async("the runtime has the call", arrived).await;
        holds(0).await;
        serving.abort();
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn calls_that_are_lost_together_are_so_in_the_order_in_which_they_came() {
    let test = async {
        let bench = Bench::with_pod(FakeTree::new(Generation::V1, 8));
        let dir = tempfile::tempdir().unwrap();
        let (ours, runtimes) = (dir.path().join("ours"), dir.path().join("runtimes"));
        let never = Reply::message("never").held(&Gate::new());
        let script = Script::new(Otherwise::Echo).always(UPDATE, never);
        let _runtime = ScriptedRuntime::listen(&runtimes, script.clone()).unwrap();
        let listener = UnixListener::bind(&ours).unwrap();
        let metrics = Rc::new(Metrics::new());
        let front = Front::new(listener, options(&runtimes), bench.hub.clone(), metrics);
        let serving = spawn_local(front.serve(std::future::pending(), Duration::ZERO));

        // Each asks for some of the CPUs of the one before.
        let cpus = ["0-7", "0-6", "0-5", "0-4", "0-3", "0-2", "0-1", "0"];
        let mut said = PREFACE.to_vec();
        for (stream, cpus) in (1..).step_by(2).zip(cpus) {
            let update = cri::UpdateContainerResourcesRequest {
                container_id: container().to_string(),
                linux: Some(cri::LinuxContainerResources {
                    cpuset_cpus: cpus.to_owned(),
                    ..Default::default()
                }),
            };
            let message = update.encode_to_vec();
            let prefix = [0, 0, 0, 0, u8::try_from(message.len()).unwrap()];
            let message = [&prefix[..], &message].concat();
            said.extend(call(stream, UPDATE, &message));
        }
        let mut client = UnixStream::connect(&ours).await.unwrap();
        client.write_all(&said).await.unwrap();
        let arrived = || async {
            let calls = script.calls();
            let calls = calls.iter().filter(|call| call.path == UPDATE);
            calls.filter(|call| call.end == CallEnd::Complete).count() == 8
        };
        wait_until_async("the runtime has the calls", arrived).await;
        drop(client);
        assert!(is_list_wanted(&bench, PATIENCE).await);
        // By this all of them may have been done.
        let shown = Requested {
            cpuset_cpus: Some("0".parse::<CpuSet>().unwrap()),
            ..Requested::default()
        };
        bench.hub.settles_lost(&container(), &shown);
        let ledger = bench.hub.ledger().borrow();
        let (_, known) = ledger.container(&container()).unwrap();
        assert_eq!(known.view.requested.cpuset_cpus, shown.cpuset_cpus);
        serving.abort();
    };
    LocalSet::new().run_until(test).await;
}

/// A client's call that tells of a resize of an idle pod, in its headers and its message, and the runtime that
/// hears of it, which does not have the method.
struct Announced {
    bench: Bench,
    client: UnixStream,
    runtime: UnixStream,
    message: Vec<u8>,
    serving: JoinHandle<usize>,
    _dir: tempfile::TempDir,
}

impl Announced {
    /// The headers are said, and the runtime has answered.
    async fn begin(hold_timeout: Duration) -> Self {
        let bench = Bench::idling(Generation::V1).await;
        let dir = tempfile::tempdir().unwrap();
        let (ours, runtimes) = (dir.path().join("ours"), dir.path().join("runtimes"));
        let runtime = UnixListener::bind(&runtimes).unwrap();
        let listener = UnixListener::bind(&ours).unwrap();
        let options = Options {
            hold_timeout,
            ..options(&runtimes)
        };
        let metrics = Rc::new(Metrics::new());
        let front = Front::new(listener, options, bench.hub.clone(), metrics);
        let serving = spawn_local(front.serve(std::future::pending(), Duration::ZERO));
        let request = cri::UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: sandbox().to_string(),
            overhead: None,
            resources: Some(cri::LinuxContainerResources {
                cpu_shares: 700,
                ..Default::default()
            }),
        };
        let message = request.encode_to_vec();
        let prefix = [0, 0, 0, 0, u8::try_from(message.len()).unwrap()];
        let said = one_call(RESIZE, &[&prefix[..], &message].concat());
        let (headers, message) = said.split_at(said.len() - 9 - 5 - message.len());

        let mut client = UnixStream::connect(&ours).await.unwrap();
        client.write_all(headers).await.unwrap();
        let (mut runtime, _) = runtime.accept().await.unwrap();
        let mut heard = vec![0; headers.len()];
        runtime.read_exact(&mut heard).await.unwrap();
        assert_eq!(heard, headers);
        runtime
            .write_all(&[SETTINGS, UNIMPLEMENTED].concat())
            .await
            .unwrap();
        Self {
            message: message.to_vec(),
            bench,
            client,
            runtime,
            serving,
            _dir: dir,
        }
    }

    /// The client says the rest, and the runtime gets it as it was said.
    async fn end(&mut self) {
        self.client.write_all(&self.message).await.unwrap();
        let mut rest = vec![0; self.message.len()];
        self.runtime.read_exact(&mut rest).await.unwrap();
        assert_eq!(rest, self.message);
    }

    /// Whether the client is answered within this time.
    async fn is_answered(&mut self, within: Duration) -> bool {
        let mut said = vec![0; SETTINGS.len() + UNIMPLEMENTED.len()];
        let answer = timeout(within, self.client.read_exact(&mut said)).await;
        answer.is_ok_and(|read| {
            assert_eq!(said, [SETTINGS, UNIMPLEMENTED].concat());
            read.is_ok()
        })
    }
}

#[tokio::test]
async fn a_runtime_that_answers_headers_does_not_have_a_pod_resized_before_it_is_awake() {
    let test = async {
        let mut announced = Announced::begin(PATIENCE).await;
        assert!(!announced.is_answered(Duration::from_millis(200)).await);
        assert_eq!(announced.bench.shown_of_pod("cpu.idle"), "1");
        // The runtime had answered before.
        announced.end().await;
        assert_eq!(announced.bench.shown_of_pod("cpu.idle"), "0");
        assert!(announced.is_answered(PATIENCE).await);
        announced.serving.abort();
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn whoever_does_not_say_what_it_announces_is_answered_all_the_same() {
    let test = async {
        let mut announced = Announced::begin(Duration::from_secs(1)).await;
        assert!(!announced.is_answered(Duration::from_millis(200)).await);
        assert!(announced.is_answered(PATIENCE).await);
        assert_eq!(announced.bench.shown_of_pod("cpu.idle"), "1");
        // What comes of it late is the runtime's.
        announced.end().await;
        announced.serving.abort();
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn what_is_announced_while_another_is_awaited_has_time_of_its_own() {
    let test = async {
        let hold = Duration::from_secs(1);
        let mut announced = Announced::begin(hold).await;
        sleep(hold / 2).await;
        let said = call(3, RESIZE, &announced.message[9..]);
        let (headers, message) = said.split_at(said.len() - announced.message.len());
        announced.client.write_all(headers).await.unwrap();
        // By then the first is awaited no longer.
        assert!(!announced.is_answered(hold * 3 / 4).await);
        announced.client.write_all(message).await.unwrap();
        assert!(announced.is_answered(PATIENCE).await);
        assert_eq!(announced.bench.shown_of_pod("cpu.idle"), "0");
        announced.serving.abort();
    };
    LocalSet::new().run_until(test).await;
}

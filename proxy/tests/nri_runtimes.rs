//! The whole proxy as the plugin of runtimes of five NRI generations. The runtime is a double that
//! reads each byte as strictly as Go's end of the wire does.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends at the first failure")]

mod support;

use koord_testkit::{
    nri::{
        Generation, Manner, NriError, NriRuntime, Plugin,
        message::{
            Container, ContainerAdjustment, ContainerUpdate, CreateContainerResponse,
            LinuxContainer, LinuxCpu, LinuxMemory, LinuxPodSandbox, LinuxResources, OptionalI64,
            OptionalU64, PodSandbox,
        },
    },
    poll::wait_until,
};
use prost::Message;
use serde_json::Value;
use std::{
    thread,
    time::{Duration, Instant},
};
use support::{
    node::Node,
    pod::{EXTENDED_RESOURCE_SPEC, QOS_CLASS},
};

const PODS: usize = 1_000;
const CONTAINERS: usize = 5_000;
/// One pod of so many is a best-effort one, of whose containers `main` has batch resources.
const BATCH_EACH: usize = 10;

const BATCH: &str = r#"{"containers":{"main":{
    "requests":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"1Gi"},
    "limits":{"kubernetes.io/batch-cpu":"1000","kubernetes.io/batch-memory":"1Gi"}}}}"#;

const ORIGINALS: &str = "runtimeproxy.koordinator.sh/originals";

/// A loaded machine must not be late: what is told of time is another test's.
const PATIENT: Duration = Duration::from_secs(600);

fn text(text: &str) -> String {
    text.to_owned()
}

fn pod(index: usize) -> PodSandbox {
    let mut pod = PodSandbox {
        id: format!("sandbox-{index}"),
        name: format!("pod-{index}"),
        uid: format!("uid-{index}"),
        namespace: text("default"),
        annotations: [(text("filler"), "x".repeat(1_000))].into(),
        linux: Some(LinuxPodSandbox {
            cgroup_parent: format!("/no-such-root/kubepods/besteffort/poduid-{index}"),
            ..LinuxPodSandbox::default()
        }),
        ips: vec![text("10.0.0.1")],
        ..PodSandbox::default()
    };
    if index.is_multiple_of(BATCH_EACH) {
        pod.labels.insert(text(QOS_CLASS), text("BE"));
        pod.annotations
            .insert(text(EXTENDED_RESOURCE_SPEC), text(BATCH));
    }
    pod
}

/// Each pod has five: `main` is one of them.
fn container(index: usize) -> Container {
    let name = match index / PODS {
        0 => text("main"),
        other => format!("side-{other}"),
    };
    Container {
        id: format!("container-{index}"),
        pod_sandbox_id: format!("sandbox-{}", index % PODS),
        name,
        // Running.
        state: 3,
        env: vec![format!("FILLER={}", "y".repeat(1_000))],
        linux: Some(LinuxContainer {
            resources: Some(LinuxResources::best_effort()),
            oom_score_adj: Some(OptionalI64 { value: 1_000 }),
            cgroups_path: format!("/no-such-root/kubepods/container-{index}"),
        }),
        created_at: 1_700_000_000_000_000_000,
        ..Container::default()
    }
}

fn node_full() -> (Vec<PodSandbox>, Vec<Container>) {
    let pods = (0..PODS).map(pod).collect();
    (pods, (0..CONTAINERS).map(container).collect())
}

/// 500 milli-CPU are 512 shares, 1,000 a whole CPU's quota.
fn batch_resources() -> LinuxResources {
    LinuxResources {
        cpu: Some(LinuxCpu {
            shares: Some(OptionalU64 { value: 512 }),
            quota: Some(OptionalI64 { value: 100_000 }),
            ..LinuxCpu::default()
        }),
        memory: Some(LinuxMemory {
            limit: Some(OptionalI64 {
                value: 1_073_741_824,
            }),
        }),
    }
}

fn resources(update: &ContainerUpdate) -> Option<&LinuxResources> {
    update.linux.as_ref()?.resources.as_ref()
}

/// A runtime at the node's socket.
fn runtime(node: &Node, generation: Generation) -> NriRuntime {
    NriRuntime::listen(&node.path("nri.sock"), generation).unwrap()
}

/// Tells a plugin everything, and looks at what it wants changed: one container of each best-effort
/// pod.
fn synchronize(plugin: &mut Plugin) {
    let (pods, containers) = node_full();
    let updates = plugin.synchronize(&pods, &containers).unwrap();
    assert_eq!(updates.len(), PODS / BATCH_EACH);
    for (index, update) in updates.iter().enumerate() {
        let id = format!("container-{}", index * BATCH_EACH);
        assert_eq!(update.container_id, id);
        assert_eq!(resources(update), Some(&batch_resources()), "{id}");
        // One that is gone by now must not cost the others theirs.
        assert!(update.ignore_failure);
    }
}

/// The ledger has all that [`node_full`] has.
fn ledger_is_full(node: &Node) {
    let ledger = node.ledger();
    let pods = ledger["pods"].as_array().unwrap();
    assert_eq!(pods.len(), PODS);
    for pod in pods {
        let index = pod["name"].as_str().unwrap().strip_prefix("pod-").unwrap();
        assert_eq!(pod["uid"], format!("uid-{index}"));
        assert_eq!(pod["sandbox"], format!("sandbox-{index}"));
        assert_eq!(pod["ready"], true);
        let batch = index.ends_with('0');
        assert_eq!(pod["class"], if batch { "BE" } else { "" });
        let containers = pod["containers"].as_array().unwrap();
        assert_eq!(containers.len(), CONTAINERS / PODS);
        for container in containers {
            assert_eq!(container["state"], "running");
            let settings = container["settings"].as_array().unwrap();
            let decided = batch && container["name"] == "main";
            assert_eq!(settings.len(), if decided { 3 } else { 0 }, "{container}");
        }
    }
}

/// One container of the ledger by its id, if it is there.
fn known(node: &Node, id: &str) -> Option<Value> {
    let ledger = node.ledger();
    let pods = ledger["pods"].as_array().unwrap();
    let mut containers = pods
        .iter()
        .flat_map(|pod| pod["containers"].as_array().unwrap());
    containers.find(|it| it["id"] == id).cloned()
}

/// A best-effort pod comes, changes and goes; every answer is looked at.
fn a_life(node: &Node, plugin: &mut Plugin) {
    let mut pod = pod(0);
    let text = |it: &str| it.to_owned();
    (pod.id, pod.uid, pod.name) = (text("sandbox-new"), text("uid-new"), text("new"));
    let mut new = container(0);
    (new.id, new.pod_sandbox_id, new.state) = (text("container-new"), pod.id.clone(), 0);

    plugin.tell("RunPodSandbox", &pod, None).unwrap();
    let created = plugin.create(&pod, &new).unwrap();
    let ContainerAdjustment { annotations, linux } = created.adjust.unwrap();
    assert_eq!(linux.unwrap().resources, Some(batch_resources()));
    let keys: Vec<&String> = annotations.keys().collect();
    assert_eq!(keys, [ORIGINALS]);
    assert!(created.update.is_empty());
    // Nothing is true before the runtime has done it.
    assert_eq!(known(node, "container-new"), None);

    // The runtime took it over.
    new.linux.as_mut().unwrap().resources = Some(batch_resources());
    new.annotations = annotations;
    new.state = 1;
    let made = Some(&new);
    plugin.tell("PostCreateContainer", &pod, made).unwrap();
    assert_eq!(known(node, "container-new").unwrap()["state"], "created");
    plugin.tell("StartContainer", &pod, made).unwrap();
    new.state = 3;
    plugin.tell("PostStartContainer", &pod, Some(&new)).unwrap();
    let container = known(node, "container-new").unwrap();
    assert_eq!(container["state"], "running");
    let shares = &container["settings"][0];
    assert_eq!(shares["setting"], "cpu.shares");
    assert_eq!(
        (&shares["asked"], &shares["desired"]),
        (&"2".into(), &"512".into())
    );

    let mut asked = LinuxResources::best_effort();
    asked.cpu.as_mut().unwrap().shares = Some(OptionalU64 { value: 1_024 });
    let updates = plugin.update(&pod, &new, &asked).unwrap();
    let [update] = &updates[..] else {
        panic!("{updates:?}");
    };
    assert_eq!(update.container_id, "container-new");
    let cpu = resources(update).unwrap().cpu.as_ref().unwrap();
    assert_eq!(cpu.shares, Some(OptionalU64 { value: 512 }));
    plugin
        .tell("PostUpdateContainer", &pod, Some(&new))
        .unwrap();
    assert_eq!(known(node, "container-new").unwrap()["state"], "running");
    plugin.resize(&pod, &asked).unwrap();
    plugin.tell("PostUpdatePodSandbox", &pod, None).unwrap();

    new.state = 4;
    plugin.stop(&pod, &new).unwrap();
    assert_eq!(known(node, "container-new").unwrap()["state"], "exited");
    plugin.tell("RemoveContainer", &pod, Some(&new)).unwrap();
    assert_eq!(known(node, "container-new"), None);
    plugin.tell("StopPodSandbox", &pod, None).unwrap();
    plugin.tell("RemovePodSandbox", &pod, None).unwrap();
    assert_eq!(node.ledger()["pods"].as_array().unwrap().len(), PODS);
}

/// Registration, everything, a pod's life, and all of it again when the runtime comes back.
fn a_runtime_is_served(generation: Generation, manner: Manner) {
    let node = Node::plugin(&[]);
    let runtime = runtime(&node, generation)
        .with_manner(manner)
        .with_request_timeout(PATIENT);
    for _ in 0..2 {
        let mut plugin = runtime.take_plugin().unwrap();
        let called = (&*plugin.name, &*plugin.index, &*plugin.nri_version);
        assert_eq!(called, ("koord-runtime-proxy", "10", "v0.12.0"));
        // Everything that the runtime has but for validation.
        assert_eq!(plugin.events, generation.events() & 0x1fff);
        synchronize(&mut plugin);
        ledger_is_full(&node);
        a_life(&node, &mut plugin);
        // Nothing comes after the answers.
        plugin.listen(Duration::from_millis(50)).unwrap();
        assert_eq!(plugin.unsolicited(), []);
        assert_eq!(node.metric("plugin_late_answers_total"), 0);
    }
}

#[test]
fn nri_0_3_is_served() {
    a_runtime_is_served(Generation::V0_3, Manner::Swift);
}

#[test]
fn nri_0_6_is_served() {
    a_runtime_is_served(Generation::V0_6, Manner::Swift);
}

#[test]
fn nri_0_8_is_served() {
    a_runtime_is_served(Generation::V0_8, Manner::Swift);
}

#[test]
fn nri_0_10_is_served() {
    a_runtime_is_served(Generation::V0_10, Manner::Swift);
}

#[test]
fn nri_0_12_is_served() {
    a_runtime_is_served(Generation::V0_12, Manner::Swift);
}

#[test]
fn a_runtime_that_writes_in_pieces_and_pauses_is_served_as_any_other() {
    for (seed, generation) in (1..).zip(Generation::ALL) {
        a_runtime_is_served(generation, Manner::Fitful { seed });
    }
}

#[test]
fn a_proxy_that_stood_still_answers_each_question_once_and_stays() {
    let node = Node::plugin(&[]);
    for generation in Generation::ALL {
        // Two seconds, as runtimes say.
        let runtime = runtime(&node, generation);
        let mut plugin = runtime.take_plugin().unwrap();
        // How busy this machine is, is no part of it.
        plugin.set_patience(PATIENT);
        plugin.synchronize(&[pod(0)], &[]).unwrap();
        let (pod, container) = (pod(0), container(0));
        let ask = |plugin: &mut Plugin| {
            let asked = plugin.ask_about("CreateContainer", &pod, Some(&container));
            asked.unwrap()
        };
        let before = ask(&mut plugin);
        node.signal("-STOP");
        let meanwhile = ask(&mut plugin);
        // Longer than it lets a question wait, had it seen that one come.
        thread::sleep(Duration::from_millis(1_200));
        node.signal("-CONT");
        let mut answered = [0, 0].map(|_| {
            let (number, answer) = plugin.next_answer().unwrap();
            let answer = CreateContainerResponse::decode(&*answer.unwrap()).unwrap();
            let resources = answer.adjust.and_then(|it| it.linux?.resources);
            // Or it was late, and said nothing.
            assert!(resources.is_none_or(|it| it == batch_resources()));
            number
        });
        answered.sort_unstable();
        assert_eq!(answered, [before, meanwhile]);
        plugin.listen(Duration::from_millis(50)).unwrap();
        // It was never closed, and is back in time as soon as the machine lets it.
        wait_until("it says something again", || {
            let said = plugin.create(&pod, &container).unwrap();
            said.adjust.is_some()
        });
    }
    assert_eq!(node.metric(r#"plugin_sessions_total{result="ok"}"#), 5);
}

#[test]
fn a_proxy_that_stood_still_for_too_long_comes_back_and_is_told_everything() {
    let node = Node::plugin(&[]);
    for generation in Generation::ALL {
        let late = runtime(&node, generation).with_request_timeout(PATIENT);
        let mut plugin = late.take_plugin().unwrap();
        plugin.synchronize(&[pod(0)], &[container(0)]).unwrap();
        node.signal("-STOP");
        // The only one without an answer.
        plugin.set_patience(Duration::from_millis(300));
        let error = plugin.create(&pod(0), &container(0)).unwrap_err();
        assert!(matches!(error, NriError::Late(_)), "{error:?}");
        node.signal("-CONT");
        let mut plugin = late.take_plugin().unwrap();
        // The pod of before is gone meanwhile.
        plugin.synchronize(&[pod(1)], &[]).unwrap();
        let ledger = node.ledger();
        let pods = ledger["pods"].as_array().unwrap();
        let names: Vec<&Value> = pods.iter().map(|pod| &pod["name"]).collect();
        assert_eq!(names, ["pod-1"]);
    }
}

#[test]
fn a_runtime_that_takes_us_and_drops_us_is_come_back_to_less_and_less_often() {
    let node = Node::plugin(&[]);
    let runtime = runtime(&node, Generation::V0_12);
    let begun = Instant::now();
    let mut times = 0;
    while begun.elapsed() < Duration::from_secs(3) {
        drop(runtime.take_plugin().unwrap());
        times += 1;
    }
    // After 25, 50, 100 and 200 ms at the least, and then 250 ms each time: 15 times. Always after the
    // first of these it would be sixty to a hundred and twenty.
    assert!((2..20).contains(&times), "{times}");
    let log = node.log();
    for line in ["registered as a plugin", "the runtime asks us no more"] {
        let said = log.matches(line).count();
        assert!((1..=5).contains(&said), "{said} of {times}: {line}");
    }
}

#[test]
fn many_questions_at_once_are_answered_each_once_in_frames_that_go_can_queue() {
    let node = Node::plugin(&[]);
    for (floods, generation) in (1..).zip(Generation::ALL) {
        let runtime = runtime(&node, generation).with_request_timeout(PATIENT);
        let mut plugin = runtime.take_plugin().unwrap();
        plugin.synchronize(&[pod(0)], &[]).unwrap();
        // Their answers fit the 256 places of a slow reader's queue as one frame each, and not as two.
        let asked: Vec<u32> = (0..200)
            .map(|index| {
                let mut container = container(0);
                container.id = format!("container-{index}");
                let about = Some(&container);
                plugin.ask_about("CreateContainer", &pod(0), about).unwrap()
            })
            .collect();
        wait_until("all are decided", || {
            let patched = r#"calls_total{method="CreateContainer",result="patched"}"#;
            node.metric(patched) == 200 * floods
        });
        let mut answered: Vec<u32> = asked
            .iter()
            .map(|_| {
                let (number, answer) = plugin.next_answer().unwrap();
                assert!(!answer.unwrap().is_empty(), "{generation:?}");
                number
            })
            .collect();
        answered.sort_unstable();
        assert_eq!(answered, asked, "{generation:?}");
        // Nothing comes after the answers.
        plugin.listen(Duration::from_millis(50)).unwrap();
    }
    assert_eq!(node.metric(r#"plugin_sessions_total{result="ok"}"#), 5);
    assert_eq!(node.metric("plugin_late_answers_total"), 0);
}

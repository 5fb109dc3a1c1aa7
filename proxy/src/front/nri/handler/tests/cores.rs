//! A group that shares cores, of which a pod ran before us.

use super::*;
use crate::{apply::testing::SlowCores, front::cri::Method, hub::Opening};
use koord_kernel::fake::FakeCores;
use prost::Message;
use std::sync::mpsc;
use tokio::{task::yield_now, time::timeout};

/// Best-effort pods share cores with each other alone.
const CORES: &str = "apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {name: node-1}
spec:
  resourceQOSStrategy:
    policies: {cpuPolicy: coreSched}
    beClass: {cpuQOS: {enable: true}}
";

/// A bench whose pod has thread 11, without a cookie. Thread 21 is of the pod that ran before, and has
/// cookie 7.
fn bench() -> (Bench, FakeCores) {
    let kernel = FakeCores::default();
    let bench = Bench::with_cores(FakeTree::new(Generation::V2, 2), kernel.clone());
    let before = CgroupPath::parse("kubepods/besteffort/poduid-2/container-2").unwrap();
    bench.tree.make(&before);
    bench.tree.enter(&bench.container, 11);
    bench.tree.enter(&before, 21);
    for thread in [11, 21] {
        kernel.fork(None, thread);
    }
    kernel.set(21, 7);
    let policy = NodePolicy::parse_stream(CORES, None).unwrap().policy;
    bench.hub.set_node_policy(policy.into());
    (bench, kernel)
}

/// The pod that ran before, with its container.
fn before() -> (PodSandbox, Container) {
    let mut pod = told_pod();
    (pod.id, pod.uid) = ("sandbox-2".to_owned(), "uid-2".to_owned());
    pod.linux.as_mut().unwrap().cgroup_parent = "/kubepods/besteffort/poduid-2".to_owned();
    let container = Container {
        id: "container-2".to_owned(),
        pod_sandbox_id: "sandbox-2".to_owned(),
        ..running()
    };
    (pod, container)
}

/// The container of the bench once it runs.
fn running() -> Container {
    let mut container = told_container();
    container.set_state(ContainerState::ContainerRunning);
    container
}

/// The cookies of both.
fn cookies(kernel: &FakeCores) -> [u64; 2] {
    [11, 21].map(|thread| kernel.number(thread))
}

/// Tells what runs: both.
fn tell(bench: &Bench) {
    let (pod, container) = before();
    let (pods, containers) = ([told_pod(), pod], [running(), container]);
    bench.hub.synchronize(&pods, &containers, [].into());
}

/// Until both threads have done what they were handed before, and who has handed it has gone on, a few
/// times over. Nothing sleeps meanwhile, so a clock that is paused stands.
async fn settled(bench: &Bench) {
    let (writer, is_done) = (bench.hub.writer(), Cell::new(false));
    let quota = [(bench.pod.clone(), Setting::CpuQuota)];
    let asks = async {
        for _ in 0..4 {
            writer.read(&quota).await;
            writer.join(Vec::new(), <[_]>::len).await;
            yield_now().await;
        }
        is_done.set(true);
    };
    let stays_awake = async {
        while !is_done.get() {
            yield_now().await;
        }
    };
    tokio::join!(asks, stays_awake);
}

/// How long a start takes, in hundredths of a second of a clock that is paused.
async fn took<T>(bench: &Bench, start: impl Future<Output = T>) -> u128 {
    let begun = Instant::now();
    let start = timeout(Duration::from_secs(30), start);
    let (started, ()) = tokio::join!(start, settled(bench));
    assert!(started.is_ok(), "it waits for a list without end");
    begun.elapsed().as_millis() / 10
}

#[tokio::test]
async fn a_start_before_any_older_pod_is_looked_at_gets_the_cookie_that_its_group_has() {
    let (bench, kernel) = bench();
    let plugin = Handler::new(bench.hub.clone(), Duration::from_secs(60));
    let (pod, container) = before();
    let there = Asked::Synchronize {
        pods: vec![pod],
        containers: vec![container],
    };
    plugin.answer(there).await;
    plugin.answer(happened(Event::StartContainer)).await;
    assert_eq!([11, 21].map(|thread| kernel.number(thread)), [7, 7]);
    assert_eq!(kernel.take_changes(), 1);
}

#[tokio::test]
async fn a_cookie_that_a_pod_of_another_group_has_too_is_not_given_to_one_that_starts() {
    let (bench, kernel) = bench();
    let ((pod, container), (mut apart, mut other)) = (before(), before());
    (apart.id, apart.uid) = ("sandbox-3".to_owned(), "uid-3".to_owned());
    apart.linux.as_mut().unwrap().cgroup_parent = "/kubepods/besteffort/poduid-3".to_owned();
    let group = label::CORE_SCHED_GROUP_ID.to_owned();
    apart.labels.insert(group, "apart".to_owned());
    other.id = "container-3".to_owned();
    other.pod_sandbox_id = "sandbox-3".to_owned();
    let at = CgroupPath::parse("kubepods/besteffort/poduid-3/container-3").unwrap();
    bench.tree.make(&at);
    bench.tree.enter(&at, 31);
    kernel.fork(None, 31);
    kernel.set(31, 7);
    let plugin = Handler::new(bench.hub.clone(), Duration::from_secs(60));
    let there = Asked::Synchronize {
        pods: vec![pod, apart],
        containers: vec![container, other],
    };
    plugin.answer(there).await;
    plugin.answer(happened(Event::StartContainer)).await;
    let numbers = [11, 21, 31].map(|thread| kernel.number(thread));
    assert_eq!(numbers, [1, 7, 7]);
}

#[tokio::test]
async fn before_it_is_told_what_runs_no_cookie_is_made_and_a_start_waits_for_that() {
    let (bench, kernel) = bench();
    let bench = bench.knowing_pod();
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(cookies(&kernel), [0, 7]);
    let entry = bench.entry(Setting::CoreSched).unwrap();
    assert_eq!(entry.applied, Applied::Pending);

    let members = {
        let ledger = bench.hub.ledger().borrow();
        reconcile::starting(ledger.pod(&sandbox()).unwrap(), &container())
    };
    assert_eq!(members.len(), 1);
    let starting = reconcile::join_starting(&bench.hub, members);
    let told = async {
        settled(&bench).await;
        assert_eq!(cookies(&kernel), [0, 7]);
        tell(&bench);
    };
    let (started, ()) = tokio::join!(timeout(Duration::from_secs(30), starting), told);
    started.expect("it waits for nothing else");
    assert_eq!(cookies(&kernel), [7, 7]);
}

#[tokio::test]
async fn a_start_of_which_a_plugin_is_told_before_what_runs_waits_for_that() {
    let (bench, kernel) = bench();
    let plugin = Handler::new(bench.hub.clone(), Duration::from_secs(120));
    let has_started = Cell::new(false);
    let start = async {
        plugin.answer(happened(Event::StartContainer)).await;
        has_started.set(true);
    };
    let told = async {
        settled(&bench).await;
        assert!(!has_started.get());
        assert_eq!(cookies(&kernel), [0, 7]);
        tell(&bench);
    };
    tokio::join!(start, told);
    assert_eq!(cookies(&kernel), [7, 7]);
}

#[tokio::test(start_paused = true)]
async fn where_no_list_comes_a_start_goes_on_in_its_time_and_no_cookie_is_made() {
    let (called, kernel) = bench();
    let called = called.knowing_pod();
    let message = "container-1".to_owned().encode_to_vec();
    let opening = called.hub.open(Method::StartContainer, &message, None);
    let Opening::Later(start) = opening else {
        panic!("it does not wait");
    };
    assert_eq!(took(&called, start).await, 50);
    assert_eq!(kernel.take_changes(), 0);

    let (told, kernel) = bench();
    // A quarter of two seconds.
    let plugin = Handler::new(told.hub.clone(), Duration::from_secs(2));
    let start = plugin.answer(happened(Event::StartContainer));
    assert_eq!(took(&told, start).await, 50);
    assert_eq!(kernel.take_changes(), 0);
    assert_eq!(told.hub.queue().drain(), [sandbox()]);
}

#[tokio::test]
async fn of_starts_behind_threads_that_take_long_the_first_waits_and_others_go_on() {
    let (_may_go_on, until) = mpsc::channel();
    let tree = FakeTree::new(Generation::V2, 2);
    let bench = Bench::with_cores(tree, SlowCores::until(until)).knowing_pod();
    bench.tree.enter(&bench.container, 11);
    let policy = NodePolicy::parse_stream(CORES, None).unwrap().policy;
    bench.hub.set_node_policy(policy.into());
    bench.hub.list_taken();
    let start = async |of_runtime| {
        let plugin = Handler::new(bench.hub.clone(), of_runtime);
        let late = Duration::from_secs(60);
        timeout(late, plugin.answer(happened(Event::StartContainer))).await
    };
    // A quarter of it, of which values take a part.
    let first = start(Duration::from_secs(2)).await;
    assert!(first.is_ok() && bench.hub.writer().is_late_with_threads());
    let next = start(Duration::from_secs(480)).await;
    assert!(next.is_ok(), "it waits for threads that stand still");
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
}

#[tokio::test(start_paused = true)]
async fn of_starts_for_which_no_list_comes_the_first_that_has_waited_is_the_last_to_wait() {
    let (bench, kernel) = bench();
    let plugin = Handler::new(bench.hub.clone(), Duration::from_secs(2));
    // Half of the 60 ms until it is due is too little to find out anything.
    let due = Instant::now() + Duration::from_millis(60);
    let hurried = plugin.answer_by(happened(Event::StartContainer), due);
    assert_eq!(took(&bench, hurried).await, 3);
    for hundredths in [50, 0, 0] {
        let start = plugin.answer(happened(Event::StartContainer));
        assert_eq!(took(&bench, start).await, hundredths);
    }
    // A runtime that comes again may tell what runs.
    let again = Handler::new(bench.hub.clone(), Duration::from_secs(2));
    let start = again.answer(happened(Event::StartContainer));
    assert_eq!(took(&bench, start).await, 50);
    assert_eq!(kernel.take_changes(), 0);

    tell(&bench);
    let start = plugin.answer(happened(Event::StartContainer));
    assert_eq!(took(&bench, start).await, 0);
    assert_eq!(cookies(&kernel), [7, 7]);
}

//! A group that shares cores, of which a pod ran before us.

use super::*;
use koord_kernel::fake::FakeCores;
use tokio::time::timeout;

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
    let bench = Bench::with_cores(FakeTree::new(Generation::V2, 2), &kernel);
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
async fn before_it_is_told_what_runs_no_cookie_is_made_and_a_start_waits_for_that() {
    let (bench, kernel) = bench();
    let bench = bench.knowing_pod();
    let cookies = || [11, 21].map(|thread| kernel.number(thread));
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(cookies(), [0, 7]);
    let entry = bench.entry(Setting::CoreSched).unwrap();
    assert_eq!(entry.applied, Applied::Pending);

    let members = {
        let ledger = bench.hub.ledger().borrow();
        reconcile::starting(ledger.pod(&sandbox()).unwrap(), &container())
    };
    assert_eq!(members.len(), 1);
    let starting = reconcile::join_starting(&bench.hub, members);
    let told = async {
        let (pod, container) = before();
        bench
            .hub
            .synchronize(&[told_pod(), pod], &[running(), container]);
    };
    let (started, ()) = tokio::join!(timeout(Duration::from_secs(30), starting), told);
    started.expect("it waits for nothing else");
    assert_eq!(cookies(), [7, 7]);
}

//! Updates of a container: several at once, such as lower bursts, such as fail.

use super::*;
use crate::ledger::{Container, Contest};
use koord_model::CpuShares;

/// A pod without a class, whose container asks for half a CPU and may save up as much.
fn saving_up(bench: Bench) -> Bench {
    let bench = bench.knowing_pod();
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        pod.view.labels = Default::default();
        let annotations = [(annotation::CPU_BURST, r#"{"policy":"auto"}"#)];
        pod.view.annotations = annotations.into_iter().collect();
        pod.container_mut(&container()).unwrap().view.requested = quota(50_000);
        bench.hub.decide_again(pod);
    }
    bench.write("cpu.cfs_quota_us", "50000");
    bench
}

fn quota(micros: u64) -> Requested {
    Requested {
        cpu_quota: Some(CpuQuota::Micros(micros)),
        ..Requested::default()
    }
}

fn burst(micros: u64) -> Value {
    CpuBurst::from_micros(micros).unwrap().into()
}

fn open(bench: &Bench, linux: cri::LinuxContainerResources) -> Opening {
    let update = cri::UpdateContainerResourcesRequest {
        container_id: "container-1".to_owned(),
        linux: Some(linux),
    };
    let message = update.encode_to_vec();
    bench
        .hub
        .open(Method::UpdateContainerResources, &message, None)
}

fn to_quota(micros: i64) -> cri::LinuxContainerResources {
    cri::LinuxContainerResources {
        cpu_quota: micros,
        ..Default::default()
    }
}

#[tokio::test]
async fn a_burst_that_is_lowered_for_an_update_is_not_raised_before_it_is_done() {
    let bench = saving_up(Bench::new(FakeTree::new(Generation::V1, 2)));
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.cfs_burst_us"), "50000");

    let lowered = bench.hub.lower_bursts(&container(), &quota(30_000));
    let values = lowered.changes.iter().map(|change| change.value.clone());
    let values: Vec<_> = values.collect();
    assert_eq!(values, [burst(30_000), burst(30_000)]);
    bench.hub.writer().write(lowered.changes).await;
    // Somebody has the pod held against the kernel before the runtime has written the quota.
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.cfs_burst_us"), "30000");

    let Opening::Later(decision) = open(&bench, to_quota(30_000)) else {
        panic!("the bursts are written first");
    };
    bench.hub.close(decision.await.pending, answered(0));
    let first = update_that_lowered(container(), lowered.lowering);
    bench.hub.close(first.into(), answered(0));
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.cfs_burst_us"), "30000");
    let entry = bench.entry(Setting::CpuBurst).unwrap();
    assert_eq!(
        (entry.desired, entry.applied),
        (burst(30_000), Applied::Equal)
    );
}

#[tokio::test]
async fn a_burst_that_is_lowered_during_a_check_is_nobody_elses() {
    let bench = saving_up(Bench::new(FakeTree::new(Generation::V1, 2)));
    reconcile::pod(&bench.hub, &sandbox()).await;
    // What the check is answered is from before that.
    let lower = async { bench.hub.lower_bursts(&container(), &quota(30_000)) };
    let sandbox = sandbox();
    let ((), lowered) = tokio::join!(reconcile::pod(&bench.hub, &sandbox), lower);
    assert_eq!(lowered.changes.len(), 2);
    bench.hub.writer().write(lowered.changes).await;
    // INVALID_ARGUMENT: it does not come about.
    let update = update_that_lowered(container(), lowered.lowering);
    bench.hub.close(update.into(), answered(3));
    reconcile::pod(&bench.hub, &sandbox).await;
    assert_eq!(bench.shown_of_pod("cpu.cfs_burst_us"), "50000");
    let mut ledger = bench.hub.ledger().borrow_mut();
    let pod = ledger.pod_mut(&sandbox).unwrap();
    let own = pod.own.entry_mut(Setting::CpuBurst).unwrap();
    assert_eq!(own.applied, Applied::Written);
    assert_eq!(own.original, Original::Default);
    assert_eq!(own.contest, Contest::default());
}

#[tokio::test]
async fn what_an_update_would_lower_is_found_out_without_a_decision_that_anybody_hears_of() {
    let bench = saving_up(Bench::new(FakeTree::new(Generation::V1, 2)));
    reconcile::pod(&bench.hub, &sandbox()).await;
    let runs = || {
        let metrics = bench.hub.metrics().encode().unwrap();
        let runs = metrics.lines().filter(|line| line.contains("hook_runs"));
        runs.map(str::to_owned).collect::<Vec<_>>()
    };
    let before = runs();
    assert!(before.len() > 2, "{before:?}");
    assert_eq!(
        bench
            .hub
            .lower_bursts(&container(), &quota(30_000))
            .changes
            .len(),
        2
    );
    assert_eq!(runs(), before);
}

#[tokio::test]
async fn an_update_that_waits_for_the_first_list_lowers_bursts_too() {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2));
    let Opening::Later(decision) = open(&bench, to_quota(30_000)) else {
        panic!("the container is not known yet");
    };
    let bench = saving_up(bench);
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.cfs_burst_us"), "50000");
    bench.hub.list_taken();
    _ = decision.await;
    assert_eq!(bench.shown("cpu.cfs_burst_us"), "30000");
}

#[tokio::test]
async fn an_update_that_cannot_come_about_lowers_no_burst() {
    let bench = saving_up(Bench::new(FakeTree::new(Generation::V1, 2)));
    reconcile::pod(&bench.hub, &sandbox()).await;
    let nowhere = cri::LinuxContainerResources {
        cpuset_cpus: "99".to_owned(),
        ..to_quota(30_000)
    };
    let Opening::Now(decision) = open(&bench, nowhere) else {
        panic!("nothing is written first");
    };
    assert!(matches!(decision.answer, Answer::AsIs(Untouched::Unsound)));
    bench.hub.close(decision.pending, answered(3));
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.cfs_burst_us"), "50000");
}

#[tokio::test]
async fn what_an_update_asks_of_a_container_that_is_not_known_yet_is_known_once_it_is_done() {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2));
    bench.hub.list_taken();
    let update = cri::UpdateContainerResourcesRequest {
        // The beginning of its id, as a runtime takes it.
        container_id: "cont".to_owned(),
        linux: Some(cri::LinuxContainerResources {
            cpu_shares: 2_048,
            memory_swap_limit_in_bytes: 4_096,
            ..Default::default()
        }),
    };
    let message = update.encode_to_vec();
    let pass = |bench: &Bench| {
        let method = Method::UpdateContainerResources;
        let Opening::Now(decision) = bench.hub.open(method, &message, None) else {
            panic!("nothing to wait for");
        };
        assert!(matches!(decision.answer, Answer::AsIs(Untouched::Unknown)));
        decision.pending
    };
    let (early, late) = (pass(&bench), pass(&bench));
    assert!(is_list_wanted(&bench).await);
    bench.hub.close(early, answered(0));
    assert!(is_list_wanted(&bench).await);

    // That list was asked for before the runtime had done the other.
    let bench = bench.knowing_pod();
    bench.hub.close(late, answered(0));
    assert!(!is_list_wanted(&bench).await);
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
    let shares = bench.entry(Setting::CpuShares).unwrap();
    let asked = Value::from(CpuShares::new(2_048).unwrap());
    assert_eq!(shares.original, Original::Value(asked));
    let ledger = bench.hub.ledger().borrow();
    let (_, container) = ledger.container(&container()).unwrap();
    assert_eq!(container.swap, Some(MemoryLimit::Bytes(4_096)));
}

/// What goes with an update, as a runtime reads it: the patch by itself.
fn appended(bench: &Bench, linux: cri::LinuxContainerResources) -> cri::LinuxContainerResources {
    let Opening::Now(decision) = open(bench, linux) else {
        panic!("nothing to wait for");
    };
    bench.hub.close(decision.pending, answered(0));
    let Answer::Patched(patch) = decision.answer else {
        panic!("values are in force: {:?}", decision.answer);
    };
    let request = cri::UpdateContainerResourcesRequest::read(&patch);
    request.and_then(|request| request.linux).unwrap()
}

#[tokio::test]
async fn what_the_kernel_refuses_of_ours_fails_no_update() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let all = cri::LinuxContainerResources {
        cpu_quota: 100_000,
        cpu_shares: 512,
        memory_limit_in_bytes: 1_073_741_824,
        ..Default::default()
    };
    let but_shares = cri::LinuxContainerResources {
        cpu_shares: 0,
        ..all.clone()
    };
    let shares = || cri::LinuxContainerResources {
        cpu_shares: 300,
        ..Default::default()
    };
    let refusing = async |errno| {
        bench.write("cpu.shares", "77");
        bench
            .tree
            .fail_next_write(&bench.container, "cpu.shares", errno);
        reconcile::pod(&bench.hub, &sandbox()).await;
        let entry = bench.entry(Setting::CpuShares).unwrap();
        assert_eq!(entry.applied, Applied::Refused(Some(errno.raw_os_error())));
    };
    for errno in [Errno::BUSY, Errno::INVAL] {
        refusing(errno).await;
        assert_eq!(appended(&bench, to_quota(50_000)), but_shares, "{errno}");
        // Nor does ours take the place of what the caller asks for.
        assert_eq!(appended(&bench, shares()), but_shares, "{errno}");
        reconcile::pod(&bench.hub, &sandbox()).await;
        assert_eq!(bench.shown("cpu.shares"), "512");
        assert_eq!(appended(&bench, shares()), all, "{errno}");
    }
    // That says nothing of the value, which by the runtime may get there.
    refusing(Errno::ROFS).await;
    assert_eq!(appended(&bench, shares()), all);
}

/// The node's CPUs are twice as fast as the slowest, so a quota is halved.
fn normalized() -> Bench {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let text = "{apiVersion: v1, kind: Node, metadata: {name: node-1, annotations: \
                {node.koordinator.sh/cpu-normalization-ratio: '2.00'}}}";
    let parsed = koord_proto::policy::NodePolicy::parse_stream(text, None).unwrap();
    assert!(parsed.issues.is_empty(), "{:?}", parsed.issues);
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        (pod.view.labels, pod.view.annotations) = Default::default();
        pod.container_mut(&container()).unwrap().view.requested = quota(100_000);
    }
    bench.hub.set_node_policy(parsed.policy.into());
    bench
}

#[tokio::test]
async fn of_two_updates_under_way_at_once_neither_undoes_the_other() {
    let bench = normalized();
    let desired = || bench.entry(Setting::CpuQuota).unwrap().desired.to_string();
    assert_eq!(desired(), "50000");
    let shares = cri::LinuxContainerResources {
        cpu_shares: 2_048,
        ..Default::default()
    };
    let (Opening::Now(one), Opening::Now(other)) =
        (open(&bench, to_quota(200_000)), open(&bench, shares))
    else {
        panic!("nothing to wait for");
    };
    bench.hub.close(one.pending, answered(0));
    assert_eq!(desired(), "100000");
    bench.hub.close(other.pending, answered(0));
    assert_eq!(desired(), "100000");
    // The runtime has written what went in the later one.
    bench.write("cpu.cfs_quota_us", "50000");
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.cfs_quota_us"), "100000");
}

#[tokio::test]
async fn a_hook_that_insists_and_fails_keeps_no_other_from_being_switched_off() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.shares"), "512");
    bench.insist(&[Stage::Container]);
    assert!(bench.hub.switch_hook("BatchResource", false));
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.shares"), "1024");
    let left_out = &bench.hub.report(None).await.pods[0].containers[0].left_out;
    assert_eq!(left_out.len(), 1);
}

#[tokio::test]
async fn an_update_of_another_container_raises_no_burst_that_was_lowered_and_a_failure_does() {
    let bench = saving_up(Bench::new(FakeTree::new(Generation::V1, 2)));
    reconcile::pod(&bench.hub, &sandbox()).await;
    let lowered = bench.hub.lower_bursts(&container(), &quota(30_000));
    bench.hub.writer().write(lowered.changes).await;
    let other = ContainerId::new("container-2").unwrap();
    let beside = Container::new(other.clone(), "beside".to_owned(), Requested::default());
    bench
        .hub
        .ledger()
        .borrow_mut()
        .insert_container(&sandbox(), beside);
    bench.hub.close(empty_update(other).into(), answered(0));
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.cfs_burst_us"), "30000");

    // INVALID_ARGUMENT: the quota is what it was.
    bench.hub.queue().drain();
    let update = update_that_lowered(container(), lowered.lowering);
    bench.hub.close(update.into(), answered(3));
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.cfs_burst_us"), "50000");
}

#[tokio::test]
async fn what_was_lowered_for_an_update_stays_low_when_another_of_the_container_ends_before_it() {
    let bench = saving_up(Bench::new(FakeTree::new(Generation::V1, 2)));
    reconcile::pod(&bench.hub, &sandbox()).await;
    let less = bench.hub.lower_bursts(&container(), &quota(30_000));
    bench.hub.writer().write(less.changes).await;
    let least = bench.hub.lower_bursts(&container(), &quota(20_000));
    bench.hub.writer().write(least.changes).await;
    // One that lowered nothing, then one that lowered less.
    for (lowering, status) in [(None, 0), (less.lowering, 3)] {
        let update = update_that_lowered(container(), lowering);
        bench.hub.close(update.into(), answered(status));
        reconcile::pod(&bench.hub, &sandbox()).await;
        assert_eq!(bench.shown("cpu.cfs_burst_us"), "20000");
    }
    let update = update_that_lowered(container(), least.lowering);
    bench.hub.close(update.into(), answered(3));
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.cfs_burst_us"), "50000");
}

#[tokio::test(start_paused = true)]
async fn a_burst_is_raised_again_when_nobody_tells_how_its_update_ended() {
    let bench = saving_up(Bench::new(FakeTree::new(Generation::V1, 2)));
    reconcile::pod(&bench.hub, &sandbox()).await;
    bench.hub.queue().drain();
    let lowered = bench.hub.lower_bursts(&container(), &quota(30_000)).changes;
    bench.hub.writer().write(lowered).await;
    assert_eq!(bench.shown("cpu.cfs_burst_us"), "30000");
    // The call is given up while it is held.
    tokio::time::advance(Duration::from_millis(9_999)).await;
    assert_eq!(bench.hub.queue().drain(), []);
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.cfs_burst_us"), "50000");
}

#[tokio::test]
async fn what_is_given_back_and_no_update_can_say_is_written_after_each() {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2)).knowing_pod();
    let decide_with = |annotations: &[(&'static str, &'static str)]| {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        pod.view.labels = [(label::QOS_CLASS, "LSR")].into_iter().collect();
        pod.view.annotations = annotations.iter().copied().collect();
        bench.hub.decide_again(pod);
    };
    let write = |at: &CgroupPath, cpus| {
        let written = bench
            .tree
            .write(Controller::Cpuset, at, "cpuset.cpus", cpus);
        written.unwrap();
    };
    let at = bench.pod.join("container-1").unwrap();
    for above in ["kubepods", "kubepods/besteffort"] {
        write(&CgroupPath::parse(above).unwrap(), "0-1");
    }
    write(&bench.pod, "0-1");
    let cpus = || {
        let read = bench.tree.read(Controller::Cpuset, &at, "cpuset.cpus");
        read.unwrap().trim().to_owned()
    };
    let update = async |micros| {
        let opening = open(&bench, to_quota(micros));
        let decision = match opening {
            Opening::Now(decision) => decision,
            Opening::Later(decision) => decision.await,
        };
        bench.hub.close(decision.pending, answered(0));
        // The whole spec of the runtime is written by it, in which our CPUs are.
        let written = bench
            .tree
            .write(Controller::Cpuset, &at, "cpuset.cpus", "1");
        written.unwrap();
        reconcile::pod(&bench.hub, &sandbox()).await;
        cpus()
    };
    decide_with(&[(annotation::RESOURCE_STATUS, r#"{"cpuset":"1"}"#)]);
    assert_eq!(update(50_000).await, "1");
    decide_with(&[]);
    for micros in [40_000, 30_000, 20_000] {
        assert_eq!(update(micros).await, "0-1", "after the update to {micros}");
    }
}

#[tokio::test]
async fn what_was_given_back_is_looked_at_after_an_update_that_failed() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.shares"), "512");
    bench.hub.switch_all_off();
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.shares"), "1024");
    // UNKNOWN, INVALID_ARGUMENT and INTERNAL.
    for code in [2, 3, 13] {
        let Opening::Now(decision) = open(&bench, to_quota(30_000)) else {
            panic!("nothing to wait for");
        };
        // To undo it the runtime writes its stored spec.
        bench.write("cpu.shares", "512");
        bench.hub.queue().drain();
        bench.hub.close(decision.pending, answered(code));
        assert_eq!(bench.hub.queue().drain(), [sandbox()], "{code}");
        reconcile::pod(&bench.hub, &sandbox()).await;
        assert_eq!(bench.shown("cpu.shares"), "1024", "{code}");
    }
}

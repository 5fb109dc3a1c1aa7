//! What a process before us has set, over a start of another one on the same groups.

use super::*;
use crate::{
    hub::{PodsAnswer, Word},
    ledger::{Container, Unasked},
};
use koord_hooks::Requested;
use koord_kernel::{
    cgroup::{Marked, Note},
    fake::FakeCores,
};
use koord_model::{CpuShares, KubeQos};
use std::collections::BTreeMap;

/// A pod with a CPU of its own, whose quota is lifted: what that was nobody tells.
fn bound(bench: Bench) -> Bench {
    let bench = bench.knowing_pod();
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        pod.view.kube_qos = KubeQos::Guaranteed;
        pod.view.labels = [(label::QOS_CLASS, "LSR")].into_iter().collect();
        let status = (annotation::RESOURCE_STATUS, r#"{"cpuset":"1"}"#);
        pod.view.annotations = [status].into_iter().collect();
        pod.own = Target::at(Some(bench.pod.clone()));
        pod.is_listed = true;
        bench.hub.decide_again(pod);
    }
    bench
}

/// The same, to which the kubelet gave 300 ms in 100.
fn limited() -> (FakeTree, Bench) {
    let tree = FakeTree::new(Generation::V1, 2);
    let bench = Bench::new(tree.clone());
    kubelet_writes(&bench, "300000");
    (tree, bound(bench))
}

fn kubelet_writes(bench: &Bench, quota: &str) {
    let file = "cpu.cfs_quota_us";
    let written = bench.tree.write(Controller::Cpu, &bench.pod, file, quota);
    written.unwrap();
}

/// The quota of the pod's directory once it was looked at.
async fn quota(bench: &Bench) -> String {
    check(bench).await;
    bench.shown_of_pod("cpu.cfs_quota_us")
}

fn off(bench: &Bench) {
    assert!(bench.hub.switch_hook("CPUSetAllocator", false));
}

#[tokio::test]
async fn what_was_there_before_comes_back_though_another_process_has_replaced_it() {
    let (tree, bench) = limited();
    assert_eq!(quota(&bench).await, "-1");
    let next = bound(Bench::new(tree.clone()));
    assert_eq!(quota(&next).await, "-1");
    off(&next);
    assert_eq!(quota(&next).await, "300000");
    // Nothing is left to be known.
    let last = bound(Bench::new(tree));
    off(&last);
    kubelet_writes(&last, "70000");
    assert_eq!(quota(&last).await, "70000");
}

#[tokio::test]
async fn what_nobody_decides_any_more_after_a_start_comes_back() {
    let (tree, bench) = limited();
    assert_eq!(quota(&bench).await, "-1");
    let next = bound(Bench::new(tree));
    off(&next);
    assert_eq!(quota(&next).await, "300000");
}

#[tokio::test]
async fn what_nobody_decides_any_more_stays_until_the_pods_source_was_heard() {
    let (tree, bench) = limited();
    assert_eq!(quota(&bench).await, "-1");
    let next = bound(Bench::new(tree));
    next.hub.await_pods();
    let pod = {
        let mut ledger = next.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        pod.view.labels = Default::default();
        next.hub.decide_again(pod);
        let view = &pod.view;
        koord_proto::pods::Pod {
            uid: view.uid.clone(),
            namespace: view.namespace.clone(),
            name: view.name.clone(),
            labels: BTreeMap::default(),
            annotations: BTreeMap::default(),
            spec: Arc::default(),
        }
    };
    assert_eq!(quota(&next).await, "-1");
    next.hub.queue().drain();
    next.hub.take_pods(&PodsAnswer {
        pods: [Arc::new(pod)].into(),
        asked: Instant::now(),
        word: Word::OfItsTime,
    });
    assert_eq!(next.hub.queue().drain(), [sandbox()]);
    assert_eq!(quota(&next).await, "300000");
}

#[tokio::test]
async fn a_hook_that_is_switched_off_gives_back_before_the_pods_source_was_heard() {
    for is_off_at_first in [false, true] {
        let (tree, bench) = limited();
        assert_eq!(quota(&bench).await, "-1");
        let next = Bench::new(tree);
        next.hub.await_pods();
        if is_off_at_first {
            off(&next);
            // They may decide quotas too.
            for hook in ["BatchResource", "CPUNormalization"] {
                assert!(next.hub.switch_hook(hook, false));
            }
        }
        let next = bound(next);
        if !is_off_at_first {
            assert_eq!(quota(&next).await, "-1");
            off(&next);
        }
        assert_eq!(quota(&next).await, "300000");
    }
}

#[tokio::test]
async fn what_cannot_be_recalled_for_want_of_a_thread_is_once_there_is_one() {
    let (tree, bench) = limited();
    assert_eq!(quota(&bench).await, "-1");
    let next = bound(Bench::new(tree));
    off(&next);
    next.hub.writer().deny_threads(true);
    for _ in 0..2 {
        assert_eq!(quota(&next).await, "-1");
    }
    next.hub.writer().deny_threads(false);
    assert_eq!(quota(&next).await, "300000");
}

#[tokio::test]
async fn what_cannot_be_read_of_the_time_before_us_is_recalled_once_it_can() {
    let (tree, bench) = limited();
    assert_eq!(quota(&bench).await, "-1");
    let next = bound(Bench::new(tree.clone()));
    off(&next);
    tree.fail_notes(Some(koord_kernel::fake::Errno::NFILE));
    for _ in 0..2 {
        assert_eq!(quota(&next).await, "-1");
    }
    tree.fail_notes(None);
    assert_eq!(quota(&next).await, "300000");
}

#[tokio::test]
async fn what_somebody_else_has_written_since_stays() {
    let (tree, bench) = limited();
    assert_eq!(quota(&bench).await, "-1");
    kubelet_writes(&bench, "70000");
    let next = bound(Bench::new(tree));
    off(&next);
    assert_eq!(quota(&next).await, "70000");
}

#[tokio::test]
async fn what_the_kubelet_writes_over_ours_is_what_comes_back() {
    let (tree, bench) = limited();
    assert_eq!(quota(&bench).await, "-1");
    kubelet_writes(&bench, "70000");
    assert_eq!(quota(&bench).await, "-1");
    let next = bound(Bench::new(tree));
    assert_eq!(quota(&next).await, "-1");
    for bench in [&next, &bench] {
        off(bench);
        assert_eq!(quota(bench).await, "70000");
        kubelet_writes(bench, "-1");
    }
}

#[tokio::test]
async fn what_the_kubelet_has_written_while_nobody_was_here_is_what_comes_back() {
    let (tree, bench) = limited();
    assert_eq!(quota(&bench).await, "-1");
    kubelet_writes(&bench, "70000");
    let next = bound(Bench::new(tree));
    assert_eq!(quota(&next).await, "-1");
    off(&next);
    assert_eq!(quota(&next).await, "70000");
}

#[tokio::test]
async fn beside_koordlet_nothing_of_its_hooks_is_recalled() {
    let (tree, bench) = limited();
    assert_eq!(quota(&bench).await, "-1");
    let next = Bench::new(tree);
    next.hub.set_resting(["CPUSetAllocator"].into());
    let next = bound(next);
    assert_eq!(quota(&next).await, "-1");
}

#[tokio::test]
async fn the_shares_that_idleness_forgot_come_back_after_a_start() {
    // Not decided any more, decided until it is looked at for the first time, or for longer; and as it was, or
    // where who was here before us was killed once it had waked the group.
    let cases = [(false, 0), (true, 0), (true, 1)];
    let cases = cases.map(|case| [(case, false), (case, true)]);
    for ((is_decided, looks), is_awake) in cases.concat() {
        let bench = Bench::idling(Generation::V1).await;
        if is_awake {
            let written = (bench.tree).write(Controller::Cpu, &bench.pod, "cpu.idle", "0");
            written.unwrap();
            assert_eq!(bench.shown_of_pod("cpu.shares"), "1024");
        }
        let next = Bench::to_idle(bench.tree.clone(), is_decided);
        for _ in 0..looks {
            check(&next).await;
            assert_eq!(next.shown_of_pod("cpu.idle"), "1");
        }
        next.hub.switch_hook("GroupIdentity", false);
        check(&next).await;
        let shown = ["cpu.idle", "cpu.shares"].map(|file| next.shown_of_pod(file));
        assert_eq!(shown, ["0", "500"], "{is_decided}, {looks}, {is_awake}");
    }
}

#[tokio::test]
async fn ranks_of_tiers_come_back_after_a_start_without_the_policy() {
    let tree = FakeTree::new(Generation::V1, 2).with_group_identity();
    let tier = CgroupPath::parse("kubepods/besteffort").unwrap();
    let rank = || {
        let text = tree
            .read(Controller::Cpu, &tier, "cpu.bvt_warp_ns")
            .unwrap();
        text.trim_end().to_owned()
    };
    let bench = Bench::new(tree.clone());
    bench.hub.set_node_policy(slo(""));
    node(&bench.hub).await;
    assert_eq!(rank(), "-1");
    let next = Bench::new(tree.clone());
    // That is nothing of pods.
    next.hub.await_pods();
    assert!(next.hub.switch_hook("GroupIdentity", false));
    next.hub.writer().deny_threads(true);
    node(&next.hub).await;
    assert_eq!(rank(), "-1");
    next.hub.writer().deny_threads(false);
    node(&next.hub).await;
    assert_eq!(rank(), "0");
}

#[tokio::test]
async fn what_another_user_can_have_noted_on_an_applications_group_does_not_come_back() {
    for (is_anothers, back) in [(false, "0"), (true, "1")] {
        let tree = FakeTree::new(Generation::V1, 2);
        let nginx = CgroupPath::parse("host/nginx").unwrap();
        tree.make(&nginx);
        for (at, cpus) in [(&nginx.parent().unwrap(), "0-1"), (&nginx, "1")] {
            tree.write(Controller::Cpuset, at, "cpuset.cpus", cpus)
                .unwrap();
        }
        let note = Note::Originals;
        tree.set_note(Controller::Cpu, &nginx, note, "cpuset.cpus 0 1\n")
            .unwrap();
        if is_anothers {
            tree.give_away(&nginx);
        }
        let bench = Bench::new(tree.clone());
        for applications in [NGINX, ""] {
            bench.hub.set_node_policy(slo(applications));
            node(&bench.hub).await;
        }
        let cpus = tree.read(Controller::Cpuset, &nginx, "cpuset.cpus");
        assert_eq!(cpus.unwrap().trim_end(), back);
    }
}

/// The thread of the pod's container.
const THREAD: i32 = 11;

/// The pod, from before the start, on a kernel that gives cookies, under a policy that does or does not.
fn scheduled(tree: &FakeTree, threads: &FakeCores, gives_cookies: bool) -> Bench {
    let bench = Bench::with_cores(tree.clone(), threads.clone()).knowing_pod();
    let policies = "policies: {cpuPolicy: coreSched}, beClass: {cpuQOS: {enable: true}}";
    let policies = if gives_cookies { policies } else { "" };
    bench.hub.set_node_policy(network_policy(policies));
    bench.hub.list_taken();
    bench
        .hub
        .ledger()
        .borrow_mut()
        .pod_mut(&sandbox())
        .unwrap()
        .is_listed = true;
    bench
}

/// The same, and the first process that gives it a cookie.
async fn with_cookie() -> (FakeTree, FakeCores) {
    let (tree, threads) = (FakeTree::new(Generation::V2, 2), FakeCores::default());
    threads.fork(None, THREAD);
    let bench = scheduled(&tree, &threads, true);
    tree.enter(&bench.container, THREAD.unsigned_abs());
    check(&bench).await;
    assert_eq!(threads.number(THREAD), 1);
    (tree, threads)
}

#[tokio::test]
async fn a_cookie_that_nobody_decides_any_more_after_a_start_is_taken_once() {
    let (tree, threads) = with_cookie().await;
    check(&scheduled(&tree, &threads, true)).await;
    assert_eq!(threads.number(THREAD), 1);
    let next = scheduled(&tree, &threads, false);
    check(&next).await;
    assert_eq!(threads.number(THREAD), 0);
    assert!(next.entry(Setting::CoreSched).is_none());
    // One that it has after that is somebody else's, whoever starts next.
    threads.set(THREAD, 7);
    check(&next).await;
    check(&scheduled(&tree, &threads, false)).await;
    assert_eq!(threads.number(THREAD), 7);
}

#[tokio::test]
async fn a_cookie_stays_until_the_pods_source_was_heard_or_if_koordlet_may_have_given_it() {
    let (tree, threads) = with_cookie().await;
    let unheard = scheduled(&tree, &threads, false);
    unheard.hub.await_pods();
    check(&unheard).await;
    let beside = scheduled(&tree, &threads, false);
    beside.hub.set_resting(["CoreSched"].into());
    check(&beside).await;
    assert_eq!(threads.number(THREAD), 1);
}

#[tokio::test]
async fn a_cookie_that_a_container_has_from_its_shim_is_taken_though_it_was_not_marked_yet() {
    let (tree, threads) = (FakeTree::new(Generation::V2, 2), FakeCores::default());
    threads.fork(None, THREAD);
    threads.set(THREAD, 7);
    let next = scheduled(&tree, &threads, false);
    tree.enter(&next.container, THREAD.unsigned_abs());
    let pause = next.pod.join("sandbox-1").unwrap();
    let marked = [Setting::CoreSched].into();
    let cgroups = next.hub.writer().cgroups();
    cgroups.mark(&pause, cgroup::Marked::Threads, &marked);
    {
        let mut ledger = next.hub.ledger().borrow_mut();
        ledger.pod_mut(&sandbox()).unwrap().pause = Target::at(Some(pause));
    }
    check(&next).await;
    assert_eq!(threads.number(THREAD), 0);
}

#[tokio::test]
async fn a_cookie_whose_mark_cannot_be_read_is_taken_once_it_can() {
    let (tree, threads) = with_cookie().await;
    let next = scheduled(&tree, &threads, false);
    tree.fail_notes(Some(koord_kernel::fake::Errno::NFILE));
    check(&next).await;
    assert_eq!(threads.number(THREAD), 1);
    tree.fail_notes(None);
    check(&next).await;
    assert_eq!(threads.number(THREAD), 0);
}

/// Has the pod be one of a client that names a directory for many.
fn without_directory(bench: Bench) -> Bench {
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        pod.own = Target::default();
        bench.hub.decide_again(pod);
    }
    bench
}

#[tokio::test]
async fn a_cookie_of_a_pod_without_a_directory_of_its_own_is_taken_after_a_start() {
    let (tree, threads) = with_cookie().await;
    check(&without_directory(scheduled(&tree, &threads, true))).await;
    assert_eq!(threads.number(THREAD), 1);
    let next = without_directory(scheduled(&tree, &threads, false));
    check(&next).await;
    assert_eq!(threads.number(THREAD), 0);
    assert!(next.entry(Setting::CoreSched).is_none());
}

/// Has the pod's container be unknown so far.
fn take_container(bench: &Bench) -> Container {
    let mut ledger = bench.hub.ledger().borrow_mut();
    ledger
        .pod_mut(&sandbox())
        .unwrap()
        .containers
        .pop()
        .unwrap()
}

#[tokio::test]
async fn what_a_container_has_comes_back_though_it_comes_to_be_known_later_than_its_pod() {
    for is_known_while_its_pod_is_recalled in [false, true] {
        let tree = FakeTree::new(Generation::V1, 2);
        let bench = Bench::with_pod(tree.clone());
        check(&bench).await;
        assert_eq!(shown(&bench), OURS);
        let next = undecided(&tree);
        let container = take_container(&next);
        let list = || {
            let mut ledger = next.hub.ledger().borrow_mut();
            ledger.list_container(&sandbox(), container.clone());
        };
        if is_known_while_its_pod_is_recalled {
            tokio::join!(check(&next), async { list() });
        } else {
            check(&next).await;
            list();
        }
        check(&next).await;
        assert_eq!(shown(&next), ASKED, "{is_known_while_its_pod_is_recalled}");
    }
}

/// What the container of the best-effort pod has: shares, quota, and limit of memory.
fn shown(bench: &Bench) -> [String; 3] {
    let limit = "memory.limit_in_bytes";
    let limit = (bench.tree).read(Controller::Memory, &bench.container, limit);
    let limit = limit.unwrap().trim_end().to_owned();
    [
        bench.shown("cpu.shares"),
        bench.shown("cpu.cfs_quota_us"),
        limit,
    ]
}

const OURS: [&str; 3] = ["512", "100000", "1073741824"];
const ASKED: [&str; 3] = ["1024", "-1", "9223372036854771712"];

/// The pod, whose container asked for 1,024 shares, where its hook is off.
fn undecided(tree: &FakeTree) -> Bench {
    let bench = Bench::new(tree.clone());
    assert!(bench.hub.switch_hook("BatchResource", false));
    bench.knowing_pod()
}

#[tokio::test]
async fn what_a_container_has_that_nobody_decides_any_more_after_a_start_is_as_it_was_asked() {
    let tree = FakeTree::new(Generation::V1, 2);
    let bench = Bench::with_pod(tree.clone());
    check(&bench).await;
    assert_eq!(shown(&bench), OURS);
    let next = undecided(&tree);
    check(&next).await;
    assert_eq!(shown(&next), ASKED);
    // What is there after that is somebody else's, whoever starts next.
    next.write("cpu.shares", "77");
    let last = undecided(&tree);
    check(&last).await;
    assert_eq!(last.shown("cpu.shares"), "77");
}

#[tokio::test]
async fn what_the_runtimes_spec_has_of_ours_is_as_it_was_asked_after_each_call() {
    let tree = FakeTree::new(Generation::V1, 2);
    let bench = Bench::with_pod(tree.clone());
    check(&bench).await;
    let next = undecided(&tree);
    check(&next).await;
    assert_eq!(shown(&next), ASKED);
    // The runtime writes its spec, in which an update before the start has said others.
    next.write("cpu.shares", "204");
    rewritten(&next, |_| ());
    check(&next).await;
    assert_eq!(shown(&next), ASKED);
}

#[tokio::test]
async fn what_the_runtimes_spec_has_of_ours_is_known_after_another_start_until_it_was_told_otherwise()
 {
    let tree = FakeTree::new(Generation::V1, 2);
    check(&Bench::with_pod(tree.clone())).await;
    check(&undecided(&tree)).await;
    let noted = |bench: &Bench| {
        let note = Note::Marks(Marked::Spec);
        tree.note(Controller::Cpu, &bench.container, note).unwrap()
    };
    for _ in 0..2 {
        let next = undecided(&tree);
        check(&next).await;
        assert_eq!(shown(&next), ASKED);
        assert_ne!(noted(&next), "");
        // Which the runtime writes with an update that is about something else.
        next.write("cpu.shares", "204");
        rewritten(&next, |_| ());
        check(&next).await;
        assert_eq!(shown(&next), ASKED);
    }
    let next = undecided(&tree);
    check(&next).await;
    rewritten(&next, Entry::note_told);
    check(&next).await;
    assert_eq!(noted(&next), "");
}

#[tokio::test]
async fn what_somebody_has_written_over_what_was_given_back_stays_when_it_is_known_what_was_asked()
{
    let tree = FakeTree::new(Generation::V1, 2);
    check(&Bench::with_pod(tree.clone())).await;
    check(&undecided(&tree)).await;
    let next = undecided(&tree);
    next.write("cpu.shares", "700");
    let hear = |unasked, cpu_shares| {
        let mut ledger = next.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        let container = pod.container_mut(&container()).unwrap();
        container.view.requested = Requested {
            cpu_shares,
            ..Requested::default()
        };
        container.hear(unasked);
        container.look_again();
        next.hub.decide_again(pod);
    };
    hear(Unasked::Unheard, None);
    check(&next).await;
    let known = next.entry(Setting::CpuShares).unwrap();
    assert_eq!(
        (known.desired.to_string().as_str(), known.owner),
        ("700", "-")
    );
    hear(Unasked::Nothing, CpuShares::new(1_024).ok());
    check(&next).await;
    assert_eq!(next.shown("cpu.shares"), "700");
}

/// The runtime has written its spec, of which it was told this.
fn rewritten(bench: &Bench, told: impl Fn(&mut Entry)) {
    let mut ledger = bench.hub.ledger().borrow_mut();
    let pod = ledger.pod_mut(&sandbox()).unwrap();
    let known = pod.container_mut(&container()).unwrap();
    known.target.entries_mut().for_each(told);
    known.target.runtime_rewrote();
}

#[tokio::test]
async fn where_nobody_asks_us_no_spec_has_anything_of_ours() {
    let tree = FakeTree::new(Generation::V1, 2);
    check(&Bench::with_pod(tree.clone())).await;
    let next = Bench::watching(tree);
    assert!(next.hub.switch_hook("BatchResource", false));
    let next = next.knowing_pod();
    check(&next).await;
    assert_eq!(shown(&next), ASKED);
    assert!(next.entry(Setting::CpuShares).is_none());
}

#[tokio::test]
async fn what_a_container_has_after_a_start_stays_until_it_is_known_what_was_asked() {
    let tree = FakeTree::new(Generation::V1, 2);
    check(&Bench::with_pod(tree.clone())).await;
    let next = undecided(&tree);
    let hear = |unasked| {
        let mut ledger = next.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        pod.containers[0].view.requested = Default::default();
        pod.containers[0].hear(unasked);
        next.hub.decide_again(pod);
    };
    hear(Unasked::Unheard);
    check(&next).await;
    assert_eq!(shown(&next), OURS);
    for setting in [Setting::CpuShares, Setting::MemoryLimit] {
        assert_eq!(next.entry(setting).unwrap().applied, Applied::Left);
    }
    hear(Unasked::Nothing);
    check(&next).await;
    // Of 1,024 shares nobody is known to have asked for others, too.
    assert_eq!(shown(&next), ASKED);
    // An update may have told the runtime.
    assert!(next.entry(Setting::CpuShares).unwrap().is_let_go());
}

/// The pod, whose container is where many are, with its hook or without.
fn among_others(tree: &FakeTree, is_on: bool) -> Bench {
    let mut bench = Bench::new(tree.clone());
    bench.container = CgroupPath::parse("kubepods/besteffort/container-1").unwrap();
    tree.make(&bench.container);
    assert!(is_on || bench.hub.switch_hook("BatchResource", false));
    without_directory(bench.knowing_pod())
}

#[tokio::test]
async fn what_a_container_has_where_many_are_is_marked_and_as_it_was_asked_after_a_start() {
    let tree = FakeTree::new(Generation::V1, 2);
    let bench = among_others(&tree, true);
    check(&bench).await;
    assert_eq!(shown(&bench), OURS);
    let [files, originals] = [Note::Marks(Marked::Files), Note::Originals];
    let noted = |note| tree.note(Controller::Cpu, &bench.container, note).unwrap();
    let marks = "cpu.shares cpu.cfs_quota_us memory.limit_in_bytes";
    assert_eq!([noted(files), noted(originals)], [marks, ""]);
    let next = among_others(&tree, false);
    check(&next).await;
    assert_eq!(shown(&next), ASKED);
    assert_eq!([noted(files), noted(originals)], ["", ""]);
}

#[tokio::test]
async fn a_container_that_may_not_be_read_keeps_nothing_else_from_being_recalled() {
    let (tree, bench) = limited();
    assert_eq!(quota(&bench).await, "-1");
    tree.close(&bench.container);
    let next = bound(Bench::new(tree.clone()));
    off(&next);
    assert_eq!(quota(&next).await, "300000");
    // The next container of the pod.
    let beside = next.pod.join("container-2").unwrap();
    tree.make(&beside);
    let cgroups = next.hub.writer().cgroups();
    cgroups.mark(&beside, cgroup::Marked::Files, &[Setting::CpuShares].into());
    let mut container = take_container(&next);
    let list = |container| {
        let mut ledger = next.hub.ledger().borrow_mut();
        ledger.list_container(&sandbox(), container);
    };
    list(container.clone());
    container.id = koord_model::ContainerId::new("container-2").unwrap();
    container.target = Target::at(Some(beside.clone()));
    list(container);
    tree.write(Controller::Cpu, &beside, "cpu.shares", "77")
        .unwrap();
    check(&next).await;
    let shares = tree.read(Controller::Cpu, &beside, "cpu.shares").unwrap();
    assert_eq!(shares, "1024\n");
}

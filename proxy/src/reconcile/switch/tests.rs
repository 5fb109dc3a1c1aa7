//! The best-effort pod of the bench, with one thread, on a kernel that has both switches. Neither was
//! on before us.

use super::*;
use crate::{hub::testing::Bench, reconcile::all_that_waits};
use koord_kernel::{
    cgroup::Generation,
    fake::{Errno, FakeCores, FakeTree},
};
use koord_model::CgroupPath;
use koord_proto::policy::NodePolicy;
use std::sync::Arc;

const THREAD: i32 = 11;

const IDENTITY: &str = "sched_group_identity_enabled";

const TIER: &str = "kubepods/besteffort/cpu.bvt_warp_ns";
const POD: &str = "kubepods/besteffort/poduid-1/cpu.bvt_warp_ns";

/// One that treats best-effort pods by this.
fn policy(by: &str) -> Arc<NodePolicy> {
    with_best_effort(by, true)
}

/// The same, or one that treats nobody.
fn with_best_effort(by: &str, enable: bool) -> Arc<NodePolicy> {
    let slo = format!(
        "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\nmetadata: {{name: node-1}}\n\
         spec: {{resourceQOSStrategy: {{policies: {{cpuPolicy: {by}}}, \
         beClass: {{cpuQOS: {{enable: {enable}, groupIdentity: -1}}}}}}}}\n"
    );
    let parsed = NodePolicy::parse_stream(&slo, None).unwrap();
    assert!(parsed.issues.is_empty(), "{:?}", parsed.issues);
    Arc::new(parsed.policy)
}

fn tree() -> FakeTree {
    FakeTree::new(Generation::V2, 2)
        .with_group_identity()
        .with_sysctl(IDENTITY, "0")
        .with_sysctl("sched_core", "0")
}

/// A hub that knows the pod, and not yet that there is no other.
fn started(tree: &FakeTree, threads: &FakeCores) -> Bench {
    Bench::with_cores(tree.clone(), threads.clone()).knowing_pod()
}

/// The same once it knows that.
fn bench(tree: &FakeTree) -> (Bench, FakeCores) {
    let threads = FakeCores::default();
    threads.fork(None, THREAD);
    let bench = started(tree, &threads);
    bench.tree.enter(&bench.container, 11);
    bench.hub.list_taken();
    (bench, threads)
}

/// One that is started after another under core scheduling, which has left cookies. Without a mark nothing takes
/// them but that core scheduling goes off.
async fn with_cookies_from_before() -> (FakeTree, FakeCores, Bench) {
    let tree = tree().without_notes();
    let (first, threads) = bench(&tree);
    under(&first, "coreSched").await;
    drop(first);
    written(&tree);
    let second = started(&tree, &threads);
    (tree, threads, second)
}

/// Does all that waits.
async fn settle(bench: &Bench) {
    all_that_waits(&bench.hub).await;
}

/// Holds everything against the kernel, as is done once a minute.
async fn look(bench: &Bench) {
    bench.hub.queue().push_all(&bench.hub.ledger().borrow());
    settle(bench).await;
}

async fn under(bench: &Bench, by: &str) {
    bench.hub.set_node_policy(policy(by));
    settle(bench).await;
}

/// What was written to switches and as ranks since the last call, in order.
fn written(tree: &FakeTree) -> Vec<String> {
    let all = tree.take_writes().into_iter();
    let ours = all.filter(|it| it.at.is_root() || it.file == "cpu.bvt_warp_ns");
    let shown = ours.map(|it| match it.at.is_root() {
        true => format!("{}={}", it.file, it.text),
        false => format!("{}/{}={}", it.at.as_str(), it.file, it.text),
    });
    shown.collect()
}

fn rank(of: &str, rank: i8) -> String {
    format!("{of}={rank}")
}

fn switch(name: &str, on: u8) -> String {
    format!("{name}={on}")
}

/// What becomes of the switches, as a person is told it; `None` if nobody decides about them.
async fn told(bench: &Bench) -> Option<String> {
    let report = bench.hub.report(Some("node")).await;
    let mut settings = report.node.into_iter().flat_map(|group| group.settings);
    let told = settings.find(|it| it.setting == "sched_switch")?;
    Some(format!("{}: {}", told.desired, told.applied))
}

#[test]
fn what_needs_a_switch_is_let_through_while_it_is_on() {
    use SchedSwitch::{AsBefore, CoreSched, GroupIdentity};
    let refused = Applied::Refused(Some(16));
    for (choice, applied, ranks, cookies) in [
        (GroupIdentity, &Applied::Pending, false, false),
        (GroupIdentity, &Applied::Written, true, false),
        (GroupIdentity, &Applied::Equal, true, false),
        (GroupIdentity, &refused, false, false),
        (GroupIdentity, &Applied::Yielded, false, false),
        (CoreSched, &Applied::Pending, false, false),
        (CoreSched, &Applied::Written, false, true),
        (CoreSched, &Applied::Equal, false, true),
        (CoreSched, &refused, false, false),
        (CoreSched, &Applied::Yielded, false, false),
        (AsBefore, &Applied::Pending, false, false),
        (AsBefore, &refused, false, false),
    ] {
        let expected = Gate { ranks, cookies };
        let gate = Gate::by(Some((choice, applied)));
        assert_eq!(gate, expected, "{choice} {applied:?}");
    }
    let (open, closed) = (
        Gate::by(None),
        Gate::by(Some((AsBefore, &Applied::Pending))),
    );
    let ranked = |rank| Value::from(Bvt::new(rank).unwrap());
    assert!(open.lets(&ranked(-1)) && open.lets(&ranked(0)));
    assert!(!closed.lets(&ranked(-1)) && closed.lets(&ranked(0)));
    assert!(closed.lets(&Value::CpuIdle(true)));
    let of = |group| Member {
        at: CgroupPath::root(),
        group: ThreadGroup::Cores(group),
        with_shim: false,
    };
    let shared = CoreGroup::Shared {
        id: "".into(),
        expeller: false,
    };
    assert!(open.lets_join(&of(shared.clone())) && !closed.lets_join(&of(shared)));
    assert!(closed.lets_join(&of(CoreGroup::None)));
}

#[tokio::test]
async fn one_switch_is_off_and_nothing_needs_it_before_the_other_goes_on() {
    let tree = tree();
    let (bench, threads) = bench(&tree);
    under(&bench, "groupIdentity").await;
    let ranked = [rank(TIER, -1), rank(POD, -1)];
    let on = [switch(IDENTITY, 1)];
    assert_eq!(written(&tree), [&on[..], &ranked].concat());

    under(&bench, "coreSched").await;
    let reset = [rank(TIER, 0), rank(POD, 0)];
    let over = [switch(IDENTITY, 0), switch("sched_core", 1)];
    assert_eq!(written(&tree), [&reset[..], &over].concat());
    assert_ne!(threads.number(THREAD), 0);
    look(&bench).await;
    assert!(written(&tree).is_empty());

    bench.hub.set_node_policy(policy("groupIdentity"));
    tree.fail_next_write(&CgroupPath::root(), "sched_core", Errno::BUSY);
    super::super::node(&bench.hub).await;
    // The kernel was asked once there was no cookie.
    assert_eq!(threads.number(THREAD), 0);
    assert!(written(&tree).is_empty());
    settle(&bench).await;
    let back = [switch("sched_core", 0), switch(IDENTITY, 1)];
    assert_eq!(written(&tree), [&back[..], &ranked].concat());
    assert_eq!(told(&bench).await.unwrap(), "group identity: equal");
}

#[tokio::test]
async fn switches_are_given_back_with_their_hook_once_nobody_is_ranked() {
    let tree = tree().with_sysctl("sched_core", "1");
    let (bench, _) = bench(&tree);
    under(&bench, "groupIdentity").await;
    let on = [switch("sched_core", 0), switch(IDENTITY, 1)];
    let ranked = [rank(TIER, -1), rank(POD, -1)];
    assert_eq!(written(&tree), [&on[..], &ranked].concat());
    assert!(bench.hub.switch_hook("GroupIdentity", false));
    settle(&bench).await;
    let reset = [rank(TIER, 0), rank(POD, 0)];
    let back = [switch(IDENTITY, 0), switch("sched_core", 1)];
    assert_eq!(written(&tree), [&reset[..], &back].concat());
    assert_eq!(told(&bench).await, None);
    look(&bench).await;
    assert!(written(&tree).is_empty());
}

#[tokio::test]
async fn a_cookie_from_before_a_restart_is_gone_once_core_scheduling_is_off() {
    let (tree, threads, second) = with_cookies_from_before().await;
    under(&second, "groupIdentity").await;
    // There may be pods that nobody has told of.
    assert!(written(&tree).is_empty());
    assert_ne!(threads.number(THREAD), 0);
    second.hub.list_taken();
    settle(&second).await;
    assert_eq!(threads.number(THREAD), 0);
    let over = [switch("sched_core", 0), switch(IDENTITY, 1)];
    let ranked = [rank(TIER, -1), rank(POD, -1)];
    assert_eq!(written(&tree), [&over[..], &ranked].concat());
}

#[tokio::test]
async fn no_switch_goes_off_while_cookies_cannot_be_taken_for_a_reason_that_passes() {
    for has_thread in [false, true] {
        let (tree, threads, second) = with_cookies_from_before().await;
        second.hub.list_taken();
        if has_thread {
            for _ in 0..8 {
                tree.fail_next_read(&second.container, "cgroup.threads", Errno::MFILE);
            }
        } else {
            second.hub.writer().start(false);
            second.hub.writer().deny_threads(true);
        }
        under(&second, "groupIdentity").await;
        assert_ne!(threads.number(THREAD), 0);
        assert!(!written(&tree).contains(&switch("sched_core", 0)));
        second.hub.writer().deny_threads(false);
        // Each finds less that fails.
        for _ in 0..8 {
            look(&second).await;
        }
        assert_eq!(threads.number(THREAD), 0);
        assert!(written(&tree).contains(&switch("sched_core", 0)));
    }
}

#[tokio::test]
async fn a_switch_that_nobody_decides_after_a_restart_is_given_back() {
    let tree = tree();
    let (first, threads) = bench(&tree);
    under(&first, "groupIdentity").await;
    drop(first);
    written(&tree);
    let second = started(&tree, &threads);
    second.hub.list_taken();
    look(&second).await;
    // Without a policy nobody knows yet.
    assert_eq!(written(&tree), [rank(TIER, 0), rank(POD, 0)]);
    let nobody = with_best_effort("groupIdentity", false);
    second.hub.set_node_policy(nobody);
    settle(&second).await;
    assert_eq!(written(&tree), [switch(IDENTITY, 0)]);
}

#[tokio::test]
async fn switches_and_cookies_stay_where_koordlet_does_the_part_of_the_hook() {
    let tree = tree();
    let (bench, threads) = bench(&tree);
    under(&bench, "coreSched").await;
    let over = [switch("sched_core", 1)];
    assert_eq!(written(&tree), over);
    bench.hub.set_resting(["CoreSched"].into());
    look(&bench).await;
    assert!(written(&tree).is_empty());
    assert_ne!(threads.number(THREAD), 0);
}

#[tokio::test]
async fn where_switches_are_left_to_others_there_are_cookies_only_without_group_identity() {
    let mainline = FakeTree::new(Generation::V2, 2);
    for (tree, has_cookie) in [(tree(), false), (mainline, true)] {
        let threads = FakeCores::default();
        threads.fork(None, THREAD);
        let cores = Bench::with_cores(tree.clone(), threads.clone());
        let bench = cores.leaving(Setting::SchedSwitch).knowing_pod();
        bench.tree.enter(&bench.container, 11);
        bench.hub.list_taken();
        under(&bench, "coreSched").await;
        assert!(written(&tree).is_empty());
        assert_eq!(threads.number(THREAD) != 0, has_cookie);
    }
}

#[tokio::test]
async fn a_switch_that_is_refused_is_told_and_tried_again_with_the_next_look() {
    let tree = tree();
    let (bench, _) = bench(&tree);
    let root = CgroupPath::root();
    tree.fail_next_write(&root, IDENTITY, Errno::BUSY);
    under(&bench, "groupIdentity").await;
    assert!(written(&tree).is_empty());
    let told_refusal = told(&bench).await.unwrap();
    let refused = "group identity: refused: ";
    assert!(told_refusal.starts_with(refused), "{told_refusal}");
    let remark = "the kernel refuses to switch between group identity and core scheduling: ranks and \
                  cookies wait";
    assert_eq!(refused_switch(&bench.hub), Some(remark));
    look(&bench).await;
    assert_eq!(refused_switch(&bench.hub), None);
    let ranked = [rank(TIER, -1), rank(POD, -1)];
    assert_eq!(
        written(&tree),
        [&[switch(IDENTITY, 1)][..], &ranked].concat()
    );
}

#[tokio::test]
async fn cookies_are_taken_once_however_often_a_switch_is_refused() {
    let tree = tree();
    let (bench, threads) = bench(&tree);
    under(&bench, "coreSched").await;
    assert_ne!(threads.number(THREAD), 0);
    bench.hub.set_node_policy(policy("groupIdentity"));
    // After the first time one that somebody else has given it.
    for (cookie, left) in [(None, 0), (Some(7), 7)] {
        if let Some(cookie) = cookie {
            threads.set(THREAD, cookie);
        }
        tree.fail_next_write(&CgroupPath::root(), "sched_core", Errno::BUSY);
        super::super::node(&bench.hub).await;
        let told = told(&bench).await.unwrap();
        assert!(told.starts_with("group identity: refused: "), "{told}");
        assert_eq!(threads.number(THREAD), left);
    }
}

#[tokio::test]
async fn where_nobody_is_treated_or_there_is_no_switch_none_is_touched() {
    let tree = tree();
    let (idle, _) = bench(&tree);
    look(&idle).await;
    assert!(written(&tree).is_empty());
    assert_eq!(told(&idle).await, None);
    let mainline = FakeTree::new(Generation::V2, 2).with_group_identity();
    let (without, _) = bench(&mainline);
    under(&without, "groupIdentity").await;
    assert_eq!(written(&mainline), [rank(TIER, -1), rank(POD, -1)]);
    assert_eq!(told(&without).await, None);
}

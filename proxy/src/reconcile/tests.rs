//! The best-effort pod of the bench: its container ran before us, with 1,024 shares, and should
//! have 512.

mod devices;
mod ranks;
mod recall;
mod slow;
mod terway;
mod traffic;
mod unanswered;

use super::*;
use crate::{
    apply::testing::SlowCores,
    hub::testing::{BATCH, Bench, container, sandbox},
};
use koord_kernel::{
    cgroup::{Controller, Generation, Tree, WeightCurve},
    fake::{FakeResctrl, FakeTree},
    resctrl::Groups,
};
use koord_proto::{
    keys::{annotation, label},
    nri,
    policy::NodePolicy,
};
use std::{
    sync::{Arc, atomic::Ordering::SeqCst, mpsc},
    time::Duration,
};

/// One that shares out 1 Gbit as `strategy` says.
fn network_policy(strategy: &str) -> Arc<NodePolicy> {
    let slo = format!(
        "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\nmetadata: {{name: node-1}}\n\
         spec: {{systemStrategy: {{totalNetworkBandwidth: 1G}}, \
         resourceQOSStrategy: {{{strategy}}}}}\n"
    );
    let parsed = NodePolicy::parse_stream(&slo, None).unwrap();
    assert!(parsed.issues.is_empty(), "{:?}", parsed.issues);
    Arc::new(parsed.policy)
}

async fn check(bench: &Bench) {
    pod(&bench.hub, &sandbox()).await;
}

fn applied(bench: &Bench) -> Applied {
    bench.entry(Setting::CpuShares).unwrap().applied
}

#[tokio::test]
async fn where_only_cgroup_v1_has_the_cpu_shares_are_written_whatever_is_mounted_beside_it() {
    for tree in [
        FakeTree::new(Generation::V1, 2),
        FakeTree::new(Generation::V1, 2).beside_v2(),
    ] {
        let bench = Bench::with_pod(tree);
        check(&bench).await;
        assert_eq!(bench.shown("cpu.shares"), "512");
        bench.write("cpu.shares", "77");
        check(&bench).await;
        assert_eq!(bench.shown("cpu.shares"), "512");
    }
}

#[tokio::test]
async fn on_cgroup_v2_a_container_that_ran_before_us_is_weighed_once_it_is_known_how() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V2, 2));
    check(&bench).await;
    assert_eq!(bench.shown("cpu.weight"), "100");
    assert_eq!(applied(&bench), Applied::Pending);
    // What needs no curve does not wait for it.
    assert_eq!(bench.shown("cpu.max"), "100000 100000");

    let cgroups = bench.hub.writer().cgroups();
    cgroups.set_weight_curve(WeightCurve::Quadratic);
    check(&bench).await;
    assert_eq!(bench.shown("cpu.weight"), "59");
    assert_eq!(applied(&bench), Applied::Written);
}

#[tokio::test]
async fn on_cgroup_v2_the_weight_that_a_runtime_makes_of_our_shares_is_its_own() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V2, 2));
    let cgroups = bench.hub.writer().cgroups();
    cgroups.set_weight_curve(WeightCurve::Quadratic);
    // By the other curve: a handler may have a runtime of another age.
    bench.write("cpu.weight", "20");
    check(&bench).await;
    assert_eq!(bench.shown("cpu.weight"), "20");
    assert_eq!(applied(&bench), Applied::Equal);
    // By none.
    bench.write("cpu.weight", "21");
    check(&bench).await;
    assert_eq!(bench.shown("cpu.weight"), "59");
}

#[tokio::test]
async fn of_two_sandboxes_of_one_pod_the_one_that_has_ended_does_not_write_to_the_directory() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let ready = |ready| {
        let mut ledger = bench.hub.ledger().borrow_mut();
        ledger.pod_mut(&sandbox()).unwrap().ready = ready;
    };
    let quota = || {
        let file = "cpu.cfs_quota_us";
        let text = bench.tree.read(Controller::Cpu, &bench.pod, file).unwrap();
        text.trim_end().to_owned()
    };
    for (is_ready, expected) in [(false, "-1"), (true, "100000")] {
        ready(is_ready);
        check(&bench).await;
        assert_eq!(quota(), expected);
    }
}

/// The best-effort pod of the bench as one that shares caches with its class; its container has a
/// thread.
fn sharing(processor: &FakeResctrl) -> Bench {
    let bench = Bench::sharing(FakeTree::new(Generation::V2, 2), processor);
    with_thread(bench, processor)
}

fn with_thread(bench: Bench, processor: &FakeResctrl) -> Bench {
    const THREAD: u32 = 11;
    processor.fork(None, THREAD.try_into().unwrap());
    bench.tree.enter(&bench.container, THREAD);
    bench.knowing_pod()
}

fn best_effort_shares() -> Arc<NodePolicy> {
    best_effort("resctrlQOS: {enable: true, catRangeEndPercent: 30}")
}

/// Does all that waits.
async fn settle(bench: &Bench) {
    all_that_waits(&bench.hub).await;
}

#[tokio::test]
async fn while_threads_of_one_pod_are_looked_at_values_are_held() {
    let (may_go_on, until) = mpsc::channel();
    // On v1 a group has to have CPUs before it has a thread.
    let tree = FakeTree::new(Generation::V2, 2);
    let bench = Bench::with_cores(tree, SlowCores::until(until)).knowing_pod();
    bench.tree.enter(&bench.container, 11);
    let hub = &bench.hub;
    hub.list_taken();
    let policies = "policies: {cpuPolicy: coreSched}, beClass: {cpuQOS: {enable: true}}";
    hub.set_node_policy(network_policy(policies));
    let test = async {
        let late = Duration::from_secs(30);
        let stands = async {
            while hub.writer().standing_of_threads().is_none() {
                sleep(PAUSE).await;
            }
        };
        timeout(late, stands).await.expect("threads are looked at");
        bench.write("cpu.max", "7000");
        hub.queue().push(sandbox());
        let held = async {
            while bench.shown("cpu.max") != "100000 100000" {
                sleep(PAUSE).await;
            }
        };
        timeout(late, held)
            .await
            .expect("no value waits for threads");
        assert!(hub.writer().standing_of_threads().is_some());
        drop(may_go_on);
    };
    tokio::select! {
        () = run(hub.clone()) => unreachable!("it never ends"),
        () = test => {}
    }
}

#[tokio::test]
async fn who_is_behind_one_that_has_gone_meanwhile_is_brought_in_by_the_next_look() {
    let (may_go_on, until) = mpsc::channel();
    let tree = FakeTree::new(Generation::V2, 2);
    let cores = SlowCores::until(until);
    let is_asked = cores.is_asked();
    let bench = Bench::with_cores(tree, cores).knowing_pod();
    let pause = bench.pod.join("sandbox-1").unwrap();
    bench.tree.make(&pause);
    bench.tree.enter(&pause, 12);
    bench.tree.enter(&bench.container, 11);
    let hub = &bench.hub;
    hub.list_taken();
    let policies = "policies: {cpuPolicy: coreSched}, beClass: {cpuQOS: {enable: true}}";
    hub.set_node_policy(network_policy(policies));
    if let Some(pod) = hub.ledger().borrow_mut().pod_mut(&sandbox()) {
        pod.pause = Target::at(Some(pause));
        hub.decide_again(pod);
    }
    while hub.queue().pop_threads().is_some() {}
    let goes = async {
        while !is_asked.load(SeqCst) {
            sleep(PAUSE).await;
        }
        // Longer than all members are brought in at one go.
        sleep(Duration::from_millis(100)).await;
        hub.container_removed(container().as_str());
        drop(may_go_on);
    };
    let pod = sandbox();
    let join = threads_of_pod(hub, &pod);
    timeout(Duration::from_secs(30), async { tokio::join!(join, goes) })
        .await
        .expect("threads are brought in");
    let next = hub.queue().pop_threads();
    assert!(matches!(next, Some(ThreadWork::Pod(of, Part::Whole)) if of == pod));
}

/// What `beClass` has in a NodeSLO.
fn best_effort(strategy: &str) -> Arc<NodePolicy> {
    let slo = format!(
        "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\nmetadata: {{name: node-1}}\n\
         spec: {{resourceQOSStrategy: {{beClass: {{{strategy}}}}}}}\n"
    );
    let parsed = NodePolicy::parse_stream(&slo, None).unwrap();
    assert!(parsed.issues.is_empty(), "{:?}", parsed.issues);
    Arc::new(parsed.policy)
}

#[tokio::test]
async fn what_a_policy_changes_is_written_first_and_the_rest_is_held_after_it() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2).with_group_identity());
    check(&bench).await;
    settle(&bench).await;
    bench.write("cpu.shares", "2");
    bench
        .hub
        .set_node_policy(best_effort("cpuQOS: {enable: true, groupIdentity: -1}"));
    let queue = bench.hub.queue();
    let rank = || {
        let file = "cpu.bvt_warp_ns";
        let text = bench.tree.read(Controller::Cpu, &bench.pod, file).unwrap();
        text.trim_end().to_owned()
    };
    // Tiers, what is new of the pod, and the whole of it.
    for (ranked, shares) in [("0", "2"), ("-1", "2"), ("-1", "512")] {
        queue.pop().unwrap().run(&bench.hub).await;
        assert_eq!((&*rank(), &*bench.shown("cpu.shares")), (ranked, shares));
    }
}

/// What becomes of the quota of a new sandbox that the kernel refuses as often as this, once it was
/// written as what is new.
async fn refused_of_a_new_sandbox(bench: &Bench, times: usize) -> Applied {
    let text = str::to_owned;
    let pod = nri::PodSandbox {
        id: text("sandbox-1"),
        name: text("batch"),
        uid: text("uid-1"),
        namespace: text("default"),
        labels: [(text(label::QOS_CLASS), text("BE"))].into(),
        annotations: [(text(annotation::EXTENDED_RESOURCE_SPEC), text(BATCH))].into(),
        linux: Some(nri::LinuxPodSandbox {
            cgroup_parent: bench.pod.to_string(),
            ..nri::LinuxPodSandbox::default()
        }),
        ..nri::PodSandbox::default()
    };
    let errno = koord_kernel::fake::Errno::BUSY;
    for _ in 0..times {
        bench
            .tree
            .fail_next_write(&bench.pod, "cpu.cfs_quota_us", errno);
    }
    bench.hub.sandbox_runs(&pod).unwrap();
    assert_eq!(quota_of_the_pod(bench), Applied::Pending);
    // What is new of it comes before its moment.
    bench.hub.queue().pop().unwrap().run(&bench.hub).await;
    quota_of_the_pod(bench)
}

fn quota_of_the_pod(bench: &Bench) -> Applied {
    let mut ledger = bench.hub.ledger().borrow_mut();
    let own = &mut ledger.pod_mut(&sandbox()).unwrap().own;
    own.entry_mut(Setting::CpuQuota).unwrap().applied.clone()
}

#[tokio::test(start_paused = true)]
async fn what_the_kernel_refuses_once_of_a_new_sandbox_is_written_before_its_moment() {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2));
    let applied = refused_of_a_new_sandbox(&bench, 1).await;
    assert_eq!(applied, Applied::Written);
    let metrics = bench.hub.metrics().encode().unwrap();
    assert!(!metrics.contains("refused"), "{metrics}");
}

#[tokio::test(start_paused = true)]
async fn what_the_kernel_refuses_of_a_new_sandbox_is_noted_and_written_at_the_next_look() {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2));
    let applied = refused_of_a_new_sandbox(&bench, 2).await;
    let errno = koord_kernel::fake::Errno::BUSY.raw_os_error();
    assert_eq!(applied, Applied::Refused(Some(errno)));
    let metrics = bench.hub.metrics().encode().unwrap();
    assert!(metrics.contains("refused"), "{metrics}");
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
    check(&bench).await;
    assert_eq!(quota_of_the_pod(&bench), Applied::Written);
    let held = bench
        .tree
        .read(Controller::Cpu, &bench.pod, "cpu.cfs_quota_us");
    assert_eq!(held.unwrap().trim_end(), "100000");
}

#[test]
fn a_pod_that_is_gone_waits_no_more() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let (hub, queue) = (&bench.hub, bench.hub.queue());
    queue.drain();
    queue.push_if_new(hub.ledger().borrow().pod(&sandbox()).unwrap());
    queue.push(sandbox());
    queue.push_at(Instant::now(), sandbox());
    queue.push_soon(sandbox());
    hub.ledger().borrow_mut().remove_pod(&sandbox());
    queue.forget_all_but(&hub.ledger().borrow(), hub);
    assert!(queue.pop().is_none());
    // What would come in a moment, too.
    assert_eq!(queue.drain(), []);
}

/// Returns once this is so.
async fn until(mut holds: impl FnMut() -> bool) {
    while !holds() {
        tokio::time::sleep(Duration::from_millis(1)).await;
    }
}

#[tokio::test]
async fn while_memory_is_reclaimed_for_a_pod_everything_else_is_held() {
    let (reclaimed, done) = mpsc::channel();
    let bench = Bench::reclaiming(FakeTree::new(Generation::V2, 2), done).knowing_pod();
    for at in [&bench.pod, &bench.container] {
        let limit = "1073741824";
        let written = bench
            .tree
            .write(Controller::Memory, at, "memory.max", limit);
        written.unwrap();
    }
    let high = || {
        let at = &bench.container;
        let text = bench.tree.read(Controller::Memory, at, "memory.high");
        text.unwrap().trim_end().to_owned()
    };
    bench.hub.set_node_policy(best_effort(
        "memoryQOS: {enable: true, throttlingPercent: 50}",
    ));
    let held = async {
        until(|| bench.shown("cpu.max") == "100000 100000").await;
        bench.write("cpu.max", "50000 100000");
        bench.hub.queue().push(sandbox());
        until(|| bench.shown("cpu.max") == "100000 100000").await;
        assert_eq!(high(), "max");
        reclaimed.send(()).unwrap();
        // Half of 1 GiB.
        until(|| high() == "536870912").await;
    };
    tokio::select! {
        () = run(bench.hub.clone()) => unreachable!("it never ends"),
        held = tokio::time::timeout(Duration::from_secs(30), held) => {
            held.expect("all wait for one pod's memory");
        }
    }
}

/// Stops the pod as a kubelet does: its container first.
fn stop(bench: &Bench) {
    bench.hub.container_stopped("container-1");
    bench.hub.sandbox_stopped("sandbox-1");
}

#[tokio::test]
async fn a_group_of_caches_goes_when_its_last_pod_stops() {
    let processor = FakeResctrl::new(7);
    let bench = sharing(&processor);
    bench.hub.list_taken();
    bench.hub.set_node_policy(best_effort_shares());
    settle(&bench).await;
    assert_eq!(processor.group_of(11), "BE");
    stop(&bench);
    settle(&bench).await;
    assert_eq!(processor.shares_of("BE"), None);
}

#[tokio::test]
async fn a_monitoring_group_stays_while_its_pod_runs_and_goes_when_it_stops() {
    let processor = FakeResctrl::new(7).monitoring(1);
    let bench = Bench::monitoring(FakeTree::new(Generation::V2, 2), &processor);
    let bench = with_thread(bench, &processor);
    bench.hub.list_taken();
    bench.hub.set_node_policy(best_effort_shares());
    settle(&bench).await;
    bench.hub.queue().push_groups();
    settle(&bench).await;
    let places = (processor.group_of(11), processor.monitor_of(11));
    let expected = ("BE", "BE/mon_groups/koordlet-uid-1");
    assert_eq!((&*places.0, &*places.1), expected);
    stop(&bench);
    settle(&bench).await;
    assert_eq!(processor.monitors().unwrap(), [""; 0]);
}

#[tokio::test]
async fn no_group_of_caches_goes_before_the_first_list() {
    let processor = FakeResctrl::new(7);
    let bench = Bench::sharing(FakeTree::new(Generation::V2, 2), &processor);
    // Of a pod that is still to be listed.
    processor.own("BE").unwrap();
    bench.hub.queue().push_groups();
    settle(&bench).await;
    assert!(processor.shares_of("BE").is_some());
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(processor.shares_of("BE"), None);
}

#[tokio::test]
async fn groups_of_caches_that_koordlet_may_fill_stay_as_they_are() {
    // The hook that rests, and whether a group of a pod that is gone stays.
    for (hook, stays) in [("RdtResctrl", false), ("Resctrl", true)] {
        let processor = FakeResctrl::new(7);
        let bench = sharing(&processor);
        bench.hub.list_taken();
        bench.hub.set_node_policy(best_effort_shares());
        settle(&bench).await;
        processor.own("koordlet-uid-2").unwrap();
        bench.hub.set_resting([hook].into());
        bench.hub.sandbox_stopped("sandbox-1");
        settle(&bench).await;
        assert_eq!(processor.group_of(11), "BE", "{hook}");
        let of_pod = processor.shares_of("koordlet-uid-2");
        assert_eq!(of_pod.is_some(), stays, "{hook}");
    }
}

/// A NodeSLO that ranks classes and has these host applications.
fn slo(applications: &str) -> Arc<NodePolicy> {
    let slo = format!(
        r#"apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {{name: node-1}}
spec:
  resourceQOSStrategy:
    lsClass: {{cpuQOS: {{enable: true, groupIdentity: 2}}}}
    beClass: {{cpuQOS: {{enable: true, groupIdentity: -1}}}}
  hostApplications: [{applications}]
---
apiVersion: topology.node.k8s.io/v1alpha1
kind: NodeResourceTopology
metadata:
  name: node-1
  annotations:
    node.koordinator.sh/cpu-shared-pools: '[{{"socket":0,"node":0,"cpuset":"1"}}]'
"#
    );
    let parsed = NodePolicy::parse_stream(&slo, None).unwrap();
    assert!(parsed.issues.is_empty(), "{:?}", parsed.issues);
    Arc::new(parsed.policy)
}

const NGINX: &str =
    "{name: nginx, qos: LS, cgroupPath: {base: CgroupRoot, relativePath: host/nginx}}";

/// Setting, value and owner of everything that is decided for the node.
fn node_ledger(bench: &Bench) -> Vec<String> {
    let ledger = bench.hub.ledger().borrow();
    let groups = ledger.node.iter().flat_map(|group| {
        let at = group.target.at.as_ref().unwrap();
        let entries = group.target.entries().iter();
        entries.map(move |entry| {
            let setting = entry.desired.setting();
            format!("{at} {setting}={} {}", entry.desired, entry.owner)
        })
    });
    groups.collect()
}

#[tokio::test]
async fn a_host_application_that_leaves_the_policy_has_what_it_had_before() {
    let tree = FakeTree::new(Generation::V1, 2).with_group_identity();
    let bench = Bench::new(tree);
    let nginx = CgroupPath::parse("host/nginx").unwrap();
    bench.tree.make(&nginx);
    let shown = |controller, file| {
        let text = bench.tree.read(controller, &nginx, file).unwrap();
        text.trim_end().to_owned()
    };
    for at in [&nginx.parent().unwrap(), &nginx] {
        let cpus = bench
            .tree
            .write(Controller::Cpuset, at, "cpuset.cpus", "0-1");
        cpus.unwrap();
    }
    let tiers = [
        "/kubepods cpu.bvt_warp_ns=0 GroupIdentity",
        "/kubepods/besteffort cpu.bvt_warp_ns=-1 GroupIdentity",
        "/kubepods/burstable cpu.bvt_warp_ns=2 GroupIdentity",
    ];

    bench.hub.set_node_policy(slo(NGINX));
    node(&bench.hub).await;
    assert_eq!(shown(Controller::Cpu, "cpu.bvt_warp_ns"), "2");
    assert_eq!(shown(Controller::Cpuset, "cpuset.cpus"), "1");
    let application = [
        "/host/nginx cpuset.cpus=1 CPUSetAllocator",
        "/host/nginx cpu.bvt_warp_ns=2 GroupIdentity",
    ];
    assert_eq!(node_ledger(&bench), [&application[..], &tiers].concat());

    bench.hub.set_node_policy(slo(""));
    node(&bench.hub).await;
    assert_eq!(shown(Controller::Cpu, "cpu.bvt_warp_ns"), "0");
    assert_eq!(shown(Controller::Cpuset, "cpuset.cpus"), "0-1");
    assert_eq!(node_ledger(&bench), tiers);

    // One that is not there has nothing of ours, and is forgotten as well.
    bench.hub.set_node_policy(slo(NGINX));
    node(&bench.hub).await;
    bench.tree.remove(&nginx);
    bench.hub.set_node_policy(slo(""));
    node(&bench.hub).await;
    assert_eq!(node_ledger(&bench), tiers);
}

#[tokio::test]
async fn an_application_in_the_directory_of_a_tier_has_what_that_has() {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2));
    let application = "{name: x, qos: LS, cgroupPath: {relativePath: kubepods}}";
    bench.hub.set_node_policy(slo(application));
    node(&bench.hub).await;
    assert_eq!(
        node_ledger(&bench),
        [""; 0],
        "all pods would be on its CPUs"
    );
}

#[tokio::test]
async fn what_the_node_should_have_and_has_is_in_the_report() {
    let tree = FakeTree::new(Generation::V1, 2).with_group_identity();
    let bench = Bench::with_pod(tree);
    bench.hub.set_node_policy(slo(""));
    node(&bench.hub).await;
    let named = async |filter| {
        let report = bench.hub.report(filter).await;
        let node = report.node.iter();
        let cgroups: Vec<_> = node.map(|group| group.cgroup.clone()).collect();
        (report.pods.len(), cgroups.join(" "))
    };
    let all = "/kubepods /kubepods/besteffort /kubepods/burstable";
    assert_eq!(named(None).await, (1, all.to_owned()));
    assert_eq!(named(Some("node")).await, (0, all.to_owned()));
    assert_eq!(named(Some("batch")).await, (1, String::new()));
    let filter = Some("/kubepods/besteffort");
    assert_eq!(named(filter).await, (0, "/kubepods/besteffort".to_owned()));
    let tier = bench.hub.report(filter).await.node.remove(0);
    assert_eq!(tier.kind, "best-effort pods");
    let setting = &tier.settings[0];
    assert_eq!(setting.setting, "cpu.bvt_warp_ns");
    assert_eq!(setting.asked.as_deref(), Some("default"));
    assert_eq!(setting.desired, "-1");
    assert_eq!(setting.applied, "written");
    assert_eq!(setting.kernel.as_deref(), Some("-1"));
}

#[tokio::test]
async fn a_tier_that_koordlet_has_ranked_keeps_its_rank_when_koordlet_is_found() {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2).with_group_identity());
    let tiers = ["kubepods/besteffort", "kubepods/burstable"];
    let [best_effort, burstable] = tiers.map(|at| CgroupPath::parse(at).unwrap());
    bench.tree.make(&burstable);
    let file = "cpu.bvt_warp_ns";
    let ranks = || {
        [&best_effort, &burstable].map(|at| {
            let text = bench.tree.read(Controller::Cpu, at, file).unwrap();
            text.trim_end().to_owned()
        })
    };
    bench.hub.set_node_policy(slo(""));
    node(&bench.hub).await;
    assert_eq!(ranks(), ["-1", "2"]);
    let written = bench.tree.write(Controller::Cpu, &best_effort, file, "1");
    written.unwrap();
    bench.hub.set_resting(["GroupIdentity"].into());
    node(&bench.hub).await;
    assert_eq!(ranks(), ["1", "0"]);
    assert_eq!(node_ledger(&bench), [""; 0]);
}

/// What somebody else does to the rank of best-effort pods, and what comes of it.
async fn somebody_ranks(bench: &Bench) -> String {
    let at = CgroupPath::parse("kubepods/besteffort").unwrap();
    let file = "cpu.bvt_warp_ns";
    bench.tree.write(Controller::Cpu, &at, file, "1").unwrap();
    node(&bench.hub).await;
    let text = bench.tree.read(Controller::Cpu, &at, file).unwrap();
    text.trim_end().to_owned()
}

async fn standing(bench: &Bench) -> String {
    let filter = Some("kubepods/besteffort");
    let mut report = bench.hub.report(filter).await;
    report.node.remove(0).settings.remove(0).applied
}

#[tokio::test(start_paused = true)]
async fn an_unknown_writer_is_left_alone_after_three_rounds_in_a_minute() {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2).with_group_identity());
    bench.hub.set_node_policy(slo(""));
    node(&bench.hub).await;
    for _ in 0..3 {
        assert_eq!(somebody_ranks(&bench).await, "-1");
        tokio::time::advance(Duration::from_secs(20)).await;
    }
    assert_eq!(somebody_ranks(&bench).await, "1");
    let theirs = "left to another writer (unknown) for 580 s";
    assert_eq!(standing(&bench).await, theirs);
    let metrics = bench.hub.metrics().encode().unwrap();
    for line in [
        "contested_settings_total{setting=\"cpu.bvt_warp_ns\",writer=\"unknown\"} 3",
        "kernel_settings_total{setting=\"cpu.bvt_warp_ns\",result=\"yielded\"} 1",
    ] {
        assert!(metrics.contains(line), "{line}\nis not in\n{metrics}");
    }
    // Ten minutes later it is tried again.
    tokio::time::advance(Duration::from_secs(579)).await;
    assert_eq!(somebody_ranks(&bench).await, "1");
    tokio::time::advance(Duration::from_secs(1)).await;
    for _ in 0..3 {
        assert_eq!(somebody_ranks(&bench).await, "-1");
    }
    // That it was there already was no round, so there is one more.
    assert_eq!(somebody_ranks(&bench).await, "-1");
    assert_eq!(somebody_ranks(&bench).await, "1");
    // And so it is when the policy changes.
    bench.hub.set_node_policy(slo(""));
    assert_eq!(somebody_ranks(&bench).await, "-1");
    assert_eq!(standing(&bench).await, "written");
}

#[tokio::test(start_paused = true)]
async fn the_runtime_is_written_over_after_growing_pauses() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let after_the_runtime = async || {
        bench.write("cpu.shares", "1024");
        check(&bench).await;
        bench.shown("cpu.shares")
    };
    check(&bench).await;
    for _ in 0..3 {
        assert_eq!(after_the_runtime().await, "512");
    }
    for seconds in [2, 4, 8] {
        assert_eq!(after_the_runtime().await, "1024");
        assert_eq!(applied(&bench), Applied::Paused);
        tokio::time::advance(Duration::from_millis(1_000 * seconds - 1)).await;
        check(&bench).await;
        assert_eq!(bench.shown("cpu.shares"), "1024");
        tokio::time::advance(Duration::from_millis(1)).await;
        check(&bench).await;
        assert_eq!(bench.shown("cpu.shares"), "512");
    }
    // Who stays quiet for a minute has lost nothing.
    tokio::time::advance(Duration::from_secs(61)).await;
    for _ in 0..2 {
        assert_eq!(after_the_runtime().await, "512");
    }
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_pushed_for_a_moment_is_looked_at_then() {
    let queue = Queue::default();
    let start = Instant::now();
    let after = |seconds| start + Duration::from_secs(seconds);
    let looked_at = async || match queue.next().await {
        Work::Pod(sandbox, _) => (sandbox.to_string(), start.elapsed().as_secs()),
        _ => panic!("no pod"),
    };
    queue.push_at(after(10), sandbox());
    let other = SandboxId::new("sandbox-2").unwrap();
    // Who waits for a later moment does not miss an earlier one.
    let sooner = async { queue.push_at(after(2), other) };
    let (first, ()) = tokio::join!(biased; looked_at(), sooner);
    assert_eq!(first, ("sandbox-2".to_owned(), 2));
    assert_eq!(looked_at().await, ("sandbox-1".to_owned(), 10));
}

#[tokio::test]
async fn who_waits_is_woken_for_each_kind_of_work() {
    type Case = (&'static str, fn(&Queue), fn(&Work) -> bool);
    let cases: [Case; 3] = [
        (
            "pod",
            |it| it.push(sandbox()),
            |it| matches!(it, Work::Pod(..)),
        ),
        ("node", Queue::push_node, |it| matches!(it, Work::Node)),
        ("network", Queue::push_network, |it| {
            matches!(it, Work::Network)
        }),
    ];
    for (name, push, is_it) in cases {
        let queue = Queue::default();
        let waiting = tokio::time::timeout(Duration::from_secs(30), queue.next());
        let pushing = async { push(&queue) };
        let (woken, ()) = tokio::join!(biased; waiting, pushing);
        assert!(woken.is_ok_and(|work| is_it(&work)), "{name}");
    }
}

#[tokio::test]
async fn who_pushes_a_pod_goes_on_before_it_is_looked_at() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    bench.hub.queue().drain();
    // Is read where pods are looked at, by the thread that answers.
    let looks = || bench.tree.take_reads("memory.usage_in_bytes");
    let pushing = async {
        yield_now().await;
        looks();
        bench.hub.queue().push(sandbox());
        yield_now().await;
        assert_eq!(looks(), 0);
        while looks() == 0 {
            yield_now().await;
        }
    };
    tokio::select! {
        biased;
        () = run(bench.hub.clone()) => unreachable!("it never ends"),
        pushed = tokio::time::timeout(Duration::from_secs(30), pushing) => {
            pushed.expect("the pod is looked at");
        }
    }
}

#[tokio::test(start_paused = true)]
async fn what_is_told_of_pods_in_a_row_costs_each_of_them_one_look() {
    let queue = Queue::default();
    let start = Instant::now();
    let looked_at = async || match queue.next().await {
        Work::Pod(sandbox, Part::Whole) => (sandbox.to_string(), start.elapsed().as_millis() / 10),
        _ => panic!("no pod as a whole"),
    };
    let other = SandboxId::new("sandbox-2").unwrap();
    let told = async {
        for _ in 0..4 {
            queue.push_soon(sandbox());
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        queue.push_soon(other.clone());
    };
    let (first, ()) = tokio::join!(biased; looked_at(), told);
    assert_eq!(first, ("sandbox-1".to_owned(), 5));
    assert_eq!(looked_at().await, ("sandbox-2".to_owned(), 5));
    assert!(queue.pop().is_none());
    // What comes after it has a moment of its own.
    queue.push_soon(other.clone());
    assert_eq!(looked_at().await, ("sandbox-2".to_owned(), 10));
}

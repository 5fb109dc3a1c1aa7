//! A limit of memory that was resized while nobody was here: the container asked for 100 MiB when it was made,
//! and has 200.

use super::*;
use crate::reconcile;
use koord_kernel::cgroup::Marked;
use tokio::time::{advance, pause};

const ORIGINALS: &str = r#"{"cpuQuota":50000,"cpuPeriod":100000,"memoryLimit":104857600}"#;

/// As the runtime tells it, with this quota.
fn info(quota: i64) -> String {
    let text = r#"{"config":{"linux":{"resources":{"memory_limit_in_bytes":104857600}}},"runtimeSpec":{"linux":{"resources":{
        "cpu":{"quota":QUOTA,"period":100000},"memory":{"limit":209715200}}}}}"#;
    text.replace("QUOTA", &quota.to_string())
}

/// The guaranteed pod, of which half of the limit is kept, after its first list.
async fn listed(container: cri::Container, quota: &str, info: &str) -> Scripted {
    let (tree, pod) = guaranteed(None);
    listed_on((Bench::new(tree), pod), container, quota, info).await
}

async fn listed_on(
    (bench, pod): (Bench, cri::PodSandbox),
    container: cri::Container,
    quota: &str,
    info: &str,
) -> Scripted {
    let policy = "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\nmetadata: {name: node-1}\n\
        spec: {resourceQOSStrategy: {lsrClass: {memoryQOS: {enable: true, minLimitPercent: 50}}}}\n";
    let policy = NodePolicy::parse_stream(policy, None).unwrap().policy;
    bench.hub.set_node_policy(policy.into());
    let listed = Scripted::for_bench(bench, pod, container, info);
    let (tree, at) = (&listed.bench.tree, directory());
    for (controller, file, text) in [
        (Controller::Cpu, "cpu.cfs_quota_us", quota),
        (Controller::Memory, LIMIT, "209715200"),
    ] {
        tree.write(controller, &at, file, text).unwrap();
    }
    listed.list(Scope::All).await;
    listed
}

const LIMIT: &str = "memory.limit_in_bytes";

fn directory() -> CgroupPath {
    CgroupPath::parse("kubepods/poduid-2/container-1").unwrap()
}

/// What the container has, once its pod was looked at.
async fn held(listed: &Scripted, file: &str) -> String {
    reconcile::pod(&listed.bench.hub, &sandbox()).await;
    let held = (listed.bench.tree).read(Controller::Memory, &directory(), file);
    held.unwrap().trim_end().to_owned()
}

#[tokio::test]
async fn what_is_kept_of_memory_follows_a_limit_that_was_resized_before_a_restart() {
    // As it was made, and resized too.
    for quota in [50_000, 30_000] {
        let made = container_with(ORIGINALS);
        let listed = listed(made, &quota.to_string(), &info(quota)).await;
        let hub = &listed.bench.hub;
        // Not half of the limit before it, whatever looks.
        reconcile::new_values_of_pod(hub, &sandbox(), &[]).await;
        for _ in 0..2 {
            assert_eq!(held(&listed, "memory.min").await, "0", "{quota}");
        }
        let is_wanted = timeout(Duration::ZERO, hub.relist_wanted()).await.is_ok();
        assert!(is_wanted);
        listed.list(Scope::News).await;
        assert_eq!(held(&listed, "memory.min").await, "104857600", "{quota}");
        let ledger = hub.ledger().borrow();
        let (_, container) = ledger.container(&container()).unwrap();
        let limit = Some(koord_model::MemoryLimit::Bytes(209_715_200));
        assert_eq!(container.view.requested.memory_limit, limit);
    }
}

#[tokio::test]
async fn what_a_process_before_us_has_told_the_runtime_and_given_back_is_nobodys_wish() {
    // The kernel has the quota of the creation again, the spec one that a ratio had made of it.
    let (tree, pod) = guaranteed(None);
    let bench = Bench::new(tree.clone());
    tree.make(&directory());
    let cgroups = bench.hub.writer().cgroups();
    cgroups.mark(&directory(), Marked::Spec, &[Setting::CpuQuota].into());
    let made = container_with(ORIGINALS);
    let listed = listed_on((bench, pod), made, "50000", &info(30_000)).await;
    let hub = &listed.bench.hub;
    reconcile::pod(hub, &sandbox()).await;
    listed.list(Scope::News).await;
    assert_eq!(held(&listed, "memory.min").await, "104857600");
    let ledger = hub.ledger().borrow();
    let (_, container) = ledger.container(&container()).unwrap();
    let asked = container.view.requested.cpu_quota;
    assert_eq!(asked, Some(koord_model::CpuQuota::Micros(50_000)));
}

#[tokio::test]
async fn shares_and_cpus_that_were_changed_before_a_restart_are_found_out_too() {
    for (originals, controller, file, now, spec) in [
        (
            r#"{"cpuShares":204}"#,
            Controller::Cpu,
            "cpu.shares",
            "409",
            r#"{"shares":409}"#,
        ),
        (
            r#"{"cpusetCpus":"0-1"}"#,
            Controller::Cpuset,
            "cpuset.cpus",
            "1",
            r#"{"cpus":"1"}"#,
        ),
    ] {
        let info = r#"{"runtimeSpec":{"linux":{"resources":{"cpu":SPEC}}}}"#;
        let mut pod = undecided_pod();
        pod.labels.clear();
        let tree = FakeTree::new(Generation::V1, 2);
        let info = info.replace("SPEC", spec);
        let listed = Scripted::of(tree, pod, container_with(originals), &info);
        let Bench { hub, tree, .. } = &listed.bench;
        let above = ["kubepods", "kubepods/besteffort"].map(|it| CgroupPath::parse(it).unwrap());
        for above in above.iter().chain([&listed.bench.pod]) {
            tree.write(Controller::Cpuset, above, "cpuset.cpus", "0-1")
                .unwrap();
        }
        tree.write(controller, &listed.bench.container, file, now)
            .unwrap();
        listed.list(Scope::All).await;
        reconcile::pod(hub, &sandbox()).await;
        listed.list(Scope::News).await;
        let ledger = hub.ledger().borrow();
        let (_, known) = ledger.container(&container()).unwrap();
        let asked = &known.view.requested;
        let shares = asked.cpu_shares.map(|it| it.get().to_string());
        let cpus = asked.cpuset_cpus.as_ref().map(ToString::to_string);
        assert_eq!(shares.or(cpus).as_deref(), Some(now), "{file}");
    }
}

#[tokio::test]
async fn where_the_runtime_does_not_say_it_the_limit_of_its_creation_counts_after_five_seconds() {
    let listed = listed(container_with(ORIGINALS), "50000", "").await;
    let queue = listed.bench.hub.queue();
    queue.drain();
    pause();
    for _ in 0..2 {
        assert_eq!(held(&listed, "memory.min").await, "0");
    }
    advance(Duration::from_secs(5)).await;
    assert_eq!(queue.drain(), [sandbox()]);
    assert_eq!(held(&listed, "memory.min").await, "52428800");
}

#[tokio::test]
async fn a_resize_is_found_out_before_the_pods_source_was_heard() {
    let (tree, pod) = guaranteed(None);
    let bench = Bench::new(tree);
    bench.hub.await_pods();
    let made = container_with(ORIGINALS);
    let listed = listed_on((bench, pod), made, "50000", &info(50_000)).await;
    assert_eq!(held(&listed, "memory.min").await, "0");
    listed.list(Scope::News).await;
    assert_eq!(held(&listed, "memory.min").await, "104857600");
}

#[tokio::test]
async fn what_koordlet_may_have_written_is_no_change() {
    for (rests, is_asked) in [(false, true), (true, false)] {
        let tree = FakeTree::new(Generation::V1, 2);
        let container = container_with(r#"{"cpuShares":1024}"#);
        let listed = Scripted::of(tree, undecided_pod(), container, "");
        let hub = &listed.bench.hub;
        if rests {
            hub.set_resting(["BatchResource"].into());
        }
        listed.bench.write("cpu.shares", "300");
        listed.list(Scope::All).await;
        reconcile::pod(hub, &sandbox()).await;
        let wanted = timeout(Duration::ZERO, hub.relist_wanted()).await;
        assert_eq!(wanted.is_ok(), is_asked);
    }
}

#[tokio::test]
async fn a_limit_that_a_process_before_us_has_written_is_no_resize() {
    const OURS: &str = r#"{"memoryLimit":104857600,"ours":{"memoryLimit":209715200}}"#;
    for (originals, is_marked) in [(ORIGINALS, true), (OURS, false)] {
        let container = container_with(originals);
        let listed = listed(container, "50000", &info(50_000)).await;
        let cgroups = listed.bench.hub.writer().cgroups();
        if is_marked {
            let marked = [Setting::MemoryLimit].into();
            assert!(cgroups.mark(&directory(), Marked::Files, &marked));
        }
        assert_eq!(held(&listed, LIMIT).await, "104857600", "{originals}");
        assert_eq!(held(&listed, "memory.min").await, "52428800", "{originals}");
    }
}

#[tokio::test]
async fn where_nobody_asks_us_each_list_finds_a_limit_that_was_resized() {
    let (tree, pod) = guaranteed(None);
    let node = (Bench::watching(tree), pod);
    let listed = listed_on(node, listed_container(), "50000", &info(50_000)).await;
    assert_eq!(held(&listed, "memory.min").await, "104857600");
    let resized = cri::ContainerStatusResponse {
        info: [(
            "info".to_owned(),
            info(50_000).replace("209715200", "419430400"),
        )]
        .into(),
    };
    let status = "/runtime.v1.RuntimeService/ContainerStatus";
    let reply = Reply::message(resized.encode_to_vec());
    drop(listed.script.clone().once(status, reply));
    let limit = (Controller::Memory, LIMIT, "419430400");
    let tree = &listed.bench.tree;
    tree.write(limit.0, &directory(), limit.1, limit.2).unwrap();
    listed.list(Scope::News).await;
    assert_eq!(held(&listed, "memory.min").await, "104857600");
    listed.list(Scope::All).await;
    assert_eq!(held(&listed, "memory.min").await, "209715200");
}

#[tokio::test]
async fn what_is_new_of_a_pod_that_nobody_has_changed_is_written_at_once() {
    const AS_MADE: &str = r#"{"cpuQuota":50000,"cpuPeriod":100000,"memoryLimit":209715200}"#;
    let listed = listed(container_with(AS_MADE), "50000", "").await;
    let hub = &listed.bench.hub;
    // As before a creation beside it, which waits for the pod's directory.
    reconcile::new_values_of_pod(hub, &sandbox(), &[]).await;
    let own = directory().parent().unwrap();
    for at in [own, directory()] {
        let kept = (listed.bench.tree).read(Controller::Memory, &at, "memory.min");
        assert_eq!(kept.unwrap().trim_end(), "104857600", "{at}");
    }
}

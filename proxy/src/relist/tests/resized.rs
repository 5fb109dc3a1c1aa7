//! A limit of memory that was resized while nobody was here: the container asked for 100 MiB when it was made,
//! and has 200.

use super::*;
use crate::reconcile;

const ORIGINALS: &str = r#"{"cpuQuota":50000,"cpuPeriod":100000,"memoryLimit":104857600}"#;

/// As the runtime tells it, with this quota.
fn info(quota: i64) -> String {
    let text = r#"{"config":{"linux":{"resources":{"memory_limit_in_bytes":104857600}}},"runtimeSpec":{"linux":{"resources":{
        "cpu":{"quota":QUOTA,"period":100000},"memory":{"limit":209715200}}}}}"#;
    text.replace("QUOTA", &quota.to_string())
}

/// The pod, of which half of the limit is kept, after its first list.
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
        // Not half of the limit before it.
        assert_eq!(held(&listed, "memory.min").await, "0", "{quota}");
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
async fn where_the_runtime_does_not_say_it_the_limit_of_its_creation_counts() {
    let listed = listed(container_with(ORIGINALS), "50000", "").await;
    assert_eq!(held(&listed, "memory.min").await, "0");
    listed.list(Scope::News).await;
    assert_eq!(held(&listed, "memory.min").await, "52428800");
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

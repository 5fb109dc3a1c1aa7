//! The best-effort pod of the bench, which requests 100 MiB and is limited to 300.

use super::*;
use crate::{
    hub::{
        Hub,
        testing::{Bench, container, sandbox},
    },
    ledger::{Applied, Container, Life},
    reconcile,
};
use koord_hooks::{Requested, Unified};
use koord_kernel::{
    cgroup::{Controller, Generation, Tree},
    fake::FakeTree,
};
use koord_model::{CgroupPath, ContainerId, MemoryLimit, Setting};
use koord_proto::{
    keys::{annotation, label},
    nri,
    policy::{NodePolicy, Parsed},
};
use std::{rc::Rc, time::Duration};

const SPEC: &str = r#"{"containers":{"main":{
    "requests":{"kubernetes.io/batch-memory":"100Mi"},
    "limits":{"kubernetes.io/batch-memory":"300Mi"}}}}"#;

/// All that can be said, of the class of the pod.
const ALL: &str = "minLimitPercent: 50, lowLimitPercent: 75, throttlingPercent: 50, \
                   priorityEnable: 1, priority: 3, oomKillGroup: 1, \
                   pageCacheLimitPercent: 10, pageCacheReclaimSync: true";

fn policy(memory_qos: &str) -> NodePolicy {
    policy_of("beClass", memory_qos)
}

fn policy_of(class: &str, memory_qos: &str) -> NodePolicy {
    let text = format!(
        "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\nmetadata: {{name: node-1}}\n\
         spec: {{resourceQOSStrategy: {{{class}: {{memoryQOS: {{{memory_qos}}}}}}}}}\n"
    );
    let Parsed { policy, issues, .. } = NodePolicy::parse_stream(&text, None).unwrap();
    assert!(issues.is_empty(), "{issues:?}");
    policy
}

fn enabled(memory_qos: &str) -> NodePolicy {
    policy(&format!("enable: true, {memory_qos}"))
}

/// A kernel that has all of it.
fn bench(generation: Generation) -> Bench {
    let bench = Bench::with_pod(FakeTree::new(generation, 2).with_memory_qos());
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        let annotations = [(annotation::EXTENDED_RESOURCE_SPEC, SPEC)];
        pod.view.annotations = annotations.into_iter().collect();
    }
    bench.hub.list_taken();
    bench
}

async fn settle(hub: &Rc<Hub>) {
    reconcile::node(hub).await;
    reconcile::pod(hub, &sandbox()).await;
    reconcile::node(hub).await;
}

/// The kernel's words, of the root of all pods, the pod's tier, the pod and its container.
fn shown(bench: &Bench, file: &str) -> [String; 4] {
    let at = |path: &str| {
        let path = CgroupPath::parse(path).unwrap();
        let text = bench.tree.read(Controller::Memory, &path, file);
        text.unwrap().trim_end().to_owned()
    };
    let pod = "kubepods/besteffort/poduid-1";
    let container = format!("{pod}/container-1");
    ["kubepods", "kubepods/besteffort", pod, &container].map(at)
}

fn files(bench: &Bench) -> Vec<(&'static str, [String; 4])> {
    let files = [
        "memory.min",
        "memory.low",
        "memory.high",
        "memory.wmark_ratio",
        "memory.wmark_scale_factor",
        "memory.wmark_min_adj",
        "memory.priority",
        "memory.use_priority_oom",
        "memory.oom.group",
        "memory.pagecache_limit.size",
        "memory.pagecache_limit.sync",
        "memory.pagecache_limit.enable",
    ];
    files
        .iter()
        .map(|file| (*file, shown(bench, file)))
        .collect()
}

const UNTOUCHED: [(&str, [&str; 4]); 12] = [
    ("memory.min", ["0"; 4]),
    ("memory.low", ["0"; 4]),
    ("memory.high", ["max"; 4]),
    ("memory.wmark_ratio", ["0"; 4]),
    ("memory.wmark_scale_factor", ["50"; 4]),
    ("memory.wmark_min_adj", ["0"; 4]),
    ("memory.priority", ["0"; 4]),
    ("memory.use_priority_oom", ["0"; 4]),
    ("memory.oom.group", ["0"; 4]),
    ("memory.pagecache_limit.size", ["0"; 4]),
    ("memory.pagecache_limit.sync", ["0"; 4]),
    ("memory.pagecache_limit.enable", ["0"; 4]),
];

fn assert_untouched(bench: &Bench) {
    let expected = UNTOUCHED.map(|(file, texts)| (file, texts.map(str::to_owned)));
    assert_eq!(files(bench), expected);
}

#[tokio::test]
async fn each_level_has_its_part_and_gives_it_back() {
    for generation in [Generation::V1, Generation::V2] {
        let bench = bench(generation);
        bench.hub.set_node_policy(enabled(ALL).into());
        settle(&bench.hub).await;
        let text = |texts: [&str; 4]| texts.map(str::to_owned);
        assert_eq!(
            files(&bench),
            [
                ("memory.min", text(["52428800"; 4])),
                ("memory.low", text(["78643200"; 4])),
                ("memory.high", text(["max", "max", "max", "209715200"])),
                ("memory.wmark_ratio", text(["0", "0", "95", "95"])),
                ("memory.wmark_scale_factor", text(["50", "50", "20", "20"])),
                ("memory.wmark_min_adj", text(["0", "0", "50", "50"])),
                ("memory.priority", text(["0", "3", "3", "3"])),
                ("memory.use_priority_oom", text(["0", "1", "1", "1"])),
                ("memory.oom.group", text(["0", "0", "1", "1"])),
                (
                    "memory.pagecache_limit.size",
                    text(["0", "0", "31457280", "0"])
                ),
                ("memory.pagecache_limit.sync", text(["0", "0", "1", "1"])),
                ("memory.pagecache_limit.enable", text(["0", "0", "1", "1"])),
            ]
        );
        bench.tree.take_writes();
        settle(&bench.hub).await;
        assert_eq!(bench.tree.take_writes(), [], "at rest nothing is written");

        bench.hub.set_node_policy(policy("enable: false").into());
        settle(&bench.hub).await;
        assert_untouched(&bench);

        bench.hub.set_node_policy(enabled(ALL).into());
        settle(&bench.hub).await;
        assert!(bench.hub.switch_hook("MemoryQOS", false));
        settle(&bench.hub).await;
        assert_untouched(&bench);
    }
}

#[tokio::test]
async fn page_cache_of_a_pod_is_limited_last_and_let_go_first() {
    for generation in [Generation::V1, Generation::V2] {
        let bench = bench(generation);
        let written = || {
            let writes = bench.tree.take_writes().into_iter();
            let of_page_cache = writes.filter_map(|it| {
                let file = it.file.strip_prefix("memory.pagecache_limit.")?;
                let is_pod = it.at == bench.pod;
                let group = if is_pod { "pod" } else { "container" };
                Some(format!("{group}.{file}={}", it.text))
            });
            of_page_cache.collect::<Vec<_>>().join(" ")
        };
        // Of 300 MiB.
        for (said, expected) in [
            (
                "pageCacheLimitPercent: 10",
                "pod.size=31457280 pod.sync=1 container.sync=1 container.enable=1 pod.enable=1",
            ),
            ("pageCacheLimitSize: 4096", "pod.size=4096"),
            (
                "pageCacheLimitSize: 0",
                "pod.enable=0 pod.size=0 container.enable=0",
            ),
            (
                "pageCacheLimitSize: 8192",
                "pod.size=8192 container.enable=1 pod.enable=1",
            ),
        ] {
            let policy = enabled(&format!("pageCacheReclaimSync: true, {said}"));
            bench.hub.set_node_policy(policy.into());
            settle(&bench.hub).await;
            assert_eq!(written(), expected, "{said}");
        }
        bench.hub.set_node_policy(policy("enable: false").into());
        settle(&bench.hub).await;
        let given_back = written();
        assert!(given_back.starts_with("pod.enable=0 "), "{given_back}");
        assert_untouched(&bench);
    }
}

#[tokio::test]
async fn nobody_contests_a_size_that_follows_what_the_kubelet_lets_the_pod_have() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V2, 2).with_memory_qos());
    {
        // Nobody but the kubelet limits its memory.
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        pod.view.labels = [(label::QOS_CLASS, "LS")].into_iter().collect();
        bench.hub.decide_again(pod);
    }
    let policy = policy_of("lsClass", "enable: true, pageCacheLimitSize: 8192");
    bench.hub.set_node_policy(policy.into());
    for (limit, size) in [
        ("4096", "4096"),
        ("8192", "8192"),
        ("4096", "4096"),
        ("16384", "8192"),
        ("4096", "4096"),
    ] {
        bench
            .tree
            .write(Controller::Memory, &bench.pod, "memory.max", limit)
            .unwrap();
        settle(&bench.hub).await;
        let shown = &shown(&bench, "memory.pagecache_limit.size")[2];
        assert_eq!(shown, size, "of {limit}");
    }
    let metrics = bench.hub.metrics().encode().unwrap();
    assert!(!metrics.contains("contested_settings_total{"), "{metrics}");
}

#[tokio::test]
async fn a_container_that_is_made_while_its_pod_is_limited_gives_back_what_it_was_made_with() {
    for generation in [Generation::V1, Generation::V2] {
        let bench = bench(generation);
        let limited = "pageCacheLimitPercent: 10, pageCacheReclaimSync: true";
        bench.hub.set_node_policy(enabled(limited).into());
        settle(&bench.hub).await;
        let late = bench.pod.join("container-2").unwrap();
        bench.tree.make(&late);
        let shown = || {
            ["size", "sync", "enable"].map(|file| {
                let file = format!("memory.pagecache_limit.{file}");
                let text = bench.tree.read(Controller::Memory, &late, &file);
                text.unwrap().trim_end().to_owned()
            })
        };
        assert_eq!(shown(), ["31457280", "1", "1"], "as the kernel made it");
        {
            let id = ContainerId::new("container-2").unwrap();
            let mut container = Container::new(id, "late".to_owned(), Requested::default());
            container.life = Life::Running;
            container.target = Target::at(Some(late.clone()));
            let mut ledger = bench.hub.ledger().borrow_mut();
            ledger.list_container(&sandbox(), container);
            bench.hub.decide_again(ledger.pod_mut(&sandbox()).unwrap());
        }
        settle(&bench.hub).await;
        assert_eq!(shown(), ["0", "1", "1"]);
        bench.hub.set_node_policy(policy("enable: false").into());
        settle(&bench.hub).await;
        assert_eq!(shown(), ["0", "0", "0"]);
        assert_untouched(&bench);
    }
}

#[tokio::test]
async fn a_container_that_is_made_before_its_pods_limit_is_given_back_has_it_no_longer_than_that() {
    let text = str::to_owned;
    let pod = nri::PodSandbox {
        id: text("sandbox-1"),
        name: text("batch"),
        uid: text("uid-1"),
        namespace: text("default"),
        labels: [(text(label::QOS_CLASS), text("BE"))].into(),
        annotations: [(text(annotation::EXTENDED_RESOURCE_SPEC), text(SPEC))].into(),
        linux: Some(nri::LinuxPodSandbox {
            cgroup_parent: text("/kubepods/besteffort/poduid-1"),
            ..nri::LinuxPodSandbox::default()
        }),
        ..nri::PodSandbox::default()
    };
    let mut late = nri::Container {
        id: text("container-2"),
        pod_sandbox_id: text("sandbox-1"),
        name: text("late"),
        ..nri::Container::default()
    };
    late.set_state(nri::ContainerState::ContainerCreated);
    for generation in [Generation::V1, Generation::V2] {
        let bench = bench(generation);
        let limited = "pageCacheLimitPercent: 10, pageCacheReclaimSync: true";
        bench.hub.set_node_policy(enabled(limited).into());
        settle(&bench.hub).await;
        bench.hub.set_node_policy(policy("enable: false").into());
        // It is asked for and made before the pod is looked at.
        let (_, pending) = bench
            .hub
            .creation(&pod, &late, Duration::ZERO)
            .await
            .unwrap();
        bench.hub.done(pending, "container-2");
        let at = bench.pod.join("container-2").unwrap();
        bench.tree.make(&at);
        let shown = || {
            ["size", "sync", "enable"].map(|file| {
                let file = format!("memory.pagecache_limit.{file}");
                let text = bench.tree.read(Controller::Memory, &at, &file);
                text.unwrap().trim_end().to_owned()
            })
        };
        assert_eq!(shown(), ["31457280", "1", "1"], "as the kernel made it");
        assert_eq!(bench.hub.starts(&pod, &late), Some(sandbox()));
        settle(&bench.hub).await;
        assert_eq!(shown(), ["0", "0", "0"]);
        assert_untouched(&bench);
    }
}

#[tokio::test]
async fn a_tier_keeps_less_once_a_pod_has_ended() {
    let bench = bench(Generation::V2);
    bench
        .hub
        .set_node_policy(enabled("minLimitPercent: 100").into());
    settle(&bench.hub).await;
    assert_eq!(shown(&bench, "memory.min"), ["104857600"; 4]);
    // The same decision again is no reason to look at the tiers.
    bench.hub.queue().drain();
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert!(!bench.hub.queue().has_node());
    bench.hub.sandbox_stopped("sandbox-1");
    assert!(bench.hub.queue().has_node());
    reconcile::node(&bench.hub).await;
    let zero = "0".to_owned();
    assert_eq!(shown(&bench, "memory.min")[..2], [zero.clone(), zero]);
}

/// Looks after the node and its pods until the root of all pods keeps this.
async fn comes_to_keep(bench: &Bench, min: &str) {
    let kept = async || {
        while shown(bench, "memory.min")[0] != min {
            tokio::time::sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = reconcile::run(bench.hub.clone()) => unreachable!("it never ends"),
        () = kept() => {}
        () = tokio::time::sleep(Duration::from_secs(60)) => panic!("it is not {min}"),
    }
}

#[tokio::test]
async fn a_tier_keeps_less_once_a_pod_is_removed_that_was_not_stopped() {
    let bench = bench(Generation::V2);
    let policy = enabled("minLimitPercent: 100");
    bench.hub.set_node_policy(policy.into());
    comes_to_keep(&bench, "104857600").await;
    bench.hub.sandbox_removed("sandbox-1");
    comes_to_keep(&bench, "0").await;
}

#[tokio::test]
async fn a_tier_keeps_less_once_a_container_has_ended_of_a_pod_that_keeps_what_they_ask_for() {
    for ends in [Hub::container_stopped, Hub::container_removed] {
        let bench = bench(Generation::V2);
        {
            let mut ledger = bench.hub.ledger().borrow_mut();
            let pod = ledger.pod_mut(&sandbox()).unwrap();
            pod.view.kube_qos = KubeQos::Guaranteed;
            pod.view.labels = [(label::QOS_CLASS, "LSR")].into_iter().collect();
            let container = pod.container_mut(&container()).unwrap();
            container.view.requested.memory_limit = Some(MemoryLimit::Bytes(4096));
        }
        let policy = policy_of("lsrClass", "enable: true, minLimitPercent: 100");
        bench.hub.set_node_policy(policy.into());
        comes_to_keep(&bench, "4096").await;
        ends(&bench.hub, "container-1");
        comes_to_keep(&bench, "0").await;
    }
}

#[tokio::test]
async fn what_a_kubelet_had_asked_for_comes_back() {
    let bench = bench(Generation::V2);
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        let asked = Unified {
            memory_high: Some(MemoryLimit::Bytes(8192)),
            memory_oom_group: Some(true),
            ..Unified::default()
        };
        pod.container_mut(&container()).unwrap().view.requested = Requested {
            unified: asked,
            ..Requested::default()
        };
    }
    bench.write("cpu.idle", "0");
    let hub = &bench.hub;
    hub.set_node_policy(enabled("throttlingPercent: 50, oomKillGroup: 0").into());
    settle(hub).await;
    let of_container = |file| shown(&bench, file)[3].clone();
    assert_eq!(of_container("memory.high"), "209715200");
    assert_eq!(of_container("memory.oom.group"), "0");
    hub.set_node_policy(policy("enable: false").into());
    settle(hub).await;
    assert_eq!(of_container("memory.high"), "8192");
    assert_eq!(of_container("memory.oom.group"), "1");
}

#[tokio::test]
async fn what_is_kept_is_given_back_even_after_a_restart() {
    let first = bench(Generation::V2);
    first.hub.set_node_policy(enabled(ALL).into());
    settle(&first.hub).await;
    // Another process, which finds it all in force.
    let second = bench_over(&first);
    second.hub.set_node_policy(enabled(ALL).into());
    settle(&second.hub).await;
    let entry = second.entry(Setting::MemoryMin).unwrap();
    assert_eq!(entry.applied, Applied::Equal);
    // What the kernel holds before the next value is no original: it is ours.
    let less = ALL.replace("50, low", "25, low");
    second.hub.set_node_policy(enabled(&less).into());
    settle(&second.hub).await;
    assert_eq!(shown(&second, "memory.min"), ["26214400"; 4]);
    second.hub.set_node_policy(policy("enable: false").into());
    settle(&second.hub).await;
    for (file, text) in [
        ("memory.min", "0"),
        ("memory.low", "0"),
        ("memory.high", "max"),
    ] {
        assert_eq!(shown(&second, file), [text; 4], "{file}");
    }
}

#[tokio::test]
async fn before_the_first_list_tiers_keep_what_the_process_before_has_given_them() {
    let first = bench(Generation::V2);
    first.hub.set_node_policy(enabled(ALL).into());
    settle(&first.hub).await;
    let kept = shown(&first, "memory.min");
    assert_eq!(kept, ["52428800"; 4]);
    // Of which pods there are nobody has told yet.
    let second = Bench::new(first.tree.clone());
    second.hub.set_node_policy(enabled(ALL).into());
    reconcile::node(&second.hub).await;
    assert_eq!(shown(&second, "memory.min"), kept);
    // There are none.
    second.hub.list_taken();
    reconcile::node(&second.hub).await;
    assert_eq!(shown(&second, "memory.min")[..2], ["0", "0"]);
}

/// A hub that has just started where another has worked.
fn bench_over(first: &Bench) -> Bench {
    let second = Bench::with_pod(first.tree.clone());
    {
        let mut ledger = second.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        let annotations = [(annotation::EXTENDED_RESOURCE_SPEC, SPEC)];
        pod.view.annotations = annotations.into_iter().collect();
        let container = pod.container_mut(&container()).unwrap();
        container.target.unasked = crate::ledger::Unasked::Unknown;
    }
    second.hub.list_taken();
    second
}

#[test]
fn what_pods_keep_adds_up() {
    let bytes = |min, low| Kept {
        min: Some(MemoryProtection::Bytes(min)),
        low: Some(MemoryProtection::Bytes(low)),
        hook: Some("A"),
    };
    assert_eq!(bytes(1, 2).and(bytes(10, 20)), bytes(11, 22));
    assert_eq!(Kept::default().and(bytes(1, 2)), bytes(1, 2));
    assert_eq!(bytes(1, 2).and(Kept::default()), bytes(1, 2));
}

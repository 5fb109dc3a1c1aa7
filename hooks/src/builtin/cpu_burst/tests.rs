use super::*;
use crate::{
    adjustment::Adjustment,
    fixture::{
        container, decide_container, decide_pod_of, limited, node, node_with, pod, sandbox, shown,
        slo,
    },
    merge::Merged,
    view::PodView,
};
use koord_proto::{
    annotation::{BurstPercent, CpuBurstPolicy},
    policy::{CpuBurstStrategy, NodePolicy, NodeSloSpec},
};

/// A node where containers may save up this much.
fn saving(policy: CpuBurstPolicy, percent: i64) -> NodeView {
    node_with(NodePolicy {
        slo: Some(NodeSloSpec {
            cpu_burst_strategy: CpuBurstStrategy {
                policy,
                percent: BurstPercent::new(percent).unwrap(),
            },
            ..slo()
        }),
        ..NodePolicy::default()
    })
}

fn annotated(text: &str) -> PodView {
    pod("LS", &[(CPU_BURST, text)])
}

fn of_container(pod: &PodView, container: &ContainerView, node: &NodeView) -> String {
    shown(&decide_container(&CpuBurstHook, pod, container, node).unwrap())
}

fn of_pod(containers: &[&ContainerView], node: &NodeView) -> String {
    let decided = decide_pod_of(&CpuBurstHook, &pod("LS", &[]), containers, node);
    shown(&decided.unwrap())
}

#[test]
fn a_container_saves_up_part_of_its_quota_and_never_more() {
    for (quota_us, percent, burst) in [
        (50_000, 40, "cpu.cfs_burst_us=20000"),
        (50_000, 100, "cpu.cfs_burst_us=50000"),
        (50_000, 1_000, "cpu.cfs_burst_us=50000"),
    ] {
        let node = saving(CpuBurstPolicy::Auto, percent);
        let decided = of_container(&pod("LS", &[]), &limited(quota_us), &node);
        assert_eq!(decided, burst, "{percent}");
    }
}

#[test]
fn where_there_is_no_quota_nothing_is_saved_up() {
    let node = saving(CpuBurstPolicy::Auto, 100);
    for container in [container("main"), sandbox()] {
        let decided = of_container(&pod("LS", &[]), &container, &node);
        assert_eq!(decided, "cpu.cfs_burst_us=0");
    }
}

#[test]
fn the_quota_of_an_earlier_hook_is_the_one_that_counts() {
    let mut earlier = Merged::default();
    let scaled = Adjustment {
        cpu_quota: Some(CpuQuota::Micros(40_000)),
        ..Adjustment::default()
    };
    earlier.merge("CPUNormalization", scaled).unwrap();
    let decided = CpuBurstHook.decide(&View {
        stage: Stage::Container,
        pod: &pod("LS", &[]),
        container: Some(&limited(50_000)),
        containers: &[],
        node: &saving(CpuBurstPolicy::Auto, 100),
        earlier: &earlier,
        has_cache_classes: true,
    });
    assert_eq!(shown(&decided.unwrap()), "cpu.cfs_burst_us=40000");
}

#[test]
fn policies_that_save_up_are_two() {
    for (policy, saves) in [
        (CpuBurstPolicy::None, false),
        (CpuBurstPolicy::CpuBurstOnly, true),
        (CpuBurstPolicy::CfsQuotaBurstOnly, false),
        (CpuBurstPolicy::Auto, true),
    ] {
        let decided = of_container(&pod("LS", &[]), &limited(50_000), &saving(policy, 100));
        assert_eq!(!decided.is_empty(), saves, "{policy:?}");
    }
    assert_eq!(of_container(&pod("LS", &[]), &limited(50_000), &node()), "");
}

#[test]
fn classes_with_cpus_of_their_own_and_best_effort_have_no_burst() {
    let node = saving(CpuBurstPolicy::Auto, 100);
    for (class, bursts) in [
        ("LS", true),
        ("", true),
        ("SYSTEM", true),
        ("LSE", false),
        ("LSR", false),
        ("BE", false),
    ] {
        let decided = of_container(&pod(class, &[]), &limited(50_000), &node);
        assert_eq!(!decided.is_empty(), bursts, "{class}");
        let reads = CpuBurstHook.reads_requested(&pod(class, &[]), &node);
        assert_eq!(reads, bursts, "{class}");
    }
}

#[test]
fn an_annotation_is_laid_over_the_policy_of_the_node() {
    let quarter = saving(CpuBurstPolicy::Auto, 25);
    for (text, node, burst) in [
        (
            r#"{"cpuBurstPercent":50}"#,
            &quarter,
            "cpu.cfs_burst_us=25000",
        ),
        (r#"{"policy":"none"}"#, &quarter, ""),
        (
            r#"{"policy":"cpuBurstOnly"}"#,
            &quarter,
            "cpu.cfs_burst_us=12500",
        ),
        (r#"{"policy":"auto"}"#, &node(), "cpu.cfs_burst_us=50000"),
        (r#"{"cpuBurstPercent":50}"#, &node(), ""),
    ] {
        let decided = of_container(&annotated(text), &limited(50_000), node);
        assert_eq!(decided, burst, "{text}");
        let reads = CpuBurstHook.reads_requested(&annotated(text), node);
        assert_eq!(reads, !burst.is_empty(), "{text}");
    }
    let broken = annotated(r#"{"cpuBurstPercent":0}"#);
    assert!(!CpuBurstHook.reads_requested(&broken, &quarter));
    let error = decide_container(&CpuBurstHook, &broken, &limited(50_000), &quarter).unwrap_err();
    assert_eq!(error.key(), "koordinator.sh/cpuBurst");
}

#[test]
fn a_pod_saves_up_what_its_containers_do_together() {
    let half = saving(CpuBurstPolicy::Auto, 50);
    let named = |name: &str, quota_us| ContainerView {
        name: name.into(),
        ..limited(quota_us)
    };
    let (web, log) = (named("web", 50_000), named("log", 10_000));
    assert_eq!(of_pod(&[], &half), "");
    assert_eq!(of_pod(&[&web, &log], &half), "cpu.cfs_burst_us=30000");
    // One without a limit adds nothing, and one that was made anew counts once.
    let unlimited = container("side");
    let anew = named("web", 20_000);
    assert_eq!(
        of_pod(&[&web, &unlimited, &anew, &log], &half),
        "cpu.cfs_burst_us=15000"
    );
}

#[test]
fn a_kernel_without_bursts_is_told_and_left_alone() {
    let mut old = saving(CpuBurstPolicy::Auto, 100);
    assert_eq!(CpuBurstHook.unsupported(&old), None);
    old.kernel.cpu_burst = false;
    assert!(CpuBurstHook.unsupported(&old).is_some());
    assert_eq!(of_container(&pod("LS", &[]), &limited(50_000), &old), "");
}

#[test]
fn where_a_quota_is_unknown_nothing_is_decided_about_the_container_and_its_pod() {
    let node = saving(CpuBurstPolicy::Auto, 100);
    let unheard = ContainerView {
        heard: false,
        ..container("side")
    };
    assert_eq!(of_container(&pod("LS", &[]), &unheard, &node), "");
    assert_eq!(of_pod(&[&limited(50_000), &unheard], &node), "");
    let told = ContainerView {
        heard: false,
        ..limited(20_000)
    };
    assert_eq!(
        of_container(&pod("LS", &[]), &told, &node),
        "cpu.cfs_burst_us=20000"
    );
}

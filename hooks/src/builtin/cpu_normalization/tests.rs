use super::*;
use crate::{
    fixture::{decide_container, faster, limited, node, pod, sandbox, shown},
    merge::Merged,
    view::ContainerView,
};
use koord_model::CpuPeriod;

const STATUS: &str = annotation::RESOURCE_STATUS;

fn decided(class: &str, container: &ContainerView, node: &NodeView) -> String {
    let pod = pod(class, &[]);
    shown(&decide_container(&CpuNormalization, &pod, container, node).unwrap())
}

/// A container that asked for a quota in a period of another length.
fn in_period(quota_us: u64, period_us: i64) -> ContainerView {
    let mut container = limited(quota_us);
    container.requested.cpu_period = CpuPeriod::new(period_us).ok();
    container
}

#[test]
fn a_quota_is_divided_by_the_ratio_and_rounded_up() {
    for (ratio, asked, scaled) in [
        ("1.20", 50_000, "cpu.cfs_quota_us=41667"),
        ("2.00", 200_000, "cpu.cfs_quota_us=100000"),
        ("1.10", 1_050, "cpu.cfs_quota_us=1000"),
    ] {
        assert_eq!(decided("LS", &limited(asked), &faster(ratio)), scaled);
    }
}

#[test]
fn ls_pods_and_those_without_a_class_are_scaled() {
    for (class, scaled) in [
        ("LS", true),
        ("", true),
        ("LSR", false),
        ("LSE", false),
        ("BE", false),
        ("SYSTEM", false),
    ] {
        let decided = decided(class, &limited(50_000), &faster("1.25"));
        assert_eq!(decided == "cpu.cfs_quota_us=40000", scaled, "{class}");
        assert_eq!(decided.is_empty(), !scaled, "{class}");
    }
}

#[test]
fn nothing_is_decided_without_a_quota_or_a_ratio_above_one() {
    let mut unlimited = limited(0);
    unlimited.requested.cpu_quota = Some(CpuQuota::Unlimited);
    for container in [unlimited, sandbox()] {
        assert_eq!(decided("LS", &container, &faster("1.25")), "");
    }
    for node in [node(), faster("1.00"), faster("0.80"), faster("-1")] {
        assert_eq!(decided("LS", &limited(50_000), &node), "");
    }
}

#[test]
fn a_quota_that_another_hook_has_decided_is_left_alone() {
    let mut earlier = Merged::default();
    let mid = Adjustment {
        cpu_quota: Some(CpuQuota::Micros(40_000)),
        ..Adjustment::default()
    };
    earlier.merge("MidResource", mid).unwrap();
    let decided = CpuNormalization.decide(&View {
        stage: Stage::Container,
        pod: &pod("LS", &[]),
        container: Some(&limited(50_000)),
        containers: &[],
        node: &faster("1.25"),
        earlier: &earlier,
        has_cache_classes: true,
    });
    assert_eq!(shown(&decided.unwrap()), "");
}

#[test]
fn a_pod_with_cpus_of_its_own_is_left_alone() {
    for (status, scaled) in [(r#"{"cpuset":"3"}"#, ""), ("{}", "cpu.cfs_quota_us=40000")] {
        let pod = pod("LS", &[(STATUS, status)]);
        let node = faster("1.25");
        let decided = decide_container(&CpuNormalization, &pod, &limited(50_000), &node);
        assert_eq!(shown(&decided.unwrap()), scaled);
    }
}

#[test]
fn a_quota_is_the_same_share_of_a_cpu_in_any_period() {
    let node = faster("1.25");
    assert_eq!(
        decided("LS", &in_period(5_000, 10_000), &node),
        "cpu.cfs_quota_us=40000"
    );
    // What is less than the least for 100 ms already is not raised to it.
    assert_eq!(
        decided("LS", &in_period(5_000, 1_000_000), &node),
        "cpu.cfs_quota_us=500"
    );
}

#[test]
fn a_node_without_a_ratio_is_told() {
    assert!(CpuNormalization.unsupported(&node()).is_some());
    assert_eq!(CpuNormalization.unsupported(&faster("1.00")), None);
}

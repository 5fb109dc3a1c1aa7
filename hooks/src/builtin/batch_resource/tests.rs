use super::*;
use crate::{
    fixture::{
        container, decide_container, decide_pod, faster, in_tier, node, node_with, pod, sandbox,
        shown, slo,
    },
    view::{NodeView, PodView},
};
use koord_model::{CpuPeriod, CpuQuota, CpuShares, KubeQos, MemoryLimit};
use koord_proto::{
    annotation::ExtendedResourceSpec,
    pods::PodSpec,
    policy::{CpuSuppressPolicy, NodePolicy, NodeSloSpec, ResourceUsedThreshold},
};
use std::sync::Arc;

const SPEC: &str = annotation::EXTENDED_RESOURCE_SPEC;

/// Two containers with limits: half a CPU and 256 MiB, two CPUs and 1 GiB.
const LIMITED: &str = r#"{"containers":{
    "a":{"requests":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"256Mi"},
         "limits":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"256Mi"}},
    "b":{"requests":{"kubernetes.io/batch-cpu":1000},
         "limits":{"kubernetes.io/batch-cpu":"2k","kubernetes.io/batch-memory":"1073741824"}}}}"#;

/// As above, but the second container has no limits.
const HALF_LIMITED: &str = r#"{"containers":{
    "a":{"requests":{"kubernetes.io/batch-cpu":"500"},
         "limits":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"256Mi"}},
    "b":{"requests":{"kubernetes.io/batch-cpu":"1000"}}}}"#;

fn be(spec: &str) -> PodView {
    pod("BE", &[(SPEC, spec)])
}

fn of_pod(spec: &str, node: &NodeView) -> String {
    shown(&decide_pod(&BatchResource, &be(spec), node).unwrap())
}

fn of_container(spec: &str, name: &str, node: &NodeView) -> String {
    let decided = decide_container(&BatchResource, &be(spec), &container(name), node);
    shown(&decided.unwrap())
}

fn suppressed_by(threshold: ResourceUsedThreshold) -> NodeView {
    node_with(NodePolicy {
        slo: Some(NodeSloSpec {
            resource_used_threshold_with_be: threshold,
            ..slo()
        }),
        ..NodePolicy::default()
    })
}

#[test]
fn a_pod_has_the_sum_of_its_containers() {
    assert_eq!(
        of_pod(LIMITED, &node()),
        "cpu.shares=1536 cpu.cfs_quota_us=250000 memory.limit_in_bytes=1342177280"
    );
}

#[test]
fn what_a_source_says_of_the_pod_counts_where_no_annotation_says_it() {
    let own = PodSpec {
        batch: Some(ExtendedResourceSpec::parse(LIMITED).unwrap().into()),
        ..PodSpec::default()
    };
    let with = |annotations: &[(&str, &str)]| PodView {
        spec: Some(Arc::new(own.clone())),
        ..pod("BE", annotations)
    };
    let of_pod = |pod: &PodView| shown(&decide_pod(&BatchResource, pod, &node()).unwrap());
    assert_eq!(
        of_pod(&with(&[])),
        "cpu.shares=1536 cpu.cfs_quota_us=250000 memory.limit_in_bytes=1342177280"
    );
    let decided = decide_container(&BatchResource, &with(&[]), &container("a"), &node());
    assert_eq!(
        shown(&decided.unwrap()),
        "cpu.shares=512 cpu.cfs_quota_us=50000 memory.limit_in_bytes=268435456"
    );
    assert_eq!(
        of_pod(&with(&[(SPEC, HALF_LIMITED)])),
        "cpu.shares=1536 cpu.cfs_quota_us=unlimited memory.limit_in_bytes=unlimited"
    );
    let nothing = PodView {
        spec: Some(Arc::default()),
        ..pod("BE", &[])
    };
    assert_eq!(of_pod(&nothing), "");
}

#[test]
fn one_container_without_limits_makes_the_pod_unlimited() {
    assert_eq!(
        of_pod(HALF_LIMITED, &node()),
        "cpu.shares=1536 cpu.cfs_quota_us=unlimited memory.limit_in_bytes=unlimited"
    );
}

#[test]
fn a_container_has_what_the_list_says_of_it() {
    for (spec, name, values) in [
        (
            LIMITED,
            "a",
            "cpu.shares=512 cpu.cfs_quota_us=50000 memory.limit_in_bytes=268435456",
        ),
        (
            LIMITED,
            "b",
            "cpu.shares=1024 cpu.cfs_quota_us=200000 memory.limit_in_bytes=1073741824",
        ),
        (
            HALF_LIMITED,
            "b",
            "cpu.shares=1024 cpu.cfs_quota_us=unlimited memory.limit_in_bytes=unlimited",
        ),
        (
            r#"{"containers":{"c":{}}}"#,
            "c",
            "cpu.shares=2 cpu.cfs_quota_us=unlimited memory.limit_in_bytes=unlimited",
        ),
        (
            r#"{"containers":{"c":{"limits":{"kubernetes.io/batch-cpu":0,"kubernetes.io/batch-memory":0}}}}"#,
            "c",
            "cpu.shares=2 cpu.cfs_quota_us=unlimited memory.limit_in_bytes=unlimited",
        ),
        (
            r#"{"containers":{"c":{"limits":{"kubernetes.io/batch-cpu":"9"}}}}"#,
            "c",
            "cpu.shares=2 cpu.cfs_quota_us=1000 memory.limit_in_bytes=unlimited",
        ),
    ] {
        assert_eq!(
            of_container(spec, name, &node()),
            values,
            "{name} of {spec}"
        );
    }
}

#[test]
fn memory_that_nothing_can_start_with_costs_nobody_else_a_limit() {
    let spec = |bytes: &str| {
        format!(
            r#"{{"containers":{{"a":{{"limits":{{"kubernetes.io/batch-memory":"64Mi"}}}},
                "b":{{"limits":{{"kubernetes.io/batch-memory":{bytes}}}}}}}}}"#
        )
    };
    for (bytes, limit_bytes) in [("1", 1), ("\"4Ki\"", 4_096), ("4194303", 4_194_303)] {
        let pod = be(&spec(bytes));
        let errors = [
            decide_pod(&BatchResource, &pod, &node()),
            decide_container(&BatchResource, &pod, &container("b"), &node()),
        ];
        assert_eq!(
            of_container(&spec(bytes), "a", &node()),
            "cpu.shares=2 cpu.cfs_quota_us=unlimited memory.limit_in_bytes=67108864"
        );
        for error in errors {
            let error = error.unwrap_err();
            assert_eq!(error.key(), SPEC);
            let told = format!(
                "{SPEC} limits container \"b\" to {limit_bytes} bytes of memory, less than the \
                 4194304 that it takes to start one"
            );
            assert_eq!(error.to_string(), told);
        }
    }
    // As much as it takes is enough, and none is no limit.
    for (bytes, of_b, of_both) in [
        ("\"4Mi\"", "4194304", "71303168"),
        ("0", "unlimited", "unlimited"),
    ] {
        let limits = "cpu.shares=2 cpu.cfs_quota_us=unlimited memory.limit_in_bytes=";
        let shown = of_container(&spec(bytes), "b", &node());
        assert_eq!(shown, format!("{limits}{of_b}"));
        assert_eq!(of_pod(&spec(bytes), &node()), format!("{limits}{of_both}"));
    }
}

#[test]
fn too_little_memory_is_told_of_whoever_said_it() {
    let spec = r#"{"containers":{"a":{"limits":{"kubernetes.io/batch-memory":1}}}}"#;
    let own = PodSpec {
        batch: Some(ExtendedResourceSpec::parse(spec).unwrap().into()),
        ..PodSpec::default()
    };
    for (annotations, key) in [
        (&[][..], "kubernetes.io/batch-memory"),
        (&[(SPEC, spec)], SPEC),
    ] {
        let pod = PodView {
            spec: Some(Arc::new(own.clone())),
            ..pod("BE", annotations)
        };
        let error = decide_pod(&BatchResource, &pod, &node()).unwrap_err();
        assert_eq!(error.key(), key);
        let told = error.to_string();
        assert!(
            told.starts_with(&format!("{key} limits container \"a\" to 1 bytes")),
            "{told}"
        );
    }
}

#[test]
fn what_a_complaint_quotes_of_an_annotation_is_short() {
    let name = "x".repeat(100_000);
    let spec =
        format!(r#"{{"containers":{{"{name}":{{"limits":{{"kubernetes.io/batch-memory":1}}}}}}}}"#);
    let error = decide_pod(&BatchResource, &be(&spec), &node()).unwrap_err();
    assert!(error.to_string().len() < 256, "{error:.300}");
}

#[test]
fn what_the_list_leaves_out_is_left_alone() {
    assert_eq!(of_container(LIMITED, "sidecar", &node()), "");
    assert_eq!(of_container(LIMITED, "A", &node()), "");
    let decided = decide_container(&BatchResource, &be(LIMITED), &sandbox(), &node());
    assert!(decided.unwrap().is_empty());
}

#[test]
fn what_the_list_leaves_out_has_no_more_quota_than_its_pod() {
    // The pod has 250,000 µs in 100,000.
    for (period, quota, decided) in [
        (None, 250_000, ""),
        (None, 250_001, "cpu.cfs_quota_us=250000"),
        (None, -1, ""),
        (Some(10_000), 25_000, ""),
        (Some(10_000), 25_001, "cpu.cfs_quota_us=250000"),
    ] {
        let mut sidecar = container("sidecar");
        sidecar.requested.cpu_quota = Some(CpuQuota::from_micros(quota).unwrap());
        sidecar.requested.cpu_period = period.map(|period| CpuPeriod::new(period).unwrap());
        let result = decide_container(&BatchResource, &be(LIMITED), &sidecar, &node());
        assert_eq!(shown(&result.unwrap()), decided, "{quota} in {period:?}");
        let unlimited = decide_container(&BatchResource, &be(HALF_LIMITED), &sidecar, &node());
        assert!(unlimited.unwrap().is_empty(), "{quota} in {period:?}");
    }
}

/// What is decided of container `a` of a pod with such an annotation in another tier, which asked for so
/// much of Kubernetes' own.
fn beside_the_kubelets(spec: &str, asked: (u32, i64, i64), heard: bool) -> String {
    let (shares, quota, memory) = asked;
    let mut asking = container("a");
    asking.heard = heard;
    asking.requested.cpu_shares = (shares > 0).then(|| CpuShares::new(shares.into()).unwrap());
    asking.requested.cpu_quota = (quota != 0).then(|| CpuQuota::from_micros(quota).unwrap());
    asking.requested.memory_limit = (memory > 0).then(|| MemoryLimit::from_bytes(memory));
    let pod = in_tier(KubeQos::Burstable, be(spec));
    assert!(
        decide_pod(&BatchResource, &pod, &node())
            .unwrap()
            .is_empty()
    );
    shown(&decide_container(&BatchResource, &pod, &asking, &node()).unwrap())
}

#[test]
fn what_a_pod_asked_of_kubernetes_itself_is_only_narrowed() {
    // 512 shares, 50 ms, 256 MiB.
    let all = "cpu.shares=512 cpu.cfs_quota_us=50000 memory.limit_in_bytes=268435456";
    let more = (1_024, 100_000, 1 << 30);
    assert_eq!(beside_the_kubelets(LIMITED, more, true), all);
    let less = (256, 25_000, 64 << 20);
    assert_eq!(beside_the_kubelets(LIMITED, less, true), "");
    let unlimited = r#"{"containers":{"a":{"requests":{"kubernetes.io/batch-cpu":"1000000000"}}}}"#;
    assert_eq!(beside_the_kubelets(unlimited, more, true), "");
    // Nothing was asked for: the kubelet says the least shares and an unlimited quota.
    assert_eq!(beside_the_kubelets(LIMITED, (2, -1, 0), true), all);
    assert_eq!(beside_the_kubelets(LIMITED, (0, 0, 0), true), all);
    // Nor is it known whether anything was.
    assert_eq!(beside_the_kubelets(LIMITED, (0, 0, 0), false), "");
}

#[test]
fn what_was_asked_is_read_of_pods_that_are_narrowed_alone() {
    let burstable = |spec| in_tier(KubeQos::Burstable, be(spec));
    for (pod, wanted) in [
        (burstable(LIMITED), true),
        (be(LIMITED), false),
        (in_tier(KubeQos::Burstable, pod("BE", &[])), false),
        (
            in_tier(KubeQos::Burstable, pod("LS", &[(SPEC, LIMITED)])),
            false,
        ),
        (burstable("{"), false),
    ] {
        assert_eq!(
            BatchResource.reads_requested(&pod, &node()),
            wanted,
            "{pod:?}"
        );
    }
}

#[test]
fn a_list_of_nothing_decides_nothing() {
    for spec in [
        "{}",
        "null",
        r#"{"containers":null}"#,
        r#"{"containers":{}}"#,
    ] {
        assert_eq!(of_pod(spec, &node()), "", "{spec}");
        assert_eq!(of_container(spec, "a", &node()), "", "{spec}");
    }
}

#[test]
fn only_pods_of_class_be_with_the_annotation_are_touched() {
    for class in ["", "LSE", "LSR", "LS", "SYSTEM", "be", "Gold"] {
        let other = pod(class, &[(SPEC, LIMITED)]);
        let decided = decide_pod(&BatchResource, &other, &node()).unwrap();
        assert!(decided.is_empty(), "{class:?}");
    }
    let bare = decide_pod(&BatchResource, &pod("BE", &[]), &node()).unwrap();
    assert!(bare.is_empty());
}

#[test]
fn a_faster_cpu_is_had_for_less_time() {
    for (ratio, pod_quota, container_quota) in [
        ("1.20", "208334", "41667"),
        ("2.00", "125000", "25000"),
        ("1.00", "250000", "50000"),
        ("0.80", "250000", "50000"),
        ("-1", "250000", "50000"),
    ] {
        let node = faster(ratio);
        assert_eq!(
            of_pod(LIMITED, &node),
            format!(
                "cpu.shares=1536 cpu.cfs_quota_us={pod_quota} memory.limit_in_bytes=1342177280"
            ),
            "{ratio}"
        );
        assert_eq!(
            of_container(LIMITED, "a", &node),
            format!(
                "cpu.shares=512 cpu.cfs_quota_us={container_quota} memory.limit_in_bytes=268435456"
            ),
            "{ratio}"
        );
    }
}

#[test]
fn a_scaled_quota_is_one_that_the_kernel_takes() {
    let spec = r#"{"containers":{"c":{"limits":{"kubernetes.io/batch-cpu":"15"}}}}"#;
    for (ratio, quota) in [("1.20", 1_250), ("1.50", 1_000), ("4.00", 1_000)] {
        let decided =
            decide_container(&BatchResource, &be(spec), &container("c"), &faster(ratio)).unwrap();
        assert_eq!(decided.cpu_quota, Some(CpuQuota::Micros(quota)), "{ratio}");
    }
}

#[test]
fn quotas_go_where_koordlet_holds_the_tier_down_by_its_quota() {
    let by = |enable, cpu_suppress_policy| {
        let node = suppressed_by(ResourceUsedThreshold {
            enable,
            cpu_suppress_policy,
        });
        let pod = decide_pod(&BatchResource, &be(LIMITED), &node).unwrap();
        let container =
            decide_container(&BatchResource, &be(LIMITED), &container("a"), &node).unwrap();
        (pod.cpu_quota.unwrap(), container.cpu_quota.unwrap())
    };
    let kept = (CpuQuota::Micros(250_000), CpuQuota::Micros(50_000));
    let gone = (CpuQuota::Unlimited, CpuQuota::Unlimited);
    assert_eq!(by(true, CpuSuppressPolicy::CfsQuota), gone);
    assert_eq!(by(false, CpuSuppressPolicy::CfsQuota), kept);
    assert_eq!(by(true, CpuSuppressPolicy::Cpuset), kept);
}

#[test]
fn sums_beyond_every_machine_stay_in_range() {
    let spec = r#"{"containers":{
        "a":{"requests":{"kubernetes.io/batch-cpu":9223372036854775807},
             "limits":{"kubernetes.io/batch-cpu":9223372036854775807,"kubernetes.io/batch-memory":9223372036854775807}},
        "b":{"requests":{"kubernetes.io/batch-cpu":9223372036854775807},
             "limits":{"kubernetes.io/batch-cpu":9223372036854775807,"kubernetes.io/batch-memory":9223372036854775807}},
        "c":{"requests":{"kubernetes.io/batch-cpu":9223372036854775807},
             "limits":{"kubernetes.io/batch-cpu":9223372036854775807,"kubernetes.io/batch-memory":9223372036854775807}}}}"#;
    assert_eq!(
        of_pod(spec, &node()),
        "cpu.shares=262144 cpu.cfs_quota_us=17592186044415 memory.limit_in_bytes=unlimited"
    );
}

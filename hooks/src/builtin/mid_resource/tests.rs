use super::*;
use crate::{
    fixture::{container, decide_container, decide_pod, faster, node, pod, sandbox, shown},
    merge::Merged,
    view::{ContainerView, NodeView, PodView},
};
use koord_model::{CpuQuota, CpuShares, MilliCpu};
use koord_proto::{
    annotation::{ExtendedContainer, ExtendedResources},
    pods::ContainerSpec,
};
use std::sync::Arc;

const MIB: u64 = 1 << 20;

/// What a container requests and is limited to, thousandths of a CPU and bytes.
fn amounts(cpu: (u64, u64), memory: (u64, u64)) -> ExtendedContainer {
    let of = |cpu, memory| ExtendedResources {
        cpu: Some(MilliCpu(cpu)),
        memory: Some(memory),
    };
    ExtendedContainer {
        requests: of(cpu.0, memory.0),
        limits: of(cpu.1, memory.1),
    }
}

/// Two containers with limits: half a CPU and 256 MiB, two CPUs and 1 GiB.
fn limited() -> PodSpec {
    let containers = [
        ("a", amounts((500, 500), (256 * MIB, 256 * MIB))),
        ("b", amounts((1_000, 2_000), (0, 1_024 * MIB))),
    ];
    PodSpec {
        mid: Some(ExtendedResourceSpec {
            containers: Some(containers.map(|(name, it)| (name.to_owned(), it)).into()),
        }),
        ..PodSpec::default()
    }
}

fn with(class: &str, spec: PodSpec) -> PodView {
    PodView {
        spec: Some(Arc::new(spec)),
        ..pod(class, &[])
    }
}

fn of_pod(pod: &PodView, node: &NodeView) -> String {
    shown(&decide_pod(&MidResource, pod, node).unwrap())
}

fn of_container(pod: &PodView, container: &ContainerView, node: &NodeView) -> String {
    shown(&decide_container(&MidResource, pod, container, node).unwrap())
}

const TOGETHER: &str = "cpu.shares=1536 cpu.cfs_quota_us=250000 memory.limit_in_bytes=1342177280";

#[test]
fn a_pod_has_the_sum_of_its_containers_and_each_its_own() {
    let pod = with("LS", limited());
    assert_eq!(of_pod(&pod, &node()), TOGETHER);
    for (name, values) in [
        (
            "a",
            "cpu.shares=512 cpu.cfs_quota_us=50000 memory.limit_in_bytes=268435456",
        ),
        (
            "b",
            "cpu.shares=1024 cpu.cfs_quota_us=200000 memory.limit_in_bytes=1073741824",
        ),
        ("other", ""),
    ] {
        assert_eq!(of_container(&pod, &container(name), &node()), values);
    }
    assert_eq!(of_container(&pod, &sandbox(), &node()), "");
}

#[test]
fn one_container_without_limits_makes_the_pod_unlimited() {
    let mut spec = limited();
    let containers = spec.mid.as_mut().unwrap().containers.as_mut().unwrap();
    containers.get_mut("b").unwrap().limits = ExtendedResources::default();
    assert_eq!(
        of_pod(&with("LS", spec), &node()),
        "cpu.shares=1536 cpu.cfs_quota_us=unlimited memory.limit_in_bytes=unlimited"
    );
}

#[test]
fn pods_of_classes_that_run_on_what_others_leave_have_them_and_no_others() {
    for (class, has) in [
        ("", true),
        ("LS", true),
        ("BE", true),
        // As a class that does not exist counts.
        ("Gold", true),
        ("LSR", false),
        ("LSE", false),
        ("SYSTEM", false),
    ] {
        let pod = with(class, limited());
        assert_eq!(of_pod(&pod, &node()) == TOGETHER, has, "{class}");
        assert_eq!(of_pod(&pod, &node()).is_empty(), !has, "{class}");
    }
}

#[test]
fn without_a_source_or_without_mid_resources_nothing_is_decided() {
    for pod in [pod("LS", &[]), with("LS", PodSpec::default())] {
        assert_eq!(of_pod(&pod, &node()), "");
        assert_eq!(of_container(&pod, &container("a"), &node()), "");
    }
}

#[test]
fn a_quota_is_divided_by_the_speed_of_the_cpus() {
    let pod = with("LS", limited());
    assert_eq!(
        of_container(&pod, &container("a"), &faster("1.20")),
        "cpu.shares=512 cpu.cfs_quota_us=41667 memory.limit_in_bytes=268435456"
    );
}

#[test]
fn of_a_pod_with_other_resources_too_only_the_containers_with_mid_resources_have_any() {
    let mut spec = limited();
    spec.containers.push(ContainerSpec {
        name: "sidecar".to_owned(),
        requests: Resources {
            cpu: Some(MilliCpu(100)),
            memory: None,
        },
        ..ContainerSpec::default()
    });
    let pod = with("LS", spec);
    assert_eq!(of_pod(&pod, &node()), "");
    let mut sidecar = container("sidecar");
    sidecar.requested.cpu_quota = Some(CpuQuota::Micros(900_000));
    assert_eq!(of_container(&pod, &sidecar, &node()), "");
    assert_eq!(
        of_container(&pod, &container("a"), &node()),
        "cpu.shares=512 cpu.cfs_quota_us=50000 memory.limit_in_bytes=268435456"
    );
}

#[test]
fn what_an_earlier_hook_has_decided_stands() {
    let mut earlier = Merged::default();
    let batch = Adjustment {
        cpu_shares: Some(CpuShares::MIN),
        ..Adjustment::default()
    };
    earlier.merge("BatchResource", batch).unwrap();
    let decided = MidResource.decide(&View {
        stage: Stage::Pod,
        pod: &with("BE", limited()),
        container: None,
        containers: &[],
        node: &node(),
        earlier: &earlier,
        has_cache_classes: true,
    });
    assert_eq!(shown(&decided.unwrap()), "");
}

#[test]
fn memory_that_nothing_can_start_with_is_an_error_that_names_the_resource() {
    let mut spec = limited();
    let containers = spec.mid.as_mut().unwrap().containers.as_mut().unwrap();
    containers.get_mut("b").unwrap().limits.memory = Some(4_194_303);
    let error = decide_pod(&MidResource, &with("LS", spec), &node()).unwrap_err();
    assert_eq!(error.key(), "kubernetes.io/mid-memory");
    assert_eq!(
        error.to_string(),
        "kubernetes.io/mid-memory limits container \"b\" to 4194303 bytes of memory, less than \
         the 4194304 that it takes to start one"
    );
}

//! Pods, nodes and policies for the tests of this crate.

use crate::{
    adjustment::Adjustment,
    hook::{Hook, HookError},
    merge::Merged,
    parsed::Parsed,
    rdma::RdmaDevices,
    view::{
        Abilities, ContainerKind, ContainerView, HookOptions, NodeView, PodView, Requested, Stage,
        TierPaths, View,
    },
};
use koord_model::{
    Bind, Bvt, CgroupPath, CpuQuota, CpuSet, DeviceNode, Injection, KubeQos, PodUid, QosClass,
    Setting,
};
use koord_proto::{
    annotation::{CpuManagerPolicy, CpuNormalizationRatio, SharedPool, SystemQosResource},
    keys::label,
    policy::{
        ClassCpuQos, ClassQos, HostApplication, HostCgroup, HostCgroupBase, NodeMetadata,
        NodePolicy, NodeSloSpec, NodeTopology, ResourceQosStrategy,
    },
};
use std::sync::Arc;

/// A best-effort pod if it is of class BE, else a burstable one; an empty class is no label.
pub(crate) fn pod(class: &str, annotations: &[(&str, &str)]) -> PodView {
    let labels = Some((label::QOS_CLASS, class)).filter(|_| !class.is_empty());
    PodView {
        uid: PodUid::new("5f2b8a9e").unwrap(),
        namespace: "default".into(),
        name: "web".into(),
        labels: labels.into_iter().collect(),
        annotations: annotations.iter().copied().collect(),
        spec: None,
        kube_qos: match class {
            "BE" => KubeQos::BestEffort,
            _ => KubeQos::Burstable,
        },
        runtime_handler: String::new(),
        parsed: Parsed::default(),
    }
}

pub(crate) fn in_tier(kube_qos: KubeQos, pod: PodView) -> PodView {
    PodView { kube_qos, ..pod }
}

pub(crate) fn container(name: &str) -> ContainerView {
    ContainerView {
        name: name.into(),
        kind: ContainerKind::Regular,
        requested: Requested::default(),
        heard: true,
        found_quota: None,
    }
}

pub(crate) fn sandbox() -> ContainerView {
    ContainerView {
        kind: ContainerKind::Sandbox,
        ..container("")
    }
}

/// A node of eight CPUs whose kernel has everything, and of which no policy is known.
pub(crate) fn node() -> NodeView {
    let path = |text| CgroupPath::parse(text).unwrap();
    NodeView {
        policy: Arc::default(),
        kernel: Abilities {
            bvt: true,
            identity_switch: false,
            cpu_idle: true,
            cpu_burst: true,
            core_sched: true,
            files: Setting::ALL.iter().copied().collect(),
            resctrl: true,
            hami_core: None,
            rdma: rdma_devices(),
            usable_cpus: cpus("0-7"),
        },
        tiers: TierPaths {
            kubepods: path("kubepods"),
            burstable: path("kubepods/burstable"),
            best_effort: path("kubepods/besteffort"),
        },
        options: HookOptions::default(),
    }
}

/// A function of a device, and a virtual one of it.
fn rdma_devices() -> RdmaDevices {
    let device = |name: &str, number: &str| {
        Ok(DeviceNode {
            path: format!("/dev/infiniband/{name}").into(),
            number: number.parse().unwrap(),
        })
    };
    let verbs = [
        ("0000:65:00.0", device("uverbs0", "231:192")),
        ("0000:65:00.2", device("uverbs2", "231:194")),
    ];
    RdmaDevices {
        connections: Some(device("rdma_cm", "10:58")),
        verbs: verbs
            .map(|(at, device)| (at.parse().unwrap(), device))
            .into(),
    }
}

pub(crate) fn node_with(policy: NodePolicy) -> NodeView {
    NodeView {
        policy: Arc::new(policy),
        ..node()
    }
}

/// A node whose CPUs are this much faster than the slowest model's.
pub(crate) fn faster(ratio: &str) -> NodeView {
    node_with(NodePolicy {
        node: Some(metadata(ratio)),
        ..NodePolicy::default()
    })
}

pub(crate) fn metadata(ratio: &str) -> NodeMetadata {
    NodeMetadata {
        cpu_normalization_ratio: CpuNormalizationRatio::parse(ratio).unwrap(),
        ..NodeMetadata::default()
    }
}

/// A container that asked for a quota, in microseconds for each 100 ms.
pub(crate) fn limited(quota_us: u64) -> ContainerView {
    ContainerView {
        requested: Requested {
            cpu_quota: Some(CpuQuota::Micros(quota_us)),
            ..Requested::default()
        },
        ..container("main")
    }
}

/// A policy that ranks every class, each differently.
pub(crate) fn slo() -> NodeSloSpec {
    let class = |rank| ClassQos {
        cpu_qos: ClassCpuQos {
            enable: true,
            group_identity: Bvt::new(rank).unwrap(),
            ..ClassCpuQos::default()
        },
        ..ClassQos::default()
    };
    NodeSloSpec {
        resource_qos_strategy: ResourceQosStrategy {
            lsr_class: class(2),
            ls_class: class(1),
            be_class: class(-1),
            ..ResourceQosStrategy::default()
        },
        ..NodeSloSpec::default()
    }
}

/// Two NUMA nodes with pools, and CPUs of class `SYSTEM`.
pub(crate) fn topology() -> NodeTopology {
    let pool = |node, list| SharedPool {
        node,
        cpuset: cpus(list),
    };
    NodeTopology {
        shared_pools: vec![pool(0, "1-2"), pool(1, "5-6")],
        be_shared_pools: vec![pool(0, "2"), pool(1, "6")],
        cpu_manager: CpuManagerPolicy::default(),
        system_qos: Some(SystemQosResource { cpuset: cpus("0") }),
    }
}

pub(crate) fn host_application(
    name: &str,
    qos: Option<QosClass>,
    base: HostCgroupBase,
) -> HostApplication {
    HostApplication {
        name: name.into(),
        qos,
        cgroup: HostCgroup {
            base,
            path: CgroupPath::parse(name).unwrap(),
        },
    }
}

pub(crate) fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

pub(crate) fn decide_pod(
    hook: &dyn Hook,
    pod: &PodView,
    node: &NodeView,
) -> Result<Adjustment, HookError> {
    decide_pod_of(hook, pod, &[], node)
}

/// The same of a pod that has containers already.
pub(crate) fn decide_pod_of(
    hook: &dyn Hook,
    pod: &PodView,
    containers: &[&ContainerView],
    node: &NodeView,
) -> Result<Adjustment, HookError> {
    hook.decide(&View {
        stage: Stage::Pod,
        pod,
        container: None,
        containers,
        node,
        earlier: &Merged::default(),
        has_cache_classes: true,
    })
}

pub(crate) fn decide_container(
    hook: &dyn Hook,
    pod: &PodView,
    container: &ContainerView,
    node: &NodeView,
) -> Result<Adjustment, HookError> {
    decide_container_after(hook, pod, container, node, &Merged::default())
}

/// The same where earlier hooks have decided something.
pub(crate) fn decide_container_after(
    hook: &dyn Hook,
    pod: &PodView,
    container: &ContainerView,
    node: &NodeView,
    earlier: &Merged,
) -> Result<Adjustment, HookError> {
    hook.decide(&View {
        stage: Stage::Container,
        pod,
        container: Some(container),
        containers: &[],
        node,
        earlier,
        has_cache_classes: true,
    })
}

/// What is decided before of a container that is given HAMi-core.
pub(crate) fn kept_by_hami_core() -> Merged {
    let library = Bind {
        path: HookOptions::HAMI_CORE_LIBRARY.into(),
        source: None,
        read_only: true,
    };
    let injection = Injection {
        binds: vec![library],
        ..Injection::default()
    };
    let adjustment = Adjustment {
        gpu: Some(Arc::new(injection)),
        ..Adjustment::default()
    };
    let mut earlier = Merged::default();
    earlier.merge("GPUEnvInject", adjustment).unwrap();
    earlier
}

/// Values as an operator sees them: `cpu.shares=2 …`.
pub(crate) fn shown(adjustment: &Adjustment) -> String {
    let values = adjustment.values();
    let values: Vec<String> = values.map(|v| format!("{}={v}", v.setting())).collect();
    values.join(" ")
}

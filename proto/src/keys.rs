//! Names that more than one process must spell alike: labels, annotations and resource names of
//! Koordinator v1.8, our own annotation, and the field names of log events.
//!
//! Each is written once, here. A key that is only listed is one that a later hook reads; listing it
//! keeps the spelling in one place and costs nothing.

/// Labels of pods and nodes.
pub mod label {
    /// Class of a pod: `LSE`, `LSR`, `LS`, `BE` or `SYSTEM`.
    pub const QOS_CLASS: &str = "koordinator.sh/qosClass";
    /// `koord-prod`, `koord-mid`, `koord-batch` or `koord-free`.
    pub const PRIORITY_CLASS: &str = "koordinator.sh/priority-class";
    /// Priority inside a class, a decimal number.
    pub const PRIORITY: &str = "koordinator.sh/priority";
    /// Pods with one value share a core-scheduling group; empty is a group too.
    pub const CORE_SCHED_GROUP_ID: &str = "koordinator.sh/core-sched-group-id";
    /// Empty, `none` or `exclusive`.
    pub const CORE_SCHED_POLICY: &str = "koordinator.sh/core-sched-policy";
    /// For example `HAMi-core`.
    pub const GPU_ISOLATION_PROVIDER: &str = "koordinator.sh/gpu-isolation-provider";
    /// Default key of the label that exempts a pod from hook servers.
    pub const SKIP_HOOK_SERVER: &str = "runtimeproxy.koordinator.sh/skip-hookserver";
    /// On a node: whether its ratio of normalisation is kept.
    pub const CPU_NORMALIZATION_ENABLED: &str = "node.koordinator.sh/cpu-normalization-enabled";

    /// The pod that a container belongs to; set by the kubelet on sandboxes and containers.
    pub const POD_NAME: &str = "io.kubernetes.pod.name";
    pub const POD_NAMESPACE: &str = "io.kubernetes.pod.namespace";
    pub const POD_UID: &str = "io.kubernetes.pod.uid";
    pub const CONTAINER_NAME: &str = "io.kubernetes.container.name";
}

/// Annotations.
pub mod annotation {
    /// Values of a container before our first change, so that the runtime keeps them for us.
    pub const ORIGINALS: &str = "runtimeproxy.koordinator.sh/originals";

    /// How a pod's CPUs should be bound; written by users, read by the scheduler.
    pub const RESOURCE_SPEC: &str = "scheduling.koordinator.sh/resource-spec";
    /// CPUs and NUMA nodes that the scheduler gave a pod.
    pub const RESOURCE_STATUS: &str = "scheduling.koordinator.sh/resource-status";
    pub const NUMA_TOPOLOGY_SPEC: &str = "scheduling.koordinator.sh/numa-topology-spec";
    /// Devices that the scheduler gave a pod.
    pub const DEVICE_ALLOCATED: &str = "scheduling.koordinator.sh/device-allocated";
    pub const DEVICE_ALLOCATE_HINT: &str = "scheduling.koordinator.sh/device-allocate-hint";
    pub const DEVICE_JOINT_ALLOCATE: &str = "scheduling.koordinator.sh/device-joint-allocate";
    pub const GPU_PARTITION_SPEC: &str = "scheduling.koordinator.sh/gpu-partition-spec";

    /// Batch resources of a pod's containers, which CRI does not carry.
    pub const EXTENDED_RESOURCE_SPEC: &str = "node.koordinator.sh/extended-resource-spec";
    /// Cache and memory bandwidth of one pod.
    pub const RESCTRL: &str = "node.koordinator.sh/resctrl";
    pub const CPU_QOS: &str = "koordinator.sh/cpuQOS";
    pub const CPU_BURST: &str = "koordinator.sh/cpuBurst";
    pub const MEMORY_QOS: &str = "koordinator.sh/memoryQOS";
    pub const BLKIO_QOS: &str = "koordinator.sh/blkioQOS";
    pub const NETWORK_QOS: &str = "koordinator.sh/networkQOS";
    pub const OOM_SCORE_ADJ: &str = "koordinator.sh/oom-score-adj";
    pub const OOM_SCORE_ADJ_SPEC: &str = "koordinator.sh/oom-score-adj-spec";

    /// On a NodeResourceTopology: every CPU with its core, socket and NUMA node.
    pub const CPU_TOPOLOGY: &str = "node.koordinator.sh/cpu-topology";
    pub const POD_CPU_ALLOCS: &str = "node.koordinator.sh/pod-cpu-allocs";
    /// CPUs that latency-sensitive pods share, one entry per NUMA node.
    pub const CPU_SHARED_POOLS: &str = "node.koordinator.sh/cpu-shared-pools";
    /// CPUs that best-effort pods share, one entry per NUMA node.
    pub const BE_CPU_SHARED_POOLS: &str = "node.koordinator.sh/be-cpu-shared-pools";
    pub const CPU_BASIC_INFO: &str = "node.koordinator.sh/cpu-basic-info";
    /// What the kubelet of the node does with CPUs itself.
    pub const KUBELET_CPU_MANAGER_POLICY: &str = "kubelet.koordinator.sh/cpu-manager-policy";

    /// On a Node, and copied to its NodeResourceTopology: CPUs of class `SYSTEM`.
    pub const SYSTEM_QOS_RESOURCE: &str = "node.koordinator.sh/system-qos-resource";
    pub const RESERVATION: &str = "node.koordinator.sh/reservation";
    /// On a Node: how much faster one of its CPUs is than that of the slowest model.
    pub const CPU_NORMALIZATION_RATIO: &str = "node.koordinator.sh/cpu-normalization-ratio";
    pub const RESOURCE_AMPLIFICATION_RATIO: &str =
        "node.koordinator.sh/resource-amplification-ratio";
    pub const RAW_ALLOCATABLE: &str = "node.koordinator.sh/raw-allocatable";
    pub const COLOCATION_STRATEGY: &str = "node.koordinator.sh/colocation-strategy";
    pub const NETWORK_BANDWIDTH: &str = "node.koordinator.sh/network-bandwidth";
}

/// Resource names.
pub mod resource {
    pub const CPU: &str = "cpu";
    pub const MEMORY: &str = "memory";
    /// Thousandths of a CPU, as a plain number: `1000` is one CPU.
    pub const BATCH_CPU: &str = "kubernetes.io/batch-cpu";
    /// Bytes.
    pub const BATCH_MEMORY: &str = "kubernetes.io/batch-memory";
    /// Thousandths of a CPU, as a plain number.
    pub const MID_CPU: &str = "kubernetes.io/mid-cpu";
    /// Bytes.
    pub const MID_MEMORY: &str = "kubernetes.io/mid-memory";
}

/// Field names of log events, so that one thing has one name in every room.
pub mod log {
    /// Name of a pod.
    pub const POD: &str = "pod";
    pub const NAMESPACE: &str = "namespace";
    pub const POD_UID: &str = "pod_uid";
    pub const SANDBOX_ID: &str = "sandbox_id";
    /// Name of a container.
    pub const CONTAINER: &str = "container";
    pub const CONTAINER_ID: &str = "container_id";
    /// Name of a hook.
    pub const HOOK: &str = "hook";
    /// The label, annotation or path in a policy that an event is about.
    pub const KEY: &str = "key";
    /// Why: an error with its sources.
    pub const REASON: &str = "reason";
    /// A knob of a control group.
    pub const SETTING: &str = "setting";
    pub const OLD: &str = "old";
    pub const NEW: &str = "new";
    /// A file or a socket.
    pub const PATH: &str = "path";
    /// A gRPC method, as `/service/method`.
    pub const METHOD: &str = "method";
    /// A gRPC status code.
    pub const CODE: &str = "code";
    /// Bytes.
    pub const SIZE: &str = "size";
    pub const COUNT: &str = "count";
    /// How long something took, in microseconds.
    pub const ELAPSED_US: &str = "elapsed_us";
}

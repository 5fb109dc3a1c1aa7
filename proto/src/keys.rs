//! Names that more than one process must spell alike: labels, annotations and resource names of
//! Koordinator v1.8, and our own annotation. Each is written once, here.

/// Labels of pods.
pub mod label {
    /// Class of a pod: `LSE`, `LSR`, `LS`, `BE` or `SYSTEM`.
    pub const QOS_CLASS: &str = "koordinator.sh/qosClass";
    /// The group of pods with which this one may share a core; empty is a group too.
    pub const CORE_SCHED_GROUP_ID: &str = "koordinator.sh/core-sched-group-id";
    /// `none`: in no group; `exclusive`: in one alone.
    pub const CORE_SCHED_POLICY: &str = "koordinator.sh/core-sched-policy";
    /// What keeps a pod within its part of a GPU: `HAMi-core`.
    pub const GPU_ISOLATION_PROVIDER: &str = "koordinator.sh/gpu-isolation-provider";
}

/// Annotations.
pub mod annotation {
    /// Values of a container before our first change, so that the runtime keeps them for us.
    pub const ORIGINALS: &str = "runtimeproxy.koordinator.sh/originals";

    /// CPUs and NUMA nodes that the scheduler gave a pod.
    pub const RESOURCE_STATUS: &str = "scheduling.koordinator.sh/resource-status";

    /// Devices that the scheduler gave a pod.
    pub const DEVICE_ALLOCATED: &str = "scheduling.koordinator.sh/device-allocated";

    /// Batch resources of a pod's containers, which CRI does not carry.
    pub const EXTENDED_RESOURCE_SPEC: &str = "node.koordinator.sh/extended-resource-spec";
    pub const CPU_QOS: &str = "koordinator.sh/cpuQOS";
    pub const CPU_BURST: &str = "koordinator.sh/cpuBurst";
    pub const MEMORY_QOS: &str = "koordinator.sh/memoryQOS";
    /// What a pod may do to block devices.
    pub const BLKIO_QOS: &str = "koordinator.sh/blkioQOS";
    /// What a pod may receive and send.
    pub const NETWORK_QOS: &str = "koordinator.sh/networkQOS";
    /// A pod's own shares of caches and of the bandwidth to memory.
    pub const RESCTRL: &str = "node.koordinator.sh/resctrl";
    /// How soon the processes of a pod's containers are killed for want of memory.
    pub const OOM_SCORE_ADJ: &str = "koordinator.sh/oom-score-adj";
    /// The same by container.
    pub const OOM_SCORE_ADJ_SPEC: &str = "koordinator.sh/oom-score-adj-spec";

    /// CPUs that latency-sensitive pods share, one entry per NUMA node.
    pub const CPU_SHARED_POOLS: &str = "node.koordinator.sh/cpu-shared-pools";
    /// CPUs that best-effort pods share, one entry per NUMA node.
    pub const BE_CPU_SHARED_POOLS: &str = "node.koordinator.sh/be-cpu-shared-pools";
    /// What the kubelet of the node does with CPUs itself.
    pub const KUBELET_CPU_MANAGER_POLICY: &str = "kubelet.koordinator.sh/cpu-manager-policy";

    /// Kubernetes' own, on a pod that stands in the API server for one that a kubelet has made.
    pub const CONFIG_MIRROR: &str = "kubernetes.io/config.mirror";
    /// Kubernetes' own: by what the kubelet and the runtime know the pod that it made.
    pub const CONFIG_HASH: &str = "kubernetes.io/config.hash";

    /// On a Node, and copied to its NodeResourceTopology: CPUs of class `SYSTEM`.
    pub const SYSTEM_QOS_RESOURCE: &str = "node.koordinator.sh/system-qos-resource";
    /// On a Node: how much faster one of its CPUs is than that of the slowest model.
    pub const CPU_NORMALIZATION_RATIO: &str = "node.koordinator.sh/cpu-normalization-ratio";
}

/// Resource names.
pub mod resource {
    pub const CPU: &str = "cpu";
    pub const MEMORY: &str = "memory";
    /// Thousandths of a CPU, as a plain number: `1000` is one CPU.
    pub const BATCH_CPU: &str = "kubernetes.io/batch-cpu";
    /// Bytes.
    pub const BATCH_MEMORY: &str = "kubernetes.io/batch-memory";
    /// Thousandths of a CPU, as [`BATCH_CPU`].
    pub const MID_CPU: &str = "kubernetes.io/mid-cpu";
    /// Bytes.
    pub const MID_MEMORY: &str = "kubernetes.io/mid-memory";
    /// Percent of a GPU's time.
    pub const GPU_CORE: &str = "koordinator.sh/gpu-core";
    /// Bytes of a GPU's memory.
    pub const GPU_MEMORY: &str = "koordinator.sh/gpu-memory";
    /// Percent of a GPU's memory.
    pub const GPU_MEMORY_RATIO: &str = "koordinator.sh/gpu-memory-ratio";
}

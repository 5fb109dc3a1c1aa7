//! What a hook may look at: the pod, the container, the node and what earlier hooks decided.
//!
//! A view is a snapshot behind shared references. Whatever front brought the event fills it the
//! same way, which is what makes one hook definition serve them all.

use crate::{
    gate::FeatureGates, hook::HookError, map::Map, merge::Merged, parsed::Parsed,
    rdma::RdmaDevices, unsafe_path::UnsafePath,
};
use koord_model::{
    CgroupPath, CpuPeriod, CpuQuota, CpuSet, CpuShares, KubeQos, MemoryLimit, MemoryProtection,
    OomScoreAdj, PodUid, QosClass, Setting, UnknownClass,
};
use koord_proto::{
    annotation,
    keys::label,
    pods::PodSpec,
    policy::{HostApplication, HostCgroupBase, NodePolicy},
};
use std::{
    collections::{BTreeSet, HashSet},
    fmt,
    sync::Arc,
};

/// The kind of thing that is decided about.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Stage {
    /// Tiers of pods and host applications: what follows from the policy of the node alone.
    Node,
    /// The cgroup directory of a pod.
    Pod,
    /// A container, the sandbox's own included.
    Container,
}

/// A pod.
#[derive(Clone, Debug)]
pub struct PodView {
    pub uid: PodUid,
    pub namespace: String,
    pub name: String,
    /// At least those that [`HookMeta::inputs`](crate::HookMeta) of some hook names.
    pub labels: Map,
    /// At least those that [`HookMeta::inputs`](crate::HookMeta) of some hook names.
    pub annotations: Map,
    /// What it asks for beyond what requests say; `None` where no source of pods tells.
    pub spec: Option<Arc<PodSpec>>,
    pub kube_qos: KubeQos,
    /// Empty for the runtime's default handler.
    pub runtime_handler: String,
    pub parsed: Parsed,
}

/// Whether a container was asked for or holds the pod together.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum ContainerKind {
    Sandbox,
    Regular,
}

/// A container.
#[derive(Clone, Debug)]
pub struct ContainerView {
    pub name: String,
    pub kind: ContainerKind,
    pub requested: Requested,
    /// Whether `requested` is all that was asked for. If not, what it does not say is unknown: the
    /// container was there before us.
    pub heard: bool,
    /// What it has as its quota, per 100 ms, where a kubelet has resized it before us and nobody knows any more
    /// what it asked for: perhaps this, perhaps something that a hook has made this of.
    pub found_quota: Option<CpuQuota>,
}

/// The containers of a pod, each by its name once: one that was made anew is in the list twice for a
/// while, the newest last.
pub(crate) fn newest<'a>(
    containers: &[&'a ContainerView],
) -> impl Iterator<Item = &'a ContainerView> {
    let mut later = HashSet::new();
    let containers = containers.iter().rev().copied();
    containers.filter(move |it| later.insert(&*it.name))
}

/// The resources that the caller asked for, before any hook touched them; `None` is "not said".
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Requested {
    pub cpu_shares: Option<CpuShares>,
    /// Time per `cpu_period`, not per 100 ms.
    pub cpu_quota: Option<CpuQuota>,
    pub cpu_period: Option<CpuPeriod>,
    pub memory_limit: Option<MemoryLimit>,
    pub cpuset_cpus: Option<CpuSet>,
    /// Said by creations alone: no runtime looks at it in an update.
    pub oom_score_adj: Option<OomScoreAdj>,
    pub unified: Unified,
}

/// What is asked for by the name of a file of cgroup v2, of files that we write too. Kubelets ask so
/// for `memory.oom.group` since 1.28, and for the others with their gate `MemoryQoS`.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Unified {
    pub memory_min: Option<MemoryProtection>,
    pub memory_low: Option<MemoryProtection>,
    pub memory_high: Option<MemoryLimit>,
    pub memory_oom_group: Option<bool>,
}

/// The node that the pod is on.
#[derive(Clone, Debug)]
pub struct NodeView {
    pub policy: Arc<NodePolicy>,
    pub kernel: Abilities,
    pub tiers: TierPaths,
    pub options: HookOptions,
}

/// What the node can do: its kernel, and what is installed.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Abilities {
    /// `cpu.bvt_warp_ns` exists and takes effect.
    pub bvt: bool,
    /// Group identity can be switched off, and core scheduling used in its place.
    pub identity_switch: bool,
    /// `cpu.idle` exists (Linux 5.15).
    pub cpu_idle: bool,
    /// `cpu.cfs_burst_us` or `cpu.max.burst` exists (Linux 5.14).
    pub cpu_burst: bool,
    /// Threads can be kept from sharing a core (Linux 5.14), and cores here run several at once.
    pub core_sched: bool,
    /// The settings that the kernel has files for.
    pub files: BTreeSet<Setting>,
    /// The processor can share out its caches or the bandwidth to memory.
    pub resctrl: bool,
    /// Why containers are not given HAMi-core; `None` where they may be.
    pub hami_core: Option<UnsafePath>,
    /// Empty where no hook asks for it.
    pub rdma: RdmaDevices,
    /// The CPUs that pods may use: online, and in the set of `kubepods` where that has one.
    pub usable_cpus: CpuSet,
}

/// Where the kubelet keeps its pods; differs with the cgroup driver.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TierPaths {
    /// Guaranteed pods lie here directly: `kubepods` or `kubepods.slice`.
    pub kubepods: CgroupPath,
    pub burstable: CgroupPath,
    pub best_effort: CgroupPath,
}

/// Settings of the operator that change what a built-in hook decides.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HookOptions {
    /// `--disable-unset-cpu-quota`: pods with CPUs of their own keep their CFS quota.
    pub disable_unset_cpu_quota: bool,
    /// Gate `BECPUManager`: best-effort pods with CPU on a NUMA node are bound to its pool.
    pub be_cpu_manager: bool,
    /// Gate `BECPUIdle`: best-effort pods are idle where the kernel has no group identity.
    pub be_cpu_idle: bool,
    /// Gate `ResctrlMonitor`: pods that share a part of the caches with their class have monitoring
    /// groups of their own.
    pub resctrl_monitor: bool,
    /// `--hami-core-library-directory-path`: the library that keeps a container within its part of a
    /// GPU.
    pub hami_core_library: Arc<str>,
}

/// Everything one decision about a pod or a container may depend on.
#[derive(Clone, Copy, Debug)]
pub struct View<'a> {
    pub stage: Stage,
    pub pod: &'a PodView,
    /// `Some` at [`Stage::Container`] only.
    pub container: Option<&'a ContainerView>,
    /// At [`Stage::Pod`] the containers that the pod has so far and that have not ended, the
    /// sandbox's own not among them.
    pub containers: &'a [&'a ContainerView],
    pub node: &'a NodeView,
    /// What the hooks before this one decided about the same subject.
    pub earlier: &'a Merged,
    /// Hook `RdtResctrl` is at work: a class that the policy enables comes to have a group of its own.
    pub has_cache_classes: bool,
}

// === impl Stage ===

impl fmt::Display for Stage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Node => "node",
            Self::Pod => "pod",
            Self::Container => "container",
        })
    }
}

// === impl HookOptions ===

impl HookOptions {
    pub(crate) const BE_CPU_MANAGER: &'static str = "BECPUManager";
    pub(crate) const BE_CPU_IDLE: &'static str = "BECPUIdle";
    pub(crate) const RESCTRL_MONITOR: &'static str = "ResctrlMonitor";
    /// Where Koordinator takes the library to be.
    pub const HAMI_CORE_LIBRARY: &'static str = "/usr/local/vgpu/libvgpu.so";
    /// The gate of the hook that gives containers this library.
    pub const GPU_ENV_INJECT: &'static str = "GPUEnvInject";

    /// The gate of the hook by which it is counted what they use.
    pub const HAMI_CORE_VGPU_MONITOR: &'static str = "HamiCoreVGPUMonitor";

    pub const RDMA_DEVICE_INJECT: &'static str = "RDMADeviceInject";

    /// What gates say, and what has a flag of its own.
    pub fn new(
        gates: &FeatureGates,
        disable_unset_cpu_quota: bool,
        hami_core_library: &str,
    ) -> Self {
        Self {
            disable_unset_cpu_quota,
            be_cpu_manager: gates.enabled(Self::BE_CPU_MANAGER),
            be_cpu_idle: gates.enabled(Self::BE_CPU_IDLE),
            resctrl_monitor: gates.enabled(Self::RESCTRL_MONITOR),
            hami_core_library: hami_core_library.into(),
        }
    }
}

impl Default for HookOptions {
    fn default() -> Self {
        Self::new(&FeatureGates::default(), false, Self::HAMI_CORE_LIBRARY)
    }
}

// === impl PodView ===

impl PodView {
    /// The class that the pod's label names; `None` if there is no label, or an empty one.
    ///
    /// # Errors
    ///
    /// When the label is none of `LSE`, `LSR`, `LS`, `BE` and `SYSTEM`, exact in case, and not empty.
    pub fn qos_class(&self) -> Result<Option<QosClass>, UnknownClass> {
        annotation::qos_class(self.labels.get(label::QOS_CLASS))
    }

    /// The same; a class that does not exist counts as none, and the chain reports it.
    pub fn qos(&self) -> Option<QosClass> {
        self.qos_class().ok().flatten()
    }

    /// Whether its own directory may be idle: the kernel takes no shares for an idle group, so a kubelet
    /// that is to write those of a resize cannot.
    pub fn may_idle(&self) -> bool {
        let spec = self.spec.as_ref();
        spec.is_none_or(|spec| !spec.is_stuck_in_resize)
    }
}

// === impl Requested ===

impl Requested {
    /// The period that its quota is for.
    pub fn period(&self) -> CpuPeriod {
        self.cpu_period.unwrap_or(CpuPeriod::DEFAULT)
    }
}

// === impl Abilities ===

impl Abilities {
    /// Whether the kernel has a file for none of these.
    pub fn lacks_all(&self, settings: &[Setting]) -> bool {
        !settings.iter().any(|it| self.files.contains(it))
    }
}

// === impl NodeView ===

impl NodeView {
    /// The applications beside Kubernetes that the policy names.
    pub fn host_applications(&self) -> &[HostApplication] {
        let slo = self.policy.slo.as_ref();
        slo.map_or(&[], |slo| &slo.host_applications)
    }

    /// The directory of a host application on this node.
    ///
    /// # Errors
    ///
    /// When the directory of its base, its own path and a slash between them have more than 4,096 bytes.
    pub fn host_application_path(
        &self,
        application: &HostApplication,
    ) -> Result<CgroupPath, HookError> {
        let root = CgroupPath::root();
        let base = match application.cgroup.base {
            HostCgroupBase::CgroupRoot => &root,
            HostCgroupBase::Kubepods => &self.tiers.kubepods,
            HostCgroupBase::KubepodsBurstable => &self.tiers.burstable,
            HostCgroupBase::KubepodsBesteffort => &self.tiers.best_effort,
        };
        base.join(application.cgroup.path.as_str())
            .map_err(|source| HookError::HostApplication {
                name: application.name.clone(),
                source,
            })
    }
}

// === impl View ===

impl View<'_> {
    /// The class of the pod.
    pub fn qos(&self) -> Option<QosClass> {
        self.pod.qos()
    }
}

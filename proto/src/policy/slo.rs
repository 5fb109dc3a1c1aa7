//! NodeSLO: how this node's classes of pods are to be treated.

use koord_model::{Bvt, CgroupPath, PriorityClass, QosClass};

/// The parts of a NodeSLO's `spec` that the node's hooks need, with defaults filled in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSloSpec {
    pub resource_used_threshold_with_be: ResourceUsedThreshold,
    pub resource_qos_strategy: ResourceQosStrategy,
    pub host_applications: Vec<HostApplication>,
}

/// How best-effort pods are held down as the node fills up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceUsedThreshold {
    pub enable: bool,
    pub cpu_suppress_policy: CpuSuppressPolicy,
}

/// The knob with which best-effort pods are held down.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuSuppressPolicy {
    #[default]
    Cpuset,
    /// koordlet moves the quota of the best-effort tier, so pods below it have none of their own.
    CfsQuota,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceQosStrategy {
    pub cpu_policy: CpuPolicy,
    /// Classes `LSR` and `LSE`.
    pub lsr_class: ClassQos,
    pub ls_class: ClassQos,
    pub be_class: ClassQos,
    pub system_class: ClassQos,
}

/// By which kernel feature CPU time ranks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum CpuPolicy {
    #[default]
    GroupIdentity,
    CoreSched,
}

/// How one class is treated.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassQos {
    pub cpu_qos: ClassCpuQos,
}

/// How one class's CPU time ranks.
///
/// For the classes `LSR`, `LS` and `BE` these are the values in force: while `enable` is false
/// they are the neutral ones, whatever was configured. `SYSTEM` keeps what was configured, and
/// whoever reads it asks `enable` first; so it is upstream.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCpuQos {
    pub enable: bool,
    pub group_identity: Bvt,
    pub sched_idle: bool,
    pub core_expeller: bool,
}

/// A program of the node itself, outside Kubernetes, that is treated as a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostApplication {
    pub name: String,
    pub qos: Option<QosClass>,
    pub priority: Option<PriorityClass>,
    pub cgroup: HostCgroup,
}

/// Where a host application's control group is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCgroup {
    pub base: HostCgroupBase,
    /// Below the base.
    pub path: CgroupPath,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostCgroupBase {
    /// The root of the hierarchy.
    #[default]
    CgroupRoot,
    /// The root of all pods.
    Kubepods,
    KubepodsBurstable,
    KubepodsBesteffort,
}

// === impl ResourceQosStrategy ===

impl ResourceQosStrategy {
    /// How a class is treated; `LSE` is treated as `LSR`.
    pub fn class(&self, qos: QosClass) -> &ClassQos {
        match qos {
            QosClass::Lse | QosClass::Lsr => &self.lsr_class,
            QosClass::Ls => &self.ls_class,
            QosClass::Be => &self.be_class,
            QosClass::System => &self.system_class,
        }
    }
}

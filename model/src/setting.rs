//! One setting of a control group and one value for it: the common coin of hooks, ledger and kernel.

use crate::{
    Bvt, CacheGroup, CoreGroup, CostModel, CostQos, CpuBurst, CpuQuota, CpuShares, CpusetCpus,
    Injection, IoRate, IoWeight, MemoryLimit, MemoryProtection, NetQueues, NodeNetwork,
    OomPriority, OomScoreAdj, PageCacheSize, PerBlock, PodNetwork, PodQueue, SchedSwitch,
    WmarkMinAdj, WmarkRatio, WmarkScale,
};
use std::{fmt, sync::Arc};

macro_rules! settings {
    ($($(#[$doc:meta])* $variant:ident($type:ty) = $name:literal),+ $(,)?) => {
        /// What is decided about a control group. Where a file has it it is named after that of cgroup v1, as
        /// Koordinator does.
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
        pub enum Setting {
            $($(#[$doc])* $variant),+
        }

        /// A value for one [`Setting`].
        #[derive(Clone, Debug, PartialEq, Eq, Hash)]
        pub enum Value {
            $($variant($type)),+
        }

        impl Setting {
            pub const ALL: &[Self] = &[$(Self::$variant),+];

            pub fn name(self) -> &'static str {
                match self {
                    $(Self::$variant => $name),+
                }
            }
        }

        impl Value {
            pub fn setting(&self) -> Setting {
                match self {
                    $(Self::$variant(_) => Setting::$variant),+
                }
            }
        }

        impl fmt::Display for Value {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                match self {
                    $(Self::$variant(value) => value.fmt(f)),+
                }
            }
        }
    };
}

settings! {
    /// Relative weight; on cgroup v2 `cpu.weight`.
    CpuShares(CpuShares) = "cpu.shares",
    /// Time per period; on cgroup v2 the first number of `cpu.max`.
    CpuQuota(CpuQuota) = "cpu.cfs_quota_us",
    /// Time saved up for busy periods; never more than the quota.
    CpuBurst(CpuBurst) = "cpu.cfs_burst_us",
    /// CPUs that may be used.
    CpusetCpus(CpusetCpus) = "cpuset.cpus",
    /// Bytes of memory; on cgroup v2 `memory.max`.
    MemoryLimit(MemoryLimit) = "memory.limit_in_bytes",
    /// Memory that is never reclaimed, as far as the groups above have it too.
    MemoryMin(MemoryProtection) = "memory.min",
    /// Memory that is reclaimed only when there is no other.
    MemoryLow(MemoryProtection) = "memory.low",
    /// From here on the group is slowed down and its memory reclaimed.
    MemoryHigh(MemoryLimit) = "memory.high",
    MemoryWmarkRatio(WmarkRatio) = "memory.wmark_ratio",
    MemoryWmarkScale(WmarkScale) = "memory.wmark_scale_factor",
    MemoryWmarkMinAdj(WmarkMinAdj) = "memory.wmark_min_adj",
    MemoryPriority(OomPriority) = "memory.priority",
    /// Whether priorities count among the groups below.
    MemoryUsePriorityOom(bool) = "memory.use_priority_oom",
    /// Whether all of the group is killed when one of it is, for want of memory.
    MemoryOomGroup(bool) = "memory.oom.group",
    /// How much of the group's memory may be page cache, once that is limited.
    MemoryPageCacheSize(PageCacheSize) = "memory.pagecache_limit.size",
    /// Whether who makes more page cache than that waits until it is reclaimed.
    MemoryPageCacheSync(bool) = "memory.pagecache_limit.sync",
    /// Whether page cache is limited.
    MemoryPageCacheEnable(bool) = "memory.pagecache_limit.enable",
    /// Group identity.
    CpuBvt(Bvt) = "cpu.bvt_warp_ns",
    /// Whether the group runs only when nothing else does.
    CpuIdle(bool) = "cpu.idle",
    /// With whom the threads of the group may share a core. No file has it: the threads have.
    CoreSched(CoreGroup) = "core_sched",
    /// Which part of the caches and of the bandwidth to memory the threads of the group share.
    Resctrl(CacheGroup) = "resctrl",
    /// How soon the processes of the group are killed for want of memory. Each of them has it.
    OomScoreAdj(OomScoreAdj) = "oom_score_adj",
    /// Bytes that may be read in a second; on cgroup v2, as the next three, a word of `io.max`.
    IoReadBps(PerBlock<IoRate>) = "blkio.throttle.read_bps_device",
    IoWriteBps(PerBlock<IoRate>) = "blkio.throttle.write_bps_device",
    IoReadIops(PerBlock<IoRate>) = "blkio.throttle.read_iops_device",
    IoWriteIops(PerBlock<IoRate>) = "blkio.throttle.write_iops_device",
    /// Relative part of a device's time; on cgroup v2 `io.weight`.
    IoWeight(PerBlock<IoWeight>) = "blkio.cost.weight",
    /// Whether parts are kept, and from where on; of the root alone.
    IoCostQos(PerBlock<CostQos>) = "blkio.cost.qos",
    /// What a device can do; of the root alone.
    IoCostModel(PerBlock<CostModel>) = "blkio.cost.model",
    /// Where it is counted what a container uses of its part of a GPU. It is part of what the container
    /// is made from.
    GpuMonitor(Arc<Injection>) = "gpu.monitor",
    /// What shows a container its GPUs. The same holds of it.
    Gpu(Arc<Injection>) = "gpu",
    /// The devices of RDMA that a container has. The same holds of them.
    Rdma(Arc<Injection>) = "rdma",
    /// What the pod has of the node's network. It is told to a plugin of the network.
    PodNetwork(PodNetwork) = "network",
    /// How the node's network is shared out; of the root alone, and told with what pods have.
    NodeNetwork(Arc<NodeNetwork>) = "network.classes",
    /// By which queue of the kernel the pod sends. The queues are the node's.
    PodQueue(PodQueue) = "network.queue",
    /// How the kernel's queues share out what the node sends; of the root alone.
    NodeQueues(Arc<NetQueues>) = "network.queues",
    /// Whether the kernel ranks groups or keeps them from sharing a core; of the root alone. No group's
    /// file has it: the kernel's switches in `/proc/sys/kernel` have.
    SchedSwitch(SchedSwitch) = "sched_switch",
}

/// Types that are of one setting alone.
macro_rules! says_its_setting {
    ($($type:ident),+ $(,)?) => {
        $(impl From<$type> for Value {
            fn from(value: $type) -> Self {
                Self::$type(value)
            }
        })+
    };
}

says_its_setting! { CpuShares, CpuQuota, CpuBurst, CpusetCpus, MemoryLimit, OomScoreAdj }

impl From<Bvt> for Value {
    fn from(value: Bvt) -> Self {
        Self::CpuBvt(value)
    }
}

impl From<CoreGroup> for Value {
    fn from(value: CoreGroup) -> Self {
        Self::CoreSched(value)
    }
}

impl From<CacheGroup> for Value {
    fn from(value: CacheGroup) -> Self {
        Self::Resctrl(value)
    }
}

impl Setting {
    /// Whether requests to a runtime have a field for it. All others are written by us.
    pub fn is_sayable(self) -> bool {
        match self {
            Self::CpuShares
            | Self::CpuQuota
            | Self::CpusetCpus
            | Self::MemoryLimit
            | Self::OomScoreAdj
            | Self::GpuMonitor
            | Self::Gpu
            | Self::Rdma => true,
            Self::CpuBurst
            | Self::MemoryMin
            | Self::MemoryLow
            | Self::MemoryHigh
            | Self::MemoryWmarkRatio
            | Self::MemoryWmarkScale
            | Self::MemoryWmarkMinAdj
            | Self::MemoryPriority
            | Self::MemoryUsePriorityOom
            | Self::MemoryOomGroup
            | Self::MemoryPageCacheSize
            | Self::MemoryPageCacheSync
            | Self::MemoryPageCacheEnable
            | Self::CpuBvt
            | Self::CpuIdle
            | Self::CoreSched
            | Self::Resctrl
            | Self::IoReadBps
            | Self::IoWriteBps
            | Self::IoReadIops
            | Self::IoWriteIops
            | Self::IoWeight
            | Self::IoCostQos
            | Self::IoCostModel
            | Self::PodNetwork
            | Self::NodeNetwork
            | Self::PodQueue
            | Self::NodeQueues
            | Self::SchedSwitch => false,
        }
    }

    /// Whether it is no file of the control group that has it but each of the threads or processes
    /// inside.
    pub fn is_of_threads(self) -> bool {
        matches!(self, Self::CoreSched | Self::Resctrl | Self::OomScoreAdj)
    }

    /// Whether it has a value for each block device.
    pub fn is_of_devices(self) -> bool {
        matches!(
            self,
            Self::IoReadBps
                | Self::IoWriteBps
                | Self::IoReadIops
                | Self::IoWriteIops
                | Self::IoWeight
                | Self::IoCostQos
                | Self::IoCostModel
        )
    }
}

impl Value {
    /// What names no block device; `None` for a setting that is not of devices.
    pub fn of_no_device(setting: Setting) -> Option<Self> {
        Some(match setting {
            Setting::IoReadBps => Self::IoReadBps(PerBlock::default()),
            Setting::IoWriteBps => Self::IoWriteBps(PerBlock::default()),
            Setting::IoReadIops => Self::IoReadIops(PerBlock::default()),
            Setting::IoWriteIops => Self::IoWriteIops(PerBlock::default()),
            Setting::IoWeight => Self::IoWeight(PerBlock::default()),
            Setting::IoCostQos => Self::IoCostQos(PerBlock::default()),
            Setting::IoCostModel => Self::IoCostModel(PerBlock::default()),
            _ => return None,
        })
    }
}

impl Setting {
    /// Whether a container has it from being made and never again: no file says it, and nothing
    /// can be given back.
    pub fn is_injected(self) -> bool {
        matches!(self, Self::GpuMonitor | Self::Gpu | Self::Rdma)
    }

    /// Whether it is put in force for all groups together, by another program of the node that is told
    /// of them, or by the queues of its network. It is no more once nobody decides it, so nothing is
    /// given back.
    pub fn is_told(self) -> bool {
        matches!(
            self,
            Self::PodNetwork | Self::NodeNetwork | Self::PodQueue | Self::NodeQueues
        )
    }

    /// Whether a file of the control group has it, or for the root one of the kernel.
    pub fn has_file(self) -> bool {
        !self.is_of_threads() && !self.is_injected() && !self.is_told()
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_setting_has_a_name_of_its_own() {
        let names: BTreeSet<_> = Setting::ALL.iter().map(|s| s.name()).collect();
        assert_eq!(names.len(), Setting::ALL.len());
    }

    #[test]
    fn a_value_knows_its_setting_and_prints_itself() {
        let value = Value::from(CpuQuota::Unlimited);
        assert_eq!(value.setting(), Setting::CpuQuota);
        assert_eq!(value.to_string(), "unlimited");
        assert_eq!(Value::CpuIdle(true).to_string(), "true");
    }
}

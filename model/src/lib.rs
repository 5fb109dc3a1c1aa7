//! Value types that every room speaks: no behaviour outside themselves, no I/O, no dependency on
//! another room.
//!
//! Two rules hold throughout. A type whose number is private is in range: its constructor checks what
//! the kernel or the Koordinator API takes, so no later code has to. CPU time, quotas and memory are
//! any number, as arithmetic needs it, and are checked where they are written. And absence is never
//! a number: "unlimited" and "all CPUs" are variants, "not said" is `Option`. Two types follow their file
//! instead, in which zero is none: [`NetRate`] and [`PageCacheSize`].
#![forbid(unsafe_code)]

mod block;
mod cache_group;
mod cgroup_path;
mod core_group;
mod cpu;
mod cpuset;
mod excerpt;
mod id;
mod injection;
mod memory;
mod network;
mod pci;
mod qos;
mod sched_switch;
mod setting;

pub use self::{
    block::{
        Block, BlockName, BlockNameError, CostModel, CostQos, CostRates, DeviceNumber,
        DeviceNumberError, IoRate, IoWeight, Latency, PerBlock,
    },
    cache_group::{
        Bandwidth, CacheClass, CacheClasses, CacheGroup, CacheRange, CacheShares, ClassGroup,
        PerCache,
    },
    cgroup_path::{CgroupPath, CgroupPathError},
    core_group::CoreGroup,
    cpu::{Bvt, CpuBurst, CpuPeriod, CpuQuota, CpuShares, CpuWeight, MilliCpu, RangeError},
    cpuset::{CpuSet, CpuSetError, CpusetCpus, MAX_CPU},
    excerpt::{MAX_SHOWN, excerpt},
    id::{ContainerId, IdError, PodUid, SandboxId},
    injection::{Bind, DeviceNode, Env, EnvValue, Injection},
    memory::{
        MemoryLimit, MemoryProtection, OomPriority, OomScoreAdj, PageCacheSize, WmarkMinAdj,
        WmarkRatio, WmarkScale,
    },
    network::{
        NetClass, NetPriority, NetQueues, NetRate, NetShare, NodeNetwork, PodNetwork, PodQueue,
    },
    pci::{PciAddress, PciAddressError},
    qos::{KubeQos, QosClass, UnknownClass},
    sched_switch::SchedSwitch,
    setting::{Setting, Value},
};

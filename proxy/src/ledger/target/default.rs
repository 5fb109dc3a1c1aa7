//! What settings are where nobody decides.

use koord_model::{
    Bvt, CacheGroup, CoreGroup, CpuBurst, CpuQuota, CpuShares, CpusetCpus, MemoryLimit,
    MemoryProtection, OomPriority, OomScoreAdj, PageCacheSize, PodNetwork, PodQueue, SchedSwitch,
    Setting, Value, WmarkMinAdj, WmarkRatio, WmarkScale,
};
use std::sync::Arc;

/// Whether others go without what a group has by this. Where nobody knows who asked, none is likelier
/// than what we had decided.
pub(super) fn is_withheld(setting: Setting) -> bool {
    matches!(
        setting,
        Setting::MemoryMin | Setting::MemoryLow | Setting::MemoryHigh
    )
}

/// Whether the kernel makes a group with what the one above it has of this.
pub(super) fn is_copied(setting: Setting) -> bool {
    matches!(
        setting,
        Setting::MemoryPageCacheSize
            | Setting::MemoryPageCacheSync
            | Setting::MemoryPageCacheEnable
    )
}

/// What directories of pods and tiers have by themselves, where nobody else decides it for them. A
/// kubelet with its gate `MemoryQoS` does: it writes those of tiers anew, but that of a pod only when
/// it makes it, and what it wrote there is lost with our first value. The kernel cannot be asked:
/// after a restart, and when a kubelet makes a pod's sandbox again, it holds what we had decided.
pub fn of_directories(setting: Setting) -> Option<Value> {
    let ours = is_withheld(setting) || setting == Setting::MemoryOomGroup;
    ours.then(|| default(setting))
}

/// What a setting is where nobody decides and nobody asked for anything.
pub(super) fn default(setting: Setting) -> Value {
    match setting {
        Setting::CpuShares => CpuShares::DEFAULT.into(),
        Setting::CpuQuota => CpuQuota::Unlimited.into(),
        Setting::CpuBurst => CpuBurst::NONE.into(),
        Setting::CpusetCpus => CpusetCpus::All.into(),
        Setting::MemoryLimit => MemoryLimit::Unlimited.into(),
        Setting::MemoryMin => Value::MemoryMin(MemoryProtection::NONE),
        Setting::MemoryLow => Value::MemoryLow(MemoryProtection::NONE),
        Setting::MemoryHigh => Value::MemoryHigh(MemoryLimit::Unlimited),
        Setting::MemoryWmarkRatio => Value::MemoryWmarkRatio(WmarkRatio::DEFAULT),
        Setting::MemoryWmarkScale => Value::MemoryWmarkScale(WmarkScale::DEFAULT),
        Setting::MemoryWmarkMinAdj => Value::MemoryWmarkMinAdj(WmarkMinAdj::DEFAULT),
        Setting::MemoryPriority => Value::MemoryPriority(OomPriority::DEFAULT),
        Setting::MemoryUsePriorityOom => Value::MemoryUsePriorityOom(false),
        Setting::MemoryOomGroup => Value::MemoryOomGroup(false),
        Setting::MemoryPageCacheSize => Value::MemoryPageCacheSize(PageCacheSize::DEFAULT),
        Setting::MemoryPageCacheSync => Value::MemoryPageCacheSync(false),
        Setting::MemoryPageCacheEnable => Value::MemoryPageCacheEnable(false),
        Setting::CpuBvt => Bvt::default().into(),
        Setting::CpuIdle => Value::CpuIdle(false),
        Setting::CoreSched => CoreGroup::None.into(),
        Setting::Resctrl => CacheGroup::Root.into(),
        Setting::OomScoreAdj => OomScoreAdj::DEFAULT.into(),
        Setting::GpuMonitor => Value::GpuMonitor(Arc::default()),
        Setting::Gpu => Value::Gpu(Arc::default()),
        Setting::Rdma => Value::Rdma(Arc::default()),
        Setting::PodNetwork => Value::PodNetwork(PodNetwork::default()),
        Setting::NodeNetwork => Value::NodeNetwork(Arc::default()),
        Setting::PodQueue => Value::PodQueue(PodQueue::default()),
        Setting::NodeQueues => Value::NodeQueues(Arc::default()),
        Setting::SchedSwitch => Value::SchedSwitch(SchedSwitch::AsBefore),
        // What each device had before it was named is noted on the group.
        Setting::IoReadBps
        | Setting::IoWriteBps
        | Setting::IoReadIops
        | Setting::IoWriteIops
        | Setting::IoWeight
        | Setting::IoCostQos
        | Setting::IoCostModel => Value::of_no_device(setting).expect("it is of devices"),
    }
}

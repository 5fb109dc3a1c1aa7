//! The hooks that come with the proxy, one file each.
//!
//! Their order here is the order in which they run. Feature gates, metrics, documentation and the tests over
//! all hooks derive from this list. What stands beside it by hand is which test has shown a hook on which
//! kernel (`hooks/tests/docs.rs`) and, for an annotation, texts that are good and bad (`tests.rs`).

use crate::hook::{Hook, HookMeta};

/// One built-in hook.
pub(crate) struct Row {
    pub(crate) meta: HookMeta,
    pub(crate) build: fn() -> Box<dyn Hook>,
}

macro_rules! builtin_hooks {
    ($($module:ident::$hook:ident),+ $(,)?) => {
        $(mod $module;)+

        pub(crate) static TABLE: &[Row] = &[
            $(Row {
                meta: $module::META,
                build: || Box::new($module::$hook),
            }),+
        ];
    };
}

builtin_hooks! {
    batch_resource::BatchResource,
    mid_resource::MidResource,
    cpu_normalization::CpuNormalization,
    cpuset_allocator::CpusetAllocator,
    cpu_burst::CpuBurstHook,
    memory_qos::MemoryQosHook,
    group_identity::GroupIdentity,
    core_sched::CoreSched,
    rdt_resctrl::RdtResctrl,
    resctrl::Resctrl,
    oom_score_adj::OomScoreAdjHook,
    blkio::Blkio,
    gpu_env_inject::GpuEnvInject,
    hami_core_vgpu_monitor::HamiCoreVgpuMonitor,
    rdma_device_inject::RdmaDeviceInject,
    terway_qos::TerwayQos,
    tc_network_qos::TcNetworkQos,
}

/// The hook that has the classes of pods share out caches.
pub(crate) const OF_CACHE_CLASSES: &str = rdt_resctrl::META.name;

#[cfg(test)]
mod tests;

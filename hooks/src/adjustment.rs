//! What a hook wants changed.
//!
//! An adjustment is said about one cgroup directory: the pod's, the container's, a tier's or a
//! host application's, as the stage says. How a value gets there, in a request or as a kernel
//! write, is not the hook's business.

use crate::view::Abilities;
use koord_model::{
    Bvt, CacheGroup, CgroupPath, CoreGroup, CostModel, CostQos, CpuBurst, CpuQuota, CpuShares,
    CpusetCpus, Injection, IoRate, IoWeight, KubeQos, MemoryLimit, MemoryProtection, NetQueues,
    NodeNetwork, OomPriority, OomScoreAdj, PageCacheSize, PerBlock, PodNetwork, PodQueue,
    SchedSwitch, Setting, Value, WmarkMinAdj, WmarkRatio, WmarkScale,
};
use std::{collections::BTreeMap, sync::Arc};

/// One field for each [`Setting`]: a setting without a field does not compile.
macro_rules! adjustment {
    ($($(#[$doc:meta])* $field:ident: $setting:ident($type:ty)),+ $(,)?) => {
        /// The values that a hook sets on one cgroup; `None` leaves a setting alone.
        #[derive(Clone, Debug, Default, PartialEq, Eq)]
        pub struct Adjustment {
            $($(#[$doc])* pub $field: Option<$type>,)+
            /// What [`Adjustment::overriding`] declared.
            pub overrides: Vec<Setting>,
        }

        impl Adjustment {
            pub fn get(&self, setting: Setting) -> Option<Value> {
                match setting {
                    $(Setting::$setting => self.$field.clone().map(Value::$setting)),+
                }
            }

            /// Hands over the values that are set, in the order of [`Setting::ALL`].
            pub(crate) fn hand_over(self, mut take: impl FnMut(Value)) {
                $(if let Some(value) = self.$field {
                    take(Value::$setting(value));
                })+
            }

            /// Leaves alone after all what the kernel has no file for.
            #[must_use]
            pub(crate) fn possible(mut self, kernel: &Abilities) -> Self {
                // Few are set, so it is they that are looked for.
                $(if self.$field.is_some() && !kernel.files.contains(&Setting::$setting) {
                    self.$field = None;
                })+
                self
            }
        }
    };
}

adjustment! {
    cpu_shares: CpuShares(CpuShares),
    /// In a period of 100 ms. Whoever applies it scales it to the period in force there.
    cpu_quota: CpuQuota(CpuQuota),
    /// In a period of 100 ms, as the quota; less where the quota in force is less.
    cpu_burst: CpuBurst(CpuBurst),
    cpuset_cpus: CpusetCpus(CpusetCpus),
    memory_limit: MemoryLimit(MemoryLimit),
    memory_min: MemoryMin(MemoryProtection),
    memory_low: MemoryLow(MemoryProtection),
    /// Of containers only.
    memory_high: MemoryHigh(MemoryLimit),
    memory_wmark_ratio: MemoryWmarkRatio(WmarkRatio),
    memory_wmark_scale: MemoryWmarkScale(WmarkScale),
    memory_wmark_min_adj: MemoryWmarkMinAdj(WmarkMinAdj),
    memory_priority: MemoryPriority(OomPriority),
    memory_use_priority_oom: MemoryUsePriorityOom(bool),
    /// Never of a tier: a kill there would be one of all its pods.
    memory_oom_group: MemoryOomGroup(bool),
    /// Of pods and containers only, as the next two; a container has no size of its own.
    memory_page_cache_size: MemoryPageCacheSize(PageCacheSize),
    memory_page_cache_sync: MemoryPageCacheSync(bool),
    memory_page_cache_enable: MemoryPageCacheEnable(bool),
    cpu_bvt: CpuBvt(Bvt),
    /// On pod directories only: elsewhere it stops the kubelet or breaks updates.
    cpu_idle: CpuIdle(bool),
    /// Of containers only.
    core_sched: CoreSched(CoreGroup),
    /// Of containers only.
    resctrl: Resctrl(CacheGroup),
    /// Of containers only, and never of a sandbox.
    oom_score_adj: OomScoreAdj(OomScoreAdj),
    /// The same.
    gpu_monitor: GpuMonitor(Arc<Injection>),
    /// The same.
    gpu: Gpu(Arc<Injection>),
    /// The same.
    rdma: Rdma(Arc<Injection>),
    io_read_bps: IoReadBps(PerBlock<IoRate>),
    io_write_bps: IoWriteBps(PerBlock<IoRate>),
    io_read_iops: IoReadIops(PerBlock<IoRate>),
    io_write_iops: IoWriteIops(PerBlock<IoRate>),
    io_weight: IoWeight(PerBlock<IoWeight>),
    /// Of the root only.
    io_cost_qos: IoCostQos(PerBlock<CostQos>),
    /// Of the root only.
    io_cost_model: IoCostModel(PerBlock<CostModel>),
    /// Of pods' own directories only.
    pod_network: PodNetwork(PodNetwork),
    /// Of the root only.
    node_network: NodeNetwork(Arc<NodeNetwork>),
    /// Of pods' own directories only.
    pod_queue: PodQueue(PodQueue),
    /// Of the root only.
    node_queues: NodeQueues(Arc<NetQueues>),
    /// Of the root only.
    sched_switch: SchedSwitch(SchedSwitch),
}

/// The values that a hook sets for the whole node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeAdjustment {
    /// The root of all control groups.
    pub root: Adjustment,
    /// The directory of each tier of pods; that of guaranteed pods is the root of all pods.
    pub tiers: BTreeMap<KubeQos, Adjustment>,
    /// Applications beside Kubernetes, by their directory.
    pub host_applications: BTreeMap<CgroupPath, Adjustment>,
}

// === impl Adjustment ===

impl Adjustment {
    /// Declares that this hook's value for `setting` replaces that of an earlier hook. Without
    /// it, setting what an earlier hook has set is a conflict.
    #[must_use]
    pub fn overriding(mut self, setting: Setting) -> Self {
        self.overrides.push(setting);
        self
    }

    /// Whether no setting is set.
    pub fn is_empty(&self) -> bool {
        self.values().next().is_none()
    }

    /// The values that are set, in the order of [`Setting::ALL`].
    pub fn values(&self) -> impl Iterator<Item = Value> {
        Setting::ALL.iter().filter_map(|setting| self.get(*setting))
    }
}

// === impl NodeAdjustment ===

impl NodeAdjustment {
    /// Whether nothing is set anywhere.
    #[cfg(test)]
    pub(crate) fn is_empty(&self) -> bool {
        self.tiers
            .values()
            .chain(self.host_applications.values())
            .chain([&self.root])
            .all(Adjustment::is_empty)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_override_alone_sets_nothing() {
        assert!(
            Adjustment::default()
                .overriding(Setting::CpuQuota)
                .is_empty()
        );
        let set = Adjustment {
            cpu_quota: Some(CpuQuota::Unlimited),
            cpu_idle: Some(false),
            ..Adjustment::default()
        };
        let values: Vec<Value> = set.values().collect();
        assert_eq!(
            values,
            [Value::CpuQuota(CpuQuota::Unlimited), Value::CpuIdle(false)]
        );
    }

    #[test]
    fn a_node_adjustment_of_empty_parts_is_empty() {
        let mut node = NodeAdjustment::default();
        node.tiers.insert(KubeQos::Burstable, Adjustment::default());
        assert!(node.is_empty());
        let tier = Adjustment {
            cpu_bvt: Some(Bvt::default()),
            ..Adjustment::default()
        };
        node.tiers.insert(KubeQos::Burstable, tier);
        assert!(!node.is_empty());
    }
}

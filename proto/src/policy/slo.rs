//! NodeSLO: how this node's classes of pods are to be treated.

use super::{
    block::BlockQos, host_application::HostApplication, issue::Problem, network, place::Place,
};
use crate::annotation::{BurstPercent, CpuBurstPolicy, MemoryQos, Percent, Switch};
use koord_model::{
    Bandwidth, Bvt, CacheRange, NodeNetwork, OomPriority, PageCacheSize, QosClass, WmarkMinAdj,
    WmarkRatio, WmarkScale,
};

/// The parts of a NodeSLO's `spec` that the node's hooks need, with defaults filled in.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeSloSpec {
    pub resource_used_threshold_with_be: ResourceUsedThreshold,
    pub resource_qos_strategy: ResourceQosStrategy,
    /// `blkioQOS` of that.
    pub block_qos: BlockQos,
    /// `networkQOS` of that, where the policy has a plugin of the network share it out.
    pub network: Option<NodeNetwork>,
    /// The same, where queues of the kernel are to. What is kept for classes is then no more than there
    /// is, and what they receive is not shared out.
    pub queues: Option<NodeNetwork>,
    pub cpu_burst_strategy: CpuBurstStrategy,
    pub host_applications: Vec<HostApplication>,
}

/// How best-effort pods are held down as the node fills up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ResourceUsedThreshold {
    pub enable: bool,
    pub cpu_suppress_policy: CpuSuppressPolicy,
}

/// How far containers may run beyond their CPU limits for a moment.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CpuBurstStrategy {
    pub policy: CpuBurstPolicy,
    pub percent: BurstPercent,
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
    /// Its memory alone: as upstream, no hook treats CPU time or caches of `SYSTEM` by its class.
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
    /// `None` while it is not enabled.
    pub memory_qos: Option<MemoryQos>,
    pub resctrl_qos: ClassResctrlQos,
}

/// How one class's CPU time ranks: by the neutral values while `enable` is false, whatever was configured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassCpuQos {
    pub enable: bool,
    pub group_identity: Bvt,
    pub sched_idle: bool,
    pub core_expeller: bool,
}

/// How much of the last-level cache and of the bandwidth to memory one class has: everything while
/// `enable` is false.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ClassResctrlQos {
    pub enable: bool,
    pub range: CacheRange,
    pub bandwidth: Bandwidth,
}

const CPU_SUPPRESS_POLICIES: [(&str, CpuSuppressPolicy); 2] = [
    ("cpuset", CpuSuppressPolicy::Cpuset),
    ("cfsQuota", CpuSuppressPolicy::CfsQuota),
];

const CPU_POLICIES: [(&str, CpuPolicy); 2] = [
    ("groupIdentity", CpuPolicy::GroupIdentity),
    ("coreSched", CpuPolicy::CoreSched),
];

// === impl NodeSloSpec ===

impl NodeSloSpec {
    pub(super) fn read(spec: &Place<'_>) -> Self {
        let applications = spec.field("hostApplications").elements();
        let strategy = spec.section("resourceQOSStrategy");
        let network = network::read(spec, &strategy);
        Self {
            resource_used_threshold_with_be: ResourceUsedThreshold::read(
                &spec.section("resourceUsedThresholdWithBE"),
            ),
            resource_qos_strategy: ResourceQosStrategy::read(&strategy),
            block_qos: BlockQos::read(&strategy),
            network: network.by_plugin,
            queues: network.by_queues,
            cpu_burst_strategy: CpuBurstStrategy::read(&spec.section("cpuBurstStrategy")),
            host_applications: applications
                .iter()
                .filter_map(HostApplication::read)
                .collect(),
        }
    }
}

// === impl ResourceUsedThreshold ===

impl ResourceUsedThreshold {
    fn read(section: &Place<'_>) -> Self {
        let policy = section.field("cpuSuppressPolicy");
        Self {
            enable: section.field("enable").boolean().unwrap_or_default(),
            cpu_suppress_policy: policy.name(&CPU_SUPPRESS_POLICIES).unwrap_or_default(),
        }
    }
}

// === impl CpuBurstStrategy ===

impl CpuBurstStrategy {
    fn read(section: &Place<'_>) -> Self {
        let percent = section.field("cpuBurstPercent");
        let percent = percent.integer(BurstPercent::MIN, BurstPercent::MAX);
        let percent = percent.and_then(|percent| BurstPercent::new(percent).ok());
        Self {
            policy: section
                .field("policy")
                .name(&CpuBurstPolicy::NAMES)
                .unwrap_or_default(),
            percent: percent.unwrap_or_default(),
        }
    }
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

    /// Whether it treats the CPU time of some class of pods.
    pub fn has_enabled(&self) -> bool {
        let classes = [&self.lsr_class, &self.ls_class, &self.be_class];
        classes.iter().any(|class| class.cpu_qos.enable)
    }

    fn read(section: &Place<'_>) -> Self {
        // With Koordinator's defaults of the class: `groupIdentity`, `coreExpeller`, and where its
        // part of the cache ends.
        let class = |key: &str, class: QosClass, group_identity, core_expeller, range_end| {
            let section = section.section(key);
            let cpu_qos = section.section("cpuQOS");
            ClassQos {
                cpu_qos: ClassCpuQos::read(&cpu_qos, group_identity, core_expeller),
                memory_qos: read_memory_qos(&section.section("memoryQOS"), class),
                resctrl_qos: ClassResctrlQos::read(&section.section("resctrlQOS"), range_end),
            }
        };
        let system = section.section("systemClass").section("memoryQOS");
        let policy = section.section("policies").field("cpuPolicy");
        Self {
            cpu_policy: policy.name(&CPU_POLICIES).unwrap_or_default(),
            lsr_class: class("lsrClass", QosClass::Lsr, 2, true, 100),
            ls_class: class("lsClass", QosClass::Ls, 2, true, 100),
            be_class: class("beClass", QosClass::Be, -1, false, 30),
            system_class: ClassQos {
                memory_qos: read_memory_qos(&system, QosClass::System),
                ..ClassQos::default()
            },
        }
    }
}

// === impl ClassCpuQos ===

impl ClassCpuQos {
    fn read(section: &Place<'_>, group_identity: i64, core_expeller: bool) -> Self {
        let enable = section.field("enable").boolean().unwrap_or_default();
        let identity = section.field("groupIdentity").integer(-1, 2);
        let idle = section.field("schedIdle").integer(0, 1);
        let expeller = section.field("coreExpeller").boolean();
        if !enable {
            return Self::default();
        }
        Self {
            enable,
            group_identity: Bvt::new(identity.unwrap_or(group_identity))
                .expect("the range is that of group identity"),
            sched_idle: idle == Some(1),
            core_expeller: expeller.unwrap_or(core_expeller),
        }
    }
}

/// What is said of a class's memory, over Koordinator's defaults; `None` while it is not enabled.
fn read_memory_qos(section: &Place<'_>, class: QosClass) -> Option<MemoryQos> {
    let percent = |key: &str| {
        let percent = section.field(key).integer(Percent::MIN, Percent::MAX)?;
        Percent::new(percent).ok()
    };
    let switch = |key: &str| {
        let switch = section.field(key).integer(Switch::MIN, Switch::MAX)?;
        Switch::new(switch).ok()
    };
    let number = |key: &str, min, max| section.field(key).integer(min, max);
    let said = MemoryQos {
        min_limit_percent: percent("minLimitPercent"),
        low_limit_percent: percent("lowLimitPercent"),
        throttling_percent: percent("throttlingPercent"),
        wmark_ratio: number("wmarkRatio", WmarkRatio::MIN, WmarkRatio::MAX)
            .and_then(|it| WmarkRatio::new(it).ok()),
        wmark_scale_permill: number("wmarkScalePermill", WmarkScale::MIN, WmarkScale::MAX)
            .and_then(|it| WmarkScale::new(it).ok()),
        wmark_min_adj: number("wmarkMinAdj", WmarkMinAdj::MIN, WmarkMinAdj::MAX)
            .and_then(|it| WmarkMinAdj::new(it).ok()),
        priority_enable: switch("priorityEnable"),
        priority: number("priority", OomPriority::MIN, OomPriority::MAX)
            .and_then(|it| OomPriority::new(it).ok()),
        oom_kill_group: switch("oomKillGroup"),
        page_cache_enable: section.field("pageCacheEnable").boolean(),
        page_cache_limit_percent: percent("pageCacheLimitPercent"),
        page_cache_limit_size: number("pageCacheLimitSize", PageCacheSize::MIN, PageCacheSize::MAX)
            .and_then(|it| PageCacheSize::new(it).ok()),
        page_cache_reclaim_sync: section.field("pageCacheReclaimSync").boolean(),
    };
    let enable = section.field("enable").boolean().unwrap_or_default();
    enable.then(|| said.over(MemoryQos::of_class(class)))
}

// === impl ClassResctrlQos ===

impl ClassResctrlQos {
    fn read(section: &Place<'_>, range_end: i64) -> Self {
        let enable = section.field("enable").boolean().unwrap_or_default();
        let range = range(section, range_end);
        let bandwidth = section.field("mbaPercent");
        let bandwidth = bandwidth.integer(Bandwidth::MIN, Bandwidth::MAX);
        let bandwidth = bandwidth.and_then(|percent| Bandwidth::new(percent).ok());
        if !enable {
            return Self::default();
        }
        Self {
            enable,
            range,
            bandwidth: bandwidth.unwrap_or_default(),
        }
    }
}

/// The part of the cache from `catRangeStartPercent` to `catRangeEndPercent`, which is the class's
/// own if the two make none. That is told of one of them, and of neither where one was wrong by itself.
fn range(section: &Place<'_>, default_end: i64) -> CacheRange {
    let (from, to) = (
        section.field("catRangeStartPercent"),
        section.field("catRangeEndPercent"),
    );
    let start = from.integer(0, CacheRange::MAX - 1).unwrap_or(0);
    let end = to.integer(1, CacheRange::MAX);
    CacheRange::new(start, end.unwrap_or(default_end)).unwrap_or_else(|_| {
        let told = match end {
            Some(end) => Some((&to, end, start + 1, CacheRange::MAX)),
            None if to.is_there() => None,
            None => Some((&from, start, 0, default_end - 1)),
        };
        if let Some((place, value, min, max)) = told {
            let value = value.to_string();
            place.report(Problem::OutOfRange { value, min, max });
        }
        CacheRange::new(0, default_end).expect("each class's own end is within the cache")
    })
}

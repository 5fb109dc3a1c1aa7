//! The memory of latency-sensitive pods is kept from reclaim, and that of others reclaimed first.
//!
//! The policy of the node says for each class, and the pod's annotation over it field by field, how
//! much of what a pod requests is kept for it (`memory.min`, `memory.low`), from where between
//! request and limit a container is slowed down (`memory.high`), and what kernels of Anolis and
//! Alibaba Cloud have beside: reclaim in the background, graded watermarks, priorities when memory
//! has run out. `BE` pods request by their batch resources. What guaranteed pods request is their
//! limit, and those that the kubelet takes for best effort request nothing. What a burstable pod
//! requests no runtime is told: where no source of pods tells it either, nothing of it is kept, and
//! its containers are not slowed down.
//!
//! How much of a pod's memory may be page cache is said in bytes, of which no more count than its
//! limit, or in percent of its limit. Where nobody knows the limit neither counts, and percent of no
//! limit are nothing: such a pod's page cache is not limited. The kernel has a switch for each group,
//! so containers have theirs turned with the pod's, and one for the whole node
//! (`/sys/kernel/mm/pagecache_limit/enabled`), which is not ours.
//!
//! What is kept for a pod its tier has to keep too; that follows from what is decided here, and is
//! added where all pods are known.
//!
//! Where this differs from Koordinator v1.8:
//! - what is not asked for is not decided: upstream writes 0 and `max` where the policy says nothing,
//!   over what a kubelet's `MemoryQoS` keeps for a container, and over the `memory.oom.group` that
//!   kubelets set since 1.28. Whoever wants these reset says so (`oomKillGroup: 0`);
//! - a class that is not enabled gives back what was there before, which upstream overwrites;
//! - `oomKillGroup` of a class is for its pods and containers and never for a tier: upstream sets it
//!   there too, where one process too many would end every pod of the node;
//! - a container is not slowed down below what it takes to start one;
//! - page cache is limited on both versions of cgroup, which upstream does on v2 alone, and containers
//!   that were made before their pod was limited are too, of which upstream writes nothing.

use crate::{
    adjustment::{Adjustment, NodeAdjustment},
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, MIN_MEMORY_BYTES, Maturity},
    view::{ContainerKind, ContainerView, NodeView, PodView, Stage, View, newest},
};
use koord_model::{KubeQos, MemoryLimit, MemoryProtection, PageCacheSize, QosClass, Setting};
use koord_proto::{
    annotation::{ExtendedContainer, ExtendedResourceSpec, MemoryQos, MemoryQosPolicy},
    keys::{annotation, label},
    pods::PodSpec,
};

pub(super) const META: HookMeta = HookMeta {
    name: "MemoryQOS",
    gate: "CgroupReconcile",
    default_on: false,
    maturity: Maturity::Alpha,
    options: &[],
    stages: &[Stage::Node, Stage::Pod, Stage::Container],
    fail_policy: FailPolicy::Open,
    doc: "keeps memory for pods by their class, and slows down those that use more than they request",
    inputs: Inputs {
        labels: &[label::QOS_CLASS],
        annotations: &[annotation::MEMORY_QOS, annotation::EXTENDED_RESOURCE_SPEC],
    },
    settings: &[
        Setting::MemoryMin,
        Setting::MemoryLow,
        Setting::MemoryHigh,
        Setting::MemoryWmarkRatio,
        Setting::MemoryWmarkScale,
        Setting::MemoryWmarkMinAdj,
        Setting::MemoryPriority,
        Setting::MemoryUsePriorityOom,
        Setting::MemoryOomGroup,
        Setting::MemoryPageCacheSize,
        Setting::MemoryPageCacheSync,
        Setting::MemoryPageCacheEnable,
    ],
};

pub(super) struct MemoryQosHook;

/// Bytes that a pod or a container asks for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Amount {
    request: u64,
    limit: Option<u64>,
}

// === impl MemoryQosHook ===

impl Hook for MemoryQosHook {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        let qos = in_force(view.pod, view.node)?;
        let amount = Amount::of(view)?;
        if view
            .container
            .is_some_and(|it| it.kind == ContainerKind::Sandbox)
        {
            return Ok(Adjustment::default());
        }
        let kept = amount.map(|amount| amount.kept(&qos));
        let (min, low) = kept.unwrap_or_default();
        let high = match (view.container, amount) {
            (Some(_), Some(amount)) => amount.high(&qos, min, view.node),
            _ => None,
        };
        let bytes = |bytes: u64| (bytes > 0).then_some(MemoryProtection::Bytes(bytes));
        let adjustment = Adjustment {
            memory_min: bytes(min),
            memory_low: bytes(low),
            memory_high: high.map(MemoryLimit::Bytes),
            memory_wmark_ratio: qos.wmark_ratio,
            memory_wmark_scale: qos.wmark_scale_permill,
            memory_wmark_min_adj: qos.wmark_min_adj,
            memory_oom_group: qos.oom_kill_group.map(|switch| switch.0),
            ..match view.container {
                Some(_) => in_container(&qos),
                None => with_page_cache(&qos, amount),
            }
        };
        Ok(adjustment.possible(&view.node.kernel))
    }

    fn decide_node(&self, node: &NodeView) -> Result<NodeAdjustment, HookError> {
        let mut adjustment = NodeAdjustment::default();
        for tier in KubeQos::ALL {
            let qos = of_class(node, QosClass::of_tier(*tier)).unwrap_or_default();
            let ranked = ranked(&qos).possible(&node.kernel);
            if !ranked.is_empty() {
                adjustment.tiers.insert(*tier, ranked);
            }
        }
        Ok(adjustment)
    }

    /// Of guaranteed pods alone the limits count; others request by annotation, or nothing.
    fn reads_requested(&self, pod: &PodView, node: &NodeView) -> bool {
        let by_limits = pod.kube_qos == KubeQos::Guaranteed && pod.qos() != Some(QosClass::Be);
        by_limits && in_force(pod, node).is_ok_and(|qos| qos.is_of_request())
    }

    fn unsupported(&self, node: &NodeView) -> Option<&'static str> {
        node.kernel
            .lacks_all(META.settings)
            .then_some("the kernel has no memory.min, nor what vendors have beside it")
    }
}

/// How a pod's memory is to be treated. Upstream ranks pods without a class by what the kubelet
/// takes them for.
fn in_force(pod: &PodView, node: &NodeView) -> Result<MemoryQos, HookError> {
    let class = pod.qos().unwrap_or_else(|| QosClass::of_tier(pod.kube_qos));
    let own = pod.memory_qos()?.unwrap_or_default();
    let below = match own.policy {
        MemoryQosPolicy::Default => of_class(node, class).unwrap_or_default(),
        MemoryQosPolicy::None => MemoryQos::default(),
        MemoryQosPolicy::Auto => MemoryQos::of_class(class),
    };
    Ok(own.qos.over(below))
}

fn of_class(node: &NodeView, class: QosClass) -> Option<MemoryQos> {
    let slo = node.policy.slo.as_ref()?;
    slo.resource_qos_strategy.class(class).memory_qos
}

/// Who is killed first when memory has run out.
fn ranked(qos: &MemoryQos) -> Adjustment {
    Adjustment {
        memory_priority: qos.priority,
        memory_use_priority_oom: qos.priority_enable.map(|switch| switch.0),
        ..Adjustment::default()
    }
}

/// The same of a pod, with how much of its memory may be page cache.
fn with_page_cache(qos: &MemoryQos, amount: Option<Amount>) -> Adjustment {
    let size = amount.and_then(|amount| amount.page_cache(qos));
    let limits = size.map(|size| size > PageCacheSize::DEFAULT);
    Adjustment {
        memory_page_cache_size: size,
        ..switched(qos, limits)
    }
}

/// The same of a container. The kernel asks the group that a page is charged to, and those above it
/// only while each is switched on; and a new group has what the one above it had when it was made. So
/// each container has the switch, and no size of its own.
fn in_container(qos: &MemoryQos) -> Adjustment {
    let size = qos.page_cache_limit_size;
    let by_size = size.map(|size| size > PageCacheSize::DEFAULT);
    let percent = qos.page_cache_limit_percent;
    let limits = by_size.or_else(|| percent.map(|percent| !percent.is_zero()));
    let switched = switched(qos, limits);
    let no_size = |_| PageCacheSize::DEFAULT;
    Adjustment {
        memory_page_cache_size: switched.memory_page_cache_enable.map(no_size),
        ..switched
    }
}

/// Whether page cache is limited, by upstream's rules: some size turns the limit on and none turns it
/// off, unless it is said which.
fn switched(qos: &MemoryQos, limits: Option<bool>) -> Adjustment {
    let unasked = (limits == Some(true)).then_some(false);
    Adjustment {
        memory_page_cache_sync: qos.page_cache_reclaim_sync.or(unasked),
        memory_page_cache_enable: qos.page_cache_enable.or(limits),
        ..ranked(qos)
    }
}

// === impl Amount ===

impl Amount {
    /// `None` where it is unknown, or in part.
    fn of(view: &View<'_>) -> Result<Option<Self>, HookError> {
        if view.qos() == Some(QosClass::Be) {
            return Self::of_batch(view).map(Some);
        }
        Ok(match (view.pod.kube_qos, view.container) {
            (KubeQos::Guaranteed, Some(container)) => Self::guaranteed(container),
            (KubeQos::Guaranteed, None) => {
                let amounts = newest(view.containers).map(Self::guaranteed);
                Self::together(amounts.filter(|amount| *amount != Some(Self::NOTHING)))
            }
            (KubeQos::Burstable, container) => match (&view.pod.spec, container) {
                (Some(spec), Some(container)) => Some(Self::burstable(spec, container)),
                (Some(spec), None) => {
                    let named = newest(view.containers);
                    let named = named.filter(|it| spec.container(&it.name).is_some());
                    Self::together(named.map(|it| Some(Self::burstable(spec, it))))
                }
                (None, _) => None,
            },
            (KubeQos::BestEffort, _) => Some(Self::NOTHING),
        })
    }

    const NOTHING: Self = Self {
        request: 0,
        limit: None,
    };

    /// What is requested is kept from others, so the annotation counts for that only where nobody tells of the
    /// pod itself.
    fn of_batch(view: &View<'_>) -> Result<Self, HookError> {
        let said = view.pod.batch_resources()?;
        let said = said.and_then(|spec| Self::of_extended(&spec, view.container));
        let own = match &view.pod.spec {
            Some(spec) => {
                let batch = spec.batch.as_deref();
                batch.and_then(|spec| Self::of_extended(spec, view.container))
            }
            None => said,
        };
        Ok(Self {
            request: own.map_or(0, |own| own.request),
            limit: said.and_then(|said| said.limit),
        })
    }

    fn of_extended(spec: &ExtendedResourceSpec, container: Option<&ContainerView>) -> Option<Self> {
        let containers = spec.containers.as_ref()?;
        match container {
            Some(container) => containers.get(&container.name).map(Self::from),
            None => containers.values().map(Self::from).reduce(Self::and),
        }
    }

    /// One that says no limit requests nothing: it is ephemeral, which does not count for the class.
    fn guaranteed(container: &ContainerView) -> Option<Self> {
        match container.requested.memory_limit {
            Some(MemoryLimit::Bytes(bytes)) => Some(Self {
                request: bytes,
                limit: Some(bytes),
            }),
            Some(MemoryLimit::Unlimited) => Some(Self::NOTHING),
            None => container.heard.then_some(Self::NOTHING),
        }
    }

    /// One that its pod does not name is there for a look at the others, and requests nothing.
    fn burstable(spec: &PodSpec, container: &ContainerView) -> Self {
        let own = spec.container(&container.name);
        own.map_or(Self::NOTHING, |own| Self {
            request: own.requests.memory.unwrap_or_default(),
            limit: own.limits.memory.filter(|limit| *limit > 0),
        })
    }

    /// What the containers of a pod ask for that count for it: not those that are there for a look at
    /// the others, which would leave it without a limit. Unknown before the first of them is there.
    fn together(amounts: impl Iterator<Item = Option<Self>>) -> Option<Self> {
        let together = amounts.reduce(|one, other| Some(one?.and(other?)));
        together.flatten()
    }

    /// Both together: one without a limit makes the whole one without.
    fn and(self, other: Self) -> Self {
        let limits = self.limit.zip(other.limit);
        Self {
            request: self.request.saturating_add(other.request),
            limit: limits.map(|(one, other)| one.saturating_add(other)),
        }
    }

    /// `memory.min` and `memory.low`.
    fn kept(self, qos: &MemoryQos) -> (u64, u64) {
        let min = qos.min_limit_percent.unwrap_or_default().of(self.request);
        let low = qos.low_limit_percent.unwrap_or_default().of(self.request);
        (min, if low > 0 { low.max(min) } else { 0 })
    }

    /// `memory.pagecache_limit.size`. Bytes go before percent.
    fn page_cache(self, qos: &MemoryQos) -> Option<PageCacheSize> {
        match (qos.page_cache_limit_size, self.limit) {
            (Some(size), None) => Some(size),
            (Some(size), Some(limit)) => Some(size.min(PageCacheSize::of_bytes(limit))),
            (None, limit) => {
                let part = qos.page_cache_limit_percent?.of(limit?);
                Some(PageCacheSize::of_bytes(part))
            }
        }
    }

    /// `memory.high`. A container without a limit is limited by what pods may have.
    fn high(self, qos: &MemoryQos, min: u64, node: &NodeView) -> Option<u64> {
        let percent = qos
            .throttling_percent
            .filter(|percent| !percent.is_zero())?;
        let allocatable = || node.policy.node.as_ref()?.allocatable_memory;
        let most = self.limit.or_else(allocatable)?;
        let way = percent.of(most.saturating_sub(self.request));
        let high = self.request.saturating_add(way);
        Some(high.max(min).max(MIN_MEMORY_BYTES))
    }
}

impl From<&ExtendedContainer> for Amount {
    fn from(container: &ExtendedContainer) -> Self {
        Self {
            request: container.requests.memory.unwrap_or_default(),
            limit: container.limits.memory.filter(|limit| *limit > 0),
        }
    }
}

#[cfg(test)]
mod tests;

//! Best-effort pods get what they have of the node's batch resources.
//!
//! Kubernetes knows nothing of `batch-cpu` and `batch-memory`, so the kubelet makes such a pod
//! without weight and without limits. The pod's annotation says what its containers were given, and
//! where it has none its source does, if there is one.
//!
//! Where this differs from Koordinator v1.8:
//! - a list of no containers decides nothing, where upstream limits the pod to no memory at all;
//! - a container that the list leaves out is left alone, where upstream takes it for one without
//!   limits; it may be a sidecar with limits of its own. Only its quota may not be above that of
//!   the pod, which would not let it run for longer, and on cgroup v1 the kernel would refuse it
//!   and the container not start;
//! - a memory limit that no container could start with is an error of the hook: the runtime would
//!   refuse to start it;
//! - a quota that normalisation has brought below 1,000 µs is raised to it: the kernel takes no
//!   less.

use crate::{
    adjustment::Adjustment,
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, MIN_MEMORY_BYTES, Maturity},
    view::{ContainerKind, NodeView, Requested, Stage, View},
};
use koord_model::{CpuPeriod, CpuQuota, MemoryLimit, MilliCpu, QosClass, Setting};
use koord_proto::{
    annotation::ExtendedContainer,
    keys::{annotation, label},
    policy::CpuSuppressPolicy,
};
use std::collections::BTreeMap;

pub(super) const META: HookMeta = HookMeta {
    name: "BatchResource",
    gate: "BatchResource",
    default_on: true,
    maturity: Maturity::Beta,
    options: &[],
    stages: &[Stage::Pod, Stage::Container],
    fail_policy: FailPolicy::Open,
    doc: "weighs and limits BE pods and their containers by their batch resources",
    inputs: Inputs {
        labels: &[label::QOS_CLASS],
        annotations: &[annotation::EXTENDED_RESOURCE_SPEC],
    },
    settings: &[
        Setting::CpuShares,
        Setting::CpuQuota,
        Setting::MemoryLimit,
    ],
};

pub(super) struct BatchResource;

/// The longest name of a container that Kubernetes takes: an annotation may say anything.
const MAX_NAME: usize = 63;

/// What a pod or a container was given; `None` is no limit.
struct Given {
    cpu_request: MilliCpu,
    cpu_limit: Option<MilliCpu>,
    /// Bytes.
    memory_limit: Option<u64>,
}

// === impl BatchResource ===

impl Hook for BatchResource {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        if view.qos() != Some(QosClass::Be) {
            return Ok(Adjustment::default());
        }
        let Some(spec) = view.pod.batch_resources()? else {
            return Ok(Adjustment::default());
        };
        let none = BTreeMap::new();
        let containers = spec.containers.as_ref().unwrap_or(&none);
        can_start(containers)?;
        let together = || containers.values().map(Given::from).reduce(Given::and);
        let adjustment = match view.container {
            None => together().map(|given| given.on(view.node)),
            Some(container) => match (container.kind, containers.get(&container.name)) {
                (ContainerKind::Sandbox, _) => None,
                (ContainerKind::Regular, Some(own)) => Some(Given::from(own).on(view.node)),
                (ContainerKind::Regular, None) => {
                    together().map(|pod| within(pod.quota(view.node), &container.requested))
                }
            },
        };
        Ok(adjustment.unwrap_or_default())
    }
}

// === impl Given ===

impl From<&ExtendedContainer> for Given {
    fn from(container: &ExtendedContainer) -> Self {
        let ExtendedContainer { requests, limits } = container;
        Self {
            cpu_request: requests.batch_cpu.unwrap_or_default(),
            cpu_limit: limits.batch_cpu.filter(|limit| limit.0 > 0),
            memory_limit: limits.batch_memory.filter(|limit| *limit > 0),
        }
    }
}

impl Given {
    /// Both together: one without a limit makes the whole one without.
    fn and(self, other: Self) -> Self {
        let sum = |a: MilliCpu, b: MilliCpu| MilliCpu(a.0.saturating_add(b.0));
        Self {
            cpu_request: sum(self.cpu_request, other.cpu_request),
            cpu_limit: self.cpu_limit.zip(other.cpu_limit).map(|(a, b)| sum(a, b)),
            memory_limit: self
                .memory_limit
                .zip(other.memory_limit)
                .map(|(a, b)| a.saturating_add(b)),
        }
    }

    fn on(&self, node: &NodeView) -> Adjustment {
        let bytes = self.memory_limit.and_then(|bytes| i64::try_from(bytes).ok());
        Adjustment {
            cpu_shares: Some(self.cpu_request.shares()),
            cpu_quota: Some(self.quota(node)),
            memory_limit: Some(bytes.map_or(MemoryLimit::Unlimited, MemoryLimit::from_bytes)),
            ..Adjustment::default()
        }
    }

    fn quota(&self, node: &NodeView) -> CpuQuota {
        let Some(limit) = self.cpu_limit.filter(|_| !tier_owns_quota(node)) else {
            return CpuQuota::Unlimited;
        };
        match (limit.quota(), node.policy.cpu_normalization_ratio()) {
            (CpuQuota::Micros(micros), Some(ratio)) => {
                CpuQuota::Micros(ratio.scale_down(micros).max(CpuQuota::MIN_MICROS))
            }
            (quota, _) => quota,
        }
    }
}

/// Whether every container has the memory that it takes to start one.
fn can_start(containers: &BTreeMap<String, ExtendedContainer>) -> Result<(), HookError> {
    for (name, container) in containers {
        match Given::from(container).memory_limit {
            Some(limit_bytes) if limit_bytes < MIN_MEMORY_BYTES => {
                return Err(HookError::TooLittleMemory {
                    key: annotation::EXTENDED_RESOURCE_SPEC,
                    container: name.chars().take(MAX_NAME).collect(),
                    limit_bytes,
                });
            }
            _ => {}
        }
    }
    Ok(())
}

/// What keeps a container that asked for a larger share of a CPU than its pod has within the pod.
fn within(pod: CpuQuota, requested: &Requested) -> Adjustment {
    let (CpuQuota::Micros(most), Some(CpuQuota::Micros(asked))) = (pod, requested.cpu_quota) else {
        return Adjustment::default();
    };
    let period = |period: CpuPeriod| u128::from(period.micros());
    let own = period(requested.cpu_period.unwrap_or(CpuPeriod::DEFAULT));
    let over = u128::from(asked) * period(CpuPeriod::DEFAULT) > u128::from(most) * own;
    Adjustment {
        cpu_quota: over.then_some(pod),
        ..Adjustment::default()
    }
}

/// Whether koordlet holds best-effort pods down by the quota of their tier: with quotas of their
/// own below it, the kernel would refuse it to lower that one.
fn tier_owns_quota(node: &NodeView) -> bool {
    node.policy.slo.as_ref().is_some_and(|slo| {
        let threshold = slo.resource_used_threshold_with_be;
        threshold.enable && threshold.cpu_suppress_policy == CpuSuppressPolicy::CfsQuota
    })
}

#[cfg(test)]
mod tests;

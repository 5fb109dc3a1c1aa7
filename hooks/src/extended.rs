//! Amounts of resources that Kubernetes does not know, as weights and limits: what batch and mid
//! resources have in common.

use crate::{
    adjustment::Adjustment,
    hook::{HookError, MIN_MEMORY_BYTES},
    view::{ContainerKind, NodeView, Requested, View},
};
use koord_model::{CpuPeriod, CpuQuota, MemoryLimit, MilliCpu};
use koord_proto::{
    annotation::{ExtendedContainer, ExtendedResourceSpec},
    policy::CpuSuppressPolicy,
};
use std::collections::BTreeMap;

/// The longest name of a container that Kubernetes takes: an annotation may say anything.
const MAX_NAME: usize = 63;

/// What a pod or a container was given; `None` is no limit.
struct Given {
    cpu_request: MilliCpu,
    cpu_limit: Option<MilliCpu>,
    /// Bytes.
    memory_limit: Option<u64>,
}

/// What the pod or the container of this view has by `spec`, which `key` said.
pub(crate) fn decide(
    view: &View<'_>,
    spec: &ExtendedResourceSpec,
    key: &'static str,
) -> Result<Adjustment, HookError> {
    let none = BTreeMap::new();
    let containers = spec.containers.as_ref().unwrap_or(&none);
    // One that could not start costs the others nothing of theirs.
    let own = view.container.map(|container| &container.name);
    can_start(
        containers
            .iter()
            .filter(|(name, _)| own.is_none_or(|own| own == *name)),
        key,
    )?;
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

// === impl Given ===

impl From<&ExtendedContainer> for Given {
    fn from(container: &ExtendedContainer) -> Self {
        let ExtendedContainer { requests, limits } = container;
        Self {
            cpu_request: requests.cpu.unwrap_or_default(),
            cpu_limit: limits.cpu.filter(|limit| limit.0 > 0),
            memory_limit: limits.memory.filter(|limit| *limit > 0),
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
        let bytes = self
            .memory_limit
            .and_then(|bytes| i64::try_from(bytes).ok());
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

/// Whether each of these has the memory that it takes to start one.
fn can_start<'a>(
    containers: impl Iterator<Item = (&'a String, &'a ExtendedContainer)>,
    key: &'static str,
) -> Result<(), HookError> {
    for (name, container) in containers {
        match Given::from(container).memory_limit {
            Some(limit_bytes) if limit_bytes < MIN_MEMORY_BYTES => {
                return Err(HookError::TooLittleMemory {
                    key,
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
    let own = period(requested.period());
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

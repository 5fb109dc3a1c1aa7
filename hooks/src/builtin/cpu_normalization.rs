//! A CPU limit buys the same work on every node, however fast its CPUs are.
//!
//! The Node says how much faster one of its CPUs is than that of the cluster's slowest model, and a
//! quota is divided by that ratio. It is always that of the quota that was asked for, so that a
//! second update does not scale it a second time. Pods with batch or mid resources are scaled by the
//! hooks that limit them ([`super::batch_resource`], [`super::mid_resource`]).
//!
//! Where this differs from Koordinator v1.8:
//! - a pod's own directory keeps the quota that the kubelet gives it: its containers, each scaled,
//!   cannot use more together, but for ephemeral ones, which have no limits;
//! - a quota is never scaled below 1,000 µs, the least that the kernel takes;
//! - when the ratio goes, the quotas come back that were asked for; upstream leaves them.

use crate::{
    adjustment::Adjustment,
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity},
    view::{NodeView, Stage, View},
};
use koord_model::{CpuQuota, QosClass, Setting};
use koord_proto::keys::{annotation, label};

pub(super) const META: HookMeta = HookMeta {
    name: "CPUNormalization",
    gate: "CPUNormalization",
    default_on: false,
    maturity: Maturity::Alpha,
    options: &[],
    stages: &[Stage::Container],
    fail_policy: FailPolicy::Open,
    doc: "divides the quotas of LS pods and of those without a class by the speed of the node's CPUs",
    inputs: Inputs {
        labels: &[label::QOS_CLASS],
        annotations: &[annotation::RESOURCE_STATUS],
    },
    settings: &[Setting::CpuQuota],
};

pub(super) struct CpuNormalization;

impl Hook for CpuNormalization {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        if !matches!(view.qos(), Some(QosClass::Ls) | None) {
            return Ok(Adjustment::default());
        }
        let status = view.pod.resource_status()?;
        if view.earlier.get(Setting::CpuQuota).is_some() {
            // By mid resources, whose quota is scaled as that of batch resources is.
            return Ok(Adjustment::default());
        }
        let has_own_cpus = status.is_some_and(|status| status.cpuset.is_some());
        let asked = view.container.and_then(|it| {
            let period = it.requested.period();
            Some(it.requested.cpu_quota?.of_period(period))
        });
        let (false, Some(CpuQuota::Micros(asked))) = (has_own_cpus, asked) else {
            return Ok(Adjustment::default());
        };
        let ratio = view.node.policy.cpu_normalization_ratio();
        let ratio = ratio.filter(|ratio| ratio.is_above_one());
        // In a period longer than 100 ms less than the least for 100 ms may be asked for.
        let least = asked.min(CpuQuota::MIN_MICROS);
        let scaled = ratio.map(|ratio| ratio.scale_down(asked).max(least));
        Ok(Adjustment {
            cpu_quota: scaled.map(CpuQuota::Micros),
            ..Adjustment::default()
        })
    }

    fn unsupported(&self, node: &NodeView) -> Option<&'static str> {
        match node.policy.cpu_normalization_ratio() {
            Some(_) => None,
            None => Some("no Node with a normalization ratio is known"),
        }
    }
}

#[cfg(test)]
mod tests;

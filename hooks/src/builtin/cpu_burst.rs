//! Containers save up CPU time in quiet periods and use it beyond their quota in a busy one.
//!
//! What one may save up is a part of the quota that is in force for it, after all other hooks, and
//! never more than all of it: the kernel refuses more. A pod's own directory, which limits its
//! containers together, may save up what they may. The policy of the node says how much, the pod's
//! annotation overrides it field by field. While neither asks for it nothing is decided, and what
//! was there before comes back. Nor is anything decided about a container whose quota is unknown, or
//! about the pod that it is in. (Raising the quota itself while a node is quiet is not decided at
//! creation, but by whoever measures.)
//!
//! Where this differs from Koordinator v1.8:
//! - the burst is bounded by the quota, so the default of 1,000 percent of the limit is one that
//!   the kernel takes;
//! - nothing is written where the policy asks for nothing: upstream writes 0 every second;
//! - a broken annotation is an error of the hook, and the pod has no burst; upstream takes the
//!   policy of the node.

use crate::{
    adjustment::Adjustment,
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity},
    view::{ContainerView, NodeView, PodView, Stage, View, newest},
};
use koord_model::{CpuBurst, CpuQuota, QosClass, Setting, Value};
use koord_proto::{
    annotation,
    keys::{annotation::CPU_BURST, label},
};

pub(super) const META: HookMeta = HookMeta {
    name: "CPUBurst",
    gate: "CPUBurst",
    default_on: true,
    maturity: Maturity::Beta,
    options: &[],
    stages: &[Stage::Pod, Stage::Container],
    fail_policy: FailPolicy::Open,
    doc: "lets the containers of LS and SYSTEM pods and of those without a class save up CPU time for bursts",
    inputs: Inputs {
        labels: &[label::QOS_CLASS],
        annotations: &[CPU_BURST],
    },
    settings: &[Setting::CpuBurst],
};

pub(super) struct CpuBurstHook;

impl Hook for CpuBurstHook {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        if saves_up_nothing(view.pod) {
            return Ok(Adjustment::default());
        }
        let own = view.pod.cpu_burst()?;
        let Some(percent) = percent(view.node, own.as_deref().copied().unwrap_or_default()) else {
            return Ok(Adjustment::default());
        };
        let burst = match view.container {
            Some(container) => {
                quota_in_force(view, container).map(|quota| CpuBurst::of_quota(quota, percent))
            }
            None => together(view.containers, percent),
        };
        Ok(Adjustment {
            cpu_burst: burst,
            ..Adjustment::default()
        })
    }

    fn reads_requested(&self, pod: &PodView, node: &NodeView) -> bool {
        let own = pod.cpu_burst();
        let own = own.map(|own| own.as_deref().copied().unwrap_or_default());
        !saves_up_nothing(pod) && own.is_ok_and(|own| percent(node, own).is_some())
    }

    fn unsupported(&self, node: &NodeView) -> Option<&'static str> {
        (!node.kernel.cpu_burst).then_some("the kernel has no cpu.cfs_burst_us")
    }
}

/// Whether the pod is of a class that has CPUs of its own, or what others leave.
fn saves_up_nothing(pod: &PodView) -> bool {
    let none = [QosClass::Lse, QosClass::Lsr, QosClass::Be];
    pod.qos().is_some_and(|class| none.contains(&class))
}

/// How much of its quota a container may save up; `None` if nobody asks for any.
fn percent(node: &NodeView, own: annotation::CpuBurst) -> Option<u32> {
    let slo = node.policy.slo.as_ref();
    let strategy = slo.map(|slo| slo.cpu_burst_strategy).unwrap_or_default();
    let wanted = own.policy.unwrap_or(strategy.policy).saves_up();
    let percent = own.percent.unwrap_or(strategy.percent);
    (wanted && node.kernel.cpu_burst).then_some(percent.get())
}

/// The quota of a container: that which another hook has decided, or that which was asked for, or if nobody
/// knows that any more that which it has; `None` if all are unknown.
fn quota_in_force(view: &View<'_>, container: &ContainerView) -> Option<CpuQuota> {
    match view.earlier.get(Setting::CpuQuota) {
        Some((Value::CpuQuota(quota), _)) => Some(*quota),
        _ => asked(container),
    }
}

fn asked(container: &ContainerView) -> Option<CpuQuota> {
    let period = container.requested.period();
    let said = container.requested.cpu_quota;
    let quota = said.or(container.heard.then_some(CpuQuota::Unlimited));
    let asked = quota.map(|quota| quota.of_period(period));
    asked.or(container.found_quota)
}

/// What the containers of a pod may save up together; nothing is said while there is none, or while
/// one of them may save up nobody knows how much.
fn together(containers: &[&ContainerView], percent: u32) -> Option<CpuBurst> {
    let bursts = newest(containers).map(|it| Some(CpuBurst::of_quota(asked(it)?, percent)));
    bursts.reduce(|one, other| Some(one?.and(other?))).flatten()
}

#[cfg(test)]
mod tests;

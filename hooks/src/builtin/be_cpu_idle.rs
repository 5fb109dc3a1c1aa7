//! Best-effort pods run only where nobody else wants to, on kernels without group identity.
//!
//! `cpu.idle` is mainline's nearest thing to a low group identity. Koordinator has it for whole
//! tiers only (`schedIdle`), where it stops the kubelet from starting: the kubelet writes the
//! shares of the tier, and the kernel refuses them while the group is idle. On a container it
//! breaks every update for the same reason. So it goes to pod directories, and `schedIdle` is not
//! read.
//!
//! The gate is our own. With a policy it follows the switches of group identity, whose place it
//! takes; without one the gate alone decides.

use crate::{
    adjustment::Adjustment,
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity},
    view::{Abilities, NodeView, Stage, View},
};
use koord_model::{QosClass, Setting};
use koord_proto::{keys::label, policy::CpuPolicy};

pub(super) const META: HookMeta = HookMeta {
    name: "BECPUIdle",
    gate: "BECPUIdle",
    default_on: false,
    maturity: Maturity::Own,
    stages: &[Stage::Pod],
    fail_policy: FailPolicy::Open,
    doc: "makes BE pods idle-priority where the kernel has no group identity",
    inputs: Inputs {
        labels: &[label::QOS_CLASS],
        annotations: &[],
    },
    settings: &[Setting::CpuIdle],
};

pub(super) struct BeCpuIdle;

// === impl BeCpuIdle ===

impl Hook for BeCpuIdle {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        let supported = self.unsupported(&view.node.kernel).is_none();
        let idle = supported && view.qos() == Some(QosClass::Be) && wanted(view.node);
        Ok(Adjustment {
            cpu_idle: idle.then_some(true),
            ..Adjustment::default()
        })
    }

    fn unsupported(&self, kernel: &Abilities) -> Option<&'static str> {
        if kernel.bvt {
            return Some("the kernel has cpu.bvt_warp_ns, which GroupIdentity sets");
        }
        (!kernel.cpu_idle).then_some("the kernel has no cpu.idle")
    }
}

fn wanted(node: &NodeView) -> bool {
    node.policy.slo.as_ref().is_none_or(|slo| {
        let strategy = &slo.resource_qos_strategy;
        strategy.cpu_policy == CpuPolicy::GroupIdentity && strategy.be_class.cpu_qos.enable
    })
}

#[cfg(test)]
mod tests;

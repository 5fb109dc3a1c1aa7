//! Latency-sensitive pods run before best-effort ones, where the kernel knows group identity.
//!
//! The kernel of Anolis and Alibaba Cloud ranks cgroups by `cpu.bvt_warp_ns`: −1 yields to
//! everybody, 2 goes first. The policy of the node gives each class its rank, 0 to all without a
//! policy; tiers and pods are ranked here, containers inherit.
//!
//! On other kernels, behind the gate `BECPUIdle`, which is our own, best-effort pods are idle instead
//! (`cpu.idle`): they run when nobody else wants to. This follows the policy's switches for ranking
//! `BE`; without a policy the gate alone decides. Koordinator has idleness for whole tiers only
//! (`schedIdle`, not obeyed here), where it stops the kubelet from starting: the kernel refuses the
//! shares that the kubelet writes to an idle tier. On a container it breaks every update for the
//! same reason. So it goes to pod directories, but not while the kubelet fails to resize the pod in
//! place.
//!
//! A kernel that has a switch for group identity ranks nobody while that is off, and one for core
//! scheduling has to be off then. So where the policy ranks a class, the switches are brought to that
//! (`sched_switch`), and given back when it does no more.
//!
//! A pod of class `SYSTEM` ranks by its tier, as one without a class: so does upstream, and a
//! cluster may mix the two.
//!
//! Where this differs from Koordinator v1.8:
//! - the annotation is read for pods of class `LS` only, for which alone it counts; upstream fails
//!   on a broken one for every pod;
//! - the annotation counts at every decision; upstream forgets it whenever the policy changes,
//!   until its next round.

use crate::{
    adjustment::{Adjustment, NodeAdjustment},
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity, OptionGate},
    view::{HookOptions, NodeView, Stage, View},
};
use koord_model::{Bvt, KubeQos, QosClass, SchedSwitch, Setting};
use koord_proto::{
    annotation::CpuQos,
    keys::{annotation, label},
    policy::{CpuPolicy, ResourceQosStrategy},
};

pub(super) const META: HookMeta = HookMeta {
    name: "GroupIdentity",
    gate: "GroupIdentity",
    default_on: true,
    maturity: Maturity::Beta,
    options: &[OptionGate {
        gate: HookOptions::BE_CPU_IDLE,
        maturity: Maturity::Own,
        doc: "where the kernel has no group identity, BE pods are idle",
    }],
    stages: &[Stage::Node, Stage::Pod],
    fail_policy: FailPolicy::Open,
    doc: "ranks tiers, pods and host applications by their class",
    inputs: Inputs {
        labels: &[label::QOS_CLASS],
        annotations: &[annotation::CPU_QOS],
    },
    settings: &[Setting::CpuBvt, Setting::CpuIdle, Setting::SchedSwitch],
};

pub(super) struct GroupIdentity;

/// The rank of each class by the policy of the node.
struct Ranks {
    classes: ResourceQosStrategy,
}

// === impl GroupIdentity ===

impl Hook for GroupIdentity {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        let qos = view.qos();
        // Read on every kernel, so that a broken annotation is not found out only on the first
        // node that would obey it.
        let own = match view.pod.annotations.get(annotation::CPU_QOS) {
            Some(text) if qos == Some(QosClass::Ls) => Some(CpuQos::parse(text)?),
            _ => None,
        };
        if !view.node.kernel.bvt {
            let idle = qos == Some(QosClass::Be) && be_is_idle(view.node) && view.pod.may_idle();
            return Ok(Adjustment {
                cpu_idle: idle.then_some(true),
                ..Adjustment::default()
            });
        }
        let ranks = Ranks::of(view.node);
        let rank = match own {
            Some(own) if in_charge(view.node) => ranks.of_pod_with(&own),
            _ => ranks.of_pod(qos, view.pod.kube_qos),
        };
        Ok(ranked(rank))
    }

    fn decide_node(&self, node: &NodeView) -> Result<NodeAdjustment, HookError> {
        let mut adjustment = NodeAdjustment::default();
        if !node.kernel.bvt {
            return Ok(adjustment);
        }
        let ranks = Ranks::of(node);
        let switches = node.kernel.files.contains(&Setting::SchedSwitch);
        let is_needed = switches && ranks.classes.has_enabled();
        adjustment.root.sched_switch = is_needed.then_some(SchedSwitch::GroupIdentity);
        for tier in KubeQos::ALL {
            let rank = ranks.of_tier(*tier);
            adjustment.tiers.insert(*tier, ranked(rank));
        }
        for application in node.host_applications() {
            let rank = ranks.of_host_application(application.qos);
            let path = node.host_application_path(application)?;
            adjustment.host_applications.insert(path, ranked(rank));
        }
        Ok(adjustment)
    }

    fn unsupported(&self, node: &NodeView) -> Option<&'static str> {
        match (node.kernel.bvt, node.kernel.cpu_idle) {
            (true, _) => None,
            (false, true) if node.options.be_cpu_idle => None,
            (false, true) => Some("the kernel has no cpu.bvt_warp_ns, and BECPUIdle is off"),
            (false, false) => Some("the kernel has neither cpu.bvt_warp_ns nor cpu.idle"),
        }
    }
}

/// Whether the policy leaves ranking to group identity. Together with core scheduling, its
/// alternative, it can lock up a machine.
fn in_charge(node: &NodeView) -> bool {
    let slo = node.policy.slo.as_ref();
    slo.is_none_or(|slo| slo.resource_qos_strategy.cpu_policy == CpuPolicy::GroupIdentity)
}

/// Whether idleness stands in for the rank of class `BE`.
fn be_is_idle(node: &NodeView) -> bool {
    let slo = node.policy.slo.as_ref();
    let ranked = slo.is_none_or(|slo| slo.resource_qos_strategy.be_class.cpu_qos.enable);
    node.kernel.cpu_idle && node.options.be_cpu_idle && ranked && in_charge(node)
}

fn ranked(rank: Bvt) -> Adjustment {
    Adjustment {
        cpu_bvt: Some(rank),
        ..Adjustment::default()
    }
}

// === impl Ranks ===

impl Ranks {
    /// Without a policy, or where it is not group identity's, every class ranks 0.
    fn of(node: &NodeView) -> Self {
        let slo = node.policy.slo.as_ref().filter(|_| in_charge(node));
        Self {
            classes: slo.map_or_else(Default::default, |slo| slo.resource_qos_strategy),
        }
    }

    fn of_class(&self, qos: QosClass) -> Bvt {
        self.classes.class(qos).cpu_qos.group_identity
    }

    fn of_tier(&self, tier: KubeQos) -> Bvt {
        match tier {
            // The root of all pods.
            KubeQos::Guaranteed => Bvt::default(),
            KubeQos::Burstable => self.of_class(QosClass::Ls),
            KubeQos::BestEffort => self.of_class(QosClass::Be),
        }
    }

    fn of_pod(&self, qos: Option<QosClass>, tier: KubeQos) -> Bvt {
        match (qos, tier) {
            (Some(qos), _) if qos != QosClass::System => self.of_class(qos),
            (_, KubeQos::Guaranteed) if self.classes.lsr_class.cpu_qos.enable => {
                self.of_class(QosClass::Lsr)
            }
            (_, KubeQos::Guaranteed) => self.of_class(QosClass::Ls),
            (_, tier) => self.of_tier(tier),
        }
    }

    /// The rank of a pod of class `LS` that has a say of its own.
    fn of_pod_with(&self, own: &CpuQos) -> Bvt {
        match own.enable {
            Some(true) => own
                .group_identity
                .unwrap_or_else(|| self.of_class(QosClass::Ls)),
            _ => Bvt::default(),
        }
    }

    fn of_host_application(&self, qos: Option<QosClass>) -> Bvt {
        match qos {
            Some(QosClass::System) | None => Bvt::default(),
            Some(qos) => self.of_class(qos),
        }
    }
}

#[cfg(test)]
mod tests;

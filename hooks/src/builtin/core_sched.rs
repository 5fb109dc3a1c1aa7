//! Pods share a core with pods of their own group only, where the policy chooses core scheduling.
//!
//! The group of a pod is its label, and an absent label is the group without a name. A class that
//! expels others makes a group of its own of those of its pods that name the same. Pods of a class
//! that the policy does not enable, of class `SYSTEM`, and those that ask for it by their own policy
//! are in no group. Idleness (`schedIdle`) goes to pod directories: on a tier it stops the kubelet
//! from starting, on a container it breaks every update. Nor is a pod idle while the kubelet fails to
//! resize it in place.
//!
//! Where this differs from Koordinator v1.8:
//! - containers have their group from their first instruction on; upstream's come into it with its
//!   next round;
//! - a group of a pod alone, one with a name that ends in `-expeller` and one of expellers are never
//!   the same, whatever they are called;
//! - `schedIdle` is obeyed for pods, by their class; upstream's is for whole tiers;
//! - where group identity cannot be switched off it does nothing: the two together can lock up a
//!   machine. Where it can, the kernel's switches are brought to that first (`sched_switch`), as
//!   upstream does, and are given back, which upstream does not. Where these are left to others
//!   nobody is brought into a group there.

use crate::{
    adjustment::{Adjustment, NodeAdjustment},
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity},
    view::{NodeView, Stage, View},
};
use koord_model::{CoreGroup, KubeQos, QosClass, SchedSwitch, Setting};
use koord_proto::{
    keys::label,
    policy::{ClassCpuQos, CpuPolicy, ResourceQosStrategy},
};

pub(super) const META: HookMeta = HookMeta {
    name: "CoreSched",
    gate: "CoreSched",
    default_on: false,
    maturity: Maturity::Alpha,
    options: &[],
    stages: &[Stage::Node, Stage::Pod, Stage::Container],
    fail_policy: FailPolicy::Open,
    doc: "keeps pods of different groups from sharing a core",
    inputs: Inputs {
        labels: &[
            label::QOS_CLASS,
            label::CORE_SCHED_GROUP_ID,
            label::CORE_SCHED_POLICY,
        ],
        annotations: &[],
    },
    settings: &[Setting::CpuIdle, Setting::CoreSched, Setting::SchedSwitch],
};

pub(super) struct CoreSched;

// === impl CoreSched ===

impl Hook for CoreSched {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        let class = strategy(view.node).map(|strategy| class_of(strategy, view));
        let Some(class) = class.filter(|class| class.enable) else {
            return Ok(Adjustment::default());
        };
        let kernel = &view.node.kernel;
        let idle = class.sched_idle && kernel.cpu_idle && view.pod.may_idle();
        Ok(match view.stage {
            Stage::Pod => Adjustment {
                cpu_idle: idle.then_some(true),
                ..Adjustment::default()
            },
            Stage::Container | Stage::Node => Adjustment {
                core_sched: group(view, class).filter(|_| kernel.core_sched),
                ..Adjustment::default()
            },
        })
    }

    fn decide_node(&self, node: &NodeView) -> Result<NodeAdjustment, HookError> {
        let kernel = &node.kernel;
        let switches = kernel.core_sched && kernel.files.contains(&Setting::SchedSwitch);
        let is_needed = switches && strategy(node).is_some_and(ResourceQosStrategy::has_enabled);
        let mut adjustment = NodeAdjustment::default();
        adjustment.root.sched_switch = is_needed.then_some(SchedSwitch::CoreSched);
        Ok(adjustment)
    }

    fn unsupported(&self, node: &NodeView) -> Option<&'static str> {
        match (excludes(node), node.kernel.core_sched) {
            (true, _) => Some("the kernel has group identity, which does not go with it"),
            (false, true) => None,
            (false, false) => {
                Some("the kernel has no core scheduling, or no core runs two threads")
            }
        }
    }
}

/// The classes, where the policy leaves them to core scheduling.
fn strategy(node: &NodeView) -> Option<&ResourceQosStrategy> {
    let strategy = &node.policy.slo.as_ref()?.resource_qos_strategy;
    let in_charge = strategy.cpu_policy == CpuPolicy::CoreSched && !excludes(node);
    in_charge.then_some(strategy)
}

/// Whether the kernel ranks groups, and nobody can have it stop.
fn excludes(node: &NodeView) -> bool {
    node.kernel.bvt && !node.kernel.identity_switch
}

/// How the class of a pod is treated; of one without a class its tier says.
fn class_of(strategy: &ResourceQosStrategy, view: &View<'_>) -> ClassCpuQos {
    let class = match (view.qos(), view.pod.kube_qos) {
        (Some(QosClass::System), _) => return ClassCpuQos::default(),
        (Some(qos), _) => qos,
        (None, KubeQos::Guaranteed) if strategy.lsr_class.cpu_qos.enable => QosClass::Lsr,
        (None, KubeQos::Guaranteed | KubeQos::Burstable) => QosClass::Ls,
        (None, KubeQos::BestEffort) => QosClass::Be,
    };
    strategy.class(class).cpu_qos
}

/// The group that the labels of a pod ask for, as its class has it.
fn group(view: &View<'_>, class: ClassCpuQos) -> Option<CoreGroup> {
    let labels = &view.pod.labels;
    match labels.get(label::CORE_SCHED_POLICY) {
        Some("none") => None,
        Some("exclusive") => Some(CoreGroup::Exclusive(view.pod.uid.clone())),
        // What Koordinator does with a policy that it does not know.
        _ => Some(CoreGroup::Shared {
            id: labels
                .get(label::CORE_SCHED_GROUP_ID)
                .unwrap_or_default()
                .into(),
            expeller: class.core_expeller,
        }),
    }
}

#[cfg(test)]
mod tests;

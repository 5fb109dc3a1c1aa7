//! The pods of a class share a part of the last-level cache and of the bandwidth to memory.
//!
//! The policy says which part, and of which classes: `LSE` shares with `LSR`, and `SYSTEM` is left
//! alone. A pod without a class is in that of its tier.
//!
//! Counters of what a group uses are not as few as classes are. So behind the gate `ResctrlMonitor`,
//! which is our own, each pod has some within the group of its class: what it alone uses can be read
//! in its monitoring group, and costs no class.
//!
//! Where this differs from Koordinator v1.8:
//! - a container is in its group from its first instruction on, and nothing is written again that is
//!   as it should be; upstream moves threads and writes shares every second;
//! - a group is there while a pod is in it; upstream takes three of the processor's few classes
//!   whether any is enabled or not;
//! - a part that is narrower than one way of the cache is that way; upstream writes an empty mask,
//!   which the kernel refuses;
//! - a processor that can share out the cache or the bandwidth alone has that shared out, also with
//!   code and data apart;
//! - a pod whose own annotation nobody heeds is in the group of its class.

use crate::{
    adjustment::Adjustment,
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity, OptionGate},
    view::{HookOptions, NodeView, Stage, View},
};
use koord_model::{
    CacheClass, CacheClasses, CacheGroup, CacheShares, ClassGroup, PerCache, QosClass, Setting,
};
use koord_proto::{keys::label, policy::ClassResctrlQos};
use std::sync::Arc;

pub(super) const META: HookMeta = HookMeta {
    name: "RdtResctrl",
    gate: "RdtResctrl",
    default_on: true,
    maturity: Maturity::Beta,
    options: &[OptionGate {
        gate: HookOptions::RESCTRL_MONITOR,
        maturity: Maturity::Own,
        doc: "each pod in the group of its class has a monitoring group of its own there",
    }],
    stages: &[Stage::Container],
    fail_policy: FailPolicy::Open,
    doc: "gives each class of pods a part of the cache and of the bandwidth to memory",
    inputs: Inputs {
        labels: &[label::QOS_CLASS],
        annotations: &[],
    },
    settings: &[Setting::Resctrl],
};

pub(super) struct RdtResctrl;

// === impl RdtResctrl ===

impl Hook for RdtResctrl {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        let class = class(view).filter(|_| view.node.kernel.resctrl);
        let group = class.and_then(|class| group(view, class));
        Ok(Adjustment {
            resctrl: group.map(CacheGroup::Class),
            ..Adjustment::default()
        })
    }

    fn unsupported(&self, node: &NodeView) -> Option<&'static str> {
        (!node.kernel.resctrl).then_some(UNSUPPORTED)
    }
}

pub(super) const UNSUPPORTED: &str =
    "the kernel has no resctrl, or the processor cannot share out its caches";

/// The class that a pod's threads share with.
fn class(view: &View<'_>) -> Option<CacheClass> {
    let class = view.qos();
    match class.unwrap_or_else(|| QosClass::of_tier(view.pod.kube_qos)) {
        QosClass::System => None,
        QosClass::Lse | QosClass::Lsr => Some(CacheClass::Lsr),
        QosClass::Ls => Some(CacheClass::Ls),
        QosClass::Be => Some(CacheClass::Be),
    }
}

/// The classes that the policy enables.
pub(super) fn enabled(node: &NodeView) -> CacheClasses {
    let is_enabled = |class: &CacheClass| strategy(node, *class).is_some();
    CacheClass::ALL.into_iter().filter(is_enabled).collect()
}

/// What the policy says of a class, if it enables it.
fn strategy(node: &NodeView, class: CacheClass) -> Option<ClassResctrlQos> {
    let strategy = &node.policy.slo.as_ref()?.resource_qos_strategy;
    let class = match class {
        CacheClass::Lsr => strategy.lsr_class.resctrl_qos,
        CacheClass::Ls => strategy.ls_class.resctrl_qos,
        CacheClass::Be => strategy.be_class.resctrl_qos,
    };
    Some(class).filter(|class| class.enable)
}

/// The group of a class, if the policy enables it.
fn group(view: &View<'_>, class: CacheClass) -> Option<ClassGroup> {
    let ClassResctrlQos {
        range, bandwidth, ..
    } = strategy(view.node, class)?;
    let is_monitored = view.node.options.resctrl_monitor;
    let shares = CacheShares {
        ranges: PerCache::all(range),
        bandwidth: PerCache::all(bandwidth),
    };
    Some(ClassGroup {
        class,
        shares: Arc::new(shares),
        monitored: is_monitored.then(|| view.pod.uid.clone()),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{
        container, decide_container, in_tier, node, node_with, pod, sandbox, shown,
    };
    use koord_model::{Bandwidth, CacheRange, KubeQos};
    use koord_proto::policy::{ClassQos, NodePolicy, NodeSloSpec, ResourceQosStrategy};

    fn shares(start: i64, end: i64, percent: i64) -> ClassQos {
        ClassQos {
            resctrl_qos: ClassResctrlQos {
                enable: true,
                range: CacheRange::new(start, end).unwrap(),
                bandwidth: Bandwidth::new(percent).unwrap(),
            },
            ..ClassQos::default()
        }
    }

    fn under(resource_qos_strategy: ResourceQosStrategy) -> NodeView {
        node_with(NodePolicy {
            slo: Some(NodeSloSpec {
                resource_qos_strategy,
                ..NodeSloSpec::default()
            }),
            ..NodePolicy::default()
        })
    }

    fn every_class() -> ResourceQosStrategy {
        ResourceQosStrategy {
            lsr_class: shares(0, 100, 100),
            ls_class: shares(20, 100, 90),
            be_class: shares(0, 30, 20),
            system_class: shares(0, 10, 10),
            ..ResourceQosStrategy::default()
        }
    }

    fn decided(class: &str, tier: KubeQos, node: &NodeView) -> String {
        let pod = in_tier(tier, pod(class, &[]));
        let [container, sandbox] = [container("main"), sandbox()]
            .map(|it| shown(&decide_container(&RdtResctrl, &pod, &it, node).unwrap()));
        assert_eq!(container, sandbox);
        container
    }

    const LSR: &str = "resctrl=LSR: cache 0-100%, bandwidth 100%";
    const LS: &str = "resctrl=LS: cache 20-100%, bandwidth 90%";
    const BE: &str = "resctrl=BE: cache 0-30%, bandwidth 20%";

    #[test]
    fn each_class_has_the_part_that_the_policy_gives_it() {
        let node = under(every_class());
        for (class, expected) in [
            ("LSE", LSR),
            ("LSR", LSR),
            ("LS", LS),
            ("BE", BE),
            ("SYSTEM", ""),
        ] {
            for tier in KubeQos::ALL {
                assert_eq!(decided(class, *tier, &node), expected, "{class}");
            }
        }
    }

    #[test]
    fn a_pod_without_a_class_is_in_that_of_its_tier() {
        let node = under(every_class());
        for class in ["", "Gold"] {
            assert_eq!(decided(class, KubeQos::Guaranteed, &node), LSR);
            assert_eq!(decided(class, KubeQos::Burstable, &node), LS);
            assert_eq!(decided(class, KubeQos::BestEffort, &node), BE);
        }
    }

    #[test]
    fn a_class_that_is_not_enabled_is_left_alone() {
        let node = under(ResourceQosStrategy {
            ls_class: ClassQos::default(),
            ..every_class()
        });
        assert_eq!(decided("LS", KubeQos::Burstable, &node), "");
        assert_eq!(decided("BE", KubeQos::BestEffort, &node), BE);
        assert!(enabled(&node).iter().eq([CacheClass::Lsr, CacheClass::Be]));
    }

    #[test]
    fn behind_the_gate_a_pod_is_monitored_within_the_group_of_its_class() {
        let mut node = under(every_class());
        node.options.resctrl_monitor = true;
        let be = "resctrl=BE: cache 0-30%, bandwidth 20%, monitored";
        assert_eq!(decided("BE", KubeQos::BestEffort, &node), be);
        assert_eq!(decided("SYSTEM", KubeQos::Burstable, &node), "");
        let decided = decide_container(&RdtResctrl, &pod("BE", &[]), &container("main"), &node);
        let Some(CacheGroup::Class(group)) = decided.unwrap().resctrl else {
            panic!("it is in the group of its class");
        };
        let monitor = "BE/mon_groups/koordlet-5f2b8a9e";
        assert_eq!(group.monitor().as_deref(), Some(monitor));
    }

    #[test]
    fn nothing_is_decided_without_a_policy_or_a_kernel_that_can() {
        assert_eq!(decided("LS", KubeQos::Burstable, &node()), "");
        let mut node = under(every_class());
        assert_eq!(RdtResctrl.unsupported(&node), None);
        node.kernel.resctrl = false;
        assert_eq!(decided("LS", KubeQos::Burstable, &node), "");
        let reason = RdtResctrl.unsupported(&node).unwrap();
        assert!(reason.contains("no resctrl"), "{reason}");
    }
}

//! The network of the node is shared out by Terway, a network plugin, as the policy says
//! (`netQOSPolicy: terway-qos`).
//!
//! The policy says what the classes have, the pod's label or else its tier whose packets go first,
//! and an annotation what a pod may receive and send. All this is told to the plugin in files.
//!
//! Where this differs from Koordinator v1.8:
//! - percent of the network are bytes in a second as amounts are; upstream tells bits for them, eight
//!   times as many;
//! - a pod whose annotation says one limit has that one and no other; upstream leaves out the whole
//!   pod;
//! - a limit of fewer than eight bits is one byte, because none is no limit;
//! - an amount above the whole network is an issue of the policy and counts as not said. Upstream
//!   compares bytes with bits, so eight times as much passes, and refuses what is more.

use crate::{
    adjustment::{Adjustment, NodeAdjustment},
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity},
    view::{NodeView, Stage, View},
};
use koord_model::{KubeQos, NetPriority, PodNetwork, QosClass, Setting};
use koord_proto::{
    annotation::NetworkLimits,
    keys::{annotation, label},
};
use std::sync::Arc;

pub(super) const META: HookMeta = HookMeta {
    name: "TerwayQoS",
    gate: "TerwayQoS",
    default_on: false,
    maturity: Maturity::Alpha,
    options: &[],
    stages: &[Stage::Node, Stage::Pod],
    fail_policy: FailPolicy::Open,
    doc: "tells the network plugin Terway what classes and pods have of the network",
    inputs: Inputs {
        labels: &[label::QOS_CLASS],
        annotations: &[annotation::NETWORK_QOS],
    },
    settings: &[Setting::PodNetwork, Setting::NodeNetwork],
};

pub(super) struct TerwayQos;

// === impl TerwayQos ===

impl Hook for TerwayQos {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        let limits = view.pod.network_limits()?.as_deref().copied();
        Ok(part(view, limits.unwrap_or_default()))
    }

    /// The part of its class: what the plugin is told nothing of it does not hold back.
    fn at_least(&self, view: &View<'_>) -> Adjustment {
        part(view, NetworkLimits::default())
    }

    fn decide_node(&self, node: &NodeView) -> Result<NodeAdjustment, HookError> {
        let network = node.policy.slo.as_ref().and_then(|slo| slo.network);
        let root = Adjustment {
            node_network: network.map(Arc::new),
            ..Adjustment::default()
        };
        Ok(NodeAdjustment {
            root,
            ..NodeAdjustment::default()
        })
    }
}

fn part(view: &View<'_>, NetworkLimits { ingress, egress }: NetworkLimits) -> Adjustment {
    let priority = priority(view.qos(), view.pod.kube_qos);
    let policy = view.node.policy.slo.as_ref();
    let is_shared_out = policy.is_some_and(|slo| slo.network.is_some());
    Adjustment {
        pod_network: is_shared_out.then_some(PodNetwork {
            priority,
            ingress,
            egress,
        }),
        ..Adjustment::default()
    }
}

fn priority(qos: Option<QosClass>, tier: KubeQos) -> NetPriority {
    match (qos, tier) {
        (Some(QosClass::System), _) => NetPriority::System,
        (Some(QosClass::Lse | QosClass::Lsr | QosClass::Ls), _)
        | (None, KubeQos::Guaranteed | KubeQos::Burstable) => NetPriority::LatencySensitive,
        (Some(QosClass::Be), _) | (None, KubeQos::BestEffort) => NetPriority::BestEffort,
    }
}

#[cfg(test)]
mod tests;

//! The network of the node is shared out by queues of the kernel, as the policy says (`netQOSPolicy:
//! tc`, and where it says nothing of who is to do it): what is sent by LS pods and by BE pods, and what
//! is left.
//!
//! The pod's label says by which queue it sends, and an annotation what it may send at most, in a queue
//! of its own below that of its class.
//!
//! Where this differs from Koordinator v1.8:
//! - a rate is bytes in a second from where it is read on, and nowhere divided by eight again;
//! - a limit of what a pod receives makes no queue, which upstream makes with a rate of none;
//! - a pod with a limit of its own stays within what its class may send, which upstream lets it leave;
//! - a class of which no limit is said has the whole network. Upstream gives it what is kept for it, and
//!   the kernel refuses its queue where nothing is.

use crate::{
    adjustment::{Adjustment, NodeAdjustment},
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity},
    view::{NodeView, Stage, View},
};
use koord_model::{
    NetClass, NetPriority, NetQueues, NetRate, NetShare, NodeNetwork, PodQueue, QosClass, Setting,
};
use koord_proto::{
    annotation::NetworkLimits,
    keys::{annotation, label},
};
use std::sync::Arc;

pub(super) const META: HookMeta = HookMeta {
    name: "TCNetworkQoS",
    gate: "TCNetworkQoS",
    default_on: false,
    maturity: Maturity::Alpha,
    options: &[],
    stages: &[Stage::Node, Stage::Pod],
    fail_policy: FailPolicy::Open,
    doc: "shares out what the node sends to classes and pods by queues of the kernel",
    inputs: Inputs {
        labels: &[label::QOS_CLASS],
        annotations: &[annotation::NETWORK_QOS],
    },
    settings: &[Setting::PodQueue, Setting::NodeQueues],
};

pub(super) struct TcNetworkQos;

// === impl TcNetworkQos ===

impl Hook for TcNetworkQos {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        let limits = view.pod.network_limits()?.as_deref().copied();
        Ok(queued(view, limits.unwrap_or_default()))
    }

    /// The queue of its class: without one it would send before all others.
    fn at_least(&self, view: &View<'_>) -> Adjustment {
        queued(view, NetworkLimits::default())
    }

    fn decide_node(&self, node: &NodeView) -> Result<NodeAdjustment, HookError> {
        let network = node.policy.slo.as_ref().and_then(|slo| slo.queues);
        let root = Adjustment {
            node_queues: network.map(|network| Arc::new(queues(&network))),
            ..Adjustment::default()
        };
        Ok(NodeAdjustment {
            root,
            ..NodeAdjustment::default()
        })
    }
}

fn queued(view: &View<'_>, NetworkLimits { egress, .. }: NetworkLimits) -> Adjustment {
    let priority = view.qos().map(priority);
    // Of whom nothing is said sends with what is the node's own, and has no queue for it.
    let is_queued = priority.is_some() || egress != NetRate::NONE;
    let policy = view.node.policy.slo.as_ref();
    let is_shared_out = policy.is_some_and(|slo| slo.queues.is_some());
    Adjustment {
        pod_queue: (is_shared_out && is_queued).then_some(PodQueue {
            priority: priority.unwrap_or_default(),
            egress,
        }),
        ..Adjustment::default()
    }
}

fn priority(class: QosClass) -> NetPriority {
    match class {
        QosClass::System => NetPriority::System,
        QosClass::Lse | QosClass::Lsr | QosClass::Ls => NetPriority::LatencySensitive,
        QosClass::Be => NetPriority::BestEffort,
    }
}

/// What is kept for no class is the system's, and nobody has more than there is.
fn queues(network: &NodeNetwork) -> NetQueues {
    let NodeNetwork {
        total,
        latency_sensitive,
        best_effort,
    } = *network;
    let of = |class: NetClass| NetShare {
        min: class.sent.min,
        max: class.sent.max.within(total),
    };
    let (latency_sensitive, best_effort) = (of(latency_sensitive), of(best_effort));
    let system = NetShare {
        min: total.less(latency_sensitive.min).less(best_effort.min),
        max: total,
    };
    NetQueues {
        total,
        system,
        latency_sensitive,
        best_effort,
    }
}

#[cfg(test)]
mod tests;

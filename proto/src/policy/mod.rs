//! What the cluster wants of this node, as types: NodeSLO, NodeResourceTopology and Node.
//!
//! A document that was never seen is `None`, which is not the same as one that is empty: before
//! the first policy, hooks do less.

#[cfg(test)]
mod asked;
mod block;
mod host_application;
mod issue;
mod network;
mod node;
mod place;
mod slo;
mod stream;
mod topology;

#[cfg(test)]
mod tests;

use crate::annotation::CpuNormalizationRatio;

pub use self::{
    block::{BlockQos, DiskCost},
    host_application::{HostApplication, HostCgroup, HostCgroupBase},
    issue::{PolicyError, PolicyIssue, Problem},
    node::NodeMetadata,
    slo::{
        ClassCpuQos, ClassQos, ClassResctrlQos, CpuBurstStrategy, CpuPolicy, CpuSuppressPolicy,
        NodeSloSpec, ResourceQosStrategy, ResourceUsedThreshold,
    },
    stream::{MAX_LENGTH, Parsed},
    topology::NodeTopology,
};

/// All that is known of the cluster's will for this node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodePolicy {
    pub slo: Option<NodeSloSpec>,
    pub topology: Option<NodeTopology>,
    pub node: Option<NodeMetadata>,
}

// === impl NodePolicy ===

impl NodePolicy {
    /// How much faster this node's CPUs are than the slowest model's, if that is known.
    pub fn cpu_normalization_ratio(&self) -> Option<CpuNormalizationRatio> {
        self.node.as_ref()?.cpu_normalization_ratio
    }
}

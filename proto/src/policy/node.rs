//! Node: what the cluster says about this machine.

use super::place::Place;
use crate::{
    annotation::{CpuNormalizationRatio, Quantity},
    keys::{annotation::CPU_NORMALIZATION_RATIO, resource},
};

/// The parts of a Node that the node's hooks need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMetadata {
    /// `None` where there is no annotation, or one that says so.
    pub cpu_normalization_ratio: Option<CpuNormalizationRatio>,
    /// Bytes of memory that pods may have.
    pub allocatable_memory: Option<u64>,
}

// === impl NodeMetadata ===

impl NodeMetadata {
    pub(super) fn read(node: &Place<'_>) -> Self {
        let (metadata, status) = (node.section("metadata"), node.section("status"));
        let ratio = metadata.section("annotations").key(CPU_NORMALIZATION_RATIO);
        Self {
            cpu_normalization_ratio: ratio.parsed(CpuNormalizationRatio::parse).flatten(),
            allocatable_memory: status
                .section("allocatable")
                .field(resource::MEMORY)
                .parsed(|text| text.parse::<Quantity>()?.unsigned_value()),
        }
    }
}

//! Node: what the cluster says about this machine.

use super::place::Place;
use crate::{
    annotation::{CpuNormalizationRatio, Quantity},
    keys::{annotation::CPU_NORMALIZATION_RATIO, resource},
};
use std::collections::BTreeMap;

/// The parts of a Node that the node's hooks need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMetadata {
    pub labels: BTreeMap<String, String>,
    /// `None` where there is no annotation, or one that says so.
    pub cpu_normalization_ratio: Option<CpuNormalizationRatio>,
    /// Bytes of memory that pods may have.
    pub allocatable_memory: Option<u64>,
}

// === impl NodeMetadata ===

impl NodeMetadata {
    pub(super) fn read(node: &Place<'_>) -> Self {
        let (metadata, status) = (node.section("metadata"), node.section("status"));
        let labels = metadata.field("labels").texts().into_iter();
        let ratio = metadata.section("annotations").key(CPU_NORMALIZATION_RATIO);
        Self {
            labels: labels.map(|(k, v)| (k.to_owned(), v.to_owned())).collect(),
            cpu_normalization_ratio: ratio.parsed(CpuNormalizationRatio::parse).flatten(),
            allocatable_memory: status
                .section("allocatable")
                .field(resource::MEMORY)
                .parsed(|text| text.parse::<Quantity>()?.unsigned_value()),
        }
    }
}

//! Node: what the cluster says about this machine.

use crate::annotation::CpuNormalizationRatio;
use std::collections::BTreeMap;

/// The parts of a Node that the node's hooks need.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMetadata {
    pub labels: BTreeMap<String, String>,
    /// `None` where there is no annotation, or one that says so.
    pub cpu_normalization_ratio: Option<CpuNormalizationRatio>,
}

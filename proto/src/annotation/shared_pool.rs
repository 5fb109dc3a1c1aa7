//! CPUs that pods share, as koordlet reports them on the node's NodeResourceTopology.

use super::{error::AnnotationError, json};
use crate::keys::annotation::{BE_CPU_SHARED_POOLS, CPU_SHARED_POOLS};
use koord_model::CpuSet;

/// The shared CPUs of one NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SharedPool {
    /// Number of the NUMA node as the kernel counts.
    pub node: i32,
    pub cpuset: CpuSet,
}

json::object!(SharedPool {
    "node" => node,
    "cpuset" => cpuset,
});

// === impl SharedPool ===

impl SharedPool {
    /// Reads [`CPU_SHARED_POOLS`]: the pools of latency-sensitive pods.
    ///
    /// # Errors
    ///
    /// When the text is not what every annotation in JSON has to be ([`AnnotationError`]), or the `cpuset` of
    /// a pool is no list of CPUs ([`CpuSet`]).
    pub fn parse_list(text: &str) -> Result<Vec<Self>, AnnotationError> {
        json::parse(CPU_SHARED_POOLS, text)
    }

    /// Reads [`BE_CPU_SHARED_POOLS`]: the pools of best-effort pods.
    ///
    /// # Errors
    ///
    /// When the text is not what every annotation in JSON has to be ([`AnnotationError`]), or the `cpuset` of
    /// a pool is no list of CPUs ([`CpuSet`]).
    pub fn parse_be_list(text: &str) -> Result<Vec<Self>, AnnotationError> {
        json::parse(BE_CPU_SHARED_POOLS, text)
    }
}

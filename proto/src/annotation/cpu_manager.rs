//! What the kubelet of the node does with CPUs itself.

use super::{error::AnnotationError, json};
use crate::keys::annotation::KUBELET_CPU_MANAGER_POLICY;

/// The annotation [`KUBELET_CPU_MANAGER_POLICY`], as far as it says who is in charge; empty where koordlet did
/// not ask the kubelet.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuManagerPolicy {
    /// `none`, `static`, or empty.
    pub policy: String,
}

json::object!(CpuManagerPolicy {
    "policy" => policy,
});

// === impl CpuManagerPolicy ===

impl CpuManagerPolicy {
    /// Reads the annotation.
    ///
    /// # Errors
    ///
    /// When the text is not what every annotation in JSON has to be ([`AnnotationError`]).
    pub fn parse(text: &str) -> Result<Self, AnnotationError> {
        json::parse(KUBELET_CPU_MANAGER_POLICY, text)
    }

    /// Whether the kubelet gives containers CPUs of their own, so that their cpuset is its
    /// business.
    pub fn is_static(&self) -> bool {
        self.policy == "static"
    }
}

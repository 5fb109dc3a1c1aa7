//! One pod's say in how its CPU time ranks.

use super::{error::AnnotationError, json, memory_qos::Switch};
use crate::keys::annotation::CPU_QOS;
use koord_model::Bvt;

/// The annotation [`CPU_QOS`]. Upstream obeys it for pods of class `LS` only, and of it only
/// `enable` and `groupIdentity`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuQos {
    pub enable: Option<bool>,
    pub group_identity: Option<Bvt>,
    pub sched_idle: Option<Switch>,
    pub core_expeller: Option<bool>,
}

json::object!(CpuQos {
    "enable" => enable,
    "groupIdentity" => group_identity,
    "schedIdle" => sched_idle,
    "coreExpeller" => core_expeller,
});

// === impl CpuQos ===

impl CpuQos {
    /// Reads the annotation.
    ///
    /// # Errors
    ///
    /// When the text is not what every annotation in JSON has to be ([`AnnotationError`]), `groupIdentity` is
    /// outside −1 to 2, or `schedIdle` is neither 0 nor 1.
    pub fn parse(text: &str) -> Result<Self, AnnotationError> {
        json::parse(CPU_QOS, text)
    }
}

//! One pod's say in how its CPU time ranks.

use super::{error::AnnotationError, json};
use crate::keys::annotation::CPU_QOS;
use koord_model::Bvt;

/// The annotation [`CPU_QOS`], as far as upstream obeys it, which does so for pods of class `LS` only.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuQos {
    pub enable: Option<bool>,
    pub group_identity: Option<Bvt>,
}

json::object!(CpuQos {
    "enable" => enable,
    "groupIdentity" => group_identity,
});

// === impl CpuQos ===

impl CpuQos {
    /// Reads the annotation.
    ///
    /// # Errors
    ///
    /// When the text is not what every annotation in JSON has to be ([`AnnotationError`]), or `groupIdentity`
    /// is outside −1 to 2.
    pub fn parse(text: &str) -> Result<Self, AnnotationError> {
        json::parse(CPU_QOS, text)
    }
}

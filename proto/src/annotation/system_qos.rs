//! CPUs set aside for pods of class `SYSTEM`.

use super::{error::AnnotationError, json};
use crate::keys::annotation::SYSTEM_QOS_RESOURCE;
use koord_model::CpuSet;

/// The annotation [`SYSTEM_QOS_RESOURCE`], as far as pods of class `SYSTEM` are concerned.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct SystemQosResource {
    /// Empty if none are set aside.
    pub cpuset: CpuSet,
}

json::object!(SystemQosResource {
    "cpuset" => cpuset,
});

// === impl SystemQosResource ===

impl SystemQosResource {
    /// Reads the annotation; `None` for `null`, which koordlet writes when the node has none.
    ///
    /// # Errors
    ///
    /// When the text is not what every annotation in JSON has to be ([`AnnotationError`]), or `cpuset` is no
    /// list of CPUs ([`CpuSet`]).
    pub fn parse(text: &str) -> Result<Option<Self>, AnnotationError> {
        json::parse(SYSTEM_QOS_RESOURCE, text)
    }
}

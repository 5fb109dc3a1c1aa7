//! CPUs set aside for pods of class `SYSTEM`.

use super::{error::AnnotationError, json};
use crate::keys::annotation::SYSTEM_QOS_RESOURCE;
use koord_model::CpuSet;

/// The annotation [`SYSTEM_QOS_RESOURCE`].
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SystemQosResource {
    /// Empty if none are set aside.
    pub cpuset: CpuSet,
    /// Whether other pods are kept off them; they are unless it says otherwise.
    pub exclusive: bool,
}

#[derive(Default)]
struct Wire {
    cpuset: CpuSet,
    exclusive: Option<bool>,
}

json::object!(Wire {
    "cpuset" => cpuset,
    "cpusetExclusive" => exclusive,
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
        let wire: Option<Wire> = json::parse(SYSTEM_QOS_RESOURCE, text)?;
        Ok(wire.map(|Wire { cpuset, exclusive }| Self {
            cpuset,
            exclusive: exclusive.unwrap_or(true),
        }))
    }
}

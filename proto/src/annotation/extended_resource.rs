//! What a pod's containers have of resources that Kubernetes does not know. CRI has no field for them,
//! so Koordinator's webhook writes the batch ones into an annotation of the pod.

use super::{
    error::{AnnotationError, Misfit},
    json::{self, Decode},
    quantity::take_amounts,
};
use crate::keys::{annotation::EXTENDED_RESOURCE_SPEC, resource};
use koord_model::MilliCpu;
use std::collections::BTreeMap;

/// The annotation [`EXTENDED_RESOURCE_SPEC`], or what a pod says of resources of another kind.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtendedResourceSpec {
    /// By container name, exact in case; regular containers only. `None` if the key is missing.
    pub containers: Option<BTreeMap<String, ExtendedContainer>>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ExtendedContainer {
    pub requests: ExtendedResources,
    pub limits: ExtendedResources,
}

/// Amounts of one kind: batch or mid.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ExtendedResources {
    pub cpu: Option<MilliCpu>,
    /// Bytes.
    pub memory: Option<u64>,
}

json::object!(ExtendedResourceSpec { "containers" => containers });

json::object!(ExtendedContainer {
    "requests" => requests,
    "limits" => limits,
});

// === impl ExtendedResourceSpec ===

impl ExtendedResourceSpec {
    /// Reads the annotation, whose CPU is in thousandths and whose memory is in bytes.
    ///
    /// # Errors
    ///
    /// When the text is not what every annotation in JSON has to be ([`AnnotationError`]), an amount, of
    /// whatever resource, is no [`Quantity`](super::Quantity), or one of batch CPU or batch memory is below
    /// zero.
    pub fn parse(text: &str) -> Result<Self, AnnotationError> {
        json::parse(EXTENDED_RESOURCE_SPEC, text)
    }
}

// === impl ExtendedResources ===

impl Decode for ExtendedResources {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        take_amounts(self, json, |amounts, name, amount| {
            match name {
                resource::BATCH_CPU => amounts.cpu = Some(MilliCpu(amount.unsigned_value()?)),
                resource::BATCH_MEMORY => amounts.memory = Some(amount.unsigned_value()?),
                _ => {}
            }
            Ok(())
        })
    }
}

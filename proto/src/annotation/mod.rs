//! Koordinator's annotations as types.
//!
//! They are read by the rules of the programs that write and read them upstream, so a value that
//! works there works here: object keys match in any case, unknown keys are skipped, a missing key
//! or `null` is absence, the last of two equal keys wins, and a value of another type is an error
//! of the whole annotation. Size and depth are bounded, because whoever creates a pod writes them.

mod blkio_qos;
mod cpu_burst;
mod cpu_manager;
mod cpu_qos;
mod device_allocated;
mod error;
mod extended_resource;
mod json;
mod memory_qos;
mod network_qos;
mod normalization;
mod oom_score;
mod quantity;
mod resctrl;
mod resource_status;
mod shared_pool;
mod system_qos;

#[cfg(test)]
mod tests;

use koord_model::{QosClass, UnknownClass};

pub use self::{
    blkio_qos::{IoLimits, block_limits},
    cpu_burst::{BurstPercent, CpuBurst, CpuBurstPolicy},
    cpu_manager::CpuManagerPolicy,
    cpu_qos::CpuQos,
    device_allocated::{DeviceAllocated, Gpu, GpuResources, Minor, Rdma},
    error::{AnnotationError, Reason},
    extended_resource::{ExtendedContainer, ExtendedResourceSpec, ExtendedResources},
    json::{MAX_DEPTH, MAX_LENGTH},
    memory_qos::{MemoryQos, MemoryQosPolicy, Percent, PodMemoryQos, Switch},
    network_qos::NetworkLimits,
    normalization::{CpuNormalizationRatio, NormalizationError},
    oom_score::{OomScoreAdjSpec, oom_score_adj},
    quantity::{Quantity, QuantityError},
    resctrl::cache_shares,
    resource_status::{NumaNode, ResourceStatus},
    shared_pool::SharedPool,
    system_qos::SystemQosResource,
};

/// Reads the value of the label [`QOS_CLASS`](crate::keys::label::QOS_CLASS). Absent and empty are no class.
///
/// # Errors
///
/// When the name is none of `LSE`, `LSR`, `LS`, `BE` and `SYSTEM`, exact in case. The caller reports it
/// before it goes on as with no class.
pub fn qos_class(value: Option<&str>) -> Result<Option<QosClass>, UnknownClass> {
    match value {
        None | Some("") => Ok(None),
        Some(name) => name.parse().map(Some),
    }
}

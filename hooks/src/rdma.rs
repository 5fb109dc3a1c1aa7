//! What a node has for RDMA, as containers can be given it.
//!
//! A runtime refuses to make a container with a device that is not there. So of each device is known
//! whether it was when somebody looked, and containers are given no other.

use crate::unsafe_path::UnsafePath;
use koord_model::{DeviceNode, PciAddress};
use std::collections::BTreeMap;

/// The devices of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RdmaDevices {
    /// By which connections are made, whatever they go by. `None` if the kernel has no such device.
    pub connections: Option<RdmaNode>,
    /// The functions of PCI devices that RDMA goes by.
    pub verbs: BTreeMap<PciAddress, RdmaNode>,
}

/// A device, or why containers are not given it.
pub type RdmaNode = Result<DeviceNode, UnsafePath>;

//! What the scheduler gave a pod: CPUs, and amounts on NUMA nodes.

use super::{
    error::{AnnotationError, Misfit},
    json::{self, Decode},
    quantity::{Quantity, take_amounts},
};
use crate::keys::{annotation::RESOURCE_STATUS, resource};
use koord_model::{CpuSet, RangeError};

/// The annotation [`RESOURCE_STATUS`].
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourceStatus {
    /// CPUs of the pod's own; `None` if it was given none.
    pub cpuset: Option<CpuSet>,
    pub numa_nodes: Vec<NumaNode>,
}

/// What a pod was given on one NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// Number of the NUMA node as the kernel counts.
    pub node: i32,
    /// CPUs.
    pub cpu: Quantity,
    /// Thousandths of a CPU.
    pub batch_cpu: Quantity,
}

#[derive(Default)]
struct Wire {
    cpuset: CpuSet,
    numa_nodes: Vec<WireNode>,
}

#[derive(Default)]
struct WireNode {
    node: NodeNumber,
    resources: Amounts,
}

#[derive(Default)]
struct NodeNumber(i32);

#[derive(Default)]
struct Amounts {
    cpu: Quantity,
    batch_cpu: Quantity,
}

json::object!(Wire {
    "cpuset" => cpuset,
    "numaNodeResources" => numa_nodes,
});

json::object!(WireNode {
    "node" => node,
    "resources" => resources,
});

// === impl ResourceStatus ===

impl ResourceStatus {
    /// Reads the annotation.
    ///
    /// # Errors
    ///
    /// When the text is not what every annotation in JSON has to be ([`AnnotationError`]), `cpuset` is no
    /// list of CPUs ([`CpuSet`]), the number of a NUMA node is outside 0 to 1,023, or an amount, of whatever
    /// resource, is no [`Quantity`].
    pub fn parse(text: &str) -> Result<Self, AnnotationError> {
        let Wire { cpuset, numa_nodes } = json::parse(RESOURCE_STATUS, text)?;
        let numa_nodes = numa_nodes.into_iter().map(|wire| NumaNode {
            node: wire.node.0,
            cpu: wire.resources.cpu,
            batch_cpu: wire.resources.batch_cpu,
        });
        Ok(Self {
            cpuset: Some(cpuset).filter(|cpuset| !cpuset.is_empty()),
            numa_nodes: numa_nodes.collect(),
        })
    }
}

// === impl NumaNode ===

impl NumaNode {
    /// Whether CPU time of either kind was given here, by upstream's test: anything but zero of
    /// `cpu`, more than zero of `batch-cpu`.
    pub fn has_cpu(&self) -> bool {
        !self.cpu.is_zero() || self.batch_cpu.is_positive()
    }
}

// === impl NodeNumber ===

impl NodeNumber {
    /// The highest that a kernel knows: `CONFIG_NODES_SHIFT` is 10 at most.
    const MAX: i32 = 1_023;
}

impl Decode for NodeNumber {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        self.0.decode(json)?;
        if !(0..=Self::MAX).contains(&self.0) {
            return Err(Misfit::from(Box::new(RangeError {
                what: "NUMA node",
                value: self.0.into(),
                min: 0,
                max: Self::MAX.into(),
            })));
        }
        Ok(())
    }
}

// === impl Amounts ===

impl Decode for Amounts {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        take_amounts(self, json, |amounts, name, amount| {
            match name {
                resource::CPU => amounts.cpu = amount,
                resource::BATCH_CPU => amounts.batch_cpu = amount,
                _ => {}
            }
            Ok(())
        })
    }
}

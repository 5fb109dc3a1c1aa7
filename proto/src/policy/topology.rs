//! NodeResourceTopology: which CPUs this node's pods share, as koordlet reports it.

use crate::annotation::{CpuManagerPolicy, SharedPool, SystemQosResource};

/// The annotations of a NodeResourceTopology that the node's hooks need; what is missing is empty.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeTopology {
    /// CPUs that latency-sensitive pods share.
    pub shared_pools: Vec<SharedPool>,
    /// CPUs that best-effort pods share.
    pub be_shared_pools: Vec<SharedPool>,
    pub cpu_manager: CpuManagerPolicy,
    pub system_qos: Option<SystemQosResource>,
}

// === impl NodeTopology ===

impl NodeTopology {
    /// Whether the kubelet gives containers CPUs of their own.
    pub fn kubelet_policy_is_static(&self) -> bool {
        self.cpu_manager.is_static()
    }
}

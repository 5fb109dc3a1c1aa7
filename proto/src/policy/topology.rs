//! NodeResourceTopology: which CPUs this node's pods share, as koordlet reports it.

use super::place::Place;
use crate::{
    annotation::{CpuManagerPolicy, SharedPool, SystemQosResource},
    keys::annotation,
};

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

    pub(super) fn read(metadata: &Place<'_>) -> Self {
        let annotations = metadata.section("annotations");
        let pools = annotations.key(annotation::CPU_SHARED_POOLS);
        let be_pools = annotations.key(annotation::BE_CPU_SHARED_POOLS);
        let cpu_manager = annotations.key(annotation::KUBELET_CPU_MANAGER_POLICY);
        let system_qos = annotations.key(annotation::SYSTEM_QOS_RESOURCE);
        Self {
            shared_pools: pools.parsed(SharedPool::parse_list).unwrap_or_default(),
            be_shared_pools: be_pools
                .parsed(SharedPool::parse_be_list)
                .unwrap_or_default(),
            cpu_manager: cpu_manager
                .parsed(CpuManagerPolicy::parse)
                .unwrap_or_default(),
            system_qos: system_qos.parsed(SystemQosResource::parse).flatten(),
        }
    }
}

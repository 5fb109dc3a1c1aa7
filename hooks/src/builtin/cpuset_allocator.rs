//! Pods run on the CPUs that the scheduler gave them, or on those that their class shares.
//!
//! The decision about a container has nine cases, the first that applies wins; they are numbered
//! below as in the tests. A pod with CPUs of its own has no CFS quota, because throttling it would
//! leave its CPUs to nobody.
//!
//! Where this differs from Koordinator v1.8:
//! - the cpuset of a pod in a best-effort tier is cleared in every front; upstream's empty string
//!   does it in one of three;
//! - a pool without CPUs leaves the cpuset unset; upstream's empty string is a clear in one front
//!   and nothing in the others, and a report that lacks a pool does not mean all CPUs;
//! - CPUs that pods may not use are left out, and a set of which none remains is an error: the
//!   runtime would refuse the whole call, and it cannot be sent again;
//! - a host application of another class than `LS` is left alone; upstream logs an error each time.

use crate::{
    adjustment::{Adjustment, NodeAdjustment},
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity, OptionGate},
    view::{ContainerKind, HookOptions, NodeView, Stage, View},
};
use koord_model::{CpuQuota, CpuSet, CpusetCpus, KubeQos, QosClass, Setting};
use koord_proto::{
    annotation::{NumaNode, SharedPool},
    keys::{annotation, label},
};

pub(super) const META: HookMeta = HookMeta {
    name: "CPUSetAllocator",
    gate: "CPUSetAllocator",
    default_on: true,
    maturity: Maturity::Beta,
    options: &[OptionGate {
        gate: HookOptions::BE_CPU_MANAGER,
        maturity: Maturity::Alpha,
        doc: "BE pods with CPU on a NUMA node are bound to the best-effort pool there",
    }],
    stages: &[Stage::Node, Stage::Pod, Stage::Container],
    fail_policy: FailPolicy::Open,
    doc: "binds containers to the CPUs of their pod or class, and lifts the quota of pods with CPUs of their own",
    inputs: Inputs {
        labels: &[label::QOS_CLASS],
        annotations: &[annotation::RESOURCE_STATUS],
    },
    settings: &[Setting::CpuQuota, Setting::CpusetCpus],
};

pub(super) struct CpusetAllocator;

// === impl CpusetAllocator ===

impl Hook for CpusetAllocator {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        let status = view.pod.resource_status()?.unwrap_or_default();
        let own = match &status.cpuset {
            Some(cpus) => Some(usable(annotation::RESOURCE_STATUS, cpus, view.node)?),
            None => None,
        };
        let mut adjustment = Adjustment::default();
        let has_quota = view
            .container
            .is_none_or(|container| container.kind == ContainerKind::Regular);
        if own.is_some() && has_quota && !view.node.options.disable_unset_cpu_quota {
            adjustment.cpu_quota = Some(CpuQuota::Unlimited);
            adjustment = adjustment.overriding(Setting::CpuQuota);
        }
        if view.container.is_some() {
            adjustment.cpuset_cpus = match own {
                Some(cpus) => Some(CpusetCpus::Only(cpus)), // 1
                None => shared(view, &status.numa_nodes)?,
            };
        }
        Ok(adjustment)
    }

    fn decide_node(&self, node: &NodeView) -> Result<NodeAdjustment, HookError> {
        let mut adjustment = NodeAdjustment::default();
        let Some(topology) = &node.policy.topology else {
            return Ok(adjustment);
        };
        for application in node.host_applications() {
            if application.qos == Some(QosClass::Ls) {
                let wanted = Adjustment {
                    cpuset_cpus: pool(annotation::CPU_SHARED_POOLS, &topology.shared_pools, node)?,
                    ..Adjustment::default()
                };
                let path = node.host_application_path(application)?;
                adjustment.host_applications.insert(path, wanted);
            }
        }
        Ok(adjustment)
    }
}

/// The cpuset of a container whose pod has no CPUs of its own.
fn shared(view: &View<'_>, allocated: &[NumaNode]) -> Result<Option<CpusetCpus>, HookError> {
    const ALL: &str = annotation::CPU_SHARED_POOLS;
    const BE: &str = annotation::BE_CPU_SHARED_POOLS;
    let node = view.node;
    let Some(topology) = &node.policy.topology else {
        return Ok(None); // 2
    };
    let qos = view.qos();
    if allocated.iter().any(NumaNode::has_cpu) {
        let near = |pool: &&SharedPool| allocated.iter().any(|a| a.node == pool.node);
        if qos != Some(QosClass::Be) {
            return pool(ALL, topology.shared_pools.iter().filter(near), node); // 4
        }
        if node.options.be_cpu_manager {
            return pool(BE, topology.be_shared_pools.iter().filter(near), node); // 3
        }
    }
    if qos == Some(QosClass::System)
        && let Some(system) = &topology.system_qos
        && !system.cpuset.is_empty()
    {
        let cpus = usable(annotation::SYSTEM_QOS_RESOURCE, &system.cpuset, node)?;
        return Ok(Some(CpusetCpus::Only(cpus))); // 5
    }
    if qos == Some(QosClass::Ls) {
        return pool(ALL, &topology.shared_pools, node); // 6
    }
    if view.pod.kube_qos == KubeQos::BestEffort {
        return Ok(Some(CpusetCpus::All)); // 7
    }
    if topology.kubelet_policy_is_static() {
        return Ok(None); // 8
    }
    pool(ALL, &topology.shared_pools, node) // 9
}

/// The CPUs of several pools together; `None` if they have none.
fn pool<'a>(
    key: &'static str,
    pools: impl IntoIterator<Item = &'a SharedPool>,
    node: &NodeView,
) -> Result<Option<CpusetCpus>, HookError> {
    let cpus = pools
        .into_iter()
        .fold(CpuSet::new(), |cpus, pool| cpus.union(&pool.cpuset));
    if cpus.is_empty() {
        return Ok(None);
    }
    Ok(Some(CpusetCpus::Only(usable(key, &cpus, node)?)))
}

/// Those of the CPUs named by `key` that pods may use.
fn usable(key: &'static str, cpus: &CpuSet, node: &NodeView) -> Result<CpuSet, HookError> {
    let usable = cpus.intersection(&node.kernel.usable_cpus);
    if usable.is_empty() {
        return Err(HookError::NoUsableCpu {
            key,
            cpus: cpus.clone(),
            usable: node.kernel.usable_cpus.clone(),
        });
    }
    Ok(usable)
}

#[cfg(test)]
mod tests;

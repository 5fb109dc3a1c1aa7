//! Best-effort pods together, and pods that ask for it, are limited in what they do to block devices.
//!
//! The policy says for which devices, by their names or by the volume group on them: bytes and
//! operations in a second, and the part of a device's time (`beClass`, the directory of best-effort
//! pods). That the time of a device is shared out, and by which model of what it can do, is said of
//! the root (`cgroupRoot`). A pod's annotation limits the pod, for its own volumes too.
//!
//! Which devices a name means is found where the values are written. A device that is not found
//! stops none of the others, and is told. A volume's directory on the node is called as the volume, but
//! for that of a claim: which it is follows from the pod's other volumes, where a source of pods tells
//! them and there is no other claim of its kind. Those that a pod has as devices, without a file system,
//! are one kind, those that are mounted the other. Of several of a kind a file of pods may say what they
//! are bound to; else the pod names the directory.
//!
//! Where this differs from Koordinator v1.8:
//! - cgroup v2 has it too (`io.max`, `io.weight`, `io.cost.qos`, `io.cost.model`);
//! - what is not asked for is not decided: upstream then writes no limit and a weight of 100, over
//!   what somebody else has written;
//! - only devices that were named are given back, with what they had before; upstream resets all that
//!   are in the files;
//! - limits of the classes `LSR`, `LS` and `SYSTEM` are an issue of the policy: their pods have no
//!   directory of their own. A pod says its limits itself.

use crate::{
    adjustment::{Adjustment, NodeAdjustment},
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity},
    view::{NodeView, Stage, View},
};
use koord_model::{Block, BlockName, KubeQos, PerBlock, Setting};
use koord_proto::{
    annotation::IoLimits,
    keys::{annotation, label},
    pods::{PodSpec, VolumeSpec},
    policy::DiskCost,
};

pub(super) const META: HookMeta = HookMeta {
    name: "BlkIOReconcile",
    gate: "BlkIOReconcile",
    default_on: false,
    maturity: Maturity::Alpha,
    options: &[],
    stages: &[Stage::Node, Stage::Pod],
    fail_policy: FailPolicy::Open,
    doc: "limits what best-effort pods, and pods that ask for it, do to block devices",
    inputs: Inputs {
        labels: &[label::QOS_CLASS],
        annotations: &[annotation::BLKIO_QOS],
    },
    settings: &[
        Setting::IoReadBps,
        Setting::IoWriteBps,
        Setting::IoReadIops,
        Setting::IoWriteIops,
        Setting::IoWeight,
        Setting::IoCostQos,
        Setting::IoCostModel,
    ],
};

pub(super) struct Blkio;

// === impl Blkio ===

impl Hook for Blkio {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        // As upstream, which looks at no pod without a class.
        if view.qos().is_none() {
            return Ok(Adjustment::default());
        }
        let Some(limits) = view.pod.block_limits()? else {
            return Ok(Adjustment::default());
        };
        let spec = view.pod.spec.as_deref();
        let limits = limits.iter().cloned();
        let limits = limits.map(|(block, it)| (by_spec(block, spec), it));
        let limits: Vec<_> = limits.collect();
        Ok(limited(&limits).possible(&view.node.kernel))
    }

    /// Also where nothing is named: a device may have been before a restart.
    fn decide_node(&self, node: &NodeView) -> Result<NodeAdjustment, HookError> {
        let Some(slo) = &node.policy.slo else {
            return Ok(NodeAdjustment::default());
        };
        let be = limited(&slo.block_qos.best_effort).possible(&node.kernel);
        Ok(NodeAdjustment {
            root: shared_out(&slo.block_qos.root).possible(&node.kernel),
            tiers: [(KubeQos::BestEffort, be)].into(),
            ..NodeAdjustment::default()
        })
    }

    fn unsupported(&self, node: &NodeView) -> Option<&'static str> {
        node.kernel
            .lacks_all(META.settings)
            .then_some("the kernel limits no control group in what it does to block devices")
    }
}

/// A volume of a pod as it is found on the node: a claim by what it is bound to, where a source says
/// that, and as the only one of its kind, if it is. One that is mounted is known then by what the
/// others are called, which are no claims.
fn by_spec(block: Block, spec: Option<&PodSpec>) -> Block {
    let Block::PodVolume { pod, volume } = &block else {
        return block;
    };
    let volumes = spec.map(|spec| spec.volumes.as_slice()).unwrap_or_default();
    let mut claims = volumes.iter().filter(|it| it.is_claim);
    let Some(claim) = claims.find(|it| it.name == volume.as_str()) else {
        return block;
    };
    if let Some(bound) = &claim.bound {
        return Block::PodVolume {
            pod: pod.clone(),
            volume: bound.clone(),
        };
    }
    let alike = |it: &&VolumeSpec| it.is_claim && it.is_device == claim.is_device;
    if volumes.iter().filter(alike).count() > 1 {
        return block;
    }
    let (pod, volume) = (pod.clone(), volume.clone());
    if claim.is_device {
        return Block::RawClaim { pod, volume };
    }
    let others = volumes.iter().filter(|it| !it.is_claim);
    let others = others.filter_map(|it| BlockName::volume(&it.name).ok());
    Block::PodClaim {
        pod,
        volume,
        others: others.collect(),
    }
}

fn limited(limits: &[(Block, IoLimits)]) -> Adjustment {
    Adjustment {
        io_read_bps: Some(each(limits, |it| it.read_bps)),
        io_write_bps: Some(each(limits, |it| it.write_bps)),
        io_read_iops: Some(each(limits, |it| it.read_iops)),
        io_write_iops: Some(each(limits, |it| it.write_iops)),
        io_weight: Some(each(limits, |it| it.weight)),
        ..Adjustment::default()
    }
}

fn shared_out(costs: &[(Block, DiskCost)]) -> Adjustment {
    Adjustment {
        io_cost_qos: Some(each(costs, |it| Some(it.qos))),
        io_cost_model: Some(each(costs, |it| it.model)),
        ..Adjustment::default()
    }
}

fn each<S, T>(blocks: &[(Block, S)], value: impl Fn(&S) -> Option<T>) -> PerBlock<T> {
    let said = blocks
        .iter()
        .filter_map(|(block, it)| Some((block.clone(), value(it)?)));
    said.collect()
}

#[cfg(test)]
mod tests;

//! Best-effort pods get what they have of the node's batch resources.
//!
//! Kubernetes knows nothing of `batch-cpu` and `batch-memory`, so the kubelet makes such a pod
//! without weight and without limits. The pod's annotation says what its containers were given, and
//! where it has none its source does, if there is one.
//!
//! Where this differs from Koordinator v1.8:
//! - a list of no containers decides nothing, where upstream limits the pod to no memory at all;
//! - a container that the list leaves out is left alone, where upstream takes it for one without
//!   limits; it may be a sidecar with limits of its own. Only its quota may not be above that of
//!   the pod, which would not let it run for longer, and on cgroup v1 the kernel would refuse it
//!   and the container not start;
//! - a memory limit that no container could start with is an error of the hook: the runtime would
//!   refuse to start it;
//! - a quota that normalisation has brought below 1,000 µs is raised to it: the kernel takes no
//!   less.

use crate::{
    adjustment::Adjustment,
    extended,
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity},
    view::{Stage, View},
};
use koord_model::{QosClass, Setting};
use koord_proto::keys::{annotation, label};

pub(super) const META: HookMeta = HookMeta {
    name: "BatchResource",
    gate: "BatchResource",
    default_on: true,
    maturity: Maturity::Beta,
    options: &[],
    stages: &[Stage::Pod, Stage::Container],
    fail_policy: FailPolicy::Open,
    doc: "weighs and limits BE pods and their containers by their batch resources",
    inputs: Inputs {
        labels: &[label::QOS_CLASS],
        annotations: &[annotation::EXTENDED_RESOURCE_SPEC],
    },
    settings: &[
        Setting::CpuShares,
        Setting::CpuQuota,
        Setting::MemoryLimit,
    ],
};

pub(super) struct BatchResource;

// === impl BatchResource ===

impl Hook for BatchResource {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        if view.qos() != Some(QosClass::Be) {
            return Ok(Adjustment::default());
        }
        match view.pod.batch_resources()? {
            Some(spec) => extended::decide(view, &spec, annotation::EXTENDED_RESOURCE_SPEC),
            None => Ok(Adjustment::default()),
        }
    }
}

#[cfg(test)]
mod tests;

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
//! - a memory limit that no container could start with is an error of the hook about this container and
//!   the pod's directory: the runtime would refuse to start it;
//! - a quota that normalisation has brought below 1,000 µs is raised to it: the kernel takes no
//!   less;
//! - a pod that is not in the kubelet's tier `BestEffort` has asked for CPU or memory of Kubernetes' own as
//!   well. Whoever may label it may write the annotation, and is not to lift by that what the kubelet was
//!   asked for: its own directory is left to the kubelet, and of its containers what the request says is
//!   only narrowed.

use crate::{
    adjustment::Adjustment,
    extended,
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity},
    view::{ContainerView, NodeView, PodView, Stage, View},
};
use koord_model::{CpuShares, KubeQos, QosClass, Setting};
use koord_proto::keys::{annotation, label, resource};

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
    settings: &[Setting::CpuShares, Setting::CpuQuota, Setting::MemoryLimit],
};

pub(super) struct BatchResource;

// === impl BatchResource ===

impl Hook for BatchResource {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        if view.qos() != Some(QosClass::Be) {
            return Ok(Adjustment::default());
        }
        let Some(spec) = view.pod.batch_resources()? else {
            return Ok(Adjustment::default());
        };
        let key = match view.pod.annotations.get(annotation::EXTENDED_RESOURCE_SPEC) {
            Some(_) => annotation::EXTENDED_RESOURCE_SPEC,
            None => resource::BATCH_MEMORY,
        };
        let decided = extended::decide(view, &spec, key)?;
        Ok(match (view.pod.kube_qos, view.container) {
            (KubeQos::BestEffort, _) => decided,
            (_, Some(container)) => narrowed(decided, container),
            (_, None) => Adjustment::default(),
        })
    }

    /// Only to narrow what was asked for.
    fn reads_requested(&self, pod: &PodView, _node: &NodeView) -> bool {
        let narrows = pod.qos() == Some(QosClass::Be) && pod.kube_qos != KubeQos::BestEffort;
        narrows && pod.batch_resources().is_ok_and(|spec| spec.is_some())
    }
}

/// What of it is less than was asked for. The kubelet asks for the least shares where it was not asked
/// for any.
fn narrowed(decided: Adjustment, container: &ContainerView) -> Adjustment {
    let requested = &container.requested;
    let quota = (requested.cpu_quota).map(|quota| quota.of_period(requested.period()));
    Adjustment {
        cpu_shares: match requested.cpu_shares {
            Some(CpuShares::MIN) => decided.cpu_shares,
            asked => less(decided.cpu_shares, asked, container.heard),
        },
        cpu_quota: less(decided.cpu_quota, quota, container.heard),
        memory_limit: less(
            decided.memory_limit,
            requested.memory_limit,
            container.heard,
        ),
        ..decided
    }
}

/// What is decided, if that is less than was asked for; where all that was asked is `heard`, nothing asked
/// for is no limit.
fn less<T: Ord>(decided: Option<T>, asked: Option<T>, heard: bool) -> Option<T> {
    decided.filter(|decided| asked.map_or(heard, |asked| *decided < asked))
}

#[cfg(test)]
mod tests;

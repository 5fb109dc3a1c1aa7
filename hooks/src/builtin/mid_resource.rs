//! Pods of the middle priority get what they have of the node's mid resources.
//!
//! `mid-cpu` and `mid-memory` are to pods of the class `koord-mid` what batch resources are to those
//! of `koord-batch`: Koordinator's webhook puts them in the place of CPU and memory, of which the
//! kubelet then sees none. No hook of Koordinator v1.8 reads them and its webhook writes them into no
//! annotation, so such a pod has the least weight and no limits. Here the source of pods says them
//! (`--pods`), and they are weighed and limited as batch resources are. The gate is our own.
//!
//! Left alone are:
//! - pods of the classes `LSE`, `LSR` and `SYSTEM`: what they run on is not what others leave;
//! - whatever has batch resources too, which come first;
//! - of a pod that asks for CPU or memory of Kubernetes' own as well, all but the containers with mid
//!   resources: its directory is the kubelet's, who counts what these do not know.

use crate::{
    adjustment::Adjustment,
    extended,
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity},
    view::{Stage, View},
};
use koord_model::{QosClass, Setting};
use koord_proto::{
    annotation::ExtendedResourceSpec,
    keys::{label, resource},
    pods::{PodSpec, Resources},
};

pub(super) const META: HookMeta = HookMeta {
    name: "MidResource",
    gate: "MidResource",
    default_on: false,
    maturity: Maturity::Own,
    options: &[],
    stages: &[Stage::Pod, Stage::Container],
    fail_policy: FailPolicy::Open,
    doc: "weighs and limits pods and their containers by their mid resources, where a source of pods says them",
    inputs: Inputs {
        labels: &[label::QOS_CLASS],
        annotations: &[],
    },
    settings: SETTINGS,
};

const SETTINGS: &[Setting] = &[Setting::CpuShares, Setting::CpuQuota, Setting::MemoryLimit];

pub(super) struct MidResource;

// === impl MidResource ===

impl Hook for MidResource {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        let nothing = Ok(Adjustment::default());
        if !matches!(view.qos(), None | Some(QosClass::Ls | QosClass::Be)) {
            return nothing;
        }
        let Some(spec) = view.pod.spec.as_deref() else {
            return nothing;
        };
        let Some(mid) = &spec.mid else {
            return nothing;
        };
        let is_decided = SETTINGS.iter().any(|it| view.earlier.get(*it).is_some());
        if is_decided || (asks_for_more(spec) && !has_own(view, mid)) {
            return nothing;
        }
        extended::decide(view, mid, resource::MID_MEMORY)
    }
}

/// Whether the pod asks for what the kubelet counts.
fn asks_for_more(spec: &PodSpec) -> bool {
    let none = Resources::default();
    let mut containers = spec.containers.iter();
    containers.any(|it| it.requests != none || it.limits != none)
}

/// Whether this is about a container with mid resources of its own.
fn has_own(view: &View<'_>, mid: &ExtendedResourceSpec) -> bool {
    let own = view.container.zip(mid.containers.as_ref());
    own.is_some_and(|(container, containers)| containers.contains_key(&container.name))
}

#[cfg(test)]
mod tests;

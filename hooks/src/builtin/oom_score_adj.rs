//! The containers of a pod are killed as soon or as late for want of memory as its annotations say.
//!
//! One annotation speaks of all containers of the pod, the other of each by its name, and goes before
//! it. The sandbox keeps what the kubelet gives it: it goes last.
//!
//! Where this differs from Koordinator v1.8:
//! - a container has its score from its first instruction on, where its request or the runtime's
//!   plugin can say it; upstream's come with its next round;
//! - what the kubelet asked for comes back when nobody decides any more; upstream's stays;
//! - a number that is out of range, and text that is no number, is an error that is told.

use crate::{
    adjustment::Adjustment,
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity},
    view::{ContainerKind, PodView, Stage, View},
};
use koord_model::{OomScoreAdj, Setting};
use koord_proto::{annotation::oom_score_adj, keys::annotation};

pub(super) const META: HookMeta = HookMeta {
    name: "OOMScoreAdj",
    gate: "OOMScoreAdj",
    default_on: false,
    maturity: Maturity::Alpha,
    options: &[],
    stages: &[Stage::Container],
    fail_policy: FailPolicy::Open,
    doc: "has the containers of a pod killed sooner or later for want of memory, as its annotations say",
    inputs: Inputs {
        labels: &[],
        annotations: &[annotation::OOM_SCORE_ADJ, annotation::OOM_SCORE_ADJ_SPEC],
    },
    settings: &[Setting::OomScoreAdj],
};

pub(super) struct OomScoreAdjHook;

// === impl OomScoreAdjHook ===

impl Hook for OomScoreAdjHook {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        let container = view
            .container
            .filter(|it| it.kind == ContainerKind::Regular);
        Ok(Adjustment {
            oom_score_adj: match container {
                Some(container) => of_container(view.pod, &container.name)?,
                None => None,
            },
            ..Adjustment::default()
        })
    }
}

fn of_container(pod: &PodView, container: &str) -> Result<Option<OomScoreAdj>, HookError> {
    let spec = pod.oom_scores()?;
    let own = spec.map(|spec| spec.of(container)).transpose()?.flatten();
    if own.is_some() {
        return Ok(own);
    }
    let of_pod = pod.annotations.get(annotation::OOM_SCORE_ADJ);
    Ok(of_pod.map(oom_score_adj).transpose()?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fixture::{container, decide_container, node, pod, sandbox, shown};

    const ALL: &str = annotation::OOM_SCORE_ADJ;
    const SPEC: &str = annotation::OOM_SCORE_ADJ_SPEC;

    fn decided(annotations: &[(&str, &str)], name: &str) -> Result<String, HookError> {
        let pod = pod("LS", annotations);
        let decided = decide_container(&OomScoreAdjHook, &pod, &container(name), &node());
        decided.map(|adjustment| shown(&adjustment))
    }

    #[test]
    fn a_container_has_its_own_score_or_else_that_of_its_pod() {
        let both = [(ALL, "300"), (SPEC, r#"{"main":-900}"#)];
        for (annotations, name, score) in [
            (&both[..], "main", "oom_score_adj=-900"),
            (&both[..], "side", "oom_score_adj=300"),
            (&both[1..], "side", ""),
            (&both[..1], "main", "oom_score_adj=300"),
            (&[(ALL, "0")][..], "main", "oom_score_adj=0"),
            (&[], "main", ""),
        ] {
            let decided = decided(annotations, name).unwrap();
            assert_eq!(decided, score, "{annotations:?} {name}");
        }
    }

    #[test]
    fn the_class_of_a_pod_does_not_count_and_its_sandbox_is_left_alone() {
        for class in ["", "LSE", "LSR", "LS", "BE", "SYSTEM"] {
            let pod = pod(class, &[(ALL, "-500")]);
            let decided = |it| decide_container(&OomScoreAdjHook, &pod, &it, &node()).unwrap();
            assert_eq!(shown(&decided(container("a"))), "oom_score_adj=-500");
            assert_eq!(shown(&decided(sandbox())), "");
        }
    }

    #[test]
    fn a_wrong_number_costs_the_containers_that_it_is_for() {
        let odd = [(ALL, "2000"), (SPEC, r#"{"main":5000,"side":1}"#)];
        assert_eq!(decided(&odd, "main").unwrap_err().key(), SPEC);
        assert_eq!(decided(&odd, "side").unwrap(), "oom_score_adj=1");
        assert_eq!(decided(&odd, "other").unwrap_err().key(), ALL);
        let unreadable = [(ALL, "300"), (SPEC, "main=5")];
        assert_eq!(decided(&unreadable, "main").unwrap_err().key(), SPEC);
    }
}

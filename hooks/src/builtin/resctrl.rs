//! A pod may have a part of the last-level cache and of the bandwidth to memory for itself.
//!
//! Its annotation says which part, for all caches or for each. Where the processor has no class left
//! for a group of its own the pod is in that of its class, if it has one. Whoever writes an annotation could
//! take all classes with a few pods, so as many are left as there are classes of pods that the policy enables
//! and that have no group yet.
//!
//! Where this differs from Koordinator v1.8:
//! - a container is in its group from its first instruction on, and an annotation that has changed
//!   changes the group; upstream keeps the shares that the group was made with;
//! - a cache that the annotation does not name is the pod's whole; upstream then leaves out the line
//!   of all caches;
//! - the groups of the classes that the policy enables come before those of pods; upstream makes those of
//!   classes at its start, so that no pod can be before them;
//! - an annotation with a wrong value is an error, and the pod is in the group of its class;
//! - the runtime is told of no class: it would refuse to start a container whose group has gone.

use super::rdt_resctrl::{UNSUPPORTED, enabled};
use crate::{
    adjustment::Adjustment,
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity},
    view::{NodeView, Stage, View},
};
use koord_model::{CacheClasses, CacheGroup, Setting, Value};
use koord_proto::keys::annotation;

pub(super) const META: HookMeta = HookMeta {
    name: "Resctrl",
    gate: "Resctrl",
    default_on: false,
    maturity: Maturity::Alpha,
    options: &[],
    stages: &[Stage::Container],
    fail_policy: FailPolicy::Open,
    doc: "gives a pod the part of the cache and of the bandwidth to memory that it asks for",
    inputs: Inputs {
        labels: &[],
        annotations: &[annotation::RESCTRL],
    },
    settings: &[Setting::Resctrl],
};

pub(super) struct Resctrl;

// === impl Resctrl ===

impl Hook for Resctrl {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        let Some(shares) = view.pod.cache_shares()? else {
            return Ok(Adjustment::default());
        };
        if !view.node.kernel.resctrl {
            return Ok(Adjustment::default());
        }
        let otherwise = match view.earlier.get(Setting::Resctrl) {
            Some((Value::Resctrl(CacheGroup::Class(group)), _)) => Some(Box::new(group.clone())),
            _ => None,
        };
        let adjustment = Adjustment {
            resctrl: Some(CacheGroup::Pod {
                pod: view.pod.uid.clone(),
                shares,
                otherwise,
                yields_to: match view.has_cache_classes {
                    true => enabled(view.node),
                    false => CacheClasses::default(),
                },
            }),
            ..Adjustment::default()
        };
        Ok(adjustment.overriding(Setting::Resctrl))
    }

    fn unsupported(&self, node: &NodeView) -> Option<&'static str> {
        (!node.kernel.resctrl).then_some(UNSUPPORTED)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixture::{container, decide_container, node, node_with, pod, shown},
        merge::Merged,
    };
    use koord_model::{CacheClass, CacheShares, ClassGroup};
    use koord_proto::policy::NodePolicy;

    const SHARES: &str =
        r#"{"llc":{"schemata":{"range":[0,30]}},"mb":{"schemata":{"percent":20}}}"#;

    #[test]
    fn a_pod_that_asks_has_a_group_of_its_own() {
        let decided = |annotations: &[_]| {
            let pod = pod("LS", annotations);
            shown(&decide_container(&Resctrl, &pod, &container("main"), &node()).unwrap())
        };
        assert_eq!(decided(&[]), "");
        assert_eq!(
            decided(&[(annotation::RESCTRL, SHARES)]),
            "resctrl=koordlet-5f2b8a9e: cache 0-30%, bandwidth 20%"
        );
    }

    #[test]
    fn it_yields_to_the_classes_that_the_policy_enables() {
        let text = "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\nmetadata: {name: node-1}\n\
            spec: {resourceQOSStrategy: {lsClass: {resctrlQOS: {enable: true}}, \
            beClass: {resctrlQOS: {enable: true}}}}\n";
        let policy = NodePolicy::parse_stream(text, None).unwrap().policy;
        for (node, expected) in [
            (node_with(policy), &[CacheClass::Ls, CacheClass::Be][..]),
            (node(), &[]),
        ] {
            let pod = pod("LS", &[(annotation::RESCTRL, SHARES)]);
            let decided = decide_container(&Resctrl, &pod, &container("main"), &node).unwrap();
            let Some(CacheGroup::Pod { yields_to, .. }) = decided.resctrl else {
                panic!("{decided:?}");
            };
            assert!(
                yields_to.iter().eq(expected.iter().copied()),
                "{yields_to:?}"
            );
        }
    }

    #[test]
    fn its_class_is_where_it_goes_without_one_and_gives_way_to_it() {
        let class = ClassGroup {
            class: CacheClass::Ls,
            shares: CacheShares::default().into(),
            monitored: None,
        };
        let mut earlier = Merged::default();
        let of_class = Adjustment {
            resctrl: Some(CacheGroup::Class(class.clone())),
            ..Adjustment::default()
        };
        earlier.merge("RdtResctrl", of_class).unwrap();
        let pod = pod("LS", &[(annotation::RESCTRL, SHARES)]);
        let adjustment = Resctrl.decide(&View {
            stage: Stage::Container,
            pod: &pod,
            container: Some(&container("main")),
            containers: &[],
            node: &node(),
            earlier: &earlier,
            has_cache_classes: true,
        });
        let adjustment = adjustment.unwrap();
        let Some(CacheGroup::Pod { otherwise, .. }) = &adjustment.resctrl else {
            panic!("{adjustment:?}");
        };
        assert_eq!(otherwise.as_deref(), Some(&class));
        earlier.merge("Resctrl", adjustment).unwrap();
        let (_, owner) = earlier.get(Setting::Resctrl).unwrap();
        assert_eq!(
            (owner.hook, owner.overridden),
            ("Resctrl", &["RdtResctrl"][..])
        );
    }

    #[test]
    fn a_wrong_value_is_an_error_on_every_kernel() {
        let pod = pod(
            "LS",
            &[(
                annotation::RESCTRL,
                r#"{"mb":{"schemata":{"percent":101}}}"#,
            )],
        );
        let mut node = node();
        for resctrl in [true, false] {
            node.kernel.resctrl = resctrl;
            let error = decide_container(&Resctrl, &pod, &container("main"), &node).unwrap_err();
            assert_eq!(error.key(), "node.koordinator.sh/resctrl");
        }
    }

    #[test]
    fn nothing_is_decided_where_the_kernel_cannot() {
        let mut node = node();
        assert_eq!(Resctrl.unsupported(&node), None);
        node.kernel.resctrl = false;
        let pod = pod("LS", &[(annotation::RESCTRL, SHARES)]);
        let decided = decide_container(&Resctrl, &pod, &container("main"), &node).unwrap();
        assert_eq!(shown(&decided), "");
        let reason = Resctrl.unsupported(&node).unwrap();
        assert!(reason.contains("no resctrl"), "{reason}");
    }
}

use super::*;
use crate::{
    adjustment::{Adjustment, NodeAdjustment},
    fixture::{container, node, node_with, pod, slo, topology},
    hook::HookError,
    testing::{self, ScriptedHook},
};
use koord_model::{
    Bvt, CacheClass, CacheGroup, CgroupPath, CpuShares, KubeQos, QosClass, Setting, Value,
};
use koord_proto::{
    keys::annotation,
    policy::{HostCgroupBase, NodePolicy, NodeSloSpec},
};
use std::error::Error;

const BATCH: &str = r#"{"containers":{"main":{"requests":{"kubernetes.io/batch-cpu":"500"},"limits":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"64Mi"}}}}"#;

fn chain() -> Chain {
    Chain::new(&FeatureGates::default(), &FailPolicies::default())
}

fn scripted(policy: FailPolicy) -> Chain {
    let (meta, hook) = ScriptedHook::with_policy(policy);
    chain().with_hook(meta, hook)
}

/// `setting=value hook` for each value.
fn shown(merged: &Merged) -> Vec<String> {
    let values = merged.iter();
    values
        .map(|(value, owner)| format!("{}={value} {}", value.setting(), owner.hook))
        .collect()
}

/// An error and its sources.
fn told(error: &dyn Error) -> Vec<String> {
    let mut errors = vec![error.to_string()];
    let mut source = error.source();
    while let Some(error) = source {
        errors.push(error.to_string());
        source = error.source();
    }
    errors
}

#[derive(Default)]
struct Log(Vec<String>);

impl Observer for Log {
    fn panicked_at(&mut self) -> Option<String> {
        Some("somewhere".to_owned())
    }

    fn finished(&mut self, hook: &'static str, result: Result<(), &FailureKind>) {
        let result = result.map_or_else(ToString::to_string, |()| "well".into());
        self.0.push(format!("{hook} ended: {result}"));
    }
}

#[test]
fn a_container_gets_what_all_hooks_together_want() {
    let pod = pod("BE", &[(annotation::EXTENDED_RESOURCE_SPEC, BATCH)]);
    let node = node_with(NodePolicy {
        topology: Some(topology()),
        ..NodePolicy::default()
    });
    let outcome = chain().container(&pod, &container("main"), &node, &mut ());
    assert_eq!(
        shown(&outcome.merged),
        [
            "cpu.shares=512 BatchResource",
            "cpu.cfs_quota_us=50000 BatchResource",
            "cpuset.cpus=all CPUSetAllocator",
            "memory.limit_in_bytes=67108864 BatchResource",
        ]
    );
    assert!(outcome.failures.is_empty() && outcome.notices.is_empty());
}

#[test]
fn cpus_of_its_own_lift_the_quota_of_a_batch_pod() {
    let pod = pod(
        "BE",
        &[
            (annotation::EXTENDED_RESOURCE_SPEC, BATCH),
            (annotation::RESOURCE_STATUS, r#"{"cpuset":"3"}"#),
        ],
    );
    for outcome in [
        chain().pod(&pod, &[], &node(), &mut ()),
        chain().container(&pod, &container("main"), &node(), &mut ()),
    ] {
        let (value, owner) = outcome.merged.get(Setting::CpuQuota).unwrap();
        assert_eq!(value.to_string(), "unlimited");
        assert_eq!(owner.hook, "CPUSetAllocator");
        assert_eq!(owner.overridden, ["BatchResource"]);
    }
}

#[test]
fn a_hook_runs_only_at_its_stages_and_in_the_order_of_the_table() {
    let mut log = Log::default();
    chain().pod(&pod("LS", &[]), &[], &node(), &mut log);
    assert_eq!(
        log.0,
        [
            "BatchResource ended: well",
            "CPUSetAllocator ended: well",
            "CPUBurst ended: well",
            "GroupIdentity ended: well",
        ]
    );
    let mut log = Log::default();
    chain().node(&node(), &mut log);
    assert_eq!(
        log.0,
        ["CPUSetAllocator ended: well", "GroupIdentity ended: well",]
    );
}

#[test]
fn a_panicking_hook_costs_nobody_else_anything() {
    let pod = pod(
        "BE",
        &[
            (annotation::EXTENDED_RESOURCE_SPEC, BATCH),
            (testing::OPEN, "panic"),
        ],
    );
    let mut log = Log::default();
    let outcome = scripted(FailPolicy::Open).pod(&pod, &[], &node(), &mut log);
    assert_eq!(
        shown(&outcome.merged),
        [
            "cpu.shares=512 BatchResource",
            "cpu.cfs_quota_us=50000 BatchResource",
            "memory.limit_in_bytes=67108864 BatchResource",
            "cpu.bvt_warp_ns=0 GroupIdentity",
        ]
    );
    let [failure] = &outcome.failures[..] else {
        panic!("{:?}", outcome.failures);
    };
    assert_eq!(failure.hook, "ScriptedOpen");
    let FailureKind::Panic { message } = &failure.kind else {
        panic!("{failure:?}");
    };
    assert!(message.contains("a pod told this hook to"), "{message}");
    assert!(outcome.closed().is_none());
    let last = log.0.last().unwrap();
    assert!(
        last.starts_with("ScriptedOpen ended: it panicked: ") && last.ends_with(", at somewhere"),
        "{last}"
    );
}

#[test]
fn an_error_is_told_with_its_reason_and_key() {
    let pod = pod("", &[(testing::OPEN, "nonsense")]);
    let outcome = scripted(FailPolicy::Open).pod(&pod, &[], &node(), &mut ());
    let failure = &outcome.failures[0];
    assert_eq!(
        told(failure),
        [
            "hook ScriptedOpen failed",
            "annotation hooks.testing/open is unusable at $",
            "value is something else, not a script",
        ]
    );
}

#[test]
fn a_conflict_is_the_failure_of_the_later_hook() {
    let pod = pod(
        "BE",
        &[
            (annotation::EXTENDED_RESOURCE_SPEC, BATCH),
            (testing::OPEN, "64"),
        ],
    );
    let outcome = scripted(FailPolicy::Open).pod(&pod, &[], &node(), &mut ());
    let (value, owner) = outcome.merged.get(Setting::CpuShares).unwrap();
    assert_eq!(
        (value.to_string().as_str(), owner.hook),
        ("512", "BatchResource")
    );
    assert_eq!(
        told(&outcome.failures[0]),
        [
            "hook ScriptedOpen failed",
            "ScriptedOpen and BatchResource both set cpu.shares",
        ]
    );
}

#[test]
fn only_a_closed_hook_refuses_the_call() {
    for script in ["panic", "nonsense"] {
        let open = pod("", &[(testing::OPEN, script)]);
        let outcome = scripted(FailPolicy::Open).pod(&open, &[], &node(), &mut ());
        assert_eq!(outcome.failures.len(), 1);
        assert!(outcome.closed().is_none());

        let closed = pod("", &[(testing::CLOSED, script)]);
        let outcome = scripted(FailPolicy::Closed).pod(&closed, &[], &node(), &mut ());
        assert_eq!(outcome.closed().unwrap().hook, "ScriptedClosed");
    }
}

#[test]
fn the_operator_can_close_a_built_in_hook() {
    let policies = FailPolicies::parse("BatchResource=Closed").unwrap();
    let chain = Chain::new(&FeatureGates::default(), &policies);
    let pod = pod("BE", &[(annotation::EXTENDED_RESOURCE_SPEC, "nonsense")]);
    let outcome = chain.pod(&pod, &[], &node(), &mut ());
    assert_eq!(outcome.closed().unwrap().hook, "BatchResource");
}

#[test]
fn a_class_that_does_not_exist_is_noticed_and_counts_as_none() {
    let outcome = chain().pod(&pod("Gold", &[]), &[], &node(), &mut ());
    let [Notice::UnknownQosClass(class)] = &outcome.notices[..] else {
        panic!("{:?}", outcome.notices);
    };
    assert_eq!(class.name, "Gold");
    assert!(outcome.failures.is_empty());
    let without = chain().pod(&pod("", &[]), &[], &node(), &mut ());
    assert_eq!(outcome.merged, without.merged);
    assert!(without.notices.is_empty());
    let idle = Chain::empty().pod(&pod("Gold", &[]), &[], &node(), &mut ());
    assert!(idle.notices.is_empty());
}

#[test]
fn tiers_and_host_applications_come_from_the_policy() {
    let application =
        crate::fixture::host_application("nginx", Some(QosClass::Ls), HostCgroupBase::CgroupRoot);
    let node = node_with(NodePolicy {
        slo: Some(NodeSloSpec {
            host_applications: vec![application],
            ..slo()
        }),
        topology: Some(topology()),
        ..NodePolicy::default()
    });
    let outcome = chain().node(&node, &mut ());
    assert!(outcome.failures.is_empty());
    let tiers = &outcome.merged.tiers;
    assert_eq!(
        shown(&tiers[&KubeQos::Guaranteed]),
        ["cpu.bvt_warp_ns=0 GroupIdentity"]
    );
    assert_eq!(
        shown(&tiers[&KubeQos::BestEffort]),
        ["cpu.bvt_warp_ns=-1 GroupIdentity"]
    );
    let applications: Vec<(&str, Vec<String>)> = outcome
        .merged
        .host_applications
        .iter()
        .map(|(path, merged)| (path.as_str(), shown(merged)))
        .collect();
    assert_eq!(
        applications,
        [(
            "nginx",
            vec![
                "cpuset.cpus=1-2,5-6 CPUSetAllocator".to_owned(),
                "cpu.bvt_warp_ns=1 GroupIdentity".to_owned(),
            ]
        )]
    );
}

/// Wants the guaranteed tier too, which is group identity's.
struct Intruder;

impl Hook for Intruder {
    fn decide(&self, _view: &View<'_>) -> Result<Adjustment, HookError> {
        Ok(Adjustment::default())
    }

    fn decide_node(&self, node: &NodeView) -> Result<NodeAdjustment, HookError> {
        assert!(node.kernel.cpu_idle, "what was promised");
        let mut adjustment = NodeAdjustment::default();
        let wanted = Adjustment {
            cpu_bvt: Some(Bvt::new(2).unwrap()),
            ..Adjustment::default()
        };
        adjustment.tiers.insert(KubeQos::Guaranteed, wanted);
        Ok(adjustment)
    }
}

#[test]
fn faults_at_the_node_are_caught_alike() {
    let (meta, _) = ScriptedHook::with_policy(FailPolicy::Closed);
    let meta = HookMeta {
        stages: &[Stage::Node],
        ..meta
    };
    let chain = chain().with_hook(meta, Box::new(Intruder));
    let outcome = chain.node(&node(), &mut ());
    let [conflict] = &outcome.failures[..] else {
        panic!("{:?}", outcome.failures);
    };
    assert_eq!(conflict.policy, FailPolicy::Closed);
    assert_eq!(
        told(conflict)[1],
        "ScriptedClosed and GroupIdentity both set cpu.bvt_warp_ns"
    );
    let mut old = node();
    old.kernel.cpu_idle = false;
    let outcome = chain.node(&old, &mut ());
    let panic = &told(&outcome.failures[0])[1];
    assert_eq!(panic, "it panicked: what was promised");
    assert_eq!(outcome.merged.tiers.len(), 3);
}

#[test]
fn a_chain_knows_which_hooks_can_do_nothing_here() {
    let chain = chain();
    let mut node = node();
    assert_eq!(chain.unsupported(&node).count(), 0);
    node.kernel.bvt = false;
    node.kernel.resctrl = false;
    let unsupported: Vec<&str> = chain
        .unsupported(&node)
        .map(|(meta, _)| meta.name)
        .collect();
    assert_eq!(unsupported, ["GroupIdentity", "RdtResctrl"]);
    let shown = format!("{chain:?}");
    assert_eq!(
        shown,
        r#"["BatchResource", "CPUSetAllocator", "CPUBurst", "GroupIdentity", "RdtResctrl"]"#
    );
}

#[test]
fn the_text_of_a_panic_is_kept_short() {
    let long: Box<dyn Any + Send> = Box::new("x".repeat(10_000));
    assert_eq!(panic_message(&*long).len(), 256);
    let odd: Box<dyn Any + Send> = Box::new(7);
    assert_eq!(panic_message(&*odd), "it left no text");
}

#[test]
fn a_setting_that_is_left_to_others_is_not_decided_and_the_rest_of_its_hook_is() {
    let pod = pod("BE", &[(annotation::EXTENDED_RESOURCE_SPEC, BATCH)]);
    let all = chain();
    let outcome = all.container(&pod, &container("main"), &node(), &mut ());
    let whole = shown(&outcome.merged);
    assert!(whole.contains(&"cpu.shares=512 BatchResource".to_owned()));
    assert!(all.settings().contains(&Setting::CpuShares));

    let chain = chain().leaving([Setting::CpuShares].into());
    let outcome = chain.container(&pod, &container("main"), &node(), &mut ());
    let rest: Vec<String> = whole
        .into_iter()
        .filter(|it| !it.starts_with("cpu.shares"))
        .collect();
    assert!(rest.len() > 1, "{rest:?}");
    assert_eq!(shown(&outcome.merged), rest);
    assert!(!chain.settings().contains(&Setting::CpuShares));
    assert_eq!(chain.left(), &[Setting::CpuShares].into());
}

#[test]
fn a_hook_that_rests_decides_nothing_until_it_works_again() {
    let pod = pod("BE", &[(annotation::EXTENDED_RESOURCE_SPEC, BATCH)]);
    let mut chain = chain();
    let decided = |chain: &Chain| {
        let mut log = Log::default();
        let outcome = chain.container(&pod, &container("main"), &node(), &mut log);
        let ran = log.0.contains(&"BatchResource ended: well".to_owned());
        (
            ran,
            shown(&outcome.merged).contains(&"cpu.shares=512 BatchResource".to_owned()),
        )
    };
    assert_eq!(decided(&chain), (true, true));
    chain.rest(["BatchResource"].into());
    assert_eq!(decided(&chain), (false, false));
    assert!(!chain.settings().contains(&Setting::MemoryLimit));
    chain.rest(BTreeSet::new());
    assert_eq!(decided(&chain), (true, true));
}

#[test]
fn hooks_are_about_threads_where_they_can_do_something_to_them() {
    // RdtResctrl is on without being told.
    assert!(chain().is_about_threads(&node()));
    let left = chain().leaving([Setting::Resctrl].into());
    assert!(!left.is_about_threads(&node()));
    let mut without = node();
    without.kernel.resctrl = false;
    assert!(!chain().is_about_threads(&without));
    let gates = FeatureGates::parse("OOMScoreAdj=true").unwrap();
    let scores = Chain::new(&gates, &FailPolicies::default());
    assert!(scores.is_about_threads(&without));
}

#[test]
fn a_pods_caches_are_left_to_classes_by_the_hook_that_gives_them_any() {
    let text = "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\nmetadata: {name: node-1}\n\
        spec: {resourceQOSStrategy: {beClass: {resctrlQOS: {enable: true}}}}\n";
    let node = node_with(NodePolicy::parse_stream(text, None).unwrap().policy);
    let gates = FeatureGates::parse("Resctrl=true").unwrap();
    let mut chain = Chain::new(&gates, &FailPolicies::default());
    let pod = pod("LS", &[(annotation::RESCTRL, "{}")]);
    let left_to = |chain: &Chain| {
        let outcome = chain.container(&pod, &container("main"), &node, &mut ());
        let decided = outcome.merged.get(Setting::Resctrl);
        let Some((Value::Resctrl(CacheGroup::Pod { yields_to, .. }), _)) = decided else {
            panic!("{decided:?}");
        };
        yields_to.iter().collect::<Vec<_>>()
    };
    assert_eq!(left_to(&chain), [CacheClass::Be]);
    chain.switch("RdtResctrl", false);
    assert_eq!(left_to(&chain), []);
    chain.switch("RdtResctrl", true);
    chain.rest(["RdtResctrl"].into());
    assert_eq!(left_to(&chain), []);
}

#[test]
fn all_hooks_are_switched_off_at_once() {
    let mut chain = chain();
    chain.switch_all_off();
    assert!(chain.settings().is_empty());
    assert_eq!(chain.switched_off().len(), chain.hooks().len());
    assert!(chain.switch("BatchResource", true));
    assert!(chain.settings().contains(&Setting::CpuShares));
}

/// Fails as an annotation says, and has the least shares at least.
struct Failing;

impl Hook for Failing {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        let script = view.pod.annotations.get(testing::OPEN);
        assert!(script.is_none_or(|script| !script.starts_with("panic")));
        Err(HookError::HostApplication {
            name: "nginx".to_owned(),
            source: CgroupPath::parse("../up").unwrap_err(),
        })
    }

    fn at_least(&self, view: &View<'_>) -> Adjustment {
        assert_ne!(view.pod.annotations.get(testing::OPEN), Some("panic twice"));
        Adjustment {
            cpu_shares: Some(CpuShares::MIN),
            ..Adjustment::default()
        }
    }
}

#[test]
fn what_a_hook_has_at_least_is_in_force_however_it_fails_but_not_over_anothers() {
    let (meta, _) = ScriptedHook::with_policy(FailPolicy::Open);
    let chain = chain().with_hook(meta, Box::new(Failing));
    let least = "cpu.shares=2 ScriptedOpen";
    for (script, spec, there) in [
        ("error", "{}", Some(least)),
        ("panic", "{}", Some(least)),
        ("panic twice", "{}", None),
        ("error", BATCH, Some("cpu.shares=512 BatchResource")),
    ] {
        let annotations = [
            (testing::OPEN, script),
            (annotation::EXTENDED_RESOURCE_SPEC, spec),
        ];
        let outcome = chain.pod(&pod("BE", &annotations), &[], &node(), &mut ());
        let shares = shown(&outcome.merged);
        let shares = shares.iter().find(|it| it.starts_with("cpu.shares"));
        assert_eq!(shares.map(String::as_str), there, "{script} {spec}");
        let failed: Vec<_> = outcome.failures.iter().map(|it| it.hook).collect();
        assert_eq!(failed, ["ScriptedOpen"]);
    }
}

//! What holds of every built-in hook. These tests go over the table, so a new line in it is tested
//! without another word here, as long as the corpus reaches what the hook reads and sets.

use super::*;
use crate::{
    adjustment::{Adjustment, NodeAdjustment},
    chain::Chain,
    fixture::{
        container, decide_container, decide_container_after, decide_pod, host_application, in_tier,
        kept_by_hami_core, limited, metadata, node, node_with, pod, sandbox, slo, topology,
    },
    gate::{FailPolicies, FeatureGates},
    map::reads,
    merge::Merged,
    outcome::{FailureKind, Outcome},
    view::{Abilities, NodeView, PodView, Stage},
};
use koord_model::{KubeQos, MilliCpu, NodeNetwork, QosClass, Setting};
use koord_proto::{
    annotation::{ExtendedContainer, ExtendedResourceSpec, ExtendedResources},
    keys::annotation,
    pods::PodSpec,
    policy::{
        ClassCpuQos, ClassQos, ClassResctrlQos, CpuPolicy, HostCgroupBase, NodePolicy, NodeSloSpec,
        ResourceQosStrategy,
    },
};
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::Arc,
};

mod heavy_ls;

/// The hook of `docs/adding-a-hook.md`.
static OF_THE_PAGE: Row = Row {
    meta: heavy_ls::META,
    build: || Box::new(heavy_ls::HeavyLs),
};

/// The hooks of the table, and that of the page.
fn rows() -> impl Iterator<Item = &'static Row> {
    TABLE.iter().chain([&OF_THE_PAGE])
}

/// One sound value for every annotation that a hook reads.
const SOUND: [(&str, &str); 11] = [
    (
        annotation::EXTENDED_RESOURCE_SPEC,
        r#"{"containers":{"main":{"requests":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"64Mi"},"limits":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"64Mi"}}}}"#,
    ),
    (annotation::RESOURCE_STATUS, r#"{"cpuset":"3"}"#),
    (annotation::CPU_QOS, r#"{"enable":true,"groupIdentity":1}"#),
    (annotation::CPU_BURST, r#"{"policy":"auto"}"#),
    (
        annotation::MEMORY_QOS,
        r#"{"policy":"auto","minLimitPercent":50,"lowLimitPercent":60,"throttlingPercent":50,"priorityEnable":1,"priority":3,"oomKillGroup":1,"pageCacheLimitPercent":10}"#,
    ),
    (
        annotation::RESCTRL,
        r#"{"llc":{"schemata":{"range":[0,30]}}}"#,
    ),
    (
        annotation::DEVICE_ALLOCATED,
        r#"{"gpu":[{"minor":0}],"rdma":[{"minor":0,"id":"0000:65:00.0"}]}"#,
    ),
    (annotation::NETWORK_QOS, r#"{"egressLimit":"8M"}"#),
    (annotation::OOM_SCORE_ADJ, "7"),
    // Of the container that is asked about it says nothing, so the other is read too.
    (annotation::OOM_SCORE_ADJ_SPEC, r#"{"other":7}"#),
    (
        annotation::BLKIO_QOS,
        r#"{"blocks":[{"name":"vdb","type":"device","ioCfg":{"readBPS":1048576}}]}"#,
    ),
];

fn nodes() -> Vec<NodeView> {
    let policy = NodePolicy {
        slo: Some(NodeSloSpec {
            network: Some(NodeNetwork::default()),
            queues: Some(NodeNetwork::default()),
            host_applications: vec![host_application(
                "nginx",
                Some(QosClass::Ls),
                HostCgroupBase::CgroupRoot,
            )],
            ..slo()
        }),
        topology: Some(topology()),
        node: Some(metadata("1.25")),
    };
    let mut nodes = vec![node(), node_with(policy)];
    for mut mainline in nodes.clone() {
        mainline.kernel.bvt = false;
        mainline.options.be_cpu_idle = true;
        nodes.push(mainline);
    }
    nodes.push(under_core_sched());
    nodes
}

/// A node whose policy has every class in groups of its own, by cores and by caches, and every pod
/// idle.
fn under_core_sched() -> NodeView {
    let class = ClassQos {
        cpu_qos: ClassCpuQos {
            enable: true,
            sched_idle: true,
            ..ClassCpuQos::default()
        },
        resctrl_qos: ClassResctrlQos {
            enable: true,
            ..ClassResctrlQos::default()
        },
        ..ClassQos::default()
    };
    let resource_qos_strategy = ResourceQosStrategy {
        cpu_policy: CpuPolicy::CoreSched,
        lsr_class: class,
        ls_class: class,
        be_class: class,
        system_class: class,
    };
    let mut node = node_with(NodePolicy {
        slo: Some(NodeSloSpec {
            resource_qos_strategy,
            ..slo()
        }),
        ..NodePolicy::default()
    });
    node.kernel.bvt = false;
    node
}

fn pods() -> Vec<PodView> {
    let mut pods = Vec::new();
    for class in ["", "LSE", "LSR", "LS", "BE", "SYSTEM", "Gold"] {
        for tier in KubeQos::ALL {
            pods.push(in_tier(*tier, pod(class, &[])));
            pods.push(in_tier(*tier, pod(class, &SOUND)));
            let spec = Some(Arc::new(mid_spec()));
            let annotated = pod(class, &SOUND);
            for pod in [pod(class, &[]), annotated] {
                let spec = spec.clone();
                pods.push(in_tier(*tier, PodView { spec, ..pod }));
            }
        }
    }
    pods
}

/// A pod that has mid resources and nothing else.
fn mid_spec() -> PodSpec {
    let limits = ExtendedResources {
        cpu: Some(MilliCpu(500)),
        memory: Some(64 << 20),
    };
    let main = ExtendedContainer {
        requests: limits,
        limits,
    };
    PodSpec {
        mid: Some(ExtendedResourceSpec {
            containers: Some([("main".to_owned(), main)].into()),
        }),
        ..PodSpec::default()
    }
}

/// Everything that a hook decides about the corpus.
fn decisions(row: &Row) -> (Vec<Adjustment>, Vec<NodeAdjustment>) {
    let hook = (row.build)();
    let (mut adjustments, mut node_adjustments) = (Vec::new(), Vec::new());
    for node in nodes() {
        for stage in row.meta.stages {
            match stage {
                Stage::Node => node_adjustments.push(hook.decide_node(&node).unwrap()),
                Stage::Pod => adjustments.extend(
                    pods()
                        .iter()
                        .map(|pod| decide_pod(&*hook, pod, &node).unwrap()),
                ),
                Stage::Container => {
                    let kept = (container("main"), kept_by_hami_core());
                    let others = [container("main"), limited(50_000), sandbox()];
                    let others = others.map(|container| (container, Merged::default()));
                    for (container, earlier) in others.into_iter().chain([kept]) {
                        adjustments.extend(pods().iter().map(|pod| {
                            decide_container_after(&*hook, pod, &container, &node, &earlier)
                                .unwrap()
                        }));
                    }
                }
            }
        }
    }
    (adjustments, node_adjustments)
}

fn strings(keys: &[&str]) -> BTreeSet<String> {
    keys.iter().map(|key| (*key).to_owned()).collect()
}

#[test]
fn the_page_about_hooks_shows_one_that_is_compiled_and_tested() {
    let page = include_str!("../../../docs/adding-a-hook.md");
    let blocks = page.split("```rust\n").skip(1);
    let blocks: Vec<_> = blocks.filter_map(|rest| rest.split("```").next()).collect();
    let shown = [blocks[0], blocks[1]].join("\n");
    assert_eq!(shown, include_str!("tests/heavy_ls.rs"));
}

#[test]
fn names_and_gates_are_unique() {
    for name in [|meta: &HookMeta| meta.name, |meta: &HookMeta| meta.gate] {
        let names: BTreeSet<&str> = TABLE.iter().map(|row| name(&row.meta)).collect();
        assert_eq!(names.len(), TABLE.len());
    }
}

#[test]
fn every_hook_has_a_stage_and_one_line_of_documentation() {
    for Row { meta, .. } in rows() {
        assert!(!meta.stages.is_empty(), "{}", meta.name);
        assert!(!meta.settings.is_empty(), "{}", meta.name);
        assert!(meta.doc.len() > 10 && meta.doc.len() <= 120, "{}", meta.doc);
        assert!(!meta.doc.contains(['\n', '|']), "{}", meta.doc);
        assert!(!meta.doc.ends_with('.'), "{}", meta.doc);
    }
}

#[test]
fn an_empty_view_gives_an_empty_adjustment() {
    let mut node = node();
    node.kernel = Abilities::default();
    for row in rows() {
        let hook = (row.build)();
        let pod = pod("", &[]);
        assert!(decide_pod(&*hook, &pod, &node).unwrap().is_empty());
        assert!(
            decide_container(&*hook, &pod, &container("main"), &node)
                .unwrap()
                .is_empty()
        );
        assert!(hook.decide_node(&node).unwrap().is_empty());
    }
}

#[test]
fn the_same_view_gives_the_same_adjustment() {
    for row in rows() {
        assert_eq!(decisions(row), decisions(row), "{}", row.meta.name);
    }
}

#[test]
fn a_hook_reads_the_keys_that_it_declares_and_no_others() {
    for row in rows() {
        reads::take();
        decisions(row);
        let mut declared = strings(row.meta.inputs.labels);
        declared.extend(strings(row.meta.inputs.annotations));
        assert_eq!(reads::take(), declared, "{}", row.meta.name);
    }
}

#[test]
fn a_hook_sets_the_settings_that_it_declares_and_no_others() {
    for row in rows() {
        let (mut adjustments, node_adjustments) = decisions(row);
        for NodeAdjustment {
            root,
            tiers,
            host_applications,
        } in node_adjustments
        {
            adjustments.push(root);
            adjustments.extend(tiers.into_values());
            adjustments.extend(host_applications.into_values());
        }
        let set: BTreeSet<Setting> = adjustments
            .iter()
            .flat_map(|adjustment| adjustment.values().map(|value| value.setting()))
            .collect();
        let declared: BTreeSet<Setting> = row.meta.settings.iter().copied().collect();
        assert_eq!(set, declared, "{}", row.meta.name);
    }
}

/// All hooks at once, whatever their defaults.
fn every_hook() -> Chain {
    let on: Vec<String> = TABLE
        .iter()
        .map(|r| format!("{}=true", r.meta.gate))
        .collect();
    let gates = FeatureGates::parse(&on.join(",")).unwrap();
    Chain::new(&gates, &FailPolicies::default())
}

fn outcomes(chain: &Chain, pod: &PodView) -> Vec<(Stage, Outcome)> {
    let container = limited(50_000);
    let about = |node| {
        let of_container = chain.container(pod, &container, node, &mut ());
        [
            (Stage::Pod, chain.pod(pod, &[], node, &mut ())),
            (Stage::Container, of_container),
        ]
    };
    nodes().iter().flat_map(about).collect()
}

#[test]
fn the_built_in_hooks_agree_with_one_another() {
    for pod in pods() {
        for (_, outcome) in outcomes(&every_hook(), &pod) {
            assert!(outcome.failures.is_empty(), "{:?}", outcome.failures);
        }
    }
}

const SENSELESS_SHARES: (&str, [&str; 3]) = (
    "LS",
    [
        r#"{"llc":{"schemata":{"range":[30,30]}}}"#,
        r#"{"mb":{"schemata":{"percent":101}}}"#,
        r#"{"llc":{"schemataPerCache":[{"cacheID":0,"range":"0-30"}]}}"#,
    ],
);

const SENSELESS_RANKS: (&str, [&str; 3]) = (
    "LS",
    [
        r#"{"enable":true,"groupIdentity":-2}"#,
        r#"{"enable":"true"}"#,
        r#"{"enable":true,"groupIdentity":9223372036854775808}"#,
    ],
);

const SENSELESS_DEVICES: (&str, [&str; 3]) = (
    "LS",
    [
        r#"{"gpu":[{"minor":-1}]}"#,
        r#"{"gpu":[{"minor":"0"}]}"#,
        r#"{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-core":"half"}}]}"#,
    ],
);

const SENSELESS_RATES: (&str, [&str; 3]) = (
    "LS",
    [
        r#"{"egressLimit":"-1"}"#,
        r#"{"ingressLimit":"50%"}"#,
        r#"{"ingressLimit":{}}"#,
    ],
);

const SENSELESS_SCORE: (&str, [&str; 3]) = ("LS", ["1001", "-1001", "1.5"]);

const SENSELESS_SCORES: (&str, [&str; 3]) = (
    "LS",
    [
        r#"{"main":1001}"#,
        r#"{"main":"7"}"#,
        r#"{"other":{"main":7}}"#,
    ],
);

const SENSELESS_BURST: (&str, [&str; 3]) = (
    "LS",
    [
        r#"{"policy":"Auto"}"#,
        r#"{"cpuBurstPercent":0}"#,
        r#"{"cpuBurstPercent":"100"}"#,
    ],
);

const SENSELESS_LIMITS: (&str, [&str; 3]) = (
    "LS",
    [
        r#"{"blocks":[{"name":"vdb","type":"disk"}]}"#,
        r#"{"blocks":[{"name":"../vdb","type":"device"}]}"#,
        r#"{"blocks":[{"name":"vdb","type":"device","ioCfg":{"readBPS":-1}}]}"#,
    ],
);

/// For each annotation a class for which all that read it read it, and what is JSON but makes no sense
/// in it. An annotation that is missing here fails the test.
fn senseless() -> BTreeMap<&'static str, (&'static str, [&'static str; 3])> {
    BTreeMap::from([
        (
            annotation::EXTENDED_RESOURCE_SPEC,
            (
                "BE",
                [
                    r#"{"containers":{"main":{"limits":{"kubernetes.io/batch-cpu":"-1"}}}}"#,
                    r#"{"containers":{"main":{"limits":{"kubernetes.io/batch-memory":"1 KB"}}}}"#,
                    r#"{"containers":["main"]}"#,
                ],
            ),
        ),
        (
            annotation::RESOURCE_STATUS,
            (
                "LS",
                [
                    r#"{"cpuset":"3-1"}"#,
                    r#"{"cpuset":"8192"}"#,
                    r#"{"cpuset":"3","numaNodeResources":[{"node":"0"}]}"#,
                ],
            ),
        ),
        (annotation::CPU_BURST, SENSELESS_BURST),
        (
            annotation::MEMORY_QOS,
            (
                "LS",
                [
                    r#"{"policy":"Auto"}"#,
                    r#"{"wmarkMinAdj":-26}"#,
                    r#"{"oomKillGroup":true}"#,
                ],
            ),
        ),
        (annotation::RESCTRL, SENSELESS_SHARES),
        (annotation::DEVICE_ALLOCATED, SENSELESS_DEVICES),
        (annotation::NETWORK_QOS, SENSELESS_RATES),
        (annotation::OOM_SCORE_ADJ, SENSELESS_SCORE),
        (annotation::OOM_SCORE_ADJ_SPEC, SENSELESS_SCORES),
        (annotation::BLKIO_QOS, SENSELESS_LIMITS),
        (annotation::CPU_QOS, SENSELESS_RANKS),
    ])
}

#[test]
fn a_malformed_annotation_costs_its_hook_the_whole_adjustment_and_is_named() {
    let deep = "[".repeat(100_000);
    let huge = format!("\"{}\"", "x".repeat(1 << 20));
    let unusable = [
        "", "not JSON", "[]", "7", r#"{"a":"#, "\"\0\"", &deep, &huge,
    ];
    let senseless = senseless();
    for Row { meta, .. } in TABLE {
        for key in meta.inputs.annotations {
            // Nobody gets out of the class's part of the network by it.
            let keeps_class = *key == annotation::NETWORK_QOS;
            let (class, senseless) = senseless[key];
            let unusable = unusable
                .into_iter()
                .filter(|it| !SOUND.contains(&(key, it)));
            for text in unusable.chain(senseless) {
                let pod = pod(class, &[(key, text)]);
                for (stage, outcome) in outcomes(&every_hook(), &pod) {
                    let failed = failed_on(&outcome).contains(&(meta.name, *key));
                    assert_eq!(failed, meta.stages.contains(&stage), "{key} {text:.40}");
                    let mut owners = outcome.merged.iter().map(|(_, owner)| owner.hook);
                    assert!(
                        !failed || keeps_class || !owners.any(|hook| hook == meta.name),
                        "{key} {text:.40}"
                    );
                }
            }
        }
    }
}

/// The hooks that failed, each with the key that it failed on. No other key was at fault.
fn failed_on(outcome: &Outcome) -> BTreeSet<(&'static str, &'static str)> {
    let failures = outcome.failures.iter();
    let named = failures.map(|failure| match &failure.kind {
        FailureKind::Error(error) => (failure.hook, error.key()),
        other => panic!("{other:?}"),
    });
    let named: BTreeSet<_> = named.collect();
    let keys: BTreeSet<_> = named.iter().map(|(_, key)| key).collect();
    assert!(keys.len() <= 1, "{named:?}");
    named
}

use super::*;
use crate::{
    fixture::{container, decide_container, decide_pod, in_tier, node_with, pod, sandbox, shown},
    view::PodView,
};
use koord_proto::{
    pods::PodSpec,
    policy::{ClassQos, NodePolicy, NodeSloSpec},
};
use std::sync::Arc;

/// LSR and LS expel, BE is idle; no group identity.
fn strategy() -> ResourceQosStrategy {
    let class = |core_expeller, sched_idle| ClassQos {
        cpu_qos: ClassCpuQos {
            enable: true,
            core_expeller,
            sched_idle,
            ..ClassCpuQos::default()
        },
        ..ClassQos::default()
    };
    ResourceQosStrategy {
        cpu_policy: CpuPolicy::CoreSched,
        lsr_class: class(true, false),
        ls_class: class(true, false),
        be_class: class(false, true),
        system_class: class(true, true),
    }
}

fn node(strategy: ResourceQosStrategy) -> NodeView {
    let mut node = node_with(NodePolicy {
        slo: Some(NodeSloSpec {
            resource_qos_strategy: strategy,
            ..NodeSloSpec::default()
        }),
        ..NodePolicy::default()
    });
    node.kernel.bvt = false;
    node
}

fn labelled(class: &str, labels: &[(&str, &str)]) -> PodView {
    let class = Some((label::QOS_CLASS, class)).filter(|(_, class)| !class.is_empty());
    PodView {
        labels: class.into_iter().chain(labels.iter().copied()).collect(),
        ..pod("", &[])
    }
}

fn of_container(pod: &PodView, node: &NodeView) -> String {
    let [container, sandbox] = [container("main"), sandbox()]
        .map(|it| shown(&decide_container(&CoreSched, pod, &it, node).unwrap()));
    assert_eq!(container, sandbox);
    container
}

fn of_pod(pod: &PodView, node: &NodeView) -> String {
    shown(&decide_pod(&CoreSched, pod, node).unwrap())
}

const ID: &str = "koordinator.sh/core-sched-group-id";
const POLICY: &str = "koordinator.sh/core-sched-policy";

#[test]
fn a_label_names_the_group_and_expellers_are_apart() {
    let node = node(strategy());
    for (class, expected) in [
        ("LSE", "core_sched=group \"web\"-expeller"),
        ("LSR", "core_sched=group \"web\"-expeller"),
        ("LS", "core_sched=group \"web\"-expeller"),
        ("BE", "core_sched=group \"web\""),
        ("SYSTEM", ""),
    ] {
        let pod = labelled(class, &[(ID, "web")]);
        assert_eq!(of_container(&pod, &node), expected, "{class}");
    }
}

#[test]
fn a_pod_without_the_label_is_in_the_group_without_a_name() {
    let node = node(strategy());
    let expected = "core_sched=group \"\"";
    assert_eq!(of_container(&labelled("BE", &[]), &node), expected);
    assert_eq!(of_container(&labelled("BE", &[(ID, "")]), &node), expected);
}

#[test]
fn a_pod_may_be_alone_or_in_no_group() {
    let node = node(strategy());
    let with = |policy| labelled("LS", &[(ID, "web"), (POLICY, policy)]);
    let alone = "core_sched=pod 5f2b8a9e alone";
    assert_eq!(of_container(&with("exclusive"), &node), alone);
    assert_eq!(of_container(&with("none"), &node), "");
    for default in ["", "Exclusive"] {
        let expected = "core_sched=group \"web\"-expeller";
        assert_eq!(of_container(&with(default), &node), expected);
    }
}

#[test]
fn a_pod_without_a_class_is_treated_by_its_tier() {
    let mut strategy = strategy();
    strategy.lsr_class.cpu_qos.core_expeller = false;
    let tiers = [KubeQos::Guaranteed, KubeQos::Burstable, KubeQos::BestEffort];
    let groups = |node: &NodeView| {
        tiers.map(|tier| of_container(&in_tier(tier, labelled("", &[(ID, "a")])), node))
    };
    let (plain, expeller) = ("core_sched=group \"a\"", "core_sched=group \"a\"-expeller");
    assert_eq!(groups(&node(strategy)), [plain, expeller, plain]);
    strategy.lsr_class = ClassQos::default();
    assert_eq!(groups(&node(strategy)), [expeller, expeller, plain]);
}

#[test]
fn idleness_goes_to_the_directories_of_pods() {
    let node = node(strategy());
    assert_eq!(of_pod(&labelled("BE", &[]), &node), "cpu.idle=true");
    for class in ["LSE", "LSR", "LS", "SYSTEM"] {
        assert_eq!(of_pod(&labelled(class, &[]), &node), "", "{class}");
    }
    let unlabelled = in_tier(KubeQos::BestEffort, labelled("", &[]));
    assert_eq!(of_pod(&unlabelled, &node), "cpu.idle=true");
    // The kernel takes no shares for it, which a kubelet writes with a resize.
    let mut stuck = labelled("BE", &[]);
    stuck.spec = Some(Arc::new(PodSpec {
        is_stuck_in_resize: true,
        ..PodSpec::default()
    }));
    assert_eq!(of_pod(&stuck, &node), "");
}

#[test]
fn nothing_is_decided_where_policy_or_kernel_have_no_core_scheduling() {
    let pod = labelled("BE", &[(ID, "a")]);
    let both = |node: &NodeView| (of_pod(&pod, node), of_container(&pod, node));
    let nothing = (String::new(), String::new());

    let mut other = strategy();
    other.cpu_policy = CpuPolicy::GroupIdentity;
    assert_eq!(both(&node(other)), nothing);
    let mut disabled = strategy();
    disabled.be_class = ClassQos::default();
    assert_eq!(both(&node(disabled)), nothing);

    let mut kernel = node(strategy());
    kernel.kernel.core_sched = false;
    let idle = ("cpu.idle=true".to_owned(), String::new());
    assert_eq!(both(&kernel), idle);
    kernel.kernel.cpu_idle = false;
    assert_eq!(both(&kernel), nothing);
    kernel = node(strategy());
    kernel.kernel.bvt = true;
    assert_eq!(both(&kernel), nothing);
}

#[test]
fn the_switch_is_needed_where_a_class_is_in_groups_and_group_identity_can_go_off() {
    let switch = |node: &NodeView| CoreSched.decide_node(node).unwrap().root.sched_switch;
    let needed = Some(SchedSwitch::CoreSched);
    let mut kernel = node(strategy());
    assert_eq!(switch(&kernel), needed);
    kernel.kernel.bvt = true;
    assert_eq!(switch(&kernel), None);
    kernel.kernel.identity_switch = true;
    assert_eq!(switch(&kernel), needed);
    let in_group = of_container(&labelled("BE", &[(ID, "a")]), &kernel);
    assert_eq!(in_group, "core_sched=group \"a\"");
    assert_eq!(CoreSched.unsupported(&kernel), None);

    let mut other = strategy();
    other.cpu_policy = CpuPolicy::GroupIdentity;
    let nobody = ResourceQosStrategy {
        lsr_class: ClassQos::default(),
        ls_class: ClassQos::default(),
        be_class: ClassQos::default(),
        ..strategy()
    };
    let mut without = node(strategy());
    without.kernel.files.remove(&Setting::SchedSwitch);
    let mut incapable = node(strategy());
    incapable.kernel.core_sched = false;
    for node in [node(other), node(nobody), without, incapable] {
        assert_eq!(switch(&node), None);
    }
}

#[test]
fn why_it_can_do_nothing_is_said() {
    let mut node = node(strategy());
    assert_eq!(CoreSched.unsupported(&node), None);
    node.kernel.core_sched = false;
    assert!(
        CoreSched
            .unsupported(&node)
            .unwrap()
            .contains("no core scheduling")
    );
    node.kernel.bvt = true;
    assert!(
        CoreSched
            .unsupported(&node)
            .unwrap()
            .contains("group identity")
    );
}

use super::*;
use crate::{
    fixture::{decide_pod, host_application, in_tier, node, node_with, pod, slo},
    view::PodView,
};
use koord_proto::{
    pods::PodSpec,
    policy::{HostCgroupBase, NodePolicy, NodeSloSpec},
};
use std::sync::Arc;

const OWN: &str = annotation::CPU_QOS;

fn ruled(slo: NodeSloSpec) -> NodeView {
    node_with(NodePolicy {
        slo: Some(slo),
        ..NodePolicy::default()
    })
}

fn under_core_sched() -> NodeView {
    let mut slo = slo();
    slo.resource_qos_strategy.cpu_policy = CpuPolicy::CoreSched;
    ruled(slo)
}

fn without_bvt(mut node: NodeView) -> NodeView {
    node.kernel.bvt = false;
    node
}

fn rank(pod: &PodView, node: &NodeView) -> Option<i8> {
    let decided = decide_pod(&GroupIdentity, pod, node).unwrap();
    decided.cpu_bvt.map(Bvt::get)
}

/// The ranks of a class in the tiers guaranteed, burstable and best effort.
fn ranks(class: &str, node: &NodeView) -> [Option<i8>; 3] {
    [KubeQos::Guaranteed, KubeQos::Burstable, KubeQos::BestEffort]
        .map(|tier| rank(&in_tier(tier, pod(class, &[])), node))
}

#[test]
fn a_pod_has_the_rank_of_its_class() {
    let node = ruled(slo());
    for (class, expected) in [("LSE", 2), ("LSR", 2), ("LS", 1), ("BE", -1)] {
        assert_eq!(ranks(class, &node), [Some(expected); 3], "{class}");
    }
}

#[test]
fn a_pod_without_class_ranks_by_its_tier_and_so_does_a_system_pod() {
    let node = ruled(slo());
    for class in ["", "SYSTEM", "Gold", "ls"] {
        assert_eq!(
            ranks(class, &node),
            [Some(2), Some(1), Some(-1)],
            "{class:?}"
        );
    }
}

#[test]
fn a_guaranteed_pod_without_class_falls_back_to_ls_and_then_to_nothing() {
    let mut slo = slo();
    slo.resource_qos_strategy.lsr_class = Default::default();
    assert_eq!(ranks("", &ruled(slo.clone())), [Some(1), Some(1), Some(-1)]);
    slo.resource_qos_strategy.ls_class = Default::default();
    assert_eq!(ranks("", &ruled(slo)), [Some(0), Some(0), Some(-1)]);
}

#[test]
fn a_class_that_is_not_enabled_ranks_0() {
    let node = ruled(NodeSloSpec::default());
    for class in ["LSE", "LSR", "LS", "BE", "SYSTEM", ""] {
        assert_eq!(ranks(class, &node), [Some(0); 3], "{class:?}");
    }
}

#[test]
fn without_a_policy_or_under_core_scheduling_everything_ranks_0() {
    for node in [node(), under_core_sched()] {
        for class in ["LSE", "LSR", "LS", "BE", "SYSTEM", ""] {
            assert_eq!(ranks(class, &node), [Some(0); 3], "{class:?}");
        }
        let decided = GroupIdentity.decide_node(&node).unwrap();
        for tier in KubeQos::ALL {
            assert_eq!(decided.tiers[tier], ranked(Bvt::default()), "{tier}");
        }
    }
}

#[test]
fn tiers_rank_as_ls_and_be_and_their_root_0() {
    let decided = GroupIdentity.decide_node(&ruled(slo())).unwrap();
    let rank = |tier| decided.tiers[&tier].cpu_bvt.map(Bvt::get);
    assert_eq!(rank(KubeQos::Guaranteed), Some(0));
    assert_eq!(rank(KubeQos::Burstable), Some(1));
    assert_eq!(rank(KubeQos::BestEffort), Some(-1));
}

#[test]
fn the_switch_is_needed_where_a_class_is_ranked() {
    let switch = |node: &NodeView| {
        let decided = GroupIdentity.decide_node(node).unwrap();
        decided.root.sched_switch
    };
    let nobody = NodeSloSpec::default();
    for class in [QosClass::Lsr, QosClass::Ls, QosClass::Be] {
        let mut alone = nobody.clone();
        let strategy = &mut alone.resource_qos_strategy;
        match class {
            QosClass::Lsr => strategy.lsr_class.cpu_qos.enable = true,
            QosClass::Ls => strategy.ls_class.cpu_qos.enable = true,
            _ => strategy.be_class.cpu_qos.enable = true,
        }
        let needed = Some(SchedSwitch::GroupIdentity);
        assert_eq!(switch(&ruled(alone)), needed, "{class:?}");
    }
    let mut without = ruled(slo());
    without.kernel.files.remove(&Setting::SchedSwitch);
    for node in [
        node(),
        ruled(nobody),
        under_core_sched(),
        without_bvt(ruled(slo())),
        without,
    ] {
        assert_eq!(switch(&node), None);
    }
}

#[test]
fn an_ls_pod_can_say_its_own_rank() {
    for (text, expected) in [
        (r#"{"enable":true,"groupIdentity":-1}"#, -1),
        (r#"{"enable":true,"groupIdentity":2}"#, 2),
        (r#"{"Enable":true,"GROUPIDENTITY":0}"#, 0),
        (r#"{"enable":true}"#, 1),
        (r#"{"enable":false,"groupIdentity":2}"#, 0),
        (r#"{"groupIdentity":2}"#, 0),
        ("{}", 0),
        ("null", 0),
    ] {
        let own = pod("LS", &[(OWN, text)]);
        assert_eq!(rank(&own, &ruled(slo())), Some(expected), "{text}");
    }
}

#[test]
fn the_annotation_counts_where_the_class_is_off_but_not_under_core_scheduling() {
    let own = pod("LS", &[(OWN, r#"{"enable":true,"groupIdentity":2}"#)]);
    assert_eq!(rank(&own, &ruled(NodeSloSpec::default())), Some(2));
    assert_eq!(rank(&own, &node()), Some(2));
    assert_eq!(rank(&own, &under_core_sched()), Some(0));
}

#[test]
fn the_annotation_of_other_classes_is_not_even_read() {
    for (class, expected) in [("LSE", 2), ("LSR", 2), ("BE", -1), ("SYSTEM", 1), ("", 1)] {
        for text in ["not JSON", r#"{"enable":true,"groupIdentity":0}"#] {
            let own = pod(class, &[(OWN, text)]);
            assert_eq!(
                rank(&own, &ruled(slo())),
                Some(expected),
                "{class:?} {text}"
            );
        }
    }
}

#[test]
fn a_rank_out_of_range_is_an_error_on_every_kernel() {
    let own = pod("LS", &[(OWN, r#"{"enable":true,"groupIdentity":3}"#)]);
    for node in [ruled(slo()), without_bvt(node())] {
        let error = decide_pod(&GroupIdentity, &own, &node).unwrap_err();
        assert_eq!(error.key(), "koordinator.sh/cpuQOS");
        assert_eq!(
            error.to_string(),
            "annotation koordinator.sh/cpuQOS is unusable at $.groupIdentity"
        );
    }
}

#[test]
fn a_host_application_ranks_as_its_class() {
    let of = |name, qos| host_application(name, qos, HostCgroupBase::CgroupRoot);
    let node = ruled(NodeSloSpec {
        host_applications: vec![
            of("a-lse", Some(QosClass::Lse)),
            of("b-lsr", Some(QosClass::Lsr)),
            of("c-ls", Some(QosClass::Ls)),
            of("d-be", Some(QosClass::Be)),
            of("e-system", Some(QosClass::System)),
            of("f-none", None),
            host_application("g", Some(QosClass::Be), HostCgroupBase::KubepodsBesteffort),
        ],
        ..slo()
    });
    let decided = GroupIdentity.decide_node(&node).unwrap();
    let seen: Vec<(&str, i8)> = decided
        .host_applications
        .iter()
        .map(|(path, adjustment)| (path.as_str(), adjustment.cpu_bvt.unwrap().get()))
        .collect();
    assert_eq!(
        seen,
        [
            ("a-lse", 2),
            ("b-lsr", 2),
            ("c-ls", 1),
            ("d-be", -1),
            ("e-system", 0),
            ("f-none", 0),
            ("kubepods/besteffort/g", -1),
        ]
    );
}

#[test]
fn a_kernel_without_group_identity_is_left_alone() {
    let node = without_bvt(ruled(slo()));
    assert_eq!(ranks("LS", &node), [None; 3]);
    assert_eq!(idle("BE", &node), None);
    assert!(GroupIdentity.decide_node(&node).unwrap().is_empty());
}

fn idle(class: &str, node: &NodeView) -> Option<bool> {
    let decided = decide_pod(&GroupIdentity, &pod(class, &[]), node).unwrap();
    assert_eq!(decided.cpu_bvt.is_some(), node.kernel.bvt);
    decided.cpu_idle
}

fn mainline(node: NodeView) -> NodeView {
    let mut node = without_bvt(node);
    node.options.be_cpu_idle = true;
    node
}

#[test]
fn behind_the_gate_be_pods_and_no_others_are_idle() {
    let node = mainline(node());
    assert_eq!(idle("BE", &node), Some(true));
    for class in ["", "LSE", "LSR", "LS", "SYSTEM", "be"] {
        assert_eq!(idle(class, &node), None, "{class:?}");
    }
    assert!(GroupIdentity.decide_node(&node).unwrap().is_empty());
}

#[test]
fn a_pod_that_the_kubelet_fails_to_resize_is_not_idle() {
    let told = |is_stuck_in_resize| PodView {
        spec: Some(Arc::new(PodSpec {
            is_stuck_in_resize,
            ..PodSpec::default()
        })),
        ..pod("BE", &[])
    };
    let node = mainline(node());
    for (stuck, idle) in [(false, Some(true)), (true, None)] {
        let decided = decide_pod(&GroupIdentity, &told(stuck), &node).unwrap();
        assert_eq!(decided.cpu_idle, idle, "{stuck}");
    }
}

#[test]
fn a_policy_switches_idleness_as_it_does_the_rank_of_be() {
    assert_eq!(idle("BE", &mainline(ruled(slo()))), Some(true));
    let off = mainline(ruled(NodeSloSpec::default()));
    assert_eq!(idle("BE", &off), None);
    assert_eq!(idle("BE", &mainline(under_core_sched())), None);
}

#[test]
fn a_kernel_with_group_identity_or_without_cpu_idle_has_nobody_idle() {
    let mut both = mainline(node());
    both.kernel.bvt = true;
    assert_eq!(idle("BE", &both), None);
    let mut neither = mainline(node());
    neither.kernel.cpu_idle = false;
    assert_eq!(idle("BE", &neither), None);
}

#[test]
fn what_cannot_be_done_here_is_told() {
    let mut neither = without_bvt(node());
    neither.kernel.cpu_idle = false;
    for (node, reason) in [
        (node(), None),
        (mainline(node()), None),
        (
            without_bvt(node()),
            Some("the kernel has no cpu.bvt_warp_ns, and BECPUIdle is off"),
        ),
        (
            neither,
            Some("the kernel has neither cpu.bvt_warp_ns nor cpu.idle"),
        ),
    ] {
        assert_eq!(GroupIdentity.unsupported(&node), reason);
    }
}

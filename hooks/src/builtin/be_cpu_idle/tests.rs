use super::*;
use crate::fixture::{decide_pod, node, node_with, pod, slo};
use koord_proto::policy::{NodePolicy, NodeSloSpec};

fn idle(class: &str, node: &NodeView) -> Option<bool> {
    let decided = decide_pod(&BeCpuIdle, &pod(class, &[]), node).unwrap();
    decided.cpu_idle
}

fn mainline(mut node: NodeView) -> NodeView {
    node.kernel.bvt = false;
    node
}

fn ruled(slo: NodeSloSpec) -> NodeView {
    mainline(node_with(NodePolicy {
        slo: Some(slo),
        ..NodePolicy::default()
    }))
}

#[test]
fn without_a_policy_be_pods_and_no_others_are_idle() {
    let node = mainline(node());
    assert_eq!(idle("BE", &node), Some(true));
    for class in ["", "LSE", "LSR", "LS", "SYSTEM", "be"] {
        assert_eq!(idle(class, &node), None, "{class:?}");
    }
}

#[test]
fn a_policy_switches_it_as_it_does_group_identity() {
    assert_eq!(idle("BE", &ruled(slo())), Some(true));
    assert_eq!(idle("BE", &ruled(NodeSloSpec::default())), None);
    let mut core_sched = slo();
    core_sched.resource_qos_strategy.cpu_policy = CpuPolicy::CoreSched;
    assert_eq!(idle("BE", &ruled(core_sched)), None);
}

#[test]
fn a_kernel_with_group_identity_or_without_cpu_idle_is_left_alone() {
    assert_eq!(idle("BE", &node()), None);
    assert_eq!(
        BeCpuIdle.unsupported(&node().kernel),
        Some("the kernel has cpu.bvt_warp_ns, which GroupIdentity sets")
    );
    let mut old = mainline(node());
    old.kernel.cpu_idle = false;
    assert_eq!(idle("BE", &old), None);
    assert_eq!(
        BeCpuIdle.unsupported(&old.kernel),
        Some("the kernel has no cpu.idle")
    );
    assert_eq!(BeCpuIdle.unsupported(&mainline(node()).kernel), None);
}

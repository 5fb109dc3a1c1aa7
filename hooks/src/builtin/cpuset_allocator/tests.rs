use super::*;
use crate::{
    fixture::{
        container, cpus, decide_container, decide_pod, host_application, in_tier, node, node_with,
        pod, sandbox, shown, slo, topology,
    },
    view::PodView,
};
use koord_proto::{
    annotation::CpuManagerPolicy,
    policy::{HostCgroupBase, NodePolicy, NodeSloSpec, NodeTopology},
};

const STATUS: &str = annotation::RESOURCE_STATUS;
const OWN: &str = r#"{"cpuset":"3,7"}"#;
const ON_NODE_1: &str = r#"{"numaNodeResources":[{"node":1,"resources":{"cpu":"4"}}]}"#;
const BATCH_ON_BOTH: &str = r#"{"numaNodeResources":[
    {"node":0,"resources":{"kubernetes.io/batch-cpu":1000}},
    {"node":1,"resources":{"kubernetes.io/batch-cpu":1000}}]}"#;
const MEMORY_ON_NODE_1: &str = r#"{"numaNodeResources":[{"node":1,"resources":{"memory":"1Gi"}}]}"#;

fn reported(topology: NodeTopology) -> NodeView {
    node_with(NodePolicy {
        topology: Some(topology),
        ..NodePolicy::default()
    })
}

fn with_static_kubelet() -> NodeView {
    reported(NodeTopology {
        cpu_manager: CpuManagerPolicy {
            policy: "static".into(),
        },
        ..topology()
    })
}

fn with_be_cpu_manager(mut node: NodeView) -> NodeView {
    node.options.be_cpu_manager = true;
    node
}

fn pod_of(class: &str, status: &str) -> PodView {
    let status = Some((STATUS, status)).filter(|(_, status)| !status.is_empty());
    pod(class, status.as_slice())
}

/// The values of a container, which are the sandbox's too but for the quota.
fn of_container(pod: &PodView, node: &NodeView) -> String {
    let regular = decide_container(&CpusetAllocator, pod, &container("main"), node).unwrap();
    let sandbox = decide_container(&CpusetAllocator, pod, &sandbox(), node).unwrap();
    assert_eq!(sandbox.cpuset_cpus, regular.cpuset_cpus);
    assert_eq!(sandbox.cpu_quota, None);
    shown(&regular)
}

#[test]
fn case_1_cpus_of_the_pods_own_go_before_everything() {
    for class in ["", "LSE", "LSR", "LS", "BE", "SYSTEM"] {
        for node in [node(), with_static_kubelet()] {
            let values = of_container(&pod_of(class, OWN), &node);
            assert_eq!(
                values, "cpu.cfs_quota_us=unlimited cpuset.cpus=3,7",
                "{class}"
            );
        }
    }
}

#[test]
fn case_1_lifts_the_quota_of_the_pod_too() {
    let decided = decide_pod(&CpusetAllocator, &pod_of("LSR", OWN), &node()).unwrap();
    assert_eq!(shown(&decided), "cpu.cfs_quota_us=unlimited");
    assert_eq!(decided.overrides, [Setting::CpuQuota]);
    let decided = decide_pod(&CpusetAllocator, &pod_of("LSR", ""), &node()).unwrap();
    assert!(decided.is_empty());
}

#[test]
fn the_operator_can_have_the_quota_kept() {
    let mut node = node();
    node.options.disable_unset_cpu_quota = true;
    let pod = pod_of("LSR", OWN);
    assert_eq!(of_container(&pod, &node), "cpuset.cpus=3,7");
    assert!(
        decide_pod(&CpusetAllocator, &pod, &node)
            .unwrap()
            .is_empty()
    );
}

#[test]
fn case_2_without_a_report_of_the_node_nothing_is_set() {
    for class in ["", "LS", "BE", "SYSTEM"] {
        for tier in KubeQos::ALL {
            let pod = in_tier(*tier, pod_of(class, ON_NODE_1));
            assert_eq!(of_container(&pod, &node()), "", "{class:?} {tier}");
        }
    }
}

#[test]
fn case_3_best_effort_pods_on_numa_nodes_get_the_pools_there_behind_a_gate() {
    let pod = in_tier(KubeQos::BestEffort, pod_of("BE", BATCH_ON_BOTH));
    let gated = with_be_cpu_manager(reported(topology()));
    assert_eq!(of_container(&pod, &gated), "cpuset.cpus=2,6");
    assert_eq!(of_container(&pod, &reported(topology())), "cpuset.cpus=all");
}

#[test]
fn case_4_other_pods_on_numa_nodes_get_the_pools_there() {
    for class in ["", "LSE", "LSR", "LS", "SYSTEM"] {
        for node in [reported(topology()), with_static_kubelet()] {
            let values = of_container(&pod_of(class, ON_NODE_1), &node);
            assert_eq!(values, "cpuset.cpus=5-6", "{class:?}");
        }
    }
    let both = of_container(&pod_of("LS", BATCH_ON_BOTH), &reported(topology()));
    assert_eq!(both, "cpuset.cpus=1-2,5-6");
}

#[test]
fn numa_nodes_without_cpu_do_not_bind() {
    for status in [
        MEMORY_ON_NODE_1,
        r#"{"numaNodeResources":[{"node":1,"resources":{"cpu":"0","kubernetes.io/batch-cpu":"0"}}]}"#,
        r#"{"numaNodeResources":[{"node":1}]}"#,
    ] {
        let values = of_container(&pod_of("LS", status), &reported(topology()));
        assert_eq!(values, "cpuset.cpus=1-2,5-6", "{status}");
    }
}

#[test]
fn case_5_system_pods_get_the_cpus_set_aside() {
    let values = of_container(&pod_of("SYSTEM", ""), &with_static_kubelet());
    assert_eq!(values, "cpuset.cpus=0");
    let without = NodeTopology {
        system_qos: None,
        ..topology()
    };
    let values = of_container(&pod_of("SYSTEM", ""), &reported(without));
    assert_eq!(values, "cpuset.cpus=1-2,5-6");
}

#[test]
fn case_6_ls_pods_share_all_pools_in_every_tier() {
    for tier in KubeQos::ALL {
        for node in [reported(topology()), with_static_kubelet()] {
            let pod = in_tier(*tier, pod_of("LS", ""));
            assert_eq!(of_container(&pod, &node), "cpuset.cpus=1-2,5-6", "{tier}");
        }
    }
}

#[test]
fn case_7_the_best_effort_tier_may_use_all_that_its_parent_may() {
    for class in ["", "BE", "LSR", "Gold"] {
        for node in [reported(topology()), with_static_kubelet()] {
            let pod = in_tier(KubeQos::BestEffort, pod_of(class, ""));
            assert_eq!(of_container(&pod, &node), "cpuset.cpus=all", "{class:?}");
        }
    }
}

#[test]
fn case_8_a_static_kubelet_keeps_its_own_cpusets() {
    for class in ["", "BE", "LSR"] {
        let pod = in_tier(KubeQos::Burstable, pod_of(class, ""));
        let values = of_container(&pod, &with_static_kubelet());
        assert_eq!(values, "", "{class:?}");
    }
}

#[test]
fn case_9_everybody_else_shares_all_pools() {
    for class in ["", "BE", "LSR"] {
        let pod = in_tier(KubeQos::Burstable, pod_of(class, ""));
        let values = of_container(&pod, &reported(topology()));
        assert_eq!(values, "cpuset.cpus=1-2,5-6", "{class:?}");
    }
}

#[test]
fn pools_without_cpus_leave_the_cpuset_unset() {
    let node = with_be_cpu_manager(reported(NodeTopology::default()));
    for (class, status) in [
        ("BE", BATCH_ON_BOTH),
        ("LS", ON_NODE_1),
        ("LS", ""),
        ("SYSTEM", ""),
        ("", ""),
    ] {
        assert_eq!(of_container(&pod_of(class, status), &node), "", "{class:?}");
    }
}

#[test]
fn cpus_that_pods_may_not_use_are_left_out() {
    let mut node = reported(topology());
    node.kernel.usable_cpus = cpus("0-5");
    let own = of_container(&pod_of("LSR", OWN), &node);
    assert_eq!(own, "cpu.cfs_quota_us=unlimited cpuset.cpus=3");
    assert_eq!(of_container(&pod_of("LS", ""), &node), "cpuset.cpus=1-2,5");
}

#[test]
fn a_set_of_which_pods_may_use_no_cpu_is_an_error_that_names_it() {
    let mut node = reported(topology());
    node.kernel.usable_cpus = cpus("4");
    let refused = |class, status, key, list| {
        let pod = pod_of(class, status);
        let error =
            decide_container(&CpusetAllocator, &pod, &container("main"), &node).unwrap_err();
        assert_eq!(error.key(), key);
        assert_eq!(
            error.to_string(),
            format!("{key} names the CPUs {list}, of which pods may use none: they may use 4")
        );
    };
    refused(
        "LSR",
        OWN,
        "scheduling.koordinator.sh/resource-status",
        "3,7",
    );
    refused("LS", "", "node.koordinator.sh/cpu-shared-pools", "1-2,5-6");
    refused("SYSTEM", "", "node.koordinator.sh/system-qos-resource", "0");
    // CPUs that are not there, none beside another.
    let many: Vec<_> = (256..1_280).map(|it| (2 * it).to_string()).collect();
    let status = format!(r#"{{"cpuset":"{}"}}"#, many.join(","));
    let begin = "512,514,516,518,520,522,524,526,528,530,532,534,536,538,540,542,…";
    refused(
        "LSR",
        &status,
        "scheduling.koordinator.sh/resource-status",
        begin,
    );
    assert!(decide_pod(&CpusetAllocator, &pod_of("LSR", OWN), &node).is_err());
    node.options.be_cpu_manager = true;
    let be = pod_of("BE", BATCH_ON_BOTH);
    let error = decide_container(&CpusetAllocator, &be, &container("main"), &node).unwrap_err();
    assert_eq!(error.key(), "node.koordinator.sh/be-cpu-shared-pools");
}

#[test]
fn host_applications_of_class_ls_share_all_pools() {
    let applications = vec![
        host_application("nginx", Some(QosClass::Ls), HostCgroupBase::CgroupRoot),
        host_application("logs", Some(QosClass::Be), HostCgroupBase::CgroupRoot),
        host_application("db", Some(QosClass::Lsr), HostCgroupBase::Kubepods),
        host_application(
            "agent",
            Some(QosClass::Ls),
            HostCgroupBase::KubepodsBurstable,
        ),
        host_application("other", None, HostCgroupBase::CgroupRoot),
    ];
    let policy = |topology| NodePolicy {
        slo: Some(NodeSloSpec {
            host_applications: applications.clone(),
            ..slo()
        }),
        topology,
        ..NodePolicy::default()
    };
    let decided = CpusetAllocator
        .decide_node(&node_with(policy(Some(topology()))))
        .unwrap();
    assert!(decided.tiers.is_empty());
    let seen: Vec<(&str, String)> = decided
        .host_applications
        .iter()
        .map(|(path, adjustment)| (path.as_str(), shown(adjustment)))
        .collect();
    assert_eq!(
        seen,
        [
            ("kubepods/burstable/agent", "cpuset.cpus=1-2,5-6".to_owned()),
            ("nginx", "cpuset.cpus=1-2,5-6".to_owned()),
        ]
    );
    let unreported = CpusetAllocator
        .decide_node(&node_with(policy(None)))
        .unwrap();
    assert!(unreported.is_empty());
}

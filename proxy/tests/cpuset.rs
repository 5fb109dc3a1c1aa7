//! The nine cases of the cpuset allocator, from a policy file to the creation that arrives.
#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test's own files, and its own failures"
)]

mod support;

use koord_testkit::RawRequest;
use std::fs;
use support::{
    asked::asked,
    method,
    node::{Node, listed_once},
    pod::{Pod, QOS_CLASS, RESOURCE_STATUS},
};

const NODE_SLO: &str =
    "{apiVersion: slo.koordinator.sh/v1alpha1, kind: NodeSLO, metadata: {name: node-1}}";

const TOPOLOGY: &str = r#"apiVersion: topology.node.k8s.io/v1alpha1
kind: NodeResourceTopology
metadata:
  name: node-1
  annotations:
    node.koordinator.sh/cpu-shared-pools: '[{"socket":0,"node":0,"cpuset":"1-2"},{"socket":1,"node":1,"cpuset":"5-6"}]'
    node.koordinator.sh/be-cpu-shared-pools: '[{"socket":0,"node":0,"cpuset":"2"},{"socket":1,"node":1,"cpuset":"6"}]'
    node.koordinator.sh/system-qos-resource: '{"cpuset":"7"}'
"#;

/// An annotation more.
const STATIC_KUBELET: &str =
    r#"    kubelet.koordinator.sh/cpu-manager-policy: '{"policy":"static"}'"#;

const OWN: &str = r#"{"cpuset":"3,4"}"#;
const CPU_ON_NODE_1: &str = r#"{"numaNodeResources":[{"node":1,"resources":{"cpu":"4"}}]}"#;
const BATCH_ON_NODE_1: &str =
    r#"{"numaNodeResources":[{"node":1,"resources":{"kubernetes.io/batch-cpu":"1000"}}]}"#;

/// What every container asks for itself.
const ASKED: &str = "0";

/// The CPUs of the creation that arrives at the runtime under a policy.
async fn cpus_under(policy: &str, pod: Pod) -> String {
    cpus_of(Some(policy), pod).await
}

/// The same, or where there is no file of a policy.
async fn cpus_of(policy: Option<&str>, pod: Pod) -> String {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("policy.yaml");
    if let Some(policy) = policy {
        fs::write(&file, policy).unwrap();
    }
    // Of a machine with eight CPUs, whatever this one has.
    let cpu = dir.path().join("sys/devices/system/cpu");
    fs::create_dir_all(&cpu).unwrap();
    fs::write(cpu.join("online"), "0-7\n").unwrap();
    let mut args = vec![
        format!("--sys-root={}", dir.path().join("sys").display()),
        "--feature-gates=BECPUManager=true".to_owned(),
    ];
    args.extend(policy.map(|_| format!("--node-policy={}", file.display())));
    let args: Vec<&str> = args.iter().map(|arg| &**arg).collect();
    let node = Node::with(listed_once(), &args);
    let pod = pod.on_cpus(ASKED);
    for (method, tree) in [(method::RUN, pod.run()), (method::CREATE, pod.create())] {
        let reply = node.call(RawRequest::unary(method, tree.encode())).await;
        assert_eq!(reply.grpc_status(), Some(0));
    }
    let (_, _, _, cpus) = asked(&node.arrived(method::CREATE));
    cpus
}

#[tokio::test]
async fn the_nine_cases_of_the_cpuset_allocator_arrive_from_a_policy_file() {
    let of = |class: &str, status: &str| {
        let pod = Pod::plain("web").label(QOS_CLASS, class);
        pod.annotation(RESOURCE_STATUS, status)
    };
    let unset = "{}";
    let is_static = format!("{TOPOLOGY}{STATIC_KUBELET}\n");
    for (case, policy, pod, expected) in [
        (1, TOPOLOGY, of("LSR", OWN), "3-4"),
        (2, NODE_SLO, of("LS", CPU_ON_NODE_1), ASKED),
        (3, TOPOLOGY, of("BE", BATCH_ON_NODE_1), "6"),
        (4, TOPOLOGY, of("LS", CPU_ON_NODE_1), "5-6"),
        (5, TOPOLOGY, of("SYSTEM", unset), "7"),
        (6, TOPOLOGY, of("LS", unset), "1-2,5-6"),
        // Cleared, which is all that the pod's group has.
        (7, TOPOLOGY, of("BE", unset), ""),
        (8, &is_static, of("BE", unset).burstable(), ASKED),
        (9, TOPOLOGY, of("BE", unset).burstable(), "1-2,5-6"),
    ] {
        assert_eq!(cpus_under(policy, pod).await, expected, "case {case}");
    }
}

#[tokio::test]
async fn without_a_policy_file_containers_have_the_cpus_that_they_ask_for() {
    let ls = Pod::plain("web").label(QOS_CLASS, "LS");
    let ls = ls.annotation(RESOURCE_STATUS, CPU_ON_NODE_1);
    assert_eq!(cpus_of(None, ls).await, ASKED);
}

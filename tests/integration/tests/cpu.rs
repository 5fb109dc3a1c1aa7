//! How much CPU time a container gets, as far as that follows from the node rather than from the
//! pod's class: normalized quotas, and what may be saved up for bursts.

use anyhow::Result;
use koord_integration::{
    Front, Node, ProxyOptions, RunningPod,
    classes::{self, PodSpecOf},
    update::quota,
};
use koord_testkit::{
    ContainerdVersion, cri::PodSpec, cri::message::LinuxContainerResources, poll::wait_until,
};

/// A node whose CPUs are `ratio` times as fast as the slowest, and where containers save up time as
/// `burst` says.
fn policy(burst: &str, ratio: &str) -> String {
    format!(
        r#"apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {{name: node-1}}
spec:
  cpuBurstStrategy: {{policy: {burst}}}
---
apiVersion: v1
kind: Node
metadata:
  name: node-1
  annotations:
    node.koordinator.sh/cpu-normalization-ratio: "{ratio}"
"#
    )
}

/// A guaranteed pod of half a CPU without a class.
fn half_a_cpu() -> PodSpecOf {
    let mut pod = classes::lsr("half");
    pod.pod = PodSpec::new("half");
    pod
}

/// Quota and burst of the pod, and those of its container.
fn held(pod: &RunningPod) -> Result<[[String; 2]; 2]> {
    let read = |container: Option<&str>, file| pod.cgroup.read("cpu", container, file);
    let of = |container| {
        Ok::<_, anyhow::Error>([
            read(container, "cpu.cfs_quota_us")?,
            read(container, "cpu.cfs_burst_us")?,
        ])
    };
    Ok([of(None)?, of(Some(pod.container.as_str()))?])
}

fn wait_for(pod: &RunningPod, what: &str, expected: [[&str; 2]; 2]) {
    wait_until(what, || held(pod).is_ok_and(|held| held == expected));
}

async fn quota_and_burst_follow_the_node(version: ContainerdVersion, front: Front) -> Result<()> {
    let options = ProxyOptions {
        policy: Some(policy("auto", "1.00")),
        args: vec!["--feature-gates=CPUNormalization=true".to_owned()],
        front,
        ..ProxyOptions::default()
    };
    let mut node = Node::start(version, options)?;
    let mut client = node.client().await?;
    let pod = node.run(&client, &half_a_cpu()).await?;
    // Ten times the limit by default, of which the kernel takes as much as the quota.
    let all = ["50000", "50000"];
    wait_for(&pod, "what may be saved up", [all, all]);

    node.proxy.write_policy(&policy("auto", "1.25"))?;
    let faster = [all, ["40000", "40000"]];
    wait_for(&pod, "the quota of a faster node", faster);
    // Another update must not scale it a second time.
    let shares = LinuxContainerResources {
        cpu_shares: 500,
        ..Default::default()
    };
    client.update_resources(&pod.container, shares).await?;
    wait_for(&pod, "the same quota", faster);

    for (state, held) in [("off", [all, all]), ("on", faster)] {
        node.proxy.switch(&format!("CPUNormalization={state}"))?;
        wait_for(&pod, state, held);
    }

    node.proxy.kill9()?;
    node.launch_proxy()?;
    client = node.client().await?;
    wait_until("the ledger has the container again", || {
        let ledger = node.proxy.ledger().map(|ledger| ledger.to_string());
        ledger.is_ok_and(|ledger| ledger.contains(&pod.container))
    });
    wait_for(&pod, "the same quota after a restart", faster);

    // Neither the runtime's write nor the kubelet's own, which follows it, meets a burst above it.
    client
        .update_resources(&pod.container, quota(30_000))
        .await?;
    let kubelet = pod.cgroup.write("cpu", None, "cpu.cfs_quota_us", "30000");
    kubelet?;
    let less = ["30000", "30000"];
    wait_for(&pod, "a smaller container", [less, ["24000", "24000"]]);

    node.proxy.write_policy(&policy("none", "1.00"))?;
    let none = ["30000", "0"];
    wait_for(&pod, "what was asked for", [none, none]);
    Ok(())
}

#[tokio::test]
async fn quota_and_burst_follow_the_node_on_containerd_1_6() -> Result<()> {
    quota_and_burst_follow_the_node(ContainerdVersion::V1_6, Front::Cri).await
}

#[tokio::test]
async fn quota_and_burst_follow_the_node_on_containerd_2() -> Result<()> {
    quota_and_burst_follow_the_node(ContainerdVersion::V2, Front::Cri).await
}

#[tokio::test]
async fn quota_and_burst_follow_the_node_by_nri() -> Result<()> {
    quota_and_burst_follow_the_node(ContainerdVersion::V2, Front::Nri).await
}

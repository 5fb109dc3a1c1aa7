//! Pods whose values lie at the edge of what this kernel and a real containerd take: they start.

use anyhow::Result;
use koord_integration::{
    Node, ProxyOptions,
    classes::{self, PodSpecOf},
};
use koord_testkit::{
    ContainerdVersion, PodCgroup, cri::message::LinuxContainerResources, poll::wait_until,
};

const RESOURCE_STATUS: &str = "scheduling.koordinator.sh/resource-status";
const EXTENDED_RESOURCE_SPEC: &str = "node.koordinator.sh/extended-resource-spec";

/// A best-effort pod whose container is limited to this.
fn limited(name: &str, limits: &str) -> PodSpecOf {
    let mut pod = classes::be(name);
    let spec = format!(r#"{{"containers":{{"main":{{"limits":{{{limits}}}}}}}}}"#);
    pod.pod = pod.pod.annotation(EXTENDED_RESOURCE_SPEC, &spec);
    pod
}

async fn memory_that_nothing_can_start_with_is_left_out(version: ContainerdVersion) -> Result<()> {
    let node = Node::start(version, ProxyOptions::default())?;
    let client = node.client().await?;
    for (name, bytes, held) in [
        ("too-little", "1", "9223372036854771712"),
        ("enough", "4194304", "4194304"),
    ] {
        let memory = format!(r#""kubernetes.io/batch-memory":{bytes}"#);
        let running = node.run(&client, &limited(name, &memory)).await?;
        let limit = |container| {
            running
                .cgroup
                .read("memory", container, "memory.limit_in_bytes")
        };
        assert_eq!(limit(Some(running.container.as_str()))?, held, "{name}");
        // No request carries that of its directory, and a call goes on when it has waited enough.
        wait_until(&format!("the limit of the pod {name}"), || {
            limit(None).is_ok_and(|limit| limit == held)
        });
    }
    Ok(())
}

#[tokio::test]
async fn memory_that_nothing_can_start_with_is_left_out_on_containerd_1_6() -> Result<()> {
    memory_that_nothing_can_start_with_is_left_out(ContainerdVersion::V1_6).await
}

#[tokio::test]
async fn memory_that_nothing_can_start_with_is_left_out_on_containerd_2() -> Result<()> {
    memory_that_nothing_can_start_with_is_left_out(ContainerdVersion::V2).await
}

/// Quota and period, of the pod or of its container.
fn bandwidth(cgroup: &PodCgroup, container: Option<&str>) -> Result<(String, String)> {
    let read = |file| cgroup.read("cpu", container, file);
    Ok((read("cpu.cfs_quota_us")?, read("cpu.cfs_period_us")?))
}

/// With the kubelet's `cpuCFSQuotaPeriod` at 10 ms: of a best-effort pod it says that of containers
/// alone, of others that of the pod's directory too.
async fn shares_of_a_cpu_are_kept_in_periods_of_10_ms(version: ContainerdVersion) -> Result<()> {
    let node = Node::start(version, ProxyOptions::default())?;
    let client = node.client().await?;
    let both = |quota: &str, period: &str| (quota.to_owned(), period.to_owned());
    for (name, milli_cpu, pod_period, of_pod, of_container) in [
        (
            "small",
            "50",
            "100000",
            both("5000", "100000"),
            both("5000", "100000"),
        ),
        (
            "small-in-both",
            "50",
            "10000",
            both("5000", "100000"),
            both("5000", "100000"),
        ),
        (
            "large",
            "500",
            "100000",
            both("50000", "100000"),
            both("5000", "10000"),
        ),
        (
            "large-in-both",
            "500",
            "10000",
            both("5000", "10000"),
            both("5000", "10000"),
        ),
    ] {
        let cpu = format!(r#""kubernetes.io/batch-cpu":{milli_cpu}"#);
        let mut pod = limited(name, &cpu);
        let resources = LinuxContainerResources {
            cpu_period: 10_000,
            cpu_shares: 2,
            ..Default::default()
        };
        pod.container = pod.container.resources(resources);
        let cgroup = node.cgroups.pod(pod.pod.uid(), pod.qos)?;
        cgroup.write("cpu", None, "cpu.cfs_period_us", pod_period)?;
        let running = node.run(&client, &pod).await?;
        let container = Some(running.container.as_str());
        wait_until(&format!("quota and period of the pod {name}"), || {
            bandwidth(&cgroup, None).is_ok_and(|held| held == of_pod)
        });
        assert_eq!(bandwidth(&cgroup, container)?, of_container, "{name}");
        let update = LinuxContainerResources {
            cpu_shares: 3,
            ..Default::default()
        };
        client.update_resources(&running.container, update).await?;
        assert_eq!(bandwidth(&cgroup, container)?, of_container, "{name}");
    }
    Ok(())
}

#[tokio::test]
async fn shares_of_a_cpu_are_kept_in_periods_of_10_ms_on_containerd_1_6() -> Result<()> {
    shares_of_a_cpu_are_kept_in_periods_of_10_ms(ContainerdVersion::V1_6).await
}

#[tokio::test]
async fn shares_of_a_cpu_are_kept_in_periods_of_10_ms_on_containerd_2() -> Result<()> {
    shares_of_a_cpu_are_kept_in_periods_of_10_ms(ContainerdVersion::V2).await
}

/// The pod's own directory has CPU 0 alone, and the scheduler names others, too.
async fn a_cpuset_keeps_within_that_of_the_pods_directory(
    version: ContainerdVersion,
) -> Result<()> {
    let node = Node::start(version, ProxyOptions::default())?;
    let client = node.client().await?;
    for (name, named) in [("beyond", "0-1"), ("beside", "1")] {
        let mut pod = classes::lsr(name);
        let status = format!(r#"{{"cpuset":"{named}"}}"#);
        pod.pod = pod.pod.annotation(RESOURCE_STATUS, &status);
        let cgroup = node.cgroups.pod(pod.pod.uid(), pod.qos)?;
        cgroup.write("cpuset", None, "cpuset.cpus", "0")?;
        let running = node.run(&client, &pod).await?;
        let container = Some(running.container.as_str());
        let held = || cgroup.read("cpuset", container, "cpuset.cpus");
        assert_eq!(held()?, "0", "{name}");
        let shares = |cpu_shares| LinuxContainerResources {
            cpu_shares,
            ..Default::default()
        };
        client
            .update_resources(&running.container, shares(600))
            .await?;
        assert_eq!(held()?, "0", "{name}");

        cgroup.write("cpuset", None, "cpuset.cpus", "0-1")?;
        client
            .update_resources(&running.container, shares(700))
            .await?;
        wait_until("the container has all that was named", || {
            held().is_ok_and(|held| held == named)
        });
    }
    Ok(())
}

#[tokio::test]
async fn a_cpuset_keeps_within_that_of_the_pods_directory_on_containerd_1_6() -> Result<()> {
    a_cpuset_keeps_within_that_of_the_pods_directory(ContainerdVersion::V1_6).await
}

#[tokio::test]
async fn a_cpuset_keeps_within_that_of_the_pods_directory_on_containerd_2() -> Result<()> {
    a_cpuset_keeps_within_that_of_the_pods_directory(ContainerdVersion::V2).await
}

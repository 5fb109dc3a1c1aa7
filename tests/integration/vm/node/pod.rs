//! Pods of a node in a virtual machine, and who is in them.

use anyhow::{Context, Result, ensure};
use koord_integration::Node;
use koord_kernel::core_sched::Tid;
use koord_testkit::{
    PodCgroup, PodQos,
    cri::{ContainerSpec, CriClient, PodSpec},
};
use std::fs;

/// Starts 200 processes as fast as it can, and waits for them.
pub(super) const BOMB: [&str; 3] = [
    "/bin/sh",
    "-c",
    "i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i+1)); done; wait",
];

/// A pod with a container, and what both are called.
pub(super) struct Pod {
    pub(super) sandbox: String,
    pub(super) container: String,
    pub(super) cgroup: PodCgroup,
}

/// Runs a pod with one container.
pub(super) async fn run(
    node: &Node,
    client: &CriClient,
    spec: &PodSpec,
    container: ContainerSpec,
) -> Result<Pod> {
    let cgroup = node.cgroups.pod(spec.uid(), PodQos::BestEffort)?;
    let spec = spec.clone().cgroup(&cgroup);
    let sandbox = client.run_pod(&spec).await?;
    let container = client.create_container(&sandbox, &container, &spec).await?;
    client.start_container(&container).await?;
    Ok(Pod {
        sandbox,
        container,
        cgroup,
    })
}

pub(super) fn threads(pod: &PodCgroup, container: &str) -> Result<Vec<Tid>> {
    let text = pod.read("cpu", Some(container), "cgroup.threads")?;
    Ok(text.lines().map(str::parse).collect::<Result<_, _>>()?)
}

/// The parent of a sandbox's process.
pub(super) fn shim(pod: &PodCgroup, sandbox: &str) -> Result<Tid> {
    let pause = threads(pod, sandbox)?;
    let pause = pause.first().context("the sandbox has no process")?;
    let status = fs::read_to_string(format!("/proc/{pause}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    let shim = line.context("a process has a parent")?.trim();
    let name = fs::read_to_string(format!("/proc/{shim}/comm"))?;
    ensure!(name.trim() == "containerd-shim", "{name}");
    Ok(shim.parse()?)
}

//! Pods whose values lie at the edge of what this kernel and a real containerd take: they start.

use anyhow::Result;
use koord_integration::{
    Node, ProxyOptions,
    classes::{self, PodSpecOf},
};
use koord_testkit::ContainerdVersion;

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
        for container in [None, Some(running.container.as_str())] {
            let limit = running
                .cgroup
                .read("memory", container, "memory.limit_in_bytes")?;
            assert_eq!(limit, held, "{name} {container:?}");
        }
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

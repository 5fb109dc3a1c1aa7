//! The same in front of a real containerd: what a pod author could notice.

use crate::{load::Sample, parts::proxy_options, report::Row};
use anyhow::Result;
use koord_integration::{Node, classes};
use koord_testkit::{ContainerdVersion, cri::CriClient};
use std::{path::PathBuf, time::Instant};

/// Containers created in each round through each way.
const CREATES: usize = 40;

/// Latency of CreateContainer of the demo's best-effort pod, straight and through the proxy.
pub(crate) async fn measure(rounds: usize) -> Result<Vec<Row>> {
    let node = Node::start(ContainerdVersion::V1_7, proxy_options()?)?;
    let ways: [(&str, PathBuf); 2] = [
        ("direct", node.containerd.socket()),
        ("proxy", node.proxy.socket()),
    ];
    let pod = classes::be("bench");
    let cgroup = node.cgroups.pod(pod.pod.uid(), pod.qos)?;
    let spec = pod.pod.clone().cgroup(&cgroup);
    let sandbox = node.client().await?.run_pod(&spec).await?;
    let mut measured = [Vec::new(), Vec::new()];
    for round in 0..=rounds {
        for ((_, socket), samples) in ways.iter().zip(&mut measured) {
            let client = CriClient::connect(socket).await?;
            let mut latencies = Vec::new();
            let begun = Instant::now();
            for number in 0..CREATES {
                let mut container = pod.container.clone();
                if let Some(metadata) = &mut container.config.metadata {
                    // A name may be there once at a time; its attempt tells containers apart.
                    metadata.attempt = u32::try_from(number)?;
                }
                let start = Instant::now();
                let id = client.create_container(&sandbox, &container, &spec).await?;
                latencies.push(u64::try_from(start.elapsed().as_nanos())?);
                client.remove_container(&id).await?;
            }
            if round > 0 {
                samples.push(Sample::of(latencies, begun.elapsed(), None));
            }
        }
    }
    Ok(ways
        .iter()
        .zip(measured)
        .map(|((name, _), samples)| Row::named(name, &samples))
        .collect())
}

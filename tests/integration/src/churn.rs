//! Pods that come and go, of each class in turn, and what is true of those that live.

use crate::classes::{self, PodSpecOf};
use anyhow::{Context, Result};
use koord_testkit::{
    PodCgroup, PodCgroups,
    cri::{CriClient, message::ContainerState},
};
use std::collections::BTreeMap;

/// Before the number. A kubelet takes no group for a pod's own that has "pod" in its name twice.
const NAME: &str = "churn-";

/// The pod of that number, which is in its name.
pub fn pod(number: usize, share_pool: &str) -> PodSpecOf {
    let name = format!("{NAME}{number}");
    match number % 4 {
        0 => classes::lsr(&name),
        1 => classes::ls(&name, share_pool),
        2 => classes::be(&name),
        _ => classes::plain(&name, share_pool),
    }
}

/// A kill between a snapshot's directory and its record leaves the directory, and the next snapshot
/// of that number fails. It is between containerd and its disk.
pub fn is_left_by_a_kill(error: &str) -> bool {
    let words = [
        "failed to rename",
        "io.containerd.snapshotter",
        "file exists",
    ];
    words.iter().all(|word| error.contains(word))
}

/// A container that runs.
#[derive(Debug)]
pub struct Living {
    pub pod: PodSpecOf,
    pub cgroup: PodCgroup,
    pub container: String,
}

/// Each of these pods' containers that runs, as the runtime behind `client` lists them.
pub async fn living(
    client: &CriClient,
    cgroups: &PodCgroups,
    share_pool: &str,
) -> Result<Vec<Living>> {
    let pods = client.list_pods().await?;
    let names: BTreeMap<String, String> = pods
        .into_iter()
        .filter_map(|pod| Some((pod.id, pod.metadata?.name)))
        .collect();
    let mut living = Vec::new();
    for container in client.list_containers().await? {
        if container.state() != ContainerState::Running {
            continue;
        }
        let name = names.get(&container.pod_sandbox_id).context("its pod")?;
        // A static pod's name is followed by its node's.
        let number = name.trim_start_matches(NAME).trim_end_matches("-node");
        let number: usize = number.parse()?;
        let pod = pod(number, share_pool);
        living.push(Living {
            cgroup: cgroups.existing_pod(pod.pod.uid(), pod.qos),
            pod,
            container: container.id,
        });
    }
    Ok(living)
}

// === impl Living ===

impl Living {
    /// The values that the kernel does not hold as it should, each as a line.
    pub fn wrong(&self) -> Vec<String> {
        self.pod.wrong_in(&self.cgroup, &self.container)
    }
}

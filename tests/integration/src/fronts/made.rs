//! What a container is made with, seen from inside: it stays what it is as long as the container does.

use super::Machine;
use crate::{Node, RunningPod, rdma};
use anyhow::{Context, Result, ensure};
use koord_testkit::cri::CriClient;

/// Of the variables that containers have, those that show GPUs begin so.
const OF_GPUS: [&str; 3] = ["NVIDIA_", "CUDA_", "LD_PRELOAD="];

/// The name of a pod that comes after a restart ends so.
const LATER: &str = "-later";

impl Machine<'_> {
    /// Whether a container has the GPU and the device that its pod was given, whose name ends so.
    pub(super) async fn has_its_devices(
        &self,
        client: &CriClient,
        pod: &RunningPod,
        suffix: &str,
    ) -> Result<()> {
        let path = self.library();
        let library = path.to_str().context("a path of a test")?;
        let around = path.parent().context("it is in a directory")?;
        let around = around.display();
        let expected = [
            "CUDA_DEVICE_MEMORY_LIMIT=8589934592",
            &format!("CUDA_DEVICE_MEMORY_SHARED_CACHE={around}/uid-web{suffix}_main.cache"),
            "CUDA_DEVICE_SM_LIMIT=50",
            &format!("LD_PRELOAD={library}"),
            "NVIDIA_VISIBLE_DEVICES=3",
        ];
        let variables = variables(client, pod).await?;
        ensure!(variables == expected, "{variables:?}, not {expected:?}");
        let mounted = client.exec(&pod.container, ["cat", library]).await?;
        ensure!(mounted.stdout == b"a library", "{mounted:?}");
        let opened = rdma::opened(client, pod).await?;
        ensure!(opened == "rdma_cm uverbs9000", "{opened:?}");
        Ok(())
    }

    /// Whether a pod that comes after a restart has them too. It goes again.
    pub(super) async fn has_its_devices_from_a_later_process(
        &self,
        node: &Node,
        client: &CriClient,
    ) -> Result<()> {
        let [_, web, ..] = self.at_first().pods(LATER, self.share_pool);
        let pod = node.run(client, &web).await?;
        self.has_its_devices(client, &pod, LATER).await?;
        pod.remove(client).await
    }

    /// Whether one has neither, and may not open the device.
    pub(super) async fn has_no_devices(&self, client: &CriClient, pod: &RunningPod) -> Result<()> {
        let variables = variables(client, pod).await?;
        ensure!(variables.is_empty(), "{variables:?}");
        let opened = rdma::opened(client, pod).await?;
        ensure!(opened.is_empty(), "{opened:?}");
        let refusal = rdma::refusal(client, pod, self.rdma.number()).await?;
        ensure!(refusal.contains("Operation not permitted"), "{refusal}");
        Ok(())
    }
}

/// In the order of their names.
async fn variables(client: &CriClient, pod: &RunningPod) -> Result<Vec<String>> {
    let told = client.exec(&pod.container, ["env"]).await?;
    let told = String::from_utf8(told.stdout)?;
    let lines = told.lines().filter(|line| {
        let mut beginnings = OF_GPUS.iter();
        beginnings.any(|beginning| line.starts_with(beginning))
    });
    let mut lines: Vec<String> = lines.map(str::to_owned).collect();
    lines.sort();
    Ok(lines)
}

//! What shows containers their GPUs: variables and mounts that a container is made with.
//!
//! There is no GPU here. Whether a runtime of NVIDIA's makes something of the variables is its
//! business; that a container has them, and the library that is loaded before all others, is ours.

use anyhow::{Context, Result, ensure};
use koord_integration::{
    Front, Node, ProxyOptions, RunningPod, classes::PodSpecOf, fronts::HamiLock,
};
use koord_testkit::{
    ContainerdVersion, PodQos,
    cri::{ContainerSpec, CriClient, PodSpec, message::LinuxContainerResources},
};
use std::fs;

const PART: &str = r#"{"gpu":[{"minor":3,"resources":{"koordinator.sh/gpu-core":"50",
    "koordinator.sh/gpu-memory":"8Gi","koordinator.sh/gpu-memory-ratio":"50"}}]}"#;

fn pod(name: &str, provider: &str) -> PodSpecOf {
    let resources = LinuxContainerResources {
        cpu_shares: 2,
        ..Default::default()
    };
    PodSpecOf {
        name: name.to_owned(),
        class: "-",
        qos: PodQos::BestEffort,
        pod: PodSpec::new(name)
            .label("koordinator.sh/gpu-isolation-provider", provider)
            .annotation("scheduling.koordinator.sh/device-allocated", PART),
        container: ContainerSpec::new("main")
            .env("LD_PRELOAD", b"/own.so")
            .env("NVIDIA_VISIBLE_DEVICES", b"all")
            .resources(resources),
        expected: Vec::new(),
    }
}

/// The variables of the container that are ours to set, in the order of their names.
async fn seen(client: &CriClient, pod: &RunningPod) -> Result<Vec<String>> {
    let told = client.exec(&pod.container, ["env"]).await?;
    let told = String::from_utf8(told.stdout)?;
    let is_ours = |line: &&str| {
        let names = ["NVIDIA_", "CUDA_", "LD_PRELOAD="];
        names.iter().any(|name| line.starts_with(name))
    };
    let mut ours: Vec<_> = told.lines().filter(is_ours).map(str::to_owned).collect();
    ours.sort();
    Ok(ours)
}

async fn containers_see_their_gpus(version: ContainerdVersion, front: Front) -> Result<()> {
    let directory = tempfile::tempdir()?;
    let library = directory.path().join("library.so");
    fs::write(&library, "a library")?;
    let path = library.to_str().context("a path")?;
    let options = ProxyOptions {
        args: vec![
            "--feature-gates=GPUEnvInject=true,HamiCoreVGPUMonitor=true".to_owned(),
            format!("--hami-core-library-directory-path={path}"),
        ],
        front,
        ..ProxyOptions::default()
    };
    let node = Node::start(version, options)?;
    let client = node.client().await?;
    let whole = node.run(&client, &pod("whole", "none")).await?;
    let part = node.run(&client, &pod("part", "HAMi-core")).await?;
    let expected = ["LD_PRELOAD=/own.so", "NVIDIA_VISIBLE_DEVICES=3"];
    assert_eq!(seen(&client, &whole).await?, expected);
    let cache = directory.path().join("uid-part_main.cache");
    let cache = cache.to_str().context("a path")?;
    let expected = [
        "CUDA_DEVICE_MEMORY_LIMIT=8589934592",
        &format!("CUDA_DEVICE_MEMORY_SHARED_CACHE={cache}"),
        "CUDA_DEVICE_SM_LIMIT=50",
        &format!("LD_PRELOAD={path}:/own.so"),
        "NVIDIA_VISIBLE_DEVICES=3",
    ];
    assert_eq!(seen(&client, &part).await?, expected);
    let mounted = client.exec(&part.container, ["cat", path]).await?;
    assert_eq!(mounted.stdout, b"a library");
    let lock = client
        .exec(&part.container, ["test", "-d", HamiLock::PATH])
        .await?;
    assert_eq!(lock.exit_code, 0);
    // What is counted in the container is there to be read on the node.
    let counted = client.exec(&part.container, ["touch", cache]).await?;
    assert_eq!(counted.exit_code, 0);
    let folder = directory.path().join("containers/uid-part_main");
    ensure!(folder.join("uid-part_main.cache").exists());

    // What they are made with is in the ledger by its names, and nowhere by its values.
    let ledger = node.proxy.ledger()?.to_string();
    ensure!(ledger.contains("CUDA_DEVICE_MEMORY_LIMIT"), "{ledger}");
    let log = node.proxy.log();
    for text in [&ledger, &log] {
        ensure!(
            !text.contains("8589934592") && !text.contains("/own.so"),
            "{text}"
        );
    }
    // An update leaves it alone.
    let update = LinuxContainerResources {
        cpu_shares: 300,
        ..Default::default()
    };
    client.update_resources(&part.container, update).await?;
    assert_eq!(seen(&client, &part).await?, expected);
    Ok(())
}

#[tokio::test]
async fn containers_see_their_gpus_on_each_runtime_and_front() -> Result<()> {
    let _lock = HamiLock::make()?;
    containers_see_their_gpus(ContainerdVersion::V1_6, Front::Cri).await?;
    containers_see_their_gpus(ContainerdVersion::V2, Front::Cri).await?;
    containers_see_their_gpus(ContainerdVersion::V1_7, Front::Nri).await?;
    containers_see_their_gpus(ContainerdVersion::V2, Front::Nri).await
}

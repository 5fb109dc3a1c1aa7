//! RDMA devices that containers are made with.
//!
//! There is no RDMA here. That a container has the devices of its pod and may open them, and that
//! nothing of it keeps a pod from running, is ours; what they do is the kernel's.

use anyhow::{Context, Result, ensure};
use koord_integration::{
    Front, Node, ProxyOptions,
    classes::PodSpecOf,
    rdma::{RdmaMachine, opened, refusal},
};
use koord_testkit::{
    ContainerdVersion, PodQos,
    cri::{ContainerSpec, PodSpec, message::LinuxContainerResources},
    poll::wait_until,
};

/// A function of a device.
const WHOLE: &str = r#"{"rdma":[{"minor":0,"id":"ffff:ff:00.0"}]}"#;
/// A virtual one.
const PART: &str = r#"{"rdma":[{"minor":0,"id":"ffff:ff:00.0","resources":{"koordinator.sh/rdma":"1"},
    "extension":{"vfs":[{"minor":-1,"busID":"ffff:ff:00.1"}]}}]}"#;
/// One of which the node has no device, beside one that it has.
const NO_NODE: &str = r#"{"rdma":[{"id":"ffff:ff:00.0"},{"id":"ffff:ff:00.2"}]}"#;
/// One that the node does not have.
const NOT_THERE: &str = r#"{"rdma":[{"id":"ffff:ff:1f.7"}]}"#;

fn pod(name: &str, devices: &str) -> PodSpecOf {
    let resources = LinuxContainerResources {
        cpu_shares: 2,
        ..Default::default()
    };
    PodSpecOf {
        name: name.to_owned(),
        class: "-",
        qos: PodQos::BestEffort,
        pod: PodSpec::new(name).annotation("scheduling.koordinator.sh/device-allocated", devices),
        container: ContainerSpec::new("main").resources(resources),
        expected: Vec::new(),
    }
}

/// Why a pod's container goes without what the hook would have given it.
fn left_out(node: &Node, pod: &str) -> Result<String> {
    let ledger = node.proxy.ledger()?;
    let mut pods = ledger["pods"].as_array().into_iter().flatten();
    let pod = pods.find(|it| it["name"] == pod).context("the pod")?;
    Ok(pod["containers"][0]["leftOut"][0]["reason"]
        .as_str()
        .unwrap_or_default()
        .to_owned())
}

async fn containers_have_their_rdma_devices(
    machine: &RdmaMachine,
    version: ContainerdVersion,
    front: Front,
) -> Result<()> {
    let options = ProxyOptions {
        args: vec![
            "--feature-gates=RDMADeviceInject=true".to_owned(),
            machine.argument(),
        ],
        front,
        ..ProxyOptions::default()
    };
    let node = Node::start(version, options)?;
    let client = node.client().await?;
    let whole = node.run(&client, &pod("whole", WHOLE)).await?;
    let part = node.run(&client, &pod("part", PART)).await?;
    let bare = node.run(&client, &pod("bare", r#"{"rdma":[]}"#)).await?;
    assert_eq!(opened(&client, &whole).await?, "rdma_cm uverbs9000");
    assert_eq!(opened(&client, &part).await?, "rdma_cm uverbs9001");
    assert_eq!(opened(&client, &bare).await?, "");
    let refusal = refusal(&client, &bare, machine.number()).await?;
    ensure!(refusal.contains("Operation not permitted"), "{refusal}");

    // An update leaves them alone.
    let update = LinuxContainerResources {
        cpu_shares: 300,
        ..Default::default()
    };
    client.update_resources(&whole.container, update).await?;
    assert_eq!(opened(&client, &whole).await?, "rdma_cm uverbs9000");
    let ledger = node.proxy.ledger()?.to_string();
    ensure!(ledger.contains("/dev/infiniband/uverbs9000"), "{ledger}");

    // What is not there keeps nobody from running.
    let lost = node.run(&client, &pod("lost", NOT_THERE)).await?;
    assert_eq!(opened(&client, &lost).await?, "");
    let reason = "scheduling.koordinator.sh/device-allocated names ffff:ff:1f.7, which is no RDMA \
                  device of this node";
    assert_eq!(left_out(&node, "lost")?, reason);
    let no_node = node.run(&client, &pod("no-node", NO_NODE)).await?;
    // A runtime that is told a number makes the node itself.
    let (expected, reason) = match front {
        Front::Nri => ("rdma_cm uverbs9000 uverbs9002", ""),
        _ => (
            "",
            "containers are not given a device of this node: /dev/infiniband/uverbs9002 is not there",
        ),
    };
    assert_eq!(opened(&client, &no_node).await?, expected);
    assert_eq!(left_out(&node, "no-node")?, reason);
    Ok(())
}

/// Where nobody asks us.
async fn containers_go_without(machine: &RdmaMachine) -> Result<()> {
    let options = ProxyOptions {
        args: vec![
            "--feature-gates=RDMADeviceInject=true".to_owned(),
            machine.argument(),
        ],
        front: Front::Watch,
        ..ProxyOptions::default()
    };
    let node = Node::start(ContainerdVersion::V2, options)?;
    let client = node.client().await?;
    let whole = node.run(&client, &pod("whole", WHOLE)).await?;
    assert_eq!(opened(&client, &whole).await?, "");
    let labels = ["setting=\"rdma\"", "result=\"unsupported\""];
    wait_until("what is missing is counted", || {
        let name = "koord_runtime_proxy_kernel_settings_total";
        let counted = node.proxy.metric(name, &labels);
        counted.is_ok_and(|count| count > 0.5)
    });
    let remarks = node.proxy.status()?["remarks"].to_string();
    let said =
        "containers are made without the RDMA devices of their pod, and cannot get them later";
    ensure!(remarks.contains(said), "{remarks}");
    Ok(())
}

#[tokio::test]
async fn containers_have_their_rdma_devices_on_each_runtime_and_front() -> Result<()> {
    let machine = RdmaMachine::make()?;
    for (version, front) in [
        (ContainerdVersion::V1_6, Front::Cri),
        (ContainerdVersion::V1_7, Front::Cri),
        (ContainerdVersion::V2, Front::Cri),
        (ContainerdVersion::V1_7, Front::Nri),
        (ContainerdVersion::V2, Front::Nri),
    ] {
        let done = containers_have_their_rdma_devices(&machine, version, front).await;
        done.with_context(|| format!("{version:?} {front:?}"))?;
    }
    containers_go_without(&machine).await
}

//! UpdatePodSandboxResources on real runtimes: no runtime writes what it tells, which a kubelet does itself,
//! so what a hook has decided stays, and what was told is what the pod's directory gets back.

use anyhow::{Context, Result, ensure};
use koord_integration::{Front, Node, ProxyOptions, RunningPod, classes};
use koord_testkit::{
    ContainerdVersion, RuntimeKind,
    cri::{
        CallError, CriClient,
        message::{Empty, LinuxContainerResources, UpdatePodSandboxResourcesRequest},
    },
    poll::{comes_true, wait_until},
};

fn options(front: Front) -> Result<ProxyOptions> {
    Ok(ProxyOptions {
        policy: Some(classes::node_policy(&classes::share_pool()?)),
        args: vec![format!("--feature-gates={}", classes::FEATURE_GATES)],
        front,
        ..ProxyOptions::default()
    })
}

/// A file of the pod's directory, or of its container's; what it holds while a hook lifts quotas, and
/// what once that is off.
type Row = (bool, &'static str, &'static str, &'static str);

/// The pod's own is that of its resources and its overhead together. Nobody decides about shares and
/// memory, and here is no kubelet to write them.
const OF_LSR: [Row; 4] = [
    (false, "cpu.cfs_quota_us", "-1", "70000"),
    (true, "cpu.cfs_quota_us", "-1", "50000"),
    (false, "cpu.shares", "512", "512"),
    (false, "memory.limit_in_bytes", "1073741824", "1073741824"),
];

fn held(pod: &RunningPod) -> [String; 4] {
    OF_LSR.map(|(of_container, file, ..)| {
        let (controller, _) = file.split_once('.').expect("a controller");
        let container = of_container.then_some(pod.container.as_str());
        let held = pod.cgroup.read(controller, container, file);
        held.unwrap_or_default()
    })
}

fn resources(
    cpu_shares: i64,
    cpu_quota: i64,
    memory_limit_in_bytes: i64,
) -> LinuxContainerResources {
    LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota,
        cpu_shares,
        memory_limit_in_bytes,
        ..Default::default()
    }
}

/// Of a runtime class, beside what the containers ask for.
fn overhead() -> LinuxContainerResources {
    resources(102, 10_000, 64 << 20)
}

/// What a kubelet says before it writes to the pod's directory. Here every runtime has to know it.
async fn tell(
    client: &CriClient,
    pod: &RunningPod,
    resources: LinuxContainerResources,
    overhead: LinuxContainerResources,
) -> Result<(), CallError> {
    let request = UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: pod.sandbox.clone(),
        overhead: Some(overhead),
        resources: Some(resources),
    };
    let _: Empty = client
        .runtime("UpdatePodSandboxResources", &request)
        .await?;
    Ok(())
}

/// What the pod's directory is known to be asked to have as its quota.
fn asked(node: &Node) -> Result<String> {
    let settings = node.settings()?;
    let quota = settings.get("\"redis\" null \"cpu.cfs_quota_us\"");
    let quota = quota.with_context(|| format!("{settings:?}"))?;
    Ok(quota["asked"].as_str().unwrap_or_default().to_owned())
}

async fn a_pod_gets_back_what_was_told_of_it_last(
    kind: impl Into<RuntimeKind>,
    front: Front,
) -> Result<()> {
    let node = Node::start(kind, options(front)?)?;
    let client = node.client().await?;
    let lsr = node.run(&client, &classes::lsr("redis")).await?;
    let decided = OF_LSR.map(|(_, _, decided, _)| decided);
    wait_until("the quotas are lifted", || held(&lsr) == decided);

    for (quota_us, together) in [(80_000, "90000"), (60_000, "70000")] {
        let resources = resources(614, quota_us, 512 << 20);
        tell(&client, &lsr, resources, overhead()).await?;
        wait_until("it is known", || {
            asked(&node).is_ok_and(|asked| asked == together)
        });
        assert_eq!(held(&lsr), decided);
    }
    node.proxy.switch("CPUSetAllocator=off")?;
    let told = OF_LSR.map(|(_, _, _, told)| told);
    let comes = comes_true(|| held(&lsr) == told);
    ensure!(comes, "{:?}; {}", held(&lsr), node.proxy.ledger()?);
    Ok(())
}

#[tokio::test]
async fn a_pod_gets_back_what_was_told_of_it_last_on_containerd_2() -> Result<()> {
    a_pod_gets_back_what_was_told_of_it_last(ContainerdVersion::V2, Front::Cri).await
}

#[tokio::test]
async fn a_pod_gets_back_what_was_told_of_it_last_on_cri_o() -> Result<()> {
    a_pod_gets_back_what_was_told_of_it_last(RuntimeKind::Crio, Front::Cri).await
}

#[tokio::test]
async fn a_pod_gets_back_what_was_told_of_it_last_by_nri_on_containerd_2() -> Result<()> {
    a_pod_gets_back_what_was_told_of_it_last(ContainerdVersion::V2, Front::Nri).await
}

/// What a kubelet does when it resizes a pod: it tells, writes, and has the container updated.
#[tokio::test]
async fn what_a_kubelet_has_told_and_written_comes_back_after_a_kill() -> Result<()> {
    let mut node = Node::start(ContainerdVersion::V2, options(Front::Cri)?)?;
    let client = node.client().await?;
    let lsr = node.run(&client, &classes::lsr("redis")).await?;
    let quota = || {
        let held = lsr.cgroup.read("cpu", None, "cpu.cfs_quota_us");
        held.unwrap_or_default()
    };
    wait_until("the quota is lifted", || quota() == "-1");

    let more = resources(614, 60_000, 1 << 30);
    tell(&client, &lsr, more.clone(), overhead()).await?;
    lsr.cgroup.write("cpu", None, "cpu.cfs_quota_us", "70000")?;
    client.update_resources(&lsr.container, more).await?;
    wait_until("it is lifted again", || quota() == "-1");

    node.proxy.kill9()?;
    node.proxy
        .set_args(&["--feature-gates", "CPUSetAllocator=false"]);
    node.launch_proxy()?;
    wait_until("the quota is that of the resize", || quota() == "70000");
    Ok(())
}

/// A hook decides after the creation, an update tells the runtime of it, and the hook goes again: what the
/// runtime has stored still says so, whoever starts next.
async fn what_an_update_has_told_stays_restored_after_a_kill(front: Front) -> Result<()> {
    let mut node = Node::start(ContainerdVersion::V2, options(front)?)?;
    node.proxy.switch("CPUSetAllocator=off")?;
    let client = node.client().await?;
    let lsr = node.run(&client, &classes::lsr("redis")).await?;
    let quota = || {
        let held = (lsr.cgroup).read("cpu", Some(&lsr.container), "cpu.cfs_quota_us");
        held.unwrap_or_default()
    };
    wait_until("the quota is that of the request", || quota() == "50000");
    node.proxy.switch("CPUSetAllocator=on")?;
    wait_until("the quota is lifted", || quota() == "-1");
    let shares = |cpu_shares| LinuxContainerResources {
        cpu_shares,
        ..Default::default()
    };
    client.update_resources(&lsr.container, shares(600)).await?;
    assert_eq!(quota(), "-1");
    node.proxy.switch("CPUSetAllocator=off")?;
    wait_until("the quota is back", || quota() == "50000");
    // Once the thread that has written it has said so: with the annotation of a creation there would be no need.
    let is_told = |node: &Node| {
        let settings = node.settings()?;
        let entry = settings.get("\"redis\" \"main\" \"cpu.cfs_quota_us\"");
        let entry = entry.with_context(|| format!("{settings:?}"))?;
        Ok::<_, anyhow::Error>(entry["owner"] == "-" && entry["applied"] == "written")
    };
    wait_until("that is known", || is_told(&node).unwrap_or(false));

    node.proxy.kill9()?;
    node.proxy
        .set_args(&["--feature-gates", "CPUSetAllocator=false"]);
    node.launch_proxy()?;
    for more in [700, 800] {
        node.client()
            .await?
            .update_resources(&lsr.container, shares(more))
            .await?;
        let comes = comes_true(|| quota() == "50000");
        ensure!(comes, "{}; {}", quota(), node.proxy.ledger()?);
    }
    Ok(())
}

#[tokio::test]
async fn what_an_update_has_told_stays_restored_after_a_kill_on_containerd_2() -> Result<()> {
    what_an_update_has_told_stays_restored_after_a_kill(Front::Cri).await
}

#[tokio::test]
async fn what_an_update_has_told_stays_restored_after_a_kill_by_nri_on_containerd_2() -> Result<()>
{
    what_an_update_has_told_stays_restored_after_a_kill(Front::Nri).await
}

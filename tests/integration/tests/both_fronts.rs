//! Two proxies on one node, one in front of the runtime and one as its plugin, with policies that
//! differ: one acts, the other stands by and says so, and nothing is fought over.

use anyhow::{Context, Result, ensure};
use koord_integration::{
    Front, Node, Proxy, ProxyOptions, RunningPod,
    classes::{self, PodSpecOf},
};
use koord_testkit::{ContainerdVersion, RuntimeKind, cri::CriClient, poll::wait_until};
use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::Path,
};

/// CPUs that the two policies give to pods that share some.
const OF_PLUGIN: &str = "1";
const OF_FRONT: &str = "0";

fn options(share_pool: &str, front: Front, own_directory: Option<&'static str>) -> ProxyOptions {
    ProxyOptions {
        policy: Some(classes::node_policy(share_pool)),
        args: ["--feature-gates", classes::FEATURE_GATES]
            .map(str::to_owned)
            .into(),
        front,
        own_directory,
        ..ProxyOptions::default()
    }
}

/// A node with a plugin that acts, and a proxy for clients that has not been started.
fn start(kind: impl Into<RuntimeKind>) -> Result<(Node, Proxy)> {
    let node = Node::start(kind, options(OF_PLUGIN, Front::Nri, None))?;
    let front = options(OF_FRONT, Front::Cri, Some("front"));
    let front = Proxy::new(node.testbed(), &node.runtime.socket(), front)?;
    Ok((node, front))
}

/// Why a proxy stands by, if it does.
fn standing_by(proxy: &Proxy) -> Result<Option<String>> {
    let status = proxy.status()?;
    let remarks = status["remarks"].as_array().into_iter().flatten();
    let mut texts = remarks.filter_map(|it| it.as_str());
    let found = texts.find(|it| it.starts_with("standing by"));
    Ok(found.map(str::to_owned))
}

/// Values that a proxy has said to the runtime or written to the kernel.
fn done(proxy: &Proxy) -> Result<f64> {
    let said = ["result=\"patched\""];
    let written = ["result=\"written\""];
    Ok(proxy.metric("koord_runtime_proxy_calls_total", &said)?
        + proxy.metric("koord_runtime_proxy_kernel_settings_total", &written)?)
}

fn fought(proxy: &Proxy) -> Result<f64> {
    proxy.metric("koord_runtime_proxy_contested_settings_total", &[])
}

/// The same pods by another policy.
fn wanted(all: &[(PodSpecOf, RunningPod)], share_pool: &str) -> Vec<String> {
    let expected = |pod: &PodSpecOf| match pod.class {
        "LSR" => classes::lsr(&pod.name),
        "BE" => classes::be(&pod.name),
        "LS" => classes::ls(&pod.name, share_pool),
        _ => classes::plain(&pod.name, share_pool),
    };
    all.iter()
        .flat_map(|(pod, running)| expected(pod).wrong(running))
        .collect()
}

fn wait_for(all: &[(PodSpecOf, RunningPod)], share_pool: &str) {
    let what = format!("the values of who has the CPUs {share_pool}");
    wait_until(&what, || wanted(all, share_pool).is_empty());
}

async fn run(node: &Node, socket: &Path, pod: PodSpecOf) -> Result<(PodSpecOf, RunningPod)> {
    let client = CriClient::connect(socket).await?;
    let running = RunningPod::start(&node.cgroups, &client, &pod).await?;
    Ok((pod, running))
}

async fn one_acts_and_the_other_takes_over(kind: impl Into<RuntimeKind>) -> Result<()> {
    let (mut node, mut front) = start(kind)?;
    front.launch(node.testbed())?;
    let why = standing_by(&front)?.unwrap_or_default();
    ensure!(why.contains("has the lock"), "the second says {why:?}");
    ensure!(front.log().contains("standing by"), "{}", front.log());
    assert_eq!(standing_by(&node.proxy)?, None);

    // Through both, and straight to the runtime.
    let mut all = Vec::new();
    for pod in classes::all(OF_PLUGIN) {
        all.push(run(&node, &front.socket(), pod).await?);
    }
    let straight = classes::ls("straight", OF_PLUGIN);
    all.push(run(&node, &node.runtime.socket(), straight).await?);
    wait_for(&all, OF_PLUGIN);
    assert_eq!(done(&front)?, 0.0);
    ensure!(done(&node.proxy)? > 5.0, "the plugin did nothing");

    // What stood by has all that it takes.
    node.proxy.kill9()?;
    wait_until("the other puts its policy in force", || {
        wanted(&all, OF_FRONT).is_empty()
    });
    assert_eq!(standing_by(&front)?, None);
    let later = classes::be("later");
    all.push(run(&node, &front.socket(), later).await?);
    wait_for(&all, OF_FRONT);

    // Who comes back finds the other acting.
    node.launch_proxy()?;
    ensure!(standing_by(&node.proxy)?.is_some(), "both act");
    let log = node.proxy.log();
    ensure!(log.contains("it has the lock: standing by"), "{log}");
    let last = classes::ls("last", OF_FRONT);
    all.push(run(&node, &front.socket(), last).await?);
    wait_for(&all, OF_FRONT);
    assert_eq!(done(&node.proxy)?, 0.0);
    assert_eq!((fought(&front)?, fought(&node.proxy)?), (0.0, 0.0));

    // That creations came changed by the one that is gone now keeps nobody.
    front.kill9()?;
    wait_until("the first puts its policy in force again", || {
        wanted(&all, OF_PLUGIN).is_empty()
    });
    assert_eq!(standing_by(&node.proxy)?, None);
    Ok(())
}

#[tokio::test]
async fn of_two_proxies_one_acts_and_the_other_takes_over_on_containerd_1_7() -> Result<()> {
    one_acts_and_the_other_takes_over(ContainerdVersion::V1_7).await
}

#[tokio::test]
async fn of_two_proxies_one_acts_and_the_other_takes_over_on_containerd_2_1() -> Result<()> {
    one_acts_and_the_other_takes_over(ContainerdVersion::V2_1).await
}

#[tokio::test]
async fn of_two_proxies_one_acts_and_the_other_takes_over_on_containerd_2_2() -> Result<()> {
    one_acts_and_the_other_takes_over(ContainerdVersion::V2_2).await
}

#[tokio::test]
async fn of_two_proxies_one_acts_and_the_other_takes_over_on_containerd_2() -> Result<()> {
    one_acts_and_the_other_takes_over(ContainerdVersion::V2).await
}

async fn a_creation_that_comes_changed_tells_of_the_other(
    kind: impl Into<RuntimeKind>,
) -> Result<()> {
    let (node, mut front) = start(kind)?;
    // A lock that anybody could have says nothing, so both act. CRI-O's directory is such from the start.
    let open_to_all = fs::Permissions::from_mode(0o755);
    let socket = node.runtime.socket();
    let directory = socket.parent().context("its directory")?;
    fs::set_permissions(directory, open_to_all)?;
    wait_until("the plugin lets go of its lock", || {
        File::open(directory).is_ok_and(|it| it.try_lock().is_ok())
    });
    front.launch(node.testbed())?;
    assert_eq!(standing_by(&front)?, None);

    let mut all = Vec::new();
    for pod in classes::all(OF_FRONT) {
        all.push(run(&node, &front.socket(), pod).await?);
    }
    wait_for(&all, OF_FRONT);
    let why = standing_by(&node.proxy)?.unwrap_or_default();
    ensure!(
        why.contains("changes containers"),
        "the plugin says {why:?}"
    );
    ensure!(node.proxy.log().contains("standing by"), "it is not logged");
    assert_eq!(standing_by(&front)?, None);
    assert_eq!((fought(&front)?, fought(&node.proxy)?), (0.0, 0.0));
    Ok(())
}

#[tokio::test]
async fn a_plugin_stands_by_where_creations_come_changed_on_containerd_1_7() -> Result<()> {
    a_creation_that_comes_changed_tells_of_the_other(ContainerdVersion::V1_7).await
}

#[tokio::test]
async fn a_plugin_stands_by_where_creations_come_changed_on_containerd_2() -> Result<()> {
    a_creation_that_comes_changed_tells_of_the_other(ContainerdVersion::V2).await
}

#[tokio::test]
async fn a_plugin_stands_by_where_creations_come_changed_on_cri_o() -> Result<()> {
    a_creation_that_comes_changed_tells_of_the_other(RuntimeKind::Crio).await
}

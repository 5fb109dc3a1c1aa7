//! The proxy as one that nobody asks: pods that a real containerd runs past it have the values that they
//! would have through it, a moment after they started, whatever is restarted.

use anyhow::{Context, Result, ensure};
use koord_integration::{
    Front, Node, ProxyOptions, RunningPod,
    classes::{self, PodSpecOf},
    promise,
};
use koord_testkit::{
    ContainerdVersion, RuntimeKind,
    cri::message::LinuxContainerResources,
    poll::{comes_true, wait_patiently, wait_until},
};
use std::{
    collections::BTreeMap,
    thread,
    time::{Duration, Instant},
};

/// A container may be without its values for this long after its start, as promised.
const SOON: Duration = Duration::from_secs(2);
/// Where nothing happens nothing is done for as long.
const QUIET: Duration = Duration::from_secs(2);

fn options(front: Front) -> Result<ProxyOptions> {
    Ok(ProxyOptions {
        policy: Some(classes::node_policy(&classes::share_pool()?)),
        args: ["--feature-gates", classes::FEATURE_GATES]
            .map(str::to_owned)
            .into(),
        front,
        as_shipped: true,
        ..ProxyOptions::default()
    })
}

type Pods = Vec<(PodSpecOf, RunningPod)>;

fn wrong(all: &[(PodSpecOf, RunningPod)]) -> Vec<String> {
    all.iter()
        .flat_map(|(pod, running)| pod.wrong(running))
        .collect()
}

/// Waits until everything is as it should be, and says how long that took.
fn all_right(when: &str, all: &[(PodSpecOf, RunningPod)]) -> Duration {
    let started = Instant::now();
    wait_until(&format!("the values {when}"), || wrong(all).is_empty());
    started.elapsed()
}

async fn run(node: &Node, pods: Vec<PodSpecOf>) -> Result<Pods> {
    let client = node.client().await?;
    let mut all = Vec::new();
    for pod in pods {
        let running = node.run(&client, &pod).await?;
        all.push((pod, running));
        let took = all_right("after a start", &all);
        promise::within("values are there after a start", took, SOON)?;
    }
    Ok(all)
}

fn lists(node: &Node) -> Result<f64> {
    let name = "koord_runtime_proxy_relists_total";
    node.proxy.metric(name, &["result=\"ok\""])
}

/// What the ledger decided for settings that are looked at. What was asked is left out where the runtime
/// shows of a container what it has, and not what its creation said.
fn decided(node: &Node, is_looked_at: fn(&str) -> bool) -> Result<BTreeMap<String, String>> {
    let shows_asked = node.runtime.kind() != RuntimeKind::Crio;
    let told = |(what, it): (String, String)| match it.split_once(' ') {
        Some((_asked, rest)) if !shows_asked => (what, rest.to_owned()),
        _ => (what, it),
    };
    let all = node.decided()?.into_iter();
    Ok(all
        .filter(|(what, _)| is_looked_at(what))
        .map(told)
        .collect())
}

fn any(_: &str) -> bool {
    true
}

/// Those of the container that is created once the runtime was restarted.
fn of_later(what: &str) -> bool {
    what.starts_with("\"later\" \"main\"")
}

/// Waits until the ledger is what it should be.
fn comes_to_know(
    node: &Node,
    all: &BTreeMap<String, String>,
    is_looked_at: fn(&str) -> bool,
) -> Result<()> {
    let came = comes_true(|| decided(node, is_looked_at).is_ok_and(|known| known == *all));
    let known = decided(node, is_looked_at)?;
    ensure!(came, "{known:#?}, not {all:#?}");
    Ok(())
}

/// Waits until nothing is done for a while; the list of each minute may fall into the first.
fn rests(node: &Node) {
    let state = || anyhow::Ok((lists(node)?, node.decided()?));
    wait_until("nothing is done where nothing happens", || {
        let before = state();
        thread::sleep(QUIET);
        before.is_ok_and(|before| state().is_ok_and(|it| it == before))
    });
}

async fn the_values_are_those_of_the_cri_front(kind: impl Into<RuntimeKind> + Copy) -> Result<()> {
    let share_pool = classes::share_pool()?;
    let by_cri = {
        let node = Node::start(kind, options(Front::Cri)?)?;
        let all = run(&node, classes::all(&share_pool)).await?;
        all_right("by the CRI front", &all);
        decided(&node, any)?
    };
    ensure!(by_cri.len() > 10, "the ledger of the CRI front: {by_cri:?}");
    let mut node = Node::start(kind, options(Front::Watch)?)?;
    let mut all = run(&node, classes::all(&share_pool)).await?;
    comes_to_know(&node, &by_cri, any)?;

    // Clients do not go through us, and status says what that costs.
    assert!(!node.proxy.socket().exists());
    let status = node.proxy.status()?;
    assert_eq!(status["front"], "watch");
    let feed = match kind.into() {
        RuntimeKind::Containerd(_) => "containerd's events",
        RuntimeKind::Crio => "GetContainerEvents",
    };
    assert_eq!(status["feed"], feed);
    let remarks = status["remarks"].to_string();
    ensure!(remarks.contains("first instructions"), "{remarks}");

    // An update has the runtime write its whole spec, in which nothing is ours.
    let client = node.client().await?;
    let be = all.iter().find(|(pod, _)| pod.class == "BE");
    let (_, be) = be.context("BE")?;
    let update = LinuxContainerResources {
        cpu_shares: 1_024,
        memory_limit_in_bytes: 256 << 20,
        ..Default::default()
    };
    client.update_resources(&be.container, update).await?;
    match kind.into() {
        RuntimeKind::Containerd(_) => {
            let took = all_right("after an update", &all);
            promise::within("values are there after an update", took, SOON)?;
        }
        // It tells of none: the check of each minute finds what it has overwritten.
        RuntimeKind::Crio => {
            wait_patiently("the values after an update", || wrong(&all).is_empty())
        }
    }

    // What goes is forgotten, and where nothing happens nothing is done.
    let (pod, running) = all.pop().context("a pod")?;
    running.remove(&client).await?;
    let known = |node: &Node| node.proxy.ledger().map(|it| it["pods"].to_string());
    wait_until("a pod that is gone is forgotten", || {
        known(&node).is_ok_and(|pods| !pods.contains(&pod.name))
    });
    rests(&node);
    restarts_are_outlived(&mut node, all).await
}

async fn restarts_are_outlived(node: &mut Node, mut all: Pods) -> Result<()> {
    node.runtime.restart()?;
    all_right("after the runtime's restart", &all);
    wait_until("the runtime is listed again", || node.proxy.serves());
    all.extend(run(node, vec![classes::be("later")]).await?);

    // Nothing of ours is in what the runtime says: it is what was asked for.
    let before = decided(node, of_later)?;
    assert_eq!(before.len(), 4);
    node.proxy.kill9()?;
    let pod = classes::be("meanwhile");
    let running = node.run(&node.client().await?, &pod).await?;
    node.launch_proxy()?;
    all.push((pod, running));
    all_right("after our restart", &all);
    comes_to_know(node, &before, of_later)
}

#[tokio::test]
async fn pods_that_run_past_us_have_the_values_of_the_cri_front_on_containerd_1_6() -> Result<()> {
    the_values_are_those_of_the_cri_front(ContainerdVersion::V1_6).await
}

#[tokio::test]
async fn pods_that_run_past_us_have_the_values_of_the_cri_front_on_containerd_1_7() -> Result<()> {
    the_values_are_those_of_the_cri_front(ContainerdVersion::V1_7).await
}

#[tokio::test]
async fn pods_that_run_past_us_have_the_values_of_the_cri_front_on_containerd_2() -> Result<()> {
    the_values_are_those_of_the_cri_front(ContainerdVersion::V2).await
}

#[tokio::test]
async fn pods_that_run_past_us_have_the_values_of_the_cri_front_on_cri_o() -> Result<()> {
    the_values_are_those_of_the_cri_front(RuntimeKind::Crio).await
}

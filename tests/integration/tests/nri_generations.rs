//! The demo's pods on one runtime of each NRI generation: whichever
//! of the two fronts the pods came by, the ledger says the same of them and the kernel has the same.
//!
//! Before 1.7.16 containerd can lock up when a plugin registers beside events of pods, so here the plugin
//! is there before the first pod, and nothing is restarted.

use anyhow::{Context, Result, ensure};
use koord_integration::{
    Front, Node, RunningPod,
    classes::{self, PodSpecOf},
    demo,
};
use koord_testkit::{
    ContainerdVersion, RuntimeKind,
    poll::{bound, wait_until_async},
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io,
    path::PathBuf,
    time::{Duration, Instant},
};

/// What the ledger tells of each setting, and what the kernel's file has.
type Values = BTreeMap<String, String>;

type Pods = [(PodSpecOf, RunningPod)];

/// The names of what was read of a file begin so.
const OF_FILE: &str = "file of ";

/// What such a file has on a kernel without it.
const NO_FILE: &str = "no such file";

/// Values that hooks decide of the demo's pods: three of redis, one of web, six of batch, one of plain.
const DECIDED: usize = 11;

const PAUSE: Duration = Duration::from_millis(50);

/// Runs the pods until nothing is left to do.
async fn run(
    kind: impl Into<RuntimeKind>,
    release: &str,
    front: Front,
) -> Result<(Node, Vec<(PodSpecOf, RunningPod)>)> {
    let node = Node::start(kind, demo::options(front)?)?;
    let client = node.client().await?;
    let runtime = client.version().await?.runtime_version;
    ensure!(runtime.contains(release), "{runtime} is not {release}");
    let mut pods = Vec::new();
    for pod in classes::all(&classes::share_pool()?) {
        let running = node.run(&client, &pod).await?;
        pods.push((pod, running));
    }
    wait_until_async("the values of each class", async || are_right(&pods)).await;
    wait_until_async("nothing is left to do", async || is_done(&node)).await;
    Ok((node, pods))
}

fn are_right(pods: &Pods) -> bool {
    let mut pods = pods.iter();
    pods.all(|(pod, running)| pod.wrong(running).is_empty())
}

fn is_done(node: &Node) -> bool {
    let is_pending = |settings: BTreeMap<String, Value>| {
        let mut settings = settings.values();
        settings.any(|it| it["applied"] == "pending")
    };
    node.settings().is_ok_and(|all| !is_pending(all))
}

/// Everything that the ledger knows, and of each setting the kernel's own file, read past the proxy.
fn found(node: &Node, pods: &Pods) -> Result<Values> {
    let mut found = node.decided()?;
    for (what, it) in node.settings()? {
        let setting = it["setting"].as_str().context("a setting")?;
        let file = file(node, pods, &what, setting).with_context(|| what.clone())?;
        let text = match fs::read_to_string(&file) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => NO_FILE.to_owned(),
            read => read.with_context(|| file.display().to_string())?,
        };
        found.insert(format!("{OF_FILE}{what}"), text);
    }
    Ok(found)
}

/// Where the kernel has a setting, of which [`Node::settings`] says the group and the name.
fn file(node: &Node, pods: &Pods, what: &str, setting: &str) -> Option<PathBuf> {
    let (controller, _) = setting.split_once('.')?;
    let mut hierarchies = node.testbed().hierarchies().iter();
    let hierarchy = hierarchies.find(|it| it.has(controller))?;
    let group = group_of_pod(pods, what).or_else(|| {
        let (below, _) = what.split_once(' ')?;
        Some(format!("{}{below}", node.testbed().cgroup_root()))
    })?;
    let group = hierarchy.mount_point().join(group.trim_start_matches('/'));
    Some(group.join(setting))
}

fn group_of_pod(pods: &Pods, what: &str) -> Option<String> {
    pods.iter().find_map(|(pod, running)| {
        let (name, path) = (&pod.name, running.cgroup.path());
        let groups = [
            ("null", path.to_owned()),
            ("true", running.cgroup.path_of(&running.sandbox)),
            ("\"main\"", running.cgroup.path_of(&running.container)),
        ];
        let is_of = |group: &str| what.starts_with(&format!("{name:?} {group} "));
        let group = groups.into_iter().find(|(group, _)| is_of(group));
        group.map(|(_, path)| path)
    })
}

async fn the_fronts_agree(kind: impl Into<RuntimeKind> + Copy, release: &str) -> Result<()> {
    let by_cri = {
        let (node, pods) = run(kind, release, Front::Cri).await?;
        found(&node, &pods)?
    };
    let (node, pods) = run(kind, release, Front::Nri).await?;
    ensure!(!node.proxy.socket().exists(), "clients come through us");
    ensure!(node.proxy.status()?["pluginUp"] == true, "it is no plugin");

    let start = Instant::now();
    let mut by_nri = found(&node, &pods)?;
    while by_nri != by_cri && start.elapsed() < bound() {
        tokio::time::sleep(PAUSE).await;
        by_nri = found(&node, &pods)?;
    }
    let names: BTreeSet<_> = by_cri.keys().chain(by_nri.keys()).collect();
    let names = names.into_iter();
    let both = names.map(|it| (it, by_cri.get(it), by_nri.get(it)));
    let different: Vec<_> = both.filter(|(_, cri, nri)| cri != nri).collect();
    ensure!(different.is_empty(), "by CRI and by NRI: {different:#?}");
    let all = by_nri.iter();
    let files = all.filter(|(what, text)| what.starts_with(OF_FILE) && *text != NO_FILE);
    let read = files.count();
    ensure!(read >= DECIDED, "{read} values were read: {by_nri:#?}");
    Ok(())
}

#[tokio::test]
async fn the_fronts_agree_on_containerd_1_7_6() -> Result<()> {
    the_fronts_agree(ContainerdVersion::V1_7_6, "1.7.6").await
}

#[tokio::test]
async fn the_fronts_agree_on_containerd_1_7_13() -> Result<()> {
    the_fronts_agree(ContainerdVersion::V1_7_13, "1.7.13").await
}

#[tokio::test]
async fn the_fronts_agree_on_containerd_1_7() -> Result<()> {
    the_fronts_agree(ContainerdVersion::V1_7, "1.7.24").await
}

#[tokio::test]
async fn the_fronts_agree_on_containerd_2_1() -> Result<()> {
    the_fronts_agree(ContainerdVersion::V2_1, "2.1.9").await
}

#[tokio::test]
async fn the_fronts_agree_on_containerd_2_2_0() -> Result<()> {
    the_fronts_agree(ContainerdVersion::V2_2_0, "2.2.0").await
}

#[tokio::test]
async fn the_fronts_agree_on_containerd_2_2() -> Result<()> {
    the_fronts_agree(ContainerdVersion::V2_2, "2.2.9").await
}

#[tokio::test]
async fn the_fronts_agree_on_containerd_2() -> Result<()> {
    the_fronts_agree(ContainerdVersion::V2, "2.3.7").await
}

#[tokio::test]
async fn the_fronts_agree_on_cri_o() -> Result<()> {
    the_fronts_agree(RuntimeKind::Crio, "1.34.0").await
}

//! Two proxies on one node, one in front of the runtime and one as its plugin, with policies that
//! differ: one acts, the other stands by and says so, and nothing is fought over. Upstream's koordlet
//! beside a proxy: what both could do is left to it.

use anyhow::{Context, Result, ensure};
use koord_integration::{
    Front, Node, Proxy, ProxyOptions, RunningPod,
    classes::{self, PodSpecOf},
};
use koord_testkit::{
    ContainerdVersion, RuntimeKind,
    cri::{self, ContainerSpec, CriClient, PodSpec},
    poll::wait_until,
};
use std::{
    fs::{self, File},
    os::unix::fs::PermissionsExt,
    path::Path,
};

/// CPUs that the two policies give to pods that share some.
const OF_PLUGIN: &str = "1";
const OF_FRONT: &str = "0";

/// Becomes a process that is called as koordlet is and started as it is: more of it nobody looks at.
const BECOME_KOORDLET: &str = "printf '#!/bin/sh\nsleep 1000000 & wait\n' >/koordlet && \
    chmod +x /koordlet && exec /koordlet --feature-gates=CPUSetAllocator=false";

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

/// Where the operator has it. To the proxies of tests beside this one it is in a pod of nobody's, which they
/// do not believe.
async fn run_koordlet(node: &Node, client: &CriClient) -> Result<RunningPod> {
    let pod = PodSpecOf {
        pod: PodSpec::new("koordlet").namespace("koordinator-system"),
        container: ContainerSpec::new("koordlet").command(["sh", "-c", BECOME_KOORDLET]),
        ..classes::plain("koordlet", OF_PLUGIN)
    };
    let running = node.run(client, &pod).await?;
    let status = client.container_status(&running.container).await?;
    let pid = cri::pid(&status.info).context("its process")?;
    wait_until("it is called koordlet", || {
        let name = fs::read_to_string(format!("/proc/{pid}/comm"));
        name.is_ok_and(|name| name == "koordlet\n")
    });
    Ok(running)
}

/// The hooks that a proxy leaves to koordlet, as its `status` has them.
fn left_to_koordlet(proxy: &Proxy) -> Result<Vec<String>> {
    let status = proxy.status()?;
    let hooks = status["hooks"].as_array().context("hooks")?.iter();
    let left = hooks.filter(|hook| hook["rests"] == "koordlet does its part");
    let mut names: Vec<_> = left.map(|hook| hook["name"].to_string()).collect();
    names.sort();
    Ok(names)
}

/// What a best-effort pod's container and directory have of what hooks decide.
fn of_best_effort(pod: &RunningPod) -> Result<[String; 4]> {
    let container = Some(pod.container.as_str());
    let read = |controller, container, file| pod.cgroup.read(controller, container, file);
    Ok([
        read("cpu", container, "cpu.shares")?,
        read("cpu", container, "cpu.cfs_quota_us")?,
        read("memory", container, "memory.limit_in_bytes")?,
        read("cpu", None, "cpu.idle")?,
    ])
}

async fn what_koordlet_runs_is_left_to_it(front: Front) -> Result<()> {
    let mut node = Node::start(ContainerdVersion::V2, options(OF_PLUGIN, front, None))?;
    let koordlet = run_koordlet(&node, &node.client().await?).await?;
    // It looks at its start, and then once a minute.
    node.proxy.stop()?;
    node.launch_proxy()?;
    // Of those that koordlet has on by default, all but the one that its command line has off.
    let left = [
        r#""BatchResource""#,
        r#""CPUBurst""#,
        r#""GroupIdentity""#,
        r#""RdtResctrl""#,
    ];
    wait_until("what koordlet does is left to it", || {
        left_to_koordlet(&node.proxy).is_ok_and(|found| found == left)
    });
    let socket = node.socket();
    let mut all = vec![run(&node, &socket, classes::be("beside")).await?];
    let shared = [run(&node, &socket, classes::ls("shared", OF_PLUGIN)).await?];
    wait_for(&shared, OF_PLUGIN);
    let asked = ["2", "-1", "9223372036854771712", "0"];
    assert_eq!(of_best_effort(&all[0].1)?, asked);
    // Nor is anything of that to come.
    let decided = node.decided()?;
    let is_by = |hook: &str| decided.values().any(|it| it.contains(hook));
    ensure!(is_by("CPUSetAllocator"), "{decided:?}");
    ensure!(!left.into_iter().any(is_by), "{decided:?}");

    koordlet.remove(&node.client().await?).await?;
    // One that runs on takes it for gone after ten minutes.
    node.proxy.stop()?;
    node.launch_proxy()?;
    // It has looked once these are there: a creation before that passes as it came.
    wait_for(&all, OF_PLUGIN);
    all.push(run(&node, &socket, classes::be("after")).await?);
    assert_eq!(
        of_best_effort(&all[1].1)?[..3],
        ["512", "100000", "134217728"]
    );
    wait_for(&all, OF_PLUGIN);
    assert_eq!(left_to_koordlet(&node.proxy)?, [""; 0]);
    Ok(())
}

#[tokio::test]
async fn what_a_koordlet_in_its_pod_runs_is_left_to_it_until_it_is_gone() -> Result<()> {
    what_koordlet_runs_is_left_to_it(Front::Cri).await
}

#[tokio::test]
async fn what_a_koordlet_in_its_pod_runs_is_left_to_it_until_it_is_gone_by_nri() -> Result<()> {
    what_koordlet_runs_is_left_to_it(Front::Nri).await
}

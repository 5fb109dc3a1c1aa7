//! A proxy whose threads stand still in the kernel, where not even `SIGKILL` reaches them. Killed, its
//! clients see its end, and the next one has its place. Before the runtime it has a sandbox wait for what
//! such a thread is to write, but not for longer than a call may be held. As the runtime's plugin it keeps
//! its registration, pods start, and those whose values wait for such a thread hold up no other.
//!
//! A disk that does not answer does that to a thread; here the freezer of cgroup v1 does.

use anyhow::{Context, Result, ensure};
use koord_integration::{
    Front, Node, Proxy, ProxyOptions, RunningPod,
    classes::{self, PodSpecOf, Scope},
};
use koord_testkit::{
    ContainerdVersion, Options, PodCgroup, PodCgroups, Runtime, Testbed, poll,
    poll::{wait_patiently, wait_until},
};
use serde_json::json;
use std::{
    collections::BTreeSet,
    fs,
    io::{self, ErrorKind, Read as _},
    os::unix::net::UnixStream,
    path::{Path, PathBuf},
    pin::pin,
    time::Duration,
};
use tokio::{
    runtime::{self, Builder},
    time::timeout,
};

/// Those that wait for the kernel, and what a node without policy and pods has of them.
const STANDING: [&str; 3] = ["cgroup-writer", "memory-reclaim", "neighbour"];

/// How many threads there are that have memory reclaimed.
const RECLAIMERS: usize = 4;

/// How long the runtime waits for its plugin: four times the time for which we wait for a write, so that
/// a busy machine costs no registration.
const PATIENCE: Duration = Duration::from_secs(8);

/// For as long it is looked whether a call goes on that should wait: many times what it takes to go on, and
/// much less than the 20 s for which it may be held.
const LOOKED_FOR: Duration = Duration::from_secs(1);

const EXTENDED_RESOURCE_SPEC: &str = "node.koordinator.sh/extended-resource-spec";

/// Less than pods of [`holding`] have in use.
const LESS: &str = r#"{"containers":{"main":{
    "requests":{"kubernetes.io/batch-cpu":"250"},
    "limits":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"32Mi"}}}}"#;

/// What the directory of a best-effort pod has from its kubelet, and what hooks decide of it: whether it
/// is idle, its quota, its memory.
const ASKED: [&str; 3] = ["0", "-1", "9223372036854771712"];
const DECIDED: [&str; 3] = ["1", "100000", "134217728"];

/// What is said of memory that does not come.
const STANDSTILL: &str =
    "the kernel does not get done reclaiming memory: new memory limits of other pods wait";

/// What is said of the thread that writes, before where it stands.
const HANGS: &str = "the thread that writes settings stands still: what is to be written waits";

#[tokio::test]
async fn who_is_killed_with_a_thread_that_stands_still_leaves_its_place() -> Result<()> {
    let mut node = Node::start(ContainerdVersion::V2, ProxyOptions::default())?;
    let killed = node.proxy.pid().context("the proxy runs")?;
    let mut client = UnixStream::connect(node.socket())?;
    client.set_read_timeout(Some(poll::bound()))?;
    let frozen = Frozen::make(node.testbed(), killed, &STANDING, STANDING.len())?;
    node.proxy.send_kill()?;
    // What was not read yet makes it a reset.
    if let Err(error) = client.read_to_end(&mut Vec::new()) {
        assert_eq!(error.kind(), ErrorKind::ConnectionReset, "a client waits");
    }
    wait_until("only those who stand still live on", || {
        names(killed).is_ok_and(|names| names == set(&STANDING))
    });

    node.launch_proxy()?;
    let client = node.client().await?;
    let running = node.run(&client, &classes::be("next")).await?;
    wait_until("the next proxy writes", || {
        let quota = running.cgroup.read("cpu", None, "cpu.cfs_quota_us");
        quota.is_ok_and(|quota| quota == "100000")
    });
    drop(frozen);
    wait_until("the one that was killed ends", || {
        names(killed).is_ok_and(|names| names.is_empty())
    });
    Ok(())
}

/// One before the runtime, with a pod that has its values.
async fn before_the_runtime(as_shipped: bool) -> Result<Node> {
    let options = ProxyOptions {
        front: Front::Cri,
        as_shipped,
        ..plugin(None)?
    };
    let node = Node::start(ContainerdVersion::V1_7, options)?;
    let (pod, client) = (classes::be("before"), node.client().await?);
    let running = node.run(&client, &pod).await?;
    all_right(&[(pod, running)]);
    Ok(node)
}

/// Whether containerd has been asked to run a sandbox of this name: it says so before it does anything.
fn is_asked_to_run(node: &Node, name: &str) -> Result<bool> {
    let log = fs::read_to_string(node.testbed().directory().join("runtime.log"))?;
    let asked = format!("RunPodSandbox for &PodSandboxMetadata{{Name:{name},");
    Ok(log.contains(&asked))
}

/// What the directory of a best-effort pod holds of what hooks decide.
fn own(cgroup: &PodCgroup) -> Result<[String; 3]> {
    Ok([
        cgroup.read("cpu", None, "cpu.idle")?,
        cgroup.read("cpu", None, "cpu.cfs_quota_us")?,
        cgroup.read("memory", None, "memory.limit_in_bytes")?,
    ])
}

#[tokio::test]
async fn the_runtime_is_asked_for_a_sandbox_once_its_pods_directory_is_written() -> Result<()> {
    let node = before_the_runtime(false).await?;
    ensure!(is_asked_to_run(&node, "before")?, "no log of it");
    let client = node.client().await?;
    let batch = classes::be("batch");
    let cgroup = node.cgroups.pod(batch.pod.uid(), batch.qos)?;
    let spec = batch.pod.clone().cgroup(&cgroup);
    let process = node.proxy.pid().context("the proxy runs")?;
    let frozen = Frozen::make(node.testbed(), process, &["cgroup-writer"], 1)?;
    let mut run = pin!(client.run_pod(&spec));
    let ran = timeout(LOOKED_FOR, &mut run).await;
    ensure!(ran.is_err(), "it was answered with {ran:?}");
    ensure!(!is_asked_to_run(&node, "batch")?, "it was passed on");
    assert_eq!(own(&cgroup)?, ASKED);

    drop(frozen);
    let sandbox = run.await?;
    // Not awaited: no container can be asked for before there is a sandbox to make it in.
    assert_eq!(own(&cgroup)?, DECIDED);
    ensure!(is_asked_to_run(&node, "batch")?, "no log of it");
    let container = client.create_container(&sandbox, &batch.container, &spec);
    client.start_container(&container.await?).await?;
    Ok(())
}

#[tokio::test]
async fn a_sandbox_waits_for_a_writer_no_longer_than_a_call_may_be_held() -> Result<()> {
    let node = before_the_runtime(true).await?;
    let client = node.client().await?;
    let process = node.proxy.pid().context("the proxy runs")?;
    let frozen = Frozen::make(node.testbed(), process, &["cgroup-writer"], 1)?;
    let pod = classes::be("batch");
    let running = node.run(&client, &pod).await?;
    has_what_its_creation_said_alone(&pod, &running)?;
    drop(frozen);
    all_right(&[(pod, running)]);
    Ok(())
}

/// A plugin, whose pods have what the file says if there is one.
fn plugin(pods: Option<&Path>) -> Result<ProxyOptions> {
    let mut args = vec![format!("--feature-gates={}", classes::FEATURE_GATES)];
    args.extend(pods.map(|pods| format!("--pods={}", pods.display())));
    Ok(ProxyOptions {
        policy: Some(classes::node_policy(&classes::share_pool()?)),
        args,
        front: Front::Nri,
        ..ProxyOptions::default()
    })
}

/// On which clients of the runtime are: a wait of a test lets them stand meanwhile.
fn runtime() -> Result<runtime::Runtime> {
    Ok(Builder::new_current_thread().enable_all().build()?)
}

fn all_right(all: &[(PodSpecOf, RunningPod)]) {
    for (pod, running) in all {
        wait_until(&format!("{} has its values", pod.name), || {
            pod.wrong(running).is_empty()
        });
    }
}

/// What only its creation's answer could say is there, and nothing else.
fn has_what_its_creation_said_alone(pod: &PodSpecOf, running: &RunningPod) -> Result<()> {
    for expected in &pod.expected {
        let is_said = expected.scope == Scope::Container;
        let held = expected.held(&running.cgroup, &running.container)?;
        let (what, text) = (expected.setting, &held.text);
        ensure!(
            expected.is_met_by(&held) == is_said,
            "{} {what}: {text}",
            pod.name
        );
    }
    Ok(())
}

#[test]
fn a_plugin_whose_writer_stands_still_is_kept_and_pods_start() -> Result<()> {
    let tokio = runtime()?;
    let options = Options {
        nri: true,
        nri_patience: Some(PATIENCE),
        ..Options::default()
    };
    let containerd = Runtime::start(ContainerdVersion::V2, &options)?;
    let node = Node {
        cgroups: PodCgroups::new(containerd.testbed())?,
        proxy: Proxy::start(containerd.testbed(), &containerd.socket(), plugin(None)?)?,
        runtime: containerd,
    };
    let client = tokio.block_on(node.client())?;
    let run = |pod: PodSpecOf| -> Result<(PodSpecOf, RunningPod)> {
        let running = tokio.block_on(node.run(&client, &pod))?;
        Ok((pod, running))
    };
    let mut all = vec![run(classes::be("before"))?];
    all_right(&all);

    let process = node.proxy.pid().context("the proxy runs")?;
    let frozen = Frozen::make(node.testbed(), process, &["cgroup-writer"], 1)?;
    for pod in [
        classes::be("batch"),
        classes::ls("web", &classes::share_pool()?),
    ] {
        let (pod, running) = run(pod)?;
        has_what_its_creation_said_alone(&pod, &running)?;
        all.push((pod, running));
    }
    assert_eq!(node.proxy.status()?["pluginUp"], true);
    wait_until("status says so", || {
        is_told(&node, HANGS).is_ok_and(|it| it)
    });
    wait_until("the log says where", || {
        let log = node.proxy.log();
        let mut lines = log.lines().filter(|line| line.contains(HANGS));
        lines.any(|line| line.contains("it stands at "))
    });
    let hangs = || node.proxy.metric("koord_runtime_proxy_writer_hangs", &[]);
    ensure!(hangs()? > 0.5, "the metric does not say so");
    drop(frozen);
    all_right(&all);
    wait_until("status says it no more", || {
        is_told(&node, HANGS).is_ok_and(|it| !it)
    });
    wait_until("the metric neither", || hangs().is_ok_and(|it| it < 0.5));
    let ok = ["result=\"ok\""];
    let sessions = node
        .proxy
        .metric("koord_runtime_proxy_plugin_sessions_total", &ok)?;
    ensure!(sessions < 1.5, "it was registered {sessions} times");
    Ok(())
}

/// A best-effort pod with 40 MiB in use that the kernel cannot take from it.
fn holding(name: &str) -> PodSpecOf {
    let mut pod = classes::be(name);
    let hold = "dd if=/dev/zero of=/dev/shm/held bs=1M count=40; exec sleep 1000";
    pod.container = pod.container.command(["sh", "-c", hold]);
    pod
}

/// Says that these pods have [`LESS`] now, in the file that the proxy reads.
fn tell(file: &Path, pods: &[(PodSpecOf, RunningPod)]) -> Result<()> {
    let changed = |(pod, _): &(PodSpecOf, RunningPod)| {
        let less = pod.pod.clone().annotation(EXTENDED_RESOURCE_SPEC, LESS);
        let metadata = json!({
            "name": pod.name,
            "namespace": "default",
            "uid": less.uid(),
            "labels": less.config().labels,
            "annotations": less.config().annotations,
        });
        json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
    };
    let pods: Vec<_> = pods.iter().map(changed).collect();
    let fresh = file.with_extension("new");
    let list = json!({"apiVersion": "v1", "kind": "List", "items": pods});
    fs::write(&fresh, list.to_string())?;
    Ok(fs::rename(fresh, file)?)
}

/// Waits until each of the pods has this in a file of cgroup v1, its container and, if that is asked,
/// its own directory.
fn come_to(pods: &[(PodSpecOf, RunningPod)], controller: &str, file: &str, text: &str, own: bool) {
    for (pod, running) in pods {
        let has = |container| {
            let held = running.cgroup.read(controller, container, file);
            held.is_ok_and(|held| held == text)
        };
        wait_until(&format!("{file} of {} is {text}", pod.name), || {
            has(Some(&*running.container)) && (!own || has(None))
        });
    }
}

/// Whether a remark of `status` begins like this.
fn is_told(node: &Node, what: &str) -> Result<bool> {
    let status = node.proxy.status()?;
    let remarks = status["remarks"].as_array().context("remarks")?;
    let mut texts = remarks.iter().filter_map(|it| it.as_str());
    Ok(texts.any(|text| text.starts_with(what)))
}

#[test]
fn a_plugin_says_whose_memory_does_not_come_and_other_pods_go_on() -> Result<()> {
    let directory = tempfile::tempdir()?;
    let file = directory.path().join("pods.json");
    tell(&file, &[])?;
    let node = Node::start(ContainerdVersion::V2, plugin(Some(&file))?)?;
    let tokio = runtime()?;
    let client = tokio.block_on(node.client())?;
    let run = |pod: PodSpecOf| -> Result<(PodSpecOf, RunningPod)> {
        let running = tokio.block_on(node.run(&client, &pod))?;
        Ok((pod, running))
    };
    // One more than there are threads: nobody is told while nobody waits for one.
    let pods = (0..=RECLAIMERS).map(|number| run(holding(&format!("holds-{number}"))));
    let pods: Vec<_> = pods.collect::<Result<_>>()?;
    all_right(&pods);
    for (pod, running) in &pods {
        wait_until(&format!("{} holds memory", pod.name), || {
            let container = Some(&*running.container);
            let used = running
                .cgroup
                .read("memory", container, "memory.usage_in_bytes");
            used.is_ok_and(|used| used.parse::<u64>().is_ok_and(|used| used >= 40 << 20))
        });
    }
    let process = node.proxy.pid().context("the proxy runs")?;
    let frozen = Frozen::make(node.testbed(), process, &["memory-reclaim"], RECLAIMERS)?;
    tell(&file, &pods)?;
    come_to(&pods, "cpu", "cpu.shares", "256", false);
    let others = classes::all(&classes::share_pool()?).into_iter().map(run);
    all_right(&others.collect::<Result<Vec<_>>>()?);

    wait_patiently("status says so", || {
        is_told(&node, STANDSTILL).is_ok_and(|it| it)
    });
    come_to(&pods, "memory", "memory.limit_in_bytes", "134217728", true);
    wait_until("the log names those of the threads", || {
        let log = node.proxy.log();
        let line = log.lines().find(|line| line.contains(STANDSTILL));
        let is_named = |line: &str| {
            let named = |(pod, _): &&(PodSpecOf, RunningPod)| line.contains(&pod.name);
            pods.iter().filter(named).count() == RECLAIMERS
        };
        line.is_some_and(is_named)
    });

    for (_, running) in &pods {
        let freed = client.exec(&running.container, ["rm", "/dev/shm/held"]);
        tokio.block_on(freed)?;
    }
    drop(frozen);
    come_to(&pods, "memory", "memory.limit_in_bytes", "33554432", true);
    wait_until("status says it no more", || {
        is_told(&node, STANDSTILL).is_ok_and(|it| !it)
    });
    Ok(())
}

/// Threads of a process that run no more until this is dropped.
struct Frozen(PathBuf);

// === impl Frozen ===

impl Frozen {
    /// Those of these names, of which there are at least so many.
    fn make(testbed: &Testbed, process: u32, which: &[&str], least: usize) -> Result<Self> {
        let freezer = testbed.hierarchies().iter().find(|it| it.has("freezer"));
        let freezer = freezer.context("this machine has no freezer of cgroup v1")?;
        let below = testbed.cgroup_root();
        let group = freezer.mount_point().join(below.trim_start_matches('/'));
        let frozen = Self(group.join("still"));
        fs::create_dir_all(&frozen.0)?;
        // They may only just start when the proxy serves. One that is frozen earlier keeps what it has not
        // left yet; one that is not apart by then ends with the rest.
        let mut apart = Vec::new();
        wait_until("the threads stand apart", || {
            apart = standing_apart(process, which).unwrap_or_default();
            let names: BTreeSet<String> = apart.iter().filter_map(|it| name(it).ok()).collect();
            names == set(which) && apart.len() >= least
        });
        for thread in apart {
            let id = thread.file_name().context("a thread has an id")?;
            fs::write(frozen.0.join("tasks"), id.as_encoded_bytes())?;
        }
        fs::write(frozen.state(), "FROZEN")?;
        wait_until("the threads stand still", || {
            fs::read_to_string(frozen.state()).is_ok_and(|state| state.trim() == "FROZEN")
        });
        Ok(frozen)
    }

    fn state(&self) -> PathBuf {
        self.0.join("freezer.state")
    }
}

impl Drop for Frozen {
    /// The directory goes with the testbed, which thaws what this could not.
    fn drop(&mut self) {
        fs::write(self.state(), "THAWED").ok();
    }
}

fn threads(process: u32) -> Result<Vec<PathBuf>> {
    let mut threads = Vec::new();
    for thread in fs::read_dir(format!("/proc/{process}/task"))? {
        threads.push(thread?.path());
    }
    Ok(threads)
}

fn name(thread: &Path) -> Result<String> {
    Ok(fs::read_to_string(thread.join("comm"))?.trim().to_owned())
}

/// Those of `which`, who wait for the kernel, that have nothing any more that others wait for.
fn standing_apart(process: u32, which: &[&str]) -> Result<Vec<PathBuf>> {
    let mut apart = threads(process)?;
    // What cannot be read ends, or is just about to leave it.
    apart.retain(|thread| {
        name(thread).is_ok_and(|name| which.contains(&name.as_str()))
            && is_apart(thread).unwrap_or(false)
    });
    Ok(apart)
}

/// Whether a thread has no socket, pipe or lock; what leads to the same as a standard stream is left
/// to it.
fn is_apart(thread: &Path) -> Result<bool> {
    let standard = (0..=2).map(|it| fs::read_link(thread.join(format!("fd/{it}"))));
    let standard: Vec<PathBuf> = standard.filter_map(io::Result::ok).collect();
    for descriptor in fs::read_dir(thread.join("fd"))? {
        let descriptor = descriptor?;
        let to = fs::read_link(descriptor.path())?;
        if standard.contains(&to) {
            continue;
        }
        let info = fs::read_to_string(thread.join("fdinfo").join(descriptor.file_name()))?;
        let is_lock = info.lines().any(|line| line.starts_with("lock:"));
        let to = to.to_string_lossy();
        if is_lock || to.starts_with("socket:") || to.starts_with("pipe:") {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Those of the threads that are more than what their parent has yet to hear of.
fn names(process: u32) -> Result<BTreeSet<String>> {
    let mut names = BTreeSet::new();
    for thread in threads(process).unwrap_or_default() {
        let stat = fs::read_to_string(thread.join("stat"))?;
        if !stat.contains(") Z ") {
            names.insert(name(&thread)?);
        }
    }
    Ok(names)
}

fn set(names: &[&str]) -> BTreeSet<String> {
    names.iter().map(ToString::to_string).collect()
}

//! What is left of a proxy once its pods are gone: killed amid a creation, its sockets and the note of its
//! start beside its locks; stopped, these locks in the directories that the README has removed by hand,
//! and no group, mount, socket, process or file else.

use anyhow::{Context, Result, bail, ensure};
use koord_integration::{Front, Node, Proxy, ProxyOptions, RunningPod, churn::pod, classes};
use koord_testkit::{
    ContainerdVersion, Options, PodCgroup, PodCgroups, Runtime, Testbed,
    cri::{CallError, ContainerSpec, CriClient, PodSpec},
    poll::{comes_true, wait_until_async},
};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    pin::pin,
    time::{Duration, Instant},
};
use tokio::{
    runtime::Builder,
    time::{sleep, timeout},
};

/// The proxy's directory in the testbed's.
const OWN: &str = "own";

/// Pods that run when the proxy is killed, and the number of the one whose container is created then.
const KILL_AT: usize = 4;
/// Creations at most of which one is to be cut off.
const ROUNDS: u32 = 6;
/// Pods that are made once it is back.
const LATER: usize = 4;

/// So long that no plugin is late on a busy machine.
const PATIENCE: Duration = Duration::from_secs(60);

/// Where a file or directory of ours would be that is not in its own place. What bears our name counts.
const PLACES: [&str; 6] = [
    "/run",
    "/var/lib",
    "/tmp",
    "/var/tmp",
    "/dev/shm",
    "/sys/fs/resctrl",
];
const NAME: &str = "koord";

/// In the proxy's own directory: its directories and their locks, what it was told and what it said.
const STAYS: [&str; 6] = [
    "admin",
    "admin/admin.sock.lock",
    "node-policy.yaml",
    "proxy.log",
    "state",
    "state/lock",
];

const LEFT_BY_A_KILL: [&str; 2] = ["admin/admin.sock", "state/starts.json"];

/// What is below a directory, as paths from there; nothing of what goes meanwhile.
fn below(directory: &Path) -> Vec<PathBuf> {
    let entries = fs::read_dir(directory).into_iter().flatten();
    let mut found = Vec::new();
    for entry in entries.filter_map(Result::ok) {
        let name = PathBuf::from(entry.file_name());
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let within = below(&entry.path());
            found.extend(within.into_iter().map(|path| name.join(path)));
        }
        found.push(name);
    }
    found
}

/// What the proxy's own directory has.
fn own(testbed: &Testbed) -> BTreeSet<String> {
    let found = below(&testbed.directory().join(OWN)).into_iter();
    found.map(|path| path.display().to_string()).collect()
}

/// Groups of the testbed in every hierarchy, and what runs in them.
fn groups(testbed: &Testbed, found: &mut BTreeSet<String>) {
    let root = testbed.cgroup_root();
    for hierarchy in testbed.hierarchies() {
        let top = hierarchy.mount_point().join(root.trim_start_matches('/'));
        let all = below(&top).into_iter().map(|path| top.join(path));
        for group in all.filter(|path| path.is_dir()) {
            let processes = fs::read_to_string(group.join("cgroup.procs")).unwrap_or_default();
            for process in processes.lines() {
                let name = fs::read_to_string(format!("/proc/{process}/comm"));
                found.insert(format!("process {}", name.unwrap_or_default().trim()));
            }
            found.insert(format!("group {}", group.display()));
        }
    }
}

/// What there is of a node, but in the proxy's own directory.
fn there(testbed: &Testbed) -> Result<BTreeSet<String>> {
    let mut found = BTreeSet::new();
    groups(testbed, &mut found);
    let directory = testbed.directory();
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    for place in mounts.lines().filter_map(|line| line.split(' ').nth(4)) {
        if Path::new(place).starts_with(directory) {
            found.insert(format!("mount {place}"));
        }
    }
    // With their states: who listens, and who is connected.
    let sockets = fs::read_to_string("/proc/net/unix")?;
    for line in sockets.lines() {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        if let [_, _, _, _, _, state, _, path] = fields[..]
            && Path::new(path).starts_with(directory)
        {
            found.insert(format!("socket {path} {state}"));
        }
    }
    for entry in fs::read_dir(directory)? {
        let name = entry?.file_name();
        if name != OWN {
            found.insert(format!("file {}", name.display()));
        }
    }
    for place in PLACES {
        let entries = fs::read_dir(place).into_iter().flatten();
        for entry in entries.filter_map(Result::ok) {
            let path = entry.path().display().to_string();
            if path.contains(NAME) {
                found.insert(format!("elsewhere {path}"));
            }
        }
    }
    Ok(found)
}

/// Has the runtime remove all pods.
async fn clear(runtime: &CriClient) {
    wait_until_async("no pod is left", || async {
        let Ok(pods) = runtime.list_pods().await else {
            return false;
        };
        for pod in &pods {
            // One that fails is there the next time.
            if runtime.stop_pod(&pod.id).await.is_ok() {
                runtime.remove_pod(&pod.id).await.ok();
            }
        }
        pods.is_empty()
    })
    .await;
}

/// Removes the groups of a pod as a kubelet does, as far as nothing is in them.
fn remove(pod: &PodCgroup) {
    for directory in pod.directories(None) {
        for path in below(&directory) {
            fs::remove_dir(directory.join(path)).ok();
        }
        fs::remove_dir(directory).ok();
    }
}

/// Kills the proxy while a container is created. A call that starts processes is not cut off: of 400 that
/// containerd lost its caller of, without us between, it forgot 5 with their shims, and some with what those
/// had begun to run.
async fn killed_amid_a_creation(node: &mut Node, front: Front, share_pool: &str) -> Result<()> {
    let client = node.client().await?;
    for number in 0..KILL_AT {
        node.run(&client, &pod(number, share_pool)).await?;
    }
    let last = pod(KILL_AT, share_pool);
    let cgroup = node.cgroups.pod(last.pod.uid(), last.qos)?;
    let spec = last.pod.clone().cgroup(&cgroup);
    let sandbox = client.run_pod(&spec).await?;
    let asked = Instant::now();
    let first = attempt(&last.container, 0);
    client.create_container(&sandbox, &first, &spec).await?;
    let whole = asked.elapsed();
    match front {
        Front::Nri => {
            // The runtime asks one that does not answer, and goes on without it once it is dead.
            let second = attempt(&last.container, 1);
            node.proxy.stand_still()?;
            let mut create = pin!(client.create_container(&sandbox, &second, &spec));
            let early = timeout(whole * 4, &mut create).await;
            ensure!(early.is_err(), "the plugin was not asked: {early:?}");
            node.proxy.kill9()?;
            create
                .await
                .context("the runtime creates it all the same")?;
            Ok(())
        }
        Front::Cri | Front::Watch => cut_off(node, &sandbox, &last.container, &spec, whole).await,
    }
}

/// Kills the proxy when half the time has gone that a creation takes, until one was cut off. `whole` is what
/// one has taken, and then the least that any has: on a busy machine the first may be the slowest.
async fn cut_off(
    node: &mut Node,
    sandbox: &str,
    container: &ContainerSpec,
    pod: &PodSpec,
    mut whole: Duration,
) -> Result<()> {
    for round in 1..=ROUNDS {
        let client = node.client().await?;
        let container = attempt(container, round);
        let create = async {
            let asked = Instant::now();
            let created = client.create_container(sandbox, &container, pod).await;
            (created, asked.elapsed())
        };
        // The call is written meanwhile: by a task of this thread, which has to wait for that.
        let kill = async {
            sleep(whole / 2).await;
            node.proxy.send_kill()
        };
        let ((created, took), killed) = tokio::join!(create, kill);
        killed?;
        node.proxy.wait()?;
        match created {
            Err(CallError::CutOff { .. }) => return Ok(()),
            Err(error) => return Err(error).context("amid a creation"),
            // It was faster than those before.
            Ok(_) => whole = whole.min(took),
        }
        // A clean stop between two kills: else it is taken for one that fails at each start.
        node.launch_proxy()?;
        ensure!(node.proxy.stop()?.success(), "{}", node.proxy.log());
        node.launch_proxy()?;
    }
    bail!("each of {ROUNDS} creations was over when the proxy was killed")
}

/// One that the runtime takes for another than those before.
fn attempt(container: &ContainerSpec, attempt: u32) -> ContainerSpec {
    let mut container = container.clone();
    if let Some(metadata) = &mut container.config.metadata {
        metadata.attempt = attempt;
    }
    container
}

/// Makes some pods, which have their values.
async fn made_later(node: &Node, share_pool: &str) -> Result<()> {
    let client = node.client().await?;
    for number in KILL_AT + 1..=KILL_AT + LATER {
        let pod = pod(number, share_pool);
        let running = node.run(&client, &pod).await?;
        let what = format!("{} has its values", pod.name);
        wait_until_async(&what, || async { pod.wrong(&running).is_empty() }).await;
    }
    Ok(())
}

fn listed(names: &[&[&str]]) -> BTreeSet<String> {
    let names = names.iter().copied().flatten();
    names.map(|name| (*name).to_owned()).collect()
}

/// `locks` and `sockets` are those of the front beside those that each has.
fn nothing_else_is_left(front: Front, locks: &[&str], sockets: &[&str]) -> Result<()> {
    let tokio = Builder::new_current_thread().enable_all().build()?;
    let options = Options {
        nri: front == Front::Nri,
        nri_patience: (front == Front::Nri).then_some(PATIENCE),
        ..Options::default()
    };
    let containerd = Runtime::start(ContainerdVersion::V2, &options)?;
    let runtime = tokio.block_on(CriClient::connect(&containerd.socket()))?;
    let cgroups = PodCgroups::new(containerd.testbed())?;
    // What the runtime makes for its first pod stays.
    let first = classes::be("first");
    let first = tokio.block_on(RunningPod::start(&cgroups, &runtime, &first))?;
    tokio.block_on(clear(&runtime));
    remove(&first.cgroup);
    let before = there(containerd.testbed())?;

    let share_pool = classes::share_pool()?;
    let options = ProxyOptions {
        policy: Some(classes::node_policy(&share_pool)),
        args: vec![format!("--feature-gates={}", classes::FEATURE_GATES)],
        front,
        own_directory: Some(OWN),
        ..ProxyOptions::default()
    };
    let proxy = Proxy::start(containerd.testbed(), &containerd.socket(), options)?;
    let mut node = Node {
        proxy,
        cgroups,
        runtime: containerd,
    };
    tokio.block_on(killed_amid_a_creation(&mut node, front, &share_pool))?;
    let stays = listed(&[&STAYS[..], locks]);
    let of_killed = listed(&[&STAYS[..], &LEFT_BY_A_KILL, locks, sockets]);
    assert_eq!(own(node.testbed()), of_killed, "of one that was killed");

    node.launch_proxy()?;
    tokio.block_on(made_later(&node, &share_pool))?;
    tokio.block_on(clear(&runtime));
    ensure!(node.proxy.stop()?.success(), "{}", node.proxy.log());
    assert_eq!(own(node.testbed()), stays, "of one that was stopped");
    let pods = (0..=KILL_AT + LATER).map(|number| pod(number, &share_pool));
    let pods = pods.map(|pod| node.cgroups.existing_pod(pod.pod.uid(), pod.qos));
    let pods: Vec<PodCgroup> = pods.collect();
    let mut left = Vec::new();
    // The runtime removes what it has in its own time.
    let is_gone = comes_true(|| {
        pods.iter().for_each(remove);
        let now = there(node.testbed()).context("what is there");
        left = match now {
            Ok(now) => now.difference(&before).cloned().collect(),
            Err(error) => vec![format!("{error:#}")],
        };
        left.is_empty()
    });
    ensure!(is_gone, "left behind: {left:#?}");
    Ok(())
}

#[test]
fn of_a_proxy_that_was_killed_and_stopped_nothing_is_left_but_its_locks() -> Result<()> {
    nothing_else_is_left(Front::Cri, &["proxy.sock.lock"], &["proxy.sock"])
}

#[test]
fn of_a_plugin_that_was_killed_and_stopped_nothing_is_left_but_its_locks() -> Result<()> {
    nothing_else_is_left(Front::Nri, &[], &[])
}

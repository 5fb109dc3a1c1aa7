//! Pods of a node in a virtual machine, and who is in them.

use crate::runtime;
use anyhow::{Context, Result, anyhow, bail, ensure};
use koord_integration::{Front, Node};
use koord_kernel::core_sched::Tid;
use koord_testkit::{
    PodCgroup, PodQos, RuntimeKind,
    cri::{ContainerSpec, CriClient, PodSpec},
    poll::bound,
};
use std::{
    collections::BTreeSet,
    env, fs,
    io::Read as _,
    process::{Child, Command, Stdio},
    thread,
    time::{Duration, Instant},
};

/// Starts 200 processes as fast as it can, and waits for them.
pub(super) const BOMB: [&str; 3] = [
    "/bin/sh",
    "-c",
    "i=0; while [ $i -lt 200 ]; do sleep 1000 & i=$((i+1)); done; wait",
];

/// Has this program be of several threads, so many beside the first.
const MANY: &str = "many";
const THREADS: usize = 7;

/// How many such containers are started at most until one is by its pod's shim.
const ATTEMPTS: usize = 5;

/// A pod with a container, and what both are called.
pub(super) struct Pod {
    pub(super) sandbox: String,
    pub(super) container: String,
    pub(super) cgroup: PodCgroup,
}

/// Runs a pod with one container.
pub(super) async fn run(
    node: &Node,
    client: &CriClient,
    spec: &PodSpec,
    container: ContainerSpec,
) -> Result<Pod> {
    let cgroup = node.cgroups.pod(spec.uid(), PodQos::BestEffort)?;
    let spec = spec.clone().cgroup(&cgroup);
    let sandbox = client.run_pod(&spec).await?;
    let container = client.create_container(&sandbox, &container, &spec).await?;
    client.start_container(&container).await?;
    Ok(Pod {
        sandbox,
        container,
        cgroup,
    })
}

/// Runs a pod whose container is a [`BOMB`], and says what was found of its threads by looks from before
/// its start until all of them were there. By CRI on containerd that is also of the runtime's own process
/// before it has become the container's first: what that is comes from the shim. CRI-O has made it when the
/// container was created, and it waits outside of all groups.
///
/// A containerd before 2.0 looks for the pod's shim by its socket, which has 100 ms to answer
/// (`shim.CanConnect`), and starts the container by a second shim where a busy machine takes longer. Of such a
/// container nothing is promised but that it comes into its group, so it is no test: another is started.
pub(super) async fn run_bomb<T: Ord + Send + 'static>(
    node: &Node,
    client: &CriClient,
    spec: &PodSpec,
    (front, look): (Front, impl Fn(Tid) -> Option<T> + Clone + Send + 'static),
) -> Result<(Pod, BTreeSet<T>)> {
    let cgroup = node.cgroups.pod(spec.uid(), PodQos::BestEffort)?;
    let spec = spec.clone().cgroup(&cgroup);
    for _ in 0..ATTEMPTS {
        let (pod, found) = run_one_bomb(&cgroup, client, &spec, (front, look.clone())).await?;
        // A plugin is told of it, whoever has started it.
        let second = match front {
            Front::Cri => second_shim(&pod)?,
            Front::Nri | Front::Watch => None,
        };
        let Some((second, shim)) = second else {
            return Ok((pod, found));
        };
        println!("the runtime has started shim {second} beside {shim} of the pod");
        client.stop_pod(&pod.sandbox).await?;
        client.remove_pod(&pod.sandbox).await?;
    }
    bail!("the runtime starts second shims, {ATTEMPTS} in a row")
}

async fn run_one_bomb<T: Ord + Send + 'static>(
    cgroup: &PodCgroup,
    client: &CriClient,
    spec: &PodSpec,
    (front, look): (Front, impl Fn(Tid) -> Option<T> + Send + 'static),
) -> Result<(Pod, BTreeSet<T>)> {
    let sandbox = client.run_pod(spec).await?;
    let container = ContainerSpec::new("main").command(BOMB);
    let container = client.create_container(&sandbox, &container, spec).await?;
    let look = move |thread| match front {
        Front::Cri if runtime() != RuntimeKind::Crio => look(thread),
        _ if has_begun(thread) => look(thread),
        _ => None,
    };
    let found = start_bomb(client, (cgroup, &container), look).await?;
    let pod = Pod {
        sandbox,
        container,
        cgroup: cgroup.clone(),
    };
    Ok((pod, found))
}

/// The shim that has started a pod's container, and that of its sandbox, if they are not the same.
fn second_shim(pod: &Pod) -> Result<Option<(Tid, Tid)>> {
    let Some((_, shim)) = sandbox_and_shim(&pod.cgroup, &pod.sandbox)? else {
        return Ok(None);
    };
    let of_container = threads(&pod.cgroup, &pod.container)?;
    let first = of_container
        .first()
        .context("the container has no process")?;
    let second = shim_of(*first)?;
    Ok((second != shim).then_some((second, shim)))
}

/// Starts such a container, and looks at its threads meanwhile.
pub(super) async fn start_bomb<T: Ord + Send + 'static>(
    client: &CriClient,
    (pod, container): (&PodCgroup, &str),
    look: impl Fn(Tid) -> Option<T> + Send + 'static,
) -> Result<BTreeSet<T>> {
    let (cgroup, id) = (pod.clone(), container.to_owned());
    let looking = thread::spawn(move || look_on(&cgroup, &id, look));
    client.start_container(container).await?;
    looking
        .join()
        .map_err(|_| anyhow!("who looks has panicked"))?
}

fn look_on<T: Ord>(
    pod: &PodCgroup,
    container: &str,
    look: impl Fn(Tid) -> Option<T>,
) -> Result<BTreeSet<T>> {
    let (mut found, mut early) = (BTreeSet::new(), 0);
    let begin = Instant::now();
    loop {
        // Before the start it has no group.
        let there = threads(pod, container).unwrap_or_default();
        let seen: Vec<T> = there.iter().filter_map(|it| look(*it)).collect();
        let (any, all) = (!seen.is_empty(), there.len() > 200);
        found.extend(seen);
        if all {
            break;
        }
        early += u32::from(any);
        ensure!(begin.elapsed() < bound(), "{} threads at last", there.len());
        thread::sleep(Duration::from_millis(1));
    }
    ensure!(early > 1, "{early} looks while processes were started");
    Ok(found)
}

/// Whether a process has become what its container is to run, and is the runtime's no more. Of that the
/// name says nothing: runc protects itself by a copy or by a mount that has gone, whose path is `/`.
fn has_begun(thread: Tid) -> bool {
    let program = fs::read_link(format!("/proc/{thread}/exe"));
    program.is_ok_and(|it| it.ends_with("bin/busybox"))
}

/// A process from outside, of several threads, in a group below a container's own, such as containers make
/// that manage groups themselves.
pub(super) struct Below {
    process: Child,
    pub(super) threads: Vec<Tid>,
}

impl Below {
    pub(super) fn enter(pod: &Pod) -> Result<Self> {
        let below = format!("{}/below", pod.container);
        fs::create_dir(pod.cgroup.file("cpu", Some(&below), ""))?;
        let mut process = Command::new(env::current_exe()?)
            .arg(MANY)
            .stdout(Stdio::piped())
            .spawn()?;
        let output = process.stdout.as_mut().context("it is piped")?;
        output.read_exact(&mut [0])?;
        pod.cgroup.enter(&below, process.id())?;
        let tasks = fs::read_dir(format!("/proc/{}/task", process.id()))?;
        let threads = tasks.map(|task| Ok(task?.file_name().to_string_lossy().parse()?));
        let threads = threads.collect::<Result<Vec<_>>>()?;
        ensure!(threads.len() == THREADS + 1, "{threads:?}");
        Ok(Self { process, threads })
    }

    pub(super) fn end(mut self) -> Result<()> {
        self.process.kill()?;
        self.process.wait()?;
        Ok(())
    }
}

/// What that process does, if this is one: it starts threads, says so, and waits for its end.
pub(super) fn be_many_if_told() -> bool {
    let is_told = env::args().nth(1).as_deref() == Some(MANY);
    if is_told {
        let threads = [(); THREADS].map(|()| thread::spawn(|| thread::sleep(Duration::MAX)));
        println!();
        for thread in threads {
            thread.join().expect("it sleeps");
        }
    }
    is_told
}

pub(super) fn threads(pod: &PodCgroup, container: &str) -> Result<Vec<Tid>> {
    let text = pod.read("cpu", Some(container), "cgroup.threads")?;
    Ok(text.lines().map(str::parse).collect::<Result<_, _>>()?)
}

/// The threads of a sandbox, and the shim that has started them and starts the pod's containers. CRI-O has
/// neither.
pub(super) fn sandbox_and_shim(pod: &PodCgroup, sandbox: &str) -> Result<Option<(Vec<Tid>, Tid)>> {
    if runtime() == RuntimeKind::Crio {
        ensure!(
            !pod.directory("cpu").join(sandbox).exists(),
            "a sandbox runs"
        );
        return Ok(None);
    }
    let threads = threads(pod, sandbox)?;
    let pause = threads.first().context("the sandbox has no process")?;
    let shim = shim_of(*pause)?;
    Ok(Some((threads, shim)))
}

/// The shim whose child a container's first process is.
pub(super) fn shim_of(first: Tid) -> Result<Tid> {
    let status = fs::read_to_string(format!("/proc/{first}/status"))?;
    let line = status.lines().find_map(|line| line.strip_prefix("PPid:"));
    let parent = line.context("a process has a parent")?.trim();
    let name = fs::read_to_string(format!("/proc/{parent}/comm"))?;
    ensure!(name.trim() == "containerd-shim", "{name}");
    Ok(parent.parse()?)
}

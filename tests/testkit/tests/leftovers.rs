//! A testbed leaves nothing behind, however its owner ends.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends at the first failure")]

use std::fs;
use std::io::{BufRead as _, BufReader};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use koord_testkit::cri::message::ContainerState;
use koord_testkit::cri::{ContainerSpec, CriClient, PodSpec};
use koord_testkit::poll::{wait_until, wait_until_async};
use koord_testkit::process::is_running;
use koord_testkit::setup::BUSYBOX_IMAGE;
use koord_testkit::{
    ContainerdVersion, Kubelet, Options, PodCgroups, PodQos, Runtime, RuntimeKind, Testbed,
};
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use serde_json::{Value, json};

/// Whether `name`, which ends in a number, stands in `text`, and not as the beginning of another.
fn names(text: &str, name: &str) -> bool {
    text.match_indices(name)
        .any(|(at, _)| !text[at + name.len()..].starts_with(|next: char| next.is_ascii_digit()))
}

/// Everything on this machine that bears a testbed's name, or belongs to containers `ids`.
fn traces(name: &str, ids: &[String]) -> Vec<String> {
    let mut traces = Vec::new();
    let bears = |text: &str| names(text, name) || ids.iter().any(|id| text.contains(id.as_str()));
    for process in fs::read_dir("/proc").unwrap().filter_map(Result::ok) {
        let read = |file| fs::read_to_string(process.path().join(file)).unwrap_or_default();
        let pid = process.file_name().to_string_lossy().parse().ok();
        // A dead one is left until the machine's first process looks after its adopted children.
        if bears(&read("cgroup")) && pid.is_some_and(is_running) {
            traces.push(format!("process {}", process.path().display()));
        }
    }
    let mounts = fs::read_to_string("/proc/self/mountinfo").unwrap();
    traces.extend(mounts.lines().filter(|line| bears(line)).map(str::to_owned));
    for hierarchy in fs::read_dir("/sys/fs/cgroup")
        .unwrap()
        .filter_map(Result::ok)
    {
        collect(&hierarchy.path(), &bears, &mut traces);
    }
    let directory = std::env::temp_dir().join(name);
    if directory.exists() {
        traces.push(directory.display().to_string());
    }
    traces
}

fn collect(directory: &Path, bears: &impl Fn(&str) -> bool, found: &mut Vec<String>) {
    for entry in fs::read_dir(directory)
        .into_iter()
        .flatten()
        .filter_map(Result::ok)
    {
        if entry.file_type().is_ok_and(|kind| kind.is_dir()) {
            let path = entry.path();
            if bears(&path.to_string_lossy()) {
                found.push(path.display().to_string());
            } else {
                collect(&path, bears, found);
            }
        }
    }
}

/// Where the runtime that has its state below `directory` says what the sockets of its shims are.
fn shim_addresses(directory: &Path) -> Vec<PathBuf> {
    let state = directory.join("state/io.containerd.runtime.v2.task/k8s.io");
    let bundles = fs::read_dir(state)
        .into_iter()
        .flatten()
        .filter_map(Result::ok);
    bundles
        .flat_map(|bundle| ["address", "bootstrap.json"].map(|file| bundle.path().join(file)))
        .collect()
}

/// The sockets of these shims.
fn shim_sockets(directory: &Path) -> Vec<PathBuf> {
    let texts = shim_addresses(directory)
        .into_iter()
        .map(fs::read_to_string);
    let paths = texts.filter_map(Result::ok).filter_map(|text| {
        let (_, path) = text.split_once("unix://")?;
        Some(PathBuf::from(path.split(['"', '\n']).next()?))
    });
    paths.collect()
}

/// The runtime's state names no socket, as it does until a shim has said what its own is.
fn forget_shim_sockets(directory: &Path) {
    for file in shim_addresses(directory) {
        // A runtime has one of the two.
        fs::remove_file(file).ok();
    }
    assert_eq!(shim_sockets(directory), Vec::<PathBuf>::new());
}

/// A pod in a cgroup of the testbed and one that was given none, both with a running container.
async fn run_two_pods(socket: &Path, cgroups: Option<&PodCgroups>) -> Vec<String> {
    let client = CriClient::connect(socket).await.unwrap();
    let mut ids = Vec::new();
    for name in ["inside", "outside"] {
        let mut pod = PodSpec::new(name);
        if let Some(cgroups) = cgroups.filter(|_| name == "inside") {
            pod = pod.cgroup(&cgroups.pod(name, PodQos::BestEffort).unwrap());
        }
        let pod_id = client.run_pod(&pod).await.unwrap();
        let spec = ContainerSpec::new("main");
        let id = client.create_container(&pod_id, &spec, &pod).await.unwrap();
        client.start_container(&id).await.unwrap();
        ids.extend([pod_id, id]);
    }
    ids
}

async fn nothing_is_left_after_a_drop(version: ContainerdVersion) {
    let containerd = Runtime::start(version, &Options::default()).unwrap();
    let name = containerd.testbed().cgroup_root().replace('/', "");
    let cgroups = PodCgroups::new(containerd.testbed()).unwrap();
    let ids = run_two_pods(&containerd.socket(), Some(&cgroups)).await;
    let sockets = shim_sockets(containerd.testbed().directory());
    assert!(!sockets.is_empty() && sockets.iter().all(|socket| socket.exists()));
    // As if it ended while its pods start.
    forget_shim_sockets(containerd.testbed().directory());
    // Two containers and two sandboxes in several hierarchies, their mounts, containerd and shims.
    assert!(traces(&name, &ids).len() > 20);

    drop(containerd);
    assert_eq!(traces(&name, &ids), Vec::<String>::new());
    assert!(!sockets.iter().any(|socket| socket.exists()));
}

#[tokio::test]
async fn nothing_is_left_of_containerd_1_6_after_a_drop() {
    nothing_is_left_after_a_drop(ContainerdVersion::V1_6).await;
}

#[tokio::test]
async fn nothing_is_left_of_containerd_1_7_after_a_drop() {
    nothing_is_left_after_a_drop(ContainerdVersion::V1_7).await;
}

#[tokio::test]
async fn nothing_is_left_of_containerd_2_after_a_drop() {
    nothing_is_left_after_a_drop(ContainerdVersion::V2).await;
}

/// Nor is anything made where it would keep its notes on images.
#[tokio::test]
async fn nothing_is_left_of_cri_o_after_a_drop() {
    let notes = Path::new("/var/lib/containers");
    let were_there = notes.exists();
    let crio = Runtime::start(RuntimeKind::Crio, &Options::default()).unwrap();
    let name = crio.testbed().cgroup_root().replace('/', "");
    let cgroups = PodCgroups::of(&crio).unwrap();
    let ids = run_two_pods(&crio.socket(), Some(&cgroups)).await;
    assert!(traces(&name, &ids).len() > 20);

    drop(crio);
    assert_eq!(traces(&name, &ids), Vec::<String>::new());
    assert_eq!(notes.exists(), were_there);
}

/// Where a kubelet makes something that is not told other places, or for whatever it is told.
const OF_KUBELETS: [&str; 8] = [
    "/etc/cni",
    "/etc/kubernetes",
    "/run/kubernetes",
    "/usr/libexec/kubernetes",
    "/var/lib/kubelet",
    "/var/log/containers",
    "/var/log/kubelet",
    "/var/log/pods",
];

/// What a kubelet sets of the kernel.
const SET_BY_KUBELETS: [&str; 6] = [
    "kernel/keys/root_maxbytes",
    "kernel/keys/root_maxkeys",
    "kernel/panic",
    "kernel/panic_on_oops",
    "vm/overcommit_memory",
    "vm/panic_on_oom",
];

/// What there is of kubelets on this machine that has no testbed's name.
fn of_kubelets() -> Vec<String> {
    let places = OF_KUBELETS.into_iter().filter(|it| Path::new(it).exists());
    let set = SET_BY_KUBELETS.into_iter().map(|setting| {
        let value = fs::read_to_string(Path::new("/proc/sys").join(setting));
        format!("{setting} {}", value.unwrap().trim())
    });
    places.map(str::to_owned).chain(set).collect()
}

/// With mounts of all kinds that a kubelet makes for a pod.
fn pod_with_volumes() -> Value {
    let mount = |name: &str| json!({"name": name, "mountPath": format!("/{name}")});
    let of_path = json!({"name": "disk", "mountPath": "/part", "subPath": "part"});
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": "mounts", "namespace": "default", "uid": "uid-mounts"},
        "spec": {
            "hostNetwork": true,
            "volumes": [
                {"name": "memory", "emptyDir": {"medium": "Memory"}},
                {"name": "disk", "emptyDir": {}},
                {"name": "fields", "downwardAPI": {"items": [
                    {"path": "name", "fieldRef": {"fieldPath": "metadata.name"}},
                ]}},
            ],
            "containers": [{
                "name": "main",
                "image": BUSYBOX_IMAGE,
                "imagePullPolicy": "Never",
                "volumeMounts": [mount("memory"), mount("disk"), mount("fields"), of_path],
            }],
        },
    })
}

/// The ids of all pods and containers of the runtime, once a container runs.
async fn running(socket: &Path) -> Vec<String> {
    let client = CriClient::connect(socket).await.unwrap();
    let runs = async || {
        let containers = client.list_containers().await.unwrap();
        let mut states = containers.iter().map(|it| it.state());
        states.any(|it| it == ContainerState::Running)
    };
    wait_until_async("its pod runs", runs).await;
    let containers = client.list_containers().await.unwrap();
    let pods = client.list_pods().await.unwrap();
    let pods = pods.into_iter().map(|it| it.id);
    pods.chain(containers.into_iter().map(|it| it.id)).collect()
}

/// Of one that is killed, as a failed test does it, and of its pod, which runs on.
async fn nothing_is_left_of_a_kubelet(kind: impl Into<RuntimeKind>) {
    let before = of_kubelets();
    let runtime = Runtime::start(kind, &Options::default()).unwrap();
    let name = runtime.testbed().cgroup_root().replace('/', "");
    let _cgroups = PodCgroups::of(&runtime).unwrap();
    let kubelet = Kubelet::start(runtime.testbed(), &runtime.socket(), json!({})).unwrap();
    kubelet.apply(&pod_with_volumes()).unwrap();
    let ids = running(&runtime.socket()).await;
    // The kubelet, runtime, shim and a process of each container, their mounts, groups in each hierarchy.
    let there = traces(&name, &ids);
    assert!(there.len() > 15, "{there:#?}");

    drop(kubelet);
    drop(runtime);
    assert_eq!(traces(&name, &ids), Vec::<String>::new());
    assert_eq!(of_kubelets(), before);
}

#[tokio::test]
async fn nothing_is_left_of_a_kubelet_and_its_pods_on_containerd_1_7() {
    nothing_is_left_of_a_kubelet(ContainerdVersion::V1_7).await;
}

#[tokio::test]
async fn nothing_is_left_of_a_kubelet_and_its_pods_on_containerd_2() {
    nothing_is_left_of_a_kubelet(ContainerdVersion::V2).await;
}

/// As after a kill amid the removal of a pod, whose shim did not come to remove its socket.
#[tokio::test]
async fn no_socket_is_left_of_a_shim_that_the_runtimes_state_has_forgotten() {
    let mut containerd = Runtime::start(ContainerdVersion::V2, &Options::default()).unwrap();
    let directory = containerd.testbed().directory().to_owned();
    let cgroups = PodCgroups::new(containerd.testbed()).unwrap();
    let client = CriClient::connect(&containerd.socket()).await.unwrap();
    let pod = cgroups.pod("inside", PodQos::BestEffort).unwrap();
    let pod = PodSpec::new("inside").cgroup(&pod);
    client.run_pod(&pod).await.unwrap();
    let sockets = shim_sockets(&directory);
    assert!(!sockets.is_empty() && sockets.iter().all(|socket| socket.exists()));
    containerd.kill9().unwrap();
    for of in ["state", "root"] {
        let known = directory.join(of).join("io.containerd.runtime.v2.task");
        fs::rename(known, directory.join(of).join("forgotten")).unwrap();
    }

    drop(containerd);
    assert!(!sockets.iter().any(|socket| socket.exists()));
}

/// Another process that owns a containerd with running pods.
struct Owner {
    process: Child,
    name: String,
    ids: Vec<String>,
    sockets: Vec<PathBuf>,
}

impl Owner {
    async fn start() -> Self {
        let mut process = Command::new(env!("CARGO_BIN_EXE_koord-testbed"))
            .args(["run", "containerd-1.7"])
            .stdout(Stdio::piped())
            .process_group(0)
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(process.stdout.take().unwrap()).lines();
        let mut value = |key: &str| {
            let line = lines.next().unwrap().unwrap();
            line.strip_prefix(key).unwrap().trim().to_owned()
        };
        let socket = PathBuf::from(value("socket"));
        let name = value("cgroup").replace('/', "");
        let ids = run_two_pods(&socket, None).await;
        let sockets = shim_sockets(socket.parent().unwrap());
        assert!(!sockets.is_empty());
        Self {
            process,
            name,
            ids,
            sockets,
        }
    }

    fn pid(&self) -> Pid {
        Pid::from_child(&self.process)
    }

    /// Waits for the end of the process, then for the janitor that works on without it.
    fn leaves_nothing(mut self) {
        self.process.wait().unwrap();
        let mut left = Vec::new();
        wait_until("the testbed to be gone", || {
            left = traces(&self.name, &self.ids);
            left.is_empty() && !self.sockets.iter().any(|socket| socket.exists())
        });
    }
}

#[tokio::test]
async fn nothing_is_left_after_kill_9_of_the_owner() {
    let owner = Owner::start().await;
    kill_process(owner.pid(), Signal::KILL).unwrap();
    owner.leaves_nothing();
}

#[tokio::test]
async fn nothing_is_left_after_an_interrupt_of_the_owners_process_group() {
    let owner = Owner::start().await;
    kill_process_group(owner.pid(), Signal::INT).unwrap();
    owner.leaves_nothing();
}

#[tokio::test]
async fn the_next_testbed_clears_away_what_an_owner_killed_with_its_janitor_left() {
    let owner = Owner::start().await;
    let janitor = janitor_of(&owner.name);
    kill_process_group(janitor, Signal::KILL).unwrap();
    kill_process(owner.pid(), Signal::KILL).unwrap();
    let (name, ids) = (owner.name.clone(), owner.ids.clone());
    let mut process = owner.process;
    process.wait().unwrap();
    assert!(!traces(&name, &ids).is_empty());

    // Whichever testbed is made next does it: perhaps one of another test of this moment.
    let next = Testbed::new().unwrap();
    wait_until("the abandoned testbed to be gone", || {
        traces(&name, &ids).is_empty()
    });
    assert_eq!(next.remove(), Vec::<String>::new());
}

#[test]
fn what_could_not_be_removed_is_told_and_tried_again_by_the_next_testbed() {
    let testbed = Testbed::new().unwrap();
    let directory = testbed.directory().to_owned();
    // The janitor unmounts what lies below the directory, and nobody mounts at the directory itself.
    let mounted = Command::new("mount")
        .args(["-t", "tmpfs", "none"])
        .arg(&directory)
        .status();
    assert!(mounted.unwrap().success());
    let left = vec![format!("directory {}", directory.display())];
    assert_eq!(testbed.remove(), left);

    let unmounted = Command::new("umount").arg("-l").arg(&directory).status();
    assert!(unmounted.unwrap().success());
    // One of another test may have tried in vain just now, and be at it when the next comes.
    wait_until("the directory to be gone", || {
        let next = Testbed::new().unwrap();
        assert_eq!(next.remove(), Vec::<String>::new());
        !directory.exists()
    });
}

fn janitor_of(name: &str) -> Pid {
    let processes = fs::read_dir("/proc").unwrap().filter_map(Result::ok);
    let mut janitors = processes.filter(|process| {
        let command = fs::read(process.path().join("cmdline")).unwrap_or_default();
        let command = String::from_utf8_lossy(&command).into_owned();
        command.contains("\0janitor\0") && command.contains(&format!("/{name}\0"))
    });
    let janitor = janitors.next().expect("a living owner has a janitor");
    let pid = janitor.file_name().to_string_lossy().parse().unwrap();
    Pid::from_raw(pid).unwrap()
}

/// Or a test that looks for what the first one left would find the second one, of another thread.
#[test]
fn no_name_is_given_twice() {
    let first = Testbed::new().unwrap();
    let name = first.cgroup_root();
    assert_eq!(first.remove(), Vec::<String>::new());
    let second = Testbed::new().unwrap();
    assert_ne!(second.cgroup_root(), name);
    assert_eq!(second.remove(), Vec::<String>::new());
}

#[test]
fn a_process_of_the_testbed_ends_with_it() {
    let testbed = Testbed::new().unwrap();
    let mut sleeper = testbed.command("sleep").arg("1000").spawn().unwrap();
    assert_eq!(testbed.remove(), Vec::<String>::new());
    let ended = sleeper.wait().unwrap();
    assert!(!ended.success());
}

//! Lists of a scripted runtime that has the pod of the bench.

use super::*;
use crate::{
    front::cri::Method,
    hub::{
        Answer, Decision, Opening, Reply as Ended,
        testing::{Bench, container, list_of, listed_container, listed_pod, sandbox, script},
    },
    ledger::{Applied, Route},
};
use koord_kernel::{
    cgroup::{Controller, Generation, Marked, Tree, WeightCurve},
    fake::FakeTree,
};
use koord_model::{CpuQuota, Setting};
use koord_proto::{keys::annotation, nri, policy::NodePolicy};
use koord_testkit::scripted::{Gate, Reply, Script, ScriptedRuntime};
use prost::Message;
use std::path::PathBuf;
use tempfile::TempDir;

mod addresses;
mod late;
mod resized;
mod slow;
mod unheard;
mod unread;
mod watching;

struct Scripted {
    bench: Bench,
    socket: PathBuf,
    script: Script,
    _runtime: ScriptedRuntime,
    _dir: TempDir,
}

// === impl Scripted ===

impl Scripted {
    /// A hub that knows nothing yet, and a runtime that says this of the container.
    fn start(tree: FakeTree, info: &str) -> Self {
        Self::of(tree, listed_pod(), listed_container(), info)
    }

    fn of(tree: FakeTree, pod: cri::PodSandbox, container: cri::Container, info: &str) -> Self {
        Self::for_bench(Bench::new(tree), pod, container, info)
    }

    fn for_bench(
        bench: Bench,
        pod: cri::PodSandbox,
        container: cri::Container,
        info: &str,
    ) -> Self {
        let script = script(pod, container, info);
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("runtime.sock");
        Self {
            bench,
            _runtime: ScriptedRuntime::listen(&socket, script.clone()).unwrap(),
            script,
            socket,
            _dir: dir,
        }
    }

    async fn list(&self, scope: Scope) {
        let listed = self.list_beside(scope, &mut Missing::default()).await;
        assert_eq!(listed.containers, 1);
    }

    async fn list_beside(&self, scope: Scope, missing: &mut Missing) -> Counted {
        let endpoint = self.socket.as_path().into();
        let root = CgroupPath::root();
        let listed = list(&self.bench.hub, &endpoint, &root, scope, missing).await;
        listed.unwrap()
    }
}

/// The pod without the annotation from which its batch resources are decided.
fn undecided_pod() -> cri::PodSandbox {
    cri::PodSandbox {
        annotations: Default::default(),
        state: cri::PodSandboxState::SandboxReady.into(),
        ..listed_pod()
    }
}

/// The container, made with this annotation.
fn container_with(originals: &str) -> cri::Container {
    let mut container = listed_container();
    let key = "runtimeproxy.koordinator.sh/originals".to_owned();
    container.annotations.insert(key, originals.to_owned());
    container
}

/// The same container, made with 512 shares in place of 204 and another quota: it has these shares, and a quota
/// that somebody said since.
fn undecided(shares: &str) -> Scripted {
    const ORIGINALS: &str = r#"{"cpuShares":204,"cpuQuota":20000,"cpuPeriod":100000,
        "ours":{"cpuShares":512,"cpuQuota":100000}}"#;
    let tree = FakeTree::new(Generation::V1, 2);
    let listed = Scripted::of(tree, undecided_pod(), container_with(ORIGINALS), "");
    listed.bench.write("cpu.shares", shares);
    listed.bench.write("cpu.cfs_quota_us", "70000");
    listed
}

#[tokio::test]
async fn after_a_restart_what_nobody_decides_any_more_is_given_back_as_it_was_asked() {
    let listed = undecided("512");
    listed.list(Scope::All).await;
    crate::reconcile::pod(&listed.bench.hub, &sandbox()).await;
    assert_eq!(listed.bench.shown("cpu.shares"), "204");
    assert_eq!(listed.bench.shown("cpu.cfs_quota_us"), "70000");
    // The runtime's own spec still has our shares, so an update has to carry these.
    let shares = listed.bench.entry(Setting::CpuShares).unwrap();
    assert_eq!((shares.owner, shares.route), ("-", Route::Request));
    assert!(listed.bench.entry(Setting::CpuQuota).is_none());
}

#[tokio::test]
async fn after_another_restart_what_was_given_back_is_looked_at_again_when_the_spec_is_written() {
    // They were given back.
    let listed = undecided("204");
    listed.list(Scope::All).await;
    let hub = &listed.bench.hub;
    crate::reconcile::pod(hub, &sandbox()).await;
    let update = cri::UpdateContainerResourcesRequest {
        container_id: "container-1".to_owned(),
        linux: Some(cri::LinuxContainerResources {
            memory_limit_in_bytes: 1_000_000,
            ..Default::default()
        }),
    };
    let method = Method::UpdateContainerResources;
    let opened = hub.open(method, &update.encode_to_vec(), None);
    let Opening::Now(Decision { answer, pending }) = opened else {
        panic!("nothing to wait for");
    };
    let Answer::Patched(appended) = answer else {
        panic!("{answer:?}");
    };
    let said = cri::UpdateContainerResourcesRequest::decode(&*appended).unwrap();
    let said = said.linux.unwrap();
    assert_eq!((said.cpu_shares, said.cpu_quota), (204, 0));
    let done = Ended::Answered {
        grpc_status: Some(0),
        message: None,
    };
    hub.close(pending, done);
    listed.bench.write("cpu.shares", "512");
    crate::reconcile::pod(hub, &sandbox()).await;
    assert_eq!(listed.bench.shown("cpu.shares"), "204");
    assert_eq!(listed.bench.shown("cpu.cfs_quota_us"), "70000");
}

/// The pod, of which batch resources are decided, and its container, made with 512 shares in place of 204.
fn batch() -> Scripted {
    let mut pod = listed_pod();
    pod.set_state(cri::PodSandboxState::SandboxReady);
    let container = container_with(r#"{"cpuShares":204,"ours":{"cpuShares":512}}"#);
    let listed = Scripted::of(FakeTree::new(Generation::V1, 2), pod, container, "");
    listed.bench.write("cpu.shares", "512");
    listed
}

#[tokio::test]
async fn a_start_beside_koordlet_gives_nothing_back_that_koordlet_may_have_written() {
    let listed = batch();
    listed.bench.hub.set_resting(["BatchResource"].into());
    listed.list(Scope::All).await;
    crate::reconcile::pod(&listed.bench.hub, &sandbox()).await;
    assert_eq!(listed.bench.shown("cpu.shares"), "512");
    assert!(listed.bench.entry(Setting::CpuShares).is_none());
}

#[tokio::test]
async fn a_start_that_hears_of_koordlet_after_its_first_list_gives_nothing_back_either() {
    // Whether the hook would decide of it here, or only koordlet does.
    for decides in [true, false] {
        let listed = batch();
        let hub = &listed.bench.hub;
        hub.await_koordlet(Duration::from_secs(2));
        hub.switch_hook("BatchResource", decides);
        listed.list(Scope::All).await;
        assert!(listed.bench.entry(Setting::CpuShares).is_some());
        hub.set_resting(["BatchResource"].into());
        hub.tell_koordlet_known();
        crate::reconcile::pod(hub, &sandbox()).await;
        assert_eq!(listed.bench.shown("cpu.shares"), "512", "{decides}");
        assert!(listed.bench.entry(Setting::CpuShares).is_none());
    }
}

#[tokio::test]
async fn what_a_creation_was_told_before_a_restart_comes_back_when_koordlet_comes() {
    let listed = batch();
    listed.list(Scope::All).await;
    crate::reconcile::pod(&listed.bench.hub, &sandbox()).await;
    assert_eq!(listed.bench.shown("cpu.shares"), "512");
    listed.bench.hub.set_resting(["BatchResource"].into());
    crate::reconcile::pod(&listed.bench.hub, &sandbox()).await;
    assert_eq!(listed.bench.shown("cpu.shares"), "204");
}

#[tokio::test]
async fn what_cannot_be_read_when_koordlet_comes_comes_back_once_it_can() {
    let listed = batch();
    listed.list(Scope::All).await;
    crate::reconcile::pod(&listed.bench.hub, &sandbox()).await;
    listed.bench.hub.set_resting(["BatchResource"].into());
    let Bench { tree, pod, .. } = &listed.bench;
    let at = pod.join("container-1").unwrap();
    for _ in 0..2 {
        tree.fail_next_read(&at, "cpu.shares", koord_kernel::fake::Errno::NFILE);
    }
    for _ in 0..2 {
        crate::reconcile::pod(&listed.bench.hub, &sandbox()).await;
    }
    assert_eq!(listed.bench.shown("cpu.shares"), "204");
}

#[tokio::test]
async fn what_a_listed_container_has_from_its_pod_is_no_original() {
    const FORGED: &str = r#"{"cpuShares":262144}"#;
    let mut pod = listed_pod();
    pod.set_state(cri::PodSandboxState::SandboxReady);
    let key = "runtimeproxy.koordinator.sh/originals".to_owned();
    pod.annotations.insert(key, FORGED.to_owned());
    let tree = FakeTree::new(Generation::V1, 2);
    let listed = Scripted::of(tree, pod, container_with(FORGED), "");
    listed.list(Scope::All).await;
    let shares = listed.bench.entry(Setting::CpuShares).unwrap();
    assert_eq!(shares.original.value(), None);
}

#[tokio::test]
async fn what_a_plugin_has_noted_on_a_container_is_read_in_its_spec() {
    let key = || "runtimeproxy.koordinator.sh/originals".to_owned();
    // What it may have from its pod is nobody's word, whatever the pod says now.
    for (of, shares) in [
        (r#","of":"container-1""#, "204"),
        (r#","of":"container-0""#, "512"),
        ("", "512"),
    ] {
        let noted = format!(r#"{{"cpuShares":204,"ours":{{"cpuShares":512}}{of}}}"#);
        let info = serde_json::json!({
            "config": {"linux": {"resources": {"cpu_shares": 1024}}},
            "runtimeSpec": {
                "annotations": {"runtimeproxy.koordinator.sh/originals": noted.as_str()},
                "linux": {"resources": {"cpu": {"shares": 512}}},
            },
        });
        for of_pod in [None, Some(noted)] {
            let mut pod = listed_pod();
            pod.set_state(cri::PodSandboxState::SandboxReady);
            pod.annotations.extend(of_pod.map(|text| (key(), text)));
            let tree = FakeTree::new(Generation::V1, 2);
            let listed = Scripted::of(tree, pod, listed_container(), &info.to_string());
            listed.bench.write("cpu.shares", "512");
            listed.list(Scope::All).await;
            assert!(listed.bench.hub.switch_hook("BatchResource", false));
            crate::reconcile::pod(&listed.bench.hub, &sandbox()).await;
            assert_eq!(listed.bench.shown("cpu.shares"), shares, "{of}");
        }
    }
}

#[tokio::test]
async fn the_rank_that_a_listed_pod_says_itself_counts() {
    let mut pod = undecided_pod();
    let class = "koordinator.sh/qosClass".to_owned();
    pod.labels = [(class, "LS".to_owned())].into();
    let own = r#"{"enable":true,"groupIdentity":-1}"#;
    let key = "koordinator.sh/cpuQOS".to_owned();
    pod.annotations = [(key, own.to_owned())].into();
    let tree = FakeTree::new(Generation::V1, 2).with_group_identity();
    let listed = Scripted::of(tree, pod, listed_container(), "");
    listed.list(Scope::All).await;
    crate::reconcile::pod(&listed.bench.hub, &sandbox()).await;
    assert_eq!(listed.bench.shown_of_pod("cpu.bvt_warp_ns"), "-1");
}

#[tokio::test]
async fn who_lists_but_once_asks_about_containers_too_of_which_nothing_is_decided() {
    let info = serde_json::json!({"runtimeSpec": {"annotations": {
        "runtimeproxy.koordinator.sh/originals": r#"{"cpuShares":204,"ours":{"cpuShares":512},"of":"container-1"}"#,
    }}});
    let tree = FakeTree::new(Generation::V1, 2);
    let listed = Scripted::of(tree, undecided_pod(), listed_container(), &info.to_string());
    let hub = &listed.bench.hub;
    listed.bench.write("cpu.shares", "512");
    listed.list(Scope::All).await;
    assert!(listed.bench.entry(Setting::CpuShares).is_none());
    let endpoint = listed.socket.as_path().into();
    let unsaid = once(hub, &endpoint, &CgroupPath::root()).await;
    assert_eq!(unsaid.unwrap(), Unsaid::default());
    crate::reconcile::pod(hub, &sandbox()).await;
    assert_eq!(listed.bench.shown("cpu.shares"), "204");
}

#[tokio::test]
async fn who_lists_but_once_lists_until_everybody_was_asked_about() {
    const STATUS: &str = "/runtime.v1.RuntimeService/ContainerStatus";
    let containers = (1..=4).map(|number| cri::Container {
        id: format!("container-{number}"),
        ..listed_container()
    });
    let containers = list_of(containers);
    let tree = FakeTree::new(Generation::V1, 2);
    let listed = Scripted::start(tree, r#"{"config":{},"runtimeSpec":{}}"#);
    let answer = |path: &str, reply| drop(listed.script.clone().once(path, reply));
    for _ in 0..2 {
        let reply = Reply::message(containers.clone());
        answer("/runtime.v1.RuntimeService/ListContainers", reply);
    }
    // With these a list has no patience left for the last one.
    for _ in 0..Patience::MOST {
        let late = Reply::message(Vec::new()).after(Duration::from_secs(60));
        answer(STATUS, late);
    }
    let endpoint = listed.socket.as_path().into();
    let unsaid = once(&listed.bench.hub, &endpoint, &CgroupPath::root()).await;
    assert_eq!(unsaid.unwrap(), Unsaid::default());
}

#[tokio::test]
async fn containers_of_which_the_runtime_does_not_say_what_they_asked_for_are_counted() {
    const STATUS: &str = "/runtime.v1.RuntimeService/ContainerStatus";
    let listed = Scripted::start(FakeTree::new(Generation::V1, 2), "");
    drop(
        listed
            .script
            .clone()
            .once(STATUS, Reply::error(13, "broken")),
    );
    let endpoint = listed.socket.as_path().into();
    let unsaid = once(&listed.bench.hub, &endpoint, &CgroupPath::root()).await;
    let expected = Unsaid {
        sandboxes: 0,
        nowhere: 0,
        containers: 1,
    };
    assert_eq!(unsaid.unwrap(), expected);
}

#[test]
fn of_pods_in_no_control_group_those_count_that_may_have_something_of_ours() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let counted = || nowhere(&bench.hub.ledger().borrow());
    assert_eq!(counted(), (0, 0));
    let change = |change: &dyn Fn(&mut Pod)| {
        change(bench.hub.ledger().borrow_mut().pod_mut(&sandbox()).unwrap());
    };
    change(&|pod| pod.parent = None);
    assert_eq!(counted(), (1, 1));
    change(&|pod| pod.own.retain(|_| false));
    assert_eq!(counted(), (1, 1));
    change(&|pod| pod.containers[0].target.retain(|_| false));
    assert_eq!(counted(), (1, 0));
    change(&|pod| pod.containers[0].ours = [CpuQuota::Unlimited.into()].into());
    assert_eq!(counted(), (1, 1));
    change(&|pod| pod.containers[0].life = Life::Exited);
    assert_eq!(counted(), (1, 0));
    change(&|pod| pod.ready = false);
    assert_eq!(counted(), (0, 0));
}

/// A process in the container of the bench, with this score. Raising it takes no privilege, and
/// neither does it to go back to what it was born with.
struct Process(std::process::Child);

impl Process {
    fn start(bench: &Bench, score: &str) -> Self {
        let sleep = std::process::Command::new("sleep").arg("1000").spawn();
        let process = Self(sleep.unwrap());
        process.set(score);
        bench.tree.enter(&bench.container, process.0.id());
        process
    }

    #[expect(clippy::disallowed_methods, reason = "the process is this test's own")]
    fn set(&self, score: &str) {
        std::fs::write(self.file(), score).unwrap();
    }

    fn score(&self) -> String {
        std::fs::read_to_string(self.file())
            .unwrap()
            .trim()
            .to_owned()
    }

    fn file(&self) -> PathBuf {
        format!("/proc/{}/oom_score_adj", self.0.id()).into()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// The pod, of whose containers one annotation says this score.
fn pod_with_score(score: &str) -> cri::PodSandbox {
    let mut pod = undecided_pod();
    let key = annotation::OOM_SCORE_ADJ.to_owned();
    pod.annotations.insert(key, score.to_owned());
    pod
}

#[tokio::test]
async fn after_a_restart_a_score_that_nobody_decides_any_more_is_given_back_and_let_go() {
    const ORIGINALS: &str = r#"{"oomScoreAdj":300,"ours":{"oomScoreAdj":500}}"#;
    let tree = FakeTree::new(Generation::V2, 2);
    let listed = Scripted::of(tree, undecided_pod(), container_with(ORIGINALS), "");
    let process = Process::start(&listed.bench, "500");
    listed.list(Scope::All).await;
    crate::reconcile::pod(&listed.bench.hub, &sandbox()).await;
    assert_eq!(process.score(), "300");
    let entry = listed.bench.entry(Setting::OomScoreAdj).unwrap();
    assert_eq!((entry.owner, entry.route), ("-", Route::Request));
    // From here on it is the container's own.
    process.set("700");
    crate::reconcile::pod(&listed.bench.hub, &sandbox()).await;
    assert_eq!(process.score(), "700");
}

#[tokio::test]
async fn the_score_of_a_container_that_was_there_before_us_comes_back_if_the_runtime_says_it() {
    let says = r#"{"config":{},"runtimeSpec":{"process":{"oomScoreAdj":300}}}"#;
    for (info, after) in [(says, "300"), (r#"{"pid":1}"#, "500")] {
        let tree = FakeTree::new(Generation::V2, 2);
        let listed = Scripted::of(tree, pod_with_score("500"), listed_container(), info);
        let hub = &listed.bench.hub;
        let process = Process::start(&listed.bench, "300");
        listed.list(Scope::All).await;
        crate::reconcile::pod(hub, &sandbox()).await;
        assert_eq!(process.score(), "500");
        // What changes it is written over at the next look.
        process.set("600");
        crate::reconcile::pod(hub, &sandbox()).await;
        assert_eq!(process.score(), "500");
        assert!(hub.switch_hook("OOMScoreAdj", false));
        crate::reconcile::pod(hub, &sandbox()).await;
        assert_eq!(process.score(), after, "{info}");
        let left = listed.bench.entry(Setting::OomScoreAdj).unwrap().applied;
        assert_eq!(left == Applied::Left, after == "500", "{info}");
    }
}

/// A container that a list has told without its annotation is told by a plugin's runtime with it.
fn tell(bench: &Bench, originals: &str) {
    let mut ledger = bench.hub.ledger().borrow_mut();
    let name = "main".to_owned();
    let told = Listed::new(container(), name, Life::Running, Some(originals));
    let moment = ledger.now();
    assert!(told.take(&bench.hub, &mut ledger, &sandbox(), moment));
}

#[tokio::test]
async fn a_score_that_we_gave_is_not_what_was_asked_though_a_list_comes_before_the_runtimes_word() {
    let info = r#"{"config":{},"runtimeSpec":{"process":{"oomScoreAdj":500}}}"#;
    let tree = FakeTree::new(Generation::V2, 2);
    let listed = Scripted::of(tree, pod_with_score("500"), listed_container(), info);
    listed.list(Scope::All).await;
    tell(
        &listed.bench,
        r#"{"oomScoreAdj":300,"ours":{"oomScoreAdj":500}}"#,
    );
    let score = listed.bench.entry(Setting::OomScoreAdj).unwrap();
    assert_eq!(score.original.value().unwrap().to_string(), "300");
}

#[tokio::test]
async fn what_nobody_decides_any_more_is_given_back_though_a_list_comes_before_the_runtimes_word() {
    let tree = FakeTree::new(Generation::V1, 2);
    let listed = Scripted::of(tree, undecided_pod(), listed_container(), "");
    listed.bench.write("cpu.shares", "512");
    listed.list(Scope::All).await;
    tell(
        &listed.bench,
        r#"{"cpuShares":204,"ours":{"cpuShares":512}}"#,
    );
    crate::reconcile::pod(&listed.bench.hub, &sandbox()).await;
    assert_eq!(listed.bench.shown("cpu.shares"), "204");
}

#[tokio::test]
async fn where_nobody_asks_us_a_container_has_not_what_it_can_only_be_made_with() {
    let bench = Bench::watching(FakeTree::new(Generation::V2, 2));
    let mut pod = undecided_pod();
    let key = annotation::DEVICE_ALLOCATED.to_owned();
    pod.annotations
        .insert(key, r#"{"gpu":[{"minor":0}]}"#.to_owned());
    let listed = Scripted::for_bench(bench, pod, listed_container(), "");
    listed.list(Scope::All).await;
    crate::reconcile::pod(&listed.bench.hub, &sandbox()).await;
    let gpu = listed.bench.entry(Setting::Gpu).unwrap();
    assert_eq!(
        (gpu.route, gpu.applied),
        (Route::Kernel, Applied::Unsupported)
    );
    let metrics = listed.bench.hub.metrics().encode().unwrap();
    let counted = metrics.lines().any(|line| {
        line.contains("setting=\"gpu\"") && line.contains("unsupported") && line.ends_with(" 1")
    });
    assert!(counted, "{metrics}");
}

/// What a runtime says of a container that was created with one quota and has another now. Like
/// containerd it has a score for all containers.
fn created_with(created: i64, now: i64) -> String {
    let text = r#"{"config":{"linux":{"resources":{"cpu_shares":1024,"cpu_quota":CREATED}}},
        "runtimeSpec":{"process":{"oomScoreAdj":1000},
            "linux":{"resources":{"cpu":{"shares":1024,"quota":NOW}}}}}"#;
    let text = text.replace("CREATED", &created.to_string());
    text.replace("NOW", &now.to_string())
}

#[tokio::test]
async fn a_container_that_was_there_before_us_gets_back_what_the_runtime_says_it_asked() {
    for (info, shares, quota) in [
        (created_with(20_000, 20_000), "1024", "20000"),
        // Nobody asked for a quota.
        (created_with(0, 0), "1024", "-1"),
        // Somebody has changed it since, perhaps we: it stays, and so it does where nothing is said.
        (created_with(20_000, 30_000), "1024", "100000"),
        (r#"{"pid":1}"#.to_owned(), "512", "100000"),
    ] {
        let tree = FakeTree::new(Generation::V1, 2);
        let mut pod = listed_pod();
        pod.set_state(cri::PodSandboxState::SandboxReady);
        let listed = Scripted::of(tree, pod, listed_container(), &info);
        let hub = &listed.bench.hub;
        // It has these already, as after a restart.
        listed.bench.write("cpu.shares", "512");
        listed.bench.write("cpu.cfs_quota_us", "100000");
        listed.list(Scope::All).await;
        crate::reconcile::pod(hub, &sandbox()).await;
        {
            let mut ledger = hub.ledger().borrow_mut();
            let pod = ledger.pod_mut(&sandbox()).unwrap();
            pod.view.annotations = Default::default();
            hub.decide_again(pod);
        }
        crate::reconcile::pod(hub, &sandbox()).await;
        assert_eq!(listed.bench.shown("cpu.shares"), shares, "{info}");
        assert_eq!(listed.bench.shown("cpu.cfs_quota_us"), quota, "{info}");
        let left = listed.bench.entry(Setting::CpuQuota).unwrap().applied;
        assert_eq!(left == Applied::Left, quota == "100000", "{info}");
    }
}

#[tokio::test]
async fn what_was_asked_is_known_though_the_runtime_was_told_what_is_decided_before_it_was_asked() {
    let written = r#""shares":512,"quota":100000"#;
    for (spec, shares, quota) in [
        (written, "1024", "-1"),
        // It has not yet.
        (r#""shares":1024"#, "1024", "-1"),
        // Somebody else has told it something since.
        (r#""shares":512,"quota":300000"#, "1024", "100000"),
    ] {
        let listed = synchronized(spec);
        let hub = &listed.bench.hub;
        listed.bench.write("cpu.shares", "512");
        listed.bench.write("cpu.cfs_quota_us", "100000");
        listed.list(Scope::All).await;
        assert!(hub.switch_hook("BatchResource", false));
        crate::reconcile::pod(hub, &sandbox()).await;
        assert_eq!(listed.bench.shown("cpu.shares"), shares, "{spec}");
        assert_eq!(listed.bench.shown("cpu.cfs_quota_us"), quota, "{spec}");
    }
}

/// A container that was created with 1,024 shares and nothing else, as its runtime tells its plugin before
/// that tells it what is decided. Of its CPUs the spec says this, once a list asks.
fn synchronized(spec: &str) -> Scripted {
    let info = r#"{"config":{"linux":{"resources":{"cpu_shares":1024}}},
        "runtimeSpec":{"process":{"oomScoreAdj":1000},
            "linux":{"resources":{"cpu":{SPEC}}}}}"#;
    let info = info.replace("SPEC", spec);
    let mut pod = listed_pod();
    pod.set_state(cri::PodSandboxState::SandboxReady);
    let told = nri::PodSandbox {
        id: pod.id.clone(),
        uid: "uid-1".to_owned(),
        labels: pod.labels.clone().into_iter().collect(),
        annotations: pod.annotations.clone().into_iter().collect(),
        linux: Some(nri::LinuxPodSandbox {
            cgroup_parent: "/kubepods/besteffort/poduid-1".to_owned(),
            ..Default::default()
        }),
        ..Default::default()
    };
    let cpu = nri::LinuxCpu {
        shares: Some(nri::OptionalUInt64 { value: 1_024 }),
        ..Default::default()
    };
    let resources = nri::LinuxResources {
        cpu: Some(cpu),
        ..Default::default()
    };
    let mut running = nri::Container {
        id: "container-1".to_owned(),
        pod_sandbox_id: pod.id.clone(),
        name: "main".to_owned(),
        linux: Some(nri::LinuxContainer {
            resources: Some(resources),
            ..Default::default()
        }),
        ..Default::default()
    };
    running.set_state(nri::ContainerState::ContainerRunning);
    let tree = FakeTree::new(Generation::V1, 2);
    let listed = Scripted::of(tree, pod, listed_container(), &info);
    let hub = &listed.bench.hub;
    let updates = hub.synchronize(&[told], &[running], [].into());
    assert_eq!(updates.len(), 1);
    listed
}

/// A guaranteed pod and a kernel that has its directory, with this annotation of its author's.
fn guaranteed(annotation: Option<&str>) -> (FakeTree, cri::PodSandbox) {
    let tree = FakeTree::new(Generation::V1, 2).with_memory_qos();
    let container = CgroupPath::parse("kubepods/poduid-2/container-1").unwrap();
    tree.make(&container);
    let limit = (Controller::Memory, "memory.limit_in_bytes", "104857600");
    tree.write(limit.0, &container, limit.1, limit.2).unwrap();
    let mut pod = undecided_pod();
    pod.labels.clear();
    pod.metadata.as_mut().unwrap().uid = "uid-2".to_owned();
    let annotation = annotation.map(|text| (annotation::MEMORY_QOS.to_owned(), text.to_owned()));
    pod.annotations.extend(annotation);
    (tree, pod)
}

#[tokio::test]
async fn what_was_asked_of_memory_before_us_is_asked_for_where_memory_is_kept_by_it() {
    const INFO: &str = r#"{
        "config":{"linux":{"resources":{"memory_limit_in_bytes":104857600}}},
        "runtimeSpec":{"linux":{"resources":{"memory":{"limit":104857600}}}}}"#;
    let half = "enable: true, minLimitPercent: 50";
    // What is said of its class and of itself, whether the hook works, and what is kept of 100 MiB.
    for (class, own, works, kept) in [
        (half, None, true, "52428800"),
        (
            "enable: false",
            Some(r#"{"minLimitPercent":25}"#),
            true,
            "26214400",
        ),
        (half, None, false, "0"),
        ("enable: true, priority: 3", None, true, "0"),
    ] {
        let (tree, pod) = guaranteed(own);
        let bench = Bench::new(tree);
        let policy = format!(
            "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\nmetadata: {{name: node-1}}\n\
             spec: {{resourceQOSStrategy: {{lsrClass: {{memoryQOS: {{{class}}}}}}}}}\n"
        );
        let policy = NodePolicy::parse_stream(&policy, None).unwrap().policy;
        bench.hub.set_node_policy(policy.into());
        assert!(bench.hub.switch_hook("MemoryQOS", works));
        let listed = Scripted::for_bench(bench, pod, listed_container(), INFO);
        listed.list(Scope::All).await;
        crate::reconcile::pod(&listed.bench.hub, &sandbox()).await;
        for at in ["kubepods/poduid-2", "kubepods/poduid-2/container-1"] {
            let at = CgroupPath::parse(at).unwrap();
            let held = listed
                .bench
                .tree
                .read(Controller::Memory, &at, "memory.min");
            assert_eq!(held.unwrap().trim_end(), kept, "{at} {class}");
        }
        let calls = listed.script.calls();
        let asked = calls.iter().any(|it| it.path.ends_with("/ContainerStatus"));
        assert_eq!(asked, kept != "0", "{class}");
    }
}

const KNOWN: &str = r#"{"pid":1,"runtimeSpec":{"linux":{"resources":{"cpu":{"shares":1024}}}}}"#;

#[tokio::test]
async fn a_container_of_known_shares_tells_how_the_runtime_weighs() {
    for (weight, curve) in [
        ("100", Some(WeightCurve::Quadratic)),
        ("39", Some(WeightCurve::Linear)),
        ("40", None),
        ("1", None),
    ] {
        let listed = Scripted::start(FakeTree::new(Generation::V2, 2), KNOWN);
        listed.bench.write("cpu.weight", weight);
        listed.list(Scope::All).await;
        let known = listed.bench.hub.writer().cgroups().weight_curve();
        assert_eq!(known, curve, "{weight}");
    }
}

#[tokio::test]
async fn a_runtime_that_does_not_say_the_shares_leaves_it_unknown() {
    for info in ["", "{}", r#"{"runtimeSpec":{"linux":{"resources":{}}}}"#] {
        let listed = Scripted::start(FakeTree::new(Generation::V2, 2), info);
        listed.list(Scope::All).await;
        let known = listed.bench.hub.writer().cgroups().weight_curve();
        assert_eq!(known, None, "{info}");
    }
}

#[tokio::test]
async fn after_a_list_that_was_asked_for_only_pods_with_news_are_looked_at() {
    let listed = Scripted::start(FakeTree::new(Generation::V1, 2), "");
    let hub = &listed.bench.hub;
    listed.list(Scope::News).await;
    assert_eq!(hub.queue().drain(), [sandbox()], "it is new");
    listed.list(Scope::News).await;
    assert_eq!(hub.queue().drain(), []);
    listed.list(Scope::All).await;
    assert_eq!(hub.queue().drain(), [sandbox()]);

    let life = |life| {
        let mut ledger = hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        pod.container_mut(&container()).unwrap().life = life;
    };
    life(Life::Created);
    listed.list(Scope::News).await;
    assert_eq!(hub.queue().drain(), [sandbox()], "it runs, and nobody knew");
    hub.ledger().borrow_mut().pod_mut(&sandbox()).unwrap().ready = false;
    listed.list(Scope::News).await;
    assert_eq!(
        hub.queue().drain(),
        [sandbox()],
        "it is ready, and nobody knew"
    );
}

#[tokio::test]
async fn a_pod_of_which_the_runtime_was_told_is_looked_at_with_each_list_for_a_while() {
    let mut pod = listed_pod();
    pod.set_state(cri::PodSandboxState::SandboxReady);
    let container = container_with(r#"{"cpuShares":204,"ours":{"cpuShares":512}}"#);
    let listed = Scripted::of(FakeTree::new(Generation::V1, 2), pod, container, "");
    let hub = &listed.bench.hub;
    listed.list(Scope::News).await;
    hub.queue().drain();
    // Nobody decides it any more, and the runtime still does what it was told before.
    assert!(hub.switch_hook("BatchResource", false));
    hub.queue().drain();
    hub.note_told(vec![sandbox()]);
    for (late, after) in [("512", 0), ("300", 0), ("512", 31)] {
        pass(Duration::from_secs(after)).await;
        listed.list(Scope::News).await;
        assert_eq!(hub.queue().drain(), [sandbox()]);
        listed.bench.write("cpu.shares", late);
        crate::reconcile::pod(hub, &sandbox()).await;
        assert_eq!(listed.bench.shown("cpu.shares"), "204");
    }
    listed.list(Scope::News).await;
    assert_eq!(hub.queue().drain(), []);
}

#[tokio::test]
async fn whoever_asks_soon_after_a_list_shares_the_next() {
    let listed = Scripted::start(FakeTree::new(Generation::V1, 2), "");
    let hub = &listed.bench.hub;
    let lists = || {
        let calls = listed.script.calls();
        let lists = calls.iter();
        lists
            .filter(|call| call.path.ends_with("/ListContainers"))
            .count()
    };
    let endpoint = listed.socket.as_path().into();
    // Before the first, which may be seen late.
    let start = Instant::now();
    let asking = async {
        while lists() < 1 {
            sleep(Duration::from_millis(1)).await;
        }
        while lists() < 2 {
            hub.relist_soon();
            sleep(Duration::from_millis(1)).await;
        }
        start.elapsed()
    };
    let waited = tokio::select! {
        () = run(hub.clone(), endpoint, CgroupPath::root()) => unreachable!("it never ends"),
        waited = asking => waited,
    };
    assert!(waited >= Duration::from_secs(1), "{waited:?}");
}

/// Lets time pass while nothing is asked: a deadline would pass with it.
async fn pass(time: Duration) {
    tokio::time::pause();
    tokio::time::advance(time).await;
    tokio::time::resume();
}

#[tokio::test]
async fn the_list_of_each_minute_has_every_pod_looked_at_and_none_between_them() {
    let listed = Scripted::start(FakeTree::new(Generation::V1, 2), "");
    let hub = &listed.bench.hub;
    let lists = || {
        let text = hub.metrics().encode().unwrap();
        let prefix = "koord_runtime_proxy_relists_total{result=\"ok\"} ";
        let count = text.lines().find_map(|line| line.strip_prefix(prefix));
        count.map_or(0, |count| count.parse::<u64>().unwrap())
    };
    let another = async |before: u64| {
        let taken = async {
            while lists() == before {
                sleep(Duration::from_millis(1)).await;
            }
        };
        timeout(Duration::from_secs(30), taken).await.unwrap();
        hub.queue().drain()
    };
    let minutes = async {
        assert_eq!(another(0).await, [sandbox()], "it is new");
        // Amid the first minute comes an afterthought of the first list.
        for (passed, looked_at) in [(30, vec![]), (30, vec![sandbox()]), (60, vec![sandbox()])] {
            let before = lists();
            pass(Duration::from_secs(passed)).await;
            assert_eq!(another(before).await, looked_at);
        }
    };
    let endpoint = listed.socket.as_path().into();
    tokio::select! {
        () = run(hub.clone(), endpoint, CgroupPath::root()) => unreachable!("it never ends"),
        () = minutes => {}
    }
}

#[tokio::test]
async fn what_the_runtime_was_still_at_when_its_caller_was_lost_is_listed_soon() {
    let listed = Scripted::start(FakeTree::new(Generation::V1, 2), "");
    let hub = &listed.bench.hub;
    let path = "/runtime.v1.RuntimeService/ListContainers";
    // The first list does not have it yet, and nobody asks for another.
    let none = Vec::new();
    drop(listed.script.clone().once(path, Reply::message(none)));
    let endpoint = listed.socket.as_path().into();
    let known = async {
        while hub.ledger().borrow().sandbox_of(&container()).is_none() {
            sleep(Duration::from_millis(1)).await;
        }
        let calls = listed.script.calls();
        calls.iter().filter(|call| call.path == path).count()
    };
    let lists = tokio::select! {
        () = run(hub.clone(), endpoint, CgroupPath::root()) => unreachable!("it never ends"),
        lists = known => lists,
        () = sleep(Duration::from_secs(30)) => panic!("only the list of the minute has it"),
    };
    assert_eq!(lists, 2);
}

/// A sandbox whose directory is not where a kubelet's would be.
fn elsewhere(id: &str) -> cri::PodSandbox {
    let mut pod = listed_pod();
    pod.id = id.to_owned();
    pod.metadata.as_mut().unwrap().uid = id.to_owned();
    pod
}

#[tokio::test]
async fn a_sandbox_without_an_answer_is_asked_about_again_after_all_others() {
    let listed = Scripted::start(FakeTree::new(Generation::V1, 2), "");
    let hub = &listed.bench.hub;
    let mut missing = Missing::default();
    let mut list = async |others: &[&str], answers: &[bool]| {
        let answer = |method: &str, reply| {
            let path = format!("/runtime.v1.RuntimeService/{method}");
            drop(listed.script.clone().once(&path, reply));
        };
        let others = others.iter().map(|id| elsewhere(id));
        let pods = list_of(others.chain([listed_pod()]));
        answer("ListPodSandbox", Reply::message(pods));
        let info = r#"{"config":{"linux":{"cgroup_parent":"/elsewhere"}}}"#;
        let said = cri::PodSandboxStatusResponse {
            info: [("info".to_owned(), info.to_owned())].into(),
            ..Default::default()
        };
        for is_known in answers {
            let reply = match is_known {
                true => Reply::message(said.encode_to_vec()),
                false => Reply::error(13, "broken"),
            };
            answer("PodSandboxStatus", reply);
        }
        let taken = listed.list_beside(Scope::All, &mut missing).await;
        let text = hub.metrics().encode().unwrap();
        let mut lines = text.lines();
        let prefix = "koord_runtime_proxy_sandboxes_missing ";
        let count = lines.find_map(|line| line.strip_prefix(prefix).map(str::to_owned));
        (taken.pods, taken.containers, count.unwrap())
    };
    let both = [false, false];
    assert_eq!(list(&["a", "b"], &both).await, (1, 1, "2".to_owned()));
    assert_eq!(list(&["a", "b"], &both).await, (1, 1, "2".to_owned()));
    // The first answer is about the one that was not asked about before.
    let answers = [true, false, false];
    let found = list(&["a", "b", "new"], &answers).await;
    assert_eq!(found, (2, 1, "2".to_owned()));
    // Two lines of five, whatever the number of lists.
    let lines = std::iter::from_fn(|| hub.may_complain("-", "cgroup_parent"));
    assert_eq!(lines.count(), 3);
    let answers = [true, true];
    let found = list(&["a", "b", "new"], &answers).await;
    assert_eq!(found, (4, 1, "0".to_owned()));
    assert_eq!(list(&["b"], &[]).await, (2, 1, "0".to_owned()));
}

#[tokio::test]
async fn a_pod_beside_the_kubelets_tiers_is_told_where_a_list_brings_it() {
    for parent in ["/kubepods/poda", "/other/kubepods/poda"] {
        let pod = elsewhere("a");
        let tree = FakeTree::new(Generation::V1, 2);
        let listed = Scripted::of(tree, pod, listed_container(), "");
        let info = format!(r#"{{"config":{{"linux":{{"cgroup_parent":"{parent}"}}}}}}"#);
        let status = cri::PodSandboxStatusResponse {
            info: [("info".to_owned(), info)].into(),
            ..Default::default()
        };
        let path = "/runtime.v1.RuntimeService/PodSandboxStatus";
        let reply = Reply::message(status.encode_to_vec());
        drop(listed.script.clone().once(path, reply));
        let mut missing = Missing::default();
        let taken = listed.list_beside(Scope::All, &mut missing).await;
        assert_eq!(taken.pods, 1);
        let told = listed.bench.hub.pod_elsewhere().map(|at| at.to_string());
        let expected = parent.starts_with("/other").then_some(parent);
        assert_eq!(told.as_deref(), expected);
    }
}

/// Whether a question is asked to which this is the answer.
async fn asks(patience: &mut Patience, error: RuntimeError) -> bool {
    patience.ask(async { Err::<(), _>(error) }).await.is_some()
}

#[tokio::test]
async fn only_questions_without_an_answer_cost_patience() {
    let call = "PodSandboxStatus";
    let late = || RuntimeError::Late { call };
    let mut patience = Patience::default();
    for _ in 0..10 {
        let source = Box::new(tonic::Status::internal("broken"));
        assert!(asks(&mut patience, RuntimeError::Call { call, source }).await);
    }
    for _ in 0..3 {
        assert!(asks(&mut patience, late()).await);
    }
    assert!(!asks(&mut patience, late()).await);
    // Each step that follows has one more.
    for _ in 0..3 {
        assert!(asks(patience.next_step(), late()).await);
        assert!(!asks(&mut patience, late()).await);
    }
}

#[tokio::test]
async fn once_patience_is_over_the_runtime_is_asked_about_no_pod_and_no_container() {
    let listed = Scripted::start(FakeTree::new(Generation::V2, 2), KNOWN);
    let hub = &listed.bench.hub;
    let containers = [listed_container()];
    for (late, expected) in [
        (Patience::MOST, &[][..]),
        (
            0,
            &["PodSandboxStatus", "ContainerStatus", "ContainerStatus"],
        ),
    ] {
        let stream = connect(listed.socket.as_path().into()).await.unwrap();
        let mut runtime = Runtime::over(stream).await.unwrap();
        let mut patience = Patience::default();
        for _ in 0..late {
            let call = "PodSandboxStatus";
            asks(&mut patience, RuntimeError::Late { call }).await;
        }
        let mut missing = Missing::default();
        let changed = Changed::take(hub);
        let mut news = News {
            moment: hub.ledger().borrow_mut().begin_list(),
            pods: HashSet::new(),
            changed,
            missing: &mut missing,
        };
        let root = CgroupPath::root();
        for pod in [listed_pod(), elsewhere("a")] {
            let asking = (&mut runtime, &mut patience);
            take_pod(hub, asking, &pod, &mut news, &root).await;
        }
        take_container(hub, &containers[0], &mut news);
        weight::learn(hub, (&mut runtime, &mut patience)).await;
        let asking = (&mut runtime, &mut patience);
        origin::learn(hub, asking, Scope::All, &containers, &mut news).await;
        let calls = listed.script.calls();
        let methods = calls
            .iter()
            .map(|call| call.path.rsplit('/').next().unwrap());
        assert_eq!(methods.collect::<Vec<_>>(), expected);
    }
}

#[tokio::test]
async fn a_list_asks_about_so_many_containers_and_the_next_about_the_rest() {
    let listed = Scripted::start(FakeTree::new(Generation::V1, 2), "");
    let answer = || {
        let containers = (0..65).map(|number| cri::Container {
            id: format!("container-{number}"),
            ..listed_container()
        });
        let containers = list_of(containers);
        let path = "/runtime.v1.RuntimeService/ListContainers";
        let reply = Reply::message(containers);
        drop(listed.script.clone().once(path, reply));
    };
    for asked in [64, 65, 65] {
        answer();
        let mut missing = Missing::default();
        let taken = listed.list_beside(Scope::All, &mut missing).await;
        assert_eq!(taken.containers, 65);
        let calls = listed.script.calls();
        let calls = calls
            .iter()
            .filter(|it| it.path.ends_with("/ContainerStatus"));
        assert_eq!(calls.count(), asked);
    }
}

#[tokio::test]
async fn containers_are_known_in_the_order_in_which_they_were_made() {
    let listed = Scripted::start(FakeTree::new(Generation::V1, 2), "");
    let containers =
        [("newest", 3), ("oldest", 1), ("middle", 2)].map(|(id, created_at)| cri::Container {
            id: id.to_owned(),
            created_at,
            ..listed_container()
        });
    let containers = list_of(containers);
    let path = "/runtime.v1.RuntimeService/ListContainers";
    let reply = Reply::message(containers);
    drop(listed.script.clone().once(path, reply));
    listed
        .list_beside(Scope::All, &mut Missing::default())
        .await;
    let ledger = listed.bench.hub.ledger().borrow();
    let known = ledger.pod(&sandbox()).unwrap().containers.iter();
    let known: Vec<_> = known.map(|container| container.id.as_str()).collect();
    assert_eq!(known, ["oldest", "middle", "newest"]);
}

#[tokio::test]
async fn a_container_without_an_answer_is_asked_about_again_after_all_others() {
    let listed = Scripted::start(FakeTree::new(Generation::V1, 2), "");
    let path = |method: &str| format!("/runtime.v1.RuntimeService/{method}");
    let list = async || {
        let containers = (0..65).map(|number| cri::Container {
            id: format!("container-{number}"),
            ..listed_container()
        });
        let containers = list_of(containers);
        let reply = Reply::message(containers);
        let mut script = listed.script.clone().once(&path("ListContainers"), reply);
        for _ in 0..64 {
            script = script.once(&path("ContainerStatus"), Reply::error(13, "broken"));
        }
        let before = listed.script.calls().len();
        listed
            .list_beside(Scope::All, &mut Missing::default())
            .await;
        let calls = listed.script.calls().split_off(before);
        let asked = calls.iter().filter(|it| it.path == path("ContainerStatus"));
        let asked = asked.map(|call| {
            let request = cri::ContainerStatusRequest::decode(&*call.messages[0].message);
            request.unwrap().container_id
        });
        asked.collect::<Vec<_>>()
    };
    let (first, second) = (list().await, list().await);
    assert_eq!((first.len(), second.len()), (64, 64));
    assert!(!first.contains(&second[0]), "{} comes first", second[0]);
}

#[tokio::test]
async fn the_burst_of_a_pod_goes_though_its_policy_does_amid_the_first_list_after_a_restart() {
    const ORIGINALS: &str = r#"{"cpuQuota":50000,"cpuPeriod":100000}"#;
    let tree = FakeTree::new(Generation::V2, 2);
    let own = CgroupPath::parse("kubepods/poduid-2").unwrap();
    let of_container = own.join("container-1").unwrap();
    tree.make(&of_container);
    for at in [&own, &of_container] {
        for (file, text) in [("cpu.max", "50000 100000"), ("cpu.max.burst", "50000")] {
            tree.write(Controller::Cpu, at, file, text).unwrap();
        }
    }
    let mut pod = undecided_pod();
    pod.labels.clear();
    pod.metadata.as_mut().unwrap().uid = "uid-2".to_owned();
    let listed = Scripted::of(tree, pod, container_with(ORIGINALS), "");
    let hub = &listed.bench.hub;
    hub.set_node_policy(policy_with_bursts());
    // The list goes on to ask the runtime how it weighs, which takes longer than this.
    let withdraw = async {
        while hub.ledger().borrow().containers_len() == 0 {
            tokio::task::yield_now().await;
        }
        hub.set_node_policy(NodePolicy::default().into());
    };
    tokio::join!(listed.list(Scope::All), withdraw);
    crate::reconcile::pod(hub, &sandbox()).await;
    for at in [&own, &of_container] {
        let held = listed.bench.tree.read(Controller::Cpu, at, "cpu.max.burst");
        assert_eq!(held.unwrap().trim_end(), "0", "{at}");
    }
}

fn policy_with_bursts() -> Arc<NodePolicy> {
    let policy = "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\n\
                  metadata: {name: node-1}\nspec: {cpuBurstStrategy: {policy: cpuBurstOnly}}\n";
    Arc::new(NodePolicy::parse_stream(policy, None).unwrap().policy)
}

/// A node whose CPUs do in 40 ms what a pod's author means by 50.
fn policy_of_faster_cpus() -> Arc<NodePolicy> {
    let policy = "apiVersion: v1\nkind: Node\nmetadata:\n  name: node-1\n  annotations:\n    \
                  node.koordinator.sh/cpu-normalization-ratio: '1.25'\n";
    Arc::new(NodePolicy::parse_stream(policy, None).unwrap().policy)
}

#[tokio::test]
async fn a_quota_that_was_resized_before_a_restart_is_not_scaled_from_the_one_before_it() {
    const ORIGINALS: &str = r#"{"cpuQuota":50000,"cpuPeriod":100000}"#;
    let policy = policy_of_faster_cpus();
    for (held, is_decided, after) in [
        // Asked for, scaled by us, and scaled by a kubelet's wish for 30,000.
        ("50000", true, "40000"),
        ("40000", true, "40000"),
        ("24000", true, "24000"),
        // It is decided only after the list.
        ("50000", false, "40000"),
        ("40000", false, "40000"),
        ("30000", false, "30000"),
    ] {
        let mut pod = undecided_pod();
        pod.labels.clear();
        let tree = FakeTree::new(Generation::V1, 2);
        let listed = Scripted::of(tree, pod, container_with(ORIGINALS), "");
        if is_decided {
            listed.bench.hub.set_node_policy(policy.clone());
        }
        listed.bench.write("cpu.cfs_quota_us", held);
        listed.list(Scope::All).await;
        listed.list(Scope::All).await;
        listed.bench.hub.set_node_policy(policy.clone());
        crate::reconcile::pod(&listed.bench.hub, &sandbox()).await;
        assert_eq!(listed.bench.shown("cpu.cfs_quota_us"), after, "{held}");
    }
}

#[tokio::test]
async fn a_quota_that_a_process_before_us_has_written_by_itself_is_no_resize() {
    const ORIGINALS: &str = r#"{"cpuQuota":50000,"cpuPeriod":100000,"ours":{"cpuQuota":40000}}"#;
    for (made_with, spec, is_decided, after) in [
        (ORIGINALS, 40_000, true, "40000"),
        (ORIGINALS, 40_000, false, "50000"),
        (
            r#"{"cpuQuota":50000,"cpuPeriod":100000}"#,
            50_000,
            true,
            "40000",
        ),
        // That is one.
        (ORIGINALS, 30_000, true, "25000"),
        (ORIGINALS, 30_000, false, "25000"),
    ] {
        let mut pod = undecided_pod();
        pod.labels.clear();
        let tree = FakeTree::new(Generation::V1, 2);
        let info = created_with(spec, spec);
        let listed = Scripted::of(tree, pod, container_with(made_with), &info);
        let Bench { hub, container, .. } = &listed.bench;
        if is_decided {
            hub.set_node_policy(policy_of_faster_cpus());
        }
        listed.bench.write("cpu.cfs_quota_us", "25000");
        let marked = [Setting::CpuQuota].into();
        hub.writer()
            .cgroups()
            .mark(container, Marked::Files, &marked);
        for _ in 0..2 {
            listed.list(Scope::All).await;
            crate::reconcile::pod(hub, &sandbox()).await;
        }
        let held = listed.bench.shown("cpu.cfs_quota_us");
        assert_eq!(held, after, "{made_with} {spec} {is_decided}");
    }
}

#[tokio::test]
async fn of_one_that_was_resized_before_a_restart_comes_back_what_no_resize_is_about() {
    const ORIGINALS: &str = r#"{"cpuQuota":50000,"cpuPeriod":100000,"ours":{"cpusetCpus":"0"}}"#;
    for quota in ["50000", "30000"] {
        let mut pod = undecided_pod();
        pod.labels.clear();
        let tree = FakeTree::new(Generation::V1, 2);
        let listed = Scripted::of(tree, pod, container_with(ORIGINALS), "");
        listed.bench.write("cpu.cfs_quota_us", quota);
        let (tree, at) = (&listed.bench.tree, &listed.bench.container);
        let above = ["kubepods", "kubepods/besteffort"].map(|it| CgroupPath::parse(it).unwrap());
        let (controller, file) = (Controller::Cpuset, "cpuset.cpus");
        for above in above.iter().chain([&listed.bench.pod]) {
            tree.write(controller, above, file, "0-1").unwrap();
        }
        tree.write(controller, at, file, "0").unwrap();
        listed.list(Scope::All).await;
        crate::reconcile::pod(&listed.bench.hub, &sandbox()).await;
        let held = tree.read(controller, at, file).unwrap();
        assert_eq!(held.trim_end(), "0-1", "{quota}");
        assert_eq!(listed.bench.shown("cpu.cfs_quota_us"), quota);
    }
}

#[tokio::test]
async fn what_one_that_was_resized_before_a_restart_may_save_up_follows_the_quota_that_it_has() {
    // Which may be one of ours, and is not scaled once more.
    const ORIGINALS: &str = r#"{"cpuQuota":50000,"cpuPeriod":100000}"#;
    let mut pod = undecided_pod();
    pod.labels.clear();
    let auto = r#"{"policy":"auto"}"#.to_owned();
    pod.annotations
        .insert("koordinator.sh/cpuBurst".to_owned(), auto);
    let tree = FakeTree::new(Generation::V1, 2);
    let listed = Scripted::of(tree, pod, container_with(ORIGINALS), "");
    let Bench { hub, .. } = &listed.bench;
    for file in ["cpu.cfs_quota_us", "cpu.cfs_burst_us"] {
        listed.bench.write(file, "150000");
    }
    let held = || {
        let of_pod = listed.bench.shown_of_pod("cpu.cfs_burst_us");
        [of_pod, listed.bench.shown("cpu.cfs_burst_us")]
    };
    listed.list(Scope::All).await;
    listed.list(Scope::All).await;
    crate::reconcile::pod(hub, &sandbox()).await;
    assert_eq!(held(), ["150000", "150000"]);
    hub.set_node_policy(policy_of_faster_cpus());
    crate::reconcile::pod(hub, &sandbox()).await;
    assert_eq!(listed.bench.shown("cpu.cfs_quota_us"), "150000");
    assert_eq!(held(), ["150000", "150000"]);
    assert!(hub.switch_hook("CPUBurst", false));
    crate::reconcile::pod(hub, &sandbox()).await;
    assert_eq!(held(), ["0", "0"]);
}

#[tokio::test]
async fn a_quota_that_cannot_be_read_after_a_restart_is_no_resize() {
    const ORIGINALS: &str = r#"{"cpuQuota":50000,"cpuPeriod":100000}"#;
    let mut pod = undecided_pod();
    pod.labels.clear();
    let tree = FakeTree::new(Generation::V1, 2);
    let listed = Scripted::of(tree, pod, container_with(ORIGINALS), "");
    let Bench {
        hub,
        tree,
        container,
        ..
    } = &listed.bench;
    hub.set_node_policy(policy_of_faster_cpus());
    tree.remove(container);
    listed.list(Scope::All).await;
    tree.make(container);
    listed.bench.write("cpu.cfs_quota_us", "50000");
    listed.list(Scope::All).await;
    crate::reconcile::pod(hub, &sandbox()).await;
    assert_eq!(listed.bench.shown("cpu.cfs_quota_us"), "40000");
}

#[tokio::test]
async fn what_the_runtimes_word_tells_amid_a_list_stands_though_that_finds_out_less() {
    let info = r#"{"config": {"linux": {"resources": {"cpu_shares": 204}}},
        "runtimeSpec": {"linux": {"resources": {"cpu": {"shares": 512}}}}}"#;
    let mut pod = undecided_pod();
    pod.labels.clear();
    let listed = Scripted::of(
        FakeTree::new(Generation::V1, 2),
        pod,
        listed_container(),
        info,
    );
    let hub = &listed.bench.hub;
    hub.set_node_policy(policy_with_bursts());
    let path = "/runtime.v1.RuntimeService/ContainerStatus";
    let info = cri::ContainerStatusResponse {
        info: [("info".to_owned(), info.to_owned())].into(),
    };
    let gate = Gate::new();
    let reply = Reply::message(info.encode_to_vec()).held(&gate);
    drop(listed.script.clone().once(path, reply));
    let told = async {
        while !listed.script.calls().iter().any(|call| call.path == path) {
            sleep(Duration::from_millis(1)).await;
        }
        tell(
            &listed.bench,
            r#"{"cpuShares":204,"ours":{"cpuShares":512}}"#,
        );
        gate.open();
    };
    tokio::join!(listed.list(Scope::All), told);
    // That nobody asked for a quota is known, and so is what can be saved up of it.
    let burst = listed.bench.entry(Setting::CpuBurst).unwrap();
    assert_eq!(
        (burst.owner, burst.desired.to_string().as_str()),
        ("CPUBurst", "0")
    );
}

/// Looks after the node and its pods until this file of a tier shows this.
async fn comes_to(listed: &Scripted, tier: &str, file: &str, text: &str) {
    let at = CgroupPath::parse(tier).unwrap();
    let shown = async || {
        let read = || listed.bench.tree.read(Controller::Memory, &at, file);
        while read().unwrap().trim_end() != text {
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        () = crate::reconcile::run(listed.bench.hub.clone()) => unreachable!("it never ends"),
        () = shown() => {}
        () = sleep(Duration::from_secs(30)) => panic!("{tier} does not come to {text}"),
    }
}

/// By which best-effort pods keep all the memory that they request.
fn keeping_all() -> Arc<NodePolicy> {
    let policy = "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\nmetadata: \
                  {name: node-1}\nspec: {resourceQOSStrategy: {beClass: {memoryQOS: \
                  {enable: true, minLimitPercent: 100}}}}\n";
    Arc::new(NodePolicy::parse_stream(policy, None).unwrap().policy)
}

/// The pod with these batch resources.
fn batch_pod(spec: &str) -> cri::PodSandbox {
    let annotation = annotation::EXTENDED_RESOURCE_SPEC.to_owned();
    cri::PodSandbox {
        annotations: [(annotation, spec.to_owned())].into(),
        state: cri::PodSandboxState::SandboxReady.into(),
        ..listed_pod()
    }
}

#[tokio::test]
async fn a_tier_keeps_less_once_a_list_tells_that_a_pod_has_ended_or_is_gone() {
    const SPEC: &str = r#"{"containers":{"main":{
        "requests":{"kubernetes.io/batch-memory":"100Mi"}}}}"#;
    const TIER: &str = "kubepods/besteffort";
    let pod = batch_pod(SPEC);
    let mut ended = pod.clone();
    ended.set_state(cri::PodSandboxState::SandboxNotready);
    let tree = FakeTree::new(Generation::V2, 2).with_memory_qos();
    let listed = Scripted::of(tree, pod, listed_container(), "");
    listed.bench.hub.set_node_policy(keeping_all());
    listed.bench.hub.list_taken();
    for items in [vec![ended], Vec::new()] {
        listed.list(Scope::News).await;
        comes_to(&listed, TIER, "memory.min", "104857600").await;
        let path = "/runtime.v1.RuntimeService/ListPodSandbox";
        let reply = Reply::message(list_of(items));
        drop(listed.script.clone().once(path, reply));
        listed
            .list_beside(Scope::News, &mut Missing::default())
            .await;
        comes_to(&listed, TIER, "memory.min", "0").await;
    }
}

#[tokio::test]
async fn a_pod_that_has_lost_a_container_in_a_list_is_looked_at() {
    let listed = Scripted::start(FakeTree::new(Generation::V1, 2), "");
    listed.list(Scope::News).await;
    listed.bench.hub.queue().drain();
    let path = "/runtime.v1.RuntimeService/ListContainers";
    let none = Vec::new();
    drop(listed.script.clone().once(path, Reply::message(none)));
    let mut missing = Missing::default();
    let taken = listed.list_beside(Scope::News, &mut missing).await;
    assert_eq!(taken.containers, 0);
    assert_eq!(listed.bench.hub.queue().drain(), [sandbox()]);
}

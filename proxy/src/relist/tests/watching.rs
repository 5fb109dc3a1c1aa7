//! Where nobody asks us: a container that asked for a quota of 50,000, of which 40,000 is decided.

use super::*;

const STATUS: &str = "/runtime.v1.RuntimeService/ContainerStatus";
const PODS: &str = "/runtime.v1.RuntimeService/ListPodSandbox";

struct Watched(Scripted);

// === impl Watched ===

impl Watched {
    /// Listed once. The runtime says that it was created with this quota, and has it.
    async fn start(container: cri::Container, quota: i64) -> Self {
        let mut pod = undecided_pod();
        pod.labels.clear();
        let bench = Bench::watching(FakeTree::new(Generation::V1, 2));
        bench.write("cpu.cfs_quota_us", &quota.to_string());
        let info = created_with(quota, quota);
        let listed = Scripted::for_bench(bench, pod, container, &info);
        listed.bench.hub.set_node_policy(policy_of_faster_cpus());
        listed.list(Scope::All).await;
        let watched = Self(listed);
        assert_eq!(watched.held().await, "40000");
        watched
    }

    fn answer(&self, path: &str, reply: Reply) {
        drop(self.0.script.clone().once(path, reply));
    }

    /// The runtime has this quota now, in its spec and in the kernel.
    fn resize(&self, now: i64) {
        let status = cri::ContainerStatusResponse {
            info: [("info".to_owned(), created_with(50_000, now))].into(),
        };
        self.answer(STATUS, Reply::message(status.encode_to_vec()));
        self.0.bench.write("cpu.cfs_quota_us", &now.to_string());
    }

    /// The same, told and listed.
    async fn resized(&self, now: i64) -> String {
        self.resize(now);
        self.0.bench.hub.container_changed(container());
        self.0.list(Scope::News).await;
        self.held().await
    }

    /// What it has once its pod was looked at, which the list has asked for.
    async fn held(&self) -> String {
        let hub = &self.0.bench.hub;
        assert_eq!(hub.queue().drain(), [sandbox()]);
        crate::reconcile::pod(hub, &sandbox()).await;
        self.0.bench.shown("cpu.cfs_quota_us")
    }
}

#[tokio::test]
async fn where_nobody_asks_us_the_runtime_says_what_was_asked_and_what_is_asked_since() {
    let watched = Watched::start(listed_container(), 50_000).await;
    let entry = watched.0.bench.entry(Setting::CpuQuota).unwrap();
    assert_eq!(entry.route, Route::Kernel);
    assert_eq!(watched.resized(30_000).await, "24000");
    // Not told.
    watched.resize(100_000);
    watched.0.list(Scope::All).await;
    assert_eq!(watched.held().await, "80000");
}

#[tokio::test]
async fn a_resize_to_what_we_had_decided_is_a_resize() {
    let watched = Watched::start(listed_container(), 50_000).await;
    assert_eq!(watched.resized(40_000).await, "32000");
}

#[tokio::test]
async fn what_another_front_of_ours_has_said_is_no_resize_until_there_was_one() {
    const ORIGINALS: &str = r#"{"cpuQuota":50000,"cpuPeriod":100000,"ours":{"cpuQuota":40000}}"#;
    let watched = Watched::start(container_with(ORIGINALS), 40_000).await;
    // Something else was changed.
    assert_eq!(watched.resized(40_000).await, "40000");
    assert_eq!(watched.resized(30_000).await, "24000");
    assert_eq!(watched.resized(40_000).await, "32000");
}

#[tokio::test]
async fn what_was_told_to_have_changed_is_asked_about_until_the_runtime_has_said_it() {
    let watched = Watched::start(listed_container(), 50_000).await;
    let hub = &watched.0.bench.hub;
    hub.container_changed(container());
    watched.resize(30_000);
    let endpoint = watched.0.socket.as_path().into();
    let (root, mut missing) = (CgroupPath::root(), Missing::default());

    watched.answer(PODS, Reply::error(14, "away"));
    let listing = list(hub, &endpoint, &root, Scope::News, &mut missing);
    assert!(listing.await.is_err());

    // It is over when the runtime has the question, and before there is an answer.
    let asked = || {
        let calls = watched.0.script.calls();
        calls.iter().filter(|call| call.path == PODS).count()
    };
    let before = asked();
    watched.answer(
        PODS,
        Reply::message(Vec::new()).after(Duration::from_secs(60)),
    );
    let listing = list(hub, &endpoint, &root, Scope::News, &mut missing);
    let another = async {
        while asked() == before {
            sleep(Duration::from_millis(1)).await;
        }
    };
    tokio::select! {
        _ = listing => panic!("it ended by itself"),
        () = another => {}
    }
    assert_eq!(hub.queue().drain(), []);

    watched.0.list(Scope::News).await;
    assert_eq!(watched.held().await, "24000");
    assert!(hub.changed_containers().is_empty());

    // Only the question about it fails.
    hub.container_changed(container());
    watched.answer(STATUS, Reply::error(13, "broken"));
    watched.0.list(Scope::News).await;
    assert_eq!(hub.changed_containers(), [container()].into());
}

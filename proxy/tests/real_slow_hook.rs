//! A hook that is slower than the runtime's patience, on real runtimes of each NRI generation: the
//! runtime goes on in time, keeps its plugin, and the values come all the same.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends at the first failure")]

mod support;

use koord_hooks::{
    Adjustment, Chain, FailPolicies, FailPolicy, FeatureGates, Hook, HookError, HookMeta, Inputs,
    Maturity, Stage, View,
};
use koord_model::{CpuShares, Setting};
use koord_runtime_proxy::{
    front::nri::{Front, Identity, Pulse, Way},
    metrics::Metrics,
};
use koord_testkit::{
    ContainerdVersion, Options, PodCgroup, PodCgroups, PodQos, Runtime, RuntimeKind,
    cri::{CallError, ContainerSpec, CriClient, PodSpec, message::LinuxContainerResources},
    poll::wait_until_async,
};
use std::{
    path::PathBuf,
    rc::Rc,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};
use support::{inside, node::value};
use tokio::{sync::oneshot, task::LocalSet};

/// How long the runtimes wait: longer than the two seconds that they do by themselves, so that only
/// what we do decides whether an answer is in time, not how busy the machine is.
const PATIENCE: Duration = Duration::from_secs(12);

/// How often it is tried with those two seconds. A machine that is busy for one of them may lose a
/// plugin that answered; one that never does is closed each time.
const ATTEMPTS: usize = 3;

/// Gives every container 300 shares, after some thought.
struct Thoughtful {
    thought: Arc<Thought>,
}

/// What is thought about: the next decision at this stage, until it is over.
#[derive(Default)]
struct Thought {
    next: Mutex<Option<Stage>>,
    over: AtomicBool,
}

const META: HookMeta = HookMeta {
    name: "Thoughtful",
    gate: "Thoughtful",
    default_on: true,
    maturity: Maturity::Own,
    options: &[],
    stages: &[Stage::Pod, Stage::Container],
    fail_policy: FailPolicy::Open,
    doc: "gives every container 300 shares",
    inputs: Inputs {
        labels: &[],
        annotations: &[],
    },
    settings: &[Setting::CpuShares],
};

impl Hook for Thoughtful {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        let main = view.container.is_some_and(|it| it.name == "main");
        if main || view.stage == Stage::Pod {
            self.thought.about(view.stage);
        }
        Ok(Adjustment {
            cpu_shares: CpuShares::new(300).ok().filter(|_| main),
            ..Adjustment::default()
        })
    }
}

// === impl Thought ===

impl Thought {
    fn begins_with(&self, stage: Stage) {
        self.over.store(false, Ordering::SeqCst);
        *self.next.lock().unwrap() = Some(stage);
    }

    fn has_begun(&self) -> bool {
        self.next.lock().unwrap().is_none()
    }

    fn is_over(&self) {
        assert!(self.has_begun(), "it was never asked");
        self.over.store(true, Ordering::SeqCst);
    }

    fn about(&self, stage: Stage) {
        // Once: whoever asks again is not kept.
        let taken = self.next.lock().unwrap().take_if(|next| *next == stage);
        while taken.is_some() && !self.over.load(Ordering::SeqCst) {
            thread::sleep(Duration::from_millis(5));
        }
    }
}

/// A plugin on a thread of its own, as the data path is in the proxy.
struct Running {
    metrics: mpsc::Receiver<String>,
    ask: mpsc::Sender<()>,
    _stop: oneshot::Sender<()>,
}

impl Running {
    fn start(socket: PathBuf, thought: Arc<Thought>) -> Self {
        let (stop, stopped) = oneshot::channel();
        let (ask, asked) = mpsc::channel();
        let (tell, metrics) = mpsc::channel();
        thread::spawn(move || {
            let pulse = Pulse::new().unwrap();
            let runtime = pulse.runtime().unwrap();
            let serving = async {
                let metrics = Rc::new(Metrics::new());
                let chain = Chain::new(&FeatureGates::default(), &FailPolicies::default());
                let chain = chain.with_hook(META, Box::new(Thoughtful { thought }));
                let hub = inside::hub(chain, inside::HOLD_TIMEOUT, &metrics);
                tokio::task::spawn_local(koord_runtime_proxy::reconcile::run(hub.clone()));
                let identity = Identity::new("slow", "10").unwrap();
                let way = Way::Socket(socket.into());
                let front = Front::new(way, identity, hub, metrics.clone(), pulse);
                tokio::task::spawn_local(async move {
                    loop {
                        while asked.try_recv().is_ok() {
                            tell.send(metrics.encode().unwrap()).unwrap();
                        }
                        tokio::time::sleep(Duration::from_millis(5)).await;
                    }
                });
                front.serve(async { drop(stopped.await) }).await;
            };
            LocalSet::new().block_on(&runtime, serving);
        });
        Self {
            metrics,
            ask,
            _stop: stop,
        }
    }

    /// A series of its metrics.
    fn metric(&self, series: &str) -> u64 {
        self.ask.send(()).unwrap();
        value(&self.metrics.recv().unwrap(), series)
    }
}

/// A runtime whose plugin thinks for too long about what it is asked.
struct Slow {
    client: CriClient,
    sandbox: String,
    cgroup: PodCgroup,
    plugin: Running,
    thought: Arc<Thought>,
}

// === impl Slow ===

impl Slow {
    /// Has the runtime do something about which the hook thinks at this stage until it is done. The
    /// plugin is not closed, and what it then decides was late.
    async fn while_it_thinks<T>(
        &self,
        stage: Stage,
        asked: impl Future<Output = Result<T, CallError>>,
    ) -> T {
        let late = || self.plugin.metric("plugin_late_answers_total");
        let before = late();
        self.thought.begins_with(stage);
        let start = Instant::now();
        let done = asked.await.unwrap();
        // What was asked, and what is told after it, was answered in half of the time though the hook
        // is still at it.
        let took = start.elapsed();
        assert!(took > PATIENCE * 4 / 10, "{took:?}");
        self.thought.is_over();
        wait_until_async("the late answer is counted", async || late() > before).await;
        self.is_asked_by_who_asked_first();
        done
    }

    fn is_asked_by_who_asked_first(&self) {
        assert_eq!(self.plugin.metric("plugin_up"), 1);
        let sessions = self.plugin.metric(r#"plugin_sessions_total{result="ok"}"#);
        assert_eq!(sessions, 1);
    }

    async fn has_its_shares(&self, container: &str) {
        let cgroup = &self.cgroup;
        let held = || cgroup.read("cpu", Some(container), "cpu.shares").unwrap();
        wait_until_async("the hook's shares", async || held() == "300").await;
    }
}

/// A container that runs before there is a plugin, which then thinks about what it is told at first
/// until the runtime would have given it up.
async fn synchronize(containerd: &Runtime, pod: &PodSpec, cgroup: PodCgroup) -> Slow {
    let client = CriClient::connect(&containerd.socket()).await.unwrap();
    let sandbox = client.run_pod(pod).await.unwrap();
    let id = client.create_container(&sandbox, &main(), pod).await;
    let id = id.unwrap();
    client.start_container(&id).await.unwrap();
    let thought = Arc::new(Thought::default());
    thought.begins_with(Stage::Container);
    let plugin = Running::start(containerd.nri_socket(), thought.clone());
    wait_until_async("the runtime tells of it", async || thought.has_begun()).await;
    tokio::time::sleep(PATIENCE * 5 / 4).await;
    thought.is_over();
    let slow = Slow {
        client,
        sandbox,
        cgroup,
        plugin,
        thought,
    };
    slow.has_its_shares(&id).await;
    let late = || slow.plugin.metric("plugin_late_answers_total");
    wait_until_async("the late answer is counted", async || late() == 1).await;
    slow.is_asked_by_who_asked_first();
    slow.client.remove_container(&id).await.unwrap();
    slow
}

fn shares(cpu_shares: i64) -> LinuxContainerResources {
    LinuxContainerResources {
        cpu_shares,
        ..Default::default()
    }
}

fn main() -> ContainerSpec {
    ContainerSpec::new("main").resources(shares(256))
}

async fn a_slow_hook_costs_no_pod_its_values(kind: impl Into<RuntimeKind>) {
    let options = Options {
        nri: true,
        nri_patience: Some(PATIENCE),
        ..Options::default()
    };
    let runtime = Runtime::start(kind, &options).unwrap();
    let cgroups = PodCgroups::of(&runtime).unwrap();
    let qos = PodQos::Burstable { milli_cpu: 250 };
    let cgroup = cgroups.pod("uid-slow", qos).unwrap();
    let pod = PodSpec::new("slow").cgroup(&cgroup);
    let slow = synchronize(&runtime, &pod, cgroup).await;
    let client = &slow.client;

    let cgroup = cgroups.pod("uid-other", qos).unwrap();
    let other = PodSpec::new("other").cgroup(&cgroup);
    slow.while_it_thinks(Stage::Pod, client.run_pod(&other))
        .await;

    let (sandbox, main) = (&slow.sandbox, main());
    let created = client.create_container(sandbox, &main, &pod);
    let id = slow.while_it_thinks(Stage::Container, created).await;
    client.start_container(&id).await.unwrap();
    slow.has_its_shares(&id).await;

    let updated = client.update_resources(&id, shares(512));
    slow.while_it_thinks(Stage::Container, updated).await;
    slow.has_its_shares(&id).await;

    // It is asked about what comes next.
    client.remove_container(&id).await.unwrap();
    let id = client.create_container(sandbox, &main, &pod).await;
    let id = id.unwrap();
    client.start_container(&id).await.unwrap();
    slow.has_its_shares(&id).await;
}

#[tokio::test]
async fn a_slow_hook_never_costs_us_containerd_1_7() {
    a_slow_hook_costs_no_pod_its_values(ContainerdVersion::V1_7).await;
}

#[tokio::test]
async fn a_slow_hook_never_costs_us_containerd_1_7_6() {
    a_slow_hook_costs_no_pod_its_values(ContainerdVersion::V1_7_6).await;
}

#[tokio::test]
async fn a_slow_hook_never_costs_us_containerd_1_7_13() {
    a_slow_hook_costs_no_pod_its_values(ContainerdVersion::V1_7_13).await;
}

#[tokio::test]
async fn a_slow_hook_never_costs_us_containerd_2_1() {
    a_slow_hook_costs_no_pod_its_values(ContainerdVersion::V2_1).await;
}

#[tokio::test]
async fn a_slow_hook_never_costs_us_containerd_2_2_0() {
    a_slow_hook_costs_no_pod_its_values(ContainerdVersion::V2_2_0).await;
}

#[tokio::test]
async fn a_slow_hook_never_costs_us_containerd_2_2() {
    a_slow_hook_costs_no_pod_its_values(ContainerdVersion::V2_2).await;
}

#[tokio::test]
async fn a_slow_hook_never_costs_us_cri_o() {
    a_slow_hook_costs_no_pod_its_values(RuntimeKind::Crio).await;
}

#[tokio::test]
async fn a_slow_hook_never_costs_us_containerd_2() {
    a_slow_hook_costs_no_pod_its_values(ContainerdVersion::V2).await;
}

/// What a runtime asks its plugin about.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Asked {
    Pod,
    Creation,
    Update,
}

/// A runtime that waits no longer than it does by itself, and its plugin.
struct ByItself {
    plugin: Running,
    thought: Arc<Thought>,
    client: CriClient,
    cgroups: PodCgroups,
    _runtime: Runtime,
}

// === impl ByItself ===

impl ByItself {
    async fn start(version: ContainerdVersion) -> Self {
        let options = Options {
            nri: true,
            ..Options::default()
        };
        let runtime = Runtime::start(version, &options).unwrap();
        let thought = Arc::new(Thought::default());
        Self {
            plugin: Running::start(runtime.nri_socket(), thought.clone()),
            thought,
            client: CriClient::connect(&runtime.socket()).await.unwrap(),
            cgroups: PodCgroups::new(runtime.testbed()).unwrap(),
            _runtime: runtime,
        }
    }

    fn sessions(&self) -> u64 {
        self.plugin.metric(r#"plugin_sessions_total{result="ok"}"#)
    }

    fn late(&self) -> u64 {
        self.plugin.metric("plugin_late_answers_total")
    }

    /// Has a pod of this name run whose container is created and updated; the hook thinks about one of
    /// that. Whether the runtime went on meanwhile, and has kept its plugin.
    async fn keeps_its_plugin(&self, asked: Asked, name: &str) -> bool {
        let up = || self.plugin.metric("plugin_up");
        wait_until_async("it is registered", async || up() == 1).await;
        let (sessions, late) = (self.sessions(), self.late());
        let Some((cgroup, id)) = self.lives(asked, name).await else {
            return false;
        };
        let held = || cgroup.read("cpu", Some(&id), "cpu.shares").unwrap();
        // One that was closed knows the container by its next session alone.
        wait_until_async("the hook's shares", async || held() == "300").await;
        self.sessions() == sessions && self.late() > late
    }

    /// The pod's group and its container, which runs.
    async fn lives(&self, asked: Asked, name: &str) -> Option<(PodCgroup, String)> {
        let client = &self.client;
        let cgroup = self.cgroups.pod(name, PodQos::Burstable { milli_cpu: 250 });
        let cgroup = cgroup.unwrap();
        let (pod, main) = (PodSpec::new(name).cgroup(&cgroup), main());
        let stage = |at: Asked, stage: Stage| (at == asked).then_some(stage);
        let run = client.run_pod(&pod);
        let sandbox = self.done(stage(Asked::Pod, Stage::Pod), run).await?;
        let created = client.create_container(&sandbox, &main, &pod);
        let id = self.done(stage(Asked::Creation, Stage::Container), created);
        let id = id.await?;
        self.done(None, client.start_container(&id)).await?;
        let updated = client.update_resources(&id, shares(512));
        self.done(stage(Asked::Update, Stage::Container), updated)
            .await?;
        Some((cgroup, id))
    }

    /// What the runtime has done while the hook thought about it at this stage, if it is to; none if the
    /// runtime has failed, or has not asked.
    async fn done<T>(
        &self,
        thinks_at: Option<Stage>,
        call: impl Future<Output = Result<T, CallError>>,
    ) -> Option<T> {
        if let Some(stage) = thinks_at {
            self.thought.begins_with(stage);
        }
        let done = call.await;
        let was_asked = self.thought.next.lock().unwrap().take().is_none();
        self.thought.over.store(true, Ordering::SeqCst);
        done.ok().filter(|_| was_asked)
    }
}

async fn the_limit_that_runtimes_have_is_kept(version: ContainerdVersion) {
    let by_itself = ByItself::start(version).await;
    'asked: for asked in [Asked::Pod, Asked::Creation, Asked::Update] {
        for attempt in 0..ATTEMPTS {
            let name = format!("{asked:?}-{attempt}").to_lowercase();
            if by_itself.keeps_its_plugin(asked, &name).await {
                continue 'asked;
            }
        }
        panic!("{version} has closed it over {asked:?} in each of {ATTEMPTS} attempts");
    }
}

#[tokio::test]
async fn a_slow_hook_keeps_within_the_limit_that_containerd_1_7_has_by_itself() {
    the_limit_that_runtimes_have_is_kept(ContainerdVersion::V1_7).await;
}

#[tokio::test]
async fn a_slow_hook_keeps_within_the_limit_that_containerd_2_has_by_itself() {
    the_limit_that_runtimes_have_is_kept(ContainerdVersion::V2).await;
}

//! A hook that is slower than the runtime's patience, on real containerds of two NRI generations: the
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
    Containerd, ContainerdVersion, Options, PodCgroups, PodQos,
    cri::{ContainerSpec, CriClient, PodSpec, message::LinuxContainerResources},
    poll::wait_until_async,
};
use std::{
    path::PathBuf,
    rc::Rc,
    sync::{
        Arc,
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
const PATIENCE: Duration = Duration::from_secs(30);

/// Gives every container 300 shares, after some thought.
struct Thoughtful {
    thought: Arc<Thought>,
}

/// How the next container is thought about.
#[derive(Default)]
struct Thought {
    /// Until it is over.
    slow: AtomicBool,
    over: AtomicBool,
}

const META: HookMeta = HookMeta {
    name: "Thoughtful",
    gate: "Thoughtful",
    default_on: true,
    maturity: Maturity::Own,
    options: &[],
    stages: &[Stage::Container],
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
        if !main {
            return Ok(Adjustment::default());
        }
        // Once: whoever asks again is not kept.
        if self.thought.slow.swap(false, Ordering::SeqCst) {
            while !self.thought.over.load(Ordering::SeqCst) {
                thread::sleep(Duration::from_millis(5));
            }
        }
        Ok(Adjustment {
            cpu_shares: CpuShares::new(300).ok(),
            ..Adjustment::default()
        })
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

async fn a_slow_hook_costs_no_pod_its_values(version: ContainerdVersion) {
    let options = Options {
        nri: true,
        nri_patience: Some(PATIENCE),
        ..Options::default()
    };
    let containerd = Containerd::start(version, &options).unwrap();
    let cgroups = PodCgroups::new(containerd.testbed()).unwrap();
    let cgroup = cgroups
        .pod("uid-slow", PodQos::Burstable { milli_cpu: 250 })
        .unwrap();
    let client = CriClient::connect(&containerd.socket()).await.unwrap();
    let thought = Arc::new(Thought::default());
    let plugin = Running::start(containerd.nri_socket(), thought.clone());
    wait_until_async("the runtime asks", async || plugin.metric("plugin_up") == 1).await;

    let pod = PodSpec::new("slow").cgroup(&cgroup);
    let sandbox = client.run_pod(&pod).await.unwrap();
    let asked = LinuxContainerResources {
        cpu_shares: 256,
        ..Default::default()
    };
    let main = ContainerSpec::new("main").resources(asked);
    thought.slow.store(true, Ordering::SeqCst);
    let start = Instant::now();
    let id = client.create_container(&sandbox, &main, &pod).await;
    let id = id.unwrap();
    // The creation, and what is told after it, was answered in half of the time though the hook is
    // still at it.
    let took = start.elapsed();
    assert!(took > PATIENCE * 4 / 10, "{took:?}");
    assert!(!thought.slow.load(Ordering::SeqCst), "it was never asked");
    thought.over.store(true, Ordering::SeqCst);
    client.start_container(&id).await.unwrap();
    let held = || cgroup.read("cpu", Some(&id), "cpu.shares").unwrap();
    wait_until_async("the hook's shares", async || held() == "300").await;
    let late = || plugin.metric("plugin_late_answers_total");
    wait_until_async("the late answer is counted", async || late() >= 1).await;

    // It was never closed, and is asked about what comes next.
    assert_eq!(plugin.metric("plugin_up"), 1);
    assert_eq!(plugin.metric(r#"plugin_sessions_total{result="ok"}"#), 1);
    client.remove_container(&id).await.unwrap();
    let id = client.create_container(&sandbox, &main, &pod).await;
    let id = id.unwrap();
    client.start_container(&id).await.unwrap();
    let held = || cgroup.read("cpu", Some(&id), "cpu.shares").unwrap();
    wait_until_async("they are there again", async || held() == "300").await;
}

#[tokio::test]
async fn a_slow_hook_never_costs_us_containerd_1_7() {
    a_slow_hook_costs_no_pod_its_values(ContainerdVersion::V1_7).await;
}

#[tokio::test]
async fn a_slow_hook_never_costs_us_containerd_2() {
    a_slow_hook_costs_no_pod_its_values(ContainerdVersion::V2).await;
}

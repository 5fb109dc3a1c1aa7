//! The proxy as the runtime's plugin: a client that goes straight to a real containerd has the same
//! values as one that goes through the proxy, whatever is restarted.

use anyhow::{Context, Result, ensure};
use koord_integration::{
    Front, Node, ProxyOptions, RunningPod,
    classes::{self, PodSpecOf},
    fronts::{Expected, HamiLock, Machine, Values},
    rdma::RdmaMachine,
};
use koord_testkit::{
    ContainerdVersion, RuntimeKind,
    cri::{CriClient, message::LinuxContainerResources},
    poll::{comes_true, wait_until, wait_until_async},
};
use std::{collections::BTreeMap, fs};

fn options(front: Front) -> Result<ProxyOptions> {
    Ok(ProxyOptions {
        policy: Some(classes::node_policy(&classes::share_pool()?)),
        args: vec![
            "--feature-gates".to_owned(),
            classes::FEATURE_GATES.to_owned(),
        ],
        front,
        ..ProxyOptions::default()
    })
}

async fn run_all(node: &Node) -> Result<Vec<(PodSpecOf, RunningPod)>> {
    let client = node.client().await?;
    let mut all = Vec::new();
    for pod in classes::all(&classes::share_pool()?) {
        let running = node.run(&client, &pod).await?;
        all.push((pod, running));
    }
    Ok(all)
}

fn wrong(all: &[(PodSpecOf, RunningPod)]) -> Vec<String> {
    all.iter()
        .flat_map(|(pod, running)| pod.wrong(running))
        .collect()
}

/// Waits until everything is as it should be.
fn all_right(when: &str, all: &[(PodSpecOf, RunningPod)]) {
    wait_until(&format!("the values {when}"), || wrong(all).is_empty());
}

/// The hooks' values stay in the pod of a class, whatever an update asks for its container.
async fn keeps_its_values(
    client: &CriClient,
    all: &[(PodSpecOf, RunningPod)],
    class: &str,
    update: LinuxContainerResources,
) -> Result<()> {
    let (pod, running) = all
        .iter()
        .find(|(pod, _)| pod.class == class)
        .with_context(|| class.to_owned())?;
    client.update_resources(&running.container, update).await?;
    wait_until(&format!("hooks' values stay in {class}"), || {
        pod.wrong(running).is_empty()
    });
    Ok(())
}

/// Restarts the runtime, runs one pod more, and then kills the plugin.
async fn after_restarts_all_is_right(
    node: &mut Node,
    mut all: Vec<(PodSpecOf, RunningPod)>,
) -> Result<()> {
    node.runtime.restart()?;
    wait_until("the runtime asks us again", || node.proxy.serves());
    all_right("after the runtime's restart", &all);
    let client = node.client().await?;
    let pod = classes::be("later");
    let running = node.run(&client, &pod).await?;
    all.push((pod, running));
    all_right("of a pod that came later", &all);

    // What we do not know any more the runtime gives back, originals included.
    let before = node.decided()?;
    assert_eq!(of_later(&before).len(), 4);
    node.proxy.kill9()?;
    node.launch_proxy()?;
    all_right("after our restart", &all);
    wait_until("what was asked for is known again", || {
        node.decided()
            .is_ok_and(|now| of_later(&now) == of_later(&before))
    });
    Ok(())
}

async fn the_values_are_those_of_the_cri_front(kind: impl Into<RuntimeKind> + Copy) -> Result<()> {
    let by_cri = {
        let node = Node::start(kind, options(Front::Cri)?)?;
        let all = run_all(&node).await?;
        all_right("before the runtime", &all);
        node.decided()?
    };
    let mut node = Node::start(kind, options(Front::Nri)?)?;
    let all = run_all(&node).await?;
    all_right("by the plugin", &all);
    ensure!(by_cri.len() > 10, "the ledger of the CRI front: {by_cri:?}");
    let alike = comes_true(|| node.decided().is_ok_and(|it| it == by_cri));
    ensure!(alike, "{:#?}, not {by_cri:#?}", node.decided()?);

    // Clients do not go through us.
    assert!(!node.proxy.socket().exists());
    let status = node.proxy.status()?;
    assert_eq!(
        (&status["front"], &status["pluginUp"]),
        (&"nri".into(), &true.into())
    );
    let name = match kind.into() {
        RuntimeKind::Containerd(_) => "containerd",
        RuntimeKind::Crio => "cri-o",
    };
    assert_eq!(status["runtime"]["name"], name);

    let client = node.client().await?;
    let more = LinuxContainerResources {
        cpu_shares: 1_024,
        memory_limit_in_bytes: 256 << 20,
        ..Default::default()
    };
    keeps_its_values(&client, &all, "BE", more).await?;
    // Its CPUs are its own: a quota that a resize asks for does not come.
    let quota = LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 80_000,
        cpu_shares: 512,
        ..Default::default()
    };
    keeps_its_values(&client, &all, "LSR", quota).await?;

    after_restarts_all_is_right(&mut node, all).await?;
    // A runtime that asks by calls of their own says so of a plugin that does not have them, and tells
    // it of all in the older way.
    let log = fs::read_to_string(node.testbed().directory().join("runtime.log"))?;
    ensure!(!log.contains("deprecated=StateChange"), "{log}");
    Ok(())
}

/// How many pods are tried. Where the machine stands still for the two seconds that a runtime waits as
/// shipped, it goes on without its plugin, rightly.
const ATTEMPTS: usize = 3;

async fn a_pods_values_are_there_before_its_container_runs(
    version: ContainerdVersion,
) -> Result<()> {
    let options = ProxyOptions {
        as_shipped: true,
        ..options(Front::Nri)?
    };
    let node = Node::start(version, options)?;
    let wanted = ["1", "100000", "134217728"];
    let mut held = <[String; 3]>::default();
    for attempt in 0..ATTEMPTS {
        // One that was late is closed, and comes back.
        wait_until("the runtime asks us", || node.proxy.serves());
        held = held_before_it_runs(&node, &format!("batch-{attempt}")).await?;
        if held == wanted {
            break;
        }
    }
    assert_eq!(held, wanted);
    Ok(())
}

/// What the group of a best-effort pod of that name holds once its container is created.
async fn held_before_it_runs(node: &Node, name: &str) -> Result<[String; 3]> {
    let client = node.client().await?;
    let batch = classes::be(name);
    let cgroup = node.cgroups.pod(batch.pod.uid(), batch.qos)?;
    let spec = batch.pod.clone().cgroup(&cgroup);
    let sandbox = client.run_pod(&spec).await?;
    client
        .create_container(&sandbox, &batch.container, &spec)
        .await?;
    let files = [
        ("cpu", "cpu.idle"),
        ("cpu", "cpu.cfs_quota_us"),
        ("memory", "memory.limit_in_bytes"),
    ];
    Ok(files.map(|(controller, file)| {
        let held = cgroup.read(controller, None, file);
        held.unwrap_or_else(|error| error.to_string())
    }))
}

/// A container that came while the plugin was away is brought to its values by the answer to Synchronize,
/// so that the runtime itself knows them: its own next update starts from them.
async fn what_the_answer_to_synchronize_says_is_known_to_the_runtime(
    version: ContainerdVersion,
) -> Result<()> {
    let mut node = Node::start(version, options(Front::Nri)?)?;
    node.proxy.kill9()?;
    let client = node.client().await?;
    let batch = classes::be("batch");
    let running = node.run(&client, &batch).await?;
    let known = async || -> Result<(i64, i64)> {
        let status = client.container_status(&running.container).await?;
        let resources = status.status.and_then(|it| it.resources);
        let linux = resources.and_then(|it| it.linux).context("resources")?;
        Ok((linux.cpu_shares, linux.cpu_quota))
    };
    assert_eq!(known().await?, (2, 0));

    node.launch_proxy()?;
    wait_until("the values of what was missed", || {
        batch.wrong(&running).is_empty()
    });
    // It keeps them once the kernel has taken them.
    wait_until_async("the runtime knows them", async || {
        known().await.is_ok_and(|it| it == (512, 100_000))
    })
    .await;
    Ok(())
}

#[tokio::test]
async fn what_the_answer_to_synchronize_says_is_known_to_containerd_1_7() -> Result<()> {
    what_the_answer_to_synchronize_says_is_known_to_the_runtime(ContainerdVersion::V1_7).await
}

#[tokio::test]
async fn what_the_answer_to_synchronize_says_is_known_to_containerd_2() -> Result<()> {
    what_the_answer_to_synchronize_says_is_known_to_the_runtime(ContainerdVersion::V2).await
}

#[tokio::test]
async fn a_pods_values_are_there_before_its_container_runs_on_containerd_1_7() -> Result<()> {
    a_pods_values_are_there_before_its_container_runs(ContainerdVersion::V1_7).await
}

#[tokio::test]
async fn a_pods_values_are_there_before_its_container_runs_on_containerd_2() -> Result<()> {
    a_pods_values_are_there_before_its_container_runs(ContainerdVersion::V2).await
}

/// Settings of the container that was changed at its creation and never since.
fn of_later(all: &BTreeMap<String, String>) -> Vec<(&String, &String)> {
    let later = |(what, _): &(&String, &String)| what.starts_with("\"later\" \"main\"");
    all.iter().filter(later).collect()
}

#[tokio::test]
async fn the_values_are_those_of_the_cri_front_on_containerd_1_7() -> Result<()> {
    the_values_are_those_of_the_cri_front(ContainerdVersion::V1_7).await
}

#[tokio::test]
async fn the_values_are_those_of_the_cri_front_on_cri_o() -> Result<()> {
    the_values_are_those_of_the_cri_front(RuntimeKind::Crio).await
}

#[tokio::test]
async fn the_values_are_those_of_the_cri_front_on_containerd_2() -> Result<()> {
    the_values_are_those_of_the_cri_front(ContainerdVersion::V2).await
}

/// What a kubelet asks for a container that may swap as much as it has of memory.
fn swapping(mib: i64) -> LinuxContainerResources {
    LinuxContainerResources {
        cpu_shares: 256,
        memory_limit_in_bytes: mib << 20,
        memory_swap_limit_in_bytes: 2 * (mib << 20),
        ..Default::default()
    }
}

async fn the_swap_that_an_update_asks_for_is_given(
    kind: impl Into<RuntimeKind> + Copy,
) -> Result<()> {
    let node = Node::start(kind, options(Front::Nri)?)?;
    let client = node.client().await?;
    let mut pod = classes::ls("swaps", &classes::share_pool()?);
    pod.container = pod.container.resources(swapping(64));
    let running = node.run(&client, &pod).await?;
    let limits = || {
        ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"].map(|file| {
            let held = running
                .cgroup
                .read("memory", Some(&running.container), file);
            held.unwrap_or_else(|error| error.to_string())
        })
    };
    assert_eq!(limits(), ["67108864", "134217728"]);
    // The hook has CPUs for it, which an answer would say.
    let update = LinuxContainerResources {
        cpuset_cpus: "0".to_owned(),
        ..swapping(96)
    };
    client.update_resources(&running.container, update).await?;
    wait_until("the hook's CPUs stay", || pod.wrong(&running).is_empty());
    assert_eq!(limits(), ["100663296", "201326592"]);
    Ok(())
}

#[tokio::test]
async fn the_swap_that_an_update_asks_for_is_given_on_containerd_1_7() -> Result<()> {
    the_swap_that_an_update_asks_for_is_given(ContainerdVersion::V1_7).await
}

#[tokio::test]
async fn the_swap_that_an_update_asks_for_is_given_on_containerd_2() -> Result<()> {
    the_swap_that_an_update_asks_for_is_given(ContainerdVersion::V2).await
}

/// The hooks that have something to do on mainline kernels with cgroup v1, where nobody may have a
/// score below that of containerd.
const HOOKS: [&str; 12] = [
    "BatchResource",
    "MidResource",
    "CPUNormalization",
    "CPUSetAllocator",
    "CPUBurst",
    "GroupIdentity",
    "OOMScoreAdj",
    "BlkIOReconcile",
    "GPUEnvInject",
    "HamiCoreVGPUMonitor",
    "RDMADeviceInject",
    "TerwayQoS",
];

/// On a machine of two CPUs: it shares the policy's, and has its own back.
const OF_HOST_APPLICATION: [Expected; 4] = [
    host_application("as created", &[&[(ITS_CPUS, "1")]]),
    host_application("under another policy", &[&[(ITS_CPUS, "0")]]),
    host_application("without a policy", &[&[(ITS_CPUS, "0-1")]]),
    host_application("with all hooks on again", &[&[(ITS_CPUS, "1")]]),
];

const ITS_CPUS: &str = "host application cpuset.effective_cpus";

const fn host_application(state: &'static str, values: &'static [Values]) -> Expected {
    Expected { state, values }
}

#[tokio::test]
async fn every_hook_decides_alike_on_cgroup_v1_by_cri_and_by_nri() -> Result<()> {
    let _lock = HamiLock::make()?;
    let rdma = RdmaMachine::make()?;
    let directory = tempfile::tempdir()?;
    let machine = Machine {
        kernel: "cgroup v1",
        hooks: &HOOKS,
        share_pool: &classes::share_pool()?,
        scores: ["800", "700"],
        expected: &OF_HOST_APPLICATION,
        otherwise: &[],
        rests_by: Front::Cri,
        // `what_is_written_from_outside_is_written_back` does here.
        meddled: &[],
        directory: directory.path(),
        rdma: &rdma,
    };
    let by_cri = {
        let mut node = Node::start(ContainerdVersion::V2, machine.options(Front::Cri)?)?;
        machine.see(&mut node).await?
    };
    let mut node = Node::start(ContainerdVersion::V2, machine.options(Front::Nri)?)?;
    let by_nri = machine.see(&mut node).await?;
    machine.compare(&by_cri, &by_nri)
}

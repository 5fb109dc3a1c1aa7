//! An idle pod of cgroup v2 while a kubelet resizes it: the kernel takes no weight for an idle group.

use crate::{check, node};
use anyhow::{Result, ensure};
use koord_integration::{
    Front, Node, ProxyOptions, RunningPod,
    classes::{self, PodSpecOf},
};
use koord_testkit::{
    cri::{
        CallError, CriClient, PodSpec,
        message::{Empty, LinuxContainerResources, UpdatePodSandboxResourcesRequest},
    },
    poll::{bound, wait_until},
};
use std::time::{Duration, Instant};

/// gRPC's `UNIMPLEMENTED`, which runtimes without the call say.
const UNIMPLEMENTED: i32 = 12;

/// How long a kubelet has for its write: as `AWAKE` of the hub.
const AWAKE: Duration = Duration::from_secs(10);

pub(super) fn check_all() {
    check("an_idle_pod_is_woken_for_a_resize_by_cri", is_resized);
}

async fn is_resized() -> Result<()> {
    let gates = ["--feature-gates", classes::FEATURE_GATES];
    let node = node(ProxyOptions {
        policy: Some(classes::node_policy("1")),
        args: gates.map(str::to_owned).into(),
        front: Front::Cri,
        ..ProxyOptions::default()
    });
    let client = node.client().await?;
    // Its tier is burstable: pods of BestEffort cannot be resized.
    let odd = PodSpecOf {
        pod: PodSpec::new("odd").label("koordinator.sh/qosClass", "BE"),
        ..classes::ls("odd", "1")
    };
    let pod = node.run(&client, &odd).await?;
    let held = |file| pod.cgroup.read("cpu", None, file).unwrap_or_default();
    wait_idle(&node, &pod);
    let early = pod.cgroup.write("cpu", None, "cpu.weight", "20");
    ensure!(
        early.is_err(),
        "the kernel takes a weight for an idle group"
    );

    let (begin, mut cpu_shares) = (Instant::now(), 512);
    while !lets_kubelets_write(&node, &client, &pod, cpu_shares).await? {
        ensure!(begin.elapsed() < bound(), "no write was within {AWAKE:?}");
        // To ask for the same again is no resize.
        cpu_shares += 1;
    }

    node.proxy.switch("GroupIdentity=off")?;
    wait_until("it is idle no more and has its last weight", || {
        held("cpu.idle") == "0" && held("cpu.weight") == "39"
    });
    Ok(())
}

/// Writes as kubelets do. Whether it was in time: on a slow machine the pod may be idle again, rightly, and
/// then nothing follows from what is there.
async fn lets_kubelets_write(
    node: &Node,
    client: &CriClient,
    pod: &RunningPod,
    cpu_shares: i64,
) -> Result<bool> {
    let held = |file| pod.cgroup.read("cpu", None, file).unwrap_or_default();
    // What one does that tells of its own write only afterwards.
    let begin = Instant::now();
    let update = shares(cpu_shares);
    client.update_resources(&pod.container, update).await?;
    let idle = held("cpu.idle");
    let written = pod.cgroup.write("cpu", None, "cpu.weight", "20");
    let in_time = begin.elapsed() < AWAKE;
    if in_time {
        ensure!(idle == "0", "a container's update wakes it");
        written?;
    }
    wait_idle(node, pod);
    if !in_time {
        return Ok(false);
    }

    // What one does that tells of it before.
    let begin = Instant::now();
    tell(client, &pod.sandbox, 1_024).await?;
    let (idle, remembered) = (held("cpu.idle"), held("cpu.weight"));
    let written = pod.cgroup.write("cpu", None, "cpu.weight", "39");
    let in_time = begin.elapsed() < AWAKE;
    if in_time {
        ensure!(idle == "0", "what is told of it wakes it");
        ensure!(remembered == "20", "{remembered} after the first resize");
        written?;
    }
    wait_idle(node, pod);
    Ok(in_time)
}

/// Waits until the pod is idle and the ledger, which is told after the kernel, knows of it.
fn wait_idle(node: &Node, pod: &RunningPod) {
    wait_until("the pod is idle", || {
        let idle = pod.cgroup.read("cpu", None, "cpu.idle");
        let settings = node.settings().unwrap_or_default();
        let known = settings.get(r#""odd" null "cpu.idle""#);
        let applied = known.and_then(|it| it["applied"].as_str());
        idle.is_ok_and(|idle| idle == "1") && matches!(applied, Some("equal" | "written"))
    });
}

/// What a kubelet says before it writes to the pod's directory; not every runtime knows it.
async fn tell(client: &CriClient, sandbox: &str, cpu_shares: i64) -> Result<(), CallError> {
    let request = UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: sandbox.to_owned(),
        overhead: None,
        resources: Some(shares(cpu_shares)),
    };
    let answer = client.runtime("UpdatePodSandboxResources", &request).await;
    match answer {
        Ok(Empty {}) => Ok(()),
        Err(error) if error.code() == Some(UNIMPLEMENTED) => Ok(()),
        Err(error) => Err(error),
    }
}

fn shares(cpu_shares: i64) -> LinuxContainerResources {
    LinuxContainerResources {
        cpu_period: 100_000,
        cpu_shares,
        ..Default::default()
    }
}

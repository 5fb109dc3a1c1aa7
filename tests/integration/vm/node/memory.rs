//! Memory QoS, as far as a mainline kernel has it: what is kept for pods and their tiers, where
//! containers are slowed down, and who is killed together.

use crate::{check, node};
use anyhow::{Result, ensure};
use koord_integration::{
    Front, Node, ProxyOptions, RunningPod,
    classes::{NO_POLICY, PodSpecOf},
};
use koord_testkit::{
    PodQos,
    cri::{ContainerSpec, CriClient, PodSpec, message::LinuxContainerResources},
    poll::{comes_true, wait_until},
};
use std::fs;

const MIB: i64 = 1 << 20;

/// Requests 100 MiB and may have 300.
const BATCH: &str = r#"{"containers":{"main":{
    "requests":{"kubernetes.io/batch-memory":"100Mi"},
    "limits":{"kubernetes.io/batch-memory":"300Mi"}}}}"#;

/// A part of what pods request is kept, and best-effort containers are slowed down half way.
fn policy(percent: u32) -> String {
    format!(
        "apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {{name: node-1}}
spec:
  resourceQOSStrategy:
    lsrClass: {{memoryQOS: {{enable: true, minLimitPercent: {percent}}}}}
    beClass:
      memoryQOS:
        {{enable: true, lowLimitPercent: {percent}, throttlingPercent: 50, oomKillGroup: 0}}
"
    )
}

/// `min`, `low`, `high` and `oom.group` of the root of all pods, the best-effort tier, the
/// guaranteed pod and its container, the best-effort pod and its container.
type Held = [[String; 4]; 6];

/// What the kernel has where nobody says anything, and a kubelet has all of a container killed
/// together.
const UNTOUCHED: [[&str; 4]; 6] = [
    ["0", "0", "max", "0"],
    ["0", "0", "max", "0"],
    ["0", "0", "max", "0"],
    ["0", "0", "max", "1"],
    ["0", "0", "max", "0"],
    ["0", "0", "max", "1"],
];

const HALF: [[&str; 4]; 6] = [
    ["33554432", "52428800", "max", "0"],
    ["0", "52428800", "max", "0"],
    ["33554432", "0", "max", "0"],
    ["33554432", "0", "max", "1"],
    ["0", "52428800", "max", "0"],
    ["0", "52428800", "209715200", "0"],
];

const WHOLE: [[&str; 4]; 6] = [
    ["67108864", "104857600", "max", "0"],
    ["0", "104857600", "max", "0"],
    ["67108864", "0", "max", "0"],
    ["67108864", "0", "max", "1"],
    ["0", "104857600", "max", "0"],
    ["0", "104857600", "209715200", "0"],
];

pub(super) fn check_all() {
    check("memory_follows_the_policy_by_cri", || follows(Front::Cri));
    check("memory_follows_the_policy_by_nri", || follows(Front::Nri));
}

async fn follows(front: Front) -> Result<()> {
    let options = ProxyOptions {
        policy: Some(policy(50)),
        args: vec!["--feature-gates=CgroupReconcile=true".to_owned()],
        front,
        ..ProxyOptions::default()
    };
    let mut node = node(options);
    let client = node.client().await?;
    let quiet = PodQos::Guaranteed {
        milli_cpu: 500,
        memory_bytes: 64 << 20,
    };
    let guaranteed = run(&node, &client, ("guaranteed", "LSR", quiet)).await?;
    let batch = run(&node, &client, ("batch", "BE", PodQos::BestEffort)).await?;
    let wait = |when: &str, expected: [[&str; 4]; 6]| {
        let came = comes_true(|| held(&guaranteed, &batch).is_ok_and(|held| held == expected));
        let held = held(&guaranteed, &batch)?;
        ensure!(came, "{when}: {held:?}, not {expected:?}");
        Ok(())
    };
    wait("what was there at the start", HALF)?;
    node.proxy.write_policy(&policy(100))?;
    wait("what a new policy says", WHOLE)?;

    // The runtime writes its stored spec, in which the kubelet's word is.
    let update = LinuxContainerResources {
        cpu_shares: 300,
        ..Default::default()
    };
    client.update_resources(&batch.container, update).await?;
    wait("the same after an update", WHOLE)?;

    for (state, expected) in [("off", UNTOUCHED), ("on", WHOLE)] {
        node.proxy.switch(&format!("MemoryQOS={state}"))?;
        wait(state, expected)?;
    }

    node.proxy.kill9()?;
    ensure!(held(&guaranteed, &batch)? == WHOLE, "values outlive us");
    node.launch_proxy()?;
    node.proxy.write_policy(&policy(50))?;
    wait("another policy after a restart", HALF)?;
    node.proxy.write_policy(NO_POLICY)?;
    wait("what was there before us", UNTOUCHED)?;

    node.proxy.write_policy(&policy(100))?;
    wait("both again", WHOLE)?;
    let client = node.client().await?;
    guaranteed.remove(&client).await?;
    let root = batch.cgroup.directory("memory").join("../..");
    wait_until("nothing is kept for a pod that has gone", || {
        fs::read_to_string(root.join("memory.min")).is_ok_and(|text| text == "0\n")
    });
    Ok(())
}

/// A pod that has 64 MiB if it is guaranteed, and whose container a kubelet has killed as one.
async fn run(
    node: &Node,
    client: &CriClient,
    (name, class, qos): (&str, &str, PodQos),
) -> Result<RunningPod> {
    let limit = match qos {
        PodQos::Guaranteed { .. } => 64 * MIB,
        _ => 0,
    };
    let spec = PodSpecOf {
        name: name.to_owned(),
        class: "-",
        qos,
        pod: PodSpec::new(name)
            .label("koordinator.sh/qosClass", class)
            .annotation("node.koordinator.sh/extended-resource-spec", BATCH),
        container: ContainerSpec::new("main").resources(LinuxContainerResources {
            cpu_shares: 512,
            memory_limit_in_bytes: limit,
            unified: [("memory.oom.group".to_owned(), "1".to_owned())].into(),
            ..Default::default()
        }),
        expected: Vec::new(),
    };
    node.run(client, &spec).await
}

fn held(guaranteed: &RunningPod, batch: &RunningPod) -> Result<Held> {
    let tier = batch.cgroup.directory("memory").join("..");
    let container = |pod: &RunningPod| pod.cgroup.directory("memory").join(&pod.container);
    let directories = [
        tier.join(".."),
        tier,
        guaranteed.cgroup.directory("memory"),
        container(guaranteed),
        batch.cgroup.directory("memory"),
        container(batch),
    ];
    let mut all = Held::default();
    for (held, directory) in all.iter_mut().zip(directories) {
        let files = [
            "memory.min",
            "memory.low",
            "memory.high",
            "memory.oom.group",
        ];
        for (text, file) in held.iter_mut().zip(files) {
            *text = fs::read_to_string(directory.join(file))?.trim().to_owned();
        }
    }
    Ok(all)
}

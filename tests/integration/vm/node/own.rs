//! What a burstable pod says for itself, over the policy of the node, on cgroup v2: its memory, of which
//! only a source of pods tells how much it requests, and what its container may save up.

use crate::{check, node};
use anyhow::{Result, ensure};
use koord_integration::{Front, ProxyOptions, RunningPod, classes::PodSpecOf};
use koord_testkit::{
    PodQos,
    cri::{ContainerSpec, PodSpec, message::LinuxContainerResources},
    poll::comes_true,
};
use serde_json::{Value, json};
use std::{fs, path::Path};

pub(super) fn check_all() {
    check("pods_say_for_themselves_by_cri", || say(Front::Cri));
    check("pods_say_for_themselves_by_nri", || say(Front::Nri));
}

/// Half of what LS pods request is kept, they are slowed down half way to their limit, and save up nothing.
const POLICY: &str = "apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {name: node-1}
spec:
  cpuBurstStrategy: {policy: none}
  resourceQOSStrategy:
    lsClass: {memoryQOS: {enable: true, minLimitPercent: 50, throttlingPercent: 50}}
";

const MIB: i64 = 1 << 20;

/// `memory.min`, `memory.high` and `cpu.max.burst` of the tier, of the pod and of its container. Of 300 MiB
/// the pod requests 100, and of each 100 ms it may have 50.
type Held = [[&'static str; 3]; 3];

const BY_POLICY: Held = [
    ["52428800", "max", "0"],
    ["52428800", "max", "0"],
    ["52428800", "209715200", "0"],
];

/// All that it requests, nothing that slows it down, and half of the quota.
const MORE: (&str, &str) = (
    r#"{"policy":"auto","minLimitPercent":100}"#,
    r#"{"policy":"cpuBurstOnly","cpuBurstPercent":50}"#,
);

const BY_MORE: Held = [
    ["104857600", "max", "0"],
    ["104857600", "max", "25000"],
    ["104857600", "max", "25000"],
];

/// One field of the class's.
const FIELD: (&str, &str) = (r#"{"throttlingPercent":25}"#, r#"{"policy":"auto"}"#);

const BY_FIELD: Held = [
    ["52428800", "max", "0"],
    ["52428800", "max", "50000"],
    ["52428800", "157286400", "50000"],
];

const NONE: (&str, &str) = (r#"{"policy":"none"}"#, r#"{"policy":"none"}"#);

/// Neither is JSON.
const BROKEN: (&str, &str) = ("minLimitPercent: 100", "auto");

const UNTOUCHED: Held = [["0", "max", "0"]; 3];

const SOURCE: &str = "/tmp/own-pods.json";

async fn say(front: Front) -> Result<()> {
    let web = web();
    tell(&web, None)?;
    let mut node = node(ProxyOptions {
        policy: Some(POLICY.to_owned()),
        args: vec![
            "--feature-gates=CgroupReconcile=true".to_owned(),
            format!("--pods={SOURCE}"),
        ],
        front,
        ..ProxyOptions::default()
    });
    let client = node.client().await?;
    let running = node.run(&client, &web).await?;
    wait("as created", &running, BY_POLICY)?;
    for (what, said, expected) in [
        ("more", Some(MORE), BY_MORE),
        ("one field", Some(FIELD), BY_FIELD),
        ("nothing wanted", Some(NONE), UNTOUCHED),
        ("more again", Some(MORE), BY_MORE),
        ("not JSON", Some(BROKEN), UNTOUCHED),
        ("nothing said", None, BY_POLICY),
        ("more at last", Some(MORE), BY_MORE),
    ] {
        tell(&web, said)?;
        wait(what, &running, expected)?;
    }
    node.proxy.kill9()?;
    tell(&web, Some(FIELD))?;
    node.launch_proxy()?;
    wait("what was said meanwhile", &running, BY_FIELD)?;
    for hook in ["MemoryQOS=off", "CPUBurst=off"] {
        node.proxy.switch(hook)?;
    }
    wait("without the hooks", &running, UNTOUCHED)
}

fn web() -> PodSpecOf {
    PodSpecOf {
        name: "web".to_owned(),
        class: "-",
        qos: PodQos::Burstable { milli_cpu: 250 },
        pod: PodSpec::new("web").label("koordinator.sh/qosClass", "LS"),
        container: ContainerSpec::new("main").resources(LinuxContainerResources {
            cpu_shares: 256,
            cpu_period: 100_000,
            cpu_quota: 50_000,
            memory_limit_in_bytes: 300 * MIB,
            ..Default::default()
        }),
        expected: Vec::new(),
    }
}

/// Has the source of pods say so: `memoryQOS` and `cpuBurst`.
fn tell(pod: &PodSpecOf, said: Option<(&str, &str)>) -> Result<()> {
    let annotations = said.map_or(Value::Null, |(memory, burst)| {
        json!({"koordinator.sh/memoryQOS": memory, "koordinator.sh/cpuBurst": burst})
    });
    let told = json!({"apiVersion": "v1", "kind": "Pod", "metadata": {
        "name": pod.name,
        "namespace": "default",
        "uid": pod.pod.uid(),
        "labels": pod.pod.config().labels,
        "annotations": annotations,
    }, "spec": {"containers": [{"name": "main", "resources": {
        "requests": {"cpu": "250m", "memory": "100Mi"},
        "limits": {"cpu": "500m", "memory": "300Mi"},
    }}]}});
    let fresh = Path::new(SOURCE).with_extension("new");
    fs::write(&fresh, told.to_string())?;
    Ok(fs::rename(fresh, SOURCE)?)
}

fn wait(when: &str, pod: &RunningPod, expected: Held) -> Result<()> {
    let came = comes_true(|| held(pod).is_ok_and(|held| held == expected));
    let held = held(pod)?;
    ensure!(came, "{when}: {held:?}, not {expected:?}");
    Ok(())
}

fn held(pod: &RunningPod) -> Result<[[String; 3]; 3]> {
    let own = pod.cgroup.directory("memory");
    let directories = [own.join(".."), own.clone(), own.join(&pod.container)];
    let mut all = <[[String; 3]; 3]>::default();
    for (held, directory) in all.iter_mut().zip(directories) {
        let files = ["memory.min", "memory.high", "cpu.max.burst"];
        for (text, file) in held.iter_mut().zip(files) {
            *text = fs::read_to_string(directory.join(file))?.trim().to_owned();
        }
    }
    Ok(all)
}

//! The pods of the demo, one of each class, on cgroup v2: created, under another policy, without the
//! hooks, over a restart, and updated one field after the other.

use crate::{SmallNode, check, node};
use anyhow::{Result, ensure};
use koord_integration::{
    Front, Node, ProxyOptions, RunningPod,
    classes::{
        self,
        Scope::{self, Container, Pod},
    },
    update::{cpus, memory_limit, period, quota, shares},
};
use koord_testkit::{
    cri::{CriClient, message::LinuxContainerResources},
    poll::comes_true,
};

pub(super) fn check_all() {
    check("classes_have_their_values_by_cri", || have(Front::Cri));
    check("classes_have_their_values_by_nri", || have(Front::Nri));
    check("classes_have_their_values_by_watch", || have(Front::Watch));
    check("an_update_changes_only_what_it_names", update_each_field);
}

/// The hooks that have something to do. There are CPUs 0 and 1.
const HOOKS: [&str; 3] = ["BatchResource", "CPUSetAllocator", "GroupIdentity"];

/// What was asked for or was there before, in the order of the pods.
const ASKED: [(usize, Scope, &str, &str); 11] = [
    (0, Pod, "cpu.max", "50000 100000"),
    (0, Container, "cpuset.cpus.effective", "0-1"),
    (0, Container, "cpu.max", "50000 100000"),
    (1, Container, "cpuset.cpus.effective", "0-1"),
    (2, Pod, "cpu.idle", "0"),
    (2, Pod, "cpu.max", "max 100000"),
    (2, Pod, "memory.max", "max"),
    (2, Container, "cpu.weight", "1"),
    (2, Container, "cpu.max", "max 100000"),
    (2, Container, "memory.max", "max"),
    (3, Container, "cpuset.cpus.effective", "0-1"),
];

/// What an update may be about, in the directories of the pod and of the container.
const FILES: [&str; 11] = [
    "cpu.idle",
    "cpu.max",
    "cpu.max.burst",
    "cpu.weight",
    "cpuset.cpus",
    "cpuset.mems",
    "memory.high",
    "memory.low",
    "memory.max",
    "memory.min",
    "memory.swap.max",
];

/// An update of one field, and the files of the container that are different afterwards, with what they hold
/// then.
type Field = (
    LinuxContainerResources,
    &'static [(&'static str, &'static str)],
);

async fn have(front: Front) -> Result<()> {
    let (mut node, _, pods) = run_all(front).await?;
    node.proxy.write_policy(&classes::node_policy("0"))?;
    wait("by another policy", || wrong(&pods, "0"))?;
    switch(&node, "off")?;
    wait("without the hooks", || left(&pods))?;
    switch(&node, "on")?;
    wait("with the hooks again", || wrong(&pods, "0"))?;
    node.proxy.kill9()?;
    ensure!(wrong(&pods, "0").is_empty(), "values outlive us");
    node.launch_proxy()?;
    node.proxy.write_policy(&classes::node_policy("1"))?;
    wait("by the first policy after a restart", || wrong(&pods, "1"))
}

/// The pods, which have what is decided.
async fn run_all(front: Front) -> Result<(SmallNode, CriClient, Vec<RunningPod>)> {
    let gates = ["--feature-gates", classes::FEATURE_GATES];
    let node = node(ProxyOptions {
        policy: Some(classes::node_policy("1")),
        args: gates.map(str::to_owned).into(),
        front,
        ..ProxyOptions::default()
    });
    let client = node.client().await?;
    let mut pods = Vec::new();
    for pod in classes::all("1") {
        pods.push(node.run(&client, &pod).await?);
    }
    wait("once they run", || wrong(&pods, "1"))?;
    Ok((node, client, pods))
}

/// Updates one field after the other. What hooks have decided stays: the CPUs of all, the quota that they have
/// lifted of LSR, and shares, quota and memory of BE.
async fn update_each_field() -> Result<()> {
    let (_node, client, pods) = run_all(Front::Cri).await?;
    let fields = [of_lsr(), of_ls(), of_be(), of_plain()];
    let mut wrong = Vec::new();
    for (pod, fields) in pods.iter().zip(fields) {
        for (update, expected) in fields {
            let before = held(pod)?;
            client
                .update_resources(&pod.container, update.clone())
                .await?;
            let after = held(pod)?;
            let changed = before.iter().zip(&after).filter(|(was, is)| was != is);
            let changed: Vec<_> = changed.map(|(_, (file, it))| (&**file, &**it)).collect();
            if changed != *expected {
                wrong.push(format!("{update:?}: {changed:?}, not {expected:?}"));
            }
        }
    }
    ensure!(wrong.is_empty(), "{wrong:#?}");
    Ok(())
}

/// containerd lets a container whose memory is told have no swap beside it. LSR was made so, as BE was.
const OF_64_MIB: &[(&str, &str)] = &[("memory.max", "67108864"), ("memory.swap.max", "0")];

fn of_lsr() -> Vec<Field> {
    vec![
        (shares(1_024), &[("cpu.weight", "39")]),
        (quota(40_000), &[]),
        (period(50_000), &[("cpu.max", "max 50000")]),
        (memory_limit(64 << 20), &[("memory.max", "67108864")]),
        (cpus("1"), &[]),
        (LinuxContainerResources::default(), &[]),
    ]
}

fn of_ls() -> Vec<Field> {
    vec![
        (shares(700), &[("cpu.weight", "27")]),
        (quota(60_000), &[("cpu.max", "60000 100000")]),
        (period(80_000), &[("cpu.max", "60000 80000")]),
        (quota(-1), &[("cpu.max", "max 80000")]),
        (memory_limit(64 << 20), OF_64_MIB),
        (cpus("0"), &[]),
        (LinuxContainerResources::default(), &[]),
    ]
}

fn of_be() -> Vec<Field> {
    vec![
        (shares(9), &[]),
        (quota(40_000), &[]),
        (period(50_000), &[("cpu.max", "50000 50000")]),
        (memory_limit(64 << 20), &[]),
        (LinuxContainerResources::default(), &[]),
    ]
}

fn of_plain() -> Vec<Field> {
    vec![
        (shares(300), &[("cpu.weight", "12")]),
        (quota(40_000), &[("cpu.max", "40000 100000")]),
        (period(50_000), &[("cpu.max", "40000 50000")]),
        (memory_limit(64 << 20), OF_64_MIB),
        (cpus("0"), &[]),
        (LinuxContainerResources::default(), &[]),
    ]
}

/// What the files hold, the pod's before the container's.
fn held(pod: &RunningPod) -> Result<Vec<(String, String)>> {
    let mut held = Vec::new();
    for (of, container) in [("pod ", None), ("", Some(&*pod.container))] {
        for file in FILES {
            let text = pod.cgroup.read("cpu", container, file)?;
            held.push((format!("{of}{file}"), text));
        }
    }
    Ok(held)
}

fn wait(when: &str, wrong: impl Fn() -> Vec<String>) -> Result<()> {
    let came = comes_true(|| wrong().is_empty());
    ensure!(came, "{when}: {:#?}", wrong());
    Ok(())
}

fn switch(node: &Node, state: &str) -> Result<()> {
    for hook in HOOKS {
        node.proxy.switch(&format!("{hook}={state}"))?;
    }
    Ok(())
}

/// What is not as it should be where these CPUs are shared.
fn wrong(pods: &[RunningPod], share_pool: &str) -> Vec<String> {
    let all = classes::all(share_pool);
    let pairs = all.iter().zip(pods);
    pairs
        .flat_map(|(pod, running)| pod.wrong(running))
        .collect()
}

/// What is not as it was asked for.
fn left(pods: &[RunningPod]) -> Vec<String> {
    let held = |(pod, scope, file, asked): (usize, Scope, &str, &str)| {
        let RunningPod {
            container, cgroup, ..
        } = &pods[pod];
        let container = (scope == Container).then_some(&**container);
        // A group of cgroup v2 has one directory.
        let held = cgroup.read("cpu", container, file);
        let is_asked = held.as_ref().is_ok_and(|held| held == asked);
        (!is_asked).then(|| format!("{file} of {pod}: {held:?}, not {asked:?}"))
    };
    ASKED.into_iter().filter_map(held).collect()
}

//! The pods of the demo, one of each class, on cgroup v2: created, under another policy, without the
//! hooks, and over a restart.

use crate::{check, node};
use anyhow::{Result, ensure};
use koord_integration::{
    Front, Node, ProxyOptions, RunningPod,
    classes::{
        self,
        Scope::{self, Container, Pod},
    },
};
use koord_testkit::poll::comes_true;

pub(super) fn check_all() {
    check("classes_have_their_values_by_cri", || have(Front::Cri));
    check("classes_have_their_values_by_nri", || have(Front::Nri));
    check("classes_have_their_values_by_watch", || have(Front::Watch));
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

async fn have(front: Front) -> Result<()> {
    let gates = ["--feature-gates", classes::FEATURE_GATES];
    let mut node = node(ProxyOptions {
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

fn wait(when: &str, wrong: impl Fn() -> Vec<String>) -> Result<()> {
    let came = comes_true(|| wrong().is_empty());
    ensure!(came, "{when}: {:#?}", wrong());
    Ok(())
}

fn switch(node: &Node, state: &str) -> Result<()> {
    for hook in HOOKS {
        let (code, text) = (node.proxy).admin("PUT", "/hooks", &format!("{hook}={state}"))?;
        ensure!(code == 200, "{text}");
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

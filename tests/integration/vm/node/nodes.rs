//! Two sockets, each a NUMA node with a cache of its own: CPUs and memory of pods on one node, on the
//! other and on both, their parts of the two caches, and cookies of groups that are on both sockets.

use crate::{
    caches::{ROOT, groups_of, names, schemata},
    check,
    cores::only_cookie,
    machine::cpu,
    node,
    pod::threads,
};
use anyhow::{Result, ensure};
use koord_integration::{Front, Node, ProxyOptions, RunningPod, classes::PodSpecOf};
use koord_kernel::core_sched::{Cookie, Kernel};
use koord_testkit::{
    PodQos,
    cri::{ContainerSpec, PodSpec, message::LinuxContainerResources},
    poll::comes_true,
};
use rustix::mount::{UnmountFlags, unmount};
use std::fs;

pub(super) fn check_all() {
    check("the_machine_has_two_nodes", the_machine);
    check("pods_are_placed_on_nodes_by_cri", || placed(Front::Cri));
    check("pods_are_placed_on_nodes_by_nri", || placed(Front::Nri));
}

/// What all else counts on.
async fn the_machine() -> Result<()> {
    for (number, expected) in [(0, ["0", "0-1", "0-1"]), (2, ["1", "2-3", "2-3"])] {
        let found = cpu(number)?;
        ensure!(found == expected, "CPU {number}: {found:?}");
    }
    for (node, cpus) in [(0, "0-1"), (1, "2-3")] {
        let found = fs::read_to_string(format!("/sys/devices/system/node/node{node}/cpulist"))?;
        ensure!(found.trim() == cpus, "node {node}: {found}");
    }
    Ok(())
}

/// The CPUs that pods share on either node, those that best-effort pods share, and what these have of
/// the caches.
fn policy(shared: [&str; 2], best_effort: [&str; 2], of_caches: &str) -> String {
    let pool =
        |node: u32, cpus: &str| format!(r#"{{"socket":{node},"node":{node},"cpuset":"{cpus}"}}"#);
    let pools = |[first, second]: [&str; 2]| format!("[{},{}]", pool(0, first), pool(1, second));
    let (shared, best_effort) = (pools(shared), pools(best_effort));
    format!(
        "apiVersion: topology.node.k8s.io/v1alpha1
kind: NodeResourceTopology
metadata:
  name: node-1
  annotations:
    node.koordinator.sh/cpu-shared-pools: '{shared}'
    node.koordinator.sh/be-cpu-shared-pools: '{best_effort}'
---
apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {{name: node-1}}
spec:
  resourceQOSStrategy:
    policies: {{cpuPolicy: coreSched}}
    lsrClass: {{cpuQOS: {{enable: true, coreExpeller: true}}}}
    lsClass:
      cpuQOS: {{enable: true, coreExpeller: true}}
      resctrlQOS: {{enable: true, catRangeStartPercent: 20, mbaPercent: 90}}
    beClass:
      cpuQOS: {{enable: true}}
      resctrlQOS: {{enable: true, {of_caches}}}
"
    )
}

fn first_policy() -> String {
    policy(["0-1", "3"], ["0", "3"], "mbaPercent: 20")
}

fn second_policy() -> String {
    let of_caches = "catRangeEndPercent: 50, mbaPercent: 35";
    policy(["1", "3"], ["1", "3"], of_caches)
}

/// What is there at one moment.
#[derive(Debug)]
struct State {
    /// Of each container its CPUs, its memory, its group of caches, and who has the same cookie: they are
    /// numbered as they are met.
    pods: [[&'static str; 4]; 4],
    /// Of each group of caches its part of both.
    shares: &'static [&'static str],
}

/// Memory is where the kubelet says: no hook decides about it. Of eleven ways a pod that asks for 10 to
/// 50 % has the third to the sixth, LS the fourth to the last, and BE the first four.
const FIRST: State = State {
    pods: [
        ["2", "1", "koordlet-uid-pinned", "0"],
        ["0-1", "0-1", "LS", "0"],
        ["0-1,3", "0-1", "LS", "1"],
        ["0", "0-1", "BE", "2"],
    ],
    shares: &[
        "BE L3:0=00f;1=00f MB:0=20;1=20",
        "LS L3:0=7f8;1=7f8 MB:0=90;1=90",
        "koordlet-uid-pinned L3:0=7ff;1=03c MB:0=20;1=100",
    ],
};

/// Smaller pools on the first node, and six ways and more bandwidth for BE.
const SECOND: State = State {
    pods: [
        ["2", "1", "koordlet-uid-pinned", "0"],
        ["1", "0-1", "LS", "0"],
        ["1,3", "0-1", "LS", "1"],
        ["1", "0-1", "BE", "2"],
    ],
    shares: &[
        "BE L3:0=03f;1=03f MB:0=40;1=40",
        "LS L3:0=7f8;1=7f8 MB:0=90;1=90",
        "koordlet-uid-pinned L3:0=7ff;1=03c MB:0=20;1=100",
    ],
};

/// What the kubelet asked for.
const OFF: State = State {
    pods: [
        ["0-3", "1", "", "none"],
        ["0-3", "0-1", "", "none"],
        ["0-3", "0-1", "", "none"],
        ["0-3", "0-1", "", "none"],
    ],
    shares: &[],
};

/// In the order of [`State`]: on a CPU of the second node with memory from there, as a kubelet's memory
/// manager says it; on the first node; anywhere; and a best-effort one on the first node. All but the
/// third name one group, and the last one's is another all the same: its class does not expel.
fn pods() -> [PodSpecOf; 4] {
    let guaranteed = PodQos::Guaranteed {
        milli_cpu: 1_000,
        memory_bytes: 64 << 20,
    };
    let burstable = PodQos::Burstable { milli_cpu: 500 };
    let mut pinned = spec(("pinned", "LSR", guaranteed), "a", r#"{"cpuset":"2"}"#);
    pinned.pod = pinned.pod.annotation(
        "node.koordinator.sh/resctrl",
        r#"{"llc":{"schemataPerCache":[{"cacheID":1,"range":[10,50]}]},
            "mb":{"schemataPerCache":[{"cacheID":0,"percent":20}]}}"#,
    );
    pinned.container = pinned.container.resources(LinuxContainerResources {
        cpu_shares: 1_024,
        cpuset_mems: "1".to_owned(),
        ..Default::default()
    });
    let on_first = r#"{"numaNodeResources":[{"node":0,"resources":{"cpu":"500m"}}]}"#;
    let batch =
        r#"{"numaNodeResources":[{"node":0,"resources":{"kubernetes.io/batch-cpu":"500"}}]}"#;
    [
        pinned,
        spec(("web", "LS", burstable), "a", on_first),
        spec(("wide", "LS", burstable), "b", "{}"),
        spec(("batch", "BE", PodQos::BestEffort), "a", batch),
    ]
}

fn spec((name, class, qos): (&str, &str, PodQos), group: &str, status: &str) -> PodSpecOf {
    PodSpecOf {
        name: name.to_owned(),
        class: "-",
        qos,
        pod: PodSpec::new(name)
            .label("koordinator.sh/qosClass", class)
            .label("koordinator.sh/core-sched-group-id", group)
            .annotation("scheduling.koordinator.sh/resource-status", status),
        container: ContainerSpec::new("main"),
        expected: Vec::new(),
    }
}

async fn placed(front: Front) -> Result<()> {
    let gates = "CoreSched=true,Resctrl=true,BECPUManager=true";
    let mut node = node(ProxyOptions {
        policy: Some(first_policy()),
        args: vec!["--feature-gates".to_owned(), gates.to_owned()],
        front,
        ..ProxyOptions::default()
    });
    let client = node.client().await?;
    let [pinned, web, wide, batch] = pods();
    let pods = [
        node.run(&client, &pinned).await?,
        node.run(&client, &web).await?,
        node.run(&client, &wide).await?,
        node.run(&client, &batch).await?,
    ];
    wait("once they run", &pods, &FIRST)?;
    // The runtime writes all of its stored spec.
    let update = LinuxContainerResources {
        cpu_shares: 512,
        ..Default::default()
    };
    client.update_resources(&pods[0].container, update).await?;
    wait("after an update", &pods, &FIRST)?;
    node.proxy.write_policy(&second_policy())?;
    wait("by another policy", &pods, &SECOND)?;
    switch(&node, "off")?;
    wait("without the hooks", &pods, &OFF)?;
    switch(&node, "on")?;
    wait("with the hooks again", &pods, &SECOND)?;

    node.proxy.kill9()?;
    let outlives = held(&pods)? == SECOND.pods && shares()? == SECOND.shares;
    ensure!(outlives, "values outlive us");
    node.launch_proxy()?;
    node.proxy.write_policy(&first_policy())?;
    wait("by the first policy after a restart", &pods, &FIRST)?;
    switch(&node, "off")?;
    wait("without the hooks after a restart", &pods, &OFF)?;
    node.proxy.kill9()?;
    Ok(unmount(ROOT, UnmountFlags::empty())?)
}

fn switch(node: &Node, state: &str) -> Result<()> {
    for hook in ["CPUSetAllocator", "CoreSched", "RdtResctrl", "Resctrl"] {
        node.proxy.switch(&format!("{hook}={state}"))?;
    }
    Ok(())
}

fn wait(when: &str, pods: &[RunningPod; 4], expected: &State) -> Result<()> {
    let came = comes_true(|| {
        held(pods).is_ok_and(|held| held == expected.pods)
            && shares().is_ok_and(|shares| shares == expected.shares)
    });
    let (held, shares) = (held(pods)?, shares()?);
    ensure!(came, "{when}: {held:#?}, {shares:#?}, not {expected:#?}");
    Ok(())
}

/// See [`State::pods`].
fn held(pods: &[RunningPod; 4]) -> Result<[[String; 4]; 4]> {
    let kernel = Kernel::open(false)?;
    let mut cookies: Vec<Cookie> = Vec::new();
    let mut all: [[String; 4]; 4] = Default::default();
    for (held, pod) in all.iter_mut().zip(pods) {
        let threads = threads(&pod.cgroup, &pod.container)?;
        let cookie = only_cookie(&kernel, &threads)?.map(|cookie| {
            let at = cookies.iter().position(|it| *it == cookie);
            at.unwrap_or_else(|| {
                cookies.push(cookie);
                cookies.len() - 1
            })
        });
        let read = |file| pod.cgroup.read("cpuset", Some(&pod.container), file);
        *held = [
            read("cpuset.cpus.effective")?,
            read("cpuset.mems.effective")?,
            Vec::from_iter(groups_of(&threads)?).join(" "),
            cookie.map_or("none".to_owned(), |at| at.to_string()),
        ];
    }
    Ok(all)
}

/// See [`State::shares`].
fn shares() -> Result<Vec<String>> {
    let groups = names()?.into_iter();
    groups
        .map(|group| Ok(format!("{group} {}", schemata(&group)?)))
        .collect()
}

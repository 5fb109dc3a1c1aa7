//! The proxy as the plugin of a runtime: how long it keeps an event, with a node full of containers.
//!
//! The runtime is the test kit's double. Real ones ask one thing at a time, whatever many pods want. Many
//! questions at once are more than any asks; they are held to the same limit, as a promise of their own.
//! The other events of a pod's life are told by turns alone, and an echo is told of them beside.

use crate::{
    echo::Echo,
    life::{self, EVENTS, Ends, Pace},
    load::{Sample, Stack},
    parts::{SETTLED, demo_options, instant_runtime},
    report::{NRI_CONTAINERS, Row},
};
use anyhow::{Context, Result, anyhow, ensure};
use koord_integration::{Front, Proxy, ProxyOptions, classes};
use koord_testkit::{
    PodCgroups, Testbed,
    nri::{
        Generation, NriRuntime, Plugin,
        message::{Container, LinuxContainer, LinuxPodSandbox, LinuxResources, PodSandbox},
    },
    poll::wait_patiently,
    process,
    scripted::instant,
};
use serde::Serialize;
use std::{
    collections::HashMap,
    thread,
    time::{Duration, Instant},
};

const CREATION: &str = "CreateContainer";
const PODS: usize = 1_000;
/// Pods that the runtime works on at once.
const AT_ONCE: [usize; 2] = [1, 16];
/// Creations of one round.
const CREATES: usize = 3_200;

/// What a runtime says that a container does: `ContainerState` of NRI.
pub(crate) const UNKNOWN: i32 = 0;
pub(crate) const CREATED: i32 = 1;
pub(crate) const RUNNING: i32 = 3;
pub(crate) const STOPPED: i32 = 4;

/// What was measured while so many pods were made at once.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Asked {
    pub(crate) event: &'static str,
    pub(crate) pods: usize,
    pub(crate) order: Order,
    pub(crate) row: Row,
    /// Of an echo that was told of the same, if one was.
    pub(crate) echo: Option<Row>,
}

/// When the runtime asks about the next pod.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize)]
pub(crate) enum Order {
    /// When it was answered about the one before.
    Turns,
    /// At once.
    Together,
    /// By turns, while control groups of others are made and cleared away all the time, as on no node.
    Churn,
}

#[derive(Clone, Debug, Serialize)]
pub(crate) struct Nri {
    pub(crate) asked: Vec<Asked>,
    /// Lives had control groups.
    pub(crate) has_groups: bool,
    /// Resident with all containers known, after all that.
    pub(crate) resident_bytes: u64,
    /// Resident with as many that the runtime lists by CRI too.
    pub(crate) listed_bytes: u64,
}

/// Says whether an event is to be measured with so many pods at once.
type Wants<'a> = &'a dyn Fn(&str, usize) -> bool;

pub(crate) fn wants_any(wants: Wants<'_>) -> bool {
    let mut all = [CREATION].into_iter().chain(EVENTS);
    all.any(|event| AT_ONCE.iter().any(|&pods| wants(event, pods)))
}

pub(crate) fn measure(rounds: usize, wants: Wants<'_>, has_groups: bool) -> Result<Nri> {
    let testbed = Testbed::new()?;
    let socket = testbed.directory().join("nri.sock");
    let runtime = NriRuntime::listen(&socket, Generation::V0_12)?;
    let options = ProxyOptions {
        front: Front::Nri,
        ..demo_options()?
    };
    // No socket of CRI: what the runtime tells as ours is all that there is.
    let nowhere = testbed.directory().join("runtime.sock");
    let mut proxy = Proxy::new(&testbed, &nowhere, options)?;
    proxy.spawn(&testbed)?;
    let pid = proxy.pid().context("the proxy runs")?;
    let mut plugin = runtime.take_plugin()?;
    let pods: Vec<_> = (0..PODS).map(pod).collect();
    let containers: Vec<_> = (0..NRI_CONTAINERS).map(container).collect();
    let updates = plugin.synchronize(&pods, &containers)?;
    ensure!(!updates.is_empty(), "no container was to be changed");
    let mut asked = asked_about_creations(rounds, wants, (&mut plugin, pid), &pods)?;
    let cgroups = has_groups.then(|| PodCgroups::new(&testbed)).transpose()?;
    let mut echo = Echo::start(&testbed)?;
    let mut ends = Ends {
        plugin: &mut plugin,
        echo: &mut echo.plugin,
    };
    asked.extend(asked_in_lives(rounds, wants, &mut ends, cgroups.as_ref())?);
    let resident_bytes = process::resident_bytes(pid).context("the proxy's memory")?;
    proxy.stop()?;
    Ok(Nri {
        asked,
        has_groups,
        resident_bytes,
        listed_bytes: listed()?,
    })
}

/// What a plugin weighs that lists the runtime too, as it does on a node.
fn listed() -> Result<u64> {
    let testbed = Testbed::new()?;
    let runtime = testbed.directory().join("runtime.sock");
    let (pods, containers) = (PODS.to_string(), NRI_CONTAINERS.to_string());
    let full = ["--pods", &*pods, "--containers", &*containers];
    let mut child = instant_runtime(Stack::Frames, &testbed, &runtime, &full)?;
    let socket = testbed.directory().join("nri.sock");
    let told = NriRuntime::listen(&socket, Generation::V0_12)?;
    let options = ProxyOptions {
        front: Front::Nri,
        ..demo_options()?
    };
    let mut proxy = Proxy::new(&testbed, &runtime, options)?;
    proxy.spawn(&testbed)?;
    let (pods, containers) = told_as_listed();
    let mut plugin = told.take_plugin()?;
    let updates = plugin.synchronize(&pods, &containers)?;
    ensure!(!updates.is_empty(), "no container was to be changed");
    let lists = || proxy.metric("koord_runtime_proxy_relists_total", &["ok"]);
    let before = lists()?;
    wait_patiently("a list of what it was told", || {
        lists().is_ok_and(|lists| lists > before + 0.5)
    });
    thread::sleep(SETTLED);
    let pid = proxy.pid().context("the proxy runs")?;
    let bytes = process::resident_bytes(pid).context("the proxy's memory")?;
    let known = proxy.metric("koord_runtime_proxy_ledger_containers", &[])?;
    ensure!(known > NRI_CONTAINERS as f64 - 0.5, "{known} are known");
    // It was the plugin for all that time.
    drop(plugin);
    proxy.stop()?;
    child.kill()?;
    child.wait()?;
    Ok(bytes)
}

/// What NRI tells of the pods and containers that the runtime lists. Every other pod is a best-effort one, with
/// batch resources for its first container.
fn told_as_listed() -> (Vec<PodSandbox>, Vec<Container>) {
    let listed: Vec<_> = (0..PODS).map(instant::pod).collect();
    let pods = listed.iter().enumerate().map(|(index, of)| {
        let metadata = of.metadata.clone().unwrap_or_default();
        PodSandbox {
            id: of.id.clone(),
            name: metadata.name,
            uid: metadata.uid,
            namespace: metadata.namespace,
            labels: of.labels.clone(),
            linux: Some(LinuxPodSandbox {
                cgroup_parent: instant::cgroup_parent(of),
                ..LinuxPodSandbox::default()
            }),
            ..pod(index)
        }
    });
    let containers = (0..NRI_CONTAINERS).map(|index| {
        let of = instant::container(index, &listed[index % PODS]);
        Container {
            id: of.id,
            pod_sandbox_id: of.pod_sandbox_id,
            name: of.metadata.unwrap_or_default().name,
            labels: of.labels,
            ..container(index)
        }
    });
    (pods.collect(), containers.collect())
}

fn asked_in_lives(
    rounds: usize,
    wants: Wants<'_>,
    ends: &mut Ends<'_>,
    cgroups: Option<&PodCgroups>,
) -> Result<Vec<Asked>> {
    let mut asked = Vec::new();
    for (pace, order) in [(Pace::Node, Order::Turns), (Pace::Churn, Order::Churn)] {
        for pods in AT_ONCE {
            if !EVENTS.iter().any(|event| wants(event, pods)) {
                continue;
            }
            let kept = life::measure(ends, cgroups, rounds, (pods, pace))?;
            let kept = kept.into_iter().filter(|it| wants(it.event, pods));
            asked.extend(kept.map(|it| Asked {
                event: it.event,
                pods,
                order,
                row: it.plugin,
                echo: Some(it.echo),
            }));
        }
    }
    Ok(asked)
}

fn asked_about_creations(
    rounds: usize,
    wants: Wants<'_>,
    (plugin, pid): (&mut Plugin, u32),
    pods: &[PodSandbox],
) -> Result<Vec<Asked>> {
    let at_once = || AT_ONCE.into_iter().filter(|&count| wants(CREATION, count));
    let turns = at_once().map(|count| (count, Order::Turns));
    let together = at_once().filter(|count| *count > 1);
    let together = together.map(|count| (count, Order::Together));
    let mut asked = Vec::new();
    for (count, order) in turns.chain(together) {
        let mut samples = Vec::new();
        // The first round warms up and is thrown away.
        for round in 0..=rounds {
            let sample = creations(plugin, pid, (count, order), pods)?;
            if round > 0 {
                samples.push(sample);
            }
        }
        let way = match order {
            Order::Together => "plugin, asked at once",
            Order::Turns | Order::Churn => "plugin",
        };
        asked.push(Asked {
            event: CREATION,
            pods: count,
            order,
            row: Row::named(way, &samples),
            echo: None,
        });
    }
    Ok(asked)
}

/// Creations in waves of so many pods, each followed by what comes after a creation and by the
/// removals, which are not measured.
fn creations(
    plugin: &mut Plugin,
    pid: u32,
    (count, order): (usize, Order),
    pods: &[PodSandbox],
) -> Result<Sample> {
    let cpu_time = || process::cpu_time(pid).map(|time| time.total());
    let before = cpu_time();
    let (mut latencies, mut spent) = (Vec::with_capacity(CREATES), Duration::ZERO);
    for wave in 0..CREATES / count {
        let first = wave * count;
        let mut new: Vec<(&PodSandbox, Container)> = (first..first + count)
            .map(|index| (&pods[index % PODS], container(NRI_CONTAINERS + index)))
            .collect();
        let begun = Instant::now();
        match order {
            Order::Together => ask(plugin, &new, &mut latencies)?,
            Order::Turns | Order::Churn => {
                for one in new.chunks(1) {
                    ask(plugin, one, &mut latencies)?;
                }
            }
        }
        spent += begun.elapsed();
        let after = [
            ("PostCreateContainer", CREATED),
            ("RemoveContainer", STOPPED),
        ];
        for (event, state) in after {
            for (pod, container) in &mut new {
                container.state = state;
                plugin.tell(event, pod, Some(container))?;
            }
        }
    }
    let spent_cpu = before
        .zip(cpu_time())
        .map(|(before, after)| after.saturating_sub(before));
    let cpu_us = spent_cpu.and_then(|time| u64::try_from(time.as_micros()).ok());
    Ok(Sample::of(latencies, spent, cpu_us))
}

/// Asks about these, and takes the time from each question to its answer.
fn ask(
    plugin: &mut Plugin,
    new: &[(&PodSandbox, Container)],
    latencies: &mut Vec<u64>,
) -> Result<()> {
    let mut waiting = HashMap::new();
    for (pod, container) in new {
        let start = Instant::now();
        let number = plugin.ask_about(CREATION, pod, Some(container))?;
        waiting.insert(number, start);
    }
    while !waiting.is_empty() {
        let (number, answer) = plugin.next_answer()?;
        let start = waiting.remove(&number).context("an answer to nothing")?;
        latencies.push(u64::try_from(start.elapsed().as_nanos())?);
        let answer = answer.map_err(|(code, text)| anyhow!("{text} ({code})"))?;
        ensure!(!answer.is_empty(), "a creation was not adjusted");
    }
    Ok(())
}

/// The demo's best-effort pod, many times.
pub(crate) fn pod(index: usize) -> PodSandbox {
    let cgroup_parent = format!("/kubepods/besteffort/poduid-{index}");
    pod_in(index, &cgroup_parent)
}

/// The same with a control group of which the caller knows where it is.
pub(crate) fn pod_in(index: usize, cgroup_parent: &str) -> PodSandbox {
    let batch = classes::be("batch");
    let config = batch.pod.config();
    PodSandbox {
        id: format!("sandbox-{index}"),
        name: format!("pod-{index}"),
        uid: format!("uid-{index}"),
        namespace: "default".to_owned(),
        labels: config.labels.clone(),
        annotations: config.annotations.clone(),
        linux: Some(LinuxPodSandbox {
            cgroup_parent: cgroup_parent.to_owned(),
            ..LinuxPodSandbox::default()
        }),
        ..PodSandbox::default()
    }
}

/// Each pod's first container is the one that its batch resources are for.
pub(crate) fn container(index: usize) -> Container {
    let name = match index {
        PODS..NRI_CONTAINERS => format!("side-{}", index / PODS),
        _ => "main".to_owned(),
    };
    Container {
        id: format!("container-{index}"),
        pod_sandbox_id: format!("sandbox-{}", index % PODS),
        name,
        state: match index {
            ..NRI_CONTAINERS => RUNNING,
            _ => UNKNOWN,
        },
        env: (0..20)
            .map(|number| format!("VARIABLE_{number}={}", "x".repeat(40)))
            .collect(),
        linux: Some(LinuxContainer {
            resources: Some(LinuxResources::best_effort()),
            ..LinuxContainer::default()
        }),
        ..Container::default()
    }
}

//! The events of a pod's life, from the run of its sandbox to the removal, told to the proxy as a plugin:
//! how long it keeps each.
//!
//! Control groups are this machine's own, made and removed as kubelet and runtime do. The double carries out
//! nothing of what it is answered, so at a container's start the plugin finds every value still missing
//! and writes it: more than it has to where a runtime has done its part.

use crate::{
    load::Sample,
    nri::{container, pod_in},
    report::Row,
};
use anyhow::{Result, ensure};
use koord_integration::classes::{self, PodSpecOf, Scope};
use koord_testkit::{
    PodCgroup, PodCgroups, PodQos,
    nri::{
        Plugin,
        message::{Container, LinuxCpu, LinuxResources, OptionalU64, PodSandbox},
    },
};
use std::time::{Duration, Instant};

/// What a runtime tells beside the creation, in this order.
pub(crate) const EVENTS: [&str; 12] = [
    "RunPodSandbox",
    "PostCreateContainer",
    "StartContainer",
    "PostStartContainer",
    "UpdateContainer",
    "PostUpdateContainer",
    "UpdatePodSandbox",
    "PostUpdatePodSandbox",
    "StopContainer",
    "RemoveContainer",
    "StopPodSandbox",
    "RemovePodSandbox",
];

/// Lives of one round.
const LIVES: usize = 320;
/// Numbers from here on are of pods that the plugin has not met.
const FIRST: usize = 1 << 20;

/// A pod with one container, and their control groups.
struct Life {
    spec: PodSpecOf,
    pod: PodSandbox,
    container: Container,
    cgroup: PodCgroup,
}

/// Lives in waves of so many pods: each event by turns of all of them.
pub(crate) fn measure(
    (plugin, cgroups): (&mut Plugin, &PodCgroups),
    rounds: usize,
    pods: usize,
) -> Result<Vec<(&'static str, Row)>> {
    let mut samples = EVENTS.map(|_| Vec::new());
    // The first round warms up and is thrown away.
    for round in 0..=rounds {
        let mut latencies = EVENTS.map(|_| Vec::with_capacity(LIVES));
        for first in (0..LIVES).step_by(pods) {
            let numbers = first..first + pods;
            let lives = numbers.map(|number| Life::new(cgroups, FIRST + round * LIVES + number));
            let lives = lives.collect::<Result<Vec<_>>>()?;
            for (event, latencies) in EVENTS.iter().zip(&mut latencies) {
                for life in &lives {
                    life.prepare(event, plugin, cgroups)?;
                    let begun = Instant::now();
                    life.tell(event, plugin)?;
                    latencies.push(u64::try_from(begun.elapsed().as_nanos())?);
                    life.check(event)?;
                }
            }
            lives.iter().try_for_each(|life| life.cgroup.remove())?;
        }
        if round > 0 {
            for (samples, latencies) in samples.iter_mut().zip(latencies) {
                let spent = Duration::from_nanos(latencies.iter().sum());
                samples.push(Sample::of(latencies, spent, None));
            }
        }
    }
    let rows = samples.map(|samples| Row::named("plugin", &samples));
    Ok(EVENTS.into_iter().zip(rows).collect())
}

// === impl Life ===

impl Life {
    fn new(cgroups: &PodCgroups, number: usize) -> Result<Self> {
        let cgroup = cgroups.pod(&format!("uid-{number}"), PodQos::BestEffort)?;
        let pod = pod_in(number, cgroup.path());
        cgroups.container(&cgroup, &pod.id)?;
        Ok(Self {
            spec: classes::be("batch"),
            container: Container {
                pod_sandbox_id: pod.id.clone(),
                ..container(number)
            },
            pod,
            cgroup,
        })
    }

    /// What a runtime does before it tells of this, which is not measured.
    fn prepare(&self, event: &str, plugin: &mut Plugin, cgroups: &PodCgroups) -> Result<()> {
        match event {
            "PostCreateContainer" => {
                let answer = plugin.create(&self.pod, &self.container)?;
                ensure!(answer.adjust.is_some(), "a creation was not adjusted");
            }
            "StartContainer" => cgroups.container(&self.cgroup, &self.container.id)?,
            _ => {}
        }
        Ok(())
    }

    fn tell(&self, event: &str, plugin: &mut Plugin) -> Result<()> {
        let Self { pod, container, .. } = self;
        match event {
            "UpdateContainer" => {
                let updates = plugin.update(pod, container, &shares(1_024))?;
                let linux = updates.into_iter().next().and_then(|it| it.linux);
                let cpu = linux.and_then(|it| it.resources).and_then(|it| it.cpu);
                let said = cpu.and_then(|it| it.shares).map(|it| it.value);
                ensure!(said == Some(512), "an update was answered with {said:?}");
            }
            "UpdatePodSandbox" => plugin.resize(pod, &shares(1_024))?,
            "StopContainer" => plugin.stop(pod, container)?,
            _ if event.ends_with("PodSandbox") => plugin.tell(event, pod, None)?,
            _ => plugin.tell(event, pod, Some(container))?,
        }
        Ok(())
    }

    /// What waits for writes to the kernel has to have waited.
    fn check(&self, event: &str) -> Result<()> {
        let wrong = match event {
            "RunPodSandbox" => {
                let mut of_pod = self.spec.clone();
                of_pod.expected.retain(|it| it.scope == Scope::Pod);
                of_pod.wrong_in(&self.cgroup, &self.container.id)
            }
            "StartContainer" => self.spec.wrong_in(&self.cgroup, &self.container.id),
            _ => Vec::new(),
        };
        ensure!(wrong.is_empty(), "answered to {event} too early: {wrong:?}");
        Ok(())
    }
}

fn shares(value: u64) -> LinuxResources {
    let mut asked = LinuxResources::best_effort();
    asked.cpu = Some(LinuxCpu {
        shares: Some(OptionalU64 { value }),
        ..LinuxCpu::default()
    });
    asked
}

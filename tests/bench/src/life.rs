//! The events of a pod's life, from the run of its sandbox to the removal, told to the proxy as a plugin:
//! how long it keeps each.
//!
//! In the same lives each is told to an [echo](crate::echo) too. What that takes is the machine's part,
//! with the double's own: to write the question and to read the answer. Between two questions to the
//! plugin there is less of a pause than any runtime leaves, about as long as the echo takes.
//!
//! Control groups are this machine's own, made and removed as kubelet and runtime do, between the
//! questions and on the CPUs that all of it shares; the kernel goes on with that behind whoever asked for
//! it. Of what it is answered to a creation the double writes to the container's group, once it has made
//! that, what a runtime would, and says so in the container's spec from then on.
//!
//! To one event the answer has to wait for the kernel, whose part an echo does not show: the first creation
//! in a pod, for what the pod's directory was to have since its sandbox runs and does not have yet. With
//! one pod it comes right after that, when hardly anything is written, and with several after the same
//! events of the others, in whose time it may be. On cgroup v1 that is `cpu.shares`, `cpu.cfs_quota_us`,
//! `memory.limit_in_bytes` and `cpu.idle`. Each is read before it is written. Beside them are read how much
//! memory is in use, the length of the quota's period, whether a group that is given shares is idle, and
//! once more the shares of one that is about to be. Every read and every write is of a file that is opened
//! for it and closed.

use crate::{
    load::Sample,
    nri::{container, pod, pod_in},
    report::Row,
};
use anyhow::{Context, Result, ensure};
use koord_integration::classes::{self, PodSpecOf, Scope};
use koord_testkit::{
    PodCgroup, PodCgroups, PodQos,
    nri::{
        Plugin,
        message::{
            Container, ContainerAdjustment, ContainerUpdate, LinuxCpu, LinuxResources, OptionalU64,
            PodSandbox,
        },
    },
};
use std::time::{Duration, Instant};

/// The first creation after the run of a sandbox.
const CREATION: &str = "CreateContainer in a new pod";

/// What a runtime asks and tells, in this order.
pub(crate) const EVENTS: [&str; 13] = [
    "RunPodSandbox",
    CREATION,
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

/// Who is told of every event.
pub(crate) struct Ends<'a> {
    pub(crate) plugin: &'a mut Plugin,
    pub(crate) echo: &'a mut Plugin,
}

/// How long one event was kept.
pub(crate) struct Kept {
    pub(crate) event: &'static str,
    pub(crate) plugin: Row,
    pub(crate) echo: Row,
}

/// What an answer says.
#[derive(Default)]
struct Said {
    adjust: Option<ContainerAdjustment>,
    updates: Vec<ContainerUpdate>,
}

/// A pod with one container.
struct Life {
    number: usize,
    spec: PodSpecOf,
    pod: PodSandbox,
    container: Container,
    /// Theirs, where they have any.
    cgroup: Option<PodCgroup>,
}

/// Lives in waves of so many pods: each event by turns of all of them. Without control groups there is
/// nothing that anything is written to.
pub(crate) fn measure(
    ends: &mut Ends<'_>,
    cgroups: Option<&PodCgroups>,
    rounds: usize,
    pods: usize,
) -> Result<Vec<Kept>> {
    let mut samples = EVENTS.map(|_| [Vec::new(), Vec::new()]);
    // The first round warms up and is thrown away: what is left to do of a synchronisation, a look at
    // every pod of it, falls into it. Runtimes synchronise once and tell of lives from then on.
    for round in 0..=rounds {
        let mut latencies = EVENTS.map(|_| [(); 2].map(|()| Vec::with_capacity(LIVES)));
        for first in (0..LIVES).step_by(pods) {
            let numbers = (first..first + pods).map(|it| FIRST + round * LIVES + it);
            let lives = numbers.map(|number| Life::new(cgroups, number));
            let mut lives = lives.collect::<Result<Vec<_>>>()?;
            for (event, latencies) in EVENTS.iter().zip(&mut latencies) {
                for life in &mut lives {
                    life.prepare(event, cgroups)?;
                    let took = ends.tell(life, event)?;
                    for (latencies, took) in latencies.iter_mut().zip(took) {
                        latencies.push(took);
                    }
                }
            }
            lives.iter().try_for_each(Life::remove)?;
        }
        if round > 0 {
            let latencies = latencies.into_iter().flatten();
            for (samples, latencies) in samples.iter_mut().flatten().zip(latencies) {
                let spent = Duration::from_nanos(latencies.iter().sum());
                samples.push(Sample::of(latencies, spent, None));
            }
        }
    }
    let kept = EVENTS.into_iter().zip(samples);
    Ok(kept
        .map(|(event, [plugin, echo])| Kept {
            event,
            plugin: Row::named("plugin", &plugin),
            echo: Row::named("echo", &echo),
        })
        .collect())
}

// === impl Ends ===

impl Ends<'_> {
    /// Tells of an event, and says how long the plugin and the echo took to answer. Who is told first
    /// changes from life to life, so that what goes on behind an answer, or behind what was prepared,
    /// costs the one as often as the other.
    fn tell(&mut self, life: &mut Life, event: &str) -> Result<[u64; 2]> {
        if life.number.is_multiple_of(2) {
            let (echo, _) = life.tell(event, self.echo)?;
            Ok([self.tell_plugin(life, event)?, echo])
        } else {
            let plugin = self.tell_plugin(life, event)?;
            let (echo, _) = life.tell(event, self.echo)?;
            Ok([plugin, echo])
        }
    }

    fn tell_plugin(&mut self, life: &mut Life, event: &str) -> Result<u64> {
        let (took, said) = life.tell(event, self.plugin)?;
        // Before anything else gives the plugin time.
        life.check(event, &said.updates)?;
        if event == CREATION {
            let linux = said.adjust.and_then(|adjust| adjust.linux);
            let resources = linux.and_then(|linux| linux.resources);
            ensure!(resources.is_some(), "a creation was not adjusted");
            // It asks for nothing but shares, which are among them.
            life.container.linux.get_or_insert_default().resources = resources;
        }
        Ok(took)
    }
}

// === impl Life ===

impl Life {
    fn new(cgroups: Option<&PodCgroups>, number: usize) -> Result<Self> {
        let Some(cgroups) = cgroups else {
            return Ok(Self::of(number, pod(number), None));
        };
        let cgroup = cgroups.pod(&format!("uid-{number}"), PodQos::BestEffort)?;
        let pod = pod_in(number, cgroup.path());
        cgroups.container(&cgroup, &pod.id)?;
        Ok(Self::of(number, pod, Some(cgroup)))
    }

    fn of(number: usize, pod: PodSandbox, cgroup: Option<PodCgroup>) -> Self {
        Self {
            number,
            spec: classes::be("batch"),
            container: Container {
                pod_sandbox_id: pod.id.clone(),
                ..container(number)
            },
            pod,
            cgroup,
        }
    }

    /// What a runtime does before it tells of this, which is not measured.
    fn prepare(&self, event: &str, cgroups: Option<&PodCgroups>) -> Result<()> {
        if event == "StartContainer"
            && let Some((cgroups, cgroup)) = cgroups.zip(self.cgroup.as_ref())
        {
            cgroups.container(cgroup, &self.container.id)?;
            self.carry_out(cgroup)?;
        }
        Ok(())
    }

    /// Writes to the container's group what its spec says, as a runtime does that has just made it.
    fn carry_out(&self, cgroup: &PodCgroup) -> Result<()> {
        let linux = self.container.linux.as_ref();
        let spec = linux.and_then(|linux| linux.resources.as_ref());
        let spec = spec.context("a spec without resources")?;
        let (cpu, memory) = (spec.cpu.as_ref(), spec.memory.as_ref());
        let shares = cpu.and_then(|cpu| cpu.shares).context("no shares")?.value;
        let quota = cpu.and_then(|cpu| cpu.quota).context("no quota")?.value;
        let limit = memory.and_then(|it| it.limit).context("no limit")?.value;
        let limit = limit.to_string();
        let files = match cgroup.directory("cpu").join("cpu.shares").exists() {
            true => [
                ("cpu", "cpu.shares", shares.to_string()),
                ("cpu", "cpu.cfs_quota_us", quota.to_string()),
                ("memory", "memory.limit_in_bytes", limit),
            ],
            false => {
                // The older of the two curves that runtimes know.
                let weight = 1 + (shares - 2) * 9_999 / 262_142;
                [
                    ("cpu", "cpu.weight", weight.to_string()),
                    ("cpu", "cpu.max", format!("{quota} 100000")),
                    ("memory", "memory.max", limit),
                ]
            }
        };
        for (controller, file, value) in files {
            cgroup.write(controller, Some(&self.container.id), file, &value)?;
        }
        Ok(())
    }

    /// Tells of an event. How long the answer took in nanoseconds, and what it says.
    fn tell(&self, event: &str, plugin: &mut Plugin) -> Result<(u64, Said)> {
        let Self { pod, container, .. } = self;
        let mut said = Said::default();
        let begun = Instant::now();
        match event {
            CREATION => said.adjust = plugin.create(pod, container)?.adjust,
            "UpdateContainer" => said.updates = plugin.update(pod, container, &shares(1_024))?,
            "UpdatePodSandbox" => plugin.resize(pod, &shares(1_024))?,
            "StopContainer" => plugin.stop(pod, container)?,
            _ if event.ends_with("PodSandbox") => plugin.tell(event, pod, None)?,
            _ => plugin.tell(event, pod, Some(container))?,
        }
        Ok((u64::try_from(begun.elapsed().as_nanos())?, said))
    }

    /// An update has to be answered with what was decided, and what waits for writes to the kernel has to
    /// have waited.
    fn check(&self, event: &str, updates: &[ContainerUpdate]) -> Result<()> {
        if event == "UpdateContainer" {
            let linux = updates.first().and_then(|it| it.linux.as_ref());
            let resources = linux.and_then(|it| it.resources.as_ref());
            let cpu = resources.and_then(|it| it.cpu.as_ref());
            let said = cpu.and_then(|it| it.shares).map(|it| it.value);
            ensure!(said == Some(512), "an update was answered with {said:?}");
        }
        let wrong = match (event, &self.cgroup) {
            (CREATION, Some(cgroup)) => {
                let mut of_pod = self.spec.clone();
                of_pod.expected.retain(|it| it.scope == Scope::Pod);
                of_pod.wrong_in(cgroup, &self.container.id)
            }
            ("StartContainer", Some(cgroup)) => self.spec.wrong_in(cgroup, &self.container.id),
            _ => Vec::new(),
        };
        ensure!(wrong.is_empty(), "answered to {event} too early: {wrong:?}");
        Ok(())
    }

    fn remove(&self) -> Result<()> {
        Ok(self.cgroup.iter().try_for_each(PodCgroup::remove)?)
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

//! The events of a pod's life, from the run of its sandbox to the removal, told to the proxy as a plugin:
//! how long it keeps each.
//!
//! An [echo](crate::echo) is told of as many lives, sixteen by sixteen in turn with the plugin. What that takes
//! is the machine's part, with the double's own: to write the question and to read the answer.
//!
//! Control groups are this machine's own, made and removed as kubelet and runtime do, on the CPUs that all of
//! it shares; the kernel goes on with that behind whoever asked for it. On a node they are made well before
//! the event is told: the kubelet makes a pod's before it asks for a sandbox, which takes the runtime some
//! hundred milliseconds, and to make a container takes it some five at the least. They are removed once the
//! pod is gone, and what the kernel has to clear away then takes it many times as long as to make them, in
//! pieces of milliseconds in which nobody else has the CPU. So the groups of all pods of a round are made
//! before it and removed behind it, which is waited for until the kernel has done with it, and there is a pause
//! behind those of containers, a short one ([`Pace::Node`]). What it takes while groups are made and cleared away as
//! fast as that goes is measured too ([`Pace::Churn`]).
//!
//! Of what it is answered to a creation the double writes to the container's group, once it has made that,
//! what a runtime would, and says so in the container's spec from then on.
//!
//! What a pod's directory is to have is written behind the answer to the run of its sandbox; that it is there is
//! looked at once its first container was to start.

use crate::{
    load::Sample,
    nri::{CREATED, RUNNING, STOPPED, UNKNOWN, container, pod, pod_in},
    report::Row,
};
use anyhow::{Context, Result, ensure};
use koord_integration::classes::{self, PodSpecOf};
use koord_testkit::{
    PodCgroup, PodCgroups, PodQos,
    nri::{
        Plugin,
        message::{
            Container, ContainerAdjustment, ContainerUpdate, LinuxCpu, LinuxMemory, LinuxResources,
            OptionalI64, OptionalU64, PodSandbox,
        },
    },
    poll::wait_patiently,
};
use std::{
    fs, thread,
    time::{Duration, Instant},
};

/// The first creation after the run of a sandbox.
const CREATION: &str = "CreateContainer in a new pod";
const START: &str = "StartContainer";

/// What a runtime asks and tells, in this order.
pub(crate) const EVENTS: [&str; 13] = [
    "RunPodSandbox",
    CREATION,
    "PostCreateContainer",
    START,
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

/// Lives of one round, to the plugin and to the echo each.
const LIVES: usize = 320;
/// Lives after which the other end is told.
const TURN: usize = 16;
/// Less than a runtime takes to make a container.
const MADE: Duration = Duration::from_millis(5);
/// For what the kernel does behind the last group that it has made, or given up.
const QUIET: Duration = Duration::from_millis(300);
/// Numbers from here on are of pods that the plugin has not met.
const FIRST: usize = 1 << 20;

/// What lies between the making of control groups and an event.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Pace {
    /// Less time than on any node, and enough for the kernel.
    Node,
    /// None.
    Churn,
}

/// Who is told of every event, in turn.
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
    spec: PodSpecOf,
    pod: PodSandbox,
    container: Container,
    /// Theirs, where they have any.
    cgroup: Option<PodCgroup>,
}

/// Lives of so many pods at a time: each event by turns of all of them. Without control groups there is nothing
/// that anything is written to.
pub(crate) fn measure(
    ends: &mut Ends<'_>,
    cgroups: Option<&PodCgroups>,
    rounds: usize,
    (pods, pace): (usize, Pace),
) -> Result<Vec<Kept>> {
    let mut samples = EVENTS.map(|_| [Vec::new(), Vec::new()]);
    let wave = pace.wave(pods);
    // The first round warms up and is thrown away: what is left to do of a synchronisation, a look at
    // every pod of it, falls into it. Runtimes synchronise once and tell of lives from then on.
    for round in 0..=rounds {
        let mut latencies = EVENTS.map(|_| [(); 2].map(|()| Vec::with_capacity(LIVES)));
        for first in (0..2 * LIVES).step_by(wave) {
            let before = groups()?;
            let numbers = (first..first + wave).map(|it| FIRST + round * 2 * LIVES + it);
            let lives = numbers.map(|number| Life::new(cgroups, number));
            let mut lives = lives.collect::<Result<Vec<_>>>()?;
            pace.pause(QUIET);
            for (at, lives) in lives.chunks_mut(pods).enumerate() {
                let end = (first + at * pods) / TURN % 2;
                for (event, latencies) in EVENTS.iter().zip(&mut latencies) {
                    if *event == START {
                        lives.iter().try_for_each(|it| it.make(cgroups))?;
                        pace.pause(MADE);
                    }
                    for life in lives.iter_mut() {
                        latencies[end].push(ends.tell(end, life, event)?);
                    }
                }
            }
            lives.iter().try_for_each(Life::remove)?;
            pace.clear(before);
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

// === impl Pace ===

impl Pace {
    /// Lives whose groups are made together, where so many are told of at a time.
    fn wave(self, pods: usize) -> usize {
        match self {
            Self::Node => 2 * LIVES,
            Self::Churn => pods,
        }
    }

    fn pause(self, time: Duration) {
        if self == Self::Node {
            thread::sleep(time);
        }
    }

    /// Waits until the kernel has cleared away what was made since there were so many groups.
    fn clear(self, before: u64) {
        if self == Self::Node {
            wait_patiently("the kernel clears groups away", || {
                groups().is_ok_and(|now| now <= before)
            });
            thread::sleep(QUIET);
        }
    }
}

/// Control groups that there are, those that were removed and are still to be cleared away among them.
fn groups() -> Result<u64> {
    let text = fs::read_to_string("/proc/cgroups")?;
    let counts = text.lines().filter_map(|line| {
        let mut words = line.split_whitespace();
        words.nth(2)?.parse::<u64>().ok()
    });
    Ok(counts.sum())
}

// === impl Ends ===

impl Ends<'_> {
    /// Tells the plugin of an event, or the echo, and says how long it took to answer.
    fn tell(&mut self, end: usize, life: &mut Life, event: &str) -> Result<u64> {
        if end == 0 {
            return self.tell_plugin(life, event);
        }
        let (took, _) = life.tell(event, self.echo)?;
        if event == CREATION {
            life.made_of(LinuxResources {
                cpu: Some(LinuxCpu {
                    shares: Some(OptionalU64 { value: 512 }),
                    quota: Some(OptionalI64 { value: 100_000 }),
                    ..LinuxCpu::default()
                }),
                memory: Some(LinuxMemory {
                    limit: Some(OptionalI64 { value: 128 << 20 }),
                }),
            });
        }
        Ok(took)
    }

    fn tell_plugin(&mut self, life: &mut Life, event: &str) -> Result<u64> {
        let (took, said) = life.tell(event, self.plugin)?;
        // Before anything else gives the plugin time.
        life.check(event, &said.updates)?;
        if event == CREATION {
            let linux = said.adjust.and_then(|adjust| adjust.linux);
            let resources = linux.and_then(|linux| linux.resources);
            // It asks for nothing but shares, which are among them.
            life.made_of(resources.context("a creation was not adjusted")?);
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
            spec: classes::be("batch"),
            container: Container {
                pod_sandbox_id: pod.id.clone(),
                ..container(number)
            },
            pod,
            cgroup,
        }
    }

    /// What the container is made with.
    fn made_of(&mut self, resources: LinuxResources) {
        self.container.linux.get_or_insert_default().resources = Some(resources);
    }

    /// What a runtime does before it tells of a start.
    fn make(&self, cgroups: Option<&PodCgroups>) -> Result<()> {
        if let Some((cgroups, cgroup)) = cgroups.zip(self.cgroup.as_ref()) {
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
    fn tell(&mut self, event: &str, plugin: &mut Plugin) -> Result<(u64, Said)> {
        self.container.state = state_at(event);
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
            (START, Some(cgroup)) => self.spec.wrong_in(cgroup, &self.container.id),
            _ => Vec::new(),
        };
        ensure!(wrong.is_empty(), "answered to {event} too early: {wrong:?}");
        Ok(())
    }

    fn remove(&self) -> Result<()> {
        Ok(self.cgroup.iter().try_for_each(PodCgroup::remove)?)
    }
}

/// What a runtime says with an event that its container does.
fn state_at(event: &str) -> i32 {
    match event {
        CREATION => UNKNOWN,
        "PostCreateContainer" | START => CREATED,
        "StopContainer" | "RemoveContainer" => STOPPED,
        _ => RUNNING,
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

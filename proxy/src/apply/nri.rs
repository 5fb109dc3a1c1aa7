//! Decisions as a runtime that speaks NRI is told them: an adjustment of a container that is being
//! made, an update of one that is there.
//!
//! The runtime tells with each question what the container's spec says at that moment, so only what
//! differs from that is said: whatever is said is a field that no other plugin may set. What NRI has
//! no way to say, or would say at the price of something else, keeps to the kernel route.

use crate::{
    ledger::{Entry, GIVEN_BACK, Route, Target},
    originals::{self, Origin},
};
use koord_hooks::Requested;
use koord_kernel::cgroup::{Change, RuntimeName};
use koord_model::{
    CpuPeriod, CpuQuota, CpuSet, CpusetCpus, DeviceNode, MemoryLimit, Setting, Value,
};
use koord_proto::{
    keys::annotation,
    nri::{
        Container, ContainerAdjustment, ContainerUpdate, KeyValue, LinuxContainerAdjustment,
        LinuxCpu, LinuxDevice, LinuxMemory, LinuxResources, Mount, OptionalFileMode, OptionalInt,
        OptionalInt64, OptionalUInt64,
    },
};

use super::cri::{CRIO_MIN_MEMORY, has_unsayable, injections, set_injected, to_remember};

/// What the runtime and the node take.
#[derive(Clone, Copy)]
pub struct Limits<'a> {
    pub runtime: RuntimeName,
    /// The CPUs that the kernel lets the container have; `None` if it takes all.
    pub cpus: Option<&'a CpuSet>,
    /// Whether a setting is one that we set here: of others nothing is said, not even what comes back.
    pub sets: &'a dyn Fn(Setting) -> bool,
}

/// What a container's spec says.
#[derive(Clone, Copy)]
struct Now<'a> {
    resources: &'a LinuxResources,
    /// Of one that is being made: no runtime changes it later.
    oom_score_adj: Option<i64>,
}

/// What is said of a container.
#[derive(Default)]
struct Said {
    cpu: LinuxCpu,
    memory: LinuxMemory,
    oom_score_adj: Option<OptionalInt>,
    /// The decisions behind it, quotas for 100 ms.
    ours: Vec<Value>,
}

/// What became of one decision.
#[derive(PartialEq, Eq)]
enum Outcome {
    /// The container's spec has it.
    Same,
    Said,
    /// There is no way to say it.
    Unsayable,
}

/// The change of a container that is being made with the resources `now`; `None` if they are what was
/// decided and nothing is beside that no adjustment can say. Entries of `target` that cannot be said
/// change to the kernel route.
pub fn create(
    container: &Container,
    requested: &Requested,
    target: &mut Target,
    limits: Limits<'_>,
) -> Option<ContainerAdjustment> {
    let beside = has_unsayable(target);
    let linux = container.linux.clone().unwrap_or_default();
    let now = Now {
        resources: &linux.resources.unwrap_or_default(),
        oom_score_adj: linux.oom_score_adj.map(|score| score.value),
    };
    let mut said = Said::of(now, target, limits);
    let origin = Origin {
        requested: to_remember(requested, target),
        ours: said.ours.clone(),
    };
    let oom_score_adj = said.oom_score_adj.take();
    let resources = said.into_resources();
    let devices = devices(container, target);
    let says = resources.is_some() || oom_score_adj.is_some() || !devices.is_empty();
    let (env, mounts) = injected(container, target);
    // Of what it is made with it may have all.
    set_injected(target, true);
    if !says && env.is_empty() && mounts.is_empty() && !beside {
        return None;
    }
    let originals = originals::to_annotation(&origin, Some(&container.id));
    Some(ContainerAdjustment {
        annotations: [(annotation::ORIGINALS.to_owned(), originals)].into(),
        linux: says.then_some(LinuxContainerAdjustment {
            devices,
            resources,
            oom_score_adj,
        }),
        env,
        mounts,
    })
}

/// What the container is made with beside its resources.
fn injected(container: &Container, target: &Target) -> (Vec<KeyValue>, Vec<Mount>) {
    let there = |name: &str| {
        let mut pairs = container.env.iter().filter_map(|it| it.split_once('='));
        let last = pairs.rfind(|(key, _)| *key == name);
        last.map(|(_, value)| value)
    };
    let (mut env, mut mounts) = (Vec::new(), Vec::new());
    for injection in injections(target) {
        env.extend(injection.envs.iter().map(|it| KeyValue {
            key: it.name.to_owned(),
            value: it.over(there(it.name)),
        }));
        mounts.extend(injection.binds.iter().map(|bind| {
            let read_only = bind.read_only.then_some("ro");
            let options = ["rbind"].into_iter().chain(read_only);
            Mount {
                destination: bind.path.to_string(),
                r#type: "bind".to_owned(),
                source: bind.source().to_owned(),
                options: options.map(str::to_owned).collect(),
            }
        }));
    }
    (env, mounts)
}

/// The devices that the container is made with and does not have. To say one that another plugin has
/// added would be a conflict, for which the runtime refuses the container.
fn devices(container: &Container, target: &Target) -> Vec<LinuxDevice> {
    let linux = container.linux.as_ref();
    let there = linux.map_or(&[][..], |linux| &linux.devices);
    let devices = injections(target).flat_map(|injection| &injection.devices);
    let missing = devices.filter(|device| there.iter().all(|it| *it.path != *device.path));
    missing.map(device).collect()
}

/// A device as upstream's plugin says it.
fn device(DeviceNode { path, number }: &DeviceNode) -> LinuxDevice {
    LinuxDevice {
        path: path.to_string(),
        r#type: "c".to_owned(),
        major: number.major.into(),
        minor: number.minor.into(),
        file_mode: Some(OptionalFileMode { value: 0o666 }),
    }
}

/// The change of a container that is there and whose spec says `now`; `None` if that is what was
/// decided. Entries of `target` that cannot be said change to the kernel route.
pub fn update(
    id: &str,
    now: &LinuxResources,
    target: &mut Target,
    limits: Limits<'_>,
) -> Option<ContainerUpdate> {
    let now = Now {
        resources: now,
        oom_score_adj: None,
    };
    let resources = Said::of(now, target, limits).into_resources()?;
    Some(ContainerUpdate::new(id, resources))
}

/// What of `target` a runtime has written itself that has made the container's group from a spec that says
/// `now`.
pub fn in_spec(now: &LinuxResources, target: &Target, runtime: RuntimeName) -> Vec<Change> {
    let Some(at) = &target.at else {
        return Vec::new();
    };
    let now = Now {
        resources: now,
        oom_score_adj: None,
    };
    let limits = Limits {
        runtime,
        cpus: None,
        sets: &|_| false,
    };
    let has = |entry: &&Entry| {
        let said = || Said::default().say(&entry.desired, now, limits);
        entry.route == Route::Request && said() == Outcome::Same
    };
    let entries = target.entries().iter().filter(has);
    entries
        .map(|entry| Change {
            at: at.clone(),
            value: entry.desired.clone(),
            gives_back: false,
            of_container: true,
            may_return: false,
        })
        .collect()
}

/// Whether an answer to this update of a container whose spec says `there` would lose a part of it: the
/// runtime puts our answer in the place of the request, and there is no limit of memory and swap in what
/// it makes of an answer. containerd does not tell what the request says of swap either
/// (`fromCRILinuxResources` in `internal/cri/nri`). So where the container may swap, a limit of memory
/// is taken to come with one of both.
pub fn would_lose(asked: &LinuxResources, there: &LinuxResources) -> bool {
    let (limit, together) = memory_limits(asked);
    together != 0 || limit != 0 && may_swap(memory_limits(there))
}

/// All that could be said goes by the kernel.
pub fn keep_silent(target: &mut Target) {
    target.entries_mut().for_each(|e| e.route = Route::Kernel);
}

/// What a spec says once an update has come over it; zero and the empty string change nothing.
pub fn overlaid(now: &LinuxResources, asked: &LinuxResources) -> LinuxResources {
    let (cpu, memory) = (now.cpu.as_ref(), now.memory.as_ref());
    let (cpu_asked, memory_asked) = (asked.cpu.as_ref(), asked.memory.as_ref());
    LinuxResources {
        cpu: Some(LinuxCpu {
            shares: later(cpu, cpu_asked, |cpu| cpu.shares.filter(|it| it.value != 0)),
            quota: later(cpu, cpu_asked, |cpu| cpu.quota.filter(|it| it.value != 0)),
            period: later(cpu, cpu_asked, |cpu| cpu.period.filter(|it| it.value != 0)),
            cpus: later(cpu, cpu_asked, |cpu| said(&cpu.cpus)).unwrap_or_default(),
            mems: later(cpu, cpu_asked, |cpu| said(&cpu.mems)).unwrap_or_default(),
        }),
        memory: Some(LinuxMemory {
            limit: later(memory, memory_asked, |m| m.limit.filter(|it| it.value != 0)),
            swap: later(memory, memory_asked, |m| m.swap.filter(|it| it.value != 0)),
        }),
        ..now.clone()
    }
}

/// The limit of memory, and that of memory and swap together; zero is none.
fn memory_limits(resources: &LinuxResources) -> (i64, i64) {
    let memory = resources.memory.as_ref();
    let limit = memory.and_then(|memory| memory.limit);
    let together = memory.and_then(|memory| memory.swap);
    (
        limit.map_or(0, |it| it.value),
        together.map_or(0, |it| it.value),
    )
}

/// Whether these limits leave a container swap.
fn may_swap((limit, together): (i64, i64)) -> bool {
    together < 0 || together > limit
}

fn later<M, V>(now: Option<&M>, asked: Option<&M>, of: impl Fn(&M) -> Option<V>) -> Option<V> {
    asked.and_then(&of).or_else(|| now.and_then(&of))
}

fn said(list: &str) -> Option<String> {
    (!list.is_empty()).then(|| list.to_owned())
}

// === impl Said ===

impl Said {
    fn of(now: Now<'_>, target: &mut Target, limits: Limits<'_>) -> Self {
        let mut said = Self::default();
        // What comes back where we set nothing any more, or koordlet decides it, goes by the kernel:
        // who sets it instead of us may say it in the same breath.
        let theirs = |entry: &Entry| {
            let is_set = || (limits.sets)(entry.desired.setting());
            entry.owner == GIVEN_BACK && (entry.over.is_some() || !is_set())
        };
        let entries = target.entries_mut();
        let mine = entries.filter(|entry| entry.may_be_said() && !theirs(entry));
        for entry in mine {
            match said.say(&entry.desired, now, limits) {
                Outcome::Same => entry.note_told(),
                Outcome::Said => {
                    said.ours.push(entry.desired.clone());
                    entry.given = true;
                    entry.note_told();
                }
                Outcome::Unsayable => entry.route = Route::Kernel,
            }
        }
        said
    }

    fn say(&mut self, value: &Value, now: Now<'_>, limits: Limits<'_>) -> Outcome {
        let Now {
            resources: now,
            oom_score_adj,
        } = now;
        match value {
            Value::CpuShares(shares) => {
                let shares = u64::from(shares.get());
                let there = now.cpu.as_ref().and_then(|cpu| cpu.shares);
                if there.is_some_and(|there| there.value == shares) {
                    return Outcome::Same;
                }
                self.cpu.shares = Some(OptionalUInt64 { value: shares });
                Outcome::Said
            }
            Value::CpuQuota(quota) => self.say_quota(*quota, now),
            Value::CpusetCpus(cpus) => self.say_cpus(cpus, now, limits),
            Value::MemoryLimit(limit) => self.say_memory(*limit, now, limits),
            Value::OomScoreAdj(score) => self.say_oom_score(score.get(), oom_score_adj),
            // No field says it, and what `unified` may say is left to the caller.
            _ => Outcome::Unsayable,
        }
    }

    /// In the period that the container has, or where the share is too small for that, in the usual
    /// one.
    fn say_quota(&mut self, quota: CpuQuota, now: &LinuxResources) -> Outcome {
        let cpu = now.cpu.as_ref();
        let there = cpu.and_then(|cpu| cpu.quota).map_or(0, |it| it.value);
        let period = cpu
            .and_then(|cpu| cpu.period)
            .and_then(|period| CpuPeriod::new(i64::try_from(period.value).ok()?).ok())
            .unwrap_or(CpuPeriod::DEFAULT);
        if quota == CpuQuota::Unlimited && there <= 0 {
            return Outcome::Same;
        }
        let (scaled, said) = match quota.in_period(period) {
            Some(scaled) => (scaled, period),
            None => (quota, CpuPeriod::DEFAULT),
        };
        let value = scaled.as_i64();
        if (there, period) == (value, said) {
            return Outcome::Same;
        }
        self.cpu.quota = Some(OptionalInt64 { value });
        if said != period {
            let value = u64::from(said.micros());
            self.cpu.period = Some(OptionalUInt64 { value });
        }
        Outcome::Said
    }

    /// The empty string is "not said", so a list that is there cannot be taken away.
    fn say_cpus(&mut self, cpus: &CpusetCpus, now: &LinuxResources, limits: Limits<'_>) -> Outcome {
        let there = now.cpu.as_ref().map_or("", |cpu| cpu.cpus.as_str());
        let cpus = match cpus {
            CpusetCpus::All if there.is_empty() => return Outcome::Same,
            CpusetCpus::All => return Outcome::Unsayable,
            CpusetCpus::Only(cpus) => cpus,
        };
        let cpus = match limits.cpus {
            Some(most) if !cpus.is_subset(most) => cpus.intersection(most),
            _ => cpus.clone(),
        };
        if cpus.is_empty() {
            return Outcome::Unsayable;
        }
        if there.parse().is_ok_and(|there: CpuSet| there == cpus) {
            return Outcome::Same;
        }
        self.cpu.cpus = cpus.to_string();
        Outcome::Said
    }

    /// Runtimes give memory and swap together the limit that is said for memory. Where the container
    /// may swap, that would be taken away.
    fn say_memory(
        &mut self,
        limit: MemoryLimit,
        now: &LinuxResources,
        limits: Limits<'_>,
    ) -> Outcome {
        let crio = limits.runtime == RuntimeName::CriO;
        let (there, together) = memory_limits(now);
        let value = limit.as_i64();
        match limit {
            MemoryLimit::Unlimited if there <= 0 => return Outcome::Same,
            MemoryLimit::Unlimited if crio => return Outcome::Unsayable,
            MemoryLimit::Unlimited => {}
            MemoryLimit::Bytes(_) if there == value => return Outcome::Same,
            MemoryLimit::Bytes(bytes) if crio && bytes < CRIO_MIN_MEMORY => {
                return Outcome::Unsayable;
            }
            MemoryLimit::Bytes(_) if may_swap((there, together)) && may_swap((value, together)) => {
                return Outcome::Unsayable;
            }
            MemoryLimit::Bytes(_) => {}
        }
        self.memory.limit = Some(OptionalInt64 { value });
        Outcome::Said
    }

    /// A lower one than the container has takes a capability, without which the runtime would not
    /// start it: what a runtime without it takes from a kubelet's it leaves in a plugin's. Runtimes
    /// with an NRI before 0.7 do not look at it, and then it is written to the process that waits.
    fn say_oom_score(&mut self, score: i64, there: Option<i64>) -> Outcome {
        match there {
            Some(there) if there == score => Outcome::Same,
            Some(there) if there < score => {
                self.oom_score_adj = Some(OptionalInt { value: score });
                Outcome::Said
            }
            _ => Outcome::Unsayable,
        }
    }

    fn into_resources(self) -> Option<LinuxResources> {
        let resources = LinuxResources {
            cpu: Some(self.cpu).filter(|cpu| *cpu != LinuxCpu::default()),
            memory: Some(self.memory).filter(|memory| *memory != LinuxMemory::default()),
            ..LinuxResources::default()
        };
        (!resources.is_empty()).then_some(resources)
    }
}

#[cfg(test)]
mod tests;

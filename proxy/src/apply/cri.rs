//! Decisions that a request to the runtime can carry, as bytes to append to it.
//!
//! A call that the runtime refused with our patch cannot be sent again without it, so what goes in
//! is what every supported runtime takes; the rest keeps to the kernel route. A creation carries
//! only what differs from what was asked. An update carries every value in force: the runtime
//! writes its whole stored spec each time, and a value that it does not know it would undo. What the
//! kernel refuses is not in force, and with it the runtime would fail the whole update.

use crate::{
    ledger::{Applied, Entry, GIVEN_BACK, Route, Target},
    originals::{self, Origin},
    view,
};
use koord_hooks::Requested;
use koord_kernel::cgroup::RuntimeName;
use koord_model::{
    CpuPeriod, CpuQuota, CpuSet, CpusetCpus, Injection, MemoryLimit, Setting, Value,
};
use koord_proto::{
    cri,
    keys::annotation,
    wire::{
        self, CreateContainerPatch, ResourcesPatch, UpdateContainerResourcesPatch, patched_length,
    },
};
use thiserror::Error;

/// CRI-O refuses containers with less memory than this, in bytes.
pub(super) const CRIO_MIN_MEMORY: u64 = 12 << 20;

/// What the receiver of a request takes.
#[derive(Clone, Copy, Debug)]
pub struct Limits<'a> {
    pub message: &'a [u8],
    pub max_message_bytes: usize,
    /// `None` while it has not said which it is: then it gets what every runtime takes.
    pub runtime: Option<RuntimeName>,
    /// The CPUs that the kernel lets the container have; `None` if it takes all.
    pub cpus: Option<&'a CpuSet>,
}

/// What a request asks for, and what was asked for before it and is still.
#[derive(Clone, Copy, Debug)]
pub struct Asked<'a> {
    pub linux: &'a cri::LinuxContainerResources,
    pub period: Option<CpuPeriod>,
    /// The limit of memory.
    pub memory: Option<MemoryLimit>,
    /// The limit of memory and swap together; none if the container is not to swap.
    pub swap: Option<MemoryLimit>,
}

/// Why a request cannot carry its patch.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum PatchError {
    #[error("with {patched} bytes the request would be over the limit of {limit}")]
    TooLarge {
        patched: usize,
        limit: usize,
        /// Whose values the patch has.
        hooks: Vec<&'static str>,
    },
}

/// The bytes to append to a CreateContainer; `None` if it asks for what was decided already. Where
/// something is decided that no request can say, what was asked for goes with it all the same: after
/// a restart that is decided from it again. Entries of `target` that the request cannot carry change
/// to the kernel route.
///
/// # Errors
///
/// When the request would have more than `limits.max_message_bytes` bytes with its patch.
pub fn create(
    config: &cri::ContainerConfig,
    requested: &Requested,
    target: &mut Target,
    limits: Limits<'_>,
) -> Result<Option<Vec<u8>>, PatchError> {
    let beside = has_unsayable(target) && config.resources().is_some();
    let mut patch = CreateContainerPatch::default();
    inject(&mut patch, target, limits.message);
    match config.resources() {
        Some(asked) => patch.resources = resources(asked, requested, target, limits),
        // A message that was not there would make containerd set `oom_score_adj` to 0.
        None => {
            let others = target.entries_mut().filter(|it| !is_injected(it));
            others.for_each(|entry| entry.route = Route::Kernel);
        }
    }
    if patch.is_empty() && !beside {
        // What it is made with it asked for itself.
        set_injected(target, true);
        requests(target).for_each(Entry::note_told);
        return Ok(None);
    }
    let changed = |entry: &&Entry| {
        entry.route == Route::Request && !says_the_same(&entry.desired, entry.original.value())
    };
    let said = || target.entries().iter().filter(changed);
    let origin = Origin {
        requested: to_remember(requested, target),
        ours: values(said()).collect(),
    };
    let originals = originals::to_annotation(&origin, None);
    patch.annotations = vec![(annotation::ORIGINALS.to_owned(), originals)];
    let encoded = bounded(patch.encode(), said(), limits);
    set_injected(target, encoded.is_ok());
    if encoded.is_ok() {
        requests(target).for_each(give);
    }
    encoded
}

/// What of a creation's resources differs from what was asked.
fn resources(
    asked: &cri::LinuxContainerResources,
    requested: &Requested,
    target: &mut Target,
    limits: Limits<'_>,
) -> ResourcesPatch {
    let mut patch = ResourcesPatch::default();
    let all = Asked {
        linux: asked,
        period: requested.cpu_period,
        memory: requested.memory_limit,
        swap: view::swap_said(Some(asked)),
    };
    for entry in requests(target) {
        if !says_the_same(&entry.desired, entry.original.value()) {
            let sayable = match &entry.desired {
                // At creation zero and the empty string clear what was asked for.
                Value::CpusetCpus(CpusetCpus::All) => {
                    patch.cpuset_cpus = Some(String::new());
                    true
                }
                Value::MemoryLimit(MemoryLimit::Unlimited) => {
                    patch.memory_limit_in_bytes = Some(0);
                    patch.memory_swap_limit_in_bytes = all.swap.map(|_| 0);
                    true
                }
                // Of one that is there no runtime changes it.
                Value::OomScoreAdj(score) => {
                    patch.oom_score_adj = Some(score.get());
                    true
                }
                value => say(&mut patch, value, &all, limits),
            };
            if !sayable {
                entry.route = Route::Kernel;
            }
        }
    }
    patch
}

/// What the container is made with beside its resources.
fn inject(patch: &mut CreateContainerPatch, target: &Target, request: &[u8]) {
    for injection in injections(target) {
        for env in &injection.envs {
            let value = env.over(wire::env(request, env.name));
            patch.envs.push((env.name.to_owned(), value));
        }
        patch.binds.extend(injection.binds.iter().cloned());
        let paths = injection.devices.iter().map(|device| device.path.clone());
        let missing = paths.filter(|path| !wire::has_device(request, path));
        patch.devices.extend(missing);
    }
}

/// What is said about how a container is made.
pub(super) fn injections(target: &Target) -> impl Iterator<Item = &Injection> {
    let said = target
        .entries()
        .iter()
        .filter(|it| it.route == Route::Request);
    said.filter_map(|entry| match &entry.desired {
        Value::GpuMonitor(injection) | Value::Gpu(injection) | Value::Rdma(injection) => {
            Some(&**injection)
        }
        _ => None,
    })
}

/// Notes whether the container is made so: if not it never will be.
pub(crate) fn set_injected(target: &mut Target, said: bool) {
    for entry in target.entries_mut().filter(|it| is_injected(it)) {
        match said {
            true if entry.route == Route::Request => entry.applied = Applied::Written,
            true => {}
            false => entry.route = Route::Kernel,
        }
    }
}

fn is_injected(entry: &Entry) -> bool {
    entry.desired.setting().is_injected()
}

/// The values of entries that can be replaced one day.
fn values<'a>(entries: impl Iterator<Item = &'a Entry>) -> impl Iterator<Item = Value> {
    entries
        .filter(|it| !is_injected(it))
        .map(|it| it.desired.clone())
}

/// The bytes to append to an UpdateContainerResources; `None` if nothing is in force that it could
/// carry. Entries of `target` that it cannot carry change to the kernel route.
///
/// # Errors
///
/// When the request would have more than `limits.max_message_bytes` bytes with its patch.
pub fn update(
    asked: &Asked<'_>,
    target: &mut Target,
    limits: Limits<'_>,
) -> Result<Option<Vec<u8>>, PatchError> {
    let mut patch = ResourcesPatch::default();
    for entry in requests(target) {
        if !say(&mut patch, &entry.desired, asked, limits) {
            entry.route = Route::Kernel;
        }
    }
    if patch.is_empty() {
        return Ok(None);
    }
    let patch = UpdateContainerResourcesPatch { resources: patch };
    let encoded = bounded(patch.encode(), target.entries().iter(), limits)?;
    requests(target).for_each(give);
    Ok(encoded)
}

fn give(entry: &mut Entry) {
    entry.given = true;
    entry.note_told();
}

/// What of a creation is to outlive a restart. Each says a score, but hardly one is ever replaced.
pub(super) fn to_remember(requested: &Requested, target: &Target) -> Requested {
    let mut entries = target.entries().iter();
    let scored = entries.any(|entry| entry.desired.setting() == Setting::OomScoreAdj);
    Requested {
        oom_score_adj: requested.oom_score_adj.filter(|_| scored),
        ..requested.clone()
    }
}

/// Whether something is decided that no request or adjustment can say.
pub(super) fn has_unsayable(target: &Target) -> bool {
    let mut entries = target.entries().iter();
    entries.any(|entry| entry.route == Route::Kernel && entry.owner != GIVEN_BACK)
}

fn requests(target: &mut Target) -> impl Iterator<Item = &mut Entry> {
    target.entries_mut().filter(|entry| entry.may_be_said())
}

/// In CRI "not said" is unlimited for a quota and for memory, and all CPUs for a cpuset.
fn says_the_same(desired: &Value, asked: Option<&Value>) -> bool {
    match (desired, asked) {
        (_, Some(asked)) => desired == asked,
        (Value::CpuQuota(CpuQuota::Unlimited), None)
        | (Value::MemoryLimit(MemoryLimit::Unlimited), None)
        | (Value::CpusetCpus(CpusetCpus::All), None) => true,
        (_, None) => false,
    }
}

/// Adds a value; false if this call cannot carry it.
fn say(patch: &mut ResourcesPatch, value: &Value, asked: &Asked<'_>, limits: Limits<'_>) -> bool {
    let crio = limits.runtime.is_none_or(|it| it == RuntimeName::CriO);
    match value {
        Value::CpuShares(shares) => patch.cpu_shares = Some(shares.get().into()),
        Value::CpuQuota(quota) => {
            let period = asked.period.unwrap_or(CpuPeriod::DEFAULT);
            // A share too small for the period that was asked for is one of a longer period:
            // raised to what the kernel takes it could be more than the pod has, and on cgroup v1
            // the container would not start.
            let (quota, said) = match quota.in_period(period) {
                Some(scaled) => (scaled, period),
                None => (*quota, CpuPeriod::DEFAULT),
            };
            patch.cpu_quota = Some(quota.as_i64());
            // What the runtime has stored may be what an earlier patch said.
            let there = i64::from(said.micros()) == asked.linux.cpu_period;
            if period != CpuPeriod::DEFAULT && !there {
                patch.cpu_period = Some(said.micros().into());
            }
        }
        Value::CpusetCpus(CpusetCpus::Only(cpus)) => match limits.cpus {
            Some(most) if !cpus.is_subset(most) => {
                let common = cpus.intersection(most);
                if common.is_empty() {
                    return false;
                }
                patch.cpuset_cpus = Some(common.to_string());
            }
            _ => patch.cpuset_cpus = Some(cpus.to_string()),
        },
        Value::MemoryLimit(MemoryLimit::Bytes(bytes)) => {
            if crio && *bytes < CRIO_MIN_MEMORY {
                return false;
            }
            let limit = MemoryLimit::Bytes(*bytes).as_i64();
            patch.memory_limit_in_bytes = Some(limit);
            patch.memory_swap_limit_in_bytes = asked.swap_beside(*bytes);
        }
        // CRI-O refuses negative limits, and zero is "unchanged".
        Value::MemoryLimit(MemoryLimit::Unlimited) if !crio => {
            patch.memory_limit_in_bytes = Some(-1);
            patch.memory_swap_limit_in_bytes = asked.swap.map(|_| -1);
        }
        // No field says it, or not this value of it.
        _ => return false,
    }
    true
}

// === impl Asked ===

impl Asked<'_> {
    /// What is to be said of memory and swap together beside a limit of memory, if that is not what the
    /// request says: runtimes take what is not said for no swap. It cannot be less than memory, and who asked
    /// for no more than memory asked for no swap, however little memory it gets.
    fn swap_beside(&self, memory: u64) -> Option<i64> {
        let swap = match (self.swap?, self.memory) {
            (MemoryLimit::Bytes(swap), Some(MemoryLimit::Bytes(asked))) if asked >= swap => {
                MemoryLimit::Bytes(memory)
            }
            (MemoryLimit::Bytes(swap), _) => MemoryLimit::Bytes(swap.max(memory)),
            (MemoryLimit::Unlimited, _) => MemoryLimit::Unlimited,
        };
        Some(swap.as_i64()).filter(|swap| *swap != self.linux.memory_swap_limit_in_bytes)
    }
}

fn bounded<'a>(
    patch: Vec<u8>,
    said: impl Iterator<Item = &'a Entry>,
    limits: Limits<'_>,
) -> Result<Option<Vec<u8>>, PatchError> {
    let patched = patched_length(limits.message, &patch);
    if patched > limits.max_message_bytes {
        return Err(PatchError::TooLarge {
            patched,
            limit: limits.max_message_bytes,
            hooks: said
                .filter(|entry| entry.route == Route::Request)
                .map(|entry| entry.owner)
                .collect(),
        });
    }
    Ok(Some(patch))
}

#[cfg(test)]
mod tests;

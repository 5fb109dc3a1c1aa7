//! The one writer of control-group files: threads of its own.
//!
//! A write to a cgroup file may sleep in the kernel (a cpuset change waits for every CPU), and the
//! data path must not. All writes of a setting of a group go through one thread in order of arrival, so
//! nothing here races with itself, and the two passes of a leveled update see values that nobody else
//! of us changes. It is the same thread for all settings but `memory.high`, and limits of memory that are
//! below what is in use: these are written once that much is reclaimed, which may take many seconds,
//! and pods that start wait for the other thread.

use super::{
    caches::Swept,
    replaced::Replaced,
    threads::{JoinError, Joined, Member, ThreadGroups},
};
use crate::worker::Worker;
use koord_kernel::cgroup::{Applied, Cgroups, Change, Written};
use koord_model::{CgroupPath, CpuBurst, CpuPeriod, CpuQuota, Setting, Value};
use std::{
    collections::{BTreeSet, HashMap},
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};
use tokio::sync::oneshot;

/// Values that are read in one go, while which nothing is written.
const READ_AT_ONCE: usize = 256;

/// The stack of a thread, in bytes.
const STACK: usize = 256 << 10;

/// What both threads have to know of what the other does.
#[derive(Debug, Default)]
struct Shared {
    replaced: Replaced,
    /// Groups whose limits of memory wait for the thread that reclaims, or are written by it, and how
    /// many: later ones come behind them.
    reclaiming: HashMap<CgroupPath, usize>,
}

/// What became of a change.
#[derive(Debug)]
pub struct Outcome {
    pub applied: Applied,
    /// What our first value replaced there, if it is known, whoever was told at the time.
    pub first: Option<Written>,
}

/// Changes of one leveled update.
struct Batch {
    changes: Vec<Change>,
    done: oneshot::Sender<Vec<Outcome>>,
}

enum Job {
    Apply(Batch),
    Join {
        members: Vec<Member>,
        done: oneshot::Sender<Vec<Result<Joined, JoinError>>>,
    },
    Keep {
        wanted: BTreeSet<String>,
        done: oneshot::Sender<Swept>,
    },
    Read {
        wanted: Vec<(CgroupPath, Setting)>,
        done: oneshot::Sender<Vec<Option<String>>>,
    },
}

/// The writer's threads. Where one cannot be had or panicked, the answer is the empty one: nothing
/// was done and nothing is known.
#[derive(Debug)]
pub struct Writer {
    jobs: Worker<Job>,
    /// Those that reclaim.
    slow: Worker<Batch>,
    cgroups: Arc<Cgroups>,
    shared: Arc<Mutex<Shared>>,
}

// === impl Writer ===

impl Writer {
    /// One whose threads start with the first job.
    pub fn new(cgroups: Cgroups, mut groups: ThreadGroups) -> Self {
        let cgroups = Arc::new(cgroups);
        let shared = Arc::<Mutex<Shared>>::default();
        let (tree, known) = (cgroups.clone(), shared.clone());
        let jobs = Worker::new("cgroup-writer", STACK, move |job| {
            run(&tree, (&mut groups, &known), job);
        });
        let (tree, known) = (cgroups.clone(), shared.clone());
        let slow = Worker::new("memory-reclaim", STACK, move |batch: Batch| {
            let changes = batch.changes.clone();
            batch.run(&tree, &known);
            lock(&known).has_reclaimed(&changes);
        });
        Self {
            jobs,
            slow,
            cgroups,
            shared,
        }
    }

    /// Starts the threads now, while they can be had.
    pub fn start(&self) {
        self.jobs.start();
        self.slow.start();
    }

    /// The tree, for questions that read at most a file or two.
    pub fn cgroups(&self) -> &Cgroups {
        &self.cgroups
    }

    /// Whether a value is in force, a quota in whatever period; reads at most a file or two.
    pub fn holds(&self, at: &CgroupPath, value: &Value) -> bool {
        let period = || self.cgroups.period(at).unwrap_or(CpuPeriod::DEFAULT);
        let scaled = match value {
            Value::CpuQuota(quota) => quota.in_period(period()).map(Value::from),
            Value::CpuBurst(burst) => Some(burst.in_period(period()).into()),
            other => Some(other.clone()),
        };
        scaled.is_some_and(|value| self.cgroups.holds(at, &value))
    }

    /// Brings every change to the kernel, wide ones first from the top, narrow ones from the
    /// bottom; values that are there already are not written. One answer per change, in order.
    pub async fn apply(&self, changes: Vec<Change>) -> Vec<Outcome> {
        let are_slow = changes.iter().map(|it| self.is_slow(it));
        let are_slow: Vec<bool> = are_slow.collect();
        let mut reclaim = are_slow.iter();
        let (slow, others) = changes
            .into_iter()
            .partition(|_| *reclaim.next().expect("one for each change"));
        let (slow, others) = tokio::join!(
            batch(&self.slow, slow, |batch| batch),
            batch(&self.jobs, others, Job::Apply),
        );
        if slow.len() + others.len() < are_slow.len() {
            // One of them did nothing, and which changes the other's answers are of could not be told.
            return Vec::new();
        }
        let (mut slow, mut others) = (slow.into_iter(), others.into_iter());
        let mut answers = Vec::with_capacity(are_slow.len());
        for is_slow in are_slow {
            answers.extend(if is_slow { slow.next() } else { others.next() });
        }
        answers
    }

    /// Whether a change is for the thread that reclaims, which is told that it comes.
    fn is_slow(&self, change: &Change) -> bool {
        let reclaims = self.cgroups.reclaims(change);
        if change.value.setting() != Setting::MemoryLimit {
            return reclaims;
        }
        let mut shared = lock(&self.shared);
        let is_slow = reclaims || shared.reclaiming.contains_key(&change.at);
        if is_slow {
            *shared.reclaiming.entry(change.at.clone()).or_default() += 1;
        }
        is_slow
    }

    /// Brings the threads of control groups into groups. One answer for each, in order.
    pub async fn join(&self, members: Vec<Member>) -> Vec<Result<Joined, JoinError>> {
        let answer = self.jobs.ask(|done| Job::Join { members, done }).await;
        answer.unwrap_or_default()
    }

    /// Removes all groups of ours that share caches but these.
    pub async fn keep(&self, wanted: BTreeSet<String>) -> Swept {
        let answer = self.jobs.ask(|done| Job::Keep { wanted, done }).await;
        answer.unwrap_or_default()
    }

    /// What the kernel holds now, in its own words; `None` where it cannot be read.
    /// Asked for in parts, between which whatever else waits has its turn.
    pub async fn read(&self, wanted: &[(CgroupPath, Setting)]) -> Vec<Option<String>> {
        let mut read = Vec::with_capacity(wanted.len());
        for part in wanted.chunks(READ_AT_ONCE) {
            let wanted = part.to_vec();
            match self.jobs.ask(|done| Job::Read { wanted, done }).await {
                Some(values) => read.extend(values),
                // What comes after it would be taken for this part.
                None => break,
            }
        }
        read
    }
}

// === impl Shared ===

impl Shared {
    /// The limits among these are written, or could not be.
    fn has_reclaimed(&mut self, changes: &[Change]) {
        let is_limit = |it: &&Change| it.value.setting() == Setting::MemoryLimit;
        for Change { at, .. } in changes.iter().filter(is_limit) {
            if let Some(left) = self.reclaiming.get_mut(at) {
                *left -= 1;
                if *left == 0 {
                    self.reclaiming.remove(at);
                }
            }
        }
    }
}

fn lock(shared: &Mutex<Shared>) -> MutexGuard<'_, Shared> {
    // A job that panicked has its own changes in doubt and nothing else.
    shared.lock().unwrap_or_else(PoisonError::into_inner)
}

// === impl Batch ===

impl Batch {
    fn run(self, cgroups: &Cgroups, shared: &Mutex<Shared>) {
        let Self { changes, done } = self;
        let applied = apply_in_periods(cgroups, &mut changes.clone());
        let replaced = &mut lock(shared).replaced;
        let outcomes = changes.iter().zip(applied);
        let outcomes = outcomes.map(|(change, applied)| Outcome {
            first: replaced.hear(cgroups, change, &applied),
            applied,
        });
        // Whoever asked may have gone away; its answer then has no reader, and that is fine.
        done.send(outcomes.collect()).ok();
    }
}

/// Has changes done by one of the threads.
async fn batch<J: Send + 'static>(
    worker: &Worker<J>,
    changes: Vec<Change>,
    job: impl FnOnce(Batch) -> J,
) -> Vec<Outcome> {
    if changes.is_empty() {
        return Vec::new();
    }
    let answer = worker.ask(|done| job(Batch { changes, done })).await;
    answer.unwrap_or_default()
}

fn run(cgroups: &Cgroups, (groups, shared): (&mut ThreadGroups, &Mutex<Shared>), job: Job) {
    // Whoever asked may have gone away; its answer then has no reader, and that is fine.
    match job {
        Job::Apply(batch) => batch.run(cgroups, shared),
        Job::Join { members, done } => {
            groups.caches.look_anew();
            let join = |member| groups.join(cgroups, member);
            done.send(members.iter().map(join).collect()).ok();
        }
        Job::Keep { wanted, done } => {
            done.send(groups.caches.keep(&wanted)).ok();
        }
        Job::Read { wanted, done } => {
            groups.caches.look_anew();
            let mut read = |(at, setting): &(CgroupPath, Setting)| match setting {
                Setting::CoreSched => groups.cores.describe(cgroups, at),
                Setting::Resctrl => groups.caches.describe(cgroups, at),
                Setting::OomScoreAdj => groups.oom_scores.describe(cgroups, at),
                setting if !setting.has_file() => None,
                setting => cgroups.raw(at, *setting).ok().map(|(_, text)| text),
            };
            done.send(wanted.iter().map(&mut read).collect()).ok();
        }
    }
}

/// The period of a directory before its quota was written.
struct Before {
    period: CpuPeriod,
    /// It has another now.
    replaced: bool,
}

/// Applies changes whose quotas are for periods of 100 ms, as decisions count them, where a kubelet
/// may have been told another length. Answers count them the same way.
fn apply_in_periods(cgroups: &Cgroups, changes: &mut [Change]) -> Vec<Applied> {
    let mut befores = Vec::with_capacity(changes.len());
    for change in &mut *changes {
        befores.push(in_period(cgroups, change));
    }
    for index in 0..changes.len() {
        if let Value::CpuBurst(burst) = changes[index].value {
            changes[index].value = possible(cgroups, burst, &changes[index].at, changes).into();
        }
    }
    let mut applied = cgroups.apply(changes);
    for ((change, applied), before) in changes.iter().zip(&mut applied).zip(befores) {
        if let Ok(Written::Changed {
            old: Value::CpuBurst(burst),
        }) = applied
        {
            let period = cgroups.period(&change.at).unwrap_or(CpuPeriod::DEFAULT);
            *burst = burst.of_period(period);
        }
        if let (Some(before), Value::CpuQuota(quota)) = (before, &change.value) {
            let old = |quota: CpuQuota| quota.of_period(before.period).into();
            match applied {
                Ok(Written::Changed { old: value }) => {
                    if let Value::CpuQuota(quota) = *value {
                        *value = old(quota);
                    }
                }
                // The number is the same, the share is not.
                Ok(Written::Equal) if before.replaced => {
                    *applied = Ok(Written::Changed { old: old(*quota) });
                }
                // The number that is there belongs to the period that was.
                Err(_) if before.replaced => {
                    cgroups.set_period(&change.at, before.period);
                }
                _ => {}
            }
        }
    }
    applied
}

/// Scales a quota to the period of its directory; `None` if this is no quota. A share that is too
/// small for that period gets one of 100 ms; where the kernel refuses that, because a group below
/// would have a greater share, it gets the least that the kernel takes.
fn in_period(cgroups: &Cgroups, change: &mut Change) -> Option<Before> {
    let Value::CpuQuota(quota) = &mut change.value else {
        return None;
    };
    let period = cgroups.period(&change.at).unwrap_or(CpuPeriod::DEFAULT);
    let scaled = quota.in_period(period);
    let replaced = scaled.is_none() && cgroups.set_period(&change.at, CpuPeriod::DEFAULT);
    if !replaced {
        *quota = scaled.unwrap_or(CpuQuota::Micros(CpuQuota::MIN_MICROS));
    }
    Some(Before { period, replaced })
}

/// A burst in the period of its directory, as far as it goes with the quota that the directory will
/// have: the kernel refuses more, and the kubelet may have given a pod less than its containers have
/// together.
fn possible(cgroups: &Cgroups, burst: CpuBurst, at: &CgroupPath, changes: &[Change]) -> CpuBurst {
    let of_directory = changes.iter().filter(|change| change.at == *at);
    let mut decided = of_directory.filter_map(|change| match change.value {
        Value::CpuQuota(quota) => Some(quota),
        _ => None,
    });
    let held = || match cgroups.read(at, Setting::CpuQuota) {
        Ok(Value::CpuQuota(quota)) => quota,
        // Whatever is wrong is told by the write.
        _ => CpuQuota::Unlimited,
    };
    let quota = decided.next().unwrap_or_else(held);
    let period = cgroups.period(at).unwrap_or(CpuPeriod::DEFAULT);
    burst.in_period(period).within(quota)
}

#[cfg(test)]
mod tests;

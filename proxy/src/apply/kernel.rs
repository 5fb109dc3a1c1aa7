//! The one writer of control-group files: threads of its own.
//!
//! A write to a cgroup file may sleep in the kernel (a cpuset change waits for every CPU), and the
//! data path must not. All writes of a setting of a group go through one thread in order of arrival,
//! so nothing here races with itself, and the two passes of a leveled update see values that nobody
//! else of us changes. It is the same thread for all settings but limits of memory, `memory.high` among
//! them, that are below what is in use: these are written once that much is reclaimed, which may take
//! many seconds or never end. Calls do not wait for it, and a few threads do it, so that others do not
//! wait for one whose memory cannot be reclaimed. Nor is it for settings of block devices, which have one
//! more that no call waits for: the kernel writes them once the device's queue is entered, which never
//! comes where it is frozen. Nor do calls wait where another brings the threads of pods into groups: a pod
//! may have thousands, and leave its group as fast as it is brought back.

pub(crate) use super::progress::Standing;

use super::{
    caches::Swept,
    periods::{self, Replacement},
    progress::{InHand, Progress},
    reclaiming::{Reclaiming, UnderWay},
    replaced::{Replaced, Undo},
    threads::{JoinError, Joined, Member, ThreadGroups},
};
use crate::worker::Worker;
use koord_kernel::cgroup::{Applied, Cgroups, Change, Generation, Marked, Original, Written};
use koord_model::{CgroupPath, Setting, Value};
use std::{
    array,
    collections::BTreeSet,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
    time::{Duration, Instant},
};
use tokio::sync::oneshot;

/// Values that are read in one go, while which nothing is written.
const READ_AT_ONCE: usize = 256;

/// How long members are brought into their groups in one go, or it is read which those of their threads are:
/// the one that takes longer is the last, and whatever else waits has its turn before the next.
const JOIN_AT_ONCE: Duration = Duration::from_millis(50);

/// The stack of a thread, in bytes.
const STACK: usize = 256 << 10;

/// Threads that reclaim. Each that stands still is one less for all others.
pub const RECLAIMERS: usize = 4;

/// What a group had before our values; `None` if that cannot be read now.
pub type Recalled = Option<Vec<Original>>;

/// The settings of a container that are by us; `None` if that cannot be read now.
pub type RecalledMarks = Option<ContainerMarks>;

/// What a container's groups are marked with.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ContainerMarks {
    /// Settings of which a value of ours was there.
    pub ours: BTreeSet<Setting>,
    /// Those of which one was there before, which the spec of its runtime may still have.
    pub in_spec: BTreeSet<Setting>,
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
    /// See [`Writer::write_devices`].
    ours: Vec<Change>,
    /// But for limits of memory that reclaim.
    in_hand: Option<InHand>,
    /// Later limits of the group come behind it.
    under_way: Option<UnderWay>,
    done: oneshot::Sender<Vec<Outcome>>,
}

enum Job {
    Apply(Batch),
    /// Says when all that was asked for before is done.
    Reach {
        done: oneshot::Sender<()>,
    },
    Read(Read, InHand),
    Recall {
        groups: Vec<CgroupPath>,
        done: oneshot::Sender<Vec<Recalled>>,
    },
    Marks {
        groups: Vec<CgroupPath>,
        done: oneshot::Sender<Vec<RecalledMarks>>,
    },
}

/// What is done to the groups that threads are in.
enum ThreadJob {
    Join {
        members: Vec<Member>,
        /// Who else is in groups of cores; `None` if nobody was asked.
        others: Option<Arc<[Member]>>,
        in_hand: Option<InHand>,
        /// Answers for the first of the members, as many as there was time for.
        done: oneshot::Sender<Vec<Result<Joined, JoinError>>>,
    },
    Keep {
        wanted: BTreeSet<String>,
        done: oneshot::Sender<Swept>,
    },
    /// Answers for the first of those that are wanted, as many as there was time for.
    Read {
        read: Read,
        /// Of a question of several parts the later ones count on what the first has seen.
        is_first: bool,
    },
}

struct Read {
    wanted: Vec<(CgroupPath, Setting)>,
    done: oneshot::Sender<Vec<Option<String>>>,
}

/// The writer's threads. Where one cannot be had or panicked, there is no answer, or an empty one where
/// each change would have one: nothing was done and nothing is known.
#[derive(Debug)]
pub struct Writer {
    jobs: Worker<Job>,
    /// Those that reclaim.
    slow: [Worker<Batch>; RECLAIMERS],
    /// That for block devices, of which one may be dead.
    devices: Worker<Batch>,
    /// Those about threads, of which a pod may have as many as it wants.
    threads: Worker<ThreadJob>,
    reclaiming: Reclaiming,
    /// Of the thread for all else.
    progress: Progress,
    /// Of that for block devices.
    device_progress: Progress,
    /// Of that about threads.
    thread_progress: Progress,
    cgroups: Arc<Cgroups>,
}

// === impl ContainerMarks ===

impl ContainerMarks {
    pub fn retain(&mut self, stays: impl Fn(Setting) -> bool) {
        self.ours.retain(|setting| stays(*setting));
        self.in_spec.retain(|setting| stays(*setting));
    }
}

// === impl Writer ===

impl Writer {
    /// One whose threads start with the first job.
    pub fn new(cgroups: Cgroups, mut groups: ThreadGroups) -> Self {
        let cgroups = Arc::new(cgroups);
        let replaced = Arc::<Mutex<Replaced>>::default();
        let (tree, known) = (cgroups.clone(), replaced.clone());
        let jobs = Worker::awaited("cgroup-writer", STACK, move |job| run(&tree, &known, job));
        let tree = cgroups.clone();
        let threads = Worker::new("thread-groups", STACK, move |job| {
            run_for_threads(&tree, &mut groups, job);
        });
        let slow = array::from_fn(|_| {
            let (tree, known) = (cgroups.clone(), replaced.clone());
            Worker::new("memory-reclaim", STACK, move |batch: Batch| {
                batch.run(&tree, &known);
            })
        });
        let (tree, known) = (cgroups.clone(), replaced);
        let devices = Worker::new("device-writer", STACK, move |batch: Batch| {
            batch.run(&tree, &known);
        });
        Self {
            jobs,
            slow,
            devices,
            threads,
            reclaiming: Reclaiming::default(),
            progress: Progress::default(),
            device_progress: Progress::default(),
            thread_progress: Progress::default(),
            cgroups,
        }
    }

    /// Starts the threads now, while they can be had; that for threads of pods only if something will
    /// be `about_threads`. Otherwise it starts with its first job, which hardly ever comes then, as that for
    /// block devices always does.
    pub fn start(&self, about_threads: bool) {
        self.jobs.start();
        for slow in &self.slow {
            slow.start();
        }
        if about_threads {
            self.threads.start();
        }
    }

    /// The tree, for questions that read at most a file or two.
    pub fn cgroups(&self) -> &Cgroups {
        &self.cgroups
    }

    /// Whether a value is in force, a quota in whatever period; `None` if that cannot be found out
    /// now. Reads at most a file or two.
    pub fn holds(&self, at: &CgroupPath, value: &Value) -> Option<bool> {
        periods::holds(&self.cgroups, at, value)
    }

    /// What a group has, a quota per 100 ms; `None` if that cannot be found out now. Shares have become a
    /// weight on cgroup v2, which does not tell them.
    pub fn held(&self, at: &CgroupPath, setting: Setting) -> Option<Value> {
        let is_weight = setting == Setting::CpuShares
            && self.cgroups.generation(setting) == Some(Generation::V2);
        if is_weight {
            return None;
        }
        match self.cgroups.read(at, setting).ok()? {
            Value::CpuQuota(quota) => Some(quota.of_period(self.cgroups.period(at).ok()?).into()),
            other => Some(other),
        }
    }

    /// Whether a value of ours is there, or nothing else is since: a group that was just idle has the shares
    /// that the kernel gives it. `None` if that cannot be found out now.
    pub fn has_left(&self, at: &CgroupPath, ours: &Value) -> Option<bool> {
        let is_there = self.holds(at, ours)?;
        if is_there || *ours != Value::CpuIdle(true) {
            return Some(is_there);
        }
        match self.cgroups.read(at, Setting::CpuShares).ok()? {
            Value::CpuShares(shares) => Some(self.cgroups.is_kernels_default(shares)),
            _ => Some(false),
        }
    }

    /// What these groups had before our values, and which those are, by us or by who was here before us.
    /// One answer for each, in order, without those whose notes cannot be read now; `None` if there is no
    /// thread to find out.
    pub async fn recall(&self, groups: Vec<CgroupPath>) -> Option<Vec<Recalled>> {
        self.jobs.ask(|done| Job::Recall { groups, done }).await
    }

    /// What of these containers' groups, and of their threads, is by us or by who was here before us. One
    /// answer for each, in order; `None` if there is no thread to find out.
    pub async fn marks(&self, groups: Vec<CgroupPath>) -> Option<Vec<RecalledMarks>> {
        self.jobs.ask(|done| Job::Marks { groups, done }).await
    }

    /// Those for [`reclaim`](Self::reclaim), and those for [`write`](Self::write).
    pub fn split(&self, changes: Vec<Change>) -> (Vec<Change>, Vec<Change>) {
        changes.into_iter().partition(|it| self.is_slow(it))
    }

    /// Whether a change is for a thread that reclaims.
    fn is_slow(&self, change: &Change) -> bool {
        let comes_behind = is_limit(change) && self.reclaiming.has(&change.at);
        comes_behind || self.cgroups.reclaims(change)
    }

    /// Brings every change to the kernel, wide ones first from the top, narrow ones from the
    /// bottom; values that are there already are not written. One answer per change, in order. None
    /// of them is to have memory reclaimed, see [`split`](Self::split), or is of block devices.
    pub async fn write(&self, changes: Vec<Change>) -> Vec<Outcome> {
        let Some(first) = changes.first() else {
            return Vec::new();
        };
        let in_hand = self.progress.begin(&first.at, first.value.setting());
        let batch = |done| Job::Apply(Batch::new((changes, Vec::new()), in_hand, done));
        self.jobs.ask(batch).await.unwrap_or_default()
    }

    /// The same of block devices, by the thread for these. Some changes are written only over what is `ours`
    /// of the same setting of the same group: where that is not in force right before, whatever is stays,
    /// and is said to be equal.
    pub async fn write_devices(&self, changes: Vec<Change>, ours: Vec<Change>) -> Vec<Outcome> {
        let Some(first) = changes.first() else {
            return Vec::new();
        };
        let in_hand = self.device_progress.begin(&first.at, first.value.setting());
        let batch = |done| Batch::new((changes, ours), in_hand, done);
        self.devices.ask(batch).await.unwrap_or_default()
    }

    /// Whether somebody has given up waiting for the thread that [writes](Self::write), after 50 ms or more,
    /// and it has done nothing since.
    pub fn is_late(&self) -> bool {
        self.jobs.is_late()
    }

    /// The same of the thread that brings threads into groups.
    pub fn is_late_with_threads(&self) -> bool {
        self.threads.is_late()
    }

    /// Where the thread stands that [writes](Self::write); `None` if it has nothing in hand.
    pub(crate) fn standing(&self) -> Option<Standing> {
        self.progress.standing()
    }

    /// Whether that thread has anything to write.
    pub(crate) fn is_writing(&self) -> bool {
        self.progress.is_writing()
    }

    /// Where the thread stands that writes to block devices.
    pub(crate) fn standing_of_devices(&self) -> Option<Standing> {
        self.device_progress.standing()
    }

    /// The same of the thread that brings threads into groups.
    pub(crate) fn standing_of_threads(&self) -> Option<Standing> {
        self.thread_progress.standing()
    }

    /// Whether one of the [`RECLAIMERS`] is there, and has not to be waited for.
    pub fn can_reclaim(&self, thread: usize) -> bool {
        self.slow[thread].start()
    }

    /// The same by one of the [`RECLAIMERS`], for a limit that may have memory reclaimed; whoever asks
    /// gives no group to two of them. It comes behind limits of its group that were asked for before,
    /// which may still be with the thread that writes all else, and only if it `is_wanted` then. No
    /// answer if it is not.
    pub async fn reclaim(
        &self,
        thread: usize,
        change: Change,
        is_wanted: impl FnOnce() -> bool,
    ) -> Option<Outcome> {
        // From here on limits of the group come behind it, so none is written after the question and
        // before it.
        let under_way = self.reclaiming.begin(change.at.clone());
        self.jobs.ask(|done| Job::Reach { done }).await;
        if !is_wanted() {
            return None;
        }
        let batch = |done| Batch {
            changes: vec![change],
            ours: Vec::new(),
            in_hand: None,
            under_way: Some(under_way),
            done,
        };
        let outcomes = self.slow[thread].ask(batch).await;
        outcomes?.into_iter().next()
    }

    /// Brings the threads of control groups into groups. One answer for each, in order, and fewer if there is
    /// no thread left to do it. A group of cores of which nobody is known to have a cookie is not begun: that
    /// takes [`join_beside`](Self::join_beside).
    ///
    /// A member may take long, as its container likes. So they are brought in by parts, between which
    /// whatever else waits has its turn, newer decisions among it: each part after the first is asked for
    /// only while somebody waits, and for members that are still wanted: so many of those that are left, from
    /// the first one on, as `still_wanted` says. Answers end with one that is not.
    pub async fn join(
        &self,
        members: Vec<Member>,
        still_wanted: impl Fn(&[Member]) -> usize,
    ) -> Vec<Result<Joined, JoinError>> {
        self.join_job(members, None, still_wanted).await
    }

    /// The same where a group of cores may be begun: with the cookie that one of the `others` in it has and
    /// none of those in other groups, or with a new one.
    pub async fn join_beside(
        &self,
        members: Vec<Member>,
        others: Vec<Member>,
        still_wanted: impl Fn(&[Member]) -> usize,
    ) -> Vec<Result<Joined, JoinError>> {
        self.join_job(members, Some(others.into()), still_wanted)
            .await
    }

    async fn join_job(
        &self,
        mut members: Vec<Member>,
        others: Option<Arc<[Member]>>,
        still_wanted: impl Fn(&[Member]) -> usize,
    ) -> Vec<Result<Joined, JoinError>> {
        let begin = |it: &Member| self.thread_progress.begin(&it.at, it.group.setting());
        let mut joined = Vec::with_capacity(members.len());
        loop {
            let left = &members[joined.len()..];
            let in_hand = left.first().map(begin);
            let join = |done| ThreadJob::Join {
                members: left.to_vec(),
                others: others.clone(),
                in_hand,
                done,
            };
            let part = self.threads.ask(join).await.unwrap_or_default();
            let answered = part.len();
            joined.extend(part);
            // What is decided of the others may be another thing by now.
            let wanted = still_wanted(&members[joined.len()..]);
            members.truncate(joined.len() + wanted);
            if answered == 0 || wanted == 0 {
                return joined;
            }
        }
    }

    /// Removes all groups of ours that share caches but these; `None` if there is no thread to do it.
    pub async fn keep(&self, wanted: BTreeSet<String>) -> Option<Swept> {
        let keep = |done| ThreadJob::Keep { wanted, done };
        self.threads.ask(keep).await
    }

    /// What the kernel holds now, in its own words; `None` where it cannot be read, and nothing from where
    /// on there is no thread to read it.
    /// Asked for in parts, between which whatever else waits has its turn.
    pub async fn read(&self, wanted: &[(CgroupPath, Setting)]) -> Vec<Option<String>> {
        let mut read = Vec::with_capacity(wanted.len());
        for part in wanted.chunks(READ_AT_ONCE) {
            let is_of_threads = |(_, setting): &(_, Setting)| setting.is_of_threads();
            let (threads, files) = part.iter().cloned().partition(is_of_threads);
            let threads = self.read_threads(threads);
            let files = asked(&self.jobs, files, |read| {
                let (at, setting) = &read.wanted[0];
                let in_hand = self.progress.begin_to_read(at, *setting);
                Job::Read(read, in_hand)
            });
            let (Some(threads), Some(files)) = tokio::join!(threads, files) else {
                // What comes after it would be taken for this part.
                break;
            };
            let (mut threads, mut files) = (threads.into_iter(), files.into_iter());
            read.extend(part.iter().map(|it| match is_of_threads(it) {
                true => threads.next().flatten(),
                false => files.next().flatten(),
            }));
        }
        read
    }

    async fn read_threads(
        &self,
        wanted: Vec<(CgroupPath, Setting)>,
    ) -> Option<Vec<Option<String>>> {
        let mut read = Vec::with_capacity(wanted.len());
        while read.len() < wanted.len() {
            let left = wanted[read.len()..].to_vec();
            let is_first = read.is_empty();
            let job = |read| ThreadJob::Read { read, is_first };
            read.extend(asked(&self.threads, left, job).await?);
        }
        Some(read)
    }

    /// From now on no thread for values or for threads of pods can be had, or one can again.
    #[cfg(test)]
    pub(crate) fn deny_threads(&self, is_denied: bool) {
        self.jobs.deny(is_denied);
        self.threads.deny(is_denied);
    }
}

// === impl Batch ===

impl Batch {
    /// One for a thread whose steps are noted.
    fn new(
        (changes, ours): (Vec<Change>, Vec<Change>),
        in_hand: InHand,
        done: oneshot::Sender<Vec<Outcome>>,
    ) -> Self {
        Self {
            changes,
            ours,
            in_hand: Some(in_hand),
            under_way: None,
            done,
        }
    }

    fn run(self, cgroups: &Cgroups, replaced: &Mutex<Replaced>) {
        let Self {
            mut changes,
            ours,
            in_hand,
            under_way,
            done,
        } = self;
        let left = leave(cgroups, &mut changes, &ours);
        let begins = |change: &Change| {
            if let Some(in_hand) = &in_hand {
                in_hand.step(&change.at, change.value.setting());
            }
        };
        let mut undo: Vec<Option<Undo>> = changes.iter().map(|_| None).collect();
        let expect = |index: usize, replacement: &Replacement| {
            undo[index] = Some(lock(replaced).expect(cgroups, replacement));
        };
        let applied = periods::apply(cgroups, &mut changes.clone(), begins, expect);
        let mut replaced = lock(replaced);
        let outcomes = changes.iter().zip(applied).zip(undo);
        let outcomes = outcomes.map(|((change, applied), undo)| Outcome {
            first: replaced.hear(cgroups, change, &applied, undo),
            applied,
        });
        let mut outcomes: Vec<_> = outcomes.collect();
        for index in left {
            let (applied, first) = (Ok(Written::Equal), None);
            outcomes.insert(index, Outcome { applied, first });
        }
        drop((under_way, in_hand));
        // Whoever asked may have gone away; its answer then has no reader, and that is fine.
        done.send(outcomes).ok();
        // No answer waits for that.
        replaced.forget_the_gone(cgroups);
    }
}

/// A job that panicked has its own changes in doubt and nothing else.
fn lock(replaced: &Mutex<Replaced>) -> MutexGuard<'_, Replaced> {
    replaced.lock().unwrap_or_else(PoisonError::into_inner)
}

fn is_limit(change: &Change) -> bool {
    let setting = change.value.setting();
    [Setting::MemoryLimit, Setting::MemoryHigh].contains(&setting)
}

/// Takes out what would be written over something that is not `ours` any more. Where each was, in order.
fn leave(cgroups: &Cgroups, changes: &mut Vec<Change>, ours: &[Change]) -> Vec<usize> {
    let is_left = |change: &Change| {
        let of = |it: &&Change| it.at == change.at && it.value.setting() == change.value.setting();
        let ours = ours.iter().find(of);
        ours.is_some_and(|it| cgroups.holds(&it.at, &it.value) != Some(true))
    };
    let places = 0..changes.len();
    let left: Vec<usize> = places.filter(|&it| is_left(&changes[it])).collect();
    for index in left.iter().rev() {
        changes.remove(*index);
    }
    left
}

/// Has one of the threads read values; none of nothing.
async fn asked<J: Send + 'static>(
    worker: &Worker<J>,
    wanted: Vec<(CgroupPath, Setting)>,
    job: impl FnOnce(Read) -> J,
) -> Option<Vec<Option<String>>> {
    if wanted.is_empty() {
        return Some(Vec::new());
    }
    worker.ask(|done| job(Read { wanted, done })).await
}

fn run(cgroups: &Cgroups, replaced: &Mutex<Replaced>, job: Job) {
    // Whoever asked may have gone away; its answer then has no reader, and that is fine.
    match job {
        Job::Apply(batch) => batch.run(cgroups, replaced),
        Job::Reach { done } => {
            done.send(()).ok();
        }
        Job::Read(Read { wanted, done }, in_hand) => {
            let read = |(at, setting): &(CgroupPath, Setting)| {
                in_hand.step(at, *setting);
                match setting.has_file() {
                    true => cgroups.raw(at, *setting).ok().map(|(_, text)| text),
                    false => None,
                }
            };
            let read = wanted.iter().map(read).collect();
            drop(in_hand);
            done.send(read).ok();
        }
        Job::Recall { groups, done } => {
            let mut replaced = lock(replaced);
            let known = groups.iter().map(|at| {
                let mut known = replaced.known(cgroups, at)?;
                known.extend(cgroups.device_originals(at).ok()?);
                Some(known)
            });
            done.send(known.collect()).ok();
        }
        Job::Marks { groups, done } => {
            let marks = groups.iter().map(|at| marks(cgroups, at));
            done.send(marks.collect()).ok();
        }
    }
}

fn marks(cgroups: &Cgroups, at: &CgroupPath) -> RecalledMarks {
    let marks = |of| match cgroups.marks(at, of) {
        Err(error) if error.is_gone() => Some(BTreeSet::new()),
        marks => marks.ok(),
    };
    let mut ours = marks(Marked::Threads)?;
    ours.extend(marks(Marked::Files)?);
    let in_spec = marks(Marked::Spec)?;
    Some(ContainerMarks { ours, in_spec })
}

fn run_for_threads(cgroups: &Cgroups, groups: &mut ThreadGroups, job: ThreadJob) {
    // As above.
    match job {
        ThreadJob::Join {
            members,
            others,
            in_hand,
            done,
        } => {
            groups.caches.look_anew();
            let begun = Instant::now();
            let mut joined = Vec::with_capacity(members.len());
            for member in &members {
                if !joined.is_empty() && begun.elapsed() > JOIN_AT_ONCE {
                    break;
                }
                if let Some(in_hand) = &in_hand {
                    in_hand.step(&member.at, member.group.setting());
                }
                joined.push(groups.join(cgroups, member, others.as_deref()));
            }
            drop(in_hand);
            done.send(joined).ok();
        }
        ThreadJob::Keep { wanted, done } => {
            done.send(groups.caches.keep(&wanted)).ok();
        }
        ThreadJob::Read {
            read: Read { wanted, done },
            is_first,
        } => {
            if is_first {
                groups.caches.look_anew();
            }
            let begun = Instant::now();
            let mut read = Vec::with_capacity(wanted.len());
            for (at, setting) in &wanted {
                if !read.is_empty() && begun.elapsed() > JOIN_AT_ONCE {
                    break;
                }
                read.push(match setting {
                    Setting::CoreSched => groups.cores.describe(cgroups, at),
                    Setting::Resctrl => groups.caches.describe(cgroups, at),
                    _ => groups.oom_scores.describe(cgroups, at),
                });
            }
            done.send(read).ok();
        }
    }
}

#[cfg(test)]
mod tests;

//! What each thread or process of a control group has: the cores that it may share, its part of the
//! caches, how soon it is killed for want of memory.
//!
//! The first two are groups of threads. A group is given to the threads of a control group and to
//! what starts them: on containerd that is the pod's shim, and what it starts is in its groups from
//! the first instruction on.

use super::{
    caches::{Caches, NotPlaced},
    cores::Cores,
    marks::Marks,
    oom_scores::OomScores,
};
use koord_kernel::{
    cgroup::{Cgroups, Members, ReadError, Unseen},
    core_sched::Tid,
    resctrl::ResctrlError,
    task::Procfs,
};
use koord_model::{CacheGroup, CgroupPath, CoreGroup, OomScoreAdj, Setting, Value};
use rustix::io::Errno;
use std::{
    io,
    path::Path,
    process,
    time::{Duration, Instant},
};
use thiserror::Error;

/// A control group whose threads belong to a group.
#[derive(Clone, Debug)]
pub struct Member {
    pub at: CgroupPath,
    pub group: ThreadGroup,
    /// So does the shim that started them.
    pub with_shim: bool,
}

/// A group of one kind or the other: all that have the same score are one too.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ThreadGroup {
    Cores(CoreGroup),
    Caches(CacheGroup),
    OomScore(OomScoreAdj),
}

/// All groups of every kind.
#[derive(Debug)]
pub struct ThreadGroups {
    pub cores: Cores,
    pub caches: Caches,
    pub oom_scores: OomScores,
    pub(crate) marks: Marks,
}

/// What became of a member.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Joined {
    /// All threads were in their group.
    Equal,
    /// Some are in it now that were in another or none, or the group itself was not as it should be.
    Moved,
}

/// Why threads are not in their group.
#[derive(Debug, Error)]
pub enum JoinError {
    #[error("the kernel has no such groups, or this machine no use for them")]
    Unsupported,
    #[error("the threads of cgroup {at} cannot be listed")]
    Unlisted { at: CgroupPath, source: ReadError },
    #[error("the kernel refuses to have thread {thread} of cgroup {at} in {group}")]
    Refused {
        at: CgroupPath,
        thread: Tid,
        group: CoreGroup,
        source: io::Error,
    },
    #[error("who else is in {group} has to be known before it has a cookie")]
    Unmet { group: CoreGroup },
    #[error("cgroup {at} has no part of the cache of its own")]
    Caches {
        at: CgroupPath,
        #[source]
        source: Box<NotPlaced>,
    },
    #[error("the threads of cgroup {at} are in group {within}, but are not monitored apart in it")]
    Unmonitored {
        at: CgroupPath,
        within: String,
        source: Box<ResctrlError>,
    },
    #[error(
        "threads of cgroup {at} change or end as fast as they are brought back: some may not be as \
         decided"
    )]
    Unsettled { at: CgroupPath },
    #[error("not all that runs in cgroup {at} and below it is looked at: {why}")]
    Unseen { at: CgroupPath, why: Unseen },
    #[error("process {process} of cgroup {at} cannot have the OOM score {score}")]
    OomScore {
        at: CgroupPath,
        process: Tid,
        score: OomScoreAdj,
        source: io::Error,
    },
}

// === impl Member ===

impl Member {
    /// Whether it is the same control group in the same group, wherever its shim is looked for.
    pub fn is_same(&self, other: &Self) -> bool {
        (&self.at, &self.group) == (&other.at, &other.group)
    }
}

// === impl ThreadGroup ===

impl ThreadGroup {
    /// The group that a value says, if it says one.
    pub fn of(value: &Value) -> Option<Self> {
        match value {
            Value::CoreSched(group) => Some(Self::Cores(group.clone())),
            Value::Resctrl(group) => Some(Self::Caches(group.clone())),
            Value::OomScoreAdj(score) => Some(Self::OomScore(*score)),
            _ => None,
        }
    }

    pub fn setting(&self) -> Setting {
        match self {
            Self::Cores(_) => Setting::CoreSched,
            Self::Caches(_) => Setting::Resctrl,
            Self::OomScore(_) => Setting::OomScoreAdj,
        }
    }
}

// === impl ThreadGroups ===

impl ThreadGroups {
    /// For a node whose kernel has no groups.
    pub fn none() -> Self {
        Self {
            cores: Cores::none(),
            caches: Caches::none(),
            oom_scores: OomScores::over(Procfs::at(Path::new("/proc"))),
            marks: Marks::default(),
        }
    }

    /// Brings all threads of a member into its group. The `others` are in groups of cores, its own or
    /// another, of which nobody may be known yet; without them no such group is begun.
    ///
    /// # Errors
    ///
    /// As [`Cores::join`], [`Caches::join`] or [`OomScores::give`] does, whichever the group is of.
    pub fn join(
        &mut self,
        cgroups: &Cgroups,
        member: &Member,
        others: Option<&[Member]>,
    ) -> Result<Joined, JoinError> {
        let (at, setting) = (&member.at, member.group.setting());
        let brings_in = self.brings_in(&member.group);
        if brings_in == Some(true) {
            self.marks.make(cgroups, at, setting);
        }
        let joined = match &member.group {
            ThreadGroup::Cores(group) => self.cores.join(cgroups, member, group, others),
            ThreadGroup::Caches(group) => self.caches.join(cgroups, member, group),
            ThreadGroup::OomScore(score) => self.oom_scores.give(cgroups, member, *score),
        };
        if brings_in == Some(false) && joined.is_ok() {
            self.marks.take(cgroups, at, setting);
        }
        joined
    }

    /// Whether threads come into a group by this, or out of all; `None` where none can be in any. A score
    /// that nobody decides any more stays as it is.
    fn brings_in(&self, group: &ThreadGroup) -> Option<bool> {
        let (is_supported, brings_in) = match group {
            ThreadGroup::Cores(group) => (self.cores.is_supported(), *group != CoreGroup::None),
            ThreadGroup::Caches(group) => (self.caches.is_supported(), *group != CacheGroup::Root),
            ThreadGroup::OomScore(_) => return None,
        };
        is_supported.then_some(brings_in)
    }
}

// === impl JoinError ===

impl JoinError {
    /// Whether the control group vanished, as it does with its pod: nothing is wrong then.
    pub fn is_gone(&self) -> bool {
        matches!(self, Self::Unlisted { source, .. } if source.is_gone())
    }

    /// Whether all that were found are as decided, as far as can be told, and others may not be.
    pub fn leaves_some(&self) -> bool {
        matches!(self, Self::Unsettled { .. } | Self::Unseen { .. })
    }

    /// Whether it takes the others of the group.
    pub fn is_unmet(&self) -> bool {
        matches!(self, Self::Unmet { .. })
    }

    /// What the kernel answered, if it was asked.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Refused { source, .. } | Self::OomScore { source, .. } => source.raw_os_error(),
            Self::Caches { source, .. } => source.errno(),
            Self::Unmonitored { source, .. } => source.errno(),
            Self::Unsupported
            | Self::Unlisted { .. }
            | Self::Unmet { .. }
            | Self::Unsettled { .. }
            | Self::Unseen { .. } => None,
        }
    }
}

/// How often the threads of a group are looked at until none is found that is elsewhere: those that one
/// which was elsewhere has started since come later.
const ROUNDS: usize = 16;

/// How long that may take for one member. A pod decides how many threads it has and what they do, and others
/// wait for the thread that looks.
const LONGEST: Duration = Duration::from_millis(250);

/// Threads that are brought in by a look before it is looked at the time: each look brings in some, however
/// slow that is, so that later ones come to an end.
const AT_LEAST: usize = 64;

/// Processes of which each has started the next that are gone through to find who has started the first.
const DEEPEST: usize = 64;

/// A tree that is looked at for as long as there is time.
#[derive(Clone, Copy)]
pub(super) struct Sight<'a> {
    pub(super) cgroups: &'a Cgroups,
    until: Instant,
}

/// How long one look may go on.
#[derive(Debug)]
pub(super) struct Turn {
    until: Instant,
    moved: usize,
    pub(super) is_over: bool,
}

/// What a look at all threads of a member found, the gravest last.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum Found {
    /// All are where they are to be.
    Nothing,
    /// Some have ended before it was known where they are. Where it takes long to find out, that is so of
    /// every pod that starts many.
    Unknown,
    /// Some were not, or have ended as they were asked, and what they have started is where they were.
    Ended,
    /// Some were not, and are now.
    Moved,
}

/// The threads of a member as they were listed, those of its shim first, so that what it starts meanwhile is in
/// the group.
pub(super) struct Listed<'a> {
    pub(super) ids: Vec<Tid>,
    pub(super) unseen: Option<Unseen>,
    at: &'a CgroupPath,
    procfs: Procfs,
    shim: Option<Tid>,
}

// === impl Sight ===

impl<'a> Sight<'a> {
    pub(super) fn until(cgroups: &'a Cgroups, until: Instant) -> Self {
        Self { cgroups, until }
    }

    /// The same tree for no longer than this.
    pub(super) fn within(self, time: Duration) -> Self {
        Self::until(self.cgroups, self.until.min(Instant::now() + time))
    }

    /// For one look, for which others wait no longer than for a member.
    pub(super) fn once(cgroups: &'a Cgroups) -> Self {
        Self::until(cgroups, Instant::now() + LONGEST)
    }

    pub(super) fn threads(self, at: &CgroupPath) -> Result<Members, ReadError> {
        self.cgroups.threads(at, self.until)
    }

    pub(super) fn processes(self, at: &CgroupPath) -> Result<Members, ReadError> {
        self.cgroups.processes(at, self.until)
    }
}

// === impl Turn ===

impl Turn {
    pub(super) fn until(until: Instant) -> Self {
        Self {
            until,
            moved: 0,
            is_over: false,
        }
    }

    /// A tree that is looked at until it is over.
    pub(super) fn sight<'a>(&self, cgroups: &'a Cgroups) -> Sight<'a> {
        Sight::until(cgroups, self.until)
    }

    /// Whether it is over, as so many more were brought in: then nothing is known of those that are left.
    pub(super) fn is_over_after(&mut self, moved: usize) -> bool {
        self.moved += moved;
        if self.moved < AT_LEAST {
            return false;
        }
        self.moved = 0;
        self.is_over = Instant::now() > self.until;
        self.is_over
    }
}

// === impl Listed ===

impl Listed<'_> {
    /// Fails with `ESRCH` for a thread that is not the member's any more, and with another error where that
    /// cannot be found out now. To be asked right before it is moved: numbers are used again, and a pod can see
    /// to it that its own soon are another's.
    pub(super) fn still_has(&self, thread: Tid) -> io::Result<()> {
        let is_of_shim = || {
            self.shim
                .map_or(Ok(false), |shim| self.procfs.is_of_shim(thread, shim))
        };
        let has =
            self.procfs.is_within(thread, self.at)? || is_of_shim()? || has_ourselves(&self.ids);
        if has { Ok(()) } else { Err(Errno::SRCH.into()) }
    }
}

/// Looks until nothing is found. Whether anything was moved; an error if something is moved by each look, or
/// has ended before it was, or some may not have been looked at.
pub(super) fn until_settled(
    at: &CgroupPath,
    mut look: impl FnMut(&mut Turn) -> Result<(Found, Option<Unseen>), JoinError>,
) -> Result<Joined, JoinError> {
    let begun = Instant::now();
    let (mut joined, mut last, mut unseen) = (Joined::Equal, Found::Nothing, None);
    for _ in 0..ROUNDS {
        let mut turn = Turn::until(begun + LONGEST);
        (last, unseen) = look(&mut turn)?;
        match last {
            Found::Nothing => break,
            Found::Unknown | Found::Ended => {}
            Found::Moved => joined = Joined::Moved,
        }
        if begun.elapsed() > LONGEST {
            break;
        }
    }
    let at = || at.clone();
    match (last, unseen) {
        (Found::Ended | Found::Moved, _) => Err(JoinError::Unsettled { at: at() }),
        (Found::Nothing | Found::Unknown, Some(why)) => Err(JoinError::Unseen { at: at(), why }),
        (Found::Nothing | Found::Unknown, None) => Ok(joined),
    }
}

/// Whether a thread or process was no more when the kernel was asked about it.
pub(super) fn has_ended(error: &io::Error) -> bool {
    error.raw_os_error() == Some(Errno::SRCH.raw_os_error())
}

/// Those that are there, for a person; `None` where that cannot be read now, or may not be.
pub(super) fn to_show(listed: Result<Members, ReadError>) -> Option<Vec<Tid>> {
    let Members { ids, unseen } = listed.ok()?;
    let is_closed = ids.is_empty() && unseen == Some(Unseen::Forbidden);
    (!is_closed).then_some(ids)
}

/// Lists the threads of a member.
pub(super) fn of_member<'a>(
    sight: Sight<'_>,
    procfs: &Procfs,
    member: &'a Member,
) -> Result<Listed<'a>, JoinError> {
    let at = &member.at;
    let listed = sight.threads(at);
    let Members { mut ids, unseen } = listed.map_err(|source| JoinError::Unlisted {
        at: at.clone(),
        source,
    })?;
    let shim = || shim_of(procfs, at, &ids);
    let shim = member.with_shim.then(shim).flatten();
    if let Some(shim) = shim {
        ids.splice(0..0, procfs.threads_of(shim).unwrap_or_default());
    }
    Ok(Listed {
        ids,
        unseen,
        at,
        procfs: procfs.clone(),
        shim,
    })
}

/// Whether these are of our own container. The kernel may not show us where that is, and no thread of ours makes
/// it go through all numbers.
fn has_ourselves(ids: &[Tid]) -> bool {
    Tid::try_from(process::id()).is_ok_and(|own| ids.contains(&own))
}

/// The shim that has started these: the parent of one that none of them has started. The first of a
/// container's may be a child of its first process, as numbers are used again. For the same reason one of
/// these may be another container's by now, whose shim is its own: who is still here is asked behind who has
/// started it.
fn shim_of(procfs: &Procfs, at: &CgroupPath, ids: &[Tid]) -> Option<Tid> {
    let is_ours = has_ourselves(ids);
    let starter = |thread: &Tid| {
        let above = procfs.parent_of(*thread).ok()?;
        (is_ours || procfs.is_within(*thread, at).ok()?).then_some(above)
    };
    let mut above = ids.iter().find_map(starter)??;
    for _ in 0..DEEPEST {
        if !ids.contains(&above) {
            return procfs.is_shim(above).then_some(above);
        }
        above = procfs.parent_of(above).ok()??;
    }
    None
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What comes of looks that find this, the last of which goes on, and how many there were.
    fn looked(found: &[Found]) -> (Result<Joined, String>, usize) {
        let at = CgroupPath::parse("kubepods/pod1/c1").unwrap();
        let mut looks = 0;
        let joined = until_settled(&at, |_| {
            looks += 1;
            Ok((*found.get(looks - 1).or(found.last()).unwrap(), None))
        });
        (joined.map_err(|error| error.to_string()), looks)
    }

    #[test]
    fn threads_are_looked_at_until_none_is_found_elsewhere() {
        use Found::{Ended, Moved, Nothing, Unknown};
        assert_eq!(looked(&[Nothing]), (Ok(Joined::Equal), 1));
        assert_eq!(looked(&[Moved, Ended, Nothing]), (Ok(Joined::Moved), 3));
        assert_eq!(looked(&[Moved, Unknown]), (Ok(Joined::Moved), 16));
        let unsettled = "threads of cgroup /kubepods/pod1/c1 change or end as fast as they are brought \
                         back: some may not be as decided";
        assert_eq!(looked(&[Moved]), (Err(unsettled.to_owned()), 16));
        assert_eq!(looked(&[Moved, Ended]), (Err(unsettled.to_owned()), 16));
    }

    #[test]
    fn a_pod_whose_threads_take_long_is_not_looked_at_again_and_again() {
        let at = CgroupPath::parse("kubepods/pod1/c1").unwrap();
        let mut looks = 0;
        let joined = until_settled(&at, |_| {
            looks += 1;
            std::thread::sleep(LONGEST);
            Ok((Found::Moved, None))
        });
        assert!(matches!(joined, Err(JoinError::Unsettled { .. })));
        assert_eq!(looks, 1);
    }

    #[test]
    fn a_look_goes_on_for_its_time_and_brings_some_in_if_that_is_over() {
        let mut turn = Turn::until(Instant::now());
        for _ in 0..3 {
            assert!((1..64).all(|_| !turn.is_over_after(1)));
            assert!(turn.is_over_after(1));
        }
        assert!(turn.is_over_after(512));
        let mut turn = Turn::until(Instant::now() + Duration::from_secs(3_600));
        assert!(!turn.is_over_after(512) && !turn.is_over);
    }

    #[test]
    fn a_pod_of_which_not_all_is_looked_at_is_not_as_decided() {
        let at = CgroupPath::parse("kubepods/pod1/c1").unwrap();
        let many = Unseen::Many { most: 4_096 };
        let mut found = [Found::Moved, Found::Nothing].into_iter();
        let joined = until_settled(&at, |_| Ok((found.next().unwrap(), Some(many))));
        let error = joined.unwrap_err();
        assert_eq!(
            error.to_string(),
            "not all that runs in cgroup /kubepods/pod1/c1 and below it is looked at: \
             there are more than 4096"
        );
        assert!(error.leaves_some() && !error.is_gone());
    }
}

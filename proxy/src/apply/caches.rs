//! Brings threads into groups that share a part of the last-level cache, and keeps the groups.
//!
//! A group is made when its first member comes, and goes when nobody wants it any more: processors
//! have few classes, and each group is one. Groups of ours are known by a mark of their own, so they
//! are found again after a restart, and those of others are never touched.
//!
//! Where a pod is to be monitored, its threads come into a monitoring group within the group of its class
//! too. Whatever comes into a group leaves its monitoring group, and a monitoring group takes threads of
//! the group around it alone: so every look brings threads into the one first and then into the other.
//! Without an id to count by, they are in the group of the class all the same, and this is said.
//!
//! A child is in the groups of its parent. So the threads of a member are looked at until none is found
//! outside, and a pod's shim is in the pod's group: what it starts is from the first instruction on.

use super::threads::{
    Found, JoinError, Joined, Listed, Member, Sight, Turn, has_ended, of_member, to_show,
    until_settled,
};
use koord_kernel::{
    cgroup::Cgroups,
    core_sched::Tid,
    resctrl::{self, Groups, Resctrl, ResctrlError},
    task::Procfs,
};
use koord_model::{CacheClass, CacheClasses, CacheGroup, CacheShares, CgroupPath, ClassGroup};
use std::{
    collections::{BTreeSet, HashMap, HashSet},
    io,
    path::{Path, PathBuf},
};
use thiserror::Error;
use tracing::debug;

/// Why a member is not in its group.
#[derive(Debug, Error)]
pub enum NotPlaced {
    #[error("resctrl is not mounted, and cannot be")]
    Unmounted(#[source] io::Error),
    #[error("its threads share with group {instead}")]
    Shared {
        instead: String,
        source: ResctrlError,
    },
    #[error("its threads stay where they are")]
    Left(#[from] ResctrlError),
}

/// All groups of this node.
#[derive(Debug)]
pub struct Caches {
    procfs: Procfs,
    /// Where they are; `None` if the kernel has none, or they were handed in.
    machine: Option<Machine>,
    /// While somebody is in one.
    groups: Option<Box<dyn Groups>>,
    /// Which threads a group had when it was looked at last; good for one round of members.
    inside: HashMap<String, HashSet<Tid>>,
}

/// Where the kernel shows itself.
#[derive(Debug)]
struct Machine {
    sys_root: PathBuf,
    proc_root: PathBuf,
}

/// The groups that threads are brought into.
struct Place {
    name: String,
    /// The monitoring group within it.
    monitor: Option<String>,
    /// One of them was made, or had other shares.
    changed: bool,
    /// Why it is not the one that was wanted.
    instead_of: Option<ResctrlError>,
    /// Why there is no monitoring group that was wanted.
    unmonitored: Option<ResctrlError>,
}

/// What became of the groups that nobody wants.
#[derive(Debug, Default)]
pub struct Swept {
    pub removed: usize,
    /// Why one of them is still there, the first if there are more.
    pub failed: Option<ResctrlError>,
}

// === impl Caches ===

impl Caches {
    /// Those of this machine, if its kernel has any.
    pub fn of_machine(sys_root: PathBuf, proc_root: PathBuf) -> Self {
        let supported = Resctrl::is_supported(&sys_root);
        Self {
            procfs: Procfs::at(&proc_root),
            machine: supported.then_some(Machine {
                sys_root,
                proc_root,
            }),
            groups: None,
            inside: HashMap::new(),
        }
    }

    pub fn over(groups: impl Groups + 'static, procfs: Procfs) -> Self {
        Self {
            procfs,
            machine: None,
            groups: Some(Box::new(groups)),
            inside: HashMap::new(),
        }
    }

    /// For a node whose processor shares nothing out.
    pub fn none() -> Self {
        Self {
            procfs: Procfs::at(Path::new("/proc")),
            machine: None,
            groups: None,
            inside: HashMap::new(),
        }
    }

    /// Whether the kernel has what this needs.
    pub fn is_supported(&self) -> bool {
        self.machine.is_some() || self.groups.is_some()
    }

    /// A new round of members: who was in which group before it says nothing.
    pub fn look_anew(&mut self) {
        self.inside.clear();
    }

    /// Brings all threads of a member into its group.
    ///
    /// # Errors
    ///
    /// When this machine has no groups, they or the member's threads cannot be read, or the kernel refuses a
    /// mount, a group, its shares or a thread; the threads may then be in the group of a class instead
    /// ([`NotPlaced::Shared`]), or in their own and not monitored apart ([`JoinError::Unmonitored`]). When
    /// not all below the member's control group is looked at ([`JoinError::Unseen`]), or the last look, the
    /// 16th or the one in which 250 ms are over, still finds some that are not as decided
    /// ([`JoinError::Unsettled`]).
    pub fn join(
        &mut self,
        cgroups: &Cgroups,
        member: &Member,
        group: &CacheGroup,
    ) -> Result<Joined, JoinError> {
        if !self.is_supported() {
            return Err(JoinError::Unsupported);
        }
        let prepared = match group {
            CacheGroup::Root => return self.release(cgroups, member),
            CacheGroup::Class(class) => self.prepare_class(class),
            CacheGroup::Pod {
                shares,
                otherwise,
                yields_to,
                ..
            } => {
                let name = group.name().unwrap_or_default();
                self.prepare((&name, shares), *yields_to, otherwise.as_deref())
            }
        };
        let place = prepared.map_err(|source| not_placed(member, source))?;
        let moved = self.bring(cgroups, member, &place)?;
        match (place.instead_of, place.unmonitored) {
            // That it is not monitored where it should not be is the lesser of the two.
            (Some(source), _) => {
                let instead = place.name;
                Err(not_placed(member, NotPlaced::Shared { instead, source }))
            }
            (None, Some(source)) => Err(unmonitored(member, place.name, source)),
            (None, None) if place.changed || moved => Ok(Joined::Moved),
            (None, None) => Ok(Joined::Equal),
        }
    }

    /// Removes the groups of ours that nobody wants. One that cannot be keeps no other.
    pub fn keep(&mut self, wanted: &BTreeSet<String>) -> Swept {
        let mut swept = Swept::default();
        let groups = match self.mounted() {
            Ok(Some(groups)) => groups,
            Ok(None) => return swept,
            Err(error) => {
                swept.failed = Some(error);
                return swept;
            }
        };
        let mut ours = Vec::new();
        for listed in [groups.monitors(), groups.owned()] {
            match listed {
                Ok(names) => ours.extend(names),
                Err(error) => {
                    swept.failed.get_or_insert(error);
                }
            }
        }
        for name in ours.iter().filter(|name| !wanted.contains(*name)) {
            match groups.remove(name) {
                Ok(()) => {
                    swept.removed += 1;
                    debug!(group = name, "a group that nobody wants any more is gone");
                }
                Err(error) => {
                    swept.failed.get_or_insert(error);
                }
            }
        }
        if wanted.is_empty() && swept.failed.is_none() && self.machine.is_some() {
            // Whoever wants to unmount it may.
            self.groups = None;
        }
        swept
    }

    /// The groups in which the threads of a control group are, as a person may read them: the monitoring
    /// group where they are in one.
    pub fn describe(&mut self, cgroups: &Cgroups, at: &CgroupPath) -> Option<String> {
        let groups = self.groups.as_ref()?;
        let mut threads = to_show(Sight::once(cgroups).threads(at))?;
        let mut shown = Vec::new();
        for name in [groups.monitors().ok()?, groups.all().ok()?].concat() {
            let inside = self.inside.entry(name.clone()).or_insert_with(|| {
                let threads = groups.threads(&name).unwrap_or_default();
                threads.into_iter().collect()
            });
            let before = threads.len();
            threads.retain(|thread| !inside.contains(thread));
            if threads.len() < before {
                shown.push(name);
            }
        }
        if !threads.is_empty() {
            shown.push("root".to_owned());
        }
        Some(shown.join(" "))
    }

    /// Makes a group and gives it its shares; where the processor has no class left for it, but for those
    /// that it yields to, the one that takes its place.
    fn prepare(
        &mut self,
        (name, shares): (&str, &CacheShares),
        yields_to: CacheClasses,
        otherwise: Option<&ClassGroup>,
    ) -> Result<Place, NotPlaced> {
        let groups = self.mount().map_err(NotPlaced::Unmounted)?;
        let classes: Vec<_> = yields_to.iter().map(CacheClass::name).collect();
        let left = resctrl::leave_to(groups, &classes, name);
        match left.and_then(|()| made(groups, name, shares)) {
            Ok(place) => Ok(place),
            Err(error) => match otherwise.filter(|_| error.is_for_want_of_classes()) {
                Some(class) => Ok(Place {
                    instead_of: Some(error),
                    ..made_for_class(groups, class)?
                }),
                None => Err(error.into()),
            },
        }
    }

    /// The same of a class, with the monitoring group of its pod.
    fn prepare_class(&mut self, class: &ClassGroup) -> Result<Place, NotPlaced> {
        let groups = self.mount().map_err(NotPlaced::Unmounted)?;
        Ok(made_for_class(groups, class)?)
    }

    /// Brings all threads of a member into a group and the monitoring group within it. Whether there
    /// were any left to move.
    fn bring(
        &mut self,
        cgroups: &Cgroups,
        member: &Member,
        place: &Place,
    ) -> Result<bool, JoinError> {
        let joined = until_settled(&member.at, |turn| {
            let listed = of_member(turn.sight(cgroups), &self.procfs, member)?;
            let in_group = self.add_those_outside(&place.name, &listed, turn);
            let in_group = in_group.map_err(|error| not_placed(member, error))?;
            let in_monitor = match &place.monitor {
                // It takes none of those that are still outside of the group.
                _ if turn.is_over => return Ok((Found::Moved, listed.unseen)),
                Some(monitor) => self.add_those_outside(monitor, &listed, turn),
                None => Ok(Found::Nothing),
            };
            let in_monitor =
                in_monitor.map_err(|error| unmonitored(member, place.name.clone(), error))?;
            Ok((in_group.max(in_monitor), listed.unseen))
        })?;
        Ok(joined == Joined::Moved)
    }

    /// Moves those of these threads into a group that are not in it.
    fn add_those_outside(
        &mut self,
        name: &str,
        listed: &Listed<'_>,
        turn: &mut Turn,
    ) -> Result<Found, ResctrlError> {
        let outside = self.outside(name, &listed.ids)?;
        if outside.is_empty() {
            return Ok(Found::Nothing);
        }
        self.add(name, (listed, &outside), turn)
    }

    /// The threads of these that are not in a group.
    fn outside(&mut self, name: &str, threads: &[Tid]) -> Result<Vec<Tid>, ResctrlError> {
        let known = self.inside.get(name);
        if known.is_some_and(|inside| threads.iter().all(|it| inside.contains(it))) {
            return Ok(Vec::new());
        }
        let Some(groups) = &self.groups else {
            return Ok(Vec::new());
        };
        let inside: HashSet<_> = groups.threads(name)?.into_iter().collect();
        let outside = threads.iter().filter(|it| !inside.contains(it)).copied();
        let outside = outside.collect();
        self.inside.insert(name.to_owned(), inside);
        Ok(outside)
    }

    /// Moves threads into a group that were not in it when it was listed. Whoever had ended by then may have
    /// been.
    fn add(
        &mut self,
        name: &str,
        (listed, threads): (&Listed<'_>, &[Tid]),
        turn: &mut Turn,
    ) -> Result<Found, ResctrlError> {
        self.inside.clear();
        let mut found = Found::Unknown;
        if let Some(groups) = &self.groups {
            for thread in threads {
                match listed.still_has(*thread) {
                    Ok(()) if groups.add(name, *thread)? => found = Found::Moved,
                    // It may be there, and is looked at again.
                    Err(error) if !has_ended(&error) => found = found.max(Found::Ended),
                    Ok(()) | Err(_) => {}
                }
                if turn.is_over_after(1) {
                    return Ok(Found::Moved);
                }
            }
        }
        Ok(found)
    }

    /// Moves the threads of a member out of the groups that are ours.
    fn release(&mut self, cgroups: &Cgroups, member: &Member) -> Result<Joined, JoinError> {
        until_settled(&member.at, |turn| {
            let listed = of_member(turn.sight(cgroups), &self.procfs, member)?;
            let released = self.release_all(&listed, turn);
            let found = released.map_err(|error| not_placed(member, error))?;
            Ok((found, listed.unseen))
        })
    }

    fn release_all(&mut self, listed: &Listed<'_>, turn: &mut Turn) -> Result<Found, ResctrlError> {
        self.inside.clear();
        let Some(groups) = self.mounted()? else {
            return Ok(Found::Nothing);
        };
        let mut found = Found::Nothing;
        for name in groups.owned()? {
            let inside: HashSet<_> = groups.threads(&name)?.into_iter().collect();
            for thread in listed.ids.iter().filter(|it| inside.contains(it)) {
                let has = listed.still_has(*thread).is_ok();
                found = found.max(match has && groups.release(*thread)? {
                    true => Found::Moved,
                    false => Found::Ended,
                });
                if turn.is_over_after(1) {
                    return Ok(Found::Moved);
                }
            }
        }
        Ok(found)
    }

    /// The groups, where the kernel shows them already.
    fn mounted(&mut self) -> Result<Option<&dyn Groups>, ResctrlError> {
        let is_mounted = |machine: &Machine| Resctrl::is_mounted(&machine.sys_root);
        if self.groups.is_none() && !self.machine.as_ref().is_some_and(is_mounted) {
            return Ok(None);
        }
        let groups = self.mount().map(Some);
        groups.map_err(|source| ResctrlError::Unlisted { source })
    }

    /// The groups, which the kernel may first have to be told to show.
    fn mount(&mut self) -> io::Result<&dyn Groups> {
        let groups: Box<dyn Groups> = match (self.groups.take(), &self.machine) {
            (Some(groups), _) => groups,
            (None, Some(machine)) => {
                Box::new(Resctrl::of_machine(&machine.sys_root, &machine.proc_root)?)
            }
            (None, None) => return Err(io::ErrorKind::Unsupported.into()),
        };
        Ok(&**self.groups.insert(groups))
    }
}

// === impl NotPlaced ===

impl NotPlaced {
    /// What the kernel answered, if it was asked.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Unmounted(source) => source.raw_os_error(),
            Self::Shared { source, .. } | Self::Left(source) => source.errno(),
        }
    }
}

fn not_placed(member: &Member, source: impl Into<NotPlaced>) -> JoinError {
    JoinError::Caches {
        at: member.at.clone(),
        source: Box::new(source.into()),
    }
}

fn unmonitored(member: &Member, within: String, source: ResctrlError) -> JoinError {
    JoinError::Unmonitored {
        at: member.at.clone(),
        within,
        source: Box::new(source),
    }
}

/// Makes the group of a class, unless it is there, and the monitoring group of its pod.
fn made_for_class(groups: &dyn Groups, class: &ClassGroup) -> Result<Place, ResctrlError> {
    let mut place = made(groups, class.class.name(), &class.shares)?;
    if let Some(monitor) = class.monitor() {
        match groups.own(&monitor) {
            Ok(made) => {
                place.changed |= made;
                place.monitor = Some(monitor);
            }
            Err(error) => place.unmonitored = Some(error),
        }
    }
    Ok(place)
}

/// Makes a group, unless it is there, and gives it its shares.
fn made(groups: &dyn Groups, name: &str, shares: &CacheShares) -> Result<Place, ResctrlError> {
    let made = groups.own(name)?;
    let shared = groups.share(name, shares)?;
    Ok(Place {
        name: name.to_owned(),
        monitor: None,
        changed: made || shared,
        instead_of: None,
        unmonitored: None,
    })
}

#[cfg(test)]
mod tests;

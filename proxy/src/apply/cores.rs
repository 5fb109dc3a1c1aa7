//! Turns groups of pods into the kernel's cookies, and keeps every thread of a group on its one.
//!
//! A cookie lives as long as a thread that has it, and only from such a thread can another get it.
//! So a group is known by its cookie and by the control groups that belong to it, among whose threads
//! one is looked for that has it still. A group of which nobody is there gets a new cookie, unless
//! the first to come brings one that is nobody else's, or one of those has it that are in the group as
//! well and have not come yet: so groups keep theirs when this process is started anew. Two groups
//! never have one cookie.
//!
//! Who cannot be listed now is waited for. A member may have groups below it that never can be, or be one, as
//! its container likes, and nobody waits for those. Their threads may have any cookie: so none is adopted that
//! they may have as members of another group, and their own group gets another if nobody seen has it.
//!
//! On containerd the pod's shim belongs to the group, too. It starts whatever runs in the pod, and
//! what it starts has its cookie from the first instruction on.

use super::threads::{
    Found, JoinError, Joined, Listed, Member, Sight, ThreadGroup, Turn, has_ended, of_member,
    to_show, until_settled,
};
use koord_kernel::{
    cgroup::{Cgroups, Members},
    core_sched::{Cookie, CoreSched, Tid},
    task::Procfs,
};
use koord_model::{CgroupPath, CoreGroup};
use rustix::io::Errno;
use std::{
    collections::{BTreeSet, HashMap},
    io, iter,
    time::Duration,
};
use tracing::debug;

/// All groups of this node.
#[derive(Debug, Default)]
pub struct Cores {
    machine: Option<Machine>,
    /// What we were started with ourselves is no pod's.
    own: Option<Cookie>,
    groups: HashMap<CoreGroup, Group>,
}

#[derive(Debug)]
struct Machine {
    kernel: Box<dyn CoreSched>,
    procfs: Procfs,
}

#[derive(Debug)]
struct Group {
    cookie: Cookie,
    /// The thread that had it last.
    bearer: Tid,
    members: BTreeSet<CgroupPath>,
    /// How many were left when those that have gone were forgotten last.
    left: usize,
}

/// Whether somebody has the cookie of a group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Held {
    /// By the bearer.
    Known,
    /// By nobody who is seen, and some are not looked at.
    Unseen,
    Nobody,
}

/// How long it is looked in one member of a group for whoever has the cookie, for another's sake.
const ANOTHERS: Duration = Duration::from_millis(10);

/// Members that a group has before it is looked for the first time which of them have gone.
const FEW: usize = 64;

/// The thread that asks.
const SELF: Tid = 0;

// === impl Cores ===

impl Cores {
    pub fn over(kernel: impl CoreSched + 'static, procfs: Procfs) -> Self {
        Self {
            own: kernel.cookie(SELF).ok().flatten(),
            machine: Some(Machine {
                kernel: Box::new(kernel),
                procfs,
            }),
            groups: HashMap::new(),
        }
    }

    /// For a node whose kernel has no core scheduling, or whose cores run one thread each.
    pub fn none() -> Self {
        Self::default()
    }

    /// Whether the kernel has what this needs.
    pub fn is_supported(&self) -> bool {
        self.machine.is_some()
    }

    /// Brings all threads of a member into its group. Where nobody is there who has the cookie of that,
    /// it is looked for among the `others` that are in it; without them none is made or adopted.
    ///
    /// # Errors
    ///
    /// When there is no core scheduling here, or the kernel refuses it for a thread; when threads of the
    /// member, or of others whose cookies have to be known, cannot be listed; and when a member with threads
    /// needs a cookie that nobody is known to have, without `others` ([`JoinError::Unmet`]). When not all
    /// below the member's control group is looked at ([`JoinError::Unseen`]), or the last look, the 16th or
    /// the one in which 250 ms are over, still finds some that are not as decided ([`JoinError::Unsettled`]).
    pub fn join(
        &mut self,
        cgroups: &Cgroups,
        member: &Member,
        group: &CoreGroup,
        others: Option<&[Member]>,
    ) -> Result<Joined, JoinError> {
        let Some(Machine { procfs, .. }) = &self.machine else {
            return Err(JoinError::Unsupported);
        };
        let procfs = procfs.clone();
        for (other, known) in &mut self.groups {
            if other != group {
                known.members.remove(&member.at);
            }
        }
        let mut is_new = false;
        let joined = until_settled(&member.at, |turn| {
            let sight = turn.sight(cgroups);
            let listed = of_member(sight, &procfs, member)?;
            let (cookie, new) = self.cookie_for(sight, (member, group), &listed, others)?;
            is_new |= new;
            let found = self.settle((member, group), cookie, &listed, turn)?;
            Ok((found, listed.unseen))
        })?;
        // The one for which a cookie was made has it by that.
        Ok(if is_new { Joined::Moved } else { joined })
    }

    /// The cookies that threads of a control group have, as a person may read them.
    pub fn describe(&self, cgroups: &Cgroups, at: &CgroupPath) -> Option<String> {
        let kernel = self.kernel()?;
        let threads = to_show(Sight::once(cgroups).threads(at))?;
        let cookies = threads.iter().filter_map(|it| kernel.cookie(*it).ok());
        let cookies: BTreeSet<_> = cookies.collect();
        let shown = cookies.iter().map(|cookie| match cookie {
            Some(cookie) => cookie.to_string(),
            None => "none".to_owned(),
        });
        Some(shown.collect::<Vec<_>>().join(" "))
    }

    /// The cookie that the threads of a member are to have, and whether it was made for them: then
    /// the first of them has it.
    fn cookie_for(
        &mut self,
        sight: Sight<'_>,
        (member, group): (&Member, &CoreGroup),
        listed: &Listed<'_>,
        others: Option<&[Member]>,
    ) -> Result<(Option<Cookie>, bool), JoinError> {
        if *group == CoreGroup::None {
            return Ok((None, false));
        }
        if self.held(sight, group, &listed.ids)? == Held::Known
            && let Some(known) = self.groups.get_mut(group)
        {
            known.members.insert(member.at.clone());
            if known.members.len() > 2 * known.left.max(FEW) {
                known.forget_the_gone(sight.cgroups);
            }
            return Ok((Some(known.cookie), false));
        }
        let found = match others {
            Some(others) => self.adopted(sight, (member, &listed.ids), others)?,
            None => None,
        };
        let made = match (found, others) {
            (Some(_), _) => None,
            (None, Some(_)) => self.made((member, group), listed)?,
            // Nobody is there to get one.
            (None, None) if listed.ids.is_empty() => None,
            (None, None) => {
                let group = group.clone();
                return Err(JoinError::Unmet { group });
            }
        };
        let Some((bearer, cookie)) = found.or(made) else {
            return Ok((None, false));
        };
        // Whoever had this cookie has gone: the kernel uses it again.
        self.groups.retain(|_, known| known.cookie != cookie);
        self.forget_the_gone(sight.cgroups);
        debug!(%group, %cookie, "a group has a cookie");
        let known = Group {
            cookie,
            bearer,
            members: [member.at.clone()].into(),
            left: 0,
        };
        self.groups.insert(group.clone(), known);
        Ok((Some(cookie), made.is_some()))
    }

    /// Whether a thread has the cookie of a group, which is its bearer then: one of `these` first, which are
    /// listed. An error if nobody can tell now: one of those that cannot be listed may have it.
    ///
    /// Nobody waits long for any one of the others, which may have made itself a tree that takes long.
    fn held(
        &mut self,
        sight: Sight<'_>,
        group: &CoreGroup,
        these: &[Tid],
    ) -> Result<Held, JoinError> {
        let (Some(Machine { kernel, .. }), Some(known)) =
            (&self.machine, self.groups.get_mut(group))
        else {
            return Ok(Held::Nobody);
        };
        let has = |thread: &Tid| kernel.cookie(*thread).ok().flatten() == Some(known.cookie);
        if has(&known.bearer) {
            return Ok(Held::Known);
        }
        if let Some(bearer) = these.iter().find(|it| has(it)) {
            known.bearer = *bearer;
            return Ok(Held::Known);
        }
        let (mut unlisted, mut held) = (None, Held::Nobody);
        for at in &known.members {
            match threads_of(sight.within(ANOTHERS), at) {
                Ok(Members { ids, unseen }) => {
                    if let Some(bearer) = ids.into_iter().find(has) {
                        known.bearer = bearer;
                        return Ok(Held::Known);
                    }
                    if unseen.is_some() {
                        held = Held::Unseen;
                    }
                }
                Err(error) => unlisted = Some(error),
            }
        }
        unlisted.map_or(Ok(held), Err)
    }

    /// The first cookie that one of these threads, of a group, has which is no other group's and not ours.
    /// Those that are found to be others' are `claimed`: for each all that are in its group may have to be
    /// looked at.
    fn brought(
        &mut self,
        sight: Sight<'_>,
        (group, threads): (Option<&CoreGroup>, &[Tid]),
        claimed: &mut BTreeSet<Cookie>,
    ) -> Result<Option<(Tid, Cookie)>, JoinError> {
        for thread in threads {
            let kernel = self.kernel();
            let cookie = kernel.and_then(|kernel| kernel.cookie(*thread).ok().flatten());
            let Some(cookie) = cookie.filter(|it| self.own != Some(*it) && !claimed.contains(it))
            else {
                continue;
            };
            if !self.is_claimed(sight, group, cookie)? {
                return Ok(Some((*thread, cookie)));
            }
            claimed.insert(cookie);
        }
        Ok(None)
    }

    /// Whether a cookie is another group's.
    fn is_claimed(
        &mut self,
        sight: Sight<'_>,
        group: Option<&CoreGroup>,
        cookie: Cookie,
    ) -> Result<bool, JoinError> {
        let mut claims = self.groups.iter();
        let claim = claims.find(|(other, known)| known.cookie == cookie && Some(*other) != group);
        match claim.map(|(other, _)| other.clone()) {
            // Who is not seen may have it.
            Some(other) => Ok(self.held(sight, &other, &[])? != Held::Nobody),
            None => Ok(false),
        }
    }

    /// The cookie that a member brings, or else the first of the others of its group. One that somebody of
    /// another group has as well is left to that, which may not have been looked at yet: whoever changed
    /// its group while we were away has the cookie of the group that it was in.
    fn adopted(
        &mut self,
        sight: Sight<'_>,
        (member, threads): (&Member, &[Tid]),
        others: &[Member],
    ) -> Result<Option<(Tid, Cookie)>, JoinError> {
        let (same, apart): (Vec<_>, Vec<_>) =
            others.iter().partition(|other| other.group == member.group);
        let same = same.iter().map(|other| threads_of(sight, &other.at));
        let same = same.map(|listed| listed.map(|members| members.ids));
        let group = match &member.group {
            ThreadGroup::Cores(group) => Some(group),
            ThreadGroup::Caches(_) | ThreadGroup::OomScore(_) => None,
        };
        // Most bring none, and then nobody else is looked at.
        let mut theirs: Option<Option<BTreeSet<Cookie>>> = None;
        let (mut unlisted, mut claimed) = (None, BTreeSet::new());
        for threads in iter::once(Ok(threads.to_vec())).chain(same) {
            let threads = match threads {
                Ok(threads) => threads,
                Err(error) => {
                    unlisted = Some(error);
                    continue;
                }
            };
            let brought = self.brought(sight, (group, &threads), &mut claimed)?;
            let Some((thread, cookie)) = brought else {
                continue;
            };
            let theirs = match &mut theirs {
                Some(theirs) => theirs,
                none => none.insert(self.cookies(sight, &apart)?),
            };
            // Of whom not all is seen, any cookie may be theirs.
            if theirs.as_ref().is_some_and(|it| !it.contains(&cookie)) {
                return Ok(Some((thread, cookie)));
            }
        }
        // Of those that cannot be listed one may bring it.
        unlisted.map_or(Ok(None), Err)
    }

    /// The cookies that threads of these have; `None` if there may be others, as not all are looked at.
    fn cookies(
        &self,
        sight: Sight<'_>,
        members: &[&Member],
    ) -> Result<Option<BTreeSet<Cookie>>, JoinError> {
        let (mut cookies, mut are_all) = (BTreeSet::new(), true);
        for member in members {
            let Members { ids, unseen } = threads_of(sight, &member.at)?;
            are_all &= unseen.is_none();
            let cookie = |thread| self.kernel()?.cookie(thread).ok().flatten();
            cookies.extend(ids.into_iter().filter_map(cookie));
        }
        Ok(are_all.then_some(cookies))
    }

    /// A cookie that nobody has, made for the first thread that takes one.
    fn made(
        &self,
        member: (&Member, &CoreGroup),
        listed: &Listed<'_>,
    ) -> Result<Option<(Tid, Cookie)>, JoinError> {
        let kernel = self.kernel().ok_or(JoinError::Unsupported)?;
        for thread in &listed.ids {
            let made = listed
                .still_has(*thread)
                .and_then(|()| kernel.create(*thread));
            match made.and_then(|()| kernel.cookie(*thread)) {
                Ok(Some(cookie)) => return Ok(Some((*thread, cookie))),
                // The kernel shows none while it has no random numbers, just after its start.
                Ok(None) => return Err(refused(member, *thread, Errno::AGAIN.into())),
                Err(error) if has_ended(&error) => {}
                Err(error) => return Err(refused(member, *thread, error)),
            }
        }
        Ok(None)
    }

    /// Gives the threads that lack it the cookie of their group.
    fn settle(
        &self,
        (member, group): (&Member, &CoreGroup),
        cookie: Option<Cookie>,
        listed: &Listed<'_>,
        turn: &mut Turn,
    ) -> Result<Found, JoinError> {
        let kernel = self.kernel().ok_or(JoinError::Unsupported)?;
        let bearer = self.groups.get(group).map(|known| known.bearer);
        let mut found = Found::Nothing;
        for thread in &listed.ids {
            let still = || listed.still_has(*thread);
            let given = match (kernel.cookie(*thread), cookie, bearer) {
                // Its process may have got it together with an earlier thread.
                (Ok(held), ..) if held == cookie => continue,
                (Ok(_), Some(cookie), Some(bearer)) => {
                    still().and_then(|()| kernel.share(bearer, cookie, *thread))
                }
                (Ok(_), None, _) if *group == CoreGroup::None => {
                    still().and_then(|()| kernel.clear(*thread))
                }
                // It may have had it. Where none is to have any, what it has started may not be let go with
                // one that nobody looks for any more.
                (Err(error), ..) if has_ended(&error) && *group != CoreGroup::None => {
                    found = found.max(Found::Unknown);
                    continue;
                }
                // Nobody was there to get one.
                (Ok(_), ..) => continue,
                (Err(error), ..) => Err(error),
            };
            match given {
                Ok(()) => found = Found::Moved,
                // It has ended, or who was to pass the cookie on: then another does in the next round.
                Err(error) if has_ended(&error) => found = found.max(Found::Ended),
                Err(error) => return Err(refused((member, group), *thread, error)),
            }
            if turn.is_over_after(1) {
                return Ok(Found::Moved);
            }
        }
        Ok(found)
    }

    fn kernel(&self) -> Option<&dyn CoreSched> {
        self.machine.as_ref().map(|machine| &*machine.kernel)
    }

    fn forget_the_gone(&mut self, cgroups: &Cgroups) {
        self.groups.retain(|_, known| {
            known.forget_the_gone(cgroups);
            !known.members.is_empty()
        });
    }
}

// === impl Group ===

impl Group {
    fn forget_the_gone(&mut self, cgroups: &Cgroups) {
        // One of which that is unknown stays.
        self.members.retain(|at| cgroups.exists(at).unwrap_or(true));
        self.left = self.members.len();
    }
}

/// The threads of a control group; none if it has gone.
fn threads_of(sight: Sight<'_>, at: &CgroupPath) -> Result<Members, JoinError> {
    match sight.threads(at) {
        Ok(members) => Ok(members),
        Err(error) if error.is_gone() => Ok(Members::default()),
        Err(source) => {
            let at = at.clone();
            Err(JoinError::Unlisted { at, source })
        }
    }
}

fn refused((member, group): (&Member, &CoreGroup), thread: Tid, source: io::Error) -> JoinError {
    JoinError::Refused {
        at: member.at.clone(),
        thread,
        group: group.clone(),
        source,
    }
}

#[cfg(test)]
mod tests;

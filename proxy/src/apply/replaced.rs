//! What control groups held before our first value, for whoever gives it back one day.
//!
//! The answer to a write tells it, but answers get lost: a call that was held is given up, a decision
//! changes while a write is under way, a pod's sandbox is made anew in the same directory, or we are
//! killed. The kernel then holds our value, and nobody could say any more what was there. So the thread
//! that writes remembers what it replaces, for as long as a value of ours is there, and notes it on the
//! group before it writes, for the process after us.
//!
//! A note is made once for each write and before it, so that one that is never finished is known as well. A
//! write may take the kernel minutes, and we may be killed at any moment of it: so a note has both the value
//! of ours that is written and the one that it replaces, and either is ours to whoever reads it. Nothing is
//! noted of what comes back until it is there: until then ours is, and from then on nothing. What cannot be
//! noted, as without a free descriptor, is owed, and noted with the next look at the group.
//!
//! Groups of containers have no such note: what was asked for a container is with the runtime, and what
//! can write to its group could forge one. They are marked with the settings alone of which a value of ours
//! is there, and of which one may come back with the spec of their runtime.

use super::{
    marks::GroupMarks,
    periods::{self, Replacement},
};
use koord_kernel::cgroup::{
    Applied, Before, Cgroups, Change, Marked, Original, ReadError, Written, is_below_pod,
};
use koord_model::{CgroupPath, Setting, Value};
use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    mem,
};

/// Groups that are looked at for each new one: with more than one, those that have gone get fewer.
const LOOKS: usize = 2;

/// What the first write of ours replaced.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    /// By group; nothing of one whose values are all there again.
    groups: HashMap<CgroupPath, Known>,
    /// Each of these groups, the one first that was not looked at for longest.
    in_turn: VecDeque<CgroupPath>,
    /// How many are to be looked at.
    due: usize,
}

/// What is known of a group.
#[derive(Debug, Default)]
struct Known {
    originals: Vec<Original>,
    /// The shares that the kernel forgot when we made the group idle, which it is no more, and nobody of ours
    /// has written shares since. Somebody else may have, so they count where the kernel's default is there.
    forgotten: Option<Value>,
    /// What is noted on it could not be read so far, and may say more.
    lacks_note: bool,
    /// Something else is noted on it than is known.
    owes_note: bool,
    /// It is a container's: nothing is noted on it, and it is marked.
    is_containers: bool,
    /// What it is marked with, by what is there and by what its runtime may write.
    files: GroupMarks,
    spec: GroupMarks,
}

/// A group, and whether whoever writes there says that it is a container's.
type Whose<'a> = (&'a CgroupPath, bool);

/// What a group may be marked with.
type Mark = (Marked, Setting);

/// What was known of a setting before a write that is under way.
#[derive(Debug)]
pub(super) struct Undo {
    at: CgroupPath,
    /// What is under way.
    value: Value,
    known: Option<Original>,
    /// It was not to be marked before.
    is_marked: bool,
}

// === impl Replaced ===

impl Replaced {
    /// Hears that a value is about to replace another. If that is not what we wrote last, somebody has
    /// written since who may, as the kubelet does: that comes back then.
    pub(super) fn expect(&mut self, cgroups: &Cgroups, replacement: &Replacement) -> Undo {
        let Replacement {
            at, value, before, ..
        } = replacement;
        let setting = value.setting();
        let whose = (at, replacement.of_container);
        let is_marked =
            !replacement.gives_back && self.mark(cgroups, whose, (Marked::Files, setting));
        let known = self.of(cgroups, whose);
        // A group that is idle no more has the kernel's default of shares, which is nobody's.
        let is_default = |shares: &Value| match shares {
            Value::CpuShares(shares) => cgroups.is_kernels_default(*shares),
            _ => false,
        };
        let is_nobodys = |before: &Before| match before {
            Before::Value(shares) => is_default(shares),
            Before::Awake { .. } => false,
        };
        // So has one that is made idle again, whose own shares a process before us could not write any more.
        let was_half_awake = |known: &Original| match (&known.before, before) {
            (Before::Awake { .. }, Before::Awake { shares }) => {
                shares.as_ref().is_some_and(is_default)
            }
            _ => false,
        };
        let forgotten = known.forgotten().filter(|_| is_nobodys(before));
        let forgotten = forgotten.map(Before::Value);
        let shows_others = !known.is_containers && forgotten.is_none();
        let known = &mut known.originals;
        let before = forgotten.unwrap_or_else(|| before.clone());
        let index = known.iter().position(|it| it.setting() == setting);
        let undo = Undo {
            at: at.clone(),
            value: value.clone(),
            known: index.map(|index| known[index].clone()),
            is_marked,
        };
        let comes_back = |it: &Original| replacement.gives_back || it.before.value() == *value;
        match index.map(|index| &mut known[index]) {
            Some(known) => {
                let is_half_awake = was_half_awake(known);
                let held = known.ours().find(|it| replacement.replaces(cgroups, it));
                let is_ours = held.is_some() || !shows_others || is_half_awake;
                if !is_ours {
                    known.before = before;
                    known.former = None;
                }
                if comes_back(known) || is_ours && known.ours == *value {
                    return undo;
                }
                let ours = mem::replace(&mut known.ours, value.clone());
                if is_ours {
                    known.former = Some(held.unwrap_or(ours));
                }
            }
            // It is nobody's value but that of the time before us.
            None if before.value() == *value || replacement.gives_back => return undo,
            None => known.push(Original::new(before, value.clone())),
        }
        self.note(cgroups, at);
        undo
    }

    /// Hears what became of a change. What our first value replaced there.
    pub(super) fn hear(
        &mut self,
        cgroups: &Cgroups,
        change: &Change,
        applied: &Applied,
        undo: Option<Undo>,
    ) -> Option<Written> {
        let setting = change.value.setting();
        if applied.is_ok() && !is_masked(applied) {
            self.mark_anew(cgroups, change, matches!(applied, Ok(Written::Equal)));
        }
        match applied {
            Ok(_) if undo.is_some() => {}
            Ok(Written::Changed { old }) => {
                self.remember(cgroups, change, Before::Value(old.clone()));
            }
            Ok(Written::Idled { shares }) => {
                let shares = shares.clone();
                self.remember(cgroups, change, Before::Awake { shares });
            }
            Ok(Written::Equal | Written::Adjusted | Written::Masked) => {}
            Err(error) if error.is_gone() => {
                self.is_gone(cgroups, change);
                return None;
            }
            // What it has now is ours, so what was there before us is as it was noted.
            Err(error) if error.is_halfway() => return self.first(&change.at, setting),
            Err(_) => {
                self.undo(cgroups, undo);
                return None;
            }
        }
        let known = self.groups.get_mut(&change.at)?;
        known.catch_up(cgroups, &change.at);
        if setting == Setting::CpuShares && !is_masked(applied) {
            known.forgotten = None;
        }
        // While it is not known what was noted, what was there may be a value of who was here before us.
        let is_whole = !known.lacks_note;
        let index = known
            .originals
            .iter()
            .position(|it| it.setting() == setting)?;
        let original = &mut known.originals[index];
        let first = original.before.clone();
        let is_back = change.gives_back || first.value() == change.value;
        let is_back = is_back && !is_masked(applied);
        let is_new = undo.is_some_and(|undo| {
            let is_new = original.ours != undo.value;
            original.ours = undo.value;
            original.former = None;
            is_new
        });
        if is_back {
            known.originals.swap_remove(index);
            if let Before::Awake { shares } = &first {
                known.forgotten.clone_from(shares);
            }
        }
        if is_back || is_new {
            self.note(cgroups, &change.at);
        }
        is_whole.then(|| written(&first))
    }

    fn is_gone(&mut self, cgroups: &Cgroups, change: &Change) {
        if let Some(known) = self.groups.get_mut(&change.at) {
            let setting = change.value.setting();
            // On cgroup v1 it may be there still for other settings.
            match cgroups.exists(&change.at) {
                Ok(true) => known.originals.retain(|it| it.setting() != setting),
                _ => *known = Known::unread(known.is_containers),
            }
        }
    }

    /// What is known of a group, by us or by who was here before us, with that value of ours which is there;
    /// `None` if what that one noted cannot be read now.
    pub(super) fn known(&mut self, cgroups: &Cgroups, at: &CgroupPath) -> Option<Vec<Original>> {
        let mut known = match self.groups.get_mut(at) {
            Some(known) => known.whole(cgroups, at)?.to_vec(),
            None if is_containers((at, false)) => Vec::new(),
            None => noted(cgroups, at).ok()?,
        };
        for original in known.iter_mut().filter(|it| it.ours().nth(1).is_some()) {
            let is_there = |it: &Value| periods::holds(cgroups, at, it) == Some(true);
            if let Some(there) = original.ours().find(is_there) {
                original.ours = there;
            }
            original.former = None;
        }
        Some(known)
    }

    /// It was not told that it would be written, as where only the length of a period was replaced.
    fn remember(&mut self, cgroups: &Cgroups, change: &Change, before: Before) {
        let setting = change.value.setting();
        let ours = change.value.clone();
        let whose = (&change.at, change.of_container);
        let known = &mut self.of(cgroups, whose).originals;
        match known.iter_mut().find(|it| it.setting() == setting) {
            Some(known) => {
                known.ours = ours;
                known.former = None;
            }
            None if change.gives_back => {}
            None => known.push(Original::new(before, ours)),
        }
        self.note(cgroups, &change.at);
    }

    /// What our first value replaced that is there still.
    fn first(&self, at: &CgroupPath, setting: Setting) -> Option<Written> {
        let known = self.groups.get(at).filter(|known| !known.lacks_note)?;
        let mut originals = known.originals.iter();
        let original = originals.find(|it| it.setting() == setting)?;
        Some(written(&original.before))
    }

    fn undo(&mut self, cgroups: &Cgroups, undo: Option<Undo>) {
        let Some(Undo {
            at,
            value,
            known,
            is_marked,
        }) = undo
        else {
            return;
        };
        let setting = value.setting();
        if is_marked {
            let marks = &mut self.of(cgroups, (&at, true)).files;
            marks.unmake((cgroups, &at), Marked::Files, setting);
        }
        if let Some(all) = self.groups.get_mut(&at)
            && all.originals.iter().find(|it| it.setting() == setting) != known.as_ref()
        {
            all.originals.retain(|it| it.setting() != setting);
            all.originals.extend(known);
            self.note(cgroups, &at);
        }
    }

    fn of(&mut self, cgroups: &Cgroups, whose: Whose<'_>) -> &mut Known {
        let (at, _) = whose;
        let known = match self.groups.entry(at.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                self.in_turn.push_back(at.clone());
                self.due += LOOKS;
                new.insert(Known::unread(is_containers(whose)))
            }
        };
        known.whole(cgroups, at);
        known
    }

    fn note(&mut self, cgroups: &Cgroups, at: &CgroupPath) {
        if let Some(known) = self.groups.get_mut(at) {
            known.note(cgroups, at);
        }
    }

    /// What a container's group is marked with once it has this, which it had before if it is `equal`.
    fn mark_anew(&mut self, cgroups: &Cgroups, change: &Change, equal: bool) {
        let (whose, setting) = ((&change.at, change.of_container), change.value.setting());
        match (change.gives_back, change.may_return) {
            (true, true) => {
                self.mark(cgroups, whose, (Marked::Spec, setting));
                self.unmark(cgroups, whose, (Marked::Files, setting));
            }
            (true, false) => {
                self.unmark(cgroups, whose, (Marked::Files, setting));
                self.unmark(cgroups, whose, (Marked::Spec, setting));
            }
            // The runtime has written it, as an update has told it.
            (false, true) if equal => {
                self.mark(cgroups, whose, (Marked::Files, setting));
            }
            (false, _) => {}
        }
    }

    /// Marks a container's group, for a value of ours before that comes there. Whether it was not to be marked
    /// yet.
    fn mark(&mut self, cgroups: &Cgroups, whose: Whose<'_>, (of, setting): Mark) -> bool {
        let (at, _) = whose;
        let is_marked = is_containers(whose) && of.has(setting);
        is_marked && (self.of(cgroups, whose).marks(of)).make((cgroups, at), of, setting)
    }

    fn unmark(&mut self, cgroups: &Cgroups, whose: Whose<'_>, (of, setting): Mark) {
        let (at, _) = whose;
        if is_containers(whose) && of.has(setting) {
            (self.of(cgroups, whose).marks(of)).take((cgroups, at), of, setting);
        }
    }

    /// Nobody tells that a group has gone. So a few are looked at for each that is new: all at once, of
    /// which there may be thousands, would keep whoever comes next waiting.
    pub(super) fn forget_the_gone(&mut self, cgroups: &Cgroups) {
        let due = mem::take(&mut self.due).min(self.in_turn.len());
        for _ in 0..due {
            let Some(at) = self.in_turn.pop_front() else {
                return;
            };
            let is_used = self.groups.get_mut(&at).is_some_and(|known| {
                known.catch_up(cgroups, &at);
                let has_values = !known.originals.is_empty() || known.forgotten.is_some();
                has_values || known.owes() || known.is_marked()
            });
            // One of which it cannot be found out stays.
            if is_used && cgroups.exists(&at).unwrap_or(true) {
                self.in_turn.push_back(at);
            } else {
                self.groups.remove(&at);
            }
        }
    }
}

// === impl Known ===

impl Known {
    /// Whether it is marked with anything, which is then read no more.
    fn is_marked(&self) -> bool {
        self.files.has_any() || self.spec.has_any()
    }

    /// Those of its threads are noted by who brings them in ([`Marks`](super::marks::Marks)).
    fn marks(&mut self, of: Marked) -> &mut GroupMarks {
        match of {
            Marked::Spec => &mut self.spec,
            Marked::Files | Marked::Threads => &mut self.files,
        }
    }

    /// Of a group whose note was not read yet. A container's has none.
    fn unread(is_containers: bool) -> Self {
        Self {
            lacks_note: !is_containers,
            is_containers,
            ..Self::default()
        }
    }

    /// The shares that the kernel forgot for us.
    fn forgotten(&self) -> Option<Value> {
        let by_idle = self.originals.iter().find_map(|it| match &it.before {
            Before::Awake { shares } => shares.clone(),
            Before::Value(_) => None,
        });
        by_idle.or_else(|| self.forgotten.clone())
    }

    /// While it cannot be read what is noted on a group, that is not written over.
    fn note(&mut self, cgroups: &Cgroups, at: &CgroupPath) {
        if !self.is_containers {
            self.owes_note = self.lacks_note || !cgroups.note_originals(at, &self.originals);
        }
    }

    /// Whether something could not be noted yet.
    fn owes(&self) -> bool {
        self.owes_note || self.files.owes() || self.spec.owes()
    }

    /// Notes what is owed.
    fn catch_up(&mut self, cgroups: &Cgroups, at: &CgroupPath) {
        self.files.catch_up((cgroups, at), Marked::Files);
        self.spec.catch_up((cgroups, at), Marked::Spec);
        if self.owes_note && self.whole(cgroups, at).is_some() {
            self.note(cgroups, at);
        }
    }

    /// All of it; `None` if what is noted cannot be read now.
    fn whole(&mut self, cgroups: &Cgroups, at: &CgroupPath) -> Option<&[Original]> {
        if self.lacks_note {
            noted(cgroups, at)
                .ok()?
                .into_iter()
                .for_each(|it| self.add(it));
            self.lacks_note = false;
        }
        Some(&self.originals)
    }

    /// Hears what was noted before we wrote here.
    fn add(&mut self, noted: Original) {
        let setting = noted.setting();
        match self.originals.iter_mut().find(|it| it.setting() == setting) {
            // What we replaced was a value of ours then, or somebody else's.
            Some(known) if noted.ours().any(|it| it == known.before.value()) => {
                known.before = noted.before;
            }
            Some(_) => {}
            None => self.originals.push(noted),
        }
    }
}

/// What was noted of a group by who was here before us; nothing if it is gone.
fn noted(cgroups: &Cgroups, at: &CgroupPath) -> Result<Vec<Original>, ReadError> {
    match cgroups.originals(at) {
        Err(error) if error.is_gone() => Ok(Vec::new()),
        noted => noted,
    }
}

/// Whether a group is a container's, by what whoever writes there says, or by its name. Where many pods share a
/// directory the names say nothing.
fn is_containers((at, of_container): Whose<'_>) -> bool {
    of_container || is_below_pod(at)
}

/// Whether the kernel has not taken a value, for another that makes it meaningless.
fn is_masked(applied: &Applied) -> bool {
    matches!(applied, Ok(Written::Masked))
}

/// In the words of the answer to that write.
fn written(before: &Before) -> Written {
    match before {
        Before::Value(old) => Written::Changed { old: old.clone() },
        Before::Awake { shares } => Written::Idled {
            shares: shares.clone(),
        },
    }
}

#[cfg(test)]
mod tests;

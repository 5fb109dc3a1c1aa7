//! The decided settings of one control group: what each should be, by whom, what was there before,
//! and what became of it.
//!
//! Nothing of ours stays without an owner: a setting that nobody decides any more is given back. For
//! that it counts what is known of the time before us. That nobody asked for anything is knowledge
//! too, and means the kernel's default; where nothing is known the value is left as it is, and told.

mod default;

pub use default::of_directories;

use super::{Contest, Scope};
use default::{default, is_copied, is_withheld};
use koord_hooks::Merged;
use koord_kernel::cgroup::{Before, Original as Noted};
use koord_model::{CgroupPath, Setting, Value};
use rustix::io::Errno;
use std::collections::BTreeSet;

/// How a value gets to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// In the request to the runtime, which writes it and keeps it in its spec.
    Request,
    /// Written by us.
    Kernel,
}

/// What became of a value the last time it was held against the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Not looked at yet.
    Pending,
    /// The kernel had it.
    Equal,
    /// We wrote it.
    Written,
    /// Another setting of the same group makes this one meaningless for now.
    Masked,
    /// The directory is not there.
    Absent,
    /// This kernel has no such setting.
    Unsupported,
    /// It could not be written; with the kernel's errno, if it was the kernel that refused.
    Refused(Option<i32>),
    /// It could not be written for some block devices, all others have it; which, and why. Where it is of
    /// no devices, why it is not in force.
    Lacking(Box<str>),
    /// Nobody decides it any more, and what was there before is unknown: it is not touched.
    Left,
    /// Somebody else writes it again and again, as they may: it is written after a pause.
    Paused,
    /// Somebody of whom nobody knows writes it again and again: it is theirs for a while.
    Yielded,
}

/// What a setting was before our first value, quotas for 100 ms, as hooks decide them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Original {
    /// It was asked for, or seen in the kernel.
    Value(Value),
    /// Nobody asked for anything, so it is the kernel's default.
    Default,
    Unknown,
}

/// What it means that nobody is known to have asked for a setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Unasked {
    /// That nobody did.
    #[default]
    Nothing,
    /// Nothing: somebody may have before we came.
    Unknown,
    /// The same, and no annotation can tell: it was resized before we came.
    Resized,
    /// The same, or else its quota is one that a process before us has written: the runtime can tell, and has
    /// not been asked yet.
    Doubted,
    /// As if unknown, but the runtime has not been asked yet.
    Unheard,
}

/// One decided setting of one control group.
#[derive(Clone, Debug)]
pub struct Entry {
    pub desired: Value,
    /// The hook that decided.
    pub owner: &'static str,
    pub route: Route,
    pub original: Original,
    pub applied: Applied,
    /// What a person should know of `applied` is in the log.
    pub is_logged: bool,
    pub contest: Contest,
    /// The kernel has it by us, or the runtime was told it.
    pub given: bool,
    /// What calls have told the runtime of it last, while we run: its spec has that until somebody else asks
    /// for another.
    pub told: Option<Box<Value>>,
    /// Its container was made with a value of ours, as the annotation says.
    pub made_with: bool,
    /// Koordlet decides it now: it is given back only where this, which was given by us, is there still.
    pub over: Option<Box<Value>>,
    /// When another value of ours was last put in its place; see [`Ledger::tick`](super::Ledger::tick).
    displaced_at: u64,
}

/// Owner of a value that hooks no longer decide, and that is as it was before them.
pub const GIVEN_BACK: &str = "-";

/// What makes the kernel forget the shares of a group.
const IDLE: Value = Value::CpuIdle(true);

/// A hook that failed at the latest decision, so that nothing of it is among the entries but what it has at
/// least.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LeftOut {
    pub hook: &'static str,
    /// For people; bounded, because it may quote what a pod's author wrote.
    pub reason: Box<str>,
}

/// The decided settings of one control group.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// Where it is; `None` until that is known.
    pub at: Option<CgroupPath>,
    entries: Vec<Entry>,
    /// The shares that it has where nobody decides, as far as that is known: the kubelet's, or
    /// those that the kernel forgot when the group became idle.
    pub undecided_shares: Option<Value>,
    pub unasked: Unasked,
    pub left_out: Vec<LeftOut>,
    /// It is known what a process before us has set there, or we before the pod's sandbox was made anew. Of
    /// the node's own groups that is known elsewhere.
    pub is_recalled: bool,
}

// === impl Unasked ===

impl Unasked {
    /// Whether nobody has asked for this setting if nobody is known to have. A kubelet that resizes asks
    /// for CPU time and memory alone.
    fn is_certain_of(self, setting: Setting) -> bool {
        let is_resizable = matches!(
            setting,
            Setting::CpuShares
                | Setting::CpuQuota
                | Setting::MemoryLimit
                | Setting::MemoryMin
                | Setting::MemoryLow
                | Setting::MemoryHigh
        );
        match self {
            Self::Nothing => true,
            Self::Resized | Self::Doubted => !is_resizable,
            Self::Unknown | Self::Unheard => false,
        }
    }
}

// === impl LeftOut ===

impl LeftOut {
    /// Characters of a reason that are kept.
    const MAX_REASON: usize = 200;

    pub fn new(hook: &'static str, reason: &str) -> Self {
        let reason: String = reason.chars().take(Self::MAX_REASON).collect();
        Self {
            hook,
            reason: reason.into(),
        }
    }
}

// === impl Original ===

impl Original {
    pub fn value(&self) -> Option<&Value> {
        match self {
            Self::Value(value) => Some(value),
            Self::Default | Self::Unknown => None,
        }
    }
}

// === impl Applied ===

impl Applied {
    /// Whether there is nothing left to do for a value that is given back: it is there, or nothing
    /// is that could have it.
    fn is_final(&self) -> bool {
        match self {
            Self::Equal | Self::Written | Self::Absent | Self::Unsupported => true,
            Self::Pending
            | Self::Masked
            | Self::Refused(_)
            | Self::Lacking(_)
            | Self::Left
            | Self::Paused
            | Self::Yielded => false,
        }
    }

    /// Whether the kernel has answered that this group cannot have this value, as things are. That nobody
    /// may write there, or that something is lacking for it, says nothing of the value.
    fn is_refusal_of_value(&self) -> bool {
        const OF_VALUE: [Errno; 4] = [Errno::BUSY, Errno::INVAL, Errno::NOSPC, Errno::RANGE];
        match self {
            Self::Refused(Some(errno)) => OF_VALUE.contains(&Errno::from_raw_os_error(*errno)),
            _ => false,
        }
    }

    /// Whether the value is not to be touched for now.
    pub fn is_hands_off(&self) -> bool {
        matches!(self, Self::Left | Self::Paused | Self::Yielded)
    }
}

// === impl Entry ===

impl Entry {
    /// One that nobody has held against the kernel yet.
    fn new(desired: Value, owner: &'static str, route: Route, original: Original) -> Self {
        Self {
            desired,
            owner,
            route,
            original,
            applied: Applied::Pending,
            is_logged: false,
            contest: Contest::default(),
            given: false,
            told: None,
            made_with: false,
            over: None,
            displaced_at: 0,
        }
    }

    /// One by which what was there `before` us comes back, over what is given now.
    fn back(before: Value, over: Option<Box<Value>>) -> Self {
        Self {
            over,
            ..Self::new(
                before.clone(),
                GIVEN_BACK,
                Route::Kernel,
                Original::Value(before),
            )
        }
    }

    /// Another value of ours takes its place at this moment: whoever finds that there finds no stranger's.
    pub fn displace(&mut self, moment: u64) {
        self.applied = Applied::Pending;
        self.displaced_at = moment;
    }

    /// Whether it was in its place from this moment on, so that what the kernel was found to have since says
    /// what became of it.
    pub fn is_in_place_since(&self, moment: u64) -> bool {
        self.displaced_at <= moment
    }

    /// Whether it was given back and the kernel had it since: who writes it now may. That only the
    /// runtime's stored spec still has our value is for its next update.
    pub fn is_let_go(&self) -> bool {
        let there = matches!(self.applied, Applied::Equal | Applied::Written);
        self.owner == GIVEN_BACK && there
    }

    /// Whether all that is known of it is that a process before us has given it back.
    pub fn is_recalled_as_returned(&self) -> bool {
        self.is_let_go() && self.route == Route::Request && self.told.is_none()
    }

    /// Whether the runtime may be told of it. With a value that the kernel refuses the runtime would fail
    /// what somebody else asks it for. So what its caller asks of this setting counts until the kernel takes
    /// ours, which reconcile goes on trying.
    pub fn may_be_said(&self) -> bool {
        let is_out = self.applied == Applied::Left || self.applied.is_refusal_of_value();
        self.route == Route::Request && !is_out && !self.desired.setting().is_injected()
    }

    /// A call carries it, or asks for the same.
    pub fn note_told(&mut self) {
        self.told = Some(Box::new(self.desired.clone()));
    }

    /// Whether the spec of the container's runtime may have a value of ours that no annotation tells of.
    pub fn may_return(&self) -> bool {
        match &self.told {
            Some(told) => !self.made_with && self.asked().as_ref() != Some(&**told),
            // A process before us may have told it.
            None => self.owner == GIVEN_BACK && self.route == Route::Request,
        }
    }

    /// Whether hooks decide this value and we have given it.
    fn has_given(&self, value: &Value) -> bool {
        self.given && self.owner != GIVEN_BACK && self.desired == *value
    }

    /// What is to be there once nobody decides this; `None` if nobody knows.
    pub fn asked(&self) -> Option<Value> {
        match &self.original {
            Original::Value(value) => Some(value.clone()),
            Original::Default => Some(default(self.desired.setting())),
            Original::Unknown => None,
        }
    }

    /// Somebody wrote this in the place of ours: that comes back one day. What a runtime writes to a
    /// container is its spec, in which ours may be.
    pub fn replace_original(&mut self, scope: Scope, written: &Value) {
        if scope != Scope::Container && !is_withheld(self.desired.setting()) {
            self.original = Original::Value(written.clone());
        }
    }

    /// What the kernel held before our first value, where nobody could say what was asked for. After
    /// a restart that may be what we had decided; so what others go without is not believed. Whether
    /// it comes back now: it was left as it is for want of this.
    pub fn learn_original(&mut self, old: Value) -> bool {
        let unknown = self.route == Route::Kernel && self.original == Original::Unknown;
        if !unknown || is_withheld(self.desired.setting()) {
            return false;
        }
        let comes_back = self.applied == Applied::Left;
        if comes_back {
            self.desired = old.clone();
            self.applied = Applied::Pending;
            self.is_logged = false;
        }
        self.original = Original::Value(old);
        comes_back
    }
}

// === impl Target ===

impl Target {
    pub fn at(at: Option<CgroupPath>) -> Self {
        Self {
            at,
            ..Self::default()
        }
    }

    #[must_use]
    pub fn unasked(self, unasked: Unasked) -> Self {
        Self { unasked, ..self }
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.iter_mut()
    }

    pub fn entry_mut(&mut self, setting: Setting) -> Option<&mut Entry> {
        self.entries
            .iter_mut()
            .find(|entry| entry.desired.setting() == setting)
    }

    /// Takes over a decision. Originals stay: they are what was there before our first value, not
    /// before our latest.
    pub fn decide(
        &mut self,
        merged: &Merged,
        route: impl Fn(&Value) -> Route,
        asked: impl Fn(Setting) -> Option<Value>,
    ) {
        let idle = self.entries.iter().find(|it| it.desired == IDLE);
        let was_idle = idle.map(|it| it.over.clone());
        let decided = Vec::with_capacity(merged.iter().count());
        let mut before = std::mem::replace(&mut self.entries, decided);
        for (desired, owner) in merged.iter() {
            let setting = desired.setting();
            let mut old = before
                .iter()
                .position(|entry| entry.desired.setting() == setting)
                .map(|index| before.swap_remove(index));
            let (applied, is_logged, contest) = match &old {
                Some(old) if old.desired == *desired && old.applied != Applied::Left => {
                    (old.applied.clone(), old.is_logged, old.contest.clone())
                }
                _ => (Applied::Pending, false, Contest::default()),
            };
            let given = old.as_ref().is_some_and(|old| old.has_given(desired));
            let displaced_at = old.as_ref().map_or(0, |old| old.displaced_at);
            // What a container was made without it is not made with by being decided once more.
            let was_unsaid = (old.as_ref())
                .is_some_and(|old| setting.is_injected() && old.route == Route::Kernel);
            let told = old.as_mut().and_then(|old| old.told.take());
            let made_with = old.as_ref().is_some_and(|old| old.made_with);
            let original = self.original(setting, asked(setting), old.map(|old| old.original));
            let route = match was_unsaid {
                true => Route::Kernel,
                false => route(desired),
            };
            self.entries.push(Entry {
                applied,
                is_logged,
                contest,
                given,
                told,
                made_with,
                displaced_at,
                ..Entry::new(desired.clone(), owner.hook, route, original)
            });
        }
        for entry in before {
            let asked = asked(entry.desired.setting());
            self.give_back(entry, asked);
        }
        let is_idle = self.entries.iter().any(|it| it.desired == IDLE);
        if let Some(over) = was_idle.filter(|_| !is_idle) {
            self.give_back_shares(over);
        }
    }

    /// Hooks rest because koordlet does their part. Of what they had decided that comes back which was
    /// given by us, as long as it is there: whatever else is there is koordlet's, or was there before us,
    /// and is forgotten. So is what has no file, of which nobody can tell whose it is, and so are switches,
    /// which koordlet's ranks and cookies need as well.
    pub fn rest(&mut self, hooks: &BTreeSet<&'static str>) {
        self.entries.retain_mut(|entry| {
            if !hooks.contains(entry.owner) {
                return true;
            }
            entry.over = Some(Box::new(entry.desired.clone()));
            let setting = entry.desired.setting();
            entry.given && setting.has_file() && setting != Setting::SchedSwitch
        });
    }

    /// The same where nothing is this process's own yet: what hooks that rest had decided is forgotten, and
    /// so is what was recalled of settings that koordlet `has` now, whatever is there.
    pub fn leave(&mut self, hooks: &BTreeSet<&'static str>, has: impl Fn(Setting) -> bool) {
        self.entries.retain(|entry| {
            let recalled = entry.owner == GIVEN_BACK && has(entry.desired.setting());
            !hooks.contains(entry.owner) && !recalled
        });
    }

    /// Takes over a value of ours from before a restart, which is still in force: if nobody decides
    /// it any more it is given back.
    pub fn recall(&mut self, ours: Value, asked: Option<Value>) {
        if self.entry_mut(ours.setting()).is_none() {
            let route = match ours.setting().is_sayable() {
                true => Route::Request,
                false => Route::Kernel,
            };
            let entry = Entry {
                applied: Applied::Equal,
                ..Entry::new(ours, GIVEN_BACK, route, Original::Unknown)
            };
            self.give_back(entry, asked);
        }
    }

    /// What comes back of a setting that a runtime is told and of which nobody but it knows what was asked:
    /// this, or the default; `None` if that is unknown.
    pub fn back(&self, setting: Setting, asked: Option<Value>) -> Option<Value> {
        if !setting.is_sayable() {
            return None;
        }
        match self.original(setting, asked, None) {
            Original::Value(value) => Some(value),
            Original::Default => Some(default(setting)),
            Original::Unknown => None,
        }
    }

    /// The same that a process before us has given back, of which the runtime's own spec still has ours.
    pub fn recall_returned(&mut self, back: Value) {
        let original = Original::Value(back.clone());
        self.entries.push(Entry {
            applied: Applied::Equal,
            ..Entry::new(back, GIVEN_BACK, Route::Request, original)
        });
    }

    /// Takes over what was noted on the group, by a process before us, of one setting: what was there before
    /// comes back one day, or now if nobody decides about it; but not over what somebody else has written
    /// since.
    pub fn recall_noted(&mut self, noted: &Noted) {
        let Noted { before, ours, .. } = noted;
        if let Before::Awake {
            shares: Some(shares),
        } = before
            && self.undecided_shares.is_none()
        {
            self.note_forgotten(shares.clone());
        }
        // Of devices each has its own, and the group has it noted.
        let is_one = !ours.setting().is_of_devices();
        let over = is_one.then(|| Box::new(ours.clone()));
        if let Some(entry) = self.entry_mut(ours.setting()) {
            let idles_no_more = *ours == IDLE && entry.owner == GIVEN_BACK;
            if entry.learn_original(before.value()) {
                entry.over.clone_from(&over);
            }
            if idles_no_more {
                self.give_back_shares(over);
            }
            return;
        }
        if *ours == IDLE {
            self.give_back_shares(over.clone());
        }
        self.entries.push(Entry::back(before.value(), over));
    }

    /// Takes over that a process before us has set this in the kernel: if nobody decides it any more, what was
    /// asked for comes back, also after each call if the runtime's own spec may have a value of ours.
    pub fn recall_mark(&mut self, setting: Setting, asked: Option<Value>, route: Route) {
        if self.entry_mut(setting).is_some() {
            return;
        }
        let original = self.original(setting, asked, None);
        let (back, applied) = match &original {
            Original::Value(value) => (value.clone(), Applied::Pending),
            Original::Unknown if !is_withheld(setting) => (default(setting), Applied::Left),
            Original::Default | Original::Unknown => (default(setting), Applied::Pending),
        };
        self.entries.push(Entry {
            applied,
            ..Entry::new(back, GIVEN_BACK, route, original)
        });
    }

    /// What is known of a setting before us.
    fn original(
        &self,
        setting: Setting,
        asked: Option<Value>,
        remembered: Option<Original>,
    ) -> Original {
        // For these nobody asks.
        let ours_alone = matches!(
            setting,
            Setting::CpuBurst
                | Setting::MemoryWmarkRatio
                | Setting::MemoryWmarkScale
                | Setting::MemoryWmarkMinAdj
                | Setting::MemoryPriority
                | Setting::MemoryUsePriorityOom
                | Setting::MemoryPageCacheSize
                | Setting::MemoryPageCacheSync
                | Setting::MemoryPageCacheEnable
                | Setting::CpuBvt
                | Setting::CpuIdle
                | Setting::CoreSched
                | Setting::Resctrl
                | Setting::SchedSwitch
        ) || setting.is_of_devices()
            || setting.is_told();
        let shares = self.undecided_shares.as_ref();
        let known = asked.or_else(|| shares.filter(|_| setting == Setting::CpuShares).cloned());
        match known {
            Some(value) => Original::Value(value),
            // Where nobody asks it is that of whoever starts the process.
            None if setting == Setting::OomScoreAdj => remembered.unwrap_or(Original::Unknown),
            None if ours_alone || self.unasked.is_certain_of(setting) => Original::Default,
            None => remembered.unwrap_or(Original::Unknown),
        }
    }

    /// Somebody has asked for other values than before: these are what comes back one day. What they
    /// wrote in place of ours is looked at anew.
    pub fn ask_anew(&mut self, asked: impl Fn(Setting) -> Option<Value>) {
        if let Some(shares) = asked(Setting::CpuShares)
            && self.undecided_shares.is_some()
        {
            self.undecided_shares = Some(shares);
        }
        for entry in &mut self.entries {
            if let Some(value) = asked(entry.desired.setting()) {
                if entry.owner == GIVEN_BACK {
                    entry.desired = value.clone();
                    entry.applied = Applied::Pending;
                }
                entry.original = Original::Value(value);
            }
        }
    }

    /// What a call has carried of these settings is given, and what it could not comes by the kernel
    /// route. What was given back keeps its own: the runtime's spec still has ours.
    pub fn hear_said(&mut self, said: &Self) {
        for said in &said.entries {
            let Some(entry) = self.entry_mut(said.desired.setting()) else {
                continue;
            };
            entry.told.clone_from(&said.told);
            match said.route {
                Route::Kernel if entry.owner == GIVEN_BACK => {}
                Route::Kernel => entry.route = Route::Kernel,
                Route::Request => entry.given |= said.has_given(&entry.desired),
            }
        }
    }

    /// What the runtime's spec has of what a process before us has given back, as that was told.
    pub fn hear_spec(&mut self, shown: impl Fn(Setting) -> Option<Value>) {
        for entry in &mut self.entries {
            let is_untold = entry.told.is_none() && entry.route == Route::Request;
            if is_untold && entry.owner == GIVEN_BACK {
                entry.told = shown(entry.desired.setting()).map(Box::new);
            }
        }
    }

    /// The runtime's spec has what somebody has asked for of what was given back, but where that call has `said`
    /// another value.
    pub fn hear_asked(&mut self, said: &Self, asked: impl Fn(Setting) -> Option<Value>) {
        for entry in &mut self.entries {
            let mut said = said.entries.iter();
            let carried = said.any(|it| {
                let is_it = it.desired.setting() == entry.desired.setting();
                is_it && it.route == Route::Request && it.told.as_deref() == Some(&it.desired)
            });
            if entry.owner == GIVEN_BACK
                && !carried
                && let Some(asked) = asked(entry.desired.setting())
            {
                entry.told = Some(Box::new(asked));
            }
        }
    }

    /// Nobody was told of it after all, and nobody has written it yet.
    pub fn leave_unsaid(&mut self) {
        for entry in &mut self.entries {
            entry.given = false;
            entry.told = None;
            entry.made_with = false;
        }
    }

    /// The runtime has written its whole stored spec, in which our value may be: what was given back
    /// is looked at once more.
    pub fn runtime_rewrote(&mut self) {
        for entry in self.entries.iter_mut().filter(|entry| entry.is_let_go()) {
            entry.applied = Applied::Pending;
        }
    }

    /// The group is another of the same name, to which nobody has written.
    pub fn was_made_anew(&mut self) {
        self.end_contests();
        for entry in &mut self.entries {
            if matches!(entry.applied, Applied::Equal | Applied::Written) {
                entry.applied = Applied::Pending;
            }
        }
    }

    /// Whatever was left to other writers is ours again.
    pub fn end_contests(&mut self) {
        for entry in &mut self.entries {
            entry.contest = Contest::default();
            if matches!(entry.applied, Applied::Paused | Applied::Yielded) {
                entry.applied = Applied::Pending;
            }
        }
    }

    /// Notes which shares the kernel forgot when we made the group idle.
    pub fn note_forgotten(&mut self, shares: Value) {
        // Those that somebody decides are in an entry, with what was before them.
        if self.entry_mut(Setting::CpuShares).is_none() {
            self.undecided_shares = Some(shares);
        }
    }

    /// A group that is idle no more has the kernel's default of 1,024 shares, which is not what was
    /// there before us. Those of an idle one cannot be seen, so they come back where idleness does.
    fn give_back_shares(&mut self, over: Option<Box<Value>>) {
        if let Some(entry) = self.entry_mut(Setting::CpuShares) {
            if entry.over.is_some() && over.is_some() {
                entry.over = over;
            }
        } else if let Some(shares) = self.undecided_shares.clone() {
            self.entries.push(Entry::back(shares, over));
        }
    }

    /// Nobody decides about this setting any more: what was there before us comes back, so that
    /// nothing of ours stays without an owner. In a request the entry stays, because the runtime's
    /// own spec still has our value; one that only we write goes once it is written.
    fn give_back(&mut self, entry: Entry, asked: Option<Value>) {
        let setting = entry.desired.setting();
        if setting.is_injected() || setting.is_told() {
            // The container keeps what it was made with, whoever decides; and what is told is told
            // anew as a whole.
            return;
        }
        let original = self.original(setting, asked, Some(entry.original));
        let (desired, applied) = match &original {
            Original::Value(value) => (value.clone(), Applied::Pending),
            Original::Default => (default(setting), Applied::Pending),
            Original::Unknown if is_withheld(setting) => (default(setting), Applied::Pending),
            Original::Unknown => (entry.desired.clone(), Applied::Left),
        };
        let same = entry.owner == GIVEN_BACK && entry.desired == desired;
        let (applied, is_logged, contest) = match same {
            true if entry.applied != Applied::Left => {
                (entry.applied.clone(), entry.is_logged, entry.contest)
            }
            true if applied == Applied::Left => (applied, entry.is_logged, entry.contest),
            _ => (applied, false, Contest::default()),
        };
        let nowhere = matches!(entry.applied, Applied::Absent | Applied::Unsupported);
        // What a call has told and a later one could not say is in the runtime's spec still.
        let route = match entry.told.is_some() {
            true => Route::Request,
            false => entry.route,
        };
        if route == Route::Kernel && (applied.is_final() || nowhere) {
            return;
        }
        self.entries.push(Entry {
            applied,
            is_logged,
            contest,
            told: entry.told,
            made_with: entry.made_with,
            over: entry.over,
            displaced_at: entry.displaced_at,
            ..Entry::new(desired, GIVEN_BACK, route, original)
        });
    }

    /// The kernel makes a group with the limits of page cache that the one above it has: what is still to
    /// be given back there is to be given back here as well.
    pub fn give_back_copies(&mut self, above: &Self) {
        let copied = above.entries.iter().filter(|entry| {
            let is_there = !entry.applied.is_final() && !entry.applied.is_hands_off();
            entry.owner == GIVEN_BACK && is_there && is_copied(entry.desired.setting())
        });
        for entry in copied {
            let setting = entry.desired.setting();
            if self.entry_mut(setting).is_none() {
                let (default, original) = (default(setting), Original::Default);
                let entry = Entry::new(default, GIVEN_BACK, Route::Kernel, original);
                self.entries.push(entry);
            }
        }
    }

    /// Lets go of what is not ours, which stays as it is.
    pub fn retain(&mut self, is_ours: impl FnMut(&Entry) -> bool) {
        self.entries.retain(is_ours);
    }

    /// Lets go of what was given back and is ours no more.
    pub fn settle(&mut self) {
        self.entries.retain(|entry| {
            let ours = entry.owner != GIVEN_BACK || entry.route == Route::Request;
            ours || !entry.applied.is_final()
        });
    }
}

#[cfg(test)]
mod tests;

//! The decided settings of one control group: what each should be, by whom, what was there before,
//! and what became of it.
//!
//! Nothing of ours stays without an owner: a setting that nobody decides any more is given back.

use koord_hooks::Merged;
use koord_model::{Bvt, CgroupPath, CpuQuota, CpusetCpus, MemoryLimit, Setting, Value};

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
}

/// One decided setting of one control group.
#[derive(Clone, Debug)]
pub struct Entry {
    pub desired: Value,
    /// The hook that decided.
    pub owner: &'static str,
    pub route: Route,
    /// What was there or was asked for before us, as far as we saw it; quotas for 100 ms, as
    /// hooks decide them.
    pub original: Option<Value>,
    pub applied: Applied,
}

/// Owner of a value that hooks no longer decide, and that is as it was before them.
pub const GIVEN_BACK: &str = "-";

/// The decided settings of one control group.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// Where it is; `None` until that is known.
    pub at: Option<CgroupPath>,
    entries: Vec<Entry>,
    /// The shares that it has where nobody decides, as far as that is known: the kubelet's, or
    /// those that the kernel forgot when the group became idle.
    pub undecided_shares: Option<Value>,
}

// === impl Applied ===

impl Applied {
    /// Whether there is nothing left to do for a value that is given back: it is there, or nothing
    /// is that could have it.
    fn is_final(&self) -> bool {
        match self {
            Self::Equal | Self::Written | Self::Absent | Self::Unsupported => true,
            Self::Pending | Self::Masked | Self::Refused(_) => false,
        }
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
        let was_idle = self.is_idle();
        let decided = Vec::with_capacity(merged.iter().count());
        let mut before = std::mem::replace(&mut self.entries, decided);
        for (desired, owner) in merged.iter() {
            let setting = desired.setting();
            let old = before
                .iter()
                .position(|entry| entry.desired.setting() == setting)
                .map(|index| before.swap_remove(index));
            let applied = match &old {
                Some(old) if old.desired == *desired => old.applied.clone(),
                _ => Applied::Pending,
            };
            let original = asked(setting).or(old.and_then(|old| old.original));
            self.entries.push(Entry {
                route: route(desired),
                desired: desired.clone(),
                owner: owner.hook,
                original,
                applied,
            });
        }
        for entry in before {
            self.give_back(entry, &asked);
        }
        if was_idle && !self.is_idle() {
            self.give_back_shares();
        }
    }

    /// Notes which shares the kernel forgot when we made the group idle.
    pub fn has_forgotten(&mut self, shares: Value) {
        // Those that somebody decides are in an entry, with what was before them.
        if self.entry_mut(Setting::CpuShares).is_none() {
            self.undecided_shares = Some(shares);
        }
    }

    /// What a setting is where nobody decides and nobody asked for anything.
    fn undecided(&self, setting: Setting) -> Option<Value> {
        Some(match setting {
            Setting::CpuShares => return self.undecided_shares.clone(),
            Setting::CpuQuota => CpuQuota::Unlimited.into(),
            Setting::CpusetCpus => CpusetCpus::All.into(),
            Setting::MemoryLimit => MemoryLimit::Unlimited.into(),
            Setting::CpuBvt => Bvt::default().into(),
            Setting::CpuIdle => false.into(),
        })
    }

    fn is_idle(&self) -> bool {
        let idle = Value::CpuIdle(true);
        self.entries.iter().any(|entry| entry.desired == idle)
    }

    /// A group that is idle no more has the kernel's default of 1,024 shares, which is not what was
    /// there before us.
    fn give_back_shares(&mut self) {
        if self.entry_mut(Setting::CpuShares).is_none()
            && let Some(shares) = self.undecided_shares.clone()
        {
            self.entries.push(Entry {
                original: Some(shares.clone()),
                desired: shares,
                owner: GIVEN_BACK,
                route: Route::Kernel,
                applied: Applied::Pending,
            });
        }
    }

    /// Nobody decides about this setting any more: what was there before us comes back, so that
    /// nothing of ours stays without an owner. In a request the entry stays, because the runtime's
    /// own spec still has our value; one that only we write goes once it is written.
    fn give_back(&mut self, entry: Entry, asked: impl Fn(Setting) -> Option<Value>) {
        let setting = entry.desired.setting();
        let before = asked(setting).or(entry.original);
        let Some(desired) = before.or_else(|| self.undecided(setting)) else {
            return;
        };
        let applied = match entry.desired == desired && entry.owner == GIVEN_BACK {
            true => entry.applied,
            false => Applied::Pending,
        };
        if applied.is_final() && entry.route == Route::Kernel {
            return;
        }
        self.entries.push(Entry {
            original: Some(desired.clone()),
            desired,
            owner: GIVEN_BACK,
            route: entry.route,
            applied,
        });
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

//! How far the thread that writes gets with what it has in hand.
//!
//! A thread that hangs in the kernel cannot say so. So each piece of work is noted here as it is handed
//! over, the thread notes its steps, and who waits for long compares two looks.

use koord_model::{CgroupPath, Setting};
use std::{
    collections::BTreeMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// Shared by who hands work over and by who does it, and held by neither for longer than a look. A thread
/// that does it may go behind all others, so it copies and frees nothing but a node of a map meanwhile.
#[derive(Clone, Debug, Default)]
pub(super) struct Progress(Arc<Mutex<State>>);

/// Where the thread stands, or what it should begin with. Two looks find the same only if it has not moved
/// between them.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Standing {
    pub(crate) at: CgroupPath,
    pub(crate) setting: Setting,
    steps: u64,
}

/// A piece of work. Dropped when it is done, or could not be handed over.
#[derive(Debug)]
pub(super) struct InHand {
    number: u64,
    writes: bool,
    all: Progress,
}

#[derive(Debug, Default)]
struct State {
    /// What was handed over so far.
    handed: u64,
    /// What of it is not done, by its number, and where each stands.
    in_hand: BTreeMap<u64, (CgroupPath, Setting)>,
    /// How much of that changes anything.
    writing: usize,
    /// Steps of all work so far, and ends of what was first then.
    steps: u64,
}

// === impl Progress ===

impl Progress {
    /// Work that begins with this setting of this group.
    pub(super) fn begin(&self, at: &CgroupPath, setting: Setting) -> InHand {
        self.hand_over((at, setting), true)
    }

    /// The same of work that changes nothing.
    pub(super) fn begin_to_read(&self, at: &CgroupPath, setting: Setting) -> InHand {
        self.hand_over((at, setting), false)
    }

    fn hand_over(&self, (at, setting): (&CgroupPath, Setting), writes: bool) -> InHand {
        let stands = (at.clone(), setting);
        let mut state = self.lock();
        let number = state.handed;
        state.handed += 1;
        state.writing += usize::from(writes);
        state.in_hand.insert(number, stands);
        InHand {
            number,
            writes,
            all: self.clone(),
        }
    }

    /// Whether anything that is not done may change something.
    pub(super) fn is_writing(&self) -> bool {
        self.lock().writing > 0
    }

    /// Where the first piece of work stands; `None` if there is none.
    pub(super) fn standing(&self) -> Option<Standing> {
        let state = self.lock();
        let (_, (at, setting)) = state.in_hand.first_key_value()?;
        Some(Standing {
            at: at.clone(),
            setting: *setting,
            steps: state.steps,
        })
    }

    fn lock(&self) -> MutexGuard<'_, State> {
        // Nothing in here panics halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

// === impl InHand ===

impl InHand {
    /// It gets on to this setting of this group.
    pub(super) fn step(&self, at: &CgroupPath, setting: Setting) {
        // What the allocator does is done without the lock.
        let stands = (at.clone(), setting);
        let mut state = self.all.lock();
        state.steps += 1;
        let stood = state.in_hand.insert(self.number, stands);
        drop(state);
        drop(stood);
    }
}

impl Drop for InHand {
    fn drop(&mut self) {
        let mut state = self.all.lock();
        // What comes later may be given up before the thread has it.
        let first = state.in_hand.first_key_value().map(|(number, _)| *number);
        if first == Some(self.number) {
            state.steps += 1;
        }
        state.writing -= usize::from(self.writes);
        let stood = state.in_hand.remove(&self.number);
        drop(state);
        drop(stood);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_first_piece_of_work_says_where_the_thread_stands_and_two_looks_whether_it_moves() {
        let at = |text| CgroupPath::parse(text).unwrap();
        let progress = Progress::default();
        assert_eq!(progress.standing(), None);
        let first = progress.begin(&at("pods/a"), Setting::CpuShares);
        let place = || {
            let Standing { at, setting, .. } = progress.standing().unwrap();
            (at, setting)
        };
        let handed = progress.standing();
        assert_eq!(place(), (at("pods/a"), Setting::CpuShares));
        let second = progress.begin(&at("pods/b"), Setting::CpuQuota);
        assert_eq!(progress.standing(), handed, "it waits for the first");

        first.step(&at("pods/a"), Setting::CpuShares);
        assert_eq!(place(), (at("pods/a"), Setting::CpuShares));
        assert_ne!(progress.standing(), handed, "it has begun");
        first.step(&at("pods/c"), Setting::CpusetCpus);
        assert_eq!(place(), (at("pods/c"), Setting::CpusetCpus));

        drop(first);
        assert_eq!(place(), (at("pods/b"), Setting::CpuQuota));
        drop(second);
        assert_eq!(progress.standing(), None);
    }

    #[test]
    fn who_reads_stands_somewhere_and_changes_nothing() {
        let at = CgroupPath::parse("pods/a").unwrap();
        let progress = Progress::default();
        let read = progress.begin_to_read(&at, Setting::CpuShares);
        assert!(progress.standing().is_some() && !progress.is_writing());
        let written = progress.begin(&at, Setting::CpuShares);
        drop(read);
        assert!(progress.is_writing());
        drop(written);
        assert!(progress.standing().is_none() && !progress.is_writing());
    }

    #[test]
    fn work_that_is_given_up_before_its_turn_is_no_step() {
        let at = |text| CgroupPath::parse(text).unwrap();
        let progress = Progress::default();
        let first = progress.begin(&at("pods/a"), Setting::CpuShares);
        let second = progress.begin(&at("pods/b"), Setting::CpuQuota);
        let third = progress.begin(&at("pods/a"), Setting::CpuShares);
        let standing = progress.standing();
        drop(second);
        assert_eq!(progress.standing(), standing);
        drop(first);
        assert_ne!(progress.standing(), standing, "it has ended");
        drop(third);
        assert_eq!(progress.standing(), None);
    }
}

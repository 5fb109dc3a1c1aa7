//! Which settings of a container are by us, noted on its control group.
//!
//! A cookie has no name, a group of the caches does not say who has put a thread there, and a file of the
//! kernel not who has written it. By this whoever starts after us knows what to give back where that is
//! decided no more; it goes with its control group.
//!
//! Marks are names alone, because a container may be able to write to its own group: what comes back is what
//! was asked for it or, where that is unknown, what it has at the start, whoever has marked it.

use super::{Cgroups, Note, ReadError};
use koord_model::{CgroupPath, Setting};
use std::{collections::BTreeSet, io};
use tracing::debug;

/// What is marked, each in a note of its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Marked {
    /// Groups that its threads were brought into.
    Threads,
    /// Values that were written to its files. What block devices have is noted on the group by device.
    Files,
    /// Values that are there no more, but in the spec that its runtime writes with each update.
    Spec,
}

// === impl Marked ===

impl Marked {
    /// The name of the note.
    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Threads => "threads",
            Self::Files => "files",
            Self::Spec => "spec",
        }
    }

    /// Whether this is marked so.
    pub fn has(self, setting: Setting) -> bool {
        match self {
            Self::Threads => setting.is_of_threads(),
            Self::Files => setting.has_file() && !setting.is_of_devices(),
            Self::Spec => setting.has_file() && setting.is_sayable(),
        }
    }

    fn of_name(self, name: &str) -> Option<Setting> {
        let mut all = Setting::ALL.iter().copied();
        all.find(|it| it.name() == name && self.has(*it))
    }
}

// === impl Cgroups ===

impl Cgroups {
    /// The settings with which a control group is marked. A name that we do not know is another version's and
    /// passed over.
    ///
    /// # Errors
    ///
    /// When it cannot be read now.
    pub fn marks(&self, at: &CgroupPath, of: Marked) -> Result<BTreeSet<Setting>, ReadError> {
        match self.tree.note(self.any_controller(), at, Note::Marks(of)) {
            Ok(text) => Ok(text.split(' ').filter_map(|it| of.of_name(it)).collect()),
            // A kernel whose groups take no notes.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(BTreeSet::new()),
            Err(source) => Err(self.unreadable(at, None, of.name(), source)),
        }
    }

    /// Marks a control group with these alone. Whether there is nothing more to be done: where the kernel
    /// takes no notes, nothing is known after a restart, and what cannot be noted now may be later.
    pub fn mark(&self, at: &CgroupPath, of: Marked, settings: &BTreeSet<Setting>) -> bool {
        let names: Vec<_> = settings.iter().map(|it| it.name()).collect();
        let text = names.join(" ");
        let noted = self
            .tree
            .set_note(self.any_controller(), at, Note::Marks(of), &text);
        match noted {
            Ok(()) => true,
            Err(error) => {
                debug!(cgroup = %at, %error, "what of it is ours cannot be noted");
                error.kind() == io::ErrorKind::Unsupported
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cgroup::{Controller, Generation, Tree as _},
        fake::{Errno, FakeTree},
    };

    fn group() -> (FakeTree, Cgroups, CgroupPath) {
        let tree = FakeTree::new(Generation::V2, 2);
        let at = CgroupPath::parse("kubepods/pod1/c1").unwrap();
        tree.make(&at);
        (tree.clone(), Cgroups::over(tree), at)
    }

    fn note(tree: &FakeTree, at: &CgroupPath, of: Marked) -> String {
        tree.note(Controller::Cpu, at, Note::Marks(of)).unwrap()
    }

    #[test]
    fn what_a_group_is_marked_with_is_read_again_and_goes() {
        let (tree, cgroups, at) = group();
        let threads: BTreeSet<_> = [Setting::CoreSched, Setting::Resctrl].into();
        let files: BTreeSet<_> = [Setting::CpuBurst, Setting::MemoryHigh].into();
        let both = [(Marked::Threads, &threads), (Marked::Files, &files)];
        for (of, settings) in both {
            assert_eq!(cgroups.marks(&at, of).unwrap(), [].into());
            assert!(cgroups.mark(&at, of, settings));
        }
        assert_eq!(note(&tree, &at, Marked::Threads), "core_sched resctrl");
        assert_eq!(
            note(&tree, &at, Marked::Files),
            "cpu.cfs_burst_us memory.high"
        );
        for (of, settings) in both {
            assert_eq!(cgroups.marks(&at, of).unwrap(), *settings);
            assert!(cgroups.mark(&at, of, &[].into()));
            assert_eq!(cgroups.marks(&at, of).unwrap(), [].into());
            assert_eq!(note(&tree, &at, of), "");
        }
    }

    #[test]
    fn what_is_marked_elsewhere_or_has_no_such_name_is_passed_over() {
        let (tree, cgroups, at) = group();
        let text = "cpu.shares  resctrl? core_sched core_sched/2 blkio.cost.weight";
        for (of, expected) in [
            (Marked::Threads, Setting::CoreSched),
            (Marked::Files, Setting::CpuShares),
        ] {
            tree.set_note(Controller::Cpu, &at, Note::Marks(of), text)
                .unwrap();
            assert_eq!(cgroups.marks(&at, of).unwrap(), [expected].into());
        }
    }

    #[test]
    fn a_mark_that_cannot_be_read_is_not_none() {
        let (tree, cgroups, at) = group();
        tree.fail_notes(Some(Errno::NFILE));
        assert!(cgroups.marks(&at, Marked::Files).is_err());
        tree.fail_notes(None);
        tree.remove(&at);
        assert!(cgroups.marks(&at, Marked::Files).unwrap_err().is_gone());
    }

    #[test]
    fn a_mark_that_cannot_be_made_now_is_told() {
        let (tree, cgroups, at) = group();
        let marked: BTreeSet<_> = [Setting::CpuBurst].into();
        tree.refuse_notes(Some(Errno::NOSPC));
        assert!(!cgroups.mark(&at, Marked::Files, &marked));
        tree.refuse_notes(None);
        assert_eq!(cgroups.marks(&at, Marked::Files).unwrap(), [].into());
        assert!(cgroups.mark(&at, Marked::Files, &marked));
    }

    #[test]
    fn a_kernel_that_takes_no_notes_has_no_marks() {
        let (tree, _, at) = group();
        let cgroups = Cgroups::over(tree.without_notes());
        assert!(cgroups.mark(&at, Marked::Files, &[Setting::CpuBurst].into()));
        assert_eq!(cgroups.marks(&at, Marked::Files).unwrap(), [].into());
    }
}

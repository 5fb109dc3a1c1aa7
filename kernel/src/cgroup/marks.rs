//! Which groups the threads of a control group were brought into by us, noted on the control group itself.
//!
//! A cookie has no name, and a group of the caches does not say who has put a thread there. By this whoever
//! starts after us knows what to give back where that is decided no more; it goes with its control group.

use super::{Cgroups, ReadError};
use koord_model::{CgroupPath, Setting};
use std::{collections::BTreeSet, io};
use tracing::debug;

/// The name of the note.
const NAME: &str = "threads";

// === impl Cgroups ===

impl Cgroups {
    /// The settings of threads with which a control group is marked. A name that we do not know is another
    /// version's and passed over.
    ///
    /// # Errors
    ///
    /// When it cannot be read now.
    pub fn marks(&self, at: &CgroupPath) -> Result<BTreeSet<Setting>, ReadError> {
        match self.tree.note(self.any_controller(), at, NAME) {
            Ok(text) => Ok(text.split(' ').filter_map(of_threads).collect()),
            // A kernel whose groups take no notes.
            Err(error) if error.kind() == io::ErrorKind::Unsupported => Ok(BTreeSet::new()),
            Err(source) => Err(self.unreadable(at, None, NAME, source)),
        }
    }

    /// Marks a control group with these alone. Where the kernel takes no notes, nothing is known after a
    /// restart.
    pub fn mark(&self, at: &CgroupPath, settings: &BTreeSet<Setting>) {
        let names: Vec<_> = settings.iter().map(|it| it.name()).collect();
        let text = names.join(" ");
        let noted = self.tree.set_note(self.any_controller(), at, NAME, &text);
        if let Err(error) = noted {
            debug!(cgroup = %at, %error, "which groups its threads are in cannot be noted");
        }
    }
}

fn of_threads(name: &str) -> Option<Setting> {
    let mut all = Setting::ALL.iter().filter(|it| it.is_of_threads());
    all.find(|it| it.name() == name).copied()
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

    fn note(tree: &FakeTree, at: &CgroupPath) -> String {
        tree.note(Controller::Cpu, at, "threads").unwrap()
    }

    #[test]
    fn what_a_group_is_marked_with_is_read_again_and_goes() {
        let (tree, cgroups, at) = group();
        assert_eq!(cgroups.marks(&at).unwrap(), [].into());
        let both = [Setting::CoreSched, Setting::Resctrl].into();
        cgroups.mark(&at, &both);
        assert_eq!(note(&tree, &at), "core_sched resctrl");
        assert_eq!(cgroups.marks(&at).unwrap(), both);
        cgroups.mark(&at, &[].into());
        assert_eq!(note(&tree, &at), "");
        assert_eq!(cgroups.marks(&at).unwrap(), [].into());
    }

    #[test]
    fn what_is_no_setting_of_threads_is_passed_over() {
        let (tree, cgroups, at) = group();
        let text = "cpu.shares  resctrl? core_sched core_sched/2";
        tree.set_note(Controller::Cpu, &at, NAME, text).unwrap();
        assert_eq!(cgroups.marks(&at).unwrap(), [Setting::CoreSched].into());
    }

    #[test]
    fn a_mark_that_cannot_be_read_is_not_none() {
        let (tree, cgroups, at) = group();
        tree.fail_notes(Some(Errno::NFILE));
        assert!(cgroups.marks(&at).is_err());
        tree.remove(&at);
        tree.fail_notes(None);
        assert!(cgroups.marks(&at).unwrap_err().is_gone());
        let (_, cgroups, at) = {
            let (tree, ..) = group();
            let tree = tree.without_notes();
            (tree.clone(), Cgroups::over(tree), at)
        };
        cgroups.mark(&at, &[Setting::Resctrl].into());
        assert_eq!(cgroups.marks(&at).unwrap(), [].into());
    }
}

//! Who is in a control group.

use super::{Cgroups, Generation, MOST_BELOW, ReadError, Unseen, Walk, table};
use crate::core_sched::Tid;
use koord_model::{CgroupPath, Setting};
use std::time::Instant;

/// Threads or processes that are in a group and in those below it, in no order. Those of other process
/// namespaces, which have no number here, are left out.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Members {
    pub ids: Vec<Tid>,
    /// Why there may be more, in groups that were not looked at.
    pub unseen: Option<Unseen>,
}

/// Groups that are looked at before it is looked at the time: no container that has fewer is ever seen in
/// part, however late it is.
const AT_LEAST: usize = 64;

impl Cgroups {
    /// The threads in a group and in all groups below it, as many of those as are looked at: 64, and from
    /// then on more `until` it is late, up to [`MOST_BELOW`] below it. Each may take a millisecond, as its
    /// whole path is gone through.
    ///
    /// # Errors
    ///
    /// When the group is gone ([`ReadError::is_gone`]), the kernel does not list threads here
    /// ([`ReadError::is_unsupported`]), or a list cannot be read now. One below that goes meanwhile is passed
    /// over; what may not be read, or has too long a path below the group, is in [`Members::unseen`].
    pub fn threads(&self, at: &CgroupPath, until: Instant) -> Result<Members, ReadError> {
        self.members((at, until), table::threads_file)
    }

    /// The processes, by the same rules.
    ///
    /// # Errors
    ///
    /// As for [`threads`](Self::threads), and when the group has threads alone (cgroup v2).
    pub fn processes(&self, at: &CgroupPath, until: Instant) -> Result<Members, ReadError> {
        self.members((at, until), |_| table::PROCESSES)
    }

    fn members(
        &self,
        (at, until): (&CgroupPath, Instant),
        file: fn(Generation) -> &'static str,
    ) -> Result<Members, ReadError> {
        let mut ids = Vec::new();
        let mut walk = Walk::from(at.clone(), (), MOST_BELOW);
        let mut looked_at: usize = 0;
        while let Some((group, ())) = walk.step() {
            let may_be_late = looked_at > 0 && looked_at.is_multiple_of(AT_LEAST);
            if may_be_late && Instant::now() > until {
                walk.miss(Unseen::Late);
                break;
            }
            looked_at += 1;
            match self.members_alone(&group, file) {
                Ok(own) => ids.extend(own),
                // One below may go while we look.
                Err(error) if group != *at && error.is_gone() => continue,
                // Of threaded groups (cgroup v2) the one above lists the processes.
                Err(error) if group != *at && error.is_threaded() => {}
                // So are all below it.
                Err(error) if group != *at && error.is_too_long() => {
                    walk.miss(Unseen::Long);
                    continue;
                }
                // What is below it may be open.
                Err(error) if error.is_forbidden() => walk.miss(Unseen::Forbidden),
                Err(error) => return Err(error),
            }
            match self.names_below(&group, walk.room()) {
                Ok(below) => walk.enter(group, below, ()),
                Err(error) if error.is_gone() => {}
                Err(error) if error.is_forbidden() => walk.miss(Unseen::Forbidden),
                Err(error) => return Err(error),
            }
        }
        let unseen = walk.unseen();
        Ok(Members { ids, unseen })
    }

    fn members_alone(
        &self,
        at: &CgroupPath,
        file: fn(Generation) -> &'static str,
    ) -> Result<Vec<Tid>, ReadError> {
        let name = file(self.file(at, Setting::CoreSched)?.generation);
        let text = self.text(at, Setting::CoreSched, name)?;
        let numbers = text.lines().filter_map(|line| line.trim().parse().ok());
        Ok(numbers.filter(|number| *number > 0).collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cgroup::{Controller, Generation, Tree as _},
        fake::{Errno, FakeTree},
    };
    use std::time::Duration;

    fn later() -> Instant {
        Instant::now() + Duration::from_secs(3_600)
    }

    #[test]
    fn threads_and_processes_are_those_of_all_groups_below() {
        for generation in [Generation::V1, Generation::V2] {
            let tree = FakeTree::new(generation, 2);
            let path = |text| CgroupPath::parse(text).unwrap();
            for (at, thread) in [("a", 7), ("a/b/c", 8), ("a/d", 0), ("e", 9)] {
                tree.make(&path(at));
                for group in ["a", "a/b", "a/b/c", "a/d", "e"] {
                    let cgroups = Cgroups::over(tree.clone());
                    cgroups
                        .write(
                            &path(group),
                            &koord_model::CpusetCpus::Only("0".parse().unwrap()).into(),
                        )
                        .ok();
                }
                tree.enter(&path(at), thread);
            }
            let cgroups = Cgroups::over(tree);
            let mut threads = cgroups.threads(&path("a"), later()).unwrap().ids;
            threads.sort_unstable();
            assert_eq!(threads, [7, 8]);
            let mut processes = cgroups.processes(&path("a"), later()).unwrap().ids;
            processes.sort_unstable();
            assert_eq!(processes, [7, 8]);
            assert!(
                cgroups
                    .threads(&path("gone"), later())
                    .unwrap_err()
                    .is_gone()
            );
            assert!(
                cgroups
                    .processes(&path("gone"), later())
                    .unwrap_err()
                    .is_gone()
            );
        }
    }

    #[test]
    fn groups_that_cannot_be_listed_are_not_taken_for_none() {
        let tree = FakeTree::new(Generation::V2, 2);
        let path = |text| CgroupPath::parse(text).unwrap();
        tree.make(&path("a/b"));
        tree.enter(&path("a/b"), 7);
        let cgroups = Cgroups::over(tree.clone());
        for group in ["a", "a/b"] {
            tree.fail_next_read(&path(group), ".", Errno::MFILE);
            let error = cgroups.threads(&path("a"), later()).unwrap_err();
            assert!(!error.is_gone(), "{group}: {error}");
            // It has gone since its own members were read.
            tree.fail_next_read(&path(group), ".", Errno::NOENT);
            let found: &[Tid] = if group == "a" { &[] } else { &[7] };
            assert_eq!(
                cgroups.threads(&path("a"), later()).unwrap().ids,
                found,
                "{group}"
            );
        }
        assert_eq!(cgroups.threads(&path("a"), later()).unwrap().ids, [7]);
    }

    #[test]
    fn one_whose_path_is_too_long_keeps_no_other_from_being_found() {
        let tree = FakeTree::new(Generation::V2, 2);
        let path = |text: &str| CgroupPath::parse(text).unwrap();
        for (at, thread) in [("a", 7), ("a/b", 8), ("a/c", 9)] {
            tree.make(&path(at));
            tree.enter(&path(at), thread);
        }
        let cgroups = Cgroups::over(tree.clone());
        tree.fail_next_read(&path("a/c"), "cgroup.threads", Errno::NAMETOOLONG);
        let found = cgroups.threads(&path("a"), later()).unwrap();
        assert_eq!((found.ids, found.unseen), (vec![7, 8], Some(Unseen::Long)));
        assert_eq!(cgroups.threads(&path("a"), later()).unwrap().unseen, None);
    }

    #[test]
    fn those_that_may_not_be_read_keep_no_other_from_being_found() {
        let tree = FakeTree::new(Generation::V2, 2);
        let path = |text: &str| CgroupPath::parse(text).unwrap();
        for (at, thread) in [("a", 7), ("a/b", 8), ("a/c", 9), ("a/c/d", 10)] {
            tree.make(&path(at));
            tree.enter(&path(at), thread);
        }
        let cgroups = Cgroups::over(tree.clone());
        let found = || {
            let mut found = cgroups.threads(&path("a"), later()).unwrap();
            found.ids.sort_unstable();
            (found.ids, found.unseen.map(|why| why.to_string()))
        };
        let told = || Some("one may not be read".to_owned());
        // Its list alone, or that of what is below it.
        for errno in [Errno::ACCESS, Errno::PERM] {
            tree.fail_next_read(&path("a/c"), "cgroup.threads", errno);
            assert_eq!(found(), (vec![7, 8, 10], told()));
            tree.fail_next_read(&path("a/c"), ".", errno);
            assert_eq!(found(), (vec![7, 8, 9], told()));
        }
        tree.close(&path("a/c"));
        assert_eq!(found(), (vec![7, 8], told()));
        tree.close(&path("a"));
        assert_eq!(found(), (vec![], told()));
        assert!(tree.has_directory(Controller::Cpu, &path("a")).unwrap());
    }

    #[test]
    fn of_more_groups_than_are_looked_at_some_are_and_this_is_told() {
        let tree = FakeTree::new(Generation::V2, 2);
        let path = |text: &str| CgroupPath::parse(text).unwrap();
        tree.make(&path("a"));
        tree.enter(&path("a"), 7);
        for number in 0..4_096 {
            tree.make(&path(&format!("a/{number:04}")));
        }
        tree.enter(&path("a/0000"), 8);
        let cgroups = Cgroups::over(tree.clone());
        let found = cgroups.threads(&path("a"), later()).unwrap();
        assert_eq!((found.ids, found.unseen), (vec![7, 8], None));
        tree.make(&path("a/0000/below"));
        tree.take_reads("cgroup.threads");
        let found = cgroups.threads(&path("a"), later()).unwrap();
        let many = Unseen::Many { most: 4_096 };
        assert_eq!((found.ids, found.unseen), (vec![7, 8], Some(many)));
        assert_eq!(tree.take_reads("cgroup.threads"), 4_097);
    }

    #[test]
    fn groups_that_take_too_long_are_looked_at_in_part_and_this_is_told() {
        let tree = FakeTree::new(Generation::V2, 2);
        let path = |text: &str| CgroupPath::parse(text).unwrap();
        // With the one above them as many as are always looked at, and of another one more.
        for number in 0..63 {
            tree.make(&path(&format!("a/{number}")));
            tree.make(&path(&format!("b/{number}")));
        }
        tree.make(&path("b/63"));
        let cgroups = Cgroups::over(tree.clone());
        let looked = |at, until| {
            let unseen = cgroups.threads(&path(at), until).unwrap().unseen;
            (unseen, tree.take_reads("cgroup.threads"))
        };
        assert_eq!(looked("a", Instant::now()), (None, 64));
        assert_eq!(looked("b", Instant::now()), (Some(Unseen::Late), 64));
        assert_eq!(looked("b", later()), (None, 65));
    }
}

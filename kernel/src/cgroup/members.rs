//! Who is in a control group.

use super::{Cgroups, Generation, ReadError, table};
use crate::core_sched::Tid;
use koord_model::{CgroupPath, Setting};

impl Cgroups {
    /// The threads in a group and in all groups below it, in no order. Those of other process
    /// namespaces, which have no number here, are left out.
    pub fn threads(&self, at: &CgroupPath) -> Result<Vec<Tid>, ReadError> {
        self.members(at, table::threads_file)
    }

    /// The processes in a group and in all groups below it, by the same rules.
    pub fn processes(&self, at: &CgroupPath) -> Result<Vec<Tid>, ReadError> {
        self.members(at, |_| table::PROCESSES)
    }

    fn members(
        &self,
        at: &CgroupPath,
        file: fn(Generation) -> &'static str,
    ) -> Result<Vec<Tid>, ReadError> {
        let mut members = Vec::new();
        let mut groups = vec![at.clone()];
        while let Some(group) = groups.pop() {
            match self.members_alone(&group, file) {
                Ok(own) => members.extend(own),
                // One below may go while we look.
                Err(error) if group != *at && error.is_gone() => continue,
                // Of threaded groups (cgroup v2) the one above lists the processes.
                Err(error) if group != *at && error.is_threaded() => {}
                Err(error) => return Err(error),
            }
            let below = match self.children(&group) {
                Ok(below) => below,
                Err(error) if error.is_gone() => continue,
                Err(error) => return Err(error),
            };
            groups.extend(below.iter().filter_map(|name| group.join(name).ok()));
        }
        Ok(members)
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
        cgroup::Generation,
        fake::{Errno, FakeTree},
    };

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
            let mut threads = cgroups.threads(&path("a")).unwrap();
            threads.sort_unstable();
            assert_eq!(threads, [7, 8]);
            let mut processes = cgroups.processes(&path("a")).unwrap();
            processes.sort_unstable();
            assert_eq!(processes, [7, 8]);
            assert!(cgroups.threads(&path("gone")).unwrap_err().is_gone());
            assert!(cgroups.processes(&path("gone")).unwrap_err().is_gone());
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
            let error = cgroups.threads(&path("a")).unwrap_err();
            assert!(!error.is_gone(), "{group}: {error}");
            // It has gone since its own members were read.
            tree.fail_next_read(&path(group), ".", Errno::NOENT);
            let found: &[Tid] = if group == "a" { &[] } else { &[7] };
            assert_eq!(cgroups.threads(&path("a")).unwrap(), found, "{group}");
        }
        assert_eq!(cgroups.threads(&path("a")).unwrap(), [7]);
    }
}

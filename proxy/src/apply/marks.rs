//! Marks on control groups, by which a process after us knows what of them is by us.
//!
//! A mark is made before the first value is given, or the first thread brought in, and goes after the last
//! was taken back: so one that is killed between leaves a mark too many at worst. What is there is read once,
//! so that at rest nothing is. What cannot be noted, as without a free descriptor, is owed, and noted with the
//! next look at the group.

use koord_kernel::cgroup::{Cgroups, Marked};
use koord_model::{CgroupPath, Setting};
use std::collections::{BTreeMap, BTreeSet, HashMap};

/// What one control group is marked with.
#[derive(Debug, Default)]
pub(super) struct GroupMarks {
    /// What is noted on it; `None` until that could be read.
    noted: Option<BTreeSet<Setting>>,
    /// What could not be noted yet: the marks that are to be there, and those that are not.
    owed: BTreeMap<Setting, bool>,
}

/// By which groups the threads of control groups are known to be in, of those that were asked about.
#[derive(Debug, Default)]
pub(crate) struct Marks {
    known: HashMap<CgroupPath, GroupMarks>,
    /// How many were left when those that have gone were forgotten last.
    left: usize,
}

/// Control groups that are known before it is looked for the first time which of them have gone.
const FEW: usize = 64;

// === impl GroupMarks ===

impl GroupMarks {
    /// Marks a group with what is about to be given. Whether it was not to be marked so yet.
    pub(super) fn make(
        &mut self,
        (cgroups, at): (&Cgroups, &CgroupPath),
        of: Marked,
        setting: Setting,
    ) -> bool {
        self.set((cgroups, at), of, (setting, true))
    }

    /// Takes the mark back that was made for what did not come about.
    pub(super) fn unmake(
        &mut self,
        (cgroups, at): (&Cgroups, &CgroupPath),
        of: Marked,
        setting: Setting,
    ) {
        if self.owed.remove(&setting).is_none() {
            self.take((cgroups, at), of, setting);
        }
    }

    /// Takes the mark from one that has nothing of ours any more.
    pub(super) fn take(
        &mut self,
        (cgroups, at): (&Cgroups, &CgroupPath),
        of: Marked,
        setting: Setting,
    ) {
        self.set((cgroups, at), of, (setting, false));
    }

    fn set(
        &mut self,
        (cgroups, at): (&Cgroups, &CgroupPath),
        of: Marked,
        (setting, is_marked): (Setting, bool),
    ) -> bool {
        self.read((cgroups, at), of);
        let noted = self.noted.as_ref().map(|noted| noted.contains(&setting));
        let was_marked = self.owed.get(&setting).copied().or(noted);
        let is_new = was_marked != Some(is_marked);
        if is_new {
            self.owed.insert(setting, is_marked);
        }
        self.catch_up((cgroups, at), of);
        is_new
    }

    fn read(&mut self, (cgroups, at): (&Cgroups, &CgroupPath), of: Marked) {
        if self.noted.is_none() {
            self.noted = cgroups.marks(at, of).ok();
        }
    }

    /// Whether it is known to be marked with anything.
    pub(super) fn has_any(&self) -> bool {
        self.noted.as_ref().is_some_and(|noted| !noted.is_empty())
    }

    /// Whether something could not be noted yet.
    pub(super) fn owes(&self) -> bool {
        !self.owed.is_empty()
    }

    /// Notes what is owed.
    pub(super) fn catch_up(&mut self, (cgroups, at): (&Cgroups, &CgroupPath), of: Marked) {
        if self.owed.is_empty() {
            return;
        }
        self.read((cgroups, at), of);
        let Some(noted) = &mut self.noted else {
            return;
        };
        let mut marks = noted.clone();
        for (setting, is_marked) in &self.owed {
            match is_marked {
                true => marks.insert(*setting),
                false => marks.remove(setting),
            };
        }
        if marks == *noted || cgroups.mark(at, of, &marks) {
            *noted = marks;
            self.owed.clear();
        }
    }
}

// === impl Marks ===

impl Marks {
    /// Marks a control group whose threads are about to be brought into a group.
    pub(super) fn make(&mut self, cgroups: &Cgroups, at: &CgroupPath, setting: Setting) {
        let marks = self.of(cgroups, at);
        marks.make((cgroups, at), Marked::Threads, setting);
    }

    /// Takes the mark from one whose threads are in none any more.
    pub(super) fn take(&mut self, cgroups: &Cgroups, at: &CgroupPath, setting: Setting) {
        let marks = self.of(cgroups, at);
        marks.take((cgroups, at), Marked::Threads, setting);
    }

    fn of(&mut self, cgroups: &Cgroups, at: &CgroupPath) -> &mut GroupMarks {
        let is_new = !self.known.contains_key(at);
        if is_new && self.known.len() > 2 * self.left.max(FEW) {
            // One of which that is unknown stays.
            let is_there = |at: &CgroupPath| cgroups.exists(at).unwrap_or(true);
            self.known.retain(|at, _| is_there(at));
            self.left = self.known.len();
        }
        self.known.entry(at.clone()).or_default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::apply::{
        caches::Caches,
        cores::Cores,
        testing::{Processes, at},
        threads::{Member, ThreadGroup, ThreadGroups},
    };
    use koord_kernel::fake::{FakeCores, FakeResctrl};
    use koord_model::{CacheClass, CacheGroup, CacheShares, ClassGroup, CoreGroup, OomScoreAdj};
    use std::sync::Arc;

    /// Pods of one container each, `a` to `c`, none of which has threads.
    struct Node {
        processes: Processes,
        groups: ThreadGroups,
    }

    impl Node {
        fn new() -> Self {
            let processes = Processes::new();
            for pod in ["a", "b", "c"] {
                processes.make(pod);
            }
            let groups = ThreadGroups {
                cores: Cores::over(FakeCores::default(), processes.procfs()),
                caches: Caches::over(FakeResctrl::new(7), processes.procfs()),
                ..ThreadGroups::none()
            };
            Self { processes, groups }
        }

        /// How often something is noted when these threads are in this group.
        fn join(&mut self, pod: &str, group: ThreadGroup) -> usize {
            let member = Member {
                at: at(pod),
                group,
                with_shim: false,
            };
            let cgroups = self.processes.cgroups();
            self.processes.take_noted();
            self.groups.join(&cgroups, &member, Some(&[])).ok();
            self.processes.take_noted()
        }

        /// Forgets everything, as a process does that is started anew.
        fn restart(&mut self) {
            self.groups.marks = Marks::default();
        }

        fn marks(&self, pod: &str) -> Vec<&'static str> {
            let marks = self
                .processes
                .cgroups()
                .marks(&at(pod), Marked::Threads)
                .unwrap();
            marks.into_iter().map(Setting::name).collect()
        }
    }

    fn cores(id: Option<&str>) -> ThreadGroup {
        let shared = |id: &str| CoreGroup::Shared {
            id: id.into(),
            expeller: false,
        };
        ThreadGroup::Cores(id.map_or(CoreGroup::None, shared))
    }

    fn best_effort() -> ThreadGroup {
        ThreadGroup::Caches(CacheGroup::Class(ClassGroup {
            class: CacheClass::Be,
            shares: Arc::new(CacheShares::default()),
            monitored: None,
        }))
    }

    #[test]
    fn who_is_brought_into_a_group_is_marked_until_taken_out_of_it() {
        let mut node = Node::new();
        assert_eq!(node.join("a", cores(Some("x"))), 1);
        assert_eq!(node.join("a", best_effort()), 1);
        assert_eq!(node.marks("a"), ["core_sched", "resctrl"]);
        node.restart();
        // What is so already is not noted anew.
        for (group, noted) in [(cores(Some("y")), 0), (cores(None), 1), (cores(None), 0)] {
            assert_eq!(node.join("a", group), noted);
        }
        assert_eq!(node.marks("a"), ["resctrl"]);
        node.restart();
        assert_eq!(node.join("a", ThreadGroup::Caches(CacheGroup::Root)), 1);
        assert_eq!(node.marks("a"), [""; 0]);
    }

    #[test]
    fn nothing_is_marked_that_is_in_no_group() {
        let mut node = Node::new();
        let score = ThreadGroup::OomScore(OomScoreAdj::new(7).unwrap());
        let root = ThreadGroup::Caches(CacheGroup::Root);
        for group in [score, root, cores(None)] {
            assert_eq!(node.join("a", group), 0);
        }
        let none = ThreadGroups::none();
        (node.groups.cores, node.groups.caches) = (none.cores, none.caches);
        for group in [best_effort(), cores(Some("x"))] {
            assert_eq!(node.join("a", group), 0);
        }
    }

    #[test]
    fn who_was_not_taken_out_keeps_the_mark() {
        let mut node = Node::new();
        assert_eq!(node.join("a", cores(Some("x"))), 1);
        node.processes.hide("a", koord_kernel::fake::Errno::NFILE);
        assert_eq!(node.join("a", cores(None)), 0);
        assert_eq!(node.marks("a"), ["core_sched"]);
    }

    #[test]
    fn what_cannot_be_noted_is_with_the_next_look() {
        let mut node = Node::new();
        let looks = [
            (true, cores(Some("x")), vec![]),
            (true, best_effort(), vec![]),
            (false, cores(Some("x")), vec!["core_sched", "resctrl"]),
            (true, cores(None), vec!["core_sched", "resctrl"]),
            (false, best_effort(), vec!["resctrl"]),
        ];
        for (refuses, group, marks) in looks {
            let errno = refuses.then_some(koord_kernel::fake::Errno::NOSPC);
            node.processes.refuse_notes(errno);
            assert_eq!(node.join("a", group), 1);
            assert_eq!(node.marks("a"), marks);
        }
        assert_eq!(node.join("a", best_effort()), 0);
    }

    #[test]
    fn those_that_have_gone_are_forgotten() {
        let (processes, mut marks) = (Processes::new(), Marks::default());
        let cgroups = processes.cgroups();
        for number in 0..400 {
            let pod = format!("pod{number}");
            processes.make(&pod);
            marks.make(&cgroups, &at(&pod), Setting::Resctrl);
            processes.remove(&pod);
        }
        assert!(marks.known.len() < 200, "{}", marks.known.len());
    }
}

//! Groups over a fake processor and a fake tree of control groups.

use super::{
    super::{
        testing::{Processes, SHIMS, at},
        threads::ThreadGroup,
    },
    *,
};
use crate::status::chain_of;
use koord_kernel::fake::FakeResctrl;
use koord_model::{Bandwidth, CacheClass, CacheClasses, PerCache, PodUid};
use std::fs;

/// A machine with pods of one container each, `a` to `c`, which their shims have started.
struct Node {
    kernel: FakeResctrl,
    processes: Processes,
    cgroups: Cgroups,
    caches: Caches,
}

// === impl Node ===

impl Node {
    /// With as many classes beside the root's.
    fn new(classes: usize) -> Self {
        let (kernel, processes) = (FakeResctrl::new(classes), Processes::new());
        let node = Self {
            caches: Caches::over(kernel.clone(), processes.procfs()),
            cgroups: processes.cgroups(),
            kernel,
            processes,
        };
        for (pod, shim) in SHIMS {
            node.kernel.fork(None, shim);
            node.start(pod, shim, shim + 1);
        }
        node
    }

    /// Has a process of a pod's container started by another.
    fn start(&self, pod: &str, parent: Tid, process: Tid) {
        self.kernel.fork(Some(parent), process);
        self.processes.start(pod, parent, process);
    }

    fn try_join(&mut self, pod: &str, group: &CacheGroup) -> Result<Joined, JoinError> {
        let member = Member {
            at: at(pod),
            group: ThreadGroup::Caches(group.clone()),
            with_shim: true,
        };
        self.caches.look_anew();
        self.caches.join(&self.cgroups, &member, group)
    }

    fn join(&mut self, pod: &str, group: &CacheGroup) -> Joined {
        self.try_join(pod, group).unwrap()
    }

    fn keep(&mut self, wanted: &[&str]) -> usize {
        let wanted = wanted.iter().map(|name| (*name).to_owned()).collect();
        let swept = self.caches.keep(&wanted);
        assert!(swept.failed.is_none(), "{:?}", swept.failed);
        swept.removed
    }

    fn groups<const N: usize>(&self, threads: [Tid; N]) -> [String; N] {
        threads.map(|thread| self.kernel.group_of(thread))
    }

    fn monitors<const N: usize>(&self, threads: [Tid; N]) -> [String; N] {
        threads.map(|thread| self.kernel.monitor_of(thread))
    }

    /// On a processor with as many classes, and ids for as many monitoring groups.
    fn monitoring(classes: usize, most: usize) -> Self {
        let node = Self::new(classes);
        let kernel = node.kernel.clone().monitoring(most);
        Self { kernel, ..node }
    }

    /// Forgets everything, as a process does that is started anew.
    fn restart(&mut self) {
        self.caches = Caches::over(self.kernel.clone(), self.processes.procfs());
    }
}

fn shares(percent: i64) -> CacheShares {
    CacheShares {
        bandwidth: PerCache::all(Bandwidth::new(percent).unwrap()),
        ..CacheShares::default()
    }
}

fn of_class(class: CacheClass, percent: i64) -> ClassGroup {
    ClassGroup {
        class,
        shares: shares(percent).into(),
        monitored: None,
    }
}

/// That of BE, where a pod is counted apart.
fn monitored(pod: &str) -> CacheGroup {
    CacheGroup::Class(ClassGroup {
        monitored: Some(PodUid::new(pod).unwrap()),
        ..of_class(CacheClass::Be, 20)
    })
}

fn class(class: CacheClass, percent: i64) -> CacheGroup {
    CacheGroup::Class(of_class(class, percent))
}

fn own(pod: &str, percent: i64, otherwise: Option<ClassGroup>) -> CacheGroup {
    CacheGroup::Pod {
        pod: PodUid::new(pod).unwrap(),
        shares: shares(percent).into(),
        otherwise: otherwise.map(Box::new),
        yields_to: CacheClasses::default(),
    }
}

/// The same where these classes are enabled.
fn yielding(group: CacheGroup, classes: &[CacheClass]) -> CacheGroup {
    let CacheGroup::Pod {
        pod,
        shares,
        otherwise,
        ..
    } = group
    else {
        panic!("it is no pod's own: {group}");
    };
    CacheGroup::Pod {
        pod,
        shares,
        otherwise,
        yields_to: classes.iter().copied().collect(),
    }
}

#[test]
fn the_threads_of_a_pod_and_its_shim_are_in_the_group_and_those_of_others_are_not() {
    let mut node = Node::new(7);
    assert_eq!(node.join("a", &class(CacheClass::Be, 20)), Joined::Moved);
    assert_eq!(node.join("b", &own("b", 50, None)), Joined::Moved);
    let expected = ["BE", "BE", "koordlet-b", "koordlet-b", "", ""];
    assert_eq!(node.groups([10, 11, 20, 21, 30, 31]), expected);
    let has = |name| node.kernel.shares_of(name).unwrap();
    assert_eq!(has("BE"), "cache 0-100%, bandwidth 20%");
    assert_eq!(has("koordlet-b"), "cache 0-100%, bandwidth 50%");
}

#[test]
fn what_a_shim_starts_is_in_the_group_and_nothing_is_left_to_do() {
    let mut node = Node::new(7);
    node.join("a", &class(CacheClass::Be, 20));
    node.kernel.take_changes();
    node.start("a", 10, 12);
    assert_eq!(node.groups([12]), ["BE"]);
    assert_eq!(node.join("a", &class(CacheClass::Be, 20)), Joined::Equal);
    assert_eq!(node.kernel.take_changes(), 0);
}

#[test]
fn threads_of_groups_below_and_those_that_came_from_elsewhere_are_brought_in() {
    let mut node = Node::new(7);
    node.join("a", &class(CacheClass::Be, 20));
    node.kernel.fork(None, 90);
    node.start("a/nested", 90, 91);
    assert_eq!(node.join("a", &class(CacheClass::Be, 20)), Joined::Moved);
    assert_eq!(node.groups([90, 91]), ["", "BE"]);
}

#[test]
fn a_thread_that_ends_meanwhile_is_no_error() {
    let mut node = Node::new(7);
    node.kernel.end(11);
    assert_eq!(node.join("a", &class(CacheClass::Be, 20)), Joined::Moved);
    assert_eq!(node.groups([10]), ["BE"]);
}

#[test]
fn other_shares_are_written_to_the_group_that_is_there() {
    let mut node = Node::new(7);
    node.join("a", &own("a", 50, None));
    node.kernel.take_changes();
    assert_eq!(node.join("a", &own("a", 20, None)), Joined::Moved);
    let expected = "cache 0-100%, bandwidth 20%";
    assert_eq!(node.kernel.shares_of("koordlet-a").unwrap(), expected);
    assert_eq!(node.kernel.take_changes(), 1);
}

#[test]
fn without_a_class_for_its_own_a_pod_shares_with_its_class_and_this_is_said() {
    let mut node = Node::new(2);
    let ls = of_class(CacheClass::Ls, 90);
    node.join("a", &CacheGroup::Class(ls.clone()));
    node.join("b", &own("b", 50, None));
    let short = own("c", 20, Some(ls));
    let error = node.try_join("c", &short).unwrap_err();
    assert_eq!(error.errno(), Some(28));
    assert_eq!(
        chain_of(&error),
        "cgroup /pods/c has no part of the cache of its own: its threads share with group LS: \
         the processor has no more classes for group koordlet-c"
    );
    assert_eq!(node.groups([30, 31]), ["LS", "LS"]);

    assert_eq!(node.keep(&["LS", "koordlet-c"]), 1);
    assert_eq!(node.join("c", &short), Joined::Moved);
    assert_eq!(
        node.groups([20, 21, 30, 31]),
        ["", "", "koordlet-c", "koordlet-c"]
    );
}

#[test]
fn the_last_classes_are_not_taken_from_those_that_are_enabled_and_have_no_group_yet() {
    let mut node = Node::new(3);
    let enabled = [CacheClass::Ls, CacheClass::Be];
    let ls = of_class(CacheClass::Ls, 90);
    let of_pod = |pod| yielding(own(pod, 50, Some(ls.clone())), &enabled);
    assert_eq!(node.join("a", &of_pod("a")), Joined::Moved);
    let error = node.try_join("b", &of_pod("b")).unwrap_err();
    assert_eq!(error.errno(), Some(28));
    assert_eq!(
        chain_of(&error),
        "cgroup /pods/b has no part of the cache of its own: its threads share with group LS: \
         the processor's last classes are left to LS, BE, so there is none for group koordlet-b"
    );
    // LS has its group now, and BE its class.
    let error = node.try_join("b", &of_pod("b")).unwrap_err();
    let told = "the processor's last classes are left to BE, so there is none for group koordlet-b";
    assert!(chain_of(&error).ends_with(told), "{}", chain_of(&error));
    assert_eq!(node.join("a", &of_pod("a")), Joined::Equal);
    assert_eq!(node.join("c", &class(CacheClass::Be, 20)), Joined::Moved);
    let expected = ["koordlet-a", "LS", "BE"];
    assert_eq!(node.groups([11, 21, 31]), expected);
    // Nobody is to be left one any more.
    assert_eq!(node.keep(&["koordlet-a", "LS"]), 1);
    assert_eq!(node.join("b", &own("b", 50, Some(ls))), Joined::Moved);
    assert_eq!(node.groups([21]), ["koordlet-b"]);
}

#[test]
fn without_any_class_threads_stay_where_they_are_and_this_is_said() {
    let mut node = Node::new(0);
    let error = node.try_join("a", &class(CacheClass::Be, 20)).unwrap_err();
    assert_eq!(
        chain_of(&error),
        "cgroup /pods/a has no part of the cache of its own: its threads stay where they are: \
         the processor has no more classes for group BE"
    );
    assert_eq!(node.groups([10, 11]), ["", ""]);
}

#[test]
fn what_is_given_back_is_in_the_roots_group_and_foreign_groups_are_left_alone() {
    let mut node = Node::new(7);
    node.kernel.make_foreign("vendor");
    node.kernel.fork(None, 90);
    node.start("a", 90, 91);
    node.join("a", &class(CacheClass::Be, 20));
    node.caches.mount().unwrap().add("vendor", 91).unwrap();
    assert_eq!(node.join("a", &CacheGroup::Root), Joined::Moved);
    assert_eq!(node.groups([10, 11, 91]), ["", "", "vendor"]);
    assert_eq!(node.join("a", &CacheGroup::Root), Joined::Equal);
    assert_eq!(node.keep(&[]), 1);
    assert!(node.kernel.shares_of("BE").is_none());
    assert!(node.kernel.shares_of("vendor").is_some());
}

#[test]
fn who_has_the_number_of_one_that_has_ended_since_it_was_listed_stays_in_its_group() {
    let mut node = Node::new(7);
    node.start("a", 10, 12);
    node.processes.replace(12);
    assert_eq!(node.join("a", &class(CacheClass::Be, 20)), Joined::Moved);
    assert_eq!(node.groups([10, 11, 12]), ["BE", "BE", ""]);
    node.caches.mount().unwrap().add("BE", 12).unwrap();
    let error = node.try_join("a", &CacheGroup::Root).unwrap_err();
    assert!(matches!(error, JoinError::Unsettled { .. }), "{error:?}");
    assert_eq!(node.groups([10, 11, 12]), ["", "", "BE"]);
}

#[test]
fn one_of_which_it_cannot_be_read_where_it_is_is_not_taken_for_ended() {
    let mut node = Node::new(7);
    node.start("a", 10, 12);
    node.processes.obscure(12);
    let error = node.try_join("a", &class(CacheClass::Be, 20)).unwrap_err();
    assert!(matches!(error, JoinError::Unsettled { .. }), "{error:?}");
    assert_eq!(node.groups([10, 11, 12]), ["BE", "BE", ""]);
}

#[test]
fn groups_are_found_again_after_a_restart() {
    let mut node = Node::new(7);
    node.join("a", &class(CacheClass::Be, 20));
    node.join("b", &own("b", 50, None));
    node.restart();
    node.kernel.take_changes();
    assert_eq!(node.join("a", &class(CacheClass::Be, 20)), Joined::Equal);
    assert_eq!(node.kernel.take_changes(), 0);
    // Its pod went while nobody looked.
    assert_eq!(node.keep(&["BE"]), 1);
    assert_eq!(node.groups([11, 21]), ["BE", ""]);
}

#[test]
fn a_group_that_cannot_be_removed_keeps_no_class_but_its_own() {
    let mut node = Node::new(3);
    for pod in ["a", "b", "c"] {
        node.join(pod, &own(pod, 50, None));
    }
    node.kernel.hold("koordlet-a");
    let swept = node.caches.keep(&BTreeSet::new());
    assert_eq!(swept.removed, 2);
    assert_eq!(
        chain_of(&swept.failed.unwrap()),
        "group koordlet-a cannot be removed: Device or resource busy (os error 16)"
    );
    let expected = ["koordlet-a", "", ""];
    assert_eq!(node.groups([11, 21, 31]), expected);
    assert_eq!(node.join("c", &own("c", 50, None)), Joined::Moved);
}

#[test]
fn a_pod_that_has_gone_and_a_kernel_without_groups_are_told_apart() {
    let mut node = Node::new(7);
    let be = class(CacheClass::Be, 20);
    assert!(node.try_join("gone", &be).unwrap_err().is_gone());
    node.caches = Caches::none();
    let unsupported = node.try_join("a", &be);
    assert!(matches!(unsupported, Err(JoinError::Unsupported)));
    assert_eq!(node.keep(&[]), 0);
}

#[test]
fn a_kernel_that_shows_nothing_yet_is_asked_when_somebody_comes() {
    let mut node = Node::new(7);
    let machine = tempfile::tempdir().unwrap();
    let roots = || (machine.path().join("sys"), machine.path().join("proc"));
    fs::create_dir_all(roots().0.join("fs/resctrl")).unwrap();
    let (sys_root, proc_root) = roots();
    node.caches = Caches::of_machine(sys_root, proc_root);
    assert!(node.caches.is_supported());
    // Nothing is mounted to give something back.
    assert_eq!(node.keep(&[]), 0);
    assert_eq!(node.join("a", &CacheGroup::Root), Joined::Equal);
    let error = node.try_join("a", &class(CacheClass::Be, 20)).unwrap_err();
    let expected = "cgroup /pods/a has no part of the cache of its own: \
                    resctrl is not mounted, and cannot be: ";
    assert!(
        chain_of(&error).starts_with(expected),
        "{}",
        chain_of(&error)
    );
}

#[test]
#[expect(clippy::disallowed_methods, reason = "a file of the test's own")]
fn groups_that_are_there_and_cannot_be_opened_are_not_taken_for_none() {
    let mut node = Node::new(7);
    let machine = tempfile::tempdir().unwrap();
    let roots = || (machine.path().join("sys"), machine.path().join("proc"));
    let groups = roots().0.join("fs/resctrl");
    fs::create_dir_all(&groups).unwrap();
    fs::write(groups.join("schemata"), "in no format").unwrap();
    let (sys_root, proc_root) = roots();
    node.caches = Caches::of_machine(sys_root, proc_root);
    let swept = node.caches.keep(&BTreeSet::new());
    let expected = "the groups cannot be listed: invalid data";
    assert_eq!(chain_of(&swept.failed.unwrap()), expected);
    let error = node.try_join("a", &CacheGroup::Root).unwrap_err();
    assert!(chain_of(&error).ends_with(expected), "{}", chain_of(&error));
}

#[test]
fn the_groups_of_a_pod_are_shown_each_once() {
    let mut node = Node::new(7);
    node.join("a", &class(CacheClass::Be, 20));
    let shown = |node: &mut Node| {
        node.caches.look_anew();
        node.caches.describe(&node.cgroups, &at("a"))
    };
    assert_eq!(shown(&mut node).as_deref(), Some("BE"));
    node.kernel.fork(None, 90);
    node.start("a", 90, 91);
    assert_eq!(shown(&mut node).as_deref(), Some("BE root"));
}

#[test]
fn a_pod_is_monitored_apart_within_its_class_with_all_that_its_shim_starts() {
    let mut node = Node::monitoring(1, 2);
    assert_eq!(node.join("a", &monitored("a")), Joined::Moved);
    assert_eq!(node.join("b", &class(CacheClass::Be, 20)), Joined::Moved);
    let monitor = "BE/mon_groups/koordlet-a";
    assert_eq!(node.groups([10, 11, 20, 21]), ["BE", "BE", "BE", "BE"]);
    assert_eq!(node.monitors([10, 11, 20, 21]), [monitor, monitor, "", ""]);
    node.kernel.take_changes();
    node.start("a", 10, 12);
    assert_eq!(node.monitors([12]), [monitor]);
    assert_eq!(node.join("a", &monitored("a")), Joined::Equal);
    assert_eq!(node.kernel.take_changes(), 0);
    let shown = node.caches.describe(&node.cgroups, &at("a"));
    assert_eq!(shown.as_deref(), Some(monitor));
}

/// Whatever comes into a group leaves its monitoring group, and that takes threads of its group alone.
#[test]
fn threads_come_into_the_group_before_its_monitoring_group() {
    let mut node = Node::monitoring(2, 2);
    node.join("a", &monitored("a"));
    node.kernel.fork(None, 90);
    node.start("a/nested", 90, 91);
    node.caches.mount().unwrap().add("BE", 11).unwrap();
    assert_eq!(node.monitors([11, 91]), ["", ""]);
    assert_eq!(node.join("a", &monitored("a")), Joined::Moved);
    let monitor = "BE/mon_groups/koordlet-a";
    assert_eq!(node.monitors([10, 11, 91]), [monitor, monitor, monitor]);
    let early = node.caches.mount().unwrap().add(monitor, 90).unwrap_err();
    assert_eq!(early.errno(), Some(22));
}

#[test]
fn without_an_id_a_pod_is_in_the_group_of_its_class_all_the_same_and_this_is_said() {
    let mut node = Node::monitoring(1, 1);
    node.join("a", &monitored("a"));
    let error = node.try_join("b", &monitored("b")).unwrap_err();
    assert_eq!(error.errno(), Some(28));
    assert_eq!(
        chain_of(&error),
        "the threads of cgroup /pods/b are in group BE, but are not monitored apart in it: \
         the processor has no more monitoring ids (RMIDs) to spare for group \
         BE/mon_groups/koordlet-b: No space left on device (os error 28)"
    );
    assert_eq!(node.groups([20, 21]), ["BE", "BE"]);
    assert_eq!(node.monitors([20, 21]), ["", ""]);
    node.kernel.take_changes();
    node.try_join("b", &monitored("b")).unwrap_err();
    assert_eq!(node.kernel.take_changes(), 0, "nothing is tried in vain");

    assert_eq!(node.keep(&["BE", "BE/mon_groups/koordlet-b"]), 1);
    assert_eq!(node.groups([10, 11]), ["BE", "BE"]);
    assert_eq!(node.monitors([10, 11]), ["", ""]);
    assert_eq!(node.join("b", &monitored("b")), Joined::Moved);
    let monitor = "BE/mon_groups/koordlet-b";
    assert_eq!(node.monitors([20, 21]), [monitor, monitor]);
}

#[test]
fn a_kernel_that_monitors_nothing_costs_no_part_of_the_cache() {
    let mut node = Node::new(1);
    let error = node.try_join("a", &monitored("a")).unwrap_err();
    assert_eq!(
        chain_of(&error),
        "the threads of cgroup /pods/a are in group BE, but are not monitored apart in it: \
         the kernel monitors no groups, so there is no BE/mon_groups/koordlet-a"
    );
    assert_eq!(node.groups([10, 11]), ["BE", "BE"]);
}

#[test]
fn a_pod_without_a_class_of_its_own_is_monitored_within_that_which_it_shares() {
    let mut node = Node::monitoring(1, 1);
    let CacheGroup::Class(be) = monitored("a") else {
        panic!("it is the group of a class");
    };
    node.join("b", &class(CacheClass::Be, 20));
    let error = node.try_join("a", &own("a", 50, Some(be))).unwrap_err();
    let told = "its threads share with group BE";
    assert!(chain_of(&error).contains(told), "{}", chain_of(&error));
    let monitor = "BE/mon_groups/koordlet-a";
    assert_eq!(node.monitors([10, 11]), [monitor, monitor]);
}

#[test]
fn a_pod_shares_with_its_class_while_ids_of_groups_that_have_gone_are_busy() {
    let mut node = Node::monitoring(2, 1);
    let CacheGroup::Class(be) = monitored("a") else {
        panic!("it is the group of a class");
    };
    node.join("b", &class(CacheClass::Be, 20));
    let own = own("a", 50, Some(be));
    node.kernel.keep_busy(true);
    let error = node.try_join("a", &own).unwrap_err();
    assert_eq!(
        chain_of(&error),
        "cgroup /pods/a has no part of the cache of its own: its threads share with group BE: \
         the processor has no more monitoring ids (RMIDs) to spare for group koordlet-a: \
         Device or resource busy (os error 16)"
    );
    assert_eq!(node.groups([10, 11]), ["BE", "BE"]);
    node.kernel.keep_busy(false);
    assert_eq!(node.join("a", &own), Joined::Moved);
    assert_eq!(node.groups([10, 11]), ["koordlet-a", "koordlet-a"]);
}

#[test]
fn monitoring_groups_are_found_again_after_a_restart_and_go_with_their_pods() {
    let mut node = Node::monitoring(1, 2);
    for pod in ["a", "b"] {
        node.join(pod, &monitored(pod));
    }
    node.restart();
    node.kernel.take_changes();
    assert_eq!(node.join("a", &monitored("a")), Joined::Equal);
    assert_eq!(node.kernel.take_changes(), 0);
    let monitor = "BE/mon_groups/koordlet-a";
    assert_eq!(node.keep(&["BE", monitor]), 1);
    assert_eq!(node.monitors([11, 21]), [monitor, ""]);
    // With the group around it.
    node.join("a", &CacheGroup::Root);
    assert_eq!(node.keep(&[]), 2);
    assert_eq!(node.groups([10, 11]), ["", ""]);
    assert_eq!(node.join("a", &monitored("a")), Joined::Moved);
}

#[test]
fn a_look_whose_time_is_over_has_moved_some_and_says_that_others_are_left() {
    let mut node = Node::new(3);
    node.join("a", &class(CacheClass::Be, 20));
    let threads: Vec<Tid> = (1_000..1_100).collect();
    for thread in &threads {
        node.kernel.fork(None, *thread);
        node.processes.start("a", 10, *thread);
    }
    let member = Member {
        at: at("a"),
        group: ThreadGroup::Caches(CacheGroup::Root),
        with_shim: false,
    };
    let procfs = node.processes.procfs();
    let mut listed = of_member(Sight::once(&node.cgroups), &procfs, &member).unwrap();
    listed.ids.retain(|it| threads.contains(it));
    let over = || Turn::until(std::time::Instant::now());
    let inside = |node: &Node| {
        let inside = threads
            .iter()
            .filter(|it| node.kernel.group_of(**it) == "BE");
        inside.count()
    };
    for (left, have) in [
        (Found::Moved, 64),
        (Found::Moved, 100),
        (Found::Nothing, 100),
    ] {
        let added = node.caches.add_those_outside("BE", &listed, &mut over());
        assert_eq!((added.unwrap(), inside(&node)), (left, have));
    }
    for (left, have) in [(Found::Moved, 36), (Found::Moved, 0), (Found::Nothing, 0)] {
        let released = node.caches.release_all(&listed, &mut over());
        assert_eq!((released.unwrap(), inside(&node)), (left, have));
    }
}

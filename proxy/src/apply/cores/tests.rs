//! Groups over a fake kernel and a fake tree of control groups.

use super::{
    super::{
        testing::{Processes, SHIMS, at},
        threads::ThreadGroup,
    },
    *,
};
use koord_kernel::fake::FakeCores;
use koord_model::PodUid;
use std::sync::Mutex;

/// A machine with pods of one container each, `a` to `c`, which their shims have started.
struct Node {
    kernel: FakeCores,
    processes: Processes,
    cgroups: Cgroups,
    cores: Cores,
}

// === impl Node ===

impl Node {
    fn new() -> Self {
        let (kernel, processes) = (FakeCores::default(), Processes::new());
        kernel.fork(None, SELF);
        let node = Self {
            cores: Cores::over(kernel.clone(), processes.procfs()),
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

    fn end(&self, process: Tid) {
        self.kernel.end(process);
        self.processes.end(process);
    }

    fn join(&mut self, pod: &str, group: CoreGroup) -> Joined {
        self.join_beside(pod, group, Some(&[])).unwrap()
    }

    /// The same where these are in groups, too.
    fn join_beside(
        &mut self,
        pod: &str,
        group: CoreGroup,
        others: Option<&[Member]>,
    ) -> Result<Joined, JoinError> {
        let member = member(pod, &group);
        self.cores.join(&self.cgroups, &member, &group, others)
    }

    fn cookies<const N: usize>(&self, threads: [Tid; N]) -> [u64; N] {
        threads.map(|thread| self.kernel.number(thread))
    }

    /// Forgets everything, as a process does that is started anew.
    fn restart(&mut self) {
        self.cores = Cores::over(self.kernel.clone(), self.processes.procfs());
    }
}

fn member(pod: &str, group: &CoreGroup) -> Member {
    Member {
        at: at(pod),
        group: ThreadGroup::Cores(group.clone()),
        with_shim: true,
    }
}

fn group(id: &str) -> CoreGroup {
    CoreGroup::Shared {
        id: id.into(),
        expeller: false,
    }
}

#[test]
fn members_of_a_group_share_a_cookie_with_their_shims_and_others_never_have_it() {
    let mut node = Node::new();
    assert_eq!(node.join("a", group("x")), Joined::Moved);
    assert_eq!(node.join("b", group("x")), Joined::Moved);
    let alone = CoreGroup::Exclusive(PodUid::new("c").unwrap());
    assert_eq!(node.join("c", alone), Joined::Moved);
    assert_eq!(node.cookies([10, 11, 20, 21, 30, 31]), [1, 1, 1, 1, 2, 2]);
    assert_eq!(node.kernel.number(SELF), 0);
}

#[test]
fn what_a_shim_starts_has_the_cookie_and_nothing_is_left_to_do() {
    let mut node = Node::new();
    node.join("a", group("x"));
    node.kernel.take_changes();
    node.start("a", 10, 12);
    assert_eq!(node.kernel.number(12), 1);
    assert_eq!(node.join("a", group("x")), Joined::Equal);
    assert_eq!(node.kernel.take_changes(), 0);
}

#[test]
fn threads_that_came_another_way_are_taken_in_with_all_of_their_process() {
    let mut node = Node::new();
    node.join("a", group("x"));
    node.kernel.fork(None, 90);
    node.start("a", 90, 91);
    node.kernel.spawn(91, 92);
    assert_eq!(node.join("a", group("x")), Joined::Moved);
    assert_eq!(node.cookies([90, 91, 92]), [0, 1, 1]);
}

#[test]
fn a_pod_that_changes_its_group_changes_its_cookie() {
    let mut node = Node::new();
    node.join("a", group("x"));
    node.join("b", group("x"));
    node.join("a", group("y"));
    assert_eq!(node.cookies([10, 11, 21]), [2, 2, 1]);
    node.join("b", CoreGroup::None);
    assert_eq!(node.cookies([10, 11, 20, 21]), [2, 2, 0, 0]);
    assert_eq!(node.join("b", CoreGroup::None), Joined::Equal);
}

#[test]
fn a_group_outlives_its_first_member_and_gets_a_new_cookie_when_all_have_gone() {
    let mut node = Node::new();
    node.join("a", group("x"));
    node.join("b", group("x"));
    for process in [10, 11] {
        node.end(process);
    }
    node.kernel.take_changes();
    assert_eq!(node.join("b", group("x")), Joined::Equal);
    node.join("c", group("x"));
    assert_eq!(node.cookies([21, 31]), [1, 1]);
    for process in [20, 21, 30, 31] {
        node.end(process);
    }
    node.kernel.fork(None, 40);
    node.start("d", 40, 41);
    node.join("d", group("x"));
    assert_eq!(node.kernel.number(41), 2);
}

/// The kernel, on which a thread ends as it is to pass its cookie on.
#[derive(Debug)]
struct Fickle {
    kernel: FakeCores,
    ends: Mutex<Option<Tid>>,
}

impl CoreSched for Fickle {
    fn cookie(&self, thread: Tid) -> io::Result<Option<Cookie>> {
        self.kernel.cookie(thread)
    }

    fn create(&self, process: Tid) -> io::Result<()> {
        self.kernel.create(process)
    }

    fn share(&self, from: Tid, cookie: Cookie, to: Tid) -> io::Result<()> {
        if let Some(ends) = self.ends.lock().unwrap().take() {
            self.kernel.end(ends);
        }
        self.kernel.share(from, cookie, to)
    }

    fn clear(&self, process: Tid) -> io::Result<()> {
        self.kernel.clear(process)
    }
}

#[test]
fn where_a_thread_ends_as_it_passes_its_cookie_on_another_does() {
    let mut node = Node::new();
    node.join("a", group("x"));
    node.join("c", group("x"));
    let bearer = node.cores.groups[&group("x")].bearer;
    node.cores.machine.as_mut().unwrap().kernel = Box::new(Fickle {
        kernel: node.kernel.clone(),
        ends: Mutex::new(Some(bearer)),
    });
    assert_eq!(node.join("b", group("x")), Joined::Moved);
    assert_eq!(node.cookies([20, 21]), [1, 1]);
}

#[test]
fn where_a_thread_has_ended_at_each_look_what_it_has_started_may_have_another_cookie() {
    let mut node = Node::new();
    node.join("a", group("x"));
    // Listed, and gone when it is asked.
    node.processes.start("a", 90, 91);
    // It may have had that of its group, as pods that start many have.
    assert_eq!(node.join("a", group("x")), Joined::Equal);
    let error = node.join_beside("a", CoreGroup::None, Some(&[]));
    let error = error.unwrap_err();
    assert!(matches!(error, JoinError::Unsettled { .. }), "{error:?}");
    assert_eq!(node.cookies([10, 11]), [0, 0]);
    node.processes.end(91);
    assert_eq!(node.join("a", CoreGroup::None), Joined::Equal);
}

#[test]
fn who_has_the_number_of_one_that_has_ended_since_it_was_listed_keeps_its_cookie() {
    let mut node = Node::new();
    node.kernel.fork(None, 12);
    node.processes.start("a", 10, 12);
    node.processes.replace(12);
    let mut join = |wanted| {
        let error = node.join_beside("a", wanted, Some(&[])).unwrap_err();
        assert!(matches!(error, JoinError::Unsettled { .. }), "{error:?}");
        let cookies = node.cookies([10, 11, 12]);
        node.kernel.set(12, 7);
        cookies
    };
    assert_eq!(join(group("x")), [1, 1, 0]);
    assert_eq!(join(CoreGroup::None), [0, 0, 7]);
    // Nor is a cookie made for one.
    node.kernel.set(12, 0);
    for process in [10, 11] {
        node.end(process);
    }
    assert_eq!(node.join("a", group("x")), Joined::Equal);
    assert_eq!(node.kernel.number(12), 0);
}

#[test]
fn whose_shim_has_started_one_that_is_another_pods_by_now_keeps_its_cookie() {
    let mut node = Node::new();
    node.end(11);
    // It was listed in pod `a`, and has ended. What has its number now was started by the shim of `b`.
    node.start("a", 20, 12);
    node.processes.replace(12);
    node.join_beside("a", group("x"), Some(&[])).ok();
    assert_eq!(node.cookies([12, 20, 21]), [0; 3]);
}

#[test]
fn who_has_the_cookie_already_looks_at_no_other() {
    let mut node = Node::new();
    node.join("a", group("x"));
    node.join("b", group("x"));
    // Who was known to have it was one of these.
    for process in [10, 11] {
        node.end(process);
    }
    node.processes.take_looks();
    assert_eq!(node.join("b", group("x")), Joined::Equal);
    assert_eq!(node.processes.take_looks(), 1);
}

#[test]
fn groups_keep_their_cookies_over_a_restart() {
    let mut node = Node::new();
    node.join("a", group("x"));
    node.join("b", group("x"));
    node.join("c", group("y"));
    node.restart();
    node.kernel.take_changes();
    for (pod, own) in [("b", "x"), ("c", "y"), ("a", "x")] {
        assert_eq!(node.join(pod, group(own)), Joined::Equal, "{pod}");
    }
    assert_eq!(node.kernel.take_changes(), 0);
    assert_eq!(node.cookies([11, 21, 31]), [1, 1, 2]);
}

#[test]
fn one_who_comes_first_after_a_restart_gets_the_cookie_that_others_of_its_group_have() {
    let mut node = Node::new();
    node.join("a", group("x"));
    node.join("b", group("y"));
    node.restart();
    node.kernel.take_changes();
    let others = [member("b", &group("y")), member("a", &group("x"))];
    let joined = node.join_beside("c", group("x"), Some(&others));
    assert_eq!(joined.unwrap(), Joined::Moved);
    assert_eq!(node.cookies([10, 11, 20, 21, 30, 31]), [1, 1, 2, 2, 1, 1]);
    assert_eq!(node.join("a", group("x")), Joined::Equal);
    assert_eq!(node.join("b", group("y")), Joined::Equal);
    // The shim of the new one and what it has started.
    assert_eq!(node.kernel.take_changes(), 2);
}

/// What it says that nobody can say who is in the group of `b`.
fn unlisted(joined: Result<Joined, JoinError>) {
    let error = joined.unwrap_err().to_string();
    assert_eq!(error, "the threads of cgroup /pods/b cannot be listed");
}

#[test]
fn who_cannot_be_listed_is_not_taken_for_gone_and_no_second_cookie_is_made() {
    let mut node = Node::new();
    node.join("a", group("x"));
    node.join("b", group("x"));
    // Of the two that have the cookie the first has gone.
    node.end(10);
    node.end(11);
    node.processes.hide("b", Errno::MFILE);
    unlisted(node.join_beside("c", group("x"), Some(&[])));
    assert_eq!(node.cookies([20, 21, 30, 31]), [1, 1, 0, 0]);
    node.join("c", group("x"));
    assert_eq!(node.cookies([20, 21, 30, 31]), [1; 4]);
}

#[test]
fn after_a_restart_no_cookie_is_made_while_one_who_may_have_it_cannot_be_listed() {
    let mut node = Node::new();
    node.join("b", group("x"));
    node.join("c", group("x"));
    node.restart();
    let (b, c) = (member("b", &group("x")), member("c", &group("x")));
    node.processes.hide("b", Errno::MFILE);
    unlisted(node.join_beside("a", group("x"), Some(std::slice::from_ref(&b))));
    // What is brought may be another group's as well.
    let others = [member("b", &group("y")), c.clone()];
    node.processes.hide("b", Errno::MFILE);
    unlisted(node.join_beside("a", group("x"), Some(&others)));
    assert_eq!(node.cookies([10, 11, 20, 21, 30, 31]), [0, 0, 1, 1, 1, 1]);
    // Who brings it is enough.
    node.processes.hide("b", Errno::MFILE);
    let joined = node.join_beside("a", group("x"), Some(&[b, c]));
    assert_eq!(joined.unwrap(), Joined::Moved);
    assert_eq!(node.cookies([10, 11]), [1, 1]);
}

#[test]
fn after_a_restart_who_never_can_be_seen_keeps_no_group_from_its_cookie() {
    let mut node = Node::new();
    node.join("b", group("x"));
    node.join("c", group("y"));
    node.kernel.fork(Some(31), 32);
    node.processes.start_unseen("c", 32);
    node.restart();
    // One who is in the group is asked as far as it is seen.
    let others = [member("c", &group("y"))];
    let joined = node.join_beside("a", group("y"), Some(&others));
    assert_eq!(joined.unwrap(), Joined::Moved);
    assert_eq!(node.cookies([10, 11, 30, 31, 32]), [2; 5]);
    // What one of another group may have is not adopted, and another is made at once.
    node.restart();
    let joined = node.join_beside("b", group("x"), Some(&others));
    assert_eq!(joined.unwrap(), Joined::Moved);
    assert_eq!(node.cookies([20, 21, 30, 31, 32]), [3, 3, 2, 2, 2]);
}

#[test]
fn who_may_not_be_read_keeps_no_group_from_its_cookie() {
    let mut node = Node::new();
    for (pod, id) in [("a", "x"), ("b", "x"), ("c", "y")] {
        node.join(pod, group(id));
    }
    node.processes.close("c");
    let closed = [member("c", &group("y"))];
    // While its group is known, and no more.
    for process in [30, 31] {
        node.end(process);
    }
    let joined = node.join_beside("b", group("y"), Some(&closed));
    assert_eq!(joined.unwrap(), Joined::Moved);
    assert_eq!(node.cookies([10, 11, 20, 21]), [1, 1, 3, 3]);
    node.restart();
    let joined = node.join_beside("a", group("x"), Some(&closed));
    assert_eq!(joined.unwrap(), Joined::Moved);
    let joined = node.join_beside("b", group("y"), Some(&closed));
    assert_eq!(joined.unwrap(), Joined::Equal);
    assert_eq!(node.cookies([10, 11, 20, 21]), [4, 4, 3, 3]);
    // Of itself that is told.
    let joined = node.join_beside("c", group("y"), Some(&[]));
    let told = "not all that runs in cgroup /pods/c and below it is looked at: one may not be read";
    assert_eq!(joined.unwrap_err().to_string(), told);
    assert_eq!(node.cores.describe(&node.cgroups, &at("c")), None);
}

#[test]
fn a_cookie_that_nobody_seen_has_any_more_is_made_anew_and_no_other_groups() {
    let mut node = Node::new();
    node.join("a", group("x"));
    node.join("b", group("x"));
    node.kernel.fork(Some(11), 12);
    node.processes.start_unseen("a", 12);
    for process in [10, 11] {
        node.end(process);
    }
    // It brings the cookie, and one who is not seen has it as well.
    node.join("b", group("y"));
    assert_eq!(node.cookies([12, 20, 21]), [1, 2, 2]);
    node.join("c", group("x"));
    assert_eq!(node.cookies([12, 20, 21, 30, 31]), [1, 2, 2, 3, 3]);
}

#[test]
fn whose_a_cookie_is_that_many_threads_bring_is_asked_once() {
    let mut node = Node::new();
    node.join("a", group("x"));
    node.kernel.fork(Some(11), 12);
    node.processes.start_unseen("a", 12);
    for thread in 100..200 {
        node.kernel.fork(Some(11), thread);
        node.processes.start("b", 20, thread);
    }
    for process in [10, 11] {
        node.end(process);
    }
    node.processes.take_looks();
    node.join("b", group("y"));
    assert_eq!(node.cookies([12, 20, 100, 199]), [1, 2, 2, 2]);
    // Each of two looks at the container, and one at that of the other and at what is below it.
    assert_eq!(node.processes.take_looks(), 4);
}

#[test]
fn of_a_container_some_of_whose_groups_are_not_seen_the_rest_has_the_cookie() {
    let mut node = Node::new();
    node.processes.start_unseen("a", 12);
    let joined = node.join_beside("a", group("x"), Some(&[]));
    let told = "not all that runs in cgroup /pods/a and below it is looked at: \
                the path of one is too long";
    assert_eq!(joined.unwrap_err().to_string(), told);
    assert_eq!(node.cookies([10, 11]), [1, 1]);
    let joined = node.join_beside("b", group("x"), Some(&[]));
    assert_eq!(joined.unwrap(), Joined::Moved);
    assert_eq!(node.cookies([10, 11, 20, 21]), [1; 4]);
}

#[test]
fn no_cookie_is_made_before_it_is_known_who_else_is_in_the_group() {
    let mut node = Node::new();
    let unmet = node.join_beside("a", group("x"), None).unwrap_err();
    assert!(unmet.is_unmet(), "{unmet:?}");
    assert_eq!(node.kernel.take_changes(), 0);
    // What is brought may be another group's.
    for thread in [20, 21] {
        node.kernel.set(thread, 7);
    }
    let unmet = node.join_beside("b", group("x"), None).unwrap_err();
    assert!(unmet.is_unmet(), "{unmet:?}");
    // Once the group is known it needs nobody else.
    assert_eq!(node.join("b", group("x")), Joined::Equal);
    let joined = node.join_beside("a", group("x"), None);
    assert_eq!(joined.unwrap(), Joined::Moved);
    assert_eq!(node.cookies([10, 11, 20, 21]), [7; 4]);
}

#[test]
fn of_others_that_have_gone_or_have_another_groups_cookie_none_is_adopted() {
    let mut node = Node::new();
    node.join("b", group("y"));
    // The second is still where it was before it changed its group.
    let others = [member("gone", &group("x")), member("b", &group("x"))];
    let joined = node.join_beside("a", group("x"), Some(&others));
    assert_eq!(joined.unwrap(), Joined::Moved);
    assert_eq!(node.cookies([10, 11, 20, 21]), [2, 2, 1, 1]);
}

#[test]
fn of_others_that_still_have_the_cookie_of_a_group_not_looked_at_yet_none_is_adopted() {
    let mut node = Node::new();
    // Both were in one group before the first of them changed its own.
    for thread in [20, 21, 30, 31] {
        node.kernel.set(thread, 7);
    }
    let others = [member("b", &group("x")), member("c", &group("y"))];
    let joined = node.join_beside("a", group("x"), Some(&others));
    assert_eq!(joined.unwrap(), Joined::Moved);
    assert_eq!(node.cookies([10, 11, 20, 21, 30, 31]), [1, 1, 7, 7, 7, 7]);
    assert_eq!(node.join("c", group("y")), Joined::Equal);
    assert_eq!(node.join("b", group("x")), Joined::Moved);
    assert_eq!(node.cookies([10, 11, 20, 21, 30, 31]), [1, 1, 1, 1, 7, 7]);
}

#[test]
fn who_changed_its_group_while_we_were_away_brings_no_cookie_of_a_group_not_looked_at_yet() {
    let mut node = Node::new();
    for thread in [10, 11, 20, 21] {
        node.kernel.set(thread, 7);
    }
    let others = [member("b", &group("x"))];
    let unmet = node.join_beside("a", group("y"), None).unwrap_err();
    assert!(unmet.is_unmet(), "{unmet:?}");
    assert_eq!(node.cookies([10, 11, 20, 21]), [7; 4]);
    let joined = node.join_beside("a", group("y"), Some(&others));
    assert_eq!(joined.unwrap(), Joined::Moved);
    assert_eq!(node.cookies([10, 11, 20, 21]), [1, 1, 7, 7]);
    assert_eq!(node.join("b", group("x")), Joined::Equal);
}

#[test]
fn two_groups_never_adopt_one_cookie() {
    let mut node = Node::new();
    for thread in [10, 11, 20, 21] {
        node.kernel.set(thread, 7);
    }
    node.join("a", group("x"));
    node.join("b", group("y"));
    assert_eq!(node.cookies([10, 11, 20, 21]), [7, 7, 1, 1]);
}

#[test]
fn a_group_whose_members_brought_two_cookies_keeps_one() {
    let mut node = Node::new();
    for (thread, cookie) in [(10, 7), (11, 7), (20, 8), (21, 8)] {
        node.kernel.set(thread, cookie);
    }
    node.join("a", group("x"));
    node.join("b", group("x"));
    assert_eq!(node.cookies([10, 11, 20, 21]), [7; 4]);
}

#[test]
fn a_cookie_that_the_kernel_uses_again_is_not_the_old_groups() {
    let mut node = Node::new();
    node.join("a", group("x"));
    for process in [10, 11] {
        node.end(process);
    }
    node.kernel.make_next(1);
    node.join("b", group("y"));
    assert_eq!(node.kernel.number(21), 1);
    node.kernel.fork(None, 10);
    node.start("a", 10, 11);
    node.join("a", group("x"));
    assert_eq!(node.cookies([10, 11, 20, 21]), [2, 2, 1, 1]);
}

#[test]
fn a_cookie_that_we_were_started_with_is_no_groups() {
    let mut node = Node::new();
    for thread in [SELF, 10, 11] {
        node.kernel.set(thread, 9);
    }
    node.restart();
    node.join("a", group("x"));
    assert_eq!(node.cookies([SELF, 10, 11]), [9, 1, 1]);
}

#[test]
fn a_pod_that_has_gone_and_a_kernel_without_cores_are_told_apart() {
    let mut node = Node::new();
    let group = group("x");
    let gone = member("gone", &group);
    let error = node.cores.join(&node.cgroups, &gone, &group, None);
    assert!(error.unwrap_err().is_gone());
    let (mut none, member) = (Cores::none(), member("a", &group));
    let unsupported = none.join(&node.cgroups, &member, &group, None);
    assert!(matches!(unsupported, Err(JoinError::Unsupported)));
}

#[test]
fn the_cookies_of_a_pod_are_shown_each_once() {
    let mut node = Node::new();
    node.join("a", group("x"));
    let shown = |node: &Node| node.cores.describe(&node.cgroups, &at("a"));
    assert_eq!(shown(&node).as_deref(), Some("00000001"));
    node.kernel.fork(None, 90);
    node.start("a", 90, 91);
    assert_eq!(shown(&node).as_deref(), Some("none 00000001"));
}

#[test]
fn members_that_have_gone_are_forgotten_while_their_group_lives_on() {
    let mut node = Node::new();
    node.join("a", group("x"));
    for number in 0..1_000 {
        let pod = format!("pod{number}");
        let process = 1_000 + number;
        node.start(&pod, 10, process);
        assert_eq!(node.join(&pod, group("x")), Joined::Equal);
        node.end(process);
        node.processes.remove(&pod);
    }
    let known = &node.cores.groups[&group("x")];
    assert!(known.members.len() <= 130, "{}", known.members.len());
    assert!(known.members.contains(&at("a")));
}

#[test]
fn a_look_whose_time_is_over_has_given_some_their_cookie_and_says_that_others_are_left() {
    let mut node = Node::new();
    node.join("a", group("x"));
    let threads: Vec<Tid> = (1_000..1_100).collect();
    for thread in &threads {
        node.kernel.fork(None, *thread);
        node.processes.start("a", 10, *thread);
    }
    let (group, cookie) = (group("x"), Cookie::new(1));
    let member = member("a", &group);
    let procfs = node.processes.procfs();
    let listed = of_member(Sight::once(&node.cgroups), &procfs, &member).unwrap();
    let look = || {
        let mut turn = Turn::until(std::time::Instant::now());
        let settled = node
            .cores
            .settle((&member, &group), cookie, &listed, &mut turn);
        let have = threads.iter().filter(|it| node.kernel.number(**it) == 1);
        (settled.unwrap(), have.count())
    };
    assert_eq!(look(), (Found::Moved, 64));
    assert_eq!(look(), (Found::Moved, 100));
    assert_eq!(look(), (Found::Nothing, 100));
}

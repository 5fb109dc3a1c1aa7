use super::*;
use koord_kernel::{
    cgroup::{Controller, Generation, Note, Tree as _},
    fake::{Errno, FakeTree},
};
use koord_model::{CpuQuota, CpuShares, CpusetCpus};

struct Groups {
    tree: FakeTree,
    cgroups: Cgroups,
    replaced: Replaced,
}

impl Groups {
    fn new() -> Self {
        let tree = FakeTree::new(Generation::V1, 2);
        Self {
            cgroups: Cgroups::over(tree.clone()),
            tree,
            replaced: Replaced::default(),
        }
    }

    /// Gives a group a value, and says what was there before us.
    fn give(&mut self, at: &str, value: Value) -> Option<Value> {
        let change = Change {
            at: CgroupPath::parse(at).unwrap(),
            value,
            gives_back: false,
            of_container: false,
            may_return: false,
        };
        let applied = self.cgroups.apply(std::slice::from_ref(&change)).remove(0);
        let first = self.replaced.hear(&self.cgroups, &change, &applied, None);
        self.replaced.forget_the_gone(&self.cgroups);
        Some(match first? {
            Written::Changed { old } => old,
            _ => Value::CpuIdle(false),
        })
    }

    /// Whether anything is known of any group.
    fn knows(&self) -> bool {
        let mut groups = self.replaced.groups.values();
        groups.any(|known| !known.originals.is_empty())
    }

    fn make(&self, at: &str) {
        self.tree.make(&CgroupPath::parse(at).unwrap());
    }
}

fn quota(micros: u64) -> Value {
    CpuQuota::Micros(micros).into()
}

#[test]
fn what_the_first_value_replaced_is_known_until_it_is_there_again() {
    let mut groups = Groups::new();
    groups.make("kubepods/pod1");
    let unlimited = Some(Value::CpuQuota(CpuQuota::Unlimited));
    assert_eq!(groups.give("kubepods/pod1", quota(50_000)), unlimited);
    assert_eq!(groups.give("kubepods/pod1", quota(50_000)), unlimited);
    assert_eq!(groups.give("kubepods/pod1", quota(20_000)), unlimited);
    let back = CpuQuota::Unlimited.into();
    assert_eq!(groups.give("kubepods/pod1", back), unlimited);
    assert!(!groups.knows());
    let back = CpuQuota::Unlimited.into();
    assert_eq!(groups.give("kubepods/pod1", back), None);
}

#[test]
fn shares_that_the_kernel_forgot_are_known_for_as_long_as_the_group_is_idle() {
    let mut groups = Groups::new();
    groups.make("kubepods/pod1");
    let at = CgroupPath::parse("kubepods/pod1").unwrap();
    let idle = Change {
        at,
        value: Value::CpuIdle(true),
        gives_back: false,
        of_container: false,
        may_return: false,
    };
    for _ in 0..2 {
        let applied = groups.cgroups.apply(std::slice::from_ref(&idle)).remove(0);
        let first = groups.replaced.hear(&groups.cgroups, &idle, &applied, None);
        let Some(Written::Idled { shares }) = first else {
            panic!("{first:?}");
        };
        assert_eq!(shares.unwrap().to_string(), "1024");
    }
    groups.give("kubepods/pod1", Value::CpuIdle(false));
    assert!(!groups.knows());
}

#[test]
fn groups_that_have_gone_are_forgotten() {
    let mut groups = Groups::new();
    groups.make("kubepods/pod1");
    groups.give("kubepods/pod1", quota(50_000));
    let gone = CgroupPath::parse("kubepods/pod1").unwrap();
    groups.tree.remove(&gone);
    assert_eq!(groups.give("kubepods/pod1", quota(50_000)), None);
    assert!(!groups.knows());

    for number in 0..1_000 {
        let at = format!("kubepods/pod{number}");
        groups.make(&at);
        groups.give(&at, quota(50_000));
        groups.tree.remove(&CgroupPath::parse(&at).unwrap());
    }
    assert!(groups.replaced.groups.len() <= 2);
    assert!(groups.replaced.in_turn.len() <= 2);
}

#[test]
fn a_group_whose_values_come_and_go_is_remembered_once() {
    let mut groups = Groups::new();
    groups.make("kubepods/pod1");
    for _ in 0..100 {
        groups.give("kubepods/pod1", quota(50_000));
        groups.give("kubepods/pod1", CpuQuota::Unlimited.into());
    }
    assert_eq!(groups.replaced.in_turn.len(), 1);
}

#[test]
fn of_many_groups_that_have_gone_a_few_are_looked_at_with_each_new_one() {
    let mut groups = Groups::new();
    for number in 0..200 {
        let at = format!("kubepods/old{number}");
        groups.make(&at);
        groups.give(&at, quota(50_000));
    }
    groups.tree.remove(&CgroupPath::parse("kubepods").unwrap());
    let mut left = Vec::new();
    for number in 0..100 {
        let at = format!("kubepods/new{number}");
        groups.make(&at);
        groups.give(&at, quota(50_000));
        left.push(groups.replaced.groups.len());
    }
    // One is new, two have gone.
    assert_eq!((left[0], left[1], left[99]), (199, 198, 100));
}

/// What is left of a process that was killed while it wrote.
#[derive(Clone, Copy, Debug)]
enum Killed {
    Before,
    After,
}

impl Groups {
    /// One with a pod's directory, of which somebody has written `text` to a file.
    fn with(generation: Generation, controller: Controller, (file, text): (&str, &str)) -> Self {
        let tree = FakeTree::new(generation, 8);
        let groups = Self {
            cgroups: Cgroups::over(tree.clone()),
            tree,
            replaced: Replaced::default(),
        };
        groups.make("kubepods/pod1");
        groups.put(controller, file, text);
        groups
    }

    /// Somebody writes to a file of the pod's directory.
    fn put(&self, controller: Controller, file: &str, text: &str) {
        self.tree.write(controller, &pod(), file, text).unwrap();
    }

    /// What is noted on the pod's directory.
    fn noted(&self) -> String {
        let note = self.tree.note(Controller::Cpu, &pod(), Note::Originals);
        note.unwrap()
    }

    /// Writes a value to the pod's directory, and says what is noted then.
    fn write(&mut self, value: impl Into<Value>) -> String {
        let change = to_pod(value, false);
        let (applied, undo) = self.begin(&change);
        self.replaced.hear(&self.cgroups, &change, &applied, undo);
        self.noted()
    }

    /// Begins to write a value to the pod's directory and is killed. From then on it is the next process.
    fn die_writing(&mut self, killed: Killed, (file, value): (&str, impl Into<Value>)) {
        if let Killed::Before = killed {
            self.tree.fail_next_write(&pod(), file, Errno::IO);
        }
        drop(self.begin(&to_pod(value, false)));
        self.replaced = Replaced::default();
    }

    fn begin(&mut self, change: &Change) -> (Applied, Option<Undo>) {
        let mut undo = None;
        let expect = |_, replacement: &Replacement| {
            undo = Some(self.replaced.expect(&self.cgroups, replacement));
        };
        let mut changes = vec![change.clone()];
        let mut applied = periods::apply(&self.cgroups, &mut changes, |_| (), expect);
        (applied.remove(0), undo)
    }
}

fn pod() -> CgroupPath {
    CgroupPath::parse("kubepods/pod1").unwrap()
}

fn to_pod(value: impl Into<Value>, gives_back: bool) -> Change {
    Change {
        at: pod(),
        value: value.into(),
        gives_back,
        of_container: false,
        may_return: false,
    }
}

#[test]
fn what_could_not_be_noted_is_noted_with_the_next_look_at_the_group() {
    let quota = |micros| CpuQuota::Micros(micros);
    let file = ("cpu.cfs_quota_us", "30000");
    let mut groups = Groups::with(Generation::V1, Controller::Cpu, file);
    groups.tree.refuse_notes(Some(Errno::NOSPC));
    assert_eq!(groups.write(quota(50_000)), "");
    groups.tree.refuse_notes(None);
    // It has the value, so nothing is written.
    let noted = "cpu.cfs_quota_us 30000 50000\n";
    assert_eq!(groups.write(quota(50_000)), noted);
    groups.tree.take_noted();
    assert_eq!(groups.write(quota(50_000)), noted);
    assert_eq!(groups.tree.take_noted(), 0);
    groups.replaced = Replaced::default();
    let noted = "cpu.cfs_quota_us 30000 60000 50000\n";
    assert_eq!(groups.write(quota(60_000)), noted);

    // Nor is it lost that nothing of ours is there any more.
    groups.tree.refuse_notes(Some(Errno::NFILE));
    let back = to_pod(quota(30_000), true);
    let (applied, undo) = groups.begin(&back);
    groups.replaced.hear(&groups.cgroups, &back, &applied, undo);
    assert_ne!(groups.noted(), "");
    groups.tree.refuse_notes(None);
    groups.make("kubepods/pod2");
    groups.give("kubepods/pod2", quota(20_000).into());
    assert_eq!(groups.noted(), "");
}

#[test]
fn whoever_comes_after_a_kill_amid_a_write_knows_the_old_value_and_the_new_one_as_ours() {
    const QUOTA: &str = "cpu.cfs_quota_us";
    for (killed, there) in [(Killed::Before, 50_000), (Killed::After, 70_000)] {
        let mut groups = Groups::with(Generation::V1, Controller::Cpu, (QUOTA, "30000"));
        assert_eq!(
            groups.write(quota(50_000)),
            "cpu.cfs_quota_us 30000 50000\n"
        );
        groups.die_writing(killed, (QUOTA, quota(70_000)));
        assert_eq!(groups.noted(), "cpu.cfs_quota_us 30000 70000 50000\n");

        let known = groups.replaced.known(&groups.cgroups, &pod());
        let before = Before::Value(quota(30_000));
        assert_eq!(known, Some(vec![Original::new(before, quota(there))]));
        let noted = groups.write(quota(60_000));
        assert_eq!(noted, format!("cpu.cfs_quota_us 30000 60000 {there}\n"));
        assert_eq!(groups.write(quota(30_000)), "", "{killed:?}");
    }
}

#[test]
fn a_first_value_that_a_kill_cut_short_is_ours_and_what_others_write_since_is_theirs() {
    const QUOTA: &str = "cpu.cfs_quota_us";
    for (killed, noted) in [
        (Killed::Before, "cpu.cfs_quota_us 30000 60000\n"),
        (Killed::After, "cpu.cfs_quota_us 30000 60000 50000\n"),
    ] {
        let mut groups = Groups::with(Generation::V1, Controller::Cpu, (QUOTA, "30000"));
        groups.die_writing(killed, (QUOTA, quota(50_000)));
        assert_eq!(groups.noted(), "cpu.cfs_quota_us 30000 50000\n");
        assert_eq!(groups.write(quota(60_000)), noted);
    }
    // Over what somebody else has written our next value is noted at once.
    for killed in [Killed::Before, Killed::After] {
        let mut groups = Groups::with(Generation::V1, Controller::Cpu, (QUOTA, "30000"));
        groups.write(quota(50_000));
        groups.put(Controller::Cpu, QUOTA, "80000");
        groups.die_writing(killed, (QUOTA, quota(70_000)));
        assert_eq!(groups.noted(), "cpu.cfs_quota_us 80000 70000\n");
        let noted = groups.write(quota(60_000));
        assert!(noted.starts_with("cpu.cfs_quota_us 80000 60000"), "{noted}");
        groups.put(Controller::Cpu, QUOTA, "90000");
        let noted = groups.write(quota(60_000));
        assert_eq!(noted, "cpu.cfs_quota_us 90000 60000\n");
    }
}

#[test]
fn a_set_of_cpus_that_a_kill_left_halfway_is_ours() {
    let on_the_way = ("cpuset.cpus", "2-5");
    let mut groups = Groups::with(Generation::V2, Controller::Cpuset, on_the_way);
    let note = "cpuset.cpus 0-7 4-5 2-3\n";
    let noted = (groups.tree).set_note(Controller::Cpu, &pod(), Note::Originals, note);
    noted.unwrap();
    let cpus = |text: &str| Value::from(CpusetCpus::Only(text.parse().unwrap()));
    let known = groups.replaced.known(&groups.cgroups, &pod());
    let before = Before::Value(cpus("0-7"));
    assert_eq!(known, Some(vec![Original::new(before, cpus("2-5"))]));
    assert_eq!(groups.write(cpus("0-1")), "cpuset.cpus 0-7 0-1 2-5\n");
}

#[test]
fn a_value_that_comes_back_is_noted_as_ours_until_it_is_there() {
    const QUOTA: &str = "cpu.cfs_quota_us";
    for killed in [Killed::Before, Killed::After] {
        let mut groups = Groups::with(Generation::V1, Controller::Cpu, (QUOTA, "30000"));
        groups.write(quota(50_000));
        groups.die_writing(killed, (QUOTA, quota(30_000)));
        assert_eq!(groups.noted(), "cpu.cfs_quota_us 30000 50000\n");
        let noted = groups.write(quota(60_000));
        assert!(noted.starts_with("cpu.cfs_quota_us 30000 60000"), "{noted}");
    }
}

#[test]
fn a_value_that_follows_another_of_ours_is_noted_once() {
    let mut groups = Groups::with(
        Generation::V1,
        Controller::Cpu,
        ("cpu.cfs_quota_us", "30000"),
    );
    let mut write = |value| {
        groups.tree.take_noted();
        groups.write(quota(value));
        groups.tree.take_noted()
    };
    assert_eq!(write(50_000), 1);
    assert_eq!(write(70_000), 1);
    assert_eq!(write(70_000), 0);
    assert_eq!(write(30_000), 1);
}

#[test]
fn shares_that_the_kernel_forgot_count_only_while_its_default_is_there() {
    let shares = |shares| Value::from(CpuShares::new(shares).unwrap());
    for (generation, file, kubelets, default, others, noted) in [
        (
            Generation::V1,
            "cpu.shares",
            "2",
            "1024",
            "300",
            ["cpu.shares 2 512\n", "cpu.shares 300 512\n"],
        ),
        // 512 shares are a weight of 20.
        (
            Generation::V2,
            "cpu.weight",
            "1",
            "100",
            "30",
            ["cpu.shares 1 20\n", "cpu.shares 30 20\n"],
        ),
    ] {
        for (others, noted) in [None, Some(others)].into_iter().zip(noted) {
            let mut groups = Groups::with(generation, Controller::Cpu, (file, kubelets));
            groups.write(Value::CpuIdle(true));
            assert_eq!(groups.write(Value::CpuIdle(false)), "");
            let held = groups.tree.read(Controller::Cpu, &pod(), file).unwrap();
            assert_eq!(held.trim_end(), default);
            if let Some(others) = others {
                groups.put(Controller::Cpu, file, others);
            }
            assert_eq!(groups.write(shares(512)), noted);
        }
    }
}

#[test]
fn shares_that_were_written_since_another_has_woken_a_group_are_theirs() {
    let mut groups = Groups::with(Generation::V1, Controller::Cpu, ("cpu.shares", "2"));
    let idle = groups.write(Value::CpuIdle(true));
    assert_eq!(idle, "cpu.idle 2 1\n");
    groups.put(Controller::Cpu, "cpu.idle", "0");
    groups.put(Controller::Cpu, "cpu.shares", "300");
    let shares = Value::from(CpuShares::new(512).unwrap());
    let noted = groups.write(shares);
    assert_eq!(noted, "cpu.idle 2 1\ncpu.shares 300 512\n");
}

impl Groups {
    /// Gives groups their sets of CPUs together, and says what became of each.
    fn give_cpus(&mut self, sets: [(&str, &str); 2], gives_back: bool) -> [Option<Errno>; 2] {
        let changes = sets.map(|(at, cpus)| Change {
            at: CgroupPath::parse(at).unwrap(),
            value: CpusetCpus::Only(cpus.parse().unwrap()).into(),
            gives_back,
            of_container: false,
            may_return: false,
        });
        let mut undo = [None, None];
        let expect = |index: usize, replacement: &Replacement| {
            undo[index] = Some(self.replaced.expect(&self.cgroups, replacement));
        };
        let applied = periods::apply(&self.cgroups, &mut changes.clone(), |_| (), expect);
        for ((change, applied), undo) in changes.iter().zip(&applied).zip(undo) {
            self.replaced.hear(&self.cgroups, change, applied, undo);
        }
        let refused = |it: Applied| it.err().and_then(|error| error.errno());
        let mut refused = applied.into_iter().map(refused);
        [(); 2].map(|()| refused.next().unwrap().map(Errno::from_raw_os_error))
    }

    /// The CPUs of a group, and what is noted on it.
    fn cpus(&self, at: &str) -> (String, String) {
        let at = CgroupPath::parse(at).unwrap();
        let cpus = self.tree.read(Controller::Cpuset, &at, "cpuset.cpus");
        let noted = self.tree.note(Controller::Cpu, &at, Note::Originals);
        (cpus.unwrap().trim_end().to_owned(), noted.unwrap())
    }
}

#[test]
fn what_a_set_of_cpus_replaced_that_was_refused_halfway_is_known() {
    let mut groups = Groups::with(Generation::V1, Controller::Cpu, ("cpu.shares", "2"));
    let below = CgroupPath::parse("a/b/c").unwrap();
    groups.make("a/b/c");
    for (at, cpus) in [("a", "0-3"), ("a/b", "0-3"), ("a/b/c", "0")] {
        let at = CgroupPath::parse(at).unwrap();
        let written = groups
            .tree
            .write(Controller::Cpuset, &at, "cpuset.cpus", cpus);
        written.unwrap();
    }
    let held = |cpus: &str, noted: &str| (cpus.to_owned(), noted.to_owned());
    let (moved, back) = (
        [("a", "2-5"), ("a/b", "2-5")],
        [("a", "0-3"), ("a/b", "0-3")],
    );
    for _ in 0..2 {
        let refused = groups.give_cpus(moved, false);
        assert_eq!(refused, [Some(Errno::BUSY), Some(Errno::BUSY)]);
        for at in ["a", "a/b"] {
            assert_eq!(
                groups.cpus(at),
                held("0-5", "cpuset.cpus 0-3 2-5\n"),
                "{at}"
            );
        }
    }
    let known = groups
        .replaced
        .known(&groups.cgroups, &below.parent().unwrap());
    let cpus = |text: &str| Value::from(CpusetCpus::Only(text.parse().unwrap()));
    let before = Before::Value(cpus("0-3"));
    assert_eq!(known, Some(vec![Original::new(before, cpus("0-5"))]));

    let written = groups
        .tree
        .write(Controller::Cpuset, &below, "cpuset.cpus", "3");
    written.unwrap();
    assert_eq!(groups.give_cpus(moved, false), [None, None]);
    for at in ["a", "a/b"] {
        assert_eq!(
            groups.cpus(at),
            held("2-5", "cpuset.cpus 0-3 2-5\n"),
            "{at}"
        );
    }
    assert_eq!(groups.give_cpus(back, true), [None, None]);
    for at in ["a", "a/b"] {
        assert_eq!(groups.cpus(at), held("0-3", ""), "{at}");
    }
}

use super::*;
use crate::{
    cgroup::Generation,
    fake::{Errno, FakeTree},
};

fn switches(said: &[(&'static str, &str)]) -> Switches {
    let said = said.iter().map(|(name, text)| (*name, (*text).to_owned()));
    said.collect()
}

/// What is written, in its order.
fn shown(choice: SchedSwitch, held: &Switches, before: &Switches) -> String {
    let steps = steps(choice, held, before);
    let shown = steps.iter().map(|(name, text)| format!("{name}={text}"));
    shown.collect::<Vec<_>>().join(" ")
}

#[rustfmt::skip]
#[test]
fn what_goes_off_is_written_before_what_goes_on_and_what_is_so_already_is_not() {
    let before = [(IDENTITY, "1"), (CORES, "0")];
    for (choice, held, expected) in [
        (SchedSwitch::GroupIdentity, ["0", "0"], "sched_group_identity_enabled=1"),
        (SchedSwitch::GroupIdentity, ["0", "1"], "sched_core=0 sched_group_identity_enabled=1"),
        (SchedSwitch::GroupIdentity, ["1", "0"], ""),
        (SchedSwitch::GroupIdentity, ["1", "1"], "sched_core=0"),
        (SchedSwitch::CoreSched, ["0", "0"], "sched_core=1"),
        (SchedSwitch::CoreSched, ["0", "1"], ""),
        (SchedSwitch::CoreSched, ["1", "0"], "sched_group_identity_enabled=0 sched_core=1"),
        (SchedSwitch::CoreSched, ["1", "1"], "sched_group_identity_enabled=0"),
        (SchedSwitch::AsBefore, ["0", "0"], "sched_group_identity_enabled=1"),
        (SchedSwitch::AsBefore, ["0", "1"], "sched_core=0 sched_group_identity_enabled=1"),
        (SchedSwitch::AsBefore, ["1", "0"], ""),
        (SchedSwitch::AsBefore, ["1", "1"], "sched_core=0"),
    ] {
        let [identity, cores] = held;
        let held = switches(&[(IDENTITY, identity), (CORES, cores)]);
        let shown = shown(choice, &held, &switches(&before));
        assert_eq!(shown, expected, "{choice} {held:?}");
    }
}

#[test]
fn a_switch_that_is_not_there_or_that_we_have_not_moved_is_left_alone() {
    let both = switches(&[(IDENTITY, "1"), (CORES, "1")]);
    let nothing = Switches::new();
    assert_eq!(shown(SchedSwitch::AsBefore, &both, &nothing), "");
    let moved = switches(&[(CORES, "0")]);
    let given_back = shown(SchedSwitch::AsBefore, &both, &moved);
    assert_eq!(given_back, "sched_core=0");
    for choice in [
        SchedSwitch::GroupIdentity,
        SchedSwitch::CoreSched,
        SchedSwitch::AsBefore,
    ] {
        assert_eq!(shown(choice, &nothing, &moved), "");
    }
    let alone = switches(&[(CORES, "1")]);
    let off = shown(SchedSwitch::GroupIdentity, &alone, &nothing);
    assert_eq!(off, "sched_core=0");
}

fn tree(identity: &str, cores: &str) -> FakeTree {
    FakeTree::new(Generation::V2, 2)
        .with_sysctl(IDENTITY, identity)
        .with_sysctl(CORES, cores)
}

fn over(tree: &FakeTree) -> Cgroups {
    Cgroups::over(tree.clone()).with_sysctls(tree.clone())
}

fn written(tree: &FakeTree) -> Vec<String> {
    let writes = tree.take_writes().into_iter();
    writes
        .map(|it| format!("{}={}", it.file, it.text))
        .collect()
}

fn turn(cgroups: &Cgroups, choice: SchedSwitch) -> Applied {
    cgroups.write(&CgroupPath::root(), &Value::SchedSwitch(choice))
}

#[test]
fn switches_are_given_back_as_they_were_also_by_who_comes_after_us() {
    let tree = tree("1", "0");
    let first = over(&tree);
    assert!(!first.has_switched());
    assert_eq!(
        turn(&first, SchedSwitch::CoreSched).unwrap(),
        Written::Adjusted
    );
    assert_eq!(
        written(&tree),
        ["sched_group_identity_enabled=0", "sched_core=1"]
    );
    let second = over(&tree);
    assert!(second.has_switched());
    assert_eq!(
        turn(&second, SchedSwitch::CoreSched).unwrap(),
        Written::Equal
    );
    assert_eq!(
        turn(&second, SchedSwitch::AsBefore).unwrap(),
        Written::Adjusted
    );
    assert_eq!(
        written(&tree),
        ["sched_core=0", "sched_group_identity_enabled=1"]
    );
    assert!(!over(&tree).has_switched());
    assert_eq!(
        turn(&second, SchedSwitch::AsBefore).unwrap(),
        Written::Equal
    );
    assert!(written(&tree).is_empty());
}

#[test]
fn where_the_one_is_not_let_go_off_the_other_is_not_put_on() {
    let tree = tree("1", "0");
    let cgroups = over(&tree);
    let root = CgroupPath::root();
    tree.fail_next_write(&root, IDENTITY, Errno::BUSY);
    let error = turn(&cgroups, SchedSwitch::CoreSched).unwrap_err();
    assert_eq!(
        error.to_string(),
        "the kernel refuses 0 as kernel.sched_group_identity_enabled"
    );
    assert_eq!(error.errno(), Some(Errno::BUSY.raw_os_error()));
    assert!(written(&tree).is_empty());
    // What was not moved comes back by nothing being written.
    assert_eq!(
        turn(&cgroups, SchedSwitch::AsBefore).unwrap(),
        Written::Equal
    );
    assert!(written(&tree).is_empty() && !cgroups.has_switched());
}

#[test]
fn core_scheduling_is_off_where_its_switch_is_there_and_says_so() {
    let without = FakeTree::new(Generation::V2, 2).with_sysctl(IDENTITY, "0");
    assert!(!over(&without).has_cores_off().unwrap());
    assert!(!over(&tree("0", "1")).has_cores_off().unwrap());
    let off = over(&tree("1", "0"));
    assert!(off.has_cores_off().unwrap());
    turn(&off, SchedSwitch::CoreSched).unwrap();
    assert!(!off.has_cores_off().unwrap());
}

#[test]
fn a_kernel_without_switches_has_no_such_setting() {
    let cgroups = over(&FakeTree::new(Generation::V1, 2));
    let error = turn(&cgroups, SchedSwitch::GroupIdentity).unwrap_err();
    assert!(error.is_unsupported());
    let root = CgroupPath::root();
    assert!(!cgroups.supports(Setting::SchedSwitch, &root).unwrap());
    assert!(!cgroups.has_identity_switch().unwrap());
    let has = over(&tree("0", "0"));
    assert!(has.supports(Setting::SchedSwitch, &root).unwrap());
    assert!(has.has_identity_switch().unwrap());
    let raw = has.raw(&root, Setting::SchedSwitch).unwrap();
    assert_eq!(raw.1, "sched_core=0 sched_group_identity_enabled=0");
}

#[test]
#[expect(clippy::disallowed_methods, reason = "files of the test's own")]
fn the_kernels_own_files_are_read_and_written_and_none_is_made() {
    let directory = tempfile::tempdir().unwrap();
    let kernel = directory.path().join("sys/kernel");
    std::fs::create_dir_all(&kernel).unwrap();
    std::fs::write(kernel.join(CORES), "0\n").unwrap();
    let sysctls = OsSysctls::below(directory.path());
    assert_eq!(sysctls.sysctl(CORES).unwrap(), "0\n");
    sysctls.set_sysctl(CORES, "1").unwrap();
    assert_eq!(sysctls.sysctl(CORES).unwrap(), "1\n");
    for missing in [
        sysctls.sysctl(IDENTITY).map(drop),
        sysctls.set_sysctl(IDENTITY, "1"),
    ] {
        assert_eq!(missing.unwrap_err().kind(), io::ErrorKind::NotFound);
    }
    assert!(!kernel.join(IDENTITY).exists());
}

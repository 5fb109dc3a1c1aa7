use super::{Errno, FakeTree, Write};
use crate::cgroup::{Cgroups, Change, Generation, Written};
use koord_model::{Bvt, CgroupPath, CpuQuota, CpusetCpus, Setting};

fn path(text: &str) -> CgroupPath {
    CgroupPath::parse(text).unwrap()
}

fn quota(at: &str, micros: u64) -> Change {
    Change {
        at: path(at),
        value: CpuQuota::Micros(micros).into(),
    }
}

fn tree(generation: Generation) -> (FakeTree, Cgroups) {
    let tree = FakeTree::new(generation, 2).with_group_identity();
    tree.make(&path("pod/c"));
    let cgroups = Cgroups::over(tree.clone());
    (tree, cgroups)
}

fn texts(tree: &FakeTree) -> Vec<(String, String)> {
    let text = |Write { at, text, .. }| (at.as_str().to_owned(), text);
    tree.take_writes().into_iter().map(text).collect()
}

#[test]
fn widening_goes_down_and_narrowing_goes_up() {
    let (tree, cgroups) = tree(Generation::V1);
    cgroups.apply(&[quota("pod/c", 20_000), quota("pod", 40_000)]);
    let down = [("pod", "40000"), ("pod/c", "20000")];
    let pairs = |pairs: [(&str, &str); 2]| pairs.map(|(a, b)| (a.to_owned(), b.to_owned()));
    // From no limit to a limit is narrowing.
    assert_eq!(texts(&tree), pairs([down[1], down[0]]));
    cgroups.apply(&[quota("pod/c", 60_000), quota("pod", 60_000)]);
    assert_eq!(texts(&tree), pairs([("pod", "60000"), ("pod/c", "60000")]));
}

#[test]
fn a_set_of_cpus_is_swapped_in_one_write_where_nothing_around_it_changes() {
    for generation in [Generation::V1, Generation::V2] {
        let tree = FakeTree::new(generation, 4);
        tree.make(&path("pod/c/inner"));
        tree.make(&path("pod/d"));
        let cgroups = Cgroups::over(tree.clone());
        let written = |changes: &[(&str, &str)]| {
            let changes = changes.iter().map(|(at, cpus)| Change {
                at: path(at),
                value: CpusetCpus::Only(cpus.parse().unwrap()).into(),
            });
            for outcome in cgroups.apply(&changes.collect::<Vec<_>>()) {
                outcome.unwrap();
            }
            let written = texts(&tree).into_iter();
            let written: Vec<_> = written.map(|(at, cpus)| format!("{at}={cpus}")).collect();
            written.join(" ")
        };
        let groups = ["pod", "pod/c", "pod/c/inner", "pod/d"];
        written(&groups.map(|at| (at, "0-3")));
        // A sibling bounds nothing, nor does who is further away.
        let first = written(&[("pod/c/inner", "0-1"), ("pod/c", "0-1"), ("pod/d", "2")]);
        assert_eq!(first, "pod/c/inner=0-1 pod/d=2 pod/c=0-1");
        let swapped = written(&[("pod/d", "3"), ("pod/c/inner", "1")]);
        assert_eq!(swapped, "pod/d=3 pod/c/inner=1");
        assert_eq!(written(&[("pod/c/inner", "0")]), "pod/c/inner=0");
        // Here each bounds the other, at every moment.
        let both = written(&[("pod/c", "2-3"), ("pod/c/inner", "3")]);
        assert_eq!(both, "pod/c=0-3 pod/c/inner=0,3 pod/c/inner=3 pod/c=2-3");
    }
}

#[test]
fn what_is_equal_is_not_written() {
    let (tree, cgroups) = tree(Generation::V2);
    let change = quota("pod", 50_000);
    assert!(cgroups.write(&change.at, &change.value).is_ok());
    assert_eq!(tree.take_writes().len(), 1);
    let again = cgroups.write(&change.at, &change.value).unwrap();
    assert_eq!(again, Written::Equal);
    let again = cgroups.apply(&[change]);
    assert!(matches!(again[..], [Ok(Written::Equal)]));
    assert_eq!(tree.take_writes(), []);
}

#[test]
fn a_write_fails_as_planned_and_once() {
    let (tree, cgroups) = tree(Generation::V1);
    let change = quota("pod", 50_000);
    tree.fail_next_write(&change.at, "cpu.cfs_quota_us", Errno::NODEV);
    let error = cgroups.write(&change.at, &change.value).unwrap_err();
    assert_eq!(error.errno(), Some(libc::ENODEV));
    assert!(error.is_gone());
    assert_eq!(
        error.to_string(),
        "the kernel refuses 50000 as cpu.cfs_quota_us of cgroup /pod"
    );
    assert!(cgroups.write(&change.at, &change.value).is_ok());
}

#[test]
fn group_identity_is_there_only_on_kernels_that_have_it() {
    for generation in [Generation::V1, Generation::V2] {
        let (tree, cgroups) = tree(generation);
        let pod = path("pod");
        let bvt = |value| Bvt::new(value).unwrap().into();
        assert!(cgroups.supports(Setting::CpuBvt, &pod).unwrap());
        assert_eq!(
            cgroups.write(&pod, &bvt(-1)).unwrap(),
            Written::Changed { old: bvt(0) }
        );
        assert_eq!(cgroups.read(&pod, Setting::CpuBvt).unwrap(), bvt(-1));
        assert_eq!(texts(&tree), [("pod".to_owned(), "-1".to_owned())]);
    }
}

#[test]
fn a_kernel_without_idle_groups_has_shares_all_the_same() {
    let tree = FakeTree::new(Generation::V1, 2).without("cpu.idle");
    let cgroups = Cgroups::over(tree.clone());
    tree.make(&path("pod"));
    assert!(!cgroups.supports(Setting::CpuIdle, &path("pod")).unwrap());
    assert!(cgroups.read(&path("pod"), Setting::CpuShares).is_ok());
}

use super::{Errno, FakeTree, Write};
use crate::cgroup::{Cgroups, Change, Controller, Generation, Tree, Written};
use koord_model::{
    Bvt, CgroupPath, CpuQuota, CpuShares, CpusetCpus, MemoryLimit, PageCacheSize, Setting, Value,
};

fn path(text: &str) -> CgroupPath {
    CgroupPath::parse(text).unwrap()
}

fn quota(at: &str, micros: u64) -> Change {
    Change {
        at: path(at),
        value: CpuQuota::Micros(micros).into(),
        gives_back: false,
        of_container: false,
        may_return: false,
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
                gives_back: false,
                of_container: false,
                may_return: false,
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
fn page_cache_is_limited_once_its_size_is_there_and_no_more_before_that_goes() {
    for generation in [Generation::V1, Generation::V2] {
        let tree = FakeTree::new(generation, 2).with_memory_qos();
        tree.make(&path("pod"));
        let cgroups = Cgroups::over(tree.clone());
        let written = |values: [Value; 3]| {
            let changes = values.map(|value| Change {
                at: path("pod"),
                value,
                gives_back: false,
                of_container: false,
                may_return: false,
            });
            for outcome in cgroups.apply(&changes) {
                outcome.unwrap();
            }
            let written = tree.take_writes().into_iter();
            let text = |Write { file, text, .. }| format!("{file}={text}");
            written.map(text).collect::<Vec<_>>()
        };
        let size = |bytes| Value::MemoryPageCacheSize(PageCacheSize::of_bytes(bytes));
        let (sync, enable) = (Value::MemoryPageCacheSync, Value::MemoryPageCacheEnable);
        // In whole pages.
        assert_eq!(
            written([enable(true), sync(true), size(10_000)]),
            [
                "memory.pagecache_limit.sync=1",
                "memory.pagecache_limit.size=8192",
                "memory.pagecache_limit.enable=1",
            ]
        );
        let again = written([enable(true), sync(true), size(10_000)]);
        assert_eq!(again, [""; 0]);
        // No page would be no limit.
        for bytes in [1, 4_095] {
            let least = written([enable(true), sync(true), size(bytes)]);
            assert_eq!(least, ["memory.pagecache_limit.size=4096"]);
            written([enable(true), sync(true), size(10_000)]);
        }
        assert_eq!(
            written([size(0), sync(false), enable(false)]),
            [
                "memory.pagecache_limit.enable=0",
                "memory.pagecache_limit.size=0",
                "memory.pagecache_limit.sync=0",
            ]
        );
    }
}

#[test]
fn page_cache_is_not_limited_to_more_than_the_group_may_have() {
    for generation in [Generation::V1, Generation::V2] {
        let tree = FakeTree::new(generation, 2).with_memory_qos();
        let pod = path("pod");
        tree.make(&pod);
        let cgroups = Cgroups::over(tree.clone());
        let size = |bytes| Value::MemoryPageCacheSize(PageCacheSize::of_bytes(bytes));
        let limit_to = |bytes| {
            let limit = Value::MemoryLimit(MemoryLimit::Bytes(bytes));
            cgroups.write(&pod, &limit).unwrap();
            tree.take_writes();
        };
        limit_to(1_048_576);
        cgroups.write(&pod, &size(1_052_672)).unwrap();
        let held = cgroups.read(&pod, Setting::MemoryPageCacheSize);
        assert_eq!(held.unwrap(), size(1_048_576));
        assert_eq!(cgroups.holds(&pod, &size(1_052_672)), Some(true));
        assert_eq!(cgroups.holds(&pod, &size(1_044_480)), Some(false));
        // Once it may have more, it has as much as was asked for.
        limit_to(2_097_152);
        assert_eq!(cgroups.holds(&pod, &size(1_052_672)), Some(false));
        cgroups.write(&pod, &size(1_052_672)).unwrap();
        assert_eq!(texts(&tree), [("pod".to_owned(), "1052672".to_owned())]);
        let again = cgroups.write(&pod, &size(1_052_672)).unwrap();
        assert_eq!(again, Written::Equal);
        // How much it may have is not known.
        let limit = match generation {
            Generation::V1 => "memory.limit_in_bytes",
            Generation::V2 => "memory.max",
        };
        tree.fail_next_read(&pod, limit, Errno::MFILE);
        let error = cgroups.write(&pod, &size(4_194_304)).unwrap_err();
        assert_eq!(error.errno(), Some(libc::EMFILE));
        assert_eq!(tree.take_writes(), []);
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
fn a_group_that_becomes_idle_is_asked_once_whether_it_is() {
    for generation in [Generation::V1, Generation::V2] {
        let (tree, cgroups) = tree(generation);
        let pod = |value| Change {
            at: path("pod"),
            value,
            gives_back: false,
            of_container: false,
            may_return: false,
        };
        let shares = CpuShares::new(512).unwrap().into();
        let applied = cgroups.apply(&[pod(shares), pod(Value::CpuIdle(true))]);
        assert!(applied.iter().all(Result::is_ok), "{applied:?}");
        assert_eq!(tree.take_reads("cpu.idle"), 1);
        // Shares of one that is idle are not looked at.
        let shares = CpuShares::new(700).unwrap().into();
        let applied = cgroups.apply(&[pod(shares), pod(Value::CpuIdle(true))]);
        assert_eq!(applied[0].as_ref().unwrap(), &Written::Masked);
    }
}

#[test]
fn memory_and_swap_together_are_looked_at_where_memory_has_a_limit() {
    let (tree, cgroups) = tree(Generation::V1);
    let limit = |gib: u64| MemoryLimit::Bytes(gib << 30).into();
    for (gib, looks) in [(2, 0), (1, 1), (3, 1)] {
        let applied = cgroups.write(&path("pod"), &limit(gib));
        assert!(matches!(applied, Ok(Written::Changed { .. })), "{gib}");
        let read = tree.take_reads("memory.memsw.limit_in_bytes");
        assert_eq!(read, looks, "{gib}");
    }
}

#[test]
fn swap_that_the_kernel_did_not_close_at_once_is_closed_later() {
    const FILE: &str = "memory.memsw.limit_in_bytes";
    let (tree, cgroups) = tree(Generation::V1);
    let pod = path("pod");
    let limit = |mib: u64| cgroups.write(&pod, &MemoryLimit::Bytes(mib << 20).into());
    let together = || tree.read(Controller::Memory, &pod, FILE).unwrap();
    let put = |text| tree.write(Controller::Memory, &pod, FILE, text).unwrap();
    // As a runtime leaves a container: without swap.
    limit(2_048).unwrap();
    put("2147483648");
    // Some of it has been swapped out to get there.
    tree.fail_next_write(&pod, FILE, Errno::BUSY);
    let lowered = limit(1_024);
    assert!(matches!(lowered, Ok(Written::Changed { .. })));
    assert_eq!(together(), "2147483648\n");
    assert_eq!(limit(1_024).unwrap(), Written::Equal);
    assert_eq!(together(), "1073741824\n");

    // Or with the next limit, lower or higher.
    for (mib, expected) in [(512, "536870912\n"), (700, "734003200\n")] {
        limit(1_024).unwrap();
        put("1073741824");
        tree.fail_next_write(&pod, FILE, Errno::BUSY);
        limit(600).unwrap();
        assert_eq!(together(), "1073741824\n");
        limit(mib).unwrap();
        assert_eq!(together(), expected);
    }

    // What others have opened in the meantime is theirs, from then on.
    tree.fail_next_write(&pod, FILE, Errno::BUSY);
    limit(600).unwrap();
    put("2147483648");
    for _ in 0..2 {
        assert_eq!(limit(600).unwrap(), Written::Equal);
        assert_eq!(together(), "2147483648\n");
        put("734003200");
        assert_eq!(limit(600).unwrap(), Written::Equal);
        assert_eq!(together(), "734003200\n");
        put("2147483648");
    }
}

/// Each such write would have the kernel reclaim for nothing all that is not in swap.
#[test]
fn swap_is_closed_once_what_is_used_fits_and_not_tried_before() {
    const FILE: &str = "memory.memsw.limit_in_bytes";
    let (tree, cgroups) = tree(Generation::V1);
    let pod = path("pod");
    let limit = |mib: u64| cgroups.write(&pod, &MemoryLimit::Bytes(mib << 20).into());
    let together = || tree.read(Controller::Memory, &pod, FILE).unwrap();
    limit(1_000).unwrap();
    tree.write(Controller::Memory, &pod, FILE, "1048576000")
        .unwrap();
    tree.use_with_swap(&pod, 900 << 20);
    // The next write would take this away.
    tree.fail_next_write(&pod, FILE, Errno::NODEV);
    limit(500).unwrap();
    for _ in 0..3 {
        assert_eq!(limit(500).unwrap(), Written::Equal);
    }
    assert_eq!(together(), "1048576000\n");
    tree.use_with_swap(&pod, 500 << 20);
    assert_eq!(limit(500).unwrap(), Written::Equal);
    assert_eq!(together(), "1048576000\n", "it was not tried so far");
    assert_eq!(limit(500).unwrap(), Written::Equal);
    assert_eq!(together(), "524288000\n");
}

#[test]
fn a_kernel_without_idle_groups_has_shares_all_the_same() {
    let tree = FakeTree::new(Generation::V1, 2).without("cpu.idle");
    let cgroups = Cgroups::over(tree.clone());
    tree.make(&path("pod"));
    assert!(!cgroups.supports(Setting::CpuIdle, &path("pod")).unwrap());
    assert!(cgroups.read(&path("pod"), Setting::CpuShares).is_ok());
}

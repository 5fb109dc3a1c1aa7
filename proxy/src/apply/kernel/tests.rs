//! The writer on a fake tree, which keeps the kernel's rules.

use super::{
    super::{
        cores::Cores,
        testing::{Processes, ReclaimingTree, SHIMS, SlowCores, at},
        threads::ThreadGroup,
    },
    *,
};
use koord_kernel::{
    cgroup::{Before, Controller, Generation, Names, Note, Tree, Version},
    core_sched::{Cookie, CoreSched, Tid},
    fake::FakeTree,
};
use koord_model::{CoreGroup, CpuBurst, CpuQuota, CpuShares, MemoryLimit, MemoryProtection, Value};
use std::{io, os::fd::OwnedFd, sync::mpsc, time::Duration};

/// A pod with a container, whose periods are this long.
struct Groups {
    tree: FakeTree,
    writer: Writer,
    pod: CgroupPath,
    container: CgroupPath,
}

// === impl Groups ===

impl Groups {
    fn new(generation: Generation, pod_us: &str, container_us: &str) -> Self {
        let tree = FakeTree::new(generation, 2);
        let pod = CgroupPath::parse("kubepods/pod1").unwrap();
        let container = pod.join("c1").unwrap();
        tree.make(&container);
        for (at, micros) in [(&pod, pod_us), (&container, container_us)] {
            let (file, text) = match generation {
                Generation::V1 => ("cpu.cfs_period_us", micros.to_owned()),
                Generation::V2 => ("cpu.max", format!("max {micros}")),
            };
            tree.write(Controller::Cpu, at, file, &text).unwrap();
        }
        Self {
            writer: Writer::new(Cgroups::over(tree.clone()), ThreadGroups::none()),
            tree,
            pod,
            container,
        }
    }

    /// Gives pod and container these quotas, each for 100 ms.
    async fn apply(&self, pod: CpuQuota, container: CpuQuota) -> Vec<Applied> {
        let change = |at: &CgroupPath, quota: CpuQuota| Change {
            at: at.clone(),
            value: quota.into(),
            gives_back: false,
            of_container: false,
            may_return: false,
        };
        let changes = vec![change(&self.pod, pod), change(&self.container, container)];
        applied(self.writer.write(changes).await)
    }

    /// Quota and period of pod and container on cgroup v1.
    fn held(&self) -> [[String; 2]; 2] {
        [&self.pod, &self.container].map(|at| {
            ["cpu.cfs_quota_us", "cpu.cfs_period_us"].map(|file| {
                let text = self.tree.read(Controller::Cpu, at, file).unwrap();
                text.trim_end().to_owned()
            })
        })
    }
}

fn applied(outcomes: impl IntoIterator<Item = Outcome>) -> Vec<Applied> {
    let mut applied = Vec::new();
    for outcome in outcomes {
        applied.push(outcome.applied);
    }
    applied
}

fn olds(applied: Vec<Applied>) -> Vec<Value> {
    let old = |applied| match applied {
        Ok(Written::Changed { old }) => old,
        other => panic!("{other:?}"),
    };
    applied.into_iter().map(old).collect()
}

#[tokio::test]
async fn quotas_have_the_share_that_was_decided_in_periods_of_any_length() {
    let (half, fifth) = (CpuQuota::Micros(50_000), CpuQuota::Micros(20_000));
    let groups = Groups::new(Generation::V1, "10000", "20000");
    groups.apply(half, fifth).await;
    assert_eq!(groups.held(), [["5000", "10000"], ["4000", "20000"]]);
    let again = groups.apply(half, fifth).await;
    assert!(
        again.iter().all(|it| matches!(it, Ok(Written::Equal))),
        "{again:?}"
    );
}

#[tokio::test]
async fn what_was_there_is_told_as_decisions_count_it_and_can_be_given_back() {
    let (half, fifth) = (CpuQuota::Micros(50_000), CpuQuota::Micros(20_000));
    let groups = Groups::new(Generation::V1, "10000", "10000");
    groups.apply(half, fifth).await;
    let unlimited = CpuQuota::Unlimited;
    let before = olds(groups.apply(unlimited, unlimited).await);
    assert_eq!(before, [half.into(), fifth.into()]);
    groups.apply(half, fifth).await;
    assert_eq!(groups.held(), [["5000", "10000"], ["2000", "10000"]]);
}

#[tokio::test]
async fn a_share_too_small_for_a_period_gets_a_longer_one() {
    let small = CpuQuota::Micros(5_000);
    for (pod_us, container_us) in [("100000", "10000"), ("10000", "10000")] {
        let groups = Groups::new(Generation::V1, pod_us, container_us);
        let before = olds(groups.apply(small, small).await);
        assert_eq!(
            before,
            [CpuQuota::Unlimited.into(), CpuQuota::Unlimited.into()]
        );
        assert_eq!(groups.held(), [["5000", "100000"], ["5000", "100000"]]);
    }
    let groups = Groups::new(Generation::V2, "100000", "10000");
    groups.apply(small, small).await;
    let held = groups
        .tree
        .read(Controller::Cpu, &groups.container, "cpu.max");
    assert_eq!(held.unwrap(), "5000 100000\n");
}

#[tokio::test]
async fn what_was_there_before_a_longer_period_is_told_in_its_own() {
    let groups = Groups::new(Generation::V1, "10000", "10000");
    let half = CpuQuota::Micros(50_000);
    groups.apply(CpuQuota::Unlimited, half).await;
    let small = CpuQuota::Micros(5_000);
    assert_eq!(olds(groups.apply(small, small).await)[1], half.into());
}

#[tokio::test]
async fn a_pod_whose_period_cannot_be_longer_has_the_least_that_the_kernel_takes() {
    let groups = Groups::new(Generation::V1, "10000", "10000");
    let half = CpuQuota::Micros(50_000);
    groups.apply(half, half).await;
    let small = CpuQuota::Micros(5_000);
    let applied = groups.apply(small, small).await;
    assert!(applied.iter().all(Result::is_ok), "{applied:?}");
    // With 100 ms the pod would have had a twentieth while its container had a half.
    assert_eq!(groups.held(), [["1000", "10000"], ["5000", "100000"]]);
}

#[tokio::test]
async fn a_quota_that_is_refused_leaves_the_period_that_was() {
    let groups = Groups::new(Generation::V1, "10000", "10000");
    let half = CpuQuota::Micros(50_000);
    groups.apply(CpuQuota::Unlimited, half).await;
    let errno = koord_kernel::fake::Errno::INVAL;
    groups
        .tree
        .fail_next_write(&groups.container, "cpu.cfs_quota_us", errno);
    let small = CpuQuota::Micros(6_000);
    let applied = groups.apply(CpuQuota::Unlimited, small).await;
    assert!(applied[1].is_err(), "{applied:?}");
    assert_eq!(groups.held()[1], ["5000", "10000"]);
}

/// A tree over which every question is a panic.
#[derive(Debug)]
struct Broken;

impl Tree for Broken {
    fn version(&self) -> Version {
        Version::V1
    }

    fn generation(&self, _: Controller) -> Option<Generation> {
        Some(Generation::V1)
    }

    fn inode(&self, _: Controller, _: &CgroupPath) -> io::Result<Option<u64>> {
        panic!("of this test")
    }

    fn has_file(&self, _: Controller, _: &CgroupPath, _: &str) -> io::Result<bool> {
        panic!("of this test")
    }

    fn read(&self, _: Controller, _: &CgroupPath, _: &str) -> io::Result<String> {
        panic!("of this test")
    }

    fn write(&self, _: Controller, _: &CgroupPath, _: &str, _: &str) -> io::Result<()> {
        panic!("of this test")
    }

    fn watch(&self, _: Controller, _: &CgroupPath, _: &str) -> io::Result<OwnedFd> {
        panic!("of this test")
    }

    fn children(&self, _: Controller, _: &CgroupPath, _: usize) -> io::Result<Names> {
        panic!("of this test")
    }

    fn note(&self, _: Controller, _: &CgroupPath, _: Note) -> io::Result<String> {
        panic!("of this test")
    }

    fn set_note(&self, _: Controller, _: &CgroupPath, _: Note, _: &str) -> io::Result<()> {
        panic!("of this test")
    }
}

#[tokio::test]
async fn a_job_that_panics_has_an_empty_answer_and_the_next_is_done() {
    let writer = Writer::new(Cgroups::over(Broken), ThreadGroups::none());
    let at = CgroupPath::parse("kubepods/pod1").unwrap();
    for _ in 0..2 {
        let read = writer.read(&[(at.clone(), Setting::CpuQuota)]).await;
        assert_eq!(read, []);
        let change = Change {
            at: at.clone(),
            value: CpuQuota::Unlimited.into(),
            gives_back: false,
            of_container: false,
            may_return: false,
        };
        assert!(writer.write(vec![change]).await.is_empty());
    }
}

/// A pod whose limits of memory are written when the test says so.
struct Limited {
    tree: FakeTree,
    reclaimed: mpsc::Sender<()>,
    writer: Writer,
    at: CgroupPath,
}

// === impl Limited ===

impl Limited {
    fn new() -> Self {
        let tree = FakeTree::new(Generation::V2, 2);
        let (reclaimed, done) = mpsc::channel();
        let at = CgroupPath::parse("kubepods/pod1").unwrap();
        tree.make(&at);
        let slow = ReclaimingTree::new(tree.clone(), done);
        Self {
            writer: Writer::new(Cgroups::over(slow), ThreadGroups::none()),
            tree,
            reclaimed,
            at,
        }
    }

    fn limit(&self, bytes: u64) -> Change {
        Change {
            at: self.at.clone(),
            value: Value::MemoryLimit(MemoryLimit::Bytes(bytes)),
            gives_back: false,
            of_container: false,
            may_return: false,
        }
    }
}

#[tokio::test]
async fn while_memory_is_reclaimed_for_one_pod_another_gets_its_values() {
    let tree = FakeTree::new(Generation::V2, 2);
    let (reclaimed, done) = mpsc::channel();
    let [old, new] = ["kubepods/pod1", "kubepods/pod2"].map(|at| {
        let at = CgroupPath::parse(at).unwrap();
        tree.make(&at);
        at
    });
    let slow = ReclaimingTree::new(tree.clone(), done);
    let writer = Writer::new(Cgroups::over(slow), ThreadGroups::none());
    let change = |at: &CgroupPath, value| Change {
        at: at.clone(),
        value,
        gives_back: false,
        of_container: false,
        may_return: false,
    };
    let (high, min) = (MemoryLimit::Bytes(8192), MemoryProtection::Bytes(4096));
    let (mut slow, fast) = writer.split(vec![
        change(&old, CpuQuota::Micros(20_000).into()),
        change(&old, Value::MemoryHigh(high)),
        change(&old, Value::MemoryMin(min)),
    ]);
    let slow = writer.reclaim(0, slow.remove(0), || true);
    let lowered = async { tokio::join!(slow, writer.write(fast)) };
    let after = async {
        // It was asked for after the other.
        let quota = change(&new, CpuQuota::Micros(50_000).into());
        let late = Duration::from_secs(30);
        let applied = tokio::time::timeout(late, writer.write(vec![quota])).await;
        reclaimed.send(()).unwrap();
        olds(self::applied(
            applied.expect("it waits for nobody's memory"),
        ))
    };
    let ((slow, fast), after) = tokio::join!(lowered, after);
    assert_eq!(after, [CpuQuota::Unlimited.into()]);
    assert_eq!(
        olds(applied(slow)),
        [Value::MemoryHigh(MemoryLimit::Unlimited)]
    );
    assert_eq!(
        olds(applied(fast)),
        [
            CpuQuota::Unlimited.into(),
            Value::MemoryMin(MemoryProtection::NONE),
        ]
    );
}

#[tokio::test]
async fn a_limit_below_what_is_used_holds_up_nobody_and_one_above_is_not_taken_for_such() {
    let pod = Limited::new();
    let Limited { writer, at, .. } = &pod;
    let limit = |bytes| pod.limit(bytes);
    let is_slow = |bytes| writer.cgroups().reclaims(&limit(bytes));
    assert_eq!(
        [1 << 29, 1 << 30, 1 << 31].map(is_slow),
        [true, false, false]
    );
    let lowered = writer.reclaim(0, limit(1 << 29), || true);
    let after = async {
        let quota = Change {
            at: at.clone(),
            value: CpuQuota::Micros(50_000).into(),
            gives_back: false,
            of_container: false,
            may_return: false,
        };
        let late = Duration::from_secs(30);
        let applied = tokio::time::timeout(late, writer.write(vec![quota])).await;
        pod.reclaimed.send(()).unwrap();
        assert!(applied.is_ok(), "it waits for nobody's memory");
    };
    let (lowered, ()) = tokio::join!(lowered, after);
    let unlimited = Value::MemoryLimit(MemoryLimit::Unlimited);
    assert_eq!(olds(applied(lowered)), [unlimited]);
}

#[tokio::test]
async fn limits_of_one_group_are_written_in_order_and_what_was_there_is_known_to_every_thread() {
    let pod = Limited::new();
    let Limited { writer, at, .. } = &pod;
    let limit = |bytes| pod.limit(bytes);
    let unlimited = Value::MemoryLimit(MemoryLimit::Unlimited);
    let first = Some(Written::Changed {
        old: unlimited.clone(),
    });
    // The second one reclaims, and comes behind the first; so does the third, which does not.
    let (wide, narrow, wider) = tokio::join!(
        biased;
        writer.write(vec![limit(1 << 31)]),
        writer.reclaim(0, limit(1 << 29), || true),
        async {
            assert!(writer.is_slow(&limit(1 << 32)));
            (0..4).for_each(|_| pod.reclaimed.send(()).unwrap());
            writer.reclaim(0, limit(1 << 32), || true).await
        },
    );
    for outcome in [wide.into_iter().next(), narrow, wider] {
        assert_eq!(outcome.unwrap().first, first);
    }
    let held = pod.tree.read(Controller::Memory, at, "memory.max");
    assert_eq!(held.unwrap().trim_end(), "4294967296");
    assert!(!writer.is_slow(&limit(1 << 32)));
    // One that is given up before it is sent holds up no other.
    drop(writer.reclaiming.begin(at.clone()));
    assert!(!writer.is_slow(&limit(1 << 32)));
}

#[tokio::test]
async fn a_limit_that_is_withdrawn_while_those_before_it_are_written_is_not_written() {
    let pod = Limited::new();
    let Limited { writer, at, .. } = &pod;
    let held = || {
        let text = pod.tree.read(Controller::Memory, at, "memory.max");
        text.unwrap().trim_end().to_owned()
    };
    let (_, withdrawn, ()) = tokio::join!(
        writer.write(vec![pod.limit(1 << 31)]),
        writer.reclaim(0, pod.limit(1 << 29), || {
            assert_eq!(held(), "2147483648", "whoever decides is asked too early");
            assert!(writer.is_slow(&pod.limit(1 << 32)), "one could come before");
            false
        }),
        async { (0..2).for_each(|_| pod.reclaimed.send(()).unwrap()) },
    );
    assert!(withdrawn.is_none(), "{withdrawn:?}");
    assert_eq!(held(), "2147483648");
    assert!(!writer.is_slow(&pod.limit(1 << 32)));
}

#[tokio::test]
async fn while_threads_of_one_pod_are_looked_at_another_gets_its_values() {
    let processes = Processes::new();
    processes.start("a", 10, 11);
    let (told, until) = mpsc::channel();
    let cores = Cores::over(SlowCores::until(until), processes.procfs());
    let groups = ThreadGroups {
        cores,
        ..ThreadGroups::none()
    };
    let writer = Writer::new(processes.cgroups(), groups);
    let joined = vec![Member {
        at: at("a"),
        group: ThreadGroup::Cores(CoreGroup::None),
        with_shim: false,
    }];
    let joined = writer.join(joined, <[_]>::len);
    let after = async {
        let quota = Change {
            at: at("a"),
            value: CpuQuota::Micros(50_000).into(),
            gives_back: false,
            of_container: false,
            may_return: false,
        };
        let late = Duration::from_secs(30);
        let applied = tokio::time::timeout(late, writer.write(vec![quota])).await;
        drop(told);
        applied.expect("it waits for nobody's threads")
    };
    let (joined, after) = tokio::join!(joined, after);
    assert!(matches!(joined[..], [Ok(Joined::Equal)]), "{joined:?}");
    assert_eq!(olds(applied(after)), [CpuQuota::Unlimited.into()]);
}

/// A kernel that takes its time with each question about a thread, and says which was asked about.
#[derive(Debug)]
struct Sluggish(mpsc::Sender<Tid>);

impl CoreSched for Sluggish {
    fn cookie(&self, thread: Tid) -> io::Result<Option<Cookie>> {
        if thread > 0 {
            self.0.send(thread).unwrap();
            std::thread::sleep(2 * JOIN_AT_ONCE);
        }
        Ok(None)
    }

    fn create(&self, _: Tid) -> io::Result<()> {
        unreachable!("nobody is to have a cookie");
    }

    fn share(&self, _: Tid, _: Cookie, _: Tid) -> io::Result<()> {
        unreachable!("nobody has a cookie");
    }

    fn clear(&self, _: Tid) -> io::Result<()> {
        unreachable!("nobody has a cookie");
    }
}

#[tokio::test]
async fn between_containers_whose_threads_take_long_another_pod_has_its_turn() {
    let processes = Processes::new();
    for (pod, shim) in SHIMS {
        processes.start(pod, shim, shim + 1);
    }
    let (asked, was_asked) = mpsc::channel();
    let groups = ThreadGroups {
        cores: Cores::over(Sluggish(asked), processes.procfs()),
        ..ThreadGroups::none()
    };
    let writer = Writer::new(processes.cgroups(), groups);
    let members = |pods: &[&str]| {
        let member = |pod: &&str| Member {
            at: at(pod),
            group: ThreadGroup::Cores(CoreGroup::None),
            with_shim: false,
        };
        pods.iter().map(member).collect()
    };
    let (long, other) = tokio::join!(
        biased;
        writer.join(members(&["a", "b"]), <[_]>::len),
        writer.join(members(&["c"]), <[_]>::len),
    );
    assert!(matches!(long[..], [Ok(Joined::Equal), Ok(Joined::Equal)]));
    assert!(matches!(other[..], [Ok(Joined::Equal)]));
    let asked: Vec<_> = was_asked.try_iter().collect();
    assert_eq!(asked, [11, 31, 21]);

    // By its turn something else may be decided of the second.
    let cut = writer.join(members(&["a", "b"]), |left| {
        let wanted = |member: &&Member| member.at != at("b");
        left.iter().take_while(wanted).count()
    });
    assert!(matches!(cut.await[..], [Ok(Joined::Equal)]));
    let asked: Vec<_> = was_asked.try_iter().collect();
    assert_eq!(asked, [11]);

    // Between those of which it is only read it has its turn as well.
    let wanted = ["a", "b"].map(|pod| (at(pod), Setting::CoreSched));
    let (read, other) = tokio::join!(
        biased;
        writer.read(&wanted),
        writer.join(members(&["c"]), <[_]>::len),
    );
    assert_eq!(read.len(), 2);
    assert!(matches!(other[..], [Ok(Joined::Equal)]));
    let mut asked: Vec<_> = was_asked.try_iter().collect();
    asked.dedup();
    assert_eq!(asked, [11, 31, 21]);
}

#[tokio::test]
async fn a_burst_is_for_the_period_and_within_the_quota_of_its_directory() {
    let groups = Groups::new(Generation::V1, "10000", "20000");
    let half = CpuQuota::Micros(50_000);
    groups.apply(half, half).await;
    let burst = |at: &CgroupPath, micros| Change {
        at: at.clone(),
        value: CpuBurst::from_micros(micros).unwrap().into(),
        gives_back: false,
        of_container: false,
        may_return: false,
    };
    let held = |at: &CgroupPath| {
        let text = groups.tree.read(Controller::Cpu, at, "cpu.cfs_burst_us");
        text.unwrap().trim_end().to_owned()
    };
    let wanted = vec![
        burst(&groups.pod, 30_000),
        // More than the quota, as where a kubelet gives a pod less than its containers have.
        burst(&groups.container, 70_000),
    ];
    let before = olds(applied(groups.writer.write(wanted.clone()).await));
    assert_eq!(before, [CpuBurst::NONE.into(), CpuBurst::NONE.into()]);
    assert_eq!(held(&groups.pod), "3000");
    assert_eq!(held(&groups.container), "10000");
    let again = applied(groups.writer.write(wanted).await);
    assert!(
        again.iter().all(|it| matches!(it, Ok(Written::Equal))),
        "{again:?}"
    );
    // With a lower quota in the same breath it is within that.
    let lowered = vec![
        Change {
            at: groups.container.clone(),
            value: CpuQuota::Micros(20_000).into(),
            gives_back: false,
            of_container: true,
            may_return: false,
        },
        burst(&groups.container, 70_000),
    ];
    let before = olds(applied(groups.writer.write(lowered).await));
    assert_eq!(
        before,
        [half.into(), CpuBurst::from_micros(50_000).unwrap().into()]
    );
    assert_eq!(held(&groups.container), "4000");
}

#[tokio::test]
async fn a_burst_is_in_force_as_far_as_it_goes_with_the_quota() {
    let groups = Groups::new(Generation::V1, "100000", "100000");
    groups
        .apply(CpuQuota::Micros(50_000), CpuQuota::Micros(40_000))
        .await;
    let burst = |micros| Value::from(CpuBurst::from_micros(micros).unwrap());
    let change = Change {
        at: groups.container.clone(),
        value: burst(70_000),
        gives_back: false,
        of_container: true,
        may_return: false,
    };
    groups.writer.write(vec![change]).await;
    let holds = |micros| groups.writer.holds(&groups.container, &burst(micros));
    assert_eq!(holds(70_000), Some(true));
    assert_eq!(holds(30_000), Some(false));
}

#[tokio::test]
async fn what_is_about_to_be_replaced_is_noted_on_its_group_and_on_no_containers() {
    let groups = Groups::new(Generation::V1, "50000", "50000");
    let noted = |at: &CgroupPath| {
        groups
            .tree
            .note(Controller::Cpu, at, Note::Originals)
            .unwrap()
    };
    let micros = CpuQuota::Micros;
    // 30 ms in 50.
    let file = "cpu.cfs_quota_us";
    let kubelets = groups
        .tree
        .write(Controller::Cpu, &groups.pod, file, "30000");
    kubelets.unwrap();
    groups.apply(micros(40_000), micros(20_000)).await;
    assert_eq!(noted(&groups.pod), "cpu.cfs_quota_us 60000 40000\n");
    assert_eq!(noted(&groups.container), "");
    groups.apply(micros(50_000), micros(20_000)).await;
    assert_eq!(noted(&groups.pod), "cpu.cfs_quota_us 60000 50000 40000\n");

    // One that comes after us knows it, and forgets it with the value.
    let next = Writer::new(Cgroups::over(groups.tree.clone()), ThreadGroups::none());
    let quota = |quota: CpuQuota| {
        let before = Before::Value(micros(60_000).into());
        Original::new(before, quota.into())
    };
    let recalled = next
        .recall(vec![groups.pod.clone(), groups.container.clone()])
        .await
        .unwrap();
    assert_eq!(recalled, [Some(vec![quota(micros(50_000))]), Some(vec![])]);
    let next = Groups {
        writer: next,
        ..groups
    };
    next.apply(micros(60_000), micros(20_000)).await;
    let noted = next.tree.note(Controller::Cpu, &next.pod, Note::Originals);
    assert_eq!(noted.unwrap(), "");
}

#[tokio::test]
async fn a_containers_group_is_marked_while_a_value_of_ours_is_there() {
    let groups = Groups::new(Generation::V1, "100000", "100000");
    let noted = |tree: &FakeTree, at| {
        tree.note(Controller::Cpu, at, Note::Marks(Marked::Files))
            .unwrap()
    };
    let write = async |writer: &Writer, value: Value, gives_back| {
        let at = groups.container.clone();
        let change = Change {
            at,
            value,
            gives_back,
            of_container: true,
            may_return: false,
        };
        applied(writer.write(vec![change]).await).remove(0).is_ok()
    };
    let quota = |micros| Value::from(CpuQuota::Micros(micros));
    let burst = |micros| Value::from(CpuBurst::from_micros(micros).unwrap());
    let file = "cpu.cfs_quota_us";
    let errno = koord_kernel::fake::Errno::BUSY;
    groups.tree.fail_next_write(&groups.container, file, errno);
    assert!(!write(&groups.writer, quota(50_000), false).await);
    assert_eq!(noted(&groups.tree, &groups.container), "");
    assert!(write(&groups.writer, quota(50_000), false).await);
    assert!(write(&groups.writer, burst(20_000), false).await);
    let both = "cpu.cfs_quota_us cpu.cfs_burst_us";
    assert_eq!(noted(&groups.tree, &groups.container), both);
    assert_eq!(noted(&groups.tree, &groups.pod), "");

    // One that comes after us knows it, and what it gives back is ours no more.
    let next = Writer::new(Cgroups::over(groups.tree.clone()), ThreadGroups::none());
    let of = vec![groups.container.clone(), groups.pod.clone()];
    let marks = next.marks(of).await.unwrap();
    let expected = ContainerMarks {
        ours: [Setting::CpuQuota, Setting::CpuBurst].into(),
        ..ContainerMarks::default()
    };
    assert_eq!(marks, [Some(expected), Some(ContainerMarks::default())]);
    groups.tree.take_noted();
    assert!(write(&next, burst(20_000), false).await);
    assert!(write(&next, burst(10_000), false).await);
    assert_eq!(groups.tree.take_noted(), 0);
    assert!(write(&next, burst(0), true).await);
    assert_eq!(noted(&groups.tree, &groups.container), "cpu.cfs_quota_us");
    // Though it is there already.
    assert!(write(&next, quota(50_000), true).await);
    assert_eq!(noted(&groups.tree, &groups.container), "");
}

#[tokio::test]
async fn what_an_update_has_told_the_runtime_is_marked_though_the_runtime_has_written_it() {
    let groups = Groups::new(Generation::V1, "100000", "100000");
    let noted = || {
        let noted = |of| {
            let note = Note::Marks(of);
            let noted = groups.tree.note(Controller::Cpu, &groups.container, note);
            noted.unwrap()
        };
        [Marked::Files, Marked::Spec].map(noted)
    };
    // Whether it is what was there before us, and whether the runtime may write another of ours.
    let write = async |micros, gives_back, may_return| {
        let change = Change {
            at: groups.container.clone(),
            value: CpuQuota::Micros(micros).into(),
            gives_back,
            of_container: true,
            may_return,
        };
        let applied = applied(groups.writer.write(vec![change]).await).remove(0);
        applied.unwrap()
    };
    let quota = "cpu.cfs_quota_us";
    let written = (groups.tree).write(Controller::Cpu, &groups.container, quota, "50000");
    written.unwrap();
    assert_eq!(write(50_000, false, false).await, Written::Equal);
    assert_eq!(noted(), ["", ""]);
    assert_eq!(write(50_000, false, true).await, Written::Equal);
    assert_eq!(noted(), [quota, ""]);
    write(80_000, true, true).await;
    assert_eq!(noted(), ["", quota]);
    write(80_000, true, false).await;
    assert_eq!(noted(), ["", ""]);
}

#[tokio::test]
async fn a_weight_that_a_runtime_makes_of_a_containers_shares_is_marked_and_stays() {
    // 512 shares are a weight of 20 by the one curve, and of 59 by the other.
    for weight in ["20", "59"] {
        let groups = Groups::new(Generation::V2, "100000", "100000");
        let written = (groups.tree).write(Controller::Cpu, &groups.container, "cpu.weight", weight);
        written.unwrap();
        let write = async |gives_back, may_return| {
            let change = Change {
                at: groups.container.clone(),
                value: CpuShares::new(512).unwrap().into(),
                gives_back,
                of_container: true,
                may_return,
            };
            let answer = applied(groups.writer.write(vec![change]).await).remove(0);
            assert_eq!(answer.unwrap(), Written::Equal);
            let noted = |of| {
                let note = Note::Marks(of);
                let noted = groups.tree.note(Controller::Cpu, &groups.container, note);
                noted.unwrap()
            };
            [Marked::Files, Marked::Spec].map(noted)
        };
        let shares = "cpu.shares";
        assert_eq!(write(false, true).await, [shares, ""]);
        assert_eq!(write(true, true).await, ["", shares]);
        assert_eq!(write(true, false).await, ["", ""]);
        let held = (groups.tree).read(Controller::Cpu, &groups.container, "cpu.weight");
        assert_eq!(held.unwrap().trim_end(), weight);
    }
}

#[tokio::test]
async fn a_mark_that_cannot_be_made_is_with_the_next_look_and_not_for_what_did_not_come_about() {
    let groups = Groups::new(Generation::V1, "100000", "100000");
    let errno = koord_kernel::fake::Errno::BUSY;
    let noted = || {
        let noted = groups.tree.note(
            Controller::Cpu,
            &groups.container,
            Note::Marks(Marked::Files),
        );
        noted.unwrap()
    };
    let write = async |micros, gives_back| {
        let change = Change {
            at: groups.container.clone(),
            value: CpuQuota::Micros(micros).into(),
            gives_back,
            of_container: true,
            may_return: false,
        };
        applied(groups.writer.write(vec![change]).await)
            .remove(0)
            .is_ok()
    };
    let refuse = || {
        let no_room = koord_kernel::fake::Errno::NOSPC;
        groups.tree.refuse_notes(Some(no_room));
    };
    let refuse_quota = || {
        let (at, file) = (&groups.container, "cpu.cfs_quota_us");
        groups.tree.fail_next_write(at, file, errno);
    };
    refuse();
    refuse_quota();
    assert!(!write(50_000, false).await);
    groups.tree.refuse_notes(None);
    // Ours is not there.
    assert!(write(100_000, true).await);
    assert_eq!(noted(), "");
    refuse();
    assert!(write(50_000, false).await);
    refuse_quota();
    assert!(!write(60_000, false).await);
    assert_eq!(noted(), "");
    groups.tree.refuse_notes(None);
    // It is, and is not written again.
    assert!(write(50_000, false).await);
    assert_eq!(noted(), "cpu.cfs_quota_us");
}

/// Gives the pod's directory a quota of the kubelet's, in a period of 10 ms, and says what is noted on it.
fn kubelets_in_short_periods(generation: Generation) -> (Groups, impl Fn(&Groups) -> String) {
    let groups = Groups::new(generation, "10000", "10000");
    let (file, text) = match generation {
        Generation::V1 => ("cpu.cfs_quota_us", "3000"),
        Generation::V2 => ("cpu.max", "3000 10000"),
    };
    let kubelets = groups.tree.write(Controller::Cpu, &groups.pod, file, text);
    kubelets.unwrap();
    let noted = |groups: &Groups| {
        let note = groups
            .tree
            .note(Controller::Cpu, &groups.pod, Note::Originals);
        note.unwrap()
    };
    (groups, noted)
}

#[tokio::test]
async fn what_we_wrote_is_known_as_ours_when_its_period_gets_longer() {
    for generation in [Generation::V1, Generation::V2] {
        let (groups, noted) = kubelets_in_short_periods(generation);
        let write = async |micros| {
            let change = Change {
                at: groups.pod.clone(),
                value: CpuQuota::Micros(micros).into(),
                gives_back: false,
                of_container: false,
                may_return: false,
            };
            let written = applied(groups.writer.write(vec![change]).await);
            assert!(written[0].is_ok(), "{written:?}");
            noted(&groups)
        };
        assert_eq!(write(20_000).await, "cpu.cfs_quota_us 30000 20000\n");
        // It has no such share in 10 ms.
        assert_eq!(write(5_000).await, "cpu.cfs_quota_us 30000 5000 20000\n");
        assert_eq!(write(6_000).await, "cpu.cfs_quota_us 30000 6000 5000\n");
        // The kubelet's own of a resize is what comes back then.
        let (file, text) = match generation {
            Generation::V1 => ("cpu.cfs_quota_us", "40000"),
            Generation::V2 => ("cpu.max", "40000 100000"),
        };
        let kubelets = groups.tree.write(Controller::Cpu, &groups.pod, file, text);
        kubelets.unwrap();
        assert_eq!(write(6_000).await, "cpu.cfs_quota_us 40000 6000\n");
    }
}

#[tokio::test]
async fn a_burst_that_went_no_further_with_the_quota_is_known_as_ours_when_it_may() {
    let (groups, noted) = kubelets_in_short_periods(Generation::V1);
    let file = "cpu.cfs_burst_us";
    let theirs = groups.tree.write(Controller::Cpu, &groups.pod, file, "500");
    theirs.unwrap();
    let write = async |micros| {
        let change = Change {
            at: groups.pod.clone(),
            value: CpuBurst::from_micros(micros).unwrap().into(),
            gives_back: false,
            of_container: false,
            may_return: false,
        };
        groups.writer.write(vec![change]).await;
        noted(&groups)
    };
    assert_eq!(write(70_000).await, "cpu.cfs_burst_us 5000 30000\n");
    let file = "cpu.cfs_quota_us";
    let kubelets = groups
        .tree
        .write(Controller::Cpu, &groups.pod, file, "6000");
    kubelets.unwrap();
    let noted = "cpu.cfs_burst_us 5000 60000 30000\n";
    assert_eq!(write(70_000).await, noted);
}

#[tokio::test]
async fn a_burst_beside_a_quota_whose_period_gets_longer_is_told_in_its_own() {
    let (groups, noted) = kubelets_in_short_periods(Generation::V1);
    let file = "cpu.cfs_burst_us";
    let theirs = groups.tree.write(Controller::Cpu, &groups.pod, file, "500");
    theirs.unwrap();
    let change = |value| Change {
        at: groups.pod.clone(),
        value,
        gives_back: false,
        of_container: false,
        may_return: false,
    };
    let burst = CpuBurst::from_micros(1_000).unwrap();
    let changes = vec![change(CpuQuota::Micros(5_000).into()), change(burst.into())];
    groups.writer.write(changes).await;
    let mut lines: Vec<_> = noted(&groups).lines().map(str::to_owned).collect();
    lines.sort();
    let expected = ["cpu.cfs_burst_us 5000 1000", "cpu.cfs_quota_us 30000 5000"];
    assert_eq!(lines, expected);
}

#[tokio::test]
async fn a_note_that_cannot_be_read_for_a_while_is_not_lost() {
    let (groups, noted) = kubelets_in_short_periods(Generation::V1);
    let write = async |writer: &Writer, micros| {
        let change = Change {
            at: groups.pod.clone(),
            value: CpuQuota::Micros(micros).into(),
            gives_back: false,
            of_container: false,
            may_return: false,
        };
        let mut written = writer.write(vec![change]).await;
        let Outcome { applied, first } = written.remove(0);
        assert!(applied.is_ok(), "{applied:?}");
        first.is_some()
    };
    write(&groups.writer, 20_000).await;
    assert_eq!(noted(&groups), "cpu.cfs_quota_us 30000 20000\n");
    // Who comes after us cannot read it at first.
    let next = Writer::new(Cgroups::over(groups.tree.clone()), ThreadGroups::none());
    groups
        .tree
        .fail_notes(Some(koord_kernel::fake::Errno::NFILE));
    // Nor does it take what is there for what there was before us.
    assert!(!write(&next, 50_000).await);
    assert!(!write(&next, 60_000).await);
    groups.tree.fail_notes(None);
    assert_eq!(noted(&groups), "cpu.cfs_quota_us 30000 20000\n");
    // What is there already is noted all the same.
    assert!(write(&next, 60_000).await);
    assert_eq!(noted(&groups), "cpu.cfs_quota_us 30000 60000\n");
    assert!(write(&next, 70_000).await);
    assert_eq!(noted(&groups), "cpu.cfs_quota_us 30000 70000 60000\n");
}

#[tokio::test]
async fn the_shares_of_a_group_that_is_idle_no_more_are_nobodys() {
    let groups = Groups::new(Generation::V1, "100000", "100000");
    let file = "cpu.shares";
    let kubelets = groups.tree.write(Controller::Cpu, &groups.pod, file, "2");
    kubelets.unwrap();
    let write = async |values: Vec<Value>| {
        let change = |value| Change {
            at: groups.pod.clone(),
            value,
            gives_back: false,
            of_container: false,
            may_return: false,
        };
        let changes = values.into_iter().map(change).collect();
        let written = applied(groups.writer.write(changes).await);
        assert!(written.iter().all(Result::is_ok), "{written:?}");
        groups
            .tree
            .note(Controller::Cpu, &groups.pod, Note::Originals)
            .unwrap()
    };
    let shares = |shares| Value::from(CpuShares::new(shares).unwrap());
    assert_eq!(write(vec![Value::CpuIdle(true)]).await, "cpu.idle 2 1\n");
    // It is awake, and has the shares that it had.
    assert_eq!(write(vec![Value::CpuIdle(false), shares(2)]).await, "");
    write(vec![Value::CpuIdle(true)]).await;
    let noted = write(vec![Value::CpuIdle(false), shares(512)]).await;
    assert_eq!(noted, "cpu.shares 2 512\n");
    // Ours are the ones that it forgets.
    let noted = write(vec![Value::CpuIdle(true), shares(700)]).await;
    assert_eq!(noted, "cpu.shares 2 700 512\ncpu.idle 700 1\n");
    assert_eq!(write(vec![Value::CpuIdle(false), shares(2)]).await, "");
}

/// A pod's directory whose shares the kubelet has set to 2, and what is noted on it after each write: of
/// values that are decided, and of those that are given back.
fn with_2_shares() -> (
    Groups,
    impl AsyncFn(&Groups, Vec<Value>, Vec<Value>) -> String,
) {
    let groups = Groups::new(Generation::V1, "100000", "100000");
    let kubelets = (groups.tree).write(Controller::Cpu, &groups.pod, "cpu.shares", "2");
    kubelets.unwrap();
    let write = async |groups: &Groups, decided: Vec<Value>, back: Vec<Value>| {
        let change = |value, gives_back| Change {
            at: groups.pod.clone(),
            value,
            gives_back,
            of_container: false,
            may_return: false,
        };
        let decided = decided.into_iter().map(|value| change(value, false));
        let back = back.into_iter().map(|value| change(value, true));
        let written = applied(groups.writer.write(decided.chain(back).collect()).await);
        assert!(written.iter().all(Result::is_ok), "{written:?}");
        let note = groups
            .tree
            .note(Controller::Cpu, &groups.pod, Note::Originals);
        note.unwrap()
    };
    (groups, write)
}

fn shares(shares: i64) -> Value {
    CpuShares::new(shares).unwrap().into()
}

#[tokio::test]
async fn what_gives_back_is_no_value_of_ours() {
    let (groups, write) = with_2_shares();
    // As by a process that noted nothing.
    let ours = (groups.tree).write(Controller::Cpu, &groups.pod, "cpu.shares", "512");
    ours.unwrap();
    assert_eq!(write(&groups, vec![], vec![shares(2)]).await, "");
    // Nor where something else comes back than what is known.
    assert_eq!(
        write(&groups, vec![shares(512)], vec![]).await,
        "cpu.shares 2 512\n"
    );
    assert_eq!(write(&groups, vec![], vec![shares(700)]).await, "");
}

#[tokio::test]
async fn shares_that_idleness_masks_are_not_back_yet() {
    let (groups, write) = with_2_shares();
    let idle = Value::CpuIdle(true);
    write(&groups, vec![shares(512)], vec![]).await;
    write(&groups, vec![idle], vec![]).await;
    let noted = write(&groups, vec![], vec![shares(2)]).await;
    assert_eq!(noted, "cpu.shares 2 512\ncpu.idle 512 1\n");
    let awake = Value::CpuIdle(false);
    assert_eq!(write(&groups, vec![], vec![awake, shares(2)]).await, "");
}

#[tokio::test]
async fn shares_that_follow_the_end_of_idleness_are_told_from_those_that_the_kernel_gives() {
    let (groups, write) = with_2_shares();
    let (idle, awake) = (Value::CpuIdle(true), Value::CpuIdle(false));
    write(&groups, vec![shares(512)], vec![]).await;
    for _ in 0..2 {
        write(&groups, vec![idle.clone()], vec![]).await;
        // It has 1024 now, which nobody has set.
        let noted = write(&groups, vec![], vec![awake.clone()]).await;
        assert_eq!(noted, "cpu.shares 2 512\n");
        let noted = write(&groups, vec![shares(512)], vec![]).await;
        assert_eq!(noted, "cpu.shares 2 512\n");
    }
    // From then on what is there is somebody's.
    let kubelets = (groups.tree).write(Controller::Cpu, &groups.pod, "cpu.shares", "1024");
    kubelets.unwrap();
    let noted = write(&groups, vec![shares(512)], vec![]).await;
    assert_eq!(noted, "cpu.shares 1024 512\n");
}

#[tokio::test]
async fn what_the_kernel_refuses_leaves_no_note() {
    let groups = Groups::new(Generation::V1, "100000", "100000");
    let micros = CpuQuota::Micros;
    groups.apply(micros(50_000), micros(50_000)).await;
    let noted = || {
        let note = groups
            .tree
            .note(Controller::Cpu, &groups.pod, Note::Originals);
        note.unwrap()
    };
    assert_eq!(noted(), "cpu.cfs_quota_us -1 50000\n");
    // Less than the container has.
    let less = Change {
        at: groups.pod.clone(),
        value: micros(10_000).into(),
        gives_back: false,
        of_container: false,
        may_return: false,
    };
    assert!(applied(groups.writer.write(vec![less]).await)[0].is_err());
    assert_eq!(noted(), "cpu.cfs_quota_us -1 50000\n");
    groups.apply(CpuQuota::Unlimited, CpuQuota::Unlimited).await;
    assert_eq!(noted(), "");
    groups.apply(CpuQuota::Unlimited, micros(50_000)).await;
    let less = Change {
        at: groups.pod.clone(),
        value: micros(10_000).into(),
        gives_back: false,
        of_container: false,
        may_return: false,
    };
    assert!(applied(groups.writer.write(vec![less]).await)[0].is_err());
    assert_eq!(noted(), "");
}

#[test]
fn a_quota_is_held_as_systemd_rounds_it_in_a_scope_and_nowhere_else() {
    for (group, held, decided, expected) in [
        ("cri-containerd-1.scope", "42000", 41_667, true),
        ("cri-containerd-1.scope", "41667", 41_667, true),
        ("cri-containerd-1.scope", "41000", 41_667, false),
        ("cri-containerd-1.scope", "43000", 41_667, false),
        ("cri-containerd-1.scope", "-1", 41_667, false),
        ("container-1", "42000", 41_667, false),
    ] {
        let tree = FakeTree::new(Generation::V1, 2);
        let at = CgroupPath::parse("kubepods/pod1").unwrap();
        let at = at.join(group).unwrap();
        tree.make(&at);
        let written = tree.write(Controller::Cpu, &at, "cpu.cfs_quota_us", held);
        written.unwrap();
        let writer = Writer::new(Cgroups::over(tree), ThreadGroups::none());
        let holds = writer.holds(&at, &CpuQuota::Micros(decided).into());
        assert_eq!(holds, Some(expected), "{group} {held}");
    }
}

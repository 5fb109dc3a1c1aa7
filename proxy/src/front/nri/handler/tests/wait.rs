//! What an answer waits for, and what it does not.

use super::*;
use crate::ledger::Contest;
use koord_testkit::poll::wait_until_async;
use std::{sync::mpsc, thread};
use tokio::{
    task::{spawn_local, yield_now},
    time::sleep,
};

/// The quota of the pod's own directory.
fn quota(bench: &Bench) -> String {
    let file = "cpu.cfs_quota_us";
    let text = bench.tree.read(Controller::Cpu, &bench.pod, file).unwrap();
    text.trim_end().to_owned()
}

/// The pod's own directory has half of what its containers are to have.
fn halve(bench: &Bench) {
    let file = "cpu.cfs_quota_us";
    let halved = bench.tree.write(Controller::Cpu, &bench.pod, file, "50000");
    halved.unwrap();
}

/// The same of memory, by the files of cgroup v2.
fn narrow(bench: &Bench, at: &CgroupPath) {
    let halved = bench
        .tree
        .write(Controller::Memory, at, "memory.max", "536870912");
    halved.unwrap();
}

/// A start of the container whose spec says this.
fn start_of(resources: Option<LinuxResources>) -> Asked {
    let linux = LinuxContainer {
        resources,
        ..LinuxContainer::default()
    };
    Asked::Happened {
        event: Event::StartContainer,
        pod: Some(told_pod()),
        container: Some(Container {
            linux: Some(linux),
            ..told_container()
        }),
    }
}

#[tokio::test]
async fn a_creation_waits_for_no_write_where_the_pods_directory_has_as_much_and_a_start_does() {
    let (bench, plugin) = plugin();
    plugin.answer(happened(Event::RunPodSandbox)).await;
    assert!(matches!(plugin.answer(creation()).await, Answer::Adjust(_)));
    assert_eq!(quota(&bench), "-1");
    plugin.answer(happened(Event::StartContainer)).await;
    assert_eq!(quota(&bench), "100000");
}

#[tokio::test]
async fn a_creation_waits_where_the_pods_directory_has_less_than_its_container_is_to_have() {
    let (bench, plugin) = plugin();
    halve(&bench);
    plugin.answer(happened(Event::RunPodSandbox)).await;
    assert_eq!(quota(&bench), "50000");
    assert!(matches!(plugin.answer(creation()).await, Answer::Adjust(_)));
    assert_eq!(quota(&bench), "100000");
}

/// A creation in a pod that has CPUs of its own, and no quota then, of a container that asks for this one.
fn creation_with_own_cpus(asked: i64) -> [Asked; 2] {
    let pod = PodSandbox {
        labels: [(label::QOS_CLASS.to_owned(), "LSR".to_owned())].into(),
        annotations: [(
            annotation::RESOURCE_STATUS.to_owned(),
            r#"{"cpuset":"1"}"#.to_owned(),
        )]
        .into(),
        ..told_pod()
    };
    let mut resources = shares(512);
    let cpu = resources.cpu.as_mut().expect("it has shares");
    cpu.quota = Some(OptionalInt64 { value: asked });
    let linux = LinuxContainer {
        resources: Some(resources),
        ..LinuxContainer::default()
    };
    let container = Container {
        linux: Some(linux),
        ..told_container()
    };
    let runs = Asked::Happened {
        event: Event::RunPodSandbox,
        pod: Some(pod.clone()),
        container: None,
    };
    let created = CreateContainerRequest {
        pod: Some(pod),
        container: Some(container),
    };
    [runs, Asked::CreateContainer(created)]
}

#[tokio::test]
async fn a_creation_waits_for_no_quota_of_the_pod_that_its_container_could_not_exceed() {
    let (bench, plugin) = plugin();
    halve(&bench);
    let [runs, created] = creation_with_own_cpus(50_000);
    plugin.answer(runs).await;
    assert!(matches!(plugin.answer(created).await, Answer::Adjust(_)));
    assert_eq!(quota(&bench), "50000", "it is to have no quota");
}

#[tokio::test]
async fn a_creation_waits_if_its_container_would_exceed_the_quota_of_the_pod_were_it_made_as_asked()
{
    let (bench, plugin) = plugin();
    halve(&bench);
    let [runs, created] = creation_with_own_cpus(50_001);
    plugin.answer(runs).await;
    assert!(matches!(plugin.answer(created).await, Answer::Adjust(_)));
    assert_eq!(quota(&bench), "-1");
}

#[tokio::test(start_paused = true)]
async fn what_a_question_brings_is_written_in_the_pause_after_it() {
    let (bench, plugin) = plugin();
    let test = async {
        spawn_local(reconcile::run(bench.hub.clone()));
        plugin.answer(happened(Event::RunPodSandbox)).await;
        // Nobody waits for anything, so that no time goes by here.
        for _ in 0..16 {
            yield_now().await;
        }
        // Far longer than the writer would take, had it been handed anything.
        thread::sleep(Duration::from_millis(50));
        assert_eq!(quota(&bench), "-1");
        sleep(Duration::from_millis(5)).await;
        // Comes behind what it is handed then.
        let wanted = [(bench.pod.clone(), Setting::CpuQuota)];
        bench.hub.writer().read(&wanted).await;
        assert_eq!(quota(&bench), "100000");
    };
    LocalSet::new().run_until(test).await;
}

#[tokio::test]
async fn a_creation_comes_behind_what_the_writer_was_handed_for_its_pod() {
    let (go_on, done) = mpsc::channel();
    let bench = Bench::reclaiming(FakeTree::new(Generation::V2, 2), done);
    let plugin = Rc::new(Handler::new(bench.hub.clone(), Duration::from_secs(120)));
    // The directory has room: what is being written may take it, if it was decided before.
    let test = async {
        spawn_local(reconcile::run(bench.hub.clone()));
        plugin.answer(happened(Event::RunPodSandbox)).await;
        // It has the limit of memory in hand, among others, until it may write that.
        let has_begun = || async { bench.hub.writer().standing().is_some() };
        wait_until_async("the writer has begun", has_begun).await;
        let asked = plugin.clone();
        let created = spawn_local(async move { asked.answer(creation()).await });
        yield_now().await;
        // It has asked, and waits for the limit of memory.
        assert_eq!(plugin.pending.borrow().len(), 1);
        assert!(!created.is_finished());
        for _ in 0..8 {
            go_on.send(()).unwrap();
        }
        assert!(matches!(created.await.unwrap(), Answer::Adjust(_)));
    };
    LocalSet::new().run_until(test).await;
    let file = "memory.max";
    let limit = bench.tree.read(Controller::Memory, &bench.pod, file);
    assert_eq!(limit.unwrap().trim_end(), "1073741824");
    let mut ledger = bench.hub.ledger().borrow_mut();
    let own = &mut ledger.pod_mut(&sandbox()).unwrap().own;
    let entry = own.entry_mut(Setting::MemoryLimit).unwrap();
    let is_there = [Applied::Written, Applied::Equal].contains(&entry.applied);
    assert!(is_there, "{:?}", entry.applied);
    // What both have written counts for nobody else's.
    assert_eq!(entry.contest, Contest::default());
}

#[tokio::test]
async fn a_creation_in_a_pod_of_which_nothing_was_told_waits_alike_and_has_it_looked_at() {
    let (bench, plugin) = plugin();
    assert!(matches!(plugin.answer(creation()).await, Answer::Adjust(_)));
    assert_eq!(quota(&bench), "-1");
    reconcile::all_that_waits(&bench.hub).await;
    assert_eq!(quota(&bench), "100000");

    let (bench, plugin) = self::plugin();
    halve(&bench);
    assert!(matches!(plugin.answer(creation()).await, Answer::Adjust(_)));
    assert_eq!(quota(&bench), "100000");
}

#[tokio::test]
async fn a_creation_looks_at_nothing_that_was_held_before() {
    let (bench, plugin) = plugin();
    plugin.answer(happened(Event::RunPodSandbox)).await;
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(quota(&bench), "100000");
    bench.tree.take_reads("cpu.cfs_quota_us");
    bench.tree.take_writes();
    assert!(matches!(plugin.answer(creation()).await, Answer::Adjust(_)));
    assert_eq!(bench.tree.take_reads("cpu.cfs_quota_us"), 0);
    assert_eq!(bench.tree.take_writes(), []);
}

/// Another pod, and its directory.
fn another_pod() -> (PodSandbox, CgroupPath) {
    let mut other = told_pod();
    (other.id, other.uid) = ("sandbox-2".to_owned(), "uid-2".to_owned());
    other.linux.as_mut().unwrap().cgroup_parent = "/kubepods/besteffort/poduid-2".to_owned();
    let at = CgroupPath::parse("kubepods/besteffort/poduid-2").unwrap();
    (other, at)
}

#[tokio::test(start_paused = true)]
async fn a_writer_that_stands_still_holds_one_creation_until_it_is_heard_of_and_each_start() {
    let (go_on, done) = mpsc::channel();
    let bench = Bench::reclaiming(FakeTree::new(Generation::V2, 2), done);
    let plugin = Handler::new(bench.hub.clone(), Duration::from_secs(2));
    let (other, at) = another_pod();
    bench.tree.make(&at);
    narrow(&bench, &bench.pod);
    narrow(&bench, &at);
    let created = Asked::CreateContainer(CreateContainerRequest {
        pod: Some(other.clone()),
        container: Some(Container {
            id: "container-2".to_owned(),
            pod_sandbox_id: "sandbox-2".to_owned(),
            ..told_container()
        }),
    });
    let run = |pod| Asked::Happened {
        event: Event::RunPodSandbox,
        pod: Some(pod),
        container: None,
    };
    // In hundredths of a second.
    let took = async |asked: Asked| {
        let begun = Instant::now();
        let answer = plugin.answer(asked).await;
        let adjusts = matches!(answer, Answer::Adjust(_));
        (begun.elapsed().as_millis() / 10, adjusts)
    };
    assert_eq!(took(run(told_pod())).await, (0, false));
    assert_eq!(took(run(other)).await, (0, false));
    bench.hub.queue().drain();

    // A limit of memory is written once somebody says so, and all else behind it.
    assert_eq!(took(creation()).await, (50, true));
    assert_eq!(took(created).await, (0, true));
    // Nobody hears what came of either.
    assert_eq!(bench.hub.queue().drain().len(), 2);
    assert_eq!(took(happened(Event::StartContainer)).await, (50, false));
    assert!(bench.hub.writer().is_late());

    for _ in 0..8 {
        go_on.send(()).unwrap();
    }
    // It has them all the same, in the order in which it was handed them.
    let limits = [&bench.pod, &at].map(|at| (at.clone(), Setting::MemoryLimit));
    let limits = bench.hub.writer().read(&limits).await;
    let gib = Some("1073741824".to_owned());
    assert_eq!(limits, [gib.clone(), gib]);
    assert!(!bench.hub.writer().is_late());
}

#[tokio::test(start_paused = true)]
async fn who_has_hardly_waited_has_not_found_the_writer_late() {
    let (go_on, done) = mpsc::channel();
    let bench = Bench::reclaiming(FakeTree::new(Generation::V2, 2), done);
    let plugin = Handler::new(bench.hub.clone(), Duration::from_secs(2));
    narrow(&bench, &bench.pod);
    // In milliseconds until each is due; half of that is waited.
    for (due, is_late) in [(60, false), (200, true)] {
        let due = Instant::now() + Duration::from_millis(due);
        plugin.answer_by(creation(), due).await;
        assert_eq!(bench.hub.writer().is_late(), is_late);
    }
    for _ in 0..8 {
        go_on.send(()).unwrap();
    }
}

#[tokio::test]
async fn a_start_waits_for_what_the_containers_spec_does_not_say() {
    for (spec, shares_then) in [
        (Some(batch()), "1024"),
        (Some(shares(1_024)), "512"),
        (None, "512"),
    ] {
        let (bench, plugin) = plugin();
        plugin.answer(happened(Event::RunPodSandbox)).await;
        plugin.answer(creation()).await;
        plugin.answer(happened(Event::PostCreateContainer)).await;
        // The runtime of this test has written nothing of it.
        assert_eq!(bench.shown("cpu.shares"), "1024");
        plugin.answer(start_of(spec)).await;
        assert_eq!(bench.shown("cpu.shares"), shares_then);
        // It is looked at all the same.
        assert_eq!(bench.hub.queue().drain(), [sandbox()]);
        reconcile::pod(&bench.hub, &sandbox()).await;
        assert_eq!(bench.shown("cpu.shares"), "512");
    }
}

#[tokio::test]
async fn a_start_believes_no_spec_that_may_have_changed_since_the_group_was_made() {
    let synchronize = || Asked::Synchronize {
        pods: vec![told_pod()],
        containers: vec![told_container()],
    };
    let made = || [creation(), happened(Event::PostCreateContainer)];
    let told_before: [Vec<Asked>; 3] = [
        Vec::new(),
        made().into_iter().chain([update(batch())]).collect(),
        made().into_iter().chain([synchronize()]).collect(),
    ];
    for told in told_before {
        let (bench, plugin) = plugin();
        plugin.answer(happened(Event::RunPodSandbox)).await;
        for asked in told {
            plugin.answer(asked).await;
        }
        assert_eq!(bench.shown("cpu.shares"), "1024");
        // As it was decided, but not what the runtime of this test has made the group from.
        plugin.answer(start_of(Some(batch()))).await;
        assert_eq!(bench.shown("cpu.shares"), "512");
    }
}

#[tokio::test(start_paused = true)]
async fn a_creation_is_adjusted_within_the_time_that_its_question_says() {
    let (go_on, done) = mpsc::channel();
    let bench = Bench::reclaiming(FakeTree::new(Generation::V2, 2), done);
    narrow(&bench, &bench.pod);
    // Of a runtime that says nothing before a question, so that it is taken to wait for two seconds.
    let plugin = Handler::new(bench.hub.clone(), Duration::from_secs(2));
    let begun = Instant::now();
    // The question says 600 ms.
    let due = begun + Duration::from_millis(300);
    let answer = plugin.answer_by(creation(), due).await;
    assert!(matches!(answer, Answer::Adjust(_)));
    assert_eq!(begun.elapsed().as_millis() / 10, 15);
    for _ in 0..8 {
        go_on.send(()).unwrap();
    }
}

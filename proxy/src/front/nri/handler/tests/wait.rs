//! What an answer waits for, and what it does not.

use super::*;
use std::sync::mpsc;

/// The quota of the pod's own directory.
fn quota(bench: &Bench) -> String {
    let file = "cpu.cfs_quota_us";
    let text = bench.tree.read(Controller::Cpu, &bench.pod, file).unwrap();
    text.trim_end().to_owned()
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
async fn the_run_of_a_sandbox_waits_for_no_write_and_the_creation_after_it_does() {
    let (bench, plugin) = plugin();
    plugin.answer(happened(Event::RunPodSandbox)).await;
    assert_eq!(quota(&bench), "-1");
    assert!(matches!(plugin.answer(creation()).await, Answer::Adjust(_)));
    assert_eq!(quota(&bench), "100000");
}

#[tokio::test]
async fn a_creation_in_a_pod_of_which_nothing_was_told_waits_for_its_values() {
    let (bench, plugin) = plugin();
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

#[tokio::test(start_paused = true)]
async fn a_writer_that_stands_still_holds_each_pod_for_its_own_time_and_is_waited_for_no_longer() {
    let (go_on, done) = mpsc::channel();
    let bench = Bench::reclaiming(FakeTree::new(Generation::V2, 2), done);
    let plugin = Handler::new(bench.hub.clone(), Duration::from_secs(2));
    let mut other = told_pod();
    (other.id, other.uid) = ("sandbox-2".to_owned(), "uid-2".to_owned());
    other.linux.as_mut().unwrap().cgroup_parent = "/kubepods/besteffort/poduid-2".to_owned();
    let at = CgroupPath::parse("kubepods/besteffort/poduid-2").unwrap();
    bench.tree.make(&at);
    let begun = Instant::now();
    for pod in [told_pod(), other.clone()] {
        let runs = Asked::Happened {
            event: Event::RunPodSandbox,
            pod: Some(pod),
            container: None,
        };
        plugin.answer(runs).await;
    }
    assert_eq!(begun.elapsed(), Duration::ZERO);
    bench.hub.queue().drain();

    // A limit of memory is written once somebody says so, and all else behind it.
    let created = Asked::CreateContainer(CreateContainerRequest {
        pod: Some(other),
        container: Some(Container {
            id: "container-2".to_owned(),
            pod_sandbox_id: "sandbox-2".to_owned(),
            ..told_container()
        }),
    });
    let answers = tokio::join!(plugin.answer(creation()), plugin.answer(created));
    assert!(matches!(answers, (Answer::Adjust(_), Answer::Adjust(_))));
    assert_eq!(begun.elapsed().as_millis() / 10, 50);
    // Nobody hears what came of it.
    assert_eq!(bench.hub.queue().drain().len(), 2);

    for _ in 0..8 {
        go_on.send(()).unwrap();
    }
    reconcile::pod(&bench.hub, &sandbox()).await;
    let limit = bench
        .tree
        .read(Controller::Memory, &bench.pod, "memory.max");
    assert_eq!(limit.unwrap().trim_end(), "1073741824");
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

#[tokio::test(start_paused = true)]
async fn a_creation_is_adjusted_within_the_time_that_its_question_says() {
    let (go_on, done) = mpsc::channel();
    let bench = Bench::reclaiming(FakeTree::new(Generation::V2, 2), done);
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

//! Beside koordlet: calls before it is known whether it is there, and what comes back when it comes.

use super::*;
use tokio::time::{advance, sleep};

/// The container that is made here.
const MADE: &str = "kubepods/besteffort/poduid-1/container-2";

/// A creation in the pod, of another container of its name, that asks for 2,048 shares.
fn creation() -> cri::CreateContainerRequest {
    let text = |text: &str| text.to_owned();
    let pod = listed_pod();
    let resources = cri::LinuxContainerResources {
        cpu_shares: 2_048,
        ..Default::default()
    };
    cri::CreateContainerRequest {
        pod_sandbox_id: pod.id,
        config: Some(cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: text("main"),
                ..Default::default()
            }),
            linux: Some(cri::LinuxContainerConfig {
                resources: Some(resources),
            }),
            ..Default::default()
        }),
        sandbox_config: Some(cri::PodSandboxConfig {
            metadata: pod.metadata,
            labels: pod.labels,
            annotations: pod.annotations,
            linux: Some(cri::LinuxPodSandboxConfig {
                cgroup_parent: text("/kubepods/besteffort/poduid-1"),
            }),
        }),
    }
}

/// What a creation that has to wait comes to.
async fn waits(bench: &Bench) -> Decision {
    let message = creation().encode_to_vec();
    match bench.hub.open(Method::CreateContainer, &message, None) {
        Opening::Later(decision) => decision.await,
        Opening::Now(_) => panic!("it does not wait"),
    }
}

/// The runtime has made the container, with these shares, and starts it.
fn make(bench: &Bench, shares: &str) {
    let made = CgroupPath::parse(MADE).unwrap();
    bench.tree.make(&made);
    let written = bench
        .tree
        .write(Controller::Cpu, &made, "cpu.shares", shares);
    written.unwrap();
    let id = "container-2".to_owned();
    call(bench, Method::StartContainer, &id, &());
}

/// What a file of a group shows once the pod was held against the kernel.
async fn held(bench: &Bench, at: &str, file: &str) -> String {
    reconcile::pod(&bench.hub, &sandbox()).await;
    let at = CgroupPath::parse(at).unwrap();
    let text = bench.tree.read(Controller::Cpu, &at, file).unwrap();
    text.trim_end().to_owned()
}

fn answered_with(id: &str) -> Reply {
    Reply::Answered {
        grpc_status: Some(0),
        message: Some(id.to_owned().encode_to_vec()),
    }
}

const PATIENCE: Duration = Duration::from_secs(2);

#[tokio::test(start_paused = true)]
async fn a_call_waits_until_it_is_known_whether_koordlet_is_there() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    bench.hub.await_koordlet(PATIENCE);
    let known = async {
        sleep(Duration::from_millis(400)).await;
        bench.hub.tell_koordlet_known();
    };
    let (decision, ()) = tokio::join!(waits(&bench), known);
    assert!(matches!(decision.answer, Answer::Patched(_)));
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
}

#[tokio::test(start_paused = true)]
async fn a_call_that_has_waited_in_vain_passes_as_it_came_and_gets_its_values_once_it_is_known() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    bench.hub.await_koordlet(PATIENCE);
    let begun = tokio::time::Instant::now();
    let decision = waits(&bench).await;
    assert_eq!(begun.elapsed().as_millis() / 10, 50);
    let Answer::AsIs(Untouched::UnknownKoordlet) = decision.answer else {
        panic!("{:?}", decision.answer);
    };
    bench
        .hub
        .close(decision.pending, answered_with("container-2"));
    // Once the start has waited, no call does any more.
    advance(PATIENCE).await;
    let begun = tokio::time::Instant::now();
    waits(&bench).await;
    assert_eq!(begun.elapsed().as_millis() / 10, 0);

    let made = CgroupPath::parse(MADE).unwrap();
    bench.tree.make(&made);
    let start = "container-2".to_owned().encode_to_vec();
    let Opening::Later(start) = bench.hub.open(Method::StartContainer, &start, None) else {
        panic!("it is decided about, too");
    };
    bench.hub.close(start.await.pending, answered(0));
    bench.hub.queue().drain();
    assert_eq!(held(&bench, MADE, "cpu.shares").await, "1024");
    bench.hub.tell_koordlet_known();
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
    assert_eq!(held(&bench, MADE, "cpu.shares").await, "512");
}

#[tokio::test]
async fn what_somebody_else_has_written_since_stays_when_koordlet_comes() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let (container, pod) = (bench.container.to_string(), bench.pod.to_string());
    assert_eq!(held(&bench, &container, "cpu.shares").await, "512");
    bench.write("cpu.shares", "300");
    bench.hub.set_resting(["BatchResource"].into());
    assert_eq!(held(&bench, &container, "cpu.shares").await, "300");
    // What is as we have written it comes back.
    assert_eq!(held(&bench, &container, "cpu.cfs_quota_us").await, "-1");
    assert_eq!(held(&bench, &pod, "cpu.cfs_quota_us").await, "-1");
}

#[tokio::test]
async fn what_we_have_not_written_stays_when_koordlet_comes_though_it_is_what_was_decided() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let container = bench.container.to_string();
    bench.write("cpu.shares", "512");
    assert_eq!(held(&bench, &container, "cpu.shares").await, "512");
    bench.hub.set_resting(["BatchResource"].into());
    assert_eq!(held(&bench, &container, "cpu.shares").await, "512");
    assert!(bench.entry(Setting::CpuShares).is_none());
}

#[tokio::test]
async fn what_was_decided_and_not_done_when_koordlet_comes_is_forgotten() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    bench.write("cpu.shares", "300");
    bench.hub.set_resting(["BatchResource"].into());
    let container = bench.container.to_string();
    assert_eq!(held(&bench, &container, "cpu.shares").await, "300");
    assert_eq!(bench.tree.take_writes(), []);
    assert!(bench.entry(Setting::CpuShares).is_none());
}

#[tokio::test]
async fn what_a_creation_was_told_comes_back_when_koordlet_comes_as_long_as_it_is_there() {
    for (there, after) in [("512", "2048"), ("300", "300")] {
        let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
        let id = "container-2".to_owned();
        let told = call(&bench, Method::CreateContainer, &creation(), &id);
        assert!(matches!(told, Answer::Patched(_)));
        make(&bench, there);
        bench.hub.set_resting(["BatchResource"].into());
        assert_eq!(held(&bench, MADE, "cpu.shares").await, after);
    }
}

#[tokio::test]
async fn what_an_update_was_told_comes_back_when_koordlet_comes() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let update = cri::UpdateContainerResourcesRequest {
        container_id: container().to_string(),
        linux: Some(cri::LinuxContainerResources {
            memory_limit_in_bytes: 1 << 30,
            ..Default::default()
        }),
    };
    let told = call(&bench, Method::UpdateContainerResources, &update, &());
    assert!(matches!(told, Answer::Patched(_)));
    // As the runtime does then.
    bench.write("cpu.shares", "512");
    bench.hub.set_resting(["BatchResource"].into());
    let container = bench.container.to_string();
    assert_eq!(held(&bench, &container, "cpu.shares").await, "1024");
}

#[tokio::test]
async fn what_was_written_for_an_earlier_sandbox_of_the_pod_comes_back_when_koordlet_comes() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let (pod, file) = (bench.pod.to_string(), "cpu.cfs_quota_us");
    assert_eq!(held(&bench, &pod, file).await, "100000");
    bench.hub.ledger().borrow_mut().remove_pod(&sandbox());
    let bench = bench.knowing_pod();
    assert_eq!(held(&bench, &pod, file).await, "100000");
    bench.hub.set_resting(["BatchResource"].into());
    assert_eq!(held(&bench, &pod, file).await, "-1");
}

#[tokio::test]
async fn what_a_creation_was_changed_to_say_is_known_of_its_container() {
    for (asked, ours) in [
        (2_048, &["512", "100000", "1073741824"][..]),
        // That is its own wish.
        (512, &["100000", "1073741824"]),
    ] {
        let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
        let mut creation = creation();
        let config = creation.config.as_mut().unwrap();
        let resources = config.linux.as_mut().unwrap().resources.as_mut();
        resources.unwrap().cpu_shares = asked;
        let id = "container-2".to_owned();
        call(&bench, Method::CreateContainer, &creation, &id);
        let ledger = bench.hub.ledger().borrow();
        let id = ContainerId::new(&id).unwrap();
        let (_, container) = ledger.container(&id).unwrap();
        let known: Vec<_> = container.ours.iter().map(ToString::to_string).collect();
        assert_eq!(known, ours);
    }
}

use super::*;
use crate::{
    front::cri::Method,
    hub::{
        Opening, PodsAnswer, Reply, Word,
        testing::{Bench, container, sandbox},
    },
    ledger::{Applied, Contest},
    reconcile,
};
use koord_kernel::{
    cgroup::{Controller, Tree},
    fake::FakeTree,
};
use koord_model::PodUid;
use koord_proto::{cri, keys::label, pods};
use prost::Message;
use std::{io, sync::Arc};
use tokio::time::timeout;

/// What a kubelet makes of a weight of 0: `cpuWeightToCPUShares` counts without a sign.
const SHARES_OF_WEIGHT_0: i64 = 1_844_858_893_260_256;

/// The kubelet writes to the pod's directory.
fn write(bench: &Bench, file: &str, text: &str) -> io::Result<()> {
    bench.tree.write(Controller::Cpu, &bench.pod, file, text)
}

/// The kubelet tells of a write to the pod's directory.
fn tell(bench: &Bench, cpu_shares: i64) -> Opening {
    let request = cri::UpdatePodSandboxResourcesRequest {
        pod_sandbox_id: "sandbox-1".to_owned(),
        overhead: None,
        resources: Some(cri::LinuxContainerResources {
            cpu_shares,
            cpu_quota: 50_000,
            cpu_period: 100_000,
            ..Default::default()
        }),
    };
    let method = Method::UpdatePodSandboxResources;
    bench.hub.open(method, &request.encode_to_vec(), None)
}

fn answered(code: u32) -> Reply {
    Reply::Answered {
        grpc_status: Some(code),
        message: None,
    }
}

/// What it has once the hook that had it idle is off.
async fn shares_given_back(bench: &Bench) -> String {
    assert!(bench.hub.switch_hook("GroupIdentity", false));
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown_of_pod("cpu.idle"), "0");
    bench.shown_of_pod("cpu.shares")
}

fn asking(cpu_shares: i64) -> Requested {
    Requested {
        cpu_shares: CpuShares::new(cpu_shares).ok(),
        ..Requested::default()
    }
}

fn values(changes: &[Change]) -> Vec<String> {
    let values = changes.iter().map(|it| &it.value);
    values
        .map(|value| format!("{}={value}", value.setting()))
        .collect()
}

#[tokio::test]
async fn an_idle_pod_is_awake_before_its_kubelet_is_told_to_write_its_shares() {
    // Done, or by a runtime that does not have the call.
    for code in [0, 12] {
        let bench = Bench::idling(Generation::V1).await;
        let refused = write(&bench, "cpu.shares", "700").unwrap_err();
        assert_eq!(refused.raw_os_error(), Some(22));
        let Opening::Later(decision) = tell(&bench, 700) else {
            panic!("it is written first");
        };
        let decision = decision.await;
        // Somebody has the pod held against the kernel before the kubelet writes.
        reconcile::pod(&bench.hub, &sandbox()).await;
        assert_eq!(bench.shown_of_pod("cpu.idle"), "0");
        assert_eq!(bench.shown_of_pod("cpu.shares"), "500");
        bench.hub.close(decision.pending, answered(code));
        write(&bench, "cpu.shares", "700").unwrap();

        // The next of its writes is told of.
        assert!(matches!(tell(&bench, 700), Opening::Now(_)));
        reconcile::pod(&bench.hub, &sandbox()).await;
        assert_eq!(bench.shown_of_pod("cpu.idle"), "0");
        assert_eq!(bench.shown_of_pod("cpu.shares"), "700");
        assert_eq!(shares_given_back(&bench).await, "700");
    }
}

#[tokio::test]
async fn a_pod_that_only_the_first_list_tells_of_is_awake_before_its_kubelet_goes_on() {
    let bench = Bench::without_idle(FakeTree::new(Generation::V1, 2), true);
    let Opening::Later(mut decision) = tell(&bench, 700) else {
        panic!("nobody knows the pod yet");
    };
    assert!(timeout(Duration::ZERO, &mut decision).await.is_err());
    let bench = bench.knowing_burstable();
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown_of_pod("cpu.idle"), "1");
    bench.hub.list_taken();
    bench.hub.close(decision.await.pending, answered(12));
    assert_eq!(bench.shown_of_pod("cpu.idle"), "0");
    write(&bench, "cpu.shares", "700").unwrap();
}

#[tokio::test]
async fn a_pod_is_awake_before_its_kubelet_goes_on_once_it_is_known_whether_koordlet_is_there() {
    let bench = Bench::idling(Generation::V1).await;
    bench.hub.await_koordlet(Duration::from_secs(2));
    let Opening::Later(mut decision) = tell(&bench, 700) else {
        panic!("nothing may be written yet");
    };
    assert!(
        timeout(Duration::from_millis(20), &mut decision)
            .await
            .is_err()
    );
    assert_eq!(bench.shown_of_pod("cpu.idle"), "1");
    bench.hub.tell_koordlet_known();
    bench.hub.close(decision.await.pending, answered(12));
    assert_eq!(bench.shown_of_pod("cpu.idle"), "0");
    write(&bench, "cpu.shares", "700").unwrap();
}

#[tokio::test]
async fn what_ended_as_it_was_opened_keeps_no_later_resize_from_waking_a_pod() {
    let bench = Bench::idling(Generation::V1).await;
    drop(tell(&bench, 700));
    assert_eq!(bench.shown_of_pod("cpu.idle"), "1");
    let Opening::Later(decision) = tell(&bench, 700) else {
        panic!("it is written first");
    };
    bench.hub.close(decision.await.pending, answered(12));
    assert_eq!(bench.shown_of_pod("cpu.idle"), "0");
    assert_eq!(bench.shown_of_pod("cpu.shares"), "500");
    write(&bench, "cpu.shares", "700").unwrap();
}

#[tokio::test(start_paused = true)]
async fn a_pod_is_idle_again_ten_seconds_after_the_last_word_of_a_resize() {
    let bench = Bench::idling(Generation::V1).await;
    let first = bench.hub.prepare_pod_update(&sandbox(), &asking(700));
    assert_eq!(values(&first), ["cpu.idle=false", "cpu.shares=500"]);
    bench.hub.writer().write(first).await;
    write(&bench, "cpu.shares", "700").unwrap();
    tokio::time::advance(Duration::from_secs(4)).await;
    assert_eq!(
        bench.hub.prepare_update(&container(), &asking(700)).changes,
        []
    );

    // When the first word is ten seconds old.
    tokio::time::advance(Duration::from_secs(6)).await;
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown_of_pod("cpu.idle"), "0");
    tokio::time::advance(Duration::from_millis(3_999)).await;
    assert_eq!(bench.hub.queue().drain(), []);
    tokio::time::advance(Duration::from_millis(1)).await;
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown_of_pod("cpu.idle"), "1");
    // Nobody else has written what was there.
    let (applied, contest) = {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let own = &mut ledger.pod_mut(&sandbox()).unwrap().own;
        let idle = own.entry_mut(Setting::CpuIdle).unwrap();
        (idle.applied.clone(), idle.contest.clone())
    };
    assert_eq!((applied, contest), (Applied::Written, Contest::default()));
    assert_eq!(shares_given_back(&bench).await, "700");
}

#[tokio::test(start_paused = true)]
async fn a_pod_that_is_woken_during_a_check_is_idle_again_and_nobody_else_has_woken_it() {
    let bench = Bench::idling(Generation::V1).await;
    let sandbox = sandbox();
    // What the check is answered is from before that.
    let wake = async { bench.hub.prepare_pod_update(&sandbox, &asking(700)) };
    let ((), first) = tokio::join!(reconcile::pod(&bench.hub, &sandbox), wake);
    assert_eq!(values(&first), ["cpu.idle=false", "cpu.shares=500"]);
    bench.hub.writer().write(first).await;
    tokio::time::advance(Duration::from_secs(10)).await;
    reconcile::pod(&bench.hub, &sandbox).await;
    assert_eq!(bench.shown_of_pod("cpu.idle"), "1");
    let mut ledger = bench.hub.ledger().borrow_mut();
    let own = &mut ledger.pod_mut(&sandbox).unwrap().own;
    let idle = own.entry_mut(Setting::CpuIdle).unwrap();
    assert_eq!(idle.applied, Applied::Written);
    assert_eq!(idle.contest, Contest::default());
}

#[tokio::test]
async fn the_shares_of_an_idle_group_are_nobodys_wish() {
    let bench = Bench::idling(Generation::V1).await;
    assert_eq!(bench.shown_of_pod("cpu.shares"), "3");
    let Opening::Now(decision) = tell(&bench, 3) else {
        panic!("it writes no shares");
    };
    bench.hub.close(decision.pending, answered(0));
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown_of_pod("cpu.idle"), "1");
    assert_eq!(shares_given_back(&bench).await, "500");

    let bench = Bench::idling(Generation::V2).await;
    assert_eq!(bench.shown_of_pod("cpu.weight"), "0");
    assert!(matches!(tell(&bench, SHARES_OF_WEIGHT_0), Opening::Now(_)));
    // There 3 are a wish as good as any.
    assert!(matches!(tell(&bench, 3), Opening::Later(_)));
}

#[tokio::test]
async fn three_shares_are_a_wish_where_containers_ask_for_as_many() {
    let bench = Bench::idling(Generation::V1).await;
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        pod.containers[0].view.requested = asking(3);
    }
    let Opening::Later(decision) = tell(&bench, 3) else {
        panic!("it is written first");
    };
    let decision = decision.await;
    bench.hub.close(decision.pending, answered(0));
    write(&bench, "cpu.shares", "3").unwrap();
    assert_eq!(shares_given_back(&bench).await, "3");
}

#[tokio::test]
async fn an_idle_pod_is_awake_before_a_container_has_other_cpu_time() {
    let bench = Bench::idling(Generation::V2).await;
    let cpus = Requested {
        cpuset_cpus: "0".parse().ok(),
        ..Requested::default()
    };
    // The container has asked for 1,024 shares.
    for same in [cpus, asking(1_024)] {
        assert_eq!(bench.hub.prepare_update(&container(), &same).changes, []);
    }
    let first = bench.hub.prepare_update(&container(), &asking(512)).changes;
    assert_eq!(values(&first)[0], "cpu.idle=false");
    bench.hub.writer().write(first).await;
    write(&bench, "cpu.weight", "20").unwrap();
}

#[tokio::test]
async fn a_pod_whose_resize_fails_is_idle_again_once_it_has_come_about() {
    let bench = Bench::idling(Generation::V1).await;
    let say = |is_stuck_in_resize| {
        let pod = pods::Pod {
            uid: PodUid::new("uid-1").unwrap(),
            namespace: "default".to_owned(),
            name: "batch".to_owned(),
            labels: [(label::QOS_CLASS.to_owned(), "BE".to_owned())].into(),
            annotations: Default::default(),
            spec: Arc::new(pods::PodSpec {
                is_stuck_in_resize,
                ..Default::default()
            }),
        };
        bench.hub.take_pods(&PodsAnswer {
            pods: [Arc::new(pod)].into(),
            asked: Instant::now(),
            word: Word::OfItsTime,
        });
    };
    say(true);
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown_of_pod("cpu.idle"), "0");
    assert_eq!(bench.shown_of_pod("cpu.shares"), "500");
    // The kubelet tries again.
    write(&bench, "cpu.shares", "700").unwrap();
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown_of_pod("cpu.shares"), "700");
    say(false);
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown_of_pod("cpu.idle"), "1");
    assert_eq!(shares_given_back(&bench).await, "700");
}

/// The bench's container asks for these, and nobody knows what its pod had before it was idle.
fn restart(bench: &Bench, requested: Requested) {
    let mut ledger = bench.hub.ledger().borrow_mut();
    let pod = ledger.pod_mut(&sandbox()).unwrap();
    pod.own.undecided_shares = None;
    pod.containers[0].view.requested = requested;
}

#[tokio::test]
async fn a_pod_that_was_idle_before_a_restart_wakes_with_the_shares_of_its_containers() {
    let bench = Bench::idling(Generation::V1).await;
    restart(&bench, asking(700));
    let first = bench.hub.prepare_pod_update(&sandbox(), &asking(700));
    assert_eq!(values(&first), ["cpu.idle=false", "cpu.shares=700"]);

    let bench = Bench::idling(Generation::V1).await;
    restart(&bench, Requested::default());
    let first = bench.hub.prepare_pod_update(&sandbox(), &asking(700));
    assert_eq!(values(&first), ["cpu.idle=false"]);
}

#[tokio::test]
async fn what_cannot_be_resized_stays_idle() {
    let bench = Bench::idling(Generation::V1).await;
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        pod.view.kube_qos = KubeQos::BestEffort;
    }
    assert_eq!(
        bench.hub.prepare_update(&container(), &asking(512)).changes,
        []
    );
    assert!(matches!(tell(&bench, 700), Opening::Now(_)));
}

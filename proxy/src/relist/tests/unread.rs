//! Updates that passed without anybody here having read them. The container asked for a quota of 50,000, of
//! which 40,000 is decided.

use super::*;
use crate::{ledger::Original, reconcile};
use koord_model::{MemoryLimit, Value};

const STATUS: &str = "/runtime.v1.RuntimeService/ContainerStatus";
const CONTAINERS: &str = "/runtime.v1.RuntimeService/ListContainers";

/// One of which the runtime has been told what is decided.
async fn told() -> Scripted {
    let mut pod = undecided_pod();
    pod.labels.clear();
    let bench = Bench::new(FakeTree::new(Generation::V1, 2));
    bench.write("cpu.cfs_quota_us", "50000");
    let info = created_with(50_000, 50_000);
    let listed = Scripted::for_bench(bench, pod, listed_container(), &info);
    listed.bench.hub.set_node_policy(policy_of_faster_cpus());
    listed.list(Scope::All).await;
    listed.bench.hub.list_taken();
    let update = cri::UpdateContainerResourcesRequest {
        container_id: "container-1".to_owned(),
        linux: Some(cri::LinuxContainerResources {
            cpu_quota: 50_000,
            ..Default::default()
        }),
    };
    let answer = update_by(&listed.bench, &update.encode_to_vec()).await;
    assert!(matches!(answer, Answer::Patched(_)), "{answer:?}");
    reconcile::pod(&listed.bench.hub, &sandbox()).await;
    assert_eq!(listed.bench.shown("cpu.cfs_quota_us"), "40000");
    listed.bench.hub.queue().drain();
    listed
}

/// An update that the runtime does.
async fn update_by(bench: &Bench, message: &[u8]) -> Answer {
    let done = Ended::Answered {
        grpc_status: Some(0),
        message: None,
    };
    update_that(bench, message, done)
}

/// An update that ends like this.
fn update_that(bench: &Bench, message: &[u8], ended: Ended) -> Answer {
    let method = Method::UpdateContainerResources;
    let Opening::Now(Decision { answer, pending }) = bench.hub.open(method, message, None) else {
        panic!("nothing to wait for");
    };
    bench.hub.close(pending, ended);
    answer
}

/// The same by a message that nobody here can read.
async fn update_unread(bench: &Bench) {
    let answer = update_by(bench, b"\xff").await;
    assert!(matches!(answer, Answer::AsIs(_)));
    assert!(is_list_wanted(bench).await);
}

async fn is_list_wanted(bench: &Bench) -> bool {
    timeout(Duration::ZERO, bench.hub.relist_wanted())
        .await
        .is_ok()
}

/// The quota after such an update, by which the runtime has this one.
async fn quota_after(listed: &Scripted, now: i64) -> String {
    listed.bench.write("cpu.cfs_quota_us", &now.to_string());
    find_out(listed, created_with(50_000, now)).await;
    listed.bench.shown("cpu.cfs_quota_us")
}

/// Such an update, after which this is what the runtime says of the container, is found out by a list.
async fn find_out(listed: &Scripted, info: String) {
    let status = cri::ContainerStatusResponse {
        info: [("info".to_owned(), info)].into(),
    };
    let reply = Reply::message(status.encode_to_vec());
    drop(listed.script.clone().once(STATUS, reply));
    update_unread(&listed.bench).await;
    listed.list(Scope::News).await;
    let hub = &listed.bench.hub;
    assert_eq!(hub.queue().drain(), [sandbox()]);
    reconcile::pod(hub, &sandbox()).await;
}

#[tokio::test]
async fn what_an_update_asked_for_that_nobody_read_is_found_out_by_the_next_list() {
    let listed = told().await;
    // About something else: what the runtime has of this is ours.
    assert_eq!(quota_after(&listed, 40_000).await, "40000");
    assert_eq!(quota_after(&listed, 30_000).await, "24000");
    let quota = listed.bench.entry(Setting::CpuQuota).unwrap();
    let asked = CpuQuota::Micros(30_000).into();
    assert_eq!(quota.original, Original::Value(asked));
    // It was told that of which the runtime has this still.
    assert_eq!(quota_after(&listed, 40_000).await, "24000");
}

#[tokio::test]
async fn it_is_found_out_too_where_the_runtime_shows_its_spec_alone() {
    let listed = told().await;
    let spec = r#"{"runtimeSpec":{"linux":{"resources":{"cpu":{"shares":1024,"quota":30000}}}}}"#;
    find_out(&listed, spec.to_owned()).await;
    assert_eq!(listed.bench.shown("cpu.cfs_quota_us"), "24000");
}

#[tokio::test]
async fn what_it_asked_of_memory_and_swap_together_is_found_out_with_the_limit() {
    let listed = told().await;
    let swap = || {
        let ledger = listed.bench.hub.ledger().borrow();
        let (_, container) = ledger.container(&container()).unwrap();
        container.swap
    };
    for (memory, expected) in [
        (r#"{"swap":3000}"#, None),
        (
            r#"{"limit":1000,"swap":3000}"#,
            Some(MemoryLimit::Bytes(3_000)),
        ),
        // Of that nobody has asked anything.
        (
            r#"{"limit":1000,"swap":4000}"#,
            Some(MemoryLimit::Bytes(3_000)),
        ),
        (
            r#"{"limit":2000,"swap":4000}"#,
            Some(MemoryLimit::Bytes(4_000)),
        ),
        (r#"{"limit":1000}"#, None),
    ] {
        let info = r#"{"runtimeSpec":{"linux":{"resources":{"memory":MEMORY}}}}"#;
        find_out(&listed, info.replace("MEMORY", memory)).await;
        assert_eq!(swap(), expected, "{memory}");
    }
}

/// An update that asks for a quota of 100,000, for which the runtime is told 80,000, and of whose end nobody
/// hears. This is what the runtime says next.
async fn update_lost(listed: &Scripted, code: Option<u32>, now: i64) -> (String, Original) {
    let update = cri::UpdateContainerResourcesRequest {
        container_id: "container-1".to_owned(),
        linux: Some(cri::LinuxContainerResources {
            cpu_quota: 100_000,
            ..Default::default()
        }),
    };
    let ended = match code {
        None => Ended::Lost,
        grpc_status => Ended::Answered {
            grpc_status,
            message: None,
        },
    };
    update_that(&listed.bench, &update.encode_to_vec(), ended);
    show_next(listed, now).await
}

/// The next list shows this quota: the one that is in force then, and what is known to be asked for.
async fn show_next(listed: &Scripted, now: i64) -> (String, Original) {
    let status = cri::ContainerStatusResponse {
        info: [("info".to_owned(), created_with(50_000, now))].into(),
    };
    let reply = Reply::message(status.encode_to_vec());
    drop(listed.script.clone().once(STATUS, reply));
    listed.list(Scope::News).await;
    reconcile::pod(&listed.bench.hub, &sandbox()).await;
    let quota = listed.bench.entry(Setting::CpuQuota).unwrap();
    (listed.bench.shown("cpu.cfs_quota_us"), quota.original)
}

fn asked_for(micros: u64) -> Original {
    Original::Value(CpuQuota::Micros(micros).into())
}

#[tokio::test]
async fn an_update_whose_reply_is_lost_is_known_as_soon_as_the_runtime_has_done_it() {
    // CANCELLED, DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE, and none.
    for code in [Some(1), Some(4), Some(13), Some(14), None] {
        let listed = told().await;
        let before = ("40000".to_owned(), asked_for(50_000));
        assert_eq!(update_lost(&listed, code, 40_000).await, before, "{code:?}");
        let after = ("80000".to_owned(), asked_for(100_000));
        assert_eq!(show_next(&listed, 80_000).await, after, "{code:?}");
        // It is not scaled once more, whatever is asked next.
        assert_eq!(show_next(&listed, 80_000).await, after, "{code:?}");
    }
}

#[tokio::test]
async fn an_update_that_the_runtime_has_refused_is_not_waited_for() {
    let listed = told().await;
    let before = ("40000".to_owned(), asked_for(50_000));
    assert_eq!(update_lost(&listed, Some(2), 40_000).await, before);
    assert!(listed.bench.hub.changed_containers().is_empty());
}

#[tokio::test]
async fn a_lost_update_counts_no_more_once_a_later_one_is_answered() {
    let listed = told().await;
    update_lost(&listed, None, 40_000).await;
    let later = cri::UpdateContainerResourcesRequest {
        container_id: "container-1".to_owned(),
        linux: Some(cri::LinuxContainerResources {
            cpu_quota: 30_000,
            ..Default::default()
        }),
    };
    update_by(&listed.bench, &later.encode_to_vec()).await;
    let expected = ("24000".to_owned(), asked_for(30_000));
    assert_eq!(show_next(&listed, 24_000).await, expected);
}

#[tokio::test]
async fn what_the_runtime_was_told_before_another_policy_came_is_not_taken_for_what_was_asked() {
    let listed = told().await;
    listed.bench.hub.set_node_policy(Default::default());
    assert_eq!(quota_after(&listed, 40_000).await, "50000");
    let quota = listed.bench.entry(Setting::CpuQuota).unwrap();
    let asked = CpuQuota::Micros(50_000).into();
    assert_eq!(quota.original, Original::Value(asked));
}

#[tokio::test]
async fn what_a_call_has_told_since_the_list_was_asked_for_is_newer() {
    let listed = told().await;
    let status = cri::ContainerStatusResponse {
        info: [("info".to_owned(), created_with(50_000, 30_000))].into(),
    };
    let gate = Gate::new();
    let reply = Reply::message(status.encode_to_vec()).held(&gate);
    drop(listed.script.clone().once(STATUS, reply));
    update_unread(&listed.bench).await;
    let update = cri::UpdateContainerResourcesRequest {
        container_id: "container-1".to_owned(),
        linux: Some(cri::LinuxContainerResources {
            cpu_quota: 100_000,
            ..Default::default()
        }),
    };
    let asked = || {
        let calls = listed.script.calls();
        calls.iter().filter(|call| call.path == STATUS).count()
    };
    let before = asked();
    let another = async {
        while asked() == before {
            sleep(Duration::from_millis(1)).await;
        }
        update_by(&listed.bench, &update.encode_to_vec()).await;
        gate.open();
    };
    tokio::join!(listed.list(Scope::News), another);
    let quota = listed.bench.entry(Setting::CpuQuota).unwrap();
    assert_eq!(quota.desired, CpuQuota::Micros(80_000).into());
    // It is found out whether the other had asked for anything else.
    assert!(is_list_wanted(&listed.bench).await);
    assert_eq!(listed.bench.hub.changed_containers(), [container()].into());
}

#[tokio::test]
async fn a_lost_update_of_a_container_that_was_not_known_yet_is_asked_about_once_it_is() {
    let listed = told().await;
    listed
        .bench
        .hub
        .ledger()
        .borrow_mut()
        .remove_container(&container());
    lost(
        &listed,
        [cri::LinuxContainerResources {
            cpu_quota: 100_000,
            ..Default::default()
        }],
    );
    assert!(listed.bench.hub.changed_containers().is_empty());
    listed.list(Scope::News).await;
    assert_eq!(listed.bench.hub.changed_containers(), [container()].into());
}

#[tokio::test]
async fn containers_of_lost_updates_keep_no_others_from_being_asked_about() {
    let listed = told().await;
    let ids: Vec<String> = (1..=70)
        .map(|number| format!("container-{number}"))
        .collect();
    let all = ids.iter().map(|id| cri::Container {
        id: id.clone(),
        ..listed_container()
    });
    let all = list_of(all);
    let asked_by_a_list = async || {
        let before = listed.script.calls().len();
        drop(
            listed
                .script
                .clone()
                .once(CONTAINERS, Reply::message(all.clone())),
        );
        listed
            .list_beside(Scope::News, &mut Missing::default())
            .await;
        let calls = listed.script.calls();
        let asked = calls[before..].iter().filter(|call| call.path == STATUS);
        let asked = asked.map(|call| {
            let request = cri::ContainerStatusRequest::decode(&*call.messages[0].message).unwrap();
            request.container_id
        });
        asked.collect::<HashSet<_>>()
    };
    while !asked_by_a_list().await.is_empty() {}
    for id in &ids[..64] {
        lost_of(
            &listed,
            id,
            [cri::LinuxContainerResources {
                cpu_quota: 100_000,
                ..Default::default()
            }],
        );
    }
    update_unread(&listed.bench).await;
    let asked = asked_by_a_list().await;
    assert_eq!(asked.len(), 64);
    assert!(ids[64..].iter().all(|id| asked.contains(id)), "{asked:?}");
}

#[tokio::test]
async fn of_many_containers_each_list_asks_about_some_until_all_were_asked_about() {
    let listed = told().await;
    let containers = (1..=70).map(|number| cri::Container {
        id: format!("container-{number}"),
        ..listed_container()
    });
    let containers = list_of(containers);
    let asked_by_a_list = async || {
        let asked = || {
            let calls = listed.script.calls();
            calls.iter().filter(|call| call.path == STATUS).count()
        };
        let before = asked();
        let reply = Reply::message(containers.clone());
        drop(listed.script.clone().once(CONTAINERS, reply));
        let mut missing = Missing::default();
        let counted = listed.list_beside(Scope::News, &mut missing).await;
        assert_eq!(counted.containers, 70);
        asked() - before
    };
    // What they asked for at their creation.
    assert_eq!(asked_by_a_list().await, 64);
    assert_eq!(asked_by_a_list().await, 5);
    assert_eq!(asked_by_a_list().await, 0);
    update_unread(&listed.bench).await;
    assert_eq!(asked_by_a_list().await, 64);
    assert!(is_list_wanted(&listed.bench).await);
    assert_eq!(asked_by_a_list().await, 6);
    assert!(!is_list_wanted(&listed.bench).await);
    assert_eq!(asked_by_a_list().await, 0);
}

/// Updates that are all under way, and of whose ends nobody hears: a resize to a quota of 100,000, for which the
/// runtime is told 80,000, and 2,048 shares, and one to the CPU 0, with which it is told the 40,000 of before.
fn two_lost(listed: &Scripted) {
    let both = [
        cri::LinuxContainerResources {
            cpu_quota: 100_000,
            cpu_shares: 2_048,
            ..Default::default()
        },
        cri::LinuxContainerResources {
            cpuset_cpus: "0".to_owned(),
            ..Default::default()
        },
    ];
    lost(listed, both);
}

fn lost(listed: &Scripted, all: impl IntoIterator<Item = cri::LinuxContainerResources>) {
    lost_of(listed, "container-1", all);
}

fn lost_of(
    listed: &Scripted,
    id: &str,
    all: impl IntoIterator<Item = cri::LinuxContainerResources>,
) {
    let hub = &listed.bench.hub;
    let opened = all.into_iter().map(|resources| {
        let update = cri::UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(resources),
        };
        let method = Method::UpdateContainerResources;
        match hub.open(method, &update.encode_to_vec(), None) {
            Opening::Now(Decision { pending, .. }) => pending,
            Opening::Later(_) => panic!("nothing to wait for"),
        }
    });
    let opened: Vec<_> = opened.collect();
    for pending in opened {
        hub.close(pending, Ended::Lost);
    }
}

/// The next list, by which the runtime has this: the quota that is in force then, which was asked for, and which
/// CPUs were.
async fn found_out(listed: &Scripted, cpu: &str) -> (String, Original, Option<String>) {
    let info = r#"{"config":{"linux":{"resources":{"cpu_shares":1024,"cpu_quota":50000}}},
        "runtimeSpec":{"process":{"oomScoreAdj":1000},"linux":{"resources":{"cpu":CPU}}}}"#;
    let info = info.replace("CPU", cpu);
    let status = cri::ContainerStatusResponse {
        info: [("info".to_owned(), info)].into(),
    };
    let reply = Reply::message(status.encode_to_vec());
    drop(listed.script.clone().once(STATUS, reply));
    listed.list(Scope::News).await;
    let hub = &listed.bench.hub;
    reconcile::pod(hub, &sandbox()).await;
    let quota = listed.bench.entry(Setting::CpuQuota).unwrap();
    let ledger = hub.ledger().borrow();
    let (_, container) = ledger.container(&container()).unwrap();
    let cpus = container.view.requested.cpuset_cpus.as_ref();
    let cpus = cpus.map(ToString::to_string);
    (listed.bench.shown("cpu.cfs_quota_us"), quota.original, cpus)
}

#[tokio::test]
async fn of_two_lost_updates_of_a_container_both_are_known_in_whatever_order_they_were_done() {
    let zero = || Some("0".to_owned());
    for (cpu, told_last) in [
        // The one for the CPU, told before the other was known to be done, has said the quota of before.
        (r#"{"shares":2048,"quota":40000,"cpus":"0"}"#, 40_000),
        (r#"{"shares":2048,"quota":80000,"cpus":"0"}"#, 80_000),
    ] {
        let listed = told().await;
        two_lost(&listed);
        let expected = ("80000".to_owned(), asked_for(100_000), zero());
        assert_eq!(found_out(&listed, cpu).await, expected, "{cpu}");
        let told = listed.bench.entry(Setting::CpuQuota).unwrap().told;
        let last = Value::CpuQuota(CpuQuota::Micros(told_last));
        assert_eq!(told.as_deref(), Some(&last), "{cpu}");
    }
}

#[tokio::test]
async fn what_another_lost_update_asked_for_too_is_no_sign_of_one_that_was_not_done() {
    let shares = |cpu_quota| cri::LinuxContainerResources {
        cpu_quota,
        cpu_shares: 2_048,
        ..Default::default()
    };
    let listed = told().await;
    lost(&listed, [shares(100_000), shares(0)]);
    let cpu = r#"{"shares":2048,"quota":40000}"#;
    let before = ("40000".to_owned(), asked_for(50_000), None);
    assert_eq!(found_out(&listed, cpu).await, before);
    let cpu = r#"{"shares":2048,"quota":80000}"#;
    let after = ("80000".to_owned(), asked_for(100_000), None);
    assert_eq!(found_out(&listed, cpu).await, after);
}

#[tokio::test]
async fn a_lost_update_is_waited_for_while_others_of_the_container_come_about() {
    let listed = told().await;
    two_lost(&listed);
    let cpu = r#"{"shares":1024,"quota":40000,"cpus":"0"}"#;
    let zero = || Some("0".to_owned());
    let before = ("40000".to_owned(), asked_for(50_000), zero());
    assert_eq!(found_out(&listed, cpu).await, before);
    let cpu = r#"{"shares":2048,"quota":80000,"cpus":"0"}"#;
    let after = ("80000".to_owned(), asked_for(100_000), zero());
    assert_eq!(found_out(&listed, cpu).await, after);
}

#[tokio::test]
async fn what_another_has_asked_for_unread_beside_a_lost_update_is_found_out_after_it() {
    let listed = told().await;
    let shares = cri::LinuxContainerResources {
        cpu_shares: 2_048,
        ..Default::default()
    };
    lost(&listed, [shares]);
    update_unread(&listed.bench).await;
    let cpu = r#"{"shares":2048,"quota":30000}"#;
    found_out(&listed, cpu).await;
    let expected = ("24000".to_owned(), asked_for(30_000), None);
    assert_eq!(found_out(&listed, cpu).await, expected);
}

#[tokio::test]
async fn of_very_many_lost_updates_the_first_are_found_out_as_if_nobody_had_read_them() {
    let listed = told().await;
    let shares = (1..=9).map(|number| cri::LinuxContainerResources {
        cpu_shares: 2_000 + number,
        ..Default::default()
    });
    lost(&listed, shares);
    let shares = async |shown: &str| {
        let cpu = r#"{"shares":SHOWN,"quota":40000}"#.replace("SHOWN", shown);
        found_out(&listed, &cpu).await;
        let ledger = listed.bench.hub.ledger().borrow();
        let (_, container) = ledger.container(&container()).unwrap();
        container.view.requested.cpu_shares.map(|it| it.get())
    };
    assert_eq!(shares("2001").await, Some(1_024));
    assert_eq!(shares("2009").await, Some(2_009));
    assert_eq!(shares("2002").await, Some(2_002));
    // The others are waited for no longer.
    tokio::time::pause();
    tokio::time::advance(Duration::from_secs(151)).await;
    tokio::time::resume();
    assert_eq!(shares("2001").await, Some(2_001));
}

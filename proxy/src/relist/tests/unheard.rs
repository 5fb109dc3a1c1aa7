//! A start before the kubelet is heard, whose pods a process before us knew.

use super::*;
use crate::{
    hub::{PodsAnswer, Word, testing::BATCH},
    pods, reconcile,
};
use koord_kernel::{fake::FakeResctrl, resctrl::Groups as _};
use koord_model::PodUid;
use koord_proto::{
    annotation::ExtendedResourceSpec,
    keys::label,
    pods::{Pod, PodSpec},
};

/// The container of [`undecided`] with our shares, listed before anything is heard.
async fn unheard() -> Scripted {
    let listed = undecided("512");
    listed.bench.hub.await_pods();
    listed.list(Scope::All).await;
    listed.bench.hub.list_taken();
    listed
}

/// The bench's pod as the kubelet has it, with these batch resources and what the webhook says of them.
fn pod(batch: Option<&str>) -> Pod {
    let own = batch.map(|text| Arc::new(ExtendedResourceSpec::parse(text).unwrap()));
    let spec = PodSpec {
        batch: own,
        ..PodSpec::default()
    };
    let key = annotation::EXTENDED_RESOURCE_SPEC;
    let annotations = batch.map(|spec| (key.to_owned(), spec.to_owned()));
    Pod {
        uid: PodUid::new("uid-1").unwrap(),
        namespace: "default".to_owned(),
        name: "batch".to_owned(),
        labels: [(label::QOS_CLASS.to_owned(), "BE".to_owned())].into(),
        annotations: annotations.into_iter().collect(),
        spec: Arc::new(spec),
    }
}

fn answer(bench: &Bench, asked: Instant, pods: impl IntoIterator<Item = Pod>) {
    bench.hub.take_pods(&PodsAnswer {
        pods: pods.into_iter().map(Arc::new).collect(),
        asked,
        word: Word::OfItsTime,
    });
}

/// The container's shares after its pod was looked at, if that is wanted.
async fn shares(listed: &Scripted) -> String {
    for sandbox in listed.bench.hub.queue().drain() {
        reconcile::pod(&listed.bench.hub, &sandbox).await;
    }
    listed.bench.shown("cpu.shares")
}

#[tokio::test]
async fn what_only_the_kubelet_knows_to_be_decided_stays_until_it_says_otherwise() {
    for (batch, expected) in [(Some(BATCH), "512"), (None, "204")] {
        let listed = unheard().await;
        reconcile::pod(&listed.bench.hub, &sandbox()).await;
        assert_eq!(shares(&listed).await, "512", "{batch:?}");
        // It has just started, and does not know the pod yet.
        let now = Instant::now();
        answer(&listed.bench, now, []);
        assert_eq!(shares(&listed).await, "512", "{batch:?}");
        answer(&listed.bench, now + Duration::from_secs(10), [pod(batch)]);
        assert_eq!(shares(&listed).await, expected, "{batch:?}");
    }
}

#[tokio::test]
async fn of_a_pod_that_the_kubelet_never_knows_nothing_stays_for_longer_than_ten_minutes() {
    for is_silent in [false, true] {
        let listed = unheard().await;
        tokio::time::pause();
        for (seconds, expected) in [(0, "512"), (590, "512"), (10, "204")] {
            tokio::time::advance(Duration::from_secs(seconds)).await;
            match is_silent {
                true => listed.bench.hub.list_taken(),
                false => answer(&listed.bench, Instant::now(), []),
            }
            assert_eq!(shares(&listed).await, expected, "{is_silent}, {seconds}");
        }
        tokio::time::resume();
    }
}

#[tokio::test]
async fn what_no_hook_could_decide_is_given_back_before_the_kubelet_is_heard() {
    let listed = undecided("512");
    listed.bench.hub.await_pods();
    assert!(listed.bench.hub.switch_hook("BatchResource", false));
    assert!(listed.bench.hub.switch_hook("CPUNormalization", false));
    listed.list(Scope::All).await;
    reconcile::pod(&listed.bench.hub, &sandbox()).await;
    assert_eq!(listed.bench.shown("cpu.shares"), "204");
}

#[tokio::test]
async fn no_limit_of_memory_is_narrowed_by_old_news() {
    const LIMIT: &str = "memory.limit_in_bytes";
    const SPEC: &str = r#"{"containers":{"main":{
        "limits":{"kubernetes.io/batch-memory":"1Gi"}}}}"#;
    const WIDER: &str = r#"{"containers":{"main":{
        "limits":{"kubernetes.io/batch-memory":"4Gi"}}}}"#;
    let (one, four) = ("1073741824", "4294967296");
    // What there is, and what comes of it before the kubelet says that it is four and after that.
    for (there, before) in [(four, four), ("1000000", one)] {
        let tree = FakeTree::new(Generation::V1, 2);
        let listed = Scripted::of(tree, batch_pod(SPEC), listed_container(), "");
        let at = &listed.bench.container;
        let memory = Controller::Memory;
        let shown = || listed.bench.tree.read(memory, at, LIMIT);
        listed.bench.tree.write(memory, at, LIMIT, there).unwrap();
        listed.bench.hub.await_pods();
        listed.list(Scope::All).await;
        listed.bench.hub.list_taken();
        shares(&listed).await;
        assert_eq!(shown().unwrap().trim_end(), before);
        answer(&listed.bench, Instant::now(), [pod(Some(WIDER))]);
        shares(&listed).await;
        assert_eq!(shown().unwrap().trim_end(), four);
        answer(&listed.bench, Instant::now(), [pod(Some(SPEC))]);
        shares(&listed).await;
        assert_eq!(shown().unwrap().trim_end(), one);
    }
}

#[tokio::test]
async fn what_a_kubelet_has_said_before_the_first_list_is_known_in_that() {
    for (batch, expected) in [(Some(BATCH), "512"), (None, "204")] {
        let listed = undecided("512");
        listed.bench.hub.await_pods();
        answer(&listed.bench, Instant::now(), [pod(batch)]);
        assert!(listed.bench.hub.awaits_pods());
        listed.list(Scope::All).await;
        listed.bench.hub.list_taken();
        assert!(!listed.bench.hub.awaits_pods());
        reconcile::pod(&listed.bench.hub, &sandbox()).await;
        assert_eq!(listed.bench.shown("cpu.shares"), expected, "{batch:?}");
    }
}

#[tokio::test]
async fn a_tier_keeps_no_less_until_the_kubelet_is_heard_and_more_at_once() {
    const SPEC: &str = r#"{"containers":{"main":{
        "requests":{"kubernetes.io/batch-memory":"100Mi"}}}}"#;
    let tier = CgroupPath::parse("kubepods/besteffort").unwrap();
    for (before, unheard, heard) in [
        ("209715200", "209715200", "104857600"),
        ("0", "104857600", "104857600"),
    ] {
        let tree = FakeTree::new(Generation::V2, 2).with_memory_qos();
        let listed = Scripted::of(tree, batch_pod(SPEC), listed_container(), "");
        let hub = &listed.bench.hub;
        hub.set_node_policy(keeping_all());
        let memory = Controller::Memory;
        listed
            .bench
            .tree
            .write(memory, &tier, "memory.min", before)
            .unwrap();
        hub.await_pods();
        listed.list(Scope::All).await;
        hub.list_taken();
        let shown = async || {
            reconcile::node(hub).await;
            let text = listed.bench.tree.read(memory, &tier, "memory.min");
            text.unwrap().trim_end().to_owned()
        };
        assert_eq!(shown().await, unheard, "{before}");
        answer(&listed.bench, Instant::now(), [pod(Some(SPEC))]);
        assert_eq!(shown().await, heard, "{before}");
    }
}

#[tokio::test]
async fn a_group_of_caches_stays_until_the_kubelet_says_that_nobody_is_in_it() {
    let processor = FakeResctrl::new(7);
    let bench = Bench::sharing(FakeTree::new(Generation::V2, 2), &processor);
    let listed = Scripted::for_bench(bench, undecided_pod(), listed_container(), "");
    let hub = &listed.bench.hub;
    processor.own("koordlet-uid-1").unwrap();
    hub.await_pods();
    listed.list(Scope::All).await;
    hub.list_taken();
    let stays = async || {
        hub.queue().drain();
        reconcile::pod(hub, &sandbox()).await;
        processor.shares_of("koordlet-uid-1").is_some()
    };
    assert!(stays().await);
    answer(&listed.bench, Instant::now(), [pod(None)]);
    assert!(!stays().await);
}

#[tokio::test]
async fn who_has_come_since_the_start_waits_for_nobody() {
    const LIMIT: &str = "memory.limit_in_bytes";
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    bench.hub.await_pods();
    for (was_there, expected) in [(true, "9223372036854771712"), (false, "1073741824")] {
        {
            let mut ledger = bench.hub.ledger().borrow_mut();
            let pod = ledger.pod_mut(&sandbox()).unwrap();
            pod.is_listed = was_there;
        }
        reconcile::pod(&bench.hub, &sandbox()).await;
        let held = bench.tree.read(Controller::Memory, &bench.container, LIMIT);
        assert_eq!(held.unwrap().trim_end(), expected, "{was_there}");
    }
}

/// Whether the first list waits no more so long after it was to begin.
async fn is_let(hub: &Hub, after: Duration) -> bool {
    timeout(after, hub.first_word()).await.is_ok()
}

#[tokio::test(start_paused = true)]
async fn the_first_list_waits_for_the_kubelets_first_word_and_no_longer_than_a_quarter_of_a_second()
{
    const SHORT: Duration = Duration::from_millis(240);
    let without = Bench::new(FakeTree::new(Generation::V1, 2)).hub;
    assert!(is_let(&without, Duration::ZERO).await);
    let hub = || {
        let hub = Bench::new(FakeTree::new(Generation::V1, 2)).hub;
        hub.await_pods();
        hub
    };
    let silent = hub();
    assert!(!is_let(&silent, SHORT).await);
    assert!(is_let(&silent, Duration::from_millis(260)).await);
    let refused = hub();
    let state = pods::PodsState {
        failure: Some((
            Instant::now(),
            Arc::new(pods::SourceError::Pods(koord_proto::pods::PodsError::Empty)),
        )),
        ..Default::default()
    };
    let (sender, states) = tokio::sync::watch::channel(pods::PodsState::default());
    let follow = pods::follow(refused.clone(), states);
    let test = async {
        assert!(!is_let(&refused, SHORT).await);
        sender.send_replace(state);
        assert!(is_let(&refused, Duration::from_millis(1)).await);
    };
    tokio::select! {
        () = follow => unreachable!("the source is there"),
        () = test => {}
    }
    let heard = hub();
    heard.take_pods(&PodsAnswer {
        pods: [].into(),
        asked: Instant::now(),
        word: Word::OfItsTime,
    });
    assert!(is_let(&heard, Duration::ZERO).await);
}

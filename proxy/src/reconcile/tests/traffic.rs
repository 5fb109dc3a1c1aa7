//! The best-effort pod of the bench and the queues by which it sends.

use super::*;
use crate::{
    apply::traffic::{GroupsError, Member, Shape, Traffic, TrafficError},
    hub::NodeLock,
    ledger::Addresses,
};
use koord_kernel::netlink::traffic::Handle;
use koord_model::{CgroupPath, NetPriority, NetQueues, NetRate, NetShare, PodQueue, PodUid};
use std::{net::IpAddr, sync::Mutex};

/// What was to be there, each time.
#[derive(Clone, Default)]
struct Asked(Arc<Mutex<Vec<Option<Shape>>>>);

impl Asked {
    /// A network whose queues differ at the first time, or are refused each time.
    fn traffic(&self, is_refused: bool) -> Traffic {
        let asked = self.clone();
        Traffic::by(move |shape| {
            let mut asked = asked.0.lock().unwrap();
            let differs = asked.last() != Some(&shape.cloned());
            asked.push(shape.cloned());
            match is_refused {
                true => Err(TrafficError::NoRoute),
                false => Ok(differs),
            }
        })
    }

    fn take(&self) -> Vec<Option<Shape>> {
        std::mem::take(&mut self.0.lock().unwrap())
    }
}

fn bench(asked: &Asked, is_on: bool) -> Bench {
    with(asked.traffic(false), is_on)
}

fn with(traffic: Traffic, is_on: bool) -> Bench {
    let tree = FakeTree::new(Generation::V1, 2);
    let bench = Bench::with_traffic(tree, traffic, is_on).knowing_pod();
    bench.hub.queue().drain();
    bench
}

fn by_queues() -> Arc<NodePolicy> {
    network_policy(
        "policies: {netQOSPolicy: tc}, \
         lsClass: {networkQOS: {enable: true, egressRequest: 40}}, \
         beClass: {networkQOS: {enable: true, egressLimit: 20}}",
    )
}

/// What that policy comes to, with the bench's pod if it sends from these.
fn shape(addresses: &[&str]) -> Option<Shape> {
    known(addresses, None)
}

/// The same where it is known by its group too.
fn known(addresses: &[&str], group: Option<&CgroupPath>) -> Option<Shape> {
    let share = |min, max| NetShare {
        min: NetRate::of_bytes(min),
        max: NetRate::of_bytes(max),
    };
    let queues = NetQueues {
        total: NetRate::of_bytes(125_000_000),
        system: share(75_000_000, 125_000_000),
        latency_sensitive: share(50_000_000, 125_000_000),
        best_effort: share(0, 25_000_000),
    };
    let addresses: Vec<IpAddr> = addresses.iter().map(|it| it.parse().unwrap()).collect();
    let queue = PodQueue {
        priority: NetPriority::BestEffort,
        egress: NetRate::NONE,
    };
    let pod = Member {
        uid: "uid-1",
        queue,
        addresses: &addresses,
        group,
    };
    Some(Shape::of(&queues, [pod].into_iter()))
}

/// The same before it is known from where the pod sends, after others have sent from these.
fn in_part(known: &[&str]) -> Option<Shape> {
    let known = known.iter().map(|it| it.parse().unwrap());
    shape(&[]).map(|shape| shape.keeping_others(known.collect()))
}

fn sends_from(bench: &Bench, addresses: Addresses) {
    let mut ledger = bench.hub.ledger().borrow_mut();
    ledger.pod_mut(&sandbox()).unwrap().addresses = addresses;
}

fn own() -> Addresses {
    Addresses::Own(vec![
        "10.1.2.3".parse().unwrap(),
        "fd00::3".parse().unwrap(),
    ])
}

/// A bench with all queues that there are to be.
async fn queued(asked: &Asked) -> Bench {
    let bench = bench(asked, true);
    bench.hub.set_node_policy(by_queues());
    sends_from(&bench, own());
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(asked.take(), [shape(&["10.1.2.3", "fd00::3"])]);
    bench
}

/// What the ledger says of the pod's own directory, and of the root.
fn noted(bench: &Bench) -> [Applied; 2] {
    let mut ledger = bench.hub.ledger().borrow_mut();
    let root = ledger
        .node
        .iter_mut()
        .find_map(|group| group.target.entry_mut(Setting::NodeQueues));
    let root = root.unwrap().applied.clone();
    let own = &mut ledger.pod_mut(&sandbox()).unwrap().own;
    [
        own.entry_mut(Setting::PodQueue).unwrap().applied.clone(),
        root,
    ]
}

#[tokio::test]
async fn queues_are_those_of_the_policy_and_of_pods_until_they_are_gone() {
    let asked = Asked::default();
    let bench = queued(&asked).await;
    assert_eq!(noted(&bench), [Applied::Written, Applied::Written]);
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(asked.take().len(), 1);
    bench.hub.sandbox_stopped("sandbox-1");
    settle(&bench).await;
    assert_eq!(asked.take(), [shape(&[])]);
}

#[tokio::test]
async fn before_the_first_list_and_while_another_acts_nothing_is_done() {
    let asked = Asked::default();
    let bench = bench(&asked, true);
    bench.hub.set_node_policy(by_queues());
    settle(&bench).await;
    bench.hub.set_lock(NodeLock::Anothers);
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(asked.take(), []);
    bench.hub.set_lock(NodeLock::Ours);
    settle(&bench).await;
    assert_eq!(asked.take(), [in_part(&[])]);
}

#[tokio::test]
async fn what_is_decided_no_more_is_removed_once_also_after_a_restart_without_the_hook() {
    let asked = Asked::default();
    let bench = queued(&asked).await;
    let plugin = network_policy("policies: {netQOSPolicy: terway-qos}");
    bench.hub.set_node_policy(plugin);
    settle(&bench).await;
    assert_eq!(asked.take(), [None]);
    bench.hub.set_node_policy(by_queues());
    settle(&bench).await;
    assert_eq!(asked.take().len(), 1);
    assert!(bench.hub.switch_hook("TCNetworkQoS", false));
    settle(&bench).await;
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(asked.take(), [None]);

    let without = self::bench(&asked, false);
    for _ in 0..2 {
        without.hub.list_taken();
        settle(&without).await;
    }
    assert_eq!(asked.take(), [None]);
}

#[tokio::test]
async fn queues_that_cannot_be_removed_are_told_of_and_tried_again() {
    let asked = Asked::default();
    let bench = with(asked.traffic(true), false);
    for tried in 1..=2 {
        bench.hub.list_taken();
        settle(&bench).await;
        assert_eq!(asked.take(), [None], "{tried}");
        assert!(bench.hub.traffic().is_there());
        assert!(bench.hub.traffic().complained.get().is_some());
    }
}

#[tokio::test]
async fn without_a_policy_and_while_the_hook_rests_queues_stay() {
    let asked = Asked::default();
    let bench = bench(&asked, true);
    bench.hub.list_taken();
    settle(&bench).await;
    bench.hub.set_resting(["TCNetworkQoS"].into());
    bench.hub.set_node_policy(by_queues());
    settle(&bench).await;
    assert_eq!(asked.take(), []);
}

#[tokio::test]
async fn a_pod_without_addresses_of_its_own_has_no_queue_and_it_is_said_why() {
    let asked = Asked::default();
    let bench = bench(&asked, true);
    bench.hub.set_node_policy(by_queues());
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(noted(&bench), [Applied::Pending, Applied::Written]);
    sends_from(&bench, Addresses::OfNode);
    bench.hub.list_taken();
    settle(&bench).await;
    let why = "it sends from the node's own addresses, as others do";
    assert_eq!(
        noted(&bench),
        [Applied::Lacking(why.into()), Applied::Written]
    );
    assert_eq!(asked.take(), [in_part(&[]), shape(&[])]);
    let report = serde_json::to_string(&bench.hub.report(None).await).unwrap();
    assert!(report.contains(&format!("not in force: {why}")), "{report}");
}

/// Another pod of the bench, beside the one from which nothing is known, that sends from this. `has_queue` is
/// false for one that no hook decides about.
fn beside(bench: &Bench, address: &str, has_queue: bool) {
    let mut ledger = bench.hub.ledger().borrow_mut();
    let mut pod = ledger.pod(&sandbox()).unwrap().clone();
    pod.sandbox = SandboxId::new("sandbox-2").unwrap();
    pod.view.uid = PodUid::new("uid-2").unwrap();
    pod.containers.clear();
    pod.addresses = Addresses::Own(vec![address.parse().unwrap()]);
    pod.own.retain(|_| has_queue);
    ledger.insert_pod(pod);
}

#[tokio::test]
async fn what_may_be_of_a_pod_that_never_says_from_where_it_sends_is_kept_for_ten_minutes() {
    let asked = Asked::default();
    let bench = bench(&asked, true);
    bench.hub.set_node_policy(by_queues());
    tokio::time::pause();
    for (seconds, expected) in [
        (0, in_part(&[])),
        (590, in_part(&[])),
        (10, shape(&[])),
        (0, shape(&[])),
    ] {
        tokio::time::advance(Duration::from_secs(seconds)).await;
        tokio::time::resume();
        bench.hub.list_taken();
        settle(&bench).await;
        tokio::time::pause();
        assert_eq!(asked.take().last(), Some(&expected), "{seconds}");
    }
    // Another process has made some since.
    tokio::time::resume();
    bench.hub.set_lock(NodeLock::Anothers);
    bench.hub.set_lock(NodeLock::Ours);
    settle(&bench).await;
    assert_eq!(asked.take(), [in_part(&[])]);
}

#[tokio::test]
async fn beside_a_pod_of_which_it_is_unknown_nothing_is_kept_of_where_another_has_sent_from() {
    for has_queue in [true, false] {
        let asked = Asked::default();
        let bench = bench(&asked, true);
        bench.hub.set_node_policy(by_queues());
        beside(&bench, "10.0.0.5", has_queue);
        bench.hub.list_taken();
        settle(&bench).await;
        asked.take();
        bench.hub.sandbox_stopped("sandbox-2");
        bench.hub.list_taken();
        settle(&bench).await;
        assert_eq!(asked.take().last(), Some(&in_part(&["10.0.0.5"])));
    }
}

#[tokio::test]
async fn what_has_come_since_all_was_known_has_nothing_there_from_before() {
    let asked = Asked::default();
    let bench = queued(&asked).await;
    sends_from(&bench, Addresses::default());
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(asked.take(), [shape(&[])]);
}

#[tokio::test]
async fn a_pod_in_the_nodes_network_is_known_by_its_group_where_groups_have_class_ids() {
    let asked = Asked::default();
    let bench = with(asked.traffic(false).knowing_groups(), true);
    bench.hub.set_node_policy(by_queues());
    sends_from(&bench, Addresses::OfNode);
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(noted(&bench), [Applied::Written, Applied::Written]);
    sends_from(&bench, own());
    bench.hub.list_taken();
    settle(&bench).await;
    let group = Some(&bench.pod);
    let both = known(&["10.1.2.3", "fd00::3"], group);
    assert_eq!(asked.take(), [known(&[], group), both]);
}

#[tokio::test]
async fn what_fails_of_groups_counts_for_pods_that_only_they_tell_apart() {
    let traffic = Traffic::by(|_| {
        let (at, id) = (CgroupPath::root(), Handle::new(0x10, 1));
        Err(GroupsError::Another { at, id }.into())
    });
    let bench = with(traffic.knowing_groups(), true);
    bench.hub.set_node_policy(by_queues());
    sends_from(&bench, own());
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(noted(&bench), [Applied::Equal, Applied::Equal]);
    sends_from(&bench, Addresses::OfNode);
    bench.hub.list_taken();
    settle(&bench).await;
    let [of_pod, of_node] = noted(&bench);
    let why = format!("{of_pod:?}");
    assert!(
        why.contains("has the class id 10:1, which is not ours"),
        "{why}"
    );
    assert_eq!(of_node, Applied::Equal);
    assert!(bench.hub.traffic().complained.get().is_some());
}

#[tokio::test]
async fn what_fails_of_one_pods_groups_is_told_of_no_other_pod() {
    let traffic = Traffic::by(|_| {
        let at = CgroupPath::parse("kubepods/poduid-another").unwrap();
        let id = Handle::new(0x10, 1);
        Err(GroupsError::Another { at, id }.into())
    });
    let bench = with(traffic.knowing_groups(), true);
    bench.hub.set_node_policy(by_queues());
    sends_from(&bench, Addresses::OfNode);
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(noted(&bench), [Applied::Equal, Applied::Equal]);
    assert!(bench.hub.traffic().complained.get().is_some());
}

#[tokio::test]
async fn a_network_that_cannot_have_queues_is_said_with_the_reason() {
    let bench = with(Asked::default().traffic(true), true);
    bench.hub.set_node_policy(by_queues());
    sends_from(&bench, own());
    bench.hub.list_taken();
    settle(&bench).await;
    let why = Applied::Lacking("no interface has a default route".into());
    assert_eq!(noted(&bench), [why.clone(), why]);
    assert!(bench.hub.traffic().complained.get().is_some());
}

#[tokio::test]
async fn a_network_that_hangs_is_waited_for_no_longer_than_is_said() {
    let (never, hangs) = mpsc::channel::<()>();
    let traffic = Traffic::by(move |_| {
        hangs.recv().ok();
        Ok(false)
    });
    let bench = with(traffic, true);
    bench.hub.list_taken();
    bench.hub.switch_all_off();
    let once = once(&bench.hub, Duration::from_millis(50));
    let shared = tokio::time::timeout(Duration::from_secs(30), once).await;
    assert!(shared.expect("it is not waited for").queues.is_err());
    drop(never);
}

#[tokio::test]
async fn a_network_that_hangs_keeps_no_pod_from_its_values() {
    let (begun, has_begun) = mpsc::channel();
    let (_never, hangs) = mpsc::channel::<()>();
    let traffic = Traffic::by(move |_| {
        begun.send(()).ok();
        hangs.recv().ok();
        Ok(false)
    });
    let bench = with(traffic, false);
    bench.hub.list_taken();
    let written = async {
        until(|| has_begun.try_recv().is_ok()).await;
        bench.write("cpu.shares", "2");
        bench.hub.queue().push(sandbox());
        until(|| bench.shown("cpu.shares") == "512").await;
    };
    tokio::select! {
        () = run(bench.hub.clone()) => unreachable!("it never ends"),
        written = tokio::time::timeout(Duration::from_secs(30), written) => {
            written.expect("a pod waits for the network");
        }
    }
}

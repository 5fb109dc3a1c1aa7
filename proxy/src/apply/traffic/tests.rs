//! What queues there are, and what is done where there are others.

use super::{shape::FIRST_OF_PODS, *};
use koord_model::{
    CgroupPath,
    NetPriority::{self, BestEffort, LatencySensitive, System},
    NetQueues, NetRate, NetShare, PodQueue,
};
use rustix::io::Errno;
use std::net::IpAddr;

/// 1 Gbit: 50 MB/s are kept for LS pods, 10 MB/s for BE pods, which send at most 25.
fn queues() -> NetQueues {
    let share = |min, max| NetShare {
        min: NetRate::of_bytes(min),
        max: NetRate::of_bytes(max),
    };
    NetQueues {
        total: NetRate::of_bytes(125_000_000),
        system: share(65_000_000, 125_000_000),
        latency_sensitive: share(50_000_000, 125_000_000),
        best_effort: share(10_000_000, 25_000_000),
    }
}

fn sends(priority: NetPriority, egress: u64) -> PodQueue {
    PodQueue {
        priority,
        egress: NetRate::of_bytes(egress),
    }
}

/// The queues with these pods, each of which has one address.
fn shape(pods: &[(&str, PodQueue, &str)]) -> Shape {
    let addresses: Vec<[IpAddr; 1]> = pods
        .iter()
        .map(|(_, _, it)| [it.parse().unwrap()])
        .collect();
    let members = pods.iter().zip(&addresses);
    let members = members.map(|((uid, queue, _), addresses)| Member {
        uid,
        queue: *queue,
        addresses,
        group: None,
    });
    Shape::of(&queues(), members)
}

/// As `tc` would show it, with bursts as the kernel counts them.
fn text(class: &Class) -> String {
    let Class {
        handle,
        parent,
        rate,
        ceil,
        burst,
        ceil_burst,
        quantum,
        priority,
    } = class;
    format!(
        "{handle} of {parent}: {rate} to {ceil}, burst {burst} to {ceil_burst}, \
         quantum {quantum}, prio {priority}"
    )
}

const OF_NODE: [&str; 6] = [
    "1:1 of root: 125000000 to 125000000, burst 15825 to 15825, quantum 1600, prio 0",
    "1:2 of 1:1: 65000000 to 125000000, burst 16009 to 15825, quantum 125000, prio 1",
    "1:5 of 1:1: 50000000 to 125000000, burst 16125 to 15825, quantum 1600, prio 0",
    "1:3 of 1:5: 1000 to 125000000, burst 25015625 to 15825, quantum 125000, prio 2",
    "1:6 of 1:1: 10000000 to 25000000, burst 18125 to 16625, quantum 1600, prio 0",
    "1:4 of 1:6: 1000 to 25000000, burst 25015625 to 16625, quantum 25000, prio 3",
];

/// The steps that make a shape from nothing, each as it is told.
fn made(shape: &Shape) -> Vec<String> {
    let steps = steps(&Held::default(), shape);
    steps.iter().map(told).collect()
}

fn told(step: &Step) -> String {
    match step {
        Step::Put(class) => text(class),
        Step::Remove(class) => format!("no {class}"),
        Step::Add(source, class) => format!("{source} to {class}"),
        Step::Redirect(filter, class) => format!("{} to {class} now", filter.source),
        Step::Withdraw(filter) => format!("{} to {} no more", filter.source, filter.class),
        Step::KnowGroups => "groups are known".to_owned(),
    }
}

/// What a kernel holds that was brought to this.
fn held(shape: &Shape) -> Held {
    let mut held = Held::default();
    for step in steps(&held, shape) {
        match step {
            Step::Put(class) => held.classes.push(class),
            Step::Add(source, class) => {
                let handle = u32::try_from(held.filters.len()).unwrap();
                held.filters.push(Filter {
                    handle: 0x8000_0800 + handle,
                    priority: priority(source),
                    source,
                    class,
                });
            }
            Step::KnowGroups => held.knows_groups = true,
            other => panic!("{other:?}"),
        }
    }
    held
}

fn changes(from: &Shape, to: &Shape) -> Vec<String> {
    steps(&held(from), to).iter().map(told).collect()
}

#[test]
fn classes_have_what_is_kept_for_them_and_their_limits() {
    assert_eq!(made(&shape(&[])), OF_NODE);
}

#[test]
fn a_pod_sends_by_the_queue_of_its_class_and_one_of_the_system_needs_no_filter() {
    let shape = shape(&[
        ("uid-3", sends(BestEffort, 0), "fd00::3"),
        ("uid-2", sends(LatencySensitive, 0), "10.0.0.2"),
        ("uid-1", sends(System, 0), "10.0.0.1"),
    ]);
    let made = made(&shape);
    assert_eq!(made[..6], OF_NODE);
    assert_eq!(made[6..], ["10.0.0.2 to 1:3", "fd00::3 to 1:4"]);
}

#[test]
fn a_pod_with_a_limit_has_a_queue_of_its_own_within_its_class() {
    let shape = shape(&[
        ("uid-1", sends(LatencySensitive, 1_000_000), "10.0.0.1"),
        // More than its class may send.
        ("uid-3", sends(BestEffort, 100_000_000), "10.0.0.3"),
        ("uid-2", sends(System, 1_000_000), "10.0.0.2"),
        // Less than what a class without anything kept has.
        ("a", sends(LatencySensitive, 1), "10.0.0.4"),
    ]);
    let made = made(&shape);
    assert_eq!(
        made[6..],
        [
            "1:6cb2 of 1:5: 1 to 1, burst 4294967295 to 4294967295, quantum 1600, prio 2",
            "1:5951 of 1:5: 1000 to 1000000, burst 25015625 to 40625, quantum 1600, prio 2",
            "1:1895 of 1:1: 1000 to 1000000, burst 25015625 to 40625, quantum 1600, prio 1",
            "1:d7c6 of 1:6: 1000 to 25000000, burst 25015625 to 16625, quantum 25000, prio 3",
            "10.0.0.1 to 1:5951",
            "10.0.0.2 to 1:1895",
            "10.0.0.3 to 1:d7c6",
            "10.0.0.4 to 1:6cb2",
        ]
    );
}

#[test]
fn a_pod_without_an_address_has_no_queue() {
    let pod = Member {
        uid: "uid-1",
        queue: sends(LatencySensitive, 1_000_000),
        addresses: &[],
        group: None,
    };
    assert_eq!(Shape::of(&queues(), [pod].into_iter()), shape(&[]));
}

#[test]
fn a_pod_without_an_address_is_known_by_its_group() {
    let groups = ["a", "b", "c"].map(|name| CgroupPath::parse(name).unwrap());
    let sends = [
        sends(System, 0),
        sends(LatencySensitive, 1_000_000),
        sends(BestEffort, 0),
    ];
    let uids = ["uid-3", "uid-1", "uid-2"];
    let pods = uids.iter().zip(sends).zip(&groups);
    let pods = pods.map(|((uid, queue), group)| Member {
        uid,
        queue,
        addresses: &[],
        group: Some(group),
    });
    let shape = Shape::of(&queues(), pods);
    assert_eq!(
        made(&shape)[6..],
        [
            "1:5951 of 1:5: 1000 to 1000000, burst 25015625 to 40625, quantum 1600, prio 2",
            "groups are known",
        ]
    );
    let classes = groups.map(|group| shape.of_group(&group).map(Handle::minor));
    assert_eq!(classes, [Some(2), Some(0x5951), Some(4)]);
    assert_eq!(steps(&held(&shape), &shape), []);
}

#[test]
fn two_pods_that_come_to_one_number_have_two_whatever_the_order() {
    let one = ("pod-42", sends(LatencySensitive, 1_000_000), "10.0.0.1");
    let other = ("pod-60", sends(LatencySensitive, 2_000_000), "10.0.0.2");
    for pods in [[one, other], [other, one]] {
        let made = made(&shape(&pods));
        let filters = ["10.0.0.1 to 1:564d", "10.0.0.2 to 1:564e"];
        assert_eq!(made[8..], filters);
    }
}

#[test]
fn numbers_of_pods_are_none_of_the_nodes_and_each_class_of_pods_has_its_own() {
    for (priority, first, last, other) in [
        (System, FIRST_OF_PODS, 0x555e, LatencySensitive),
        (LatencySensitive, 0x555f, 0xaaad, BestEffort),
        (BestEffort, 0xaaae, 0xfffc, System),
    ] {
        let number = |priority, taken: &BTreeSet<u16>| shape::number("uid-1", priority, taken);
        let mut taken: BTreeSet<u16> = (first..=last).collect();
        assert_eq!(number(priority, &taken), None);
        assert!(number(other, &taken).is_some());
        // The last is followed by the first.
        taken.remove(&last);
        assert_eq!(number(priority, &taken), Some(last));
        taken.insert(last);
        taken.remove(&first);
        assert_eq!(number(priority, &taken), Some(first));
    }
}

#[test]
fn an_address_that_two_pods_have_is_always_that_of_the_same() {
    let one = ("a", sends(LatencySensitive, 0), "10.0.0.1");
    let other = ("b", sends(BestEffort, 0), "10.0.0.1");
    for pods in [[one, other], [other, one]] {
        assert_eq!(made(&shape(&pods))[6..], ["10.0.0.1 to 1:3"]);
    }
}

#[test]
fn where_all_is_as_it_should_be_nothing_is_done() {
    let pods = [
        ("uid-1", sends(LatencySensitive, 1_000_000), "10.0.0.1"),
        ("uid-2", sends(BestEffort, 0), "fd00::2"),
    ];
    assert_eq!(changes(&shape(&pods), &shape(&pods)), [""; 0]);
}

#[test]
fn a_filter_comes_after_its_class_and_goes_before_it() {
    let with_limit = shape(&[("uid-1", sends(LatencySensitive, 1_000_000), "10.0.0.1")]);
    let without = shape(&[("uid-1", sends(LatencySensitive, 0), "10.0.0.1")]);
    assert_eq!(
        changes(&without, &with_limit),
        [
            "1:5951 of 1:5: 1000 to 1000000, burst 25015625 to 40625, quantum 1600, prio 2",
            "10.0.0.1 to 1:5951 now",
        ]
    );
    assert_eq!(
        changes(&with_limit, &without),
        ["10.0.0.1 to 1:3 now", "no 1:5951"]
    );
    assert_eq!(
        changes(&with_limit, &shape(&[])),
        ["10.0.0.1 to 1:5951 no more", "no 1:5951"]
    );
    // Another class of pods: a class cannot be moved, so it is another one.
    let best_effort = shape(&[("uid-1", sends(BestEffort, 1_000_000), "10.0.0.1")]);
    assert_eq!(
        changes(&with_limit, &best_effort),
        [
            "1:aea0 of 1:6: 1000 to 1000000, burst 25015625 to 40625, quantum 1600, prio 3",
            "10.0.0.1 to 1:aea0 now",
            "no 1:5951",
        ]
    );
}

#[test]
fn while_something_of_a_pod_is_unknown_what_is_there_of_others_stays() {
    let pods = [
        ("uid-1", sends(LatencySensitive, 1_000_000), "10.0.0.1"),
        ("uid-3", sends(BestEffort, 0), "10.0.0.3"),
    ];
    let later = shape(&[("uid-3", sends(LatencySensitive, 0), "10.0.0.3")]);
    assert_eq!(
        changes(&shape(&pods), &later.keeping_others(BTreeSet::new())),
        ["10.0.0.3 to 1:3 now"]
    );
}

#[test]
fn of_what_is_there_of_others_nothing_stays_that_is_sent_from_a_known_address() {
    let pods = [
        ("uid-1", sends(LatencySensitive, 1_000_000), "10.0.0.1"),
        ("uid-3", sends(BestEffort, 0), "10.0.0.3"),
        ("uid-5", sends(BestEffort, 0), "10.0.0.5"),
    ];
    // One of the system has no filter.
    let later = shape(&[("uid-6", sends(System, 0), "10.0.0.5")]);
    let known = ["10.0.0.1", "10.0.0.5"].map(|it| it.parse().unwrap());
    assert_eq!(
        changes(&shape(&pods), &later.keeping_others(known.into())),
        ["10.0.0.1 to 1:5951 no more", "10.0.0.5 to 1:4 no more"]
    );
}

#[test]
fn another_limit_changes_the_class_alone() {
    let limited = |egress| shape(&[("uid-1", sends(LatencySensitive, egress), "10.0.0.1")]);
    assert_eq!(
        changes(&limited(5_000_000), &limited(1_000_000)),
        ["1:5951 of 1:5: 1000 to 1000000, burst 25015625 to 40625, quantum 1600, prio 2"]
    );
}

#[test]
fn a_filter_that_is_there_twice_goes_once_and_one_of_another_priority_stays() {
    let shape = shape(&[("uid-1", sends(LatencySensitive, 0), "10.0.0.1")]);
    let mut held = held(&shape);
    let mut other = held.filters[0];
    other.priority = 9;
    held.filters.extend([held.filters[0], other]);
    let done: Vec<_> = steps(&held, &shape).iter().map(told).collect();
    assert_eq!(done, ["10.0.0.1 to 1:3 no more"]);
}

#[test]
fn a_class_of_another_queue_of_the_interface_stays() {
    let shape = shape(&[]);
    let mut held = held(&shape);
    let mut other = held.classes[3];
    (other.handle, other.parent) = (Handle::new(0x20, 1), Handle::new(0x20, 0));
    held.classes.push(other);
    let done: Vec<_> = steps(&held, &shape).iter().map(told).collect();
    assert_eq!(done, [""; 0]);
}

#[test]
fn a_class_below_another_is_removed_before_it_is_made_where_it_belongs() {
    let shape = shape(&[]);
    let mut held = held(&shape);
    held.classes[3].parent = Handle::new(1, 1);
    let done: Vec<_> = steps(&held, &shape).iter().map(told).collect();
    assert_eq!(done, ["no 1:3", OF_NODE[3]]);
}

#[test]
fn who_sends_to_a_class_that_is_to_be_removed_does_so_again_once_it_is_there() {
    let shape = shape(&[("uid-1", sends(LatencySensitive, 0), "10.0.0.1")]);
    let mut held = held(&shape);
    held.classes[3].parent = Handle::new(1, 1);
    let done: Vec<_> = steps(&held, &shape).iter().map(told).collect();
    let again = [
        "10.0.0.1 to 1:3 no more",
        "no 1:3",
        OF_NODE[3],
        "10.0.0.1 to 1:3",
    ];
    assert_eq!(done, again);
}

#[test]
fn what_fails_is_told_whatever_is_done_after_it() {
    let mut all = Ok(false);
    note(&mut all, Ok(true));
    note(&mut all, Ok(false));
    assert!(matches!(all, Ok(true)));
    note(&mut all, Err(TrafficError::NoRoute));
    note(&mut all, Ok(true));
    assert!(matches!(all, Err(TrafficError::NoRoute)));
}

#[test]
fn what_fails_of_groups_alone_hides_nothing_else() {
    let of_groups = || -> Result<bool, TrafficError> {
        let (at, id) = (CgroupPath::root(), Handle::new(0x10, 1));
        Err(GroupsError::Another { at, id }.into())
    };
    let mut all = of_groups();
    note(&mut all, Ok(true));
    assert!(matches!(all, Err(TrafficError::Groups(_))));
    note(&mut all, Err(TrafficError::NoRoute));
    note(&mut all, of_groups());
    assert!(matches!(all, Err(TrafficError::NoRoute)));
    // What is of all groups is not hidden by what is of one.
    let filter = NetlinkError::Socket(std::io::ErrorKind::Unsupported.into());
    let mut all: Result<bool, TrafficError> = Err(GroupsError::Filter(filter).into());
    note(&mut all, of_groups());
    let is_first = matches!(all, Err(TrafficError::Groups(GroupsError::Filter(_))));
    assert!(is_first);
}

#[tokio::test]
async fn who_has_made_no_queues_removes_none_after_a_restart_either() {
    let dir = tempfile::tempdir().unwrap();
    let traffic = || Traffic::noted(dir.path(), |_| Ok(true));
    assert!(!traffic().is_there());
    let shape = || Shape::of(&queues(), [].into_iter());
    traffic().bring(Some(shape())).await.unwrap().unwrap();
    assert!(traffic().is_there());
    // What cannot be removed now may be there still.
    let failing = Traffic::noted(dir.path(), |_| Err(TrafficError::NoRoute));
    assert!(failing.bring(None).await.unwrap().is_err());
    assert!(traffic().is_there());
    traffic().bring(None).await.unwrap().unwrap();
    assert!(!traffic().is_there());
}

#[tokio::test]
async fn who_does_not_see_the_network_keeps_the_note_of_what_another_process_has_made_there() {
    let unseen: [fn() -> TrafficError; 2] = [
        || NetlinkError::Socket(Errno::AFNOSUPPORT.into()).into(),
        || TrafficError::NoInterface,
    ];
    for error in unseen {
        let dir = tempfile::tempdir().unwrap();
        let traffic = || Traffic::noted(dir.path(), move |_| Err(error()));
        // That of a hook which was never on, for whoever looks for them all the same.
        assert!(!traffic().bring(None).await.unwrap().unwrap());

        let sees = Traffic::noted(dir.path(), |_| Ok(true));
        let shape = Shape::of(&queues(), [].into_iter());
        sees.bring(Some(shape)).await.unwrap().unwrap();
        for _ in 0..2 {
            let traffic = traffic();
            assert!(traffic.bring(None).await.unwrap().is_err());
            assert!(traffic.is_there());
        }
        let sees = Traffic::noted(dir.path(), |_| Ok(true));
        assert!(sees.is_there());
        assert!(sees.bring(None).await.unwrap().unwrap());
        assert!(!sees.is_there());
    }
}

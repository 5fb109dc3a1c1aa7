//! The queues of this machine's own kernel, in a network namespace of the test's own: what is made is
//! listed again.
//!
//! Needs root, to have one, and `unshare`. Whatever is done there goes with it.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]
#![allow(clippy::disallowed_methods, reason = "a test's own file")]

mod support;

use koord_kernel::netlink::{
    Socket,
    message::{ACK, Attributes, CREATE, EXCLUSIVE, Request},
    traffic::{Class, Filter, Handle, Htb, Qdisc},
};
use koord_model::{NetPriority, NetQueues, NetRate, NetShare, PodQueue};
use koord_proto::cri;
use koord_runtime_proxy::apply::traffic::{Member, Shape, TrafficError, bring};
use koord_testkit::{poll::wait_until, scripted::Reply};
use prost::Message;
use std::{collections::BTreeSet, env, fs, net::IpAddr, path::Path, process::Command};
use support::{
    method,
    node::{Node, script},
};

/// Set where the namespace is the test's own.
const INSIDE: &str = "KOORD_OWN_NETWORK";

/// The interface by which everything leaves, and the other end of it.
const LINK: u32 = 100;
const NAME: &str = "koord0";
const PEER: &str = "koord1";

/// RTM_NEWLINK, RTM_NEWROUTE and RTM_DELROUTE.
const NEW_LINK: u16 = 16;
const NEW_ROUTE: u16 = 24;
const DELETE_ROUTE: u16 = 25;

const QDISC: Handle = Handle::new(1, 0);

/// Runs the test of this name in a network namespace of its own.
fn in_own_network(test: &str, body: impl FnOnce()) {
    if env::var_os(INSIDE).is_some() {
        return body();
    }
    let mut command = Command::new("unshare");
    command
        .args(["--net", "--"])
        .arg(env::current_exe().unwrap());
    command.args([test, "--exact", "--nocapture"]);
    let done = command.env(INSIDE, "1").output().unwrap();
    let said = String::from_utf8_lossy(&done.stdout) + String::from_utf8_lossy(&done.stderr);
    assert!(done.status.success(), "{said}");
    assert!(said.contains("1 passed"), "{said}");
}

/// `struct ifinfomsg`: the interface, and that it is up.
fn interface(link: u32, up: u32) -> Vec<u8> {
    [0, link, up, up].map(u32::to_ne_bytes).concat()
}

fn ask(kind: u16, flags: u16, fixed: &[u8], attributes: &Attributes) {
    let request = Request::new(kind, flags | ACK, fixed, attributes);
    Socket::open()
        .unwrap()
        .ask("prepare the test", &request)
        .unwrap();
}

/// An interface that is up, with the default route.
fn make_network() {
    let peer = [interface(0, 0), attributes_of(PEER)].concat();
    let peer = Attributes::default().with(1, &peer);
    let info = Attributes::default()
        .with_text(1, "veth")
        .with_nested(2, &peer);
    let link = Attributes::default()
        .with_text(3, NAME)
        .with_nested(18, &info);
    ask(NEW_LINK, CREATE | EXCLUSIVE, &interface(LINK, 0), &link);
    ask(NEW_LINK, 0, &interface(LINK, 1), &Attributes::default());
    route(NEW_ROUTE, CREATE | EXCLUSIVE);
}

/// An interface's name as an attribute, with what pads it.
fn attributes_of(name: &str) -> Vec<u8> {
    let name = Attributes::default().with_text(3, name);
    let request = Request::new(0, 0, &[], &name).numbered(0);
    request[16..].to_vec()
}

/// A default route over the interface: of IPv4, in the table `main`, made by an administrator.
fn route(kind: u16, flags: u16) {
    let fixed = [2, 0, 0, 0, 254, 4, 253, 1, 0, 0, 0, 0];
    let over = Attributes::default().with_u32(4, LINK);
    ask(kind, flags, &fixed, &over);
}

fn queues() -> NetQueues {
    let share = |min, max| NetShare {
        min: NetRate::of_bytes(min),
        max: NetRate::of_bytes(max),
    };
    NetQueues {
        // More than 32 bits of bytes.
        total: NetRate::of_bytes(12_500_000_000),
        system: share(0, 12_500_000_000),
        latency_sensitive: share(50_000_000, 12_500_000_000),
        best_effort: share(0, 25_000_000),
    }
}

fn shape(pods: &[(&str, NetPriority, u64, &str)]) -> Shape {
    let addresses: Vec<[IpAddr; 1]> = pods.iter().map(|pod| [pod.3.parse().unwrap()]).collect();
    let members = pods.iter().zip(&addresses).map(|(pod, addresses)| Member {
        uid: pod.0,
        queue: PodQueue {
            priority: pod.1,
            egress: NetRate::of_bytes(pod.2),
        },
        addresses,
        group: None,
    });
    Shape::of(&queues(), members)
}

/// What the kernel has: the interface's own qdisc, and below it classes with their rates, and filters.
fn held() -> (String, BTreeSet<String>) {
    let mut socket = Socket::open().unwrap();
    let qdiscs = socket.list("look", &Qdisc::dump(), Qdisc::read).unwrap();
    let is_own = |it: &&Qdisc| it.link == LINK && it.parent == Handle::ROOT;
    let own = qdiscs.iter().find(is_own).unwrap();
    let classes = socket
        .list("look", &Class::dump(LINK), Class::read)
        .unwrap();
    let filters = socket.list("look", &Filter::dump(LINK, QDISC), Filter::read);
    let classes = classes.iter().map(|it| {
        let Class {
            handle,
            parent,
            rate,
            ceil,
            priority,
            ..
        } = it;
        format!("{handle} of {parent}: {rate} to {ceil}, prio {priority}")
    });
    let mut found: BTreeSet<String> = classes.collect();
    if own.handle == QDISC {
        let filters = filters.unwrap();
        found.extend(
            filters
                .iter()
                .map(|it| format!("{} to {}", it.source, it.class)),
        );
    }
    (format!("{} {}", own.kind, own.handle), found)
}

fn texts(expected: &[&[&str]]) -> BTreeSet<String> {
    let all = expected.concat();
    all.iter().map(|text| (*text).to_owned()).collect()
}

const OF_NODE: &[&str] = &[
    "1:1 of root: 12500000000 to 12500000000, prio 0",
    "1:2 of 1:1: 1000 to 12500000000, prio 1",
    "1:3 of 1:5: 1000 to 12500000000, prio 2",
    "1:4 of 1:6: 1000 to 25000000, prio 3",
    "1:5 of 1:1: 50000000 to 12500000000, prio 0",
    "1:6 of 1:1: 1000 to 25000000, prio 0",
];

#[test]
fn queues_are_made_changed_and_removed_and_nothing_is_done_to_what_is_so_already() {
    let name = "queues_are_made_changed_and_removed_and_nothing_is_done_to_what_is_so_already";
    in_own_network(name, || {
        make_network();
        let before = held();
        let limited = (
            "uid-1",
            NetPriority::LatencySensitive,
            1_000_000,
            "10.0.0.1",
        );
        let others = [
            ("uid-2", NetPriority::LatencySensitive, 0, "fd00::2"),
            ("uid-3", NetPriority::BestEffort, 0, "10.0.0.3"),
        ];
        let first = shape(&[limited, others[0], others[1]]);
        assert!(bring(Some(&first)).unwrap());
        let of_pods = [
            "1:5951 of 1:5: 1000 to 1000000, prio 2",
            "10.0.0.1 to 1:5951",
            "10.0.0.3 to 1:4",
            "fd00::2 to 1:3",
        ];
        assert_eq!(held(), ("htb 1:".to_owned(), texts(&[OF_NODE, &of_pods])));
        // Nothing is remembered between the two, as nothing is over a restart.
        assert!(!bring(Some(&first)).unwrap());

        // Another limit, and another class of pods.
        let slower = ("uid-1", NetPriority::LatencySensitive, 500_000, "10.0.0.1");
        let moved = ("uid-3", NetPriority::LatencySensitive, 0, "10.0.0.3");
        let second = shape(&[slower, moved]);
        assert!(bring(Some(&second)).unwrap());
        let of_pods = [
            "1:5951 of 1:5: 1000 to 500000, prio 2",
            "10.0.0.1 to 1:5951",
            "10.0.0.3 to 1:3",
        ];
        assert_eq!(held().1, texts(&[OF_NODE, &of_pods]));
        assert!(!bring(Some(&second)).unwrap());

        // The limit goes, and the class of its own with it.
        let without = shape(&[moved]);
        assert!(bring(Some(&without)).unwrap());
        assert_eq!(held().1, texts(&[OF_NODE, &["10.0.0.3 to 1:3"]]));

        assert!(bring(None).unwrap());
        assert_eq!(held(), before);
        assert!(!bring(None).unwrap());
    });
}

#[test]
fn whoever_has_a_network_of_their_own_sees_nothing_of_the_nodes() {
    let name = "whoever_has_a_network_of_their_own_sees_nothing_of_the_nodes";
    in_own_network(name, || {
        let refused = bring(None).unwrap_err();
        assert!(matches!(refused, TrafficError::NoInterface), "{refused}");
        // As a service manager leaves it.
        ask(NEW_LINK, 0, &interface(1, 1), &Attributes::default());
        let refused = bring(None).unwrap_err();
        assert!(matches!(refused, TrafficError::NoInterface), "{refused}");
        make_network();
        assert!(!bring(None).unwrap());
    });
}

#[test]
fn what_somebody_changed_is_as_it_should_be_again() {
    in_own_network("what_somebody_changed_is_as_it_should_be_again", || {
        make_network();
        let shape = shape(&[("uid-3", NetPriority::BestEffort, 0, "10.0.0.3")]);
        assert!(bring(Some(&shape)).unwrap());
        let before = held();
        let mut socket = Socket::open().unwrap();
        let filters = socket.list("look", &Filter::dump(LINK, QDISC), Filter::read);
        let filter = filters.unwrap()[0];
        let elsewhere = filter.redirect(LINK, QDISC, Handle::new(1, 2));
        socket.ask("change a filter", &elsewhere).unwrap();
        let twice = (9, "10.0.0.9".parse().unwrap(), Handle::new(1, 2));
        socket
            .ask("make a filter", &Filter::add(LINK, QDISC, twice))
            .unwrap();
        let classes = socket
            .list("look", &Class::dump(LINK), Class::read)
            .unwrap();
        let last = classes
            .iter()
            .find(|it| it.handle == Handle::new(1, 4))
            .unwrap();
        let faster = Class {
            ceil: 99_000_000,
            ..*last
        };
        socket.ask("change a queue", &faster.put(LINK)).unwrap();
        assert!(bring(Some(&shape)).unwrap());
        // What is of another priority is somebody else's.
        let mut expected = before.1;
        expected.insert("10.0.0.9 to 1:2".to_owned());
        assert_eq!(held().1, expected);
    });
}

#[test]
fn queues_of_others_are_left_and_named_and_ours_go_with_the_route() {
    let name = "queues_of_others_are_left_and_named_and_ours_go_with_the_route";
    in_own_network(name, || {
        make_network();
        let mut socket = Socket::open().unwrap();
        let handle = Handle::new(0x8001, 0);
        // As `tc qdisc add dev koord0 root handle 8001: htb` makes it.
        let theirs = Htb {
            default: 0,
            rate_to_quantum: 10,
        };
        socket
            .ask("make queues", &Qdisc::add_htb(LINK, handle, theirs))
            .unwrap();
        let refused = bring(Some(&shape(&[]))).unwrap_err();
        assert!(matches!(refused, TrafficError::Foreign { .. }), "{refused}");
        assert_eq!(
            refused.to_string(),
            "interface koord0 has queues that are not ours: htb 8001:"
        );
        assert!(!bring(None).unwrap());
        assert_eq!(held().0, "htb 8001:");
        socket
            .ask("remove queues", &Qdisc::delete(LINK, handle))
            .unwrap();
        // With our handle, but without our mark.
        socket
            .ask("make queues", &Qdisc::add_htb(LINK, QDISC, theirs))
            .unwrap();
        assert!(bring(Some(&shape(&[]))).is_err());
        assert!(!bring(None).unwrap());
        assert_eq!(held().0, "htb 1:");
        socket
            .ask("remove queues", &Qdisc::delete(LINK, QDISC))
            .unwrap();

        let before = held();
        assert!(bring(Some(&shape(&[]))).unwrap());
        route(DELETE_ROUTE, 0);
        let without = bring(Some(&shape(&[]))).unwrap_err();
        assert!(matches!(without, TrafficError::NoRoute), "{without}");
        assert_eq!(held(), before);
    });
}

/// A policy that shares out 1 Gbit, by queues or not.
fn put_policy(path: &Path, by: &str) {
    let text = format!(
        "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\nmetadata: {{name: node-1}}\n\
         spec: {{systemStrategy: {{totalNetworkBandwidth: 1G}}, resourceQOSStrategy: \
         {{policies: {{netQOSPolicy: {by}}}, \
         lsClass: {{networkQOS: {{enable: true, egressRequest: 40}}}}, \
         beClass: {{networkQOS: {{enable: true, egressLimit: 20}}}}}}}}\n"
    );
    let beside = path.with_extension("new");
    fs::write(&beside, text).unwrap();
    fs::rename(beside, path).unwrap();
}

/// A pod of class `LS` with a limit, as the runtime lists it.
fn listed() -> Reply {
    let pair = |key: &str, value: &str| (key.to_owned(), value.to_owned());
    let limits = r#"{"egressLimit":"8M"}"#;
    let pod = cri::PodSandbox {
        id: "sandbox-1".to_owned(),
        metadata: Some(cri::PodSandboxMetadata {
            name: "web".to_owned(),
            uid: "uid-1".to_owned(),
            namespace: "default".to_owned(),
            ..Default::default()
        }),
        labels: [pair("koordinator.sh/qosClass", "LS")].into(),
        annotations: [pair("koordinator.sh/networkQOS", limits)].into(),
        ..Default::default()
    };
    let items = vec![pod.encode_to_vec().into()];
    Reply::message(cri::ListPodSandboxResponse { items }.encode_to_vec())
}

/// From where it sends, and where it is.
fn said() -> Reply {
    let network = cri::PodSandboxNetworkStatus {
        ip: "10.0.0.1".to_owned(),
        ..Default::default()
    };
    let info = r#"{"config":{"linux":{"cgroup_parent":"/no-such-root/poduid-1"}}}"#;
    let status = cri::PodSandboxStatusResponse {
        status: Some(cri::PodSandboxStatus {
            network: Some(network),
            ..Default::default()
        }),
        info: [("info".to_owned(), info.to_owned())].into(),
    };
    Reply::message(status.encode_to_vec())
}

const BY_POLICY: &[&str] = &[
    "1:1 of root: 125000000 to 125000000, prio 0",
    "1:2 of 1:1: 75000000 to 125000000, prio 1",
    "1:3 of 1:5: 1000 to 125000000, prio 2",
    "1:4 of 1:6: 1000 to 25000000, prio 3",
    "1:5 of 1:1: 50000000 to 125000000, prio 0",
    "1:6 of 1:1: 1000 to 25000000, prio 0",
    "1:5951 of 1:5: 1000 to 1000000, prio 2",
    "10.0.0.1 to 1:5951",
];

#[test]
fn a_policy_has_queues_made_that_outlive_a_kill_and_go_with_the_policy() {
    let name = "a_policy_has_queues_made_that_outlive_a_kill_and_go_with_the_policy";
    in_own_network(name, || {
        make_network();
        let before = held();
        let directory = tempfile::tempdir().unwrap();
        let policy = directory.path().join("policy.yaml");
        put_policy(&policy, "tc");
        let status = "/runtime.v1.RuntimeService/PodSandboxStatus";
        let runtime = script().always(method::LIST, listed());
        let argument = format!("--node-policy={}", policy.display());
        let mut node = Node::with(
            runtime.always(status, said()),
            &["--feature-gates=TCNetworkQoS=true", &argument],
        );
        let queued = ("htb 1:".to_owned(), texts(&[BY_POLICY]));
        wait_until("queues of the policy and of the pod", || held() == queued);

        node.signal("-KILL");
        node.ended();
        assert_eq!(held(), queued);
        node.restart();
        node.wait_until_ready();
        let count = |result: &str| {
            let labels = format!("setting=\"network.queues\",result=\"{result}\"");
            node.metric(&format!("kernel_settings_total{{{labels}}}"))
        };
        wait_until("they are taken over", || count("equal") > 0);
        assert_eq!((count("written"), held()), (0, queued));

        put_policy(&policy, "terway-qos");
        node.signal("-HUP");
        wait_until("they are gone", || held() == before);
    });
}

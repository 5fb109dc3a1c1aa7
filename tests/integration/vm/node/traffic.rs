//! Queues of the network by the kernel's own lists, and what they count: on an interface by which
//! everything leaves the node, for pods with a network of their own behind it.

mod groups;

use crate::{check, node, pod::threads};
use anyhow::{Context, Result, anyhow, ensure};
use koord_integration::{Front, Node, ProxyOptions, RunningPod, classes::PodSpecOf};
use koord_kernel::netlink::{
    Socket,
    message::{ACK, Attributes, CREATE, EXCLUSIVE, Request, attribute, u32_at},
    traffic::{Class, Filter, Handle, Qdisc},
};
use koord_testkit::{
    PodQos,
    cri::{ContainerSpec, CriClient, PodSpec},
    poll::{comes_true, wait_until},
};
use rustix::thread::{LinkNameSpaceType, move_into_link_name_space};
use std::{cell::OnceCell, collections::BTreeSet, fs::File, net::UdpSocket, os::fd::AsFd, thread};

/// The interface.
const LINK: u32 = 100;
const NAME: &str = "koord0";

/// `RTM_NEWLINK` and `RTM_NEWROUTE`.
const NEW_LINK: u16 = 16;
const NEW_ROUTE: u16 = 24;

/// `TCA_STATS`: `struct tc_stats`, with bytes in 64 bits and then packets. Before it is `struct tcmsg`.
const STATISTICS: u16 = 3;
const PACKETS: usize = 8;
const FIXED: usize = 20;

const QDISC: Handle = Handle::new(1, 0);

/// An address of no pod, in the network of all of them.
const BEYOND: &str = "10.213.255.1:9";

/// That of `batch`, the second to be given one: the first is the gateway's.
const OF_BATCH: &str = "10.213.0.3";

/// A whole of 1 Gbit, of which LS pods are sure of a part and BE pods have no more than another, in
/// percent.
fn policy(by: &str, kept: u32, most: u32) -> String {
    format!(
        "apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {{name: node-1}}
spec:
  systemStrategy: {{totalNetworkBandwidth: 1G}}
  resourceQOSStrategy:
    policies: {{netQOSPolicy: {by}}}
    lsClass: {{networkQOS: {{enable: true, egressRequest: {kept}}}}}
    beClass: {{networkQOS: {{enable: true, egressLimit: {most}}}}}
"
    )
}

const UNTOUCHED: &[&str] = &["noqueue 0:"];

/// Bytes in a second. A burst is how long 1,600 bytes and what the rate gives in a millisecond take, in
/// units of 64 ns; a quantum is what the limit gives in a millisecond, 1,600 bytes or more.
const FIRST: &[&str] = &[
    "htb 1:, the rest to 2",
    "1:1 of root: 125000000 to 125000000, bursts 15825 and 15825, quantum 1600, prio 0",
    "1:2 of 1:1: 75000000 to 125000000, bursts 15958 and 15825, quantum 125000, prio 1",
    "1:3 of 1:5: 1000 to 125000000, bursts 25015625 and 15825, quantum 125000, prio 2",
    "1:4 of 1:6: 1000 to 25000000, bursts 25015625 and 16625, quantum 25000, prio 3",
    "1:5 of 1:1: 50000000 to 125000000, bursts 16125 and 15825, quantum 1600, prio 0",
    "1:6 of 1:1: 1000 to 25000000, bursts 25015625 and 16625, quantum 1600, prio 0",
];
const OTHER: &[&str] = &[
    "htb 1:, the rest to 2",
    "1:1 of root: 125000000 to 125000000, bursts 15825 and 15825, quantum 1600, prio 0",
    "1:2 of 1:1: 87500000 to 125000000, bursts 15910 and 15825, quantum 125000, prio 1",
    "1:3 of 1:5: 1000 to 125000000, bursts 25015625 and 15825, quantum 125000, prio 2",
    "1:4 of 1:6: 1000 to 12500000, bursts 25015625 and 17625, quantum 12500, prio 3",
    "1:5 of 1:1: 37500000 to 125000000, bursts 16291 and 15825, quantum 1600, prio 0",
    "1:6 of 1:1: 1000 to 12500000, bursts 25015625 and 17625, quantum 1600, prio 0",
];

/// The limit of 8 Mbit of `web`, and where both pods without another are sent.
const OF_PODS: &[&str] = &[
    "1:a325 of 1:5: 1000 to 1000000, bursts 25015625 and 40625, quantum 1600, prio 2",
    "10.213.0.2 to 1:a325",
    "10.213.0.3 to 1:4",
];
/// The limit of 160 Mbit of `limited`, where BE pods have more, and where they have less.
const OF_LIMITED: &[&str] = &[
    "1:de3f of 1:6: 1000 to 20000000, bursts 25015625 and 16875, quantum 20000, prio 3",
    "10.213.0.4 to 1:de3f",
];
const OF_LIMITED_LESS: &[&str] = &[
    "1:de3f of 1:6: 1000 to 12500000, bursts 25015625 and 17625, quantum 12500, prio 3",
    "10.213.0.4 to 1:de3f",
];

/// 5 packets of `web`, 3 of `batch` and 7 of `limited`, in their own classes and those above.
const SENT: &[&str] = &[
    "1:3 has sent 0",
    "1:4 has sent 3",
    "1:5 has sent 5",
    "1:6 has sent 10",
    "1:a325 has sent 5",
    "1:de3f has sent 7",
];

/// What a look at the kernel finds.
type Lines = BTreeSet<String>;

/// What was found in each state.
#[derive(Debug, Default, PartialEq, Eq)]
struct Seen(Vec<(&'static str, Lines)>);

pub(super) fn check_all() {
    make_interface().expect("an interface with a default route");
    let (by_cri, by_nri) = (OnceCell::new(), OnceCell::new());
    check("pods_send_by_their_queues_by_cri", || {
        follows(Front::Cri, &by_cri)
    });
    check("pods_send_by_their_queues_by_nri", || {
        follows(Front::Nri, &by_nri)
    });
    check("queues_are_alike_by_both", || async {
        let missing = "one of the two has failed";
        let by_cri = by_cri.get().context(missing)?;
        let by_nri = by_nri.get().context(missing)?;
        ensure!(by_cri == by_nri, "{by_cri:#?} by CRI, {by_nri:#?} by NRI");
        Ok(())
    });
    check(
        "packets_of_groups_are_sent_to_the_class_of_their_id",
        || async { groups::are_sent_to_the_class_of_their_id() },
    );
}

async fn follows(front: Front, all: &OnceCell<Seen>) -> Result<()> {
    let mut seen = Seen::default();
    seen.comes("before us", held, &[UNTOUCHED])?;
    let mut node = node(ProxyOptions {
        policy: Some(policy("tc", 40, 20)),
        args: vec!["--feature-gates=TCNetworkQoS=true".to_owned()],
        front,
        ..ProxyOptions::default()
    });
    let client = node.client().await?;
    seen.comes("without pods", held, &[FIRST])?;
    let web = run(&node, &client, ("web", "LS", Some("8M"))).await?;
    let batch = run(&node, &client, ("batch", "BE", None)).await?;
    let limited = run(&node, &client, ("limited", "BE", Some("160M"))).await?;
    let first = &[FIRST, OF_PODS, OF_LIMITED];
    seen.comes("as created", held, first)?;
    for (pod, packets) in [(&web, 5), (&batch, 3), (&limited, 7)] {
        send(pod, packets)?;
    }
    seen.comes("once they have sent", sent, &[SENT])?;

    node.proxy.write_policy(&policy("tc", 30, 10))?;
    let other = &[OTHER, OF_PODS, OF_LIMITED_LESS];
    seen.comes("under another policy", held, other)?;
    seen.0.push(("by the ledger", decided(&node)?));
    node.proxy.switch("TCNetworkQoS=off")?;
    seen.comes("with the hook off", held, &[UNTOUCHED])?;
    node.proxy.switch("TCNetworkQoS=on")?;
    seen.comes("with the hook on again", held, other)?;
    outlive(&mut node, &mut seen)?;

    let client = node.client().await?;
    limited.remove(&client).await?;
    seen.comes("once a pod has gone", held, &[OTHER, OF_PODS])?;
    node.proxy.write_policy(&policy("terway-qos", 30, 10))?;
    seen.comes("without queues", held, &[UNTOUCHED])?;
    // Those that come by the other front have the same addresses.
    web.remove(&client).await?;
    batch.remove(&client).await?;
    node.proxy.stop()?;
    let is_new = all.set(seen).is_ok();
    ensure!(is_new, "it was seen before");
    Ok(())
}

/// Kills the proxy and starts it, where nothing has changed meanwhile and where something has.
fn outlive(node: &mut Node, seen: &mut Seen) -> Result<()> {
    let before = held()?;
    node.proxy.kill9()?;
    ensure!(held()? == before, "queues outlive us");
    node.launch_proxy()?;
    wait_until("they are taken over", || {
        looks(node, "equal").is_ok_and(|looks| looks > 0.5)
    });
    let written = looks(node, "written")?;
    ensure!(written < 0.5, "what was so already was written");
    let other = &[OTHER, OF_PODS, OF_LIMITED_LESS];
    seen.comes("after a restart", held, other)?;

    node.proxy.kill9()?;
    disturb()?;
    ensure!(held()? != before, "nothing was disturbed");
    node.launch_proxy()?;
    seen.comes("as it should be again", held, other)
}

/// A pod with a network of its own, which may send so many bits in a second.
async fn run(
    node: &Node,
    client: &CriClient,
    (name, class, limit): (&str, &str, Option<&str>),
) -> Result<RunningPod> {
    let mut pod = PodSpec::new(name)
        .label("koordinator.sh/qosClass", class)
        .own_network();
    if let Some(limit) = limit {
        let limit = format!(r#"{{"egressLimit":"{limit}"}}"#);
        pod = pod.annotation("koordinator.sh/networkQOS", &limit);
    }
    let spec = PodSpecOf {
        name: name.to_owned(),
        class: "-",
        qos: PodQos::BestEffort,
        pod,
        container: ContainerSpec::new("main"),
        expected: Vec::new(),
    };
    node.run(client, &spec).await
}

/// What the ledger has decided of queues, and by which hook.
fn decided(node: &Node) -> Result<Lines> {
    let settings = node.settings()?.into_iter();
    let of_queues = settings.filter(|(name, _)| name.contains("network.queue"));
    let told = of_queues.map(|(name, it)| format!("{name} {} {}", it["desired"], it["owner"]));
    let told: Lines = told.collect();
    // Of the node, and of each of three pods.
    ensure!(told.len() == 4, "{told:#?}");
    Ok(told)
}

/// How often this process has come to that with the node's queues.
fn looks(node: &Node, result: &str) -> Result<f64> {
    let metric = "koord_runtime_proxy_kernel_settings_total";
    let result = format!(r#"result="{result}""#);
    let setting = r#"setting="network.queues""#;
    node.proxy.metric(metric, &[setting, &result])
}

/// Sends so many packets from a pod to somewhere beyond the node.
fn send(pod: &RunningPod, packets: usize) -> Result<()> {
    let inside = threads(&pod.cgroup, &pod.sandbox)?;
    let inside = inside.first().context("the sandbox has a process")?;
    let network = File::open(format!("/proc/{inside}/ns/net"))?;
    // A thread that has gone there does not come back.
    let sender = thread::spawn(move || -> Result<()> {
        move_into_link_name_space(network.as_fd(), Some(LinkNameSpaceType::Network))?;
        let socket = UdpSocket::bind("0.0.0.0:0")?;
        for _ in 0..packets {
            socket.send_to(b"hello", BEYOND)?;
        }
        Ok(())
    });
    sender.join().map_err(|_| anyhow!("the sender panicked"))?
}

/// The interface's own qdisc, and below it classes and filters.
fn held() -> Result<Lines> {
    let mut socket = Socket::open()?;
    let qdiscs = socket.list("look", &Qdisc::dump(), Qdisc::read)?;
    let is_own = |it: &&Qdisc| it.link == LINK && it.parent == Handle::ROOT;
    let own = qdiscs.iter().find(is_own).context("it has a qdisc")?;
    let rest = own.htb.map(|htb| format!(", the rest to {}", htb.default));
    let qdisc = format!("{} {}{}", own.kind, own.handle, rest.unwrap_or_default());
    let mut found = Lines::from([qdisc]);
    if own.handle != QDISC {
        return Ok(found);
    }
    let classes = socket.list("look", &Class::dump(LINK), Class::read)?;
    found.extend(classes.iter().map(|it| {
        let Class {
            handle,
            parent,
            rate,
            ceil,
            burst,
            ceil_burst,
            quantum,
            priority,
        } = it;
        format!(
            "{handle} of {parent}: {rate} to {ceil}, bursts {burst} and {ceil_burst}, \
             quantum {quantum}, prio {priority}"
        )
    }));
    let filters = socket.list("look", &Filter::dump(LINK, QDISC), Filter::read)?;
    let filters = filters.iter();
    found.extend(filters.map(|it| format!("{} to {}", it.source, it.class)));
    Ok(found)
}

/// What each class of pods has sent. The whole and the system's have what the node itself sends, too.
fn sent() -> Result<Lines> {
    let read = |_: u16, payload: &[u8]| {
        let (fixed, attributes) = payload.split_at_checked(FIXED)?;
        let minor = u32_at(fixed, 8)? & 0xffff;
        let packets = u32_at(attribute(attributes, STATISTICS)?, PACKETS)?;
        (minor > 2).then(|| format!("1:{minor:x} has sent {packets}"))
    };
    let found = Socket::open()?.list("look", &Class::dump(LINK), read)?;
    Ok(found.into_iter().collect())
}

/// What somebody may do meanwhile: another limit for BE pods, and one of them without its filter.
fn disturb() -> Result<()> {
    let mut socket = Socket::open()?;
    let classes = socket.list("look", &Class::dump(LINK), Class::read)?;
    let class = classes.iter().find(|it| it.handle == Handle::new(1, 4));
    let class = Class {
        ceil: 99_000_000,
        ..*class.context("BE pods have a class")?
    };
    socket.ask("change a queue", &class.put(LINK))?;
    let filters = socket.list("look", &Filter::dump(LINK, QDISC), Filter::read)?;
    let mut filters = filters.into_iter();
    let filter = filters.find(|it| it.source.to_string() == OF_BATCH);
    let filter = filter.context("the pod has a filter")?;
    socket.ask("remove a filter", &filter.delete(LINK, QDISC))?;
    Ok(())
}

/// An interface that loses what is sent by it, with the default route of IPv4.
fn make_interface() -> Result<()> {
    let info = Attributes::default().with_text(1, "dummy");
    let link = Attributes::default()
        .with_text(3, NAME)
        .with_nested(18, &info);
    // `struct ifinfomsg`: its number, and that it is up.
    let fixed = |up: u32| [0, LINK, up, up].map(u32::to_ne_bytes).concat();
    let new = CREATE | EXCLUSIVE | ACK;
    // `struct rtmsg`: in the table `main`, made by an administrator.
    let to_all = [2, 0, 0, 0, 254, 4, 253, 1, 0, 0, 0, 0];
    let over = Attributes::default().with_u32(4, LINK);
    let mut socket = Socket::open()?;
    for request in [
        Request::new(NEW_LINK, new, &fixed(0), &link),
        Request::new(NEW_LINK, ACK, &fixed(1), &Attributes::default()),
        Request::new(NEW_ROUTE, new, &to_all, &over),
    ] {
        socket.ask("prepare the check", &request)?;
    }
    Ok(())
}

// === impl Seen ===

impl Seen {
    /// Waits until a look finds this, and takes it down.
    fn comes(
        &mut self,
        state: &'static str,
        look: fn() -> Result<Lines>,
        expected: &[&[&str]],
    ) -> Result<()> {
        let expected: Lines = expected.concat().into_iter().map(str::to_owned).collect();
        let mut found = look();
        let came = comes_true(|| {
            found = look();
            found.as_ref().is_ok_and(|found| *found == expected)
        });
        let found = found.context(state)?;
        ensure!(came, "{state}: {found:#?}, not {expected:#?}");
        self.0.push((state, found));
        Ok(())
    }
}

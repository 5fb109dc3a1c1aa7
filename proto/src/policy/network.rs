//! What a NodeSLO says of the network: whether queues of the kernel are to share it out (`tc`, also
//! where nothing is said) or a plugin of it (`terway-qos`), and how.
//!
//! Amounts are bits in a second, and percent are of the whole. What is wrong costs itself, and counts
//! as not said: nothing is kept, or there is no limit.

use super::{issue::Problem, place::Place};
use koord_model::{NetClass, NetRate, NetShare, NodeNetwork};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Policy {
    /// By queues of the kernel.
    Tc,
    Terway,
}

const POLICIES: [(&str, Policy); 2] = [("tc", Policy::Tc), ("terway-qos", Policy::Terway)];

/// How the network is to be shared out by `spec`.
#[derive(Default)]
pub(super) struct Shared {
    pub(super) by_plugin: Option<NodeNetwork>,
    pub(super) by_queues: Option<NodeNetwork>,
}

pub(super) fn read(spec: &Place<'_>, strategy: &Place<'_>) -> Shared {
    let policy = strategy.field("policies").field("netQOSPolicy");
    let Some(policy) = policy.name_or_blank(&POLICIES) else {
        // Who is meant by a wrong name nobody knows.
        return Shared::default();
    };
    let total = spec.field("systemStrategy").field("totalNetworkBandwidth");
    match policy.unwrap_or(Policy::Tc) {
        Policy::Terway => Shared {
            by_plugin: Some(network(spec, strategy)),
            ..Shared::default()
        },
        // Who says nothing of the network has nothing shared out, and nothing wrong.
        Policy::Tc if total.is_blank() => Shared::default(),
        Policy::Tc => Shared {
            by_queues: queues(network(spec, strategy), strategy),
            ..Shared::default()
        },
    }
}

/// What queues can keep: none without a network to share out, and nothing for a class beyond its limit
/// or beyond what those before it leave.
fn queues(mut network: NodeNetwork, strategy: &Place<'_>) -> Option<NodeNetwork> {
    let total = network.total;
    let mut left = total;
    for (key, class) in [
        ("lsClass", &mut network.latency_sensitive),
        ("beClass", &mut network.best_effort),
    ] {
        let NetShare { min, max } = &mut class.sent;
        let room = match *max {
            NetRate::NONE => left,
            max => left.min(max),
        };
        if *min > room {
            let place = strategy.field(key).section("networkQOS");
            refuse(&place.field("egressRequest"), *min, room, total);
            *min = NetRate::NONE;
        }
        left = left.less(*min);
    }
    (total != NetRate::NONE).then_some(network)
}

/// Says that there is no room for a request, in the words in which it is written.
fn refuse(place: &Place<'_>, min: NetRate, room: NetRate, total: NetRate) {
    let [min, room, total] = [min, room, total].map(|rate| u128::from(rate.bytes()));
    let total = total.max(1);
    let (value, most) = match place.is_text() {
        true => (min * 8, room * 8),
        // The bytes of so many percent are whole ones, rounded down.
        false => ((min * 100).div_ceil(total), room * 100 / total),
    };
    place.report(Problem::OutOfRange {
        value: value.to_string(),
        min: 0,
        max: i64::try_from(most).unwrap_or(i64::MAX),
    });
}

fn network(spec: &Place<'_>, strategy: &Place<'_>) -> NodeNetwork {
    let system = spec.section("systemStrategy");
    let total = system.field("totalNetworkBandwidth");
    // Of one that cannot be read nobody knows what is beyond it.
    let total = match total.is_blank() {
        true => Some(0),
        false => total.quantity(),
    };
    // What of a class is no mapping is said by whoever reads the class.
    let class = |key: &str| class(&strategy.field(key).section("networkQOS"), total);
    NodeNetwork {
        total: NetRate::of_bits(total.unwrap_or_default()),
        latency_sensitive: class("lsClass"),
        best_effort: class("beClass"),
    }
}

fn class(section: &Place<'_>, total: Option<u64>) -> NetClass {
    let share = |min: &str, max: &str| NetShare {
        min: rate(&section.field(min), total),
        max: rate(&section.field(max), total),
    };
    let class = NetClass {
        sent: share("egressRequest", "egressLimit"),
        received: share("ingressRequest", "ingressLimit"),
    };
    match section.field("enable").boolean() {
        Some(true) => class,
        _ => NetClass::default(),
    }
}

/// A number is percent of the whole, a text an amount.
fn rate(place: &Place<'_>, total: Option<u64>) -> NetRate {
    let bits = if place.is_blank() {
        None
    } else if place.is_text() {
        amount(place, total)
    } else {
        let percent = place.integer(0, 100);
        percent.and_then(|percent| part(total?, percent))
    };
    bits.map_or(NetRate::NONE, NetRate::of_bits)
}

/// Nobody has more than there is.
fn amount(place: &Place<'_>, total: Option<u64>) -> Option<u64> {
    let bits = place.quantity()?;
    let total = total?;
    if bits <= total {
        return Some(bits);
    }
    place.report(Problem::OutOfRange {
        value: bits.to_string(),
        min: 0,
        max: i64::try_from(total).unwrap_or(i64::MAX),
    });
    None
}

fn part(total: u64, percent: i64) -> Option<u64> {
    let part = u128::from(total) * u128::try_from(percent).ok()? / 100;
    u64::try_from(part).ok()
}

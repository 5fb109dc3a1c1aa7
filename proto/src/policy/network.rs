//! What a NodeSLO says of the network, where a plugin of it is to share it out (`terway-qos`).
//!
//! Amounts are bits in a second, and percent are of the whole. What is wrong costs itself, and counts
//! as not said: nothing is kept, or there is no limit.

use super::{issue::Problem, place::Place};
use koord_model::{NetClass, NetRate, NetShare, NodeNetwork};

#[derive(Clone, Copy, PartialEq, Eq)]
enum Policy {
    /// By queues of the kernel, which nothing here makes.
    Tc,
    Terway,
}

const POLICIES: [(&str, Policy); 2] = [("tc", Policy::Tc), ("terway-qos", Policy::Terway)];

/// How the network is to be shared out by `spec`; `None` where no plugin is to do it.
pub(super) fn read(spec: &Place<'_>, strategy: &Place<'_>) -> Option<NodeNetwork> {
    let policy = strategy.field("policies").field("netQOSPolicy");
    if policy.name(&POLICIES) != Some(Policy::Terway) {
        return None;
    }
    let system = spec.section("systemStrategy");
    let total = system.field("totalNetworkBandwidth");
    let total = total.quantity().unwrap_or_default();
    // What of a class is no mapping is said by whoever reads the class.
    let class = |key: &str| class(&strategy.field(key).section("networkQOS"), total);
    Some(NodeNetwork {
        total: NetRate::of_bits(total),
        latency_sensitive: class("lsClass"),
        best_effort: class("beClass"),
    })
}

fn class(section: &Place<'_>, total: u64) -> NetClass {
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
fn rate(place: &Place<'_>, total: u64) -> NetRate {
    let bits = if place.is_blank() {
        None
    } else if place.is_text() {
        amount(place, total)
    } else {
        let percent = place.integer(0, 100);
        percent.and_then(|percent| part(total, percent))
    };
    bits.map_or(NetRate::NONE, NetRate::of_bits)
}

/// Nobody has more than there is.
fn amount(place: &Place<'_>, total: u64) -> Option<u64> {
    let bits = place.quantity()?;
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

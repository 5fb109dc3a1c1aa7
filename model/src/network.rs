//! How the network of a node is shared out, and what of it a pod has.

use std::fmt;

/// Bytes in a second. None at all means that nothing is kept, or no limit.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct NetRate(u64);

/// What somebody has in one direction.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NetShare {
    /// Kept for them.
    pub min: NetRate,
    /// They have no more.
    pub max: NetRate,
}

/// What the pods of a class have together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NetClass {
    pub sent: NetShare,
    pub received: NetShare,
}

/// How the network of a node is shared out.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NodeNetwork {
    /// In each direction.
    pub total: NetRate,
    pub latency_sensitive: NetClass,
    pub best_effort: NetClass,
}

/// How the kernel's queues share out what a node sends. Nothing is without a limit here.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct NetQueues {
    pub total: NetRate,
    /// What no class of pods sends, and pods of class `SYSTEM`.
    pub system: NetShare,
    pub latency_sensitive: NetShare,
    pub best_effort: NetShare,
}

/// Whose packets go first.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub enum NetPriority {
    #[default]
    System,
    LatencySensitive,
    BestEffort,
}

/// What a pod has.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodNetwork {
    pub priority: NetPriority,
    /// What it may receive at most.
    pub ingress: NetRate,
    /// What it may send at most.
    pub egress: NetRate,
}

/// By which of the kernel's queues a pod sends.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Hash)]
pub struct PodQueue {
    pub priority: NetPriority,
    /// What it may send at most, in a queue of its own then.
    pub egress: NetRate,
}

// === impl NetRate ===

impl NetRate {
    pub const NONE: Self = Self(0);

    /// So many bits in a second. Of few of them it is one byte, because no byte is no limit.
    pub fn of_bits(bits: u64) -> Self {
        Self(if bits == 0 { 0 } else { (bits / 8).max(1) })
    }

    /// So many bytes in a second.
    pub const fn of_bytes(bytes: u64) -> Self {
        Self(bytes)
    }

    pub fn bytes(self) -> u64 {
        self.0
    }

    /// The lower of this limit and another one, where none is none.
    #[must_use]
    pub fn within(self, other: Self) -> Self {
        match (self, other) {
            (rate, Self::NONE) | (Self::NONE, rate) => rate,
            (rate, other) => rate.min(other),
        }
    }

    /// What is left of it; none if that is nothing.
    #[must_use]
    pub fn less(self, other: Self) -> Self {
        Self(self.0.saturating_sub(other.0))
    }
}

impl fmt::Display for NetRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            0 => f.write_str("any"),
            bytes => write!(f, "{bytes} B/s"),
        }
    }
}

// === impl NetClass ===

impl fmt::Display for NetClass {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { sent, received } = self;
        write!(
            f,
            "sends {} to {}, receives {} to {}",
            sent.min.bytes(),
            sent.max,
            received.min.bytes(),
            received.max
        )
    }
}

// === impl NodeNetwork ===

impl fmt::Display for NodeNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            total,
            latency_sensitive,
            best_effort,
        } = self;
        write!(f, "of {total} LS {latency_sensitive}; BE {best_effort}")
    }
}

// === impl NetQueues ===

impl fmt::Display for NetQueues {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            total,
            system,
            latency_sensitive,
            best_effort,
        } = self;
        write!(f, "of {total}")?;
        let classes = [
            ("SYSTEM", system),
            ("LS", latency_sensitive),
            ("BE", best_effort),
        ];
        for (class, NetShare { min, max }) in classes {
            write!(f, ", {class} sends {} to {max}", min.bytes())?;
        }
        Ok(())
    }
}

// === impl NetPriority ===

impl NetPriority {
    /// As it is told: 0 goes first.
    pub fn rank(self) -> u8 {
        match self {
            Self::System => 0,
            Self::LatencySensitive => 1,
            Self::BestEffort => 2,
        }
    }
}

// === impl PodNetwork ===

impl fmt::Display for PodNetwork {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            priority,
            ingress,
            egress,
        } = self;
        let rank = priority.rank();
        write!(f, "priority {rank}, receives {ingress}, sends {egress}")
    }
}

// === impl PodQueue ===

impl fmt::Display for PodQueue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { priority, egress } = self;
        write!(f, "priority {}, sends {egress}", priority.rank())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bits_become_bytes_and_few_of_them_no_unlimited_rate() {
        for (bits, bytes) in [
            (0, 0),
            (1, 1),
            (15, 1),
            (16, 2),
            (1_000_000_000, 125_000_000),
            (u64::MAX, 2_305_843_009_213_693_951),
        ] {
            assert_eq!(NetRate::of_bits(bits).bytes(), bytes, "{bits}");
        }
        assert_eq!(NetRate::NONE, NetRate::of_bits(0));
    }

    #[test]
    fn the_lower_of_two_limits_counts_and_none_is_no_limit() {
        let rate = NetRate::of_bytes;
        for (one, other, both) in [(5, 3, 3), (3, 5, 3), (0, 3, 3), (3, 0, 3), (0, 0, 0)] {
            assert_eq!(rate(one).within(rate(other)), rate(both), "{one} {other}");
        }
        assert_eq!(rate(5).less(rate(3)), rate(2));
        assert_eq!(rate(3).less(rate(5)), NetRate::NONE);
    }

    #[test]
    fn a_person_reads_how_queues_share_it_out() {
        let share = |min, max| NetShare {
            min: NetRate::of_bytes(min),
            max: NetRate::of_bytes(max),
        };
        let queues = NetQueues {
            total: NetRate::of_bytes(100),
            system: share(50, 100),
            latency_sensitive: share(40, 100),
            best_effort: share(10, 20),
        };
        assert_eq!(
            queues.to_string(),
            "of 100 B/s, SYSTEM sends 50 to 100 B/s, LS sends 40 to 100 B/s, BE sends 10 to 20 B/s"
        );
        let pod = PodQueue {
            priority: NetPriority::LatencySensitive,
            egress: NetRate::of_bytes(7),
        };
        assert_eq!(pod.to_string(), "priority 1, sends 7 B/s");
    }

    #[test]
    fn a_person_reads_who_has_what() {
        let rate = NetRate::of_bits;
        let pod = PodNetwork {
            priority: NetPriority::BestEffort,
            ingress: rate(80),
            egress: NetRate::NONE,
        };
        assert_eq!(pod.to_string(), "priority 2, receives 10 B/s, sends any");
        let best_effort = NetClass {
            sent: NetShare {
                min: rate(8),
                max: rate(16),
            },
            received: NetShare::default(),
        };
        let node = NodeNetwork {
            total: rate(800),
            latency_sensitive: NetClass::default(),
            best_effort,
        };
        assert_eq!(
            node.to_string(),
            "of 100 B/s LS sends 0 to any, receives 0 to any; \
             BE sends 1 to 2 B/s, receives 0 to any"
        );
    }
}

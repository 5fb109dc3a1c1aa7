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

// === impl NetRate ===

impl NetRate {
    pub const NONE: Self = Self(0);

    /// So many bits in a second. Of few of them it is one byte, because no byte is no limit.
    pub fn of_bits(bits: u64) -> Self {
        Self(if bits == 0 { 0 } else { (bits / 8).max(1) })
    }

    pub fn bytes(self) -> u64 {
        self.0
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

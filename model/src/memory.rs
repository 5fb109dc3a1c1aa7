//! Memory limits.

use std::fmt;

/// How much memory a control group may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryLimit {
    Bytes(u64),
    Unlimited,
}

// === impl MemoryLimit ===

impl MemoryLimit {
    /// cgroup v1 shows "unlimited" as the largest multiple of a page below 2⁶³; anything from
    /// there on is unlimited.
    const V1_UNLIMITED: u64 = 0x7fff_ffff_ffff_f000;

    /// Reads a limit as cgroup v1 and CRI write it: negative or the v1 maximum is unlimited.
    pub fn from_bytes(bytes: i64) -> Self {
        match u64::try_from(bytes) {
            Ok(bytes) if bytes < Self::V1_UNLIMITED => Self::Bytes(bytes),
            _ => Self::Unlimited,
        }
    }

    /// As CRI and cgroup v1 take it: −1 is unlimited.
    pub fn as_i64(self) -> i64 {
        match self {
            Self::Bytes(bytes) => i64::try_from(bytes).unwrap_or(i64::MAX),
            Self::Unlimited => -1,
        }
    }
}

impl fmt::Display for MemoryLimit {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::Unlimited => f.write_str("unlimited"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_v1_maximum_is_unlimited() {
        assert_eq!(
            MemoryLimit::from_bytes(9_223_372_036_854_771_712),
            MemoryLimit::Unlimited
        );
        assert_eq!(MemoryLimit::from_bytes(-1), MemoryLimit::Unlimited);
        assert_eq!(MemoryLimit::from_bytes(4096), MemoryLimit::Bytes(4096));
        assert_eq!(MemoryLimit::Unlimited.as_i64(), -1);
    }
}

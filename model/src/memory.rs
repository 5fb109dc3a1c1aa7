//! Memory: limits, protection from reclaim, and what kernels of Anolis and Alibaba Cloud add.

use crate::cpu::{RangeError, check};
use std::fmt;

/// How much memory a control group may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryLimit {
    Bytes(u64),
    Unlimited,
}

/// How much memory of a control group is kept from reclaim while there is pressure from outside.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum MemoryProtection {
    Bytes(u64),
    All,
}

/// How many bytes of a control group's memory may be page cache; 0 is as many as there is room for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct PageCacheSize(u64);

/// Small numbers that a kernel file takes in a range of its own.
macro_rules! bounded {
    ($($(#[$doc:meta])* $name:ident($file:literal, $min:literal to $max:literal, new $new:literal)),+ $(,)?) => {$(
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
        pub struct $name(i16);

        impl $name {
            pub const MIN: i64 = $min;
            pub const MAX: i64 = $max;
            /// What the kernel gives where nobody says anything.
            pub const DEFAULT: Self = Self($new);

            /// This number, as the kernel's file takes it.
            ///
            /// # Errors
            ///
            /// When the number is outside [`Self::MIN`] to [`Self::MAX`].
            pub fn new(number: i64) -> Result<Self, RangeError> {
                check($file, number.into(), $min, $max)?;
                Ok(Self(i16::try_from(number).expect("checked")))
            }

            pub fn get(self) -> i64 {
                self.0.into()
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.fmt(f)
            }
        }
    )+};
}

bounded! {
    /// From which percentage of its limit on a group's memory is reclaimed in the background; 0 is
    /// never.
    WmarkRatio("memory.wmark_ratio", 0 to 100, new 0),
    /// How far below that it is reclaimed then, in hundredths of a percent of the limit (Koordinator
    /// calls them permill).
    WmarkScale("memory.wmark_scale_factor", 1 to 1_000, new 50),
    /// By what percentage a group's tasks meet the global minimum watermark earlier (above 0) or
    /// later.
    WmarkMinAdj("memory.wmark_min_adj", -25 to 50, new 0),
    /// Who is killed later when memory has run out: the least priority goes first.
    OomPriority("memory.priority", 0 to 12, new 0),
    /// By how many thousandths of the memory there is a process counts for larger than it is when one
    /// is to be killed for want of it: −1000 is never, 1000 is first.
    OomScoreAdj("oom_score_adj", -1_000 to 1_000, new 0),
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

// === impl MemoryProtection ===

impl MemoryProtection {
    pub const NONE: Self = Self::Bytes(0);

    /// What keeps both from reclaim, in the group above.
    #[must_use]
    pub fn and(self, other: Self) -> Self {
        match (self, other) {
            (Self::Bytes(one), Self::Bytes(other)) => Self::Bytes(one.saturating_add(other)),
            _ => Self::All,
        }
    }
}

impl fmt::Display for MemoryProtection {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Bytes(bytes) => bytes.fmt(f),
            Self::All => f.write_str("all"),
        }
    }
}

// === impl PageCacheSize ===

impl PageCacheSize {
    pub const MIN: i64 = 0;
    pub const MAX: i64 = i64::MAX;
    /// What the kernel gives where nobody says anything.
    pub const DEFAULT: Self = Self(0);

    /// So many bytes.
    ///
    /// # Errors
    ///
    /// When the number is negative: it is 0 to 2⁶³ − 1 ([`Self::MIN`] to [`Self::MAX`]).
    pub fn new(bytes: i64) -> Result<Self, RangeError> {
        let (min, max) = (Self::MIN.into(), Self::MAX.into());
        check("memory.pagecache_limit.size", bytes.into(), min, max)?;
        Ok(Self(bytes.unsigned_abs()))
    }

    /// As many bytes, or the most that there can be.
    pub fn of_bytes(bytes: u64) -> Self {
        Self(bytes.min(Self::MAX.unsigned_abs()))
    }

    pub fn bytes(self) -> u64 {
        self.0
    }
}

impl fmt::Display for PageCacheSize {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_out_of_their_range_are_none() {
        assert!(WmarkRatio::new(-1).is_err() && WmarkRatio::new(101).is_err());
        assert!(WmarkScale::new(0).is_err() && WmarkScale::new(1_001).is_err());
        assert!(WmarkMinAdj::new(-26).is_err() && WmarkMinAdj::new(51).is_err());
        let error = OomPriority::new(13).unwrap_err().to_string();
        assert_eq!(error, "memory.priority 13 is outside 0 to 12");
        assert_eq!(WmarkMinAdj::new(-25).unwrap().to_string(), "-25");
    }

    #[test]
    fn a_page_cache_is_no_less_than_nothing_and_no_more_than_a_file_can_say() {
        let error = PageCacheSize::new(-1).unwrap_err().to_string();
        assert_eq!(
            error,
            "memory.pagecache_limit.size -1 is outside 0 to 9223372036854775807"
        );
        let most = PageCacheSize::new(i64::MAX).unwrap();
        assert_eq!(most.to_string(), "9223372036854775807");
        assert_eq!(PageCacheSize::of_bytes(u64::MAX), most);
        assert_eq!(PageCacheSize::new(0).unwrap(), PageCacheSize::DEFAULT);
    }

    #[test]
    fn protection_adds_up() {
        let bytes = MemoryProtection::Bytes;
        assert_eq!(bytes(4096).and(bytes(8192)), bytes(12_288));
        assert_eq!(
            bytes(4096).and(MemoryProtection::All),
            MemoryProtection::All
        );
    }

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

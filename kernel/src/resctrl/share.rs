//! From percent to what a processor takes, by Koordinator's arithmetic.

/// Who made the processor, as far as that changes what a share of bandwidth is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    Intel,
    Amd,
    Other,
}

/// What Koordinator takes a CPU die of AMD's to reach: 25 Gb/s, of which 0.8 in eighths.
const AMD_DIE: u64 = 160;
/// More than any die reaches: no limit.
const AMD_UNLIMITED: u64 = 2048;

// === impl Vendor ===

impl Vendor {
    /// The vendor that `/proc/cpuinfo` names.
    pub fn of_cpuinfo(text: &str) -> Self {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let named = lines.find(|(key, _)| key.trim() == "vendor_id");
        match named.map(|(_, vendor)| vendor.trim()) {
            Some("GenuineIntel") => Self::Intel,
            Some("AuthenticAMD") => Self::Amd,
            _ => Self::Other,
        }
    }

    /// The text of an `MB` line for a share of the bandwidth. Intel's steps are multiples of ten, to
    /// which others are raised.
    pub fn bandwidth(self, percent: u64) -> u64 {
        match self {
            Self::Amd if percent >= 100 => AMD_UNLIMITED,
            Self::Amd => AMD_DIE * percent / 100,
            Self::Intel | Self::Other => percent.next_multiple_of(10),
        }
    }
}

/// The ways of a cache from `start` to `end` percent of it, as a mask, where `all` has every way;
/// `None` if `all` is no run of ones from the lowest on, or the range is none. A range that is
/// narrower than a way is the one that it begins in: the kernel takes no empty mask.
pub fn ways(all: u64, start: u64, end: u64) -> Option<u64> {
    let run = all != 0 && all & all.wrapping_add(1) == 0;
    if !run || start >= end || end > 100 {
        return None;
    }
    let count = u64::from(all.count_ones());
    let way = |percent: u64| (count * percent).div_ceil(100);
    let (low, high) = (way(start), way(end));
    let (low, high) = if low == high {
        (low - 1, high)
    } else {
        (low, high)
    };
    let below = |way: u64| if way >= 64 { u64::MAX } else { (1 << way) - 1 };
    Some(below(high) & !below(low))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_range_becomes_the_ways_that_koordinator_gives_it() {
        // The reference's own examples, and a cache of twenty ways.
        assert_eq!(ways(0x3ff, 10, 80), Some(0xfe));
        assert_eq!(ways(0x7ff, 10, 50), Some(0x3c));
        assert_eq!(ways(0x7ff, 0, 30), Some(0xf));
        assert_eq!(ways(0x7ff, 0, 100), Some(0x7ff));
        assert_eq!(ways(0xf_ffff, 0, 100), Some(0xf_ffff));
        assert_eq!(ways(u64::MAX, 0, 100), Some(u64::MAX));
    }

    #[test]
    fn a_range_within_one_way_is_that_way() {
        // Of eleven ways: 1 % to 2 % are in the first, 91 % to 99 % in the last.
        assert_eq!(ways(0x7ff, 1, 2), Some(0x1));
        assert_eq!(ways(0x7ff, 91, 99), Some(0x400));
        assert_eq!(ways(0x7ff, 0, 1), Some(0x1));
    }

    #[test]
    fn what_is_no_range_or_no_cache_has_no_mask() {
        assert_eq!(ways(0x7ff, 50, 50), None);
        assert_eq!(ways(0x7ff, 60, 50), None);
        assert_eq!(ways(0x7ff, 0, 101), None);
        assert_eq!(ways(0x5, 0, 100), None);
        assert_eq!(ways(0, 0, 100), None);
    }

    #[test]
    fn bandwidth_is_counted_as_each_vendor_does() {
        let shares = |vendor: Vendor| [1, 10, 55, 99, 100].map(|it| vendor.bandwidth(it));
        assert_eq!(shares(Vendor::Intel), [10, 10, 60, 100, 100]);
        assert_eq!(shares(Vendor::Other), [10, 10, 60, 100, 100]);
        assert_eq!(shares(Vendor::Amd), [1, 16, 88, 158, 2048]);
    }

    #[test]
    fn the_vendor_is_named_by_cpuinfo() {
        let vendor =
            |name: &str| Vendor::of_cpuinfo(&format!("processor\t: 0\nvendor_id\t: {name}\n"));
        assert_eq!(vendor("GenuineIntel"), Vendor::Intel);
        assert_eq!(vendor("AuthenticAMD"), Vendor::Amd);
        assert_eq!(vendor("HygonGenuine"), Vendor::Other);
        assert_eq!(Vendor::of_cpuinfo(""), Vendor::Other);
    }
}

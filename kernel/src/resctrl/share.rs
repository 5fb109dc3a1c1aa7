//! From percent to what a processor takes, by Koordinator's arithmetic.

use super::schemata::{Resource, Schemata, Shares};
use koord_model::CacheShares;
use std::{fs, path::Path};

/// Who made the processor, as far as that changes what a share of bandwidth is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Vendor {
    Intel,
    Amd,
    Other,
}

/// The smallest parts that a processor shares out, as far as the kernel tells them.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Granularity {
    /// Least ways of a mask (`min_cbm_bits`).
    pub ways: Option<u32>,
    /// Least bandwidth, in the unit of an `MB` line (`min_bandwidth`).
    pub least_bandwidth: Option<u64>,
    /// What bandwidths are multiples of, in that unit (`bandwidth_gran`).
    pub bandwidth_step: Option<u64>,
}

/// What Koordinator takes a CPU die of AMD's to reach: 25 Gb/s, of which 0.8 in eighths.
const AMD_DIE: u64 = 160;
/// More than any die reaches: no limit.
const AMD_UNLIMITED: u64 = 2048;
/// Intel's step where the kernel does not tell it, in percent.
const INTEL_STEP: u64 = 10;

// === impl Vendor ===

impl Vendor {
    /// That of this machine; `sys_root` and `proc_root` are `/sys` and `/proc`. A service may not see
    /// more of `/proc` than processes, so it is looked for in both.
    pub fn of_machine(sys_root: &Path, proc_root: &Path) -> Self {
        let read = |file| fs::read_to_string(file).unwrap_or_default();
        match Self::of_cpuinfo(&read(proc_root.join("cpuinfo"))) {
            Self::Other => Self::of_modalias(&read(sys_root.join("devices/system/cpu/modalias"))),
            named => named,
        }
    }

    /// The vendor that the name of the processor's module has, by the numbers of
    /// `arch/x86/include/asm/processor.h`.
    fn of_modalias(text: &str) -> Self {
        let vendor = text.strip_prefix("cpu:type:x86,ven");
        match vendor.and_then(|vendor| vendor.get(..4)) {
            Some("0000") => Self::Intel,
            Some("0002") => Self::Amd,
            _ => Self::Other,
        }
    }

    /// The vendor that `/proc/cpuinfo` names.
    fn of_cpuinfo(text: &str) -> Self {
        let mut lines = text.lines().filter_map(|line| line.split_once(':'));
        let named = lines.find(|(key, _)| key.trim() == "vendor_id");
        match named.map(|(_, vendor)| vendor.trim()) {
            Some("GenuineIntel") => Self::Intel,
            Some("AuthenticAMD") => Self::Amd,
            _ => Self::Other,
        }
    }

    /// What an `MB` line says for a share of the bandwidth: what the kernel would make of anything
    /// below a step, so that it is found again as it was written.
    pub fn bandwidth(self, percent: u64, granularity: Granularity) -> u64 {
        let (exact, step, most) = match self {
            Self::Amd if percent >= 100 => return AMD_UNLIMITED,
            Self::Amd => (AMD_DIE * percent / 100, 1, AMD_UNLIMITED),
            Self::Intel | Self::Other => (percent, INTEL_STEP, 100),
        };
        let step = granularity.bandwidth_step.unwrap_or(step).max(1);
        let least = granularity.least_bandwidth.unwrap_or(0);
        exact.max(least).next_multiple_of(step).min(most)
    }
}

// === impl Granularity ===

impl Granularity {
    /// As many neighbouring ways as a mask has at least: further up and, where the cache ends, down.
    fn widen(self, mask: u64, all: u64) -> u64 {
        let least = self.ways.unwrap_or(1);
        let mut wide = mask;
        while wide.count_ones() < least && wide != all {
            let up = (wide | wide << 1) & all;
            wide = if up == wide { wide | wide >> 1 } else { up };
        }
        wide
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

/// Without the bandwidth of memory where that is counted in megabytes per second (mount option `mba_MBps`):
/// a kernel that does takes a percentage for very few of them, and has a number in the root's group that is
/// none. Whether that is so here.
pub(super) fn countable(whole: Schemata, vendor: Vendor) -> (Schemata, bool) {
    let Schemata(mut lines) = whole;
    let is_none = |line: &Shares| line.values().any(|it| *it > 100);
    let counts_otherwise = vendor != Vendor::Amd && lines.get(&Resource::Mb).is_some_and(is_none);
    if counts_otherwise {
        lines.remove(&Resource::Mb);
    }
    (Schemata(lines), counts_otherwise)
}

/// What a group that has these shares has of each cache that `there` names. A cache of which no
/// way can be shared out, because `all` is no mask, is left out.
pub(super) fn schemata(
    shares: &CacheShares,
    there: &Schemata,
    all: Option<u64>,
    (vendor, granularity): (Vendor, Granularity),
) -> Schemata {
    let share = |resource: Resource, cache: u32| match resource {
        Resource::Mb => {
            let percent = shares.bandwidth.of(cache).percent();
            Some(vendor.bandwidth(percent, granularity))
        }
        Resource::L3 | Resource::L3Code | Resource::L3Data => {
            let (all, range) = (all?, shares.ranges.of(cache));
            let mask = ways(all, range.start(), range.end())?;
            Some(granularity.widen(mask, all))
        }
    };
    let lines = there.0.iter().map(|(resource, caches)| {
        let caches = caches.keys();
        let shares = caches.filter_map(|cache| Some((*cache, share(*resource, *cache)?)));
        (*resource, shares.collect::<Shares>())
    });
    Schemata(lines.filter(|(_, shares)| !shares.is_empty()).collect())
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_model::{Bandwidth, CacheRange, PerCache};

    fn shares(start: i64, end: i64, percent: i64) -> CacheShares {
        CacheShares {
            ranges: PerCache::all(CacheRange::new(start, end).unwrap()),
            bandwidth: PerCache::all(Bandwidth::new(percent).unwrap()),
        }
    }

    #[test]
    fn shares_become_a_line_for_each_resource_that_the_root_has() {
        let lines = |root: &str, all, vendor| {
            let whole = Schemata::parse(root).unwrap();
            let processor = (vendor, Granularity::default());
            schemata(&shares(0, 30, 55), &whole, all, processor).to_string()
        };
        let two = "L3:0=7ff;1=7ff\nMB:0=100;1=100\n";
        assert_eq!(
            lines(two, Some(0x7ff), Vendor::Intel),
            "L3:0=f;1=f\nMB:0=60;1=60\n"
        );
        assert_eq!(
            lines(
                "L3:0=ffff;8=ffff\nMB:0=2048;8=2048\n",
                Some(0xffff),
                Vendor::Amd
            ),
            "L3:0=1f;8=1f\nMB:0=88;8=88\n"
        );
        // Code and data apart, and no control of bandwidth.
        assert_eq!(
            lines("L3DATA:0=7ff\nL3CODE:0=7ff\n", Some(0x7ff), Vendor::Intel),
            "L3CODE:0=f\nL3DATA:0=f\n"
        );
        // No mask to go by, or one with a hole.
        for all in [None, Some(0b101)] {
            assert_eq!(lines(two, all, Vendor::Other), "MB:0=60;1=60\n");
        }
    }

    #[test]
    fn bandwidth_in_megabytes_is_left_alone() {
        for (root, vendor, expected) in [
            (
                "L3:0=7ff\nMB:0=100\n",
                Vendor::Intel,
                ("L3:0=7ff\nMB:0=100\n", false),
            ),
            (
                "L3:0=7ff\nMB:0=4294967295\n",
                Vendor::Intel,
                ("L3:0=7ff\n", true),
            ),
            (
                "L3:0=7ff\nMB:0=100;1=4294967295\n",
                Vendor::Other,
                ("L3:0=7ff\n", true),
            ),
            ("MB:0=2048\n", Vendor::Amd, ("MB:0=2048\n", false)),
            ("L3:0=7ff\n", Vendor::Intel, ("L3:0=7ff\n", false)),
        ] {
            let (whole, otherwise) = countable(Schemata::parse(root).unwrap(), vendor);
            assert_eq!((&*whole.to_string(), otherwise), expected);
        }
    }

    #[test]
    fn a_cache_may_have_shares_of_its_own() {
        let whole = Schemata::parse("L3:0=7ff;1=7ff\nMB:0=100;1=100\n").unwrap();
        let mut shares = shares(0, 50, 100);
        shares
            .ranges
            .each
            .insert(1, CacheRange::new(10, 50).unwrap());
        shares.bandwidth.each.insert(0, Bandwidth::new(20).unwrap());
        // There is no cache 7.
        shares.bandwidth.each.insert(7, Bandwidth::new(10).unwrap());
        let lines = schemata(
            &shares,
            &whole,
            Some(0x7ff),
            (Vendor::Intel, Granularity::default()),
        );
        assert_eq!(lines.to_string(), "L3:0=3f;1=3c\nMB:0=20;1=100\n");
    }

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
        let untold = Granularity::default();
        let shares = |vendor: Vendor| [1, 10, 55, 99, 100].map(|it| vendor.bandwidth(it, untold));
        assert_eq!(shares(Vendor::Intel), [10, 10, 60, 100, 100]);
        assert_eq!(shares(Vendor::Other), [10, 10, 60, 100, 100]);
        assert_eq!(shares(Vendor::Amd), [1, 16, 88, 158, 2048]);
    }

    #[test]
    fn bandwidth_is_a_multiple_of_the_step_that_the_kernel_tells_and_no_less_than_the_least() {
        let told = |least, step| Granularity {
            least_bandwidth: Some(least),
            bandwidth_step: Some(step),
            ..Granularity::default()
        };
        let shares = |vendor: Vendor, told| [1, 10, 55, 99].map(|it| vendor.bandwidth(it, told));
        assert_eq!(shares(Vendor::Intel, told(20, 20)), [20, 20, 60, 100]);
        assert_eq!(shares(Vendor::Intel, told(30, 10)), [30, 30, 60, 100]);
        // A step that does not divide the whole.
        assert_eq!(shares(Vendor::Intel, told(1, 30)), [30, 30, 60, 100]);
        assert_eq!(shares(Vendor::Amd, told(1, 1)), [1, 16, 88, 158]);
        assert_eq!(shares(Vendor::Amd, told(8, 8)), [8, 16, 88, 160]);
        // The kernel tells nothing that could be a step.
        assert_eq!(shares(Vendor::Other, told(0, 0)), [1, 10, 55, 99]);
    }

    #[test]
    fn a_mask_has_as_many_ways_as_the_kernel_wants() {
        let two = Granularity {
            ways: Some(2),
            ..Granularity::default()
        };
        let wide = [0x1, 0x8, 0x400, 0x18].map(|mask| two.widen(mask, 0x7ff));
        assert_eq!(wide, [0x3, 0x18, 0x600, 0x18]);
        // More than there are.
        assert_eq!(two.widen(1, 1), 1);
        assert_eq!(Granularity::default().widen(0x8, 0x7ff), 0x8);
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

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a machine of this test's own")]
    fn the_vendor_is_known_where_cpuinfo_is_hidden() {
        let machine = tempfile::tempdir().unwrap();
        let (sys, proc) = (machine.path().join("sys"), machine.path().join("proc"));
        let vendor = || Vendor::of_machine(&sys, &proc);
        fs::create_dir_all(sys.join("devices/system/cpu")).unwrap();
        fs::create_dir(&proc).unwrap();
        assert_eq!(vendor(), Vendor::Other);
        for (number, expected) in [
            ("0000", Vendor::Intel),
            ("0002", Vendor::Amd),
            ("0009", Vendor::Other),
        ] {
            let text = format!("cpu:type:x86,ven{number}fam0019mod0001:feature:,0000,0001\n");
            fs::write(sys.join("devices/system/cpu/modalias"), text).unwrap();
            assert_eq!(vendor(), expected);
        }
        fs::write(proc.join("cpuinfo"), "vendor_id\t: GenuineIntel\n").unwrap();
        assert_eq!(vendor(), Vendor::Intel);
    }
}

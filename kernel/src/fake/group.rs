//! One fake control group: what its files show and how they take what is written, as far as that
//! depends on the group alone.

use super::{devices::Io, text};
use crate::cgroup::{Generation, Note};
use koord_model::CpuSet;
use rustix::io::Errno;
use std::collections::{BTreeMap, BTreeSet};

/// The state behind the files of a group, in the kernel's own terms.
#[derive(Clone, Debug)]
pub(super) struct Group {
    pub(super) inode: u64,
    pub(super) shares: u64,
    pub(super) idle: bool,
    /// `None` is unlimited; microseconds, as are the next two.
    pub(super) quota: Option<u64>,
    pub(super) period: u64,
    pub(super) burst: u64,
    pub(super) bvt: i64,
    pub(super) cpus: CpuSet,
    pub(super) memory_limit: u64,
    /// With swap; of cgroup v1 alone. And what of it is in use.
    memory_and_swap: u64,
    pub(super) memory_and_swap_used: u64,
    pub(super) memory_min: u64,
    pub(super) memory_low: u64,
    pub(super) memory_high: u64,
    page_cache: u64,
    /// Of the files with a small number in a range, by name.
    small: BTreeMap<&'static str, i64>,
    pub(super) pids: BTreeSet<u32>,
    pub(super) io: Io,
    /// By name.
    pub(super) notes: BTreeMap<String, String>,
    /// Others than root may write to it.
    pub(super) is_open: bool,
}

/// `MIN_SHARES` and `MAX_SHARES` of `kernel/sched/sched.h`, `WEIGHT_IDLEPRIO` and the default.
const MIN_SHARES: u64 = 2;
const MAX_SHARES: u64 = 1 << 18;
const IDLE_SHARES: u64 = 3;
const DEFAULT_SHARES: u64 = 1024;

/// Files with a small number: name, least, most, and what a new group has. All but the first are of
/// kernels of Anolis and Alibaba Cloud, as their documentation has it.
const SMALL: [(&str, i64, i64, i64); 8] = [
    ("memory.oom.group", 0, 1, 0),
    ("memory.wmark_ratio", 0, 100, 0),
    ("memory.wmark_scale_factor", 1, 1_000, 50),
    ("memory.wmark_min_adj", -25, 50, 0),
    ("memory.priority", 0, 12, 0),
    ("memory.use_priority_oom", 0, 1, 0),
    ("memory.pagecache_limit.sync", 0, 1, 0),
    ("memory.pagecache_limit.enable", 0, 1, 0),
];

/// What a new group on cgroup v1 is charged for by itself: less cannot be its limit.
const CHARGED: u64 = 2 * text::PAGE;

/// `max_cfs_runtime`, in microseconds.
const MAX_RUNTIME: u64 = (1 << 44) - 1;

// === impl Group ===

impl Group {
    pub(super) fn new(cpus: CpuSet) -> Self {
        Self {
            inode: 0,
            shares: DEFAULT_SHARES,
            idle: false,
            quota: None,
            period: 100_000,
            burst: 0,
            bvt: 0,
            cpus,
            memory_limit: text::NO_LIMIT,
            memory_and_swap: text::NO_LIMIT,
            memory_and_swap_used: CHARGED,
            memory_min: 0,
            memory_low: 0,
            memory_high: text::NO_LIMIT,
            page_cache: 0,
            small: SMALL
                .iter()
                .map(|(file, _, _, new)| (*file, *new))
                .collect(),
            pids: BTreeSet::new(),
            io: Io::default(),
            notes: BTreeMap::new(),
            is_open: false,
        }
    }

    pub(super) fn takes(&self, note: Note) -> bool {
        !(self.is_open && note.is_of_values())
    }

    /// A new group in this one, with its limit of page cache: `mem_cgroup_css_alloc` of newer kernels
    /// of Anolis. Older ones copy the switches alone.
    pub(super) fn below(&self) -> Self {
        let mut group = Self::new(CpuSet::new());
        group.page_cache = self.page_cache;
        for (file, number) in &self.small {
            if file.starts_with("memory.pagecache_limit.") {
                group.small.insert(*file, *number);
            }
        }
        group
    }

    /// What a file shows; `None` if there is no such file.
    pub(super) fn show(&self, generation: Generation, file: &str) -> Option<String> {
        let quota = self.quota.map(|quota| quota.to_string());
        let text = match (generation, file) {
            (Generation::V1, "cpu.shares") => self.shares.to_string(),
            (Generation::V2, "cpu.weight") => ((self.shares * 100 + 512) / 1024).to_string(),
            (Generation::V1, "cpu.cfs_quota_us") => quota.unwrap_or("-1".to_owned()),
            (Generation::V1, "cpu.cfs_period_us") => self.period.to_string(),
            (Generation::V2, "cpu.max") => {
                format!("{} {}", quota.unwrap_or("max".to_owned()), self.period)
            }
            (Generation::V1, "cpu.cfs_burst_us") | (Generation::V2, "cpu.max.burst") => {
                self.burst.to_string()
            }
            (_, "cpu.idle") => u8::from(self.idle).to_string(),
            (_, "cpu.bvt_warp_ns") => self.bvt.to_string(),
            (_, "cpuset.cpus") => self.cpus.to_string(),
            (Generation::V1, "memory.limit_in_bytes") => self.memory_limit.to_string(),
            (Generation::V1, "memory.memsw.limit_in_bytes") => self.memory_and_swap.to_string(),
            (Generation::V1, "memory.memsw.usage_in_bytes") => {
                self.memory_and_swap_used.to_string()
            }
            (Generation::V2, "memory.max") => text::bytes_or_max(self.memory_limit),
            (_, "memory.min") => text::bytes_or_max(self.memory_min),
            (_, "memory.low") => text::bytes_or_max(self.memory_low),
            (_, "memory.high") => text::bytes_or_max(self.memory_high),
            (_, "memory.pagecache_limit.size") => self.page_cache.to_string(),
            (_, file) if self.small.contains_key(file) => self.small[file].to_string(),
            (_, "cgroup.procs")
            | (Generation::V1, "tasks")
            | (Generation::V2, "cgroup.threads") => {
                return Some(self.pids.iter().map(|pid| format!("{pid}\n")).collect());
            }
            _ => return self.io.show(generation, file),
        };
        Some(text + "\n")
    }

    /// Takes what is written to a file, but for what other groups have to say about it. `cpus` is
    /// how many CPUs the machine has.
    pub(super) fn store(&mut self, file: &str, written: &str, cpus: u32) -> Result<(), Errno> {
        match file {
            "cpu.shares" => {
                let shares = text::unsigned(written)?;
                self.set_shares(shares)
            }
            "cpu.weight" => match text::unsigned(written)? {
                weight @ 1..=10_000 => self.set_shares((weight * 1024 + 50) / 100),
                _ => Err(Errno::RANGE),
            },
            "cpu.cfs_quota_us" => {
                let quota = u64::try_from(text::signed(written)?).ok();
                self.set_bandwidth(quota, self.period, self.burst)
            }
            "cpu.cfs_period_us" => {
                let period = text::unsigned(written)?;
                self.set_bandwidth(self.quota, period, self.burst)
            }
            "cpu.cfs_burst_us" | "cpu.max.burst" => {
                let burst = text::unsigned(written)?;
                self.set_bandwidth(self.quota, self.period, burst)
            }
            "cpu.max" => {
                let (quota, period) = text::quota_and_period(written)?;
                self.set_bandwidth(quota, period.unwrap_or(self.period), self.burst)
            }
            "cpu.idle" => match text::signed(written)? {
                idle @ (0 | 1) => {
                    self.set_idle(idle == 1);
                    Ok(())
                }
                _ => Err(Errno::INVAL),
            },
            "cpu.bvt_warp_ns" => match text::signed(written)? {
                bvt @ -1..=2 => {
                    self.bvt = bvt;
                    Ok(())
                }
                _ => Err(Errno::INVAL),
            },
            "cpuset.cpus" => {
                self.cpus = text::cpus(written, cpus)?;
                Ok(())
            }
            file if file.starts_with("memory.") => self.store_memory(file, written),
            // A file that is only read.
            _ => Err(Errno::INVAL),
        }
    }

    fn store_memory(&mut self, file: &str, written: &str) -> Result<(), Errno> {
        let bytes = match file {
            "memory.limit_in_bytes" => {
                let limit = text::bytes(written, "-1")?;
                if limit > self.memory_and_swap {
                    return Err(Errno::INVAL);
                }
                if limit < CHARGED {
                    return Err(Errno::BUSY);
                }
                self.memory_limit = limit;
                return Ok(());
            }
            "memory.memsw.limit_in_bytes" => {
                let limit = text::bytes(written, "-1")?;
                if limit < self.memory_limit {
                    return Err(Errno::INVAL);
                }
                // What is in swap is not reclaimed.
                if limit < self.memory_and_swap_used {
                    return Err(Errno::BUSY);
                }
                self.memory_and_swap = limit;
                return Ok(());
            }
            // What does not fit is killed here, and the limit stands.
            "memory.max" => &mut self.memory_limit,
            "memory.min" => &mut self.memory_min,
            "memory.low" => &mut self.memory_low,
            "memory.high" => &mut self.memory_high,
            // No more than the limit, as its documentation has it.
            "memory.pagecache_limit.size" => {
                let size = text::bytes(written, "max")?;
                if size > self.memory_limit {
                    return Err(Errno::INVAL);
                }
                self.page_cache = size;
                return Ok(());
            }
            file => return self.set_small(file, written),
        };
        *bytes = text::bytes(written, "max")?;
        Ok(())
    }

    fn set_small(&mut self, file: &str, written: &str) -> Result<(), Errno> {
        let number = text::signed(written.trim())?;
        let row = SMALL.iter().find(|(name, ..)| *name == file);
        let (name, least, most, _) = row.ok_or(Errno::INVAL)?;
        if !(*least..=*most).contains(&number) {
            return Err(Errno::INVAL);
        }
        self.small.insert(name, number);
        Ok(())
    }

    fn set_shares(&mut self, shares: u64) -> Result<(), Errno> {
        if self.idle {
            return Err(Errno::INVAL);
        }
        self.shares = shares.clamp(MIN_SHARES, MAX_SHARES);
        Ok(())
    }

    /// The kernel forgets the shares of a group that becomes idle.
    fn set_idle(&mut self, idle: bool) {
        if idle != self.idle {
            self.shares = if idle { IDLE_SHARES } else { DEFAULT_SHARES };
        }
        self.idle = idle;
    }

    /// `tg_set_cfs_bandwidth`.
    fn set_bandwidth(&mut self, quota: Option<u64>, period: u64, burst: u64) -> Result<(), Errno> {
        let too_short = |micros: u64| micros < 1_000;
        let quota_is_wrong = quota.is_some_and(|quota| {
            too_short(quota)
                || quota > MAX_RUNTIME
                || burst > quota
                || burst.saturating_add(quota) > MAX_RUNTIME
        });
        if quota_is_wrong || too_short(period) || period > 1_000_000 {
            return Err(Errno::INVAL);
        }
        (self.quota, self.period, self.burst) = (quota, period, burst);
        Ok(())
    }

    /// The part of a CPU that the group may use, in 2²⁰ths; `None` is unlimited.
    pub(super) fn ratio(&self) -> Option<u64> {
        let quota = u128::from(self.quota?);
        let ratio = (quota << 20) / u128::from(self.period);
        Some(u64::try_from(ratio).unwrap_or(u64::MAX))
    }
}

//! The one table of control-group files: what each setting is called, how its text reads, and what
//! it takes, on cgroup v1 and v2.
//!
//! Values are compared after [`settle`], which turns a value into what the kernel will show for
//! it: two values that settle alike are one to the kernel. A new setting is one arm in each of the
//! functions below. The compiler names them, but for `comes_first` and `widened`.

use super::{Controller, Generation, WeightCurve};
use koord_model::{
    Bvt, CpuBurst, CpuPeriod, CpuQuota, CpuShares, CpuWeight, CpusetCpus, MAX_CPU, MemoryLimit,
    MemoryProtection, OomPriority, PageCacheSize, RangeError, Setting, Value, WmarkMinAdj,
    WmarkRatio, WmarkScale,
};

/// Where a setting lives.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct File {
    pub(super) controller: Controller,
    pub(super) generation: Generation,
    pub(super) name: &'static str,
}

/// What this node says about numbers.
#[derive(Clone, Copy, Debug)]
pub(super) struct Terms {
    /// How shares become weights.
    pub(super) curve: WeightCurve,
    /// Bytes of a page of memory: limits are counted in whole ones.
    pub(super) page: u64,
}

/// The threads of a group.
const THREADS: (&str, &str) = ("tasks", "cgroup.threads");

/// The processes of a group, in both.
pub(super) const PROCESSES: &str = "cgroup.procs";

/// A file name for each generation.
struct Names {
    v1: &'static str,
    v2: &'static str,
}

pub(super) fn controller(setting: Setting) -> Controller {
    match setting {
        Setting::CpuShares
        | Setting::CpuQuota
        | Setting::CpuBurst
        | Setting::CpuBvt
        | Setting::CpuIdle
        | Setting::CoreSched
        | Setting::Resctrl
        | Setting::OomScoreAdj
        | Setting::GpuMonitor
        | Setting::Gpu
        | Setting::Rdma
        | Setting::PodNetwork
        | Setting::NodeNetwork
        | Setting::PodQueue
        | Setting::NodeQueues
        | Setting::SchedSwitch => Controller::Cpu,
        Setting::CpusetCpus => Controller::Cpuset,
        Setting::MemoryLimit
        | Setting::MemoryMin
        | Setting::MemoryLow
        | Setting::MemoryHigh
        | Setting::MemoryWmarkRatio
        | Setting::MemoryWmarkScale
        | Setting::MemoryWmarkMinAdj
        | Setting::MemoryPriority
        | Setting::MemoryUsePriorityOom
        | Setting::MemoryOomGroup
        | Setting::MemoryPageCacheSize
        | Setting::MemoryPageCacheSync
        | Setting::MemoryPageCacheEnable => Controller::Memory,
        Setting::IoReadBps
        | Setting::IoWriteBps
        | Setting::IoReadIops
        | Setting::IoWriteIops
        | Setting::IoWeight
        | Setting::IoCostQos
        | Setting::IoCostModel => Controller::Io,
    }
}

fn names(setting: Setting) -> Names {
    let (v1, v2) = match setting {
        Setting::CpuShares => ("cpu.shares", "cpu.weight"),
        Setting::CpuQuota => ("cpu.cfs_quota_us", "cpu.max"),
        Setting::CpuBurst => ("cpu.cfs_burst_us", "cpu.max.burst"),
        Setting::CpusetCpus => ("cpuset.cpus", "cpuset.cpus"),
        Setting::MemoryLimit => ("memory.limit_in_bytes", "memory.max"),
        // Setting and file have one name, in both.
        Setting::MemoryMin
        | Setting::MemoryLow
        | Setting::MemoryHigh
        | Setting::MemoryWmarkRatio
        | Setting::MemoryWmarkScale
        | Setting::MemoryWmarkMinAdj
        | Setting::MemoryPriority
        | Setting::MemoryUsePriorityOom
        | Setting::MemoryOomGroup
        | Setting::MemoryPageCacheSize
        | Setting::MemoryPageCacheSync
        | Setting::MemoryPageCacheEnable
        | Setting::CpuBvt
        | Setting::CpuIdle => (setting.name(), setting.name()),
        Setting::IoReadBps | Setting::IoWriteBps | Setting::IoReadIops | Setting::IoWriteIops => {
            (setting.name(), "io.max")
        }
        Setting::IoWeight => (setting.name(), "io.weight"),
        Setting::IoCostQos => (setting.name(), "io.cost.qos"),
        Setting::IoCostModel => (setting.name(), "io.cost.model"),
        // These say whose it is, and nothing of what it is.
        Setting::CoreSched
        | Setting::Resctrl
        | Setting::GpuMonitor
        | Setting::Gpu
        | Setting::Rdma
        | Setting::PodNetwork
        | Setting::NodeNetwork
        | Setting::PodQueue
        | Setting::NodeQueues
        | Setting::SchedSwitch => THREADS,
        Setting::OomScoreAdj => (PROCESSES, PROCESSES),
    };
    Names { v1, v2 }
}

pub(super) fn file(setting: Setting, generation: Generation) -> File {
    let Names { v1, v2 } = names(setting);
    File {
        controller: controller(setting),
        generation,
        name: match generation {
            Generation::V1 => v1,
            Generation::V2 => v2,
        },
    }
}

/// The file that says how long a period is, and which of its words does.
pub(super) fn period_file(generation: Generation) -> (&'static str, usize) {
    match generation {
        Generation::V1 => ("cpu.cfs_period_us", 0),
        Generation::V2 => ("cpu.max", 1),
    }
}

/// The text that gives a group periods of another length, where its file holds `held`.
pub(super) fn render_period(period: CpuPeriod, generation: Generation, held: &str) -> String {
    match generation {
        Generation::V1 => period.to_string(),
        Generation::V2 => {
            let quota = held.split_whitespace().next().unwrap_or("max");
            format!("{quota} {period}")
        }
    }
}

/// The file that lists the threads of a group, without those of the groups below it.
pub(super) fn threads_file(generation: Generation) -> &'static str {
    match generation {
        Generation::V1 => THREADS.0,
        Generation::V2 => THREADS.1,
    }
}

/// The file that says which CPUs a group really has.
pub(super) fn usable_cpus_file(generation: Generation) -> &'static str {
    match generation {
        Generation::V1 => "cpuset.cpus",
        Generation::V2 => "cpuset.cpus.effective",
    }
}

/// Reads what the kernel shows; `None` if the text is not in the format of the file.
pub(super) fn parse(
    setting: Setting,
    generation: Generation,
    text: &str,
    terms: Terms,
) -> Option<Value> {
    let text = text.trim();
    let number = || text.parse::<i64>().ok();
    Some(match (setting, generation) {
        (Setting::CpuShares, Generation::V1) => CpuShares::new(text.parse().ok()?).ok()?.into(),
        (Setting::CpuShares, Generation::V2) => weighed(text, terms.curve)?.into(),
        (Setting::CpuQuota, Generation::V1) => quota(text.parse::<i64>().ok()?).into(),
        (Setting::CpuQuota, Generation::V2) => quota_before_period(text)?.into(),
        (Setting::CpuBurst, _) => CpuBurst::from_micros(text.parse().ok()?).ok()?.into(),
        (Setting::CpusetCpus, Generation::V2) if text.is_empty() => CpusetCpus::All.into(),
        (Setting::CpusetCpus, _) => CpusetCpus::Only(text.parse().ok()?).into(),
        (Setting::MemoryLimit, Generation::V2) if text == "max" => MemoryLimit::Unlimited.into(),
        (Setting::MemoryLimit, _) => whole_pages(text.parse().ok()?, terms.page).into(),
        (Setting::MemoryMin, _) => Value::MemoryMin(protection(text, terms.page)?),
        (Setting::MemoryLow, _) => Value::MemoryLow(protection(text, terms.page)?),
        (Setting::MemoryHigh, _) if text == "max" => Value::MemoryHigh(MemoryLimit::Unlimited),
        (Setting::MemoryHigh, _) => Value::MemoryHigh(whole_pages(text.parse().ok()?, terms.page)),
        (Setting::MemoryWmarkRatio, _) => Value::MemoryWmarkRatio(WmarkRatio::new(number()?).ok()?),
        (Setting::MemoryWmarkScale, _) => Value::MemoryWmarkScale(WmarkScale::new(number()?).ok()?),
        (Setting::MemoryWmarkMinAdj, _) => {
            Value::MemoryWmarkMinAdj(WmarkMinAdj::new(number()?).ok()?)
        }
        (Setting::MemoryPriority, _) => Value::MemoryPriority(OomPriority::new(number()?).ok()?),
        (Setting::MemoryUsePriorityOom, _) => Value::MemoryUsePriorityOom(switch(text)?),
        (Setting::MemoryOomGroup, _) => Value::MemoryOomGroup(switch(text)?),
        (Setting::MemoryPageCacheSize, _) => {
            let size = PageCacheSize::new(number()?).ok()?;
            let whole = size.bytes() / terms.page * terms.page;
            Value::MemoryPageCacheSize(PageCacheSize::of_bytes(whole))
        }
        (Setting::MemoryPageCacheSync, _) => Value::MemoryPageCacheSync(switch(text)?),
        (Setting::MemoryPageCacheEnable, _) => Value::MemoryPageCacheEnable(switch(text)?),
        (Setting::CpuBvt, _) => Bvt::new(text.parse().ok()?).ok()?.into(),
        (Setting::CpuIdle, _) => Value::CpuIdle(switch(text)?),
        (
            Setting::CoreSched
            | Setting::Resctrl
            | Setting::OomScoreAdj
            | Setting::GpuMonitor
            | Setting::Gpu
            | Setting::Rdma
            | Setting::PodNetwork
            | Setting::NodeNetwork
            | Setting::PodQueue
            | Setting::NodeQueues
            | Setting::SchedSwitch,
            _,
        ) => return None,
        // Are read and written device by device.
        (
            Setting::IoReadBps
            | Setting::IoWriteBps
            | Setting::IoReadIops
            | Setting::IoWriteIops
            | Setting::IoWeight
            | Setting::IoCostQos
            | Setting::IoCostModel,
            _,
        ) => return None,
    })
}

/// The shares that a weight stands for.
fn weighed(text: &str, curve: WeightCurve) -> Option<CpuShares> {
    let weight = CpuWeight::new(text.parse().ok()?).ok()?;
    Some(curve.shares(weight))
}

fn quota_before_period(text: &str) -> Option<CpuQuota> {
    Some(match text.split_whitespace().next()? {
        "max" => CpuQuota::Unlimited,
        micros => CpuQuota::Micros(micros.parse().ok()?),
    })
}

/// The text that makes the kernel hold a settled value.
pub(super) fn render(value: &Value, generation: Generation, terms: Terms) -> String {
    let unlimited = match generation {
        Generation::V1 => "-1",
        Generation::V2 => "max",
    };
    match value {
        Value::CpuShares(shares) => match generation {
            Generation::V1 => shares.to_string(),
            Generation::V2 => terms.curve.weight(*shares).to_string(),
        },
        // On v2 the first number alone leaves the period as it is.
        Value::CpuQuota(CpuQuota::Micros(micros)) => micros.to_string(),
        Value::CpuQuota(CpuQuota::Unlimited) => unlimited.to_owned(),
        Value::CpuBurst(burst) => burst.to_string(),
        Value::CpusetCpus(CpusetCpus::Only(cpus)) => cpus.to_string(),
        // A write of no bytes at all does not reach the file.
        Value::CpusetCpus(CpusetCpus::All) => "\n".to_owned(),
        Value::MemoryLimit(MemoryLimit::Bytes(bytes)) => bytes.to_string(),
        Value::MemoryLimit(MemoryLimit::Unlimited) => unlimited.to_owned(),
        Value::MemoryMin(MemoryProtection::Bytes(bytes))
        | Value::MemoryLow(MemoryProtection::Bytes(bytes))
        | Value::MemoryHigh(MemoryLimit::Bytes(bytes)) => bytes.to_string(),
        // Kernels that have these files on v1 took them over from v2 as they are.
        Value::MemoryMin(MemoryProtection::All)
        | Value::MemoryLow(MemoryProtection::All)
        | Value::MemoryHigh(MemoryLimit::Unlimited) => "max".to_owned(),
        Value::MemoryWmarkRatio(ratio) => ratio.to_string(),
        Value::MemoryWmarkScale(scale) => scale.to_string(),
        Value::MemoryWmarkMinAdj(adj) => adj.to_string(),
        Value::MemoryPriority(priority) => priority.to_string(),
        Value::CpuBvt(bvt) => bvt.to_string(),
        Value::MemoryPageCacheSize(size) => size.to_string(),
        Value::CpuIdle(on)
        | Value::MemoryUsePriorityOom(on)
        | Value::MemoryOomGroup(on)
        | Value::MemoryPageCacheSync(on)
        | Value::MemoryPageCacheEnable(on) => u8::from(*on).to_string(),
        // Is read as no value, and so never written.
        Value::CoreSched(_)
        | Value::Resctrl(_)
        | Value::OomScoreAdj(_)
        | Value::GpuMonitor(_)
        | Value::Gpu(_)
        | Value::Rdma(_)
        | Value::PodNetwork(_)
        | Value::NodeNetwork(_)
        | Value::PodQueue(_)
        | Value::NodeQueues(_)
        | Value::SchedSwitch(_)
        | Value::IoReadBps(_)
        | Value::IoWriteBps(_)
        | Value::IoReadIops(_)
        | Value::IoWriteIops(_)
        | Value::IoWeight(_)
        | Value::IoCostQos(_)
        | Value::IoCostModel(_) => String::new(),
    }
}

/// What the kernel will show after `value` was written, or why it would not take it. All CPUs stay
/// "all" here: only the parent can say which they are.
pub(super) fn settle(
    value: &Value,
    generation: Generation,
    terms: Terms,
) -> Result<Value, RangeError> {
    let page = terms.page;
    Ok(match value {
        Value::CpuShares(shares) => match generation {
            Generation::V1 => (*shares).into(),
            Generation::V2 => terms.curve.shares(terms.curve.weight(*shares)).into(),
        },
        Value::CpuQuota(CpuQuota::Micros(micros)) => {
            let (min, max) = (CpuQuota::MIN_MICROS, CpuQuota::MAX_MICROS);
            check("quota in microseconds", *micros, min, max)?;
            value.clone()
        }
        Value::CpusetCpus(CpusetCpus::Only(cpus)) => {
            let count = u64::try_from(cpus.len()).expect("a count of CPUs is small");
            check("count of CPUs", count, 1, u64::from(MAX_CPU) + 1)?;
            value.clone()
        }
        Value::MemoryLimit(MemoryLimit::Bytes(bytes)) => {
            limit("memory limit in bytes", *bytes, page)?.into()
        }
        Value::MemoryHigh(MemoryLimit::Bytes(bytes)) => {
            Value::MemoryHigh(limit("memory.high in bytes", *bytes, page)?)
        }
        Value::MemoryMin(kept) => Value::MemoryMin(kept_pages(*kept, page)),
        Value::MemoryLow(kept) => Value::MemoryLow(kept_pages(*kept, page)),
        Value::MemoryPageCacheSize(size) => Value::MemoryPageCacheSize(cached_pages(*size, page)),
        Value::CpuQuota(CpuQuota::Unlimited)
        | Value::CpuBurst(_)
        | Value::CpusetCpus(CpusetCpus::All)
        | Value::MemoryLimit(MemoryLimit::Unlimited)
        | Value::MemoryHigh(MemoryLimit::Unlimited)
        | Value::MemoryWmarkRatio(_)
        | Value::MemoryWmarkScale(_)
        | Value::MemoryWmarkMinAdj(_)
        | Value::MemoryPriority(_)
        | Value::MemoryUsePriorityOom(_)
        | Value::MemoryOomGroup(_)
        | Value::MemoryPageCacheSync(_)
        | Value::MemoryPageCacheEnable(_)
        | Value::CpuBvt(_)
        | Value::CpuIdle(_)
        | Value::CoreSched(_)
        | Value::Resctrl(_)
        | Value::OomScoreAdj(_)
        | Value::GpuMonitor(_)
        | Value::Gpu(_)
        | Value::Rdma(_)
        | Value::PodNetwork(_)
        | Value::NodeNetwork(_)
        | Value::PodQueue(_)
        | Value::NodeQueues(_)
        | Value::SchedSwitch(_)
        | Value::IoReadBps(_)
        | Value::IoWriteBps(_)
        | Value::IoReadIops(_)
        | Value::IoWriteIops(_)
        | Value::IoWeight(_)
        | Value::IoCostQos(_)
        | Value::IoCostModel(_) => value.clone(),
    })
}

/// Whether a change comes before the others of its group: the kernel refuses the shares of an idle
/// group, and a limit of page cache that ends is not to count with another size on its way.
pub(super) fn comes_first(value: &Value) -> bool {
    matches!(
        value,
        Value::CpuIdle(_) | Value::MemoryPageCacheEnable(false)
    )
}

/// The value to write first, from the top down, so that the children of this group may follow;
/// `None` if they may already, and the new value has to wait until they have.
pub(super) fn widened(old: &Value, new: &Value) -> Option<Value> {
    match (old, new) {
        (Value::CpuQuota(old), Value::CpuQuota(wanted)) => (wanted > old).then(|| new.clone()),
        (Value::MemoryLimit(old), Value::MemoryLimit(wanted))
        | (Value::MemoryHigh(old), Value::MemoryHigh(wanted)) => {
            (wanted > old).then(|| new.clone())
        }
        // What is kept for a group counts as far as the groups above it keep as much.
        (Value::MemoryMin(old), Value::MemoryMin(wanted))
        | (Value::MemoryLow(old), Value::MemoryLow(wanted)) => (wanted > old).then(|| new.clone()),
        (Value::CpusetCpus(CpusetCpus::Only(old)), Value::CpusetCpus(CpusetCpus::Only(wanted))) => {
            (!wanted.is_subset(old)).then(|| CpusetCpus::Only(old.union(wanted)).into())
        }
        // Before a quota becomes less than it is, and after one becomes more.
        (Value::CpuBurst(old), Value::CpuBurst(wanted)) => (wanted < old).then(|| new.clone()),
        // A limit of page cache is turned on once its size is there.
        (Value::CpusetCpus(CpusetCpus::All), _)
        | (Value::CpuIdle(_), Value::CpuIdle(true))
        | (Value::MemoryPageCacheEnable(_), Value::MemoryPageCacheEnable(true)) => None,
        // Neither parent nor child limits the others.
        _ => Some(new.clone()),
    }
}

fn quota(micros: i64) -> CpuQuota {
    u64::try_from(micros).map_or(CpuQuota::Unlimited, CpuQuota::Micros)
}

fn switch(text: &str) -> Option<bool> {
    match text {
        "0" => Some(false),
        "1" => Some(true),
        _ => None,
    }
}

fn protection(text: &str, page: u64) -> Option<MemoryProtection> {
    Some(match text {
        "max" => MemoryProtection::All,
        bytes => kept_pages(MemoryProtection::Bytes(bytes.parse().ok()?), page),
    })
}

fn kept_pages(kept: MemoryProtection, page: u64) -> MemoryProtection {
    let MemoryProtection::Bytes(bytes) = kept else {
        return kept;
    };
    match whole_pages(bytes, page) {
        MemoryLimit::Bytes(bytes) => MemoryProtection::Bytes(bytes),
        MemoryLimit::Unlimited => MemoryProtection::All,
    }
}

/// Less than a page is one page: none at all would be no limit.
fn cached_pages(size: PageCacheSize, page: u64) -> PageCacheSize {
    match size.bytes() {
        0 => size,
        bytes => PageCacheSize::of_bytes((bytes / page * page).max(page)),
    }
}

/// A limit of a page or more, as the kernel will show it.
fn limit(what: &'static str, bytes: u64, page: u64) -> Result<MemoryLimit, RangeError> {
    check(what, bytes, page, u64::MAX)?;
    Ok(whole_pages(bytes, page))
}

/// The kernel counts memory in pages, up to the most that a signed number of bytes can say.
fn whole_pages(bytes: u64, page: u64) -> MemoryLimit {
    let most = u64::try_from(i64::MAX).expect("positive") / page * page;
    match bytes / page * page {
        bytes if bytes >= most => MemoryLimit::Unlimited,
        bytes => MemoryLimit::Bytes(bytes),
    }
}

fn check(what: &'static str, value: u64, min: u64, max: u64) -> Result<(), RangeError> {
    if (min..=max).contains(&value) {
        return Ok(());
    }
    Err(RangeError {
        what,
        value: value.into(),
        min: min.into(),
        max: max.into(),
    })
}

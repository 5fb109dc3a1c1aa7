//! Quotas and bursts in the period of their directory: decisions count them for 100 ms, and a kubelet may
//! have been told another length.

use koord_kernel::cgroup::{Applied, Before, Cgroups, Change, Written};
use koord_model::{CgroupPath, CpuBurst, CpuPeriod, CpuQuota, Setting, Value};

/// A value that is about to replace another.
#[derive(Debug)]
pub(super) struct Replacement {
    pub(super) at: CgroupPath,
    /// As it will be in force, counted for 100 ms: what was decided may not go as far.
    pub(super) value: Value,
    pub(super) before: Before,
    /// As in [`Change`].
    pub(super) gives_back: bool,
    pub(super) of_container: bool,
}

/// The length of the period of a directory, before its quota is written and since.
#[derive(Clone, Copy)]
struct Periods {
    before: CpuPeriod,
    now: CpuPeriod,
}

// === impl Replacement ===

impl Replacement {
    /// Whether what it replaces is this value of ours. Quotas and bursts are held against what was there and
    /// not against the file: by now its period may be another.
    pub(super) fn replaces(&self, cgroups: &Cgroups, ours: &Value) -> bool {
        match &self.before {
            Before::Value(before @ (Value::CpuQuota(_) | Value::CpuBurst(_))) => before == ours,
            Before::Value(_) | Before::Awake { .. } => cgroups.holds(&self.at, ours) == Some(true),
        }
    }
}

/// Whether a value is in force, a quota in whatever period and as systemd has written it; `None` if that
/// cannot be found out now.
pub(super) fn holds(cgroups: &Cgroups, at: &CgroupPath, value: &Value) -> Option<bool> {
    let scaled = match value {
        Value::CpuQuota(quota) => {
            let period = cgroups.period(at).unwrap_or(CpuPeriod::DEFAULT);
            let quotas = [Some(*quota), of_systemd(at, *quota)];
            // One that has no such share in this period is not there.
            let scaled = quotas.map(|quota| quota?.in_period(period));
            let mut held = scaled.into_iter().flatten();
            return held.try_fold(false, |held, quota| {
                Some(held || cgroups.holds(at, &quota.into())?)
            });
        }
        // As far as it went with the quota.
        Value::CpuBurst(burst) => possible(cgroups, *burst, at, &[]).into(),
        other => other.clone(),
    };
    cgroups.holds(at, &scaled)
}

/// What systemd makes of a quota that a runtime tells it of a container's scope, at the start or whenever
/// it is reloaded: it counts in whole percents of a CPU, rounded up.
fn of_systemd(at: &CgroupPath, quota: CpuQuota) -> Option<CpuQuota> {
    match quota {
        CpuQuota::Micros(micros) if at.is_scope() => {
            let percent = u64::from(CpuPeriod::DEFAULT.micros()) / 100;
            Some(CpuQuota::Micros(micros.checked_next_multiple_of(percent)?))
        }
        CpuQuota::Micros(_) | CpuQuota::Unlimited => None,
    }
}

/// Applies changes whose quotas and bursts are for periods of 100 ms. Answers count them the same way. Tells
/// each change that it `begins` with, as often as it returns to it, and of each, by its place, what it
/// replaces.
pub(super) fn apply(
    cgroups: &Cgroups,
    changes: &mut [Change],
    begins: impl Fn(&Change),
    mut replaces: impl FnMut(usize, &Replacement),
) -> Vec<Applied> {
    let periods = scale(cgroups, changes, &begins);
    let mut applied = cgroups.apply_telling(changes, begins, |change, written| {
        let Some(index) = changes.iter().position(|it| it == change) else {
            return;
        };
        let before = match written {
            Written::Changed { old } => {
                Before::Value(counted(old, periods[index].map(|it| it.before)))
            }
            Written::Idled { shares } => Before::Awake {
                shares: shares.clone(),
            },
            Written::Adjusted | Written::Equal | Written::Masked => return,
        };
        let replacement = Replacement {
            at: change.at.clone(),
            value: counted(&change.value, periods[index].map(|it| it.now)),
            before,
            gives_back: change.gives_back,
            of_container: change.of_container,
        };
        replaces(index, &replacement);
    });
    for ((change, applied), periods) in changes.iter().zip(&mut applied).zip(&periods) {
        let Some(Periods { before, now }) = *periods else {
            continue;
        };
        match (applied, &change.value) {
            (Ok(Written::Changed { old }), _) => *old = counted(old, Some(before)),
            // The number is the same, the share is not.
            (applied @ Ok(Written::Equal), Value::CpuQuota(_)) if before != now => {
                let old = counted(&change.value, Some(before));
                *applied = Ok(Written::Changed { old });
            }
            // The number that is there belongs to the period that was.
            (Err(_), Value::CpuQuota(_)) if before != now => {
                cgroups.set_period(&change.at, before);
            }
            _ => {}
        }
    }
    applied
}

/// Has quotas and bursts be for the periods of their directories. Those of each; none of other settings.
fn scale(
    cgroups: &Cgroups,
    changes: &mut [Change],
    begins: impl Fn(&Change),
) -> Vec<Option<Periods>> {
    let mut periods = Vec::with_capacity(changes.len());
    for change in &mut *changes {
        begins(change);
        periods.push(in_period(cgroups, change));
    }
    for index in 0..changes.len() {
        let Change { at, value, .. } = &changes[index];
        if let Value::CpuBurst(burst) = *value {
            let beside = changes.iter().zip(&periods);
            let of_quota = beside
                .filter(|(it, _)| it.at == *at)
                .find_map(|(_, it)| *it);
            let now = || cgroups.period(at).unwrap_or(CpuPeriod::DEFAULT);
            let unchanged = || Periods {
                before: now(),
                now: now(),
            };
            periods[index] = Some(of_quota.unwrap_or_else(unchanged));
            changes[index].value = possible(cgroups, burst, at, changes).into();
        }
    }
    periods
}

/// A value of a period of this length in one of 100 ms.
fn counted(value: &Value, period: Option<CpuPeriod>) -> Value {
    match (value, period) {
        (Value::CpuQuota(quota), Some(period)) => quota.of_period(period).into(),
        (Value::CpuBurst(burst), Some(period)) => burst.of_period(period).into(),
        (other, _) => other.clone(),
    }
}

/// Scales a quota to the period of its directory; `None` if this is no quota. A share that is too
/// small for that period gets one of 100 ms; where the kernel refuses that, because a group below
/// would have a greater share, it gets the least that the kernel takes.
fn in_period(cgroups: &Cgroups, change: &mut Change) -> Option<Periods> {
    let Value::CpuQuota(quota) = &mut change.value else {
        return None;
    };
    let before = cgroups.period(&change.at).unwrap_or(CpuPeriod::DEFAULT);
    let mut now = before;
    match quota.in_period(before) {
        Some(scaled) => *quota = scaled,
        None if cgroups.set_period(&change.at, CpuPeriod::DEFAULT) => now = CpuPeriod::DEFAULT,
        None => *quota = CpuQuota::Micros(CpuQuota::MIN_MICROS),
    }
    Some(Periods { before, now })
}

/// A burst in the period of its directory, as far as it goes with the quota that the directory will
/// have: the kernel refuses more, and the kubelet may have given a pod less than its containers have
/// together.
fn possible(cgroups: &Cgroups, burst: CpuBurst, at: &CgroupPath, changes: &[Change]) -> CpuBurst {
    let of_directory = changes.iter().filter(|change| change.at == *at);
    let mut decided = of_directory.filter_map(|change| match change.value {
        Value::CpuQuota(quota) => Some(quota),
        _ => None,
    });
    let held = || match cgroups.read(at, Setting::CpuQuota) {
        Ok(Value::CpuQuota(quota)) => quota,
        // Whatever is wrong is told by the write.
        _ => CpuQuota::Unlimited,
    };
    let quota = decided.next().unwrap_or_else(held);
    let period = cgroups.period(at).unwrap_or(CpuPeriod::DEFAULT);
    burst.in_period(period).within(quota)
}

//! The settings that fronts tell a runtime, and what of them is in a request or in a spec.

use super::asked;
use koord_hooks::Requested;
use koord_model::{CpusetCpus, Setting, Value};

/// The settings of which fronts tell a runtime.
pub(crate) const SAID: [Setting; 5] = [
    Setting::CpuShares,
    Setting::CpuQuota,
    Setting::MemoryLimit,
    Setting::CpusetCpus,
    Setting::OomScoreAdj,
];

/// Whether a spec has this value of ours, as calls tell it.
pub(crate) fn shows(spec: &Requested, ours: &Value) -> bool {
    match ours {
        Value::CpuQuota(quota) => {
            let scaled = quota.in_period(spec.period());
            scaled.is_some() && scaled == spec.cpu_quota
                || asked(spec, Setting::CpuQuota).as_ref() == Some(ours)
        }
        // No more of them than the pod has.
        Value::CpusetCpus(CpusetCpus::Only(cpus)) => {
            let shown = spec.cpuset_cpus.as_ref();
            shown.is_some_and(|shown| shown.is_subset(cpus))
        }
        _ => asked(spec, ours.setting()).as_ref() == Some(ours),
    }
}

/// A request as if it did not ask for this setting.
pub(crate) fn leave_out(requested: &mut Requested, setting: Setting) {
    match setting {
        Setting::CpuShares => requested.cpu_shares = None,
        Setting::CpuQuota => (requested.cpu_quota, requested.cpu_period) = (None, None),
        Setting::MemoryLimit => requested.memory_limit = None,
        Setting::CpusetCpus => requested.cpuset_cpus = None,
        Setting::OomScoreAdj => requested.oom_score_adj = None,
        // No front says these.
        _ => {}
    }
}

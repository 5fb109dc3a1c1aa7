//! What is left as it is for as long as the source of pods may have more to say.
//!
//! A process before us has heard it, and what that has set may be what is right.

use crate::{hub::Hub, ledger::Pod};
use koord_kernel::cgroup::Change;
use koord_model::{Setting, Value};

/// Whether a change of a tier is to be made by what is known so far: before the first list none of what its
/// pods have together, and until the source was heard none that keeps less for them than there is.
pub(super) fn lets_tier(hub: &Hub, change: &Change) -> bool {
    let is_known = !hub.awaits_pods();
    !is_summed(change.value.setting()) || hub.is_whole() && (is_known || grows(hub, change))
}

/// Whether tiers have of this what their pods have together.
pub(super) fn is_summed(setting: Setting) -> bool {
    matches!(setting, Setting::MemoryMin | Setting::MemoryLow)
}

/// Whether a change is to be made of a pod: none that has memory reclaimed by what may be old news.
pub(super) fn lets(hub: &Hub, pod: &Pod, change: &Change) -> bool {
    let setting = change.value.setting();
    let is_bound = matches!(setting, Setting::MemoryLimit | Setting::MemoryHigh);
    !is_bound || !hub.is_unheard(pod) || grows(hub, change)
}

/// False also if there is no telling.
fn grows(hub: &Hub, change: &Change) -> bool {
    let cgroups = hub.writer().cgroups();
    match (
        &change.value,
        cgroups.read(&change.at, change.value.setting()),
    ) {
        (Value::MemoryMin(wanted), Ok(Value::MemoryMin(there)))
        | (Value::MemoryLow(wanted), Ok(Value::MemoryLow(there))) => *wanted > there,
        (Value::MemoryLimit(wanted), Ok(Value::MemoryLimit(there)))
        | (Value::MemoryHigh(wanted), Ok(Value::MemoryHigh(there))) => *wanted > there,
        _ => false,
    }
}

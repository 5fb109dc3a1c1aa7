//! What tiers have of what their pods have together: the sum is as right as what is known of all pods.

use crate::hub::Hub;
use koord_kernel::cgroup::Change;
use koord_model::{Setting, Value};

/// Whether a change of a tier is to be made by what is known so far: before the first list none of a sum, and
/// until the source of pods was heard none that keeps less for them than there is.
pub(super) fn lets(hub: &Hub, change: &Change) -> bool {
    let is_sum = matches!(
        change.value.setting(),
        Setting::MemoryMin | Setting::MemoryLow
    );
    !is_sum || hub.is_whole() && (!hub.awaits_pods() || raises(hub, change))
}

fn raises(hub: &Hub, change: &Change) -> bool {
    let cgroups = hub.writer().cgroups();
    match (
        &change.value,
        cgroups.read(&change.at, change.value.setting()),
    ) {
        (Value::MemoryMin(wanted), Ok(Value::MemoryMin(there)))
        | (Value::MemoryLow(wanted), Ok(Value::MemoryLow(there))) => wanted > &there,
        _ => false,
    }
}

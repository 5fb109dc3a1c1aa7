//! What is decided of the node as a whole, and put in force for all of it together.

use crate::{
    hub::Hub,
    ledger::{Applied, Target},
};
use koord_model::{Setting, Value};

/// What there is to be of a setting of the root.
pub(super) enum Standing {
    /// Whatever was there before: nobody knows any better, or somebody else sees to it.
    AsItIs,
    Nothing,
    Decided(Value),
}

// === impl Standing ===

impl Standing {
    pub(super) fn of(hub: &Hub, setting: Setting) -> Self {
        let (policy, ledger) = (hub.policy(), hub.ledger().borrow());
        let entries = ledger.node.iter().flat_map(|group| group.target.entries());
        let mut values = entries.map(|entry| &entry.desired);
        let value = values.find(|value| value.setting() == setting);
        let chain = policy.chain();
        let decides = chain.settings().contains(&setting);
        let is_unknown = decides && policy.node().policy.slo.is_none();
        match value {
            Some(value) => Self::Decided(value.clone()),
            None if is_unknown || chain.rests(setting) => Self::AsItIs,
            None => Self::Nothing,
        }
    }
}

/// Notes what became of a setting wherever it is decided.
pub(super) fn note<'a>(
    hub: &Hub,
    targets: impl Iterator<Item = &'a mut Target>,
    setting: Setting,
    result: &Applied,
) {
    for entry in targets.filter_map(|target| target.entry_mut(setting)) {
        hub.metrics().kernel_setting(setting, result);
        entry.applied = result.clone();
    }
}

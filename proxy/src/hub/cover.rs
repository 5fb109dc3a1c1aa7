//! What is kept for pods is kept for the tiers that they are in.
//!
//! The kernel keeps memory for a group as far as each group above it has it kept too. So what is
//! decided for the directories of pods, their tier needs together, and the root of all pods needs
//! it for all three. That is no decision of its own: it is told as that of the hook whose it is.

use crate::ledger::{GIVEN_BACK, Ledger, Pod, Target};
use koord_hooks::{Adjustment, NodeAdjustment, NodeMerged};
use koord_model::{KubeQos, MemoryProtection, Value};
use std::collections::{BTreeMap, BTreeSet};

/// What is kept for one directory.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Kept {
    min: Option<MemoryProtection>,
    low: Option<MemoryProtection>,
    /// The hook that wants it so.
    hook: Option<&'static str>,
}

/// Adds to what is decided for tiers what the pods in them have.
pub(super) fn add(merged: &mut NodeMerged, ledger: &Ledger) {
    let mut tiers: BTreeMap<KubeQos, Kept> = BTreeMap::new();
    for Pod {
        view, own, ready, ..
    } in ledger.pods()
    {
        let kept = Kept::by(own);
        if !ready || own.at.is_none() || kept == Kept::default() {
            continue;
        }
        // The tier of guaranteed pods is the root of all.
        for tier in BTreeSet::from([KubeQos::Guaranteed, view.kube_qos]) {
            let sum = tiers.entry(tier).or_default();
            *sum = sum.and(kept);
        }
    }
    for (tier, Kept { min, low, hook }) in tiers {
        let adjustment = Adjustment {
            memory_min: min,
            memory_low: low,
            ..Adjustment::default()
        };
        let tiers = [(tier, adjustment)].into();
        let adjustment = NodeAdjustment {
            tiers,
            ..NodeAdjustment::default()
        };
        if let Some(hook) = hook {
            // Where a hook has decided about the tier itself, that stands.
            merged.merge(hook, adjustment).ok();
        }
    }
}

// === impl Kept ===

impl Kept {
    pub(super) fn by(target: &Target) -> Self {
        let mut kept = Self::default();
        for entry in target.entries().iter().filter(|it| it.owner != GIVEN_BACK) {
            match entry.desired {
                Value::MemoryMin(min) => kept.min = Some(min),
                Value::MemoryLow(low) => kept.low = Some(low),
                _ => continue,
            }
            kept.hook = Some(entry.owner);
        }
        kept
    }

    fn and(self, other: Self) -> Self {
        let sum =
            |one: Option<MemoryProtection>, other: Option<MemoryProtection>| match (one, other) {
                (Some(one), Some(other)) => Some(one.and(other)),
                (one, other) => one.or(other),
            };
        Self {
            min: sum(self.min, other.min),
            low: sum(self.low, other.low),
            hook: self.hook.or(other.hook),
        }
    }
}

#[cfg(test)]
mod tests;

//! Joins the adjustments of all hooks, and knows for every value who set it.
//!
//! Two hooks that set one field is an error that names both, unless the later one declared that
//! it overrides. An adjustment is merged whole or not at all: half of a decision is none.

use crate::adjustment::{Adjustment, NodeAdjustment};
use koord_model::{CgroupPath, KubeQos, Setting, Value};
use std::{
    collections::{BTreeMap, BTreeSet},
    mem,
};
use thiserror::Error;

/// What all hooks together want for one cgroup.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Merged {
    // Sorted by setting; few enough that a slice beats every map.
    entries: Vec<Entry>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
struct Entry {
    value: Value,
    hook: &'static str,
    overridden: Vec<&'static str>,
}

/// Who set a value.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Owner<'a> {
    pub hook: &'static str,
    /// Hooks whose value this one replaced, earliest first.
    pub overridden: &'a [&'static str],
}

/// What all hooks together want for the node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMerged {
    pub root: Merged,
    pub tiers: BTreeMap<KubeQos, Merged>,
    pub host_applications: BTreeMap<CgroupPath, Merged>,
}

/// Two hooks want one setting.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{hook} and {with} both set {setting}")]
pub struct MergeError {
    pub setting: Setting,
    /// The later hook, whose adjustment was dropped.
    pub hook: &'static str,
    /// The earlier hook, which keeps the setting.
    pub with: &'static str,
}

// === impl Merged ===

impl Merged {
    /// The values with their owners, in the order of [`Setting::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (&Value, Owner<'_>)> {
        self.entries.iter().map(|entry| {
            let owner = Owner {
                hook: entry.hook,
                overridden: &entry.overridden,
            };
            (&entry.value, owner)
        })
    }

    pub fn get(&self, setting: Setting) -> Option<(&Value, Owner<'_>)> {
        self.iter().find(|(value, _)| value.setting() == setting)
    }

    /// Adds what `hook` wants, all of it or, on a conflict, nothing.
    ///
    /// # Errors
    ///
    /// When a setting has a value already, and the adjustment does not declare that it replaces it
    /// ([`Adjustment::overriding`]).
    pub fn merge(
        &mut self,
        hook: &'static str,
        mut adjustment: Adjustment,
    ) -> Result<(), MergeError> {
        // Every field is a setting and every setting has a field: `adjustment!` sees to it.
        let overrides = mem::take(&mut adjustment.overrides);
        let mut values = Vec::new();
        adjustment.hand_over(|value| values.push(value));
        for setting in values.iter().map(Value::setting) {
            if let Some((_, owner)) = self.get(setting)
                && !overrides.contains(&setting)
            {
                return Err(MergeError {
                    setting,
                    hook,
                    with: owner.hook,
                });
            }
        }
        for value in values {
            self.set(hook, value);
        }
        Ok(())
    }

    /// Forgets what was decided about these.
    pub(crate) fn leave(&mut self, settings: &BTreeSet<Setting>) {
        let is_left = |entry: &Entry| settings.contains(&entry.value.setting());
        self.entries.retain(|entry| !is_left(entry));
    }

    fn set(&mut self, hook: &'static str, value: Value) {
        let position = self
            .entries
            .binary_search_by_key(&value.setting(), |entry| entry.value.setting());
        match position {
            Ok(index) => {
                let entry = &mut self.entries[index];
                entry.overridden.push(entry.hook);
                entry.hook = hook;
                entry.value = value;
            }
            Err(index) => self.entries.insert(
                index,
                Entry {
                    value,
                    hook,
                    overridden: Vec::new(),
                },
            ),
        }
    }
}

// === impl NodeMerged ===

impl NodeMerged {
    /// Adds what `hook` wants, all of it or, on a conflict anywhere, nothing.
    ///
    /// # Errors
    ///
    /// When [`Merged::merge`] refuses what is wanted of the root, of a tier or of a host application.
    pub fn merge(
        &mut self,
        hook: &'static str,
        adjustment: NodeAdjustment,
    ) -> Result<(), MergeError> {
        let NodeAdjustment {
            root,
            tiers,
            host_applications,
        } = adjustment;
        // Decisions about the node are rare, so a copy is the simplest way to all or nothing.
        let mut next = self.clone();
        next.root.merge(hook, root)?;
        for (tier, adjustment) in tiers {
            next.tiers
                .entry(tier)
                .or_default()
                .merge(hook, adjustment)?;
        }
        for (path, adjustment) in host_applications {
            let merged = next.host_applications.entry(path).or_default();
            merged.merge(hook, adjustment)?;
        }
        *self = next;
        Ok(())
    }

    /// Forgets what was decided about these, everywhere.
    pub(crate) fn leave(&mut self, settings: &BTreeSet<Setting>) {
        let tiers = self.tiers.values_mut();
        let groups = tiers.chain(self.host_applications.values_mut());
        let all = groups.chain([&mut self.root]);
        all.for_each(|merged| merged.leave(settings));
    }
}

#[cfg(test)]
mod tests;

//! What control groups held before our first value, for whoever gives it back one day.
//!
//! The answer to a write tells it, but answers get lost: a call that was held is given up, a decision
//! changes while a write is under way, a pod's sandbox is made anew in the same directory. The kernel
//! then holds our value, and nobody could say any more what was there. So the thread that writes
//! remembers what it replaced, for as long as a value of ours is there.

use koord_kernel::cgroup::{Applied, Cgroups, Change, Written};
use koord_model::{CgroupPath, Setting, Value};
use std::collections::HashMap;

/// Groups that are remembered before it is looked for the first time which of them have gone.
const FEW: usize = 64;

/// What the first write of ours replaced, by group.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    groups: HashMap<CgroupPath, Vec<Written>>,
    /// How many were left when those that have gone were forgotten last.
    left: usize,
}

// === impl Replaced ===

impl Replaced {
    /// Hears what became of a change. What our first value replaced there.
    pub(super) fn hear(
        &mut self,
        cgroups: &Cgroups,
        change: &Change,
        applied: &Applied,
    ) -> Option<Written> {
        match applied {
            Ok(written @ (Written::Changed { .. } | Written::Idled { .. })) => {
                self.remember(cgroups, change, written);
            }
            Ok(Written::Equal | Written::Adjusted | Written::Masked) => {}
            Err(error) => {
                if error.is_gone() {
                    self.groups.remove(&change.at);
                }
                return None;
            }
        }
        let known = self.groups.get_mut(&change.at)?;
        let index = known.iter().position(|it| is_of(it, change))?;
        if old_of(&known[index]) != change.value {
            return Some(known[index].clone());
        }
        // It is there again.
        let first = known.swap_remove(index);
        if known.is_empty() {
            self.groups.remove(&change.at);
        }
        Some(first)
    }

    fn remember(&mut self, cgroups: &Cgroups, change: &Change, written: &Written) {
        if !self.groups.contains_key(&change.at) {
            self.forget_the_gone(cgroups);
        }
        let known = self.groups.entry(change.at.clone()).or_default();
        if !known.iter().any(|it| is_of(it, change)) {
            known.push(written.clone());
        }
    }

    /// Nobody tells that a group has gone. Looked at are all, but only when they have doubled.
    fn forget_the_gone(&mut self, cgroups: &Cgroups) {
        if self.groups.len() < 2 * self.left.max(FEW) {
            return;
        }
        // One of which that is unknown stays.
        self.groups
            .retain(|at, _| cgroups.exists(at).unwrap_or(true));
        self.left = self.groups.len();
    }
}

fn is_of(written: &Written, change: &Change) -> bool {
    let setting = match written {
        Written::Changed { old } => Some(old.setting()),
        Written::Idled { .. } => Some(Setting::CpuIdle),
        Written::Adjusted | Written::Equal | Written::Masked => None,
    };
    setting == Some(change.value.setting())
}

/// What was there; only of what is remembered.
fn old_of(written: &Written) -> Value {
    match written {
        Written::Changed { old } => old.clone(),
        _ => Value::CpuIdle(false),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_kernel::{cgroup::Generation, fake::FakeTree};
    use koord_model::CpuQuota;

    struct Groups {
        tree: FakeTree,
        cgroups: Cgroups,
        replaced: Replaced,
    }

    impl Groups {
        fn new() -> Self {
            let tree = FakeTree::new(Generation::V1, 2);
            Self {
                cgroups: Cgroups::over(tree.clone()),
                tree,
                replaced: Replaced::default(),
            }
        }

        /// Gives a group a value, and says what was there before us.
        fn give(&mut self, at: &str, value: Value) -> Option<Value> {
            let change = Change {
                at: CgroupPath::parse(at).unwrap(),
                value,
            };
            let applied = self.cgroups.apply(std::slice::from_ref(&change)).remove(0);
            let first = self.replaced.hear(&self.cgroups, &change, &applied);
            first.as_ref().map(old_of)
        }

        fn make(&self, at: &str) {
            self.tree.make(&CgroupPath::parse(at).unwrap());
        }
    }

    fn quota(micros: u64) -> Value {
        CpuQuota::Micros(micros).into()
    }

    #[test]
    fn what_the_first_value_replaced_is_known_until_it_is_there_again() {
        let mut groups = Groups::new();
        groups.make("kubepods/pod1");
        let unlimited = Some(Value::CpuQuota(CpuQuota::Unlimited));
        assert_eq!(groups.give("kubepods/pod1", quota(50_000)), unlimited);
        assert_eq!(groups.give("kubepods/pod1", quota(50_000)), unlimited);
        assert_eq!(groups.give("kubepods/pod1", quota(20_000)), unlimited);
        let back = CpuQuota::Unlimited.into();
        assert_eq!(groups.give("kubepods/pod1", back), unlimited);
        assert!(groups.replaced.groups.is_empty());
        let back = CpuQuota::Unlimited.into();
        assert_eq!(groups.give("kubepods/pod1", back), None);
    }

    #[test]
    fn shares_that_the_kernel_forgot_are_known_for_as_long_as_the_group_is_idle() {
        let mut groups = Groups::new();
        groups.make("kubepods/pod1");
        let at = CgroupPath::parse("kubepods/pod1").unwrap();
        let idle = Change {
            at,
            value: Value::CpuIdle(true),
        };
        for _ in 0..2 {
            let applied = groups.cgroups.apply(std::slice::from_ref(&idle)).remove(0);
            let first = groups.replaced.hear(&groups.cgroups, &idle, &applied);
            let Some(Written::Idled { shares }) = first else {
                panic!("{first:?}");
            };
            assert_eq!(shares.unwrap().to_string(), "1024");
        }
        groups.give("kubepods/pod1", Value::CpuIdle(false));
        assert!(groups.replaced.groups.is_empty());
    }

    #[test]
    fn groups_that_have_gone_are_forgotten() {
        let mut groups = Groups::new();
        groups.make("kubepods/pod1");
        groups.give("kubepods/pod1", quota(50_000));
        let gone = CgroupPath::parse("kubepods/pod1").unwrap();
        groups.tree.remove(&gone);
        assert_eq!(groups.give("kubepods/pod1", quota(50_000)), None);
        assert!(groups.replaced.groups.is_empty());

        for number in 0..1_000 {
            let at = format!("kubepods/pod{number}");
            groups.make(&at);
            groups.give(&at, quota(50_000));
            groups.tree.remove(&CgroupPath::parse(&at).unwrap());
        }
        assert!(groups.replaced.groups.len() <= 2 * FEW);
    }
}

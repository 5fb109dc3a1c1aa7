//! What control groups held before our first value, for whoever gives it back one day.
//!
//! The answer to a write tells it, but answers get lost: a call that was held is given up, a decision
//! changes while a write is under way, a pod's sandbox is made anew in the same directory. The kernel
//! then holds our value, and nobody could say any more what was there. So the thread that writes
//! remembers what it replaced, for as long as a value of ours is there.

use koord_kernel::cgroup::{Applied, Cgroups, Change, Written};
use koord_model::{CgroupPath, Setting, Value};
use std::{
    collections::{HashMap, VecDeque, hash_map::Entry},
    mem,
};

/// Groups that are looked at for each new one: with more than one, those that have gone get fewer.
const LOOKS: usize = 2;

/// What the first write of ours replaced.
#[derive(Debug, Default)]
pub(super) struct Replaced {
    /// By group; nothing of one whose values are all there again.
    groups: HashMap<CgroupPath, Vec<Written>>,
    /// Each of these groups, the one first that was not looked at for longest.
    in_turn: VecDeque<CgroupPath>,
    /// How many are to be looked at.
    due: usize,
}

// === impl Replaced ===

impl Replaced {
    /// Hears what became of a change. What our first value replaced there.
    pub(super) fn hear(&mut self, change: &Change, applied: &Applied) -> Option<Written> {
        match applied {
            Ok(written @ (Written::Changed { .. } | Written::Idled { .. })) => {
                self.remember(change, written);
            }
            Ok(Written::Equal | Written::Adjusted | Written::Masked) => {}
            Err(error) => {
                if let Some(known) = self.groups.get_mut(&change.at)
                    && error.is_gone()
                {
                    known.clear();
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
        Some(known.swap_remove(index))
    }

    fn remember(&mut self, change: &Change, written: &Written) {
        let known = match self.groups.entry(change.at.clone()) {
            Entry::Occupied(known) => known.into_mut(),
            Entry::Vacant(new) => {
                self.in_turn.push_back(change.at.clone());
                self.due += LOOKS;
                new.insert(Vec::new())
            }
        };
        if !known.iter().any(|it| is_of(it, change)) {
            known.push(written.clone());
        }
    }

    /// Nobody tells that a group has gone. So a few are looked at for each that is new: all at once, of
    /// which there may be thousands, would keep whoever comes next waiting.
    pub(super) fn forget_the_gone(&mut self, cgroups: &Cgroups) {
        let due = mem::take(&mut self.due).min(self.in_turn.len());
        for _ in 0..due {
            let Some(at) = self.in_turn.pop_front() else {
                return;
            };
            let is_used = self.groups.get(&at).is_some_and(|known| !known.is_empty());
            // One of which it cannot be found out stays.
            if is_used && cgroups.exists(&at).unwrap_or(true) {
                self.in_turn.push_back(at);
            } else {
                self.groups.remove(&at);
            }
        }
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
            let first = self.replaced.hear(&change, &applied);
            self.replaced.forget_the_gone(&self.cgroups);
            first.as_ref().map(old_of)
        }

        /// Whether anything is known of any group.
        fn knows(&self) -> bool {
            let mut groups = self.replaced.groups.values();
            groups.any(|known| !known.is_empty())
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
        assert!(!groups.knows());
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
            let first = groups.replaced.hear(&idle, &applied);
            let Some(Written::Idled { shares }) = first else {
                panic!("{first:?}");
            };
            assert_eq!(shares.unwrap().to_string(), "1024");
        }
        groups.give("kubepods/pod1", Value::CpuIdle(false));
        assert!(!groups.knows());
    }

    #[test]
    fn groups_that_have_gone_are_forgotten() {
        let mut groups = Groups::new();
        groups.make("kubepods/pod1");
        groups.give("kubepods/pod1", quota(50_000));
        let gone = CgroupPath::parse("kubepods/pod1").unwrap();
        groups.tree.remove(&gone);
        assert_eq!(groups.give("kubepods/pod1", quota(50_000)), None);
        assert!(!groups.knows());

        for number in 0..1_000 {
            let at = format!("kubepods/pod{number}");
            groups.make(&at);
            groups.give(&at, quota(50_000));
            groups.tree.remove(&CgroupPath::parse(&at).unwrap());
        }
        assert!(groups.replaced.groups.len() <= 2);
        assert!(groups.replaced.in_turn.len() <= 2);
    }

    #[test]
    fn a_group_whose_values_come_and_go_is_remembered_once() {
        let mut groups = Groups::new();
        groups.make("kubepods/pod1");
        for _ in 0..100 {
            groups.give("kubepods/pod1", quota(50_000));
            groups.give("kubepods/pod1", CpuQuota::Unlimited.into());
        }
        assert_eq!(groups.replaced.in_turn.len(), 1);
    }

    #[test]
    fn of_many_groups_that_have_gone_a_few_are_looked_at_with_each_new_one() {
        let mut groups = Groups::new();
        for number in 0..200 {
            let at = format!("kubepods/old{number}");
            groups.make(&at);
            groups.give(&at, quota(50_000));
        }
        groups.tree.remove(&CgroupPath::parse("kubepods").unwrap());
        let mut left = Vec::new();
        for number in 0..100 {
            let at = format!("kubepods/new{number}");
            groups.make(&at);
            groups.give(&at, quota(50_000));
            left.push(groups.replaced.groups.len());
        }
        // One is new, two have gone.
        assert_eq!((left[0], left[1], left[99]), (199, 198, 100));
    }
}

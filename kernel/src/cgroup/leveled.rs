//! Changes of several groups at once, in an order that the kernel takes.
//!
//! On cgroup v1 a child may not have more than its parent, at any moment. So values grow from the
//! top down in a first pass and shrink from the bottom up in a second; a set of CPUs that neither
//! grows nor shrinks is first the union of old and new, unless nothing around it changes. If the
//! state before and the state after keep the kernel's rules, so does every step between them,
//! whatever the order of the changes.

use super::{Applied, Cgroups, Generation, WriteError, Written, table, unread};
use crate::block::Look;
use koord_model::{CgroupPath, CpusetCpus, Setting, Value};
use std::collections::{HashMap, HashSet};

/// A value that a group is to have.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct Change {
    pub at: CgroupPath,
    pub value: Value,
    /// It is what was there before us, which nobody of ours decides any more.
    pub gives_back: bool,
    /// The group is a container's, which may be able to write to it.
    pub of_container: bool,
    /// The container's runtime may write a value of ours there one day, whatever is there now: it has one in
    /// its spec.
    pub may_return: bool,
}

/// Where a change is after the first pass.
enum Step {
    Done(Written),
    /// The kernel has `now`, and shall have `wanted`. Nothing was `written` yet if it is what it had.
    Waits {
        written: Option<Written>,
        now: Value,
        wanted: Value,
    },
}

/// The sets of CPUs that a batch is about. Each write of one has the kernel of cgroup v1 work out
/// anew which CPUs share load, so there is to be no more than one where one is enough.
struct CpuSets<'a> {
    named: HashSet<&'a CgroupPath>,
    /// The groups right above those.
    above: HashSet<CgroupPath>,
    /// What groups will have, as far as they have been looked at.
    wanted: HashMap<&'a CgroupPath, Value>,
}

// === impl Change ===

impl Change {
    /// Whether another has the same value come to the same place, for the same reason.
    pub fn is_same(&self, other: &Self) -> bool {
        let what = |it: &Self| (it.gives_back, it.of_container);
        what(self) == what(other) && self.at == other.at && self.value == other.value
    }
}

// === impl CpuSets ===

impl<'a> CpuSets<'a> {
    fn of(changes: &'a [Change]) -> Self {
        let sets = |it: &&Change| it.value.setting() == Setting::CpusetCpus;
        let named: HashSet<_> = changes.iter().filter(sets).map(|it| &it.at).collect();
        Self {
            above: named.iter().filter_map(|at| at.parent()).collect(),
            named,
            wanted: HashMap::new(),
        }
    }

    /// Whether the groups right above and right below a group keep what they have. No others bound
    /// what it may have.
    fn stay_around(&self, at: &CgroupPath) -> bool {
        let above = at.parent();
        !self.above.contains(at) && above.is_none_or(|above| !self.named.contains(&above))
    }
}

// === impl Cgroups ===

impl Cgroups {
    /// Brings every change to the kernel and answers each, in the order given. A change that fails
    /// stops none of the others. A group and setting may be named once.
    ///
    /// `cpu.idle` and `cpu.shares` of one group go together: idle is cleared before shares are
    /// written and set after, since the kernel refuses the shares of an idle group. So do a quota
    /// and its burst, which is lowered before and raised after: the kernel refuses one above it.
    /// A limit of the page cache is turned off before its size is written, and on after.
    /// [`CpusetCpus::All`] is what the parent has after the changes.
    pub fn apply(&self, changes: &[Change]) -> Vec<Applied> {
        self.apply_telling(changes, |_| (), |_, _| ())
    }

    /// The same, which tells each change that it `begins` with, and a second time one that it returns to:
    /// any of them may hang in the kernel. Of each that is about to be written it tells what it `replaces`.
    pub fn apply_telling(
        &self,
        changes: &[Change],
        begins: impl Fn(&Change),
        mut replaces: impl FnMut(&Change, &Written),
    ) -> Vec<Applied> {
        let mut order: Vec<usize> = (0..changes.len()).collect();
        order.sort_by_key(|&index| {
            let Change { at, value, .. } = &changes[index];
            (at.depth(), !table::comes_first(value))
        });
        let mut outcomes: Vec<Option<Applied>> = changes.iter().map(|_| None).collect();
        let mut waiting = Vec::new();
        let (mut cpusets, mut awake) = (CpuSets::of(changes), HashSet::new());
        let devices = self.look_at_devices();
        for index in order {
            begins(&changes[index]);
            let found = (&mut cpusets, &mut awake);
            match self.widen(&changes[index], found, devices.as_ref(), &mut replaces) {
                Ok(Step::Done(written)) => outcomes[index] = Some(Ok(written)),
                Ok(Step::Waits {
                    written,
                    now,
                    wanted,
                }) => waiting.push((index, written, now, wanted)),
                Err(error) => outcomes[index] = Some(Err(error)),
            }
        }
        for (index, written, now, wanted) in waiting.into_iter().rev() {
            let change = &changes[index];
            begins(change);
            let is_halfway = written.is_some();
            let written = written.unwrap_or_else(|| {
                let written = self.replacing(&change.at, &now, &wanted);
                replaces(change, &written);
                written
            });
            let put = self.put(&change.at, &now, &wanted);
            outcomes[index] = Some(match put {
                Ok(()) => Ok(written),
                Err(error) if is_halfway => Err(error.halfway(now)),
                Err(error) => Err(error),
            });
        }
        let answered = |outcome: Option<_>| outcome.expect("a change is done or waits");
        outcomes.into_iter().map(answered).collect()
    }

    /// The first pass over one change. `awake` are the groups of which it was found that they are not idle.
    fn widen<'a>(
        &self,
        change: &'a Change,
        (cpusets, awake): (&mut CpuSets<'a>, &mut HashSet<&'a CgroupPath>),
        devices: Option<&Look<'_>>,
        replaces: &mut impl FnMut(&Change, &Written),
    ) -> Result<Step, WriteError> {
        let Change { at, value, .. } = change;
        if value.setting().is_of_devices() {
            return self.write_per_device(at, value, devices).map(Step::Done);
        }
        if let Value::SchedSwitch(choice) = value {
            return self.write_switch(value, *choice).map(Step::Done);
        }
        // A container's weight that any runtime makes of the shares is its own. Which other to write is not known
        // before it is known how this node's runtime weighs.
        if let Value::CpuShares(shares) = value
            && change.of_container
            && self.generation(Setting::CpuShares) == Some(Generation::V2)
        {
            if self.weighs(at, *shares) {
                return Ok(Step::Done(Written::Equal));
            }
            if self.weight_curve().is_none() {
                return Ok(Step::Done(Written::Masked));
            }
        }
        let wanted = self.settled_below(at, value, cpusets)?;
        let is_set = wanted.setting() == Setting::CpusetCpus;
        if is_set {
            cpusets.wanted.insert(at, wanted.clone());
        }
        let held = match awake.contains(at) {
            true => self.held_awake(at, value).map(Some),
            false => self.held_unless_masked(at, value),
        };
        let Some(old) = held? else {
            return Ok(Step::Done(Written::Masked));
        };
        if old == Value::CpuIdle(false) {
            awake.insert(at);
        }
        if old == wanted {
            self.close_swap(at, &wanted);
            return Ok(Step::Done(Written::Equal));
        }
        let Some(wide) = table::widened(&old, &wanted) else {
            return Ok(Step::Waits {
                written: None,
                now: old,
                wanted,
            });
        };
        let written = self.replacing(at, &old, &wanted);
        replaces(change, &written);
        let at_once = is_set && cpusets.stay_around(at);
        let now = if at_once { wanted.clone() } else { wide };
        self.put(at, &old, &now)?;
        if now == wanted {
            return Ok(Step::Done(written));
        }
        Ok(Step::Waits {
            written: Some(written),
            now,
            wanted,
        })
    }

    /// What a group holds that is not idle, where `value` is to be written.
    fn held_awake(&self, at: &CgroupPath, value: &Value) -> Result<Value, WriteError> {
        let held = self.read_awake(at, value.setting());
        held.map_err(|source| unread(at, value, source))
    }

    /// [`settled`](Self::settled), but all CPUs are those that the parent will have.
    fn settled_below(
        &self,
        at: &CgroupPath,
        value: &Value,
        cpusets: &CpuSets<'_>,
    ) -> Result<Value, WriteError> {
        let settled = self.settled(at, value)?;
        if *value != CpusetCpus::All.into() || settled == *value {
            return Ok(settled);
        }
        match at.parent().and_then(|parent| cpusets.wanted.get(&parent)) {
            Some(cpus @ Value::CpusetCpus(CpusetCpus::Only(_))) => Ok(cpus.clone()),
            _ => Ok(settled),
        }
    }
}

//! Which values on a node are ours, as far as that can be shown.
//!
//! Decisions alone do not show it: on a node on which we only observed, or never were, hooks decide as
//! well. A value is ours where the kernel has it as it is decided, unless the configuration says that we
//! only observe or pass through, or as its container's annotation says that we changed the creation to. What
//! has a mark of ours (what is noted on the groups of pods, of what runs in them, of tiers and host
//! applications, on those of devices and of the kernel's switches, groups of caches, the network plugin's
//! files, the network's queues, HAMi-core's folders) is known by that, and nothing else of it is touched. All
//! else stays.

use super::{Held, PATIENCE, held, stored, told::says};
use crate::{
    config::Mode,
    hub::Hub,
    ledger::{Container, Entry, GIVEN_BACK, Ledger, Life, Pod, Target},
    neighbour::Resting,
    worker::{Undone, in_time},
};
use koord_hooks::Chain;
use koord_model::{CgroupPath, CoreGroup, CpuQuota, Setting, Value};
use std::collections::BTreeSet;

/// What shows of a value whose it is.
struct Evidence<'a> {
    hub: &'a Hub,
    /// What is in force as it is decided is that by us: hooks were in force here.
    enforced: bool,
    /// What threads and processes have.
    threads: Held,
    /// The hooks whose part koordlet does, and what they set.
    covered: &'a Resting,
    theirs: BTreeSet<Setting>,
}

/// A control group, and what its container's annotation says of it.
struct Group<'a> {
    at: &'a CgroupPath,
    said: &'a [Value],
    /// It is idle, as it was decided.
    idles: bool,
}

/// Lets go of all decisions that are not shown to be in force, and of those that are koordlet's part. An
/// error if nothing is shown of threads.
pub(super) async fn keep(hub: &Hub, mode: Mode, covered: &Resting) -> Result<(), Undone> {
    let wanted = of_threads(&hub.ledger().borrow());
    let threads = in_time(PATIENCE, held(hub, wanted)).await;
    let (threads, shown) = match threads {
        Ok(threads) => (threads, Ok(())),
        Err(undone) => (Held::new(), Err(undone)),
    };
    let evidence = Evidence {
        hub,
        enforced: mode == Mode::Enforce,
        threads,
        covered,
        theirs: settings_of(covered),
    };
    let mut ledger = hub.ledger().borrow_mut();
    for pod in ledger.pods_mut() {
        if has_no_quota_by_itself(pod) {
            let unlimited = Value::from(CpuQuota::Unlimited);
            pod.own.retain(|entry| entry.desired != unlimited);
        }
        for target in [&mut pod.own, &mut pod.pause] {
            evidence.sift(target, &[]);
        }
        for container in &mut pod.containers {
            evidence.sift(&mut container.target, &container.ours);
        }
    }
    for group in ledger.node.iter_mut() {
        evidence.sift(&mut group.target, &[]);
    }
    shown
}

/// Whether the kubelet has given a pod no quota, so that nobody has lifted one. It gives one only where each
/// container asks for one (`ResourceConfigForPod` of `pkg/kubelet/cm/helpers_linux.go`; where the pod as a
/// whole has a limit, those without one ask for that). One for debugging asks for none beside others that
/// do: so all that live count.
fn has_no_quota_by_itself(pod: &Pod) -> bool {
    let containers = pod.containers.iter();
    let mut living = containers.filter(|it| it.life != Life::Exited).peekable();
    let asks_for_none = |it: &Container| {
        let asked = it.view.requested.cpu_quota;
        it.view.heard && matches!(asked, None | Some(CpuQuota::Unlimited))
    };
    living.peek().is_some() && living.all(asks_for_none)
}

/// What these hooks set.
pub(super) fn settings_of(hooks: &Resting) -> BTreeSet<Setting> {
    let table = Chain::builtin_table().filter(|meta| hooks.contains(meta.name));
    table.flat_map(|meta| meta.settings).copied().collect()
}

/// What threads are to have, and where.
fn of_threads(ledger: &Ledger) -> Vec<(CgroupPath, Setting)> {
    let targets = ledger.pods().flat_map(|pod| {
        let containers = pod.containers.iter();
        let running = containers.filter(|it| it.life == Life::Running);
        let running = running.map(|container| &container.target);
        [&pod.pause].into_iter().chain(running)
    });
    let placed = targets.filter_map(|target| Some((target.at.as_ref()?, target.entries())));
    let all = placed.flat_map(|(at, entries)| {
        let settings = entries.iter().map(|entry| entry.desired.setting());
        let settings = settings.filter(|setting| setting.is_of_threads());
        settings.map(move |setting| (at.clone(), setting))
    });
    all.collect()
}

/// Whether any of a group's threads has a cookie; a group without threads has none.
fn has_cookie(text: &str) -> bool {
    text.split_whitespace().any(|cookie| cookie != "none")
}

// === impl Evidence ===

impl Evidence<'_> {
    fn sift(&self, target: &mut Target, said: &[Value]) {
        let Some(at) = target.at.clone() else {
            return;
        };
        let idle = Value::CpuIdle(true);
        let is_decided = target.entries().iter().any(|it| it.desired == idle);
        let group = Group {
            at: &at,
            said,
            idles: self.enforced && is_decided && self.holds(&at, &idle),
        };
        target.retain(|entry| !self.is_koordlets(entry) && self.is_ours(&group, entry));
    }

    fn is_koordlets(&self, entry: &Entry) -> bool {
        let setting = entry.desired.setting();
        // Upstream's hooks have no pod idle.
        if setting == Setting::CpuIdle {
            return false;
        }
        match entry.owner == GIVEN_BACK {
            true => self.theirs.contains(&setting),
            false => self.covered.contains(entry.owner),
        }
    }

    fn is_ours(&self, group: &Group<'_>, entry: &Entry) -> bool {
        let setting = entry.desired.setting();
        let is_marked = setting.is_of_devices()
            || setting.is_told()
            || matches!(setting, Setting::Resctrl | Setting::SchedSwitch);
        // The kernel shows no shares of an idle group.
        if is_marked || group.idles && setting == Setting::CpuShares {
            return true;
        }
        let is_decided = self.enforced && entry.owner != GIVEN_BACK;
        let decided = is_decided.then_some(&entry.desired);
        let said = group.said.iter().filter(|it| it.setting() == setting);
        let mut values = decided.into_iter().chain(said.clone());
        if values.any(|value| self.holds(group.at, value)) {
            return true;
        }
        // An earlier revert has restored it, and perhaps could not tell the runtime.
        let may_return = stored::may_return(group.at, setting) && said.count() > 0;
        may_return
            && entry
                .asked()
                .is_some_and(|asked| self.holds(group.at, &asked))
    }

    fn holds(&self, at: &CgroupPath, value: &Value) -> bool {
        let setting = value.setting();
        if !setting.is_of_threads() {
            return setting.has_file() && self.hub.writer().holds(at, value) == Some(true);
        }
        let Some(text) = self.threads.get(&(at.clone(), setting)) else {
            return false;
        };
        match value {
            // A cookie has no name: whoever has one has been given it.
            Value::CoreSched(group) => *group != CoreGroup::None && has_cookie(text),
            // One that raised its own leaves the others' as they are.
            value => says(text, value),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::has_cookie;

    #[test]
    fn a_group_has_a_cookie_as_soon_as_one_of_its_threads_has() {
        for text in ["", "none", "none none"] {
            assert!(!has_cookie(text), "{text:?}");
        }
        for text in ["7", "none 7", "7 none"] {
            assert!(has_cookie(text), "{text:?}");
        }
    }
}

//! Idle pods while a kubelet resizes them: the kernel takes no shares for an idle group
//! (`sched_group_set_shares`, since Linux 5.15), so a kubelet could not write those of the pod, and would
//! leave the resize as it is.
//!
//! A kubelet from 1.36 on tells of every write to a pod's directory before it (UpdatePodSandboxResources).
//! One before that tells after it or not at all. On cgroup v2 that one has its containers updated first,
//! because it takes the weight of an idle group, 0, for more than any other; on v1 it takes its 3 shares
//! for less, and tells of nothing before it writes. What fails so it says itself, where it is asked for
//! its pods, and hooks have no such pod idle.

use super::{Hub, burst::First};
use crate::{ledger::Pod, view};
use koord_hooks::Requested;
use koord_kernel::cgroup::{Change, Generation};
use koord_model::{CgroupPath, ContainerId, CpuShares, KubeQos, SandboxId, Setting, Value};
use std::time::Duration;
use tokio::time::Instant;

/// How long a kubelet has for its write once it has told of it, or of the container before it.
const AWAKE: Duration = Duration::from_secs(10);

/// What cgroup v1 shows as the shares of an idle group: `WEIGHT_IDLEPRIO` of `kernel/sched/sched.h`.
const SHARES_OF_IDLE: u32 = 3;

// === impl Hub ===

impl Hub {
    /// What is to be written before a container is updated: its bursts, and what lets the kubelet write
    /// the pod's own directory after it.
    pub(super) fn prepare_update(&self, id: &ContainerId, asked: &Requested) -> First {
        let mut first = self.lower_bursts(id, asked);
        let resized = {
            let ledger = self.ledger.borrow();
            let known = ledger.container(id).filter(|(_, container)| {
                let before = &container.view.requested;
                let after = view::overlaid(before, asked.clone());
                (before.cpu_shares, before.cpu_quota) != (after.cpu_shares, after.cpu_quota)
            });
            known.map(|(pod, _)| pod.sandbox.clone())
        };
        if let Some(sandbox) = resized {
            first.changes.extend(self.wake(&sandbox));
        }
        first
    }

    /// The same before a kubelet writes to a pod's directory what it tells of it.
    pub(super) fn prepare_pod_update(&self, sandbox: &SandboxId, asked: &Requested) -> Vec<Change> {
        match asked.cpu_shares {
            Some(_) => self.wake(sandbox),
            None => Vec::new(),
        }
    }

    /// What a kubelet tells of a pod, without shares that are none: it tells what it does not change as it
    /// found it, and of an idle group it finds what nobody has asked for. Cgroup v2 shows a weight of 0,
    /// which it makes into no number of shares.
    pub(super) fn without_shares_of_idle(
        &self,
        sandbox: &SandboxId,
        mut told: Requested,
    ) -> Requested {
        let shares = told.cpu_shares.map(CpuShares::get);
        let v1 = || {
            let cgroups = self.writer.cgroups();
            cgroups.generation(Setting::CpuShares) == Some(Generation::V1)
        };
        let is_echo = |pod: &Pod| {
            // Where as many are asked for, whoever tells of them means them.
            let asked = pod.shares_of_containers().map(CpuShares::get);
            is_idle(pod) && asked != shares
        };
        if shares == Some(SHARES_OF_IDLE)
            && v1()
            && self.ledger.borrow().pod(sandbox).is_some_and(is_echo)
        {
            told.cpu_shares = None;
        }
        told
    }

    /// Has a pod be idle no more for a while, with the shares that it had before. What is to be written for
    /// that; nothing where it is so already, since the kubelet may have written others.
    ///
    /// Pods of the tier `BestEffort` ask for nothing that could be resized. That another is resized again and
    /// again keeps it awake, which has no bound: it has the shares then that it asked for, and a resize that
    /// was not let through would be the greater harm.
    fn wake(&self, sandbox: &SandboxId) -> Vec<Change> {
        let mut ledger = self.ledger.borrow_mut();
        let moment = ledger.tick();
        let pod = ledger.pod_mut(sandbox);
        let Some(pod) = pod.filter(|pod| pod.ready && is_idle(pod)) else {
            return Vec::new();
        };
        let untouched = self.hands_off(pod.exemption).is_some();
        if untouched || pod.view.kube_qos == KubeQos::BestEffort {
            return Vec::new();
        }
        let now = Instant::now();
        let (is_awake, until) = (pod.is_awake(now), now + AWAKE);
        pod.awake = Some(until);
        self.queue.push_at(until, sandbox.clone());
        // A call that ended as it was opened took with it what would have woken the pod.
        let sleeps = |at: &CgroupPath| self.writer.holds(at, &Value::CpuIdle(true)) == Some(true);
        let Some(at) = pod.own.at.clone().filter(|at| !is_awake || sleeps(at)) else {
            return Vec::new();
        };
        if let Some(idle) = pod.own.entry_mut(Setting::CpuIdle) {
            idle.displace(moment);
        }
        let mut entries = pod.own.entries().iter();
        let shares = entries
            .find(|it| it.desired.setting() == Setting::CpuShares && !it.applied.is_hands_off());
        let shares = shares.map(|it| it.desired.clone());
        let asked = || {
            let undecided = pod.own.undecided_shares.clone();
            // Of one that was idle before we started nobody knows them.
            undecided.or_else(|| pod.shares_of_containers().map(Value::from))
        };
        let gives_back = shares.is_none();
        let shares = shares.or_else(asked).map(|shares| (shares, gives_back));
        let values = [(Value::CpuIdle(false), false)].into_iter().chain(shares);
        values
            .map(|(value, gives_back)| Change {
                at: at.clone(),
                value,
                gives_back,
                of_container: false,
                may_return: false,
            })
            .collect()
    }
}

/// Whether it is decided that a pod is idle, and that is not left to others.
fn is_idle(pod: &Pod) -> bool {
    let mut entries = pod.own.entries().iter();
    entries.any(|it| it.desired == Value::CpuIdle(true) && !it.applied.is_hands_off())
}

#[cfg(test)]
mod tests;

//! Bursts that are lowered before an update: the kernel takes no quota below the burst that goes with
//! it.

use super::Hub;
use crate::{
    ledger::{Applied, Life, Pod, Target},
    view,
};
use koord_hooks::Requested;
use koord_kernel::cgroup::Change;
use koord_model::{ContainerId, CpuBurst, Setting, Value};
use std::time::Duration;
use tokio::time::Instant;

/// How long an update for which bursts were lowered is taken to be under way when nobody tells how
/// it ended.
const UNDER_WAY: Duration = Duration::from_secs(10);

// === impl Hub ===

impl Hub {
    /// The bursts that an update makes smaller, the container's and its pod's. They are lowered
    /// before it: the kernel refuses a quota below the burst that goes with it, to the runtime now
    /// and to the kubelet, which writes the pod's own directory, after it.
    ///
    /// Until the update is done, or has failed for long, nobody raises them again.
    pub(super) fn lower_bursts(&self, id: &ContainerId, asked: &Requested) -> Vec<Change> {
        let lowered = self.bursts_lowered_by(id, asked);
        if !lowered.is_empty()
            && let Some(pod) = self.ledger.borrow_mut().pod_of_mut(id)
        {
            let until = Instant::now() + UNDER_WAY;
            pod.update_ended(id);
            pod.lowered.push((id.clone(), until));
            // Nobody tells of a call that is given up, nor of one that fails where we are a plugin.
            self.queue.push_at(until, pod.sandbox.clone());
            let container = pod.containers.iter_mut().find(|it| it.id == *id);
            let targets = container.map(|it| &mut it.target).into_iter();
            for target in targets.chain([&mut pod.own]) {
                if let Some(entry) = target.entry_mut(Setting::CpuBurst) {
                    // Whoever finds another value there finds ours.
                    entry.applied = Applied::Pending;
                }
            }
        }
        lowered
    }

    fn bursts_lowered_by(&self, id: &ContainerId, asked: &Requested) -> Vec<Change> {
        let ledger = self.ledger.borrow();
        let Some((before, container)) = ledger.container(id) else {
            return Vec::new();
        };
        // Of a burst that is unknown one from before a restart may be left.
        let saves_up = match burst_of(&container.target) {
            Some(burst) => burst != CpuBurst::NONE,
            None => !container.view.heard && asked.cpu_quota.is_some(),
        };
        let running = container.life == Life::Running;
        if !saves_up || !running || self.hands_off(before.exemption).is_some() {
            return Vec::new();
        }
        let mut after = before.clone();
        let Some(container) = after.container_mut(id) else {
            return Vec::new();
        };
        container.view.requested = view::overlaid(&container.view.requested, asked.clone());
        self.decide_again(&mut after);
        let targets = |pod: &Pod| {
            let container = pod.containers.iter().find(|it| it.id == *id);
            let targets = container.map(|it| &it.target).into_iter().chain([&pod.own]);
            targets
                .map(|target| (target.at.clone(), burst_of(target)))
                .collect::<Vec<_>>()
        };
        let pairs = targets(before).into_iter().zip(targets(&after));
        let lowered = pairs.filter(|((_, old), (_, new))| match (old, new) {
            (Some(old), new) => new.unwrap_or_default() < *old,
            (None, new) => new.is_some(),
        });
        lowered
            .filter_map(|(_, (at, new))| {
                let value = new.unwrap_or_default().into();
                Some(Change {
                    at: at?,
                    value,
                    gives_back: false,
                })
            })
            .collect()
    }
}

fn burst_of(target: &Target) -> Option<CpuBurst> {
    target
        .entries()
        .iter()
        .find_map(|entry| match entry.desired {
            Value::CpuBurst(burst) => Some(burst),
            _ => None,
        })
}

//! Bursts that are lowered before an update: the kernel takes no quota below the burst that goes with
//! it.

use super::Hub;
use crate::{
    ledger::{Life, Lowering, Pod, Target},
    panic_report::Catching,
    view,
};
use koord_hooks::{ContainerView, Requested};
use koord_kernel::cgroup::Change;
use koord_model::{ContainerId, CpuBurst, Setting, Value};
use std::time::Duration;
use tokio::time::Instant;

/// How long an update for which bursts were lowered is taken to be under way when nobody tells how
/// it ended.
const UNDER_WAY: Duration = Duration::from_secs(10);

/// What is to be written before an update goes on.
#[derive(Debug, Default)]
pub(super) struct First {
    pub(super) changes: Vec<Change>,
    /// By which bursts are kept low until the update is over; see [`Lowering::number`].
    pub(super) lowering: Option<u64>,
}

// === impl Hub ===

impl Hub {
    /// The bursts that an update makes smaller, the container's and its pod's. They are lowered
    /// before it: the kernel refuses a quota below the burst that goes with it, to the runtime now
    /// and to the kubelet, which writes the pod's own directory, after it.
    ///
    /// Until this update is over, or has failed for long, nobody raises them again.
    pub(super) fn lower_bursts(&self, id: &ContainerId, asked: &Requested) -> First {
        let changes = self.bursts_lowered_by(id, asked);
        let mut ledger = self.ledger.borrow_mut();
        let number = ledger.tick();
        let pod = ledger.pod_of_mut(id).filter(|_| !changes.is_empty());
        let lowering = pod.map(|pod| {
            let until = Instant::now() + UNDER_WAY;
            pod.lowered.push(Lowering {
                number,
                container: id.clone(),
                until,
            });
            // Nobody tells of a call that is given up, nor of one that fails where we are a plugin.
            self.queue.push_at(until, pod.sandbox.clone());
            let container = pod.containers.iter_mut().find(|it| it.id == *id);
            let targets = container.map(|it| &mut it.target).into_iter();
            for target in targets.chain([&mut pod.own]) {
                if let Some(entry) = target.entry_mut(Setting::CpuBurst) {
                    entry.displace(number);
                }
            }
            number
        });
        First { changes, lowering }
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
        let mut view = container.view.clone();
        view.requested = view::overlaid(&view.requested, asked.clone());
        let targets = [(true, &container.target), (false, &before.own)];
        let pairs = targets
            .into_iter()
            .zip(self.bursts_after(before, id, &view));
        let lowered = pairs.filter(|((_, target), new)| match burst_of(target) {
            Some(old) => new.unwrap_or_default() < old,
            None => new.is_some(),
        });
        lowered
            .filter_map(|((of_container, target), new)| {
                Some(Change {
                    at: target.at.clone()?,
                    value: new.unwrap_or_default().into(),
                    gives_back: false,
                    of_container,
                    may_return: false,
                })
            })
            .collect()
    }

    /// The bursts of a container that asks for what this `view` says, and of its pod. What the runtime may
    /// refuse is not decided yet, so nobody hears of it.
    fn bursts_after(
        &self,
        pod: &Pod,
        id: &ContainerId,
        view: &ContainerView,
    ) -> [Option<CpuBurst>; 2] {
        let containers = pod.containers.iter();
        let living = containers.filter(|container| container.life != Life::Exited);
        let views = living.map(|container| match container.id == *id {
            true => view,
            false => &container.view,
        });
        let views: Vec<&ContainerView> = views.collect();
        let policy = self.policy();
        let (chain, node) = (policy.chain(), policy.node());
        // A hook that panics here does so again, and is told of, once the runtime has agreed.
        let _quiet = Catching::begin();
        let outcomes = [
            chain.container(&pod.view, view, node, &mut ()),
            chain.pod(&pod.view, &views, node, &mut ()),
        ];
        outcomes.map(|outcome| match outcome.merged.get(Setting::CpuBurst) {
            Some((Value::CpuBurst(burst), _)) => Some(*burst),
            _ => None,
        })
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

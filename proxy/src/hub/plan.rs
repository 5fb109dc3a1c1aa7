//! What is decided about a pod, a container and an update, given what they look like: the same
//! whichever front brought them. Nothing here is said to a runtime or written to the ledger.

use super::{Effects, Hub, NewContainer, NewPod, Untouched};
use crate::{
    ledger::{Applied, Container, Entry, Exemption, Life, Pod, Route, Target},
    status::Status,
    view,
};
use koord_hooks::{ContainerView, PodView, Requested};
use koord_kernel::cgroup::Change;
use koord_model::{
    CgroupPath, ContainerId, CpuBurst, CpuPeriod, CpuSet, CpusetCpus, SandboxId, Setting, Value,
};
use std::time::Duration;
use tokio::time::Instant;
use tracing::warn;

/// How long an update for which bursts were lowered is taken to be under way when nobody tells how
/// it ended.
const UNDER_WAY: Duration = Duration::from_secs(10);

/// What an update is decided to do, and the period that its quotas are for.
#[derive(Debug)]
pub(super) struct PlannedUpdate {
    pub(super) target: Target,
    pub(super) period: Option<CpuPeriod>,
}

// === impl Hub ===

impl Hub {
    /// A pod that is about to be made, or was just, as the request for it says.
    pub(super) fn plan_pod(
        &self,
        mut view: PodView,
        parent: Option<CgroupPath>,
    ) -> Result<NewPod, Status> {
        let mut said = self.first_said();
        self.complete(&mut view, &mut said);
        let own = view::own_directory(parent.as_ref(), &view.uid);
        if let Some(own) = &own {
            self.check_place(own);
        }
        let mut pod = NewPod {
            exemption: self.exemption(&view),
            view,
            said,
            own: Target::at(own),
            parent,
            pause: Target::default(),
        };
        let targets = (&mut pod.own, &mut pod.pause);
        self.decide_pod(&pod.view, &[], pod.exemption, targets)?;
        Ok(pod)
    }

    /// A container that is about to be made, in a pod that is as the request for it says.
    pub(super) fn plan_container(
        &self,
        (sandbox, mut pod): (&SandboxId, PodView),
        parent: Option<CgroupPath>,
        view: ContainerView,
    ) -> Result<NewContainer, Status> {
        let mut said = self.said_again(sandbox, &pod);
        self.complete(&mut pod, &mut said);
        let exemption = self.exemption(&pod);
        let mut target = Target::default();
        self.decide_container(&pod, exemption, &view, &mut target)?;
        Ok(NewContainer {
            view,
            target,
            parent,
            pod,
            said,
            exemption,
        })
    }

    /// An update of a known container. It is decided for what is asked now; what was asked before
    /// stays in the ledger until the runtime has agreed.
    pub(super) fn plan_update(
        &self,
        pod: &Pod,
        container: &Container,
        asked: &Requested,
    ) -> Result<PlannedUpdate, Status> {
        let (mut view, mut target) = (container.view.clone(), container.target.clone());
        view.requested = view::overlaid(&view.requested, asked.clone());
        self.decide_container(&pod.view, pod.exemption, &view, &mut target)?;
        Ok(PlannedUpdate {
            target,
            period: view.requested.cpu_period,
        })
    }

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
            pod.lowered_until = Some(Instant::now() + UNDER_WAY);
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
                Some(Change { at: at?, value })
            })
            .collect()
    }

    /// Where the kubelet keeps its pods is ours to be told (`--cgroup-root`), and each pod shows
    /// whether that was right: elsewhere tiers have no values, and after a restart a pod's own
    /// directory is not found.
    pub(crate) fn check_place(&self, pod: &CgroupPath) {
        let is_right = || pod.is_under(&self.policy().node().tiers.kubepods);
        if is_right() || self.elsewhere.borrow().is_some() {
            return;
        }
        // The kubelet may have come since we looked.
        self.look_again();
        if is_right() {
            return;
        }
        warn!(
            cgroup = %pod,
            "a pod is not where the kubelet's pods are taken to be: is --cgroup-root right?"
        );
        self.elsewhere.replace(Some(pod.clone()));
    }

    /// Why the runtime is told nothing of what was decided, if it is not.
    pub(super) fn hands_off(&self, exemption: Option<Exemption>) -> Option<Untouched> {
        match exemption {
            Some(_) => Some(Untouched::Exempt),
            None if self.effects == Effects::Observe => Some(Untouched::Observing),
            None => self.standing_by().map(|_| Untouched::StandingBy),
        }
    }

    /// The CPUs that containers of a pod may have at most, where the kernel says so and a request
    /// is about to name some. It costs a read on the data path, so it is asked for only then: a
    /// cpuset that reaches beyond the pod's would keep the container from starting.
    pub(super) fn cpus_below(&self, pod: Option<&CgroupPath>, target: &Target) -> Option<CpuSet> {
        let named = |entry: &Entry| {
            let only = matches!(entry.desired, Value::CpusetCpus(CpusetCpus::Only(_)));
            only && entry.route == Route::Request
        };
        let pod = pod.filter(|_| target.entries().iter().any(named))?;
        self.writer.cgroups().cpus_below(pod)
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

//! What is decided about a pod, a container and an update, given what they look like: the same
//! whichever front brought them. Nothing here is said to a runtime or written to the ledger.

use super::{Hub, NewContainer, NewPod, Untouched};
use crate::{
    ledger::{Container, Entry, Exemption, Pod, Route, Target},
    status::Status,
    view,
};
use koord_hooks::{ContainerView, PodView, Requested};
use koord_model::{CgroupPath, CpuPeriod, CpuSet, CpusetCpus, Value};

/// What an update is decided to do, and the period that its quotas are for.
#[derive(Debug)]
pub(super) struct PlannedUpdate {
    pub(super) target: Target,
    pub(super) period: Option<CpuPeriod>,
}

// === impl Hub ===

impl Hub {
    /// A pod that is about to be made, or was just.
    pub(super) fn plan_pod(
        &self,
        view: PodView,
        parent: Option<CgroupPath>,
    ) -> Result<NewPod, Status> {
        let own = view::own_directory(parent.as_ref(), &view.uid);
        let mut pod = NewPod {
            exemption: self.exemption(&view),
            view,
            own: Target::at(own),
            parent,
            pause: Target::default(),
        };
        let targets = (&mut pod.own, &mut pod.pause);
        self.decide_pod(&pod.view, pod.exemption, targets)?;
        Ok(pod)
    }

    /// A container that is about to be made.
    pub(super) fn plan_container(
        &self,
        pod: PodView,
        parent: Option<CgroupPath>,
        view: ContainerView,
    ) -> Result<NewContainer, Status> {
        let exemption = self.exemption(&pod);
        let mut target = Target::default();
        self.decide_container(&pod, exemption, &view, &mut target)?;
        Ok(NewContainer {
            view,
            target,
            parent,
            pod,
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

    /// Why the runtime is told nothing of what was decided, if it is not.
    pub(super) fn hands_off(&self, exemption: Option<Exemption>) -> Option<Untouched> {
        match exemption {
            Some(_) => Some(Untouched::Exempt),
            None if !self.enforces() => Some(Untouched::Observing),
            None => None,
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

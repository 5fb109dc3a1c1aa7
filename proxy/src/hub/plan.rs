//! What is decided about a pod, a container and an update, given what they look like: the same
//! whichever front brought them. Nothing here is said to a runtime, and of what is planned nothing is
//! in the ledger yet.

use super::{Effects, Hub, NewContainer, NewPod, Untouched};
use crate::{
    apply::cri::set_injected,
    ledger::{Container, Entry, Exemption, Pod, Route, Said, Target, Unasked},
    status::Status,
    view,
};
use koord_hooks::{ContainerView, FailPolicy, PodView, Requested};
use koord_model::{CgroupPath, CpuPeriod, CpuSet, CpusetCpus, MemoryLimit, SandboxId, Value};
use tracing::warn;

/// What an update is decided to do, the period that its quotas are for, and the limit of memory that is asked
/// for.
#[derive(Debug)]
pub(super) struct PlannedUpdate {
    pub(super) target: Target,
    pub(super) period: Option<CpuPeriod>,
    pub(super) memory: Option<MemoryLimit>,
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

    /// A pod that was there before we heard of it. Nobody waits for what is decided about it. The
    /// node may be looked at for it, so the ledger must not be borrowed.
    pub(crate) fn found_pod(
        &self,
        mut view: PodView,
        parent: Option<CgroupPath>,
        sandbox: SandboxId,
        ready: bool,
    ) -> Pod {
        let mut said = Said::default();
        self.complete(&mut view, &mut said);
        let own = view::own_directory(parent.as_ref(), &view.uid);
        if let Some(own) = &own {
            self.check_place(own);
        }
        let mut pod = Pod {
            exemption: self.exemption(&view),
            ready,
            pause: Target::at(self.pause_dir(parent.as_ref(), &sandbox)),
            own: Target::at(own),
            is_listed: true,
            ..Pod::new(sandbox, view, said, parent)
        };
        self.decide_again(&mut pod);
        pod
    }

    /// A container that is about to be made, in a pod that is as the request for it says.
    pub(super) fn plan_container(
        &self,
        (sandbox, mut pod): (&SandboxId, PodView),
        parent: Option<CgroupPath>,
        view: ContainerView,
    ) -> Result<NewContainer, Status> {
        let mut said = self.said_again(sandbox, &mut pod);
        self.complete(&mut pod, &mut said);
        self.look_at_devices(&pod);
        let exemption = self.exemption(&pod);
        let mut target = Target::default().unasked(match view.heard {
            true => Unasked::Nothing,
            false => Unasked::Unheard,
        });
        self.decide_container(&pod, exemption, &view, &mut target)?;
        if let Some(pod) = self.ledger.borrow().pod(sandbox) {
            target.give_back_copies(&pod.own);
        }
        if self.awaits_koordlet() {
            // Nobody tells the runtime what it can only be made with.
            if let Some(hook) = self.insists_on_making(&target) {
                return Err(Status::unknown_koordlet(hook, &pod));
            }
            set_injected(&mut target, false);
        }
        Ok(NewContainer {
            view,
            target,
            swap: None,
            parent,
            pod,
            said,
            exemption,
        })
    }

    /// The hook with fail policy `Closed`, if there is one, whose value a container can only be made with.
    fn insists_on_making(&self, target: &Target) -> Option<&'static str> {
        let policy = self.policy();
        let injected = target
            .entries()
            .iter()
            .filter(|entry| entry.desired.setting().is_injected());
        let mut hooks = injected.map(|entry| entry.owner);
        hooks.find(|hook| policy.chain().fail_policy(hook) == Some(FailPolicy::Closed))
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
            memory: view.requested.memory_limit,
        })
    }

    /// Where the kubelet keeps its pods is ours to be told (`--cgroup-root`), and each pod shows
    /// whether that was right: elsewhere tiers have no values, and after a restart a pod's own
    /// directory is not found.
    fn check_place(&self, pod: &CgroupPath) {
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
            None if self.standing_by().is_some() => Some(Untouched::StandingBy),
            None => self.awaits_koordlet().then_some(Untouched::UnknownKoordlet),
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

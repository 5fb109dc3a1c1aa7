//! The events of NRI, from what a runtime asks its plugin to what it is answered.
//!
//! Every event brings its pod and its container whole, so whatever is not known yet becomes so by
//! any of them: nothing here waits for a list.

mod synchronisation;

use super::{
    Answer, Hub, Pending, Untouched,
    commit::{Effect, Update, commit_pod_update, commit_start},
    leave_out,
    plan::PlannedUpdate,
    shows,
};
use crate::{
    apply::{cri::set_injected, nri as patch},
    front::{cri::Method, nri::view as seen},
    ledger::{Life, Pod},
    originals,
    status::Status,
    view,
};
use koord_hooks::Requested;
use koord_kernel::cgroup::Change;
use koord_model::{ContainerId, CpuSet, SandboxId, Setting, Value};
use koord_proto::{
    keys::annotation,
    nri::{Container, ContainerAdjustment, ContainerUpdate, LinuxResources, PodSandbox},
};
use std::time::Duration;
use tokio::time::Instant;
use tracing::warn;

/// What the runtime is told of a container, if anything, and what is true once it has done it.
type Told<T> = (Option<T>, Pending);

// === impl Hub ===

impl Hub {
    /// A sandbox runs, and no container of it is there yet: its settings are written beside, before
    /// another pod is looked at anew.
    pub(crate) fn sandbox_runs(&self, pod: &PodSandbox) -> Result<(), Status> {
        let inputs = self.policy().inputs();
        let Some((view, parent)) = seen::pod(pod, None, &inputs) else {
            return Ok(());
        };
        let Ok(sandbox) = SandboxId::new(&pod.id) else {
            return Ok(());
        };
        let planned = self.plan_pod(view, parent);
        let planned = self.unless_refused(Method::RunPodSandbox, planned)?;
        self.count(
            Method::RunPodSandbox,
            self.hands_off(planned.exemption),
            false,
        );
        let mut ledger = self.ledger.borrow_mut();
        self.commit_run(&mut ledger, planned, sandbox.clone(), false);
        if let Some(pod) = ledger.pod(&sandbox) {
            self.queue.push_if_new(pod);
        }
        drop(ledger);
        self.queue.push_soon(sandbox);
        self.tell_size(&self.ledger.borrow());
        Ok(())
    }

    /// A container is about to be made. What has to be there before it is waited for with this `patience`.
    pub(crate) async fn creation(
        &self,
        pod: &PodSandbox,
        container: &Container,
        patience: Duration,
    ) -> Result<Told<ContainerAdjustment>, Status> {
        if self.meet_pod(pod) {
            self.look_at_new(pod);
        }
        let inputs = self.policy().inputs();
        let Ok(sandbox) = SandboxId::new(&pod.id) else {
            return Ok((None, Effect::Nothing.into()));
        };
        let seen = {
            let ledger = self.ledger.borrow();
            let known = ledger.pod(&sandbox).map(Pod::said_by_requests);
            seen::pod(pod, known, &inputs)
        };
        let Some((pod, parent)) = seen else {
            return Ok((None, Effect::Nothing.into()));
        };
        let mut view = seen::container(container);
        // It is nobody's but who changed the creation before us.
        let noted = container.annotations.get(annotation::ORIGINALS);
        let noted = noted.map(String::as_str);
        if let Some(origin) = originals::of_container(noted, &container.id, &pod) {
            self.meet_another();
            if noted.is_some_and(|it| originals::is_of(it, &container.id)) {
                view.requested = origin.requested;
            } else if !self.enforces() {
                // One in front of the runtime, of which a list tells what was asked for, or the pod's
                // author, who is not believed.
                (view.requested, view.heard) = (Requested::default(), false);
            }
        }
        let planned = self.plan_container((&sandbox, pod), parent, view);
        let mut new = self.unless_refused(Method::CreateContainer, planned)?;
        let generation = self.generation.get();
        if let Some(folder) = self.folder_for(&new) {
            // As of the writer, of folders that do not come the first creation that has waited is enough.
            let patience = match self.folders.is_late() {
                true => Duration::ZERO,
                false => patience,
            };
            let until = Instant::now() + patience;
            let made = self.make_folder(&folder, &mut new, until).await;
            self.unless_refused(Method::CreateContainer, made)?;
        }
        let why = self.hands_off(new.exemption);
        let why = why.or_else(|| self.unsound(&resources(container)));
        let adjust = match why {
            Some(_) => None,
            None => {
                let cpus = self.cpus_below(new.parent.as_ref(), &new.target);
                let policy = self.policy();
                let sets = |setting| policy.says(setting);
                let limits = self.said_within(cpus.as_ref(), &sets);
                patch::create(container, &new.view.requested, &mut new.target, limits)
            }
        };
        self.count(Method::CreateContainer, why, adjust.is_some());
        let effect = Effect::Create(sandbox, Box::new(new));
        Ok((adjust, Pending::new(effect, generation)))
    }

    /// What is to be written before a container changes to what `asked` says, which is `pending`.
    pub(crate) fn written_first(
        &self,
        container: &Container,
        asked: &LinuxResources,
        pending: &mut Pending,
    ) -> Vec<Change> {
        let id = ContainerId::new(&container.id).ok();
        // An unsound one does not come about.
        let Some(id) = id.filter(|_| self.unsound(asked).is_none()) else {
            return Vec::new();
        };
        let first = self.prepare_update(&id, &seen::requested(Some(asked)));
        pending.has_lowered(first.lowering);
        first.changes
    }

    /// The resources of a container are about to change to what `asked` says.
    pub(crate) fn change(
        &self,
        pod: &PodSandbox,
        container: &Container,
        asked: &LinuxResources,
    ) -> Result<Told<ContainerUpdate>, Status> {
        self.meet(pod, container);
        let id = ContainerId::new(&container.id).ok();
        if let Some(id) = &id {
            self.spec_changes(id);
        }
        let ledger = self.ledger.borrow();
        let known = id.as_ref().and_then(|id| ledger.container(id));
        let (Some(id), Some((pod, known))) = (&id, known) else {
            return Ok((None, Effect::Nothing.into()));
        };
        let mut requested = seen::requested(Some(asked));
        if self.standing_by().is_some() {
            // The other one says with each update what it has decided, which is what we have.
            let decided = known.target.entries().iter().map(|entry| &entry.desired);
            let others = decided.chain(known.ours.iter());
            let asked = requested.clone();
            let others = others.filter(|it| shows(&asked, it)).map(Value::setting);
            others.for_each(|setting| leave_out(&mut requested, setting));
        }
        let planned = self.plan_update(pod, known, &requested);
        let method = Method::UpdateContainerResources;
        let PlannedUpdate { mut target, .. } = self.unless_refused(method, planned)?;
        let why = self.hands_off(pod.exemption);
        let why = why.or_else(|| self.unsound(asked));
        let there = resources(container);
        let update = if why.is_some() {
            None
        } else if patch::would_lose(asked, &there) {
            patch::keep_silent(&mut target);
            None
        } else {
            let now = patch::overlaid(&there, asked);
            let cpus = self.cpus_below(pod.parent.as_ref(), &target);
            let policy = self.policy();
            let sets = |setting| policy.says(setting);
            let limits = self.said_within(cpus.as_ref(), &sets);
            patch::update(id.as_str(), &now, &mut target, limits)
        };
        self.count(method, why, update.is_some());
        let decided = Update {
            asked: requested,
            // No answer says it.
            swap: None,
            said: target,
            had: seen::requested(Some(&there)),
            lowering: None,
            earlier: None,
        };
        let effect = Effect::Update(id.clone(), Box::new(decided));
        Ok((update, Pending::new(effect, self.generation.get())))
    }

    /// The runtime has made a container without what was decided about that.
    pub(crate) fn creation_is_unsaid(&self, id: &str) {
        let Ok(id) = ContainerId::new(id) else {
            return;
        };
        if let Some(pod) = self.ledger.borrow_mut().pod_of_mut(&id) {
            if let Some(container) = pod.container_mut(&id) {
                set_injected(&mut container.target, false);
                // An update says all once more.
                if container.is_as_made {
                    container.target.leave_unsaid();
                    container.ours = Box::default();
                }
            }
            // What was written meanwhile is found to be by us.
            self.queue.push(pod.sandbox.clone());
        }
    }

    /// The runtime has done something that was decided about a container, and tells that as it is now. What
    /// is still under way.
    pub(crate) fn carried_out(&self, pending: Pending, container: &Container) -> Option<Pending> {
        let shown = seen::requested(Some(&resources(container)));
        let (done, under_way) = pending.split(&shown);
        for pending in done {
            self.done(pending, &container.id);
        }
        self.note_shown(container);
        if under_way.is_none() {
            self.update_ends(container);
        }
        under_way
    }

    /// The runtime has done what was decided about, and this is its id.
    pub(crate) fn done(&self, pending: Pending, id: &str) {
        self.commit(pending, Some(id));
        self.tell_size(&self.ledger.borrow());
    }

    /// A container is about to run: its control group is there. Says whose settings are to be
    /// written.
    pub(crate) fn starts(&self, pod: &PodSandbox, container: &Container) -> Option<SandboxId> {
        self.starts_in(pod, container, true)
    }

    /// `is_new`: it is not among those of which its pod's own directory has the sum.
    fn starts_in(
        &self,
        pod: &PodSandbox,
        container: &Container,
        is_new: bool,
    ) -> Option<SandboxId> {
        self.meet(pod, container);
        self.note_shown(container);
        let id = ContainerId::new(&container.id).ok()?;
        let mut ledger = self.ledger.borrow_mut();
        if !commit_start(&mut ledger, &id) {
            self.relist_soon();
        }
        let sandbox = SandboxId::new(&pod.id).ok()?;
        // What its pod's directory has may be a sum, and bounds what the container has.
        if let Some(pod) = ledger.pod_mut(&sandbox).filter(|pod| pod.ready && is_new) {
            self.decide_own_directory(pod);
        }
        self.queue.push_soon(sandbox.clone());
        Some(sandbox)
    }

    /// The runtime goes on with an update of a container, and tells how that ended only if nothing fails.
    pub(crate) fn update_begins(&self, container: &Container) {
        if let Ok(id) = ContainerId::new(&container.id)
            && let Some(pod) = self.ledger.borrow_mut().pod_of_mut(&id)
            && let Some(known) = pod.container_mut(&id)
            && let Some(look) = known.update_begins(Instant::now())
        {
            self.queue.push_at(look, pod.sandbox.clone());
        }
    }

    fn update_ends(&self, container: &Container) {
        if let Ok(id) = ContainerId::new(&container.id)
            && let Some(pod) = self.ledger.borrow_mut().pod_of_mut(&id)
            && let Some(known) = pod.container_mut(&id)
        {
            known.update_ended();
        }
    }

    /// The spec of a container may say something else from now on than when its group is made. For one
    /// that does not run yet runtimes change nothing but that.
    fn spec_changes(&self, id: &ContainerId) {
        if let Some(pod) = self.ledger.borrow_mut().pod_of_mut(id)
            && let Some(known) = pod.container_mut(id)
        {
            known.is_as_made = false;
        }
    }

    /// What a container that is about to run has by its spec, as the runtime tells it, where it is as
    /// it was made: from that the control group was made just now.
    pub(crate) fn in_spec(&self, container: &Container) -> Vec<Change> {
        let ledger = self.ledger.borrow();
        let id = ContainerId::new(&container.id).ok();
        let known = id.as_ref().and_then(|id| ledger.container(id));
        let linux = container.linux.as_ref();
        let spec = linux.and_then(|linux| linux.resources.as_ref());
        match (known, spec) {
            (Some((_, known)), Some(spec)) if known.is_as_made => {
                patch::in_spec(spec, &known.target, self.runtime_name())
            }
            // What is not told may be anything, and so may what was told otherwise before.
            _ => Vec::new(),
        }
    }

    /// A container has started. A list that was asked for since its start was told may have said that
    /// it does not run yet, and would keep it from being held. It may also have ended by now, which
    /// is told beside.
    pub(crate) fn note_started(&self, pod: &PodSandbox, container: &Container) {
        let before = ContainerId::new(&container.id).ok().and_then(|id| {
            let ledger = self.ledger.borrow();
            ledger.container(&id).map(|(_, known)| known.life)
        });
        if before == Some(Life::Exited) {
            return self.look_soon_at(pod);
        }
        // Of one that runs already the start was told, or a list has told of it.
        let is_new = before != Some(Life::Running);
        if let Some(sandbox) = self.starts_in(pod, container, is_new)
            && let Some(pod) = self.ledger.borrow().pod(&sandbox)
        {
            self.queue.push_if_new(pod);
        }
    }

    pub(crate) fn container_stopped(&self, id: &str) {
        if let Ok(id) = ContainerId::new(id) {
            let pod = self.ledger.borrow().sandbox_of(&id).cloned();
            self.commit(Effect::Stop(id).into(), None);
            self.may_have_ended(pod);
        }
    }

    pub(crate) fn container_removed(&self, id: &str) {
        if let Ok(id) = ContainerId::new(id) {
            let pod = self.ledger.borrow().sandbox_of(&id).cloned();
            self.done(Effect::Remove(id).into(), "");
            self.may_have_ended(pod);
        }
    }

    /// Nothing of a pod may live any more. Of one from before its own start containerd tells no end
    /// (`needsStopping` of its `internal/nri`), so a list is to.
    fn may_have_ended(&self, sandbox: Option<SandboxId>) {
        let ledger = self.ledger.borrow();
        let pod = sandbox.and_then(|sandbox| ledger.pod(&sandbox));
        let lives = |pod: &Pod| pod.containers.iter().any(|it| it.life != Life::Exited);
        if pod.is_some_and(|pod| pod.ready && pod.is_listed && !lives(pod)) {
            self.relist_soon();
        }
    }

    pub(crate) fn sandbox_stopped(&self, id: &str) {
        if let Ok(sandbox) = SandboxId::new(id) {
            self.commit(Effect::StopPod(sandbox).into(), None);
        }
    }

    pub(crate) fn sandbox_removed(&self, id: &str) {
        if let Ok(sandbox) = SandboxId::new(id) {
            self.done(Effect::RemovePod(sandbox).into(), "");
        }
    }

    /// What the kubelet asks for a pod as a whole changes. What is to be written before it does.
    pub(crate) fn sandbox_changes(
        &self,
        pod: &PodSandbox,
        resources: Option<&LinuxResources>,
        overhead: Option<&LinuxResources>,
    ) -> Vec<Change> {
        let Ok(sandbox) = SandboxId::new(&pod.id) else {
            return Vec::new();
        };
        let [resources, overhead] = [resources, overhead].map(|it| it.map(seen::in_cri));
        let requested = view::requested_of_pod(resources.as_ref(), overhead.as_ref());
        let requested = self.without_shares_of_idle(&sandbox, requested);
        let first = self.prepare_pod_update(&sandbox, &requested);
        let mut ledger = self.ledger.borrow_mut();
        commit_pod_update(&mut ledger, &sandbox, &requested);
        if let Some(pod) = ledger.pod(&sandbox) {
            self.queue.push_if_new(pod);
        }
        self.queue.push_soon(sandbox);
        first
    }

    /// Something may have changed in a pod: its values are held against the kernel.
    pub(crate) fn look_at(&self, pod: &PodSandbox) {
        if let Ok(sandbox) = SandboxId::new(&pod.id) {
            self.queue.push(sandbox);
        }
    }

    /// The same where nothing has been written over that was in force: what else is told of the pod in
    /// a row shares one look.
    pub(crate) fn look_soon_at(&self, pod: &PodSandbox) {
        if let Ok(sandbox) = SandboxId::new(&pod.id) {
            self.queue.push_soon(sandbox);
        }
    }

    /// Has what is new of a pod brought to the kernel before anything else of any pod.
    fn look_at_new(&self, pod: &PodSandbox) {
        let sandbox = SandboxId::new(&pod.id);
        if let Ok(sandbox) = sandbox
            && let Some(pod) = self.ledger.borrow().pod(&sandbox)
        {
            self.queue.push_if_new(pod);
        }
    }

    /// What its spec says, as the runtime has told it now.
    fn note_shown(&self, container: &Container) {
        if let Ok(id) = ContainerId::new(&container.id)
            && let Some(pod) = self.ledger.borrow_mut().pod_of_mut(&id)
            && let Some(known) = pod.container_mut(&id)
        {
            let shown = seen::requested(Some(&resources(container)));
            let target = &mut known.target;
            target.hear_spec(|setting| super::asked(&shown, setting));
            known.shown = Some(Box::new(shown));
        }
    }

    fn unsound(&self, asked: &LinuxResources) -> Option<Untouched> {
        let policy = self.policy();
        let usable = &policy.node().kernel.usable_cpus;
        let sound = view::is_sound(&seen::in_cri(asked), usable);
        (!sound).then_some(Untouched::Unsound)
    }

    fn said_within<'a>(
        &self,
        cpus: Option<&'a CpuSet>,
        sets: &'a dyn Fn(Setting) -> bool,
    ) -> patch::Limits<'a> {
        patch::Limits {
            runtime: self.runtime_name(),
            cpus,
            sets,
        }
    }

    /// The runtime has asked what nobody can read.
    pub(crate) fn unread(&self, method: &str) {
        let call = match method {
            "CreateContainer" => Some(Method::CreateContainer),
            "UpdateContainer" => Some(Method::UpdateContainerResources),
            _ => None,
        };
        if let Some(call) = call {
            self.count(call, Some(Untouched::Unreadable), false);
        }
        if let Some(suppressed) = self.may_complain("-", "question") {
            warn!(
                method,
                suppressed, "a message of the runtime cannot be read"
            );
        }
        // Whatever it is about.
        self.relist_soon();
    }

    /// Counts a decision as those about calls are.
    fn count(&self, method: Method, why: Option<Untouched>, said: bool) {
        let answer = match said {
            true => Answer::Patched(Vec::new()),
            false => Answer::AsIs(why.unwrap_or(Untouched::Nothing)),
        };
        self.metrics.call_answered(method, &answer);
    }

    /// Counts a refusal.
    fn unless_refused<T>(&self, method: Method, planned: Result<T, Status>) -> Result<T, Status> {
        planned.inspect_err(|status| {
            let refused = Answer::Refused(status.clone());
            self.metrics.call_answered(method, &refused);
        })
    }
}

fn resources(container: &Container) -> LinuxResources {
    let linux = container.linux.as_ref();
    let resources = linux.and_then(|linux| linux.resources.clone());
    resources.unwrap_or_default()
}

//! The calls of CRI that hooks act on, from request bytes to decision and back. What is
//! decided is found in [`super::plan`].

use super::{
    Answer, Decision, Hub, NewContainer, Opening, Pending, Untouched,
    burst::First,
    commit::{Effect, Update},
    message::Message,
    plan::PlannedUpdate,
};
use crate::{
    apply::cri::{self as patch, PatchError},
    ledger::{Pod, Scope, Target},
    log::Name,
    reconcile::{self, Gate},
    status::Status,
    view,
};
use koord_hooks::{FailPolicy, PodView, Requested};
use koord_kernel::cgroup::Change;
use koord_model::{ContainerId, CpuSet, SandboxId};
use koord_proto::cri;
use std::{rc::Rc, time::Duration};
use tokio::time::{Instant, timeout_at};
use tracing::debug;

/// A creation that is decided about and still to be said.
struct Creation {
    sandbox: SandboxId,
    config: cri::ContainerConfig,
    container: Box<NewContainer>,
    /// Of the decision.
    generation: u64,
}

impl Hub {
    /// RunPodSandbox: the kubelet has made the pod's directory, nothing runs in it yet, so this is
    /// the moment to write it. What is late is written all the same, and checked after the call.
    pub(super) fn open_run(self: &Rc<Self>, message: &[u8], until: Instant) -> Option<Opening> {
        let inputs = self.policy().inputs();
        let request = cri::RunPodSandboxRequest::read_keeping(message, |key| inputs.has(key))?;
        let config = request.config?;
        let parent = view::cgroup_parent(&config);
        let view = view::pod(&config, &request.runtime_handler, parent.as_ref(), &inputs)?;
        let mut pod = match self.plan_pod(view, parent) {
            Ok(pod) => pod,
            Err(status) => return Some(Opening::Now(Decision::refused(status))),
        };
        let why = self.hands_off(pod.exemption).unwrap_or(Untouched::Nothing);
        let made = self.generation.get();
        let gate = Gate::of(self);
        let mut changes = reconcile::changes((Scope::Pod, &pod.own));
        // What is of block devices no call waits for.
        changes.retain(|it| gate.lets(&it.value) && !reconcile::is_of_devices(it));
        if !self.enforces() || changes.is_empty() {
            let pending = Pending::new(Effect::Run(Box::new(pod)), made);
            return Some(Opening::Now(Decision::as_is(why, pending)));
        }
        let hub = self.clone();
        Some(Opening::Later(Box::pin(async move {
            // What has memory reclaimed, as where the pod had another sandbox before, is held after it.
            let (_, changes) = hub.writer.split(changes);
            let written = hub.writer.write(changes.clone());
            match timeout_at(until, written).await {
                Ok(applied) => reconcile::record(&hub, &mut pod.own, &changes, &applied),
                Err(_) => debug!(pod = %Name(&pod.view.name), "pod settings are late"),
            }
            let pending = Pending::new(Effect::Run(Box::new(pod)), made);
            Decision::as_is(why, pending)
        })))
    }

    /// CreateContainer: its request carries the pod as the kubelet knows it now, but for the
    /// runtime handler. Of a sandbox whose own call we did not see or could not read only a list can
    /// tell that, and whether its containers are to be left alone. So where some are, it waits for
    /// the next one, and without an answer it passes as it came: what it lacks for that is written
    /// once it is known.
    pub(super) fn open_create(
        self: &Rc<Self>,
        message: &Message<'_>,
        until: Instant,
    ) -> Option<Opening> {
        let creation = self.read_creation(message)?;
        let sandbox = SandboxId::new(creation.sandbox_id).ok()?;
        let sandbox = self.ledger.borrow().meant_sandbox(sandbox);
        let known = self.ledger.borrow().pod(&sandbox).is_some();
        if known || self.exclusions.runtime_handlers.is_empty() || !self.acts() {
            return self.open_known(creation, sandbox, message, until);
        }
        let seen = *self.listed.borrow();
        if seen > 0 {
            self.relist_soon();
        }
        let (hub, message) = (self.clone(), message.keep());
        Some(Opening::Later(Box::pin(async move {
            hub.list_after(seen, until).await;
            let sandbox = hub.ledger.borrow().meant_sandbox(sandbox);
            let known = hub.ledger.borrow().pod(&sandbox).is_some();
            if !known {
                return Decision::as_is(Untouched::UnknownPod, Effect::Unknown);
            }
            let creation = hub.read_creation(&message);
            match creation.and_then(|it| hub.open_known(it, sandbox, &message, until)) {
                Some(opening) => opening.decision().await,
                None => Decision::as_is(Untouched::Unreadable, Effect::Unknown),
            }
        })))
    }

    fn read_creation<'a>(&self, message: &'a [u8]) -> Option<cri::Creation<'a>> {
        let inputs = self.policy().inputs();
        cri::Creation::read(message, |key| inputs.has(key))
    }

    /// The same of a sandbox that is known, or need not be. It waits for a folder of the node that the
    /// container is to find, if there is one.
    fn open_known(
        self: &Rc<Self>,
        creation: cri::Creation<'_>,
        sandbox: SandboxId,
        message: &Message<'_>,
        until: Instant,
    ) -> Option<Opening> {
        let mut creation = match self.plan_creation(creation, sandbox)? {
            Ok(creation) => creation,
            Err(status) => return Some(Opening::Now(Decision::refused(status))),
        };
        let Some(folder) = self.folder_for(&creation.container) else {
            return Some(Opening::Now(self.say_creation(creation, message)));
        };
        let (hub, message) = (self.clone(), message.keep());
        Some(Opening::Later(Box::pin(async move {
            let made = hub.make_folder(&folder, &mut creation.container, until);
            match made.await {
                Ok(()) => hub.say_creation(creation, &message),
                Err(status) => Decision::refused(status),
            }
        })))
    }

    fn plan_creation(
        &self,
        creation: cri::Creation<'_>,
        sandbox: SandboxId,
    ) -> Option<Result<Creation, Status>> {
        let config = creation.config?;
        let pod = creation.pod?;
        let parent = view::directory_of(pod.cgroup_parent);
        let inputs = self.policy().inputs();
        let ledger = self.ledger.borrow();
        let known = ledger.pod(&sandbox);
        // RunPodSandbox named it; CreateContainer does not repeat it.
        let handler = known.map_or("", |known| &known.view.runtime_handler);
        let texts = known.map(Pod::said_by_requests);
        let pod = view::lent_pod(&pod, texts, handler, parent.as_ref(), &inputs)?;
        drop(ledger);
        let requested = view::requested_at_creation(config.resources());
        let container = view::container(&config, requested);
        let planned = self.plan_container((&sandbox, pod), parent, container);
        Some(planned.map(|mut container| {
            container.swap = view::swap_said(config.resources());
            Creation {
                sandbox,
                config,
                container: Box::new(container),
                generation: self.generation.get(),
            }
        }))
    }

    fn say_creation(&self, creation: Creation, message: &[u8]) -> Decision {
        let Creation {
            sandbox,
            config,
            mut container,
            generation,
        } = creation;
        let NewContainer {
            view,
            target,
            parent,
            pod,
            exemption,
            ..
        } = &mut *container;
        let patch = if let Some(why) = self.hands_off(*exemption) {
            Err(Answer::AsIs(why))
        } else if !config.resources().is_none_or(|linux| self.is_sound(linux)) {
            Err(Answer::AsIs(Untouched::Unsound))
        } else {
            let cpus = self.cpus_below(parent.as_ref(), target);
            let limits = self.limits(message, cpus.as_ref());
            patch::create(&config, &view.requested, target, limits)
                .map_err(|error| self.unpatched(&error, pod))
        };
        let effect = Effect::Create(sandbox, container);
        Decision::patched_or(patch, Pending::new(effect, generation))
    }

    /// StartContainer: what a process must have from its first instruction is given now to whoever
    /// starts it. What is late is given to the process itself, after the call.
    pub(super) fn open_start(self: &Rc<Self>, id: ContainerId, until: Instant) -> Opening {
        let mut members = match self.ledger.borrow().container(&id) {
            Some((pod, _)) if self.enforces() => reconcile::starting(pod, &id),
            _ => Vec::new(),
        };
        let gate = Gate::of(self);
        members.retain(|it| gate.lets_join(it));
        if members.is_empty() {
            return Opening::nothing_but(Effect::Start(id));
        }
        let hub = self.clone();
        Opening::Later(Box::pin(async move {
            let joined = reconcile::join_starting(&hub, members);
            if timeout_at(until, joined).await.is_err() {
                debug!(container = %id, "groups of threads are late");
            }
            Decision::as_is(Untouched::Nothing, Effect::Start(id))
        }))
    }

    /// UpdateContainerResources: names the container only, so it needs the ledger; carries all
    /// values in force, because the runtime writes its whole stored spec each time.
    pub(super) fn open_update(
        self: &Rc<Self>,
        message: &Message<'_>,
        until: Instant,
    ) -> Option<Opening> {
        let request = cri::UpdateContainerResourcesRequest::read(message)?;
        let id = ContainerId::new(&request.container_id).ok()?;
        let id = self.ledger.borrow().meant_container(id);
        let known = self.ledger.borrow().sandbox_of(&id).is_some();
        if known || self.is_whole() || !self.acts() {
            let (decision, first) = self.decide_and_prepare(&request, id, message);
            if first.is_empty() {
                return Some(Opening::Now(decision));
            }
            let hub = self.clone();
            return Some(Opening::Later(Box::pin(async move {
                hub.write_first(first, until).await;
                decision
            })));
        }
        let (hub, message) = (self.clone(), message.keep());
        Some(Opening::Later(Box::pin(async move {
            hub.list_after(0, until).await;
            let id = hub.ledger.borrow().meant_container(id);
            let (decision, first) = hub.decide_and_prepare(&request, id, &message);
            hub.write_first(first, until).await;
            decision
        })))
    }

    /// UpdatePodSandboxResources: the kubelet writes the pod's directory itself, right after this call,
    /// or before it if it is older than 1.36.
    pub(super) fn open_pod_update(
        self: &Rc<Self>,
        message: &[u8],
        until: Instant,
    ) -> Option<Opening> {
        let request = cri::UpdatePodSandboxResourcesRequest::read(message)?;
        let sandbox = SandboxId::new(&request.pod_sandbox_id).ok()?;
        let sandbox = self.ledger.borrow().meant_sandbox(sandbox);
        let (resources, overhead) = (request.resources.as_ref(), request.overhead.as_ref());
        let told = view::requested_of_pod(resources, overhead);
        let known = self.ledger.borrow().pod(&sandbox).is_some();
        if known || self.is_whole() || !self.acts() {
            let (effect, first) = self.hear_pod_update(sandbox, told);
            if first.is_empty() {
                return Some(Opening::nothing_but(effect));
            }
            let hub = self.clone();
            return Some(Opening::Later(Box::pin(async move {
                hub.write_first(first, until).await;
                Decision::as_is(Untouched::Nothing, effect)
            })));
        }
        let hub = self.clone();
        Some(Opening::Later(Box::pin(async move {
            hub.list_after(0, until).await;
            let sandbox = hub.ledger.borrow().meant_sandbox(sandbox);
            let (effect, first) = hub.hear_pod_update(sandbox, told);
            hub.write_first(first, until).await;
            Decision::as_is(Untouched::Nothing, effect)
        })))
    }

    fn hear_pod_update(&self, sandbox: SandboxId, told: Requested) -> (Effect, Vec<Change>) {
        let told = self.without_shares_of_idle(&sandbox, told);
        let first = self.prepare_pod_update(&sandbox, &told);
        (Effect::UpdatePod(sandbox, told), first)
    }

    /// Waits until more lists than these are taken in, or the call cannot be held any longer.
    async fn list_after(&self, seen: u64, until: Instant) {
        let mut listed = self.listed.subscribe();
        let next = listed.wait_for(|lists| *lists > seen);
        if timeout_at(until, next).await.is_err() {
            debug!("a call goes on before the list that it waited for is done");
        }
    }

    /// Writes what an update needs to be there before it goes on.
    pub(crate) async fn write_first(&self, changes: Vec<Change>, until: Instant) {
        let Some(cgroup) = changes.first().map(|it| it.at.clone()) else {
            return;
        };
        let written = self.writer.write(changes);
        if timeout_at(until, written).await.is_err() {
            debug!(%cgroup, "what an update needs to find is written late");
        }
    }

    /// A decision about an update, and what is to be written before it goes on.
    fn decide_and_prepare(
        &self,
        request: &cri::UpdateContainerResourcesRequest,
        id: ContainerId,
        message: &[u8],
    ) -> (Decision, Vec<Change>) {
        let mut decision = self.decide_update(request, id.clone(), message);
        let first = match decision.answer {
            // It does not come about.
            Answer::Refused(_) | Answer::AsIs(Untouched::Unsound | Untouched::Unknown) => {
                First::default()
            }
            Answer::Patched(_) | Answer::AsIs(_) => {
                self.prepare_update(&id, &view::requested(request.linux.as_ref()))
            }
        };
        decision.pending.has_lowered(first.lowering);
        (decision, first.changes)
    }

    fn decide_update(
        &self,
        request: &cri::UpdateContainerResourcesRequest,
        id: ContainerId,
        message: &[u8],
    ) -> Decision {
        let asked = view::requested(request.linux.as_ref());
        let swap = view::swap_said(request.linux.as_ref());
        let ledger = self.ledger.borrow();
        let Some((pod, container)) = ledger.container(&id) else {
            self.relist_soon();
            // The list that tells of it may be asked for before the runtime has done this.
            let update = Update {
                asked,
                swap,
                said: Target::default(),
                had: Default::default(),
                lowering: None,
                earlier: None,
            };
            let effect = Effect::Update(id, Box::new(update));
            return Decision::as_is(Untouched::Unknown, effect);
        };
        let planned = match self.plan_update(pod, container, &asked) {
            Ok(planned) => planned,
            Err(status) => return Decision::refused(status),
        };
        let PlannedUpdate {
            mut target,
            period,
            memory,
        } = planned;
        let patch = match (self.hands_off(pod.exemption), &request.linux) {
            (Some(why), _) => Err(Answer::AsIs(why)),
            (None, None) => Ok(None),
            (None, Some(linux)) if !self.is_sound(linux) => Err(Answer::AsIs(Untouched::Unsound)),
            (None, Some(linux)) => {
                let cpus = self.cpus_below(pod.parent.as_ref(), &target);
                let limits = self.limits(message, cpus.as_ref());
                let asked = patch::Asked {
                    linux,
                    period,
                    memory,
                    swap: view::swap_after(container.swap, swap, &asked),
                };
                patch::update(&asked, &mut target, limits)
                    .map_err(|error| self.unpatched(&error, &pod.view))
            }
        };
        let update = Update {
            asked,
            swap,
            said: target,
            had: Default::default(),
            lowering: None,
            earlier: None,
        };
        let effect = Effect::Update(id, Box::new(update));
        let pending = Pending::new(effect, self.generation.get());
        Decision::patched_or(patch, pending)
    }

    /// What becomes of a request that cannot carry its patch: it passes as it came, unless a hook
    /// whose value it would have carried insists.
    fn unpatched(&self, error: &PatchError, pod: &PodView) -> Answer {
        let PatchError::TooLarge { hooks, .. } = error;
        let policy = self.policy();
        let insists = |hook: &&&str| policy.chain().fail_policy(hook) == Some(FailPolicy::Closed);
        match hooks.iter().find(insists) {
            Some(hook) => Answer::Refused(Status::unpatched(hook, pod, error)),
            None => Answer::AsIs(Untouched::TooLarge),
        }
    }

    /// How long a call may be held: a part of what its caller has.
    pub(super) fn held_until(&self, timeout: Option<Duration>) -> Instant {
        let most = self.hold_timeout;
        Instant::now() + timeout.map_or(most, |left| most.min(left / 2))
    }

    fn is_sound(&self, linux: &cri::LinuxContainerResources) -> bool {
        view::is_sound(linux, &self.policy().node().kernel.usable_cpus)
    }

    fn limits<'a>(&self, message: &'a [u8], cpus: Option<&'a CpuSet>) -> patch::Limits<'a> {
        patch::Limits {
            message,
            max_message_bytes: self.max_message_bytes,
            runtime: self.runtime_name.get(),
            cpus,
        }
    }
}

// === impl Decision ===

impl Decision {
    fn patched_or(patch: Result<Option<Vec<u8>>, Answer>, pending: Pending) -> Self {
        let answer = match patch {
            Ok(Some(bytes)) => Answer::Patched(bytes),
            Ok(None) => Answer::AsIs(Untouched::Nothing),
            Err(Answer::Refused(status)) => return Self::refused(status),
            Err(answer) => answer,
        };
        Self { answer, pending }
    }
}

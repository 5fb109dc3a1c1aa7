//! What a call will have changed once it has succeeded, and taking that over into the ledger.
//!
//! Decisions are made when a call comes and committed when its answer has passed. What happened in
//! between (another update of the same container, a change of policy) is not undone: a commit
//! carries what the call said, not a copy of what was known when it came.

use super::{Hub, NewContainer, NewPod, Reply, SAID, asked, shows};
use crate::{
    apply::cri::set_injected,
    front::cri::Method,
    ledger::{Changes, Container, Ledger, Life, Pod, Target},
    reconcile::has_group,
    view,
};
use koord_hooks::Requested;
use koord_model::{ContainerId, CpuQuota, MemoryLimit, SandboxId, Setting, Value};
use koord_proto::wire;
use std::{mem, rc::Rc};

/// gRPC statuses after which it is unknown what the runtime did: CANCELLED, UNKNOWN,
/// DEADLINE_EXCEEDED, INTERNAL, UNAVAILABLE.
const UNCERTAIN: [u32; 5] = [1, 2, 4, 13, 14];

/// What containerd answers for each pod and container that it cannot make, start, stop or update.
const UNKNOWN: u32 = 2;

/// What a runtime answers that does not have a call.
const UNIMPLEMENTED: u32 = 12;

/// What a call will have changed if it succeeds.
#[derive(Debug)]
pub struct Pending {
    effect: Effect,
    /// Of the decision that it was made with.
    generation: Option<u64>,
}

#[derive(Debug)]
pub(super) enum Effect {
    Nothing,
    /// Nothing that is known: the call could not be read, or not be thought about to the end.
    Unknown,
    /// The same of an update of a container.
    UnreadUpdate,
    Run(Box<NewPod>),
    StopPod(SandboxId),
    RemovePod(SandboxId),
    Create(SandboxId, Box<NewContainer>),
    Start(ContainerId),
    Stop(ContainerId),
    Remove(ContainerId),
    Update(ContainerId, Box<Update>),
    UpdatePod(SandboxId, Requested),
}

/// An update of a container: what this call asked, and what it said of what was decided.
#[derive(Debug)]
pub(super) struct Update {
    pub(super) asked: Requested,
    /// What it asked of memory and swap together.
    pub(super) swap: Option<MemoryLimit>,
    pub(super) said: Target,
    /// What the container had when it came, as far as that is told.
    pub(super) had: Requested,
    /// By which bursts are kept low for it.
    pub(super) lowering: Option<u64>,
    /// One of the same container that was under way when this one came.
    pub(super) earlier: Option<Box<Update>>,
}

impl Effect {
    /// Of a call that nobody here has read.
    pub(super) fn unread(method: Method) -> Self {
        match method {
            Method::UpdateContainerResources => Self::UnreadUpdate,
            _ => Self::Unknown,
        }
    }
}

impl From<Effect> for Pending {
    fn from(effect: Effect) -> Self {
        Self {
            effect,
            generation: None,
        }
    }
}

impl Update {
    /// One that nobody here has read and that has come about: it has asked for this.
    pub(super) fn unread(asked: Requested) -> Self {
        Self {
            asked,
            swap: None,
            said: Target::default(),
            had: Requested::default(),
            lowering: None,
            earlier: None,
        }
    }

    /// However it ended, nothing is kept low for it any more.
    fn ended(&self, ledger: &mut Ledger, id: &ContainerId) {
        if let (Some(number), Some(pod)) = (self.lowering, ledger.pod_of_mut(id)) {
            pod.lowering_ended(number);
        }
    }

    /// Whether a runtime that shows this has done it, as far as a `later` one has not said otherwise. What was
    /// there before says nothing.
    fn is_done(&self, shown: &Requested, later: Option<&Self>) -> bool {
        let is_said_later = |setting| later.is_some_and(|it| asked(&it.asked, setting).is_some());
        let is_new = |it: &Value| shows(shown, it) && !shows(&self.had, it);
        SAID.into_iter().all(|setting| {
            let values = self.values(setting);
            values.is_none_or(|values| is_said_later(setting) || values.iter().any(is_new))
        })
    }

    /// What a spec may have of a setting once this is done: as asked, and as we have said it, of which nothing
    /// comes where we were late. `None` if it does not ask for any.
    fn values(&self, setting: Setting) -> Option<Vec<Value>> {
        let asked = asked(&self.asked, setting)?;
        let said = self.said.entries().iter().map(|entry| &entry.desired);
        let said = said.filter(|it| it.setting() == setting).cloned();
        Some([asked].into_iter().chain(said).collect())
    }

    /// What the runtime was told with it beside what it asks for.
    fn told(&self) -> impl Iterator<Item = &Value> {
        let entries = self.said.entries().iter();
        let told = entries.filter(|it| it.told.as_deref() == Some(&it.desired));
        told.map(|entry| &entry.desired)
    }

    /// What a spec may have of a setting once this is done, whether it asks for that or only we have told it.
    fn has_said(&self, setting: Setting) -> impl Iterator<Item = Value> {
        let told = self.told().filter(move |it| it.setting() == setting);
        asked(&self.asked, setting).into_iter().chain(told.cloned())
    }
}

// === impl Pending ===

impl Pending {
    /// Whether this is an update that a container has whose spec says what is `shown`.
    pub(crate) fn has_come_about(&self, shown: &Requested) -> bool {
        let Effect::Update(_, update) = &self.effect else {
            return false;
        };
        let asked = SAID
            .into_iter()
            .filter_map(|setting| update.values(setting));
        let asked: Vec<_> = asked.collect();
        let is_shown = |values: &Vec<Value>| values.iter().any(|it| shows(shown, it));
        // One that asks for nothing that a spec shows cannot be seen.
        !asked.is_empty() && asked.iter().all(is_shown)
    }

    /// Whether what the runtime was told with this update is not `shown` any more, but in its place what it was
    /// told or asked with one of these.
    pub(super) fn is_replaced<'a>(
        &self,
        mut by: impl Iterator<Item = &'a Self> + Clone,
        shown: &Requested,
    ) -> bool {
        let Effect::Update(_, update) = &self.effect else {
            return false;
        };
        let is_there = |other: &Self, setting| match &other.effect {
            Effect::Update(_, other) => other.has_said(setting).any(|it| shows(shown, &it)),
            _ => false,
        };
        let gone = update.told().filter(|it| !shows(shown, it));
        let gone: Vec<_> = gone.map(Value::setting).collect();
        by.any(|other| gone.iter().any(|setting| is_there(other, *setting)))
    }

    /// Whether this is an update that was done before these `later` ones, which have replaced what is not
    /// `shown` of it. Something has to be that is `news`: by nobody else who is known.
    pub(super) fn is_overtaken<'a>(
        &self,
        later: impl Iterator<Item = &'a Self> + Clone,
        shown: &Requested,
        news: &Requested,
    ) -> bool {
        let Effect::Update(_, update) = &self.effect else {
            return false;
        };
        let later = later.filter_map(|it| match &it.effect {
            Effect::Update(_, later) => Some(later),
            _ => None,
        });
        let mut is_told = false;
        for setting in SAID {
            let Some(values) = update.values(setting) else {
                continue;
            };
            if values.iter().any(|it| shows(shown, it)) {
                let by_later = later.clone().any(|it| it.values(setting).is_some());
                is_told |= !by_later && asked(news, setting).is_some();
            } else if !later
                .clone()
                .any(|it| it.has_said(setting).next().is_some())
            {
                return false;
            }
        }
        is_told
    }

    /// Whether a container comes of it.
    pub(crate) fn is_creation(&self) -> bool {
        matches!(self.effect, Effect::Create(..))
    }

    /// The most CPU time, in a period of 100 ms, that a container is about to be made with: as was decided or,
    /// should that not be said, as is asked. `None` if neither limits it.
    pub(crate) fn quota(&self) -> Option<CpuQuota> {
        let Effect::Create(_, new) = &self.effect else {
            return None;
        };
        let entries = new.target.entries().iter();
        let decided = entries.filter_map(|it| match it.desired {
            Value::CpuQuota(quota) => Some(quota),
            _ => None,
        });
        let Requested { cpu_quota, .. } = new.view.requested;
        let asked = cpu_quota.map(|quota| quota.of_period(new.view.requested.period()));
        let quotas = decided.chain(asked);
        quotas.filter(|it| *it != CpuQuota::Unlimited).max()
    }

    /// The runtime was not told: what a container can only be made with it is made without, and nothing
    /// else is given by that.
    pub(crate) fn leave_unsaid(&mut self) {
        match &mut self.effect {
            Effect::Create(_, new) => {
                set_injected(&mut new.target, false);
                new.target.leave_unsaid();
            }
            Effect::Update(_, update) => update.said = Target::default(),
            _ => {}
        }
    }

    /// An update that came while an `earlier` one of its container was under way, if that is what they are.
    /// A runtime does not tell of one that failed, so of those before that nothing is known any more.
    pub(crate) fn behind(mut self, earlier: Self) -> Self {
        if let Effect::Update(_, update) = &mut self.effect
            && let Effect::Update(_, mut earlier) = earlier.effect
        {
            earlier.earlier = None;
            update.earlier = Some(earlier);
        }
        self
    }

    /// An update and the one that was under way when it came, in the order in which they came.
    pub(super) fn apart(self) -> Vec<Self> {
        let Self { effect, generation } = self;
        let Effect::Update(id, mut update) = effect else {
            return vec![Self { effect, generation }];
        };
        let both = update.earlier.take().into_iter().chain([update]);
        let of = |update| Self {
            effect: Effect::Update(id.clone(), update),
            generation,
        };
        both.map(of).collect()
    }

    /// The runtime has done one of these and shows this now. What has come about, in order, and what is still
    /// under way.
    pub(crate) fn split(self, shown: &Requested) -> (Vec<Self>, Option<Self>) {
        let Self { effect, generation } = self;
        let pending = |effect| Self { effect, generation };
        let Effect::Update(id, mut update) = effect else {
            return (vec![pending(effect)], None);
        };
        let of = |update| pending(Effect::Update(id.clone(), update));
        let Some(earlier) = update.earlier.take() else {
            return (vec![of(update)], None);
        };
        if !update.is_done(shown, None) && earlier.is_done(shown, None) {
            return (vec![of(earlier)], Some(of(update)));
        }
        let earlier = Some(earlier).filter(|it| it.is_done(shown, Some(&update)));
        let both = earlier.into_iter().chain([update]);
        (both.map(of).collect(), None)
    }

    /// For an update bursts were lowered by this, if any.
    pub(super) fn has_lowered(&mut self, lowering: Option<u64>) {
        if let Effect::Update(_, update) = &mut self.effect {
            update.lowering = lowering;
        }
    }

    pub(super) fn new(effect: Effect, generation: u64) -> Self {
        Self {
            effect,
            generation: Some(generation),
        }
    }
}

// === impl Hub ===

impl Hub {
    /// Commits what a call changed, now that it is known how it ended.
    pub fn close(self: &Rc<Self>, pending: Pending, reply: Reply) {
        if matches!(pending.effect, Effect::Nothing) {
            return;
        }
        if let (Effect::Update(id, update), Reply::Answered { grpc_status, .. }) =
            (&pending.effect, &reply)
        {
            let mut ledger = self.ledger.borrow_mut();
            update.ended(&mut ledger, id);
            if *grpc_status != Some(0) {
                may_be_rewritten(&mut ledger, id);
            }
        }
        match reply {
            Reply::Answered {
                grpc_status: Some(0),
                message,
            } => {
                // All replies that name something name it so.
                let name = message.as_deref();
                let name = name.and_then(|message| wire::string_field(message, 1));
                self.commit(pending, name);
            }
            // The kubelet, whose doing this is, goes on without it.
            Reply::Answered {
                grpc_status: Some(UNIMPLEMENTED),
                ..
            } if matches!(pending.effect, Effect::UpdatePod(..)) => self.commit(pending, None),
            Reply::Answered {
                grpc_status: Some(code),
                ..
            } if !UNCERTAIN.contains(&code) => self.note_failed(&pending.effect),
            Reply::Answered {
                grpc_status: code, ..
            } => self.doubt(pending, code),
            Reply::Lost => self.doubt(pending, None),
        }
        self.tell_size(&self.ledger.borrow());
    }

    /// Pods and containers have come or gone: says how many there are.
    pub(super) fn tell_size(&self, ledger: &Ledger) {
        self.metrics
            .ledger_size(ledger.pods_len(), ledger.containers_len());
    }

    /// The same where pods may have gone: drops what waits of those that have.
    pub(crate) fn count_and_forget_the_gone(&self, ledger: &Ledger) {
        self.tell_size(ledger);
        self.queue.forget_all_but(ledger, self);
    }

    /// Nothing came of a call. What was done for it beforehand is not as was decided.
    fn note_failed(&self, effect: &Effect) {
        if let Effect::Update(id, _) = effect
            && let Some(sandbox) = self.ledger.borrow().sandbox_of(id)
        {
            self.queue.push(sandbox.clone());
        }
    }

    /// The runtime may have done it all the same; only it knows. If it said itself that it failed, nothing
    /// is in doubt but the values of what is known: a container that cannot start, or a pod whose network
    /// cannot be made or torn down, fails for as long as it is tried, and must not cost a list each time.
    /// What a runtime keeps of a pod that it could not make, or has ended of one that it could not stop, the
    /// list of each minute finds.
    fn doubt(&self, pending: Pending, code: Option<u32>) {
        let ledger = self.ledger.borrow();
        let known = match &pending.effect {
            Effect::Start(id) | Effect::Stop(id) | Effect::Remove(id) | Effect::Update(id, _) => {
                ledger.sandbox_of(id)
            }
            Effect::StopPod(sandbox)
            | Effect::RemovePod(sandbox)
            | Effect::UpdatePod(sandbox, _) => ledger.pod(sandbox).map(|pod| &pod.sandbox),
            Effect::UnreadUpdate => {
                self.update_unread(&ledger);
                None
            }
            Effect::Nothing | Effect::Unknown | Effect::Run(_) | Effect::Create(..) => None,
        };
        if let Some(sandbox) = known {
            self.queue.push(sandbox.clone());
        }
        let is_made = matches!(pending.effect, Effect::Run(_) | Effect::Create(..));
        if code != Some(UNKNOWN) || (known.is_none() && !is_made) {
            self.relist_soon();
        }
        if let Effect::Update(id, _) = &pending.effect
            && code != Some(UNKNOWN)
        {
            let id = ledger.meant_container(id.clone());
            drop(ledger);
            self.update_lost(id, pending);
        }
    }

    /// Takes over what a call did; `name` is the id of what it made.
    pub(super) fn commit(&self, pending: Pending, name: Option<&str>) {
        let stale = pending
            .generation
            .is_some_and(|made| made != self.generation.get());
        let mut ledger = self.ledger.borrow_mut();
        match pending.effect {
            Effect::Nothing => {}
            Effect::Unknown => self.relist_soon(),
            Effect::UnreadUpdate => self.update_unread(&ledger),
            Effect::Run(pod) => match name.and_then(|name| SandboxId::new(name).ok()) {
                Some(sandbox) => {
                    self.commit_run(&mut ledger, *pod, sandbox.clone(), stale);
                    self.queue.push(sandbox);
                }
                None => self.relist_soon(),
            },
            Effect::Create(sandbox, new) => match name.and_then(|name| ContainerId::new(name).ok())
            {
                Some(id) => self.commit_create(&mut ledger, &sandbox, *new, id, stale),
                None => self.relist_soon(),
            },
            Effect::Update(id, update) => {
                // By the beginning of its id it may be known since the call came.
                let id = ledger.meant_container(id);
                self.forget_lost(&id);
                self.commit_update(&mut ledger, &id, *update);
                self.check_container(&ledger, &id);
            }
            Effect::Start(id) => {
                commit_start(&mut ledger, &id);
                self.check_container(&ledger, &id);
            }
            Effect::UpdatePod(sandbox, requested) => {
                commit_pod_update(&mut ledger, &sandbox, &requested);
                self.queue.push(sandbox);
            }
            Effect::Stop(id) => {
                if let Some(container) = ledger.tell_container(&id) {
                    let lived = mem::replace(&mut container.life, Life::Exited) != Life::Exited;
                    self.sum_again(ledger.pod_of_mut(&id).filter(|_| lived));
                }
            }
            Effect::StopPod(sandbox) => self.commit_stop(&mut ledger, &sandbox),
            Effect::Remove(id) => {
                let lived = ledger.container(&id);
                let lived = lived.is_some_and(|(_, known)| known.life != Life::Exited);
                let sandbox = ledger.sandbox_of(&id).cloned().filter(|_| lived);
                ledger.remove_container(&id);
                self.sum_again(sandbox.and_then(|sandbox| ledger.pod_mut(&sandbox)));
            }
            Effect::RemovePod(sandbox) => {
                // It may not have been stopped before.
                self.commit_stop(&mut ledger, &sandbox);
                ledger.remove_pod(&sandbox);
                self.queue.forget_all_but(&ledger, self);
            }
        }
    }

    /// The pod is in the ledger from here on; whoever says so has it looked at.
    pub(super) fn commit_run(
        &self,
        ledger: &mut Ledger,
        new: NewPod,
        sandbox: SandboxId,
        stale: bool,
    ) {
        let mut pod = Pod {
            exemption: new.exemption,
            own: new.own,
            pause: new.pause,
            ..Pod::new(sandbox, new.view, new.said, new.parent)
        };
        self.place(&mut pod);
        if self.follow_source(&mut pod) || stale {
            self.decide_again(&mut pod);
        }
        self.cover(&pod);
        ledger.insert_pod(pod);
    }

    fn commit_stop(&self, ledger: &mut Ledger, sandbox: &SandboxId) {
        let Some(pod) = ledger.tell_pod(sandbox) else {
            return;
        };
        // Its containers may have ended before it.
        let had_group = has_group(pod);
        // One that ends sends no more: nobody is asked from where.
        if mem::replace(&mut pod.ready, false) {
            self.cover(pod);
        }
        if had_group {
            self.queue.push_groups();
        }
        for container in &mut pod.containers {
            container.life = Life::Exited;
        }
    }

    fn commit_create(
        &self,
        ledger: &mut Ledger,
        sandbox: &SandboxId,
        new: NewContainer,
        id: ContainerId,
        stale: bool,
    ) {
        let Some(pod) = ledger.pod_mut(sandbox) else {
            return self.relist_soon();
        };
        let told = new.target.entries().iter();
        let told = told.filter_map(|entry| entry.told.as_deref());
        let is_asked = |it: &&Value| asked(&new.view.requested, it.setting()).as_ref() == Some(*it);
        let ours: Box<[Value]> = told.filter(|it| !is_asked(it)).cloned().collect();
        let mut container = Container {
            target: new.target,
            ours,
            is_as_made: true,
            changes: Changes::Known,
            swap: new.swap,
            ..Container::of_view(id, new.view)
        };
        container.target.at = self.container_dir(new.parent.as_ref(), &container.id);
        for entry in container.target.entries_mut() {
            entry.made_with = container.ours.contains(&entry.desired);
        }
        let newer = self.renew(pod, new.pod, new.said);
        ledger.insert_container(sandbox, container);
        if (newer || stale)
            && let Some(pod) = ledger.pod_mut(sandbox)
        {
            self.decide_again(pod);
            self.queue.push(sandbox.clone());
        }
    }

    /// What is in force follows from all that was asked for by now, which may be more than this call
    /// knew of: another update of the container, under way at the same time, may have been done.
    fn commit_update(&self, ledger: &mut Ledger, id: &ContainerId, update: Update) {
        ledger.tell_container(id);
        update.ended(ledger, id);
        let Some(pod) = ledger.pod_of_mut(id) else {
            return;
        };
        let (view, exemption) = (&pod.view, pod.exemption);
        let Some(container) = pod.containers.iter_mut().find(|it| it.id == *id) else {
            return;
        };
        container.swap = view::swap_after(container.swap, update.swap, &update.asked);
        let news = update.asked.clone();
        container.view.requested = view::overlaid(&container.view.requested, update.asked);
        let target = &mut container.target;
        // Nobody is there any more to refuse.
        self.decide_container(view, exemption, &container.view, target)
            .ok();
        target.hear_said(&update.said);
        target.hear_asked(&update.said, |setting| asked(&news, setting));
        target.runtime_rewrote();
    }

    /// A pod has one container less: what its own directory has may be a sum over those that live. Most
    /// are not, and then there is nothing to hold against the kernel.
    fn sum_again(&self, pod: Option<&mut Pod>) {
        if let Some(pod) = pod.filter(|pod| pod.ready) {
            self.decide_own_directory(pod);
            self.queue.push_if_new(pod);
        }
    }

    /// Has the values of a container held against the kernel.
    fn check_container(&self, ledger: &Ledger, id: &ContainerId) {
        match ledger.sandbox_of(id) {
            Some(sandbox) => self.queue.push(sandbox.clone()),
            None => self.relist_soon(),
        }
    }
}

/// A runtime that fails at an update may have written its whole stored spec to undo it, in which our values
/// may be that were given back.
fn may_be_rewritten(ledger: &mut Ledger, id: &ContainerId) {
    let id = ledger.meant_container(id.clone());
    let pod = ledger.pod_of_mut(&id);
    if let Some(container) = pod.and_then(|pod| pod.container_mut(&id)) {
        container.target.runtime_rewrote();
    }
}

/// A container runs, or is about to. False if it is not known.
pub(super) fn commit_start(ledger: &mut Ledger, id: &ContainerId) -> bool {
    let Some(container) = ledger.tell_container(id) else {
        return false;
    };
    // What does not run yet nobody has changed but in its spec.
    if mem::replace(&mut container.life, Life::Running) == Life::Created {
        container.changes = Changes::Known;
    }
    true
}

/// Another amount is asked for a pod as a whole: that is what comes back one day.
pub(super) fn commit_pod_update(ledger: &mut Ledger, sandbox: &SandboxId, requested: &Requested) {
    if let Some(pod) = ledger.tell_pod(sandbox) {
        pod.own.ask_anew(|setting| asked(requested, setting));
    }
}

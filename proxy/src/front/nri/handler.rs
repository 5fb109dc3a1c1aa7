//! What the runtime's questions come to: who decides is the hub, what is done at which moment is
//! found here.
//!
//! A decision is committed when the runtime tells that it was carried out, as the CRI front commits
//! with the reply. Kernel writes are waited for where it counts, a part of the time that the runtime
//! gives at most: what is late then is written all the same, beside.
//!
//! The run of a sandbox waits for none: what its pod's directory is to have is handed over. The next thing
//! that a runtime does after a creation is to make the container's group below that directory, so a creation
//! waits for what is not there yet where the directory may have less than the container takes, unless the
//! writer was late the last time. A start waits for what is new of the directory in any case, and for what its
//! container's group does not have by its spec, for its pod's threads to be in
//! their groups, unless whoever brings them there was late the last time, and for the first list where that
//! may tell who has the cookie of its group of cores, unless one has waited for that in vain.

use super::asked::{Answer, Asked};
use crate::{hub::Hub, hub::Pending, reconcile, status::Status, worker::LATE};
use koord_model::SandboxId;
use koord_proto::nri::{
    Container, CreateContainerRequest, Event, EventMask, LinuxResources, PodSandbox,
    UpdateContainerRequest,
};
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    rc::Rc,
    time::Duration,
};
use tokio::{
    sync::Mutex,
    time::{Instant, timeout_at},
};
use tracing::debug;

/// What we want to know of.
pub(super) const EVENTS: [Event; 13] = [
    Event::RunPodSandbox,
    Event::StopPodSandbox,
    Event::RemovePodSandbox,
    Event::CreateContainer,
    Event::PostCreateContainer,
    Event::StartContainer,
    Event::PostStartContainer,
    Event::UpdateContainer,
    Event::PostUpdateContainer,
    Event::StopContainer,
    Event::RemoveContainer,
    Event::UpdatePodSandbox,
    Event::PostUpdatePodSandbox,
];

/// Decisions of which the runtime has not told that they were carried out. It works on few at a
/// time; of more, which are creations that have failed, the oldest is forgotten.
const PENDING: usize = 4096;

/// Those decisions, by the container's id and with their order.
pub(super) type Pendings = HashMap<String, (u64, Pending)>;

/// Answers the questions of one session.
pub(super) struct Handler {
    hub: Rc<Hub>,
    /// How long a question is held at most, for whatever its answer waits for.
    patience: Duration,
    pending: RefCell<Pendings>,
    decisions: Cell<u64>,
    /// A start has waited [`LATE`] or more for the first list, and it did not come.
    list_is_late: Cell<bool>,
    /// To go on in the order of arrival after a wait for koordlet. It is held over that wait: who is behind
    /// it waits for the same, and no longer.
    turn: Mutex<()>,
}

/// Which events we want, where the runtime has them.
pub(super) fn events() -> EventMask {
    EventMask::of(&EVENTS)
}

// === impl Handler ===

impl Handler {
    pub(super) fn new(hub: Rc<Hub>, request_timeout: Duration) -> Self {
        Self {
            hub,
            patience: request_timeout / 4,
            pending: RefCell::default(),
            decisions: Cell::new(0),
            list_is_late: Cell::new(false),
            turn: Mutex::default(),
        }
    }

    /// The same after an `earlier` session, in which the runtime may have done more than it has told.
    pub(super) fn after(self, earlier: Pendings) -> Self {
        self.pending.replace(earlier);
        self
    }

    /// Decisions of which the runtime has not told that they were carried out.
    pub(super) fn take_pending(&self) -> Pendings {
        self.pending.take()
    }

    /// Answers a question from memory, once it is known whether koordlet decides here: at a start.
    ///
    /// All that it waits for takes half of the time at most until it is `due`, when it is answered with
    /// nothing: a runtime may say with a question that it waits for less than it said before.
    pub(super) async fn answer_by(&self, asked: Asked, due: Instant) -> Answer {
        self.hub.queue().note_asked();
        let begun = Instant::now();
        let left = due.saturating_duration_since(begun);
        let patience = self.patience.min(left / 2);
        let until = begun + patience;
        let turn = self.turn.lock().await;
        self.hub.koordlet_known(begun + patience / 2).await;
        drop(turn);
        match asked {
            Asked::Synchronize { pods, containers } => {
                let earlier = self.take_pending().into_iter();
                let earlier = earlier.map(|(id, (_, pending))| (id, pending)).collect();
                let updates = self.hub.synchronize(&pods, &containers, earlier);
                // The runtime counts on us from its answer on.
                self.hub.set_plugin_up(true);
                Answer::Update(updates)
            }
            Asked::CreateContainer(CreateContainerRequest { pod, container }) => {
                refused(self.create(pod, container, until).await)
            }
            Asked::UpdateContainer(UpdateContainerRequest {
                pod,
                container,
                linux_resources,
            }) => refused(self.update(pod, container, linux_resources, until).await),
            Asked::StopContainer(request) => {
                if let Some(container) = request.container {
                    self.hub.container_stopped(&container.id);
                }
                Answer::Nothing
            }
            Asked::UpdatePodSandbox(request) => {
                if let Some(pod) = &request.pod {
                    let resources = request.linux_resources.as_ref();
                    let overhead = request.overhead_linux_resources.as_ref();
                    let first = self.hub.sandbox_changes(pod, resources, overhead);
                    self.hub.write_first(first, until).await;
                }
                Answer::Nothing
            }
            Asked::Happened {
                event,
                pod: Some(pod),
                container,
            } => self.happened(event, &pod, container.as_ref(), until).await,
            Asked::Happened { .. } => Answer::Nothing,
        }
    }

    async fn create(
        &self,
        pod: Option<PodSandbox>,
        container: Option<Container>,
        until: Instant,
    ) -> Result<Answer, Status> {
        let (Some(pod), Some(container)) = (pod, container) else {
            return Ok(Answer::Nothing);
        };
        // The rest is for what is written.
        let patience = until.saturating_duration_since(Instant::now()) / 2;
        let creation = self.hub.creation(&pod, &container, patience);
        let (adjust, pending) = creation.await?;
        let quota = pending.quota();
        // Before anything else is waited for: the runtime may not wait for us.
        self.remember(container.id, pending);
        if let Ok(sandbox) = SandboxId::new(&pod.id)
            && reconcile::lacks_room(&self.hub, &sandbox, quota)
        {
            // A runtime asks one thing at a time, for whatever pod: of a writer that stands still the first
            // creation that has waited is enough.
            let until = match self.hub.writer().is_late() {
                true => Instant::now(),
                false => until,
            };
            let written = reconcile::new_values_of_pod(&self.hub, &sandbox, &[]);
            self.wait_for(&sandbox, written, until).await;
        }
        Ok(adjust.map_or(Answer::Nothing, |it| Answer::Adjust(Box::new(it))))
    }

    async fn update(
        &self,
        pod: Option<PodSandbox>,
        container: Option<Container>,
        asked: Option<LinuxResources>,
        until: Instant,
    ) -> Result<Answer, Status> {
        let (Some(pod), Some(container)) = (pod, container) else {
            return Ok(Answer::Nothing);
        };
        let asked = asked.unwrap_or_default();
        let (update, mut pending) = self.hub.change(&pod, &container, &asked)?;
        self.hub.update_begins(&container);
        let first = self.hub.written_first(&container, &asked, &mut pending);
        // Before anything is waited for: the runtime may not wait for us.
        self.remember(container.id, pending);
        self.hub.write_first(first, until).await;
        Ok(update.map_or(Answer::Nothing, |it| Answer::Update(vec![it])))
    }

    async fn happened(
        &self,
        event: Event,
        pod: &PodSandbox,
        container: Option<&Container>,
        until: Instant,
    ) -> Answer {
        let hub = &self.hub;
        match (event, container) {
            (Event::RunPodSandbox, _) => {
                if let Err(status) = hub.sandbox_runs(pod) {
                    return Answer::Refuse(status.message);
                }
            }
            (Event::StartContainer, Some(container)) => {
                self.starts(pod, container, until).await;
            }
            // What no adjustment could say is written when it starts.
            (Event::PostCreateContainer, Some(container)) => self.carried_out(pod, container),
            (Event::PostUpdateContainer, Some(container)) => {
                self.carried_out(pod, container);
                hub.look_at(pod);
            }
            (Event::PostStartContainer, Some(container)) => hub.note_started(pod, container),
            (Event::PostUpdatePodSandbox, _) => hub.look_soon_at(pod),
            (Event::RemoveContainer, Some(container)) => {
                self.pending.borrow_mut().remove(&container.id);
                hub.container_removed(&container.id);
            }
            (Event::StopPodSandbox, _) => hub.sandbox_stopped(&pod.id),
            (Event::RemovePodSandbox, _) => hub.sandbox_removed(&pod.id),
            _ => {}
        }
        Answer::Nothing
    }

    /// A container is about to run: what it has to have by then is waited for.
    async fn starts(&self, pod: &PodSandbox, container: &Container, until: Instant) {
        let hub = &self.hub;
        // Where the runtime does not tell that it was made. Of an update that it would have told nothing
        // came.
        self.forget_update(&container.id);
        self.commits(container);
        let Some(sandbox) = hub.starts(pod, container) else {
            return;
        };
        let there = hub.in_spec(container);
        let written = reconcile::new_values_of_pod(hub, &sandbox, &there);
        self.wait_for(&sandbox, written, until).await;
        // Any pod may have threads that take long, and this start may be any other pod's.
        let until_joined = match hub.writer().is_late_with_threads() {
            true => Instant::now(),
            false => until,
        };
        let joined = reconcile::threads_of_pod(hub, &sandbox);
        let joined = self.wait_for(&sandbox, joined, until_joined).await;
        if joined.is_none() {
            // Some are behind other pods' threads, and what starts meanwhile is where they are.
            hub.queue().push_new_threads(sandbox.clone());
        }
        let awaits_list = joined == Some(true);
        // As of the writer, of a list that does not come the first start that has waited is enough. What
        // it is for comes after the start.
        if awaits_list && !self.list_is_late.get() {
            let begun = Instant::now();
            let joined = reconcile::listed_threads_of_pod(hub, &sandbox);
            let joined = self.wait_for(&sandbox, joined, until).await;
            if joined.is_none() && begun.elapsed() >= LATE {
                self.list_is_late.set(true);
            }
        }
    }

    fn remember(&self, id: String, decided: Pending) {
        let mut pending = self.pending.borrow_mut();
        if pending.len() >= PENDING && !pending.contains_key(&id) {
            let oldest = pending.iter().min_by_key(|(_, (order, _))| *order);
            if let Some(oldest) = oldest.map(|(id, _)| id.clone()) {
                pending.remove(&oldest);
            }
        }
        let order = self.decisions.get();
        self.decisions.set(order + 1);
        let decided = match pending.remove(&id) {
            Some((_, earlier)) => decided.behind(earlier),
            None => decided,
        };
        pending.insert(id, (order, decided));
    }

    /// The runtime was not told what was decided about a creation: it was too late, or too long.
    pub(super) fn unsaid(&self, id: &str) {
        match self.pending.borrow_mut().get_mut(id) {
            Some((_, pending)) if pending.is_creation() => pending.leave_unsaid(),
            // It was made by now, and may be updated.
            _ => self.hub.creation_is_unsaid(id),
        }
    }

    fn forget_update(&self, id: &str) {
        let mut pending = self.pending.borrow_mut();
        if pending.get(id).is_some_and(|(_, it)| !it.is_creation()) {
            pending.remove(id);
        }
    }

    /// Commits what was decided about a container; one of which nothing is known is taken in.
    fn carried_out(&self, pod: &PodSandbox, container: &Container) {
        if !self.commits(container) {
            self.hub.meet(pod, container);
        }
    }

    /// Whether anything was decided about it.
    fn commits(&self, container: &Container) -> bool {
        let decided = self.pending.borrow_mut().remove(&container.id);
        let Some((order, pending)) = decided else {
            return false;
        };
        if let Some(under_way) = self.hub.carried_out(pending, container) {
            let id = container.id.clone();
            self.pending.borrow_mut().insert(id, (order, under_way));
        }
        true
    }

    /// Waits until what is new of a pod is in the kernel, before the runtime goes on. All else of it is
    /// looked at beside, and so is what is late: of an outcome that nobody waits for nobody hears.
    async fn wait_for<T>(
        &self,
        sandbox: &SandboxId,
        written: impl Future<Output = T>,
        until: Instant,
    ) -> Option<T> {
        let written = timeout_at(until, written).await.ok();
        if written.is_none() {
            debug!(%sandbox, "settings are late");
            self.hub.queue().push_soon(sandbox.clone());
        }
        written
    }
}

fn refused(answer: Result<Answer, Status>) -> Answer {
    answer.unwrap_or_else(|status| Answer::Refuse(status.message))
}

#[cfg(test)]
mod tests;

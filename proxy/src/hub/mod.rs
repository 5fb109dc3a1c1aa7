//! The hub: every event of every front comes here, and every decision leaves from here.
//!
//! It lives on the data path's thread and is never held across an await. [`Hub::open`] looks at a
//! request and says what is to become of it; [`Hub::close`] hears how it ended and commits to the
//! ledger what is now true. Each decision and each commit is made in one go on that thread: decisions in
//! the order in which requests became whole, commits in that of replies. A request may need something first
//! ([`Opening::Later`]). If that is a list, or the first look for koordlet, its decision is made after it, and
//! a request that came later may be decided about before; if it is a write, a folder or a cookie, only the
//! request goes on later. So order within a pod is the client's, who waits for one reply before the next call;
//! no call waits for another call's answer. What takes time (kernel writes, lists) happens beside, in
//! [`crate::reconcile`] and [`crate::relist`].

mod awake;
mod burst;
mod calls;
mod changed;
mod commit;
mod complaint;
mod cover;
mod decide;
mod folder;
mod message;
mod plan;
mod plugin;
mod report;
mod said;
mod source;
mod stand_by;
#[cfg(test)]
pub(crate) mod testing;
#[cfg(test)]
mod tests;
mod told;
mod watching;

pub use self::{
    commit::Pending,
    decide::Policy,
    report::Report,
    source::{PodsAnswer, Word},
};

pub(crate) use self::{
    decide::asked,
    report::state,
    said::{SAID, leave_out, shows},
    source::pod_id,
    stand_by::NodeLock,
};

use self::{
    changed::{ChangedContainers, LostUpdates},
    commit::Effect,
    complaint::Complaints,
    message::Message,
    source::Source,
    stand_by::Another,
    told::ToldLately,
    watching::Watching,
};

use crate::{
    apply::{kernel::Writer, terway::Terway, traffic::Traffic},
    config::Exclusions,
    front::cri::Method,
    hami_core::{self, Folders},
    ledger::{Exemption, Ledger, Pod, Said, Target},
    metrics::Metrics,
    node::Probe,
    reconcile::Queue,
    status::Status,
};
use koord_hooks::{ContainerView, PodView};
use koord_kernel::cgroup::{Driver, RuntimeName};
use koord_model::{CgroupPath, ContainerId, MemoryLimit, SandboxId, Setting};
use koord_proto::wire;
use std::{
    cell::{Cell, RefCell},
    future::Future,
    pin::Pin,
    rc::Rc,
    time::Duration,
};
use tokio::{
    sync::{Notify, watch},
    time::Instant,
};

/// What becomes of a claimed request.
#[derive(Debug)]
pub enum Answer {
    AsIs(Untouched),
    /// The bytes are appended to the request.
    Patched(Vec<u8>),
    /// We answer ourselves; the runtime never sees the call.
    Refused(Status),
}

/// Why a claimed request goes on unchanged.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Untouched {
    /// No hook wanted anything that a request can say.
    Nothing,
    /// Decided but not done, by `--mode observe`.
    Observing,
    /// Decided but not done, because another one of us acts.
    StandingBy,
    /// Decided but not done, because it was not known in time whether koordlet decides here.
    UnknownKoordlet,
    /// The pod or its runtime is exempt.
    Exempt,
    /// The message could not be read.
    Unreadable,
    /// It asks for what no runtime could do, and is the runtime's to refuse.
    Unsound,
    /// The container is not in the ledger.
    Unknown,
    /// The pod is not in the ledger, and with it whether its runtime handler is excluded.
    UnknownPod,
    /// The patched message would be more than the runtime takes.
    TooLarge,
}

/// An answer, and what its success will commit.
#[derive(Debug)]
pub struct Decision {
    pub answer: Answer,
    pub pending: Pending,
}

/// A decision now, or one that needs something beside the data path first.
pub enum Opening {
    Now(Decision),
    Later(Pin<Box<dyn Future<Output = Decision>>>),
}

/// A pod whose sandbox only the reply names.
#[derive(Debug)]
struct NewPod {
    view: PodView,
    said: Said,
    exemption: Option<Exemption>,
    parent: Option<CgroupPath>,
    own: Target,
    pause: Target,
}

/// A container whose id only the reply tells.
#[derive(Debug)]
struct NewContainer {
    view: ContainerView,
    target: Target,
    /// The limit of memory and swap together that was asked for.
    swap: Option<MemoryLimit>,
    parent: Option<CgroupPath>,
    /// The pod as it was decided about.
    pod: PodView,
    said: Said,
    exemption: Option<Exemption>,
}

/// How a call ended.
#[derive(Debug)]
pub enum Reply {
    Answered {
        grpc_status: Option<u32>,
        message: Option<Vec<u8>>,
    },
    /// No answer came: what the runtime did is unknown until it is asked.
    Lost,
}

/// Whether decisions take effect.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Effects {
    Enforce,
    Observe,
}

/// What the hub is made of.
pub struct Parts {
    pub policy: Policy,
    pub probe: Probe,
    pub effects: Effects,
    pub exclusions: Exclusions,
    pub writer: Writer,
    pub terway: Terway,
    pub traffic: Traffic,
    pub metrics: Rc<Metrics>,
    /// Bytes that the runtime takes in one message.
    pub max_message_bytes: usize,
    /// How long a request may wait for what its decision needs, at most.
    pub hold_timeout: Duration,
    /// Nobody asks us: everything goes by the kernel.
    pub watches: bool,
}

pub struct Hub {
    policy: RefCell<Policy>,
    probe: Probe,
    ledger: RefCell<Ledger>,
    effects: Effects,
    another: Another,
    /// By when calls wait no longer for what is found out about koordlet; `None` once it is known.
    koordlet_due: watch::Sender<Option<Instant>>,
    exclusions: Exclusions,
    writer: Writer,
    terway: Terway,
    traffic: Traffic,
    /// Those that containers are made with.
    folders: Folders,
    metrics: Rc<Metrics>,
    complaints: RefCell<Complaints>,
    max_message_bytes: usize,
    hold_timeout: Duration,
    queue: Queue,
    /// Counts changes of what decisions are made from: one that was made before the last change
    /// is made again when it is committed.
    generation: Cell<u64>,
    /// How many lists have been taken in since start; the first makes the ledger whole.
    listed: watch::Sender<u64>,
    relist: Notify,
    /// Name and version, as the runtime says them.
    runtime: RefCell<Option<(String, String)>>,
    /// `None` until it has said so.
    runtime_name: Cell<Option<RuntimeName>>,
    /// `None` while nobody has listed, as where hooks are off.
    runtime_up: Cell<Option<bool>>,
    plugin_up: Cell<bool>,
    /// Where nobody asks us.
    watching: Option<Watching>,
    changed: ChangedContainers,
    lost: LostUpdates,
    told_lately: ToldLately,
    /// What says beside requests how pods are.
    source: Source,
    /// What a person should know of koordlet beside us.
    koordlet_remark: Cell<Option<&'static str>>,
    /// The directory of the first pod that was not below the kubelet's tiers as we know them.
    elsewhere: RefCell<Option<CgroupPath>>,
}

// === impl Hub ===

impl Hub {
    pub fn new(parts: Parts) -> Rc<Self> {
        Rc::new(Self {
            policy: RefCell::new(parts.policy),
            probe: parts.probe,
            ledger: RefCell::default(),
            effects: parts.effects,
            another: Another::default(),
            koordlet_due: watch::Sender::new(None),
            exclusions: parts.exclusions,
            writer: parts.writer,
            terway: parts.terway,
            traffic: parts.traffic,
            folders: Folders::of(hami_core::ROOT),
            metrics: parts.metrics,
            complaints: RefCell::default(),
            max_message_bytes: parts.max_message_bytes,
            hold_timeout: parts.hold_timeout,
            queue: Queue::default(),
            generation: Cell::new(0),
            listed: watch::Sender::new(0),
            relist: Notify::new(),
            runtime: RefCell::default(),
            runtime_name: Cell::new(None),
            runtime_up: Cell::new(None),
            plugin_up: Cell::new(false),
            watching: parts.watches.then(Watching::default),
            changed: ChangedContainers::default(),
            lost: LostUpdates::default(),
            told_lately: ToldLately::default(),
            source: Source::default(),
            koordlet_remark: Cell::new(None),
            elsewhere: RefCell::default(),
        })
    }

    pub(crate) fn set_koordlet_remark(&self, remark: Option<&'static str>) {
        self.koordlet_remark.set(remark);
    }

    /// What a person should know of koordlet beside us.
    pub fn koordlet_remark(&self) -> Option<&'static str> {
        self.koordlet_remark.get()
    }

    /// The directory of a pod that is not where the kubelet's pods are taken to be, if there was one.
    pub fn pod_elsewhere(&self) -> Option<CgroupPath> {
        self.elsewhere.borrow().clone()
    }

    /// Looks at a claimed request and says what is to become of it.
    pub fn open(
        self: &Rc<Self>,
        method: Method,
        message: &[u8],
        timeout: Option<Duration>,
    ) -> Opening {
        let (message, until) = (Message::Lent(message), self.held_until(timeout));
        if !method.is_decided_about() || !self.awaits_koordlet() {
            return self.open_now(method, &message, until);
        }
        let (hub, message) = (self.clone(), message.keep());
        Opening::Later(Box::pin(async move {
            hub.koordlet_known(until).await;
            hub.open_now(method, &message, until).decision().await
        }))
    }

    fn open_now(self: &Rc<Self>, method: Method, message: &Message<'_>, until: Instant) -> Opening {
        let opening = match method {
            Method::RunPodSandbox => self.open_run(message, until),
            Method::CreateContainer => self.open_create(message, until),
            Method::UpdateContainerResources => self.open_update(message, until),
            Method::UpdatePodSandboxResources => self.open_pod_update(message, until),
            Method::StopPodSandbox => self
                .sandbox_of_request(message)
                .map(Effect::StopPod)
                .map(Opening::nothing_but),
            Method::RemovePodSandbox => self
                .sandbox_of_request(message)
                .map(Effect::RemovePod)
                .map(Opening::nothing_but),
            Method::StartContainer => self
                .container_of_request(message)
                .map(|id| self.open_start(id, until)),
            Method::StopContainer => self
                .container_of_request(message)
                .map(Effect::Stop)
                .map(Opening::nothing_but),
            Method::RemoveContainer => self
                .container_of_request(message)
                .map(Effect::Remove)
                .map(Opening::nothing_but),
        };
        opening.unwrap_or_else(|| {
            let unread = Decision::as_is(Untouched::Unreadable, Effect::unread(method));
            Opening::Now(unread)
        })
    }

    /// The sandbox that a request is about which names it in field 1.
    fn sandbox_of_request(&self, message: &[u8]) -> Option<SandboxId> {
        let said = SandboxId::new(wire::string_field(message, 1)?).ok()?;
        Some(self.ledger.borrow().meant_sandbox(said))
    }

    /// The same of a container.
    fn container_of_request(&self, message: &[u8]) -> Option<ContainerId> {
        let said = ContainerId::new(wire::string_field(message, 1)?).ok()?;
        Some(self.ledger.borrow().meant_container(said))
    }

    pub(crate) fn container_dir(
        &self,
        parent: Option<&CgroupPath>,
        id: &ContainerId,
    ) -> Option<CgroupPath> {
        let pod = parent?;
        let driver = Driver::of_parent(pod.as_str());
        driver.container(pod, self.runtime_name(), id).ok()
    }

    /// The same of the container that holds a pod together.
    pub(crate) fn pause_dir(
        &self,
        parent: Option<&CgroupPath>,
        sandbox: &SandboxId,
    ) -> Option<CgroupPath> {
        let id = ContainerId::new(sandbox.as_str()).ok()?;
        self.container_dir(parent, &id)
    }

    /// The runtime went away under a connection, or does not answer: its lists will tell what was
    /// missed.
    pub fn runtime_lost(&self) {
        // Where nobody lists, nobody would find it there again.
        if self.runtime_is_up() {
            self.set_runtime_up(false);
        }
        self.relist_soon();
    }

    /// A list came to nothing: the runtime does not answer.
    pub(crate) fn list_failed(&self) {
        self.set_runtime_up(false);
        self.relist_soon();
    }

    fn set_runtime_up(&self, up: bool) {
        if self.runtime_up.replace(Some(up)) != Some(up) {
            self.metrics.runtime_up(up);
        }
    }

    /// Whether the runtime asks us as its plugin.
    pub(crate) fn set_plugin_up(&self, up: bool) {
        self.plugin_up.set(up);
        self.metrics.plugin_up(up);
    }

    pub fn plugin_is_up(&self) -> bool {
        self.plugin_up.get()
    }

    /// Asks for a list of the runtime's pods and containers.
    pub fn relist_soon(&self) {
        self.relist.notify_one();
    }

    pub(crate) fn ledger(&self) -> &RefCell<Ledger> {
        &self.ledger
    }

    pub(crate) fn writer(&self) -> &Writer {
        &self.writer
    }

    pub(crate) fn probe(&self) -> &Probe {
        &self.probe
    }

    pub(crate) fn terway(&self) -> &Terway {
        &self.terway
    }

    pub(crate) fn traffic(&self) -> &Traffic {
        &self.traffic
    }

    pub(crate) fn folders(&self) -> &Folders {
        &self.folders
    }

    pub(crate) fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    pub(crate) fn queue(&self) -> &Queue {
        &self.queue
    }

    /// Resolves when somebody wants a list.
    pub(crate) async fn relist_wanted(&self) {
        self.relist.notified().await;
    }

    /// A list was taken in: the runtime answers, and the ledger is whole.
    pub(crate) fn list_taken(&self) {
        self.look_again();
        self.set_runtime_up(true);
        let setting = Setting::SchedSwitch;
        let has_switches = self.policy().node().kernel.files.contains(&setting);
        if has_switches && !self.is_whole() {
            // Until all pods are known they are not moved.
            self.queue.push_node();
        }
        self.listed.send_modify(|count| *count += 1);
        self.hear_out();
        self.queue.push_groups();
        self.queue.push_network();
    }

    /// Whether the ledger has been made whole since start.
    pub fn is_whole(&self) -> bool {
        *self.listed.borrow() > 0
    }

    /// Changes with each list that is taken in from now on.
    pub(crate) fn lists(&self) -> watch::Receiver<u64> {
        self.listed.subscribe()
    }

    /// Resolves when the ledger has been made whole.
    pub(crate) async fn whole(&self) {
        let mut listed = self.listed.subscribe();
        // The sender is ours, so it is there.
        listed.wait_for(|lists| *lists > 0).await.ok();
    }

    pub fn runtime_is_up(&self) -> bool {
        self.runtime_up() == Some(true)
    }

    /// Which kind the runtime is; containerd until it has said otherwise.
    pub(crate) fn runtime_name(&self) -> RuntimeName {
        let told = self.runtime_name.get();
        told.unwrap_or(RuntimeName::Containerd)
    }

    /// Whether the runtime answered when it was last asked; `None` while it was not asked.
    pub fn runtime_up(&self) -> Option<bool> {
        self.runtime_up.get()
    }

    /// Who the runtime is, as it says; the directories of containers have names of its kind.
    pub(crate) fn set_runtime(&self, name: &str, version: &str) {
        let told = (name.to_owned(), version.to_owned());
        if self.runtime.borrow().as_ref() != Some(&told) {
            self.metrics.runtime(name, version);
            self.runtime.replace(Some(told));
        }
        let before = self.runtime_name();
        let name = RuntimeName::of(name).unwrap_or(RuntimeName::Containerd);
        self.runtime_name.set(Some(name));
        if before == name {
            return;
        }
        for pod in self.ledger.borrow_mut().pods_mut() {
            self.place(pod);
        }
    }

    /// Name and version of the runtime, once it has said them.
    pub fn runtime(&self) -> Option<(String, String)> {
        self.runtime.borrow().clone()
    }

    /// Works out where a pod's containers are, from where the pod is.
    pub(crate) fn place(&self, pod: &mut Pod) {
        let parent = pod.parent.as_ref();
        pod.pause.at = self.pause_dir(parent, &pod.sandbox);
        for container in &mut pod.containers {
            container.target.at = self.container_dir(parent, &container.id);
        }
    }
}

// === impl Opening ===

impl Opening {
    fn nothing_but(effect: Effect) -> Self {
        Self::Now(Decision::as_is(Untouched::Nothing, effect))
    }

    async fn decision(self) -> Decision {
        match self {
            Self::Now(decision) => decision,
            Self::Later(decision) => decision.await,
        }
    }
}

// === impl Decision ===

impl Decision {
    fn as_is(why: Untouched, pending: impl Into<Pending>) -> Self {
        Self {
            answer: Answer::AsIs(why),
            pending: pending.into(),
        }
    }

    /// For a call that could not be thought about to the end.
    pub(crate) fn unthought(method: Method) -> Self {
        Self::as_is(Untouched::Unknown, Effect::unread(method))
    }

    fn refused(status: Status) -> Self {
        Self {
            answer: Answer::Refused(status),
            pending: Effect::Nothing.into(),
        }
    }
}

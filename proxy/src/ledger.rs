//! What every pod, container and group of the node's own should have, and why.
//!
//! The ledger holds facts (what the runtime runs, what was asked) and decisions (what each setting
//! should be, by which hook, and what became of it). It is owned by the hub and changed only on the
//! data path's thread, so it has no lock; nothing here does I/O. It is rebuilt from the runtime at
//! every start.

mod by_id;
mod contest;
mod node;
mod target;

pub use self::{
    contest::{Contest, Rival, Scope},
    node::{NodeGroup, NodeGroupKind, NodeGroups},
    target::{
        Applied, Entry, GIVEN_BACK, LeftOut, Original, Route, Target, Unasked, of_directories,
    },
};

use by_id::ById;
use koord_hooks::{ContainerKind, ContainerView, Map, PodView, Requested};
use koord_model::{
    CgroupPath, ContainerId, CpuShares, MemoryLimit, PodNetwork, PodQueue, SandboxId, Setting,
    Value,
};
use std::{
    collections::{BTreeSet, HashSet},
    mem,
    net::IpAddr,
};
use tokio::time::{Duration, Instant};

/// Why hooks leave a pod or container alone.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Exemption {
    /// The skip label is on the pod.
    SkipLabel,
    /// Its namespace is excluded by configuration.
    Namespace,
    /// Its containers run in a virtual machine or a sandboxed kernel of their own.
    RuntimeHandler,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Life {
    Created,
    Running,
    Exited,
}

#[derive(Clone, Debug)]
pub struct Container {
    pub id: ContainerId,
    pub view: ContainerView,
    pub life: Life,
    pub target: Target,
    /// How often the runtime was asked about it and gave no answer.
    pub asked_in_vain: u32,
    /// What the runtime was told before it has said what was asked for.
    pub told_first: Option<Box<ToldFirst>>,
    /// What its creation was changed to say, as far as that is known.
    pub ours: Box<[Value]>,
    /// Its creation was told of, and nothing since that may have changed its spec.
    pub is_as_made: bool,
    /// The limit of memory and swap together that calls have asked for since we run, as far as it is asked
    /// for still. Lists do not tell it.
    pub swap: Option<MemoryLimit>,
    /// What its spec said when a runtime whose plugin we are has told it last.
    pub shown: Option<Box<Requested>>,
    /// What nobody knows of its updates, under a runtime whose plugin we are.
    pub doubt: Doubt,
    pub changes: Changes,
}

/// Whether somebody has changed a container while nobody was here, so that it asks for something else than its
/// creation says.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Changes {
    /// It was not looked at yet.
    Unread,
    /// The runtime is to say to what, until then.
    FindingOut(Instant),
    /// All that can be known of it is.
    Known,
}

/// What is not known of updates.
#[derive(Clone, Debug, Default)]
pub struct Doubt {
    /// When the first and the last one began of those that may still be under way, or have failed.
    begun: Option<(Instant, Instant)>,
    /// When it is looked at next.
    look: Option<Instant>,
}

/// When it is looked first what an update has left that may have failed.
const UPDATE_FAILED: Duration = Duration::from_secs(10);

/// A runtime is done with an update by then, or does it no more: a kubelet waits two minutes
/// (`runtimeRequestTimeout`).
pub const UPDATE_OVER: Duration = Duration::from_secs(150);

/// What a runtime was told of a container, of which it shows only what it was told from then on.
#[derive(Clone, Debug)]
pub struct ToldFirst {
    /// What it had it have until then.
    pub before: Requested,
    /// What it has it have since, as far as nobody else has told it anything.
    pub since: Requested,
}

// === impl ToldFirst ===

impl ToldFirst {
    /// What it would show if it had not been told, where it shows this.
    pub fn untold(&self, shown: Requested) -> Requested {
        let Self { before, since } = self;
        let mut untold = shown;
        if untold.cpu_shares == since.cpu_shares {
            untold.cpu_shares = before.cpu_shares;
        }
        if (untold.cpu_quota, untold.cpu_period) == (since.cpu_quota, since.cpu_period) {
            (untold.cpu_quota, untold.cpu_period) = (before.cpu_quota, before.cpu_period);
        }
        if untold.memory_limit == since.memory_limit {
            untold.memory_limit = before.memory_limit;
        }
        if untold.cpuset_cpus == since.cpuset_cpus {
            untold.cpuset_cpus.clone_from(&before.cpuset_cpus);
        }
        if untold.unified == since.unified {
            untold.unified.clone_from(&before.unified);
        }
        untold
    }
}

/// From where a pod sends.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Addresses {
    /// The runtime has not said it, as often as it was asked.
    Unknown(u32),
    /// From those of the node, as others do.
    OfNode,
    Own(Vec<IpAddr>),
}

/// Bursts of a container and its pod that were lowered for an update that is under way: others of the same
/// container may be too.
#[derive(Clone, Debug)]
pub struct Lowering {
    /// The moment at which they were; see [`Ledger::tick`].
    pub number: u64,
    pub container: ContainerId,
    /// Until when the update is taken to be under way when nobody tells how it ended.
    pub until: Instant,
}

#[derive(Clone, Debug)]
pub struct Pod {
    pub sandbox: SandboxId,
    /// As it is decided about: by requests and lists, or by the source of pods.
    pub view: PodView,
    pub said: Said,
    pub exemption: Option<Exemption>,
    pub ready: bool,
    /// Where its containers are.
    pub parent: Option<CgroupPath>,
    /// The pod's own directory, made by the kubelet: the parent, if that is this pod's alone.
    pub own: Target,
    /// The sandbox (pause) container.
    pub pause: Target,
    pub containers: Vec<Container>,
    pub addresses: Addresses,
    /// For which updates bursts were lowered.
    pub lowered: Vec<Lowering>,
    /// Until when its own directory is not made idle, for a kubelet that writes its shares.
    pub awake: Option<Instant>,
    /// When this entry was last told by a call rather than a list; see [`Ledger::tick`].
    pub called_at: u64,
    /// A list told of it, and no call that it began: it may be from before us.
    pub is_listed: bool,
}

/// What requests and lists say of a pod, beside what its source says.
#[derive(Clone, Debug, Default)]
pub struct Said {
    /// Their labels and annotations, where those of the view are the source's.
    pub instead: Option<Box<Metadata>>,
    /// When a request last said something new; never if that is older than any answer of the source.
    pub at: Option<Instant>,
}

/// Labels and annotations that somebody here reads.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Metadata {
    pub labels: Map,
    pub annotations: Map,
}

/// All pods, by sandbox: a pod that is made anew has two for a while. Beside them the node.
#[derive(Debug, Default)]
pub struct Ledger {
    pods: ById<SandboxId, Pod>,
    containers: ById<ContainerId, SandboxId>,
    /// Tiers and host applications.
    pub node: NodeGroups,
    clock: u64,
    /// What calls removed since the list that is under way was asked for: it must not bring that
    /// back. Nobody needs it without one.
    removed: Option<Removed>,
}

#[derive(Debug, Default)]
struct Removed {
    ids: HashSet<Box<str>>,
    /// There were more than are kept.
    too_many: bool,
}

/// Removals that are kept while a list is under way: more than a node has containers. With more,
/// the list brings nothing that is not known; the next one does.
const MAX_REMOVED: usize = 4096;

// === impl Container ===

impl Container {
    pub fn new(id: ContainerId, name: String, requested: Requested) -> Self {
        let view = ContainerView {
            name,
            kind: ContainerKind::Regular,
            requested,
            heard: true,
            found_quota: None,
        };
        Self::of_view(id, view)
    }

    /// One that is decided about by this.
    pub fn of_view(id: ContainerId, view: ContainerView) -> Self {
        Self {
            id,
            view,
            life: Life::Created,
            target: Target::default(),
            asked_in_vain: 0,
            told_first: None,
            ours: Box::default(),
            is_as_made: false,
            swap: None,
            shown: None,
            doubt: Doubt::default(),
            changes: Changes::Unread,
        }
    }

    /// The runtime goes on with an update, and tells its plugin how that ended only if nothing fails. When it is to
    /// be looked at for that.
    #[must_use]
    pub fn update_begins(&mut self, now: Instant) -> Option<Instant> {
        let (first, _) = self.doubt.begun.unwrap_or((now, now));
        self.doubt.begun = Some((first, now));
        self.doubt.next_look(now)
    }

    pub fn update_ended(&mut self) {
        self.doubt.begun = None;
    }

    /// A runtime that fails at an update may have written its whole stored spec before. So where nobody has told
    /// for a while how one ended, what was given back is looked at again, for the last time once all must have. When
    /// it is to be looked at next for that.
    #[must_use]
    pub fn doubt_update(&mut self, now: Instant) -> Option<Instant> {
        if let Some((first, last)) = self.doubt.begun
            && first + UPDATE_FAILED <= now
        {
            self.target.runtime_rewrote();
            if last + UPDATE_OVER <= now {
                self.doubt.begun = None;
            }
        }
        self.doubt.next_look(now)
    }

    /// It is news what its creation asked for: what is marked of it, and whether it was changed since, is looked at
    /// once more.
    pub fn look_again(&mut self) {
        // What was there counted as long as that was unknown.
        self.target.retain(|entry| !entry.is_recalled_as_returned());
        self.target.is_recalled = false;
        self.changes = Changes::Unread;
    }

    /// Until when nothing is written to it that follows from what its creation asked for.
    pub fn finding_out(&self, now: Instant) -> Option<Instant> {
        match self.changes {
            Changes::FindingOut(until) => Some(until).filter(|until| now < *until),
            Changes::Unread | Changes::Known => None,
        }
    }

    /// Notes what it means that nobody is known to have asked for a setting of it, for hooks and for
    /// what is given back.
    pub fn hear(&mut self, unasked: Unasked) {
        self.target.unasked = unasked;
        self.view.heard = unasked == Unasked::Nothing;
    }
}

// === impl Doubt ===

impl Doubt {
    /// When it is to be looked at, if nobody knows that yet.
    fn next_look(&mut self, now: Instant) -> Option<Instant> {
        let (first, last) = self.begun?;
        let looks = [first + UPDATE_FAILED, last + UPDATE_OVER];
        let next = looks.into_iter().find(|look| now < *look)?;
        let is_known = self.look.is_some_and(|look| now < look && look <= next);
        if is_known {
            return None;
        }
        self.look = Some(next);
        self.look
    }
}

// === impl Addresses ===

impl Default for Addresses {
    fn default() -> Self {
        Self::Unknown(0)
    }
}

// === impl Pod ===

impl Pod {
    /// One of which nothing is decided yet.
    pub fn new(sandbox: SandboxId, view: PodView, said: Said, parent: Option<CgroupPath>) -> Self {
        Self {
            sandbox,
            view,
            said,
            parent,
            exemption: None,
            ready: true,
            own: Target::default(),
            pause: Target::default(),
            containers: Vec::new(),
            addresses: Addresses::default(),
            lowered: Vec::new(),
            awake: None,
            called_at: 0,
            is_listed: false,
        }
    }

    /// The labels and annotations that requests and lists say, whatever its source does.
    pub fn said_by_requests(&self) -> (&Map, &Map) {
        match self.said.instead.as_deref() {
            Some(said) => (&said.labels, &said.annotations),
            None => (&self.view.labels, &self.view.annotations),
        }
    }

    /// By which of the kernel's queues it sends, if that is decided.
    pub fn queue(&self) -> Option<PodQueue> {
        let mut entries = self.own.entries().iter();
        entries.find_map(|entry| match entry.desired {
            Value::PodQueue(queue) => Some(queue),
            _ => None,
        })
    }

    /// Whether it counts from where it sends, and nobody has said it yet.
    pub fn lacks_addresses(&self) -> bool {
        let is_unknown = matches!(self.addresses, Addresses::Unknown(_));
        is_unknown && self.ready && self.queue().is_some()
    }

    /// What it has of the node's network, if that is decided.
    pub fn network(&self) -> Option<PodNetwork> {
        let mut entries = self.own.entries().iter();
        entries.find_map(|entry| match entry.desired {
            Value::PodNetwork(network) => Some(network),
            _ => None,
        })
    }

    pub fn container_mut(&mut self, id: &ContainerId) -> Option<&mut Container> {
        self.containers.iter_mut().find(|c| c.id == *id)
    }

    /// Where bursts are left as they are, for an update that is under way: at its container, and at
    /// the pod.
    pub fn kept_low(&mut self, now: Instant) -> Vec<CgroupPath> {
        self.lowered.retain(|it| now < it.until);
        let under_way = |container: &&Container| {
            let mut lowered = self.lowered.iter();
            lowered.any(|it| it.container == container.id)
        };
        let own = self.own.at.iter().filter(|_| !self.lowered.is_empty());
        let containers = self.containers.iter().filter(under_way);
        let containers = containers.filter_map(|container| container.target.at.as_ref());
        own.chain(containers).cloned().collect()
    }

    /// Whether its own directory is to be without idleness, whoever decides that.
    pub fn is_awake(&self, now: Instant) -> bool {
        self.awake.is_some_and(|until| now < until)
    }

    /// The shares that its containers ask for together; `None` if not all are known. The kubelet gives its
    /// directory about as many, mostly more: each container's are rounded down, and neither what the pod as
    /// a whole asks for nor its overhead is among them. But each that asks for none has 2 of its own.
    pub fn shares_of_containers(&self) -> Option<CpuShares> {
        let containers = self.containers.iter();
        let living = containers.filter(|container| container.life != Life::Exited);
        let asked = living.map(|container| container.view.requested.cpu_shares);
        let sum: Option<i64> = asked.map(|it| it.map(|it| i64::from(it.get()))).sum();
        CpuShares::new(sum?).ok()
    }

    /// The update for which bursts were lowered is over, however it ended.
    pub fn lowering_ended(&mut self, number: u64) {
        self.lowered.retain(|it| it.number != number);
    }
}

// === impl Ledger ===

impl Ledger {
    /// The next moment of the ledger's own clock.
    pub fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The moment at which a list is asked for: what calls tell later is newer than its answer.
    pub fn begin_list(&mut self) -> u64 {
        self.removed = Some(Removed::default());
        self.tick()
    }

    /// The moment up to which everything that was told is older than what is told now.
    pub fn now(&self) -> u64 {
        self.clock
    }

    /// Drops what is not there any more, which a list that is under way must not bring back. Of containers
    /// that have ended nobody tells.
    pub fn resync(
        &mut self,
        has_pod: impl Fn(&SandboxId) -> bool,
        has_container: impl Fn(&ContainerId) -> bool,
    ) {
        let (containers, removed) = (&mut self.containers, &mut self.removed);
        self.pods.retain(|sandbox, pod| {
            let there = has_pod(sandbox);
            pod.containers.retain(|container| {
                let ended = container.life == Life::Exited;
                let keep = there && (ended || has_container(&container.id));
                if !keep {
                    note_removal(removed.as_mut(), container.id.as_str());
                    containers.remove(&container.id);
                }
                keep
            });
            if !there {
                note_removal(removed.as_mut(), sandbox.as_str());
            }
            there
        });
    }

    /// The list that was under way will not be taken in.
    pub fn abandon_list(&mut self) {
        self.removed = None;
    }

    pub fn pods(&self) -> impl Iterator<Item = &Pod> {
        self.pods.values()
    }

    pub fn pods_mut(&mut self) -> impl Iterator<Item = &mut Pod> {
        self.pods.values_mut()
    }

    /// Whatever was left to other writers is ours again.
    pub fn end_contests(&mut self) {
        self.targets_mut().for_each(Target::end_contests);
    }

    /// Koordlet does the part of these hooks: see [`Target::rest`].
    pub fn rest(&mut self, hooks: &BTreeSet<&'static str>) {
        self.targets_mut().for_each(|target| target.rest(hooks));
    }

    /// The same where nothing is this process's own yet, of hooks whose settings koordlet `has` then.
    pub fn leave(&mut self, hooks: &BTreeSet<&'static str>, has: impl Fn(Setting) -> bool) {
        self.targets_mut()
            .for_each(|target| target.leave(hooks, &has));
    }

    fn targets_mut(&mut self) -> impl Iterator<Item = &mut Target> {
        let pods = self.pods.values_mut();
        let of_pods = pods.flat_map(|pod| {
            let containers = pod.containers.iter_mut().map(|c| &mut c.target);
            [&mut pod.own, &mut pod.pause].into_iter().chain(containers)
        });
        let of_node = self.node.iter_mut().map(|group| &mut group.target);
        of_pods.chain(of_node)
    }

    pub fn pods_len(&self) -> usize {
        self.pods.len()
    }

    pub fn containers_len(&self) -> usize {
        self.containers.len()
    }

    pub fn pod(&self, sandbox: &SandboxId) -> Option<&Pod> {
        self.pods.get(sandbox)
    }

    pub fn pod_mut(&mut self, sandbox: &SandboxId) -> Option<&mut Pod> {
        self.pods.get_mut(sandbox)
    }

    /// The pod that a container belongs to.
    pub fn pod_of_mut(&mut self, container: &ContainerId) -> Option<&mut Pod> {
        self.pods.get_mut(self.containers.get(container)?)
    }

    /// The sandbox that a container belongs to.
    pub fn sandbox_of(&self, container: &ContainerId) -> Option<&SandboxId> {
        self.containers.get(container)
    }

    /// The container that a client means by this. Runtimes take the beginning of an id for the whole of it
    /// where no other begins so; one that nobody here knows is returned as it came.
    pub fn meant_container(&self, said: ContainerId) -> ContainerId {
        match self.containers.contains_key(&said) {
            true => said,
            false => only_one(self.containers.keys(), said, ContainerId::as_str),
        }
    }

    /// The same of a pod's sandbox.
    pub fn meant_sandbox(&self, said: SandboxId) -> SandboxId {
        match self.pods.contains_key(&said) {
            true => said,
            false => only_one(self.pods.keys(), said, SandboxId::as_str),
        }
    }

    /// A container with its pod.
    pub fn container(&self, id: &ContainerId) -> Option<(&Pod, &Container)> {
        let pod = self.pods.get(self.containers.get(id)?)?;
        let container = pod.containers.iter().find(|c| c.id == *id)?;
        Some((pod, container))
    }

    /// A pod of which a call tells something new.
    pub fn tell_pod(&mut self, sandbox: &SandboxId) -> Option<&mut Pod> {
        let now = self.tick();
        let pod = self.pods.get_mut(sandbox)?;
        pod.called_at = now;
        Some(pod)
    }

    /// A container of which a call tells something new.
    pub fn tell_container(&mut self, id: &ContainerId) -> Option<&mut Container> {
        let sandbox = self.containers.get(id)?.clone();
        self.tell_pod(&sandbox)?.container_mut(id)
    }

    /// A pod as a call told it. Containers that a list found in the meantime stay.
    pub fn insert_pod(&mut self, mut pod: Pod) {
        pod.called_at = self.tick();
        if let Some(known) = self.pods.get_mut(&pod.sandbox) {
            pod.containers.append(&mut known.containers);
            pod.addresses = mem::take(&mut known.addresses);
        }
        self.pods.insert(pod.sandbox.clone(), pod);
    }

    /// A container as a call told it; ignored if its pod is unknown.
    pub fn insert_container(&mut self, sandbox: &SandboxId, container: Container) {
        let now = self.tick();
        if let Some(pod) = self.put(sandbox, container) {
            pod.called_at = now;
        }
    }

    /// A pod as a list told it, which no call is newer than.
    pub fn list_pod(&mut self, pod: Pod) {
        self.pods.insert(pod.sandbox.clone(), pod);
    }

    /// A container as a list told it.
    pub fn list_container(&mut self, sandbox: &SandboxId, container: Container) {
        self.put(sandbox, container);
    }

    /// Has a container in this pod, if that is known, and in no other, whatever the runtime said before.
    fn put(&mut self, sandbox: &SandboxId, container: Container) -> Option<&mut Pod> {
        if !self.pods.contains_key(sandbox) {
            return None;
        }
        let id = container.id.clone();
        if let Some(before) = self.containers.insert(id, sandbox.clone())
            && let Some(pod) = self.pods.get_mut(&before)
        {
            pod.containers.retain(|known| known.id != container.id);
        }
        let pod = self.pods.get_mut(sandbox)?;
        pod.containers.push(container);
        Some(pod)
    }

    pub fn remove_container(&mut self, id: &ContainerId) {
        let now = self.tick();
        note_removal(self.removed.as_mut(), id.as_str());
        if let Some(sandbox) = self.containers.remove(id)
            && let Some(pod) = self.pods.get_mut(&sandbox)
        {
            pod.called_at = now;
            pod.containers.retain(|container| container.id != *id);
        }
    }

    pub fn remove_pod(&mut self, sandbox: &SandboxId) {
        note_removal(self.removed.as_mut(), sandbox.as_str());
        if let Some(pod) = self.pods.remove(sandbox) {
            for container in pod.containers {
                if self.containers.get(&container.id) == Some(sandbox) {
                    note_removal(self.removed.as_mut(), container.id.as_str());
                    self.containers.remove(&container.id);
                }
            }
        }
    }

    /// Whether the list under way must not bring this: a call removed it since.
    pub fn is_removed(&self, id: &str) -> bool {
        let removed = self.removed.as_ref();
        removed.is_some_and(|removed| removed.too_many || removed.ids.contains(id))
    }

    /// Ends a list that was asked for at `moment`: drops what it no longer has, but for what calls
    /// told since. Whose pods are gone or have fewer containers is returned.
    pub fn retain_listed(
        &mut self,
        moment: u64,
        has_pod: impl Fn(&SandboxId) -> bool,
        has_container: impl Fn(&ContainerId) -> bool,
    ) -> Vec<SandboxId> {
        let mut less = Vec::new();
        let containers = &mut self.containers;
        self.pods.retain(|sandbox, pod| {
            if pod.called_at > moment {
                return true;
            }
            let listed = has_pod(sandbox);
            let before = pod.containers.len();
            pod.containers.retain(|container| {
                let keep = listed && has_container(&container.id);
                if !keep {
                    containers.remove(&container.id);
                }
                keep
            });
            if !listed || pod.containers.len() < before {
                less.push(sandbox.clone());
            }
            listed
        });
        self.removed = None;
        less
    }
}

fn note_removal(removed: Option<&mut Removed>, id: &str) {
    if let Some(removed) = removed {
        removed.too_many |= removed.ids.len() >= MAX_REMOVED;
        if !removed.too_many {
            removed.ids.insert(id.into());
        }
    }
}

/// The only one that begins as what was said; that itself if there is none, or more than one.
fn only_one<'a, T: Clone + 'a>(
    known: impl Iterator<Item = &'a T>,
    said: T,
    text: impl Fn(&T) -> &str,
) -> T {
    let mut begin_so = known.filter(|known| text(known).starts_with(text(&said)));
    match (begin_so.next(), begin_so.next()) {
        (Some(meant), None) => meant.clone(),
        _ => said,
    }
}

#[cfg(test)]
mod tests;

//! What every pod and container should have, and why.
//!
//! The ledger holds facts (what the runtime runs, what was asked) and decisions (what each setting
//! should be, by which hook, and what became of it). It is owned by the hub and changed only on the
//! data path's thread, so it has no lock; nothing here does I/O. It is rebuilt from the runtime at
//! every start.

use koord_hooks::{ContainerKind, ContainerView, Merged, PodView, Requested};
use koord_model::{
    Bvt, CgroupPath, ContainerId, CpuQuota, CpusetCpus, MemoryLimit, SandboxId, Setting, Value,
};
use std::collections::{HashMap, HashSet};

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

/// How a value gets to the kernel.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Route {
    /// In the request to the runtime, which writes it and keeps it in its spec.
    Request,
    /// Written by us.
    Kernel,
}

/// What became of a value the last time it was held against the kernel.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Applied {
    /// Not looked at yet.
    Pending,
    /// The kernel had it.
    Equal,
    /// We wrote it.
    Written,
    /// Another setting of the same group makes this one meaningless for now.
    Masked,
    /// The directory is not there.
    Absent,
    /// This kernel has no such setting.
    Unsupported,
    /// It could not be written; with the kernel's errno, if it was the kernel that refused.
    Refused(Option<i32>),
}

/// One decided setting of one control group.
#[derive(Clone, Debug)]
pub struct Entry {
    pub desired: Value,
    /// The hook that decided.
    pub owner: &'static str,
    pub route: Route,
    /// What was there or was asked for before us, as far as we saw it; quotas for 100 ms, as
    /// hooks decide them.
    pub original: Option<Value>,
    pub applied: Applied,
}

/// Owner of a value that hooks no longer decide, and that is as it was before them.
pub const GIVEN_BACK: &str = "-";

/// The decided settings of one control group.
#[derive(Clone, Debug, Default)]
pub struct Target {
    /// Where it is; `None` until that is known.
    pub at: Option<CgroupPath>,
    entries: Vec<Entry>,
    /// The shares that it has where nobody decides, as far as that is known: the kubelet's, or
    /// those that the kernel forgot when the group became idle.
    pub undecided_shares: Option<Value>,
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
}

#[derive(Clone, Debug)]
pub struct Pod {
    pub sandbox: SandboxId,
    pub view: PodView,
    pub exemption: Option<Exemption>,
    pub ready: bool,
    /// Where its containers are.
    pub parent: Option<CgroupPath>,
    /// The pod's own directory, made by the kubelet: the parent, if that is this pod's alone.
    pub own: Target,
    /// The sandbox (pause) container.
    pub pause: Target,
    pub containers: Vec<Container>,
    /// When this entry was last told by a call rather than a list; see [`Ledger::tick`].
    pub told: u64,
}

/// All pods, by sandbox: a pod that is made anew has two for a while.
#[derive(Debug, Default)]
pub struct Ledger {
    pods: HashMap<SandboxId, Pod>,
    containers: HashMap<ContainerId, SandboxId>,
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

// === impl Target ===

impl Target {
    pub fn at(at: Option<CgroupPath>) -> Self {
        Self {
            at,
            ..Self::default()
        }
    }

    pub fn entries(&self) -> &[Entry] {
        &self.entries
    }

    pub fn entries_mut(&mut self) -> impl Iterator<Item = &mut Entry> {
        self.entries.iter_mut()
    }

    pub fn entry_mut(&mut self, setting: Setting) -> Option<&mut Entry> {
        self.entries
            .iter_mut()
            .find(|entry| entry.desired.setting() == setting)
    }

    /// Takes over a decision. Originals stay: they are what was there before our first value, not
    /// before our latest.
    pub fn decide(
        &mut self,
        merged: &Merged,
        route: impl Fn(&Value) -> Route,
        asked: impl Fn(Setting) -> Option<Value>,
    ) {
        let was_idle = self.is_idle();
        let decided = Vec::with_capacity(merged.iter().count());
        let mut before = std::mem::replace(&mut self.entries, decided);
        for (desired, owner) in merged.iter() {
            let setting = desired.setting();
            let old = before
                .iter()
                .position(|entry| entry.desired.setting() == setting)
                .map(|index| before.swap_remove(index));
            let applied = match &old {
                Some(old) if old.desired == *desired => old.applied.clone(),
                _ => Applied::Pending,
            };
            let original = asked(setting).or(old.and_then(|old| old.original));
            self.entries.push(Entry {
                route: route(desired),
                desired: desired.clone(),
                owner: owner.hook,
                original,
                applied,
            });
        }
        for entry in before {
            self.give_back(entry, &asked);
        }
        if was_idle && !self.is_idle() {
            self.give_back_shares();
        }
    }

    /// Notes which shares the kernel forgot when we made the group idle.
    pub fn has_forgotten(&mut self, shares: Value) {
        // Those that somebody decides are in an entry, with what was before them.
        if self.entry_mut(Setting::CpuShares).is_none() {
            self.undecided_shares = Some(shares);
        }
    }

    /// What a setting is where nobody decides and nobody asked for anything.
    fn undecided(&self, setting: Setting) -> Option<Value> {
        Some(match setting {
            Setting::CpuShares => return self.undecided_shares.clone(),
            Setting::CpuQuota => CpuQuota::Unlimited.into(),
            Setting::CpusetCpus => CpusetCpus::All.into(),
            Setting::MemoryLimit => MemoryLimit::Unlimited.into(),
            Setting::CpuBvt => Bvt::default().into(),
            Setting::CpuIdle => false.into(),
        })
    }

    fn is_idle(&self) -> bool {
        let idle = Value::CpuIdle(true);
        self.entries.iter().any(|entry| entry.desired == idle)
    }

    /// A group that is idle no more has the kernel's default of 1,024 shares, which is not what was
    /// there before us.
    fn give_back_shares(&mut self) {
        if self.entry_mut(Setting::CpuShares).is_none()
            && let Some(shares) = self.undecided_shares.clone()
        {
            self.entries.push(Entry {
                original: Some(shares.clone()),
                desired: shares,
                owner: GIVEN_BACK,
                route: Route::Kernel,
                applied: Applied::Pending,
            });
        }
    }

    /// Nobody decides about this setting any more: what was there before us comes back, so that
    /// nothing of ours stays without an owner. In a request the entry stays, because the runtime's
    /// own spec still has our value; one that only we write goes once it is written.
    fn give_back(&mut self, entry: Entry, asked: impl Fn(Setting) -> Option<Value>) {
        let setting = entry.desired.setting();
        let before = asked(setting).or(entry.original);
        let Some(desired) = before.or_else(|| self.undecided(setting)) else {
            return;
        };
        let applied = match entry.desired == desired && entry.owner == GIVEN_BACK {
            true => entry.applied,
            false => Applied::Pending,
        };
        let done = matches!(applied, Applied::Equal | Applied::Written);
        if done && entry.route == Route::Kernel {
            return;
        }
        self.entries.push(Entry {
            original: Some(desired.clone()),
            desired,
            owner: GIVEN_BACK,
            route: entry.route,
            applied,
        });
    }

    /// Lets go of what was given back and is ours no more.
    pub fn settle(&mut self) {
        self.entries.retain(|entry| {
            let done = matches!(entry.applied, Applied::Equal | Applied::Written);
            !(done && entry.owner == GIVEN_BACK && entry.route == Route::Kernel)
        });
    }
}

// === impl Container ===

impl Container {
    pub fn new(id: ContainerId, name: String, requested: Requested) -> Self {
        Self {
            id,
            view: ContainerView {
                name,
                kind: ContainerKind::Regular,
                requested,
            },
            life: Life::Created,
            target: Target::default(),
        }
    }
}

// === impl Pod ===

impl Pod {
    pub fn container_mut(&mut self, id: &ContainerId) -> Option<&mut Container> {
        self.containers.iter_mut().find(|c| c.id == *id)
    }
}

// === impl Ledger ===

impl Ledger {
    /// The next moment of the ledger's own clock.
    fn tick(&mut self) -> u64 {
        self.clock += 1;
        self.clock
    }

    /// The moment at which a list is asked for: what calls tell later is newer than its answer.
    pub fn begin_list(&mut self) -> u64 {
        self.removed = Some(Removed::default());
        self.tick()
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

    /// A pod of which a call tells something new.
    pub fn tell_pod(&mut self, sandbox: &SandboxId) -> Option<&mut Pod> {
        let now = self.tick();
        let pod = self.pods.get_mut(sandbox)?;
        pod.told = now;
        Some(pod)
    }

    /// A container of which a call tells something new.
    pub fn tell_container(&mut self, id: &ContainerId) -> Option<&mut Container> {
        let sandbox = self.containers.get(id)?.clone();
        self.tell_pod(&sandbox)?.container_mut(id)
    }

    /// A pod as a call told it. Containers that a list found in the meantime stay.
    pub fn insert_pod(&mut self, mut pod: Pod) {
        pod.told = self.tick();
        if let Some(known) = self.pods.get_mut(&pod.sandbox) {
            pod.containers.append(&mut known.containers);
        }
        self.pods.insert(pod.sandbox.clone(), pod);
    }

    /// A container as a call told it; ignored if its pod is unknown.
    pub fn insert_container(&mut self, sandbox: &SandboxId, container: Container) {
        let now = self.tick();
        let Some(pod) = self.pods.get_mut(sandbox) else {
            return;
        };
        pod.told = now;
        let known = self
            .containers
            .insert(container.id.clone(), sandbox.clone());
        if known.is_some() {
            pod.containers.retain(|known| known.id != container.id);
        }
        pod.containers.push(container);
    }

    /// A pod as a list told it, which no call is newer than.
    pub fn list_pod(&mut self, pod: Pod) {
        self.pods.insert(pod.sandbox.clone(), pod);
    }

    /// A container as a list told it.
    pub fn list_container(&mut self, sandbox: &SandboxId, container: Container) {
        if let Some(pod) = self.pods.get_mut(sandbox) {
            self.containers
                .insert(container.id.clone(), sandbox.clone());
            pod.containers.push(container);
        }
    }

    pub fn remove_container(&mut self, id: &ContainerId) {
        let now = self.tick();
        self.note_removal(id.as_str());
        if let Some(sandbox) = self.containers.remove(id)
            && let Some(pod) = self.pods.get_mut(&sandbox)
        {
            pod.told = now;
            pod.containers.retain(|container| container.id != *id);
        }
    }

    pub fn remove_pod(&mut self, sandbox: &SandboxId) {
        self.note_removal(sandbox.as_str());
        if let Some(pod) = self.pods.remove(sandbox) {
            for container in pod.containers {
                self.note_removal(container.id.as_str());
                self.containers.remove(&container.id);
            }
        }
    }

    fn note_removal(&mut self, id: &str) {
        if let Some(removed) = &mut self.removed {
            removed.too_many |= removed.ids.len() >= MAX_REMOVED;
            if !removed.too_many {
                removed.ids.insert(id.into());
            }
        }
    }

    /// Whether the list under way must not bring this: a call removed it since.
    pub fn is_removed(&self, id: &str) -> bool {
        let removed = self.removed.as_ref();
        removed.is_some_and(|removed| removed.too_many || removed.ids.contains(id))
    }

    /// Ends a list that was asked for at `moment`: drops what it no longer has, but for what calls
    /// told since.
    pub fn retain_listed(
        &mut self,
        moment: u64,
        has_pod: impl Fn(&SandboxId) -> bool,
        has_container: impl Fn(&ContainerId) -> bool,
    ) {
        let containers = &mut self.containers;
        self.pods.retain(|sandbox, pod| {
            if pod.told > moment {
                return true;
            }
            let listed = has_pod(sandbox);
            pod.containers.retain(|container| {
                let keep = listed && has_container(&container.id);
                if !keep {
                    containers.remove(&container.id);
                }
                keep
            });
            listed
        });
        self.removed = None;
    }
}

#[cfg(test)]
mod tests;

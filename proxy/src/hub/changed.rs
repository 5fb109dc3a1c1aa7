//! Containers whose resources somebody has changed, or may have, without having told us to what: the next
//! lists ask the runtime.

use super::{Hub, Pending};
use crate::ledger::{Ledger, Life};
use koord_hooks::Requested;
use koord_model::ContainerId;
use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    mem,
    time::Duration,
};
use tokio::time::Instant;

/// Those of whom no list has found it out yet.
#[derive(Debug, Default)]
pub(super) struct ChangedContainers(RefCell<HashSet<ContainerId>>);

/// The last update of a container whose reply was lost, and until when it may still be done.
#[derive(Debug, Default)]
pub(super) struct LostUpdates(RefCell<HashMap<ContainerId, (Pending, Instant)>>);

/// A runtime is done with an update by then, or does it no more: some lists later.
const LOST: Duration = Duration::from_secs(150);

// === impl Hub ===

impl Hub {
    /// Somebody has changed the resources of a container: what was asked for is another, and the
    /// runtime has written all that it knows. The next list finds out; one that is not known yet is
    /// new to it anyway.
    pub(crate) fn container_changed(&self, id: ContainerId) {
        if self.ledger.borrow().sandbox_of(&id).is_some() {
            self.changed.0.borrow_mut().insert(id);
        }
    }

    /// The runtime has done an update, or may have, that nobody here has read: it may have been any
    /// container's.
    pub(super) fn update_unread(&self, ledger: &Ledger) {
        let containers = ledger.pods().flat_map(|pod| &pod.containers);
        let living = containers.filter(|container| container.life != Life::Exited);
        let mut changed = self.changed.0.borrow_mut();
        changed.extend(living.map(|container| container.id.clone()));
        self.relist_soon();
    }

    /// Nobody knows whether the runtime does an update: each list asks whether its spec has it.
    pub(super) fn update_lost(&self, id: ContainerId, update: Pending) {
        let now = Instant::now();
        let mut lost = self.lost.0.borrow_mut();
        lost.retain(|_, (_, until)| *until > now);
        lost.insert(id.clone(), (update, now + LOST));
        drop(lost);
        self.container_changed(id);
    }

    /// A later one of the container was answered.
    pub(super) fn forget_lost(&self, id: &ContainerId) {
        self.lost.0.borrow_mut().remove(id);
    }

    /// Whether what a container's spec says is for a lost update of it to tell: it has come about, or may yet.
    pub(crate) fn settles_lost(&self, id: &ContainerId, shown: &Requested) -> bool {
        let lost = self.lost.0.borrow_mut().remove(id);
        match lost {
            Some((update, _)) if update.has_come_about(shown) => {
                self.commit(update, None);
                true
            }
            Some((update, until)) if until > Instant::now() => {
                self.lost.0.borrow_mut().insert(id.clone(), (update, until));
                self.container_changed(id.clone());
                true
            }
            _ => false,
        }
    }

    /// Those that were changed since this was asked for the last time. Whoever does not find out to
    /// what has to give them back.
    pub(crate) fn changed_containers(&self) -> HashSet<ContainerId> {
        mem::take(&mut self.changed.0.borrow_mut())
    }
}

//! Containers whose resources somebody has changed, or may have, without having told us to what: the next
//! lists ask the runtime.

use super::Hub;
use crate::ledger::{Ledger, Life};
use koord_model::ContainerId;
use std::{cell::RefCell, collections::HashSet, mem};

/// Those of whom no list has found it out yet.
#[derive(Debug, Default)]
pub(super) struct ChangedContainers(RefCell<HashSet<ContainerId>>);

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

    /// Those that were changed since this was asked for the last time. Whoever does not find out to
    /// what has to give them back.
    pub(crate) fn changed_containers(&self) -> HashSet<ContainerId> {
        mem::take(&mut self.changed.0.borrow_mut())
    }
}

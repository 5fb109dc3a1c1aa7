//! What is different where nobody asks us: the runtime tells of containers that are there already,
//! and nothing that is decided can be said to it.

use super::Hub;
use koord_model::ContainerId;
use std::{
    cell::{Cell, RefCell},
    collections::HashSet,
    mem,
};

/// What is known of the runtime beyond its lists.
#[derive(Debug, Default)]
pub(super) struct Watching {
    /// How it is followed; `None` while it is away.
    feed: Cell<Option<&'static str>>,
    /// Containers whose resources somebody has changed since the last list.
    changed: RefCell<HashSet<ContainerId>>,
}

// === impl Hub ===

impl Hub {
    /// Whether nobody asks us.
    pub fn watches(&self) -> bool {
        self.watching.is_some()
    }

    /// By what the runtime is followed, while it is.
    pub fn feed(&self) -> Option<&'static str> {
        self.watching.as_ref()?.feed.get()
    }

    pub(crate) fn set_feed(&self, feed: Option<&'static str>) {
        if let Some(watching) = &self.watching {
            watching.feed.set(feed);
        }
    }

    /// Somebody has changed the resources of a container: what was asked for is another, and the
    /// runtime has written all that it knows. The next list finds out; one that is not known yet is
    /// new to it anyway.
    pub(crate) fn container_changed(&self, id: ContainerId) {
        let known = self.ledger.borrow().sandbox_of(&id).is_some();
        if let Some(watching) = self.watching.as_ref().filter(|_| known) {
            watching.changed.borrow_mut().insert(id);
        }
    }

    /// Those that were changed since this was asked for the last time. Whoever does not find out to
    /// what has to give them back.
    pub(crate) fn changed_containers(&self) -> HashSet<ContainerId> {
        let watching = self.watching.as_ref();
        watching.map_or_else(HashSet::new, |it| mem::take(&mut it.changed.borrow_mut()))
    }
}

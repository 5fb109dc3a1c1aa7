//! Containers of which somebody has told that their resources were changed, until a list has found
//! out to what.
//!
//! Nobody tells it twice. So whatever ends a list early, each that was not asked about waits for the
//! next one.

use crate::hub::Hub;
use koord_model::ContainerId;
use std::{collections::HashSet, mem};

/// Those of one list, and what it sees of them itself. Dropped, it gives back what is left of them.
pub(super) struct Changed<'a> {
    hub: &'a Hub,
    ids: HashSet<ContainerId>,
}

// === impl Changed ===

impl<'a> Changed<'a> {
    /// What was told until now.
    pub(super) fn take(hub: &'a Hub) -> Self {
        Self {
            hub,
            ids: hub.changed_containers(),
        }
    }

    pub(super) fn has(&self, id: &ContainerId) -> bool {
        self.ids.contains(id)
    }

    /// A list has seen that this one was changed, though nobody has told.
    pub(super) fn note(&mut self, id: ContainerId) {
        self.ids.insert(id);
    }

    pub(super) fn has_any(&self) -> bool {
        !self.ids.is_empty()
    }

    /// The runtime has said what this one was changed to. False if nobody has told that it was.
    pub(super) fn found_out(&mut self, id: &ContainerId) -> bool {
        self.ids.remove(id)
    }
}

impl Drop for Changed<'_> {
    fn drop(&mut self) {
        for id in mem::take(&mut self.ids) {
            self.hub.container_changed(id);
        }
    }
}

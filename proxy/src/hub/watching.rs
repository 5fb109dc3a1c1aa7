//! What is different where nobody asks us: the runtime tells of containers that are there already,
//! and nothing that is decided can be said to it.

use super::Hub;
use std::cell::Cell;

/// What is known of the runtime beyond its lists.
#[derive(Debug, Default)]
pub(super) struct Watching {
    /// How it is followed; `None` while it is away.
    feed: Cell<Option<&'static str>>,
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
}

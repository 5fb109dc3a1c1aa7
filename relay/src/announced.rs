//! Which [announcements](crate::Claims::with_announcement) are held. There may be as many as there are
//! streams, and a driver asks with every read.

use std::collections::BTreeSet;

use crate::StreamId;

/// Announcements that do not go on yet.
#[derive(Debug, Default)]
pub(crate) struct Announced {
    /// Those whose message is not whole.
    arriving: BTreeSet<StreamId>,
    /// Those that the driver was asked about.
    waiting: BTreeSet<StreamId>,
}

// === impl Announced ===

impl Announced {
    pub(crate) fn begins(&mut self, id: StreamId) {
        self.arriving.insert(id);
    }

    /// Its message is whole.
    pub(crate) fn arrived(&mut self, id: StreamId) {
        if self.arriving.remove(&id) {
            self.waiting.insert(id);
        }
    }

    /// It goes on, or has ended.
    pub(crate) fn ends(&mut self, id: StreamId) {
        if !self.arriving.remove(&id) {
            self.waiting.remove(&id);
        }
    }

    pub(crate) fn has_any(&self) -> bool {
        !self.arriving.is_empty() || !self.waiting.is_empty()
    }

    /// The one that began last of those that arrive.
    pub(crate) fn last_arriving(&self) -> Option<StreamId> {
        self.arriving.last().copied()
    }

    /// Those that arrive and began no later than this one.
    pub(crate) fn arriving_up_to(&self, last: StreamId) -> impl Iterator<Item = StreamId> {
        self.arriving.range(..=last).copied()
    }
}

//! Which [announcements](crate::Claims::with_announcements) are held. There may be as many as there are
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

    pub(crate) fn is_whole(&mut self, id: StreamId) {
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
        self.has_arriving() || !self.waiting.is_empty()
    }

    pub(crate) fn has_arriving(&self) -> bool {
        !self.arriving.is_empty()
    }

    pub(crate) fn arriving(&self) -> impl Iterator<Item = StreamId> {
        self.arriving.iter().copied()
    }
}

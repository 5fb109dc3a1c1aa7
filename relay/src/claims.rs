//! The table of claimed paths: which streams are opened, and what the caller calls them.
//!
//! The table is shared by all pairs and never changes, so a clone costs one reference count.

use std::collections::HashMap;
use std::sync::Arc;

/// What the claim table gave for a path. Its meaning belongs to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub u16);

/// The `:path`s whose streams are opened.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    tags: Arc<HashMap<Vec<u8>, Tag>>,
}

// === impl Claims ===

impl Claims {
    /// Claims each of the given paths, compared byte for byte. The last of two equal paths wins.
    pub fn new<P: Into<Vec<u8>>>(paths: impl IntoIterator<Item = (P, Tag)>) -> Self {
        let tags = paths
            .into_iter()
            .map(|(path, tag)| (path.into(), tag))
            .collect();
        Self {
            tags: Arc::new(tags),
        }
    }

    pub(crate) fn tag(&self, path: &[u8]) -> Option<Tag> {
        self.tags.get(path).copied()
    }
}

//! The table of paths that mean something: which streams are opened, and what the caller calls
//! them; and which have no end of their own.
//!
//! The table is shared by all pairs and never changes, so a clone costs one reference count.

use std::collections::HashMap;
use std::sync::Arc;

/// What the claim table gave for a path. Its meaning belongs to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Tag(pub u16);

/// The `:path`s whose streams are not like all others. Paths are compared byte for byte, but for a leading
/// slash: servers of grpc-go up to 1.78 take them without it.
#[derive(Clone, Debug, Default)]
pub struct Claims {
    paths: Arc<HashMap<Vec<u8>, Kind>>,
    announcement: Option<Tag>,
}

/// What the streams of a path are.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Kind {
    Claimed(Tag),
    Endless,
}

// === impl Claims ===

impl Claims {
    /// Claims each of the given paths. The last of two equal paths wins.
    pub fn new<P: Into<Vec<u8>>>(paths: impl IntoIterator<Item = (P, Tag)>) -> Self {
        let paths = paths.into_iter();
        let claimed = paths.map(|(path, tag)| (named(path), Kind::Claimed(tag)));
        Self {
            paths: Arc::new(claimed.collect()),
            announcement: None,
        }
    }

    /// Calls of this one tag announce what their client does once they are answered, whatever the answer is. A
    /// runtime that does not know the method answers their headers, while the message is held: a driver is not
    /// to read from it while there is one ([`Pair::has_announcement`](crate::Pair::has_announcement)).
    #[must_use]
    pub fn with_announcement(mut self, tag: Tag) -> Self {
        self.announcement = Some(tag);
        self
    }

    /// Adds paths whose streams last for as long as their connection does. They pass unopened, and
    /// a drain does not wait for them. A path that is claimed stays claimed.
    #[must_use]
    pub fn with_endless<P: Into<Vec<u8>>>(mut self, paths: impl IntoIterator<Item = P>) -> Self {
        let known = Arc::make_mut(&mut self.paths);
        for path in paths {
            known.entry(named(path)).or_insert(Kind::Endless);
        }
        self
    }

    pub(crate) fn announces(&self, tag: Tag) -> bool {
        self.announcement == Some(tag)
    }

    pub(crate) fn kind(&self, path: &[u8]) -> Option<Kind> {
        self.paths.get(without_slash(path)).copied()
    }
}

fn named(path: impl Into<Vec<u8>>) -> Vec<u8> {
    without_slash(&path.into()).to_vec()
}

fn without_slash(path: &[u8]) -> &[u8] {
    path.strip_prefix(b"/").unwrap_or(path)
}

//! Pods from a file, as `kubectl get pods -o yaml` prints them.

use super::SourceError;
use crate::{
    regular_file::{self, FileError},
    watched_file::{self, Fingerprint},
};
use koord_proto::pods::MAX_LENGTH;
use rustix::fd::OwnedFd;
use std::path::{Path, PathBuf};

/// A file, and what was last seen there.
#[derive(Debug)]
pub(super) struct PodsFile {
    path: PathBuf,
    seen: Option<Fingerprint>,
}

// === impl PodsFile ===

impl PodsFile {
    pub(super) fn at(path: &Path) -> Self {
        Self {
            path: path.to_owned(),
            seen: None,
        }
    }

    /// A watch of it, if there can be one.
    pub(super) fn watch(&self) -> Option<OwnedFd> {
        watched_file::watch(&self.path)
    }

    /// What is in the file; nothing if that is what was there the last time, unless it is wanted
    /// `anew`.
    pub(super) fn read(&mut self, anew: bool) -> Result<Option<Vec<u8>>, SourceError> {
        let read = regular_file::read(&self.path, MAX_LENGTH as u64);
        let fingerprint = Some(Fingerprint::of(&read));
        if std::mem::replace(&mut self.seen, fingerprint) == fingerprint && !anew {
            return Ok(None);
        }
        read.map(Some)
            .map_err(|source: FileError| SourceError::Read {
                path: self.path.clone(),
                source,
            })
    }
}

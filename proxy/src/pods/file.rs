//! Pods from a file, as `kubectl get pods -o yaml` prints them.

use super::{SourceError, Text};
use crate::{
    regular_file,
    watched_file::{self, Fingerprint},
};
use koord_proto::{
    Issues,
    pods::{MAX_LENGTH, make_room},
};
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

    /// What is in the file, and what had to be left out of it; nothing if that is what was there the last time,
    /// unless it is wanted `anew`.
    pub(super) fn read(&mut self, anew: bool) -> Result<Option<Text>, SourceError> {
        let mut left_out = Issues::default();
        let read = regular_file::read_within(&self.path, MAX_LENGTH as u64, |text| {
            // Where pods begin and end in a text of YAML only a parser can tell.
            if text.trim_ascii_start().starts_with(b"{") {
                left_out.append(make_room(text));
            }
        });
        let fingerprint = Some(Fingerprint::of(&read));
        if std::mem::replace(&mut self.seen, fingerprint) == fingerprint && !anew {
            return Ok(None);
        }
        match read {
            Ok(text) => Ok(Some((text, left_out))),
            Err(source) => Err(SourceError::Read {
                path: self.path.clone(),
                source,
            }),
        }
    }
}

//! The folders of the node in which it is counted what containers use of their parts of GPUs.
//!
//! Each is made anew right before its container, for every user to write in, and removed when a list has
//! its pod no more. After a restart they are known by what is decided of the containers that there are:
//! those of pods that have gone meanwhile stay.
//!
//! What is in them containers have put there. So no link is followed, nobody but root may write in what
//! is around them, and one in which there is very much, or too deep, is left as it is. A thread of its own
//! does all of it, because a file system may hang.

use crate::{
    hub::Hub,
    ledger::{Entry, Ledger, Target},
    worker::Worker,
};
use koord_hooks::{HAMI_CORE_FOLDERS, PathProblem, UnsafePath};
use koord_model::Value;
use rustix::{
    fs::{AtFlags, Dir, Mode, OFlags},
    io::Errno,
};
use std::{
    cell::{Cell, RefCell},
    collections::BTreeSet,
    error::Error,
    ffi::{CStr, CString, OsStr},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
    rc::Rc,
};
use thiserror::Error;
use tokio::sync::oneshot;
use tracing::debug;

/// The stack of the thread, in bytes.
const STACK: usize = 128 << 10;

/// What a container may have put into its folder and is removed with it: folders in folders, and all that
/// there is.
const MAX_LEVELS: u32 = 8;
const MAX_FILES: u32 = 4096;

/// Of the folder of all folders, through which nobody else comes to one that every user may write in, and
/// of each.
const AROUND: Mode = Mode::RWXU;
const EVERYBODYS: Mode = Mode::from_bits_retain(0o777);

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The folders of one node.
#[derive(Debug)]
pub(crate) struct Folders {
    worker: Worker<Job>,
    /// Whose everything around them has to be.
    owner: Cell<u32>,
    /// Those that may be there.
    known: RefCell<BTreeSet<PathBuf>>,
    /// Those that were made since it was last looked which pods have gone.
    fresh: RefCell<BTreeSet<PathBuf>>,
}

/// Why a container does not have its folder.
#[derive(Debug, Error)]
pub(crate) enum FolderError {
    #[error(transparent)]
    Unsafe(#[from] UnsafePath),
    #[error("{path} cannot be made anew")]
    Io { path: PathBuf, source: io::Error },
    #[error("{path} was not made in time")]
    Late { path: PathBuf },
}

enum Job {
    Make {
        owner: u32,
        path: PathBuf,
        done: oneshot::Sender<Result<(), FolderError>>,
    },
    /// Answered is which are not there any more.
    Remove {
        owner: u32,
        paths: Vec<PathBuf>,
        done: oneshot::Sender<Vec<PathBuf>>,
    },
}

/// The folder that a container is made with, if something is decided about one.
pub(crate) fn folder_of(target: &Target) -> Option<(&Entry, &Path)> {
    target.entries().iter().find_map(|entry| {
        let Value::GpuMonitor(counted) = &entry.desired else {
            return None;
        };
        let source = counted.binds.first()?.source.as_deref()?;
        Some((entry, Path::new(source)))
    })
}

/// Removes the folders of pods that have gone, with each list; never ends.
pub(crate) async fn keep(hub: Rc<Hub>) {
    let mut lists = hub.lists();
    loop {
        // Who counts them is held here, so it is there.
        lists.changed().await.ok();
        if hub.enforces() {
            let gone = hub.folders().gone(&hub.ledger().borrow());
            hub.folders().remove(gone).await;
        }
    }
}

// === impl Folders ===

impl Folders {
    /// Those around which everything is this user's.
    pub(crate) fn of(owner: u32) -> Self {
        Self {
            owner: Cell::new(owner),
            known: RefCell::default(),
            fresh: RefCell::default(),
            worker: Worker::new("hami-folders", STACK, |job| match job {
                // Whoever asked may have gone away; its answer then has no reader, and that is fine.
                Job::Make { owner, path, done } => {
                    done.send(make(owner, &path)).ok();
                }
                Job::Remove { owner, paths, done } => {
                    done.send(removed(owner, paths)).ok();
                }
            }),
        }
    }

    #[cfg(test)]
    pub(crate) fn set_owner(&self, owner: u32) {
        self.owner.set(owner);
    }

    /// Makes a folder, empty whatever was there.
    pub(crate) async fn make(&self, path: &Path) -> Result<(), FolderError> {
        let path = path.to_owned();
        self.known.borrow_mut().insert(path.clone());
        self.fresh.borrow_mut().insert(path.clone());
        let (owner, asked) = (self.owner.get(), path.clone());
        let made = self.worker.ask(|done| Job::Make {
            owner,
            path: asked,
            done,
        });
        made.await.unwrap_or(Err(FolderError::Late { path }))
    }

    /// Those of pods that are not there any more. One that was made since the last question is not among
    /// them: its pod may be in no list yet.
    pub(crate) fn gone(&self, ledger: &Ledger) -> Vec<PathBuf> {
        let containers = ledger.pods().flat_map(|pod| &pod.containers);
        let decided = containers.filter_map(|it| folder_of(&it.target));
        let decided = decided.map(|(_, path)| path.to_owned());
        let mut known = self.known.borrow_mut();
        known.extend(decided);
        let fresh = self.fresh.take();
        let has_pod = |path: &Path| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            ledger.pods().any(|pod| {
                let rest = name.strip_prefix(pod.view.uid.as_str());
                rest.is_some_and(|rest| rest.starts_with('_'))
            })
        };
        let gone = known
            .iter()
            .filter(|path| !fresh.contains(*path) && !has_pod(path));
        gone.cloned().collect()
    }

    /// Removes these; what cannot be removed is tried again with those that have gone later.
    pub(crate) async fn remove(&self, paths: Vec<PathBuf>) {
        if paths.is_empty() {
            return;
        }
        let owner = self.owner.get();
        let removed = self.worker.ask(|done| Job::Remove { owner, paths, done });
        let removed = removed.await.unwrap_or_default();
        let fresh = self.fresh.borrow();
        let mut known = self.known.borrow_mut();
        known.retain(|path| fresh.contains(path) || !removed.contains(path));
    }
}

fn make(owner: u32, path: &Path) -> Result<(), FolderError> {
    let failed = |errno: Errno| FolderError::Io {
        path: path.to_owned(),
        source: errno.into(),
    };
    let (around, name) = around(owner, path, true)?;
    clear(&around, &name).map_err(failed)?;
    rustix::fs::mkdirat(&around, &*name, AROUND).map_err(failed)?;
    let folder = rustix::fs::openat(&around, &*name, FOLDER, Mode::empty()).map_err(failed)?;
    // Whatever our umask is.
    rustix::fs::fchmod(&folder, EVERYBODYS).map_err(failed)
}

/// Removes these; those that are not there then.
fn removed(owner: u32, mut paths: Vec<PathBuf>) -> Vec<PathBuf> {
    paths.retain(|path| {
        let removed = around(owner, path, false).and_then(|(around, name)| {
            let removed = clear(&around, &name);
            removed.map_err(|errno| FolderError::Io {
                path: path.clone(),
                source: errno.into(),
            })
        });
        let Err(error) = removed else {
            return true;
        };
        let nowhere = match &error {
            FolderError::Unsafe(it) => it.problem == PathProblem::Missing,
            _ => false,
        };
        if !nowhere {
            let error = &error as &dyn Error;
            debug!(error, "the folder of a pod that has gone stays");
        }
        nowhere
    });
    paths
}

/// The folder of all folders, and what the one at `path` is called there. It is made if so wanted.
fn around(owner: u32, path: &Path, is_made: bool) -> Result<(OwnedFd, CString), FolderError> {
    let failed = |errno: Errno| FolderError::Io {
        path: path.to_owned(),
        source: errno.into(),
    };
    let name = path.file_name().map(OsStr::as_bytes);
    let name = name.and_then(|name| CString::new(name).ok());
    let name = name.ok_or(Errno::INVAL).map_err(failed)?;
    let folders = path.parent().unwrap_or(Path::new(""));
    let library = folders.parent().unwrap_or(Path::new(""));
    let opened = rustix::fs::open(library, FOLDER, Mode::empty());
    let library = safe(owner, library, opened)?;
    if is_made {
        match rustix::fs::mkdirat(&library, HAMI_CORE_FOLDERS, AROUND) {
            Ok(()) | Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    let opened = rustix::fs::openat(&library, HAMI_CORE_FOLDERS, FOLDER, Mode::empty());
    let around = safe(owner, folders, opened)?;
    if is_made {
        // Whatever our umask is, and whoever made it.
        rustix::fs::fchmod(&around, AROUND).map_err(failed)?;
    }
    Ok((around, name))
}

/// A directory in which nobody but `owner` may put anything.
fn safe(
    owner: u32,
    path: &Path,
    opened: rustix::io::Result<OwnedFd>,
) -> Result<OwnedFd, UnsafePath> {
    let refused = |problem| UnsafePath {
        path: path.to_owned(),
        problem,
    };
    let unknown = |errno: Errno| PathProblem::Unknown(io::Error::from(errno).kind());
    let opened = opened.map_err(|errno| match errno {
        Errno::NOENT => refused(PathProblem::Missing),
        Errno::NOTDIR | Errno::LOOP => refused(PathProblem::OtherKind {
            expected: "a directory",
        }),
        errno => refused(unknown(errno)),
    })?;
    let found = rustix::fs::fstat(&opened).map_err(|errno| refused(unknown(errno)))?;
    if found.st_uid != owner {
        return Err(refused(PathProblem::Owner { uid: found.st_uid }));
    }
    let mode = Mode::from_raw_mode(found.st_mode);
    if mode.intersects(Mode::WGRP.union(Mode::WOTH)) {
        return Err(refused(PathProblem::Writable));
    }
    Ok(opened)
}

/// Removes whatever has this name, as far as a container may fill it.
fn clear(around: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    let mut left = MAX_FILES;
    remove(around, name, MAX_LEVELS, &mut left)
}

/// Removes whatever has this name, with what is in it, as far as that goes no deeper than these `levels`
/// and no more than `left` are in it.
fn remove(around: &OwnedFd, name: &CStr, levels: u32, left: &mut u32) -> rustix::io::Result<()> {
    let folder = match rustix::fs::openat(around, name, FOLDER, Mode::empty()) {
        Ok(folder) => folder,
        Err(Errno::NOENT) => return Ok(()),
        Err(Errno::NOTDIR | Errno::LOOP) => {
            return gone(rustix::fs::unlinkat(around, name, AtFlags::empty()));
        }
        Err(errno) => return Err(errno),
    };
    for entry in Dir::read_from(&folder)? {
        let entry = entry?;
        let name = entry.file_name();
        if matches!(name.to_bytes(), b"." | b"..") {
            continue;
        }
        if levels == 0 || *left == 0 {
            return Err(Errno::NOTEMPTY);
        }
        *left -= 1;
        match rustix::fs::unlinkat(&folder, name, AtFlags::empty()) {
            Err(Errno::ISDIR | Errno::PERM) => remove(&folder, name, levels - 1, left)?,
            done => gone(done)?,
        }
    }
    gone(rustix::fs::unlinkat(around, name, AtFlags::REMOVEDIR))
}

/// A container may have removed it meanwhile.
fn gone(removed: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match removed {
        Err(Errno::NOENT) => Ok(()),
        removed => removed,
    }
}

#[cfg(test)]
mod tests;

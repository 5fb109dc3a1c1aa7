//! The folders of the node in which it is counted what containers use of their parts of GPUs.
//!
//! Each is made anew right before its container, for every user to write in, and set aside when a list has
//! its pod no more. After a restart they are known by what is decided of the containers that there are:
//! those of pods that have gone meanwhile stay.
//!
//! What is in them containers have put there. So no link is followed, and nobody but root may write in what
//! is around them. A thread of its own does all of it, because a file system may hang; another one clears
//! what was [set aside](gone), which no container waits for.

mod given_back;
mod gone;

pub(crate) use self::given_back::{GivenBack, Living};

use super::above;
use crate::{
    hub::Hub,
    ledger::{Applied, Entry, Ledger, Target},
    log::RateLimited,
    worker::Worker,
};
use koord_hooks::{HAMI_CORE_FOLDERS, HAMI_CORE_SEPARATOR, PathProblem, UnsafePath};
use koord_model::Value;
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeMap, BTreeSet},
    error::Error,
    ffi::{CString, OsStr},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
    rc::Rc,
    time::Instant,
};
use thiserror::Error;
use tokio::sync::oneshot;
use tracing::{debug, warn};

/// The stack of the thread, in bytes.
const STACK: usize = 128 << 10;

/// What cannot be cleared is tried again after two lists, then after four, and at last each time after two
/// to the power of this.
const MAX_TRIES: u32 = 10;

/// Of the folder of all folders, through which nobody else comes to one that every user may write in, and
/// of each.
const AROUND: Mode = Mode::RWXU;
/// Of one that somebody else has made: it keeps everybody out as well, and is no sign that it is ours, by
/// which we remove what is in it when we go.
const AROUND_OF_OTHERS: Mode = AROUND.union(Mode::SVTX);
const EVERYBODYS: Mode = Mode::from_bits_retain(0o777);

const FOLDER: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// The folders of one node.
#[derive(Debug)]
pub(crate) struct Folders {
    worker: Worker<Job>,
    clearer: Worker<Clearing>,
    /// Whose everything around them has to be.
    owner: Cell<u32>,
    /// Those that may be there.
    known: RefCell<BTreeSet<PathBuf>>,
    /// Those that were made since it was last looked which pods have gone.
    fresh: RefCell<BTreeSet<PathBuf>>,
    stuck: RefCell<BTreeMap<PathBuf, Stuck>>,
    /// Where the last round of clearing ended: the next one goes on behind it.
    last: RefCell<PathBuf>,
    warnings: RefCell<RateLimited>,
}

/// One of which nothing could be cleared.
#[derive(Debug, Default)]
struct Stuck {
    tries: u32,
    /// Lists until the next one.
    waits: u32,
    is_told: bool,
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
    #[error("{path}, whose container has gone, cannot be removed")]
    Stays { path: PathBuf, source: io::Error },
}

enum Job {
    Make {
        owner: u32,
        path: PathBuf,
        done: oneshot::Sender<Result<(), FolderError>>,
    },
    /// Answered is whether it is not there any more.
    SetAside {
        owner: u32,
        path: PathBuf,
        done: oneshot::Sender<bool>,
    },
}

/// Nothing that a container waits for.
enum Clearing {
    /// Answered is what there is to clear behind the `last`, if that can be found out.
    Look {
        owner: u32,
        folders: PathBuf,
        last: PathBuf,
        done: oneshot::Sender<Option<ToClear>>,
    },
    Clear {
        owner: u32,
        path: PathBuf,
        done: oneshot::Sender<Result<bool, FolderError>>,
    },
    GiveBack {
        owner: u32,
        folders: PathBuf,
        living: Option<Living>,
        done: oneshot::Sender<Result<GivenBack, FolderError>>,
    },
}

/// What was set aside.
#[derive(Debug, Default)]
struct ToClear {
    /// What one round takes of it.
    paths: Vec<PathBuf>,
    /// How many there are in all.
    count: usize,
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

/// The folder of all folders of this node.
pub(crate) fn folders_of(hub: &Hub) -> Option<PathBuf> {
    let library = hub.policy().node().options.hami_core_library.clone();
    let around = Path::new(&*library).parent();
    // Containers are counted in none that is at the root.
    let around = around.filter(|it| it.parent().is_some());
    around.map(|it| it.join(HAMI_CORE_FOLDERS))
}

/// Removes the folders of pods that have gone, and what others have left, with each list; never ends.
pub(crate) async fn keep(hub: Rc<Hub>) {
    let mut lists = hub.lists();
    loop {
        // Who counts them is held here, so it is there.
        lists.changed().await.ok();
        if hub.enforces() {
            let gone = hub.folders().gone(&hub.ledger().borrow());
            hub.folders().remove(gone).await;
            if let Some(folders) = folders_of(&hub)
                && let Some(left) = hub.folders().clear(&folders).await
            {
                hub.metrics().gpu_monitor_folders_left(left);
            }
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
            stuck: RefCell::default(),
            last: RefCell::default(),
            warnings: RefCell::default(),
            worker: Worker::new("hami-folders", STACK, run),
            clearer: Worker::new("hami-clearing", STACK, |job| match job {
                // Whoever asked may have gone away; its answer then has no reader, and that is fine.
                Clearing::Look {
                    owner,
                    folders,
                    last,
                    done,
                } => {
                    done.send(to_clear(owner, &folders, &last)).ok();
                }
                Clearing::Clear { owner, path, done } => {
                    done.send(clear(owner, &path)).ok();
                }
                Clearing::GiveBack {
                    owner,
                    folders,
                    living,
                    done,
                } => {
                    let given = given_back::give_back(owner, &folders, living.as_ref());
                    done.send(given).ok();
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
        // Before it is there: whoever asks may give up waiting.
        let is_new = self.note(&path);
        let (owner, asked) = (self.owner.get(), path.clone());
        let made = self.worker.ask(|done| Job::Make {
            owner,
            path: asked,
            done,
        });
        let made = made.await;
        match &made {
            // Nothing was made, and as long as what is around it stays so nobody would find that it is not there.
            Some(Err(FolderError::Unsafe(_))) if is_new => {
                self.known.borrow_mut().remove(&path);
                self.fresh.borrow_mut().remove(&path);
            }
            // An earlier question may have ended so meanwhile.
            Some(Ok(())) => {
                self.note(&path);
            }
            _ => {}
        }
        made.unwrap_or(Err(FolderError::Late { path }))
    }

    /// One may be there from now on. Whether that is new.
    fn note(&self, path: &Path) -> bool {
        self.fresh.borrow_mut().insert(path.to_owned());
        self.known.borrow_mut().insert(path.to_owned())
    }

    /// Whether somebody has given up waiting for a folder after 50 ms or more, and the thread has done
    /// nothing since.
    pub(crate) fn is_late(&self) -> bool {
        self.worker.is_late()
    }

    /// Those of pods that are not there any more. One that was made since the last question is not among
    /// them: its pod may be in no list yet.
    pub(crate) fn gone(&self, ledger: &Ledger) -> Vec<PathBuf> {
        let containers = ledger.pods().flat_map(|pod| &pod.containers);
        let decided = containers.filter_map(|it| folder_of(&it.target));
        // What could not be made is not there, and what was only late is known since.
        let decided = decided.filter(|(entry, _)| !matches!(entry.applied, Applied::Lacking(_)));
        let decided = decided.map(|(_, path)| path.to_owned());
        let mut known = self.known.borrow_mut();
        known.extend(decided);
        let fresh = self.fresh.take();
        let has_pod = |path: &Path| {
            let name = path.file_name().and_then(OsStr::to_str).unwrap_or_default();
            ledger.pods().any(|pod| {
                let rest = name.strip_prefix(pod.view.uid.as_str());
                rest.is_some_and(|rest| rest.starts_with(HAMI_CORE_SEPARATOR))
            })
        };
        let gone = known
            .iter()
            .filter(|path| !fresh.contains(*path) && !has_pod(path));
        gone.cloned().collect()
    }

    /// Sets these aside, each between what containers wait for; what cannot be is tried again with those
    /// that have gone later.
    pub(crate) async fn remove(&self, paths: Vec<PathBuf>) {
        let owner = self.owner.get();
        for path in paths {
            // Its name may be in use again.
            if self.fresh.borrow().contains(&path) {
                continue;
            }
            let asked = path.clone();
            let aside = self.worker.ask(|done| Job::SetAside {
                owner,
                path: asked,
                done,
            });
            if aside.await == Some(true) && !self.fresh.borrow().contains(&path) {
                self.known.borrow_mut().remove(&path);
            }
        }
    }

    /// Clears what was set aside in the folder of all folders, by whatever process. Of each no more is
    /// cleared than one go takes, and what cannot be is tried at ever fewer lists. Where there are more than
    /// one round takes, the next one goes on with the others. How many are left; `None` if that cannot be
    /// found out.
    pub(crate) async fn clear(&self, folders: &Path) -> Option<usize> {
        let (owner, folders) = (self.owner.get(), folders.to_owned());
        let last = self.last.borrow().clone();
        let look = self.clearer.ask(|done| Clearing::Look {
            owner,
            folders,
            last,
            done,
        });
        let ToClear { paths, count } = look.await.flatten()?;
        self.last.replace(paths.last().cloned().unwrap_or_default());
        if paths.len() == count {
            let there: BTreeSet<&PathBuf> = paths.iter().collect();
            self.stuck.borrow_mut().retain(|it, _| there.contains(it));
        }
        let mut left = count;
        for path in paths {
            if !self.is_due(&path) {
                continue;
            }
            let asked = path.clone();
            let cleared = self.clearer.ask(|done| Clearing::Clear {
                owner,
                path: asked,
                done,
            });
            match cleared.await {
                Some(Err(error)) => self.stays(path, &error),
                cleared => {
                    left -= usize::from(matches!(cleared, Some(Ok(true))));
                    self.stuck.borrow_mut().remove(&path);
                }
            }
        }
        Some(left)
    }

    /// Removes what is ours in the folder of all folders, but for those of pods that live: of `None` it is unknown
    /// which do, and nothing goes but what was set aside. That takes
    /// as long as it takes; `None` if there is no thread for it.
    pub(crate) async fn give_back(
        &self,
        folders: &Path,
        living: Option<Living>,
    ) -> Option<Result<GivenBack, FolderError>> {
        let (owner, folders) = (self.owner.get(), folders.to_owned());
        let given = self.clearer.ask(|done| Clearing::GiveBack {
            owner,
            folders,
            living,
            done,
        });
        given.await
    }

    fn is_due(&self, path: &Path) -> bool {
        let mut stuck = self.stuck.borrow_mut();
        let Some(stuck) = stuck.get_mut(path) else {
            return true;
        };
        stuck.waits = stuck.waits.saturating_sub(1);
        stuck.waits == 0
    }

    /// Nothing of one can be cleared: that is told once.
    fn stays(&self, path: PathBuf, error: &FolderError) {
        let mut stuck = self.stuck.borrow_mut();
        let stuck = stuck.entry(path).or_default();
        stuck.tries = (stuck.tries + 1).min(MAX_TRIES);
        stuck.waits = 1 << stuck.tries;
        let mut warnings = self.warnings.borrow_mut();
        let now = Instant::now();
        if !stuck.is_told
            && let Some(suppressed) = warnings.permit("HamiCoreVGPUMonitor", "folder", now)
        {
            stuck.is_told = true;
            let error = error as &dyn Error;
            warn!(error, suppressed, "what a container has left stays");
        }
    }
}

// === impl FolderError ===

impl FolderError {
    fn stays(path: &Path, errno: Errno) -> Self {
        Self::Stays {
            path: path.to_owned(),
            source: errno.into(),
        }
    }
}

fn run(job: Job) {
    // Whoever asked may have gone away; its answer then has no reader, and that is fine.
    match job {
        Job::Make { owner, path, done } => {
            done.send(make(owner, &path)).ok();
        }
        Job::SetAside { owner, path, done } => {
            done.send(set_aside(owner, &path)).ok();
        }
    }
}

fn make(owner: u32, path: &Path) -> Result<(), FolderError> {
    let failed = |errno: Errno| FolderError::Io {
        path: path.to_owned(),
        source: errno.into(),
    };
    let (around, name) = around(owner, path, true)?;
    // However long it takes to clear it.
    gone::set_aside(&around, &name).map_err(failed)?;
    rustix::fs::mkdirat(&around, &*name, AROUND).map_err(failed)?;
    let folder = rustix::fs::openat(&around, &*name, FOLDER, Mode::empty()).map_err(failed)?;
    // Whatever our umask is.
    rustix::fs::fchmod(&folder, EVERYBODYS).map_err(failed)
}

/// Sets one aside that is of no pod any more; whether it is not there then.
fn set_aside(owner: u32, path: &Path) -> bool {
    let aside = around(owner, path, false).and_then(|(around, name)| {
        gone::set_aside(&around, &name).map_err(|errno| FolderError::stays(path, errno))
    });
    match aside {
        Ok(()) => true,
        Err(FolderError::Unsafe(it)) if it.problem == PathProblem::Missing => true,
        Err(error) => {
            let error = &error as &dyn Error;
            debug!(error, "the folder of a pod that has gone stays");
            false
        }
    }
}

/// What is to be cleared in the folder of all folders, from what is behind the `last` on; `None` where that
/// cannot be found out.
fn to_clear(owner: u32, folders: &Path, last: &Path) -> Option<ToClear> {
    // Whatever is called there.
    let around = match around(owner, &folders.join("any"), false) {
        Ok((around, _)) => around,
        Err(FolderError::Unsafe(it)) if it.problem == PathProblem::Missing => {
            return Some(ToClear::default());
        }
        Err(_) => return None,
    };
    let last = last.file_name().unwrap_or_default();
    let (names, count) = gone::names(&around, last.as_bytes()).ok()?;
    let names = names.iter().map(|it| OsStr::from_bytes(it.to_bytes()));
    let paths = names.map(|name| folders.join(name)).collect();
    Some(ToClear { paths, count })
}

/// Clears one; whether nothing of it is left.
fn clear(owner: u32, path: &Path) -> Result<bool, FolderError> {
    let (around, name) = around(owner, path, false)?;
    gone::clear(&around, &name).map_err(|errno| FolderError::stays(path, errno))
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
    above::check(owner, library)?;
    let opened = rustix::fs::open(library, FOLDER, Mode::empty());
    let library = safe(owner, library, opened)?;
    let mut is_new = false;
    if is_made {
        match rustix::fs::mkdirat(&library, HAMI_CORE_FOLDERS, AROUND) {
            Ok(()) => is_new = true,
            Err(Errno::EXIST) => {}
            Err(errno) => return Err(failed(errno)),
        }
    }
    let opened = rustix::fs::openat(&library, HAMI_CORE_FOLDERS, FOLDER, Mode::empty());
    let around = safe(owner, folders, opened)?;
    if is_made {
        close(&around, is_new).map_err(failed)?;
    }
    Ok((around, name))
}

/// Lets nobody else enter the folder of all folders, whatever our umask is, and whoever made it. One with our
/// mode may be from a process before us: it counts as ours.
fn close(around: &OwnedFd, is_new: bool) -> rustix::io::Result<()> {
    let found = Mode::from_raw_mode(rustix::fs::fstat(around)?.st_mode);
    let is_ours = is_new || found == AROUND;
    let mode = if is_ours { AROUND } else { AROUND_OF_OTHERS };
    rustix::fs::fchmod(around, mode)
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

#[cfg(test)]
mod tests;

//! Hearing of changes of a file that somebody else lays down.
//!
//! Its directory is watched, not the file, because neither editors nor ConfigMap volumes write into
//! a file: they put another in its place, or turn a symbolic link to another directory. What is
//! seen there only says that something may have changed; whether the content did is found by
//! reading.

use crate::regular_file::FileError;
use rustix::{
    fd::OwnedFd,
    fs::inotify::{self, CreateFlags, WatchFlags},
};
use std::{
    error::Error,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    path::Path,
    time::Duration,
};
use tokio::{
    io::unix::AsyncFd,
    time::{sleep, timeout},
};
use tracing::debug;

/// How long after a change the file is read: writers take more than one step.
const DEBOUNCE: Duration = Duration::from_millis(100);
/// How often the file is looked at though nothing was noticed: its directory may not exist yet.
const PERIOD: Duration = Duration::from_secs(10);

/// Content or failure, small enough to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fingerprint {
    Content(u64),
    Unreadable(io::ErrorKind),
    NotRegular(&'static str),
    TooLarge,
}

/// Hears when something changes where a file is; of one that cannot be watched, nothing.
pub(crate) struct Watch(Option<AsyncFd<OwnedFd>>);

// === impl Fingerprint ===

impl Fingerprint {
    pub(crate) fn of(read: &Result<Vec<u8>, FileError>) -> Self {
        match read {
            Ok(bytes) => {
                let mut hasher = DefaultHasher::new();
                bytes.hash(&mut hasher);
                Self::Content(hasher.finish())
            }
            Err(FileError::Io(error)) => Self::Unreadable(error.kind()),
            Err(FileError::NotRegular { kind }) => Self::NotRegular(kind),
            Err(FileError::TooLarge { .. }) => Self::TooLarge,
        }
    }
}

// === impl Watch ===

impl Watch {
    pub(crate) fn beside(path: &Path) -> Self {
        let watch = Self::open(path).inspect_err(|error| {
            let error = error as &dyn Error;
            debug!(error, path = %path.display(), "a file is not watched, only looked at");
        });
        Self(watch.ok())
    }

    /// Ready at the first event, when whoever writes has had the time for a second one, and after a
    /// while in any case. Which event does not matter, and the watch is made anew for the next, so
    /// nothing needs to be read from it.
    pub(crate) async fn may_have_changed(&self) {
        let changed = async {
            match &self.0 {
                Some(watch) => watch.readable().await.map(drop),
                None => std::future::pending().await,
            }
        };
        match timeout(PERIOD, changed).await {
            Err(_) => {}
            Ok(Ok(())) => sleep(DEBOUNCE).await,
            Ok(Err(error)) => {
                debug!(error = &error as &dyn Error, "the watch of a file broke");
                sleep(PERIOD).await;
            }
        }
    }

    /// Watches the directory of `path`, and that of the file that it leads to.
    fn open(path: &Path) -> io::Result<AsyncFd<OwnedFd>> {
        let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
        inotify::add_watch(&watch, parent(path), events())?;
        if let Ok(real) = path.canonicalize() {
            // Of one directory watched twice there is one watch.
            inotify::add_watch(&watch, parent(&real), events())?;
        }
        #[expect(
            deprecated,
            reason = "its unsafe successor asks for a descriptor that stays open and the same, \
                      which an OwnedFd is"
        )]
        let watch = AsyncFd::new(watch);
        watch
    }
}

/// What may be a change of a file in a watched directory. Reading it is none.
fn events() -> WatchFlags {
    WatchFlags::CLOSE_WRITE
        | WatchFlags::CREATE
        | WatchFlags::MOVED_TO
        | WatchFlags::MOVED_FROM
        | WatchFlags::DELETE
        | WatchFlags::DELETE_SELF
        | WatchFlags::MOVE_SELF
}

fn parent(path: &Path) -> &Path {
    match path.parent() {
        Some(parent) if parent != Path::new("") => parent,
        _ => Path::new("."),
    }
}

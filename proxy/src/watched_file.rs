//! Hearing of changes of a file that somebody else lays down.
//!
//! Its directory is watched, not the file, because neither editors nor ConfigMap volumes write into
//! a file: they put another in its place, or turn a symbolic link to another directory. What is
//! seen there only says that something may have changed; whether the content did is found by
//! reading, which is done as soon as the writer seems to have come to an end.
//!
//! To watch a directory takes as long as its file system likes. So a watch is made where the file is
//! read ([`watch`]), and only listened to ([`Watch`]) on the thread that carries the data.

use crate::{readiness::registered, regular_file::FileError};
use rustix::{
    fd::OwnedFd,
    fs::inotify::{self, CreateFlags, ReadFlags, WatchFlags},
    io::Errno,
};
use std::{
    error::Error,
    hash::{DefaultHasher, Hash, Hasher},
    io,
    mem::MaybeUninit,
    path::Path,
    time::Duration,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    runtime::Handle,
    time::{Instant, sleep, timeout, timeout_at},
};
use tracing::debug;

/// How long nothing more happens before a file that has been closed or moved here is read: writers
/// take more than one step.
const QUIET: Duration = Duration::from_millis(10);
/// How long after the first change the file is read whatever else happens: one may be begun and not
/// closed for long.
const PATIENCE: Duration = Duration::from_millis(100);
/// How often a file is looked at though nothing was noticed: its directory may not exist yet.
pub(crate) const PERIOD: Duration = Duration::from_secs(10);

/// Content or failure, small enough to keep.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Fingerprint {
    Content(u64),
    Unreadable(io::ErrorKind),
    NotRegular(&'static str),
    TooLarge,
}

/// Hears when something changes where a file is; of one that is not watched, nothing.
#[derive(Default)]
pub(crate) struct Watch(Option<AsyncFd<OwnedFd>>);

/// Watches where a file is; nothing if that cannot be done. Not for the thread that carries the data.
pub(crate) fn watch(path: &Path) -> Option<OwnedFd> {
    debug_assert!(Handle::try_current().is_err(), "everybody waits");
    let watch = directories(path).inspect_err(|error| {
        let error = error as &dyn Error;
        debug!(error, path = %path.display(), "a file is not watched, only looked at");
    });
    watch.ok()
}

/// Watches the directory of `path`, and that of the file that it leads to.
fn directories(path: &Path) -> io::Result<OwnedFd> {
    let watch = inotify::init(CreateFlags::CLOEXEC | CreateFlags::NONBLOCK)?;
    inotify::add_watch(&watch, parent(path), events())?;
    if let Ok(real) = path.canonicalize() {
        // Of one directory watched twice there is one watch.
        inotify::add_watch(&watch, parent(&real), events())?;
    }
    Ok(watch)
}

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
    pub(crate) fn over(watch: Option<OwnedFd>) -> Self {
        let heard = watch.map(|watch| registered(watch, Interest::READABLE));
        let heard = heard.transpose();
        let told = heard.inspect_err(|error| {
            debug!(error = error as &dyn Error, "a watch is not heard");
        });
        Self(told.ok().flatten())
    }

    /// Ready when something has happened and whoever writes seems to have come to an end, and after a
    /// `period` in any case. The watch is made anew for the next.
    pub(crate) async fn may_have_changed(&self, period: Duration) {
        let Some(watch) = &self.0 else {
            return sleep(period).await;
        };
        let begun = timeout(period, watch.readable()).await;
        let ended = match begun.map(|ready| ready.map(drop)) {
            Err(_) => return,
            Ok(Ok(())) => writer_ends(watch).await,
            Ok(Err(error)) => Err(error),
        };
        if let Err(error) = ended {
            debug!(error = &error as &dyn Error, "the watch of a file broke");
            sleep(period).await;
        }
    }
}

/// Waits for the end of what was begun: until a while after the last file was whole, or until whoever
/// writes has had time enough.
async fn writer_ends(watch: &AsyncFd<OwnedFd>) -> io::Result<()> {
    let latest = Instant::now() + PATIENCE;
    let mut until = latest;
    while Instant::now() < latest {
        let Ok(ready) = timeout_at(until, watch.readable()).await else {
            break;
        };
        let mut ready = ready?;
        match last_event(ready.get_inner())? {
            Some(last) if is_end(last) => until = latest.min(Instant::now() + QUIET),
            Some(_) => until = latest,
            None => ready.clear_ready(),
        }
    }
    Ok(())
}

/// The last of some events that have not been read; `None` if all have been.
fn last_event(watch: &OwnedFd) -> io::Result<Option<ReadFlags>> {
    let mut buffer = [MaybeUninit::uninit(); 4096];
    let mut events = inotify::Reader::new(watch, &mut buffer);
    loop {
        match events.next() {
            Ok(event) => {
                let last = event.events();
                if events.is_buffer_empty() {
                    return Ok(Some(last));
                }
            }
            Err(Errno::AGAIN) => return Ok(None),
            Err(error) => return Err(error.into()),
        }
    }
}

/// Whether a file is whole by this: it was closed, or is another's that was moved here.
fn is_end(event: ReadFlags) -> bool {
    event.intersects(ReadFlags::CLOSE_WRITE | ReadFlags::MOVED_TO)
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

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files for tests")]
mod tests {
    use super::*;
    use std::{
        fs::{self, File},
        thread,
    };

    /// A watch that was made on another thread.
    fn beside(path: &Path) -> Watch {
        let made = thread::scope(|scope| scope.spawn(|| watch(path)).join());
        Watch::over(made.unwrap())
    }

    /// How long after `change` in the directory of a watched file it is read.
    async fn waited(change: impl FnOnce(&Path)) -> Duration {
        let directory = tempfile::tempdir().unwrap();
        let watch = beside(&directory.path().join("file"));
        change(directory.path());
        let start = Instant::now();
        watch.may_have_changed(PERIOD).await;
        start.elapsed()
    }

    fn assert_about(waited: Duration, expected: Duration) {
        // The clock of a test that does not wait goes in whole milliseconds.
        let most = expected + Duration::from_millis(2);
        assert!((expected..=most).contains(&waited), "{waited:?}");
    }

    /// All tests of who watches files run on such a thread, and this would end them.
    #[cfg(debug_assertions)]
    #[tokio::test]
    #[should_panic(expected = "everybody waits")]
    async fn a_watch_is_not_made_on_the_thread_that_carries_the_data() {
        watch(Path::new("/file"));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_whole_is_read_at_once() {
        let moved = waited(|directory| {
            fs::write(directory.join("fresh"), "new").unwrap();
            fs::rename(directory.join("fresh"), directory.join("file")).unwrap();
        });
        assert_about(moved.await, QUIET);
        let closed = waited(|directory| fs::write(directory.join("file"), "new").unwrap());
        assert_about(closed.await, QUIET);
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_begun_is_waited_for() {
        let mut open = None;
        let begun = waited(|directory| {
            fs::write(directory.join("file~"), "old").unwrap();
            open = Some(File::create(directory.join("file")).unwrap());
        });
        assert_about(begun.await, PATIENCE);
        drop(open);
        assert_about(waited(|_| {}).await, PERIOD);
    }

    #[tokio::test(start_paused = true)]
    async fn a_writer_that_goes_on_is_not_waited_for_without_end() {
        let directory = tempfile::tempdir().unwrap();
        let file = directory.path().join("file");
        let watch = beside(&file);
        let start = Instant::now();
        let writes = async {
            loop {
                fs::write(&file, "new").unwrap();
                sleep(QUIET / 2).await;
            }
        };
        tokio::select! {
            () = watch.may_have_changed(PERIOD) => {}
            () = writes => {}
        }
        assert_about(start.elapsed(), PATIENCE);
    }
}

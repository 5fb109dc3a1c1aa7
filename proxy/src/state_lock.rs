//! The state directory is one process's at a time.
//!
//! Two of us with one directory would count each other's starts as crashes, and a clean stop of one
//! would take away what the other had noted. So whoever keeps its state there holds a lock of a file
//! in it, which goes with its process, however that ends. The file stays and says who that is.
//!
//! Whoever takes over from one that has yet to end goes on without, and has the lock once that one has
//! ended.
//!
//! As with [`start_guard`](crate::start_guard), a directory that cannot be written costs only this
//! protection.

use crate::{lock_file, regular_file};
use std::{
    convert::Infallible,
    error::Error,
    fmt,
    fs::{DirBuilder, File},
    future::pending,
    io::{self, Write},
    os::unix::fs::DirBuilderExt,
    path::{Path, PathBuf},
    process,
    time::Duration,
};
use thiserror::Error;
use tokio::time::sleep;
use tracing::{info, warn};

const FILE_NAME: &str = "lock";
/// How often the lock is tried for that another process has.
const RETRY: Duration = Duration::from_secs(1);
/// Bytes of the file that are looked at: a number.
const MAX_FILE: u64 = 16;

/// Keeps others out of a state directory until it is dropped.
#[derive(Debug)]
#[must_use = "the directory is ours as long as this is there"]
pub struct StateLock {
    _file: File,
}

/// What a process that serves has of its state directory.
#[derive(Debug)]
#[must_use = "the directory is ours as long as this is there"]
pub enum State {
    Ours(StateLock),
    /// It will be, once the process has ended that has it.
    Anothers {
        path: PathBuf,
    },
    /// It cannot be locked.
    Nobodys,
}

/// Why a state directory is not ours.
#[derive(Debug, Error)]
pub enum StateLockError {
    #[error(
        "another {holder} uses the state directory {}: each proxy needs a --state-dir of its own",
        path.display()
    )]
    Anothers { path: PathBuf, holder: Holder },
    #[error("cannot {step} {}", path.display())]
    Io {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

/// The process that has a directory, as far as it said which.
#[derive(Debug)]
pub struct Holder(Option<u32>);

// === impl StateLock ===

impl StateLock {
    /// Takes `state_dir`, which is made if it is not there, for who goes on with it or not at all.
    ///
    /// # Errors
    ///
    /// When another process has it, or it cannot be had.
    pub(crate) fn lock(state_dir: &Path) -> Result<Self, StateLockError> {
        let failed = |step, path: &Path, source| StateLockError::Io {
            step,
            path: path.to_owned(),
            source,
        };
        DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(state_dir)
            .map_err(|error| failed("make", state_dir, error))?;
        let path = state_dir.join(FILE_NAME);
        let locked = lock_file::take(&path).map_err(|errno| failed("lock", &path, errno.into()))?;
        let Some(file) = locked else {
            return Err(StateLockError::Anothers {
                path: state_dir.to_owned(),
                holder: Holder::said_in(&path),
            });
        };
        let mut file = File::from(file);
        // Where there is no room for the number, the next one is refused without it.
        file.set_len(0)
            .and_then(|()| writeln!(file, "{}", process::id()))
            .ok();
        Ok(Self { _file: file })
    }
}

// === impl State ===

impl State {
    /// Takes `state_dir`, which is made if it is not there. If it could not be had it is gone on without.
    ///
    /// `may_overlap`: one of us may have yet to end whose part we are to take, because our clients or
    /// our runtime were handed to us. To be refused then would leave these with nobody.
    ///
    /// # Errors
    ///
    /// When another process has it.
    pub fn take(state_dir: &Path, may_overlap: bool) -> Result<Self, StateLockError> {
        let error = match StateLock::lock(state_dir) {
            Ok(lock) => return Ok(Self::Ours(lock)),
            Err(error) => error,
        };
        let state = match &error {
            StateLockError::Anothers { .. } if !may_overlap => return Err(error),
            StateLockError::Anothers { path, .. } => Self::Anothers { path: path.clone() },
            StateLockError::Io { .. } => Self::Nobodys,
        };
        let error = &error as &dyn Error;
        warn!(error, "the state directory could not be locked");
        Ok(state)
    }

    /// Takes it as soon as who has it has ended, and says when it is `ours`; never ends.
    pub async fn keep(&mut self, ours: impl Fn()) -> Infallible {
        while let Self::Anothers { path } = self {
            sleep(RETRY).await;
            // What else is in the way may pass as well: want of descriptors, of room.
            if let Ok(lock) = StateLock::lock(path) {
                *self = Self::Ours(lock);
                info!("the state directory is ours now");
                ours();
            }
        }
        pending().await
    }
}

// === impl Holder ===

impl Holder {
    fn said_in(path: &Path) -> Self {
        let said = regular_file::read(path, MAX_FILE).ok();
        let text = said.and_then(|bytes| String::from_utf8(bytes).ok());
        let pid: Option<u32> = text.and_then(|text| text.trim_end().parse().ok());
        // To itself, in a container of its own; to everybody else that is another.
        Self(pid.filter(|pid| *pid > 1))
    }
}

impl fmt::Display for Holder {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            Some(pid) => write!(f, "process (pid {pid})"),
            None => f.write_str("process"),
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files for tests")]
mod tests {
    use super::*;
    use koord_testkit::poll::wait_until;
    use std::cell::Cell;

    fn refusal(state_dir: &Path) -> String {
        State::take(state_dir, false).unwrap_err().to_string()
    }

    fn is_ours(state: &State) -> bool {
        matches!(state, State::Ours(_))
    }

    /// Lets one wait for its directory so long. How often it was told to have it.
    async fn wait(state: &mut State, seconds: u64) -> u32 {
        let told = Cell::new(0);
        let keep = state.keep(|| told.set(told.get() + 1));
        let timeout = Duration::from_secs(seconds);
        assert!(tokio::time::timeout(timeout, keep).await.is_err());
        told.get()
    }

    #[tokio::test(start_paused = true)]
    async fn who_goes_on_without_has_the_directory_once_the_other_has_ended() {
        let dir = tempfile::tempdir().unwrap();
        let first = State::take(dir.path(), false).unwrap();
        let mut second = State::take(dir.path(), true).unwrap();
        assert_eq!(wait(&mut second, 60).await, 0);
        drop(first);
        // Threads and children of other tests have copies for a moment.
        while !is_ours(&second) {
            std::thread::yield_now();
            assert!(wait(&mut second, 2).await <= 1);
        }
        assert_eq!(wait(&mut second, 60).await, 0);
        assert!(State::take(dir.path(), false).is_err());
    }

    #[test]
    fn a_directory_has_one_owner_whom_the_next_one_names() {
        let dir = tempfile::tempdir().unwrap();
        let state = dir.path().join("a/state");
        let first = State::take(&state, false).unwrap();
        assert!(is_ours(&first));
        let (pid, path) = (process::id(), state.display());
        let advice = "each proxy needs a --state-dir of its own";
        assert_eq!(
            refusal(&state),
            format!("another process (pid {pid}) uses the state directory {path}: {advice}")
        );
        // What it said may be lost.
        for said in [
            "",
            "-1\n",
            "1\n",
            "4294967296\n",
            "12 monkeys\n",
            "11111111111111111",
        ] {
            std::fs::write(state.join("lock"), said).unwrap();
            assert_eq!(
                refusal(&state),
                format!("another process uses the state directory {path}: {advice}")
            );
        }
        assert!(!is_ours(&State::take(&state, true).unwrap()));
        drop(first);
        // Threads and children of other tests have copies for a moment.
        wait_until("the lock is free", || {
            State::take(&state, false).is_ok_and(|state| is_ours(&state))
        });
    }

    #[test]
    fn a_directory_that_cannot_be_locked_stops_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "precious").unwrap();
        let state = State::take(&file.join("state"), false).unwrap();
        assert!(matches!(state, State::Nobodys));
        // Nor is a link followed that somebody laid there.
        std::os::unix::fs::symlink(&file, dir.path().join("lock")).unwrap();
        let state = State::take(dir.path(), false).unwrap();
        assert!(matches!(state, State::Nobodys));
        assert_eq!(std::fs::read_to_string(&file).unwrap(), "precious");
    }
}

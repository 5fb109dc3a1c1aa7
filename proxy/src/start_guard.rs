//! The way out of a crash loop: after three unclean starts within a minute hooks stay off. Where a
//! service manager ends whoever stands still, starts that end so count for as long as three of them
//! take.
//!
//! Every start is noted in a file of the state directory, and a clean stop takes away all notes up to its
//! own, so what is found there at a start are starts that ended badly. A later one is of who took over
//! from us before our end, and stays. A start that is refused takes its
//! own note away and no other: it is no crash, and says nothing about those before it. If we are
//! what keeps a node from running pods, the fourth start passes everything through. It goes back to
//! normal at the next start after a clean stop, or after that time without a crash.
//!
//! The file is a help, not a duty: one that cannot be read counts as empty, and a state directory
//! that cannot be written costs only this protection.

use crate::regular_file;
use serde::{Deserialize, Serialize};
use std::{
    error::Error,
    fs::{DirBuilder, File},
    io::{self, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt},
    path::{Path, PathBuf},
    time::{Duration, SystemTime, UNIX_EPOCH},
};
use thiserror::Error;
use tracing::warn;

/// Unclean starts that are one too many.
const TOO_MANY: usize = 3;
/// The time within which they count, at least.
const WINDOW: Duration = Duration::from_secs(60);
/// What a service manager takes from an end to the next start, and a little more.
const RESTART: Duration = Duration::from_secs(1);
/// Bytes of the file that are looked at.
const MAX_FILE: u64 = 4096;
const FILE_NAME: &str = "starts.json";

/// How this start is to go on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Normal,
    /// Hooks off.
    PassThrough {
        unclean_starts: usize,
        /// The time that they lie within.
        within: Duration,
    },
}

/// Why a start or a stop could not be noted.
#[derive(Debug, Error)]
#[error("cannot keep notes in {}", path.display())]
struct NoteError {
    path: PathBuf,
    source: io::Error,
}

/// Remembers that we started, until its [`end`](StartGuard::end).
#[derive(Debug)]
#[must_use = "a start without a clean stop counts as a crash"]
pub struct StartGuard {
    path: PathBuf,
    /// What was noted of this start.
    start_ms: u64,
}

#[derive(Debug, Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Notes {
    /// Milliseconds since 1970 of starts without a clean stop, oldest first.
    unclean_starts_ms: Vec<u64>,
}

// === impl StartGuard ===

impl StartGuard {
    /// Notes a start at `now` in the directory `state`, which is made if it is not there. `watchdog` is
    /// how long the service manager lets us stand still. The log tells if a start cannot be noted; the
    /// verdict holds all the same.
    pub fn begin(state: &Path, now: SystemTime, watchdog: Option<Duration>) -> (Self, Verdict) {
        let (guard, verdict, noted) = Self::note(state, now, watchdog);
        if let Err(error) = noted {
            let error = &error as &dyn Error;
            warn!(error, "this start could not be noted");
        }
        (guard, verdict)
    }

    /// Notes this start once more if its note is gone: whoever had the directory before us may have taken it
    /// away with its own, or written the file as we did.
    pub fn note_again(&self) {
        let mut notes = Notes::read(&self.path);
        let starts = &mut notes.unclean_starts_ms;
        if starts.contains(&self.start_ms) {
            return;
        }
        starts.push(self.start_ms);
        if let Err(error) = self.noted(notes.write(&self.path)) {
            let error = &error as &dyn Error;
            warn!(error, "this start could not be noted");
        }
    }

    /// Notes how what was started `ended`: in an orderly way, with a task that died, which is a crash, or
    /// with an error because nothing began, as where another process serves the socket.
    pub fn end<D, R>(self, ended: &Result<Result<(), D>, R>) {
        let noted = match ended {
            Ok(Ok(())) => self.clean_stop(),
            Ok(Err(_)) => Ok(()),
            Err(_) => self.refused(),
        };
        if let Err(error) = noted {
            let error = &error as &dyn Error;
            warn!(error, "this stop could not be noted as a clean one");
        }
    }

    fn note(
        state_dir: &Path,
        now: SystemTime,
        watchdog: Option<Duration>,
    ) -> (Self, Verdict, Result<(), NoteError>) {
        let window = window(watchdog);
        let path = state_dir.join(FILE_NAME);
        let start_ms = milliseconds(now);
        let mut notes = Notes::read(&path);
        notes.unclean_starts_ms.retain(|&before_ms| {
            // A start in the future is a clock that was set back: nothing follows from it.
            start_ms
                .checked_sub(before_ms)
                .is_some_and(|age_ms| u128::from(age_ms) <= window.as_millis())
        });
        let unclean_starts = notes.unclean_starts_ms.len();
        let verdict = if unclean_starts >= TOO_MANY {
            Verdict::PassThrough {
                unclean_starts,
                within: window,
            }
        } else {
            Verdict::Normal
        };
        // More say nothing more, and the file must not outgrow what is read of it.
        let said = unclean_starts.saturating_sub(TOO_MANY);
        notes.unclean_starts_ms.drain(..said);
        notes.unclean_starts_ms.push(start_ms);
        let noted = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(state_dir)
            .and_then(|()| notes.write(&path));
        let guard = Self { path, start_ms };
        let noted = guard.noted(noted);
        (guard, verdict, noted)
    }

    /// Takes the note of this start away: nothing began that could have crashed.
    fn refused(self) -> Result<(), NoteError> {
        let mut notes = Notes::read(&self.path);
        let starts = &mut notes.unclean_starts_ms;
        let Some(own) = starts.iter().rposition(|it| *it == self.start_ms) else {
            return Ok(());
        };
        starts.remove(own);
        self.leave(&notes)
    }

    /// Takes away the note of this start and all before it: this process stopped because it was told to.
    fn clean_stop(self) -> Result<(), NoteError> {
        let mut notes = Notes::read(&self.path);
        notes.unclean_starts_ms.retain(|it| *it > self.start_ms);
        self.leave(&notes)
    }

    /// Leaves these notes, and no file without any.
    fn leave(&self, notes: &Notes) -> Result<(), NoteError> {
        if !notes.unclean_starts_ms.is_empty() {
            return self.noted(notes.write(&self.path));
        }
        match std::fs::remove_file(&self.path) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => self.noted(Err(error)),
            _ => Ok(()),
        }
    }

    fn noted(&self, done: io::Result<()>) -> Result<(), NoteError> {
        done.map_err(|source| NoteError {
            path: self.path.clone(),
            source,
        })
    }
}

// === impl Notes ===

impl Notes {
    fn read(path: &Path) -> Self {
        match regular_file::read(path, MAX_FILE) {
            Ok(text) => serde_json::from_slice(&text).unwrap_or_default(),
            Err(_) => Self::default(),
        }
    }

    /// Replaces the file as a whole: a crash leaves the old or the new one. It need not outlive a
    /// power loss, after which a minute is over anyway, so nothing waits for the disk.
    #[expect(
        clippy::disallowed_methods,
        reason = "the one place that writes this file"
    )]
    fn write(&self, path: &Path) -> io::Result<()> {
        let fresh = path.with_extension("new");
        // A file of ours from before, or a link that somebody laid there to have us overwrite what
        // it leads to: neither is opened.
        std::fs::remove_file(&fresh).or_else(|error| match error.kind() {
            io::ErrorKind::NotFound => Ok(()),
            _ => Err(error),
        })?;
        let mut file = File::options()
            .write(true)
            .create_new(true)
            .mode(0o600)
            .open(&fresh)?;
        file.write_all(&serde_json::to_vec(self)?)?;
        std::fs::rename(&fresh, path)
    }
}

/// The time within which unclean starts count. One that stands still lives as long as the watchdog lets
/// it.
fn window(watchdog: Option<Duration>) -> Duration {
    let lives = watchdog.map(|watchdog| (watchdog + RESTART) * 4);
    lives.map_or(WINDOW, |lives| lives.max(WINDOW))
}

fn milliseconds(time: SystemTime) -> u64 {
    let since = time.duration_since(UNIX_EPOCH).unwrap_or_default();
    u64::try_from(since.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files for tests")]
mod tests {
    use super::*;
    use crate::status::chain_of;

    fn at(seconds: u64) -> SystemTime {
        UNIX_EPOCH + Duration::from_secs(1_800_000_000 + seconds)
    }

    fn three_within(seconds: u64) -> Verdict {
        Verdict::PassThrough {
            unclean_starts: 3,
            within: Duration::from_secs(seconds),
        }
    }

    /// What a start at that second is told; it then crashes.
    fn crash(state: &Path, seconds: u64) -> Verdict {
        let (_crashed, verdict, noted) = StartGuard::note(state, at(seconds), None);
        noted.unwrap();
        verdict
    }

    #[test]
    fn the_start_after_three_crashes_in_a_minute_passes_everything_through() {
        let dir = tempfile::tempdir().unwrap();
        assert_eq!(crash(dir.path(), 0), Verdict::Normal);
        assert_eq!(crash(dir.path(), 20), Verdict::Normal);
        assert_eq!(crash(dir.path(), 40), Verdict::Normal);
        assert_eq!(crash(dir.path(), 60), three_within(60));
        // The first of them is older than a minute now.
        assert_eq!(crash(dir.path(), 61), three_within(60));
    }

    #[test]
    fn starts_that_stand_still_until_the_watchdog_ends_them_add_up_too() {
        let dir = tempfile::tempdir().unwrap();
        let watchdog = Some(Duration::from_secs(30));
        let hang = |milliseconds| {
            let now = at(0) + Duration::from_millis(milliseconds);
            let (_hangs, verdict, _) = StartGuard::note(dir.path(), now, watchdog);
            verdict
        };
        for start in [0, 30_500, 61_000] {
            assert_eq!(hang(start), Verdict::Normal, "{start}");
        }
        assert_eq!(hang(91_500), three_within(124));
        // Two minutes and four seconds later.
        assert_eq!(hang(215_501), Verdict::Normal);
    }

    #[test]
    fn crashes_that_are_further_apart_do_not_add_up() {
        let dir = tempfile::tempdir().unwrap();
        for start in [0, 25, 50, 76, 102, 128] {
            assert_eq!(crash(dir.path(), start), Verdict::Normal, "{start}");
        }
    }

    #[test]
    fn a_clean_stop_forgets_the_crashes_before_it() {
        let dir = tempfile::tempdir().unwrap();
        for start in [0, 1, 2] {
            crash(dir.path(), start);
        }
        let (guard, verdict, _) = StartGuard::note(dir.path(), at(3), None);
        assert_eq!(verdict, three_within(60));
        guard.clean_stop().unwrap();
        assert_eq!(crash(dir.path(), 4), Verdict::Normal);
    }

    #[test]
    fn a_clean_stop_leaves_the_note_of_who_has_started_since() {
        let dir = tempfile::tempdir().unwrap();
        crash(dir.path(), 0);
        let (ends, ..) = StartGuard::note(dir.path(), at(1), None);
        let (_stays, ..) = StartGuard::note(dir.path(), at(2), None);
        ends.clean_stop().unwrap();
        let notes = Notes::read(&dir.path().join("starts.json"));
        assert_eq!(notes.unclean_starts_ms, [1_800_000_002_000]);
    }

    #[test]
    fn a_note_that_another_has_taken_away_is_there_again() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("starts.json");
        let (guard, ..) = StartGuard::note(dir.path(), at(0), None);
        std::fs::remove_file(&path).unwrap();
        for _ in 0..2 {
            guard.note_again();
            let noted = std::fs::read_to_string(&path).unwrap();
            assert_eq!(noted, "{\"uncleanStartsMs\":[1800000000000]}");
        }
    }

    #[test]
    fn a_start_that_is_refused_is_no_crash_and_forgets_none() {
        let dir = tempfile::tempdir().unwrap();
        for start in [0, 1, 2, 3, 4] {
            let (guard, ..) = StartGuard::note(dir.path(), at(start), None);
            guard.refused().unwrap();
        }
        assert_eq!(std::fs::read_dir(dir.path()).unwrap().count(), 0);
        for start in [5, 6, 7] {
            assert_eq!(crash(dir.path(), start), Verdict::Normal);
        }
        for start in [8, 9] {
            let (guard, verdict, _) = StartGuard::note(dir.path(), at(start), None);
            assert_eq!(verdict, three_within(60));
            guard.refused().unwrap();
        }
        assert_eq!(crash(dir.path(), 64), three_within(60));
    }

    #[test]
    fn of_three_starts_an_orderly_end_leaves_no_note_a_refusal_two_and_a_death_all() {
        for (ended, left) in [
            (Ok(Ok(())), 0),
            (Err("another serves the socket"), 2),
            (Ok(Err("a task died")), 3),
        ] {
            let dir = tempfile::tempdir().unwrap();
            for start in [0, 1] {
                crash(dir.path(), start);
            }
            let (guard, _) = StartGuard::begin(dir.path(), at(2), None);
            guard.end(&ended);
            let notes = Notes::read(&dir.path().join("starts.json"));
            assert_eq!(notes.unclean_starts_ms.len(), left, "{ended:?}");
        }
    }

    #[test]
    fn a_minute_without_a_crash_leads_back_to_normal() {
        let dir = tempfile::tempdir().unwrap();
        for start in [0, 1, 2, 3] {
            crash(dir.path(), start);
        }
        assert_eq!(crash(dir.path(), 64), Verdict::Normal);
    }

    #[test]
    fn a_crash_loop_stays_one_however_fast_it_is() {
        let dir = tempfile::tempdir().unwrap();
        let verdicts: Vec<_> = (0..1_000).map(|_| crash(dir.path(), 0)).collect();
        let through = |verdict: &&Verdict| matches!(verdict, Verdict::PassThrough { .. });
        assert_eq!(verdicts.iter().filter(through).count(), 997);
    }

    #[test]
    fn a_clock_that_was_set_back_is_no_crash_loop() {
        let dir = tempfile::tempdir().unwrap();
        for start in [1_000, 1_001, 1_002] {
            crash(dir.path(), start);
        }
        assert_eq!(crash(dir.path(), 0), Verdict::Normal);
    }

    #[test]
    fn garbage_in_the_file_counts_as_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("starts.json");
        for garbage in ["", "{", "[1,2,3]", "{\"uncleanStartsMs\":[-1]}", "\0\0"] {
            std::fs::write(&path, garbage).unwrap();
            assert_eq!(crash(dir.path(), 0), Verdict::Normal, "{garbage:?}");
        }
        std::fs::write(&path, vec![b' '; 1 << 20]).unwrap();
        assert_eq!(crash(dir.path(), 0), Verdict::Normal);
    }

    #[test]
    fn a_link_where_the_notes_are_written_is_not_followed() {
        let dir = tempfile::tempdir().unwrap();
        let precious = dir.path().join("precious");
        std::fs::write(&precious, "precious").unwrap();
        std::os::unix::fs::symlink(&precious, dir.path().join("starts.new")).unwrap();
        assert_eq!(crash(dir.path(), 0), Verdict::Normal);
        assert_eq!(std::fs::read_to_string(&precious).unwrap(), "precious");
    }

    #[test]
    fn a_state_directory_that_cannot_be_written_is_said_and_stops_nothing() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        let (guard, verdict, noted) = StartGuard::note(&file.join("state"), at(0), None);
        assert_eq!(verdict, Verdict::Normal);
        assert_eq!(
            chain_of(&noted.unwrap_err()),
            format!(
                "cannot keep notes in {}/state/starts.json: Not a directory (os error 20)",
                file.display()
            )
        );
        drop(guard);
    }
}

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
//! What counts is the time since the machine booted, and only starts of the same boot: a clock that is set
//! neither makes crashes forgotten nor, as where there is none without the network, starts of different
//! boots simultaneous, and a machine that boots again and again does so for a reason of its own. Where the
//! boot is not known, of this start or of one that an earlier version has noted, the clock counts.
//!
//! The file is a help, not a duty: one that cannot be read counts as empty, and a state directory
//! that cannot be written costs only this protection.

use crate::regular_file;
use koord_kernel::boot;
use rustix::time::{ClockId, clock_gettime};
use serde::{Deserialize, Serialize};
use std::{
    error::Error,
    fs::{DirBuilder, File},
    io::{self, Write},
    iter,
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
    start: Start,
}

/// When a process started.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Start {
    /// Milliseconds since 1970, by a clock that may be set.
    clock_ms: u64,
    /// `None` where it is not known.
    in_boot: Option<InBoot>,
}

/// A time that no clock changes.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct InBoot {
    id: String,
    /// Milliseconds since the machine booted.
    since_ms: u64,
}

/// Starts without a clean stop, oldest first.
#[derive(Debug, Default)]
struct Notes(Vec<Start>);

/// The file. An earlier version reads the first list alone, as all that there is, and leaves the second
/// out of what it writes.
#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Written {
    unclean_starts_ms: Vec<u64>,
    /// One for each of those above, none where no boot is known.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    in_boots: Vec<Option<InBoot>>,
}

// === impl Start ===

impl Start {
    /// Now, in the boot that the service manager has `told`, else in that of the procfs at `proc`. The log
    /// tells if it is unknown.
    pub fn now(told: Option<&str>, proc: &Path) -> Self {
        let booted = Duration::try_from(clock_gettime(ClockId::Boottime));
        let id = match told.and_then(boot::told) {
            Some(id) => Ok(id),
            None => boot::id(proc),
        };
        let id = id.inspect_err(|error| {
            let (error, path) = (error as &dyn Error, proc.display());
            warn!(error, %path, "which boot this is is unknown: crashes count by the clock, which may be set");
        });
        let in_boot = id.ok().zip(booted.ok());
        Self {
            clock_ms: by_clock(SystemTime::now()),
            in_boot: in_boot.map(|(id, since)| InBoot {
                id,
                since_ms: milliseconds(since),
            }),
        }
    }

    /// How long after another one this is; `None` if it is before it, or if they are of different boots.
    fn ms_after(&self, other: &Self) -> Option<u64> {
        match (&self.in_boot, &other.in_boot) {
            (Some(own), Some(its)) => {
                let since_ms = own.since_ms.checked_sub(its.since_ms);
                since_ms.filter(|_| own.id == its.id)
            }
            _ => self.clock_ms.checked_sub(other.clock_ms),
        }
    }

    /// Whether this is the note of another one; an earlier version may have written it again, without
    /// the boot.
    fn is(&self, other: &Self) -> bool {
        let is_known = self.in_boot.is_some() && other.in_boot.is_some();
        self.clock_ms == other.clock_ms && (!is_known || self.in_boot == other.in_boot)
    }
}

// === impl StartGuard ===

impl StartGuard {
    /// Notes a start in the directory `state`, which is made if it is not there. `watchdog` is how long
    /// the service manager lets us stand still. The log tells if a start cannot be noted; the verdict
    /// holds all the same.
    pub fn begin(state: &Path, start: Start, watchdog: Option<Duration>) -> (Self, Verdict) {
        let (guard, verdict, noted) = Self::note(state, start, watchdog);
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
        if notes.0.iter().any(|it| it.is(&self.start)) {
            return;
        }
        notes.0.push(self.start.clone());
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
        start: Start,
        watchdog: Option<Duration>,
    ) -> (Self, Verdict, Result<(), NoteError>) {
        let window = window(watchdog);
        let path = state_dir.join(FILE_NAME);
        let Notes(mut starts) = Notes::read(&path);
        // From one in the future, or in another boot, nothing follows.
        starts.retain(|before| {
            let age_ms = start.ms_after(before);
            age_ms.is_some_and(|age_ms| u128::from(age_ms) <= window.as_millis())
        });
        let unclean_starts = starts.len();
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
        starts.drain(..said);
        starts.push(start.clone());
        let noted = DirBuilder::new()
            .recursive(true)
            .mode(0o700)
            .create(state_dir)
            .and_then(|()| Notes(starts).write(&path));
        let guard = Self { path, start };
        let noted = guard.noted(noted);
        (guard, verdict, noted)
    }

    /// Takes the note of this start away: nothing began that could have crashed.
    fn refused(self) -> Result<(), NoteError> {
        let mut notes = Notes::read(&self.path);
        let Some(own) = notes.0.iter().rposition(|it| it.is(&self.start)) else {
            return Ok(());
        };
        notes.0.remove(own);
        self.leave(&notes)
    }

    /// Takes away the note of this start and all before it: this process stopped because it was told to.
    fn clean_stop(self) -> Result<(), NoteError> {
        let mut notes = Notes::read(&self.path);
        let is_later = |it: &Start| it.ms_after(&self.start).is_some_and(|ms| ms > 0);
        notes.0.retain(is_later);
        self.leave(&notes)
    }

    /// Leaves these notes, and no file without any.
    fn leave(&self, notes: &Notes) -> Result<(), NoteError> {
        if !notes.0.is_empty() {
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
        let text = regular_file::read(path, MAX_FILE).unwrap_or_default();
        let written: Written = serde_json::from_slice(&text).unwrap_or_default();
        let in_boots = written.in_boots.into_iter().chain(iter::repeat(None));
        let starts = written.unclean_starts_ms.into_iter().zip(in_boots);
        let start = |(clock_ms, in_boot)| Start { clock_ms, in_boot };
        Self(starts.map(start).collect())
    }

    fn written(&self) -> Written {
        let is_known = self.0.iter().any(|it| it.in_boot.is_some());
        let of_known = self.0.iter().filter(|_| is_known);
        Written {
            unclean_starts_ms: self.0.iter().map(|it| it.clock_ms).collect(),
            in_boots: of_known.map(|it| it.in_boot.clone()).collect(),
        }
    }

    /// Replaces the file as a whole: a crash leaves the old or the new one. It need not outlive a
    /// power loss, after which it counts for nothing, so nothing waits for the disk.
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
        file.write_all(&serde_json::to_vec(&self.written())?)?;
        std::fs::rename(&fresh, path)
    }
}

/// The time within which unclean starts count. One that stands still lives as long as the watchdog lets
/// it.
fn window(watchdog: Option<Duration>) -> Duration {
    let lives = watchdog.map(|watchdog| (watchdog + RESTART) * 4);
    lives.map_or(WINDOW, |lives| lives.max(WINDOW))
}

fn by_clock(time: SystemTime) -> u64 {
    milliseconds(time.duration_since(UNIX_EPOCH).unwrap_or_default())
}

fn milliseconds(time: Duration) -> u64 {
    u64::try_from(time.as_millis()).unwrap_or(u64::MAX)
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files for tests")]
mod tests {
    use super::*;
    use crate::status::chain_of;

    /// By the clock alone.
    fn at(seconds: u64) -> Start {
        at_ms(seconds * 1_000)
    }

    fn at_ms(milliseconds: u64) -> Start {
        Start {
            clock_ms: 1_800_000_000_000 + milliseconds,
            in_boot: None,
        }
    }

    /// The same, so many seconds after a boot.
    fn booted(at: Start, boot: &str, seconds: u64) -> Start {
        let (id, since_ms) = (boot.to_owned(), seconds * 1_000);
        let in_boot = Some(InBoot { id, since_ms });
        Start { in_boot, ..at }
    }

    fn three_within(seconds: u64) -> Verdict {
        Verdict::PassThrough {
            unclean_starts: 3,
            within: Duration::from_secs(seconds),
        }
    }

    /// What a start at that second is told; it then crashes.
    fn crash(state: &Path, seconds: u64) -> Verdict {
        crash_at(state, at(seconds))
    }

    fn crash_at(state: &Path, start: Start) -> Verdict {
        let (_crashed, verdict, noted) = StartGuard::note(state, start, None);
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
            let (_hangs, verdict, _) = StartGuard::note(dir.path(), at_ms(milliseconds), watchdog);
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
        assert_eq!(notes.0, [at(2)]);
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
            assert_eq!(notes.0.len(), left, "{ended:?}");
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
    fn starts_of_other_boots_do_not_add_up_though_the_clock_says_the_same() {
        let dir = tempfile::tempdir().unwrap();
        for boot in ["a", "b", "c", "d", "e"] {
            let start = booted(at(0), boot, 20);
            assert_eq!(crash_at(dir.path(), start), Verdict::Normal, "{boot}");
        }
        for after in [21, 22] {
            let start = booted(at(0), "e", after);
            assert_eq!(crash_at(dir.path(), start), Verdict::Normal, "{after}");
        }
        assert_eq!(
            crash_at(dir.path(), booted(at(0), "e", 23)),
            three_within(60)
        );
    }

    #[test]
    fn crashes_of_one_boot_add_up_however_the_clock_is_set_between_them() {
        let dir = tempfile::tempdir().unwrap();
        for (clock, after) in [(3_600, 20), (7_200, 21), (0, 22)] {
            let start = booted(at(clock), "a", after);
            assert_eq!(crash_at(dir.path(), start), Verdict::Normal, "{after}");
        }
        assert_eq!(
            crash_at(dir.path(), booted(at(3_600), "a", 80)),
            three_within(60)
        );
        // Two of them are older than a minute now, whatever the clock says.
        assert_eq!(
            crash_at(dir.path(), booted(at(3_600), "a", 82)),
            Verdict::Normal
        );
    }

    #[test]
    fn notes_of_an_earlier_version_count_by_the_clock() {
        for (clock, verdict) in [(60, three_within(60)), (61, Verdict::Normal)] {
            let dir = tempfile::tempdir().unwrap();
            let path = dir.path().join("starts.json");
            let of_before = "{\"uncleanStartsMs\":[1800000000000,1800000000001,1800000000002]}";
            std::fs::write(path, of_before).unwrap();
            let start = booted(at(clock), "a", 20);
            assert_eq!(crash_at(dir.path(), start), verdict, "{clock}");
        }
    }

    #[test]
    fn where_the_boot_is_unknown_the_clock_counts() {
        let dir = tempfile::tempdir().unwrap();
        for after in [20, 21, 22] {
            crash_at(dir.path(), booted(at(0), "a", after));
        }
        assert_eq!(crash(dir.path(), 1), three_within(60));
    }

    #[test]
    fn an_earlier_version_finds_its_list_and_may_write_it_alone() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("starts.json");
        let (guard, ..) = StartGuard::note(dir.path(), booted(at(0), "a", 20), None);
        let noted = std::fs::read_to_string(&path).unwrap();
        assert_eq!(
            noted,
            "{\"uncleanStartsMs\":[1800000000000],\"inBoots\":[{\"id\":\"a\",\"sinceMs\":20000}]}"
        );
        // It is the note of this start all the same.
        std::fs::write(&path, "{\"uncleanStartsMs\":[1800000000000]}").unwrap();
        guard.note_again();
        assert_eq!(Notes::read(&path).0, [at(0)]);
        guard.refused().unwrap();
        assert!(!path.exists());
    }

    #[test]
    fn a_clean_stop_leaves_the_note_of_who_has_started_since_though_the_clock_was_set_back() {
        let dir = tempfile::tempdir().unwrap();
        crash_at(dir.path(), booted(at(9), "a", 20));
        let (ends, ..) = StartGuard::note(dir.path(), booted(at(10), "a", 21), None);
        let since = booted(at(0), "a", 22);
        crash_at(dir.path(), since.clone());
        ends.clean_stop().unwrap();
        assert_eq!(Notes::read(&dir.path().join("starts.json")).0, [since]);
    }

    #[test]
    fn a_start_now_is_told_from_those_of_other_boots() {
        let now = Start::now(None, Path::new("/proc"));
        let next = Start::now(None, Path::new("/proc"));
        assert!(now.in_boot.is_some());
        assert!(next.ms_after(&now).is_some_and(|ms| ms < 60_000));
        let unknown = Start::now(None, Path::new("/no-such-proc"));
        assert_eq!(unknown.in_boot, None);
    }

    #[test]
    fn a_boot_that_is_told_is_known_though_the_kernels_file_is_hidden() {
        let noted = |told| {
            let start = Start::now(Some(told), Path::new("/no-such-proc"));
            start.in_boot.map(|it| it.id)
        };
        let as_the_kernel_says_it = "01234567-89ab-cdef-0123-456789abcdef";
        let noted_id = noted("0123456789abcdef0123456789abcdef");
        assert_eq!(noted_id.as_deref(), Some(as_the_kernel_says_it));
        // Of a manager that does not know the specifier.
        assert_eq!(noted("%b"), None);
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
        let garbage = [
            "",
            "{",
            "[1,2,3]",
            "{\"uncleanStartsMs\":[-1]}",
            "{\"uncleanStartsMs\":[1800000000000],\"inBoots\":[7]}",
            "\0\0",
        ];
        for garbage in garbage {
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

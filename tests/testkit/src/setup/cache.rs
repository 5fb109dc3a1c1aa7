//! The cache: directories that are either whole or absent.
//!
//! An entry is built beside its place and renamed into it, under a file lock, so that builders in
//! several processes wait for one another and a killed builder leaves nothing that looks finished.

use std::fs::{self, File};
use std::path::{Path, PathBuf};

use super::SetupError;

/// A directory of entries, each named after what it is and what went into it.
#[derive(Debug, Clone)]
pub struct Cache {
    root: PathBuf,
}

impl Cache {
    /// The user's cache: `KOORD_TEST_CACHE`, else `koord-testbed` below `XDG_CACHE_HOME` or
    /// `$HOME/.cache`.
    ///
    /// # Errors
    ///
    /// When no variable names a place, or it cannot be made.
    pub fn open() -> Result<Self, SetupError> {
        let variable = |name| std::env::var_os(name).filter(|value| !value.is_empty());
        let root = variable("KOORD_TEST_CACHE")
            .map(PathBuf::from)
            .or_else(|| Some(Path::new(&variable("XDG_CACHE_HOME")?).join("koord-testbed")))
            .or_else(|| Some(Path::new(&variable("HOME")?).join(".cache/koord-testbed")))
            .ok_or(SetupError::NoCache)?;
        Self::at(root)
    }

    /// A cache in a directory of the caller's choice, which is made when it is not there.
    ///
    /// # Errors
    ///
    /// When the directory cannot be made.
    pub fn at(root: PathBuf) -> Result<Self, SetupError> {
        let root = std::path::absolute(&root).map_err(SetupError::file("resolve", &root))?;
        fs::create_dir_all(&root).map_err(SetupError::file("create", &root))?;
        Ok(Self { root })
    }

    /// A plain directory in the cache, shared and never replaced.
    pub(crate) fn directory(&self, name: &str) -> Result<PathBuf, SetupError> {
        let path = self.root.join(name);
        fs::create_dir_all(&path).map_err(SetupError::file("create", &path))?;
        Ok(path)
    }

    /// The entry `name` made from `inputs`; if it is absent, `build` fills the directory it is given.
    ///
    /// Builders of the same entry wait for each other, in this process and in others.
    ///
    /// # Errors
    ///
    /// Whatever `build` answers, or when the cache itself cannot be written.
    pub fn entry(
        &self,
        name: &str,
        inputs: &[&str],
        build: impl FnOnce(&Path) -> Result<(), SetupError>,
    ) -> Result<PathBuf, SetupError> {
        let entry = self.root.join(format!("{name}-{:016x}", digest(inputs)));
        if entry.is_dir() {
            return Ok(entry);
        }
        let lock_path = entry.with_extension("lock");
        let lock = File::create(&lock_path).map_err(SetupError::file("create", &lock_path))?;
        lock.lock().map_err(SetupError::file("lock", &lock_path))?;
        if entry.is_dir() {
            return Ok(entry);
        }
        let partial = entry.with_extension("partial");
        if partial.exists() {
            fs::remove_dir_all(&partial).map_err(SetupError::file("remove", &partial))?;
        }
        fs::create_dir(&partial).map_err(SetupError::file("create", &partial))?;
        build(&partial)?;
        fs::rename(&partial, &entry).map_err(SetupError::file("finish", &entry))?;
        Ok(entry)
    }
}

/// FNV-1a over all inputs, each closed by a zero byte: stable over releases, unlike the standard
/// library's hasher. It tells recipes apart; nobody gains by making two collide.
fn digest(inputs: &[&str]) -> u64 {
    let bytes = inputs
        .iter()
        .flat_map(|input| input.bytes().chain(std::iter::once(0)));
    bytes.fold(0xcbf2_9ce4_8422_2325, |hash, byte| {
        (hash ^ u64::from(byte)).wrapping_mul(0x0000_0100_0000_01b3)
    })
}

#[cfg(test)]
mod tests {
    use std::process::Command;
    use std::sync::atomic::{AtomicUsize, Ordering};

    use super::*;
    use crate::command;

    /// A cache of one test, removed at its end.
    struct Scratch(Cache);

    impl Scratch {
        fn new(test: &str) -> Self {
            let name = format!("ktb-cache-{test}-{}", std::process::id());
            Self(Cache::at(std::env::temp_dir().join(name)).unwrap())
        }
    }

    impl Drop for Scratch {
        fn drop(&mut self) {
            fs::remove_dir_all(&self.0.root).unwrap();
        }
    }

    fn put(directory: &Path, content: &str) -> Result<(), SetupError> {
        fs::create_dir(directory.join(content)).map_err(SetupError::file("create", directory))
    }

    #[test]
    fn an_entry_is_built_once_and_again_for_other_inputs() {
        let scratch = Scratch::new("once");
        let first = scratch
            .0
            .entry("part", &["1"], |dir| put(dir, "a"))
            .unwrap();
        let again = scratch
            .0
            .entry("part", &["1"], |_| panic!("built twice"))
            .unwrap();
        let other = scratch
            .0
            .entry("part", &["2"], |dir| put(dir, "b"))
            .unwrap();
        assert_eq!(first, again);
        assert!(first.join("a").is_dir() && other.join("b").is_dir());
        assert_ne!(first, other);
    }

    #[test]
    fn a_failed_build_leaves_no_entry_and_the_next_one_starts_clean() {
        let scratch = Scratch::new("failed");
        let failed = scratch.0.entry("part", &["1"], |dir| {
            put(dir, "half")?;
            command::run(&mut Command::new("false"))
                .map(drop)
                .map_err(SetupError::recipe("part"))
        });
        assert!(matches!(failed, Err(SetupError::Recipe { .. })));
        let entry = scratch
            .0
            .entry("part", &["1"], |dir| put(dir, "whole"))
            .unwrap();
        assert!(entry.join("whole").is_dir() && !entry.join("half").exists());
    }

    #[test]
    fn builders_at_the_same_time_build_once() {
        let scratch = Scratch::new("concurrent");
        let builds = AtomicUsize::new(0);
        std::thread::scope(|scope| {
            for _ in 0..8 {
                scope.spawn(|| {
                    scratch.0.entry("part", &["1"], |dir| {
                        builds.fetch_add(1, Ordering::Relaxed);
                        put(dir, "a")
                    })
                });
            }
        });
        assert_eq!(builds.into_inner(), 1);
    }

    #[test]
    fn inputs_are_told_apart_at_their_borders() {
        // FNV-1a 64 of "a" is published as af63dc4c8601ec8c; one more round with a zero byte.
        assert_eq!(
            digest(&["a"]),
            0xaf63_dc4c_8601_ec8c_u64.wrapping_mul(0x0000_0100_0000_01b3)
        );
        assert_ne!(digest(&["ab", "c"]), digest(&["a", "bc"]));
    }
}

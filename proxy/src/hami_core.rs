//! Looking at what of HAMi-core containers are given: its library, and the directory of its lock.
//!
//! Links are not followed, while the runtime that mounts follows them. It may do so a minute after
//! this look; so what counts is not where a path leads now, but that nobody but root can change it.

use koord_hooks::{PathProblem, UnsafePath};
use std::{
    fs::{self, FileType, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
};

const ROOT: u32 = 0;

/// Why these are not to be mounted; `None` if they may be.
pub(crate) fn unsafe_path(library: &Path, lock: &Path) -> Option<UnsafePath> {
    unsafe_path_of(ROOT, library, lock)
}

fn unsafe_path_of(owner: u32, library: &Path, lock: &Path) -> Option<UnsafePath> {
    let problem = |path: &Path, found: Result<(), PathProblem>| {
        let path = path.to_owned();
        found.err().map(|problem| UnsafePath { path, problem })
    };
    problem(library, is_library(owner, library)).or_else(|| problem(lock, is_lock(owner, lock)))
}

/// Every process of a container loads it.
fn is_library(owner: u32, path: &Path) -> Result<(), PathProblem> {
    match look(owner, path, FileType::is_file, "a regular file")?.mode() & 0o022 {
        0 => Ok(()),
        _ => Err(PathProblem::Writable),
    }
}

/// Processes of every user write in it.
fn is_lock(owner: u32, path: &Path) -> Result<(), PathProblem> {
    look(owner, path, FileType::is_dir, "a directory").map(drop)
}

fn look(
    owner: u32,
    path: &Path,
    is_expected: fn(&FileType) -> bool,
    expected: &'static str,
) -> Result<Metadata, PathProblem> {
    let there = fs::symlink_metadata(path).map_err(|error| match error.kind() {
        io::ErrorKind::NotFound => PathProblem::Missing,
        kind => PathProblem::Unknown(kind),
    })?;
    if !is_expected(&there.file_type()) {
        return Err(PathProblem::OtherKind { expected });
    }
    match there.uid() {
        uid if uid == owner => Ok(there),
        uid => Err(PathProblem::Owner { uid }),
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files for tests")]
mod tests {
    use super::*;
    use std::{
        fs::Permissions,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    #[test]
    fn what_another_user_could_have_put_there_is_not_mounted() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        let (library, lock, link) = (at("lib.so"), at("lock"), at("link"));
        fs::write(&library, "").unwrap();
        fs::set_permissions(&library, Permissions::from_mode(0o755)).unwrap();
        fs::create_dir(&lock).unwrap();
        fs::set_permissions(&lock, Permissions::from_mode(0o1777)).unwrap();
        let us = fs::metadata(&library).unwrap().uid();
        let told = |library: &Path, lock: &Path| {
            unsafe_path_of(us, library, lock).map(|it| (it.path, it.problem.to_string()))
        };
        let wrong = |path: &Path, problem: &str| Some((path.to_owned(), problem.to_owned()));
        assert_eq!(told(&library, &lock), None);
        let none = at("none");
        assert_eq!(told(&none, &lock), wrong(&none, "is not there"));
        assert_eq!(told(&library, &none), wrong(&none, "is not there"));
        assert_eq!(told(&lock, &lock), wrong(&lock, "is not a regular file"));
        assert_eq!(
            told(&library, &library),
            wrong(&library, "is not a directory")
        );
        // A link to what is wanted is as little as one to the root of the node.
        symlink(&lock, &link).unwrap();
        assert_eq!(told(&library, &link), wrong(&link, "is not a directory"));
        symlink(&library, at("lib")).unwrap();
        assert_eq!(
            told(&at("lib"), &lock),
            wrong(&at("lib"), "is not a regular file")
        );
        let others = unsafe_path_of(us + 1, &library, &lock).unwrap();
        assert_eq!(others.problem, PathProblem::Owner { uid: us });
        for mode in [0o775, 0o757] {
            fs::set_permissions(&library, Permissions::from_mode(mode)).unwrap();
            let writable = "can be written to by others than root";
            assert_eq!(told(&library, &lock), wrong(&library, writable));
        }
    }
}

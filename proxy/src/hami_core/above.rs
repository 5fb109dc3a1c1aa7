//! The directories above what containers are given: who may write to one of them could have something else
//! in its place.
//!
//! Links on the way are followed, as the runtime does, and so is what is above where they lead. In a
//! directory that is sticky nobody renames or removes what is another's, so that others may write to it.

use super::ROOT;
use koord_hooks::{PathProblem, UnsafePath};
use std::{
    ffi::OsString,
    fs, io,
    os::unix::fs::MetadataExt as _,
    path::{Component, Path, PathBuf},
};

/// Links that are followed, as many as the kernel follows (`MAXSYMLINKS`).
const MAX_LINKS: u32 = 40;

pub(super) const WRITABLE: u32 = 0o022;
const STICKY: u32 = 0o1000;

/// Looks at all that is above an absolute path, up to `/`: the first directory, or link, that is neither this
/// user's nor root's, or to which others may write.
pub(super) fn check(owner: u32, path: &Path) -> Result<(), UnsafePath> {
    walk(&[owner, ROOT], path)
}

fn walk(trusted: &[u32], path: &Path) -> Result<(), UnsafePath> {
    // Where we are, without a link on the way, and the names that follow, the next one last.
    let mut at = PathBuf::from("/");
    let mut left = names(path.parent().unwrap_or(Path::new("")));
    let mut links = 0;
    look(trusted, &at)?;
    while let Some(name) = left.pop() {
        if name == ".." {
            at.pop();
            continue;
        }
        let next = at.join(name);
        let Some(target) = look(trusted, &next)? else {
            at = next;
            continue;
        };
        links += 1;
        if links > MAX_LINKS {
            let problem = PathProblem::Unknown(io::ErrorKind::TooManyLinks);
            return Err(UnsafePath {
                path: next,
                problem,
            });
        }
        if target.is_absolute() {
            at = PathBuf::from("/");
        }
        left.extend(names(&target));
    }
    Ok(())
}

/// The names of a path, the first one last.
fn names(path: &Path) -> Vec<OsString> {
    let names = path.components().rev().filter_map(|it| match it {
        Component::Normal(name) => Some(name.to_owned()),
        Component::ParentDir => Some("..".into()),
        Component::Prefix(_) | Component::RootDir | Component::CurDir => None,
    });
    names.collect()
}

/// Where a link leads; `None` of a directory.
fn look(trusted: &[u32], path: &Path) -> Result<Option<PathBuf>, UnsafePath> {
    let refused = |problem| UnsafePath {
        path: path.to_owned(),
        problem,
    };
    let failed = |error: io::Error| refused(problem_of(&error));
    let there = fs::symlink_metadata(path).map_err(failed)?;
    if !trusted.contains(&there.uid()) {
        return Err(refused(PathProblem::Owner { uid: there.uid() }));
    }
    if there.is_symlink() {
        return fs::read_link(path).map(Some).map_err(failed);
    }
    if !there.is_dir() {
        let expected = "a directory";
        return Err(refused(PathProblem::OtherKind { expected }));
    }
    let mode = there.mode();
    if mode & WRITABLE != 0 && mode & STICKY == 0 {
        return Err(refused(PathProblem::Writable));
    }
    Ok(None)
}

/// Why something cannot be looked at.
pub(super) fn problem_of(error: &io::Error) -> PathProblem {
    match error.kind() {
        io::ErrorKind::NotFound => PathProblem::Missing,
        kind => PathProblem::Unknown(kind),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{
        fs::Permissions,
        os::unix::fs::{PermissionsExt as _, symlink},
    };

    /// Directories `a/b/c` in one that nobody else writes to, and whose they are.
    fn directories() -> (tempfile::TempDir, PathBuf, u32) {
        let directory = tempfile::tempdir().unwrap();
        let top = directory.path().canonicalize().unwrap();
        fs::create_dir_all(top.join("a/b/c")).unwrap();
        for name in ["a", "a/b", "a/b/c"] {
            have(&top.join(name), 0o755);
        }
        let us = fs::metadata(&top).unwrap().uid();
        (directory, top, us)
    }

    fn have(path: &Path, mode: u32) {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    }

    /// What is told of the path.
    fn told(owner: u32, path: &Path) -> Result<(), String> {
        check(owner, path).map_err(|error| error.to_string())
    }

    fn writable(path: &Path) -> Result<(), String> {
        let told = "can be written to by others than root";
        Err(format!("{} {told}", path.display()))
    }

    #[test]
    fn a_directory_above_that_others_may_write_to_is_named_wherever_it_is() {
        let (_directory, top, us) = directories();
        let library = top.join("a/b/c/lib.so");
        assert_eq!(told(us, &library), Ok(()));
        for name in ["a", "a/b", "a/b/c"] {
            let above = top.join(name);
            for mode in [0o775, 0o757] {
                have(&above, mode);
                assert_eq!(told(us, &library), writable(&above));
            }
            // Nobody else can rename what is in it.
            have(&above, 0o1777);
            assert_eq!(told(us, &library), Ok(()));
            have(&above, 0o755);
        }
        // Not what is below it.
        fs::create_dir(&library).unwrap();
        have(&library, 0o777);
        assert_eq!(told(us, &library), Ok(()));
    }

    #[test]
    fn what_is_above_the_place_where_a_link_leads_counts_as_well() {
        let (_directory, top, us) = directories();
        symlink("a/b", top.join("near")).unwrap();
        symlink(top.join("a/b/../b"), top.join("far")).unwrap();
        for link in ["near", "far"] {
            let library = top.join(link).join("c/lib.so");
            assert_eq!(told(us, &library), Ok(()));
            for name in ["a", "a/b", "a/b/c"] {
                have(&top.join(name), 0o777);
                assert_eq!(told(us, &library), writable(&top.join(name)));
                have(&top.join(name), 0o755);
            }
        }
        symlink("round", top.join("round")).unwrap();
        let round = top.join("round");
        let endless = format!("{} cannot be looked at: too many links", round.display());
        assert_eq!(told(us, &round.join("lib.so")), Err(endless));
    }

    #[test]
    fn a_directory_above_that_is_another_users_or_none_is_named() {
        let (_directory, top, us) = directories();
        let none = top.join("none");
        let missing = format!("{} is not there", none.display());
        assert_eq!(told(us, &none.join("lib.so")), Err(missing));
        // What is above all is root's.
        let refused = UnsafePath {
            path: "/".into(),
            problem: PathProblem::Owner { uid: 0 },
        };
        assert_eq!(walk(&[us + 1], &top.join("lib.so")), Err(refused));
    }
}

//! Looking at what of HAMi-core containers are given: its library, and the directory of its lock.
//!
//! Neither may be a link, which the runtime that mounts would follow. It may do so a minute after
//! this look; so what counts is not where a path leads now, but that nobody but root can change it, nor
//! a directory [above] it.
//!
//! The operator says where the library is, and that file system may hang. So a thread beside the
//! data path looks, and what it found last counts.

mod above;
mod folder;

pub(crate) use self::folder::{
    FolderError, Folders, GivenBack, Living, folder_of, folders_of, keep as keep_folders,
};

use crate::{hub::Hub, worker::Worker};
use koord_hooks::{PathProblem, UnsafePath};
use std::{
    fs::{self, FileType, Metadata},
    io,
    os::unix::fs::MetadataExt as _,
    path::Path,
    rc::Rc,
};
use tokio::sync::oneshot;

/// Whose what containers are given has to be.
pub(crate) const ROOT: u32 = 0;

/// The stack of the thread that looks, in bytes.
const STACK: usize = 128 << 10;

/// Has the hub know what there is, now and after each list; never ends. A look that hangs is waited
/// for here alone.
pub(crate) async fn watch(hub: Rc<Hub>, look: impl Fn() -> Option<UnsafePath> + Send + 'static) {
    let looker = Worker::new("hami-core", STACK, move |done: oneshot::Sender<_>| {
        done.send(look()).ok();
    });
    let mut lists = hub.lists();
    loop {
        if let Some(found) = looker.ask(|done| done).await {
            hub.set_hami_core(found);
        }
        // Who counts them is held here, so it is there.
        lists.changed().await.ok();
    }
}

/// Why the library is not to be mounted before there was a look.
pub(crate) fn unlooked(library: &Path) -> UnsafePath {
    UnsafePath {
        path: library.to_owned(),
        problem: PathProblem::Unknown(io::ErrorKind::TimedOut),
    }
}

/// Why these are not to be mounted; `None` if they may be.
pub(crate) fn unsafe_path(library: &Path, lock: &Path) -> Option<UnsafePath> {
    unsafe_path_of(ROOT, library, lock)
}

fn unsafe_path_of(owner: u32, library: &Path, lock: &Path) -> Option<UnsafePath> {
    let problem = |path: &Path, found: Result<(), PathProblem>| {
        let path = path.to_owned();
        found.err().map(|problem| UnsafePath { path, problem })
    };
    let own = problem(library, is_library(owner, library));
    let own = own.or_else(|| problem(lock, is_lock(owner, lock)));
    own.or_else(|| {
        let mut paths = [library, lock].into_iter();
        paths.find_map(|path| above::check(owner, path).err())
    })
}

/// Every process of a container loads it.
fn is_library(owner: u32, path: &Path) -> Result<(), PathProblem> {
    match look(owner, path, FileType::is_file, "a regular file")?.mode() & above::WRITABLE {
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
    let there = fs::symlink_metadata(path).map_err(|error| above::problem_of(&error))?;
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
    use crate::hub::testing::Bench;
    use koord_kernel::{cgroup::Generation, fake::FakeTree};
    use std::{
        fs::Permissions,
        os::unix::fs::{PermissionsExt as _, symlink},
        sync::{Arc, mpsc},
        time::Duration,
    };
    use tokio::time::{sleep, timeout};

    #[test]
    fn the_thread_that_carries_the_data_does_not_look() {
        let bench = Bench::new(FakeTree::new(Generation::V1, 2));
        let mut probe = bench.hub.probe().clone();
        assert!(probe.hami_core_look().is_none());
        probe.hami_core = true;
        probe.options.hami_core_library = "/not/there/lib.so".into();
        let node = probe.look(bench.hub.writer().cgroups(), Arc::default());
        let told = node.unwrap().kernel.hami_core.unwrap().to_string();
        assert_eq!(told, "/not/there/lib.so cannot be looked at: timed out");
        let look = probe.hami_core_look().unwrap();
        let told = look().unwrap().to_string();
        assert_eq!(told, "/not/there/lib.so is not there");
    }

    #[tokio::test]
    async fn a_look_that_hangs_holds_up_nobody_and_what_the_last_one_found_counts() {
        let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
        let (find, found) = mpsc::channel();
        let looking = watch(bench.hub.clone(), move || found.recv().unwrap_or_default());
        let known = || bench.hub.policy().node().kernel.hami_core.clone();
        let comes_to = async |expected: Option<UnsafePath>| {
            while known() != expected {
                sleep(Duration::from_millis(1)).await;
            }
        };
        let missing = Some(UnsafePath {
            path: "/lib.so".into(),
            problem: PathProblem::Missing,
        });
        let hanging = async {
            // The first look hangs.
            sleep(Duration::from_millis(10)).await;
            bench.hub.list_taken();
            assert_eq!(known(), None);
            find.send(missing.clone()).unwrap();
            comes_to(missing.clone()).await;
            // The second does.
            bench.hub.list_taken();
            bench.hub.set_node_policy(Arc::default());
            assert_eq!(known(), missing);
            find.send(None).unwrap();
            comes_to(None).await;
        };
        tokio::select! {
            () = looking => unreachable!("it never ends"),
            done = timeout(Duration::from_secs(30), hanging) => done.expect("it is not known"),
        }
    }

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
        fs::set_permissions(&library, Permissions::from_mode(0o755)).unwrap();
        assert_eq!(told(&library, &lock), None);
        // One that others may write to is named, above the library and above the lock.
        let other = at("other");
        fs::create_dir_all(other.join("lock")).unwrap();
        fs::copy(&library, other.join("lib.so")).unwrap();
        fs::set_permissions(&other, Permissions::from_mode(0o777)).unwrap();
        let writable = wrong(&other, "can be written to by others than root");
        assert_eq!(told(&other.join("lib.so"), &lock), writable);
        assert_eq!(told(&library, &other.join("lock")), writable);
    }
}

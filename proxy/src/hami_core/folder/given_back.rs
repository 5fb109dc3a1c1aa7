//! What becomes of the folders where we go for good.
//!
//! What was set aside is known by its name. The folders of containers are called as upstream's are: they are
//! ours where the folder around them has the mode with which we make it. We give that to none that was there
//! before with another; one that somebody else has made with the same counts as ours.

use super::{AROUND, FolderError, around, gone};
use koord_hooks::{HAMI_CORE_SEPARATOR, PathProblem, UnsafePath};
use rustix::{
    fs::{Dir, Mode},
    io::Errno,
};
use std::{
    collections::BTreeSet,
    ffi::{CStr, CString, OsStr},
    io,
    os::{fd::OwnedFd, unix::ffi::OsStrExt as _},
    path::{Path, PathBuf},
};

/// What came of them.
#[derive(Debug, Default)]
pub(crate) struct GivenBack {
    /// How many were removed, with those that had been set aside.
    pub(crate) removed: usize,
    /// Those of pods that live.
    pub(crate) used: Vec<PathBuf>,
    /// Why others stay.
    pub(crate) stuck: Vec<FolderError>,
}

/// Pods whose folders stay.
#[derive(Debug, Default)]
pub(crate) struct Living {
    /// The UIDs of those that the runtime has.
    pub(crate) uids: BTreeSet<String>,
    /// What the directories of all pods are called that have control groups: of another runtime's, too.
    pub(crate) groups: Vec<String>,
}

// === impl Living ===

impl Living {
    fn has(&self, uid: &str) -> bool {
        // As the kubelet calls them, by cgroupfs and by systemd.
        let called = [
            format!("pod{uid}"),
            format!("pod{}.slice", uid.replace('-', "_")),
        ];
        let mut groups = self.groups.iter();
        self.uids.contains(uid) || groups.any(|it| called.iter().any(|name| it.ends_with(name)))
    }
}

/// Removes what is ours in the folder of all folders, and that itself if nothing is left in it; see
/// [`Folders::give_back`](super::Folders::give_back).
pub(super) fn give_back(
    owner: u32,
    folders: &Path,
    living: Option<&Living>,
) -> Result<GivenBack, FolderError> {
    let unseen = |errno: Errno| UnsafePath {
        path: folders.to_owned(),
        problem: PathProblem::Unknown(io::Error::from(errno).kind()),
    };
    // Whatever is called there.
    let around = match around(owner, &folders.join("any"), false) {
        Ok((around, _)) => around,
        Err(FolderError::Unsafe(it)) if it.problem == PathProblem::Missing => {
            return Ok(GivenBack::default());
        }
        Err(error) => return Err(error),
    };
    let mode = rustix::fs::fstat(&around).map_err(unseen)?.st_mode;
    let is_ours = Mode::from_raw_mode(mode) == AROUND;
    let mut given = GivenBack::default();
    if let Some(living) = living.filter(|_| is_ours) {
        for name in names(&around).map_err(unseen)? {
            let Some(uid) = pod_of(&name) else {
                continue;
            };
            let path = folders.join(OsStr::from_bytes(name.to_bytes()));
            if living.has(uid) {
                given.used.push(path);
            } else if let Err(errno) = gone::set_aside(&around, &name) {
                given.stuck.push(FolderError::stays(&path, errno));
            }
        }
    }
    for name in names(&around).map_err(unseen)? {
        if !gone::is_set_aside(&name) {
            continue;
        }
        match clear(&around, &name) {
            Ok(()) => given.removed += 1,
            Err(errno) => {
                let path = folders.join(OsStr::from_bytes(name.to_bytes()));
                given.stuck.push(FolderError::stays(&path, errno));
            }
        }
    }
    if is_ours {
        // Unless something is left in it.
        rustix::fs::rmdir(folders).ok();
    }
    Ok(given)
}

fn names(around: &OwnedFd) -> rustix::io::Result<Vec<CString>> {
    let entries = Dir::read_from(around)?;
    let names = entries.map(|entry| entry.map(|it| it.file_name().to_owned()));
    names.collect()
}

/// The UID of the pod that a folder is called after, if it is called after one and a container.
fn pod_of(name: &CStr) -> Option<&str> {
    let (uid, container) = name.to_str().ok()?.split_once(HAMI_CORE_SEPARATOR)?;
    let is_whole = !uid.is_empty() && !container.is_empty() && !uid.starts_with('.');
    is_whole.then_some(uid)
}

/// Removes one with all that is in it, in as many goes as it takes: each but the last removes something.
fn clear(around: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    while !gone::clear(around, name)? {}
    Ok(())
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files for tests")]
mod tests {
    use super::*;
    use std::{
        fs::{self, Permissions},
        os::unix::fs::{MetadataExt as _, PermissionsExt as _},
    };

    struct Node {
        directory: tempfile::TempDir,
        owner: u32,
    }

    impl Node {
        /// With these in the folder of all folders, which has this mode, and something in each.
        fn with(names: &[&str], mode: u32) -> Self {
            let directory = tempfile::tempdir().unwrap();
            let owner = fs::metadata(directory.path()).unwrap().uid();
            let node = Self { directory, owner };
            for name in names {
                let folder = node.folders().join(name);
                fs::create_dir_all(folder.join("a/b")).unwrap();
                fs::write(folder.join("a/uid-1_main.cache"), "counted").unwrap();
            }
            fs::set_permissions(node.folders(), Permissions::from_mode(mode)).unwrap();
            node
        }

        fn folders(&self) -> PathBuf {
            self.directory.path().join("containers")
        }

        fn names(&self) -> Vec<String> {
            let names = fs::read_dir(self.folders()).unwrap();
            let names = names.map(|it| it.unwrap().file_name().into_string().unwrap());
            let names: BTreeSet<_> = names.collect();
            names.into_iter().collect()
        }

        /// How many were removed, and the names of those that are used.
        fn give_back(&self, living: Option<&[&str]>) -> (usize, Vec<String>) {
            let living = living.map(|uids| Living {
                uids: uids.iter().map(|it| (*it).to_owned()).collect(),
                // Of another runtime's pods, by either driver.
                groups: vec![
                    "podother-1".to_owned(),
                    "kubepods-burstable-podother_2.slice".to_owned(),
                ],
            });
            let given = give_back(self.owner, &self.folders(), living.as_ref()).unwrap();
            assert!(given.stuck.is_empty(), "{:?}", given.stuck);
            let used = given.used.iter();
            let used = used.map(|it| it.strip_prefix(self.folders()).unwrap());
            let used = used.map(|it| it.to_str().unwrap().to_owned());
            (given.removed, used.collect())
        }
    }

    #[test]
    fn those_of_pods_that_have_gone_go_and_with_the_last_what_is_around_them() {
        let all = [
            ".gone-7",
            "lost+found",
            "other-1_main",
            "other-2_main",
            "other_main",
            "uid-1_main",
            "uid-11_main",
            "uid-2_main",
        ];
        let node = Node::with(&all, 0o700);
        let others = ["other-1_main", "other-2_main"].map(str::to_owned);
        let mut used = others.to_vec();
        used.push("uid-1_main".to_owned());
        // `.gone-7`, and those of the pods `other`, `uid-11` and `uid-2`.
        let (removed, mut stay) = node.give_back(Some(&["uid-1", "uid-3"]));
        stay.sort_unstable();
        assert_eq!((removed, stay), (4, used));
        let left = ["lost+found", "other-1_main", "other-2_main", "uid-1_main"];
        assert_eq!(node.names(), left);
        for other in others {
            fs::remove_dir_all(node.folders().join(other)).unwrap();
        }
        assert_eq!(node.give_back(Some(&[])), (1, Vec::new()));
        assert_eq!(node.names(), ["lost+found"]);
        fs::remove_dir_all(node.folders().join("lost+found")).unwrap();
        assert_eq!(node.give_back(Some(&[])), (0, Vec::new()));
        assert!(!node.folders().exists());
        assert_eq!(node.give_back(Some(&[])), (0, Vec::new()));
    }

    #[test]
    fn what_is_not_shown_to_be_ours_or_unused_stays() {
        // It has not the mode that we give it.
        let node = Node::with(&[".gone-7", "uid-1_main"], 0o755);
        assert_eq!(node.give_back(Some(&[])), (1, Vec::new()));
        assert_eq!(node.names(), ["uid-1_main"]);
        // It is unknown which containers live.
        let node = Node::with(&[".gone-7", "uid-1_main"], 0o700);
        assert_eq!(node.give_back(None), (1, Vec::new()));
        assert_eq!(node.names(), ["uid-1_main"]);
        // Others may have put it there.
        let node = Node::with(&[".gone-7", "uid-1_main"], 0o777);
        let refused = give_back(node.owner, &node.folders(), Some(&Living::default()));
        let told = "can be written to by others than root";
        let told = format!("{} {told}", node.folders().display());
        assert_eq!(refused.unwrap_err().to_string(), told);
        assert_eq!(node.names(), [".gone-7", "uid-1_main"]);
    }
}

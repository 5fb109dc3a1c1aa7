#![expect(clippy::disallowed_methods, reason = "files for tests")]

use super::*;
use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
};

/// A node with a directory of the library, whoever we are.
struct Node {
    directory: tempfile::TempDir,
    owner: u32,
}

impl Node {
    fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let owner = fs::metadata(directory.path()).unwrap().uid();
        Self { directory, owner }
    }

    fn at(&self, name: &str) -> PathBuf {
        self.directory.path().join(name)
    }

    fn make(&self) -> Result<(), FolderError> {
        make(self.owner, &self.at("containers/uid-1_main"))
    }

    /// Why it cannot be made.
    fn refusal(&self) -> String {
        self.make().unwrap_err().to_string()
    }
}

#[test]
fn a_folder_is_made_anew_for_every_user_and_nothing_around_it() {
    let node = Node::new();
    let folder = node.at("containers/uid-1_main");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let outside = node.at("outside");
    fs::write(&outside, "node's").unwrap();
    for _ in 0..2 {
        node.make().unwrap();
        assert_eq!(mode(&folder), 0o777);
        assert_eq!(mode(&node.at("containers")), 0o700);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        // What a container may leave there.
        fs::write(folder.join("uid-1_main.cache"), "counted").unwrap();
        fs::create_dir_all(folder.join("a/b")).unwrap();
        symlink(&outside, folder.join("link")).unwrap();
        symlink(node.directory.path(), folder.join("a/up")).unwrap();
        // What somebody else may have made for HAMi-core.
        fs::set_permissions(node.at("containers"), Permissions::from_mode(0o755)).unwrap();
    }
    let path = vec![folder.clone()];
    assert_eq!(removed(node.owner, path.clone()), path);
    assert!(!folder.exists());
    assert_eq!(fs::read_to_string(&outside).unwrap(), "node's");
    // There is nothing to remove.
    assert_eq!(removed(node.owner, path.clone()), path);
    fs::remove_dir(node.at("containers")).unwrap();
    assert_eq!(removed(node.owner, path.clone()), path);
}

#[test]
fn where_another_user_may_put_something_no_folder_is_made() {
    let node = Node::new();
    let told = |name: &str, problem: &str| format!("{} {problem}", node.at(name).display());
    let may_write = |name: &str, mode| {
        fs::set_permissions(node.at(name), Permissions::from_mode(mode)).unwrap();
    };
    let writable = "can be written to by others than root";
    node.make().unwrap();
    for mode in [0o775, 0o757] {
        may_write("containers", mode);
        assert_eq!(node.refusal(), told("containers", writable));
    }
    may_write("containers", 0o755);
    fs::remove_dir_all(node.at("containers")).unwrap();
    // A link, even to a directory that would be taken.
    fs::create_dir(node.at("other")).unwrap();
    symlink(node.at("other"), node.at("containers")).unwrap();
    assert_eq!(node.refusal(), told("containers", "is not a directory"));
    assert_eq!(fs::read_dir(node.at("other")).unwrap().count(), 0);
    fs::remove_file(node.at("containers")).unwrap();

    let others = make(node.owner + 1, &node.at("containers/uid-1_main"));
    let owner = format!(
        "{} is the user's {}, and has to be root's",
        node.directory.path().display(),
        node.owner
    );
    assert_eq!(others.unwrap_err().to_string(), owner);
    let nowhere = make(node.owner, &node.at("none/containers/uid-1_main"));
    let missing = told("none", "is not there");
    assert_eq!(nowhere.unwrap_err().to_string(), missing);
    assert!(!node.at("containers").exists());
}

#[test]
fn a_link_in_the_place_of_a_folder_is_replaced_and_not_followed() {
    let node = Node::new();
    let (folder, other) = (node.at("containers/uid-1_main"), node.at("other"));
    fs::create_dir(node.at("containers")).unwrap();
    fs::create_dir(&other).unwrap();
    fs::write(other.join("file"), "").unwrap();
    symlink(&other, &folder).unwrap();
    node.make().unwrap();
    assert!(fs::symlink_metadata(&folder).unwrap().is_dir());
    assert!(other.join("file").exists());
}

#[test]
fn what_a_container_has_filled_beyond_bounds_is_left() {
    let node = Node::new();
    let folder = node.at("containers/uid-1_main");
    let told = format!("{} cannot be made anew", folder.display());
    node.make().unwrap();
    let deep = "d/".repeat(9);
    fs::create_dir_all(folder.join(&deep)).unwrap();
    let error = node.make().unwrap_err();
    assert_eq!(error.to_string(), told);
    let source = error.source().unwrap().downcast_ref::<io::Error>();
    let errno = source.unwrap().raw_os_error();
    assert_eq!(errno, Some(Errno::NOTEMPTY.raw_os_error()));
    let none: [PathBuf; 0] = [];
    assert_eq!(removed(node.owner, vec![folder.clone()]), none);
    assert!(folder.join(deep).exists());
    fs::remove_dir_all(&folder).unwrap();

    node.make().unwrap();
    for number in 0..=MAX_FILES {
        fs::write(folder.join(number.to_string()), "").unwrap();
    }
    assert_eq!(node.refusal(), told);
    // Each look takes away as much as it may.
    node.make().unwrap();
}

#[test]
fn what_is_no_path_of_a_folder_there_is_refused() {
    let node = Node::new();
    for path in ["containers/..", "/"] {
        let error = make(node.owner, &node.at(path)).unwrap_err();
        assert!(matches!(error, FolderError::Io { .. }), "{error}");
    }
}

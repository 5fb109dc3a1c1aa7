#![expect(clippy::disallowed_methods, reason = "files for tests")]

use super::*;
use rustix::thread::{CapabilitySet, CapabilitySets};
use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt as _, PermissionsExt as _, symlink},
    sync::mpsc,
    time::Duration,
};
use tokio::time::{sleep, timeout};

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

    /// Of each that was set aside, whether one go has cleared it.
    fn cleared(&self) -> Vec<bool> {
        let there = self.set_aside();
        let cleared = there.iter().map(|it| clear(self.owner, it).unwrap());
        cleared.collect()
    }

    /// What a first round of clearing takes.
    fn set_aside(&self) -> Vec<PathBuf> {
        let folders = self.at("containers");
        to_clear(self.owner, &folders, Path::new("")).unwrap().paths
    }

    /// Why it cannot be made.
    fn refusal(&self) -> String {
        self.make().unwrap_err().to_string()
    }
}

// === impl Folders ===

impl Folders {
    /// Those whose thread waits for a word before each job.
    pub(crate) fn held(owner: u32, may_go_on: mpsc::Receiver<()>) -> Self {
        let work = move |job| {
            may_go_on.recv().ok();
            run(job);
        };
        Self {
            worker: Worker::new("held", STACK, work),
            ..Self::of(owner)
        }
    }
}

/// Has this thread go without what overrides permissions, as a service does. What it had.
fn without_overriding() -> CapabilitySets {
    let before = rustix::thread::capabilities(None).unwrap();
    let mut without = before;
    let overriding = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    without.effective.remove(overriding);
    rustix::thread::set_capabilities(None, without).unwrap();
    before
}

#[test]
fn a_folder_is_made_anew_for_every_user_and_nothing_around_it() {
    let node = Node::new();
    let folder = node.at("containers/uid-1_main");
    let mode = |path: &Path| fs::metadata(path).unwrap().permissions().mode() & 0o7777;
    let outside = node.at("outside");
    fs::write(&outside, "node's").unwrap();
    for around in [0o700, 0o1700] {
        node.make().unwrap();
        assert_eq!(mode(&folder), 0o777);
        assert_eq!(mode(&node.at("containers")), around);
        assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
        // What a container may leave there.
        fs::write(folder.join("uid-1_main.cache"), "counted").unwrap();
        fs::create_dir_all(folder.join("a/b")).unwrap();
        symlink(&outside, folder.join("link")).unwrap();
        symlink(node.directory.path(), folder.join("a/up")).unwrap();
        // What somebody else may have made for HAMi-core.
        fs::set_permissions(node.at("containers"), Permissions::from_mode(0o755)).unwrap();
    }
    assert!(set_aside(node.owner, &folder));
    assert!(!folder.exists());
    // Each was set aside.
    assert_eq!(node.cleared(), [true, true]);
    assert_eq!(fs::read_dir(node.at("containers")).unwrap().count(), 0);
    assert_eq!(fs::read_to_string(&outside).unwrap(), "node's");
    // There is nothing to set aside.
    assert!(set_aside(node.owner, &folder));
    fs::remove_dir(node.at("containers")).unwrap();
    assert!(set_aside(node.owner, &folder));
}

#[test]
fn what_somebody_else_has_made_is_closed_and_stays_when_we_go() {
    for is_there in [false, true] {
        let node = Node::new();
        let containers = node.at("containers");
        if is_there {
            fs::create_dir(&containers).unwrap();
            fs::set_permissions(&containers, Permissions::from_mode(0o755)).unwrap();
        }
        // Whose it is stays known.
        for _ in 0..2 {
            node.make().unwrap();
            let mode = fs::metadata(&containers).unwrap().permissions().mode();
            assert_eq!(mode & 0o777, 0o700);
        }
        let living = Living::default();
        given_back::give_back(node.owner, &containers, Some(&living)).unwrap();
        assert_eq!(containers.exists(), is_there);
        assert_eq!(containers.join("uid-1_main").exists(), is_there);
    }
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
    // What is around the library's directory is looked at as well, which could be renamed there.
    fs::create_dir_all(node.at("above/library")).unwrap();
    may_write("above", 0o777);
    may_write("above/library", 0o755);
    let around = make(node.owner, &node.at("above/library/containers/uid-1_main"));
    assert_eq!(around.unwrap_err().to_string(), told("above", writable));
    assert!(!node.at("above/library/containers").exists());
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
    assert_eq!(node.cleared(), [true]);
    assert!(other.join("file").exists());
}

#[test]
fn what_a_container_has_filled_is_made_anew_at_once_and_cleared_bit_by_bit() {
    let node = Node::new();
    let folder = node.at("containers/uid-1_main");
    node.make().unwrap();
    fs::create_dir_all(folder.join("d/".repeat(9))).unwrap();
    for number in 0..=gone::MAX_FILES {
        fs::write(folder.join(number.to_string()), "").unwrap();
    }
    node.make().unwrap();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);
    // No go takes all files, and what is too deep may be left to a later one.
    let mut goes = 0;
    while !node.cleared().is_empty() {
        goes += 1;
        assert!(goes < 4);
    }
    assert!(goes > 1);
    assert_eq!(fs::read_dir(node.at("containers")).unwrap().count(), 1);
}

#[test]
fn what_is_too_deep_to_be_cleared_at_once_gets_no_place_beside_what_it_was_in() {
    let node = Node::new();
    let folder = node.at("containers/uid-1_main");
    let there = || fs::read_dir(node.at("containers")).unwrap().count();
    node.make().unwrap();
    // Three at the eighth level, with something in each.
    for name in ["a", "b", "c"] {
        fs::create_dir_all(folder.join("d/".repeat(7)).join(name).join("e")).unwrap();
    }
    node.make().unwrap();
    assert_eq!(there(), 2);
    // Whether the same go sees what has come up is the file system's to say.
    if node.cleared() == [false] {
        assert_eq!(there(), 2);
        assert_eq!(node.cleared(), [true]);
    }
    assert_eq!(there(), 1);
}

#[test]
fn of_very_many_that_were_set_aside_some_are_cleared_with_each_list() {
    let node = Node::new();
    node.make().unwrap();
    for number in 0..=gone::MAX_NAMES {
        fs::create_dir(node.at(&format!("containers/.gone-{number}"))).unwrap();
    }
    assert_eq!(node.cleared(), [true; 1024]);
    assert_eq!(node.cleared(), [true]);
    assert!(node.at("containers/uid-1_main").is_dir());
}

#[test]
fn what_cannot_be_cleared_keeps_nothing_beside_it_and_no_folder_from_being_made() {
    let before = without_overriding();
    let node = Node::new();
    let folder = node.at("containers/uid-1_main");
    let may_enter = |path: &Path, mode| {
        fs::set_permissions(path, Permissions::from_mode(mode)).unwrap();
    };
    node.make().unwrap();
    fs::create_dir_all(folder.join("a/b")).unwrap();
    for name in ["a", "empty", "z"] {
        fs::create_dir_all(folder.join(name)).unwrap();
        may_enter(&folder.join(name), 0o000);
    }
    node.make().unwrap();
    assert_eq!(fs::read_dir(&folder).unwrap().count(), 0);

    assert_eq!(node.cleared(), [false]);
    let left = node.set_aside();
    let names = fs::read_dir(&left[0]).unwrap();
    let names: Vec<_> = names.map(|it| it.unwrap().file_name()).collect();
    assert_eq!(names, ["a"]);
    let stays = clear(node.owner, &left[0]).unwrap_err().to_string();
    let told = "whose container has gone, cannot be removed";
    assert_eq!(stays, format!("{}, {told}", left[0].display()));
    may_enter(&left[0].join("a"), 0o700);
    assert_eq!(node.cleared(), [true]);
    rustix::thread::set_capabilities(None, before).unwrap();
}

#[test]
fn what_cannot_be_cleared_takes_nothing_from_what_one_go_clears() {
    let before = without_overriding();
    let node = Node::new();
    let folder = node.at("containers/uid-1_main");
    let stays = |name: &str| {
        fs::create_dir_all(folder.join(name).join("b")).unwrap();
        fs::set_permissions(folder.join(name), Permissions::from_mode(0o000)).unwrap();
    };
    node.make().unwrap();
    // Whichever the file system names first.
    stays("a");
    for number in 0..4096 {
        fs::write(folder.join(number.to_string()), "").unwrap();
    }
    stays("z");
    node.make().unwrap();
    assert_eq!(node.cleared(), [false]);
    let left = node.set_aside();
    let names = fs::read_dir(&left[0]).unwrap();
    let names = names.map(|it| it.unwrap().file_name().into_string().unwrap());
    let names: BTreeSet<_> = names.collect();
    assert_eq!(names, BTreeSet::from(["a", "z"].map(str::to_owned)));
    rustix::thread::set_capabilities(None, before).unwrap();
}

#[tokio::test]
async fn however_many_cannot_be_cleared_the_others_are() {
    let before = without_overriding();
    let node = Node::new();
    node.make().unwrap();
    let containers = node.at("containers");
    // As many as one round takes.
    for number in 0..1024 {
        let stuck = containers.join(format!(".gone-1{number:04}"));
        fs::create_dir_all(stuck.join("kept")).unwrap();
        fs::set_permissions(stuck, Permissions::from_mode(0o000)).unwrap();
    }
    let other = containers.join(".gone-2");
    fs::create_dir(&other).unwrap();
    let folders = Folders::of(node.owner);
    assert_eq!(folders.clear(&containers).await, Some(1025));
    assert!(other.exists());
    assert_eq!(folders.clear(&containers).await, Some(1024));
    assert!(!other.exists());
    rustix::thread::set_capabilities(None, before).unwrap();
}

#[test]
fn a_round_begins_behind_the_last_one_and_goes_around() {
    let node = Node::new();
    node.make().unwrap();
    for name in [".gone-1", ".gone-2", ".gone-3"] {
        fs::create_dir(node.at("containers").join(name)).unwrap();
    }
    let names = |last: &str| {
        let there = to_clear(node.owner, &node.at("containers"), Path::new(last));
        let ToClear { paths, count } = there.unwrap();
        assert_eq!(count, 3);
        let names = paths.iter().map(|it| it.file_name().unwrap());
        let names = names.map(|it| it.to_str().unwrap());
        names.collect::<Vec<_>>().join(" ")
    };
    assert_eq!(names("any/.gone-1"), ".gone-2 .gone-3 .gone-1");
    assert_eq!(names("any/.gone-3"), ".gone-1 .gone-2 .gone-3");
    // Nothing was set aside where nothing is, and nothing is known of what is not safe.
    let none = to_clear(node.owner, &node.at("none/containers"), Path::new(""));
    assert_eq!(none.unwrap().count, 0);
    fs::set_permissions(node.at("containers"), Permissions::from_mode(0o777)).unwrap();
    let unknown = to_clear(node.owner, &node.at("containers"), Path::new(""));
    assert!(unknown.is_none());
}

#[test]
fn what_cannot_be_cleared_is_tried_at_ever_fewer_lists() {
    let folders = Folders::of(0);
    let path = PathBuf::from("/usr/local/vgpu/containers/.gone-1");
    let error = FolderError::stays(&path, Errno::ACCESS);
    let mut tried = Vec::new();
    for list in 0..16 {
        if folders.is_due(&path) {
            tried.push(list);
            folders.stays(path.clone(), &error);
        }
    }
    assert_eq!(tried, [0, 2, 6, 14]);
}

#[tokio::test]
async fn what_another_process_has_set_aside_is_cleared_and_nothing_else() {
    let node = Node::new();
    node.make().unwrap();
    node.make().unwrap();
    let containers = node.at("containers");
    fs::write(containers.join(".gone-else"), "").unwrap();
    let names = || {
        let names = fs::read_dir(&containers).unwrap();
        let names = names.map(|it| it.unwrap().file_name().into_string().unwrap());
        names.collect::<BTreeSet<_>>()
    };
    assert_eq!(names().len(), 3);
    let left = Folders::of(node.owner).clear(&containers).await;
    assert_eq!(left, Some(0));
    let kept = [".gone-else", "uid-1_main"].map(str::to_owned);
    assert_eq!(names(), BTreeSet::from(kept));
}

#[tokio::test]
async fn who_has_waited_in_vain_makes_others_not_wait_until_something_is_answered() {
    let node = Node::new();
    let (go_on, may_go_on) = mpsc::channel();
    let folders = Folders::held(node.owner, may_go_on);
    let path = node.at("containers/uid-1_main");
    assert!(!folders.is_late());
    let waited = timeout(Duration::from_millis(100), folders.make(&path)).await;
    assert!(waited.is_err());
    assert!(folders.is_late());
    go_on.send(()).unwrap();
    // Nobody has to hear the answer.
    let answered = async {
        while folders.is_late() {
            sleep(Duration::from_millis(1)).await;
        }
    };
    timeout(Duration::from_secs(30), answered).await.unwrap();
    assert!(path.is_dir());
}

#[test]
fn what_is_no_path_of_a_folder_there_is_refused() {
    let node = Node::new();
    for path in ["containers/..", "/"] {
        let error = make(node.owner, &node.at(path)).unwrap_err();
        assert!(matches!(error, FolderError::Io { .. }), "{error}");
    }
}

#[tokio::test]
async fn one_that_is_not_made_for_what_is_around_it_is_not_kept_in_mind() {
    let node = Node::new();
    let folders = Folders::of(node.owner);
    let kept = || {
        let (known, fresh) = (folders.known.borrow(), folders.fresh.borrow());
        (known.len(), fresh.len())
    };
    fs::create_dir(node.at("containers")).unwrap();
    let open_to_all = Permissions::from_mode(0o777);
    fs::set_permissions(node.at("containers"), open_to_all.clone()).unwrap();
    let main = node.at("containers/uid-1_main");
    let refused = folders.make(&main).await.unwrap_err();
    assert!(matches!(refused, FolderError::Unsafe(_)), "{refused}");
    assert_eq!(kept(), (0, 0));

    fs::set_permissions(node.at("containers"), Permissions::from_mode(0o700)).unwrap();
    folders.make(&main).await.unwrap();
    assert_eq!(kept(), (1, 1));
    // One that was there before is there still.
    fs::set_permissions(node.at("containers"), open_to_all).unwrap();
    folders.make(&main).await.unwrap_err();
    assert_eq!(kept(), (1, 1));
}

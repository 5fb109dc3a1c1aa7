#![expect(clippy::disallowed_methods, reason = "files for tests")]

use super::*;
use std::{
    fs,
    os::unix::fs::{PermissionsExt, symlink},
    path::Path,
};
use tempfile::TempDir;

const NAME: &str = "pod.json";

fn folder() -> (TempDir, Folder) {
    let directory = tempfile::tempdir().unwrap();
    let folder = Folder::at(directory.path().join("qos"));
    (directory, folder)
}

fn names(path: &Path) -> Vec<String> {
    let entries = fs::read_dir(path).unwrap();
    let names = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    names
}

#[test]
fn a_file_is_written_where_it_says_something_else_and_everybody_may_read_it() {
    let (above, folder) = folder();
    assert!(!folder.has(NAME));
    assert!(folder.put(NAME, "one").unwrap());
    assert!(!folder.put(NAME, "one").unwrap());
    assert!(folder.put(NAME, "on").unwrap());
    assert!(folder.put(NAME, "one more").unwrap());
    let path = above.path().join("qos").join(NAME);
    assert_eq!(fs::read_to_string(&path).unwrap(), "one more");
    let mode = fs::metadata(&path).unwrap().permissions().mode();
    assert_eq!(mode & 0o7777, 0o1644);
    assert_eq!(names(path.parent().unwrap()), [NAME]);
}

#[test]
fn a_file_of_ours_is_removed_and_none_of_others() {
    let (above, folder) = folder();
    assert!(!folder.withdraw(NAME).unwrap());
    folder.put(NAME, "").unwrap();
    assert!(folder.has(NAME));
    assert!(folder.withdraw(NAME).unwrap());
    assert!(!folder.has(NAME));
    let path = above.path().join("qos").join(NAME);
    fs::write(&path, "theirs").unwrap();
    assert!(!folder.withdraw(NAME).unwrap());
    // It is replaced when there is something to say, even the same.
    assert!(folder.put(NAME, "theirs").unwrap());
    assert!(folder.withdraw(NAME).unwrap());
}

#[test]
fn no_link_leads_out_of_the_folder() {
    let (above, folder) = folder();
    folder.put(NAME, "").unwrap();
    let (qos, precious) = (above.path().join("qos"), above.path().join("precious"));
    fs::write(&precious, "precious").unwrap();
    fs::set_permissions(&precious, fs::Permissions::from_mode(0o1644)).unwrap();
    fs::remove_file(qos.join(NAME)).unwrap();
    for name in [NAME, ".pod.json.koord-runtime-proxy"] {
        symlink(&precious, qos.join(name)).unwrap();
    }
    assert!(!folder.has(NAME));
    assert!(!folder.withdraw(NAME).unwrap());
    assert!(folder.put(NAME, "precious").unwrap());
    assert!(folder.put(NAME, "other").unwrap());
    assert_eq!(fs::read_to_string(&precious).unwrap(), "precious");
    assert_eq!(fs::read_to_string(qos.join(NAME)).unwrap(), "other");
    assert_eq!(names(&qos), [NAME]);
}

#[test]
fn what_a_crash_left_half_written_is_in_nobodys_way() {
    let (above, folder) = folder();
    folder.put(NAME, "old").unwrap();
    let qos = above.path().join("qos");
    fs::write(qos.join(".pod.json.koord-runtime-proxy"), "ne").unwrap();
    assert!(folder.put(NAME, "new").unwrap());
    assert_eq!(fs::read_to_string(qos.join(NAME)).unwrap(), "new");
    assert_eq!(names(&qos), [NAME]);
}

#[test]
fn what_a_crash_left_half_written_is_removed_with_the_file_and_alone() {
    let (above, folder) = folder();
    let qos = above.path().join("qos");
    for is_whole in [true, false] {
        folder.put(NAME, "old").unwrap();
        fs::write(qos.join(".pod.json.koord-runtime-proxy"), "ne").unwrap();
        if !is_whole {
            fs::remove_file(qos.join(NAME)).unwrap();
        }
        assert!(folder.withdraw(NAME).unwrap());
        assert_eq!(names(&qos), [""; 0], "{is_whole}");
        assert!(!folder.withdraw(NAME).unwrap());
    }
}

#[test]
fn without_the_folder_around_ours_there_is_nobody_to_tell() {
    let (above, _) = folder();
    let folder = Folder::at(above.path().join("not/there"));
    let error = folder.put(NAME, "").unwrap_err();
    assert!(error.is_absent());
    assert!(error.to_string().ends_with("/not/there cannot be opened"));
    assert!(!folder.withdraw(NAME).unwrap());
    fs::write(above.path().join("not"), "").unwrap();
    let error = folder.put(NAME, "").unwrap_err();
    assert!(!error.is_absent());
    assert!(!folder.withdraw(NAME).unwrap());
}

//! Other processes of this machine, as far as they have to be known.
//!
//! A process says itself what it is called and how it was started, and may say megabytes of it: what
//! is read of one is bounded, and only one is held at a time. Where it is, it cannot say: that is
//! the kernel's word.

use std::{
    fs::{self, File},
    io::{self, Read},
    path::Path,
};

/// What is read of a file of one process, in bytes.
const MAX_FILE: u64 = 64 << 10;

/// What a process of some name shows.
#[derive(Debug, PartialEq, Eq)]
pub struct Process {
    /// Its command line; empty if it may not be looked at.
    pub words: Vec<String>,
    /// Its control group in each hierarchy, as seen from here.
    pub cgroups: Vec<String>,
}

/// Shows all processes whose name is `name` (at most 15 bytes, as the kernel keeps it), in no order.
///
/// # Errors
///
/// When the processes cannot be listed. One that ends meanwhile is not there.
pub fn named(proc_root: &Path, name: &str, mut each: impl FnMut(Process)) -> io::Result<()> {
    for entry in fs::read_dir(proc_root)? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str());
        if !number.is_some_and(|name| name.bytes().all(|byte| byte.is_ascii_digit())) {
            continue;
        }
        let is_it = read(&path.join("comm")).is_ok_and(|comm| comm.trim_ascii() == name.as_bytes());
        if is_it {
            each(Process {
                words: words(&read(&path.join("cmdline")).unwrap_or_default()),
                cgroups: cgroups(&read(&path.join("cgroup")).unwrap_or_default()),
            });
        }
    }
    Ok(())
}

fn words(line: &[u8]) -> Vec<String> {
    let words = line.split(|byte| *byte == 0);
    words
        .filter(|word| !word.is_empty())
        .map(|word| String::from_utf8_lossy(word).into_owned())
        .collect()
}

/// A line is `number:controllers:path`.
fn cgroups(lines: &[u8]) -> Vec<String> {
    let lines = String::from_utf8_lossy(lines);
    let paths = lines.lines().filter_map(|line| line.splitn(3, ':').nth(2));
    paths.map(str::to_owned).collect()
}

fn read(path: &Path) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test's own files")]

    use super::*;
    use std::path::PathBuf;

    fn all(proc_root: &Path, name: &str) -> Vec<Process> {
        let mut found = Vec::new();
        named(proc_root, name, |process| found.push(process)).unwrap();
        found
    }

    fn process(root: &Path, number: &str, comm: &str, line: &[u8]) -> PathBuf {
        let process = root.join(number);
        fs::create_dir(&process).unwrap();
        fs::write(process.join("comm"), comm).unwrap();
        fs::write(process.join("cmdline"), line).unwrap();
        process
    }

    #[test]
    fn a_process_is_found_by_its_name_and_what_is_none_is_passed_over() {
        let dir = tempfile::tempdir().unwrap();
        process(dir.path(), "1", "systemd\n", b"/sbin/init\0");
        let line = b"/koordlet\0--feature-gates=AllAlpha=true\0-v=4\0";
        let koordlet = process(dir.path(), "20", "koordlet\n", line);
        let lines = "4:cpu,cpuacct:/kubepods/pod1/a:b\n0::/kubepods/pod1\n";
        fs::write(koordlet.join("cgroup"), lines).unwrap();
        process(dir.path(), "21", "koordlet-x\n", b"/other\0");
        process(dir.path(), "self", "koordlet\n", b"/not-a-number\0");
        // One that ended between two looks has no file any more.
        fs::create_dir(dir.path().join("22")).unwrap();
        let expected = Process {
            words: ["/koordlet", "--feature-gates=AllAlpha=true", "-v=4"]
                .map(str::to_owned)
                .into(),
            cgroups: ["/kubepods/pod1/a:b", "/kubepods/pod1"]
                .map(str::to_owned)
                .into(),
        };
        assert_eq!(all(dir.path(), "koordlet"), [expected]);
        assert!(named(&dir.path().join("none"), "koordlet", |_| {}).is_err());
    }

    #[test]
    fn of_a_command_line_without_end_the_beginning_is_read() {
        let dir = tempfile::tempdir().unwrap();
        process(dir.path(), "7", "koordlet\n", &b"a\0".repeat(1 << 20));
        let found = all(dir.path(), "koordlet");
        assert_eq!(found[0].words.len(), 32_768);
    }

    #[test]
    fn our_own_process_is_found_here() {
        let name = fs::read_to_string("/proc/self/comm").unwrap();
        let own: Vec<String> = std::env::args().collect();
        let found = all(Path::new("/proc"), name.trim());
        let own = found.iter().find(|it| it.words == own).unwrap();
        assert!(!own.cgroups.is_empty());
    }
}

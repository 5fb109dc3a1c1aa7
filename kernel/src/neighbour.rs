//! Other processes of this machine, as far as they have to be known.
//!
//! A process says itself what it is called and how it was started, and may say megabytes of it: what
//! is read of one is bounded, and only one is held at a time. Where it is and whose, it cannot say:
//! that is the kernel's word.
//!
//! The kernel's word of where a process is holds for what runs. A new one is shown in the root of
//! every hierarchy until its parent is done with forking it (Linux 5.7 and newer), and one that ends
//! is shown there in those of cgroup v1 from then on, as a zombie for as long as nobody reaps it.
//!
//! A command line is read from the memory of its process, which may have it come from a file system
//! that never answers: only who is trusted is asked for it. All else the kernel answers at once.

use crate::task::field;
use rustix::{
    fs::{Mode, OFlags, ResolveFlags},
    io::Errno,
};
use std::{
    fs::{self, File},
    io::{self, Read},
    os::fd::OwnedFd,
    path::Path,
};

/// What is read of a file of one process, in bytes.
const MAX_FILE: u64 = 64 << 10;

/// From `linux/sched.h`: set for good when a thread begins to exit, before anything else of it ends.
const PF_EXITING: u64 = 0x4;

/// What a process of some name shows.
#[derive(Debug, PartialEq, Eq)]
pub struct Process {
    /// Its number, as that `/proc` has it.
    pub id: u32,
    /// Its control group in each hierarchy, as seen from here.
    pub cgroups: Vec<String>,
    /// Its command line, at least a word; `None` if it was not asked for it.
    pub words: Option<Vec<String>>,
    /// It has started who asks, or who has.
    pub has_us_run: bool,
}

/// Shows all processes of root's whose name is `name` (at most 15 bytes, as the kernel keeps it) but the one
/// that asks, in no order. One is root's if that started it, too: what is set-user-ID may be called by
/// anybody, by any name. Those in control groups that are `trusted` are asked for their command line.
///
/// # Errors
///
/// When it cannot be known who they are. One that ends meanwhile, or is hidden, is not there.
pub fn of_root(
    proc_root: &Path,
    name: &str,
    trusted: impl Fn(&[String]) -> bool,
    each: impl FnMut(Process),
) -> io::Result<()> {
    of_root_called(proc_root, |it| it == name.as_bytes(), trusted, each)
}

/// The same of those whose name `is_meant`.
///
/// # Errors
///
/// As above.
pub fn of_root_called(
    proc_root: &Path,
    is_meant: impl Fn(&[u8]) -> bool,
    trusted: impl Fn(&[String]) -> bool,
    mut each: impl FnMut(Process),
) -> io::Result<()> {
    let line = own_line(proc_root);
    for entry in fs::read_dir(proc_root)? {
        let path = entry?.path();
        let number = path.file_name().and_then(|name| name.to_str());
        let Some(id) = number.and_then(|number| number.parse::<u32>().ok()) else {
            continue;
        };
        if line.first() == Some(&id) {
            continue;
        }
        match look((path.as_path(), id), &is_meant, &trusted) {
            Ok(Some(process)) => each(Process {
                has_us_run: line.contains(&id),
                ..process
            }),
            Ok(None) => {}
            Err(error) if is_of_that_one_alone(&error) => {}
            Err(error) => return Err(error),
        }
    }
    Ok(())
}

/// Whether what a process finds at `theirs` is what we find at `ours`; `None` where that is not to be seen.
#[must_use]
pub fn is_same_file((proc_root, id): (&Path, u32), theirs: &Path, ours: &Path) -> Option<bool> {
    let flags = OFlags::PATH | OFlags::CLOEXEC;
    let none = Mode::empty();
    let root = proc_root.join(id.to_string()).join("root");
    let root = rustix::fs::open(root, flags | OFlags::DIRECTORY, none).ok()?;
    // So that a link in it leads to where it leads that process.
    let within = ResolveFlags::IN_ROOT;
    let theirs = match rustix::fs::openat2(&root, theirs, flags, none, within) {
        // Before Linux 5.6, or forbidden: an absolute link leads from our own root.
        Err(Errno::NOSYS | Errno::PERM) => {
            let below = theirs.strip_prefix("/").unwrap_or(theirs);
            rustix::fs::openat(&root, below, flags, none)
        }
        opened => opened,
    };
    let theirs = rustix::fs::fstat(theirs.ok()?).ok()?;
    let ours = rustix::fs::open(ours, flags, none).ok()?;
    let ours = rustix::fs::fstat(ours).ok()?;
    Some((theirs.st_dev, theirs.st_ino) == (ours.st_dev, ours.st_ino))
}

/// Who asks, and who has had it started, each by its number in this `/proc`: in that of another pid
/// namespace we have another one than we know.
fn own_line(proc_root: &Path) -> Vec<u32> {
    let own = fs::read_link(proc_root.join("self")).ok();
    let mut next = own.and_then(|own| own.to_str()?.parse::<u32>().ok());
    let mut line = Vec::new();
    while let Some(id) = next.filter(|id| !line.contains(id)) {
        line.push(id);
        let stat = fs::read(proc_root.join(id.to_string()).join("stat"));
        next = stat
            .ok()
            .and_then(|stat| parent(&String::from_utf8_lossy(&stat)));
    }
    line
}

/// A process, if it is one of root's that is called so and runs.
fn look(
    (path, id): (&Path, u32),
    is_meant: impl Fn(&[u8]) -> bool,
    trusted: impl Fn(&[String]) -> bool,
) -> io::Result<Option<Process>> {
    let flags = OFlags::PATH | OFlags::DIRECTORY | OFlags::CLOEXEC;
    // Everything is asked of this one, whoever has its number next.
    let process = rustix::fs::open(path, flags, Mode::empty())?;
    if !is_meant(read(&process, "comm")?.trim_ascii()) {
        return Ok(None);
    }
    // In this order: it is where it is said to be if it had run before and did not end before it was
    // asked.
    let status = read(&process, "status")?;
    let cgroups = cgroups(&read(&process, "cgroup")?);
    let stat = read(&process, "stat")?;
    let (status, stat) = (
        String::from_utf8_lossy(&status),
        String::from_utf8_lossy(&stat),
    );
    if !is_roots(&status) || !has_run(&status) || is_exiting(&stat) {
        return Ok(None);
    }
    let words = match trusted(&cgroups) {
        true => Some(words(&read(&process, "cmdline")?)),
        false => None,
    };
    // Without a word its memory is gone.
    let is_there = words.as_ref().is_none_or(|words| !words.is_empty());
    Ok(is_there.then_some(Process {
        id,
        cgroups,
        words,
        has_us_run: false,
    }))
}

/// Whether an error says only that this process ended, or that it is hidden from us.
fn is_of_that_one_alone(error: &io::Error) -> bool {
    let errno = Errno::from_io_error(error);
    [Errno::NOENT, Errno::SRCH, Errno::ACCESS, Errno::PERM]
        .map(Some)
        .contains(&errno)
}

/// By all four of its user IDs, as our user namespace has them.
fn is_roots(status: &str) -> bool {
    field(status, "Uid").is_some_and(|ids| ids.split_whitespace().eq(["0"; 4]))
}

/// Whether it has ever left a CPU.
fn has_run(status: &str) -> bool {
    let switches = ["voluntary_ctxt_switches", "nonvoluntary_ctxt_switches"];
    let counted = |name: &&str| field(status, name).is_some_and(|count| count != "0");
    switches.iter().any(counted)
}

/// Whether it has begun to end; what cannot be read counts as that.
fn is_exiting(stat: &str) -> bool {
    let flags = behind_name(stat).nth(6);
    let flags = flags.and_then(|flags| flags.parse::<u64>().ok());
    flags.is_none_or(|flags| flags & PF_EXITING != 0)
}

/// Who has started it, or has taken it over from whoever did.
fn parent(stat: &str) -> Option<u32> {
    behind_name(stat).nth(1)?.parse().ok()
}

/// The fields of a process from its state on. The name in brackets before them may hold blanks and
/// brackets: count from the last bracket on.
fn behind_name(stat: &str) -> impl Iterator<Item = &str> {
    let fields = stat.rsplit_once(')').map(|(_, fields)| fields);
    fields.unwrap_or_default().split_ascii_whitespace()
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

fn read(process: &OwnedFd, file: &str) -> io::Result<Vec<u8>> {
    let flags = OFlags::RDONLY | OFlags::CLOEXEC;
    let file = rustix::fs::openat(process, file, flags, Mode::empty())?;
    let mut bytes = Vec::new();
    File::from(file).take(MAX_FILE).read_to_end(&mut bytes)?;
    Ok(bytes)
}

#[cfg(test)]
mod tests {
    #![expect(clippy::disallowed_methods, reason = "a test's own files")]

    use super::*;
    use std::{
        path::PathBuf,
        process::{Command, Stdio},
    };

    const STATUS: &str = "Name:\tkoordlet\nUid:\t0\t0\t0\t0\nvoluntary_ctxt_switches:\t9\n\
                          nonvoluntary_ctxt_switches:\t0\n";
    const STAT: &str = "20 (koordlet) S 1 20 20 0 -1 4194560 100 0 0 0 250 75 9 9 20 0 1 0 5 6 7\n";

    fn all(proc_root: &Path, name: &str) -> Vec<Process> {
        let mut found = Vec::new();
        of_root(proc_root, name, |_| true, |process| found.push(process)).unwrap();
        found
    }

    fn process(root: &Path, number: &str, comm: &str, line: &[u8]) -> PathBuf {
        let process = root.join(number);
        fs::create_dir(&process).unwrap();
        for (file, text) in [
            ("comm", comm.as_bytes()),
            ("cmdline", line),
            ("status", STATUS.as_bytes()),
            ("cgroup", b"0::/\n"),
            ("stat", STAT.as_bytes()),
        ] {
            fs::write(process.join(file), text).unwrap();
        }
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
        let words = ["/koordlet", "--feature-gates=AllAlpha=true", "-v=4"];
        let expected = Process {
            id: 20,
            cgroups: ["/kubepods/pod1/a:b", "/kubepods/pod1"]
                .map(str::to_owned)
                .into(),
            words: Some(words.map(str::to_owned).into()),
            has_us_run: false,
        };
        assert_eq!(all(dir.path(), "koordlet"), [expected]);
        let nowhere = dir.path().join("none");
        assert!(of_root(&nowhere, "koordlet", |_| true, |_| {}).is_err());
    }

    #[test]
    fn who_asks_is_none_of_the_others() {
        let dir = tempfile::tempdir().unwrap();
        process(dir.path(), "20", "10-koord-runtim\n", b"/plugin\0");
        process(dir.path(), "21", "koord-runtime-p\n", b"/proxy\0");
        process(dir.path(), "22", "koord-other\n", b"/other\0");
        let found = || {
            let mut found = Vec::new();
            let is_meant = |name: &[u8]| name.windows(12).any(|part| part == b"koord-runtim");
            let each = |process: Process| found.push(process.id);
            of_root_called(dir.path(), is_meant, |_| true, each).unwrap();
            found.sort_unstable();
            found
        };
        assert_eq!(found(), [20, 21]);
        std::os::unix::fs::symlink("21", dir.path().join("self")).unwrap();
        assert_eq!(found(), [20]);
    }

    #[test]
    fn who_has_had_us_started_is_told_from_the_others() {
        let dir = tempfile::tempdir().unwrap();
        for (number, parent) in [("20", "1"), ("21", "20"), ("22", "21"), ("23", "20")] {
            let process = process(dir.path(), number, "koordlet\n", b"/it\0");
            let stat = STAT.replace("S 1 ", &format!("S {parent} "));
            fs::write(process.join("stat"), stat).unwrap();
        }
        std::os::unix::fs::symlink("22", dir.path().join("self")).unwrap();
        let mut found: Vec<_> = all(dir.path(), "koordlet")
            .iter()
            .map(|it| (it.id, it.has_us_run))
            .collect();
        found.sort_unstable();
        assert_eq!(found, [(20, true), (21, true), (23, false)]);
    }

    #[test]
    fn a_file_is_the_same_by_what_it_is_and_not_by_its_path() {
        let dir = tempfile::tempdir().unwrap();
        let root = dir.path().join("20/root");
        fs::create_dir_all(root.join("host")).unwrap();
        let ours = dir.path().join("ours.sock");
        fs::write(&ours, "").unwrap();
        fs::hard_link(&ours, root.join("host/it.sock")).unwrap();
        // Where it leads whose root that is.
        std::os::unix::fs::symlink("/host/it.sock", root.join("it")).unwrap();
        fs::write(root.join("ours.sock"), "").unwrap();
        let is_same = |theirs: &str| is_same_file((dir.path(), 20), Path::new(theirs), &ours);
        assert_eq!(is_same("/host/it.sock"), Some(true));
        assert_eq!(is_same("/it"), Some(true));
        assert_eq!(is_same("/ours.sock"), Some(false));
        assert_eq!(is_same("/not/there"), None);
        let of_none = is_same_file((dir.path(), 21), Path::new("/ours.sock"), &ours);
        assert_eq!(of_none, None);
    }

    #[test]
    fn who_is_not_roots_or_not_trusted_is_not_asked_for_its_command_line() {
        let dir = tempfile::tempdir().unwrap();
        let process = process(dir.path(), "20", "koordlet\n", b"");
        // Whoever reads this fails.
        fs::remove_file(process.join("cmdline")).unwrap();
        fs::create_dir(process.join("cmdline")).unwrap();
        let look = |trusted: bool| {
            let mut found = Vec::new();
            let each = |process| found.push(process);
            of_root(dir.path(), "koordlet", |_| trusted, each).map(|()| found)
        };
        let error = look(true).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
        let unasked = Process {
            id: 20,
            cgroups: vec!["/".to_owned()],
            words: None,
            has_us_run: false,
        };
        assert_eq!(look(false).unwrap(), [unasked]);
        let anybodys = STATUS.replace("\t0\t0\t0\t0", "\t1000\t1000\t1000\t1000");
        fs::write(process.join("status"), anybodys).unwrap();
        assert!(look(true).unwrap().is_empty());
    }

    #[test]
    fn one_that_is_not_roots_or_not_where_it_is_said_to_be_is_passed_over() {
        let with = |file: &str, from: &str, to: &str| {
            let dir = tempfile::tempdir().unwrap();
            let process = process(dir.path(), "20", "koordlet\n", b"/koordlet\0");
            let text = fs::read_to_string(process.join(file)).unwrap();
            assert!(text.contains(from));
            fs::write(process.join(file), text.replace(from, to)).unwrap();
            all(dir.path(), "koordlet").len()
        };
        assert_eq!(with("comm", "koordlet", "koordlet"), 1);
        // Anybody's.
        assert_eq!(
            with("status", "\t0\t0\t0\t0", "\t65534\t65534\t65534\t65534"),
            0
        );
        // Set-user-ID, called by anybody.
        assert_eq!(with("status", "\t0\t0\t0\t0", "\t1000\t0\t0\t0"), 0);
        assert_eq!(with("status", "Uid", "Other"), 0);
        // Being forked.
        assert_eq!(with("status", "switches:\t9", "switches:\t0"), 0);
        // Ending, though its state does not say so yet; a zombie.
        assert_eq!(with("stat", "4194560", "4194564"), 0);
        assert_eq!(
            with("stat", "S 1 20 20 0 -1 4194560", "Z 1 20 20 0 -1 4227084"),
            0
        );
        assert_eq!(with("stat", ") S", " S"), 0);
        // One whose memory is gone says nothing of how it was started.
        assert_eq!(with("cmdline", "/koordlet", ""), 0);
    }

    #[test]
    fn where_a_process_cannot_be_asked_for_a_reason_of_ours_nothing_is_known() {
        let dir = tempfile::tempdir().unwrap();
        let process = process(dir.path(), "20", "koordlet\n", b"/koordlet\0");
        // As any other error, but those by which one process is gone or hidden.
        fs::remove_file(process.join("comm")).unwrap();
        fs::create_dir(process.join("comm")).unwrap();
        let error = of_root(dir.path(), "koordlet", |_| true, |_| {}).unwrap_err();
        assert_eq!(error.kind(), io::ErrorKind::IsADirectory);
    }

    #[test]
    fn of_a_command_line_without_end_the_beginning_is_read() {
        let dir = tempfile::tempdir().unwrap();
        process(dir.path(), "7", "koordlet\n", &b"a\0".repeat(1 << 20));
        let found = all(dir.path(), "koordlet");
        assert_eq!(found[0].words.as_ref().unwrap().len(), 32_768);
    }

    #[test]
    fn a_process_that_runs_is_found_here_if_it_is_roots_and_its_zombie_is_not() {
        let mut child = Command::new("cat")
            .arg("koord-neighbour")
            .arg("-")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(Stdio::null())
            .spawn()
            .unwrap();
        let line = ["cat", "koord-neighbour", "-"];
        let is_there = || {
            all(Path::new("/proc"), "cat")
                .iter()
                .any(|it| it.words.as_ref().is_some_and(|words| *words == line))
        };
        let is_root = rustix::process::getuid().is_root();
        let stat = || fs::read_to_string(format!("/proc/{}/stat", child.id())).unwrap();
        // It may take a while to start, and to end.
        let within = |what: &dyn Fn() -> bool| {
            (0..6_000).any(|_| {
                std::thread::sleep(std::time::Duration::from_millis(10));
                what()
            })
        };
        let started = || {
            let line = fs::read(format!("/proc/{}/cmdline", child.id())).unwrap();
            line == b"cat\0koord-neighbour\0-\0"
        };
        assert!(within(&|| started() && (!is_root || is_there())));
        assert_eq!(is_there(), is_root);
        assert!(!is_exiting(&stat()));
        rustix::process::kill_process(
            rustix::process::Pid::from_child(&child),
            rustix::process::Signal::KILL,
        )
        .unwrap();
        assert!(within(&|| is_exiting(&stat())));
        assert!(!is_there());
        child.wait().unwrap();
    }
}

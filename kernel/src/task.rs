//! Processes as `/proc` tells them.

use crate::core_sched::Tid;
use koord_model::{CgroupPath, OomScoreAdj};
use rustix::{
    fs::{Mode, OFlags},
    io::Errno,
};
use std::{
    fs::File,
    io::{self, Write},
    path::{Path, PathBuf},
};

/// A mounted `/proc`.
#[derive(Clone, Debug)]
pub struct Procfs {
    root: PathBuf,
}

/// How soon a process is killed for want of memory, to be written. It stays that of the process that
/// it was opened for, even if another has its number by now.
#[derive(Debug)]
pub struct OomScoreFile(File);

/// The name that the kernel gives the shims of containerd, of which it keeps 15 characters.
const SHIM: &str = "containerd-shim";

// === impl Procfs ===

impl Procfs {
    /// The one at `root`, which is `/proc` on a node.
    pub fn at(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
        }
    }

    /// The process that started the one of this thread, or has taken it over; `None` for the first of all and
    /// what that has.
    ///
    /// # Errors
    ///
    /// When what `/proc` says of the thread cannot be read, as of one that has ended.
    pub fn parent_of(&self, thread: Tid) -> io::Result<Option<Tid>> {
        let status = self.status(thread)?;
        let parent = field(&status, "PPid").and_then(|it| it.parse().ok());
        Ok(parent.filter(|parent| *parent > 1))
    }

    /// Whether a process is a shim of containerd: whatever it starts belongs to the same pod.
    pub fn is_shim(&self, process: Tid) -> bool {
        let status = self.status(process).unwrap_or_default();
        field(&status, "Name") == Some(SHIM)
    }

    /// Whether a thread is one of a process that is a shim of containerd; not one that has ended.
    ///
    /// # Errors
    ///
    /// When what `/proc` says of the thread cannot be read now.
    pub fn is_of_shim(&self, thread: Tid, shim: Tid) -> io::Result<bool> {
        let status = unless_ended(self.status(thread))?;
        Ok(field(&status, "Tgid") == Some(&*shim.to_string()) && self.is_shim(shim))
    }

    /// Whether a thread is in a container's control group or in one below it; not one that has ended.
    ///
    /// By the last name of the path, which has the container's id: what the kernel puts before that depends
    /// on the namespace that we are in. From a namespace of our own it shows nothing of our own container's
    /// path.
    ///
    /// # Errors
    ///
    /// When what `/proc` says of the thread cannot be read now.
    pub fn is_within(&self, thread: Tid, at: &CgroupPath) -> io::Result<bool> {
        let shown = std::fs::read(self.root.join(format!("{thread}/cgroup")));
        let shown = unless_ended(shown)?;
        // Each line is of a hierarchy: its number, its controllers, and the path, whose names are what the
        // container likes.
        let lines = shown.split(|byte| *byte == b'\n');
        let paths = lines.filter_map(|line| line.splitn(3, |byte| *byte == b':').nth(2));
        let mut names = paths.flat_map(|path| path.split(|byte| *byte == b'/'));
        let own = at.file_name();
        Ok(own.is_none_or(|own| names.any(|name| name == own.as_bytes())))
    }

    /// The threads of a process.
    ///
    /// # Errors
    ///
    /// When their directory cannot be opened, as of a process that has ended. What of it cannot be listed
    /// after that is left out.
    pub fn threads_of(&self, process: Tid) -> io::Result<Vec<Tid>> {
        let entries = std::fs::read_dir(self.root.join(format!("{process}/task")))?;
        let names = entries.filter_map(|entry| entry.ok()?.file_name().into_string().ok());
        Ok(names.filter_map(|name| name.parse().ok()).collect())
    }

    /// How soon a process is killed for want of memory, from −1,000 to 1,000.
    ///
    /// # Errors
    ///
    /// When that cannot be read, as of a process that has ended, or is no number of that range
    /// ([`io::ErrorKind::InvalidData`]).
    pub fn oom_score_adj(&self, process: Tid) -> io::Result<OomScoreAdj> {
        let text = std::fs::read_to_string(self.oom_score_path(process))?;
        let score = text.trim().parse().ok();
        let score = score.and_then(|number| OomScoreAdj::new(number).ok());
        score.ok_or_else(|| io::ErrorKind::InvalidData.into())
    }

    /// The same, to be written.
    ///
    /// # Errors
    ///
    /// When the file cannot be opened, as that of a process that has ended.
    pub fn open_oom_score_adj(&self, process: Tid) -> io::Result<OomScoreFile> {
        let flags = OFlags::WRONLY | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        let file = rustix::fs::open(self.oom_score_path(process), flags, Mode::empty())?;
        Ok(OomScoreFile(file.into()))
    }

    fn oom_score_path(&self, process: Tid) -> PathBuf {
        self.root.join(format!("{process}/oom_score_adj"))
    }

    fn status(&self, thread: Tid) -> io::Result<String> {
        std::fs::read_to_string(self.root.join(format!("{thread}/status")))
    }
}

// === impl OomScoreFile ===

impl OomScoreFile {
    /// Gives the process a score. Less than the least that somebody with `CAP_SYS_RESOURCE` gave it
    /// takes that capability.
    ///
    /// # Errors
    ///
    /// When the kernel refuses it, as it does without that capability.
    pub fn write(mut self, score: OomScoreAdj) -> io::Result<()> {
        self.0.write_all(score.to_string().as_bytes())
    }
}

/// What was read of a process; nothing of one that has ended.
fn unless_ended<T: Default>(read: io::Result<T>) -> io::Result<T> {
    match read {
        Err(error) if error.raw_os_error() == Some(Errno::SRCH.raw_os_error()) => Ok(T::default()),
        Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(T::default()),
        read => read,
    }
}

/// What a process's `status` says of this.
pub(crate) fn field<'a>(status: &'a str, name: &str) -> Option<&'a str> {
    let mut lines = status.lines().filter_map(|line| line.split_once(':'));
    let (_, value) = lines.find(|(key, _)| *key == name)?;
    Some(value.trim())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[expect(clippy::disallowed_methods, reason = "a /proc of the test's own")]
    fn procfs(processes: &[(Tid, &str, Tid)]) -> (tempfile::TempDir, Procfs) {
        let directory = tempfile::tempdir().unwrap();
        for (process, name, parent) in processes {
            let own = directory.path().join(process.to_string());
            fs::create_dir_all(own.join("task").join(process.to_string())).unwrap();
            let status =
                format!("Name:\t{name}\nState:\tS (sleeping)\nTgid:\t{process}\nPPid:\t{parent}\n");
            fs::write(own.join("status"), status).unwrap();
        }
        let procfs = Procfs::at(directory.path());
        (directory, procfs)
    }

    #[test]
    fn only_a_shim_of_containerd_stands_for_its_pod() {
        let (_directory, procfs) = procfs(&[
            (1, "systemd", 0),
            (20, "containerd-shim", 1),
            (21, "pause", 20),
            (30, "conmon", 1),
            (31, "pause", 30),
            (40, "containerd-shim", 0),
            (41, "orphan", 1),
        ]);
        for (process, parent, is_shim) in [
            (20, None, true),
            (21, Some(20), false),
            (31, Some(30), false),
            (40, None, true),
            (41, None, false),
        ] {
            assert_eq!(procfs.parent_of(process).unwrap(), parent, "{process}");
            assert_eq!(procfs.is_shim(process), is_shim, "{process}");
        }
        assert!(!procfs.is_shim(30) && !procfs.is_shim(99));
        let gone = procfs.parent_of(99).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    #[expect(clippy::disallowed_methods, reason = "a /proc of the test's own")]
    fn who_is_in_a_container_or_of_a_shim_is_told_from_others() {
        let (directory, procfs) = procfs(&[(20, "containerd-shim", 1), (30, "conmon", 1)]);
        for (thread, shim, is_of_shim) in [
            (20, 20, true),
            (30, 30, false),
            (30, 20, false),
            (99, 20, false),
        ] {
            assert_eq!(procfs.is_of_shim(thread, shim).unwrap(), is_of_shim);
        }
        let at = CgroupPath::parse("kubepods/pod1/c1").unwrap();
        let is_within = |shown: &str| {
            fs::write(directory.path().join("20/cgroup"), shown).unwrap();
            procfs.is_within(20, &at).unwrap()
        };
        // On v2, on v1, in groups of its own, and from a namespace of ours.
        assert!(is_within("0::/kubepods/pod1/c1\n"));
        assert!(is_within(
            "2:cpu,cpuacct:/kubepods/pod1/c1\n1:name=systemd:/\n"
        ));
        assert!(is_within("0::/kubepods/pod1/c1/a:b/c\n"));
        assert!(is_within("0::/../../pod1/c1\n"));
        assert!(!is_within("0::/kubepods/pod1/c11\n"));
        assert!(!is_within("0::/system.slice/sshd.service\n"));
        assert!(!is_within("0::/kubepods/pod1/c1 (deleted)\n"));
        assert!(!procfs.is_within(99, &at).unwrap());
        // What cannot be read has not ended by that.
        fs::create_dir(directory.path().join("30/cgroup")).unwrap();
        assert!(procfs.is_within(30, &at).is_err());
    }

    #[test]
    fn the_score_of_a_process_is_read_and_written() {
        let procfs = Procfs::at(Path::new("/proc"));
        let own = Tid::try_from(std::process::id()).unwrap();
        let score = procfs.oom_score_adj(own).unwrap();
        // What it is already takes no capability.
        procfs
            .open_oom_score_adj(own)
            .unwrap()
            .write(score)
            .unwrap();
        assert_eq!(procfs.oom_score_adj(own).unwrap(), score);
        let gone = procfs.oom_score_adj(Tid::MAX).unwrap_err();
        assert_eq!(gone.kind(), io::ErrorKind::NotFound);
    }

    #[test]
    fn the_threads_of_a_process_are_its_tasks() {
        let (directory, procfs) = procfs(&[(20, "containerd-shim", 1)]);
        fs::create_dir(directory.path().join("20/task/23")).unwrap();
        let mut threads = procfs.threads_of(20).unwrap();
        threads.sort_unstable();
        assert_eq!(threads, [20, 23]);
    }
}

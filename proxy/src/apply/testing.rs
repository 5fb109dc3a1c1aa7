//! Pods whose shims have started them, for the tests of what threads have, and a tree on which memory
//! is reclaimed.

use koord_kernel::{
    cgroup::{Cgroups, Controller, Generation, Names, Note, Tree, Version},
    core_sched::{Cookie, CoreSched, Tid},
    fake::{Errno, FakeTree},
    task::Procfs,
};
use koord_model::CgroupPath;
use std::{
    fs, io,
    os::fd::OwnedFd,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
        mpsc,
    },
};
use tempfile::TempDir;

/// The shims of the pods `a` to `c`. The process of the container of each has the next number.
pub(super) const SHIMS: [(&str, Tid); 3] = [("a", 10), ("b", 20), ("c", 30)];

/// Processes by their control groups and by what `/proc` says of them.
pub(super) struct Processes {
    tree: FakeTree,
    procfs: TempDir,
}

// === impl Processes ===

impl Processes {
    /// The shims, and nothing yet that they started.
    pub(super) fn new() -> Self {
        let processes = Self {
            tree: FakeTree::new(Generation::V2, 4),
            procfs: tempfile::tempdir().unwrap(),
        };
        for (_, shim) in SHIMS {
            processes.describe(shim, "containerd-shim", 1);
        }
        processes.tree.show_in(processes.procfs.path());
        processes
    }

    pub(super) fn procfs(&self) -> Procfs {
        Procfs::at(self.procfs.path())
    }

    pub(super) fn cgroups(&self) -> Cgroups {
        Cgroups::over(self.tree.clone())
    }

    /// Has a pod's container made, without processes.
    pub(super) fn make(&self, pod: &str) {
        self.tree.make(&at(pod));
    }

    /// How often something was noted since the last call.
    pub(super) fn take_noted(&self) -> usize {
        self.tree.take_noted()
    }

    /// How often it was looked at who is in a group since the last call.
    pub(super) fn take_looks(&self) -> usize {
        self.tree.take_reads("cgroup.threads")
    }

    /// Has a process of a pod's container started by another.
    pub(super) fn start(&self, pod: &str, parent: Tid, process: Tid) {
        self.describe(process, "sh", parent);
        self.tree.make(&at(pod));
        let process = u32::try_from(process).unwrap();
        self.tree.enter(&at(pod), process);
    }

    /// Has every noting fail, until told that none does.
    pub(super) fn refuse_notes(&self, errno: Option<Errno>) {
        self.tree.refuse_notes(errno);
    }

    /// Has the next look at who is in a pod's container fail.
    pub(super) fn hide(&self, pod: &str, errno: Errno) {
        self.tree.fail_next_read(&at(pod), "cgroup.threads", errno);
    }

    /// Has a group below a pod's container, with a process in it, where no path leads.
    pub(super) fn start_unseen(&self, pod: &str, process: Tid) {
        let deep = at(pod).join("deep").unwrap();
        self.tree.make(&deep);
        self.tree.enter(&deep, u32::try_from(process).unwrap());
        // For as many looks as any test takes.
        for _ in 0..100 {
            let errno = Errno::NAMETOOLONG;
            self.tree.fail_next_read(&deep, "cgroup.threads", errno);
        }
    }

    /// Has a pod's container be closed to us.
    pub(super) fn close(&self, pod: &str) {
        self.tree.close(&at(pod));
    }

    /// A process has ended since it was listed, and one that is in no container has its number.
    #[expect(clippy::disallowed_methods, reason = "a /proc of this test's own")]
    pub(super) fn replace(&self, process: Tid) {
        let shown = self.procfs.path().join(format!("{process}/cgroup"));
        fs::write(shown, "0::/system.slice/containerd.service\n").unwrap();
    }

    /// Where a process is cannot be read.
    pub(super) fn obscure(&self, process: Tid) {
        let shown = self.procfs.path().join(format!("{process}/cgroup"));
        fs::remove_file(&shown).unwrap();
        fs::create_dir(shown).unwrap();
    }

    pub(super) fn end(&self, process: Tid) {
        self.tree.leave(u32::try_from(process).unwrap());
    }

    /// Has a pod's container go, without its processes.
    pub(super) fn remove(&self, pod: &str) {
        self.tree.remove(&at(pod));
    }

    #[expect(clippy::disallowed_methods, reason = "a /proc of this test's own")]
    fn describe(&self, process: Tid, name: &str, parent: Tid) {
        let own = self.procfs.path().join(process.to_string());
        fs::create_dir_all(own.join("task").join(process.to_string())).unwrap();
        let status = format!("Name:\t{name}\nTgid:\t{process}\nPPid:\t{parent}\n");
        fs::write(own.join("status"), status).unwrap();
    }
}

/// The control group of a pod's container.
pub(super) fn at(pod: &str) -> CgroupPath {
    CgroupPath::parse("pods").unwrap().join(pod).unwrap()
}

/// What everybody uses on a [`ReclaimingTree`].
const USED_BYTES: u64 = 1 << 30;

/// A tree on which everybody uses 1 GiB, and writing `memory.high` or a limit, or to a block device, takes
/// until the test says otherwise.
#[derive(Debug)]
pub(crate) struct ReclaimingTree {
    tree: FakeTree,
    files: &'static [&'static str],
    /// All groups, without one. Told is each write that takes time.
    only: Option<(CgroupPath, mpsc::Sender<()>)>,
    done: Mutex<mpsc::Receiver<()>>,
}

// === impl ReclaimingTree ===

impl ReclaimingTree {
    pub(crate) fn new(tree: FakeTree, done: mpsc::Receiver<()>) -> Self {
        Self {
            tree,
            files: &["memory.high", "memory.max"],
            only: None,
            done: Mutex::new(done),
        }
    }

    /// The same where that is so of what a block device has, and not of memory.
    pub(crate) fn of_devices(self) -> Self {
        Self {
            files: &["io.max"],
            ..self
        }
    }

    /// The same where it takes no time but for one group, for values below what is used. The test is
    /// told when such a write has `begun`.
    pub(crate) fn only_at(self, at: CgroupPath, begun: mpsc::Sender<()>) -> Self {
        Self {
            only: Some((at, begun)),
            ..self
        }
    }

    /// Whether writing this takes time.
    fn reclaims(&self, at: &CgroupPath, text: &str) -> bool {
        let Some((only, begun)) = &self.only else {
            return true;
        };
        let reclaims = only == at && text.parse::<u64>().is_ok_and(|bytes| bytes < USED_BYTES);
        if reclaims {
            begun.send(()).unwrap();
        }
        reclaims
    }
}

impl Tree for ReclaimingTree {
    fn version(&self) -> Version {
        self.tree.version()
    }

    fn generation(&self, controller: Controller) -> Option<Generation> {
        self.tree.generation(controller)
    }

    fn inode(&self, controller: Controller, at: &CgroupPath) -> io::Result<Option<u64>> {
        self.tree.inode(controller, at)
    }

    fn has_file(&self, controller: Controller, at: &CgroupPath, file: &str) -> io::Result<bool> {
        self.tree.has_file(controller, at, file)
    }

    fn read(&self, controller: Controller, at: &CgroupPath, file: &str) -> io::Result<String> {
        match file {
            "memory.current" => Ok(format!("{USED_BYTES}\n")),
            file => self.tree.read(controller, at, file),
        }
    }

    fn write(
        &self,
        controller: Controller,
        at: &CgroupPath,
        file: &str,
        text: &str,
    ) -> io::Result<()> {
        if self.files.contains(&file) && self.reclaims(at, text) {
            self.done.lock().unwrap().recv().unwrap();
        }
        self.tree.write(controller, at, file, text)
    }

    fn watch(&self, controller: Controller, at: &CgroupPath, file: &str) -> io::Result<OwnedFd> {
        self.tree.watch(controller, at, file)
    }

    fn children(&self, controller: Controller, at: &CgroupPath, most: usize) -> io::Result<Names> {
        self.tree.children(controller, at, most)
    }

    fn note(&self, controller: Controller, at: &CgroupPath, note: Note) -> io::Result<String> {
        self.tree.note(controller, at, note)
    }

    fn set_note(
        &self,
        controller: Controller,
        at: &CgroupPath,
        note: Note,
        text: &str,
    ) -> io::Result<()> {
        self.tree.set_note(controller, at, note, text)
    }
}

/// A kernel that says that a thread has no cookie when the test lets it, and gives none.
#[derive(Debug)]
pub(crate) struct SlowCores {
    said: Mutex<mpsc::Receiver<()>>,
    is_asked: Arc<AtomicBool>,
}

impl SlowCores {
    /// Until the test says so, for each thread, or has gone.
    pub(crate) fn until(said: mpsc::Receiver<()>) -> Self {
        Self {
            said: Mutex::new(said),
            is_asked: Arc::default(),
        }
    }

    /// Whether it was asked by now.
    pub(crate) fn is_asked(&self) -> Arc<AtomicBool> {
        self.is_asked.clone()
    }
}

impl CoreSched for SlowCores {
    fn cookie(&self, thread: Tid) -> io::Result<Option<Cookie>> {
        if thread > 0 {
            self.is_asked.store(true, SeqCst);
            self.said.lock().unwrap().recv().ok();
        }
        Ok(None)
    }

    fn create(&self, _: Tid) -> io::Result<()> {
        Ok(())
    }

    fn share(&self, _: Tid, _: Cookie, _: Tid) -> io::Result<()> {
        unreachable!("nobody has a cookie");
    }

    fn clear(&self, _: Tid) -> io::Result<()> {
        unreachable!("nobody has a cookie");
    }
}

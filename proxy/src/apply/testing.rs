//! Pods whose shims have started them, for the tests of what threads have.

use koord_kernel::{
    cgroup::{Cgroups, Generation},
    core_sched::Tid,
    fake::FakeTree,
    task::Procfs,
};
use koord_model::CgroupPath;
use std::fs;
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
        processes
    }

    pub(super) fn procfs(&self) -> Procfs {
        Procfs::at(self.procfs.path())
    }

    pub(super) fn cgroups(&self) -> Cgroups {
        Cgroups::over(self.tree.clone())
    }

    /// Has a process of a pod's container started by another.
    pub(super) fn start(&self, pod: &str, parent: Tid, process: Tid) {
        self.describe(process, "sh", parent);
        self.tree.make(&at(pod));
        let process = u32::try_from(process).unwrap();
        self.tree.enter(&at(pod), process);
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
        let status = format!("Name:\t{name}\nPPid:\t{parent}\n");
        fs::write(own.join("status"), status).unwrap();
    }
}

/// The control group of a pod's container.
pub(super) fn at(pod: &str) -> CgroupPath {
    CgroupPath::parse("pods").unwrap().join(pod).unwrap()
}

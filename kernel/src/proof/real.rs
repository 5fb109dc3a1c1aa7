//! The ground on a real kernel: groups of its own in the mounted hierarchies, removed at the end.
//!
//! It prepares and cleans by plain file calls, so that the code under test has no part in it.

use super::Ground;
use crate::cgroup::{Cgroups, Generation};
use koord_model::CgroupPath;
use std::{
    fs, io,
    path::{Path, PathBuf},
    process::{Child, Command, Stdio},
};

/// The hierarchies of a machine that has all three controllers in one version.
#[derive(Clone, Debug)]
pub struct Hierarchies {
    pub root: PathBuf,
    pub generation: Generation,
    /// Directories below the root: on v1 those with the controllers cpu, cpuset and memory; on v2
    /// the empty name.
    pub names: Vec<&'static str>,
}

/// Groups of one check.
#[derive(Debug)]
pub struct RealGround {
    cgroups: Cgroups,
    hierarchies: Hierarchies,
    base: CgroupPath,
    processes: Vec<Child>,
    /// In the order in which they were made.
    made: Vec<CgroupPath>,
}

// === impl Hierarchies ===

impl Hierarchies {
    /// Hierarchies of cgroup v1, which stand side by side.
    pub fn v1(root: &Path, names: &[&'static str]) -> Self {
        Self {
            root: root.to_owned(),
            generation: Generation::V1,
            names: names.to_owned(),
        }
    }

    /// The one hierarchy of cgroup v2.
    pub fn v2(root: &Path) -> Self {
        Self {
            root: root.to_owned(),
            generation: Generation::V2,
            names: vec![""],
        }
    }

    fn file(&self, hierarchy: &str, at: &CgroupPath, name: &str) -> PathBuf {
        let directory = self.root.join(hierarchy).join(at.as_path());
        directory.join(name)
    }
}

// === impl RealGround ===

impl RealGround {
    /// A group called `name` in each hierarchy.
    ///
    /// # Panics
    /// Without root, on a machine without CPUs 0 and 1, or if there is such a group already.
    pub fn new(hierarchies: Hierarchies, name: &str) -> Self {
        let cgroups = Cgroups::open(&hierarchies.root).unwrap_or_else(|error| panic!("{error:?}"));
        let base = CgroupPath::parse(name).expect("a name for a group");
        let mut ground = Self {
            cgroups,
            hierarchies,
            base: base.clone(),
            processes: Vec::new(),
            made: Vec::new(),
        };
        ground.make(&base);
        if ground.hierarchies.generation == Generation::V1 {
            ground.put("cpuset.cpus", &base, "0-1");
        }
        ground
    }

    /// Writes to a file in the hierarchy that has it.
    fn put(&self, file: &str, at: &CgroupPath, text: &str) {
        let files = self
            .hierarchies
            .names
            .iter()
            .map(|hierarchy| self.hierarchies.file(hierarchy, at, file));
        for file in files.filter(|file| file.exists()) {
            put(&file, text);
        }
    }
}

impl Ground for RealGround {
    fn cgroups(&self) -> &Cgroups {
        &self.cgroups
    }

    fn base(&self) -> &CgroupPath {
        &self.base
    }

    fn make(&mut self, at: &CgroupPath) {
        if let (Generation::V2, Some(parent)) = (self.hierarchies.generation, at.parent()) {
            self.put(
                "cgroup.subtree_control",
                &parent,
                "+cpu +cpuset +io +memory",
            );
        }
        for hierarchy in &self.hierarchies.names {
            let directory = self.hierarchies.file(hierarchy, at, "");
            done(&directory, fs::create_dir(&directory));
        }
        self.made.push(at.clone());
        if self.hierarchies.generation == Generation::V1 {
            self.put("cpuset.mems", at, "0");
        }
    }

    fn enter(&mut self, at: &CgroupPath) {
        let child = Command::new("sleep")
            .arg("600")
            .stdin(Stdio::null())
            .spawn()
            .expect("there is a program called sleep");
        let pid = child.id().to_string();
        self.processes.push(child);
        self.put("cgroup.procs", at, &pid);
    }

    fn leave(&mut self) {
        for mut child in self.processes.drain(..) {
            child.kill().expect("a child can be killed");
            child.wait().expect("a child can be waited for");
        }
    }

    fn remove(&mut self, at: &CgroupPath) {
        self.made.retain(|made| made != at);
        for hierarchy in &self.hierarchies.names {
            let directory = self.hierarchies.file(hierarchy, at, "");
            done(&directory, fs::remove_dir(&directory));
        }
    }
}

impl Drop for RealGround {
    fn drop(&mut self) {
        self.leave();
        while let Some(last) = self.made.last().cloned() {
            self.remove(&last);
        }
    }
}

#[expect(
    clippy::disallowed_methods,
    reason = "the code under test has no part in preparing its tests"
)]
fn put(file: &Path, text: &str) {
    done(file, fs::write(file, text));
}

#[track_caller]
fn done(path: &Path, result: io::Result<()>) {
    result.unwrap_or_else(|error| panic!("{}: {error} (this needs root)", path.display()));
}

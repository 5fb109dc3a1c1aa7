//! The checks on the fake tree.

use super::{
    CHECKS, Check, Ground,
    raw_writes_about_a_device_are_answered_as_the_script_says as about_a_device,
};
use crate::{
    cgroup::{Cgroups, Controller, Generation, Tree},
    fake::FakeTree,
};
use koord_model::{CgroupPath, DeviceNumber};

struct FakeGround {
    tree: FakeTree,
    cgroups: Cgroups,
    base: CgroupPath,
    pids: Vec<u32>,
}

impl FakeGround {
    fn new(generation: Generation) -> Self {
        let tree = FakeTree::new(generation, 2);
        let base = CgroupPath::parse("base").unwrap();
        tree.make(&base);
        if generation == Generation::V1 {
            let cpus = tree.write(Controller::Cpuset, &base, "cpuset.cpus", "0-1");
            cpus.unwrap();
        }
        Self {
            cgroups: Cgroups::over(tree.clone()),
            tree,
            base,
            pids: Vec::new(),
        }
    }
}

impl Ground for FakeGround {
    fn cgroups(&self) -> &Cgroups {
        &self.cgroups
    }

    fn base(&self) -> &CgroupPath {
        &self.base
    }

    fn make(&mut self, at: &CgroupPath) {
        self.tree.make(at);
    }

    fn enter(&mut self, at: &CgroupPath) {
        let pid = 100 + u32::try_from(self.pids.len()).unwrap();
        self.pids.push(pid);
        self.tree.enter(at, pid);
    }

    fn leave(&mut self) {
        for pid in self.pids.drain(..) {
            self.tree.leave(pid);
        }
    }

    fn remove(&mut self, at: &CgroupPath) {
        self.tree.remove(at);
    }
}

fn run_all(generation: Generation) {
    for Check { name, run } in CHECKS {
        println!("{name}");
        run(&mut FakeGround::new(generation));
    }
}

#[test]
fn the_fake_tree_of_cgroup_v1_passes_every_check() {
    run_all(Generation::V1);
}

#[test]
fn the_fake_tree_of_cgroup_v2_passes_every_check() {
    run_all(Generation::V2);
}

#[test]
fn the_fake_tree_of_cgroup_v2_answers_as_the_script_of_a_device_says() {
    let mut ground = FakeGround::new(Generation::V2);
    ground
        .tree
        .add_device("7:5".parse::<DeviceNumber>().unwrap());
    about_a_device(&mut ground);
}

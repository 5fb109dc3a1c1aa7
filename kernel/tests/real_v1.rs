//! The checks of `koord_kernel::proof` on this machine's own kernel. Needs root, two CPUs, and the
//! controllers cpu, cpuset and memory on cgroup v1; touches only groups of its own.
#![forbid(unsafe_code)]

use koord_kernel::{
    cgroup::{Cgroups, Controller, Generation, OsTree, Tree, Version},
    proof::{CHECKS, Hierarchies, RealGround},
};
use koord_model::CgroupPath;
use std::{path::Path, process};

const ROOT: &str = "/sys/fs/cgroup";

#[test]
fn this_kernel_passes_every_check_on_cgroup_v1() {
    let tree = OsTree::open(Path::new(ROOT)).unwrap();
    for controller in Controller::ALL {
        assert_eq!(
            tree.generation(*controller),
            Some(Generation::V1),
            "this tier needs {} on cgroup v1",
            controller.name()
        );
    }
    for check in CHECKS {
        println!("{}", check.name);
        let hierarchies = Hierarchies::v1(Path::new(ROOT), &["cpu", "cpuset", "memory"]);
        let name = format!("koord-kernel-test-{}-{}", process::id(), check.name);
        (check.run)(&mut RealGround::new(hierarchies, &name));
    }
}

#[test]
fn the_mounts_of_this_machine_are_told_apart() {
    let unified = Path::new(ROOT).join("unified/cgroup.controllers");
    let expected = if unified.exists() {
        Version::Hybrid
    } else {
        Version::V1
    };
    let cgroups = Cgroups::open(Path::new(ROOT)).unwrap();
    assert_eq!(cgroups.version(), expected);
    assert!(cgroups.exists(&CgroupPath::root()));
    // A hierarchy is no place where hierarchies are mounted.
    let error = Cgroups::open(&Path::new(ROOT).join("cpu")).unwrap_err();
    assert!(error.to_string().contains("none of the controllers"));
}

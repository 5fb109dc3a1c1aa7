//! The checks of `koord_kernel::proof` on this machine's own kernel. Needs root, two CPUs, and the
//! controllers cpu, cpuset and memory on cgroup v1; touches only groups of its own.
#![forbid(unsafe_code)]

use koord_kernel::{
    cgroup::{Cgroups, Controller, Generation, OsTree, Tree, Version},
    proof::{CHECKS, Hierarchies, RealGround},
};
use koord_model::{CgroupPath, MemoryLimit};
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

#[test]
#[expect(clippy::disallowed_methods, reason = "files for tests")]
fn memory_and_swap_together_make_room_for_memory_and_follow_it_down() {
    const MIB: u64 = 1 << 20;
    let name = format!("koord-kernel-test-{}-swap", process::id());
    let group = Path::new(ROOT).join("memory").join(&name);
    std::fs::create_dir(&group).unwrap();
    let both = ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"].map(|it| group.join(it));
    let held = || {
        let held = both.each_ref().map(std::fs::read_to_string);
        held.map(|text| text.unwrap().trim().to_owned())
    };
    // As a runtime leaves a container: without swap.
    both.iter()
        .for_each(|it| std::fs::write(it, "67108864").unwrap());
    let cgroups = Cgroups::open(Path::new(ROOT)).unwrap();
    let at = CgroupPath::parse(&name).unwrap();
    let unlimited = "9223372036854771712";
    let limits = [
        (MemoryLimit::Bytes(128 * MIB), ["134217728", "134217728"]),
        (MemoryLimit::Bytes(32 * MIB), ["33554432", "33554432"]),
        (MemoryLimit::Unlimited, [unlimited, unlimited]),
        // Who has left swap open finds it so.
        (MemoryLimit::Bytes(32 * MIB), ["33554432", unlimited]),
        (MemoryLimit::Bytes(64 * MIB), ["67108864", unlimited]),
    ];
    let results = limits.map(|(limit, expected)| {
        let written = cgroups
            .write(&at, &limit.into())
            .map(drop)
            .map_err(|it| it.errno());
        (limit, written, held(), expected)
    });
    std::fs::remove_dir(&group).unwrap();
    for (limit, written, held, expected) in results {
        assert_eq!(written, Ok(()), "{limit:?}");
        assert_eq!(held, expected, "{limit:?}");
    }
}

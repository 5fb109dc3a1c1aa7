//! The checks of `koord_kernel::proof` on this machine's own kernel. Needs root, two CPUs, loop
//! devices, and the controllers cpu, cpuset, memory and blkio on cgroup v1; touches only groups of its
//! own.
#![forbid(unsafe_code)]

use koord_kernel::{
    cgroup::{Cgroups, Controller, Generation, OsTree, Tree, Version},
    fake::FakeTree,
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
            controller.name(Generation::V1)
        );
    }
    for check in CHECKS {
        println!("{}", check.name);
        let hierarchies = Hierarchies::v1(Path::new(ROOT), &["cpu", "cpuset", "memory"]);
        let name = format!("koord-kernel-test-{}-{}", process::id(), check.name);
        (check.run)(&mut RealGround::new(hierarchies, &name));
    }
}

/// The last of the loop devices that a kernel has from its start: nobody has to have anything on it.
const DEVICE: &str = "7:7";

#[test]
fn lines_of_devices_and_notes_are_answered_as_by_the_fake_tree() {
    let names = ["cpu", "cpuset", "memory", "blkio"];
    let name = format!("koord-kernel-test-{}-devices", process::id());
    let ground = RealGround::new(Hierarchies::v1(Path::new(ROOT), &names), &name);
    let at = CgroupPath::parse(&name).unwrap();
    let real = OsTree::open(Path::new(ROOT)).unwrap();
    let fake = FakeTree::new(Generation::V1, 2);
    fake.make(&at);
    fake.add_device(DEVICE.parse().unwrap());
    for (file, text) in [
        ("blkio.throttle.read_bps_device", "7:7 1048576"),
        (
            "blkio.throttle.write_bps_device",
            "7:7 18446744073709551614",
        ),
        ("blkio.throttle.read_iops_device", "7:7 4294967294"),
        ("blkio.throttle.write_iops_device", "7:7 4294967295"),
        ("blkio.throttle.read_bps_device", "7:7 5 6"),
        ("blkio.throttle.read_bps_device", "7:7 max"),
        ("blkio.throttle.read_bps_device", "7:7 -1"),
        ("blkio.throttle.read_bps_device", "x"),
        ("blkio.throttle.read_bps_device", "7:99 5"),
        ("blkio.throttle.read_bps_device", "7:7 0"),
        ("blkio.throttle.write_bps_device", "7:7 0"),
        ("blkio.cost.weight", "7:7 50"),
    ] {
        let answer = |tree: &dyn Tree| {
            let written = tree.write(Controller::Io, &at, file, text);
            let shown = tree.read(Controller::Io, &at, file).ok();
            (written.map_err(|error| error.raw_os_error()), shown)
        };
        assert_eq!(answer(&real), answer(&fake), "{file} {text:?}");
    }
    for text in ["", "7:7 5\n8:0\n", "7:7\n", ""] {
        for tree in [&real as &dyn Tree, &fake] {
            tree.set_note(Controller::Io, &at, "test", text).unwrap();
            assert_eq!(tree.note(Controller::Io, &at, "test").unwrap(), text);
        }
    }
    drop(ground);
    assert!(
        real.note(Controller::Io, &at, "test").is_err(),
        "a note goes with its group"
    );
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
    assert!(cgroups.exists(&CgroupPath::root()).unwrap());
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

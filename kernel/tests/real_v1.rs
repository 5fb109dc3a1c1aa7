//! The checks of `koord_kernel::proof` on this machine's own kernel. Needs root, two CPUs, loop
//! devices, and the controllers cpu, cpuset, memory and blkio on cgroup v1; touches only groups of its
//! own.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

use koord_kernel::{
    cgroup::{Cgroups, Controller, Generation, Marked, Note, OsTree, Tree, Unseen, Version},
    fake::FakeTree,
    proof::{CHECKS, Hierarchies, RealGround},
};
use koord_model::{CgroupPath, MemoryLimit};
use rustix::{
    fs::{AtFlags, Mode, OFlags},
    thread::CapabilitySet,
};
use std::{
    fs::{self, Permissions},
    io,
    os::{
        fd::OwnedFd,
        unix::fs::{PermissionsExt as _, chown},
    },
    path::{Path, PathBuf},
    process,
    time::{Duration, Instant},
};

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

const NOTE: Note = Note::Originals;

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
            tree.set_note(Controller::Io, &at, NOTE, text).unwrap();
            assert_eq!(tree.note(Controller::Io, &at, NOTE).unwrap(), text);
        }
    }
    let directory = Path::new(ROOT).join("blkio").join(&name);
    fake.give_away(&at);
    chown(&directory, Some(65_534), None).unwrap();
    let refused = |error: io::Error| error.kind() == io::ErrorKind::Unsupported;
    let marks = Note::Marks(Marked::Files);
    for tree in [&real as &dyn Tree, &fake] {
        let taken = tree.set_note(Controller::Io, &at, NOTE, "7:7");
        assert!(refused(taken.unwrap_err()) && tree.note(Controller::Io, &at, NOTE).is_err());
        tree.set_note(Controller::Io, &at, marks, "io").unwrap();
        assert_eq!(tree.note(Controller::Io, &at, marks).unwrap(), "io");
    }
    chown(&directory, Some(0), None).unwrap();
    for (mode, is_taken) in [(0o775, false), (0o757, false), (0o755, true)] {
        fs::set_permissions(&directory, Permissions::from_mode(mode)).unwrap();
        let taken = real.set_note(Controller::Io, &at, NOTE, "7:7");
        assert_eq!(taken.is_ok(), is_taken, "{mode:o}");
    }
    drop(ground);
    assert!(
        real.note(Controller::Io, &at, NOTE).is_err(),
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

/// A group of its own whose memory may be limited, with and without swap.
struct Swapping {
    name: String,
    group: PathBuf,
}

#[expect(clippy::disallowed_methods, reason = "files for tests")]
impl Swapping {
    fn new(name: &str) -> Self {
        let name = format!("koord-kernel-test-{}-{name}", process::id());
        let group = Path::new(ROOT).join("memory").join(&name);
        std::fs::create_dir(&group).unwrap();
        Self { name, group }
    }

    fn files(&self) -> [PathBuf; 2] {
        ["memory.limit_in_bytes", "memory.memsw.limit_in_bytes"].map(|it| self.group.join(it))
    }

    /// Memory, and memory and swap together, as others write them.
    fn put(&self, limits: [&str; 2]) {
        for (file, limit) in self.files().iter().zip(limits) {
            std::fs::write(file, limit).unwrap();
        }
    }

    /// What both are after our limit was written, by a process that has just started.
    fn limit(&self, limit: MemoryLimit) -> [String; 2] {
        let at = CgroupPath::parse(&self.name).unwrap();
        let cgroups = Cgroups::open(Path::new(ROOT)).unwrap();
        cgroups.write(&at, &limit.into()).unwrap();
        let held = self.files().map(std::fs::read_to_string);
        held.map(|text| text.unwrap().trim().to_owned())
    }
}

impl Drop for Swapping {
    fn drop(&mut self) {
        std::fs::remove_dir(&self.group).ok();
    }
}

const MIB: u64 = 1 << 20;
const UNLIMITED: &str = "9223372036854771712";

#[test]
fn memory_and_swap_together_make_room_for_memory_and_follow_it_down() {
    let group = Swapping::new("swap");
    // As a runtime leaves a container: without swap.
    group.put(["67108864", "67108864"]);
    for (limit, expected) in [
        (MemoryLimit::Bytes(128 * MIB), ["134217728", "134217728"]),
        (MemoryLimit::Bytes(32 * MIB), ["33554432", "33554432"]),
        // It was us who opened swap.
        (MemoryLimit::Unlimited, [UNLIMITED, UNLIMITED]),
        (MemoryLimit::Bytes(128 * MIB), ["134217728", "134217728"]),
        (MemoryLimit::Unlimited, [UNLIMITED, UNLIMITED]),
        (MemoryLimit::Bytes(32 * MIB), ["33554432", "33554432"]),
    ] {
        assert_eq!(group.limit(limit), expected, "{limit:?}");
    }
}

#[test]
fn swap_that_could_not_be_closed_with_one_limit_is_with_the_next() {
    let group = Swapping::new("unclosed-swap");
    group.put(["67108864", "67108864"]);
    assert_eq!(group.limit(MemoryLimit::Unlimited), [UNLIMITED, UNLIMITED]);
    // As if the kernel had refused to close it with this limit of ours.
    group.put(["33554432", UNLIMITED]);
    for (limit, expected) in [
        (MemoryLimit::Bytes(16 * MIB), ["16777216", "16777216"]),
        (MemoryLimit::Unlimited, [UNLIMITED, UNLIMITED]),
        (MemoryLimit::Bytes(32 * MIB), ["33554432", "33554432"]),
    ] {
        assert_eq!(group.limit(limit), expected, "{limit:?}");
    }
}

#[test]
fn swap_that_others_have_left_open_stays_open() {
    let group = Swapping::new("open-swap");
    for (limit, expected) in [
        (MemoryLimit::Bytes(32 * MIB), ["33554432", UNLIMITED]),
        (MemoryLimit::Bytes(64 * MIB), ["67108864", UNLIMITED]),
        (MemoryLimit::Unlimited, [UNLIMITED, UNLIMITED]),
        (MemoryLimit::Bytes(32 * MIB), ["33554432", UNLIMITED]),
    ] {
        assert_eq!(group.limit(limit), expected, "{limit:?}");
    }
    // Closed by a runtime, opened by us, and then limited and opened by the runtime.
    group.put(["33554432", "33554432"]);
    assert_eq!(group.limit(MemoryLimit::Unlimited), [UNLIMITED, UNLIMITED]);
    group.put(["33554432", "67108864"]);
    assert_eq!(group.limit(MemoryLimit::Unlimited), [UNLIMITED, UNLIMITED]);
    let limited = group.limit(MemoryLimit::Bytes(32 * MIB));
    assert_eq!(limited, ["33554432", UNLIMITED]);
}

/// Groups one in the other, of names of these lengths, as who is in the first may make them.
struct Chain(Vec<(OwnedFd, String)>);

impl Chain {
    fn new(name: &str, lengths: &[usize]) -> Self {
        let mut above = open(Path::new(ROOT).join("cpu"));
        let mut made = Vec::new();
        let names = lengths.iter().map(|length| "x".repeat(*length));
        for name in [name.to_owned()].into_iter().chain(names) {
            rustix::fs::mkdirat(&above, &name, Mode::RWXU).unwrap();
            let flags = OFlags::PATH | OFlags::DIRECTORY;
            let below = rustix::fs::openat(&above, &name, flags, Mode::empty()).unwrap();
            made.push((above, name));
            above = below;
        }
        Self(made)
    }
}

impl Drop for Chain {
    fn drop(&mut self) {
        while let Some((above, name)) = self.0.pop() {
            rustix::fs::unlinkat(above, name, AtFlags::REMOVEDIR).ok();
        }
    }
}

fn open(path: PathBuf) -> OwnedFd {
    let flags = OFlags::PATH | OFlags::DIRECTORY;
    rustix::fs::open(path, flags, Mode::empty()).unwrap()
}

#[test]
fn groups_whose_paths_are_too_long_are_told_and_fail_nothing() {
    let name = format!("koord-kernel-test-{}-deep", process::id());
    let at = CgroupPath::parse(&name).unwrap();
    let cgroups = Cgroups::open(Path::new(ROOT)).unwrap();
    let later = Instant::now() + Duration::from_secs(3_600);
    // Of 3,802 bytes at most, and of what makes them 4,090: then the files in the last are beyond.
    let mut lengths = vec![250; 15];
    {
        let _chain = Chain::new(&name, &lengths);
        assert_eq!(cgroups.threads(&at, later).unwrap().unseen, None);
    }
    let above = name.len() + 15 * 251;
    lengths.extend([100, 4_090 - above - 102]);
    {
        let _chain = Chain::new(&name, &lengths);
        let found = cgroups.threads(&at, later).unwrap();
        assert_eq!(found.unseen, Some(Unseen::Long));
    }
    lengths.push(250);
    let _chain = Chain::new(&name, &lengths);
    let found = cgroups.processes(&at, later).unwrap();
    assert_eq!(found.unseen, Some(Unseen::Long));
}

/// What is found by one who may override no permissions, as a service may not.
fn without_overriding<T>(look: impl FnOnce() -> T) -> T {
    let before = rustix::thread::capabilities(None).unwrap();
    let mut without = before;
    let overriding = CapabilitySet::DAC_OVERRIDE | CapabilitySet::DAC_READ_SEARCH;
    without.effective.remove(overriding);
    rustix::thread::set_capabilities(None, without).unwrap();
    let found = look();
    rustix::thread::set_capabilities(None, before).unwrap();
    found
}

#[test]
fn groups_that_may_not_be_read_are_told_and_fail_nothing() {
    let name = format!("koord-kernel-test-{}-closed", process::id());
    let at = CgroupPath::parse(&name).unwrap();
    let cgroups = Cgroups::open(Path::new(ROOT)).unwrap();
    let later = Instant::now() + Duration::from_secs(3_600);
    let _chain = Chain::new(&name, &[1, 1]);
    for closed in ["x/x", "x", ""] {
        let closed = Path::new(ROOT).join("cpu").join(&name).join(closed);
        rustix::fs::chmod(closed, Mode::empty()).unwrap();
        let found = without_overriding(|| cgroups.threads(&at, later));
        let why = found.unwrap().unseen.map(|why| why.to_string());
        assert_eq!(why.as_deref(), Some("one may not be read"));
        assert_eq!(cgroups.threads(&at, later).unwrap().unseen, None);
    }
}

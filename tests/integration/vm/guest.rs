//! The first and only program of a virtual machine: mounts control groups, runs every check of
//! `koord_kernel::proof` on them, says on the console how each went, and switches the machine off.
//!
//! Which control groups it mounts is said by the kernel's command line, `KOORD_CGROUPS=v1`, `v2` or
//! `hybrid`, which the kernel hands to its first program as environment. Lines for the host begin with
//! `koord-guest:`; the last one is `koord-guest: end`, so a console without it is a failure.
#![forbid(unsafe_code)]

use koord_kernel::{
    cgroup::{Cgroups, Change, Controller, Generation, OsTree, Tree, Version},
    proof::{CHECKS, Check, Hierarchies, RealGround},
};
use koord_model::{CgroupPath, CpuQuota, CpusetCpus, MemoryLimit, Setting};
use rustix::{
    mount::{MountFlags, mount},
    system::{RebootCommand, reboot},
};
use std::{any::Any, env, ffi::CStr, fs, panic, path::Path, process};

const ROOT: &str = "/sys/fs/cgroup";

fn main() {
    assert_eq!(process::id(), 1, "this is the first program of a machine");
    if let Err(reason) = panic::catch_unwind(run) {
        println!("koord-guest: broken: {}", message(&*reason));
    }
    // Returning would be the kernel's end, too, but a louder one.
    reboot(RebootCommand::PowerOff).expect("the first program may switch the machine off");
}

fn run() {
    let wanted = env::var("KOORD_CGROUPS").expect("the command line says which cgroups to mount");
    mount_at("sysfs", "/sys", None);
    mount_at("proc", "/proc", None);
    mount_at("devtmpfs", "/dev", None);
    match wanted.as_str() {
        "v1" => run_checks(&mount_v1(), Version::V1),
        "v2" => run_checks(&mount_v2(), Version::V2),
        "hybrid" => answer(
            "each_controller_is_used_where_it_is",
            each_controller_is_used_where_it_is,
        ),
        other => panic!("{other} is no way to mount cgroups"),
    }
    println!("koord-guest: end");
}

fn run_checks(hierarchies: &Hierarchies, version: Version) {
    let found = Cgroups::open(Path::new(ROOT)).map(|cgroups| cgroups.version());
    assert_eq!(found.expect("control groups are mounted"), version);
    for Check { name, run } in CHECKS {
        answer(name, || {
            run(&mut RealGround::new(hierarchies.clone(), name))
        });
    }
}

fn answer(name: &str, check: impl FnOnce() + panic::UnwindSafe) {
    match panic::catch_unwind(check) {
        Ok(()) => println!("koord-guest: ok {name}"),
        Err(reason) => {
            let reason = message(&*reason).replace('\n', "\nkoord-guest: ");
            println!("koord-guest: failed {name}\nkoord-guest: {reason}");
        }
    }
}

/// With cpuset on cgroup v1, and cpu and memory on the v2 mount beside it.
fn each_controller_is_used_where_it_is() {
    mount_at("tmpfs", ROOT, None);
    mount_at("cgroup", &format!("{ROOT}/cpuset"), Some(c"cpuset"));
    mount_at("cgroup2", &format!("{ROOT}/unified"), None);
    let tree = OsTree::open(Path::new(ROOT)).expect("control groups are mounted");
    assert_eq!(tree.version(), Version::Hybrid);
    assert_eq!(tree.generation(Controller::Cpu), Some(Generation::V2));
    assert_eq!(tree.generation(Controller::Cpuset), Some(Generation::V1));
    assert_eq!(tree.generation(Controller::Memory), Some(Generation::V2));

    let put = |file: &str, text: &str| {
        let file = format!("{ROOT}/{file}");
        fs::write(&file, text).unwrap_or_else(|error| panic!("{file}: {error}"));
    };
    put("unified/cgroup.subtree_control", "+cpu +memory");
    let cgroups = Cgroups::over(tree);
    let at = CgroupPath::parse("pod").expect("a plain name");
    fs::create_dir(format!("{ROOT}/unified/pod")).expect("a new group");
    assert!(
        !cgroups.exists(&at).expect("it can be looked at"),
        "it is in one of two hierarchies"
    );
    fs::create_dir(format!("{ROOT}/cpuset/pod")).expect("a new group");
    assert!(cgroups.exists(&at).expect("it can be looked at"));

    let values = [
        CpuQuota::Micros(5_000).into(),
        CpusetCpus::All.into(),
        MemoryLimit::Bytes(1 << 26).into(),
    ];
    let change = |value| Change {
        at: at.clone(),
        value,
        gives_back: false,
        of_container: false,
        may_return: false,
    };
    let answers = cgroups.apply(&values.map(change));
    assert!(answers.iter().all(Result::is_ok), "{answers:?}");
    for (setting, file, text) in [
        (Setting::CpuQuota, "cpu.max", "5000 100000"),
        (Setting::CpusetCpus, "cpuset.cpus", "0-1"),
        (Setting::MemoryLimit, "memory.max", "67108864"),
    ] {
        let raw = cgroups.raw(&at, setting).expect("it can be read");
        assert_eq!(raw, (file, text.to_owned()));
    }
}

/// As distributions mount cgroup v1: one directory each, `cpu` together with `cpuacct`.
fn mount_v1() -> Hierarchies {
    mount_at("tmpfs", ROOT, None);
    for (name, controllers) in [
        ("cpu,cpuacct", c"cpu,cpuacct"),
        ("cpuset", c"cpuset"),
        ("memory", c"memory"),
    ] {
        mount_at("cgroup", &format!("{ROOT}/{name}"), Some(controllers));
    }
    Hierarchies::v1(Path::new(ROOT), &["cpu,cpuacct", "cpuset", "memory"])
}

fn mount_v2() -> Hierarchies {
    mount_at("cgroup2", ROOT, None);
    Hierarchies::v2(Path::new(ROOT))
}

fn mount_at(kind: &str, at: &str, options: Option<&CStr>) {
    fs::create_dir_all(at).unwrap_or_else(|error| panic!("{at}: {error}"));
    mount(kind, at, kind, MountFlags::empty(), options)
        .unwrap_or_else(|error| panic!("{kind} at {at}: {error}"));
}

fn message(reason: &(dyn Any + Send)) -> String {
    let text = reason.downcast_ref::<&str>().map(ToString::to_string);
    text.or_else(|| reason.downcast_ref::<String>().cloned())
        .unwrap_or_default()
}

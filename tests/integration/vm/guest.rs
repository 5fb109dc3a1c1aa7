//! The first and only program of a virtual machine: mounts control groups, runs every check of
//! `koord_kernel::proof` on them, says on the console how each went, and switches the machine off.
//!
//! Which control groups it mounts is said by the kernel's command line, `KOORD_CGROUPS=v1` or `v2`,
//! which the kernel hands to its first program as environment. Lines for the host begin with
//! `koord-guest:`; the last one is `koord-guest: end`, so a console without it is a failure.
#![forbid(unsafe_code)]

use koord_kernel::{
    cgroup::{Cgroups, Version},
    proof::{CHECKS, Check, Hierarchies, RealGround},
};
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
    let (hierarchies, version) = match wanted.as_str() {
        "v1" => (mount_v1(), Version::V1),
        "v2" => (mount_v2(), Version::V2),
        other => panic!("{other} is no version of cgroups"),
    };
    let found = Cgroups::open(Path::new(ROOT)).map(|cgroups| cgroups.version());
    assert_eq!(found.expect("control groups are mounted"), version);
    for check in CHECKS {
        answer(check, hierarchies.clone());
    }
    println!("koord-guest: end");
}

fn answer(check: &Check, hierarchies: Hierarchies) {
    let result = panic::catch_unwind(|| {
        let mut ground = RealGround::new(hierarchies, check.name);
        (check.run)(&mut ground);
    });
    match result {
        Ok(()) => println!("koord-guest: ok {}", check.name),
        Err(reason) => {
            let reason = message(&*reason).replace('\n', "\nkoord-guest: ");
            println!("koord-guest: failed {}\nkoord-guest: {reason}", check.name);
        }
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

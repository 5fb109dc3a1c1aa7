//! What an init system would do, as far as containerd needs it.

use rustix::{
    mount::{MountFlags, mount, mount_bind, mount_move},
    process::{chdir, chroot},
    system::{RebootCommand, reboot},
};
use std::{fs, io, process::Command};

/// File systems, a root that containers can leave behind, a shell, and the loopback interface.
pub(super) fn prepare() {
    // The kernel does not let a process pivot away from an initramfs itself, but from a mount of it.
    make("/root");
    mount_bind("/", "/root").expect("the root can be mounted again");
    chdir("/root").expect("it was just made");
    mount_move(".", "/").expect("one root for another");
    chroot(".").expect("one root for another");

    for (kind, at) in [
        ("proc", "/proc"),
        ("sysfs", "/sys"),
        ("devtmpfs", "/dev"),
        ("devpts", "/dev/pts"),
        ("tmpfs", "/dev/shm"),
        ("tmpfs", "/tmp"),
        ("tmpfs", "/run"),
        ("cgroup2", "/sys/fs/cgroup"),
    ] {
        make(at);
        mount(kind, at, kind, MountFlags::empty(), None)
            .unwrap_or_else(|error| panic!("{kind} at {at}: {error}"));
    }
    for directory in ["/etc", "/var/lib", "/var/tmp"] {
        make(directory);
    }
    for (file, text) in [
        ("/etc/hosts", "127.0.0.1 localhost\n"),
        ("/etc/hostname", "node-1\n"),
        ("/etc/resolv.conf", ""),
    ] {
        fs::write(file, text).unwrap_or_else(|error| panic!("{file}: {error}"));
    }
    command("/bin/busybox", &["--install", "-s", "/bin"]);
    command("ifconfig", &["lo", "127.0.0.1", "up"]);
}

pub(super) fn power_off() {
    // Returning would be the kernel's end, too, but a louder one.
    reboot(RebootCommand::PowerOff).expect("the first program may switch the machine off");
}

/// What the kernel says of a CPU: its socket, the CPUs of its core, and those of its last cache.
pub(super) fn cpu(number: u32) -> io::Result<[String; 3]> {
    let read = |file: &str| {
        let text = fs::read_to_string(format!("/sys/devices/system/cpu/cpu{number}/{file}"))?;
        io::Result::Ok(text.trim().to_owned())
    };
    Ok([
        read("topology/physical_package_id")?,
        read("topology/thread_siblings_list")?,
        read("cache/index3/shared_cpu_list")?,
    ])
}

pub(super) fn make(at: &str) {
    fs::create_dir_all(at).unwrap_or_else(|error| panic!("{at}: {error}"));
}

pub(super) fn command(program: &str, arguments: &[&str]) {
    let status = Command::new(program).args(arguments).status();
    let status = status.unwrap_or_else(|error| panic!("{program}: {error}"));
    assert!(status.success(), "{program} {arguments:?}: {status}");
}

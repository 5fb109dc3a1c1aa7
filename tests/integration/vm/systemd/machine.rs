//! From the kernel to systemd, and the end of the machine.

use anyhow::{Context, Result};
use rustix::{
    mount::{mount_bind, mount_move},
    process::{chdir, chroot},
    system::{RebootCommand, reboot},
};
use std::{convert::Infallible, fs, os::unix::process::CommandExt, process::Command};

/// Becomes systemd, on a root that containers can leave behind: the kernel does not let a process pivot
/// away from an initramfs itself, but from a mount of it.
pub(super) fn become_systemd() -> Result<Infallible> {
    fs::create_dir_all("/sysroot")?;
    mount_bind("/", "/sysroot").context("the root can be mounted again")?;
    chdir("/sysroot")?;
    mount_move(".", "/").context("one root for another")?;
    chroot(".").context("one root for another")?;
    Err(Command::new("/lib/systemd/systemd").exec()).context("start systemd")
}

pub(super) fn power_off() {
    // systemd would take its time, and nothing here is worth to be kept.
    reboot(RebootCommand::PowerOff).expect("root may switch the machine off");
}

/// What the kernel's command line says of a key.
pub(super) fn told(key: &str) -> Option<String> {
    let line = fs::read_to_string("/proc/cmdline").ok()?;
    let value = |word: &str| word.strip_prefix(key)?.strip_prefix('=').map(str::to_owned);
    line.split_whitespace().find_map(value)
}

/// The end of what the services of this machine have said.
pub(super) fn journal() -> String {
    let units = ["koord-runtime-proxy", "kubelet", "containerd"];
    let said = units.map(|unit| {
        let mut command = Command::new("journalctl");
        command.args(["--no-pager", "--lines=12", "--output=cat", "--unit", unit]);
        let output = command.output().map(|output| output.stdout);
        String::from_utf8_lossy(&output.unwrap_or_default()).into_owned()
    });
    said.join("\n")
}

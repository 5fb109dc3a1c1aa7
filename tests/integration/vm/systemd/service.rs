//! The proxy as a service of systemd.

use crate::reader::run;
use anyhow::{Context, Result, ensure};
use serde_json::Value;
use std::{collections::BTreeMap, fs, path::Path};

pub(super) const SERVICE: &str = "koord-runtime-proxy.service";

/// What systemd holds of a unit's property.
pub(super) fn property(unit: &str, name: &str) -> Result<String> {
    let shown = run(&format!("systemctl show --property={name} --value {unit}"))?;
    Ok(shown.ended(0)?.text.trim().to_owned())
}

/// What `status` says.
pub(super) fn status() -> Result<Value> {
    let answer = run("koord-runtime-proxy status --json")?.ended(0)?;
    Ok(serde_json::from_str(&answer.text)?)
}

/// The ids of the service's process.
pub(super) fn main_pid() -> Result<u32> {
    let pid: u32 = property(SERVICE, "MainPID")?.parse()?;
    ensure!(pid > 1, "it has no process");
    Ok(pid)
}

/// What the kernel says of the service's process.
pub(super) fn process() -> Result<BTreeMap<String, String>> {
    let status = fs::read_to_string(format!("/proc/{}/status", main_pid()?))?;
    let lines = status.lines().filter_map(|line| line.split_once(':'));
    Ok(lines
        .map(|(key, value)| (key.to_owned(), value.trim().to_owned()))
        .collect())
}

/// Fails unless the service runs with what its unit says.
pub(super) fn is_hardened() -> Result<()> {
    let process = process()?;
    for (key, value) in [
        ("Seccomp", "2"),
        ("NoNewPrivs", "1"),
        ("CapInh", "0000000000000000"),
        ("CapPrm", "0000000000000000"),
        ("CapEff", "0000000000000000"),
        ("CapBnd", "0000000000000000"),
        ("CapAmb", "0000000000000000"),
    ] {
        let held = process.get(key);
        ensure!(held.is_some_and(|held| held == value), "{key}: {held:?}");
    }
    for (at, option) in [
        ("/", "ro"),
        ("/sys", "ro"),
        ("/sys/fs/cgroup", "rw"),
        ("/proc", "subset=pid"),
        ("/dev", "ro"),
    ] {
        let options = mounted(at)?;
        ensure!(options.split(',').any(|it| it == option), "{at}: {options}");
    }
    for kind in ["net", "mnt", "uts"] {
        let [own, all] = namespaces(kind)?;
        ensure!(own != all, "{kind} is the machine's");
    }
    Ok(())
}

/// The options with which the service sees what is mounted at a path.
fn mounted(at: &str) -> Result<String> {
    let mounts = fs::read_to_string(format!("/proc/{}/mountinfo", main_pid()?))?;
    let mut fields = mounts
        .lines()
        .map(|line| line.split(' ').collect::<Vec<_>>());
    // The last one hides those before. Options of the mount, and at the end those of its file system.
    let found = fields.rfind(|fields| fields.get(4) == Some(&at));
    let options = found.and_then(|fields| Some(format!("{},{}", fields.get(5)?, fields.last()?)));
    options.with_context(|| format!("nothing is mounted at {at}"))
}

/// The namespace of that kind in which the service is, and that of the machine.
fn namespaces(kind: &str) -> Result<[String; 2]> {
    let of = |pid: u32| {
        let link = fs::read_link(Path::new("/proc").join(format!("{pid}/ns/{kind}")))?;
        anyhow::Ok(link.to_string_lossy().into_owned())
    };
    Ok([of(main_pid()?)?, of(1)?])
}

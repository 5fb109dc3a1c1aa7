//! Shares of caches and of the way to memory (`Documentation/x86/resctrl.rst`).
//!
//! A group is a directory; whatever thread is in none is in the root's. A processor has few classes,
//! each a group, so making one may fail for good. The kernel says why it refused a write in a file of
//! its own, and an error here carries that.

mod schemata;
mod share;

pub use self::{
    schemata::{Resource, Schemata, Shares},
    share::{Vendor, ways},
};

use crate::core_sched::Tid;
use rustix::{
    fs::{Dir, FileType, Mode, OFlags},
    io::Errno,
    mount::{MountFlags, mount},
};
use std::{
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    path::Path,
};
use thiserror::Error;

/// Why a group is not as it should be.
#[derive(Debug, Error)]
pub enum ResctrlError {
    #[error("{name:?} is no name of a group")]
    Name { name: String },
    #[error("the processor has no more classes for group {name}")]
    NoMoreClasses { name: String },
    #[error("group {name} cannot be {action}")]
    Group {
        name: String,
        action: &'static str,
        source: io::Error,
    },
    #[error("the kernel refuses {text:?} as {file} of group {name}: {status}")]
    Refused {
        name: String,
        file: &'static str,
        text: String,
        /// What the kernel says itself.
        status: String,
        source: io::Error,
    },
    #[error("{file} of group {name} is not in its format")]
    Malformed { name: String, file: &'static str },
}

/// A mounted resctrl file system.
#[derive(Debug)]
pub struct Resctrl {
    root: OwnedFd,
    ways: Option<u64>,
    vendor: Vendor,
    /// What the root had when it was opened: which resources and caches there are.
    whole: Schemata,
}

/// The root's own directories, which are no groups.
const RESERVED: [&str; 3] = ["info", "mon_data", "mon_groups"];
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

// === impl Resctrl ===

impl Resctrl {
    /// Opens what is mounted at `root`, which is `/sys/fs/resctrl` on a node, and mounts it before if
    /// it is not. `cpuinfo` is the text of `/proc/cpuinfo`.
    pub fn open(root: &Path, cpuinfo: &str) -> io::Result<Self> {
        if !root.join("schemata").exists() {
            mount("resctrl", root, "resctrl", MountFlags::RELATIME, None)?;
        }
        let root = rustix::fs::open(root, DIRECTORY, Mode::empty())?;
        let text = read(&root, "schemata")?;
        let whole = Schemata::parse(&text).ok_or(io::ErrorKind::InvalidData)?;
        // With code and data apart each has a folder, and both say the same.
        let masks = ["info/L3/cbm_mask", "info/L3CODE/cbm_mask"];
        let mask = masks.iter().find_map(|file| read(&root, file).ok());
        Ok(Self {
            root,
            ways: mask.and_then(|mask| u64::from_str_radix(mask.trim(), 16).ok()),
            vendor: Vendor::of_cpuinfo(cpuinfo),
            whole,
        })
    }

    /// Every way of the third-level cache, as a mask; `None` if it cannot be shared out.
    pub fn ways(&self) -> Option<u64> {
        self.ways
    }

    pub fn vendor(&self) -> Vendor {
        self.vendor
    }

    /// The resources and caches there are, with what the root had of them.
    pub fn whole(&self) -> &Schemata {
        &self.whole
    }

    /// The names of all groups but the root's.
    pub fn groups(&self) -> io::Result<Vec<String>> {
        let listed = rustix::fs::openat(&self.root, ".", DIRECTORY, Mode::empty())?;
        let mut names = Vec::new();
        for entry in Dir::new(listed)? {
            let entry = entry?;
            let name = entry.file_name().to_str().unwrap_or(".");
            let is_group = entry.file_type() == FileType::Directory && check(name).is_ok();
            if is_group {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// Makes a group, unless it is there. Whether it was made.
    pub fn create(&self, name: &str) -> Result<bool, ResctrlError> {
        check(name)?;
        match rustix::fs::mkdirat(&self.root, name, Mode::from_raw_mode(0o755)) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => Ok(false),
            Err(Errno::NOSPC) => Err(ResctrlError::NoMoreClasses {
                name: name.to_owned(),
            }),
            Err(errno) => Err(failed(name, "made")(errno.into())),
        }
    }

    /// Removes a group; its threads are the root's from then on.
    pub fn remove(&self, name: &str) -> Result<(), ResctrlError> {
        check(name)?;
        match rustix::fs::unlinkat(&self.root, name, rustix::fs::AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed(name, "removed")(errno.into())),
        }
    }

    /// What a group has.
    pub fn schemata(&self, name: &str) -> Result<Schemata, ResctrlError> {
        let file = "schemata";
        let text = read(&self.directory(name)?, file).map_err(failed(name, "read"))?;
        Schemata::parse(&text).ok_or_else(|| ResctrlError::Malformed {
            name: name.to_owned(),
            file,
        })
    }

    /// Gives a group what differs from what it has. Whether anything did.
    pub fn set_schemata(&self, name: &str, wanted: &Schemata) -> Result<bool, ResctrlError> {
        let lacking = wanted.beyond(&self.schemata(name)?);
        if lacking.is_empty() {
            return Ok(false);
        }
        self.write(name, "schemata", &lacking.to_string())?;
        Ok(true)
    }

    /// The threads in a group.
    pub fn threads(&self, name: &str) -> Result<Vec<Tid>, ResctrlError> {
        let text = read(&self.directory(name)?, "tasks").map_err(failed(name, "read"))?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    /// Moves a thread into a group. False if it has ended.
    pub fn add(&self, name: &str, thread: Tid) -> Result<bool, ResctrlError> {
        match self.write(name, "tasks", &format!("{thread}\n")) {
            Ok(()) => Ok(true),
            Err(ResctrlError::Refused { source, .. }) if is(&source, Errno::SRCH) => Ok(false),
            Err(error) => Err(error),
        }
    }

    /// Moves a thread into the root's group. False if it has ended.
    pub fn release(&self, thread: Tid) -> Result<bool, ResctrlError> {
        self.add(ROOT, thread)
    }

    fn directory(&self, name: &str) -> Result<OwnedFd, ResctrlError> {
        if name != ROOT {
            check(name)?;
        }
        rustix::fs::openat(&self.root, name, DIRECTORY, Mode::empty())
            .map_err(|errno| failed(name, "opened")(errno.into()))
    }

    fn write(&self, name: &str, file: &'static str, text: &str) -> Result<(), ResctrlError> {
        let directory = self.directory(name)?;
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let opened = rustix::fs::openat(&directory, file, flags, Mode::empty());
        let opened = opened.map_err(|errno| failed(name, "written")(errno.into()))?;
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&opened, text.as_bytes()));
        match written {
            Ok(_) => Ok(()),
            Err(errno) => Err(ResctrlError::Refused {
                name: name.to_owned(),
                file,
                text: text.to_owned(),
                status: read(&self.root, "info/last_cmd_status")
                    .map_or_else(|_| String::new(), |status| status.trim().to_owned()),
                source: errno.into(),
            }),
        }
    }
}

/// The group of whoever is in no other.
const ROOT: &str = ".";

// === impl ResctrlError ===

impl ResctrlError {
    /// Whether there is no such group, or no more.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Group { source, .. } | Self::Refused { source, .. } => {
                is(source, Errno::NOENT) || is(source, Errno::NODEV)
            }
            Self::Name { .. } | Self::NoMoreClasses { .. } | Self::Malformed { .. } => false,
        }
    }
}

/// A name becomes a directory right below the root.
fn check(name: &str) -> Result<(), ResctrlError> {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_plain = !name.is_empty() && name.bytes().all(plain) && !name.starts_with('.');
    if is_plain && !RESERVED.contains(&name) {
        return Ok(());
    }
    Err(ResctrlError::Name {
        name: name.chars().take(64).collect(),
    })
}

fn failed(name: &str, action: &'static str) -> impl FnOnce(io::Error) -> ResctrlError {
    move |source| ResctrlError::Group {
        name: name.to_owned(),
        action,
        source,
    }
}

fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

fn read(directory: &OwnedFd, name: &str) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let mut text = String::new();
    File::from(file).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_group_has_a_name_of_its_own_right_below_the_root() {
        for name in [
            "",
            ".",
            "..",
            ".hidden",
            "a/b",
            "info",
            "mon_data",
            "mon_groups",
            "a b",
            "é",
        ] {
            assert!(
                matches!(check(name), Err(ResctrlError::Name { .. })),
                "{name}"
            );
        }
        for name in ["LSR", "koordlet-5f2b8a9e-1", "pod_1.x"] {
            assert!(check(name).is_ok(), "{name}");
        }
    }
}

//! Shares of caches and of the way to memory (`Documentation/x86/resctrl.rst`).
//!
//! A group is a directory; whatever thread is in none is in the root's. A processor has few classes,
//! each a group, so making one may fail for good. The kernel says why it refused a write in a file of
//! its own, and an error here carries that.
//!
//! Within a group there may be monitoring groups, each a directory in its `mon_groups`, called by that
//! path here (`LS/mon_groups/NAME`). What the threads of one use is counted apart; they have what the
//! group around has, and are among its threads too. One of another group is refused, and one that comes
//! into a group leaves its monitoring group. Groups of both kinds take a monitoring id (RMID) each, of
//! which a processor has more than classes. The last ones are left to classes that may still be made: to
//! be counted is not worth a part of the cache.
//!
//! Whose a group is, nothing in it says. The directories of those that are ours have the sticky bit,
//! which nobody else has a use for there: it needs no right but that of the owner, is there from the
//! moment that the group is, and outlives the process that made it.

mod error;
mod schemata;
mod share;

pub use self::{
    error::ResctrlError,
    schemata::{Resource, Schemata, Shares},
    share::{Granularity, Vendor, ways},
};

use self::error::is;
use crate::core_sched::Tid;
use koord_model::{CacheShares, ClassGroup, excerpt};
use rustix::{
    fs::{AtFlags, Dir, FileType, Mode, OFlags},
    io::Errno,
    mount::{MountFlags, mount},
};
use std::{
    fmt,
    fs::File,
    io::{self, Read},
    os::fd::OwnedFd,
    path::Path,
};
use tracing::warn;

/// The groups of this machine: the kernel's, or those of a fake that keeps its rules.
pub trait Groups: fmt::Debug + Send {
    /// Makes a group or monitoring group of ours, or has the one of that name be ours. Whether it was
    /// made.
    ///
    /// # Errors
    ///
    /// When `name` is no name of a group ([`ResctrlError::Name`]), the processor has no class or
    /// id to spare ([`ResctrlError::is_for_want_of_classes`]), the kernel monitors no groups
    /// ([`ResctrlError::Unmonitored`]), the group around it is gone ([`ResctrlError::is_gone`]), or the
    /// kernel refuses it.
    fn own(&self, name: &str) -> Result<bool, ResctrlError>;

    /// How many groups there can be, the root's not counted; `None` if the kernel does not say.
    fn most(&self) -> Option<usize>;

    /// The names of all groups but the root's.
    ///
    /// # Errors
    ///
    /// When they cannot be listed ([`ResctrlError::Unlisted`]).
    fn all(&self) -> Result<Vec<String>, ResctrlError>;

    /// Those that are ours, whoever of us made them.
    ///
    /// # Errors
    ///
    /// When they cannot be listed ([`ResctrlError::Unlisted`]).
    fn owned(&self) -> Result<Vec<String>, ResctrlError>;

    /// The monitoring groups that are ours, of all groups but the root's.
    ///
    /// # Errors
    ///
    /// When they cannot be listed ([`ResctrlError::Unlisted`]).
    fn monitors(&self) -> Result<Vec<String>, ResctrlError>;

    /// Removes a group with its monitoring groups; its threads are the root's from then on. Those of a
    /// monitoring group are no more than the group's around it.
    ///
    /// # Errors
    ///
    /// When `name` is no name of a group ([`ResctrlError::Name`]), or the kernel refuses it. One that is not
    /// there is no error.
    fn remove(&self, name: &str) -> Result<(), ResctrlError>;

    /// Gives a group these shares, as far as there is something to share out. Whether it had others.
    ///
    /// # Errors
    ///
    /// When `name` is no name of a group ([`ResctrlError::Name`]), the group is gone
    /// ([`ResctrlError::is_gone`]), what it has cannot be read, or the kernel refuses the shares
    /// ([`ResctrlError::Refused`]).
    fn share(&self, name: &str, shares: &CacheShares) -> Result<bool, ResctrlError>;

    /// The threads in a group.
    ///
    /// # Errors
    ///
    /// When `name` is no name of a group ([`ResctrlError::Name`]), or the group is gone
    /// ([`ResctrlError::is_gone`]) or cannot be read.
    fn threads(&self, name: &str) -> Result<Vec<Tid>, ResctrlError>;

    /// Moves a thread into a group. False if it has ended.
    ///
    /// # Errors
    ///
    /// When `name` is no name of a group ([`ResctrlError::Name`]), the group is gone
    /// ([`ResctrlError::is_gone`]), or the kernel refuses it ([`ResctrlError::Refused`]), as it does for a
    /// monitoring group of another group.
    fn add(&self, name: &str, thread: Tid) -> Result<bool, ResctrlError>;

    /// Moves a thread into the root's group. False if it has ended.
    ///
    /// # Errors
    ///
    /// When the kernel refuses it.
    fn release(&self, thread: Tid) -> Result<bool, ResctrlError>;
}

/// A mounted resctrl file system.
#[derive(Debug)]
pub struct Resctrl {
    root: OwnedFd,
    ways: Option<u64>,
    vendor: Vendor,
    granularity: Granularity,
    most: Option<usize>,
    /// How many monitoring groups leave every class an id; `None` if the kernel has none of them.
    most_monitors: Option<usize>,
    /// What the root had when it was opened. Its resources are those that are shared out; caches may
    /// come and go.
    whole: Schemata,
}

/// Where the kernel has it mounted, below `/sys`.
const MOUNT_POINT: &str = "fs/resctrl";
/// What may be shared out, as the folders of `info` are called.
const RESOURCES: [&str; 8] = [
    "L3", "L3CODE", "L3DATA", "L2", "L2CODE", "L2DATA", "MB", "SMBA",
];
/// The root's own directories, which are no groups.
const RESERVED: [&str; 3] = ["info", "mon_data", "mon_groups"];
/// As paths of monitoring groups have it.
pub(crate) const MONITORS: &str = ClassGroup::MONITORS;
const DIRECTORY: OFlags = OFlags::RDONLY
    .union(OFlags::DIRECTORY)
    .union(OFlags::NOFOLLOW)
    .union(OFlags::CLOEXEC);

/// Checks that the processor has a class for each of `others` that is not there, also once there is a group
/// `name`. One that is there already takes none from them.
///
/// # Errors
///
/// When the group would take one of these ([`ResctrlError::LeftToOthers`]), or it cannot be found out which
/// groups are there ([`ResctrlError::Unlisted`]). Never where the kernel does not say how many there can be.
pub fn leave_to(
    groups: &(impl Groups + ?Sized),
    others: &[&str],
    name: &str,
) -> Result<(), ResctrlError> {
    let Some(most) = groups.most() else {
        return Ok(());
    };
    let there = groups.all()?;
    let is_there = |it: &str| there.iter().any(|name| name == it);
    let lacking: Vec<&str> = others.iter().copied().filter(|it| !is_there(it)).collect();
    if is_there(name) || lacking.is_empty() || there.len() + lacking.len() < most {
        return Ok(());
    }
    Err(ResctrlError::LeftToOthers {
        name: name.to_owned(),
        classes: lacking.join(", "),
    })
}

// === impl Resctrl ===

impl Resctrl {
    /// Whether the kernel here has it, mounted or not.
    pub fn is_supported(sys_root: &Path) -> bool {
        sys_root.join(MOUNT_POINT).is_dir()
    }

    /// Whether it is mounted.
    pub fn is_mounted(sys_root: &Path) -> bool {
        sys_root.join(MOUNT_POINT).join("schemata").exists()
    }

    /// Opens that of this machine. `sys_root` and `proc_root` are `/sys` and `/proc`.
    ///
    /// # Errors
    ///
    /// As for [`open`](Self::open).
    pub fn of_machine(sys_root: &Path, proc_root: &Path) -> io::Result<Self> {
        let vendor = Vendor::of_machine(sys_root, proc_root);
        Self::open(&sys_root.join(MOUNT_POINT), vendor)
    }

    /// Opens what is mounted at `root`, which is `/sys/fs/resctrl` on a node, and mounts it before if
    /// it is not.
    ///
    /// # Errors
    ///
    /// When it cannot be mounted, or the shares of the root's group cannot be read or are not in their format
    /// ([`io::ErrorKind::InvalidData`]).
    pub fn open(root: &Path, vendor: Vendor) -> io::Result<Self> {
        if !root.join("schemata").exists() {
            mount("resctrl", root, "resctrl", MountFlags::RELATIME, None)?;
        }
        let root = rustix::fs::open(root, DIRECTORY, Mode::empty())?;
        let text = read(&root, "schemata")?;
        let whole = Schemata::parse(&text).ok_or(io::ErrorKind::InvalidData)?;
        let (whole, counts_otherwise) = share::countable(whole, vendor);
        if counts_otherwise {
            warn!("bandwidth is counted in MB/s here (mba_MBps), and not shared out");
        }
        let told = |resource: &str, file: &str| {
            let text = read(&root, &format!("info/{resource}/{file}")).ok()?;
            Some(text.trim().to_owned())
        };
        // With code and data apart each has a folder, and both say the same.
        let of_cache = |file| told("L3", file).or_else(|| told("L3CODE", file));
        let number = |text: String| text.parse().ok();
        let granularity = Granularity {
            ways: of_cache("min_cbm_bits").and_then(|text| text.parse().ok()),
            least_bandwidth: told("MB", "min_bandwidth").and_then(number),
            bandwidth_step: told("MB", "bandwidth_gran").and_then(number),
        };
        let ways = of_cache("cbm_mask").and_then(|mask| u64::from_str_radix(&mask, 16).ok());
        let count = |text: String| text.parse::<usize>().ok();
        let classes = |resource: &&str| count(told(resource, "num_closids")?);
        // A group takes a class of each resource, so there are as many as the one with the fewest has.
        let classes = RESOURCES.iter().filter_map(classes).min();
        let ids = told("L3_MON", "num_rmids").and_then(count);
        Ok(Self {
            most: classes.map(|classes| classes.saturating_sub(1)),
            most_monitors: ids.map(|ids| ids.saturating_sub(classes.unwrap_or(1))),
            root,
            ways,
            vendor,
            granularity,
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

    /// The smallest parts that it shares out.
    pub fn granularity(&self) -> Granularity {
        self.granularity
    }

    /// The resources that are shared out, with the caches there were at the start and what the root had
    /// of them.
    pub fn whole(&self) -> &Schemata {
        &self.whole
    }

    /// What a group has.
    ///
    /// # Errors
    ///
    /// When `name` is no name of a group ([`ResctrlError::Name`]), the group is gone
    /// ([`ResctrlError::is_gone`]) or cannot be read, or what it shows is not in its format
    /// ([`ResctrlError::Malformed`]).
    pub fn schemata(&self, name: &str) -> Result<Schemata, ResctrlError> {
        let file = "schemata";
        let text = read(&self.directory(name)?, file).map_err(failed(name, "read"))?;
        Schemata::parse(&text).ok_or_else(|| ResctrlError::Malformed {
            name: name.to_owned(),
            file,
        })
    }

    /// Gives a group what differs from what it has. Whether anything did.
    ///
    /// # Errors
    ///
    /// When that cannot be read, see [`schemata`](Self::schemata), or the kernel refuses it
    /// ([`ResctrlError::Refused`], with why by its own word).
    pub fn set_schemata(&self, name: &str, wanted: &Schemata) -> Result<bool, ResctrlError> {
        self.write_beyond(name, wanted, &self.schemata(name)?)
    }

    /// Gives a group what it is wanted to have and does not hold. Whether anything was.
    fn write_beyond(
        &self,
        name: &str,
        wanted: &Schemata,
        held: &Schemata,
    ) -> Result<bool, ResctrlError> {
        let lacking = wanted.beyond(held);
        if lacking.is_empty() {
            return Ok(false);
        }
        self.write(name, "schemata", &lacking.to_string())?;
        Ok(true)
    }

    /// The directories at a place below the root that are called as a group may be.
    fn directories(&self, at: &str) -> Result<Vec<String>, ResctrlError> {
        let unlisted = |errno: Errno| ResctrlError::Unlisted {
            source: errno.into(),
        };
        let listed = match rustix::fs::openat(&self.root, at, DIRECTORY, Mode::empty()) {
            // The kernel monitors nothing, or the group has gone.
            Err(Errno::NOENT) if at != ROOT => return Ok(Vec::new()),
            listed => Dir::new(listed.map_err(unlisted)?).map_err(unlisted)?,
        };
        let mut names = Vec::new();
        for entry in listed {
            let entry = entry.map_err(unlisted)?;
            let name = entry.file_name().to_str().unwrap_or(".");
            if entry.file_type() == FileType::Directory && is_plain(name) {
                names.push(name.to_owned());
            }
        }
        names.sort_unstable();
        Ok(names)
    }

    /// The monitoring groups of all groups but the root's, whoever made them.
    fn all_monitors(&self) -> Result<Vec<String>, ResctrlError> {
        let mut monitors = Vec::new();
        for group in self.directories(ROOT)? {
            let within = format!("{group}{MONITORS}");
            let names = self.directories(&within)?;
            monitors.extend(names.iter().map(|name| format!("{within}{name}")));
        }
        Ok(monitors)
    }

    /// Fails if a monitoring group that is not there would take the id of a class that may come.
    fn spare(&self, name: &str) -> Result<(), ResctrlError> {
        let Some(most) = self.most_monitors else {
            return Err(ResctrlError::Unmonitored {
                name: name.to_owned(),
            });
        };
        let of_root = self.directories("mon_groups")?;
        match of_root.len() + self.all_monitors()?.len() < most {
            true => Ok(()),
            false => Err(no_more_monitors(name, Errno::NOSPC)),
        }
    }

    fn is_owned(&self, name: &str) -> io::Result<bool> {
        let found = rustix::fs::statat(&self.root, name, AtFlags::SYMLINK_NOFOLLOW)?;
        Ok(Mode::from_raw_mode(found.st_mode).contains(OURS))
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

impl Groups for Resctrl {
    fn own(&self, name: &str) -> Result<bool, ResctrlError> {
        check(name)?;
        let is_monitor = name.contains(MONITORS);
        if is_monitor && self.is_owned(name).is_err() {
            self.spare(name)?;
        }
        match rustix::fs::mkdirat(&self.root, name, DIRECTORY_MODE | OURS) {
            Ok(()) => Ok(true),
            Err(Errno::EXIST) => {
                if !self.is_owned(name).map_err(failed(name, "looked at"))? {
                    let directory = self.directory(name)?;
                    let marked = rustix::fs::fchmod(&directory, DIRECTORY_MODE | OURS);
                    marked.map_err(|errno| failed(name, "made ours")(errno.into()))?;
                }
                Ok(false)
            }
            Err(errno @ Errno::NOSPC) if is_monitor => Err(no_more_monitors(name, errno)),
            // Busy are ids of groups that have gone, while the cache has something of theirs. Each group takes
            // one, whether it monitors or shares out.
            Err(errno @ Errno::BUSY) => Err(no_more_monitors(name, errno)),
            Err(Errno::NOSPC) => Err(ResctrlError::NoMoreClasses {
                name: name.to_owned(),
            }),
            Err(errno) => Err(failed(name, "made")(errno.into())),
        }
    }

    fn most(&self) -> Option<usize> {
        self.most
    }

    fn all(&self) -> Result<Vec<String>, ResctrlError> {
        self.directories(ROOT)
    }

    fn owned(&self) -> Result<Vec<String>, ResctrlError> {
        let mut names = self.all()?;
        // One that goes meanwhile is nobody's.
        names.retain(|name| self.is_owned(name).unwrap_or(false));
        Ok(names)
    }

    fn monitors(&self) -> Result<Vec<String>, ResctrlError> {
        let mut names = self.all_monitors()?;
        names.retain(|name| self.is_owned(name).unwrap_or(false));
        Ok(names)
    }

    fn remove(&self, name: &str) -> Result<(), ResctrlError> {
        check(name)?;
        match rustix::fs::unlinkat(&self.root, name, AtFlags::REMOVEDIR) {
            Ok(()) | Err(Errno::NOENT) => Ok(()),
            Err(errno) => Err(failed(name, "removed")(errno.into())),
        }
    }

    fn share(&self, name: &str, shares: &CacheShares) -> Result<bool, ResctrlError> {
        // A cache is there while one of its CPUs is online, and every group has what there is of it.
        let held = self.schemata(name)?;
        let there = held.of_resources(&self.whole);
        let processor = (self.vendor, self.granularity);
        let wanted = share::schemata(shares, &there, self.ways, processor);
        self.write_beyond(name, &wanted, &held)
    }

    fn threads(&self, name: &str) -> Result<Vec<Tid>, ResctrlError> {
        let text = read(&self.directory(name)?, "tasks").map_err(failed(name, "read"))?;
        Ok(text.lines().filter_map(|line| line.parse().ok()).collect())
    }

    fn add(&self, name: &str, thread: Tid) -> Result<bool, ResctrlError> {
        match self.write(name, "tasks", &format!("{thread}\n")) {
            Ok(()) => Ok(true),
            Err(ResctrlError::Refused { source, .. }) if is(&source, Errno::SRCH) => Ok(false),
            Err(error) => Err(error),
        }
    }

    fn release(&self, thread: Tid) -> Result<bool, ResctrlError> {
        self.add(ROOT, thread)
    }
}

/// The group of whoever is in no other.
const ROOT: &str = ".";
const DIRECTORY_MODE: Mode = Mode::from_bits_retain(0o755);
/// The mark of a group that is ours.
const OURS: Mode = Mode::SVTX;

/// A name becomes a directory right below the root, or the two of a monitoring group and the group
/// around it.
fn check(name: &str) -> Result<(), ResctrlError> {
    let is_name = match name.split_once(MONITORS) {
        Some((group, monitor)) => is_plain(group) && is_plain(monitor),
        None => is_plain(name),
    };
    if is_name {
        return Ok(());
    }
    Err(ResctrlError::Name {
        name: excerpt(name),
    })
}

fn is_plain(name: &str) -> bool {
    let plain = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_' | b'.');
    let is_plain = !name.is_empty() && name.bytes().all(plain) && !name.starts_with('.');
    is_plain && !RESERVED.contains(&name)
}

fn no_more_monitors(name: &str, errno: Errno) -> ResctrlError {
    ResctrlError::NoMoreMonitors {
        name: name.to_owned(),
        source: errno.into(),
    }
}

fn failed(name: &str, action: &'static str) -> impl FnOnce(io::Error) -> ResctrlError {
    move |source| ResctrlError::Group {
        name: name.to_owned(),
        action,
        source,
    }
}

fn read(directory: &OwnedFd, name: &str) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let mut text = String::new();
    File::from(file).read_to_string(&mut text)?;
    Ok(text)
}

#[cfg(test)]
mod tests;

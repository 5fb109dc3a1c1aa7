//! The few file operations that control groups need, and the kernel's own tree.
//!
//! [`OsTree`] opens each hierarchy once and resolves every path below that descriptor, component by
//! component without following links, so that no name leads elsewhere; `openat2` would do it in one
//! call, but kernels before 5.6 lack it, among them some that have group identity.

use koord_model::CgroupPath;
use rustix::fs::{AtFlags, Dir, FileType, FsWord, Mode, OFlags};
use std::{
    ffi::OsStr,
    fmt,
    fs::File,
    io::{self, Read},
    os::{
        fd::{AsFd, OwnedFd},
        unix::ffi::OsStrExt,
    },
    path::{Path, PathBuf},
    sync::Arc,
};
use thiserror::Error;

/// The part of the kernel that a setting belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Controller {
    Cpu,
    Cpuset,
    Memory,
}

/// The interface that a controller is reached by.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Generation {
    V1,
    V2,
}

/// How the hierarchies of a node are mounted.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Version {
    /// A hierarchy for each controller, or for a few together.
    V1,
    /// One hierarchy.
    V2,
    /// Hierarchies of cgroup v1, with one of v2 beside them at `unified`. Each controller is in one
    /// or the other.
    Hybrid,
}

/// Files of control groups: the kernel's, or a fake that keeps its rules.
pub trait Tree: fmt::Debug + Send + Sync {
    fn version(&self) -> Version;

    /// How a controller is reached; `None` if it is not there.
    fn generation(&self, controller: Controller) -> Option<Generation>;

    fn has_directory(&self, controller: Controller, at: &CgroupPath) -> bool;

    fn has_file(&self, controller: Controller, at: &CgroupPath, file: &str) -> bool;

    /// The whole text of a file.
    fn read(&self, controller: Controller, at: &CgroupPath, file: &str) -> io::Result<String>;

    /// Gives a text to an existing file, in one `write(2)`.
    fn write(
        &self,
        controller: Controller,
        at: &CgroupPath,
        file: &str,
        text: &str,
    ) -> io::Result<()>;

    /// The names of the directories directly below, in no order.
    fn children(&self, controller: Controller, at: &CgroupPath) -> io::Result<Vec<String>>;
}

/// The kernel's own tree.
#[derive(Debug)]
pub struct OsTree {
    version: Version,
    cpu: Option<Mount>,
    cpuset: Option<Mount>,
    memory: Option<Mount>,
}

/// Why no control groups were found.
#[derive(Debug, Error)]
pub enum DetectError {
    #[error("cannot look for control groups in {path}")]
    Open { path: PathBuf, source: io::Error },
    #[error("{path} has none of the controllers cpu, cpuset and memory, of either cgroup version")]
    NoControllers { path: PathBuf },
}

/// A hierarchy that a controller is in.
#[derive(Clone, Debug)]
struct Mount {
    generation: Generation,
    directory: Arc<OwnedFd>,
}

/// From `linux/magic.h`.
const CGROUP_SUPER_MAGIC: FsWord = 0x0027_e0eb;
const CGROUP2_SUPER_MAGIC: FsWord = 0x6367_7270;

/// The name of the cgroup v2 mount among those of v1, as systemd gives it.
const UNIFIED: &str = "unified";

// === impl Controller ===

impl Controller {
    pub const ALL: &[Self] = &[Self::Cpu, Self::Cpuset, Self::Memory];

    pub fn name(self) -> &'static str {
        match self {
            Self::Cpu => "cpu",
            Self::Cpuset => "cpuset",
            Self::Memory => "memory",
        }
    }
}

// === impl OsTree ===

impl OsTree {
    /// Looks at what is mounted at and directly below `root`.
    pub fn open(root: &Path) -> Result<Self, DetectError> {
        let failed = |source: io::Error| DetectError::Open {
            path: root.to_owned(),
            source,
        };
        let top = rustix::fs::open(root, DIRECTORY, Mode::empty()).map_err(|e| failed(e.into()))?;
        let tree = if generation_of(&top).map_err(failed)? == Some(Generation::V2) {
            let mount = Mount::new(Generation::V2, top);
            Self {
                version: Version::V2,
                ..Self::find(|controller| mount.if_it_has(controller)).map_err(failed)?
            }
        } else {
            let unified = Mount::at(&top, UNIFIED, Generation::V2).map_err(failed)?;
            let joint = names_below(&top).map_err(failed)?;
            let found = Self::find(|controller| match v1_mount(&top, &joint, controller)? {
                Some(mount) => Ok(Some(mount)),
                None => unified
                    .as_ref()
                    .map_or(Ok(None), |mount| mount.if_it_has(controller)),
            });
            let version = match unified {
                Some(_) => Version::Hybrid,
                None => Version::V1,
            };
            Self {
                version,
                ..found.map_err(failed)?
            }
        };
        if tree.cpu.is_none() && tree.cpuset.is_none() && tree.memory.is_none() {
            let path = root.to_owned();
            return Err(DetectError::NoControllers { path });
        }
        Ok(tree)
    }

    fn find(mount_of: impl Fn(Controller) -> io::Result<Option<Mount>>) -> io::Result<Self> {
        Ok(Self {
            version: Version::V1,
            cpu: mount_of(Controller::Cpu)?,
            cpuset: mount_of(Controller::Cpuset)?,
            memory: mount_of(Controller::Memory)?,
        })
    }

    fn mount(&self, controller: Controller) -> Option<&Mount> {
        match controller {
            Controller::Cpu => self.cpu.as_ref(),
            Controller::Cpuset => self.cpuset.as_ref(),
            Controller::Memory => self.memory.as_ref(),
        }
    }

    fn directory(&self, controller: Controller, at: &CgroupPath) -> io::Result<OwnedFd> {
        let mount = self.mount(controller).ok_or(io::ErrorKind::NotFound)?;
        beneath(&mount.directory, at)
    }
}

impl Tree for OsTree {
    fn version(&self) -> Version {
        self.version
    }

    fn generation(&self, controller: Controller) -> Option<Generation> {
        self.mount(controller).map(|mount| mount.generation)
    }

    fn has_directory(&self, controller: Controller, at: &CgroupPath) -> bool {
        self.directory(controller, at).is_ok()
    }

    fn has_file(&self, controller: Controller, at: &CgroupPath, file: &str) -> bool {
        self.directory(controller, at).is_ok_and(|directory| {
            rustix::fs::statat(directory, file, AtFlags::SYMLINK_NOFOLLOW).is_ok()
        })
    }

    fn read(&self, controller: Controller, at: &CgroupPath, file: &str) -> io::Result<String> {
        let directory = self.directory(controller, at)?;
        read_file(&directory, file)
    }

    fn write(
        &self,
        controller: Controller,
        at: &CgroupPath,
        file: &str,
        text: &str,
    ) -> io::Result<()> {
        let directory = self.directory(controller, at)?;
        let flags = OFlags::WRONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
        let file = rustix::fs::openat(directory, file, flags, Mode::empty())?;
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&file, text.as_bytes()))?;
        if written < text.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }

    fn children(&self, controller: Controller, at: &CgroupPath) -> io::Result<Vec<String>> {
        names_below(self.directory(controller, at)?)
    }
}

// === impl Mount ===

impl Mount {
    fn new(generation: Generation, directory: OwnedFd) -> Self {
        Self {
            generation,
            directory: Arc::new(directory),
        }
    }

    /// The mount of that generation at `name`, which may be a link as `cpu` is to `cpu,cpuacct`.
    fn at(top: &OwnedFd, name: &str, generation: Generation) -> io::Result<Option<Self>> {
        let directory = match rustix::fs::openat(top, name, DIRECTORY, Mode::empty()) {
            Ok(directory) => directory,
            Err(rustix::io::Errno::NOENT | rustix::io::Errno::NOTDIR) => return Ok(None),
            Err(error) => return Err(error.into()),
        };
        let found = generation_of(&directory)?;
        Ok((found == Some(generation)).then(|| Self::new(generation, directory)))
    }

    /// This mount of cgroup v2, if the controller is in it.
    fn if_it_has(&self, controller: Controller) -> io::Result<Option<Self>> {
        let controllers = read_file(&self.directory, "cgroup.controllers")?;
        let has = controllers
            .split_whitespace()
            .any(|name| name == controller.name());
        Ok(has.then(|| self.clone()))
    }
}

const DIRECTORY: OFlags = OFlags::PATH.union(OFlags::DIRECTORY).union(OFlags::CLOEXEC);

fn generation_of(directory: &OwnedFd) -> io::Result<Option<Generation>> {
    Ok(match rustix::fs::fstatfs(directory)?.f_type {
        CGROUP_SUPER_MAGIC => Some(Generation::V1),
        CGROUP2_SUPER_MAGIC => Some(Generation::V2),
        _ => None,
    })
}

/// The hierarchy of cgroup v1 that a controller is in: alone, or together with others as in
/// `cpu,cpuacct`.
fn v1_mount(top: &OwnedFd, names: &[String], controller: Controller) -> io::Result<Option<Mount>> {
    if let Some(mount) = Mount::at(top, controller.name(), Generation::V1)? {
        return Ok(Some(mount));
    }
    let joint = names
        .iter()
        .find(|name| name.split(',').any(|part| part == controller.name()));
    joint.map_or(Ok(None), |name| Mount::at(top, name, Generation::V1))
}

/// Opens a directory below another, following no links.
fn beneath(top: &OwnedFd, at: &CgroupPath) -> io::Result<OwnedFd> {
    let flags = DIRECTORY | OFlags::NOFOLLOW;
    let mut directory = rustix::io::fcntl_dupfd_cloexec(top, 0)?;
    for component in at.components() {
        directory = rustix::fs::openat(&directory, component, flags, Mode::empty())?;
    }
    Ok(directory)
}

fn read_file(directory: &OwnedFd, name: &str) -> io::Result<String> {
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(directory, name, flags, Mode::empty())?;
    let mut text = String::new();
    File::from(file).read_to_string(&mut text)?;
    Ok(text)
}

/// The names of the directories in a directory.
fn names_below(directory: impl AsFd) -> io::Result<Vec<String>> {
    // This opens the directory anew: a descriptor of a path alone cannot be listed.
    let listing = Dir::read_from(directory)?;
    let mut names = Vec::new();
    for entry in listing {
        let entry = entry?;
        let name = OsStr::from_bytes(entry.file_name().to_bytes());
        let Some(name) = name.to_str().filter(|name| *name != "." && *name != "..") else {
            continue;
        };
        if entry.file_type() == FileType::Directory {
            names.push(name.to_owned());
        }
    }
    Ok(names)
}

//! The few file operations that control groups need, and the terms in which they are asked for.

use super::{Marked, walk::Names};
use koord_model::{CgroupPath, Setting};
use std::{fmt, io, os::fd::OwnedFd};

/// The part of the kernel that a setting belongs to.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Controller {
    Cpu,
    Cpuset,
    Memory,
    Io,
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

    /// The inode of a directory, which no later one of the same name has (`idr_alloc_cyclic` in
    /// `__kernfs_new_node`, since Linux 4.14; before that it may); `None` if it is not there.
    ///
    /// # Errors
    ///
    /// When that cannot be found out now, which says nothing about it.
    fn inode(&self, controller: Controller, at: &CgroupPath) -> io::Result<Option<u64>>;

    /// Whether a group is there.
    ///
    /// # Errors
    ///
    /// When that cannot be found out now, which says nothing about it.
    fn has_directory(&self, controller: Controller, at: &CgroupPath) -> io::Result<bool> {
        Ok(self.inode(controller, at)?.is_some())
    }

    /// Whether a group has a file; not if there is no such group.
    ///
    /// # Errors
    ///
    /// When that cannot be found out now, which says nothing about it.
    fn has_file(&self, controller: Controller, at: &CgroupPath, file: &str) -> io::Result<bool>;

    /// The whole text of a file.
    ///
    /// # Errors
    ///
    /// When the group or the file is not there ([`io::ErrorKind::NotFound`], or `ENODEV` of one that goes
    /// meanwhile), it cannot be read now, or is not UTF-8 ([`io::ErrorKind::InvalidData`]).
    fn read(&self, controller: Controller, at: &CgroupPath, file: &str) -> io::Result<String>;

    /// Gives a text to an existing file, in one `write(2)`.
    ///
    /// # Errors
    ///
    /// When the group or the file is not there ([`io::ErrorKind::NotFound`], or `ENODEV` of one that goes
    /// meanwhile), or the kernel refuses the text or takes a part of it alone ([`io::ErrorKind::WriteZero`]).
    fn write(
        &self,
        controller: Controller,
        at: &CgroupPath,
        file: &str,
        text: &str,
    ) -> io::Result<()>;

    /// A descriptor that can be read once somebody has written to an existing file, whatever. Reading it
    /// does not wait.
    ///
    /// # Errors
    ///
    /// When the group or the file is not there ([`io::ErrorKind::NotFound`]), or cannot be watched now.
    fn watch(&self, controller: Controller, at: &CgroupPath, file: &str) -> io::Result<OwnedFd>;

    /// The names of the directories directly below, no more than `most`.
    ///
    /// # Errors
    ///
    /// When the group is not there, or cannot be listed now.
    fn children(&self, controller: Controller, at: &CgroupPath, most: usize) -> io::Result<Names>;

    /// A note of ours on a group, which goes with it; empty if there is none.
    ///
    /// # Errors
    ///
    /// When the group is not there, it takes no such notes ([`io::ErrorKind::Unsupported`]), or it cannot be
    /// read now.
    fn note(&self, controller: Controller, at: &CgroupPath, note: Note) -> io::Result<String>;

    /// Puts a note on a group, or takes it off if it is empty. One that cannot be read again is refused, and
    /// what was noted stays.
    ///
    /// # Errors
    ///
    /// When the group is not there, it takes no such notes ([`io::ErrorKind::Unsupported`]), or it does not
    /// take this one, as none of more than 64 KiB.
    fn set_note(
        &self,
        controller: Controller,
        at: &CgroupPath,
        note: Note,
        text: &str,
    ) -> io::Result<()>;
}

/// A note of ours on a group. No group takes any before Linux 5.7.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Note {
    /// What settings had before us.
    Originals,
    /// The same of one setting, whose devices each have their own, or what its limit had left.
    Of(Setting),
    /// What the group is marked with.
    Marks(Marked),
}

/// A tree without any controller: every group is absent, every setting unsupported.
#[derive(Clone, Copy, Debug)]
pub(super) struct Bare;

// === impl Bare ===

impl Tree for Bare {
    fn version(&self) -> Version {
        Version::V2
    }

    fn generation(&self, _: Controller) -> Option<Generation> {
        None
    }

    fn inode(&self, _: Controller, _: &CgroupPath) -> io::Result<Option<u64>> {
        Ok(None)
    }

    fn has_file(&self, _: Controller, _: &CgroupPath, _: &str) -> io::Result<bool> {
        Ok(false)
    }

    fn read(&self, _: Controller, _: &CgroupPath, _: &str) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn write(&self, _: Controller, _: &CgroupPath, _: &str, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn watch(&self, _: Controller, _: &CgroupPath, _: &str) -> io::Result<OwnedFd> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn children(&self, _: Controller, _: &CgroupPath, _: usize) -> io::Result<Names> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn note(&self, _: Controller, _: &CgroupPath, _: Note) -> io::Result<String> {
        Err(io::ErrorKind::NotFound.into())
    }

    fn set_note(&self, _: Controller, _: &CgroupPath, _: Note, _: &str) -> io::Result<()> {
        Err(io::ErrorKind::NotFound.into())
    }
}

// === impl Note ===

impl Note {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Originals => "originals",
            Self::Of(setting) => setting.name(),
            Self::Marks(of) => of.name(),
        }
    }

    /// Whether what it says is written one day. Of such notes a group to which others than root may write takes
    /// none: they could forge it. By a mark nothing comes back but
    /// what was asked for, or what the group has.
    pub(crate) fn is_of_values(self) -> bool {
        match self {
            Self::Originals | Self::Of(_) => true,
            Self::Marks(_) => false,
        }
    }
}

// === impl Controller ===

impl Controller {
    pub const ALL: &[Self] = &[Self::Cpu, Self::Cpuset, Self::Memory, Self::Io];

    pub fn name(self, generation: Generation) -> &'static str {
        match (self, generation) {
            (Self::Cpu, _) => "cpu",
            (Self::Cpuset, _) => "cpuset",
            (Self::Memory, _) => "memory",
            (Self::Io, Generation::V1) => "blkio",
            (Self::Io, Generation::V2) => "io",
        }
    }
}

//! The class ids of groups, by which a filter of a queue knows who sends (`net_cls.classid` of cgroup v1,
//! `net/core/netclassid_cgroup.c`).
//!
//! A group that is made has the id of the one in which it is made, and from then on one of its own. What
//! counts of a packet is the id of its socket, which is that of the group whose process made it: a write
//! changes that of all sockets that processes of the group have, and of none below it.

use super::{
    Names,
    os_tree::{Mount, is_absence},
};
use koord_model::CgroupPath;
use std::{io, path::Path};

const FILE: &str = "net_cls.classid";

/// The hierarchy with the controller `net_cls`.
#[derive(Debug)]
pub struct ClassIds(Mount);

// === impl ClassIds ===

impl ClassIds {
    /// That below `root`, which is `/sys/fs/cgroup` on a node; `None` if none is mounted there.
    ///
    /// # Errors
    ///
    /// When that cannot be found out now.
    pub fn open(root: &Path) -> io::Result<Option<Self>> {
        Ok(Mount::of_v1(root, "net_cls")?.map(Self))
    }

    /// The id of a group, zero if it was given none; `None` if the group is not there.
    ///
    /// # Errors
    ///
    /// When it cannot be read.
    pub fn of(&self, at: &CgroupPath) -> io::Result<Option<u32>> {
        let text = unless_absent(self.0.read(at, FILE))?;
        match text.map(|text| text.trim_end().parse::<u32>()) {
            None => Ok(None),
            Some(Ok(id)) => Ok(Some(id)),
            Some(Err(_)) => Err(io::ErrorKind::InvalidData.into()),
        }
    }

    /// Gives a group another id, zero for none. One that is not there needs none.
    ///
    /// # Errors
    ///
    /// When the kernel refuses it.
    pub fn set(&self, at: &CgroupPath, id: u32) -> io::Result<()> {
        unless_absent(self.0.write(at, FILE, &id.to_string())).map(drop)
    }

    /// The groups directly below one, no more than `most`; none if it is not there.
    ///
    /// # Errors
    ///
    /// When they cannot be listed.
    pub fn below(&self, at: &CgroupPath, most: usize) -> io::Result<Names> {
        Ok(unless_absent(self.0.children(at, most))?.unwrap_or_default())
    }
}

fn unless_absent<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) if is_absence(&error) => Ok(None),
        Err(error) => Err(error),
    }
}

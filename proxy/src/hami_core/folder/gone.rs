//! What containers that have gone have left: it is set aside at once, and cleared later.
//!
//! Whoever may no longer have its name is given one of our own beside it, by which also a later process
//! finds it. That takes nothing but the directory around it, whatever is in it and whosever that is. To clear
//! it takes as long as a container has made it, and fails for what is in a folder that only another user
//! may read or write: root overrides that by capabilities, which we need not have.

use super::FOLDER;
use rustix::{
    fs::{AtFlags, Dir, Mode},
    io::Errno,
};
use std::{
    collections::BTreeSet,
    ffi::{CStr, CString},
    os::fd::OwnedFd,
    time::UNIX_EPOCH,
};

/// How our names begin. Those of folders that are in use do not: they begin with a pod's UID.
const GONE: &str = ".gone-";

/// How often another name is tried where one is taken.
const TRIES: u32 = 8;

/// What is cleared in one go: folders in folders, and all that there is.
const MAX_LEVELS: u32 = 8;
pub(super) const MAX_FILES: u32 = 4096;

/// What is looked at for that: there may be much that cannot be removed, which comes first each time.
const MAX_LOOKS: u32 = 65_536;

/// How many one round takes.
pub(super) const MAX_NAMES: usize = 1024;

/// One go.
struct Sweep {
    /// How much may still be removed.
    left: u32,
    /// How much may still be looked at.
    looks: u32,
}

/// Gives whatever has this name, if anything, one of those that are cleared.
pub(super) fn set_aside(around: &OwnedFd, name: &CStr) -> rustix::io::Result<()> {
    unless_gone(moved(around, name, around))
}

/// Whether this is one of our names.
pub(super) fn is_set_aside(name: &CStr) -> bool {
    let number = name.to_bytes().strip_prefix(GONE.as_bytes());
    number.is_some_and(|it| it.iter().all(u8::is_ascii_digit))
}

/// Those that are to be cleared, by their names in order, from the one after `last` on and around: no more
/// than [`MAX_NAMES`] of them, and how many there are.
pub(super) fn names(around: &OwnedFd, last: &[u8]) -> rustix::io::Result<(Vec<CString>, usize)> {
    let mut count = 0;
    let mut next = BTreeSet::new();
    for entry in Dir::read_from(around)? {
        let entry = entry?;
        let name = entry.file_name();
        if !is_set_aside(name) {
            continue;
        }
        count += 1;
        next.insert((name.to_bytes() <= last, name.to_owned()));
        if next.len() > MAX_NAMES {
            next.pop_last();
        }
    }
    Ok((next.into_iter().map(|(_, name)| name).collect(), count))
}

/// Removes whatever has this name, with what is in it, as far as one go takes it; whether all has gone. An
/// error if nothing of it can be removed.
pub(super) fn clear(around: &OwnedFd, name: &CStr) -> rustix::io::Result<bool> {
    let mut sweep = Sweep {
        left: MAX_FILES,
        looks: MAX_LOOKS,
    };
    match sweep.remove(around, name, MAX_LEVELS, None) {
        Ok(()) => Ok(true),
        Err(_) if sweep.left < MAX_FILES => Ok(false),
        Err(errno) => Err(errno),
    }
}

/// Gives something a name of ours, right in this directory.
fn moved(from: &OwnedFd, name: &CStr, to: &OwnedFd) -> rustix::io::Result<()> {
    let mut left = TRIES;
    loop {
        let number = UNIX_EPOCH.elapsed().unwrap_or_default().as_nanos();
        match rustix::fs::renameat(from, name, to, format!("{GONE}{number}")) {
            // Another has this name.
            Err(Errno::NOTEMPTY | Errno::EXIST | Errno::NOTDIR | Errno::ISDIR) if left > 0 => {
                left -= 1;
            }
            moved => return moved,
        }
    }
}

/// A container may have removed it meanwhile.
fn unless_gone(done: rustix::io::Result<()>) -> rustix::io::Result<()> {
    match done {
        Err(Errno::NOENT) => Ok(()),
        done => done,
    }
}

// === impl Sweep ===

impl Sweep {
    /// Removes what has this name, and what is in it no deeper than these `levels`. What is deeper comes up
    /// into `top`, the directory with which it was set aside (`None` for that itself): beside that no more
    /// is to be than was set aside. What cannot be removed stops nothing of what is beside it.
    fn remove(
        &mut self,
        within: &OwnedFd,
        name: &CStr,
        levels: u32,
        top: Option<&OwnedFd>,
    ) -> rustix::io::Result<()> {
        match rustix::fs::unlinkat(within, name, AtFlags::REMOVEDIR) {
            Err(Errno::NOTDIR) => {
                let removed = rustix::fs::unlinkat(within, name, AtFlags::empty());
                return self.count_removed(removed);
            }
            Err(Errno::NOTEMPTY | Errno::EXIST) => {}
            removed => return self.count_removed(removed),
        }
        if let (0, Some(top)) = (levels, top) {
            return self.count_removed(moved(within, name, top));
        }
        let folder = rustix::fs::openat(within, name, FOLDER, Mode::empty())?;
        let top = top.unwrap_or(&folder);
        let mut first: rustix::io::Result<()> = Ok(());
        for entry in Dir::read_from(&folder)? {
            let entry = entry?;
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            if self.left == 0 || self.looks == 0 {
                return Err(Errno::NOTEMPTY);
            }
            self.looks -= 1;
            first = first.and(self.remove(&folder, name, levels - 1, Some(top)));
        }
        first?;
        self.count_removed(rustix::fs::unlinkat(within, name, AtFlags::REMOVEDIR))
    }

    fn count_removed(&mut self, done: rustix::io::Result<()>) -> rustix::io::Result<()> {
        if done.is_ok() {
            self.left = self.left.saturating_sub(1);
        }
        unless_gone(done)
    }
}

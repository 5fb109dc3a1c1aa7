//! Files that one process has at a time. They stay when it goes: to remove one would let two processes
//! lock two files of one name.

use rustix::{
    fs::{FlockOperation, Mode, OFlags},
    io::Errno,
};
use std::{os::fd::OwnedFd, path::Path};

/// Locks the file at `path`, which is made if it is not there, until the descriptor is closed or its
/// process ends; `None` if another process has it. A link is not followed.
pub(crate) fn take(path: &Path) -> Result<Option<OwnedFd>, Errno> {
    let flags = OFlags::CREATE | OFlags::RDWR | OFlags::CLOEXEC | OFlags::NOFOLLOW;
    let file = rustix::fs::open(path, flags, Mode::RUSR | Mode::WUSR)?;
    match rustix::fs::flock(&file, FlockOperation::NonBlockingLockExclusive) {
        Ok(()) => Ok(Some(file)),
        Err(Errno::WOULDBLOCK) => Ok(None),
        Err(errno) => Err(errno),
    }
}

//! A folder of files that another program of the node reads.
//!
//! A file is replaced as a whole, by a rename, so whoever reads it finds the old or the new one, and
//! so it is after a crash. Nothing waits for the disk: after a power loss no pod runs of which the
//! files tell, and what they say is looked at before it counts as said.
//!
//! The names are ours, and below the folder no link is followed, so nothing outside of it is read,
//! written or removed. Files of ours have the sticky bit, which nobody else has a use for there: by
//! it they are known after a restart; what is to take the place of one has it from when it is whole, and
//! until then a name that nobody else gives. No other file is removed.

use rustix::{
    fs::{AtFlags, FileType, Mode, OFlags},
    io::Errno,
};
use std::{
    fs::File,
    io::{self, Read, Write},
    os::fd::OwnedFd,
    path::PathBuf,
};
use thiserror::Error;

/// A folder, which need not be there.
#[derive(Debug)]
pub struct Folder {
    path: PathBuf,
}

/// Why a file is not as it should be.
#[derive(Debug, Error)]
#[error("{path} cannot be {action}")]
pub struct FolderError {
    path: PathBuf,
    action: &'static str,
    source: io::Error,
}

/// What everybody may read.
const READABLE: Mode = Mode::from_bits_retain(0o644);
const DIRECTORY_MODE: Mode = Mode::from_bits_retain(0o755);
/// The mark of a file that is ours.
const OURS: Mode = Mode::SVTX;

// === impl FolderError ===

impl FolderError {
    /// Whether there is nobody to read it: not even the folder around ours is there.
    pub fn is_absent(&self) -> bool {
        self.source.kind() == io::ErrorKind::NotFound
    }

    pub fn errno(&self) -> Option<i32> {
        self.source.raw_os_error()
    }
}

// === impl Folder ===

impl Folder {
    pub fn at(path: PathBuf) -> Self {
        Self { path }
    }

    /// Whether a file of ours has this name.
    #[cfg(test)]
    pub(super) fn has(&self, name: &str) -> bool {
        self.open().is_ok_and(|folder| is_ours(&folder, name))
    }

    /// Has a file say this, and the folder be there. Whether it said something else.
    ///
    /// # Errors
    ///
    /// When the folder cannot be opened or made, as where there is none around it
    /// ([`FolderError::is_absent`]), or the file cannot be written.
    pub fn put(&self, name: &'static str, text: &str) -> Result<bool, FolderError> {
        let folder = match self.open() {
            Err(error) if error.kind() == io::ErrorKind::NotFound => self.make(),
            opened => opened,
        };
        let folder = folder.map_err(|source| self.failed("", "opened", source))?;
        if says(&folder, name, text).unwrap_or(false) {
            return Ok(false);
        }
        let replaced = replace(&folder, name, text);
        replaced.map_err(|source| self.failed(name, "written", source))?;
        Ok(true)
    }

    /// Removes a file of ours, with what a crash left of one that was to take its place. Whether there was
    /// any.
    ///
    /// # Errors
    ///
    /// When there is such a folder and it cannot be opened, or a file cannot be removed.
    pub fn withdraw(&self, name: &'static str) -> Result<bool, FolderError> {
        let folder = match self.open() {
            Ok(folder) => folder,
            Err(error) if is_nowhere(&error) => return Ok(false),
            Err(source) => return Err(self.failed("", "opened", source)),
        };
        let fresh = fresh(name);
        let is_there = [
            (name, is_ours(&folder, name)),
            // It has the mark only once it is whole.
            (&fresh, is_file(&folder, &fresh)),
        ];
        for (name, _) in is_there.iter().filter(|(_, is_there)| *is_there) {
            match rustix::fs::unlinkat(&folder, *name, AtFlags::empty()) {
                Ok(()) | Err(Errno::NOENT) => {}
                Err(errno) => return Err(self.failed(name, "removed", errno.into())),
            }
        }
        Ok(is_there.iter().any(|(_, is_there)| *is_there))
    }

    fn open(&self) -> io::Result<OwnedFd> {
        let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
        Ok(rustix::fs::open(&self.path, flags, Mode::empty())?)
    }

    fn make(&self) -> io::Result<OwnedFd> {
        rustix::fs::mkdir(&self.path, DIRECTORY_MODE)?;
        self.open()
    }

    fn failed(&self, name: &str, action: &'static str, source: io::Error) -> FolderError {
        let path = match name {
            "" => self.path.clone(),
            name => self.path.join(name),
        };
        FolderError {
            path,
            action,
            source,
        }
    }
}

/// Whether there is no such folder, so that nothing can be in it.
fn is_nowhere(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        io::ErrorKind::NotFound | io::ErrorKind::NotADirectory
    )
}

fn is_ours(folder: &OwnedFd, name: &str) -> bool {
    mode_of_file(folder, name).is_some_and(|mode| mode.contains(OURS))
}

fn is_file(folder: &OwnedFd, name: &str) -> bool {
    mode_of_file(folder, name).is_some()
}

/// `None` if there is no file of this name, but a link perhaps.
fn mode_of_file(folder: &OwnedFd, name: &str) -> Option<Mode> {
    let found = rustix::fs::statat(folder, name, AtFlags::SYMLINK_NOFOLLOW).ok()?;
    let is_file = FileType::from_raw_mode(found.st_mode) == FileType::RegularFile;
    is_file.then(|| Mode::from_raw_mode(found.st_mode))
}

/// The name, ours alone, of what is to take a file's place.
fn fresh(name: &str) -> String {
    format!(".{name}.koord-runtime-proxy")
}

/// Whether a file of ours says exactly this.
fn says(folder: &OwnedFd, name: &str, text: &str) -> io::Result<bool> {
    if !is_ours(folder, name) {
        return Ok(false);
    }
    // It may be a pipe by now, which would be waited for.
    let unbound = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = OFlags::RDONLY | OFlags::NOFOLLOW | OFlags::CLOEXEC | unbound;
    let file = rustix::fs::openat(folder, name, flags, Mode::empty())?;
    let mut found = Vec::with_capacity(text.len() + 1);
    let bound = text.len() as u64 + 1;
    File::from(file).take(bound).read_to_end(&mut found)?;
    Ok(found == text.as_bytes())
}

fn replace(folder: &OwnedFd, name: &str, text: &str) -> io::Result<()> {
    let fresh = fresh(name);
    // One of ours from before a crash, or a link that somebody laid there to have us write to what it
    // leads to: neither is opened.
    match rustix::fs::unlinkat(folder, &fresh, AtFlags::empty()) {
        Ok(()) | Err(Errno::NOENT) => {}
        Err(errno) => return Err(errno.into()),
    }
    let flags = OFlags::WRONLY | OFlags::CREATE | OFlags::EXCL | OFlags::NOFOLLOW | OFlags::CLOEXEC;
    let file = rustix::fs::openat(folder, &fresh, flags, READABLE)?;
    let renamed = fill(file.into(), text)
        .and_then(|()| Ok(rustix::fs::renameat(folder, &fresh, folder, name)?));
    if renamed.is_err() {
        rustix::fs::unlinkat(folder, &fresh, AtFlags::empty()).ok();
    }
    renamed
}

fn fill(mut file: File, text: &str) -> io::Result<()> {
    file.write_all(text.as_bytes())?;
    // Whatever our umask is.
    Ok(rustix::fs::fchmod(&file, READABLE | OURS)?)
}

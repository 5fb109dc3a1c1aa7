//! Reading a file that somebody else lays down, whole and without trusting it to be one.
//!
//! A path may lead to anything. Opening a named pipe waits for a writer, and a device may have no
//! end: so a file is opened without waiting, is looked at before it is read, and is read up to a
//! bound. Symbolic links are followed, because a ConfigMap volume is made of them.

use rustix::fs::{FileType, Mode, OFlags};
use std::{
    fs::File,
    io::{self, Read},
    path::Path,
};
use thiserror::Error;

/// Why a file was not read.
#[derive(Debug, Error)]
pub enum FileError {
    #[error(transparent)]
    Io(#[from] io::Error),
    #[error("it is {kind}, and only a regular file is read")]
    NotRegular { kind: &'static str },
    #[error("it is larger than {limit} bytes")]
    TooLarge { limit: u64 },
}

/// What is in the file at `path`.
///
/// # Errors
///
/// When it cannot be opened or read, is no regular file, or has more than `limit` bytes.
pub fn read(path: &Path, limit: u64) -> Result<Vec<u8>, FileError> {
    read_within(path, limit, |_| {})
}

/// The same of one that may be longer: whenever there are more than `limit` bytes of what has been read,
/// `make_room` takes some of them out.
///
/// # Errors
///
/// When it cannot be opened or read, is no regular file, or `make_room` leaves more than `limit` bytes.
pub fn read_within(
    path: &Path,
    limit: u64,
    mut make_room: impl FnMut(&mut Vec<u8>),
) -> Result<Vec<u8>, FileError> {
    let file = open(path)?;
    let mut bytes = Vec::new();
    loop {
        let room = limit + 1 - bytes.len() as u64;
        (&file).take(room).read_to_end(&mut bytes)?;
        if bytes.len() as u64 <= limit {
            return Ok(bytes);
        }
        make_room(&mut bytes);
        if bytes.len() as u64 > limit {
            return Err(FileError::TooLarge { limit });
        }
    }
}

fn open(path: &Path) -> Result<File, FileError> {
    // Neither has a meaning for regular files; a terminal must not become ours.
    let unbound = OFlags::NONBLOCK | OFlags::NOCTTY;
    let flags = OFlags::RDONLY | OFlags::CLOEXEC | unbound;
    let file = rustix::fs::open(path, flags, Mode::empty()).map_err(io::Error::from)?;
    let status = rustix::fs::fstat(&file).map_err(io::Error::from)?;
    let kind = FileType::from_raw_mode(status.st_mode);
    match kind {
        FileType::RegularFile => Ok(file.into()),
        _ => Err(FileError::NotRegular { kind: name(kind) }),
    }
}

fn name(kind: FileType) -> &'static str {
    match kind {
        FileType::Directory => "a directory",
        FileType::Fifo => "a named pipe",
        FileType::CharacterDevice | FileType::BlockDevice => "a device",
        _ => "of another kind",
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files for tests")]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    #[test]
    fn a_file_is_read_up_to_its_bound_and_through_links() {
        let dir = tempfile::tempdir().unwrap();
        let (file, link) = (dir.path().join("file"), dir.path().join("link"));
        std::fs::write(&file, "1234").unwrap();
        symlink("file", &link).unwrap();
        assert_eq!(read(&link, 4).unwrap(), b"1234");
        let error = read(&link, 3).unwrap_err();
        assert_eq!(error.to_string(), "it is larger than 3 bytes");
        let error = read(&dir.path().join("none"), 3).unwrap_err();
        assert_eq!(error.to_string(), "No such file or directory (os error 2)");
    }

    #[test]
    fn of_a_file_beyond_its_bound_is_read_what_there_is_made_room_for() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "12345678").unwrap();
        let without = |most| move |bytes: &mut Vec<u8>| drop(bytes.drain(..bytes.len().min(most)));
        assert_eq!(read_within(&file, 4, without(3)).unwrap(), b"78");
        assert_eq!(read_within(&file, 8, without(3)).unwrap(), b"12345678");
        let error = read_within(&file, 4, without(0)).unwrap_err();
        assert_eq!(error.to_string(), "it is larger than 4 bytes");
    }

    #[test]
    fn what_may_wait_or_never_end_is_not_read() {
        let dir = tempfile::tempdir().unwrap();
        let pipe = dir.path().join("pipe");
        rustix::fs::mknodat(
            rustix::fs::CWD,
            &pipe,
            FileType::Fifo,
            Mode::RUSR | Mode::WUSR,
            0,
        )
        .unwrap();
        for (path, kind) in [
            (pipe.as_path(), "a named pipe"),
            (Path::new("/dev/zero"), "a device"),
            (dir.path(), "a directory"),
        ] {
            let error = read(path, 4).unwrap_err();
            assert_eq!(
                error.to_string(),
                format!("it is {kind}, and only a regular file is read")
            );
        }
    }
}

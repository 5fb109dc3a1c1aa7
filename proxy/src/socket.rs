//! Unix sockets of our own, bound so that nobody else can ever connect and nobody else's is taken,
//! and who may speak on them.
//!
//! A socket that we bind is mode 0600 from the moment it exists: its file takes the mode of the
//! unbound socket (`unix_bind_bsd` in Linux' `net/unix/af_unix.c`), so the mode is set before the
//! name, and neither the process's umask nor a `chmod` afterwards leaves a gap.
//!
//! A file that is there already is replaced only if it is a socket that nobody serves. Two of us
//! that start at the same time could both find it so; a lock beside it, held as long as we serve,
//! lets one of them go on.
//!
//! A socket that a service manager hands over has the mode that its unit says, so whoever accepts
//! looks at the peer as well.

use crate::lock_file;
use rustix::{
    fd::OwnedFd,
    fs::Mode,
    io::Errno,
    net::{AddressFamily, SocketAddrUnix, SocketFlags, SocketType},
};
use std::{
    fs::{DirBuilder, Metadata},
    io,
    os::unix::fs::{DirBuilderExt, FileTypeExt, MetadataExt},
    path::{Path, PathBuf},
};
use thiserror::Error;
use tokio::net::{UnixListener, UnixStream};

/// Connections that wait to be accepted.
const BACKLOG: i32 = 1024;

/// Who may enter a directory that has to be made for a socket.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Directory {
    /// 0755: others may see that a socket is there.
    Public,
    /// 0700.
    Private,
}

/// A file that is removed once its owner is dropped, unless somebody replaced it meanwhile.
#[derive(Debug)]
pub struct SocketFile {
    path: PathBuf,
    identity: (u64, u64),
    /// Held open: the lock lasts as long.
    _lock: OwnedFd,
}

/// Why a socket could not be bound.
#[derive(Debug, Error)]
pub enum BindError {
    #[error("cannot make the directory {}", path.display())]
    Directory {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    #[error("another process is about to serve {}, or serves it", path.display())]
    Locked { path: PathBuf },
    #[error("another process serves {}", path.display())]
    InUse { path: PathBuf },
    #[error("{} is there and is no socket", path.display())]
    NoSocket { path: PathBuf },
    #[error("cannot {step} {}", path.display())]
    Io {
        step: &'static str,
        path: PathBuf,
        #[source]
        source: io::Error,
    },
}

// === impl BindError ===

impl BindError {
    /// Whether it is for want of something that there may be again: room in a file system, descriptors,
    /// memory.
    pub fn may_pass(&self) -> bool {
        let (Self::Directory { source, .. } | Self::Io { source, .. }) = self else {
            return false;
        };
        let wants = [
            Errno::NOSPC,
            Errno::DQUOT,
            Errno::ROFS,
            Errno::MFILE,
            Errno::NFILE,
            Errno::NOMEM,
        ];
        Errno::from_io_error(source).is_some_and(|errno| wants.contains(&errno))
    }

    /// Whether another process has it, which may be one that has yet to end.
    pub fn is_anothers(&self) -> bool {
        matches!(self, Self::Locked { .. } | Self::InUse { .. })
    }
}

/// Binds `path` for our own user alone and listens. Must run within a tokio runtime.
///
/// # Errors
///
/// When another process serves `path` or is about to; when something is there that is no socket; and when the
/// directory, the lock or the socket cannot be had.
pub fn bind(path: &Path, directory: Directory) -> Result<(UnixListener, SocketFile), BindError> {
    make_directory(path, directory)?;
    let failed = |step| {
        move |source: io::Error| BindError::Io {
            step,
            path: path.to_owned(),
            source,
        }
    };
    let lock = lock(path)?;
    remove_stale(path)?;
    let socket = rustix_socket().map_err(failed("make a socket for"))?;
    let listen = || -> Result<(), Errno> {
        rustix::fs::fchmod(&socket, Mode::RUSR | Mode::WUSR)?;
        rustix::net::bind(&socket, &SocketAddrUnix::new(path)?)?;
        rustix::net::listen(&socket, BACKLOG)
    };
    listen().map_err(io::Error::from).map_err(failed("bind"))?;
    let identity = path.symlink_metadata().map_err(failed("find"))?;
    let listener = UnixListener::from_std(socket.into()).map_err(failed("serve"))?;
    let file = SocketFile {
        path: path.to_owned(),
        identity: identify(&identity),
        _lock: lock,
    };
    Ok((listener, file))
}

/// Has nobody of us bind `path` for as long as this is held; an error if somebody has, or is about to.
pub(crate) fn reserve(path: &Path, directory: Directory) -> Result<OwnedFd, BindError> {
    make_directory(path, directory)?;
    lock(path)
}

/// Whether the peer is root, or whoever runs this process. Nobody else has business here.
pub(crate) fn peer_is_root_or_us(stream: &UnixStream) -> bool {
    let peer = stream.peer_cred().map(|peer| peer.uid());
    peer.is_ok_and(|uid| uid == 0 || uid == koord_kernel::process::own_uid())
}

fn make_directory(socket: &Path, directory: Directory) -> Result<(), BindError> {
    let Some(parent) = socket.parent() else {
        return Ok(());
    };
    let mode = match directory {
        Directory::Public => 0o755,
        Directory::Private => 0o700,
    };
    DirBuilder::new()
        .recursive(true)
        .mode(mode)
        .create(parent)
        .map_err(|source| BindError::Directory {
            path: parent.to_owned(),
            source,
        })
}

fn lock(socket: &Path) -> Result<OwnedFd, BindError> {
    let mut path = socket.as_os_str().to_owned();
    path.push(".lock");
    let path = PathBuf::from(path);
    let file = lock_file::take(&path).map_err(|errno| BindError::Io {
        step: "lock",
        path,
        source: errno.into(),
    })?;
    file.ok_or_else(|| BindError::Locked {
        path: socket.to_owned(),
    })
}

/// Removes what a process that is gone has left at `path`.
fn remove_stale(path: &Path) -> Result<(), BindError> {
    let failed = |step| {
        move |source| BindError::Io {
            step,
            path: path.to_owned(),
            source,
        }
    };
    match path.symlink_metadata() {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(()),
        Err(error) => return Err(failed("look at")(error)),
        Ok(metadata) if !metadata.file_type().is_socket() => {
            return Err(BindError::NoSocket {
                path: path.to_owned(),
            });
        }
        Ok(_) => {}
    }
    let probe = rustix_socket().map_err(failed("make a socket for"))?;
    let address = SocketAddrUnix::new(path).map_err(|errno| failed("reach")(errno.into()))?;
    match rustix::net::connect(&probe, &address) {
        Err(Errno::CONNREFUSED) => std::fs::remove_file(path).map_err(failed("remove")),
        // A full backlog is somebody, too.
        Ok(()) | Err(Errno::AGAIN) => Err(BindError::InUse {
            path: path.to_owned(),
        }),
        Err(errno) => Err(failed("reach")(errno.into())),
    }
}

fn rustix_socket() -> io::Result<OwnedFd> {
    let flags = SocketFlags::CLOEXEC | SocketFlags::NONBLOCK;
    let socket = rustix::net::socket_with(AddressFamily::UNIX, SocketType::STREAM, flags, None)?;
    Ok(socket)
}

fn identify(metadata: &Metadata) -> (u64, u64) {
    (metadata.dev(), metadata.ino())
}

// === impl SocketFile ===

impl Drop for SocketFile {
    fn drop(&mut self) {
        let ours = self
            .path
            .symlink_metadata()
            .is_ok_and(|metadata| identify(&metadata) == self.identity);
        if ours && let Err(error) = std::fs::remove_file(&self.path) {
            tracing::debug!(
                error = &error as &dyn std::error::Error,
                path = %self.path.display(),
                "the socket file stays behind"
            );
        }
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files for tests")]
mod tests {
    use super::*;
    use koord_testkit::poll::wait_until;
    use std::os::unix::{fs::PermissionsExt, net::UnixListener as StdListener};

    #[test]
    fn what_is_for_want_of_room_may_pass() {
        let of = |errno: Errno| BindError::Directory {
            path: "/run/x".into(),
            source: errno.into(),
        };
        let passes = |errno| of(errno).may_pass();
        assert_eq!([Errno::NOSPC, Errno::MFILE].map(passes), [true, true]);
        assert_eq!([Errno::ACCESS, Errno::NOTDIR].map(passes), [false, false]);
        let path = "/run/x".into();
        assert!(!BindError::InUse { path }.may_pass());
    }

    fn mode(path: &Path) -> u32 {
        path.metadata().unwrap().permissions().mode() & 0o7777
    }

    #[tokio::test]
    async fn a_socket_is_for_its_owner_alone_and_goes_with_it() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/b/proxy.sock");
        let (listener, file) = bind(&path, Directory::Private).unwrap();
        assert_eq!(mode(&path), 0o600);
        assert_eq!(mode(path.parent().unwrap()), 0o700);
        let (client, server) = tokio::join!(UnixStream::connect(&path), listener.accept());
        assert!(client.is_ok() && server.is_ok());
        drop(file);
        assert!(!path.exists());
    }

    #[tokio::test]
    async fn a_socket_that_nobody_serves_is_replaced() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("proxy.sock");
        drop(StdListener::bind(&path).unwrap());
        assert!(path.exists());
        // Threads and children of other tests have copies for a moment.
        let mut bound = None;
        wait_until("nobody serves it", || {
            bound = bind(&path, Directory::Public).ok();
            bound.is_some()
        });
        assert!(UnixStream::connect(&path).await.is_ok());
    }

    #[tokio::test]
    async fn a_socket_that_somebody_serves_is_left_to_them() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("proxy.sock");
        let _other = StdListener::bind(&path).unwrap();
        let error = bind(&path, Directory::Public).unwrap_err();
        assert!(matches!(error, BindError::InUse { .. }), "{error:?}");
        assert!(UnixStream::connect(&path).await.is_ok());
    }

    #[tokio::test]
    async fn the_second_of_two_that_start_together_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("proxy.sock");
        // The first has the lock but has not bound yet.
        let first = lock(&path).unwrap();
        let error = bind(&path, Directory::Public).unwrap_err();
        assert!(matches!(error, BindError::Locked { .. }), "{error:?}");
        drop(first);
        // Threads and children of other tests have copies for a moment.
        wait_until("the lock is free", || {
            bind(&path, Directory::Public).is_ok()
        });
    }

    #[tokio::test]
    async fn a_file_that_is_no_socket_is_never_removed() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("proxy.sock");
        std::fs::write(&path, "precious").unwrap();
        let error = bind(&path, Directory::Public).unwrap_err();
        assert!(matches!(error, BindError::NoSocket { .. }), "{error:?}");
        assert_eq!(std::fs::read_to_string(&path).unwrap(), "precious");
    }

    #[tokio::test]
    async fn a_socket_that_took_the_place_of_ours_stays() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("proxy.sock");
        let (_listener, file) = bind(&path, Directory::Public).unwrap();
        std::fs::remove_file(&path).unwrap();
        let _successor = StdListener::bind(&path).unwrap();
        drop(file);
        assert!(path.exists());
    }
}

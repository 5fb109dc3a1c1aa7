//! A peer on its socket. Nothing here waits but [`Readiness`], so whoever has the wire in hand may
//! use it, on whichever thread.

use super::session::SessionError;
use crate::readiness::registered;
use koord_nri::Peer;
use std::{
    io::{self, ErrorKind, Read, Write},
    os::unix::net::UnixStream,
    sync::Arc,
    time::Duration,
};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::sleep,
};

/// One read takes at most this much.
const READ_BUFFER: usize = 64 << 10;

/// How often room is looked for where nobody can be told of it.
const UNTOLD: Duration = Duration::from_millis(20);

#[derive(Debug)]
pub(super) struct Wire {
    socket: Arc<UnixStream>,
    pub(super) peer: Peer,
    buffer: Box<[u8]>,
}

/// Tells who runs on tokio when a wire's socket has something to read; nothing is read or written by it.
#[derive(Debug)]
pub(super) struct Readiness(AsyncFd<UnixStream>);

// === impl Wire ===

impl Wire {
    pub(super) fn new(socket: UnixStream, peer: Peer) -> io::Result<Self> {
        socket.set_nonblocking(true)?;
        Ok(Self {
            socket: Arc::new(socket),
            peer,
            buffer: vec![0; READ_BUFFER].into(),
        })
    }

    pub(super) fn socket(&self) -> &Arc<UnixStream> {
        &self.socket
    }

    pub(super) fn readiness(&self) -> io::Result<Readiness> {
        registered(self.socket.try_clone()?, Interest::READABLE).map(Readiness)
    }

    /// Reads once. Whether there may be more: a socket that gave less than was asked for is empty.
    pub(super) fn read(&mut self) -> Result<bool, SessionError> {
        match (&*self.socket).read(&mut self.buffer) {
            Ok(0) => {
                // A runtime that stops may do so in the middle of a frame.
                drop(self.peer.end());
                Err(SessionError::Closed)
            }
            Ok(count) => {
                self.peer.feed(&self.buffer[..count])?;
                Ok(count == self.buffer.len())
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => Ok(false),
                ErrorKind::Interrupted => Ok(true),
                _ => Err(error.into()),
            },
        }
    }

    /// Writes as much as the socket takes.
    pub(super) fn flush(&mut self) -> io::Result<()> {
        flush(&mut self.peer, &*self.socket)
    }

    pub(super) fn waits_to_write(&self) -> bool {
        !self.peer.output().is_empty()
    }
}

// === impl Readiness ===

impl Readiness {
    /// Resolves once there may be something to read, or room to write if there was none. Whoever
    /// waits has to read and write then until the socket has no more: it is told of changes only.
    pub(super) async fn changed(&self, waits_to_write: bool) -> io::Result<()> {
        let readable = async || self.0.readable().await.map(|mut ready| ready.clear_ready());
        if !waits_to_write {
            return readable().await;
        }
        // A descriptor of its own, since epoll takes each but once; there is mostly room.
        let another = self.0.get_ref().try_clone();
        let room = another.and_then(|socket| registered(socket, Interest::WRITABLE));
        let found = async {
            match &room {
                Ok(room) => room.writable().await.map(drop),
                // One that cannot be had is no reason to lose the runtime.
                Err(_) => {
                    sleep(UNTOLD).await;
                    Ok(())
                }
            }
        };
        tokio::select! {
            biased;
            heard = readable() => heard,
            found = found => found,
        }
    }
}

fn flush(peer: &mut Peer, mut socket: impl Write) -> io::Result<()> {
    while !peer.output().is_empty() {
        match socket.write(peer.output()) {
            // It would go on so.
            Ok(0) => return Err(ErrorKind::WriteZero.into()),
            Ok(count) => peer.advance(count),
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock => break,
                ErrorKind::Interrupted => {}
                _ => return Err(error),
            },
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_nri::{Limits, Role};
    use tokio::time::timeout;

    #[tokio::test]
    async fn who_waits_for_room_waits_until_the_other_end_reads() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let wire = Wire::new(ours, Peer::new(Role::Plugin, Limits::default())).unwrap();
        let readiness = wire.readiness().unwrap();
        let changes = async |time| timeout(time, readiness.changed(true)).await.is_ok();
        // There is room at first.
        assert!(changes(Duration::from_secs(30)).await);
        let mut socket = &**wire.socket();
        while socket.write(&[0; 4096]).is_ok() {}
        let mut times = 0;
        while times < 8 && changes(Duration::from_millis(50)).await {
            times += 1;
        }
        assert!(times < 8, "it is woken for nothing");
        let mut theirs = theirs;
        theirs.set_nonblocking(true).unwrap();
        while theirs.read(&mut [0; 4096]).is_ok() {}
        assert!(changes(Duration::from_secs(30)).await);
    }

    /// A socket that takes nothing and says that this is all right.
    struct Nothing(u32);

    impl Write for Nothing {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            self.0 += 1;
            assert_eq!(self.0, 1, "it goes on");
            Ok(0)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn a_socket_that_takes_nothing_is_an_error() {
        let mut peer = Peer::new(Role::Plugin, Limits::default());
        peer.call("S", "M", b"", None).unwrap();
        let error = flush(&mut peer, Nothing(0)).unwrap_err();
        assert_eq!(error.kind(), ErrorKind::WriteZero);
    }
}

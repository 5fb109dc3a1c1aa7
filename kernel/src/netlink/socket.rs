//! A socket to the kernel's network, over which one request goes after the other.

use super::message::{DONE, ERROR, INTERRUPTED, Message, Request, messages, u32_at};
use rustix::{
    io::Errno,
    net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, netdevice,
        sockopt::{self, Timeout},
    },
};
use std::{
    io,
    os::fd::{AsFd, OwnedFd},
    time::Duration,
};
use thiserror::Error;

/// The kernel answers at once; this is for one that does not at all.
const PATIENCE: Duration = Duration::from_secs(5);
/// More than the kernel puts into one answer.
const BUFFER: usize = 64 << 10;
/// How often a list is asked for that changes meanwhile.
const ATTEMPTS: usize = 4;

/// Why a request was not done.
#[derive(Debug, Error)]
pub enum NetlinkError {
    #[error("no socket to the kernel's network can be had")]
    Socket(#[source] io::Error),
    #[error("the kernel was not asked to {what}")]
    Send {
        what: &'static str,
        source: io::Error,
    },
    #[error("the kernel does not answer whether it could {what}")]
    Receive {
        what: &'static str,
        source: io::Error,
    },
    #[error("the kernel refuses to {what}")]
    Refused {
        what: &'static str,
        source: io::Error,
    },
    #[error("the kernel's answer to a request to {what} is not in its format")]
    Malformed { what: &'static str },
    #[error("what was listed to {what} changes all the time")]
    Changing { what: &'static str },
}

/// A socket, in the network namespace of the thread that opened it.
#[derive(Debug)]
pub struct Socket {
    socket: OwnedFd,
    sequence: u32,
    buffer: Vec<u8>,
}

/// How what answers a request ended.
enum End {
    Done,
    Interrupted,
}

// === impl NetlinkError ===

impl NetlinkError {
    /// The kernel's number for why, if it said one.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Socket(source)
            | Self::Send { source, .. }
            | Self::Receive { source, .. }
            | Self::Refused { source, .. } => source.raw_os_error(),
            Self::Malformed { .. } | Self::Changing { .. } => None,
        }
    }

    /// Whether the kernel has no such kind of thing (`ENOENT`, `EOPNOTSUPP`).
    pub fn is_unsupported(&self) -> bool {
        let unsupported = [Errno::NOENT, Errno::OPNOTSUPP].map(Errno::raw_os_error);
        matches!(self, Self::Refused { .. })
            && self.errno().is_some_and(|it| unsupported.contains(&it))
    }

    /// Whether this process may have no such socket: a filter or a policy refuses them, or the kernel has
    /// none (`EPERM`, `EACCES`, `EAFNOSUPPORT`, `EPROTONOSUPPORT`).
    pub fn is_without_socket(&self) -> bool {
        let without = [
            Errno::PERM,
            Errno::ACCESS,
            Errno::AFNOSUPPORT,
            Errno::PROTONOSUPPORT,
        ];
        let without = without.map(Errno::raw_os_error);
        matches!(self, Self::Socket(_)) && self.errno().is_some_and(|it| without.contains(&it))
    }
}

// === impl Socket ===

impl Socket {
    /// A socket for routes, interfaces and queues, on which each message is waited for up to 5 s.
    ///
    /// # Errors
    ///
    /// When it cannot be had ([`NetlinkError::Socket`]); where it never can,
    /// [`NetlinkError::is_without_socket`] says so.
    pub fn open() -> Result<Self, NetlinkError> {
        let socket = open().map_err(|errno| NetlinkError::Socket(errno.into()))?;
        Ok(Self {
            socket,
            sequence: 0,
            buffer: vec![0; BUFFER],
        })
    }

    /// Has something done, for which the request has to ask for an acknowledgement.
    ///
    /// # Errors
    ///
    /// When the request cannot be sent, or the kernel refuses it ([`NetlinkError::is_unsupported`] if it has
    /// no such kind of thing). When no answer comes in 5 s, or one that is not in the format, it may be done.
    pub fn ask(&mut self, what: &'static str, request: &Request) -> Result<(), NetlinkError> {
        self.exchange(what, request, |_, _| ()).map(drop)
    }

    /// What of a list `read` makes something of, by the kind and the payload of each message.
    ///
    /// # Errors
    ///
    /// When the request cannot be sent, is refused as for [`ask`](Self::ask), or is not answered in 5 s and
    /// in the format, or the list changes in each of 4 attempts ([`NetlinkError::Changing`]).
    pub fn list<T>(
        &mut self,
        what: &'static str,
        request: &Request,
        read: impl Fn(u16, &[u8]) -> Option<T>,
    ) -> Result<Vec<T>, NetlinkError> {
        for _ in 0..ATTEMPTS {
            let mut found = Vec::new();
            let end = self.exchange(what, request, |kind, payload| {
                found.extend(read(kind, payload));
            })?;
            if let End::Done = end {
                return Ok(found);
            }
        }
        Err(NetlinkError::Changing { what })
    }

    /// What the interface of a number is called.
    ///
    /// # Errors
    ///
    /// When the kernel names none, or its name is no text (`EILSEQ`).
    pub fn name(&self, link: u32) -> io::Result<String> {
        Ok(netdevice::index_to_name(self.socket.as_fd(), link)?)
    }

    fn exchange(
        &mut self,
        what: &'static str,
        request: &Request,
        mut each: impl FnMut(u16, &[u8]),
    ) -> Result<End, NetlinkError> {
        self.sequence = self.sequence.wrapping_add(1);
        let bytes = request.numbered(self.sequence);
        rustix::net::send(&self.socket, &bytes, SendFlags::empty()).map_err(|errno| {
            let source = errno.into();
            NetlinkError::Send { what, source }
        })?;
        let mut end = End::Done;
        loop {
            let length = self.receive(what)?;
            let datagram = &self.buffer[..length];
            let mut met = false;
            for message in messages(datagram) {
                met = true;
                if message.sequence != self.sequence {
                    // Of a request that was given up.
                    continue;
                }
                if message.flags & INTERRUPTED != 0 {
                    end = End::Interrupted;
                }
                match message.kind {
                    ERROR | DONE => {
                        return outcome(what, &message).map(|()| end);
                    }
                    kind => each(kind, message.payload),
                }
            }
            if !met {
                return Err(NetlinkError::Malformed { what });
            }
        }
    }

    fn receive(&mut self, what: &'static str) -> Result<usize, NetlinkError> {
        let received = rustix::io::retry_on_intr(|| {
            let buffer = self.buffer.as_mut_slice();
            rustix::net::recv(&self.socket, buffer, RecvFlags::TRUNC)
        });
        match received {
            Ok((held, length)) if held == length => Ok(held),
            // More than there was room for.
            Ok(_) => Err(NetlinkError::Malformed { what }),
            Err(errno) => Err(NetlinkError::Receive {
                what,
                source: errno.into(),
            }),
        }
    }
}

fn open() -> Result<OwnedFd, Errno> {
    let (family, kind) = (AddressFamily::NETLINK, SocketType::RAW);
    // The protocol that is said by none is that of routes, interfaces and queues.
    let socket = rustix::net::socket_with(family, kind, SocketFlags::CLOEXEC, None)?;
    sockopt::set_socket_timeout(&socket, Timeout::Recv, Some(PATIENCE))?;
    Ok(socket)
}

/// What the last message of an answer says: an error with its negative number, or zero.
fn outcome(what: &'static str, message: &Message<'_>) -> Result<(), NetlinkError> {
    // Kernels of old end a list with no number at all.
    let number = match u32_at(message.payload, 0) {
        Some(number) => number.cast_signed(),
        None if message.kind == DONE => 0,
        None => return Err(NetlinkError::Malformed { what }),
    };
    if number == 0 {
        return Ok(());
    }
    let source = io::Error::from_raw_os_error(number.saturating_neg());
    Err(NetlinkError::Refused { what, source })
}

#[cfg(test)]
mod tests {
    use super::*;

    fn ended(kind: u16, payload: &[u8]) -> Result<(), NetlinkError> {
        outcome(
            "list queues",
            &Message {
                kind,
                flags: 0,
                sequence: 1,
                payload,
            },
        )
    }

    #[test]
    fn an_answer_says_whether_it_was_done() {
        let number = |number: i32| number.to_ne_bytes();
        for payload in [number(0).as_slice(), &[]] {
            ended(DONE, payload).unwrap();
        }
        ended(ERROR, &number(0)).unwrap();
        let refused = ended(ERROR, &number(-17)).unwrap_err();
        assert_eq!(refused.errno(), Some(17));
        assert_eq!(refused.to_string(), "the kernel refuses to list queues");
        assert!(!refused.is_unsupported());
        assert!(ended(DONE, &number(-2)).unwrap_err().is_unsupported());
        let short = ended(ERROR, &[0; 3]).unwrap_err();
        assert!(matches!(short, NetlinkError::Malformed { .. }), "{short}");
        assert_eq!(
            ended(ERROR, &number(i32::MIN)).unwrap_err().errno(),
            Some(i32::MAX)
        );
    }
}

//! Which changes of a descriptor the kernel wakes us for.

use std::{
    io,
    os::fd::{AsRawFd, OwnedFd},
};
use tokio::io::{Interest, unix::AsyncFd};

/// Has tokio wait for this on a descriptor, and for nothing else: its own sockets are told of both
/// directions, so that the other end of one wakes us whenever it has read what we wrote.
///
/// # Errors
///
/// When the kernel does not let it be waited for.
pub(crate) fn registered<T: AsRawFd + Into<OwnedFd>>(
    descriptor: T,
    interest: Interest,
) -> io::Result<AsyncFd<T>> {
    #[expect(
        deprecated,
        reason = "its unsafe successor asks for a descriptor that stays open and the same, as that \
                  of its owner does"
    )]
    AsyncFd::with_interest(descriptor, interest)
}

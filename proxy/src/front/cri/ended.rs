//! Why a connection ended.

use koord_relay::{Side, Violation};
use rustix::io::Errno;
use std::{io, time::Duration};
use thiserror::Error;

/// How long a client may take to send its connection preface.
pub(super) const PREFACE_TIMEOUT: Duration = Duration::from_secs(10);

/// Why a connection ended.
#[derive(Debug, Error)]
pub(super) enum Ended {
    #[error("the {0} closed the connection")]
    Closed(Side),
    #[error("drained")]
    Drained,
    #[error("the {side} connection failed")]
    Io {
        side: Side,
        #[source]
        source: io::Error,
    },
    #[error("the runtime cannot be reached")]
    Unreachable(#[source] io::Error),
    #[error(transparent)]
    Violation(#[from] Violation),
    #[error("no connection preface within {} s", PREFACE_TIMEOUT.as_secs())]
    NoPreface,
    #[error("no connection preface yet, and its place is needed")]
    PushedOut,
    #[error("a large message stood still in its place while others waited")]
    Overdue,
}

/// One side has closed its connection, or no longer takes what is written to it.
#[derive(Debug)]
pub(super) struct Closing {
    pub(super) side: Side,
    pub(super) why: Ended,
    /// All that it had said was read.
    pub(super) is_silent: bool,
}

// === impl Ended ===

impl Ended {
    /// A write failed, or took nothing.
    pub(super) fn unwritten(side: Side, error: Option<io::Error>) -> Self {
        let source = error.unwrap_or(io::ErrorKind::WriteZero.into());
        Self::Io { side, source }
    }

    /// Whether the runtime is away, as far as one connection can tell.
    pub(super) fn means_runtime_lost(&self) -> bool {
        match self {
            Self::Closed(side) => *side == Side::Runtime,
            // To wait for room in it, a connection is registered anew, which the kernel may refuse.
            Self::Io { side, source } => *side == Side::Runtime && !is_our_own_want(source),
            Self::Unreachable(error) => !is_our_own_want(error),
            Self::Drained
            | Self::Violation(_)
            | Self::NoPreface
            | Self::PushedOut
            | Self::Overdue => false,
        }
    }
}

/// Whether a connection could not be made, or kept, for want of something of ours: it says nothing of the
/// other end.
fn is_our_own_want(error: &io::Error) -> bool {
    let wants = [
        Errno::MFILE,
        Errno::NFILE,
        Errno::NOMEM,
        Errno::NOBUFS,
        // No more can be waited for (`fs.epoll.max_user_watches`).
        Errno::NOSPC,
    ];
    Errno::from_io_error(error).is_some_and(|errno| wants.contains(&errno))
}

// === impl Closing ===

impl Closing {
    /// Whether a side is still read from: what it said before may be the answer to a call.
    pub(super) fn hears(&self, side: Side) -> bool {
        self.side == side && !self.is_silent
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_runtime_is_not_lost_for_want_of_a_descriptor_of_ours() {
        let lost = |errno: Errno| Ended::Unreachable(errno.into()).means_runtime_lost();
        assert_eq!([Errno::MFILE, Errno::NFILE].map(lost), [false, false]);
        assert_eq!([Errno::CONNREFUSED, Errno::NOENT].map(lost), [true, true]);
    }

    #[test]
    fn a_runtime_is_not_lost_because_no_more_can_be_waited_for() {
        let lost = |side, errno: Errno| {
            let ended = Ended::unwritten(side, Some(errno.into()));
            ended.means_runtime_lost()
        };
        let wants = [Errno::NOSPC, Errno::NOMEM];
        assert_eq!(wants.map(|it| lost(Side::Runtime, it)), [false, false]);
        let gone = [Errno::PIPE, Errno::CONNRESET];
        assert_eq!(gone.map(|it| lost(Side::Runtime, it)), [true, true]);
        assert_eq!(gone.map(|it| lost(Side::Client, it)), [false, false]);
    }
}

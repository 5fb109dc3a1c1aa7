//! Why a connection ended.

use koord_relay::{Side, Violation};
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
            Self::Closed(side) | Self::Io { side, .. } => *side == Side::Runtime,
            Self::Unreachable(_) => true,
            Self::Drained | Self::Violation(_) | Self::NoPreface | Self::Overdue => false,
        }
    }
}

// === impl Closing ===

impl Closing {
    /// Whether a side is still read from: what it said before may be the answer to a call.
    pub(super) fn hears(&self, side: Side) -> bool {
        self.side == side && !self.is_silent
    }
}

//! Why a pair was given up: who broke which rule, on which stream.

use crate::hpack::HpackError;
use crate::{Side, StreamId};

/// An end broke the protocol or a limit. The pair is dead; both sockets are to be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{side} broke the protocol on stream {stream}")]
pub struct Violation {
    /// Whose bytes they were.
    pub side: Side,
    /// Stream of the frame, 0 for the connection.
    pub stream: StreamId,
    /// The rule.
    #[source]
    pub breach: Breach,
}

/// The rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    #[error("not an HTTP/2 client preface")]
    Preface,
    #[error("frame of {length} bytes where {limit} are allowed")]
    FrameSize { length: usize, limit: usize },
    #[error("malformed {0}")]
    Malformed(&'static str),
    #[error("{0}")]
    OutOfPlace(&'static str),
    #[error("more DATA than the window allows")]
    WindowOverrun,
    #[error("window above 2^31-1")]
    WindowOverflow,
    #[error("header block over {limit} bytes")]
    HeaderBlock { limit: usize },
    #[error("more than {limit} {what}")]
    TooMany { what: &'static str, limit: usize },
    #[error("undecodable header block")]
    Hpack(#[from] HpackError),
}

//! Why a peer was given up: which rule the other end broke, and on which connection.

/// The other end broke the protocol or a limit. The peer is dead; its socket is to be closed.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("the other end broke the protocol on connection {connection}")]
pub struct Violation {
    /// Connection of the frame; 0 if it has none yet.
    pub connection: u32,
    /// The rule.
    #[source]
    pub breach: Breach,
}

/// The rule that was broken.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Breach {
    #[error("frame of {length} bytes where {limit} are allowed")]
    FrameSize { length: usize, limit: usize },
    #[error("{0}")]
    OutOfPlace(&'static str),
    #[error("answer to call {stream}, which was never made")]
    NeverCalled { stream: u32 },
    #[error("undecodable answer to call {stream}")]
    Answer { stream: u32 },
    #[error("asks for more with {waiting} bytes unread, where {limit} are allowed")]
    NeverReads { waiting: usize, limit: usize },
    #[error("the stream ends inside of a {0}")]
    CutShort(&'static str),
}

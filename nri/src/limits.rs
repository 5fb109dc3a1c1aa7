//! The bounds that keep one stream from costing more than its share.

/// Largest body of a message that is sent, in bytes: what ttrpc allows.
pub const MAX_SENT: usize = 4 << 20;

/// What one peer may use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest body of a message that is taken, in bytes. A larger one is skipped; a request is then
    /// answered RESOURCE_EXHAUSTED, and a call has that for its answer.
    pub message: usize,
    /// Largest payload of a frame, in bytes. A larger one is a [`Violation`](crate::Violation).
    pub frame: usize,
    /// Requests that wait for a reply at a time. What is over it is answered RESOURCE_EXHAUSTED.
    pub requests: usize,
    /// Calls that wait for an answer at a time.
    pub calls: usize,
    /// Bytes waiting to be written at which nothing more is called, and at which the other end must
    /// not ask for more: one that asks and does not read what it is told is a
    /// [`Violation`](crate::Violation).
    pub output: usize,
}

// === impl Limits ===

impl Default for Limits {
    fn default() -> Self {
        Self {
            message: 64 << 20,
            frame: (64 << 20) + crate::message::HEAD_LEN,
            requests: 256,
            calls: 256,
            output: 16 << 20,
        }
    }
}

//! How a call ends if not well: gRPC's code and a text.

use std::fmt;

/// Why a call was not answered with a payload.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{code}: {message}")]
pub struct Status {
    pub code: Code,
    pub message: String,
}

/// A gRPC status code. Any number may arrive.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Code(pub i32);

// === impl Status ===

impl Status {
    pub fn new(code: Code, message: impl Into<String>) -> Self {
        Self {
            code,
            message: message.into(),
        }
    }
}

// === impl Code ===

impl Code {
    pub const OK: Self = Self(0);
    pub const UNKNOWN: Self = Self(2);
    pub const INVALID_ARGUMENT: Self = Self(3);
    pub const RESOURCE_EXHAUSTED: Self = Self(8);
    pub const FAILED_PRECONDITION: Self = Self(9);
    pub const UNIMPLEMENTED: Self = Self(12);
    pub const INTERNAL: Self = Self(13);
}

impl fmt::Display for Code {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "status {}", self.0)
    }
}

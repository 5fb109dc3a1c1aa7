//! What the runtimes of each NRI generation do differently.

use std::time::Duration;

use super::wire::LARGEST_BODY;

/// The multiplexer's largest frame: one full ttrpc message.
const FRAME: usize = LARGEST_BODY + 10;
/// The same before NRI 0.7.
const OLD_FRAME: usize = 16 << 20;

/// A version of NRI that a containerd was released with.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Generation {
    /// containerd 1.7.0.
    V0_3,
    /// containerd 1.7.24.
    V0_6,
    /// containerd 2.1.
    V0_8,
    /// containerd 2.2.0.
    V0_10,
    /// containerd 2.3.
    V0_12,
}

// === impl Generation ===

impl Generation {
    /// All of them, the oldest first.
    pub const ALL: [Self; 5] = [Self::V0_3, Self::V0_6, Self::V0_8, Self::V0_10, Self::V0_12];

    /// How the runtime calls its own version.
    pub fn runtime_version(self) -> &'static str {
        match self {
            Self::V0_3 => "v1.7.0",
            Self::V0_6 => "v1.7.24",
            Self::V0_8 => "v2.1.4",
            Self::V0_10 => "v2.2.0",
            Self::V0_12 => "v2.3.0",
        }
    }

    /// Every event that it knows; any other in a mask fails the plugin.
    pub fn events(self) -> i32 {
        if self < Self::V0_10 { 0x07ff } else { 0x3fff }
    }

    /// The NRI version that Configure tells.
    pub(super) fn nri_version(self) -> &'static str {
        match self {
            Self::V0_12 => "v0.12.0",
            _ => "",
        }
    }

    /// A limit as Configure tells it, in milliseconds.
    pub(super) fn told(self, limit: Duration) -> i64 {
        let millis = i64::try_from(limit.as_millis()).unwrap_or(i64::MAX);
        if self < Self::V0_8 { 0 } else { millis }
    }

    /// Whether a synchronisation that is too large for one message is split. Before, it was sent as
    /// one message whatever its size.
    pub(super) fn splits(self) -> bool {
        self >= Self::V0_8
    }

    /// Whether each event has a method of its own.
    pub(super) fn has_own_methods(self) -> bool {
        self >= Self::V0_12
    }

    /// Whether names of plugins are looked at.
    pub(super) fn looks_at_names(self) -> bool {
        self >= Self::V0_12
    }

    pub(super) fn largest_frame(self) -> usize {
        if self < Self::V0_8 { OLD_FRAME } else { FRAME }
    }
}

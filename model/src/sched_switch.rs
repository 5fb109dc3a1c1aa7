//! Which of two ways the kernel's scheduler keeps pods apart.

use std::fmt;

/// How the kernel's switches of group identity and of core scheduling are to be. The two exclude each
/// other.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum SchedSwitch {
    /// Group identity is on and core scheduling off.
    GroupIdentity,
    /// Core scheduling is on and group identity off.
    CoreSched,
    /// Both are as they were before us.
    AsBefore,
}

// === impl SchedSwitch ===

impl fmt::Display for SchedSwitch {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::GroupIdentity => "group identity",
            Self::CoreSched => "core scheduling",
            Self::AsBefore => "as before",
        })
    }
}

//! Why the kernel does not have a group as it should be.

use rustix::io::Errno;
use std::io;
use thiserror::Error;

/// Why a group is not as it should be.
#[derive(Debug, Error)]
pub enum ResctrlError {
    #[error("{name:?} is no name of a group")]
    Name { name: String },
    #[error("the groups cannot be listed")]
    Unlisted { source: io::Error },
    #[error("the processor has no more classes for group {name}")]
    NoMoreClasses { name: String },
    #[error(
        "the processor's last classes are left to {classes}, so there is none for group {name}"
    )]
    LeftToOthers { name: String, classes: String },
    #[error("the processor has no more monitoring ids (RMIDs) to spare for group {name}")]
    NoMoreMonitors { name: String, source: io::Error },
    #[error("the kernel monitors no groups, so there is no {name}")]
    Unmonitored { name: String },
    #[error("group {name} cannot be {action}")]
    Group {
        name: String,
        action: &'static str,
        source: io::Error,
    },
    #[error("the kernel refuses {text:?} as {file} of group {name}: {status}")]
    Refused {
        name: String,
        file: &'static str,
        text: String,
        /// What the kernel says itself.
        status: String,
        source: io::Error,
    },
    #[error("{file} of group {name} is not in its format")]
    Malformed { name: String, file: &'static str },
}

// === impl ResctrlError ===

impl ResctrlError {
    /// Whether there is no such group, or no more.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Group { source, .. } | Self::Refused { source, .. } => {
                is(source, Errno::NOENT) || is(source, Errno::NODEV)
            }
            Self::Name { .. }
            | Self::Unlisted { .. }
            | Self::NoMoreClasses { .. }
            | Self::LeftToOthers { .. }
            | Self::NoMoreMonitors { .. }
            | Self::Unmonitored { .. }
            | Self::Malformed { .. } => false,
        }
    }

    /// Whether the processor has no class for it, or none of the ids of which each class takes one too.
    pub fn is_for_want_of_classes(&self) -> bool {
        matches!(
            self,
            Self::NoMoreClasses { .. } | Self::LeftToOthers { .. } | Self::NoMoreMonitors { .. }
        )
    }

    /// What the kernel answered, if it was asked, or would have.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Group { source, .. }
            | Self::Refused { source, .. }
            | Self::NoMoreMonitors { source, .. }
            | Self::Unlisted { source } => source.raw_os_error(),
            Self::NoMoreClasses { .. } | Self::LeftToOthers { .. } => {
                Some(Errno::NOSPC.raw_os_error())
            }
            Self::Name { .. } | Self::Unmonitored { .. } | Self::Malformed { .. } => None,
        }
    }
}

pub(super) fn is(error: &io::Error, errno: Errno) -> bool {
    error.raw_os_error() == Some(errno.raw_os_error())
}

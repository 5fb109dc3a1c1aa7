//! Why a setting could not be read or written, and whether that is because its pod has gone.

use crate::block::BlockError;
use koord_model::{CgroupPath, RangeError, Setting, Value};
use rustix::io::Errno;
use std::io;
use thiserror::Error;

/// Why a setting could not be read.
#[derive(Debug, Error)]
pub enum ReadError {
    #[error("cgroup {at} is gone")]
    Gone { at: CgroupPath },
    #[error("cgroup {at} has no {setting} here")]
    Unsupported { at: CgroupPath, setting: Setting },
    #[error("cgroup {at} is idle, so its cpu.shares mean nothing")]
    Masked { at: CgroupPath },
    #[error("cannot read {file} of cgroup {at}")]
    Io {
        at: CgroupPath,
        file: &'static str,
        source: io::Error,
    },
    #[error("{file} of cgroup {at} holds {text:?}, which is not its format")]
    Malformed {
        at: CgroupPath,
        file: &'static str,
        text: String,
    },
}

/// Why a setting could not be written.
#[derive(Debug, Error)]
pub enum WriteError {
    #[error("{value} cannot be compared with what cgroup {at} has for {}", value.setting())]
    Unread {
        at: CgroupPath,
        value: Value,
        source: ReadError,
    },
    #[error("{value} is no value for {} of cgroup {at}", value.setting())]
    Range {
        at: CgroupPath,
        value: Value,
        source: RangeError,
    },
    #[error("the kernel refuses {value} as {file} of cgroup {at}")]
    Refused {
        at: CgroupPath,
        file: &'static str,
        value: Value,
        source: io::Error,
    },
    /// A set of CPUs that is there in part: what the group was to have no more was not taken from it.
    #[error("the kernel refuses {value} as {file} of cgroup {at}, which has {held} by now")]
    Halfway {
        at: CgroupPath,
        file: &'static str,
        value: Value,
        held: Value,
        source: io::Error,
    },
    #[error("the kernel refuses {text} as kernel.{file}")]
    Switch {
        file: &'static str,
        text: String,
        source: io::Error,
    },
    /// All other devices have theirs.
    #[error("{file} of cgroup {at} is not as it should be for {whose}")]
    Lacking {
        at: CgroupPath,
        file: &'static str,
        /// The devices, as people call them.
        whose: String,
        /// Why, of the first.
        source: DeviceError,
    },
}

/// Why a device does not have its value.
#[derive(Debug, Error)]
pub enum DeviceError {
    #[error("the block devices of this machine are not known")]
    NoDevices,
    #[error(transparent)]
    Unknown(#[from] BlockError),
    #[error("the kernel refuses {text:?}")]
    Refused { text: String, source: io::Error },
}

/// The errors of a file whose directory was removed before or after it was opened.
fn means_gone(error: &io::Error) -> bool {
    [Errno::NOENT, Errno::NODEV]
        .iter()
        .any(|gone| error.raw_os_error() == Some(gone.raw_os_error()))
}

// === impl ReadError ===

impl ReadError {
    /// Whether the group vanished, as it does with its pod: nothing is wrong then.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Gone { .. } => true,
            Self::Io { source, .. } => means_gone(source),
            Self::Unsupported { .. } | Self::Masked { .. } | Self::Malformed { .. } => false,
        }
    }

    /// Whether the kernel has no such setting for this group.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unsupported { .. })
    }

    /// Whether the path of the file is longer than the kernel takes.
    pub(super) fn is_too_long(&self) -> bool {
        let long = Errno::NAMETOOLONG.raw_os_error();
        matches!(self, Self::Io { source, .. } if source.raw_os_error() == Some(long))
    }

    /// Whether we may not read it, as whoever has the group likes.
    pub(super) fn is_forbidden(&self) -> bool {
        matches!(self, Self::Io { source, .. } if source.kind() == io::ErrorKind::PermissionDenied)
    }

    /// Whether this was the list of processes of a group that has threads alone (cgroup v2).
    pub(super) fn is_threaded(&self) -> bool {
        let threaded = Errno::OPNOTSUPP.raw_os_error();
        matches!(self, Self::Io { source, .. } if source.raw_os_error() == Some(threaded))
    }
}

// === impl WriteError ===

impl WriteError {
    /// Whether the group vanished, as it does with its pod: nothing is wrong then.
    pub fn is_gone(&self) -> bool {
        match self {
            Self::Unread { source, .. } => source.is_gone(),
            Self::Refused { source, .. } | Self::Halfway { source, .. } => means_gone(source),
            Self::Range { .. } | Self::Switch { .. } | Self::Lacking { .. } => false,
        }
    }

    /// Why some devices have their value and others do not, if it is that.
    pub fn lacking(&self) -> Option<(&str, &DeviceError)> {
        match self {
            Self::Lacking { whose, source, .. } => Some((whose, source)),
            Self::Unread { .. }
            | Self::Range { .. }
            | Self::Refused { .. }
            | Self::Halfway { .. }
            | Self::Switch { .. } => None,
        }
    }

    /// Whether the group has something else than before.
    pub fn is_halfway(&self) -> bool {
        matches!(self, Self::Halfway { .. })
    }

    /// The same refusal of a group that `held` was written to on the way.
    pub(super) fn halfway(self, held: Value) -> Self {
        match self {
            Self::Refused {
                at,
                file,
                value,
                source,
            } => Self::Halfway {
                at,
                file,
                value,
                held,
                source,
            },
            other => other,
        }
    }

    /// Whether the kernel has no such setting for this group.
    pub fn is_unsupported(&self) -> bool {
        matches!(self, Self::Unread { source, .. } if source.is_unsupported())
    }

    /// What the kernel answered, if it was asked.
    pub fn errno(&self) -> Option<i32> {
        match self {
            Self::Unread {
                source: ReadError::Io { source, .. },
                ..
            }
            | Self::Refused { source, .. }
            | Self::Halfway { source, .. }
            | Self::Switch { source, .. } => source.raw_os_error(),
            Self::Lacking {
                source: DeviceError::Refused { source, .. },
                ..
            } => source.raw_os_error(),
            Self::Unread { .. } | Self::Range { .. } | Self::Lacking { .. } => None,
        }
    }
}

// === impl DeviceError ===

impl DeviceError {
    /// Whether there may be such a device all the same: it could not be found out, or it is a volume, whose
    /// name may be one that nobody has told us yet what it means.
    pub(super) fn leaves_open(&self) -> bool {
        match self {
            Self::NoDevices
            | Self::Unknown(
                BlockError::Io { .. }
                | BlockError::NotMounted { .. }
                | BlockError::NoClaim { .. }
                | BlockError::SeveralClaims { .. }
                | BlockError::NoRawClaim { .. }
                | BlockError::SeveralRawClaims { .. },
            ) => true,
            Self::Unknown(
                BlockError::NoDevice { .. }
                | BlockError::NoVolumeGroup { .. }
                | BlockError::NotOnDevice { .. }
                | BlockError::NotBlockDevice { .. },
            )
            | Self::Refused { .. } => false,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        cgroup::{Cgroups, Generation},
        fake::FakeTree,
    };

    #[test]
    fn a_file_that_is_not_there_says_nothing_of_a_group_that_cannot_be_looked_at() {
        let at = CgroupPath::parse("group").unwrap();
        let tree = FakeTree::new(Generation::V1, 2);
        tree.make(&at);
        let cgroups = Cgroups::over(tree.clone());
        for (looked, is_unsupported) in [(None, true), (Some(Errno::MFILE), false)] {
            tree.fail_next_read(&at, "cpu.cfs_quota_us", Errno::NOENT);
            if let Some(errno) = looked {
                tree.fail_next_read(&at, "", errno);
            }
            let error = cgroups.read(&at, Setting::CpuQuota).unwrap_err();
            assert!(!error.is_gone(), "{error:?}");
            assert_eq!(error.is_unsupported(), is_unsupported, "{error:?}");
        }
    }
}

//! HAMi-core on the node: what of it containers are given, and why they may not be.
//!
//! A runtime mounts whatever a path leads to, as root, and makes a directory where nothing is. So
//! containers are given no path of which another user of the node could have made something else.

use std::{io, path::PathBuf};
use thiserror::Error;

/// Where HAMi-core keeps processes of a node from one another.
pub const HAMI_CORE_LOCK: &str = "/tmp/vgpulock";

/// Why a path of the node is not mounted into containers.
#[derive(Clone, Debug, Error, PartialEq, Eq)]
#[error("{} {problem}", path.display())]
pub struct UnsafePath {
    pub path: PathBuf,
    pub problem: PathProblem,
}

/// What is wrong with it.
#[derive(Clone, Copy, Debug, Error, PartialEq, Eq)]
pub enum PathProblem {
    #[error("is not there")]
    Missing,
    #[error("is not {expected}")]
    OtherKind { expected: &'static str },
    #[error("is the user's {uid}, and has to be root's")]
    Owner { uid: u32 },
    #[error("can be written to by others than root")]
    Writable,
    #[error("cannot be looked at: {0}")]
    Unknown(io::ErrorKind),
}

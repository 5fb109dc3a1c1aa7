//! What of the node containers are not given, and why.

use std::{io, path::PathBuf};
use thiserror::Error;

/// Why a path of the node is not given to containers.
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
    #[error("cannot have a folder that is called after the pod and the container")]
    Name,
    #[error("cannot be looked at: {0}")]
    Unknown(io::ErrorKind),
}

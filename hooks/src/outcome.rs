//! What a run of the chain gives: the values, and everything that went wrong on the way.
//!
//! A run never fails as a whole. What a broken hook wanted is absent, but for what it has at least, what the
//! others wanted is there, and the caller learns from [`Outcome::closed`] whether its own call may go on.

use crate::{
    hook::{FailPolicy, HookError},
    merge::{MergeError, Merged, NodeMerged},
};
use koord_model::UnknownClass;
use thiserror::Error;

/// The decision about a pod or a container.
#[derive(Debug)]
pub struct Outcome {
    pub merged: Merged,
    /// In the order of the hooks; at most one for each.
    pub failures: Vec<Failure>,
    pub notices: Vec<Notice>,
}

/// The decision about the node.
#[derive(Debug)]
pub struct NodeOutcome {
    pub merged: NodeMerged,
    /// In the order of the hooks; at most one for each.
    pub failures: Vec<Failure>,
}

/// A hook whose whole adjustment is absent, but for what it has at least.
#[derive(Debug, Error)]
#[error("hook {hook} failed")]
pub struct Failure {
    pub hook: &'static str,
    /// What this failure means for the call.
    pub policy: FailPolicy,
    #[source]
    pub kind: FailureKind,
}

/// How a hook failed.
#[derive(Debug, Error)]
pub enum FailureKind {
    #[error(transparent)]
    Error(#[from] HookError),
    #[error("it panicked: {message}")]
    Panic { message: String },
    #[error(transparent)]
    Conflict(#[from] MergeError),
}

/// Something odd that stopped no hook.
#[derive(Debug, PartialEq, Eq)]
pub enum Notice {
    /// The pod's class does not exist; the pod counted as one without.
    UnknownQosClass(UnknownClass),
}

// === impl Outcome ===

impl Outcome {
    /// The first failure that refuses the call.
    pub fn closed(&self) -> Option<&Failure> {
        self.failures
            .iter()
            .find(|failure| failure.policy == FailPolicy::Closed)
    }
}

//! The gRPC statuses that we say ourselves, all in one place.
//!
//! What the runtime says passes untouched. Ours are few: a hook that must not fail did, or what it
//! decided cannot be said.

use crate::{apply::cri::PatchError, hami_core::FolderError};
use koord_hooks::{Failure, PodView};
use std::error::Error;

/// `FAILED_PRECONDITION`: to call again at once changes nothing.
const FAILED_PRECONDITION: u32 = 9;

/// A gRPC status of our own.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Status {
    pub code: u32,
    pub message: String,
}

// === impl Status ===

impl Status {
    /// A hook with fail policy `Closed` failed: the call is not passed on.
    pub fn hook_failed(failure: &Failure, pod: &PodView) -> Self {
        Self {
            code: FAILED_PRECONDITION,
            message: format!(
                "koord-runtime-proxy: hook {} failed for pod {}/{} and has fail policy Closed: {}",
                failure.hook,
                pod.namespace,
                pod.name,
                chain_of(&failure.kind),
            ),
        }
    }

    /// A hook with fail policy `Closed` decided what a container can only be made with, before it is known
    /// whether koordlet does its part.
    pub fn unknown_koordlet(hook: &str, pod: &PodView) -> Self {
        Self {
            code: FAILED_PRECONDITION,
            message: format!(
                "koord-runtime-proxy: it is not known yet whether koordlet does the part of hook {hook} \
                 for pod {}/{}, and it has fail policy Closed",
                pod.namespace, pod.name,
            ),
        }
    }

    /// A hook with fail policy `Closed` decided something for which the node has to have a folder.
    pub(crate) fn without_folder(hook: &str, pod: &PodView, error: &FolderError) -> Self {
        Self {
            code: FAILED_PRECONDITION,
            message: format!(
                "koord-runtime-proxy: the folder that hook {hook} decided for pod {}/{} is not there, and \
                 it has fail policy Closed: {}",
                pod.namespace,
                pod.name,
                chain_of(error),
            ),
        }
    }

    /// A hook with fail policy `Closed` decided a value that the request cannot carry.
    pub fn unpatched(hook: &str, pod: &PodView, error: &PatchError) -> Self {
        Self {
            code: FAILED_PRECONDITION,
            message: format!(
                "koord-runtime-proxy: what hook {hook} decided for pod {}/{} cannot be said, and it \
                 has fail policy Closed: {}",
                pod.namespace,
                pod.name,
                chain_of(error),
            ),
        }
    }
}

/// An error and all its sources in one line, for edges where a person reads it.
pub fn chain_of(error: &dyn Error) -> String {
    let mut text = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        text.push_str(": ");
        text.push_str(&error.to_string());
        source = error.source();
    }
    text
}

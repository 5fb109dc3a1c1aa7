//! Sandboxes that are not in the ledger because the runtime does not say where they are.
//!
//! Each list asks about them again, after all others, so that they keep nobody else out.

use crate::{hub::Hub, runtime::RuntimeError};
use koord_model::SandboxId;
use std::{collections::HashMap, error::Error};
use tracing::warn;

/// All of them that were met and are still listed.
#[derive(Debug, Default)]
pub(super) struct Missing {
    /// And whether that was told.
    sandboxes: HashMap<SandboxId, bool>,
}

// === impl Missing ===

impl Missing {
    pub(super) fn has(&self, sandbox: &str) -> bool {
        self.sandboxes
            .keys()
            .any(|missing| missing.as_str() == sandbox)
    }

    /// One that could not be asked about in this list.
    pub(super) fn wait(&mut self, sandbox: SandboxId) {
        self.sandboxes.entry(sandbox).or_default();
    }

    /// One about which there was no answer: told once, as soon as there is room for the line.
    pub(super) fn fail(&mut self, hub: &Hub, sandbox: SandboxId, error: &RuntimeError) {
        let told = self.sandboxes.entry(sandbox.clone()).or_default();
        if !*told && let Some(suppressed) = hub.may_complain("-", "cgroup_parent") {
            let error = error as &dyn Error;
            warn!(
                %sandbox,
                error,
                suppressed,
                "the runtime does not say where a pod is; it is not in the ledger until it does"
            );
            *told = true;
        }
    }

    /// Lets go of all others.
    pub(super) fn keep(&mut self, is_missing: impl Fn(&SandboxId) -> bool) {
        self.sandboxes.retain(|sandbox, _| is_missing(sandbox));
    }

    pub(super) fn len(&self) -> usize {
        self.sandboxes.len()
    }
}

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
    sandboxes: HashMap<SandboxId, Asked>,
}

/// What came of asking about one.
#[derive(Debug, Default)]
struct Asked {
    times_in_vain: u32,
    /// Whether that was told.
    told: bool,
}

// === impl Missing ===

impl Missing {
    /// None for one that only waits to be asked about, or was not met.
    pub(super) fn times_in_vain(&self, sandbox: &str) -> u32 {
        let asked = self.sandboxes.get(sandbox);
        asked.map_or(0, |asked| asked.times_in_vain)
    }

    /// One that could not be asked about in this list.
    pub(super) fn wait(&mut self, sandbox: SandboxId) {
        self.sandboxes.entry(sandbox).or_default();
    }

    /// One about which there was no answer: told once, as soon as there is room for the line.
    pub(super) fn fail(&mut self, hub: &Hub, sandbox: SandboxId, error: &RuntimeError) {
        let asked = self.sandboxes.entry(sandbox.clone()).or_default();
        asked.times_in_vain = asked.times_in_vain.saturating_add(1);
        if !asked.told
            && let Some(suppressed) = hub.may_complain("-", "cgroup_parent")
        {
            let error = error as &dyn Error;
            warn!(
                %sandbox,
                error,
                suppressed,
                "the runtime does not say where a pod is; it is not in the ledger until it does"
            );
            asked.told = true;
        }
    }

    /// Lets go of all others.
    pub(super) fn keep(&mut self, is_missing: impl Fn(&SandboxId) -> bool) {
        self.sandboxes.retain(|sandbox, _| is_missing(sandbox));
    }

    pub(super) fn len(&self) -> usize {
        self.sandboxes.len()
    }

    /// How many only wait to be asked about.
    pub(super) fn count_unasked(&self) -> usize {
        let asked = self.sandboxes.values();
        asked.filter(|asked| asked.times_in_vain == 0).count()
    }
}

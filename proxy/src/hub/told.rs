//! Pods of which the runtime was told something that it does at a moment of its own, without a word when
//! it has. What we write meanwhile it may write over. So until it must have done it, each list has them
//! looked at.

use super::Hub;
use koord_model::SandboxId;
use std::{cell::RefCell, collections::HashMap, time::Duration};
use tokio::time::Instant;

/// A runtime is done by then, with thousands of containers too.
const DONE: Duration = Duration::from_secs(30);

/// Until when each is looked at.
#[derive(Debug, Default)]
pub(super) struct ToldLately(RefCell<HashMap<SandboxId, Instant>>);

// === impl Hub ===

impl Hub {
    /// We have told the runtime something of these. There are lists soon, and again a while later.
    pub(crate) fn has_told(&self, pods: Vec<SandboxId>) {
        if !pods.is_empty() {
            let until = Instant::now() + DONE;
            let told = pods.into_iter().map(|sandbox| (sandbox, until));
            self.told_lately.0.borrow_mut().extend(told);
            self.relist_soon();
        }
    }

    /// Those that are to be looked at now.
    pub(crate) fn told_lately(&self) -> Vec<SandboxId> {
        let mut all = self.told_lately.0.borrow_mut();
        let now = Instant::now();
        all.retain(|_, until| now < *until);
        all.keys().cloned().collect()
    }
}

//! Pods of which the runtime was told something that it does at a moment of its own, without a word when
//! it has. What we write meanwhile it may write over. So until it must have done it, each list has them
//! looked at.

use super::Hub;
use koord_model::SandboxId;
use std::{cell::RefCell, time::Duration};
use tokio::time::Instant;

/// A runtime is done by then, with thousands of containers too.
const DONE: Duration = Duration::from_secs(30);

/// Those of the last time, and until when they are looked at. What a runtime was told before that it
/// does no more: it has connected anew since.
#[derive(Debug, Default)]
pub(super) struct ToldLately(RefCell<Option<(Vec<SandboxId>, Instant)>>);

// === impl Hub ===

impl Hub {
    /// We have told the runtime something of these. There are lists soon, and again a while later.
    pub(crate) fn note_told(&self, pods: Vec<SandboxId>) {
        if !pods.is_empty() {
            let told = (pods, Instant::now() + DONE);
            self.told_lately.0.replace(Some(told));
            self.relist_soon();
        }
    }

    /// Those that are to be looked at now: the last time once it must be done, whenever that list comes.
    pub(crate) fn told_lately(&self) -> Vec<SandboxId> {
        let mut told = self.told_lately.0.borrow_mut();
        let pods = told.as_ref().map(|(pods, _)| pods.clone());
        told.take_if(|(_, until)| *until <= Instant::now());
        pods.unwrap_or_default()
    }
}

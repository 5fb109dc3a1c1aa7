//! Limits of memory that are on their way to a thread that reclaims. The next limit of their group
//! comes behind them.

use koord_model::CgroupPath;
use std::{
    collections::HashMap,
    sync::{Arc, Mutex, MutexGuard, PoisonError},
};

/// The groups that have such limits, and how many. Shared by who sends them and who writes them, and
/// held by neither for longer than a look.
#[derive(Clone, Debug, Default)]
pub(super) struct Reclaiming(Arc<Mutex<HashMap<CgroupPath, usize>>>);

/// A limit of this group. Dropped when it is written, could not be, or was never sent.
#[derive(Debug)]
pub(super) struct UnderWay {
    group: CgroupPath,
    all: Reclaiming,
}

// === impl Reclaiming ===

impl Reclaiming {
    pub(super) fn has(&self, group: &CgroupPath) -> bool {
        self.lock().contains_key(group)
    }

    pub(super) fn begin(&self, group: CgroupPath) -> UnderWay {
        *self.lock().entry(group.clone()).or_default() += 1;
        UnderWay {
            group,
            all: self.clone(),
        }
    }

    fn lock(&self) -> MutexGuard<'_, HashMap<CgroupPath, usize>> {
        // Nothing in here panics halfway.
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Drop for UnderWay {
    fn drop(&mut self) {
        let mut all = self.all.lock();
        if let Some(left) = all.get_mut(&self.group) {
            *left -= 1;
            if *left == 0 {
                all.remove(&self.group);
            }
        }
    }
}

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

/// Limits of these groups. Dropped when they are written, could not be, or were never sent.
#[derive(Debug, Default)]
pub(super) struct UnderWay {
    groups: Vec<CgroupPath>,
    all: Reclaiming,
}

// === impl Reclaiming ===

impl Reclaiming {
    pub(super) fn has(&self, group: &CgroupPath) -> bool {
        self.lock().contains_key(group)
    }

    pub(super) fn begin(&self, groups: Vec<CgroupPath>) -> UnderWay {
        let mut all = self.lock();
        for group in &groups {
            *all.entry(group.clone()).or_default() += 1;
        }
        drop(all);
        UnderWay {
            groups,
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
        for group in &self.groups {
            if let Some(left) = all.get_mut(group) {
                *left -= 1;
                if *left == 0 {
                    all.remove(group);
                }
            }
        }
    }
}

//! Settings of block devices, which are written beside all else.
//!
//! The kernel writes one once it has entered the queue of the device, and that of one that is frozen, because
//! it is gone or its driver waits for it, is never entered. So a thread does it that nobody's call waits for
//! and nothing else is written by. While it stands still the settings of all devices wait, and a person is
//! told at which (`hang.rs`).

use super::{given_over, whose::Whose};
use crate::{
    hub::Hub,
    ledger::{Ledger, Scope},
};
use koord_kernel::cgroup::Change;
use std::{cell::RefCell, collections::VecDeque};
use tokio::sync::Notify;

/// Those whose devices are to be looked at, each once, in the order in which they were pushed.
#[derive(Debug, Default)]
pub(super) struct Devices {
    waiting: RefCell<VecDeque<Whose>>,
    pushed: Notify,
}

// === impl Devices ===

impl Devices {
    pub(super) fn push(&self, whose: Whose) {
        let mut waiting = self.waiting.borrow_mut();
        if !waiting.contains(&whose) {
            waiting.push_back(whose);
            self.pushed.notify_one();
        }
    }

    fn pop(&self) -> Option<Whose> {
        self.waiting.borrow_mut().pop_front()
    }

    pub(super) async fn next(&self) -> Whose {
        loop {
            match self.pop() {
                Some(whose) => return whose,
                None => self.pushed.notified().await,
            }
        }
    }

    /// Drops what waits of pods that are gone.
    pub(super) fn forget_all_but(&self, ledger: &Ledger) {
        let mut waiting = self.waiting.borrow_mut();
        waiting.retain(|whose| whose.is_in(ledger));
    }
}

/// Whether this is of block devices.
pub(crate) fn is_of_devices(change: &Change) -> bool {
    change.value.setting().is_of_devices()
}

/// Brings all that waits to the kernel.
pub(super) async fn all(hub: &Hub) {
    while let Some(whose) = hub.queue().devices.pop() {
        hold(hub, &whose).await;
    }
}

/// Brings to the kernel what is wanted of somebody's devices now.
pub(super) async fn hold(hub: &Hub, whose: &Whose) {
    let mut changes = whose.wanted(hub);
    changes.retain(is_of_devices);
    let given = given(hub, whose);
    let applied = hub.writer().write_devices(changes.clone(), given).await;
    whose.note(hub, &changes, &applied);
}

/// What we had given of it, where it is given back to koordlet and is not yet. Whether that is still there
/// the thread that writes finds out: devices are looked up in more files than a read or two.
fn given(hub: &Hub, whose: &Whose) -> Vec<Change> {
    let ledger = hub.ledger().borrow();
    let mut given = Vec::new();
    for (scope, target) in whose.targets(&ledger) {
        let Some(at) = &target.at else {
            continue;
        };
        let values = target.entries().iter().filter_map(given_over);
        let changes = values.map(|value| Change {
            at: at.clone(),
            value: value.clone(),
            gives_back: false,
            of_container: scope == Scope::Container,
            may_return: false,
        });
        given.extend(changes.filter(is_of_devices));
    }
    given
}

//! Writes for which the kernel reclaims memory first.
//!
//! That takes seconds, and where memory goes to a disk or a server that does not answer it never ends.
//! So they are done one after another beside all else, and noted when they come.

use super::{note_node, note_pod};
use crate::hub::Hub;
use koord_kernel::cgroup::Change;
use koord_model::SandboxId;
use std::{cell::RefCell, collections::VecDeque, rc::Rc};
use tokio::sync::Notify;

/// Who has a value.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Whose {
    Pod(SandboxId),
    /// Tiers and host applications.
    Node,
}

/// What waits for the thread that reclaims.
#[derive(Debug, Default)]
pub(super) struct Slow {
    waiting: RefCell<VecDeque<(Whose, Vec<Change>)>>,
    /// Whose are with that thread, and whether others of them were pushed since.
    under_way: RefCell<Option<(Whose, bool)>>,
    pushed: Notify,
}

// === impl Slow ===

impl Slow {
    /// Has these written when those before them are; they take the place of what waits of the same
    /// pod.
    pub(super) fn push(&self, whose: Whose, changes: Vec<Change>) {
        if let Some((_, again)) =
            (self.under_way.borrow_mut().as_mut()).filter(|(under_way, _)| *under_way == whose)
        {
            *again = true;
            return;
        }
        let mut waiting = self.waiting.borrow_mut();
        match waiting.iter_mut().find(|(waits, _)| *waits == whose) {
            Some((_, before)) => *before = changes,
            None => waiting.push_back((whose, changes)),
        }
        self.pushed.notify_one();
    }

    async fn begin(&self) -> (Whose, Vec<Change>) {
        loop {
            let next = self.waiting.borrow_mut().pop_front();
            if let Some((whose, changes)) = next {
                self.under_way.replace(Some((whose.clone(), false)));
                return (whose, changes);
            }
            self.pushed.notified().await;
        }
    }

    /// Those that were under way are done. Whether others were pushed meanwhile.
    fn end(&self) -> bool {
        self.under_way.take().is_some_and(|(_, again)| again)
    }
}

/// Has the writes done as they are pushed; never ends.
pub(super) async fn run(hub: &Rc<Hub>) {
    let queue = hub.queue();
    loop {
        let (whose, changes) = queue.slow.begin().await;
        let applied = hub.writer().reclaim(changes.clone()).await;
        match &whose {
            Whose::Pod(sandbox) => note_pod(hub, sandbox, &changes, &applied),
            Whose::Node => note_node(hub, &changes, &applied),
        }
        match (queue.slow.end(), whose) {
            (true, Whose::Pod(sandbox)) => queue.push(sandbox),
            (true, Whose::Node) => queue.push_node(),
            (false, _) => {}
        }
    }
}

//! Containers whose resources somebody has changed, or may have, without having told us to what: the next
//! lists ask the runtime.

use super::{Hub, Pending};
use crate::{
    ledger::{Ledger, Life, UPDATE_OVER},
    relist::unread,
};
use koord_hooks::Requested;
use koord_model::ContainerId;
use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    mem,
};
use tokio::time::Instant;

/// Those of whom no list has found it out yet.
#[derive(Debug, Default)]
pub(super) struct ChangedContainers(RefCell<HashSet<ContainerId>>);

/// The updates of each container whose replies were lost, in the order in which they came, and until when each
/// may still be done.
#[derive(Debug, Default)]
pub(super) struct LostUpdates(RefCell<HashMap<ContainerId, Vec<(Pending, Instant)>>>);

/// So many of one container are kept, the last ones. What others have asked for is found out as that of an update
/// is which nobody here has read, and so is what the runtime was told in their place.
const MOST_LOST: usize = 8;

// === impl Hub ===

impl Hub {
    /// Somebody has changed the resources of a container: what was asked for is another, and the
    /// runtime has written all that it knows. The next list finds out; one that is not known yet is
    /// new to it anyway.
    pub(crate) fn container_changed(&self, id: ContainerId) {
        if self.ledger.borrow().sandbox_of(&id).is_some() {
            self.changed.0.borrow_mut().insert(id);
        }
    }

    /// The same of several, found out soon.
    pub(crate) fn containers_changed(&self, ids: Vec<ContainerId>) {
        if !ids.is_empty() {
            ids.into_iter().for_each(|id| self.container_changed(id));
            self.relist_soon();
        }
    }

    /// The runtime has done an update, or may have, that nobody here has read: it may have been any
    /// container's.
    pub(super) fn update_unread(&self, ledger: &Ledger) {
        let containers = ledger.pods().flat_map(|pod| &pod.containers);
        let living = containers.filter(|container| container.life != Life::Exited);
        let mut changed = self.changed.0.borrow_mut();
        changed.extend(living.map(|container| container.id.clone()));
        self.relist_soon();
    }

    /// Nobody knows whether the runtime does an update: each list asks whether its spec has it.
    pub(super) fn update_lost(&self, id: ContainerId, update: Pending) {
        let now = Instant::now();
        let mut lost = self.lost.0.borrow_mut();
        let ledger = self.ledger.borrow();
        // Of those that are known a list lets go: each may have come about by now.
        lost.retain(|id, updates| {
            if ledger.sandbox_of(id).is_none() {
                updates.retain(|(_, until)| *until > now);
            }
            !updates.is_empty()
        });
        let updates = lost.entry(id.clone()).or_default();
        if updates.len() == MOST_LOST {
            updates.remove(0);
        }
        updates.push((update, now + UPDATE_OVER));
        drop((lost, ledger));
        self.container_changed(id);
    }

    /// Whether one of this container is waited for.
    pub(crate) fn awaits_lost(&self, id: &ContainerId) -> bool {
        self.lost.0.borrow().contains_key(id)
    }

    /// A later one of the container was answered.
    pub(super) fn forget_lost(&self, id: &ContainerId) {
        self.lost.0.borrow_mut().remove(id);
    }

    /// Whether what a container's spec says is for lost updates of it to tell: one may yet come about. Those that
    /// have are committed.
    pub(crate) fn settles_lost(&self, id: &ContainerId, shown: &Requested) -> bool {
        // None of them is forgotten for another that is committed.
        let lost = self.lost.0.borrow_mut().remove(id).unwrap_or_default();
        if lost.is_empty() {
            return false;
        }
        let news = {
            let ledger = self.ledger.borrow();
            let known = ledger.container(id);
            known.map(|(_, container)| unread(shown.clone(), container))
        };
        let (done, mut waiting) = come_about(lost, shown, &news.unwrap_or_default());
        for update in done {
            self.commit(update, None);
        }
        waiting.retain(|(_, until)| *until > Instant::now());
        if waiting.is_empty() {
            return false;
        }
        self.lost.0.borrow_mut().insert(id.clone(), waiting);
        self.container_changed(id.clone());
        true
    }

    /// Those that were changed since this was asked for the last time, and those of which an update was lost,
    /// perhaps before they were known. Whoever does not find out to what has to give them back.
    pub(crate) fn changed_containers(&self) -> HashSet<ContainerId> {
        let mut changed = mem::take(&mut *self.changed.0.borrow_mut());
        let (lost, ledger) = (self.lost.0.borrow(), self.ledger.borrow());
        let known = lost.keys().filter(|id| ledger.sandbox_of(id).is_some());
        changed.extend(known.cloned());
        changed
    }
}

/// What of these updates has come about where a spec says what is `shown`, of which what is `news` is by nobody
/// who is known; and what has not. What is committed last is what is shown.
pub(super) fn come_about<T>(
    updates: Vec<(Pending, T)>,
    shown: &Requested,
    news: &Requested,
) -> (Vec<Pending>, Vec<(Pending, T)>) {
    let (done, others): (Vec<_>, Vec<_>) = updates
        .into_iter()
        .partition(|(update, _)| update.has_come_about(shown));
    let all = || done.iter().map(|(update, _)| update);
    let (overtaken, waiting): (Vec<_>, Vec<_>) = others
        .into_iter()
        .partition(|(update, _)| update.is_overtaken(all(), shown, news));
    // They are in the order in which they came, which the runtime may have changed.
    let order: Vec<_> = all().map(|it| it.is_replaced(all(), shown)).collect();
    let (replaced, last): (Vec<_>, Vec<_>) = done
        .into_iter()
        .zip(order)
        .partition(|(_, is_replaced)| *is_replaced);
    let done = replaced.into_iter().chain(last).map(|(it, _)| it);
    let done = overtaken.into_iter().chain(done);
    (done.map(|(update, _)| update).collect(), waiting)
}

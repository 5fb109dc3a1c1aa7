//! The kernel's switches of group identity and of core scheduling, and what waits for them.
//!
//! Ranks and cookies together can lock up a machine. So a switch goes off once nothing needs it any
//! more, and what needs one is written once it is on. What the kernel has refused keeps no switch back:
//! whether it takes the switch all the same is the kernel's to judge. No kernel that has switches was
//! seen, and nothing here counts on what it refuses.

use super::{note_node, threads::running};
use crate::{
    apply::threads::{JoinError, Joined, Member, ThreadGroup},
    hub::Hub,
    ledger::{Applied, Entry, Ledger, NodeGroupKind, Target},
};
use koord_kernel::cgroup::Change;
use koord_model::{Bvt, CoreGroup, SchedSwitch, Setting, Value};
use rustix::io::Errno;
use std::rc::Rc;

/// What may be written now. Where nobody decides about switches everything may, but for cookies where that
/// is left to others and the kernel has group identity: nothing says whether that is on.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Gate {
    ranks: bool,
    cookies: bool,
}

/// What that is where the kernel has refused one.
const REFUSED: &str = "the kernel refuses to switch between group identity and core scheduling: ranks and \
     cookies wait";

// === impl Gate ===

impl Gate {
    pub(crate) fn of(hub: &Hub) -> Self {
        let gate = Self::by(standing(&hub.ledger().borrow()));
        let policy = hub.policy();
        let is_left = policy.chain().left().contains(&Setting::SchedSwitch);
        Self {
            cookies: gate.cookies && !(is_left && policy.node().kernel.bvt),
            ..gate
        }
    }

    fn by(standing: Option<(SchedSwitch, &Applied)>) -> Self {
        let Some((choice, applied)) = standing else {
            return Self {
                ranks: true,
                cookies: true,
            };
        };
        let is_there = matches!(applied, Applied::Equal | Applied::Written);
        Self {
            ranks: is_there && choice == SchedSwitch::GroupIdentity,
            cookies: is_there && choice == SchedSwitch::CoreSched,
        }
    }

    /// Whether this may be written to a file now.
    pub(crate) fn lets(self, value: &Value) -> bool {
        match value {
            Value::CpuBvt(rank) => self.ranks || *rank == Bvt::default(),
            _ => true,
        }
    }

    /// Whether these threads may be brought into their group now.
    pub(crate) fn lets_join(self, member: &Member) -> bool {
        match &member.group {
            ThreadGroup::Cores(group) => self.cookies || *group == CoreGroup::None,
            ThreadGroup::Caches(_) | ThreadGroup::OomScore(_) => true,
        }
    }
}

/// Where the switches are to be, and what became of that.
fn standing(ledger: &Ledger) -> Option<(SchedSwitch, &Applied)> {
    let mut groups = ledger.node.iter();
    let root = groups.find(|group| group.kind == NodeGroupKind::Root)?;
    let mut entries = root.target.entries().iter();
    entries.find_map(|entry| match entry.desired {
        Value::SchedSwitch(choice) => Some((choice, &entry.applied)),
        _ => None,
    })
}

/// What a person should know of the switches.
pub(crate) fn refused_switch(hub: &Hub) -> Option<&'static str> {
    let ledger = hub.ledger().borrow();
    let (_, applied) = standing(&ledger)?;
    matches!(applied, Applied::Refused(_)).then_some(REFUSED)
}

/// Whether this is about the switches.
pub(super) fn is_switch(change: &Change) -> bool {
    change.value.setting() == Setting::SchedSwitch
}

/// Whether the switches wait for nothing more to be brought to where they are to be.
pub(super) fn is_due(hub: &Hub) -> bool {
    let ledger = hub.ledger().borrow();
    let waits = standing(&ledger).filter(|(_, applied)| **applied == Applied::Pending);
    waits.is_some_and(|(choice, _)| {
        hub.enforces() && hub.is_whole() && has_no_ranks(&ledger, choice)
    })
}

/// Brings the switches to where they are decided to be, once all pods are known and nothing of ours
/// needs the one that goes off.
pub(super) async fn turn(hub: &Rc<Hub>, changes: Vec<Change>) {
    let is_ready = |change: &Change| match change.value {
        Value::SchedSwitch(choice) => has_no_ranks(&hub.ledger().borrow(), choice),
        _ => true,
    };
    if changes.is_empty() || !hub.is_whole() || !changes.iter().all(is_ready) {
        return;
    }
    let before = Gate::of(hub);
    if changes.iter().any(|change| ends_cookies(hub, change)) {
        let members = without_cookies(&hub.ledger().borrow());
        let asked = members.len();
        let joined = hub.writer().join(members, <[_]>::len).await;
        // Once it is off nobody takes cookies any more. It waits for the next pod that is looked at.
        if joined.len() < asked || joined.iter().any(is_to_be_tried_again) {
            return;
        }
    }
    let applied = hub.writer().write(changes.clone()).await;
    note_node(hub, &changes, &applied);
    if Gate::of(hub) != before {
        hub.queue().push_all(&hub.ledger().borrow());
    }
}

/// Whether all ranks that are to be 0 before this were held against the kernel.
fn has_no_ranks(ledger: &Ledger, choice: SchedSwitch) -> bool {
    if choice == SchedSwitch::GroupIdentity {
        return true;
    }
    let none = Value::from(Bvt::default());
    let is_left = |entry: &Entry| entry.desired == none && entry.applied == Applied::Pending;
    let of_pods = ledger.pods().filter(|pod| pod.ready).map(|pod| &pod.own);
    let of_node = ledger.node.iter().map(|group| &group.target);
    let placed = of_pods.chain(of_node).filter(|target| target.at.is_some());
    !placed.flat_map(Target::entries).any(is_left)
}

/// Whether this may put core scheduling off. What was not to be had is tried again without that: cookies
/// were taken for it, and would be each minute.
fn ends_cookies(hub: &Hub, change: &Change) -> bool {
    let ledger = hub.ledger().borrow();
    let well = [Applied::Pending, Applied::Equal, Applied::Written];
    let has_failed = standing(&ledger).is_some_and(|(_, applied)| !well.contains(applied));
    let goes = change.value != Value::SchedSwitch(SchedSwitch::CoreSched);
    goes && !has_failed && hub.writer().holds(&change.at, &change.value) != Some(true)
}

/// Whether some of a pod may have cookies still, for a reason that passes: the kernel or we are short of
/// something.
fn is_to_be_tried_again(joined: &Result<Joined, JoinError>) -> bool {
    let short = [Errno::AGAIN, Errno::NOMEM, Errno::MFILE, Errno::NFILE];
    joined.as_ref().is_err_and(|error| match error {
        JoinError::Unlisted { .. } => !error.is_gone(),
        error => short
            .iter()
            .any(|it| error.errno() == Some(it.raw_os_error())),
    })
}

/// All that runs in pods. Nothing says who has given a thread its cookie, which may have been we before a
/// restart, and without core scheduling none counts: so nobody keeps one.
fn without_cookies(ledger: &Ledger) -> Vec<Member> {
    let targets = ledger.pods().flat_map(running);
    let members = targets.filter_map(|target| {
        Some(Member {
            at: target.at.clone()?,
            group: ThreadGroup::Cores(CoreGroup::None),
            with_shim: true,
        })
    });
    members.collect()
}

#[cfg(test)]
mod tests;

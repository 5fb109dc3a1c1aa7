//! What was there before us, of values that a process before us has set, or we before a pod's sandbox was
//! made anew: what is decided still comes back one day, and what nobody decides any more now.
//!
//! The groups of pods, tiers and host applications have it noted on themselves. Each is asked for once.

use crate::{
    hub::Hub,
    ledger::{NodeGroupKind, Pod},
};
use koord_kernel::cgroup::Original;
use koord_model::{CgroupPath, KubeQos, SandboxId};
use std::{cell::RefCell, collections::HashSet, rc::Rc};

/// The groups of the node's own that were asked for.
pub(super) type Recalled = RefCell<HashSet<CgroupPath>>;

/// Recalls what is noted of everything.
pub(crate) async fn all(hub: &Rc<Hub>) {
    let sandboxes: Vec<SandboxId> = {
        let ledger = hub.ledger().borrow();
        ledger.pods().map(|pod| pod.sandbox.clone()).collect()
    };
    for sandbox in &sandboxes {
        pod(hub, sandbox).await;
    }
    node(hub).await;
}

/// Recalls what is noted of a pod's own directory.
pub(super) async fn pod(hub: &Rc<Hub>, sandbox: &SandboxId) {
    let at = {
        let mut ledger = hub.ledger().borrow_mut();
        let pod = ledger
            .pod_mut(sandbox)
            .filter(|pod| pod.ready && !pod.is_recalled);
        pod.and_then(|pod| {
            pod.is_recalled = pod.own.at.is_some();
            pod.own.at.clone()
        })
    };
    let Some(at) = at else {
        return;
    };
    let noted = hub.writer().recall(vec![at.clone()]).await;
    let noted = ours(hub, noted.into_iter().flatten());
    let mut ledger = hub.ledger().borrow_mut();
    // It may be another pod's by now.
    let pod = ledger.pod_mut(sandbox);
    if let Some(Pod { own, .. }) = pod.filter(|pod| pod.own.at.as_ref() == Some(&at)) {
        noted.iter().for_each(|it| own.recall_noted(it));
    }
}

/// Recalls what is noted of tiers, and of the host applications that the policy names.
pub(super) async fn node(hub: &Rc<Hub>) {
    let groups = groups_of_node(hub);
    if groups.is_empty() {
        return;
    }
    let paths = groups.iter().map(|(at, _)| at.clone()).collect();
    let noted = hub.writer().recall(paths).await;
    for ((at, kind), noted) in groups.into_iter().zip(noted) {
        for noted in ours(hub, noted.into_iter()) {
            let ledger = &mut hub.ledger().borrow_mut();
            ledger.node.recall_noted(&at, kind, &noted);
        }
    }
}

/// Those that were not asked for yet.
fn groups_of_node(hub: &Hub) -> Vec<(CgroupPath, NodeGroupKind)> {
    let policy = hub.policy();
    let tiers = &policy.node().tiers;
    let tiers = [
        (&tiers.kubepods, KubeQos::Guaranteed),
        (&tiers.burstable, KubeQos::Burstable),
        (&tiers.best_effort, KubeQos::BestEffort),
    ];
    let tiers = tiers.map(|(at, tier)| (at.clone(), NodeGroupKind::Tier(tier)));
    let ledger = hub.ledger().borrow();
    let groups = ledger.node.iter();
    let named = groups.filter_map(|group| Some((group.target.at.clone()?, group.kind)));
    let mut recalled = hub.queue().recalled.borrow_mut();
    let all = tiers.into_iter().chain(named);
    all.filter(|(at, _)| !at.is_root() && recalled.insert(at.clone()))
        .collect()
}

/// What koordlet does the part of is not: it may have written the same.
fn ours(hub: &Hub, noted: impl Iterator<Item = Original>) -> Vec<Original> {
    let policy = hub.policy();
    noted
        .filter(|it| !policy.chain().rests(it.setting()))
        .collect()
}

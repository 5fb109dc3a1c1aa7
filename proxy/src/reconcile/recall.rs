//! What was there before us, of values that a process before us has set, or we before a pod's sandbox was
//! made anew: what is decided still comes back one day, and what nobody decides any more now.
//!
//! The groups of pods, tiers and host applications have it noted on themselves; those of containers which
//! settings are by us. Each group is asked for until there is an answer of it and, where the source of pods is awaited,
//! that was heard; and then no more.

use super::unheard::is_summed;
use crate::{
    apply::kernel::ContainerMarks,
    hub::{Hub, asked},
    ledger::{Changes, Container, Life, NodeGroupKind, Pod, Route, Target},
    relist::is_changed,
    worker::Undone,
};
use koord_kernel::cgroup::Original;
use koord_model::{CgroupPath, ContainerId, KubeQos, SandboxId, Setting, Value};
use std::{
    cell::RefCell,
    collections::{HashMap, HashSet},
    rc::Rc,
    time::Duration,
};
use tokio::time::Instant;

/// The groups of the node's own of which it is known what is noted.
pub(super) type Recalled = RefCell<HashSet<CgroupPath>>;

/// How long a container is not written to at most where the runtime does not say to what it was changed.
const FOUND_OUT: Duration = Duration::from_secs(5);

/// What containers' groups are marked with.
type MarksByGroup = HashMap<CgroupPath, ContainerMarks>;

/// Recalls what is noted of everything, in one go; an error if that cannot be found out of something.
pub(crate) async fn all(hub: &Rc<Hub>) -> Result<(), Undone> {
    let sandboxes: Vec<SandboxId> = {
        let mut ledger = hub.ledger().borrow_mut();
        for container in ledger.pods_mut().flat_map(|pod| &mut pod.containers) {
            // Nobody asks the runtime any more.
            container.changes = Changes::Known;
        }
        ledger.pods().map(|pod| pod.sandbox.clone()).collect()
    };
    let mut all = Ok(());
    for sandbox in &sandboxes {
        all = pod(hub, sandbox).await.and(all);
    }
    node(hub).await.and(all)
}

/// Recalls what is noted of a pod's own directory, and of its containers, some of which may have come to be
/// known later than the pod. What a hook may decide once the pod's source was heard is left for then.
///
/// If somebody has changed a container while nobody was here, the runtime is to say to what before that is written
/// to.
pub(super) async fn pod(hub: &Rc<Hub>, sandbox: &SandboxId) -> Result<(), Undone> {
    let (at, unnoted, containers) = {
        let ledger = hub.ledger().borrow();
        let Some(pod) = ledger.pod(sandbox).filter(|pod| pod.ready) else {
            return Ok(());
        };
        let at = pod.own.at.clone();
        // Where many share a directory nothing of ours is noted on that, and its containers are marked.
        let unnoted = at.clone().filter(|_| !pod.own.is_recalled);
        (at, unnoted, groups_of(pod))
    };
    if unnoted.is_none() && containers.is_empty() {
        return Ok(());
    }
    let noted = match unnoted {
        Some(at) => noted(hub, &at).await?,
        None => Vec::new(),
    };
    let mut marked = marked(hub, &containers).await?;
    let are_all_read = containers.iter().all(|at| marked.contains_key(at));
    let mut changed = Vec::new();
    let mut ledger = hub.ledger().borrow_mut();
    // It may be another pod's by now.
    let pod = ledger.pod_mut(sandbox);
    if let Some(pod) = pod.filter(|pod| pod.own.at == at) {
        changed = take_changes(hub, pod, (&containers, &marked));
        let is_unheard = hub.is_unheard(pod);
        let is_left = |setting| is_unheard && hub.policy().chain().decides(setting);
        for noted in &noted {
            let setting = noted.setting();
            if pod.own.entry_mut(setting).is_some() || !is_left(setting) {
                pod.own.recall_noted(noted);
            }
        }
        pod.own.is_recalled |= at.is_some() && !is_unheard;
        for marks in marked.values_mut() {
            marks.retain(|setting| !is_left(setting));
        }
        take_marks(hub, pod, (&marked, !is_unheard));
    }
    drop(ledger);
    if !changed.is_empty() {
        let until = Instant::now() + FOUND_OUT;
        hub.queue().push_at(until, sandbox.clone());
    }
    hub.containers_changed(changed);
    // A container can close its group to us, and takes nothing from others by that.
    are_all_read.then_some(()).ok_or(Undone::Unread)
}

/// Recalls what is noted of a pod of whose containers one was not looked at since we began, before what is new of it
/// is written.
pub(super) async fn unread(hub: &Rc<Hub>, sandbox: &SandboxId) {
    let is_unread = {
        let ledger = hub.ledger().borrow();
        let containers = ledger
            .pod(sandbox)
            .into_iter()
            .flat_map(|it| &it.containers);
        let mut running = containers.filter(|it| it.life == Life::Running);
        running.any(|it| it.changes == Changes::Unread)
    };
    if is_unread && hub.enforces() {
        // What there is no thread for now is asked again at the next check.
        pod(hub, sandbox).await.ok();
    }
}

/// The containers that somebody else has changed while nobody was here, of those whose groups were `asked` for what
/// they are `marked` with. Of one that has not said it nothing can be known.
fn take_changes(
    hub: &Hub,
    pod: &mut Pod,
    (asked, marked): (&[CgroupPath], &MarksByGroup),
) -> Vec<ContainerId> {
    let until = Instant::now() + FOUND_OUT;
    let mut changed = Vec::new();
    for container in &mut pod.containers {
        let Some(at) = container.target.at.as_ref().filter(|it| asked.contains(it)) else {
            continue;
        };
        if container.changes != Changes::Unread {
            continue;
        }
        let marks = marked.get(at);
        let is_changed = marks.is_some_and(|marks| is_changed(hub, container, &marks.ours));
        if is_changed {
            changed.push(container.id.clone());
        }
        container.changes = match is_changed {
            true => Changes::FindingOut(until),
            false => Changes::Known,
        };
    }
    changed
}

/// Takes over marks, which are all there are of these groups if they are `whole`.
fn take_marks(hub: &Hub, pod: &mut Pod, (marked, whole): (&MarksByGroup, bool)) {
    let marks_of = |target: &Target| target.at.as_ref().and_then(|at| marked.get(at));
    let of_pause = marks_of(&pod.pause).map(|marks| marks.ours.clone());
    if let Some(marks) = of_pause.as_ref().filter(|_| !pod.pause.is_recalled) {
        for setting in marks {
            pod.pause.recall_mark(*setting, None, Route::Kernel);
        }
        pod.pause.is_recalled = whole;
    }
    let whole = whole && (of_pause.is_some() || pod.pause.at.is_none());
    // What a shim starts is in the shim's groups, and is marked a moment later.
    let of_shim = of_pause.iter().flatten().copied();
    let of_shim = of_shim.filter(|it| it.is_of_threads());
    for container in &mut pod.containers {
        let Container {
            target, view, ours, ..
        } = container;
        let Some(marks) = marks_of(target).filter(|_| !target.is_recalled) else {
            continue;
        };
        for setting in marks.ours.iter().copied().chain(of_shim.clone()) {
            // Its creation may have said it, or an update since, where calls pass us.
            let is_said = !hub.watches() || ours.iter().any(|it| it.setting() == setting);
            let route = match is_said && setting.is_sayable() {
                true => Route::Request,
                false => Route::Kernel,
            };
            target.recall_mark(setting, asked(&view.requested, setting), route);
        }
        for setting in &marks.in_spec {
            take_returned(hub, target, (*setting, asked(&view.requested, *setting)));
        }
        target.is_recalled = whole;
    }
}

/// What is there again, while the spec of its runtime may still have a value of ours. If something else is there than
/// what is known to have been asked for, somebody has written since, and may have asked for it.
fn take_returned(hub: &Hub, target: &mut Target, (setting, asked): (Setting, Option<Value>)) {
    // Where nobody asks us the spec is what was asked for.
    if hub.watches() || target.entry_mut(setting).is_some() {
        return;
    }
    let Some(at) = target.at.clone() else {
        return;
    };
    let back = match target.back(setting, asked) {
        Some(back) => Some(back).filter(|back| hub.writer().holds(&at, back) == Some(true)),
        None => hub.writer().held(&at, setting),
    };
    if let Some(back) = back {
        target.recall_returned(back);
    }
}

/// The groups of a pod's containers that run, or may yet, and of which it is unknown what was set of them;
/// with any the sandbox's, whose marks count for them as well.
fn groups_of(pod: &Pod) -> Vec<CgroupPath> {
    let is_unknown = |target: &&Target| !target.is_recalled && target.at.is_some();
    let containers = pod.containers.iter();
    let containers = containers.filter(|container| container.life != Life::Exited);
    let mut targets: Vec<_> = containers
        .map(|container| &container.target)
        .filter(is_unknown)
        .collect();
    if !targets.is_empty() || is_unknown(&&pod.pause) {
        targets.push(&pod.pause);
    }
    let targets = targets.into_iter();
    targets.filter_map(|target| target.at.clone()).collect()
}

/// What is noted of a pod's own directory; nothing that koordlet does the part of.
async fn noted(hub: &Hub, at: &CgroupPath) -> Result<Vec<Original>, Undone> {
    let noted = hub.writer().recall(vec![at.clone()]).await;
    let noted = noted.ok_or(Undone::NoThread)?.pop().flatten();
    Ok(ours(hub, noted.ok_or(Undone::Unread)?))
}

/// What of these was set before us, as far as it can be read; nothing that koordlet does the part of.
async fn marked(hub: &Hub, groups: &[CgroupPath]) -> Result<MarksByGroup, Undone> {
    if groups.is_empty() {
        return Ok(MarksByGroup::new());
    }
    let marks = hub.writer().marks(groups.to_vec()).await;
    let marks = marks.ok_or(Undone::NoThread)?;
    let mut marked = MarksByGroup::new();
    for (at, marks) in groups.iter().zip(marks) {
        if let Some(mut marks) = marks {
            marks.retain(|setting| !hub.policy().chain().rests(setting));
            marked.insert(at.clone(), marks);
        }
    }
    Ok(marked)
}

/// Recalls what is noted of tiers, and of the host applications that the policy names. What tiers keep for
/// pods is left until the source of these was heard.
pub(super) async fn node(hub: &Rc<Hub>) -> Result<(), Undone> {
    let groups = groups_of_node(hub);
    if groups.is_empty() {
        return Ok(());
    }
    let paths = groups.iter().map(|(at, _)| at.clone()).collect();
    let noted = hub.writer().recall(paths).await;
    let noted = noted.ok_or(Undone::NoThread)?;
    let mut all = Ok(());
    for ((at, kind), noted) in groups.into_iter().zip(noted) {
        let Some(noted) = noted else {
            all = Err(Undone::Unread);
            continue;
        };
        let is_known = !hub.awaits_pods();
        for noted in ours(hub, noted) {
            let setting = noted.setting();
            // Of the root's all but devices have a way of their own.
            if !is_known && is_summed(setting) || at.is_root() && !setting.is_of_devices() {
                continue;
            }
            let ledger = &mut hub.ledger().borrow_mut();
            ledger.node.recall_noted(&at, kind, &noted);
        }
        if is_known {
            hub.queue().recalled.borrow_mut().insert(at);
        }
    }
    all
}

/// Those of which it is not known yet what is noted.
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
    let mut known = hub.queue().recalled.borrow().clone();
    let root = (CgroupPath::root(), NodeGroupKind::Root);
    let all = [root].into_iter().chain(tiers).chain(named);
    all.filter(|(at, _)| known.insert(at.clone())).collect()
}

/// What koordlet does the part of is not: it may have written the same.
fn ours(hub: &Hub, noted: Vec<Original>) -> Vec<Original> {
    let policy = hub.policy();
    let noted = noted.into_iter();
    noted
        .filter(|it| !policy.chain().rests(it.setting()))
        .collect()
}

//! What each thread of a pod should have, which no file of its control groups says.

use super::{Gate, Part, places, slow::RETRY, tell, tell_refusal};
use crate::{
    apply::{
        caches::Swept,
        threads::{JoinError, Joined, Member, ThreadGroup},
    },
    hub::Hub,
    ledger::{Applied, Container, Entry, Ledger, Life, Pod, Route, Target},
    worker::Undone,
};
use koord_model::{CacheClass, CgroupPath, ContainerId, CoreGroup, SandboxId, Setting, Value};
use std::{
    collections::{BTreeSet, HashMap},
    error::Error,
    rc::Rc,
    slice,
};
use tokio::time::Instant;
use tracing::{info, warn};

/// Others of a group among whom its cookie is looked for: after a restart nearly all of them have it.
const OTHERS: usize = 256;

/// Those of other groups, none of whom is to have it: all that a node is likely to run.
const APART: usize = 1024;

/// Brings the threads of a pod's running containers, of its sandbox and of the shim that starts
/// them into the groups that were decided. Whether some of them wait for the first list.
pub(super) async fn join(hub: &Rc<Hub>, sandbox: &SandboxId, part: Part) -> bool {
    let gate = Gate::of(hub);
    let mut members = match hub.ledger().borrow().pod(sandbox) {
        Some(pod) => members(pod, runs, |entry| part.has(entry)),
        None => return false,
    };
    members.retain(|member| gate.lets_join(member));
    if members.is_empty() {
        return false;
    }
    let still_wanted = |left: &[Member]| still_wanted(hub, left);
    let mut joined = hub.writer().join(members.clone(), still_wanted).await;
    let mut is_answered = is_answered_by(hub, &members, joined.len());
    if hub.is_whole() {
        is_answered &= join_unmet(hub, &members, &mut joined).await;
    }
    let waits = joined.iter().any(is_unmet);
    if !is_answered {
        // What it was that nobody answers may be the same again.
        let retry = Instant::now() + RETRY;
        hub.queue().push_by(retry, sandbox.clone());
    } else if joined.len() < members.len() || waits && hub.is_whole() {
        // Of the next one something else is decided by now, or it has gone; of those behind it nothing
        // may have changed.
        hub.queue().push_threads(sandbox.clone(), Part::Whole);
    }
    let mut ledger = hub.ledger().borrow_mut();
    // Decisions may have changed meanwhile, so answers find their entry by place and value.
    let Some(pod) = ledger.pod_mut(sandbox) else {
        return false;
    };
    let containers = pod.containers.iter_mut().map(|it| &mut it.target);
    let mut targets: Vec<_> = [&mut pod.pause].into_iter().chain(containers).collect();
    let places = places(targets.iter().map(|target| &**target));
    // What waits for the first list is looked at after it.
    let outcomes = members.iter().zip(&joined);
    for (member, outcome) in outcomes.filter(|(_, outcome)| !is_unmet(outcome)) {
        if let Some(place) = places.get(&member.at)
            && note(hub, targets[*place], member, outcome)
        {
            // Behind those of all others.
            hub.queue().push_threads(sandbox.clone(), Part::Whole);
        }
    }
    for target in targets {
        target.settle();
    }
    waits
}

/// What has to be in its group before a container is started: whoever starts it, and where the
/// runtime has its process waiting already, that. What the runtime was told it does itself.
pub(crate) fn starting(pod: &Pod, id: &ContainerId) -> Vec<Member> {
    let by_us = |entry: &Entry| entry.route == Route::Kernel;
    members(pod, |container| container.id == *id, by_us)
}

/// Brings those into their groups that a start is to find there. Who is in a group of cores as well, one
/// of whom may have its cookie, is known after the first list, for which this waits.
pub(crate) async fn join_starting(hub: &Hub, members: Vec<Member>) {
    let still_wanted = |left: &[Member]| still_wanted(hub, left);
    let mut joined = hub.writer().join(members.clone(), still_wanted).await;
    if joined.iter().any(is_unmet) {
        hub.whole().await;
        join_unmet(hub, &members, &mut joined).await;
    }
}

/// Brings those in of whose groups of cores nobody was known to have a cookie: one of the pods may that
/// were not looked at yet. False if there is no answer: there is no thread, or it panicked.
async fn join_unmet(
    hub: &Hub,
    members: &[Member],
    joined: &mut [Result<Joined, JoinError>],
) -> bool {
    // Hardly ever is there one, and all pods are looked at for what is wanted.
    if !joined.iter().any(is_unmet) {
        return true;
    }
    let wanted = Wanted::among(hub, members);
    let outcomes = members.iter().zip(joined);
    let unmet = outcomes.filter(|(_, outcome)| is_unmet(outcome));
    let unmet: Vec<_> = unmet.filter(|(member, _)| wanted.has(member)).collect();
    if unmet.is_empty() {
        return true;
    }
    let beside: Vec<_> = unmet.iter().map(|(member, _)| (*member).clone()).collect();
    let others = others(&hub.ledger().borrow(), &beside);
    let still_wanted = |left: &[Member]| still_wanted(hub, left);
    let answers = hub
        .writer()
        .join_beside(beside.clone(), others, still_wanted);
    let answers = answers.await;
    let is_answered = is_answered_by(hub, &beside, answers.len());
    for ((_, outcome), answer) in unmet.into_iter().zip(answers) {
        *outcome = answer;
    }
    is_answered
}

/// Whether so many answers are all that could be had: the next member is not wanted any more. If it is, there
/// is no thread, or it panicked.
fn is_answered_by(hub: &Hub, members: &[Member], answers: usize) -> bool {
    let next = members.get(answers);
    next.is_none_or(|next| still_wanted(hub, slice::from_ref(next)) == 0)
}

/// How many of these, from the first one on, it is decided now that they are in their groups.
fn still_wanted(hub: &Hub, left: &[Member]) -> usize {
    if left.is_empty() {
        return 0;
    }
    let wanted = Wanted::among(hub, left);
    left.iter().take_while(|member| wanted.has(member)).count()
}

/// What is decided now of some members: since somebody asked for them, another policy may have come, or the
/// switch of a kind have been turned. It is found for all at once, because it is asked after every few of
/// them, and a pod may have thousands.
struct Wanted<'a> {
    gate: Gate,
    decided: HashMap<&'a CgroupPath, Vec<Member>>,
}

// === impl Wanted ===

impl<'a> Wanted<'a> {
    fn among(hub: &Hub, asked: &'a [Member]) -> Self {
        let mut decided: HashMap<_, Vec<_>> = asked.iter().map(|it| (&it.at, Vec::new())).collect();
        let ledger = hub.ledger().borrow();
        for pod in ledger.pods() {
            let targets = pod.containers.iter().map(|container| &container.target);
            let mut places = targets.chain([&pod.pause]).flat_map(|target| &target.at);
            // Hardly any pod is worth a closer look.
            if !places.any(|at| decided.contains_key(at)) {
                continue;
            }
            for member in members(pod, |_| true, |_| true) {
                if let Some(there) = decided.get_mut(&member.at) {
                    there.push(member);
                }
            }
        }
        Self {
            gate: Gate::of(hub),
            decided,
        }
    }

    fn has(&self, member: &Member) -> bool {
        let there = self.decided.get(&member.at);
        let is_decided = there.is_some_and(|there| there.iter().any(|it| it.is_same(member)));
        is_decided && self.gate.lets_join(member)
    }
}

fn is_unmet(outcome: &Result<Joined, JoinError>) -> bool {
    outcome.as_ref().is_err_and(JoinError::is_unmet)
}

/// Who else runs in groups of cores, as far as it is decided: in those of these first.
fn others(ledger: &Ledger, unmet: &[Member]) -> Vec<Member> {
    let all = ledger.pods().flat_map(|pod| members(pod, runs, |_| true));
    let is_unmet = |other: &Member| unmet.iter().any(|it| it.is_same(other));
    let others = all.filter(|other| is_in_cores(other) && !is_unmet(other));
    let same = |other: &Member| unmet.iter().any(|member| member.group == other.group);
    let (same, apart): (Vec<_>, Vec<_>) = others.partition(same);
    let apart = apart.into_iter().take(APART);
    same.into_iter().take(OTHERS).chain(apart).collect()
}

/// Whether it is to have a cookie. Who is to have none may still have that of a group which it has left.
fn is_in_cores(member: &Member) -> bool {
    matches!(&member.group, ThreadGroup::Cores(group) if *group != CoreGroup::None)
}

fn runs(container: &Container) -> bool {
    container.life == Life::Running
}

fn members(
    pod: &Pod,
    wanted: impl Fn(&Container) -> bool,
    counts: impl Fn(&Entry) -> bool,
) -> Vec<Member> {
    let pause = pod.ready.then(|| members_at(&pod.pause, |_| true, &counts));
    let containers = pod.containers.iter().filter(|container| wanted(container));
    // Most are started by the sandbox's. Whatever another starts later is in the groups that it was brought into.
    let containers = containers.map(|it| members_at(&it.target, is_outside, &counts));
    pause.into_iter().chain(containers).flatten().collect()
}

/// Whether the shim may be elsewhere as well: whatever of the threads is lacking, that goes before them.
fn is_outside(entry: &Entry) -> bool {
    let applied = &entry.applied;
    !matches!(
        applied,
        Applied::Equal | Applied::Written | Applied::Lacking(_)
    )
}

/// The groups that a control group's threads belong to, one of each kind, as far as they are ours to
/// hold.
fn members_at(
    target: &Target,
    with_shim: fn(&Entry) -> bool,
    counts: impl Fn(&Entry) -> bool,
) -> impl Iterator<Item = Member> {
    let entries = target.entries().iter();
    let ours = entries.filter(|entry| !entry.applied.is_hands_off() && !entry.is_let_go());
    let wanted = ours.filter(move |entry| counts(entry));
    wanted.filter_map(move |entry| {
        let group = ThreadGroup::of(&entry.desired)?;
        Some(Member {
            at: target.at.clone()?,
            group,
            with_shim: with_shim(entry),
        })
    })
}

/// Brings the threads of all pods into the groups that were decided, and removes groups of caches that no
/// pod is in any more.
pub(super) async fn join_all(hub: &Rc<Hub>) -> Result<Swept, Undone> {
    let sandboxes = |ledger: &Ledger| ledger.pods().map(|pod| pod.sandbox.clone()).collect();
    let pods: Vec<SandboxId> = sandboxes(&hub.ledger().borrow());
    for sandbox in &pods {
        super::join(hub, sandbox, Part::Whole).await;
    }
    keep(hub).await
}

/// Removes the groups of caches that no pod is in any more, and says what came of it; an error if there is
/// no thread to do it. Before the first list, and until the source of pods was heard, nobody knows which those
/// are.
pub(super) async fn keep(hub: &Rc<Hub>) -> Result<Swept, Undone> {
    let is_known = hub.is_whole() && !hub.awaits_pods();
    if !hub.enforces() || !is_known || !hub.policy().node().kernel.resctrl {
        return Ok(Swept::default());
    }
    let Some(kept) = kept(hub) else {
        return Ok(Swept::default());
    };
    let swept = hub.writer().keep(kept).await.ok_or(Undone::NoThread)?;
    if swept.removed > 0 {
        info!(
            groups = swept.removed,
            "groups of caches that nobody is in any more are gone"
        );
        // A class or an id is free, for which somebody may wait.
        let short = |pod: &&Pod| running(pod).any(|target| target.entries().iter().any(is_short));
        for pod in hub.ledger().borrow().pods().filter(short) {
            hub.queue().push(pod.sandbox.clone());
        }
    }
    if let Some(error) = &swept.failed
        && let Some(suppressed) = hub.may_complain("-", Setting::Resctrl.name())
    {
        let error = error as &dyn Error;
        warn!(
            error,
            suppressed, "groups of caches that nobody is in cannot be removed"
        );
    }
    Ok(swept)
}

/// The groups that stay; `None` if all do. Koordlet's have the names of ours, and nothing in them says
/// who has filled them: while it does the part of a hook here they are its own to remove.
fn kept(hub: &Hub) -> Option<BTreeSet<String>> {
    let policy = hub.policy();
    let resting = policy.chain().resting();
    if resting.contains("Resctrl") {
        return None;
    }
    let mut kept: BTreeSet<String> = hub.ledger().borrow().pods().flat_map(wanted).collect();
    if resting.contains("RdtResctrl") {
        let classes = [CacheClass::Lsr, CacheClass::Ls, CacheClass::Be];
        kept.extend(classes.map(|class| class.name().to_owned()));
    }
    Some(kept)
}

/// Whether groups go with this pod.
pub(crate) fn has_group(pod: &Pod) -> bool {
    !wanted(pod).is_empty()
}

/// The groups of caches that a pod is in while it runs.
fn wanted(pod: &Pod) -> BTreeSet<String> {
    let entries = running(pod).flat_map(Target::entries);
    let groups = entries.filter_map(|entry| match &entry.desired {
        Value::Resctrl(group) => Some((group, &entry.applied)),
        _ => None,
    });
    let names = groups.flat_map(|(group, applied)| {
        // Until it is in its own it may be in another.
        group.names(matches!(applied, Applied::Equal | Applied::Written))
    });
    names.collect()
}

/// What of a pod has threads.
pub(super) fn running(pod: &Pod) -> impl Iterator<Item = &Target> {
    let pause = pod.ready.then_some(&pod.pause);
    let containers = pod.containers.iter();
    let containers = containers.filter(|container| container.life == Life::Running);
    pause
        .into_iter()
        .chain(containers.map(|container| &container.target))
}

/// Whether it waits for a class of the processor, or to be counted apart.
fn is_short(entry: &Entry) -> bool {
    entry.desired.setting() == Setting::Resctrl && matches!(entry.applied, Applied::Refused(_))
}

/// Whether the threads are to be looked at once more.
fn note(
    hub: &Hub,
    target: &mut Target,
    member: &Member,
    outcome: &Result<Joined, JoinError>,
) -> bool {
    let setting = member.group.setting();
    let result = Applied::from(outcome);
    hub.metrics().kernel_setting(setting, &result);
    let Some(entry) = target.entry_mut(setting) else {
        return false;
    };
    let decided = ThreadGroup::of(&entry.desired).as_ref() == Some(&member.group);
    if !decided || entry.applied.is_hands_off() {
        return false;
    }
    let was_unsettled = matches!(entry.applied, Applied::Lacking(_));
    entry.is_logged &= entry.applied == result;
    entry.applied = result;
    match (outcome, &entry.applied) {
        (Err(error), Applied::Refused(_)) => tell_refusal(hub, entry, error),
        // A pod that has very many needs a second look.
        (Err(_), Applied::Lacking(_)) if !was_unsettled => return true,
        (Err(error), Applied::Lacking(_)) => tell(hub, entry, |entry, suppressed| {
            let (error, hook) = (error as &dyn Error, entry.owner);
            warn!(
                error,
                hook, suppressed, "some threads do not have what was decided, or may not"
            );
        }),
        _ => {}
    }
    false
}

impl From<&Result<Joined, JoinError>> for Applied {
    fn from(outcome: &Result<Joined, JoinError>) -> Self {
        match outcome {
            Ok(Joined::Moved) => Self::Written,
            Ok(Joined::Equal) => Self::Equal,
            Err(JoinError::Unsupported) => Self::Unsupported,
            Err(error) if error.leaves_some() => Self::Lacking(error.to_string().into()),
            Err(error) if error.is_gone() => Self::Absent,
            Err(error) => Self::Refused(error.errno()),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_hooks::{Adjustment, Merged};
    use koord_model::{CgroupPath, OomScoreAdj};

    #[test]
    fn a_shim_of_its_own_is_looked_for_until_a_container_is_in_its_group() {
        let mut merged = Merged::default();
        let adjustment = Adjustment {
            oom_score_adj: OomScoreAdj::new(500).ok(),
            ..Default::default()
        };
        merged.merge("Hook", adjustment).unwrap();
        let at = CgroupPath::parse("kubepods/pod1/c1").unwrap();
        let mut target = Target::at(Some(at));
        target.decide(&merged, |_| Route::Kernel, |_| None);
        for (applied, looked_for) in [
            (Applied::Pending, true),
            (Applied::Refused(None), true),
            (Applied::Absent, true),
            (Applied::Lacking("some".into()), false),
            (Applied::Written, false),
            (Applied::Equal, false),
        ] {
            let told = format!("{applied:?}");
            target
                .entries_mut()
                .for_each(|it| it.applied = applied.clone());
            let members: Vec<_> = members_at(&target, is_outside, |_| true).collect();
            assert_eq!(members.len(), 1, "{told}");
            assert_eq!(members[0].with_shim, looked_for, "{told}");
        }
    }
}

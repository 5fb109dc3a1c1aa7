//! What containers were asked to have before they were ours.
//!
//! Those whose creation we changed carry it with them. Of those that were there before us, or whose
//! creation said already what was decided, only the runtime can tell, and it shows two things: the
//! configuration of the creation, and the spec that it writes with each update. Where both say the
//! same nobody has changed it since, we neither, and that is what was asked for. Where they differ
//! it was somebody: the kubelet, or us before a restart, and so it stays unknown. Where nobody asks us
//! the spec is what was asked for, and the only one to tell of updates: nothing in it is ours but what
//! the container's annotation says that another front of ours has put there. Of an update that passed unread
//! the spec tells in the same way, beside what we have told the runtime since we run. A list shows that annotation
//! where the creation had it from us, and the spec where a plugin gave it to the container.

use super::{News, Patience, Scope, taken};
use crate::{
    hub::{Hub, SAID, asked, leave_out, shows},
    ledger::{Changes, Container, Entry, Exemption, Ledger, Life, Original, Pod, Target, Unasked},
    originals::{self, Origin},
    runtime::{Info, Runtime, RuntimeError},
    view,
};
use koord_hooks::{PodView, Requested};
use koord_model::{ContainerId, CpuQuota, Setting, Value};
use koord_proto::{cri, keys::annotation};
use std::{
    collections::{BTreeSet, HashSet},
    error::Error,
    mem,
};
use tracing::debug;

/// Containers that are asked about in one list. Each takes a millisecond or two.
const ASKED: usize = 64;

/// Takes up what a creation was changed to say, where that is in force and nobody decides it any
/// more: it is given back. Where that has come to pass the runtime's own spec still has ours, and it is
/// looked at again whenever that is written. What another value has replaced since is not ours to judge,
/// nor is what koordlet decides now, who may have written the same, nor what a hook may decide once the source
/// of an `unheard` pod was heard.
pub(super) fn recall(hub: &Hub, unheard: bool, container: &mut Container) {
    let Container {
        life,
        view,
        target,
        ours,
        ..
    } = container;
    let at = target.at.clone();
    let policy = hub.policy();
    for value in ours.iter() {
        let setting = value.setting();
        if let Some(entry) = target.entry_mut(setting) {
            entry.given |= entry.desired == *value;
            continue;
        }
        if policy.chain().rests(setting) || unheard && policy.chain().decides(setting) {
            continue;
        }
        let in_force = match (*life, &at) {
            // The runtime will write it at the start.
            (Life::Created, _) => true,
            // Each process has its own, at which the next check looks.
            (Life::Running, Some(_)) if setting.is_of_threads() => true,
            (Life::Running, Some(at)) => hub.writer().holds(at, value) == Some(true),
            _ => false,
        };
        let asked = asked(&view.requested, setting);
        if in_force {
            target.recall(value.clone(), asked);
        } else if *life == Life::Running
            && let (Some(at), Some(back)) = (&at, target.back(setting, asked))
            && hub.writer().holds(at, &back) == Some(true)
        {
            target.recall_returned(back);
        }
    }
}

/// Whether a container's quota is one that nobody here knows of: not what its creation asked for or
/// was changed to say, and not what is decided from that. A kubelet has resized it since, and what it
/// asked for then went with the process that heard it; or that process has written it by itself, and the
/// runtime's spec does not have it.
pub(super) fn is_resized(hub: &Hub, container: &Container, ours: &[Value]) -> bool {
    has_anothers(hub, (container, ours), Setting::CpuQuota)
}

/// The same of what else a kubelet changes of containers, but for what of it was `marked` as ours. Where a value
/// of ours is, or was, it cannot be told, and where koordlet decides it is that one's.
pub(crate) fn is_changed(hub: &Hub, container: &Container, marked: &BTreeSet<Setting>) -> bool {
    let policy = hub.policy();
    let entries = container.target.entries().iter();
    let of_ours = entries.map(|entry| &entry.desired).chain(&container.ours);
    let of_ours: BTreeSet<_> = of_ours.map(Value::setting).collect();
    let is_free = |setting: &Setting| {
        let is_ours = of_ours.contains(setting) || marked.contains(setting);
        !is_ours && !policy.chain().rests(*setting)
    };
    let mut free = CHANGED.into_iter().filter(is_free);
    free.any(|setting| has_anothers(hub, (container, &[]), setting))
}

/// What is changed of containers beside their quotas.
const CHANGED: [Setting; 3] = [
    Setting::CpuShares,
    Setting::MemoryLimit,
    Setting::CpusetCpus,
];

/// Whether what a container has of a setting that it asked for is by nobody who is known.
fn has_anothers(hub: &Hub, (container, ours): (&Container, &[Value]), setting: Setting) -> bool {
    let Container {
        life, view, target, ..
    } = container;
    let asked = asked(&view.requested, setting);
    let (Life::Running, Some(at), Some(asked)) = (*life, &target.at, asked) else {
        return false;
    };
    let entries = target.entries().iter().map(|entry| &entry.desired);
    let known = [&asked].into_iter().chain(ours).chain(entries);
    let mut known = known.filter(|value| value.setting() == setting);
    // What cannot be read now says nothing of a change.
    known.all(|value| hub.writer().holds(at, value) == Some(false))
}

/// Whether somebody has changed that of a container by which hooks decide, where nobody asks us.
fn is_changed_unasked(hub: &Hub, container: &Container) -> bool {
    let decides = |is_one: fn(&Value) -> bool| {
        let mut entries = container.target.entries().iter();
        entries.any(|it| is_one(&it.desired))
    };
    let by_quota = |it: &Value| matches!(it, Value::CpuQuota(_) | Value::CpuBurst(_));
    let by_limit = |it: &Value| {
        matches!(
            it,
            Value::MemoryMin(_) | Value::MemoryLow(_) | Value::MemoryHigh(_)
        )
    };
    let limit = Setting::MemoryLimit;
    decides(by_quota) && is_resized(hub, container, &[])
        || decides(by_limit) && has_anothers(hub, (container, &container.ours), limit)
}

/// The quota that a container has, per 100 ms.
pub(super) fn quota_of(hub: &Hub, container: &Container) -> Option<CpuQuota> {
    let at = container.target.at.as_ref()?;
    match hub.writer().held(at, Setting::CpuQuota)? {
        Value::CpuQuota(quota) => Some(quota),
        _ => None,
    }
}

/// Asks about some of the containers of which it counts.
pub(super) async fn learn(
    hub: &Hub,
    (runtime, patience): (&mut Runtime, &mut Patience),
    scope: Scope,
    listed: &[cri::Container],
    news: &mut News<'_>,
) {
    let mut ids = unheard(hub, scope);
    ids.extend(changed(hub, scope, news));
    // Those of the one kind that hang keep none of the other from being asked about, nor do those of lost updates
    // where there is no time for all.
    ids.sort_by_cached_key(|id| (times_in_vain(hub, id), hub.awaits_lost(id)));
    let mut is_answered = false;
    for id in ids {
        match patience.ask(runtime.container_info(id.as_str())).await {
            Some(Ok(info)) => {
                is_answered = true;
                let is_told = news.changed.found_out(&id);
                let is_known =
                    hub.watches() || is_told && take_unread(hub, &id, info.as_ref(), news.moment);
                if is_known {
                    found_out(hub, &id, news);
                }
                let listed = listed.iter().find(|listed| listed.id == id.as_str());
                take(hub, &id, (listed, info.as_ref()), news);
            }
            Some(Err(error)) => asked_in_vain(hub, &id, &error),
            None => {
                patience.leave(times_in_vain(hub, &id));
                break;
            }
        }
    }
    // Where nobody is answered the list of the next minute will do.
    if is_answered && !hub.watches() && news.changed.has_any() {
        hub.relist_soon();
    }
}

/// Containers that hooks decide something about without knowing what was asked, or would if they knew; and
/// where there is no later list all of which that is unknown, since it may be known what is ours then.
fn unheard(hub: &Hub, scope: Scope) -> Vec<ContainerId> {
    let policy = hub.policy();
    let ledger = hub.ledger().borrow();
    let counts = |(pod, container): &(&Pod, &Container)| {
        let mut entries = container.target.entries().iter();
        is_unheard(container)
            && (scope == Scope::Once
                || container.target.unasked == Unasked::Doubted
                || entries.any(|entry| entry.original == Original::Unknown)
                || policy.reads_requested(&pod.view))
    };
    let containers = ledger
        .pods()
        .flat_map(|pod| pod.containers.iter().map(move |it| (pod, it)));
    let counting = containers.filter(counts).map(|(_, container)| container);
    least_in_vain(counting, ASKED)
        .map(|container| container.id.clone())
        .collect()
}

/// How many containers there are of which it is unknown what they asked for, and about how many of these
/// the runtime was not even asked.
pub(super) fn count_unheard(ledger: &Ledger) -> (usize, usize) {
    let containers = ledger.pods().flat_map(|pod| &pod.containers);
    let unheard = containers.filter(|it| is_unheard(it));
    unheard.fold((0, 0), |(all, unasked), it| {
        (all + 1, unasked + usize::from(it.asked_in_vain == 0))
    })
}

fn is_unheard(container: &Container) -> bool {
    let is_asked_about = matches!(
        container.target.unasked,
        Unasked::Unheard | Unasked::Doubted
    );
    is_asked_about && container.life != Life::Exited
}

/// So many of these, first those about which the runtime was asked in vain least often.
pub(super) fn least_in_vain<'a>(
    containers: impl Iterator<Item = &'a Container>,
    count: usize,
) -> impl Iterator<Item = &'a Container> {
    let mut all: Vec<&Container> = containers.collect();
    all.sort_by_key(|container| container.asked_in_vain);
    all.into_iter().take(count)
}

fn times_in_vain(hub: &Hub, id: &ContainerId) -> u32 {
    let ledger = hub.ledger().borrow();
    let container = ledger.container(id).map(|(_, container)| container);
    container.map_or(0, |container| container.asked_in_vain)
}

/// The runtime has not answered: whoever was not asked about comes before this one the next time.
pub(super) fn asked_in_vain(hub: &Hub, id: &ContainerId, error: &RuntimeError) {
    let error = error as &dyn Error;
    debug!(container = %id, error, "the runtime does not say what a container asked");
    let mut ledger = hub.ledger().borrow_mut();
    if let Some(container) = ledger.pod_of_mut(id).and_then(|pod| pod.container_mut(id)) {
        container.asked_in_vain = container.asked_in_vain.saturating_add(1);
    }
}

/// Containers whose resources somebody has changed, past us: those that were told, and where nobody asks us
/// and all is looked at those that have a quota, or a limit of memory, by which hooks decide and that nobody
/// here knows of. Whatever we had written there is gone.
///
/// An update that nobody has read may have been anybody's. So of these each list asks about some.
fn changed(hub: &Hub, scope: Scope, news: &mut News<'_>) -> Vec<ContainerId> {
    let most = match hub.watches() {
        true => usize::MAX,
        false => ASKED,
    };
    let mut ledger = hub.ledger().borrow_mut();
    let told: HashSet<ContainerId> = {
        let containers = ledger.pods().flat_map(|pod| &pod.containers);
        let told = containers.filter(|container| news.changed.has(&container.id));
        // Each list asks about those of lost updates again: they keep nobody else from being asked about.
        let (lost, told): (Vec<_>, Vec<_>) = told.partition(|it| hub.awaits_lost(&it.id));
        let all = told.into_iter().chain(lost);
        least_in_vain(all, most).map(|it| it.id.clone()).collect()
    };
    let mut changed = Vec::new();
    for pod in ledger.pods_mut() {
        for container in &mut pod.containers {
            let told = told.contains(&container.id);
            let looks = hub.watches() && scope != Scope::News;
            if told || (looks && is_changed_unasked(hub, container)) {
                container.target.runtime_rewrote();
                news.pods.insert(pod.sandbox.clone());
                news.changed.note(container.id.clone());
                changed.push(container.id.clone());
            }
        }
    }
    changed
}

/// The runtime has said of a container to what it was changed: what follows from that may be written.
fn found_out(hub: &Hub, id: &ContainerId, news: &mut News<'_>) {
    let mut ledger = hub.ledger().borrow_mut();
    if let Some(pod) = ledger.pod_of_mut(id)
        && let Some(container) = pod.container_mut(id)
        && matches!(container.changes, Changes::FindingOut(_))
    {
        container.changes = Changes::Known;
        news.pods.insert(pod.sandbox.clone());
    }
}

/// Takes over what a container was asked to have by updates that nobody here has read, as the runtime's spec
/// has it. False if a later list is to find it out.
fn take_unread(hub: &Hub, id: &ContainerId, info: Option<&Info>, moment: u64) -> bool {
    let Some((now, swap_now)) = info.and_then(Info::in_force) else {
        return true;
    };
    if hub.settles_lost(id, &now) {
        return false;
    }
    let mut ledger = hub.ledger().borrow_mut();
    let Some(pod) = ledger.pod_of_mut(id) else {
        return true;
    };
    if pod.called_at > moment {
        // What a call has told since may be newer. The next list is newer than that.
        drop(ledger);
        hub.container_changed(id.clone());
        hub.relist_soon();
        return false;
    }
    let (pod_view, exemption) = (&pod.view, pod.exemption);
    let Some(container) = pod.containers.iter_mut().find(|it| it.id == *id) else {
        return true;
    };
    let unread = unread(now, container);
    let Container {
        view, target, swap, ..
    } = container;
    // Beside a limit that we have told it may be ours.
    let swap_now = swap_now.filter(|_| unread.memory_limit.is_some());
    *swap = view::swap_after(*swap, swap_now, &unread);
    view.requested = view::overlaid(&view.requested, unread.clone());
    // Nobody waits for this decision: a failure was logged and counted.
    hub.decide_container(pod_view, exemption, view, target).ok();
    target.hear_asked(&Target::default(), |setting| asked(&unread, setting));
    true
}

/// Takes over what the runtime said of a container, in its list and beyond.
fn take(
    hub: &Hub,
    id: &ContainerId,
    (listed, info): (Option<&cri::Container>, Option<&Info>),
    news: &mut News<'_>,
) {
    let said = info.and_then(Said::of);
    let mut ledger = hub.ledger().borrow_mut();
    let Some(pod) = ledger.pod_of_mut(id) else {
        return;
    };
    let (pod_view, exemption) = (pod.view.clone(), pod.exemption);
    let origin = origin_of(id, &pod_view, (listed, info));
    let Some(container) = pod.container_mut(id) else {
        return;
    };
    if container.target.unasked == Unasked::Doubted {
        resolve(hub, (&pod_view, exemption), container, (origin, info));
        news.pods.insert(pod.sandbox.clone());
        return;
    }
    // While we waited a runtime whose plugin we are may have told more than it shows.
    if !hub.watches() && container.target.unasked != Unasked::Unheard {
        return;
    }
    if container.target.unasked == Unasked::Unheard
        && let Some(Origin { requested, ours }) = origin.clone()
    {
        container.told_first = None;
        container.ours = ours.into();
        container.hear(Unasked::Nothing);
        container.look_again();
        // What updates have told since we run is newer.
        let newer = mem::take(&mut container.view.requested);
        container.view.requested = view::overlaid(&requested, newer);
        taken::decide(hub, (&pod_view, exemption), container);
        if !hub.watches() {
            news.pods.insert(pod.sandbox.clone());
            return;
        }
    }
    let told = container.told_first.take();
    let said = said.map(|said| Said {
        now: match told {
            Some(told) => told.untold(said.now),
            None => said.now,
        },
        ..said
    });
    container.hear(match &said {
        Some(said) if hub.watches() || said.is_as_created() => Unasked::Nothing,
        _ => Unasked::Unknown,
    });
    let Container { view, target, .. } = container;
    let before = mem::take(&mut view.requested);
    view.requested = match said {
        // Nobody has told us of updates.
        Some(said) if hub.watches() => {
            view::overlaid(&before, said.news_to(&before, &origin.unwrap_or_default()))
        }
        // What updates have told since we run is newer.
        Some(said) => view::overlaid(&said.by_both(), before),
        None => before,
    };
    // Nobody waits for this decision: a failure was logged and counted.
    hub.decide_container(&pod_view, exemption, view, target)
        .ok();
    news.pods.insert(pod.sandbox.clone());
}

/// What a container carries, by the list or beyond.
fn origin_of(
    id: &ContainerId,
    pod: &PodView,
    (listed, info): (Option<&cri::Container>, Option<&Info>),
) -> Option<Origin> {
    let listed = listed.and_then(|listed| listed.annotations.get(annotation::ORIGINALS));
    let origin = |text: Option<&str>| originals::of_container(text, id.as_str(), pod);
    // What a plugin gave it a list of the CRI does not show.
    let by_spec = || {
        let noted = info.and_then(Info::originals);
        origin(noted.filter(|text| originals::is_of(text, id.as_str())))
    };
    origin(listed.map(String::as_str)).or_else(by_spec)
}

/// Finds out whether somebody has resized a container, by whether the runtime's spec has the quota with which
/// it was made.
fn resolve(
    hub: &Hub,
    of: (&PodView, Option<Exemption>),
    container: &mut Container,
    (origin, info): (Option<Origin>, Option<&Info>),
) {
    let (Some(origin), Some((now, _))) = (origin, info.and_then(Info::in_force)) else {
        return container.hear(Unasked::Resized);
    };
    let made_with = asked(&origin.requested, Setting::CpuQuota);
    let mut made_with = made_with.iter().chain(&origin.ours);
    let of_quota = |value: &&Value| value.setting() == Setting::CpuQuota;
    match made_with.any(|value| of_quota(&value) && shows(&now, value)) {
        true => taken::is_as_made(hub, of, container, origin),
        false => container.hear(Unasked::Resized),
    }
}

/// What the runtime writes now, but for what was asked before and what it was told of ours. Where it cannot be
/// known whose it is, it is nobody's wish.
pub(crate) fn unread(mut now: Requested, container: &Container) -> Requested {
    for setting in SAID {
        if !is_unread(&now, container, setting) {
            leave_out(&mut now, setting);
        }
    }
    now
}

/// Whether somebody must have asked for what the runtime's spec has of a setting, since calls told of it.
fn is_unread(now: &Requested, container: &Container, setting: Setting) -> bool {
    let shown = asked(now, setting);
    let is_origin_known = match container.target.unasked {
        Unasked::Nothing => true,
        Unasked::Resized | Unasked::Doubted => setting != Setting::CpuQuota,
        Unasked::Unknown | Unasked::Unheard => false,
    };
    // Of one that was there before us nobody knows which of it is ours. And no update asks for a score.
    if !is_origin_known
        || setting == Setting::OomScoreAdj
        || shown == asked(&container.view.requested, setting)
    {
        return false;
    }
    let mut entries = container.target.entries().iter();
    match entries.find(|entry| entry.desired.setting() == setting) {
        // What is decided may be on its way.
        Some(Entry {
            told: Some(told),
            desired,
            ..
        }) => !shows(now, told) && !shows(now, desired),
        // A process before us may have told it.
        Some(_) => false,
        None => !container.ours.iter().any(|it| it.setting() == setting),
    }
}

/// What a runtime shows of a container.
struct Said {
    /// As its creation was told.
    created: Requested,
    /// As it writes it with each update.
    now: Requested,
}

// === impl Said ===

impl Said {
    /// `None` if the runtime does not show both.
    fn of(info: &Info) -> Option<Self> {
        let (now, _) = info.in_force()?;
        Some(Self {
            created: info.created()?,
            now,
        })
    }

    /// Whether nobody has changed it since its creation, which tells nothing of its score.
    fn is_as_created(&self) -> bool {
        let created = Requested {
            oom_score_adj: self.now.oom_score_adj,
            ..self.created.clone()
        };
        self.now == created
    }

    /// What both say.
    fn by_both(self) -> Requested {
        let Self { created, now } = self;
        Requested {
            cpu_shares: created.cpu_shares.filter(|it| now.cpu_shares == Some(*it)),
            cpu_quota: created.cpu_quota.filter(|it| now.cpu_quota == Some(*it)),
            cpu_period: created.cpu_period.filter(|it| now.cpu_period == Some(*it)),
            memory_limit: created
                .memory_limit
                .filter(|it| now.memory_limit == Some(*it)),
            cpuset_cpus: created
                .cpuset_cpus
                .filter(|it| now.cpuset_cpus.as_ref() == Some(it)),
            // Nobody changes it later, and who changed the creation left an annotation.
            oom_score_adj: now.oom_score_adj,
            // What is given to runc so stays as it was given.
            unified: created.unified,
        }
    }

    /// What the runtime writes now, but for what a front of ours has said at the creation: as long as
    /// `before` is what was asked for then, nobody has replaced that.
    fn news_to(self, before: &Requested, origin: &Origin) -> Requested {
        let mut now = self.now;
        for ours in &origin.ours {
            let setting = ours.setting();
            let is_there = asked(&now, setting).as_ref() == Some(ours);
            let was_asked = asked(&origin.requested, setting);
            if is_there && asked(before, setting) == was_asked {
                leave_out(&mut now, setting);
            }
        }
        now
    }
}

//! Holding what should be against what the kernel holds, one pod at a time, and the node.
//!
//! Level-triggered: whoever thinks that a pod's values may be off pushes the pod, and one task
//! brings its whole state in line. Pushing twice costs nothing, doing it twice changes nothing. Where a
//! policy has changed, what it changes comes first, in all pods, and the rest is held after it.
//!
//! What takes as long as reclaiming memory or as a disk does, is waited for beside (`slow.rs`, `devices.rs`).

use self::whose::Whose;
use crate::{
    apply::{caches::Swept, kernel::Outcome, terway::Told, traffic::TrafficError},
    hub::Hub,
    ledger::{Applied, Changes, Container, Entry, GIVEN_BACK, Life, Rival, Route, Scope, Target},
    status::chain_of,
    worker::{Undone, in_time},
};
use koord_kernel::cgroup::{self, Cgroups, Change, Generation, Written};
use koord_model::{CgroupPath, SandboxId, Setting, Value};
use std::{collections::HashMap, error::Error, mem, rc::Rc, time::Duration};
use tokio::{
    task::yield_now,
    time::{Instant, sleep, timeout},
};
use tracing::{info, warn};

mod devices;
mod hang;
mod queue;
mod recall;
mod rewritten;
mod room;
mod slow;
mod standing;
mod switch;
mod terway;
mod threads;
mod traffic;
mod unheard;
mod whose;

pub(crate) use self::{
    devices::is_of_devices,
    queue::Queue,
    recall::all as recall,
    rewritten::follow as follow_systemd,
    room::lacks_room,
    switch::{Gate, refused_switch},
    threads::{has_group, join_starting, starting},
};

/// What of a pod is looked at.
#[derive(Clone, Copy)]
enum Part {
    Whole,
    /// Values that were decided since they were held against the kernel.
    New,
}

enum Work {
    Pod(SandboxId, Part),
    Node,
    Network,
}

/// What is done with threads, of which a pod may have any number.
enum ThreadWork {
    Pod(SandboxId, Part),
    Groups,
}

/// Values of a pod that were held against the kernel, and what came of each.
#[derive(Default)]
struct Held {
    /// When they were wanted.
    moment: u64,
    changes: Vec<Change>,
    applied: Vec<Outcome>,
}

/// What came of what is no pod's alone, as far as that is known in time.
#[derive(Debug)]
pub(crate) struct Shared {
    pub(crate) groups: Result<Swept, Undone>,
    /// What the network plugin is told; nothing if there was nothing to look at.
    pub(crate) network: Result<Option<Told>, Undone>,
    /// The same of the queues of the network: whether anything had to be done.
    pub(crate) queues: Result<Option<Result<bool, TrafficError>>, Undone>,
}

/// How long until it is looked again whether memory is reclaimed.
const PAUSE: Duration = Duration::from_millis(20);

// === impl Part ===

impl Part {
    fn has(self, entry: &Entry) -> bool {
        match self {
            Self::Whole => true,
            Self::New => entry.applied == Applied::Pending,
        }
    }
}

// === impl Held ===

impl Held {
    fn note(&self, hub: &Hub, sandbox: &SandboxId) {
        note_pod(hub, sandbox, (self.moment, &self.changes, &self.applied));
    }
}

// === impl Work ===

impl Work {
    async fn run(self, hub: &Rc<Hub>) {
        match self {
            Self::Pod(sandbox, part) => part_of(hub, &sandbox, part).await,
            Self::Node => node(hub).await,
            Self::Network => {
                terway::keep(hub).await.ok();
                traffic::keep(hub).await.ok();
            }
        }
    }
}

// === impl ThreadWork ===

impl ThreadWork {
    async fn run(self, hub: &Rc<Hub>) {
        match self {
            Self::Pod(sandbox, part) => {
                join(hub, &sandbox, part).await;
                if switch::is_due(hub) {
                    hub.queue().push_node();
                }
            }
            // What there is no thread for comes with the next list.
            Self::Groups => {
                threads::keep(hub).await.ok();
            }
        }
    }
}

/// Brings pods in line as they are pushed; never ends. For threads of another, for what the network plugin is
/// told, on a disk, for block devices, for the queues of the network, and for memory that is reclaimed no pod
/// waits.
pub async fn run(hub: Rc<Hub>) {
    let queue = hub.queue();
    let hold = async {
        loop {
            let work = queue.next().await;
            match work {
                Work::Network => {
                    queue.tells.notify_one();
                    queue.shapes.notify_one();
                }
                work => hang::watched(&hub, &queue.hang, work.run(&hub)).await,
            }
        }
    };
    let gather = async {
        loop {
            let work = queue.next_threads().await;
            hang::watched(&hub, &queue.thread_hang, work.run(&hub)).await;
        }
    };
    let limit = async {
        loop {
            let whose = queue.devices.next().await;
            yield_now().await;
            hang::watched(&hub, &queue.device_hang, devices::hold(&hub, &whose)).await;
        }
    };
    let tell = async {
        loop {
            queue.tells.notified().await;
            // What there is no thread for comes with the next list.
            terway::keep(&hub).await.ok();
        }
    };
    let shape = async {
        loop {
            queue.shapes.notified().await;
            // As above.
            traffic::keep(&hub).await.ok();
        }
    };
    tokio::join!(hold, gather, limit, tell, shape, slow::run(&hub));
}

/// Brings everything in line, for who does nothing else meanwhile. For memory that is reclaimed it waits so
/// long at most, and then so long for block devices, for threads, of which a pod may have any number, for a
/// disk, and for the queues of the network.
pub(crate) async fn once(hub: &Rc<Hub>, patience: Duration) -> Shared {
    tokio::select! {
        () = values(hub, patience) => {}
        () = slow::run(hub) => unreachable!("it never ends"),
    }
    // What is late is not there, and told by that.
    let devices = timeout(patience, devices::all(hub));
    let groups = in_time(patience, threads::join_all(hub));
    let network = in_time(patience, terway::keep(hub));
    let queues = in_time(patience, traffic::keep(hub));
    let (_, groups, network, queues) = tokio::join!(devices, groups, network, queues);
    if switch::is_due(hub) {
        // It has waited for what threads had.
        node(hub).await;
    }
    Shared {
        groups,
        network,
        queues,
    }
}

/// Brings all values in line that are in files of the kernel.
async fn values(hub: &Rc<Hub>, patience: Duration) {
    let until = Instant::now() + patience;
    let queue = hub.queue();
    let mut again = true;
    loop {
        while let Some(work) = queue.pop() {
            match work {
                Work::Pod(sandbox, part) => values_of(hub, &sandbox, part).await,
                Work::Node => node(hub).await,
                // Once all values are there.
                Work::Network => {}
            }
        }
        if !queue.slow.is_done() && Instant::now() < until {
            sleep(PAUSE).await;
        } else if mem::take(&mut again) {
            // What was refused for what others still had then is taken now.
            queue.push_all(&hub.ledger().borrow());
        } else {
            return;
        }
    }
}

/// The writes that a target asks for; none while it is unknown where it is.
pub(crate) fn changes((scope, target): (Scope, &Target)) -> Vec<Change> {
    let Some(at) = &target.at else {
        return Vec::new();
    };
    let entries = target.entries().iter();
    let held = entries.filter(|entry| is_held(entry));
    held.map(|entry| change((scope, at), entry)).collect()
}

/// Those of them that are still to be written, which may be long after they were asked for.
fn changes_now(hub: &Hub, (scope, target): (Scope, &Target)) -> Vec<Change> {
    let Some(at) = &target.at else {
        return Vec::new();
    };
    let entries = target.entries().iter();
    let held =
        entries.filter(|entry| is_held(entry) && is_koordlets(hub, at, entry) == Some(false));
    held.map(|entry| change((scope, at), entry)).collect()
}

/// Those of them that a part has.
fn changes_in((scope, target): (Scope, &Target), part: Part) -> Vec<Change> {
    let has = |setting| {
        let mut entries = target.entries().iter();
        entries.any(|entry| entry.desired.setting() == setting && part.has(entry))
    };
    // A group that is idle no more has forgotten its shares.
    let wakes = |it: &Change| it.value.setting() == Setting::CpuShares && has(Setting::CpuIdle);
    let new = |it: &Change| has(it.value.setting()) || wakes(it);
    changes((scope, target)).into_iter().filter(new).collect()
}

fn change((scope, at): (Scope, &CgroupPath), entry: &Entry) -> Change {
    Change {
        at: at.clone(),
        value: entry.desired.clone(),
        gives_back: entry.owner == GIVEN_BACK,
        of_container: scope == Scope::Container,
        may_return: scope == Scope::Container && entry.may_return(),
    }
}

/// Whether a value is held against a file of the kernel.
fn is_held(entry: &Entry) -> bool {
    !entry.applied.is_hands_off() && !entry.is_let_go() && entry.desired.setting().has_file()
}

/// Whether something else is there than what we had given, of what is given back to koordlet: it is left
/// to that, and where it cannot be read now nothing is written. It costs a read or two on the data path, so that
/// it is known right before the write. Of what is given per block device the thread that writes finds it out
/// (`devices.rs`).
fn is_koordlets(hub: &Hub, at: &CgroupPath, entry: &Entry) -> Option<bool> {
    match given_over(entry).filter(|ours| !ours.setting().is_of_devices()) {
        Some(ours) => hub.writer().has_left(at, ours).map(|is_there| !is_there),
        None => Some(false),
    }
}

/// What we had given, of what is given back to koordlet and is not yet.
fn given_over(entry: &Entry) -> Option<&Value> {
    entry.over.as_deref().filter(|_| !entry.is_let_go())
}

/// The writes that a running container asks for.
///
/// On cgroup v2 shares become weights by one of two curves. A weight that either makes of the
/// shares is the runtime's own and stays. Any other is written over, once a known pair has told
/// which curve this node uses: the container was there before us, or passed without our value.
fn changes_of_container(cgroups: &Cgroups, target: &mut Target, part: Part) -> Vec<Change> {
    let Some(at) = target.at.clone() else {
        return Vec::new();
    };
    let is_unknown = cgroups.generation(Setting::CpuShares) == Some(Generation::V2)
        && cgroups.weight_curve().is_none();
    let mut changes = Vec::new();
    for entry in target.entries_mut() {
        if !is_held(entry) || !part.has(entry) {
            continue;
        }
        if let Value::CpuShares(shares) = &entry.desired
            && is_unknown
            && !cgroups.weighs(&at, *shares)
        {
            entry.applied = Applied::Pending;
            continue;
        }
        changes.push(change((Scope::Container, &at), entry));
    }
    changes
}

/// Brings all that a pod has in line, but for that for which memory is to be reclaimed first: it
/// comes later.
#[cfg(test)]
pub(crate) async fn pod(hub: &Rc<Hub>, sandbox: &SandboxId) {
    part_of(hub, sandbox, Part::Whole).await;
    devices::all(hub).await;
    while let Some(work) = hub.queue().pop_threads() {
        work.run(hub).await;
    }
}

/// Does all that waits.
#[cfg(test)]
pub(crate) async fn all_that_waits(hub: &Rc<Hub>) {
    loop {
        if let Some(work) = hub.queue().pop() {
            work.run(hub).await;
        } else if let Some(work) = hub.queue().pop_threads() {
            work.run(hub).await;
        } else {
            return devices::all(hub).await;
        }
    }
}

/// Brings to the kernel what was decided of a pod since it was held against that, but for what somebody
/// has put `there`: the values that something of it has to have before it runs. It comes behind what was
/// handed to the writer before, so whoever waits for it waits for that.
pub(crate) async fn new_values_of_pod(hub: &Rc<Hub>, sandbox: &SandboxId, there: &[Change]) {
    recall::unread(hub, sandbox).await;
    let Held {
        moment,
        changes,
        applied,
    } = write(hub, sandbox, Part::New, there).await;
    let outcomes = changes.into_iter().zip(applied);
    let (refused, taken): (Vec<_>, Vec<_>) =
        outcomes.partition(|(_, it)| matches!(Applied::from(&it.applied), Applied::Refused(_)));
    let (changes, applied): (Vec<_>, Vec<_>) = taken.into_iter().unzip();
    note_pod(hub, sandbox, (moment, &changes, &applied));
    if !refused.is_empty() {
        // What it had before may not be as it was, and bounds what it is to have. What is refused then
        // is told.
        write(hub, sandbox, Part::Whole, &[])
            .await
            .note(hub, sandbox);
    }
}

/// Brings a pod's threads into their groups. Whether some wait for the first list, as for a group of cores in
/// which nobody is known yet.
pub(crate) async fn threads_of_pod(hub: &Rc<Hub>, sandbox: &SandboxId) -> bool {
    join(hub, sandbox, Part::Whole).await
}

/// Brings those threads into their groups that wait for the first list, once that is there.
pub(crate) async fn listed_threads_of_pod(hub: &Rc<Hub>, sandbox: &SandboxId) {
    hub.whole().await;
    join(hub, sandbox, Part::Whole).await;
}

async fn part_of(hub: &Rc<Hub>, sandbox: &SandboxId, part: Part) {
    match part {
        // What a container's creation waits for is not left as it was refused for a moment.
        Part::New => new_values_of_pod(hub, sandbox, &[]).await,
        Part::Whole => values_of(hub, sandbox, part).await,
    }
    hub.queue().push_threads(sandbox.clone(), part);
    if switch::is_due(hub) {
        hub.queue().push_node();
    }
}

async fn values_of(hub: &Rc<Hub>, sandbox: &SandboxId, part: Part) {
    if hub.enforces() {
        // What there is no thread for now is asked again at the next check.
        recall::pod(hub, sandbox).await.ok();
    }
    write(hub, sandbox, part, &[]).await.note(hub, sandbox);
}

/// Brings values to the kernel that need no memory reclaimed first and are of no block device, but for those
/// that are `there`.
async fn write(hub: &Rc<Hub>, sandbox: &SandboxId, part: Part, there: &[Change]) -> Held {
    if !hub.enforces() {
        return Held::default();
    }
    let moment = hub.ledger().borrow().now();
    let mut changes = changes_of_pod(hub, sandbox, part);
    changes.retain(|change| !there.iter().any(|it| it.is_same(change)));
    let fast = set_aside(hub, &Whose::Pod(sandbox.clone()), changes);
    let applied = hub.writer().write(fast.clone()).await;
    Held {
        moment,
        changes: fast,
        applied,
    }
}

/// Has done beside what others do not wait for: what has memory reclaimed, and what is of block devices. The
/// rest of it.
fn set_aside(hub: &Hub, whose: &Whose, changes: Vec<Change>) -> Vec<Change> {
    let (devices, changes): (Vec<_>, Vec<_>) = changes.into_iter().partition(is_of_devices);
    if !devices.is_empty() {
        hub.queue().devices.push(whose.clone());
    }
    let (slow, fast) = hub.writer().split(changes);
    if !slow.is_empty() {
        slow::push(hub, whose.clone(), slow);
    }
    fast
}

/// Whether threads wait for the first list.
async fn join(hub: &Rc<Hub>, sandbox: &SandboxId, part: Part) -> bool {
    hub.enforces() && threads::join(hub, sandbox, part).await
}

/// What is to be held against the kernel of a pod.
fn changes_of_pod(hub: &Hub, sandbox: &SandboxId, part: Part) -> Vec<Change> {
    let gate = Gate::of(hub);
    let mut ledger = hub.ledger().borrow_mut();
    let Some(pod) = ledger.pod_mut(sandbox) else {
        return Vec::new();
    };
    let mut all = Vec::new();
    let (cgroups, now) = (hub.writer().cgroups(), Instant::now());
    // What is written may have to follow from what nobody has found out yet.
    let waits = |it: &Container| {
        let is_unread = matches!(part, Part::New) && it.changes == Changes::Unread;
        it.life == Life::Running && (is_unread || it.finding_out(now).is_some())
    };
    // Of two sandboxes of one pod the directory belongs to the one that runs.
    if pod.ready {
        if let Part::Whole = part {
            hub.decide_directories(pod);
        }
        let own = (Scope::Pod, &mut pod.own);
        let own = (!pod.containers.iter().any(waits)).then_some(own);
        let pause = (Scope::Container, &mut pod.pause);
        for (scope, target) in own.into_iter().chain([pause]) {
            stand_back(hub, target);
            all.extend(changes_in((scope, target), part));
        }
    }
    for container in &mut pod.containers {
        if container.life == Life::Running && !waits(container) {
            if let Some(look) = container.doubt_update(now) {
                hub.queue().push_at(look, sandbox.clone());
            }
            stand_back(hub, &mut container.target);
            come_too_late(hub, &mut container.target);
            all.extend(changes_of_container(cgroups, &mut container.target, part));
        }
    }
    let (kept_low, awake) = (pod.kept_low(now), pod.is_awake(now));
    let raises = |it: &Change| it.value.setting() == Setting::CpuBurst;
    all.retain(|change| !raises(change) || !kept_low.contains(&change.at));
    all.retain(|change| !awake || change.value != Value::CpuIdle(true));
    all.retain(|change| gate.lets(&change.value) && unheard::lets(hub, pod, change));
    all
}

/// Where among these each directory is: a pod may have thousands of containers.
fn places<'a>(targets: impl Iterator<Item = &'a Target>) -> HashMap<CgroupPath, usize> {
    let places = targets.enumerate();
    let places = places.filter_map(|(place, target)| Some((target.at.clone()?, place)));
    places.collect()
}

/// Notes what became of changes of a pod. Decisions may have changed meanwhile, so answers find their
/// entry by place and value.
fn note_pod(
    hub: &Hub,
    sandbox: &SandboxId,
    (moment, changes, applied): (u64, &[Change], &[Outcome]),
) {
    if changes.is_empty() {
        return;
    }
    let mut ledger = hub.ledger().borrow_mut();
    let Some(pod) = ledger.pod_mut(sandbox) else {
        return;
    };
    let containers = pod.containers.iter_mut().map(|c| &mut c.target);
    let containers = [&mut pod.pause].into_iter().chain(containers);
    let containers = containers.map(|target| (Scope::Container, target));
    let own = (Scope::Pod, &mut pod.own);
    let mut targets: Vec<_> = [own].into_iter().chain(containers).collect();
    let places = places(targets.iter().map(|(_, target)| &**target));
    for (change, outcome) in changes.iter().zip(applied) {
        if let Some(place) = places.get(&change.at)
            && let (scope, target) = &mut targets[*place]
            && note(hub, (*scope, target), moment, (change, outcome))
        {
            hub.queue().push(sandbox.clone());
        }
    }
    for (_, target) in targets {
        target.settle();
    }
}

/// Notes the answers to [`changes`] of the own directory of a pod that is not in the ledger yet.
pub(crate) fn record(hub: &Hub, target: &mut Target, changes: &[Change], applied: &[Outcome]) {
    let moment = hub.ledger().borrow().now();
    for told in changes.iter().zip(applied) {
        note(hub, (Scope::Pod, target), moment, told);
    }
}

/// Takes in what became of a change that was wanted at this moment. Whether it tells something for which
/// there is more to be done: what was there before a value that was left where it is, because nobody knew.
fn note(
    hub: &Hub,
    (scope, target): (Scope, &mut Target),
    moment: u64,
    (change, outcome): (&Change, &Outcome),
) -> bool {
    let setting = change.value.setting();
    let result = Applied::from(&outcome.applied);
    hub.metrics().kernel_setting(setting, &result);
    let forgotten = |written: Option<&Written>| match written {
        Some(Written::Idled { shares }) => shares.clone(),
        _ => None,
    };
    let [first, now] = [outcome.first.as_ref(), outcome.applied.as_ref().ok()].map(forgotten);
    let is_news = now.is_some() || target.undecided_shares.is_none();
    // Of a group that was half awake only the first has its own.
    if let Some(shares) = first.or(now).filter(|_| is_news) {
        target.note_forgotten(shares);
    }
    let Some(entry) = target.entry_mut(setting) else {
        return false;
    };
    let was_there = match &outcome.first {
        Some(Written::Changed { old }) => Some(old.clone()),
        Some(Written::Idled { .. }) => Some(Value::CpuIdle(false)),
        _ => None,
    };
    // That is as true of a value that is decided no more.
    let comes_back = was_there.is_some_and(|old| entry.learn_original(old));
    // Nothing of ours was there: while nobody was here to see it somebody has written it since what was noted
    // before us.
    if let (Ok(Written::Changed { old }), Some(Written::Changed { old: first })) =
        (&outcome.applied, &outcome.first)
        && old == first
        && entry.original.value().is_some()
    {
        entry.replace_original(scope, old);
    }
    let is_of_now = entry.desired == change.value && entry.is_in_place_since(moment);
    if comes_back || !is_of_now || entry.applied.is_hands_off() {
        return comes_back;
    }
    let was_there = matches!(entry.applied, Applied::Equal | Applied::Written);
    // What this comes to follows the group's limit of memory, which is the kubelet's to move.
    let follows = setting == Setting::MemoryPageCacheSize;
    if was_there && result == Applied::Written && !follows {
        let rival = Rival::of(&change.at, scope, setting);
        hub.metrics().setting_contested(setting, rival);
        entry.contest.round(Instant::now(), rival);
        if let Ok(Written::Changed { old }) = &outcome.applied {
            entry.replace_original(scope, old);
        }
    }
    // Of an earlier write nobody may have heard.
    let is_there = result == Applied::Equal && outcome.first.is_some();
    entry.given |= result == Applied::Written || is_there;
    entry.is_logged &= entry.applied == result;
    entry.applied = result;
    match (&outcome.applied, &entry.applied) {
        (Err(error), Applied::Refused(_)) => tell_refusal(hub, entry, error),
        (Err(error), Applied::Lacking(_)) => tell_lack(hub, entry, error),
        _ => {}
    }
    false
}

fn tell_refusal(hub: &Hub, entry: &mut Entry, error: &(dyn Error + 'static)) {
    tell(hub, entry, |entry, suppressed| {
        let hook = entry.owner;
        warn!(error, hook, suppressed, "the kernel refused a setting");
    });
}

fn tell_lack(hub: &Hub, entry: &mut Entry, error: &(dyn Error + 'static)) {
    tell(hub, entry, |entry, suppressed| {
        let hook = entry.owner;
        warn!(
            error,
            hook, suppressed, "some block devices do not have what was decided"
        );
    });
}

/// Writes a line about an entry, once; where there is no room for it now it comes when there is.
fn tell(hub: &Hub, entry: &mut Entry, line: impl FnOnce(&Entry, u64)) {
    if entry.is_logged {
        return;
    }
    let setting = entry.desired.setting().name();
    if let Some(suppressed) = hub.may_complain(entry.owner, setting) {
        line(entry, suppressed);
        entry.is_logged = true;
    }
}

/// Keeps our hands off what is another writer's for now, and off what is nobody's since hooks decide
/// it no more, and says so. What is koordlet's is forgotten.
fn stand_back(hub: &Hub, target: &mut Target) {
    let Some(cgroup) = target.at.clone() else {
        return;
    };
    let now = Instant::now();
    for entry in target.entries_mut() {
        if is_koordlets(hub, &cgroup, entry) == Some(true) {
            entry.applied = Applied::Equal;
            continue;
        }
        let standing = match (&entry.applied, entry.contest.pause(now)) {
            (Applied::Left, _) => Applied::Left,
            (_, Some(_)) if entry.contest.rival.is_none() => Applied::Yielded,
            (_, Some(_)) => Applied::Paused,
            // It was ours when the pause began, so another value is another round.
            (Applied::Paused, None) => Applied::Written,
            (Applied::Yielded, None) => Applied::Pending,
            (as_it_was, None) => as_it_was.clone(),
        };
        entry.is_logged &= entry.applied == standing;
        entry.applied = standing;
        if entry.applied.is_hands_off() {
            let setting = entry.desired.setting();
            hub.metrics().kernel_setting(setting, &entry.applied);
            tell(hub, entry, |entry, suppressed| {
                tell_hands_off(&cgroup, entry, suppressed);
            });
        }
    }
    target.settle();
}

/// What a container can only be made with, and was not said when it was: nobody asked us, if there is no
/// other reason.
fn come_too_late(hub: &Hub, target: &mut Target) {
    for entry in target.entries_mut() {
        let setting = entry.desired.setting();
        let is_told = matches!(entry.applied, Applied::Lacking(_));
        if setting.is_injected() && (is_told || entry.route == Route::Kernel) {
            if !is_told {
                entry.applied = Applied::Unsupported;
            }
            hub.metrics().kernel_setting(setting, &entry.applied);
        }
    }
}

fn tell_hands_off(cgroup: &CgroupPath, entry: &Entry, suppressed: u64) {
    let (setting, hook) = (entry.desired.setting(), entry.owner);
    let writer = Rival::name(entry.contest.rival);
    match entry.applied {
        Applied::Left => warn!(
            %cgroup,
            %setting,
            suppressed,
            "nobody decides a setting any more, and it stays: what it was before is unknown"
        ),
        Applied::Yielded => warn!(
            %cgroup,
            %setting,
            hook,
            suppressed,
            "an unknown writer changes a setting again and again: it is theirs for ten minutes"
        ),
        _ => info!(
            %cgroup,
            %setting,
            hook,
            writer,
            suppressed,
            "a setting is written over again and again: it is written back after a pause"
        ),
    }
}

/// Decides about tiers and host applications, and brings them in line.
pub(crate) async fn node(hub: &Rc<Hub>) {
    hub.decide_node();
    if !hub.enforces() {
        return;
    }
    // As of a pod.
    recall::node(hub).await.ok();
    let gate = Gate::of(hub);
    let mut changes = Vec::new();
    for group in hub.ledger().borrow_mut().node.iter_mut() {
        group.notice_new_group(hub.writer().cgroups());
        stand_back(hub, &mut group.target);
        changes.extend(self::changes((group.kind.scope(), &group.target)));
    }
    changes.retain(|change| gate.lets(&change.value) && unheard::lets_tier(hub, change));
    let (switches, changes) = changes.into_iter().partition(switch::is_switch);
    let fast = set_aside(hub, &Whose::Node, changes);
    if !fast.is_empty() {
        let applied = hub.writer().write(fast.clone()).await;
        note_node(hub, &fast, &applied);
    }
    switch::turn(hub, switches).await;
}

/// Notes what became of changes of the node's own groups.
fn note_node(hub: &Hub, changes: &[Change], applied: &[Outcome]) {
    let mut ledger = hub.ledger().borrow_mut();
    // Nothing takes the place of theirs.
    let moment = ledger.now();
    let groups = &mut ledger.node;
    for (change, outcome) in changes.iter().zip(applied) {
        if let Some(group) = groups.get_mut(&change.at) {
            let scope = group.kind.scope();
            if note(hub, (scope, &mut group.target), moment, (change, outcome)) {
                hub.queue().push_node();
            }
        }
    }
    groups.settle();
}

impl From<&cgroup::Applied> for Applied {
    fn from(outcome: &cgroup::Applied) -> Self {
        match outcome {
            Ok(Written::Changed { .. } | Written::Idled { .. } | Written::Adjusted) => {
                Self::Written
            }
            Ok(Written::Equal) => Self::Equal,
            Ok(Written::Masked) => Self::Masked,
            Err(error) if error.is_gone() => Self::Absent,
            Err(error) if error.is_unsupported() => Self::Unsupported,
            Err(error) => match error.lacking() {
                Some((whose, why)) => {
                    let why = chain_of(why);
                    Self::Lacking(format!("{whose}: {why}").into())
                }
                None => Self::Refused(error.errno()),
            },
        }
    }
}

#[cfg(test)]
mod tests;

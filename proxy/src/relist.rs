//! Making the ledger whole from what the runtime lists: at start, after the runtime was away, when
//! a call ended without an answer, and once a minute; where nobody asks us, whenever the runtime tells
//! of a container.
//!
//! Two calls give every pod and container. A pod's directory is not in the lists; it is found by
//! the pod's UID below the kubelet's tiers, and only for pods that are not there (made by another
//! CRI client) by asking the runtime pod by pod. What calls tell while a list is under way is newer
//! than the list and wins.

use crate::{
    dial::connect,
    hub::Hub,
    ledger::{Ledger, Life, Pod, Target},
    retry::Retry,
    runtime::{Runtime, RuntimeError},
    view,
};
use koord_kernel::{
    cgroup::{self, Driver, Layout},
    process::trim_allocator,
};
use koord_model::{CgroupPath, ContainerId, KubeQos, PodUid, SandboxId};
use koord_proto::{cri, keys::annotation};
use std::{collections::HashSet, error::Error, path::Path, rc::Rc, sync::Arc, time::Duration};
use tokio::time::{Instant, sleep, timeout};
use tracing::{debug, info, warn};

mod address;
mod changed;
mod missing;
mod origin;
mod patience;
mod rhythm;
mod taken;
mod weight;

pub(crate) use self::{
    origin::{is_changed, unread},
    taken::{Listed, recall},
};

use self::{
    changed::Changed,
    missing::Missing,
    patience::Patience,
    rhythm::{DOUBTING, WATCHING},
};

/// How often the runtime is listed when nothing asks for it.
const PERIOD: Duration = Duration::from_secs(60);
/// How long one list may take with all its questions.
const DEADLINE: Duration = Duration::from_secs(60);
/// While the runtime does not answer.
const RETRY: Retry = Retry::between(Duration::from_millis(50), Duration::from_secs(1));

/// Lists whenever it is asked for; never ends.
pub async fn run(hub: Rc<Hub>, endpoint: Arc<Path>, kubepods_above: CgroupPath) {
    let rhythm = match hub.watches() {
        true => WATCHING,
        false => DOUBTING,
    };
    let mut retry = RETRY;
    let mut listed_before = false;
    let mut missing = Missing::default();
    let mut due = Instant::now();
    let mut afterthoughts = [].iter();
    loop {
        let started = Instant::now();
        // What happened while it was away is not known to anybody.
        let scope = match started < due && hub.runtime_is_up() {
            true => Scope::News,
            false => Scope::All,
        };
        let listing = list(&hub, &endpoint, &kubepods_above, scope, &mut missing);
        let listed = timeout(DEADLINE, listing).await;
        match listed.unwrap_or(Err(RuntimeError::Late { call: "the lists" })) {
            Ok(listed) => {
                hub.list_taken();
                // The lists themselves are gone; the ledger is a fraction of them.
                trim_allocator();
                hub.metrics().relisted(true, started.elapsed());
                let was_away = retry.succeeded();
                if was_away || !listed_before {
                    afterthoughts = rhythm.afterthoughts.iter();
                    info!(
                        pods = listed.pods,
                        containers = listed.containers,
                        "the runtime was listed"
                    );
                }
                listed_before = true;
                if scope == Scope::All {
                    due = started + PERIOD;
                }
                let again = afterthoughts.next();
                let next = again.map_or(due, |pause| due.min(Instant::now() + *pause));
                if rhythm.wanted(&hub, next).await {
                    afterthoughts = rhythm.afterthoughts.iter();
                }
            }
            Err(error) => {
                fail(&hub, started.elapsed());
                if retry.is_news() {
                    warn!(
                        error = &error as &dyn Error,
                        "the runtime cannot be listed; trying again until it can"
                    );
                }
                sleep(retry.pause()).await;
            }
        }
    }
}

/// Notes a list that took so long and came to nothing.
fn fail(hub: &Hub, took: Duration) {
    hub.ledger().borrow_mut().abandon_list();
    hub.metrics().relisted(false, took);
    hub.list_failed();
}

/// Makes the ledger whole, for who asks no more after it.
pub(crate) async fn once(
    hub: &Rc<Hub>,
    endpoint: &Arc<Path>,
    kubepods_above: &CgroupPath,
) -> Result<Unsaid, RuntimeError> {
    let mut missing = Missing::default();
    let mut before = (usize::MAX, usize::MAX);
    let containers = loop {
        let listing = list(hub, endpoint, kubepods_above, Scope::Once, &mut missing);
        let listed = timeout(DEADLINE, listing).await;
        listed.unwrap_or(Err(RuntimeError::Late { call: "the lists" }))?;
        hub.list_taken();
        let (unheard, unasked) = origin::count_unheard(&hub.ledger().borrow());
        // Each list asks about some, and first about those of which none has. Of a sandbox that is not in the
        // ledger the containers are not either: with each that is found they may become more.
        let left = (missing.count_unasked(), unasked);
        if left == (0, 0) || left >= before {
            break unheard;
        }
        before = left;
    };
    // They were decided about before it was known what their containers had asked for.
    for pod in hub.ledger().borrow_mut().pods_mut() {
        hub.decide_directories(pod);
    }
    let (nowhere, with_ours) = nowhere(&hub.ledger().borrow());
    Ok(Unsaid {
        sandboxes: missing.len() + with_ours,
        nowhere,
        containers,
    })
}

/// How many pods run of which the runtime names no control group, and in how many of them something may be
/// ours: hooks decide about it, or a container says that we changed its creation.
fn nowhere(ledger: &Ledger) -> (usize, usize) {
    let pods = || {
        let pods = ledger.pods();
        pods.filter(|pod| pod.ready && pod.parent.is_none())
    };
    let may_have_ours = |pod: &&Pod| {
        let containers = pod.containers.iter();
        let mut living = containers.filter(|it| it.life != Life::Exited);
        !pod.own.entries().is_empty()
            || living.any(|it| !it.target.entries().is_empty() || !it.ours.is_empty())
    };
    (pods().count(), pods().filter(may_have_ours).count())
}

/// What the runtime has not said though it was asked.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct Unsaid {
    /// Of so many that may have something of ours it is unknown where they are.
    pub(crate) sandboxes: usize,
    /// Of so many the runtime names no control group, whatever they have.
    pub(crate) nowhere: usize,
    /// Of so many it is unknown what they asked for.
    pub(crate) containers: usize,
}

impl Unsaid {
    /// Whether it is known of all pods where they are.
    pub(crate) fn knows_all_places(self) -> bool {
        self.sandboxes == 0 && self.nowhere == 0
    }
}

/// Which pods are held against the kernel after a list.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Scope {
    /// Once a minute, at start, and when the runtime was away.
    All,
    /// Those of which the list told something new: somebody asked.
    News,
    /// All, and of each container it is asked what it asked for: there is no later list.
    Once,
}

/// What a list tells that was not known.
struct News<'a> {
    /// When the list was asked for; see [`Ledger::tick`](crate::ledger::Ledger::tick).
    moment: u64,
    pods: HashSet<SandboxId>,
    changed: Changed<'a>,
    missing: &'a mut Missing,
}

struct Counted {
    pods: usize,
    containers: usize,
}

async fn list(
    hub: &Rc<Hub>,
    endpoint: &Arc<Path>,
    kubepods_above: &CgroupPath,
    scope: Scope,
    missing: &mut Missing,
) -> Result<Counted, RuntimeError> {
    let stream = connect(endpoint.clone()).await;
    let mut runtime = Runtime::over(stream.map_err(RuntimeError::connect(endpoint))?).await?;
    let version = runtime.version().await?;
    hub.set_runtime(&version.runtime_name, &version.runtime_version);
    let changed = Changed::take(hub);
    let mut news = News {
        moment: hub.ledger().borrow_mut().begin_list(),
        pods: HashSet::new(),
        changed,
        missing,
    };
    let inputs = hub.policy().inputs();
    let keep = |key: &[u8]| inputs.has(key);
    let mut sandboxes = runtime.sandboxes(keep).await?;
    let mut containers = runtime.containers(keep).await?;
    let mut patience = Patience::default();
    sandboxes.sort_by_cached_key(|pod| news.missing.times_in_vain(&pod.id));
    // Of two of one name the newest counts, which is the last; a runtime lists them in no order.
    containers.sort_by_key(|container| container.created_at);
    for sandbox in &sandboxes {
        let asked = (&mut runtime, &mut patience);
        take_pod(hub, asked, sandbox, &mut news, kubepods_above).await;
    }
    for container in &containers {
        take_container(hub, container, &mut news);
    }
    // Before anything is waited for: what is decided from their containers is known as ours from here
    // on, and given back should it not be decided any more by then.
    for sandbox in &news.pods {
        if let Some(pod) = hub.ledger().borrow_mut().pod_mut(sandbox) {
            hub.decide_directories(pod);
        }
    }
    let learned = weight::learn(hub, (&mut runtime, patience.next_step())).await;
    let asking = (&mut runtime, patience.next_step());
    origin::learn(hub, asking, scope, &containers, &mut news).await;
    address::learn(hub, (&mut runtime, patience.next_step())).await;
    if patience.has_left_unasked() {
        hub.relist_soon();
    }
    let scope = match learned {
        true => Scope::All,
        false => scope,
    };
    Ok(end(hub, (&sandboxes, &containers), scope, news))
}

/// Drops what the lists do not have, and has looked at what is news.
fn end(
    hub: &Hub,
    (sandboxes, containers): (&[cri::PodSandbox], &[cri::Container]),
    scope: Scope,
    mut news: News<'_>,
) -> Counted {
    let pods: HashSet<&str> = sandboxes.iter().map(|pod| pod.id.as_str()).collect();
    let ids: HashSet<&str> = containers.iter().map(|c| c.id.as_str()).collect();
    let mut ledger = hub.ledger().borrow_mut();
    let less = ledger.retain_listed(
        news.moment,
        |sandbox| pods.contains(sandbox.as_str()),
        |id| ids.contains(id.as_str()),
    );
    // For a pod that is gone its tier may still keep memory.
    let gone = less.iter().any(|sandbox| ledger.pod(sandbox).is_none());
    news.pods.extend(less);
    for pod in ledger.pods() {
        if scope != Scope::News || news.pods.contains(&pod.sandbox) {
            hub.queue().push(pod.sandbox.clone());
        }
    }
    for sandbox in hub.told_lately() {
        if let Some(pod) = ledger.pod_mut(&sandbox) {
            let targets = pod.containers.iter_mut().map(|it| &mut it.target);
            targets.for_each(Target::runtime_rewrote);
            hub.queue().push(sandbox);
        }
    }
    if scope != Scope::News || gone {
        hub.queue().push_node();
    }
    let missing = &mut news.missing;
    missing.keep(|sandbox| pods.contains(sandbox.as_str()) && ledger.pod(sandbox).is_none());
    hub.metrics().sandboxes_missing(missing.len());
    hub.count_and_forget_the_gone(&ledger);
    Counted {
        pods: ledger.pods_len(),
        containers: ledger.containers_len(),
    }
}

async fn take_pod(
    hub: &Rc<Hub>,
    (runtime, patience): (&mut Runtime, &mut Patience),
    listed: &cri::PodSandbox,
    news: &mut News<'_>,
    kubepods_above: &CgroupPath,
) {
    let Ok(sandbox) = SandboxId::new(&listed.id) else {
        return;
    };
    let ready = listed.state() == cri::PodSandboxState::SandboxReady;
    if is_known(hub, &sandbox, ready, news, kubepods_above) {
        return;
    }
    let Some(metadata) = &listed.metadata else {
        return;
    };
    if PodUid::new(&metadata.uid).is_err() {
        debug!(sandbox = %sandbox, "a listed pod has no usable UID");
        return;
    }
    let parent = match find_pod(hub, &metadata.uid, kubepods_above) {
        Some(parent) => Some(parent),
        None => match patience.ask(ask_parent(runtime, &listed.id)).await {
            Some(Ok(parent)) => parent,
            // One broken sandbox must not keep all others out of the ledger; the next list asks
            // about it again.
            Some(Err(error)) => return news.missing.fail(hub, sandbox, &error),
            None => {
                patience.leave(news.missing.times_in_vain(&listed.id));
                return news.missing.wait(sandbox);
            }
        },
    };
    let inputs = hub.policy().inputs();
    let texts = inputs.of(
        view::texts(&listed.labels),
        view::texts(&listed.annotations),
    );
    let named = view::named(metadata);
    let view = view::from_parts(named, texts, &listed.runtime_handler, parent.as_ref());
    let Some(view) = view else {
        return;
    };
    let is_told = {
        let ledger = hub.ledger().borrow();
        ledger.pod(&sandbox).is_some() || ledger.is_removed(sandbox.as_str())
    };
    if is_told {
        return;
    }
    news.pods.insert(sandbox.clone());
    let mut pod = hub.found_pod(view, parent, sandbox, ready);
    pod.called_at = news.moment;
    hub.ledger().borrow_mut().list_pod(pod);
}

/// Whether nothing has to be found out about a listed pod: the ledger has it, which takes over what
/// is newer in the list, or a call removed it since.
fn is_known(
    hub: &Hub,
    sandbox: &SandboxId,
    ready: bool,
    news: &mut News<'_>,
    kubepods_above: &CgroupPath,
) -> bool {
    let mut ledger = hub.ledger().borrow_mut();
    if ledger.is_removed(sandbox.as_str()) {
        return true;
    }
    let Some(known) = ledger.pod_mut(sandbox) else {
        return false;
    };
    if known.called_at <= news.moment && known.ready != ready {
        known.ready = ready;
        hub.cover(known);
        news.pods.insert(sandbox.clone());
    }
    if known.parent.is_none() && place_again(hub, known, kubepods_above) {
        news.pods.insert(sandbox.clone());
    }
    true
}

/// A pod whose directory was not there when it was first seen. Whether it is now.
fn place_again(hub: &Hub, pod: &mut Pod, above: &CgroupPath) -> bool {
    let Some(parent) = find_pod(hub, pod.view.uid.as_str(), above) else {
        return false;
    };
    if let Some(qos) = cgroup::kube_qos(&parent) {
        pod.view.kube_qos = qos;
    }
    pod.own.at = Some(parent.clone());
    pod.parent = Some(parent);
    hub.place(pod);
    hub.decide_again(pod);
    true
}

fn take_container(hub: &Rc<Hub>, listed: &cri::Container, news: &mut News<'_>) {
    let (Ok(id), Ok(sandbox)) = (
        ContainerId::new(&listed.id),
        SandboxId::new(&listed.pod_sandbox_id),
    ) else {
        return;
    };
    let life = match listed.state() {
        cri::ContainerState::ContainerCreated => Life::Created,
        cri::ContainerState::ContainerRunning => Life::Running,
        cri::ContainerState::ContainerExited | cri::ContainerState::ContainerUnknown => {
            Life::Exited
        }
    };
    let name = listed.metadata.as_ref().map(|m| m.name.clone());
    let originals = listed.annotations.get(annotation::ORIGINALS);
    let originals = originals.map(String::as_str);
    let listed = Listed::new(id, name.unwrap_or_default(), life, originals);
    let mut ledger = hub.ledger().borrow_mut();
    if listed.take(hub, &mut ledger, &sandbox, news.moment) {
        news.pods.insert(sandbox);
    }
}

/// The directory that a kubelet would have made for this pod, if it is there.
fn find_pod(hub: &Hub, uid: &str, above: &CgroupPath) -> Option<CgroupPath> {
    let uid = PodUid::new(uid).ok()?;
    let cgroups = hub.writer().cgroups();
    let drivers = [Driver::Systemd, Driver::Cgroupfs];
    let layouts = drivers
        .into_iter()
        .filter_map(|driver| Layout::new(above, driver).ok());
    let uid = &uid;
    layouts
        .flat_map(|layout| KubeQos::ALL.iter().map(move |qos| layout.pod(*qos, uid)))
        .filter_map(Result::ok)
        .find(|path| cgroups.exists(path).is_ok_and(|exists| exists))
}

async fn ask_parent(
    runtime: &mut Runtime,
    sandbox: &str,
) -> Result<Option<CgroupPath>, RuntimeError> {
    let Some(info) = runtime.sandbox_info(sandbox).await? else {
        return Ok(None);
    };
    Ok(info.cgroup_parent().and_then(view::directory_of))
}

#[cfg(test)]
mod tests;

//! Giving back what hooks have set on this node, once and without serving anybody (`--revert`).
//!
//! Nothing tells what is ours but the hooks themselves, what containers carry, and the kernel. So the
//! ledger is made as at any start, with the hooks on and nothing written; what is not shown to be in force
//! by our doing is let go of; then all hooks are switched off, upon which each value that is left is given
//! back as when a person switches off its hook. A value of which nobody knows what was there before us stays,
//! and is told.
//!
//! One of us that serves would put in force what is given back here. So nothing is begun where one is
//! met, and none begins meanwhile. What upstream's koordlet does on this node is left to it.

mod folders;
mod ours;
mod process;
mod stored;
mod told;

use self::{process::Others, told::Told};
use crate::{
    app::{build_hub, cgroups_of, new_metrics, open_pods},
    cli::Answer,
    config::{Config, Front, Mode},
    hub::{self, Hub, PodsAnswer, Word},
    ledger::{GIVEN_BACK, Ledger, Life, Pod, Target},
    log::Name,
    metrics::Metrics,
    neighbour::{Neighbour, Resting},
    pods::{PodSource, PodsState, SourceError},
    policy_file::{LoadError, PolicyFile},
    reconcile,
    relist::{self, Unsaid},
    runtime::RuntimeError,
    socket::{self, BindError, Directory},
    stand_by::Claim,
    state_lock::{Holder, StateLock, StateLockError},
    worker::{Undone, in_time},
};
use koord_kernel::cgroup::DetectError;
use koord_model::{CgroupPath, Setting};
use koord_proto::pods::PodId;
use rustix::fd::OwnedFd;
use std::{
    collections::{BTreeMap, HashSet},
    error::Error,
    mem,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
    time::Duration,
};
use thiserror::Error;

/// How long the kernel may reclaim memory for limits that come back, and how long threads, block devices, a
/// disk, the queues of the network and the runtime may take.
const PATIENCE: Duration = Duration::from_secs(30);

/// How long a kubelet may take after its start until it knows the pods that run: as a proxy goes, the
/// kubelet is given another endpoint and started anew.
const KUBELET_PATIENCE: Duration = Duration::from_secs(60);

/// Why nothing is given back at all.
#[derive(Debug, Error)]
pub enum RevertError {
    #[error("a koord-runtime-proxy runs here: stop it first")]
    Runs(#[from] Another),
    #[error("others of us cannot be kept from starting meanwhile")]
    Unguarded(#[source] Box<dyn Error + Send + Sync>),
    #[error("whether a koord-runtime-proxy runs here cannot be known")]
    InDoubt(#[from] Doubt),
    #[error("the control groups of this node cannot be used")]
    Cgroups(#[from] DetectError),
    #[error("the node policy, by which it is known what was set, cannot be used")]
    Policy(#[source] Arc<LoadError>),
    #[error("the source of pods, by which it is known what was set, says nothing")]
    Pods(#[source] Arc<SourceError>),
    #[error(
        "the source of pods, by which it is known what was set, knows none, and some run: try again \
         once the kubelet knows them"
    )]
    NoPods,
    #[error("whether koordlet runs on this node is unknown: say --beside-koordlet=yes or no")]
    Koordlet,
    #[error("the runtime does not say what runs")]
    Runtime(#[from] RuntimeError),
}

/// By what another one of us was met.
#[derive(Debug, Error)]
pub enum Another {
    #[error("{holder} has the state directory {}", path.display())]
    State { path: PathBuf, holder: Holder },
    #[error(transparent)]
    Socket(BindError),
    #[error("it has the lock of the directory of the runtime's socket")]
    Directory,
    #[error("process (pid {id}) acts on the same runtime")]
    Process { id: u32 },
}

/// Why it cannot be known whether there is another one of us.
#[derive(Debug, Error)]
pub enum Doubt {
    #[error("the processes of this node cannot be looked at")]
    Unseen,
    #[error(
        "process (pid {id}) is called as one, and cannot be placed from within this control group \
         namespace: stop it, or say --revert on the node itself"
    )]
    Unplaced { id: u32 },
    #[error(
        "process (pid {id}) is called as one and runs in a pod, and the runtime does not say whose that \
         is: try again"
    )]
    Unlisted { id: u32 },
}

/// What each of us has that serves with this configuration.
struct Locks {
    _state: StateLock,
    _sockets: Vec<OwnedFd>,
}

/// A value that is to be given back.
struct Place {
    /// Whose it is, for people.
    of: String,
    at: CgroupPath,
    setting: Setting,
}

/// What the kernel has, in its own words.
type Held = BTreeMap<(CgroupPath, Setting), String>;

/// Gives back what hooks have set by this configuration; where it only observes, what is marked as ours
/// alone. Must run within a tokio runtime.
///
/// # Errors
///
/// When another of us is met, may be there, or cannot be kept from starting; when the control groups or the
/// node policy cannot be used; when the source of pods says nothing of use, a kubelet for 60 s; when the
/// runtime does not say what runs, or takes longer than 60 s for a list; and when it is unknown what koordlet
/// does here. Nothing is given back then.
pub async fn run(mut config: Config) -> Result<Answer, RevertError> {
    let mode = mem::replace(&mut config.mode, Mode::Enforce);
    let _locks = Locks::take(&config)?;
    let metrics = new_metrics(&config);
    let hub = hub(&config, &metrics)?;
    let claim = Claim::lay(&config.runtime_endpoint, &hub);
    if hub.standing_by().is_some() {
        return Err(Another::Directory.into());
    }
    let source = open_pods(&config, &hub, &metrics);
    if let Some(source) = &source {
        hear_at_once(&hub, source).await?;
    }
    let endpoint: Arc<Path> = config.runtime_endpoint.as_path().into();
    let unsaid = relist::once(&hub, &endpoint, &config.cgroup_root).await?;
    let unknown = match &source {
        Some(source) => hear(&hub, source).await?,
        None => Vec::new(),
    };
    let knows_all = unsaid.knows_all_places();
    let others = process::others(&config, &hub).await;
    let strangers = strangers(others.as_ref(), claim.is_ours(), knows_all)?;
    // Until here nothing has been written, so nothing has to wait for it.
    let covered = Neighbour::new(&config).once(&hub, knows_all).await;
    let covered = covered.ok_or(RevertError::Koordlet)?;
    let mut told = give_back(&hub, &config.cgroup_root, mode, covered, unsaid).await;
    told.not_back
        .extend(stored::give_back(&hub, &endpoint).await);
    told.add_unknown(&unknown);
    told.add_strangers(strangers, &config.hooks.koordlet_namespace);
    told.add_others(process::others(&config, &hub).await.as_ref());
    Ok(told.answer())
}

/// One that knows no pod yet.
fn hub(config: &Config, metrics: &Rc<Metrics>) -> Result<Rc<Hub>, RevertError> {
    let open = |path: &Path| PolicyFile::open(path, &config.node_name, metrics.clone());
    let policy = config.node_policy.as_deref().map(open);
    let error = |policy: &PolicyFile| policy.subscribe().borrow().error.clone();
    if let Some(error) = policy.as_ref().and_then(error) {
        return Err(RevertError::Policy(error));
    }
    let cgroups = cgroups_of(&config.roots)?;
    // What a person is told of a node at a start is in the log where it counts.
    let mut remarks = Vec::new();
    let policy = policy.as_ref();
    let hub = build_hub(config, cgroups, policy, metrics.clone(), &mut remarks);
    // A note says so where the state is of who has made them, which need not be ours.
    hub.traffic().may_be_there();
    Ok(hub)
}

/// Takes in what a source of pods says at once: what a list tells of a container is held against what is
/// decided of it. A kubelet that says nothing yet is asked again after that.
async fn hear_at_once(hub: &Hub, source: &PodSource) -> Result<(), RevertError> {
    let state = source.said(Duration::ZERO, |_| true).await;
    match (state.failure, state.answer) {
        (Some((_, error)), _) if source.word() == Word::Stands => Err(RevertError::Pods(error)),
        (_, Some(answer)) => {
            hub.take_pods(&answer);
            Ok(())
        }
        (_, None) => Ok(()),
    }
}

/// Takes in what a source of pods says once it is known which there are: a kubelet has just started that
/// does not know all of them. The names of those that it does not know in time.
async fn hear(hub: &Hub, source: &PodSource) -> Result<Vec<String>, RevertError> {
    let is_whole = |answer: &PodsAnswer| unknown_to(answer, &hub.ledger().borrow()).is_empty();
    let state = source.said(KUBELET_PATIENCE, is_whole).await;
    take_pods(hub, state)
}

fn take_pods(hub: &Hub, state: PodsState) -> Result<Vec<String>, RevertError> {
    if let Some((_, error)) = state.failure {
        return Err(RevertError::Pods(error));
    }
    let says = |it: &PodsAnswer| it.word == Word::Stands || !it.pods.is_empty();
    let Some(answer) = state.answer.filter(says) else {
        return match hub.ledger().borrow().pods().any(|pod| pod.ready) {
            true => Err(RevertError::NoPods),
            false => Ok(Vec::new()),
        };
    };
    hub.take_pods(&answer);
    let mut ledger = hub.ledger().borrow_mut();
    for pod in ledger.pods_mut() {
        hub.decide_directories(pod);
    }
    Ok(unknown_to(&answer, &ledger))
}

/// The pods that run and of which a kubelet has said nothing.
fn unknown_to(answer: &PodsAnswer, ledger: &Ledger) -> Vec<String> {
    if answer.word == Word::Stands {
        return Vec::new();
    }
    let said: HashSet<PodId> = answer.pods.iter().map(|pod| pod.id()).collect();
    let unknown =
        named(ledger).filter(|(_, pod)| pod.ready && !said.contains(&hub::pod_id(&pod.view)));
    unknown.map(|(name, _)| name).collect()
}

/// Those that are called as we are and are in pods of which anybody may be the author. An error if
/// somebody else is called so who acts on our runtime or waits to, or, where we have no lock that keeps
/// anybody from acting, who may be one: it is not known of all pods whose they are, for one.
fn strangers(
    others: Option<&Others>,
    has_lock: bool,
    knows_all: bool,
) -> Result<&[u32], RevertError> {
    let Some(others) = others else {
        return match has_lock {
            true => Ok(&[]),
            false => Err(Doubt::Unseen.into()),
        };
    };
    if let Some(&id) = others.acting.first() {
        return Err(Another::Process { id }.into());
    }
    if has_lock {
        return Ok(&[]);
    }
    if let Some(&id) = others.unplaced.first() {
        return Err(Doubt::Unplaced { id }.into());
    }
    match others.strangers.first() {
        Some(&id) if !knows_all => Err(Doubt::Unlisted { id }.into()),
        _ => Ok(&others.strangers),
    }
}

/// Gives back what the hooks of a hub have set that knows the pods and has written nothing, and no hook
/// that koordlet covers. All pods are somewhere below this directory. It was to be done in this mode, and the
/// runtime has left this unsaid.
async fn give_back(
    hub: &Rc<Hub>,
    above: &CgroupPath,
    mode: Mode,
    covered: Resting,
    unsaid: Unsaid,
) -> Told {
    let mut told = Told::beside(covered.clone());
    told.add_mode(mode);
    hub.decide_node();
    if let Err(undone) = ours::keep(hub, mode, &covered).await {
        told.add_undone("reading what threads have, which stays", undone);
    }
    told.add_created(&hub.ledger().borrow(), &ours::settings_of(&covered));
    let folders = folders::give_back(hub, above, &covered, unsaid).await;
    hub.switch_all_off();
    hub.set_resting(covered);
    hub.decide_node();
    if let Err(undone) = reconcile::recall(hub).await {
        told.add_undone("reading what control groups have noted", undone);
    }
    let places = places(&hub.ledger().borrow());
    let files: Vec<_> = places
        .iter()
        .map(|it| (it.at.clone(), it.setting))
        .collect();
    let before = held_in_time(hub, &files).await;
    let shared = reconcile::once(hub, PATIENCE).await;
    let after = held_in_time(hub, &files).await;
    told.compare(hub, &places, (&before, &after));
    told.add_shared(&shared);
    told.add_folders(folders);
    told.add_unsaid(unsaid);
    told
}

/// What the kernel has of these; an error if there is no thread to read it.
async fn held(hub: &Hub, wanted: Vec<(CgroupPath, Setting)>) -> Result<Held, Undone> {
    let read = hub.writer().read(&wanted).await;
    if read.len() < wanted.len() {
        return Err(Undone::NoThread);
    }
    let all = wanted.into_iter().zip(read);
    Ok(all.filter_map(|(it, text)| Some((it, text?))).collect())
}

/// The same, but nothing of what there is no thread for, or of threads that cannot be read in time.
async fn held_in_time(hub: &Hub, wanted: &[(CgroupPath, Setting)]) -> Held {
    let of_threads = |it: &(CgroupPath, Setting)| it.1.is_of_threads();
    let (threads, files) = wanted.iter().cloned().partition(of_threads);
    let threads = in_time(PATIENCE, held(hub, threads));
    let (threads, files) = tokio::join!(threads, held(hub, files));
    let mut all = files.unwrap_or_default();
    all.extend(threads.unwrap_or_default());
    all
}

/// All pods by their names, in that order.
fn named(ledger: &Ledger) -> impl Iterator<Item = (String, &Pod)> {
    let mut pods: Vec<_> = ledger.pods().collect();
    pods.sort_by_key(|pod| (&pod.view.namespace, &pod.view.name, &pod.sandbox));
    pods.into_iter().map(|pod| {
        let name = format!("{}/{}", Name(&pod.view.namespace), Name(&pod.view.name));
        (name, pod)
    })
}

/// Control groups and whose they are, as far as something of ours can be in force there.
fn targets(ledger: &Ledger) -> Vec<(String, &Target)> {
    let mut targets = Vec::new();
    for (name, pod) in named(ledger) {
        if pod.ready {
            targets.push((name.clone(), &pod.own));
            targets.push((format!("{name} (sandbox)"), &pod.pause));
        }
        let containers = pod.containers.iter();
        for container in containers.filter(|it| it.life == Life::Running) {
            let of = format!("{name} {}", Name(&container.view.name));
            targets.push((of, &container.target));
        }
    }
    for group in ledger.node.iter() {
        let at = group.target.at.as_ref();
        let of = at.map_or_else(String::new, ToString::to_string);
        targets.push((of, &group.target));
    }
    targets
}

/// What nobody decides any more.
fn places(ledger: &Ledger) -> Vec<Place> {
    let mut places = Vec::new();
    for (of, target) in targets(ledger) {
        let Some(at) = &target.at else {
            continue;
        };
        let undecided = target.entries().iter().filter(|it| it.owner == GIVEN_BACK);
        places.extend(undecided.map(|entry| Place {
            of: of.clone(),
            at: at.clone(),
            setting: entry.desired.setting(),
        }));
    }
    places
}

// === impl Locks ===

impl Locks {
    /// A socket that a service manager holds has no lock of ours, and is not connected to: that would
    /// start the service.
    fn take(config: &Config) -> Result<Self, RevertError> {
        let state = StateLock::lock(&config.state_dir).map_err(|error| match error {
            StateLockError::Anothers { path, holder } => Another::State { path, holder }.into(),
            error @ StateLockError::Io { .. } => RevertError::Unguarded(error.into()),
        })?;
        let clients = (config.front == Front::Cri).then_some((&config.endpoint, Directory::Public));
        let sockets = [(&config.admin_endpoint, Directory::Private)];
        let sockets = sockets.into_iter().chain(clients);
        let locks: Result<Vec<OwnedFd>, BindError> = sockets
            .map(|(path, directory)| socket::reserve(path, directory))
            .collect();
        let sockets = locks.map_err(|error| match error.is_anothers() {
            true => Another::Socket(error).into(),
            false => RevertError::Unguarded(error.into()),
        })?;
        Ok(Self {
            _state: state,
            _sockets: sockets,
        })
    }
}

#[cfg(test)]
mod tests;

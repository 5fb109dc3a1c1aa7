//! The process: what is built from the configuration, in which order it starts, and how it ends.

use crate::{
    admin::{Admin, Condition},
    apply::{
        caches::Caches, cores::Cores, kernel::Writer, marks::Marks, oom_scores::OomScores,
        terway::Terway, threads::ThreadGroups, traffic::Traffic,
    },
    config::{self, Config, ConfigError, Front, Mode},
    front::{
        cri,
        nri::{self, Launched, Pulse, Way},
        watch as watching,
    },
    hami_core,
    hub::{Effects, Hub, Parts, Policy, Word},
    log::LogControl,
    metrics::Metrics,
    neighbour::Neighbour,
    node::Probe,
    pods::{self, PodSource},
    policy_file::{self, PolicyFile},
    rdma::RdmaProbe,
    reconcile, relist,
    shutdown::Signals,
    socket::{self, BindError, Directory, SocketFile},
    stand_by::Claim,
    start_guard::Verdict,
    status::chain_of,
    systemd::{Notifier, Variables},
};
use koord_hooks::{Chain, FeatureGates, HookOptions};
use koord_kernel::{
    block::BlockDevices,
    cgroup::{Cgroups, ClassIds, DetectError, OsSysctls},
    core_sched,
    process::{InheritError, inherited_listener, release_code},
    task::Procfs,
};
use koord_model::Setting;
use std::{
    cell::{Cell, RefCell},
    collections::HashMap,
    error::Error,
    fs, io,
    os::{fd::OwnedFd, unix::net},
    panic,
    path::{Path, PathBuf},
    rc::Rc,
    sync::Arc,
    time::{Duration, SystemTime},
};
use thiserror::Error;
use tokio::{
    net::UnixListener,
    sync::Notify,
    task::{Id, JoinError, JoinSet, LocalSet},
    time::sleep,
};
use tracing::{debug, error, info, warn};

/// How often the socket for administrators is tried again.
const ADMIN_RETRY: Duration = Duration::from_secs(1);
/// From readiness until the first list was taken and what it told of was written, if the runtime answers.
const START: Duration = Duration::from_secs(3);
/// Where the threads of control groups are. The kernel tells us and takes from us the numbers that
/// they have in our own pid namespace, so it is no other procfs, wherever that of the machine is.
pub const OWN_PROC: &str = "/proc";

/// What nobody can tell by an address.
const SENT_BY_THE_NODE: &str = "what pods in the node's network send, and what leaves from the node's \
     own addresses, is in the queue of the system";
/// The same where groups have class ids.
const SENT_FOR_PODS: &str = "what pods with addresses of their own send from those of the node is in the \
     queue of the system";

/// Why the process cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("cannot listen for clients")]
    Listen(#[source] BindError),
    #[error("the socket that was handed over cannot be used")]
    Inherited(#[from] InheritError),
    #[error("cannot listen for administrators")]
    ListenAdmin(#[source] BindError),
    #[error("a listening socket cannot be used")]
    Socket(#[source] io::Error),
}

/// Where events come in.
enum Entrance {
    Clients {
        listener: UnixListener,
        /// Was handed to us, and stays when we go.
        stays: bool,
    },
    Runtime(nri::Front),
    /// By what the runtime tells, if that; a plugin without hooks has nothing to say.
    Nobody,
}

/// A task ended that never does.
#[derive(Debug, Error)]
#[error("the task {name} ended")]
pub struct TaskDied {
    name: &'static str,
    source: Option<JoinError>,
}

/// What runs beside the data path for as long as we serve.
#[derive(Default)]
struct Tasks {
    running: JoinSet<&'static str>,
    names: HashMap<Id, &'static str>,
}

/// Everything that is needed to run.
pub struct App {
    config: Config,
    hub: Rc<Hub>,
    metrics: Rc<Metrics>,
    neighbour: Neighbour,
    policy: Option<PolicyFile>,
    pods: Option<PodSource>,
    /// Where there is something to be done at all.
    claim: Option<Claim>,
    condition: Rc<Condition>,
    log: LogControl,
    notifier: Rc<Notifier>,
    entrance: Entrance,
    /// `None` where their socket is not ours yet.
    administrators: Option<(UnixListener, SocketFile)>,
    /// Removed from the file system when we go.
    _files: Vec<SocketFile>,
}

// === impl App ===

impl App {
    /// Opens what has to be there: control groups and sockets. Neither runtime nor kubelet has to.
    /// Must run in a runtime.
    ///
    /// # Errors
    ///
    /// When clients are to be served ([`Front::Cri`]) and their socket cannot be bound, or the one that was
    /// handed over cannot be used. When the socket for administrators cannot be bound, unless a runtime has
    /// launched us, clients are served by a socket that was handed over, or it is for want of what there may
    /// be again ([`BindError::may_pass`]).
    pub fn build(
        mut config: Config,
        (verdict, complaint): (Verdict, Option<ConfigError>),
        systemd: &Variables,
        (launched, pulse): (Option<Box<Launched>>, Arc<Pulse>),
        log: LogControl,
    ) -> Result<Self, StartError> {
        let mut remarks = Vec::new();
        let is_launched = launched.is_some();
        remarks.extend(complaint.map(|it| unusable(&it)));
        remarks.extend(launched.as_ref().and_then(|it| ill_launched(it)));
        heed(verdict, &mut config, &mut remarks);
        let cgroups = open_cgroups(&mut config, &mut remarks);
        remarks.extend(unserved_hook_servers(&config.hook_server_dir));
        let metrics = new_metrics(&config);
        let open = |path: &Path| PolicyFile::open(path, &config.node_name, metrics.clone());
        let policy = config.node_policy.as_deref().map(open);
        let policy_now = policy.as_ref();
        let hub = build_hub(&config, cgroups, policy_now, metrics.clone(), &mut remarks);
        let pods = open_pods(&config, &hub, &metrics);
        if pods.as_ref().map(PodSource::word) == Some(Word::OfItsTime) {
            hub.await_pods();
        }
        let neighbour = Neighbour::new(&config);
        neighbour.begin(&hub);
        let acts = config.mode == Mode::Enforce;
        let claim = acts.then(|| Claim::lay(&config.runtime_endpoint, &hub));
        let mut files = Vec::new();
        let entrance = match config.front {
            Front::Cri => {
                let listener = listen(&config, systemd, &mut files)?;
                let stays = files.is_empty();
                Entrance::Clients { listener, stays }
            }
            Front::Nri if launched.is_none() && config.mode == Mode::PassThrough => {
                Entrance::Nobody
            }
            Front::Nri => Entrance::Runtime(plugin(&config, (launched, pulse), &hub, &metrics)),
            Front::Watch => Entrance::Nobody,
        };
        if config.front != Front::Cri {
            remarks.extend(unserved_socket(systemd));
        }
        if hub.watches() {
            remarks.extend(watching::remarks(&hub.policy()));
        }
        let is_handed = matches!(entrance, Entrance::Clients { stays: true, .. });
        let administrators = listen_for_administrators(&config, is_launched, is_handed)?;
        Ok(Self {
            condition: Rc::new(condition(&config, remarks, pods.as_ref())),
            notifier: Rc::new(Notifier::new(systemd)),
            config,
            hub,
            metrics,
            neighbour,
            policy,
            pods,
            claim,
            log,
            entrance,
            administrators,
            _files: files,
        })
    }

    /// Serves until a signal asks to stop, then lets calls in flight finish, unless a second one asks for
    /// more haste.
    ///
    /// # Errors
    ///
    /// When a task ends that nothing works right without: better a new process than one that is half there.
    pub async fn run(self, signals: Signals) -> Result<(), TaskDied> {
        let local = LocalSet::new();
        let mut tasks = Tasks::default();
        let (reload_policy, reload_pods) = <(Rc<Notify>, Rc<Notify>)>::default();
        let (stop, obey) = signals.obey([reload_policy.clone(), reload_pods.clone()]);
        tasks.spawn("signals", &local, obey);
        if self.config.mode != Mode::PassThrough {
            tasks.follow_runtime(&local, &self.hub, &self.config);
            let watch = self.neighbour.watch(self.hub.clone());
            tasks.spawn("neighbour", &local, watch);
        }
        if let Some(claim) = self.claim {
            tasks.spawn("stand by", &local, claim.keep(self.hub.clone()));
        }
        if let Some(policy) = self.policy {
            let states = policy.subscribe();
            let follow = policy_file::follow(self.hub.clone(), self.condition.clone(), states);
            tasks.spawn("policy", &local, follow);
            tasks.spawn("policy file", &local, policy.run(reload_policy));
        }
        if let Some(pods) = self.pods {
            let follow = pods::follow(self.hub.clone(), pods.subscribe());
            tasks.spawn("pods", &local, follow);
            tasks.spawn("source of pods", &local, pods.run(reload_pods));
        }
        tasks.keep_telling(&local, self.notifier.clone());
        let admin = Admin {
            hub: self.hub.clone(),
            condition: self.condition.clone(),
            log: self.log,
        };
        let endpoint = self.config.admin_endpoint.clone();
        let administer = administer(admin, endpoint, self.administrators);
        tasks.spawn("admin", &local, administer);
        local.spawn_local(release_start());
        announce(&self.config);
        self.notifier
            .ready(&format!("serving, mode {}", self.condition.mode));
        let (condition, notifier) = (self.condition, self.notifier);
        let begun = stop.clone().begun();
        let stopping = async move {
            begun.await;
            condition.draining.set(true);
            notifier.stopping();
        };
        let served = serve(self.config, self.entrance, self.hub, self.metrics, stopping);
        let ended = local.spawn_local(async move {
            tokio::select! {
                left = served => if left > 0 {
                    warn!(connections = left, "stopped with calls in flight");
                },
                () = stop.at_once() => warn!("stopped at once"),
                died = tasks.died() => return Err(died),
            }
            Ok(())
        });
        // What a set of tasks runs until is polled whenever any of them is woken, so it must be no more
        // than a word from one of them.
        let ended = local.run_until(ended).await;
        ended.unwrap_or_else(|error| panic::resume_unwind(error.into_panic()))
    }
}

/// Serves the front that events come in by until `stopping`. How many connections were left then.
async fn serve(
    config: Config,
    entrance: Entrance,
    hub: Rc<Hub>,
    metrics: Rc<Metrics>,
    stopping: impl Future<Output = ()>,
) -> usize {
    let limits = config.limits;
    let (clients, socket_stays) = match entrance {
        Entrance::Clients { listener, stays } => (listener, stays),
        Entrance::Runtime(front) => {
            hub.first_word().await;
            front.serve(stopping).await;
            return 0;
        }
        Entrance::Nobody => {
            stopping.await;
            return 0;
        }
    };
    let options = cri::Options {
        runtime: config.runtime_endpoint.into(),
        max_connections: limits.max_connections,
        large_message_slots: limits.large_message_slots,
        max_message_bytes: limits.max_message_bytes,
        hold_timeout: limits.hold_timeout,
        hooks: config.mode != Mode::PassThrough,
        socket_stays,
    };
    let front = cri::Front::new(clients, options, hub, metrics);
    // A kubelet calls a runtime down that it has not reached for 30 s.
    let usual = Duration::from_secs(if socket_stays { 60 } else { 25 });
    let grace = limits.grace_period.unwrap_or(usual);
    front.serve(stopping, grace).await
}

fn plugin(
    config: &Config,
    (launched, pulse): (Option<Box<Launched>>, Arc<Pulse>),
    hub: &Rc<Hub>,
    metrics: &Rc<Metrics>,
) -> nri::Front {
    let config::Nri { socket, identity } = config.nri.clone();
    let way = match launched {
        Some(launched) => Way::Launched(launched),
        None => Way::Socket(socket.into()),
    };
    nri::Front::new(way, identity, hub.clone(), metrics.clone(), pulse)
}

/// What only a start needs stays with us no longer.
async fn release_start() {
    sleep(START).await;
    if let Err(error) = release_code() {
        let error = &error as &dyn Error;
        debug!(error, "the code of the start stays mapped");
    }
}

fn announce(config: &Config) {
    let mode = config.mode.as_str();
    match config.front {
        Front::Cri => {
            let (endpoint, runtime) = (&config.endpoint, &config.runtime_endpoint);
            info!(endpoint = %endpoint.display(), runtime = %runtime.display(), mode, "serving");
        }
        Front::Nri => {
            let runtime = config.nri.socket.display();
            info!(%runtime, mode, "serving as a plugin");
        }
        Front::Watch => {
            let runtime = config.runtime_endpoint.display();
            info!(%runtime, mode, "watching the runtime");
        }
    }
}

// === impl Tasks ===

impl Tasks {
    /// Reconcile and relist, with all that they need.
    fn follow_runtime(&mut self, local: &LocalSet, hub: &Rc<Hub>, config: &Config) {
        let policy = hub.policy();
        let about_threads = policy.chain().is_about_threads(policy.node());
        hub.writer().start(about_threads);
        self.spawn("reconcile", local, reconcile::run(hub.clone()));
        self.spawn("systemd", local, reconcile::follow_systemd(hub.clone()));
        let runtime: Arc<Path> = config.runtime_endpoint.as_path().into();
        let above = config.cgroup_root.clone();
        let list = {
            let (hub, runtime) = (hub.clone(), Arc::clone(&runtime));
            async move {
                hub.first_word().await;
                relist::run(hub, runtime, above).await;
            }
        };
        self.spawn("relist", local, list);
        if let Some(look) = hub.probe().hami_core_look() {
            self.spawn("hami-core", local, hami_core::watch(hub.clone(), look));
        }
        let gates = &config.hooks.gates;
        if gates.enabled(HookOptions::HAMI_CORE_VGPU_MONITOR) {
            self.spawn("hami-folders", local, hami_core::keep_folders(hub.clone()));
        }
        if hub.watches() {
            self.spawn("watch", local, watching::run(hub.clone(), runtime));
        }
    }

    fn keep_telling(&mut self, local: &LocalSet, notifier: Rc<Notifier>) {
        let keep = async move { notifier.keep_telling().await };
        self.spawn("notifier", local, keep);
    }

    fn spawn(
        &mut self,
        name: &'static str,
        local: &LocalSet,
        task: impl Future<Output = ()> + 'static,
    ) {
        let task = async move {
            task.await;
            name
        };
        let id = self.running.spawn_local_on(task, local).id();
        self.names.insert(id, name);
    }

    /// Ready when a task has ended: by a panic, or because what it follows is gone.
    async fn died(&mut self) -> TaskDied {
        match self.running.join_next().await {
            Some(Ok(name)) => TaskDied { name, source: None },
            Some(Err(source)) => TaskDied {
                name: self.names.get(&source.id()).copied().unwrap_or("a task"),
                source: Some(source),
            },
            None => std::future::pending().await,
        }
    }
}

/// What is wrong with the configuration, for which everything passes through: in the log and for `status`.
fn unusable(complaint: &ConfigError) -> String {
    // One for each line, where there are several.
    let reason = complaint.to_string().replace('\n', "; ");
    error!(
        reason,
        "the configuration cannot be used: passing everything through, hooks off"
    );
    format!("hooks are off: {reason}")
}

/// A launch that may harm the runtime: in the log and for `status`.
fn ill_launched(launched: &Launched) -> Option<String> {
    let reason = launched.remark()?;
    warn!(reason, "the runtime should not launch plugins");
    Some(reason)
}

/// Starts that ended badly again and again are followed by one in which we do nothing.
fn heed(verdict: Verdict, config: &mut Config, remarks: &mut Vec<String>) {
    let Verdict::PassThrough {
        unclean_starts,
        within,
    } = verdict
    else {
        return;
    };
    warn!(
        unclean_starts,
        "too many starts in a row ended badly: passing everything through, hooks off"
    );
    let seconds = within.as_secs();
    remarks.push(format!(
        "{unclean_starts} starts within {seconds} s ended badly: hooks are off until a clean restart"
    ));
    config.mode = Mode::PassThrough;
}

/// Pods have to run on a node whose control groups we cannot use, too: everything passes through
/// there, and it is said.
fn open_cgroups(config: &mut Config, remarks: &mut Vec<String>) -> Cgroups {
    if config.mode == Mode::PassThrough {
        return Cgroups::none();
    }
    cgroups_of(&config.roots).unwrap_or_else(|error| {
        error!(
            error = &error as &dyn Error,
            "the control groups of this node cannot be used: passing everything through, hooks off"
        );
        remarks.push(format!(
            "the control groups of this node cannot be used, hooks are off: {}",
            chain_of(&error)
        ));
        config.mode = Mode::PassThrough;
        Cgroups::none()
    })
}

pub(crate) fn cgroups_of(roots: &config::Roots) -> Result<Cgroups, DetectError> {
    let udev = Path::new("/run/udev/data");
    let devices = BlockDevices::new(&roots.sys, &roots.proc, udev, &roots.kubelet);
    let sysctls = OsSysctls::below(&roots.proc);
    Cgroups::open(&roots.cgroup).map(|it| it.with_devices(devices).with_sysctls(sysctls))
}

/// By what pods in the node's own network are told apart, where that is mounted.
fn class_ids(config: &Config) -> Option<ClassIds> {
    let root = &config.roots.cgroup;
    ClassIds::open(root).unwrap_or_else(|error| {
        let error = &error as &dyn Error;
        warn!(path = %root.display(), error, "class ids of control groups cannot be had");
        None
    })
}

/// Where devices of RDMA are looked for, if containers are to have them. Clients' requests name paths,
/// at which the runtime looks.
fn rdma_probe(config: &Config) -> Option<RdmaProbe> {
    let is_on = config.hooks.gates.enabled(HookOptions::RDMA_DEVICE_INJECT);
    is_on.then(|| RdmaProbe {
        sys_root: config.roots.sys.clone(),
        nodes: (config.front == Front::Cri).then(|| PathBuf::from("/dev")),
    })
}

fn condition(config: &Config, remarks: Vec<String>, pods: Option<&PodSource>) -> Condition {
    Condition {
        mode: config.mode,
        front: config.front,
        beside_koordlet: config.hooks.beside_koordlet,
        remarks,
        runtime: config.runtime_endpoint.clone(),
        node_name: config.node_name.clone(),
        policy: RefCell::default(),
        pods: pods.map(PodSource::subscribe),
        draining: Cell::new(false),
    }
}

pub(crate) fn new_metrics(config: &Config) -> Rc<Metrics> {
    let metrics = Metrics::new();
    let (mode, front) = (config.mode.as_str(), config.front.as_str());
    metrics.started(mode, front, SystemTime::now());
    Rc::new(metrics)
}

pub(crate) fn build_hub(
    config: &Config,
    cgroups: Cgroups,
    policy: Option<&PolicyFile>,
    metrics: Rc<Metrics>,
    remarks: &mut Vec<String>,
) -> Rc<Hub> {
    let groups = ThreadGroups {
        cores: open_cores(&cgroups, &config.hooks.gates, remarks),
        caches: Caches::of_machine(config.roots.sys.clone(), PathBuf::from(OWN_PROC)),
        oom_scores: OomScores::over(Procfs::at(Path::new(OWN_PROC))),
        marks: Marks::default(),
    };
    let probe = Probe {
        core_sched: groups.cores.is_supported(),
        resctrl: groups.caches.is_supported(),
        hami_core: config.hooks.gates.enabled(HookOptions::GPU_ENV_INJECT),
        rdma: rdma_probe(config),
        sys_root: config.roots.sys.clone(),
        cgroup_root: config.cgroup_root.clone(),
        options: HookOptions::new(
            &config.hooks.gates,
            config.hooks.disable_unset_cpu_quota,
            &config.hooks.hami_core_library,
        ),
    };
    let policy = policy.map(|file| file.subscribe().borrow().policy.clone());
    let node = probe.first_look(&cgroups, policy.unwrap_or_default(), remarks);
    let chain = match config.mode {
        Mode::PassThrough => Chain::empty(),
        Mode::Enforce | Mode::Observe => {
            Chain::new(&config.hooks.gates, &config.hooks.fail_policies)
                .leaving(config.hooks.left.clone())
        }
    };
    for (hook, reason) in chain.unsupported(&node) {
        let hook = hook.name;
        info!(hook, reason, "a hook can do nothing on this kernel");
        remarks.push(format!("{hook} is unsupported here: {reason}"));
    }
    let ids = class_ids(config);
    if chain.settings().contains(&Setting::PodQueue) {
        let remark = ids.as_ref().map_or(SENT_BY_THE_NODE, |_| SENT_FOR_PODS);
        remarks.push(remark.to_owned());
    }
    for gate in config.hooks.gates.unserved() {
        warn!(gate, "a feature gate is on of which nothing is here yet");
        remarks.push(format!(
            "feature gate {gate} is on, but nothing here serves it"
        ));
    }
    Hub::new(Parts {
        policy: Policy::new(chain, node, &config.exclusions.skip_label.0),
        probe,
        effects: match config.mode {
            Mode::Enforce => Effects::Enforce,
            Mode::Observe | Mode::PassThrough => Effects::Observe,
        },
        exclusions: config.exclusions.clone(),
        writer: Writer::new(cgroups, groups),
        terway: Terway::reading(config.roots.terway.clone()),
        traffic: Traffic::of_kernel(&config.state_dir, ids),
        metrics,
        max_message_bytes: config.limits.max_message_bytes,
        hold_timeout: config.limits.hold_timeout,
        watches: config.front == Front::Watch && config.mode != Mode::PassThrough,
    })
}

/// What a source says at once is in force from the first decision.
pub(crate) fn open_pods(config: &Config, hub: &Hub, metrics: &Rc<Metrics>) -> Option<PodSource> {
    if config.mode == Mode::PassThrough {
        return None;
    }
    let inputs = hub.policy().inputs();
    let source = PodSource::open(&config.pods, inputs, metrics.clone())?;
    if let Some(answer) = &source.subscribe().borrow().answer {
        hub.take_pods(answer);
    }
    Some(source)
}

/// Few kernels have core scheduling, and fewer machines a use for it: that is no error. One with a switch
/// that is off is not believed when it refuses: a policy may have it put on.
fn open_cores(cgroups: &Cgroups, gates: &FeatureGates, remarks: &mut Vec<String>) -> Cores {
    let is_off = cgroups.has_cores_off().unwrap_or_else(|error| {
        let error = &error as &dyn Error;
        warn!(error, "cannot read whether core scheduling is switched off");
        false
    });
    let error = match core_sched::Kernel::open(is_off) {
        Ok(kernel) => return Cores::over(kernel, Procfs::at(Path::new(OWN_PROC))),
        Err(error) => error,
    };
    if error.kind() == io::ErrorKind::PermissionDenied && gates.enabled("CoreSched") {
        let missing = "core scheduling wants CAP_SYS_PTRACE, which this process does not have";
        warn!(missing, "a hook can do nothing");
        remarks.push(missing.to_owned());
    }
    Cores::none()
}

/// The socket for clients: what systemd hands over, or our own.
fn listen(
    config: &Config,
    systemd: &Variables,
    files: &mut Vec<SocketFile>,
) -> Result<UnixListener, StartError> {
    let (pid, fds) = (&systemd.listen_pid, &systemd.listen_fds);
    if let Some(descriptor) = inherited_listener(pid.as_deref(), fds.as_deref())? {
        return adopt(descriptor).map_err(StartError::Socket);
    }
    let bound = socket::bind(&config.endpoint, Directory::Public);
    let (listener, file) = bound.map_err(StartError::Listen)?;
    files.push(file);
    Ok(listener)
}

/// The socket for administrators. A runtime may not start when a plugin that it launches ends, so such
/// a one goes on without; and a file system that is full is no reason for a node without a runtime. Where
/// the socket for clients was handed to us nothing is: they would wait in it, and who has this one, or what
/// lies in its place, serves them not.
fn listen_for_administrators(
    config: &Config,
    is_launched: bool,
    is_handed: bool,
) -> Result<Option<(UnixListener, SocketFile)>, StartError> {
    let passes = |error: &BindError| is_launched || is_handed || error.may_pass();
    match socket::bind(&config.admin_endpoint, Directory::Private) {
        Ok(bound) => Ok(Some(bound)),
        Err(error) if passes(&error) => {
            let error = &error as &dyn Error;
            warn!(
                error,
                "cannot listen for administrators; trying again until we can"
            );
            Ok(None)
        }
        Err(error) => Err(StartError::ListenAdmin(error)),
    }
}

/// Serves administrators, as soon as their socket is ours.
async fn administer(
    admin: Admin,
    endpoint: PathBuf,
    mut bound: Option<(UnixListener, SocketFile)>,
) {
    loop {
        match bound {
            Some((listener, _file)) => return admin.serve(listener).await,
            None => sleep(ADMIN_RETRY).await,
        }
        bound = socket::bind(&endpoint, Directory::Private).ok();
    }
}

fn adopt(descriptor: OwnedFd) -> io::Result<UnixListener> {
    let listener = net::UnixListener::from(descriptor);
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// A socket unit that stayed enabled takes clients in whom this front never answers.
fn unserved_socket(systemd: &Variables) -> Option<String> {
    let (pid, fds) = (&systemd.listen_pid, &systemd.listen_fds);
    let handed = inherited_listener(pid.as_deref(), fds.as_deref());
    if matches!(handed, Ok(None)) {
        return None;
    }
    let reason = "a socket for clients was handed over that this --front does not serve: whoever \
                  connects there waits for ever";
    warn!(reason, "a socket is not served");
    Some(reason.to_owned())
}

/// Hook servers of Koordinator register by a file each; they are not served yet, and whoever
/// counts on one has to know.
fn unserved_hook_servers(directory: &Path) -> Vec<String> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    let files = entries
        .map(|entry| entry.path())
        .filter(|path| path.to_string_lossy().ends_with("json"));
    files
        .map(|path| {
            warn!(path = %path.display(), "hook servers are not served yet");
            format!("hook server {} is not served yet", path.display())
        })
        .collect()
}

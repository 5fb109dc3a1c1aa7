//! The process: what is built from the configuration, in which order it starts, and how it ends.

use crate::{
    admin::{Admin, Condition},
    apply::kernel::Writer,
    config::{Config, Mode},
    front::cri::{Front, Options},
    hub::{Effects, Hub, Parts, Policy},
    log::LogControl,
    metrics::Metrics,
    reconcile, relist,
    socket::{self, BindError, Directory, SocketFile},
    start_guard::Verdict,
    status::chain_of,
};
use koord_hooks::{Abilities, Chain, HookOptions, NodeView, TierPaths};
use koord_kernel::{
    cgroup::{Cgroups, DetectError, Driver, Layout},
    cpu,
    process::{InheritError, inherited_listener},
};
use koord_model::{CgroupPath, KubeQos, Setting};
use koord_proto::policy::NodePolicy;
use std::{
    cell::Cell,
    future::Future,
    io,
    os::{fd::OwnedFd, unix::net},
    path::Path,
    rc::Rc,
    sync::Arc,
    time::SystemTime,
};
use thiserror::Error;
use tokio::{net::UnixListener, task::LocalSet};
use tracing::{info, warn};

/// Why the process cannot start.
#[derive(Debug, Error)]
pub enum StartError {
    #[error("the control groups of this node cannot be used")]
    Cgroups(#[from] DetectError),
    #[error("the thread that writes control groups did not start")]
    Writer(#[source] io::Error),
    #[error("cannot listen for clients")]
    Listen(#[source] BindError),
    #[error("the socket that was handed over cannot be used")]
    Inherited(#[from] InheritError),
    #[error("cannot listen for administrators")]
    ListenAdmin(#[source] BindError),
    #[error("a listening socket cannot be used")]
    Socket(#[source] io::Error),
}

/// What systemd's protocol hands over in the environment.
#[derive(Clone, Debug, Default)]
pub struct Handed {
    pub listen_pid: Option<String>,
    pub listen_fds: Option<String>,
}

/// Everything that is needed to run.
pub struct App {
    config: Config,
    hub: Rc<Hub>,
    metrics: Rc<Metrics>,
    condition: Rc<Condition>,
    log: LogControl,
    clients: UnixListener,
    administrators: UnixListener,
    /// Removed from the file system when we go.
    _files: Vec<SocketFile>,
}

// === impl App ===

impl App {
    /// Opens what has to be there: control groups and sockets. Neither runtime nor kubelet has to.
    /// Must run in a runtime.
    pub fn build(
        mut config: Config,
        verdict: Verdict,
        handed: &Handed,
        log: LogControl,
    ) -> Result<Self, StartError> {
        let mut remarks = Vec::new();
        if let Verdict::PassThrough { unclean_starts } = verdict {
            warn!(
                unclean_starts,
                "too many starts within a minute ended badly: passing everything through, hooks off"
            );
            remarks.push(format!(
                "{unclean_starts} starts within a minute ended badly: hooks are off until a clean restart"
            ));
            config.mode = Mode::PassThrough;
        }
        let cgroups = Cgroups::open(&config.roots.cgroup)?;
        let policy = config
            .node_policy
            .as_deref()
            .map(|path| read_policy(path, &config.node_name));
        let node = node_view(&config, &cgroups, policy.unwrap_or_default());
        let chain = match config.mode {
            Mode::PassThrough => Chain::empty(),
            Mode::Enforce | Mode::Observe => {
                Chain::new(&config.hooks.gates, &config.hooks.fail_policies)
            }
        };
        for (hook, why) in chain.unsupported(&node) {
            info!(
                hook = hook.name,
                why, "a hook can do nothing on this kernel"
            );
            remarks.push(format!("{}: {why}", hook.name));
        }
        let metrics = Rc::new(Metrics::new());
        metrics.started(config.mode.as_str(), SystemTime::now());
        let hub = Hub::new(Parts {
            policy: Policy::new(chain, node, &config.exclusions.skip_label.0),
            effects: match config.mode {
                Mode::Enforce => Effects::Enforce,
                Mode::Observe | Mode::PassThrough => Effects::Observe,
            },
            exclusions: config.exclusions.clone(),
            writer: Writer::start(cgroups).map_err(StartError::Writer)?,
            metrics: metrics.clone(),
            max_message_bytes: config.limits.max_message_bytes,
        });
        let inherited =
            inherited_listener(handed.listen_pid.as_deref(), handed.listen_fds.as_deref())?;
        let mut files = Vec::new();
        let clients = match inherited {
            Some(descriptor) => adopt(descriptor).map_err(StartError::Socket)?,
            None => {
                let bound = socket::bind(&config.endpoint, Directory::Public);
                let (listener, file) = bound.map_err(StartError::Listen)?;
                files.push(file);
                listener
            }
        };
        let bound = socket::bind(&config.admin_endpoint, Directory::Private);
        let (administrators, file) = bound.map_err(StartError::ListenAdmin)?;
        files.push(file);
        Ok(Self {
            condition: Rc::new(Condition {
                mode: config.mode.as_str(),
                remarks,
                draining: Cell::new(false),
            }),
            config,
            hub,
            metrics,
            log,
            clients,
            administrators,
            _files: files,
        })
    }

    /// Serves until `stop` is ready, then lets calls in flight finish. `ready` is called when
    /// clients can connect.
    pub async fn run(self, stop: impl Future<Output = ()>, ready: impl FnOnce()) {
        let local = LocalSet::new();
        let runtime: Arc<Path> = self.config.runtime_endpoint.as_path().into();
        let hooks = self.config.mode != Mode::PassThrough;
        if hooks {
            local.spawn_local(reconcile::run(self.hub.clone()));
            let above = self.config.cgroup_root.clone();
            local.spawn_local(relist::run(self.hub.clone(), runtime.clone(), above));
        }
        let admin = Admin {
            hub: self.hub.clone(),
            condition: self.condition.clone(),
            log: self.log,
        };
        local.spawn_local(admin.serve(self.administrators));
        let options = Options {
            runtime,
            max_connections: self.config.limits.max_connections,
            large_message_slots: self.config.limits.large_message_slots,
            max_message_bytes: self.config.limits.max_message_bytes,
            hooks,
        };
        let front = Front::new(self.clients, options, self.hub, self.metrics);
        let condition = self.condition;
        let stop = async {
            stop.await;
            condition.draining.set(true);
        };
        info!(
            endpoint = %self.config.endpoint.display(),
            runtime = %self.config.runtime_endpoint.display(),
            mode = self.config.mode.as_str(),
            "serving"
        );
        ready();
        let grace = self.config.limits.grace_period;
        let left = local.run_until(front.serve(stop, grace)).await;
        if left > 0 {
            warn!(connections = left, "stopped with calls in flight");
        }
    }
}

fn read_policy(path: &Path, node_name: &str) -> Arc<NodePolicy> {
    let parsed = std::fs::read_to_string(path)
        .map_err(|error| error.to_string())
        .and_then(|text| {
            NodePolicy::parse_stream(&text, Some(node_name)).map_err(|error| chain_of(&error))
        });
    match parsed {
        Ok(parsed) => Arc::new(parsed.policy),
        Err(error) => {
            warn!(error, "the node policy cannot be used");
            Arc::default()
        }
    }
}

fn adopt(descriptor: OwnedFd) -> io::Result<UnixListener> {
    let listener = net::UnixListener::from(descriptor);
    listener.set_nonblocking(true)?;
    UnixListener::from_std(listener)
}

/// What hooks may know of the node.
pub fn node_view(config: &Config, cgroups: &Cgroups, policy: Arc<NodePolicy>) -> NodeView {
    let online = cpu::online(&config.roots.sys).unwrap_or_else(|error| {
        warn!(
            error = &error as &dyn std::error::Error,
            "the online CPUs are unknown"
        );
        koord_model::CpuSet::new()
    });
    NodeView {
        policy,
        kernel: Abilities {
            bvt: exists_anywhere(cgroups, Setting::CpuBvt),
            cpu_idle: exists_anywhere(cgroups, Setting::CpuIdle),
            online,
        },
        tiers: tiers(cgroups, &config.cgroup_root),
        options: HookOptions::new(&config.hooks.gates, config.hooks.disable_unset_cpu_quota),
    }
}

/// Whether the kernel has a setting: some files are missing at the root of a hierarchy, so the
/// groups below it are asked too.
fn exists_anywhere(cgroups: &Cgroups, setting: Setting) -> bool {
    let root = CgroupPath::root();
    let below = cgroups.children(&root).unwrap_or_default();
    cgroups.supports(setting, &root)
        || below
            .iter()
            .filter_map(|name| root.join(name).ok())
            .any(|group| cgroups.supports(setting, &group))
}

fn tiers(cgroups: &Cgroups, root: &CgroupPath) -> TierPaths {
    let layout = Layout::detect(cgroups, root).or_else(|| Layout::new(root, Driver::Systemd).ok());
    let Some(layout) = layout else {
        return TierPaths::default();
    };
    let tier = |qos| layout.tier(qos).unwrap_or_default();
    TierPaths {
        kubepods: tier(KubeQos::Guaranteed),
        burstable: tier(KubeQos::Burstable),
        best_effort: tier(KubeQos::BestEffort),
    }
}

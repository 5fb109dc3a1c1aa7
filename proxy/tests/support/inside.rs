//! The front and the hub without a process: for tests that hold the clock or bring their own hook.

use super::node::value;
use h2::server::Builder;
use koord_hooks::{Chain, HookOptions};
use koord_kernel::cgroup::Cgroups;
use koord_model::CgroupPath;
use koord_runtime_proxy::{
    apply::{kernel::Writer, terway::Terway, threads::ThreadGroups, traffic::Traffic},
    config::Exclusions,
    front::cri::{Front, Options},
    hub::{Effects, Hub, Parts, Policy},
    metrics::Metrics,
    node::Probe,
};
use koord_testkit::scripted::Script;
use std::{
    collections::BTreeSet,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};
use tempfile::TempDir;
use tokio::{
    net::UnixListener,
    task::{JoinHandle, spawn_local},
};

/// How long a call is held where a test says nothing of it.
pub const HOLD_TIMEOUT: Duration = Duration::from_millis(500);

/// A front that serves in this runtime, for as long as this lives. No runtime is listed.
pub struct Inside {
    pub metrics: Rc<Metrics>,
    serving: JoinHandle<usize>,
    dir: TempDir,
}

// === impl Inside ===

impl Inside {
    /// Serves with these hooks. Must run in a `LocalSet`.
    pub fn start(chain: Chain) -> Self {
        Self::holding(chain, HOLD_TIMEOUT)
    }

    /// The same with calls that are held for so long.
    pub fn holding(chain: Chain, hold_timeout: Duration) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let metrics = Rc::new(Metrics::new());
        let listener = UnixListener::bind(dir.path().join("proxy.sock")).unwrap();
        let options = Options {
            runtime: dir.path().join("runtime.sock").into(),
            max_connections: 64,
            large_message_slots: 4,
            // Who waits for a place does so to the end.
            hold_timeout: Duration::MAX,
            max_message_bytes: 16 << 20,
            hooks: true,
            socket_stays: false,
        };
        let hub = hub(chain, hold_timeout, &metrics);
        let front = Front::new(listener, options, hub, metrics.clone());
        let serving = spawn_local(front.serve(std::future::pending(), Duration::ZERO));
        Self {
            metrics,
            serving,
            dir,
        }
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.path().join("proxy.sock")
    }

    pub fn runtime_socket(&self) -> PathBuf {
        self.dir.path().join("runtime.sock")
    }

    /// The value of the series with exactly these labels, as in [`Node::metric`].
    ///
    /// [`Node::metric`]: super::node::Node::metric
    pub fn metric(&self, series: &str) -> u64 {
        value(&self.metrics.encode().unwrap(), series)
    }
}

impl Drop for Inside {
    fn drop(&mut self) {
        self.serving.abort();
    }
}

/// A hub with these hooks. It looks at the machine's control groups, below a root that is not there.
pub fn hub(chain: Chain, hold_timeout: Duration, metrics: &Rc<Metrics>) -> Rc<Hub> {
    let cgroups = Cgroups::open(Path::new("/sys/fs/cgroup")).unwrap();
    let probe = Probe {
        sys_root: "/sys".into(),
        cgroup_root: CgroupPath::parse("/no-such-root").unwrap(),
        options: HookOptions::default(),
        core_sched: false,
        resctrl: false,
        hami_core: false,
        rdma: None,
    };
    let node = probe.look(&cgroups, Default::default()).unwrap();
    Hub::new(Parts {
        policy: Policy::new(chain, node, "skip"),
        probe,
        effects: Effects::Enforce,
        exclusions: Exclusions {
            skip_label: ("skip".to_owned(), "true".to_owned()),
            namespaces: BTreeSet::new(),
            runtime_handlers: BTreeSet::new(),
        },
        writer: Writer::new(cgroups, ThreadGroups::none()),
        terway: Terway::reading("/not/there".into()),
        traffic: Traffic::by(|_| Ok(false)),
        metrics: metrics.clone(),
        max_message_bytes: 16 << 20,
        hold_timeout,
        watches: false,
    })
}

/// Windows as the runtimes of Go offer them.
pub fn windows_of_64_kib() -> Builder {
    let mut settings = Script::settings();
    settings
        .initial_window_size(65_535)
        .initial_connection_window_size(65_535);
    settings
}

/// Serves a script in this very thread. Must run in a `LocalSet`.
pub fn serve(script: &Script, socket: &Path, settings: &Builder) {
    let listener = UnixListener::bind(socket).unwrap();
    let (script, settings) = (script.clone(), settings.clone());
    spawn_local(async move {
        while let Ok((stream, _)) = listener.accept().await {
            let (script, settings) = (script.clone(), settings.clone());
            spawn_local(async move { script.serve_with(stream, &settings).await });
        }
    });
}

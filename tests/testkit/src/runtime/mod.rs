//! Private runtimes with runc: real, each alone in its testbed, gone with it.

mod containerd;
mod crio;

pub use containerd::OTHER_HANDLER;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::command::{CommandError, run};
use crate::cri::CriClient;
use crate::poll::bound;
use crate::setup::{
    BUSYBOX_IMAGE, Cache, PAUSE_IMAGE, Programs, RuntimeKind, SetupError, ensure_image_archive,
    ensure_pod_network, ensure_runtime,
};
use crate::testbed::{Testbed, TestbedError};

/// What a test wants different from the rest.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Serve NRI on [`Runtime::nri_socket`]. containerd 1.6 has none.
    pub nri: bool,
    /// How long the runtime waits for an answer of a plugin, if not for two seconds.
    pub nri_patience: Option<Duration>,
    /// Plugins that the runtime launches by itself.
    pub nri_plugins: Vec<NriPlugin>,
    /// A file that the configuration imports, behind what it says itself. `{dir}` stands for the
    /// testbed's folder.
    pub drop_in: Option<String>,
    /// A directory of `HOST/hosts.toml` files, for images from a registry on loopback. containerd's
    /// alone.
    pub registry_config: Option<PathBuf>,
    /// Give pods a network of their own. Without it they use the host's. Host ports become rules of
    /// iptables in the network namespace of this process, so let it have one of its own.
    pub pod_network: bool,
}

/// A program in the runtime's folder of NRI plugins.
#[derive(Debug, Clone)]
pub struct NriPlugin {
    /// Two digits, a dash and a name.
    pub name: String,
    pub program: PathBuf,
    /// What the runtime hands to it. `{dir}` stands for the testbed's folder, `{cgroup-root}` for its
    /// control group.
    pub config: String,
}

/// What a runtime is started from.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Which one `programs` are.
    pub kind: RuntimeKind,
    pub programs: Programs,
    /// The archive with the images of pods.
    pub images: PathBuf,
    /// The programs of the pods' network, if pods are to have one of their own.
    pub network: Option<PathBuf>,
}

/// Why a runtime does not run.
#[derive(Debug, thiserror::Error)]
pub enum RuntimeError {
    /// Found out before anything is fetched for it.
    #[error("{0} needs root, for its control groups and mounts")]
    NoRoot(RuntimeKind),
    /// Its binaries or images could not be fetched or built.
    #[error("the runtime is not there")]
    Setup(#[from] SetupError),
    /// It has no place to run.
    #[error("no testbed for the runtime")]
    Testbed(#[from] TestbedError),
    /// A file could not be written or the process not started or signalled.
    #[error("cannot {action}")]
    Process {
        action: &'static str,
        source: io::Error,
    },
    /// It did not answer CRI's Version in time, or ended before; `log` is the end of what it wrote.
    #[error("{kind} does not answer: {log}")]
    NotReady { kind: RuntimeKind, log: String },
    /// The images could not be imported.
    #[error("cannot import the images")]
    Import(#[source] CommandError),
    /// It has no namespace of mounts to run in.
    #[error("cannot make a namespace of mounts")]
    Mounts(#[source] CommandError),
}

/// Files in the testbed's folder.
const CONFIG: &str = "runtime.toml";
const NRI_SOCKET: &str = "nri.sock";

fn write(directory: &Path, name: &str, text: &str) -> Result<(), RuntimeError> {
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(directory.join(name), text))
        .map_err(failed("write the runtime's configuration"))
}

fn install(testbed: &Testbed, plugin: &NriPlugin) -> Result<(), RuntimeError> {
    let directory = testbed.directory();
    let dir = directory.to_string_lossy();
    let config = plugin.config.replace("{dir}", &dir);
    let config = config.replace("{cgroup-root}", &testbed.cgroup_root());
    let file = format!("{}.conf", plugin.name);
    write(&directory.join("nri-conf"), &file, &config)?;
    let plugins = directory.join("nri-plugins");
    let link = plugins.join(&plugin.name);
    fs::create_dir_all(&plugins)
        .and_then(|()| std::os::unix::fs::symlink(&plugin.program, link))
        .map_err(failed("install an NRI plugin"))
}

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> RuntimeError {
    move |source| RuntimeError::Process { action, source }
}

/// A running one. Dropping it removes its testbed: containers, shims, mounts, cgroups, files.
#[derive(Debug)]
pub struct Runtime {
    // Dropped first: the janitor kills everything, and the process can be reaped.
    testbed: Testbed,
    process: Process,
    kind: RuntimeKind,
    programs: Programs,
    /// The programs of the pods' network; not there without one.
    network: PathBuf,
}

/// Reaps its process at the end, so that no zombie outlives the testbed.
#[derive(Debug)]
struct Process(Option<Child>);

impl Drop for Process {
    fn drop(&mut self) {
        if let Some(mut child) = self.0.take() {
            drop(child.kill().and_then(|()| child.wait()));
        }
    }
}

impl Runtime {
    /// Fetches what is missing, starts the runtime in a testbed of its own, imports the images and
    /// returns when CRI answers.
    ///
    /// # Errors
    ///
    /// When a part cannot be fetched, or the runtime does not come up within 30 s.
    pub fn start(kind: impl Into<RuntimeKind>, options: &Options) -> Result<Self, RuntimeError> {
        let kind = kind.into();
        if !rustix::process::geteuid().is_root() {
            return Err(RuntimeError::NoRoot(kind));
        }
        let cache = Cache::open()?;
        let network = options.pod_network.then(|| ensure_pod_network(&cache));
        let parts = Parts {
            kind,
            programs: ensure_runtime(&cache, kind)?,
            images: ensure_image_archive(&cache)?,
            network: network.transpose()?,
        };
        Self::start_with(parts, options)
    }

    /// The same with parts that are there, on a machine that has nothing else. They say whether pods have
    /// a network of their own.
    ///
    /// # Errors
    ///
    /// When the runtime does not come up within 30 s.
    pub fn start_with(parts: Parts, options: &Options) -> Result<Self, RuntimeError> {
        let Parts {
            kind,
            programs,
            images,
            network,
        } = parts;
        let testbed = Testbed::new()?;
        let directory = testbed.directory();
        if network.is_some() {
            write(
                &directory.join("cni"),
                "10-pods.conflist",
                &containerd::pod_network(directory),
            )?;
        }
        let network = network.unwrap_or_else(|| directory.join("no-network"));
        for plugin in &options.nri_plugins {
            install(&testbed, plugin)?;
        }
        if let Some(drop_in) = &options.drop_in {
            let drop_in = drop_in.replace("{dir}", &directory.to_string_lossy());
            write(&directory.join("conf.d"), "drop-in.toml", &drop_in)?;
        }
        let config = match kind {
            RuntimeKind::Containerd(_) => {
                containerd::config(directory, &programs, &network, options)
            }
            RuntimeKind::Crio => crio::config(directory, &programs, &network, options),
        };
        write(directory, CONFIG, &config)?;

        let mut runtime = Self {
            testbed,
            process: Process(None),
            kind,
            programs,
            network,
        };
        runtime.come_up(&images)?;
        Ok(runtime)
    }

    /// Starts it for the first time, with the images that pods are made of.
    fn come_up(&mut self, images: &Path) -> Result<(), RuntimeError> {
        match self.kind {
            RuntimeKind::Containerd(_) => {
                self.launch()?;
                let import = &mut containerd::import(&self.testbed, &self.programs, images);
                run(import).map_err(RuntimeError::Import)?;
            }
            RuntimeKind::Crio => {
                crio::prepare(&self.testbed, &self.programs, images)?;
                self.launch()?;
            }
        }
        // The CRI of containerd learns of imported images by an event of its own.
        self.await_ready(&[PAUSE_IMAGE, BUSYBOX_IMAGE])
    }

    /// The socket of CRI, and of containerd's own API.
    pub fn socket(&self) -> PathBuf {
        match self.kind {
            RuntimeKind::Containerd(_) => containerd::socket(&self.testbed),
            RuntimeKind::Crio => crio::socket(&self.testbed),
        }
    }

    /// The socket where NRI plugins connect, if [`Options::nri`] was set.
    pub fn nri_socket(&self) -> PathBuf {
        self.testbed.directory().join(NRI_SOCKET)
    }

    /// Which one this is.
    pub fn kind(&self) -> RuntimeKind {
        self.kind
    }

    /// Its testbed: a place for more processes and files of the same test.
    pub fn testbed(&self) -> &Testbed {
        &self.testbed
    }

    /// The process id of the runtime itself; `None` while it is stopped.
    pub fn pid(&self) -> Option<u32> {
        self.process.0.as_ref().map(Child::id)
    }

    /// The end of what it wrote to its log, for messages of failed tests.
    pub fn log(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        let start = log.len().saturating_sub(4096);
        String::from_utf8_lossy(&log[start..]).into_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.testbed.directory().join("runtime.log")
    }

    /// Kills it with SIGKILL. Containers and their shims go on.
    ///
    /// # Errors
    ///
    /// When it cannot be signalled.
    pub fn kill9(&mut self) -> Result<(), RuntimeError> {
        self.end(Signal::KILL).map(drop)
    }

    /// Ends it with SIGTERM and waits for it. Containers and their shims go on.
    ///
    /// # Errors
    ///
    /// When it cannot be signalled.
    pub fn stop(&mut self) -> Result<(), RuntimeError> {
        self.end(Signal::TERM).map(drop)
    }

    /// Stops it if it runs, starts it and returns when CRI answers again.
    ///
    /// # Errors
    ///
    /// When it does not come up within 30 s.
    pub fn restart(&mut self) -> Result<(), RuntimeError> {
        self.stop()?;
        self.launch()
    }

    fn end(&mut self, signal: Signal) -> Result<Option<ExitStatus>, RuntimeError> {
        let Some(mut child) = self.process.0.take() else {
            return Ok(None);
        };
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.expect("a child's id is a process id");
        kill_process(pid, signal).map_err(|errno| failed("signal the runtime")(errno.into()))?;
        child
            .wait()
            .map(Some)
            .map_err(failed("wait for the runtime"))
    }

    fn launch(&mut self) -> Result<(), RuntimeError> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .map_err(failed("open the runtime's log"))?;
        let mut path = self.programs.bin().as_os_str().to_owned();
        path.push(":");
        path.push(&self.network);
        path.push(":/usr/sbin:/usr/bin:/sbin:/bin");
        let mut command = match self.kind {
            RuntimeKind::Containerd(_) => containerd::command(&self.testbed, &self.programs),
            RuntimeKind::Crio => crio::command(&self.testbed, &self.programs),
        };
        let child = command
            .env("PATH", path)
            .stdout(log.try_clone().map_err(failed("open the runtime's log"))?)
            .stderr(log)
            .spawn()
            .map_err(failed("start the runtime"))?;
        self.process.0 = Some(child);
        self.await_ready(&[])
    }

    /// Waits until CRI answers and knows `images`. On a thread of its own: the caller may be inside
    /// of an async runtime or not.
    fn await_ready(&mut self, images: &[&str]) -> Result<(), RuntimeError> {
        let socket = self.socket();
        let start = Instant::now();
        let ready = std::thread::scope(|scope| {
            scope
                .spawn(|| {
                    while start.elapsed() < bound() && !self.has_ended() {
                        if answers(&socket, images) {
                            return true;
                        }
                        std::thread::sleep(std::time::Duration::from_millis(10));
                    }
                    false
                })
                .join()
        });
        match ready {
            Ok(true) => Ok(()),
            _ => Err(RuntimeError::NotReady {
                kind: self.kind,
                log: self.log(),
            }),
        }
    }

    fn has_ended(&mut self) -> bool {
        match &mut self.process.0 {
            Some(child) => !matches!(child.try_wait(), Ok(None)),
            None => true,
        }
    }
}

fn answers(socket: &Path, images: &[&str]) -> bool {
    let Ok(runtime) = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
    else {
        return false;
    };
    runtime.block_on(async {
        let Ok(client) = CriClient::connect(socket).await else {
            return false;
        };
        for image in images {
            if !client.has_image(image).await.unwrap_or(false) {
                return false;
            }
        }
        client.version().await.is_ok()
    })
}

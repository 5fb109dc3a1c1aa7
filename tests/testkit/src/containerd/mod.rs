//! A private containerd with runc: real, alone in its testbed, gone with it.

mod config;

use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, ExitStatus};
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

use crate::command::{CommandError, run};
use crate::cri::CriClient;
use crate::poll::bound;
use crate::setup::{
    BUSYBOX_IMAGE, Cache, ContainerdVersion, PAUSE_IMAGE, Runtime, SetupError, ensure_containerd,
    ensure_image_archive, ensure_pod_network,
};
use crate::testbed::{Testbed, TestbedError};

/// What a test wants different from the rest.
#[derive(Debug, Clone, Default)]
pub struct Options {
    /// Serve NRI on [`Containerd::nri_socket`]. containerd 1.6 has none.
    pub nri: bool,
    /// How long containerd waits for an answer of a plugin, if not for two seconds.
    pub nri_patience: Option<Duration>,
    /// Plugins that containerd launches by itself.
    pub nri_plugins: Vec<NriPlugin>,
    /// A file that the configuration imports, behind what it says itself. `{dir}` stands for the
    /// testbed's folder.
    pub drop_in: Option<String>,
    /// A directory of `HOST/hosts.toml` files, for images from a registry on loopback.
    pub registry_config: Option<PathBuf>,
    /// Give pods a network of their own. Without it they use the host's. Host ports become rules of
    /// iptables in the network namespace of this process, so let it have one of its own.
    pub pod_network: bool,
}

/// A program in containerd's folder of NRI plugins.
#[derive(Debug, Clone)]
pub struct NriPlugin {
    /// Two digits, a dash and a name.
    pub name: String,
    pub program: PathBuf,
    /// What containerd hands to it. `{dir}` stands for the testbed's folder, `{cgroup-root}` for its
    /// control group.
    pub config: String,
}

/// What a containerd is started from.
#[derive(Debug, Clone)]
pub struct Parts {
    /// Which generation `runtime` is.
    pub version: ContainerdVersion,
    pub runtime: Runtime,
    /// The archive with the images of pods.
    pub images: PathBuf,
    /// The programs of the pods' network, if pods are to have one of their own.
    pub network: Option<PathBuf>,
}

/// Why containerd does not run.
#[derive(Debug, thiserror::Error)]
pub enum ContainerdError {
    /// Its binaries or images could not be fetched or built.
    #[error("containerd is not there")]
    Setup(#[from] SetupError),
    /// It has no place to run.
    #[error("no testbed for containerd")]
    Testbed(#[from] TestbedError),
    /// A file could not be written or the process not started or signalled.
    #[error("cannot {action}")]
    Process {
        action: &'static str,
        source: io::Error,
    },
    /// It did not answer CRI's Version in time, or ended before; `log` is the end of what it wrote.
    #[error("containerd does not answer: {log}")]
    NotReady { log: String },
    /// The images could not be imported.
    #[error("cannot import the images")]
    Import(#[source] CommandError),
}

fn write(directory: &Path, name: &str, text: &str) -> Result<(), ContainerdError> {
    fs::create_dir_all(directory)
        .and_then(|()| fs::write(directory.join(name), text))
        .map_err(failed("write containerd's configuration"))
}

fn install(testbed: &Testbed, plugin: &NriPlugin) -> Result<(), ContainerdError> {
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

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> ContainerdError {
    move |source| ContainerdError::Process { action, source }
}

/// A running containerd. Dropping it removes its testbed: containers, shims, mounts, cgroups, files.
#[derive(Debug)]
pub struct Containerd {
    // Dropped first: the janitor kills everything, and the process can be reaped.
    testbed: Testbed,
    process: Process,
    version: ContainerdVersion,
    runtime: Runtime,
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

impl Containerd {
    /// Fetches what is missing, starts containerd in a testbed of its own, imports the images and
    /// returns when CRI answers.
    ///
    /// # Errors
    ///
    /// When a part cannot be fetched, or containerd does not come up within 30 s.
    pub fn start(version: ContainerdVersion, options: &Options) -> Result<Self, ContainerdError> {
        let cache = Cache::open()?;
        let network = options.pod_network.then(|| ensure_pod_network(&cache));
        let parts = Parts {
            version,
            runtime: ensure_containerd(&cache, version)?,
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
    /// When containerd does not come up within 30 s.
    pub fn start_with(parts: Parts, options: &Options) -> Result<Self, ContainerdError> {
        let Parts {
            version,
            runtime,
            images,
            network,
        } = parts;
        let testbed = Testbed::new()?;
        let directory = testbed.directory();
        if network.is_some() {
            write(
                &directory.join("cni"),
                "10-pods.conflist",
                &config::pod_network(directory),
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
        let config = config::render(directory, &runtime.bin().join("runc"), &network, options);
        write(directory, "config.toml", &config)?;

        let mut containerd = Self {
            testbed,
            process: Process(None),
            version,
            runtime,
            network,
        };
        containerd.launch()?;
        let mut import = containerd.ctr();
        import.args(["images", "import"]).arg(images);
        run(&mut import).map_err(ContainerdError::Import)?;
        // CRI learns of imported images by an event of its own.
        containerd.await_ready(&[PAUSE_IMAGE, BUSYBOX_IMAGE])?;
        Ok(containerd)
    }

    /// The socket of CRI and of containerd's own API.
    pub fn socket(&self) -> PathBuf {
        self.testbed.directory().join("containerd.sock")
    }

    /// The socket where NRI plugins connect, if [`Options::nri`] was set.
    pub fn nri_socket(&self) -> PathBuf {
        self.testbed.directory().join("nri.sock")
    }

    /// Which generation this is.
    pub fn version(&self) -> ContainerdVersion {
        self.version
    }

    /// Its testbed: a place for more processes and files of the same test.
    pub fn testbed(&self) -> &Testbed {
        &self.testbed
    }

    /// The process id of containerd itself; `None` while it is stopped.
    pub fn pid(&self) -> Option<u32> {
        self.process.0.as_ref().map(Child::id)
    }

    /// containerd's own client, in the namespace of CRI; add a command.
    pub fn ctr(&self) -> Command {
        let mut command = self.testbed.command(self.runtime.bin().join("ctr"));
        command.arg("--address").arg(self.socket());
        command.args(["--namespace", "k8s.io"]);
        command
    }

    /// The end of what containerd wrote to its log, for messages of failed tests.
    pub fn log(&self) -> String {
        let log = fs::read(self.log_path()).unwrap_or_default();
        let start = log.len().saturating_sub(4096);
        String::from_utf8_lossy(&log[start..]).into_owned()
    }

    fn log_path(&self) -> PathBuf {
        self.testbed.directory().join("containerd.log")
    }

    /// Kills containerd with SIGKILL. Containers and their shims go on.
    ///
    /// # Errors
    ///
    /// When it cannot be signalled.
    pub fn kill9(&mut self) -> Result<(), ContainerdError> {
        self.end(Signal::KILL).map(drop)
    }

    /// Ends containerd with SIGTERM and waits for it. Containers and their shims go on.
    ///
    /// # Errors
    ///
    /// When it cannot be signalled.
    pub fn stop(&mut self) -> Result<(), ContainerdError> {
        self.end(Signal::TERM).map(drop)
    }

    /// Stops containerd if it runs, starts it and returns when CRI answers again.
    ///
    /// # Errors
    ///
    /// When it does not come up within 30 s.
    pub fn restart(&mut self) -> Result<(), ContainerdError> {
        self.stop()?;
        self.launch()
    }

    fn end(&mut self, signal: Signal) -> Result<Option<ExitStatus>, ContainerdError> {
        let Some(mut child) = self.process.0.take() else {
            return Ok(None);
        };
        let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
        let pid = pid.expect("a child's id is a process id");
        kill_process(pid, signal).map_err(|errno| failed("signal containerd")(errno.into()))?;
        child
            .wait()
            .map(Some)
            .map_err(failed("wait for containerd"))
    }

    fn launch(&mut self) -> Result<(), ContainerdError> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .map_err(failed("open containerd's log"))?;
        let mut path = self.runtime.bin().as_os_str().to_owned();
        path.push(":");
        path.push(&self.network);
        path.push(":/usr/sbin:/usr/bin:/sbin:/bin");
        let child = self
            .testbed
            .command(self.runtime.bin().join("containerd"))
            .arg("--config")
            .arg(self.testbed.directory().join("config.toml"))
            .env("PATH", path)
            .stdout(log.try_clone().map_err(failed("open containerd's log"))?)
            .stderr(log)
            .spawn()
            .map_err(failed("start containerd"))?;
        self.process.0 = Some(child);
        self.await_ready(&[])
    }

    /// Waits until CRI answers and knows `images`. On a thread of its own: the caller may be inside
    /// of an async runtime or not.
    fn await_ready(&mut self, images: &[&str]) -> Result<(), ContainerdError> {
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
            _ => Err(ContainerdError::NotReady { log: self.log() }),
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

//! A real kubelet without a cluster: static pods from a folder, through any CRI socket.

use std::fs::{self, File};
use std::io::{self, Read as _, Write as _};
use std::net::{Ipv4Addr, SocketAddrV4, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command};

use rustix::process::{Pid, Signal, kill_process};
use serde_json::{Value, json};

use crate::poll::{bound, wait_until};
use crate::setup::{Cache, SetupError, ensure_kubelet};
use crate::testbed::Testbed;

const ENTER: &str = include_str!("enter.sh");

/// A certificate and its key by which somebody may say who they are, to a kubelet whose
/// `clientCAFile` has it.
pub const CLIENT_PEM: &str = include_str!("client.pem");

/// Its port for reading without a certificate, on an address of its own.
const PORT: u16 = 10_255;

const SECURE_PORT: u16 = 10_250;

/// Why a kubelet does not run or answer.
#[derive(Debug, thiserror::Error)]
pub enum KubeletError {
    /// It could not be built.
    #[error("the kubelet is not there")]
    Setup(#[from] SetupError),
    /// A file could not be written, or the process not started or asked.
    #[error("cannot {action}")]
    Io {
        action: &'static str,
        source: io::Error,
    },
    /// It answered something that is no JSON.
    #[error("the kubelet answers {answer:?}")]
    Answer {
        answer: String,
        source: serde_json::Error,
    },
}

fn failed(action: &'static str) -> impl FnOnce(io::Error) -> KubeletError {
    move |source| KubeletError::Io { action, source }
}

/// A running kubelet. It goes with its testbed, and so do its pods.
#[derive(Debug)]
pub struct Kubelet {
    program: PathBuf,
    directory: PathBuf,
    address: Ipv4Addr,
    child: Option<Child>,
}

impl Kubelet {
    /// Builds the kubelet if need be, starts it on `runtime`'s socket and returns when it answers.
    ///
    /// Its pods' cgroups are below the testbed's, where [`PodCgroups`](crate::PodCgroups) has to
    /// have been made. `changes` are merged into its configuration.
    ///
    /// # Errors
    ///
    /// When it cannot be built or started.
    ///
    /// # Panics
    ///
    /// When it does not answer within [`poll::bound`](crate::poll::bound).
    pub fn start(testbed: &Testbed, runtime: &Path, changes: Value) -> Result<Self, KubeletError> {
        let program = ensure_kubelet(&Cache::open()?)?;
        let directory = testbed.directory().join("kubelet");
        for made in ["manifests", "logs"] {
            fs::create_dir_all(directory.join(made)).map_err(failed("make its directories"))?;
        }
        let address = own_address(testbed);
        let mut config = config(&directory, &testbed.cgroup_root(), runtime, address);
        if let (Value::Object(config), Value::Object(changes)) = (&mut config, changes) {
            config.extend(changes);
        }
        fs::write(directory.join("config.json"), config.to_string())
            .map_err(failed("write its configuration"))?;
        let mut kubelet = Self {
            program,
            directory,
            address,
            child: None,
        };
        kubelet.launch(testbed)?;
        Ok(kubelet)
    }

    /// Starts it again, after [`Kubelet::kill`] or [`Kubelet::stop`], and returns when it answers.
    ///
    /// # Errors
    ///
    /// When it cannot be started.
    ///
    /// # Panics
    ///
    /// When it does not answer in time; the message has the end of its log.
    pub fn launch(&mut self, testbed: &Testbed) -> Result<(), KubeletError> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())
            .map_err(failed("open its log"))?;
        let errors = log.try_clone().map_err(failed("open its log"))?;
        let mut command = testbed.command("unshare");
        command.args(["--mount", "--propagation", "slave"]);
        command.args(["sh", "-c", ENTER, "enter"]);
        command.arg(&self.directory).arg(&self.program);
        for (flag, file) in [
            ("--config", "config.json"),
            ("--root-dir", "root"),
            ("--cert-dir", "certificates"),
        ] {
            command.arg(flag).arg(self.directory.join(file));
        }
        command.arg("--hostname-override=node");
        command.stdout(log).stderr(errors);
        let child = command.spawn().map_err(failed("start the kubelet"))?;
        self.child = Some(child);
        wait_until("the kubelet answers", || {
            let ended = self.child.as_mut().and_then(|it| it.try_wait().ok()?);
            assert!(ended.is_none(), "the kubelet ended: {}", self.log());
            self.pods().is_ok()
        });
        Ok(())
    }

    /// Kills it with signal 9 and waits for its end. Its pods run on.
    ///
    /// # Errors
    ///
    /// When it cannot be killed.
    pub fn kill(&mut self) -> Result<(), KubeletError> {
        if let Some(mut child) = self.child.take() {
            child.kill().map_err(failed("kill the kubelet"))?;
            child.wait().map_err(failed("wait for the kubelet"))?;
        }
        Ok(())
    }

    /// Ends it with SIGTERM and waits for its end. Its pods run on.
    ///
    /// # Errors
    ///
    /// When it cannot be signalled.
    pub fn stop(&mut self) -> Result<(), KubeletError> {
        if let Some(mut child) = self.child.take() {
            let pid = i32::try_from(child.id()).ok().and_then(Pid::from_raw);
            let pid = pid.expect("a child's id is a process id");
            kill_process(pid, Signal::TERM)
                .map_err(|errno| failed("stop the kubelet")(errno.into()))?;
            child.wait().map_err(failed("wait for the kubelet"))?;
        }
        Ok(())
    }

    /// Has a pod run, or run as it is described now: a manifest as `kubectl` takes it.
    ///
    /// # Errors
    ///
    /// When its file cannot be written.
    pub fn apply(&self, pod: &Value) -> Result<(), KubeletError> {
        let path = self.manifest(pod["metadata"]["name"].as_str().unwrap_or_default());
        // Written beside and renamed: a kubelet takes half a file for a wrong one.
        let beside = self.directory.join("manifest.new");
        fs::write(&beside, pod.to_string())
            .and_then(|()| fs::rename(&beside, path))
            .map_err(failed("write a manifest"))
    }

    /// Has the pod of that name stopped and removed.
    ///
    /// # Errors
    ///
    /// When its file cannot be removed.
    pub fn remove(&self, name: &str) -> Result<(), KubeletError> {
        fs::remove_file(self.manifest(name)).map_err(failed("remove a manifest"))
    }

    /// Where it says its pods to those who may do everything.
    #[must_use]
    pub fn pods_url(&self) -> String {
        format!("https://{}:{SECURE_PORT}/pods", self.address)
    }

    /// The certificate that it has made itself, which names `node`, and that of its own authority.
    #[must_use]
    pub fn certificate(&self) -> PathBuf {
        self.directory.join("certificates").join("kubelet.crt")
    }

    /// All of its pods, with their status.
    ///
    /// # Errors
    ///
    /// When it does not answer.
    pub fn pods(&self) -> Result<Vec<Value>, KubeletError> {
        kubelet_pods(SocketAddrV4::new(self.address, PORT))
    }

    /// What it answers on its port for those who may do everything: logs, commands in containers.
    ///
    /// # Errors
    ///
    /// When it does not answer, or with an error.
    pub fn ask(&self, method: &str, path: &str) -> Result<String, KubeletError> {
        self.ask_with(path, &["--request", method])
    }

    /// What a command in a container writes, as frames of a web socket: the kubelet hands on the stream
    /// that the runtime offers at a URL of its own. `path` is `NAMESPACE/POD/CONTAINER?command=…`.
    ///
    /// # Errors
    ///
    /// When it does not answer, or with an error.
    pub fn exec(&self, path: &str) -> Result<String, KubeletError> {
        let upgrade = [
            "Connection: Upgrade",
            "Upgrade: websocket",
            "Sec-WebSocket-Version: 13",
            // The example of RFC 6455.
            "Sec-WebSocket-Key: dGhlIHNhbXBsZSBub25jZQ==",
            "Sec-WebSocket-Protocol: v4.channel.k8s.io",
        ];
        let headers = upgrade.iter().flat_map(|it| ["--header", it]);
        let all: Vec<_> = ["--http1.1", "--no-buffer"]
            .into_iter()
            .chain(headers)
            .collect();
        self.ask_with(&format!("/exec/{path}&output=1"), &all)
    }

    fn ask_with(&self, path: &str, how: &[&str]) -> Result<String, KubeletError> {
        let mut curl = Command::new("curl");
        curl.args(["--silent", "--show-error", "--fail", "--insecure"]);
        let most = bound().as_secs().to_string();
        curl.args(["--max-time", &most]).args(how);
        curl.arg(format!("https://{}:{SECURE_PORT}{path}", self.address));
        let output = curl.output().map_err(failed("run curl"))?;
        if !output.status.success() {
            let error = String::from_utf8_lossy(&output.stderr).into_owned();
            return Err(failed("ask the kubelet")(io::Error::other(error)));
        }
        Ok(String::from_utf8_lossy(&output.stdout).into_owned())
    }

    /// What the first container of that name in that pod has written, each line as the runtime keeps it.
    /// It is there also while the pod is being stopped, when a kubelet shows nobody the logs of a static
    /// pod any more.
    #[must_use]
    pub fn container_log(&self, pod: &str, uid: &str, container: &str) -> String {
        let pod = format!("default_{pod}-node_{uid}");
        let logs = self.directory.join("logs").join(pod).join(container);
        fs::read_to_string(logs.join("0.log")).unwrap_or_default()
    }

    /// What it wrote, for a failed test.
    pub fn log(&self) -> String {
        fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    fn log_path(&self) -> PathBuf {
        self.directory.join("kubelet.log")
    }

    fn manifest(&self, name: &str) -> PathBuf {
        self.directory
            .join("manifests")
            .join(format!("{name}.json"))
    }
}

impl Drop for Kubelet {
    fn drop(&mut self) {
        if let Some(mut child) = self.child.take() {
            drop(child.kill().and_then(|()| child.wait()));
        }
    }
}

/// All pods of the kubelet that has this port for reading without a certificate, with their status.
///
/// # Errors
///
/// When none answers there.
pub fn kubelet_pods(port: SocketAddrV4) -> Result<Vec<Value>, KubeletError> {
    let answer = get(port, "/pods").map_err(failed("ask the kubelet"))?;
    let parsed = serde_json::from_str::<Value>(&answer);
    let mut list = parsed.map_err(|source| KubeletError::Answer { answer, source })?;
    Ok(match list["items"].take() {
        Value::Array(pods) => pods,
        _ => Vec::new(),
    })
}

fn get(port: SocketAddrV4, path: &str) -> io::Result<String> {
    let mut stream = TcpStream::connect(port)?;
    stream.set_read_timeout(Some(bound()))?;
    write!(stream, "GET {path} HTTP/1.0\r\nHost: node\r\n\r\n")?;
    let mut answer = String::new();
    stream.read_to_string(&mut answer)?;
    let body = answer.split_once("\r\n\r\n").map(|(_, body)| body);
    Ok(body.unwrap_or_default().to_owned())
}

/// A loopback address that no other living testbed has: its name ends with a number of its own.
fn own_address(testbed: &Testbed) -> Ipv4Addr {
    let root = testbed.cgroup_root();
    let number = root.rsplit('-').next().and_then(|it| it.parse().ok());
    let [_, _, high, low] = number.unwrap_or(0_u32).to_be_bytes();
    Ipv4Addr::new(127, 93, high, low)
}

fn config(directory: &Path, cgroup_root: &str, runtime: &Path, address: Ipv4Addr) -> Value {
    let socket = format!("unix://{}", runtime.display());
    json!({
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "failCgroupV1": false,
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": cgroup_root,
        "containerRuntimeEndpoint": socket,
        "imageServiceEndpoint": socket,
        "staticPodPath": directory.join("manifests"),
        "podLogsDir": directory.join("logs"),
        "volumePluginDir": directory.join("volume-plugins"),
        "fileCheckFrequency": "1s",
        "address": address,
        "port": SECURE_PORT,
        "readOnlyPort": PORT,
        "healthzPort": 0,
        "authentication": {"anonymous": {"enabled": true}, "webhook": {"enabled": false}},
        "authorization": {"mode": "AlwaysAllow"},
        "makeIPTablesUtilChains": false,
        // The machine's disk is no concern of a test, and its images are not to be collected.
        "evictionHard": {"nodefs.available": "0%", "imagefs.available": "0%"},
        "imageGCHighThresholdPercent": 100,
    })
}

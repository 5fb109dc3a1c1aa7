//! The proxy as a process, started, asked, stopped and killed like an operator would.

use anyhow::{Context, Result, bail, ensure};
use koord_testkit::{Testbed, poll::wait_until};
use rustix::process::{Pid, Signal, kill_process};
use std::{
    fs::File,
    io::{Read, Write},
    os::{
        fd::OwnedFd,
        unix::net::{UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output},
};

/// The name of a socket that is handed over.
const HANDED: &str = "handed.sock";

/// Has a program serve the socket that is its standard input as systemd hands one over: descriptor 3, and
/// its own id in the environment.
const HAND_OVER: &str = r#"exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec "$@""#;

/// What a test wants of the proxy beyond the sockets.
#[derive(Clone, Debug, Default)]
pub struct ProxyOptions {
    /// Contents of the node policy file; none without.
    pub policy: Option<String>,
    /// More command-line arguments.
    pub args: Vec<String>,
    pub front: Front,
    /// A directory of its own in the testbed, where another proxy has the testbed's.
    pub own_directory: Option<&'static str>,
    /// Its waits, and those of a runtime for it, are those that a node has. Else they are long: among
    /// tests a machine is slower than any node, and what is looked at once after a call is to be there.
    pub as_shipped: bool,
    /// Its socket for clients is handed over to it and stays when it goes, as with systemd's units.
    pub handed_over: bool,
}

/// Where its events come from.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Front {
    /// Clients, whose runtime it stands before.
    #[default]
    Cri,
    /// The runtime, whose plugin it is.
    Nri,
    /// What the runtime tells.
    Watch,
}

/// A running proxy with its sockets in a testbed.
#[derive(Debug)]
pub struct Proxy {
    child: Option<Child>,
    directory: PathBuf,
    /// The socket that is handed over, if one is.
    handed: Option<UnixListener>,
    nri_socket: PathBuf,
    cgroup_root: String,
    runtime: PathBuf,
    options: ProxyOptions,
}

// === impl Proxy ===

impl Proxy {
    /// Starts a proxy in front of the socket `runtime` and waits until it answers.
    pub fn start(testbed: &Testbed, runtime: &Path, options: ProxyOptions) -> Result<Self> {
        let mut proxy = Self::new(testbed, runtime, options)?;
        proxy.launch(testbed)?;
        Ok(proxy)
    }

    /// Prepares one without starting it.
    pub fn new(testbed: &Testbed, runtime: &Path, options: ProxyOptions) -> Result<Self> {
        let directory = match options.own_directory {
            Some(own) => testbed.directory().join(own),
            None => testbed.directory().to_owned(),
        };
        std::fs::create_dir_all(&directory)?;
        let handed = options.handed_over.then(|| directory.join(HANDED));
        let proxy = Self {
            child: None,
            handed: handed.map(UnixListener::bind).transpose()?,
            directory,
            nri_socket: testbed.directory().join("nri.sock"),
            cgroup_root: testbed.cgroup_root(),
            runtime: runtime.to_owned(),
            options,
        };
        if let Some(policy) = &proxy.options.policy {
            proxy.write_policy(policy)?;
        }
        Ok(proxy)
    }

    /// Starts it (again) and waits until its socket answers.
    pub fn launch(&mut self, testbed: &Testbed) -> Result<()> {
        self.spawn(testbed)?;
        let mut ended = None;
        wait_until("the proxy serves", || {
            let child = self.child.as_mut();
            ended = child.and_then(|child| child.try_wait().ok().flatten());
            ended.is_some() || self.serves()
        });
        if let Some(status) = ended {
            bail!("the proxy ended with {status}: {}", self.log());
        }
        Ok(())
    }

    /// Whether it takes clients, is asked by the runtime, or has listed it.
    pub fn serves(&self) -> bool {
        let is_up = |metric| self.metric(metric, &[]).is_ok_and(|up| up > 0.5);
        match self.options.front {
            // Its socket for clients is there first.
            Front::Cri => [self.socket(), self.admin_socket()]
                .iter()
                .all(|socket| UnixStream::connect(socket).is_ok()),
            Front::Nri => is_up("koord_runtime_proxy_plugin_up"),
            Front::Watch => is_up("koord_runtime_proxy_runtime_up"),
        }
    }

    /// Starts it (again) and waits for nothing.
    pub fn spawn(&mut self, testbed: &Testbed) -> Result<()> {
        let log = File::options()
            .create(true)
            .append(true)
            .open(self.log_path())?;
        let mut command = self.program(testbed)?;
        self.configure(&mut command);
        command.stdout(log.try_clone()?).stderr(log);
        self.child = Some(command.spawn().context("start the proxy")?);
        Ok(())
    }

    /// Has a process of its own give back what it has set, and waits for it.
    pub fn revert(&self, testbed: &Testbed) -> Result<Output> {
        let mut command = testbed.command(binary("koord-runtime-proxy")?);
        self.configure(&mut command);
        let output = command.arg("--revert").output();
        output.context("give back what the proxy has set")
    }

    fn configure(&self, command: &mut Command) {
        command
            .arg("--koord-runtimeproxy-endpoint")
            .arg(self.socket())
            .arg("--remote-runtime-service-endpoint")
            .arg(&self.runtime)
            .arg("--admin-endpoint")
            .arg(self.admin_socket())
            .arg("--state-dir")
            .arg(self.directory.join("state"))
            .arg("--cgroup-root")
            .arg(&self.cgroup_root)
            .arg("--node-name")
            .arg("node-1")
            .args((!self.options.as_shipped).then_some("--hold-timeout=20s"))
            .args(&self.options.args);
        match self.options.front {
            Front::Cri => {}
            Front::Nri => {
                command.args(["--front", "nri", "--nri-socket-path"]);
                command.arg(&self.nri_socket);
            }
            Front::Watch => {
                command.args(["--front", "watch"]);
            }
        }
        if self.options.policy.is_some() {
            command.arg("--node-policy").arg(self.policy_path());
        }
    }

    /// The program with its socket, if that is handed over to it.
    fn program(&self, testbed: &Testbed) -> Result<Command> {
        let program = binary("koord-runtime-proxy")?;
        let Some(handed) = &self.handed else {
            return Ok(testbed.command(program));
        };
        let mut shell = testbed.command("sh");
        shell.args(["-c", HAND_OVER, "sh"]).arg(program);
        shell.stdin(OwnedFd::from(handed.try_clone()?));
        Ok(shell)
    }

    /// The next start is with these arguments.
    pub fn set_args(&mut self, args: &[&str]) {
        self.options.args = args.iter().map(ToString::to_string).collect();
    }

    pub fn front(&self) -> Front {
        self.options.front
    }

    /// The socket that stands for the runtime's.
    pub fn socket(&self) -> PathBuf {
        let name = self.handed.as_ref().map_or("proxy.sock", |_| HANDED);
        self.directory.join(name)
    }

    pub fn admin_socket(&self) -> PathBuf {
        self.directory.join("admin").join("admin.sock")
    }

    pub fn policy_path(&self) -> PathBuf {
        self.directory.join("node-policy.yaml")
    }

    fn log_path(&self) -> PathBuf {
        self.directory.join("proxy.log")
    }

    /// All that it wrote.
    pub fn log(&self) -> String {
        std::fs::read_to_string(self.log_path()).unwrap_or_default()
    }

    /// Replaces the node policy file, by rename as an editor does.
    pub fn write_policy(&self, text: &str) -> Result<()> {
        let fresh = self.directory.join("node-policy.yaml.new");
        File::create(&fresh)?.write_all(text.as_bytes())?;
        Ok(std::fs::rename(fresh, self.policy_path())?)
    }

    /// Replaces one that the proxy can use, and waits until it has read this one, which it can use too.
    pub fn put_in_force(&self, policy: &str) -> Result<()> {
        wait_until("the first policy is read", || self.policy_loads() > 0.5);
        let before = self.policy_loads();
        self.write_policy(policy)?;
        wait_until("the policy is read", || self.policy_loads() > before + 0.5);
        Ok(())
    }

    /// How often it has read a policy that it could use.
    fn policy_loads(&self) -> f64 {
        let metric = "koord_runtime_proxy_policy_loads_total";
        self.metric(metric, &["ok"]).unwrap_or_default()
    }

    pub fn pid(&self) -> Option<u32> {
        self.child.as_ref().map(Child::id)
    }

    /// Sends SIGKILL and waits for nothing.
    pub fn send_kill(&self) -> Result<()> {
        self.send(Signal::KILL)
    }

    /// Asks it to stop and waits for nothing.
    pub fn send_stop(&self) -> Result<()> {
        self.send(Signal::TERM)
    }

    /// Has it stand still, whatever it is at.
    pub fn stand_still(&self) -> Result<()> {
        self.send(Signal::STOP)
    }

    /// Has it go on from where it stood.
    pub fn go_on(&self) -> Result<()> {
        self.send(Signal::CONT)
    }

    fn send(&self, signal: Signal) -> Result<()> {
        let id = self.pid().and_then(|id| i32::try_from(id).ok());
        let pid = id.and_then(Pid::from_raw).context("it runs")?;
        Ok(kill_process(pid, signal)?)
    }

    /// Kills it as the kernel's OOM killer would.
    pub fn kill9(&mut self) -> Result<()> {
        if self.child.is_none() {
            return Ok(());
        }
        self.send_kill()?;
        self.wait().map(drop)
    }

    /// Asks it to stop and gives its exit status.
    pub fn stop(&mut self) -> Result<ExitStatus> {
        self.send_stop()?;
        self.wait()
    }

    /// Waits for its end and gives its exit status.
    pub fn wait(&mut self) -> Result<ExitStatus> {
        let mut child = self.child.take().context("it was not running")?;
        Ok(child.wait()?)
    }

    /// Asks the admin socket: status code and body.
    pub fn admin(&self, method: &str, path: &str, body: &str) -> Result<(u16, String)> {
        let mut stream = UnixStream::connect(self.admin_socket())?;
        // HTTP/1.0: the body ends with the connection.
        write!(
            stream,
            "{method} {path} HTTP/1.0\r\ncontent-length: {}\r\n\r\n{body}",
            body.len()
        )?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply)?;
        let (head, body) = reply.split_once("\r\n\r\n").context("no HTTP reply")?;
        let code = head.split(' ').nth(1).context("no status")?.parse()?;
        Ok((code, body.to_owned()))
    }

    /// Switches a hook: `HOOK=on` or `HOOK=off`.
    pub fn switch(&self, hook: &str) -> Result<()> {
        let (code, reply) = self.admin("PUT", "/hooks", hook)?;
        ensure!(code == 200, "PUT /hooks of {hook} answered {code}: {reply}");
        Ok(())
    }

    /// What it says of itself.
    pub fn status(&self) -> Result<serde_json::Value> {
        let (code, body) = self.admin("GET", "/status", "")?;
        ensure!(code == 200, "GET /status answered {code}: {body}");
        Ok(serde_json::from_str(&body)?)
    }

    /// The ledger.
    pub fn ledger(&self) -> Result<serde_json::Value> {
        let (code, body) = self.admin("GET", "/ledger", "")?;
        ensure!(code == 200, "GET /ledger answered {code}: {body}");
        Ok(serde_json::from_str(&body)?)
    }

    /// Creations that this process has counted, of this result or of any.
    pub fn creations(&self, result: Option<&str>) -> Result<f64> {
        let result = result.map(|result| format!("result=\"{result}\""));
        let labels = [Some("method=\"CreateContainer\""), result.as_deref()];
        let labels: Vec<_> = labels.into_iter().flatten().collect();
        self.metric("koord_runtime_proxy_calls_total", &labels)
    }

    /// The sum of a metric over all its series whose text contains all of `labels`.
    pub fn metric(&self, name: &str, labels: &[&str]) -> Result<f64> {
        let (code, body) = self.admin("GET", "/metrics", "")?;
        ensure!(code == 200, "GET /metrics answered {code}: {body}");
        let mut sum = 0.0;
        for line in body.lines().filter(|line| !line.starts_with('#')) {
            let Some((series, value)) = line.rsplit_once(' ') else {
                continue;
            };
            let series_name = series.split('{').next().unwrap_or(series);
            if series_name == name && labels.iter().all(|label| series.contains(label)) {
                sum += value.parse::<f64>()?;
            }
        }
        Ok(sum)
    }
}

impl Drop for Proxy {
    fn drop(&mut self) {
        // The testbed's janitor kills what is left; here the process is only reaped.
        if let Some(mut child) = self.child.take() {
            drop(child.kill().and_then(|()| child.wait()));
        }
    }
}

/// A binary of this workspace: beside the running test or program, where cargo puts both.
pub fn binary(name: &str) -> Result<PathBuf> {
    let own = std::env::current_exe()?;
    let beside = own
        .ancestors()
        .skip(1)
        .map(|directory| directory.join(name))
        .take(3)
        .find(|path| path.is_file());
    beside.with_context(|| format!("{name} is not built: run `cargo build --workspace --bins`"))
}

//! A node of one proxy: a scripted runtime, and the proxy in front of it as a process.

#![allow(clippy::disallowed_methods, reason = "a test's own files")]

use super::{method, pod::SANDBOX, wire::Tree};
use bytes::Bytes;
use koord_testkit::{
    RawClient, RawReply, RawRequest,
    poll::wait_until,
    scripted::{Call, CallEnd, Gate, Otherwise, Reply, Script, ScriptedRuntime},
};
use std::{
    fs::{self, DirEntry},
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::net::{UnixDatagram, UnixListener, UnixStream},
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    time::Duration,
};
use tempfile::TempDir;

const PROXY: &str = env!("CARGO_BIN_EXE_koord-runtime-proxy");

/// Without it as an argument no handler is excluded: most tests create containers in sandboxes that
/// nobody has run, of which only a list could tell the handler.
const HANDLERS: &str = "--excluded-runtime-handlers=";

/// Long for a loaded machine.
pub const PATIENCE: Duration = Duration::from_secs(60);

/// The proxy and what is around it, all in one directory.
pub struct Node {
    pub runtime: Option<ScriptedRuntime>,
    script: Script,
    args: Vec<String>,
    /// The socket for clients, where it is not the proxy's own.
    handed: Option<UnixListener>,
    child: Reaped,
    dir: TempDir,
}

/// A process that does not outlive its test.
struct Reaped(Child);

/// A runtime that gives new sandboxes and containers an id and echoes everything else.
pub fn script() -> Script {
    let id = |id: &str| Reply::message(Tree::new().bytes(1, id).encode());
    Script::new(Otherwise::Echo)
        .always(method::RUN, id(SANDBOX))
        .always(method::CREATE, id("container-1"))
        .always(method::START, Reply::message(Bytes::new()))
}

/// The same, whose first list alone is answered, with nothing: a later one, which comes within
/// seconds, would say that what was made meanwhile is not there.
pub fn listed_once() -> Script {
    let nothing = Reply::message(Bytes::new());
    script()
        .once(method::LIST, nothing.clone())
        .always(method::LIST, nothing.held(&Gate::new()))
}

// === impl Node ===

impl Node {
    /// A proxy before the runtime of [`script`].
    pub fn start() -> Self {
        Self::with(script(), &[])
    }

    /// A proxy before this runtime, once it has said that it is ready and listed the runtime.
    pub fn with(script: Script, args: &[&str]) -> Self {
        Self::below(tempfile::tempdir().unwrap(), script, args, None)
    }

    /// The same with a socket for clients that is handed over, as systemd does it, and stays.
    pub fn handed(script: Script, args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        fs::create_dir(dir.path().join("proxy")).unwrap();
        let listener = UnixListener::bind(dir.path().join("proxy/proxy.sock")).unwrap();
        Self::below(dir, script, args, Some(listener))
    }

    fn below(dir: TempDir, script: Script, args: &[&str], handed: Option<UnixListener>) -> Self {
        let socket = dir.path().join("runtime.sock");
        let runtime = ScriptedRuntime::listen(&socket, script.clone()).unwrap();
        let args: Vec<String> = args.iter().map(|&arg| arg.to_owned()).collect();
        let node = Self {
            runtime: Some(runtime),
            script,
            child: launch(dir.path(), &args, handed.as_ref()),
            args,
            handed,
            dir,
        };
        node.wait_until_ready();
        node
    }

    /// A proxy whose runtime is whatever the test puts at `runtime.sock`.
    pub fn without_runtime(args: &[&str]) -> Self {
        let mut node = Self::with(script(), args);
        node.runtime = None;
        node
    }

    /// A proxy that is to be the plugin of whatever runtime the test puts at `nri.sock`. There is no
    /// other socket of a runtime, so what is told is all that there is.
    pub fn plugin(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("nri.sock");
        let mut all = vec!["--front=nri".to_owned()];
        all.push(format!("--nri-socket-path={}", socket.display()));
        all.extend(args.iter().map(|&arg| arg.to_owned()));
        Self {
            runtime: None,
            script: script(),
            child: launch(dir.path(), &all, None),
            args: all,
            handed: None,
            dir,
        }
    }

    /// Waits until the proxy is ready, which it is once the runtime was listed.
    pub fn wait_until_ready(&self) {
        wait_until("the proxy is ready", || self.is_ready());
    }

    pub fn is_ready(&self) -> bool {
        self.try_ask("/readyz").is_some_and(|(code, _)| code == 200)
    }

    /// Starts the process again.
    pub fn restart(&mut self) {
        self.child = launch(self.dir.path(), &self.args, self.handed.as_ref());
    }

    /// Puts the runtime where it was, with the same script and record.
    pub fn runtime_returns(&mut self) {
        let socket = self.path("runtime.sock");
        self.runtime = Some(ScriptedRuntime::listen(&socket, self.script.clone()).unwrap());
    }

    pub fn script(&self) -> &Script {
        &self.script
    }

    pub fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The socket that stands for the runtime's.
    pub fn socket(&self) -> PathBuf {
        self.path("proxy/proxy.sock")
    }

    /// A client of the proxy.
    pub async fn client(&self) -> RawClient {
        RawClient::connect(&self.socket()).await.unwrap()
    }

    /// A client of the runtime itself.
    pub async fn direct(&self) -> RawClient {
        RawClient::connect(&self.path("runtime.sock"))
            .await
            .unwrap()
    }

    /// One call through the proxy on a connection of its own.
    pub async fn call(&self, request: RawRequest) -> RawReply {
        self.client().await.call(request).await.unwrap()
    }

    /// What the runtime was sent by this method, in order of arrival.
    pub fn calls(&self, method: &str) -> Vec<Call> {
        let mut calls = self.script.calls();
        calls.retain(|call| call.path == method);
        calls
    }

    /// The same, once so many of them have ended.
    pub fn ended_calls(&self, method: &str, count: usize) -> Vec<Call> {
        wait_until(&format!("{count} calls of {method}"), || {
            let calls = self.calls(method);
            calls
                .iter()
                .filter(|call| call.end != CallEnd::Open)
                .count()
                >= count
        });
        self.calls(method)
    }

    /// The one message of the last call of this method.
    pub fn arrived(&self, method: &str) -> Bytes {
        let mut calls = self.calls(method);
        let call = calls.pop().unwrap_or_else(|| panic!("no call of {method}"));
        assert_eq!(call.end, CallEnd::Complete);
        assert_eq!(call.messages.len(), 1);
        assert!(!call.messages[0].compressed && call.rest.is_empty());
        call.messages[0].message.clone()
    }

    /// Everything that the proxy has logged.
    pub fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    /// The value of the series with exactly these labels, such as `connections_open` or
    /// `mode{mode="enforce"}`; 0 when nothing was counted yet.
    pub fn metric(&self, series: &str) -> u64 {
        let (code, text) = self.try_ask("/metrics").expect("it serves");
        assert_eq!(code, 200);
        value(&text, series)
    }

    pub fn ledger(&self) -> serde_json::Value {
        let (code, text) = self.try_ask("/ledger").expect("it serves");
        assert_eq!(code, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    pub fn status(&self) -> serde_json::Value {
        let (code, text) = self.try_ask("/status").expect("it serves");
        assert_eq!(code, 200, "{text}");
        serde_json::from_str(&text).unwrap()
    }

    /// Status and body of a page of the admin socket; `None` while nobody listens.
    fn try_ask(&self, page: &str) -> Option<(u16, String)> {
        let mut stream = UnixStream::connect(self.path("admin/admin.sock")).ok()?;
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // HTTP/1.0: the body ends with the connection.
        write!(stream, "GET {page} HTTP/1.0\r\n\r\n").ok()?;
        let mut reply = String::new();
        stream.read_to_string(&mut reply).ok()?;
        let (head, body) = reply.split_once("\r\n\r\n")?;
        let code = head.split(' ').nth(1)?.parse().ok()?;
        Some((code, body.to_owned()))
    }

    /// What the binary says to these arguments, with the same places.
    pub fn ask(&self, args: &[&str]) -> Output {
        command(self.dir.path()).args(args).output().unwrap()
    }

    /// The number of the proxy's process.
    pub fn id(&self) -> u32 {
        self.child.0.id()
    }

    /// The names of the proxy's threads.
    pub fn threads(&self) -> Vec<String> {
        let threads = fs::read_dir(format!("/proc/{}/task", self.child.0.id())).unwrap();
        let name = |thread: io::Result<DirEntry>| {
            fs::read_to_string(thread.ok()?.path().join("comm")).ok()
        };
        // One that has ended meanwhile has none.
        let names = threads.filter_map(name);
        names.map(|name| name.trim_end().to_owned()).collect()
    }

    /// Resident memory of the proxy.
    pub fn resident_kib(&self) -> u64 {
        self.memory_kib("VmRSS:")
    }

    /// The most that it ever had resident.
    pub fn peak_kib(&self) -> u64 {
        self.memory_kib("VmHWM:")
    }

    fn memory_kib(&self, name: &str) -> u64 {
        let status = fs::read_to_string(format!("/proc/{}/status", self.child.0.id())).unwrap();
        let line = status.lines().find_map(|line| line.strip_prefix(name));
        let kib = line.unwrap().trim().split(' ').next().unwrap();
        kib.parse().unwrap()
    }

    /// Sends a signal by its name, such as `-TERM`.
    pub fn signal(&self, name: &str) {
        let status = Command::new("kill")
            .args([name, &self.child.0.id().to_string()])
            .status()
            .unwrap();
        assert!(status.success());
    }

    /// Waits until the process has ended.
    pub fn ended(&mut self) -> ExitStatus {
        let mut status = None;
        wait_until("the end of the proxy", || {
            status = self.child.0.try_wait().unwrap();
            status.is_some()
        });
        status.unwrap()
    }

    /// Whether it has ended, for those who go on until then.
    pub fn has_ended(&mut self) -> bool {
        self.child.0.try_wait().unwrap().is_some()
    }
}

/// The value of a series in the text of all metrics; 0 when it is not there.
pub fn value(metrics: &str, series: &str) -> u64 {
    let start = format!("koord_runtime_proxy_{series} ");
    let value = metrics.lines().find_map(|line| line.strip_prefix(&start));
    value.map_or(0, |value| value.parse().unwrap())
}

impl Drop for Reaped {
    fn drop(&mut self) {
        // Some tests have seen it end already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// Starts the binary, told to stay within `dir`, and waits until it says that it is ready.
fn launch(dir: &Path, args: &[String], handed: Option<&UnixListener>) -> Reaped {
    let notify = dir.join("notify");
    fs::remove_file(&notify).ok();
    let manager = UnixDatagram::bind(&notify).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let log = fs::File::options()
        .create(true)
        .append(true)
        .open(dir.join("log"))
        .unwrap();
    let excludes = args.iter().any(|arg| arg.starts_with(HANDLERS));
    let mut command = match handed {
        Some(listener) => with_socket(listener),
        None => {
            let mut command = Command::new(PROXY);
            command.stdin(Stdio::null());
            command
        }
    };
    let child = command
        .args(flags(dir))
        .args((!excludes).then_some(HANDLERS))
        .args(args)
        .env_clear()
        .env("NOTIFY_SOCKET", &notify)
        .stdout(Stdio::null())
        .stderr(log)
        .spawn()
        .unwrap();
    let child = Reaped(child);
    let mut told = [0; 64];
    let length = manager.recv(&mut told).expect("it says that it is ready");
    assert!(told[..length].starts_with(b"READY=1\n"));
    child
}

/// The binary, told to stay within `dir`, to ask something of who runs there or to be run once.
pub fn command(dir: &Path) -> Command {
    let mut command = Command::new(PROXY);
    command.args(flags(dir)).env_clear().stdin(Stdio::null());
    command
}

fn flags(dir: &Path) -> Vec<String> {
    let paths = [
        ("koord-runtimeproxy-endpoint", "proxy/proxy.sock"),
        ("remote-runtime-service-endpoint", "runtime.sock"),
        ("admin-endpoint", "admin/admin.sock"),
        ("state-dir", "state"),
        ("hook-server-dir", "hookserver.d"),
    ];
    let mut flags: Vec<_> = paths
        .iter()
        .map(|(name, path)| format!("--{name}={}", dir.join(path).display()))
        .collect();
    flags.extend(["--node-name=node-1", "--cgroup-root=/no-such-root"].map(str::to_owned));
    flags
}

/// The binary with a socket that is descriptor 3, of which the environment says so by the process's own
/// id.
fn with_socket(listener: &UnixListener) -> Command {
    let script = "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"";
    let mut shell = Command::new("sh");
    shell.args(["-c", script, "sh", PROXY]);
    shell.stdin(OwnedFd::from(listener.try_clone().unwrap()));
    shell
}

//! The proxy as a process: its command line, its sockets, signals and exit codes. No runtime is
//! needed, because the proxy needs none to start.
#![forbid(unsafe_code)]
#![expect(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test's own files, and its own failures"
)]

mod handed;

use rustix::fs::{CWD, FileType, Mode};
use std::{
    fs,
    io::{self, Read, Write},
    os::{
        fd::OwnedFd,
        unix::{
            fs::PermissionsExt,
            net::{UnixDatagram, UnixListener, UnixStream},
        },
    },
    path::{Path, PathBuf},
    process::{Child, Command, ExitStatus, Output, Stdio},
    thread,
    time::{Duration, Instant},
};
use tempfile::TempDir;

const PROXY: &str = env!("CARGO_BIN_EXE_koord-runtime-proxy");

/// Long for a loaded machine.
const PATIENCE: Duration = Duration::from_secs(30);

/// A proxy of our own: everything that it touches is in one directory.
struct Proxy {
    dir: TempDir,
    child: Reaped,
    /// What it tells its service manager.
    manager: UnixDatagram,
}

/// A process that does not outlive its test.
struct Reaped(Child);

impl Proxy {
    /// Starts it and waits until it says that it is ready.
    fn start(args: &[&str]) -> Self {
        let dir = tempfile::tempdir().unwrap();
        let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        let child = command(dir.path())
            .args(args)
            .env("NOTIFY_SOCKET", dir.path().join("notify"))
            .stderr(fs::File::create(dir.path().join("log")).unwrap())
            .spawn()
            .unwrap();
        let proxy = Self {
            dir,
            child: Reaped(child),
            manager,
        };
        let ready = proxy.told();
        assert!(ready.starts_with("READY=1\n"), "{ready}\n{}", proxy.log());
        proxy
    }

    fn told(&self) -> String {
        told(&self.manager)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    fn log(&self) -> String {
        fs::read_to_string(self.path("log")).unwrap()
    }

    fn signal(&self, name: &str) {
        signal(&self.child.0, name);
    }

    fn ended(&mut self) -> ExitStatus {
        ended(&mut self.child.0)
    }

    fn ask(&self, question: &[&str]) -> Output {
        command(self.dir.path()).args(question).output().unwrap()
    }

    fn restart(&mut self) {
        let log = fs::File::options()
            .append(true)
            .open(self.path("log"))
            .unwrap();
        let child = command(self.dir.path())
            .env("NOTIFY_SOCKET", self.path("notify"))
            .stderr(log)
            .spawn()
            .unwrap();
        self.child = Reaped(child);
        let ready = self.told();
        assert!(ready.starts_with("READY=1\n"), "{ready}\n{}", self.log());
    }

    fn mode(&self) -> String {
        let metrics = String::from_utf8(self.ask(&["get", "/metrics"]).stdout).unwrap();
        let series = "koord_runtime_proxy_mode{mode=\"";
        let mut modes = metrics.lines().filter_map(|line| line.strip_prefix(series));
        modes.next().unwrap().split('"').next().unwrap().to_owned()
    }
}

impl Drop for Reaped {
    fn drop(&mut self) {
        // Most tests have seen it end already.
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

/// What a service manager was told next.
fn told(manager: &UnixDatagram) -> String {
    let mut buffer = [0; 512];
    loop {
        match manager.recv(&mut buffer) {
            Ok(length) => return String::from_utf8(buffer[..length].to_vec()).unwrap(),
            // A receive with a timeout is not taken up again by the kernel after a signal.
            Err(error) if error.kind() == io::ErrorKind::Interrupted => {}
            Err(error) => panic!("the service manager is told nothing: {error}"),
        }
    }
}

fn signal(child: &Child, name: &str) {
    let status = Command::new("kill")
        .args([name, &child.id().to_string()])
        .status()
        .unwrap();
    assert!(status.success());
}

/// The binary, told to stay within `dir`.
fn command(dir: &Path) -> Command {
    command_with_state(dir, &dir.join("state"))
}

/// The binary, told to stay within `dir` but for its state.
fn command_with_state(dir: &Path, state: &Path) -> Command {
    let mut command = Command::new(PROXY);
    let flag = |name: &str, path: &str| format!("--{name}={}", dir.join(path).display());
    command
        .arg(flag("koord-runtimeproxy-endpoint", "proxy/proxy.sock"))
        .arg(flag("remote-runtime-service-endpoint", "runtime.sock"))
        .arg(flag("admin-endpoint", "admin/admin.sock"))
        .arg(format!("--state-dir={}", state.display()))
        .arg(flag("hook-server-dir", "hookserver.d"))
        .arg("--node-name=node-1")
        .env_clear()
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped());
    command
}

fn ended(child: &mut Child) -> ExitStatus {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait().unwrap() {
            return status;
        }
        assert!(start.elapsed() < PATIENCE, "it does not end");
        thread::sleep(Duration::from_millis(10));
    }
}

fn refused(args: &[&str]) -> (Option<i32>, String) {
    let dir = tempfile::tempdir().unwrap();
    let output = command(dir.path()).args(args).output().unwrap();
    let entries = fs::read_dir(dir.path()).unwrap().count();
    assert_eq!(entries, 0, "it touched something");
    let said = String::from_utf8(output.stderr).unwrap();
    (output.status.code(), said)
}

fn mode(path: &Path) -> u32 {
    path.metadata().unwrap().permissions().mode() & 0o7777
}

#[test]
fn docker_mode_is_refused_with_a_reason() {
    let (code, said) = refused(&["--backend-runtime-mode=Docker"]);
    assert_eq!(code, Some(64));
    assert!(said.contains("Docker mode is not supported"), "{said}");
}

#[test]
fn several_bad_keys_are_reported_together() {
    let (code, said) = refused(&["--front=kubelet", "--mode=on", "--grace-period=1"]);
    assert_eq!(code, Some(64));
    let flags: Vec<_> = said
        .lines()
        .filter_map(|line| line.split(' ').next())
        .collect();
    assert_eq!(flags, ["--front", "--mode", "--grace-period"], "{said}");
}

#[test]
fn two_sockets_of_ours_at_one_path_are_a_usage_error() {
    let (code, said) = refused(&[
        "--koord-runtimeproxy-endpoint=/nonexistent/a.sock",
        "--admin-endpoint=/nonexistent/a.sock",
    ]);
    assert_eq!(code, Some(64));
    let reason = "--koord-runtimeproxy-endpoint is at the same path";
    assert!(said.starts_with("--admin-endpoint cannot be"), "{said}");
    assert!(said.contains(reason), "{said}");
}

#[test]
fn a_key_without_its_certificate_is_a_usage_error_that_names_both() {
    let (code, said) = refused(&["--kubelet-client-key=/nonexistent/key.pem"]);
    assert_eq!(code, Some(64));
    assert!(said.starts_with("--kubelet-client-key cannot be"), "{said}");
    let reason = "the key of --kubelet-client-certificate, and none is given";
    assert!(said.contains(reason), "{said}");
}

#[test]
fn a_flag_that_is_not_known_is_refused() {
    let (code, said) = refused(&["--no-such-flag"]);
    assert_eq!(code, Some(64));
    assert!(said.contains("--no-such-flag"), "{said}");
}

#[test]
fn help_names_every_key_and_is_no_failure() {
    let output = Command::new(PROXY).arg("--help").output().unwrap();
    assert!(output.status.success());
    let help = String::from_utf8(output.stdout).unwrap();
    for key in koord_runtime_proxy::config::KEYS {
        assert!(help.contains(&format!("--{}", key.name)), "{}", key.name);
    }
}

#[test]
fn hook_servers_that_register_are_named_as_not_served() {
    let registered = tempfile::tempdir().unwrap();
    let server = registered.path().join("koordlet.json");
    fs::write(&server, "{}").unwrap();
    fs::write(registered.path().join("README"), "").unwrap();
    let dir = format!("--hook-server-dir={}", registered.path().display());
    let proxy = Proxy::start(&[&dir]);
    let status = proxy.ask(&["status", "--json"]).stdout;
    let status: serde_json::Value = serde_json::from_slice(&status).unwrap();
    let mut remarks = status["remarks"].as_array().unwrap().clone();
    remarks.retain(|remark| remark.as_str().unwrap().contains("hook server"));
    let remark = format!("hook server {} is not served yet", server.display());
    assert_eq!(remarks, [remark.as_str()]);
    let log = proxy.log();
    let lines = log.lines().filter(|line| line.contains("WARN"));
    let mut told = lines.filter(|line| line.contains("hook servers are not served yet"));
    let line = told
        .next()
        .unwrap_or_else(|| panic!("nothing is told: {log}"));
    assert!(
        line.ends_with(&format!("path={}", server.display())),
        "{line}"
    );
    assert_eq!(told.next(), None);
}

#[test]
fn a_stop_by_signal_is_told_and_leaves_no_socket() {
    for signal in ["-TERM", "-INT"] {
        let mut proxy = Proxy::start(&[]);
        let sockets = [
            proxy.path("proxy/proxy.sock"),
            proxy.path("admin/admin.sock"),
        ];
        for socket in &sockets {
            assert_eq!(mode(socket), 0o600);
        }
        assert_eq!(mode(&proxy.path("admin")), 0o700);
        proxy.signal(signal);
        assert!(proxy.told().starts_with("STOPPING=1\n"));
        assert_eq!(proxy.ended().code(), Some(0), "{}", proxy.log());
        assert!(sockets.iter().all(|socket| !socket.exists()));
    }
}

#[test]
fn a_second_signal_does_not_wait_for_calls_in_flight() {
    // A runtime that takes connections and says nothing, so that nothing drains.
    let mut proxy = Proxy::start(&["--grace-period=10m"]);
    let runtime = UnixListener::bind(proxy.path("runtime.sock")).unwrap();
    let mut client = UnixStream::connect(proxy.path("proxy/proxy.sock")).unwrap();
    let call = call_that_is_never_answered();
    client.write_all(&call).unwrap();
    let _connections = served_until(&runtime, &call);
    proxy.signal("-TERM");
    assert!(proxy.told().starts_with("STOPPING=1\n"));
    proxy.signal("-TERM");
    assert_eq!(proxy.ended().code(), Some(0), "{}", proxy.log());
    // So it was still there when the second came.
    assert!(
        proxy.log().contains("asked to stop again"),
        "{}",
        proxy.log()
    );
}

/// Serves connections until one begins with these bytes; the proxy has some of its own, for lists.
fn served_until(runtime: &UnixListener, call: &[u8]) -> Vec<UnixStream> {
    let mut connections = Vec::new();
    loop {
        let (mut served, _) = runtime.accept().unwrap();
        served.set_read_timeout(Some(PATIENCE)).unwrap();
        let mut seen = vec![0; call.len()];
        served.read_exact(&mut seen).unwrap();
        connections.push(served);
        if seen == call {
            return connections;
        }
    }
}

/// An HTTP/2 preface, empty SETTINGS, and a request of `/a` without a body's end.
fn call_that_is_never_answered() -> Vec<u8> {
    let mut bytes = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n".to_vec();
    bytes.extend([0, 0, 0, 4, 0, 0, 0, 0, 0]);
    // HEADERS, END_HEADERS, stream 1: POST, http, literal :path /a, literal :authority x.
    let block = [0x83, 0x86, 0x04, 2, b'/', b'a', 0x01, 1, b'x'];
    bytes.extend([0, 0, 9, 1, 4, 0, 0, 0, 1]);
    bytes.extend(block);
    bytes
}

#[test]
fn a_second_proxy_on_the_same_socket_is_refused_and_the_first_stays() {
    let proxy = Proxy::start(&[]);
    let state = proxy.path("state of another");
    let second = || {
        command_with_state(proxy.dir.path(), &state)
            .output()
            .unwrap()
    };
    let refused = second();
    assert_eq!(refused.status.code(), Some(1));
    let said = String::from_utf8(refused.stderr).unwrap();
    assert!(said.contains("another process is about to serve"), "{said}");
    assert!(UnixStream::connect(proxy.path("proxy/proxy.sock")).is_ok());
    assert!(UnixStream::connect(proxy.path("admin/admin.sock")).is_ok());
    // Being refused is no crash: a fourth does not take itself for one in a crash loop.
    for _ in 0..3 {
        let said = String::from_utf8(second().stderr).unwrap();
        assert!(!said.contains("hooks off"), "{said}");
    }
}

#[test]
fn a_second_proxy_with_the_same_state_directory_is_refused_and_a_killed_one_is_in_nobodys_way() {
    let mut proxy = Proxy::start(&[]);
    let state = proxy.path("state");
    let elsewhere = tempfile::tempdir().unwrap();
    let mut second = Reaped(
        command_with_state(elsewhere.path(), &state)
            .spawn()
            .unwrap(),
    );
    assert_eq!(ended(&mut second.0).code(), Some(1));
    let mut said = String::new();
    let stderr = second.0.stderr.as_mut().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    let refusal = format!(
        "another process (pid {}) uses the state directory {}: each proxy needs a --state-dir of \
         its own",
        proxy.child.0.id(),
        state.display()
    );
    assert!(said.contains(&refusal), "{said}");
    assert_eq!(fs::read_dir(elsewhere.path()).unwrap().count(), 0);
    proxy.signal("-KILL");
    proxy.ended();
    proxy.restart();
}

#[test]
fn giving_back_goes_with_no_question() {
    let (code, said) = refused(&["--revert", "status"]);
    assert_eq!(code, Some(64));
    assert!(said.contains("--revert goes with no question"), "{said}");
}

#[test]
fn a_reader_that_has_seen_enough_is_no_failure() {
    let proxy = Proxy::start(&[]);
    let mut asking = command(proxy.dir.path())
        .args(["get", "/metrics"])
        .spawn()
        .unwrap();
    drop(asking.stdout.take());
    assert_eq!(ended(&mut asking).code(), Some(0));
}

#[test]
fn a_hook_is_switched_off_and_on_by_name() {
    let proxy = Proxy::start(&[]);
    let hook = |of: &serde_json::Value, name: &str| {
        let mut hooks = of["hooks"].as_array().unwrap().iter();
        hooks.find(|hook| hook["name"] == name).unwrap().clone()
    };
    let status = || {
        let said = proxy.ask(&["status", "--json"]).stdout;
        serde_json::from_slice::<serde_json::Value>(&said).unwrap()
    };
    for (state, off) in [("off", true), ("on", false)] {
        let answer = proxy.ask(&["hook", "CPUBurst", state]);
        assert_eq!(answer.stdout, b"ok\n");
        let said = hook(&status(), "CPUBurst");
        assert_eq!(said["switchedOff"].is_string(), off, "{said}");
        assert!(hook(&status(), "BatchResource")["switchedOff"].is_null());
    }
    let unknown = proxy.ask(&["hook", "cpuburst", "off"]);
    assert_eq!(unknown.status.code(), Some(1));
    let said = String::from_utf8(unknown.stdout).unwrap();
    assert!(said.contains("no hook \"cpuburst\" here"), "{said}");
    assert_eq!(
        proxy.ask(&["hook", "CPUBurst", "maybe"]).status.code(),
        Some(64)
    );
}

#[test]
fn questions_are_answered_while_it_runs_and_refused_when_it_does_not() {
    let mut proxy = Proxy::start(&["--mode=observe"]);
    let status = proxy.ask(&["status"]);
    assert!(status.status.success());
    let table = String::from_utf8(status.stdout).unwrap();
    let words = |line: &str| line.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(
        table.lines().map(words).any(|line| line == "mode observe"),
        "{table}"
    );

    let ledger = proxy.ask(&["ledger", "--json"]);
    assert_eq!(
        String::from_utf8(ledger.stdout).unwrap().trim(),
        "{\"leftSettings\":[],\"pods\":[],\"node\":[]}"
    );
    assert_eq!(
        proxy.ask(&["explain", "no-such-pod"]).status.code(),
        Some(1)
    );
    let node = proxy.ask(&["explain", "node"]);
    assert_eq!(node.stdout, b"nothing is decided\n");
    assert!(node.status.success());
    // There is no runtime.
    assert_eq!(proxy.ask(&["health"]).status.code(), Some(1));

    assert!(proxy.ask(&["log", "debug"]).status.success());
    let filter = proxy.ask(&["log"]).stdout;
    assert_eq!(String::from_utf8(filter).unwrap().trim(), "debug");
    assert_eq!(proxy.ask(&["log", "a=b=c"]).status.code(), Some(1));

    let metrics = String::from_utf8(proxy.ask(&["get", "/metrics"]).stdout).unwrap();
    assert!(
        metrics.contains("koord_runtime_proxy_mode{mode=\"observe\"} 1"),
        "{metrics}"
    );

    proxy.signal("-TERM");
    proxy.ended();
    let gone = proxy.ask(&["status"]);
    assert_eq!(gone.status.code(), Some(1));
    let said = String::from_utf8(gone.stderr).unwrap();
    assert!(said.contains("cannot reach a proxy at"), "{said}");
}

#[test]
fn signals_that_mean_nothing_end_nothing() {
    let mut proxy = Proxy::start(&[]);
    for name in ["-USR1", "-USR2", "-ALRM", "-VTALRM", "-PROF", "-XFSZ"] {
        proxy.signal(name);
    }
    proxy.signal("-TERM");
    assert_eq!(proxy.ended().code(), Some(0));
}

#[test]
fn a_hangup_reads_the_policy_again_and_ends_nothing() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy.yaml");
    fs::write(&policy, "").unwrap();
    let proxy = Proxy::start(&[&format!("--node-policy={}", policy.display())]);
    let loads = || {
        let metrics = String::from_utf8(proxy.ask(&["get", "/metrics"]).stdout).unwrap();
        metrics
            .lines()
            .filter(|line| line.starts_with("koord_runtime_proxy_policy_loads_total"))
            .map(|line| line.rsplit(' ').next().unwrap().parse::<u64>().unwrap())
            .sum::<u64>()
    };
    assert_eq!(loads(), 1);
    proxy.signal("-HUP");
    let start = Instant::now();
    while loads() < 2 {
        assert!(start.elapsed() < PATIENCE, "{}", proxy.log());
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn three_crashes_in_a_minute_lead_to_pass_through_and_a_clean_stop_leads_back() {
    let mut proxy = Proxy::start(&[]);
    for _ in 0..3 {
        proxy.signal("-KILL");
        proxy.ended();
        proxy.restart();
    }
    assert_eq!(proxy.mode(), "pass-through");
    // It lists nothing, so a runtime that does not answer is no reason to be unready.
    assert!(proxy.ask(&["health"]).status.success());
    let status = String::from_utf8(proxy.ask(&["status", "--json"]).stdout).unwrap();
    assert!(status.contains("ended badly"), "{status}");
    assert!(proxy.log().contains("hooks off"), "{}", proxy.log());
    // A start that is refused has seen no clean stop: the three and this one stay noted.
    let refused = command(proxy.dir.path()).output().unwrap();
    assert_eq!(refused.status.code(), Some(1));
    let notes = fs::read(proxy.path("state/starts.json")).unwrap();
    let notes: serde_json::Value = serde_json::from_slice(&notes).unwrap();
    assert_eq!(notes["uncleanStartsMs"].as_array().unwrap().len(), 4);
    proxy.signal("-TERM");
    assert!(proxy.told().starts_with("STOPPING=1\n"));
    proxy.ended();
    proxy.restart();
    assert_eq!(proxy.mode(), "enforce");
}

#[test]
fn a_node_whose_control_groups_cannot_be_used_is_passed_through_and_told() {
    let proxy = Proxy::start(&["--cgroup-mount=/no-such-mount"]);
    assert_eq!(proxy.mode(), "pass-through");
    assert!(proxy.ask(&["health"]).status.success());
    let status = String::from_utf8(proxy.ask(&["status", "--json"]).stdout).unwrap();
    let why = "cannot look for control groups in /no-such-mount: No such file or directory";
    assert!(status.contains(why), "{status}");
    assert!(proxy.log().contains("hooks off"), "{}", proxy.log());
    // Nothing is asked of the runtime, so nothing is known of it.
    assert!(status.contains("\"runtimeUp\":null"), "{status}");
    let metrics = String::from_utf8(proxy.ask(&["get", "/metrics"]).stdout).unwrap();
    assert!(
        !metrics.contains("koord_runtime_proxy_runtime_up"),
        "{metrics}"
    );
}

/// A pipe that nobody writes to: who opens it as a file waits for ever.
fn named_pipe(dir: &Path) -> PathBuf {
    let path = dir.join("pipe");
    let mode = Mode::RUSR | Mode::WUSR;
    rustix::fs::mknodat(CWD, &path, FileType::Fifo, mode, 0).unwrap();
    path
}

#[test]
fn a_named_pipe_in_place_of_the_configuration_is_refused() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = named_pipe(dir.path());
    let mut command = command(dir.path());
    command.arg(format!("--config={}", pipe.display()));
    let mut child = Reaped(command.spawn().unwrap());
    assert_eq!(ended(&mut child.0).code(), Some(64));
    let mut said = String::new();
    let stderr = child.0.stderr.as_mut().unwrap();
    stderr.read_to_string(&mut said).unwrap();
    let pipe = pipe.display();
    let reason =
        format!("{pipe} cannot be read: it is a named pipe, and only a regular file is read");
    assert!(said.contains(&reason), "{said}");
}

#[test]
fn a_named_pipe_in_place_of_the_policy_holds_up_no_start() {
    let dir = tempfile::tempdir().unwrap();
    let pipe = named_pipe(dir.path());
    let proxy = Proxy::start(&[&format!("--node-policy={}", pipe.display())]);
    let table = String::from_utf8(proxy.ask(&["policy"]).stdout).unwrap();
    let pipe = pipe.display();
    let reason = format!("cannot read {pipe}: it is a named pipe");
    assert!(table.contains(&reason), "{table}");
    let log = proxy.log();
    assert!(log.contains("it is a named pipe"), "{log}");
    let told = "the node policy cannot be used; there is none in force";
    assert!(log.contains(told), "{log}");
}

#[test]
fn a_policy_of_other_nodes_alone_is_told_with_our_name() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy.yaml");
    fs::write(
        &policy,
        "{apiVersion: v1, kind: Node, metadata: {name: other}}\n",
    )
    .unwrap();
    let proxy = Proxy::start(&[&format!("--node-policy={}", policy.display())]);
    let said = String::from_utf8(proxy.ask(&["policy"]).stdout).unwrap();
    let lines = said.lines().map(|line| {
        let words: Vec<_> = line.split_whitespace().collect();
        words.join(" ")
    });
    assert_eq!(
        lines.collect::<Vec<_>>(),
        ["inForce -", "issues -", "node node-1", "otherNodes 1"]
    );
    let told = "the node policy is about other nodes alone node=\"node-1\" other_nodes=1";
    assert!(proxy.log().contains(told), "{}", proxy.log());
}

#[test]
fn what_is_wrong_with_the_policy_is_told_with_its_reason() {
    let dir = tempfile::tempdir().unwrap();
    let policy = dir.path().join("policy.yaml");
    let wrong = "{apiVersion: slo.koordinator.sh/v1alpha1, kind: NodeSLO, \
                 metadata: {name: node-1}, spec: {resourceQOSStrategy: 7}}\n";
    fs::write(&policy, wrong).unwrap();
    let proxy = Proxy::start(&[&format!("--node-policy={}", policy.display())]);
    let said = String::from_utf8(proxy.ask(&["policy", "--json"]).stdout).unwrap();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    assert_eq!(said["inForce"], serde_json::json!(["NodeSLO"]));
    assert_eq!(said["error"], serde_json::Value::Null);
    let remarks = || String::from_utf8(proxy.ask(&["status"]).stdout).unwrap();
    let wrong = "parts of the policy are wrong and not in force, 1 of them: `policy` says which";
    assert!(remarks().contains(wrong), "{}", remarks());
    let issue = said["issues"][0].as_str().unwrap();
    assert!(
        issue.contains("spec.resourceQOSStrategy") && issue.contains("value is"),
        "{issue}"
    );
    fs::remove_file(&policy).unwrap();
    let start = Instant::now();
    loop {
        let table = String::from_utf8(proxy.ask(&["policy"]).stdout).unwrap();
        if table.contains("No such file or directory") {
            break;
        }
        assert!(start.elapsed() < PATIENCE, "{table}");
        thread::sleep(Duration::from_millis(10));
    }
}

#[test]
fn of_many_issues_a_hundred_are_told_and_how_many_more_there_are() {
    let dir = tempfile::tempdir().unwrap();
    let (policy, pods) = (dir.path().join("policy.yaml"), dir.path().join("pods.json"));
    let applications = "{name: x, qos: Gold},".repeat(101);
    let slo = format!(
        "{{apiVersion: slo.koordinator.sh/v1alpha1, kind: NodeSLO, metadata: {{name: node-1}}, \
         spec: {{hostApplications: [{applications}]}}}}"
    );
    fs::write(&policy, slo).unwrap();
    let nameless = r#"{"metadata":{}}"#;
    let nameless = format!("{nameless}{}", format!(",{nameless}").repeat(149));
    fs::write(&pods, format!(r#"{{"kind":"List","items":[{nameless}]}}"#)).unwrap();
    let proxy = Proxy::start(&[
        &format!("--node-policy={}", policy.display()),
        &format!("--pods={}", pods.display()),
    ]);
    let said = String::from_utf8(proxy.ask(&["status", "--json"]).stdout).unwrap();
    let said: serde_json::Value = serde_json::from_str(&said).unwrap();
    let told = |of: &str| {
        let issues = said[of]["issues"].as_array().unwrap();
        (issues.len(), said[of]["moreIssues"].as_u64())
    };
    assert_eq!(told("policy"), (100, Some(1)));
    assert_eq!(told("pods"), (100, Some(50)));
    let wrong = "parts of the policy are wrong and not in force, 101 of them: `policy` says which";
    let remarks = said["remarks"].as_array().unwrap();
    assert!(remarks.iter().any(|it| it == wrong), "{remarks:?}");
    let log = proxy.log();
    let lines = |what: &str| log.lines().filter(|line| line.contains(what)).count();
    assert_eq!(lines("a part of the node policy is not in force"), 20);
    // Those of the pods all read the same.
    assert_eq!(
        lines("a part of what the source of pods says is left out"),
        1
    );
}

#[test]
fn each_reason_why_a_source_of_pods_cannot_be_used_is_told() {
    let dir = tempfile::tempdir().unwrap();
    let pods = dir.path().join("pods.json");
    let proxy = Proxy::start(&[&format!("--pods={}", pods.display())]);
    let lines = || {
        let log = proxy.log();
        let told = log
            .lines()
            .filter_map(|line| line.split_once("can be used"));
        let told = told.map(|(_, rest)| rest.split(" error").next().unwrap().to_owned());
        told.collect::<Vec<_>>()
    };
    let (before, last) = (
        ", and has said nothing before",
        "; what it said last stays in force",
    );
    let mut expected = vec![before];
    let start = Instant::now();
    let are_told = |expected: &[&str]| {
        while lines() != expected {
            assert!(start.elapsed() < PATIENCE, "{expected:?}\n{}", proxy.log());
            thread::sleep(Duration::from_millis(10));
        }
    };
    are_told(&expected);
    let status = r#"{"kind":"Status","message":"Unauthorized"}"#;
    let list = r#"{"kind":"List","items":[]}"#;
    for (text, reason, told) in [
        ("", "text holds no document", Some(before)),
        ("\n", "text holds no document", None),
        (status, "Unauthorized", Some(before)),
        (list, "", None),
        (status, "Unauthorized", Some(last)),
    ] {
        let answers = || {
            let metrics = String::from_utf8(proxy.ask(&["get", "/metrics"]).stdout).unwrap();
            let series = "koord_runtime_proxy_pods_answers_total";
            let lines = metrics.lines().filter(|line| line.starts_with(series));
            lines.map(str::to_owned).collect::<Vec<_>>()
        };
        let asked = answers();
        fs::write(dir.path().join("fresh"), text).unwrap();
        fs::rename(dir.path().join("fresh"), &pods).unwrap();
        while answers() == asked {
            assert!(start.elapsed() < PATIENCE, "{text:?} is not read");
            thread::sleep(Duration::from_millis(10));
        }
        let status = String::from_utf8(proxy.ask(&["status", "--json"]).stdout).unwrap();
        let status: serde_json::Value = serde_json::from_str(&status).unwrap();
        let error = status["pods"]["error"].as_str().unwrap_or_default();
        assert!(error.contains(reason), "{error}");
        expected.extend(told);
        are_told(&expected);
    }
}

#[test]
fn the_admin_socket_serves_sixteen_at_a_time() {
    let proxy = Proxy::start(&[]);
    let connect = || UnixStream::connect(proxy.path("admin/admin.sock")).unwrap();
    let mut idle: Vec<_> = (0..16).map(|_| connect()).collect();
    let mut over = connect();
    over.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut nothing = Vec::new();
    over.read_to_end(&mut nothing).unwrap();
    assert!(nothing.is_empty());
    idle.pop();
    let start = Instant::now();
    while !proxy.ask(&["get", "/healthz"]).status.success() {
        assert!(start.elapsed() < PATIENCE);
    }
}

#[test]
fn odd_requests_to_the_admin_socket_are_refused() {
    let proxy = Proxy::start(&[]);
    let ask = |request: &str| {
        let mut stream = UnixStream::connect(proxy.path("admin/admin.sock")).unwrap();
        stream.set_read_timeout(Some(PATIENCE)).unwrap();
        // A refusal comes before all of an odd request was read, so that the rest meets a closed
        // connection; what was answered is there all the same.
        stream.write_all(request.as_bytes()).ok();
        let mut reply = Vec::new();
        stream.read_to_end(&mut reply).ok();
        let reply = String::from_utf8(reply).unwrap();
        let status = reply.split(' ').nth(1).map(str::to_owned);
        status.unwrap_or_default()
    };
    assert_eq!(ask("GET /healthz HTTP/1.0\r\n\r\n"), "200");
    assert_eq!(ask("GET /readyz HTTP/1.0\r\n\r\n"), "503");
    assert_eq!(ask("GET /nowhere HTTP/1.0\r\n\r\n"), "404");
    assert_eq!(ask("POST /metrics HTTP/1.0\r\n\r\n"), "405");
    assert_eq!(ask("GET /explain HTTP/1.0\r\n\r\n"), "400");
    let filter = "x".repeat(4097);
    let put = format!("PUT /log HTTP/1.0\r\ncontent-length: 4097\r\n\r\n{filter}");
    assert_eq!(ask(&put), "413");
    for filter in ["", "///", "inof"] {
        let length = filter.len();
        let put = format!("PUT /log HTTP/1.0\r\ncontent-length: {length}\r\n\r\n{filter}");
        assert_eq!(ask(&put), "400", "{filter:?}");
    }
    let header = "x".repeat(64 * 1024);
    assert_eq!(
        ask(&format!("GET / HTTP/1.0\r\nx: {header}\r\n\r\n")),
        "431"
    );
    assert_eq!(ask("\0\0\0\0\r\n\r\n"), "400");
}

//! A socket for clients that systemd has opened and hands over.

use super::*;

/// A directory with a socket that is handed over, and who hands it over.
struct Handing {
    dir: TempDir,
    listener: UnixListener,
    manager: UnixDatagram,
}

// === impl Handing ===

impl Handing {
    fn new() -> Self {
        let dir = tempfile::tempdir().unwrap();
        let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
        manager.set_read_timeout(Some(PATIENCE)).unwrap();
        Self {
            listener: UnixListener::bind(dir.path().join("handed.sock")).unwrap(),
            dir,
            manager,
        }
    }

    fn path(&self, name: &str) -> PathBuf {
        self.dir.path().join(name)
    }

    /// The proxy with the socket as systemd hands it over: descriptor 3, and the process's own id in the
    /// environment. Its flags go on.
    fn command(&self) -> Command {
        let proxy = command(self.dir.path());
        let mut shell = Command::new("sh");
        shell
            .args([
                "-c",
                "exec 3<&0 </dev/null; LISTEN_PID=$$ LISTEN_FDS=1 exec \"$@\"",
            ])
            .arg("sh")
            .arg(proxy.get_program())
            .args(proxy.get_args())
            .env_clear()
            .env("NOTIFY_SOCKET", self.path("notify"))
            .stdin(OwnedFd::from(self.listener.try_clone().unwrap()));
        shell
    }

    /// Starts it with these flags and this standard error; it is ready.
    fn start(&self, flags: &[&str], stderr: impl Into<Stdio>) -> Reaped {
        let child = self.command().args(flags).stderr(stderr).spawn();
        let child = Reaped(child.unwrap());
        assert!(told(&self.manager).starts_with("READY=1\n"));
        child
    }

    fn status(&self) -> String {
        let status = command(self.dir.path()).args(["status", "--json"]).output();
        String::from_utf8(status.unwrap().stdout).unwrap()
    }

    /// Somebody connects, and makes a call.
    fn client(&self) -> UnixStream {
        let mut client = UnixStream::connect(self.path("handed.sock")).unwrap();
        client.write_all(&call_that_is_never_answered()).unwrap();
        client
    }
}

/// The preface of one that waited reaches the runtime.
fn hears_of_a_client(runtime: &UnixListener) {
    runtime.set_nonblocking(true).unwrap();
    let begun = Instant::now();
    let mut served = loop {
        match runtime.accept() {
            Ok((served, _)) => break served,
            Err(error) => assert!(begun.elapsed() < PATIENCE, "{error}"),
        }
        thread::sleep(Duration::from_millis(10));
    };
    served.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut preface = [0; 24];
    served.read_exact(&mut preface).unwrap();
    assert_eq!(&preface, b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n");
}

#[test]
fn a_socket_that_is_handed_over_to_a_front_without_clients_is_told() {
    let handing = Handing::new();
    let _proxy = handing.start(&["--front", "watch"], Stdio::null());
    let status = handing.status();
    let remark = "a socket for clients was handed over that this --front does not serve: whoever \
                  connects there waits for ever";
    assert!(status.contains(remark), "{status}");
}

#[test]
fn who_waits_in_a_socket_that_is_handed_over_is_served_with_a_bad_configuration_too() {
    let handing = Handing::new();
    let runtime = UnixListener::bind(handing.path("runtime.sock")).unwrap();
    let _client = handing.client();
    let log = handing.path("log");
    let flags = ["--feature-gates=CoreShed=true", "--mode=enforce"];
    let _proxy = handing.start(&flags, fs::File::create(&log).unwrap());
    hears_of_a_client(&runtime);

    let status: serde_json::Value = serde_json::from_str(&handing.status()).unwrap();
    assert_eq!(status["mode"], "pass-through", "{status}");
    let remarks = status["remarks"].to_string();
    assert!(
        remarks.contains("hooks are off: ") && remarks.contains("CoreShed"),
        "{remarks}"
    );
    let log = fs::read_to_string(&log).unwrap();
    assert!(log.contains("CoreShed"), "{log}");
}

#[test]
fn who_waits_in_a_socket_that_is_handed_over_is_served_without_a_socket_for_administrators_too() {
    let handing = Handing::new();
    let runtime = UnixListener::bind(handing.path("runtime.sock")).unwrap();
    let _client = handing.client();
    let (log, place) = (handing.path("log"), handing.path("admin/admin.sock"));
    // A directory is in its place.
    fs::create_dir_all(&place).unwrap();
    let _proxy = handing.start(&[], fs::File::create(&log).unwrap());
    hears_of_a_client(&runtime);
    let log = fs::read_to_string(&log).unwrap();
    assert!(
        log.contains("cannot listen for administrators; trying again until we can"),
        "{log}"
    );
    fs::remove_dir(place).unwrap();
    let begun = Instant::now();
    while !handing.status().contains("\"mode\"") {
        assert!(begun.elapsed() < PATIENCE, "nobody answers administrators");
        thread::sleep(Duration::from_millis(100));
    }
}

#[test]
fn who_waits_in_a_socket_that_is_handed_over_is_led_to_no_runtime_that_nobody_may_have_meant() {
    let handing = Handing::new();
    let ends_with_64 = |args: &[&str]| {
        let mut shell = handing.command();
        let mut child = Reaped(shell.args(args).stderr(Stdio::null()).spawn().unwrap());
        assert_eq!(ended(&mut child.0).code(), Some(64), "{args:?}");
    };
    let file = handing.path("config.yaml");
    for text in [
        "remote-runtime-servce-endpoint: /run/crio/crio.sock\n",
        "mode: observe\nmode: observe\n",
        "remote-runtime-service-endpoint: /run/crio/crio.sock\nmode: [\n",
        "remote-runtime-service-endpoint: [1]\n",
    ] {
        fs::write(&file, text).unwrap();
        ends_with_64(&["--config", file.to_str().unwrap()]);
    }
    ends_with_64(&["--config=/not/there.yaml"]);
    ends_with_64(&["--feature-gates=CoreShed=true", "--revert"]);
    ends_with_64(&["--feature-gates=CoreShed=true", "health"]);
}

#[test]
fn a_socket_that_is_handed_over_stays_and_clients_wait_in_it_for_the_next_of_us() {
    let handing = Handing::new();
    let runtime = UnixListener::bind(handing.path("runtime.sock")).unwrap();
    let start = || handing.start(&[], Stdio::null());
    let mut first = start();
    signal(&first.0, "-TERM");
    assert_eq!(ended(&mut first.0).code(), Some(0));
    assert!(told(&handing.manager).starts_with("STOPPING=1\n"));
    assert!(!handing.path("proxy/proxy.sock").exists());

    // Nobody serves now.
    let _client = handing.client();
    let _second = start();
    hears_of_a_client(&runtime);
}

#[test]
fn who_is_handed_the_socket_of_one_that_has_yet_to_end_does_not_wait_for_its_state() {
    let handing = Handing::new();
    let log = handing.path("log");
    let start = || handing.start(&[], fs::File::create(&log).unwrap());
    let _first = start();
    let _second = start();
    let log = fs::read_to_string(&log).unwrap();
    assert!(
        log.contains("the state directory could not be locked"),
        "{log}"
    );
}

#[test]
fn who_is_handed_the_socket_of_one_that_has_yet_to_end_has_its_state_once_that_has_ended() {
    let handing = Handing::new();
    let mut first = handing.start(&[], Stdio::null());
    let second = handing.start(&[], Stdio::null());
    let state = handing.path("state");
    let said = |file: &str| fs::read_to_string(state.join(file)).unwrap_or_default();
    signal(&first.0, "-TERM");
    assert_eq!(ended(&mut first.0).code(), Some(0));
    let pid = second.0.id();
    let begun = Instant::now();
    let is_noted = || said("starts.json").contains(':');
    while said("lock") != format!("{pid}\n") || !is_noted() {
        assert!(begun.elapsed() < PATIENCE, "{}", said("lock"));
        thread::sleep(Duration::from_millis(10));
    }
    let elsewhere = tempfile::tempdir().unwrap();
    let third = command_with_state(elsewhere.path(), &state).output();
    let refused = String::from_utf8(third.unwrap().stderr).unwrap();
    let holder = format!("another process (pid {pid}) uses the state directory");
    assert!(refused.contains(&holder), "{refused}");
}

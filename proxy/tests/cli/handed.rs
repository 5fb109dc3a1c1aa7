//! A socket for clients that systemd has opened and hands over.

use super::*;

/// The proxy with a socket from systemd as it does that: descriptor 3, and the process's own id in the
/// environment. Its flags go on.
fn handed(dir: &Path, listener: &UnixListener) -> Command {
    let proxy = command(dir);
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
        .env("NOTIFY_SOCKET", dir.join("notify"))
        .stdin(OwnedFd::from(listener.try_clone().unwrap()));
    shell
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
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("handed.sock")).unwrap();
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let mut shell = handed(dir.path(), &listener);
    let _proxy = Reaped(shell.args(["--front", "watch"]).spawn().unwrap());
    assert!(told(&manager).starts_with("READY=1\n"));
    let status = command(dir.path()).args(["status", "--json"]).output();
    let status = String::from_utf8(status.unwrap().stdout).unwrap();
    let remark = "a socket for clients was handed over that this --front does not serve: whoever \
                  connects there waits for ever";
    assert!(status.contains(remark), "{status}");
}

#[test]
fn who_waits_in_a_socket_that_is_handed_over_is_served_with_a_bad_configuration_too() {
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("handed.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let runtime = UnixListener::bind(dir.path().join("runtime.sock")).unwrap();
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(&call_that_is_never_answered()).unwrap();
    let mut shell = handed(dir.path(), &listener);
    shell.args(["--feature-gates=CoreShed=true", "--mode=enforce"]);
    let log = dir.path().join("log");
    let child = shell.stderr(fs::File::create(&log).unwrap()).spawn();
    let _proxy = Reaped(child.unwrap());
    assert!(told(&manager).starts_with("READY=1\n"));
    hears_of_a_client(&runtime);

    let status = command(dir.path()).args(["status", "--json"]).output();
    let status = String::from_utf8(status.unwrap().stdout).unwrap();
    let status: serde_json::Value = serde_json::from_str(&status).unwrap();
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
fn who_waits_in_a_socket_that_is_handed_over_is_led_to_no_runtime_that_nobody_may_have_meant() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("handed.sock")).unwrap();
    let ends_with_64 = |args: &[&str]| {
        let mut shell = handed(dir.path(), &listener);
        let mut child = Reaped(shell.args(args).stderr(Stdio::null()).spawn().unwrap());
        assert_eq!(ended(&mut child.0).code(), Some(64), "{args:?}");
    };
    let file = dir.path().join("config.yaml");
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
    let dir = tempfile::tempdir().unwrap();
    let path = dir.path().join("handed.sock");
    let listener = UnixListener::bind(&path).unwrap();
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let runtime = UnixListener::bind(dir.path().join("runtime.sock")).unwrap();
    let start = || {
        let mut shell = handed(dir.path(), &listener);
        let child = Reaped(shell.stderr(Stdio::null()).spawn().unwrap());
        assert!(told(&manager).starts_with("READY=1\n"));
        child
    };
    let mut first = start();
    signal(&first.0, "-TERM");
    assert_eq!(ended(&mut first.0).code(), Some(0));
    assert!(told(&manager).starts_with("STOPPING=1\n"));
    assert!(!dir.path().join("proxy/proxy.sock").exists());

    // Nobody serves now.
    let mut client = UnixStream::connect(&path).unwrap();
    client.write_all(&call_that_is_never_answered()).unwrap();
    let _second = start();
    hears_of_a_client(&runtime);
}

#[test]
fn who_is_handed_the_socket_of_one_that_has_yet_to_end_does_not_wait_for_its_state() {
    let dir = tempfile::tempdir().unwrap();
    let listener = UnixListener::bind(dir.path().join("handed.sock")).unwrap();
    let manager = UnixDatagram::bind(dir.path().join("notify")).unwrap();
    manager.set_read_timeout(Some(PATIENCE)).unwrap();
    let log = dir.path().join("log");
    let start = || {
        let mut shell = handed(dir.path(), &listener);
        let log = fs::File::create(&log).unwrap();
        let child = Reaped(shell.stderr(log).spawn().unwrap());
        assert!(told(&manager).starts_with("READY=1\n"));
        child
    };
    let _first = start();
    let _second = start();
    let log = fs::read_to_string(&log).unwrap();
    assert!(
        log.contains("the state directory could not be locked"),
        "{log}"
    );
}

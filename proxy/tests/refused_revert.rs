//! When nothing is given back by `--revert`: while one of us runs, beside a koordlet of which nothing sure
//! is known, and by what cannot be used.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test's own files, and it ends at the first failure"
)]

mod support;

use koord_testkit::poll::wait_until;
use std::{
    fs::{self, Permissions},
    os::unix::fs::{MetadataExt, PermissionsExt, symlink},
    path::Path,
    process::Output,
};
use support::node::{Node, command, script};
use tempfile::TempDir;

/// What it said why it refuses.
fn refusal(refused: &Output) -> String {
    let said = String::from_utf8(refused.stderr.clone()).unwrap();
    assert_eq!(refused.status.code(), Some(1), "{said}");
    assert!(refused.stdout.is_empty(), "{said}");
    said
}

#[test]
fn nothing_is_given_back_while_a_proxy_runs() {
    for front in ["cri", "watch"] {
        let node = Node::with(script(), &["--front", front]);
        let said = refusal(&node.ask(&["--revert", "--front", front]));
        let why = format!(
            "a koord-runtime-proxy runs here: stop it first: process (pid {}) has the state directory {}",
            node.id(),
            node.path("state").display()
        );
        assert!(said.contains(&why), "{said}");
        assert!(node.ask(&["status"]).status.success());
    }
}

#[test]
fn one_that_serves_is_met_whatever_its_state_directory_and_its_socket_for_administrators_are() {
    let node = Node::start();
    let elsewhere = |flag: &str, name: &str| format!("--{flag}={}", node.path(name).display());
    let (state, admin) = (
        elsewhere("state-dir", "other-state"),
        elsewhere("admin-endpoint", "other.sock"),
    );
    let said = refusal(&node.ask(&["--revert", &state, &admin]));
    assert!(said.contains("a koord-runtime-proxy runs here"), "{said}");
    assert!(said.contains("proxy/proxy.sock"), "{said}");
    // A lock that anybody could have says nothing; one of root's alone is taken when it is seen.
    fs::set_permissions(node.path("."), Permissions::from_mode(0o700)).unwrap();
    let directory = fs::metadata(node.path(".")).unwrap().ino();
    let (process, inode) = (format!(" {} ", node.id()), format!(":{directory} "));
    wait_until("the proxy has the lock", || {
        let locks = fs::read_to_string("/proc/locks").unwrap();
        let mut locks = locks.lines();
        locks.any(|it| it.contains(&process) && it.contains(&inode))
    });
    let said = refusal(&node.ask(&["--revert", "--front=watch", &state, &admin]));
    let why = "it has the lock of the directory of the runtime's socket";
    assert!(said.contains(why), "{said}");
}

/// A `/proc` in which there is one process of root's alone, in this control group.
fn proc_with(name: &str, line: &str, cgroup: &str) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let process = root.path().join("4711");
    fs::create_dir(&process).unwrap();
    for (file, text) in [
        ("comm", name),
        ("cmdline", line),
        ("cgroup", cgroup),
        ("status", "Uid:\t0\t0\t0\t0\nvoluntary_ctxt_switches:\t9\n"),
        (
            "stat",
            "4711 (it) S 1 4711 4711 0 -1 4194560 100 0 0 0 250 75\n",
        ),
    ] {
        fs::write(process.join(file), text).unwrap();
    }
    root
}

/// A node whose proxy has ended.
fn left() -> Node {
    let mut node = Node::start();
    node.signal("-TERM");
    assert!(node.ended().success());
    node
}

/// As with CRI-O, of whose directory nobody has a lock.
#[test]
fn one_that_acts_on_the_runtime_is_met_where_no_lock_tells_of_it() {
    let node = left();
    fs::set_permissions(node.path("."), Permissions::from_mode(0o755)).unwrap();
    let reverted = |name: &str, line: &str| {
        let root = proc_with(name, line, "0::/system.slice/proxy.service\n");
        let proc_root = format!("--proc-root={}", root.path().display());
        node.ask(&["--revert", &proc_root])
    };
    let serves = |runtime: &str| {
        let runtime = node.path(runtime);
        let flag = format!("--remote-runtime-service-endpoint={}", runtime.display());
        format!("/proxy\0{flag}\0")
    };
    for (name, line) in [
        ("koord-runtime-p\n", &*serves("runtime.sock")),
        // Which runtime has launched it nobody can know.
        (
            "10-koord-runtim\n",
            "/opt/nri/plugins/10-koord-runtime-proxy\0",
        ),
    ] {
        let said = refusal(&reverted(name, line));
        let why = "a koord-runtime-proxy runs here: stop it first: process (pid 4711) acts on the \
                   same runtime";
        assert!(said.contains(why), "{said}");
    }
    for (name, line) in [
        ("koord-runtime-p\n", serves("other.sock")),
        ("koord-scheduler\n", serves("runtime.sock")),
    ] {
        let output = reverted(name, &line);
        assert!(output.status.success(), "{output:?}");
    }
}

/// What comes of it beside one of root's that is called as we are, and serves at this endpoint. What is in
/// the `/proc` besides is made by `prepare`, given that and the endpoint.
fn beside_us(cgroup: &str, endpoint: &str, prepare: impl Fn(&Path, &Path)) -> Output {
    let node = left();
    fs::set_permissions(node.path("."), Permissions::from_mode(0o755)).unwrap();
    let socket = node.path("runtime.sock");
    let endpoint = endpoint.replace("OURS", socket.to_str().unwrap());
    let line = format!("/proxy\0--remote-runtime-service-endpoint={endpoint}\0");
    let root = proc_with("koord-runtime-p\n", &line, cgroup);
    prepare(root.path(), &socket);
    let proc_root = format!("--proc-root={}", root.path().display());
    node.ask(&["--revert", &proc_root])
}

#[test]
fn a_runtime_is_known_by_its_socket_and_not_by_its_path() {
    const UNIT: &str = "0::/system.slice/proxy.service\n";
    // As a volume of a container.
    let said = refusal(&beside_us(UNIT, "/host/it.sock", |proc_root, socket| {
        let volume = proc_root.join("4711/root/host");
        fs::create_dir_all(&volume).unwrap();
        fs::hard_link(socket, volume.join("it.sock")).unwrap();
    }));
    assert!(
        said.contains("process (pid 4711) acts on the same"),
        "{said}"
    );
    let output = beside_us(UNIT, "OURS", |proc_root, socket| {
        let there = proc_root.join("4711/root");
        let there = there.join(socket.strip_prefix("/").unwrap());
        fs::create_dir_all(there.parent().unwrap()).unwrap();
        fs::write(there, "").unwrap();
    });
    assert!(output.status.success(), "{output:?}");
}

#[test]
fn one_of_us_that_cannot_be_placed_refuses_and_one_in_a_pod_of_anybodys_is_told() {
    let elsewhere = "0::/../../../system.slice/proxy.service\n";
    let said = refusal(&beside_us(elsewhere, "OURS", |_, _| {}));
    let why = "whether a koord-runtime-proxy runs here cannot be known: process (pid 4711) is called as one, \
               and cannot be placed from within this control group namespace: stop it, or say --revert on \
               the node itself";
    assert!(said.contains(why), "{said}");
    let in_pod = "0::/kubepods/besteffort/poduid-9/c\n";
    let output = beside_us(in_pod, "OURS", |_, _| {});
    assert!(output.status.success(), "{output:?}");
    let told = String::from_utf8(output.stdout).unwrap();
    assert_eq!(
        told,
        "there is nothing to give back\nprocess (pid 4711) is called as a koord-runtime-proxy, in a pod \
         outside of the namespace koordinator-system: it is not taken for one\n"
    );
}

#[test]
fn a_script_that_is_called_as_we_are_may_give_back_by_us() {
    let node = left();
    fs::set_permissions(node.path("."), Permissions::from_mode(0o755)).unwrap();
    let runtime = node.path("runtime.sock");
    let serves = format!("--remote-runtime-service-endpoint={}", runtime.display());
    for (line, refuses) in [
        ("/bin/sh\0/opt/koord-runtime-revert.sh\0".to_owned(), false),
        // One that serves takes in those whom their parents leave, where it is the first in a container.
        (format!("/proxy\0{serves}\0"), true),
    ] {
        let root = proc_with("koord-runtime-r\n", &line, "0::/user.slice\n");
        // It has us run.
        let own = root.path().join("4712");
        fs::create_dir(&own).unwrap();
        let stat = "4712 (koord-runtime-p) S 4711 4711 4711 0 -1 4194560 100 0 0 0 250 75\n";
        fs::write(own.join("stat"), stat).unwrap();
        symlink("4712", root.path().join("self")).unwrap();
        let proc_root = format!("--proc-root={}", root.path().display());
        let output = node.ask(&["--revert", &proc_root]);
        assert_eq!(output.status.success(), !refuses, "{output:?}");
    }
}

/// What comes of it where a koordlet is in this control group.
fn beside_koordlet(cgroup: &str, args: &[&str]) -> Output {
    let line = "/koordlet\0--feature-gates=GroupIdentity=false\0";
    let root = proc_with("koordlet\n", line, cgroup);
    let proc_root = format!("--proc-root={}", root.path().display());
    let all: Vec<_> = ["--revert", &proc_root]
        .iter()
        .chain(args)
        .copied()
        .collect();
    left().ask(&all)
}

#[test]
fn beside_a_koordlet_that_cannot_be_placed_a_person_has_to_say_whether_it_is_one() {
    let elsewhere = "0::/../../../kubepods-burstable.slice/cri-containerd-c.scope\n";
    let said = refusal(&beside_koordlet(elsewhere, &[]));
    let why = "whether koordlet runs on this node is unknown: say --beside-koordlet=yes or no";
    assert!(said.contains(why), "{said}");
    let output = beside_koordlet(elsewhere, &["--beside-koordlet=no"]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(output.stdout, b"there is nothing to give back\n");
}

#[test]
fn what_koordlets_own_command_line_has_on_is_left_to_it() {
    let output = beside_koordlet("0::/system.slice/koordlet.service\n", &[]);
    assert!(output.status.success(), "{output:?}");
    assert_eq!(
        String::from_utf8(output.stdout).unwrap(),
        "there is nothing to give back\nleft to koordlet, which does the part of these hooks here: \
         BatchResource, CPUBurst, CPUSetAllocator, RdtResctrl\n"
    );
}

#[test]
fn nothing_is_given_back_by_what_cannot_be_used() {
    let dir = tempfile::tempdir().unwrap();
    let missing = dir.path().join("none.yaml");
    let policy = format!("--node-policy={}", missing.display());
    let pods = format!("--pods={}", missing.display());
    let file = dir.path().join("file");
    fs::write(&file, "").unwrap();
    let state = format!("--state-dir={}", file.join("state").display());
    for (arg, why) in [
        (
            "--cgroup-mount=/no-such-mount",
            "the control groups of this node cannot be used",
        ),
        (&*policy, "the node policy"),
        (&*pods, "the source of pods"),
        (
            &*state,
            "others of us cannot be kept from starting meanwhile",
        ),
        (
            "--remote-runtime-service-endpoint=/not/there",
            "the runtime does not say what runs: cannot connect to the runtime at /not/there: No \
             such file or directory (os error 2)",
        ),
    ] {
        let output = command(dir.path()).args(["--revert", arg]).output();
        let said = refusal(&output.unwrap());
        assert!(said.contains(why), "{said}");
    }
}

//! Upstream's koordlet on the same node: hooks that it has too rest here, and `status` says so.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test's own files, and it ends at the first failure"
)]

mod support;

use koord_proto::cri::CreateContainerRequest;
use koord_testkit::{RawRequest, poll::wait_until};
use prost::Message;
use serde_json::{Value, json};
use std::fs;
use support::{
    method,
    node::{Node, listed_once, script},
    pod::{ASKED_SHARES, BATCH_SHARES, Pod},
};
use tempfile::TempDir;

/// The shares that a best-effort pod's container has, and what `status` says of the hooks, once some
/// rest if some are to.
async fn with(args: &[&str], some_rest: bool) -> (i64, Value, String) {
    let node = Node::with(script(), args);
    let rest = || node.status()["hooks"].to_string().contains("does its part");
    wait_until("it is known who is there", || rest() == some_rest);
    let shares = created(&node).await;
    let mut status = node.status();
    (shares, status["hooks"].take(), node.log())
}

/// The shares that the runtime is asked to give a best-effort pod's container.
async fn created(node: &Node) -> i64 {
    let pod = Pod::best_effort("batch");
    node.call(RawRequest::unary(method::RUN, pod.run().encode()))
        .await;
    node.call(RawRequest::unary(method::CREATE, pod.create().encode()))
        .await;
    let request = CreateContainerRequest::decode(node.arrived(method::CREATE)).unwrap();
    let resources = request.config.unwrap().linux.unwrap().resources.unwrap();
    resources.cpu_shares
}

/// What `status` says of why a hook rests.
fn rests(hooks: &Value, name: &str) -> Value {
    let mut hooks = hooks.as_array().unwrap().iter();
    let hook = hooks.find(|hook| hook["name"] == name).unwrap();
    hook["rests"].clone()
}

/// A `/proc` with a process that is called koordlet in this control group.
fn koordlet_in(cgroup: &str) -> TempDir {
    let root = tempfile::tempdir().unwrap();
    let process = root.path().join("4711");
    fs::create_dir(&process).unwrap();
    fs::write(process.join("comm"), "koordlet\n").unwrap();
    let line = "/koordlet\0--feature-gates=AllAlpha=true,GroupIdentity=false\0";
    fs::write(process.join("cmdline"), line).unwrap();
    fs::write(process.join("cgroup"), cgroup).unwrap();
    let status = "Uid:\t0\t0\t0\t0\nvoluntary_ctxt_switches:\t9\n";
    fs::write(process.join("status"), status).unwrap();
    let stat = "4711 (koordlet) S 1 4711 4711 0 -1 4194560 100 0 0 0 250 75\n";
    fs::write(process.join("stat"), stat).unwrap();
    root
}

#[tokio::test]
async fn hooks_rest_while_koordlet_runs_them_unless_told_otherwise() {
    let root = koordlet_in("0::/system.slice/koordlet.service\n");
    let proc_root = format!("--proc-root={}", root.path().display());

    let (shares, hooks, log) = with(&[&proc_root], true).await;
    assert_eq!(shares, ASKED_SHARES);
    assert_eq!(rests(&hooks, "BatchResource"), "koordlet does its part");
    assert_eq!(rests(&hooks, "CPUSetAllocator"), "koordlet does its part");
    assert_eq!(rests(&hooks, "GroupIdentity"), json!(null));
    assert!(log.contains("koordlet runs on this node"), "{log}");

    let (shares, hooks, _) = with(&[&proc_root, "--beside-koordlet=no"], false).await;
    assert_eq!(shares, BATCH_SHARES);
    assert!(!hooks.to_string().contains("rests"), "{hooks}");

    // Whatever runs on this machine.
    let (shares, hooks, _) = with(&["--beside-koordlet=yes"], true).await;
    assert_eq!(shares, ASKED_SHARES);
    assert_eq!(rests(&hooks, "GroupIdentity"), "koordlet does its part");
}

#[tokio::test]
async fn what_is_called_before_the_first_list_is_left_to_koordlet_too() {
    for cgroup in [
        "0::/system.slice/koordlet.service\n",
        // Only a list says whose pod that is.
        "0::/kubepods/besteffort/poduid-1/koordlet\n",
    ] {
        let root = koordlet_in(cgroup);
        let proc_root = format!("--proc-root={}", root.path().display());
        let mut node = Node::with(listed_once(), &[&proc_root]);
        node.signal("-KILL");
        node.ended();
        node.restart();
        assert_eq!(created(&node).await, ASKED_SHARES, "{cgroup}");
    }
}

#[test]
fn a_koordlet_that_cannot_be_placed_has_no_hook_rest_and_a_person_is_told() {
    // As a container with a control group namespace of its own sees the host.
    let root = koordlet_in("0::/../../../kubepods-burstable.slice/cri-containerd-c.scope\n");
    let proc_root = format!("--proc-root={}", root.path().display());
    let node = Node::with(script(), &[&proc_root]);
    let remark =
        "a process called koordlet runs that cannot be placed: say --beside-koordlet=yes or no";
    let remarks = || node.status()["remarks"].to_string();
    wait_until("a person is told", || remarks().contains(remark));
    let hooks = node.status()["hooks"].to_string();
    assert!(!hooks.contains("rests"), "{hooks}");
    let log = node.log();
    assert_eq!(log.matches("cannot be placed").count(), 1, "{log}");
}

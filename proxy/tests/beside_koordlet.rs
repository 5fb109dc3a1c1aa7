//! Upstream's koordlet on the same node: hooks that it has too rest here, and `status` says so.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test's own files, and it ends at the first failure"
)]

mod support;

use koord_proto::cri::CreateContainerRequest;
use koord_testkit::RawRequest;
use prost::Message;
use serde_json::json;
use std::fs;
use support::{
    method,
    node::{Node, script},
    pod::{ASKED_SHARES, BATCH_SHARES, Pod},
};

/// The shares that a best-effort pod's container has, and what `status` says of the hooks.
async fn with(args: &[&str]) -> (i64, serde_json::Value, String) {
    let node = Node::with(script(), args);
    let pod = Pod::best_effort("batch");
    node.call(RawRequest::unary(method::RUN, pod.run().encode()))
        .await;
    node.call(RawRequest::unary(method::CREATE, pod.create().encode()))
        .await;
    let request = CreateContainerRequest::decode(node.arrived(method::CREATE)).unwrap();
    let resources = request.config.unwrap().linux.unwrap().resources.unwrap();
    let mut status = node.status();
    (resources.cpu_shares, status["hooks"].take(), node.log())
}

#[tokio::test]
async fn hooks_rest_while_koordlet_runs_them_unless_told_otherwise() {
    let root = tempfile::tempdir().unwrap();
    let process = root.path().join("4711");
    fs::create_dir(&process).unwrap();
    fs::write(process.join("comm"), "koordlet\n").unwrap();
    let line = "/koordlet\0--feature-gates=AllAlpha=true,GroupIdentity=false\0";
    fs::write(process.join("cmdline"), line).unwrap();
    let proc_root = format!("--proc-root={}", root.path().display());

    let (shares, hooks, log) = with(&[&proc_root]).await;
    assert_eq!(shares, ASKED_SHARES);
    let rests = |name| json!({"name": name, "rests": "koordlet does its part"});
    assert_eq!(hooks[0], rests("BatchResource"));
    assert_eq!(hooks[1], rests("CPUSetAllocator"));
    assert_eq!(hooks[2]["rests"], json!(null), "{hooks}");
    assert!(log.contains("BatchResource,CPUSetAllocator"), "{log}");

    let (shares, hooks, _) = with(&[&proc_root, "--beside-koordlet=no"]).await;
    assert_eq!(shares, BATCH_SHARES);
    assert!(!hooks.to_string().contains("rests"), "{hooks}");

    // Whatever runs on this machine.
    let (shares, hooks, _) = with(&["--beside-koordlet=yes"]).await;
    assert_eq!(shares, ASKED_SHARES);
    assert_eq!(hooks[2]["rests"], json!("koordlet does its part"));
}

//! What changes on a pod after its creation, which no request tells: its source does, and the kernel
//! has it while the pod runs on.

use anyhow::Result;
use koord_integration::{
    Front, Node, ProxyOptions, RunningPod,
    classes::{self, PodSpecOf},
};
use koord_testkit::{ContainerdVersion, poll::wait_until};
use serde_json::{Value, json};
use std::path::PathBuf;
use tempfile::TempDir;

const EXTENDED_RESOURCE_SPEC: &str = "node.koordinator.sh/extended-resource-spec";
const RESOURCE_STATUS: &str = "scheduling.koordinator.sh/resource-status";
const SKIP: &str = "runtimeproxy.koordinator.sh/skip-hookserver";

/// Half of what the pod was created with.
const HALF: &str = r#"{"containers":{"main":{
    "requests":{"kubernetes.io/batch-cpu":"250"},
    "limits":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"64Mi"}}}}"#;

/// The file of a source, in a directory that goes with it.
struct File {
    _directory: TempDir,
    path: PathBuf,
}

// === impl File ===

impl File {
    fn new() -> Result<Self> {
        let directory = tempfile::tempdir()?;
        let path = directory.path().join("pods.json");
        let file = Self {
            _directory: directory,
            path,
        };
        file.write(&[])?;
        Ok(file)
    }

    /// Says how these pods are now, as `kubectl get pods -o json` prints it.
    fn write(&self, pods: &[Value]) -> Result<()> {
        let fresh = self.path.with_extension("new");
        let list = json!({"apiVersion": "v1", "kind": "List", "items": pods});
        std::fs::write(&fresh, list.to_string())?;
        Ok(std::fs::rename(fresh, &self.path)?)
    }
}

/// A pod as the cluster has it, with one more label or annotation (`labels`, `annotations`).
fn changed(pod: &PodSpecOf, field: &str, key: &str, value: &str) -> Value {
    let config = pod.pod.config();
    let mut metadata = json!({
        "name": pod.name,
        "namespace": "default",
        "uid": pod.pod.uid(),
        "labels": config.labels,
        "annotations": config.annotations,
    });
    metadata[field][key] = value.into();
    json!({"apiVersion": "v1", "kind": "Pod", "metadata": metadata})
}

/// Waits until the container has these, in the words of cgroup v1.
fn comes_to(pod: &RunningPod, files: &[(&str, &str, &str)]) {
    for (controller, file, text) in files {
        let held = || pod.cgroup.read(controller, Some(&pod.container), file);
        let what = format!("{file} is {text}");
        wait_until(&what, || held().is_ok_and(|held| held == *text));
    }
}

#[rustfmt::skip]
const AS_CREATED: &[(&str, &str, &str)] = &[
    ("cpu", "cpu.shares", "512"),
    ("cpu", "cpu.cfs_quota_us", "100000"),
    ("memory", "memory.limit_in_bytes", "134217728"),
];

#[rustfmt::skip]
const HALVED: &[(&str, &str, &str)] = &[
    ("cpu", "cpu.shares", "256"),
    ("cpu", "cpu.cfs_quota_us", "50000"),
    ("memory", "memory.limit_in_bytes", "67108864"),
];

#[rustfmt::skip]
const EXEMPT: &[(&str, &str, &str)] = &[
    ("cpu", "cpu.shares", "2"),
    ("cpu", "cpu.cfs_quota_us", "-1"),
    ("memory", "memory.limit_in_bytes", "9223372036854771712"),
];

async fn what_a_file_says_of_pods_is_in_force(
    version: ContainerdVersion,
    front: Front,
) -> Result<()> {
    let file = File::new()?;
    let source = file.path.display().to_string();
    let options = ProxyOptions {
        policy: Some(classes::node_policy(&classes::share_pool()?)),
        args: vec!["--pods".to_owned(), source],
        front,
        ..ProxyOptions::default()
    };
    let mut node = Node::start(version, options)?;
    let client = node.client().await?;
    let (batch, pinned) = (classes::be("batch"), classes::lsr("pinned"));
    let running = node.run(&client, &batch).await?;
    let other = node.run(&client, &pinned).await?;
    comes_to(&running, AS_CREATED);
    comes_to(&other, &[("cpuset", "cpuset.cpus", "0")]);

    let half = changed(&batch, "annotations", EXTENDED_RESOURCE_SPEC, HALF);
    let cpus = classes::share_pool()?;
    let status = format!(r#"{{"cpuset":"{cpus}"}}"#);
    let moved = changed(&pinned, "annotations", RESOURCE_STATUS, &status);
    file.write(&[half.clone(), moved])?;
    comes_to(&running, HALVED);
    comes_to(&other, &[("cpuset", "cpuset.cpus", &cpus)]);

    // The runtime knows nothing of it; after a restart the file does.
    node.proxy.kill9()?;
    running
        .cgroup
        .write("cpu", Some(&running.container), "cpu.shares", "512")?;
    node.launch_proxy()?;
    comes_to(&running, HALVED);
    let pods = &node.proxy.status()?["pods"];
    assert_eq!((&pods["pods"], &pods["error"]), (&json!(2), &Value::Null));

    file.write(&[changed(&batch, "labels", SKIP, "true")])?;
    comes_to(&running, EXEMPT);
    comes_to(&other, &[("cpuset", "cpuset.cpus", "0")]);
    file.write(&[])?;
    comes_to(&running, AS_CREATED);
    Ok(())
}

#[tokio::test]
async fn what_a_file_says_of_pods_is_in_force_on_containerd_1_6() -> Result<()> {
    what_a_file_says_of_pods_is_in_force(ContainerdVersion::V1_6, Front::Cri).await
}

#[tokio::test]
async fn what_a_file_says_of_pods_is_in_force_by_watching_containerd_1_7() -> Result<()> {
    what_a_file_says_of_pods_is_in_force(ContainerdVersion::V1_7, Front::Watch).await
}

#[tokio::test]
async fn what_a_file_says_of_pods_is_in_force_by_nri_on_containerd_2() -> Result<()> {
    what_a_file_says_of_pods_is_in_force(ContainerdVersion::V2, Front::Nri).await
}

//! What changes on a pod after its creation, which no request tells: its source does, and the kernel
//! has it while the pod runs on.

use anyhow::Result;
use koord_integration::{
    Front, Node, ProxyOptions, RunningPod,
    classes::{self, PodSpecOf},
    static_pod::{self, manifest},
};
use koord_testkit::{
    CLIENT_PEM, ContainerdVersion, Kubelet,
    cri::PodSpec,
    poll::{wait_patiently, wait_until},
};
use serde_json::{Value, json};
use std::{
    fs,
    path::{Path, PathBuf},
    thread,
    time::Duration,
};
use tempfile::TempDir;

const QOS_CLASS: &str = "koordinator.sh/qosClass";
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
        fs::write(&fresh, list.to_string())?;
        Ok(fs::rename(fresh, &self.path)?)
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

/// A quarter of a CPU, half of one at most, and 64 MiB.
const MID: &str = r#"{"containers":[{"name":"main","resources":{
    "requests":{"kubernetes.io/mid-cpu":"250","kubernetes.io/mid-memory":"64Mi"},
    "limits":{"kubernetes.io/mid-cpu":"500","kubernetes.io/mid-memory":"64Mi"}}}]}"#;

/// Also in the pod's own directory. A kubelet gives it as little as the container.
#[tokio::test]
async fn mid_resources_that_a_file_says_are_in_force() -> Result<()> {
    let file = File::new()?;
    let source = file.path.display().to_string();
    let options = ProxyOptions {
        args: ["--pods", &source, "--feature-gates=MidResource=true"]
            .map(str::to_owned)
            .into(),
        ..ProxyOptions::default()
    };
    let node = Node::start(ContainerdVersion::V2, options)?;
    let client = node.client().await?;
    let mut mid = classes::be("mid");
    mid.pod = PodSpec::new("mid").label(QOS_CLASS, "LS");
    let running = node.run(&client, &mid).await?;
    comes_to(&running, EXEMPT);
    let own_comes_to = |files: &[(&str, &str, &str)]| {
        for (controller, file, text) in files {
            let held = || running.cgroup.read(controller, None, file);
            let what = format!("{file} of the pod is {text}");
            wait_until(&what, || held().is_ok_and(|held| held == *text));
        }
    };

    let mut told = changed(&mid, "labels", QOS_CLASS, "LS");
    told["spec"] = serde_json::from_str(MID)?;
    file.write(&[told])?;
    comes_to(&running, HALVED);
    own_comes_to(HALVED);
    node.proxy.switch("MidResource=off")?;
    comes_to(&running, EXEMPT);
    own_comes_to(EXEMPT);
    Ok(())
}

/// Waits until the proxy says this of its source.
fn says(node: &Node, what: &str, is_so: impl Fn(&Value) -> bool) {
    wait_until(what, || {
        let status = node.proxy.status();
        status.is_ok_and(|status| is_so(&status["pods"]))
    });
}

fn fails_by(node: &Node, reason: &str) {
    says(node, reason, |pods| {
        let error = pods["error"].as_str();
        error.is_some_and(|error| error.contains(reason))
    });
}

fn answers(node: &Node) {
    says(node, "the kubelet answers", |pods| {
        let fails = [&pods["error"], &pods["failsForSeconds"]];
        pods["pods"] == 1 && fails.iter().all(|it| it.is_null())
    });
}

/// A kubelet that answers who has this certificate.
fn guarded(node: &Node, client: &Path) -> Result<Kubelet> {
    let authentication = json!({
        "anonymous": {"enabled": false},
        "webhook": {"enabled": false},
        "x509": {"clientCAFile": client},
    });
    let changes = json!({"authentication": authentication});
    Ok(Kubelet::start(node.testbed(), &node.socket(), changes)?)
}

/// Starts the proxy anew, which asks the kubelet each second.
fn asks(node: &mut Node, kubelet: &Kubelet, more: &[(&str, &Path)]) -> Result<()> {
    node.proxy.kill9()?;
    let mut args = vec![
        "--pods=kubelet".to_owned(),
        "--kubelet-sync-interval=1s".to_owned(),
        "--kubelet-server-name=node".to_owned(),
        format!("--kubelet-url={}", kubelet.pods_url()),
    ];
    args.extend(
        more.iter()
            .map(|(key, path)| format!("{key}={}", path.display())),
    );
    let args: Vec<&str> = args.iter().map(String::as_str).collect();
    node.proxy.set_args(&args);
    node.launch_proxy()
}

#[test]
fn what_a_kubelet_says_of_pods_is_in_force_and_stays_when_it_is_gone() -> Result<()> {
    let mut node = Node::start(ContainerdVersion::V2, ProxyOptions::default())?;
    let directory = tempfile::tempdir()?;
    let [ca, client] = ["ca.pem", "client.pem"].map(|name| directory.path().join(name));
    fs::write(&client, CLIENT_PEM)?;
    let mut kubelet = guarded(&node, &client)?;
    let pod = classes::be("batch");
    kubelet.apply(&manifest(&pod))?;
    let mut container = None;
    wait_patiently("the pod is ready", || {
        container = static_pod::ready(&kubelet, &pod);
        container.is_some()
    });
    let running = RunningPod {
        sandbox: String::new(),
        container: container.expect("it was waited for"),
        cgroup: node.cgroups.existing_pod(pod.pod.uid(), pod.qos),
    };
    comes_to(&running, AS_CREATED);

    // Somebody else vouches for it, and then nobody for us.
    fs::write(&ca, CLIENT_PEM)?;
    asks(&mut node, &kubelet, &[("--kubelet-ca-file", &ca)])?;
    fails_by(&node, "invalid peer certificate");
    fs::copy(kubelet.certificate(), &ca)?;
    fails_by(&node, "it answered 401 Unauthorized");
    let own = ("--kubelet-client-certificate", &*client);
    asks(&mut node, &kubelet, &[("--kubelet-ca-file", &ca), own])?;
    answers(&node);

    // In a static pod that keeps its UID: as if the API server had told it.
    let mut half = manifest(&pod);
    half["metadata"]["annotations"][EXTENDED_RESOURCE_SPEC] = HALF.into();
    kubelet.apply(&half)?;
    comes_to(&running, HALVED);
    let mut same = None;
    wait_patiently("the pod is ready as before", || {
        same = static_pod::ready(&kubelet, &pod);
        same.is_some()
    });
    assert_eq!(same.as_ref(), Some(&running.container));

    kubelet.kill()?;
    fails_by(&node, "cannot connect to it");
    assert_eq!(node.proxy.admin("GET", "/readyz", "")?.0, 200);
    comes_to(&running, HALVED);
    kubelet.launch(node.testbed())?;
    answers(&node);
    comes_to(&running, HALVED);
    Ok(())
}

/// What a pod's directory has by an annotation that came later no list tells.
#[test]
fn what_only_a_kubelet_knows_stays_when_it_and_the_proxy_have_ended() -> Result<()> {
    let mut node = Node::start(ContainerdVersion::V2, ProxyOptions::default())?;
    let directory = tempfile::tempdir()?;
    let client = directory.path().join("client.pem");
    fs::write(&client, CLIENT_PEM)?;
    let mut kubelet = guarded(&node, &client)?;
    let keys = [
        ("--kubelet-ca-file", &*kubelet.certificate()),
        ("--kubelet-client-certificate", &*client),
    ];
    asks(&mut node, &kubelet, &keys)?;
    let mut pod = classes::be("batch");
    pod.pod = PodSpec::new("batch").label(QOS_CLASS, "BE");
    kubelet.apply(&manifest(&pod))?;
    wait_patiently("the pod is ready", || {
        static_pod::ready(&kubelet, &pod).is_some()
    });
    let cgroup = node.cgroups.existing_pod(pod.pod.uid(), pod.qos);
    let has = |files: &[(&str, &str, &str)]| {
        let held = |(controller, file, text): &(&str, &str, &str)| {
            let held = cgroup.read(controller, None, file);
            held.is_ok_and(|held| held == *text)
        };
        files.iter().all(held)
    };
    assert!(has(EXEMPT));
    let mut half = manifest(&pod);
    half["metadata"]["annotations"][EXTENDED_RESOURCE_SPEC] = HALF.into();
    kubelet.apply(&half)?;
    wait_patiently("the pod has what is annotated", || has(HALVED));

    kubelet.kill()?;
    node.proxy.kill9()?;
    node.launch_proxy()?;
    fails_by(&node, "cannot connect to it");
    // The runtime was listed and the pod looked at by then.
    thread::sleep(Duration::from_secs(2));
    assert!(has(HALVED));
    kubelet.launch(node.testbed())?;
    answers(&node);
    assert!(has(HALVED));
    node.proxy.switch("BatchResource=off")?;
    wait_until("what was before comes back", || has(EXEMPT));
    Ok(())
}

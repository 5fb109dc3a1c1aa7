//! The proxy in the plugin folder of real containerds of five NRI generations and of CRI-O, which launch it
//! with three variables and a connected descriptor.
//!
//! Not of containerd 1.7.6: before NRI 0.6.0 a runtime closes its end of that connection twice, the second
//! time by a number that may by then be its listening socket's (containerd/nri#66), and so ends now and then.

#![forbid(unsafe_code)]
#![allow(
    clippy::disallowed_methods,
    clippy::unwrap_used,
    reason = "a test's own files, and it ends at the first failure"
)]

mod support;

use koord_testkit::{
    ContainerdVersion, NriPlugin, Options, PodCgroup, PodCgroups, PodQos, Runtime, RuntimeKind,
    cri::{ContainerSpec, CriClient, PodSpec, message::LinuxContainerResources},
    poll::wait_until,
};
use serde_json::Value;
use std::{
    io::{Read, Write},
    os::unix::net::{UnixListener, UnixStream},
    path::Path,
};
use support::pod::{EXTENDED_RESOURCE_SPEC, QOS_CLASS};

const CONFIG: &str = "
remote-runtime-service-endpoint: {dir}/containerd.sock
admin-endpoint: {dir}/admin/admin.sock
state-dir: {dir}/state
cgroup-root: {cgroup-root}
";

const BATCH: &str = r#"{"containers":{"main":{
    "requests":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"64Mi"},
    "limits":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"64Mi"}}}}"#;

fn containerd(version: ContainerdVersion, config: &str) -> Runtime {
    launching(version.into(), config)
}

fn launching(kind: RuntimeKind, config: &str) -> Runtime {
    let plugin = NriPlugin {
        name: "17-koord".to_owned(),
        program: env!("CARGO_BIN_EXE_koord-runtime-proxy").into(),
        config: config.to_owned(),
    };
    let options = Options {
        nri: true,
        nri_plugins: vec![plugin],
        ..Options::default()
    };
    Runtime::start(kind, &options).unwrap()
}

/// A page of the admin socket; `None` while nobody listens.
fn status(containerd: &Runtime) -> Option<Value> {
    status_at(&containerd.testbed().directory().join("admin/admin.sock"))
}

fn status_at(socket: &Path) -> Option<Value> {
    let mut stream = UnixStream::connect(socket).ok()?;
    stream.write_all(b"GET /status HTTP/1.0\r\n\r\n").ok()?;
    let mut reply = String::new();
    stream.read_to_string(&mut reply).ok()?;
    serde_json::from_str(reply.split_once("\r\n\r\n")?.1).ok()
}

fn wait_for_plugin(containerd: &Runtime) {
    wait_until("the runtime asks what it has launched", || {
        status(containerd).is_some_and(|status| status["pluginUp"] == true)
    });
}

/// A new best-effort pod, and its container, which runs.
async fn run(containerd: &Runtime, cgroups: &PodCgroups, name: &str) -> (PodCgroup, String) {
    let client = CriClient::connect(&containerd.socket()).await.unwrap();
    let cgroup: PodCgroup = cgroups
        .pod(&format!("uid-{name}"), PodQos::BestEffort)
        .unwrap();
    let pod = PodSpec::new(name)
        .label(QOS_CLASS, "BE")
        .annotation(EXTENDED_RESOURCE_SPEC, BATCH)
        .cgroup(&cgroup);
    let sandbox = client.run_pod(&pod).await.unwrap();
    let main = ContainerSpec::new("main").resources(LinuxContainerResources {
        cpu_shares: 2,
        ..Default::default()
    });
    let id = client.create_container(&sandbox, &main, &pod).await;
    let id = id.unwrap();
    client.start_container(&id).await.unwrap();
    (cgroup, id)
}

/// The shares that the kernel has for a container.
fn shares((cgroup, id): &(PodCgroup, String)) -> String {
    cgroup.read("cpu", Some(id), "cpu.shares").unwrap()
}

/// Runs a container and waits for what we decide about it: where time is short it is made without us, and
/// gets that afterwards.
async fn gets_shares(containerd: &Runtime, cgroups: &PodCgroups, name: &str) {
    let container = run(containerd, cgroups, name).await;
    wait_until("it has what it asked for", || shares(&container) == "512");
}

async fn a_runtime_launches_us(version: ContainerdVersion) {
    launches_us(containerd(version, CONFIG), "containerd").await;
}

async fn launches_us(mut runtime: Runtime, name: &str) {
    let cgroups = PodCgroups::of(&runtime).unwrap();
    wait_for_plugin(&runtime);
    let told = status(&runtime).unwrap();
    assert_eq!(told["front"], "nri");
    assert_eq!(told["runtime"]["name"], name);
    gets_shares(&runtime, &cgroups, "first").await;

    // It ends with its runtime, which launches it anew.
    runtime.stop().unwrap();
    wait_until("it ends", || status(&runtime).is_none());
    runtime.restart().unwrap();
    wait_for_plugin(&runtime);
    gets_shares(&runtime, &cgroups, "second").await;
}

async fn a_bad_configuration_stops_no_runtime(version: ContainerdVersion) {
    let containerd = containerd(version, &format!("{CONFIG}mode: nonsense\n"));
    let cgroups = PodCgroups::new(containerd.testbed()).unwrap();
    wait_for_plugin(&containerd);
    let told = status(&containerd).unwrap();
    assert_eq!(told["mode"], "pass-through");
    let remarks = told["remarks"].to_string();
    assert!(remarks.contains("nonsense"), "{remarks}");
    assert_eq!(shares(&run(&containerd, &cgroups, "as-asked").await), "2");
}

#[tokio::test]
async fn a_launch_goes_on_without_an_admin_socket_until_that_is_free() {
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("admin.sock");
    let other = UnixListener::bind(&socket).unwrap();
    let config = CONFIG.replace("{dir}/admin/admin.sock", socket.to_str().unwrap());
    // Of an NRI before 0.12, it does not start when the plugin ends.
    let containerd = containerd(ContainerdVersion::V1_7, &config);
    let cgroups = PodCgroups::new(containerd.testbed()).unwrap();
    gets_shares(&containerd, &cgroups, "unasked").await;
    drop(other);
    wait_until("administrators are served", || {
        status_at(&socket).is_some_and(|status| status["pluginUp"] == true)
    });
}

#[tokio::test]
async fn containerd_1_7_launches_us_from_its_plugin_folder() {
    a_runtime_launches_us(ContainerdVersion::V1_7).await;
}

#[tokio::test]
async fn containerd_2_launches_us_from_its_plugin_folder() {
    a_runtime_launches_us(ContainerdVersion::V2).await;
}

#[tokio::test]
async fn containerd_2_1_launches_us_from_its_plugin_folder() {
    a_runtime_launches_us(ContainerdVersion::V2_1).await;
}

#[tokio::test]
async fn containerd_2_2_0_launches_us_from_its_plugin_folder() {
    a_runtime_launches_us(ContainerdVersion::V2_2_0).await;
}

#[tokio::test]
async fn containerd_2_2_launches_us_from_its_plugin_folder() {
    a_runtime_launches_us(ContainerdVersion::V2_2).await;
}

#[tokio::test]
async fn crio_launches_us_from_its_plugin_folder() {
    let config = CONFIG.replace("containerd.sock", "run/crio/crio.sock");
    launches_us(launching(RuntimeKind::Crio, &config), "cri-o").await;
}

#[tokio::test]
async fn a_bad_configuration_stops_no_containerd_1_7() {
    a_bad_configuration_stops_no_runtime(ContainerdVersion::V1_7).await;
}

#[tokio::test]
async fn a_bad_configuration_stops_no_containerd_2() {
    a_bad_configuration_stops_no_runtime(ContainerdVersion::V2).await;
}

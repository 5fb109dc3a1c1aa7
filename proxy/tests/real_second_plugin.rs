//! Another plugin that sets a field of ours, on real runtimes of each NRI generation. The runtime
//! fails a creation for which two plugins set one field, so such a field has to be left to one.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends at the first failure")]

mod support;

use koord_proto::nri::{
    ContainerAdjustment, Event, EventMask, LinuxContainerAdjustment, LinuxCpu, LinuxResources,
};
use koord_runtime_proxy::{
    front::nri::{Answer, Asked, Identity, Incoming, Plugin, Session},
    view::Inputs,
};
use koord_testkit::{
    ContainerdVersion, Options, PodCgroup, PodCgroups, PodQos, Runtime, RuntimeKind,
    cri::{ContainerSpec, CriClient, PodSpec, message::LinuxContainerResources},
    poll::{wait_until, wait_until_async},
};
use serde_json::json;
use std::{
    path::Path,
    sync::{Arc, mpsc},
    thread,
    time::Duration,
};
use support::{
    node::Node,
    pod::{QOS_CLASS, RESOURCE_STATUS},
};
use tokio::{net::UnixStream, runtime::Builder};

/// A plugin that gives every container CPU 0, on a thread of its own, for as long as it is asked.
fn other_plugin(socket: &Path) {
    let plugin = Plugin {
        identity: Identity::new("other", "05").unwrap(),
        events: EventMask::of(&[Event::CreateContainer]),
        inputs: Arc::new(Inputs::new([], [])),
    };
    let socket = socket.to_owned();
    let (tell, told) = mpsc::channel();
    thread::spawn(move || {
        let runtime = Builder::new_current_thread().enable_all().build().unwrap();
        runtime.block_on(async {
            let stream = UnixStream::connect(socket).await.unwrap();
            let mut session = Session::register(stream, &plugin).await.unwrap();
            while let Ok(Incoming::Asked(ticket, asked)) = session.next().await {
                let answer = match *asked {
                    Asked::CreateContainer(_) => Answer::Adjust(Box::new(cpu_0())),
                    _ => Answer::Nothing,
                };
                session.answer(ticket, answer).unwrap();
                // The first question is the synchronisation.
                tell.send(()).ok();
            }
        });
    });
    told.recv().unwrap();
}

fn cpu_0() -> ContainerAdjustment {
    let cpu = LinuxCpu {
        cpus: "0".to_owned(),
        ..LinuxCpu::default()
    };
    let resources = LinuxResources {
        cpu: Some(cpu),
        ..LinuxResources::default()
    };
    ContainerAdjustment {
        linux: Some(LinuxContainerAdjustment {
            resources: Some(resources),
            ..LinuxContainerAdjustment::default()
        }),
        ..ContainerAdjustment::default()
    }
}

/// The proxy as a plugin of this runtime, which asks it about pods such as `any`.
async fn proxy(runtime: &Runtime, any: &PodSpec, args: &[&str]) -> Node {
    let flags = [
        format!("--nri-socket-path={}", runtime.nri_socket().display()),
        format!(
            "--remote-runtime-service-endpoint={}",
            runtime.socket().display()
        ),
        format!("--cgroup-root={}", runtime.testbed().cgroup_root()),
    ];
    let flags: Vec<&str> = flags.iter().map(String::as_str).collect();
    let node = Node::plugin(&[&flags, args].concat());
    wait_until("we have answered", || node.metric("plugin_up") == 1);
    // The runtime asks us about nothing before it has read that.
    let client = CriClient::connect(&runtime.socket()).await.unwrap();
    let asked = || node.metric("calls_total{method=\"RunPodSandbox\",result=\"as_is\"}") > 0;
    let asks = || async {
        let sandbox = client.run_pod(any).await.unwrap();
        client.stop_pod(&sandbox).await.unwrap();
        client.remove_pod(&sandbox).await.unwrap();
        asked()
    };
    wait_until_async("the runtime asks us", asks).await;
    node
}

/// A pod of no class.
fn plain(cgroups: &PodCgroups) -> PodSpec {
    let cgroup = cgroups.pod("uid-plain", PodQos::BestEffort).unwrap();
    PodSpec::new("plain").cgroup(&cgroup)
}

/// CPU 1 is its own, and so it has no quota.
fn lsr(cgroup: &PodCgroup) -> PodSpec {
    PodSpec::new("lsr")
        .label(QOS_CLASS, "LSR")
        .annotation(RESOURCE_STATUS, r#"{"cpuset":"1"}"#)
        .cgroup(cgroup)
}

fn container() -> ContainerSpec {
    ContainerSpec::new("main").resources(LinuxContainerResources {
        cpu_shares: 512,
        cpu_period: 100_000,
        cpu_quota: 50_000,
        ..Default::default()
    })
}

async fn a_field_of_another_plugin_is_left_to_it(kind: impl Into<RuntimeKind>) {
    let options = Options {
        nri: true,
        // Who is late sets nothing, and a loaded machine is not to make us late.
        nri_patience: Some(Duration::from_secs(60)),
        ..Options::default()
    };
    let runtime = Runtime::start(kind, &options).unwrap();
    let cgroups = PodCgroups::of(&runtime).unwrap();
    let cgroup = cgroups
        .pod("uid-lsr", PodQos::Burstable { milli_cpu: 500 })
        .unwrap();
    let client = CriClient::connect(&runtime.socket()).await.unwrap();
    let (pod, main) = (lsr(&cgroup), container());
    let sandbox = client.run_pod(&pod).await.unwrap();
    other_plugin(&runtime.nri_socket());

    let plain = plain(&cgroups);
    let node = proxy(&runtime, &plain, &[]).await;
    let error = client.create_container(&sandbox, &main, &pod).await;
    let error = format!("{:?}", error.unwrap_err());
    assert!(error.contains("koord-runtime-proxy"), "{error}");
    assert!(error.contains("other"), "{error}");
    // Only the caller is told so; what we set is told here.
    let all = [
        "cpu.shares",
        "cpu.cfs_quota_us",
        "cpuset.cpus",
        "memory.limit_in_bytes",
    ];
    assert_eq!(node.status()["pluginSets"], json!(all));
    assert!(node.log().contains(&all.join(",")), "{}", node.log());
    drop(node);

    let node = proxy(&runtime, &plain, &["--leave-settings=cpuset.cpus"]).await;
    let status = node.status();
    assert_eq!(status["leftSettings"], json!(["cpuset.cpus"]));
    assert_eq!(status["pluginSets"], json!([all[0], all[1], all[3]]));
    let id = client.create_container(&sandbox, &main, &pod).await;
    let id = id.unwrap();
    client.start_container(&id).await.unwrap();
    let held = |controller, file| cgroup.read(controller, Some(&id), file).unwrap();
    let both = || {
        (
            held("cpuset", "cpuset.cpus"),
            held("cpu", "cpu.cfs_quota_us"),
        )
    };
    let expected = ("0".to_owned(), "-1".to_owned());
    assert_eq!(both(), expected);
    // Nor does the kernel route touch it. The pod is looked at after an update; of what is in its own
    // directory the runtime writes nothing, so it is we who bring that back. Containers come after
    // it, so the first look is over when the second has begun.
    let quota_of_pod = || cgroup.read("cpu", None, "cpu.cfs_quota_us").unwrap();
    for cpu_shares in [700, 800] {
        cgroup
            .write("cpu", None, "cpu.cfs_quota_us", "90000")
            .unwrap();
        let update = LinuxContainerResources {
            cpu_shares,
            ..Default::default()
        };
        client.update_resources(&id, update).await.unwrap();
        wait_until("the pod is looked at", || quota_of_pod() == "-1");
    }
    assert_eq!(both(), expected);
}

#[tokio::test]
async fn a_field_of_another_plugin_is_left_to_it_on_containerd_1_7() {
    a_field_of_another_plugin_is_left_to_it(ContainerdVersion::V1_7).await;
}

#[tokio::test]
async fn a_field_of_another_plugin_is_left_to_it_on_containerd_2() {
    a_field_of_another_plugin_is_left_to_it(ContainerdVersion::V2).await;
}

#[tokio::test]
async fn a_field_of_another_plugin_is_left_to_it_on_containerd_1_7_6() {
    a_field_of_another_plugin_is_left_to_it(ContainerdVersion::V1_7_6).await;
}

#[tokio::test]
async fn a_field_of_another_plugin_is_left_to_it_on_containerd_1_7_13() {
    a_field_of_another_plugin_is_left_to_it(ContainerdVersion::V1_7_13).await;
}

#[tokio::test]
async fn a_field_of_another_plugin_is_left_to_it_on_containerd_2_1() {
    a_field_of_another_plugin_is_left_to_it(ContainerdVersion::V2_1).await;
}

#[tokio::test]
async fn a_field_of_another_plugin_is_left_to_it_on_containerd_2_2_0() {
    a_field_of_another_plugin_is_left_to_it(ContainerdVersion::V2_2_0).await;
}

#[tokio::test]
async fn a_field_of_another_plugin_is_left_to_it_on_containerd_2_2() {
    a_field_of_another_plugin_is_left_to_it(ContainerdVersion::V2_2).await;
}

#[tokio::test]
async fn a_field_of_another_plugin_is_left_to_it_on_cri_o() {
    a_field_of_another_plugin_is_left_to_it(RuntimeKind::Crio).await;
}

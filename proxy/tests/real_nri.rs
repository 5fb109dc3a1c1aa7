//! A plugin's session on real containerds of two NRI generations: 1.7 tells of most events by
//! StateChange and knows eleven of them, 2.3 by a method for each.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends at the first failure")]

use koord_proto::nri::{
    ContainerAdjustment, ContainerUpdate, Event, EventMask, LinuxContainerAdjustment, LinuxCpu,
    LinuxResources, OptionalUInt64,
};
use koord_proto::{cri, nri};
use koord_runtime_proxy::{
    front::nri::{Answer, Asked, Identity, Incoming, Plugin, Runtime, Session, SessionError, view},
    view::Inputs,
};
use koord_testkit::cri::message::LinuxContainerResources;
use koord_testkit::cri::{ContainerSpec, CriClient, PodSpec};
use koord_testkit::{
    ContainerdVersion, Options, PodCgroup, PodCgroups, PodQos, Runtime as RealRuntime,
    poll::wait_until_async,
};
use prost::Message;
use std::{
    path::Path,
    sync::{Arc, Mutex},
    time::Duration,
};
use tokio::{net::UnixStream, task::JoinHandle};

/// Every event of a pod's life that both generations have.
const LIFE: [Event; 8] = [
    Event::RunPodSandbox,
    Event::CreateContainer,
    Event::StartContainer,
    Event::UpdateContainer,
    Event::StopContainer,
    Event::RemoveContainer,
    Event::StopPodSandbox,
    Event::RemovePodSandbox,
];

/// What the runtime asked and told, by the pod's or container's name.
type Seen = Arc<Mutex<Vec<String>>>;

/// What hooks would look at.
fn inputs() -> Arc<Inputs> {
    Arc::new(Inputs::new(["wanted"], ["asked"]))
}

/// A plugin that gives every container 300 shares, and 400 when it is updated.
struct Shares {
    seen: Seen,
    runtime: Runtime,
    ended: JoinHandle<SessionError>,
}

impl Shares {
    async fn connect(socket: &Path) -> Self {
        let mut events = LIFE.to_vec();
        // Not every runtime has it; that is found out by asking which one it is.
        events.push(Event::UpdatePodSandbox);
        let plugin = Plugin {
            identity: Identity::new("shares", "10").unwrap(),
            events: EventMask::of(&events),
            inputs: inputs(),
        };
        let stream = UnixStream::connect(socket).await.unwrap();
        let session = Session::register(stream, &plugin).await.unwrap();
        let (seen, runtime) = (Seen::default(), session.runtime().clone());
        Self {
            ended: tokio::spawn(serve(session, seen.clone())),
            seen,
            runtime,
        }
    }

    fn seen(&self) -> Vec<String> {
        self.seen.lock().unwrap().clone()
    }

    /// Waits until something was seen: what a runtime tells of, it tells before it answers the call
    /// that made it so, but for lists.
    async fn saw(&self, what: &str) {
        wait_until_async(what, async || self.seen().iter().any(|it| it == what)).await;
    }
}

async fn serve(mut session: Session, seen: Seen) -> SessionError {
    loop {
        match session.next().await {
            Ok(Incoming::Asked(ticket, asked)) => {
                let (what, answer) = decide(*asked);
                seen.lock().unwrap().push(what);
                assert!(session.answer(ticket, answer).unwrap());
            }
            Ok(other) => panic!("{other:?}"),
            Err(ended) => return ended,
        }
    }
}

fn shares(value: u64) -> LinuxResources {
    LinuxResources {
        cpu: Some(LinuxCpu {
            shares: Some(OptionalUInt64 { value }),
            ..LinuxCpu::default()
        }),
        ..LinuxResources::default()
    }
}

/// What was seen, in words, and what is answered.
fn decide(asked: Asked) -> (String, Answer) {
    match asked {
        Asked::Synchronize { pods, containers } => {
            let names = pods.iter().map(|pod| &*pod.name);
            let names: Vec<&str> = names.chain(containers.iter().map(|it| &*it.name)).collect();
            let updates = containers
                .iter()
                .map(|container| ContainerUpdate::new(&container.id, shares(300)));
            let what = format!("Synchronize {}", names.join(" "));
            (what, Answer::Update(updates.collect()))
        }
        Asked::CreateContainer(request) => {
            let (pod, container) = (request.pod.unwrap(), request.container.unwrap());
            let what = format!(
                "CreateContainer {} {}",
                container.name,
                views(&pod, &container)
            );
            let adjust = ContainerAdjustment {
                linux: Some(LinuxContainerAdjustment {
                    resources: Some(shares(300)),
                    ..LinuxContainerAdjustment::default()
                }),
                ..ContainerAdjustment::default()
            };
            (what, Answer::Adjust(Box::new(adjust)))
        }
        Asked::UpdateContainer(request) => {
            let container = request.container.unwrap();
            let quota = request.linux_resources.unwrap().cpu.unwrap().quota.unwrap();
            let what = format!("UpdateContainer {} {}", container.name, quota.value);
            let update = ContainerUpdate::new(container.id, shares(400));
            (what, Answer::Update(vec![update]))
        }
        Asked::StopContainer(request) => {
            let name = request.container.unwrap().name;
            (format!("StopContainer {name}"), Answer::Nothing)
        }
        Asked::Happened {
            event,
            pod,
            container,
        } => {
            let name = container.map_or_else(|| pod.unwrap().name, |container| container.name);
            (format!("{event:?} {name}"), Answer::Nothing)
        }
        Asked::UpdatePodSandbox(_) => panic!("nobody resizes a pod here"),
    }
}

/// What hooks see of a pod, of its directory and of a container that is to be made.
fn views(pod: &nri::PodSandbox, container: &nri::Container) -> String {
    let inputs = inputs();
    let seen = view::pod(pod, None, &inputs).unwrap();
    format!("{seen:?} {:?}", view::container(container))
}

/// The same of what the kubelet sends.
fn views_in_cri(pod: &PodSpec, container: &ContainerSpec) -> String {
    let config = pod.config().encode_to_vec();
    let config = cri::PodSandboxConfig::decode(&*config).unwrap();
    let parent = koord_runtime_proxy::view::cgroup_parent(&config);
    let inputs = inputs();
    let seen = koord_runtime_proxy::view::pod(&config, "", parent.as_ref(), &inputs).unwrap();
    let config = container.config.encode_to_vec();
    let config = cri::ContainerConfig::decode(&*config).unwrap();
    let requested = koord_runtime_proxy::view::requested_at_creation(config.resources());
    let container = koord_runtime_proxy::view::container(&config, requested);
    format!("{:?} {container:?}", (seen, parent))
}

fn pod(name: &str, cgroup: &PodCgroup) -> PodSpec {
    PodSpec::new(name)
        .label("wanted", "yes")
        .annotation("asked", "no")
        .annotation("unasked", "of")
        .cgroup(cgroup)
}

fn container(name: &str) -> ContainerSpec {
    ContainerSpec::new(name).resources(LinuxContainerResources {
        cpu_shares: 256,
        cpu_period: 100_000,
        cpu_quota: 50_000,
        ..Default::default()
    })
}

/// Runs a pod with one container, and answers the ids of both.
async fn run(client: &CriClient, pod: &PodSpec, name: &str) -> (String, String) {
    let sandbox = client.run_pod(pod).await.unwrap();
    let spec = container(name);
    let created = client.create_container(&sandbox, &spec, pod).await;
    let id = created.unwrap();
    client.start_container(&id).await.unwrap();
    (sandbox, id)
}

async fn a_session_lives_through_a_pods_life(version: ContainerdVersion) {
    let options = Options {
        nri: true,
        // A loaded machine is not to make the plugin late.
        nri_patience: Some(Duration::from_secs(60)),
        ..Options::default()
    };
    let mut containerd = RealRuntime::start(version, &options).unwrap();
    let cgroups = PodCgroups::new(containerd.testbed()).unwrap();
    let qos = PodQos::Burstable { milli_cpu: 250 };
    let client = CriClient::connect(&containerd.socket()).await.unwrap();
    let held = |of: &PodCgroup, id: &str, file: &str| of.read("cpu", Some(id), file).unwrap();

    let before = cgroups.pod("uid-before", qos).unwrap();
    let (_, old) = run(&client, &pod("before", &before), "old").await;
    let plugin = Shares::connect(&containerd.nri_socket()).await;
    assert_eq!(plugin.runtime.name, "containerd");
    let resizes = plugin.runtime.events.contains(Event::UpdatePodSandbox);
    assert_eq!(resizes, version == ContainerdVersion::V2);
    plugin.saw("Synchronize before old").await;
    let updated = async || held(&before, &old, "cpu.shares") == "300";
    wait_until_async("shares of what was there", updated).await;
    // Only then it is asked: the runtime takes it on when it has answered.
    let cgroup = cgroups.pod("uid-after", qos).unwrap();
    let spec = pod("after", &cgroup);
    let (sandbox, new) = run(&client, &spec, "new").await;
    assert_eq!(held(&cgroup, &new, "cpu.shares"), "300");
    assert_eq!(held(&cgroup, &new, "cpu.cfs_quota_us"), "50000");

    let update = LinuxContainerResources {
        cpu_quota: 20_000,
        ..Default::default()
    };
    client.update_resources(&new, update).await.unwrap();
    assert_eq!(held(&cgroup, &new, "cpu.shares"), "400");
    assert_eq!(held(&cgroup, &new, "cpu.cfs_quota_us"), "20000");
    client.stop_container(&new, 10).await.unwrap();
    client.remove_container(&new).await.unwrap();
    client.stop_pod(&sandbox).await.unwrap();
    client.remove_pod(&sandbox).await.unwrap();
    // Hooks see the same pod and container in what the runtime asks as in what the kubelet sends.
    let created = format!(
        "CreateContainer new {}",
        views_in_cri(&spec, &container("new"))
    );
    assert_eq!(
        plugin.seen()[1..],
        [
            "RunPodSandbox after",
            &*created,
            "StartContainer new",
            "UpdateContainer new 20000",
            "StopContainer new",
            "RemoveContainer new",
            "StopPodSandbox after",
            "RemovePodSandbox after",
        ]
    );

    containerd.restart().unwrap();
    let ended = plugin.ended.await.unwrap();
    assert!(matches!(ended, SessionError::Closed), "{ended:?}");
    let plugin = Shares::connect(&containerd.nri_socket()).await;
    plugin.saw("Synchronize before old").await;
}

#[tokio::test]
async fn containerd_1_7_is_served_through_a_pods_life() {
    a_session_lives_through_a_pods_life(ContainerdVersion::V1_7).await;
}

#[tokio::test]
async fn containerd_2_is_served_through_a_pods_life() {
    a_session_lives_through_a_pods_life(ContainerdVersion::V2).await;
}

//! Each containerd runs a pod, is asked by the client and looked at in the kernel.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends at the first failure")]

use koord_testkit::cri::message::LinuxContainerResources;
use koord_testkit::cri::{ContainerSpec, CriClient, PodSpec, pid};
use koord_testkit::{ContainerdVersion, Options, PodCgroups, PodQos, Runtime, Testbed, process};

/// Version 1 of the kernel's memory controller: the largest whole number of pages.
const UNLIMITED: &str = "9223372036854771712";

fn start(version: ContainerdVersion) -> Runtime {
    Runtime::start(version, &Options::default()).unwrap()
}

async fn runs_a_pod(version: ContainerdVersion) {
    let containerd = start(version);
    let cgroups = PodCgroups::new(containerd.testbed()).unwrap();
    let cgroup = cgroups
        .pod("one", PodQos::Burstable { milli_cpu: 250 })
        .unwrap();
    let client = CriClient::connect(&containerd.socket()).await.unwrap();

    let pod = PodSpec::new("one").cgroup(&cgroup);
    let pod_id = client.run_pod(&pod).await.unwrap();
    let container =
        ContainerSpec::new("main")
            .env("RAW", b"\xff")
            .resources(LinuxContainerResources {
                cpu_shares: 256,
                cpu_period: 100_000,
                cpu_quota: 50_000,
                memory_limit_in_bytes: 64 << 20,
                cpuset_cpus: "0".to_owned(),
                ..Default::default()
            });
    let id = client
        .create_container(&pod_id, &container, &pod)
        .await
        .unwrap();
    client.start_container(&id).await.unwrap();

    let holds = |controller, file| cgroup.read(controller, Some(&id), file).unwrap();
    assert_eq!(holds("cpu", "cpu.shares"), "256");
    assert_eq!(holds("cpu", "cpu.cfs_quota_us"), "50000");
    assert_eq!(holds("cpuset", "cpuset.cpus"), "0");
    assert_eq!(holds("memory", "memory.limit_in_bytes"), "67108864");

    let update = LinuxContainerResources {
        cpu_quota: 20_000,
        ..Default::default()
    };
    client.update_resources(&id, update).await.unwrap();
    assert_eq!(holds("cpu", "cpu.cfs_quota_us"), "20000");

    let echoed = client
        .exec(&id, ["sh", "-c", "echo heard; exit 3"])
        .await
        .unwrap();
    assert_eq!(
        (echoed.stdout.as_slice(), echoed.exit_code),
        (&b"heard\n"[..], 3)
    );

    let status = client.container_status(&id).await.unwrap();
    assert!(process::is_running(pid(&status.info).unwrap()));
    client.stop_container(&id, 10).await.unwrap();
    client.remove_container(&id).await.unwrap();
    client.stop_pod(&pod_id).await.unwrap();
    client.remove_pod(&pod_id).await.unwrap();
    assert_eq!(client.list_pods().await.unwrap(), []);
}

#[tokio::test]
async fn containerd_1_6_runs_a_pod() {
    runs_a_pod(ContainerdVersion::V1_6).await;
}

#[tokio::test]
async fn containerd_1_7_runs_a_pod() {
    runs_a_pod(ContainerdVersion::V1_7).await;
}

#[tokio::test]
async fn containerd_2_runs_a_pod() {
    runs_a_pod(ContainerdVersion::V2).await;
}

#[tokio::test]
async fn containers_outlive_a_restart_and_a_kill_of_containerd() {
    let mut containerd = start(ContainerdVersion::V1_7);
    let client = CriClient::connect(&containerd.socket()).await.unwrap();
    let pod = PodSpec::new("one");
    let pod_id = client.run_pod(&pod).await.unwrap();
    let spec = ContainerSpec::new("main");
    let id = client.create_container(&pod_id, &spec, &pod).await.unwrap();
    client.start_container(&id).await.unwrap();
    let first = pid(&client.container_status(&id).await.unwrap().info);

    let before = containerd.pid();
    containerd.restart().unwrap();
    assert_ne!(containerd.pid(), before);
    containerd.kill9().unwrap();
    assert_eq!(containerd.pid(), None);
    assert!(CriClient::connect(&containerd.socket()).await.is_err());
    containerd.restart().unwrap();

    let client = CriClient::connect(&containerd.socket()).await.unwrap();
    assert_eq!(client.list_containers().await.unwrap()[0].id, id);
    assert_eq!(
        pid(&client.container_status(&id).await.unwrap().info),
        first
    );
}

#[tokio::test]
async fn only_containerd_1_speaks_v1alpha2() {
    for (version, code) in [
        (ContainerdVersion::V1_6, None),
        (ContainerdVersion::V1_7, None),
        (ContainerdVersion::V2, Some(12)),
    ] {
        let containerd = start(version);
        let client = CriClient::connect(&containerd.socket())
            .await
            .unwrap()
            .v1alpha2();
        let answer = client.version().await;
        assert_eq!(
            answer.err().and_then(|error| error.code()),
            code,
            "{version}"
        );
    }
}

#[test]
fn nri_is_served_where_it_was_asked_for() {
    let options = Options {
        nri: true,
        ..Options::default()
    };
    for version in [ContainerdVersion::V1_7, ContainerdVersion::V2] {
        let with = Runtime::start(version, &options).unwrap();
        let connected = std::os::unix::net::UnixStream::connect(with.nri_socket());
        assert!(connected.is_ok(), "{version}: {connected:?}");
        assert!(!start(version).nri_socket().exists(), "{version}");
    }
}

#[test]
fn a_kubelets_tree_has_the_values_of_each_class() {
    let testbed = Testbed::new().unwrap();
    let cgroups = PodCgroups::new(&testbed).unwrap();
    let guaranteed = PodQos::Guaranteed {
        milli_cpu: 500,
        memory_bytes: 64 << 20,
    };
    let pods = [
        ("a", guaranteed, "512", "50000", "67108864"),
        (
            "b",
            PodQos::Burstable { milli_cpu: 250 },
            "256",
            "-1",
            UNLIMITED,
        ),
        ("c", PodQos::BestEffort, "2", "-1", UNLIMITED),
    ];
    for (uid, qos, shares, quota, memory) in pods {
        let pod = cgroups.pod(uid, qos).unwrap();
        let holds = |controller, file| pod.read(controller, None, file).unwrap();
        assert_eq!(holds("cpu", "cpu.shares"), shares, "{qos:?}");
        assert_eq!(holds("cpu", "cpu.cfs_quota_us"), quota, "{qos:?}");
        assert_eq!(holds("memory", "memory.limit_in_bytes"), memory, "{qos:?}");
        let all = std::fs::read_to_string("/sys/fs/cgroup/cpuset/cpuset.cpus").unwrap();
        assert_eq!(holds("cpuset", "cpuset.cpus"), all.trim(), "{qos:?}");
    }
    let root = testbed.cgroup_root();
    assert_eq!(
        cgroups.pod("a", guaranteed).unwrap().path(),
        format!("{root}/kubepods/poda")
    );
}

//! Each containerd runs a pod, is asked by the client and looked at in the kernel.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends at the first failure")]

use koord_testkit::cri::message::LinuxContainerResources;
use koord_testkit::cri::{ContainerSpec, CriClient, PodSpec, pid};
use koord_testkit::{Containerd, ContainerdVersion, Options, PodCgroups, PodQos, process};

async fn runs_a_pod(version: ContainerdVersion) {
    let containerd = Containerd::start(version, &Options::default()).unwrap();
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

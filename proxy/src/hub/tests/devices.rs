//! Devices that a container is made with.

use super::*;
use std::{fs, os::unix::fs::symlink, path::Path};

const FUNCTION: &str = r#"{"rdma":[{"minor":0,"id":"0000:65:00.0"}]}"#;

/// Adds the devices of one function.
#[expect(
    clippy::disallowed_methods,
    reason = "a machine in a directory of a test"
)]
fn add_devices(sys: &Path) {
    for (name, number) in [
        ("misc/rdma_cm", "10:58"),
        ("infiniband_verbs/uverbs0", "231:192"),
    ] {
        let at = sys.join("class").join(name);
        fs::create_dir_all(&at).unwrap();
        fs::write(at.join("dev"), number).unwrap();
    }
    let device = sys.join("class/infiniband_verbs/uverbs0/device");
    symlink("../../../0000:65:00.0", device).unwrap();
}

/// A creation in the pod, which the scheduler gave the function.
fn creation() -> cri::CreateContainerRequest {
    cri::CreateContainerRequest {
        pod_sandbox_id: "sandbox-1".to_owned(),
        config: Some(cri::ContainerConfig::default()),
        sandbox_config: Some(cri::PodSandboxConfig {
            metadata: listed_pod().metadata,
            annotations: [(annotation::DEVICE_ALLOCATED.to_owned(), FUNCTION.to_owned())].into(),
            ..Default::default()
        }),
    }
}

/// The pod gets a container, and the runtime is told of these devices.
fn devices_of_another(bench: &Bench) -> Vec<&'static str> {
    let request = creation();
    let reply = "container-2".to_owned();
    let mut devices = vec!["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"];
    match call(bench, Method::CreateContainer, &request, &reply) {
        Answer::Patched(patch) => devices.retain(|path| wire::has_device(&patch, path)),
        Answer::AsIs(Untouched::Nothing) => devices.clear(),
        other => panic!("{other:?}"),
    }
    devices
}

#[tokio::test]
async fn devices_that_have_come_or_gone_since_the_last_list_are_known_to_have() {
    let sys = tempfile::tempdir().unwrap();
    let bench = Bench::with_rdma(FakeTree::new(Generation::V1, 2), sys.path()).knowing_pod();
    let none: [&str; 0] = [];
    assert_eq!(devices_of_another(&bench), none);
    add_devices(sys.path());
    assert_eq!(
        devices_of_another(&bench),
        ["/dev/infiniband/rdma_cm", "/dev/infiniband/uverbs0"]
    );
    fs::remove_dir_all(sys.path().join("class/infiniband_verbs")).unwrap();
    assert_eq!(devices_of_another(&bench), none);
    let ledger = bench.hub.ledger().borrow();
    let id = ContainerId::new("container-2").unwrap();
    let (_, container) = ledger.container(&id).unwrap();
    let left_out: Vec<&str> = container
        .target
        .left_out
        .iter()
        .map(|it| &*it.reason)
        .collect();
    assert_eq!(
        left_out,
        [
            "scheduling.koordinator.sh/device-allocated names 0000:65:00.0, which is no RDMA device of \
          this node"
        ]
    );
}

/// What a creation comes to before it is known whether koordlet is there, where the hook has this policy.
async fn before_koordlet_is_known(policy: &str) -> Answer {
    let sys = tempfile::tempdir().unwrap();
    add_devices(sys.path());
    let bench = Bench::with_rdma(FakeTree::new(Generation::V1, 2), sys.path()).knowing_pod();
    let gates = FeatureGates::parse("RDMADeviceInject=true").unwrap();
    let policies = FailPolicies::parse(&format!("RDMADeviceInject={policy}")).unwrap();
    let node = bench.hub.policy().node().clone();
    let chain = Chain::new(&gates, &policies);
    bench.hub.policy.replace(Policy::new(chain, node, "skip"));
    bench.hub.await_koordlet(Duration::ZERO);
    let message = creation().encode_to_vec();
    match bench.hub.open(Method::CreateContainer, &message, None) {
        Opening::Later(decision) => decision.await.answer,
        Opening::Now(decision) => decision.answer,
    }
}

#[tokio::test]
async fn who_insists_on_devices_has_no_container_made_without_them_before_koordlet_is_known() {
    let answer = before_koordlet_is_known("Open").await;
    let Answer::AsIs(Untouched::UnknownKoordlet) = answer else {
        panic!("{answer:?}");
    };
    let Answer::Refused(status) = before_koordlet_is_known("Closed").await else {
        panic!("the container would never have its devices");
    };
    assert_eq!(
        (status.code, status.message.as_str()),
        (
            9,
            "koord-runtime-proxy: it is not known yet whether koordlet does the part of hook \
             RDMADeviceInject for pod default/batch, and it has fail policy Closed"
        )
    );
}

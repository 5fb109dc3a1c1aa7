use super::{
    testing::{BATCH, Bench, container, listed_pod, sandbox},
    *,
};
use crate::{ledger::Exemption, reconcile};
use koord_kernel::{
    cgroup::{Controller, Generation, Tree},
    fake::FakeTree,
};
use koord_model::Setting;
use koord_proto::keys::{annotation, label};
use prost::Message;

/// A call that the runtime answers with success.
fn call(bench: &Bench, method: Method, request: &impl Message, reply: &impl Message) -> Answer {
    let opening = bench.hub.open(method, &request.encode_to_vec(), None);
    let Opening::Now(Decision { answer, pending }) = opening else {
        panic!("nothing to wait for");
    };
    let reply = Reply::Answered {
        grpc_status: Some(0),
        message: Some(reply.encode_to_vec()),
    };
    bench.hub.close(pending, reply);
    answer
}

/// The pod gets a second container, and by then it has this label too.
fn create_with_label(bench: &Bench, key: &str, value: &str) {
    let text = |text: &str| text.to_owned();
    let labels = [(label::QOS_CLASS, "BE"), (key, value)];
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: text("sandbox-1"),
        config: Some(cri::ContainerConfig::default()),
        sandbox_config: Some(cri::PodSandboxConfig {
            metadata: listed_pod().metadata,
            labels: labels.map(|(key, value)| (text(key), text(value))).into(),
            annotations: [(text(annotation::EXTENDED_RESOURCE_SPEC), text(BATCH))].into(),
            ..Default::default()
        }),
    };
    let reply = cri::CreateContainerResponse {
        container_id: text("container-2"),
    };
    call(bench, Method::CreateContainer, &request, &reply);
}

#[tokio::test]
async fn a_pod_that_gets_the_skip_label_has_what_was_asked_for_again() {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    let pod = |file: &str| bench.tree.read(Controller::Cpu, &bench.pod, file).unwrap();
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.shares"), "512");
    assert_eq!(bench.shown("cpu.cfs_quota_us"), "100000");
    assert_eq!(pod("cpu.cfs_quota_us"), "100000\n");

    create_with_label(&bench, "skip", "true");
    let exemption = bench
        .hub
        .ledger()
        .borrow()
        .pod(&sandbox())
        .unwrap()
        .exemption;
    assert_eq!(exemption, Some(Exemption::SkipLabel));
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.shares"), "1024");
    assert_eq!(bench.shown("cpu.cfs_quota_us"), "-1");
    assert_eq!(pod("cpu.cfs_quota_us"), "-1\n");
    assert_eq!(bench.entry(Setting::CpuShares).unwrap().owner, "-");

    // The kubelet's own update passes, and is not written over.
    let update = cri::UpdateContainerResourcesRequest {
        container_id: container().to_string(),
        linux: Some(cri::LinuxContainerResources {
            cpu_shares: 2_048,
            ..Default::default()
        }),
        ..Default::default()
    };
    let answer = call(&bench, Method::UpdateContainerResources, &update, &());
    assert!(matches!(answer, Answer::AsIs(Untouched::Exempt)));
    bench.write("cpu.shares", "2048");
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.shares"), "2048");
    assert_eq!(bench.shown("cpu.cfs_quota_us"), "-1");

    // Without the label hooks decide again.
    create_with_label(&bench, "skip", "false");
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown("cpu.shares"), "512");
}

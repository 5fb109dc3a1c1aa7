//! The rank that a pod says itself (`koordinator.sh/cpuQOS`), whoever tells of the pod.

use super::*;
use koord_proto::{nri, pods, policy::NodePolicy};

/// Every pod of the class `LS` has the rank 2 by it.
const POLICY: &str = "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\n\
                      metadata: {name: node-1}\n\
                      spec: {resourceQOSStrategy: {lsClass: {cpuQOS: {enable: true}}}}\n";

/// On a kernel that has group identity.
fn bench() -> Bench {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2).with_group_identity());
    bench.hub.set_node_policy(policy(POLICY));
    bench
}

fn policy(text: &str) -> Arc<NodePolicy> {
    Arc::new(NodePolicy::parse_stream(text, None).unwrap().policy)
}

fn own(rank: i32) -> (String, String) {
    let text = format!(r#"{{"enable":true,"groupIdentity":{rank}}}"#);
    ("koordinator.sh/cpuQOS".to_owned(), text)
}

async fn rank(bench: &Bench) -> String {
    reconcile::pod(&bench.hub, &sandbox()).await;
    bench.shown_of_pod("cpu.bvt_warp_ns")
}

/// The pod as a kubelet or a file tells of it.
fn told(annotations: impl IntoIterator<Item = (String, String)>) -> PodsAnswer {
    let pod = pods::Pod {
        uid: PodUid::new("uid-1").unwrap(),
        namespace: "default".to_owned(),
        name: "batch".to_owned(),
        labels: [(label::QOS_CLASS.to_owned(), "LS".to_owned())].into(),
        annotations: annotations.into_iter().collect(),
        spec: Arc::default(),
    };
    PodsAnswer {
        pods: [Arc::new(pod)].into(),
        asked: tokio::time::Instant::now(),
        word: Word::OfItsTime,
    }
}

#[tokio::test]
async fn the_rank_that_a_pod_says_itself_counts_by_its_request_by_its_source_and_without_a_policy()
{
    let bench = bench();
    let mut config = sandbox_config("LS");
    config.annotations = [own(-1)].into();
    config.linux = Some(cri::LinuxPodSandboxConfig {
        cgroup_parent: format!("/{}", bench.pod),
    });
    let run = cri::RunPodSandboxRequest {
        config: Some(config),
        ..Default::default()
    };
    let run = run.encode_to_vec();
    let opening = bench.hub.open(Method::RunPodSandbox, &run, None);
    let reply = Reply::Answered {
        grpc_status: Some(0),
        message: Some("sandbox-1".to_owned().encode_to_vec()),
    };
    bench.hub.close(opening.decision().await.pending, reply);
    assert_eq!(rank(&bench).await, "-1");

    bench.hub.take_pods(&told([own(1)]));
    assert_eq!(rank(&bench).await, "1");
    bench.hub.take_pods(&told([]));
    assert_eq!(rank(&bench).await, "2");
    bench.hub.take_pods(&told([own(-1)]));
    assert_eq!(rank(&bench).await, "-1");

    bench.hub.set_node_policy(Arc::default());
    assert_eq!(rank(&bench).await, "-1");
    bench.hub.take_pods(&told([]));
    assert_eq!(rank(&bench).await, "0");
    bench.hub.set_node_policy(policy(POLICY));
    assert_eq!(rank(&bench).await, "2");
}

#[tokio::test]
async fn the_rank_that_a_pod_says_itself_counts_by_a_synchronisation_and_by_an_event() {
    for is_event in [false, true] {
        let bench = bench();
        let pod = nri::PodSandbox {
            id: "sandbox-1".to_owned(),
            name: "batch".to_owned(),
            uid: "uid-1".to_owned(),
            namespace: "default".to_owned(),
            labels: [(label::QOS_CLASS.to_owned(), "LS".to_owned())].into(),
            annotations: [own(-1)].into(),
            linux: Some(nri::LinuxPodSandbox {
                cgroup_parent: format!("/{}", bench.pod),
                ..Default::default()
            }),
            ..Default::default()
        };
        if is_event {
            bench.hub.sandbox_runs(&pod).unwrap();
        } else {
            bench.hub.synchronize(&[pod], &[], Default::default());
        }
        assert_eq!(rank(&bench).await, "-1", "{is_event}");
    }
}

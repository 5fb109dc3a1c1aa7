use super::*;
use crate::{
    front::cri::Method,
    hub::{
        Decision, Opening, Reply,
        testing::{BATCH, Bench, container, listed_pod, sandbox},
    },
    ledger::{Exemption, GIVEN_BACK},
    reconcile,
};
use koord_kernel::{cgroup::Generation, fake::FakeTree};
use koord_model::{PodUid, Setting};
use koord_proto::{cri, keys::label};
use prost::Message;

/// What the pod has by its source: half of the shares that it has by its request.
const HALF: &str = r#"{"containers":{"main":{
    "requests":{"kubernetes.io/batch-cpu":"250"}}}}"#;
/// What it has by a later request.
const TENTH: &str = r#"{"containers":{"main":{
    "requests":{"kubernetes.io/batch-cpu":"50"}}}}"#;

fn map<'a>(entries: impl IntoIterator<Item = (&'a str, &'a str)>) -> HashMap<String, String> {
    let entries = entries.into_iter();
    entries.map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
}

/// The pod of the bench as its source tells it.
fn told(spec: &str) -> pods::Pod {
    pods::Pod {
        uid: PodUid::new("uid-1").unwrap(),
        namespace: "default".to_owned(),
        name: "batch".to_owned(),
        labels: map([(label::QOS_CLASS, "BE")]).into_iter().collect(),
        annotations: map([(annotation::EXTENDED_RESOURCE_SPEC, spec)])
            .into_iter()
            .collect(),
        spec: Arc::default(),
    }
}

fn answer(word: Word, asked: Instant, pods: impl IntoIterator<Item = pods::Pod>) -> PodsAnswer {
    PodsAnswer {
        pods: pods.into_iter().map(Arc::new).collect(),
        asked,
        word,
    }
}

fn take(bench: &Bench, word: Word, pods: impl IntoIterator<Item = pods::Pod>) {
    bench.hub.take_pods(&answer(word, Instant::now(), pods));
}

/// A second container of the pod, whose request tells the pod with this annotation.
fn create(bench: &Bench, spec: &str) {
    let decision = open_creation(bench, spec);
    bench.hub.close(decision.pending, made("container-2"));
}

fn open_creation(bench: &Bench, spec: &str) -> Decision {
    open_creation_with(bench, [(annotation::EXTENDED_RESOURCE_SPEC, spec)])
}

fn open_creation_with<'a>(
    bench: &Bench,
    annotations: impl IntoIterator<Item = (&'a str, &'a str)>,
) -> Decision {
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: "sandbox-1".to_owned(),
        config: Some(cri::ContainerConfig::default()),
        sandbox_config: Some(cri::PodSandboxConfig {
            metadata: listed_pod().metadata,
            labels: map([(label::QOS_CLASS, "BE")]),
            annotations: map(annotations),
            ..Default::default()
        }),
    };
    open(bench, Method::CreateContainer, &request)
}

fn open(bench: &Bench, method: Method, request: &impl Message) -> Decision {
    match bench.hub.open(method, &request.encode_to_vec(), None) {
        Opening::Now(decision) => decision,
        Opening::Later(_) => panic!("nothing to wait for"),
    }
}

fn call(bench: &Bench, method: Method, request: &impl Message, id: &str) {
    let decision = open(bench, method, request);
    bench.hub.close(decision.pending, made(id));
}

/// The answer that this was made. A text is a message with one field, and so is the reply: its field 1
/// is the new id.
fn made(id: &str) -> Reply {
    Reply::Answered {
        grpc_status: Some(0),
        message: Some(id.to_owned().encode_to_vec()),
    }
}

#[tokio::test]
async fn of_two_calls_the_one_that_came_last_is_believed() {
    let bench = bench();
    let first = open_creation(&bench, BATCH);
    let last = open_creation(&bench, HALF);
    bench.hub.close(last.pending, made("container-3"));
    assert_eq!(shares(&bench).await, "256");
    bench.hub.close(first.pending, made("container-2"));
    assert_eq!(shares(&bench).await, "256");
}

async fn shares(bench: &Bench) -> String {
    reconcile::pod(&bench.hub, &sandbox()).await;
    bench.shown("cpu.shares")
}

fn bench() -> Bench {
    let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
    bench.hub.queue().drain();
    bench
}

#[tokio::test]
async fn what_a_source_says_of_a_pod_is_put_in_force_and_taken_back() {
    let bench = bench();
    assert_eq!(shares(&bench).await, "512");
    take(&bench, Word::Stands, [told(HALF)]);
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
    assert_eq!(shares(&bench).await, "256");
    take(&bench, Word::Stands, []);
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
    assert_eq!(shares(&bench).await, "512");
}

#[tokio::test]
async fn what_a_pod_asks_for_itself_counts_where_no_annotation_says_it() {
    let bench = bench();
    let batch = koord_proto::annotation::ExtendedResourceSpec::parse(HALF).unwrap();
    let spec = Arc::new(pods::PodSpec {
        batch: Some(batch.into()),
        ..Default::default()
    });
    let pod = pods::Pod {
        annotations: Default::default(),
        spec,
        ..told("")
    };
    take(&bench, Word::OfItsTime, [pod]);
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
    assert_eq!(shares(&bench).await, "256");
    let pod = pods::Pod {
        annotations: Default::default(),
        ..told("")
    };
    take(&bench, Word::OfItsTime, [pod]);
    assert_eq!(shares(&bench).await, "1024");
}

#[tokio::test]
async fn an_answer_that_says_nothing_new_has_no_pod_looked_at() {
    let bench = bench();
    for spec in [BATCH, HALF, HALF] {
        take(&bench, Word::OfItsTime, [told(spec)]);
    }
    assert_eq!(bench.hub.queue().drain(), [sandbox()]);
}

#[tokio::test]
async fn a_pod_of_which_a_kubelet_says_nothing_stays_as_it_is() {
    let bench = bench();
    take(&bench, Word::OfItsTime, [told(HALF)]);
    take(&bench, Word::OfItsTime, []);
    take(&bench, Word::OfItsTime, []);
    assert_eq!(shares(&bench).await, "256");
}

#[tokio::test]
async fn a_request_that_says_something_new_stands_until_a_later_answer() {
    for word in [Word::Stands, Word::OfItsTime] {
        let bench = bench();
        take(&bench, word, [told(HALF)]);
        let before = Instant::now();
        create(&bench, TENTH);
        assert_eq!(shares(&bench).await, "51", "{word:?}");
        // It was asked for before the request came.
        bench.hub.take_pods(&answer(word, before, [told(HALF)]));
        assert_eq!(shares(&bench).await, "51", "{word:?}");
        take(&bench, word, [told(HALF)]);
        assert_eq!(shares(&bench).await, "256", "{word:?}");
    }
}

#[tokio::test]
async fn a_request_stands_beside_a_later_answer_that_leaves_its_pod_out() {
    let bench = bench();
    take(&bench, Word::OfItsTime, [told(HALF)]);
    assert_eq!(shares(&bench).await, "256");
    create(&bench, TENTH);
    assert_eq!(shares(&bench).await, "51");
    for _ in 0..2 {
        take(&bench, Word::OfItsTime, []);
        assert_eq!(shares(&bench).await, "51");
    }
    take(&bench, Word::OfItsTime, [told(HALF)]);
    assert_eq!(shares(&bench).await, "256");
}

#[tokio::test]
async fn a_request_that_says_what_requests_said_before_changes_nothing() {
    for word in [Word::Stands, Word::OfItsTime] {
        let bench = bench();
        take(&bench, word, [told(HALF)]);
        create(&bench, BATCH);
        assert_eq!(shares(&bench).await, "256", "{word:?}");
        take(&bench, Word::Stands, []);
        assert_eq!(shares(&bench).await, "512", "{word:?}");
    }
}

#[tokio::test]
async fn an_answer_between_a_request_and_its_reply_counts() {
    let bench = bench();
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: "sandbox-1".to_owned(),
        config: Some(cri::ContainerConfig::default()),
        sandbox_config: Some(cri::PodSandboxConfig {
            metadata: listed_pod().metadata,
            labels: map([(label::QOS_CLASS, "BE")]),
            annotations: map([(annotation::EXTENDED_RESOURCE_SPEC, BATCH)]),
            ..Default::default()
        }),
    };
    let opening = bench
        .hub
        .open(Method::CreateContainer, &request.encode_to_vec(), None);
    let Opening::Now(decision) = opening else {
        panic!("nothing to wait for");
    };
    take(&bench, Word::OfItsTime, [told(HALF)]);
    let reply = Reply::Answered {
        grpc_status: Some(0),
        message: Some("container-2".to_owned().encode_to_vec()),
    };
    bench.hub.close(decision.pending, reply);
    assert_eq!(shares(&bench).await, "256");
}

#[tokio::test]
async fn the_first_request_for_a_pod_is_newer_than_a_kubelets_answer_but_not_than_a_file() {
    for (word, in_force) in [(Word::Stands, HALF), (Word::OfItsTime, BATCH)] {
        let bench = Bench::new(FakeTree::new(Generation::V1, 2));
        take(&bench, word, [told(HALF)]);
        let request = cri::RunPodSandboxRequest {
            config: Some(cri::PodSandboxConfig {
                metadata: listed_pod().metadata,
                labels: map([(label::QOS_CLASS, "BE")]),
                annotations: map([(annotation::EXTENDED_RESOURCE_SPEC, BATCH)]),
                ..Default::default()
            }),
            runtime_handler: String::new(),
        };
        call(&bench, Method::RunPodSandbox, &request, "sandbox-1");
        let spec = || {
            let ledger = bench.hub.ledger().borrow();
            let annotations = &ledger.pod(&sandbox()).unwrap().view.annotations;
            annotations
                .get(annotation::EXTENDED_RESOURCE_SPEC)
                .map(str::to_owned)
        };
        assert_eq!(spec().as_deref(), Some(in_force), "{word:?}");
        take(&bench, word, [told(HALF)]);
        assert_eq!(spec().as_deref(), Some(HALF), "{word:?}");
    }
}

#[tokio::test]
async fn the_skip_label_of_a_source_exempts_a_pod_and_gives_back() {
    let bench = bench();
    assert_eq!(shares(&bench).await, "512");
    let mut pod = told(BATCH);
    pod.labels.insert("skip".to_owned(), "true".to_owned());
    take(&bench, Word::OfItsTime, [pod]);
    let exemption = || {
        let ledger = bench.hub.ledger().borrow();
        ledger.pod(&sandbox()).unwrap().exemption
    };
    assert_eq!(exemption(), Some(Exemption::SkipLabel));
    assert_eq!(shares(&bench).await, "1024");
    assert_eq!(bench.entry(Setting::CpuShares).unwrap().owner, GIVEN_BACK);
    take(&bench, Word::OfItsTime, [told(BATCH)]);
    assert_eq!(exemption(), None);
    assert_eq!(shares(&bench).await, "512");
}

#[tokio::test]
async fn a_pod_of_another_name_is_another_pod_whatever_its_uid_says() {
    let bench = bench();
    for (namespace, name) in [("other", "batch"), ("default", "other")] {
        let mut pod = told(HALF);
        (pod.namespace, pod.name) = (namespace.to_owned(), name.to_owned());
        take(&bench, Word::OfItsTime, [pod.clone()]);
        assert_eq!(shares(&bench).await, "512", "{namespace}/{name}");
        // Nor does it stand in the way of what is said of that pod itself, before it or behind.
        for pods in [[told(HALF), pod.clone()], [pod, told(HALF)]] {
            take(&bench, Word::Stands, pods);
            assert_eq!(shares(&bench).await, "256", "{namespace}/{name}");
            take(&bench, Word::Stands, []);
            assert_eq!(shares(&bench).await, "512", "{namespace}/{name}");
        }
    }
}

#[tokio::test]
async fn our_own_annotation_on_a_sandbox_is_not_its_sources() {
    let bench = bench();
    let ours = |pod: &Pod| {
        pod.view
            .annotations
            .get(annotation::ORIGINALS)
            .map(str::to_owned)
    };
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        pod.view.annotations = [(annotation::ORIGINALS, "{}")].into_iter().collect();
        assert!(pod.container_mut(&container()).is_some());
    }
    let mut pod = told(HALF);
    let forged = (annotation::ORIGINALS.to_owned(), "forged".to_owned());
    pod.annotations.extend([forged]);
    for pod in [told(HALF), pod] {
        take(&bench, Word::OfItsTime, [pod]);
        let ledger = bench.hub.ledger().borrow();
        let known = ledger.pod(&sandbox()).unwrap();
        assert_eq!(ours(known).as_deref(), Some("{}"));
    }
}

#[tokio::test]
async fn what_a_sandbox_was_made_with_is_not_what_its_pod_says_of_that_later() {
    let bench = bench();
    let later = [
        (annotation::EXTENDED_RESOURCE_SPEC, HALF),
        (annotation::ORIGINALS, "forged"),
    ];
    let creation = open_creation_with(&bench, later);
    bench.hub.close(creation.pending, made("container-2"));
    assert_eq!(shares(&bench).await, "256");
    let ledger = bench.hub.ledger().borrow();
    let annotations = &ledger.pod(&sandbox()).unwrap().view.annotations;
    assert_eq!(annotations.get(annotation::ORIGINALS), None);
}

#[tokio::test]
async fn what_its_pod_says_of_that_is_nothing_new() {
    let bench = bench();
    take(&bench, Word::Stands, [told(HALF)]);
    for id in ["container-2", "container-3"] {
        let again = [
            (annotation::EXTENDED_RESOURCE_SPEC, BATCH),
            (annotation::ORIGINALS, "forged"),
        ];
        let creation = open_creation_with(&bench, again);
        bench.hub.close(creation.pending, made(id));
        assert_eq!(shares(&bench).await, "256");
    }
}

//! Folders of the node that containers are made with.

use super::*;
use crate::{hami_core::keep_folders, view};
use std::{fs, os::unix::fs::PermissionsExt as _, path::Path, time::Duration};
use tokio::time::{sleep, timeout};

const PART: &str = r#"{"gpu":[{"minor":3,"resources":{
    "koordinator.sh/gpu-memory":"8Gi","koordinator.sh/gpu-memory-ratio":"50"}}]}"#;

/// A creation in the pod, which has a part of a GPU and HAMi-core keep it there.
fn creation() -> Vec<u8> {
    let text = |text: &str| text.to_owned();
    let request = cri::CreateContainerRequest {
        pod_sandbox_id: text("sandbox-1"),
        config: Some(cri::ContainerConfig {
            metadata: Some(cri::ContainerMetadata {
                name: text("main"),
                ..Default::default()
            }),
            ..Default::default()
        }),
        sandbox_config: Some(cri::PodSandboxConfig {
            metadata: listed_pod().metadata,
            labels: [(text(label::GPU_ISOLATION_PROVIDER), text("HAMi-core"))].into(),
            annotations: [(text(annotation::DEVICE_ALLOCATED), text(PART))].into(),
            ..Default::default()
        }),
    };
    request.encode_to_vec()
}

async fn decided(bench: &Bench) -> Decision {
    let opening = bench.hub.open(Method::CreateContainer, &creation(), None);
    opening.decision().await
}

/// The file of the container in what is told of its creation, and whether it is told of the part.
fn told(answer: &Answer) -> (Option<&str>, bool) {
    let Answer::Patched(patch) = answer else {
        panic!("{answer:?}");
    };
    let counted = wire::env(patch, "CUDA_DEVICE_MEMORY_SHARED_CACHE");
    let kept = wire::env(patch, "CUDA_DEVICE_MEMORY_LIMIT");
    (counted, kept.is_some())
}

/// What the ledger says of it: what became of it, and its names.
fn counted(bench: &Bench) -> (String, String) {
    let ledger = bench.hub.ledger().borrow();
    let id = ContainerId::new("container-2").unwrap();
    let (_, container) = ledger.container(&id).unwrap();
    let mut entries = container.target.entries().iter();
    let counted = entries.find(|it| it.desired.setting() == Setting::GpuMonitor);
    let counted = counted.unwrap();
    (state(counted), counted.desired.to_string())
}

fn mode(path: &Path) -> u32 {
    fs::metadata(path).unwrap().permissions().mode() & 0o7777
}

fn bench(library: &Path) -> Bench {
    Bench::with_hami_core(FakeTree::new(Generation::V1, 2), library).knowing_pod()
}

#[tokio::test]
async fn a_container_finds_its_folder_which_goes_when_its_pod_has_gone() {
    let node = tempfile::tempdir().unwrap();
    let bench = bench(&node.path().join("lib.so"));
    let folder = node.path().join("containers/uid-1_main");
    let Decision { answer, pending } = decided(&bench).await;
    let cache = node.path().join("uid-1_main.cache");
    assert_eq!(told(&answer), (cache.to_str(), true));
    assert_eq!(mode(&folder), 0o777);

    let reply = Reply::Answered {
        grpc_status: Some(0),
        message: Some("container-2".to_owned().encode_to_vec()),
    };
    bench.hub.close(pending, reply);
    let around = node.path().display();
    let names = format!("CUDA_DEVICE_MEMORY_SHARED_CACHE {around}");
    assert_eq!(counted(&bench), ("written".to_owned(), names));

    // It was made since the list that this one follows; then its pod is there; then it is not.
    for is_there in [true, true, false] {
        if !is_there {
            bench.hub.ledger().borrow_mut().remove_pod(&sandbox());
        }
        let gone = bench.hub.folders().gone(&bench.hub.ledger().borrow());
        bench.hub.folders().remove(gone).await;
        assert_eq!(folder.exists(), is_there);
    }
}

#[tokio::test]
async fn a_folder_of_a_container_from_before_a_restart_goes_with_its_pod() {
    let node = tempfile::tempdir().unwrap();
    let before = bench(&node.path().join("lib.so"));
    let folder = node.path().join("containers/uid-1_main");
    _ = decided(&before).await;
    assert!(folder.exists());
    // Another process, which is told of both and has made none.
    let after = bench(&node.path().join("lib.so"));
    let pod = cri::PodSandbox {
        labels: [(
            label::GPU_ISOLATION_PROVIDER.to_owned(),
            "HAMi-core".to_owned(),
        )]
        .into(),
        annotations: [(annotation::DEVICE_ALLOCATED.to_owned(), PART.to_owned())].into(),
        ..listed_pod()
    };
    {
        let mut ledger = after.hub.ledger().borrow_mut();
        let known = ledger.pod_mut(&sandbox()).unwrap();
        let inputs = after.hub.policy().inputs();
        let metadata = pod.metadata.as_ref().unwrap();
        let (labels, annotations) = (&pod.labels, &pod.annotations);
        let at = Some(&after.pod);
        let texts = inputs.of(view::texts(labels), view::texts(annotations));
        let view = view::from_parts(view::named(metadata), texts, "", at);
        known.view = view.unwrap();
        after.hub.decide_again(known);
    }
    let gone = |bench: &Bench| bench.hub.folders().gone(&bench.hub.ledger().borrow());
    assert_eq!(gone(&after), Vec::<std::path::PathBuf>::new());
    after.hub.ledger().borrow_mut().remove_pod(&sandbox());
    assert_eq!(gone(&after), std::slice::from_ref(&folder));
    after.hub.folders().remove(gone(&after)).await;
    assert!(!folder.exists());
    assert_eq!(gone(&after), Vec::<std::path::PathBuf>::new());
}

#[tokio::test]
async fn a_container_whose_folder_cannot_be_made_is_kept_within_its_part_and_not_counted() {
    let node = tempfile::tempdir().unwrap();
    let library = node.path().join("lib.so");
    let bench = bench(&library);
    fs::set_permissions(node.path(), fs::Permissions::from_mode(0o777)).unwrap();
    let Decision { answer, pending } = decided(&bench).await;
    assert_eq!(told(&answer), (None, true));
    assert!(!node.path().join("containers").exists());
    let reply = Reply::Answered {
        grpc_status: Some(0),
        message: Some("container-2".to_owned().encode_to_vec()),
    };
    bench.hub.close(pending, reply);
    let why = format!(
        "{} can be written to by others than root",
        node.path().display()
    );
    assert_eq!(counted(&bench).0, format!("not in force: {why}"));
    // It stays so when it runs, and when it is decided anew.
    let id = "container-2".to_owned();
    call(&bench, Method::StartContainer, &id, &());
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(counted(&bench).0, format!("not in force: {why}"));
    let metrics = bench.hub.metrics().encode().unwrap();
    let lacking = "kernel_settings_total{setting=\"gpu.monitor\",result=\"lacking\"} 1";
    assert!(metrics.contains(lacking), "{metrics}");
    assert!(bench.hub.switch_hook("CPUSetAllocator", false));
    assert_eq!(counted(&bench).0, format!("not in force: {why}"));

    // Who insists has no container without it.
    bench.have_hami_core(&library, "Closed");
    let Answer::Refused(status) = decided(&bench).await.answer else {
        panic!("the container would not be counted");
    };
    assert_eq!(
        (status.code, status.message),
        (
            9,
            format!(
                "koord-runtime-proxy: the folder that hook HamiCoreVGPUMonitor decided for pod \
                 default/batch is not there, and it has fail policy Closed: {why}"
            )
        )
    );
    // Of the other one it is unknown whether it was made with a folder. Of this there is nothing that would have
    // to go with its pod.
    bench
        .hub
        .ledger()
        .borrow_mut()
        .remove_container(&container());
    for _ in 0..2 {
        let gone = bench.hub.folders().gone(&bench.hub.ledger().borrow());
        assert_eq!(gone, Vec::<std::path::PathBuf>::new());
        bench.hub.ledger().borrow_mut().remove_pod(&sandbox());
    }
}

#[tokio::test]
async fn who_may_not_act_makes_no_folder() {
    let node = tempfile::tempdir().unwrap();
    let bench = bench(&node.path().join("lib.so"));
    bench.hub.set_lock(NodeLock::Anothers);
    let answer = decided(&bench).await.answer;
    assert!(matches!(answer, Answer::AsIs(Untouched::StandingBy)));
    assert!(!node.path().join("containers").exists());
}

#[tokio::test]
async fn how_many_folders_are_left_to_be_cleared_is_counted_with_each_list() {
    let node = tempfile::tempdir().unwrap();
    let bench = bench(&node.path().join("lib.so"));
    let aside = node.path().join("containers/.gone-1");
    fs::create_dir_all(&aside).unwrap();
    let around = aside.parent().unwrap();
    fs::set_permissions(around, fs::Permissions::from_mode(0o700)).unwrap();
    // One more than one go clears.
    for number in 0..=4096 {
        fs::create_dir(aside.join(number.to_string())).unwrap();
    }
    let comes_to = async |count: u32| {
        let line = format!("koord_runtime_proxy_gpu_monitor_folders_left {count}\n");
        while !bench.hub.metrics().encode().unwrap().contains(&line) {
            sleep(Duration::from_millis(1)).await;
        }
    };
    let counting = async {
        // Lists are waited for.
        sleep(Duration::from_millis(1)).await;
        bench.hub.list_taken();
        comes_to(1).await;
        assert!(aside.exists());
        bench.hub.list_taken();
        comes_to(0).await;
        assert!(!aside.exists());
    };
    tokio::select! {
        () = keep_folders(bench.hub.clone()) => unreachable!("it never ends"),
        done = timeout(Duration::from_secs(30), counting) => done.expect("it is not counted"),
    }
}

//! A folder of the node that a container is made with.

use super::*;
use koord_proto::nri::ContainerAdjustment;
use std::sync::mpsc;

const PART: &str = r#"{"gpu":[{"minor":3,"resources":{
    "koordinator.sh/gpu-memory":"8Gi","koordinator.sh/gpu-memory-ratio":"50"}}]}"#;

/// The pod, which has a part of a GPU and HAMi-core keep it there.
fn pod_with_part() -> PodSandbox {
    let mut pod = told_pod();
    let text = str::to_owned;
    pod.labels
        .insert(text(label::GPU_ISOLATION_PROVIDER), text("HAMi-core"));
    pod.annotations
        .insert(text(annotation::DEVICE_ALLOCATED), text(PART));
    pod
}

fn creation_with_part() -> Asked {
    Asked::CreateContainer(CreateContainerRequest {
        pod: Some(pod_with_part()),
        container: Some(told_container()),
    })
}

/// The files that its use is counted in, as the runtime is told.
fn counted(adjust: &ContainerAdjustment) -> Vec<&str> {
    let env = adjust.env.iter();
    let counted = env.filter(|it| it.key == "CUDA_DEVICE_MEMORY_SHARED_CACHE");
    counted.map(|it| &*it.value).collect()
}

#[tokio::test]
async fn a_creation_is_adjusted_once_the_folder_is_there_that_is_mounted() {
    let node = tempfile::tempdir().unwrap();
    let library = node.path().join("lib.so");
    let bench = Bench::with_hami_core(FakeTree::new(Generation::V1, 2), &library);
    let plugin = Handler::new(bench.hub.clone(), Duration::from_secs(60));
    let Answer::Adjust(adjust) = plugin.answer(creation_with_part()).await else {
        panic!("not adjusted");
    };
    let folder = node.path().join("containers/uid-1_main");
    assert!(folder.is_dir());
    let at = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let mounts = adjust.mounts.iter().map(|it| {
        let options = it.options.join(" ");
        (it.destination.clone(), it.source.clone(), options)
    });
    let text = str::to_owned;
    // What is around the library comes before it.
    let lock = text("/tmp/vgpulock");
    let expected = [
        (at(node.path()), at(&folder), text("rbind")),
        (at(&library), at(&library), text("rbind ro")),
        (lock.clone(), lock, text("rbind")),
    ];
    assert_eq!(mounts.collect::<Vec<_>>(), expected);
    let cache = at(&node.path().join("uid-1_main.cache"));
    assert_eq!(counted(&adjust), [cache]);
}

#[tokio::test(start_paused = true)]
async fn of_creations_whose_folders_do_not_come_the_first_waits_and_all_go_without() {
    // No word comes before the node is gone.
    let (_go_on, may_go_on) = mpsc::channel();
    let node = tempfile::tempdir().unwrap();
    let library = node.path().join("lib.so");
    let bench = Bench::with_hami_core(FakeTree::new(Generation::V1, 2), &library);
    let bench = bench.holding_folders(may_go_on);
    let plugin = Handler::new(bench.hub.clone(), Duration::from_secs(2));
    let run = Asked::Happened {
        event: Event::RunPodSandbox,
        pod: Some(pod_with_part()),
        container: None,
    };
    plugin.answer(run).await;
    // Then a creation waits for nothing else.
    reconcile::pod(&bench.hub, &sandbox()).await;
    for hundredths in [25, 0, 0] {
        let begun = Instant::now();
        let Answer::Adjust(adjust) = plugin.answer(creation_with_part()).await else {
            panic!("not adjusted");
        };
        assert_eq!(begun.elapsed().as_millis() / 10, hundredths);
        assert!(counted(&adjust).is_empty());
    }
}

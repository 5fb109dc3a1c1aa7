//! A folder of the node that a container is made with.

use super::*;

const PART: &str = r#"{"gpu":[{"minor":3,"resources":{
    "koordinator.sh/gpu-memory":"8Gi","koordinator.sh/gpu-memory-ratio":"50"}}]}"#;

#[tokio::test]
async fn a_creation_is_adjusted_once_the_folder_is_there_that_is_mounted() {
    let node = tempfile::tempdir().unwrap();
    let library = node.path().join("lib.so");
    let bench = Bench::with_hami_core(FakeTree::new(Generation::V1, 2), &library);
    let plugin = Handler::new(bench.hub.clone(), Duration::from_secs(60));
    let mut pod = told_pod();
    let text = str::to_owned;
    pod.labels
        .insert(text(label::GPU_ISOLATION_PROVIDER), text("HAMi-core"));
    pod.annotations
        .insert(text(annotation::DEVICE_ALLOCATED), text(PART));
    let asked = Asked::CreateContainer(CreateContainerRequest {
        pod: Some(pod),
        container: Some(told_container()),
    });
    let Answer::Adjust(adjust) = plugin.answer(asked).await else {
        panic!("not adjusted");
    };
    let folder = node.path().join("containers/uid-1_main");
    assert!(folder.is_dir());
    let at = |path: &std::path::Path| path.to_str().unwrap().to_owned();
    let mounts = adjust.mounts.iter().map(|it| {
        let options = it.options.join(" ");
        (it.destination.clone(), it.source.clone(), options)
    });
    // What is around the library comes before it.
    let lock = text("/tmp/vgpulock");
    let expected = [
        (at(node.path()), at(&folder), text("rbind")),
        (at(&library), at(&library), text("rbind ro")),
        (lock.clone(), lock, text("rbind")),
    ];
    assert_eq!(mounts.collect::<Vec<_>>(), expected);
    let env = adjust.env.iter();
    let counted = env.filter(|it| it.key == "CUDA_DEVICE_MEMORY_SHARED_CACHE");
    let counted: Vec<_> = counted.map(|it| it.value.clone()).collect();
    assert_eq!(counted, [at(&node.path().join("uid-1_main.cache"))]);
}

//! The best-effort pod of the bench and what a network plugin is told of it.

#![expect(clippy::disallowed_methods, reason = "files for tests")]

use super::*;
use crate::{apply::terway::Terway, hub::NodeLock, ledger::Exemption};
use std::{
    fs,
    os::unix::fs::{MetadataExt, PermissionsExt},
    path::PathBuf,
};
use tempfile::TempDir;

const EISDIR: i32 = 21;

/// Where the plugin reads, in a directory that goes with it.
struct Folder {
    _above: TempDir,
    path: PathBuf,
}

impl Folder {
    fn new() -> Self {
        let above = tempfile::tempdir().unwrap();
        let path = above.path().join("qos");
        Self {
            _above: above,
            path,
        }
    }

    fn read(&self, name: &str) -> Option<String> {
        fs::read_to_string(self.path.join(name)).ok()
    }

    /// All that is there.
    fn names(&self) -> Vec<String> {
        let entries = fs::read_dir(&self.path).into_iter().flatten();
        let names = entries.map(|it| it.unwrap().file_name().into_string().unwrap());
        let mut names: Vec<_> = names.collect();
        names.sort();
        names
    }
}

fn bench(folder: &Folder, is_on: bool) -> Bench {
    let tree = FakeTree::new(Generation::V1, 2);
    let terway = Terway::reading(folder.path.clone());
    let bench = Bench::with_terway(tree, terway, is_on).knowing_pod();
    bench.hub.queue().drain();
    bench
}

fn by_terway() -> Arc<NodePolicy> {
    network_policy(
        "policies: {netQOSPolicy: terway-qos}, \
         lsClass: {networkQOS: {enable: true, egressRequest: 40, egressLimit: 100, \
            ingressRequest: 400M, ingressLimit: 800M}}, \
         beClass: {networkQOS: {enable: true, egressLimit: 20}}",
    )
}

const CLASSES: &str = "hw_tx_bps_max 125000000\n\
    hw_rx_bps_max 125000000\n\
    offline_l1_tx_bps_min 50000000\n\
    offline_l1_tx_bps_max 125000000\n\
    offline_l1_rx_bps_min 50000000\n\
    offline_l1_rx_bps_max 100000000\n\
    offline_l2_tx_bps_min 0\n\
    offline_l2_tx_bps_max 25000000\n\
    offline_l2_rx_bps_min 0\n\
    offline_l2_rx_bps_max 0\n";

const PODS: &str = "{\"uid-1\":{\"podName\":\"batch\",\"podNamespace\":\"default\",\
    \"podUID\":\"uid-1\",\"prio\":2,\
    \"cgroupDir\":\"/sys/fs/cgroup/net_cls/kubepods/besteffort/poduid-1\",\
    \"qosConfig\":{\"ingressBandwidth\":0,\"egressBandwidth\":0}}}";

/// A bench on which all is told that there is to be told.
async fn told(folder: &Folder) -> Bench {
    let bench = bench(folder, true);
    bench.hub.set_node_policy(by_terway());
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(folder.names(), ["global_bps_config", "pod.json"]);
    bench
}

#[tokio::test]
async fn classes_and_pods_are_told_in_upstreams_words_until_they_are_gone() {
    let folder = Folder::new();
    let bench = told(&folder).await;
    assert_eq!(folder.read("global_bps_config").unwrap(), CLASSES);
    assert_eq!(folder.read("pod.json").unwrap(), PODS);
    bench.hub.sandbox_stopped("sandbox-1");
    settle(&bench).await;
    assert_eq!(folder.read("global_bps_config").unwrap(), CLASSES);
    assert_eq!(folder.read("pod.json").unwrap(), "{}");
}

#[tokio::test]
async fn what_is_said_already_is_not_written_and_what_somebody_wrote_over_is() {
    let folder = Folder::new();
    let bench = told(&folder).await;
    let pods = folder.path.join("pod.json");
    let file = || fs::metadata(&pods).unwrap().ino();
    let before = file();
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(file(), before);
    fs::write(&pods, "{}").unwrap();
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(folder.read("pod.json").unwrap(), PODS);
}

#[tokio::test]
async fn before_the_first_list_and_while_another_acts_nothing_is_told() {
    let folder = Folder::new();
    let bench = bench(&folder, true);
    bench.hub.set_node_policy(by_terway());
    settle(&bench).await;
    assert!(!folder.path.exists());
    bench.hub.set_lock(NodeLock::Anothers);
    bench.hub.list_taken();
    settle(&bench).await;
    assert!(!folder.path.exists());
    bench.hub.set_lock(NodeLock::Ours);
    settle(&bench).await;
    assert_eq!(folder.read("pod.json").unwrap(), PODS);
}

#[tokio::test]
async fn what_is_decided_no_more_is_told_no_more() {
    let folder = Folder::new();
    let bench = told(&folder).await;
    bench
        .hub
        .set_node_policy(network_policy("policies: {netQOSPolicy: tc}"));
    settle(&bench).await;
    assert!(folder.names().is_empty());
    bench.hub.set_node_policy(by_terway());
    settle(&bench).await;
    assert_eq!(folder.names(), ["global_bps_config", "pod.json"]);
    assert!(bench.hub.switch_hook("TerwayQoS", false));
    settle(&bench).await;
    assert!(folder.names().is_empty());
    let mut ledger = bench.hub.ledger().borrow_mut();
    assert_eq!(ledger.pod_mut(&sandbox()).unwrap().network(), None);
}

#[tokio::test]
async fn a_pod_that_hooks_leave_alone_is_not_told() {
    let folder = Folder::new();
    let bench = told(&folder).await;
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        pod.exemption = Some(Exemption::SkipLabel);
        bench.hub.decide_again(pod);
    }
    settle(&bench).await;
    assert_eq!(folder.read("pod.json").unwrap(), "{}");
}

#[tokio::test]
async fn a_process_without_the_hook_removes_what_one_with_it_left_and_nothing_else() {
    let folder = Folder::new();
    drop(told(&folder).await);
    fs::write(folder.path.join("other"), "").unwrap();
    // Without the mark it is somebody else's.
    let classes = folder.path.join("global_bps_config");
    fs::set_permissions(&classes, fs::Permissions::from_mode(0o644)).unwrap();
    let bench = bench(&folder, false);
    settle(&bench).await;
    assert_eq!(folder.names().len(), 3);
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(folder.names(), ["global_bps_config", "other"]);
}

#[tokio::test]
async fn whether_there_is_something_to_remove_is_found_out_beside_the_data_path_and_once() {
    let folder = Folder::new();
    let bench = bench(&folder, false);
    // A start opens no folder.
    assert!(bench.hub.terway().is_told());
    bench.hub.list_taken();
    settle(&bench).await;
    assert!(!bench.hub.terway().is_told());
    assert!(!bench.hub.terway().complained.get());
    assert!(!folder.path.exists());
    // What comes later with our mark is no earlier process's of ours.
    fs::create_dir(&folder.path).unwrap();
    let pods = folder.path.join("pod.json");
    fs::write(&pods, "{}").unwrap();
    fs::set_permissions(&pods, fs::Permissions::from_mode(0o1644)).unwrap();
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(folder.names(), ["pod.json"]);
}

#[tokio::test]
async fn without_a_policy_and_while_the_hook_rests_what_was_told_stays() {
    let folder = Folder::new();
    drop(told(&folder).await);
    let bench = bench(&folder, true);
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(folder.read("pod.json").unwrap(), PODS);
    bench.hub.set_node_policy(by_terway());
    bench.hub.set_resting(["TerwayQoS"].into());
    settle(&bench).await;
    assert_eq!(folder.read("pod.json").unwrap(), PODS);
}

/// What the ledger says of the pod's own directory, and of the root.
fn noted(bench: &Bench) -> [Applied; 2] {
    let mut ledger = bench.hub.ledger().borrow_mut();
    let root = ledger.node.iter_mut().find(|group| {
        let at = group.target.at.as_ref();
        at.is_some_and(CgroupPath::is_root)
    });
    let root = root.unwrap().target.entry_mut(Setting::NodeNetwork);
    let root = root.unwrap().applied.clone();
    let own = &mut ledger.pod_mut(&sandbox()).unwrap().own;
    let own = own.entry_mut(Setting::PodNetwork).unwrap();
    [own.applied.clone(), root]
}

#[tokio::test]
async fn the_ledger_says_what_became_of_it() {
    let folder = Folder::new();
    let bench = told(&folder).await;
    assert_eq!(noted(&bench), [Applied::Written, Applied::Written]);
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(noted(&bench), [Applied::Equal, Applied::Equal]);
    // A directory is in the way of one of them.
    fs::remove_file(folder.path.join("pod.json")).unwrap();
    fs::create_dir(folder.path.join("pod.json")).unwrap();
    bench.hub.list_taken();
    settle(&bench).await;
    let refused = Applied::Refused(Some(EISDIR));
    assert_eq!(noted(&bench), [refused, Applied::Equal]);
    assert_eq!(folder.names(), ["global_bps_config", "pod.json"]);

    let nowhere = folder.path.join("pod.json/not/there");
    let tree = FakeTree::new(Generation::V1, 2);
    let bench = Bench::with_terway(tree, Terway::reading(nowhere), true).knowing_pod();
    bench.hub.set_node_policy(by_terway());
    bench.hub.list_taken();
    settle(&bench).await;
    assert_eq!(noted(&bench), [Applied::Unsupported, Applied::Unsupported]);
}

#[tokio::test]
async fn a_folder_that_hangs_keeps_no_pod_from_its_values() {
    let (begun, has_begun) = mpsc::channel();
    let (_never, hangs) = mpsc::channel::<()>();
    let terway = Terway::doing(move || {
        begun.send(()).ok();
        hangs.recv().ok();
    });
    let bench = Bench::with_terway(FakeTree::new(Generation::V1, 2), terway, false).knowing_pod();
    bench.hub.list_taken();
    bench.hub.queue().push_network();
    let written = async {
        until(|| has_begun.try_recv().is_ok()).await;
        bench.write("cpu.shares", "2");
        bench.hub.queue().push(sandbox());
        until(|| bench.shown("cpu.shares") == "512").await;
    };
    tokio::select! {
        () = run(bench.hub.clone()) => unreachable!("it never ends"),
        written = tokio::time::timeout(Duration::from_secs(30), written) => {
            written.expect("a pod waits for the disk");
        }
    }
}

#[tokio::test]
async fn a_folder_that_hangs_is_waited_for_no_longer_than_is_said() {
    let (never, hangs) = std::sync::mpsc::channel::<()>();
    let terway = Terway::doing(move || {
        hangs.recv().ok();
    });
    let bench = Bench::with_terway(FakeTree::new(Generation::V1, 2), terway, true).knowing_pod();
    bench.hub.list_taken();
    bench.hub.switch_all_off();
    let once = once(&bench.hub, Duration::from_millis(50));
    let shared = tokio::time::timeout(Duration::from_secs(30), once).await;
    assert!(shared.expect("it is not waited for").network.is_err());
    drop(never);
}

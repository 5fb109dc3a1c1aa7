//! Limits of block devices: from the policy and from the pod's annotation to the kernel's lines, and
//! back.

use super::*;
use crate::{
    front::cri::Method,
    hub::{Opening, PodsAnswer, Reply, Word, testing::listed_pod},
    reconcile,
};
use koord_kernel::fake::FakeDisks;
use koord_model::DeviceNumber;
use koord_proto::{
    cri,
    keys::{annotation, label},
    pods::Reader,
};
use prost::Message as _;
use tempfile::TempDir;

const LIMITED: &str = "beClass: {blkioQOS: {enable: true, blocks: [
      {name: /dev/vdb, type: device, ioCfg: {readBPS: 1048576, ioWeightPercent: 50}},
      {name: data, type: volumegroup, ioCfg: {writeIOPS: 7}}]}}, \
    cgroupRoot: {blkioQOS: {enable: true, blocks: [
      {name: /dev/vdb, type: device, ioCfg: {readLatency: 4000}}]}}";

fn policy(strategy: &str) -> Arc<NodePolicy> {
    let text = format!(
        "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\nmetadata: {{name: node-1}}\n\
         spec: {{resourceQOSStrategy: {{{strategy}}}}}\n"
    );
    let parsed = NodePolicy::parse_stream(&text, None).unwrap();
    assert!(parsed.issues.is_empty(), "{:?}", parsed.issues);
    Arc::new(parsed.policy)
}

fn number(text: &str) -> DeviceNumber {
    text.parse().unwrap()
}

/// Two disks, on the second of which is a volume of the group `data`.
fn disks() -> (TempDir, FakeDisks, FakeTree) {
    let directory = tempfile::tempdir().unwrap();
    let disks = FakeDisks::new(directory.path());
    let tree = FakeTree::new(Generation::V2, 2);
    for (name, text) in [("vdb", "252:16"), ("vdc", "252:32")] {
        disks.disk(name, number(text));
        tree.add_device(number(text));
    }
    tree.add_device(number("253:0"));
    disks.mapper(("dm-0", number("253:0")), ("data-lv", "LVM-x"), &["vdc"]);
    (directory, disks, tree)
}

/// A machine that has them.
fn machine() -> (TempDir, FakeDisks, Bench) {
    let (directory, disks, tree) = disks();
    let bench = Bench::with_devices(tree, disks.devices()).knowing_pod();
    (directory, disks, bench)
}

impl Bench {
    /// A file of a group, its lines joined.
    fn lines(&self, at: &str, file: &str) -> String {
        let at = CgroupPath::parse(at).unwrap();
        let text = self.tree.read(Controller::Io, &at, file).unwrap();
        text.lines().collect::<Vec<_>>().join(", ")
    }

    /// What became of a setting of the tier of best-effort pods.
    fn of_tier(&self, setting: Setting) -> Applied {
        let ledger = self.hub.ledger().borrow();
        let mut groups = ledger.node.iter().map(|group| &group.target);
        let tier = groups.find(|it| it.at.as_ref().unwrap().as_str().ends_with("besteffort"));
        let mut entries = tier.unwrap().entries().iter();
        let entry = entries.find(|entry| entry.desired.setting() == setting);
        entry.unwrap().applied.clone()
    }

    async fn brought_in_line(&self, policy: Arc<NodePolicy>) {
        self.hub.set_node_policy(policy);
        self.node_in_line().await;
        pod(&self.hub, &sandbox()).await;
    }

    async fn node_in_line(&self) {
        node(&self.hub).await;
        reconcile::devices::all(&self.hub).await;
    }
}

const TIER: &str = "kubepods/besteffort";
const POD: &str = "kubepods/besteffort/poduid-1";
const CLAIM: &str = r#"{"blocks":[{"name":"data","type":"podvolume","ioCfg":{"writeBPS":6}}]}"#;

#[tokio::test]
async fn a_tier_is_limited_and_the_root_shares_out_until_the_policy_says_no_more() {
    let (_directory, _disks, bench) = machine();
    bench.brought_in_line(policy(LIMITED)).await;
    let limited = "252:16 rbps=1048576 wbps=max riops=max wiops=max, \
                   252:32 rbps=max wbps=max riops=max wiops=7";
    assert_eq!(bench.lines(TIER, "io.max"), limited);
    assert_eq!(bench.lines(TIER, "io.weight"), "default 100, 252:16 50");
    let qos = bench.lines("", "io.cost.qos");
    let expected = "252:16 enable=1 ctrl=user rpct=95.00 rlat=4000 wpct=95.00 wlat=3000 ";
    assert!(qos.starts_with(expected), "{qos}");
    bench.tree.take_writes();
    bench.node_in_line().await;
    assert_eq!(bench.tree.take_writes(), [], "nothing is written at rest");

    let less = "beClass: {blkioQOS: {enable: true, blocks: [
      {name: data, type: volumegroup, ioCfg: {writeIOPS: 7}}]}}";
    bench.brought_in_line(policy(less)).await;
    let limited = "252:32 rbps=max wbps=max riops=max wiops=7";
    assert_eq!(bench.lines(TIER, "io.max"), limited);
    assert_eq!(bench.lines(TIER, "io.weight"), "default 100");
    let of_kernel = "252:16 enable=0 ctrl=auto ";
    assert!(bench.lines("", "io.cost.qos").starts_with(of_kernel));

    assert!(bench.hub.switch_hook("BlkIOReconcile", false));
    bench.node_in_line().await;
    assert_eq!(bench.lines(TIER, "io.max"), "");
    assert_eq!(node_ledger(&bench), [""; 0]);
}

#[tokio::test]
async fn what_is_not_named_any_more_is_given_back_by_the_process_that_follows() {
    let (_directory, disks, before) = machine();
    before.brought_in_line(policy(LIMITED)).await;
    let bench = Bench::with_devices(before.tree.clone(), disks.devices());
    bench.brought_in_line(policy("")).await;
    nothing_is_limited(&bench);
}

fn nothing_is_limited(bench: &Bench) {
    for group in [TIER, POD] {
        assert_eq!(bench.lines(group, "io.max"), "");
        assert_eq!(bench.lines(group, "io.weight"), "default 100");
    }
    let qos = bench.lines("", "io.cost.qos");
    assert!(qos.starts_with("252:16 enable=0 ctrl=auto "), "{qos}");
}

#[tokio::test]
async fn limits_are_given_back_by_a_process_whose_hook_is_off_or_decides_nothing() {
    for is_on in [false, true] {
        let (_directory, disks, before) = machine();
        annotate(&before);
        before.brought_in_line(policy(LIMITED)).await;
        assert_eq!(
            before.lines(POD, "io.max"),
            "252:16 rbps=5 wbps=max riops=max wiops=max"
        );
        let bench = Bench::with_devices(before.tree.clone(), disks.devices()).knowing_pod();
        assert!(bench.hub.switch_hook("BlkIOReconcile", is_on));
        bench.brought_in_line(policy("")).await;
        nothing_is_limited(&bench);
        if !is_on {
            bench.brought_in_line(policy("")).await;
            assert_eq!(node_ledger(&bench), [""; 0]);
        }
    }
}

/// The pod limits itself.
fn annotate(bench: &Bench) {
    let text = r#"{"blocks":[{"name":"/dev/vdb","type":"device","ioCfg":{"readBPS":5}}]}"#;
    let mut ledger = bench.hub.ledger().borrow_mut();
    let pod = ledger.pod_mut(&sandbox()).unwrap();
    pod.view.labels = [(label::QOS_CLASS, "BE")].into_iter().collect();
    pod.view.annotations = [(annotation::BLKIO_QOS, text)].into_iter().collect();
}

#[tokio::test]
async fn a_limit_that_koordlet_has_set_since_stays_and_the_data_path_does_not_look_for_it() {
    let theirs = "252:16 rbps=9 wbps=max riops=max wiops=max";
    for (set, after) in [(Some("252:16 rbps=9"), theirs), (None, "")] {
        let (_directory, _disks, bench) = machine();
        let limited = "beClass: {blkioQOS: {enable: true, blocks: [
          {name: /dev/vdb, type: device, ioCfg: {readBPS: 1048576}}]}}";
        bench.brought_in_line(policy(limited)).await;
        let ours = "252:16 rbps=1048576 wbps=max riops=max wiops=max";
        assert_eq!(bench.lines(TIER, "io.max"), ours);
        if let Some(text) = set {
            let at = CgroupPath::parse(TIER).unwrap();
            let written = bench.tree.write(Controller::Io, &at, "io.max", text);
            written.unwrap();
        }
        bench.hub.set_resting(["BlkIOReconcile"].into());
        bench.tree.take_reads("io.max");
        for group in bench.hub.ledger().borrow_mut().node.iter_mut() {
            stand_back(&bench.hub, &mut group.target);
        }
        assert_eq!(bench.tree.take_reads("io.max"), 0);
        bench.node_in_line().await;
        assert_eq!(bench.lines(TIER, "io.max"), after);
        assert_eq!(node_ledger(&bench), [""; 0]);
    }
}

#[tokio::test]
async fn a_device_that_is_not_found_is_told_until_it_comes() {
    let (_directory, disks, bench) = machine();
    disks.lose("vdb", number("252:16"));
    bench.brought_in_line(policy(LIMITED)).await;
    let limited = "252:32 rbps=max wbps=max riops=max wiops=7";
    assert_eq!(bench.lines(TIER, "io.max"), limited);
    let why = "/dev/vdb: no block device is called /dev/vdb";
    let lacking = Applied::Lacking(why.into());
    assert_eq!(bench.of_tier(Setting::IoReadBps), lacking);
    let report = bench.hub.report(Some("node")).await;
    let report = serde_json::to_string(&report).unwrap();
    assert!(
        report.contains(&format!("not for all devices: {why}")),
        "{report}"
    );

    disks.disk("vdb", number("252:16"));
    bench.node_in_line().await;
    assert_eq!(bench.of_tier(Setting::IoReadBps), Applied::Written);
}

#[tokio::test]
async fn a_pod_is_limited_by_its_annotation_for_its_own_volumes_too() {
    let (_directory, disks, bench) = machine();
    disks.mount(number("253:0"), "uid-1", "pvc-1");
    let text = r#"{"blocks":[
        {"name":"/dev/vdb","type":"device","ioCfg":{"readBPS":5}},
        {"name":"pvc-1","type":"podvolume","ioCfg":{"writeBPS":6}},
        {"name":"pvc-2","type":"podvolume","ioCfg":{"writeBPS":7}}]}"#;
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        pod.view.labels = [(label::QOS_CLASS, "BE")].into_iter().collect();
        pod.view.annotations = [(annotation::BLKIO_QOS, text)].into_iter().collect();
    }
    bench.brought_in_line(Arc::default()).await;
    let limited = "252:16 rbps=5 wbps=max riops=max wiops=max, \
                   253:0 rbps=max wbps=6 riops=max wiops=max";
    assert_eq!(bench.lines(POD, "io.max"), limited);
    let report = bench.hub.report(Some("uid-1")).await;
    let report = serde_json::to_string(&report).unwrap();
    assert!(
        report.contains("not for all devices: volume pvc-2: nothing is mounted at "),
        "{report}"
    );

    assert!(bench.hub.switch_hook("BlkIOReconcile", false));
    pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.lines(POD, "io.max"), "");
}

#[tokio::test]
async fn a_claim_is_found_by_the_volumes_that_the_source_of_pods_says() {
    let (_directory, disks, bench) = machine();
    bench.brought_in_line(Arc::default()).await;
    disks.mount(number("253:0"), "uid-1", "pvc-7f3a");
    disks.mount(number("252:32"), "uid-1", "inline");
    let told = serde_json::json!({
        "metadata": {
            "name": "batch",
            "namespace": "default",
            "uid": "uid-1",
            "labels": {"koordinator.sh/qosClass": "BE"},
            "annotations": {"koordinator.sh/blkioQOS": CLAIM},
        },
        "spec": {"volumes": [
            {"name": "inline", "csi": {"driver": "d"}},
            {"name": "data", "persistentVolumeClaim": {"claimName": "data-batch-0"}},
        ]},
    });
    let told = told.to_string();
    let parsed = Reader::default().read(&told, |_| true).unwrap();
    assert!(parsed.issues.is_empty(), "{:?}", parsed.issues);
    let say = |pods| {
        bench.hub.take_pods(&PodsAnswer {
            pods,
            asked: tokio::time::Instant::now(),
            word: Word::Stands,
        });
    };
    let limited = "253:0 rbps=max wbps=6 riops=max wiops=max";
    let (all, none) = (&parsed.pods[..], &parsed.pods[..0]);
    for (told, expected) in [(all, limited), (none, ""), (all, limited)] {
        say(told.into());
        pod(&bench.hub, &sandbox()).await;
        assert_eq!(bench.lines(POD, "io.max"), expected);
    }
    not_yet_told(&bench.tree, &disks, limited).await;
}

/// A pod of three claims, of which it limits each, and the claims of two of them.
fn with_claims() -> String {
    let limit = |name: &str, bytes: u32| {
        let limit = serde_json::json!({"writeBPS": bytes});
        serde_json::json!({"name": name, "type": "podvolume", "ioCfg": limit})
    };
    let limits = [limit("data", 6), limit("log", 7), limit("raw", 8)];
    let volume = |name: &str| serde_json::json!({"name": name, "persistentVolumeClaim": {"claimName": name}});
    let claim = |name: &str, bound: &str| {
        serde_json::json!({
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": name, "namespace": "default"},
            "spec": {"volumeName": bound},
        })
    };
    let pod = serde_json::json!({
        "kind": "Pod",
        "metadata": {
            "name": "batch",
            "namespace": "default",
            "uid": "uid-1",
            "labels": {"koordinator.sh/qosClass": "BE"},
            "annotations": {
                "koordinator.sh/blkioQOS": serde_json::json!({"blocks": limits}).to_string(),
            },
        },
        "spec": {
            "volumes": [volume("data"), volume("log"), volume("raw")],
            "containers": [{
                "name": "main",
                "volumeDevices": [{"name": "raw", "devicePath": "/dev/raw"}],
            }],
        },
    });
    let items = [pod, claim("data", "pvc-2"), claim("log", "pvc-1")];
    serde_json::json!({"kind": "List", "items": items}).to_string()
}

#[tokio::test]
async fn each_claim_of_a_pod_is_limited_by_the_name_of_its_volume() {
    let (_directory, disks, bench) = machine();
    bench.brought_in_line(Arc::default()).await;
    disks.mount(number("252:32"), "uid-1", "pvc-1");
    disks.mount(number("253:0"), "uid-1", "pvc-2");
    disks.map("252:16", "uid-1", "pvc-3");
    let parsed = Reader::default().read(&with_claims(), |_| true).unwrap();
    assert!(parsed.issues.is_empty(), "{:?}", parsed.issues);
    bench.hub.take_pods(&PodsAnswer {
        pods: parsed.pods.into(),
        asked: tokio::time::Instant::now(),
        word: Word::Stands,
    });
    pod(&bench.hub, &sandbox()).await;
    let limited = "252:16 rbps=max wbps=8 riops=max wiops=max, \
                   252:32 rbps=max wbps=7 riops=max wiops=max, \
                   253:0 rbps=max wbps=6 riops=max wiops=max";
    assert_eq!(bench.lines(POD, "io.max"), limited);
}

/// The process that follows knows the pod's labels and annotations, and has no answer about its volumes.
async fn not_yet_told(tree: &FakeTree, disks: &FakeDisks, limited: &str) {
    let after = Bench::with_devices(tree.clone(), disks.devices()).knowing_pod();
    let annotated = |annotations: &[(&'static str, &'static str)]| {
        let mut ledger = after.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        pod.view.labels = [(label::QOS_CLASS, "BE")].into_iter().collect();
        pod.view.annotations = annotations.iter().copied().collect();
        after.hub.decide_again(pod);
    };
    annotated(&[(annotation::BLKIO_QOS, CLAIM)]);
    after.brought_in_line(Arc::default()).await;
    let decided = serde_json::to_string(&after.hub.report(Some("uid-1")).await).unwrap();
    let lacks = "not for all devices: volume data: nothing is mounted at ";
    assert!(decided.contains(lacks), "{decided}");
    assert_eq!(after.lines(POD, "io.max"), limited);
    annotated(&[]);
    pod(&after.hub, &sandbox()).await;
    assert_eq!(after.lines(POD, "io.max"), "");
}

#[tokio::test]
async fn a_device_that_does_not_answer_holds_up_nothing_but_what_is_of_devices() {
    let (_directory, disks, tree) = disks();
    let (go_on, done) = mpsc::channel();
    let bench = Bench::with_slow_devices(tree, disks.devices(), done).knowing_pod();
    bench.hub.set_node_policy(policy(LIMITED));
    bench.hub.queue().push_node();
    let limited = "252:16 rbps=1048576 wbps=max riops=max wiops=max, \
                   252:32 rbps=max wbps=max riops=max wiops=7";
    let test = async {
        let is_of_rates = |it: Setting| [Setting::IoReadBps, Setting::IoWriteIops].contains(&it);
        let stands = || bench.hub.writer().standing_of_devices();
        until(|| stands().is_some_and(|it| is_of_rates(it.setting))).await;
        for text in ["50000 100000", "70000 100000"] {
            bench.write("cpu.max", text);
            bench.hub.queue().push(sandbox());
            bench.hub.queue().push_node();
            until(|| bench.shown("cpu.max") == "100000 100000").await;
        }
        assert_eq!(bench.lines(TIER, "io.max"), "");
        (0..2).for_each(|_| go_on.send(()).unwrap());
        until(|| bench.lines(TIER, "io.max") == limited).await;
        until(|| bench.of_tier(Setting::IoReadBps) == Applied::Equal).await;
    };
    tokio::select! {
        () = run(bench.hub.clone()) => unreachable!("it never ends"),
        done = tokio::time::timeout(Duration::from_secs(30), test) => {
            done.expect("all wait for one device");
        }
    }
}

#[tokio::test]
async fn a_pods_sandbox_is_made_without_waiting_for_its_block_devices() {
    let (_directory, _disks, bench) = machine();
    let text = r#"{"blocks":[{"name":"/dev/vdb","type":"device","ioCfg":{"readBPS":5}}]}"#;
    let run = cri::RunPodSandboxRequest {
        config: Some(cri::PodSandboxConfig {
            metadata: listed_pod().metadata,
            labels: [(label::QOS_CLASS.to_owned(), "BE".to_owned())].into(),
            annotations: [(annotation::BLKIO_QOS.to_owned(), text.to_owned())].into(),
            linux: Some(cri::LinuxPodSandboxConfig {
                cgroup_parent: bench.pod.to_string(),
            }),
        }),
        ..Default::default()
    };
    let message = run.encode_to_vec();
    let opening = bench.hub.open(Method::RunPodSandbox, &message, None);
    let Opening::Now(decision) = opening else {
        panic!("it waits for a device");
    };
    bench.hub.close(
        decision.pending,
        Reply::Answered {
            grpc_status: Some(0),
            message: Some("sandbox-1".to_owned().encode_to_vec()),
        },
    );
    assert_eq!(bench.lines(POD, "io.max"), "");
    all_that_waits(&bench.hub).await;
    let limited = "252:16 rbps=5 wbps=max riops=max wiops=max";
    assert_eq!(bench.lines(POD, "io.max"), limited);
}

use super::*;
use crate::fixture::{decide_pod, node, node_with, pod, shown};
use koord_model::{CostModel, CostQos, CostRates, IoRate, IoWeight, Latency};
use koord_proto::policy::{BlockQos, NodePolicy, NodeSloSpec};
use std::sync::Arc;

fn rate(rate: i64) -> IoRate {
    IoRate::new(rate).unwrap()
}

fn device(name: &str) -> Block {
    Block::Device(BlockName::device(name).unwrap())
}

fn group(name: &str) -> Block {
    Block::VolumeGroup(BlockName::volume_group(name).unwrap())
}

fn under(best_effort: Vec<(Block, IoLimits)>, root: Vec<(Block, DiskCost)>) -> NodeView {
    node_with(NodePolicy {
        slo: Some(NodeSloSpec {
            block_qos: BlockQos { best_effort, root },
            ..NodeSloSpec::default()
        }),
        ..NodePolicy::default()
    })
}

fn limits() -> Vec<(Block, IoLimits)> {
    vec![
        (
            device("/dev/vdb"),
            IoLimits {
                read_bps: Some(rate(1_048_576)),
                write_bps: Some(rate(2)),
                read_iops: Some(rate(3)),
                write_iops: Some(rate(4)),
                weight: IoWeight::new(60).ok(),
            },
        ),
        (
            group("data"),
            IoLimits {
                read_bps: Some(rate(5)),
                ..IoLimits::default()
            },
        ),
    ]
}

fn costs() -> Vec<(Block, DiskCost)> {
    let latency = |micros| Latency::new(95, micros).unwrap();
    let qos = CostQos {
        read: latency(3_000),
        write: latency(4_000),
    };
    let rates = CostRates {
        bytes: rate(1),
        sequential: rate(2),
        random: rate(3),
    };
    let model = Some(CostModel {
        read: rates,
        write: rates,
    });
    vec![
        (device("vdb"), DiskCost { qos, model }),
        (device("vdc"), DiskCost { qos, model: None }),
    ]
}

const OF_BE: &str = "blkio.throttle.read_bps_device=1048576 of /dev/vdb, 5 of volume group data \
                     blkio.throttle.write_bps_device=2 of /dev/vdb \
                     blkio.throttle.read_iops_device=3 of /dev/vdb \
                     blkio.throttle.write_iops_device=4 of /dev/vdb \
                     blkio.cost.weight=60 of /dev/vdb";

const OF_ROOT: &str = "blkio.cost.qos=\
    reads 95% in 3000 us, writes 95% in 4000 us of /dev/vdb, \
    reads 95% in 3000 us, writes 95% in 4000 us of /dev/vdc \
    blkio.cost.model=\
    reads 1 bytes, 2 in a row, 3 anywhere, writes 1 bytes, 2 in a row, 3 anywhere of /dev/vdb";

/// What is decided for the root, and for the directory of best-effort pods.
fn of_node(node: &NodeView) -> [String; 2] {
    let decided = Blkio.decide_node(node).unwrap();
    assert!(decided.host_applications.is_empty());
    let tiers: Vec<_> = decided.tiers.keys().copied().collect();
    assert!(tiers.is_empty() || tiers == [KubeQos::BestEffort]);
    let be = decided.tiers.get(&KubeQos::BestEffort);
    [shown(&decided.root), be.map(shown).unwrap_or_default()]
}

#[test]
fn the_policy_limits_best_effort_pods_together_and_shares_out_disks_at_the_root() {
    assert_eq!(of_node(&under(limits(), costs())), [OF_ROOT, OF_BE]);
}

#[test]
fn a_policy_that_names_no_device_gives_back_those_that_were_named() {
    let nothing = |settings: &[Setting]| {
        let shown = settings.iter().map(|setting| format!("{setting}=nothing"));
        shown.collect::<Vec<_>>().join(" ")
    };
    let (of_pods, of_root) = META.settings.split_at(5);
    let expected = [nothing(of_root), nothing(of_pods)];
    assert_eq!(of_node(&under(Vec::new(), Vec::new())), expected);
    // Before the first policy nothing is decided.
    assert_eq!(of_node(&node()), ["", ""]);
}

#[test]
fn a_pod_with_a_class_has_the_limits_of_its_annotation() {
    let text = r#"{"blocks":[
        {"name":"vdb","type":"device","ioCfg":{"readBPS":7,"ioWeightPercent":50}},
        {"name":"pvc-1","type":"podvolume","ioCfg":{"writeIOPS":8}}]}"#;
    let decided = |class| {
        let pod = pod(class, &[(annotation::BLKIO_QOS, text)]);
        shown(&decide_pod(&Blkio, &pod, &under(limits(), costs())).unwrap())
    };
    let expected = "blkio.throttle.read_bps_device=7 of /dev/vdb \
                    blkio.throttle.write_bps_device=nothing \
                    blkio.throttle.read_iops_device=nothing \
                    blkio.throttle.write_iops_device=8 of volume pvc-1 \
                    blkio.cost.weight=50 of /dev/vdb";
    for class in ["LSE", "LSR", "LS", "BE", "SYSTEM"] {
        assert_eq!(decided(class), expected, "{class}");
    }
    for class in ["", "Gold"] {
        assert_eq!(decided(class), "", "{class}");
    }
    let without = pod("LS", &[]);
    let decided = decide_pod(&Blkio, &without, &under(limits(), costs())).unwrap();
    assert_eq!(shown(&decided), "");
}

#[test]
fn a_volume_is_one_of_the_pod_that_names_it() {
    let text = r#"{"blocks":[{"name":"pvc-1","type":"podvolume","ioCfg":{"readBPS":1}}]}"#;
    let pod = pod("BE", &[(annotation::BLKIO_QOS, text)]);
    let decided = decide_pod(&Blkio, &pod, &node()).unwrap();
    let rates = decided.io_read_bps.unwrap();
    let named = Block::PodVolume {
        pod: pod.uid,
        volume: BlockName::volume("pvc-1").unwrap(),
    };
    assert_eq!(rates.iter().collect::<Vec<_>>(), [(&named, &rate(1))]);
}

/// The blocks that an annotation names, of a pod with these volumes.
fn named(text: &str, volumes: impl IntoIterator<Item = VolumeSpec>) -> Vec<Block> {
    let spec = PodSpec {
        volumes: volumes.into_iter().collect(),
        ..PodSpec::default()
    };
    let mut pod = pod("BE", &[(annotation::BLKIO_QOS, text)]);
    pod.spec = Some(Arc::new(spec));
    let decided = decide_pod(&Blkio, &pod, &node()).unwrap();
    let rates = decided.io_read_bps.unwrap();
    rates.iter().map(|(block, _)| block.clone()).collect()
}

#[test]
fn the_only_claim_of_a_pod_is_known_by_its_other_volumes() {
    let text = r#"{"blocks":[
        {"name":"data","type":"podvolume","ioCfg":{"readBPS":1}},
        {"name":"pvc-1","type":"podvolume","ioCfg":{"readBPS":2}}]}"#;
    let named = |volumes: &[(&str, bool)]| {
        let volumes = volumes.iter().map(|(name, is_claim)| VolumeSpec {
            name: (*name).to_owned(),
            is_claim: *is_claim,
            ..VolumeSpec::default()
        });
        named(text, volumes)
    };
    let pod = pod("BE", &[]).uid;
    let volume = |name| BlockName::volume(name).unwrap();
    let by_name = |name| Block::PodVolume {
        pod: pod.clone(),
        volume: volume(name),
    };
    let claim = Block::PodClaim {
        pod: pod.clone(),
        volume: volume("data"),
        others: Arc::new([volume("tmp"), volume("token")]),
    };
    let only = [("tmp", false), ("data", true), ("token", false)];
    assert_eq!(named(&only), [by_name("pvc-1"), claim]);
    let both = [by_name("data"), by_name("pvc-1")];
    assert_eq!(named(&[("data", true), ("logs", true)]), both);
    assert_eq!(named(&[("data", false), ("logs", true)]), both);
    assert_eq!(named(&[]), both);
}

#[test]
fn a_claim_that_is_a_device_is_told_apart_from_one_that_is_mounted() {
    let text = r#"{"blocks":[
        {"name":"data","type":"podvolume","ioCfg":{"readBPS":1}},
        {"name":"raw","type":"podvolume","ioCfg":{"readBPS":2}}]}"#;
    let claim = |name: &str, is_device| VolumeSpec {
        name: name.to_owned(),
        is_claim: true,
        is_device,
        ..VolumeSpec::default()
    };
    let other = VolumeSpec {
        name: "tmp".to_owned(),
        ..VolumeSpec::default()
    };
    let uid = pod("BE", &[]).uid;
    let volume = |name| BlockName::volume(name).unwrap();
    let by_name = |name| Block::PodVolume {
        pod: uid.clone(),
        volume: volume(name),
    };
    let mounted = Block::PodClaim {
        pod: uid.clone(),
        volume: volume("data"),
        others: Arc::new([volume("tmp")]),
    };
    let raw = Block::RawClaim {
        pod: uid.clone(),
        volume: volume("raw"),
    };
    let both = [claim("data", false), claim("raw", true), other];
    let and = |name, is_device| both.iter().cloned().chain([claim(name, is_device)]);
    assert_eq!(named(text, both.clone()), [mounted.clone(), raw.clone()]);
    assert_eq!(named(text, and("log", true)), [by_name("raw"), mounted]);
    assert_eq!(named(text, and("log", false)), [by_name("data"), raw]);
}

#[test]
fn claims_are_known_by_what_they_are_bound_to() {
    let data = r#"{"blocks":[{"name":"data","type":"podvolume","ioCfg":{"readBPS":1}}]}"#;
    let log = r#"{"blocks":[{"name":"log","type":"podvolume","ioCfg":{"readBPS":1}}]}"#;
    let uid = pod("BE", &[]).uid;
    let volume = |name| BlockName::volume(name).unwrap();
    let claim = |name: &str, bound| VolumeSpec {
        name: name.to_owned(),
        is_claim: true,
        bound: Some(volume(bound)),
        ..VolumeSpec::default()
    };
    let by_name = |name| Block::PodVolume {
        pod: uid.clone(),
        volume: volume(name),
    };
    let both = [claim("data", "pvc-2"), claim("log", "pvc-1")];
    assert_eq!(named(data, both.clone()), [by_name("pvc-2")]);
    assert_eq!(named(log, both), [by_name("pvc-1")]);
}

#[test]
fn what_the_kernel_has_no_file_for_is_not_decided() {
    let mut node = under(limits(), costs());
    for setting in [Setting::IoWeight, Setting::IoCostQos, Setting::IoCostModel] {
        node.kernel.files.remove(&setting);
    }
    let rates = OF_BE
        .strip_suffix(" blkio.cost.weight=60 of /dev/vdb")
        .unwrap();
    assert_eq!(of_node(&node), ["", rates]);
    assert_eq!(Blkio.unsupported(&node), None);

    node.kernel.files.clear();
    assert_eq!(of_node(&node), ["", ""]);
    let reason = Blkio.unsupported(&node).unwrap();
    assert!(reason.contains("block devices"), "{reason}");
}

//! What a policy says of block devices.

use super::*;
use crate::annotation::IoLimits;
use koord_model::{Block, IoRate};

/// As a person reads it: the devices with their limits, those of the root with their costs, and what
/// is wrong.
fn read(strategy: &str) -> (String, String, Vec<String>) {
    let (slo, issues) = slo_issues(&format!("{{resourceQOSStrategy: {{{strategy}}}}}"));
    let limit = |(block, it): &(Block, IoLimits)| {
        let rates = [it.read_bps, it.write_bps, it.read_iops, it.write_iops];
        let rates = rates.map(|rate| rate.map_or(0, IoRate::get));
        let weight = it
            .weight
            .map_or(String::new(), |weight| format!(" {weight}%"));
        format!("{block} {rates:?}{weight}")
    };
    let cost = |(block, it): &(Block, DiskCost)| {
        let model = it
            .model
            .map_or(String::new(), |model| format!(" ({model})"));
        format!("{block} {}{model}", it.qos)
    };
    let BlockQos { best_effort, root } = slo.block_qos;
    (
        best_effort.iter().map(limit).collect::<Vec<_>>().join("; "),
        root.iter().map(cost).collect::<Vec<_>>().join("; "),
        issues,
    )
}

fn of_be(blocks: &str) -> (String, Vec<String>) {
    let (be, root, issues) = read(&format!(
        "beClass: {{blkioQOS: {{enable: true, blocks: [{blocks}]}}}}"
    ));
    assert_eq!(root, "");
    (be, issues)
}

fn of_root(config: &str) -> (String, Vec<String>) {
    let (be, root, issues) = read(&format!(
        "cgroupRoot: {{blkioQOS: {{enable: true, blocks: [{{name: vdb, type: device, ioCfg: {{{config}}}}}]}}}}"
    ));
    assert_eq!(be, "");
    (root, issues)
}

const MODEL: &str = "enableUserModel: true, modelReadBPS: 1, modelReadSeqIOPS: 2, \
    modelReadRandIOPS: 3, modelWriteBPS: 4, modelWriteSeqIOPS: 5";

#[test]
fn best_effort_pods_are_limited_by_device_and_by_volume_group() {
    let (be, issues) = of_be(
        "{name: /dev/vdb, type: device, ioCfg: {readBPS: 1048576, writeBPS: 2, readIOPS: 3,
           writeIOPS: 4, ioWeightPercent: 60}},
         {name: data, type: volumegroup, ioCfg: {readBPS: 0}},
         {name: vdc, type: device}",
    );
    assert_eq!(issues, [""; 0]);
    assert_eq!(
        be,
        "/dev/vdb [1048576, 2, 3, 4] 60%; volume group data [0, 0, 0, 0]; /dev/vdc [0, 0, 0, 0]"
    );
}

#[test]
fn a_disk_is_shared_out_by_koordinators_defaults_where_nothing_else_is_said() {
    for (config, expected) in [
        ("", "/dev/vdb reads 95% in 3000 us, writes 95% in 3000 us"),
        (
            "readLatency: 4000, writeLatency: 5000, readLatencyPercent: 90, writeLatencyPercent: 80",
            "/dev/vdb reads 90% in 4000 us, writes 80% in 5000 us",
        ),
        // Of a model that is not enabled nothing counts.
        (
            "modelReadBPS: 7",
            "/dev/vdb reads 95% in 3000 us, writes 95% in 3000 us",
        ),
        (
            &format!("{MODEL}, modelWriteRandIOPS: 6"),
            "/dev/vdb reads 95% in 3000 us, writes 95% in 3000 us \
             (reads 1 bytes, 2 in a row, 3 anywhere, writes 4 bytes, 5 in a row, 6 anywhere)",
        ),
    ] {
        assert_eq!(
            of_root(config),
            (expected.to_owned(), Vec::new()),
            "{config}"
        );
    }
}

#[test]
fn what_is_not_enabled_is_not_in_force() {
    let blocks = "[{name: vdb, type: device, ioCfg: {readBPS: 5}}]";
    for enable in ["", "enable: false, "] {
        let section = format!("{{blkioQOS: {{{enable}blocks: {blocks}}}}}");
        let all = [
            "lsrClass",
            "lsClass",
            "beClass",
            "systemClass",
            "cgroupRoot",
        ];
        let all = all.map(|class| format!("{class}: {section}")).join(", ");
        assert_eq!(read(&all), (String::new(), String::new(), Vec::new()));
    }
}

#[test]
fn limits_of_classes_without_a_directory_of_their_own_are_an_issue() {
    for class in ["lsrClass", "lsClass", "systemClass"] {
        let of = |blocks| {
            read(&format!(
                "{class}: {{blkioQOS: {{enable: true, blocks: {blocks}}}}}"
            ))
        };
        let (be, root, issues) = of("[{name: vdb, type: device, ioCfg: {readBPS: 5}}]");
        assert_eq!((be.as_str(), root.as_str()), ("", ""));
        let expected = format!(
            "\"spec.resourceQOSStrategy.{class}.blkioQOS.blocks\": limits of block devices are \
             taken of beClass, cgroupRoot and pods: pods of this class have no directory of their own"
        );
        assert_eq!(issues, [expected]);
        assert_eq!(of("[]").2, [""; 0]);
    }
}

#[test]
fn a_wrong_limit_costs_that_limit_and_a_block_without_a_name_itself() {
    let good = "{name: vdc, type: device, ioCfg: {writeBPS: 1}}";
    let begin = "\"spec.resourceQOSStrategy.beClass.blkioQOS.blocks[0].";
    for (block, left, issue) in [
        (
            "{name: vdb, type: device, ioCfg: {readBPS: -1, writeBPS: 5}}",
            "/dev/vdb [0, 5, 0, 0]; ",
            "ioCfg.readBPS\": value -1 is outside 0 to 9223372036854775807",
        ),
        (
            "{name: vdb, type: device, ioCfg: {ioWeightPercent: 0}}",
            "/dev/vdb [0, 0, 0, 0]; ",
            "ioCfg.ioWeightPercent\": value 0 is outside 1 to 100",
        ),
        (
            "{name: vdb, type: device, ioCfg: {readIOPS: 1k}}",
            "/dev/vdb [0, 0, 0, 0]; ",
            "ioCfg.readIOPS\": value is \"1k\", not a whole number from 0 to 9223372036854775807",
        ),
        ("{type: device}", "", "name\": value is missing"),
        ("{name: vdb}", "", "type\": value is missing"),
        (
            "{name: vdb, type: podvolume}",
            "",
            "type\": value \"podvolume\" is none of device, volumegroup",
        ),
        (
            "{name: /dev/../sda, type: device}",
            "",
            "name\": value is no name: \"/dev/../sda\" is no name of a block device",
        ),
    ] {
        let (be, issues) = of_be(&format!("{block}, {good}"));
        assert_eq!(be, format!("{left}/dev/vdc [0, 1, 0, 0]"), "{block}");
        assert_eq!(issues, [format!("{begin}{issue}")]);
    }
}

#[test]
fn a_wrong_latency_costs_that_one_and_a_model_needs_all_its_numbers() {
    let begin = "\"spec.resourceQOSStrategy.cgroupRoot.blkioQOS.blocks[0].ioCfg.";
    let defaults = "/dev/vdb reads 95% in 3000 us, writes 95% in 3000 us";
    for (config, issue) in [
        (
            "readLatencyPercent: 101".to_owned(),
            "readLatencyPercent\": value 101 is outside 0 to 100",
        ),
        (
            "writeLatency: 4294967296".to_owned(),
            "writeLatency\": value 4294967296 is outside 0 to 4294967295",
        ),
        (MODEL.to_owned(), "modelWriteRandIOPS\": value is missing"),
        (
            format!("{MODEL}, modelWriteRandIOPS: 0"),
            "modelWriteRandIOPS\": value 0 is outside 1 to 9223372036854775807",
        ),
    ] {
        let expected = (defaults.to_owned(), vec![format!("{begin}{issue}")]);
        assert_eq!(of_root(&config), expected, "{config}");
    }
}

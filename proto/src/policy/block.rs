//! What a NodeSLO says of block devices.

use super::{issue::Problem, place::Place};
use crate::annotation::IoLimits;
use koord_model::{Block, BlockName, CostModel, CostQos, CostRates, IoRate, IoWeight, Latency};

/// What may be done to which block devices.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BlockQos {
    /// By all best-effort pods together.
    pub best_effort: Vec<(Block, IoLimits)>,
    /// How the time of disks is shared out.
    pub root: Vec<(Block, DiskCost)>,
}

/// How the time of a disk is shared out.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct DiskCost {
    pub qos: CostQos,
    /// `None`: what the kernel takes the disk for.
    pub model: Option<CostModel>,
}

#[derive(Clone, Copy)]
enum Kind {
    Device,
    VolumeGroup,
}

const KINDS: [(&str, Kind); 2] = [("device", Kind::Device), ("volumegroup", Kind::VolumeGroup)];

/// Koordinator's, of what is not said.
const PERCENT: i64 = 95;
const MICROS: i64 = 3_000;

// === impl BlockQos ===

impl BlockQos {
    /// What is said in the sections of classes.
    pub(super) fn read(strategy: &Place<'_>) -> Self {
        // What of a class is no mapping is said by whoever reads the class.
        let of = |key: &str| strategy.field(key).section("blkioQOS");
        for class in ["lsrClass", "lsClass", "systemClass"] {
            refuse(&of(class));
        }
        Self {
            best_effort: blocks(&of("beClass"), limits),
            root: blocks(
                &strategy.section("cgroupRoot").section("blkioQOS"),
                DiskCost::read,
            ),
        }
    }
}

/// The blocks of a section `blkioQOS`, if it is enabled. A block without a name or a kind costs
/// itself.
fn blocks<T>(section: &Place<'_>, value: impl Fn(&Place<'_>) -> T) -> Vec<(Block, T)> {
    let blocks = section.field("blocks").elements();
    let read = |place: &Place<'_>| {
        let block = named(place);
        let value = value(&place.section("ioCfg"));
        Some((block?, value))
    };
    let blocks: Vec<_> = blocks.iter().filter_map(read).collect();
    match section.field("enable").boolean() {
        Some(true) => blocks,
        _ => Vec::new(),
    }
}

/// A section that is not heeded says so, if anything is in it.
fn refuse(section: &Place<'_>) {
    let blocks = section.field("blocks");
    if section.field("enable").boolean() == Some(true) && !blocks.elements().is_empty() {
        blocks.report(Problem::NoDirectory);
    }
}

fn limits(place: &Place<'_>) -> IoLimits {
    // 0 is no limit.
    let rate = |key: &str| IoRate::new(place.field(key).integer(0, IoRate::MAX)?).ok();
    let weight = place.field("ioWeightPercent");
    let weight = weight.integer(IoWeight::MIN, IoWeight::MAX);
    IoLimits {
        read_bps: rate("readBPS"),
        write_bps: rate("writeBPS"),
        read_iops: rate("readIOPS"),
        write_iops: rate("writeIOPS"),
        weight: weight.and_then(|percent| IoWeight::new(percent).ok()),
    }
}

fn named(place: &Place<'_>) -> Option<Block> {
    let (name, kind) = (place.field("name"), place.field("type"));
    for place in [&name, &kind] {
        if place.is_blank() {
            place.report(Problem::Missing);
        }
    }
    match kind.name(&KINDS)? {
        Kind::Device => name.parsed(BlockName::device).map(Block::Device),
        Kind::VolumeGroup => name.parsed(BlockName::volume_group).map(Block::VolumeGroup),
    }
}

// === impl DiskCost ===

impl DiskCost {
    fn read(place: &Place<'_>) -> Self {
        let latency = |percent: &str, micros: &str| {
            let percent = place.field(percent).integer(0, Latency::MAX_PERCENT);
            let micros = place.field(micros).integer(0, Latency::MAX_MICROS);
            Latency::new(percent.unwrap_or(PERCENT), micros.unwrap_or(MICROS))
                .expect("both are in range")
        };
        let qos = CostQos {
            read: latency("readLatencyPercent", "readLatency"),
            write: latency("writeLatencyPercent", "writeLatency"),
        };
        let own = place.field("enableUserModel").boolean() == Some(true);
        Self {
            qos,
            model: if own { model(place) } else { None },
        }
    }
}

/// All six of its numbers, or none.
fn model(place: &Place<'_>) -> Option<CostModel> {
    let rate = |key: &str| {
        let place = place.field(key);
        if !place.is_there() {
            place.report(Problem::Missing);
        }
        IoRate::new(place.integer(IoRate::MIN, IoRate::MAX)?).ok()
    };
    let rates = |bytes: &str, sequential: &str, random: &str| {
        let (bytes, sequential, random) = (rate(bytes), rate(sequential), rate(random));
        Some(CostRates {
            bytes: bytes?,
            sequential: sequential?,
            random: random?,
        })
    };
    let read = rates("modelReadBPS", "modelReadSeqIOPS", "modelReadRandIOPS");
    let write = rates("modelWriteBPS", "modelWriteSeqIOPS", "modelWriteRandIOPS");
    Some(CostModel {
        read: read?,
        write: write?,
    })
}

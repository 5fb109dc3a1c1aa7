//! What a pod, or all of a class together, may do to block devices.

use super::{
    error::{AnnotationError, Misfit, Reason},
    json::{self, Decode},
};
use crate::keys::annotation::BLKIO_QOS;
use koord_model::{Block, BlockName, IoRate, IoWeight, PodUid, RangeError};

/// Blocks that an annotation may name. Each is looked up whenever the pod is held against the kernel.
const MAX_BLOCKS: usize = 32;

/// What is said of a device; what is not said is not decided.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct IoLimits {
    pub read_bps: Option<IoRate>,
    pub write_bps: Option<IoRate>,
    pub read_iops: Option<IoRate>,
    pub write_iops: Option<IoRate>,
    pub weight: Option<IoWeight>,
}

/// Reads the annotation [`BLKIO_QOS`] of a pod.
///
/// # Errors
///
/// When the text is not what every annotation in JSON has to be ([`AnnotationError`]), or names more than 32
/// blocks. Or when the type of a block is none of `device`, `volumegroup` and `podvolume`, its name is not
/// one of that type ([`BlockName`]), a rate is negative, or a weight is outside 1 to 100 percent.
pub fn block_limits(text: &str, pod: &PodUid) -> Result<Vec<(Block, IoLimits)>, AnnotationError> {
    let BlkioQos { blocks } = json::parse(BLKIO_QOS, text)?;
    if blocks.len() > MAX_BLOCKS {
        let misfit = Misfit::from(Box::new(RangeError {
            what: "number of blocks",
            value: blocks.len() as i128,
            min: 0,
            max: MAX_BLOCKS as i128,
        }));
        return Err(misfit.inside(".blocks".to_owned()).of(BLKIO_QOS));
    }
    let named = blocks.into_iter().enumerate().map(|(index, entry)| {
        let inside = |misfit: Misfit| misfit.inside(format!(".blocks[{index}]"));
        let limits = entry.limits.0;
        let block = entry.block(pod).map_err(inside);
        Ok((block.map_err(|misfit| misfit.of(BLKIO_QOS))?, limits))
    });
    named.collect()
}

#[derive(Default)]
struct BlkioQos {
    blocks: Vec<Entry>,
}

json::object!(BlkioQos { "blocks" => blocks });

#[derive(Default)]
struct Entry {
    name: String,
    kind: String,
    limits: Said,
}

json::object!(Entry {
    "name" => name,
    "type" => kind,
    "ioCfg" => limits,
});

#[derive(Default)]
struct Said(IoLimits);

/// The same, before what is 0 counts as nothing.
#[derive(Default)]
struct Numbers {
    read_bps: Rate,
    write_bps: Rate,
    read_iops: Rate,
    write_iops: Rate,
    weight: Weight,
}

json::object!(Numbers {
    "readBPS" => read_bps,
    "writeBPS" => write_bps,
    "readIOPS" => read_iops,
    "writeIOPS" => write_iops,
    "ioWeightPercent" => weight,
});

/// Bytes or operations in a second, of which 0 is no limit.
#[derive(Default)]
struct Rate(Option<IoRate>);

#[derive(Default)]
struct Weight(Option<IoWeight>);

// === impl Entry ===

impl Entry {
    const KINDS: [&str; 3] = ["device", "volumegroup", "podvolume"];

    fn block(&self, pod: &PodUid) -> Result<Block, Misfit> {
        let name = self.name.as_str();
        let block = match self.kind.as_str() {
            "device" => BlockName::device(name).map(Block::Device),
            "volumegroup" => BlockName::volume_group(name).map(Block::VolumeGroup),
            "podvolume" => BlockName::volume(name).map(|volume| Block::PodVolume {
                pod: pod.clone(),
                volume,
            }),
            _ => {
                let misfit = Misfit::from(Reason::NotOneOf {
                    value: json::shown(&self.kind),
                    allowed: Self::KINDS.to_vec(),
                });
                return Err(misfit.inside(".type".to_owned()));
            }
        };
        block.map_err(|error| Misfit::from(error).inside(".name".to_owned()))
    }
}

// === impl Decode ===

impl Decode for Said {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        let mut said = Numbers::default();
        said.decode(json)?;
        self.0 = IoLimits {
            read_bps: said.read_bps.0,
            write_bps: said.write_bps.0,
            read_iops: said.read_iops.0,
            write_iops: said.write_iops.0,
            weight: said.weight.0,
        };
        Ok(())
    }
}

impl Decode for Rate {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        self.0 = match json::is_null(json) {
            true => None,
            false => json::ranged(json, rate)?,
        };
        Ok(())
    }
}

impl Decode for Weight {
    fn decode(&mut self, json: &str) -> Result<(), Misfit> {
        self.0 = match json::is_null(json) {
            true => None,
            false => Some(json::ranged(json, IoWeight::new)?),
        };
        Ok(())
    }
}

fn rate(number: i64) -> Result<Option<IoRate>, RangeError> {
    match number {
        0 => Ok(None),
        rate => IoRate::new(rate)
            .map(Some)
            .map_err(|error| RangeError { min: 0, ..error }),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::error::Error;

    fn shown(text: &str) -> String {
        let pod = PodUid::new("uid-1").unwrap();
        let limits = match block_limits(text, &pod) {
            Ok(limits) => limits,
            Err(error) => {
                let reason = error.source().unwrap();
                let cause = reason.source().map(|it| format!(": {it}"));
                return format!("{error}: {reason}{}", cause.unwrap_or_default());
            }
        };
        let limit = |(block, it): &(Block, IoLimits)| {
            let rates = [it.read_bps, it.write_bps, it.read_iops, it.write_iops];
            let rates = rates.map(|rate| rate.map_or(0, IoRate::get));
            let weight = it
                .weight
                .map_or(String::new(), |weight| format!(" {weight}%"));
            format!("{block} {rates:?}{weight}")
        };
        limits.iter().map(limit).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn limits_are_said_for_devices_groups_and_volumes() {
        for (text, expected) in [
            ("{}", ""),
            ("null", ""),
            (r#"{"blocks":null}"#, ""),
            (
                r#"{"blocks":[{"name":"/dev/vdb","type":"device","ioCfg":{"readBPS":1048576}}]}"#,
                "/dev/vdb [1048576, 0, 0, 0]",
            ),
            (
                r#"{"blocks":[{"name":"data","type":"volumegroup","ioCfg":{"ioWeightPercent":60}},
                   {"name":"pvc-1","type":"podvolume","ioCfg":{"writeBPS":2,"readIOPS":3,"writeIOPS":4}}]}"#,
                "volume group data [0, 0, 0, 0] 60%; volume pvc-1 [0, 2, 3, 4]",
            ),
            (
                r#"{"Blocks":[{"NAME":"vdb","Type":"device","IOCfg":{"READBPS":0,"unheard":[]}}]}"#,
                "/dev/vdb [0, 0, 0, 0]",
            ),
            (
                r#"{"blocks":[{"name":"vdb","type":"device"}]}"#,
                "/dev/vdb [0, 0, 0, 0]",
            ),
        ] {
            assert_eq!(shown(text), expected, "{text}");
        }
    }

    #[test]
    fn no_more_than_32_blocks_are_limited() {
        let blocks = |count| {
            let names = (0..count).map(|index| format!(r#"{{"name":"v{index}","type":"device"}}"#));
            let names: Vec<String> = names.collect();
            shown(&format!(r#"{{"blocks":[{}]}}"#, names.join(",")))
        };
        assert_eq!(blocks(32).split("; ").count(), 32);
        assert_eq!(
            blocks(33),
            "annotation koordinator.sh/blkioQOS is unusable at $.blocks: value is out of range: \
             number of blocks 33 is outside 0 to 32"
        );
    }

    #[test]
    fn what_is_wrong_is_named_with_its_place() {
        let begin = "annotation koordinator.sh/blkioQOS is unusable at $.blocks";
        for (text, expected) in [
            (r#"{"blocks":{}}"#, ": value is an object, not a list"),
            (
                r#"{"blocks":[{"name":"vdb"}]}"#,
                "[0].type: value \"\" is none of device, volumegroup, podvolume",
            ),
            (
                r#"{"blocks":[{"name":"vdb","type":"device"},{"name":"vdb","type":"disk"}]}"#,
                "[1].type: value \"disk\" is none of device, volumegroup, podvolume",
            ),
            (
                r#"{"blocks":[{"type":"device"}]}"#,
                r#"[0].name: value is no name: "" is no name of a block device"#,
            ),
            (
                r#"{"blocks":[{"name":"/dev/../sda","type":"device"}]}"#,
                r#"[0].name: value is no name: "/dev/../sda" is no name of a block device"#,
            ),
            (
                r#"{"blocks":[{"name":"../../uid-2/volumes","type":"podvolume"}]}"#,
                r#"[0].name: value is no name: "../../uid-2/volumes" is no name of a volume"#,
            ),
            (
                r#"{"blocks":[{"name":"vdb","type":"device","ioCfg":{"readBPS":-1}}]}"#,
                "[0].ioCfg.readBPS: value is out of range: rate -1 is outside 0 to 9223372036854775807",
            ),
            (
                r#"{"blocks":[{"name":"vdb","type":"device","ioCfg":{"writeIOPS":"5"}}]}"#,
                "[0].ioCfg.writeIOPS: value is \"5\", not a whole number from 0 to 9223372036854775807",
            ),
            (
                r#"{"blocks":[{"name":"vdb","type":"device","ioCfg":{"ioWeightPercent":0}}]}"#,
                "[0].ioCfg.ioWeightPercent: value is out of range: percent 0 is outside 1 to 100",
            ),
        ] {
            assert_eq!(shown(text), format!("{begin}{expected}"), "{text}");
        }
    }
}

//! Block devices, and what groups of processes may do to them.

use crate::{
    PodUid,
    cpu::{RangeError, check},
    excerpt,
};
use std::{collections::BTreeMap, fmt, str::FromStr, sync::Arc};
use thiserror::Error;

/// A device as the kernel numbers it. The number may be that of another device tomorrow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct DeviceNumber {
    pub major: u32,
    pub minor: u32,
}

/// What a device, a volume group or a volume is called. Whoever creates a pod may say it, so it is
/// one that leads nowhere else.
#[derive(Clone, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockName(Arc<str>);

/// Why a text is no name of a device, a volume group or a volume.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("{text:?} is no name of a {what}")]
pub struct BlockNameError {
    pub what: &'static str,
    pub text: String,
}

/// One or more devices, as people call them. Which they are at a time the machine says.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Block {
    /// By its name below `/dev`.
    Device(BlockName),
    /// All disks that the volumes of an LVM group are on.
    VolumeGroup(BlockName),
    /// What a volume of a pod is on, by the name of its directory below the pod's.
    PodVolume { pod: PodUid, volume: BlockName },
    /// What the only claim among a pod's mounted volumes is on. The name of its directory the pod's
    /// spec does not say: it is the one that none of the `others` has.
    PodClaim {
        pod: PodUid,
        volume: BlockName,
        others: Arc<[BlockName]>,
    },
    /// What the only claim is on that a pod has as a device, without a file system.
    RawClaim { pod: PodUid, volume: BlockName },
}

/// A value for each of these; all other devices are left as they are.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub struct PerBlock<T>(Arc<BTreeMap<Block, T>>);

/// Bytes or operations in a second, at least one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IoRate(u64);

/// A part of a device's time, in relation to those of others: 100 is what a group has by itself.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct IoWeight(u8);

/// From where on a device counts as busy: so many percent of its requests take longer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CostQos {
    pub read: Latency,
    pub write: Latency,
}

/// That many percent of all requests are to be done in that many microseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Latency {
    percent: u8,
    micros: u32,
}

/// What a device can do in a second, from which the kernel reckons what a request costs.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CostModel {
    pub read: CostRates,
    pub write: CostRates,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct CostRates {
    pub bytes: IoRate,
    /// Requests one after the other on the device.
    pub sequential: IoRate,
    pub random: IoRate,
}

/// The longest name of a file.
const MAX_NAME: usize = 255;

// === impl DeviceNumber ===

impl fmt::Display for DeviceNumber {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.major, self.minor)
    }
}

/// A text is no device number.
#[derive(Debug, Error, PartialEq, Eq)]
#[error("a device number is two numbers with a colon between them")]
pub struct DeviceNumberError;

impl FromStr for DeviceNumber {
    type Err = DeviceNumberError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (major, minor) = text.split_once(':').ok_or(DeviceNumberError)?;
        let number = |text: &str| text.parse().map_err(|_| DeviceNumberError);
        Ok(Self {
            major: number(major)?,
            minor: number(minor)?,
        })
    }
}

// === impl BlockName ===

impl BlockName {
    /// A name below `/dev`, said with that or without.
    ///
    /// # Errors
    ///
    /// When what is below `/dev` has more than 255 bytes, or one of its components is empty, `.` or `..`, or
    /// has a character that is not visible ASCII (`!` to `~`).
    pub fn device(text: &str) -> Result<Self, BlockNameError> {
        let name = text.strip_prefix("/dev/").unwrap_or(text);
        let is_good = name.split('/').all(is_component);
        Self::new("block device", text, name, is_good)
    }

    /// The name of an LVM group.
    ///
    /// # Errors
    ///
    /// When it is empty, `.`, `..` or longer than 255 bytes, or has a slash or a character that is not
    /// visible ASCII (`!` to `~`).
    pub fn volume_group(text: &str) -> Result<Self, BlockNameError> {
        Self::new("volume group", text, text, is_component(text))
    }

    /// The name of a volume.
    ///
    /// # Errors
    ///
    /// When it is empty, `.`, `..` or longer than 255 bytes, or has a slash or a character that is not
    /// visible ASCII (`!` to `~`).
    pub fn volume(text: &str) -> Result<Self, BlockNameError> {
        Self::new("volume", text, text, is_component(text))
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    fn new(
        what: &'static str,
        text: &str,
        name: &str,
        is_good: bool,
    ) -> Result<Self, BlockNameError> {
        if is_good && name.len() <= MAX_NAME {
            return Ok(Self(name.into()));
        }
        let text = excerpt(text);
        Err(BlockNameError { what, text })
    }
}

/// Whether it is one step of a path that leads down.
fn is_component(text: &str) -> bool {
    let is_plain = |byte: u8| byte.is_ascii_graphic() && byte != b'/';
    !text.is_empty() && text != "." && text != ".." && text.bytes().all(is_plain)
}

impl fmt::Display for BlockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl fmt::Debug for BlockName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

// === impl Block ===

impl fmt::Display for Block {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Device(name) => write!(f, "/dev/{name}"),
            Self::VolumeGroup(name) => write!(f, "volume group {name}"),
            Self::PodVolume { volume, .. }
            | Self::PodClaim { volume, .. }
            | Self::RawClaim { volume, .. } => write!(f, "volume {volume}"),
        }
    }
}

// === impl PerBlock ===

impl<T> PerBlock<T> {
    pub fn iter(&self) -> impl Iterator<Item = (&Block, &T)> {
        self.0.iter()
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl<T> Default for PerBlock<T> {
    fn default() -> Self {
        Self(Arc::default())
    }
}

impl<T> FromIterator<(Block, T)> for PerBlock<T> {
    fn from_iter<I: IntoIterator<Item = (Block, T)>>(values: I) -> Self {
        Self(Arc::new(values.into_iter().collect()))
    }
}

impl<T: fmt::Display> fmt::Display for PerBlock<T> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.is_empty() {
            return f.write_str("nothing");
        }
        let mut separator = "";
        for (block, value) in self.iter() {
            write!(f, "{separator}{value} of {block}")?;
            separator = ", ";
        }
        Ok(())
    }
}

// === impl IoRate ===

impl IoRate {
    pub const MIN: i64 = 1;
    pub const MAX: i64 = i64::MAX;

    /// So many bytes or operations in a second.
    ///
    /// # Errors
    ///
    /// When the rate is zero or negative: it is 1 to 2⁶³ − 1 ([`Self::MIN`] to [`Self::MAX`]).
    pub fn new(rate: i64) -> Result<Self, RangeError> {
        check("rate", rate.into(), Self::MIN.into(), Self::MAX.into())?;
        Ok(Self(rate.unsigned_abs()))
    }

    pub fn get(self) -> u64 {
        self.0
    }
}

impl fmt::Display for IoRate {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl IoWeight ===

impl IoWeight {
    pub const MIN: i64 = 1;
    pub const MAX: i64 = 100;

    /// So many percent of what a group has by itself.
    ///
    /// # Errors
    ///
    /// When the percentage is outside 1 to 100 ([`Self::MIN`] to [`Self::MAX`]).
    pub fn new(percent: i64) -> Result<Self, RangeError> {
        check(
            "percent",
            percent.into(),
            Self::MIN.into(),
            Self::MAX.into(),
        )?;
        Ok(Self(u8::try_from(percent).expect("checked")))
    }
}

impl fmt::Display for IoWeight {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.0.fmt(f)
    }
}

// === impl Latency ===

impl Latency {
    pub const MAX_PERCENT: i64 = 100;
    pub const MAX_MICROS: i64 = u32::MAX as i64;

    /// That many percent of all requests, in that many microseconds.
    ///
    /// # Errors
    ///
    /// When the percentage is outside 0 to 100 ([`Self::MAX_PERCENT`]), or the microseconds are outside 0 to
    /// 4,294,967,295 ([`Self::MAX_MICROS`]).
    pub fn new(percent: i64, micros: i64) -> Result<Self, RangeError> {
        check("percent", percent.into(), 0, Self::MAX_PERCENT.into())?;
        check("microseconds", micros.into(), 0, Self::MAX_MICROS.into())?;
        Ok(Self {
            percent: u8::try_from(percent).expect("checked"),
            micros: u32::try_from(micros).expect("checked"),
        })
    }

    pub fn percent(self) -> u8 {
        self.percent
    }

    pub fn micros(self) -> u32 {
        self.micros
    }
}

impl fmt::Display for Latency {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}% in {} us", self.percent, self.micros)
    }
}

// === impl CostQos ===

impl fmt::Display for CostQos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reads {}, writes {}", self.read, self.write)
    }
}

// === impl CostModel ===

impl fmt::Display for CostModel {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "reads {}, writes {}", self.read, self.write)
    }
}

impl fmt::Display for CostRates {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            bytes,
            sequential,
            random,
        } = self;
        write!(f, "{bytes} bytes, {sequential} in a row, {random} anywhere")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_name_leads_nowhere_but_down() {
        for name in ["vdb", "/dev/vdb", "/dev/mapper/vg-lv", "disk/by-id/a=b:c"] {
            assert!(BlockName::device(name).is_ok(), "{name}");
        }
        assert_eq!(BlockName::device("/dev/vdb").unwrap().as_str(), "vdb");
        let long = "x".repeat(256);
        for name in [
            "",
            "/dev/",
            "/etc/passwd",
            "..",
            "../sda",
            "/dev/../sda",
            "a//b",
            "a/",
            "/dev//a",
            "a b",
            "a\0",
            "a\n",
            "\u{e9}",
            &long,
        ] {
            assert!(BlockName::device(name).is_err(), "{name:?}");
        }
        for name in ["data", "vg.0_a-b+c"] {
            assert!(BlockName::volume_group(name).is_ok(), "{name}");
            assert!(BlockName::volume(name).is_ok(), "{name}");
        }
        for name in ["a/b", "..", ".", "/dev/vdb", "", &long] {
            assert!(BlockName::volume_group(name).is_err(), "{name:?}");
            assert!(BlockName::volume(name).is_err(), "{name:?}");
        }
        let error = BlockName::volume("../../etc").unwrap_err();
        assert_eq!(error.to_string(), r#""../../etc" is no name of a volume"#);
    }

    #[test]
    fn a_number_is_as_the_kernel_writes_it() {
        let number = DeviceNumber {
            major: 253,
            minor: 16,
        };
        assert_eq!("253:16".parse(), Ok(number));
        assert_eq!(number.to_string(), "253:16");
        for text in ["", "8", "8:", ":0", "8:-1", "8:0:1", "default"] {
            assert_eq!(
                text.parse::<DeviceNumber>(),
                Err(DeviceNumberError),
                "{text}"
            );
        }
    }

    #[test]
    fn values_are_in_range_and_print_with_their_devices() {
        assert!(IoRate::new(0).is_err() && IoRate::new(-1).is_err());
        assert!(IoWeight::new(0).is_err() && IoWeight::new(101).is_err());
        assert!(Latency::new(101, 1).is_err() && Latency::new(95, 4_294_967_296).is_err());
        let rate = |rate| IoRate::new(rate).unwrap();
        let pod = PodUid::new("5f2b8a9e").unwrap();
        let rates: PerBlock<IoRate> = [
            (
                Block::VolumeGroup(BlockName::volume_group("data").unwrap()),
                rate(7),
            ),
            (
                Block::Device(BlockName::device("/dev/vdb").unwrap()),
                rate(1_048_576),
            ),
            (
                Block::PodVolume {
                    pod,
                    volume: BlockName::volume("pvc-1").unwrap(),
                },
                rate(1),
            ),
        ]
        .into_iter()
        .collect();
        let shown = "1048576 of /dev/vdb, 7 of volume group data, 1 of volume pvc-1";
        assert_eq!(rates.to_string(), shown);
        assert_eq!(PerBlock::<IoRate>::default().to_string(), "nothing");
        let latency = Latency::new(95, 3_000).unwrap();
        let qos = CostQos {
            read: latency,
            write: Latency::new(90, 5_000).unwrap(),
        };
        assert_eq!(
            qos.to_string(),
            "reads 95% in 3000 us, writes 90% in 5000 us"
        );
    }
}

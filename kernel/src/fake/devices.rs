//! The files of a fake control group that have a line for each block device.

use crate::cgroup::Generation;
use koord_model::DeviceNumber;
use rustix::io::Errno;
use std::{collections::BTreeMap, fmt};

/// The devices that a group says something of.
#[derive(Clone, Debug, Default)]
pub(super) struct Io {
    /// Bytes read and written, operations read and written; `u64::MAX` is no limit.
    rates: BTreeMap<DeviceNumber, [u64; 4]>,
    weights: BTreeMap<DeviceNumber, u64>,
    qos: BTreeMap<DeviceNumber, Qos>,
    models: BTreeMap<DeviceNumber, Model>,
}

/// `enable`, `ctrl`, and the numbers of [`QOS`], percentages in hundredths.
#[derive(Clone, Copy, Debug)]
struct Qos {
    enable: bool,
    user: bool,
    numbers: [u64; 4],
}

/// `ctrl`, and the numbers of [`MODEL`].
#[derive(Clone, Copy, Debug, Default)]
struct Model {
    user: bool,
    numbers: [u64; 6],
}

const RATES: [(&str, &str); 4] = [
    ("blkio.throttle.read_bps_device", "rbps"),
    ("blkio.throttle.write_bps_device", "wbps"),
    ("blkio.throttle.read_iops_device", "riops"),
    ("blkio.throttle.write_iops_device", "wiops"),
];
const QOS: [&str; 4] = ["rpct", "rlat", "wpct", "wlat"];
/// Of a disk that does not turn (`AUTOP_SSD_DFL`).
const QOS_OF_KERNEL: [u64; 4] = [0, 25_000, 0, 25_000];
const MODEL: [&str; 6] = [
    "rbps",
    "rseqiops",
    "rrandiops",
    "wbps",
    "wseqiops",
    "wrandiops",
];

/// The files that the root alone has, and the root of cgroup v2 too.
pub(super) const OF_ROOT: [&str; 4] = [
    "io.cost.qos",
    "io.cost.model",
    "blkio.cost.qos",
    "blkio.cost.model",
];

// === impl Io ===

impl Io {
    /// What a file shows; `None` if there is no such file.
    pub(super) fn show(&self, generation: Generation, file: &str) -> Option<String> {
        match (generation, file) {
            (Generation::V2, "io.max") => Some(self.show_max()),
            (Generation::V2, "io.weight") | (Generation::V1, "blkio.cost.weight") => {
                let line = |(device, weight): (_, &u64)| format!("{device} {weight}\n");
                let lines = self.weights.iter().map(line);
                Some(
                    ["default 100\n".to_owned()]
                        .into_iter()
                        .chain(lines)
                        .collect(),
                )
            }
            (Generation::V2, "io.cost.qos") | (Generation::V1, "blkio.cost.qos") => Some(
                self.qos
                    .iter()
                    .map(|(device, qos)| format!("{device} {qos}\n"))
                    .collect(),
            ),
            (Generation::V2, "io.cost.model") | (Generation::V1, "blkio.cost.model") => {
                let line = |(device, model): (_, &Model)| format!("{device} {model}\n");
                Some(self.models.iter().map(line).collect())
            }
            (Generation::V1, file) => self.show_rate(file),
            (Generation::V2, _) => None,
        }
    }

    fn show_max(&self) -> String {
        let is_limited = |(_, rates): &(_, &[u64; 4])| rates.iter().any(|it| *it != u64::MAX);
        let pair = |((_, key), rate): (&(&str, &str), &u64)| match *rate {
            u64::MAX => format!(" {key}=max"),
            rate => format!(" {key}={rate}"),
        };
        let line = |(device, rates): (_, &[u64; 4])| {
            let pairs: String = RATES.iter().zip(rates).map(pair).collect();
            format!("{device}{pairs}\n")
        };
        self.rates.iter().filter(is_limited).map(line).collect()
    }

    fn show_rate(&self, file: &str) -> Option<String> {
        let index = RATES.iter().position(|(name, _)| *name == file)?;
        let set = self
            .rates
            .iter()
            .filter(|(_, rates)| rates[index] != u64::MAX);
        Some(
            set.map(|(device, rates)| format!("{device} {}\n", rates[index]))
                .collect(),
        )
    }

    /// Takes what is written to a file. `exists` says which devices there are, `shares` of which the
    /// time is shared out.
    pub(super) fn store(
        &mut self,
        file: &str,
        written: &str,
        exists: impl Fn(DeviceNumber) -> bool,
        shares: impl Fn(DeviceNumber) -> bool,
    ) -> Result<(), Errno> {
        let (device, rest) = written.split_once(' ').ok_or(Errno::INVAL)?;
        let device: DeviceNumber = device.parse().map_err(|_| Errno::INVAL)?;
        if !exists(device) {
            return Err(Errno::NODEV);
        }
        match file {
            "io.max" => self.limit(device, rest),
            "io.weight" | "blkio.cost.weight" if shares(device) => self.weigh(device, rest),
            "io.weight" | "blkio.cost.weight" => Err(Errno::OPNOTSUPP),
            "io.cost.qos" | "blkio.cost.qos" => {
                self.models.entry(device).or_default();
                self.qos.entry(device).or_default().take(rest)
            }
            "io.cost.model" | "blkio.cost.model" => {
                self.qos.entry(device).or_default();
                self.models.entry(device).or_default().take(rest)
            }
            file => self.limit_one(file, device, rest),
        }
    }

    fn limit(&mut self, device: DeviceNumber, text: &str) -> Result<(), Errno> {
        let rates = self.rates.entry(device).or_insert([u64::MAX; 4]);
        let mut new = *rates;
        for (key, value) in pairs(text)? {
            let index = RATES.iter().position(|(_, name)| *name == key);
            let index = index.ok_or(Errno::INVAL)?;
            new[index] = match value {
                "max" => u64::MAX,
                value => match number(value)? {
                    0 => return Err(Errno::RANGE),
                    rate => counted(index, rate),
                },
            };
        }
        *rates = new;
        Ok(())
    }

    fn limit_one(&mut self, file: &str, device: DeviceNumber, text: &str) -> Result<(), Errno> {
        let index = RATES.iter().position(|(name, _)| *name == file);
        // Others are only read.
        let index = index.ok_or(Errno::INVAL)?;
        let rate = match number(text.split(' ').next().unwrap_or_default())? {
            0 => u64::MAX,
            rate => counted(index, rate),
        };
        self.rates.entry(device).or_insert([u64::MAX; 4])[index] = rate;
        Ok(())
    }

    fn weigh(&mut self, device: DeviceNumber, text: &str) -> Result<(), Errno> {
        match text.trim() {
            "default" => self.weights.remove(&device),
            weight => match number(weight)? {
                weight @ 1..=10_000 => self.weights.insert(device, weight),
                _ => return Err(Errno::INVAL),
            },
        };
        Ok(())
    }

    /// Whether the time of a device is shared out, if this is the root's.
    pub(super) fn shares(&self, device: DeviceNumber) -> bool {
        self.qos.contains_key(&device)
    }

    /// The kernel forgets all that was said of a device that goes.
    pub(super) fn lose(&mut self, device: DeviceNumber) {
        self.rates.remove(&device);
        self.weights.remove(&device);
        self.qos.remove(&device);
        self.models.remove(&device);
    }
}

// === impl Qos ===

impl Qos {
    /// `ioc_qos_write` of `block/blk-iocost.c`.
    fn take(&mut self, text: &str) -> Result<(), Errno> {
        for (key, value) in pairs(text)? {
            match (key, value) {
                ("enable", value) => self.enable = number(value)? != 0,
                ("ctrl", "auto") => self.user = false,
                ("ctrl", "user") => self.user = true,
                (key, value) => {
                    let index = QOS.iter().position(|name| *name == key);
                    let index = index.ok_or(Errno::INVAL)?;
                    self.numbers[index] = match key.ends_with("pct") {
                        true => hundredths(value)?,
                        false => number(value)?,
                    };
                    self.user = true;
                }
            }
        }
        if !self.user {
            self.numbers = QOS_OF_KERNEL;
        }
        Ok(())
    }
}

impl Default for Qos {
    fn default() -> Self {
        Self {
            enable: false,
            user: false,
            numbers: QOS_OF_KERNEL,
        }
    }
}

// === impl Model ===

impl Model {
    /// `ioc_cost_model_write` of `block/blk-iocost.c`.
    fn take(&mut self, text: &str) -> Result<(), Errno> {
        for (key, value) in pairs(text)? {
            match (key, value) {
                ("ctrl", "auto") => self.user = false,
                ("ctrl", "user") => self.user = true,
                ("model", "linear") => {}
                (key, value) => {
                    let index = MODEL.iter().position(|name| *name == key);
                    self.numbers[index.ok_or(Errno::INVAL)?] = number(value)?;
                    self.user = true;
                }
            }
        }
        Ok(())
    }
}

impl fmt::Display for Qos {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ctrl = if self.user { "user" } else { "auto" };
        let [rpct, rlat, wpct, wlat] = self.numbers;
        let percent = |it: u64| format!("{}.{:02}", it / 100, it % 100);
        let (rpct, wpct) = (percent(rpct), percent(wpct));
        write!(
            f,
            "enable={} ctrl={ctrl} rpct={rpct} rlat={rlat} wpct={wpct} wlat={wlat} min=1.00 max=10000.00",
            u8::from(self.enable)
        )
    }
}

impl fmt::Display for Model {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let ctrl = if self.user { "user" } else { "auto" };
        write!(f, "ctrl={ctrl} model=linear")?;
        let mut pairs = MODEL.iter().zip(self.numbers);
        pairs.try_for_each(|(key, number)| write!(f, " {key}={number}"))
    }
}

/// Operations are counted in 32 bits, of which the last number is no limit.
fn counted(index: usize, rate: u64) -> u64 {
    match index {
        2.. if rate >= u32::MAX.into() => u64::MAX,
        _ => rate,
    }
}

fn pairs(text: &str) -> Result<Vec<(&str, &str)>, Errno> {
    let words = text.split_whitespace();
    let pairs = words.map(|word| word.split_once('=').ok_or(Errno::INVAL));
    pairs.collect()
}

fn number(text: &str) -> Result<u64, Errno> {
    text.trim().parse().map_err(|_| Errno::INVAL)
}

fn hundredths(text: &str) -> Result<u64, Errno> {
    let (whole, rest) = text.split_once('.').unwrap_or((text, "00"));
    let rest = Some(rest)
        .filter(|rest| rest.len() == 2)
        .ok_or(Errno::INVAL)?;
    let percent = number(whole)?.saturating_mul(100) + number(rest)?;
    Some(percent).filter(|it| *it <= 10_000).ok_or(Errno::INVAL)
}

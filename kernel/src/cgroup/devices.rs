//! Files that have a line for each block device.
//!
//! Only the devices that a value names are ours, lines of others stay as they are. Which devices a
//! name means is found out at each write, because it changes. What was there before our first value
//! is noted on the group itself, so that a device that is named no more has it back, also after a
//! restart. A number that has become another device's is left alone: the kernel shows nothing for
//! it, and then there is nothing to give back. While it cannot be found out what a name means, any
//! device of ours may be what it means, and none is given back; nor while a volume is not found, of which
//! it may take another to say which it is.

use super::{
    Applied, Before, Cgroups, Controller, Generation, Note, Original, ReadError, WriteError,
    Written,
    error::DeviceError,
    table::{self, File},
    unread,
};
use crate::block::{BlockDevices, Layer, Look};
use koord_model::{
    Block, CgroupPath, CostModel, CostQos, DeviceNumber, IoRate, PerBlock, Setting, Value,
};
use rustix::io::Errno;
use std::{
    collections::BTreeMap,
    io,
    sync::{Mutex, MutexGuard, PoisonError},
};
use tracing::debug;

/// How many devices without their value are named.
const NAMED: usize = 4;

/// What lines say, by device, in the words of [`line()`].
type Lines = BTreeMap<DeviceNumber, String>;

/// What devices of ours had before us; nothing is what they have by themselves.
type HadBefore = BTreeMap<DeviceNumber, Option<String>>;

/// Notes that the kernel does not keep for us: not every group takes one, see [`Note`], and one may not be taken
/// for a moment.
#[derive(Debug, Default)]
pub(super) struct Notes(Mutex<BTreeMap<(CgroupPath, Setting), Kept>>);

/// What is to be noted and is not.
#[derive(Clone, Debug)]
struct Kept {
    /// Nothing, if what is noted is to go.
    text: String,
    /// The kernel may take it later.
    is_owed: bool,
}

/// A value by devices, as far as they are found.
#[derive(Debug, Default)]
struct Wanted {
    lines: Lines,
    lacking: Vec<Lacking>,
}

/// A device or more without its value, as people call it.
#[derive(Debug)]
struct Lacking {
    name: String,
    source: DeviceError,
}

/// A file of a group.
#[derive(Clone, Copy)]
struct Place<'a> {
    at: &'a CgroupPath,
    setting: Setting,
    file: File,
}

// === impl Cgroups ===

impl Cgroups {
    /// The same on a machine with block devices; without it has none.
    #[must_use]
    pub fn with_devices(self, devices: BlockDevices) -> Self {
        Self {
            devices: Some(devices),
            ..self
        }
    }

    /// The devices that there are now, for one update.
    pub(super) fn look_at_devices(&self) -> Option<Look<'_>> {
        self.devices.as_ref().map(BlockDevices::look)
    }

    /// Brings a value to the kernel for all devices that it names, and gives those back that it is
    /// known to name no more. A device that is not found, or refused, stops none of the others.
    pub(super) fn write_per_device(
        &self,
        at: &CgroupPath,
        value: &Value,
        devices: Option<&Look<'_>>,
    ) -> Applied {
        let setting = value.setting();
        let unread = |source| unread(at, value, source);
        let file = self.file(at, setting).map_err(unread)?;
        let place = Place { at, setting, file };
        let held = self.lines(place).map_err(unread)?;
        let ours = self.before(place).map_err(unread)?;
        let Wanted {
            lines: wanted,
            mut lacking,
        } = wanted(value, devices);

        let mut changes: Vec<(DeviceNumber, Option<&String>)> = Vec::new();
        let mut kept = ours.clone();
        for (number, line) in &wanted {
            let before = kept.entry(*number);
            let before = before.or_insert_with(|| held.get(number).cloned());
            // Of a device that has no line nothing of before us is left: it is another one by that number, or
            // somebody took the line away.
            if !held.contains_key(number) {
                *before = None;
            }
            if held.get(number) != Some(line) {
                changes.push((*number, Some(line)));
            }
        }
        let is_known = !lacking.iter().any(|it| it.source.leaves_open());
        let left = ours
            .iter()
            .filter(|(number, _)| is_known && !wanted.contains_key(number));
        for (number, before) in left.clone() {
            if held.contains_key(number) && held.get(number) != before.as_ref() {
                changes.push((*number, before.as_ref()));
            }
        }
        // Noted before it is written: whoever comes after us may give back too much, never too little.
        self.note(place, &ours, &kept);
        let mut now = kept.clone();
        left.for_each(|(number, _)| {
            now.remove(number);
        });
        for (number, line) in &changes {
            if let Err(source) = self.write_line(place, *number, held.get(number), *line) {
                now.insert(*number, kept[number].clone());
                lacking.push(Lacking {
                    name: number.to_string(),
                    source,
                });
            }
        }
        self.note(place, &kept, &now);
        self.answer(place, value, !changes.is_empty(), lacking)
    }

    /// What of block devices is ours in a group, by us or by who was here before us: no value is known of it,
    /// but that none of them named any more has each device be as it was.
    ///
    /// # Errors
    ///
    /// When it cannot be read now.
    pub fn device_originals(&self, at: &CgroupPath) -> Result<Vec<Original>, ReadError> {
        let mut ours = Vec::new();
        for setting in Setting::ALL.iter().copied() {
            let Some(nothing) = Value::of_no_device(setting) else {
                continue;
            };
            // What has no file here nobody has written.
            if let Ok(file) = self.file(at, setting)
                && !self.before(Place { at, setting, file })?.is_empty()
            {
                ours.push(Original::new(Before::Value(nothing.clone()), nothing));
            }
        }
        Ok(ours)
    }

    /// Whether every device that a value names is there and has it, and no other has one of ours.
    pub(super) fn holds_per_device(&self, at: &CgroupPath, value: &Value) -> bool {
        let setting = value.setting();
        let Ok(file) = self.file(at, setting) else {
            return false;
        };
        let place = Place { at, setting, file };
        let Ok(held) = self.lines(place) else {
            return false;
        };
        let devices = self.look_at_devices();
        let Wanted { lines, lacking } = wanted(value, devices.as_ref());
        let Ok(ours) = self.before(place) else {
            return false;
        };
        lacking.is_empty()
            && lines
                .iter()
                .all(|(number, line)| held.get(number) == Some(line))
            && ours.keys().all(|number| lines.contains_key(number))
    }

    fn answer(
        &self,
        place: Place<'_>,
        value: &Value,
        changed: bool,
        lacking: Vec<Lacking>,
    ) -> Applied {
        let Place { at, file, .. } = place;
        let whose = named(&lacking);
        match lacking.into_iter().next() {
            None if changed => Ok(Written::Adjusted),
            None => Ok(Written::Equal),
            Some(_) if self.is_gone(file.controller, at) => {
                Err(unread(at, value, ReadError::Gone { at: at.clone() }))
            }
            Some(Lacking { source, .. }) => Err(WriteError::Lacking {
                at: at.clone(),
                file: file.name,
                whose,
                source,
            }),
        }
    }

    /// What the kernel holds.
    fn lines(&self, place: Place<'_>) -> Result<Lines, ReadError> {
        let Place { at, setting, file } = place;
        let text = self.text(at, setting, file.name)?;
        let line = |line: &str| {
            let mut words = line.split_whitespace();
            let number = words.next()?.parse().ok()?;
            let words: Vec<&str> = words.collect();
            Some((number, said(setting, file.generation, &words)?))
        };
        Ok(text.lines().filter_map(line).collect())
    }

    fn write_line(
        &self,
        Place { at, setting, file }: Place<'_>,
        number: DeviceNumber,
        old: Option<&String>,
        new: Option<&String>,
    ) -> Result<(), DeviceError> {
        let text = line(setting, file.generation, number, new.map(String::as_str));
        let written = self.tree.write(file.controller, at, file.name, &text);
        written.map_err(|source| DeviceError::Refused { text, source })?;
        debug!(cgroup = %at, file = file.name, device = %number, ?old, ?new, "a device's line written");
        Ok(())
    }

    /// What the devices of ours had before us. A note that cannot be read now is an error: taken for none
    /// it would be replaced by one that says that they had our values before us.
    fn before(&self, Place { at, setting, file }: Place<'_>) -> Result<HadBefore, ReadError> {
        let noted = self.noted(file.controller, at, setting);
        let text = noted.map_err(|error| self.unreadable(at, Some(setting), file.name, error))?;
        let line = |line: &str| match line.split_once(' ') {
            Some((number, before)) => Some((number.parse().ok()?, Some(before.to_owned()))),
            None => Some((line.parse().ok()?, None)),
        };
        Ok(text.lines().filter_map(line).collect())
    }

    fn note(&self, Place { at, setting, file }: Place<'_>, old: &HadBefore, new: &HadBefore) {
        if old == new {
            return self.note_owed(file.controller, (at, setting));
        }
        let line = |(number, before): (&DeviceNumber, &Option<String>)| match before {
            Some(before) => format!("{number} {before}\n"),
            None => format!("{number}\n"),
        };
        let text = new.iter().map(line).collect();
        self.set_noted(file.controller, (at, setting), text);
    }

    /// What is noted of a setting of a group; empty if nothing is. That it cannot be read now is an error.
    pub(super) fn noted(
        &self,
        controller: Controller,
        at: &CgroupPath,
        setting: Setting,
    ) -> io::Result<String> {
        let kept = self.notes.lock().get(&(at.clone(), setting)).cloned();
        match kept {
            Some(Kept { text, .. }) => Ok(text),
            None => match self.tree.note(controller, at, Note::Of(setting)) {
                Err(error) if passes(&error) => Err(error),
                noted => Ok(noted.unwrap_or_default()),
            },
        }
    }

    /// Notes this of a setting of a group, in place of what was; nothing if it is empty.
    pub(super) fn set_noted(
        &self,
        controller: Controller,
        (at, setting): (&CgroupPath, Setting),
        text: String,
    ) {
        let noted = self.tree.set_note(controller, at, Note::Of(setting), &text);
        let place = (at.clone(), setting);
        let is_owed = noted.as_ref().is_err_and(may_be_taken);
        if noted.is_ok() || text.is_empty() && !is_owed {
            self.notes.lock().remove(&place);
            return;
        }
        self.forget_notes_of_the_gone();
        let kept = Kept { text, is_owed };
        self.notes.lock().insert(place, kept);
    }

    /// Notes what the kernel would not take before, if it may now.
    pub(super) fn note_owed(&self, controller: Controller, (at, setting): (&CgroupPath, Setting)) {
        let kept = self.notes.lock().get(&(at.clone(), setting)).cloned();
        if let Some(Kept { text, .. }) = kept.filter(|kept| kept.is_owed) {
            self.set_noted(controller, (at, setting), text);
        }
    }

    /// They would stay for ever. It is looked for without the lock, which who decides takes too.
    fn forget_notes_of_the_gone(&self) {
        let places: Vec<_> = self.notes.lock().keys().cloned().collect();
        for place in places {
            let (at, setting) = &place;
            if self.is_gone(table::controller(*setting), at) {
                self.notes.lock().remove(&place);
            }
        }
    }

    /// Whether the group is known not to be there.
    fn is_gone(&self, controller: Controller, at: &CgroupPath) -> bool {
        let there = self.tree.has_directory(controller, at);
        there.is_ok_and(|there| !there)
    }
}

// === impl Notes ===

impl Notes {
    fn lock(&self) -> MutexGuard<'_, BTreeMap<(CgroupPath, Setting), Kept>> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// The lines that a value asks for.
fn wanted(value: &Value, devices: Option<&Look<'_>>) -> Wanted {
    match value {
        Value::IoReadBps(rates) | Value::IoWriteBps(rates) => {
            found(rates, devices, Layer::Itself, |rate| Some(rate.to_string()))
        }
        Value::IoReadIops(rates) | Value::IoWriteIops(rates) => {
            found(rates, devices, Layer::Itself, operations)
        }
        Value::IoWeight(weights) => found(weights, devices, Layer::Disks, |weight| {
            Some(weight.to_string())
        }),
        Value::IoCostQos(qos) => found(qos, devices, Layer::Disks, |qos| Some(cost_qos(qos))),
        Value::IoCostModel(models) => found(models, devices, Layer::Disks, |model| {
            Some(cost_model(model))
        }),
        _ => Wanted::default(),
    }
}

/// Where two names mean one device, the lesser value is its.
fn found<T: Copy + Ord>(
    values: &PerBlock<T>,
    devices: Option<&Look<'_>>,
    layer: Layer,
    line: impl Fn(&T) -> Option<String>,
) -> Wanted {
    let find = |block: &Block| Ok(devices.ok_or(DeviceError::NoDevices)?.find(block, layer)?);
    let mut found: BTreeMap<DeviceNumber, T> = BTreeMap::new();
    let mut lacking = Vec::new();
    for (block, value) in values.iter() {
        match find(block) {
            Ok(numbers) => {
                for number in numbers {
                    let least = found.entry(number).or_insert(*value);
                    *least = (*least).min(*value);
                }
            }
            Err(source) => lacking.push(Lacking {
                name: block.to_string(),
                source,
            }),
        }
    }
    let lines = found
        .iter()
        .filter_map(|(number, value)| Some((*number, line(value)?)));
    Wanted {
        lines: lines.collect(),
        lacking,
    }
}

/// Whether to try again with the next look: not where a group takes no such notes, nor with what is too long.
fn may_be_taken(error: &io::Error) -> bool {
    let never = [Errno::OPNOTSUPP, Errno::TOOBIG, Errno::NOENT, Errno::NODEV];
    !Errno::from_io_error(error).is_some_and(|errno| never.contains(&errno))
}

/// Whether it is for want of something that there may be again.
fn passes(error: &io::Error) -> bool {
    let wants = [Errno::MFILE, Errno::NFILE, Errno::NOMEM];
    Errno::from_io_error(error).is_some_and(|errno| wants.contains(&errno))
}

/// The first of them, and how many more there are: a pod says how many there can be.
fn named(lacking: &[Lacking]) -> String {
    let names = lacking.iter().map(|it| it.name.as_str());
    let whose = names.take(NAMED).collect::<Vec<_>>().join(", ");
    match lacking.len().saturating_sub(NAMED) {
        0 => whose,
        more => format!("{whose} and {more} more"),
    }
}

/// The kernel counts operations in 32 bits, of which the last number is no limit.
fn operations(rate: &IoRate) -> Option<String> {
    (rate.get() < u32::MAX.into()).then(|| rate.to_string())
}

/// As the kernel shows it: percentages with two decimals.
fn cost_qos(CostQos { read, write }: &CostQos) -> String {
    format!(
        "enable=1 ctrl=user rpct={}.00 rlat={} wpct={}.00 wlat={}",
        read.percent(),
        read.micros(),
        write.percent(),
        write.micros(),
    )
}

fn cost_model(CostModel { read, write }: &CostModel) -> String {
    format!(
        "ctrl=user rbps={} rseqiops={} rrandiops={} wbps={} wseqiops={} wrandiops={}",
        read.bytes, read.sequential, read.random, write.bytes, write.sequential, write.random,
    )
}

/// The word of `io.max` that a setting is.
fn key(setting: Setting) -> &'static str {
    match setting {
        Setting::IoReadBps => "rbps",
        Setting::IoWriteBps => "wbps",
        Setting::IoReadIops => "riops",
        _ => "wiops",
    }
}

/// What the words after a device say of a setting; `None` if that is what a device has by itself.
fn said(setting: Setting, generation: Generation, words: &[&str]) -> Option<String> {
    let of = |key: &str| {
        let mut values = words.iter().filter_map(|word| word.split_once('='));
        values.find(|(it, _)| *it == key).map(|(_, value)| value)
    };
    let only = |keys: &[&str]| {
        let pair = |key: &&str| Some(format!("{key}={}", of(key)?));
        keys.iter().filter_map(pair).collect::<Vec<_>>().join(" ")
    };
    match setting {
        Setting::IoCostQos => match (of("enable"), of("ctrl")) {
            (_, Some("user")) => Some(only(&["enable", "ctrl", "rpct", "rlat", "wpct", "wlat"])),
            (Some("1"), _) => Some("enable=1 ctrl=auto".to_owned()),
            _ => None,
        },
        Setting::IoCostModel => (of("ctrl") == Some("user")).then(|| only(MODEL)),
        Setting::IoWeight => words.first().map(ToString::to_string),
        _ if generation == Generation::V1 => words.first().map(ToString::to_string),
        rate => of(key(rate))
            .filter(|rate| *rate != "max")
            .map(str::to_owned),
    }
}

const MODEL: &[&str] = &[
    "ctrl",
    "rbps",
    "rseqiops",
    "rrandiops",
    "wbps",
    "wseqiops",
    "wrandiops",
];

/// The text that makes a device have that; without one, what it has by itself.
fn line(
    setting: Setting,
    generation: Generation,
    number: DeviceNumber,
    said: Option<&str>,
) -> String {
    let is_v1 = generation == Generation::V1;
    match setting {
        Setting::IoCostQos => format!("{number} {}", said.unwrap_or("enable=0 ctrl=auto")),
        Setting::IoCostModel => format!("{number} {}", said.unwrap_or("ctrl=auto")),
        Setting::IoWeight if is_v1 => format!("{number} {}", said.unwrap_or("100")),
        Setting::IoWeight => format!("{number} {}", said.unwrap_or("default")),
        _ if is_v1 => format!("{number} {}", said.unwrap_or("0")),
        rate => format!("{number} {}={}", key(rate), said.unwrap_or("max")),
    }
}

#[cfg(test)]
mod tests;

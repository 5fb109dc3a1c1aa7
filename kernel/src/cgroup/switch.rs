//! The kernel's switches of group identity and of core scheduling, of which one alone may be on.
//!
//! Koordinator knows kernels of Anolis with one or both; others have neither, and none was seen here.
//! The one that goes off is written before the one that goes on. What a switch was before our first
//! write is noted on the root of all groups, so that it comes back also after a restart; with the next
//! start of the machine note and write are gone together. A switch that is as it should be is not
//! written, and nothing is noted of it.

use super::{Applied, Cgroups, ReadError, WriteError, Written, unread};
use koord_model::{CgroupPath, SchedSwitch, Setting, Value};
use rustix::fs::{Mode, OFlags};
use std::{
    collections::BTreeMap,
    fmt, io,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
};
use tracing::debug;

/// Files of `/proc/sys/kernel`: the kernel's own, or a fake's.
pub trait Sysctls: fmt::Debug + Send + Sync {
    /// The text of a file, up to 64 bytes of it.
    ///
    /// # Errors
    ///
    /// When the kernel does not have it ([`io::ErrorKind::NotFound`]), it cannot be read, or is not UTF-8
    /// ([`io::ErrorKind::InvalidData`]).
    fn sysctl(&self, name: &str) -> io::Result<String>;

    /// Gives a text to an existing file, in one `write(2)`.
    ///
    /// # Errors
    ///
    /// When the kernel does not have it ([`io::ErrorKind::NotFound`]), or refuses the text or takes a part of
    /// it alone ([`io::ErrorKind::WriteZero`]).
    fn set_sysctl(&self, name: &str, text: &str) -> io::Result<()>;
}

/// The kernel's own.
#[derive(Clone, Debug)]
pub struct OsSysctls(PathBuf);

/// What switches say, by their names.
type Switches = BTreeMap<&'static str, String>;

const IDENTITY: &str = "sched_group_identity_enabled";
const CORES: &str = "sched_core";

const NAMES: [&str; 2] = [IDENTITY, CORES];
const OFF: &str = "0";
const ON: &str = "1";

/// The most of a switch that is read, in bytes: they are numbers.
const MAX_TEXT: usize = 64;

// === impl OsSysctls ===

impl OsSysctls {
    /// Those below `proc_root`, which is `/proc` on a node.
    pub fn below(proc_root: &Path) -> Self {
        Self(proc_root.join("sys/kernel"))
    }

    fn open(&self, name: &str, flags: OFlags) -> io::Result<OwnedFd> {
        let flags = flags | OFlags::CLOEXEC | OFlags::NOFOLLOW;
        Ok(rustix::fs::open(self.0.join(name), flags, Mode::empty())?)
    }
}

impl Sysctls for OsSysctls {
    fn sysctl(&self, name: &str) -> io::Result<String> {
        let file = self.open(name, OFlags::RDONLY)?;
        let mut text = [0; MAX_TEXT];
        let count = rustix::io::retry_on_intr(|| rustix::io::read(&file, &mut text))?;
        let text = String::from_utf8(text[..count].to_vec());
        text.map_err(|_| io::ErrorKind::InvalidData.into())
    }

    fn set_sysctl(&self, name: &str, text: &str) -> io::Result<()> {
        let file = self.open(name, OFlags::WRONLY)?;
        let written = rustix::io::retry_on_intr(|| rustix::io::write(&file, text.as_bytes()))?;
        if written < text.len() {
            return Err(io::ErrorKind::WriteZero.into());
        }
        Ok(())
    }
}

// === impl Cgroups ===

impl Cgroups {
    /// The same on a kernel that may have these switches; without it has none.
    #[must_use]
    pub fn with_sysctls(self, sysctls: impl Sysctls + 'static) -> Self {
        Self {
            sysctls: Some(Box::new(sysctls)),
            ..self
        }
    }

    /// Whether group identity can be switched off.
    ///
    /// # Errors
    ///
    /// When that cannot be found out now.
    pub fn has_identity_switch(&self) -> io::Result<bool> {
        Ok(self.held_switches()?.contains_key(IDENTITY))
    }

    /// Whether core scheduling has a switch, which is off.
    ///
    /// # Errors
    ///
    /// When that cannot be found out now.
    pub fn has_cores_off(&self) -> io::Result<bool> {
        let held = self.held_switches()?;
        Ok(held.get(CORES).is_some_and(|text| text == OFF))
    }

    /// Whether a switch was written by us and not given back since, also before a restart.
    pub fn has_switched(&self) -> bool {
        self.switches_before()
            .is_ok_and(|before| !before.is_empty())
    }

    /// Whether the kernel has one of the switches.
    pub(super) fn has_switches(&self) -> io::Result<bool> {
        Ok(!self.held_switches()?.is_empty())
    }

    /// What the switches say, in one line.
    pub(super) fn raw_switches(&self) -> Result<(&'static str, String), ReadError> {
        let held = self.switches()?;
        let said = held.iter().map(|(name, text)| format!("{name}={text}"));
        Ok((IDENTITY, said.collect::<Vec<_>>().join(" ")))
    }

    /// Whether every switch that there is says what it should.
    pub(super) fn holds_switch(&self, choice: SchedSwitch) -> Option<bool> {
        let (held, before) = (self.switches().ok()?, self.switches_before().ok()?);
        Some(steps(choice, &held, &before).is_empty())
    }

    /// Brings the switches to where they should be. The first that is refused ends it: what was to go
    /// on stays off as long as the other is on.
    pub(super) fn write_switch(&self, value: &Value, choice: SchedSwitch) -> Applied {
        let root = CgroupPath::root();
        let unread = |source| unread(&root, value, source);
        let held = self.switches().map_err(unread)?;
        let before = self.switches_before().map_err(unread)?;
        let steps = steps(choice, &held, &before);
        let mut kept = before.clone();
        for &(name, _) in &steps {
            kept.entry(name).or_insert_with(|| held[name].clone());
        }
        // Noted before it is written: who comes after us knows of every switch that we may have moved.
        self.note_switches(&before, &kept);
        for &(file, text) in &steps {
            let sysctls = self.sysctls.as_ref();
            let written = sysctls.map_or(Ok(()), |it| it.set_sysctl(file, text));
            written.map_err(|source| WriteError::Switch {
                file,
                text: text.to_owned(),
                source,
            })?;
            debug!(
                file,
                old = held[file].as_str(),
                new = text,
                "a switch of the kernel written"
            );
        }
        if choice == SchedSwitch::AsBefore {
            self.note_switches(&kept, &Switches::new());
        }
        Ok(match steps.is_empty() {
            true => Written::Equal,
            false => Written::Adjusted,
        })
    }

    /// The switches that there are; an error if there is none.
    fn switches(&self) -> Result<Switches, ReadError> {
        let at = CgroupPath::root;
        match self.held_switches() {
            Ok(held) if held.is_empty() => Err(ReadError::Unsupported {
                at: at(),
                setting: Setting::SchedSwitch,
            }),
            Ok(held) => Ok(held),
            Err(source) => Err(ReadError::Io {
                at: at(),
                file: IDENTITY,
                source,
            }),
        }
    }

    fn held_switches(&self) -> io::Result<Switches> {
        let mut held = Switches::new();
        let Some(sysctls) = &self.sysctls else {
            return Ok(held);
        };
        for name in NAMES {
            match sysctls.sysctl(name) {
                Ok(text) => {
                    held.insert(name, text.trim().to_owned());
                }
                Err(error) if is_withheld(&error) => {}
                Err(error) => return Err(error),
            }
        }
        Ok(held)
    }

    /// What the switches of ours were before us.
    fn switches_before(&self) -> Result<Switches, ReadError> {
        let (root, setting) = (CgroupPath::root(), Setting::SchedSwitch);
        let noted = self.noted(self.any_controller(), &root, setting);
        let text = noted.map_err(|source| ReadError::Io {
            at: root,
            file: IDENTITY,
            source,
        })?;
        let said = |name: &str| {
            let mut lines = text.lines().filter_map(|line| line.split_once(' '));
            lines.find_map(|(of, text)| (of == name).then(|| text.to_owned()))
        };
        let pair = |name: &'static str| Some((name, said(name)?));
        Ok(NAMES.into_iter().filter_map(pair).collect())
    }

    fn note_switches(&self, old: &Switches, new: &Switches) {
        let place = (&CgroupPath::root(), Setting::SchedSwitch);
        if old == new {
            return self.note_owed(self.any_controller(), place);
        }
        let lines = new.iter().map(|(name, text)| format!("{name} {text}\n"));
        self.set_noted(self.any_controller(), place, lines.collect());
    }
}

/// Whether there is no such file for us, which stays so.
fn is_withheld(error: &io::Error) -> bool {
    let kinds = [io::ErrorKind::NotFound, io::ErrorKind::PermissionDenied];
    kinds.contains(&error.kind())
}

/// What is written, in this order, to switches that say what is `held` and were as `before` us: what
/// goes off is before what goes on.
fn steps<'a>(
    choice: SchedSwitch,
    held: &Switches,
    before: &'a Switches,
) -> Vec<(&'static str, &'a str)> {
    let on_if = |on: bool| Some(if on { ON } else { OFF });
    let wanted = |name: &str| match choice {
        SchedSwitch::GroupIdentity => on_if(name == IDENTITY),
        SchedSwitch::CoreSched => on_if(name == CORES),
        SchedSwitch::AsBefore => before.get(name).map(String::as_str),
    };
    let differs = held.iter().filter_map(|(&name, held)| {
        let wanted = wanted(name)?;
        (held != wanted).then_some((name, wanted))
    });
    let mut steps: Vec<_> = differs.collect();
    steps.sort_by_key(|(_, text)| *text != OFF);
    steps
}

#[cfg(test)]
mod tests;

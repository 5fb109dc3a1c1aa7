//! Control groups: what a file is called, what it takes, and how to ask for it.
//!
//! [`Cgroups`] reads and writes [`Setting`]s. It promises that a write is checked first, skipped
//! when the kernel holds the value already, made with one `write(2)` to an existing file, and
//! logged with the old and the new value. Which version a node runs is decided once for each
//! controller, and after that is a column of one table, never a question of the caller.

mod class_ids;
mod devices;
mod directories;
mod error;
mod layout;
mod leveled;
mod marks;
mod members;
mod original;
mod os_tree;
mod reclaim;
mod swap;
mod switch;
mod table;
mod tree;
mod walk;
mod weight;

pub use self::{
    class_ids::ClassIds,
    directories::Directories,
    error::{DeviceError, ReadError, WriteError},
    layout::{
        Driver, Layout, ParentError, RuntimeName, directory_of_parent, is_below_pod, is_of_pod,
        kube_qos,
    },
    leveled::Change,
    marks::Marked,
    members::Members,
    original::{Before, Original},
    os_tree::{DetectError, OsTree},
    switch::{OsSysctls, Sysctls},
    tree::{Controller, Generation, Note, Tree, Version},
    walk::{MOST_BELOW, Names, Unseen, Walk},
    weight::WeightCurve,
};

use self::{
    devices::Notes,
    table::{File, Terms},
};
use crate::block::BlockDevices;
use koord_model::{
    CgroupPath, CpuPeriod, CpuSet, CpuShares, CpuWeight, CpusetCpus, MemoryLimit, PageCacheSize,
    Setting, Value,
};
use std::{io, os::fd::OwnedFd, path::Path, sync::OnceLock};
use tracing::debug;

/// The control groups of a node.
#[derive(Debug)]
pub struct Cgroups {
    pub(crate) tree: Box<dyn Tree>,
    weight_curve: OnceLock<WeightCurve>,
    page: u64,
    devices: Option<BlockDevices>,
    sysctls: Option<Box<dyn Sysctls>>,
    notes: Notes,
}

/// What became of a write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Written {
    /// The kernel holds the new value now.
    Changed { old: Value },
    /// Some devices have another value now.
    Adjusted,
    /// It held the value already.
    Equal,
    /// The group is idle now (`cpu.idle`), and the kernel has forgotten these shares; `None` if
    /// they could not be read.
    Idled { shares: Option<Value> },
    /// The group is idle, and the kernel takes no shares for such a group. They have to be written
    /// after idle is cleared, which sets them to 1,024.
    Masked,
}

/// What became of one [`Change`].
pub type Applied = Result<Written, WriteError>;

// === impl Cgroups ===

impl Cgroups {
    /// Finds out what is mounted below `root`, which is `/sys/fs/cgroup` on a node, and opens it.
    /// Shares become weights by [`WeightCurve::Linear`] until
    /// [`set_weight_curve`](Self::set_weight_curve) says otherwise.
    ///
    /// # Errors
    ///
    /// As for [`OsTree::open`].
    pub fn open(root: &Path) -> Result<Self, DetectError> {
        OsTree::open(root).map(Self::over)
    }

    /// No control groups: for a node whose own cannot be used, or must not be touched.
    pub fn none() -> Self {
        Self::over(tree::Bare)
    }

    /// The control groups of any tree.
    pub fn over(tree: impl Tree + 'static) -> Self {
        Self {
            tree: Box::new(tree),
            weight_curve: OnceLock::new(),
            page: u64::try_from(rustix::param::page_size()).expect("a page is below 2^64 bytes"),
            devices: None,
            sysctls: None,
            notes: Notes::default(),
        }
    }

    pub fn version(&self) -> Version {
        self.tree.version()
    }

    /// How a setting is reached; `None` if this node does not have its controller.
    pub fn generation(&self, setting: Setting) -> Option<Generation> {
        self.tree.generation(table::controller(setting))
    }

    /// Says how the runtimes of this node turn shares into weights, once: what is said later is
    /// ignored. Only a known pair can tell: [`WeightCurve::detect`] with [`weight`](Self::weight).
    pub fn set_weight_curve(&self, curve: WeightCurve) {
        self.weight_curve.get_or_init(|| curve);
    }

    /// How the runtimes of this node turn shares into weights, if that is known.
    pub fn weight_curve(&self) -> Option<WeightCurve> {
        self.weight_curve.get().copied()
    }

    /// Whether the weight of a group is one that some runtime makes of these shares. False on
    /// cgroup v1, where there are no weights.
    pub fn weighs(&self, at: &CgroupPath, shares: CpuShares) -> bool {
        let held = self.weight(at).ok().flatten();
        held.is_some_and(|held| is_made_of(shares, held))
    }

    /// Whether the group is there, in every hierarchy that we write to: runtimes make and remove
    /// the directories of cgroup v1 one by one. That for devices may be missing: few groups have
    /// anything in it.
    ///
    /// # Errors
    ///
    /// When that cannot be found out now.
    pub fn exists(&self, at: &CgroupPath) -> io::Result<bool> {
        for controller in [Controller::Cpu, Controller::Cpuset, Controller::Memory] {
            let is_ours = self.tree.generation(controller).is_some();
            if is_ours && !self.tree.has_directory(controller, at)? {
                return Ok(false);
            }
        }
        Ok(true)
    }

    /// Whether the kernel has this setting for this group, which depends on the kernel's version,
    /// its vendor, and on cgroup v2 on the controllers that the parent hands down.
    ///
    /// # Errors
    ///
    /// When that cannot be found out now.
    pub fn supports(&self, setting: Setting, at: &CgroupPath) -> io::Result<bool> {
        if setting == Setting::SchedSwitch {
            return Ok(at.is_root() && self.has_switches()?);
        }
        self.file(at, setting).map_or(Ok(false), |file| {
            self.tree.has_file(file.controller, at, file.name)
        })
    }

    /// What the kernel holds.
    ///
    /// On cgroup v2 many shares become one weight: the least of them is returned, and writing it
    /// back gives the same weight.
    ///
    /// # Errors
    ///
    /// When the group is gone ([`ReadError::is_gone`]), has no such file ([`ReadError::is_unsupported`]), is
    /// idle and its shares are asked for ([`ReadError::Masked`]), or cannot be read now. What is no value of
    /// the setting is [`ReadError::Malformed`], and so is all that is by device or in no file of the group.
    pub fn read(&self, at: &CgroupPath, setting: Setting) -> Result<Value, ReadError> {
        if setting == Setting::CpuShares && self.is_idle(at) {
            return Err(ReadError::Masked { at: at.clone() });
        }
        self.read_awake(at, setting)
    }

    /// The same of a group that is not idle.
    fn read_awake(&self, at: &CgroupPath, setting: Setting) -> Result<Value, ReadError> {
        let file = self.file(at, setting)?;
        let text = self.text(at, setting, file.name)?;
        table::parse(setting, file.generation, &text, self.terms())
            .ok_or_else(|| malformed(at, file.name, text))
    }

    /// The name and the text of the file behind a setting, white space at its ends removed: what
    /// an operator sees with `cat`, in one line.
    ///
    /// # Errors
    ///
    /// When the group is gone ([`ReadError::is_gone`]), has no such file ([`ReadError::is_unsupported`]), or
    /// it cannot be read now.
    pub fn raw(
        &self,
        at: &CgroupPath,
        setting: Setting,
    ) -> Result<(&'static str, String), ReadError> {
        if setting == Setting::SchedSwitch {
            return self.raw_switches();
        }
        let file = self.file(at, setting)?;
        let text = self.text(at, setting, file.name)?;
        let text = match setting.is_of_devices() {
            true => text.lines().collect::<Vec<_>>().join(", "),
            false => text.trim().to_owned(),
        };
        Ok((file.name, text))
    }

    /// A descriptor that can be read once anybody has written to the file behind a setting, us included.
    /// Reading it does not wait.
    ///
    /// # Errors
    ///
    /// When the file is not there, or cannot be watched.
    pub fn watch(&self, at: &CgroupPath, setting: Setting) -> io::Result<OwnedFd> {
        let file = self.file(at, setting).map_err(io::Error::other)?;
        self.tree.watch(file.controller, at, file.name)
    }

    /// The period that a quota of this group is counted in. Writing a quota never changes it.
    ///
    /// # Errors
    ///
    /// When the group is gone ([`ReadError::is_gone`]), has no such file ([`ReadError::is_unsupported`]), or
    /// it cannot be read now, or says no number of microseconds from 1,000 to 1,000,000
    /// ([`ReadError::Malformed`]).
    pub fn period(&self, at: &CgroupPath) -> Result<CpuPeriod, ReadError> {
        let quota = self.file(at, Setting::CpuQuota)?;
        let (name, word) = table::period_file(quota.generation);
        let text = self.text(at, Setting::CpuQuota, name)?;
        let number = text.split_whitespace().nth(word);
        number
            .and_then(|number| CpuPeriod::new(number.parse().ok()?).ok())
            .ok_or_else(|| malformed(at, name, text))
    }

    /// Gives a group periods of another length. The number of its quota stays, which is another
    /// share of a CPU then. False if the kernel does not take it: on cgroup v1 it does not where a
    /// group below would have a greater share.
    pub fn set_period(&self, at: &CgroupPath, period: CpuPeriod) -> bool {
        let Ok(File { generation, .. }) = self.file(at, Setting::CpuQuota) else {
            return false;
        };
        let (name, _) = table::period_file(generation);
        let Ok(held) = self.text(at, Setting::CpuQuota, name) else {
            return false;
        };
        let text = table::render_period(period, generation, &held);
        let result = self.tree.write(Controller::Cpu, at, name, &text);
        debug!(cgroup = %at, file = name, old = held.trim_end(), new = text, ?result, "period");
        result.is_ok()
    }

    /// Whether a value is in force, as far as the kernel can hold it; `None` if that cannot be read.
    /// A weight is in force if any runtime makes it of these shares. Devices that cannot be read are not in
    /// force.
    pub fn holds(&self, at: &CgroupPath, value: &Value) -> Option<bool> {
        if let Value::CpuShares(shares) = value
            && self.generation(Setting::CpuShares) == Some(Generation::V2)
        {
            return Some(is_made_of(*shares, self.weight(at).ok()??));
        }
        if let Value::SchedSwitch(choice) = value {
            return self.holds_switch(*choice);
        }
        if value.setting().is_of_devices() {
            return Some(self.holds_per_device(at, value));
        }
        let held = self.read(at, value.setting()).ok()?;
        Some(held == self.settled(at, value).ok()?)
    }

    /// The CPUs that a group made in this one may be given on cgroup v1, where the kernel refuses
    /// all others: those of the nearest group from here up that has any, because runtimes fill one
    /// that has none from its parent. `None` on v2, where the kernel leaves out what cannot be, and
    /// where it cannot be found out.
    pub fn cpus_below(&self, at: &CgroupPath) -> Option<CpuSet> {
        if self.tree.generation(Controller::Cpuset)? != Generation::V1 {
            return None;
        }
        let mut at = Some(at.clone());
        while let Some(group) = at {
            match self.read(&group, Setting::CpusetCpus).ok()? {
                Value::CpusetCpus(CpusetCpus::Only(cpus)) if !cpus.is_empty() => return Some(cpus),
                _ => at = group.parent(),
            }
        }
        None
    }

    /// The weight of a group on cgroup v2; `None` on v1, which has shares.
    ///
    /// # Errors
    ///
    /// When the group is gone ([`ReadError::is_gone`]), has no such file ([`ReadError::is_unsupported`]), or
    /// it cannot be read now. When it is no number from 1 to 10,000: [`ReadError::Masked`] if the group is
    /// idle, [`ReadError::Malformed`] if not.
    pub fn weight(&self, at: &CgroupPath) -> Result<Option<CpuWeight>, ReadError> {
        let file = self.file(at, Setting::CpuShares)?;
        if file.generation == Generation::V1 {
            return Ok(None);
        }
        let text = self.text(at, Setting::CpuShares, file.name)?;
        match text.trim().parse().map(CpuWeight::new) {
            Ok(Ok(weight)) => Ok(Some(weight)),
            // The kernel shows the weight of an idle group as 0.
            _ if self.is_idle(at) => Err(ReadError::Masked { at: at.clone() }),
            _ => Err(malformed(at, file.name, text)),
        }
    }

    /// The names of the groups directly below, sorted. Only for groups in which none but the node's own
    /// makes others: it is all of them.
    ///
    /// # Errors
    ///
    /// When the group is gone ([`ReadError::is_gone`]), or cannot be listed now.
    pub fn children(&self, at: &CgroupPath) -> Result<Vec<String>, ReadError> {
        let mut names = self.names_below(at, usize::MAX)?.names;
        names.sort_unstable();
        Ok(names)
    }

    fn names_below(&self, at: &CgroupPath, most: usize) -> Result<Names, ReadError> {
        let names = self.tree.children(self.any_controller(), at, most);
        names.map_err(|source| self.unreadable(at, None, "the directory", source))
    }

    /// Brings one value to the kernel, unless it is in force as far as the kernel can hold it:
    /// weights are compared as weights, memory limits as whole pages, sizes of page cache up to the
    /// memory limit, and all CPUs are those of the parent. Values that parents or children limit go
    /// through [`apply`](Self::apply).
    ///
    /// # Errors
    ///
    /// When the group is gone ([`WriteError::is_gone`]), has no such file ([`WriteError::is_unsupported`]) or
    /// cannot be read now, the value is out of range ([`WriteError::Range`]), or the kernel refuses it. When
    /// some devices do not have theirs ([`WriteError::lacking`]), all others do.
    pub fn write(&self, at: &CgroupPath, value: &Value) -> Applied {
        if value.setting().is_of_devices() {
            return self.write_per_device(at, value, self.look_at_devices().as_ref());
        }
        if let Value::SchedSwitch(choice) = value {
            return self.write_switch(value, *choice);
        }
        let wanted = self.settled(at, value)?;
        let Some(old) = self.held_unless_masked(at, value)? else {
            return Ok(Written::Masked);
        };
        if old == wanted {
            self.close_swap(at, &wanted);
            return Ok(Written::Equal);
        }
        let written = self.replacing(at, &old, &wanted);
        self.put(at, &old, &wanted)?;
        Ok(written)
    }

    /// What the kernel holds where `value` is to be written; `None` if it takes none there now.
    fn held_unless_masked(
        &self,
        at: &CgroupPath,
        value: &Value,
    ) -> Result<Option<Value>, WriteError> {
        match self.read(at, value.setting()) {
            Ok(held) => Ok(Some(held)),
            Err(ReadError::Masked { .. }) => Ok(None),
            Err(source) => Err(unread(at, value, source)),
        }
    }

    /// What the kernel will hold after `value` was written.
    fn settled(&self, at: &CgroupPath, value: &Value) -> Result<Value, WriteError> {
        let file = self
            .file(at, value.setting())
            .map_err(|source| unread(at, value, source))?;
        if *value == CpusetCpus::All.into() {
            return self
                .every_cpu(at, file)
                .map_err(|source| unread(at, value, source));
        }
        let settled = table::settle(value, file.generation, self.terms());
        let settled = settled.map_err(|source| WriteError::Range {
            at: at.clone(),
            value: value.clone(),
            source,
        })?;
        let Value::MemoryPageCacheSize(size) = settled else {
            return Ok(settled);
        };
        let size = self.within_limit(at, size);
        let size = size.map_err(|source| unread(at, value, source))?;
        Ok(Value::MemoryPageCacheSize(size))
    }

    /// No more page cache than the group may have memory: newer kernels refuse a size above that
    /// (EINVAL), and older ones hold less than was written.
    fn within_limit(
        &self,
        at: &CgroupPath,
        size: PageCacheSize,
    ) -> Result<PageCacheSize, ReadError> {
        match self.read(at, Setting::MemoryLimit) {
            Ok(Value::MemoryLimit(MemoryLimit::Bytes(limit))) => {
                Ok(size.min(PageCacheSize::of_bytes(limit)))
            }
            // The root has no limit of its own.
            Ok(_) | Err(ReadError::Unsupported { .. }) => Ok(size),
            Err(error) => Err(error),
        }
    }

    /// What a group has to hold to have every CPU of its parent. Only a set that was never given
    /// means that by itself: once there is one, the kernel does not take it back from a group with
    /// processes in or below it (ENOSPC, seen on 6.1 with cgroup v2).
    fn every_cpu(&self, at: &CgroupPath, file: File) -> Result<Value, ReadError> {
        let own = self.read(at, Setting::CpusetCpus)?;
        // The root has every CPU there is.
        let Some(parent) = at.parent().filter(|_| own != CpusetCpus::All.into()) else {
            return Ok(own);
        };
        let name = table::usable_cpus_file(file.generation);
        let text = self.text(&parent, Setting::CpusetCpus, name)?;
        table::parse(Setting::CpusetCpus, file.generation, &text, self.terms())
            .ok_or_else(|| malformed(&parent, name, text))
    }

    /// What a write is about to do to a group that has something else than is `wanted`.
    fn replacing(&self, at: &CgroupPath, old: &Value, wanted: &Value) -> Written {
        match *wanted == Value::CpuIdle(true) {
            // It is not idle yet.
            true => Written::Idled {
                shares: self.read_awake(at, Setting::CpuShares).ok(),
            },
            false => Written::Changed { old: old.clone() },
        }
    }

    /// Writes a settled value.
    fn put(&self, at: &CgroupPath, old: &Value, new: &Value) -> Result<(), WriteError> {
        let file = self
            .file(at, new.setting())
            .map_err(|source| unread(at, new, source))?;
        let text = table::render(new, file.generation, self.terms());
        let together = self.make_room_with_swap(at, old, new);
        self.tree
            .write(file.controller, at, file.name, &text)
            .map_err(|source| WriteError::Refused {
                at: at.clone(),
                file: file.name,
                value: new.clone(),
                source,
            })?;
        self.keep_from_swap(at, together, (old, new));
        debug!(cgroup = %at, file = file.name, %old, %new, "cgroup file written");
        Ok(())
    }

    fn terms(&self) -> Terms {
        Terms {
            curve: self.weight_curve().unwrap_or_default(),
            page: self.page,
        }
    }

    fn file(&self, at: &CgroupPath, setting: Setting) -> Result<File, ReadError> {
        match self.generation(setting) {
            Some(generation) => Ok(table::file(setting, generation)),
            None => Err(ReadError::Unsupported {
                at: at.clone(),
                setting,
            }),
        }
    }

    fn text(
        &self,
        at: &CgroupPath,
        setting: Setting,
        name: &'static str,
    ) -> Result<String, ReadError> {
        self.tree
            .read(table::controller(setting), at, name)
            .map_err(|source| self.unreadable(at, Some(setting), name, source))
    }

    fn is_idle(&self, at: &CgroupPath) -> bool {
        matches!(self.read(at, Setting::CpuIdle), Ok(Value::CpuIdle(true)))
    }

    /// The controller whose hierarchy stands for all when the question is not about a setting.
    fn any_controller(&self) -> Controller {
        let there = |controller: &&Controller| self.tree.generation(**controller).is_some();
        *Controller::ALL
            .iter()
            .find(there)
            .unwrap_or(&Controller::Cpu)
    }

    /// Tells a group that has gone from a setting that it never had.
    fn unreadable(
        &self,
        at: &CgroupPath,
        setting: Option<Setting>,
        file: &'static str,
        source: io::Error,
    ) -> ReadError {
        let controller = setting.map_or_else(|| self.any_controller(), table::controller);
        let at = at.clone();
        let is_lacking = source.kind() == io::ErrorKind::NotFound;
        match (self.tree.has_directory(controller, &at), setting) {
            (Ok(false), _) => ReadError::Gone { at },
            (Ok(true), Some(setting)) if is_lacking => ReadError::Unsupported { at, setting },
            // Of the file alone it would be believed that the group has gone.
            (Err(unknown), _) if is_lacking => ReadError::Io {
                at,
                file,
                source: unknown,
            },
            _ => ReadError::Io { at, file, source },
        }
    }
}

/// Whether some runtime makes this weight of these shares.
fn is_made_of(shares: CpuShares, weight: CpuWeight) -> bool {
    let mut curves = WeightCurve::ALL.iter();
    curves.any(|curve| curve.weight(shares) == weight)
}

fn malformed(at: &CgroupPath, file: &'static str, text: String) -> ReadError {
    ReadError::Malformed {
        at: at.clone(),
        file,
        text,
    }
}

fn unread(at: &CgroupPath, value: &Value, source: ReadError) -> WriteError {
    WriteError::Unread {
        at: at.clone(),
        value: value.clone(),
        source,
    }
}

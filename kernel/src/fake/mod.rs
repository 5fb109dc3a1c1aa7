//! A tree of control groups that keeps the kernel's rules, for tests that need one to make or to
//! break at will.
//!
//! It refuses what the kernel refuses (unknown files, numbers out of range, a child with more than
//! its parent) with the kernel's errors, shows values as the kernel does, can be made to fail, and
//! remembers what was written. Each rule is proven: one script of writes is answered alike by this
//! tree and by real kernels ([`crate::proof`]).

mod cores;
mod devices;
mod disks;
mod group;
mod resctrl;
mod text;

#[cfg(test)]
mod tests;

pub use self::{cores::FakeCores, disks::FakeDisks, resctrl::FakeResctrl};
pub use rustix::io::Errno;

use self::group::Group;
use crate::cgroup::{Controller, Generation, Names, Note, Sysctls, Tree, Version};
use koord_model::{CgroupPath, CpuSet, DeviceNumber};
use rustix::net::{AddressFamily, SocketFlags, SocketType, socketpair};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs, io, mem,
    os::fd::OwnedFd,
    path::{Path, PathBuf},
    sync::{Arc, Mutex, MutexGuard},
};

/// A fake tree. Clones are handles to the same tree, so that a test keeps one and gives one away.
#[derive(Clone, Debug)]
pub struct FakeTree(Arc<Mutex<State>>);

/// Something that was written and taken.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub at: CgroupPath,
    pub file: String,
    pub text: String,
}

/// The longest that an extended attribute may be.
const MAX_NOTE: usize = 64 << 10;

#[derive(Debug)]
struct State {
    generation: Generation,
    beside_v2: bool,
    cpus: u32,
    lacking: BTreeSet<String>,
    devices: BTreeSet<DeviceNumber>,
    takes_notes: bool,
    /// How often one was made or removed.
    noted: usize,
    /// Why no note can be read.
    unread_notes: Option<Errno>,
    /// Why none is taken.
    refused_notes: Option<Errno>,
    groups: BTreeMap<CgroupPath, Group>,
    /// The inode that was given last.
    made: u64,
    /// Files of `/proc/sys/kernel`, by name.
    sysctls: BTreeMap<String, String>,
    failures: Vec<(CgroupPath, String, Errno)>,
    unread: Vec<(CgroupPath, String, Errno)>,
    /// Why nothing can be looked at.
    blind: Option<Errno>,
    /// Groups that nobody may open.
    closed: BTreeSet<CgroupPath>,
    /// How often each file was read.
    reads: BTreeMap<String, usize>,
    writes: Vec<Write>,
    /// Who is told of writes to a file.
    watches: Vec<(CgroupPath, String, OwnedFd)>,
    /// Where it is shown which group a process is in.
    procfs: Option<PathBuf>,
}

// === impl FakeTree ===

impl FakeTree {
    /// A machine with `cpus` CPUs, numbered from 0, and nothing but the root group.
    pub fn new(generation: Generation, cpus: u32) -> Self {
        let mut online = CpuSet::new();
        for cpu in 0..cpus {
            online.insert(cpu).expect("a fake has few CPUs");
        }
        Self(Arc::new(Mutex::new(State {
            generation,
            beside_v2: false,
            cpus,
            lacking: lacking_on_mainline(generation),
            devices: BTreeSet::new(),
            takes_notes: true,
            noted: 0,
            unread_notes: None,
            refused_notes: None,
            groups: [(CgroupPath::root(), Group::new(online))].into(),
            made: 0,
            sysctls: BTreeMap::new(),
            failures: Vec::new(),
            unread: Vec::new(),
            blind: None,
            closed: BTreeSet::new(),
            reads: BTreeMap::new(),
            writes: Vec::new(),
            watches: Vec::new(),
            procfs: None,
        })))
    }

    /// The same on a kernel with group identity.
    pub fn with_group_identity(self) -> Self {
        self.state().lacking.remove("cpu.bvt_warp_ns");
        self
    }

    /// The same on a kernel with a file in `/proc/sys/kernel`, which says this. Writes of it are
    /// remembered, and fail, as writes of the root's. It takes any text: no kernel that tests have shows
    /// what those with such files refuse.
    pub fn with_sysctl(self, name: &str, text: &str) -> Self {
        let (name, text) = (name.to_owned(), text.to_owned());
        self.state().sysctls.insert(name, text);
        self
    }

    /// The same on a kernel that has all of memory QoS, on both versions.
    pub fn with_memory_qos(self) -> Self {
        let is_of_memory = |file: &String| file.starts_with("memory.");
        self.state().lacking.retain(|file| !is_of_memory(file));
        self
    }

    /// The same on a kernel that shares out the time of devices on cgroup v1 too.
    pub fn with_io_cost(self) -> Self {
        let is_of_cost = |file: &String| file.starts_with("blkio.cost.");
        self.state().lacking.retain(|file| !is_of_cost(file));
        self
    }

    /// The same on a kernel whose groups take no notes.
    pub fn without_notes(self) -> Self {
        self.state().takes_notes = false;
        self
    }

    /// The same where a hierarchy of cgroup v2 without controllers is mounted beside those of v1.
    pub fn beside_v2(self) -> Self {
        self.state().beside_v2 = true;
        self
    }

    /// The same on a kernel without a file.
    pub fn without(self, file: &str) -> Self {
        self.state().lacking.insert(file.to_owned());
        self
    }

    /// Makes a group, and those above it.
    pub fn make(&self, at: &CgroupPath) {
        let Some(parent) = at.parent() else {
            return;
        };
        self.make(&parent);
        let mut state = self.state();
        let mut group = state.groups[&parent].below();
        state.made += 1;
        group.inode = state.made;
        state.groups.entry(at.clone()).or_insert(group);
    }

    /// Removes a group with all below it, as a runtime does.
    pub fn remove(&self, at: &CgroupPath) {
        self.state().groups.retain(|path, _| !path.is_under(at));
    }

    /// Adds a block device.
    pub fn add_device(&self, number: DeviceNumber) {
        self.state().devices.insert(number);
    }

    /// Removes a block device.
    pub fn lose_device(&self, number: DeviceNumber) {
        let mut state = self.state();
        state.devices.remove(&number);
        let groups = state.groups.values_mut();
        groups.for_each(|group| group.io.lose(number));
    }

    /// Shows in a directory, until another is named, which group each process is in, as `/proc` does. Who has
    /// ended is shown still, and so are groups that have gone.
    pub fn show_in(&self, procfs: &Path) {
        let mut state = self.state();
        state.procfs = Some(procfs.to_owned());
        for (at, group) in &state.groups {
            group.pids.iter().for_each(|pid| state.show(*pid, at));
        }
    }

    /// Puts a process into a group.
    ///
    /// # Panics
    /// If the group does not exist, or on cgroup v1 has no CPUs yet, which the kernel refuses too.
    pub fn enter(&self, at: &CgroupPath, pid: u32) {
        let mut state = self.state();
        let needs_cpus = state.generation == Generation::V1;
        let group = state.groups.get_mut(at).expect("the group exists");
        assert!(!needs_cpus || !group.cpus.is_empty(), "{at} has no CPUs");
        group.pids.insert(pid);
        state.show(pid, at);
    }

    /// Has a group use so many bytes of memory and swap together.
    pub fn use_with_swap(&self, at: &CgroupPath, bytes: u64) {
        if let Some(group) = self.state().groups.get_mut(at) {
            group.memory_and_swap_used = bytes;
        }
    }

    /// Ends a process.
    pub fn leave(&self, pid: u32) {
        for group in self.state().groups.values_mut() {
            group.pids.remove(&pid);
        }
    }

    /// Makes the next write to a file fail.
    pub fn fail_next_write(&self, at: &CgroupPath, file: &str, errno: Errno) {
        let failure = (at.clone(), file.to_owned(), errno);
        self.state().failures.push(failure);
    }

    /// Makes the next reading of a file fail; `.` is the listing of the groups below, and no name the look
    /// whether the group is there.
    pub fn fail_next_read(&self, at: &CgroupPath, file: &str, errno: Errno) {
        let failure = (at.clone(), file.to_owned(), errno);
        self.state().unread.push(failure);
    }

    /// Makes every look fail, until told that none does.
    pub fn fail_looks(&self, errno: Option<Errno>) {
        self.state().blind = errno;
    }

    /// Makes a group one that nobody may open, as whoever owns it can, if we may override nothing.
    pub fn close(&self, at: &CgroupPath) {
        self.state().closed.insert(at.clone());
    }

    /// Gives a group to another user, as systemd does with that of a unit that has `Delegate=` and `User=`.
    pub fn give_away(&self, at: &CgroupPath) {
        if let Some(group) = self.state().groups.get_mut(at) {
            group.is_open = true;
        }
    }

    /// Makes every reading of a note fail, until told that none does.
    pub fn fail_notes(&self, errno: Option<Errno>) {
        self.state().unread_notes = errno;
    }

    /// Makes every noting fail, until told that none does.
    pub fn refuse_notes(&self, errno: Option<Errno>) {
        self.state().refused_notes = errno;
    }

    /// How often something was noted since the last call, or was to be.
    pub fn take_noted(&self) -> usize {
        mem::take(&mut self.state().noted)
    }

    /// What was written since the last call, in order; refused writes are not in it.
    pub fn take_writes(&self) -> Vec<Write> {
        mem::take(&mut self.state().writes)
    }

    /// How often files of this name were read since the last call.
    pub fn take_reads(&self, file: &str) -> usize {
        self.state().reads.remove(file).unwrap_or_default()
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0
            .lock()
            .expect("no test panics while it holds the tree")
    }
}

impl Tree for FakeTree {
    fn version(&self) -> Version {
        let state = self.state();
        if state.beside_v2 {
            return Version::Hybrid;
        }
        match state.generation {
            Generation::V1 => Version::V1,
            Generation::V2 => Version::V2,
        }
    }

    fn generation(&self, _: Controller) -> Option<Generation> {
        Some(self.state().generation)
    }

    fn inode(&self, _: Controller, at: &CgroupPath) -> io::Result<Option<u64>> {
        let mut state = self.state();
        state.sees()?;
        if let Some(errno) = take(&mut state.unread, at, "") {
            return Err(errno.into());
        }
        if let Some(above) = at.parent() {
            state.may_open(&above)?;
        }
        Ok(state.groups.get(at).map(|group| group.inode))
    }

    fn has_file(&self, controller: Controller, at: &CgroupPath, file: &str) -> io::Result<bool> {
        self.state().sees()?;
        Ok(self.read(controller, at, file).is_ok())
    }

    fn read(&self, controller: Controller, at: &CgroupPath, file: &str) -> io::Result<String> {
        let mut state = self.state();
        state.sees()?;
        *state.reads.entry(file.to_owned()).or_default() += 1;
        state.may_open(at)?;
        if let Some(errno) = take(&mut state.unread, at, file) {
            return Err(errno.into());
        }
        Ok(state.read(controller, at, file)?)
    }

    fn write(
        &self,
        controller: Controller,
        at: &CgroupPath,
        file: &str,
        text: &str,
    ) -> io::Result<()> {
        let mut state = self.state();
        state.may_open(at)?;
        Ok(state.write(controller, at, file, text)?)
    }

    fn watch(&self, controller: Controller, at: &CgroupPath, file: &str) -> io::Result<OwnedFd> {
        let mut state = self.state();
        state.may_open(at)?;
        state.read(controller, at, file)?;
        let (ours, theirs) = socketpair(
            AddressFamily::UNIX,
            SocketType::STREAM,
            SocketFlags::CLOEXEC | SocketFlags::NONBLOCK,
            None,
        )?;
        state.watches.push((at.clone(), file.to_owned(), ours));
        Ok(theirs)
    }

    fn children(&self, _: Controller, at: &CgroupPath, most: usize) -> io::Result<Names> {
        let mut state = self.state();
        state.sees()?;
        state.may_open(at)?;
        if let Some(errno) = take(&mut state.unread, at, ".") {
            return Err(errno.into());
        }
        if !state.groups.contains_key(at) {
            return Err(Errno::NOENT.into());
        }
        let mut below = state.below(at).filter_map(|(path, _)| path.file_name());
        Ok(Names {
            names: below.by_ref().take(most).map(ToOwned::to_owned).collect(),
            are_more: below.next().is_some(),
            others: 0,
        })
    }

    fn note(&self, _: Controller, at: &CgroupPath, note: Note) -> io::Result<String> {
        let state = self.state();
        let group = state.groups.get(at).ok_or(Errno::NOENT)?;
        if !state.takes_notes || !group.takes(note) {
            return Err(Errno::OPNOTSUPP.into());
        }
        state.may_open(at)?;
        if let Some(errno) = state.unread_notes {
            return Err(errno.into());
        }
        Ok(group.notes.get(note.name()).cloned().unwrap_or_default())
    }

    fn set_note(&self, _: Controller, at: &CgroupPath, note: Note, text: &str) -> io::Result<()> {
        let mut state = self.state();
        if !state.takes_notes {
            return Err(Errno::OPNOTSUPP.into());
        }
        state.noted += 1;
        state.may_open(at)?;
        if let Some(errno) = state.refused_notes {
            return Err(errno.into());
        }
        let group = state.groups.get_mut(at).ok_or(Errno::NOENT)?;
        if !group.takes(note) {
            return Err(Errno::OPNOTSUPP.into());
        }
        if text.len() > MAX_NOTE {
            return Err(Errno::TOOBIG.into());
        }
        match text {
            "" => group.notes.remove(note.name()),
            text => group.notes.insert(note.name().to_owned(), text.to_owned()),
        };
        Ok(())
    }
}

impl Sysctls for FakeTree {
    fn sysctl(&self, name: &str) -> io::Result<String> {
        let state = self.state();
        let text = state.sysctls.get(name).ok_or(Errno::NOENT)?;
        Ok(format!("{text}\n"))
    }

    fn set_sysctl(&self, name: &str, text: &str) -> io::Result<()> {
        let mut state = self.state();
        let root = CgroupPath::root();
        if let Some(errno) = take(&mut state.failures, &root, name) {
            return Err(errno.into());
        }
        let held = state.sysctls.get_mut(name).ok_or(Errno::NOENT)?;
        *held = text.to_owned();
        state.writes.push(Write {
            at: root,
            file: name.to_owned(),
            text: text.to_owned(),
        });
        Ok(())
    }
}

/// The failure that was planned for a file, once.
fn take(
    failures: &mut Vec<(CgroupPath, String, Errno)>,
    at: &CgroupPath,
    file: &str,
) -> Option<Errno> {
    let planned = |(path, name, _): &(CgroupPath, String, Errno)| path == at && name == file;
    let index = failures.iter().position(planned)?;
    Some(failures.remove(index).2)
}

// === impl State ===

impl State {
    #[expect(clippy::disallowed_methods, reason = "a /proc of a test's own")]
    fn show(&self, pid: u32, at: &CgroupPath) {
        let Some(procfs) = self.procfs.as_ref().filter(|it| it.is_dir()) else {
            return;
        };
        let own = procfs.join(pid.to_string());
        fs::create_dir_all(&own).expect("a directory of a test");
        fs::write(own.join("cgroup"), format!("0::{at}\n")).expect("a file of a test");
    }

    /// Whether a group can be opened, or what is in it.
    fn may_open(&self, at: &CgroupPath) -> Result<(), Errno> {
        match self.closed.iter().any(|closed| at.is_under(closed)) {
            true => Err(Errno::ACCESS),
            false => Ok(()),
        }
    }

    fn sees(&self) -> Result<(), Errno> {
        self.blind.map_or(Ok(()), Err)
    }

    fn read(&self, controller: Controller, at: &CgroupPath, file: &str) -> Result<String, Errno> {
        let group = self.groups.get(at).ok_or(Errno::NOENT)?;
        let foreign = !MEMBERS.contains(&file) && !belongs(controller, self.generation, file);
        if foreign || self.lacking.contains(file) {
            return Err(Errno::NOENT);
        }
        if self.generation == Generation::V2 {
            if file == "cpuset.cpus.effective" {
                return Ok(format!("{}\n", self.effective(at)));
            }
            // The root of cgroup v2 has no limits.
            if at.is_root() && !MEMBERS.contains(&file) && !devices::OF_ROOT.contains(&file) {
                return Err(Errno::NOENT);
            }
        }
        if !at.is_root() && devices::OF_ROOT.contains(&file) {
            return Err(Errno::NOENT);
        }
        group.show(self.generation, file).ok_or(Errno::NOENT)
    }

    fn write(
        &mut self,
        controller: Controller,
        at: &CgroupPath,
        file: &str,
        text: &str,
    ) -> Result<(), Errno> {
        self.read(controller, at, file)?;
        if let Some(errno) = take(&mut self.failures, at, file) {
            return Err(errno);
        }
        if text.is_empty() {
            return Ok(());
        }
        let old = self.groups[at].clone();
        let mut new = old.clone();
        if controller == Controller::Io {
            let shares = self.groups[&CgroupPath::root()].io.clone();
            let exists = |device| self.devices.contains(&device);
            new.io
                .store(file, text, exists, |device| shares.shares(device))?;
        } else {
            new.store(file, text, self.cpus)?;
        }
        if at.is_root() && controller != Controller::Io {
            // "cpuset.cpus" of the root says so, all others that the value is wrong.
            let cpuset = controller == Controller::Cpuset;
            return Err(if cpuset { Errno::ACCESS } else { Errno::INVAL });
        }
        if new.cpus != old.cpus {
            self.check_cpus(at, &new.cpus)?;
        }
        self.groups.insert(at.clone(), new);
        if let Err(errno) = self.check_ratios() {
            self.groups.insert(at.clone(), old);
            return Err(errno);
        }
        self.writes.push(Write {
            at: at.clone(),
            file: file.to_owned(),
            text: text.to_owned(),
        });
        self.tell(at, file);
        Ok(())
    }

    /// Tells who watches a file; who does so no more is forgotten.
    fn tell(&mut self, at: &CgroupPath, file: &str) {
        self.watches.retain(|(watched, name, watch)| {
            (watched, &**name) != (at, file) || rustix::io::write(watch, b"!").is_ok()
        });
    }

    /// `validate_change` of `kernel/cgroup/cpuset.c`.
    fn check_cpus(&self, at: &CgroupPath, cpus: &CpuSet) -> Result<(), Errno> {
        if self.generation == Generation::V1 {
            if self.below(at).any(|(_, child)| !child.cpus.is_subset(cpus)) {
                return Err(Errno::BUSY);
            }
            let parent = at.parent().expect("the root is not written");
            if !cpus.is_subset(&self.groups[&parent].cpus) {
                return Err(Errno::ACCESS);
            }
        }
        let inside =
            |(path, group): (&CgroupPath, &Group)| path.is_under(at) && !group.pids.is_empty();
        let populated = self.groups.iter().any(inside);
        if populated && cpus.is_empty() {
            return Err(Errno::NOSPC);
        }
        Ok(())
    }

    /// `tg_cfs_schedulable_down` of `kernel/sched/core.c`: on cgroup v1 no group may have a greater
    /// part of a CPU than any above it; on v2 it then has the lesser part.
    fn check_ratios(&self) -> Result<(), Errno> {
        if self.generation == Generation::V2 {
            return Ok(());
        }
        // A parent sorts before its children, so its own bound is known.
        let mut bounds: BTreeMap<&CgroupPath, Option<u64>> = BTreeMap::new();
        for (path, group) in &self.groups {
            let parent = path.parent().and_then(|parent| bounds[&parent]);
            let bound = match (group.ratio(), parent) {
                (Some(own), Some(parent)) if own > parent => return Err(Errno::INVAL),
                (own, parent) => own.or(parent),
            };
            bounds.insert(path, bound);
        }
        Ok(())
    }

    /// The CPUs that a group really has on cgroup v2: its own that its parent has, or its parent's.
    fn effective(&self, at: &CgroupPath) -> CpuSet {
        let own = &self.groups[at].cpus;
        let Some(parent) = at.parent() else {
            return own.clone();
        };
        let parent = self.effective(&parent);
        let common = own.intersection(&parent);
        if common.is_empty() { parent } else { common }
    }

    fn below(&self, at: &CgroupPath) -> impl Iterator<Item = (&CgroupPath, &Group)> {
        let at = at.clone();
        // No name sorts before this one.
        let first = at.join(" ").unwrap_or_else(|_| at.clone());
        let under = self.groups.range(first..);
        let under = under.take_while({
            let at = at.clone();
            move |(path, _)| path.is_under(&at)
        });
        under.filter(move |(path, _)| path.parent().as_ref() == Some(&at))
    }
}

/// What is of vendors' kernels only, which gave cgroup v1 some files of v2 too.
fn lacking_on_mainline(generation: Generation) -> BTreeSet<String> {
    let of_vendors = [
        "cpu.bvt_warp_ns",
        "memory.wmark_ratio",
        "memory.wmark_scale_factor",
        "memory.wmark_min_adj",
        "memory.priority",
        "memory.use_priority_oom",
        "memory.pagecache_limit.size",
        "memory.pagecache_limit.sync",
        "memory.pagecache_limit.enable",
    ];
    let of_v2 = [
        "memory.min",
        "memory.low",
        "memory.high",
        "memory.oom.group",
        "blkio.cost.weight",
        "blkio.cost.qos",
        "blkio.cost.model",
    ];
    let of_v2 = of_v2.iter().filter(|_| generation == Generation::V1);
    let all = of_vendors.iter().chain(of_v2);
    all.map(|file| (*file).to_owned()).collect()
}

/// The files of every hierarchy that say who is in a group.
const MEMBERS: [&str; 3] = ["cgroup.procs", "cgroup.threads", "tasks"];

/// Whether a file is one of a controller's, as its name says.
fn belongs(controller: Controller, generation: Generation, file: &str) -> bool {
    file.split('.').next() == Some(controller.name(generation))
}

//! Which block devices a machine has, and which of them a name means at this moment.
//!
//! Everything is read from sysfs, from the list of mounts and from what udev has noted: no device is
//! opened, nothing below `/dev` is looked at (a service may have none of it), no program is run, and
//! no file system of a pod is touched, which might not answer. Of a claim that a pod has as a device
//! the node is looked at that the kubelet has mounted in its own directory. Pods choose some of what
//! is read, and not all of that is text, so files are read as bytes.
//!
//! What cannot be read now is an error of its own, never a device that is not there: whoever takes a
//! limit off what has gone has to know that it has.
//!
//! Numbers are handed out anew when a device has gone, so nothing is remembered here: whoever wants
//! to write to devices takes a [`Look`] each time. A node has thousands of mounts, and names come from
//! pods, so what has to be read as a whole is read once in a look, however many names there are.

mod raw;

use koord_model::{Block, BlockName, DeviceNumber, PodUid};
use rustix::io::Errno;
use std::{
    cell::OnceCell,
    collections::{BTreeSet, HashMap},
    ffi::OsStr,
    fs, io,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
};
use thiserror::Error;

/// The block devices of a machine.
#[derive(Clone, Debug)]
pub struct BlockDevices {
    sys: PathBuf,
    proc: PathBuf,
    /// Where udev notes the other names of devices.
    udev: PathBuf,
    /// The kubelet's directory, as people name it.
    kubelet: PathBuf,
    /// How nodes are looked at.
    node: NodeOf,
}

/// Which block device the node at a path is of; `None` if something else is there.
type NodeOf = fn(&Path) -> io::Result<Option<DeviceNumber>>;

/// What the machine has at a moment, as far as it was asked for.
#[derive(Debug)]
pub struct Look<'a> {
    devices: &'a BlockDevices,
    /// The kubelet's directory without links on the way to it.
    kubelet: OnceCell<PathBuf>,
    /// What is mounted in the kubelet's directory, by path.
    mounts: OnceCell<HashMap<Vec<u8>, DeviceNumber>>,
    mappers: OnceCell<Vec<Mapper>>,
    /// Devices by the names that udev has given them.
    notes: OnceCell<HashMap<String, DeviceNumber>>,
}

/// What of a device is meant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub enum Layer {
    /// The device itself. All requests to a partition are its disk's.
    Itself,
    /// The disks below: a device that is mapped to others has no queue of requests to share out.
    Disks,
}

/// Why nothing is known to be meant.
#[derive(Debug, Error)]
pub enum BlockError {
    #[error("no block device is called /dev/{name}")]
    NoDevice { name: BlockName },
    #[error("no volume group with active volumes is called {name}")]
    NoVolumeGroup { name: BlockName },
    #[error("nothing is mounted at {path}")]
    NotMounted { path: PathBuf },
    #[error("what is mounted at {path} is on no block device")]
    NotOnDevice { path: PathBuf },
    #[error("no claim of the pod is mounted, and its volume {volume} is one")]
    NoClaim { volume: BlockName },
    #[error("more is mounted for the pod than its other volumes and {volume}")]
    SeveralClaims { volume: BlockName },
    #[error("no claim of the pod is mapped as a device, and its volume {volume} is one")]
    NoRawClaim { volume: BlockName },
    #[error("more is mapped for the pod as a device than {volume}")]
    SeveralRawClaims { volume: BlockName },
    #[error("what is mapped at {path} is no block device")]
    NotBlockDevice { path: PathBuf },
    /// What was asked for may be there, and may have gone.
    #[error("cannot read {path}")]
    Io { path: PathBuf, source: io::Error },
}

/// How many devices may be mapped to one another in a row.
const MAX_DEPTH: usize = 16;

/// The directory of volumes that CSI drivers mount. What is mounted is one step further down there.
const CSI: &[u8] = b"kubernetes.io~csi";

/// How device-mapper's notes of an LVM volume begin.
const OF_LVM: &str = "LVM-";

// === impl BlockDevices ===

impl BlockDevices {
    /// `sys` and `proc` are `/sys` and `/proc`, `udev` is `/run/udev/data`, `kubelet` is
    /// `/var/lib/kubelet`.
    pub fn new(sys: &Path, proc: &Path, udev: &Path, kubelet: &Path) -> Self {
        Self {
            sys: sys.to_owned(),
            proc: proc.to_owned(),
            udev: udev.to_owned(),
            kubelet: kubelet.to_owned(),
            node: raw::device_of_node,
        }
    }

    /// The same, where nodes are something else: a test may make none.
    #[cfg(any(test, feature = "fake"))]
    pub(crate) fn with_nodes(self, node: NodeOf) -> Self {
        Self { node, ..self }
    }

    /// A look at what there is now, for one update.
    pub fn look(&self) -> Look<'_> {
        Look {
            devices: self,
            kubelet: OnceCell::new(),
            mounts: OnceCell::new(),
            mappers: OnceCell::new(),
            notes: OnceCell::new(),
        }
    }

    /// The disk that a partition is of, or the device itself.
    fn whole(&self, number: DeviceNumber) -> Result<DeviceNumber, BlockError> {
        let at = self.directory(number);
        if !is_there(&at.join("partition"))? {
            return Ok(number);
        }
        let partition = unless_absent(&at, fs::canonicalize(&at))?;
        let disk = match partition.as_deref().and_then(Path::parent) {
            Some(disk) => parsed(&disk.join("dev"))?,
            None => None,
        };
        Ok(disk.unwrap_or(number))
    }

    /// The disks that a device is mapped to, however many steps down; itself if it is to none.
    fn disks_below(&self, number: DeviceNumber) -> Result<BTreeSet<DeviceNumber>, BlockError> {
        let mut found = BTreeSet::new();
        let mut waiting = vec![(number, 0)];
        while let Some((number, depth)) = waiting.pop() {
            let number = self.whole(number)?;
            let slaves = self.directory(number).join("slaves");
            let mut below = Vec::new();
            for name in unless_absent(&slaves, names(&slaves))?.unwrap_or_default() {
                below.extend(self.number(&name)?);
            }
            if below.is_empty() || depth == MAX_DEPTH {
                found.insert(number);
            } else {
                waiting.extend(below.into_iter().map(|number| (number, depth + 1)));
            }
        }
        Ok(found)
    }

    /// What is mounted in the kubelet's directory; of what is mounted at one path the last is seen.
    ///
    /// A line says what of a file system is mounted there by its name of now, with all bytes but
    /// blanks and the like as they are. A pod may rename what its `subPath` is.
    fn mounts(&self, kubelet: &Path) -> Result<HashMap<Vec<u8>, DeviceNumber>, BlockError> {
        let path = self.proc.join("self/mountinfo");
        let mounts = fs::read(&path).map_err(|source| unread(&path, source))?;
        let kubelet = kubelet.as_os_str().as_encoded_bytes();
        let mount = |line: &[u8]| {
            let mut words = line.split(|byte| *byte == b' ').skip(2);
            let number = std::str::from_utf8(words.next()?).ok()?;
            let number: DeviceNumber = number.parse().ok()?;
            let mount_point = unescaped(words.nth(1)?);
            let is_kubelets = mount_point.starts_with(kubelet);
            is_kubelets.then_some((mount_point, number))
        };
        let lines = mounts.split(|byte| *byte == b'\n');
        Ok(lines.filter_map(mount).collect())
    }

    /// The names that udev has given devices, such as those by serial numbers; none without udev.
    fn notes(&self) -> Result<HashMap<String, DeviceNumber>, BlockError> {
        let mut found = HashMap::new();
        for note in unless_absent(&self.udev, names(&self.udev))?.unwrap_or_default() {
            let number = note.strip_prefix('b').and_then(|it| it.parse().ok());
            let Some(number) = number else {
                continue;
            };
            let Some(text) = text_of(&self.udev.join(&note))? else {
                continue;
            };
            for name in text.lines().filter_map(|line| line.strip_prefix("S:")) {
                found.entry(name.to_owned()).or_insert(number);
            }
        }
        Ok(found)
    }

    /// The devices of device-mapper.
    fn mappers(&self) -> Result<Vec<Mapper>, BlockError> {
        let path = self.sys.join("class/block");
        let devices = names(&path).map_err(|source| unread(&path, source))?;
        let mapped = devices.into_iter().filter(|name| name.starts_with("dm-"));
        mapped
            .filter_map(|device| self.mapper(device).transpose())
            .collect()
    }

    /// A device of device-mapper, unless it has gone.
    fn mapper(&self, device: String) -> Result<Option<Mapper>, BlockError> {
        let dm = self.sys.join("class/block").join(&device).join("dm");
        let text = |file| match text_of(&dm.join(file)) {
            // Of one that is being removed (`dm_attr_show()` and `dm_attr_name_show()` of Linux).
            Err(BlockError::Io { source, .. }) if says(&source, &[Errno::INVAL, Errno::IO]) => {
                Ok(None)
            }
            text => text,
        };
        let (Some(name), Some(uuid)) = (text("name")?, text("uuid")?) else {
            return Ok(None);
        };
        Ok(Some(Mapper {
            name: name.trim().to_owned(),
            is_of_lvm: uuid.starts_with(OF_LVM),
            device,
        }))
    }

    /// The number of a device by the kernel's name.
    fn number(&self, name: &str) -> Result<Option<DeviceNumber>, BlockError> {
        parsed(&self.sys.join("class/block").join(name).join("dev"))
    }

    /// Where sysfs has a device.
    fn directory(&self, number: DeviceNumber) -> PathBuf {
        self.sys.join("dev/block").join(number.to_string())
    }
}

// === impl Look ===

impl Look<'_> {
    /// The devices that a name means now, at least one.
    ///
    /// # Errors
    ///
    /// When nothing is called so, what is called so is on no block device of this machine, or a pod has
    /// several claims that may be meant. [`BlockError::Io`] says neither: it cannot be found out now.
    pub fn find(&self, block: &Block, layer: Layer) -> Result<BTreeSet<DeviceNumber>, BlockError> {
        let (number, layer) = match block {
            Block::Device(name) => (self.called(name)?, layer),
            Block::VolumeGroup(name) => return self.disks_of_group(name),
            Block::PodVolume { pod, volume } => (self.mounted(pod, volume)?, layer),
            Block::PodClaim {
                pod,
                volume,
                others,
            } => (self.claimed(pod, volume, others)?, layer),
            Block::RawClaim { pod, volume } => (self.raw_claim(pod, volume)?, layer),
        };
        match layer {
            Layer::Itself => Ok([self.devices.whole(number)?].into()),
            Layer::Disks => self.devices.disks_below(number),
        }
    }

    /// A device by its name below `/dev`: the kernel's, device-mapper's, or one that udev made.
    fn called(&self, name: &BlockName) -> Result<DeviceNumber, BlockError> {
        let text = name.as_str();
        // The kernel's own names have this where a path has a slash.
        let mut found = self.devices.number(&text.replace('/', "!"))?;
        if found.is_none() {
            found = self.mapped(text)?;
        }
        if found.is_none() {
            found = self.noted(text)?;
        }
        found.ok_or_else(|| BlockError::NoDevice { name: name.clone() })
    }

    /// The disks under the active volumes of a group.
    fn disks_of_group(&self, name: &BlockName) -> Result<BTreeSet<DeviceNumber>, BlockError> {
        let mappers = self.mappers()?;
        let volumes = mappers
            .iter()
            .filter(|it| it.group().as_deref() == Some(name.as_str()));
        let mut disks = BTreeSet::new();
        for volume in volumes {
            if let Some(number) = self.devices.number(&volume.device)? {
                disks.extend(self.devices.disks_below(number)?);
            }
        }
        if disks.is_empty() {
            return Err(BlockError::NoVolumeGroup { name: name.clone() });
        }
        Ok(disks)
    }

    /// What a volume of a pod is on, by the name of its directory.
    fn mounted(&self, pod: &PodUid, volume: &BlockName) -> Result<DeviceNumber, BlockError> {
        let volumes = self.volumes(pod)?;
        if let Some(found) = volumes.iter().find(|it| it.is_called(volume)) {
            return self.on_device(pod, found);
        }
        let raw = self.raw_volume(pod, volume)?;
        raw.ok_or_else(|| {
            let csi = self.volumes_of(pod).join(OsStr::from_bytes(CSI));
            let path = csi.join(volume.as_str()).join("mount");
            BlockError::NotMounted { path }
        })
    }

    /// What the only claim of a pod is on: the one volume that is called as none of these.
    fn claimed(
        &self,
        pod: &PodUid,
        volume: &BlockName,
        others: &[BlockName],
    ) -> Result<DeviceNumber, BlockError> {
        let mut volumes = self.volumes(pod)?;
        volumes.retain(|it| !others.iter().any(|other| it.is_called(other)));
        let volume = volume.clone();
        match volumes.as_slice() {
            [found] => self.on_device(pod, found),
            [] => Err(BlockError::NoClaim { volume }),
            _ => Err(BlockError::SeveralClaims { volume }),
        }
    }

    /// What is mounted as volumes of a pod, in the order of the paths.
    fn volumes(&self, pod: &PodUid) -> Result<Vec<MountedVolume<'_>>, BlockError> {
        let mounts = self.mounts()?;
        let directory = self.resolved(&self.volumes_of(pod));
        let directory = directory.as_os_str().as_encoded_bytes();
        let volumes = mounts.iter();
        let volumes = volumes.filter_map(|(path, it)| MountedVolume::at(path, directory, *it));
        let mut volumes: Vec<_> = volumes.collect();
        volumes.sort_unstable_by_key(|it| it.below);
        Ok(volumes)
    }

    /// Where the kubelet has the volumes of a pod.
    fn volumes_of(&self, pod: &PodUid) -> PathBuf {
        let pods = self.devices.kubelet.join("pods");
        pods.join(pod.as_str()).join("volumes")
    }

    /// What is mounted in the kubelet's directory.
    fn mounts(&self) -> Result<&HashMap<Vec<u8>, DeviceNumber>, BlockError> {
        once(&self.mounts, || self.devices.mounts(self.kubelet()))
    }

    /// The kubelet's directory as the kernel lists mounts: it may be a link to another disk.
    fn kubelet(&self) -> &Path {
        let named = &self.devices.kubelet;
        let resolved = || fs::canonicalize(named).unwrap_or_else(|_| named.clone());
        self.kubelet.get_or_init(resolved)
    }

    /// A path in the kubelet's directory as the kernel lists mounts. People are told it as it is
    /// given here.
    fn resolved(&self, path: &Path) -> PathBuf {
        match path.strip_prefix(&self.devices.kubelet) {
            Ok(below) => self.kubelet().join(below),
            Err(_) => path.to_owned(),
        }
    }

    fn on_device(
        &self,
        pod: &PodUid,
        volume: &MountedVolume<'_>,
    ) -> Result<DeviceNumber, BlockError> {
        let path = self.volumes_of(pod).join(OsStr::from_bytes(volume.below));
        self.there(volume.number, &path)
    }

    /// A device that is mounted at a path, if there is such a one.
    fn there(&self, number: DeviceNumber, path: &Path) -> Result<DeviceNumber, BlockError> {
        match is_there(&self.devices.directory(number))? {
            true => Ok(number),
            false => Err(BlockError::NotOnDevice { path: path.into() }),
        }
    }

    /// The device that device-mapper has given a name.
    fn mapped(&self, name: &str) -> Result<Option<DeviceNumber>, BlockError> {
        let Some(wanted) = mapper_name(name) else {
            return Ok(None);
        };
        let mapper = self.mappers()?.iter().find(|it| it.name == wanted);
        mapper.map_or(Ok(None), |mapper| self.devices.number(&mapper.device))
    }

    /// The device that udev has given a name.
    fn noted(&self, name: &str) -> Result<Option<DeviceNumber>, BlockError> {
        let notes = once(&self.notes, || self.devices.notes())?;
        let Some(number) = notes.get(name).copied() else {
            return Ok(None);
        };
        // What it is a note of may be gone.
        let is_there = is_there(&self.devices.directory(number))?;
        Ok(is_there.then_some(number))
    }

    /// The devices of device-mapper.
    fn mappers(&self) -> Result<&[Mapper], BlockError> {
        once(&self.mappers, || self.devices.mappers()).map(Vec::as_slice)
    }
}

/// What is read the first time that it is asked for. What cannot be read is tried again.
fn once<T>(
    cell: &OnceCell<T>,
    read: impl FnOnce() -> Result<T, BlockError>,
) -> Result<&T, BlockError> {
    match cell.get() {
        Some(known) => Ok(known),
        None => {
            let known = read()?;
            Ok(cell.get_or_init(|| known))
        }
    }
}

/// What is mounted as a volume of a pod.
#[derive(Debug)]
struct MountedVolume<'a> {
    name: &'a [u8],
    /// Its path in the directory of the pod's volumes.
    below: &'a [u8],
    number: DeviceNumber,
}

// === impl MountedVolume ===

impl<'a> MountedVolume<'a> {
    /// What is mounted at a path, if that is where a driver mounts a volume below this directory, and
    /// not inside of one.
    fn at(path: &'a [u8], directory: &[u8], number: DeviceNumber) -> Option<Self> {
        let below = path.strip_prefix(directory)?.strip_prefix(b"/")?;
        let mut steps = below.split(|byte| *byte == b'/');
        let (driver, name) = (steps.next()?, steps.next()?);
        let last = (driver == CSI).then_some(&b"mount"[..]);
        let is_volume = steps.next() == last && steps.next().is_none();
        is_volume.then_some(Self {
            name,
            below,
            number,
        })
    }

    fn is_called(&self, name: &BlockName) -> bool {
        self.name == name.as_str().as_bytes()
    }
}

/// A device of device-mapper.
#[derive(Debug)]
struct Mapper {
    /// The kernel's name.
    device: String,
    name: String,
    is_of_lvm: bool,
}

// === impl Mapper ===

impl Mapper {
    /// The volume group that it is a volume of. LVM joins the two names by a dash, and doubles those
    /// inside of them.
    fn group(&self) -> Option<String> {
        if !self.is_of_lvm {
            return None;
        }
        let mut group = String::new();
        let mut chars = self.name.chars().peekable();
        while let Some(c) = chars.next() {
            match c {
                '-' if chars.next_if_eq(&'-').is_none() => return Some(group),
                c => group.push(c),
            }
        }
        None
    }
}

/// What device-mapper calls a device of that name below `/dev`: one of its own directory, or a volume
/// in that of its group.
fn mapper_name(name: &str) -> Option<String> {
    let (directory, name) = name
        .split_once('/')
        .filter(|(_, name)| !name.contains('/'))?;
    let doubled = |text: &str| text.replace('-', "--");
    Some(match directory {
        "mapper" => name.to_owned(),
        group => format!("{}-{}", doubled(group), doubled(name)),
    })
}

/// A path as the list of mounts has it, with its spaces and the like as they are.
fn unescaped(text: &[u8]) -> Vec<u8> {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text;
    while let Some((first, after)) = rest.split_first() {
        let digits = after.get(..3).and_then(|it| std::str::from_utf8(it).ok());
        let escaped = digits.and_then(|it| u8::from_str_radix(it, 8).ok());
        match (first, escaped) {
            (b'\\', Some(byte)) => {
                path.push(byte);
                rest = &after[3..];
            }
            (byte, _) => {
                path.push(*byte);
                rest = after;
            }
        }
    }
    path
}

fn parsed(path: &Path) -> Result<Option<DeviceNumber>, BlockError> {
    let text = text_of(path)?;
    Ok(text.and_then(|text| text.trim().parse().ok()))
}

/// What is in a file, if it is there. Bytes that are no text are of no name that anybody asks for.
fn text_of(path: &Path) -> Result<Option<String>, BlockError> {
    let bytes = unless_absent(path, fs::read(path))?;
    Ok(bytes.map(|bytes| String::from_utf8_lossy(&bytes).into_owned()))
}

fn is_there(path: &Path) -> Result<bool, BlockError> {
    Ok(unless_absent(path, fs::metadata(path))?.is_some())
}

/// What was read at a path; nothing if that is not there, or went as it was read, of which sysfs says
/// that there is no such device.
fn unless_absent<T>(path: &Path, read: io::Result<T>) -> Result<Option<T>, BlockError> {
    match read {
        Ok(read) => Ok(Some(read)),
        Err(error) if says(&error, &[Errno::NOENT, Errno::NODEV]) => Ok(None),
        Err(source) => Err(unread(path, source)),
    }
}

fn unread(path: &Path, source: io::Error) -> BlockError {
    BlockError::Io {
        path: path.to_owned(),
        source,
    }
}

/// Whether an error is one of these.
fn says(error: &io::Error, any: &[Errno]) -> bool {
    any.iter()
        .any(|errno| error.raw_os_error() == Some(errno.raw_os_error()))
}

/// What is in a directory, sorted.
fn names(path: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in fs::read_dir(path)? {
        names.extend(entry?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

#[cfg(test)]
mod tests;

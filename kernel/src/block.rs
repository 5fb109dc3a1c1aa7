//! Which block devices a machine has, and which of them a name means at this moment.
//!
//! Everything is read from sysfs, from the list of mounts and from what udev has noted: no device is
//! opened, nothing below `/dev` is looked at (a service may have none of it), no program is run, and
//! no file system of a pod is touched, which might not answer.
//!
//! Numbers are handed out anew when a device has gone, so nothing is remembered here: whoever wants
//! to write to devices takes a [`Look`] each time. A node has thousands of mounts, and names come from
//! pods, so what has to be read as a whole is read once in a look, however many names there are.

use koord_model::{Block, BlockName, DeviceNumber, PodUid};
use std::{
    cell::OnceCell,
    collections::{BTreeSet, HashMap},
    fs, io,
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
    /// The kubelet's directory.
    kubelet: PathBuf,
}

/// What the machine has at a moment, as far as it was asked for.
#[derive(Debug)]
pub struct Look<'a> {
    devices: &'a BlockDevices,
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
    #[error("cannot read {path}")]
    Io { path: PathBuf, source: io::Error },
}

/// How many devices may be mapped to one another in a row.
const MAX_DEPTH: usize = 16;

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
        }
    }

    /// A look at what there is now, for one update.
    pub fn look(&self) -> Look<'_> {
        Look {
            devices: self,
            mounts: OnceCell::new(),
            mappers: OnceCell::new(),
            notes: OnceCell::new(),
        }
    }

    /// The disk that a partition is of, or the device itself.
    fn whole(&self, number: DeviceNumber) -> DeviceNumber {
        let at = self.directory(number);
        let disk = || {
            let partition = fs::canonicalize(&at).ok()?;
            parsed(&partition.parent()?.join("dev"))
        };
        let is_partition = at.join("partition").exists();
        is_partition.then(disk).flatten().unwrap_or(number)
    }

    /// The disks that a device is mapped to, however many steps down; itself if it is to none.
    fn disks_below(&self, number: DeviceNumber) -> BTreeSet<DeviceNumber> {
        let mut found = BTreeSet::new();
        let mut waiting = vec![(number, 0)];
        while let Some((number, depth)) = waiting.pop() {
            let number = self.whole(number);
            let below = names(&self.directory(number).join("slaves")).unwrap_or_default();
            let below: Vec<_> = below.iter().filter_map(|name| self.number(name)).collect();
            if below.is_empty() || depth == MAX_DEPTH {
                found.insert(number);
            } else {
                waiting.extend(below.into_iter().map(|number| (number, depth + 1)));
            }
        }
        found
    }

    /// What is mounted in the kubelet's directory; of what is mounted at one path the last is seen.
    fn mounts(&self) -> Result<HashMap<Vec<u8>, DeviceNumber>, BlockError> {
        let mounts = read(&self.proc.join("self/mountinfo"))?;
        let kubelet = self.kubelet.as_os_str().as_encoded_bytes();
        let mount = |line: &str| {
            let mut words = line.split(' ').skip(2);
            let (number, mount_point) = (words.next()?, unescaped(words.nth(1)?));
            let is_kubelets = mount_point.starts_with(kubelet);
            is_kubelets.then_some((mount_point, number.parse().ok()?))
        };
        Ok(mounts.lines().filter_map(mount).collect())
    }

    /// The names that udev has given devices, such as those by serial numbers.
    fn notes(&self) -> Result<HashMap<String, DeviceNumber>, BlockError> {
        let notes = names(&self.udev).map_err(|source| BlockError::Io {
            path: self.udev.clone(),
            source,
        })?;
        let mut found = HashMap::new();
        for note in notes {
            let number = note.strip_prefix('b').and_then(|it| it.parse().ok());
            let text = number.and_then(|_| fs::read_to_string(self.udev.join(&note)).ok());
            let (Some(number), Some(text)) = (number, text) else {
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
        let devices = names(&path).map_err(|source| BlockError::Io {
            path: path.clone(),
            source,
        })?;
        let mapped = devices.into_iter().filter(|name| name.starts_with("dm-"));
        let mapper = |device: String| {
            let dm = path.join(&device).join("dm");
            let text = |file| fs::read_to_string(dm.join(file)).ok();
            Some(Mapper {
                name: text("name")?.trim().to_owned(),
                is_of_lvm: text("uuid")?.starts_with(OF_LVM),
                device,
            })
        };
        Ok(mapped.filter_map(mapper).collect())
    }

    /// The number of a device by the kernel's name.
    fn number(&self, name: &str) -> Option<DeviceNumber> {
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
    pub fn find(&self, block: &Block, layer: Layer) -> Result<BTreeSet<DeviceNumber>, BlockError> {
        let (number, layer) = match block {
            Block::Device(name) => (self.called(name)?, layer),
            Block::VolumeGroup(name) => return self.disks_of_group(name),
            Block::PodVolume { pod, volume } => (self.mounted(pod, volume)?, layer),
        };
        match layer {
            Layer::Itself => Ok([self.devices.whole(number)].into()),
            Layer::Disks => Ok(self.devices.disks_below(number)),
        }
    }

    /// A device by its name below `/dev`: the kernel's, device-mapper's, or one that udev made.
    fn called(&self, name: &BlockName) -> Result<DeviceNumber, BlockError> {
        let text = name.as_str();
        // The kernel's own names have this where a path has a slash.
        let kernel = self.devices.number(&text.replace('/', "!"));
        let mapped = || {
            let wanted = mapper_name(text)?;
            let mappers = self.mappers().ok()?;
            let mapper = mappers.iter().find(|mapper| mapper.name == wanted)?;
            self.devices.number(&mapper.device)
        };
        let found = kernel.or_else(mapped).or_else(|| self.noted(text));
        found.ok_or_else(|| BlockError::NoDevice { name: name.clone() })
    }

    /// The disks under the active volumes of a group.
    fn disks_of_group(&self, name: &BlockName) -> Result<BTreeSet<DeviceNumber>, BlockError> {
        let mappers = self.mappers()?;
        let volumes = mappers
            .iter()
            .filter(|it| it.group().as_deref() == Some(name.as_str()));
        let numbers = volumes.filter_map(|volume| self.devices.number(&volume.device));
        let disks: BTreeSet<_> = numbers
            .flat_map(|number| self.devices.disks_below(number))
            .collect();
        if disks.is_empty() {
            return Err(BlockError::NoVolumeGroup { name: name.clone() });
        }
        Ok(disks)
    }

    /// What a volume of a pod, as a storage driver has it mounted, is on.
    fn mounted(&self, pod: &PodUid, volume: &BlockName) -> Result<DeviceNumber, BlockError> {
        let pods = self.devices.kubelet.join("pods").join(pod.as_str());
        let volume = pods.join("volumes/kubernetes.io~csi").join(volume.as_str());
        let path = volume.join("mount");
        let number = self.mount_at(&path)?;
        match self.devices.directory(number).is_dir() {
            true => Ok(number),
            false => Err(BlockError::NotOnDevice { path }),
        }
    }

    /// The device number of the file system that was mounted last at a path.
    fn mount_at(&self, path: &Path) -> Result<DeviceNumber, BlockError> {
        let mounts = once(&self.mounts, || self.devices.mounts())?;
        let number = mounts.get(path.as_os_str().as_encoded_bytes());
        number.copied().ok_or_else(|| BlockError::NotMounted {
            path: path.to_owned(),
        })
    }

    /// The device that udev has given a name.
    fn noted(&self, name: &str) -> Option<DeviceNumber> {
        let notes = once(&self.notes, || self.devices.notes()).ok()?;
        let number = *notes.get(name)?;
        // What it is a note of may be gone.
        self.devices.directory(number).is_dir().then_some(number)
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
fn unescaped(text: &str) -> Vec<u8> {
    let mut path = Vec::with_capacity(text.len());
    let mut rest = text.as_bytes();
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

fn parsed(path: &Path) -> Option<DeviceNumber> {
    fs::read_to_string(path).ok()?.trim().parse().ok()
}

fn read(path: &Path) -> Result<String, BlockError> {
    fs::read_to_string(path).map_err(|source| BlockError::Io {
        path: path.to_owned(),
        source,
    })
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

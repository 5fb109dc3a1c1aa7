//! Claims that a pod has as devices, without a file system (`volumeMode: Block`).
//!
//! The kubelet keeps a link for each in the pod's `volumeDevices`, by the driver and the name of the
//! PersistentVolume (`GetPodDeviceMapPath` of Kubernetes), and mounts the device's node in its own
//! directory of the driver, for that pod (`MapBlockVolume` there). Where that is follows from the two
//! names for CSI drivers and local volumes: then the link only says that there is the claim, and the
//! node is looked at where the list of mounts has that path, in which no step is a link. Of any other
//! driver's the text of the link is looked at, and followed to nothing but a name of a device.

use super::{BlockError, Look, names, once, unless_absent};
use koord_model::{BlockName, DeviceNumber, PodUid};
use std::{
    fs, io,
    os::unix::{
        ffi::OsStrExt,
        fs::{FileTypeExt, MetadataExt},
    },
    path::{Path, PathBuf},
};

/// A claim that a pod has as a device.
#[derive(Debug)]
struct RawVolume {
    driver: String,
    /// Of its PersistentVolume.
    name: String,
    link: PathBuf,
}

const CSI: &str = "kubernetes.io~csi";
const LOCAL: &str = "kubernetes.io~local-volume";

// === impl Look ===

impl Look<'_> {
    /// What a volume is on that the pod has as a device, by the name of its link.
    pub(super) fn raw_volume(
        &self,
        pod: &PodUid,
        volume: &BlockName,
    ) -> Result<Option<DeviceNumber>, BlockError> {
        let volumes = self.raw_volumes(pod)?;
        let found = volumes.iter().find(|it| it.name == volume.as_str());
        found.map(|it| self.raw(pod, it)).transpose()
    }

    /// What the only claim is on that a pod has as a device.
    pub(super) fn raw_claim(
        &self,
        pod: &PodUid,
        volume: &BlockName,
    ) -> Result<DeviceNumber, BlockError> {
        let volume = volume.clone();
        match self.raw_volumes(pod)?.as_slice() {
            [found] => self.raw(pod, found),
            [] => Err(BlockError::NoRawClaim { volume }),
            _ => Err(BlockError::SeveralRawClaims { volume }),
        }
    }

    fn raw_volumes(&self, pod: &PodUid) -> Result<Vec<RawVolume>, BlockError> {
        let pods = self.devices.kubelet.join("pods");
        let directory = pods.join(pod.as_str()).join("volumeDevices");
        let mut volumes = Vec::new();
        for driver in unless_absent(&directory, names(&directory))?.unwrap_or_default() {
            let links = directory.join(&driver);
            for name in unless_absent(&links, names(&links))?.unwrap_or_default() {
                volumes.push(RawVolume {
                    link: links.join(&name),
                    driver: driver.clone(),
                    name,
                });
            }
        }
        Ok(volumes)
    }

    fn raw(&self, pod: &PodUid, volume: &RawVolume) -> Result<DeviceNumber, BlockError> {
        let plugins = self.devices.kubelet.join("plugins");
        let name = volume.name.as_str();
        let nodes = match volume.driver.as_str() {
            CSI => plugins.join(format!("kubernetes.io/csi/volumeDevices/{name}/dev")),
            LOCAL => plugins.join(format!("{LOCAL}/volumeDevices/{name}")),
            _ => return self.linked(&volume.link),
        };
        self.node(nodes.join(pod.as_str()))
    }

    /// The device whose node is mounted at a path.
    fn node(&self, path: PathBuf) -> Result<DeviceNumber, BlockError> {
        let mounts = once(&self.mounts, || self.devices.mounts())?;
        if !mounts.contains_key(path.as_os_str().as_bytes()) {
            return Err(BlockError::NotMounted { path });
        }
        match unless_absent(&path, (self.devices.node)(&path))? {
            Some(Some(number)) => self.there(number, &path),
            Some(None) => Err(BlockError::NotBlockDevice { path }),
            None => Err(BlockError::NotMounted { path }),
        }
    }

    /// The device that a link names.
    fn linked(&self, link: &Path) -> Result<DeviceNumber, BlockError> {
        let target = unless_absent(link, fs::read_link(link))?;
        let text = target.as_deref().and_then(Path::to_str);
        let name = text.filter(|text| text.starts_with("/dev/"));
        match name.map(BlockName::device) {
            Some(Ok(name)) => self.called(&name),
            Some(Err(_)) | None => Err(BlockError::NotBlockDevice { path: link.into() }),
        }
    }
}

/// What a node is of on this machine. A link is none, wherever it leads.
pub(super) fn node(path: &Path) -> io::Result<Option<DeviceNumber>> {
    let found = fs::symlink_metadata(path)?;
    let number = DeviceNumber {
        major: rustix::fs::major(found.rdev()),
        minor: rustix::fs::minor(found.rdev()),
    };
    Ok(found.file_type().is_block_device().then_some(number))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{block::Layer, fake::FakeDisks};
    use koord_model::Block;
    use std::os::unix::fs::symlink;
    use tempfile::TempDir;

    const POD: &str = "uid-1";

    /// A disk, and a volume on it.
    fn machine() -> (TempDir, FakeDisks) {
        let directory = tempfile::tempdir().unwrap();
        let disks = FakeDisks::new(directory.path());
        disks.disk("vdb", "252:16".parse().unwrap());
        let volume = ("dm-0", "253:0".parse().unwrap());
        disks.mapper(volume, ("data-lv", "LVM-x"), &["vdb"]);
        (directory, disks)
    }

    fn named(volume: &str) -> Block {
        Block::PodVolume {
            pod: PodUid::new(POD).unwrap(),
            volume: BlockName::volume(volume).unwrap(),
        }
    }

    /// The only claim of the pod that is a device.
    fn only() -> Block {
        Block::RawClaim {
            pod: PodUid::new(POD).unwrap(),
            volume: BlockName::volume("data").unwrap(),
        }
    }

    /// The number that is found, or why none is, with the place in the kubelet's directory.
    fn found(disks: &(TempDir, FakeDisks), block: &Block, layer: Layer) -> String {
        let kubelet = disks.0.path().join("kubelet").display().to_string();
        match disks.1.devices().look().find(block, layer) {
            Ok(numbers) => {
                let numbers: Vec<String> = numbers.iter().map(ToString::to_string).collect();
                numbers.join(" ")
            }
            Err(error) => error.to_string().replace(&kubelet, "K"),
        }
    }

    #[test]
    fn a_claim_without_a_file_system_is_the_device_that_the_kubelet_has_mapped() {
        let machine = machine();
        let (_, disks) = &machine;
        let itself = |block: &Block| found(&machine, block, Layer::Itself);
        assert_eq!(
            itself(&only()),
            "no claim of the pod is mapped as a device, and its volume data is one"
        );
        disks.map("253:0", POD, "pvc-1");
        disks.map("252:16", "uid-2", "pvc-2");
        for block in [named("pvc-1"), only()] {
            assert_eq!(itself(&block), "253:0");
            assert_eq!(found(&machine, &block, Layer::Disks), "252:16");
        }
        // Of another pod alone.
        let none = "nothing is mounted at K/pods/uid-1/volumes/kubernetes.io~csi/pvc-2/mount";
        assert_eq!(itself(&named("pvc-2")), none);
        let local = "kubernetes.io~local-volume";
        disks.link(Path::new("/mnt/disks/a"), POD, &format!("{local}/pv-3"));
        let at = format!("plugins/{local}/volumeDevices/pv-3/{POD}");
        disks.node("252:16", &at);
        assert_eq!(itself(&named("pv-3")), "252:16");
        assert_eq!(
            itself(&only()),
            "more is mapped for the pod as a device than data"
        );
    }

    #[test]
    fn what_is_mapped_and_is_no_block_device_is_none() {
        let machine = machine();
        let (_, disks) = &machine;
        let itself = |name| found(&machine, &named(name), Layer::Itself);
        let at = "K/plugins/kubernetes.io/csi/volumeDevices";
        disks.map("a file", POD, "pvc-1");
        let expected = format!("what is mapped at {at}/pvc-1/dev/uid-1 is no block device");
        assert_eq!(itself("pvc-1"), expected);
        // One whose disk has gone.
        disks.map("252:32", POD, "pvc-2");
        let expected = format!("what is mounted at {at}/pvc-2/dev/uid-1 is on no block device");
        assert_eq!(itself("pvc-2"), expected);
        // A file that nobody has mounted there is not looked at.
        disks.map("253:0", POD, "pvc-3");
        disks.unmount_all();
        let expected = format!("nothing is mounted at {at}/pvc-3/dev/uid-1");
        assert_eq!(itself("pvc-3"), expected);
    }

    #[test]
    fn a_link_of_another_driver_leads_to_a_device_by_its_name_and_to_nothing_else() {
        let machine = machine();
        let (_, disks) = &machine;
        let itself = |name: &str| found(&machine, &named(name), Layer::Itself);
        let inside = machine.0.path().join("kubelet/pods/uid-1/volumes/x");
        for (name, target) in [
            ("a", Path::new("/dev/vdb")),
            ("b", Path::new("/dev/data/lv")),
            ("c", Path::new("/dev/../etc/vdb")),
            ("d", Path::new("vdb")),
            ("e", inside.as_path()),
        ] {
            disks.link(target, POD, &format!("kubernetes.io~iscsi/{name}"));
        }
        assert_eq!(itself("a"), "252:16");
        assert_eq!(itself("b"), "253:0");
        for name in ["c", "d", "e"] {
            let at = format!("K/pods/uid-1/volumeDevices/kubernetes.io~iscsi/{name}");
            let expected = format!("what is mapped at {at} is no block device");
            assert_eq!(itself(name), expected);
        }
    }

    #[test]
    fn a_volume_that_is_mounted_goes_before_one_that_is_mapped() {
        let machine = machine();
        let (_, disks) = &machine;
        disks.map("253:0", POD, "pvc-1");
        disks.mount("252:16".parse().unwrap(), POD, "pvc-1");
        let itself = |block: &Block| found(&machine, block, Layer::Itself);
        assert_eq!(itself(&named("pvc-1")), "252:16");
        assert_eq!(itself(&only()), "253:0");
    }

    #[test]
    fn devices_that_are_mapped_and_cannot_be_read_are_not_taken_for_none() {
        let machine = machine();
        let (_, disks) = &machine;
        disks.map("253:0", POD, "pvc-1");
        for path in [
            "kubelet/pods/uid-1/volumeDevices",
            "kubelet/pods/uid-1/volumeDevices/kubernetes.io~csi",
            "kubelet/plugins/kubernetes.io/csi/volumeDevices/pvc-1/dev/uid-1",
            "proc/self/mountinfo",
        ] {
            disks.spoil(path);
            let error = disks.devices().look().find(&only(), Layer::Itself);
            let error = error.unwrap_err();
            assert!(matches!(error, BlockError::Io { .. }), "{path}: {error}");
            disks.mend(path);
            assert_eq!(found(&machine, &only(), Layer::Itself), "253:0", "{path}");
        }
    }

    #[test]
    fn a_link_a_directory_and_a_device_of_characters_are_no_block_devices() {
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("link");
        symlink("/dev/null", &link).unwrap();
        for path in [&*link, directory.path(), Path::new("/dev/null")] {
            assert_eq!(node(path).unwrap(), None, "{}", path.display());
        }
        let none = node(&directory.path().join("none")).unwrap_err();
        assert_eq!(none.kind(), io::ErrorKind::NotFound);
    }
}

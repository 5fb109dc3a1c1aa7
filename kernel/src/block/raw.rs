//! Claims that a pod has as devices, without a file system (`volumeMode: Block`).
//!
//! The kubelet keeps a link for each in the pod's `volumeDevices`, by the driver and the name of the
//! PersistentVolume (`GetPodDeviceMapPath` of Kubernetes), and mounts the device's node in its own
//! directory of the driver, for that pod (`MapBlockVolume` there). Where that is follows from the two
//! names for CSI drivers and local volumes: then the link only says that there is the claim, and the
//! node is looked at where the list of mounts has that path, in which no step is a link. Of any other
//! driver's the text of the link is looked at, and followed to nothing but a name of a device.

use super::{BlockError, Look, names, unless_absent};
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
        self.at_node(nodes.join(pod.as_str()))
    }

    /// The device whose node is mounted at a path.
    fn at_node(&self, path: PathBuf) -> Result<DeviceNumber, BlockError> {
        let at = self.resolved(&path);
        if !self.mounts()?.contains_key(at.as_os_str().as_bytes()) {
            return Err(BlockError::NotMounted { path });
        }
        match unless_absent(&path, (self.devices.node)(&at))? {
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
pub(super) fn device_of_node(path: &Path) -> io::Result<Option<DeviceNumber>> {
    let found = fs::symlink_metadata(path)?;
    let number = DeviceNumber {
        major: rustix::fs::major(found.rdev()),
        minor: rustix::fs::minor(found.rdev()),
    };
    Ok(found.file_type().is_block_device().then_some(number))
}

#[cfg(test)]
mod tests;

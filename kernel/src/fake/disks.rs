//! Block devices as sysfs and the list of mounts show them, in a directory of a test.

use crate::block::BlockDevices;
use koord_model::DeviceNumber;
use std::{
    fs, io,
    os::unix::fs::symlink,
    path::{Path, PathBuf},
};

/// The files of a machine's block devices, below one directory.
#[derive(Clone, Debug)]
pub struct FakeDisks(PathBuf);

// === impl FakeDisks ===

#[expect(
    clippy::disallowed_methods,
    clippy::missing_panics_doc,
    reason = "makes a machine for tests, and a test may panic"
)]
impl FakeDisks {
    /// A machine without any device.
    pub fn new(root: &Path) -> Self {
        let disks = Self(root.to_owned());
        for directory in ["sys/class/block", "sys/dev/block", "proc/self", "udev"] {
            fs::create_dir_all(root.join(directory)).expect("a directory of a test");
        }
        disks.unmount_all();
        disks
    }

    pub fn devices(&self) -> BlockDevices {
        let at = |name| self.0.join(name);
        let devices = BlockDevices::new(&at("sys"), &at("proc"), &at("udev"), &at("kubelet"));
        devices.with_nodes(node)
    }

    /// Adds a disk.
    pub fn disk(&self, name: &str, number: DeviceNumber) {
        self.device(name, name, number);
    }

    /// Adds a partition of a disk.
    pub fn partition(&self, disk: &str, name: &str, number: DeviceNumber) {
        let at = self.device(&format!("{disk}/{name}"), name, number);
        fs::write(at.join("partition"), "1\n").expect("a file of a test");
    }

    /// Adds a device that is mapped to others.
    pub fn mapper(
        &self,
        (device, number): (&str, DeviceNumber),
        (name, uuid): (&str, &str),
        below: &[&str],
    ) {
        let at = self.device(device, device, number);
        fs::create_dir(at.join("dm")).expect("a directory of a test");
        fs::write(at.join("dm/name"), format!("{name}\n")).expect("a file of a test");
        fs::write(at.join("dm/uuid"), format!("{uuid}\n")).expect("a file of a test");
        for name in below {
            let device = self.0.join("sys/class/block").join(name);
            symlink(device, at.join("slaves").join(name)).expect("a link of a test");
        }
    }

    /// Removes a device.
    pub fn lose(&self, name: &str, number: DeviceNumber) {
        let links = [
            self.0.join("sys/class/block").join(name),
            self.0.join("sys/dev/block").join(number.to_string()),
        ];
        let at = fs::canonicalize(&links[0]).expect("it was added");
        fs::remove_dir_all(at).expect("a directory of a test");
        for link in links {
            fs::remove_file(link).expect("a link of a test");
        }
    }

    /// Gives a device another name, as udev does. What udev has read from a device need not be text.
    pub fn note(&self, number: DeviceNumber, name: &str) {
        let text = format!("S:disk/by-uuid/other\nS:{name}\nE:ID_FS_TYPE=ext4\nE:X=");
        let text = [text.as_bytes(), b"\xff\n"].concat();
        fs::write(self.0.join(format!("udev/b{number}")), text).expect("a file of a test");
    }

    /// Mounts what is on a device as a volume of a pod.
    pub fn mount(&self, number: DeviceNumber, pod: &str, volume: &str) {
        self.mount_at(number, pod, &format!("kubernetes.io~csi/{volume}/mount"));
    }

    /// Mounts what is on a device at a path in the directory of a pod's volumes.
    pub fn mount_at(&self, number: DeviceNumber, pod: &str, at: &str) {
        self.mounted(number, b"/", &format!("pods/{pod}/volumes/{at}"));
    }

    /// Mounts a directory that is on a device as a `subPath` of a pod, which may rename it.
    pub fn bind(&self, number: DeviceNumber, directory: &[u8], pod: &str) {
        let at = format!("pods/{pod}/volume-subpaths/data/app/0");
        self.mounted(number, directory, &at);
    }

    /// Gives a pod a claim as a device, which a CSI driver has published. The node that the kubelet
    /// has mounted is a device's if it is of a number.
    pub fn map(&self, node: &str, pod: &str, volume: &str) {
        let devices = "plugins/kubernetes.io/csi/volumeDevices";
        let published = format!("{devices}/publish/{volume}/{pod}");
        let target = self.0.join("kubelet").join(published);
        self.link(&target, pod, &format!("kubernetes.io~csi/{volume}"));
        self.node(node, &format!("{devices}/{volume}/dev/{pod}"));
    }

    /// Makes the link by which a pod has a claim as a device.
    pub fn link(&self, target: &Path, pod: &str, at: &str) {
        let link = format!("kubelet/pods/{pod}/volumeDevices/{at}");
        let link = self.0.join(link);
        let directory = link.parent().expect("it is below the kubelet's");
        fs::create_dir_all(directory).expect("a directory of a test");
        symlink(target, link).expect("a link of a test");
    }

    /// Mounts a node at a path in the kubelet's directory.
    pub fn node(&self, node: &str, at: &str) {
        let path = self.0.join("kubelet").join(at);
        let directory = path.parent().expect("it is below the kubelet's");
        fs::create_dir_all(directory).expect("a directory of a test");
        fs::write(path, node).expect("a file of a test");
        // The number of what holds the kernel's nodes.
        let number = DeviceNumber { major: 0, minor: 6 };
        self.mounted(number, b"/x", at);
    }

    /// Has the kubelet's directory be on another disk, with a link to it where it is looked for.
    pub fn move_kubelet(&self) {
        let elsewhere = self.0.join("data/kubelet");
        fs::create_dir_all(&elsewhere).expect("a directory of a test");
        symlink(elsewhere, self.0.join("kubelet")).expect("a link of a test");
    }

    /// Nothing is mounted any more.
    pub fn unmount_all(&self) {
        fs::write(self.0.join("proc/self/mountinfo"), "").expect("a file of a test");
    }

    /// Makes a file or a directory one that is there and cannot be read.
    pub fn spoil(&self, path: &str) {
        let at = self.0.join(path);
        let is_file = at.is_file();
        fs::rename(&at, aside(&at)).expect("it is there");
        let spoilt = match is_file {
            true => fs::create_dir(&at),
            false => fs::write(&at, ""),
        };
        spoilt.expect("a file or a directory of a test");
    }

    /// Makes it what it was.
    pub fn mend(&self, path: &str) {
        let at = self.0.join(path);
        let removed = match at.is_dir() {
            true => fs::remove_dir(&at),
            false => fs::remove_file(&at),
        };
        removed.expect("it was spoilt");
        fs::rename(aside(&at), at).expect("it was spoilt");
    }

    fn mounted(&self, number: DeviceNumber, root: &[u8], at: &str) {
        let file = self.0.join("proc/self/mountinfo");
        let mut text = fs::read(&file).expect("a file of a test");
        // The kernel's list has no links in its paths.
        let kubelet = self.0.join("kubelet");
        let at = fs::canonicalize(&kubelet).unwrap_or(kubelet).join(at);
        text.extend(format!("36 35 {number} ").into_bytes());
        text.extend(root);
        text.extend(format!(" {} rw shared:1 - ext4 /dev/x rw\n", at.display()).into_bytes());
        fs::write(file, text).expect("a file of a test");
    }

    fn device(&self, path: &str, name: &str, number: DeviceNumber) -> PathBuf {
        let at = self.0.join("sys/devices").join(path);
        fs::create_dir_all(at.join("slaves")).expect("a directory of a test");
        fs::write(at.join("dev"), format!("{number}\n")).expect("a file of a test");
        let links = [
            self.0.join("sys/class/block").join(name),
            self.0.join("sys/dev/block").join(number.to_string()),
        ];
        for link in links {
            symlink(&at, link).expect("a link of a test");
        }
        at
    }
}

/// The number that a file says.
fn node(path: &Path) -> io::Result<Option<DeviceNumber>> {
    Ok(fs::read_to_string(path)?.parse().ok())
}

/// Where what cannot be read is kept.
fn aside(path: &Path) -> PathBuf {
    path.with_extension("aside")
}

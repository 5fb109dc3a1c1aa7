//! Which devices a machine has for RDMA, and by which functions of PCI devices they go.
//!
//! sysfs says both, with the numbers by which the kernel knows them. The kernel itself names the
//! nodes of these devices below `/dev`; whether they are there, where somebody looks for them, is
//! asked beside. No device is opened.

use koord_model::{DeviceNode, DeviceNumber, PciAddress};
use rustix::io::Errno;
use std::{
    collections::BTreeMap,
    fs, io,
    os::unix::fs::{FileTypeExt as _, MetadataExt as _},
    path::Path,
};

/// Where the kernel has the nodes of these devices made.
const NODES: &str = "/dev/infiniband";

/// The devices of a machine.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Devices {
    /// By which connections are made.
    pub connections: Option<DeviceNode>,
    /// Of a function with several devices the first by its name, as upstream takes it.
    pub verbs: BTreeMap<PciAddress, DeviceNode>,
}

// === impl Devices ===

impl Devices {
    /// Those below `sys`, which is `/sys`.
    ///
    /// # Errors
    ///
    /// When what is there cannot be read. What is not there, or goes meanwhile, is passed over (`ENOENT`,
    /// `ENOTDIR`, `ENODEV`).
    pub fn find(sys: &Path) -> io::Result<Self> {
        let connections = number(&sys.join("class/misc/rdma_cm"))?;
        let class = sys.join("class/infiniband_verbs");
        let mut verbs = BTreeMap::new();
        for name in names(&class)? {
            let at = class.join(&name);
            if let (Some(function), Some(number)) = (function(&at)?, number(&at)?) {
                verbs.entry(function).or_insert_with(|| node(&name, number));
            }
        }
        Ok(Self {
            connections: connections.map(|number| node("rdma_cm", number)),
            verbs,
        })
    }
}

/// The number of the character device that a path is a node of; links are not followed. `None` if it
/// is something else.
///
/// # Errors
///
/// When the path cannot be looked at, or nothing is there ([`io::ErrorKind::NotFound`]).
pub fn number_at(path: &Path) -> io::Result<Option<DeviceNumber>> {
    let found = fs::symlink_metadata(path)?;
    let number = DeviceNumber {
        major: rustix::fs::major(found.rdev()),
        minor: rustix::fs::minor(found.rdev()),
    };
    Ok(found.file_type().is_char_device().then_some(number))
}

fn node(name: &str, number: DeviceNumber) -> DeviceNode {
    DeviceNode {
        path: format!("{NODES}/{name}").into(),
        number,
    }
}

/// The function of a PCI device that a device in sysfs is one of. Some are of none: those in software
/// may have no other device below them.
fn function(at: &Path) -> io::Result<Option<PciAddress>> {
    let device = there(fs::read_link(at.join("device")))?;
    let name = device.as_deref().and_then(Path::file_name);
    Ok(name.and_then(|name| name.to_str()?.parse().ok()))
}

fn number(at: &Path) -> io::Result<Option<DeviceNumber>> {
    let text = there(fs::read_to_string(at.join("dev")))?;
    Ok(text.and_then(|text| text.trim().parse().ok()))
}

/// What is in a directory, sorted; nothing if it is not there.
fn names(directory: &Path) -> io::Result<Vec<String>> {
    let mut names = Vec::new();
    for entry in there(fs::read_dir(directory))?.into_iter().flatten() {
        names.extend(entry?.file_name().into_string());
    }
    names.sort_unstable();
    Ok(names)
}

/// Devices go at any time, also while somebody looks; and what is no directory has nothing in it.
fn there<T>(found: io::Result<T>) -> io::Result<Option<T>> {
    match found {
        Ok(found) => Ok(Some(found)),
        Err(error) => match Errno::from_io_error(&error) {
            Some(Errno::NOENT | Errno::NOTDIR | Errno::NODEV) => Ok(None),
            _ => Err(error),
        },
    }
}

#[cfg(test)]
#[expect(
    clippy::disallowed_methods,
    reason = "a machine in a directory of a test"
)]
mod tests {
    use super::*;
    use std::os::unix::fs::symlink;

    /// Adds a device of a class, of this device if any.
    fn add(sys: &Path, (class, name): (&str, &str), number: &str, of: Option<&str>) {
        let at = sys.join("class").join(class).join(name);
        fs::create_dir_all(&at).unwrap();
        fs::write(at.join("dev"), format!("{number}\n")).unwrap();
        if let Some(of) = of {
            symlink(Path::new("../../..").join(of), at.join("device")).unwrap();
        }
    }

    fn shown(node: &DeviceNode) -> String {
        format!("{} {}", node.path, node.number)
    }

    #[test]
    fn devices_are_known_by_their_function_and_the_first_of_several_counts() {
        let sys = tempfile::tempdir().unwrap();
        let sys = sys.path();
        assert_eq!(Devices::find(sys).unwrap(), Devices::default());
        let verbs = |name, number, of| add(sys, ("infiniband_verbs", name), number, of);
        verbs("uverbs9", "231:201", Some("0000:65:00.0"));
        verbs("uverbs1", "231:193", Some("0000:af:00.2"));
        // The order is that of text.
        verbs("uverbs10", "231:202", Some("0000:65:00.0"));
        // In software, on no PCI device or on none at all.
        verbs("uverbs3", "231:195", Some("virtio3"));
        verbs("uverbs4", "231:196", None);
        // Gone while we look, or no number.
        verbs("uverbs5", "", Some("0000:d8:00.0"));
        let class = sys.join("class/infiniband_verbs");
        fs::write(class.join("abi_version"), "6\n").unwrap();
        add(sys, ("misc", "rdma_cm"), "10:58", None);
        let found = Devices::find(sys).unwrap();
        let nodes = found.verbs.iter();
        let nodes: Vec<_> = nodes
            .map(|(at, node)| format!("{at} {}", shown(node)))
            .collect();
        assert_eq!(
            nodes,
            [
                "0000:65:00.0 /dev/infiniband/uverbs10 231:202",
                "0000:af:00.2 /dev/infiniband/uverbs1 231:193"
            ]
        );
        let connections = found.connections.as_ref().map(shown);
        assert_eq!(
            connections.as_deref(),
            Some("/dev/infiniband/rdma_cm 10:58")
        );
    }

    #[test]
    fn a_node_is_that_of_its_number_and_a_link_to_it_is_none() {
        let number = number_at(Path::new("/dev/null")).unwrap().unwrap();
        assert_eq!(number.to_string(), "1:3");
        let directory = tempfile::tempdir().unwrap();
        let link = directory.path().join("null");
        symlink("/dev/null", &link).unwrap();
        assert_eq!(number_at(&link).unwrap(), None);
        assert_eq!(number_at(directory.path()).unwrap(), None);
        let missing = number_at(&directory.path().join("none")).unwrap_err();
        assert_eq!(missing.kind(), io::ErrorKind::NotFound);
    }
}

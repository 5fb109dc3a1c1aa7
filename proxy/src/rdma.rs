//! Looking at what containers can be given of RDMA: the devices that the kernel has, and whether they
//! are where the runtime looks for them.
//!
//! A runtime that is told a path refuses the whole container if nothing is there, or something that
//! is no device. One that is told a number, as by its plugin, looks nowhere.

use koord_hooks::{PathProblem, RdmaDevices, RdmaNode, UnsafePath};
use koord_kernel::rdma::{self, Devices};
use koord_model::DeviceNode;
use std::{
    io,
    path::{Path, PathBuf},
};

/// Where to look for devices.
#[derive(Clone, Debug)]
pub struct RdmaProbe {
    /// `/sys`.
    pub sys_root: PathBuf,
    /// Where nodes of devices have to be, which is `/dev`; `None` if the runtime is told their numbers.
    pub nodes: Option<PathBuf>,
}

// === impl RdmaProbe ===

impl RdmaProbe {
    /// The devices that there are now.
    ///
    /// # Errors
    ///
    /// When sysfs cannot be read. What is not there is no error, nor is a node of a device that the runtime
    /// would not find.
    pub fn look(&self) -> io::Result<RdmaDevices> {
        let Devices { connections, verbs } = Devices::find(&self.sys_root)?;
        let verbs = verbs
            .into_iter()
            .map(|(at, device)| (at, self.checked(device)));
        Ok(RdmaDevices {
            connections: connections.map(|device| self.checked(device)),
            verbs: verbs.collect(),
        })
    }

    fn checked(&self, device: DeviceNode) -> RdmaNode {
        let Some(nodes) = &self.nodes else {
            return Ok(device);
        };
        let path = Path::new(&*device.path);
        let below = path.strip_prefix("/dev").unwrap_or(path);
        let problem = match rdma::number_at(&nodes.join(below)) {
            Ok(Some(number)) if number == device.number => return Ok(device),
            Ok(_) => PathProblem::OtherKind {
                expected: "the device that the kernel calls so",
            },
            Err(error) if error.kind() == io::ErrorKind::NotFound => PathProblem::Missing,
            Err(error) => PathProblem::Unknown(error.kind()),
        };
        Err(UnsafePath {
            path: path.to_owned(),
            problem,
        })
    }
}

#[cfg(test)]
#[expect(clippy::disallowed_methods, reason = "files for tests")]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::symlink};

    /// A machine with three functions, of which two go by devices that every machine has.
    fn make_sys(at: &Path) {
        let device = |name: &str, number: &str| {
            let at = at.join("class").join(name);
            fs::create_dir_all(&at).unwrap();
            fs::write(at.join("dev"), number).unwrap();
            at
        };
        device("misc/rdma_cm", "10:58");
        for (index, name, number) in [(0, "null", "1:3"), (1, "zero", "1:3"), (2, "none", "231:0")]
        {
            let at = device(&format!("infiniband_verbs/{name}"), number);
            let function = format!("../../../0000:65:00.{index}");
            symlink(function, at.join("device")).unwrap();
        }
    }

    #[test]
    fn what_the_runtime_would_not_find_is_known_before_it_is_asked() {
        let directory = tempfile::tempdir().unwrap();
        let at = |name: &str| directory.path().join(name);
        make_sys(&at("sys"));
        fs::create_dir(at("dev")).unwrap();
        symlink("/dev", at("dev/infiniband")).unwrap();
        let told = |nodes: Option<PathBuf>| {
            let sys_root = at("sys");
            let probe = RdmaProbe { sys_root, nodes };
            let RdmaDevices { connections, verbs } = probe.look().unwrap();
            let all = connections.into_iter().chain(verbs.into_values());
            let all = all.map(|it| match it {
                Ok(device) => format!("{} {}", device.path, device.number),
                Err(error) => error.to_string(),
            });
            all.collect::<Vec<_>>()
        };
        assert_eq!(
            told(Some(at("dev"))),
            [
                "/dev/infiniband/rdma_cm is not there",
                "/dev/infiniband/null 1:3",
                "/dev/infiniband/zero is not the device that the kernel calls so",
                "/dev/infiniband/none is not there",
            ]
        );
        assert_eq!(
            told(None),
            [
                "/dev/infiniband/rdma_cm 10:58",
                "/dev/infiniband/null 1:3",
                "/dev/infiniband/zero 1:3",
                "/dev/infiniband/none 231:0",
            ]
        );
    }
}

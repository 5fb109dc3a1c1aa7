//! Programs of the node itself that a NodeSLO names.

use super::{issue::Problem, place::Place};
use koord_model::{CgroupPath, CgroupPathError, QosClass};

/// A program of the node itself, outside Kubernetes, that is treated as a class.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostApplication {
    pub name: String,
    pub qos: Option<QosClass>,
    pub cgroup: HostCgroup,
}

/// Where a host application's control group is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct HostCgroup {
    pub base: HostCgroupBase,
    /// Below the base.
    pub path: CgroupPath,
}

#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum HostCgroupBase {
    /// The root of the hierarchy.
    #[default]
    CgroupRoot,
    /// The root of all pods.
    Kubepods,
    KubepodsBurstable,
    KubepodsBesteffort,
}

/// The longest path below a base, in bytes, which leaves the base a quarter of what the kernel takes: where both
/// were too long together, nothing could be decided about the node.
const MAX_LENGTH: usize = 3_072;

const BASES: [(&str, HostCgroupBase); 4] = [
    ("CgroupRoot", HostCgroupBase::CgroupRoot),
    ("Kubepods", HostCgroupBase::Kubepods),
    ("KubepodsBurstable", HostCgroupBase::KubepodsBurstable),
    ("KubepodsBesteffort", HostCgroupBase::KubepodsBesteffort),
];

// === impl HostApplication ===

impl HostApplication {
    /// `None` if it cannot be told where the application is or what class it is of: a guess would
    /// change another program.
    pub(super) fn read(application: &Place<'_>) -> Option<Self> {
        let name = application.field("name");
        if name.is_blank() {
            name.report(Problem::Missing);
            return None;
        }
        let name = name.text()?;
        let classes: Vec<_> = QosClass::ALL.iter().map(|c| (c.as_str(), *c)).collect();
        let qos = application.field("qos").name_or_blank(&classes)?;
        Some(Self {
            name: name.to_owned(),
            qos,
            cgroup: HostCgroup::read(application, name, qos)?,
        })
    }
}

// === impl HostCgroup ===

impl HostCgroup {
    fn read(application: &Place<'_>, name: &str, qos: Option<QosClass>) -> Option<Self> {
        let place = application.section("cgroupPath");
        let (base, path) = if place.is_there() {
            let base = place.field("base").name_or_blank(&BASES)?;
            let parent = place.field("parentDir").text_or_blank()?;
            let relative = place.field("relativePath").text_or_blank()?;
            (base.unwrap_or_default(), format!("{parent}/{relative}"))
        } else if application.field("cgroupPath").is_there() {
            return None;
        } else {
            let directory = match qos {
                Some(QosClass::Lse | QosClass::Lsr | QosClass::Ls) => "host-latency-sensitive/",
                Some(QosClass::Be) => "host-best-effort/",
                Some(QosClass::System) | None => "",
            };
            (HostCgroupBase::CgroupRoot, format!("{directory}{name}"))
        };
        match CgroupPath::parse(&path) {
            Ok(path) if path.is_root() => place.report(Problem::EmptyPath),
            Ok(path) if path.as_str().len() > MAX_LENGTH => {
                let (length, max) = (path.as_str().len(), MAX_LENGTH);
                place.report(CgroupPathError::TooLong { length, max }.into());
            }
            Ok(path) => return Some(Self { base, path }),
            Err(error) => place.report(Problem::CgroupPath(error)),
        }
        None
    }
}

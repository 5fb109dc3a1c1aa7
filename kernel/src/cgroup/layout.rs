//! Where kubelet and runtimes put tiers, pods and containers: by the driver and the runtime, as
//! data. Classes are read from whole components of a path, so that a group that happens to be
//! called `my-burstable-job` is none of them.

use super::Cgroups;
use koord_model::{CgroupPath, CgroupPathError, ContainerId, KubeQos, PodUid};
use std::io;
use thiserror::Error;

/// Who makes the directories, and so how they are called. Kubelet and runtime agree on one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Driver {
    Cgroupfs,
    Systemd,
}

/// A container runtime that names directories in its own way.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum RuntimeName {
    Containerd,
    CriO,
    Docker,
    Pouch,
}

/// The directories of the kubelet of a node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Layout {
    driver: Driver,
    kubepods: CgroupPath,
}

/// Why a `cgroup_parent` names no directory.
#[derive(Debug, Error, PartialEq, Eq)]
pub enum ParentError {
    #[error("{name:?} is no name of a systemd slice")]
    Slice { name: String },
    #[error("a cgroup parent is no path")]
    Path(#[from] CgroupPathError),
}

const KUBEPODS: &str = "kubepods";
const SLICE: &str = ".slice";
const SCOPE: &str = ".scope";

/// The tier of a class, as a directory or a part of a slice; Guaranteed pods have none.
fn tier_name(qos: KubeQos) -> Option<&'static str> {
    match qos {
        KubeQos::Guaranteed => None,
        KubeQos::Burstable => Some("burstable"),
        KubeQos::BestEffort => Some("besteffort"),
    }
}

// === impl Driver ===

impl Driver {
    /// The driver that a `cgroup_parent` of a CRI request speaks for.
    pub fn of_parent(cgroup_parent: &str) -> Self {
        if cgroup_parent.trim_end_matches('/').ends_with(SLICE) {
            Self::Systemd
        } else {
            Self::Cgroupfs
        }
    }

    /// The directory of a container below that of its pod.
    ///
    /// # Errors
    ///
    /// When its path is longer than 4,096 bytes.
    pub fn container(
        self,
        pod: &CgroupPath,
        runtime: RuntimeName,
        id: &ContainerId,
    ) -> Result<CgroupPath, CgroupPathError> {
        let prefix = runtime.prefix();
        match (self, runtime) {
            (Self::Systemd, _) => pod.join(&format!("{prefix}-{id}{SCOPE}")),
            (Self::Cgroupfs, RuntimeName::CriO) => pod.join(&format!("{prefix}-{id}")),
            (Self::Cgroupfs, _) => pod.join(id.as_str()),
        }
    }
}

// === impl RuntimeName ===

impl RuntimeName {
    /// The runtime that names itself so in its reply to the CRI call `Version`.
    pub fn of(name: &str) -> Option<Self> {
        match name {
            "containerd" => Some(Self::Containerd),
            "cri-o" => Some(Self::CriO),
            "docker" => Some(Self::Docker),
            "pouch" => Some(Self::Pouch),
            _ => None,
        }
    }

    fn prefix(self) -> &'static str {
        match self {
            Self::Containerd => "cri-containerd",
            Self::CriO => "crio",
            Self::Docker => "docker",
            Self::Pouch => "pouch",
        }
    }
}

// === impl Layout ===

impl Layout {
    /// The layout below the kubelet's `cgroupRoot`, given as the directory that it is on disk:
    /// with systemd `kubelet.slice`, not `kubelet`.
    ///
    /// # Errors
    ///
    /// When the path of `kubepods` is longer than 4,096 bytes.
    pub fn new(root: &CgroupPath, driver: Driver) -> Result<Self, CgroupPathError> {
        let kubepods = match (driver, root.file_name()) {
            (Driver::Cgroupfs, _) => root.join(KUBEPODS)?,
            (Driver::Systemd, None) => root.join(&format!("{KUBEPODS}{SLICE}"))?,
            (Driver::Systemd, Some(above)) => {
                let above = above.strip_suffix(SLICE).unwrap_or(above);
                root.join(&format!("{above}-{KUBEPODS}{SLICE}"))?
            }
        };
        Ok(Self { driver, kubepods })
    }

    /// The layout that is there below `root`; `None` before the kubelet's first start.
    ///
    /// # Errors
    ///
    /// When that cannot be found out now.
    pub fn detect(cgroups: &Cgroups, root: &CgroupPath) -> io::Result<Option<Self>> {
        let drivers = [Driver::Systemd, Driver::Cgroupfs].into_iter();
        for layout in drivers.filter_map(|driver| Self::new(root, driver).ok()) {
            if cgroups.exists(&layout.kubepods)? {
                return Ok(Some(layout));
            }
        }
        Ok(None)
    }

    /// The directory that the pods of a class are directly below.
    ///
    /// # Errors
    ///
    /// When its path is longer than 4,096 bytes.
    pub fn tier(&self, qos: KubeQos) -> Result<CgroupPath, CgroupPathError> {
        let Some(tier) = tier_name(qos) else {
            return Ok(self.kubepods.clone());
        };
        match self.driver {
            Driver::Cgroupfs => self.kubepods.join(tier),
            Driver::Systemd => slice_below(&self.kubepods, tier),
        }
    }

    /// The directory of a pod.
    ///
    /// # Errors
    ///
    /// When its path is longer than 4,096 bytes.
    pub fn pod(&self, qos: KubeQos, uid: &PodUid) -> Result<CgroupPath, CgroupPathError> {
        let tier = self.tier(qos)?;
        match self.driver {
            Driver::Cgroupfs => tier.join(&format!("pod{uid}")),
            // A dash would be one level more.
            Driver::Systemd => {
                slice_below(&tier, &format!("pod{}", uid.as_str().replace('-', "_")))
            }
        }
    }
}

/// The slice `a-b-NAME.slice` below `…/a-b.slice`.
fn slice_below(parent: &CgroupPath, name: &str) -> Result<CgroupPath, CgroupPathError> {
    let above = parent.file_name().unwrap_or_default();
    let above = above.strip_suffix(SLICE).unwrap_or(above);
    parent.join(&format!("{above}-{name}{SLICE}"))
}

/// The directory that a `cgroup_parent` of a CRI request means. Runtimes take the last component of
/// a slice's path and expand it, as systemd does: `a-b.slice` is `a.slice/a-b.slice`.
///
/// # Errors
///
/// When a component is `.` or `..`, there is a control character, or the path is longer than 4,096 bytes,
/// also once it is expanded ([`ParentError::Path`]). When a part of a slice's name, between its dashes, is
/// empty ([`ParentError::Slice`]).
pub fn directory_of_parent(cgroup_parent: &str) -> Result<CgroupPath, ParentError> {
    let path = CgroupPath::parse(cgroup_parent)?;
    match (Driver::of_parent(cgroup_parent), path.file_name()) {
        (Driver::Systemd, Some(slice)) => expand_slice(slice),
        _ => Ok(path),
    }
}

fn expand_slice(name: &str) -> Result<CgroupPath, ParentError> {
    let parts = name.strip_suffix(SLICE).unwrap_or(name);
    if parts == "-" {
        return Ok(CgroupPath::root());
    }
    let mut path = CgroupPath::root();
    let mut prefix = String::new();
    for part in parts.split('-') {
        if part.is_empty() {
            let name = name.to_owned();
            return Err(ParentError::Slice { name });
        }
        prefix.push_str(part);
        path = path.join(&format!("{prefix}{SLICE}"))?;
        prefix.push('-');
    }
    Ok(path)
}

/// The class of the pod that a directory belongs to, or of the tier that it is; `None` for what is
/// not below `kubepods`.
pub fn kube_qos(path: &CgroupPath) -> Option<KubeQos> {
    below_kubepods(path).map(|(qos, _)| qos)
}

/// The same, and which component is the first below `kubepods`: those above may be called as anything.
fn below_kubepods(path: &CgroupPath) -> Option<(KubeQos, usize)> {
    let components: Vec<&str> = path.components().collect();
    components.windows(2).zip(1..).find_map(|(pair, first)| {
        let (above, here) = (pair[0], pair[1]);
        let below = match above.strip_suffix(SLICE) {
            // The name of a slice repeats the names of all above it.
            Some(slice) if slice.rsplit('-').next() == Some(KUBEPODS) => here
                .strip_suffix(SLICE)?
                .strip_prefix(slice)?
                .strip_prefix('-')?,
            None if above == KUBEPODS => here,
            _ => return None,
        };
        let qos = match below {
            "burstable" => KubeQos::Burstable,
            "besteffort" => KubeQos::BestEffort,
            pod if is_pod(pod) => KubeQos::Guaranteed,
            _ => return None,
        };
        Some((qos, first))
    })
}

/// Whether a directory is that of a pod or below it.
pub fn is_of_pod(path: &CgroupPath) -> bool {
    below_kubepods(path).is_some_and(|(_, first)| path.components().skip(first).any(is_pod))
}

/// Whether a directory is below that of a pod: a container's, or one that a container has made.
pub fn is_below_pod(path: &CgroupPath) -> bool {
    let above = path.components().count().saturating_sub(1);
    let above = path.components().take(above);
    below_kubepods(path).is_some_and(|(_, first)| above.skip(first).any(is_pod))
}

fn is_pod(name: &str) -> bool {
    let slice = name.strip_suffix(SLICE);
    let last = slice.and_then(|slice| slice.rsplit('-').next());
    let name = last.unwrap_or(name);
    name.len() > 3 && name.starts_with("pod")
}

#[cfg(test)]
mod tests {
    use super::*;

    fn path(text: &str) -> CgroupPath {
        CgroupPath::parse(text).unwrap()
    }

    fn layout(root: &str, driver: Driver) -> Layout {
        Layout::new(&path(root), driver).unwrap()
    }

    #[test]
    fn tiers_and_pods_are_named_by_the_driver() {
        let uid = PodUid::new("7f2e-a1").unwrap();
        let cgroupfs = layout("", Driver::Cgroupfs);
        let systemd = layout("", Driver::Systemd);
        for (qos, plain, slices) in [
            (
                KubeQos::Guaranteed,
                "kubepods/pod7f2e-a1",
                "kubepods.slice/kubepods-pod7f2e_a1.slice",
            ),
            (
                KubeQos::Burstable,
                "kubepods/burstable/pod7f2e-a1",
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod7f2e_a1.slice",
            ),
            (
                KubeQos::BestEffort,
                "kubepods/besteffort/pod7f2e-a1",
                "kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod7f2e_a1.slice",
            ),
        ] {
            assert_eq!(cgroupfs.pod(qos, &uid).unwrap().as_str(), plain);
            assert_eq!(systemd.pod(qos, &uid).unwrap().as_str(), slices);
            assert_eq!(kube_qos(&path(plain)), Some(qos));
            assert_eq!(kube_qos(&path(slices)), Some(qos));
        }
    }

    #[test]
    fn a_cgroup_root_is_repeated_in_the_names_of_slices() {
        let systemd = layout("kltest.slice", Driver::Systemd);
        let tier = systemd.tier(KubeQos::BestEffort).unwrap();
        assert_eq!(
            tier.as_str(),
            "kltest.slice/kltest-kubepods.slice/kltest-kubepods-besteffort.slice"
        );
        assert_eq!(kube_qos(&tier), Some(KubeQos::BestEffort));
        let cgroupfs = layout("kltest", Driver::Cgroupfs);
        let tier = cgroupfs.tier(KubeQos::Guaranteed).unwrap();
        assert_eq!(tier.as_str(), "kltest/kubepods");
    }

    #[test]
    fn containers_are_named_by_the_runtime() {
        let pod = path("kubepods/pod1");
        let id = ContainerId::new("0a1b").unwrap();
        for (driver, runtime, name) in [
            (
                Driver::Systemd,
                RuntimeName::Containerd,
                "cri-containerd-0a1b.scope",
            ),
            (Driver::Systemd, RuntimeName::CriO, "crio-0a1b.scope"),
            (Driver::Systemd, RuntimeName::Docker, "docker-0a1b.scope"),
            (Driver::Systemd, RuntimeName::Pouch, "pouch-0a1b.scope"),
            (Driver::Cgroupfs, RuntimeName::Containerd, "0a1b"),
            (Driver::Cgroupfs, RuntimeName::CriO, "crio-0a1b"),
            (Driver::Cgroupfs, RuntimeName::Docker, "0a1b"),
            (Driver::Cgroupfs, RuntimeName::Pouch, "0a1b"),
        ] {
            let directory = driver.container(&pod, runtime, &id).unwrap();
            assert_eq!(directory.file_name(), Some(name));
        }
    }

    #[test]
    fn a_class_is_a_whole_component_below_kubepods() {
        for outside in [
            "burstable/pod1",
            "kubepods",
            "kubepods.slice",
            "my-kubepods/burstable/pod1",
            "kubepods/burstable-jobs/pod1",
            "kubepods.slice/other-burstable.slice",
            "system.slice/kubepods-burstable-pod1.service",
        ] {
            assert_eq!(kube_qos(&path(outside)), None, "{outside}");
        }
        for (inside, qos) in [
            ("burstable/kubepods/pod1/c", KubeQos::Guaranteed),
            ("kubepods/podburstable/c", KubeQos::Guaranteed),
            ("kubepods/kubepods/besteffort/pod1", KubeQos::BestEffort),
            // A kubelet inside of a container.
            (
                "kubepods/burstable/pod1/c/kubepods/besteffort/pod2",
                KubeQos::Burstable,
            ),
        ] {
            assert_eq!(kube_qos(&path(inside)), Some(qos), "{inside}");
        }
    }

    #[test]
    fn a_parent_is_a_path_or_a_slice_to_expand() {
        for (parent, directory) in [
            ("/kubepods/burstable/pod1", "kubepods/burstable/pod1"),
            (
                "kubepods-burstable-pod1.slice",
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice",
            ),
            (
                "/kubepods.slice/kubepods-pod1.slice",
                "kubepods.slice/kubepods-pod1.slice",
            ),
            ("-.slice", ""),
        ] {
            assert_eq!(directory_of_parent(parent).unwrap().as_str(), directory);
        }
        for bad in [".slice", "a--b.slice", "-a.slice", "a-.slice"] {
            assert_eq!(
                directory_of_parent(bad),
                Err(ParentError::Slice {
                    name: bad.to_owned()
                })
            );
        }
        assert!(directory_of_parent("/a/../b").is_err());
        assert_eq!(Driver::of_parent("a.slice"), Driver::Systemd);
        assert_eq!(Driver::of_parent("/a/b"), Driver::Cgroupfs);
    }

    #[test]
    fn what_is_below_a_pod_is_told_from_the_pod_and_from_what_is_no_pods() {
        for (text, below) in [
            ("kubepods", false),
            ("kubepods/besteffort", false),
            ("kubepods/besteffort/pod1-2", false),
            ("kubepods/besteffort/pod1-2/abc", true),
            ("a/kubepods/pod1/abc/nested", true),
            ("kubepods/nginx/workers", false),
            ("kubepods.slice/kubepods-besteffort.slice", false),
            ("kubepods.slice/kubepods-pod1_2.slice", false),
            (
                "kubepods.slice/kubepods-pod1_2.slice/cri-containerd-abc.scope",
                true,
            ),
            (
                "kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1.slice/crio-a.scope",
                true,
            ),
            // Whoever made the groups above called them as they liked.
            ("pods/kubepods", false),
            ("pods/kubepods/burstable", false),
            ("pods/kubepods/burstable/pod1", false),
            ("pods/kubepods/burstable/pod1/abc", true),
            (
                "pods.slice/pods-kubepods.slice/pods-kubepods-besteffort.slice",
                false,
            ),
            ("podman/abc", false),
            ("", false),
        ] {
            assert_eq!(is_below_pod(&path(text)), below, "{text}");
        }
    }
}

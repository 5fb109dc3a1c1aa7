//! The kernel's cgroup hierarchies, and the pod directories that a kubelet would make in them.

use std::fs;
use std::io;
use std::path::{Path, PathBuf};

use crate::runtime::Runtime;
use crate::setup::RuntimeKind;
use crate::testbed::{Testbed, TestbedError};

/// One mounted cgroup hierarchy, of version 1 or 2.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CgroupHierarchy {
    mount_point: PathBuf,
    /// Version 1: the controllers of this mount. Version 2: `None`.
    controllers: Option<Vec<String>>,
}

impl CgroupHierarchy {
    /// Where it is mounted, such as `/sys/fs/cgroup/cpu`.
    pub fn mount_point(&self) -> &Path {
        &self.mount_point
    }

    /// Whether it is the unified hierarchy of version 2.
    pub fn is_unified(&self) -> bool {
        self.controllers.is_none()
    }

    /// Whether `controller` is one of this version 1 hierarchy's.
    pub fn has(&self, controller: &str) -> bool {
        self.controllers
            .iter()
            .flatten()
            .any(|own| own == controller)
    }

    /// Whether membership alone changes nothing for a process: no weight, set or limit is implied.
    pub(crate) fn only_counts(&self) -> bool {
        self.is_unified() || self.has("pids")
    }
}

/// Every mounted hierarchy, in the order of the mount table.
pub(crate) fn hierarchies() -> io::Result<Vec<CgroupHierarchy>> {
    let mounts = fs::read_to_string("/proc/self/mountinfo")?;
    Ok(mounts.lines().filter_map(parse_mount).collect())
}

/// A line of `mountinfo`: id, parent, device, root, mount point, options, optional fields, `-`,
/// type, source, super options; on version 1 the last hold the controllers.
fn parse_mount(line: &str) -> Option<CgroupHierarchy> {
    let (mount, file_system) = line.split_once(" - ")?;
    let mount_point = PathBuf::from(mount.split(' ').nth(4)?);
    let mut file_system = file_system.split(' ');
    let controllers = match file_system.next()? {
        "cgroup2" => None,
        "cgroup" => Some(
            file_system
                .nth(1)?
                .split(',')
                .filter(|option| *option != "rw" && *option != "ro")
                .map(str::to_owned)
                .collect(),
        ),
        _ => return None,
    };
    Some(CgroupHierarchy {
        mount_point,
        controllers,
    })
}

/// The class that Kubernetes gives a pod by its requests and limits.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PodQos {
    /// Limits equal to requests.
    Guaranteed { milli_cpu: u32, memory_bytes: u64 },
    /// Some request; no limit here.
    Burstable { milli_cpu: u32 },
    /// Neither.
    BestEffort,
}

/// A kubelet's tree with the cgroupfs driver: `kubepods`, its two tiers, and pods below them, in
/// every hierarchy, inside of one testbed. It disappears with the testbed.
#[derive(Debug, Clone)]
pub struct PodCgroups {
    root: String,
    hierarchies: Vec<CgroupHierarchy>,
    /// What a container's group is called by before its id.
    prefix: &'static str,
}

impl PodCgroups {
    /// Makes `kubepods`, `kubepods/burstable` and `kubepods/besteffort`.
    ///
    /// # Errors
    ///
    /// When a cgroup cannot be made or filled.
    pub fn new(testbed: &Testbed) -> Result<Self, TestbedError> {
        let tree = Self {
            root: format!("{}/kubepods", testbed.cgroup_root()),
            hierarchies: testbed.hierarchies().to_vec(),
            prefix: "",
        };
        for path in ["", "/burstable", "/besteffort"] {
            tree.create(&format!("{}{path}", tree.root))?;
        }
        // A kubelet gives the BestEffort tier the least weight there is.
        tree.set_weight(&format!("{}/besteffort", tree.root), 2)?;
        Ok(tree)
    }

    /// The same in a runtime's testbed, whose containers' groups it names.
    ///
    /// # Errors
    ///
    /// When a cgroup cannot be made or filled.
    pub fn of(runtime: &Runtime) -> Result<Self, TestbedError> {
        let prefix = match runtime.kind() {
            RuntimeKind::Containerd(_) => "",
            RuntimeKind::Crio => "crio-",
        };
        let tree = Self::new(runtime.testbed())?;
        Ok(Self { prefix, ..tree })
    }

    /// The path of `kubepods` below each hierarchy, such as `/ktb-4711-0/kubepods`.
    pub fn root(&self) -> &str {
        &self.root
    }

    /// Makes a pod's cgroup with the values that a kubelet writes there.
    ///
    /// # Errors
    ///
    /// When a cgroup cannot be made or filled.
    pub fn pod(&self, uid: &str, qos: PodQos) -> Result<PodCgroup, TestbedError> {
        let pod = self.existing_pod(uid, qos);
        let path = pod.path();
        self.create(path)?;
        match qos {
            PodQos::Guaranteed {
                milli_cpu,
                memory_bytes,
            } => {
                self.set_weight(path, shares(milli_cpu))?;
                self.set_limits(path, milli_cpu, memory_bytes)?;
            }
            PodQos::Burstable { milli_cpu } => self.set_weight(path, shares(milli_cpu))?,
            PodQos::BestEffort => self.set_weight(path, 2)?,
        }
        Ok(pod)
    }

    /// Makes the cgroup of a container in a pod's, empty and without a limit, where no runtime does.
    ///
    /// # Errors
    ///
    /// When a cgroup cannot be made.
    pub fn container(&self, pod: &PodCgroup, id: &str) -> Result<(), TestbedError> {
        self.create(&format!("{}/{}{id}", pod.path(), self.prefix))
    }

    /// Makes the cgroup of what runs beside the pods, empty and without a limit.
    ///
    /// # Errors
    ///
    /// When a cgroup cannot be made.
    pub fn beside_pods(&self, name: &str) -> Result<(), TestbedError> {
        self.create(&format!("{}/{name}", self.root))
    }

    /// A pod's cgroup that is there already; nothing is made or written.
    pub fn existing_pod(&self, uid: &str, qos: PodQos) -> PodCgroup {
        let path = match qos {
            PodQos::Guaranteed { .. } => format!("{}/pod{uid}", self.root),
            PodQos::Burstable { .. } => format!("{}/burstable/pod{uid}", self.root),
            PodQos::BestEffort => format!("{}/besteffort/pod{uid}", self.root),
        };
        PodCgroup {
            path,
            hierarchies: self.hierarchies.clone(),
            prefix: self.prefix,
        }
    }

    fn create(&self, path: &str) -> Result<(), TestbedError> {
        // Beside version 1 the unified hierarchy has nothing of a kubelet's, and its root stays as it is.
        let only_unified = self.hierarchies.iter().all(CgroupHierarchy::is_unified);
        for hierarchy in &self.hierarchies {
            let mut directory = hierarchy.mount_point().to_owned();
            for part in path.split('/').filter(|part| !part.is_empty()) {
                if only_unified {
                    pass_controllers_on(&directory)?;
                }
                let parent = directory.clone();
                directory.push(part);
                match fs::create_dir(&directory) {
                    Ok(()) => {}
                    Err(error) if error.kind() == io::ErrorKind::AlreadyExists => {}
                    Err(error) => return Err(TestbedError::file("create", &directory)(error)),
                }
                if hierarchy.has("cpuset") {
                    inherit_cpuset(&parent, &directory)?;
                }
            }
        }
        Ok(())
    }

    fn set_weight(&self, path: &str, shares: u64) -> Result<(), TestbedError> {
        // The curve by which the kubelet turns shares into a weight on version 2.
        let weight = 1 + (shares - 2) * 9999 / 262_142;
        self.set(path, "cpu", "cpu.shares", &shares.to_string())?;
        self.set_unified(path, "cpu.weight", &weight.to_string())
    }

    fn set_limits(&self, path: &str, milli_cpu: u32, memory: u64) -> Result<(), TestbedError> {
        let quota_us = u64::from(milli_cpu) * 100;
        self.set(path, "cpu", "cpu.cfs_quota_us", &quota_us.to_string())?;
        self.set(path, "memory", "memory.limit_in_bytes", &memory.to_string())?;
        self.set_unified(path, "cpu.max", &format!("{quota_us} 100000"))?;
        self.set_unified(path, "memory.max", &memory.to_string())
    }

    fn set(
        &self,
        path: &str,
        controller: &str,
        file: &str,
        value: &str,
    ) -> Result<(), TestbedError> {
        let with_it = self.hierarchies.iter().filter(|it| it.has(controller));
        for hierarchy in with_it {
            write(&below(hierarchy, path).join(file), value)?;
        }
        Ok(())
    }

    /// Sets a file of version 2 where its controller is on that side; hybrid machines have few there.
    fn set_unified(&self, path: &str, file: &str, value: &str) -> Result<(), TestbedError> {
        for hierarchy in self.hierarchies.iter().filter(|it| it.is_unified()) {
            let file = below(hierarchy, path).join(file);
            if file.exists() {
                write(&file, value)?;
            }
        }
        Ok(())
    }
}

/// What the kubelet computes: 1,024 shares for a CPU, and never less than 2.
fn shares(milli_cpu: u32) -> u64 {
    (u64::from(milli_cpu) * 1024 / 1000).max(2)
}

/// A pod's cgroup in every hierarchy.
#[derive(Debug, Clone)]
pub struct PodCgroup {
    path: String,
    hierarchies: Vec<CgroupHierarchy>,
    prefix: &'static str,
}

impl PodCgroup {
    /// The slice of a pod of this machine's own kubelet whose cgroup driver is systemd, which is there
    /// already. The scope of a container in it is `cri-containerd-ID.scope`.
    ///
    /// # Errors
    ///
    /// When the mount table cannot be read.
    pub fn slice(uid: &str, qos: PodQos) -> io::Result<Self> {
        let above = match qos {
            PodQos::Guaranteed { .. } => "kubepods",
            PodQos::Burstable { .. } => "kubepods-burstable",
            PodQos::BestEffort => "kubepods-besteffort",
        };
        let pod = format!("{above}-pod{}", uid.replace('-', "_"));
        // A dash is one level more.
        let levels = pod.match_indices('-').map(|(at, _)| &pod[..at]);
        let path = levels
            .chain([&*pod])
            .map(|level| format!("/{level}.slice"))
            .collect();
        Ok(Self {
            path,
            hierarchies: hierarchies()?,
            prefix: "",
        })
    }

    /// The path below each hierarchy: what a sandbox's `cgroup_parent` has to say.
    pub fn path(&self) -> &str {
        &self.path
    }

    /// The path of the container `id` in it below each hierarchy.
    pub fn path_of(&self, container: &str) -> String {
        format!("{}/{}", self.path, self.name(container))
    }

    /// The directory of this pod where `controller` lives: its version 1 hierarchy, else version 2.
    ///
    /// # Panics
    ///
    /// When the machine has no such hierarchy.
    pub fn directory(&self, controller: &str) -> PathBuf {
        let hierarchy = self
            .hierarchies
            .iter()
            .find(|it| it.has(controller))
            .or_else(|| self.hierarchies.iter().find(|it| it.is_unified()))
            .unwrap_or_else(|| panic!("no hierarchy has the controller {controller}"));
        below(hierarchy, &self.path)
    }

    /// The directories of this pod, or of the container `id` in it, in all hierarchies where there is
    /// one.
    pub fn directories(&self, container: Option<&str>) -> Vec<PathBuf> {
        let all = self.hierarchies.iter().map(|hierarchy| {
            let mut directory = below(hierarchy, &self.path);
            directory.extend(container.map(|id| self.name(id)));
            directory
        });
        all.filter(|directory| directory.is_dir()).collect()
    }

    /// What the kernel holds in a file of the pod, or of the container `id` in it, without the line end.
    ///
    /// # Errors
    ///
    /// When the file cannot be read.
    pub fn read(
        &self,
        controller: &str,
        container: Option<&str>,
        file: &str,
    ) -> io::Result<String> {
        let path = self.file(controller, container, file);
        Ok(fs::read_to_string(path)?.trim_end().to_owned())
    }

    /// Writes to a file of the pod, or of the container `id` in it, as somebody beside the kubelet
    /// would.
    ///
    /// # Errors
    ///
    /// When the kernel refuses the value.
    pub fn write(
        &self,
        controller: &str,
        container: Option<&str>,
        file: &str,
        value: &str,
    ) -> Result<(), TestbedError> {
        write(&self.file(controller, container, file), value)
    }

    /// Puts a process into the container `id` of the pod, in every hierarchy.
    ///
    /// # Errors
    ///
    /// When the kernel refuses it.
    pub fn enter(&self, id: &str, pid: u32) -> Result<(), TestbedError> {
        for hierarchy in &self.hierarchies {
            let container = below(hierarchy, &self.path).join(self.name(id));
            write(&container.join("cgroup.procs"), &pid.to_string())?;
        }
        Ok(())
    }

    /// Removes it and its containers' from every hierarchy, as runtime and kubelet do once no process is
    /// left in them.
    ///
    /// # Errors
    ///
    /// When the kernel refuses.
    pub fn remove(&self) -> Result<(), TestbedError> {
        for hierarchy in &self.hierarchies {
            let pod = below(hierarchy, &self.path);
            let entries = fs::read_dir(&pod).map_err(TestbedError::file("list", &pod))?;
            let containers = entries.filter_map(Result::ok).map(|entry| entry.path());
            for directory in containers.filter(|it| it.is_dir()).chain([pod.clone()]) {
                fs::remove_dir(&directory).map_err(TestbedError::file("remove", &directory))?;
            }
        }
        Ok(())
    }

    /// The path of a file of the pod, or of the container `id` in it.
    ///
    /// # Panics
    ///
    /// When the machine has no hierarchy with this controller.
    pub fn file(&self, controller: &str, container: Option<&str>, file: &str) -> PathBuf {
        let mut path = self.directory(controller);
        path.extend(container.map(|id| self.name(id)));
        path.push(file);
        path
    }

    fn name(&self, container: &str) -> String {
        format!("{}{container}", self.prefix)
    }
}

fn below(hierarchy: &CgroupHierarchy, path: &str) -> PathBuf {
    hierarchy.mount_point().join(path.trim_start_matches('/'))
}

/// A new cpuset of version 1 is empty and takes no process until it is filled from its parent.
fn inherit_cpuset(parent: &Path, child: &Path) -> Result<(), TestbedError> {
    for file in ["cpuset.cpus", "cpuset.mems"] {
        let own = child.join(file);
        let held = fs::read_to_string(&own).map_err(TestbedError::file("read", &own))?;
        if held.trim().is_empty() {
            let source = parent.join(file);
            let value = fs::read_to_string(&source).map_err(TestbedError::file("read", &source))?;
            write(&own, value.trim())?;
        }
    }
    Ok(())
}

/// Version 2: a cgroup offers its children only the controllers that it names.
fn pass_controllers_on(parent: &Path) -> Result<(), TestbedError> {
    let offered = parent.join("cgroup.controllers");
    let offered = fs::read_to_string(&offered).map_err(TestbedError::file("read", &offered))?;
    for controller in offered.split_whitespace() {
        write(
            &parent.join("cgroup.subtree_control"),
            &format!("+{controller}"),
        )?;
    }
    Ok(())
}

fn write(path: &Path, value: &str) -> Result<(), TestbedError> {
    use std::io::Write as _;
    fs::File::options()
        .write(true)
        .open(path)
        .and_then(|mut file| file.write_all(value.as_bytes()))
        .map_err(TestbedError::file("write", path))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hierarchies_are_read_from_the_mount_table() {
        let parse = |line| parse_mount(line).map(|it| (it.mount_point, it.controllers));
        assert_eq!(
            parse("33 31 0:30 / /sys/fs/cgroup/cpu,cpuacct rw - cgroup cgroup rw,cpu,cpuacct"),
            Some((
                PathBuf::from("/sys/fs/cgroup/cpu,cpuacct"),
                Some(vec!["cpu".to_owned(), "cpuacct".to_owned()])
            ))
        );
        assert_eq!(
            parse("41 31 0:38 / /sys/fs/cgroup/unified rw shared:9 - cgroup2 cgroup2 rw"),
            Some((PathBuf::from("/sys/fs/cgroup/unified"), None))
        );
        assert_eq!(
            parse("31 23 0:28 / /sys/fs/cgroup rw - tmpfs tmpfs rw"),
            None
        );
    }

    #[test]
    fn a_slice_repeats_the_names_of_all_above_it() {
        let path = |qos| PodCgroup::slice("7f-a1", qos).unwrap().path;
        assert_eq!(
            path(PodQos::Guaranteed {
                milli_cpu: 1,
                memory_bytes: 1
            }),
            "/kubepods.slice/kubepods-pod7f_a1.slice"
        );
        assert_eq!(
            path(PodQos::BestEffort),
            "/kubepods.slice/kubepods-besteffort.slice/kubepods-besteffort-pod7f_a1.slice"
        );
    }

    #[test]
    fn shares_follow_the_request_and_never_fall_below_two() {
        assert_eq!(shares(500), 512);
        assert_eq!(shares(250), 256);
        assert_eq!(shares(1), 2);
    }
}

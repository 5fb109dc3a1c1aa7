//! What hooks may know of the node, found out by looking.
//!
//! The kubelet may start after us, CPUs come and go, and the policy changes: looking again is
//! cheap, and is done with every list of the runtime and every change of the policy. What cannot be
//! looked at, as without a free descriptor, is not gone for that. What may hang, as a disk,
//! is looked at elsewhere, and unknown here.

use crate::{hami_core, rdma::RdmaProbe, status::chain_of};
use koord_hooks::{
    Abilities, HAMI_CORE_LOCK, HookOptions, NodeView, RdmaDevices, TierPaths, UnsafePath,
};
use koord_kernel::{
    cgroup::{Cgroups, Driver, Layout, ReadError},
    cpu::{self, OnlineError},
};
use koord_model::{CgroupPath, CpuSet, CpusetCpus, KubeQos, MAX_CPU, Setting, Value};
use koord_proto::policy::NodePolicy;
use std::{
    collections::BTreeSet,
    error::Error,
    io,
    path::{Path, PathBuf},
    sync::Arc,
};
use thiserror::Error;
use tracing::warn;

/// Where to look.
#[derive(Clone, Debug)]
pub struct Probe {
    /// `/sys`.
    pub sys_root: PathBuf,
    /// The kubelet's `cgroupRoot`.
    pub cgroup_root: CgroupPath,
    pub options: HookOptions,
    /// Whether threads can be kept from sharing a core.
    pub core_sched: bool,
    /// Whether caches can be shared out.
    pub resctrl: bool,
    /// Whether containers may be given HAMi-core, which is then looked at.
    pub hami_core: bool,
    /// What containers may be given of RDMA; `None` if it is not asked for.
    pub rdma: Option<RdmaProbe>,
}

/// Why it is unknown what the node has now.
#[derive(Debug, Error)]
pub enum LookError {
    #[error("which CPUs are online cannot be found out")]
    Online(#[source] OnlineError),
    #[error("which control groups there are cannot be found out")]
    Group(#[source] io::Error),
    #[error("what the control groups have cannot be found out")]
    Read(#[source] ReadError),
    #[error("which devices of RDMA there are cannot be found out")]
    Rdma(#[source] io::Error),
}

// === impl Probe ===

impl Probe {
    /// The node as it is now, under `policy`.
    ///
    /// # Errors
    ///
    /// When it cannot be found out now which CPUs are online, which control groups there are or what they
    /// have, or, where they are asked for, which devices of RDMA there are. What is not there is no error.
    pub fn look(&self, cgroups: &Cgroups, policy: Arc<NodePolicy>) -> Result<NodeView, LookError> {
        let online = self.online()?;
        let tiers = self.tiers(cgroups).map_err(LookError::Group)?;
        let groups = groups(cgroups)?;
        let mut files = BTreeSet::new();
        for setting in Setting::ALL.iter().filter(|it| it.has_file()) {
            if exists_anywhere(cgroups, &groups, *setting).map_err(LookError::Group)? {
                files.insert(*setting);
            }
        }
        Ok(NodeView {
            policy,
            kernel: Abilities {
                bvt: files.contains(&Setting::CpuBvt),
                identity_switch: files.contains(&Setting::SchedSwitch)
                    && cgroups.has_identity_switch().map_err(LookError::Group)?,
                cpu_idle: files.contains(&Setting::CpuIdle),
                cpu_burst: files.contains(&Setting::CpuBurst),
                core_sched: self.core_sched,
                files,
                resctrl: self.resctrl,
                hami_core: self.hami_core(),
                rdma: self.rdma()?.unwrap_or_default(),
                usable_cpus: usable(cgroups, &tiers.kubepods, online)?,
            },
            tiers,
            options: self.options.clone(),
        })
    }

    /// The node at the start. Where that cannot be found out nothing is there, until a list looks
    /// again, and it is said.
    pub fn first_look(
        &self,
        cgroups: &Cgroups,
        policy: Arc<NodePolicy>,
        remarks: &mut Vec<String>,
    ) -> NodeView {
        let looked = self.look(cgroups, policy.clone());
        let looked = looked.inspect(|_| self.tell_unknown_cpus());
        looked.unwrap_or_else(|error| {
            warn!(
                error = &error as &dyn Error,
                "what this node has is unknown: hooks can do little until it is known"
            );
            let reason = chain_of(&error);
            remarks.push(format!(
                "what this node has was unknown at the start: {reason}"
            ));
            self.unknown(policy)
        })
    }

    /// A node on which nothing is there, and no CPU is offline.
    fn unknown(&self, policy: Arc<NodePolicy>) -> NodeView {
        NodeView {
            policy,
            kernel: Abilities {
                usable_cpus: every_cpu(),
                hami_core: self.hami_core(),
                ..Abilities::default()
            },
            tiers: TierPaths::default(),
            options: self.options.clone(),
        }
    }

    /// How to look why containers are not given HAMi-core, if they may be. That may take for ever.
    pub(crate) fn hami_core_look(&self) -> Option<impl Fn() -> Option<UnsafePath> + Send + use<>> {
        let library = self.options.hami_core_library.clone();
        let look = move || hami_core::unsafe_path(Path::new(&*library), Path::new(HAMI_CORE_LOCK));
        self.hami_core.then_some(look)
    }

    fn hami_core(&self) -> Option<UnsafePath> {
        let library = Path::new(&*self.options.hami_core_library);
        self.hami_core.then(|| hami_core::unlooked(library))
    }

    /// The devices of RDMA as they are now, where they are asked for.
    ///
    /// # Errors
    ///
    /// When sysfs cannot be read; what is not there is no error.
    pub fn rdma(&self) -> Result<Option<RdmaDevices>, LookError> {
        let devices = self.rdma.as_ref().map(RdmaProbe::look);
        devices.transpose().map_err(LookError::Rdma)
    }

    fn online(&self) -> Result<CpuSet, LookError> {
        match cpu::online(&self.sys_root) {
            Ok(online) => Ok(online),
            Err(OnlineError::Read { path, source }) if source.kind() != io::ErrorKind::NotFound => {
                Err(LookError::Online(OnlineError::Read { path, source }))
            }
            Err(_) => Ok(every_cpu()),
        }
    }

    /// Once for each start: it is looked at with every list, and what is so then stays so.
    fn tell_unknown_cpus(&self) {
        if let Err(error) = cpu::online(&self.sys_root) {
            warn!(
                error = &error as &dyn Error,
                "the online CPUs are unknown: none is taken to be offline"
            );
        }
    }

    fn tiers(&self, cgroups: &Cgroups) -> io::Result<TierPaths> {
        // Before the kubelet's first start nothing is there; systemd is what most nodes have.
        let layout = Layout::detect(cgroups, &self.cgroup_root)?
            .or_else(|| Layout::new(&self.cgroup_root, Driver::Systemd).ok());
        let Some(layout) = layout else {
            return Ok(TierPaths::default());
        };
        let tier = |qos| layout.tier(qos).unwrap_or_default();
        Ok(TierPaths {
            kubepods: tier(KubeQos::Guaranteed),
            burstable: tier(KubeQos::Burstable),
            best_effort: tier(KubeQos::BestEffort),
        })
    }
}

/// Those of the CPUs that pods may have at all: a node inside of a container, or one that keeps
/// CPUs for itself, has a cpuset at `kubepods`, and on cgroup v1 the kernel refuses more below it.
fn usable(cgroups: &Cgroups, kubepods: &CgroupPath, online: CpuSet) -> Result<CpuSet, LookError> {
    match cgroups.read(kubepods, Setting::CpusetCpus) {
        Ok(Value::CpusetCpus(CpusetCpus::Only(cpus))) if !cpus.is_empty() => {
            Ok(online.intersection(&cpus))
        }
        Err(error @ ReadError::Io { .. }) if !error.is_gone() => Err(LookError::Read(error)),
        // Not there or not filled before the kubelet's first start; on cgroup v2 not said.
        _ => Ok(online),
    }
}

fn every_cpu() -> CpuSet {
    let all = format!("0-{MAX_CPU}").parse();
    all.expect("the range of all CPU numbers is a list")
}

/// The root of all groups, and those directly below it.
fn groups(cgroups: &Cgroups) -> Result<Vec<CgroupPath>, LookError> {
    let root = CgroupPath::root();
    let below = match cgroups.children(&root) {
        Ok(below) => below,
        Err(error) if error.is_gone() => Vec::new(),
        Err(error) => return Err(LookError::Read(error)),
    };
    let below: Vec<_> = below
        .iter()
        .filter_map(|name| root.join(name).ok())
        .collect();
    Ok([root].into_iter().chain(below).collect())
}

/// Whether the kernel has a setting: some files are missing at the root of a hierarchy, so the
/// groups below it are asked too.
fn exists_anywhere(cgroups: &Cgroups, groups: &[CgroupPath], setting: Setting) -> io::Result<bool> {
    for group in groups {
        if cgroups.supports(setting, group)? {
            return Ok(true);
        }
    }
    Ok(false)
}

#[cfg(test)]
mod tests;

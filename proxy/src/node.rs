//! What hooks may know of the node, found out by looking.
//!
//! The kubelet may start after us, CPUs come and go, and the policy changes: looking again is
//! cheap, and is done with every list of the runtime and every change of the policy.

use koord_hooks::{Abilities, HookOptions, NodeView, TierPaths};
use koord_kernel::{
    cgroup::{Cgroups, Driver, Layout},
    cpu,
};
use koord_model::{CgroupPath, CpuSet, CpusetCpus, KubeQos, MAX_CPU, Setting, Value};
use koord_proto::policy::NodePolicy;
use std::{collections::BTreeSet, error::Error, path::PathBuf, sync::Arc};
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
}

// === impl Probe ===

impl Probe {
    /// The node as it is now, under `policy`.
    pub fn look(&self, cgroups: &Cgroups, policy: Arc<NodePolicy>) -> NodeView {
        let online = cpu::online(&self.sys_root).unwrap_or_else(|error| {
            warn!(
                error = &error as &dyn Error,
                "the online CPUs are unknown: none is taken to be offline"
            );
            every_cpu()
        });
        let tiers = self.tiers(cgroups);
        let settings = Setting::ALL.iter().copied();
        let files: BTreeSet<Setting> = settings
            .filter(|it| !it.is_of_threads() && exists_anywhere(cgroups, *it))
            .collect();
        NodeView {
            policy,
            kernel: Abilities {
                bvt: files.contains(&Setting::CpuBvt),
                cpu_idle: files.contains(&Setting::CpuIdle),
                cpu_burst: files.contains(&Setting::CpuBurst),
                core_sched: self.core_sched,
                files,
                resctrl: self.resctrl,
                usable_cpus: usable(cgroups, &tiers.kubepods, online),
            },
            tiers,
            options: self.options,
        }
    }

    fn tiers(&self, cgroups: &Cgroups) -> TierPaths {
        // Before the kubelet's first start nothing is there; systemd is what most nodes have.
        let layout = Layout::detect(cgroups, &self.cgroup_root)
            .or_else(|| Layout::new(&self.cgroup_root, Driver::Systemd).ok());
        let Some(layout) = layout else {
            return TierPaths::default();
        };
        let tier = |qos| layout.tier(qos).unwrap_or_default();
        TierPaths {
            kubepods: tier(KubeQos::Guaranteed),
            burstable: tier(KubeQos::Burstable),
            best_effort: tier(KubeQos::BestEffort),
        }
    }
}

/// Those of the CPUs that pods may have at all: a node inside of a container, or one that keeps
/// CPUs for itself, has a cpuset at `kubepods`, and on cgroup v1 the kernel refuses more below it.
fn usable(cgroups: &Cgroups, kubepods: &CgroupPath, online: CpuSet) -> CpuSet {
    match cgroups.read(kubepods, Setting::CpusetCpus) {
        Ok(Value::CpusetCpus(CpusetCpus::Only(cpus))) if !cpus.is_empty() => {
            online.intersection(&cpus)
        }
        // Not there or not filled before the kubelet's first start; on cgroup v2 not said.
        _ => online,
    }
}

fn every_cpu() -> CpuSet {
    let all = format!("0-{MAX_CPU}").parse();
    all.expect("the range of all CPU numbers is a list")
}

/// Whether the kernel has a setting: some files are missing at the root of a hierarchy, so the
/// groups below it are asked too.
fn exists_anywhere(cgroups: &Cgroups, setting: Setting) -> bool {
    let root = CgroupPath::root();
    let below = cgroups.children(&root).unwrap_or_default();
    cgroups.supports(setting, &root)
        || below
            .iter()
            .filter_map(|name| root.join(name).ok())
            .any(|group| cgroups.supports(setting, &group))
}

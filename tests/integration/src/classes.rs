//! One pod of each class, and the literal values that the kernel must hold for each.

use crate::RunningPod;
use Scope::{Container, Pod};
use anyhow::{Context, Result, bail};
use koord_testkit::{
    PodCgroup, PodQos,
    cri::{ContainerSpec, PodSpec, message::LinuxContainerResources},
};

/// The label that names a class.
pub const QOS_CLASS: &str = "koordinator.sh/qosClass";
const RESOURCE_STATUS: &str = "scheduling.koordinator.sh/resource-status";
const EXTENDED_RESOURCE_SPEC: &str = "node.koordinator.sh/extended-resource-spec";
const GIB: u64 = 1 << 30;

/// A pod with one container, as a kubelet would describe both.
#[derive(Clone, Debug)]
pub struct PodSpecOf {
    pub name: String,
    /// The label's value; `-` for none.
    pub class: &'static str,
    pub qos: PodQos,
    pub pod: PodSpec,
    pub container: ContainerSpec,
    /// What the kernel must hold once the container runs.
    pub expected: Vec<Expected>,
}

/// Whose control group.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    Pod,
    Container,
}

/// One value that the kernel must hold, and why.
#[derive(Clone, Debug)]
pub struct Expected {
    pub scope: Scope,
    /// The file of cgroup v1, which names the setting.
    pub setting: &'static str,
    /// The hook that decides; `-` where none does and the caller's value stands.
    pub hook: &'static str,
    /// What was asked for, as the ledger prints it where a hook decides.
    pub asked: String,
    /// What cgroup v1 holds.
    pub v1: String,
    /// What cgroup v2 holds: any of these (runtimes know two curves from shares to weight).
    pub v2: Vec<String>,
}

/// What a control group holds, as its file shows it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Held {
    pub text: String,
    /// By cgroup v2's file.
    unified: bool,
}

/// A row: whose group, setting, deciding hook, what was asked, what v1 holds, what v2 may hold.
type Row<'a> = (
    Scope,
    &'static str,
    &'static str,
    &'a str,
    &'a str,
    &'a [&'a str],
);

const ALLOCATOR: &str = "CPUSetAllocator";
const BATCH: &str = "BatchResource";

#[rustfmt::skip]
const LSR: &[Row<'static>] = &[
    (Pod, "cpu.cfs_quota_us", ALLOCATOR, "50000", "-1", &["max 100000"]),
    (Container, "cpuset.cpus", ALLOCATOR, "default", "0", &["0"]),
    (Container, "cpu.cfs_quota_us", ALLOCATOR, "50000", "-1", &["max 100000"]),
    (Container, "cpu.shares", "-", "512", "512", &["20", "59"]),
    (Container, "memory.limit_in_bytes", "-", "1073741824", "1073741824", &["1073741824"]),
];

#[rustfmt::skip]
const BE: &[Row<'static>] = &[
    (Pod, "cpu.idle", "GroupIdentity", "default", "1", &["1"]),
    (Pod, "cpu.cfs_quota_us", BATCH, "default", "100000", &["100000 100000"]),
    (Pod, "memory.limit_in_bytes", BATCH, "default", "134217728", &["134217728"]),
    (Container, "cpu.shares", BATCH, "2", "512", &["20", "59"]),
    (Container, "cpu.cfs_quota_us", BATCH, "default", "100000", &["100000 100000"]),
    (Container, "memory.limit_in_bytes", BATCH, "default", "134217728", &["134217728"]),
];

fn expect(rows: &[Row<'_>]) -> Vec<Expected> {
    rows.iter()
        .map(|(scope, setting, hook, asked, v1, v2)| Expected {
            scope: *scope,
            setting,
            hook,
            asked: (*asked).to_owned(),
            v1: (*v1).to_owned(),
            v2: v2.iter().map(ToString::to_string).collect(),
        })
        .collect()
}

/// The CPUs that pods without CPUs of their own share: not CPU 0, if there is another.
pub fn share_pool() -> Result<String> {
    let online = std::fs::read_to_string("/sys/devices/system/cpu/online")
        .context("which CPUs are online")?;
    Ok(match online.trim() {
        "0" => "0".to_owned(),
        _ => "1".to_owned(),
    })
}

/// A node policy that says nothing. An empty file is none, but one that somebody has begun to write.
pub const NO_POLICY: &str = "{kind: List, items: []}\n";

/// The node policy of the demo: the shared pool, and QoS switched on for all classes.
pub fn node_policy(share_pool: &str) -> String {
    format!(
        r#"apiVersion: topology.node.k8s.io/v1alpha1
kind: NodeResourceTopology
metadata:
  name: node-1
  annotations:
    node.koordinator.sh/cpu-shared-pools: '[{{"socket":0,"node":0,"cpuset":"{share_pool}"}}]'
---
apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata:
  name: node-1
spec:
  resourceQOSStrategy:
    lsrClass:
      cpuQOS: {{enable: true, groupIdentity: 2}}
    lsClass:
      cpuQOS: {{enable: true, groupIdentity: 2}}
    beClass:
      cpuQOS: {{enable: true, groupIdentity: -1}}
"#
    )
}

/// Feature gates of the demo: where the kernel has no group identity, best-effort pods are idle.
pub const FEATURE_GATES: &str = "BECPUIdle=true";

/// One pod each of LSR, LS, BE and without a class.
pub fn all(share_pool: &str) -> Vec<PodSpecOf> {
    vec![
        lsr("redis"),
        ls("web", share_pool),
        be("batch"),
        plain("plain", share_pool),
    ]
}

/// A guaranteed pod to which the scheduler gave CPU 0.
pub fn lsr(name: &str) -> PodSpecOf {
    let milli_cpu = 500;
    let resources = LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        cpu_shares: 512,
        memory_limit_in_bytes: 1 << 30,
        ..Default::default()
    };
    PodSpecOf {
        name: name.to_owned(),
        class: "LSR",
        qos: PodQos::Guaranteed {
            milli_cpu,
            memory_bytes: GIB,
        },
        pod: PodSpec::new(name)
            .label(QOS_CLASS, "LSR")
            .annotation(RESOURCE_STATUS, r#"{"cpuset":"0"}"#),
        container: ContainerSpec::new("main").resources(resources),
        expected: expect(LSR),
    }
}

/// A burstable pod that shares CPUs with others of its kind.
pub fn ls(name: &str, share_pool: &str) -> PodSpecOf {
    let resources = LinuxContainerResources {
        cpu_period: 100_000,
        cpu_shares: 256,
        ..Default::default()
    };
    PodSpecOf {
        name: name.to_owned(),
        class: "LS",
        qos: PodQos::Burstable { milli_cpu: 250 },
        pod: PodSpec::new(name).label(QOS_CLASS, "LS"),
        container: ContainerSpec::new("main").resources(resources),
        expected: expect(&[
            (
                Container,
                "cpuset.cpus",
                ALLOCATOR,
                "default",
                share_pool,
                &[share_pool],
            ),
            (Container, "cpu.shares", "-", "256", "256", &["10", "35"]),
        ]),
    }
}

/// A best-effort pod with batch resources: half a CPU asked, one at most, 128 MiB at most.
pub fn be(name: &str) -> PodSpecOf {
    let spec = r#"{"containers":{"main":{
        "requests":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"64Mi"},
        "limits":{"kubernetes.io/batch-cpu":"1000","kubernetes.io/batch-memory":"128Mi"}}}}"#;
    let resources = LinuxContainerResources {
        cpu_period: 100_000,
        cpu_shares: 2,
        ..Default::default()
    };
    PodSpecOf {
        name: name.to_owned(),
        class: "BE",
        qos: PodQos::BestEffort,
        pod: PodSpec::new(name)
            .label(QOS_CLASS, "BE")
            .annotation(EXTENDED_RESOURCE_SPEC, spec),
        container: ContainerSpec::new("main").resources(resources),
        expected: expect(BE),
    }
}

/// A pod that nobody gave a class.
pub fn plain(name: &str, share_pool: &str) -> PodSpecOf {
    let mut pod = ls(name, share_pool);
    pod.class = "-";
    pod.pod = PodSpec::new(name);
    pod
}

// === impl PodSpecOf ===

impl PodSpecOf {
    /// The values that the kernel does not hold as it should, each as a line.
    pub fn wrong(&self, running: &RunningPod) -> Vec<String> {
        self.wrong_in(&running.cgroup, &running.container)
    }

    /// The same of a container that somebody else runs.
    pub fn wrong_in(&self, cgroup: &PodCgroup, container: &str) -> Vec<String> {
        let expected = self.expected.iter();
        expected
            .filter_map(|expected| {
                let held = expected.held(cgroup, container);
                let right = held.as_ref().is_ok_and(|held| expected.is_met_by(held));
                (!right).then(|| format!("{} {}: {held:?}", self.name, expected.setting))
            })
            .collect()
    }
}

// === impl Expected ===

impl Expected {
    /// What the kernel holds now, by plain reads of the kernel's files.
    pub fn held(&self, pod: &PodCgroup, container: &str) -> Result<Held> {
        let container = match self.scope {
            Scope::Pod => None,
            Scope::Container => Some(container),
        };
        let (controller, v1, v2) = files(self.setting)?;
        let unified = !pod.directory(controller).join(v1).exists();
        let file = if unified { v2 } else { v1 };
        let text = pod
            .read(controller, container, file)
            .with_context(|| format!("read {file} of {}", pod.path()))?;
        Ok(Held { text, unified })
    }

    /// Whether that is what must be there.
    pub fn is_met_by(&self, held: &Held) -> bool {
        if held.unified {
            self.v2.contains(&held.text)
        } else {
            self.v1 == held.text
        }
    }
}

fn files(setting: &str) -> Result<(&'static str, &'static str, &'static str)> {
    Ok(match setting {
        "cpu.shares" => ("cpu", "cpu.shares", "cpu.weight"),
        "cpu.cfs_quota_us" => ("cpu", "cpu.cfs_quota_us", "cpu.max"),
        "cpu.idle" => ("cpu", "cpu.idle", "cpu.idle"),
        "cpuset.cpus" => ("cpuset", "cpuset.cpus", "cpuset.cpus"),
        "memory.limit_in_bytes" => ("memory", "memory.limit_in_bytes", "memory.max"),
        other => bail!("{other} is not a setting that the table knows"),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_value_is_held_against_that_of_its_own_cgroup_version() {
        let expected = expect(&[(Container, "cpu.shares", "-", "512", "512", &["20", "59"])]);
        let met = |text: &str, unified| {
            let text = text.to_owned();
            expected[0].is_met_by(&Held { text, unified })
        };
        assert!(met("512", false) && met("20", true) && met("59", true));
        assert!(!met("20", false) && !met("512", true));
    }
}

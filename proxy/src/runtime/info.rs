//! What a runtime says of a pod or a container beyond the API: JSON in its verbose status.
//!
//! It is as long as whoever made the pod likes, for it has the environment twice. So only what is looked at is
//! taken out of it, and of the rest nothing is kept.

use crate::view;
use koord_hooks::Requested;
use koord_model::{MemoryLimit, OomScoreAdj};
use koord_proto::cri;
use serde::Deserialize;
use std::collections::HashMap;

/// What containerd and CRI-O say; CRI-O of a container the second alone.
#[derive(Debug, Deserialize)]
pub struct Info {
    /// As its creation was told.
    config: Option<Config>,
    /// As the runtime writes it with each update.
    #[serde(rename = "runtimeSpec")]
    spec: Option<Spec>,
}

#[derive(Debug, Deserialize)]
struct Config {
    linux: Option<ConfigLinux>,
}

#[derive(Debug, Deserialize)]
struct ConfigLinux {
    cgroup_parent: Option<String>,
    resources: Option<ConfigResources>,
}

#[derive(Debug, Deserialize)]
struct ConfigResources {
    cpu_shares: Option<i64>,
    cpu_quota: Option<i64>,
    cpu_period: Option<i64>,
    memory_limit_in_bytes: Option<i64>,
    cpuset_cpus: Option<String>,
    unified: Option<HashMap<String, String>>,
}

#[derive(Debug, Deserialize)]
struct Spec {
    annotations: Option<Annotations>,
    linux: Option<SpecLinux>,
    process: Option<Process>,
}

#[derive(Debug, Deserialize)]
struct Annotations {
    #[serde(rename = "runtimeproxy.koordinator.sh/originals")]
    originals: Option<String>,
}

#[derive(Debug, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Process {
    oom_score_adj: Option<i64>,
}

#[derive(Debug, Deserialize)]
struct SpecLinux {
    resources: Option<SpecResources>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct SpecResources {
    cpu: Option<Cpu>,
    memory: Option<Memory>,
    unified: Option<HashMap<String, String>>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Cpu {
    shares: Option<i64>,
    quota: Option<i64>,
    period: Option<i64>,
    cpus: Option<String>,
}

#[derive(Clone, Debug, Default, Deserialize)]
struct Memory {
    limit: Option<i64>,
    swap: Option<i64>,
}

// === impl Info ===

impl Info {
    /// `None` if this is nothing that a runtime says.
    pub fn read(json: &str) -> Option<Self> {
        serde_json::from_str(json).ok()
    }

    /// Where the containers of a pod are, as its creation was told.
    pub fn cgroup_parent(&self) -> Option<&str> {
        self.config
            .as_ref()?
            .linux
            .as_ref()?
            .cgroup_parent
            .as_deref()
    }

    /// The annotation that says what was asked for, as the spec has it.
    pub fn originals(&self) -> Option<&str> {
        let annotations = self.spec.as_ref()?.annotations.as_ref()?;
        annotations.originals.as_deref()
    }

    /// The shares that the runtime has stored.
    pub fn shares(&self) -> Option<i64> {
        let resources = self.spec.as_ref()?.linux.as_ref()?.resources.as_ref()?;
        resources.cpu.as_ref()?.shares
    }

    /// What the creation was told, but for the score: nothing there tells zero from nothing.
    pub fn created(&self) -> Option<Requested> {
        let linux = self.config.as_ref()?.linux.as_ref();
        let said = linux.and_then(|linux| linux.resources.as_ref());
        let created = said.map(|said| cri::LinuxContainerResources {
            cpu_shares: said.cpu_shares.unwrap_or_default(),
            cpu_quota: said.cpu_quota.unwrap_or_default(),
            cpu_period: said.cpu_period.unwrap_or_default(),
            memory_limit_in_bytes: said.memory_limit_in_bytes.unwrap_or_default(),
            cpuset_cpus: said.cpuset_cpus.clone().unwrap_or_default(),
            unified: said.unified.clone().unwrap_or_default(),
            ..Default::default()
        });
        Some(view::requested(Some(&created.unwrap_or_default())))
    }

    /// What the runtime writes with each update, and of memory and swap together.
    pub fn in_force(&self) -> Option<(Requested, Option<MemoryLimit>)> {
        let spec = self.spec.as_ref()?;
        let resources = spec
            .linux
            .as_ref()
            .and_then(|linux| linux.resources.clone());
        let resources = resources.unwrap_or_default();
        let (cpu, memory) = (
            resources.cpu.unwrap_or_default(),
            resources.memory.unwrap_or_default(),
        );
        let now = cri::LinuxContainerResources {
            cpu_shares: cpu.shares.unwrap_or_default(),
            cpu_quota: cpu.quota.unwrap_or_default(),
            cpu_period: cpu.period.unwrap_or_default(),
            memory_limit_in_bytes: memory.limit.unwrap_or_default(),
            memory_swap_limit_in_bytes: memory.swap.unwrap_or_default(),
            cpuset_cpus: cpu.cpus.unwrap_or_default(),
            unified: resources.unified.unwrap_or_default(),
            ..Default::default()
        };
        let score = spec.process.as_ref().and_then(|it| it.oom_score_adj);
        let requested = Requested {
            oom_score_adj: score.and_then(|score| OomScoreAdj::new(score).ok()),
            ..view::requested(Some(&now))
        };
        Some((requested, view::swap_said(Some(&now))))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_model::{CpuPeriod, CpuQuota, CpuShares};
    use koord_proto::keys::annotation;

    #[test]
    fn what_is_looked_at_is_found_among_what_is_not() {
        let info = Info::read(
            r#"{"sandboxID": "s", "config": {"envs": [{"key": "A"}], "linux": {
                "cgroup_parent": "/kubepods", "security_context": {"capabilities": {}},
                "resources": {"cpu_period": 100000, "cpu_quota": 50000, "cpu_shares": 512,
                              "oom_score_adj": 7, "hugepage_limits": [{"page_size": "2MB"}]}}},
             "runtimeSpec": {"process": {"env": ["A="], "oomScoreAdj": -5},
                "annotations": {"a": "b", "runtimeproxy.koordinator.sh/originals": "{}"},
                "linux": {"maskedPaths": ["/proc/acpi"], "resources": {
                    "devices": [{"allow": false}], "memory": {"limit": 4096, "swap": 8192},
                    "cpu": {"shares": 256, "quota": -1, "period": 10000, "cpus": "0-1"},
                    "unified": {"memory.low": "4096"}}}}}"#,
        )
        .unwrap();
        assert_eq!(info.cgroup_parent(), Some("/kubepods"));
        assert_eq!(
            annotation::ORIGINALS,
            "runtimeproxy.koordinator.sh/originals"
        );
        assert_eq!(info.originals(), Some("{}"));
        assert_eq!(info.shares(), Some(256));
        let created = Requested {
            cpu_shares: CpuShares::new(512).ok(),
            cpu_quota: CpuQuota::from_micros(50_000).ok(),
            cpu_period: CpuPeriod::new(100_000).ok(),
            ..Requested::default()
        };
        assert_eq!(info.created(), Some(created));
        let in_force = Requested {
            cpu_shares: CpuShares::new(256).ok(),
            cpu_quota: Some(CpuQuota::Unlimited),
            cpu_period: CpuPeriod::new(10_000).ok(),
            memory_limit: Some(MemoryLimit::Bytes(4096)),
            cpuset_cpus: Some("0-1".parse().unwrap()),
            oom_score_adj: OomScoreAdj::new(-5).ok(),
            unified: view::unified(|file| (file == "memory.low").then_some("4096")),
        };
        let swap = Some(MemoryLimit::Bytes(8192));
        assert_eq!(info.in_force(), Some((in_force, swap)));
    }

    #[test]
    fn what_is_not_there_is_not_said() {
        let info =
            Info::read(r#"{"runtimeSpec": {"linux": {"resources": {"cpu": null}}}}"#).unwrap();
        assert_eq!(info.created(), None);
        assert_eq!(info.in_force(), Some((Requested::default(), None)));
        for config in ["{}", r#"{"linux": {"resources": {"cpu_shares": null}}}"#] {
            let json = format!(r#"{{"config": {config}, "runtimeSpec": null}}"#);
            let info = Info::read(&json).unwrap();
            assert_eq!(info.created(), Some(Requested::default()));
            assert_eq!((info.in_force(), info.shares()), (None, None));
        }
        for text in ["", "null", "7", r#"{"config": 7}"#] {
            assert!(Info::read(text).is_none(), "{text:?}");
        }
    }
}

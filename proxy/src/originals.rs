//! What a container was asked to have before hooks changed it, kept where it cannot get lost.
//!
//! A runtime shows only the values it was given, which are ours once a request was patched. So the
//! originals travel with the container as one annotation, and every list gives them back, with what
//! the creation was changed to say: `docs/architecture.md`, "State".

use crate::view;
use koord_hooks::{PodView, Requested};
use koord_model::{CpuPeriod, CpuQuota, CpuShares, CpusetCpus, MemoryLimit, OomScoreAdj, Value};
use koord_proto::keys::annotation;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;

/// The longest annotation value that is read; what we write is far below.
const MAX_LENGTH: usize = 16 * 1024;

/// What is known of a container since before it was ours.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Origin {
    pub requested: Requested,
    /// What its creation was changed to say, quotas for 100 ms.
    pub ours: Vec<Value>,
}

/// An annotation of ours.
#[derive(Clone, Debug, PartialEq, Eq)]
struct Note {
    origin: Origin,
    /// The container for which alone it was written; a proxy in front of the runtime does not know which
    /// that will be.
    of: Option<String>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Text {
    #[serde(flatten)]
    requested: Resources,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    ours: Option<Resources>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    of: Option<String>,
}

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Resources {
    #[serde(skip_serializing_if = "Option::is_none", default)]
    cpu_shares: Option<u32>,
    /// −1 is unlimited.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    cpu_quota: Option<i64>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    cpu_period: Option<u32>,
    /// −1 is unlimited.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    memory_limit: Option<i64>,
    /// Of ours the empty list is all CPUs.
    #[serde(skip_serializing_if = "Option::is_none", default)]
    cpuset_cpus: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none", default)]
    oom_score_adj: Option<i64>,
    /// What was asked for by the names of files of cgroup v2.
    #[serde(skip_serializing_if = "BTreeMap::is_empty", default)]
    unified: BTreeMap<String, String>,
}

/// The annotation's value; it is this container's alone where its id is known.
pub fn to_annotation(origin: &Origin, of: Option<&str>) -> String {
    let text = Text {
        requested: Resources::of_requested(&origin.requested),
        ours: (!origin.ours.is_empty()).then(|| Resources::of_ours(&origin.ours)),
        of: of.map(str::to_owned),
    };
    serde_json::to_string(&text).expect("numbers and a string always serialise")
}

/// Reads the annotation back; anything that is not ours to the letter is `None`, since a caller of
/// CRI may write what it likes there.
fn from_annotation(value: &str) -> Option<Note> {
    // A derived decoder takes a list for a struct as well.
    if value.len() > MAX_LENGTH || !value.starts_with('{') {
        return None;
    }
    let text: Text = serde_json::from_str(value).ok()?;
    let ours = match text.ours {
        Some(ours) => ours.into_ours()?,
        None => Vec::new(),
    };
    Some(Note {
        origin: Origin {
            requested: text.requested.into_requested()?,
            ours,
        },
        of: text.of,
    })
}

/// What a container of this id carries by a list of the runtime. What it has from its pod is nobody's
/// word: CRI-O gives each container the annotations of its pod, and these are anybody's who may make a
/// pod. One that we gave it stands in the place of the pod's.
pub fn of_container(annotation: Option<&str>, id: &str, pod: &PodView) -> Option<Origin> {
    let text = annotation?;
    let Note { origin, of } = from_annotation(text)?;
    let is_ours = match of {
        Some(of) => of == id,
        None => pod.annotations.get(annotation::ORIGINALS) != Some(text),
    };
    is_ours.then_some(origin)
}

/// Whether an annotation was written for the container of this id, which nobody knows before it is made.
/// In a spec no other is believed: containerd puts annotations of the pod there that a handler's
/// `pod_annotations` name, and as they are when the container is made, so that those of the sandbox
/// need not be the same.
pub fn is_of(annotation: &str, id: &str) -> bool {
    from_annotation(annotation).is_some_and(|note| note.of.as_deref() == Some(id))
}

// === impl Resources ===

impl Resources {
    fn of_requested(requested: &Requested) -> Self {
        Self {
            cpu_shares: requested.cpu_shares.map(CpuShares::get),
            cpu_quota: requested.cpu_quota.map(CpuQuota::as_i64),
            cpu_period: requested.cpu_period.map(CpuPeriod::micros),
            memory_limit: requested.memory_limit.map(MemoryLimit::as_i64),
            cpuset_cpus: requested.cpuset_cpus.as_ref().map(ToString::to_string),
            oom_score_adj: requested.oom_score_adj.map(OomScoreAdj::get),
            unified: view::unified_texts(requested.unified),
        }
    }

    fn into_requested(self) -> Option<Requested> {
        let shares = self.cpu_shares.map(|n| CpuShares::new(n.into()));
        let quota = self.cpu_quota.map(CpuQuota::from_micros);
        let period = self.cpu_period.map(|n| CpuPeriod::new(n.into()));
        let cpus = self.cpuset_cpus.map(|list| list.parse());
        let score = self.oom_score_adj.map(OomScoreAdj::new);
        Some(Requested {
            cpu_shares: shares.transpose().ok()?,
            cpu_quota: quota.transpose().ok()?,
            cpu_period: period.transpose().ok()?,
            memory_limit: self.memory_limit.map(MemoryLimit::from_bytes),
            cpuset_cpus: cpus.transpose().ok()?,
            oom_score_adj: score.transpose().ok()?,
            unified: view::unified(|file| self.unified.get(file).map(String::as_str)),
        })
    }

    fn of_ours(values: &[Value]) -> Self {
        let mut text = Self::default();
        for value in values {
            match value {
                Value::CpuShares(shares) => text.cpu_shares = Some(shares.get()),
                Value::CpuQuota(quota) => text.cpu_quota = Some(quota.as_i64()),
                Value::MemoryLimit(limit) => text.memory_limit = Some(limit.as_i64()),
                Value::CpusetCpus(CpusetCpus::Only(cpus)) => {
                    text.cpuset_cpus = Some(cpus.to_string());
                }
                Value::CpusetCpus(CpusetCpus::All) => text.cpuset_cpus = Some(String::new()),
                Value::OomScoreAdj(score) => text.oom_score_adj = Some(score.get()),
                // No request can say these.
                _ => {}
            }
        }
        text
    }

    fn into_ours(mut self) -> Option<Vec<Value>> {
        let all = self.cpuset_cpus.take_if(|list| list.is_empty());
        let all = all.map(|_| CpusetCpus::All.into());
        let said = self.into_requested()?;
        let values = [
            said.cpu_shares.map(Value::from),
            said.cpu_quota.map(Value::from),
            said.memory_limit.map(Value::from),
            said.cpuset_cpus.map(|cpus| CpusetCpus::Only(cpus).into()),
            all,
            said.oom_score_adj.map(Value::from),
        ];
        Some(values.into_iter().flatten().collect())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_hooks::Unified;
    use koord_model::MemoryProtection;

    #[test]
    fn originals_are_given_back_as_they_were() {
        let requested = Requested {
            cpu_shares: Some(CpuShares::new(512).unwrap()),
            cpu_quota: Some(CpuQuota::Unlimited),
            cpu_period: Some(CpuPeriod::DEFAULT),
            memory_limit: Some(MemoryLimit::Bytes(1 << 20)),
            cpuset_cpus: Some("0-1".parse().unwrap()),
            oom_score_adj: OomScoreAdj::new(-997).ok(),
            unified: Unified {
                memory_min: Some(MemoryProtection::Bytes(4096)),
                memory_low: Some(MemoryProtection::All),
                memory_high: Some(MemoryLimit::Unlimited),
                memory_oom_group: Some(true),
            },
        };
        let origin = Origin {
            requested,
            ours: Vec::new(),
        };
        let text = to_annotation(&origin, None);
        assert_eq!(
            text,
            concat!(
                r#"{"cpuShares":512,"cpuQuota":-1,"cpuPeriod":100000,"memoryLimit":1048576,"#,
                r#""cpusetCpus":"0-1","oomScoreAdj":-997,"unified":{"memory.high":"max","memory.low":"max","#,
                r#""memory.min":"4096","memory.oom.group":"1"}}"#
            )
        );
        let note = |origin| Some(Note { origin, of: None });
        assert_eq!(from_annotation(&text), note(origin));
        assert_eq!(from_annotation("{}"), note(Origin::default()));
    }

    #[test]
    fn what_was_written_for_a_container_is_no_other_containers() {
        let text = to_annotation(&Origin::default(), Some("c-1"));
        assert_eq!(text, r#"{"of":"c-1"}"#);
        assert!(is_of(&text, "c-1") && !is_of(&text, "c-2"));
        // Of any.
        assert!(!is_of("{}", "c-1") && !is_of(r#"{"of":""}"#, "c-1"));
    }

    #[test]
    fn what_a_creation_was_changed_to_say_is_given_back_too() {
        let only = CpusetCpus::Only("1".parse().unwrap());
        for (cpus, list) in [(only, "1"), (CpusetCpus::All, "")] {
            let origin = Origin {
                requested: Requested::default(),
                ours: vec![
                    CpuShares::new(512).unwrap().into(),
                    CpuQuota::Unlimited.into(),
                    MemoryLimit::Bytes(4096).into(),
                    cpus.into(),
                    OomScoreAdj::DEFAULT.into(),
                ],
            };
            let text = to_annotation(&origin, None);
            let ours = r#""cpuShares":512,"cpuQuota":-1,"memoryLimit":4096,"cpusetCpus""#;
            assert_eq!(
                text,
                format!(r#"{{"ours":{{{ours}:"{list}","oomScoreAdj":0}}}}"#)
            );
            assert_eq!(from_annotation(&text), Some(Note { origin, of: None }));
        }
    }

    #[test]
    fn what_somebody_else_wrote_there_is_nothing() {
        for text in [
            "",
            "null",
            "[]",
            r#"{"cpuShares":1}"#,
            r#"{"cpuShares":"512"}"#,
            r#"{"cpuPeriod":5}"#,
            r#"{"cpusetCpus":"x"}"#,
            r#"{"oomScoreAdj":1001}"#,
            r#"{"of":1}"#,
            &format!("{{\"x\":\"{}\"}}", "y".repeat(MAX_LENGTH)),
        ] {
            assert_eq!(from_annotation(text), None, "{text}");
        }
    }
}

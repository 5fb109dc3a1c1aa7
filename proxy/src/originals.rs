//! What a container was asked to have before hooks changed it, kept where it cannot get lost.
//!
//! A runtime shows only the values it was given, which are ours once a request was patched. So the
//! originals travel with the container as one annotation, and every list gives them back:
//! `docs/architecture.md`, "State".

use koord_hooks::Requested;
use koord_model::{CpuPeriod, CpuQuota, CpuShares, MemoryLimit};
use serde::{Deserialize, Serialize};

/// The longest annotation value that is read; what we write is far below.
const MAX_LENGTH: usize = 16 * 1024;

#[derive(Default, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
struct Text {
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
    #[serde(skip_serializing_if = "Option::is_none", default)]
    cpuset_cpus: Option<String>,
}

/// The annotation's value.
pub fn to_annotation(requested: &Requested) -> String {
    let text = Text {
        cpu_shares: requested.cpu_shares.map(CpuShares::get),
        cpu_quota: requested.cpu_quota.map(CpuQuota::as_i64),
        cpu_period: requested.cpu_period.map(CpuPeriod::micros),
        memory_limit: requested.memory_limit.map(MemoryLimit::as_i64),
        cpuset_cpus: requested.cpuset_cpus.as_ref().map(ToString::to_string),
    };
    serde_json::to_string(&text).expect("numbers and a string always serialise")
}

/// Reads the annotation back; anything that is not ours to the letter is `None`, since a caller of
/// CRI may write what it likes there.
pub fn from_annotation(value: &str) -> Option<Requested> {
    // A derived decoder takes a list for a struct as well.
    if value.len() > MAX_LENGTH || !value.starts_with('{') {
        return None;
    }
    let text: Text = serde_json::from_str(value).ok()?;
    let shares = text.cpu_shares.map(|n| CpuShares::new(n.into()));
    let quota = text.cpu_quota.map(CpuQuota::from_micros);
    let period = text.cpu_period.map(|n| CpuPeriod::new(n.into()));
    let cpus = text.cpuset_cpus.map(|list| list.parse());
    Some(Requested {
        cpu_shares: shares.transpose().ok()?,
        cpu_quota: quota.transpose().ok()?,
        cpu_period: period.transpose().ok()?,
        memory_limit: text.memory_limit.map(MemoryLimit::from_bytes),
        cpuset_cpus: cpus.transpose().ok()?,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn originals_are_given_back_as_they_were() {
        let requested = Requested {
            cpu_shares: Some(CpuShares::new(512).unwrap()),
            cpu_quota: Some(CpuQuota::Unlimited),
            cpu_period: Some(CpuPeriod::DEFAULT),
            memory_limit: Some(MemoryLimit::Bytes(1 << 20)),
            cpuset_cpus: Some("0-1".parse().unwrap()),
        };
        let text = to_annotation(&requested);
        assert_eq!(
            text,
            r#"{"cpuShares":512,"cpuQuota":-1,"cpuPeriod":100000,"memoryLimit":1048576,"cpusetCpus":"0-1"}"#
        );
        assert_eq!(from_annotation(&text), Some(requested));
        assert_eq!(from_annotation("{}"), Some(Requested::default()));
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
            &format!("{{\"x\":\"{}\"}}", "y".repeat(MAX_LENGTH)),
        ] {
            assert_eq!(from_annotation(text), None, "{text}");
        }
    }
}

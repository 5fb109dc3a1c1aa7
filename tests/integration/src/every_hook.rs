//! Every hook on, and a node policy in which each that this kernel has something for finds something to
//! decide.

use koord_testkit::cri::PodSpec;

/// All of them: `AllAlpha` and `AllBeta` do not say those that are this project's own.
pub const FEATURE_GATES: &str =
    "AllAlpha=true,AllBeta=true,BECPUIdle=true,MidResource=true,ResctrlMonitor=true";

/// A policy of QoS for all classes, of a node whose CPUs are faster than nominal.
///
/// It shapes no traffic: that would be the machine's own.
#[derive(Clone, Copy, Debug)]
pub struct BusyPolicy<'a> {
    /// The CPUs that pods without CPUs of their own share.
    pub share_pool: &'a str,
    /// Whether best-effort pods yield to all others.
    pub be_is_ranked: bool,
    /// What a latency-sensitive container may save up, percent of its limit.
    pub burst_percent: u32,
    /// How many times as fast as nominal the CPUs are: what a container may do is divided by it.
    pub faster: &'a str,
    /// A disk, and how many bytes a second best-effort pods may read of it.
    pub disk: Option<(&'a str, u64)>,
}

/// What a pod may ask for itself of hooks that decide about its class too.
const ASKED: [(&str, &str); 6] = [
    ("koordinator.sh/oom-score-adj", "500"),
    (
        "koordinator.sh/cpuQOS",
        r#"{"enable":true,"groupIdentity":-1}"#,
    ),
    ("koordinator.sh/memoryQOS", r#"{"policy":"auto"}"#),
    ("koordinator.sh/networkQOS", r#"{"egressLimit":"8M"}"#),
    (
        "koordinator.sh/blkioQOS",
        r#"{"blocks":[{"name":"loop7","type":"device","ioCfg":{"writeBPS":1073741824}}]}"#,
    ),
    (
        "scheduling.koordinator.sh/device-allocated",
        r#"{"gpu":[{"minor":3,"resources":{"koordinator.sh/gpu-core":"50"}}]}"#,
    ),
];

/// A pod that asks something of each hook that has an annotation for it.
pub fn asking(pod: PodSpec) -> PodSpec {
    let pod = pod.label("koordinator.sh/core-sched-group-id", "a");
    ASKED
        .iter()
        .fold(pod, |pod, (key, value)| pod.annotation(key, value))
}

// === impl BusyPolicy ===

impl<'a> BusyPolicy<'a> {
    pub fn new(share_pool: &'a str) -> Self {
        Self {
            share_pool,
            be_is_ranked: true,
            burst_percent: 100,
            faster: "1.25",
            disk: None,
        }
    }

    /// As the file of a node policy.
    pub fn text(&self) -> String {
        let Self {
            share_pool,
            be_is_ranked,
            burst_percent,
            faster,
            disk,
        } = self;
        let blocks = disk.map_or("[]".to_owned(), |(disk, bps)| {
            format!("[{{name: {disk}, type: device, ioCfg: {{readBPS: {bps}}}}}]")
        });
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
metadata: {{name: node-1}}
spec:
  cpuBurstStrategy: {{policy: auto, cpuBurstPercent: {burst_percent}}}
  resourceQOSStrategy:
    lsrClass:
      cpuQOS: {{enable: true, groupIdentity: 2}}
      memoryQOS: {{enable: true, minLimitPercent: 10}}
    lsClass:
      cpuQOS: {{enable: true, groupIdentity: 2}}
      memoryQOS: {{enable: true, lowLimitPercent: 10}}
    beClass:
      cpuQOS: {{enable: {be_is_ranked}, groupIdentity: -1}}
      memoryQOS: {{enable: true, throttlingPercent: 90}}
      blkioQOS: {{enable: true, blocks: {blocks}}}
---
apiVersion: v1
kind: Node
metadata:
  name: node-1
  annotations:
    node.koordinator.sh/cpu-normalization-ratio: "{faster}"
"#
        )
    }
}

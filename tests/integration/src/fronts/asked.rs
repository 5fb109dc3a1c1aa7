//! Of which pods and policies it is seen what hooks make: together they ask something of every hook, and
//! something else once they have changed.

use crate::classes::{self, PodSpecOf};
use koord_testkit::cri::{PodSpec, message::LinuxContainerResources};
use serde_json::{Value, json};

/// What the kubelet asks for.
pub(super) const SCORE: i64 = 100;

/// The group of what runs on the node beside the pods, in that of all of them.
pub(super) const HOST_APPLICATION: &str = "nginx";

/// What pods ask for that hooks decide about.
#[derive(Clone, Copy, Debug)]
pub(super) struct Asked<'a> {
    /// The CPUs of the pod that has its own.
    cpus: &'a str,
    /// The score of its process.
    score: &'a str,
    /// Its part of the cache and of the bandwidth.
    caches: &'a str,
    /// What a pod does with the network at most.
    egress: &'a str,
    /// Its group of pods that share a core.
    cores: &'a str,
    /// What another has by its batch resources.
    batch: &'a str,
    /// What it does to a device at most.
    device: &'a str,
    /// A third one's mid resources, which no request tells: CPU requested, the limit of it, memory.
    mid: [&'a str; 3],
}

/// What the policy says in figures.
#[derive(Clone, Copy, Debug)]
pub(super) struct Figures<'a> {
    /// The CPUs that pods share.
    share_pool: &'a str,
    faster: &'a str,
    burst: &'a str,
    /// Of requested memory it is kept.
    kept: u32,
    bandwidth: u32,
    egress: u32,
    written: u32,
    weight: u32,
    latency: u32,
    /// From its request to its limit memory is slowed down this far.
    slowed: u32,
    /// Whether best-effort pods yield to all others.
    idle: bool,
    /// Whether their containers are killed whole, as a number.
    killed: u32,
}

/// With the alternatives of CPU QoS, which exclude each other.
#[derive(Clone, Copy, Debug)]
pub(super) enum CpuPolicy {
    CoreSched,
    GroupIdentity,
}

/// Half of a GPU, and an RDMA device.
const PART: &str = r#"{"gpu":[{"minor":3,"resources":{"koordinator.sh/gpu-core":"50",
    "koordinator.sh/gpu-memory":"8Gi","koordinator.sh/gpu-memory-ratio":"50"}}],
    "rdma":[{"minor":0,"id":"ffff:ff:00.0"}]}"#;

/// Where the one of the changing pods is that has batch resources, and the one that has mid resources.
const BATCH: usize = 2;
const MID: usize = 3;

// === impl Asked ===

impl<'a> Asked<'a> {
    /// With a score, and as the pods are created.
    pub(super) fn first(score: &'a str) -> Self {
        Self {
            cpus: "0",
            score,
            caches: r#"{"llc":{"schemata":{"range":[0,50]}},"mb":{"schemata":{"percent":55}}}"#,
            egress: r#"{"egressLimit":"8M"}"#,
            cores: "a",
            batch: r#"{"containers":{"main":{
                "requests":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"64Mi"},
                "limits":{"kubernetes.io/batch-cpu":"1000","kubernetes.io/batch-memory":"128Mi"}}}}"#,
            // Of a device that nobody has to have anything on for the kernel to take limits of it.
            device: r#"{"blocks":[{"name":"loop7","type":"device","ioCfg":{"writeBPS":4096}}]}"#,
            mid: ["250", "500", "64Mi"],
        }
    }

    /// Later, with another score.
    pub(super) fn later(score: &'a str, share_pool: &'a str) -> Self {
        Self {
            cpus: share_pool,
            score,
            caches: r#"{"llc":{"schemata":{"range":[50,100]}},"mb":{"schemata":{"percent":75}}}"#,
            egress: r#"{"egressLimit":"16M"}"#,
            cores: "b",
            batch: r#"{"containers":{"main":{
                "requests":{"kubernetes.io/batch-cpu":"250","kubernetes.io/batch-memory":"32Mi"},
                "limits":{"kubernetes.io/batch-cpu":"500","kubernetes.io/batch-memory":"64Mi"}}}}"#,
            device: r#"{"blocks":[{"name":"loop7","type":"device","ioCfg":{"writeBPS":8192}}]}"#,
            mid: ["500", "750", "96Mi"],
        }
    }

    /// One of each class and one with mid resources.
    pub(super) fn pods(&self, suffix: &str, share_pool: &str) -> [PodSpecOf; 5] {
        let named = |name: &str| format!("{name}{suffix}");
        let group = "koordinator.sh/core-sched-group-id";
        let mut pinned = classes::lsr(&named("pinned"));
        pinned.container = pinned.container.resources(LinuxContainerResources {
            oom_score_adj: SCORE,
            ..resources(512, 1 << 30)
        });
        let cpus = format!(r#"{{"cpuset":"{}"}}"#, self.cpus);
        pinned.pod = pinned
            .pod
            .annotation("scheduling.koordinator.sh/resource-status", &cpus)
            .annotation("koordinator.sh/oom-score-adj", self.score)
            .annotation("node.koordinator.sh/resctrl", self.caches);
        let mut web = classes::ls(&named("web"), share_pool);
        web.container = web.container.resources(resources(256, 256 << 20));
        web.pod = web
            .pod
            .label(group, self.cores)
            .label("koordinator.sh/gpu-isolation-provider", "HAMi-core")
            .annotation("koordinator.sh/networkQOS", self.egress)
            .annotation("scheduling.koordinator.sh/device-allocated", PART);
        let mut batch = classes::be(&named("batch"));
        batch.pod = batch
            .pod
            .label(group, "a")
            .annotation("node.koordinator.sh/extended-resource-spec", self.batch)
            .annotation("koordinator.sh/blkioQOS", self.device);
        let mut mid = classes::be(&named("mid"));
        mid.pod = PodSpec::new(&mid.name)
            .label("koordinator.sh/qosClass", "LS")
            .label(group, "a");
        let plain = classes::plain(&named("plain"), share_pool);
        [pinned, web, batch, mid, plain]
    }

    /// What a source tells of them that says no more of most than their creation.
    pub(super) fn told(&self) -> String {
        let pods = self.pods("", "");
        let pods = pods.iter().enumerate().map(|(at, pod)| {
            let config = pod.pod.config();
            let mut told = json!({
                "apiVersion": "v1",
                "kind": "Pod",
                "metadata": {
                    "name": pod.name,
                    "namespace": "default",
                    "uid": pod.pod.uid(),
                    "labels": config.labels,
                    "annotations": config.annotations,
                },
            });
            match at {
                BATCH => told["spec"] = self.of_batch(),
                MID => told["spec"] = self.of_mid(),
                _ => {}
            }
            told
        });
        let pods: Vec<Value> = pods.collect();
        json!({"apiVersion": "v1", "kind": "List", "items": pods}).to_string()
    }

    /// What the webhook has written the annotation from.
    fn of_batch(&self) -> Value {
        let said: Value = serde_json::from_str(self.batch).expect("it is JSON");
        json!({"containers": [{"name": "main", "resources": said["containers"]["main"]}]})
    }

    fn of_mid(&self) -> Value {
        let [requested, limit, memory] = self.mid;
        json!({"containers": [{"name": "main", "resources": {
            "requests": {"kubernetes.io/mid-cpu": requested, "kubernetes.io/mid-memory": memory},
            "limits": {"kubernetes.io/mid-cpu": limit, "kubernetes.io/mid-memory": memory},
        }}]})
    }
}

// === impl Figures ===

impl<'a> Figures<'a> {
    pub(super) fn first(share_pool: &'a str) -> Self {
        Self {
            share_pool,
            faster: "1.25",
            burst: "{policy: auto}",
            kept: 50,
            bandwidth: 20,
            egress: 20,
            written: 2_097_152,
            weight: 50,
            latency: 4_000,
            slowed: 50,
            idle: true,
            killed: 1,
        }
    }

    /// Other ones, with the first CPU as the shared one.
    pub(super) fn later() -> Self {
        Self {
            share_pool: "0",
            faster: "1.60",
            burst: "{policy: auto, cpuBurstPercent: 50}",
            kept: 100,
            bandwidth: 40,
            egress: 30,
            written: 3_145_728,
            weight: 40,
            latency: 6_000,
            slowed: 75,
            idle: false,
            killed: 0,
        }
    }

    /// All but what excludes each other is the same with both alternatives.
    pub(super) fn policy(&self, cpu_policy: CpuPolicy) -> String {
        let Self {
            burst,
            kept,
            bandwidth,
            egress,
            written,
            weight,
            latency,
            slowed,
            idle,
            killed,
            ..
        } = self;
        let of_node = self.of_node();
        let cpu_policy = match cpu_policy {
            CpuPolicy::CoreSched => "coreSched",
            CpuPolicy::GroupIdentity => "groupIdentity",
        };
        format!(
            r#"{of_node}---
apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {{name: node-1}}
spec:
  cpuBurstStrategy: {burst}
  systemStrategy: {{totalNetworkBandwidth: 1G}}
  hostApplications:
  - {{name: web, qos: LS, cgroupPath: {{base: Kubepods, relativePath: {HOST_APPLICATION}}}}}
  resourceQOSStrategy:
    policies: {{cpuPolicy: {cpu_policy}, netQOSPolicy: terway-qos}}
    lsrClass:
      cpuQOS: {{enable: true}}
      memoryQOS: {{enable: true, minLimitPercent: {kept}}}
      resctrlQOS: {{enable: true}}
    lsClass:
      cpuQOS: {{enable: true, coreExpeller: true}}
      resctrlQOS: {{enable: true, catRangeStartPercent: 20, mbaPercent: 90}}
      networkQOS: {{enable: true, egressRequest: 40, ingressRequest: 300M}}
    beClass:
      cpuQOS: {{enable: {idle}, schedIdle: 1}}
      memoryQOS:
        {{enable: true, lowLimitPercent: {kept}, throttlingPercent: {slowed}, oomKillGroup: {killed}}}
      resctrlQOS: {{enable: true, mbaPercent: {bandwidth}}}
      networkQOS: {{enable: true, egressLimit: {egress}}}
      blkioQOS: {{enable: true, blocks: [
        {{name: /dev/loop6, type: device, ioCfg: {{readBPS: 1048576, writeBPS: {written},
          readIOPS: 100, writeIOPS: 200, ioWeightPercent: {weight}}}}}]}}
    cgroupRoot:
      blkioQOS: {{enable: true, blocks: [
        {{name: /dev/loop6, type: device, ioCfg: {{readLatency: {latency}, enableUserModel: true,
          modelReadBPS: {written}, modelReadSeqIOPS: 1002, modelReadRandIOPS: 1003,
          modelWriteBPS: 1000004, modelWriteSeqIOPS: 1005, modelWriteRandIOPS: 1006}}}}]}}
"#
        )
    }

    /// The CPUs of the node, and how fast they are.
    fn of_node(&self) -> String {
        let Self {
            share_pool, faster, ..
        } = self;
        format!(
            r#"apiVersion: topology.node.k8s.io/v1alpha1
kind: NodeResourceTopology
metadata:
  name: node-1
  annotations:
    node.koordinator.sh/cpu-shared-pools: '[{{"socket":0,"node":0,"cpuset":"{share_pool}"}}]'
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

/// Half a CPU at most.
fn resources(cpu_shares: i64, memory_limit_in_bytes: i64) -> LinuxContainerResources {
    LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        cpu_shares,
        memory_limit_in_bytes,
        ..Default::default()
    }
}

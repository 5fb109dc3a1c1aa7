//! The NRI messages that the double sends and reads: a small part, written by hand from the field
//! tables of the protocol.
//!
//! Kept apart from the messages of the code under test on purpose: a wrong field number there must
//! not be matched by the same wrong number here.

use std::collections::BTreeMap;

use prost::Message;

/// Labels and annotations.
pub type Map = BTreeMap<String, String>;

// === ttrpc ===

#[derive(Clone, PartialEq, Message)]
pub struct Request {
    #[prost(string, tag = "1")]
    pub service: String,
    #[prost(string, tag = "2")]
    pub method: String,
    #[prost(bytes = "vec", tag = "3")]
    pub payload: Vec<u8>,
    #[prost(int64, tag = "4")]
    pub timeout_nano: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct Response {
    #[prost(message, optional, tag = "1")]
    pub status: Option<Status>,
    #[prost(bytes = "vec", tag = "2")]
    pub payload: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
pub struct Status {
    #[prost(int32, tag = "1")]
    pub code: i32,
    #[prost(string, tag = "2")]
    pub message: String,
}

// === What the plugin calls ===

#[derive(Clone, PartialEq, Message)]
pub struct RegisterPluginRequest {
    #[prost(string, tag = "1")]
    pub plugin_name: String,
    #[prost(string, tag = "2")]
    pub plugin_idx: String,
    #[prost(string, tag = "3")]
    pub nri_version: String,
}

/// The first field of the answers to Synchronize, UpdateContainer and
/// StopContainer.
#[derive(Clone, PartialEq, Message)]
pub struct Updates {
    #[prost(message, repeated, tag = "1")]
    pub update: Vec<ContainerUpdate>,
}

// === What the runtime asks ===

#[derive(Clone, PartialEq, Message)]
pub struct ConfigureRequest {
    #[prost(string, tag = "1")]
    pub config: String,
    #[prost(string, tag = "2")]
    pub runtime_name: String,
    #[prost(string, tag = "3")]
    pub runtime_version: String,
    #[prost(int64, tag = "4")]
    pub registration_timeout: i64,
    #[prost(int64, tag = "5")]
    pub request_timeout: i64,
    #[prost(string, tag = "6")]
    pub nri_version: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct ConfigureResponse {
    #[prost(int32, tag = "2")]
    pub events: i32,
}

#[derive(Clone, PartialEq, Message)]
pub struct SynchronizeRequest {
    #[prost(message, repeated, tag = "1")]
    pub pods: Vec<PodSandbox>,
    #[prost(message, repeated, tag = "2")]
    pub containers: Vec<Container>,
    #[prost(bool, tag = "3")]
    pub more: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct SynchronizeResponse {
    #[prost(message, repeated, tag = "1")]
    pub update: Vec<ContainerUpdate>,
    #[prost(bool, tag = "2")]
    pub more: bool,
}

/// CreateContainer, StopContainer, UpdateContainer and, since NRI 0.12, every event of its own.
#[derive(Clone, PartialEq, Message)]
pub struct EventRequest {
    #[prost(message, optional, tag = "1")]
    pub pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "2")]
    pub container: Option<Container>,
    /// Of UpdateContainer alone.
    #[prost(message, optional, tag = "3")]
    pub linux_resources: Option<LinuxResources>,
}

#[derive(Clone, PartialEq, Message)]
pub struct UpdatePodSandboxRequest {
    #[prost(message, optional, tag = "1")]
    pub pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "2")]
    pub overhead_linux_resources: Option<LinuxResources>,
    #[prost(message, optional, tag = "3")]
    pub linux_resources: Option<LinuxResources>,
}

/// The other events before NRI 0.12.
#[derive(Clone, PartialEq, Message)]
pub struct StateChangeEvent {
    #[prost(int32, tag = "1")]
    pub event: i32,
    #[prost(message, optional, tag = "2")]
    pub pod: Option<PodSandbox>,
    #[prost(message, optional, tag = "3")]
    pub container: Option<Container>,
}

#[derive(Clone, PartialEq, Message)]
pub struct CreateContainerResponse {
    #[prost(message, optional, tag = "1")]
    pub adjust: Option<ContainerAdjustment>,
    #[prost(message, repeated, tag = "2")]
    pub update: Vec<ContainerUpdate>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerAdjustment {
    #[prost(btree_map = "string, string", tag = "2")]
    pub annotations: Map,
    #[prost(message, optional, tag = "6")]
    pub linux: Option<LinuxContainerAdjustment>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxContainerAdjustment {
    #[prost(message, optional, tag = "2")]
    pub resources: Option<LinuxResources>,
}

#[derive(Clone, PartialEq, Message)]
pub struct ContainerUpdate {
    #[prost(string, tag = "1")]
    pub container_id: String,
    #[prost(message, optional, tag = "2")]
    pub linux: Option<LinuxContainerUpdate>,
    #[prost(bool, tag = "3")]
    pub ignore_failure: bool,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxContainerUpdate {
    #[prost(message, optional, tag = "1")]
    pub resources: Option<LinuxResources>,
}

// === Pods and containers ===

#[derive(Clone, PartialEq, Message)]
pub struct PodSandbox {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub name: String,
    #[prost(string, tag = "3")]
    pub uid: String,
    #[prost(string, tag = "4")]
    pub namespace: String,
    #[prost(btree_map = "string, string", tag = "5")]
    pub labels: Map,
    #[prost(btree_map = "string, string", tag = "6")]
    pub annotations: Map,
    #[prost(string, tag = "7")]
    pub runtime_handler: String,
    #[prost(message, optional, tag = "8")]
    pub linux: Option<LinuxPodSandbox>,
    #[prost(uint32, tag = "9")]
    pub pid: u32,
    /// Since NRI 0.8.
    #[prost(string, repeated, tag = "10")]
    pub ips: Vec<String>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxPodSandbox {
    #[prost(message, optional, tag = "2")]
    pub pod_resources: Option<LinuxResources>,
    #[prost(string, tag = "3")]
    pub cgroup_parent: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct Container {
    #[prost(string, tag = "1")]
    pub id: String,
    #[prost(string, tag = "2")]
    pub pod_sandbox_id: String,
    #[prost(string, tag = "3")]
    pub name: String,
    #[prost(int32, tag = "4")]
    pub state: i32,
    #[prost(btree_map = "string, string", tag = "5")]
    pub labels: Map,
    #[prost(btree_map = "string, string", tag = "6")]
    pub annotations: Map,
    #[prost(string, repeated, tag = "8")]
    pub env: Vec<String>,
    #[prost(message, optional, tag = "11")]
    pub linux: Option<LinuxContainer>,
    /// Since NRI 0.10.
    #[prost(int64, tag = "14")]
    pub created_at: i64,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxContainer {
    #[prost(message, optional, tag = "3")]
    pub resources: Option<LinuxResources>,
    #[prost(message, optional, tag = "4")]
    pub oom_score_adj: Option<OptionalI64>,
    #[prost(string, tag = "5")]
    pub cgroups_path: String,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxResources {
    #[prost(message, optional, tag = "1")]
    pub memory: Option<LinuxMemory>,
    #[prost(message, optional, tag = "2")]
    pub cpu: Option<LinuxCpu>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxMemory {
    #[prost(message, optional, tag = "1")]
    pub limit: Option<OptionalI64>,
}

#[derive(Clone, PartialEq, Message)]
pub struct LinuxCpu {
    #[prost(message, optional, tag = "1")]
    pub shares: Option<OptionalU64>,
    #[prost(message, optional, tag = "2")]
    pub quota: Option<OptionalI64>,
    #[prost(message, optional, tag = "3")]
    pub period: Option<OptionalU64>,
    #[prost(string, tag = "6")]
    pub cpus: String,
}

/// OptionalInt and OptionalInt64, which are the same on the wire.
#[derive(Clone, Copy, PartialEq, Message)]
pub struct OptionalI64 {
    #[prost(int64, tag = "1")]
    pub value: i64,
}

#[derive(Clone, Copy, PartialEq, Message)]
pub struct OptionalU64 {
    #[prost(uint64, tag = "1")]
    pub value: u64,
}

/// Decodes what has to be such a message and nothing more: `None` if a field is unknown, which what a
/// plugin says must not have.
pub(super) fn exactly<M: Message + Default>(bytes: &[u8]) -> Option<M> {
    let message = M::decode(bytes).ok()?;
    (message.encoded_len() == bytes.len()).then_some(message)
}

// === impl LinuxResources ===

impl LinuxResources {
    /// What a best-effort container asks for.
    pub fn best_effort() -> Self {
        Self {
            cpu: Some(LinuxCpu {
                shares: Some(OptionalU64 { value: 2 }),
                ..LinuxCpu::default()
            }),
            memory: None,
        }
    }
}

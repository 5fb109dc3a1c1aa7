//! What the contract tests share: a proxy between a scripted runtime and clients that send every
//! byte as told, and requests whose every byte is known.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of it"
)]

pub mod asked;
pub mod bystander;
pub mod frame;
pub mod inside;
pub mod log;
pub mod node;
pub mod pod;
pub mod scripted_hook;
pub mod wire;

/// The claimed calls, one that nobody claims, and one that has no end.
pub mod method {
    pub const RUN: &str = "/runtime.v1.RuntimeService/RunPodSandbox";
    pub const CREATE: &str = "/runtime.v1.RuntimeService/CreateContainer";
    pub const START: &str = "/runtime.v1.RuntimeService/StartContainer";
    pub const EVENTS: &str = "/runtime.v1.RuntimeService/GetContainerEvents";
    pub const UPDATE: &str = "/runtime.v1.RuntimeService/UpdateContainerResources";
    pub const STATUS: &str = "/runtime.v1.RuntimeService/Status";
    /// What each list begins with.
    pub const LIST: &str = "/runtime.v1.RuntimeService/ListPodSandbox";
    pub const SANDBOX_STATUS: &str = "/runtime.v1.RuntimeService/PodSandboxStatus";
}

//! A node in small: a private containerd, a kubelet's cgroup tree and the proxy in front, for the
//! demo and for the tests of the node tier.
//!
//! Expected values are literals in [`classes`]; nothing here uses the code under test but by its
//! sockets, its flags and the kernel.
#![forbid(unsafe_code)]
#![allow(
    clippy::missing_errors_doc,
    reason = "an error ends the test, and says why"
)]

pub mod churn;
pub mod classes;
pub mod demo;
pub mod every_hook;
pub mod fronts;
mod node;
pub mod promise;
mod proxy;
pub mod rdma;
pub mod readme;
pub mod static_pod;
pub mod update;
pub mod vm;
pub mod witness;
pub mod wrong_policy;

pub use self::{
    node::{Node, RunningPod},
    proxy::{Front, Proxy, ProxyOptions, binary},
};

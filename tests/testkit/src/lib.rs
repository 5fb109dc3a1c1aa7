//! The real parts and the doubles that tests, demo and benchmark run on.
//!
//! Real parts first: containerd and CRI-O with runc ([`Runtime`]), the kernel's cgroups ([`PodCgroups`]),
//! a stock kernel for a virtual machine. Doubles only for what a real part cannot do on command:
//! a runtime that answers by script and records every byte ([`scripted`]), one that speaks NRI as five
//! generations do ([`nri`]), a client that sends every byte as told ([`RawClient`]), a plain byte relay
//! and a plugin that says nothing to measure against.
//!
//! Nothing here uses the code under test: messages, framing and cgroup paths are this crate's own.
//! Whatever it starts or creates belongs to a [`Testbed`] and disappears with it, however its owner
//! ends.

#![forbid(unsafe_code)]
#![allow(
    clippy::missing_errors_doc,
    reason = "an error ends the test, and says why"
)]

pub mod byte_relay;
mod cgroup;
mod command;
pub mod cri;
mod kubelet;
pub mod nri;
pub mod poll;
pub mod process;
mod raw;
mod runtime;
pub mod scripted;
pub mod setup;
mod testbed;
mod wire;

pub use cgroup::{CgroupHierarchy, PodCgroup, PodCgroups, PodQos};
pub use kubelet::{CLIENT_PEM, Kubelet, KubeletError, kubelet_pods};
pub use raw::{RawClient, RawEnd, RawError, RawReply, RawRequest, RawStream};
pub use runtime::{NriPlugin, OTHER_HANDLER, Options, Parts, Runtime, RuntimeError};
pub use setup::{Cache, ContainerdVersion, RuntimeKind, SetupError};
pub use testbed::{Testbed, TestbedError};
pub use wire::{Frame, Frames};

//! NRI messages as far as they are looked at or written.
//!
//! One set of types serves every version of NRI: nothing was ever renumbered. Fields that are not
//! listed in `nri/nri.proto` are skipped, so a message that was decoded here is for looking at. What
//! is answered is written anew: an adjustment says what to change and nothing else.
//!
//! Presence is explicit, as NRI has it: a wrapper that is there says its value, zero too. Only
//! `cpus` and `mems` have none; the empty string is "not said" there.

mod event;

pub use self::event::EventMask;
pub use self::generated::*;

use crate::{
    cri::UNIFIED,
    wire::{self, Keep},
};
use prost::Message;

#[allow(
    clippy::doc_markdown,
    clippy::enum_variant_names,
    reason = "the code is generated"
)]
mod generated {
    include!("../generated/nri.rs");
}

/// Names on the wire.
pub mod name {
    /// Served by the plugin.
    pub const PLUGIN: &str = "nri.pkg.api.v1alpha1.Plugin";
    /// Served by the runtime.
    pub const RUNTIME: &str = "nri.pkg.api.v1alpha1.Runtime";
}

macro_rules! read {
    ($($message:ident),+ $(,)?) => {$(
        impl $message {
            /// Decodes the fields that are looked at. `None` if the bytes are no such message.
            pub fn read(message: &[u8]) -> Option<Self> {
                Self::decode(message).ok()
            }
        }
    )+};
}

read!(ConfigureRequest);

macro_rules! read_keeping {
    ($($message:ident: $fields:expr;)+) => {$(
        impl $message {
            /// Decodes the fields that are looked at, and of labels and annotations those whose key
            /// `keep` takes. `None` if the bytes are no such message.
            ///
            /// A runtime sends every pod's and container's whole state with each event, most of
            /// which nobody asks for; an entry that nobody asks for may be no UTF-8.
            pub fn read_keeping(message: &[u8], keep: impl Fn(&[u8]) -> bool) -> Option<Self> {
                Self::decode(&*wire::select(message, $fields, &keep).ok()?).ok()
            }
        }
    )+};
}

/// The fields of a [`PodSandbox`].
const POD: Keep = Keep::Fields(&[
    (1, Keep::Whole),
    (2, Keep::Whole),
    (3, Keep::Whole),
    (4, Keep::Whole),
    (5, Keep::Entries),
    (6, Keep::Entries),
    (7, Keep::Whole),
    (8, POD_LINUX),
    (9, Keep::Whole),
]);

/// The fields of a [`LinuxPodSandbox`].
const POD_LINUX: Keep = Keep::Fields(&[(1, RESOURCES), (2, RESOURCES), (3, Keep::Whole)]);

/// The fields of a [`Container`].
const CONTAINER: Keep = Keep::Fields(&[
    (1, Keep::Whole),
    (2, Keep::Whole),
    (3, Keep::Whole),
    (4, Keep::Whole),
    (5, Keep::Entries),
    (6, Keep::Entries),
    (8, Keep::Starting("LD_PRELOAD=")),
    (11, CONTAINER_LINUX),
    (12, Keep::Whole),
]);

/// The fields of a [`LinuxContainer`]. The others are long, as seccomp is.
const CONTAINER_LINUX: Keep = Keep::Fields(&[
    (2, DEVICE),
    (3, RESOURCES),
    (4, Keep::Whole),
    (5, Keep::Whole),
]);

/// The path of a [`LinuxDevice`].
const DEVICE: Keep = Keep::Fields(&[(1, Keep::Whole)]);

/// The fields of a [`LinuxResources`]. Rules for devices are left out.
const RESOURCES: Keep = Keep::Fields(&[
    (1, Keep::Whole),
    (2, Keep::Whole),
    (4, Keep::Whole),
    (5, Keep::Whole),
    (6, Keep::Named(UNIFIED)),
]);

read_keeping! {
    SynchronizeRequest: &[(1, POD), (2, CONTAINER), (3, Keep::Whole)];
    CreateContainerRequest: &[(1, POD), (2, CONTAINER)];
    UpdateContainerRequest: &[(1, POD), (2, CONTAINER), (3, RESOURCES)];
    StopContainerRequest: &[(1, POD), (2, CONTAINER)];
    UpdatePodSandboxRequest: &[(1, POD), (2, RESOURCES), (3, RESOURCES)];
    StateChangeEvent: &[(1, Keep::Whole), (2, POD), (3, CONTAINER)];
    EventRequest: &[(1, POD), (2, CONTAINER)];
}

macro_rules! written {
    ($($message:ident),+ $(,)?) => {$(
        impl $message {
            /// The message as bytes.
            pub fn to_bytes(&self) -> Vec<u8> {
                self.encode_to_vec()
            }
        }
    )+};
}

written!(
    RegisterPluginRequest,
    ConfigureResponse,
    SynchronizeResponse,
    CreateContainerResponse,
    UpdateContainerResponse,
    StopContainerResponse,
);

// === impl ContainerUpdate ===

impl ContainerUpdate {
    /// A change of one container's resources. What `resources` does not say stays as it is.
    pub fn new(container_id: impl Into<String>, resources: LinuxResources) -> Self {
        Self {
            container_id: container_id.into(),
            linux: Some(LinuxContainerUpdate {
                resources: Some(resources),
            }),
            ignore_failure: false,
        }
    }
}

// === impl LinuxResources ===

impl LinuxResources {
    /// Whether it says nothing, in whatever shape.
    pub fn is_empty(&self) -> bool {
        let Self {
            memory,
            cpu,
            blockio_class,
            rdt_class,
            unified,
        } = self;
        memory
            .as_ref()
            .is_none_or(|it| *it == LinuxMemory::default())
            && cpu.as_ref().is_none_or(|it| *it == LinuxCpu::default())
            && blockio_class.is_none()
            && rdt_class.is_none()
            && unified.is_empty()
    }
}

#[cfg(test)]
mod tests;

//! CRI messages as far as they are looked at, decoded from a copy.
//!
//! One set of types serves `runtime.v1` and `runtime.v1alpha2`: the numbers are the same. Fields
//! that are not listed in `cri/runtime.proto` are skipped, so a message decoded here must never be
//! sent on in place of the one it came from; [`wire`](crate::wire) changes that one instead.
//!
//! Zero and the empty string are "not said" in these types, as CRI has it.

use prost::Message;

#[allow(
    clippy::doc_markdown,
    clippy::enum_variant_names,
    reason = "the code is generated"
)]
mod generated {
    include!("generated/cri.rs");
}

pub use self::generated::*;

macro_rules! requests {
    ($($request:ident),+ $(,)?) => {$(
        impl $request {
            /// Decodes the fields that are looked at. `None` if the bytes are no such message; they
            /// are passed on as they came then, and the runtime says what is wrong with them.
            pub fn read(message: &[u8]) -> Option<Self> {
                Self::decode(message).ok()
            }
        }
    )+};
}

requests!(
    RunPodSandboxRequest,
    StopPodSandboxRequest,
    RemovePodSandboxRequest,
    UpdatePodSandboxResourcesRequest,
    CreateContainerRequest,
    StartContainerRequest,
    StopContainerRequest,
    RemoveContainerRequest,
    UpdateContainerResourcesRequest,
);

// === impl ContainerConfig ===

impl ContainerConfig {
    /// What the container is asked to have. `None` where the request has no such message, which is
    /// not the same as an empty one: containerd sets `oom_score_adj` to 0 as soon as there is one.
    pub fn resources(&self) -> Option<&LinuxContainerResources> {
        self.linux.as_ref()?.resources.as_ref()
    }
}

// === impl PodSandboxConfig ===

impl PodSandboxConfig {
    /// What the kubelet says that the pod's containers have together.
    pub fn resources(&self) -> Option<&LinuxContainerResources> {
        self.linux.as_ref()?.resources.as_ref()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `config { metadata { name: "a" } linux { resources { cpu_shares: 2 } } }` and an unknown
    /// field 99, by hand from the protobuf encoding.
    const REQUEST: &[u8] = b"\x12\x0b\x0a\x03\x0a\x01a\x7a\x04\x0a\x02\x18\x02\x9a\x06\x01x";

    #[test]
    fn a_request_is_read_past_what_is_unknown() {
        let config = CreateContainerRequest::read(REQUEST)
            .unwrap()
            .config
            .unwrap();
        assert_eq!(config.resources().unwrap().cpu_shares, 2);
        assert_eq!(config.metadata.unwrap().name, "a");
    }

    #[test]
    fn what_is_no_request_is_none() {
        assert_eq!(
            CreateContainerRequest::read(&REQUEST[..REQUEST.len() - 1]),
            None
        );
        assert_eq!(StopContainerRequest::read(b"\x0a\x01\xff"), None);
    }
}

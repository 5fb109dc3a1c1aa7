//! CRI messages as far as they are looked at, decoded from a copy.
//!
//! One set of types serves `runtime.v1` and `runtime.v1alpha2`: the numbers are the same. Fields
//! that are not listed in `cri/runtime.proto` are skipped, so a message decoded here must never be
//! sent on in place of the one it came from; [`wire`] changes that one instead.
//!
//! Zero and the empty string are "not said" in these types, as CRI has it.

use crate::wire::{self, Keep};
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
    CreateContainerRequest,
    UpdateContainerResourcesRequest,
    UpdatePodSandboxResourcesRequest,
);

macro_rules! requests_of_pods {
    ($($request:ident: $fields:expr;)+) => {$(
        impl $request {
            /// As [`read`](Self::read), with only those labels and annotations whose key `keep`
            /// takes. It is several times as fast for a pod with many, and one that nobody asks for
            /// may be no UTF-8.
            pub fn read_keeping(message: &[u8], keep: impl Fn(&str) -> bool) -> Option<Self> {
                let keep = |key: &[u8]| str::from_utf8(key).is_ok_and(&keep);
                Self::read(&wire::select(message, $fields, &keep).ok()?)
            }
        }
    )+};
}

/// The fields of a [`PodSandboxConfig`].
const POD: Keep = Keep::Fields(&[
    (1, Keep::Whole),
    (6, Keep::Entries),
    (7, Keep::Entries),
    (8, Keep::Whole),
]);

/// The fields of a [`ContainerConfig`].
const CONTAINER: Keep = Keep::Fields(&[
    (1, Keep::Whole),
    (9, Keep::Entries),
    (10, Keep::Entries),
    (15, Keep::Whole),
]);

requests_of_pods! {
    RunPodSandboxRequest: &[(1, POD), (2, Keep::Whole)];
    CreateContainerRequest: &[(1, Keep::Whole), (2, CONTAINER), (3, POD)];
}

// === impl ContainerConfig ===

impl ContainerConfig {
    /// What the container is asked to have. `None` where the request has no such message, which is
    /// not the same as an empty one: containerd sets `oom_score_adj` to 0 as soon as there is one.
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
    fn labels_and_annotations_that_nobody_asks_for_are_left_out() {
        let map = |keys: &str| {
            keys.split(' ')
                .map(|k| (k.to_owned(), k.to_uppercase()))
                .collect()
        };
        let config = |labels, annotations| PodSandboxConfig {
            labels: map(labels),
            annotations: map(annotations),
            ..PodSandboxConfig::default()
        };
        let request = |labels, annotations| CreateContainerRequest {
            pod_sandbox_id: "s".to_owned(),
            config: Some(ContainerConfig {
                labels: map(labels),
                annotations: map(annotations),
                ..ContainerConfig::default()
            }),
            sandbox_config: Some(config(labels, annotations)),
        };
        let keep = |key: &str| key.starts_with('k');
        let full = request("a k1 b", "k2 c k3").encode_to_vec();
        let kept = CreateContainerRequest::read_keeping(&full, keep);
        assert_eq!(kept, Some(request("k1", "k2 k3")));

        let full = RunPodSandboxRequest {
            config: Some(config("k1 a", "b k2")),
            runtime_handler: "kata".to_owned(),
        };
        let kept = RunPodSandboxRequest::read_keeping(&full.encode_to_vec(), keep).unwrap();
        assert_eq!(
            (kept.config, kept.runtime_handler),
            (Some(config("k1", "k2")), "kata".to_owned())
        );
    }

    #[test]
    fn an_annotation_that_nobody_asks_for_may_be_no_utf_8() {
        // sandbox_config { annotations { k: "\xff" } }
        let request = b"\x1a\x08\x3a\x06\x0a\x01k\x12\x01\xff";
        assert_eq!(CreateContainerRequest::read(request), None);
        assert!(CreateContainerRequest::read_keeping(request, |_| false).is_some());
        assert_eq!(
            CreateContainerRequest::read_keeping(request, |_| true),
            None
        );
    }

    #[test]
    fn what_is_no_request_is_none() {
        assert_eq!(
            CreateContainerRequest::read(&REQUEST[..REQUEST.len() - 1]),
            None
        );
        assert_eq!(UpdateContainerResourcesRequest::read(b"\x0a\x01\xff"), None);
    }
}

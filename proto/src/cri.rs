//! CRI messages as far as they are looked at, decoded from a copy; of a [`Creation`] the pod is read where
//! it lies.
//!
//! One set of types serves `runtime.v1` and `runtime.v1alpha2`: the numbers are the same. Fields
//! that are not listed in `cri/runtime.proto` are skipped, so a message decoded here must never be
//! sent on in place of the one it came from; [`wire`] changes that one instead.
//!
//! Zero and the empty string are "not said" in these types, as CRI has it.

mod creation;

pub use self::creation::{Creation, LentPod};

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
    ($($request:ident: $fields:expr;)+) => {$(
        impl $request {
            /// Decodes the fields that are looked at. `None` if the bytes are no such message; they
            /// are passed on as they came then, and the runtime says what is wrong with them.
            pub fn read(message: &[u8]) -> Option<Self> {
                Self::decode(&*wire::select(message, $fields, &|_| false).ok()?).ok()
            }
        }
    )+};
}

macro_rules! messages_of_pods {
    ($($message:ident: $fields:expr;)+) => {$(
        impl $message {
            /// Decodes the fields that are looked at, and of labels and annotations those whose key
            /// `keep` takes: a pod may have tens of thousands, and each would take ten times its length.
            /// `None` if the bytes are no such message. An entry that nobody asks for may be no UTF-8.
            pub fn read_keeping(message: &[u8], keep: impl Fn(&[u8]) -> bool) -> Option<Self> {
                Self::decode(&*wire::select(message, $fields, &keep).ok()?).ok()
            }
        }
    )+};
}

/// The files of cgroup v2 that are looked at among those that a request names in `unified`. Nobody bounds
/// how many it names, and each would take a hundred bytes of memory and a microsecond.
pub const UNIFIED: &[&str] = &[
    "memory.min",
    "memory.low",
    "memory.high",
    "memory.oom.group",
];

/// The fields of a [`LinuxContainerResources`].
const RESOURCES: Keep = Keep::Fields(&[
    (1, Keep::Whole),
    (2, Keep::Whole),
    (3, Keep::Whole),
    (4, Keep::Whole),
    (5, Keep::Whole),
    (6, Keep::Whole),
    (7, Keep::Whole),
    (9, Keep::Named(UNIFIED)),
    (10, Keep::Whole),
]);

/// The fields of a [`PodSandboxConfig`].
const POD: Keep = Keep::Fields(&[
    (1, Keep::Whole),
    (6, Keep::Entries),
    (7, Keep::Entries),
    (8, Keep::Whole),
]);

/// The fields of a [`ContainerConfig`]. Nobody looks at labels and annotations of a request for it: its
/// pod's count.
const CONTAINER: &[(u32, Keep)] = &[(1, Keep::Whole), (15, Keep::Fields(&[(1, RESOURCES)]))];

messages_of_pods! {
    RunPodSandboxRequest: &[(1, POD), (2, Keep::Whole)];
    PodSandbox: &[
        (1, Keep::Whole),
        (2, Keep::Whole),
        (3, Keep::Whole),
        (4, Keep::Whole),
        (5, Keep::Entries),
        (6, Keep::Entries),
        (7, Keep::Whole),
    ];
    Container: &[
        (1, Keep::Whole),
        (2, Keep::Whole),
        (3, Keep::Whole),
        (6, Keep::Whole),
        (7, Keep::Whole),
        (9, Keep::Entries),
    ];
}

requests! {
    UpdateContainerResourcesRequest: &[(1, Keep::Whole), (2, RESOURCES)];
    UpdatePodSandboxResourcesRequest: &[(1, Keep::Whole), (2, RESOURCES), (3, RESOURCES)];
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

    #[test]
    fn labels_and_annotations_that_nobody_asks_for_are_left_out() {
        let map = |keys: &str| {
            keys.split_whitespace()
                .map(|k| (k.to_owned(), k.to_uppercase()))
                .collect()
        };
        let config = |labels, annotations| PodSandboxConfig {
            labels: map(labels),
            annotations: map(annotations),
            ..PodSandboxConfig::default()
        };
        let full = RunPodSandboxRequest {
            config: Some(config("k1 a", "b k2")),
            runtime_handler: "kata".to_owned(),
        };
        let keep = |key: &[u8]| key.starts_with(b"k");
        let kept = RunPodSandboxRequest::read_keeping(&full.encode_to_vec(), keep).unwrap();
        assert_eq!(
            (kept.config, kept.runtime_handler),
            (Some(config("k1", "k2")), "kata".to_owned())
        );
    }

    #[test]
    fn of_what_is_listed_labels_and_annotations_that_nobody_asks_for_are_left_out() {
        // id: "s" state: 1 labels { k1: "" } labels { a: "" } annotations { a: "\xff" }
        // annotations { k2: "v" } runtime_handler: "h"
        let pod = b"\x0a\x01s\x18\x01\x2a\x04\x0a\x02k1\x2a\x03\x0a\x01a\x32\x06\x0a\x01a\x12\x01\xff\x32\x07\x0a\x02k2\x12\x01v\x3a\x01h";
        let keep = |key: &[u8]| key.starts_with(b"k");
        let kept = PodSandbox {
            id: "s".to_owned(),
            state: 1,
            labels: [("k1".to_owned(), String::new())].into(),
            annotations: [("k2".to_owned(), "v".to_owned())].into(),
            runtime_handler: "h".to_owned(),
            ..PodSandbox::default()
        };
        assert_eq!(PodSandbox::read_keeping(pod, keep), Some(kept));

        // id: "c" pod_sandbox_id: "s" state: 1 labels { k1: "" } annotations { a: "\xff" }
        // annotations { k2: "v" }
        let container = b"\x0a\x01c\x12\x01s\x30\x01\x42\x04\x0a\x02k1\x4a\x06\x0a\x01a\x12\x01\xff\x4a\x07\x0a\x02k2\x12\x01v";
        let kept = Container {
            id: "c".to_owned(),
            pod_sandbox_id: "s".to_owned(),
            state: 1,
            annotations: [("k2".to_owned(), "v".to_owned())].into(),
            ..Container::default()
        };
        assert_eq!(Container::read_keeping(container, keep), Some(kept));
        assert_eq!(Container::read_keeping(&container[..4], keep), None);
    }

    #[test]
    fn of_files_that_a_request_names_those_are_read_that_are_looked_at() {
        let named = |files: &[&str]| LinuxContainerResources {
            cpu_period: 1,
            cpu_quota: 2,
            cpu_shares: 3,
            memory_limit_in_bytes: 4,
            oom_score_adj: 5,
            cpuset_cpus: "6".to_owned(),
            cpuset_mems: "7".to_owned(),
            unified: files
                .iter()
                .map(|file| ((*file).to_owned(), "8".to_owned()))
                .collect(),
            memory_swap_limit_in_bytes: 9,
        };
        let looked_at = [
            "memory.min",
            "memory.low",
            "memory.high",
            "memory.oom.group",
        ];
        let all = named(&[&looked_at[..], &["memory.max", "hugetlb.2MB.max"]].concat());
        let kept = Some(named(&looked_at));

        let request = UpdateContainerResourcesRequest {
            container_id: "c".to_owned(),
            linux: Some(all.clone()),
        };
        let read = UpdateContainerResourcesRequest::read(&request.encode_to_vec()).unwrap();
        assert_eq!((read.container_id.as_str(), &read.linux), ("c", &kept));

        let request = UpdatePodSandboxResourcesRequest {
            pod_sandbox_id: "p".to_owned(),
            overhead: Some(all.clone()),
            resources: Some(all.clone()),
        };
        let read = UpdatePodSandboxResourcesRequest::read(&request.encode_to_vec()).unwrap();
        assert_eq!(read.pod_sandbox_id, "p");
        assert_eq!((&read.overhead, &read.resources), (&kept, &kept));

        let linux = Some(LinuxContainerConfig {
            resources: Some(all),
        });
        let request = CreateContainerRequest {
            config: Some(ContainerConfig {
                linux,
                ..ContainerConfig::default()
            }),
            ..CreateContainerRequest::default()
        };
        let request = request.encode_to_vec();
        let read = Creation::read(&request, |_| false).unwrap();
        assert_eq!(read.config.unwrap().resources(), kept.as_ref());
    }

    #[test]
    fn what_is_no_request_is_none() {
        assert_eq!(UpdateContainerResourcesRequest::read(b"\x0a\x01\xff"), None);
    }
}

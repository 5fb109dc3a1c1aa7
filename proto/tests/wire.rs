//! A request with a patch behind it decodes to the request with the named fields changed and
//! nothing else: checked with another decoder (prost) on messages fuller than those we list.

use koord_model::Bind;
use koord_proto::{
    cri,
    wire::{
        self, CreateContainerPatch, Entry, ResourcesPatch, UpdateContainerResourcesPatch, WireError,
    },
};
use proptest::{collection, option, prelude::*};
use prost::Message;
use std::collections::BTreeMap;

/// CreateContainerRequest with fields that we do not list and fields that nobody knows.
#[derive(Clone, PartialEq, Message)]
struct Create {
    #[prost(string, tag = "1")]
    pod_sandbox_id: String,
    #[prost(message, optional, tag = "2")]
    config: Option<Config>,
    #[prost(bytes, optional, tag = "3")]
    sandbox_config: Option<Vec<u8>>,
    #[prost(bytes, optional, tag = "536870911")]
    unknown: Option<Vec<u8>>,
}

#[derive(Clone, PartialEq, Message)]
struct Mount {
    #[prost(string, tag = "1")]
    container_path: String,
    #[prost(string, tag = "2")]
    host_path: String,
    #[prost(bool, tag = "3")]
    readonly: bool,
}

#[derive(Clone, PartialEq, Message)]
struct Device {
    #[prost(string, tag = "1")]
    container_path: String,
    #[prost(string, tag = "2")]
    host_path: String,
    #[prost(string, tag = "3")]
    permissions: String,
}

#[derive(Clone, PartialEq, Message)]
struct Config {
    #[prost(string, repeated, tag = "3")]
    command: Vec<String>,
    #[prost(message, repeated, tag = "6")]
    envs: Vec<Env>,
    #[prost(message, repeated, tag = "7")]
    mounts: Vec<Mount>,
    #[prost(message, repeated, tag = "8")]
    devices: Vec<Device>,
    #[prost(btree_map = "string, string", tag = "9")]
    labels: BTreeMap<String, String>,
    #[prost(btree_map = "string, string", tag = "10")]
    annotations: BTreeMap<String, String>,
    #[prost(bool, tag = "14")]
    tty: bool,
    #[prost(message, optional, tag = "15")]
    linux: Option<Linux>,
    #[prost(fixed32, repeated, tag = "99")]
    unknown: Vec<u32>,
}

#[derive(Clone, PartialEq, Message)]
struct Env {
    #[prost(string, tag = "1")]
    key: String,
    /// Any bytes.
    #[prost(bytes, tag = "2")]
    value: Vec<u8>,
}

#[derive(Clone, PartialEq, Message)]
struct Linux {
    #[prost(message, optional, tag = "1")]
    resources: Option<Resources>,
    #[prost(bytes, optional, tag = "2")]
    security_context: Option<Vec<u8>>,
    #[prost(fixed64, optional, tag = "77")]
    unknown: Option<u64>,
}

#[derive(Clone, PartialEq, Message)]
struct Resources {
    #[prost(int64, tag = "1")]
    cpu_period: i64,
    #[prost(int64, tag = "2")]
    cpu_quota: i64,
    #[prost(int64, tag = "3")]
    cpu_shares: i64,
    #[prost(int64, tag = "4")]
    memory_limit_in_bytes: i64,
    #[prost(int64, tag = "5")]
    oom_score_adj: i64,
    #[prost(string, tag = "6")]
    cpuset_cpus: String,
    #[prost(string, tag = "7")]
    cpuset_mems: String,
    #[prost(btree_map = "string, string", tag = "9")]
    unified: BTreeMap<String, String>,
    #[prost(int64, tag = "10")]
    memory_swap_limit_in_bytes: i64,
    #[prost(string, optional, tag = "1000")]
    unknown: Option<String>,
}

/// The other request has the same resources in another place.
#[derive(Clone, PartialEq, Message)]
struct Update {
    #[prost(string, tag = "1")]
    container_id: String,
    #[prost(message, optional, tag = "2")]
    linux: Option<Resources>,
    #[prost(btree_map = "string, string", tag = "4")]
    annotations: BTreeMap<String, String>,
}

fn text() -> impl Strategy<Value = String> {
    "[a-c/é]{0,3}"
}

fn map() -> impl Strategy<Value = BTreeMap<String, String>> {
    collection::btree_map(text(), text(), 0..4)
}

fn bytes() -> impl Strategy<Value = Vec<u8>> {
    collection::vec(any::<u8>(), 0..6)
}

fn entries() -> impl Strategy<Value = Vec<Entry>> {
    collection::vec((text(), text()), 0..4)
}

fn device(path: String) -> Device {
    Device {
        container_path: path.clone(),
        host_path: path,
        permissions: "rw".to_owned(),
    }
}

fn number() -> impl Strategy<Value = i64> {
    prop_oneof![Just(0), Just(-1), Just(i64::MIN), any::<i64>()]
}

prop_compose! {
    fn resources()(
        numbers in any::<[i64; 6]>(),
        cpuset_cpus in text(),
        cpuset_mems in text(),
        unified in map(),
        unknown in option::of(text()),
    ) -> Resources {
        let [cpu_period, cpu_quota, cpu_shares, memory, oom_score_adj, swap] = numbers;
        Resources {
            cpu_period,
            cpu_quota,
            cpu_shares,
            memory_limit_in_bytes: memory,
            oom_score_adj,
            cpuset_cpus,
            cpuset_mems,
            unified,
            memory_swap_limit_in_bytes: swap,
            unknown,
        }
    }
}

fn pairs(pairs: Vec<(String, Vec<u8>)>) -> Vec<Env> {
    let pairs = pairs.into_iter();
    pairs.map(|(key, value)| Env { key, value }).collect()
}

fn mounts(mounts: Vec<(String, String, bool)>) -> Vec<Mount> {
    let mounts = mounts.into_iter();
    mounts
        .map(|(container_path, host_path, readonly)| Mount {
            container_path,
            host_path,
            readonly,
        })
        .collect()
}

prop_compose! {
    fn config()(
        command in collection::vec(text(), 0..3),
        envs in collection::vec((text(), bytes()), 0..4),
        mounts in collection::vec((text(), text(), any::<bool>()), 0..3),
        devices in collection::vec(text(), 0..3),
        labels in map(),
        annotations in map(),
        tty in any::<bool>(),
        linux in option::of((option::of(resources()), option::of(bytes()), any::<Option<u64>>())),
        unknown in any::<[u32; 2]>(),
    ) -> Config {
        Config {
            command,
            envs: pairs(envs),
            mounts: self::mounts(mounts),
            devices: devices.into_iter().map(device).collect(),
            labels,
            annotations,
            tty,
            linux: linux.map(|(resources, security_context, unknown)| Linux {
                resources,
                security_context,
                unknown,
            }),
            unknown: unknown.to_vec(),
        }
    }
}

prop_compose! {
    fn create()(
        pod_sandbox_id in text(),
        config in option::of(config()),
        sandbox_config in option::of(bytes()),
        unknown in option::of(bytes()),
    ) -> Create {
        Create { pod_sandbox_id, config, sandbox_config, unknown }
    }
}

prop_compose! {
    /// A creation of which only the pod says much.
    fn creation()(
        pod_sandbox_id in text(),
        [name, uid, namespace, cgroup_parent] in [text(), text(), text(), text()],
        attempt in any::<u32>(),
        labels in collection::hash_map(text(), text(), 0..4),
        annotations in collection::hash_map(text(), text(), 0..4),
        has_pod in any::<bool>(),
    ) -> cri::CreateContainerRequest {
        let pod = cri::PodSandboxConfig {
            metadata: Some(cri::PodSandboxMetadata { name: name.clone(), uid, namespace, attempt }),
            labels,
            annotations,
            linux: Some(cri::LinuxPodSandboxConfig { cgroup_parent }),
        };
        cri::CreateContainerRequest {
            pod_sandbox_id,
            config: Some(cri::ContainerConfig {
                metadata: Some(cri::ContainerMetadata { name, attempt }),
                ..Default::default()
            }),
            sandbox_config: has_pod.then_some(pod),
        }
    }
}

prop_compose! {
    fn resources_patch()(
        numbers in [option::of(number()), option::of(number()), option::of(number()),
                    option::of(number()), option::of(number()), option::of(number())],
        cpuset_cpus in option::of(text()),
    ) -> ResourcesPatch {
        let [cpu_period, cpu_quota, cpu_shares, memory, swap, oom_score_adj] = numbers;
        ResourcesPatch {
            cpu_period,
            cpu_quota,
            cpu_shares,
            memory_limit_in_bytes: memory,
            memory_swap_limit_in_bytes: swap,
            oom_score_adj,
            cpuset_cpus,
        }
    }
}

/// What a patch of resources makes of `original`.
fn changed(original: Option<Resources>, patch: &ResourcesPatch) -> Option<Resources> {
    if patch.is_empty() {
        return original;
    }
    let before = original.unwrap_or_default();
    Some(Resources {
        cpu_period: patch.cpu_period.unwrap_or(before.cpu_period),
        cpu_quota: patch.cpu_quota.unwrap_or(before.cpu_quota),
        cpu_shares: patch.cpu_shares.unwrap_or(before.cpu_shares),
        memory_limit_in_bytes: patch
            .memory_limit_in_bytes
            .unwrap_or(before.memory_limit_in_bytes),
        memory_swap_limit_in_bytes: patch
            .memory_swap_limit_in_bytes
            .unwrap_or(before.memory_swap_limit_in_bytes),
        oom_score_adj: patch.oom_score_adj.unwrap_or(before.oom_score_adj),
        cpuset_cpus: patch.cpuset_cpus.clone().unwrap_or(before.cpuset_cpus),
        ..before
    })
}

fn patched<M: Message + Default>(original: &M, patch: &[u8]) -> M {
    let mut message = original.encode_to_vec();
    message.extend_from_slice(patch);
    M::decode(&*message).expect("a patched message is a message")
}

proptest! {
    #[test]
    fn a_patched_creation_differs_in_the_named_fields_only(
        original in create(),
        resources in resources_patch(),
        annotations in entries(),
        envs in entries(),
        binds in collection::vec((text(), any::<bool>()), 0..3),
        devices in collection::vec(text().prop_map(String::into_boxed_str), 0..3),
    ) {
        let binds = binds.into_iter().map(|(path, read_only)| Bind {
            path: path.into(),
            source: None,
            read_only,
        });
        let binds = binds.collect();
        let patch = CreateContainerPatch { resources, annotations, envs, binds, devices };
        let mut expected = original.clone();
        if patch != CreateContainerPatch::default() {
            let config = expected.config.get_or_insert_default();
            config.annotations.extend(patch.annotations.clone());
            config.envs.extend(patch.envs.iter().map(|(key, value)| Env {
                key: key.clone(),
                value: value.clone().into_bytes(),
            }));
            config.mounts.extend(patch.binds.iter().map(|bind| Mount {
                container_path: bind.path.to_string(),
                host_path: bind.path.to_string(),
                readonly: bind.read_only,
            }));
            let devices = patch.devices.iter().map(ToString::to_string);
            config.devices.extend(devices.map(device));
            if !patch.resources.is_empty() {
                let linux = config.linux.get_or_insert_default();
                linux.resources = changed(linux.resources.take(), &patch.resources);
            }
        }
        prop_assert_eq!(patched(&original, &patch.encode()), expected);
    }

    #[test]
    fn a_patched_update_differs_in_the_named_fields_only(
        container_id in text(),
        linux in option::of(resources()),
        annotations in map(),
        patch in resources_patch(),
    ) {
        let original = Update { container_id, linux, annotations };
        let mut expected = original.clone();
        expected.linux = changed(expected.linux.take(), &patch);
        let patch = UpdateContainerResourcesPatch { resources: patch };
        prop_assert_eq!(patched(&original, &patch.encode()), expected);
    }

    #[test]
    fn a_string_is_found_where_the_decoder_finds_it(original in create()) {
        let message = original.encode_to_vec();
        let id = Some(original.pod_sandbox_id).filter(|id| !id.is_empty());
        prop_assert_eq!(wire::string_field(&message, 1).map(str::to_owned), id);
    }

    #[test]
    fn a_cut_off_message_is_an_error_or_a_shorter_message(original in create(), cut in 0_usize..64) {
        let message = original.encode_to_vec();
        let cut = &message[..message.len().saturating_sub(cut)];
        let walked: Result<Vec<_>, WireError> = wire::fields(cut).collect();
        prop_assert!(walked.is_ok() || cri::CreateContainerRequest::decode(cut).is_err());
    }

    #[test]
    fn arbitrary_bytes_are_judged_as_the_decoder_judges_them(message in collection::vec(any::<u8>(), 0..48)) {
        let Ok(decoded) = cri::CreateContainerRequest::decode(&*message) else {
            return Ok(());
        };
        match wire::fields(&message).collect::<Result<Vec<_>, _>>() {
            Ok(walked) => prop_assert!(walked.len() <= message.len()),
            // The decoder skips groups, which CRI has none of.
            Err(WireError::WireType { wire_type: 3, .. }) => return Ok(()),
            Err(error) => prop_assert!(false, "{error}"),
        }
        // Also below the top; the walker refuses what no encoder writes.
        if let Some(read) = cri::Creation::read(&message, |_| true) {
            is_as_decoded(&read, &decoded)?;
        }
    }

    #[test]
    fn a_creation_is_read_as_the_decoder_reads_it(original in creation(), again in creation()) {
        // What comes twice is one message to a decoder.
        let message = [original.encode_to_vec(), again.encode_to_vec()].concat();
        let decoded = cri::CreateContainerRequest::decode(&*message).unwrap();
        is_as_decoded(&cri::Creation::read(&message, |_| true).unwrap(), &decoded)?;
    }
}

/// Holds what is looked at of a creation against all of it.
fn is_as_decoded(
    read: &cri::Creation<'_>,
    decoded: &cri::CreateContainerRequest,
) -> Result<(), TestCaseError> {
    let mut config = decoded.config.clone();
    if let Some(config) = &mut config {
        config.labels.clear();
        config.annotations.clear();
        let linux = config.linux.as_mut();
        if let Some(resources) = linux.and_then(|it| it.resources.as_mut()) {
            resources
                .unified
                .retain(|file, _| cri::UNIFIED.contains(&&**file));
        }
    }
    prop_assert_eq!(read.sandbox_id, &decoded.pod_sandbox_id);
    prop_assert_eq!(&read.config, &config);
    let (Some(pod), Some(all)) = (&read.pod, &decoded.sandbox_config) else {
        prop_assert!(read.pod.is_none() && decoded.sandbox_config.is_none());
        return Ok(());
    };
    let metadata = all.metadata.clone().unwrap_or_default();
    prop_assert_eq!(pod.name, &metadata.name);
    prop_assert_eq!(pod.uid, &metadata.uid);
    prop_assert_eq!(pod.namespace, &metadata.namespace);
    let linux = all.linux.clone().unwrap_or_default();
    prop_assert_eq!(pod.cgroup_parent, &linux.cgroup_parent);
    for (read, decoded) in [
        (&pod.labels, &all.labels),
        (&pod.annotations, &all.annotations),
    ] {
        prop_assert_eq!(read.len(), decoded.len());
        for (key, value) in read {
            prop_assert_eq!(decoded.get(*key).map(String::as_str), Some(*value));
        }
    }
    Ok(())
}

#[test]
fn the_length_of_a_patched_request_is_that_of_both_parts() {
    assert_eq!(wire::patched_length(&[0; 5], &[0; 3]), 8);
}

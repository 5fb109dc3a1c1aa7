//! Any bytes as a request. The walker never panics and sees what the decoder sees; a request with a
//! patch behind it decodes to the request with the named fields changed; leaving out map entries
//! changes nothing else.
//!
//! Input: one byte of flags for the patch, then the request.
#![no_main]

use koord_model::Bind;
use koord_proto::{
    cri::{
        CreateContainerRequest, Creation, LinuxContainerResources, LinuxPodSandboxConfig,
        PodSandboxConfig, PodSandboxMetadata, RunPodSandboxRequest, UNIFIED,
        UpdateContainerResourcesRequest, UpdatePodSandboxResourcesRequest,
    },
    wire::{
        self, CreateContainerPatch, Field, ResourcesPatch, UpdateContainerResourcesPatch, Value,
    },
};
use libfuzzer_sys::fuzz_target;
use prost::Message;

const KEY: &str = "k";
const VALUE: &str = "patched";

fn resources_patch(flags: u8) -> ResourcesPatch {
    let number = |bit: u8, value| (flags & 1 << bit != 0).then_some(value);
    ResourcesPatch {
        cpu_period: number(0, 0),
        cpu_quota: number(1, -1),
        cpu_shares: number(2, 1024),
        memory_limit_in_bytes: number(3, i64::MAX),
        memory_swap_limit_in_bytes: number(4, i64::MIN),
        oom_score_adj: number(7, 0),
        cpuset_cpus: (flags & 1 << 5 != 0)
            .then(|| if flags & 1 << 6 != 0 { "0-3" } else { "" }.to_owned()),
    }
}

/// What the patch makes of the resources, by the definition of merging.
fn change(resources: &mut Option<LinuxContainerResources>, patch: &ResourcesPatch) {
    if patch.is_empty() {
        return;
    }
    let resources = resources.get_or_insert_default();
    let number = |place: &mut i64, value: Option<i64>| *place = value.unwrap_or(*place);
    number(&mut resources.cpu_period, patch.cpu_period);
    number(&mut resources.cpu_quota, patch.cpu_quota);
    number(&mut resources.cpu_shares, patch.cpu_shares);
    number(
        &mut resources.memory_limit_in_bytes,
        patch.memory_limit_in_bytes,
    );
    number(
        &mut resources.memory_swap_limit_in_bytes,
        patch.memory_swap_limit_in_bytes,
    );
    number(&mut resources.oom_score_adj, patch.oom_score_adj);
    if let Some(cpuset_cpus) = &patch.cpuset_cpus {
        resources.cpuset_cpus.clone_from(cpuset_cpus);
    }
}

fn both(request: &[u8], patch: &[u8]) -> Vec<u8> {
    [request, patch].concat()
}

/// Whether walker and decoder agree. They need not about what no encoder writes: the walker refuses
/// groups, and map fields of another wire type, which prost reads as if they were entries.
fn walks_alike(request: &[u8], original: &CreateContainerRequest) -> bool {
    if !has_maps_of_entries(request) {
        return false;
    }
    let Some(all) = Creation::read(request, |_| true) else {
        return false;
    };
    assert_eq!(owned(all), looked_at(original));
    true
}

/// Whether labels and annotations of the container are entries throughout. Nobody looks at them, so the
/// walker does not see that they are none.
fn has_maps_of_entries(request: &[u8]) -> bool {
    let configs = wire::fields(request).filter_map(|field| match field {
        Ok(Field {
            number: 2,
            value: Value::Delimited(config),
        }) => Some(config),
        _ => None,
    });
    let mut fields = configs.flat_map(wire::fields).filter_map(Result::ok);
    fields.all(|field| match field.number {
        9 | 10 => matches!(field.value, Value::Delimited(_)),
        _ => true,
    })
}

/// What was read, as it would have been decoded.
fn owned(creation: Creation<'_>) -> CreateContainerRequest {
    let map = |entries: Vec<(&str, &str)>| {
        let entries = entries.into_iter();
        entries.map(|(k, v)| (k.to_owned(), v.to_owned())).collect()
    };
    let pod = creation.pod.map(|pod| PodSandboxConfig {
        metadata: Some(PodSandboxMetadata {
            name: pod.name.to_owned(),
            uid: pod.uid.to_owned(),
            namespace: pod.namespace.to_owned(),
            attempt: 0,
        }),
        labels: map(pod.labels),
        annotations: map(pod.annotations),
        linux: Some(LinuxPodSandboxConfig {
            cgroup_parent: pod.cgroup_parent.to_owned(),
        }),
    });
    CreateContainerRequest {
        pod_sandbox_id: creation.sandbox_id.to_owned(),
        config: creation.config,
        sandbox_config: pod,
    }
}

/// Without what nobody looks at: files, labels and annotations of a container, which attempt a sandbox is, and
/// whether what says nothing is there.
fn looked_at(request: &CreateContainerRequest) -> CreateContainerRequest {
    let mut request = request.clone();
    if let Some(config) = &mut request.config {
        config.labels.clear();
        config.annotations.clear();
    }
    if let Some(pod) = &mut request.sandbox_config {
        pod.metadata.get_or_insert_default().attempt = 0;
        pod.linux.get_or_insert_default();
    }
    let linux = request.config.as_mut().and_then(|it| it.linux.as_mut());
    if let Some(resources) = linux.and_then(|it| it.resources.as_mut()) {
        keep_looked_at(resources);
    }
    request
}

fn keep_looked_at(resources: &mut LinuxContainerResources) {
    resources
        .unified
        .retain(|file, _| UNIFIED.contains(&&**file));
}

fn look(request: &[u8], original: &CreateContainerRequest) {
    let mut expected = looked_at(original);
    if let Some(config) = &mut expected.sandbox_config {
        config.labels.retain(|key, _| key == KEY);
        config.annotations.retain(|key, _| key == KEY);
    }
    let some = Creation::read(request, |key| key == KEY.as_bytes());
    assert_eq!(some.map(owned), Some(expected));
}

/// A mount and a device, which no decoded message shows, as it shows no environment.
fn unseen(flags: u8) -> (Vec<Bind>, Vec<Box<str>>) {
    if flags & 1 << 6 == 0 {
        return (Vec::new(), Vec::new());
    }
    let bind = Bind {
        path: VALUE.into(),
        source: None,
        read_only: true,
    };
    (vec![bind], vec![VALUE.into()])
}

fn create(request: &[u8], flags: u8, resources: &ResourcesPatch, pairs: &[wire::Entry]) {
    let Ok(original) = CreateContainerRequest::decode(request) else {
        return;
    };
    if walks_alike(request, &original) {
        look(request, &original);
    }
    let (binds, devices) = unseen(flags);
    let patch = CreateContainerPatch {
        resources: resources.clone(),
        annotations: pairs.to_vec(),
        envs: pairs.to_vec(),
        binds,
        devices,
    };
    let mut expected = original;
    if patch != CreateContainerPatch::default() {
        let config = expected.config.get_or_insert_default();
        config.annotations.extend(pairs.to_vec());
        if !resources.is_empty() {
            change(
                &mut config.linux.get_or_insert_default().resources,
                resources,
            );
        }
    }
    let patched = both(request, &patch.encode());
    assert_eq!(CreateContainerRequest::decode(&*patched), Ok(expected));
    assert_eq!(
        patched.len(),
        wire::patched_length(request, &patch.encode())
    );
}

fn update(request: &[u8], resources: &ResourcesPatch) {
    if let Ok(mut expected) = UpdateContainerResourcesRequest::decode(request) {
        if let Some(read) = UpdateContainerResourcesRequest::read(request) {
            let mut all = expected.clone();
            all.linux.iter_mut().for_each(keep_looked_at);
            assert_eq!(read, all);
        }
        let patch = UpdateContainerResourcesPatch {
            resources: resources.clone(),
        };
        change(&mut expected.linux, resources);
        let patched = both(request, &patch.encode());
        assert_eq!(
            UpdateContainerResourcesRequest::decode(&*patched),
            Ok(expected)
        );
    }
}

fn pod(request: &[u8]) {
    let read = RunPodSandboxRequest::read_keeping(request, |_| true);
    if let (Some(read), Ok(all)) = (read, RunPodSandboxRequest::decode(request)) {
        assert_eq!(read, all);
    }
    let read = UpdatePodSandboxResourcesRequest::read(request);
    let all = UpdatePodSandboxResourcesRequest::decode(request);
    if let (Some(read), Ok(mut all)) = (read, all) {
        all.overhead.iter_mut().for_each(keep_looked_at);
        all.resources.iter_mut().for_each(keep_looked_at);
        assert_eq!(read, all);
    }
}

fuzz_target!(|input: &[u8]| {
    let Some((&flags, request)) = input.split_first() else {
        return;
    };
    let resources = resources_patch(flags);
    let pair = (KEY.to_owned(), VALUE.to_owned());
    let pairs = if flags & 1 << 7 != 0 {
        vec![pair]
    } else {
        Vec::new()
    };
    let walked = wire::fields(request).count();
    assert!(walked <= request.len());
    create(request, flags, &resources, &pairs);
    update(request, &resources);
    pod(request);
});

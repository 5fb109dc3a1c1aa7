//! What a creation asks the runtime for, as far as hooks change it.

use koord_proto::keys::annotation::{DEVICE_ALLOCATED, OOM_SCORE_ADJ, OOM_SCORE_ADJ_SPEC};
use koord_testkit::cri::message::{
    ContainerConfig, CreateContainerRequest, LinuxContainerResources,
};
use prost::Message;

/// What a creation asks the runtime for: shares, quota, memory limit, CPUs.
pub type Asked = (i64, i64, i64, String);

pub fn asked(message: &[u8]) -> Asked {
    let linux = resources(message);
    (
        linux.cpu_shares,
        linux.cpu_quota,
        linux.memory_limit_in_bytes,
        linux.cpuset_cpus,
    )
}

fn container_config(message: &[u8]) -> ContainerConfig {
    let request = CreateContainerRequest::decode(message).unwrap();
    request.config.unwrap()
}

fn resources(message: &[u8]) -> LinuxContainerResources {
    let linux = container_config(message).linux.unwrap();
    linux.resources.unwrap()
}

/// What a creation makes the container with: its OOM score, and the names of its variables, mounts
/// and devices.
pub type MadeWith = (i64, Vec<String>, Vec<String>, Vec<String>);

pub fn made_with(message: &[u8]) -> MadeWith {
    let config = container_config(message);
    let mounts = config.mounts.into_iter().map(|it| it.container_path);
    let devices = config.devices.into_iter().map(|it| it.container_path);
    (
        resources(message).oom_score_adj,
        config.envs.into_iter().map(|it| it.key).collect(),
        mounts.collect(),
        devices.collect(),
    )
}

/// What every container here asks to be made with.
pub fn asked_to_be_made_with() -> MadeWith {
    let (mount, device) = ("/data".to_owned(), "/dev/fuse".to_owned());
    (1_000, Vec::new(), vec![mount], vec![device])
}

/// What a container is made with whose pod says this in words that are understood.
pub fn made_with_words(key: &str) -> MadeWith {
    let (score, envs, mounts, devices) = asked_to_be_made_with();
    match key {
        OOM_SCORE_ADJ | OOM_SCORE_ADJ_SPEC => (500, envs, mounts, devices),
        DEVICE_ALLOCATED => {
            let envs = vec!["NVIDIA_VISIBLE_DEVICES".to_owned()];
            (score, envs, mounts, devices)
        }
        _ => (score, envs, mounts, devices),
    }
}

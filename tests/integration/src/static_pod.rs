//! Pods of a kubelet without a cluster: what their owner writes, and when they are as they should be.

use crate::classes::PodSpecOf;
use koord_testkit::{
    Kubelet, PodCgroups, PodQos,
    poll::{wait_patiently, wait_until},
};
use serde_json::{Value, json};
use std::collections::BTreeMap;

/// Has a container say its own values before it does anything else. It ends at once when asked to, which
/// the first process of a pid namespace has to see to itself.
const TELL: &str = "cd /sys/fs/cgroup && \
    grep -H . cpu/cpu.shares cpu/cpu.cfs_quota_us cpuset/cpuset.cpus memory/memory.limit_in_bytes; \
    echo told; trap exit TERM; sleep 1000000 & wait";

/// One of the demo's pods as its owner would write it: the kubelet makes the rest.
pub fn manifest(pod: &PodSpecOf) -> Value {
    let config = pod.pod.config();
    let mut labels = config.labels.clone();
    labels.retain(|key, _| !key.starts_with("io.kubernetes."));
    json!({
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {
            "name": pod.name,
            "namespace": "default",
            "uid": pod.pod.uid(),
            "labels": labels,
            "annotations": config.annotations,
        },
        "spec": {
            "hostNetwork": true,
            "terminationGracePeriodSeconds": 1,
            "containers": [{
                "name": "main",
                "image": koord_testkit::setup::BUSYBOX_IMAGE,
                "imagePullPolicy": "Never",
                "resources": resources(pod.qos),
                "resizePolicy": [{"resourceName": "cpu", "restartPolicy": "NotRequired"}],
                "readinessProbe": {"exec": {"command": ["true"]}, "periodSeconds": 1},
            }],
        },
    })
}

fn resources(qos: PodQos) -> Value {
    match qos {
        PodQos::Guaranteed {
            milli_cpu,
            memory_bytes,
        } => {
            let all = json!({"cpu": format!("{milli_cpu}m"), "memory": memory_bytes.to_string()});
            json!({"requests": all, "limits": all})
        }
        PodQos::Burstable { milli_cpu } => json!({"requests": {"cpu": format!("{milli_cpu}m")}}),
        PodQos::BestEffort => json!({}),
    }
}

/// A [`manifest`] whose container says first of all what its control group has. See [`told`].
pub fn telling(pod: &PodSpecOf) -> Value {
    let mut manifest = manifest(pod);
    manifest["spec"]["containers"][0]["command"] = json!(["sh", "-c", TELL]);
    manifest
}

/// What the container of a [`telling`] pod had when it began, by setting: what came later is not in it.
pub fn told(kubelet: &Kubelet, pod: &PodSpecOf) -> BTreeMap<String, String> {
    let mut log = String::new();
    wait_until(&format!("{} has told its values", pod.name), || {
        log = kubelet.container_log(&pod.name, pod.pod.uid(), "main");
        log.ends_with(" told\n")
    });
    let values = log.lines().filter_map(|line| {
        let (_, line) = line.rsplit_once('/')?;
        line.split_once(':')
    });
    let owned = |(setting, value): (&str, &str)| (setting.to_owned(), value.to_owned());
    values.map(owned).collect()
}

/// The id of the pod's container, once its exec probe says that it is ready.
pub fn ready(kubelet: &Kubelet, pod: &PodSpecOf) -> Option<String> {
    ready_of(&kubelet.pods().ok()?, pod)
}

/// The same, by what a kubelet has said of its pods.
pub fn ready_of(pods: &[Value], pod: &PodSpecOf) -> Option<String> {
    // A static pod's name is followed by its node's.
    let name = format!("{}-node", pod.name);
    let pod = pods.iter().find(|pod| pod["metadata"]["name"] == *name)?;
    let container = &pod["status"]["containerStatuses"][0];
    let id = container["containerID"].as_str()?;
    let is_ready = container["ready"] == true && container["restartCount"] == 0;
    is_ready.then(|| id.trim_start_matches("containerd://").to_owned())
}

/// Waits until every pod is ready and holds the values of its class, and answers their containers.
pub fn settled(cgroups: &PodCgroups, kubelet: &Kubelet, pods: &[PodSpecOf]) -> Vec<String> {
    let mut containers = Vec::new();
    for pod in pods {
        let mut container = None;
        wait_patiently(&format!("{} is ready", pod.name), || {
            container = ready(kubelet, pod);
            container.is_some()
        });
        let container = container.expect("it was waited for");
        let cgroup = cgroups.existing_pod(pod.pod.uid(), pod.qos);
        for expected in &pod.expected {
            let what = format!("{} of {} is {}", expected.setting, pod.name, expected.v1);
            wait_until(&what, || {
                let held = expected.held(&cgroup, &container);
                held.is_ok_and(|held| expected.is_met_by(&held))
            });
        }
        containers.push(container);
    }
    containers
}

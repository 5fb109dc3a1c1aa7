//! A real kubelet on the proxy's socket, or on that of a runtime that asks the proxy: its static pods
//! have the values of their classes and keep them, whoever of the three is restarted, and what it
//! needs of a runtime works.

use anyhow::{Context, Result, ensure};
use koord_integration::{
    Front, Node, ProxyOptions,
    classes::{self, PodSpecOf, Scope},
    static_pod::{manifest, settled, telling, told},
};
use koord_testkit::{
    ContainerdVersion, Kubelet, PodQos,
    cri::PodSpec,
    poll::{comes_true, comes_true_patiently, wait_patiently},
};
use serde_json::json;

fn start(version: ContainerdVersion, front: Front) -> Result<(Node, Kubelet)> {
    let options = ProxyOptions {
        policy: Some(classes::node_policy(&classes::share_pool()?)),
        args: ["--feature-gates", classes::FEATURE_GATES]
            .map(str::to_owned)
            .into(),
        front,
        ..ProxyOptions::default()
    };
    let node = Node::start(version, options)?;
    let kubelet = Kubelet::start(node.testbed(), &node.socket(), json!({}))?;
    Ok((node, kubelet))
}

/// By its own first look.
fn began_with_its_values(kubelet: &Kubelet, pod: &PodSpecOf) {
    let told = told(kubelet, pod);
    let own = pod.expected.iter();
    for expected in own.filter(|it| it.scope == Scope::Container) {
        let (name, setting) = (&pod.name, expected.setting);
        let first = told.get(setting);
        assert_eq!(first, Some(&expected.v1), "{setting} of {name}: {told:?}");
    }
}

fn classes_hold(version: ContainerdVersion, front: Front) -> Result<()> {
    let (node, kubelet) = start(version, front)?;
    let pods = classes::all(&classes::share_pool()?);
    for pod in &pods {
        kubelet.apply(&telling(pod))?;
    }
    settled(&node.cgroups, &kubelet, &pods);
    for pod in &pods {
        began_with_its_values(&kubelet, pod);
    }
    // By the creations themselves, not by a repair that was quick.
    let patched = node.proxy.creations(Some("patched"))?;
    ensure!(patched >= 4.0, "{patched} creations were adjusted");
    for pod in &pods {
        kubelet.remove(&pod.name)?;
    }
    // A kubelet removes a pod's group only once it is empty, and tries for as long as it is not.
    wait_patiently("the groups of all pods are gone", || {
        let mut pods = pods.iter();
        pods.all(|pod| {
            let cgroup = node.cgroups.existing_pod(pod.pod.uid(), pod.qos);
            !cgroup.directory("cpu").exists()
        })
    });
    Ok(())
}

#[test]
fn pods_of_a_kubelet_have_the_values_of_their_classes_on_containerd_1_6() -> Result<()> {
    classes_hold(ContainerdVersion::V1_6, Front::Cri)
}

#[test]
fn pods_of_a_kubelet_have_the_values_of_their_classes_on_containerd_1_7() -> Result<()> {
    classes_hold(ContainerdVersion::V1_7, Front::Cri)
}

#[test]
fn pods_of_a_kubelet_have_the_values_of_their_classes_on_containerd_2() -> Result<()> {
    classes_hold(ContainerdVersion::V2, Front::Cri)
}

#[test]
fn pods_of_a_kubelet_have_the_values_of_their_classes_by_nri_on_containerd_1_7() -> Result<()> {
    classes_hold(ContainerdVersion::V1_7, Front::Nri)
}

#[test]
fn pods_of_a_kubelet_have_the_values_of_their_classes_by_nri_on_containerd_2() -> Result<()> {
    classes_hold(ContainerdVersion::V2, Front::Nri)
}

/// Whoever is killed, what runs goes on in the same container with the same values, and what is
/// wanted next starts.
fn pods_outlive_kills(front: Front) -> Result<()> {
    let (mut node, mut kubelet) = start(ContainerdVersion::V2, front)?;
    let share_pool = classes::share_pool()?;
    let mut pods = classes::all(&share_pool);
    for pod in &pods {
        kubelet.apply(&manifest(pod))?;
    }
    let before = settled(&node.cgroups, &kubelet, &pods);

    node.proxy.kill9()?;
    node.launch_proxy()?;
    pods.push(classes::be("after-the-proxy"));
    kubelet.apply(&manifest(pods.last().context("just pushed")?))?;
    settled(&node.cgroups, &kubelet, &pods);

    node.runtime.kill9()?;
    node.runtime.restart()?;
    pods.push(classes::ls("after-the-runtime", &share_pool));
    kubelet.apply(&manifest(pods.last().context("just pushed")?))?;
    settled(&node.cgroups, &kubelet, &pods);

    kubelet.kill()?;
    kubelet.launch(node.testbed())?;
    pods.push(classes::be("after-the-kubelet"));
    kubelet.apply(&manifest(pods.last().context("just pushed")?))?;
    let after = settled(&node.cgroups, &kubelet, &pods);
    ensure!(
        after[..before.len()] == before[..],
        "{before:?} became {after:?}"
    );
    Ok(())
}

#[test]
fn pods_of_a_kubelet_outlive_a_kill_of_the_proxy_the_runtime_and_the_kubelet() -> Result<()> {
    pods_outlive_kills(Front::Cri)
}

#[test]
fn pods_of_a_kubelet_outlive_the_same_kills_by_nri() -> Result<()> {
    pods_outlive_kills(Front::Nri)
}

/// What the kubelet asks for anew is there, in the same container, and what the hooks set stays.
fn a_resize_keeps_the_rest(version: ContainerdVersion, front: Front) -> Result<()> {
    let (node, kubelet) = start(version, front)?;
    let mut pod = classes::ls("web", &classes::share_pool()?);
    kubelet.apply(&manifest(&pod))?;
    let before = settled(&node.cgroups, &kubelet, std::slice::from_ref(&pod));
    pod.qos = PodQos::Burstable { milli_cpu: 500 };
    for expected in &mut pod.expected {
        if expected.setting == "cpu.shares" {
            "512".clone_into(&mut expected.v1);
        }
    }
    kubelet.apply(&manifest(&pod))?;
    let after = settled(&node.cgroups, &kubelet, std::slice::from_ref(&pod));
    assert_eq!(after, before);
    Ok(())
}

#[test]
fn a_resize_in_place_changes_what_it_names_and_keeps_the_rest() -> Result<()> {
    a_resize_keeps_the_rest(ContainerdVersion::V2, Front::Cri)
}

#[test]
fn a_resize_in_place_changes_what_it_names_and_keeps_the_rest_by_nri() -> Result<()> {
    a_resize_keeps_the_rest(ContainerdVersion::V2, Front::Nri)
}

#[test]
fn a_resize_in_place_changes_what_it_names_and_keeps_the_rest_by_nri_on_containerd_1_7()
-> Result<()> {
    a_resize_keeps_the_rest(ContainerdVersion::V1_7, Front::Nri)
}

/// CPU time and memory of a pod whose quota a hook has lifted: more of both, and what there was again.
fn a_guaranteed_pod_is_resized(front: Front) -> Result<()> {
    let (node, kubelet) = start(ContainerdVersion::V2, front)?;
    let small = classes::lsr("redis");
    let mut large = small.clone();
    large.qos = PodQos::Guaranteed {
        milli_cpu: 700,
        memory_bytes: 3 << 29,
    };
    for expected in &mut large.expected {
        match expected.setting {
            "cpu.shares" => "716".clone_into(&mut expected.v1),
            "memory.limit_in_bytes" => "1610612736".clone_into(&mut expected.v1),
            _ => {}
        }
    }
    let mut container = None;
    for (pod, limit) in [
        (&small, "1073741824"),
        (&large, "1610612736"),
        (&small, "1073741824"),
    ] {
        kubelet.apply(&manifest(pod))?;
        let now = settled(&node.cgroups, &kubelet, std::slice::from_ref(pod));
        assert_eq!(now, *container.get_or_insert_with(|| now.clone()));
        let cgroup = node.cgroups.existing_pod(pod.pod.uid(), pod.qos);
        wait_patiently("the kubelet has written the pod's limit", || {
            let held = cgroup.read("memory", None, "memory.limit_in_bytes");
            held.is_ok_and(|held| held == limit)
        });
    }
    Ok(())
}

#[test]
fn a_guaranteed_pod_is_resized_in_place_and_has_no_quota() -> Result<()> {
    a_guaranteed_pod_is_resized(Front::Cri)
}

#[test]
fn a_guaranteed_pod_is_resized_in_place_and_has_no_quota_by_nri() -> Result<()> {
    a_guaranteed_pod_is_resized(Front::Nri)
}

/// What `kubectl exec` does beyond the API server.
fn a_command_streams(front: Front) -> Result<()> {
    let (node, kubelet) = start(ContainerdVersion::V2, front)?;
    let pod = classes::be("batch");
    kubelet.apply(&manifest(&pod))?;
    settled(&node.cgroups, &kubelet, std::slice::from_ref(&pod));
    let script = ["echo%20one", "sleep%201", "echo%20two", "exit%203"].join("%3B");
    let path = format!("default/batch-node/main?command=sh&command=-c&command={script}");
    let streamed = kubelet.exec(&path)?;
    // Frames of the channels 1, output, and 3, how it ended.
    for part in ["\u{1}one\n", "\u{1}two\n", "\u{3}{", "exit code 3"] {
        ensure!(streamed.contains(part), "no {part:?} in {streamed:?}");
    }
    Ok(())
}

#[test]
fn a_command_in_a_container_of_a_kubelet_streams_what_it_says() -> Result<()> {
    a_command_streams(Front::Cri)
}

#[test]
fn a_command_in_a_container_of_a_kubelet_streams_what_it_says_by_nri() -> Result<()> {
    a_command_streams(Front::Nri)
}

/// A burstable pod of class BE, which is idle.
fn idle_burstable(share_pool: &str) -> PodSpecOf {
    let (idle, shares) = (classes::be("odd"), classes::ls("odd", share_pool));
    let mut expected = idle.expected;
    expected.retain(|it| it.setting == "cpu.idle");
    let of_container = shares.expected.into_iter();
    expected.extend(of_container.filter(|it| it.setting == "cpu.shares"));
    PodSpecOf {
        pod: PodSpec::new("odd").label("koordinator.sh/qosClass", "BE"),
        qos: shares.qos,
        expected,
        ..idle
    }
}

/// The kernel takes no shares for an idle group, and the kubelet writes those of the pod.
fn an_idle_pod_is_resized(version: ContainerdVersion, front: Front) -> Result<()> {
    let (node, kubelet) = start(version, front)?;
    let mut pod = idle_burstable(&classes::share_pool()?);
    kubelet.apply(&manifest(&pod))?;
    let before = settled(&node.cgroups, &kubelet, std::slice::from_ref(&pod));
    let cgroup = node.cgroups.existing_pod(pod.pod.uid(), pod.qos);
    let held = |file| cgroup.read("cpu", None, file).unwrap_or_default();
    assert_eq!(held("cpu.shares"), "3");
    pod.qos = PodQos::Burstable { milli_cpu: 500 };
    for expected in &mut pod.expected {
        if expected.setting == "cpu.shares" {
            "512".clone_into(&mut expected.v1);
        }
    }
    kubelet.apply(&manifest(&pod))?;
    let written = comes_true_patiently(|| held("cpu.shares") == "512");
    let settings = ["cpu.idle", "cpu.shares"];
    ensure!(
        written,
        "the kubelet has not written the pod's shares, idle and shares are {:?}; {} {} {}",
        settings.map(held),
        node.proxy.ledger()?,
        node.proxy.log(),
        kubelet.log()
    );
    // In the same container, and idle again.
    let after = settled(&node.cgroups, &kubelet, std::slice::from_ref(&pod));
    assert_eq!(after, before);
    let awake = classes::node_policy("0").replace("enable: true", "enable: false");
    node.proxy.write_policy(&awake)?;
    let mut found = Default::default();
    let comes = comes_true(|| {
        found = settings.map(held);
        found == ["0", "512"]
    });
    ensure!(
        comes,
        "idle, and the pod's shares: {found:?}; {} {}",
        node.proxy.ledger()?,
        node.proxy.log()
    );
    Ok(())
}

#[test]
fn an_idle_pod_is_resized_in_place_on_containerd_2() -> Result<()> {
    an_idle_pod_is_resized(ContainerdVersion::V2, Front::Cri)
}

#[test]
fn an_idle_pod_is_resized_in_place_on_a_containerd_that_is_not_told_of_it() -> Result<()> {
    an_idle_pod_is_resized(ContainerdVersion::V1_7, Front::Cri)
}

#[test]
fn an_idle_pod_is_resized_in_place_by_nri_on_containerd_2() -> Result<()> {
    an_idle_pod_is_resized(ContainerdVersion::V2, Front::Nri)
}

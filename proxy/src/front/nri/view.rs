//! Pods and containers of NRI as hooks see them: by the rules for those of CRI, so that a pod is the
//! same whichever front brought it.

use crate::view::{self, Inputs, Named};
use koord_hooks::{ContainerKind, ContainerView, Map, PodView, Requested};
use koord_model::{CgroupPath, OomScoreAdj};
use koord_proto::{cri, nri};

/// A pod and its directory; `None` if it names no pod. It shares its texts with what is `known` of it where they
/// say the same.
pub fn pod(
    pod: &nri::PodSandbox,
    known: Option<(&Map, &Map)>,
    inputs: &Inputs,
) -> Option<(PodView, Option<CgroupPath>)> {
    let parent = pod.linux.as_ref();
    let parent = parent.and_then(|linux| view::directory_of(&linux.cgroup_parent));
    let (labels, annotations) = (view::texts(&pod.labels), view::texts(&pod.annotations));
    let texts = inputs.of_known(known, labels, annotations);
    let named = Named {
        name: &pod.name,
        uid: &pod.uid,
        namespace: &pod.namespace,
    };
    let view = view::from_parts(named, texts, &pod.runtime_handler, parent.as_ref())?;
    Some((view, parent))
}

/// A container, with what its caller and the plugins before us ask for.
pub fn container(container: &nri::Container) -> ContainerView {
    let linux = container.linux.as_ref();
    let score = linux.and_then(|linux| linux.oom_score_adj.as_ref());
    ContainerView {
        name: container.name.clone(),
        kind: ContainerKind::Regular,
        requested: Requested {
            oom_score_adj: score.and_then(|score| OomScoreAdj::new(score.value).ok()),
            ..requested(linux.and_then(|linux| linux.resources.as_ref()))
        },
        heard: true,
        found_quota: None,
    }
}

/// What is asked for. A zero that is said is no value that a kernel takes, so it is what it is in
/// CRI: not said.
pub fn requested(resources: Option<&nri::LinuxResources>) -> Requested {
    view::requested(resources.map(in_cri).as_ref())
}

/// The same in the words of CRI.
pub fn in_cri(resources: &nri::LinuxResources) -> cri::LinuxContainerResources {
    let cpu = resources.cpu.as_ref();
    let memory = resources.memory.as_ref();
    let signed = |it: Option<&nri::OptionalInt64>| it.map_or(0, |it| it.value);
    // What is too large for CRI is so for the kernel.
    let unsigned = |it: Option<&nri::OptionalUInt64>| {
        it.map_or(0, |it| i64::try_from(it.value).unwrap_or(i64::MAX))
    };
    cri::LinuxContainerResources {
        cpu_period: unsigned(cpu.and_then(|cpu| cpu.period.as_ref())),
        cpu_quota: signed(cpu.and_then(|cpu| cpu.quota.as_ref())),
        cpu_shares: unsigned(cpu.and_then(|cpu| cpu.shares.as_ref())),
        memory_limit_in_bytes: signed(memory.and_then(|memory| memory.limit.as_ref())),
        cpuset_cpus: cpu.map(|cpu| cpu.cpus.clone()).unwrap_or_default(),
        unified: resources.unified.clone().into_iter().collect(),
        ..Default::default()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_model::{CpuQuota, CpuShares, KubeQos, MemoryLimit};

    fn sandbox(cgroup_parent: &str) -> nri::PodSandbox {
        let map = |pairs: &[(&str, &str)]| {
            let pairs = pairs.iter();
            pairs.map(|(k, v)| ((*k).into(), (*v).into())).collect()
        };
        nri::PodSandbox {
            id: "s".to_owned(),
            name: "web".to_owned(),
            uid: "1-2".to_owned(),
            namespace: "shop".to_owned(),
            labels: map(&[("class", "LS"), ("other", "x")]),
            annotations: map(&[("cpus", "1")]),
            runtime_handler: "kata".to_owned(),
            linux: Some(nri::LinuxPodSandbox {
                cgroup_parent: cgroup_parent.to_owned(),
                ..Default::default()
            }),
            pid: 7,
        }
    }

    #[test]
    fn a_pod_is_what_its_runtime_says_of_it() {
        let inputs = Inputs::new(["class"], ["cpus"]);
        for (parent, directory, qos) in [
            (
                "/kubepods/besteffort/pod1-2",
                Some("kubepods/besteffort/pod1-2"),
                KubeQos::BestEffort,
            ),
            (
                "kubepods-burstable-pod1_2.slice",
                Some("kubepods.slice/kubepods-burstable.slice/kubepods-burstable-pod1_2.slice"),
                KubeQos::Burstable,
            ),
            ("", None, KubeQos::Guaranteed),
        ] {
            let (view, found) = pod(&sandbox(parent), None, &inputs).unwrap();
            let found = found.as_ref().map(CgroupPath::as_str);
            assert_eq!((found, view.kube_qos), (directory, qos));
            let named = (view.uid.as_str(), &*view.namespace, &*view.name);
            assert_eq!(named, ("1-2", "shop", "web"));
            assert_eq!(view.labels, [("class", "LS")].into_iter().collect());
            assert_eq!(view.annotations, [("cpus", "1")].into_iter().collect());
            assert_eq!(view.runtime_handler, "kata");
        }
    }

    #[test]
    fn what_names_no_pod_is_none() {
        let nameless = nri::PodSandbox::default();
        assert!(pod(&nameless, None, &Inputs::default()).is_none());
        let bare = nri::PodSandbox {
            linux: None,
            ..sandbox("")
        };
        let (_, parent) = pod(&bare, None, &Inputs::default()).unwrap();
        assert_eq!(parent, None);
    }

    fn resources(cpu: nri::LinuxCpu, limit: i64) -> nri::LinuxResources {
        nri::LinuxResources {
            cpu: Some(cpu),
            memory: Some(nri::LinuxMemory {
                limit: Some(nri::OptionalInt64 { value: limit }),
                swap: None,
            }),
            ..Default::default()
        }
    }

    #[test]
    fn what_a_container_asks_for_is_what_is_said_and_not_zero() {
        let asks = resources(
            nri::LinuxCpu {
                shares: Some(nri::OptionalUInt64 { value: 512 }),
                quota: Some(nri::OptionalInt64 { value: -1 }),
                period: Some(nri::OptionalUInt64 { value: 10_000 }),
                cpus: "0-1".to_owned(),
                mems: String::new(),
            },
            1 << 20,
        );
        let container = container(&nri::Container {
            name: "main".to_owned(),
            linux: Some(nri::LinuxContainer {
                resources: Some(asks),
                oom_score_adj: Some(nri::OptionalInt { value: 0 }),
                ..Default::default()
            }),
            ..Default::default()
        });
        assert_eq!(container.name, "main");
        let asked = container.requested;
        assert_eq!(asked.cpu_shares.map(CpuShares::get), Some(512));
        assert_eq!(asked.cpu_quota, Some(CpuQuota::Unlimited));
        assert_eq!(asked.cpu_period.map(|it| it.micros()), Some(10_000));
        assert_eq!(asked.memory_limit, Some(MemoryLimit::Bytes(1_048_576)));
        assert_eq!(asked.cpuset_cpus, "0-1".parse().ok());
        assert_eq!(asked.oom_score_adj, OomScoreAdj::new(0).ok());

        let zeros = nri::LinuxCpu {
            shares: Some(nri::OptionalUInt64 { value: 0 }),
            quota: Some(nri::OptionalInt64 { value: 0 }),
            period: Some(nri::OptionalUInt64 { value: 0 }),
            ..Default::default()
        };
        let asked = requested(Some(&resources(zeros, 0)));
        assert_eq!(asked, Requested::default());
        assert_eq!(requested(None), Requested::default());
    }

    #[test]
    fn numbers_out_of_range_are_left_to_the_runtime() {
        let odd = nri::LinuxCpu {
            shares: Some(nri::OptionalUInt64 { value: u64::MAX }),
            period: Some(nri::OptionalUInt64 { value: 1 << 63 }),
            ..Default::default()
        };
        let asked = requested(Some(&resources(odd, 0)));
        assert_eq!(asked, Requested::default());
    }
}

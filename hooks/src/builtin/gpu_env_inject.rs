//! Containers see the GPUs that the scheduler has given their pod, and no others.
//!
//! NVIDIA's runtime looks for them in the environment. A pod that has a part of one and names
//! HAMi-core as what isolates it has its library loaded before all others, which keeps it within its
//! part. CRI does not say which container asked for a GPU, so each has the same, as upstream's.
//!
//! Where this differs from Koordinator v1.8:
//! - the library is put before what a container has in `LD_PRELOAD` itself; upstream's takes its place;
//! - what is mounted is mounted whichever front there is; upstream's needs the runtime's plugin;
//! - the library is mounted to be read alone, and what another user of the node than root could have
//!   put in the place of library or lock is not mounted.

use crate::{
    adjustment::Adjustment,
    hami_core::HAMI_CORE_LOCK,
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity},
    view::{ContainerKind, HookOptions, NodeView, PodView, Stage, View},
};
use koord_model::{Bind, Env, Injection, Setting};
use koord_proto::{
    annotation::{Gpu, GpuResources},
    keys::{annotation, label, resource},
};
use std::sync::Arc;

pub(super) const META: HookMeta = HookMeta {
    name: "GPUEnvInject",
    gate: HookOptions::GPU_ENV_INJECT,
    default_on: false,
    maturity: Maturity::Alpha,
    options: &[],
    stages: &[Stage::Container],
    fail_policy: FailPolicy::Open,
    doc: "shows containers the GPUs that their pod was given, and keeps them within their part of one",
    inputs: Inputs {
        labels: &[label::GPU_ISOLATION_PROVIDER],
        annotations: &[annotation::DEVICE_ALLOCATED],
    },
    settings: &[Setting::Gpu],
};

pub(super) struct GpuEnvInject;

const HAMI_CORE: &str = "HAMi-core";

// === impl GpuEnvInject ===

impl Hook for GpuEnvInject {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        let regular = view
            .container
            .is_some_and(|it| it.kind == ContainerKind::Regular);
        Ok(Adjustment {
            gpu: match regular {
                true => injection(view.pod, view.node)?.map(Arc::new),
                false => None,
            },
            ..Adjustment::default()
        })
    }
}

fn injection(pod: &PodView, node: &NodeView) -> Result<Option<Injection>, HookError> {
    let Some(devices) = pod.devices()? else {
        return Ok(None);
    };
    let gpus = &devices.gpu;
    let Some(first) = gpus.first() else {
        return Ok(None);
    };
    let minors = gpus.iter().map(|Gpu { minor, .. }| minor.0.to_string());
    let minors = minors.collect::<Vec<_>>().join(",");
    let mut injection = Injection {
        envs: vec![Env::is("NVIDIA_VISIBLE_DEVICES", minors)],
        ..Injection::default()
    };
    if pod.labels.get(label::GPU_ISOLATION_PROVIDER) == Some(HAMI_CORE) {
        isolate(&mut injection, first.resources, node)?;
    }
    Ok(Some(injection))
}

/// Has HAMi-core keep the processes within a part of a GPU, if it is one.
fn isolate(
    injection: &mut Injection,
    part: GpuResources,
    node: &NodeView,
) -> Result<(), HookError> {
    let missing = |resource| HookError::MissingAmount {
        key: annotation::DEVICE_ALLOCATED,
        resource,
    };
    let ratio = part
        .memory_ratio
        .ok_or(missing(resource::GPU_MEMORY_RATIO))?;
    if ratio >= 100 {
        return Ok(());
    }
    let memory = part.memory.ok_or(missing(resource::GPU_MEMORY))?;
    if let Some(path) = &node.kernel.hami_core {
        return Err(HookError::HamiCore(path.clone()));
    }
    let library = &*node.options.hami_core_library;
    let core = part
        .core
        .map(|core| Env::is("CUDA_DEVICE_SM_LIMIT", core.to_string()));
    injection
        .envs
        .push(Env::is("CUDA_DEVICE_MEMORY_LIMIT", memory.to_string()));
    injection.envs.extend(core);
    injection.envs.push(Env::before("LD_PRELOAD", library));
    injection.binds = [(library, true), (HAMI_CORE_LOCK, false)]
        .map(|(path, read_only)| Bind {
            path: path.into(),
            source: None,
            read_only,
        })
        .into();
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixture::{container, decide_container, node, pod, sandbox},
        unsafe_path::{PathProblem, UnsafePath},
    };
    use std::error::Error as _;

    const PART: &str = r#"{"gpu":[{"minor":3,"resources":{"koordinator.sh/gpu-core":"50",
        "koordinator.sh/gpu-memory":"8Gi","koordinator.sh/gpu-memory-ratio":"50"}}]}"#;

    fn of(devices: &str, provider: Option<&str>) -> PodView {
        let label = provider.map(|it| (label::GPU_ISOLATION_PROVIDER, it));
        PodView {
            labels: label.into_iter().collect(),
            ..pod("", &[(annotation::DEVICE_ALLOCATED, devices)])
        }
    }

    /// Variables and mounts.
    fn decided(pod: &PodView) -> Result<(Vec<String>, Vec<String>), HookError> {
        decided_on(&node(), pod)
    }

    fn decided_on(node: &NodeView, pod: &PodView) -> Result<(Vec<String>, Vec<String>), HookError> {
        let adjustment = decide_container(&GpuEnvInject, pod, &container("main"), node)?;
        let gpu = adjustment.gpu.unwrap_or_default();
        let Injection { envs, binds, .. } = &*gpu;
        let envs = envs
            .iter()
            .map(|env| format!("{}={}", env.name, env.over(Some("/own.so"))));
        let binds = binds.iter().map(|bind| match bind.read_only {
            true => format!("{} to be read", bind.path),
            false => bind.path.to_string(),
        });
        Ok((envs.collect(), binds.collect()))
    }

    #[test]
    fn containers_see_the_gpus_of_their_pod() {
        let two = r#"{"gpu":[{"minor":1},{"minor":0}]}"#;
        for (devices, seen) in [
            (two, "NVIDIA_VISIBLE_DEVICES=1,0"),
            (PART, "NVIDIA_VISIBLE_DEVICES=3"),
            (r#"{"gpu":[]}"#, ""),
            (r#"{"rdma":[{"minor":1}]}"#, ""),
        ] {
            let (envs, binds) = decided(&of(devices, None)).unwrap();
            assert_eq!((&*envs.join(" "), binds.len()), (seen, 0), "{devices}");
        }
        let pause = decide_container(&GpuEnvInject, &of(PART, None), &sandbox(), &node());
        assert_eq!(pause.unwrap(), Adjustment::default());
    }

    #[test]
    fn a_part_of_a_gpu_is_kept_by_hami_core_if_the_pod_says_so() {
        let (envs, binds) = decided(&of(PART, Some("HAMi-core"))).unwrap();
        let expected = [
            "NVIDIA_VISIBLE_DEVICES=3",
            "CUDA_DEVICE_MEMORY_LIMIT=8589934592",
            "CUDA_DEVICE_SM_LIMIT=50",
            "LD_PRELOAD=/usr/local/vgpu/libvgpu.so:/own.so",
        ];
        assert_eq!(envs, expected);
        assert_eq!(
            binds,
            ["/usr/local/vgpu/libvgpu.so to be read", "/tmp/vgpulock"]
        );
        let whole = PART.replace(r#""50"}"#, r#""100"}"#);
        for pod in [of(&whole, Some("HAMi-core")), of(PART, Some("other"))] {
            let (envs, binds) = decided(&pod).unwrap();
            assert_eq!(
                (envs, binds.len()),
                (vec!["NVIDIA_VISIBLE_DEVICES=3".to_owned()], 0)
            );
        }
    }

    #[test]
    fn the_first_gpu_says_how_much_and_its_cores_are_no_limit_where_nobody_says_them() {
        let devices = r#"{"gpu":[{"minor":2,"resources":{"koordinator.sh/gpu-memory":"4Gi",
            "koordinator.sh/gpu-memory-ratio":"25"}},{"minor":5,"resources":{"koordinator.sh/gpu-core":"75",
            "koordinator.sh/gpu-memory":"12Gi","koordinator.sh/gpu-memory-ratio":"75"}}]}"#;
        let (envs, binds) = decided(&of(devices, Some("HAMi-core"))).unwrap();
        let expected = [
            "NVIDIA_VISIBLE_DEVICES=2,5",
            "CUDA_DEVICE_MEMORY_LIMIT=4294967296",
            "LD_PRELOAD=/usr/local/vgpu/libvgpu.so:/own.so",
        ];
        assert_eq!(
            (&envs[..], binds.len()),
            (&expected.map(str::to_owned)[..], 2)
        );
    }

    #[test]
    fn what_root_did_not_put_on_the_node_no_container_is_given() {
        let mut node = node();
        node.kernel.hami_core = Some(UnsafePath {
            path: "/tmp/vgpulock".into(),
            problem: PathProblem::OtherKind {
                expected: "a directory",
            },
        });
        let error = decided_on(&node, &of(PART, Some("HAMi-core"))).unwrap_err();
        assert_eq!(error.key(), "koordinator.sh/gpu-isolation-provider");
        assert_eq!(
            [error.to_string(), error.source().unwrap().to_string()],
            [
                "containers are not given HAMi-core of this node",
                "/tmp/vgpulock is not a directory"
            ]
        );
        // Who needs none of it has the rest.
        let (envs, _) = decided_on(&node, &of(PART, None)).unwrap();
        assert_eq!(envs, ["NVIDIA_VISIBLE_DEVICES=3"]);
    }

    #[test]
    fn without_its_amounts_nothing_can_be_kept() {
        for (devices, told) in [
            (
                r#"{"gpu":[{"minor":0}]}"#,
                "koordinator.sh/gpu-memory-ratio",
            ),
            (
                r#"{"gpu":[{"minor":0,"resources":{"koordinator.sh/gpu-memory-ratio":50}}]}"#,
                "koordinator.sh/gpu-memory",
            ),
        ] {
            let error = decided(&of(devices, Some("HAMi-core"))).unwrap_err();
            assert_eq!(error.key(), "scheduling.koordinator.sh/device-allocated");
            let told = format!(
                "scheduling.koordinator.sh/device-allocated does not say {told} of the first GPU, \
                 by which HAMi-core keeps a pod within its part"
            );
            assert_eq!(error.to_string(), told);
        }
    }
}

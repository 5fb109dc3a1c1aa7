//! What containers use of their parts of GPUs can be seen on the node.
//!
//! HAMi-core counts it in a file of each container, and HAMi's monitor reads those of all. So a container
//! that is kept within its part by `GPUEnvInject` has a folder of the node in the place of the
//! library's, and is told the file. The folder is made right before the container, and goes when its
//! pod has gone: what a hook decides has to be the same whoever asks, so whoever applies it does that.
//!
//! Where this differs from Koordinator v1.8:
//! - a folder that cannot be made costs a container its monitoring and nothing of its part of the GPU;
//! - nobody but root may come to the folder, or put anything beside it, and it goes again with its pod;
//! - it is mounted whichever front there is; upstream's needs the runtime's plugin.

use crate::{
    adjustment::Adjustment,
    hami_core::{HAMI_CORE_FOLDERS, HAMI_CORE_SEPARATOR},
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity},
    unsafe_path::{PathProblem, UnsafePath},
    view::{ContainerView, HookOptions, PodView, Stage, View},
};
use koord_model::{Bind, Env, Injection, Setting, Value};
use std::{path::PathBuf, sync::Arc};

pub(super) const META: HookMeta = HookMeta {
    name: "HamiCoreVGPUMonitor",
    gate: HookOptions::HAMI_CORE_VGPU_MONITOR,
    default_on: false,
    maturity: Maturity::Alpha,
    options: &[],
    stages: &[Stage::Container],
    fail_policy: FailPolicy::Open,
    doc: "has HAMi-core count on the node what containers use that GPUEnvInject keeps within their part",
    inputs: Inputs {
        labels: &[],
        annotations: &[],
    },
    settings: &[Setting::GpuMonitor],
};

pub(super) struct HamiCoreVgpuMonitor;

/// The longest name of a folder that file systems take, in bytes.
const MAX_NAME: usize = 255;

// === impl HamiCoreVgpuMonitor ===

impl Hook for HamiCoreVgpuMonitor {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        let kept = view.container.filter(|_| is_kept(view));
        let library = &*view.node.options.hami_core_library;
        let counted = kept.map(|container| injection(view.pod, container, library));
        Ok(Adjustment {
            gpu_monitor: counted.transpose()?.map(Arc::new),
            ..Adjustment::default()
        })
    }
}

/// Whether the container is given HAMi-core, which is all that it is given to mount.
fn is_kept(view: &View<'_>) -> bool {
    match view.earlier.get(Setting::Gpu) {
        Some((Value::Gpu(gpu), _)) => !gpu.binds.is_empty(),
        _ => false,
    }
}

fn injection(
    pod: &PodView,
    container: &ContainerView,
    library: &str,
) -> Result<Injection, HookError> {
    let refused = |path: &str, problem| {
        let path = PathBuf::from(path);
        HookError::HamiCore(UnsafePath { path, problem })
    };
    let around = library.rsplit_once('/').map_or("", |(around, _)| around);
    let around = around.trim_end_matches('/');
    if around.is_empty() {
        // It would be in the place of all that the container has.
        let expected = "a directory of the library's own";
        return Err(refused("/", PathProblem::OtherKind { expected }));
    }
    let name = format!("{}{HAMI_CORE_SEPARATOR}{}", pod.uid, container.name);
    let folders = format!("{around}/{HAMI_CORE_FOLDERS}");
    if container.name.is_empty() || name.contains(['/', '\0']) || name.len() > MAX_NAME {
        return Err(refused(&folders, PathProblem::Name));
    }
    let cache = format!("{around}/{name}.cache");
    Ok(Injection {
        envs: vec![Env::is("CUDA_DEVICE_MEMORY_SHARED_CACHE", cache)],
        binds: vec![Bind {
            path: around.into(),
            source: Some(format!("{folders}/{name}").into()),
            read_only: false,
        }],
        ..Injection::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixture::{container, decide_container_after, kept_by_hami_core, node, pod},
        merge::Merged,
        view::NodeView,
    };
    use std::error::Error as _;

    fn decided(
        node: &NodeView,
        container: &ContainerView,
        earlier: &Merged,
    ) -> Result<Option<Arc<Injection>>, HookError> {
        let pod = pod("LS", &[]);
        let decided = decide_container_after(&HamiCoreVgpuMonitor, &pod, container, node, earlier);
        Ok(decided?.gpu_monitor)
    }

    #[test]
    fn a_container_within_a_part_of_a_gpu_has_a_file_and_a_folder_of_its_own_to_be_counted_in() {
        let counted = decided(&node(), &container("main"), &kept_by_hami_core());
        let expected = Injection {
            envs: vec![Env::is(
                "CUDA_DEVICE_MEMORY_SHARED_CACHE",
                "/usr/local/vgpu/5f2b8a9e_main.cache",
            )],
            binds: vec![Bind {
                path: "/usr/local/vgpu".into(),
                source: Some("/usr/local/vgpu/containers/5f2b8a9e_main".into()),
                read_only: false,
            }],
            devices: Vec::new(),
        };
        assert_eq!(counted.unwrap().as_deref(), Some(&expected));
    }

    #[test]
    fn who_is_not_given_hami_core_is_not_counted() {
        let mut whole = Merged::default();
        let seen = Injection {
            envs: vec![Env::is("NVIDIA_VISIBLE_DEVICES", "3")],
            ..Injection::default()
        };
        let seen = Adjustment {
            gpu: Some(Arc::new(seen)),
            ..Adjustment::default()
        };
        whole.merge("GPUEnvInject", seen).unwrap();
        for earlier in [Merged::default(), whole] {
            let decided = decided(&node(), &container("main"), &earlier).unwrap();
            assert_eq!(decided, None);
        }
    }

    #[test]
    fn no_name_of_a_container_leads_out_of_the_folders() {
        let long = "x".repeat(255);
        for name in ["", "../../../etc", "a/b", "a\0b", &long] {
            let refused = decided(&node(), &container(name), &kept_by_hami_core());
            assert_eq!(
                refused.unwrap_err().source().unwrap().to_string(),
                "/usr/local/vgpu/containers cannot have a folder that is called after the pod and the \
                 container",
                "{name}"
            );
        }
    }

    #[test]
    fn a_library_at_the_root_has_no_directory_that_could_be_replaced() {
        for library in ["/libvgpu.so", "//libvgpu.so"] {
            let mut node = node();
            node.options.hami_core_library = library.into();
            let refused = decided(&node, &container("main"), &kept_by_hami_core());
            let error = refused.unwrap_err();
            assert_eq!(
                [error.to_string(), error.source().unwrap().to_string()],
                [
                    "containers are not given HAMi-core of this node",
                    "/ is not a directory of the library's own"
                ]
            );
        }
    }
}

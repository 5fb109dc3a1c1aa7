//! Containers have the devices of RDMA that the scheduler has given their pod, and the one by which
//! connections are made.
//!
//! A device is named by its place on the PCI bus, which is looked up among the RDMA devices of the
//! node: whatever an annotation says, nothing else is ever given. CRI does not say which container
//! asked for it, so each has the same, as upstream's. Half of what a pod was given would fail later
//! and worse, so one device that is not there costs the pod all of them.
//!
//! Where this differs from Koordinator v1.8:
//! - containers have the devices whichever front there is; upstream's needs the runtime's plugin;
//! - a device that the container has already is not added a second time, which a runtime refuses
//!   where another plugin has added it;
//! - a function without a device is an error of the hook; upstream's dereferences a nil error there.

use crate::{
    adjustment::Adjustment,
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity},
    rdma::{RdmaDevices, RdmaNode},
    view::{ContainerKind, HookOptions, PodView, Stage, View},
};
use koord_model::{DeviceNode, Injection, Setting};
use koord_proto::keys::annotation;
use std::sync::Arc;

pub(super) const META: HookMeta = HookMeta {
    name: "RDMADeviceInject",
    gate: HookOptions::RDMA_DEVICE_INJECT,
    default_on: false,
    maturity: Maturity::Alpha,
    options: &[],
    stages: &[Stage::Container],
    fail_policy: FailPolicy::Open,
    doc: "gives containers the RDMA devices that their pod was given",
    inputs: Inputs {
        labels: &[],
        annotations: &[annotation::DEVICE_ALLOCATED],
    },
    settings: &[Setting::Rdma],
};

pub(super) struct RdmaDeviceInject;

// === impl RdmaDeviceInject ===

impl Hook for RdmaDeviceInject {
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError> {
        let regular = view
            .container
            .is_some_and(|it| it.kind == ContainerKind::Regular);
        Ok(Adjustment {
            rdma: match regular {
                true => injection(view.pod, &view.node.kernel.rdma)?.map(Arc::new),
                false => None,
            },
            ..Adjustment::default()
        })
    }
}

fn injection(pod: &PodView, node: &RdmaDevices) -> Result<Option<Injection>, HookError> {
    let Some(devices) = pod.devices()? else {
        return Ok(None);
    };
    let functions = devices.rdma_functions()?;
    if functions.is_empty() {
        return Ok(None);
    }
    let mut devices = Vec::new();
    for address in functions {
        let verbs = node.verbs.get(&address);
        let verbs = there(verbs.ok_or(HookError::NoRdmaDevice { address })?)?;
        if !devices.contains(&verbs) {
            devices.push(verbs);
        }
    }
    let connections = node.connections.as_ref();
    devices.push(there(connections.ok_or(HookError::NoRdmaConnections)?)?);
    Ok(Some(Injection {
        devices,
        ..Injection::default()
    }))
}

fn there(node: &RdmaNode) -> Result<DeviceNode, HookError> {
    node.clone().map_err(HookError::RdmaNode)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        fixture::{container, decide_container, node, pod, sandbox},
        unsafe_path::{PathProblem, UnsafePath},
        view::NodeView,
    };
    use std::error::Error as _;

    const DEVICE: &str = r#"{"rdma":[{"minor":0,"id":"0000:65:00.0"}]}"#;

    fn decided(devices: &str, node: &NodeView) -> Result<String, HookError> {
        let pod = pod("", &[(annotation::DEVICE_ALLOCATED, devices)]);
        let adjustment = decide_container(&RdmaDeviceInject, &pod, &container("main"), node)?;
        let injection = adjustment.rdma.unwrap_or_default();
        assert_eq!((injection.envs.len(), injection.binds.len()), (0, 0));
        let devices = injection.devices.iter();
        let devices = devices.map(|it| format!("{} {}", it.path, it.number));
        Ok(devices.collect::<Vec<_>>().join(", "))
    }

    #[test]
    fn containers_have_the_rdma_devices_of_their_pod_and_the_one_for_connections() {
        for (devices, given) in [
            (
                DEVICE,
                "/dev/infiniband/uverbs0 231:192, /dev/infiniband/rdma_cm 10:58",
            ),
            // The virtual functions of a device instead of itself, each once.
            (
                r#"{"rdma":[{"id":"0000:65:00.0","extension":{"vfs":[{"minor":-1,"busID":"0000:65:00.2"}]}},
                    {"extension":{"vfs":[{"busID":"0000:65:00.2"}]}}]}"#,
                "/dev/infiniband/uverbs2 231:194, /dev/infiniband/rdma_cm 10:58",
            ),
            (r#"{"rdma":[]}"#, ""),
            (r#"{"gpu":[{"minor":1}]}"#, ""),
        ] {
            assert_eq!(decided(devices, &node()).unwrap(), given, "{devices}");
        }
        let pod = pod("", &[(annotation::DEVICE_ALLOCATED, DEVICE)]);
        let pause = decide_container(&RdmaDeviceInject, &pod, &sandbox(), &node());
        assert_eq!(pause.unwrap(), Adjustment::default());
    }

    #[test]
    fn what_is_no_rdma_device_of_the_node_no_container_is_given() {
        let error = |devices: &str, node: &NodeView| {
            let error = decided(devices, node).unwrap_err();
            assert_eq!(error.key(), "scheduling.koordinator.sh/device-allocated");
            error
        };
        let both = r#"{"rdma":[{"id":"0000:65:00.0"},{"id":"0000:00:02.0"}]}"#;
        assert_eq!(
            error(both, &node()).to_string(),
            "scheduling.koordinator.sh/device-allocated names 0000:00:02.0, which is no RDMA device \
             of this node"
        );
        let mut node = node();
        node.kernel.rdma.connections = None;
        assert_eq!(
            error(DEVICE, &node).to_string(),
            "this node has no device by which connections of RDMA are made"
        );
        // Who is given no device needs none to make connections.
        assert_eq!(decided(r#"{"rdma":[]}"#, &node).unwrap(), "");
    }

    #[test]
    fn a_device_that_the_runtime_would_not_find_costs_the_pod_all_of_them() {
        let mut node = node();
        let address = "0000:65:00.2".parse().unwrap();
        let missing = UnsafePath {
            path: "/dev/infiniband/uverbs2".into(),
            problem: PathProblem::Missing,
        };
        node.kernel.rdma.verbs.insert(address, Err(missing));
        let both = r#"{"rdma":[{"id":"0000:65:00.0"},{"id":"0000:65:00.2"}]}"#;
        let error = decided(both, &node).unwrap_err();
        assert_eq!(
            [error.to_string(), error.source().unwrap().to_string()],
            [
                "containers are not given a device of this node",
                "/dev/infiniband/uverbs2 is not there"
            ]
        );
        assert_eq!(
            decided(DEVICE, &node).unwrap(),
            "/dev/infiniband/uverbs0 231:192, /dev/infiniband/rdma_cm 10:58"
        );
    }
}

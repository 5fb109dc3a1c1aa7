//! Pods and containers as a kubelet would describe them, built field by field.

use super::message::{
    ContainerConfig, ContainerMetadata, ContainerSecurityContext, ImageSpec, KeyValue,
    LinuxContainerConfig, LinuxContainerResources, LinuxPodSandboxConfig, NamespaceOption,
    PodSandboxConfig, PodSandboxMetadata, RunPodSandboxRequest, SecurityContext,
};
use crate::cgroup::PodCgroup;
use crate::setup::BUSYBOX_IMAGE;

// Modes of namespaces.
const POD: i32 = 0;
const CONTAINER: i32 = 1;
const NODE: i32 = 2;

/// A pod on the node's own network, with the labels that every kubelet sets.
#[derive(Debug, Clone)]
pub struct PodSpec {
    /// What is sent: change what no method names.
    pub request: RunPodSandboxRequest,
}

impl PodSpec {
    /// A pod in the namespace `default`; its UID is `uid-NAME`.
    pub fn new(name: &str) -> Self {
        let uid = format!("uid-{name}");
        let config = PodSandboxConfig {
            metadata: Some(PodSandboxMetadata {
                name: name.to_owned(),
                uid: uid.clone(),
                namespace: "default".to_owned(),
                attempt: 0,
            }),
            linux: Some(LinuxPodSandboxConfig {
                security_context: Some(SecurityContext {
                    namespace_options: Some(namespaces(NODE)),
                }),
                ..Default::default()
            }),
            ..Default::default()
        };
        Self {
            request: RunPodSandboxRequest {
                config: Some(config),
                runtime_handler: String::new(),
            },
        }
        .label("io.kubernetes.pod.name", name)
        .label("io.kubernetes.pod.namespace", "default")
        .label("io.kubernetes.pod.uid", &uid)
    }

    /// The configuration, which CreateContainer repeats.
    pub fn config(&self) -> &PodSandboxConfig {
        self.request.config.as_ref().expect("set by new")
    }

    fn config_mut(&mut self) -> &mut PodSandboxConfig {
        self.request.config.get_or_insert_default()
    }

    /// The pod's UID.
    pub fn uid(&self) -> &str {
        &self.config().metadata.as_ref().expect("set by new").uid
    }

    /// Sets a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        let labels = &mut self.config_mut().labels;
        labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Sets an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        let annotations = &mut self.config_mut().annotations;
        annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Moves the pod to another namespace.
    #[must_use]
    pub fn namespace(mut self, namespace: &str) -> Self {
        let metadata = self.config_mut().metadata.get_or_insert_default();
        namespace.clone_into(&mut metadata.namespace);
        self.label("io.kubernetes.pod.namespace", namespace)
    }

    /// Names the runtime handler.
    #[must_use]
    pub fn handler(mut self, handler: &str) -> Self {
        handler.clone_into(&mut self.request.runtime_handler);
        self
    }

    /// Puts the pod into a cgroup that is there already, as a kubelet does.
    #[must_use]
    pub fn cgroup(mut self, cgroup: &PodCgroup) -> Self {
        let linux = self.config_mut().linux.get_or_insert_default();
        cgroup.path().clone_into(&mut linux.cgroup_parent);
        self
    }

    /// Gives the pod a network of its own instead of the node's.
    #[must_use]
    pub fn own_network(mut self) -> Self {
        let linux = self.config_mut().linux.get_or_insert_default();
        linux.security_context = Some(SecurityContext {
            namespace_options: Some(namespaces(POD)),
        });
        self
    }

    /// Where the logs of its containers go.
    #[must_use]
    pub fn log_directory(mut self, directory: &str) -> Self {
        directory.clone_into(&mut self.config_mut().log_directory);
        self
    }
}

/// A container of [`BUSYBOX_IMAGE`] that sleeps until it is told to end.
#[derive(Debug, Clone)]
pub struct ContainerSpec {
    /// What is sent: change what no method names.
    pub config: ContainerConfig,
}

impl ContainerSpec {
    /// A container with a kubelet's label for its name.
    pub fn new(name: &str) -> Self {
        let config = ContainerConfig {
            metadata: Some(ContainerMetadata {
                name: name.to_owned(),
                attempt: 0,
            }),
            image: Some(ImageSpec {
                image: BUSYBOX_IMAGE.to_owned(),
                user_specified_image: BUSYBOX_IMAGE.to_owned(),
            }),
            linux: Some(LinuxContainerConfig {
                resources: None,
                security_context: Some(ContainerSecurityContext {
                    namespace_options: Some(namespaces(NODE)),
                }),
            }),
            ..Default::default()
        };
        Self { config }.label("io.kubernetes.container.name", name)
    }

    /// Sets a label.
    #[must_use]
    pub fn label(mut self, key: &str, value: &str) -> Self {
        self.config.labels.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Sets an annotation.
    #[must_use]
    pub fn annotation(mut self, key: &str, value: &str) -> Self {
        let annotations = &mut self.config.annotations;
        annotations.insert(key.to_owned(), value.to_owned());
        self
    }

    /// Replaces the command.
    #[must_use]
    pub fn command<const N: usize>(mut self, command: [&str; N]) -> Self {
        self.config.command = command.map(str::to_owned).to_vec();
        self
    }

    /// Appends an environment variable, whatever bytes its value has.
    #[must_use]
    pub fn env(mut self, key: &str, value: &[u8]) -> Self {
        self.config.envs.push(KeyValue {
            key: key.to_owned(),
            value: value.to_vec(),
        });
        self
    }

    /// Asks for resources.
    #[must_use]
    pub fn resources(mut self, resources: LinuxContainerResources) -> Self {
        self.config.linux.get_or_insert_default().resources = Some(resources);
        self
    }

    /// Writes its output to this file of the pod's log directory.
    #[must_use]
    pub fn log_path(mut self, path: &str) -> Self {
        path.clone_into(&mut self.config.log_path);
        self
    }
}

/// Those that a kubelet asks for.
fn namespaces(network: i32) -> NamespaceOption {
    NamespaceOption {
        network,
        pid: CONTAINER,
        ipc: POD,
    }
}

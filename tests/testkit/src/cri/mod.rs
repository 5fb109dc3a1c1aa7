//! A small CRI client: the calls that a kubelet makes for a pod's life, over [`RawClient`].

pub mod message;
mod spec;

use std::path::Path;

use bytes::Bytes;
use prost::{DecodeError, Message};

use crate::raw::{RawClient, RawEnd, RawError, RawRequest};

use message::{
    Container, ContainerId, ContainerStatusResponse, CreateContainerRequest, Empty,
    ExecSyncRequest, ExecSyncResponse, ImageSpec, ImageStatusRequest, ImageStatusResponse,
    LinuxContainerResources, ListContainersResponse, ListPodSandboxResponse, PodSandbox,
    PodSandboxId, PodSandboxStatusResponse, StatusRequest, StopContainerRequest,
    UpdateContainerResourcesRequest, VersionRequest, VersionResponse,
};
pub use spec::{ContainerSpec, PodSpec};

/// Why a call has no answer to give.
#[derive(Debug, thiserror::Error)]
pub enum CallError {
    /// The call could not be sent.
    #[error("call not sent")]
    Send(#[from] RawError),
    /// The other side answered with a gRPC status that is not OK.
    #[error("status {code}: {message}")]
    Status {
        code: i32,
        message: String,
        /// `grpc-status-details-bin` as it came, in base64.
        details: Option<Bytes>,
    },
    /// The reply ended without a gRPC status.
    #[error("reply ended without a status: {end:?}")]
    CutOff { end: RawEnd },
    /// The reply is not the message that was expected.
    #[error("reply is not the expected message")]
    Decode(#[from] DecodeError),
}

impl CallError {
    /// The gRPC status code of the answer, if there was one.
    pub fn code(&self) -> Option<i32> {
        match self {
            Self::Status { code, .. } => Some(*code),
            Self::Send(_) | Self::CutOff { .. } | Self::Decode(_) => None,
        }
    }
}

/// A CRI client on one connection.
#[derive(Debug)]
pub struct CriClient {
    raw: RawClient,
    package: &'static str,
}

impl CriClient {
    /// Connects, speaking `runtime.v1`.
    ///
    /// # Errors
    ///
    /// When nothing listens there.
    pub async fn connect(socket: &Path) -> Result<Self, CallError> {
        Ok(Self {
            raw: RawClient::connect(socket).await?,
            package: "runtime.v1",
        })
    }

    /// Speaks `runtime.v1alpha2` instead, which has the same messages.
    #[must_use]
    pub fn v1alpha2(mut self) -> Self {
        self.package = "runtime.v1alpha2";
        self
    }

    /// The connection below, for calls by bytes.
    pub fn raw(&self) -> &RawClient {
        &self.raw
    }

    /// Calls any unary method of the runtime service.
    ///
    /// # Errors
    ///
    /// See [`CallError`]; so for every call here.
    pub async fn runtime<Q: Message, A: Message + Default>(
        &self,
        method: &str,
        request: &Q,
    ) -> Result<A, CallError> {
        self.call("RuntimeService", method, request).await
    }

    async fn call<Q: Message, A: Message + Default>(
        &self,
        service: &str,
        method: &str,
        request: &Q,
    ) -> Result<A, CallError> {
        let path = format!("/{}.{service}/{method}", self.package);
        let request = RawRequest::unary(&path, request.encode_to_vec());
        let reply = self.raw.call(request).await?;
        let Some(code) = reply.grpc_status() else {
            return Err(CallError::CutOff { end: reply.end });
        };
        if code != 0 {
            let text = |name| {
                reply
                    .ending(name)
                    .map(|value| Bytes::copy_from_slice(value.as_bytes()))
            };
            let message = text("grpc-message").unwrap_or_default();
            return Err(CallError::Status {
                code,
                message: String::from_utf8_lossy(&message).into_owned(),
                details: text("grpc-status-details-bin"),
            });
        }
        let message = reply.messages.first().map(|frame| frame.message.clone());
        Ok(A::decode(message.unwrap_or_default())?)
    }

    /// Version.
    pub async fn version(&self) -> Result<VersionResponse, CallError> {
        self.runtime("Version", &VersionRequest::default()).await
    }

    /// RunPodSandbox; returns the sandbox's id.
    pub async fn run_pod(&self, pod: &PodSpec) -> Result<String, CallError> {
        let reply: PodSandboxId = self.runtime("RunPodSandbox", &pod.request).await?;
        Ok(reply.pod_sandbox_id)
    }

    /// StopPodSandbox.
    pub async fn stop_pod(&self, id: &str) -> Result<(), CallError> {
        let _: Empty = self.runtime("StopPodSandbox", &sandbox(id)).await?;
        Ok(())
    }

    /// RemovePodSandbox.
    pub async fn remove_pod(&self, id: &str) -> Result<(), CallError> {
        let _: Empty = self.runtime("RemovePodSandbox", &sandbox(id)).await?;
        Ok(())
    }

    /// CreateContainer in a sandbox that runs; returns the container's id.
    pub async fn create_container(
        &self,
        pod_id: &str,
        container: &ContainerSpec,
        pod: &PodSpec,
    ) -> Result<String, CallError> {
        let request = CreateContainerRequest {
            pod_sandbox_id: pod_id.to_owned(),
            config: Some(container.config.clone()),
            sandbox_config: Some(pod.config().clone()),
        };
        let reply: ContainerId = self.runtime("CreateContainer", &request).await?;
        Ok(reply.container_id)
    }

    /// StartContainer.
    pub async fn start_container(&self, id: &str) -> Result<(), CallError> {
        let _: Empty = self.runtime("StartContainer", &container(id)).await?;
        Ok(())
    }

    /// StopContainer; it is killed when it has not ended after `timeout_seconds`.
    pub async fn stop_container(&self, id: &str, timeout_seconds: i64) -> Result<(), CallError> {
        let request = StopContainerRequest {
            container_id: id.to_owned(),
            timeout_seconds,
        };
        let _: Empty = self.runtime("StopContainer", &request).await?;
        Ok(())
    }

    /// RemoveContainer.
    pub async fn remove_container(&self, id: &str) -> Result<(), CallError> {
        let _: Empty = self.runtime("RemoveContainer", &container(id)).await?;
        Ok(())
    }

    /// UpdateContainerResources.
    pub async fn update_resources(
        &self,
        id: &str,
        resources: LinuxContainerResources,
    ) -> Result<(), CallError> {
        let request = UpdateContainerResourcesRequest {
            container_id: id.to_owned(),
            linux: Some(resources),
            ..Default::default()
        };
        let _: Empty = self.runtime("UpdateContainerResources", &request).await?;
        Ok(())
    }

    /// ContainerStatus, verbose.
    pub async fn container_status(&self, id: &str) -> Result<ContainerStatusResponse, CallError> {
        self.runtime("ContainerStatus", &verbose(id)).await
    }

    /// PodSandboxStatus, verbose.
    pub async fn pod_status(&self, id: &str) -> Result<PodSandboxStatusResponse, CallError> {
        self.runtime("PodSandboxStatus", &verbose(id)).await
    }

    /// ListContainers without a filter.
    pub async fn list_containers(&self) -> Result<Vec<Container>, CallError> {
        let reply: ListContainersResponse = self.runtime("ListContainers", &Empty {}).await?;
        Ok(reply.containers)
    }

    /// ListPodSandbox without a filter.
    pub async fn list_pods(&self) -> Result<Vec<PodSandbox>, CallError> {
        let reply: ListPodSandboxResponse = self.runtime("ListPodSandbox", &Empty {}).await?;
        Ok(reply.items)
    }

    /// ExecSync without a time limit.
    pub async fn exec<const N: usize>(
        &self,
        id: &str,
        command: [&str; N],
    ) -> Result<ExecSyncResponse, CallError> {
        let request = ExecSyncRequest {
            container_id: id.to_owned(),
            cmd: command.map(str::to_owned).to_vec(),
            timeout_seconds: 0,
        };
        self.runtime("ExecSync", &request).await
    }

    /// Whether the image service knows an image.
    pub async fn has_image(&self, image: &str) -> Result<bool, CallError> {
        let request = ImageStatusRequest {
            image: Some(ImageSpec {
                image: image.to_owned(),
                ..Default::default()
            }),
        };
        let reply: ImageStatusResponse = self.call("ImageService", "ImageStatus", &request).await?;
        Ok(reply.image.is_some())
    }
}

/// The id of the first process of a container or sandbox, from the `info` of a verbose status.
pub fn pid(info: &message::Map) -> Option<u32> {
    let info: serde_json::Value = serde_json::from_str(info.get("info")?).ok()?;
    u32::try_from(info.get("pid")?.as_u64()?).ok()
}

fn sandbox(id: &str) -> PodSandboxId {
    PodSandboxId {
        pod_sandbox_id: id.to_owned(),
    }
}

fn container(id: &str) -> ContainerId {
    ContainerId {
        container_id: id.to_owned(),
    }
}

fn verbose(id: &str) -> StatusRequest {
    StatusRequest {
        id: id.to_owned(),
        verbose: true,
    }
}

//! Our own calls to the runtime: lists and questions, never anything that changes it, but for what
//! `--revert` tells it.
//!
//! These use the kept gRPC library over a connection of their own, made for one list and closed
//! after it, or for as long as the runtime tells of its containers. What clients say never goes this
//! way.

mod info;

pub use self::info::Info;

use bytes::Bytes;
use hyper_util::rt::TokioIo;
use koord_proto::{client::v1::runtime_service_client::RuntimeServiceClient, cri};
use std::{
    collections::HashMap,
    future::Future,
    io,
    path::{Path, PathBuf},
    sync::Mutex,
    time::Duration,
};
use thiserror::Error;
use tokio::{net::UnixStream, task::yield_now};
use tonic::{
    Code, Status,
    transport::{Channel, Endpoint, Uri},
};
use tower::service_fn;

/// No question of ours may take longer.
const DEADLINE: Duration = Duration::from_secs(10);
/// No question about one pod or container may take longer: a dead shim answers late or never.
const POD_DEADLINE: Duration = Duration::from_secs(1);
/// What CRI-O sends in one message at most; containerd stays at 16 MiB.
const MAX_REPLY: usize = 80 << 20;
/// Bytes of a list that are read before others have their turn: a few milliseconds.
const READ_AT_ONCE: usize = 1 << 20;

/// Why the runtime could not be asked.
#[derive(Debug, Error)]
pub enum RuntimeError {
    #[error("cannot connect to the runtime at {}", socket.display())]
    Connect { socket: PathBuf, source: io::Error },
    #[error("no gRPC connection to the runtime")]
    Transport(#[from] tonic::transport::Error),
    #[error("the runtime failed {call}")]
    Call {
        call: &'static str,
        source: Box<Status>,
    },
    #[error("the runtime did not answer {call} in time")]
    Late { call: &'static str },
    #[error("the runtime's answer to {call} has an entry that is none")]
    Malformed { call: &'static str },
}

/// A connection to ask over.
pub struct Runtime {
    client: RuntimeServiceClient<Channel>,
}

// === impl RuntimeError ===

impl RuntimeError {
    /// What comes of a connection to this socket that cannot be made.
    pub(crate) fn connect(socket: &Path) -> impl FnOnce(io::Error) -> Self {
        move |source| Self::Connect {
            socket: socket.to_owned(),
            source,
        }
    }
}

// === impl Runtime ===

impl Runtime {
    /// Speaks gRPC over a connected socket.
    ///
    /// # Errors
    ///
    /// When gRPC cannot be begun over it, as when the other end is closed.
    pub async fn over(stream: UnixStream) -> Result<Self, RuntimeError> {
        let client = RuntimeServiceClient::new(channel(stream).await?);
        let client = client.max_decoding_message_size(MAX_REPLY);
        Ok(Self { client })
    }

    /// What the runtime is called, and its version.
    ///
    /// # Errors
    ///
    /// When the call fails, or is not answered within 10 s.
    pub async fn version(&mut self) -> Result<cri::VersionResponse, RuntimeError> {
        let request = cri::VersionRequest::default();
        answer("Version", DEADLINE, self.client.version(request)).await
    }

    /// All sandboxes, with those of their labels and annotations whose key `keep` takes.
    ///
    /// # Errors
    ///
    /// When the call fails, as by an answer of more than 80 MiB, or is not answered within 10 s; and when one
    /// entry cannot be read, which spoils the list.
    pub async fn sandboxes(
        &mut self,
        keep: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<cri::PodSandbox>, RuntimeError> {
        const CALL: &str = "ListPodSandbox";
        let request = cri::ListPodSandboxRequest::default();
        let list = answer(CALL, DEADLINE, self.client.list_pod_sandbox(request)).await?;
        each(CALL, list.items, |item| {
            cri::PodSandbox::read_keeping(item, &keep)
        })
        .await
    }

    /// All containers, with those of their annotations whose key `keep` takes.
    ///
    /// # Errors
    ///
    /// When the call fails, as by an answer of more than 80 MiB, or is not answered within 10 s; and when one
    /// entry cannot be read, which spoils the list.
    pub async fn containers(
        &mut self,
        keep: impl Fn(&[u8]) -> bool,
    ) -> Result<Vec<cri::Container>, RuntimeError> {
        const CALL: &str = "ListContainers";
        let request = cri::ListContainersRequest::default();
        let list = answer(CALL, DEADLINE, self.client.list_containers(request)).await?;
        each(CALL, list.containers, |item| {
            cri::Container::read_keeping(item, &keep)
        })
        .await
    }

    /// What the runtime says of a sandbox beyond the API; `None` if it is gone or says nothing.
    ///
    /// # Errors
    ///
    /// When the call fails with another code than `NotFound`, or is not answered within 1 s.
    pub async fn sandbox_info(&mut self, sandbox: &str) -> Result<Option<Info>, RuntimeError> {
        let status = self.ask_of_sandbox(sandbox, true).await?;
        Ok(status.and_then(|status| info(&status.info)))
    }

    /// What the runtime says of a sandbox; `None` if it is gone.
    ///
    /// # Errors
    ///
    /// When the call fails with another code than `NotFound`, or is not answered within 1 s.
    pub async fn sandbox_status(
        &mut self,
        sandbox: &str,
    ) -> Result<Option<cri::PodSandboxStatus>, RuntimeError> {
        let status = self.ask_of_sandbox(sandbox, false).await?;
        Ok(status.and_then(|status| status.status))
    }

    async fn ask_of_sandbox(
        &mut self,
        sandbox: &str,
        verbose: bool,
    ) -> Result<Option<cri::PodSandboxStatusResponse>, RuntimeError> {
        let request = cri::PodSandboxStatusRequest {
            pod_sandbox_id: sandbox.to_owned(),
            verbose,
        };
        let reply = self.client.pod_sandbox_status(request);
        if_there(answer("PodSandboxStatus", POD_DEADLINE, reply).await)
    }

    /// Has a container have other resources, if it is there.
    ///
    /// # Errors
    ///
    /// When the call fails with another code than `NotFound`, or is not answered within 10 s.
    pub async fn update(
        &mut self,
        request: cri::UpdateContainerResourcesRequest,
    ) -> Result<(), RuntimeError> {
        let reply = self.client.update_container_resources(request);
        let answer = answer("UpdateContainerResources", DEADLINE, reply).await;
        if_there(answer).map(drop)
    }

    /// What the runtime says of a container beyond the API; `None` if it is gone or says nothing.
    ///
    /// # Errors
    ///
    /// When the call fails with another code than `NotFound`, or is not answered within 1 s.
    pub async fn container_info(&mut self, container: &str) -> Result<Option<Info>, RuntimeError> {
        let request = cri::ContainerStatusRequest {
            container_id: container.to_owned(),
            verbose: true,
        };
        let reply = self.client.container_status(request);
        let status = answer("ContainerStatus", POD_DEADLINE, reply).await;
        Ok(if_there(status)?.and_then(|status| info(&status.info)))
    }
}

/// gRPC over a connected socket.
pub(crate) async fn channel(stream: UnixStream) -> Result<Channel, RuntimeError> {
    let once = Mutex::new(Some(stream));
    let connector = service_fn(move |_: Uri| {
        let stream = once.lock().ok().and_then(|mut stream| stream.take());
        let stream = stream.ok_or_else(|| io::Error::from(io::ErrorKind::NotConnected));
        std::future::ready(stream.map(TokioIo::new))
    });
    // The name is only the `:authority`; the connector knows where to go.
    let endpoint = Endpoint::from_static("http://localhost");
    Ok(endpoint.connect_with_connector(connector).await?)
}

/// What every entry of a list says. One that cannot be read spoils the list: who is not in it has ended.
async fn each<T>(
    call: &'static str,
    entries: Vec<Bytes>,
    read: impl Fn(&[u8]) -> Option<T>,
) -> Result<Vec<T>, RuntimeError> {
    let mut listed = Vec::with_capacity(entries.len());
    let mut at_once = 0;
    for entry in entries {
        listed.push(read(&entry).ok_or(RuntimeError::Malformed { call })?);
        at_once += entry.len();
        if at_once > READ_AT_ONCE {
            at_once = 0;
            yield_now().await;
        }
    }
    Ok(listed)
}

fn info(verbose: &HashMap<String, String>) -> Option<Info> {
    Info::read(verbose.get("info")?)
}

/// What was asked about may have gone meanwhile.
fn if_there<T>(answer: Result<T, RuntimeError>) -> Result<Option<T>, RuntimeError> {
    match answer {
        Ok(answer) => Ok(Some(answer)),
        Err(RuntimeError::Call { source, .. }) if source.code() == Code::NotFound => Ok(None),
        Err(error) => Err(error),
    }
}

async fn answer<T>(
    call: &'static str,
    deadline: Duration,
    reply: impl Future<Output = Result<tonic::Response<T>, Status>>,
) -> Result<T, RuntimeError> {
    match tokio::time::timeout(deadline, reply).await {
        Ok(Ok(reply)) => Ok(reply.into_inner()),
        Ok(Err(status)) => Err(RuntimeError::Call {
            call,
            source: Box::new(status),
        }),
        Err(_) => Err(RuntimeError::Late { call }),
    }
}

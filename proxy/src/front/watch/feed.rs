//! How runtimes tell of their containers: containerd by its own events, which it tells all who ask;
//! others by those of the CRI. containerd has these too, since 1.7, but there they are one queue: who
//! else takes from it takes them from the kubelet.

use crate::hub::Hub;
use koord_model::ContainerId;
use koord_proto::{
    client::{
        containerd_events::{Envelope, SubscribeRequest, events_client::EventsClient},
        v1::runtime_service_client::RuntimeServiceClient,
    },
    cri::GetEventsRequest,
    wire,
};
use std::{convert::Infallible, time::Duration};
use thiserror::Error;
use tokio::time::Instant;
use tonic::{Code, Status, transport::Channel};

/// containerd keeps what came by CRI in this namespace.
const NAMESPACE: &str = "k8s.io";
/// The resources of a container were changed.
const UPDATED: &str = "/containers/update";
/// What is worth a look. Processes that are started in a container, such as probes, are not.
const TOPICS: [&str; 4] = [
    "/tasks/start",
    "/tasks/delete",
    UPDATED,
    "/containers/delete",
];

/// A stream of the CRI that ends sooner, without an error and without having told anything, is that of
/// a runtime that does not tell: CRI-O without `enable_pod_events`.
const AT_ONCE: Duration = Duration::from_secs(1);

/// One way of telling.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Feed {
    Containerd,
    Cri,
}

/// How a stream of it ended.
#[derive(Debug, Error)]
pub(super) enum FeedEnd {
    /// The runtime does not tell in this way, and never will.
    #[error("the runtime does not tell of its containers in this way")]
    Untold,
    #[error("the stream ended")]
    Closed,
    #[error("the stream failed")]
    Failed(#[source] Box<Status>),
}

// === impl FeedEnd ===

impl From<Status> for FeedEnd {
    fn from(status: Status) -> Self {
        match status.code() {
            Code::Unimplemented => Self::Untold,
            _ => Self::Failed(Box::new(status)),
        }
    }
}

// === impl Feed ===

impl Feed {
    /// In the order in which they are tried.
    pub(super) const ALL: [Self; 2] = [Self::Containerd, Self::Cri];

    pub(super) fn name(self) -> &'static str {
        match self {
            Self::Containerd => "containerd's events",
            Self::Cri => "GetContainerEvents",
        }
    }

    /// Asks for a list whenever something is told, until the runtime tells no more.
    pub(super) async fn follow(self, hub: &Hub, channel: Channel) -> Result<Infallible, FeedEnd> {
        match self {
            Self::Containerd => containerd(hub, channel).await,
            Self::Cri => cri(hub, channel).await,
        }
    }
}

async fn containerd(hub: &Hub, channel: Channel) -> Result<Infallible, FeedEnd> {
    let filter = |topic: &str| format!("namespace=={NAMESPACE},topic==\"{topic}\"");
    let request = SubscribeRequest {
        filters: TOPICS.map(filter).into(),
    };
    let told = EventsClient::new(channel).subscribe(request).await?;
    let mut told = told.into_inner();
    while let Some(envelope) = told.message().await? {
        if let Some(id) = updated(&envelope) {
            hub.container_changed(id);
        }
        hub.relist_soon();
    }
    Err(FeedEnd::Closed)
}

/// The container whose resources were changed, if that is what is told.
fn updated(envelope: &Envelope) -> Option<ContainerId> {
    let event = envelope
        .event
        .as_ref()
        .filter(|_| envelope.topic == UPDATED)?;
    ContainerId::new(wire::string_field(&event.value, 1)?).ok()
}

async fn cri(hub: &Hub, channel: Channel) -> Result<Infallible, FeedEnd> {
    let started = Instant::now();
    let mut client = RuntimeServiceClient::new(channel);
    let told = client.get_container_events(GetEventsRequest::default());
    let mut told = told.await?.into_inner();
    let mut tells = false;
    while told.message().await?.is_some() {
        tells = true;
        hub.relist_soon();
    }
    Err(match tells || started.elapsed() > AT_ONCE {
        true => FeedEnd::Closed,
        false => FeedEnd::Untold,
    })
}

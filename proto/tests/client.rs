//! The client calls the service by the name that runtimes serve.

use koord_proto::{
    client::{
        containerd_events::{SubscribeRequest, events_client::EventsClient},
        v1::runtime_service_client::RuntimeServiceClient,
    },
    cri,
};
use std::{
    convert::Infallible,
    future::{Ready, ready},
    sync::{Arc, Mutex},
    task::{Context, Poll},
};
use tonic::{Code, Status, body::Body, codegen::Service};

/// Refuses every call and remembers its path.
#[derive(Clone, Default)]
struct Refuse(Arc<Mutex<Vec<String>>>);

impl Service<http::Request<Body>> for Refuse {
    type Response = http::Response<Body>;
    type Error = Infallible;
    type Future = Ready<Result<Self::Response, Infallible>>;

    fn poll_ready(&mut self, _: &mut Context<'_>) -> Poll<Result<(), Infallible>> {
        Poll::Ready(Ok(()))
    }

    fn call(&mut self, request: http::Request<Body>) -> Self::Future {
        let path = request.uri().path().to_owned();
        self.0.lock().expect("no caller panics").push(path);
        ready(Ok(Status::unimplemented("scripted").into_http()))
    }
}

#[tokio::test]
async fn every_call_has_the_name_that_runtimes_serve() {
    let refuse = Refuse::default();
    let mut client = RuntimeServiceClient::new(refuse.clone());
    let codes = [
        client
            .version(cri::VersionRequest::default())
            .await
            .unwrap_err()
            .code(),
        client
            .list_pod_sandbox(cri::ListPodSandboxRequest::default())
            .await
            .unwrap_err()
            .code(),
        client
            .list_containers(cri::ListContainersRequest::default())
            .await
            .unwrap_err()
            .code(),
        client
            .pod_sandbox_status(cri::PodSandboxStatusRequest::default())
            .await
            .unwrap_err()
            .code(),
        client
            .container_status(cri::ContainerStatusRequest::default())
            .await
            .unwrap_err()
            .code(),
        client
            .update_container_resources(cri::UpdateContainerResourcesRequest::default())
            .await
            .unwrap_err()
            .code(),
        client
            .get_container_events(cri::GetEventsRequest::default())
            .await
            .unwrap_err()
            .code(),
        EventsClient::new(refuse.clone())
            .subscribe(SubscribeRequest::default())
            .await
            .unwrap_err()
            .code(),
    ];
    assert_eq!(codes, [Code::Unimplemented; 8]);
    assert_eq!(
        *refuse.0.lock().unwrap(),
        [
            "/runtime.v1.RuntimeService/Version",
            "/runtime.v1.RuntimeService/ListPodSandbox",
            "/runtime.v1.RuntimeService/ListContainers",
            "/runtime.v1.RuntimeService/PodSandboxStatus",
            "/runtime.v1.RuntimeService/ContainerStatus",
            "/runtime.v1.RuntimeService/UpdateContainerResources",
            "/runtime.v1.RuntimeService/GetContainerEvents",
            "/containerd.services.events.v1.Events/Subscribe",
        ]
    );
}

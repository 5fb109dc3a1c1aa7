//! A runtime for the benchmark: fixed answers as fast as one thread gives them, nothing recorded.
//!
//! It answers every method that a proxy may call for its own knowledge (lists, statuses, versions)
//! with whole CRI messages of a made-up state, gives new sandboxes and containers ids of their own,
//! and echoes what it does not know. It lists the pods that clients run as well, until they remove
//! them: whoever makes containers in a pod that no list has is taken for mistaken. Containers are
//! forgotten unless they are to be kept. Asked for [`LAST_UPDATE`], it says what arrived as the last
//! update of a container.

use std::cell::{Cell, RefCell};
use std::collections::HashMap;
use std::io;
use std::rc::Rc;

use bytes::Bytes;
use h2::RecvStream;
use h2::server::SendResponse;
use http::{HeaderMap, HeaderValue, Request, Response};
use prost::Message;
use serde_json::json;
use tokio::net::{UnixListener, UnixStream};
use tokio::task::LocalSet;

use super::connection::settings;
use super::script::status_block;
use crate::cri::message::{
    Container, ContainerId, ContainerMetadata, ContainerState, ContainerStatus,
    ContainerStatusResponse, CreateContainerRequest, Empty, ImageSpec, ListContainersResponse,
    ListPodSandboxResponse, Map, PodSandbox, PodSandboxId, PodSandboxMetadata,
    PodSandboxStatusResponse, RunPodSandboxRequest, StatusRequest, VersionResponse,
};
use crate::setup::BUSYBOX_IMAGE;
use crate::wire::{Frame, Frames};

/// A method of this runtime's own: its answer is the last request of UpdateContainerResources.
pub const LAST_UPDATE: &str = "/koord.testkit.Instant/LastUpdate";

/// What the lists show.
#[derive(Debug, Clone, Copy)]
pub struct State {
    pub pods: usize,
    /// All containers together; they are dealt out to the pods in turn.
    pub containers: usize,
    /// Size of ListImages' message, at least 16 bytes.
    pub list_bytes: usize,
    /// The lists show the containers too that clients have made. Those end with their pods.
    pub keeps: bool,
}

/// The answers, encoded once.
#[derive(Debug)]
pub struct Instant {
    fixed: HashMap<&'static str, Bytes>,
    /// What was there before any client, as the lists begin.
    pod_list: Vec<u8>,
    container_list: Vec<u8>,
    pods: HashMap<String, PodSandbox>,
    containers: HashMap<String, Container>,
    made: RefCell<Made>,
    keeps: bool,
    /// The DATA of the last UpdateContainerResources.
    last_update: RefCell<Vec<Bytes>>,
    next_id: Cell<u64>,
    head: HeaderMap,
    ok: HeaderMap,
}

/// Pods and containers of clients, in the order in which they came.
#[derive(Debug, Default)]
struct Made {
    pods: Vec<MadePod>,
    containers: Vec<Container>,
}

#[derive(Debug)]
struct MadePod {
    listed: PodSandbox,
    cgroup_parent: String,
}

impl Instant {
    /// Prepares all answers for a state.
    pub fn new(state: &State) -> Self {
        let pods: Vec<PodSandbox> = (0..state.pods).map(pod).collect();
        let containers: Vec<Container> = (0..state.containers)
            .map(|number| container(number, &pods[number % pods.len()]))
            .collect();
        let empty = Frame::plain(Bytes::new()).encode();
        let mut fixed: HashMap<&'static str, Bytes> = [
            "StopPodSandbox",
            "StartContainer",
            "StopContainer",
            "RemoveContainer",
            "UpdateContainerResources",
            "UpdatePodSandboxResources",
            "Status",
        ]
        .map(|method| (method, empty.clone()))
        .into();
        let mut answer =
            |method, message: Vec<u8>| fixed.insert(method, Frame::plain(message).encode());
        answer("Version", version());
        answer("ListImages", list_of_bytes(state.list_bytes));
        let pod_list = ListPodSandboxResponse {
            items: pods.clone(),
        };
        let container_list = ListContainersResponse {
            containers: containers.clone(),
        };
        Self {
            fixed,
            pod_list: pod_list.encode_to_vec(),
            container_list: container_list.encode_to_vec(),
            pods: pods.into_iter().map(|it| (it.id.clone(), it)).collect(),
            containers: containers
                .into_iter()
                .map(|it| (it.id.clone(), it))
                .collect(),
            made: RefCell::default(),
            keeps: state.keeps,
            last_update: RefCell::default(),
            next_id: Cell::new(1 << 32),
            head: HeaderMap::from_iter([(
                http::header::CONTENT_TYPE,
                HeaderValue::from_static("application/grpc"),
            )]),
            ok: status_block(0, ""),
        }
    }

    /// Answers for ever.
    ///
    /// # Errors
    ///
    /// When accepting fails; a connection that fails is closed, and the others go on.
    pub async fn serve(self, listener: UnixListener) -> io::Result<()> {
        let instant = Rc::new(self);
        let local = LocalSet::new();
        local
            .run_until(async {
                loop {
                    let (stream, _) = listener.accept().await?;
                    let instant = Rc::clone(&instant);
                    tokio::task::spawn_local(instant.connection(stream));
                }
            })
            .await
    }

    async fn connection(self: Rc<Self>, stream: UnixStream) -> Result<(), h2::Error> {
        let mut connection = settings().handshake::<_, Bytes>(stream).await?;
        while let Some(accepted) = connection.accept().await {
            let (request, respond) = accepted?;
            tokio::task::spawn_local(Rc::clone(&self).answer(request, respond));
        }
        Ok(())
    }

    async fn answer(
        self: Rc<Self>,
        request: Request<RecvStream>,
        mut respond: SendResponse<Bytes>,
    ) -> Result<(), h2::Error> {
        let (parts, mut body) = request.into_parts();
        let mut data = Vec::new();
        while let Some(piece) = body.data().await {
            let piece = piece?;
            body.flow_control().release_capacity(piece.len())?;
            data.push(piece);
        }
        let method = parts.uri.path().rsplit('/').next().unwrap_or_default();
        let reply = self.reply(method, data);

        let mut head = Response::new(());
        *head.headers_mut() = self.head.clone();
        let mut send = respond.send_response(head, false)?;
        for piece in reply {
            send.send_data(piece, false)?;
        }
        send.send_trailers(self.ok.clone())
    }

    /// The DATA of the answer to a request's DATA.
    fn reply(&self, method: &str, data: Vec<Bytes>) -> Vec<Bytes> {
        if let Some(reply) = self.manage(method, &data) {
            return vec![Frame::plain(reply).encode()];
        }
        match method {
            "UpdateContainerResources" => *self.last_update.borrow_mut() = data.clone(),
            "LastUpdate" => return self.last_update.borrow().clone(),
            _ => {}
        }
        if let Some(fixed) = self.fixed.get(method) {
            return vec![fixed.clone()];
        }
        let message = match method {
            "CreateContainer" => ContainerId {
                container_id: self.new_id(),
            }
            .encode_to_vec(),
            "PodSandboxStatus" => self.pod_status(&id(&data)).encode_to_vec(),
            "ContainerStatus" => self.container_status(&id(&data)).encode_to_vec(),
            _ => return data,
        };
        vec![Frame::plain(message).encode()]
    }

    /// The answer to a call that makes, starts, ends or lists what clients make.
    fn manage(&self, method: &str, data: &[Bytes]) -> Option<Vec<u8>> {
        let mut made = self.made.borrow_mut();
        Some(match method {
            "RunPodSandbox" => {
                let id = self.new_id();
                made.pods.push(made_pod(&id, message(data)?)?);
                PodSandboxId { pod_sandbox_id: id }.encode_to_vec()
            }
            "RemovePodSandbox" => {
                let id = message::<PodSandboxId>(data)?.pod_sandbox_id;
                made.pods.retain(|pod| pod.listed.id != id);
                made.containers.retain(|it| it.pod_sandbox_id != id);
                Empty {}.encode_to_vec()
            }
            "CreateContainer" if self.keeps => {
                let id = self.new_id();
                made.containers.push(kept_container(&id, message(data)?)?);
                ContainerId { container_id: id }.encode_to_vec()
            }
            "StartContainer" if self.keeps => {
                let id = message::<ContainerId>(data)?.container_id;
                let mut containers = made.containers.iter_mut();
                containers.find(|it| it.id == id)?.state = ContainerState::Running.into();
                Empty {}.encode_to_vec()
            }
            // Repeated fields of two encoded messages, one behind the other, are one list.
            "ListPodSandbox" => {
                let listed = made.pods.iter().map(|pod| pod.listed.clone());
                let more = ListPodSandboxResponse {
                    items: listed.collect(),
                };
                [&*self.pod_list, &more.encode_to_vec()].concat()
            }
            "ListContainers" => {
                let more = ListContainersResponse {
                    containers: made.containers.clone(),
                };
                [&*self.container_list, &more.encode_to_vec()].concat()
            }
            _ => return None,
        })
    }

    fn new_id(&self) -> String {
        let number = self.next_id.get();
        self.next_id.set(number + 1);
        format!("{number:064x}")
    }

    fn pod_status(&self, id: &str) -> PodSandboxStatusResponse {
        let made = self.made.borrow();
        let made = made.pods.iter().find(|pod| pod.listed.id == id);
        let (pod, parent) = match (self.pods.get(id), made) {
            (Some(pod), _) => (pod, cgroup_parent(pod)),
            (None, Some(made)) => (&made.listed, made.cgroup_parent.clone()),
            (None, None) => return PodSandboxStatusResponse::default(),
        };
        let info = json!({
            "pid": 1,
            "config": {"linux": {"cgroup_parent": parent}},
            "runtimeSpec": {"linux": {"cgroupsPath": format!("{parent}/{id}")}},
        });
        PodSandboxStatusResponse {
            // Where a list has labels, a status has other things.
            status: Some(PodSandbox {
                labels: Map::default(),
                annotations: Map::default(),
                ..pod.clone()
            }),
            info: Map::from([("info".to_owned(), info.to_string())]),
        }
    }

    fn container_status(&self, id: &str) -> ContainerStatusResponse {
        let Some(container) = self.containers.get(id) else {
            return ContainerStatusResponse::default();
        };
        let parent = self
            .pods
            .get(&container.pod_sandbox_id)
            .map(cgroup_parent)
            .unwrap_or_default();
        let info = json!({
            "pid": 1,
            "sandboxID": container.pod_sandbox_id,
            "runtimeSpec": {"linux": {"cgroupsPath": format!("{parent}/{id}")}},
        });
        ContainerStatusResponse {
            status: Some(ContainerStatus {
                id: container.id.clone(),
                metadata: container.metadata.clone(),
                state: container.state,
                labels: container.labels.clone(),
                annotations: container.annotations.clone(),
                ..Default::default()
            }),
            info: Map::from([("info".to_owned(), info.to_string())]),
        }
    }
}

fn id(data: &[Bytes]) -> String {
    message::<StatusRequest>(data)
        .map(|request| request.id)
        .unwrap_or_default()
}

/// The one message of a request.
fn message<M: Message + Default>(data: &[Bytes]) -> Option<M> {
    let mut frames = Frames::default();
    data.iter().for_each(|piece| frames.push(piece));
    M::decode(frames.next()?.message).ok()
}

fn made_pod(id: &str, request: RunPodSandboxRequest) -> Option<MadePod> {
    let config = request.config?;
    let listed = PodSandbox {
        id: id.to_owned(),
        metadata: config.metadata,
        state: 0,
        created_at: 1,
        labels: config.labels,
        annotations: config.annotations,
        runtime_handler: request.runtime_handler,
    };
    Some(MadePod {
        listed,
        cgroup_parent: config.linux.map(|it| it.cgroup_parent).unwrap_or_default(),
    })
}

fn kept_container(id: &str, request: CreateContainerRequest) -> Option<Container> {
    let config = request.config?;
    Some(Container {
        id: id.to_owned(),
        pod_sandbox_id: request.pod_sandbox_id,
        metadata: config.metadata,
        image: config.image,
        image_ref: BUSYBOX_IMAGE.to_owned(),
        state: ContainerState::Created.into(),
        created_at: 1,
        labels: config.labels,
        annotations: config.annotations,
    })
}

fn version() -> Vec<u8> {
    let version = VersionResponse {
        version: "0.1.0".to_owned(),
        runtime_name: "instant".to_owned(),
        runtime_version: "1".to_owned(),
        runtime_api_version: "v1".to_owned(),
    };
    version.encode_to_vec()
}

fn map<const N: usize>(pairs: [(&str, &str); N]) -> Map {
    pairs
        .map(|(key, value)| (key.to_owned(), value.to_owned()))
        .into()
}

/// The pod of this number, as it lists it.
pub fn pod(number: usize) -> PodSandbox {
    let name = format!("pod-{number}");
    let uid = format!("00000000-0000-4000-8000-{number:012x}");
    PodSandbox {
        id: format!("{:064x}", number + 1),
        labels: map([
            ("app", "bench"),
            ("io.kubernetes.pod.name", &name),
            ("io.kubernetes.pod.namespace", "default"),
            ("io.kubernetes.pod.uid", &uid),
            (
                "koordinator.sh/qosClass",
                if number.is_multiple_of(2) { "LS" } else { "BE" },
            ),
        ]),
        annotations: map([("kubernetes.io/config.source", "api")]),
        metadata: Some(PodSandboxMetadata {
            name,
            uid,
            namespace: "default".to_owned(),
            attempt: 0,
        }),
        state: 0,
        created_at: 1,
        runtime_handler: String::new(),
    }
}

/// Where a pod is.
pub fn cgroup_parent(pod: &PodSandbox) -> String {
    let uid = pod.metadata.as_ref().map(|metadata| metadata.uid.as_str());
    format!("/kubepods/burstable/pod{}", uid.unwrap_or_default())
}

/// The container of this number, which is of this pod, as it lists it.
pub fn container(number: usize, pod: &PodSandbox) -> Container {
    let name = format!("container-{number}");
    Container {
        id: format!("{:064x}", (1 << 24) + number),
        pod_sandbox_id: pod.id.clone(),
        image: Some(ImageSpec {
            image: BUSYBOX_IMAGE.to_owned(),
            ..Default::default()
        }),
        image_ref: BUSYBOX_IMAGE.to_owned(),
        state: ContainerState::Running.into(),
        created_at: 1,
        labels: pod
            .labels
            .iter()
            .filter(|(key, _)| key.starts_with("io.kubernetes."))
            .map(|(key, value)| (key.clone(), value.clone()))
            .chain(map([("io.kubernetes.container.name", &name)]))
            .collect(),
        annotations: map([
            ("io.kubernetes.container.hash", "3fa1c2d4"),
            ("io.kubernetes.container.restartCount", "0"),
        ]),
        metadata: Some(ContainerMetadata { name, attempt: 0 }),
    }
}

/// A ListImagesResponse of exactly this size: one image whose id is as long as it has to be.
fn list_of_bytes(size: usize) -> Vec<u8> {
    /// `images` and an image's `id` both have the number 1 and are length-delimited.
    const TAG: u8 = 0x0a;
    let field = |content: Vec<u8>| {
        let mut field = vec![TAG];
        prost::encoding::encode_varint(content.len() as u64, &mut field);
        field.extend(content);
        field
    };
    // Two tags and two lengths; a size just past a border of the lengths' own size has no solution
    // with the shortest one, so look downwards from the largest id that could fit.
    (0..size)
        .rev()
        .map(|id| field(field(vec![b'x'; id])))
        .find(|list| list.len() <= size)
        .unwrap_or_default()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::cri::CriClient;
    use crate::cri::message::{LinuxContainerResources, UpdateContainerResourcesRequest};
    use crate::raw::{RawClient, RawRequest};

    const STATE: State = State {
        pods: 2,
        containers: 5,
        list_bytes: 1 << 20,
        keeps: false,
    };

    /// Runs `test` with clients of an instant runtime on a socket of its own.
    async fn with_clients(test: impl AsyncFnOnce(CriClient, RawClient)) {
        with_clients_of(&STATE, test).await;
    }

    async fn with_clients_of(state: &State, test: impl AsyncFnOnce(CriClient, RawClient)) {
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("cri.sock");
        let listener = UnixListener::bind(&socket).unwrap();
        tokio::select! {
            served = Instant::new(state).serve(listener) => panic!("ended: {served:?}"),
            () = async {
                let cri = CriClient::connect(&socket).await.unwrap();
                test(cri, RawClient::connect(&socket).await.unwrap()).await;
            } => {}
        }
    }

    #[tokio::test]
    async fn lists_and_statuses_show_one_state() {
        with_clients(async |cri, _| {
            let pods = cri.list_pods().await.unwrap();
            let containers = cri.list_containers().await.unwrap();
            assert_eq!((pods.len(), containers.len()), (2, 5));
            assert_eq!(containers[3].pod_sandbox_id, pods[1].id);
            assert_eq!(pods[1].labels["koordinator.sh/qosClass"], "BE");

            let status = cri.container_status(&containers[3].id).await.unwrap();
            let parent = "/kubepods/burstable/pod00000000-0000-4000-8000-000000000001";
            let info: serde_json::Value = serde_json::from_str(&status.info["info"]).unwrap();
            let path = format!("{parent}/{}", containers[3].id);
            assert_eq!(info["runtimeSpec"]["linux"]["cgroupsPath"], path);
            let status = cri.pod_status(&pods[1].id).await.unwrap();
            let info: serde_json::Value = serde_json::from_str(&status.info["info"]).unwrap();
            assert_eq!(info["config"]["linux"]["cgroup_parent"], parent);
        })
        .await;
    }

    #[tokio::test]
    async fn new_ids_are_unlike_each_other_and_unlike_the_listed_ones() {
        with_clients(async |cri, _| {
            let pod = crate::cri::PodSpec::new("new");
            let container = crate::cri::ContainerSpec::new("main");
            let mut ids = Vec::new();
            for _ in 0..2 {
                ids.push(cri.run_pod(&pod).await.unwrap());
                ids.push(cri.create_container("any", &container, &pod).await.unwrap());
            }
            ids.extend(cri.list_pods().await.unwrap().into_iter().map(|it| it.id));
            ids.extend(
                cri.list_containers()
                    .await
                    .unwrap()
                    .into_iter()
                    .map(|it| it.id),
            );
            ids.sort();
            ids.dedup();
            assert_eq!(ids.len(), 4 + 2 + 5);
        })
        .await;
    }

    #[tokio::test]
    async fn a_clients_pod_is_listed_until_it_is_removed_and_its_container_is_forgotten() {
        with_clients(async |cri, _| {
            let pod = crate::cri::PodSpec::new("web").annotation("key", "value");
            let container = crate::cri::ContainerSpec::new("main");
            let sandbox = cri.run_pod(&pod).await.unwrap();
            let created = cri.create_container(&sandbox, &container, &pod);
            created.await.unwrap();

            let pods = cri.list_pods().await.unwrap();
            assert_eq!((pods.len(), &pods[2].id), (3, &sandbox));
            assert_eq!(pods[2].metadata.as_ref().unwrap().uid, "uid-web");
            assert_eq!(pods[2].annotations["key"], "value");
            let status = cri.pod_status(&sandbox).await.unwrap();
            assert_eq!(status.status.unwrap().id, sandbox);
            assert_eq!(cri.list_containers().await.unwrap().len(), 5);

            cri.remove_pod(&sandbox).await.unwrap();
            assert_eq!(cri.list_pods().await.unwrap().len(), 2);
        })
        .await;
    }

    #[tokio::test]
    async fn a_clients_container_is_listed_where_it_is_kept() {
        let state = State {
            keeps: true,
            ..STATE
        };
        with_clients_of(&state, async |cri, _| {
            let pod = crate::cri::PodSpec::new("web");
            let container = crate::cri::ContainerSpec::new("main");
            let sandbox = cri.run_pod(&pod).await.unwrap();
            let created = cri.create_container(&sandbox, &container, &pod);
            let id = created.await.unwrap();
            let listed = cri.list_containers().await.unwrap();
            assert_eq!((listed.len(), &listed[5].id), (6, &id));
            assert_eq!(listed[5].state(), ContainerState::Created);
            assert_eq!(listed[5].pod_sandbox_id, sandbox);
            cri.start_container(&id).await.unwrap();
            let listed = cri.list_containers().await.unwrap();
            assert_eq!(listed[5].state(), ContainerState::Running);

            cri.remove_pod(&sandbox).await.unwrap();
            assert_eq!(cri.list_containers().await.unwrap().len(), 5);
        })
        .await;
    }

    #[tokio::test]
    async fn the_last_update_is_told_as_it_arrived() {
        with_clients(async |cri, raw| {
            for cpuset_cpus in ["0", "1"] {
                let resources = LinuxContainerResources {
                    cpuset_cpus: cpuset_cpus.to_owned(),
                    ..Default::default()
                };
                cri.update_resources("one", resources).await.unwrap();
            }
            let reply = raw.call(RawRequest::unary(LAST_UPDATE, "")).await.unwrap();
            let message = reply.messages[0].message.clone();
            let update = UpdateContainerResourcesRequest::decode(message).unwrap();
            assert_eq!(update.container_id, "one");
            assert_eq!(update.linux.unwrap().cpuset_cpus, "1");
        })
        .await;
    }

    #[tokio::test]
    async fn an_unknown_method_gets_its_own_bytes_back() {
        with_clients(async |_, raw| {
            let reply = raw
                .call(RawRequest::unary("/any.Service/Method", "\x01\u{ff}"))
                .await;
            let reply = reply.unwrap();
            assert_eq!(reply.messages, [Frame::plain("\x01\u{ff}")]);
            assert_eq!(reply.grpc_status(), Some(0));
        })
        .await;
    }

    #[tokio::test]
    async fn the_image_list_has_the_size_that_was_asked_for() {
        with_clients(async |_, raw| {
            let call = RawRequest::unary("/runtime.v1.ImageService/ListImages", "");
            let reply = raw.call(call).await.unwrap();
            assert_eq!(reply.messages[0].message.len(), 1 << 20);
        })
        .await;
    }
}

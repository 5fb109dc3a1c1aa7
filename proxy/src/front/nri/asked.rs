//! What a runtime asks and tells, in either form, and what can be answered.

use koord_nri::{Code, Status};
use koord_proto::nri::{
    Container, ContainerAdjustment, ContainerUpdate, CreateContainerRequest,
    CreateContainerResponse, Event, EventRequest, PodSandbox, StateChangeEvent,
    StopContainerRequest, StopContainerResponse, SynchronizeRequest, SynchronizeResponse,
    UpdateContainerRequest, UpdateContainerResponse, UpdatePodSandboxRequest,
};

/// A question, or something that happened.
#[derive(Clone, Debug, PartialEq)]
pub enum Asked {
    /// All pods and containers that there are; whatever was known before is out of date.
    Synchronize {
        pods: Vec<PodSandbox>,
        containers: Vec<Container>,
    },
    CreateContainer(CreateContainerRequest),
    UpdateContainer(UpdateContainerRequest),
    StopContainer(StopContainerRequest),
    UpdatePodSandbox(UpdatePodSandboxRequest),
    /// Any other event. The runtime goes on when it is answered.
    Happened {
        event: Event,
        pod: Option<PodSandbox>,
        container: Option<Container>,
    },
}

// === impl Asked ===

impl Asked {
    /// The container that is about to be made.
    pub(super) fn makes(&self) -> Option<&str> {
        match self {
            Self::CreateContainer(request) => request.container.as_ref().map(|it| &*it.id),
            _ => None,
        }
    }
}

/// An answer. What a question has no place for is not said.
#[derive(Clone, Debug, Default, PartialEq)]
pub enum Answer {
    #[default]
    Nothing,
    /// To the creation of a container.
    Adjust(Box<ContainerAdjustment>),
    /// Of containers that are there; to an update, of the container itself too.
    Update(Vec<ContainerUpdate>),
    /// What is asked about must not happen, and why. The runtime fails the call that it belongs to.
    Refuse(String),
}

/// The form that an answer has.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Form {
    Synchronize,
    Create,
    Update,
    Stop,
    Empty,
}

/// A part of a synchronisation, or a whole question.
pub(super) enum Read {
    Part(SynchronizeRequest),
    Whole(Form, Box<Asked>),
}

// === impl Form ===

impl Form {
    /// The answer as bytes.
    pub(super) fn write(self, answer: Answer) -> Result<Vec<u8>, Status> {
        let (adjust, update) = match answer {
            Answer::Nothing => (None, Vec::new()),
            Answer::Adjust(adjust) => (Some(*adjust), Vec::new()),
            Answer::Update(update) => (None, update),
            Answer::Refuse(why) => return Err(Status::new(Code::FAILED_PRECONDITION, why)),
        };
        Ok(match self {
            Self::Synchronize => SynchronizeResponse {
                update,
                more: false,
            }
            .to_bytes(),
            Self::Create => CreateContainerResponse { adjust, update }.to_bytes(),
            Self::Update => UpdateContainerResponse { update }.to_bytes(),
            Self::Stop => StopContainerResponse { update }.to_bytes(),
            Self::Empty => Vec::new(),
        })
    }
}

// === impl Read ===

impl Read {
    /// Reads what the method `method` of a plugin is asked. `keep` says which labels and annotations
    /// are looked at.
    ///
    /// A method that nobody knows is an error, upon which a runtime tells of the same event in the
    /// old form. What cannot be read is one too.
    pub(super) fn of(
        method: &str,
        payload: &[u8],
        keep: impl Fn(&[u8]) -> bool,
    ) -> Result<Self, Status> {
        let read = match method {
            "Synchronize" => SynchronizeRequest::read_keeping(payload, keep).map(Self::Part),
            "CreateContainer" => CreateContainerRequest::read_keeping(payload, keep)
                .map(|request| Self::whole(Form::Create, Asked::CreateContainer(request))),
            "UpdateContainer" => UpdateContainerRequest::read_keeping(payload, keep)
                .map(|request| Self::whole(Form::Update, Asked::UpdateContainer(request))),
            "StopContainer" => StopContainerRequest::read_keeping(payload, keep)
                .map(|request| Self::whole(Form::Stop, Asked::StopContainer(request))),
            "UpdatePodSandbox" => UpdatePodSandboxRequest::read_keeping(payload, keep)
                .map(|request| Self::whole(Form::Empty, Asked::UpdatePodSandbox(request))),
            "StateChange" => StateChangeEvent::read_keeping(payload, keep).map(|request| {
                let event = request.event();
                Self::happened(event, request.pod, request.container)
            }),
            other => {
                let Some(event) = event_of(other) else {
                    let text = format!("no method {other}");
                    return Err(Status::new(Code::UNIMPLEMENTED, text));
                };
                EventRequest::read_keeping(payload, keep)
                    .map(|request| Self::happened(event, request.pod, request.container))
            }
        };
        read.ok_or_else(|| Status::new(Code::INVALID_ARGUMENT, format!("undecodable {method}")))
    }

    fn happened(event: Event, pod: Option<PodSandbox>, container: Option<Container>) -> Self {
        let happened = Asked::Happened {
            event,
            pod,
            container,
        };
        Self::whole(Form::Empty, happened)
    }

    fn whole(form: Form, asked: Asked) -> Self {
        Self::Whole(form, Box::new(asked))
    }
}

/// The event that a method of its own stands for, since NRI 0.12.
fn event_of(method: &str) -> Option<Event> {
    Some(match method {
        "RunPodSandbox" => Event::RunPodSandbox,
        "PostUpdatePodSandbox" => Event::PostUpdatePodSandbox,
        "StopPodSandbox" => Event::StopPodSandbox,
        "RemovePodSandbox" => Event::RemovePodSandbox,
        "PostCreateContainer" => Event::PostCreateContainer,
        "StartContainer" => Event::StartContainer,
        "PostStartContainer" => Event::PostStartContainer,
        "PostUpdateContainer" => Event::PostUpdateContainer,
        "RemoveContainer" => Event::RemoveContainer,
        _ => return None,
    })
}

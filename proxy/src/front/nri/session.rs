//! One connection to one runtime, from the registration on.
//!
//! A runtime asks its plugins one after the other and waits, so every answer delays whatever it does
//! for any pod; one that is later than its limit costs the plugin its connection, and containers are
//! then created without it. So a question that nobody has answered in half of that time is answered
//! with "no change" here; what the caller says later is dropped, and it is told.

use super::{
    asked::{Answer, Asked, Form, Read},
    identity::Identity,
    launched::Launched,
};
use koord_nri::{
    Code, Event, Limits, Peer, Request, RequestId, Role, SendError, Status, Violation,
};
use koord_proto::nri::{
    ConfigureRequest, EventMask, RegisterPluginRequest, SynchronizeRequest, SynchronizeResponse,
    name,
};
use std::{collections::VecDeque, future::pending, io, sync::Arc, time::Duration};
use thiserror::Error;
use tokio::{
    io::Interest,
    net::UnixStream,
    time::{Instant, sleep_until, timeout},
};
use tracing::warn;

use crate::view::Inputs;

/// The version of NRI whose messages we know, as runtimes since 0.12 want to be told.
const NRI_VERSION: &str = "v0.12.0";
/// Runtimes wait for a registration as long as this unless they are told otherwise.
const REGISTRATION: Duration = Duration::from_secs(5);
/// The same for an answer; those before NRI 0.7 do not say it.
const REQUEST: Duration = Duration::from_secs(2);
/// One read takes at most this much.
const READ_BUFFER: usize = 64 << 10;
/// Pods and containers that a synchronisation may have, as many as several nodes'.
const MOST_OBJECTS: usize = 100_000;

/// What a plugin is made of.
#[derive(Clone, Debug)]
pub struct Plugin {
    pub identity: Identity,
    /// Events that it wants to know of, where the runtime has them.
    pub events: EventMask,
    /// Labels and annotations that are looked at.
    pub inputs: Arc<Inputs>,
}

/// The runtime at the other end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Runtime {
    pub name: String,
    pub version: String,
    /// Which of the wanted events it knows.
    pub events: EventMask,
    /// How long it waits for an answer.
    pub request_timeout: Duration,
}

/// A connection on which the plugin is registered and configured.
#[derive(Debug)]
pub struct Session {
    wire: Wire,
    inputs: Arc<Inputs>,
    runtime: Runtime,
    /// What has come of a synchronisation that has more to come.
    parts: SynchronizeRequest,
    /// Questions without an answer, the oldest first.
    waiting: VecDeque<Waiting>,
}

/// Something from the runtime.
#[derive(Debug)]
pub enum Incoming {
    /// To be answered by [`Session::answer`].
    Asked(Ticket, Box<Asked>),
    /// A question was answered with "no change", because time was short.
    Late(Ticket),
}

/// Names a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket(RequestId);

/// Why a session is over, or never began.
#[derive(Debug, Error)]
pub enum SessionError {
    #[error("the connection to the runtime failed")]
    Io(#[from] io::Error),
    #[error("the runtime closed the connection")]
    Closed,
    #[error("the runtime speaks no NRI")]
    Violation(#[from] Violation),
    #[error("something could not be said to the runtime")]
    Send(#[from] SendError),
    #[error("the runtime refused the registration")]
    Refused(#[source] Status),
    #[error("the runtime asked for {0} before it had configured us")]
    Unconfigured(String),
    #[error("the configuration that the runtime sent cannot be read")]
    Configuration,
    #[error("the runtime knows none of the events that are wanted")]
    NoEvent,
    #[error("the runtime did not register us within {} s", REGISTRATION.as_secs())]
    Registration,
    #[error("more than {MOST_OBJECTS} pods and containers in one synchronisation")]
    TooMany,
}

#[derive(Debug)]
struct Waiting {
    request: RequestId,
    form: Form,
    /// When it is answered with nothing.
    due: Instant,
}

/// A peer on its socket.
#[derive(Debug)]
struct Wire {
    stream: UnixStream,
    peer: Peer,
    buffer: Box<[u8]>,
}

// === impl Session ===

impl Session {
    /// Registers the plugin on a fresh connection and answers the runtime's Configure.
    ///
    /// # Errors
    ///
    /// When that does not come to pass within the time that runtimes give for it.
    pub async fn register(stream: UnixStream, plugin: &Plugin) -> Result<Self, SessionError> {
        let registered = timeout(REGISTRATION, Self::registered(stream, plugin));
        registered.await.map_err(|_| SessionError::Registration)?
    }

    async fn registered(stream: UnixStream, plugin: &Plugin) -> Result<Self, SessionError> {
        let mut peer = Peer::new(Role::Plugin, Limits::default());
        registration(&mut peer, &plugin.identity)?;
        Self::settled(Wire::new(stream, peer), plugin, None, false).await
    }

    /// Goes on where a launch by the runtime has waited for its configuration.
    ///
    /// # Errors
    ///
    /// As for [`register`](Self::register).
    pub async fn resume(launched: Launched, plugin: &Plugin) -> Result<Self, SessionError> {
        launched.stream.set_nonblocking(true)?;
        let stream = UnixStream::from_std(launched.stream)?;
        let mut wire = Wire::new(stream, launched.peer);
        let runtime = configured(&mut wire, &launched.configure, plugin.events)?;
        let settled = Self::settled(wire, plugin, Some(runtime), launched.accepted);
        let settled = timeout(REGISTRATION, settled);
        settled.await.map_err(|_| SessionError::Registration)?
    }

    /// Waits until the runtime has configured us and has said that we are registered, in either
    /// order.
    async fn settled(
        mut wire: Wire,
        plugin: &Plugin,
        mut runtime: Option<Runtime>,
        mut accepted: bool,
    ) -> Result<Self, SessionError> {
        loop {
            if let (Some(runtime), true) = (&runtime, accepted) {
                return Ok(Self {
                    wire,
                    inputs: plugin.inputs.clone(),
                    runtime: Runtime::clone(runtime),
                    parts: SynchronizeRequest::default(),
                    waiting: VecDeque::new(),
                });
            }
            match wire.next().await? {
                Event::Answer { result, .. } => {
                    result.map_err(SessionError::Refused)?;
                    accepted = true;
                }
                Event::Request(request) if request.method == "Configure" => {
                    runtime = Some(configured(&mut wire, &request, plugin.events)?);
                }
                Event::Request(request) => return Err(SessionError::Unconfigured(request.method)),
                Event::Lost { .. } => return Err(SessionError::Closed),
            }
        }
    }

    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// The next thing that the runtime asks or tells. Nothing is lost if it is dropped before it is
    /// ready.
    ///
    /// # Errors
    ///
    /// When the connection is over.
    pub async fn next(&mut self) -> Result<Incoming, SessionError> {
        loop {
            while let Some(event) = self.wire.peer.next_event() {
                if let Some(incoming) = self.take(event)? {
                    return Ok(incoming);
                }
            }
            if let Some(late) = self.answer_late()? {
                return Ok(late);
            }
            let due = self.due();
            tokio::select! {
                biased;
                moved = self.wire.moved() => moved?,
                () = at(due) => {}
            }
        }
    }

    /// Answers a question. False if it was answered before, by "no change".
    ///
    /// # Errors
    ///
    /// When the answer is larger than a message may be; the question then waits for another one.
    pub fn answer(&mut self, ticket: Ticket, answer: Answer) -> Result<bool, SessionError> {
        let Ticket(request) = ticket;
        let found = self.waiting.iter().position(|it| it.request == request);
        let Some(at) = found else {
            return Ok(false);
        };
        let payload = self.waiting[at].form.write(answer);
        let payload = payload.as_deref();
        self.wire.peer.reply(request, payload)?;
        self.waiting.remove(at);
        self.wire.flush()?;
        Ok(true)
    }

    fn take(&mut self, event: Event) -> Result<Option<Incoming>, SessionError> {
        match event {
            Event::Request(request) => self.read(&request),
            // Nothing more is asked of the runtime once it has taken us.
            Event::Answer { .. } => Ok(None),
            Event::Lost { .. } => Err(SessionError::Closed),
        }
    }

    fn read(&mut self, request: &Request) -> Result<Option<Incoming>, SessionError> {
        let keep = |key: &str| self.inputs.has(key);
        let read = match request.service == name::PLUGIN {
            true => Read::of(&request.method, &request.payload, keep),
            false => Err(Status::new(Code::UNIMPLEMENTED, "no such service")),
        };
        let (form, asked) = match read {
            Ok(Read::Whole(form, asked)) => (form, asked),
            Ok(Read::Part(part)) => match self.part(request.id, part)? {
                Some(asked) => (Form::Synchronize, Box::new(asked)),
                None => return Ok(None),
            },
            Err(status) => {
                self.decline(request, &status)?;
                return Ok(None);
            }
        };
        let ticket = Ticket(request.id);
        let due = Instant::now() + self.patience(request.timeout);
        self.waiting.push_back(Waiting {
            request: request.id,
            form,
            due,
        });
        Ok(Some(Incoming::Asked(ticket, asked)))
    }

    /// Adds a part of a synchronisation. A runtime wants the word back that there is more.
    fn part(
        &mut self,
        request: RequestId,
        part: SynchronizeRequest,
    ) -> Result<Option<Asked>, SessionError> {
        let SynchronizeRequest {
            pods,
            containers,
            more,
        } = part;
        self.parts.pods.extend(pods);
        self.parts.containers.extend(containers);
        if self.parts.pods.len() + self.parts.containers.len() > MOST_OBJECTS {
            return Err(SessionError::TooMany);
        }
        if more {
            let response = SynchronizeResponse {
                update: Vec::new(),
                more,
            };
            self.wire.peer.reply(request, Ok(&response.to_bytes()))?;
            return Ok(None);
        }
        let SynchronizeRequest {
            pods, containers, ..
        } = std::mem::take(&mut self.parts);
        Ok(Some(Asked::Synchronize { pods, containers }))
    }

    /// Says that a method is unknown. What cannot be read has no error for an answer: the runtime
    /// would take it for ours and refuse the pod.
    fn decline(&mut self, request: &Request, status: &Status) -> Result<(), SessionError> {
        if status.code == Code::UNIMPLEMENTED {
            self.wire.peer.reply(request.id, Err(status))?;
            return Ok(());
        }
        warn!(method = %request.method, "a message of the runtime cannot be read");
        self.wire.peer.reply(request.id, Ok(b""))?;
        Ok(())
    }

    /// Half of the time that the runtime gives.
    fn patience(&self, left: Option<Duration>) -> Duration {
        left.map_or(self.runtime.request_timeout, |left| {
            left.min(self.runtime.request_timeout)
        }) / 2
    }

    /// When something is to be done though nothing comes.
    fn due(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.due).min()
    }

    /// Answers a question with nothing that is due.
    fn answer_late(&mut self) -> Result<Option<Incoming>, SessionError> {
        let is_due = |it: &&Waiting| it.due <= Instant::now();
        let Some(at) = self
            .waiting
            .iter()
            .find(is_due)
            .map(|it| Ticket(it.request))
        else {
            return Ok(None);
        };
        self.answer(at, Answer::Nothing)?;
        Ok(Some(Incoming::Late(at)))
    }
}

/// Says who we are.
pub(super) fn registration(peer: &mut Peer, identity: &Identity) -> Result<(), SessionError> {
    let request = RegisterPluginRequest {
        plugin_name: identity.name().to_owned(),
        plugin_idx: identity.index().to_owned(),
        nri_version: NRI_VERSION.to_owned(),
    };
    let payload = request.to_bytes();
    let limit = Some(REGISTRATION);
    peer.call(name::RUNTIME, "RegisterPlugin", &payload, limit)?;
    Ok(())
}

/// Answers Configure, and says who asked.
fn configured(
    wire: &mut Wire,
    request: &Request,
    wanted: EventMask,
) -> Result<Runtime, SessionError> {
    let configure = ConfigureRequest::read(&request.payload).ok_or(SessionError::Configuration)?;
    let events = wanted.and(EventMask::known_to(&configure));
    let response = events.to_response().ok_or(SessionError::NoEvent)?;
    wire.peer.reply(request.id, Ok(&response.to_bytes()))?;
    wire.flush()?;
    let told = u64::try_from(configure.request_timeout).unwrap_or(0);
    Ok(Runtime {
        name: configure.runtime_name,
        version: configure.runtime_version,
        events,
        request_timeout: match told {
            0 => REQUEST,
            told => Duration::from_millis(told),
        },
    })
}

/// Resolves at that time; never without one.
async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}

// === impl Wire ===

impl Wire {
    fn new(stream: UnixStream, peer: Peer) -> Self {
        Self {
            stream,
            peer,
            buffer: vec![0; READ_BUFFER].into(),
        }
    }

    async fn next(&mut self) -> Result<Event, SessionError> {
        loop {
            if let Some(event) = self.peer.next_event() {
                return Ok(event);
            }
            self.moved().await?;
        }
    }

    /// Writes what waits and reads what is there, once either is possible.
    async fn moved(&mut self) -> Result<(), SessionError> {
        self.flush()?;
        let interest = match self.peer.output() {
            [] => Interest::READABLE,
            _ => Interest::READABLE | Interest::WRITABLE,
        };
        self.stream.ready(interest).await?;
        self.flush()?;
        match self.stream.try_read(&mut self.buffer) {
            Ok(0) => {
                // A runtime that stops may do so in the middle of a frame.
                drop(self.peer.end());
                Err(SessionError::Closed)
            }
            Ok(count) => Ok(self.peer.feed(&self.buffer[..count])?),
            Err(error) if error.kind() == io::ErrorKind::WouldBlock => Ok(()),
            Err(error) => Err(error.into()),
        }
    }

    /// Writes as much as the socket takes.
    fn flush(&mut self) -> Result<(), SessionError> {
        while !self.peer.output().is_empty() {
            match self.stream.try_write(self.peer.output()) {
                Ok(count) => self.peer.advance(count),
                Err(error) if error.kind() == io::ErrorKind::WouldBlock => break,
                Err(error) => return Err(error.into()),
            }
        }
        Ok(())
    }
}

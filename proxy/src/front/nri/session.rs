//! One connection to one runtime, from the registration on.
//!
//! What is asked and answered is at the [desk](super::desk); a session waits for it.

use super::{
    asked::{Answer, Asked},
    desk::{Desk, SharedDesk},
    identity::Identity,
    launched::Launched,
    watchdog::Watched,
    wire::{Readiness, Wire},
};
use crate::view::Inputs;
use koord_nri::{Event, Limits, Peer, Request, RequestId, Role, SendError, Status, Violation};
use koord_proto::nri::{ConfigureRequest, EventMask, RegisterPluginRequest, name};
use std::{future::pending, io, sync::Arc, time::Duration};
use thiserror::Error;
use tokio::{
    net::UnixStream,
    sync::Notify,
    task::yield_now,
    time::{Instant, sleep_until, timeout},
};

/// The version of NRI whose messages we know, as runtimes since 0.12 want to be told.
const NRI_VERSION: &str = "v0.12.0";
/// Runtimes wait for a registration as long as this unless they are told otherwise.
const REGISTRATION: Duration = Duration::from_secs(5);
/// The same for an answer.
const REQUEST: Duration = Duration::from_secs(2);

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
    /// How long it waits for an answer at most, as it says when it configures us; those before NRI
    /// 0.7 say it with each question alone.
    pub request_timeout: Option<Duration>,
}

/// A connection on which the plugin is registered and configured.
#[derive(Debug)]
pub struct Session {
    desk: SharedDesk,
    readiness: Readiness,
    /// The watchdog has put something on the desk.
    nudge: Arc<Notify>,
    runtime: Runtime,
}

/// Something from the runtime.
#[derive(Debug)]
pub enum Incoming {
    /// To be answered by [`Session::answer`].
    Asked(Ticket, Box<Asked>),
    /// A question of this method could not be read, and was answered with "no change": the runtime would take
    /// an error for ours, and refuse the pod.
    Unreadable(String),
    /// So many questions were answered with "no change", because time was short.
    Late(u64),
}

/// Names a question.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Ticket {
    pub(super) request: RequestId,
    /// When it is answered with nothing.
    pub(super) due: Instant,
}

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
    #[error("more than {0} pods and containers in one synchronisation")]
    TooMany(usize),
}

// === impl Runtime ===

impl Runtime {
    /// How long it waits for an answer to a question with which it says that it waits for as long as
    /// `left`.
    pub(super) fn waits(&self, left: Option<Duration>) -> Duration {
        let said = self.request_timeout.into_iter().chain(left);
        said.min().unwrap_or(REQUEST)
    }
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
        let wire = Wire::new(stream.into_std()?, peer)?;
        Self::settled(wire, plugin, None, false).await
    }

    /// Goes on where a launch by the runtime has waited for its configuration.
    ///
    /// # Errors
    ///
    /// As for [`register`](Self::register).
    pub async fn resume(launched: Launched, plugin: &Plugin) -> Result<Self, SessionError> {
        let mut wire = Wire::new(launched.stream, launched.peer)?;
        let runtime = configured(&mut wire, &launched.configure, plugin.events)?;
        let settled = Self::settled(wire, plugin, Some(runtime), launched.accepted);
        let settled = timeout(REGISTRATION, settled);
        settled.await.map_err(|_| SessionError::Registration)?
    }

    /// Waits until the runtime has configured us and has said that we are registered, in either
    /// order. One that goes on to ask has taken us, too: Go writes that answer beside its questions,
    /// and it may come after the first of them.
    async fn settled(
        mut wire: Wire,
        plugin: &Plugin,
        mut runtime: Option<Runtime>,
        mut accepted: bool,
    ) -> Result<Self, SessionError> {
        let readiness = wire.readiness()?;
        let (mut early, mut more) = (None, false);
        let runtime = loop {
            if let Some(runtime) = &runtime
                && (accepted || early.is_some())
            {
                break Runtime::clone(runtime);
            }
            match event(&mut wire, &readiness, &mut more).await? {
                Event::Answer { result, .. } => {
                    result.map_err(SessionError::Refused)?;
                    accepted = true;
                }
                Event::Request(request) if request.method == "Configure" => {
                    runtime = Some(configured(&mut wire, &request, plugin.events)?);
                }
                Event::Request(request) if runtime.is_some() => early = Some(request),
                Event::Request(request) => return Err(SessionError::Unconfigured(request.method)),
                Event::Lost { .. } => return Err(SessionError::Closed),
            }
        };
        let mut desk = Desk::new(wire, plugin.inputs.clone(), runtime.clone());
        if let Some(request) = early {
            desk.take(&request, Duration::ZERO)?;
        }
        Ok(Self {
            desk: SharedDesk::new(desk),
            readiness,
            nudge: Arc::default(),
            runtime,
        })
    }

    pub fn runtime(&self) -> &Runtime {
        &self.runtime
    }

    /// What a watchdog needs to stand in for the data path.
    pub(super) fn watched(&self) -> Watched {
        let socket = self.desk.hand().wire.socket().clone();
        Watched {
            desk: self.desk.clone(),
            socket,
            nudge: self.nudge.clone(),
        }
    }

    /// The next thing that the runtime asks or tells. Nothing is lost if it is dropped before it is
    /// ready.
    ///
    /// # Errors
    ///
    /// When the connection is over.
    pub async fn next(&mut self) -> Result<Incoming, SessionError> {
        loop {
            let (more, due, waits_to_write) = {
                let mut desk = self.desk.hand();
                // Answers of one moment are written together, once nothing is left of what came together.
                if let Some(incoming) = desk.next() {
                    return incoming;
                }
                let more = desk.turn(Duration::ZERO);
                if let Some(incoming) = desk.next() {
                    return incoming;
                }
                (more, desk.due(), desk.wire.waits_to_write())
            };
            if more {
                yield_now().await;
                continue;
            }
            tokio::select! {
                biased;
                changed = self.readiness.changed(waits_to_write) => {
                    changed?;
                    self.desk.hand().set_readable();
                }
                () = self.nudge.notified() => {}
                () = at(due) => {}
            }
        }
    }

    /// Answers a question, which goes out with [`Session::next`]. False if it was answered before, by "no
    /// change".
    ///
    /// # Errors
    ///
    /// When the answer is larger than a message may be; the question then waits for another one.
    pub fn answer(&mut self, ticket: Ticket, answer: Answer) -> Result<bool, SessionError> {
        self.desk.hand().answer(ticket, answer)
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
        request_timeout: (told > 0).then(|| Duration::from_millis(told)),
    })
}

/// Resolves at that time; never without one.
async fn at(due: Option<Instant>) {
    match due {
        Some(due) => sleep_until(due).await,
        None => pending().await,
    }
}

/// The next thing that comes before anything is asked. `more`: the last read may have left something, of
/// which nobody is told again.
async fn event(
    wire: &mut Wire,
    readiness: &Readiness,
    more: &mut bool,
) -> Result<Event, SessionError> {
    loop {
        wire.flush()?;
        if let Some(event) = wire.peer.next_event() {
            return Ok(event);
        }
        match *more {
            true => yield_now().await,
            false => readiness.changed(wire.waits_to_write()).await?,
        }
        *more = wire.read()?;
    }
}

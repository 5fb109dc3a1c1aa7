//! A plugin as its runtime sees it, from the registration on.

use std::collections::HashMap;
use std::io::{ErrorKind, Read as _, Write as _};
use std::net::Shutdown;
use std::os::unix::net::UnixStream;
use std::time::{Duration, Instant};

use prost::Message as _;

use super::message::{
    ConfigureRequest, ConfigureResponse, Container, ContainerUpdate, CreateContainerResponse,
    EventRequest, LinuxResources, PodSandbox, RegisterPluginRequest, Request, Response,
    StateChangeEvent, SynchronizeRequest, SynchronizeResponse, UpdatePodSandboxRequest, Updates,
    exactly,
};
use super::wire::LARGEST_BODY;
use super::{Generation, Manner, Message, NriError, Violation, Wire};
use crate::poll::bound;

/// What runtimes say they wait for a registration.
const REGISTRATION: Duration = Duration::from_secs(5);

pub(super) const RUNTIME_SERVICE: &str = "nri.pkg.api.v1alpha1.Runtime";
const PLUGIN_SERVICE: &str = "nri.pkg.api.v1alpha1.Plugin";

/// What a question came to: the answer's payload, or code and text of an error.
pub type Answer = Result<Vec<u8>, (i32, String)>;

/// A plugin that is registered and configured.
#[derive(Debug)]
pub struct Plugin {
    /// As it registered.
    pub name: String,
    pub index: String,
    pub nri_version: String,
    /// The mask that it answered Configure with.
    pub events: i32,
    line: Line,
    generation: Generation,
    /// What it was told, at the configuration or with each question.
    request_timeout: Duration,
    /// How long its answers are waited for.
    patience: Duration,
}

/// The socket, what has come of it, and what was answered.
#[derive(Debug)]
pub(super) struct Line {
    stream: UnixStream,
    wire: Wire,
    buffer: Vec<u8>,
    random: Option<Random>,
    answers: HashMap<u32, Answer>,
    /// The plugin's own updates, in order of arrival.
    unsolicited: Vec<Updates>,
    registration: Option<(u32, RegisterPluginRequest)>,
}

/// Repeatable random numbers (xorshift).
#[derive(Debug)]
struct Random(u64);

// === impl Plugin ===

impl Plugin {
    pub(super) fn register(
        stream: UnixStream,
        generation: Generation,
        manner: Manner,
        request_timeout: Duration,
    ) -> Result<Self, NriError> {
        let mut line = Line::new(stream, generation, manner);
        let until = Instant::now() + bound();
        let (call, registration) = loop {
            if let Some(registration) = line.registration.take() {
                break registration;
            }
            line.read(until, "RegisterPlugin")?;
        };
        check_identity(&registration, generation)?;
        let before = line.random.as_mut().is_none_or(|it| it.below(2) == 0);
        if before {
            line.reply(call, Ok(&[]))?;
        }
        let configure = ConfigureRequest {
            config: String::new(),
            runtime_name: "containerd".to_owned(),
            runtime_version: generation.runtime_version().to_owned(),
            registration_timeout: generation.told(REGISTRATION),
            request_timeout: generation.told(request_timeout),
            nri_version: generation.nri_version().to_owned(),
        };
        let question = line.ask("Configure", &configure, request_timeout)?;
        let answer = line.answer(question, Instant::now() + request_timeout, "Configure")?;
        if !before {
            line.reply(call, Ok(&[]))?;
        }
        let response: ConfigureResponse = read(answer, "Configure")?;
        let events = response.events;
        if events == 0 || events & !generation.events() != 0 {
            return Err(Violation::Refused(format!("the mask {events:#x}")).into());
        }
        Ok(Self {
            name: registration.plugin_name,
            index: registration.plugin_idx,
            nri_version: registration.nri_version,
            events,
            line,
            generation,
            request_timeout,
            patience: request_timeout,
        })
    }

    /// Waits longer or shorter for answers from now on than what the plugin was told.
    pub fn set_patience(&mut self, limit: Duration) {
        self.patience = limit;
    }

    /// Tells everything that there is: in one message, or in parts where it is too large and the
    /// generation knows parts. What the plugin wants changed.
    ///
    /// # Errors
    ///
    /// When it does not answer all parts in the time for one request, or not as it has to.
    pub fn synchronize(
        &mut self,
        pods: &[PodSandbox],
        containers: &[Container],
    ) -> Result<Vec<ContainerUpdate>, NriError> {
        let until = Instant::now() + self.patience;
        for part in parts(pods, containers, self.generation.splits()) {
            let question = self.line.ask("Synchronize", &part, self.request_timeout)?;
            let answer = self.line.answer(question, until, "Synchronize")?;
            let SynchronizeResponse { update, more } = read(answer, "Synchronize")?;
            if more != part.more || (more && !update.is_empty()) {
                return Err(Violation::Refused("the answer to a part".to_owned()).into());
            }
            if !more {
                return Ok(update);
            }
        }
        Ok(Vec::new())
    }

    /// Asks about a container that is about to be made.
    ///
    /// # Errors
    ///
    /// When the plugin is late or gone, breaks a rule, or refuses.
    pub fn create(
        &mut self,
        pod: &PodSandbox,
        container: &Container,
    ) -> Result<CreateContainerResponse, NriError> {
        let request = about(pod, Some(container), None);
        read(self.called("CreateContainer", &request)?, "CreateContainer")
    }

    /// Asks about an update of a container that is there.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    pub fn update(
        &mut self,
        pod: &PodSandbox,
        container: &Container,
        asked: &LinuxResources,
    ) -> Result<Vec<ContainerUpdate>, NriError> {
        let request = about(pod, Some(container), Some(asked.clone()));
        let answer = self.called("UpdateContainer", &request)?;
        let Updates { update } = read(answer, "UpdateContainer")?;
        Ok(update)
    }

    /// Tells that a container has stopped.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    pub fn stop(&mut self, pod: &PodSandbox, container: &Container) -> Result<(), NriError> {
        let request = about(pod, Some(container), None);
        let answer = self.called("StopContainer", &request)?;
        let Updates { update: _ } = read(answer, "StopContainer")?;
        Ok(())
    }

    /// Tells of an event by its method's name, as this generation tells of it: by that method or by
    /// StateChange. One that the plugin did not ask for is not told.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    ///
    /// # Panics
    ///
    /// When there is no such event.
    pub fn tell(
        &mut self,
        event: &str,
        pod: &PodSandbox,
        container: Option<&Container>,
    ) -> Result<(), NriError> {
        let number = number_of(event);
        if self.events & (1 << (number - 1)) == 0 {
            return Ok(());
        }
        let answer = if self.generation.has_own_methods() {
            self.called(event, &about(pod, container, None))?
        } else {
            let change = StateChangeEvent {
                event: number,
                pod: Some(pod.clone()),
                container: container.cloned(),
            };
            self.called("StateChange", &change)?
        };
        match answer.is_empty() {
            true => Ok(()),
            false => Err(Violation::Unreadable("the answer to an event").into()),
        }
    }

    /// Tells of a resize of a pod, where the generation knows that.
    ///
    /// # Errors
    ///
    /// As for [`create`](Self::create).
    pub fn resize(&mut self, pod: &PodSandbox, to: &LinuxResources) -> Result<(), NriError> {
        if self.generation < Generation::V0_10 {
            return Ok(());
        }
        let request = UpdatePodSandboxRequest {
            pod: Some(pod.clone()),
            overhead_linux_resources: None,
            linux_resources: Some(to.clone()),
        };
        self.called("UpdatePodSandbox", &request).map(drop)
    }

    /// Asks without waiting for the answer; the question's number. Runtimes do not, so this is for
    /// tests that want more of a plugin than a runtime does.
    ///
    /// # Errors
    ///
    /// When the socket fails.
    pub fn ask_about(
        &mut self,
        method: &str,
        pod: &PodSandbox,
        container: Option<&Container>,
    ) -> Result<u32, NriError> {
        let request = about(pod, container, None);
        self.line.ask(method, &request, self.request_timeout)
    }

    /// The next answer, whichever question it is to.
    ///
    /// # Errors
    ///
    /// When none comes within the time for one request, or the plugin breaks a rule.
    pub fn next_answer(&mut self) -> Result<(u32, Answer), NriError> {
        let until = Instant::now() + self.patience;
        loop {
            if let Some(&number) = self.line.answers.keys().min() {
                let answer = self.line.answers.remove(&number);
                return Ok((number, answer.expect("its key was there")));
            }
            self.line.read(until, "a question")?;
        }
    }

    /// Reads for so long though nothing was asked: what comes then has to be a call of the plugin's.
    ///
    /// # Errors
    ///
    /// When the plugin breaks a rule or goes.
    pub fn listen(&mut self, time: Duration) -> Result<(), NriError> {
        let until = Instant::now() + time;
        loop {
            match self.line.read(until, "") {
                Err(NriError::Late(_)) => return Ok(()),
                read => read?,
            }
        }
    }

    /// What the plugin has asked by itself to change.
    pub fn unsolicited(&self) -> &[Updates] {
        &self.line.unsolicited
    }

    fn called(&mut self, method: &str, request: &impl prost::Message) -> Result<Vec<u8>, NriError> {
        let until = Instant::now() + self.patience;
        let question = self.line.ask(method, request, self.request_timeout)?;
        self.line.answer(question, until, method)
    }
}

// === impl Line ===

impl Line {
    pub(super) fn new(stream: UnixStream, generation: Generation, manner: Manner) -> Self {
        Self {
            stream,
            wire: Wire::new(generation.largest_frame()),
            buffer: vec![0; 64 << 10],
            random: match manner {
                Manner::Swift => None,
                Manner::Fitful { seed } => Some(Random(seed | 1)),
            },
            answers: HashMap::new(),
            unsolicited: Vec::new(),
            registration: None,
        }
    }

    fn ask(
        &mut self,
        method: &str,
        request: &impl prost::Message,
        limit: Duration,
    ) -> Result<u32, NriError> {
        let request = Request {
            service: PLUGIN_SERVICE.to_owned(),
            method: method.to_owned(),
            payload: request.encode_to_vec(),
            timeout_nano: i64::try_from(limit.as_nanos()).unwrap_or(i64::MAX),
        };
        let (number, bytes) = self.wire.ask(&request.encode_to_vec());
        self.write(&bytes)?;
        Ok(number)
    }

    fn reply(&mut self, call: u32, answer: Result<&[u8], i32>) -> Result<(), NriError> {
        let response = match answer {
            Ok(payload) => Response {
                status: None,
                payload: payload.to_vec(),
            },
            Err(code) => Response {
                status: Some(super::message::Status {
                    code,
                    message: "not served".to_owned(),
                }),
                payload: Vec::new(),
            },
        };
        let bytes = self.wire.answer(call, &response.encode_to_vec());
        self.write(&bytes)
    }

    /// The answer to a question. One that is late costs the plugin its connection, as it does in
    /// every runtime.
    fn answer(&mut self, number: u32, until: Instant, method: &str) -> Result<Vec<u8>, NriError> {
        loop {
            if let Some(answer) = self.answers.remove(&number) {
                return answer.map_err(|(code, message)| NriError::Refused {
                    method: method.to_owned(),
                    code,
                    message,
                });
            }
            if let Err(error) = self.read(until, method) {
                if matches!(error, NriError::Late(_)) {
                    // It may have gone by itself.
                    self.stream.shutdown(Shutdown::Both).ok();
                }
                return Err(error);
            }
        }
    }

    /// Waits until something has come, and takes all that has.
    pub(super) fn read(&mut self, until: Instant, method: &str) -> Result<(), NriError> {
        let left = until.saturating_duration_since(Instant::now());
        if left.is_zero() {
            return Err(NriError::Late(method.to_owned()));
        }
        self.stream.set_read_timeout(Some(left))?;
        match self.feed()? {
            None => return Err(NriError::Late(method.to_owned())),
            Some(0) => return Err(NriError::Closed),
            Some(_) => {}
        }
        // All that is there, before anything of it is taken: Go reads beside whoever takes it, who may
        // be slow.
        self.stream.set_nonblocking(true)?;
        while self.feed()?.is_some_and(|count| count > 0) {}
        self.stream.set_nonblocking(false)?;
        while let Some(message) = self.wire.message()? {
            self.take(message)?;
        }
        Ok(())
    }

    /// Reads once and queues the frames that have come. How many bytes there were, none at the end;
    /// `None` if nothing comes.
    fn feed(&mut self) -> Result<Option<usize>, NriError> {
        match self.stream.read(&mut self.buffer) {
            Ok(count) => {
                self.wire.feed(&self.buffer[..count])?;
                Ok(Some(count))
            }
            Err(error) => match error.kind() {
                ErrorKind::WouldBlock | ErrorKind::TimedOut => Ok(None),
                ErrorKind::Interrupted => self.feed(),
                _ => Err(error.into()),
            },
        }
    }

    fn take(&mut self, message: Message) -> Result<(), NriError> {
        let (number, body) = match message {
            Message::Call { number, body } => (number, body),
            Message::Answer { number, body } => {
                let Response { status, payload } =
                    exactly(&body).ok_or(Violation::Unreadable("an answer"))?;
                let answer = match status.filter(|status| status.code != 0) {
                    None => Ok(payload),
                    Some(status) => Err((status.code, status.message)),
                };
                self.answers.insert(number, answer);
                return Ok(());
            }
        };
        let call: Request = exactly(&body).ok_or(Violation::Unreadable("a call"))?;
        match (&*call.service, &*call.method) {
            (RUNTIME_SERVICE, "RegisterPlugin") if number == 1 => {
                let request = exactly(&call.payload);
                let request = request.ok_or(Violation::Unreadable("RegisterPlugin"))?;
                self.registration = Some((number, request));
                Ok(())
            }
            (RUNTIME_SERVICE, "UpdateContainers") => {
                let updates = exactly(&call.payload);
                let updates = updates.ok_or(Violation::Unreadable("UpdateContainers"))?;
                self.unsolicited.push(updates);
                self.reply(number, Ok(&[]))
            }
            _ => Err(Violation::Unserved(call.method).into()),
        }
    }

    fn write(&mut self, bytes: &[u8]) -> Result<(), NriError> {
        let Some(random) = &mut self.random else {
            return Ok(self.stream.write_all(bytes)?);
        };
        let mut rest = bytes;
        while !rest.is_empty() {
            // Most pieces are short; a large message is not all short pieces.
            let most = [2, 12, 5_000, 1 << 20][random.below(4)];
            let (piece, after) = rest.split_at(rest.len().min(1 + random.below(most)));
            self.stream.write_all(piece)?;
            std::thread::sleep(Duration::from_micros(100 * random.below(30) as u64));
            rest = after;
        }
        Ok(())
    }
}

// === impl Random ===

impl Random {
    fn below(&mut self, bound: usize) -> usize {
        self.0 ^= self.0 << 13;
        self.0 ^= self.0 >> 7;
        self.0 ^= self.0 << 17;
        usize::try_from(self.0 % (bound as u64)).expect("it is below a usize")
    }
}

fn check_identity(
    registration: &RegisterPluginRequest,
    generation: Generation,
) -> Result<(), NriError> {
    let RegisterPluginRequest {
        plugin_name: name,
        plugin_idx: index,
        ..
    } = registration;
    let sayable = |byte: u8| byte.is_ascii_alphanumeric() || b"_.+-".contains(&byte);
    let named = !name.is_empty() && (!generation.looks_at_names() || name.bytes().all(sayable));
    let digits = index.len() == 2 && index.bytes().all(|byte| byte.is_ascii_digit());
    if !named || !digits {
        return Err(Violation::Refused(format!("the plugin {index}-{name}")).into());
    }
    Ok(())
}

/// Messages that have everything: one, or as many as it takes for none to be too large.
fn parts(pods: &[PodSandbox], containers: &[Container], split: bool) -> Vec<SynchronizeRequest> {
    let (mut pods, mut containers) = (pods, containers);
    let (mut pods_each, mut containers_each) = (pods.len(), containers.len());
    let mut parts = Vec::new();
    loop {
        let (some_pods, pods_left) = pods.split_at(pods_each.min(pods.len()));
        let (some, left) = containers.split_at(containers_each.min(containers.len()));
        let part = SynchronizeRequest {
            pods: some_pods.to_vec(),
            containers: some.to_vec(),
            more: !(pods_left.is_empty() && left.is_empty()),
        };
        // The call around it has some bytes of its own.
        let (size, limit) = (part.encoded_len(), LARGEST_BODY - 256);
        if split && size > limit {
            let shrunk = |count: usize| (count * 9 / 10).min(count * limit / size).max(1);
            (pods_each, containers_each) = (shrunk(pods_each), shrunk(containers_each));
            continue;
        }
        let last = !part.more;
        parts.push(part);
        if last {
            return parts;
        }
        (pods, containers) = (pods_left, left);
    }
}

fn about(
    pod: &PodSandbox,
    container: Option<&Container>,
    linux_resources: Option<LinuxResources>,
) -> EventRequest {
    EventRequest {
        pod: Some(pod.clone()),
        container: container.cloned(),
        linux_resources,
    }
}

fn read<M: prost::Message + Default>(answer: Vec<u8>, what: &'static str) -> Result<M, NriError> {
    Ok(exactly(&answer).ok_or(Violation::Unreadable(what))?)
}

fn number_of(event: &str) -> i32 {
    match event {
        "RunPodSandbox" => 1,
        "StopPodSandbox" => 2,
        "RemovePodSandbox" => 3,
        "PostCreateContainer" => 5,
        "StartContainer" => 6,
        "PostStartContainer" => 7,
        "PostUpdateContainer" => 9,
        "RemoveContainer" => 11,
        "PostUpdatePodSandbox" => 13,
        other => panic!("no event {other}"),
    }
}

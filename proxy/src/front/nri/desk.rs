//! What a runtime has asked and what it is answered, as far as nobody has to wait for it.
//!
//! A runtime asks its plugins one after the other and waits, so every answer delays whatever it does
//! for any pod; one that is later than its limit costs the plugin its connection, and containers are
//! then created without it. So a question that nobody has answered in half of that time is answered
//! with "no change" here; what the caller says later is dropped, and it is told.
//!
//! The data path has the desk in hand whenever it does something, the watchdog when that stands still.

use super::{
    asked::{Answer, Asked, Form, Read},
    session::{Incoming, Runtime, SessionError, Ticket},
    wire::Wire,
};
use crate::view::Inputs;
use koord_nri::{Code, Event, Request, RequestId, Status};
use koord_proto::nri::{SynchronizeRequest, SynchronizeResponse, name};
use std::{
    collections::VecDeque,
    mem,
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};
use tokio::time::Instant;

/// Pods and containers that a synchronisation may have, as many as several nodes'.
const MOST_OBJECTS: usize = 100_000;
/// Questions that may wait for the data path. A runtime asks one thing at a time, so most of this is
/// for a data path that stands still.
const QUEUE: usize = 256;

#[derive(Debug)]
pub(super) struct Desk {
    pub(super) wire: Wire,
    inputs: Arc<Inputs>,
    runtime: Runtime,
    /// What has come of a synchronisation that has more to come.
    parts: SynchronizeRequest,
    /// Questions without an answer, the oldest first.
    waiting: VecDeque<Waiting>,
    /// What the data path has not taken yet, and late answers of which it does not know.
    asked: VecDeque<(Ticket, Box<Asked>)>,
    /// The methods of questions that could not be read, of which it does not know.
    unreadable: VecDeque<String>,
    late: u64,
    /// Whether the socket may have something to read.
    readable: bool,
    /// Why nothing more comes.
    over: Option<SessionError>,
}

/// Where both threads find it. A panic of whoever has it in hand is the end of the process.
#[derive(Clone, Debug)]
pub(super) struct SharedDesk(Arc<Mutex<Desk>>);

#[derive(Debug)]
struct Waiting {
    ticket: Ticket,
    form: Form,
}

// === impl SharedDesk ===

impl SharedDesk {
    pub(super) fn new(desk: Desk) -> Self {
        Self(Arc::new(Mutex::new(desk)))
    }

    pub(super) fn hand(&self) -> MutexGuard<'_, Desk> {
        self.0.lock().expect("nobody panicked at the desk")
    }
}

// === impl Desk ===

impl Desk {
    pub(super) fn new(wire: Wire, inputs: Arc<Inputs>, runtime: Runtime) -> Self {
        Self {
            wire,
            inputs,
            runtime,
            parts: SynchronizeRequest::default(),
            waiting: VecDeque::new(),
            asked: VecDeque::new(),
            unreadable: VecDeque::new(),
            late: 0,
            readable: true,
            over: None,
        }
    }

    /// The socket may have something to read.
    pub(super) fn set_readable(&mut self) {
        self.readable = true;
    }

    /// Reads once if there may be something, takes what has come, answers what is due, and writes
    /// what there is. Whether there may be more to read.
    ///
    /// What is read may have lain there for as long as `unread`.
    pub(super) fn turn(&mut self, unread: Duration) -> bool {
        if self.is_over() {
            return false;
        }
        let read = match self.readable {
            true => self.wire.read(),
            false => Ok(false),
        };
        let turned = read.and_then(|more| self.take_all(unread).map(|()| more));
        self.readable = turned.unwrap_or_else(|ended| {
            self.over = Some(ended);
            false
        });
        self.readable
    }

    /// What the data path has to know next; the end of the connection after all else.
    pub(super) fn next(&mut self) -> Option<Result<Incoming, SessionError>> {
        if let Some((ticket, asked)) = self.asked.pop_front() {
            return Some(Ok(Incoming::Asked(ticket, asked)));
        }
        if let Some(method) = self.unreadable.pop_front() {
            return Some(Ok(Incoming::Unreadable(method)));
        }
        match mem::take(&mut self.late) {
            0 => self.over.take().map(Err),
            late => Some(Ok(Incoming::Late(late))),
        }
    }

    /// Whether the data path has to know of something.
    pub(super) fn has_news(&self) -> bool {
        !self.asked.is_empty() || !self.unreadable.is_empty() || self.late > 0 || self.is_over()
    }

    pub(super) fn is_over(&self) -> bool {
        self.over.is_some()
    }

    /// When something is to be done though nothing comes.
    pub(super) fn due(&self) -> Option<Instant> {
        self.waiting.iter().map(|waiting| waiting.ticket.due).min()
    }

    /// Answers a question; it is written with the next turn, so that answers of one moment wake the runtime
    /// once. False if it was answered before, by "no change", or if nobody hears it any more.
    ///
    /// # Errors
    ///
    /// When the answer is larger than a message may be; the question then waits for another one.
    pub(super) fn answer(&mut self, ticket: Ticket, answer: Answer) -> Result<bool, SessionError> {
        if self.is_over() {
            // Why is told next.
            return Ok(false);
        }
        let found = self.waiting.iter().position(|it| it.ticket == ticket);
        let Some(at) = found else {
            return Ok(false);
        };
        let payload = self.waiting[at].form.write(answer);
        let payload = payload.as_deref();
        self.wire.peer.reply(ticket.request, payload)?;
        self.waiting.remove(at);
        Ok(true)
    }

    fn take_all(&mut self, unread: Duration) -> Result<(), SessionError> {
        while let Some(event) = self.wire.peer.next_event() {
            match event {
                Event::Request(request) => self.take(&request, unread)?,
                // Nothing more is asked of the runtime once it has taken us.
                Event::Answer { .. } => {}
                Event::Lost { .. } => return Err(SessionError::Closed),
            }
        }
        while self.answer_late()? {}
        Ok(self.wire.flush()?)
    }

    /// Takes a question that may have lain there for as long as `unread`.
    pub(super) fn take(&mut self, request: &Request, unread: Duration) -> Result<(), SessionError> {
        let keep = |key: &[u8]| self.inputs.has(key);
        let read = match request.service == name::PLUGIN {
            true => Read::of(&request.method, &request.payload, keep),
            false => Err(Status::new(Code::UNIMPLEMENTED, "no such service")),
        };
        let (form, asked) = match read {
            Ok(Read::Whole(form, asked)) => (form, asked),
            Ok(Read::Part(part)) => match self.part(request.id, part)? {
                Some(asked) => (Form::Synchronize, Box::new(asked)),
                None => return Ok(()),
            },
            Err(status) => return self.decline(request, &status),
        };
        // Half of the time that the runtime gives.
        let patience = (self.runtime.waits(request.timeout) / 2).saturating_sub(unread);
        let ticket = Ticket {
            request: request.id,
            due: Instant::now() + patience,
        };
        self.waiting.push_back(Waiting { ticket, form });
        if self.asked.len() < QUEUE {
            self.asked.push_back((ticket, asked));
            return Ok(());
        }
        // Whatever is missed is found by the next list.
        self.late += 1;
        self.answer(ticket, Answer::Nothing).map(drop)
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
            return Err(SessionError::TooMany(MOST_OBJECTS));
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
        } = mem::take(&mut self.parts);
        Ok(Some(Asked::Synchronize { pods, containers }))
    }

    /// Says that a method is unknown. What cannot be read has no error for an answer: the runtime
    /// would take it for ours and refuse the pod.
    fn decline(&mut self, request: &Request, status: &Status) -> Result<(), SessionError> {
        if status.code == Code::UNIMPLEMENTED {
            self.wire.peer.reply(request.id, Err(status))?;
            return Ok(());
        }
        // One of those that are known.
        if self.unreadable.len() < QUEUE {
            self.unreadable.push_back(request.method.clone());
        }
        self.wire.peer.reply(request.id, Ok(b""))?;
        Ok(())
    }

    /// Answers a question with nothing that is due. Whether there was one.
    fn answer_late(&mut self) -> Result<bool, SessionError> {
        if self.waiting.is_empty() {
            return Ok(false);
        }
        let now = Instant::now();
        let due = self.waiting.iter().find(|it| it.ticket.due <= now);
        let Some(ticket) = due.map(|it| it.ticket) else {
            return Ok(false);
        };
        self.answer(ticket, Answer::Nothing)?;
        self.late += 1;
        Ok(true)
    }
}

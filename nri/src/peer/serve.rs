//! The requests of the other end, and the replies to them.

use std::collections::BTreeSet;

use crate::message::{Head, Inbound, Message, flag, kind};
use crate::peer::{Peer, SendError};
use crate::violation::Breach;
use crate::{Code, Event, Request, RequestId, Status, body};

/// What is known of the connection on which we are called.
#[derive(Debug)]
pub(super) struct Requests {
    inbound: Inbound,
    /// The number of the last request that was taken; they rise.
    last: u32,
    /// Requests that wait for a reply.
    open: BTreeSet<u32>,
}

// === impl Requests ===

impl Requests {
    pub(super) fn new() -> Self {
        Self {
            inbound: Inbound::new(),
            last: 0,
            open: BTreeSet::new(),
        }
    }

    pub(super) fn is_between_messages(&self) -> bool {
        self.inbound.is_between_messages()
    }

    pub(super) fn held(&self) -> usize {
        self.inbound.held()
    }

    pub(super) fn forget(&mut self) {
        self.inbound = Inbound::new();
        self.open.clear();
    }
}

// === impl Peer ===

impl Peer {
    /// Answers a request of the other end: with an encoded message, which may be empty, or with a
    /// status. The other end's call has then ended.
    ///
    /// # Errors
    ///
    /// [`SendError::TooLarge`], which leaves the request to be answered otherwise,
    /// [`SendError::NotAsked`] and [`SendError::Over`].
    pub fn reply(
        &mut self,
        request: RequestId,
        result: Result<&[u8], &Status>,
    ) -> Result<(), SendError> {
        let RequestId(stream) = request;
        if self.over {
            return Err(SendError::Over);
        }
        if !self.requests.open.contains(&stream) {
            return Err(SendError::NotAsked);
        }
        self.respond(stream, result)?;
        self.requests.open.remove(&stream);
        Ok(())
    }

    pub(super) fn read_requests(&mut self, mut bytes: &[u8]) -> Result<(), Breach> {
        let largest = self.limits.message;
        let judge = |head: Head| match head.kind {
            kind::REQUEST => Ok(head.length <= largest),
            kind::RESPONSE => Err(Breach::OutOfPlace("answer on the connection of requests")),
            _ => Ok(false),
        };
        while let Some(message) = self.requests.inbound.next(&mut bytes, judge)? {
            let stream = message.head.stream;
            match message.head.kind {
                kind::REQUEST => {
                    self.unless_unread()?;
                    match self.request(message) {
                        Ok(request) => self.tell(Event::Request(request)),
                        Err(status) => self.refuse(stream, &status)?,
                    }
                }
                // The end of what is sent for a call that is being served says nothing new.
                kind::DATA if self.requests.open.contains(&stream) => {}
                kind::DATA => {
                    let text = "no stream is open by this number";
                    self.refuse(stream, &Status::new(Code::INVALID_ARGUMENT, text))?;
                }
                // Unknown types are skipped.
                _ => {}
            }
        }
        Ok(())
    }

    /// Takes a request, or says why not.
    fn request(&mut self, message: Message) -> Result<Request, Status> {
        let Head {
            stream,
            flags,
            length,
            ..
        } = message.head;
        let Some(body) = message.body else {
            let limit = self.limits.message;
            let text = format!("message of {length} bytes, where {limit} are allowed");
            return Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
        };
        let invalid = |text| Err(Status::new(Code::INVALID_ARGUMENT, text));
        if stream.is_multiple_of(2) {
            return invalid("the number of a stream has to be odd");
        }
        if stream <= self.requests.last {
            return invalid("the numbers of streams have to rise");
        }
        self.requests.last = stream;
        if flags & flag::REMOTE_OPEN != 0 {
            let text = "plain calls alone are served, no streams";
            return Err(Status::new(Code::UNIMPLEMENTED, text));
        }
        let Ok(body) = body::read_request(body) else {
            return invalid("undecodable request");
        };
        let limit = self.limits.requests;
        if self.requests.open.len() >= limit {
            let text = format!("{limit} requests are being served already");
            return Err(Status::new(Code::RESOURCE_EXHAUSTED, text));
        }
        self.requests.open.insert(stream);
        Ok(Request {
            id: RequestId(stream),
            service: body.service,
            method: body.method,
            payload: body.payload,
            timeout: body.timeout,
        })
    }

    /// It costs the other end less to ask than us to answer, so it has to read what it is told.
    fn unless_unread(&self) -> Result<(), Breach> {
        let (waiting, limit) = (self.output.len(), self.limits.output);
        match waiting > limit {
            true => Err(Breach::NeverReads { waiting, limit }),
            false => Ok(()),
        }
    }

    /// Answers what nobody is told of.
    fn refuse(&mut self, stream: u32, status: &Status) -> Result<(), Breach> {
        self.unless_unread()?;
        self.respond(stream, Err(status))
            .expect("a refusal is a short text");
        Ok(())
    }

    fn respond(&mut self, stream: u32, result: Result<&[u8], &Status>) -> Result<(), SendError> {
        let connection = self.role.serves();
        self.send(connection, kind::RESPONSE, stream, |out| {
            body::write_response(out, result);
        })
    }
}

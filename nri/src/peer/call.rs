//! Our calls, and the answers to them.

use std::collections::BTreeSet;
use std::time::Duration;

use crate::message::{Head, Inbound, Message, kind};
use crate::peer::{Peer, SendError};
use crate::violation::Breach;
use crate::{CallId, Code, Event, Status, body};

/// What is known of the connection on which we call.
#[derive(Debug)]
pub(super) struct Calls {
    inbound: Inbound,
    made: Made,
}

/// The calls that were made.
#[derive(Debug)]
struct Made {
    /// The number of the next one: 1, 3, 5 and so on. `None` when all are used up.
    next: Option<u32>,
    /// Those that wait for an answer.
    open: BTreeSet<u32>,
}

// === impl Calls ===

impl Calls {
    pub(super) fn new() -> Self {
        Self {
            inbound: Inbound::new(),
            made: Made {
                next: Some(1),
                open: BTreeSet::new(),
            },
        }
    }

    pub(super) fn is_between_messages(&self) -> bool {
        self.inbound.is_between_messages()
    }

    pub(super) fn held(&self) -> usize {
        self.inbound.held()
    }

    pub(super) fn forget(&mut self) -> impl Iterator<Item = CallId> + use<> {
        self.inbound = Inbound::new();
        std::mem::take(&mut self.made.open).into_iter().map(CallId)
    }

    fn next_message(
        &mut self,
        bytes: &mut &[u8],
        largest: usize,
    ) -> Result<Option<Message>, Breach> {
        let Self { inbound, made } = self;
        inbound.next(bytes, |head| made.judge(head, largest))
    }
}

// === impl Made ===

impl Made {
    /// Whether a call by this number was ever made.
    fn contains(&self, stream: u32) -> bool {
        !stream.is_multiple_of(2) && self.next.is_none_or(|next| stream < next)
    }

    /// Whether the body of an answer is wanted.
    fn judge(&self, head: Head, largest: usize) -> Result<bool, Breach> {
        match head.kind {
            kind::RESPONSE if self.contains(head.stream) => {
                Ok(self.open.contains(&head.stream) && head.length <= largest)
            }
            kind::RESPONSE => Err(Breach::NeverCalled {
                stream: head.stream,
            }),
            kind::REQUEST => Err(Breach::OutOfPlace("request on the connection of answers")),
            kind::DATA => Err(Breach::OutOfPlace("data in answer to a plain call")),
            _ => Ok(false),
        }
    }
}

// === impl Peer ===

impl Peer {
    /// Calls a method of the other end. `timeout` is what the other end is told; the driver has to
    /// [`give_up`](Self::give_up) by itself. The answer comes as [`Event::Answer`] or
    /// [`Event::Lost`].
    ///
    /// # Errors
    ///
    /// Any [`SendError`] but `NotAsked`.
    pub fn call(
        &mut self,
        service: &str,
        method: &str,
        payload: &[u8],
        timeout: Option<Duration>,
    ) -> Result<CallId, SendError> {
        if self.over {
            return Err(SendError::Over);
        }
        let stream = self.calls.made.next.ok_or(SendError::Spent)?;
        let limit = self.limits.calls;
        if self.calls.made.open.len() >= limit {
            return Err(SendError::Calls { limit });
        }
        let (waiting, limit) = (self.output.len(), self.limits.output);
        if waiting > limit {
            return Err(SendError::Output { waiting, limit });
        }
        let connection = self.role.calls();
        self.send(connection, kind::REQUEST, stream, |out| {
            body::write_request(out, service, method, payload, timeout);
        })?;
        self.calls.made.next = stream.checked_add(2);
        self.calls.made.open.insert(stream);
        Ok(CallId(stream))
    }

    /// Waits for an answer no longer. ttrpc has no way to tell the other end; a late answer is
    /// dropped. False if the call had ended.
    pub fn give_up(&mut self, call: CallId) -> bool {
        let CallId(stream) = call;
        self.calls.made.open.remove(&stream)
    }

    pub(super) fn read_answers(&mut self, mut bytes: &[u8]) -> Result<(), Breach> {
        let largest = self.limits.message;
        while let Some(message) = self.calls.next_message(&mut bytes, largest)? {
            self.answer(message)?;
        }
        Ok(())
    }

    fn answer(&mut self, message: Message) -> Result<(), Breach> {
        let Head { stream, length, .. } = message.head;
        // Of an unknown type, or for a call that has ended.
        if message.head.kind != kind::RESPONSE || !self.calls.made.open.contains(&stream) {
            return Ok(());
        }
        let result = match message.body {
            Some(body) => body::read_response(body).map_err(|_| Breach::Answer { stream })?,
            None => {
                let limit = self.limits.message;
                let text = format!("answer of {length} bytes, where {limit} are allowed");
                Err(Status::new(Code::RESOURCE_EXHAUSTED, text))
            }
        };
        self.calls.made.open.remove(&stream);
        let call = CallId(stream);
        self.tell(Event::Answer { call, result });
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Limits, Role};

    #[test]
    fn numbers_of_calls_are_never_used_again() {
        let mut peer = Peer::new(Role::Plugin, Limits::default());
        peer.calls.made.next = Some(u32::MAX);
        let call = peer.call("S", "M", b"", None);
        assert_eq!(call, Ok(CallId(u32::MAX)));
        let call = peer.call("S", "M", b"", None);
        assert_eq!(call, Err(SendError::Spent));
        assert!(peer.calls.made.contains(u32::MAX));
    }
}

//! What a scripted runtime answers: steps, replies made of steps, and the rules that choose one.

use std::time::Duration;

use bytes::Bytes;
use h2::Reason;
use http::{HeaderMap, HeaderValue};
use tokio::sync::watch;

use crate::wire::Frame;

/// One thing that the runtime does on a stream. Nothing happens that no step says: a request is read
/// only by the steps that await it, so an unread request fills its window and stays there.
#[derive(Debug, Clone)]
pub enum Step {
    /// Reads until this many request messages have come, or the request has ended.
    AwaitMessages(usize),
    /// Reads until the request has ended.
    AwaitEnd,
    /// Sends the headers; `content-type` is added when it is not among them.
    Headers(HeaderMap),
    /// Sends a message; after [`Step::Headers`], as everything below that sends.
    Message(Frame),
    /// Sends all request messages that were read, as they came.
    Echo,
    /// Sends bytes as DATA that need not be a message.
    Data(Bytes),
    /// Waits, unless the client resets the stream meanwhile.
    Delay(Duration),
    /// Waits until the gate opens, unless the client resets the stream meanwhile.
    Hold(Gate),
    /// Sends trailers and ends the reply.
    Trailers(HeaderMap),
    /// Sends a reply of headers alone and ends it.
    TrailersOnly(HeaderMap),
    /// Resets the stream.
    Reset(Reason),
    /// Announces the end of the connection: open streams go on, no new one is taken.
    GoAway,
    /// Ends the connection with this code, whatever is open.
    AbruptGoAway(Reason),
    /// Closes the socket without a word.
    Disconnect,
}

/// Opens once, for everyone who waits at it.
#[derive(Debug, Clone)]
pub struct Gate {
    opened: watch::Sender<bool>,
}

impl Gate {
    /// A closed gate.
    pub fn new() -> Self {
        Self {
            opened: watch::Sender::new(false),
        }
    }

    /// Lets everyone through, those too who come later.
    pub fn open(&self) {
        self.opened.send_replace(true);
    }

    pub(super) async fn passed(&self) {
        let mut opened = self.opened.subscribe();
        opened
            .wait_for(|open| *open)
            .await
            .expect("the gate itself holds the sender");
    }
}

impl Default for Gate {
    fn default() -> Self {
        Self::new()
    }
}

/// The steps of one answer.
#[derive(Debug, Clone)]
pub struct Reply {
    pub(super) steps: Vec<Step>,
}

impl Reply {
    /// Exactly these steps.
    pub fn steps(steps: Vec<Step>) -> Self {
        Self { steps }
    }

    /// A successful unary answer, after the request has ended.
    pub fn message(message: impl Into<Bytes>) -> Self {
        Self::messages(vec![Frame::plain(message)])
    }

    /// A successful server stream of these messages, after the request has ended.
    pub fn messages(messages: Vec<Frame>) -> Self {
        let mut steps = vec![Step::AwaitEnd, Step::Headers(HeaderMap::new())];
        steps.extend(messages.into_iter().map(Step::Message));
        steps.push(Step::Trailers(status_block(0, "")));
        Self { steps }
    }

    /// The request's own messages back, successfully.
    pub fn echo() -> Self {
        Self::steps(vec![
            Step::AwaitEnd,
            Step::Headers(HeaderMap::new()),
            Step::Echo,
            Step::Trailers(status_block(0, "")),
        ])
    }

    /// An error without a message, in one block of headers, as servers mostly send it.
    pub fn error(code: i32, message: &str) -> Self {
        Self::steps(vec![
            Step::AwaitEnd,
            Step::TrailersOnly(status_block(code, message)),
        ])
    }

    /// The same with `grpc-status-details-bin`, given in base64.
    pub fn error_with_details(code: i32, message: &str, details: HeaderValue) -> Self {
        let mut block = status_block(code, message);
        block.insert("grpc-status-details-bin", details);
        Self::steps(vec![Step::AwaitEnd, Step::TrailersOnly(block)])
    }

    /// Waits before all else.
    #[must_use]
    pub fn after(mut self, delay: Duration) -> Self {
        self.steps.insert(0, Step::Delay(delay));
        self
    }

    /// Reads the request, then holds the call open until the gate opens.
    #[must_use]
    pub fn held(mut self, gate: &Gate) -> Self {
        self.steps
            .splice(0..0, [Step::AwaitEnd, Step::Hold(gate.clone())]);
        self
    }
}

/// `grpc-status`, and `grpc-message` when there is one.
///
/// # Panics
///
/// When the message is not printable ASCII.
pub fn status_block(code: i32, message: &str) -> HeaderMap {
    let mut block = HeaderMap::new();
    block.insert("grpc-status", HeaderValue::from(code));
    if !message.is_empty() {
        let message = HeaderValue::from_str(message).expect("a test's message is printable ASCII");
        block.insert("grpc-message", message);
    }
    block
}

/// What answers a call that no rule names.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Otherwise {
    /// UNIMPLEMENTED, and the test fails when the runtime is dropped.
    Fail,
    /// The request's own messages, successfully.
    Echo,
}

/// The rules: for each path, replies to be given once, in order, then one to be given for ever.
#[derive(Debug)]
pub(super) struct Rules {
    pub(super) otherwise: Otherwise,
    pub(super) once: Vec<(String, Reply)>,
    pub(super) always: Vec<(String, Reply)>,
}

impl Rules {
    /// The reply for a call, or `None` when it was not expected.
    pub(super) fn choose(&mut self, path: &str) -> Option<Reply> {
        if let Some(index) = self.once.iter().position(|(on, _)| on == path) {
            return Some(self.once.remove(index).1);
        }
        let always = self.always.iter().find(|(on, _)| on == path);
        always
            .map(|(_, reply)| reply.clone())
            .or_else(|| (self.otherwise == Otherwise::Echo).then(Reply::echo))
    }
}

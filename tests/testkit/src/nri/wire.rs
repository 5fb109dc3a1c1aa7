//! The frames and messages of NRI as Go reads them, and not more kindly.
//!
//! Go's end has a queue of 256 frames for each logical connection and reads it through a buffer of
//! 4,096 bytes: what a sender may do follows from that and is what is checked here, frame by frame
//! and message by message. Nothing is put right: the first rule that is broken is the error.

use std::collections::{BTreeSet, VecDeque};

/// The largest body of a message that ttrpc sends.
pub(super) const LARGEST_BODY: usize = 4 << 20;
/// Bytes of a frame's head: connection and length.
const FRAME_HEAD: usize = 8;
/// Bytes of a message's head: length, stream, type and flags.
const MESSAGE_HEAD: usize = 10;
/// Go's buffered reader takes no more at once.
const BUFFER: usize = 4096;
/// Frames that wait for their reader.
const QUEUE: usize = 256;
/// Frames that one message is worth.
const FRAMES_OF_A_MESSAGE: usize = 2;

const REQUEST: u8 = 1;
const RESPONSE: u8 = 2;

/// On which the runtime asks and the plugin answers.
const OF_PLUGIN: u32 = 1;
/// On which the plugin asks and the runtime answers.
const OF_RUNTIME: u32 = 2;

/// A rule of the wire that the plugin broke.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum Violation {
    /// Only 1 and 2 are open.
    #[error("a frame for the connection {0}")]
    Connection(u32),
    /// A frame without a byte.
    #[error("an empty frame")]
    EmptyFrame,
    /// More than the multiplexer sends at once.
    #[error("a frame of {0} bytes")]
    LargeFrame(usize),
    /// A message begins with its whole head.
    #[error("a message begins with a frame of {0} bytes")]
    CutHead(usize),
    /// The frame with a head does not fit the reader's buffer.
    #[error("a message begins with a frame of {0} bytes, more than the buffer of its reader")]
    LargeFirstFrame(usize),
    /// One frame has parts of two messages.
    #[error("a frame goes {0} bytes beyond its message")]
    TwoMessages(usize),
    /// A message came in more pieces than it has to.
    #[error("a message in more than {FRAMES_OF_A_MESSAGE} frames")]
    ManyFrames,
    /// The reader was too slow for so many frames.
    #[error("more than {QUEUE} frames wait on connection {0}")]
    Queue(u32),
    /// More than ttrpc sends.
    #[error("a message of {0} bytes")]
    LargeMessage(usize),
    /// Neither a plain request nor a plain answer, where there has to be one.
    #[error("a message of type {kind} with flags {flags} on connection {connection}")]
    Kind {
        connection: u32,
        kind: u8,
        flags: u8,
    },
    /// A number of a call that is even, or not larger than the last.
    #[error("a call with the number {0}")]
    Number(u32),
    /// An answer to what was never asked, or was answered.
    #[error("an answer to {0}, which nobody waits for")]
    Answer(u32),
    /// Bytes that are no message of their kind, or say what nobody knows.
    #[error("{0} cannot be read")]
    Unreadable(&'static str),
    /// The plugin called what no runtime serves.
    #[error("a call of {0}")]
    Unserved(String),
    /// A name, an index or a mask that the runtime refuses.
    #[error("{0} is refused by this runtime")]
    Refused(String),
}

/// A whole message.
#[derive(Debug, PartialEq, Eq)]
pub enum Message {
    /// A call of the plugin's.
    Call { number: u32, body: Vec<u8> },
    /// The plugin's answer to a question.
    Answer { number: u32, body: Vec<u8> },
}

/// What one logical connection has received.
#[derive(Debug, Default)]
struct Connection {
    queue: VecDeque<Vec<u8>>,
    /// The head of the message that is not whole.
    open: Option<Head>,
    body: Vec<u8>,
    frames: usize,
}

#[derive(Debug, Clone, Copy)]
struct Head {
    length: usize,
    number: u32,
    kind: u8,
    flags: u8,
}

/// The runtime's end of one socket; what the plugin's end needs that only answers is here too.
#[derive(Debug)]
pub struct Wire {
    largest_frame: usize,
    bytes: Vec<u8>,
    of_plugin: Connection,
    of_runtime: Connection,
    /// Questions without an answer.
    waiting: BTreeSet<u32>,
    next_question: u32,
    last_call: u32,
}

// === impl Wire ===

impl Wire {
    /// One that takes and sends frames of at most `largest_frame` bytes.
    pub fn new(largest_frame: usize) -> Self {
        Self {
            largest_frame,
            bytes: Vec::new(),
            of_plugin: Connection::default(),
            of_runtime: Connection::default(),
            waiting: BTreeSet::new(),
            next_question: 1,
            last_call: 0,
        }
    }

    /// Takes bytes of the plugin's, and queues the frames in them.
    ///
    /// # Errors
    ///
    /// When a frame breaks a rule of the multiplexer.
    pub fn feed(&mut self, bytes: &[u8]) -> Result<(), Violation> {
        self.bytes.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(head) = self.bytes.get(at..at + FRAME_HEAD) {
            let (connection, length) = (number(&head[..4]), length(&head[4..]));
            if length == 0 {
                return Err(Violation::EmptyFrame);
            }
            if length > self.largest_frame {
                return Err(Violation::LargeFrame(length));
            }
            let payload = at + FRAME_HEAD..at + FRAME_HEAD + length;
            let Some(payload) = self.bytes.get(payload) else {
                break;
            };
            let queue = match connection {
                OF_PLUGIN => &mut self.of_plugin.queue,
                OF_RUNTIME => &mut self.of_runtime.queue,
                other => return Err(Violation::Connection(other)),
            };
            if queue.len() == QUEUE {
                return Err(Violation::Queue(connection));
            }
            queue.push_back(payload.to_vec());
            at += FRAME_HEAD + length;
        }
        self.bytes.drain(..at);
        Ok(())
    }

    /// The next whole message, if it is there; the plugin's own calls first.
    ///
    /// # Errors
    ///
    /// When it breaks a rule of ttrpc, or came in frames that Go cannot read.
    pub fn message(&mut self) -> Result<Option<Message>, Violation> {
        if let Some((head, body)) = self.of_runtime.next()? {
            let Head { number, .. } = head.plain(OF_RUNTIME, REQUEST)?;
            if number.is_multiple_of(2) || number <= self.last_call {
                return Err(Violation::Number(number));
            }
            self.last_call = number;
            return Ok(Some(Message::Call { number, body }));
        }
        let Some((head, body)) = self.of_plugin.next()? else {
            return Ok(None);
        };
        let Head { number, .. } = head.plain(OF_PLUGIN, RESPONSE)?;
        if !self.waiting.remove(&number) {
            return Err(Violation::Answer(number));
        }
        Ok(Some(Message::Answer { number, body }))
    }

    /// The bytes of a question, and its number. A body larger than ttrpc allows is written as runtimes
    /// did that did not look at its size.
    pub fn ask(&mut self, body: &[u8]) -> (u32, Vec<u8>) {
        let number = self.next_question;
        self.next_question += 2;
        self.waiting.insert(number);
        (number, self.write(OF_PLUGIN, number, REQUEST, body))
    }

    /// The bytes of an answer to a call of the plugin's.
    pub fn answer(&self, number: u32, body: &[u8]) -> Vec<u8> {
        self.write(OF_RUNTIME, number, RESPONSE, body)
    }

    /// At the plugin's end: the number of the next question, if it is there.
    ///
    /// # Errors
    ///
    /// As for [`message`](Self::message).
    pub(super) fn question(&mut self) -> Result<Option<u32>, Violation> {
        // Nothing comes there but the answer to the registration, which says nothing.
        self.of_runtime.queue.clear();
        let Some((head, _)) = self.of_plugin.next()? else {
            return Ok(None);
        };
        let Head { number, .. } = head.plain(OF_PLUGIN, REQUEST)?;
        Ok(Some(number))
    }

    /// At the plugin's end: the bytes of a call.
    pub(super) fn call(&self, number: u32, body: &[u8]) -> Vec<u8> {
        self.write(OF_RUNTIME, number, REQUEST, body)
    }

    /// At the plugin's end: the bytes of an answer to a question.
    pub(super) fn reply(&self, number: u32, body: &[u8]) -> Vec<u8> {
        self.write(OF_PLUGIN, number, RESPONSE, body)
    }

    /// As Go writes: what fits its buffer together with the head, then the rest.
    fn write(&self, connection: u32, stream: u32, kind: u8, body: &[u8]) -> Vec<u8> {
        let mut message = Vec::with_capacity(MESSAGE_HEAD + body.len());
        message.extend_from_slice(&wide(body.len()));
        message.extend_from_slice(&stream.to_be_bytes());
        message.extend_from_slice(&[kind, 0]);
        message.extend_from_slice(body);
        let mut out = Vec::with_capacity(message.len() + 3 * FRAME_HEAD);
        let (first, rest) = message.split_at(message.len().min(BUFFER));
        for payload in [first].into_iter().chain(rest.chunks(self.largest_frame)) {
            out.extend_from_slice(&connection.to_be_bytes());
            out.extend_from_slice(&wide(payload.len()));
            out.extend_from_slice(payload);
        }
        out
    }
}

// === impl Connection ===

impl Connection {
    /// Reads frames until a message is whole.
    fn next(&mut self) -> Result<Option<(Head, Vec<u8>)>, Violation> {
        while let Some(frame) = self.queue.pop_front() {
            let head = match self.open {
                None => {
                    if frame.len() > BUFFER {
                        return Err(Violation::LargeFirstFrame(frame.len()));
                    }
                    let head = Head::read(&frame).ok_or(Violation::CutHead(frame.len()))?;
                    if head.length > LARGEST_BODY {
                        return Err(Violation::LargeMessage(head.length));
                    }
                    self.body.extend_from_slice(&frame[MESSAGE_HEAD..]);
                    self.frames = 1;
                    *self.open.insert(head)
                }
                Some(head) => {
                    self.body.extend_from_slice(&frame);
                    self.frames += 1;
                    head
                }
            };
            if self.frames > FRAMES_OF_A_MESSAGE {
                return Err(Violation::ManyFrames);
            }
            if self.body.len() > head.length {
                return Err(Violation::TwoMessages(self.body.len() - head.length));
            }
            if self.body.len() == head.length {
                self.open = None;
                return Ok(Some((head, std::mem::take(&mut self.body))));
            }
        }
        Ok(None)
    }
}

// === impl Head ===

impl Head {
    fn read(frame: &[u8]) -> Option<Self> {
        let head = frame.get(..MESSAGE_HEAD)?;
        Some(Self {
            length: length(&head[..4]),
            number: number(&head[4..8]),
            kind: head[8],
            flags: head[9],
        })
    }

    fn plain(self, connection: u32, expected: u8) -> Result<Self, Violation> {
        let Self { kind, flags, .. } = self;
        match (kind, flags) {
            (kind, 0) if kind == expected => Ok(self),
            _ => Err(Violation::Kind {
                connection,
                kind,
                flags,
            }),
        }
    }
}

fn number(bytes: &[u8]) -> u32 {
    bytes
        .iter()
        .fold(0, |sum, &byte| (sum << 8) | u32::from(byte))
}

fn length(bytes: &[u8]) -> usize {
    usize::try_from(number(bytes)).expect("a length of 32 bits is one here")
}

fn wide(length: usize) -> [u8; 4] {
    u32::try_from(length)
        .expect("a test's message is below 4 GiB")
        .to_be_bytes()
}

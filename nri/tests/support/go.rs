//! How the Go implementation reads: the reason for the rules of framing.
//!
//! A connection's reader hands out one frame at a time and fails if it does not fit where it is read
//! to; ttrpc reads through a `bufio.Reader` of 4,096 bytes, which reads past itself when it is empty
//! and much is wanted; no more than 256 frames wait for a connection's reader. (`containerd/nri
//! pkg/net/multiplex/mux.go`, `containerd/ttrpc channel.go`, Go's `bufio`.)

use std::collections::{BTreeMap, VecDeque};

const BUFFER: usize = 4_096;
const QUEUE: usize = 256;
const LARGEST: usize = 4 << 20;

/// A message as Go's ttrpc reads it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Message {
    pub connection: u32,
    pub stream: u32,
    pub kind: u8,
    pub flags: u8,
    pub body: Vec<u8>,
}

/// Reads whole frames of connections 1 and 2. Panics where Go would tear the stream down.
#[derive(Debug, Default)]
pub struct Go {
    input: Vec<u8>,
    connections: BTreeMap<u32, Connection>,
}

#[derive(Debug, Default)]
struct Connection {
    frames: VecDeque<Vec<u8>>,
    buffer: VecDeque<u8>,
}

impl Go {
    /// The messages that are whole. The reader of each connection is as slow as it can be: it looks
    /// when all of `bytes` are there.
    pub fn read(&mut self, bytes: &[u8]) -> Vec<Message> {
        self.input.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(head) = self.input.get(at..at + 8) {
            let connection = u32::from_be_bytes(head[..4].try_into().unwrap());
            let length = u32::from_be_bytes(head[4..].try_into().unwrap()) as usize;
            let Some(payload) = self.input.get(at + 8..at + 8 + length) else {
                break;
            };
            assert!(length > 0, "an empty frame");
            assert!(matches!(connection, 1 | 2), "connection {connection}");
            let queue = &mut self.connections.entry(connection).or_default().frames;
            queue.push_back(payload.to_vec());
            assert!(queue.len() <= QUEUE, "more frames than the queue takes");
            at += 8 + length;
        }
        self.input.drain(..at);
        let mut messages = Vec::new();
        for (number, connection) in &mut self.connections {
            while let Some(message) = connection.message(*number) {
                messages.push(message);
            }
        }
        messages
    }

    /// Whether nothing is left over.
    pub fn is_empty(&self) -> bool {
        let empty = |c: &Connection| c.frames.is_empty() && c.buffer.is_empty();
        self.input.is_empty() && self.connections.values().all(empty)
    }
}

impl Connection {
    fn message(&mut self, connection: u32) -> Option<Message> {
        let waiting = self.frames.iter().map(Vec::len).sum::<usize>() + self.buffer.len();
        let ahead: Vec<u8> = self.buffer.iter().copied().collect();
        let ahead = [
            ahead,
            self.frames.iter().flatten().copied().take(10).collect(),
        ]
        .concat();
        let length = u32::from_be_bytes(ahead.get(..4)?.try_into().unwrap()) as usize;
        // Go would wait in the middle of it; nothing that was read is lost by waiting before.
        if waiting < 10 + length {
            return None;
        }
        let head = self.read_full(10);
        assert!(length <= LARGEST, "message of {length} bytes");
        let body = self.read_full(length);
        assert!(self.buffer.is_empty(), "two messages in one frame");
        Some(Message {
            connection,
            stream: u32::from_be_bytes(head[4..8].try_into().unwrap()),
            kind: head[8],
            flags: head[9],
            body,
        })
    }

    /// `io.ReadFull` of a `bufio.Reader`.
    fn read_full(&mut self, length: usize) -> Vec<u8> {
        let mut bytes = Vec::with_capacity(length);
        while bytes.len() < length {
            let wanted = length - bytes.len();
            if self.buffer.is_empty() && wanted >= BUFFER {
                bytes.extend(self.next_frame(wanted));
                continue;
            }
            if self.buffer.is_empty() {
                let frame = self.next_frame(BUFFER);
                self.buffer.extend(frame);
            }
            let some = self.buffer.len().min(wanted);
            bytes.extend(self.buffer.drain(..some));
        }
        bytes
    }

    fn next_frame(&mut self, room: usize) -> Vec<u8> {
        let frame = self.frames.pop_front().unwrap();
        assert!(frame.len() <= room, "ENOMEM: {} into {room}", frame.len());
        frame
    }
}

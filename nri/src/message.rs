//! ttrpc messages: a head of ten bytes and a body, on the bytes of one logical connection.
//!
//! The head is the body's length, the stream (the number of the call), a type and flags, big-endian.

use crate::violation::Breach;

/// Bytes of a message's head.
pub(crate) const HEAD_LEN: usize = 10;

/// Most room that is made for a body before it arrives.
const RESERVED: usize = 64 << 10;

/// Message types.
pub(crate) mod kind {
    pub(crate) const REQUEST: u8 = 1;
    pub(crate) const RESPONSE: u8 = 2;
    pub(crate) const DATA: u8 = 3;
}

/// Message flags.
pub(crate) mod flag {
    /// The caller goes on sending on this stream, so it is no plain call.
    pub(crate) const REMOTE_OPEN: u8 = 0x2;
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Head {
    pub(crate) length: usize,
    pub(crate) stream: u32,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
}

/// A message that has arrived.
#[derive(Debug, PartialEq, Eq)]
pub(crate) struct Message {
    pub(crate) head: Head,
    /// `None` if it was skipped.
    pub(crate) body: Option<Vec<u8>>,
}

/// Puts messages together from the bytes of one logical connection.
#[derive(Debug)]
pub(crate) struct Inbound {
    head: [u8; HEAD_LEN],
    have: usize,
    open: Option<Open>,
}

/// A message whose head is here, and whose body is not.
#[derive(Debug)]
struct Open {
    head: Head,
    body: Option<Vec<u8>>,
    rest: usize,
}

// === impl Head ===

impl Head {
    fn read(bytes: [u8; HEAD_LEN]) -> Self {
        let [l0, l1, l2, l3, s0, s1, s2, s3, kind, flags] = bytes;
        Self {
            length: u32::from_be_bytes([l0, l1, l2, l3]) as usize,
            stream: u32::from_be_bytes([s0, s1, s2, s3]),
            kind,
            flags,
        }
    }

    /// Writes the head of a plain request or response. The flags of these are 0.
    fn bytes(kind: u8, stream: u32, length: usize) -> [u8; HEAD_LEN] {
        let length = u32::try_from(length).expect("a body that is sent has at most 4 MiB");
        let [l0, l1, l2, l3] = length.to_be_bytes();
        let [s0, s1, s2, s3] = stream.to_be_bytes();
        [l0, l1, l2, l3, s0, s1, s2, s3, kind, 0]
    }
}

/// Appends a message whose body `body` appends. If that is over `limit` its length is the error, and
/// the caller has to take back what was appended.
pub(crate) fn write(
    out: &mut Vec<u8>,
    kind: u8,
    stream: u32,
    limit: usize,
    body: impl FnOnce(&mut Vec<u8>),
) -> Result<(), usize> {
    let at = out.len();
    out.extend_from_slice(&[0; HEAD_LEN]);
    body(out);
    let length = out.len() - at - HEAD_LEN;
    if length > limit {
        return Err(length);
    }
    out[at..at + HEAD_LEN].copy_from_slice(&Head::bytes(kind, stream, length));
    Ok(())
}

// === impl Inbound ===

impl Inbound {
    pub(crate) fn new() -> Self {
        Self {
            head: [0; HEAD_LEN],
            have: 0,
            open: None,
        }
    }

    /// Takes bytes off the front of `bytes` until a message is whole. `None` when all are taken.
    /// `judge` says of a head whether its body is wanted; one that is not is skipped.
    pub(crate) fn next(
        &mut self,
        bytes: &mut &[u8],
        judge: impl FnOnce(Head) -> Result<bool, Breach>,
    ) -> Result<Option<Message>, Breach> {
        if self.open.is_none() {
            let Some(head) = self.read_head(bytes) else {
                return Ok(None);
            };
            self.open = Some(Open {
                head,
                body: judge(head)?.then(Vec::new),
                rest: head.length,
            });
        }
        let whole = self.open.as_mut().is_some_and(|open| open.take(bytes));
        let message = self.open.take_if(|_| whole).map(|open| Message {
            head: open.head,
            body: open.body,
        });
        Ok(message)
    }

    /// Whether the stream could end here: not inside of a message.
    pub(crate) fn is_between_messages(&self) -> bool {
        self.have == 0 && self.open.is_none()
    }

    /// Bytes of a body that is not whole.
    pub(crate) fn held(&self) -> usize {
        let body = self.open.as_ref().and_then(|open| open.body.as_ref());
        body.map_or(0, Vec::len)
    }

    fn read_head(&mut self, bytes: &mut &[u8]) -> Option<Head> {
        let (some, after) = bytes.split_at(bytes.len().min(HEAD_LEN - self.have));
        *bytes = after;
        self.head[self.have..self.have + some.len()].copy_from_slice(some);
        self.have += some.len();
        if self.have < HEAD_LEN {
            return None;
        }
        self.have = 0;
        Some(Head::read(self.head))
    }
}

// === impl Open ===

impl Open {
    /// Takes what belongs to the body. True when it is whole.
    fn take(&mut self, bytes: &mut &[u8]) -> bool {
        let (some, after) = bytes.split_at(bytes.len().min(self.rest));
        *bytes = after;
        self.rest -= some.len();
        if let Some(body) = &mut self.body {
            // What the head promises may never come, so memory follows what has.
            if body.capacity() < body.len() + some.len() {
                let ahead = body.len().max(RESERVED).min(self.rest);
                body.reserve_exact(some.len() + ahead);
            }
            body.extend_from_slice(some);
        }
        self.rest == 0
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const HEAD: Head = Head {
        length: 3,
        stream: 5,
        kind: 1,
        flags: 0,
    };

    /// A request on stream 5, and a response on stream 258 with flags.
    const BYTES: &[u8] = b"\0\0\0\x03\0\0\0\x05\x01\0abc\0\0\0\x01\0\0\x01\x02\x02\x05x";

    fn messages(inbound: &mut Inbound, mut bytes: &[u8], wanted: u8) -> Vec<Message> {
        let mut found = Vec::new();
        while let Some(message) = inbound
            .next(&mut bytes, |head| Ok(head.kind == wanted))
            .unwrap()
        {
            found.push(message);
        }
        assert_eq!(bytes, b"");
        found
    }

    fn expected() -> [Message; 2] {
        let second = Head {
            length: 1,
            stream: 258,
            kind: 2,
            flags: 5,
        };
        [
            Message {
                head: HEAD,
                body: Some(b"abc".to_vec()),
            },
            Message {
                head: second,
                body: None,
            },
        ]
    }

    #[test]
    fn messages_are_put_together_however_they_are_cut() {
        for cut in 0..=BYTES.len() {
            let (front, back) = BYTES.split_at(cut);
            let mut inbound = Inbound::new();
            let mut found = messages(&mut inbound, front, 1);
            found.extend(messages(&mut inbound, back, 1));
            assert_eq!(found, expected());
            assert!(inbound.is_between_messages());
        }
    }

    #[test]
    fn single_bytes_give_the_same_messages() {
        let mut inbound = Inbound::new();
        let mut found = Vec::new();
        for byte in BYTES {
            found.extend(messages(&mut inbound, &[*byte], 1));
        }
        assert_eq!(found, expected());
    }

    #[test]
    fn a_body_that_is_not_there_takes_no_room() {
        let mut inbound = Inbound::new();
        let promise = b"\xff\xff\xff\xff\0\0\0\x01\x01\0abc";
        assert_eq!(messages(&mut inbound, promise, 1), []);
        assert_eq!(inbound.held(), 3);
        let body = inbound.open.as_ref().unwrap().body.as_ref().unwrap();
        assert_eq!(body.capacity(), 3 + (64 << 10));
        assert!(!inbound.is_between_messages());
    }

    #[test]
    fn an_empty_body_is_whole_with_its_head() {
        let mut inbound = Inbound::new();
        let found = messages(&mut inbound, b"\0\0\0\0\0\0\0\x05\x01\0", 1);
        let head = Head { length: 0, ..HEAD };
        assert_eq!(
            found,
            [Message {
                head,
                body: Some(Vec::new())
            }]
        );
    }

    #[test]
    fn a_body_over_the_limit_is_told_by_its_length() {
        let mut out = Vec::new();
        let body = |out: &mut Vec<u8>| out.extend_from_slice(b"abc");
        assert_eq!(write(&mut out, 1, 5, 2, body), Err(3));
        out.clear();
        assert_eq!(write(&mut out, 1, 5, 3, body), Ok(()));
        assert_eq!(out, BYTES[..13]);
    }
}

//! HTTP/2 frames as bytes (RFC 9113, section 4): reading a head, checking a shape, writing our own.
//!
//! Nothing here copies a payload that passes; a [`Frame`] borrows the bytes it was read from.

use crate::StreamId;
use crate::output::Piece;
use crate::violation::Breach;

/// Bytes of a frame's head.
pub(crate) const HEAD_LEN: usize = 9;

/// The largest payload of a frame that we write. Every receiver takes it.
pub(crate) const OWN_PAYLOAD: usize = 16_384;

/// Frame types.
pub(crate) mod kind {
    pub(crate) const DATA: u8 = 0;
    pub(crate) const HEADERS: u8 = 1;
    pub(crate) const RST_STREAM: u8 = 3;
    pub(crate) const SETTINGS: u8 = 4;
    pub(crate) const PUSH_PROMISE: u8 = 5;
    pub(crate) const PING: u8 = 6;
    pub(crate) const GOAWAY: u8 = 7;
    pub(crate) const WINDOW_UPDATE: u8 = 8;
    pub(crate) const CONTINUATION: u8 = 9;
}

/// Frame flags.
pub(crate) mod flag {
    pub(crate) const END_STREAM: u8 = 0x1;
    pub(crate) const ACK: u8 = 0x1;
    pub(crate) const END_HEADERS: u8 = 0x4;
    pub(crate) const PADDED: u8 = 0x8;
    pub(crate) const PRIORITY: u8 = 0x20;
}

/// Error codes that we send.
#[derive(Clone, Copy, Debug)]
pub(crate) enum Code {
    NoError,
    Cancel,
}

/// The nine bytes before a payload.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Head {
    pub(crate) length: usize,
    pub(crate) kind: u8,
    pub(crate) flags: u8,
    pub(crate) stream: StreamId,
}

/// A whole frame, head included.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Frame<'a> {
    pub(crate) head: Head,
    pub(crate) bytes: &'a [u8],
    /// Where it begins in the chunk that is being read, if it came whole in that chunk.
    pub(crate) at: Option<usize>,
}

// === impl Head ===

impl Head {
    /// Reads a head, if all of it is there.
    pub(crate) fn read(bytes: &[u8]) -> Option<Self> {
        let &[l0, l1, l2, kind, flags, s0, s1, s2, s3, ..] = bytes else {
            return None;
        };
        Some(Self {
            length: u32::from_be_bytes([0, l0, l1, l2]) as usize,
            kind,
            flags,
            stream: u32::from_be_bytes([s0, s1, s2, s3]) & 0x7fff_ffff,
        })
    }

    pub(crate) fn has(self, flag: u8) -> bool {
        self.flags & flag != 0
    }

    pub(crate) fn ends_stream(self) -> bool {
        self.has(flag::END_STREAM)
    }

    /// Whether a frame of its kind may have this length, stream and flags. Kinds that we do not
    /// look at are left to the receiver.
    pub(crate) fn check_shape(self) -> Result<(), Breach> {
        let on_stream = self.stream != 0;
        let (fits, name) = match self.kind {
            kind::DATA => (on_stream, "DATA"),
            kind::HEADERS => (on_stream, "HEADERS"),
            kind::CONTINUATION => (on_stream, "CONTINUATION"),
            kind::RST_STREAM => (on_stream && self.length == 4, "RST_STREAM"),
            kind::WINDOW_UPDATE => (self.length == 4, "WINDOW_UPDATE"),
            kind::PING => (!on_stream && self.length == 8, "PING"),
            kind::GOAWAY => (!on_stream && self.length >= 8, "GOAWAY"),
            kind::SETTINGS => {
                let length_fits = if self.has(flag::ACK) {
                    self.length == 0
                } else {
                    self.length.is_multiple_of(6)
                };
                (!on_stream && length_fits, "SETTINGS")
            }
            _ => (true, ""),
        };
        if fits {
            Ok(())
        } else {
            Err(Breach::Malformed(name))
        }
    }

    fn write(self, out: &mut Vec<u8>) {
        let length = u32::try_from(self.length).expect("an own frame has at most 16,384 bytes");
        let [_, l0, l1, l2] = length.to_be_bytes();
        out.extend_from_slice(&[l0, l1, l2, self.kind, self.flags]);
        out.extend_from_slice(&self.stream.to_be_bytes());
    }
}

// === impl Frame ===

impl<'a> Frame<'a> {
    /// The frame as it came.
    pub(crate) fn piece(&self) -> Piece<'a> {
        Piece {
            bytes: self.bytes,
            at: self.at,
        }
    }

    pub(crate) fn payload(&self) -> &'a [u8] {
        &self.bytes[HEAD_LEN..]
    }

    /// The payload of DATA or HEADERS without padding.
    pub(crate) fn unpadded(&self) -> Result<&'a [u8], Breach> {
        let payload = self.payload();
        if !self.head.has(flag::PADDED) {
            return Ok(payload);
        }
        let (&pad, rest) = payload.split_first().ok_or(Breach::Malformed("padding"))?;
        let kept = rest
            .len()
            .checked_sub(usize::from(pad))
            .ok_or(Breach::Malformed("padding"))?;
        Ok(&rest[..kept])
    }

    /// The first four bytes of the payload as a number; the shape was checked before.
    pub(crate) fn first_u32(&self) -> u32 {
        self.bytes[HEAD_LEN..]
            .first_chunk()
            .copied()
            .map_or(0, u32::from_be_bytes)
    }
}

/// Writes the head of a DATA frame of at most [`OWN_PAYLOAD`] bytes.
pub(crate) fn data_head(out: &mut Vec<u8>, stream: StreamId, length: usize, end: bool) {
    let flags = if end { flag::END_STREAM } else { 0 };
    let head = Head {
        length,
        kind: kind::DATA,
        flags,
        stream,
    };
    head.write(out);
}

/// Writes a header block as HEADERS and as many CONTINUATION as it takes.
pub(crate) fn headers(
    out: &mut Vec<u8>,
    stream: StreamId,
    end_stream: bool,
    priority: Option<[u8; 5]>,
    block: &[u8],
) {
    let priority = priority.as_ref().map_or(&[][..], |bytes| &bytes[..]);
    let (first, mut rest) = block.split_at(block.len().min(OWN_PAYLOAD - priority.len()));
    let mut flags = if end_stream { flag::END_STREAM } else { 0 };
    if rest.is_empty() {
        flags |= flag::END_HEADERS;
    }
    if !priority.is_empty() {
        flags |= flag::PRIORITY;
    }
    let head = Head {
        length: priority.len() + first.len(),
        kind: kind::HEADERS,
        flags,
        stream,
    };
    head.write(out);
    out.extend_from_slice(priority);
    out.extend_from_slice(first);
    while !rest.is_empty() {
        let (piece, after) = rest.split_at(rest.len().min(OWN_PAYLOAD));
        rest = after;
        let head = Head {
            length: piece.len(),
            kind: kind::CONTINUATION,
            flags: if rest.is_empty() {
                flag::END_HEADERS
            } else {
                0
            },
            stream,
        };
        head.write(out);
        out.extend_from_slice(piece);
    }
}

pub(crate) fn rst_stream(out: &mut Vec<u8>, stream: StreamId, code: Code) {
    let code: u32 = match code {
        Code::NoError => 0x0,
        Code::Cancel => 0x8,
    };
    short(out, kind::RST_STREAM, stream, &code.to_be_bytes());
}

pub(crate) fn window_update(out: &mut Vec<u8>, stream: StreamId, increment: u32) {
    short(out, kind::WINDOW_UPDATE, stream, &increment.to_be_bytes());
}

pub(crate) fn ping(out: &mut Vec<u8>, opaque: [u8; 8]) {
    short(out, kind::PING, 0, &opaque);
}

/// Writes a GOAWAY with NO_ERROR.
pub(crate) fn goaway(out: &mut Vec<u8>, last_stream: StreamId) {
    let [a, b, c, d] = last_stream.to_be_bytes();
    short(out, kind::GOAWAY, 0, &[a, b, c, d, 0, 0, 0, 0]);
}

fn short(out: &mut Vec<u8>, kind: u8, stream: StreamId, payload: &[u8]) {
    let head = Head {
        length: payload.len(),
        kind,
        flags: 0,
        stream,
    };
    head.write(out);
    out.extend_from_slice(payload);
}

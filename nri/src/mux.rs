//! The multiplexer: frames of several logical connections on one byte stream.
//!
//! A frame is an eight-byte head, the connection's number and the length of the payload, both 32 bits
//! and big-endian, then the payload. Opening and closing a connection is a local act that nobody is
//! told of; the end of the stream ends all of them. What comes for a connection that is not open is
//! dropped, so an end has to have both open before it reads or is read.
//!
//! A reader sees each connection as a stream of bytes: where frames begin and end means nothing to
//! it. A writer must do better, because the Go implementation reads a connection through a buffer of
//! 4,096 bytes, a whole frame at a time, from a queue of 256 frames:
//!
//! - the frame in which a message begins has at most 4,096 bytes of payload;
//! - no frame has the end of one message and the beginning of the next;
//! - no frame is empty;
//! - a message takes few frames.
//!
//! [`begin`] and [`finish`] write one frame for what fits and two for what does not, as Go itself
//! does.

use crate::violation::Breach;

/// Bytes of a frame's head.
pub const HEAD_LEN: usize = 8;

/// The largest payload of a frame in which a message begins.
pub const FIRST_PAYLOAD: usize = 4_096;

/// Cuts a byte stream into what belongs to which connection.
#[derive(Debug)]
pub struct Reader {
    /// Largest payload that is taken.
    limit: usize,
    /// The beginning of a head whose rest has not arrived.
    head: [u8; HEAD_LEN],
    have: usize,
    connection: u32,
    /// Bytes of the open frame's payload that have not arrived.
    rest: usize,
}

/// Part of a frame's payload, or all of it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Piece<'a> {
    pub connection: u32,
    /// Never empty.
    pub bytes: &'a [u8],
}

// === impl Reader ===

impl Reader {
    /// A reader at the beginning of a stream. `limit` is the largest payload of a frame: a larger
    /// one is a sign that the stream is not what it should be.
    #[must_use]
    pub fn new(limit: usize) -> Self {
        Self {
            limit,
            head: [0; HEAD_LEN],
            have: 0,
            connection: 0,
            rest: 0,
        }
    }

    /// Takes bytes off the front of `bytes` until some of a payload are found. `None` when all are
    /// taken. Nothing is copied.
    ///
    /// # Errors
    ///
    /// [`Breach::FrameSize`]. The reader is of no use afterwards.
    pub fn next<'a>(&mut self, bytes: &mut &'a [u8]) -> Result<Option<Piece<'a>>, Breach> {
        while !bytes.is_empty() {
            if self.rest == 0 {
                self.read_head(bytes)?;
                continue;
            }
            let (piece, after) = bytes.split_at(bytes.len().min(self.rest));
            *bytes = after;
            self.rest -= piece.len();
            return Ok(Some(Piece {
                connection: self.connection,
                bytes: piece,
            }));
        }
        Ok(None)
    }

    /// Whether the stream could end here: not inside of a frame.
    #[must_use]
    pub fn is_between_frames(&self) -> bool {
        self.have == 0 && self.rest == 0
    }

    fn read_head(&mut self, bytes: &mut &[u8]) -> Result<(), Breach> {
        let (some, after) = bytes.split_at(bytes.len().min(HEAD_LEN - self.have));
        *bytes = after;
        self.head[self.have..self.have + some.len()].copy_from_slice(some);
        self.have += some.len();
        if self.have < HEAD_LEN {
            return Ok(());
        }
        self.have = 0;
        let [c0, c1, c2, c3, l0, l1, l2, l3] = self.head;
        let length = u32::from_be_bytes([l0, l1, l2, l3]) as usize;
        self.connection = u32::from_be_bytes([c0, c1, c2, c3]);
        self.rest = length;
        if length > self.limit {
            let limit = self.limit;
            return Err(Breach::FrameSize { length, limit });
        }
        Ok(())
    }
}

/// Where a message that is being written began.
#[derive(Debug)]
#[must_use = "a message is framed by `finish`"]
pub struct Begun(usize);

/// Begins a message at the end of `out`: append its bytes, at least one and at most 4 GiB, then
/// [`finish`] it.
pub fn begin(out: &mut Vec<u8>) -> Begun {
    let begun = Begun(out.len());
    out.extend_from_slice(&[0; HEAD_LEN]);
    begun
}

/// Makes frames of what was appended since [`begin`].
pub fn finish(out: &mut Vec<u8>, begun: Begun, connection: u32) {
    let Begun(first) = begun;
    let payload = first + HEAD_LEN;
    let length = out.len() - payload;
    if length <= FIRST_PAYLOAD {
        out[first..payload].copy_from_slice(&head(connection, length));
        return;
    }
    let second = payload + FIRST_PAYLOAD;
    out[first..payload].copy_from_slice(&head(connection, FIRST_PAYLOAD));
    let rest = head(connection, length - FIRST_PAYLOAD);
    out.splice(second..second, rest);
}

/// Takes back what was appended since [`begin`].
pub(crate) fn undo(out: &mut Vec<u8>, begun: Begun) {
    let Begun(first) = begun;
    out.truncate(first);
}

fn head(connection: u32, length: usize) -> [u8; HEAD_LEN] {
    let [c0, c1, c2, c3] = connection.to_be_bytes();
    let length = u32::try_from(length).expect("a message is at most 4 GiB");
    let [l0, l1, l2, l3] = length.to_be_bytes();
    [c0, c1, c2, c3, l0, l1, l2, l3]
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pieces(reader: &mut Reader, mut bytes: &[u8]) -> Vec<(u32, Vec<u8>)> {
        let mut found = Vec::new();
        while let Some(piece) = reader.next(&mut bytes).unwrap() {
            found.push((piece.connection, piece.bytes.to_vec()));
        }
        found
    }

    #[test]
    fn frames_of_any_connection_are_cut_out() {
        let stream = b"\0\0\0\x01\0\0\0\x03abc\0\0\0\x02\0\0\0\x01d\xff\xff\xff\xff\0\0\0\x02ef";
        let mut reader = Reader::new(3);
        let whole = [
            (1, b"abc".to_vec()),
            (2, b"d".to_vec()),
            (u32::MAX, b"ef".to_vec()),
        ];
        assert_eq!(pieces(&mut reader, stream), whole);
        assert!(reader.is_between_frames());
    }

    #[test]
    fn single_bytes_give_the_same_payload_and_tell_its_end() {
        let mut reader = Reader::new(3);
        let mut found = Vec::new();
        for byte in b"\0\0\0\x01\0\0\0\x03abc" {
            found.extend(pieces(&mut reader, &[*byte]));
            let whole = found.len() == 3;
            assert_eq!(reader.is_between_frames(), whole);
        }
        let single = |byte: &[u8]| (1, byte.to_vec());
        assert_eq!(found, [single(b"a"), single(b"b"), single(b"c")]);
    }

    #[test]
    fn an_empty_frame_is_nothing() {
        let mut reader = Reader::new(3);
        let found = pieces(&mut reader, b"\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\x01x");
        assert_eq!(found, [(2, b"x".to_vec())]);
        assert_eq!(pieces(&mut reader, b"\0\0\0\x01\0\0\0\0"), []);
        assert!(reader.is_between_frames());
    }

    #[test]
    fn a_frame_over_the_limit_is_refused_by_its_head() {
        let mut reader = Reader::new(3);
        let error = reader.next(&mut &b"\0\0\0\x01\0\0\0\x04"[..]).unwrap_err();
        let expected = Breach::FrameSize {
            length: 4,
            limit: 3,
        };
        assert_eq!(error, expected);
    }

    fn framed(length: usize) -> Vec<u8> {
        let mut out = b"before".to_vec();
        let begun = begin(&mut out);
        out.resize(out.len() + length, b'x');
        finish(&mut out, begun, 2);
        out
    }

    #[test]
    fn a_message_of_4096_bytes_is_one_frame_and_a_longer_one_two() {
        assert_eq!(framed(1), b"before\0\0\0\x02\0\0\0\x01x");
        let one = framed(4_096);
        assert_eq!(one[..14], *b"before\0\0\0\x02\0\0\x10\0");
        assert_eq!(one.len(), 6 + 8 + 4_096);
        let two = framed(4_097);
        assert_eq!(two[..14], *b"before\0\0\0\x02\0\0\x10\0");
        assert_eq!(two[14 + 4_096..], *b"\0\0\0\x02\0\0\0\x01x");
        let large = framed(4_194_314);
        assert_eq!(large[14 + 4_096..][..8], *b"\0\0\0\x02\0\x3f\xf0\x0a");
        assert_eq!(large.len(), 6 + 2 * 8 + 4_194_314);
    }
}

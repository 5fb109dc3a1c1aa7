//! gRPC's framing of messages: one byte "compressed", four bytes of length, the message.

use bytes::{Buf as _, BufMut as _, Bytes, BytesMut};

/// A message as it crosses the wire.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Frame {
    /// The message is compressed in the way that the header `grpc-encoding` names.
    pub compressed: bool,
    pub message: Bytes,
}

impl Frame {
    /// An uncompressed message.
    pub fn plain(message: impl Into<Bytes>) -> Self {
        Self {
            compressed: false,
            message: message.into(),
        }
    }

    /// Prefix and message, as DATA frames carry them.
    ///
    /// # Panics
    ///
    /// When the message has 4 GiB or more, which the prefix cannot say.
    pub fn encode(&self) -> Bytes {
        let length = u32::try_from(self.message.len()).expect("a test's message is below 4 GiB");
        let mut data = BytesMut::with_capacity(5 + self.message.len());
        data.put_u8(u8::from(self.compressed));
        data.put_u32(length);
        data.put_slice(&self.message);
        data.freeze()
    }
}

/// Cuts a stream of DATA into messages.
#[derive(Debug, Default)]
pub struct Frames {
    data: BytesMut,
}

impl Frames {
    /// Takes the next piece of DATA, however it was cut.
    pub fn push(&mut self, data: &[u8]) {
        self.data.put_slice(data);
    }

    /// What is there of a message that has not ended.
    pub fn rest(&self) -> Bytes {
        Bytes::copy_from_slice(&self.data)
    }
}

impl Iterator for Frames {
    type Item = Frame;

    /// The next whole message, if it is there.
    fn next(&mut self) -> Option<Frame> {
        let prefix: [u8; 5] = self.data.get(..5)?.try_into().ok()?;
        let [flag, length @ ..] = prefix;
        let length = usize::try_from(u32::from_be_bytes(length)).ok()?;
        if self.data.len() - 5 < length {
            return None;
        }
        self.data.advance(5);
        Some(Frame {
            compressed: flag == 1,
            message: self.data.split_to(length).freeze(),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn messages_are_found_however_data_is_cut() {
        let wire = b"\x00\x00\x00\x00\x02hi\x01\x00\x00\x00\x00\x00\x00\x00\x00\x03ca";
        let expected = [
            Frame::plain("hi"),
            Frame {
                compressed: true,
                message: Bytes::new(),
            },
        ];
        for size in 1..=wire.len() {
            let mut frames = Frames::default();
            let mut found = Vec::new();
            for piece in wire.chunks(size) {
                frames.push(piece);
                found.extend(&mut frames);
            }
            assert_eq!(found, expected, "cut into pieces of {size}");
            assert_eq!(frames.rest(), &b"\x00\x00\x00\x00\x03ca"[..]);
        }
    }

    #[test]
    fn a_message_is_written_behind_flag_and_length() {
        let frame = Frame {
            compressed: true,
            message: Bytes::from_static(b"abc"),
        };
        assert_eq!(frame.encode(), &b"\x01\x00\x00\x00\x03abc"[..]);
    }
}

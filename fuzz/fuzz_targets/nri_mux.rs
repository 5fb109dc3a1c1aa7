//! Any bytes as a multiplexed stream, cut anywhere. The reader gives the payload that the frames
//! have, in their order, and stops where a frame is too large; what the writer frames, the reader
//! gives back.
//!
//! Input: one byte of how the stream is cut, then the stream.
#![no_main]

use koord_nri::mux::{self, FIRST_PAYLOAD, HEAD_LEN, Reader};
use libfuzzer_sys::fuzz_target;

const LIMIT: usize = 1 << 16;

/// The payload of whole and begun frames, and whether one was too large.
fn frames(mut stream: &[u8]) -> (Vec<(u32, u8)>, bool) {
    let mut payload = Vec::new();
    while let Some((head, rest)) = stream.split_first_chunk::<8>() {
        let head = u64::from_be_bytes(*head);
        let connection = u32::try_from(head >> 32).expect("the upper half");
        let length = usize::try_from(head & 0xffff_ffff).expect("the lower half");
        if length > LIMIT {
            return (payload, true);
        }
        let (these, after) = rest.split_at(length.min(rest.len()));
        payload.extend(these.iter().map(|byte| (connection, *byte)));
        stream = after;
    }
    (payload, false)
}

fn read(stream: &[u8], chunk: usize, limit: usize) -> (Vec<(u32, u8)>, bool) {
    let mut reader = Reader::new(limit);
    let mut payload = Vec::new();
    for mut bytes in stream.chunks(chunk) {
        loop {
            match reader.next(&mut bytes) {
                Ok(Some(piece)) => {
                    assert!(!piece.bytes.is_empty());
                    payload.extend(piece.bytes.iter().map(|byte| (piece.connection, *byte)));
                }
                Ok(None) => break,
                Err(_) => return (payload, true),
            }
        }
    }
    (payload, false)
}

/// A message goes through as it is, in one or two frames.
fn write(message: &[u8]) {
    let mut out = Vec::new();
    let begun = mux::begin(&mut out);
    out.extend_from_slice(message);
    mux::finish(&mut out, begun, 2);
    let frames = 1 + usize::from(message.len() > FIRST_PAYLOAD);
    assert_eq!(out.len(), message.len() + frames * HEAD_LEN);
    let payload: Vec<u8> = read(&out, 1_000, usize::MAX)
        .0
        .iter()
        .map(|(_, byte)| *byte)
        .collect();
    assert!(payload == message);
}

fuzz_target!(|input: &[u8]| {
    let Some((&cut, stream)) = input.split_first() else {
        return;
    };
    assert!(read(stream, 1 + usize::from(cut), LIMIT) == frames(stream));
    if !stream.is_empty() {
        write(stream);
        write(&stream.repeat(1 + usize::from(cut)));
    }
});

//! Another sender: the same bytes on each connection, in frames as nobody would cut them.

use std::collections::{BTreeMap, VecDeque};

use super::rng::Rng;
use super::wire::frame;

/// Takes what one end wrote and gives it out cut anew: single bytes, several messages in one frame,
/// the connections in any order, empty frames, and frames on connections that nobody has.
#[derive(Debug, Default)]
pub struct Reframe {
    input: Vec<u8>,
    waiting: BTreeMap<u32, VecDeque<u8>>,
}

impl Reframe {
    pub fn push(&mut self, bytes: &[u8]) {
        self.input.extend_from_slice(bytes);
        let mut at = 0;
        while let Some(head) = self.input.get(at..at + 8) {
            let connection = u32::from_be_bytes(head[..4].try_into().unwrap());
            let length = u32::from_be_bytes(head[4..].try_into().unwrap()) as usize;
            let Some(payload) = self.input.get(at + 8..at + 8 + length) else {
                break;
            };
            let waiting = self.waiting.entry(connection).or_default();
            waiting.extend(payload);
            at += 8 + length;
        }
        self.input.drain(..at);
    }

    /// One frame, or none when nothing waits.
    pub fn next(&mut self, rng: &mut Rng, most: usize) -> Vec<u8> {
        self.waiting.retain(|_, bytes| !bytes.is_empty());
        let connections: Vec<u32> = self.waiting.keys().copied().collect();
        if connections.is_empty() {
            return Vec::new();
        }
        match rng.below(12) {
            0 => frame(rng.pick(&[1, 2]), b""),
            1 => {
                let length = rng.below(40);
                frame(rng.pick(&[0, 3, u32::MAX]), &rng.bytes(length))
            }
            _ => {
                let connection = rng.pick(&connections);
                let bytes = self.waiting.get_mut(&connection).unwrap();
                let count = (1 + rng.below(most)).min(bytes.len());
                frame(connection, &bytes.drain(..count).collect::<Vec<u8>>())
            }
        }
    }
}

//! Finding what the ledger knows by an id.
//!
//! A call of a client looks up half a dozen ids, and to hash one so that nobody can have many collide
//! takes several times as long as all else of a look. Here nobody can: ids that are in the ledger were
//! made by a runtime, at random, and whoever asks for another one puts nothing in.

use std::{
    collections::HashMap,
    hash::{BuildHasherDefault, Hasher},
};

/// By an id that a runtime has made.
pub(super) type ById<K, V> = HashMap<K, V, BuildHasherDefault<IdHasher>>;

/// Takes eight bytes in a step. Multiplied, they change what is above them in the state, and so the next step
/// begins with its halves exchanged.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct IdHasher(u64);

// === impl IdHasher ===

impl IdHasher {
    /// An odd number with half of its bits set, from the digits of the golden ratio.
    const FACTOR: u64 = 0x9e37_79b9_7f4a_7c15;

    fn add(&mut self, word: u64) {
        self.0 = (self.0.rotate_left(32) ^ word).wrapping_mul(Self::FACTOR);
    }
}

impl Hasher for IdHasher {
    fn write(&mut self, bytes: &[u8]) {
        let (words, rest) = bytes.as_chunks();
        for word in words {
            self.add(u64::from_ne_bytes(*word));
        }
        for byte in rest {
            self.add(u64::from(*byte));
        }
    }

    /// A map goes by the lowest bits first, and all that was taken changes the highest.
    fn finish(&self) -> u64 {
        self.0.rotate_left(32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_model::ContainerId;
    use std::{collections::HashSet, hash::BuildHasher};

    #[test]
    fn ids_that_differ_in_little_are_spread_over_a_table() {
        let hasher = BuildHasherDefault::<IdHasher>::default();
        let places = |id: fn(u32) -> String| {
            let hashes = (0..4_096).map(|n| hasher.hash_one(ContainerId::new(&id(n)).unwrap()));
            hashes.map(|hash| hash % 4_096).collect::<HashSet<_>>()
        };
        // Thrown at random, 4,096 ids are in 2,589 places.
        for id in [
            |n| format!("{n:064x}"),
            |n| format!("{n:x}{}", "0".repeat(64)),
            |n| format!("container-{n}"),
        ] {
            let met = places(id).len();
            assert!(met > 2_400, "{}: {met}", id(1));
        }
    }
}

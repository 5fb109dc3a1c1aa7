//! The static table, and the dynamic table of one direction (RFC 7541, section 2.3).
//!
//! The dynamic table's strings lie in one buffer in the order of their insertion, so that inserting
//! and evicting, which an encoder may do with every call, costs no allocation.

use std::collections::VecDeque;

/// What an entry costs beside its bytes (RFC 7541, section 4.1).
const OVERHEAD: usize = 32;

#[derive(Clone, Copy, Debug)]
struct Entry {
    start: usize,
    name: usize,
    value: usize,
}

#[derive(Debug)]
pub(super) struct Table {
    /// Oldest first.
    entries: VecDeque<Entry>,
    bytes: Vec<u8>,
    /// As the RFC counts it.
    size: usize,
    capacity: usize,
}

// === impl Entry ===

impl Entry {
    fn size(self) -> usize {
        self.name + self.value + OVERHEAD
    }
}

// === impl Table ===

impl Table {
    pub(super) fn new() -> Self {
        Self {
            entries: VecDeque::new(),
            bytes: Vec::new(),
            size: 0,
            capacity: 4_096,
        }
    }

    pub(super) fn capacity(&self) -> usize {
        self.capacity
    }

    /// Name and value at an index of the RFC's address space, which begins at 1.
    pub(super) fn get(&self, index: usize) -> Option<(&[u8], &[u8])> {
        let index = index.checked_sub(1)?;
        if let Some((name, value)) = STATIC.get(index) {
            return Some((name.as_bytes(), value.as_bytes()));
        }
        let age = index - STATIC.len();
        let place = self.entries.len().checked_sub(age + 1)?;
        let entry = self.entries.get(place)?;
        let (name, rest) = self.bytes[entry.start..].split_at(entry.name);
        Some((name, &rest[..entry.value]))
    }

    pub(super) fn insert(&mut self, name: &[u8], value: &[u8]) {
        let entry = Entry {
            start: self.bytes.len(),
            name: name.len(),
            value: value.len(),
        };
        self.evict(self.capacity.saturating_sub(entry.size()));
        if entry.size() > self.capacity {
            return;
        }
        // Evicting may have moved everything.
        let start = self.bytes.len();
        self.bytes.extend_from_slice(name);
        self.bytes.extend_from_slice(value);
        self.size += entry.size();
        self.entries.push_back(Entry { start, ..entry });
    }

    pub(super) fn resize(&mut self, capacity: usize) {
        self.capacity = capacity;
        self.evict(capacity);
        self.bytes.shrink_to(2 * capacity);
    }

    /// Evicts the oldest entries until at most `size` is in use. An entry too large for the table
    /// empties it and is not inserted.
    fn evict(&mut self, size: usize) {
        while self.size > size {
            let Some(entry) = self.entries.pop_front() else {
                break;
            };
            self.size -= entry.size();
        }
        let dead = self.entries.front().map_or(self.bytes.len(), |e| e.start);
        // Waiting for so many dead bytes bounds both the buffer and the work per insertion, however
        // small the entries are.
        if dead > self.capacity {
            self.bytes.drain(..dead);
            for entry in &mut self.entries {
                entry.start -= dead;
            }
        }
    }
}

#[rustfmt::skip]
static STATIC: [(&str, &str); 61] = [
    (":authority", ""), (":method", "GET"), (":method", "POST"), (":path", "/"),
    (":path", "/index.html"), (":scheme", "http"), (":scheme", "https"), (":status", "200"),
    (":status", "204"), (":status", "206"), (":status", "304"), (":status", "400"),
    (":status", "404"), (":status", "500"), ("accept-charset", ""),
    ("accept-encoding", "gzip, deflate"), ("accept-language", ""), ("accept-ranges", ""),
    ("accept", ""), ("access-control-allow-origin", ""), ("age", ""), ("allow", ""),
    ("authorization", ""), ("cache-control", ""), ("content-disposition", ""),
    ("content-encoding", ""), ("content-language", ""), ("content-length", ""),
    ("content-location", ""), ("content-range", ""), ("content-type", ""), ("cookie", ""),
    ("date", ""), ("etag", ""), ("expect", ""), ("expires", ""), ("from", ""), ("host", ""),
    ("if-match", ""), ("if-modified-since", ""), ("if-none-match", ""), ("if-range", ""),
    ("if-unmodified-since", ""), ("last-modified", ""), ("link", ""), ("location", ""),
    ("max-forwards", ""), ("proxy-authenticate", ""), ("proxy-authorization", ""), ("range", ""),
    ("referer", ""), ("refresh", ""), ("retry-after", ""), ("server", ""), ("set-cookie", ""),
    ("strict-transport-security", ""), ("transfer-encoding", ""), ("user-agent", ""),
    ("vary", ""), ("via", ""), ("www-authenticate", ""),
];

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn newest_entry_comes_first_and_the_oldest_is_evicted() {
        let mut table = Table::new();
        table.resize(2 * (32 + 2));
        table.insert(b"a", b"1");
        table.insert(b"b", b"2");
        assert_eq!(table.get(62), Some((&b"b"[..], &b"2"[..])));
        assert_eq!(table.get(63), Some((&b"a"[..], &b"1"[..])));
        table.insert(b"c", b"3");
        assert_eq!(table.get(62), Some((&b"c"[..], &b"3"[..])));
        assert_eq!(table.get(63), Some((&b"b"[..], &b"2"[..])));
        assert_eq!(table.get(64), None);
        assert_eq!(table.get(0), None);
        assert_eq!(table.get(usize::MAX), None);
    }

    #[test]
    fn entry_over_the_capacity_empties_the_table() {
        let mut table = Table::new();
        table.resize(40);
        table.insert(b"a", b"1");
        table.insert(b"name", b"value");
        assert_eq!(table.get(62), None);
        table.insert(b"name", b"1234");
        assert_eq!(table.get(62), Some((&b"name"[..], &b"1234"[..])));
    }

    #[test]
    fn many_insertions_keep_the_buffer_near_the_capacity() {
        let mut table = Table::new();
        for round in 0..10_000_u32 {
            table.insert(b"grpc-timeout", round.to_string().as_bytes());
        }
        assert_eq!(table.get(62), Some((&b"grpc-timeout"[..], &b"9999"[..])));
        assert_eq!(
            table.get(62 + 84),
            Some((&b"grpc-timeout"[..], &b"9915"[..]))
        );
        assert_eq!(table.get(62 + 85), None);
        assert!(table.bytes.len() <= 8_192);
    }
}

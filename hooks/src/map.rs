//! Labels and annotations, in the least memory that still finds a key fast.
//!
//! A node keeps one map for each pod as long as the pod lives, so there is no spare capacity and
//! no hashing: a sorted slice, searched by halves. The keys come from a small set and are shared, and
//! so are all entries by the copies of a map.

use std::sync::Arc;

/// Text by key.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Map(Arc<[(Arc<str>, Arc<str>)]>);

// === impl Map ===

impl Map {
    pub fn get(&self, key: &str) -> Option<&str> {
        self.shared(key).map(|text| &**text)
    }

    /// The same with what another has of a key, or without that key.
    #[must_use]
    pub fn with_of(self, key: &str, other: &Self) -> Self {
        if self.get(key) == other.get(key) {
            return self;
        }
        let rest = self.0.iter().filter(|(it, _)| **it != *key);
        let theirs = other.0.iter().filter(|(it, _)| **it == *key);
        rest.chain(theirs).cloned().collect()
    }

    pub(crate) fn shared(&self, key: &str) -> Option<&Arc<str>> {
        #[cfg(test)]
        reads::note(key);
        let index = self.0.binary_search_by(|(k, _)| (**k).cmp(key)).ok()?;
        Some(&self.0[index].1)
    }
}

impl<K: Into<Arc<str>>, V: Into<Arc<str>>> FromIterator<(K, V)> for Map {
    /// Of equal keys the last wins, as in a protobuf map.
    fn from_iter<I: IntoIterator<Item = (K, V)>>(entries: I) -> Self {
        let mut entries: Vec<(Arc<str>, Arc<str>)> = entries
            .into_iter()
            .map(|(key, value)| (key.into(), value.into()))
            .collect();
        entries.reverse();
        entries.sort_by(|(a, _), (b, _)| a.cmp(b));
        entries.dedup_by(|(later, _), (earlier, _)| later == earlier);
        Self(entries.into())
    }
}

/// Which keys were asked for on this thread, so that a test can hold a hook to its declaration.
#[cfg(test)]
pub(crate) mod reads {
    use std::{cell::RefCell, collections::BTreeSet};

    thread_local! {
        static KEYS: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
    }

    pub(super) fn note(key: &str) {
        KEYS.with_borrow_mut(|keys| keys.insert(key.to_owned()));
    }

    /// The keys read since the last call.
    pub(crate) fn take() -> BTreeSet<String> {
        KEYS.take()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_of_equal_keys_wins() {
        let map: Map = [("b", "1"), ("a", "2"), ("b", "3")].into_iter().collect();
        assert_eq!(map.get("b"), Some("3"));
        assert_eq!(map.get("c"), None);
        assert_eq!(map, [("a", "2"), ("b", "3")].into_iter().collect());
        assert_eq!(map.0.len(), 2);
    }

    #[test]
    fn a_key_is_taken_over_from_another_map_or_left_out_as_there() {
        let map =
            |entries: &[(&'static str, &'static str)]| -> Map { entries.iter().copied().collect() };
        let ours = || map(&[("a", "1"), ("b", "2")]);
        for (theirs, merged) in [
            (
                map(&[("b", "3"), ("c", "4")]),
                map(&[("a", "1"), ("b", "3")]),
            ),
            (map(&[("b", "2")]), ours()),
            (map(&[("c", "4")]), map(&[("a", "1")])),
        ] {
            assert_eq!(ours().with_of("b", &theirs), merged);
        }
        assert_eq!(map(&[]).with_of("b", &ours()), map(&[("b", "2")]));
        assert_eq!(map(&[]).with_of("c", &ours()), map(&[]));
    }
}

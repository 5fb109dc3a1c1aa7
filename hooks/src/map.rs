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

    /// Whether these are its entries, each once. Of more than 64 it is not found out.
    pub fn is<'a>(&self, entries: impl Iterator<Item = (&'a str, &'a str)>) -> bool {
        let mut left = match self.0.len() {
            0 => 0,
            count @ 1..=64 => u64::MAX >> (64 - count),
            _ => return false,
        };
        for (key, text) in entries {
            let index = self
                .index_of(key)
                .filter(|index| *self.0[*index].1 == *text);
            let Some(bit) = index.map(|index| 1 << index).filter(|bit| left & bit != 0) else {
                return false;
            };
            left ^= bit;
        }
        left == 0
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
        self.index_of(key).map(|index| &self.0[index].1)
    }

    fn index_of(&self, key: &str) -> Option<usize> {
        self.0.binary_search_by(|(k, _)| (**k).cmp(key)).ok()
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
    fn its_entries_are_all_that_it_has_each_once_in_any_order() {
        let map: Map = [("a", "1"), ("b", "2")].into_iter().collect();
        for (entries, are_its) in [
            (&[("a", "1"), ("b", "2")][..], true),
            (&[("b", "2"), ("a", "1")], true),
            (&[("a", "1")], false),
            (&[("a", "1"), ("a", "1")], false),
            (&[("a", "1"), ("b", "3")], false),
            (&[("a", "1"), ("b", "2"), ("c", "3")], false),
            (&[("a", "1"), ("b", "2"), ("b", "2")], false),
        ] {
            assert_eq!(map.is(entries.iter().copied()), are_its, "{entries:?}");
        }
        let none = Map::default();
        assert!(none.is([].into_iter()));
        assert!(!none.is([("a", "1")].into_iter()));
        let texts: Vec<String> = (0..65).map(|number| format!("{number:02}")).collect();
        let entries = |count| texts[..count].iter().map(|it| (&**it, &**it));
        assert!(entries(64).collect::<Map>().is(entries(64)));
        assert!(!entries(65).collect::<Map>().is(entries(65)));
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

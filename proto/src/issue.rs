//! What is wrong with parts of a text: how much of it, and the first of it in words.
//!
//! A text of megabytes may be wrong in millions of places. Each is counted, and what is kept of them
//! has a bound, because whoever has it keeps it as long as the text is in force, and prints it.

use std::slice;

/// As many are kept as a person reads.
const KEPT: usize = 100;

/// Issues of one text.
#[derive(Debug)]
pub struct Issues<T> {
    first: Vec<T>,
    count: usize,
}

// === impl Issues ===

impl<T> Issues<T> {
    pub(crate) fn push(&mut self, issue: T) {
        self.count += 1;
        if self.first.len() < KEPT {
            self.first.push(issue);
        }
    }

    /// Adds what is wrong with another part of the text.
    pub fn append(&mut self, others: Self) {
        let count = self.count + others.count;
        others.first.into_iter().for_each(|issue| self.push(issue));
        self.count = count;
    }

    /// How many there are.
    pub fn count(&self) -> usize {
        self.count
    }

    pub fn is_empty(&self) -> bool {
        self.count == 0
    }

    /// The first of them.
    pub fn iter(&self) -> slice::Iter<'_, T> {
        self.first.iter()
    }

    /// The very first.
    pub(crate) fn into_first(self) -> Option<T> {
        self.first.into_iter().next()
    }

    /// How many there are beside the first.
    pub fn more(&self) -> usize {
        self.count - self.first.len()
    }
}

impl<T> Default for Issues<T> {
    fn default() -> Self {
        Self {
            first: Vec::new(),
            count: 0,
        }
    }
}

impl<T> FromIterator<T> for Issues<T> {
    fn from_iter<I: IntoIterator<Item = T>>(all: I) -> Self {
        let mut issues = Self::default();
        all.into_iter().for_each(|issue| issues.push(issue));
        issues
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_are_counted_and_the_first_hundred_kept() {
        let mut issues: Issues<u32> = (1..=99).collect();
        assert_eq!((issues.count(), issues.more()), (99, 0));
        issues.append((100..=102).collect());
        assert_eq!((issues.count(), issues.more()), (102, 2));
        assert_eq!(issues.iter().last(), Some(&100));
        // Nor is what another part has no room for forgotten.
        issues.append((1..=150).collect());
        assert_eq!((issues.count(), issues.more()), (252, 152));
        assert_eq!(issues.into_first(), Some(1));
    }

    #[test]
    fn where_nothing_is_wrong_nothing_is_said() {
        let issues = Issues::<u32>::default();
        assert!(issues.is_empty());
        assert_eq!((issues.count(), issues.more()), (0, 0));
        assert_eq!(issues.into_first(), None);
    }
}

//! Issues of what is said again and again, as by a file that is rewritten or a source that is asked: each
//! gets a line in the log once.

use crate::status::chain_of;
use std::{collections::HashSet, error::Error};

/// Those of one file or answer that get a line; the status has more of them.
const LOGGED: usize = 20;

/// The reasons of those that were not there `before`. It is asked on the data path, and bounded by how many
/// issues are kept.
pub(crate) fn news<'a, E: Error + 'a>(
    before: impl IntoIterator<Item = &'a E>,
    now: impl IntoIterator<Item = &'a E>,
) -> impl Iterator<Item = String> {
    let mut told: HashSet<String> = before.into_iter().map(|it| chain_of(it)).collect();
    let reasons = now.into_iter().map(|it| chain_of(it));
    reasons
        .filter(move |it| told.insert(it.clone()))
        .take(LOGGED)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io;

    fn news_of(before: &[&'static str], now: &[&'static str]) -> Vec<String> {
        let [before, now] = [before, now].map(|reasons| {
            let issues = reasons.iter().map(|it| io::Error::other(*it));
            issues.collect::<Vec<_>>()
        });
        news(&before, &now).collect()
    }

    #[test]
    fn a_reason_is_told_when_it_comes_and_once_however_many_have_it() {
        let none: [&str; 0] = [];
        assert_eq!(news_of(&[], &["a", "b", "a"]), ["a", "b"]);
        assert_eq!(news_of(&["a", "b"], &["b", "a"]), none);
        assert_eq!(news_of(&["a"], &["b", "a"]), ["b"]);
        // What went and comes back is news.
        assert_eq!(news_of(&["b"], &["a"]), ["a"]);
        let many = ["1", "2", "3", "4", "5", "6", "7", "8", "9", "10", "11"];
        let more = many.map(|it| &*String::leak(format!("more {it}")));
        assert_eq!(news_of(&[], &[many, more].concat()).len(), 20);
    }
}

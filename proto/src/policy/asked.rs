//! Which places were looked at, for the page that has them all.

use std::{cell::RefCell, collections::BTreeSet, mem};

thread_local! {
    static ASKED: RefCell<BTreeSet<String>> = const { RefCell::new(BTreeSet::new()) };
}

pub(super) fn note(path: &str) {
    ASKED.with_borrow_mut(|asked| asked.insert(path.to_owned()));
}

/// Those since it was called last.
pub(super) fn take() -> BTreeSet<String> {
    ASKED.with_borrow_mut(mem::take)
}

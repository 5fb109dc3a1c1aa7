//! Attempts at what comes and goes: pauses that double, and a failure that is said once.

use std::{mem, time::Duration};

/// How it went so far.
#[derive(Debug)]
pub(crate) struct Retry {
    first: Duration,
    last: Duration,
    next: Duration,
    is_said: bool,
}

// === impl Retry ===

impl Retry {
    /// Pauses that grow from the first to the last.
    pub(crate) const fn between(first: Duration, last: Duration) -> Self {
        Self {
            first,
            last,
            next: first,
            is_said: false,
        }
    }

    /// It went well: all begins anew. Whether a failure had been said.
    pub(crate) fn succeeded(&mut self) -> bool {
        self.next = self.first;
        mem::take(&mut self.is_said)
    }

    /// How long to wait before the next attempt.
    pub(crate) fn pause(&mut self) -> Duration {
        let longer = self.last.min(self.next * 2);
        mem::replace(&mut self.next, longer)
    }

    /// Whether a failure is to be said: the first since it went well.
    pub(crate) fn is_news(&mut self) -> bool {
        !mem::replace(&mut self.is_said, true)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pauses_double_to_the_last_and_a_failure_is_said_once_until_it_went_well() {
        let millis = Duration::from_millis;
        let mut retry = Retry::between(millis(50), millis(500));
        assert!(!retry.succeeded());
        for (pause, is_news) in [
            (50, true),
            (100, false),
            (200, false),
            (400, false),
            (500, false),
            (500, false),
        ] {
            assert_eq!((retry.pause(), retry.is_news()), (millis(pause), is_news));
        }
        assert!(retry.succeeded());
        assert_eq!((retry.pause(), retry.is_news()), (millis(50), true));
    }
}

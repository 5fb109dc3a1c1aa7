//! The series of a family, each looked up once.
//!
//! A family finds a series by hashing its labels under a lock. Labels are from closed sets and few
//! of them are met, so those that were are kept in a row: to count a hook's run or a call's end
//! takes a few comparisons and an increment. What is counted in the order in which it was met, as
//! are the hooks of a chain, takes one comparison.

use prometheus_client::metrics::family::Family;
use std::{
    cell::{Cell, RefCell},
    hash::Hash,
};

/// A family, and those of its series that were met.
#[derive(Debug)]
pub(super) struct Series<L, M> {
    family: Family<L, M>,
    met: RefCell<Vec<(L, M)>>,
    /// Where the one is that was met after the one that was changed last, or the first behind the last.
    next: Cell<usize>,
}

// === impl Series ===

impl<L: Copy + Eq + Hash, M: Clone> Series<L, M> {
    pub(super) fn of(family: Family<L, M>) -> Self {
        Self {
            family,
            met: RefCell::default(),
            next: Cell::default(),
        }
    }

    /// Lets `change` have the series with these labels, which is made if there is none.
    pub(super) fn change<T>(&self, labels: L, change: impl FnOnce(&M) -> T) -> T {
        let mut met = self.met.borrow_mut();
        let next = self.next.get();
        let index = match met.get(next) {
            Some((known, _)) if *known == labels => next,
            _ => {
                let known = met.iter().position(|(known, _)| *known == labels);
                known.unwrap_or_else(|| {
                    met.push((labels, self.family.get_or_create_owned(&labels)));
                    met.len() - 1
                })
            }
        };
        // A row that has come to its end is met from its beginning.
        self.next.set((index + 1) % met.len());
        change(&met[index].1)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use prometheus_client::metrics::counter::Counter;

    #[test]
    fn what_is_changed_is_what_the_family_shows() {
        let family = Family::<[(&str, &str); 1], Counter>::default();
        let series = Series::of(family.clone());
        for value in ["a", "b", "a"] {
            series.change([("label", value)], Counter::inc);
        }
        let shown = |value| family.get_or_create(&[("label", value)]).get();
        assert_eq!((shown("a"), shown("b")), (2, 1));
        assert_eq!(series.met.borrow().len(), 2);
    }
}

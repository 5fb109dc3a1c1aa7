//! A group and all groups below it, one after another.
//!
//! A container that may make groups in its own makes as many as it likes, as deep as it likes, with names
//! as long as it likes. So no more groups are gone through than somebody says, and of those that are still
//! to come nothing but the name is held.

use koord_model::{CgroupPath, CgroupPathError};
use std::fmt;

/// How many groups below one are looked at: far more than anybody makes who is not after us.
pub const MOST_BELOW: usize = 4_096;

/// Why a group, or some below it, are not looked at.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unseen {
    /// There are more than are looked at.
    Many { most: usize },
    /// The path of one is longer than the kernel takes.
    Long,
    /// The name of one is in no path of ours: it is not UTF-8, or has a control character.
    Name,
    /// The time for it was over.
    Late,
    /// One may not be read: whose it is can close it to all who may not override that.
    Forbidden,
}

/// The names of the groups directly below one, in no order.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Names {
    pub names: Vec<String>,
    /// There are more than were asked for.
    pub are_more: bool,
    /// So many others are there whose names are not UTF-8.
    pub others: usize,
}

/// A walk over a group and those below it, each before what is below it. What is said of a group
/// (`T`) is known of each directly below it too.
#[derive(Debug)]
pub struct Walk<T> {
    top: Option<(CgroupPath, T)>,
    /// The group that the last of the levels is below.
    above: CgroupPath,
    levels: Vec<(Vec<String>, T)>,
    most: usize,
    room: usize,
    unseen: Option<Unseen>,
}

// === impl Walk ===

impl<T: Copy> Walk<T> {
    /// From a group on, over no more than `most` below it.
    pub fn from(top: CgroupPath, said: T, most: usize) -> Self {
        Self {
            top: Some((top, said)),
            above: CgroupPath::root(),
            levels: Vec::new(),
            most,
            room: most,
            unseen: None,
        }
    }

    /// The next group, and what is said of the one above it.
    pub fn step(&mut self) -> Option<(CgroupPath, T)> {
        if self.top.is_some() {
            return self.top.take();
        }
        loop {
            let (names, said) = self.levels.last_mut()?;
            let Some(name) = names.pop() else {
                self.levels.pop();
                self.above = self.above.parent().unwrap_or_default();
                continue;
            };
            match self.above.join(&name) {
                Ok(group) => return Some((group, *said)),
                Err(error) => self.miss(Unseen::of(&error)),
            }
        }
    }

    /// How many names of groups below the one that came last may be told.
    pub fn room(&self) -> usize {
        self.room
    }

    /// Goes on below the one that came last, over groups of these names.
    pub fn enter(&mut self, group: CgroupPath, below: Names, said: T) {
        if below.are_more {
            self.miss(Unseen::Many { most: self.most });
        }
        if below.others > 0 {
            self.miss(Unseen::Name);
        }
        // To read a name costs the same, whatever it is.
        self.room = (self.room).saturating_sub(below.names.len() + below.others);
        if !below.names.is_empty() {
            self.levels.push((below.names, said));
            self.above = group;
        }
    }

    /// Does not look at a group, or at what is below it.
    pub fn miss(&mut self, why: Unseen) {
        self.unseen.get_or_insert(why);
    }

    /// Why the walk does not come to all groups, if it does not: the first reason that was met.
    pub fn unseen(&self) -> Option<Unseen> {
        self.unseen
    }
}

// === impl Unseen ===

impl Unseen {
    fn of(error: &CgroupPathError) -> Self {
        match error {
            CgroupPathError::TooLong { .. } => Self::Long,
            CgroupPathError::Control { .. } | CgroupPathError::Escapes { .. } => Self::Name,
        }
    }
}

impl fmt::Display for Unseen {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Many { most } => write!(f, "there are more than {most}"),
            Self::Long => f.write_str("the path of one is too long"),
            Self::Name => f.write_str("the name of one is not plain text"),
            Self::Late => f.write_str("they take too long"),
            Self::Forbidden => f.write_str("one may not be read"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What is below each group of a tree of this many levels, each with as many groups.
    fn names(group: &CgroupPath, (depth, width): (usize, usize), most: usize) -> Names {
        let all = if group.depth() < depth { width } else { 0 };
        Names {
            names: (0..all.min(most)).map(|it| it.to_string()).collect(),
            are_more: all > most,
            others: 0,
        }
    }

    /// The groups that a walk comes to in a tree, and how many names it held at most.
    fn walked(tree: (usize, usize), most: usize) -> (Vec<String>, usize, Option<Unseen>) {
        let mut walk = Walk::from(CgroupPath::root(), (), most);
        let (mut seen, mut held) = (Vec::new(), 0);
        while let Some((group, ())) = walk.step() {
            seen.push(group.as_str().to_owned());
            let below = names(&group, tree, walk.room());
            walk.enter(group, below, ());
            held = held.max(walk.levels.iter().map(|(names, ())| names.len()).sum());
        }
        (seen, held, walk.unseen())
    }

    #[test]
    fn each_group_comes_once_and_before_those_below_it() {
        let (seen, _, unseen) = walked((2, 2), 100);
        assert_eq!(seen, ["", "1", "1/1", "1/0", "0", "0/1", "0/0"]);
        assert_eq!(unseen, None);
        assert_eq!(walked((2, 2), 6).2, None);
    }

    #[test]
    fn of_very_many_groups_no_more_are_gone_through_or_held_than_was_said() {
        let most = 1_000;
        for tree in [(1, 120_000), (9, 10), (400, 3)] {
            let (seen, held, unseen) = walked(tree, most);
            assert_eq!(seen.len(), 1 + most, "{tree:?}");
            assert!(held <= most, "{tree:?}: {held}");
            let why = unseen.unwrap().to_string();
            assert_eq!(why, "there are more than 1000");
        }
    }

    #[test]
    fn groups_that_no_path_leads_to_are_not_taken_for_none() {
        let long = "x".repeat(250);
        for (name, why) in [
            ("a\u{85}b", "the name of one is not plain text"),
            (&*long, "the path of one is too long"),
        ] {
            let mut walk = Walk::from(CgroupPath::root(), (), 100);
            while let Some((group, ())) = walk.step() {
                let below = Names {
                    names: vec![name.to_owned()],
                    ..Names::default()
                };
                walk.enter(group, below, ());
            }
            assert_eq!(walk.unseen().unwrap().to_string(), why);
        }
        let mut walk = Walk::from(CgroupPath::root(), (), 100);
        let (top, ()) = walk.step().unwrap();
        let others = Names {
            others: 3,
            ..Names::default()
        };
        walk.enter(top, others, ());
        assert_eq!((walk.step(), walk.unseen()), (None, Some(Unseen::Name)));
        assert_eq!(walk.room(), 97);
    }

    #[test]
    fn what_is_said_of_a_group_is_known_of_those_directly_below() {
        let mut walk = Walk::from(CgroupPath::root(), 0, 10);
        let mut seen = Vec::new();
        while let Some((group, above)) = walk.step() {
            seen.push((group.as_str().to_owned(), above));
            let below = names(&group, (3, 1), walk.room());
            walk.enter(group, below, above + 1);
        }
        let told = [("", 0), ("0", 1), ("0/0", 2), ("0/0/0", 3)];
        assert_eq!(seen, told.map(|(group, above)| (group.to_owned(), above)));
    }
}

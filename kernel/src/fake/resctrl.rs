//! A processor that keeps the rules of resctrl, for tests that run it out of classes.

use crate::{
    core_sched::Tid,
    resctrl::{Groups, ResctrlError},
};
use koord_model::CacheShares;
use rustix::io::Errno;
use std::{
    collections::{BTreeMap, BTreeSet},
    sync::{Arc, Mutex, MutexGuard},
};

/// A fake of it. Clones are handles to the same one.
#[derive(Clone, Debug)]
pub struct FakeResctrl(Arc<Mutex<State>>);

#[derive(Debug)]
struct State {
    /// Beside the root's.
    classes: usize,
    groups: BTreeMap<String, Group>,
    /// Each thread's group; `None` is the root's.
    threads: BTreeMap<Tid, Option<String>>,
    /// Groups that cannot be removed.
    held: BTreeSet<String>,
    changes: usize,
}

#[derive(Debug, Default)]
struct Group {
    ours: bool,
    shares: CacheShares,
}

// === impl FakeResctrl ===

impl FakeResctrl {
    /// A processor with as many classes, the root's not counted.
    pub fn new(classes: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            classes,
            groups: BTreeMap::new(),
            threads: BTreeMap::new(),
            held: BTreeSet::new(),
            changes: 0,
        })))
    }

    /// A group that somebody else makes.
    pub fn make_foreign(&self, name: &str) {
        let group = Group::default();
        self.state().groups.insert(name.to_owned(), group);
    }

    /// Has a group stay when it is removed.
    pub fn hold(&self, name: &str) {
        self.state().held.insert(name.to_owned());
    }

    /// Starts a thread, in the group of the one that starts it.
    pub fn fork(&self, parent: Option<Tid>, child: Tid) {
        let mut state = self.state();
        let group = parent.and_then(|parent| state.threads[&parent].clone());
        state.threads.insert(child, group);
    }

    /// Ends a thread.
    pub fn end(&self, thread: Tid) {
        self.state().threads.remove(&thread);
    }

    /// The group of a thread; the root's is empty.
    pub fn group_of(&self, thread: Tid) -> String {
        self.state().threads[&thread].clone().unwrap_or_default()
    }

    /// What a group has, as a person reads it; `None` if there is none.
    pub fn shares_of(&self, name: &str) -> Option<String> {
        let state = self.state();
        state.groups.get(name).map(|group| group.shares.to_string())
    }

    /// How much was made, removed, written and moved since the last call.
    pub fn take_changes(&self) -> usize {
        std::mem::take(&mut self.state().changes)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0
            .lock()
            .expect("no test panics while it holds the processor")
    }

    fn names(&self, wanted: impl Fn(&Group) -> bool) -> Vec<String> {
        let state = self.state();
        let groups = state.groups.iter().filter(|(_, group)| wanted(group));
        groups.map(|(name, _)| name.clone()).collect()
    }
}

impl Groups for FakeResctrl {
    fn own(&self, name: &str) -> Result<bool, ResctrlError> {
        let mut state = self.state();
        let made = !state.groups.contains_key(name);
        if made && state.groups.len() == state.classes {
            return Err(ResctrlError::NoMoreClasses {
                name: name.to_owned(),
            });
        }
        state.changes += usize::from(made);
        state.groups.entry(name.to_owned()).or_default().ours = true;
        Ok(made)
    }

    fn all(&self) -> Result<Vec<String>, ResctrlError> {
        Ok(self.names(|_| true))
    }

    fn owned(&self) -> Result<Vec<String>, ResctrlError> {
        Ok(self.names(|group| group.ours))
    }

    fn remove(&self, name: &str) -> Result<(), ResctrlError> {
        let mut state = self.state();
        if state.held.contains(name) {
            return Err(failed(name, "removed", Errno::BUSY));
        }
        state.changes += usize::from(state.groups.remove(name).is_some());
        let mut groups = state.threads.values_mut();
        groups
            .by_ref()
            .filter(|it| it.as_deref() == Some(name))
            .for_each(|it| *it = None);
        Ok(())
    }

    fn share(&self, name: &str, shares: &CacheShares) -> Result<bool, ResctrlError> {
        let mut state = self.state();
        let group = state.groups.get_mut(name).ok_or_else(|| gone(name))?;
        let changed = group.shares != *shares;
        group.shares = shares.clone();
        state.changes += usize::from(changed);
        Ok(changed)
    }

    fn threads(&self, name: &str) -> Result<Vec<Tid>, ResctrlError> {
        let state = self.state();
        if !state.groups.contains_key(name) {
            return Err(gone(name));
        }
        let threads = state.threads.iter();
        let inside = threads.filter(|(_, group)| group.as_deref() == Some(name));
        Ok(inside.map(|(thread, _)| *thread).collect())
    }

    fn add(&self, name: &str, thread: Tid) -> Result<bool, ResctrlError> {
        let mut state = self.state();
        if !state.groups.contains_key(name) {
            return Err(gone(name));
        }
        Ok(state.put(thread, Some(name.to_owned())))
    }

    fn release(&self, thread: Tid) -> Result<bool, ResctrlError> {
        Ok(self.state().put(thread, None))
    }
}

// === impl State ===

impl State {
    fn put(&mut self, thread: Tid, group: Option<String>) -> bool {
        let Some(own) = self.threads.get_mut(&thread) else {
            return false;
        };
        *own = group;
        self.changes += 1;
        true
    }
}

fn gone(name: &str) -> ResctrlError {
    failed(name, "opened", Errno::NOENT)
}

fn failed(name: &str, action: &'static str, errno: Errno) -> ResctrlError {
    ResctrlError::Group {
        name: name.to_owned(),
        action,
        source: errno.into(),
    }
}

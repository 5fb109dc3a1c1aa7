//! A processor that keeps the rules of resctrl, for tests that run it out of classes and of monitoring
//! groups.

use crate::{
    core_sched::Tid,
    resctrl::{Groups, MONITORS, ResctrlError},
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
    /// How many monitoring groups there may be; `None` where nothing is counted.
    most_monitors: Option<usize>,
    monitors: BTreeSet<String>,
    threads: BTreeMap<Tid, Place>,
    /// Groups that cannot be removed.
    held: BTreeSet<String>,
    /// All monitoring ids are busy still, so none is to be had for any new group.
    is_busy: bool,
    changes: usize,
}

#[derive(Debug, Default)]
struct Group {
    ours: bool,
    shares: CacheShares,
}

/// Where a thread is.
#[derive(Clone, Debug, Default)]
struct Place {
    /// `None` is the root's.
    group: Option<String>,
    monitor: Option<String>,
}

// === impl FakeResctrl ===

impl FakeResctrl {
    /// A processor with as many classes, the root's not counted.
    pub fn new(classes: usize) -> Self {
        Self(Arc::new(Mutex::new(State {
            classes,
            groups: BTreeMap::new(),
            most_monitors: None,
            monitors: BTreeSet::new(),
            threads: BTreeMap::new(),
            held: BTreeSet::new(),
            is_busy: false,
            changes: 0,
        })))
    }

    /// The same with as many monitoring groups.
    #[must_use]
    pub fn monitoring(self, most: usize) -> Self {
        self.state().most_monitors = Some(most);
        self
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

    /// Has the cache be full of what groups that have gone have left there, or no more.
    pub fn keep_busy(&self, is_busy: bool) {
        self.state().is_busy = is_busy;
    }

    /// Starts a thread, in the groups of the one that starts it.
    pub fn fork(&self, parent: Option<Tid>, child: Tid) {
        let mut state = self.state();
        let place = parent.map(|parent| state.threads[&parent].clone());
        state.threads.insert(child, place.unwrap_or_default());
    }

    /// Ends a thread.
    pub fn end(&self, thread: Tid) {
        self.state().threads.remove(&thread);
    }

    /// The group of a thread; the root's is empty.
    pub fn group_of(&self, thread: Tid) -> String {
        let place = self.state().threads[&thread].clone();
        place.group.unwrap_or_default()
    }

    /// The monitoring group of a thread; empty if it has none of its own.
    pub fn monitor_of(&self, thread: Tid) -> String {
        let place = self.state().threads[&thread].clone();
        place.monitor.unwrap_or_default()
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
        if let Some((group, _)) = name.split_once(MONITORS) {
            return state.monitor(group, name);
        }
        let made = !state.groups.contains_key(name);
        if made && state.groups.len() == state.classes {
            return Err(ResctrlError::NoMoreClasses {
                name: name.to_owned(),
            });
        }
        if made && state.is_busy {
            return Err(ResctrlError::NoMoreMonitors {
                name: name.to_owned(),
                source: Errno::BUSY.into(),
            });
        }
        state.changes += usize::from(made);
        state.groups.entry(name.to_owned()).or_default().ours = true;
        Ok(made)
    }

    fn most(&self) -> Option<usize> {
        Some(self.state().classes)
    }

    fn all(&self) -> Result<Vec<String>, ResctrlError> {
        Ok(self.names(|_| true))
    }

    fn owned(&self) -> Result<Vec<String>, ResctrlError> {
        Ok(self.names(|group| group.ours))
    }

    fn monitors(&self) -> Result<Vec<String>, ResctrlError> {
        Ok(self.state().monitors.iter().cloned().collect())
    }

    fn remove(&self, name: &str) -> Result<(), ResctrlError> {
        let mut state = self.state();
        if state.held.contains(name) {
            return Err(failed(name, "removed", Errno::BUSY));
        }
        let removed = state.groups.remove(name).is_some() || state.monitors.remove(name);
        state.changes += usize::from(removed);
        let within = format!("{name}{MONITORS}");
        state.monitors.retain(|it| !it.starts_with(&within));
        for place in state.threads.values_mut() {
            if place.group.as_deref() == Some(name) {
                *place = Place::default();
            }
            if place.monitor.as_deref() == Some(name) {
                place.monitor = None;
            }
        }
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
        if !state.has(name) {
            return Err(gone(name));
        }
        let threads = state.threads.iter();
        let inside = threads.filter(|(_, Place { group, monitor })| {
            [group, monitor]
                .iter()
                .any(|it| it.as_deref() == Some(name))
        });
        Ok(inside.map(|(thread, _)| *thread).collect())
    }

    fn add(&self, name: &str, thread: Tid) -> Result<bool, ResctrlError> {
        let mut state = self.state();
        if !state.has(name) {
            return Err(gone(name));
        }
        let Some((group, _)) = name.split_once(MONITORS) else {
            let place = Place {
                group: Some(name.to_owned()),
                monitor: None,
            };
            return Ok(state.put(thread, place));
        };
        let Some(place) = state.threads.get(&thread).cloned() else {
            return Ok(false);
        };
        if place.group.as_deref() != Some(group) {
            return Err(elsewhere(name, thread));
        }
        let monitor = Some(name.to_owned());
        Ok(state.put(thread, Place { monitor, ..place }))
    }

    fn release(&self, thread: Tid) -> Result<bool, ResctrlError> {
        Ok(self.state().put(thread, Place::default()))
    }
}

// === impl State ===

impl State {
    fn has(&self, name: &str) -> bool {
        self.groups.contains_key(name) || self.monitors.contains(name)
    }

    /// Makes a monitoring group, if the group around it is there.
    fn monitor(&mut self, group: &str, name: &str) -> Result<bool, ResctrlError> {
        let owned = || name.to_owned();
        let Some(most) = self.most_monitors else {
            return Err(ResctrlError::Unmonitored { name: owned() });
        };
        if !self.groups.contains_key(group) {
            return Err(failed(name, "made", Errno::NOENT));
        }
        if self.monitors.contains(name) {
            return Ok(false);
        }
        if self.monitors.len() == most {
            return Err(ResctrlError::NoMoreMonitors {
                name: owned(),
                source: Errno::NOSPC.into(),
            });
        }
        self.monitors.insert(owned());
        self.changes += 1;
        Ok(true)
    }

    fn put(&mut self, thread: Tid, place: Place) -> bool {
        let Some(own) = self.threads.get_mut(&thread) else {
            return false;
        };
        *own = place;
        self.changes += 1;
        true
    }
}

/// A monitoring group takes no thread of another group than the one around it.
fn elsewhere(name: &str, thread: Tid) -> ResctrlError {
    ResctrlError::Refused {
        name: name.to_owned(),
        file: "tasks",
        text: format!("{thread}\n"),
        status: "Can't move task to different control group".to_owned(),
        source: Errno::INVAL.into(),
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

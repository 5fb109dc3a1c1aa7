//! A kernel that keeps the rules of core scheduling, for tests that make and end threads at will.

use crate::core_sched::{Cookie, CoreSched, Tid};
use rustix::io::Errno;
use std::{
    collections::BTreeMap,
    io,
    sync::{Arc, Mutex, MutexGuard},
};

/// A fake kernel. Clones are handles to the same one.
#[derive(Clone, Debug, Default)]
pub struct FakeCores(Arc<Mutex<State>>);

#[derive(Debug, Default)]
struct State {
    /// Each thread's process and cookie; 0 is none.
    threads: BTreeMap<Tid, (Tid, u64)>,
    made: u64,
    changes: usize,
}

// === impl FakeCores ===

impl FakeCores {
    /// Starts a process of one thread, with the cookie of the process that starts it.
    pub fn fork(&self, parent: Option<Tid>, child: Tid) {
        let mut state = self.state();
        let cookie = parent.map_or(0, |parent| state.threads[&parent].1);
        state.threads.insert(child, (child, cookie));
    }

    /// Starts another thread of a process.
    pub fn spawn(&self, process: Tid, thread: Tid) {
        let mut state = self.state();
        let cookie = state.threads[&process].1;
        state.threads.insert(thread, (process, cookie));
    }

    /// Ends a thread.
    pub fn end(&self, thread: Tid) {
        self.state().threads.remove(&thread);
    }

    /// Gives a thread a cookie by its number, as one that was there before has; 0 is none.
    pub fn set(&self, thread: Tid, cookie: u64) {
        let mut state = self.state();
        let (_, own) = state.threads.get_mut(&thread).expect("the thread runs");
        *own = cookie;
    }

    /// The next cookie that is made is this one, as the kernel uses those again that are free.
    pub fn make_next(&self, cookie: u64) {
        self.state().made = cookie - 1;
    }

    /// The number of a thread's cookie; 0 is none.
    pub fn number(&self, thread: Tid) -> u64 {
        self.state().threads[&thread].1
    }

    /// How many threads' cookies were changed since the last call.
    pub fn take_changes(&self) -> usize {
        std::mem::take(&mut self.state().changes)
    }

    fn state(&self) -> MutexGuard<'_, State> {
        self.0
            .lock()
            .expect("no test panics while it holds the kernel")
    }
}

impl CoreSched for FakeCores {
    fn cookie(&self, thread: Tid) -> io::Result<Option<Cookie>> {
        let state = self.state();
        let (_, cookie) = state.threads.get(&thread).ok_or(Errno::SRCH)?;
        Ok(Cookie::new(*cookie))
    }

    fn create(&self, process: Tid) -> io::Result<()> {
        let mut state = self.state();
        state.made += 1;
        let made = state.made;
        state.give(process, made)
    }

    fn share(&self, from: Tid, cookie: Cookie, to: Tid) -> io::Result<()> {
        let mut state = self.state();
        let (_, own) = *state.threads.get(&from).ok_or(Errno::SRCH)?;
        if Cookie::new(own) != Some(cookie) {
            return Err(Errno::SRCH.into());
        }
        state.give(to, own)
    }

    fn clear(&self, process: Tid) -> io::Result<()> {
        self.state().give(process, 0)
    }
}

// === impl State ===

impl State {
    /// To all threads of the process of one.
    fn give(&mut self, thread: Tid, cookie: u64) -> io::Result<()> {
        let (process, _) = *self.threads.get(&thread).ok_or(Errno::SRCH)?;
        for (of, own) in self.threads.values_mut() {
            if *of == process {
                *own = cookie;
                self.changes += 1;
            }
        }
        Ok(())
    }
}

//! Answers in time for a data path that stands still.
//!
//! The data path answers its runtime itself: to wake another thread for each question would take
//! longer than the answer. But a plugin that is late is closed, and its runtime goes on without it;
//! so no hook, however slow, may keep a question from its answer. A timer runs whenever the data path
//! is awake. When it ends and the data path has been awake all the while, a thread reads what the runtime
//! asks, and what the data path has not answered in half of the time that the runtime gives is answered
//! with "no change" from here. The data path is told of the question all the same, and what it decides
//! comes to the kernel by reconcile.
//!
//! A data path that rests lets the timer run on, and finds it running when it wakes again. So a busy one
//! calls the kernel for it a few times a second, however often it wakes; one that rests for longer than
//! the timer does finds it at its end, and starts it anew.
//!
//! The thread cannot always be had ([`crate::worker`]). Until it can, which each session and each
//! question tries, the data path answers all the same, and nobody does so for it.

use super::{desk::SharedDesk, session::Session};
use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    io::{Errno, read},
    time::{
        Itimerspec, TimerfdClockId, TimerfdFlags, TimerfdTimerFlags, timerfd_create,
        timerfd_settime,
    },
};
use std::{
    cell::{Cell, OnceCell},
    error::Error,
    io,
    os::{fd::OwnedFd, unix::net::UnixStream},
    sync::{
        Arc, Mutex, MutexGuard,
        atomic::{AtomicBool, AtomicU64, Ordering},
    },
    thread::{self, JoinHandle},
    time::{self, Duration},
};
use tokio::{
    runtime::{Builder, Runtime},
    sync::Notify,
    time::Instant,
};
use tracing::{info, warn};

/// Which part of the time that a runtime gives for an answer the data path may be awake for before
/// somebody looks after it. Half of that time is left for an answer of its own.
const UNWATCHED: u32 = 8;
/// So often a watchdog looks whether the data path moves again.
const STEP: Duration = Duration::from_millis(20);
/// So often it reads before it lets go of what the data path needs.
const READS: usize = 16;
/// The stack of the thread, in bytes.
const STACK: usize = 2 << 20;

/// Whether a data path is awake, and since when.
#[derive(Debug)]
pub struct Pulse {
    /// Runs while the data path is awake and somebody wants to know, and ends after that.
    timer: OwnedFd,
    /// The timer runs, or the thread that waits for it has not looked yet what it has ended for.
    runs: AtomicBool,
    /// How often it woke and went to rest: odd while it is awake.
    turns: AtomicU64,
    /// When it woke last, in nanoseconds since there is a pulse.
    woke: AtomicU64,
    began: time::Instant,
    /// Whoever sets the timer has it in hand.
    watch: Mutex<Watch>,
    /// Nobody needs the thread any more.
    over: AtomicBool,
}

#[derive(Debug, Default)]
struct Watch {
    watched: Option<Watched>,
    /// How long the data path may be awake; no time for as long as nothing is watched.
    unwatched: Duration,
}

/// A session that is answered for.
#[derive(Clone, Debug)]
pub(super) struct Watched {
    pub(super) desk: SharedDesk,
    pub(super) socket: Arc<UnixStream>,
    /// Tells the data path that there is something on the desk.
    pub(super) nudge: Arc<Notify>,
}

/// The thread, once there is one, for as long as this is held.
#[derive(Debug)]
pub(super) struct Watchdog {
    pulse: Arc<Pulse>,
    pub(super) stack_bytes: usize,
    thread: OnceCell<JoinHandle<()>>,
    /// That none can be had was told.
    told: Cell<bool>,
}

// === impl Pulse ===

impl Pulse {
    /// The pulse of a data path that runs on [`runtime`](Self::runtime).
    ///
    /// # Errors
    ///
    /// When the kernel has no timer for us.
    pub fn new() -> io::Result<Arc<Self>> {
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC)?;
        Ok(Arc::new(Self {
            timer,
            runs: AtomicBool::new(false),
            turns: AtomicU64::new(1),
            woke: AtomicU64::new(0),
            began: time::Instant::now(),
            watch: Mutex::default(),
            over: AtomicBool::new(false),
        }))
    }

    /// A runtime of one thread, whose pulse this is.
    ///
    /// # Errors
    ///
    /// When it cannot be made.
    pub fn runtime(self: &Arc<Self>) -> io::Result<Runtime> {
        let (waking, resting) = (self.clone(), self.clone());
        Builder::new_current_thread()
            .enable_all()
            .on_thread_unpark(move || waking.wakes())
            .on_thread_park(move || resting.rests())
            .build()
    }

    fn wakes(&self) {
        // Nobody else writes these, so two steps are one.
        let turns = self.turns.load(Ordering::SeqCst);
        self.woke.store(self.now(), Ordering::SeqCst);
        self.turns.store(turns | 1, Ordering::SeqCst);
        self.see_to_timer();
    }

    fn rests(&self) {
        let turns = self.turns.load(Ordering::SeqCst) | 1;
        self.turns.store(turns + 1, Ordering::SeqCst);
    }

    /// Nanoseconds since there is a pulse.
    fn now(&self) -> u64 {
        // They last for 584 years.
        u64::try_from(self.began.elapsed().as_nanos()).unwrap_or(u64::MAX)
    }

    /// Has the timer run if somebody wants to know.
    fn see_to_timer(&self) {
        let watch = self.watch();
        if !watch.unwatched.is_zero() && !self.runs.swap(true, Ordering::SeqCst) {
            self.run_timer(watch.unwatched);
        }
    }

    /// Looks what the timer has ended for: the turn of a data path that has been awake for as long as it may
    /// be. If it woke meanwhile, the timer runs for what is left.
    fn look(&self) -> Option<u64> {
        let watch = self.watch();
        // Before anything is looked at: who wakes later starts the timer itself.
        self.runs.store(false, Ordering::SeqCst);
        let turn = self.turns.load(Ordering::SeqCst);
        if turn.is_multiple_of(2) {
            return None;
        }
        let woke = self.woke.load(Ordering::SeqCst);
        // It may have woken again since.
        let awake = Duration::from_nanos(self.now().saturating_sub(woke));
        let left = watch.unwatched.saturating_sub(awake);
        if left.is_zero() {
            return Some(turn);
        }
        if !self.runs.swap(true, Ordering::SeqCst) {
            self.run_timer(left);
        }
        None
    }

    fn watch(&self) -> MutexGuard<'_, Watch> {
        self.watch.lock().expect("nobody panicked over a pulse")
    }

    /// Has the timer end after this time; never, after none.
    fn run_timer(&self, time: Duration) {
        let time = Timespec::try_from(time).expect("a timeout is short");
        let none = Timespec::default();
        let once = Itimerspec {
            it_interval: none,
            it_value: time,
        };
        timerfd_settime(&self.timer, TimerfdTimerFlags::empty(), &once)
            .expect("the descriptor is a timer's");
    }

    /// Until the timer ends, which is not before there is something to do.
    fn wait(&self) {
        let mut ends = [0; 8];
        while read(&self.timer, &mut ends) == Err(Errno::INTR) {}
    }

    fn is_over(&self) -> bool {
        self.over.load(Ordering::SeqCst)
    }

    /// Answers for the data path until it moves on from this turn.
    fn stand_in(&self, turn: u64) {
        let (watched, unread) = {
            let watch = self.watch();
            (watch.watched.clone(), watch.unwatched)
        };
        let Some(Watched {
            desk,
            socket,
            nudge,
        }) = watched
        else {
            return;
        };
        while self.turns.load(Ordering::SeqCst) == turn && !self.is_over() {
            let due = {
                let mut desk = desk.hand();
                desk.set_readable();
                // The data path may want it: who sends without an end is read a part of at a time.
                for _ in 0..READS {
                    if !desk.turn(unread) {
                        break;
                    }
                }
                // What does not fit into the socket is the data path's to write too.
                if desk.has_news() || desk.wire.waits_to_write() {
                    nudge.notify_one();
                }
                if desk.is_over() {
                    return;
                }
                desk.due()
            };
            let left = due.map(|due| due.saturating_duration_since(Instant::now()));
            let left = left.map_or(STEP, |left| left.min(STEP));
            let left = Timespec::try_from(left).expect("a step is short");
            let mut asked = [PollFd::new(&socket, PollFlags::IN)];
            // Whatever comes of it, the desk is looked at next.
            poll(&mut asked, Some(&left)).ok();
        }
    }
}

// === impl Watchdog ===

impl Watchdog {
    /// One that has no thread yet.
    pub(super) fn new(pulse: Arc<Pulse>) -> Self {
        Self {
            pulse,
            stack_bytes: STACK,
            thread: OnceCell::new(),
            told: Cell::new(false),
        }
    }

    /// Starts the thread if it does not run and one can be had. Whether it runs.
    pub(super) fn start(&self) -> bool {
        if self.thread.get().is_some() {
            return true;
        }
        match self.spawn() {
            Ok(thread) => {
                if self.told.get() {
                    info!("the watchdog that could not be started runs");
                }
                self.thread.set(thread).is_ok()
            }
            Err(error) => {
                if !self.told.replace(true) {
                    let error = &error as &dyn Error;
                    warn!(
                        error,
                        "the watchdog cannot be started: until it can, the runtime waits where we \
                         stand still"
                    );
                }
                false
            }
        }
    }

    fn spawn(&self) -> io::Result<JoinHandle<()>> {
        let watched = self.pulse.clone();
        let thread = thread::Builder::new().name("nri-watchdog".to_owned());
        thread.stack_size(self.stack_bytes).spawn(move || {
            loop {
                watched.wait();
                if watched.is_over() {
                    return;
                }
                if let Some(turn) = watched.look() {
                    watched.stand_in(turn);
                }
            }
        })
    }

    /// Answers for the data path on this session, until the next one. Is called on the data path.
    pub(super) fn watch(&self, session: &Session) {
        self.start();
        self.pulse.wakes();
        let next = Watch {
            watched: Some(session.watched()),
            unwatched: session.runtime().waits(None) / UNWATCHED,
        };
        let mut watch = self.pulse.watch();
        // The timer may run since an earlier session, for longer.
        self.pulse.runs.store(true, Ordering::SeqCst);
        self.pulse.run_timer(next.unwatched);
        *watch = next;
    }

    /// There is no session.
    pub(super) fn rest(&self) {
        let mut watch = self.pulse.watch();
        self.pulse.run_timer(Duration::ZERO);
        self.pulse.runs.store(false, Ordering::SeqCst);
        *watch = Watch::default();
    }
}

impl Drop for Watchdog {
    fn drop(&mut self) {
        // Else the pulse would keep the connection open, to a runtime that waits for answers.
        let mut watch = self.pulse.watch();
        *watch = Watch::default();
        self.pulse.over.store(true, Ordering::SeqCst);
        self.pulse.run_timer(Duration::from_nanos(1));
        drop(watch);
        if let Some(thread) = self.thread.take() {
            // It has told of its panic itself.
            thread.join().ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const UNWATCHED: Duration = Duration::from_millis(100);

    fn watched() -> Arc<Pulse> {
        let pulse = Pulse::new().unwrap();
        pulse.rests();
        pulse.watch().unwatched = UNWATCHED;
        pulse
    }

    /// Has the timer end as often as it takes until somebody has been awake for too long.
    fn until_too_long(pulse: &Pulse) -> u64 {
        loop {
            pulse.wait();
            if let Some(turn) = pulse.look() {
                return turn;
            }
            assert!(pulse.runs.load(Ordering::SeqCst), "nobody would look again");
        }
    }

    #[test]
    fn a_timer_that_was_left_to_run_ends_for_who_woke_later_when_that_is_long_enough_awake() {
        let pulse = watched();
        pulse.wakes();
        pulse.rests();
        thread::sleep(UNWATCHED / 2);
        let woke = time::Instant::now();
        pulse.wakes();
        // It woke twice.
        assert_eq!(until_too_long(&pulse), 5);
        assert!(woke.elapsed() >= UNWATCHED, "too early");
    }

    #[test]
    fn of_a_data_path_that_rests_nobody_looks_again_until_it_wakes() {
        let pulse = watched();
        pulse.wakes();
        pulse.rests();
        pulse.wait();
        assert_eq!(pulse.look(), None);
        assert!(!pulse.runs.load(Ordering::SeqCst));
        let woke = time::Instant::now();
        pulse.wakes();
        assert_eq!(until_too_long(&pulse), 5);
        assert!(woke.elapsed() >= UNWATCHED, "too early");
    }
}

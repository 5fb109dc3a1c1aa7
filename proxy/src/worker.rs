//! A thread for work that may block, beside the one that carries the data.
//!
//! It does one job after the other, and whoever asked is answered where it waits. A thread cannot
//! always be had: a pod may use up the process ids of the node, or of the control group that we are
//! in. Then a job has no answer, and the next one tries again; nothing else comes of it.
//!
//! tokio has threads for this, too, but it panics where none can be had, and its runtime does not
//! end before what they do: a file system that never answers would keep us from stopping. Nobody
//! waits for this thread. It ends when nobody can ask it any more, or with the process.
//!
//! A thread that waits for a disk outlives even `SIGKILL`. So that nobody waits for it then either, it
//! [stands apart](koord_kernel::apart): our clients see our end, and our successor has our place.

use koord_kernel::{apart, process};
use std::{
    cell::{Cell, OnceCell},
    error::Error,
    fmt, io, mem,
    panic::{self, AssertUnwindSafe},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
    thread,
    time::Duration,
};
use tokio::{
    sync::{
        mpsc,
        oneshot::{self, error::TryRecvError},
    },
    time::{Instant, timeout},
};
use tracing::{debug, info, warn};

/// Jobs that may wait; whoever brings more waits for its turn.
const QUEUE: usize = 1024;

/// How long a thread waits that cannot begin yet.
const RETRY: Duration = Duration::from_millis(100);

/// How long somebody has to have waited in vain to know that what was waited for is late: a thread that does
/// as it should may take less time.
pub(crate) const LATE: Duration = Duration::from_millis(50);

/// A handle to a thread that does jobs of one kind.
pub(crate) struct Worker<J> {
    name: &'static str,
    stack_bytes: usize,
    /// Descriptors go between its thread and the others.
    shares: bool,
    /// Calls wait for its answers.
    is_awaited: bool,
    /// Its thread has this for as long as it runs, and there is one at most.
    work: Arc<Mutex<Work<J>>>,
    /// To the thread, once there is one.
    jobs: OnceCell<mpsc::Sender<J>>,
    /// None can be had.
    #[cfg(test)]
    is_denied: Cell<bool>,
    /// That none can be had was told.
    told: Cell<bool>,
    /// Jobs that its thread has done.
    done: Arc<AtomicU64>,
    /// How many those were when somebody last gave up waiting after [`LATE`] or more.
    given_up: Cell<Option<u64>>,
}

type Work<J> = dyn FnMut(J) + Send;

/// Why something is not known to be done: that it was not done is another thing than that there was
/// nothing to do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Undone {
    /// It was not waited for any longer.
    Late,
    /// There was no thread to do it, or the work panicked over it.
    NoThread,
    /// What it goes by cannot be read now.
    Unread,
}

/// Waits so long for something at most.
pub(crate) async fn in_time<T>(
    patience: Duration,
    done: impl Future<Output = Result<T, Undone>>,
) -> Result<T, Undone> {
    let done = timeout(patience, done).await;
    done.unwrap_or(Err(Undone::Late))
}

/// Somebody waits for an answer.
struct Wait<'a, J, A> {
    worker: &'a Worker<J>,
    begun: Instant,
    /// There was room for the job.
    is_sent: bool,
    answer: oneshot::Receiver<A>,
}

// === impl Worker ===

impl<J: Send + 'static> Worker<J> {
    /// One whose thread starts with the first job. No descriptor that is opened later may be in a job
    /// or in its answer.
    pub(crate) fn new(
        name: &'static str,
        stack_bytes: usize,
        work: impl FnMut(J) + Send + 'static,
    ) -> Self {
        Self {
            name,
            stack_bytes,
            shares: false,
            is_awaited: false,
            work: Arc::new(Mutex::new(work)),
            jobs: OnceCell::new(),
            #[cfg(test)]
            is_denied: Cell::new(false),
            told: Cell::new(false),
            done: Arc::default(),
            given_up: Cell::new(None),
        }
    }

    /// The same, whose jobs and answers may have descriptors in them. What it waits for should end some
    /// time: until then it keeps open what all others have.
    pub(crate) fn sharing(
        name: &'static str,
        stack_bytes: usize,
        work: impl FnMut(J) + Send + 'static,
    ) -> Self {
        Self {
            shares: true,
            ..Self::new(name, stack_bytes, work)
        }
    }

    /// The same as [`new`](Self::new), for whose answers calls wait: it has the CPU as the data path has.
    pub(crate) fn awaited(
        name: &'static str,
        stack_bytes: usize,
        work: impl FnMut(J) + Send + 'static,
    ) -> Self {
        Self {
            is_awaited: true,
            ..Self::new(name, stack_bytes, work)
        }
    }

    /// Starts the thread now, if one can be had; whether there is one.
    pub(crate) fn start(&self) -> bool {
        self.jobs().is_some()
    }

    /// Has a job done that answers to what it is given; `None` if there is no thread, or if the work
    /// panicked over it.
    pub(crate) async fn ask<A>(&self, job: impl FnOnce(oneshot::Sender<A>) -> J) -> Option<A> {
        let jobs = self.jobs()?;
        let (done, answer) = oneshot::channel();
        let mut wait = Wait {
            worker: self,
            begun: Instant::now(),
            is_sent: false,
            answer,
        };
        let sent = jobs.send(job(done)).await;
        assert!(sent.is_ok(), "a worker's thread outlives its handle");
        wait.is_sent = true;
        (&mut wait.answer).await.ok()
    }

    /// Whether somebody has given up waiting for an answer after 50 ms or more, and the thread has done
    /// nothing since. Whoever does not wait then has to ask all the same: only a job that is done
    /// ends it.
    pub(crate) fn is_late(&self) -> bool {
        self.given_up.get() == Some(self.done.load(Ordering::Acquire))
    }

    /// From now on no thread can be had, or one can again; one that is there stays.
    #[cfg(test)]
    pub(crate) fn deny(&self, is_denied: bool) {
        self.is_denied.set(is_denied);
    }

    fn jobs(&self) -> Option<&mpsc::Sender<J>> {
        if let Some(jobs) = self.jobs.get() {
            return Some(jobs);
        }
        let thread = self.name;
        match self.spawn() {
            Ok(jobs) => {
                if self.told.get() {
                    info!(thread, "the thread that could not be started runs");
                }
                Some(self.jobs.get_or_init(|| jobs))
            }
            Err(error) => {
                if !self.told.replace(true) {
                    let error = &error as &dyn Error;
                    warn!(
                        error,
                        thread, "a thread cannot be started: what it is for waits until one can"
                    );
                }
                None
            }
        }
    }

    fn spawn(&self) -> io::Result<mpsc::Sender<J>> {
        #[cfg(test)]
        if self.is_denied.get() {
            return Err(io::ErrorKind::WouldBlock.into());
        }
        let (jobs, mut queue) = mpsc::channel(QUEUE);
        let work = self.work.clone();
        let (thread, done) = (self.name, self.done.clone());
        let (shares, is_awaited) = (self.shares, self.is_awaited);
        let serve = move || {
            if !shares {
                stand_apart(thread);
            }
            if !is_awaited {
                stand_behind(thread);
            }
            let mut work = work.lock().expect("no panic leaves the work");
            while let Some(job) = queue.blocking_recv() {
                // Everybody counts on the thread. Who asked is told by having no answer, and the
                // log by the panic itself.
                panic::catch_unwind(AssertUnwindSafe(|| work(job))).ok();
                done.fetch_add(1, Ordering::Release);
            }
        };
        let thread = thread::Builder::new().name(self.name.to_owned());
        thread.stack_size(self.stack_bytes).spawn(serve)?;
        Ok(jobs)
    }
}

// === impl Wait ===

impl<J, A> Drop for Wait<'_, J, A> {
    fn drop(&mut self) {
        if self.begun.elapsed() < LATE {
            return;
        }
        // Before the answer is looked for: a job that has none then is not among these, and its end takes
        // back that it is late.
        let done = self.worker.done.load(Ordering::Acquire);
        if !self.is_sent || matches!(self.answer.try_recv(), Err(TryRecvError::Empty)) {
            self.worker.given_up.set(Some(done));
        }
    }
}

/// Keeps what others wait for from the calling thread, so that it may hang. It takes no job before.
fn stand_apart(thread: &'static str) {
    let copies = match apart::stand_apart() {
        Ok(copies) => copies,
        Err(error) => {
            let error = &error as &dyn Error;
            return warn!(
                error,
                thread,
                "a thread has our sockets and locks: they last as long as it, should it hang"
            );
        }
    };
    let mut told = false;
    let mut left = copies.leave();
    while let Err((copies, error)) = left {
        if !mem::replace(&mut told, true) {
            let error = &error as &dyn Error;
            warn!(
                error,
                thread, "a thread cannot find out what it has to leave: what it is for waits"
            );
        }
        thread::sleep(RETRY);
        left = copies.leave();
    }
}

/// Gives the CPU to the data path first, where there is none for both: a call that waits for nothing of the
/// calling thread must not wait for the CPU that this has.
fn stand_behind(thread: &'static str) {
    if let Err(error) = process::stand_behind() {
        let error = &error as &dyn Error;
        debug!(error, thread, "a thread has the priority of all others");
    }
}

impl<J> fmt::Debug for Worker<J> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { name, .. } = self;
        f.debug_struct("Worker")
            .field("name", name)
            .finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::mpsc as std_mpsc;
    use tokio::{
        runtime::Builder,
        time::{advance, timeout},
    };

    const STACK: usize = 64 << 10;
    /// More than there are addresses: such a thread cannot be had.
    const TOO_MUCH: usize = 1 << 50;

    /// Answers with the number of the job, and panics over 13.
    fn echo(stack_bytes: usize) -> Worker<(u32, oneshot::Sender<u32>)> {
        Worker::new(
            "echo",
            stack_bytes,
            |(number, done): (_, oneshot::Sender<_>)| {
                assert_ne!(number, 13, "of this test");
                done.send(number).unwrap();
            },
        )
    }

    /// Has every job wait for a word, and says that it has begun with it and that it has answered.
    fn held() -> (
        Worker<oneshot::Sender<()>>,
        std_mpsc::Sender<()>,
        std_mpsc::Receiver<&'static str>,
    ) {
        let (go_on, may_go_on) = std_mpsc::channel();
        let (steps, told) = std_mpsc::channel();
        let work = move |done: oneshot::Sender<()>| {
            steps.send("begun").ok();
            may_go_on.recv().ok();
            done.send(()).ok();
            steps.send("answered").ok();
        };
        (Worker::new("held", STACK, work), go_on, told)
    }

    /// Asks, and waits for what takes no time.
    async fn ask_in_passing(worker: &Worker<oneshot::Sender<()>>) {
        let answer = timeout(Duration::ZERO, worker.ask(|done| done)).await;
        assert!(answer.is_err());
    }

    #[tokio::test(start_paused = true)]
    async fn nothing_is_late_that_was_waited_for_less_than_50_ms_or_is_answered() {
        for (millis, is_answered, is_late) in
            [(40, false, false), (60, true, false), (60, false, true)]
        {
            let (worker, go_on, told) = held();
            let next = || told.recv_timeout(Duration::from_secs(30)).unwrap();
            let mut asked = Box::pin(worker.ask(|done| done));
            assert!(timeout(Duration::ZERO, &mut asked).await.is_err());
            assert_eq!(next(), "begun");
            advance(Duration::from_millis(millis)).await;
            if is_answered {
                go_on.send(()).unwrap();
                assert_eq!(next(), "answered");
            }
            drop(asked);
            assert_eq!(worker.is_late(), is_late, "{millis} ms");
            // Who does not wait finds nothing out.
            ask_in_passing(&worker).await;
            assert_eq!(worker.is_late(), is_late, "{millis} ms");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn who_finds_no_room_in_the_queue_finds_it_late_until_a_job_is_done_for_nobody() {
        let (worker, go_on, told) = held();
        let next = || told.recv_timeout(Duration::from_secs(30)).unwrap();
        ask_in_passing(&worker).await;
        assert_eq!(next(), "begun");
        for _ in 0..QUEUE {
            ask_in_passing(&worker).await;
        }
        assert!(!worker.is_late());
        let waited = timeout(Duration::from_millis(60), worker.ask(|done| done)).await;
        assert!(waited.is_err());
        assert!(worker.is_late());
        go_on.send(()).unwrap();
        assert_eq!(next(), "answered");
        // With the next one it is through with the first.
        assert_eq!(next(), "begun");
        assert!(!worker.is_late());
    }

    #[tokio::test]
    async fn the_cpu_is_the_data_paths_first_but_where_it_waits() {
        let nice = || {
            let stat = std::fs::read_to_string("/proc/thread-self/stat").unwrap();
            // The name may have blanks in it, and the first field after it is the third.
            let fields = stat.rsplit_once(") ").unwrap().1;
            fields.split(' ').nth(16).unwrap().parse::<i32>().unwrap()
        };
        let before = nice();
        let work = move |done: oneshot::Sender<i32>| done.send(nice()).unwrap();
        let worker = Worker::new("nice", STACK, work);
        assert_eq!(worker.ask(|done| done).await, Some((before + 10).min(19)));
        let worker = Worker::awaited("awaited", STACK, work);
        assert_eq!(worker.ask(|done| done).await, Some(before));
        assert_eq!(nice(), before);
    }

    #[tokio::test]
    async fn a_panic_costs_its_job_the_answer_and_the_next_one_nothing() {
        let worker = echo(STACK);
        let ask = |number| worker.ask(move |done| (number, done));
        assert_eq!(
            tokio::join!(ask(1), ask(13), ask(2)),
            (Some(1), None, Some(2))
        );
    }

    #[tokio::test]
    async fn where_no_thread_can_be_had_a_job_has_no_answer_and_the_next_one_tries_again() {
        let mut worker = echo(TOO_MUCH);
        worker.start();
        assert_eq!(worker.ask(|done| (1, done)).await, None);
        assert_eq!(worker.ask(|done| (2, done)).await, None);
        worker.stack_bytes = STACK;
        assert_eq!(worker.ask(|done| (3, done)).await, Some(3));
    }

    #[test]
    fn a_stop_does_not_wait_for_work_that_hangs() {
        let (_never, hangs) = std_mpsc::channel::<()>();
        let (stopped, stop) = std_mpsc::channel();
        // On a thread of its own, so that a stop that waits is a failure of this test and not its end.
        thread::spawn(move || {
            let runtime = Builder::new_current_thread().enable_all().build().unwrap();
            runtime.block_on(async {
                let worker = Worker::new("hangs", STACK, move |done: oneshot::Sender<()>| {
                    hangs.recv().ok();
                    done.send(()).ok();
                });
                let answer = timeout(Duration::from_millis(50), worker.ask(|done| done)).await;
                assert!(answer.is_err());
            });
            drop(runtime);
            stopped.send(()).unwrap();
        });
        stop.recv_timeout(Duration::from_secs(30)).unwrap();
    }
}

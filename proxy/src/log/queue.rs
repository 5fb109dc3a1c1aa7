//! Lines on their way to somebody who may not take them: a journal that hangs, a pipe that nobody
//! reads. Whoever logs never waits for that.
//!
//! A line that is taken at once is written at once. Where it would not be, it waits for a thread that
//! does nothing else, and so do those behind it; what finds no room is left out, and counted.

use rustix::{
    event::{PollFd, PollFlags, Timespec, poll},
    pipe::PIPE_BUF,
};
use std::{
    fs::File,
    io::{self, Write},
    os::fd::AsFd,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU64, AtomicUsize, Ordering},
        mpsc::{Receiver, SyncSender, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};
use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait.
const LINES: usize = 512;

/// Their bytes together.
const BYTES: usize = 1 << 20;

/// How long the end of this process waits until they are written.
const AT_THE_END: Duration = Duration::from_secs(1);

/// How often the end looks whether they are.
const LOOK: Duration = Duration::from_millis(10);

/// Takes lines for a file, a pipe or a socket, and waits for none of these.
#[derive(Clone, Debug)]
pub struct Queue {
    taker: Arc<Taker>,
    /// One line is written or put in the queue at a time. To the thread, once there was need of one.
    turn: Arc<Mutex<Option<Thread>>>,
}

/// To the thread that writes what waits.
type Thread = SyncSender<Box<[u8]>>;

#[derive(Debug)]
struct Taker {
    to: File,
    /// Lines that wait, and the one that is being written.
    waiting: AtomicUsize,
    /// Theirs.
    bytes: AtomicUsize,
    left_out: AtomicU64,
}

/// Writes one line of a [`Queue`].
#[derive(Debug)]
pub struct Line<'a>(&'a Queue);

/// Waits at its end, not for ever, until all that was said is written.
#[derive(Debug)]
pub struct Flush(Arc<Taker>);

// === impl Queue ===

impl Queue {
    /// Lines for whatever `to` is.
    ///
    /// # Errors
    ///
    /// When there is no descriptor for it.
    pub fn new(to: impl AsFd) -> io::Result<(Self, Flush)> {
        let taker = Arc::new(Taker {
            // Of our own: nobody else's lock is held while a line is not taken.
            to: to.as_fd().try_clone_to_owned()?.into(),
            waiting: AtomicUsize::new(0),
            bytes: AtomicUsize::new(0),
            left_out: AtomicU64::new(0),
        });
        let flush = Flush(taker.clone());
        let turn = Arc::default();
        Ok((Self { taker, turn }, flush))
    }

    fn say(&self, line: &[u8]) {
        let mut thread = self.turn.lock().unwrap_or_else(PoisonError::into_inner);
        let taker = &self.taker;
        if taker.waiting.load(Ordering::Acquire) == 0 && taker.takes_at_once(line) {
            return taker.write(line);
        }
        if thread.is_none() {
            *thread = taker.start();
        }
        taker.waiting.fetch_add(1, Ordering::AcqRel);
        let bytes = taker.bytes.fetch_add(line.len(), Ordering::Relaxed) + line.len();
        let thread = thread.as_ref().filter(|_| bytes <= BYTES);
        let sent = thread.map(|it| it.try_send(line.into()));
        if sent.is_none_or(|sent| sent.is_err()) {
            taker.waits_no_more(line);
            taker.left_out.fetch_add(1, Ordering::Relaxed);
        }
    }
}

impl<'a> MakeWriter<'a> for Queue {
    type Writer = Line<'a>;

    fn make_writer(&'a self) -> Line<'a> {
        Line(self)
    }
}

// === impl Line ===

impl Write for Line<'_> {
    /// Takes all of it, one whole line.
    fn write(&mut self, line: &[u8]) -> io::Result<usize> {
        self.0.say(line);
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl Taker ===

impl Taker {
    /// A pipe that is ready has room for this much, a socket for more; a file always is.
    fn takes_at_once(&self, line: &[u8]) -> bool {
        let mut ready = [PollFd::new(&self.to, PollFlags::OUT)];
        let at_once = poll(&mut ready, Some(&Timespec::default()));
        line.len() <= PIPE_BUF && at_once.is_ok_and(|ready| ready > 0)
    }

    /// An error has nobody to be told.
    fn write(&self, line: &[u8]) {
        (&self.to).write_all(line).ok();
    }

    /// A thread that writes lines one after the other; `None` if none can be had.
    fn start(self: &Arc<Self>) -> Option<Thread> {
        let (sender, lines) = sync_channel(LINES);
        let taker = self.clone();
        let thread = thread::Builder::new().name("log".to_owned());
        let started = thread
            .stack_size(128 * 1024)
            .spawn(move || taker.serve(&lines));
        started.is_ok().then_some(sender)
    }

    fn serve(&self, lines: &Receiver<Box<[u8]>>) {
        for line in lines {
            self.write(&line);
            match self.left_out.swap(0, Ordering::Relaxed) {
                0 => {}
                lines => self.write(
                    format!("{lines} log lines were left out: they were not taken in time\n")
                        .as_bytes(),
                ),
            }
            self.waits_no_more(&line);
        }
    }

    fn waits_no_more(&self, line: &[u8]) {
        self.bytes.fetch_sub(line.len(), Ordering::Relaxed);
        self.waiting.fetch_sub(1, Ordering::AcqRel);
    }
}

// === impl Flush ===

impl Drop for Flush {
    fn drop(&mut self) {
        let until = Instant::now() + AT_THE_END;
        while self.0.waiting.load(Ordering::Acquire) > 0 && Instant::now() < until {
            thread::sleep(LOOK);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Read;

    #[test]
    fn who_logs_waits_for_nobody_and_what_was_left_out_is_counted() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (queue, flush) = Queue::new(&writer).unwrap();
        drop(writer);
        // 64 KiB in the pipe, 512 lines that wait, one in hand: there is no room for all.
        let said = 2_000;
        for number in 0..said {
            let line = format!("line {number:0>100}\n");
            queue.make_writer().write_all(line.as_bytes()).unwrap();
        }
        let reading = thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            text
        });
        drop(flush);
        queue.make_writer().write_all(b"the end\n").unwrap();
        drop(queue);
        let text = reading.join().unwrap();
        let numbers = text.lines().filter_map(|line| line.strip_prefix("line "));
        let numbers: Vec<usize> = numbers.map(|it| it.parse().unwrap()).collect();
        assert!(numbers.is_sorted());
        assert!((LINES..said).contains(&numbers.len()), "{}", numbers.len());
        let left_out = text
            .lines()
            .filter_map(|line| line.split_once(" log lines were left out"));
        let left_out: usize = left_out.map(|(it, _)| it.parse::<usize>().unwrap()).sum();
        assert_eq!(numbers.len() + left_out, said);
        assert!(text.ends_with("the end\n"));
    }

    #[test]
    fn lines_that_wait_are_no_more_than_a_mebibyte() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (queue, flush) = Queue::new(&writer).unwrap();
        drop(writer);
        // 64 KiB in the pipe, one of these in hand, and two that wait.
        for length in [100 << 10, 400 << 10, 400 << 10, 400 << 10, 2 << 20] {
            let line = "x".repeat(length) + "\n";
            queue.make_writer().write_all(line.as_bytes()).unwrap();
        }
        let reading = thread::spawn(move || {
            let mut text = String::new();
            reader.read_to_string(&mut text).unwrap();
            text
        });
        drop((queue, flush));
        let text = reading.join().unwrap();
        let lengths: Vec<_> = text.lines().map(str::len).collect();
        // Three lines are taken, the last before the one that says how many were not.
        assert!(lengths.starts_with(&[100 << 10]), "{lengths:?}");
        assert!(!lengths.contains(&(2 << 20)), "{lengths:?}");
        assert_eq!(lengths.iter().filter(|it| **it == 400 << 10).count(), 2);
        assert!(text.contains("2 log lines were left out"), "{lengths:?}");
    }

    #[test]
    fn what_is_taken_at_once_is_written_at_once() {
        let (mut reader, writer) = io::pipe().unwrap();
        let (queue, _flush) = Queue::new(&writer).unwrap();
        queue.make_writer().write_all(b"stopped\n").unwrap();
        let mut line = [0; 8];
        reader.read_exact(&mut line).unwrap();
        assert_eq!(&line, b"stopped\n");
        assert!(queue.turn.lock().unwrap().is_none(), "no thread is needed");
    }
}

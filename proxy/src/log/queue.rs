//! Lines on their way to somebody who may not take them: a journal that hangs, a pipe that nobody
//! reads. Whoever logs never waits for that; what finds no room is left out, and counted.

use std::{
    io::{self, Write},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
        mpsc::{Receiver, SyncSender, TrySendError, sync_channel},
    },
    thread,
    time::{Duration, Instant},
};
use tracing_subscriber::fmt::MakeWriter;

/// Lines that may wait.
const LINES: usize = 512;

/// How long the end of this process waits until they are written.
const AT_THE_END: Duration = Duration::from_secs(1);

/// How often the end looks whether there is room again.
const ROOM: Duration = Duration::from_millis(10);

/// Takes lines, and has a thread of its own write them.
#[derive(Clone, Debug)]
pub struct Queue {
    /// `None` where no thread could be had: then whoever logs writes.
    thread: Option<SyncSender<Piece>>,
    left_out: Arc<AtomicU64>,
}

/// Writes one line of a [`Queue`].
#[derive(Debug)]
pub struct Line<'a>(&'a Queue);

/// Waits at its end, not for ever, until all that was said is written.
#[derive(Debug)]
pub struct Flush(Queue);

#[derive(Debug)]
enum Piece {
    Line(Box<[u8]>),
    /// To be told once all before it is written.
    Told(SyncSender<()>),
}

// === impl Queue ===

impl Queue {
    /// Begins to write to `to`.
    pub fn start(to: impl Write + Send + 'static) -> (Self, Flush) {
        let (sender, pieces) = sync_channel(LINES);
        let left_out = Arc::new(AtomicU64::new(0));
        let lost = left_out.clone();
        let thread = thread::Builder::new()
            .name("log".to_owned())
            .stack_size(128 * 1024)
            .spawn(move || write(&pieces, to, &lost));
        let queue = Self {
            thread: thread.is_ok().then_some(sender),
            left_out,
        };
        (queue.clone(), Flush(queue))
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
        let Some(thread) = &self.0.thread else {
            return io::stderr().write(line);
        };
        match thread.try_send(Piece::Line(line.into())) {
            Ok(()) => {}
            Err(TrySendError::Full(_) | TrySendError::Disconnected(_)) => {
                self.0.left_out.fetch_add(1, Ordering::Relaxed);
            }
        }
        Ok(line.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

// === impl Flush ===

impl Drop for Flush {
    fn drop(&mut self) {
        let Some(thread) = &self.0.thread else {
            return;
        };
        let until = Instant::now() + AT_THE_END;
        let (told, written) = sync_channel(1);
        while let Err(TrySendError::Full(_)) = thread.try_send(Piece::Told(told.clone())) {
            if Instant::now() > until {
                return;
            }
            thread::sleep(ROOM);
        }
        let left = until.saturating_duration_since(Instant::now());
        written.recv_timeout(left).ok();
    }
}

/// An error of the writer has nobody to be told.
fn write(pieces: &Receiver<Piece>, mut to: impl Write, left_out: &AtomicU64) {
    for piece in pieces {
        let told = match piece {
            Piece::Line(line) => {
                to.write_all(&line).and_then(|()| to.flush()).ok();
                None
            }
            Piece::Told(told) => Some(told),
        };
        match left_out.swap(0, Ordering::Relaxed) {
            0 => {}
            lines => {
                _ = writeln!(
                    to,
                    "{lines} log lines were left out: they were not taken in time"
                )
            }
        }
        if let Some(told) = told {
            told.try_send(()).ok();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::{Condvar, Mutex};

    /// Takes nothing until it is let, and then all.
    #[derive(Clone, Default)]
    struct Stuck(Arc<Gate>);

    #[derive(Default)]
    struct Gate {
        open: Mutex<bool>,
        opened: Condvar,
        taken: Mutex<Vec<u8>>,
    }

    impl Stuck {
        fn let_go(&self) {
            *self.0.open.lock().unwrap() = true;
            self.0.opened.notify_all();
        }

        fn text(&self) -> String {
            String::from_utf8(self.0.taken.lock().unwrap().clone()).unwrap()
        }
    }

    impl Write for Stuck {
        fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
            let open = self.0.open.lock().unwrap();
            drop(self.0.opened.wait_while(open, |open| !*open).unwrap());
            self.0.taken.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[test]
    fn who_logs_waits_for_nobody_and_what_was_left_out_is_counted() {
        let stuck = Stuck::default();
        let (queue, flush) = Queue::start(stuck.clone());
        // One more than waits may be in the writer's hand.
        for number in 0..LINES + 100 {
            let line = format!("line {number}\n");
            queue.make_writer().write_all(line.as_bytes()).unwrap();
        }
        stuck.let_go();
        drop(flush);
        let text = stuck.text();
        let lines = text
            .lines()
            .filter(|line| line.starts_with("line "))
            .count();
        assert!((LINES..=LINES + 1).contains(&lines), "{lines} lines");
        let left_out: usize = text
            .lines()
            .filter_map(|line| line.split_once(" log lines were left out"))
            .map(|(count, _)| count.parse::<usize>().unwrap())
            .sum();
        assert_eq!(lines + left_out, LINES + 100);
    }

    #[test]
    fn the_last_lines_are_written_before_the_end() {
        let taker = Stuck::default();
        taker.let_go();
        let (queue, flush) = Queue::start(taker.clone());
        queue.make_writer().write_all(b"stopped\n").unwrap();
        drop(flush);
        assert_eq!(taker.text(), "stopped\n");
    }
}

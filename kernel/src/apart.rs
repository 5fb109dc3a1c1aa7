//! A thread that may stand still for ever, kept from keeping what others wait for.
//!
//! What a process has open is closed when its last thread is gone, and a thread that waits for a
//! disk in the kernel does not go, not even by `SIGKILL`. With one table of descriptors for all its
//! threads, a process that was killed meanwhile would leave its sockets open with nobody behind them,
//! and its locks taken: its clients would wait, and its successor could not start.
//!
//! Nor does such a thread keep watches of files: root has 128 instances of inotify
//! (`fs.inotify.max_user_instances`) for all its services, and a copy would keep one for as long as the
//! thread runs, with events that nobody reads.

use libc::{
    SIG_SETMASK, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP, c_int, c_uint, sigset_t,
};
use rustix::{
    io::Errno,
    thread::{UnshareFlags, unshare_unsafe},
};
use std::{
    fs, io, mem,
    path::{Path, PathBuf},
    ptr,
};

/// What the calling thread has open, by its own table.
const OWN: &str = "/proc/thread-self";

/// The standard streams.
const STANDARD: std::ops::RangeInclusive<i32> = 0..=2;

/// Watches of files, as the kernel names them. `[eventfd]`, `[eventpoll]` and `[timerfd]` are not looked for:
/// they are the runtime's, which a thread that answers wakes by the first, and of which it may be the last
/// to let go. It uses and closes them by their numbers in its own table.
const WATCH: &[u8] = b"anon_inode:inotify";

/// Raised by what the thread itself does, so it is no other thread's.
const OWN_FAULTS: [c_int; 7] = [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP];

/// What a thread has in a table of its own, before it has closed what is for others: what was open shortly
/// before it had one.
#[derive(Debug)]
pub struct Copies(Vec<i32>);

/// Gives the calling thread a table of descriptors of its own, in which it has all that the process has
/// open now; [`leave`](Copies::leave) closes there what is not for it. No signal for the process is
/// handled on it from then on, since a handler may count on any descriptor.
///
/// Descriptors that are opened elsewhere later are not there for it, nor are its own for others, so none
/// may be handed over. A lock that is taken later with a file that is open now is held by it, too.
///
/// # Errors
///
/// When the kernel refuses a second table, or does not say what is in it. The table is the common one
/// then.
pub fn stand_apart() -> io::Result<Copies> {
    block_signals()?;
    let known = descriptors()?;
    own_table()?;
    Ok(Copies(known))
}

/// Container runtimes let a process without privileges close ranges of descriptors, which may be none,
/// and unshare nothing; kernels before 5.9 know but the latter.
fn own_table() -> io::Result<()> {
    let (none, flags) = (c_uint::MAX, libc::CLOSE_RANGE_UNSHARE);
    // SAFETY: no descriptor has this number, so none is closed. The caller is told that no descriptor may
    // cross from here on, and those that were open before lead to the same in both tables.
    let answer = unsafe { libc::syscall(libc::SYS_close_range, none, none, flags) };
    if answer == 0 {
        return Ok(());
    }
    // SAFETY: as above.
    Ok(unsafe { unshare_unsafe(UnshareFlags::FILES) }?)
}

// === impl Copies ===

impl Copies {
    /// Closes the sockets, the pipes and the locks among them, and watches of files; what leads to the
    /// same as a standard stream stays. The thread may use what is left, and what it opens itself.
    ///
    /// # Errors
    ///
    /// When it cannot be found out what there is. The thread then has what others may wait for, and may
    /// try again.
    pub fn leave(self) -> Result<(), (Self, io::Error)> {
        self.close().map_err(|error| (self, error))
    }

    fn close(&self) -> io::Result<()> {
        let standard: Vec<PathBuf> = STANDARD.filter_map(|it| leads_to(it).ok()).collect();
        let is_standard = |to: &PathBuf| standard.contains(to);
        let is_for_others =
            |it: &i32| leads_to(*it).is_ok_and(|to| is_of_others(&to) && !is_standard(&to));
        // These first: to find out the rest takes a descriptor, and there may be none left.
        for descriptor in self.0.iter().copied().filter(is_for_others) {
            close(descriptor);
        }
        for descriptor in descriptors()? {
            // A lock that a standard stream has too is not freed by it, and the log goes there.
            let is_standard = leads_to(descriptor).is_ok_and(|to| is_standard(&to));
            if is_for_others(&descriptor) || (!is_standard && has_lock(descriptor)?) {
                close(descriptor);
            }
        }
        Ok(())
    }
}

/// All but the standard streams that the thread's table has.
fn descriptors() -> io::Result<Vec<i32>> {
    let mut descriptors = Vec::new();
    for entry in fs::read_dir(Path::new(OWN).join("fd"))? {
        let number = entry?.file_name().to_str().and_then(|it| it.parse().ok());
        descriptors.extend(number.filter(|it| !STANDARD.contains(it)));
    }
    Ok(descriptors)
}

/// What a descriptor of this thread leads to, by name: no file system is asked, which may not answer.
fn leads_to(descriptor: i32) -> io::Result<PathBuf> {
    fs::read_link(format!("{OWN}/fd/{descriptor}"))
}

/// Whether what is called so is a socket, a pipe, or a watch of files.
fn is_of_others(name: &Path) -> bool {
    let name = name.as_os_str().as_encoded_bytes();
    let is_connection = name.starts_with(b"socket:[") || name.starts_with(b"pipe:[");
    is_connection || name == WATCH
}

fn has_lock(descriptor: i32) -> io::Result<bool> {
    match fs::read_to_string(format!("{OWN}/fdinfo/{descriptor}")) {
        Ok(text) => Ok(text.lines().any(|line| line.starts_with("lock:"))),
        Err(error) if Errno::from_io_error(&error) == Some(Errno::NOENT) => Ok(false),
        Err(error) => Err(error),
    }
}

/// Closes a descriptor in this thread's own table.
fn close(descriptor: i32) {
    // SAFETY: it is a number of the table that this thread got by itself, and whoever had that made is told
    // that the copy goes. Threads that are started from here have the same table, and no use for it: what
    // the log has is spared.
    unsafe { libc::close(descriptor) };
}

fn block_signals() -> io::Result<()> {
    // SAFETY: a set of signals is plain numbers, of which all zero is a valid one.
    let mut all: sigset_t = unsafe { mem::zeroed() };
    // SAFETY: the set is ours, and is as large as its type says.
    unsafe { libc::sigfillset(&raw mut all) };
    for signal in OWN_FAULTS {
        // SAFETY: as above; a signal that there is not is refused with an error.
        unsafe { libc::sigdelset(&raw mut all, signal) };
    }
    // SAFETY: the set is whole, and no old one is asked for.
    match unsafe { libc::pthread_sigmask(SIG_SETMASK, &raw const all, ptr::null_mut()) } {
        0 => Ok(()),
        errno => Err(io::Error::from_raw_os_error(errno)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::{
        event::{EventfdFlags, epoll, eventfd},
        fs::{FlockOperation, flock, inotify},
        time::{TimerfdClockId, TimerfdFlags, timerfd_create},
    };
    use std::{
        fs::File,
        io::Read,
        os::{
            fd::{AsFd, AsRawFd},
            unix::net::{UnixListener, UnixStream},
        },
        sync::mpsc,
        thread,
        time::{Duration, Instant},
    };

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A thread that stands still until it is let go, and then reads a file that was open before.
    fn standing(file: File) -> (mpsc::Sender<()>, thread::JoinHandle<String>) {
        let (go, wait) = mpsc::channel();
        let (ready, is_ready) = mpsc::channel();
        let thread = thread::spawn(move || {
            stand_apart().unwrap().leave().unwrap();
            ready.send(()).unwrap();
            wait.recv().ok();
            let mut text = String::new();
            (&file).read_to_string(&mut text).unwrap();
            text
        });
        is_ready.recv_timeout(PATIENCE).unwrap();
        (go, thread)
    }

    fn comes_true(what: &str, condition: impl Fn() -> bool) {
        let begun = Instant::now();
        while !condition() {
            assert!(begun.elapsed() < PATIENCE, "{what}");
            thread::sleep(Duration::from_millis(1));
        }
    }

    #[test]
    fn what_others_wait_for_is_closed_while_the_thread_stands_still() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("socket");
        let listener = UnixListener::bind(&path).unwrap();
        let mut client = UnixStream::connect(&path).unwrap();
        let (served, _) = listener.accept().unwrap();
        let locked = File::open(directory.path()).unwrap();
        flock(&locked, FlockOperation::NonBlockingLockExclusive).unwrap();
        let (mut reader, writer) = io::pipe().unwrap();
        let (go, thread) = standing(File::open("/proc/self/comm").unwrap());

        drop((listener, served, locked, writer));
        client.set_read_timeout(Some(PATIENCE)).unwrap();
        assert_eq!(client.read(&mut [0]).unwrap(), 0, "the end of the stream");
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "the end of the pipe");
        // Threads and children of other tests have copies for a moment.
        comes_true("nobody listens", || {
            let refused = UnixStream::connect(&path).map_err(|error| error.kind());
            refused.err() == Some(io::ErrorKind::ConnectionRefused)
        });
        let next = File::open(directory.path()).unwrap();
        comes_true("the lock is free", || {
            flock(&next, FlockOperation::NonBlockingLockExclusive).is_ok()
        });

        go.send(()).unwrap();
        assert!(!thread.join().unwrap().is_empty());
    }

    #[test]
    fn no_watch_of_files_stays_and_what_the_runtime_has_does() {
        let watch = inotify::init(inotify::CreateFlags::CLOEXEC).unwrap();
        let epoll = epoll::create(epoll::CreateFlags::CLOEXEC).unwrap();
        let timer = timerfd_create(TimerfdClockId::Monotonic, TimerfdFlags::CLOEXEC).unwrap();
        let waker = eventfd(0, EventfdFlags::CLOEXEC).unwrap();
        let opened = [&watch, &epoll, &timer, &waker].map(AsRawFd::as_raw_fd);
        let names = || opened.map(|it| leads_to(it).ok());
        let before = names();
        let thread = thread::spawn(move || {
            let copies = stand_apart().unwrap();
            let copied = opened.map(|it| leads_to(it).ok());
            copies.leave().unwrap();
            let left = descriptors().unwrap().into_iter().map(leads_to);
            let is_watch = |to: &PathBuf| to.as_os_str().as_encoded_bytes() == WATCH;
            let watches = left.flatten().filter(is_watch).count();
            (copied, watches, opened.map(|it| leads_to(it).ok()))
        });
        let (copied, watches, left) = thread.join().unwrap();
        assert_eq!(copied, before);
        assert_eq!(copied[0], Some("anon_inode:inotify".into()));
        assert_eq!(watches, 0);
        assert_eq!(left[1..], before[1..]);
        assert_eq!(names(), before, "the common table has all");
    }

    #[test]
    fn nothing_of_it_stays_in_the_common_table() {
        let (go, thread) = standing(File::open("/proc/self/comm").unwrap());
        // Threads of other tests have lists of their own for a moment.
        comes_true("no list is open", || {
            let paths = descriptors().unwrap().into_iter().map(leads_to);
            let lists = paths.flatten().filter(|to| to.ends_with("fd"));
            lists.count() == 0
        });
        go.send(()).unwrap();
        thread.join().unwrap();
    }

    #[test]
    fn what_the_log_goes_to_stays_though_it_is_locked() {
        let log = io::stderr().as_fd().try_clone_to_owned().unwrap();
        flock(&log, FlockOperation::NonBlockingLockShared).unwrap();
        let number = log.as_raw_fd();
        let thread = thread::spawn(move || {
            stand_apart().unwrap().leave().unwrap();
            leads_to(number).is_ok()
        });
        let stays = thread.join().unwrap();
        flock(&log, FlockOperation::Unlock).unwrap();
        assert!(stays);
    }

    #[test]
    fn its_signals_are_its_own_faults() {
        let blocked = thread::spawn(|| {
            stand_apart().unwrap().leave().unwrap();
            let status = fs::read_to_string("/proc/thread-self/status").unwrap();
            let mask = status.lines().find_map(|line| line.strip_prefix("SigBlk:"));
            u64::from_str_radix(mask.unwrap().trim(), 16).unwrap()
        });
        let blocked = blocked.join().unwrap();
        let is_blocked = |signal: c_int| blocked >> (signal - 1) & 1 == 1;
        assert!(is_blocked(libc::SIGTERM) && is_blocked(libc::SIGHUP));
        assert!(!is_blocked(SIGSEGV) && !is_blocked(SIGABRT));
    }
}

//! A thread that may stand still for ever, kept from keeping what others wait for.
//!
//! What a process has open is closed when its last thread is gone, and a thread that waits for a
//! disk in the kernel does not go, not even by `SIGKILL`. With one table of descriptors for all its
//! threads, a process that was killed meanwhile would leave its sockets open with nobody behind them,
//! and its locks taken: its clients would wait, and its successor could not start.

use libc::{
    SIG_SETMASK, SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP, c_int, sigset_t,
};
use rustix::thread::{UnshareFlags, unshare_unsafe};
use std::{
    fs::{self, Metadata},
    io, mem,
    os::unix::fs::{FileTypeExt, MetadataExt},
    path::Path,
    ptr,
};

/// What the calling thread has open, by its own table.
const OWN: &str = "/proc/thread-self";

/// The standard streams.
const STANDARD: std::ops::RangeInclusive<i32> = 0..=2;

/// Raised by what the thread itself does, so it is no other thread's.
const OWN_FAULTS: [c_int; 7] = [SIGABRT, SIGBUS, SIGFPE, SIGILL, SIGSEGV, SIGSYS, SIGTRAP];

/// Gives the calling thread a table of descriptors of its own, without the sockets, the pipes and the
/// locks of the process; what leads to the same as a standard stream stays. No signal for the process
/// is handled on it from then on, since a handler may count on any descriptor.
///
/// The thread may use what else was open, and what it opens itself. Descriptors that are opened
/// elsewhere later are not there for it, nor are its own for others, so none may be handed over.
///
/// # Errors
///
/// When the kernel refuses a second table, or does not say what is in it. The thread is as before then,
/// or holds more than it should.
pub fn stand_apart() -> io::Result<()> {
    block_signals()?;
    // SAFETY: the caller is told that no descriptor may cross from here on. Those that were open before
    // lead to the same in both tables.
    unsafe { unshare_unsafe(UnshareFlags::FILES) }?;
    let standard: Vec<Metadata> = STANDARD.filter_map(|it| opened(it).ok()).collect();
    for descriptor in descriptors()? {
        if !STANDARD.contains(&descriptor) && is_for_others(descriptor, &standard) {
            // SAFETY: it is a number of this thread's own table, whose copy nobody but this thread can
            // use, and the caller is told that it may not.
            unsafe { libc::close(descriptor) };
        }
    }
    Ok(())
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

/// All numbers that are taken in the thread's table.
fn descriptors() -> io::Result<Vec<i32>> {
    let entries = fs::read_dir(Path::new(OWN).join("fd"))?;
    let mut taken = Vec::new();
    for entry in entries {
        taken.extend(
            entry?
                .file_name()
                .to_str()
                .and_then(|it| it.parse::<i32>().ok()),
        );
    }
    Ok(taken)
}

fn opened(descriptor: i32) -> io::Result<Metadata> {
    fs::metadata(format!("{OWN}/fd/{descriptor}"))
}

/// Whether somebody beyond this thread waits for this to be closed.
fn is_for_others(descriptor: i32, standard: &[Metadata]) -> bool {
    // The list of descriptors was one itself, and is closed.
    let Ok(this) = opened(descriptor) else {
        return false;
    };
    let kind = this.file_type();
    if kind.is_socket() || kind.is_fifo() {
        let same = |it: &Metadata| (it.dev(), it.ino()) == (this.dev(), this.ino());
        return !standard.iter().any(same);
    }
    let told = fs::read_to_string(format!("{OWN}/fdinfo/{descriptor}"));
    told.is_ok_and(|text| text.lines().any(|line| line.starts_with("lock:")))
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::fs::{FlockOperation, flock};
    use std::{
        fs::File,
        io::Read,
        os::unix::net::{UnixListener, UnixStream},
        sync::mpsc,
        thread,
        time::Duration,
    };

    const PATIENCE: Duration = Duration::from_secs(30);

    /// A thread that stands still until it is let go, and then reads a file that was open before.
    fn standing(file: File) -> (mpsc::Sender<()>, thread::JoinHandle<String>) {
        let (go, wait) = mpsc::channel();
        let (ready, is_ready) = mpsc::channel();
        let thread = thread::spawn(move || {
            stand_apart().unwrap();
            ready.send(()).unwrap();
            wait.recv().ok();
            let mut text = String::new();
            (&file).read_to_string(&mut text).unwrap();
            text
        });
        is_ready.recv_timeout(PATIENCE).unwrap();
        (go, thread)
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
        let refused = UnixStream::connect(&path).unwrap_err();
        assert_eq!(refused.kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(reader.read(&mut [0]).unwrap(), 0, "the end of the pipe");
        let next = File::open(directory.path()).unwrap();
        flock(&next, FlockOperation::NonBlockingLockExclusive).unwrap();

        go.send(()).unwrap();
        assert!(!thread.join().unwrap().is_empty());
    }

    #[test]
    fn its_signals_are_its_own_faults() {
        let blocked = thread::spawn(|| {
            stand_apart().unwrap();
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

//! The process itself: its limits, its allocator, its user, and what it inherits.

use rustix::{
    fd::{BorrowedFd, OwnedFd},
    io::Errno,
    mm::{Advice, madvise},
    net::{AddressFamily, SocketType, sockopt},
    process::{Resource, Rlimit, nice},
};
use std::{fs, io, ptr};
use thiserror::Error;

/// Why a socket that the environment names cannot be used.
#[derive(Debug, Error)]
pub enum InheritError {
    #[error("LISTEN_FDS says {count}, and one socket is what we serve")]
    Count { count: String },
    #[error("descriptor 3 was promised and is not there")]
    Descriptor(#[source] io::Error),
    #[error("descriptor 3 is no listening stream socket of the unix family")]
    NotAListener,
    #[error("NRI_PLUGIN_SOCKET says {text:?}, and descriptor 3 is what runtimes hand over")]
    Number { text: String },
    #[error("descriptor 3 is no connected stream socket of the unix family")]
    NotAStream,
}

/// The first descriptor that systemd hands over (`SD_LISTEN_FDS_START`), and the one that runtimes
/// hand to the plugins that they start.
const FIRST_INHERITED: i32 = 3;

/// Sizes from which the allocator asks the kernel for memory and gives it back, in bytes.
#[cfg(target_env = "gnu")]
const ALLOCATOR_THRESHOLD: libc::c_int = 128 * 1024;

/// By how much a thread that goes behind others is nicer than they: it has a tenth of their weight.
const BEHIND: i32 = 10;

/// Lets the other threads of the control group that the calling thread is in go first; the others of its
/// process have what they had.
///
/// # Errors
///
/// When a filter of system calls refuses it.
pub fn stand_behind() -> io::Result<()> {
    // What POSIX does to a process, Linux does to a thread.
    nice(BEHIND)?;
    Ok(())
}

/// Fixes two thresholds of the C library's allocator at what they are at start. Left alone, they
/// grow with the largest block that was ever freed, and the memory of one burst of large messages
/// would stay with us for good. All threads share one arena: those beside the data path need little, and
/// each would have one of its own. `false` if the allocator refused, or is not glibc's.
pub fn tune_allocator() -> bool {
    #[cfg(target_env = "gnu")]
    {
        let set = |parameter, value| {
            // SAFETY: `mallopt` takes two numbers, holds the allocator's lock, and may be called at
            // any time.
            let answer = unsafe { libc::mallopt(parameter, value) };
            answer == 1
        };
        set(libc::M_MMAP_THRESHOLD, ALLOCATOR_THRESHOLD)
            && set(libc::M_TRIM_THRESHOLD, ALLOCATOR_THRESHOLD)
            && set(libc::M_ARENA_MAX, 1)
    }
    #[cfg(not(target_env = "gnu"))]
    false
}

/// Gives memory that was freed in the middle of the heap back to the kernel, which the allocator
/// alone does only at its end: after a list of thousands of pods was taken in. Costs about a
/// millisecond. `false` if there was nothing to give, or the allocator is not glibc's.
pub fn trim_allocator() -> bool {
    #[cfg(target_env = "gnu")]
    {
        // SAFETY: `malloc_trim` takes the allocator's locks itself, and may be called at any time.
        let released = unsafe { libc::malloc_trim(0) };
        released == 1
    }
    #[cfg(not(target_env = "gnu"))]
    false
}

/// Unmaps the code of the program and its libraries. What runs again is mapped again, for about a
/// microsecond a page as long as the page cache has it; what ran at the start alone counts as resident
/// no more, and the kernel may drop it first when memory is short. A mapping with pages of its own, such
/// as a breakpoint makes, is left alone. How many bytes of the address space that was about.
///
/// # Errors
///
/// When the process may not read its own mappings, or a filter of system calls refuses it.
pub fn release_code() -> io::Result<usize> {
    let smaps = fs::read_to_string("/proc/self/smaps")?;
    let mut released = 0;
    for (start, end) in unwritten_code(&smaps) {
        let pages = ptr::with_exposed_provenance_mut(start);
        // SAFETY: the kernel has just said that this is a mapping of a file's code which nobody may
        // write to and which has no page of its own, so its pages hold what the file holds, and a
        // thread that needs one finds the same bytes again. Nothing of ours unmaps code or writes it.
        unsafe { madvise(pages, end - start, Advice::LinuxDontNeed) }?;
        released += end - start;
    }
    Ok(released)
}

/// Where mappings of code from files begin and end that hold nothing but what the files hold, by
/// `/proc/PID/smaps`.
fn unwritten_code(smaps: &str) -> impl Iterator<Item = (usize, usize)> {
    let mut code = None;
    smaps.lines().filter_map(move |line| {
        if is_header(line) {
            code = code_of_a_file(line);
        } else if let Some(size) = line.strip_prefix("Anonymous:") {
            code = code.filter(|_| size.trim() == "0 kB");
        } else if let Some(size) = line.strip_prefix("Swap:") {
            // A page of its own that was swapped out is none of those before.
            return code.take().filter(|_| size.trim() == "0 kB");
        }
        None
    })
}

/// A mapping's first line begins with its addresses, each other one with a name and a colon.
fn is_header(line: &str) -> bool {
    line.split(' ')
        .next()
        .is_some_and(|word| !word.ends_with(':'))
}

/// Where a mapping begins and ends, from its line in `/proc/PID/maps`, if it is code from a file.
fn code_of_a_file(line: &str) -> Option<(usize, usize)> {
    let mut words = line.split_ascii_whitespace();
    let (range, access) = (words.next()?, words.next()?);
    let inode = words.nth(2)?;
    let (start, end) = range.split_once('-')?;
    let address = |text| usize::from_str_radix(text, 16).ok();
    let (start, end) = (address(start)?, address(end)?);
    (access == "r-xp" && inode != "0" && start < end).then_some((start, end))
}

/// Takes the listening socket that systemd hands over, if it hands over one to this process.
///
/// `listen_pid` and `listen_fds` are what the environment has for `LISTEN_PID` and `LISTEN_FDS`.
/// The answer is a duplicate that children do not inherit, nor do they inherit the original.
///
/// # Errors
///
/// When `LISTEN_PID` is this process and `LISTEN_FDS` says anything but 0 or 1, or where it says 1, when
/// descriptor 3 is not open, is no listening stream socket of the unix family, or cannot be duplicated.
pub fn inherited_listener(
    listen_pid: Option<&str>,
    listen_fds: Option<&str>,
) -> Result<Option<OwnedFd>, InheritError> {
    let own = rustix::process::getpid().as_raw_nonzero().to_string();
    let (true, Some(count)) = (listen_pid == Some(own.as_str()), listen_fds) else {
        return Ok(None);
    };
    match count {
        "0" => return Ok(None),
        "1" => {}
        _ => {
            return Err(InheritError::Count {
                count: count.to_owned(),
            });
        }
    }
    // SAFETY: the number is not −1, and a descriptor that systemd's protocol gives to this very
    // process is nobody else's, so nobody closes it meanwhile; one that is not open at all is
    // refused by the first call below.
    let inherited = unsafe { BorrowedFd::borrow_raw(FIRST_INHERITED) };
    take_listener(inherited).map(Some)
}

fn take_listener(inherited: BorrowedFd<'_>) -> Result<OwnedFd, InheritError> {
    let failed = |errno: Errno| InheritError::Descriptor(errno.into());
    rustix::io::fcntl_setfd(inherited, rustix::io::FdFlags::CLOEXEC).map_err(failed)?;
    let listens = sockopt::socket_domain(inherited) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(inherited) == Ok(SocketType::STREAM)
        && sockopt::socket_acceptconn(inherited) == Ok(true);
    if !listens {
        return Err(InheritError::NotAListener);
    }
    rustix::io::fcntl_dupfd_cloexec(inherited, FIRST_INHERITED + 1).map_err(failed)
}

/// Takes the connected socket that a runtime hands to a plugin that it starts.
///
/// `text` is what the environment has for `NRI_PLUGIN_SOCKET`. The answer is as for
/// [`inherited_listener`].
///
/// # Errors
///
/// When `text` is anything but 3, or descriptor 3 is not open, is no stream socket of the unix family,
/// listens, or cannot be duplicated.
pub fn inherited_stream(text: &str) -> Result<OwnedFd, InheritError> {
    if text != "3" {
        return Err(InheritError::Number {
            text: text.to_owned(),
        });
    }
    // SAFETY: the number is not −1, and a descriptor that the launch protocol gives to this process
    // is nobody else's, so nobody closes it meanwhile; one that is not open at all is refused by the
    // first call below.
    let inherited = unsafe { BorrowedFd::borrow_raw(FIRST_INHERITED) };
    take_stream(inherited)
}

fn take_stream(inherited: BorrowedFd<'_>) -> Result<OwnedFd, InheritError> {
    let failed = |errno: Errno| InheritError::Descriptor(errno.into());
    rustix::io::fcntl_setfd(inherited, rustix::io::FdFlags::CLOEXEC).map_err(failed)?;
    let is_stream = sockopt::socket_domain(inherited) == Ok(AddressFamily::UNIX)
        && sockopt::socket_type(inherited) == Ok(SocketType::STREAM)
        && sockopt::socket_acceptconn(inherited) == Ok(false);
    if !is_stream {
        return Err(InheritError::NotAStream);
    }
    rustix::io::fcntl_dupfd_cloexec(inherited, FIRST_INHERITED + 1).map_err(failed)
}

/// Raises the limit of open descriptors as far as it goes without privilege, and says how many that
/// are; `None` is unlimited.
///
/// # Errors
///
/// When the kernel refuses it. The limit stays as it was then.
pub fn raise_nofile() -> io::Result<Option<u64>> {
    let limit = rustix::process::getrlimit(Resource::Nofile);
    let raised = Rlimit {
        current: limit.maximum,
        ..limit
    };
    rustix::process::setrlimit(Resource::Nofile, raised)?;
    Ok(limit.maximum)
}

/// The effective user of this process.
pub fn own_uid() -> u32 {
    rustix::process::geteuid().as_raw()
}

#[cfg(test)]
mod tests {
    use super::*;
    use rustix::mm::{MapFlags, MprotectFlags, ProtFlags, mmap, mprotect};
    use std::{
        io::{Read, Write},
        os::{
            fd::AsFd,
            unix::net::{UnixListener, UnixStream},
        },
        process,
    };

    #[test]
    fn the_allocator_takes_both_thresholds_and_one_arena() {
        assert_eq!(tune_allocator(), cfg!(target_env = "gnu"));
    }

    /// What is resident of the mapping that begins there, KiB.
    fn resident(start: usize) -> usize {
        let smaps = fs::read_to_string("/proc/self/smaps").unwrap();
        let begins = |line: &&str| line.starts_with(&format!("{start:x}-"));
        let mut lines = smaps.lines().skip_while(|line| !begins(line));
        let size = lines.find_map(|line| line.strip_prefix("Rss:")).unwrap();
        size.trim().strip_suffix(" kB").unwrap().parse().unwrap()
    }

    /// Code of one page that holds ones, or twos that somebody has written over them. Stays mapped: what
    /// comes there later would be in the way of another test's look.
    fn code(is_written: bool) -> *const u8 {
        let size = rustix::param::page_size();
        let file = rustix::fs::memfd_create("code", rustix::fs::MemfdFlags::CLOEXEC).unwrap();
        rustix::io::write(&file, &vec![1; size]).unwrap();
        let access = ProtFlags::READ | ProtFlags::WRITE;
        let code = MprotectFlags::READ | MprotectFlags::EXEC;
        // SAFETY: a mapping of its own, of a file that nobody changes, which nothing else knows of; it
        // is as long as a page, and may be written to until it is code.
        unsafe {
            let page = mmap(ptr::null_mut(), size, access, MapFlags::PRIVATE, &file, 0).unwrap();
            let byte = page.cast::<u8>();
            match is_written {
                true => byte.write_volatile(2),
                false => assert_eq!(byte.read_volatile(), 1),
            }
            mprotect(page, size, code).unwrap();
            byte
        }
    }

    #[test]
    fn code_is_released_but_where_somebody_has_written_to_it() {
        let (clean, written) = (code(false), code(true));
        let size = rustix::param::page_size();
        let both = || (resident(clean.addr()), resident(written.addr()));
        assert_eq!(both(), (size / 1024, size / 1024));
        assert!(release_code().unwrap() >= size);
        assert_eq!(both(), (0, size / 1024));
        // SAFETY: both pages are mapped and may be read.
        let held = unsafe { (clean.read_volatile(), written.read_volatile()) };
        assert_eq!(held, (1, 2));
    }

    #[test]
    fn a_mapping_is_released_if_it_has_no_page_of_its_own() {
        let smaps = "\
1000-3000 r-xp 00000000 fe:00 12 /a
Rss:                   8 kB
Anonymous:             0 kB
Swap:                  0 kB
3000-5000 r-xp 00000000 fe:00 12 /b
Anonymous:             4 kB
Swap:                  0 kB
5000-6000 rw-p 00000000 fe:00 12 /b
Anonymous:             0 kB
Swap:                  0 kB
6000-7000 r-xp 00000000 fe:00 12 /without
7000-8000 rw-p 00000000 00:00 0
Anonymous:             0 kB
Swap:                  0 kB
8000-9000 r-xp 00000000 fe:00 12 /c
Anonymous:             0 kB
Swap:                  4 kB
9000-a000 r-xp 00000000 fe:00 12 /d
Anonymous:             0 kB
Swap:                  0 kB
";
        let released: Vec<_> = unwritten_code(smaps).collect();
        assert_eq!(released, [(0x1000, 0x3000), (0x9000, 0xa000)]);
    }

    #[test]
    fn only_code_of_files_is_released() {
        let line = "7f0000001000-7f0000003000 r-xp 00002000 fe:00 1234   /usr/bin/a b (deleted)";
        assert_eq!(
            code_of_a_file(line),
            Some((0x7f00_0000_1000, 0x7f00_0000_3000))
        );
        for other in [
            "",
            "7f0000001000-7f0000003000",
            "7f0000001000-7f0000003000 rwxp 00002000 fe:00 1234 /usr/bin/a",
            "7f0000001000-7f0000003000 r--p 00002000 fe:00 1234 /usr/bin/a",
            "7f0000001000-7f0000003000 r-xs 00002000 fe:00 1234 /usr/bin/a",
            "7ffc00000000-7ffc00002000 r-xp 00000000 00:00 0    [vdso]",
            "7f0000003000-7f0000001000 r-xp 00002000 fe:00 1234 /usr/bin/a",
            "7f00000x1000-7f0000003000 r-xp 00002000 fe:00 1234 /usr/bin/a",
        ] {
            assert_eq!(code_of_a_file(other), None, "{other}");
        }
    }

    #[test]
    fn nothing_is_inherited_when_the_environment_speaks_of_another_process() {
        let own = process::id().to_string();
        assert!(matches!(inherited_listener(None, None), Ok(None)));
        assert!(matches!(inherited_listener(Some("1"), Some("1")), Ok(None)));
        assert!(matches!(
            inherited_listener(Some(&own), Some("0")),
            Ok(None)
        ));
        let error = inherited_listener(Some(&own), Some("2")).unwrap_err();
        assert!(matches!(error, InheritError::Count { count } if count == "2"));
    }

    #[test]
    fn only_a_listening_unix_socket_is_taken() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("s");
        let listener = UnixListener::bind(&path).unwrap();
        let taken = take_listener(listener.as_fd()).unwrap();
        let flags = rustix::io::fcntl_getfd(&taken).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        drop(listener);
        UnixStream::connect(&path).expect("the duplicate still listens");

        let (stream, _other) = UnixStream::pair().unwrap();
        let refused = take_listener(stream.as_fd()).unwrap_err();
        assert!(matches!(refused, InheritError::NotAListener));
        let file = std::fs::File::open("/proc/self/status").unwrap();
        let refused = take_listener(file.as_fd()).unwrap_err();
        assert!(matches!(refused, InheritError::NotAListener));
    }

    #[test]
    fn only_a_connected_unix_stream_is_taken_from_a_runtime() {
        let (stream, mut other) = UnixStream::pair().unwrap();
        let taken = take_stream(stream.as_fd()).unwrap();
        let flags = rustix::io::fcntl_getfd(&taken).unwrap();
        assert!(flags.contains(rustix::io::FdFlags::CLOEXEC));
        drop(stream);
        let mut taken = UnixStream::from(taken);
        taken.write_all(b"x").unwrap();
        other
            .read_exact(&mut [0])
            .expect("the duplicate is still connected");

        let directory = tempfile::tempdir().unwrap();
        let listener = UnixListener::bind(directory.path().join("s")).unwrap();
        let refused = take_stream(listener.as_fd()).unwrap_err();
        assert!(matches!(refused, InheritError::NotAStream));
        for text in ["", "4", "03", "-1"] {
            let refused = inherited_stream(text).unwrap_err();
            assert!(matches!(refused, InheritError::Number { text: told } if told == text));
        }
    }

    #[test]
    fn the_limit_of_descriptors_ends_at_its_maximum() {
        let raised = raise_nofile().unwrap();
        assert_eq!(rustix::process::getrlimit(Resource::Nofile).current, raised);
    }
}

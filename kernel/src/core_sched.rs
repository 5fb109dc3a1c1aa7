//! Core scheduling: which threads may run on the hardware threads of one core at the same time.
//!
//! Threads with the same cookie may, and so may threads without one among themselves; whoever has
//! another cookie waits, or the rest of the core does
//! (`Documentation/admin-guide/hw-vuln/core-scheduling.rst`, Linux 5.14). A cookie cannot be named:
//! the kernel makes one, children inherit it, and it passes from thread to thread only by way of the
//! thread that asks. So every passing on is done by a thread of its own that ends with it, and the
//! process that asks never has a cookie itself.
//!
//! What is read is not the cookie but a hash of 32 bits of it, and the kernel may use a cookie again
//! that nobody has any more.

use rustix::io::Errno;
use std::{fmt, io, num::NonZeroU64, thread};

/// The id of a thread, as `/proc` and control groups name it.
pub type Tid = i32;

/// What the kernel shows of a cookie.
#[derive(Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Cookie(NonZeroU64);

/// What the kernel can do with cookies: the kernel itself, or a fake that keeps its rules.
pub trait CoreSched: fmt::Debug + Send + Sync {
    /// The cookie of a thread; `None` if it has none.
    ///
    /// # Errors
    ///
    /// When the thread has ended (`ESRCH`, never [`io::ErrorKind::NotFound`]), or the kernel does not tell.
    fn cookie(&self, thread: Tid) -> io::Result<Option<Cookie>>;

    /// Gives all threads of a process a cookie that nobody else has. Any of its threads names it.
    ///
    /// # Errors
    ///
    /// When that thread has ended (`ESRCH`), or the kernel refuses it.
    fn create(&self, process: Tid) -> io::Result<()>;

    /// Gives all threads of the process of `to` the cookie that `from` has, if that still is `cookie`.
    ///
    /// # Errors
    ///
    /// When it is not, or one of the two has ended (`ESRCH`), or the kernel refuses it.
    fn share(&self, from: Tid, cookie: Cookie, to: Tid) -> io::Result<()>;

    /// Takes the cookie from all threads of a process.
    ///
    /// # Errors
    ///
    /// When it has ended (`ESRCH`), or the kernel refuses it, or we have a cookie ourselves that we cannot be
    /// without (`EPERM`).
    fn clear(&self, process: Tid) -> io::Result<()>;
}

/// The kernel that we run on.
#[derive(Clone, Copy, Debug)]
pub struct Kernel(());

/// The operations of `PR_SCHED_CORE`, from `linux/prctl.h`.
#[derive(Clone, Copy)]
#[repr(u64)]
enum Op {
    Get = 0,
    Create = 1,
    ShareTo = 2,
    ShareFrom = 3,
}

/// Whom an operation is about.
#[derive(Clone, Copy)]
#[repr(u64)]
enum Scope {
    Thread = 0,
    Process = 1,
}

const PR_SCHED_CORE: libc::c_int = 62;

/// The thread that asks.
const SELF: Tid = 0;
/// The first process, which has no cookie unless somebody gave it one.
const INIT: Tid = 1;

// === impl Cookie ===

impl Cookie {
    /// `None` for 0, by which the kernel says that there is none.
    pub fn new(shown: u64) -> Option<Self> {
        NonZeroU64::new(shown).map(Self)
    }
}

impl fmt::Display for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:08x}", self.0)
    }
}

impl fmt::Debug for Cookie {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

// === impl Kernel ===

impl Kernel {
    /// This kernel, if it has core scheduling, a core here has more than one hardware thread, and we
    /// may ask about processes that are not ours.
    ///
    /// # Errors
    ///
    /// `EINVAL` for the first, `ENODEV` for the second, and `EPERM` without `CAP_SYS_PTRACE`, which
    /// the kernel wants for each process that may do something that we may not.
    ///
    /// A kernel with a switch of core scheduling that `is_switched_off` refuses what it takes once that is
    /// on, so that a refusal says nothing of what it has: only `EPERM` is an error then, and that only where
    /// it answers all the same.
    pub fn open(is_switched_off: bool) -> io::Result<Self> {
        answering(Self(()), is_switched_off)
    }
}

impl CoreSched for Kernel {
    fn cookie(&self, thread: Tid) -> io::Result<Option<Cookie>> {
        let mut shown = 0_u64;
        // SAFETY: the kernel writes eight bytes to an address that is aligned for them and lives
        // longer than the call; it does so only for this operation.
        let answer = unsafe {
            libc::prctl(
                PR_SCHED_CORE,
                Op::Get as libc::c_ulong,
                thread_argument(thread)?,
                Scope::Thread as libc::c_ulong,
                &raw mut shown,
            )
        };
        answered(answer)?;
        Ok(Cookie::new(shown))
    }

    fn create(&self, process: Tid) -> io::Result<()> {
        prctl(Op::Create, process, Scope::Process)
    }

    fn share(&self, from: Tid, cookie: Cookie, to: Tid) -> io::Result<()> {
        on_own_thread(|| {
            prctl(Op::ShareFrom, from, Scope::Thread)?;
            // The number may be another thread's by now.
            if self.cookie(SELF)? != Some(cookie) {
                return Err(Errno::SRCH.into());
            }
            prctl(Op::ShareTo, to, Scope::Process)
        })
    }

    fn clear(&self, process: Tid) -> io::Result<()> {
        on_own_thread(|| {
            // Somebody may have started us with a cookie.
            if self.cookie(SELF)?.is_some() {
                prctl(Op::ShareFrom, INIT, Scope::Thread)?;
            }
            match self.cookie(SELF)? {
                None => prctl(Op::ShareTo, process, Scope::Process),
                Some(_) => Err(Errno::PERM.into()),
            }
        })
    }
}

/// A kernel that answers, or will once core scheduling, which `is_off`, is switched on.
fn answering<K: CoreSched>(kernel: K, is_off: bool) -> io::Result<K> {
    let own = kernel.cookie(SELF);
    if is_off && own.is_err() {
        return Ok(kernel);
    }
    own?;
    kernel.cookie(INIT)?;
    Ok(kernel)
}

/// Runs what changes the cookie of the thread that it runs on.
fn on_own_thread(work: impl FnOnce() -> io::Result<()> + Send) -> io::Result<()> {
    thread::scope(|scope| {
        let worker = thread::Builder::new()
            .name("core-sched".to_owned())
            .stack_size(64 * 1024)
            .spawn_scoped(scope, work)?;
        let panicked = |_| io::Error::other("the thread that passes cookies on panicked");
        worker.join().map_err(panicked)?
    })
}

/// An operation that the kernel answers with nothing but success.
fn prctl(op: Op, thread: Tid, scope: Scope) -> io::Result<()> {
    let nowhere: libc::c_ulong = 0;
    // SAFETY: these operations take numbers only; the kernel checks them all.
    let answer = unsafe {
        libc::prctl(
            PR_SCHED_CORE,
            op as libc::c_ulong,
            thread_argument(thread)?,
            scope as libc::c_ulong,
            nowhere,
        )
    };
    answered(answer)
}

fn thread_argument(thread: Tid) -> io::Result<libc::c_ulong> {
    libc::c_ulong::try_from(thread).map_err(|_| Errno::SRCH.into())
}

fn answered(answer: libc::c_int) -> io::Result<()> {
    match answer {
        0 => Ok(()),
        _ => Err(io::Error::last_os_error()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fake::FakeCores;

    #[test]
    fn a_refusal_counts_unless_core_scheduling_is_switched_off() {
        let refusing = FakeCores::default();
        assert!(answering(refusing.clone(), false).is_err());
        assert!(answering(refusing, true).is_ok());
        // One that answers for us alone does not refuse for its switch.
        let ours_alone = FakeCores::default();
        ours_alone.fork(None, SELF);
        for is_off in [false, true] {
            assert!(answering(ours_alone.clone(), is_off).is_err());
        }
        ours_alone.fork(None, INIT);
        for is_off in [false, true] {
            assert!(answering(ours_alone.clone(), is_off).is_ok());
        }
    }

    #[test]
    fn a_cookie_of_zero_is_none() {
        assert_eq!(Cookie::new(0), None);
        let cookie = Cookie::new(0x00ab_cdef).unwrap();
        assert_eq!(cookie.to_string(), "00abcdef");
    }

    #[test]
    fn a_thread_that_no_kernel_would_name_has_ended() {
        let error = thread_argument(-1).unwrap_err();
        assert_eq!(error.raw_os_error(), Some(Errno::SRCH.raw_os_error()));
    }
}

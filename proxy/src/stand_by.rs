//! Two of us on one node: one acts, the other stands by.
//!
//! Both fronts of one node may be served, each by a process of its own, and with two policies each
//! value would be written over in turn. So who has the lock of the directory of the runtime's socket
//! acts. Both have to reach that directory, from within a container too, and a lock goes with its
//! process: the other is there for when the first goes. Where others than root can open the
//! directory, as that of CRI-O, its lock may be anybody's, and nothing follows from it.

use crate::hub::{Hub, NodeLock};
use koord_kernel::process::own_uid;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use std::{
    fs::{File, Metadata},
    mem,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};
use tokio::time::sleep;
use tracing::{info, warn};

/// How often the lock is looked at.
const PERIOD: Duration = Duration::from_secs(1);
/// Reading by group or others.
const OPEN_TO_OTHERS: u32 = 0o044;

/// Our share in the node that a runtime's socket stands for.
#[derive(Debug)]
pub struct Claim {
    socket: PathBuf,
    /// Where the socket was when last seen.
    directory: PathBuf,
    lock: Lock,
}

#[derive(Debug)]
enum Lock {
    /// Held as long as it is open.
    Ours(File),
    Anothers,
    /// There is no lock that says anything.
    None,
}

// === impl Claim ===

impl Claim {
    /// Claims the node whose runtime is behind `socket`, and tells the hub what came of it.
    pub fn lay(socket: &Path, hub: &Hub) -> Self {
        let named = socket.parent().unwrap_or(Path::new("/"));
        let directory = directory_of(socket).unwrap_or_else(|| named.to_owned());
        let lock = Lock::of(&directory).unwrap_or(Lock::None);
        let claim = Self {
            socket: socket.to_owned(),
            directory,
            lock,
        };
        if claim.lock.owner() == NodeLock::Anothers {
            claim.tell_of_another();
        }
        hub.set_lock(claim.lock.owner());
        claim
    }

    /// Whether we have a lock, so that no other of us acts.
    pub(crate) fn is_ours(&self) -> bool {
        matches!(self.lock, Lock::Ours(_))
    }

    /// Keeps what is ours, and takes over what becomes free; never ends.
    pub async fn keep(mut self, hub: Rc<Hub>) {
        loop {
            sleep(PERIOD).await;
            self.look(&hub);
            hub.end_spell();
        }
    }

    fn look(&mut self, hub: &Hub) {
        if let Some(found) = directory_of(&self.socket) {
            self.directory = found;
        }
        if self.lock.is_ours_of(&self.directory) {
            return;
        }
        let Some(found) = Lock::of(&self.directory) else {
            // Whoever has the lock of what was there keeps it, and who stands by goes on to.
            return;
        };
        let before = mem::replace(&mut self.lock, found).owner();
        let now = self.lock.owner();
        match (before, now) {
            (NodeLock::Anothers, NodeLock::Ours | NodeLock::None) => {
                info!("the other koord-runtime-proxy is gone: acting");
            }
            (NodeLock::Ours | NodeLock::None, NodeLock::Anothers) => self.tell_of_another(),
            _ => {}
        }
        hub.set_lock(now);
    }

    fn tell_of_another(&self) {
        warn!(
            path = %self.directory.display(),
            "another koord-runtime-proxy acts on this node, it has the lock: standing by"
        );
    }
}

/// Where a socket is, whatever leads to it; `None` while it is not there.
fn directory_of(socket: &Path) -> Option<PathBuf> {
    let socket = socket.canonicalize().ok()?;
    socket.parent().map(Path::to_owned)
}

/// Whether the lock of a directory says something: not where anybody could have it.
fn says_something(directory: &Metadata) -> bool {
    let owner = directory.uid();
    (owner == 0 || owner == own_uid()) && directory.mode() & OPEN_TO_OTHERS == 0
}

// === impl Lock ===

impl Lock {
    /// That of a directory, taken if it is free. `None` if nothing can be found out about it: it is
    /// not there, or there are no descriptors left to open it with.
    fn of(directory: &Path) -> Option<Self> {
        let file = File::open(directory).ok()?;
        if !says_something(&file.metadata().ok()?) {
            return Some(Self::None);
        }
        Some(
            match flock(&file, FlockOperation::NonBlockingLockExclusive) {
                Ok(()) => Self::Ours(file),
                Err(Errno::WOULDBLOCK) => Self::Anothers,
                Err(_) => Self::None,
            },
        )
    }

    fn owner(&self) -> NodeLock {
        match self {
            Self::Ours(_) => NodeLock::Ours,
            Self::Anothers => NodeLock::Anothers,
            Self::None => NodeLock::None,
        }
    }

    /// Whether we have the lock of what is at this path now. A directory may be removed and made
    /// anew, and the lock of one that is gone keeps nobody from acting, nor does that of one which
    /// was opened to all; while there is none it stays ours.
    fn is_ours_of(&self, directory: &Path) -> bool {
        let Self::Ours(file) = self else {
            return false;
        };
        match (file.metadata(), directory.metadata()) {
            (Ok(ours), Ok(there)) => {
                (ours.dev(), ours.ino()) == (there.dev(), there.ino()) && says_something(&there)
            }
            _ => true,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::testing::Bench;
    use koord_kernel::{cgroup::Generation, fake::FakeTree};
    use koord_testkit::poll::wait_until;
    use std::{
        fs::{self, DirBuilder},
        os::unix::fs::{DirBuilderExt, PermissionsExt},
        pin::Pin,
    };
    use tokio::time::timeout;

    fn directory(mode: u32) -> tempfile::TempDir {
        let made = tempfile::tempdir().unwrap();
        fs::set_permissions(made.path(), fs::Permissions::from_mode(mode)).unwrap();
        made
    }

    #[test]
    fn the_lock_has_one_owner_and_goes_with_it() {
        let directory = directory(0o711);
        let first = Lock::of(directory.path());
        assert!(matches!(first, Some(Lock::Ours(_))));
        let second = Lock::of(directory.path());
        assert!(matches!(second, Some(Lock::Anothers)));
        drop(first);
        // Threads and children of other tests have copies for a moment.
        wait_until("the lock is free", || {
            matches!(Lock::of(directory.path()), Some(Lock::Ours(_)))
        });
    }

    #[test]
    fn a_lock_that_anybody_could_have_says_nothing() {
        for mode in [0o755, 0o751, 0o715] {
            let directory = directory(mode);
            let lock = Lock::of(directory.path());
            assert!(matches!(lock, Some(Lock::None)), "{mode:o}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn a_directory_that_is_made_anew_has_its_lock_taken_anew() {
        let above = directory(0o711);
        let runtime = above.path().join("runtime");
        let make = || DirBuilder::new().mode(0o711).create(&runtime).unwrap();
        make();
        let bench = Bench::new(FakeTree::new(Generation::V1, 2));
        let claim = Claim::lay(&runtime.join("runtime.sock"), &bench.hub);
        let keep = claim.keep(bench.hub.clone());
        let mut keep = Box::pin(keep);
        let lock = async |keep: &mut Pin<Box<_>>| {
            timeout(PERIOD * 3, keep).await.unwrap_err();
            Lock::of(&runtime).map(|lock| lock.owner())
        };
        assert_eq!(lock(&mut keep).await, Some(NodeLock::Anothers));
        fs::remove_dir(&runtime).unwrap();
        assert_eq!(lock(&mut keep).await, None);
        make();
        assert_eq!(lock(&mut keep).await, Some(NodeLock::Anothers));
        assert_eq!(bench.hub.standing_by(), None);
        // One that is opened to all is let go.
        fs::set_permissions(&runtime, fs::Permissions::from_mode(0o755)).unwrap();
        assert_eq!(lock(&mut keep).await, Some(NodeLock::None));
        let file = File::open(&runtime).unwrap();
        // Threads and children of other tests have copies for a moment.
        wait_until("the lock is free", || {
            flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok()
        });
    }

    #[test]
    fn who_stands_by_does_so_while_the_directory_is_away_and_until_the_lock_is_free() {
        let above = directory(0o711);
        let runtime = above.path().join("runtime");
        let make = || DirBuilder::new().mode(0o711).create(&runtime).unwrap();
        make();
        let [one, other] = [(), ()].map(|()| Bench::new(FakeTree::new(Generation::V1, 2)));
        let socket = runtime.join("runtime.sock");
        let mut first = Claim::lay(&socket, &one.hub);
        let mut second = Claim::lay(&socket, &other.hub);
        let mut look = |first: Option<&mut Claim>| {
            if let Some(first) = first {
                first.look(&one.hub);
            }
            second.look(&other.hub);
            (one.hub.enforces(), other.hub.enforces())
        };
        assert_eq!(look(Some(&mut first)), (true, false));
        fs::remove_dir(&runtime).unwrap();
        assert_eq!(look(Some(&mut first)), (true, false), "it is away");
        make();
        assert_eq!(look(Some(&mut first)), (true, false), "it is back");
        drop(first);
        // Threads and children of other tests have copies for a moment.
        wait_until("the first is gone", || look(None) == (true, true));
    }
}

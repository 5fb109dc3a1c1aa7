//! Two of us on one node: one acts, the other stands by.
//!
//! Both fronts of one node may be served, each by a process of its own, and with two policies each
//! value would be written over in turn. So who has the lock of the directory of the runtime's socket
//! acts. Both have to reach that directory, from within a container too, and a lock goes with its
//! process: the other is there for when the first goes. Where others than root can open the
//! directory, as that of CRI-O, its lock may be anybody's, and nothing follows from it.

use crate::hub::Hub;
use koord_kernel::process::own_uid;
use rustix::{
    fs::{FlockOperation, flock},
    io::Errno,
};
use std::{
    convert::Infallible,
    fs::File,
    future::pending,
    os::unix::fs::MetadataExt,
    path::{Path, PathBuf},
    rc::Rc,
    time::Duration,
};
use tokio::time::sleep;
use tracing::{info, warn};

/// How often who has not got the lock tries to.
const PERIOD: Duration = Duration::from_secs(1);
/// Reading by group or others.
const OPEN_TO_OTHERS: u32 = 0o044;

/// Our share in the node that a runtime's socket stands for.
#[derive(Debug)]
pub struct Claim {
    directory: PathBuf,
    lock: Lock,
}

#[derive(Debug)]
enum Lock {
    /// Held as long as it is open.
    Ours {
        _open: File,
    },
    Anothers,
    /// There is no lock that says anything.
    None,
}

// === impl Claim ===

impl Claim {
    /// Claims the node whose runtime is behind `socket`, and tells the hub what came of it.
    pub fn lay(socket: &Path, hub: &Hub) -> Self {
        // Where the socket is, whatever leads to it.
        let socket = socket.canonicalize().unwrap_or_else(|_| socket.to_owned());
        let directory = socket.parent().unwrap_or(Path::new("/")).to_owned();
        let lock = Lock::of(&directory);
        let claim = Self { directory, lock };
        if claim.is_anothers() {
            warn!(
                path = %claim.directory.display(),
                "another koord-runtime-proxy acts on this node, it has the lock: standing by"
            );
            hub.set_another_acts(true);
        }
        claim
    }

    /// Keeps what is ours, and takes over what becomes free; never ends.
    pub async fn keep(mut self, hub: Rc<Hub>) {
        match self.hold(&hub).await {}
    }

    async fn hold(&mut self, hub: &Hub) -> Infallible {
        loop {
            if let Lock::Ours { .. } = self.lock {
                return pending().await;
            }
            sleep(PERIOD).await;
            let was_anothers = self.is_anothers();
            self.lock = Lock::of(&self.directory);
            match (was_anothers, self.is_anothers()) {
                (true, false) => info!("the other koord-runtime-proxy is gone: acting"),
                (false, true) => warn!(
                    path = %self.directory.display(),
                    "another koord-runtime-proxy acts on this node, it has the lock: standing by"
                ),
                (true, true) | (false, false) => continue,
            }
            hub.set_another_acts(self.is_anothers());
        }
    }

    fn is_anothers(&self) -> bool {
        matches!(self.lock, Lock::Anothers)
    }
}

// === impl Lock ===

impl Lock {
    fn of(directory: &Path) -> Self {
        let Ok(file) = File::open(directory) else {
            return Self::None;
        };
        let says_something = file.metadata().is_ok_and(|it| {
            let owner = it.uid();
            (owner == 0 || owner == own_uid()) && it.mode() & OPEN_TO_OTHERS == 0
        });
        if !says_something {
            return Self::None;
        }
        match flock(&file, FlockOperation::NonBlockingLockExclusive) {
            Ok(()) => Self::Ours { _open: file },
            Err(Errno::WOULDBLOCK) => Self::Anothers,
            Err(_) => Self::None,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::{fs, os::unix::fs::PermissionsExt};

    fn directory(mode: u32) -> tempfile::TempDir {
        let made = tempfile::tempdir().unwrap();
        fs::set_permissions(made.path(), fs::Permissions::from_mode(mode)).unwrap();
        made
    }

    #[test]
    fn the_lock_has_one_owner_and_goes_with_it() {
        let directory = directory(0o711);
        let first = Lock::of(directory.path());
        assert!(matches!(first, Lock::Ours { .. }));
        assert!(matches!(Lock::of(directory.path()), Lock::Anothers));
        drop(first);
        assert!(matches!(Lock::of(directory.path()), Lock::Ours { .. }));
    }

    #[test]
    fn a_lock_that_anybody_could_have_says_nothing() {
        for mode in [0o755, 0o751, 0o715] {
            let directory = directory(mode);
            assert!(matches!(Lock::of(directory.path()), Lock::None), "{mode:o}");
        }
        assert!(matches!(Lock::of(Path::new("/not/there")), Lock::None));
    }
}

//! What has to be fetched or built before a test can run, kept in one cache outside of the tree.
//!
//! Every `ensure_*` function returns at once when the cache has what it names, and otherwise says in
//! one line on standard error what it is doing. Entries are addressed by the recipe that makes them,
//! so a changed recipe is a new entry and an old one never lies.

mod cache;
mod go;
mod image;
mod machine;
mod network;
mod runtime;
mod system;

use std::io;
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::command::{CommandError, run};
use go::GoTools;

pub use cache::Cache;
pub use image::{BUSYBOX_IMAGE, PAUSE_IMAGE, ensure_busybox, ensure_image_archive};
pub use machine::{Qemu, ensure_kernel, ensure_own_kernel, ensure_qemu};
pub use network::ensure_pod_network;
pub use runtime::{
    ContainerdVersion, Programs, RuntimeKind, UnknownRuntime, ensure_conmon, ensure_containerd,
    ensure_crio, ensure_kubelet, ensure_runtime,
};
pub use system::{System, ensure_system};

/// Why a part could not be made ready.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// None of `KOORD_TEST_CACHE`, `XDG_CACHE_HOME` and `HOME` says where the cache is.
    #[error("no place for the cache: neither KOORD_TEST_CACHE nor XDG_CACHE_HOME nor HOME is set")]
    NoCache,
    /// A file or directory of the cache could not be worked with.
    #[error("cannot {action} {}", path.display())]
    File {
        action: &'static str,
        path: PathBuf,
        source: io::Error,
    },
    /// A step of a recipe failed.
    #[error("cannot set up {what}")]
    Recipe { what: String, source: CommandError },
}

impl SetupError {
    fn file(action: &'static str, path: &Path) -> impl FnOnce(io::Error) -> Self + use<> {
        let path = path.to_owned();
        move |source| Self::File {
            action,
            path,
            source,
        }
    }

    fn recipe(what: &str) -> impl FnOnce(CommandError) -> Self + use<> {
        let what = what.to_owned();
        move |source| Self::Recipe { what, source }
    }
}

const UNPACK_DEBIAN: &str = include_str!("../../../setup/unpack-debian.sh");

/// Packages of one Debian suite.
#[derive(Debug, Clone, Copy)]
struct Debian {
    suite: &'static str,
    packages: &'static [&'static str],
    selection: Selection,
}

/// What of Debian's is meant by a package's name.
#[derive(Debug, Clone, Copy)]
enum Selection {
    /// That package alone.
    Exactly,
    /// It, and whatever this machine lacks to run it.
    WithDependencies,
    /// The package that the named metapackage stands for at present.
    Behind,
}

impl Selection {
    fn mode(self) -> &'static str {
        match self {
            Self::Exactly => "exactly",
            Self::WithDependencies => "with-dependencies",
            Self::Behind => "behind",
        }
    }
}

impl Debian {
    /// The cache entry with the packages unpacked, as they would lie below `/`.
    fn ensure(self, cache: &Cache) -> Result<PathBuf, SetupError> {
        let inputs = [UNPACK_DEBIAN, self.selection.mode()];
        cache.entry(&self.name(), &inputs, |out| self.unpack(cache, out))
    }

    fn unpack(self, cache: &Cache, out: &Path) -> Result<(), SetupError> {
        let name = self.name();
        eprintln!("setup: downloading {name} from Debian");
        run(shell(UNPACK_DEBIAN)
            .arg(self.selection.mode())
            .arg(cache.directory(&format!("apt-{}", self.suite))?)
            .arg(self.suite)
            .arg(out)
            .args(self.packages))
        .map(drop)
        .map_err(SetupError::recipe(&name))
    }

    fn name(self) -> String {
        format!("{}-{}", self.suite, self.packages.join("-"))
    }
}

/// A command that runs `script` itself, so that no file of the tree is needed at run time.
fn shell(script: &str) -> Command {
    let mut command = Command::new("sh");
    command.args(["-c", script, "setup"]);
    command
}

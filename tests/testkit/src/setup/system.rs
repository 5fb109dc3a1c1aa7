//! The user space of a machine whose first program is systemd.

use std::path::{Path, PathBuf};

use super::{Cache, Debian, Selection, SetupError};

/// systemd, a shell and the commands that people type, with what they load but the C library; where they
/// lie below `/`.
#[derive(Debug, Clone)]
pub struct System {
    root: PathBuf,
}

impl System {
    /// What lies below `/`.
    pub fn root(&self) -> &Path {
        &self.root
    }

    /// The first program.
    pub fn init(&self) -> PathBuf {
        self.root.join("lib/systemd/systemd")
    }

    /// The directories of the libraries.
    pub fn libraries(&self) -> Vec<PathBuf> {
        let own = "lib/x86_64-linux-gnu";
        let usr = format!("usr/{own}");
        let of_systemd = format!("{own}/systemd");
        [own, &usr, &of_systemd].map(|it| self.root.join(it)).into()
    }
}

/// The systemd of Debian bookworm and what belongs to it. None of it depends on what is installed here.
///
/// # Errors
///
/// When a package cannot be fetched.
pub fn ensure_system(cache: &Cache) -> Result<System, SetupError> {
    let packages = Debian {
        suite: "bookworm",
        packages: &[
            "systemd",
            "coreutils",
            "dash",
            "grep",
            "mount",
            "sed",
            "libacl1",
            "libapparmor1",
            "libattr1",
            "libaudit1",
            "libblkid1",
            "libcap-ng0",
            "libcap2",
            "libcrypt1",
            "libgcrypt20",
            "libgpg-error0",
            "libip4tc2",
            "libkmod2",
            "liblz4-1",
            "liblzma5",
            "libmount1",
            "libpam0g",
            "libpcre2-8-0",
            "libseccomp2",
            "libselinux1",
            "libssl3",
            "libsystemd-shared",
            "libzstd1",
        ],
        selection: Selection::Exactly,
    };
    // Too many for the name of a directory.
    let names = packages.packages.join(" ");
    let inputs = [super::UNPACK_DEBIAN, packages.selection.mode(), &names];
    let root = cache.entry("system", &inputs, |out| packages.unpack(cache, out))?;
    Ok(System { root })
}

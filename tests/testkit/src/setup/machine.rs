//! A machine with a kernel of our choice: QEMU's software emulation and Debian's stock kernel.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;

use super::{Cache, Debian, Selection, SetupError, shell};
use crate::command::run;

const OWN_KERNEL_BUILD: &str = include_str!("../../../setup/vm-kernel/build.sh");
const OWN_KERNEL_CONFIG: &str = include_str!("../../../setup/vm-kernel/config");
const OWN_KERNEL_PATCH: &str = include_str!("../../../setup/vm-kernel/resctrl.patch");

/// The emulator, run from the cache; nothing is installed.
#[derive(Debug, Clone)]
pub struct Qemu {
    root: PathBuf,
}

impl Qemu {
    /// `qemu-system-x86_64` with its firmware and libraries found; add the machine's arguments.
    pub fn command(&self) -> Command {
        let below = |path| self.root.join(path).into_os_string();
        let mut libraries = below("usr/lib/x86_64-linux-gnu");
        libraries.push(":");
        libraries.push(below("lib/x86_64-linux-gnu"));

        let mut command = Command::new(below("usr/bin/qemu-system-x86_64"));
        command.env("LD_LIBRARY_PATH", libraries);
        for firmware in ["usr/share/qemu", "usr/share/seabios", "usr/lib/ipxe/qemu"] {
            command.arg("-L").arg(below(firmware));
        }
        command
    }
}

/// The x86 emulator with whatever libraries this machine lacks for it.
///
/// # Errors
///
/// When the packages cannot be fetched, or the emulator does not start.
pub fn ensure_qemu(cache: &Cache) -> Result<Qemu, SetupError> {
    let packages = Debian {
        suite: "bookworm",
        packages: &["qemu-system-x86"],
        selection: Selection::WithDependencies,
    };
    let qemu = Qemu {
        root: packages.ensure(cache)?,
    };
    run(qemu.command().arg("--version")).map_err(SetupError::recipe("the emulator"))?;
    Ok(qemu)
}

/// Debian's stock kernel of the 6.1 series: the file `vmlinuz`, with `config` beside it.
///
/// Its modules are left out: what a guest needs at boot is built in.
///
/// # Errors
///
/// When the package cannot be fetched.
pub fn ensure_kernel(cache: &Cache) -> Result<PathBuf, SetupError> {
    let package = Debian {
        suite: "bookworm",
        packages: &["linux-image-amd64"],
        selection: Selection::Behind,
    };
    let inputs = [super::UNPACK_DEBIAN, package.selection.mode()];
    let entry = cache.entry("kernel", &inputs, |out| {
        let unpacked = out.join("unpacked");
        package.unpack(cache, &unpacked)?;
        take(&unpacked.join("boot"), "vmlinuz", out)?;
        take(&unpacked.join("boot"), "config", out)?;
        take(&unpacked, "versions", out)?;
        fs::remove_dir_all(&unpacked).map_err(SetupError::file("remove", &unpacked))
    })?;
    Ok(entry.join("vmlinuz"))
}

/// A kernel of the same series with what stock ones lack: core scheduling, control groups of both
/// versions with every controller, and a cache that can be allocated and monitored
/// (`tests/setup/vm-kernel/`). The first build takes minutes.
///
/// # Errors
///
/// When a package cannot be fetched or the build fails.
pub fn ensure_own_kernel(cache: &Cache) -> Result<PathBuf, SetupError> {
    let packages = Debian {
        suite: "bookworm",
        packages: &["linux-source-6.1", "flex", "bison", "bc", "libelf-dev"],
        selection: Selection::WithDependencies,
    };
    let inputs = [
        super::UNPACK_DEBIAN,
        OWN_KERNEL_BUILD,
        OWN_KERNEL_CONFIG,
        OWN_KERNEL_PATCH,
    ];
    let entry = cache.entry("own-kernel", &inputs, |out| {
        let unpacked = out.join("unpacked");
        packages.unpack(cache, &unpacked)?;
        let (config, patch) = (out.join("config.part"), out.join("patch"));
        for (path, text) in [(&config, OWN_KERNEL_CONFIG), (&patch, OWN_KERNEL_PATCH)] {
            fs::write(path, text).map_err(SetupError::file("write", path))?;
        }
        eprintln!("setup: building a kernel (minutes, once)");
        let mut build = shell(OWN_KERNEL_BUILD);
        build.arg(&unpacked).arg(&config).arg(&patch).arg(out);
        run(&mut build).map_err(SetupError::recipe("the kernel"))?;
        take(&unpacked, "versions", out)?;
        fs::remove_dir_all(&unpacked).map_err(SetupError::file("remove", &unpacked))
    })?;
    Ok(entry.join("vmlinuz"))
}

/// Moves the one file of `from` whose name starts with `name` to `into`, under exactly that name.
fn take(from: &Path, name: &str, into: &Path) -> Result<(), SetupError> {
    let failed = |source| SetupError::file("find", &from.join(name))(source);
    for file in fs::read_dir(from).map_err(failed)? {
        let file = file.map_err(failed)?;
        if file
            .file_name()
            .as_encoded_bytes()
            .starts_with(name.as_bytes())
        {
            let place = into.join(name);
            return fs::rename(file.path(), &place).map_err(SetupError::file("move", &place));
        }
    }
    Err(failed(std::io::ErrorKind::NotFound.into()))
}

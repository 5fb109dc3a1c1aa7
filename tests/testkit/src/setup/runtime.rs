//! containerd of several generations and CRI-O, with runc, each in a directory of its own.
//!
//! Debian's packages are unpacked, never installed, so that no other containerd of the machine is
//! displaced. Those that it has not, the current 2.x and CRI-O are built from the Go module proxy at pinned
//! versions: a package of a moving suite would change under the tests.

use std::fmt;
use std::os::unix::fs::symlink;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::str::FromStr;

use super::go::Code;
use super::network::{with_libraries, write_program};
use super::{Cache, Debian, GoTools, Selection, SetupError};
use crate::command::run;

/// A generation of containerd.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContainerdVersion {
    /// 1.6 of Debian bookworm: CRI v1 and v1alpha2, no NRI.
    V1_6,
    /// 1.7.6, pinned, built from source: NRI 0.3. For what NRI generations differ in.
    V1_7_6,
    /// 1.7.13, pinned, built from source: NRI 0.4. For the same.
    V1_7_13,
    /// 1.7 of Debian trixie: CRI v1 and v1alpha2, NRI 0.6, off by default. Download only.
    V1_7,
    /// 2.1, pinned, built from source: NRI 0.8. For the same.
    V2_1,
    /// 2.2.0, pinned, built from source: NRI 0.10. For the same.
    V2_2_0,
    /// 2.2, pinned, built from source: NRI 0.11. For the same.
    V2_2,
    /// 2.3, pinned, built from source: CRI v1, NRI 0.12, on by default. The first build takes minutes.
    V2,
}

impl ContainerdVersion {
    /// Those that clients can tell apart, the oldest first.
    pub const ALL: [Self; 3] = [Self::V1_6, Self::V1_7, Self::V2];
}

impl fmt::Display for ContainerdVersion {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::V1_6 => "containerd 1.6",
            Self::V1_7_6 => "containerd 1.7.6",
            Self::V1_7_13 => "containerd 1.7.13",
            Self::V1_7 => "containerd 1.7",
            Self::V2_1 => "containerd 2.1",
            Self::V2_2_0 => "containerd 2.2.0",
            Self::V2_2 => "containerd 2.2",
            Self::V2 => "containerd 2.3",
        })
    }
}

/// A runtime of the CRI.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum RuntimeKind {
    Containerd(ContainerdVersion),
    /// 1.34.0, pinned, built from source: CRI v1, NRI 0.9, on by default.
    Crio,
}

impl RuntimeKind {
    /// Every one, with the name by which it is asked for; those that clients can tell apart come first.
    pub const NAMED: [(&'static str, Self); 9] = [
        ("containerd-1.6", Self::Containerd(ContainerdVersion::V1_6)),
        ("containerd-1.7", Self::Containerd(ContainerdVersion::V1_7)),
        ("containerd-2", Self::Containerd(ContainerdVersion::V2)),
        ("cri-o", Self::Crio),
        (
            "containerd-1.7.6",
            Self::Containerd(ContainerdVersion::V1_7_6),
        ),
        (
            "containerd-1.7.13",
            Self::Containerd(ContainerdVersion::V1_7_13),
        ),
        ("containerd-2.1", Self::Containerd(ContainerdVersion::V2_1)),
        (
            "containerd-2.2.0",
            Self::Containerd(ContainerdVersion::V2_2_0),
        ),
        ("containerd-2.2", Self::Containerd(ContainerdVersion::V2_2)),
    ];

    /// The name that it is asked for by.
    pub fn name(self) -> &'static str {
        let mut all = Self::NAMED.into_iter();
        let own = all.find_map(|(name, kind)| (kind == self).then_some(name));
        own.expect("every one has a name")
    }
}

/// No runtime has this name.
#[derive(Debug, thiserror::Error)]
#[error("there is no runtime called {0:?}")]
pub struct UnknownRuntime(String);

impl FromStr for RuntimeKind {
    type Err = UnknownRuntime;

    fn from_str(name: &str) -> Result<Self, UnknownRuntime> {
        let mut all = Self::NAMED.into_iter();
        all.find_map(|(named, kind)| (named == name).then_some(kind))
            .ok_or_else(|| UnknownRuntime(name.to_owned()))
    }
}

impl From<ContainerdVersion> for RuntimeKind {
    fn from(version: ContainerdVersion) -> Self {
        Self::Containerd(version)
    }
}

impl fmt::Display for RuntimeKind {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Containerd(version) => version.fmt(f),
            Self::Crio => f.write_str("CRI-O 1.34"),
        }
    }
}

/// The programs of one runtime, with the runc beside them.
#[derive(Debug, Clone)]
pub struct Programs {
    bin: PathBuf,
}

impl Programs {
    /// One that is there already, in this directory.
    pub fn at(bin: impl Into<PathBuf>) -> Self {
        Self { bin: bin.into() }
    }

    /// The directory with `runc`, and with `containerd`, `containerd-shim-runc-v2` and `ctr` or with
    /// `crio`, `copyimg`, `conmon` and `pinns`.
    pub fn bin(&self) -> &Path {
        &self.bin
    }
}

const CONTAINERD_2: GoTools = GoTools {
    name: "containerd-2",
    go_mod: include_str!("../../../setup/containerd/go.mod"),
    go_sum: include_str!("../../../setup/containerd/go.sum"),
    tags: "",
    code: Code::Fast,
};

const CONTAINERD_1_7_6: GoTools = GoTools {
    name: "containerd-1-7-6",
    go_mod: include_str!("../../../setup/containerd-1.7.6/go.mod"),
    go_sum: include_str!("../../../setup/containerd-1.7.6/go.sum"),
    tags: "",
    code: Code::SoonThere,
};

const CONTAINERD_1_7_13: GoTools = GoTools {
    name: "containerd-1-7-13",
    go_mod: include_str!("../../../setup/containerd-1.7.13/go.mod"),
    go_sum: include_str!("../../../setup/containerd-1.7.13/go.sum"),
    tags: "",
    code: Code::SoonThere,
};

const CONTAINERD_2_1: GoTools = GoTools {
    name: "containerd-2-1",
    go_mod: include_str!("../../../setup/containerd-2.1/go.mod"),
    go_sum: include_str!("../../../setup/containerd-2.1/go.sum"),
    tags: "",
    code: Code::SoonThere,
};

const CONTAINERD_2_2_0: GoTools = GoTools {
    name: "containerd-2-2-0",
    go_mod: include_str!("../../../setup/containerd-2.2.0/go.mod"),
    go_sum: include_str!("../../../setup/containerd-2.2.0/go.sum"),
    tags: "",
    code: Code::SoonThere,
};

const CONTAINERD_2_2: GoTools = GoTools {
    name: "containerd-2-2",
    go_mod: include_str!("../../../setup/containerd-2.2/go.mod"),
    go_sum: include_str!("../../../setup/containerd-2.2/go.sum"),
    tags: "",
    code: Code::SoonThere,
};

const CRIO: GoTools = GoTools {
    name: "crio",
    go_mod: include_str!("../../../setup/crio/go.mod"),
    go_sum: include_str!("../../../setup/crio/go.sum"),
    // Else it needs GnuPG's library.
    tags: "containers_image_openpgp",
    code: Code::Fast,
};

const KUBELET: GoTools = GoTools {
    name: "kubelet",
    go_mod: include_str!("../../../setup/kubelet/go.mod"),
    go_sum: include_str!("../../../setup/kubelet/go.sum"),
    tags: "",
    code: Code::Fast,
};

/// Fetches or builds one generation, with Debian bookworm's runc (newer ones need a newer libc).
///
/// # Errors
///
/// When a package cannot be fetched or the build fails.
pub fn ensure_containerd(
    cache: &Cache,
    version: ContainerdVersion,
) -> Result<Programs, SetupError> {
    let debian = |suite, packages| Debian {
        suite,
        packages,
        selection: Selection::Exactly,
    };
    let containerd = match version {
        ContainerdVersion::V1_6 => debian("bookworm", &["containerd"])
            .ensure(cache)?
            .join("usr/bin"),
        ContainerdVersion::V1_7 => debian("trixie", &["containerd"])
            .ensure(cache)?
            .join("usr/bin"),
        ContainerdVersion::V1_7_6 => CONTAINERD_1_7_6.ensure(cache)?,
        ContainerdVersion::V1_7_13 => CONTAINERD_1_7_13.ensure(cache)?,
        ContainerdVersion::V2_1 => CONTAINERD_2_1.ensure(cache)?,
        ContainerdVersion::V2_2_0 => CONTAINERD_2_2_0.ensure(cache)?,
        ContainerdVersion::V2_2 => CONTAINERD_2_2.ensure(cache)?,
        ContainerdVersion::V2 => CONTAINERD_2.ensure(cache)?,
    };
    let runc = ensure_runc(cache)?;
    let inputs = [&*containerd.to_string_lossy(), &*runc.to_string_lossy()];
    let bin = cache.entry("runtime", &inputs, |out| {
        for program in ["containerd", "containerd-shim-runc-v2", "ctr"] {
            link(&containerd, program, out)?;
        }
        link(&runc, "runc", out)
    })?;
    Ok(Programs { bin })
}

/// Builds CRI-O, with Debian bookworm's runc and conmon. The first build takes minutes.
///
/// # Errors
///
/// When a package cannot be fetched or a build fails.
pub fn ensure_crio(cache: &Cache) -> Result<Programs, SetupError> {
    let crio = CRIO.ensure(cache)?;
    let runc = ensure_runc(cache)?;
    let conmon = with_libraries(&ensure_conmon(cache)?, "bin/conmon");
    let inputs = [&*crio.to_string_lossy(), &*runc.to_string_lossy(), &conmon];
    let bin = cache.entry("crio-runtime", &inputs, |out| {
        link(&crio, "crio", out)?;
        link(&crio, "copyimg", out)?;
        link(&runc, "runc", out)?;
        let path = out.join("conmon");
        write_program(&path, &conmon).map_err(SetupError::file("write", &path))?;
        compile_pinns(&crio, out)
    })?;
    Ok(Programs { bin })
}

/// What CRI-O starts containers through, unpacked: the directory of its `bin/conmon`, with the libraries
/// that this machine lacks.
///
/// # Errors
///
/// When a package cannot be fetched.
pub fn ensure_conmon(cache: &Cache) -> Result<PathBuf, SetupError> {
    let conmon = Debian {
        suite: "bookworm",
        packages: &["conmon"],
        selection: Selection::WithDependencies,
    };
    Ok(conmon.ensure(cache)?.join("usr"))
}

/// The one program of CRI-O that is written in C: it holds a pod's namespaces open.
fn compile_pinns(crio: &Path, out: &Path) -> Result<(), SetupError> {
    let source = CRIO.source_of("github.com/cri-o/cri-o", crio)?;
    run(Command::new("sh")
        .args(["-c", r#"cc -std=c99 -Os -o "$2" "$1"/pinns/src/*.c"#, "sh"])
        .arg(source)
        .arg(out.join("pinns")))
    .map(drop)
    .map_err(SetupError::recipe("pinns"))
}

/// Whichever it is.
///
/// # Errors
///
/// When a package cannot be fetched or a build fails.
pub fn ensure_runtime(cache: &Cache, kind: RuntimeKind) -> Result<Programs, SetupError> {
    match kind {
        RuntimeKind::Containerd(version) => ensure_containerd(cache, version),
        RuntimeKind::Crio => ensure_crio(cache),
    }
}

fn ensure_runc(cache: &Cache) -> Result<PathBuf, SetupError> {
    let runc = Debian {
        suite: "bookworm",
        packages: &["runc"],
        selection: Selection::Exactly,
    };
    Ok(runc.ensure(cache)?.join("usr/sbin"))
}

/// Builds a current kubelet, and answers the path of the program. The first build takes minutes.
///
/// # Errors
///
/// When the build fails.
pub fn ensure_kubelet(cache: &Cache) -> Result<PathBuf, SetupError> {
    Ok(KUBELET.ensure(cache)?.join("kubelet"))
}

pub(super) fn link(from: &Path, program: &str, into: &Path) -> Result<(), SetupError> {
    let link = into.join(program);
    symlink(from.join(program), &link).map_err(SetupError::file("create", &link))
}

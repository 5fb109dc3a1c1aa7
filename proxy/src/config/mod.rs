//! Flags and file, put together and understood.
//!
//! Two types: [`RawConfig`] is what was said, text by key, and [`Config`] is what it means. The
//! step between them reports every bad key of every source, and every bad value that would count, in
//! one run, because whoever sets up a node wants to correct them in one go. Nothing here reads the environment; what `KOORD_LOG` says
//! is handed in.

mod file;
mod key;
mod kubelet;
mod resolve;
mod value;

pub use self::{
    key::{Given, KEYS, Key, Origin, RawConfig, Repeat},
    kubelet::{Kubelet, KubeletUrl},
    value::ValueError,
};

use self::resolve::Resolver;
use crate::{front::nri::Identity, regular_file::FileError};
use koord_hooks::{FailPolicies, FeatureGates};
use koord_model::{CgroupPath, Setting};
use std::{
    collections::BTreeSet,
    error::Error,
    fmt,
    path::{Path, PathBuf},
    time::Duration,
};
use thiserror::Error;

/// The environment variable that sets the log filter where no flag does.
pub const LOG_FILTER_VARIABLE: &str = "KOORD_LOG";

/// What stands for the file where the configuration comes from the runtime.
const FROM_RUNTIME: &str = "the runtime's configuration";

/// Bytes of a configuration file.
const MAX_FILE: u64 = 1 << 20;

/// Everything this process was told, checked, with every default filled in.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Config {
    /// Our socket, for the kubelet.
    pub endpoint: PathBuf,
    /// The runtime's socket.
    pub runtime_endpoint: PathBuf,
    pub mode: Mode,
    pub front: Front,
    pub nri: Nri,
    pub node_name: String,
    /// `None`: no policy, hooks do what they do before the first.
    pub node_policy: Option<PathBuf>,
    pub pods: Pods,
    pub hooks: Hooks,
    pub exclusions: Exclusions,
    pub limits: Limits,
    pub roots: Roots,
    /// The kubelet's `cgroupRoot`: `kubepods` is below it.
    pub cgroup_root: CgroupPath,
    pub state_dir: PathBuf,
    pub admin_endpoint: PathBuf,
    pub hook_server_dir: PathBuf,
    pub log: Log,
}

/// What decisions may change.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Mode {
    Enforce,
    /// Decide and explain, but change neither requests nor the kernel.
    Observe,
    /// No hooks at all.
    PassThrough,
}

/// Where events come from.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Front {
    /// From clients of the runtime, which go through us.
    Cri,
    /// From the runtime, whose plugin we are.
    Nri,
    /// From what the runtime tells and lists; nobody asks us.
    Watch,
}

/// How the runtime takes us for its plugin.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Nri {
    pub socket: PathBuf,
    pub identity: Identity,
}

/// What says beside requests how pods are.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum Pods {
    #[default]
    None,
    File(PathBuf),
    Kubelet(Box<Kubelet>),
}

/// Which hooks run, and how.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Hooks {
    pub gates: FeatureGates,
    pub fail_policies: FailPolicies,
    /// Keep the CFS quota of pods that have CPUs of their own.
    pub disable_unset_cpu_quota: bool,
    pub hami_core_library: String,
    /// Settings that are left to others.
    pub left: BTreeSet<Setting>,
    pub beside_koordlet: BesideKoordlet,
    /// In whose pods koordlet may be.
    pub koordlet_namespace: String,
}

/// Whether hooks rest that upstream's koordlet has too.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum BesideKoordlet {
    /// While one runs on this machine, those that are on there.
    Auto,
    Yes,
    No,
}

/// Pods that hooks leave alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Exclusions {
    /// Key and value of the label that exempts a pod.
    pub skip_label: (String, String),
    pub namespaces: BTreeSet<String>,
    pub runtime_handlers: BTreeSet<String>,
}

/// Bounds on what clients may cost.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    pub max_connections: usize,
    /// Bytes of one request that is opened.
    pub max_message_bytes: usize,
    pub large_message_slots: usize,
    /// How long a request may wait for its decision.
    pub hold_timeout: Duration,
    /// How long calls in flight may take at a stop; `None` as the socket has it.
    pub grace_period: Option<Duration>,
}

/// Where the kernel's file systems are, and the directories of other programs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Roots {
    pub cgroup: PathBuf,
    pub sys: PathBuf,
    pub proc: PathBuf,
    /// The kubelet's directory.
    pub kubelet: PathBuf,
    /// Where Terway reads what it is told.
    pub terway: PathBuf,
}

/// How this process logs.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Log {
    pub filter: String,
    pub format: LogFormat,
    /// Whether lines begin with the time.
    pub time: bool,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum LogFormat {
    Text,
    Json,
}

/// What is handed in beside flags and file.
#[derive(Clone, Debug, Default)]
pub struct Surroundings {
    pub host_name: String,
    /// What [`LOG_FILTER_VARIABLE`] holds.
    pub log_filter: Option<String>,
    /// A runtime has launched this process as its plugin.
    pub launch: Option<Launch>,
}

/// What a runtime says to a plugin that it launches.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Launch {
    pub name: String,
    pub index: String,
    /// Its configuration, as in a file.
    pub text: String,
}

/// Everything that is wrong with the configuration.
#[derive(Debug)]
pub struct ConfigError {
    pub issues: Vec<Issue>,
    /// What the rest means, with the default in the place of each bad value, and of all that a file says
    /// which is none. Sockets that may not be the same may be so here.
    pub rest: Box<Config>,
}

/// One thing that is wrong.
#[derive(Debug)]
pub struct Issue {
    /// Empty for what concerns a whole file.
    pub key: String,
    pub origin: Origin,
    pub problem: Problem,
}

/// What is wrong with a key or a file.
#[derive(Debug, Error)]
pub enum Problem {
    #[error("cannot be read")]
    Unreadable(#[source] FileError),
    #[error("is no YAML mapping")]
    Syntax(#[source] Box<serde_saphyr::Error>),
    #[error("is there again in line {line}, and each key is expected once")]
    Duplicate { line: u64 },
    #[error("means {other}, which is there too, and each key is expected once")]
    Twice { other: &'static str },
    #[error("is not a known key")]
    UnknownKey,
    #[error("takes {wanted}, not {found}")]
    Kind {
        wanted: &'static str,
        found: &'static str,
    },
    #[error("cannot be {text:?}")]
    Value {
        text: String,
        #[source]
        source: ValueError,
    },
}

// === impl Config ===

impl Config {
    /// What flags, the file and the surroundings mean together: flags win over the environment,
    /// the environment over the file, the file over defaults.
    ///
    /// # Errors
    ///
    /// When anything said is wrong: a file that cannot be read, has more than 1 MiB or is no YAML mapping; a
    /// key in it that is unknown, is there twice or has another kind of value than it takes; a value that
    /// counts and that its key does not take; or one path for two sockets of which one is ours. The error has
    /// all that was found.
    pub fn resolve(
        flags: RawConfig,
        file: Option<&Path>,
        surroundings: &Surroundings,
    ) -> Result<Self, ConfigError> {
        Resolver::new(flags, file, surroundings).finish(&surroundings.host_name)
    }
}

// === impl Mode ===

impl Mode {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Enforce => "enforce",
            Self::Observe => "observe",
            Self::PassThrough => "pass-through",
        }
    }
}

impl fmt::Display for Mode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

// === impl Front ===

impl Front {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Cri => "cri",
            Self::Nri => "nri",
            Self::Watch => "watch",
        }
    }
}

// === impl BesideKoordlet ===

impl BesideKoordlet {
    pub fn as_str(self) -> &'static str {
        match self {
            Self::Auto => "auto",
            Self::Yes => "yes",
            Self::No => "no",
        }
    }
}

// === impl ConfigError ===

impl ConfigError {
    /// Whether nothing that is wrong leaves it in doubt which sockets are meant.
    pub fn spares_sockets(&self) -> bool {
        let of_sockets = [
            key::RUNTIME_ENDPOINT,
            key::BACKEND_MODE,
            key::ENDPOINT,
            key::ADMIN_ENDPOINT,
            key::NRI_SOCKET,
        ];
        let of_sockets = of_sockets.map(|key| key.name);
        self.issues.iter().all(|issue| match issue.problem {
            Problem::Value { .. } | Problem::Kind { .. } => {
                !of_sockets.contains(&issue.key.as_str())
            }
            // One of these may be among what was meant and is not there.
            Problem::Unreadable(_)
            | Problem::Syntax(_)
            | Problem::Duplicate { .. }
            | Problem::Twice { .. }
            | Problem::UnknownKey => false,
        })
    }
}

impl fmt::Display for ConfigError {
    /// One line for each issue, with its reasons: for a person at a terminal. A log has them in one.
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (index, issue) in self.issues.iter().enumerate() {
            if index > 0 {
                writeln!(f)?;
            }
            write!(f, "{issue}")?;
            let mut source = issue.problem.source();
            while let Some(error) = source {
                write!(f, ": {error}")?;
                source = error.source();
            }
        }
        Ok(())
    }
}

impl Error for ConfigError {}

impl fmt::Display for Issue {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match (&self.origin, self.key.as_str()) {
            (Origin::Flag, key) => write!(f, "--{key} {}", self.problem),
            (Origin::File(_), "") => write!(f, "{} {}", self.origin, self.problem),
            (Origin::File(_), key) => write!(f, "{}: {key} {}", self.origin, self.problem),
            (Origin::Environment(name), _) => write!(f, "{name} {}", self.problem),
        }
    }
}

#[cfg(test)]
mod tests;

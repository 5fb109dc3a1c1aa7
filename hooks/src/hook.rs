//! What a hook is: a pure function from a view to an adjustment, and a row that describes it.
//!
//! Pure means no I/O, no clock, no state: the same view gives the same adjustment, whichever
//! front asks and however often. The description is data, so that flags, metrics, feature gates
//! and documentation are read from it and never kept by hand.

use crate::{
    adjustment::{Adjustment, NodeAdjustment},
    unsafe_path::UnsafePath,
    view::{NodeView, PodView, Stage, View},
};
use koord_model::{CgroupPathError, CpuSet, PciAddress, Setting};
use koord_proto::{
    annotation::AnnotationError,
    keys::{annotation, label},
};
use std::{fmt, sync::Arc};
use thiserror::Error;

/// Decides what a pod, a container or the node should have.
pub trait Hook: Send + Sync {
    /// Called at the stages [`Stage::Pod`] and [`Stage::Container`].
    ///
    /// # Errors
    ///
    /// When something that it reads is malformed, or cannot be met: then nothing of what it decides here
    /// counts, and what becomes of the call is for its [`FailPolicy`].
    fn decide(&self, view: &View<'_>) -> Result<Adjustment, HookError>;

    /// What is in force of it where [`decide`](Hook::decide) fails or panics, whatever the pod says: what
    /// nobody may get out of by a malformed annotation. Unless an earlier hook has set it.
    fn at_least(&self, _view: &View<'_>) -> Adjustment {
        Adjustment::default()
    }

    /// Called at the stage [`Stage::Node`].
    ///
    /// # Errors
    ///
    /// The same of the node's own groups.
    fn decide_node(&self, _node: &NodeView) -> Result<NodeAdjustment, HookError> {
        Ok(NodeAdjustment::default())
    }

    /// Whether it decides something for this pod from what its containers ask for. Of
    /// containers that nobody has heard ask, a runtime is asked then.
    fn reads_requested(&self, _pod: &PodView, _node: &NodeView) -> bool {
        false
    }

    /// Why this hook can do nothing on a node, if so. It is called there all the same.
    fn unsupported(&self, _node: &NodeView) -> Option<&'static str> {
        None
    }
}

/// The description of a hook.
#[derive(Clone, Copy, Debug)]
pub struct HookMeta {
    /// In CamelCase; also the label of its metrics.
    pub name: &'static str,
    /// The feature gate that switches it.
    pub gate: &'static str,
    pub default_on: bool,
    pub maturity: Maturity,
    /// Further gates, which change what it decides.
    pub options: &'static [OptionGate],
    pub stages: &'static [Stage],
    /// Unless the operator says otherwise.
    pub fail_policy: FailPolicy,
    /// One line.
    pub doc: &'static str,
    pub inputs: Inputs,
    /// The settings it may set.
    pub settings: &'static [Setting],
}

/// A feature gate that gives a hook something more to do. Off by default.
#[derive(Clone, Copy, Debug)]
pub struct OptionGate {
    pub gate: &'static str,
    pub maturity: Maturity,
    /// One line.
    pub doc: &'static str,
}

/// Which of `AllAlpha` and `AllBeta` moves a feature gate.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Maturity {
    Alpha,
    Beta,
    /// A gate that Koordinator does not have: only its own name moves it.
    Own,
}

/// What the failure of a hook means for the call that it was run for.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FailPolicy {
    /// The call goes on without what the hook wanted.
    Open,
    /// The call is refused.
    Closed,
}

/// The keys of pod metadata that are read.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Inputs {
    pub labels: &'static [&'static str],
    pub annotations: &'static [&'static str],
}

/// The least memory that a container can be limited to and start. `runc init` runs within the limit
/// before the container's own program does: with runc 1.1.5 it has 2.2 to 2.5 MiB when the limit is
/// written, and the kernel refuses a limit below that. Docker took 4 MiB for it for many years.
pub(crate) const MIN_MEMORY_BYTES: u64 = 4 << 20;

/// A set of CPUs in a sentence: one in which every other is left out has thousands of numbers.
struct Brief<'a>(&'a CpuSet);

/// Why a hook could not decide.
#[derive(Debug, Error)]
pub enum HookError {
    #[error(transparent)]
    Annotation(Arc<AnnotationError>),
    #[error(
        "{key} names the CPUs {}, of which pods may use none: they may use {}",
        Brief(.cpus),
        Brief(.usable)
    )]
    NoUsableCpu {
        key: &'static str,
        cpus: CpuSet,
        usable: CpuSet,
    },
    #[error(
        "{key} limits container {container:?} to {limit_bytes} bytes of memory, less than the \
         {} that it takes to start one",
        MIN_MEMORY_BYTES
    )]
    TooLittleMemory {
        key: &'static str,
        container: String,
        limit_bytes: u64,
    },
    #[error(
        "{key} does not say {resource} of the first GPU, by which HAMi-core keeps a pod within its \
         part"
    )]
    MissingAmount {
        key: &'static str,
        resource: &'static str,
    },
    #[error("containers are not given HAMi-core of this node")]
    HamiCore(#[source] UnsafePath),
    #[error(
        "{} names {address}, which is no RDMA device of this node",
        annotation::DEVICE_ALLOCATED
    )]
    NoRdmaDevice { address: PciAddress },
    #[error("this node has no device by which connections of RDMA are made")]
    NoRdmaConnections,
    #[error("containers are not given a device of this node")]
    RdmaNode(#[source] UnsafePath),
    #[error("host application {name:?} has no control group")]
    HostApplication {
        name: String,
        #[source]
        source: CgroupPathError,
    },
}

// === impl FailPolicy ===

impl fmt::Display for FailPolicy {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Open => "Open",
            Self::Closed => "Closed",
        })
    }
}

// === impl Maturity ===

impl fmt::Display for Maturity {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Self::Alpha => "alpha",
            Self::Beta => "beta",
            Self::Own => "own",
        })
    }
}

// === impl Brief ===

impl fmt::Display for Brief<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let whole = self.0.to_string();
        match whole.get(..Self::MOST).filter(|_| whole.len() > Self::MOST) {
            Some(begin) => write!(f, "{begin}…"),
            None => f.write_str(&whole),
        }
    }
}

impl Brief<'_> {
    /// Characters at most, all of which are ASCII.
    const MOST: usize = 64;
}

// === impl HookError ===

impl From<Arc<AnnotationError>> for HookError {
    fn from(error: Arc<AnnotationError>) -> Self {
        Self::Annotation(error)
    }
}

impl From<AnnotationError> for HookError {
    fn from(error: AnnotationError) -> Self {
        Self::Annotation(error.into())
    }
}

impl HookError {
    /// The annotation, label or part of the node policy that was at fault.
    pub fn key(&self) -> &'static str {
        match self {
            Self::Annotation(source) => source.key,
            Self::NoUsableCpu { key, .. }
            | Self::TooLittleMemory { key, .. }
            | Self::MissingAmount { key, .. } => key,
            Self::HamiCore(_) => label::GPU_ISOLATION_PROVIDER,
            Self::NoRdmaDevice { .. } | Self::NoRdmaConnections | Self::RdmaNode(_) => {
                annotation::DEVICE_ALLOCATED
            }
            Self::HostApplication { .. } => "spec.hostApplications",
        }
    }
}

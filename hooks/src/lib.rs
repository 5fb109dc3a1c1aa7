//! Hooks decide what pods, containers and the node should have: from a view to an adjustment.
//!
//! The way of one decision is `view` (what may be looked at) → `chain` (every hook in order) →
//! `adjustment` (what one hook wants) → `merge` (what all want, and who owns each value) →
//! `outcome`. Nothing here does I/O, reads a clock or waits, so the same event gives the same
//! decision whichever front brought it, and a decision can be made again to explain or to repair.
//! What becomes of the values is the business of the caller.
#![forbid(unsafe_code)]

mod adjustment;
mod builtin;
mod chain;
mod extended;
#[cfg(test)]
mod fixture;
mod gate;
mod hami_core;
mod hook;
mod map;
mod merge;
mod outcome;
mod parsed;
mod rdma;
#[cfg(any(test, feature = "testing"))]
pub mod testing;
mod unsafe_path;
mod view;

pub use self::{
    adjustment::{Adjustment, NodeAdjustment},
    chain::{Chain, Observer},
    gate::{FailPolicies, FeatureGates, FlagError, FlagFault},
    hami_core::{HAMI_CORE_FOLDERS, HAMI_CORE_LOCK, HAMI_CORE_SEPARATOR},
    hook::{FailPolicy, Hook, HookError, HookMeta, Inputs, Maturity, OptionGate},
    map::Map,
    merge::{MergeError, Merged, NodeMerged, Owner},
    outcome::{Failure, FailureKind, NodeOutcome, Notice, Outcome},
    parsed::Parsed,
    rdma::{RdmaDevices, RdmaNode},
    unsafe_path::{PathProblem, UnsafePath},
    view::{
        Abilities, ContainerKind, ContainerView, HookOptions, NodeView, PodView, Requested, Stage,
        TierPaths, Unified, View,
    },
};

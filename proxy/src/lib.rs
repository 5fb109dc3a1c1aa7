//! The CRI proxy: fronts that events come in by, the hub that decides, the ledger that remembers,
//! and the ways by which decisions take effect.
#![forbid(unsafe_code)]

pub mod admin;
pub mod app;
pub mod apply;
pub mod cli;
pub mod config;
mod dial;
pub mod front;
mod hami_core;
pub mod hub;
mod issues;
pub mod ledger;
mod lock_file;
pub mod log;
pub mod metrics;
pub mod neighbour;
pub mod node;
pub mod originals;
pub mod panic_report;
pub mod pods;
pub mod policy_file;
pub mod rdma;
mod readiness;
pub mod reconcile;
pub mod regular_file;
pub mod relist;
mod retry;
pub mod revert;
pub mod runtime;
pub mod shutdown;
pub mod socket;
pub mod stand_by;
pub mod start_guard;
pub mod state_lock;
pub mod status;
pub mod systemd;
pub mod view;
mod watched_file;
mod worker;

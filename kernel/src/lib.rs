//! Everything under `/sys` and `/proc`, control groups among it, netlink, and whatever needs `unsafe`.
//!
//! The only room with `unsafe` in it: one operation per block, each with its reason, and none where
//! `rustix` has a safe form. Roots are handed in, nothing here is global, nothing here decides:
//! callers say what a file should hold, this room knows how the kernel wants to be told.

pub mod apart;
pub mod block;
pub mod boot;
pub mod cgroup;
pub mod core_sched;
pub mod cpu;
#[cfg(any(test, feature = "fake"))]
pub mod fake;
pub mod neighbour;
pub mod netlink;
pub mod process;
#[cfg(any(test, feature = "fake"))]
pub mod proof;
pub mod rdma;
pub mod resctrl;
pub mod task;

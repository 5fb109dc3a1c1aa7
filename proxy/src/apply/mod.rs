//! How decided values get to where they take effect: into a request ([`cri`]), into the answer to a
//! runtime that asks ([`nri`]), into the kernel ([`kernel`], and [`cores`], [`caches`] and
//! [`oom_scores`] for what each thread or process has, [`traffic`] for the queues of the network), or to a
//! plugin of the network ([`terway`]).

pub mod caches;
pub mod cores;
pub mod cri;
pub mod kernel;
pub(crate) mod marks;
pub mod nri;
pub mod oom_scores;
mod periods;
mod progress;
mod reclaiming;
mod replaced;
pub mod terway;
pub mod threads;
pub mod traffic;

#[cfg(test)]
pub(crate) mod testing;

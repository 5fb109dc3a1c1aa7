//! How decided values get to where they take effect: into a request ([`cri`]), into the answer to a
//! runtime that asks ([`nri`]), or into the kernel ([`kernel`], and [`cores`], [`caches`] and
//! [`oom_scores`] for what each thread or process has).

pub mod caches;
pub mod cores;
pub mod cri;
pub mod kernel;
pub mod nri;
pub mod oom_scores;
mod replaced;
pub mod threads;

#[cfg(test)]
mod testing;

//! How decided values get to where they take effect: into a request ([`cri`]), into the answer to a
//! runtime that asks ([`nri`]), or into the kernel ([`kernel`], and [`cores`] and [`caches`] for what
//! each thread has).

pub mod caches;
pub mod cores;
pub mod cri;
pub mod kernel;
pub mod nri;
pub mod threads;

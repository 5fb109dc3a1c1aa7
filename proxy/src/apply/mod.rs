//! How decided values get to where they take effect: into a request ([`cri`]), into the answer to a
//! runtime that asks ([`nri`]), or into the kernel ([`kernel`], and [`cores`] for what
//! each thread has).

pub mod cores;
pub mod cri;
pub mod kernel;
pub mod nri;

//! How decided values get to where they take effect: into a request ([`cri`]) or into the kernel
//! ([`kernel`]).

pub mod cri;
pub mod kernel;

//! Where events come in. Every front builds the same view for the same chain.

pub mod cri;
pub mod nri;
pub mod watch;

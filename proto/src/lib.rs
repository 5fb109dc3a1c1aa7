//! Every contract that crosses a process: CRI and NRI messages, Kubernetes and Koordinator objects,
//! labels, annotations and resource names, and the names in log events.
//!
//! Two directions, two attitudes. What comes in is decoded by the rules of the program that wrote
//! it, bounded in size, and refused with the place and the reason. What goes out of a request is
//! never re-encoded: a change is appended to the bytes that came.
#![forbid(unsafe_code)]

pub mod annotation;
#[cfg(feature = "client")]
pub mod client;
pub mod cri;
mod issue;
pub mod keys;
pub mod nri;
mod parser_error;
pub mod pods;
pub mod policy;
pub mod wire;

pub use self::{issue::Issues, parser_error::ParserError};

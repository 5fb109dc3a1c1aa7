//! Talking with the kernel's network over rtnetlink: messages as bytes, the socket that they go over,
//! and as much of traffic control and of routes as is needed. It knows what each object of these is
//! made of, and nothing of what they are for.

pub mod message;
pub mod route;
mod socket;
pub mod traffic;

pub use self::socket::{NetlinkError, Socket};

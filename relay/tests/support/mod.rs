//! What the tests of this room share: both ends of a connection, written without the room's code.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of it"
)]

pub mod end;
pub mod exchange;
pub mod frame;
pub mod hpack;
pub mod rng;

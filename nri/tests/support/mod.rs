//! What the tests of this room share: the wire by hand, written without the room's code.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of it"
)]

pub mod go;
pub mod line;
pub mod reframe;
pub mod rng;
pub mod wire;

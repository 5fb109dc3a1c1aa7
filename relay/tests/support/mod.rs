//! What the tests of this room share: frames, written and read without the room's own code.

#![allow(
    dead_code,
    unreachable_pub,
    reason = "each test file uses a part of it"
)]

pub mod frame;

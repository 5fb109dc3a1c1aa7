//! HPACK (RFC 7541), the part that a follower of a foreign connection needs: a decoder for each
//! direction that keeps the dynamic table in step with the two ends, and a writer of literals for
//! header blocks that cannot pass as they came.
//!
//! There is no compressing encoder: what we write ourselves never enters the receiver's table, so
//! it fits between any two blocks of somebody else's encoder.
//!
//! Public for the room's own tests and fuzz targets.

mod decode;
mod encode;
mod huffman;
mod table;

pub use decode::{Decoder, HpackError, Item};
pub use encode::{write_literal, write_resize};
pub use huffman::CODE_LENGTHS;

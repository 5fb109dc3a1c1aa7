//! The bounds that keep one connection from costing more than its share.

use crate::Side;

/// What one pair may use. Crossing a bound closes the pair or, where the text says so, lets a
/// stream pass unopened.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Limits {
    /// Largest request message, in bytes without its prefix, that is held; a larger one passes
    /// unopened. Also the largest message that a patch may make.
    pub max_message: usize,
    /// Largest reply message, in bytes without its prefix, that is copied into
    /// [`Event::Response`](crate::Event::Response).
    pub reply_message: usize,
    /// Largest header block of a client, in bytes as sent (frame headers included) and as encoded anew.
    pub header_block: usize,
    /// The same of the runtime, whose trailers may carry the details of an error.
    pub reply_header_block: usize,
    /// Largest HPACK dynamic table, in bytes as RFC 7541 counts them, that an encoder may ask for.
    pub header_table: usize,
    /// Streams open at a time.
    pub open_streams: usize,
    /// Streams that were ended on this side, by a refusal or an early reply, and are remembered so
    /// that late frames on them can be swallowed. The oldest is forgotten first.
    pub tombstones: usize,
}

// === impl Limits ===

impl Limits {
    /// Largest header block of a side.
    pub(crate) fn header_block_of(&self, side: Side) -> usize {
        match side {
            Side::Client => self.header_block,
            Side::Runtime => self.reply_header_block,
        }
    }
}

impl Default for Limits {
    fn default() -> Self {
        Self {
            max_message: 16 << 20,
            reply_message: 64 << 10,
            header_block: 256 << 10,
            reply_header_block: 1 << 20,
            header_table: 1 << 20,
            open_streams: 16_384,
            tombstones: 1_024,
        }
    }
}

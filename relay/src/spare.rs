//! The buffer of the last held message, for the next one.
//!
//! Requests of a few KiB each would else have the allocator join and split its free memory for every
//! call, which costs more than all the rest. Hardly ever are two messages held at a time, so pairs may
//! share one such buffer: it is near at hand for the processor then, and no idle connection has its own.

use std::cell::RefCell;
use std::rc::Rc;

/// A buffer that the next held message uses; copies of it are the same buffer.
#[derive(Clone, Debug, Default)]
pub struct Spare(Rc<RefCell<Vec<u8>>>);

// === impl Spare ===

impl Spare {
    /// Largest buffer that is kept, in bytes: a request of a usual size with what is appended.
    const KEPT: usize = 32 << 10;

    /// An empty buffer, and one that was used before if there is one. Not for much less than it has room
    /// for: who holds a byte holds a buffer.
    pub(crate) fn take(&self, length: usize) -> Vec<u8> {
        let fits = 4 * length >= self.0.borrow().capacity();
        if fits { self.0.take() } else { Vec::new() }
    }

    pub(crate) fn take_back(&self, mut buffer: Vec<u8>) {
        let mut kept = self.0.borrow_mut();
        if buffer.capacity() <= Self::KEPT && buffer.capacity() > kept.capacity() {
            buffer.clear();
            *kept = buffer;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_larger_buffer_is_kept_unless_it_is_too_large() {
        let spare = Spare::default();
        for (size, kept) in [(100, 100), (8_000, 8_000), (200, 8_000), (100_000, 8_000)] {
            spare.clone().take_back(vec![1; size]);
            assert_eq!(spare.0.borrow().capacity(), kept);
        }
        assert_eq!(spare.take(1_999).capacity(), 0);
        let buffer = spare.take(2_000);
        assert_eq!((buffer.len(), buffer.capacity()), (0, 8_000));
        assert_eq!(spare.take(8_000).capacity(), 0);
    }
}

//! Bytes on their way to the other end.

/// Capacity that is kept when nothing waits.
const KEPT: usize = 64 << 10;

/// A growing buffer, written from the front. It lets go of what a burst left behind.
#[derive(Debug, Default)]
pub(crate) struct Output {
    buffer: Vec<u8>,
    written: usize,
}

// === impl Output ===

impl Output {
    pub(crate) fn pending(&self) -> &[u8] {
        &self.buffer[self.written..]
    }

    pub(crate) fn len(&self) -> usize {
        self.buffer.len() - self.written
    }

    /// Where a message is appended to, whole.
    pub(crate) fn tail(&mut self) -> &mut Vec<u8> {
        if self.written > self.buffer.len() / 2 {
            self.buffer.drain(..self.written);
            self.written = 0;
        }
        &mut self.buffer
    }

    /// Forgets the first `count` pending bytes.
    pub(crate) fn advance(&mut self, count: usize) {
        self.written = self.buffer.len().min(self.written.saturating_add(count));
        if self.written == self.buffer.len() {
            self.buffer.clear();
            self.buffer.shrink_to(KEPT);
            self.written = 0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_come_out_as_they_went_in_however_they_are_taken() {
        let mut output = Output::default();
        let mut taken = Vec::new();
        for round in 0..200_u8 {
            output.tail().extend_from_slice(&[round; 100]);
            taken.extend_from_slice(&output.pending()[..60]);
            output.advance(60);
        }
        taken.extend_from_slice(output.pending());
        output.advance(usize::MAX);
        let expected: Vec<u8> = (0..200).flat_map(|round| [round; 100]).collect();
        assert_eq!(taken, expected);
        assert_eq!(output.len(), 0);
    }

    #[test]
    fn a_burst_leaves_64_kib() {
        let mut output = Output::default();
        output.tail().resize(1 << 20, 0);
        output.advance(1 << 20);
        assert_eq!(output.buffer.capacity(), 64 << 10);
    }
}

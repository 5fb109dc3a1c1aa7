//! Bytes on their way to one side.
//!
//! One growing buffer, written from the front. It keeps the capacity that recent traffic needed
//! and lets go of what a burst left behind, so that idle connections stay small.
//!
//! Frames of our own wait in `early` until the other end's first bytes went before them: a server's
//! first frame has to be its SETTINGS, and they may not be here yet.

/// Capacity that is always kept.
const SMALL: usize = 4 << 10;

/// Capacity that is kept at most, however much went through: a read of 64 KiB and the beginning of a
/// frame from the one before it.
const LARGE: usize = 96 << 10;

#[derive(Debug, Default)]
pub(crate) struct Output {
    buffer: Vec<u8>,
    written: usize,
    early: Vec<u8>,
    begun: bool,
    /// Most bytes that recently waited, decaying by an eighth with every emptying.
    peak: usize,
}

// === impl Output ===

impl Output {
    pub(crate) fn pending(&self) -> &[u8] {
        &self.buffer[self.written..]
    }

    /// Bytes that wait, those of `early` included.
    pub(crate) fn len(&self) -> usize {
        self.buffer.len() - self.written + self.early.len()
    }

    /// Appends what the other end sent.
    pub(crate) fn append(&mut self, bytes: &[u8]) {
        self.compact(bytes.len());
        self.grow(bytes.len());
        self.buffer.extend_from_slice(bytes);
        if !self.begun {
            self.begun = true;
            self.buffer.append(&mut self.early);
            self.early = Vec::new();
        }
    }

    /// Where a frame of our own is written to, whole.
    pub(crate) fn own(&mut self) -> &mut Vec<u8> {
        if self.begun {
            self.compact(0);
            &mut self.buffer
        } else {
            &mut self.early
        }
    }

    /// Forgets the first `count` pending bytes.
    pub(crate) fn advance(&mut self, count: usize) {
        self.peak = self.peak.max(self.buffer.len());
        self.written = self.buffer.len().min(self.written + count);
        if self.written == self.buffer.len() {
            self.buffer.clear();
            self.written = 0;
            self.shrink();
        }
    }

    /// Moves what waits to the front before the buffer would have to grow for `additional` bytes.
    fn compact(&mut self, additional: usize) {
        let full = self.buffer.len() + additional > self.buffer.capacity();
        if self.written > 0 && (full || self.written > self.buffer.len() / 2) {
            self.buffer.drain(..self.written);
            self.written = 0;
        }
    }

    /// Grows to what is kept and no further for as long as that is enough: what is doubled beyond
    /// it would be given back at every emptying, and taken again at the next read.
    fn grow(&mut self, additional: usize) {
        let needed = self.buffer.len() + additional;
        if (self.buffer.capacity() + 1..=LARGE).contains(&needed) {
            let capacity = needed.max(2 * self.buffer.capacity()).min(LARGE);
            self.buffer.reserve_exact(capacity - self.buffer.len());
        }
    }

    fn shrink(&mut self) {
        let capacity = self.buffer.capacity();
        let enough = self.peak.clamp(SMALL, LARGE);
        if capacity > LARGE || capacity > 2 * enough {
            self.buffer.shrink_to(enough);
        }
        self.peak -= self.peak / 8;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(output: &mut Output) -> Vec<u8> {
        let bytes = output.pending().to_vec();
        output.advance(bytes.len());
        bytes
    }

    #[test]
    fn own_frames_wait_for_the_first_bytes_of_the_other_end() {
        let mut output = Output::default();
        output.own().extend_from_slice(b"own");
        assert_eq!(output.pending(), b"");
        assert_eq!(output.len(), 3);
        output.append(b"first ");
        output.own().extend_from_slice(b", own");
        assert_eq!(drained(&mut output), b"first own, own");
        assert_eq!(output.len(), 0);
    }

    #[test]
    fn bytes_come_out_as_they_went_in_however_they_are_taken() {
        let mut output = Output::default();
        let mut taken = Vec::new();
        for round in 0..200_u8 {
            output.append(&[round; 100]);
            let some = output.pending()[..60].to_vec();
            output.advance(60);
            taken.extend_from_slice(&some);
        }
        taken.extend_from_slice(&drained(&mut output));
        let expected: Vec<u8> = (0..200).flat_map(|round| [round; 100]).collect();
        assert_eq!(taken, expected);
    }

    #[test]
    fn steady_reads_of_64_kib_use_one_buffer_that_is_kept() {
        let mut output = Output::default();
        let mut capacities = Vec::new();
        for _ in 0..20 {
            // The rest of a frame that began in the read before, then what was read.
            output.append(&[0; 16_000]);
            output.append(&[0; 64 << 10]);
            capacities.push(output.buffer.capacity());
            drained(&mut output);
        }
        assert_eq!(capacities, [81_536; 20]);
    }

    #[test]
    fn burst_leaves_96_kib_and_quiet_traffic_less() {
        let mut output = Output::default();
        output.append(&[0; 1 << 20]);
        drained(&mut output);
        assert_eq!(output.buffer.capacity(), 96 << 10);
        for _ in 0..50 {
            output.append(&[0; 100]);
            drained(&mut output);
        }
        assert!(output.buffer.capacity() <= 2 * SMALL);
    }
}

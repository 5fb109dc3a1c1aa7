//! Bytes on their way to one side.
//!
//! One growing buffer, written from the front. It keeps the capacity that recent traffic needed
//! and lets go of what a burst left behind, so that idle connections stay small.
//!
//! What passes as it came is not copied where that can be avoided: as long as the frames of a chunk
//! that go on lie side by side in it, only their place is noted, and the caller writes them from
//! there ([`Output::end_chunk`]).
//! A message that was held has a buffer of its own, from which it is written too.
//!
//! Frames of our own wait in `own` for as long as they may not be written: until the other end's
//! first bytes went before them, for a server's first frame has to be its SETTINGS; and while a frame
//! of the other end has begun and not ended, for nothing may come within it.

use std::ops::Range;

/// Capacity that is always kept.
const SMALL: usize = 4 << 10;

/// Capacity that is kept at most, however much went through: a read of 64 KiB and the beginning of a
/// frame from the one before it.
const LARGE: usize = 96 << 10;

#[derive(Debug, Default)]
pub(crate) struct Output {
    buffer: Vec<u8>,
    written: usize,
    /// The payload of the frame whose head ends the buffer, if that was handed over, and how much of it
    /// was written.
    payload: Vec<u8>,
    payload_written: usize,
    /// What of the chunk that is being read goes on behind that.
    through: Range<usize>,
    /// What goes on behind that.
    behind: Vec<u8>,
    /// Frames of our own that may not be written yet.
    own: Vec<u8>,
    /// Between two frames of the other end, the first of which is here.
    between: bool,
    /// Most bytes that recently waited, decaying by a 64th with every emptying: a long reply is a dozen of
    /// those, and room that is given back amid it is taken again page by page.
    peak: usize,
}

/// Bytes of the other end.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Piece<'a> {
    pub(crate) bytes: &'a [u8],
    /// Where they begin in the chunk that is being read, if they lie in it.
    pub(crate) at: Option<usize>,
}

// === impl Piece ===

impl<'a> Piece<'a> {
    /// Bytes that lie in no chunk.
    pub(crate) fn apart(bytes: &'a [u8]) -> Self {
        Self { bytes, at: None }
    }
}

// === impl Output ===

impl Output {
    /// What is to be written, in this order.
    pub(crate) fn pending(&self) -> [&[u8]; 2] {
        let payload = &self.payload[self.payload_written..];
        [&self.buffer[self.written..], payload]
    }

    /// Bytes that wait, those of our own and of the chunk that is being read included.
    pub(crate) fn len(&self) -> usize {
        self.writable() + self.own.len()
    }

    /// Those of them that may be written: the rest waits for more of the other end.
    pub(crate) fn writable(&self) -> usize {
        let waiting = self.pending().map(<[u8]>::len);
        waiting.iter().sum::<usize>() + self.through.len() + self.behind.len()
    }

    /// Appends whole frames of the other end, or the end of one.
    pub(crate) fn append(&mut self, piece: Piece<'_>) {
        self.put(piece);
        if !self.between {
            self.between = true;
            let own = std::mem::take(&mut self.own);
            self.own().extend_from_slice(&own);
        }
    }

    /// Appends part of a frame whose end is still to come.
    pub(crate) fn append_part(&mut self, piece: Piece<'_>) {
        self.put(piece);
        self.between = false;
    }

    /// Puts back what could not be written.
    pub(crate) fn keep(&mut self, unwritten: &[u8]) {
        self.put(Piece::apart(unwritten));
    }

    fn put(&mut self, piece: Piece<'_>) {
        let Piece { bytes, at } = piece;
        if let Some(at) = at
            && self.reaches(at)
        {
            self.through.end = at + bytes.len();
        } else if self.through.is_empty() {
            self.copy(bytes);
        } else {
            self.behind.extend_from_slice(bytes);
        }
    }

    /// Where a frame of our own is written to, whole.
    pub(crate) fn own(&mut self) -> &mut Vec<u8> {
        if !self.between {
            &mut self.own
        } else if self.through.is_empty() {
            self.join();
            self.compact(0);
            &mut self.buffer
        } else {
            &mut self.behind
        }
    }

    /// Whether the payload of the next frame of our own can be handed over.
    pub(crate) fn takes_payload(&self) -> bool {
        self.between && self.through.is_empty() && self.payload.is_empty()
    }

    /// Takes the payload of the frame whose head was just written to [`Output::own`].
    pub(crate) fn hand_over(&mut self, payload: Vec<u8>) {
        self.payload = payload;
    }

    /// Puts the payload into the buffer: something comes behind it.
    fn join(&mut self) {
        if !self.payload.is_empty() {
            let payload = std::mem::take(&mut self.payload);
            let written = std::mem::take(&mut self.payload_written);
            self.copy(&payload[written..]);
        }
    }

    /// The chunk was read. Returns what of it is to be written behind [`Output::pending`], from
    /// where it lies; it is not kept here.
    pub(crate) fn end_chunk<'a>(&mut self, chunk: &'a [u8]) -> &'a [u8] {
        let through = &chunk[std::mem::take(&mut self.through)];
        if self.behind.is_empty() {
            return through;
        }
        let behind = std::mem::take(&mut self.behind);
        self.copy(through);
        self.copy(&behind);
        &[]
    }

    /// Whether a piece at this place of the chunk continues what goes through.
    fn reaches(&mut self, at: usize) -> bool {
        if self.through.is_empty() {
            self.through = at..at;
        }
        self.behind.is_empty() && self.through.end == at
    }

    fn copy(&mut self, bytes: &[u8]) {
        self.join();
        self.compact(bytes.len());
        self.grow(bytes.len());
        self.buffer.extend_from_slice(bytes);
    }

    /// Forgets the first `count` pending bytes. Returns the buffer of the payload that was handed over if
    /// all of it was written.
    pub(crate) fn advance(&mut self, count: usize) -> Option<Vec<u8>> {
        let of_buffer = count.min(self.buffer.len() - self.written);
        self.peak = self.peak.max(self.buffer.len()).min(LARGE);
        self.written += of_buffer;
        if self.written == self.buffer.len() {
            self.buffer.clear();
            self.written = 0;
            self.shrink();
        }
        let unwritten = self.payload.len() - self.payload_written;
        self.payload_written += unwritten.min(count - of_buffer);
        let is_through = !self.payload.is_empty() && self.payload_written == self.payload.len();
        is_through.then(|| {
            self.payload_written = 0;
            std::mem::take(&mut self.payload)
        })
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
        self.peak -= self.peak / 64;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn drained(output: &mut Output) -> Vec<u8> {
        let bytes = output.pending().concat();
        output.advance(bytes.len());
        bytes
    }

    #[test]
    fn own_frames_wait_for_the_first_bytes_of_the_other_end() {
        let mut output = Output::default();
        output.own().extend_from_slice(b"own");
        assert_eq!(output.pending().concat(), b"");
        assert_eq!(output.len(), 3);
        output.append(Piece::apart(b"first "));
        output.own().extend_from_slice(b", own");
        assert_eq!(drained(&mut output), b"first own, own");
        assert_eq!(output.len(), 0);
    }

    #[test]
    fn bytes_come_out_as_they_went_in_however_they_are_taken() {
        let mut output = Output::default();
        let mut taken = Vec::new();
        for round in 0..200_u8 {
            output.append(Piece::apart(&[round; 100]));
            let some = output.pending()[0][..60].to_vec();
            output.advance(60);
            taken.extend_from_slice(&some);
        }
        taken.extend_from_slice(&drained(&mut output));
        let expected: Vec<u8> = (0..200).flat_map(|round| [round; 100]).collect();
        assert_eq!(taken, expected);
    }

    #[test]
    fn a_payload_is_written_from_its_own_buffer_unless_something_comes_behind_it() {
        for (written, behind) in [(0, false), (4, false), (6, false), (0, true), (6, true)] {
            let mut output = Output::default();
            output.append(Piece::apart(b"head "));
            assert!(output.takes_payload());
            output.hand_over(b"payload".to_vec());
            assert!(!output.takes_payload());
            assert_eq!(output.len(), 12);
            let mut taken = output.pending().concat()[..written].to_vec();
            assert_eq!(output.advance(written), None);
            if behind {
                output.own().extend_from_slice(b" own");
                output.append(Piece::apart(b" other"));
            }
            let rest = output.pending().concat();
            taken.extend_from_slice(&rest);
            let given_back = output.advance(rest.len());
            let (all, buffer) = match behind {
                true => (&b"head payload own other"[..], None),
                false => (&b"head payload"[..], Some(b"payload".to_vec())),
            };
            assert_eq!((&*taken, given_back), (all, buffer));
            assert_eq!((output.len(), output.takes_payload()), (0, true));
        }
    }

    #[test]
    fn steady_reads_of_64_kib_use_one_buffer_that_is_kept() {
        let mut output = Output::default();
        let mut capacities = Vec::new();
        for _ in 0..20 {
            // The rest of a frame that began in the read before, then what was read.
            output.append(Piece::apart(&[0; 16_000]));
            output.append(Piece::apart(&[0; 64 << 10]));
            capacities.push(output.buffer.capacity());
            drained(&mut output);
        }
        assert_eq!(capacities, [81_536; 20]);
    }

    #[test]
    fn burst_leaves_96_kib_and_quiet_traffic_less() {
        let mut output = Output::default();
        output.append(Piece::apart(&[0; 1 << 20]));
        drained(&mut output);
        assert_eq!(output.buffer.capacity(), 96 << 10);
        for _ in 0..300 {
            output.append(Piece::apart(&[0; 100]));
            drained(&mut output);
        }
        assert!(output.buffer.capacity() <= 2 * SMALL);
    }
}

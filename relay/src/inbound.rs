//! The reading half of one side: frames cut out of whatever chunks arrive, header blocks put
//! together, and the state that follows the side's encoder.

use crate::StreamId;
use crate::frame::{self, Frame, HEAD_LEN, Head, flag, kind};
use crate::hpack::{self, Decoder, Item};
use crate::output::{Output, Piece};
use crate::settings::Settings;
use crate::violation::Breach;

/// What every client sends first.
pub(crate) const PREFACE: &[u8; 24] = b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n";

/// Most bytes that may wait at the receiver of blocks that are encoded anew. A field costs its sender
/// one byte and the receiver four thousand, and many blocks come in one chunk; no honest sender gets
/// near.
const MAX_WAITING: usize = 2 << 20;

/// Largest buffer for part of a frame that is kept when it is empty.
const KEPT: usize = 4 << 10;

/// Most room that is made for a frame before it arrives.
const RESERVED: usize = 16 << 10;

#[derive(Debug, Default)]
pub(crate) struct Inbound {
    /// The beginning of a frame whose rest has not arrived.
    partial: Vec<u8>,
    /// A DATA frame whose beginning went on already.
    pub(crate) passing: Option<Passing>,
    /// A header block whose CONTINUATION has not arrived.
    open_block: Option<OpenBlock>,
    /// Its first SETTINGS were seen.
    pub(crate) begun: bool,
    pub(crate) decoder: Decoder,
    pub(crate) rewrite: Rewrite,
    /// What this side announced; it binds the other side's frames.
    pub(crate) settings: Settings,
}

/// A frame that goes on as it comes.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Passing {
    pub(crate) stream: StreamId,
    pub(crate) ends_stream: bool,
    /// Bytes that are still to come.
    pub(crate) left: usize,
}

/// A header block that comes in several frames.
#[derive(Debug)]
pub(crate) struct OpenBlock {
    stream: StreamId,
    ends_stream: bool,
    priority: Option<[u8; 5]>,
    frames: Vec<u8>,
    /// Bytes of the first of them.
    first: usize,
    /// What is in that, and when the block is whole what is in the others.
    fragment: Vec<u8>,
}

/// A whole header block.
#[derive(Debug)]
pub(crate) struct Block<'a> {
    pub(crate) stream: StreamId,
    pub(crate) ends_stream: bool,
    pub(crate) priority: Option<[u8; 5]>,
    /// Its frames as they came.
    pub(crate) frames: Piece<'a>,
    /// Its HPACK bytes.
    pub(crate) fragment: &'a [u8],
}

/// Encoding header blocks anew, once one of them could not go on as it came: from then on the
/// receiver's dynamic table is not the one that the sender means.
#[derive(Debug, Default)]
pub(crate) struct Rewrite {
    pub(crate) active: bool,
    /// What dropped blocks set; the next block carries it.
    resizes: Option<Resizes>,
    /// The smallest table that the receiver asked for since it was sent a block.
    owed: Option<usize>,
    block: Vec<u8>,
}

/// Table sizes that an encoder sets between two blocks. Those between matter to nobody
/// (RFC 7541, section 4.2).
#[derive(Clone, Copy, Debug)]
pub(crate) struct Resizes {
    smallest: usize,
    last: usize,
}

// === impl Inbound ===

impl Inbound {
    /// Cuts the next frame out of `bytes`, which begin at `offset` of their chunk, or keeps what
    /// there is of it. The frame lies in `bytes` if it came whole, else in `spare`, which is lent for
    /// the purpose.
    pub(crate) fn next_frame<'a: 'f, 'f>(
        &mut self,
        bytes: &mut &'a [u8],
        offset: usize,
        limit: usize,
        spare: &'f mut Vec<u8>,
    ) -> Result<Option<Frame<'f>>, (StreamId, Breach)> {
        if self.partial.is_empty()
            && let Some(head) = Head::read(bytes)
        {
            check_head(head, limit)?;
            if let Some((whole, rest)) = bytes.split_at_checked(HEAD_LEN + head.length) {
                *bytes = rest;
                return Ok(Some(Frame {
                    head,
                    bytes: whole,
                    at: Some(offset),
                }));
            }
        }
        self.take(bytes, HEAD_LEN);
        let Some(head) = Head::read(&self.partial) else {
            return Ok(None);
        };
        check_head(head, limit)?;
        self.partial.reserve_exact(head.length.min(RESERVED));
        self.take(bytes, HEAD_LEN + head.length);
        if self.partial.len() < HEAD_LEN + head.length {
            return Ok(None);
        }
        std::mem::swap(&mut self.partial, spare);
        Ok(Some(Frame {
            head,
            bytes: spare,
            at: None,
        }))
    }

    /// The head of the next frame, if there is one and `bytes` do not hold all of it.
    pub(crate) fn cut_short(
        &self,
        bytes: &[u8],
        limit: usize,
    ) -> Result<Option<Head>, (StreamId, Breach)> {
        if !self.partial.is_empty() {
            return Ok(None);
        }
        let head = Head::read(bytes).filter(|head| bytes.len() < HEAD_LEN + head.length);
        head.map(|head| check_head(head, limit).map(|()| head))
            .transpose()
    }

    /// Gives the buffer of a frame back.
    pub(crate) fn recycle(&mut self, mut spare: Vec<u8>) {
        if self.partial.capacity() == 0 && spare.capacity() <= KEPT {
            spare.clear();
            self.partial = spare;
        }
    }

    /// Moves bytes until `target` of the frame are here.
    fn take(&mut self, bytes: &mut &[u8], target: usize) {
        let count = target.saturating_sub(self.partial.len()).min(bytes.len());
        let (taken, rest) = bytes.split_at(count);
        self.partial.extend_from_slice(taken);
        *bytes = rest;
    }

    /// Whether a frame may stand where it does: SETTINGS first, nothing inside a header block.
    pub(crate) fn check_place(&mut self, head: Head) -> Result<(), Breach> {
        if !self.begun {
            if head.kind != kind::SETTINGS || head.has(flag::ACK) {
                return Err(Breach::OutOfPlace("first frame is not SETTINGS"));
            }
            self.begun = true;
        }
        let continues = head.kind == kind::CONTINUATION;
        match &self.open_block {
            Some(open) if !continues || open.stream != head.stream => {
                Err(Breach::OutOfPlace("frame inside a header block"))
            }
            None if continues => Err(Breach::OutOfPlace("CONTINUATION of no header block")),
            _ => Ok(()),
        }
    }

    /// Takes a HEADERS frame that does not end its block, or a CONTINUATION. Returns the block's
    /// buffers when it is whole.
    pub(crate) fn collect(
        &mut self,
        frame: &Frame<'_>,
        limit: usize,
    ) -> Result<Option<OpenBlock>, Breach> {
        let open = if let Some(open) = &mut self.open_block {
            open
        } else {
            let (priority, fragment) = first_fragment(frame)?;
            self.open_block.insert(OpenBlock {
                stream: frame.head.stream,
                ends_stream: frame.head.ends_stream(),
                priority,
                frames: Vec::new(),
                first: frame.bytes.len(),
                fragment: fragment.to_vec(),
            })
        };
        open.frames.extend_from_slice(frame.bytes);
        if open.frames.len() > limit {
            return Err(Breach::HeaderBlock { limit });
        }
        if !frame.head.has(flag::END_HEADERS) {
            return Ok(None);
        }
        Ok(self.open_block.take().map(OpenBlock::joined))
    }
}

fn check_head(head: Head, limit: usize) -> Result<(), (StreamId, Breach)> {
    let length = head.length;
    if length > limit {
        return Err((head.stream, Breach::FrameSize { length, limit }));
    }
    head.check_shape().map_err(|breach| (head.stream, breach))
}

/// The priority fields and the HPACK bytes of a HEADERS frame.
pub(crate) fn first_fragment<'a>(frame: &Frame<'a>) -> Result<(Option<[u8; 5]>, &'a [u8]), Breach> {
    let payload = frame.unpadded()?;
    if !frame.head.has(flag::PRIORITY) {
        return Ok((None, payload));
    }
    let (priority, fragment) = payload
        .split_first_chunk()
        .ok_or(Breach::Malformed("HEADERS"))?;
    Ok((Some(*priority), fragment))
}

// === impl OpenBlock ===

impl OpenBlock {
    /// Puts what is in its frames together. Until it is whole nobody needs that twice.
    fn joined(mut self) -> Self {
        let mut rest = &self.frames[self.first..];
        while let Some(head) = Head::read(rest) {
            let (frame, next) = rest.split_at(HEAD_LEN + head.length);
            self.fragment.extend_from_slice(&frame[HEAD_LEN..]);
            rest = next;
        }
        self
    }

    pub(crate) fn as_block(&self) -> Block<'_> {
        Block {
            stream: self.stream,
            ends_stream: self.ends_stream,
            priority: self.priority,
            frames: Piece::apart(&self.frames),
            fragment: &self.fragment,
        }
    }
}

// === impl Resizes ===

impl Resizes {
    pub(crate) fn to(size: usize) -> Self {
        Self {
            smallest: size,
            last: size,
        }
    }

    fn and(self, size: usize) -> Self {
        Self {
            smallest: self.smallest.min(size),
            last: size,
        }
    }

    pub(crate) fn write(self, block: &mut Vec<u8>) {
        hpack::write_resize(block, self.smallest);
        if self.last != self.smallest {
            hpack::write_resize(block, self.last);
        }
    }
}

// === impl Rewrite ===

impl Rewrite {
    /// Starts a block.
    pub(crate) fn start(&mut self) {
        self.block.clear();
        self.block.shrink_to(KEPT);
        if let Some(resizes) = self.resizes.take() {
            resizes.write(&mut self.block);
        }
    }

    /// Adds an item, up to one past the limit, which [`Rewrite::finish`] then finds.
    pub(crate) fn push(&mut self, item: Item<'_>, limit: usize) {
        if self.block.len() > limit {
            return;
        }
        match item {
            Item::Resize(size) => hpack::write_resize(&mut self.block, size),
            Item::Field { name, value, never } => {
                hpack::write_literal(&mut self.block, name, value, never);
            }
        }
    }

    /// Keeps a table-size update of a block that is dropped.
    pub(crate) fn keep_resize(&mut self, item: Item<'_>) {
        if let Item::Resize(size) = item {
            let before = self.resizes;
            self.resizes = Some(before.map_or(Resizes::to(size), |it| it.and(size)));
        }
    }

    /// The receiver was told that its table size is respected, so the next block has to begin with
    /// an update if the size went down. The sender's will; one of ours has to as well.
    pub(crate) fn owe(&mut self, limit: usize) {
        self.owed = Some(self.owed.map_or(limit, |owed| owed.min(limit)));
    }

    /// What a block of our own has to begin with; `table_size` is the sender's choice so far, of which
    /// dropped blocks may have told.
    pub(crate) fn own_resizes(&mut self, table_size: usize) -> Option<Resizes> {
        let owed = self.owed.take().filter(|owed| *owed < table_size);
        match (self.resizes.take(), owed) {
            (Some(dropped), Some(owed)) => Some(dropped.and(owed)),
            (None, Some(owed)) => Some(Resizes::to(owed)),
            (dropped, None) => dropped,
        }
    }

    /// A block of the sender's goes on.
    pub(crate) fn passed(&mut self) {
        self.owed = None;
    }

    /// Writes the block to its receiver.
    pub(crate) fn finish(
        &mut self,
        of: &Block<'_>,
        limit: usize,
        to: &mut Output,
    ) -> Result<(), Breach> {
        if self.block.len() > limit {
            return Err(Breach::HeaderBlock { limit });
        }
        if to.len() > MAX_WAITING {
            let what = "bytes of header blocks waiting";
            let limit = MAX_WAITING;
            return Err(Breach::TooMany { what, limit });
        }
        frame::headers(
            to.own(),
            of.stream,
            of.ends_stream,
            of.priority,
            &self.block,
        );
        Ok(())
    }
}

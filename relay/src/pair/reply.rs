//! Frames of the runtime: forwarded as they came, looked at where the stream is claimed, and
//! swallowed where we had answered already.

use crate::frame::{Frame, HEAD_LEN, kind, window_update};
use crate::hpack::Item;
use crate::inbound::{Block, Passing};
use crate::output::Piece;
use crate::pair::Pair;
use crate::stream::Stream;
use crate::violation::Breach;
use crate::{Event, Side, StreamId};

impl Pair {
    pub(super) fn runtime_block(&mut self, block: &Block<'_>) -> Result<(), Breach> {
        let id = block.stream;
        if self.is_idle(id) {
            return Err(Breach::OutOfPlace("HEADERS on an idle stream"));
        }
        let stream = self.streams.get(&id);
        if stream.is_some_and(|stream| stream.runtime_ended) {
            return Err(Breach::OutOfPlace("HEADERS after the end of its stream"));
        }
        let buried = stream.is_some_and(|stream| stream.buried);
        let rewrite = &mut self.runtime.rewrite;
        // The client never sees what this block puts into the table.
        rewrite.active |= buried;
        if !buried {
            rewrite.start();
        }
        let limit = self.limits.header_block_of(Side::Runtime);
        let mut grpc_status = None;
        self.runtime.decoder.decode(block.fragment, |item| {
            if buried {
                rewrite.keep_resize(item);
            } else if rewrite.active {
                rewrite.push(item, limit);
            }
            if let Item::Field {
                name: b"grpc-status",
                value,
                ..
            } = item
            {
                grpc_status = status_code(value);
            }
        })?;
        if buried {
            return Ok(());
        }
        self.forward_block(Side::Runtime, block)?;
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.reply_begun = true;
        }
        if block.ends_stream {
            self.runtime_ended(id, grpc_status);
        }
        Ok(())
    }

    pub(super) fn runtime_data(&mut self, frame: &Frame<'_>) -> Result<(), Breach> {
        let id = frame.head.stream;
        if self.is_idle(id) {
            return Err(Breach::OutOfPlace("DATA on an idle stream"));
        }
        if let Some(stream) = self.streams.get_mut(&id) {
            if stream.buried {
                let length = u32::try_from(frame.head.length).expect("24 bits");
                self.counters.swallowed_bytes += u64::from(length);
                if length > 0 {
                    window_update(self.to_runtime.own(), 0, length);
                }
                return Ok(());
            }
            if stream.runtime_ended {
                return Err(Breach::OutOfPlace("DATA after the end of its stream"));
            }
            if let Some(claim) = &mut stream.claim {
                let limit = self.limits.reply_message;
                claim.reply.push(frame.unpadded()?, limit);
            }
        }
        self.forward(Side::Runtime, frame.piece());
        if frame.head.ends_stream() {
            self.runtime_ended(id, None);
        }
        Ok(())
    }

    /// Lets DATA that has not come to its end go on as far as it is here, where nobody looks at it:
    /// most of a large reply is never copied then. False if this is nothing of the kind.
    pub(super) fn runtime_data_part(
        &mut self,
        bytes: &mut &[u8],
        offset: usize,
        limit: usize,
    ) -> Result<bool, (StreamId, Breach)> {
        let mut passing = match self.runtime.passing.take() {
            Some(passing) => passing,
            None => match self.runtime.cut_short(bytes, limit)? {
                Some(head) if head.kind == kind::DATA && self.is_unwatched(head.stream) => {
                    self.counters.frames += 1;
                    let place = self.runtime.check_place(head);
                    place.map_err(|breach| (head.stream, breach))?;
                    Passing {
                        stream: head.stream,
                        ends_stream: head.ends_stream(),
                        left: HEAD_LEN + head.length,
                    }
                }
                _ => return Ok(false),
            },
        };
        let (part, rest) = bytes.split_at(bytes.len().min(passing.left));
        *bytes = rest;
        passing.left -= part.len();
        let piece = Piece {
            bytes: part,
            at: Some(offset),
        };
        if passing.left > 0 {
            self.to_client.append_part(piece);
            self.runtime.passing = Some(passing);
        } else {
            self.to_client.append(piece);
            if passing.ends_stream {
                self.runtime_ended(passing.stream, None);
            }
        }
        Ok(true)
    }

    /// Whether DATA of the runtime on this stream is forwarded, and that is all.
    fn is_unwatched(&self, id: StreamId) -> bool {
        let watched =
            |stream: &Stream| stream.buried || stream.runtime_ended || stream.claim.is_some();
        !self.is_idle(id) && !self.streams.get(&id).is_some_and(watched)
    }

    /// END_STREAM of the runtime was forwarded.
    fn runtime_ended(&mut self, id: StreamId, grpc_status: Option<u32>) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        stream.runtime_ended = true;
        let mut early = false;
        if let Some(claim) = &mut stream.claim {
            early = claim.hold.is_holding() || !stream.queue.is_done();
            let tag = claim.tag;
            let message = claim.reply.take();
            self.events.push_back(Event::Response {
                stream: id,
                tag,
                grpc_status,
                message,
            });
        }
        if early {
            self.answered_early(id);
        }
        self.close_if_done(id);
    }

    /// The runtime answered without the message. It will not be sent, and what the client still has
    /// to send is not wanted.
    fn answered_early(&mut self, id: StreamId) {
        if let Some(stream) = self.detach(id) {
            self.bury(id, stream.client_ended);
        }
    }

    pub(super) fn runtime_reset(&mut self, frame: &Frame<'_>) -> Result<(), Breach> {
        let id = frame.head.stream;
        if self.is_idle(id) {
            return Err(Breach::OutOfPlace("RST_STREAM on an idle stream"));
        }
        if self.is_buried(id) {
            return Ok(());
        }
        self.forward(Side::Runtime, frame.piece());
        self.gone(id, Side::Runtime);
        Ok(())
    }

    /// Credit reaches the client by way of the ledgers. With nothing held that is the same frame at
    /// the same place.
    pub(super) fn runtime_window_update(&mut self, frame: &Frame<'_>) -> Result<(), Breach> {
        let id = frame.head.stream;
        let increment = frame.first_u32() & 0x7fff_ffff;
        if id == 0 {
            if increment == 0 {
                return Err(Breach::Malformed("WINDOW_UPDATE"));
            }
            return self.ledger.granted(increment);
        }
        if self.is_idle(id) {
            return Err(Breach::OutOfPlace("WINDOW_UPDATE on an idle stream"));
        }
        match self.streams.get_mut(&id) {
            Some(stream) if stream.buried => Ok(()),
            Some(stream) if increment > 0 && !(stream.client_ended && stream.queue.is_done()) => {
                stream.window.granted(increment)?;
                self.line_up(id);
                self.settle_stream(id);
                Ok(())
            }
            _ => {
                self.forward(Side::Runtime, frame.piece());
                Ok(())
            }
        }
    }
}

/// A status has at most ten digits; whatever is longer is none, and not worth reading.
fn status_code(value: &[u8]) -> Option<u32> {
    if value.len() > 10 {
        return None;
    }
    str::from_utf8(value).ok()?.parse().ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_status_is_a_number_of_at_most_ten_digits() {
        assert_eq!(status_code(b"0"), Some(0));
        assert_eq!(status_code(b"4294967295"), Some(u32::MAX));
        for bad in [&b""[..], b"-1", b"x", b"4294967296", b"00000000000000"] {
            assert_eq!(status_code(bad), None, "{bad:?}");
        }
    }
}

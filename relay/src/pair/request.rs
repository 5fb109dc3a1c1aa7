//! Frames of the client: which streams are claimed, and how their messages are held.

use std::time::Duration;

use crate::claims::Kind;
use crate::frame::Frame;
use crate::hpack::Item;
use crate::inbound::Block;
use crate::pair::Pair;
use crate::stream::{Claim, Hold, PREFIX, Stream};
use crate::violation::Breach;
use crate::{Event, Side, StreamId, Tag, Unopened};

/// What a request's header block says to us.
#[derive(Default)]
struct Opening {
    path_seen: bool,
    path_repeated: bool,
    tag: Option<Tag>,
    endless: bool,
    timeout: Option<Duration>,
    length_given: bool,
}

impl Pair {
    pub(super) fn client_block(&mut self, block: &Block<'_>) -> Result<(), Breach> {
        match self.streams.get(&block.stream) {
            Some(stream) if stream.buried => return self.swallow(block),
            Some(_) => return self.client_trailers(block),
            // Trailers that crossed a reset.
            None if block.ends_stream && !self.is_idle(block.stream) => return self.swallow(block),
            None => {}
        }
        if block.stream.is_multiple_of(2) || block.stream <= self.last_stream {
            return Err(Breach::OutOfPlace("HEADERS on a stream that cannot open"));
        }
        if self.drain.is_final() {
            return self.turn_away(block);
        }
        let limit = self.limits.open_streams;
        if self.open_streams() >= limit {
            let what = "open streams";
            return Err(Breach::TooMany { what, limit });
        }
        self.last_stream = block.stream;
        let opening = self.follow_opening(block)?;
        if block.stream > self.lowest_goaway {
            // It crossed the runtime's GOAWAY, and nobody will say another word about it.
            return Ok(());
        }
        let window = self.runtime.settings.initial_window();
        let claim = opening.tag.map(|tag| Claim::new(tag, opening.timeout));
        let stream = Stream {
            endless: opening.endless,
            ..Stream::new(window, claim)
        };
        self.streams.insert(block.stream, stream);
        if opening.tag.is_some_and(|tag| self.claims.announces(tag)) {
            self.announced.begins(block.stream);
        }
        if block.ends_stream {
            if opening.tag.is_some() {
                self.pass_unopened(block.stream, Unopened::Malformed);
            }
            self.client_ended(block.stream);
        } else if self.crowded {
            self.pass_unopened(block.stream, Unopened::Crowded);
        }
        self.settle_stream(block.stream);
        Ok(())
    }

    /// Drops a stream that is above the last one that our last GOAWAY names. The client may have opened it
    /// before it read that, even behind its acknowledgement, which some libraries put before what waits
    /// to be written; it counts as never taken, and is tried elsewhere (RFC 9113, section 6.8).
    fn turn_away(&mut self, block: &Block<'_>) -> Result<(), Breach> {
        self.last_stream = block.stream;
        self.swallow(block)?;
        self.entomb(block.stream);
        Ok(())
    }

    /// Takes notice of a block that does not go on.
    fn swallow(&mut self, block: &Block<'_>) -> Result<(), Breach> {
        let rewrite = &mut self.client.rewrite;
        // The runtime never sees what this block puts into the table.
        rewrite.active = true;
        let decoder = &mut self.client.decoder;
        decoder.decode(block.fragment, |item| rewrite.keep_resize(item))?;
        Ok(())
    }

    /// Decodes the block and lets it go on: as it came, or without the `content-length` that a
    /// patch would belie. In the latter case the direction is encoded anew from here on.
    fn follow_opening(&mut self, block: &Block<'_>) -> Result<Opening, Breach> {
        let limit = self.limits.header_block_of(Side::Client);
        let mut opening = Opening::default();
        let rewrite = &mut self.client.rewrite;
        let claims = &self.claims;
        rewrite.start();
        self.client.decoder.decode(block.fragment, |item| {
            let drop = match item {
                Item::Field { name, value, .. } => opening.field(claims, name, value),
                Item::Resize(_) => false,
            };
            // Whether the block has to be encoded anew is known only at its end, and the table has
            // moved on by then.
            let may_need = rewrite.active || opening.tag.is_some() || !opening.path_seen;
            if may_need && !drop {
                rewrite.push(item, limit);
            }
        })?;
        if opening.path_repeated {
            return Err(Breach::Malformed("request with two paths"));
        }
        rewrite.active |= opening.tag.is_some() && opening.length_given;
        self.forward_block(Side::Client, block)?;
        Ok(opening)
    }

    /// Lets a block go on that was just followed.
    pub(super) fn forward_block(&mut self, from: Side, block: &Block<'_>) -> Result<(), Breach> {
        let (inbound, output) = match from {
            Side::Client => (&mut self.client, &mut self.to_runtime),
            Side::Runtime => (&mut self.runtime, &mut self.to_client),
        };
        inbound.rewrite.passed();
        if inbound.rewrite.active {
            self.counters.reencoded += 1;
            let limit = self.limits.header_block_of(from);
            return inbound.rewrite.finish(block, limit, output);
        }
        output.append(block.frames);
        Ok(())
    }

    /// A second header block. gRPC clients send none; behind DATA that is still here it could not
    /// go on without either overtaking it or holding up every other stream.
    fn client_trailers(&mut self, block: &Block<'_>) -> Result<(), Breach> {
        let limit = self.limits.header_block_of(Side::Client);
        let rewrite = &mut self.client.rewrite;
        rewrite.start();
        self.client.decoder.decode(block.fragment, |item| {
            if rewrite.active {
                rewrite.push(item, limit);
            }
        })?;
        let Some(stream) = self.streams.get_mut(&block.stream) else {
            return Ok(());
        };
        if stream.client_ended || !block.ends_stream {
            return Err(Breach::OutOfPlace("second HEADERS"));
        }
        if stream.queue.len() > 0 {
            return Err(Breach::OutOfPlace("trailers behind held DATA"));
        }
        let held = stream.hold().is_holding();
        self.forward_block(Side::Client, block)?;
        if held {
            self.pass_unopened(block.stream, Unopened::Malformed);
        }
        self.client_ended(block.stream);
        // No message comes for which anything would be lent.
        self.settle_stream(block.stream);
        Ok(())
    }

    pub(super) fn client_data(&mut self, frame: &Frame<'_>) -> Result<(), Breach> {
        let id = frame.head.stream;
        let length = frame.head.length;
        self.ledger.received(length, 0)?;
        let data = frame.unpadded()?;
        let Some(stream) = self.streams.get_mut(&id).filter(|s| !s.buried) else {
            if self.is_idle(id) {
                return Err(Breach::OutOfPlace("DATA on an idle stream"));
            }
            // The runtime reset it, or we did. Our credit makes up for the bytes.
            self.counters.swallowed_bytes += length as u64;
            return Ok(());
        };
        if stream.client_ended {
            return Err(Breach::OutOfPlace("DATA after the end of its stream"));
        }
        let early = self.runtime.settings.window_ahead();
        stream.window.received(length, early)?;
        match stream.hold() {
            Hold::Passing => self.pass_data(frame, data),
            Hold::Collecting | Hold::Waiting => self.hold_data(id, data, frame),
        }
        self.settle_stream(id);
        Ok(())
    }

    /// DATA of a stream that is not held: as it came if the windows allow, else queued.
    fn pass_data(&mut self, frame: &Frame<'_>, data: &[u8]) {
        let id = frame.head.stream;
        let length = frame.head.length;
        let ends = frame.head.ends_stream();
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let window = self.ledger.sendable().min(stream.window.sendable());
        if stream.queue.is_done() && length <= window {
            self.ledger.sent(length);
            stream.window.sent(length);
            self.to_runtime.append(frame.piece());
        } else {
            stream.queue.push(data, data.len());
            stream.queue.ends = ends;
            self.ledger.hold(data.len());
            stream.window.hold(data.len());
            self.line_up(id);
        }
        if ends {
            self.client_ended(id);
        }
    }

    /// DATA of a claimed stream whose message is not released.
    fn hold_data(&mut self, id: StreamId, data: &[u8], frame: &Frame<'_>) {
        let ends = frame.head.ends_stream();
        let max_message = self.limits.max_message;
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let Some(claim) = &mut stream.claim else {
            return;
        };
        let expected = claim.total.unwrap_or(0);
        stream.queue.borrow(data.len(), &self.spare);
        stream.queue.push(data, expected);
        stream.queue.ends = ends;
        stream.window.hold(data.len());
        self.ledger.hold(data.len());
        let mut unopened = None;
        if claim.total.is_none()
            && let Some(&[compressed, a, b, c, d]) = stream.queue.pending().first_chunk::<PREFIX>()
        {
            let length = u32::from_be_bytes([a, b, c, d]) as usize;
            claim.total = Some(PREFIX.saturating_add(length));
            unopened = match compressed {
                0 if length > max_message => Some(Unopened::TooLarge),
                0 => None,
                1 => Some(Unopened::Compressed),
                _ => Some(Unopened::Malformed),
            };
        }
        let queued = stream.queue.len();
        let whole = claim.total == Some(queued);
        if claim.total.is_some_and(|total| queued > total) {
            unopened = unopened.or(Some(Unopened::SecondMessage));
        } else if ends && !whole {
            unopened = unopened.or(Some(Unopened::Malformed));
        }
        if let Some(reason) = unopened {
            self.pass_unopened(id, reason);
        } else if whole && claim.hold == Hold::Collecting {
            claim.hold = Hold::Waiting;
            self.announced.arrived(id);
            self.events.push_back(Event::Request {
                stream: id,
                tag: claim.tag,
                timeout: claim.timeout,
            });
        }
        if ends {
            self.client_ended(id);
        }
    }

    /// Gives up on opening a claimed stream.
    pub(super) fn pass_unopened(&mut self, id: StreamId, reason: Unopened) {
        let stream = self.streams.get_mut(&id);
        let Some(claim) = stream.and_then(|stream| stream.claim.as_mut()) else {
            return;
        };
        claim.hold = Hold::Passing;
        let tag = claim.tag;
        self.announced.ends(id);
        self.events.push_back(Event::Unopened {
            stream: id,
            tag,
            reason,
        });
        self.line_up(id);
    }

    /// END_STREAM came from the client.
    fn client_ended(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id) {
            stream.client_ended = true;
            self.close_if_done(id);
        }
    }

    pub(super) fn client_reset(&mut self, frame: &Frame<'_>) -> Result<(), Breach> {
        let id = frame.head.stream;
        if self.is_idle(id) {
            return Err(Breach::OutOfPlace("RST_STREAM on an idle stream"));
        }
        if !self.is_buried(id) {
            self.forward(Side::Client, frame.piece());
            self.gone(id, Side::Client);
        }
        Ok(())
    }

    pub(super) fn client_window_update(&mut self, frame: &Frame<'_>) -> Result<(), Breach> {
        let id = frame.head.stream;
        if id != 0 && self.is_idle(id) {
            return Err(Breach::OutOfPlace("WINDOW_UPDATE on an idle stream"));
        }
        if !self.is_buried(id) {
            self.forward(Side::Client, frame.piece());
        }
        Ok(())
    }

    /// Whether the client never opened it.
    pub(super) fn is_idle(&self, id: StreamId) -> bool {
        id.is_multiple_of(2) || id > self.last_stream
    }

    pub(super) fn is_buried(&self, id: StreamId) -> bool {
        self.streams.get(&id).is_some_and(|stream| stream.buried)
    }
}

// === impl Opening ===

impl Opening {
    /// Takes notice of a field. True if a block that is encoded anew is to go without it.
    fn field(&mut self, claims: &crate::Claims, name: &[u8], value: &[u8]) -> bool {
        match name {
            b":path" => {
                // A block may name one path a quarter of a million times: it is looked up once.
                if self.path_seen {
                    self.path_repeated = true;
                    return false;
                }
                self.path_seen = true;
                match claims.kind(value) {
                    Some(Kind::Claimed(tag)) => self.tag = Some(tag),
                    Some(Kind::Endless) => self.endless = true,
                    None => {}
                }
                false
            }
            b"grpc-timeout" => {
                self.timeout = grpc_timeout(value);
                false
            }
            b"content-length" => {
                self.length_given = true;
                self.tag.is_some() || !self.path_seen
            }
            _ => false,
        }
    }
}

/// Up to eight digits and a unit.
fn grpc_timeout(value: &[u8]) -> Option<Duration> {
    let (&unit, digits) = value.split_last()?;
    if digits.len() > 8 || !digits.iter().all(u8::is_ascii_digit) {
        return None;
    }
    let count: u64 = str::from_utf8(digits).ok()?.parse().ok()?;
    Some(match unit {
        b'H' => Duration::from_secs(count * 3_600),
        b'M' => Duration::from_secs(count * 60),
        b'S' => Duration::from_secs(count),
        b'm' => Duration::from_millis(count),
        b'u' => Duration::from_micros(count),
        b'n' => Duration::from_nanos(count),
        _ => return None,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn timeouts_have_at_most_eight_digits_and_a_unit() {
        assert_eq!(grpc_timeout(b"2H"), Some(Duration::from_secs(7_200)));
        assert_eq!(grpc_timeout(b"3M"), Some(Duration::from_secs(180)));
        assert_eq!(
            grpc_timeout(b"99999999S"),
            Some(Duration::from_secs(99_999_999))
        );
        assert_eq!(grpc_timeout(b"120000m"), Some(Duration::from_secs(120)));
        assert_eq!(grpc_timeout(b"5u"), Some(Duration::from_micros(5)));
        assert_eq!(grpc_timeout(b"7n"), Some(Duration::from_nanos(7)));
        for bad in [&b""[..], b"S", b"1", b"+1S", b"1s", b"100000000S", b"1.5S"] {
            assert_eq!(grpc_timeout(bad), None, "{bad:?}");
        }
    }
}

//! What goes to the runtime under its windows, and what the client is granted for it.

use std::cmp::min;

use crate::frame::{self, OWN_PAYLOAD, window_update};
use crate::pair::{HIGH_WATER, Pair};
use crate::stream::{Hold, Slot, Stream};
use crate::violation::Breach;
use crate::{Event, Side, StreamId};

impl Pair {
    /// To be called after every event: sends what may go, then grants what is due.
    pub(super) fn settle(&mut self) {
        self.send();
        if let Some(grant) = self.ledger.credit() {
            window_update(self.to_client.own(), 0, grant);
        }
    }

    /// The same for one stream: its own window and, if it is claimed, its share of what the
    /// connection needs and its wish for a slot.
    pub(super) fn settle_stream(&mut self, id: StreamId) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let mut missing = 0;
        if let Some(claim) = &stream.claim {
            missing = claim.missing(stream.queue.len());
            let granted = claim.slot == Slot::Granted;
            stream.window.set_needs(if granted { missing } else { 0 });
        }
        if !stream.client_ended
            && !stream.buried
            && let Some(grant) = stream.window.credit()
        {
            window_update(self.to_client.own(), id, grant);
        }
        if let Some(claim) = &mut stream.claim {
            let share = min(missing, stream.window.client());
            self.ledger.change_needs(claim.share, share);
            claim.share = share;
            if missing > share && claim.slot == Slot::None {
                claim.slot = Slot::Wanted;
                self.events.push_back(Event::SlotWanted { stream: id });
            }
        }
    }

    /// The client took notice of the runtime's new initial window.
    pub(super) fn shift_windows(&mut self, delta: i64) -> Result<(), Breach> {
        for stream in self.streams.values_mut() {
            stream.window.shift(delta)?;
        }
        let ids: Vec<StreamId> = self.streams.keys().copied().collect();
        for id in ids {
            self.line_up(id);
            self.settle_stream(id);
        }
        Ok(())
    }

    /// Puts a stream into the line if it has something that may go.
    pub(super) fn line_up(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id)
            && !stream.in_line
            && !stream.queue.is_done()
            && !stream.hold().is_holding()
        {
            stream.in_line = true;
            self.line.push_back(id);
        }
    }

    pub(super) fn leave_line(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id)
            && std::mem::take(&mut stream.in_line)
        {
            self.line.retain(|waiting| *waiting != id);
        }
    }

    /// Sends from the streams in line, one frame each in turn, as far as the windows and the
    /// output's room go.
    pub(super) fn send(&mut self) {
        while self.to_runtime.len() < HIGH_WATER
            && let Some(&id) = self.line.front()
        {
            let Some(stream) = self.streams.get_mut(&id) else {
                self.line.pop_front();
                continue;
            };
            let queued = stream.queue.len();
            let count = queued.min(OWN_PAYLOAD).min(stream.window.sendable());
            if count > 0 && self.ledger.sendable() == 0 {
                break;
            }
            self.line.pop_front();
            stream.in_line = false;
            if count == 0 && queued > 0 {
                // It comes back with its window.
                continue;
            }
            let count = count.min(self.ledger.sendable());
            self.send_from(id, count);
        }
    }

    /// Sends one frame with the first `count` bytes of a stream's queue.
    fn send_from(&mut self, id: StreamId, count: usize) {
        let Some(stream) = self.streams.get_mut(&id) else {
            return;
        };
        let queue = &mut stream.queue;
        let ends = queue.ends && count == queue.len();
        let whole = match self.to_runtime.takes_payload() {
            true => queue.take_whole(count),
            false => None,
        };
        let to_runtime = self.to_runtime.own();
        frame::data_head(to_runtime, id, count, ends);
        if let Some(payload) = whole {
            self.to_runtime.hand_over(payload);
        } else {
            to_runtime.extend_from_slice(&queue.pending()[..count]);
            queue.advance(count, &self.spare);
        }
        queue.ends &= !ends;
        self.ledger.sent(count);
        self.ledger.unhold(count);
        stream.window.sent(count);
        stream.window.unhold(count);
        if stream.queue.is_done() {
            self.free_slot_if_sent(id);
            self.close_if_done(id);
        } else {
            self.line_up(id);
        }
    }

    /// A released message is through: its slot is for the next one.
    pub(super) fn free_slot_if_sent(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get(&id)
            && stream.queue.is_done()
            && stream.hold() == Hold::Passing
        {
            self.free_slot(id);
        }
    }

    pub(super) fn free_slot(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get_mut(&id)
            && let Some(claim) = &mut stream.claim
        {
            if claim.slot != Slot::None {
                self.events.push_back(Event::SlotFreed { stream: id });
            }
            claim.slot = Slot::None;
        }
    }

    /// A stream was reset by either end, and the reset was forwarded.
    pub(super) fn gone(&mut self, id: StreamId, by: Side) {
        if let Some(stream) = self.detach(id)
            && let Some(claim) = stream.claim
            && !stream.runtime_ended
        {
            let tag = claim.tag;
            self.events.push_back(Event::Gone {
                stream: id,
                tag,
                by,
            });
        }
    }

    /// Forgets a stream whose every byte is through.
    pub(super) fn close_if_done(&mut self, id: StreamId) {
        if let Some(stream) = self.streams.get(&id)
            && stream.client_ended
            && stream.runtime_ended
            && stream.queue.is_done()
            && !stream.buried
        {
            self.detach(id);
        }
    }

    /// Takes a stream out of the books, with everything it held.
    pub(super) fn detach(&mut self, id: StreamId) -> Option<Stream> {
        self.free_slot(id);
        self.leave_line(id);
        self.announced.ends(id);
        let mut stream = self.streams.remove(&id)?;
        let dropped = stream.queue.clear();
        self.ledger.unhold(dropped);
        self.counters.swallowed_bytes += dropped as u64;
        if let Some(claim) = &stream.claim {
            self.ledger.change_needs(claim.share, 0);
        }
        debug_assert!(self.open_streams() > 0 || self.ledger.is_settled());
        Some(stream)
    }
}

//! The flow-control ledger: two absolute numbers instead of a list of debts.
//!
//! The client sends against what we told it; we send against what the runtime told us. Holding,
//! patching and dropping make the two differ. Whatever happened, the client's window is brought to
//! where it should be by one rule, [`Ledger::credit`]: with nothing held it passes on exactly what
//! the runtime grants, after a patch it swallows the excess, after a drop it gives credit back, and
//! for a message that has to arrive whole before it can go on it lends.
//!
//! The same ledger serves the connection and each of its streams.

use crate::violation::Breach;

/// The window of a connection, and of streams until SETTINGS say otherwise.
pub(crate) const DEFAULT_WINDOW: u32 = 65_535;

const MAX_WINDOW: i64 = 0x7fff_ffff;

#[derive(Debug)]
pub(crate) struct Ledger {
    /// What the runtime still accepts.
    runtime: i64,
    /// What the client may still send.
    client: i64,
    /// Bytes that we have and will send.
    held: i64,
    /// Bytes that have to arrive before anything held can go on.
    needs: i64,
    /// Most of them that are lent at a time.
    lends: i64,
}

// === impl Ledger ===

impl Ledger {
    pub(crate) fn new(window: u32) -> Self {
        Self {
            runtime: i64::from(window),
            client: i64::from(window),
            held: 0,
            needs: 0,
            lends: MAX_WINDOW,
        }
    }

    /// The same, lending at most `bytes` beyond what the runtime grants. What is needed comes all
    /// the same, in more steps: the client always has something of it left.
    pub(crate) fn lending_at_most(mut self, bytes: u32) -> Self {
        self.lends = i64::from(bytes);
        self
    }

    pub(crate) fn held(&self) -> usize {
        usize::try_from(self.held).unwrap_or(0)
    }

    /// What the client may still send, at least 0.
    pub(crate) fn client(&self) -> usize {
        usize::try_from(self.client).unwrap_or(0)
    }

    /// What may be sent to the runtime.
    pub(crate) fn sendable(&self) -> usize {
        usize::try_from(self.runtime).unwrap_or(0)
    }

    /// DATA of `length` bytes, padding included, came from the client, which may be `early` bytes
    /// ahead of an acknowledgement of SETTINGS.
    pub(crate) fn received(&mut self, length: usize, early: u32) -> Result<(), Breach> {
        let length = signed(length);
        // An empty frame needs no window; a window below 0 is legal after a change of SETTINGS.
        if length > 0 && length > self.client + i64::from(early) {
            return Err(Breach::WindowOverrun);
        }
        self.client -= length;
        Ok(())
    }

    /// DATA of `length` bytes went to the runtime.
    pub(crate) fn sent(&mut self, length: usize) {
        self.runtime -= signed(length);
    }

    pub(crate) fn hold(&mut self, length: usize) {
        self.held += signed(length);
    }

    pub(crate) fn unhold(&mut self, length: usize) {
        self.held -= signed(length);
        debug_assert!(self.held >= 0, "more was sent or dropped than was held");
    }

    pub(crate) fn set_needs(&mut self, needs: usize) {
        self.needs = signed(needs);
    }

    /// Replaces one stream's share of what is needed.
    pub(crate) fn change_needs(&mut self, from: usize, to: usize) {
        self.needs += signed(to) - signed(from);
    }

    /// Nothing is held or needed.
    pub(crate) fn is_settled(&self) -> bool {
        self.held == 0 && self.needs == 0
    }

    /// The runtime's WINDOW_UPDATE.
    pub(crate) fn granted(&mut self, increment: u32) -> Result<(), Breach> {
        self.runtime += i64::from(increment);
        self.check()
    }

    /// The client took notice of a new initial window.
    pub(crate) fn shift(&mut self, delta: i64) -> Result<(), Breach> {
        self.runtime += delta;
        self.client += delta;
        self.check()
    }

    /// What the client is to be granted now, if anything. To be asked after every event, DATA that
    /// only passes included: other streams drain what was lent for a held one.
    pub(crate) fn credit(&mut self) -> Option<u32> {
        let want = (self.runtime - self.held)
            .max(self.needs.min(self.lends))
            .min(MAX_WINDOW)
            - self.client;
        let grant = u32::try_from(want).ok().filter(|grant| *grant > 0)?;
        self.client += want;
        Some(grant)
    }

    fn check(&self) -> Result<(), Breach> {
        if self.runtime.max(self.client) > MAX_WINDOW {
            return Err(Breach::WindowOverflow);
        }
        Ok(())
    }
}

fn signed(length: usize) -> i64 {
    i64::try_from(length).expect("no buffer is larger than isize::MAX")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nothing_held_means_credit_as_it_came() {
        let mut ledger = Ledger::new(100);
        ledger.received(60, 0).unwrap();
        ledger.sent(60);
        assert_eq!(ledger.credit(), None);
        ledger.granted(7).unwrap();
        assert_eq!(ledger.credit(), Some(7));
        assert_eq!(ledger.credit(), None);
        assert_eq!((ledger.client(), ledger.sendable()), (47, 47));
    }

    #[test]
    fn no_more_is_lent_at_a_time_than_is_allowed() {
        let mut ledger = Ledger::new(100).lending_at_most(120);
        ledger.change_needs(0, 250);
        assert_eq!(ledger.credit(), Some(20));
        ledger.received(50, 0).unwrap();
        ledger.hold(50);
        ledger.change_needs(250, 200);
        assert_eq!(ledger.credit(), Some(50));
        ledger.granted(500).unwrap();
        assert_eq!(ledger.credit(), Some(430));
    }

    #[test]
    fn what_is_needed_is_lent_and_kept_out_of_later_credit() {
        let mut ledger = Ledger::new(100);
        ledger.change_needs(0, 250);
        assert_eq!(ledger.credit(), Some(150));
        ledger.received(250, 0).unwrap();
        ledger.hold(250);
        ledger.change_needs(250, 0);
        assert_eq!(ledger.credit(), None);
        ledger.granted(149).unwrap();
        assert_eq!(ledger.credit(), None);
        ledger.granted(2).unwrap();
        assert_eq!(ledger.credit(), Some(1));
    }

    #[test]
    fn dropped_bytes_come_back() {
        let mut ledger = Ledger::new(100);
        ledger.received(80, 0).unwrap();
        ledger.hold(80);
        ledger.unhold(80);
        assert_eq!(ledger.credit(), Some(80));
        assert!(ledger.is_settled());
    }

    #[test]
    fn window_may_be_below_zero_but_takes_nothing_then() {
        let mut ledger = Ledger::new(10);
        ledger.received(10, 0).unwrap();
        ledger.sent(10);
        ledger.shift(-5).unwrap();
        assert_eq!((ledger.client(), ledger.sendable()), (0, 0));
        assert_eq!(ledger.received(0, 0), Ok(()));
        assert_eq!(ledger.received(1, 5), Err(Breach::WindowOverrun));
        assert_eq!(ledger.received(1, 6), Ok(()));
    }

    #[test]
    fn needs_never_push_the_client_past_the_largest_window() {
        let mut ledger = Ledger::new(65_535);
        ledger.set_needs(1 << 40);
        assert_eq!(ledger.credit(), Some(0x7fff_ffff - 65_535));
        assert_eq!(ledger.client(), 0x7fff_ffff);
    }
}

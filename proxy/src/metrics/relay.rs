//! Connections, frames, and what became of claimed calls.

use super::{Metrics, register, register_in, series::Series, size};
use crate::{
    front::cri::Method,
    hub::{Answer, Untouched},
};
use koord_relay::{Counters, Side, Unopened};
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::{Registry, Unit},
};

/// Why a connection was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refused {
    /// The peer is neither root nor who we are.
    Peer,
    /// The cap on connections is reached.
    TooMany,
    /// No HTTP/2 preface came in time.
    NoPreface,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct OfSide {
    side: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    method: &'static str,
    result: &'static str,
}

#[derive(Debug)]
pub(super) struct RelayMetrics {
    connections: Counter,
    open: Gauge,
    refused: Family<Reason, Counter>,
    asked_to_go: Counter,
    violations: Family<OfSide, Counter>,
    frames: Counter,
    held_bytes: Gauge,
    swallowed_bytes: Counter,
    header_blocks_reencoded: Counter,
    calls: Series<Call, Counter>,
}

// === impl RelayMetrics ===

impl RelayMetrics {
    pub(super) fn register(r: &mut Registry) -> Self {
        Self {
            connections: register(
                r,
                "connections",
                "Client connections accepted",
                Counter::default(),
            ),
            open: register(
                r,
                "connections_open",
                "Client connections open",
                Gauge::default(),
            ),
            refused: register(
                r,
                "connections_refused",
                "Client connections closed by us before they were of use",
                Family::default(),
            ),
            asked_to_go: register(
                r,
                "connections_asked_to_go",
                "Client connections without a call that were asked to go, to make room",
                Counter::default(),
            ),
            violations: register(
                r,
                "violations",
                "Connections closed because a side broke the protocol",
                Family::default(),
            ),
            frames: register(r, "frames", "HTTP/2 frames read", Counter::default()),
            held_bytes: register_in(
                r,
                Unit::Bytes,
                "held",
                "Requests in memory, held or not yet taken by the runtime",
                Gauge::default(),
            ),
            swallowed_bytes: register_in(
                r,
                Unit::Bytes,
                "swallowed",
                "DATA of ended calls that was dropped and given back as credit",
                Counter::default(),
            ),
            header_blocks_reencoded: register(
                r,
                "header_blocks_reencoded",
                "Header blocks encoded anew",
                Counter::default(),
            ),
            calls: Series::of(register(
                r,
                "calls",
                "Claimed calls by what became of them",
                Family::default(),
            )),
        }
    }
}

// === impl Metrics ===

impl Metrics {
    pub fn connection_opened(&self) {
        self.relay.connections.inc();
        self.relay.open.inc();
    }

    pub fn connection_closed(&self) {
        self.relay.open.dec();
    }

    pub fn connection_refused(&self, reason: Refused) {
        let reason = match reason {
            Refused::Peer => "peer",
            Refused::TooMany => "too_many",
            Refused::NoPreface => "no_preface",
        };
        self.relay.refused.get_or_create(&Reason { reason }).inc();
    }

    pub fn connection_asked_to_go(&self) {
        self.relay.asked_to_go.inc();
    }

    pub fn violation(&self, side: Side) {
        let side = match side {
            Side::Client => "client",
            Side::Runtime => "runtime",
        };
        self.relay.violations.get_or_create(&OfSide { side }).inc();
    }

    pub fn messages_held(&self, bytes: usize) {
        self.relay.held_bytes.set(size(bytes));
    }

    pub fn relayed(&self, counters: &Counters) {
        // Whole, so that none is counted for nobody.
        let Counters {
            frames,
            swallowed_bytes,
            reencoded,
        } = *counters;
        self.relay.frames.inc_by(frames);
        self.relay.swallowed_bytes.inc_by(swallowed_bytes);
        self.relay.header_blocks_reencoded.inc_by(reencoded);
    }

    pub fn call_answered(&self, method: Method, answer: &Answer) {
        let result = match answer {
            Answer::Patched(_) => "patched",
            Answer::Refused(_) => "refused",
            Answer::AsIs(Untouched::Nothing) => "as_is",
            Answer::AsIs(Untouched::Observing) => "unhooked_observing",
            Answer::AsIs(Untouched::StandingBy) => "unhooked_standing_by",
            Answer::AsIs(Untouched::UnknownKoordlet) => "unhooked_unknown_koordlet",
            Answer::AsIs(Untouched::Exempt) => "unhooked_exempt",
            Answer::AsIs(Untouched::Unreadable) => "unhooked_unreadable",
            Answer::AsIs(Untouched::Unsound) => "unhooked_unsound",
            Answer::AsIs(Untouched::Unknown) => "unhooked_unknown",
            Answer::AsIs(Untouched::UnknownPod) => "unhooked_unknown_pod",
            Answer::AsIs(Untouched::TooLarge) => "unhooked_too_large",
        };
        self.call(method, result);
    }

    pub fn call_unopened(&self, method: Method, reason: Unopened) {
        let result = match reason {
            Unopened::Compressed => "unopened_compressed",
            Unopened::TooLarge => "unopened_too_large",
            Unopened::Malformed => "unopened_malformed",
            Unopened::SecondMessage => "unopened_second_message",
            Unopened::Crowded => "unopened_crowded",
            Unopened::Late => "unopened_late",
        };
        self.call(method, result);
    }

    fn call(&self, method: Method, result: &'static str) {
        let method = method.name();
        self.relay
            .calls
            .change(Call { method, result }, Counter::inc);
    }
}

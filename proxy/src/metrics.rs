//! What the proxy counts.
//!
//! One struct on a prefixed registry that is handed down; no statics. Labels come from closed
//! sets (methods, hooks, settings, reasons) and never from pods, so the number of series is fixed
//! when the process starts.

use crate::{
    front::cri::Method,
    hub::{Answer, Untouched},
    ledger::Applied,
};
use koord_model::Setting;
use koord_relay::{Counters, Side, Unopened};
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use std::{
    fmt,
    sync::atomic::AtomicU64,
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// What every name begins with.
pub const PREFIX: &str = "koord_runtime_proxy";

/// Upper bounds of hook latencies, seconds: hooks take microseconds.
const HOOK_BUCKETS: [f64; 8] = [1e-6, 5e-6, 2e-5, 1e-4, 5e-4, 2e-3, 1e-2, 1e-1];
/// Upper bounds of list latencies, seconds.
const LIST_BUCKETS: [f64; 6] = [0.01, 0.05, 0.2, 1.0, 5.0, 20.0];

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

/// How a hook failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookFailure {
    Error,
    Panic,
    Conflict,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Reason {
    reason: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct From {
    side: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Call {
    method: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Hook {
    hook: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HookResult {
    hook: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Write {
    setting: &'static str,
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    result: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Running {
    mode: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

/// Counters and gauges of one process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    connections: Counter,
    connections_open: Gauge,
    connections_refused: Family<Reason, Counter>,
    violations: Family<From, Counter>,
    frames: Counter,
    swallowed_bytes: Counter,
    header_blocks_reencoded: Counter,
    calls: Family<Call, Counter>,
    hook_runs: Family<HookResult, Counter>,
    hook_seconds: Family<Hook, Histogram>,
    hook_notices: Counter,
    kernel_settings: Family<Write, Counter>,
    pods: Gauge,
    containers: Gauge,
    relists: Family<Outcome, Counter>,
    relist_seconds: Histogram,
    policy_loads: Family<Outcome, Counter>,
    policy_issues: Gauge,
    runtime_up: Gauge,
    mode: Family<Running, Gauge>,
    start_time: Gauge<f64, AtomicU64>,
    build: Family<Build, Gauge>,
}

fn histogram(buckets: &'static [f64]) -> Histogram {
    Histogram::new(buckets.iter().copied())
}

// === impl Metrics ===

impl Metrics {
    pub fn new() -> Self {
        let mut metrics = Self {
            registry: Registry::with_prefix(PREFIX),
            connections: Counter::default(),
            connections_open: Gauge::default(),
            connections_refused: Family::default(),
            violations: Family::default(),
            frames: Counter::default(),
            swallowed_bytes: Counter::default(),
            header_blocks_reencoded: Counter::default(),
            calls: Family::default(),
            hook_runs: Family::default(),
            hook_seconds: Family::new_with_constructor(|| histogram(&HOOK_BUCKETS)),
            hook_notices: Counter::default(),
            kernel_settings: Family::default(),
            pods: Gauge::default(),
            containers: Gauge::default(),
            relists: Family::default(),
            relist_seconds: histogram(&LIST_BUCKETS),
            policy_loads: Family::default(),
            policy_issues: Gauge::default(),
            runtime_up: Gauge::default(),
            mode: Family::default(),
            start_time: Gauge::default(),
            build: Family::default(),
        };
        metrics.register_connections();
        metrics.register_decisions();
        metrics.register_process();
        metrics
    }

    fn register_connections(&mut self) {
        let r = &mut self.registry;
        r.register(
            "connections",
            "Client connections accepted",
            self.connections.clone(),
        );
        r.register(
            "connections_open",
            "Client connections open",
            self.connections_open.clone(),
        );
        r.register(
            "connections_refused",
            "Client connections closed by us before they were of use",
            self.connections_refused.clone(),
        );
        r.register(
            "violations",
            "Connections closed because a side broke the protocol",
            self.violations.clone(),
        );
        r.register("frames", "HTTP/2 frames read", self.frames.clone());
        r.register_with_unit(
            "swallowed",
            "DATA of ended calls that was dropped and given back as credit",
            Unit::Bytes,
            self.swallowed_bytes.clone(),
        );
        r.register(
            "header_blocks_reencoded",
            "Header blocks encoded anew",
            self.header_blocks_reencoded.clone(),
        );
        r.register(
            "calls",
            "Claimed calls by what became of them",
            self.calls.clone(),
        );
    }

    fn register_decisions(&mut self) {
        let r = &mut self.registry;
        r.register("hook_runs", "Runs of hooks", self.hook_runs.clone());
        r.register_with_unit(
            "hook",
            "Time that hooks took",
            Unit::Seconds,
            self.hook_seconds.clone(),
        );
        r.register(
            "hook_notices",
            "Odd input that stopped no hook, such as an unknown class",
            self.hook_notices.clone(),
        );
        r.register(
            "kernel_settings",
            "Settings held against the kernel, by what was found or done",
            self.kernel_settings.clone(),
        );
        r.register("ledger_pods", "Pods in the ledger", self.pods.clone());
        r.register(
            "ledger_containers",
            "Containers in the ledger",
            self.containers.clone(),
        );
        r.register(
            "policy_loads",
            "Times that the node policy file was read",
            self.policy_loads.clone(),
        );
        r.register(
            "policy_issues",
            "Fields of the node policy in force that could not be used",
            self.policy_issues.clone(),
        );
    }

    fn register_process(&mut self) {
        let r = &mut self.registry;
        r.register(
            "relists",
            "Lists asked of the runtime",
            self.relists.clone(),
        );
        r.register_with_unit(
            "relist",
            "Time that lists took",
            Unit::Seconds,
            self.relist_seconds.clone(),
        );
        r.register(
            "runtime_up",
            "Whether the runtime answered when it was last asked",
            self.runtime_up.clone(),
        );
        r.register("mode", "1 for the mode that we run in", self.mode.clone());
        r.register_with_unit(
            "start_time",
            "When this process started, since 1970",
            Unit::Seconds,
            self.start_time.clone(),
        );
        r.register("build", "1 for the version that runs", self.build.clone());
    }

    /// All series in the text format of Prometheus.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    pub fn started(&self, mode: &'static str, at: SystemTime) {
        self.mode.get_or_create(&Running { mode }).set(1);
        let version = env!("CARGO_PKG_VERSION");
        self.build.get_or_create(&Build { version }).set(1);
        let since_1970 = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        self.start_time.set(since_1970.as_secs_f64());
    }

    pub fn connection_opened(&self) {
        self.connections.inc();
        self.connections_open.inc();
    }

    pub fn connection_closed(&self) {
        self.connections_open.dec();
    }

    pub fn connection_refused(&self, reason: Refused) {
        let reason = match reason {
            Refused::Peer => "peer",
            Refused::TooMany => "too_many",
            Refused::NoPreface => "no_preface",
        };
        self.connections_refused
            .get_or_create(&Reason { reason })
            .inc();
    }

    pub fn violation(&self, side: Side) {
        let side = match side {
            Side::Client => "client",
            Side::Runtime => "runtime",
        };
        self.violations.get_or_create(&From { side }).inc();
    }

    pub fn relayed(&self, counters: &Counters) {
        self.frames.inc_by(counters.frames);
        self.swallowed_bytes.inc_by(counters.swallowed_bytes);
        self.header_blocks_reencoded.inc_by(counters.reencoded);
    }

    pub fn call_answered(&self, method: Method, answer: &Answer) {
        self.call(
            method,
            match answer {
                Answer::Patched(_) => "patched",
                Answer::Refused(_) => "refused",
                Answer::AsIs(Untouched::Nothing) => "as_is",
                Answer::AsIs(Untouched::Observing) => "unhooked_observing",
                Answer::AsIs(Untouched::Exempt) => "unhooked_exempt",
                Answer::AsIs(Untouched::Unreadable) => "unhooked_unreadable",
                Answer::AsIs(Untouched::Unsound) => "unhooked_unsound",
                Answer::AsIs(Untouched::Unknown) => "unhooked_unknown",
                Answer::AsIs(Untouched::TooLarge) => "unhooked_too_large",
            },
        );
    }

    pub fn call_unopened(&self, method: Method, reason: Unopened) {
        self.call(
            method,
            match reason {
                Unopened::Compressed => "unopened_compressed",
                Unopened::TooLarge => "unopened_too_large",
                Unopened::Malformed => "unopened_malformed",
                Unopened::SecondMessage => "unopened_second_message",
                Unopened::Crowded => "unopened_crowded",
            },
        );
    }

    fn call(&self, method: Method, result: &'static str) {
        let method = method.name();
        self.calls.get_or_create(&Call { method, result }).inc();
    }

    pub fn hook_ran(&self, hook: &'static str, failure: Option<HookFailure>, took: Duration) {
        let result = match failure {
            None => "ok",
            Some(HookFailure::Error) => "error",
            Some(HookFailure::Panic) => "panic",
            Some(HookFailure::Conflict) => "conflict",
        };
        self.hook_runs
            .get_or_create(&HookResult { hook, result })
            .inc();
        self.hook_seconds
            .get_or_create(&Hook { hook })
            .observe(took.as_secs_f64());
    }

    pub fn hook_notice(&self) {
        self.hook_notices.inc();
    }

    pub fn kernel_setting(&self, setting: Setting, applied: &Applied) {
        let result = match applied {
            Applied::Pending => return,
            Applied::Equal => "equal",
            Applied::Written => "written",
            Applied::Masked => "masked",
            Applied::Absent => "absent",
            Applied::Unsupported => "unsupported",
            Applied::Refused(_) => "refused",
        };
        let setting = setting.name();
        self.kernel_settings
            .get_or_create(&Write { setting, result })
            .inc();
    }

    pub fn ledger_size(&self, pods: usize, containers: usize) {
        self.pods.set(i64::try_from(pods).unwrap_or(i64::MAX));
        self.containers
            .set(i64::try_from(containers).unwrap_or(i64::MAX));
    }

    pub fn relisted(&self, ok: bool, took: Duration) {
        self.relists
            .get_or_create(&Outcome { result: word(ok) })
            .inc();
        self.relist_seconds.observe(took.as_secs_f64());
    }

    pub fn policy_loaded(&self, ok: bool, issues: usize) {
        self.policy_loads
            .get_or_create(&Outcome { result: word(ok) })
            .inc();
        if ok {
            self.policy_issues
                .set(i64::try_from(issues).unwrap_or(i64::MAX));
        }
    }

    pub fn runtime_up(&self, up: bool) {
        self.runtime_up.set(i64::from(up));
    }
}

fn word(ok: bool) -> &'static str {
    if ok { "ok" } else { "error" }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

#[cfg(test)]
mod tests;

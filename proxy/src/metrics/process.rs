//! This process, and the runtime that it stands before.

use super::{Metrics, Outcome, histogram, register, register_in, size};
use prometheus_client::{
    encoding::{EncodeLabelSet, EncodeMetric, MetricEncoder},
    metrics::{MetricType, counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use std::{
    fmt,
    sync::{Arc, OnceLock, atomic::AtomicU64},
    time::{Duration, SystemTime, UNIX_EPOCH},
};

/// Upper bounds of list latencies, seconds.
const LIST_BUCKETS: [f64; 6] = [0.01, 0.05, 0.2, 1.0, 5.0, 20.0];

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Running {
    mode: &'static str,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Serving {
    front: &'static str,
}

/// One at a time: what there was before is told no more.
#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct RuntimeVersion {
    name: String,
    version: String,
}

#[derive(Clone, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Build {
    version: &'static str,
}

/// A gauge that is not told before it is known.
#[derive(Clone, Debug, Default)]
struct OnceKnown(Arc<OnceLock<Gauge>>);

#[derive(Debug)]
pub(super) struct ProcessMetrics {
    relists: Family<Outcome, Counter>,
    relist_seconds: Histogram,
    sandboxes_missing: Gauge,
    runtime_up: OnceKnown,
    runtime: Family<RuntimeVersion, Gauge>,
    front: Family<Serving, Gauge>,
    mode: Family<Running, Gauge>,
    another_acts: Gauge,
    start_time: Gauge<f64, AtomicU64>,
    build: Family<Build, Gauge>,
}

// === impl OnceKnown ===

impl OnceKnown {
    fn set(&self, value: i64) {
        self.0.get_or_init(Gauge::default).set(value);
    }
}

impl EncodeMetric for OnceKnown {
    fn encode(&self, encoder: MetricEncoder<'_>) -> fmt::Result {
        let known = self.0.get();
        known.map_or(Ok(()), |gauge| gauge.encode(encoder))
    }

    fn metric_type(&self) -> MetricType {
        MetricType::Gauge
    }

    fn is_empty(&self) -> bool {
        self.0.get().is_none()
    }
}

// === impl ProcessMetrics ===

impl ProcessMetrics {
    pub(super) fn register(r: &mut Registry) -> Self {
        Self {
            relists: register(
                r,
                "relists",
                "Lists asked of the runtime",
                Family::default(),
            ),
            relist_seconds: register_in(
                r,
                Unit::Seconds,
                "relist",
                "Time that lists took",
                histogram(&LIST_BUCKETS),
            ),
            sandboxes_missing: register(
                r,
                "sandboxes_missing",
                "Sandboxes that the runtime lists without saying where they are",
                Gauge::default(),
            ),
            runtime_up: register(
                r,
                "runtime_up",
                "Whether the runtime answered when it was last asked; absent while nobody asks",
                OnceKnown::default(),
            ),
            runtime: register(
                r,
                "runtime",
                "1 for the runtime as it calls itself",
                Family::default(),
            ),
            front: register(
                r,
                "front",
                "1 for where events come from",
                Family::default(),
            ),
            mode: register(
                r,
                "mode",
                "1 for the mode that we run in",
                Family::default(),
            ),
            another_acts: register(
                r,
                "another_acts",
                "Whether we stand by because another proxy acts on this node",
                Gauge::default(),
            ),
            start_time: register_in(
                r,
                Unit::Seconds,
                "start_time",
                "When this process started, since 1970",
                Gauge::default(),
            ),
            build: register(r, "build", "1 for the version that runs", Family::default()),
        }
    }
}

// === impl Metrics ===

impl Metrics {
    pub fn started(&self, mode: &'static str, front: &'static str, at: SystemTime) {
        let of = &self.process;
        of.front.get_or_create(&Serving { front }).set(1);
        of.mode.get_or_create(&Running { mode }).set(1);
        let version = env!("CARGO_PKG_VERSION");
        of.build.get_or_create(&Build { version }).set(1);
        let since_1970 = at.duration_since(UNIX_EPOCH).unwrap_or_default();
        of.start_time.set(since_1970.as_secs_f64());
    }

    pub fn relisted(&self, ok: bool, took: Duration) {
        self.process.relists.get_or_create(&Outcome::of(ok)).inc();
        self.process.relist_seconds.observe(took.as_secs_f64());
    }

    pub fn sandboxes_missing(&self, count: usize) {
        self.process.sandboxes_missing.set(size(count));
    }

    pub fn another_acts(&self, acts: bool) {
        self.process.another_acts.set(i64::from(acts));
    }

    pub fn runtime_up(&self, up: bool) {
        self.process.runtime_up.set(i64::from(up));
    }

    pub fn runtime(&self, name: &str, version: &str) {
        let runtime = &self.process.runtime;
        runtime.clear();
        let told = RuntimeVersion {
            name: name.to_owned(),
            version: version.to_owned(),
        };
        runtime.get_or_create(&told).set(1);
    }
}

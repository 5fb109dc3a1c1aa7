//! What the proxy counts.
//!
//! One struct on a prefixed registry that is handed down; no statics. Labels come from closed
//! sets (methods, hooks, settings, reasons) and never from pods, so the number of series is bounded
//! when the process starts. Each part of it says in one file what it has, what that is called, and
//! when it moves.

mod decision;
mod plugin;
mod pods;
mod process;
mod relay;
mod series;
mod writer;

pub use self::{decision::HookFailure, relay::Refused};

use self::{
    decision::DecisionMetrics, plugin::PluginMetrics, pods::PodsMetrics, process::ProcessMetrics,
    relay::RelayMetrics, writer::WriterMetrics,
};
use prometheus_client::{
    encoding::{EncodeLabelSet, text::encode},
    metrics::histogram::Histogram,
    registry::{Metric, Registry, Unit},
};
use std::fmt;

/// What every name begins with.
pub const PREFIX: &str = "koord_runtime_proxy";

/// Counters and gauges of one process.
#[derive(Debug)]
pub struct Metrics {
    registry: Registry,
    relay: RelayMetrics,
    decision: DecisionMetrics,
    process: ProcessMetrics,
    plugin: PluginMetrics,
    pods: PodsMetrics,
    writer: WriterMetrics,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Outcome {
    result: &'static str,
}

// === impl Metrics ===

impl Metrics {
    pub fn new() -> Self {
        let mut registry = Registry::with_prefix(PREFIX);
        Self {
            relay: RelayMetrics::register(&mut registry),
            decision: DecisionMetrics::register(&mut registry),
            process: ProcessMetrics::register(&mut registry),
            plugin: PluginMetrics::register(&mut registry),
            pods: PodsMetrics::register(&mut registry),
            writer: WriterMetrics::register(&mut registry),
            registry,
        }
    }

    /// All series in the text format of Prometheus.
    ///
    /// # Errors
    ///
    /// When a metric cannot be put into that format.
    pub fn encode(&self) -> Result<String, fmt::Error> {
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }
}

impl Default for Metrics {
    fn default() -> Self {
        Self::new()
    }
}

// === impl Outcome ===

impl Outcome {
    fn of(ok: bool) -> Self {
        Self {
            result: if ok { "ok" } else { "error" },
        }
    }
}

/// Has `metric` told under a name, and gives it back.
fn register<M: Metric + Clone>(r: &mut Registry, name: &str, help: &str, metric: M) -> M {
    r.register(name, help, metric.clone());
    metric
}

/// As [`register`], with a unit at the end of the name.
fn register_in<M: Metric + Clone>(
    r: &mut Registry,
    unit: Unit,
    name: &str,
    help: &str,
    metric: M,
) -> M {
    r.register_with_unit(name, help, unit, metric.clone());
    metric
}

fn histogram(buckets: &'static [f64]) -> Histogram {
    Histogram::new(buckets.iter().copied())
}

/// What is counted in memory, as a gauge takes it.
fn size(count: usize) -> i64 {
    i64::try_from(count).unwrap_or(i64::MAX)
}

#[cfg(test)]
mod tests;

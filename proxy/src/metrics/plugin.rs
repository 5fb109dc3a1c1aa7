//! Us as the runtime's plugin.

use super::{Metrics, Outcome, register};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Debug)]
pub(super) struct PluginMetrics {
    plugin_up: Gauge,
    plugin_sessions: Family<Outcome, Counter>,
    plugin_late_answers: Counter,
}

// === impl PluginMetrics ===

impl PluginMetrics {
    pub(super) fn register(r: &mut Registry) -> Self {
        Self {
            plugin_up: register(
                r,
                "plugin_up",
                "Whether the runtime asks us as its plugin",
                Gauge::default(),
            ),
            plugin_sessions: register(
                r,
                "plugin_sessions",
                "Times that we registered with the runtime as its plugin",
                Family::default(),
            ),
            plugin_late_answers: register(
                r,
                "plugin_late_answers",
                "Questions of the runtime that were answered with no change because time was short",
                Counter::default(),
            ),
        }
    }
}

// === impl Metrics ===

impl Metrics {
    /// A registration with the runtime, and whether it came to pass.
    pub fn plugin_registered(&self, ok: bool) {
        let sessions = &self.plugin.plugin_sessions;
        sessions.get_or_create(&Outcome::of(ok)).inc();
    }

    pub fn plugin_up(&self, up: bool) {
        self.plugin.plugin_up.set(i64::from(up));
    }

    pub fn plugin_late_answers(&self, count: u64) {
        self.plugin.plugin_late_answers.inc_by(count);
    }
}

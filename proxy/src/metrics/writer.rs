//! The thread that writes what is decided.

use super::{Metrics, register};
use prometheus_client::{metrics::gauge::Gauge, registry::Registry};

#[derive(Debug)]
pub(super) struct WriterMetrics {
    writer_hangs: Gauge,
}

// === impl WriterMetrics ===

impl WriterMetrics {
    pub(super) fn register(r: &mut Registry) -> Self {
        Self {
            writer_hangs: register(
                r,
                "writer_hangs",
                "Whether the thread that writes settings stands still with work in hand",
                Gauge::default(),
            ),
        }
    }
}

// === impl Metrics ===

impl Metrics {
    pub fn writer_hangs(&self, hangs: bool) {
        self.writer.writer_hangs.set(i64::from(hangs));
    }
}

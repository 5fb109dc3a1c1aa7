//! The threads that bring to the kernel what is decided.

use super::{Metrics, register};
use prometheus_client::{metrics::gauge::Gauge, registry::Registry};

#[derive(Debug)]
pub(super) struct WriterMetrics {
    writer_hangs: Gauge,
    device_writer_hangs: Gauge,
    thread_groups_hang: Gauge,
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
            device_writer_hangs: register(
                r,
                "device_writer_hangs",
                "Whether the thread that writes settings of block devices stands still with work in hand",
                Gauge::default(),
            ),
            thread_groups_hang: register(
                r,
                "thread_groups_hang",
                "Whether the thread that brings threads of pods into their groups stands still",
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

    pub fn device_writer_hangs(&self, hangs: bool) {
        self.writer.device_writer_hangs.set(i64::from(hangs));
    }

    pub fn thread_groups_hang(&self, hangs: bool) {
        self.writer.thread_groups_hang.set(i64::from(hangs));
    }
}

//! The source of pods.

use super::{Metrics, Outcome, register, size};
use prometheus_client::{
    metrics::{counter::Counter, family::Family, gauge::Gauge},
    registry::Registry,
};

#[derive(Debug)]
pub(super) struct PodsMetrics {
    pods_source_up: Gauge,
    pods_answers: Family<Outcome, Counter>,
    pods_issues: Gauge,
}

// === impl PodsMetrics ===

impl PodsMetrics {
    pub(super) fn register(r: &mut Registry) -> Self {
        Self {
            pods_source_up: register(
                r,
                "pods_source_up",
                "Whether the source of pods says what can be used; 0 also where there is none",
                Gauge::default(),
            ),
            pods_answers: register(
                r,
                "pods_answers",
                "Answers of the source of pods, and failures to get one",
                Family::default(),
            ),
            pods_issues: register(
                r,
                "pods_issues",
                "What was left out of the last answer of the source of pods",
                Gauge::default(),
            ),
        }
    }
}

// === impl Metrics ===

impl Metrics {
    pub fn pods_answered(&self, ok: bool, issues: usize) {
        let of = &self.pods;
        of.pods_answers.get_or_create(&Outcome::of(ok)).inc();
        of.pods_source_up.set(i64::from(ok));
        if ok {
            of.pods_issues.set(size(issues));
        }
    }
}

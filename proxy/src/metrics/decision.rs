//! Hooks, what they decide from and what the kernel makes of it.

use super::{Metrics, Outcome, histogram, register, register_in, series::Series, size};
use crate::ledger::{Applied, Rival};
use koord_model::Setting;
use prometheus_client::{
    encoding::EncodeLabelSet,
    metrics::{counter::Counter, family::Family, gauge::Gauge, histogram::Histogram},
    registry::{Registry, Unit},
};
use std::time::Duration;

/// Upper bounds of hook latencies, seconds: hooks take microseconds.
const HOOK_BUCKETS: [f64; 8] = [1e-6, 5e-6, 2e-5, 1e-4, 5e-4, 2e-3, 1e-2, 1e-1];

/// How a hook failed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum HookFailure {
    Error,
    Panic,
    Conflict,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Hook {
    hook: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct HookResult {
    hook: &'static str,
    result: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Write {
    setting: &'static str,
    result: &'static str,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, EncodeLabelSet)]
struct Round {
    setting: &'static str,
    writer: &'static str,
}

#[derive(Debug)]
pub(super) struct DecisionMetrics {
    hook_runs: Series<HookResult, Counter>,
    hook_seconds: Series<Hook, Histogram>,
    hook_notices: Counter,
    kernel_settings: Series<Write, Counter>,
    contested_settings: Family<Round, Counter>,
    memory_reclaims: Gauge,
    memory_reclaims_waiting: Gauge,
    gpu_monitor_folders_left: Gauge,
    pods: Gauge,
    containers: Gauge,
    policy_loads: Family<Outcome, Counter>,
    policy_issues: Gauge,
}

// === impl DecisionMetrics ===

impl DecisionMetrics {
    pub(super) fn register(r: &mut Registry) -> Self {
        Self {
            hook_runs: Series::of(register(r, "hook_runs", "Runs of hooks", Family::default())),
            hook_seconds: Series::of(register_in(
                r,
                Unit::Seconds,
                "hook",
                "Time that hooks took",
                Family::new_with_constructor(|| histogram(&HOOK_BUCKETS)),
            )),
            hook_notices: register(
                r,
                "hook_notices",
                "Odd input that stopped no hook, such as an unknown class",
                Counter::default(),
            ),
            kernel_settings: Series::of(register(
                r,
                "kernel_settings",
                "Settings held against the kernel, by what was found or done",
                Family::default(),
            )),
            contested_settings: register(
                r,
                "contested_settings",
                "Settings of ours that another writer had changed, by who may write them",
                Family::default(),
            ),
            memory_reclaims: gauge(
                r,
                "memory_reclaims",
                "Pods, and the node, for whose new limits the kernel reclaims memory now",
            ),
            memory_reclaims_waiting: gauge(
                r,
                "memory_reclaims_waiting",
                "Those that wait for it, because there are only so many threads that do it",
            ),
            gpu_monitor_folders_left: gauge(
                r,
                "gpu_monitor_folders_left",
                "Folders of containers that have gone which are set aside and not cleared yet",
            ),
            pods: gauge(r, "ledger_pods", "Pods in the ledger"),
            containers: gauge(r, "ledger_containers", "Containers in the ledger"),
            policy_loads: register(
                r,
                "policy_loads",
                "Times that the node policy file was read",
                Family::default(),
            ),
            policy_issues: gauge(
                r,
                "policy_issues",
                "Fields of the node policy in force that could not be used",
            ),
        }
    }
}

fn gauge(r: &mut Registry, name: &str, help: &str) -> Gauge {
    register(r, name, help, Gauge::default())
}

// === impl Metrics ===

impl Metrics {
    pub fn hook_ran(&self, hook: &'static str, failure: Option<HookFailure>, took: Duration) {
        let result = match failure {
            None => "ok",
            Some(HookFailure::Error) => "error",
            Some(HookFailure::Panic) => "panic",
            Some(HookFailure::Conflict) => "conflict",
        };
        let of = &self.decision;
        of.hook_runs
            .change(HookResult { hook, result }, Counter::inc);
        let observe = |seconds: &Histogram| seconds.observe(took.as_secs_f64());
        of.hook_seconds.change(Hook { hook }, observe);
    }

    pub fn hook_notice(&self) {
        self.decision.hook_notices.inc();
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
            Applied::Lacking(_) => "lacking",
            Applied::Left => "left",
            Applied::Paused => "paused",
            Applied::Yielded => "yielded",
        };
        let setting = setting.name();
        let write = Write { setting, result };
        self.decision.kernel_settings.change(write, Counter::inc);
    }

    pub fn setting_contested(&self, setting: Setting, rival: Option<Rival>) {
        let (setting, writer) = (setting.name(), Rival::name(rival));
        let rounds = &self.decision.contested_settings;
        rounds.get_or_create(&Round { setting, writer }).inc();
    }

    pub fn memory_reclaims(&self, under_way: usize, waiting: usize) {
        self.decision.memory_reclaims.set(size(under_way));
        self.decision.memory_reclaims_waiting.set(size(waiting));
    }

    /// How many folders of [`Setting::GpuMonitor`] are set aside and not cleared yet.
    pub fn gpu_monitor_folders_left(&self, count: usize) {
        self.decision.gpu_monitor_folders_left.set(size(count));
    }

    pub fn ledger_size(&self, pods: usize, containers: usize) {
        self.decision.pods.set(size(pods));
        self.decision.containers.set(size(containers));
    }

    pub fn policy_loaded(&self, ok: bool, issues: usize) {
        let loads = &self.decision.policy_loads;
        loads.get_or_create(&Outcome::of(ok)).inc();
        if ok {
            self.decision.policy_issues.set(size(issues));
        }
    }
}

//! Running the chain, and what its failures turn into: lines in the log, counters, statuses.

use super::{
    Effects, Hub,
    cover::{self, Kept},
};
use crate::{
    ledger::{Container, Exemption, LeftOut, Life, Pod, Route, Target, Unasked, of_directories},
    log::Name,
    metrics::{HookFailure, Metrics},
    node::LookError,
    panic_report::Catching,
    status::{Status, chain_of},
    view::Inputs,
};
use koord_hooks::{
    Chain, ContainerKind, ContainerView, Failure, FailureKind, HookMeta, Merged, NodeView, Notice,
    Observer, Outcome, PodView, Requested, UnsafePath,
};
use koord_model::{CpuShares, CpusetCpus, KubeQos, SchedSwitch, Setting, Value};
use koord_proto::{
    annotation::CpuNormalizationRatio,
    keys::{annotation, label},
    policy::NodePolicy,
};
use std::{cell::Ref, collections::BTreeSet, error::Error, mem, sync::Arc, time::Instant};
use tracing::warn;

/// The chain and the node that it decides for.
#[derive(Debug)]
pub struct Policy {
    chain: Chain,
    node: NodeView,
    inputs: Arc<Inputs>,
}

/// What hooks want of one control group, and which of them could not say.
#[derive(Default)]
struct Decided {
    merged: Merged,
    left_out: Vec<LeftOut>,
    /// One that could not say insists, and so the call that asks is refused. All others are heard:
    /// where no call asks, this is what there is.
    refusal: Option<Status>,
}

/// Times every hook of a chain, and knows where it panicked.
pub(super) struct Watch<'a> {
    metrics: &'a Metrics,
    since: Instant,
    catching: Catching,
}

impl<'a> Watch<'a> {
    pub(super) fn new(metrics: &'a Metrics) -> Self {
        Self {
            metrics,
            since: Instant::now(),
            catching: Catching::begin(),
        }
    }
}

impl Observer for Watch<'_> {
    fn panicked_at(&mut self) -> Option<String> {
        self.catching.place()
    }

    fn finished(&mut self, hook: &'static str, result: Result<(), &FailureKind>) {
        let failure = result.err().map(HookFailure::from);
        // The next hook starts at once, and a look at the clock costs as much as some hooks.
        let now = Instant::now();
        let took = now.duration_since(mem::replace(&mut self.since, now));
        self.metrics.hook_ran(hook, failure, took);
    }
}

// === impl Policy ===

impl Policy {
    /// `skip_label` is read beside what the hooks read.
    pub fn new(chain: Chain, node: NodeView, skip_label: &str) -> Self {
        // All that are built in, not only those switched on: a pod is read once, gates may change.
        let hooks: Vec<HookMeta> = Chain::builtin_table()
            .copied()
            .chain(chain.hooks().copied())
            .collect();
        let labels = hooks.iter().flat_map(|meta| meta.inputs.labels).copied();
        let annotations = hooks
            .iter()
            .flat_map(|meta| meta.inputs.annotations)
            .copied()
            .chain([annotation::ORIGINALS]);
        let inputs = Inputs::new(labels.chain([skip_label]), annotations);
        Self {
            inputs: Arc::new(inputs),
            chain,
            node,
        }
    }

    /// Whether hooks decide something from the quotas that were asked for.
    fn reads_quotas(&self) -> bool {
        let policy = &self.node.policy;
        let slo = policy.slo.as_ref();
        let saves_up = slo.is_some_and(|slo| slo.cpu_burst_strategy.policy.saves_up());
        let ratio = policy.cpu_normalization_ratio();
        saves_up || ratio.is_some_and(CpuNormalizationRatio::is_above_one)
    }

    /// Whether hooks decide something for a pod from what its containers asked for.
    pub(crate) fn reads_requested(&self, pod: &PodView) -> bool {
        self.reads_quotas() || self.chain.reads_requested(pod, &self.node)
    }

    pub fn node(&self) -> &NodeView {
        &self.node
    }

    pub fn chain(&self) -> &Chain {
        &self.chain
    }

    /// The settings about which a runtime may be told something.
    pub fn sayable(&self) -> BTreeSet<Setting> {
        let settings = Setting::ALL.iter().copied();
        settings.filter(|it| self.says(*it)).collect()
    }

    /// Whether this is one of them.
    pub(super) fn says(&self, setting: Setting) -> bool {
        travels(setting) == Route::Request && self.chain.decides(setting)
    }

    pub(crate) fn inputs(&self) -> Arc<Inputs> {
        self.inputs.clone()
    }
}

// === impl Hub ===

impl Hub {
    /// Why hooks leave this pod alone, if they do.
    pub(crate) fn exemption(&self, pod: &PodView) -> Option<Exemption> {
        let (key, value) = &self.exclusions.skip_label;
        if pod.labels.get(key) == Some(value.as_str()) {
            return Some(Exemption::SkipLabel);
        }
        if self.exclusions.namespaces.contains(&pod.namespace) {
            return Some(Exemption::Namespace);
        }
        self.exclusions
            .runtime_handlers
            .contains(&pod.runtime_handler)
            .then_some(Exemption::RuntimeHandler)
    }

    /// Decides what the own directory of a pod with these containers, and its sandbox container,
    /// should have; an error if a hook insists that could not say.
    pub(super) fn decide_pod(
        &self,
        pod: &PodView,
        containers: &[&ContainerView],
        exemption: Option<Exemption>,
        (own, pause): (&mut Target, &mut Target),
    ) -> Result<(), Status> {
        let of_own = self.decide_own(pod, containers, exemption, own);
        of_own.and(self.decide_pause(pod, exemption, pause))
    }

    /// The same of its own directory.
    fn decide_own(
        &self,
        pod: &PodView,
        containers: &[&ContainerView],
        exemption: Option<Exemption>,
        own: &mut Target,
    ) -> Result<(), Status> {
        if is_untouched(exemption) {
            return decide_directory(own, Decided::default());
        }
        know_own(pod, own);
        let policy = self.policy.borrow();
        let outcome = policy.chain.pod(
            pod,
            containers,
            &policy.node,
            &mut Watch::new(&self.metrics),
        );
        decide_directory(own, self.examine(pod, outcome))
    }

    /// The same of the directory of its sandbox, which follows from none of its containers.
    fn decide_pause(
        &self,
        pod: &PodView,
        exemption: Option<Exemption>,
        pause: &mut Target,
    ) -> Result<(), Status> {
        if !is_untouched(exemption) {
            know_pause(pause);
        }
        if exemption.is_some() {
            return decide_directory(pause, Decided::default());
        }
        let sandbox = ContainerView {
            name: String::new(),
            kind: ContainerKind::Sandbox,
            requested: Requested::default(),
            heard: true,
            found_quota: None,
        };
        let policy = self.policy.borrow();
        let outcome =
            policy
                .chain
                .container(pod, &sandbox, &policy.node, &mut Watch::new(&self.metrics));
        decide_directory(pause, self.examine(pod, outcome))
    }

    /// Decides what a container should have; an error if a hook insists that could not say.
    pub(crate) fn decide_container(
        &self,
        pod: &PodView,
        exemption: Option<Exemption>,
        container: &ContainerView,
        target: &mut Target,
    ) -> Result<(), Status> {
        let decided = if exemption.is_some() {
            // Where there is something of ours, what is asked for now takes its place.
            Decided::default()
        } else {
            let policy = self.policy.borrow();
            let outcome = policy.chain.container(
                pod,
                container,
                &policy.node,
                &mut Watch::new(&self.metrics),
            );
            self.examine(pod, outcome)
        };
        let route = |value: &Value| match self.watches() {
            true => Route::Kernel,
            false => travels(value.setting()),
        };
        target.decide(&decided.merged, route, |setting| {
            asked(&container.requested, setting)
        });
        target.left_out = decided.left_out;
        decided.refusal.map_or(Ok(()), Err)
    }

    /// Decides what tiers and host applications should have.
    pub(crate) fn decide_node(&self) {
        let policy = self.policy.borrow();
        let mut outcome = policy
            .chain
            .node(&policy.node, &mut Watch::new(&self.metrics));
        for failure in &outcome.failures {
            let (hook, key) = (failure.hook, key_of(&failure.kind));
            let mut complaints = self.complaints.borrow_mut();
            if let Some(suppressed) = complaints.about(None, hook, key, Instant::now()) {
                warn!(
                    hook,
                    key,
                    reason = chain_of(&failure.kind),
                    suppressed,
                    "a hook's adjustment of the node was left out"
                );
            }
        }
        let mut ledger = self.ledger.borrow_mut();
        cover::add(&mut outcome.merged, &ledger);
        ledger.node.decide(&outcome.merged, &policy.node.tiers);
        ledger.node.left_out = left_out(&outcome.failures);
        if self.has_left_switches(&policy) {
            let ours = Value::SchedSwitch(SchedSwitch::CoreSched);
            ledger.node.recall(ours);
        }
    }

    /// Whether switches of the kernel are by us yet, and hooks can tell whether they still need them:
    /// without a policy those cannot that follow it.
    fn has_left_switches(&self, policy: &Policy) -> bool {
        let setting = Setting::SchedSwitch;
        let has_switches = policy.node.kernel.files.contains(&setting);
        if self.effects != Effects::Enforce || !has_switches || policy.chain.rests(setting) {
            return false;
        }
        let is_known = policy.node.policy.slo.is_some();
        (is_known || !policy.chain.settings().contains(&setting))
            && self.writer.cgroups().has_switched()
    }

    /// Reports what went wrong in the chain.
    fn examine(&self, pod: &PodView, outcome: Outcome) -> Decided {
        for notice in &outcome.notices {
            self.metrics.hook_notice();
            let Notice::UnknownQosClass(unknown) = notice;
            self.complain(pod, "-", label::QOS_CLASS, unknown);
        }
        for failure in &outcome.failures {
            self.complain(pod, failure.hook, key_of(&failure.kind), &failure.kind);
        }
        // Where we change nothing, nothing is missing.
        let closed = outcome.closed().filter(|_| self.enforces());
        Decided {
            refusal: closed.map(|closed| Status::hook_failed(closed, pod)),
            left_out: left_out(&outcome.failures),
            merged: outcome.merged,
        }
    }

    /// One line about a pod's bad input, unless it was said or there is no room.
    pub(super) fn complain(
        &self,
        pod: &PodView,
        hook: &'static str,
        key: &'static str,
        reason: &dyn Error,
    ) {
        let mut complaints = self.complaints.borrow_mut();
        let Some(suppressed) = complaints.about(Some(&pod.uid), hook, key, Instant::now()) else {
            return;
        };
        warn!(
            pod = %Name(&pod.name),
            namespace = %Name(&pod.namespace),
            pod_uid = %Name(pod.uid.as_str()),
            hook,
            key,
            reason = chain_of(reason),
            suppressed,
            "a hook's adjustment was left out"
        );
    }

    /// Whether a line about this owner and setting may be written now; if so, how many were held
    /// back since the last one.
    pub(crate) fn may_complain(&self, owner: &'static str, setting: &'static str) -> Option<u64> {
        let mut complaints = self.complaints.borrow_mut();
        complaints.permit(owner, setting, Instant::now())
    }

    /// Puts a policy in force and makes every decision anew.
    pub fn set_node_policy(&self, policy: Arc<NodePolicy>) {
        let node = self.look_around(policy);
        self.policy.borrow_mut().node = node;
        self.complaints.borrow_mut().forget_node();
        self.ledger.borrow_mut().end_contests();
        self.decide_all();
    }

    /// Has these hooks rest, because koordlet does their part, and all others work. What a hook that
    /// rests had decided is given back as far as it is known to be ours.
    pub fn set_resting(&self, hooks: BTreeSet<&'static str>) {
        self.policy.borrow_mut().chain.rest(hooks.clone());
        {
            let (policy, mut ledger) = (self.policy(), self.ledger.borrow_mut());
            match self.knows_of_koordlet() {
                true => ledger.rest(&hooks),
                // Nothing is this process's own yet: what a list has recalled may be koordlet's by now.
                false => ledger.leave(&hooks, |setting| policy.chain().rests(setting)),
            }
        }
        self.decide_all();
    }

    /// Switches a hook off, which gives back what it had decided, or on again. False if there is no
    /// such hook here.
    pub fn switch_hook(&self, hook: &str, on: bool) -> bool {
        let known = self.policy.borrow_mut().chain.switch(hook, on);
        if known {
            self.decide_all();
        }
        known
    }

    /// Switches all hooks off at once: nothing is decided by some of them while the others are off.
    pub(crate) fn switch_all_off(&self) {
        self.policy.borrow_mut().chain.switch_all_off();
        self.decide_all();
    }

    /// Hears why containers are not given HAMi-core, or that they may be.
    pub(crate) fn set_hami_core(&self, found: Option<UnsafePath>) {
        if self.policy.borrow().node.kernel.hami_core != found {
            self.policy.borrow_mut().node.kernel.hami_core = found;
            self.decide_all();
        }
    }

    /// The node as it is now, with what is looked at elsewhere as it was heard last.
    fn look_around(&self, policy: Arc<NodePolicy>) -> NodeView {
        let mut node = self.look(policy);
        let known = &self.policy.borrow().node.kernel;
        node.kernel.hami_core.clone_from(&known.hami_core);
        node
    }

    /// Looks at the node again: the kubelet may have come, CPUs may have gone.
    pub(crate) fn look_again(&self) {
        let policy = self.policy.borrow().node.policy.clone();
        let node = self.look_around(policy);
        let changed = {
            let known = &self.policy.borrow().node;
            (&known.kernel, &known.tiers) != (&node.kernel, &node.tiers)
        };
        if changed {
            self.policy.borrow_mut().node = node;
            // The next pod tells whether it is in the right place.
            self.elsewhere.take();
            self.decide_all();
        }
    }

    /// Devices may have come and gone since the last list, and with one that is not there the runtime
    /// refuses to make a container. A look costs a few reads on the data path, so it is for pods alone
    /// that were given some, not for those with GPUs, which the same annotation tells. Those that are there
    /// can be given nothing, so nobody is decided about anew.
    pub(super) fn look_at_devices(&self, pod: &PodView) {
        let devices = pod.devices().ok().flatten();
        if devices.is_none_or(|devices| devices.rdma.is_empty()) {
            return;
        }
        match self.probe.rdma() {
            Ok(None) => {}
            Ok(Some(devices)) => self.policy.borrow_mut().node.kernel.rdma = devices,
            Err(error) => self.tell_unknown(&error),
        }
    }

    /// The node as it is now; as it was known, where that cannot be found out.
    fn look(&self, policy: Arc<NodePolicy>) -> NodeView {
        let cgroups = self.writer.cgroups();
        self.probe
            .look(cgroups, policy.clone())
            .unwrap_or_else(|error| {
                self.tell_unknown(&error);
                let known = self.policy.borrow().node.clone();
                NodeView { policy, ..known }
            })
    }

    fn tell_unknown(&self, error: &LookError) {
        if let Some(suppressed) = self.may_complain("-", "node") {
            let error = error as &dyn Error;
            warn!(
                error,
                suppressed, "what this node has is unknown now: it is taken to be as it was"
            );
        }
    }

    fn decide_all(&self) {
        self.generation.set(self.generation.get() + 1);
        let mut ledger = self.ledger.borrow_mut();
        for pod in ledger.pods_mut() {
            self.decide_again(pod);
            self.queue.push_decided(pod);
        }
        self.queue.push_node();
    }

    /// Decides about a known pod anew. Nobody waits for this, so a hook that insists has nobody to
    /// refuse: it was logged and counted, nothing of it stays in force, and the others are heard.
    pub(crate) fn decide_again(&self, pod: &mut Pod) {
        self.decide_directories(pod);
        let (pod_view, exemption) = (&pod.view, pod.exemption);
        for Container { view, target, .. } in &mut pod.containers {
            self.decide_container(pod_view, exemption, view, target)
                .ok();
        }
    }

    /// Decides anew about the directories of a known pod, which may have other containers than
    /// before.
    pub(crate) fn decide_directories(&self, pod: &mut Pod) {
        self.decide_own_directory(pod);
        self.decide_pause(&pod.view, pod.exemption, &mut pod.pause)
            .ok();
    }

    /// The same of its own directory alone.
    pub(super) fn decide_own_directory(&self, pod: &mut Pod) {
        let containers = pod.containers.iter();
        let living = containers.filter(|container| container.life != Life::Exited);
        let living: Vec<&ContainerView> = living.map(|container| &container.view).collect();
        let kept = Kept::by(&pod.own);
        let (network, queue) = (pod.network(), pod.queue());
        self.decide_own(&pod.view, &living, pod.exemption, &mut pod.own)
            .ok();
        if kept != Kept::by(&pod.own) {
            self.queue.push_node();
        }
        if (network, queue) != (pod.network(), pod.queue()) {
            self.queue.push_network();
        }
        if queue.is_none() && pod.lacks_addresses() {
            // A list asks from where it sends.
            self.relist_soon();
        }
    }

    /// A pod has come or ended: what was kept for it is kept for its tier, or is no more, and it has its
    /// part of the network, or has it no more.
    pub(crate) fn cover(&self, pod: &Pod) {
        if Kept::by(&pod.own) != Kept::default() {
            self.queue.push_node();
        }
        if pod.network().is_some() || pod.queue().is_some() {
            self.queue.push_network();
        }
        if pod.lacks_addresses() {
            self.relist_soon();
        }
    }

    /// What decisions are made from.
    pub fn policy(&self) -> Ref<'_, Policy> {
        self.policy.borrow()
    }
}

/// What the ledger keeps of failures.
fn left_out(failures: &[Failure]) -> Vec<LeftOut> {
    let failures = failures.iter();
    let left_out = failures.map(|it| LeftOut::new(it.hook, &chain_of(&it.kind as &dyn Error)));
    left_out.collect()
}

/// What a hook failed at, if that has a name.
fn key_of(failure: &FailureKind) -> &'static str {
    match failure {
        FailureKind::Error(error) => error.key(),
        FailureKind::Panic { .. } | FailureKind::Conflict(_) => "-",
    }
}

/// No request carries what a directory of a pod's own should have.
fn decide_directory(target: &mut Target, decided: Decided) -> Result<(), Status> {
    target.decide(&decided.merged, |_| Route::Kernel, of_directories);
    target.left_out = decided.left_out;
    decided.refusal.map_or(Ok(()), Err)
}

/// Whether what was ours before the exemption came is given back.
fn is_untouched(exemption: Option<Exemption>) -> bool {
    matches!(exemption, Some(Exemption::SkipLabel | Exemption::Namespace))
}

/// Says what a pod's own directory has where hooks decide nothing. In one of a best-effort pod the kubelet
/// writes the least shares and no limit; in others it depends on the pod.
fn know_own(pod: &PodView, own: &mut Target) {
    let best_effort = pod.kube_qos == KubeQos::BestEffort;
    if own.undecided_shares.is_none() && best_effort {
        own.undecided_shares = Some(CpuShares::MIN.into());
    }
    own.unasked = match best_effort {
        true => Unasked::Nothing,
        false => Unasked::Unknown,
    };
}

/// The same of that of its sandbox: it has the runtime's least shares and no limit.
fn know_pause(pause: &mut Target) {
    if pause.undecided_shares.is_none() {
        pause.undecided_shares = Some(CpuShares::MIN.into());
    }
}

/// What CRI and NRI can say goes to the runtime; the rest is written by us.
fn travels(setting: Setting) -> Route {
    if setting.is_sayable() {
        Route::Request
    } else {
        Route::Kernel
    }
}

/// What the request asked for; a quota for 100 ms, as hooks decide it.
pub(crate) fn asked(requested: &Requested, setting: Setting) -> Option<Value> {
    match setting {
        Setting::CpuShares => requested.cpu_shares.map(Value::from),
        Setting::CpuQuota => {
            let period = requested.period();
            requested
                .cpu_quota
                .map(|quota| quota.of_period(period).into())
        }
        Setting::MemoryLimit => requested.memory_limit.map(Value::from),
        Setting::CpusetCpus => requested
            .cpuset_cpus
            .clone()
            .map(|cpus| Value::from(CpusetCpus::Only(cpus))),
        Setting::OomScoreAdj => requested.oom_score_adj.map(Value::from),
        Setting::MemoryMin => requested.unified.memory_min.map(Value::MemoryMin),
        Setting::MemoryLow => requested.unified.memory_low.map(Value::MemoryLow),
        Setting::MemoryHigh => requested.unified.memory_high.map(Value::MemoryHigh),
        Setting::MemoryOomGroup => {
            let on = requested.unified.memory_oom_group;
            on.map(Value::MemoryOomGroup)
        }
        _ => None,
    }
}

impl From<&FailureKind> for HookFailure {
    fn from(kind: &FailureKind) -> Self {
        match kind {
            FailureKind::Error(_) => Self::Error,
            FailureKind::Panic { .. } => Self::Panic,
            FailureKind::Conflict(_) => Self::Conflict,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use koord_model::{CpuPeriod, CpuQuota};

    #[test]
    fn a_quota_that_was_asked_for_is_compared_with_decisions_as_a_share() {
        let quota_us = 5_000;
        for (period_us, share) in [
            (None, 5_000),
            (Some(100_000), 5_000),
            (Some(10_000), 50_000),
        ] {
            let requested = Requested {
                cpu_quota: Some(CpuQuota::Micros(quota_us)),
                cpu_period: period_us.map(|micros| CpuPeriod::new(micros).unwrap()),
                ..Requested::default()
            };
            let asked = asked(&requested, Setting::CpuQuota);
            assert_eq!(asked, Some(CpuQuota::Micros(share).into()), "{period_us:?}");
        }
    }
}

//! Runs the hooks in order and joins what they want.
//!
//! The chain is where a hook's faults end: an error, a panic or a conflict costs that hook its
//! whole adjustment, but for what it has [at least](Hook::at_least), and nobody else anything. It
//! has no clock and no log; an [`Observer`] is told when and how a hook ends, and measures if it
//! likes. What it knows of a panic beyond the text becomes part of the failure.

use crate::{
    builtin,
    gate::{FailPolicies, FeatureGates},
    hook::{FailPolicy, Hook, HookMeta},
    merge::{Merged, NodeMerged},
    outcome::{Failure, FailureKind, NodeOutcome, Notice, Outcome},
    view::{ContainerView, NodeView, PodView, Stage, View},
};
use koord_model::Setting;
use koord_proto::keys::label;
use std::{
    any::Any,
    collections::BTreeSet,
    fmt,
    panic::{self, AssertUnwindSafe},
};

/// The hooks that are switched on, in the order in which they run.
pub struct Chain {
    links: Vec<Link>,
    /// Whatever the hooks say of these, it is not decided.
    left: BTreeSet<Setting>,
    /// Hooks that do not run for now, because somebody else does their part.
    resting: BTreeSet<&'static str>,
    /// Hooks that an operator has switched off.
    off: BTreeSet<&'static str>,
}

struct Link {
    meta: HookMeta,
    policy: FailPolicy,
    hook: Box<dyn Hook>,
}

/// Which containers of a pod a decision is about.
enum Members<'a> {
    One(&'a ContainerView),
    All(&'a [&'a ContainerView]),
}

/// Is told about every hook that has run.
pub trait Observer {
    /// Where the panic was that has just ended the hook, if that is known here.
    fn panicked_at(&mut self) -> Option<String>;
    fn finished(&mut self, hook: &'static str, result: Result<(), &FailureKind>);
}

/// Observes nothing.
impl Observer for () {
    fn panicked_at(&mut self) -> Option<String> {
        None
    }
    fn finished(&mut self, _hook: &'static str, _result: Result<(), &FailureKind>) {}
}

// === impl Chain ===

impl Chain {
    /// The built-in hooks whose gates are on.
    pub fn new(gates: &FeatureGates, policies: &FailPolicies) -> Self {
        let links = builtin::TABLE
            .iter()
            .filter(|row| gates.enabled(row.meta.gate))
            .map(|row| Link {
                meta: row.meta,
                policy: policies.of(&row.meta),
                hook: (row.build)(),
            })
            .collect();
        Self {
            links,
            left: BTreeSet::new(),
            resting: BTreeSet::new(),
            off: BTreeSet::new(),
        }
    }

    /// A chain without hooks, which decides nothing.
    pub fn empty() -> Self {
        Self {
            links: Vec::new(),
            left: BTreeSet::new(),
            resting: BTreeSet::new(),
            off: BTreeSet::new(),
        }
    }

    /// This chain and one more hook at its end.
    #[cfg(any(test, feature = "testing"))]
    #[must_use]
    pub fn with_hook(mut self, meta: HookMeta, hook: Box<dyn Hook>) -> Self {
        let policy = meta.fail_policy;
        self.links.push(Link { meta, policy, hook });
        self
    }

    /// This chain, which leaves these settings to others.
    #[must_use]
    pub fn leaving(mut self, settings: BTreeSet<Setting>) -> Self {
        self.left = settings;
        self
    }

    /// The settings that are left to others.
    pub fn left(&self) -> &BTreeSet<Setting> {
        &self.left
    }

    /// Has these hooks rest, and all others work.
    pub fn rest(&mut self, hooks: BTreeSet<&'static str>) {
        self.resting = hooks;
    }

    /// The hooks that rest, by name.
    pub fn resting(&self) -> &BTreeSet<&'static str> {
        &self.resting
    }

    /// Switches a hook off or on again, rest or no rest. False if it is not in this chain.
    pub fn switch(&mut self, hook: &str, on: bool) -> bool {
        let Some(name) = self.hooks().map(|meta| meta.name).find(|it| *it == hook) else {
            return false;
        };
        if on {
            self.off.remove(name);
        } else {
            self.off.insert(name);
        }
        true
    }

    /// Switches all hooks off.
    pub fn switch_all_off(&mut self) {
        self.off = self.hooks().map(|meta| meta.name).collect();
    }

    /// The hooks that are switched off, by name.
    pub fn switched_off(&self) -> &BTreeSet<&'static str> {
        &self.off
    }

    /// Whether a hook rests that would decide about this, be it in this chain or not: somebody else
    /// does.
    pub fn rests(&self, setting: Setting) -> bool {
        let resting = |meta: &&HookMeta| self.resting.contains(meta.name);
        let mut hooks = Self::builtin_table().filter(resting);
        hooks.any(|meta| meta.settings.contains(&setting))
    }

    fn works(&self, meta: &HookMeta) -> bool {
        !self.resting.contains(meta.name) && !self.off.contains(meta.name)
    }

    fn has_cache_classes(&self) -> bool {
        let of_classes = |meta: &HookMeta| meta.name == builtin::OF_CACHE_CLASSES;
        self.hooks().any(|it| of_classes(it) && self.works(it))
    }

    /// The settings about which something may be decided.
    pub fn settings(&self) -> BTreeSet<Setting> {
        let all = Setting::ALL.iter().copied();
        all.filter(|setting| self.decides(*setting)).collect()
    }

    /// Whether something may be decided about this.
    pub fn decides(&self, setting: Setting) -> bool {
        let mut at_work = self.hooks().filter(|meta| self.works(meta));
        !self.left.contains(&setting) && at_work.any(|meta| meta.settings.contains(&setting))
    }

    /// Every built-in hook, on or off, in the order in which they run.
    pub fn builtin_table() -> impl ExactSizeIterator<Item = &'static HookMeta> {
        builtin::TABLE.iter().map(|row| &row.meta)
    }

    /// The hooks of this chain in order.
    pub fn hooks(&self) -> impl ExactSizeIterator<Item = &HookMeta> {
        self.links.iter().map(|link| &link.meta)
    }

    /// What a failure of this hook means here; `None` if it is not in this chain.
    pub fn fail_policy(&self, hook: &str) -> Option<FailPolicy> {
        let link = self.links.iter().find(|link| link.meta.name == hook);
        link.map(|link| link.policy)
    }

    /// The hooks that can do nothing on a node, each with the reason.
    pub fn unsupported(&self, node: &NodeView) -> impl Iterator<Item = (&HookMeta, &'static str)> {
        self.links
            .iter()
            .filter_map(|link| Some((&link.meta, link.hook.unsupported(node)?)))
    }

    /// Whether a hook that can do something on a node gives threads or processes what they have.
    pub fn is_about_threads(&self, node: &NodeView) -> bool {
        let able = self.links.iter();
        let able = able.filter(|link| link.hook.unsupported(node).is_none());
        let mut settings = able.flat_map(|link| link.meta.settings);
        settings.any(|it| it.is_of_threads() && !self.left.contains(it))
    }

    /// Whether a hook at work decides something for this pod from what its containers ask
    /// for.
    pub fn reads_requested(&self, pod: &PodView, node: &NodeView) -> bool {
        let mut at_work = self.links.iter().filter(|link| self.works(&link.meta));
        at_work.any(|link| link.hook.reads_requested(pod, node))
    }

    /// Decides about the cgroup directory of a pod with these containers.
    pub fn pod(
        &self,
        pod: &PodView,
        containers: &[&ContainerView],
        node: &NodeView,
        observer: &mut dyn Observer,
    ) -> Outcome {
        self.decide(Stage::Pod, pod, Members::All(containers), node, observer)
    }

    /// Decides about a container. Which containers are left out, by runtime handler or namespace,
    /// is the caller's business.
    pub fn container(
        &self,
        pod: &PodView,
        container: &ContainerView,
        node: &NodeView,
        observer: &mut dyn Observer,
    ) -> Outcome {
        self.decide(
            Stage::Container,
            pod,
            Members::One(container),
            node,
            observer,
        )
    }

    /// Decides about tiers and host applications.
    pub fn node(&self, node: &NodeView, observer: &mut dyn Observer) -> NodeOutcome {
        let mut merged = NodeMerged::default();
        let mut failures = Vec::new();
        for link in self.at(Stage::Node) {
            let result = link.observed(observer, |hook| {
                let adjustment = hook.decide_node(node)?;
                Ok(merged.merge(link.meta.name, adjustment)?)
            });
            failures.extend(result.err());
        }
        merged.leave(&self.left);
        NodeOutcome { merged, failures }
    }

    fn decide(
        &self,
        stage: Stage,
        pod: &PodView,
        members: Members<'_>,
        node: &NodeView,
        observer: &mut dyn Observer,
    ) -> Outcome {
        let (container, containers) = match members {
            Members::One(container) => (Some(container), [].as_slice()),
            Members::All(containers) => (None, containers),
        };
        let first = View {
            stage,
            pod,
            container,
            containers,
            node,
            earlier: &Merged::default(),
            has_cache_classes: self.has_cache_classes(),
        };
        let mut merged = Merged::default();
        let mut failures = Vec::new();
        for link in self.at(stage) {
            let result = link.observed(observer, |hook| {
                let earlier = &merged;
                let adjustment = hook.decide(&View { earlier, ..first })?;
                Ok(merged.merge(link.meta.name, adjustment)?)
            });
            let Err(failure) = result else { continue };
            failures.push(failure);
            // If this fails as well, there is nothing more to say of it.
            let least = link.guarded(|hook| {
                let earlier = &merged;
                let adjustment = hook.at_least(&View { earlier, ..first });
                Ok(merged.merge(link.meta.name, adjustment)?)
            });
            least.ok();
        }
        merged.leave(&self.left);
        Outcome {
            merged,
            failures,
            notices: self.notices(stage, pod),
        }
    }

    fn at(&self, stage: Stage) -> impl Iterator<Item = &Link> {
        self.links
            .iter()
            .filter(move |link| link.meta.stages.contains(&stage))
            .filter(|link| self.works(&link.meta))
    }

    /// Hooks take an unknown class for none, so that the pod starts; here is where it is told.
    fn notices(&self, stage: Stage, pod: &PodView) -> Vec<Notice> {
        let asked = self
            .at(stage)
            .any(|link| link.meta.inputs.labels.contains(&label::QOS_CLASS));
        if !asked {
            return Vec::new();
        }
        let unknown = pod.qos_class().err();
        unknown.map(Notice::UnknownQosClass).into_iter().collect()
    }
}

impl fmt::Debug for Chain {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = self.hooks().map(|meta| meta.name);
        f.debug_list().entries(names).finish()
    }
}

// === impl Link ===

impl Link {
    fn observed(
        &self,
        observer: &mut dyn Observer,
        run: impl FnOnce(&dyn Hook) -> Result<(), FailureKind>,
    ) -> Result<(), Failure> {
        let hook = self.meta.name;
        let mut result = self.guarded(run);
        if let Err(FailureKind::Panic { message }) = &mut result
            && let Some(place) = observer.panicked_at()
        {
            *message += &format!(", at {place}");
        }
        observer.finished(hook, result.as_ref().copied());
        result.map_err(|kind| Failure {
            hook,
            policy: self.policy,
            kind,
        })
    }

    /// Calls the hook and takes over what it wants, which is large and so is not handed out from here;
    /// a panic ends here.
    fn guarded(
        &self,
        run: impl FnOnce(&dyn Hook) -> Result<(), FailureKind>,
    ) -> Result<(), FailureKind> {
        // A hook sees the world through shared references and has no state, and what takes over does
        // not panic, so nothing can be left half done.
        let result = panic::catch_unwind(AssertUnwindSafe(|| run(&*self.hook)));
        result.unwrap_or_else(|payload| {
            let message = panic_message(&*payload);
            Err(FailureKind::Panic { message })
        })
    }
}

fn panic_message(payload: &(dyn Any + Send)) -> String {
    let text = match payload.downcast_ref::<String>() {
        Some(text) => text,
        None => payload
            .downcast_ref::<&str>()
            .copied()
            .unwrap_or("it left no text"),
    };
    text.chars().take(MAX_PANIC_MESSAGE).collect()
}

/// Characters of a panic's text that are kept: it may quote what a workload wrote.
const MAX_PANIC_MESSAGE: usize = 256;

#[cfg(test)]
mod tests;

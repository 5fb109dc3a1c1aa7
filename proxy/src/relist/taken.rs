//! A container as a list tells it, whichever front the list came by.

use super::origin;
use crate::{
    hub::Hub,
    ledger::{Container, Exemption, Ledger, Life, Pod, Target, Unasked},
    originals::{self, Origin},
    view,
};
use koord_hooks::PodView;
use koord_model::{ContainerId, SandboxId, Setting, Value};
use std::mem;

/// What a list says of a container.
#[derive(Debug)]
pub(crate) struct Listed<'a> {
    pub(crate) id: ContainerId,
    pub(crate) name: String,
    pub(crate) life: Life,
    /// The annotation that says what was asked for.
    originals: Option<&'a str>,
}

// === impl Listed ===

impl<'a> Listed<'a> {
    /// `originals` is the annotation that we gave it, if it is not its pod's or another container's.
    pub(crate) fn new(
        id: ContainerId,
        name: String,
        life: Life,
        originals: Option<&'a str>,
    ) -> Self {
        Self {
            id,
            name,
            life,
            originals,
        }
    }

    /// Takes over what the list knows better than the ledger, as of `moment`. Whether that was
    /// anything.
    pub(crate) fn take(
        self,
        hub: &Hub,
        ledger: &mut Ledger,
        sandbox: &SandboxId,
        moment: u64,
    ) -> bool {
        if ledger.is_removed(self.id.as_str()) {
            return false;
        }
        let Some(pod) = ledger.pod_mut(sandbox) else {
            return false;
        };
        let origin = originals::of_container(self.originals, self.id.as_str(), &pod.view);
        let newer = pod.called_at > moment;
        let (pod_view, exemption) = (&pod.view, pod.exemption);
        if let Some(known) = pod.containers.iter_mut().find(|c| c.id == self.id) {
            let mut news =
                origin.is_some_and(|origin| hear(hub, (pod_view, exemption), known, origin));
            if !newer && known.life != self.life {
                known.life = self.life;
                news = true;
            }
            return news;
        }
        let unasked = match origin {
            Some(_) => Unasked::Nothing,
            None => Unasked::Unheard,
        };
        let Origin { requested, ours } = origin.unwrap_or_default();
        let at = hub.container_dir(pod.parent.as_ref(), &self.id);
        let mut container = Container::new(self.id, self.name, requested);
        container.life = self.life;
        container.target = Target::at(at);
        container.ours = ours.into();
        container.hear(unasked);
        decide(hub, (pod_view, exemption), &mut container);
        ledger.list_container(sandbox, container);
        true
    }
}

/// Decides about a container of which it is new what its creation asked for and was changed to say, and
/// gives back what of that nobody decides any more.
pub(super) fn decide(
    hub: &Hub,
    (pod, exemption): (&PodView, Option<Exemption>),
    container: &mut Container,
) {
    let Container { view, target, .. } = &mut *container;
    // Nobody waits for this decision: a failure was logged and counted.
    hub.decide_container(pod, exemption, view, target).ok();
    if origin::is_resized(hub, container, &container.ours) {
        container.view.found_quota = origin::quota_of(hub, container);
        container.target = Target::at(container.target.at.take());
        container.hear(match hub.watches() {
            true => Unasked::Resized,
            false => Unasked::Doubted,
        });
        let Container { view, target, .. } = &mut *container;
        view.requested.cpu_quota = None;
        view.requested.cpu_period = None;
        hub.decide_container(pod, exemption, view, target).ok();
    }
    origin::recall(hub, hub.lacks_word(pod), container);
}

/// A container that was taken for resized is as it was made: the runtime shows the quota of its `origin`.
/// Another was written by a process before us alone.
pub(super) fn is_as_made(
    hub: &Hub,
    (pod, exemption): (&PodView, Option<Exemption>),
    container: &mut Container,
    origin: Origin,
) {
    container.hear(Unasked::Nothing);
    let Container { view, target, .. } = &mut *container;
    view.found_quota = None;
    // What updates have told since we run is newer.
    let newer = mem::take(&mut view.requested);
    view.requested = view::overlaid(&origin.requested, newer);
    hub.decide_container(pod, exemption, view, target).ok();
    origin::recall(hub, hub.lacks_word(pod), container);
}

/// Gives back what nobody decides any more of what the creations of a pod's containers were changed to say, of
/// which its source had to be heard first.
pub(crate) fn recall(hub: &Hub, pod: &mut Pod) {
    let unheard = hub.lacks_word(&pod.view);
    for container in &mut pod.containers {
        origin::recall(hub, unheard, container);
    }
}

/// Takes up what the annotation says that a known container was asked to have. Whether that was news.
fn hear(
    hub: &Hub,
    (pod, exemption): (&PodView, Option<Exemption>),
    known: &mut Container,
    origin: Origin,
) -> bool {
    let Origin { requested, ours } = origin;
    let scores = |it: &Value| it.setting() == Setting::OomScoreAdj;
    let says_score = requested.oom_score_adj.is_some() || ours.iter().any(scores);
    let is_news = match known.target.unasked {
        // Of a resize it knows nothing, whenever it is seen.
        Unasked::Resized | Unasked::Doubted => false,
        // The runtime has shown what was asked for, but for the score: of that it showed what we had given.
        Unasked::Nothing => {
            says_score && requested.oom_score_adj != known.view.requested.oom_score_adj
        }
        Unasked::Unheard | Unasked::Unknown => true,
    };
    if !is_news {
        return false;
    }
    known.hear(Unasked::Nothing);
    known.look_again();
    known.ours = ours.into();
    let Container { view, target, .. } = &mut *known;
    // What updates have told since we run is newer.
    let newer = mem::take(&mut view.requested);
    view.requested = view::overlaid(&requested, newer);
    if says_score {
        // But of this none tells.
        view.requested.oom_score_adj = requested.oom_score_adj;
    }
    hub.decide_container(pod, exemption, view, target).ok();
    origin::recall(hub, hub.lacks_word(pod), known);
    true
}

//! What says beside requests how pods are: the kubelet, or a file (`--pods`).
//!
//! A pod's labels and annotations change in the cluster, and no request tells; nor does one say what
//! a pod's containers request. Its source does, and what it says is put in force like a change of
//! policy, pod by pod. Requests bring labels and annotations too, those of the moment. So whoever
//! said something new last is believed:
//!
//! - what a source says stands until a request says something else than requests did before;
//! - what such a request says stands until an answer of the source that was asked for later and has
//!   the pod in it. A kubelet's requests are never newer than what it answers to a later question,
//!   but those of a worker that is at an older state of its pod for long may be older than an earlier
//!   answer.
//!
//! The first request for a pod is something new beside a kubelet's older answer, and not beside a
//! file: who writes down how a pod is to be means it until the file says otherwise, and so it is
//! after a restart too, when only lists tell of the pod.
//!
//! After a restart a kubelet may not answer yet, or not know yet but the pods that it starts by itself.
//! Until it has said something of a pod that was there before us, what a process before us has set of it may
//! be what that had heard, and is not given back for being decided by nobody.

use super::Hub;
use crate::{
    ledger::{Metadata, Pod, Said},
    relist, view,
};
use koord_hooks::PodView;
use koord_model::SandboxId;
use koord_proto::{
    keys::annotation,
    pods::{self, PodId},
};
use std::{
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet},
    mem,
    sync::Arc,
    time::Duration,
};
use tokio::{
    sync::watch,
    time::{Instant, timeout},
};

/// How long the first list and the first words with a runtime wait for a kubelet: one that is up answers in
/// time, one that is down refuses at once, and one that starts may be waiting for us. An update that comes
/// before the first list waits for both, by default for half a second (`--hold-timeout`).
const FIRST_WORD: Duration = Duration::from_millis(250);

/// How long after our start a kubelet is awaited: it starts too, or has not heard from its API server of what
/// it runs. What it does not know by then is somebody else's.
const PATIENCE: Duration = Duration::from_secs(600);

/// How long what a source says of a pod is meant.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Word {
    /// Until it says something else, or nothing about that pod any more: a file.
    #[default]
    Stands,
    /// For the moment at which it was asked: a kubelet. A pod of which it says nothing is about to
    /// end, or it has just been started and does not know it yet; so what was said last is kept.
    OfItsTime,
}

/// One answer of a source.
#[derive(Clone, Debug)]
pub struct PodsAnswer {
    pub pods: Arc<[Arc<pods::Pod>]>,
    pub asked: Instant,
    pub word: Word,
}

/// What the source has said.
#[derive(Debug, Default)]
pub(super) struct Source {
    pods: RefCell<HashMap<PodId, Told>>,
    word: Cell<Word>,
    /// Until when it may have something to say of pods that were there before us that we have not heard yet.
    awaited_until: Cell<Option<Instant>>,
    has_answered: Cell<bool>,
    /// Whether it has answered, or refused to.
    has_spoken: watch::Sender<bool>,
}

/// What it has said last of a pod.
#[derive(Clone, Debug)]
struct Told {
    pod: Arc<pods::Pod>,
    /// When it was asked for the last answer that had the pod in it.
    asked: Instant,
}

// === impl Source ===

impl Source {
    /// What it says of a pod.
    fn of(&self, view: &PodView) -> Option<Told> {
        let pods = self.pods.borrow();
        if pods.is_empty() {
            // Without a source nothing is looked for.
            return None;
        }
        pods.get(&pod_id(view)).cloned()
    }
}

// === impl Told ===

impl Told {
    /// Whether something that was said then is newer.
    fn is_behind(&self, said: Option<Instant>) -> bool {
        said.is_some_and(|said| self.asked <= said)
    }
}

pub(crate) fn pod_id(view: &PodView) -> PodId {
    PodId {
        uid: view.uid.clone(),
        namespace: view.namespace.clone(),
        name: view.name.clone(),
    }
}

// === impl Hub ===

impl Hub {
    /// There is a source that is asked once we run.
    pub(crate) fn await_pods(&self) {
        self.source.word.set(Word::OfItsTime);
        self.source
            .awaited_until
            .set(Some(Instant::now() + PATIENCE));
    }

    /// The source has answered, which is taken in, or has said nothing that can be used.
    pub(crate) fn source_spoke(&self) {
        self.source.has_spoken.send_replace(true);
    }

    /// Resolves when a source that is awaited has spoken, or has taken its time.
    pub(crate) async fn first_word(&self) {
        if self.awaits_pods() {
            let mut spoken = self.source.has_spoken.subscribe();
            // The sender is ours, so it is there.
            timeout(FIRST_WORD, spoken.wait_for(|it| *it)).await.ok();
        }
    }

    /// Whether something may be to be heard yet of a pod that was there before us.
    pub(crate) fn is_unheard(&self, pod: &Pod) -> bool {
        pod.is_listed && self.lacks_word(&pod.view)
    }

    /// The same of one of which lists tell.
    pub(crate) fn lacks_word(&self, view: &PodView) -> bool {
        self.awaits_pods() && self.source.of(view).is_none()
    }

    /// Whether that is so of some pod.
    pub(crate) fn awaits_pods(&self) -> bool {
        self.source.awaited_until.get().is_some()
    }

    /// Awaits the source no longer if it has said something of each pod that was there before us, or has had
    /// its time.
    pub(super) fn hear_out(&self) {
        let Some(until) = self.source.awaited_until.get() else {
            return;
        };
        let mut ledger = self.ledger.borrow_mut();
        let unheard = ledger.pods().filter(|pod| self.lacks_word(&pod.view));
        let unheard: Vec<&Pod> = unheard.collect();
        let lacks_some = unheard.iter().any(|pod| pod.ready && self.is_unheard(pod));
        let is_heard = self.source.has_answered.get() && self.is_whole() && !lacks_some;
        if Instant::now() < until && !is_heard {
            return;
        }
        let unheard: Vec<SandboxId> = unheard.iter().map(|it| it.sandbox.clone()).collect();
        self.source.awaited_until.set(None);
        for sandbox in unheard {
            if let Some(pod) = ledger.pod_mut(&sandbox) {
                relist::recall(self, pod);
                self.queue.push(sandbox);
            }
        }
        self.queue.push_node();
    }

    /// Takes in an answer of the source of pods, and makes the decisions anew about the pods of which
    /// it says something new.
    pub fn take_pods(&self, answer: &PodsAnswer) {
        self.take_answer(answer);
        self.source_spoke();
        self.hear_out();
    }

    fn take_answer(&self, answer: &PodsAnswer) {
        let asked = answer.asked;
        let pods = answer.pods.iter().map(|pod| {
            let pod = pod.clone();
            (pod.id(), Told { pod, asked })
        });
        let mut pods: HashMap<PodId, Told> = pods.collect();
        let mut ledger = self.ledger.borrow_mut();
        let unheard = ledger.pods().filter(|pod| self.lacks_word(&pod.view));
        let unheard: HashSet<SandboxId> = unheard.map(|pod| pod.sandbox.clone()).collect();
        self.source.has_answered.set(true);
        if answer.word == Word::OfItsTime {
            let there: HashSet<PodId> = ledger.pods().map(|pod| pod_id(&pod.view)).collect();
            for (id, told) in self.source.pods.take() {
                if there.contains(&id) {
                    // It is no newer for being kept.
                    pods.entry(id).or_insert(told);
                }
            }
        }
        self.source.pods.replace(pods);
        self.source.word.set(answer.word);
        let mut changed = false;
        for pod in ledger.pods_mut() {
            if self.follow_source(pod) {
                self.decide_again(pod);
                self.queue.push_decided(pod);
                changed = true;
            }
            if unheard.contains(&pod.sandbox) && !self.lacks_word(&pod.view) {
                relist::recall(self, pod);
                self.queue.push(pod.sandbox.clone());
            }
        }
        if changed {
            self.generation.set(self.generation.get() + 1);
        }
    }

    /// Has a pod be as whoever said something new last says. Whether that is different now.
    pub(super) fn follow_source(&self, pod: &mut Pod) -> bool {
        let changed = self.complete(&mut pod.view, &mut pod.said);
        if changed {
            pod.exemption = self.exemption(&pod.view);
        }
        changed
    }

    /// The same for a pod that is not in the ledger.
    pub(crate) fn complete(&self, view: &mut PodView, said: &mut Said) -> bool {
        let told = self.source.of(view);
        if told.is_none() && said.instead.is_none() && view.spec.is_none() {
            return false;
        }
        // Of what a pod asks for as a whole no request says anything.
        let spec = told.as_ref().map(|told| told.pod.spec.clone());
        let resized = view.spec != spec;
        view.spec = spec;
        let before = Metadata {
            labels: mem::take(&mut view.labels),
            annotations: mem::take(&mut view.annotations),
        };
        let instead = said.instead.take();
        let by_requests = instead.unwrap_or_else(|| Box::new(before.clone()));
        let told = told.filter(|told| !told.is_behind(said.at));
        let told = told.map(|told| self.metadata(&told.pod, &by_requests));
        let in_force = match told.filter(|told| *told != *by_requests) {
            Some(told) => {
                said.instead = Some(by_requests);
                told
            }
            None => *by_requests,
        };
        let changed = resized || in_force != before;
        (view.labels, view.annotations) = (in_force.labels, in_force.annotations);
        changed
    }

    /// Labels and annotations as the source says them. Our own annotation on a sandbox tells what its
    /// containers have from it, whatever became of the pod since.
    fn metadata(&self, told: &pods::Pod, by_requests: &Metadata) -> Metadata {
        let key = annotation::ORIGINALS;
        let ours = by_requests.annotations.get(key).map(|text| (key, text));
        let theirs = view::texts(&told.annotations).filter(|(it, _)| *it != key);
        let inputs = self.policy().inputs();
        let (labels, annotations) = inputs.of(view::texts(&told.labels), theirs.chain(ours));
        Metadata {
            labels,
            annotations,
        }
    }

    /// When the first request for a pod says something that a source does not know.
    pub(super) fn first_said(&self) -> Said {
        let at = match self.source.word.get() {
            Word::Stands => None,
            Word::OfItsTime => Some(Instant::now()),
        };
        Said { instead: None, at }
    }

    /// The same for a later request, which tells a pod as `view`: that has its texts from here where it
    /// says nothing new, and what they were found to mean.
    pub(super) fn said_again(&self, sandbox: &SandboxId, view: &mut PodView) -> Said {
        let ledger = self.ledger.borrow();
        let Some(known) = ledger.pod(sandbox) else {
            return self.first_said();
        };
        let (labels, annotations) = known.said_by_requests();
        view.annotations =
            mem::take(&mut view.annotations).with_of(annotation::ORIGINALS, annotations);
        let again = (labels, annotations) == (&view.labels, &view.annotations);
        let at = match again {
            true => {
                (view.labels, view.annotations) = (labels.clone(), annotations.clone());
                view.parsed = known.view.parsed.clone();
                known.said.at
            }
            false => Some(Instant::now()),
        };
        Said { instead: None, at }
    }

    /// Takes over what a later call told of a pod, by which it was decided about as `view`. Whether
    /// decisions about it are to be made anew.
    pub(super) fn renew(&self, pod: &mut Pod, mut view: PodView, said: Said) -> bool {
        let known = &pod.view;
        // Of this one the runtime gives containers what the sandbox was made with, whatever its pod says now.
        view.annotations = view
            .annotations
            .with_of(annotation::ORIGINALS, &known.annotations);
        let same = (&known.labels, &known.annotations, &known.spec)
            == (&view.labels, &view.annotations, &view.spec);
        if pod.said.at > said.at {
            // A call that came later was answered before; what this one made was decided by less.
            self.follow_source(pod);
            return true;
        }
        pod.said = said;
        // Each meaning is beside its text. What only containers' hooks read was found by this call.
        pod.view.parsed = view.parsed;
        if !same {
            (pod.view.labels, pod.view.annotations, pod.view.spec) =
                (view.labels, view.annotations, view.spec);
            pod.exemption = self.exemption(&pod.view);
        }
        // The source may have answered since.
        self.follow_source(pod) || !same
    }
}

#[cfg(test)]
mod tests;

//! Who waits to be looked at: pods, each once, and what is of the node.

use super::{
    Part, ThreadWork, Work,
    devices::Devices,
    hang::{Hang, Of},
    recall::Recalled,
    slow::Slow,
};
use crate::{
    hub::Hub,
    ledger::{Ledger, Pod, Target},
};
use koord_model::SandboxId;
use std::{
    cell::{Cell, RefCell},
    collections::{BTreeSet, HashSet, VecDeque},
    time::Duration,
};
use tokio::{
    sync::Notify,
    task::yield_now,
    time::{Instant, sleep_until, timeout_at},
};

/// How long after word of a pod the rest of it is looked at, at most. What is told of it in a row, as of a
/// container's start, costs one look, and hardly anything of it shares the CPUs with that.
const SOON: Duration = Duration::from_millis(50);

/// Whoever asks one thing after the other leaves less between two.
const PAUSE: Duration = Duration::from_millis(2);
/// How long what is to be looked at gives way to questions, at most, and then does not for as long.
const GIVES_WAY: Duration = Duration::from_millis(20);

/// Pods in the order in which they were pushed, each once.
#[derive(Debug, Default)]
struct Line(VecDeque<SandboxId>, HashSet<SandboxId>);

/// Pods that wait to be looked at.
#[derive(Debug)]
pub(crate) struct Queue {
    waiting: RefCell<Line>,
    /// Those that were decided about anew: what is new of them comes before anything else of any pod.
    changed: RefCell<Line>,
    /// Those that are to wait from a moment on.
    later: RefCell<BTreeSet<(Instant, SandboxId)>>,
    /// Those that are looked at a little later, and when.
    soon: RefCell<Option<(Instant, Line)>>,
    /// Tiers and host applications.
    node: Cell<bool>,
    /// Those whose threads are to be brought into their groups: all of them, or what is new of them, which
    /// comes first.
    threads: RefCell<Line>,
    new_threads: RefCell<Line>,
    /// Groups that nobody may want any more.
    groups: Cell<bool>,
    /// What the network plugin is told, and what queues there are.
    network: Cell<bool>,
    pushed: Notify,
    threads_pushed: Notify,
    /// When a runtime asked something last, and waits for the answer.
    asked: Cell<Option<Instant>>,
    /// Until then nothing gives way to questions.
    insists: Cell<Option<Instant>>,
    /// No pod waits, and the network plugin is to be told.
    pub(super) tells: Notify,
    /// The same of the queues.
    pub(super) shapes: Notify,
    pub(super) slow: Slow,
    pub(super) devices: Devices,
    pub(super) hang: Hang,
    pub(super) device_hang: Hang,
    pub(super) thread_hang: Hang,
    pub(super) recalled: Recalled,
}

// === impl Line ===

impl Line {
    /// False if it is in there.
    fn push(&mut self, sandbox: SandboxId) -> bool {
        let is_new = self.1.insert(sandbox.clone());
        if is_new {
            self.0.push_back(sandbox);
        }
        is_new
    }

    fn pop(&mut self) -> Option<SandboxId> {
        let sandbox = self.0.pop_front()?;
        self.1.remove(&sandbox);
        Some(sandbox)
    }

    fn retain(&mut self, stays: impl Fn(&SandboxId) -> bool) {
        self.0.retain(&stays);
        self.1.retain(stays);
    }
}

// === impl Queue ===

impl Default for Queue {
    fn default() -> Self {
        Self {
            waiting: RefCell::default(),
            changed: RefCell::default(),
            later: RefCell::default(),
            soon: RefCell::default(),
            node: Cell::default(),
            threads: RefCell::default(),
            new_threads: RefCell::default(),
            groups: Cell::default(),
            network: Cell::default(),
            pushed: Notify::default(),
            threads_pushed: Notify::default(),
            asked: Cell::default(),
            insists: Cell::default(),
            tells: Notify::default(),
            shapes: Notify::default(),
            slow: Slow::default(),
            devices: Devices::default(),
            hang: Hang::new(Of::Settings),
            device_hang: Hang::new(Of::Devices),
            thread_hang: Hang::new(Of::Threads),
            recalled: Recalled::default(),
        }
    }
}

impl Queue {
    pub(crate) fn push(&self, sandbox: SandboxId) {
        if self.waiting.borrow_mut().push(sandbox) {
            self.pushed.notify_one();
        }
    }

    /// A pod was decided about anew.
    pub(crate) fn push_decided(&self, pod: &Pod) {
        self.push_if_new(pod);
        self.push(pod.sandbox.clone());
    }

    /// The same where nothing is to be looked at but what is decided otherwise than before.
    pub(crate) fn push_if_new(&self, pod: &Pod) {
        let targets = pod.containers.iter().map(|container| &container.target);
        let mut entries = [&pod.own, &pod.pause]
            .into_iter()
            .chain(targets)
            .flat_map(Target::entries);
        if entries.any(|entry| Part::New.has(entry))
            && self.changed.borrow_mut().push(pod.sandbox.clone())
        {
            self.pushed.notify_one();
        }
    }

    /// Has a pod looked at at this moment too, whatever comes before.
    pub(crate) fn push_at(&self, moment: Instant, sandbox: SandboxId) {
        self.later.borrow_mut().insert((moment, sandbox));
        // Who waits may have to wait for less.
        self.pushed.notify_one();
    }

    /// Has a pod looked at at this moment, unless it is to be before that.
    pub(crate) fn push_by(&self, moment: Instant, sandbox: SandboxId) {
        let is_due = {
            let later = self.later.borrow();
            let mut before = later.iter().take_while(|(due, _)| *due <= moment);
            before.any(|(_, of)| *of == sandbox)
        };
        if !is_due {
            self.push_at(moment, sandbox);
        }
    }

    /// Has a pod looked at in a moment, once, however much is told of it until then. What nobody has held
    /// against the kernel yet does not wait so long: it is its caller's, or
    /// [`push_if_new`](Self::push_if_new)'s.
    pub(crate) fn push_soon(&self, sandbox: SandboxId) {
        let mut soon = self.soon.borrow_mut();
        if soon.is_none() {
            // Who waits may have to wait for less.
            self.pushed.notify_one();
        }
        let (_, pods) = soon.get_or_insert_with(|| (Instant::now() + SOON, Line::default()));
        pods.push(sandbox);
    }

    fn push_these(&self, pods: Option<(Instant, Line)>) {
        let pods = pods.into_iter().flat_map(|(_, Line(pods, _))| pods);
        pods.for_each(|sandbox| self.push(sandbox));
    }

    /// When the next pod's moment comes.
    fn moment(&self) -> Option<Instant> {
        let later = self.later.borrow().first().map(|(moment, _)| *moment);
        let soon = self.soon.borrow().as_ref().map(|(moment, _)| *moment);
        later.into_iter().chain(soon).min()
    }

    /// Pushes the pods whose moment has come.
    fn push_due(&self, now: Instant) {
        let soon = self.soon.borrow_mut().take_if(|(moment, _)| *moment <= now);
        self.push_these(soon);
        let mut later = self.later.borrow_mut();
        while later.first().is_some_and(|(moment, _)| *moment <= now)
            && let Some((_, sandbox)) = later.pop_first()
        {
            self.push(sandbox);
        }
    }

    pub(super) fn push_all(&self, ledger: &Ledger) {
        for pod in ledger.pods() {
            self.push(pod.sandbox.clone());
        }
        self.push_node();
    }

    pub(crate) fn push_node(&self) {
        self.node.set(true);
        self.network.set(true);
        self.pushed.notify_one();
        self.push_groups();
    }

    /// Has the groups that nobody wants any more removed, once no pod waits that may.
    pub(crate) fn push_groups(&self) {
        self.groups.set(true);
        self.threads_pushed.notify_one();
    }

    /// Has those threads of a pod brought into their groups, before those of all others, that were not yet.
    pub(crate) fn push_new_threads(&self, sandbox: SandboxId) {
        self.push_threads(sandbox, Part::New);
    }

    /// Has the threads of a pod brought into their groups.
    pub(super) fn push_threads(&self, sandbox: SandboxId, part: Part) {
        let line = match part {
            Part::Whole => &self.threads,
            Part::New => &self.new_threads,
        };
        if line.borrow_mut().push(sandbox) {
            self.threads_pushed.notify_one();
        }
    }

    pub(super) fn pop_threads(&self) -> Option<ThreadWork> {
        if let Some(sandbox) = self.new_threads.borrow_mut().pop() {
            return Some(ThreadWork::Pod(sandbox, Part::New));
        }
        if let Some(sandbox) = self.threads.borrow_mut().pop() {
            return Some(ThreadWork::Pod(sandbox, Part::Whole));
        }
        // Threads of those that wait may still be in them.
        let nobody_waits = [&self.changed, &self.waiting];
        let nobody_waits = nobody_waits.iter().all(|line| line.borrow().0.is_empty());
        (nobody_waits && self.groups.take()).then_some(ThreadWork::Groups)
    }

    pub(super) async fn next_threads(&self) -> ThreadWork {
        loop {
            let lines = [&self.new_threads, &self.threads];
            if self.groups.get() || lines.iter().any(|line| !line.borrow().0.is_empty()) {
                self.give_way().await;
            }
            match self.pop_threads() {
                Some(work) => return work,
                None => self.threads_pushed.notified().await,
            }
        }
    }

    /// Has the network plugin told of all pods, and the queues of the network made for them, once none
    /// waits.
    pub(crate) fn push_network(&self) {
        self.network.set(true);
        self.pushed.notify_one();
    }

    pub(super) fn pop(&self) -> Option<Work> {
        self.push_due(Instant::now());
        if self.node.take() {
            return Some(Work::Node);
        }
        if let Some(sandbox) = self.changed.borrow_mut().pop() {
            return Some(Work::Pod(sandbox, Part::New));
        }
        if let Some(sandbox) = self.waiting.borrow_mut().pop() {
            return Some(Work::Pod(sandbox, Part::Whole));
        }
        if self.groups.get() {
            // They have waited for these.
            self.threads_pushed.notify_one();
        }
        self.network.take().then_some(Work::Network)
    }

    /// Pods have left the ledger.
    pub(crate) fn forget_all_but(&self, ledger: &Ledger, hub: &Hub) {
        let is_there = |sandbox: &SandboxId| ledger.pod(sandbox).is_some();
        for line in [
            &self.waiting,
            &self.changed,
            &self.threads,
            &self.new_threads,
        ] {
            line.borrow_mut().retain(is_there);
        }
        if let Some((_, soon)) = self.soon.borrow_mut().as_mut() {
            soon.retain(is_there);
        }
        let is_later = |(_, sandbox): &(Instant, SandboxId)| is_there(sandbox);
        self.later.borrow_mut().retain(is_later);
        self.slow.forget_all_but(ledger, hub);
        self.devices.forget_all_but(ledger);
    }

    /// What a person should know of memory that is not reclaimed.
    pub(crate) fn standstill(&self) -> Option<&'static str> {
        self.slow.standstill()
    }

    /// The same of threads of ours that hang.
    pub(crate) fn hang_remarks(&self, hub: &Hub) -> impl Iterator<Item = String> {
        let hangs = [&self.hang, &self.device_hang, &self.thread_hang];
        hangs.into_iter().filter_map(|hang| hang.remark(hub))
    }

    /// The pods that wait, which do so no more.
    #[cfg(test)]
    pub(crate) fn drain(&self) -> Vec<SandboxId> {
        self.push_these(self.soon.take());
        let pods = std::iter::from_fn(|| self.pop());
        pods.filter_map(|work| match work {
            Work::Pod(sandbox, Part::Whole) => Some(sandbox),
            _ => None,
        })
        .collect()
    }

    /// Whether a pod is looked at as soon as somebody can.
    #[cfg(test)]
    pub(crate) fn is_pressed(&self) -> bool {
        !self.waiting.borrow().0.is_empty()
    }

    /// Whether tiers and host applications wait.
    #[cfg(test)]
    pub(crate) fn has_node(&self) -> bool {
        self.node.get()
    }

    /// A runtime asks something, and goes on with the answer.
    pub(crate) fn note_asked(&self) {
        self.asked.set(Some(Instant::now()));
    }

    /// Waits until there is a pause between questions, or has given way to them for long: what an answer needs
    /// of the kernel it has written itself, and the rest would take the CPU from the next one.
    async fn give_way(&self) {
        // Whoever has pushed what is looked at may have an answer to give.
        yield_now().await;
        let begun = Instant::now();
        let until = begun + GIVES_WAY;
        loop {
            let now = Instant::now();
            let pause = self.asked.get().map(|asked| asked + PAUSE);
            let Some(pause) = pause.filter(|pause| *pause > now) else {
                return;
            };
            if self.insists.get().is_some_and(|it| it > now) {
                return;
            }
            if now >= until {
                return self.insists.set(Some(now + GIVES_WAY));
            }
            sleep_until(pause.min(until)).await;
        }
    }

    /// Whether somebody waits to be looked at.
    fn has_work(&self) -> bool {
        self.push_due(Instant::now());
        let lines = [&self.changed, &self.waiting];
        let waits = lines.iter().any(|line| !line.borrow().0.is_empty());
        waits || self.node.get() || self.network.get()
    }

    pub(super) async fn next(&self) -> Work {
        loop {
            // What has come by then may go before what waits now.
            if self.has_work() {
                self.give_way().await;
            }
            if let Some(work) = self.pop() {
                return work;
            }
            let moment = self.moment();
            let pushed = self.pushed.notified();
            match moment {
                Some(moment) => drop(timeout_at(moment, pushed).await),
                None => pushed.await,
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::rc::Rc;
    use tokio::{
        task::{LocalSet, spawn_local},
        time::sleep,
    };

    /// How long what is looked at gives way, while somebody asks every millisecond for so long.
    async fn given_way(queue: &Rc<Queue>, questions: Duration) -> u128 {
        let (asking, begun) = (queue.clone(), Instant::now());
        asking.note_asked();
        let asks = spawn_local(async move {
            while begun.elapsed() < questions {
                sleep(PAUSE / 2).await;
                asking.note_asked();
            }
        });
        queue.give_way().await;
        let took = begun.elapsed().as_millis();
        asks.abort();
        took
    }

    #[tokio::test(start_paused = true)]
    async fn a_look_waits_for_a_pause_between_questions_and_no_longer_than_twenty_milliseconds() {
        let test = async {
            let queue = Rc::new(Queue::default());
            let begun = Instant::now();
            queue.give_way().await;
            assert_eq!(begun.elapsed(), Duration::ZERO);
            let took = given_way(&queue, Duration::from_millis(5)).await;
            assert!((5..=8).contains(&took), "{took}");
            // In half of all time it does not give way, however much is asked.
            let long = Duration::from_secs(1);
            let took = given_way(&queue, long).await;
            assert!((20..=22).contains(&took), "{took}");
            assert!(given_way(&queue, long).await <= 1);
            sleep(GIVES_WAY).await;
            let took = given_way(&queue, long).await;
            assert!((20..=22).contains(&took), "{took}");
        };
        LocalSet::new().run_until(test).await;
    }
}

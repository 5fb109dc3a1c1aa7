//! Writes for which the kernel reclaims memory first.
//!
//! That takes seconds, and where memory goes to a disk or a server that does not answer it never ends.
//! So they are done beside all else, by a few threads of which each has what is of one pod at a time,
//! and noted when they come. A pod whose memory stands still has one thread, and nobody else waits for
//! it. Where as many do as there are threads, the rest waits, and a person is told.
//!
//! Of a pod a thread writes one change after the other. While it stands still over one, others may be
//! decided otherwise: each is written only if it is wanted when its own turn comes, and what needs no
//! memory any more, of a group that is not being written, does not wait at all.

use super::whose::Whose;
use crate::{apply::kernel::RECLAIMERS, hub::Hub, ledger::Ledger, log::Name};
use koord_kernel::cgroup::Change;
use koord_model::CgroupPath;
use std::{
    array,
    cell::{Cell, RefCell},
    collections::{HashMap, HashSet, VecDeque},
    mem,
    rc::Rc,
    slice,
    time::Duration,
};
use tokio::{
    sync::Notify,
    time::{Instant, sleep, timeout_at},
};
use tracing::{info, warn};

/// How long no thread gets free for those that wait before a person is told.
const PATIENCE: Duration = Duration::from_secs(60);

/// How often a thread that cannot be had is tried again.
pub(super) const RETRY: Duration = Duration::from_secs(1);

/// What a person has to know then.
const STANDSTILL: &str =
    "the kernel does not get done reclaiming memory: new memory limits of other pods wait";

/// What waits for the threads that reclaim, and what they have.
#[derive(Debug, Default)]
pub(super) struct Slow {
    state: RefCell<State>,
    /// Since when no thread has been free for those that wait.
    full_since: Cell<Option<Instant>>,
    /// Since when that lasts of which a person was told.
    told: Cell<Option<Instant>>,
    pushed: Notify,
    moved: Notify,
}

#[derive(Debug, Default)]
struct State {
    /// That there are: one may not be had.
    threads: usize,
    /// In the order in which they were pushed first.
    line: VecDeque<Whose>,
    /// Of each of them.
    waiting: HashMap<Whose, Vec<Change>>,
    /// What the threads have, and of which groups that is.
    under_way: Vec<(Whose, Vec<CgroupPath>)>,
    /// Who has more for what a thread has: they are looked at anew when it has written the next of it.
    behind: HashSet<Whose>,
}

// === impl State ===

impl State {
    fn push(&mut self, whose: Whose, changes: Vec<Change>) {
        if self.under_way.iter().any(|(it, _)| *it == whose) {
            self.behind.insert(whose);
            return;
        }
        let is_new = !self.waiting.contains_key(&whose);
        let waiting = self.waiting.entry(whose.clone()).or_default();
        // Who brings them may have looked at a part of it. What is not wanted any more is left out later.
        let key = |it: &Change| (it.at.clone(), it.value.setting());
        waiting.retain(|it| !changes.iter().any(|new| key(new) == key(it)));
        waiting.extend(changes);
        if is_new {
            self.line.push_back(whose);
        }
    }

    fn pop(&mut self) -> Option<(Whose, Vec<Change>)> {
        let whose = self.line.pop_front()?;
        let changes = self.waiting.remove(&whose).expect("it is in the line");
        Some((whose, changes))
    }

    /// Gives these to a thread. False if one has others of their groups, as of a sandbox that the same
    /// pod had before.
    fn begin(&mut self, whose: &Whose, changes: &[Change]) -> bool {
        let is_there = |at: &CgroupPath| changes.iter().any(|it| it.at == *at);
        if self.under_way.iter().any(|(_, at)| at.iter().any(is_there)) {
            self.behind.insert(whose.clone());
            return false;
        }
        let groups = changes.iter().map(|it| it.at.clone()).collect();
        self.under_way.push((whose.clone(), groups));
        true
    }

    /// Whether some wait because all threads there are have something. That there is none the worker
    /// tells.
    fn is_full(&self) -> bool {
        let is_busy = self.threads > 0 && self.under_way.len() >= self.threads;
        is_busy && !self.line.is_empty()
    }

    fn pods_waiting(&self) -> usize {
        let is_pod = |whose: &&Whose| matches!(whose, Whose::Pod(_));
        self.line.iter().filter(is_pod).count()
    }
}

// === impl Slow ===

impl Slow {
    /// Drops what waits of pods that are gone.
    pub(super) fn forget_all_but(&self, ledger: &Ledger, hub: &Hub) {
        let mut state = self.state.borrow_mut();
        if state.waiting.is_empty() && state.behind.is_empty() {
            return;
        }
        let is_there = |whose: &Whose| whose.is_in(ledger);
        state.line.retain(is_there);
        state.waiting.retain(|whose, _| is_there(whose));
        state.behind.retain(is_there);
        drop(state);
        self.note(hub);
    }

    /// Whether nothing waits and nothing is under way.
    pub(super) fn is_done(&self) -> bool {
        let state = self.state.borrow();
        state.line.is_empty() && state.under_way.is_empty()
    }

    pub(super) fn standstill(&self) -> Option<&'static str> {
        self.told.get().map(|_| STANDSTILL)
    }

    /// Something was pushed, or a thread has begun or ended something.
    fn note(&self, hub: &Hub) {
        let state = self.state.borrow();
        let (under_way, waiting) = (state.under_way.len(), state.line.len());
        hub.metrics().memory_reclaims(under_way, waiting);
        let since = self.full_since.get().unwrap_or_else(Instant::now);
        self.full_since.set(state.is_full().then_some(since));
        self.moved.notify_one();
    }
}

/// Has these written when a thread is free; they take the place of what waits of the same settings of the
/// same groups.
pub(super) fn push(hub: &Hub, whose: Whose, changes: Vec<Change>) {
    let slow = &hub.queue().slow;
    slow.state.borrow_mut().push(whose, changes);
    slow.pushed.notify_one();
    slow.note(hub);
}

/// Has the writes done as they are pushed; never ends.
pub(super) async fn run(hub: &Rc<Hub>) {
    let threads: [_; RECLAIMERS] = array::from_fn(|thread| serve(hub, thread));
    let [first, second, third, fourth] = threads;
    tokio::join!(first, second, third, fourth, tell(hub));
}

/// Keeps one of the threads at work, once it can be had.
async fn serve(hub: &Rc<Hub>, thread: usize) {
    while !hub.writer().can_reclaim(thread) {
        sleep(RETRY).await;
    }
    let slow = &hub.queue().slow;
    slow.state.borrow_mut().threads += 1;
    slow.note(hub);
    loop {
        let (whose, mut changes) = begin(hub).await;
        // From the bottom up, as limits go that are lowered at once.
        changes.sort_by_key(|change| change.at.depth());
        while let Some(change) = changes.pop() {
            write(hub, thread, &whose, &change).await;
        }
        end(hub, &whose);
    }
}

/// What is to be done next.
async fn begin(hub: &Hub) -> (Whose, Vec<Change>) {
    let slow = &hub.queue().slow;
    loop {
        let next = slow.state.borrow_mut().pop();
        let Some((whose, mut changes)) = next else {
            slow.pushed.notified().await;
            continue;
        };
        let wanted = whose.wanted(hub);
        changes.retain(|change| wanted.iter().any(|it| it.is_same(change)));
        let begins = !changes.is_empty() && slow.state.borrow_mut().begin(&whose, &changes);
        slow.note(hub);
        if begins {
            return (whose, changes);
        }
    }
}

/// Has one of them written, unless it was decided otherwise while it waited for those before it.
async fn write(hub: &Hub, thread: usize, whose: &Whose, change: &Change) {
    let is_wanted = || whose.wanted(hub).iter().any(|it| it.is_same(change));
    let writer = hub.writer();
    let outcome = writer.reclaim(thread, change.clone(), is_wanted).await;
    whose.note(hub, slice::from_ref(change), outcome.as_slice());
    // What came of this group meanwhile may need no memory, and the next may stand still for ever.
    look_anew(hub);
}

fn end(hub: &Hub, whose: &Whose) {
    let slow = &hub.queue().slow;
    let mut state = slow.state.borrow_mut();
    state.under_way.retain(|(it, _)| it != whose);
    drop(state);
    look_anew(hub);
    slow.note(hub);
}

/// Has those looked at who have more.
fn look_anew(hub: &Hub) {
    let queue = hub.queue();
    let behind = mem::take(&mut queue.slow.state.borrow_mut().behind);
    for whose in behind {
        match whose {
            Whose::Pod(sandbox) => queue.push(sandbox),
            Whose::Node => queue.push_node(),
        }
    }
}

/// Tells when no thread gets free for those that wait, and when one did after all; never ends.
async fn tell(hub: &Rc<Hub>) {
    let slow = &hub.queue().slow;
    loop {
        let moved = slow.moved.notified();
        let since = slow.full_since.get();
        match (since, slow.told.get()) {
            // Since then a thread has got free, and perhaps has had the next one for long enough.
            (_, Some(_)) if since != slow.told.get() => {
                slow.told.set(None);
                info!("the kernel gets on with reclaiming memory");
            }
            (Some(since), None) => {
                let lasts = timeout_at(since + PATIENCE, moved).await.is_err();
                if lasts && slow.full_since.get() == Some(since) {
                    slow.told.set(Some(since));
                    let pods = slow.state.borrow().pods_waiting();
                    let reason = reason(hub);
                    warn!(reason, pods, "{STANDSTILL}");
                }
            }
            _ => moved.await,
        }
    }
}

/// Whose memory it is, as people call them.
fn reason(hub: &Hub) -> String {
    let ledger = hub.ledger().borrow();
    let state = hub.queue().slow.state.borrow();
    let name = |(whose, _): &(Whose, Vec<CgroupPath>)| match whose {
        Whose::Pod(sandbox) => match ledger.pod(sandbox) {
            Some(pod) => format!("{}/{}", Name(&pod.view.namespace), Name(&pod.view.name)),
            None => sandbox.to_string(),
        },
        Whose::Node => "the node's own groups".to_owned(),
    };
    let names: Vec<String> = state.under_way.iter().map(name).collect();
    format!("memory of {} stands still", names.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::testing::{Bench, sandbox};
    use koord_kernel::{
        cgroup::{Controller, Generation, Tree},
        fake::FakeTree,
    };
    use koord_model::{MemoryLimit, SandboxId, Value};
    use tokio::time::timeout;

    fn bench() -> Bench {
        Bench::with_pod(FakeTree::new(Generation::V2, 2))
    }

    fn pod(name: &str) -> Whose {
        Whose::Pod(SandboxId::new(name).unwrap())
    }

    /// A limit of the pod's container.
    fn limit(bench: &Bench, bytes: u64) -> Vec<Change> {
        vec![Change {
            at: bench.container.clone(),
            value: Value::MemoryLimit(MemoryLimit::Bytes(bytes)),
            gives_back: false,
            of_container: true,
            may_return: false,
        }]
    }

    /// Who is next, if it may be begun now.
    async fn next(bench: &Bench) -> Option<Whose> {
        let begun = timeout(Duration::ZERO, begin(&bench.hub)).await;
        begun.ok().map(|(whose, _)| whose)
    }

    /// Has all threads stand still.
    fn stand_still(bench: &Bench) {
        bench.hub.queue().slow.state.borrow_mut().threads = RECLAIMERS;
        for number in 0..RECLAIMERS {
            let whose = pod(&format!("other-{number}"));
            let mut state = bench.hub.queue().slow.state.borrow_mut();
            assert!(state.begin(&whose, &[]));
        }
    }

    fn waiting(bench: &Bench) -> usize {
        let state = bench.hub.queue().slow.state.borrow();
        assert_eq!(state.line.len(), state.waiting.len());
        state.line.len() + state.behind.len()
    }

    #[tokio::test(start_paused = true)]
    async fn threads_that_all_stand_still_while_others_wait_are_told_after_a_minute() {
        let bench = bench();
        let standstill = || bench.hub.queue().standstill().is_some();
        let told = async {
            stand_still(&bench);
            sleep(Duration::from_secs(600)).await;
            assert!(!standstill(), "nobody waits");
            push(&bench.hub, pod("sandbox-1"), limit(&bench, 1 << 30));
            sleep(Duration::from_secs(59)).await;
            assert!(!standstill());
            sleep(Duration::from_secs(2)).await;
            assert!(standstill());
            // The thread that gets free has the next one at once, and another waits on.
            push(&bench.hub, pod("gone"), Vec::new());
            end(&bench.hub, &pod("other-1"));
            assert_eq!(next(&bench).await, Some(pod("sandbox-1")));
            sleep(Duration::from_secs(50)).await;
            assert!(!standstill());
            sleep(Duration::from_secs(11)).await;
            assert!(standstill());
            let hub = &bench.hub;
            hub.queue().forget_all_but(&hub.ledger().borrow(), hub);
            sleep(Duration::from_secs(1)).await;
            assert!(!standstill(), "nobody waits any more");
        };
        tokio::select! {
            () = tell(&bench.hub) => unreachable!("it never ends"),
            () = told => {}
        }
    }

    #[tokio::test(start_paused = true)]
    async fn where_no_thread_can_be_had_nothing_is_said_to_stand_still() {
        let bench = bench();
        push(&bench.hub, pod("sandbox-1"), limit(&bench, 1 << 30));
        let told = timeout(Duration::from_secs(600), tell(&bench.hub)).await;
        assert!(told.is_err(), "it never ends");
        assert_eq!(bench.hub.queue().standstill(), None);
    }

    #[tokio::test]
    async fn what_stands_still_is_named_and_the_pods_that_wait_are_counted() {
        let bench = bench();
        push(&bench.hub, pod("sandbox-1"), limit(&bench, 1 << 30));
        assert_eq!(next(&bench).await, Some(pod("sandbox-1")));
        let queue = bench.hub.queue();
        assert!(queue.slow.state.borrow_mut().begin(&Whose::Node, &[]));
        assert_eq!(
            reason(&bench.hub),
            "memory of default/batch, the node's own groups stands still"
        );
        push(&bench.hub, pod("sandbox-2"), Vec::new());
        assert_eq!(queue.slow.state.borrow().pods_waiting(), 1);
        end(&bench.hub, &Whose::Node);
        push(&bench.hub, Whose::Node, Vec::new());
        assert_eq!(queue.slow.state.borrow().pods_waiting(), 1);
    }

    #[test]
    fn a_look_at_a_part_of_a_pod_leaves_the_rest_waiting() {
        let limit = |group, bytes| Change {
            at: CgroupPath::parse(group).unwrap(),
            value: Value::MemoryLimit(MemoryLimit::Bytes(bytes)),
            gives_back: false,
            of_container: false,
            may_return: false,
        };
        let mut state = State::default();
        for changes in [
            vec![limit("pod/a", 2), limit("pod/b", 2)],
            vec![limit("pod/b", 1)],
        ] {
            state.push(pod("sandbox-1"), changes);
        }
        let all = vec![limit("pod/a", 2), limit("pod/b", 1)];
        assert_eq!(state.pop(), Some((pod("sandbox-1"), all)));
        assert_eq!(state.pop(), None);
    }

    #[tokio::test]
    async fn a_group_is_never_with_two_threads() {
        let bench = bench();
        let queue = bench.hub.queue();
        push(&bench.hub, pod("sandbox-1"), limit(&bench, 1 << 30));
        assert_eq!(next(&bench).await, Some(pod("sandbox-1")));
        // The same pod, and the next sandbox of it.
        let mut again = bench.hub.ledger().borrow().pod(&sandbox()).unwrap().clone();
        again.sandbox = SandboxId::new("sandbox-2").unwrap();
        bench.hub.ledger().borrow_mut().list_pod(again);
        for name in ["sandbox-1", "sandbox-2"] {
            push(&bench.hub, pod(name), limit(&bench, 1 << 30));
            assert_eq!(next(&bench).await, None, "{name}");
        }
        queue.drain();
        end(&bench.hub, &pod("sandbox-1"));
        let mut looked_at = queue.drain();
        looked_at.sort();
        assert_eq!(
            looked_at,
            ["sandbox-1", "sandbox-2"].map(|name| SandboxId::new(name).unwrap())
        );
    }

    #[tokio::test]
    async fn who_has_more_is_looked_at_before_the_rest_of_a_pod_is_written() {
        let bench = bench();
        push(&bench.hub, pod("sandbox-1"), limit(&bench, 1 << 30));
        assert_eq!(next(&bench).await, Some(pod("sandbox-1")));
        let queue = bench.hub.queue();
        queue.drain();
        push(&bench.hub, pod("sandbox-1"), limit(&bench, 1 << 30));
        // Nobody wants that one, so nothing comes of it that would be looked at.
        let withdrawn = limit(&bench, 1 << 20).remove(0);
        write(&bench.hub, 0, &pod("sandbox-1"), &withdrawn).await;
        assert_eq!(queue.drain(), [sandbox()]);
        assert_eq!(bench.tree.take_writes(), []);
    }

    #[tokio::test]
    async fn what_waits_is_written_as_it_is_wanted_then() {
        let bench = bench();
        push(&bench.hub, pod("sandbox-1"), limit(&bench, 1 << 20));
        assert_eq!(next(&bench).await, None, "it was decided otherwise");
        push(&bench.hub, pod("sandbox-1"), limit(&bench, 1 << 20));
        push(&bench.hub, pod("sandbox-1"), limit(&bench, 1 << 30));
        assert_eq!(next(&bench).await, Some(pod("sandbox-1")));
        assert_eq!(waiting(&bench), 0);
    }

    #[tokio::test]
    async fn what_is_given_back_to_koordlet_waits_no_more_once_that_has_written_its_own() {
        let bench = bench();
        {
            let mut ledger = bench.hub.ledger().borrow_mut();
            let pod = ledger.pod_mut(&sandbox()).unwrap();
            let asked = Some(MemoryLimit::Bytes(1 << 20));
            pod.containers[0].view.requested.memory_limit = asked;
            bench.hub.decide_again(pod);
        }
        crate::reconcile::pod(&bench.hub, &sandbox()).await;
        bench.hub.set_resting(["BatchResource"].into());
        let back = || {
            let limit = limit(&bench, 1 << 20).into_iter();
            let back = limit.map(|change| Change {
                gives_back: true,
                ..change
            });
            back.collect()
        };
        push(&bench.hub, pod("sandbox-1"), back());
        assert_eq!(next(&bench).await, Some(pod("sandbox-1")));
        end(&bench.hub, &pod("sandbox-1"));
        let (at, file) = (&bench.container, "memory.max");
        let written = bench.tree.write(Controller::Memory, at, file, "2147483648");
        written.unwrap();
        push(&bench.hub, pod("sandbox-1"), back());
        assert_eq!(next(&bench).await, None);
    }

    #[tokio::test]
    async fn of_pods_that_are_gone_nothing_waits() {
        let bench = bench();
        stand_still(&bench);
        push(&bench.hub, pod("sandbox-1"), limit(&bench, 1 << 30));
        push(&bench.hub, pod("other-1"), Vec::new());
        push(&bench.hub, Whose::Node, Vec::new());
        assert_eq!(waiting(&bench), 3);
        bench.hub.sandbox_removed("sandbox-1");
        let state = bench.hub.queue().slow.state.borrow();
        assert_eq!(state.line, [Whose::Node]);
        drop(state);
        assert_eq!(waiting(&bench), 1);
    }
}

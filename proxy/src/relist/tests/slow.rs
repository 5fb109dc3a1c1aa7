//! A runtime that answers every question about a single pod or container in time, and none of them soon.

use super::*;
use crate::{apply::traffic::Traffic, ledger::Addresses};
use std::{cell::Cell, collections::HashMap, sync::mpsc, vec};
use tokio::{task, time};

const SANDBOXES: &str = "/runtime.v1.RuntimeService/ListPodSandbox";
const CONTAINERS: &str = "/runtime.v1.RuntimeService/ListContainers";
const SANDBOX_STATUS: &str = "/runtime.v1.RuntimeService/PodSandboxStatus";
const STATUS: &str = "/runtime.v1.RuntimeService/ContainerStatus";

/// What each question takes: a late one takes a second.
const TAKES: Duration = Duration::from_millis(900);
/// A list has time for so many of these, and each of its later three steps for one more.
const IN_TIME: usize = 12;

/// The time of a test, which passes while a question is asked and at no other moment, however busy the
/// machine is.
struct Slowly {
    script: Script,
    gates: HashMap<&'static str, vec::IntoIter<Gate>>,
    answered: usize,
    _stands: mpsc::Sender<()>,
}

// === impl Slowly ===

impl Slowly {
    /// Questions are answered so, by their paths.
    #[expect(
        clippy::disallowed_methods,
        reason = "a thread of the test's own, which ends with it"
    )]
    fn answering(listed: &Scripted, replies: &[(&'static str, Reply)]) -> Self {
        let (stands, over) = mpsc::channel();
        // Paused time goes on by itself whenever nothing is to be done, but beside one that blocks.
        drop(task::spawn_blocking(move || over.recv()));
        let gates = replies.iter().map(|(path, reply)| {
            let gates: Vec<Gate> = (0..200).map(|_| Gate::new()).collect();
            for gate in &gates {
                let reply = reply.clone().held(gate);
                drop(listed.script.clone().once(path, reply));
            }
            (*path, gates.into_iter())
        });
        Self {
            script: listed.script.clone(),
            gates: gates.collect(),
            answered: 0,
            _stands: stands,
        }
    }

    /// What comes of this while time passes.
    async fn with<T>(&mut self, work: impl Future<Output = T>) -> T {
        tokio::select! {
            done = work => done,
            () = self.pass() => unreachable!("it never ends"),
        }
    }

    async fn pass(&mut self) {
        loop {
            for _ in 0..64 {
                task::yield_now().await;
            }
            let calls = self.script.calls().into_iter();
            let mut asked = calls.filter(|call| self.gates.contains_key(&*call.path));
            if let Some(question) = asked.nth(self.answered) {
                time::advance(TAKES).await;
                let gates = self.gates.get_mut(&*question.path).unwrap();
                gates.next().expect("no more are asked").open();
                self.answered += 1;
            }
        }
    }
}

/// Pods that are not where a kubelet's are and send by their queues, and containers of which hooks decide
/// something: of all of these something has to be asked.
fn many() -> (Scripted, Slowly) {
    let tree = FakeTree::new(Generation::V1, 2);
    let bench = Bench::with_traffic(tree, Traffic::by(|_| Ok(false)), true);
    let listed = Scripted::for_bench(bench, listed_pod(), listed_container(), "");
    listed.bench.hub.set_node_policy(addresses::by_queues());
    let pods = (0..60).map(|number| cri::PodSandbox {
        state: cri::PodSandboxState::SandboxReady.into(),
        ..elsewhere(&format!("pod-{number}"))
    });
    let containers = (0..40).map(|number| cri::Container {
        id: format!("container-{number}"),
        pod_sandbox_id: format!("pod-{number}"),
        ..listed_container()
    });
    let (pods, containers) = (list_of(pods), list_of(containers));
    for _ in 0..40 {
        for (path, list) in [(SANDBOXES, &pods), (CONTAINERS, &containers)] {
            let reply = Reply::message(list.clone());
            drop(listed.script.clone().once(path, reply));
        }
    }
    let info = |text: &str| [("info".to_owned(), text.to_owned())].into();
    let pod = cri::PodSandboxStatusResponse {
        info: info(r#"{"config":{"linux":{"cgroup_parent":"/elsewhere"}}}"#),
        status: Some(cri::PodSandboxStatus {
            network: Some(cri::PodSandboxNetworkStatus {
                ip: "10.1.2.3".to_owned(),
                ..Default::default()
            }),
            ..Default::default()
        }),
    };
    let container = cri::ContainerStatusResponse {
        info: info(r#"{"config":{},"runtimeSpec":{}}"#),
    };
    let replies = [
        (SANDBOX_STATUS, Reply::message(pod.encode_to_vec())),
        (STATUS, Reply::message(container.encode_to_vec())),
    ];
    let slowly = Slowly::answering(&listed, &replies);
    (listed, slowly)
}

async fn is_list_wanted(hub: &Hub) -> bool {
    tokio::select! {
        biased;
        () = hub.relist_wanted() => true,
        () = async {} => false,
    }
}

#[tokio::test(start_paused = true)]
async fn a_list_asks_for_so_long_and_each_of_its_steps_at_least_once() {
    let mut patience = Patience::default();
    let asks = async |patience: &mut Patience, takes| {
        let question = async {
            sleep(takes).await;
            Ok(())
        };
        patience.ask(question).await.is_some()
    };
    for _ in 0..500 {
        assert!(asks(&mut patience, Duration::from_millis(2)).await);
    }
    // A second of ten is gone.
    for _ in 0..10 {
        assert!(asks(&mut patience, TAKES).await);
    }
    assert!(!asks(&mut patience, TAKES).await);
    for _ in 0..3 {
        assert!(asks(patience.next_step(), TAKES).await);
        assert!(!asks(&mut patience, TAKES).await);
    }
    // Who was asked about in vain can wait.
    patience.leave(1);
    assert!(!patience.has_left_unasked());
    patience.leave(0);
    assert!(patience.has_left_unasked());
}

#[tokio::test(start_paused = true)]
async fn the_lists_of_a_slow_runtime_are_taken_in_and_each_asks_about_some() {
    let (listed, mut slowly) = many();
    let hub = listed.bench.hub.clone();
    let start = Instant::now();
    let is_all_known = || {
        let ledger = hub.ledger().borrow();
        let own = |pod: &Pod| matches!(pod.addresses, Addresses::Own(_));
        (ledger.pods_len(), ledger.containers_len()) == (60, 40)
            && ledger.pods().all(own)
            && origin::count_unheard(&ledger) == (0, 0)
    };
    let all_known = async {
        while hub.runtime_up().is_none() {
            task::yield_now().await;
        }
        assert!(hub.is_whole() && hub.runtime_is_up());
        let took = start.elapsed();
        assert!(took < Duration::from_secs(15), "{took:?}");
        assert_eq!(hub.ledger().borrow().pods_len(), IN_TIME);
        let mut lists = 0;
        while !is_all_known() {
            assert!(hub.runtime_is_up());
            let taken = *hub.lists().borrow();
            if std::mem::replace(&mut lists, taken) < taken {
                // As long as one that is wanted waits after another.
                time::advance(Duration::from_millis(1001)).await;
            }
            task::yield_now().await;
        }
        lists
    };
    let endpoint = listed.socket.as_path().into();
    let serving = run(hub.clone(), endpoint, CgroupPath::root());
    let work = async {
        tokio::select! {
            () = serving => unreachable!("it never ends"),
            lists = all_known => lists,
        }
    };
    let lists = slowly.with(work).await;
    assert!(lists < 20, "{lists}");
}

#[tokio::test(start_paused = true)]
async fn who_lists_but_once_lists_until_a_slow_runtime_was_asked_about_everybody() {
    let (listed, mut slowly) = many();
    let hub = &listed.bench.hub;
    let endpoint = listed.socket.as_path().into();
    let root = CgroupPath::root();
    let unsaid = slowly.with(once(hub, &endpoint, &root)).await;
    assert_eq!(unsaid.unwrap(), Unsaid::default());
    let ledger = hub.ledger().borrow();
    assert_eq!((ledger.pods_len(), ledger.containers_len()), (60, 40));
}

#[tokio::test(start_paused = true)]
async fn whom_a_list_had_no_time_for_comes_first_with_the_next_and_nobody_is_asked_about_for_ever()
{
    let tree = FakeTree::new(Generation::V1, 2);
    let listed = Scripted::of(tree, listed_pod(), listed_container(), "");
    let hub = &listed.bench.hub;
    let broken = Reply::error(13, "broken");
    let mut slowly = Slowly::answering(&listed, &[(SANDBOX_STATUS, broken)]);
    let pods = (0..=IN_TIME).map(|number| elsewhere(&format!("pod-{number}")));
    let pods = list_of(pods);
    let mut missing = Missing::default();
    let before = Cell::new(0);
    let asked = || {
        let calls = listed.script.calls().into_iter();
        let asked = calls.filter(|call| call.path == SANDBOX_STATUS);
        let asked = asked.skip(before.get()).map(|call| {
            let request = call.messages[0].message.clone();
            let request = cri::PodSandboxStatusRequest::decode(request).unwrap();
            request.pod_sandbox_id
        });
        let asked: Vec<String> = asked.collect();
        before.set(before.get() + asked.len());
        asked
    };
    let mut list = async || {
        let reply = Reply::message(pods.clone());
        drop(listed.script.clone().once(SANDBOXES, reply));
        let taken = slowly.with(listed.list_beside(Scope::News, &mut missing));
        assert_eq!(taken.await.pods, 0);
        (asked(), is_list_wanted(hub).await)
    };
    let (first, is_next_wanted) = list().await;
    assert_eq!(first.len(), IN_TIME);
    assert!(is_next_wanted);
    let (second, is_next_wanted) = list().await;
    assert_eq!(second.len(), IN_TIME);
    assert!(!first.contains(&second[0]), "{} comes first", second[0]);
    assert!(!is_next_wanted, "all were asked about in vain");
}

//! Questions about single pods and containers that get no answer, or none in time.

use super::*;
use crate::{apply::traffic::Traffic, ledger::Addresses};

const SANDBOX_STATUS: &str = "/runtime.v1.RuntimeService/PodSandboxStatus";
const STATUS: &str = "/runtime.v1.RuntimeService/ContainerStatus";

/// Containers about which the runtime was asked, each time.
fn asked(listed: &Scripted) -> Vec<String> {
    let calls = listed.script.calls();
    let calls = calls.iter().filter(|call| call.path == STATUS);
    let asked = calls.map(|call| {
        let request = call.messages[0].message.clone();
        let request = cri::ContainerStatusRequest::decode(request).unwrap();
        request.container_id
    });
    asked.collect()
}

#[tokio::test]
async fn what_hangs_for_one_step_of_a_list_keeps_no_later_one_from_asking() {
    let tree = FakeTree::new(Generation::V1, 2);
    let bench = Bench::with_traffic(tree, Traffic::by(|_| Ok(false)), true);
    let pod = cri::PodSandbox {
        state: cri::PodSandboxState::SandboxReady.into(),
        ..listed_pod()
    };
    let listed = Scripted::for_bench(bench, pod.clone(), listed_container(), "");
    let hub = &listed.bench.hub;
    hub.set_node_policy(addresses::by_queues());
    let answer = |path, reply| drop(listed.script.clone().once(path, reply));
    let never = Gate::new();
    let late = || Reply::message(Vec::new()).held(&never);
    let pods = list_of([elsewhere("a"), elsewhere("b"), elsewhere("c"), pod]);
    let pods = Reply::message(pods);
    answer("/runtime.v1.RuntimeService/ListPodSandbox", pods);
    for _ in 0..3 {
        answer(SANDBOX_STATUS, late());
    }
    answer(STATUS, late());
    answer(SANDBOX_STATUS, addresses::said("10.1.2.3"));
    listed.list(Scope::All).await;
    assert_eq!(asked(&listed), ["container-1"]);
    let ledger = hub.ledger().borrow();
    let own = Addresses::Own(vec!["10.1.2.3".parse().unwrap()]);
    assert_eq!(ledger.pod(&sandbox()).unwrap().addresses, own);
}

#[tokio::test]
async fn who_was_asked_about_in_vain_comes_after_all_others_whatever_they_are_asked_for() {
    const ORIGINALS: &str = r#"{"cpuShares":204,"ours":{"cpuShares":512}}"#;
    let listed = batch();
    // What the first asked for is unknown; of the others it is known that somebody changed it.
    let named = |id: &str, container| cri::Container {
        id: id.to_owned(),
        ..container
    };
    let others = ["b", "c", "d"].map(|id| named(id, container_with(ORIGINALS)));
    let containers = list_of([vec![named("a", listed_container())], others.to_vec()].concat());
    let answer = |path, reply| drop(listed.script.clone().once(path, reply));
    let list = async || {
        let reply = Reply::message(containers.clone());
        answer("/runtime.v1.RuntimeService/ListContainers", reply);
        let before = asked(&listed).len();
        let mut missing = Missing::default();
        listed.list_beside(Scope::News, &mut missing).await;
        asked(&listed).split_off(before)
    };
    answer(STATUS, Reply::error(13, "broken"));
    assert_eq!(list().await, ["a"]);
    let change = |ids: &[&str]| {
        for id in ids {
            let id = ContainerId::new(id).unwrap();
            listed.bench.hub.container_changed(id);
        }
    };
    change(&["b", "c"]);
    for _ in 0..3 {
        answer(STATUS, Reply::error(13, "broken"));
    }
    assert_eq!(list().await, ["b", "c", "a"]);
    change(&["d"]);
    assert_eq!(list().await, ["d", "b", "c", "a"]);
}

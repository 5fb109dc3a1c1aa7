//! A scripted runtime that tells of the pod of the bench, in each of the ways there are.

use super::*;
use crate::hub::testing::{Bench, container};
use koord_hooks::{Chain, FailPolicies, FeatureGates, NodeView};
use koord_kernel::{cgroup::Generation, fake::FakeTree};
use koord_proto::client::containerd_events::{Envelope, Event};
use koord_testkit::{
    Frame,
    scripted::{Gate, Otherwise, Reply, Script, ScriptedRuntime, Step},
};
use prost::Message;
use std::future::Future;
use tokio::time::timeout;

const SUBSCRIBE: &str = "/containerd.services.events.v1.Events/Subscribe";
const GET_EVENTS: &str = "/runtime.v1.RuntimeService/GetContainerEvents";
const PATIENCE: Duration = Duration::from_secs(60);

fn telling(message: impl Into<bytes::Bytes>, gate: &Gate) -> Reply {
    Reply::steps(vec![
        Step::AwaitEnd,
        Step::Headers(http::HeaderMap::new()),
        Step::Message(Frame::plain(message)),
        Step::Hold(gate.clone()),
        // What was said has to get there.
        Step::Delay(Duration::from_millis(50)),
        Step::Disconnect,
    ])
}

fn unimplemented() -> Reply {
    Reply::error(12, "unknown service")
}

/// The task over this script, while `look` looks.
async fn beside<F: Future<Output = ()>>(script: Script, look: impl FnOnce(Rc<Hub>) -> F) -> Script {
    let bench = Bench::watching(FakeTree::new(Generation::V1, 2)).knowing_pod();
    let dir = tempfile::tempdir().unwrap();
    let socket = dir.path().join("runtime.sock");
    let _runtime = ScriptedRuntime::listen(&socket, script.clone()).unwrap();
    tokio::select! {
        () = run(bench.hub.clone(), socket.as_path().into()) => unreachable!("it never ends"),
        () = look(bench.hub.clone()) => {}
        () = sleep(PATIENCE) => panic!("it did not come"),
    }
    script
}

#[tokio::test]
async fn what_containerd_tells_asks_for_a_list_and_names_what_was_changed() {
    let event = Envelope {
        topic: "/containers/update".to_owned(),
        event: Some(Event {
            // ContainerUpdate with the id as its field 1.
            value: b"\x0a\x0bcontainer-1".to_vec(),
        }),
    };
    let gate = Gate::new();
    let script = Script::new(Otherwise::Fail);
    let script = script.always(SUBSCRIBE, telling(event.encode_to_vec(), &gate));
    let script = beside(script, async |hub: Rc<Hub>| {
        // As it begins, and when something is told.
        hub.relist_wanted().await;
        hub.relist_wanted().await;
        assert_eq!(hub.feed(), Some("containerd's events"));
        assert_eq!(hub.changed_containers(), [container()].into());
        assert!(hub.changed_containers().is_empty());
        // The runtime goes, and is followed again when it is back.
        gate.open();
        while hub.changed_containers().is_empty() {
            hub.relist_wanted().await;
        }
    })
    .await;
    assert!(script.calls().len() > 1);
}

#[tokio::test]
async fn a_runtime_without_containerds_events_is_asked_for_those_of_the_cri() {
    let script = Script::new(Otherwise::Fail)
        .always(SUBSCRIBE, unimplemented())
        .always(GET_EVENTS, telling(Vec::new(), &Gate::new()));
    beside(script, async |hub: Rc<Hub>| {
        while hub.feed() != Some("GetContainerEvents") {
            hub.relist_wanted().await;
        }
        hub.relist_wanted().await;
    })
    .await;
}

#[tokio::test]
async fn a_runtime_that_tells_nothing_is_listed_again_and_again() {
    for nothing in [
        unimplemented(),
        // CRI-O without `enable_pod_events`: OK with nothing before it, in one block or in two.
        Reply::error(0, ""),
        Reply::messages(Vec::new()),
    ] {
        let script = Script::new(Otherwise::Fail)
            .always(SUBSCRIBE, unimplemented())
            .always(GET_EVENTS, nothing);
        let script = beside(script, async |hub: Rc<Hub>| {
            while hub.feed() != Some("lists alone, one every five seconds") || !hub.is_whole() {
                hub.relist_wanted().await;
                hub.list_taken();
            }
            hub.relist_wanted().await;
            // And by no more than that, until it was away.
            timeout(Duration::from_millis(200), hub.relist_wanted())
                .await
                .unwrap_err();
            assert!(hub.runtime_is_up());
        })
        .await;
        assert_eq!(script.calls().len(), 2);
    }
}

#[test]
fn what_fails_is_said_once_however_long_it_takes_and_again_when_it_was_followed() {
    let mut retry = RETRY;
    let mut after = |millis| {
        let (pause, is_news) = over(&mut retry, Duration::from_millis(millis));
        (pause.as_millis(), is_news)
    };
    // A backlog that is full for five seconds, as often as it is tried.
    assert_eq!(after(5_000), (50, true));
    assert_eq!(after(5_000), (100, false));
    // And what fails at once.
    for pause in [200, 400, 500, 500] {
        assert_eq!(after(1), (pause, false));
    }
    assert_eq!(after(10_000), (50, true), "it has told until now");
    assert_eq!(after(1), (100, false));
}

#[test]
fn what_cannot_be_promised_is_said() {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2));
    let said_of = |node: NodeView, gates: &str, policies: &str| {
        let gates = FeatureGates::parse(gates).unwrap();
        let policies = FailPolicies::parse(policies).unwrap();
        let chain = Chain::new(&gates, &policies);
        remarks(&Policy::new(chain, node, "skip"))
    };
    let node = || bench.hub.policy().node().clone();
    let said = |gates: &str, policies: &str| said_of(node(), gates, policies);
    let least = said("CPUBurst=false", "");
    assert_eq!(least.len(), 2, "{least:?}");
    assert!(least[0].starts_with("nobody asks us") && least[1].contains("an update"));
    let most = said(
        "CPUBurst=true,CoreSched=true,GPUEnvInject=true,HamiCoreVGPUMonitor=true,RDMADeviceInject=true",
        "GroupIdentity=Closed,CPUBurst=Open",
    );
    assert_eq!(most.len(), 9, "{most:?}");
    assert!(most[2].contains("cookie") && most[6].contains("burst"));
    assert!(most[3].contains("GPUs") && most[4].contains("HAMi-core"));
    assert!(most[5].contains("RDMA"));
    // Pods are idle by `schedIdle` too.
    assert!(most[7].contains("an idle pod"));
    assert_eq!(
        most[8],
        "GroupIdentity has the policy Closed, but there is nothing that could be refused"
    );
    let mut idling = node();
    (idling.kernel.bvt, idling.options.be_cpu_idle) = (false, true);
    let idle = said_of(idling, "CPUBurst=false", "");
    assert_eq!(idle.len(), 3, "{idle:?}");
    assert!(idle[2].contains("an idle pod"));
}

//! From where a pod sends, once its queue depends on it.

use super::*;
use crate::{apply::traffic::Traffic, ledger::Addresses};

pub(super) fn by_queues() -> Arc<NodePolicy> {
    let slo = "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\nmetadata: {name: node-1}\n\
               spec: {systemStrategy: {totalNetworkBandwidth: 1G}}\n";
    Arc::new(NodePolicy::parse_stream(slo, None).unwrap().policy)
}

/// A runtime's answer that a pod sends from this.
pub(super) fn said(address: &str) -> Reply {
    let network = cri::PodSandboxNetworkStatus {
        ip: address.to_owned(),
        ..Default::default()
    };
    let status = cri::PodSandboxStatusResponse {
        status: Some(cri::PodSandboxStatus {
            network: Some(network),
            ..Default::default()
        }),
        ..Default::default()
    };
    Reply::message(status.encode_to_vec())
}

#[tokio::test]
async fn a_list_asks_from_where_a_pod_sends_when_it_counts_until_it_is_said() {
    let tree = FakeTree::new(Generation::V1, 2);
    let bench = Bench::with_traffic(tree, Traffic::by(|_| Ok(false)), true);
    let listed = Scripted::for_bench(bench, listed_pod(), listed_container(), "");
    let hub = listed.bench.hub.clone();
    let addresses = || {
        let ledger = hub.ledger().borrow();
        ledger.pod(&sandbox()).unwrap().addresses.clone()
    };
    let answer = |reply| {
        let path = "/runtime.v1.RuntimeService/PodSandboxStatus";
        drop(listed.script.clone().once(path, reply));
    };
    listed.list(Scope::All).await;
    assert_eq!(addresses(), Addresses::Unknown(0), "it has no queue");
    hub.set_node_policy(by_queues());
    answer(Reply::error(13, "broken"));
    listed.list(Scope::News).await;
    assert_eq!(addresses(), Addresses::Unknown(1));
    answer(said("10.1.2.3"));
    listed.list(Scope::News).await;
    let own = Addresses::Own(vec!["10.1.2.3".parse().unwrap()]);
    assert_eq!(addresses(), own);
}

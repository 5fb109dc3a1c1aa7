//! Settings that are left to others, as clients of the CRI front see it.

#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test ends at the first failure")]

mod support;

use koord_proto::cri::CreateContainerRequest;
use koord_testkit::RawRequest;
use prost::Message;
use serde_json::json;
use support::{
    method,
    node::{Node, listed_once},
    pod::{BATCH_MEMORY, BATCH_SHARES, Pod, RESOURCE_STATUS},
};

#[tokio::test]
async fn a_setting_that_is_left_to_others_is_in_no_request_and_not_in_the_ledger() {
    let pod = Pod::best_effort("web").annotation(RESOURCE_STATUS, r#"{"cpuset":"0"}"#);
    let both = ["cpuset.cpus", "memory.limit_in_bytes"];
    for (args, left, memory, cpus) in [
        (&[][..], &[][..], BATCH_MEMORY, "0"),
        (
            &["--leave-settings=cpuset.cpus"],
            &both[..1],
            BATCH_MEMORY,
            "",
        ),
        (
            &["--leave-settings=memory.limit_in_bytes,cpuset.cpus"],
            &both,
            0,
            "",
        ),
    ] {
        let node = Node::with(listed_once(), args);
        node.call(RawRequest::unary(method::RUN, pod.run().encode()))
            .await;
        node.call(RawRequest::unary(method::CREATE, pod.create().encode()))
            .await;
        let request = CreateContainerRequest::decode(node.arrived(method::CREATE)).unwrap();
        let resources = request.config.unwrap().linux.unwrap().resources.unwrap();
        assert_eq!(resources.cpu_shares, BATCH_SHARES, "{args:?}");
        assert_eq!(resources.memory_limit_in_bytes, memory, "{args:?}");
        assert_eq!(resources.cpuset_cpus, cpus, "{args:?}");

        assert_eq!(node.status()["leftSettings"], json!(left));
        let ledger = node.ledger();
        assert_eq!(ledger["leftSettings"], json!(left));
        let pods = ledger["pods"].to_string();
        for setting in both {
            assert_eq!(pods.contains(setting), !left.contains(&setting), "{pods}");
        }
    }
}

//! The same container in a scope of systemd's.

use super::*;
use koord_testkit::scripted::Reply;

const SCOPE: &str = "kubepods.slice/kubepods-besteffort.slice/\
                     kubepods-besteffort-poduid_1.slice/cri-containerd-container-1.scope";
const UPDATE: &str = "/runtime.v1.RuntimeService/UpdateContainerResources";

/// A node that has pod and container in systemd's groups alone, with what is decided of them.
fn by_systemd(info: &str) -> Node {
    on_scopes(Node::with(info), ["512", "100000"])
}

/// The same of any node; what the container's group has.
fn on_scopes(node: Node, [shares, quota]: [&str; 2]) -> Node {
    node.hold(["2", "-1", "204", "20000"]);
    let scope = CgroupPath::parse(SCOPE).unwrap();
    node.tree.make(&scope);
    for (at, values) in [
        (scope.parent().unwrap(), ["512", "100000"]),
        (scope, [shares, quota]),
    ] {
        for (file, text) in ["cpu.shares", "cpu.cfs_quota_us"].into_iter().zip(values) {
            node.tree.write(Controller::Cpu, &at, file, text).unwrap();
        }
    }
    node
}

/// Gives back, and tells what the runtime was told and which lines there are about that.
async fn told(node: &Node) -> (Vec<cri::LinuxContainerResources>, Vec<String>) {
    let hub = node.bench().hub;
    let unsaid = node.list(&hub).await;
    let root = CgroupPath::root();
    let answer = give_back(&hub, &root, Mode::Enforce, Resting::new(), unsaid).await;
    assert!(answer.answer().good);
    let lines = stored::give_back(&hub, &node.endpoint).await;
    let calls = node.runtime.script().calls();
    let updates = calls.iter().filter(|call| call.path == UPDATE);
    let requests = updates.map(|call| {
        let request = cri::UpdateContainerResourcesRequest::read(&call.messages[0].message);
        let request = request.unwrap();
        assert_eq!(request.container_id, "container-1");
        request.linux.unwrap()
    });
    (requests.collect(), lines)
}

#[tokio::test]
async fn the_runtime_is_told_what_was_asked_for_where_systemd_would_write_ours_again() {
    let node = by_systemd(ASKED);
    let (requests, lines) = told(&node).await;
    let asked = cri::LinuxContainerResources {
        cpu_shares: 204,
        cpu_quota: 20_000,
        ..Default::default()
    };
    assert_eq!((requests, lines), (vec![asked], vec![]));
}

#[tokio::test]
async fn where_nobody_writes_it_again_the_runtime_is_told_nothing() {
    let (requests, lines) = told(&Node::with(ASKED)).await;
    assert_eq!((requests, lines), (vec![], vec![]));
}

#[tokio::test]
async fn a_runtime_that_refuses_to_be_told_is_told_of() {
    let node = by_systemd(ASKED);
    let script = node.runtime.script().clone();
    let _script = script.always(UPDATE, Reply::error(2, "no shim"));
    let (_, lines) = told(&node).await;
    let line = "default/batch main: systemd may write our values again when it loads its units anew: the \
                runtime failed UpdateContainerResources";
    assert_eq!(lines.len(), 1, "{lines:?}");
    assert!(lines[0].starts_with(line), "{lines:?}");
}

#[tokio::test]
async fn the_runtime_is_told_again_though_the_kernel_has_what_was_asked_for_by_now() {
    let node = on_scopes(Node::of(annotated(), ASKED), ["300", "90000"]);
    let script = node.runtime.script().clone();
    let _script = script.always(UPDATE, Reply::error(2, "no shim"));
    let (first, lines) = told(&node).await;
    assert_eq!((first.len(), lines.len()), (1, 1), "{first:?} {lines:?}");
    let (requests, again) = told(&node).await;
    assert_eq!((requests.len(), again), (2, lines));
    assert_eq!(requests[0], requests[1]);
}

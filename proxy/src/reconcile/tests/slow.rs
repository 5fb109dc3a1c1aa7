//! Pods for whose limits memory is reclaimed.

use super::*;
use koord_model::{ContainerId, MemoryLimit};

/// The pod of the bench once more, by another name.
fn another(bench: &Bench) -> CgroupPath {
    let at = CgroupPath::parse("kubepods/besteffort/poduid-2/container-2").unwrap();
    bench.tree.make(&at);
    let mut ledger = bench.hub.ledger().borrow_mut();
    let mut pod = ledger.pod(&sandbox()).unwrap().clone();
    pod.sandbox = SandboxId::new("sandbox-2").unwrap();
    pod.own.at = at.parent();
    let mut container = pod.containers.pop().unwrap();
    container.id = ContainerId::new("container-2").unwrap();
    container.target.at = Some(at.clone());
    let sandbox = pod.sandbox.clone();
    ledger.list_pod(pod);
    ledger.list_container(&sandbox, container);
    at
}

#[tokio::test]
async fn a_pod_whose_memory_stands_still_keeps_no_other_from_its_limit() {
    let (reclaimed, done) = mpsc::channel();
    let tree = FakeTree::new(Generation::V2, 2);
    let bench = Bench::reclaiming_of_container(tree, done).knowing_pod();
    // Its limit is there already, so that is not what takes time.
    let limit = "1073741824";
    let there = (bench.tree).write(Controller::Memory, &bench.container, "memory.max", limit);
    there.unwrap();
    let lower = || {
        bench.hub.set_node_policy(best_effort(
            "memoryQOS: {enable: true, throttlingPercent: 50}",
        ));
    };
    let file = |at: &CgroupPath, file| {
        let text = bench.tree.read(Controller::Memory, at, file);
        text.unwrap().trim_end().to_owned()
    };
    let raised = Change {
        at: bench.container.clone(),
        value: Value::MemoryLimit(MemoryLimit::Bytes(2 << 30)),
    };
    let (half, writer) = ("536870912", bench.hub.writer());
    let held = async {
        lower();
        // It is taken for one that reclaims only where such a one is under way.
        until(|| !writer.split(vec![raised.clone()]).0.is_empty()).await;
        let other = another(&bench);
        bench.hub.queue().push(SandboxId::new("sandbox-2").unwrap());
        until(|| file(&other, "memory.high") == half).await;
        assert_eq!(file(&bench.container, "memory.high"), "max");
        reclaimed.send(()).unwrap();
        until(|| file(&bench.container, "memory.high") == half).await;
    };
    tokio::select! {
        () = run(bench.hub.clone()) => unreachable!("it never ends"),
        held = tokio::time::timeout(Duration::from_secs(30), held) => {
            held.expect("others wait for one pod's memory");
        }
    }
}

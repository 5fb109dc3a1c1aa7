//! Pods for whose limits memory is reclaimed.

use super::*;
use koord_model::ContainerId;

/// The bench where memory of one group is reclaimed when the test says so.
struct Stuck {
    bench: Bench,
    at: CgroupPath,
    begins: mpsc::Receiver<()>,
    reclaimed: mpsc::Sender<()>,
}

// === impl Stuck ===

impl Stuck {
    fn new(at: &str) -> Self {
        let at = CgroupPath::parse(at).unwrap();
        let ((begun, begins), (reclaimed, done)) = (mpsc::channel(), mpsc::channel());
        let tree = FakeTree::new(Generation::V2, 2);
        Self {
            bench: Bench::reclaiming_at(tree, at.clone(), (begun, done)).knowing_pod(),
            at,
            begins,
            reclaimed,
        }
    }

    /// Slows containers down from this part of 1 GiB on, which is what they use.
    fn slow_down(&self, percent: u64) {
        self.bench.hub.set_node_policy(best_effort(&format!(
            "memoryQOS: {{enable: true, throttlingPercent: {percent}}}"
        )));
    }

    fn high(&self, at: &CgroupPath) -> String {
        let text = (self.bench.tree).read(Controller::Memory, at, "memory.high");
        text.unwrap().trim_end().to_owned()
    }

    /// Returns once the group stands still.
    async fn stands(&self) {
        until(|| self.begins.try_recv().is_ok()).await;
    }

    /// Returns once no thread has anything.
    async fn is_done(&self) {
        let none = "\nkoord_runtime_proxy_memory_reclaims 0\n";
        until(|| self.bench.hub.metrics().encode().unwrap().contains(none)).await;
    }

    /// Does this while pods are brought in line.
    async fn run(&self, test: impl Future<Output = ()>) {
        tokio::select! {
            () = run(self.bench.hub.clone()) => unreachable!("it never ends"),
            done = tokio::time::timeout(Duration::from_secs(30), test) => {
                done.expect("others wait for one group's memory");
            }
        }
    }
}

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
    let stuck = Stuck::new("kubepods/besteffort/poduid-1/container-1");
    let half = "536870912";
    let test = async {
        stuck.slow_down(50);
        stuck.stands().await;
        let other = another(&stuck.bench);
        let queue = stuck.bench.hub.queue();
        queue.push(SandboxId::new("sandbox-2").unwrap());
        until(|| stuck.high(&other) == half).await;
        assert_eq!(stuck.high(&stuck.at), "max");
        stuck.reclaimed.send(()).unwrap();
        until(|| stuck.high(&stuck.at) == half).await;
    };
    stuck.run(test).await;
}

#[tokio::test]
async fn a_raised_limit_waits_for_no_other_group_of_its_pod_and_the_one_before_it_never_comes() {
    // Of a pod what is listed last comes first.
    let stuck = Stuck::new("kubepods/besteffort/poduid-1/container-2");
    let bench = &stuck.bench;
    bench.tree.make(&stuck.at);
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let mut second = ledger.pod(&sandbox()).unwrap().containers[0].clone();
        second.id = ContainerId::new("container-2").unwrap();
        second.target.at = Some(stuck.at.clone());
        ledger.list_container(&sandbox(), second);
    }
    let test = async {
        stuck.slow_down(50);
        stuck.stands().await;
        stuck.slow_down(100);
        until(|| stuck.high(&bench.container) == "1073741824").await;
        assert_eq!(stuck.high(&stuck.at), "max");
        stuck.reclaimed.send(()).unwrap();
        stuck.is_done().await;
        until(|| stuck.high(&stuck.at) == "1073741824").await;
    };
    stuck.run(test).await;
    let mut written = bench.tree.take_writes();
    written.retain(|it| it.at == bench.container && it.file == "memory.high");
    let texts: Vec<&str> = written.iter().map(|it| it.text.trim_end()).collect();
    assert_eq!(texts, ["1073741824"]);
}

#[tokio::test]
async fn a_limit_that_is_raised_while_the_lower_one_is_written_comes_after_it() {
    let stuck = Stuck::new("kubepods/besteffort/poduid-1/container-1");
    let bench = &stuck.bench;
    let test = async {
        stuck.slow_down(50);
        stuck.stands().await;
        until(|| bench.shown("cpu.max") == "100000 100000").await;
        bench.write("cpu.max", "50000 100000");
        stuck.slow_down(100);
        // The pod is held as a whole after what is new of it.
        until(|| bench.shown("cpu.max") == "100000 100000").await;
        assert_eq!(stuck.high(&stuck.at), "max");
        stuck.reclaimed.send(()).unwrap();
        stuck.is_done().await;
        until(|| stuck.high(&stuck.at) == "1073741824").await;
    };
    stuck.run(test).await;
    let mut written = bench.tree.take_writes();
    written.retain(|it| it.file == "memory.high");
    let texts: Vec<&str> = written.iter().map(|it| it.text.trim_end()).collect();
    assert_eq!(texts, ["536870912", "1073741824"]);
}

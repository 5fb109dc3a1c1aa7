//! What nobody heard of: answers to writes that came too late for whoever asked, and calls that could
//! not be read.

use super::*;
use crate::ledger::Target;
use koord_model::KubeQos;

/// A pod with a CPU of its own, whose directory has a quota of 300 ms, of which nobody tells.
fn bound(bench: Bench) -> Bench {
    let bench = bench.knowing_pod();
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        pod.view.kube_qos = KubeQos::Guaranteed;
        pod.view.labels = [(label::QOS_CLASS, "LSR")].into_iter().collect();
        let status = (annotation::RESOURCE_STATUS, r#"{"cpuset":"1"}"#);
        pod.view.annotations = [status].into_iter().collect();
        pod.own = Target::at(Some(bench.pod.clone()));
        // The first thing that is waited for is a write.
        pod.own.is_recalled = true;
        pod.containers[0].target.is_recalled = true;
        bench.hub.decide_again(pod);
    }
    bench
}

fn new() -> Bench {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2));
    let file = "cpu.cfs_quota_us";
    let written = bench
        .tree
        .write(Controller::Cpu, &bench.pod, file, "300000");
    written.unwrap();
    bound(bench)
}

/// The quota of the pod's directory.
async fn in_line(bench: &Bench) -> String {
    reconcile::pod(&bench.hub, &sandbox()).await;
    let file = "cpu.cfs_quota_us";
    let text = bench.tree.read(Controller::Cpu, &bench.pod, file).unwrap();
    text.trim_end().to_owned()
}

#[tokio::test]
async fn what_the_first_write_replaced_comes_back_when_its_hook_is_switched_off_meanwhile() {
    let bench = new();
    let off = async { bench.hub.switch_hook("CPUSetAllocator", false) };
    let (held, known) = tokio::join!(in_line(&bench), off);
    assert_eq!((held.as_str(), known), ("-1", true));
    assert!(bench.hub.queue().drain().contains(&sandbox()));
    assert_eq!(in_line(&bench).await, "300000");
}

#[tokio::test]
async fn what_was_there_is_known_when_a_pods_sandbox_is_made_anew() {
    let bench = new();
    assert_eq!(in_line(&bench).await, "-1");
    bench.hub.ledger().borrow_mut().remove_pod(&sandbox());
    let bench = bound(bench);
    assert_eq!(in_line(&bench).await, "-1");
    assert!(bench.hub.switch_hook("CPUSetAllocator", false));
    assert_eq!(in_line(&bench).await, "300000");
}

#[tokio::test]
async fn of_a_pod_that_could_not_be_run_nothing_stays_that_nobody_decides_any_more() {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2));
    let config = cri::PodSandboxConfig {
        linux: Some(cri::LinuxPodSandboxConfig {
            cgroup_parent: bench.pod.to_string(),
        }),
        ..sandbox_config("BE")
    };
    let run = cri::RunPodSandboxRequest {
        config: Some(config),
        ..Default::default()
    };
    let run = async |reply| {
        let opening = bench
            .hub
            .open(Method::RunPodSandbox, &run.encode_to_vec(), None);
        let decision = opening.decision().await;
        bench.hub.close(decision.pending, reply);
        bench.shown_of_pod("cpu.cfs_quota_us")
    };
    // No network for it, as the runtime says.
    assert_eq!(run(answered(2)).await, "100000");
    assert!(bench.hub.switch_hook("BatchResource", false));
    let sandbox = Reply::Answered {
        grpc_status: Some(0),
        message: Some("sandbox-1".to_owned().encode_to_vec()),
    };
    assert_eq!(run(sandbox).await, "100000");
    assert_eq!(in_line(&bench).await, "-1");
}

#[tokio::test]
async fn a_call_that_cannot_be_read_costs_a_list_if_something_may_have_come_of_it() {
    let bench = new();
    // INVALID_ARGUMENT: nothing did.
    for (code, costs) in [(0, true), (2, true), (3, false)] {
        let opening = bench.hub.open(Method::CreateContainer, b"\xff", None);
        let Opening::Now(decision) = opening else {
            panic!("there is nothing to wait for");
        };
        assert!(matches!(
            decision.answer,
            Answer::AsIs(Untouched::Unreadable)
        ));
        bench.hub.close(decision.pending, answered(code));
        assert_eq!(is_list_wanted(&bench).await, costs, "{code}");
    }
}

#[tokio::test]
async fn whether_the_runtime_is_up_is_not_told_before_it_is_known() {
    let bench = Bench::new(FakeTree::new(Generation::V1, 2));
    let hub = &bench.hub;
    let told = || {
        let text = hub.metrics().encode().unwrap();
        let mut lines = text.lines();
        let told = lines.find_map(|line| line.strip_prefix("koord_runtime_proxy_runtime_up "));
        (hub.runtime_up(), told.map(str::to_owned))
    };
    // A client's connection found nobody; one that comes later may find the runtime.
    hub.runtime_lost();
    assert_eq!(told(), (None, None));
    hub.list_failed();
    assert_eq!(told(), (Some(false), Some("0".to_owned())));
    hub.list_taken();
    assert_eq!(told(), (Some(true), Some("1".to_owned())));
    hub.runtime_lost();
    assert_eq!(told(), (Some(false), Some("0".to_owned())));
}

//! The ranks of group identity, as they come to a kernel that has it.

use super::*;
use koord_model::KubeQos;
use koord_proto::keys::label;

/// Every class is ranked, each as it is by default.
const DEFAULTS: &str = "lsrClass: {cpuQOS: {enable: true}}, lsClass: {cpuQOS: {enable: true}}, \
                        beClass: {cpuQOS: {enable: true}}";

fn bench() -> Bench {
    Bench::with_pod(FakeTree::new(Generation::V1, 2).with_group_identity())
}

/// The rank that the pod's directory has once the pod is of this class and tier.
async fn rank_of(bench: &Bench, class: &str, tier: KubeQos) -> String {
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let known = ledger.pod_mut(&sandbox()).unwrap();
        known.view.labels = [(label::QOS_CLASS, class)].into_iter().collect();
        known.view.kube_qos = tier;
        bench.hub.decide_again(known);
    }
    check(bench).await;
    let file = "cpu.bvt_warp_ns";
    let text = bench.tree.read(Controller::Cpu, &bench.pod, file);
    text.unwrap().trim_end().to_owned()
}

#[tokio::test]
async fn directories_of_pods_and_tiers_have_the_default_rank_of_their_class_and_0_without_a_policy()
{
    let bench = bench();
    bench
        .tree
        .make(&CgroupPath::parse("kubepods/burstable").unwrap());
    let tiers = || {
        ["kubepods", "kubepods/burstable", "kubepods/besteffort"].map(|tier| {
            let tier = CgroupPath::parse(tier).unwrap();
            let rank = bench.tree.read(Controller::Cpu, &tier, "cpu.bvt_warp_ns");
            rank.unwrap().trim_end().to_owned()
        })
    };
    let rows = [
        ("LSE", KubeQos::Guaranteed, "2"),
        ("BE", KubeQos::BestEffort, "-1"),
        ("LSR", KubeQos::Guaranteed, "2"),
        ("BE", KubeQos::Burstable, "-1"),
        ("LS", KubeQos::BestEffort, "2"),
        ("", KubeQos::BestEffort, "-1"),
        ("", KubeQos::Guaranteed, "2"),
        ("SYSTEM", KubeQos::BestEffort, "-1"),
        ("SYSTEM", KubeQos::Burstable, "2"),
    ];
    bench.hub.set_node_policy(network_policy(DEFAULTS));
    node(&bench.hub).await;
    assert_eq!(tiers(), ["0", "2", "-1"]);
    for (class, tier, rank) in rows {
        assert_eq!(rank_of(&bench, class, tier).await, rank, "{class} {tier}");
        // Its containers inherit it.
        assert!(bench.entry(Setting::CpuBvt).is_none());
    }
    bench.hub.set_node_policy(Arc::default());
    node(&bench.hub).await;
    assert_eq!(tiers(), ["0", "0", "0"]);
    for (class, tier, _) in rows {
        assert_eq!(rank_of(&bench, class, tier).await, "0", "{class} {tier}");
    }
}

#[tokio::test]
async fn classes_are_ranked_unless_the_policy_names_the_alternative() {
    let bench = bench();
    for (policy, rank) in [
        ("", "2"),
        ("policies: {cpuPolicy: coreSched}, ", "0"),
        ("policies: {cpuPolicy: \"\"}, ", "2"),
        ("policies: {}, ", "2"),
        ("policies: {cpuPolicy: coreSched}, ", "0"),
        ("policies: {cpuPolicy: groupIdentity}, ", "2"),
    ] {
        let policy = network_policy(&format!("{policy}{DEFAULTS}"));
        bench.hub.set_node_policy(policy);
        assert_eq!(rank_of(&bench, "LS", KubeQos::Burstable).await, rank);
    }
}

#[tokio::test(start_paused = true)]
async fn a_service_that_starts_again_and_again_has_its_rank_each_time() {
    let tree = FakeTree::new(Generation::V1, 2).with_group_identity();
    let bench = Bench::new(tree);
    let nginx = CgroupPath::parse("host/nginx").unwrap();
    let file = "cpu.bvt_warp_ns";
    bench.hub.set_node_policy(slo(NGINX));
    for start in 0..5 {
        bench.tree.remove(&nginx);
        bench.tree.make(&nginx);
        node(&bench.hub).await;
        let rank = bench.tree.read(Controller::Cpu, &nginx, file).unwrap();
        assert_eq!(rank, "2\n", "start {start}");
        tokio::time::advance(Duration::from_secs(1)).await;
    }
    let metrics = bench.hub.metrics().encode().unwrap();
    assert!(!metrics.contains("contested_settings_total{"), "{metrics}");

    // Who writes to one that runs on is heard still.
    for rank in ["2\n", "2\n", "2\n", "1\n"] {
        bench
            .tree
            .write(Controller::Cpu, &nginx, file, "1")
            .unwrap();
        node(&bench.hub).await;
        assert_eq!(
            bench.tree.read(Controller::Cpu, &nginx, file).unwrap(),
            rank
        );
    }
    // And is heard no more once it runs anew.
    bench.tree.remove(&nginx);
    bench.tree.make(&nginx);
    node(&bench.hub).await;
    let rank = bench.tree.read(Controller::Cpu, &nginx, file).unwrap();
    assert_eq!(rank, "2\n");
}

use super::*;
use crate::{
    chain::Chain,
    fixture::{decide_pod, in_tier, node, node_with, pod, shown},
    gate::{FailPolicies, FeatureGates},
};
use koord_model::KubeQos;
use koord_proto::policy::{NodePolicy, NodeSloSpec};

const LIMITS: &str = annotation::NETWORK_QOS;

/// 1 Gbit, of which 40 % are kept for LS pods, and BE pods send at most a fifth.
fn network() -> NodeNetwork {
    let sends = |min, max| NetClass {
        sent: NetShare {
            min: NetRate::of_bits(min),
            max: NetRate::of_bits(max),
        },
        received: NetShare::default(),
    };
    NodeNetwork {
        total: NetRate::of_bits(1_000_000_000),
        latency_sensitive: sends(400_000_000, 0),
        best_effort: sends(80_000_000, 200_000_000),
    }
}

fn shared_out(queues: Option<NodeNetwork>) -> NodeView {
    node_with(NodePolicy {
        slo: Some(NodeSloSpec {
            queues,
            ..NodeSloSpec::default()
        }),
        ..NodePolicy::default()
    })
}

fn decided(class: &str, tier: KubeQos, annotations: &[(&str, &str)]) -> String {
    let pod = in_tier(tier, pod(class, annotations));
    let node = shared_out(Some(network()));
    shown(&decide_pod(&TcNetworkQos, &pod, &node).unwrap())
}

#[test]
fn a_class_has_its_queue_and_a_pod_without_one_none() {
    use KubeQos::{BestEffort, Burstable, Guaranteed};
    for (class, tier, expected) in [
        ("SYSTEM", BestEffort, "network.queue=priority 0, sends any"),
        ("LSE", Guaranteed, "network.queue=priority 1, sends any"),
        ("LSR", Guaranteed, "network.queue=priority 1, sends any"),
        ("LS", BestEffort, "network.queue=priority 1, sends any"),
        ("BE", Guaranteed, "network.queue=priority 2, sends any"),
        ("", Burstable, ""),
        ("", BestEffort, ""),
        // As a class that does not exist counts.
        ("Gold", BestEffort, ""),
    ] {
        assert_eq!(decided(class, tier, &[]), expected, "{class} {tier:?}");
    }
}

#[test]
fn what_a_pod_may_send_is_bytes_and_what_it_may_receive_makes_no_queue() {
    for (class, limits, expected) in [
        (
            "LS",
            r#"{"egressLimit":"8M"}"#,
            "network.queue=priority 1, sends 1000000 B/s",
        ),
        (
            "",
            r#"{"egressLimit":"8M"}"#,
            "network.queue=priority 0, sends 1000000 B/s",
        ),
        (
            "LS",
            r#"{"ingressLimit":"8M"}"#,
            "network.queue=priority 1, sends any",
        ),
        ("", r#"{"ingressLimit":"8M"}"#, ""),
        (
            "BE",
            r#"{"ingressLimit":"8M","egressLimit":"0"}"#,
            "network.queue=priority 2, sends any",
        ),
    ] {
        let decided = decided(class, KubeQos::Burstable, &[(LIMITS, limits)]);
        assert_eq!(decided, expected, "{class} {limits}");
    }
}

#[test]
fn what_is_kept_for_no_class_is_the_systems() {
    let of_root = |node: &NodeView| {
        let adjustment = TcNetworkQos.decide_node(node).unwrap();
        assert!(adjustment.tiers.is_empty() && adjustment.host_applications.is_empty());
        shown(&adjustment.root)
    };
    assert_eq!(
        of_root(&shared_out(Some(network()))),
        "network.queues=of 125000000 B/s, SYSTEM sends 65000000 to 125000000 B/s, \
         LS sends 50000000 to 125000000 B/s, BE sends 10000000 to 25000000 B/s"
    );
    for node in [node(), shared_out(None)] {
        assert_eq!(of_root(&node), "");
    }
}

#[test]
fn where_queues_do_not_share_it_out_nothing_is_decided() {
    for node in [node(), shared_out(None)] {
        let limits = r#"{"egressLimit":"8M"}"#;
        let decided = decide_pod(&TcNetworkQos, &pod("LS", &[(LIMITS, limits)]), &node);
        assert_eq!(shown(&decided.unwrap()), "");
    }
}

#[test]
fn a_limit_that_is_none_is_an_error_that_names_the_annotation() {
    let pod = pod("LS", &[(LIMITS, r#"{"egressLimit":"fast"}"#)]);
    let error = decide_pod(&TcNetworkQos, &pod, &shared_out(Some(network()))).unwrap_err();
    assert_eq!(error.key(), "koordinator.sh/networkQOS");
}

#[test]
fn a_limit_that_is_none_leaves_the_pod_in_the_queue_of_its_class() {
    let gates = FeatureGates::parse("TCNetworkQoS=true").unwrap();
    let chain = Chain::new(&gates, &FailPolicies::default());
    let node = shared_out(Some(network()));
    for (class, expected) in [
        ("BE", Some("priority 2, sends any")),
        ("LS", Some("priority 1, sends any")),
        ("", None),
    ] {
        let outcome = chain.pod(&pod(class, &[(LIMITS, "{")]), &[], &node, &mut ());
        let queue = outcome.merged.get(Setting::PodQueue);
        let queue = queue.map(|(value, _)| value.to_string());
        assert_eq!(queue.as_deref(), expected, "{class}");
        assert_eq!(outcome.failures.len(), 1, "{class}");
        assert_eq!(outcome.failures[0].hook, "TCNetworkQoS");
    }
}

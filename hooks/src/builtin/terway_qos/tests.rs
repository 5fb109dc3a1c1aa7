use super::*;
use crate::{
    chain::Chain,
    fixture::{decide_pod, in_tier, node, node_with, pod, shown},
    gate::{FailPolicies, FeatureGates},
};
use koord_model::{NetClass, NetRate, NetShare, NodeNetwork};
use koord_proto::policy::{NodePolicy, NodeSloSpec};

const LIMITS: &str = annotation::NETWORK_QOS;

/// 100 MB/s, of which best-effort pods send at most ten.
fn network() -> NodeNetwork {
    let best_effort = NetClass {
        sent: NetShare {
            min: NetRate::NONE,
            max: NetRate::of_bits(80_000_000),
        },
        received: NetShare::default(),
    };
    NodeNetwork {
        total: NetRate::of_bits(800_000_000),
        best_effort,
        ..NodeNetwork::default()
    }
}

fn shared_out(network: Option<NodeNetwork>) -> NodeView {
    node_with(NodePolicy {
        slo: Some(NodeSloSpec {
            network,
            ..NodeSloSpec::default()
        }),
        ..NodePolicy::default()
    })
}

fn decided(class: &str, tier: KubeQos, annotations: &[(&str, &str)]) -> String {
    let pod = in_tier(tier, pod(class, annotations));
    let node = shared_out(Some(network()));
    shown(&decide_pod(&TerwayQos, &pod, &node).unwrap())
}

#[test]
fn a_class_goes_before_another_and_without_one_a_tier() {
    use KubeQos::{BestEffort, Burstable, Guaranteed};
    for (class, tier, rank) in [
        ("SYSTEM", BestEffort, 0),
        ("LSE", Guaranteed, 1),
        ("LSR", Guaranteed, 1),
        ("LS", BestEffort, 1),
        ("BE", Guaranteed, 2),
        ("", Guaranteed, 1),
        ("", Burstable, 1),
        ("", BestEffort, 2),
        // As a class that does not exist counts.
        ("Gold", BestEffort, 2),
    ] {
        let expected = format!("network=priority {rank}, receives any, sends any");
        assert_eq!(decided(class, tier, &[]), expected, "{class} {tier:?}");
    }
}

#[test]
fn a_pod_has_the_limits_of_its_annotation_and_one_may_be_missing() {
    for (limits, expected) in [
        (
            r#"{"ingressLimit":"80M","egressLimit":"8M"}"#,
            "receives 10000000 B/s, sends 1000000 B/s",
        ),
        (
            r#"{"ingressLimit":"80M"}"#,
            "receives 10000000 B/s, sends any",
        ),
        (r#"{"egressLimit":"8M"}"#, "receives any, sends 1000000 B/s"),
        ("{}", "receives any, sends any"),
    ] {
        let decided = decided("LS", KubeQos::Burstable, &[(LIMITS, limits)]);
        assert_eq!(decided, format!("network=priority 1, {expected}"));
    }
}

#[test]
fn the_root_has_what_the_policy_says_of_the_classes() {
    let of_root = |node: &NodeView| {
        let adjustment = TerwayQos.decide_node(node).unwrap();
        assert!(adjustment.tiers.is_empty() && adjustment.host_applications.is_empty());
        shown(&adjustment.root)
    };
    assert_eq!(
        of_root(&shared_out(Some(network()))),
        "network.classes=of 100000000 B/s LS sends 0 to any, receives 0 to any; \
         BE sends 0 to 10000000 B/s, receives 0 to any"
    );
    for node in [node(), shared_out(None)] {
        assert_eq!(of_root(&node), "");
    }
}

#[test]
fn where_no_plugin_shares_the_network_out_nothing_is_decided() {
    for node in [node(), shared_out(None)] {
        let limits = r#"{"egressLimit":"8M"}"#;
        let decided = decide_pod(&TerwayQos, &pod("LS", &[(LIMITS, limits)]), &node);
        assert_eq!(shown(&decided.unwrap()), "");
    }
}

#[test]
fn a_limit_that_is_none_is_an_error_that_names_the_annotation() {
    let pod = pod("LS", &[(LIMITS, r#"{"egressLimit":"fast"}"#)]);
    let error = decide_pod(&TerwayQos, &pod, &shared_out(Some(network()))).unwrap_err();
    assert_eq!(error.key(), "koordinator.sh/networkQOS");
}

#[test]
fn a_limit_that_is_none_leaves_the_pod_the_part_of_its_class() {
    let gates = FeatureGates::parse("TerwayQoS=true").unwrap();
    let chain = Chain::new(&gates, &FailPolicies::default());
    let node = shared_out(Some(network()));
    let outcome = chain.pod(&pod("BE", &[(LIMITS, "{")]), &[], &node, &mut ());
    let (part, owner) = outcome.merged.get(Setting::PodNetwork).unwrap();
    assert_eq!(part.to_string(), "priority 2, receives any, sends any");
    assert_eq!(owner.hook, "TerwayQoS");
    assert_eq!(outcome.failures.len(), 1);
}

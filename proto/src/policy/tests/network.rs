//! What a policy says of the network.

use super::*;
use koord_model::{NetClass, NetRate, NetShare, NodeNetwork};

/// What is in force under a policy of a plugin and a network of 1 Gbit, and what is wrong.
fn read(classes: &str) -> (NodeNetwork, Vec<String>) {
    let (network, issues) = under("terway-qos", "totalNetworkBandwidth: 1G", classes);
    (network.unwrap(), issues)
}

fn under(policy: &str, system: &str, classes: &str) -> (Option<NodeNetwork>, Vec<String>) {
    let (slo, issues) = slo_issues(&format!(
        "{{systemStrategy: {{{system}}}, resourceQOSStrategy: \
         {{policies: {{netQOSPolicy: {policy}}}, {classes}}}}}"
    ));
    (slo.network, issues)
}

/// Bytes kept, and at most.
fn bytes(share: NetShare) -> (u64, u64) {
    (share.min.bytes(), share.max.bytes())
}

#[test]
fn amounts_are_bits_and_numbers_are_percent_of_the_whole() {
    let (network, issues) = read(
        "lsClass: {networkQOS: {enable: true, egressRequest: 400M, egressLimit: 100,
            ingressRequest: 25, ingressLimit: \"8k\"}},
         beClass: {networkQOS: {enable: true, egressLimit: 40, ingressLimit: 1G}}",
    );
    assert_eq!(issues, [""; 0]);
    assert_eq!(network.total.bytes(), 125_000_000);
    let NodeNetwork {
        latency_sensitive: ls,
        best_effort: be,
        ..
    } = network;
    assert_eq!(bytes(ls.sent), (50_000_000, 125_000_000));
    assert_eq!(bytes(ls.received), (31_250_000, 1_000));
    assert_eq!(bytes(be.sent), (0, 50_000_000));
    assert_eq!(bytes(be.received), (0, 125_000_000));
}

#[test]
fn a_class_that_is_not_enabled_has_nothing_kept_and_no_limit() {
    for enable in ["", "enable: false, "] {
        let section = format!("{{networkQOS: {{{enable}egressRequest: 10}}}}");
        let (network, issues) = read(&format!("lsClass: {section}, beClass: {section}"));
        assert_eq!(issues, [""; 0]);
        let none = NetClass::default();
        assert_eq!(
            (network.latency_sensitive, network.best_effort),
            (none, none)
        );
    }
}

#[test]
fn where_no_plugin_shares_it_out_it_is_told_nothing() {
    for policy in ["tc", "\"\"", "null"] {
        let (network, issues) = under(policy, "totalNetworkBandwidth: 1G", "");
        assert_eq!((network, issues), (None, Vec::new()), "{policy}");
    }
    let (network, issues) = under("terway", "", "");
    assert_eq!(network, None);
    assert_eq!(
        issues,
        [
            "\"spec.resourceQOSStrategy.policies.netQOSPolicy\": value \"terway\" is none of tc, terway-qos"
        ]
    );
}

#[test]
fn a_network_of_which_nothing_is_said_has_nothing_to_share_out() {
    let classes = "lsClass: {networkQOS: {enable: true, egressRequest: 50}}";
    for system in ["", "totalNetworkBandwidth: \"0\""] {
        let (network, issues) = under("terway-qos", system, classes);
        assert_eq!(
            (network, issues),
            (Some(NodeNetwork::default()), Vec::new())
        );
    }
    let (network, _) = under("terway-qos", "totalNetworkBandwidth: 800", "");
    assert_eq!(network.unwrap().total, NetRate::of_bits(800));
}

#[test]
fn a_wrong_amount_costs_itself() {
    let place = "\"spec.resourceQOSStrategy.lsClass.networkQOS.egressRequest\": ";
    for (amount, issue) in [
        ("101", "value 101 is outside 0 to 100"),
        ("-1", "value -1 is outside 0 to 100"),
        ("1.5", "value is 1.5, not a whole number from 0 to 100"),
        ("2G", "value 2000000000 is outside 0 to 1000000000"),
        (
            "50%",
            "value is no quantity: \"50%\" is no number with an optional suffix of n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei",
        ),
        (
            "\"-1\"",
            "value is no quantity: amount -1 is outside 0 to 9223372036854775807",
        ),
        ("[1]", "value is a list, not a whole number from 0 to 100"),
    ] {
        let (network, issues) = read(&format!(
            "lsClass: {{networkQOS: {{enable: true, egressRequest: {amount}, egressLimit: 80}}}}"
        ));
        assert_eq!(issues, [format!("{place}{issue}")]);
        assert_eq!(bytes(network.latency_sensitive.sent), (0, 100_000_000));
    }
    let classes = "lsClass: {networkQOS: {enable: true, ingressRequest: 300M, egressRequest: 20}}";
    let (network, issues) = under("terway-qos", "totalNetworkBandwidth: [1]", classes);
    assert_eq!(network, Some(NodeNetwork::default()));
    assert_eq!(
        issues,
        [
            "\"spec.systemStrategy.totalNetworkBandwidth\": value is a list, not a quantity up to 9223372036854775807, as 2, 500m or 1.5Gi"
        ]
    );
}

/// What queues are to share out of 1 Gbit, and what is wrong.
fn queued(policy: &str, classes: &str) -> (Option<NodeNetwork>, Vec<String>) {
    let (slo, issues) = slo_issues(&format!(
        "{{systemStrategy: {{totalNetworkBandwidth: 1G}}, resourceQOSStrategy: \
         {{policies: {{netQOSPolicy: {policy}}}, {classes}}}}}"
    ));
    (slo.queues, issues)
}

#[test]
fn queues_share_it_out_where_the_policy_says_so_or_nothing() {
    let classes = "lsClass: {networkQOS: {enable: true, egressRequest: 40, egressLimit: 100}},
        beClass: {networkQOS: {enable: true, egressRequest: 8M, egressLimit: 20}}";
    for policy in ["tc", "\"\"", "null"] {
        let (network, issues) = queued(policy, classes);
        assert_eq!(issues, [""; 0], "{policy}");
        let network = network.unwrap();
        assert_eq!(network.total.bytes(), 125_000_000);
        assert_eq!(
            bytes(network.latency_sensitive.sent),
            (50_000_000, 125_000_000)
        );
        assert_eq!(bytes(network.best_effort.sent), (1_000_000, 25_000_000));
    }
    for policy in ["terway-qos", "other"] {
        assert_eq!(queued(policy, classes).0, None, "{policy}");
    }
    // Of which nothing is said, or that there is none.
    for total in ["", "totalNetworkBandwidth: \"0\""] {
        let (slo, issues) = slo_issues(&format!(
            "{{systemStrategy: {{{total}}}, resourceQOSStrategy: \
             {{lsClass: {{networkQOS: {{enable: true, egressRequest: 50}}}}}}}}"
        ));
        assert_eq!((slo.queues, issues), (None, Vec::new()), "{total}");
    }
    let classes = "lsClass: {networkQOS: {enable: true, egressRequest: 50M}}";
    let (slo, issues) = slo_issues(&format!("{{resourceQOSStrategy: {{{classes}}}}}"));
    assert_eq!((slo.queues, issues), (None, Vec::new()));
}

#[test]
fn what_queues_cannot_keep_costs_itself_and_is_said_as_it_is_written() {
    let place =
        |class: &str| format!("\"spec.resourceQOSStrategy.{class}.networkQOS.egressRequest\": ");
    for (ls, be, class, issue, kept) in [
        // Above its own limit.
        (
            "egressRequest: 50, egressLimit: 40",
            "egressLimit: 0",
            "lsClass",
            "value 50 is outside 0 to 40",
            (0, 0),
        ),
        (
            "egressRequest: 400M, egressLimit: 40M",
            "egressRequest: 10",
            "lsClass",
            "value 400000000 is outside 0 to 40000000",
            (0, 12_500_000),
        ),
        // Above what the class before it leaves.
        (
            "egressRequest: 80",
            "egressRequest: 30",
            "beClass",
            "value 30 is outside 0 to 20",
            (100_000_000, 0),
        ),
        (
            "egressRequest: 100",
            "egressRequest: 8M",
            "beClass",
            "value 8000000 is outside 0 to 0",
            (125_000_000, 0),
        ),
    ] {
        let (network, issues) = queued(
            "tc",
            &format!(
                "lsClass: {{networkQOS: {{enable: true, {ls}}}}},
                 beClass: {{networkQOS: {{enable: true, {be}}}}}"
            ),
        );
        assert_eq!(issues, [place(class) + issue]);
        let network = network.unwrap();
        let sent = [network.latency_sensitive.sent, network.best_effort.sent];
        assert_eq!(sent.map(|it| it.min.bytes()), [kept.0, kept.1]);
    }
}

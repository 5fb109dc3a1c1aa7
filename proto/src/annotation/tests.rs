//! A hostile corpus: what anyone who may create a pod or edit a node can write, and what comes of
//! it. Every outcome is a literal.

use super::*;
use koord_model::{Bvt, CpuSet, MilliCpu};
use std::{collections::BTreeMap, error::Error, fmt::Debug};

mod every;

fn cpus(list: &str) -> CpuSet {
    list.parse().unwrap()
}

/// The error and all its sources, as the log prints them.
fn chain<T: Debug>(result: Result<T, AnnotationError>) -> String {
    let error = result.expect_err("the text must be refused");
    let mut chain = error.to_string();
    let mut source = error.source();
    while let Some(error) = source {
        chain += &format!(": {error}");
        source = error.source();
    }
    chain
}

/// Tries each text; the expected chain stands without the part that every error begins with.
fn refused<T: Debug>(
    key: &str,
    parse: impl Fn(&str) -> Result<T, AnnotationError>,
    cases: &[(&str, &str)],
) {
    for (text, expected) in cases {
        let expected = format!("annotation {key} is unusable at {expected}");
        assert_eq!(chain(parse(text)), expected, "{text}");
    }
}

#[test]
fn a_list_has_as_many_elements_as_a_machine_has_nodes_and_devices() {
    let status = |count: usize| {
        let nodes = vec!["{}"; count].join(",");
        ResourceStatus::parse(&format!(r#"{{"numaNodeResources":[{nodes}]}}"#))
    };
    assert_eq!(status(1_024).unwrap().numa_nodes.len(), 1_024);
    let error = status(1_025).unwrap_err();
    assert_eq!(error.path, "$.numaNodeResources");
    assert_eq!(
        error.reason.source().unwrap().to_string(),
        "count of elements 1025 is outside 0 to 1024"
    );
}

#[test]
fn a_value_that_cannot_be_used_is_told_cut_and_escaped() {
    let text = format!(r#"{{"enable":"{}"}}"#, "x".repeat(70));
    let text_told = format!("$.enable: value is \"{}\", not a boolean", "x".repeat(64));
    let number = format!(r#"{{"groupIdentity":{}}}"#, "9".repeat(70));
    let number_told = format!(
        "$.groupIdentity: value is {}, not a whole number from -1 to 2",
        "9".repeat(64)
    );
    refused(
        "koordinator.sh/cpuQOS",
        CpuQos::parse,
        &[
            (&text, &text_told),
            (&number, &number_told),
            (
                r#"{"enable":"a\nb\u0007\u202e"}"#,
                r#"$.enable: value is "a\nb\u{7}\u{202e}", not a boolean"#,
            ),
            (
                r#"{"enable":"\ud800"}"#,
                "$.enable: value is a string, not a boolean",
            ),
        ],
    );
}

#[test]
fn a_resource_status_is_read_in_any_case_of_its_keys() {
    let plain = r#"{"cpuset":"0-3,8","numaNodeResources":[
        {"node":1,"resources":{"cpu":"4","kubernetes.io/batch-cpu":500,"memory":"1Gi"}}]}"#;
    let expected = ResourceStatus {
        cpuset: Some(cpus("0-3,8")),
        numa_nodes: vec![NumaNode {
            node: 1,
            cpu: "4".parse().unwrap(),
            batch_cpu: "500".parse().unwrap(),
        }],
    };
    assert_eq!(ResourceStatus::parse(plain).unwrap(), expected);
    let other = r#"{"CPUSET":"0-3,8","numanoderesources":[
        {"Node":1,"RESOURCES":{"cpu":4.0,"kubernetes.io/batch-cpu":"5e2"}}],"later":{"a":[1]}}"#;
    assert_eq!(ResourceStatus::parse(other).unwrap(), expected);
}

#[test]
fn names_of_resources_keep_their_case() {
    let status = ResourceStatus::parse(
        r#"{"numaNodeResources":[{"resources":{"CPU":"4","Kubernetes.io/batch-cpu":"5"}}]}"#,
    );
    assert_eq!(status.unwrap().numa_nodes, [NumaNode::default()]);
}

#[test]
fn the_last_of_two_equal_keys_wins_and_objects_are_laid_over_each_other() {
    let status = ResourceStatus::parse(r#"{"cpuset":"0","CpuSet":"1","cpuset":null}"#);
    assert_eq!(status.unwrap().cpuset, Some(cpus("1")));

    let pools = SharedPool::parse_list(r#"[{"node":1,"node":2,"cpuset":"3"}]"#).unwrap();
    assert_eq!(pools[0].node, 2);

    let spec = ExtendedResourceSpec::parse(
        r#"{"containers":{"a":{"limits":{"kubernetes.io/batch-cpu":1}}},
            "CONTAINERS":{"b":{"limits":{"kubernetes.io/batch-cpu":2},
                               "Limits":{"kubernetes.io/batch-memory":3}}}}"#,
    );
    let limits = |cpu, memory| ExtendedContainer {
        limits: ExtendedResources {
            cpu: Some(MilliCpu(cpu)),
            memory,
        },
        ..ExtendedContainer::default()
    };
    let expected = [
        ("a".to_owned(), limits(1, None)),
        ("b".to_owned(), limits(2, Some(3))),
    ];
    assert_eq!(spec.unwrap().containers, Some(BTreeMap::from(expected)));
}

#[test]
fn an_empty_cpuset_is_none() {
    for text in [r#"{"cpuset":""}"#, r#"{"cpuset":" "}"#, "{}"] {
        assert_eq!(ResourceStatus::parse(text).unwrap().cpuset, None, "{text}");
    }
}

#[test]
fn a_numa_node_without_cpu_time_does_not_count() {
    let nodes = ResourceStatus::parse(
        r#"{"numaNodeResources":[
            {"node":0,"resources":{"memory":"1Gi"}},
            {"node":1,"resources":{"cpu":"1m"}},
            {"node":2,"resources":{"kubernetes.io/batch-cpu":"1"}},
            {"node":3,"resources":{"kubernetes.io/batch-cpu":"-1"}},
            {"node":4,"resources":{"cpu":"0","kubernetes.io/batch-cpu":"0"}},
            {"node":5,"resources":null}]}"#,
    );
    let with_cpu: Vec<_> = nodes
        .unwrap()
        .numa_nodes
        .iter()
        .map(NumaNode::has_cpu)
        .collect();
    assert_eq!(with_cpu, [false, true, true, false, false, false]);
}

#[test]
fn a_bad_cpuset_of_a_resource_status_names_the_place() {
    let many = format!(r#"{{"cpuset":"{}"}}"#, "1-".repeat(4));
    refused(
        "scheduling.koordinator.sh/resource-status",
        ResourceStatus::parse,
        &[
            ("[]", "$: value is a list, not an object"),
            (r#"{"cpuset":7}"#, "$.cpuset: value is 7, not a string"),
            (
                r#"{"CPUset":["0"]}"#,
                "$.CPUset: value is a list, not a string",
            ),
            (
                r#"{"cpuset":"0-"}"#,
                "$.cpuset: value is no CPU list: \"\" is no CPU number or range",
            ),
            (
                &many,
                "$.cpuset: value is no CPU list: \"1-1-1-\" is no CPU number or range",
            ),
            (
                r#"{"cpuset":"3-1"}"#,
                "$.cpuset: value is no CPU list: CPU range 3-1 runs backwards",
            ),
            (
                r#"{"cpuset":"0-99999"}"#,
                "$.cpuset: value is no CPU list: CPU 99999 is above 8191, the highest that a kernel knows",
            ),
            (
                r#"{"cpuset":"0\u0000"}"#,
                "$.cpuset: value is no CPU list: \"0\\0\" is no CPU number or range",
            ),
            (
                r#"{"cpuset":"0\ud800"}"#,
                r#"$.cpuset: text "\"0\\ud800\"" is not JSON: unexpected end of hex escape at line 1 column 9"#,
            ),
        ],
    );
}

#[test]
fn a_bad_numa_node_of_a_resource_status_names_the_place() {
    refused(
        "scheduling.koordinator.sh/resource-status",
        ResourceStatus::parse,
        &[
            (
                r#"{"numaNodeResources":{}}"#,
                "$.numaNodeResources: value is an object, not a list",
            ),
            (
                r#"{"numaNodeResources":[{},7]}"#,
                "$.numaNodeResources[1]: value is 7, not an object",
            ),
            (
                r#"{"numaNodeResources":[{"node":"1"}]}"#,
                "$.numaNodeResources[0].node: value is \"1\", not an integer of 32 bits",
            ),
            (
                r#"{"numaNodeResources":[{"node":1.0}]}"#,
                "$.numaNodeResources[0].node: value is 1.0, not an integer of 32 bits",
            ),
            (
                r#"{"numaNodeResources":[{"node":2147483648}]}"#,
                "$.numaNodeResources[0].node: value is 2147483648, not an integer of 32 bits",
            ),
            (
                r#"{"numaNodeResources":[{"node":0},{"node":-1}]}"#,
                "$.numaNodeResources[1].node: value is out of range: NUMA node -1 is outside 0 to 1023",
            ),
            (
                r#"{"numaNodeResources":[{"node":1023},{"node":1024}]}"#,
                "$.numaNodeResources[1].node: value is out of range: NUMA node 1024 is outside 0 to 1023",
            ),
            (
                r#"{"numaNodeResources":[{"resources":{"cpu":true}}]}"#,
                "$.numaNodeResources[0].resources.cpu: value is true, not a quantity up to 9223372036854775807, as 2, 500m or 1.5Gi",
            ),
            (
                r#"{"numaNodeResources":[{"resources":{"cpu":"1 core"}}]}"#,
                "$.numaNodeResources[0].resources.cpu: value is no quantity: \"1 core\" is no number with an optional suffix of n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei",
            ),
            (
                r#"{"numaNodeResources":[{"resources":{"a/b":"x"}}]}"#,
                "$.numaNodeResources[0].resources[\"a/b\"]: value is no quantity: \"x\" is no number with an optional suffix of n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei",
            ),
        ],
    );
}

#[test]
fn batch_resources_are_milli_cpus_and_bytes() {
    let spec = ExtendedResourceSpec::parse(
        r#"{"containers":{"main":{"requests":{"kubernetes.io/batch-cpu":"500"},
            "limits":{"kubernetes.io/batch-cpu":"1k","kubernetes.io/batch-memory":"1.5Gi",
                      "kubernetes.io/mid-cpu":"7"}},"Main":null,"side":{}}}"#,
    );
    let containers = spec.unwrap().containers.unwrap();
    let main = ExtendedContainer {
        requests: ExtendedResources {
            cpu: Some(MilliCpu(500)),
            memory: None,
        },
        limits: ExtendedResources {
            cpu: Some(MilliCpu(1_000)),
            memory: Some(1_610_612_736),
        },
    };
    assert_eq!(containers["main"], main);
    assert_eq!(containers["Main"], ExtendedContainer::default());
    assert_eq!(containers["side"], ExtendedContainer::default());
    assert_eq!(containers.len(), 3);
}

#[test]
fn a_bad_extended_resource_spec_names_the_place() {
    let huge = format!(
        r#"{{"containers":{{"a":{{"limits":{{"x":{}}}}}}}}}"#,
        "9".repeat(70)
    );
    let name = format!(r#"{{"containers":{{"{}\n":7}}}}"#, "n".repeat(200));
    let shown = format!(
        "$.containers[\"{}\"]: value is 7, not an object",
        "n".repeat(64)
    );
    let huge_shown = format!(
        "$.containers.a.limits.x: value is no quantity: \"{}\" is outside -9223372036854775807 to 9223372036854775807, or has too many digits",
        "9".repeat(64)
    );
    refused(
        "node.koordinator.sh/extended-resource-spec",
        ExtendedResourceSpec::parse,
        &[
            (
                r#"{"containers":[]}"#,
                "$.containers: value is a list, not an object",
            ),
            (
                r#"{"containers":{"a":[]}}"#,
                "$.containers.a: value is a list, not an object",
            ),
            (
                r#"{"containers":{"a":{"requests":"1"}}}"#,
                "$.containers.a.requests: value is \"1\", not an object",
            ),
            (
                r#"{"containers":{"a":{"requests":{"kubernetes.io/batch-cpu":"-1"}}}}"#,
                "$.containers.a.requests[\"kubernetes.io/batch-cpu\"]: value is no quantity: amount -1 is outside 0 to 9223372036854775807",
            ),
            (
                r#"{"containers":{"a":{"limits":{"kubernetes.io/batch-memory":-0.5}}}}"#,
                "$.containers.a.limits[\"kubernetes.io/batch-memory\"]: value is no quantity: amount -0.5 is outside 0 to 9223372036854775807",
            ),
            (
                r#"{"containers":{"a":{"limits":{"kubernetes.io/batch-memory":"8Ei"}}}}"#,
                "$.containers.a.limits[\"kubernetes.io/batch-memory\"]: value is no quantity: \"8Ei\" is outside -9223372036854775807 to 9223372036854775807, or has too many digits",
            ),
            (&huge, &huge_shown),
            (&name, &shown),
        ],
    );
}

#[test]
fn a_cpu_qos_keeps_what_was_not_said_apart_from_what_was() {
    let qos = CpuQos::parse(r#"{"ENABLE":false,"groupidentity":-1}"#).unwrap();
    assert_eq!(qos.enable, Some(false));
    assert_eq!(qos.group_identity, Some(Bvt::new(-1).unwrap()));
    let qos = CpuQos::parse(r#"{"enable":true,"enable":null,"groupIdentity":2}"#).unwrap();
    assert_eq!(
        (qos.enable, qos.group_identity),
        (None, Some(Bvt::new(2).unwrap()))
    );
}

#[test]
fn a_cpu_burst_keeps_what_was_not_said_apart_from_what_was() {
    let burst = CpuBurst::parse(r#"{"CPUBurstPercent":150,"cfsQuotaBurstPercent":200}"#).unwrap();
    assert_eq!(burst.policy, None);
    assert_eq!(burst.percent.map(BurstPercent::get), Some(150));
    for (name, policy) in [
        ("none", CpuBurstPolicy::None),
        ("cpuBurstOnly", CpuBurstPolicy::CpuBurstOnly),
        ("cfsQuotaBurstOnly", CpuBurstPolicy::CfsQuotaBurstOnly),
        ("auto", CpuBurstPolicy::Auto),
    ] {
        let burst = CpuBurst::parse(&format!(r#"{{"policy":"{name}"}}"#)).unwrap();
        assert_eq!((burst.policy, burst.percent), (Some(policy), None));
    }
    for nothing in ["null", "\"\""] {
        let text = format!(r#"{{"policy":{nothing},"cpuBurstPercent":150}}"#);
        let burst = CpuBurst::parse(&text).unwrap();
        assert_eq!(burst.policy, None, "{text}");
        assert_eq!(burst.percent.map(BurstPercent::get), Some(150), "{text}");
    }
    assert_eq!(BurstPercent::default().get(), 1_000);
}

#[test]
fn a_bad_cpu_burst_names_the_place() {
    refused(
        "koordinator.sh/cpuBurst",
        CpuBurst::parse,
        &[
            (
                r#"{"policy":"Auto"}"#,
                "$.policy: value \"Auto\" is none of none, cpuBurstOnly, cfsQuotaBurstOnly, auto",
            ),
            (
                r#"{"policy":true}"#,
                "$.policy: value is true, not a string",
            ),
            (
                r#"{"cpuBurstPercent":0}"#,
                "$.cpuBurstPercent: value is out of range: cpuBurstPercent 0 is outside 1 to 10000",
            ),
            (
                r#"{"cpuBurstPercent":10001}"#,
                "$.cpuBurstPercent: value is out of range: cpuBurstPercent 10001 is outside 1 to 10000",
            ),
            (
                r#"{"cpuBurstPercent":"100"}"#,
                "$.cpuBurstPercent: value is \"100\", not a whole number from 1 to 10000",
            ),
        ],
    );
}

#[test]
fn a_bad_cpu_qos_names_the_place() {
    refused(
        "koordinator.sh/cpuQOS",
        CpuQos::parse,
        &[
            (
                r#"{"enable":"true"}"#,
                "$.enable: value is \"true\", not a boolean",
            ),
            (r#"{"enable":1}"#, "$.enable: value is 1, not a boolean"),
            (
                r#"{"groupIdentity":3}"#,
                "$.groupIdentity: value is out of range: cpu.bvt_warp_ns 3 is outside -1 to 2",
            ),
            (
                r#"{"groupIdentity":-2}"#,
                "$.groupIdentity: value is out of range: cpu.bvt_warp_ns -2 is outside -1 to 2",
            ),
            (
                r#"{"groupIdentity":"2"}"#,
                "$.groupIdentity: value is \"2\", not a whole number from -1 to 2",
            ),
            (
                r#"{"groupIdentity":2e0}"#,
                "$.groupIdentity: value is 2e0, not a whole number from -1 to 2",
            ),
            (
                r#"{"groupIdentity":9223372036854775808}"#,
                "$.groupIdentity: value is 9223372036854775808, not a whole number from -1 to 2",
            ),
        ],
    );
}

#[test]
fn node_annotations_are_read_as_koordlet_writes_them() {
    let pools = SharedPool::parse_list(
        r#"[{"socket":0,"node":0,"cpuset":"0-25"},{"socket":1,"node":1,"cpuset":"26-51"}]"#,
    );
    let pool = |node, list| SharedPool {
        node,
        cpuset: cpus(list),
    };
    assert_eq!(pools.unwrap(), [pool(0, "0-25"), pool(1, "26-51")]);

    let policy = CpuManagerPolicy::parse(
        r#"{"policy":"static","options":{"full-pcpus-only":"true"},"reservedCPUs":"0-1"}"#,
    );
    assert!(policy.unwrap().is_static());
    assert!(
        !CpuManagerPolicy::parse(r#"{"policy":"none"}"#)
            .unwrap()
            .is_static()
    );
    assert!(!CpuManagerPolicy::parse("{}").unwrap().is_static());

    let system = SystemQosResource::parse(r#"{"cpuset":"0-1","cpusetExclusive":false}"#).unwrap();
    assert_eq!(system.unwrap().cpuset, cpus("0-1"));
    let system = SystemQosResource::parse(r#"{"cpusetExclusive":true}"#).unwrap();
    assert_eq!(system.unwrap().cpuset, CpuSet::default());
}

/// Nobody's decision may hang on what nobody looks at.
#[test]
fn what_no_hook_asks_for_voids_no_annotation() {
    let policy = r#"{"policy":"static","options":{"full-pcpus-only":true},"reservedCPUs":"0-"}"#;
    assert!(CpuManagerPolicy::parse(policy).unwrap().is_static());
    let system = SystemQosResource::parse(r#"{"cpuset":"2","cpusetExclusive":"yes"}"#).unwrap();
    assert_eq!(system.unwrap().cpuset, cpus("2"));
    let pools = SharedPool::parse_list(r#"[{"socket":"0","node":1,"cpuset":"3"}]"#).unwrap();
    assert_eq!(pools[0].cpuset, cpus("3"));
    let qos = CpuQos::parse(r#"{"enable":true,"schedIdle":2,"coreExpeller":{}}"#).unwrap();
    assert_eq!(qos.enable, Some(true));
}

#[test]
fn bad_node_annotations_name_the_place() {
    refused(
        "node.koordinator.sh/cpu-shared-pools",
        SharedPool::parse_list,
        &[
            ("{}", "$: value is an object, not a list"),
            (
                r#"[{"cpuset":"x"}]"#,
                "$[0].cpuset: value is no CPU list: \"x\" is no CPU number or range",
            ),
            (
                r#"[{"node":"0"}]"#,
                "$[0].node: value is \"0\", not an integer of 32 bits",
            ),
        ],
    );
    refused(
        "node.koordinator.sh/be-cpu-shared-pools",
        SharedPool::parse_be_list,
        &[(r#"[null,[]]"#, "$[1]: value is a list, not an object")],
    );
    refused(
        "kubelet.koordinator.sh/cpu-manager-policy",
        CpuManagerPolicy::parse,
        &[(r#"{"policy":0}"#, "$.policy: value is 0, not a string")],
    );
    refused(
        "node.koordinator.sh/system-qos-resource",
        SystemQosResource::parse,
        &[(
            r#"{"cpuset":["0"]}"#,
            "$.cpuset: value is a list, not a string",
        )],
    );
}

#[test]
fn an_unknown_class_is_an_error_and_no_class_is_none() {
    assert_eq!(qos_class(Some("LSR")), Ok(Some(QosClass::Lsr)));
    assert_eq!(qos_class(Some("")), Ok(None));
    assert_eq!(qos_class(None), Ok(None));
    assert!(qos_class(Some("ls")).is_err());
}

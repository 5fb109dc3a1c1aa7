//! A wrong value of each field: it is named with what it may be, and all else is as if it were not there.

use super::*;

/// Holds a `spec` whose `WRONG` is this field against one that does not say it.
fn wrong(spec: &str, field: &str, path: &str, problem: &str) {
    let beside = spec.replace("WRONG, ", "").replace("WRONG", "");
    let (left, issues) = slo_issues(&beside);
    assert_eq!(issues, [""; 0], "{beside}");
    let (slo, issues) = slo_issues(&spec.replace("WRONG", field));
    assert_eq!(
        issues,
        [format!("\"spec.{path}\": value {problem}")],
        "{field}"
    );
    assert_eq!(slo, left, "{field}");
}

#[test]
fn of_how_best_effort_pods_are_held_down() {
    let spec = "{resourceUsedThresholdWithBE: {WRONG, cpuSuppressPolicy: cfsQuota}}";
    wrong(
        spec,
        "enable: 1",
        "resourceUsedThresholdWithBE.enable",
        "is 1, not a boolean",
    );
    let spec = "{resourceUsedThresholdWithBE: {WRONG, enable: true}}";
    wrong(
        spec,
        "cpuSuppressPolicy: quota",
        "resourceUsedThresholdWithBE.cpuSuppressPolicy",
        "\"quota\" is none of cpuset, cfsQuota",
    );
}

#[test]
fn of_bursts() {
    wrong(
        "{cpuBurstStrategy: {WRONG, cpuBurstPercent: 200}}",
        "policy: always",
        "cpuBurstStrategy.policy",
        "\"always\" is none of none, cpuBurstOnly, cfsQuotaBurstOnly, auto",
    );
    let spec = "{cpuBurstStrategy: {WRONG, policy: auto}}";
    for (field, problem) in [
        ("cpuBurstPercent: 0", "0 is outside 1 to 10000"),
        (
            "cpuBurstPercent: much",
            "is \"much\", not a whole number from 1 to 10000",
        ),
    ] {
        wrong(spec, field, "cpuBurstStrategy.cpuBurstPercent", problem);
    }
}

#[test]
fn of_what_a_class_has_of_cpus_and_caches() {
    wrong(
        "{resourceQOSStrategy: {policies: {WRONG}, lsClass: {cpuQOS: {enable: true}}}}",
        "cpuPolicy: fair",
        "resourceQOSStrategy.policies.cpuPolicy",
        "\"fair\" is none of groupIdentity, coreSched",
    );
    for section in ["cpuQOS", "memoryQOS", "resctrlQOS"] {
        wrong(
            &format!(
                "{{resourceQOSStrategy: {{lsClass: {{{section}: {{WRONG}}}}, \
                   beClass: {{cpuQOS: {{enable: true}}}}}}}}"
            ),
            "enable: 'yes'",
            &format!("resourceQOSStrategy.lsClass.{section}.enable"),
            "is \"yes\", not a boolean",
        );
    }
}

#[test]
fn of_limits_of_block_devices() {
    let path = "resourceQOSStrategy.beClass.blkioQOS";
    wrong(
        "{resourceQOSStrategy: {beClass: {blkioQOS: {WRONG}, cpuQOS: {enable: true}}}}",
        "enable: 1",
        &format!("{path}.enable"),
        "is 1, not a boolean",
    );
    wrong(
        "{resourceQOSStrategy: {beClass: {blkioQOS: {enable: true, WRONG}, cpuQOS: {enable: true}}}}",
        "blocks: {}",
        &format!("{path}.blocks"),
        "is a mapping, not a list",
    );
    let of_be = "{resourceQOSStrategy: {beClass: {blkioQOS: {enable: true, blocks: [
        {name: vdb, type: device, ioCfg: {WRONG}}, {name: vdc, type: device, ioCfg: {readBPS: 7}}]}}}}";
    let rate = "9223372036854775807";
    for key in ["readBPS", "writeBPS", "readIOPS", "writeIOPS"] {
        wrong(
            of_be,
            &format!("{key}: -1"),
            &format!("{path}.blocks[0].ioCfg.{key}"),
            &format!("-1 is outside 0 to {rate}"),
        );
    }
    wrong(
        of_be,
        "ioWeightPercent: 101",
        &format!("{path}.blocks[0].ioCfg.ioWeightPercent"),
        "101 is outside 1 to 100",
    );
}

#[test]
fn of_what_a_disk_can_do() {
    let path = "resourceQOSStrategy.cgroupRoot.blkioQOS.blocks[0].ioCfg";
    let of_root = "{resourceQOSStrategy: {cgroupRoot: {blkioQOS: {enable: true, blocks: [
        {name: vdb, type: device, ioCfg: {WRONG, writeLatency: 7}}]}}}}";
    for (field, key, problem) in [
        (
            "readLatency: -1",
            "readLatency",
            "-1 is outside 0 to 4294967295",
        ),
        (
            "writeLatencyPercent: 101",
            "writeLatencyPercent",
            "101 is outside 0 to 100",
        ),
        (
            "enableUserModel: 1",
            "enableUserModel",
            "is 1, not a boolean",
        ),
    ] {
        wrong(of_root, field, &format!("{path}.{key}"), problem);
    }
    let model = [
        "modelReadBPS",
        "modelReadSeqIOPS",
        "modelReadRandIOPS",
        "modelWriteBPS",
        "modelWriteSeqIOPS",
        "modelWriteRandIOPS",
    ];
    for key in model {
        // Of a model all numbers count or none.
        let numbers = model.map(|it| format!("{it}: {}", if it == key { "0" } else { "5" }));
        wrong(
            of_root,
            &format!("enableUserModel: true, {}", numbers.join(", ")),
            &format!("{path}.{key}"),
            "0 is outside 1 to 9223372036854775807",
        );
    }
}

#[test]
fn of_the_network() {
    let spec = "{systemStrategy: {totalNetworkBandwidth: 1000}, resourceQOSStrategy: {
        policies: {netQOSPolicy: terway-qos}, lsClass: {networkQOS: {enable: true, WRONG}},
        beClass: {networkQOS: {enable: true, egressLimit: 50}}}}";
    for key in [
        "egressRequest",
        "egressLimit",
        "ingressRequest",
        "ingressLimit",
    ] {
        for (value, problem) in [
            ("101", "101 is outside 0 to 100"),
            ("true", "is true, not a whole number from 0 to 100"),
            ("'1001'", "1001 is outside 0 to 1000"),
        ] {
            wrong(
                spec,
                &format!("{key}: {value}"),
                &format!("resourceQOSStrategy.lsClass.networkQOS.{key}"),
                problem,
            );
        }
    }
    wrong(
        "{resourceQOSStrategy: {policies: {netQOSPolicy: terway-qos}, lsClass: {networkQOS: {WRONG}}}}",
        "enable: 1",
        "resourceQOSStrategy.lsClass.networkQOS.enable",
        "is 1, not a boolean",
    );
    wrong(
        "{systemStrategy: {WRONG}, resourceQOSStrategy: {policies: {netQOSPolicy: terway-qos}}}",
        "totalNetworkBandwidth: much",
        "systemStrategy.totalNetworkBandwidth",
        "is no quantity: \"much\" is no number with an optional suffix of n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei",
    );
}

#[test]
fn of_applications_beside_kubernetes() {
    wrong(
        "{hostApplications: [{name: nginx, qos: LS}WRONG]}",
        ", {name: x, cgroupPath: {parentDir: 7}}",
        "hostApplications[1].cgroupPath.parentDir",
        "is 7, not a string",
    );
}

#[test]
fn as_many_applications_count_as_a_node_may_have_and_no_path_is_as_long_as_all_paths() {
    let all: String = (0..300).map(|it| format!("{{name: n{it}}},")).collect();
    let (slo, issues) = slo_issues(&format!("{{hostApplications: [{all}]}}"));
    assert_eq!(slo.host_applications.len(), 256);
    let told = "\"spec.hostApplications\": list has 300 elements, of which the first 256 count";
    assert_eq!(issues, [told]);

    let long = |count| format!("{}x", "y/".repeat(count));
    let (slo, issues) = slo_issues(&format!(
        "{{hostApplications: [{{name: a, cgroupPath: {{relativePath: {}}}}},
          {{name: b, cgroupPath: {{base: Kubepods, relativePath: {}}}}}]}}",
        long(1_535),
        long(1_536)
    ));
    assert_eq!(slo.host_applications.len(), 1);
    let told = "\"spec.hostApplications[1].cgroupPath\": path cannot be used: cgroup path is 3073 bytes \
                long, 3072 are allowed";
    assert_eq!(issues, [told]);
}

mod block;
mod fields;
mod network;
mod page;

use super::*;
use crate::annotation::{
    CpuBurstPolicy, MemoryQos, Percent, SharedPool, Switch, SystemQosResource,
};
use koord_model::{
    Bandwidth, Bvt, CacheRange, OomPriority, PageCacheSize, QosClass, WmarkMinAdj, WmarkRatio,
    WmarkScale,
};
use std::error::Error;

const NODE_SLO: &str = "\
apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata:
  name: node-1
spec:
  cpuBurstStrategy:
    policy: auto
  extensions: {}
  hostApplications:
  - name: nginx
    qos: LS
    priority: koord-prod
  - name: backup
    qos: BE
  - name: agent
  - cgroupPath:
      base: KubepodsBesteffort
      parentDir: host/
      relativePath: /scan
    name: scanner
    qos: BE
  resourceQOSStrategy:
    beClass:
      cpuQOS:
        enable: true
        schedIdle: 1
      memoryQOS:
        enable: true
        wmarkRatio: 90
    lsClass:
      cpuQOS:
        enable: true
        groupIdentity: 1
        coreExpeller: false
    lsrClass:
      cpuQOS:
        enable: true
    policies:
      cpuPolicy: coreSched
    systemClass:
      cpuQOS:
        groupIdentity: 2
  resourceUsedThresholdWithBE:
    cpuSuppressPolicy: cfsQuota
    enable: true
";

const TOPOLOGY: &str = r#"
apiVersion: topology.node.k8s.io/v1alpha1
kind: NodeResourceTopology
metadata:
  annotations:
    kubelet.koordinator.sh/cpu-manager-policy: '{"policy":"static","reservedCPUs":"0"}'
    node.koordinator.sh/be-cpu-shared-pools: '[{"socket":0,"node":0,"cpuset":"0-3"}]'
    node.koordinator.sh/cpu-shared-pools: '[{"socket":0,"node":0,"cpuset":"0-1"}]'
    node.koordinator.sh/pod-cpu-allocs: "null"
    node.koordinator.sh/system-qos-resource: '{"cpuset":"3"}'
  labels:
    app.kubernetes.io/managed-by: Koordinator
  name: node-1
topologyPolicies:
- None
zones: []
"#;

const NODE: &str = r#"
apiVersion: v1
kind: Node
metadata:
  annotations:
    node.koordinator.sh/cpu-normalization-ratio: "1.20"
  labels:
    kubernetes.io/os: linux
    node.koordinator.sh/cpu-normalization-enabled: "true"
  name: node-1
spec: {}
"#;

fn parsed(yaml: &str) -> Parsed {
    NodePolicy::parse_stream(yaml, Some("node-1")).unwrap()
}

/// Each issue with all its sources, as the log prints them.
fn issues(parsed: &Parsed) -> Vec<String> {
    let chain = |issue: &PolicyIssue| {
        let mut chain = issue.to_string();
        let mut source = issue.source();
        while let Some(error) = source {
            chain += &format!(": {error}");
            source = error.source();
        }
        chain
    };
    parsed.issues.iter().map(chain).collect()
}

/// The issues of a NodeSLO with this `spec`, without the words that all begin with.
fn slo_issues(spec: &str) -> (NodeSloSpec, Vec<String>) {
    let parsed = parsed(&format!(
        "apiVersion: slo.koordinator.sh/v1alpha1\nkind: NodeSLO\nmetadata: {{name: node-1}}\nspec: {spec}\n"
    ));
    let begin = "NodeSLO \"node-1\" is wrong at ";
    let issues = issues(&parsed)
        .iter()
        .map(|issue| issue.strip_prefix(begin).expect(issue).to_owned())
        .collect();
    (parsed.policy.slo.unwrap(), issues)
}

fn cpu_qos(enable: bool, identity: i64, sched_idle: bool, core_expeller: bool) -> ClassQos {
    ClassQos {
        cpu_qos: ClassCpuQos {
            enable,
            group_identity: Bvt::new(identity).unwrap(),
            sched_idle,
            core_expeller,
        },
        ..ClassQos::default()
    }
}

fn memory_qos(wmark_ratio: i64, scale: i64, min_adj: i64) -> MemoryQos {
    MemoryQos {
        wmark_ratio: WmarkRatio::new(wmark_ratio).ok(),
        wmark_scale_permill: WmarkScale::new(scale).ok(),
        wmark_min_adj: WmarkMinAdj::new(min_adj).ok(),
        ..MemoryQos::default()
    }
}

fn resctrl_qos(start: i64, end: i64, percent: i64) -> ClassResctrlQos {
    ClassResctrlQos {
        enable: true,
        range: CacheRange::new(start, end).unwrap(),
        bandwidth: Bandwidth::new(percent).unwrap(),
    }
}

fn application(name: &str, qos: Option<QosClass>, path: &str) -> HostApplication {
    HostApplication {
        name: name.to_owned(),
        qos,
        cgroup: HostCgroup {
            base: HostCgroupBase::CgroupRoot,
            path: koord_model::CgroupPath::parse(path).unwrap(),
        },
    }
}

#[test]
fn a_node_slo_is_laid_over_the_defaults() {
    let parsed = parsed(NODE_SLO);
    assert_eq!(issues(&parsed), [""; 0]);
    let slo = parsed.policy.slo.unwrap();
    let threshold = slo.resource_used_threshold_with_be;
    assert!(threshold.enable);
    assert_eq!(threshold.cpu_suppress_policy, CpuSuppressPolicy::CfsQuota);
    let strategy = slo.resource_qos_strategy;
    assert_eq!(strategy.cpu_policy, CpuPolicy::CoreSched);
    assert_eq!(strategy.lsr_class, cpu_qos(true, 2, false, true));
    assert_eq!(strategy.ls_class, cpu_qos(true, 1, false, false));
    let be_class = ClassQos {
        memory_qos: Some(memory_qos(90, 20, 50)),
        ..cpu_qos(true, -1, true, false)
    };
    assert_eq!(strategy.be_class, be_class);
    assert_eq!(strategy.system_class, ClassQos::default());
    assert_eq!(strategy.class(QosClass::Lse), &strategy.lsr_class);
    assert_eq!(strategy.class(QosClass::System), &strategy.system_class);
}

#[test]
fn host_applications_have_a_place_even_if_none_is_said() {
    let applications = parsed(NODE_SLO).policy.slo.unwrap().host_applications;
    let nginx = application("nginx", Some(QosClass::Ls), "host-latency-sensitive/nginx");
    let mut scanner = application("scanner", Some(QosClass::Be), "host/scan");
    scanner.cgroup.base = HostCgroupBase::KubepodsBesteffort;
    assert_eq!(
        applications,
        [
            nginx,
            application("backup", Some(QosClass::Be), "host-best-effort/backup"),
            application("agent", None, "agent"),
            scanner,
        ]
    );
}

#[test]
fn an_empty_spec_is_all_defaults() {
    for spec in [
        "{}",
        "null",
        "{resourceQOSStrategy: null, hostApplications: []}",
    ] {
        let (slo, issues) = slo_issues(spec);
        assert_eq!(slo, NodeSloSpec::default(), "{spec}");
        assert_eq!(issues, [""; 0]);
    }
    let strategy = ResourceQosStrategy::default();
    assert_eq!(strategy.cpu_policy, CpuPolicy::GroupIdentity);
    assert_eq!(strategy.be_class, cpu_qos(false, 0, false, false));
}

#[test]
fn a_burst_strategy_is_laid_over_the_defaults() {
    let strategy = |section: &str| {
        let (slo, issues) = slo_issues(&format!("{{cpuBurstStrategy: {section}}}"));
        let CpuBurstStrategy { policy, percent } = slo.cpu_burst_strategy;
        (policy, percent.get(), issues.join("; "))
    };
    let sound = |section| {
        let (policy, percent, issues) = strategy(section);
        assert_eq!(issues, "", "{section}");
        (policy, percent)
    };
    assert_eq!(sound("{}"), (CpuBurstPolicy::None, 1_000));
    assert_eq!(
        sound("{policy: auto, sharePoolThresholdPercent: 50}"),
        (CpuBurstPolicy::Auto, 1_000)
    );
    assert_eq!(
        sound("{policy: cpuBurstOnly, cpuBurstPercent: 80}"),
        (CpuBurstPolicy::CpuBurstOnly, 80)
    );
    assert_eq!(
        strategy("{policy: Auto, cpuBurstPercent: 0}"),
        (
            CpuBurstPolicy::None,
            1_000,
            "\"spec.cpuBurstStrategy.cpuBurstPercent\": value 0 is outside 1 to 10000; \
             \"spec.cpuBurstStrategy.policy\": value \"Auto\" is none of none, cpuBurstOnly, \
             cfsQuotaBurstOnly, auto"
                .to_owned()
        )
    );
}

#[test]
fn memory_qos_is_laid_over_the_defaults_of_its_class_while_it_is_enabled() {
    let (slo, issues) = slo_issues(
        "{resourceQOSStrategy: {
            lsrClass: {memoryQOS: {enable: true}},
            lsClass: {memoryQOS: {enable: true, minLimitPercent: 0, lowLimitPercent: 100,
              throttlingPercent: 80, wmarkRatio: 0, wmarkScalePermill: 1000, wmarkMinAdj: -10,
              priorityEnable: 1, priority: 12, oomKillGroup: 0, pageCacheEnable: false,
              pageCacheLimitPercent: 100, pageCacheLimitSize: 0, pageCacheReclaimSync: true}},
            beClass: {memoryQOS: {wmarkRatio: 95}},
            systemClass: {memoryQOS: {enable: true, priority: 1}}}}",
    );
    assert_eq!(issues, [""; 0]);
    let strategy = slo.resource_qos_strategy;
    assert_eq!(strategy.lsr_class.memory_qos, Some(memory_qos(95, 20, -25)));
    let all = MemoryQos {
        min_limit_percent: Percent::new(0).ok(),
        low_limit_percent: Percent::new(100).ok(),
        throttling_percent: Percent::new(80).ok(),
        priority_enable: Some(Switch(true)),
        priority: OomPriority::new(12).ok(),
        oom_kill_group: Some(Switch(false)),
        page_cache_enable: Some(false),
        page_cache_limit_percent: Percent::new(100).ok(),
        page_cache_limit_size: Some(PageCacheSize::DEFAULT),
        page_cache_reclaim_sync: Some(true),
        ..memory_qos(0, 1_000, -10)
    };
    assert_eq!(strategy.ls_class.memory_qos, Some(all));
    assert_eq!(strategy.be_class.memory_qos, None);
    let system = MemoryQos {
        priority: OomPriority::new(1).ok(),
        ..MemoryQos::default()
    };
    assert_eq!(strategy.system_class.memory_qos, Some(system));
}

#[test]
fn each_wrong_value_of_memory_qos_costs_that_value_only() {
    let (slo, issues) = slo_issues(
        "{resourceQOSStrategy: {lsClass: {memoryQOS: {enable: true, minLimitPercent: 101,
            lowLimitPercent: -1, throttlingPercent: '80', wmarkRatio: 101, wmarkScalePermill: 0,
            wmarkMinAdj: 51, priorityEnable: 2, priority: 13, oomKillGroup: true,
            pageCacheEnable: 1, pageCacheLimitPercent: 101, pageCacheLimitSize: -1,
            pageCacheReclaimSync: 'true'}},
          beClass: {memoryQOS: {enable: 1, priority: 5}}}}",
    );
    let of_ls = |key: &str, what: &str| {
        format!("\"spec.resourceQOSStrategy.lsClass.memoryQOS.{key}\": value {what}")
    };
    assert_eq!(
        issues,
        [
            of_ls("minLimitPercent", "101 is outside 0 to 100"),
            of_ls("lowLimitPercent", "-1 is outside 0 to 100"),
            of_ls(
                "throttlingPercent",
                "is \"80\", not a whole number from 0 to 100"
            ),
            of_ls("wmarkRatio", "101 is outside 0 to 100"),
            of_ls("wmarkScalePermill", "0 is outside 1 to 1000"),
            of_ls("wmarkMinAdj", "51 is outside -25 to 50"),
            of_ls("priorityEnable", "2 is outside 0 to 1"),
            of_ls("priority", "13 is outside 0 to 12"),
            of_ls("oomKillGroup", "is true, not a whole number from 0 to 1"),
            of_ls("pageCacheEnable", "is 1, not a boolean"),
            of_ls("pageCacheLimitPercent", "101 is outside 0 to 100"),
            of_ls(
                "pageCacheLimitSize",
                "-1 is outside 0 to 9223372036854775807"
            ),
            of_ls("pageCacheReclaimSync", "is \"true\", not a boolean"),
            "\"spec.resourceQOSStrategy.beClass.memoryQOS.enable\": value is 1, not a boolean"
                .to_owned(),
        ]
    );
    let strategy = slo.resource_qos_strategy;
    assert_eq!(strategy.ls_class.memory_qos, Some(memory_qos(95, 20, -25)));
    assert_eq!(strategy.be_class.memory_qos, None);
}

#[test]
fn shares_of_the_cache_are_laid_over_the_defaults_of_their_class() {
    let (slo, issues) = slo_issues(
        "{resourceQOSStrategy: {
            lsrClass: {resctrlQOS: {enable: true}},
            lsClass: {resctrlQOS: {enable: true, catRangeStartPercent: 20, mbaPercent: 90}},
            beClass: {resctrlQOS: {enable: true}}}}",
    );
    assert_eq!(issues, [""; 0]);
    let strategy = slo.resource_qos_strategy;
    assert_eq!(strategy.lsr_class.resctrl_qos, resctrl_qos(0, 100, 100));
    assert_eq!(strategy.ls_class.resctrl_qos, resctrl_qos(20, 100, 90));
    assert_eq!(strategy.be_class.resctrl_qos, resctrl_qos(0, 30, 100));
    let off = ClassResctrlQos::default();
    assert_eq!((off.enable, off.range), (false, CacheRange::WHOLE));
}

#[test]
fn a_wrong_share_of_the_cache_costs_that_share_only() {
    let wrong = |section: &str| {
        let (slo, issues) = slo_issues(&format!(
            "{{resourceQOSStrategy: {{beClass: {{resctrlQOS: {{enable: true, {section}}}}}}}}}"
        ));
        let begin = "\"spec.resourceQOSStrategy.beClass.resctrlQOS.";
        let mut issues = issues.iter().map(|it| it.strip_prefix(begin).expect(it));
        let issue = issues.next().expect("an issue").to_owned();
        assert_eq!(issues.next(), None, "{section}");
        (slo.resource_qos_strategy.be_class.resctrl_qos, issue)
    };
    for (section, expected, issue) in [
        (
            "catRangeStartPercent: 100",
            resctrl_qos(0, 30, 100),
            "catRangeStartPercent\": value 100 is outside 0 to 99",
        ),
        (
            "catRangeStartPercent: 10, catRangeEndPercent: 101",
            resctrl_qos(10, 30, 100),
            "catRangeEndPercent\": value 101 is outside 1 to 100",
        ),
        (
            "catRangeStartPercent: 50, catRangeEndPercent: 101",
            resctrl_qos(0, 30, 100),
            "catRangeEndPercent\": value 101 is outside 1 to 100",
        ),
        (
            "catRangeStartPercent: 50, catRangeEndPercent: 50, mbaPercent: 20",
            resctrl_qos(0, 30, 20),
            "catRangeEndPercent\": value 50 is outside 51 to 100",
        ),
        (
            "catRangeStartPercent: 40",
            resctrl_qos(0, 30, 100),
            "catRangeStartPercent\": value 40 is outside 0 to 29",
        ),
        (
            "catRangeEndPercent: 40, mbaPercent: 0",
            resctrl_qos(0, 40, 100),
            "mbaPercent\": value 0 is outside 1 to 100",
        ),
        (
            "mbaPercent: 50%",
            resctrl_qos(0, 30, 100),
            "mbaPercent\": value is \"50%\", not a whole number from 1 to 100",
        ),
    ] {
        assert_eq!(wrong(section), (expected, issue.to_owned()), "{section}");
    }
}

#[test]
fn what_a_disabled_class_says_is_not_in_force() {
    let (slo, issues) = slo_issues(
        "{resourceQOSStrategy: {lsClass: {cpuQOS: {enable: false, groupIdentity: 2, coreExpeller: true}},
          beClass: {cpuQOS: {schedIdle: 1}},
          systemClass: {cpuQOS: {enable: true, groupIdentity: 2}, resctrlQOS: {enable: true}}}}",
    );
    assert_eq!(slo, NodeSloSpec::default());
    assert_eq!(issues, [""; 0]);
}

#[test]
fn a_wrong_value_costs_that_value_only() {
    let (slo, issues) = slo_issues(
        "{resourceUsedThresholdWithBE: {enable: 'true', cpuSuppressPolicy: cfsquota},
          resourceQOSStrategy: {
            policies: {cpuPolicy: 7},
            lsrClass: [],
            lsClass: {cpuQOS: {enable: true, groupIdentity: 18446744073709551615, schedIdle: 2, coreExpeller: 1}},
            beClass: {cpuQOS: {enable: true, groupIdentity: -2, schedIdle: 1.5}},
            systemClass: {cpuQOS: {groupIdentity: 3}}}}",
    );
    assert_eq!(
        issues,
        [
            "\"spec.resourceUsedThresholdWithBE.enable\": value is \"true\", not a boolean",
            "\"spec.resourceUsedThresholdWithBE.cpuSuppressPolicy\": value \"cfsquota\" is none of cpuset, cfsQuota",
            "\"spec.resourceQOSStrategy.policies.cpuPolicy\": value is 7, not a string",
            "\"spec.resourceQOSStrategy.lsrClass\": value is a list, not a mapping",
            "\"spec.resourceQOSStrategy.lsClass.cpuQOS.groupIdentity\": value 18446744073709551615 is outside -1 to 2",
            "\"spec.resourceQOSStrategy.lsClass.cpuQOS.schedIdle\": value 2 is outside 0 to 1",
            "\"spec.resourceQOSStrategy.lsClass.cpuQOS.coreExpeller\": value is 1, not a boolean",
            "\"spec.resourceQOSStrategy.beClass.cpuQOS.groupIdentity\": value -2 is outside -1 to 2",
            "\"spec.resourceQOSStrategy.beClass.cpuQOS.schedIdle\": value is 1.5, not a whole number from 0 to 1",
        ]
    );
    let strategy = slo.resource_qos_strategy;
    assert_eq!(
        slo.resource_used_threshold_with_be,
        ResourceUsedThreshold::default()
    );
    assert_eq!(strategy.cpu_policy, CpuPolicy::GroupIdentity);
    assert_eq!(strategy.ls_class, cpu_qos(true, 2, false, true));
    assert_eq!(strategy.be_class, cpu_qos(true, -1, false, false));
}

#[test]
fn a_host_application_that_cannot_be_placed_is_left_out() {
    let long = "n".repeat(200);
    let (slo, issues) = slo_issues(&format!(
        "{{hostApplications: [7, {{qos: LS}}, {{name: 7}}, {{name: a, qos: Gold}}, {{name: b, qos: 1}},
          {{name: c, cgroupPath: here}}, {{name: d, cgroupPath: {{base: Root}}}},
          {{name: e, cgroupPath: {{base: Kubepods, relativePath: /}}}},
          {{name: f, cgroupPath: {{parentDir: ../x}}}}, {{name: g, cgroupPath: {{relativePath: 7}}}},
          {{name: ../h}}, {{name: i, qos: {long}}},
          {{name: j, priority: nobody, cgroupPath: {{relativePath: j}}}}]}}",
    ));
    let shown = "n".repeat(64);
    assert_eq!(
        issues,
        [
            "\"spec.hostApplications[0]\": value is 7, not a mapping".to_owned(),
            "\"spec.hostApplications[1].name\": value is missing".to_owned(),
            "\"spec.hostApplications[2].name\": value is 7, not a string".to_owned(),
            "\"spec.hostApplications[3].qos\": value \"Gold\" is none of LSE, LSR, LS, BE, SYSTEM".to_owned(),
            "\"spec.hostApplications[4].qos\": value is 1, not a string".to_owned(),
            "\"spec.hostApplications[5].cgroupPath\": value is \"here\", not a mapping".to_owned(),
            "\"spec.hostApplications[6].cgroupPath.base\": value \"Root\" is none of CgroupRoot, Kubepods, KubepodsBurstable, KubepodsBesteffort".to_owned(),
            "\"spec.hostApplications[7].cgroupPath\": path leads to the base itself".to_owned(),
            "\"spec.hostApplications[8].cgroupPath\": path cannot be used: component \"..\" of a cgroup path leads elsewhere".to_owned(),
            "\"spec.hostApplications[9].cgroupPath.relativePath\": value is 7, not a string".to_owned(),
            "\"spec.hostApplications[10].cgroupPath\": path cannot be used: component \"..\" of a cgroup path leads elsewhere".to_owned(),
            format!("\"spec.hostApplications[11].qos\": value \"{shown}\" is none of LSE, LSR, LS, BE, SYSTEM"),
        ]
    );
    assert_eq!(slo.host_applications, [application("j", None, "j")]);
}

#[test]
fn of_many_wrong_values_all_are_counted_and_a_hundred_named() {
    let wrong = "{name: x, qos: Gold},".repeat(130);
    let yaml = format!(
        "{{apiVersion: slo.koordinator.sh/v1alpha1, kind: NodeSLO, metadata: {{name: node-1}},
          spec: {{hostApplications: [{wrong}]}}}}"
    );
    let issues = parsed(&yaml).issues;
    assert_eq!((issues.count(), issues.more()), (130, 30));
    let last = issues.iter().last().unwrap();
    assert_eq!(last.path, "spec.hostApplications[99].qos");
}

#[test]
fn a_topology_is_its_annotations() {
    let parsed = parsed(TOPOLOGY);
    assert_eq!(issues(&parsed), [""; 0]);
    let topology = parsed.policy.topology.unwrap();
    let pool = |list: &str| SharedPool {
        node: 0,
        cpuset: list.parse().unwrap(),
    };
    assert_eq!(topology.shared_pools, [pool("0-1")]);
    assert_eq!(topology.be_shared_pools, [pool("0-3")]);
    assert!(topology.kubelet_policy_is_static());
    let system = SystemQosResource {
        cpuset: "3".parse().unwrap(),
    };
    assert_eq!(topology.system_qos, Some(system));
}

#[test]
fn a_bad_annotation_of_a_topology_leaves_the_others() {
    let text = TOPOLOGY
        .replace("\"cpuset\":\"0-3\"", "\"cpuset\":\"0-\"")
        .replace("'{\"cpuset\":\"3\"}'", "[3]");
    let parsed = parsed(&text);
    let begin = "NodeResourceTopology \"node-1\" is wrong at";
    assert_eq!(
        issues(&parsed),
        [
            format!(
                "{begin} \"metadata.annotations[node.koordinator.sh/be-cpu-shared-pools]\": annotation cannot be used: annotation node.koordinator.sh/be-cpu-shared-pools is unusable at $[0].cpuset: value is no CPU list: \"\" is no CPU number or range"
            ),
            format!(
                "{begin} \"metadata.annotations[node.koordinator.sh/system-qos-resource]\": value is a list, not a string"
            ),
        ]
    );
    let topology = parsed.policy.topology.unwrap();
    assert_eq!(
        (topology.shared_pools.len(), topology.be_shared_pools.len()),
        (1, 0)
    );
}

#[test]
fn a_node_is_its_ratio_whatever_its_labels_are() {
    let policy = parsed(NODE).policy;
    let ratio = policy.cpu_normalization_ratio().unwrap();
    assert_eq!(ratio.to_string(), "1.20");

    let labelled = parsed(&NODE.replace("linux", "7"));
    assert_eq!(issues(&labelled), [""; 0]);
    assert_eq!(labelled.policy, policy);

    let bad = parsed(&NODE.replace("\"1.20\"", "1.20"));
    assert_eq!(
        issues(&bad),
        [
            "Node \"node-1\" is wrong at \"metadata.annotations[node.koordinator.sh/cpu-normalization-ratio]\": value is 1.2, not a string",
        ]
    );
    assert_eq!(bad.policy.cpu_normalization_ratio(), None);
}

#[test]
fn what_pods_may_have_of_memory_is_the_nodes_word() {
    let of = |status: &str| {
        let parsed = parsed(&format!(
            "{{apiVersion: v1, kind: Node, metadata: {{name: node-1}}, status: {status}}}"
        ));
        let issues = issues(&parsed).join("; ");
        (parsed.policy.node.unwrap().allocatable_memory, issues)
    };
    let sound = (Some(17_179_869_184), String::new());
    assert_eq!(of("{allocatable: {memory: 16Gi, cpu: '8'}}"), sound);
    assert_eq!(of("{}"), (None, String::new()));
    let begin = "Node \"node-1\" is wrong at \"status.allocatable.memory\": value is no quantity";
    for (text, reason) in [
        (
            "16GB",
            "\"16GB\" is no number with an optional suffix of n, u, m, k, M, G, T, P, E, Ki, Mi, Gi, Ti, Pi, Ei",
        ),
        (
            "-1Gi",
            "amount -1073741824 is outside 0 to 9223372036854775807",
        ),
    ] {
        let expected = (None, format!("{begin}: {reason}"));
        assert_eq!(
            of(&format!("{{allocatable: {{memory: {text}}}}}")),
            expected
        );
    }
}

#[test]
fn a_stream_and_a_list_give_the_same() {
    let stream = parsed(&format!("---\n{NODE_SLO}---\n{TOPOLOGY}---\n{NODE}---\n"));
    assert_eq!(issues(&stream), [""; 0]);
    let mut list =
        "apiVersion: v1\nkind: List\nmetadata:\n  resourceVersion: \"\"\nitems:\n".to_owned();
    for document in [NODE_SLO, TOPOLOGY, NODE] {
        let mut lines = document.trim().lines();
        list += &format!("- {}\n", lines.next().unwrap());
        lines.for_each(|line| list += &format!("  {line}\n"));
    }
    assert_eq!(parsed(&list).policy, stream.policy);
    assert!(stream.policy.slo.is_some() && stream.policy.topology.is_some());
    assert!(stream.policy.node.is_some());
}

#[test]
fn documents_of_other_nodes_are_counted_and_skipped() {
    let yaml = format!("{NODE}---\n{}", NODE.replace("node-1", "node-2"));
    let named = NodePolicy::parse_stream(&yaml, Some("node-2")).unwrap();
    assert_eq!((named.other_nodes, named.issues.count()), (1, 0));
    assert!(named.policy.node.is_some());

    let unnamed = NodePolicy::parse_stream(&yaml, None).unwrap();
    assert_eq!(unnamed.other_nodes, 0);
    assert_eq!(
        issues(&unnamed),
        [
            "Node \"node-2\" is wrong: document is about another node than \"node-1\", the first that was named"
        ]
    );
}

#[test]
fn what_is_no_policy_document_is_an_issue() {
    let parsed = parsed(
        "{apiVersion: v1, kind: Pod, metadata: {name: p}}
---
{apiVersion: slo.koordinator.sh/v1alpha1, kind: Node, metadata: {name: node-1}}
---
{apiVersion: v1, kind: Node}
---
[1]
---
{apiVersion: v1, kind: Node, metadata: {name: node-1}}
---
{apiVersion: v1, kind: Node, metadata: {name: node-1}}
---
{apiVersion: '', kind: NodeSLO, metadata: {name: node-1}}
---
kind: List
items: [{kind: NodeResourceTopology, metadata: {name: node-1}}]",
    );
    assert_eq!(
        issues(&parsed),
        [
            "Pod \"p\" is wrong: kind \"Pod\" of \"v1\" is none that is read here",
            "Node \"node-1\" is wrong at \"apiVersion\": in document 2 it is \"slo.koordinator.sh/v1alpha1\", and of this kind \"v1\" is expected",
            "Node is wrong at \"metadata.name\": value is missing",
            "document 4 is wrong at \"kind\": no kind is named",
            "Node \"node-1\" is wrong: document takes the place of an earlier one",
            "NodeSLO \"node-1\" is wrong at \"apiVersion\": in document 7 it is \"\", and of this kind \"slo.koordinator.sh/v1alpha1\" is expected",
            "NodeResourceTopology \"node-1\" is wrong at \"apiVersion\": in document 8 it is \"\", and of this kind \"topology.node.k8s.io/v1alpha1\" is expected",
        ]
    );
}

#[test]
fn a_key_that_stands_twice_is_named_with_its_document() {
    let refusal = |yaml: &str| {
        let error = NodePolicy::parse_stream(yaml, None).unwrap_err();
        assert!(matches!(error, PolicyError::DuplicateKey { .. }), "{yaml}");
        error.to_string()
    };
    let slo = "kind: NodeSLO\nmetadata:\n  name: a\n  name: b\n";
    let expected = |document: u32, line: u32| {
        format!(
            "document {document} of kind \"NodeSLO\" has the key \"name\" again in line {line}, and each \
             key is expected once"
        )
    };
    assert_eq!(refusal(slo), expected(1, 4));
    // What says nothing is no document, and what comes later is another.
    let stream = format!("# ours\n---\nkind: Node\n---\n\n--- # the next\n{slo}---\nkind: List\n");
    assert_eq!(refusal(&stream), expected(2, 10));
    assert_eq!(
        refusal("a: 1\na: 2"),
        "document 1 of kind \"\" has the key \"a\" again in line 2, and each key is expected once"
    );
}

#[test]
fn an_empty_text_gives_no_policy() {
    for yaml in ["", "---\n", "# nothing\n", "null\n---\n~\n"] {
        let error = NodePolicy::parse_stream(yaml, None).unwrap_err();
        assert!(matches!(error, PolicyError::Empty), "{yaml:?}: {error}");
    }
}

#[test]
fn what_is_written_in_place_of_a_policy_is_an_error() {
    let refusal = |yaml: &str| {
        let error = NodePolicy::parse_stream(yaml, Some("node-1")).unwrap_err();
        let source = error.source().map(|issue| issue.source().unwrap());
        let reason = source.map(|problem| format!(": {problem}"));
        format!("{error}{}", reason.unwrap_or_default())
    };
    let none = "no NodeSLO, NodeResourceTopology or Node can be read of it";
    let unknown = |kind: &str, version: &str| {
        format!("{none}: kind {kind:?} of {version:?} is none that is read here")
    };
    let no_kind = format!("{none}: no kind is named");
    for (yaml, expected) in [
        (r#"{"error":"unauthorized"}"#, no_kind.clone()),
        (
            "Error from server (NotFound): nodes \"node-1\" not found\n",
            no_kind.clone(),
        ),
        (
            "<html><body>502 Bad Gateway</body></html>\n",
            no_kind.clone(),
        ),
        // Of what kubectl prints, the beginning.
        (
            "apiVersion: v1\nitems:\n- apiVersion: v1\n  kind: Node\n  metadata:\n    name: node-1\n",
            no_kind.clone(),
        ),
        (
            "apiVersion: v1\nkind: Node\n",
            format!("{none}: value is missing"),
        ),
        ("apiVersion: v1\nkind: List\n", none.to_owned()),
        ("kind: List\nitems:\n", none.to_owned()),
        (
            "{kind: List, items: [{apiVersion: v1, kind: Pod, metadata: {name: p}}]}",
            unknown("Pod", "v1"),
        ),
    ] {
        assert_eq!(refusal(yaml), expected, "{yaml}");
    }
    let status = r#"{"kind":"Status","apiVersion":"v1","metadata":{},"status":"Failure",
        "message":"Unauthorized","reason":"Unauthorized","code":401}"#;
    let told = |document: u32| {
        format!(
            "document {document} is a Status, which an API server answers instead of objects: \
             \"Unauthorized\""
        )
    };
    assert_eq!(refusal(status), told(1));
    // Nor is what came before it all that there was to come.
    assert_eq!(refusal(&format!("{NODE}---\n{status}\n")), told(2));
    let list = format!("{{kind: List, items: [{status}]}}");
    assert_eq!(refusal(&list), told(1));
}

#[test]
fn a_list_of_nothing_is_no_policy_and_no_error() {
    for yaml in ["{kind: List, items: []}", "---\n{kind: List, items: []}\n"] {
        let parsed = parsed(yaml);
        assert_eq!(parsed.policy, NodePolicy::default(), "{yaml:?}");
        assert_eq!(issues(&parsed), [""; 0], "{yaml:?}");
    }
}

#[test]
fn what_a_parser_repeats_of_a_text_is_cut() {
    for yaml in [
        format!("a: !!int {}x", "9".repeat(4_000_000)),
        format!("{0}: 1\n{0}: 2", "k".repeat(1_000_000)),
    ] {
        let error = NodePolicy::parse_stream(&yaml, None).unwrap_err();
        let said = error.source().map(|source| source.to_string());
        let said = said.unwrap_or_else(|| error.to_string());
        assert!(said.len() < 1_100, "{} bytes", said.len());
    }
}

#[test]
fn a_text_that_is_hostile_or_broken_gives_no_policy() {
    let deep = format!("{}{}", "[".repeat(65), "]".repeat(65));
    let bomb = "a: &a [1,1,1,1,1,1,1,1,1,1]\nb: &b [*a,*a,*a,*a,*a,*a,*a,*a,*a,*a]\nc: &c [*b,*b,*b,*b,*b,*b,*b,*b,*b,*b]\nd: &d [*c,*c,*c,*c,*c,*c,*c,*c,*c,*c]\ne: &e [*d,*d,*d,*d,*d,*d,*d,*d,*d,*d]\nf: [*e,*e,*e,*e,*e,*e,*e,*e,*e,*e]\n";
    for yaml in ["a: [", "a: b: c", &deep, bomb, "a: *b"] {
        let error = NodePolicy::parse_stream(yaml, None).unwrap_err();
        assert!(matches!(error, PolicyError::Syntax(_)), "{yaml}");
        assert_eq!(error.to_string(), "policy is no YAML stream");
    }
    let long = " ".repeat(4 * 1024 * 1024 + 1);
    let error = NodePolicy::parse_stream(&long, None).unwrap_err();
    assert_eq!(
        error.to_string(),
        "policy is 4194305 bytes long, 4194304 are allowed"
    );
}

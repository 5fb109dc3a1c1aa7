use super::*;
use crate::view::HookOptions;

fn gates(text: &str) -> FeatureGates {
    FeatureGates::parse(text).unwrap()
}

/// The hooks of Koordinator that are here, and one of its gates for each of the other kinds.
fn on(gates: &FeatureGates) -> Vec<&'static str> {
    [
        "GroupIdentity",
        "CPUSetAllocator",
        "BatchResource",
        "BECPUIdle",
        "BECPUManager",
        "CPUBurst",
        "CgroupReconcile",
    ]
    .into_iter()
    .filter(|name| gates.enabled(name))
    .collect()
}

#[test]
fn defaults_are_koordinators() {
    let defaults = [
        "GroupIdentity",
        "CPUSetAllocator",
        "BatchResource",
        "CPUBurst",
    ];
    assert_eq!(on(&gates("")), defaults);
    let all_on: Vec<&str> = known_gates()
        .map(|gate| gate.name)
        .filter(|name| gates("").enabled(name))
        .collect();
    assert_eq!(
        all_on,
        [
            "BatchResource",
            "CPUSetAllocator",
            "CPUBurst",
            "GroupIdentity",
            "RdtResctrl",
            "BECPUSuppress",
            "NodeTopologyReport",
        ]
    );
}

#[test]
fn the_groups_move_their_own_and_never_ours() {
    assert_eq!(
        on(&gates("AllAlpha=true")),
        [
            "GroupIdentity",
            "CPUSetAllocator",
            "BatchResource",
            "BECPUManager",
            "CPUBurst",
            "CgroupReconcile"
        ]
    );
    assert!(on(&gates("AllBeta=false")).is_empty());
    for ours in ["BECPUIdle", "MidResource", "ResctrlMonitor"] {
        assert!(!gates("AllAlpha=true,AllBeta=true").enabled(ours), "{ours}");
        let named = gates(&format!("AllAlpha=false,AllBeta=false,{ours}=true"));
        assert!(named.enabled(ours), "{ours}");
    }
}

#[test]
fn a_name_goes_before_its_group_wherever_it_stands() {
    for text in [
        "GroupIdentity=true,AllBeta=false",
        "AllBeta=false,GroupIdentity=true",
    ] {
        assert_eq!(on(&gates(text)), ["GroupIdentity"], "{text}");
    }
}

#[test]
fn spaces_empty_items_and_gos_spellings_of_truth_are_taken() {
    assert_eq!(on(&gates(" AllBeta = F , ,BECPUIdle=1,")), ["BECPUIdle"]);
    assert!(!gates("GroupIdentity=true,GroupIdentity=false").enabled("GroupIdentity"));
}

#[test]
fn every_fault_is_told_at_once() {
    let error = FeatureGates::parse("GroupIdentity=yes,Nonsense=true,BatchResource").unwrap_err();
    assert_eq!(
        error.to_string(),
        "--feature-gates: \"yes\" of GroupIdentity is not true or false; \
         \"Nonsense\" is not known; \"BatchResource\" is not NAME=VALUE"
    );
    assert_eq!(error.faults.len(), 3);
}

#[test]
fn of_anothers_flag_what_can_be_read_counts_and_the_rest_is_told() {
    let text = "AllBeta=false,Nonsense=true,CgroupReconcile=true,GroupIdentity=yes,CPUBurst";
    let (gates, faults) = FeatureGates::of_another(text);
    assert_eq!(on(&gates), ["CgroupReconcile"]);
    let told: Vec<String> = faults.iter().map(ToString::to_string).collect();
    assert_eq!(
        told,
        [
            "\"Nonsense\" is not known",
            "\"yes\" of GroupIdentity is not true or false",
            "\"CPUBurst\" is not NAME=VALUE",
        ]
    );
}

#[test]
fn upstreams_published_flags_are_taken() {
    let manifest = gates(
        "AllAlpha=true,AllBeta=true,Accelerators=true,BECPUEvict=true,BEMemoryEvict=true,CgroupReconcile=true",
    );
    assert!(manifest.enabled("GroupIdentity"));
    let unserved: Vec<&str> = manifest.unserved().collect();
    assert_eq!(unserved, ["Accelerators", "BECPUEvict", "BEMemoryEvict"]);
}

#[test]
fn what_is_served_or_off_is_not_reported_as_unserved() {
    let gates =
        gates("GroupIdentity=true,BECPUManager=true,BECPUIdle=true,CoreSched=false,AllAlpha=true");
    assert_eq!(gates.unserved().next(), None);
}

#[test]
fn gates_of_options_become_options() {
    let options = HookOptions::new(&gates("BECPUManager=true"), true, "/hami.so");
    let expected = HookOptions {
        disable_unset_cpu_quota: true,
        be_cpu_manager: true,
        be_cpu_idle: false,
        resctrl_monitor: false,
        hami_core_library: "/hami.so".into(),
    };
    assert_eq!(options, expected);
    let idle = HookOptions::new(&gates("BECPUIdle=true,AllAlpha=false"), false, "");
    assert!(idle.be_cpu_idle && !idle.be_cpu_manager);
    let monitor = HookOptions::new(&gates("ResctrlMonitor=true"), false, "");
    assert!(monitor.resctrl_monitor && !monitor.be_cpu_idle);
    let none = HookOptions::new(&gates(""), false, HookOptions::HAMI_CORE_LIBRARY);
    assert_eq!(none, HookOptions::default());
}

#[test]
fn every_gate_has_one_name() {
    let mut names: Vec<&str> = known_gates().map(|gate| gate.name).collect();
    let count = names.len();
    names.sort_unstable();
    names.dedup();
    assert_eq!(names.len(), count);
    assert!(!FeatureGates::default().enabled("Nonsense"));
}

#[test]
fn a_fail_policy_is_set_for_one_hook() {
    let policies = FailPolicies::parse("BatchResource=Closed").unwrap();
    let closed: Vec<&str> = builtin::TABLE
        .iter()
        .filter(|row| policies.of(&row.meta) == FailPolicy::Closed)
        .map(|row| row.meta.name)
        .collect();
    assert_eq!(closed, ["BatchResource"]);
}

#[test]
fn every_wrong_fail_policy_is_told_at_once() {
    let error = FailPolicies::parse("BatchResource=Ignore,Nonsense=Open").unwrap_err();
    assert_eq!(
        error.to_string(),
        "--hook-fail-policy: \"Ignore\" of BatchResource is not Open or Closed; \
         \"Nonsense\" is not known"
    );
}

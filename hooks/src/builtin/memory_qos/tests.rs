use super::*;
use crate::{
    fixture::{
        container, decide_container, decide_pod_of, in_tier, node_with, pod, sandbox, shown, slo,
    },
    view::{PodView, Requested},
};
use koord_model::{OomPriority, WmarkMinAdj, WmarkRatio, WmarkScale};
use koord_proto::{
    annotation::{ExtendedResourceSpec, Percent, Switch},
    pods::{ContainerSpec, Resources},
    policy::{NodeMetadata, NodePolicy, ResourceQosStrategy},
};
use std::sync::Arc;

const GIB: u64 = 1 << 30;

/// Half of a request kept, three quarters kept as long as there is other memory, and slowed down
/// from half the way to the limit on.
fn kept() -> MemoryQos {
    let percent = |percent| Percent::new(percent).ok();
    MemoryQos {
        min_limit_percent: percent(50),
        low_limit_percent: percent(75),
        throttling_percent: percent(50),
        ..MemoryQos::default()
    }
}

/// A node that treats every class alike, and on which pods may have 16 GiB.
fn treating(qos: MemoryQos) -> NodeView {
    let mut slo = slo();
    let ResourceQosStrategy {
        lsr_class,
        ls_class,
        be_class,
        ..
    } = &mut slo.resource_qos_strategy;
    for class in [lsr_class, ls_class, be_class] {
        class.memory_qos = Some(qos);
    }
    node_with(NodePolicy {
        slo: Some(slo),
        node: Some(NodeMetadata {
            allocatable_memory: Some(16 * GIB),
            ..NodeMetadata::default()
        }),
        ..NodePolicy::default()
    })
}

fn guaranteed(annotations: &[(&str, &str)]) -> PodView {
    in_tier(KubeQos::Guaranteed, pod("LSR", annotations))
}

fn limited(name: &str, bytes: u64) -> ContainerView {
    ContainerView {
        requested: Requested {
            memory_limit: Some(MemoryLimit::Bytes(bytes)),
            ..Requested::default()
        },
        ..container(name)
    }
}

/// A container that was there before us.
fn unheard(name: &str) -> ContainerView {
    ContainerView {
        heard: false,
        ..container(name)
    }
}

/// A best-effort pod whose only listed container requests and is limited to as much.
fn batch(request: &str, limit: &str) -> PodView {
    let amount = |key: &str, amount: &str| match amount {
        "" => String::new(),
        amount => format!(r#""{key}":{{"kubernetes.io/batch-memory":"{amount}"}}"#),
    };
    let parts = [amount("requests", request), amount("limits", limit)];
    let parts = parts.iter().filter(|part| !part.is_empty());
    let parts: Vec<&str> = parts.map(String::as_str).collect();
    let spec = format!(r#"{{"containers":{{"main":{{{}}}}}}}"#, parts.join(","));
    let pod = pod("BE", &[(annotation::EXTENDED_RESOURCE_SPEC, &spec)]);
    in_tier(KubeQos::BestEffort, pod)
}

fn of_container(pod: &PodView, container: &ContainerView, node: &NodeView) -> String {
    shown(&decide_container(&MemoryQosHook, pod, container, node).unwrap())
}

fn of_pod(pod: &PodView, containers: &[&ContainerView], node: &NodeView) -> String {
    shown(&decide_pod_of(&MemoryQosHook, pod, containers, node).unwrap())
}

#[test]
fn a_part_of_what_is_requested_is_kept() {
    let node = treating(kept());
    // Half, three quarters and half the way of nothing between request and limit, of 1,000 MiB.
    assert_eq!(
        of_container(&guaranteed(&[]), &limited("main", 1_048_576_000), &node),
        "memory.min=524288000 memory.low=786432000 memory.high=1048576000"
    );
    // Of 100 and 300 MiB: 50, 75, and 100 and half of 200.
    assert_eq!(
        of_container(&batch("100Mi", "300Mi"), &container("main"), &node),
        "memory.min=52428800 memory.low=78643200 memory.high=209715200"
    );
}

/// A burstable pod whose source says what these of its containers request and are limited to.
fn burstable(containers: &[(&str, Option<u64>, Option<u64>)]) -> PodView {
    let memory = |memory| Resources {
        memory,
        ..Resources::default()
    };
    let containers = containers
        .iter()
        .map(|(name, request, limit)| ContainerSpec {
            name: (*name).to_owned(),
            requests: memory(*request),
            limits: memory(*limit),
        });
    let spec = PodSpec {
        containers: containers.collect(),
        ..PodSpec::default()
    };
    PodView {
        spec: Some(Arc::new(spec)),
        ..pod("LSR", &[])
    }
}

#[test]
fn what_a_burstable_pod_requests_its_source_says() {
    const MIB: u64 = 1 << 20;
    let node = treating(kept());
    let pod = burstable(&[
        ("main", Some(100 * MIB), Some(300 * MIB)),
        ("side", Some(60 * MIB), None),
    ]);
    // Half of 100 MiB, three quarters of it, and 100 MiB with half of the 200 up to the limit.
    assert_eq!(
        of_container(&pod, &container("main"), &node),
        "memory.min=52428800 memory.low=78643200 memory.high=209715200"
    );
    // Without a limit it is the 16 GiB of the node: 60 MiB and half of what is left of them.
    assert_eq!(
        of_container(&pod, &container("side"), &node),
        "memory.min=31457280 memory.low=47185920 memory.high=8621391872"
    );
    // Those that live; one that the pod does not name is a debugger's and requests nothing.
    let (main, side, debugger) = (container("main"), container("side"), container("debug"));
    assert_eq!(
        of_pod(&pod, &[&main, &side, &debugger], &node),
        "memory.min=83886080 memory.low=125829120"
    );
    assert_eq!(
        of_pod(&pod, &[&main], &node),
        "memory.min=52428800 memory.low=78643200"
    );
    let unknown = PodView { spec: None, ..pod };
    assert_eq!(of_pod(&unknown, &[&main], &node), "");
}

#[test]
fn low_is_never_less_than_min_unless_it_is_nothing() {
    for (min, low, decided) in [
        (50, 20, "memory.min=524288000 memory.low=524288000"),
        (50, 0, "memory.min=524288000"),
        (0, 20, "memory.low=209715200"),
        (0, 0, ""),
    ] {
        let node = treating(MemoryQos {
            min_limit_percent: Percent::new(min).ok(),
            low_limit_percent: Percent::new(low).ok(),
            ..MemoryQos::default()
        });
        let decided_now = of_container(&guaranteed(&[]), &limited("main", 1_048_576_000), &node);
        assert_eq!(decided_now, decided, "{min} {low}");
    }
}

#[test]
fn a_container_is_slowed_down_between_what_it_requests_and_what_it_may_have() {
    let throttling = |percent| {
        treating(MemoryQos {
            throttling_percent: Percent::new(percent).ok(),
            ..MemoryQos::default()
        })
    };
    let high = |request, limit, percent| {
        of_container(
            &batch(request, limit),
            &container("main"),
            &throttling(percent),
        )
    };
    assert_eq!(high("100Mi", "300Mi", 0), "");
    assert_eq!(high("100Mi", "300Mi", 10), "memory.high=125829120");
    assert_eq!(high("100Mi", "300Mi", 100), "memory.high=314572800");
    // Without a limit what pods may have takes its place: a quarter of 16 GiB.
    assert_eq!(high("", "", 25), "memory.high=4294967296");
    // What is less than it takes to start is raised to 4 MiB.
    assert_eq!(high("", "10Mi", 10), "memory.high=4194304");
    // A limit below the request leaves no way.
    assert_eq!(high("100Mi", "50Mi", 50), "memory.high=104857600");

    let mut unknown = throttling(25);
    unknown.policy = NodePolicy {
        node: None,
        ..(*unknown.policy).clone()
    }
    .into();
    let decided = of_container(&batch("", ""), &container("main"), &unknown);
    assert_eq!(decided, "");
}

#[test]
fn where_high_would_be_less_than_min_it_is_min() {
    let node = treating(MemoryQos {
        min_limit_percent: Percent::new(100).ok(),
        throttling_percent: Percent::new(1).ok(),
        ..MemoryQos::default()
    });
    assert_eq!(
        of_container(&batch("100Mi", "100Mi"), &container("main"), &node),
        "memory.min=104857600 memory.high=104857600"
    );
}

#[test]
fn a_pod_keeps_what_its_containers_do_together_and_is_not_slowed_down() {
    let node = treating(kept());
    let (web, log) = (limited("web", GIB), limited("log", GIB / 2));
    let anew = limited("web", 2 * GIB);
    assert_eq!(of_pod(&guaranteed(&[]), &[], &node), "");
    assert_eq!(
        of_pod(&guaranteed(&[]), &[&web, &log], &node),
        "memory.min=805306368 memory.low=1207959552"
    );
    // One that was made anew counts once.
    assert_eq!(
        of_pod(&guaranteed(&[]), &[&web, &log, &anew], &node),
        "memory.min=1342177280 memory.low=2013265920"
    );
    // Of best-effort pods all containers are known before they are there.
    assert_eq!(
        of_pod(&batch("100Mi", ""), &[], &node),
        "memory.min=52428800 memory.low=78643200"
    );
}

#[test]
fn nothing_is_kept_where_nobody_knows_what_is_requested() {
    let node = treating(kept());
    let of = |pod: &PodView, limited: &ContainerView| {
        (
            of_container(pod, limited, &node),
            of_pod(pod, &[limited], &node),
        )
    };
    let nothing = (String::new(), String::new());
    let burstable = in_tier(KubeQos::Burstable, pod("LS", &[]));
    assert_eq!(of(&burstable, &limited("main", GIB)), nothing);
    assert_eq!(of(&guaranteed(&[]), &unheard("main")), nothing);
    // It requests nothing and is slowed down from half of 16 GiB on.
    let besteffort = in_tier(KubeQos::BestEffort, pod("LS", &[]));
    let high = ("memory.high=8589934592".to_owned(), String::new());
    assert_eq!(of(&besteffort, &container("main")), high);
    // Batch resources that the webhook did not write are none, and so are those of a sidecar.
    let bare = in_tier(KubeQos::BestEffort, pod("BE", &[]));
    assert_eq!(of(&bare, &container("main")), high);
    assert_eq!(
        of_container(&batch("1Gi", ""), &container("sidecar"), &node),
        "memory.high=8589934592"
    );
}

#[test]
fn where_the_pod_is_known_an_annotation_has_nothing_kept_that_it_does_not_request() {
    let node = treating(kept());
    let with = |own| PodView {
        spec: Some(Arc::new(PodSpec {
            batch: own,
            ..PodSpec::default()
        })),
        ..batch("4Ti", "")
    };
    let nothing = with(None);
    assert_eq!(of_pod(&nothing, &[], &node), "");
    assert_eq!(
        of_container(&nothing, &container("main"), &node),
        "memory.high=8589934592"
    );
    let own = r#"{"containers":{"main":{"requests":{"kubernetes.io/batch-memory":"100Mi"}}}}"#;
    let own = ExtendedResourceSpec::parse(own).unwrap();
    assert_eq!(
        of_pod(&with(Some(Arc::new(own))), &[], &node),
        "memory.min=52428800 memory.low=78643200"
    );
}

#[test]
fn an_ephemeral_container_takes_nothing_from_its_pod() {
    let node = treating(kept());
    let web = limited("web", GIB);
    let unlimited = ContainerView {
        requested: Requested {
            memory_limit: Some(MemoryLimit::Unlimited),
            ..Requested::default()
        },
        ..container("debugger")
    };
    for debugger in [container("debugger"), unlimited] {
        assert_eq!(
            of_pod(&guaranteed(&[]), &[&web, &debugger], &node),
            "memory.min=536870912 memory.low=805306368"
        );
        // It requests nothing and is slowed down from half of 16 GiB on.
        let decided = of_container(&guaranteed(&[]), &debugger, &node);
        assert_eq!(decided, "memory.high=8589934592");
    }
    // What one asks for that was there before us may be a limit.
    let debugger = unheard("debugger");
    assert_eq!(of_pod(&guaranteed(&[]), &[&web, &debugger], &node), "");
}

#[test]
fn what_containers_ask_for_is_wanted_where_the_limits_of_guaranteed_pods_count() {
    let with = |set: fn(&mut MemoryQos)| {
        let mut qos = MemoryQos::default();
        set(&mut qos);
        qos
    };
    let of = |qos| MemoryQosHook.reads_requested(&guaranteed(&[]), &treating(qos));
    for (qos, wanted) in [
        (with(|it| it.min_limit_percent = Percent::new(1).ok()), true),
        (with(|it| it.low_limit_percent = Percent::new(1).ok()), true),
        (
            with(|it| it.throttling_percent = Percent::new(1).ok()),
            true,
        ),
        (
            with(|it| it.page_cache_limit_percent = Percent::new(1).ok()),
            true,
        ),
        (
            with(|it| it.page_cache_limit_size = PageCacheSize::new(1).ok()),
            true,
        ),
        (
            with(|it| it.page_cache_limit_size = PageCacheSize::new(0).ok()),
            false,
        ),
        (
            with(|it| it.min_limit_percent = Percent::new(0).ok()),
            false,
        ),
        (MemoryQos::of_class(QosClass::Lsr), false),
    ] {
        assert_eq!(of(qos), wanted, "{qos:?}");
    }
    let untold = crate::fixture::node();
    let own = |text| guaranteed(&[(annotation::MEMORY_QOS, text)]);
    for (pod, node, wanted) in [
        (guaranteed(&[]), &untold, false),
        (own(r#"{"lowLimitPercent":20}"#), &untold, true),
        (own(r#"{"policy":"none"}"#), &treating(kept()), false),
        (own("{"), &treating(kept()), false),
        (
            in_tier(KubeQos::Burstable, pod("LS", &[])),
            &treating(kept()),
            false,
        ),
        (batch("1Gi", ""), &treating(kept()), false),
        (
            in_tier(KubeQos::Guaranteed, pod("BE", &[])),
            &treating(kept()),
            false,
        ),
    ] {
        assert_eq!(MemoryQosHook.reads_requested(&pod, node), wanted, "{pod:?}");
    }
}

#[test]
fn what_vendors_have_is_for_pods_and_containers_as_the_policy_says() {
    let node = treating(MemoryQos {
        wmark_ratio: WmarkRatio::new(95).ok(),
        wmark_scale_permill: WmarkScale::new(20).ok(),
        wmark_min_adj: WmarkMinAdj::new(-25).ok(),
        priority_enable: Switch::new(1).ok(),
        priority: OomPriority::new(10).ok(),
        oom_kill_group: Switch::new(1).ok(),
        ..MemoryQos::default()
    });
    let all = "memory.wmark_ratio=95 memory.wmark_scale_factor=20 memory.wmark_min_adj=-25 \
               memory.priority=10 memory.use_priority_oom=true memory.oom.group=true";
    let pod = pod("LS", &[]);
    assert_eq!(of_container(&pod, &container("main"), &node), all);
    assert_eq!(of_pod(&pod, &[], &node), all);
    assert_eq!(of_container(&pod, &sandbox(), &node), "");
}

/// What is decided of page cache, in the words of the files.
fn of_page_cache(pod: &PodView, containers: &[&ContainerView], node: &NodeView) -> String {
    of_pod(pod, containers, node).replace("memory.pagecache_limit.", "")
}

fn percent(percent: i64) -> MemoryQos {
    MemoryQos {
        page_cache_limit_percent: Percent::new(percent).ok(),
        ..MemoryQos::default()
    }
}

fn size(bytes: i64) -> MemoryQos {
    MemoryQos {
        page_cache_limit_size: PageCacheSize::new(bytes).ok(),
        ..MemoryQos::default()
    }
}

#[test]
fn page_cache_is_limited_to_bytes_or_a_part_of_the_limit() {
    let switched = |on, qos| MemoryQos {
        page_cache_enable: Some(on),
        ..qos
    };
    let waiting = |qos| MemoryQos {
        page_cache_reclaim_sync: Some(true),
        ..qos
    };
    let both = |bytes| MemoryQos {
        page_cache_limit_percent: Percent::new(10).ok(),
        ..size(bytes)
    };
    // Of 1,001 bytes.
    for (qos, decided) in [
        (percent(10), "size=100 sync=false enable=true"),
        (percent(33), "size=330 sync=false enable=true"),
        (percent(100), "size=1001 sync=false enable=true"),
        (percent(0), "size=0 enable=false"),
        (size(500), "size=500 sync=false enable=true"),
        (size(1_002), "size=1001 sync=false enable=true"),
        (size(i64::MAX), "size=1001 sync=false enable=true"),
        (size(0), "size=0 enable=false"),
        (both(500), "size=500 sync=false enable=true"),
        (both(0), "size=0 enable=false"),
        (waiting(percent(10)), "size=100 sync=true enable=true"),
        (waiting(size(0)), "size=0 sync=true enable=false"),
        (waiting(MemoryQos::default()), "sync=true"),
        (
            switched(false, percent(10)),
            "size=100 sync=false enable=false",
        ),
        (switched(true, size(0)), "size=0 enable=true"),
        (switched(true, MemoryQos::default()), "enable=true"),
        (MemoryQos::default(), ""),
    ] {
        let (node, pod) = (treating(qos), batch("", "1001"));
        assert_eq!(of_page_cache(&pod, &[], &node), decided, "{qos:?}");
        assert!(MemoryQosHook.decide_node(&node).unwrap().is_empty());
    }
}

#[test]
fn containers_have_the_switch_of_their_pod_and_no_size() {
    let said = |enable, sync, qos| MemoryQos {
        page_cache_enable: enable,
        page_cache_reclaim_sync: sync,
        ..qos
    };
    let both = |bytes| MemoryQos {
        page_cache_limit_percent: Percent::new(10).ok(),
        ..size(bytes)
    };
    let nothing = MemoryQos::default();
    for (qos, decided) in [
        (percent(10), "size=0 sync=false enable=true"),
        (percent(0), "size=0 enable=false"),
        (size(500), "size=0 sync=false enable=true"),
        (size(0), "size=0 enable=false"),
        (both(500), "size=0 sync=false enable=true"),
        (both(0), "size=0 enable=false"),
        (
            said(None, Some(true), percent(10)),
            "size=0 sync=true enable=true",
        ),
        (
            said(None, Some(true), size(0)),
            "size=0 sync=true enable=false",
        ),
        (said(None, Some(true), nothing), "sync=true"),
        (
            said(Some(false), None, percent(10)),
            "size=0 sync=false enable=false",
        ),
        (said(Some(true), None, size(0)), "size=0 enable=true"),
        (said(Some(true), None, nothing), "size=0 enable=true"),
        (nothing, ""),
    ] {
        let (node, pod) = (treating(qos), batch("", "1001"));
        let of = |it: &ContainerView| of_container(&pod, it, &node);
        let of_main = of(&container("main")).replace("memory.pagecache_limit.", "");
        assert_eq!(of_main, decided, "{qos:?}");
        assert_eq!(of(&sandbox()), "", "{qos:?}");
    }
}

#[test]
fn without_a_limit_page_cache_is_limited_to_bytes_alone() {
    let (by_percent, by_size) = (treating(percent(10)), treating(size(500)));
    for pod in [
        batch("100Mi", ""),
        in_tier(KubeQos::BestEffort, pod("LS", &[])),
    ] {
        assert_eq!(of_page_cache(&pod, &[], &by_percent), "");
        let decided = of_page_cache(&pod, &[], &by_size);
        assert_eq!(decided, "size=500 sync=false enable=true");
    }
}

#[test]
fn the_limit_of_page_cache_is_that_of_the_containers_together() {
    let node = treating(percent(10));
    let (web, log) = (limited("web", 1_000), limited("log", 500));
    let limited_to = |bytes: u64| format!("size={bytes} sync=false enable=true");
    assert_eq!(
        of_page_cache(&guaranteed(&[]), &[&web, &log], &node),
        limited_to(150)
    );
    // A debugger, which has no limit, does not lift it.
    let debugger = container("debugger");
    assert_eq!(
        of_page_cache(&guaranteed(&[]), &[&web, &debugger], &node),
        limited_to(100)
    );
    let pod = burstable(&[("main", None, Some(700)), ("side", Some(60), None)]);
    let (main, side) = (container("main"), container("side"));
    assert_eq!(
        of_page_cache(&pod, &[&main, &debugger], &node),
        limited_to(70)
    );
    // One of the pod's own does.
    assert_eq!(of_page_cache(&pod, &[&main, &side], &node), "");
}

#[test]
fn page_cache_is_not_limited_where_nobody_knows_the_limit() {
    let nobody_knows = in_tier(KubeQos::Burstable, pod("LS", &[]));
    let (main, before_us) = (limited("main", 1_000), unheard("main"));
    for node in [treating(percent(10)), treating(size(500))] {
        assert_eq!(of_page_cache(&nobody_knows, &[&main], &node), "");
        assert_eq!(of_page_cache(&guaranteed(&[]), &[], &node), "");
        assert_eq!(of_page_cache(&guaranteed(&[]), &[&before_us], &node), "");
    }
    let off = treating(MemoryQos {
        page_cache_enable: Some(false),
        ..size(500)
    });
    assert_eq!(of_page_cache(&nobody_knows, &[&main], &off), "enable=false");
}

#[test]
fn of_page_cache_too_an_annotation_is_laid_over_the_class() {
    const SPEC: &str =
        r#"{"containers":{"main":{"limits":{"kubernetes.io/batch-memory":"1000"}}}}"#;
    let node = treating(MemoryQos {
        page_cache_reclaim_sync: Some(true),
        ..percent(10)
    });
    for (own, decided) in [
        ("{}", "size=100 sync=true enable=true"),
        (
            r#"{"pageCacheLimitPercent":20}"#,
            "size=200 sync=true enable=true",
        ),
        (
            r#"{"pageCacheLimitSize":300}"#,
            "size=300 sync=true enable=true",
        ),
        (
            r#"{"PAGECACHELIMITsize":0}"#,
            "size=0 sync=true enable=false",
        ),
        (
            r#"{"pagecachereclaimsync":false}"#,
            "size=100 sync=false enable=true",
        ),
        (
            r#"{"pageCacheEnable":false}"#,
            "size=100 sync=true enable=false",
        ),
        (
            r#"{"pageCacheEnable":null}"#,
            "size=100 sync=true enable=true",
        ),
        (r#"{"policy":"none"}"#, ""),
        (
            r#"{"policy":"none","pageCacheLimitSize":300}"#,
            "size=300 sync=false enable=true",
        ),
    ] {
        let annotations = [
            (annotation::EXTENDED_RESOURCE_SPEC, SPEC),
            (annotation::MEMORY_QOS, own),
        ];
        let pod = in_tier(KubeQos::BestEffort, pod("BE", &annotations));
        assert_eq!(of_page_cache(&pod, &[], &node), decided, "{own}");
    }
}

#[test]
fn a_tier_has_the_priority_of_its_class_and_no_group_kill() {
    let mut node = treating(MemoryQos {
        priority_enable: Switch::new(1).ok(),
        oom_kill_group: Switch::new(1).ok(),
        ..kept()
    });
    let mut policy = (*node.policy).clone();
    let slo = policy.slo.as_mut().unwrap();
    let strategy = &mut slo.resource_qos_strategy;
    for (class, priority) in [
        (&mut strategy.lsr_class, 12),
        (&mut strategy.ls_class, 6),
        (&mut strategy.be_class, 0),
    ] {
        class.memory_qos.as_mut().unwrap().priority = OomPriority::new(priority).ok();
    }
    node.policy = policy.into();
    let tiers = MemoryQosHook.decide_node(&node).unwrap().tiers;
    let tiers: Vec<String> = tiers.values().map(shown).collect();
    let expected =
        ["12", "6", "0"].map(|it| format!("memory.priority={it} memory.use_priority_oom=true"));
    assert_eq!(tiers, expected);
    let quiet = MemoryQosHook.decide_node(&treating(kept())).unwrap();
    assert!(quiet.is_empty());
}

#[test]
fn a_class_that_is_not_enabled_and_a_node_without_policy_decide_nothing() {
    for node in [
        crate::fixture::node(),
        node_with(NodePolicy {
            slo: Some(slo()),
            ..NodePolicy::default()
        }),
    ] {
        assert_eq!(
            of_container(&guaranteed(&[]), &limited("main", GIB), &node),
            ""
        );
        assert_eq!(
            of_pod(&guaranteed(&[]), &[&limited("main", GIB)], &node),
            ""
        );
        assert!(MemoryQosHook.decide_node(&node).unwrap().is_empty());
    }
}

#[test]
fn the_class_is_the_labels_or_that_of_the_kubelets_tier() {
    let mut node = treating(MemoryQos::default());
    let mut policy = (*node.policy).clone();
    let slo = policy.slo.as_mut().unwrap();
    let strategy = &mut slo.resource_qos_strategy;
    for (class, priority) in [
        (&mut strategy.lsr_class, 4),
        (&mut strategy.ls_class, 3),
        (&mut strategy.be_class, 2),
        (&mut strategy.system_class, 1),
    ] {
        class.memory_qos = Some(MemoryQos {
            priority: OomPriority::new(priority).ok(),
            ..MemoryQos::default()
        });
    }
    node.policy = policy.into();
    for (class, tier, priority) in [
        ("LSE", KubeQos::Burstable, 4),
        ("LSR", KubeQos::Burstable, 4),
        ("LS", KubeQos::Guaranteed, 3),
        ("BE", KubeQos::Guaranteed, 2),
        ("SYSTEM", KubeQos::Guaranteed, 1),
        ("", KubeQos::Guaranteed, 4),
        ("", KubeQos::Burstable, 3),
        ("", KubeQos::BestEffort, 2),
        ("Gold", KubeQos::BestEffort, 2),
    ] {
        let decided = of_pod(&in_tier(tier, pod(class, &[])), &[], &node);
        assert_eq!(
            decided,
            format!("memory.priority={priority}"),
            "{class} {tier:?}"
        );
    }
}

#[test]
fn an_annotation_is_laid_over_what_its_policy_names() {
    let said = MemoryQos {
        wmark_ratio: WmarkRatio::new(80).ok(),
        oom_kill_group: Switch::new(1).ok(),
        ..MemoryQos::default()
    };
    let (told, untold) = (treating(said), crate::fixture::node());
    let auto = "memory.wmark_ratio=95 memory.wmark_scale_factor=20 memory.wmark_min_adj=-25";
    for (text, node, decided) in [
        ("{}", &told, "memory.wmark_ratio=80 memory.oom.group=true"),
        (
            r#"{"policy":""}"#,
            &told,
            "memory.wmark_ratio=80 memory.oom.group=true",
        ),
        (
            r#"{"policy":"default","wmarkRatio":70,"oomKillGroup":0}"#,
            &told,
            "memory.wmark_ratio=70 memory.oom.group=false",
        ),
        (r#"{"policy":"none"}"#, &told, ""),
        (
            r#"{"policy":"none","priority":3}"#,
            &told,
            "memory.priority=3",
        ),
        (r#"{"policy":"auto"}"#, &told, auto),
        (r#"{"policy":"auto"}"#, &untold, auto),
        (r#"{"WMARKratio":70}"#, &untold, "memory.wmark_ratio=70"),
    ] {
        let pod = pod("LS", &[(annotation::MEMORY_QOS, text)]);
        assert_eq!(
            of_container(&pod, &container("main"), node),
            decided,
            "{text}"
        );
    }
    // The defaults of BE differ.
    let be = pod("BE", &[(annotation::MEMORY_QOS, r#"{"policy":"auto"}"#)]);
    assert_eq!(
        of_container(&be, &container("main"), &untold),
        "memory.wmark_ratio=95 memory.wmark_scale_factor=20 memory.wmark_min_adj=50"
    );
    let system = pod(
        "SYSTEM",
        &[(annotation::MEMORY_QOS, r#"{"policy":"auto"}"#)],
    );
    assert_eq!(of_container(&system, &container("main"), &untold), "");
}

/// Annotations, the place at which each is wrong, and why.
const WRONG: [(&str, &str, &str); 14] = [
    (
        r#"{"minLimitPercent":101}"#,
        "$.minLimitPercent",
        "percentage 101 is outside 0 to 100",
    ),
    (
        r#"{"wmarkRatio":-1}"#,
        "$.wmarkRatio",
        "memory.wmark_ratio -1 is outside 0 to 100",
    ),
    (
        r#"{"wmarkScalePermill":0}"#,
        "$.wmarkScalePermill",
        "memory.wmark_scale_factor 0 is outside 1 to 1000",
    ),
    (
        r#"{"wmarkMinAdj":51}"#,
        "$.wmarkMinAdj",
        "memory.wmark_min_adj 51 is outside -25 to 50",
    ),
    (
        r#"{"priority":13}"#,
        "$.priority",
        "memory.priority 13 is outside 0 to 12",
    ),
    (
        r#"{"priorityEnable":2}"#,
        "$.priorityEnable",
        "switch 2 is outside 0 to 1",
    ),
    (
        r#"{"pageCacheLimitPercent":101}"#,
        "$.pageCacheLimitPercent",
        "percentage 101 is outside 0 to 100",
    ),
    (
        r#"{"pageCacheLimitSize":-1}"#,
        "$.pageCacheLimitSize",
        "memory.pagecache_limit.size -1 is outside 0 to 9223372036854775807",
    ),
    (
        r#"{"throttlingPercent":"80"}"#,
        "$.throttlingPercent",
        "value is \"80\", not a whole number from 0 to 100",
    ),
    (
        r#"{"lowLimitPercent":9223372036854775808}"#,
        "$.lowLimitPercent",
        "value is 9223372036854775808, not a whole number from 0 to 100",
    ),
    (
        r#"{"oomKillGroup":true}"#,
        "$.oomKillGroup",
        "value is true, not a whole number from 0 to 1",
    ),
    (
        r#"{"policy":"Auto"}"#,
        "$.policy",
        "value \"Auto\" is none of default, none, auto",
    ),
    (
        r#"{"pageCacheEnable":1}"#,
        "$.pageCacheEnable",
        "value is 1, not a boolean",
    ),
    (
        r#"{"pageCacheReclaimSync":"true"}"#,
        "$.pageCacheReclaimSync",
        "value is \"true\", not a boolean",
    ),
];

#[test]
fn a_wrong_value_of_an_annotation_is_named_with_its_range() {
    for (text, place, reason) in WRONG {
        let pod = pod("LS", &[(annotation::MEMORY_QOS, text)]);
        let error = decide_container(
            &MemoryQosHook,
            &pod,
            &container("main"),
            &crate::fixture::node(),
        );
        let error = error.unwrap_err();
        assert_eq!(error.key(), "koordinator.sh/memoryQOS");
        assert!(
            error.to_string().ends_with(&format!("unusable at {place}")),
            "{error}"
        );
        let mut source: &dyn std::error::Error = &error;
        while let Some(next) = source.source() {
            source = next;
        }
        assert_eq!(source.to_string(), reason);
    }
}

#[test]
fn what_a_kernel_has_no_file_for_is_not_decided() {
    let mut node = treating(MemoryQos {
        wmark_ratio: WmarkRatio::new(95).ok(),
        priority_enable: Switch::new(1).ok(),
        oom_kill_group: Switch::new(1).ok(),
        page_cache_limit_percent: Percent::new(10).ok(),
        ..kept()
    });
    // Mainline with cgroup v2.
    node.kernel.files = [
        Setting::MemoryMin,
        Setting::MemoryLow,
        Setting::MemoryHigh,
        Setting::MemoryOomGroup,
    ]
    .into();
    assert_eq!(MemoryQosHook.unsupported(&node), None);
    assert_eq!(
        of_container(&batch("100Mi", "300Mi"), &container("main"), &node),
        "memory.min=52428800 memory.low=78643200 memory.high=209715200 memory.oom.group=true"
    );
    assert!(MemoryQosHook.decide_node(&node).unwrap().is_empty());
    assert_eq!(
        of_pod(&batch("100Mi", "300Mi"), &[], &node),
        "memory.min=52428800 memory.low=78643200 memory.oom.group=true"
    );
    // Mainline with cgroup v1.
    node.kernel.files = [Setting::MemoryLimit].into();
    assert!(MemoryQosHook.unsupported(&node).is_some());
    assert_eq!(
        of_container(&batch("100Mi", "300Mi"), &container("main"), &node),
        ""
    );
}

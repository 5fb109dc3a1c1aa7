use super::*;

fn resources() -> cri::LinuxContainerResources {
    cri::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: -1,
        cpu_shares: 512,
        memory_limit_in_bytes: 1 << 20,
        ..Default::default()
    }
}

#[test]
fn keys_are_told_apart_whatever_their_length() {
    let long = "k".repeat(100);
    let inputs = Inputs::new(["a", "bcd"], [long.as_str()]);
    for (key, has) in [
        ("a", true),
        ("b", false),
        ("bc", false),
        ("bcd", true),
        ("", false),
    ] {
        assert_eq!(inputs.has(key.as_bytes()), has, "{key}");
    }
    assert!(inputs.has(long.as_bytes()) && !inputs.has(&[b'k'; 99]));
}

#[test]
fn what_is_known_is_shared_where_a_creation_says_the_same_and_nothing_else() {
    let inputs = Inputs::new(["label"], ["note", "other"]);
    let of = |text: &'static str| -> Map { [("note", text)].into_iter().collect() };
    let labels: Map = [("label", "x")].into_iter().collect();
    let annotations = of("1");
    let known = Some((&labels, &annotations));
    let pod = |annotations: &[(&'static str, &'static str)]| cri::LentPod {
        name: "web",
        uid: "1-2",
        namespace: "shop",
        labels: vec![("label", "x")],
        annotations: annotations.to_vec(),
        cgroup_parent: "",
    };
    let view = |pod: &_| lent_pod(pod, known, "kata", None, &inputs).unwrap();
    let place = |map: &Map| map.get("note").map(str::as_ptr);
    let same = view(&pod(&[("note", "1")]));
    assert_eq!(place(&same.annotations), place(&annotations));
    for (said, read) in [
        (&[("note", "2")][..], of("2")),
        (&[], Map::default()),
        (
            &[("note", "1"), ("other", "2")],
            [("note", "1"), ("other", "2")].into_iter().collect(),
        ),
        // A key that is looked for among labels alone.
        (&[("note", "1"), ("label", "y")], of("1")),
    ] {
        let view = view(&pod(said));
        assert_eq!(view.annotations, read, "{said:?}");
        assert_ne!(place(&view.annotations), place(&annotations), "{said:?}");
    }
    let named = (&*same.name, same.uid.as_str(), &*same.namespace);
    assert_eq!(named, ("web", "1-2", "shop"));
    assert_eq!((&same.labels, &*same.runtime_handler), (&labels, "kata"));
    // Of a pod that nobody knows yet.
    let new = lent_pod(&pod(&[("note", "1")]), None, "", None, &inputs);
    assert_eq!(new.unwrap().annotations, annotations);
}

#[test]
fn only_a_directory_of_the_pods_name_is_its_own() {
    let uid = PodUid::new("1-2").unwrap();
    for (path, own) in [
        ("kubepods/burstable/pod1-2", true),
        ("kubepods.slice/kubepods-pod1_2.slice", true),
        ("kubepods/burstable", false),
        ("kubepods/burstable/pod1-23", false),
        ("kubepods.slice/kubepods-pod11_2.slice", false),
    ] {
        let path = CgroupPath::parse(path).unwrap();
        let found = own_directory(Some(&path), &uid);
        assert_eq!(found.is_some(), own, "{path}");
    }
    assert_eq!(own_directory(None, &uid), None);
}

#[test]
fn what_is_asked_for_by_files_of_cgroup_v2_is_read_as_the_kernel_would() {
    let texts = [
        ("memory.min", "4096"),
        ("memory.low", "max"),
        ("memory.high", "max\n"),
        ("memory.oom.group", "1"),
        ("cpu.idle", "1"),
    ];
    let asked = cri::LinuxContainerResources {
        unified: texts.map(|(k, v)| (k.to_owned(), v.to_owned())).into(),
        ..Default::default()
    };
    let asked = requested(Some(&asked)).unified;
    let expected = Unified {
        memory_min: Some(MemoryProtection::Bytes(4096)),
        memory_low: Some(MemoryProtection::All),
        memory_high: Some(MemoryLimit::Unlimited),
        memory_oom_group: Some(true),
    };
    assert_eq!(asked, expected);
    // Nothing else of a request is read.
    let mut names = cri::UNIFIED.to_vec();
    names.sort_unstable();
    assert!(unified_texts(expected).keys().eq(names));
    let read = unified(|file| (file == "memory.min").then_some("1.5G"));
    assert_eq!(read, Unified::default());
    let none = Requested::default();
    let before = Requested {
        unified: expected,
        ..none.clone()
    };
    assert_eq!(overlaid(&before, none).unified, expected);
}

#[test]
fn zero_and_empty_are_not_said() {
    let asked = requested(Some(&resources()));
    assert_eq!(asked.cpu_quota, Some(CpuQuota::Unlimited));
    assert_eq!(asked.memory_limit, Some(MemoryLimit::Bytes(1_048_576)));
    assert_eq!(asked.cpuset_cpus, None);
    assert_eq!(
        requested(Some(&cri::LinuxContainerResources::default())),
        Requested::default()
    );
}

#[test]
fn a_score_is_asked_for_by_creations_alone_zero_too() {
    for (said, score) in [(0, Some(0)), (-998, Some(-998)), (1_001, None)] {
        let linux = cri::LinuxContainerResources {
            oom_score_adj: said,
            ..resources()
        };
        let asked = requested_at_creation(Some(&linux));
        assert_eq!(asked.oom_score_adj.map(OomScoreAdj::get), score);
        assert_eq!(requested(Some(&linux)).oom_score_adj, None);
        assert_eq!(is_sound(&linux, &"0-1".parse().unwrap()), score.is_some());
        // An update changes nothing of it.
        let later = overlaid(&asked, requested(Some(&linux)));
        assert_eq!(later.oom_score_adj, asked.oom_score_adj);
    }
    assert_eq!(requested_at_creation(None).oom_score_adj, None);
}

#[test]
fn numbers_out_of_range_are_left_to_the_runtime() {
    let odd = cri::LinuxContainerResources {
        cpu_shares: 1,
        cpu_quota: 5,
        cpu_period: -3,
        cpuset_cpus: "what".to_owned(),
        ..Default::default()
    };
    assert_eq!(requested(Some(&odd)), Requested::default());
}

#[test]
fn what_a_runtime_would_refuse_is_not_sound() {
    let usable = "0-1".parse().unwrap();
    let cpus = |list: &str| cri::LinuxContainerResources {
        cpuset_cpus: list.to_owned(),
        ..resources()
    };
    assert!(is_sound(&resources(), &usable));
    assert!(is_sound(&cpus("1"), &usable));
    assert!(!is_sound(&cpus("zero"), &usable));
    assert!(!is_sound(&cpus("0-2"), &usable));
    let short = cri::LinuxContainerResources {
        cpu_quota: 5,
        ..resources()
    };
    assert!(!is_sound(&short, &usable));
}

#[test]
fn a_pod_asks_for_its_containers_and_its_overhead_together() {
    let overhead = cri::LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 20_000,
        cpu_shares: 256,
        memory_limit_in_bytes: 1 << 20,
        ..Default::default()
    };
    let asked = requested_of_pod(Some(&resources()), Some(&overhead));
    assert_eq!(asked.cpu_shares, CpuShares::new(768).ok());
    assert_eq!(asked.cpu_quota, Some(CpuQuota::Unlimited));
    assert_eq!(asked.memory_limit, Some(MemoryLimit::Bytes(2_097_152)));
    let limited = cri::LinuxContainerResources {
        cpu_quota: 50_000,
        ..resources()
    };
    let asked = requested_of_pod(Some(&limited), Some(&overhead));
    assert_eq!(asked.cpu_quota, Some(CpuQuota::Micros(70_000)));
    let unlimited = cri::LinuxContainerResources {
        cpu_quota: -1,
        ..overhead
    };
    let asked = requested_of_pod(Some(&limited), Some(&unlimited));
    assert_eq!(asked.cpu_quota, Some(CpuQuota::Unlimited));
    assert_eq!(requested_of_pod(None, None), Requested::default());
}

#[test]
fn an_update_of_one_field_leaves_the_others_as_asked() {
    let before = requested(Some(&resources()));
    let update = cri::LinuxContainerResources {
        cpu_shares: 204,
        ..Default::default()
    };
    let after = overlaid(&before, requested(Some(&update)));
    assert_eq!(after.cpu_shares.map(CpuShares::get), Some(204));
    assert_eq!(after.memory_limit, Some(MemoryLimit::Bytes(1_048_576)));
    assert_eq!(after.cpu_quota, Some(CpuQuota::Unlimited));
}

use super::*;
use koord_model::{KubeQos, PodUid};

fn sandbox(id: &str) -> SandboxId {
    SandboxId::new(id).unwrap()
}

fn container(id: &str) -> Container {
    Container::new(
        ContainerId::new(id).unwrap(),
        "main".to_owned(),
        Requested::default(),
    )
}

fn pod(id: &str) -> Pod {
    Pod {
        sandbox: sandbox(id),
        view: PodView {
            uid: PodUid::new("uid-1").unwrap(),
            namespace: "default".to_owned(),
            name: "web".to_owned(),
            labels: koord_hooks::Map::default(),
            annotations: koord_hooks::Map::default(),
            kube_qos: KubeQos::Burstable,
            runtime_handler: String::new(),
        },
        exemption: None,
        ready: true,
        parent: None,
        own: Target::default(),
        pause: Target::default(),
        containers: Vec::new(),
        told: 0,
    }
}

fn held(ledger: &Ledger) -> (Vec<&str>, usize) {
    let mut pods: Vec<_> = ledger.pods().map(|pod| pod.sandbox.as_str()).collect();
    pods.sort_unstable();
    (pods, ledger.containers_len())
}

fn merged(adjustment: koord_hooks::Adjustment) -> Merged {
    let mut merged = Merged::default();
    merged.merge("Hook", adjustment).unwrap();
    merged
}

#[test]
fn what_nobody_decides_any_more_is_given_back() {
    let nobody_asked = |_: Setting| None;
    let mut target = Target::default();
    let idle = koord_hooks::Adjustment {
        cpu_idle: Some(true),
        cpuset_cpus: Some(CpusetCpus::Only("1".parse().unwrap())),
        ..Default::default()
    };
    let route = |value: &Value| match value {
        Value::CpuIdle(_) => Route::Kernel,
        _ => Route::Request,
    };
    target.decide(&merged(idle), route, nobody_asked);
    target.decide(&Merged::default(), route, nobody_asked);
    let held: Vec<_> = target
        .entries()
        .iter()
        .map(|entry| (entry.desired.to_string(), entry.owner))
        .collect();
    assert_eq!(held, [("all".to_owned(), "-"), ("false".to_owned(), "-")]);
    settle(&mut target);
    // The runtime's own spec still has our cpuset; each update has to carry the original.
    assert_eq!(target.entries().len(), 1);
    target.decide(&Merged::default(), route, |setting| {
        (setting == Setting::CpusetCpus).then(|| CpusetCpus::Only("0".parse().unwrap()).into())
    });
    assert_eq!(target.entries()[0].desired.to_string(), "0");
}

fn idle(idle: bool) -> Merged {
    merged(koord_hooks::Adjustment {
        cpu_idle: idle.then_some(true),
        ..Default::default()
    })
}

fn desired(target: &Target) -> Vec<(String, &'static str)> {
    let entries = target.entries().iter();
    entries
        .map(|entry| {
            let value = &entry.desired;
            (format!("{}={value}", value.setting()), entry.owner)
        })
        .collect()
}

fn settle(target: &mut Target) {
    for entry in target.entries_mut() {
        entry.applied = Applied::Written;
    }
    target.settle();
}

#[test]
fn a_group_that_is_idle_no_more_gets_its_shares_back() {
    let shares = |number| Value::from(koord_model::CpuShares::new(number).unwrap());
    let given_back = [
        ("cpu.idle=false".to_owned(), "-"),
        ("cpu.shares=7".to_owned(), "-"),
    ];
    // Those that the kernel had; else what the kubelet writes; else nothing is known.
    for (kubelets, seen, expected) in [
        (Some(2), Some(7), &given_back[..]),
        (Some(7), None, &given_back),
        (None, None, &given_back[..1]),
    ] {
        let mut target = Target {
            undecided_shares: kubelets.map(shares),
            ..Target::default()
        };
        let decide = |target: &mut Target, to_be_idle| {
            target.decide(&idle(to_be_idle), |_| Route::Kernel, |_| None);
        };
        decide(&mut target, true);
        assert_eq!(desired(&target), [("cpu.idle=true".to_owned(), "Hook")]);
        if let Some(seen) = seen {
            target.has_forgotten(shares(seen));
        }
        decide(&mut target, false);
        assert_eq!(desired(&target), expected);
        // Until they are written, and not again after that.
        decide(&mut target, false);
        assert_eq!(desired(&target), expected);
        settle(&mut target);
        decide(&mut target, false);
        assert_eq!(desired(&target), []);
    }
}

#[test]
fn shares_that_are_decided_are_not_given_back_with_idleness() {
    let mut batch = koord_hooks::Adjustment {
        cpu_shares: Some(koord_model::CpuShares::new(512).unwrap()),
        cpu_idle: Some(true),
        ..Default::default()
    };
    let mut target = Target::default();
    target.decide(&merged(batch.clone()), |_| Route::Kernel, |_| None);
    target.has_forgotten(koord_model::CpuShares::new(512).unwrap().into());
    batch.cpu_idle = None;
    target.decide(&merged(batch), |_| Route::Kernel, |_| None);
    assert_eq!(
        desired(&target),
        [
            ("cpu.shares=512".to_owned(), "Hook"),
            ("cpu.idle=false".to_owned(), "-")
        ]
    );
}

#[test]
fn a_container_goes_with_its_pod() {
    let mut ledger = Ledger::default();
    ledger.insert_pod(pod("s1"));
    ledger.insert_container(&sandbox("s1"), container("c1"));
    ledger.insert_container(&sandbox("gone"), container("c2"));
    assert_eq!(held(&ledger), (vec!["s1"], 1));
    ledger.remove_pod(&sandbox("s1"));
    assert_eq!(held(&ledger), (vec![], 0));
}

#[test]
fn a_list_removes_what_it_lacks_but_not_what_is_newer() {
    let mut ledger = Ledger::default();
    ledger.insert_pod(pod("old"));
    ledger.insert_container(&sandbox("old"), container("c1"));
    let asked = ledger.begin_list();
    ledger.insert_pod(pod("new"));
    ledger.retain_listed(asked, |_| false, |_| false);
    assert_eq!(held(&ledger), (vec!["new"], 0));
}

#[test]
fn a_list_does_not_bring_back_what_a_call_removed() {
    let mut ledger = Ledger::default();
    ledger.insert_pod(pod("s1"));
    let asked = ledger.begin_list();
    ledger.insert_container(&sandbox("s1"), container("c1"));
    ledger.remove_pod(&sandbox("s1"));
    assert!(ledger.is_removed("s1") && ledger.is_removed("c1"));
    assert!(!ledger.is_removed("s2"));
    ledger.retain_listed(asked, |_| true, |_| true);
    // The next list is asked for after the removal.
    ledger.begin_list();
    assert!(!ledger.is_removed("s1") && !ledger.is_removed("c1"));
}

#[test]
fn removals_are_kept_for_the_list_under_way_alone_and_not_without_bound() {
    let removed = |ledger: &Ledger| ledger.removed.as_ref().map(|removed| removed.ids.len());
    let mut ledger = Ledger::default();
    let remove = |ledger: &mut Ledger, numbers: std::ops::Range<usize>| {
        for number in numbers {
            ledger.remove_pod(&sandbox(&format!("s{number}")));
        }
    };
    remove(&mut ledger, 0..10);
    assert_eq!(removed(&ledger), None);
    ledger.begin_list();
    remove(&mut ledger, 0..10);
    assert_eq!(removed(&ledger), Some(10));
    ledger.abandon_list();
    assert_eq!(removed(&ledger), None);

    ledger.begin_list();
    remove(&mut ledger, 0..4_096);
    assert!(ledger.is_removed("s4095") && !ledger.is_removed("s4096"));
    // With more it is not known any longer what was removed: the list brings nothing new.
    remove(&mut ledger, 4_096..10_000);
    assert_eq!(removed(&ledger), Some(4_096));
    assert!(ledger.is_removed("s9999") && ledger.is_removed("whatever"));
}

#[test]
fn a_pod_told_again_keeps_its_containers() {
    let mut ledger = Ledger::default();
    ledger.insert_pod(pod("s1"));
    ledger.insert_container(&sandbox("s1"), container("c1"));
    ledger.insert_pod(pod("s1"));
    let id = ContainerId::new("c1").unwrap();
    assert!(ledger.tell_container(&id).is_some());
}

#[test]
fn what_a_call_tells_of_a_container_is_newer_than_a_list_under_way() {
    let mut ledger = Ledger::default();
    ledger.insert_pod(pod("s1"));
    ledger.insert_container(&sandbox("s1"), container("c1"));
    let asked = ledger.begin_list();
    let told = |ledger: &Ledger| ledger.pod(&sandbox("s1")).unwrap().told > asked;
    assert!(!told(&ledger));
    let id = ContainerId::new("c1").unwrap();
    ledger.tell_container(&id).unwrap().life = Life::Running;
    assert!(told(&ledger));
}

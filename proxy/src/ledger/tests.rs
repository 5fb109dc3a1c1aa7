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
    let view = PodView {
        uid: PodUid::new("uid-1").unwrap(),
        namespace: "default".to_owned(),
        name: "web".to_owned(),
        labels: koord_hooks::Map::default(),
        annotations: koord_hooks::Map::default(),
        spec: None,
        kube_qos: KubeQos::Burstable,
        runtime_handler: String::new(),
        parsed: koord_hooks::Parsed::default(),
    };
    Pod::new(sandbox(id), view, Said::default(), None)
}

fn held(ledger: &Ledger) -> (Vec<&str>, usize) {
    let mut pods: Vec<_> = ledger.pods().map(|pod| pod.sandbox.as_str()).collect();
    pods.sort_unstable();
    (pods, ledger.containers_len())
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
    let less = ledger.retain_listed(asked, |_| false, |_| false);
    assert_eq!(less, [sandbox("old")]);
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
fn a_list_does_not_bring_back_what_a_synchronisation_has_dropped() {
    let mut ledger = Ledger::default();
    for (pod_id, id) in [("s1", "c1"), ("s2", "c2"), ("s2", "c3")] {
        if ledger.pod(&sandbox(pod_id)).is_none() {
            ledger.insert_pod(pod(pod_id));
        }
        ledger.insert_container(&sandbox(pod_id), container(id));
    }
    ledger.begin_list();
    ledger.resync(|pod| pod.as_str() == "s2", |id| id.as_str() == "c3");
    assert_eq!(held(&ledger), (vec!["s2"], 1));
    let all = ["s1", "c1", "s2", "c2", "c3"];
    let removed = all.map(|id| ledger.is_removed(id));
    assert_eq!(removed, [true, true, false, true, false]);
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
    let told = |ledger: &Ledger| ledger.pod(&sandbox("s1")).unwrap().called_at > asked;
    assert!(!told(&ledger));
    let id = ContainerId::new("c1").unwrap();
    ledger.tell_container(&id).unwrap().life = Life::Running;
    assert!(told(&ledger));
}

#[test]
fn a_container_is_in_one_pod_alone_whatever_a_runtime_says() {
    let told: fn(&mut Ledger, &SandboxId, Container) = Ledger::insert_container;
    let listed: fn(&mut Ledger, &SandboxId, Container) = Ledger::list_container;
    for put in [told, listed] {
        let mut ledger = Ledger::default();
        ledger.insert_pod(pod("s1"));
        ledger.insert_pod(pod("s2"));
        put(&mut ledger, &sandbox("s1"), container("c1"));
        put(&mut ledger, &sandbox("gone"), container("c1"));
        put(&mut ledger, &sandbox("s2"), container("c1"));
        put(&mut ledger, &sandbox("s2"), container("c1"));
        let of = |ledger: &Ledger, id| ledger.pod(&sandbox(id)).unwrap().containers.len();
        assert_eq!((of(&ledger, "s1"), of(&ledger, "s2")), (0, 1));
        ledger.remove_pod(&sandbox("s1"));
        assert_eq!(held(&ledger), (vec!["s2"], 1));
        let id = ContainerId::new("c1").unwrap();
        assert_eq!(ledger.sandbox_of(&id), Some(&sandbox("s2")));
        ledger.remove_pod(&sandbox("s2"));
        assert_eq!(held(&ledger), (vec![], 0));
    }
}

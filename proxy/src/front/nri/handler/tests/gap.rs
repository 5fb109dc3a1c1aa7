//! What happens to a container between two sessions, or in one that ends before it is told.

use super::*;

/// The container with a spec that says this.
fn with_spec(resources: LinuxResources) -> Container {
    let mut container = told_container();
    container.linux.as_mut().unwrap().resources = Some(resources);
    container
}

/// A session in which the container was made with what was decided.
async fn with_container() -> (Bench, Handler) {
    let (bench, plugin) = plugin();
    plugin.answer(creation()).await;
    let made = Asked::Happened {
        event: Event::PostCreateContainer,
        pod: Some(told_pod()),
        container: Some(with_spec(batch())),
    };
    plugin.answer(made).await;
    (bench, plugin)
}

/// The next session, which finds this spec: which shares it says.
async fn next(bench: &Bench, plugin: &Handler, spec: LinuxResources) -> (Handler, Option<u64>) {
    let next = Handler::new(bench.hub.clone(), Duration::from_secs(2));
    let next = next.after(plugin.take_pending());
    let found = Asked::Synchronize {
        pods: vec![told_pod()],
        containers: vec![with_spec(spec)],
    };
    let Answer::Update(updates) = next.answer(found).await else {
        panic!("no answer to what is there");
    };
    let said = updates.into_iter().find_map(|it| it.linux?.resources?.cpu);
    (next, said.and_then(|cpu| cpu.shares).map(|it| it.value))
}

/// The shares that were asked for, which come back one day.
fn asked_shares(bench: &Bench) -> String {
    let original = bench.entry(Setting::CpuShares).unwrap().original;
    original.value().unwrap().to_string()
}

fn with_shares(value: u64, cpus: &str) -> LinuxResources {
    let mut resources = batch();
    let cpu = resources.cpu.as_mut().unwrap();
    cpu.shares = Some(OptionalUInt64 { value });
    cpus.clone_into(&mut cpu.cpus);
    resources
}

#[tokio::test]
async fn what_somebody_asks_for_between_two_sessions_is_known_and_ours_is_said_again() {
    let (bench, plugin) = with_container().await;
    assert_eq!(asked_shares(&bench), "1024");
    let (plugin, said) = next(&bench, &plugin, batch()).await;
    assert_eq!((asked_shares(&bench), said), ("1024".to_owned(), None));
    let (_, said) = next(&bench, &plugin, with_shares(4_096, "")).await;
    assert_eq!((asked_shares(&bench), said), ("4096".to_owned(), Some(512)));
    let cpus = || {
        let ledger = bench.hub.ledger().borrow();
        let (_, container) = ledger.container(&container()).unwrap();
        container.view.requested.cpuset_cpus.clone()
    };
    assert_eq!(cpus(), None);
    // Of a setting that no hook decides as well.
    next(&bench, &plugin, with_shares(512, "1")).await;
    assert_eq!(cpus(), Some("1".parse().unwrap()));
}

#[tokio::test]
async fn an_update_of_which_a_session_that_has_ended_did_not_tell_is_known_if_it_has_come_about() {
    for (cpus, expected) in [("1", "4096"), ("", "1024")] {
        let (bench, plugin) = with_container().await;
        plugin.answer(update(with_shares(4_096, "1"))).await;
        let (_, said) = next(&bench, &plugin, with_shares(512, cpus)).await;
        assert_eq!((&*asked_shares(&bench), said), (expected, None), "{cpus:?}");
    }
}

#[tokio::test]
async fn so_are_two_of_which_the_second_came_before_it_was_told_of_the_first() {
    for (cpus, expected) in [("1", "4096"), ("", "1024")] {
        let (bench, plugin) = with_container().await;
        plugin.answer(update(with_shares(4_096, "1"))).await;
        let memory = LinuxResources {
            memory: Some(limited(5 << 30)),
            ..LinuxResources::default()
        };
        plugin.answer(update(memory)).await;
        let (_, said) = next(&bench, &plugin, with_shares(512, cpus)).await;
        assert_eq!((&*asked_shares(&bench), said), (expected, None), "{cpus:?}");
        let memory = bench.entry(Setting::MemoryLimit).unwrap().original;
        assert_eq!(memory.value().unwrap().to_string(), "5368709120");
    }
}

#[tokio::test]
async fn what_a_runtime_was_told_and_has_not_done_is_nobodys_wish() {
    let (bench, mut plugin) = with_container().await;
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        let pod = ledger.pod_mut(&sandbox()).unwrap();
        let twice = BATCH.replace("500", "1000");
        let key = annotation::EXTENDED_RESOURCE_SPEC;
        pod.view.annotations = [(key, &*twice)].into_iter().collect();
        bench.hub.decide_again(pod);
    }
    for _ in 0..2 {
        let (next, said) = next(&bench, &plugin, batch()).await;
        assert_eq!(
            (asked_shares(&bench), said),
            ("1024".to_owned(), Some(1_024))
        );
        plugin = next;
    }
}

//! Messages that lack parts: a runtime may leave out any of them.

use super::*;
use koord_proto::nri::UpdatePodSandboxRequest;
use serde_json::Value;

/// Events that are about a container.
const OF_CONTAINERS: [Event; 5] = [
    Event::PostCreateContainer,
    Event::StartContainer,
    Event::PostStartContainer,
    Event::PostUpdateContainer,
    Event::RemoveContainer,
];

async fn report(bench: &Bench) -> Value {
    serde_json::to_value(bench.hub.report(None).await).unwrap()
}

/// All that can be asked and told of these; `Synchronize`, which has no such parts, aside.
fn everything_about(pod: Option<&PodSandbox>, container: Option<&Container>) -> Vec<Asked> {
    let (pod, container) = (pod.cloned(), container.cloned());
    let resources = Some(shares(7));
    let mut asked: Vec<Asked> = EVENTS
        .into_iter()
        .map(|event| Asked::Happened {
            event,
            pod: pod.clone(),
            container: container.clone(),
        })
        .collect();
    asked.extend([
        Asked::CreateContainer(CreateContainerRequest {
            pod: pod.clone(),
            container: container.clone(),
        }),
        Asked::UpdateContainer(UpdateContainerRequest {
            pod: pod.clone(),
            container: container.clone(),
            linux_resources: resources.clone(),
        }),
        Asked::StopContainer(StopContainerRequest {
            pod: pod.clone(),
            container,
        }),
        Asked::UpdatePodSandbox(UpdatePodSandboxRequest {
            pod,
            overhead_linux_resources: resources.clone(),
            linux_resources: resources,
        }),
    ]);
    asked
}

/// Whether a question makes sense though only a pod, or only a container, is in it.
fn is_enough(asked: &Asked) -> bool {
    match asked {
        Asked::Synchronize { .. } => unreachable!("it is not asked here"),
        Asked::CreateContainer(_) | Asked::UpdateContainer(_) => false,
        Asked::StopContainer(request) => request.container.is_some(),
        Asked::UpdatePodSandbox(request) => request.pod.is_some(),
        Asked::Happened { event, pod, .. } => pod.is_some() && !OF_CONTAINERS.contains(event),
    }
}

#[tokio::test]
async fn what_names_no_pod_or_no_container_is_answered_with_nothing_and_changes_nothing() {
    let (bench, plugin) = plugin();
    let (pod, container) = (told_pod(), told_container());
    let told = Asked::Synchronize {
        pods: vec![pod.clone()],
        containers: vec![container.clone()],
    };
    plugin.answer(told).await;
    let before = report(&bench).await;
    assert_eq!(before["pods"][0]["containers"][0]["id"], "container-1");

    let (no_pod, no_container) = (PodSandbox::default(), Container::default());
    let mut asked = everything_about(None, Some(&container));
    asked.extend(everything_about(Some(&pod), None));
    asked.retain(|asked| !is_enough(asked));
    // Without a pod all but the stop of a container; without a container the eight that are about one.
    assert_eq!(asked.len(), 16 + 8);
    asked.extend(everything_about(None, None));
    asked.extend(everything_about(Some(&no_pod), Some(&no_container)));
    for asked in asked {
        let shown = format!("{asked:?}");
        assert_eq!(plugin.answer(asked).await, Answer::Nothing, "{shown}");
        assert_eq!(report(&bench).await, before, "{shown}");
    }
}

#[tokio::test]
async fn a_pod_lives_by_messages_that_say_hardly_more_than_ids() {
    let with = |resources| LinuxContainer {
        resources,
        ..LinuxContainer::default()
    };
    for linux in [
        None,
        Some(with(None)),
        Some(with(Some(LinuxResources::default()))),
    ] {
        let (bench, plugin) = plugin();
        let pod = PodSandbox {
            linux: None,
            ..told_pod()
        };
        let container = Container {
            linux,
            ..told_container()
        };
        starts(&plugin, &pod, &container).await;
        assert_eq!(known(&bench), Some(Life::Running));

        // From here on a pod is its id, as that of a container that has stopped may be.
        let pod = PodSandbox {
            id: pod.id,
            ..PodSandbox::default()
        };
        let updated = Asked::UpdateContainer(UpdateContainerRequest {
            pod: Some(pod.clone()),
            container: Some(container.clone()),
            linux_resources: None,
        });
        let Answer::Update(updates) = plugin.answer(updated).await else {
            panic!("not updated: {container:?}");
        };
        let [update] = &*updates else {
            panic!("{updates:?}");
        };
        assert_eq!(update.container_id, "container-1");
        assert_eq!(update.linux.clone().unwrap().resources, Some(batch()));
        plugin
            .answer(happened(Event::PostUpdateContainer, &pod, &container))
            .await;
        let resized = Asked::UpdatePodSandbox(UpdatePodSandboxRequest {
            pod: Some(pod.clone()),
            ..UpdatePodSandboxRequest::default()
        });
        assert_eq!(plugin.answer(resized).await, Answer::Nothing);
        ends(&bench, &plugin, pod).await;
    }
}

fn happened(event: Event, pod: &PodSandbox, container: &Container) -> Asked {
    Asked::Happened {
        event,
        pod: Some(pod.clone()),
        container: Some(container.clone()),
    }
}

/// The pod runs, and its container is made and started.
async fn starts(plugin: &Handler, pod: &PodSandbox, container: &Container) {
    plugin
        .answer(happened(Event::RunPodSandbox, pod, container))
        .await;
    let created = Asked::CreateContainer(CreateContainerRequest {
        pod: Some(pod.clone()),
        container: Some(container.clone()),
    });
    let Answer::Adjust(adjust) = plugin.answer(created).await else {
        panic!("not adjusted: {container:?}");
    };
    assert_eq!(adjust.linux.unwrap().resources, Some(batch()));
    for event in [Event::PostCreateContainer, Event::StartContainer] {
        plugin.answer(happened(event, pod, container)).await;
    }
}

/// The only pod, of which no more than the id is told, and its container end and go.
async fn ends(bench: &Bench, plugin: &Handler, pod: PodSandbox) {
    let container = Container {
        id: "container-1".to_owned(),
        ..Container::default()
    };
    let stop = Asked::StopContainer(StopContainerRequest {
        pod: Some(pod.clone()),
        container: Some(container.clone()),
    });
    assert_eq!(plugin.answer(stop).await, Answer::Nothing);
    assert_eq!(known(bench), Some(Life::Exited));
    let happened = |event, container| Asked::Happened {
        event,
        pod: Some(pod.clone()),
        container,
    };
    plugin
        .answer(happened(Event::RemoveContainer, Some(container)))
        .await;
    assert_eq!(known(bench), None);
    for event in [Event::StopPodSandbox, Event::RemovePodSandbox] {
        assert_eq!(plugin.answer(happened(event, None)).await, Answer::Nothing);
    }
    assert_eq!(bench.hub.ledger().borrow().pods_len(), 0);
}

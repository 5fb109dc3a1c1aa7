//! Idle pods that a kubelet resizes.

use super::*;
use koord_proto::nri::UpdatePodSandboxRequest;

#[tokio::test]
async fn an_idle_pod_is_awake_before_the_runtime_agrees_to_its_resize() {
    let bench = Bench::idling(Generation::V1).await;
    let plugin = Handler::new(bench.hub.clone(), Duration::from_secs(2));
    let resized = |to| {
        Asked::UpdatePodSandbox(UpdatePodSandboxRequest {
            pod: Some(told_pod()),
            linux_resources: Some(shares(to)),
            ..UpdatePodSandboxRequest::default()
        })
    };
    // What the kernel shows of an idle group.
    plugin.answer(resized(3)).await;
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown_of_pod("cpu.idle"), "1");
    plugin.answer(resized(700)).await;
    plugin.answer(happened(Event::PostUpdatePodSandbox)).await;
    reconcile::pod(&bench.hub, &sandbox()).await;
    assert_eq!(bench.shown_of_pod("cpu.idle"), "0");
    assert_eq!(bench.shown_of_pod("cpu.shares"), "500");
}

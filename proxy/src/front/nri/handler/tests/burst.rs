//! Bursts that an update lowers.

use super::*;

#[tokio::test]
async fn what_an_update_has_lowered_stays_low_until_the_runtime_has_done_it() {
    let (bench, plugin) = plugin();
    let (pod, groups) = saving(&bench, "50000");
    let container = running_and_saving();
    let (pods, containers) = (vec![pod.clone()], vec![container.clone()]);
    plugin.answer(Asked::Synchronize { pods, containers }).await;
    reconcile::pod(&bench.hub, &sandbox()).await;
    let lowered = || {
        let ledger = bench.hub.ledger().borrow();
        ledger.pod(&sandbox()).unwrap().lowered.len()
    };
    let bursts = || {
        let read = |at| bench.tree.read(Controller::Cpu, at, "cpu.cfs_burst_us");
        groups
            .each_ref()
            .map(|at| read(at).unwrap().trim().to_owned())
    };
    assert_eq!(
        (lowered(), bursts()),
        (0, ["50000", "50000"].map(str::to_owned))
    );
    for (quota, burst) in [(40_000, "40000"), (30_000, "30000")] {
        let mut asked = LinuxResources::default();
        asked.cpu.get_or_insert_default().quota = Some(OptionalInt64 { value: quota });
        let update = UpdateContainerRequest {
            pod: Some(pod.clone()),
            container: Some(container.clone()),
            linux_resources: Some(asked),
        };
        plugin.answer(Asked::UpdateContainer(update)).await;
        assert_eq!(
            (lowered(), bursts()),
            (1, [burst, burst].map(str::to_owned))
        );
        let done = Asked::Happened {
            event: Event::PostUpdateContainer,
            pod: Some(pod.clone()),
            container: Some(container.clone()),
        };
        plugin.answer(done).await;
        assert_eq!(lowered(), 0, "after the update to {quota}");
    }
}

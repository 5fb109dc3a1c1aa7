//! Updates that the runtime fails at, of which it tells nothing: it may have written its whole spec before.

use super::*;
use tokio::time::advance;

/// A container whose spec says our shares, which were given back.
async fn given_back() -> (Bench, Handler) {
    let (bench, plugin) = plugin();
    for asked in [
        creation(),
        happened(Event::PostCreateContainer),
        happened(Event::StartContainer),
    ] {
        plugin.answer(asked).await;
    }
    assert_eq!(after_a_look(&bench).await, "512");
    assert!(bench.hub.switch_hook("BatchResource", false));
    assert_eq!(after_a_look(&bench).await, "1024");
    (bench, plugin)
}

fn running() -> Option<Container> {
    Some(Container {
        state: ContainerState::ContainerRunning.into(),
        ..told_container()
    })
}

fn update() -> Asked {
    Asked::UpdateContainer(UpdateContainerRequest {
        pod: Some(told_pod()),
        container: running(),
        linux_resources: Some(shares(1_024)),
    })
}

fn update_done() -> Asked {
    Asked::Happened {
        event: Event::PostUpdateContainer,
        pod: Some(told_pod()),
        container: running(),
    }
}

async fn after_a_look(bench: &Bench) -> String {
    reconcile::pod(&bench.hub, &sandbox()).await;
    bench.shown("cpu.shares")
}

#[tokio::test(start_paused = true)]
async fn what_a_failed_update_has_written_again_is_given_back_again() {
    let (bench, plugin) = given_back().await;
    plugin.answer(update()).await;
    bench.hub.queue().drain();
    // Whether a look comes of it, and what is there after one. The last is when no update is under way any more.
    for (pause, is_due, left) in [
        (10, true, "1024"),
        (139, false, "1024"),
        (1, true, "1024"),
        (1, false, "512"),
    ] {
        bench.write("cpu.shares", "512");
        advance(Duration::from_secs(pause)).await;
        let is_looked_at = bench.hub.queue().drain() == [sandbox()];
        assert_eq!(is_looked_at, is_due, "after {pause} s more");
        assert_eq!(after_a_look(&bench).await, left, "after {pause} s more");
    }
}

#[tokio::test(start_paused = true)]
async fn an_update_that_fails_again_and_again_is_looked_at_all_the_same() {
    let (bench, plugin) = given_back().await;
    for left in ["512", "512", "1024", "1024", "1024"] {
        plugin.answer(update()).await;
        bench.write("cpu.shares", "512");
        advance(Duration::from_secs(4)).await;
        assert_eq!(after_a_look(&bench).await, left);
    }
}

#[tokio::test(start_paused = true)]
async fn updates_that_come_to_their_end_leave_one_look() {
    let (bench, plugin) = given_back().await;
    bench.hub.queue().drain();
    for _ in 0..5 {
        plugin.answer(update()).await;
        plugin.answer(update_done()).await;
    }
    bench.hub.queue().drain();
    let mut looks = 0;
    for _ in 0..200 {
        advance(Duration::from_secs(1)).await;
        if bench.hub.queue().drain() == [sandbox()] {
            looks += 1;
            after_a_look(&bench).await;
        }
    }
    assert_eq!(looks, 1);
}

#[tokio::test(start_paused = true)]
async fn once_the_runtime_has_told_that_it_is_done_who_writes_it_may() {
    let (bench, plugin) = given_back().await;
    plugin.answer(update()).await;
    plugin.answer(update_done()).await;
    assert_eq!(after_a_look(&bench).await, "1024");
    bench.write("cpu.shares", "512");
    assert_eq!(after_a_look(&bench).await, "512");
}

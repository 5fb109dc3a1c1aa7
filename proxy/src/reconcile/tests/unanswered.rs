//! Threads of a pod over which the thread that is about them panics.

use super::*;
use koord_kernel::core_sched::{Cookie, CoreSched, Tid};
use std::{io, thread};

/// A kernel in which a cookie is the end of whoever makes one, but for the `slow` thread, for which it takes
/// longer than one turn.
#[derive(Debug, Default)]
struct Fatal {
    slow: Option<Tid>,
}

impl CoreSched for Fatal {
    fn cookie(&self, _: Tid) -> io::Result<Option<Cookie>> {
        Ok(None)
    }

    fn create(&self, thread: Tid) -> io::Result<()> {
        assert_eq!(Some(thread), self.slow, "of a test");
        thread::sleep(Duration::from_millis(60));
        Ok(())
    }

    fn share(&self, _: Tid, _: Cookie, _: Tid) -> io::Result<()> {
        unreachable!("nobody has a cookie");
    }

    fn clear(&self, _: Tid) -> io::Result<()> {
        unreachable!("nobody has a cookie");
    }
}

#[tokio::test]
async fn a_pod_whose_threads_nobody_answers_for_is_looked_at_again_a_second_later() {
    let tree = FakeTree::new(Generation::V2, 2);
    let bench = Bench::with_cores(tree, Fatal::default()).knowing_pod();
    bench.tree.enter(&bench.container, 11);
    let (hub, queue) = (&bench.hub, bench.hub.queue());
    have_cookies(&bench);
    tokio::time::pause();
    let begun = Instant::now();
    assert!(threads_of_pod(hub, &sandbox()).await);
    assert!(queue.pop_threads().is_none());
    assert!(queue.pop().is_none());
    let next = timeout(Duration::from_secs(30), queue.next()).await;
    assert!(matches!(next, Ok(Work::Pod(of, Part::Whole)) if of == sandbox()));
    let waited = begun.elapsed();
    assert!((1_000..=1_001).contains(&waited.as_millis()), "{waited:?}");

    // Who looks at it meanwhile adds no look to the next one.
    for _ in 0..3 {
        assert!(threads_of_pod(hub, &sandbox()).await);
        tokio::time::advance(Duration::from_millis(100)).await;
    }
    for (millis, is_due) in [(600, false), (150, true), (1_000, false)] {
        tokio::time::advance(Duration::from_millis(millis)).await;
        assert_eq!(queue.pop().is_some(), is_due, "after {millis} ms");
    }
}

#[tokio::test]
async fn so_is_one_of_which_nobody_answers_for_the_rest() {
    let tree = FakeTree::new(Generation::V2, 2);
    let bench = Bench::with_cores(tree, Fatal { slow: Some(12) }).knowing_pod();
    bench.tree.enter(&bench.container, 11);
    let pause = bench.pod.join("sandbox-1").unwrap();
    bench.tree.make(&pause);
    bench.tree.enter(&pause, 12);
    {
        let mut ledger = bench.hub.ledger().borrow_mut();
        ledger.pod_mut(&sandbox()).unwrap().pause = Target::at(Some(pause));
    }
    have_cookies(&bench);
    let queue = bench.hub.queue();
    tokio::time::pause();
    threads_of_pod(&bench.hub, &sandbox()).await;
    assert!(queue.pop_threads().is_none());
    assert!(queue.pop().is_none());
    let next = timeout(Duration::from_secs(30), queue.next()).await;
    assert!(matches!(next, Ok(Work::Pod(of, Part::Whole)) if of == sandbox()));
}

/// Has a policy that calls for cookies, of which nothing was brought to the kernel.
fn have_cookies(bench: &Bench) {
    let (hub, queue) = (&bench.hub, bench.hub.queue());
    hub.list_taken();
    let policies = "policies: {cpuPolicy: coreSched}, beClass: {cpuQOS: {enable: true}}";
    hub.set_node_policy(network_policy(policies));
    while queue.pop().is_some() {}
    while queue.pop_threads().is_some() {}
}

//! Threads of a pod over which the thread that is about them panics.

use super::*;
use koord_kernel::core_sched::{Cookie, CoreSched, Tid};
use std::io;

/// A kernel in which a cookie is the end of whoever makes one.
#[derive(Debug)]
struct Fatal;

impl CoreSched for Fatal {
    fn cookie(&self, _: Tid) -> io::Result<Option<Cookie>> {
        Ok(None)
    }

    fn create(&self, _: Tid) -> io::Result<()> {
        panic!("of a test");
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
    let bench = Bench::with_cores(tree, Fatal).knowing_pod();
    bench.tree.enter(&bench.container, 11);
    let (hub, queue) = (&bench.hub, bench.hub.queue());
    hub.list_taken();
    let policies = "policies: {cpuPolicy: coreSched}, beClass: {cpuQOS: {enable: true}}";
    hub.set_node_policy(network_policy(policies));
    while queue.pop().is_some() {}
    while queue.pop_threads().is_some() {}
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

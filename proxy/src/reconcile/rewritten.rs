//! Hearing of it when systemd writes over what is in force.
//!
//! Where it makes the groups of pods, it writes what it knows of them to the kernel again whenever it loads
//! its units anew (`systemctl daemon-reload`, `enable`, an upgrade of any package with a unit), and that is
//! what kubelet and runtime have told it. It tells nobody. But then it writes to the directory of all pods
//! as well, whose weight nobody writes otherwise, and the kernel tells who watches that file.

use crate::{hub::Hub, ledger::Target, readiness::registered};
use koord_model::{CgroupPath, Setting};
use std::{error::Error, io, os::fd::OwnedFd, rc::Rc, time::Duration};
use tokio::{
    io::{Interest, unix::AsyncFd},
    time::{sleep, timeout},
};
use tracing::debug;

/// How long after its first write everything is looked at. It takes milliseconds for all pods.
const SETTLED: Duration = Duration::from_millis(500);
/// How long after that everything is looked at again, for a machine that is slow.
const AGAIN: Duration = Duration::from_secs(5);
/// How often the directory is looked for: the kubelet may not have made it yet, or makes it again.
const PERIOD: Duration = Duration::from_secs(60);

/// Has everything looked at when systemd has written; never ends.
pub(crate) async fn follow(hub: Rc<Hub>) {
    let mut patience = PERIOD;
    loop {
        let kubepods = hub.policy().node().tiers.kubepods.clone();
        let is_written = match watch(&hub, &kubepods) {
            Some(watch) => timeout(patience, watch.readable()).await.is_ok(),
            None => {
                sleep(patience).await;
                false
            }
        };
        if is_written {
            sleep(SETTLED).await;
            debug!(cgroup = %kubepods, "systemd has written to its units");
        }
        if is_written || patience == AGAIN {
            look_at_everything(&hub);
        }
        patience = if is_written { AGAIN } else { PERIOD };
    }
}

/// What was given back of containers too: what was said of them before has come again.
fn look_at_everything(hub: &Hub) {
    let mut ledger = hub.ledger().borrow_mut();
    for pod in ledger.pods_mut() {
        let targets = pod.containers.iter_mut().map(|it| &mut it.target);
        [&mut pod.pause]
            .into_iter()
            .chain(targets)
            .for_each(Target::runtime_rewrote);
    }
    hub.queue().push_all(&ledger);
}

/// Hears of writes to a directory of systemd's; nothing where it is another's, or not there.
fn watch(hub: &Hub, kubepods: &CgroupPath) -> Option<AsyncFd<OwnedFd>> {
    let is_slice = |name: &str| name.ends_with(".slice");
    if !kubepods.file_name().is_some_and(is_slice) {
        return None;
    }
    let cgroups = hub.writer().cgroups();
    let watch = cgroups.watch(kubepods, Setting::CpuShares);
    let watch = watch.and_then(|watch| registered(watch, Interest::READABLE));
    let told = watch.inspect_err(|error: &io::Error| {
        let error = error as &dyn Error;
        debug!(error, cgroup = %kubepods, "the directory of all pods is not watched");
    });
    told.ok()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{
        hub::testing::{Bench, sandbox},
        reconcile::pod,
    };
    use koord_kernel::{
        cgroup::{Controller, Generation, Tree},
        fake::FakeTree,
    };
    use tokio::{task::LocalSet, time::Instant};

    /// Has `follow` run on a node whose pods are in this directory, and writes to it after a second. When
    /// everything was looked at within the next minute.
    async fn looks_after_a_write(kubepods: &str, generation: Generation, file: &str) -> Vec<u64> {
        let at = CgroupPath::parse(kubepods).unwrap();
        let bench = Bench::with_pod(FakeTree::new(generation, 2)).below(&at);
        bench.tree.make(&at);
        while bench.hub.queue().pop().is_some() {}

        let local = LocalSet::new();
        local.spawn_local(follow(bench.hub.clone()));
        let look = async {
            sleep(Duration::from_secs(1)).await;
            let text = bench.tree.read(Controller::Cpu, &at, file).unwrap();
            let written = bench.tree.write(Controller::Cpu, &at, file, text.trim());
            written.unwrap();
            let (start, mut looks) = (Instant::now(), Vec::new());
            while start.elapsed() < Duration::from_secs(50) {
                let mut is_looked_at = false;
                while bench.hub.queue().pop().is_some() {
                    is_looked_at = true;
                }
                let after = u64::try_from(start.elapsed().as_millis()).unwrap();
                looks.extend(is_looked_at.then_some(after));
                sleep(Duration::from_millis(100)).await;
            }
            looks
        };
        local.run_until(look).await
    }

    #[tokio::test(start_paused = true)]
    async fn once_systemd_has_written_everything_is_looked_at_and_again_a_little_later() {
        for (generation, file) in [
            (Generation::V1, "cpu.shares"),
            (Generation::V2, "cpu.weight"),
        ] {
            let looks = looks_after_a_write("kubepods.slice", generation, file).await;
            assert_eq!(looks.len(), 2, "{looks:?}");
            assert!((500..=700).contains(&looks[0]), "{looks:?}");
            assert!((5_500..=5_800).contains(&looks[1]), "{looks:?}");
        }
    }

    #[tokio::test(start_paused = true)]
    async fn where_the_kubelet_makes_its_directories_itself_nobody_is_heard() {
        let looks = looks_after_a_write("kubepods", Generation::V2, "cpu.weight").await;
        assert_eq!(looks, [0_u64; 0]);
    }

    #[tokio::test]
    async fn what_was_given_back_of_a_container_is_looked_at_again_too() {
        let bench = Bench::with_pod(FakeTree::new(Generation::V1, 2));
        pod(&bench.hub, &sandbox()).await;
        assert_eq!(bench.shown("cpu.shares"), "512");
        bench.hub.switch_all_off();
        pod(&bench.hub, &sandbox()).await;
        assert_eq!(bench.shown("cpu.shares"), "1024");
        // By whom that is, nobody says: it may be their right.
        bench.write("cpu.shares", "512");
        pod(&bench.hub, &sandbox()).await;
        assert_eq!(bench.shown("cpu.shares"), "512");
        look_at_everything(&bench.hub);
        pod(&bench.hub, &sandbox()).await;
        assert_eq!(bench.shown("cpu.shares"), "1024");
    }
}

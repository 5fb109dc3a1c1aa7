//! A thread of ours that hangs in the kernel: the one that writes settings, the one that writes those of
//! block devices, or the one that brings threads of pods into their groups.
//!
//! All that it is for waits for it then, and it cannot say so itself. Whatever waits for it is
//! looked at by `reconcile` before long, which waits without end. So it is while that takes long, and at no
//! other time, that somebody looks whether the thread moves.

use crate::{apply::kernel::Standing, hub::Hub, ledger::Target, log::Name};
use std::{cell::RefCell, pin::pin, time::Duration};
use tokio::time::timeout;
use tracing::{info, warn};

/// How long work takes before it is looked whether the thread moves, and between two looks. It hangs if two
/// in a row find it at the same: one may come right after all of us were stopped for a while.
const LOOK: Duration = Duration::from_secs(2);

/// Which thread it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Of {
    Settings,
    Devices,
    Threads,
}

/// Whether one of the threads hangs.
#[derive(Debug)]
pub(super) struct Hang {
    of: Of,
    /// Where it was at the last look.
    seen: RefCell<Option<Standing>>,
    told: RefCell<Option<Told>>,
}

#[derive(Debug)]
struct Told {
    standing: Standing,
    reason: String,
    is_logged: bool,
}

// === impl Of ===

impl Of {
    /// What a person has to know when it hangs.
    fn hangs(self) -> &'static str {
        match self {
            Self::Settings => {
                "the thread that writes settings stands still: what is to be written waits"
            }
            Self::Devices => {
                "the thread that writes settings of block devices stands still: those of all devices wait"
            }
            Self::Threads => {
                "the thread that brings threads of pods into their groups stands still: they wait"
            }
        }
    }

    fn goes_on(self) -> &'static str {
        match self {
            Self::Settings => "the thread that writes settings goes on",
            Self::Devices => "the thread that writes settings of block devices goes on",
            Self::Threads => "the thread that brings threads of pods into their groups goes on",
        }
    }

    fn name(self) -> &'static str {
        match self {
            Self::Settings => "writer",
            Self::Devices => "devices",
            Self::Threads => "threads",
        }
    }

    fn count(self, hub: &Hub, hangs: bool) {
        match self {
            Self::Settings => hub.metrics().writer_hangs(hangs),
            Self::Devices => hub.metrics().device_writer_hangs(hangs),
            Self::Threads => hub.metrics().thread_groups_hang(hangs),
        }
    }

    fn standing(self, hub: &Hub) -> Option<Standing> {
        match self {
            Self::Settings => hub.writer().standing(),
            Self::Devices => hub.writer().standing_of_devices(),
            Self::Threads => hub.writer().standing_of_threads(),
        }
    }
}

// === impl Hang ===

impl Hang {
    pub(super) fn new(of: Of) -> Self {
        Self {
            of,
            seen: RefCell::default(),
            told: RefCell::default(),
        }
    }

    /// What a person should know; `None` once it has moved.
    pub(super) fn remark(&self, hub: &Hub) -> Option<String> {
        let told = self.told.borrow();
        let told = told.as_ref().filter(|told| told.lasts(hub, self.of))?;
        Some(format!("{} ({})", self.of.hangs(), told.reason))
    }

    fn look(&self, hub: &Hub) {
        self.settle(hub);
        let now = self.of.standing(hub);
        let before = self.seen.replace(now.clone());
        let is_told = self.told.borrow().is_some();
        match now {
            Some(standing) if before.as_ref() == Some(&standing) && !is_told => {
                self.tell(hub, standing);
            }
            _ => {}
        }
    }

    fn tell(&self, hub: &Hub, standing: Standing) {
        self.of.count(hub, true);
        let reason = reason(hub, &standing);
        // What ties the kernel up may do so again and again.
        let may = hub.may_complain("-", self.of.name());
        if let Some(suppressed) = may {
            let hangs = self.of.hangs();
            warn!(reason, suppressed, "{hangs}");
        }
        self.told.replace(Some(Told {
            standing,
            reason,
            is_logged: may.is_some(),
        }));
    }

    /// Says that it has moved, if it has.
    fn settle(&self, hub: &Hub) {
        let of = self.of;
        let moved = (self.told.borrow_mut()).take_if(|told| !told.lasts(hub, of));
        let Some(told) = moved else {
            return;
        };
        self.of.count(hub, false);
        if told.is_logged {
            let goes_on = self.of.goes_on();
            info!("{goes_on}");
        }
    }
}

// === impl Told ===

impl Told {
    fn lasts(&self, hub: &Hub, of: Of) -> bool {
        of.standing(hub).as_ref() == Some(&self.standing)
    }
}

/// Does some work, and looks whether the thread moves where that takes long.
pub(super) async fn watched(hub: &Hub, hang: &Hang, work: impl Future<Output = ()>) {
    let mut work = pin!(work);
    while timeout(LOOK, &mut work).await.is_err() {
        hang.look(hub);
    }
    hang.settle(hub);
}

/// Where it stands, as people call it.
fn reason(hub: &Hub, Standing { at, setting, .. }: &Standing) -> String {
    let ledger = hub.ledger().borrow();
    let is_there = |target: &Target| target.at.as_ref() == Some(at);
    let pod = ledger.pods().find(|pod| {
        let mut containers = pod.containers.iter();
        let own = [&pod.own, &pod.pause].into_iter().any(is_there);
        own || containers.any(|container| is_there(&container.target))
    });
    match pod {
        Some(pod) => {
            let (namespace, name) = (Name(&pod.view.namespace), Name(&pod.view.name));
            format!("it stands at {setting} of {namespace}/{name}, in {at}")
        }
        None => format!("it stands at {setting} in {at}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::hub::testing::{Bench, sandbox};
    use koord_kernel::{
        cgroup::{Change, Generation},
        fake::{FakeDisks, FakeTree},
    };
    use koord_model::{Block, BlockName, IoRate, Value};
    use std::{sync::mpsc, time::Instant};
    use tokio::time::sleep;

    const METRIC: &str = "koord_runtime_proxy_writer_hangs";

    fn has(bench: &Bench, line: &str) -> bool {
        let metrics = bench.hub.metrics().encode().unwrap();
        metrics.lines().any(|found| found == line)
    }

    #[tokio::test(start_paused = true)]
    async fn a_write_that_hangs_is_told_by_its_place_until_it_goes_on() {
        // Limits of memory are written once the test says so, those of what is deeper first.
        let (go_on, done) = mpsc::channel();
        let bench = Bench::reclaiming(FakeTree::new(Generation::V2, 2), done).knowing_pod();
        let hub = &bench.hub;
        let remark = || hub.queue().hang_remarks(hub).next();
        let test = async {
            let place = "default/batch, in /kubepods/besteffort/poduid-1/container-1)";
            let is_there = |it: String| it.starts_with(Of::Settings.hangs()) && it.ends_with(place);
            let is_told = || remark().is_some_and(is_there);
            let begun = Instant::now();
            // The clock here runs ahead of the thread, which may be told at other places before.
            while !is_told() {
                let is_late = begun.elapsed() > Duration::from_secs(30);
                assert!(!is_late, "{:?}", remark());
                sleep(LOOK).await;
            }
            assert!(has(&bench, &format!("{METRIC} 1")));
            for _ in 0..8 {
                go_on.send(()).unwrap();
            }
        };
        let sandbox = sandbox();
        let work = crate::reconcile::pod(hub, &sandbox);
        tokio::join!(watched(hub, &hub.queue().hang, work), test);
        assert_eq!(remark(), None);
        assert!(has(&bench, &format!("{METRIC} 0")));
    }

    #[tokio::test(start_paused = true)]
    async fn a_device_that_does_not_answer_is_told_until_it_does() {
        let directory = tempfile::tempdir().unwrap();
        let disks = FakeDisks::new(directory.path());
        let tree = FakeTree::new(Generation::V2, 2);
        let number = "252:16".parse().unwrap();
        disks.disk("vdb", number);
        tree.add_device(number);
        let (go_on, done) = mpsc::channel();
        let bench = Bench::with_slow_devices(tree, disks.devices(), done);
        let hub = &bench.hub;
        let remark = || hub.queue().hang_remarks(hub).next();
        let disk = Block::Device(BlockName::device("/dev/vdb").unwrap());
        let rates = [(disk, IoRate::new(5).unwrap())];
        let change = Change {
            at: bench.pod.clone(),
            value: Value::IoReadBps(rates.into_iter().collect()),
            gives_back: false,
            of_container: false,
            may_return: false,
        };
        let work = async {
            let written = hub.writer().write_devices(vec![change], Vec::new());
            assert!(written.await[0].applied.is_ok());
        };
        let test = async {
            let begun = Instant::now();
            // As above.
            while remark().is_none() {
                assert!(begun.elapsed() < Duration::from_secs(30));
                sleep(LOOK).await;
            }
            let told = remark().unwrap();
            assert!(told.starts_with(Of::Devices.hangs()), "{told}");
            assert!(has(&bench, "koord_runtime_proxy_device_writer_hangs 1"));
            assert!(has(&bench, &format!("{METRIC} 0")));
            go_on.send(()).unwrap();
        };
        tokio::join!(watched(hub, &hub.queue().device_hang, work), test);
        assert_eq!(remark(), None);
        assert!(has(&bench, "koord_runtime_proxy_device_writer_hangs 0"));
    }

    #[tokio::test(start_paused = true)]
    async fn work_that_takes_long_without_that_thread_tells_nothing() {
        let bench = Bench::with_pod(FakeTree::new(Generation::V2, 2));
        watched(&bench.hub, &bench.hub.queue().hang, sleep(LOOK * 10)).await;
        assert_eq!(bench.hub.queue().hang_remarks(&bench.hub).next(), None);
        assert!(has(&bench, &format!("{METRIC} 0")));
    }
}

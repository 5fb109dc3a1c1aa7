//! A node with a kubelet whose pods come and go while its parts are ended and started again.

use crate::failure::{cut_off_in_calm, ended_by_us, lines};
use anyhow::{Context, Result, ensure};
use koord_integration::{
    Front, Node, ProxyOptions,
    churn::{Living, living, pod},
    classes::{self, PodSpecOf},
    promise,
    static_pod::manifest,
};
use koord_testkit::{
    ContainerdVersion, Kubelet,
    cri::CriClient,
    poll::{wait_patiently, wait_until},
};
use serde_json::json;
use std::{
    thread,
    time::{Duration, Instant},
};

/// Pods that are there from the beginning to the end, one of each class.
const STAYING: usize = 4;
/// Others at a time.
const PASSING: usize = 3;
/// From the end of the proxy, or the return of another, until every container has its values, as promised.
const MOST: Duration = Duration::from_secs(2);
/// Before the service manager starts again what it stopped (`RestartSec` of the unit).
const PAUSE: Duration = Duration::from_millis(500);

/// The kubelet is connected by then to whatever was ended last: it pauses for three seconds at most
/// between two attempts.
const CALM: Duration = Duration::from_secs(10);
/// The number of a pod that comes then.
const LATE: usize = 101;

/// The numbers of a pod that takes long to stop and of one that comes meanwhile.
const SLOW: usize = 5;
const NEWCOMER: usize = 6;
/// How long the former has: twice as long as a kubelet waits for a word on a new connection, and more.
const LONG: Duration = Duration::from_secs(12);
/// What it runs: says that it was asked to end, and goes on. What a first process has no trap for does not
/// reach it.
const STUBBORN: &str = "trap 'echo asked' TERM; echo alive; while :; do sleep 0.2; done";

#[derive(Clone, Copy, Debug)]
pub(super) enum Part {
    Proxy,
    Runtime,
    Kubelet,
}

/// How a part is ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub(super) enum End {
    /// With signal 9.
    Kill,
    /// With SIGTERM, as a service manager does.
    Stop,
}

/// What is ended one after the other, and how. Who stops has the proxy's socket, too, as systemd has it.
#[derive(Clone, Copy, Debug)]
pub(super) struct Script {
    pub(super) runtime: ContainerdVersion,
    pub(super) end: End,
    pub(super) parts: [Part; 6],
}

/// When parts were ended.
pub(super) struct Ends {
    /// Lines that the kubelet had logged before the first.
    lines_before: usize,
    last: Instant,
}

/// Pods of which one kind stays and the others come and go.
pub(super) struct Stage {
    script: Script,
    with_us: bool,
    pub(super) node: Node,
    pub(super) kubelet: Kubelet,
    pub(super) staying: Vec<PodSpecOf>,
    passing: Vec<PodSpecOf>,
    gone: Vec<PodSpecOf>,
}

/// Whether the kubelet says that the pod is ready, however often it was started.
fn is_ready(kubelet: &Kubelet, pod: &PodSpecOf) -> bool {
    let name = format!("{}-node", pod.name);
    kubelet.pods().is_ok_and(|pods| {
        let pod = pods.iter().find(|it| it["metadata"]["name"] == *name);
        pod.is_some_and(|it| it["status"]["containerStatuses"][0]["ready"] == true)
    })
}

// === impl Stage ===

impl Stage {
    /// With us as this front, or without us.
    pub(super) fn start(front: Option<Front>, script: Script) -> Result<Self> {
        let share_pool = classes::share_pool()?;
        let front_or_any = front.unwrap_or_default();
        let options = ProxyOptions {
            policy: Some(classes::node_policy(&share_pool)),
            args: ["--feature-gates", classes::FEATURE_GATES]
                .map(str::to_owned)
                .into(),
            front: front_or_any,
            as_shipped: true,
            handed_over: front_or_any == Front::Cri && script.end == End::Stop,
            ..ProxyOptions::default()
        };
        let mut node = Node::start(script.runtime, options)?;
        let runtime = match front {
            Some(_) => node.socket(),
            None => {
                node.proxy.stop()?;
                node.runtime.socket()
            }
        };
        let kubelet = Kubelet::start(node.testbed(), &runtime, json!({}))?;
        let staying: Vec<_> = (0..STAYING)
            .map(|number| pod(number, &share_pool))
            .collect();
        for pod in &staying {
            let mut manifest = manifest(pod);
            let talk = "while :; do echo alive; sleep 0.2; done";
            manifest["spec"]["containers"][0]["command"] = json!(["sh", "-c", talk]);
            kubelet.apply(&manifest)?;
        }
        Ok(Self {
            script,
            with_us: front.is_some(),
            node,
            kubelet,
            staying,
            passing: Vec::new(),
            gone: Vec::new(),
        })
    }

    /// Has a pod come, and the oldest go where there are too many.
    fn pass(&mut self, number: usize, share_pool: &str) -> Result<()> {
        let pod = pod(number, share_pool);
        self.kubelet.apply(&manifest(&pod))?;
        self.passing.push(pod);
        if self.passing.len() > PASSING {
            let oldest = self.passing.remove(0);
            self.kubelet.remove(&oldest.name)?;
            self.gone.push(oldest);
        }
        Ok(())
    }

    /// Ends one after the other amid pods that come and go, and says when. Each time every container soon
    /// has its values.
    pub(super) fn stir(&mut self) -> Result<Ends> {
        let share_pool = classes::share_pool()?;
        // They ask for so little that they have room beside those that are about to end.
        let is_small = |number: &usize| !number.is_multiple_of(4);
        let mut numbers = (STAYING..).filter(is_small);
        let mut last = Instant::now();
        let mut lines_before = None;
        for (number, part) in (0_u64..).zip(self.script.parts) {
            for number in numbers.by_ref().take(2) {
                self.pass(number, &share_pool)?;
            }
            // At another moment of their starts each time; the kubelet sees manifests at once.
            thread::sleep(Duration::from_millis(150 + number * 230 % 700));
            lines_before.get_or_insert_with(|| lines(&self.kubelet));
            last = Instant::now();
            let end = self.script.end;
            let since = self
                .restart(part)
                .with_context(|| format!("{end:?} {part:?}"))?;
            if self.with_us {
                let alive = self.await_values();
                let what = format!("{alive} containers have their values after {end:?} {part:?}");
                promise::within(&what, since.elapsed(), MOST)?;
            }
        }
        Ok(Ends {
            lines_before: lines_before.unwrap_or_default(),
            last,
        })
    }

    /// Ends a part and starts it again. Answers from when on every container is to have its values: that
    /// our kill or our next start began, or that the other part was there again.
    fn restart(&mut self, part: Part) -> Result<Instant> {
        let (node, kubelet) = (&mut self.node, &mut self.kubelet);
        let mut since = Instant::now();
        match (part, self.script.end) {
            // There is none in a churn without us.
            (Part::Proxy, _) if node.proxy.pid().is_none() => return Ok(since),
            (Part::Proxy, End::Kill) => node.proxy.kill9()?,
            (Part::Proxy, End::Stop) => {
                let status = node.proxy.stop()?;
                ensure!(status.success(), "the proxy stopped with {status}");
                thread::sleep(PAUSE);
                since = Instant::now();
            }
            (Part::Runtime, End::Kill) => node.runtime.kill9()?,
            (Part::Runtime, End::Stop) => node.runtime.stop()?,
            (Part::Kubelet, End::Kill) => kubelet.kill()?,
            (Part::Kubelet, End::Stop) => kubelet.stop()?,
        }
        match part {
            Part::Proxy => {
                node.launch_proxy()?;
                return Ok(since);
            }
            Part::Runtime => node.runtime.restart()?,
            Part::Kubelet => kubelet.launch(node.testbed())?,
        }
        Ok(Instant::now())
    }

    /// Restarts the proxy while the kubelet has a container stopped that does not end when asked to. Another
    /// pod comes meanwhile.
    pub(super) fn restart_amid_a_stop(&mut self) -> Result<()> {
        let share_pool = classes::share_pool()?;
        let slow = pod(SLOW, &share_pool);
        let mut manifest = manifest(&slow);
        manifest["spec"]["terminationGracePeriodSeconds"] = json!(LONG.as_secs());
        manifest["spec"]["containers"][0]["command"] = json!(["sh", "-c", STUBBORN]);
        self.kubelet.apply(&manifest)?;
        self.passing.push(slow.clone());
        self.settle();
        self.await_word(&slow, "alive");

        let removed = Instant::now();
        self.kubelet.remove(&slow.name)?;
        self.gone.append(&mut self.passing);
        // By that word the runtime is at the call.
        self.await_word(&slow, "asked");
        self.node.proxy.send_stop()?;
        wait_until("the proxy drains", || {
            self.node.proxy.log().contains("draining")
        });
        self.pass(NEWCOMER, &share_pool)?;
        let status = self.node.proxy.wait()?;
        let took = removed.elapsed();
        ensure!(status.success(), "the proxy stopped with {status}");
        ensure!(took >= LONG, "a call was in flight at its end: {took:?}");
        thread::sleep(PAUSE);
        self.node.launch_proxy()
    }

    /// Waits until the pod's container has written that.
    fn await_word(&self, pod: &PodSpecOf, word: &str) {
        wait_until(&format!("{} says {word:?}", pod.name), || {
            let log = self.kubelet.container_log(&pod.name, pod.pod.uid(), "main");
            log.contains(word)
        });
    }

    /// Has one more pod come when all is calm again. What was cut off then, or before the first end, was
    /// so by none of them, and nothing else is to have been ended by us.
    pub(super) fn stay_calm(&mut self, ends: &Ends) -> Result<()> {
        thread::sleep(CALM.saturating_sub(ends.last.elapsed()));
        let after = lines(&self.kubelet);
        self.pass(LATE, &classes::share_pool()?)?;
        self.settle();
        let log = self.kubelet.log();
        let cut_off = cut_off_in_calm(&log, ends.lines_before, after);
        ensure!(cut_off.is_empty(), "nothing cut these off: {cut_off:#?}");
        let ended = ended_by_us(&self.node)?;
        ensure!(ended.is_empty(), "the proxy ended of itself: {ended:#?}");
        Ok(())
    }

    /// How many containers run, if every one of them has its values.
    fn all_right(&self) -> Option<usize> {
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .ok()?;
        let share_pool = classes::share_pool().ok()?;
        let living = tokio.block_on(async {
            let client = CriClient::connect(&self.node.runtime.socket()).await?;
            living(&client, &self.node.cgroups, &share_pool).await
        });
        let living = living.ok()?;
        let mut wrong = living.iter().map(Living::wrong);
        wrong.all(|it| it.is_empty()).then_some(living.len())
    }

    /// Waits until every container has its values, and says how many there are.
    fn await_values(&self) -> usize {
        let mut alive = None;
        wait_until("every container has its values", || {
            alive = self.all_right();
            alive.is_some()
        });
        alive.unwrap_or_default()
    }

    /// Waits until what is wanted is there, and nothing else.
    pub(super) fn settle(&self) {
        for pod in self.staying.iter().chain(&self.passing) {
            let what = format!("{} is ready", pod.name);
            wait_patiently(&what, || is_ready(&self.kubelet, pod));
        }
        wait_patiently("the groups of removed pods are gone", || {
            self.gone.iter().all(|pod| {
                let cgroup = self.node.cgroups.existing_pod(pod.pod.uid(), pod.qos);
                !cgroup.directory("cpu").exists()
            })
        });
        if self.with_us {
            wait_patiently("all have their values", || self.all_right().is_some());
        }
    }
}

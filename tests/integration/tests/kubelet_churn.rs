//! A real kubelet whose pods come and go while proxy, runtime and kubelet are killed in turn: what
//! runs stays as it is, what is wanted gets there, and no pod fails for a reason of ours. What fails at
//! all is held against the same churn without us.
//!
//! A call that was cut off is taken for a kill's doing between the first kill and some seconds after the
//! last, and for ours at any other time. Which time that is, the place of its line in the kubelet's log
//! says: the times there have neither year nor zone.

use anyhow::{Context, Result, anyhow, ensure};
use koord_integration::{
    Front, Node, ProxyOptions,
    churn::{Living, living, pod},
    classes::{self, PodSpecOf},
    promise,
    static_pod::{manifest, settled},
};
use koord_testkit::{
    ContainerdVersion, Kubelet,
    cri::CriClient,
    poll::{wait_patiently, wait_until},
};
use serde_json::json;
use std::{
    collections::{BTreeMap, BTreeSet},
    env,
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

/// Pods that are there from the beginning to the end, one of each class.
const STAYING: usize = 4;
/// Others at a time.
const PASSING: usize = 3;
/// From the last kill until every container has its values, as promised.
const MOST: Duration = Duration::from_secs(2);

/// The kubelet is connected by then to whatever was killed last: it pauses for three seconds at most
/// between two attempts.
const CALM: Duration = Duration::from_secs(10);
/// The number of a pod that comes then.
const LATE: usize = 101;

/// What is in a line of a kubelet that could not do something for a pod.
const FAILED: &str = "Error syncing pod";

/// What counts connections that the proxy ends of itself.
const ENDED_BY_US: [&str; 3] = [
    "violations",
    "connections_refused",
    "connections_asked_to_go",
];

/// What its log says where it does so, or where something of it died.
const DIED: [&str; 5] = [
    "closed a connection",
    "a connection's task died",
    "a decision died",
    "an answer died",
    "a thread panicked",
];

/// What is in an error of which we are the cause: our own replies to clients, and those to a runtime.
const OURS: &[&str] = &["FailedPrecondition", "hook", "NRI", "nri", "plugin"];

/// What is in that of a call which a kill cut off, or which came before the next process was there: the
/// killed one's own, whichever it was.
const CUT_OFF: &[&str] = &[
    "EOF",
    "broken pipe",
    "connect: ",
    "connection reset",
    "transport is closing",
    "use of closed network connection",
];

/// What is in that of a kubelet which misses a file of its own: no runtime was asked. One that is killed
/// while it starts a pod which is to go has made half of the pod's places, or removed half of them.
const OF_ITS_OWN: [&str; 2] = ["open /", "/kubelet/root/pods/"];

/// What is in that of a kubelet which waits, because what it did for the pod before failed.
const WAITS: &str = "CrashLoopBackOff";

/// Runs without us in which a kind of failure may show. Which calls are under way at a kill is chance.
const RUNS_WITHOUT: usize = 3;

#[derive(Clone, Copy, Debug)]
enum Victim {
    Proxy,
    Runtime,
    Kubelet,
}

/// The proxy no more than twice: of three crashes within a minute it would think the worse of itself.
const KILLS: [Victim; 6] = [
    Victim::Proxy,
    Victim::Runtime,
    Victim::Kubelet,
    Victim::Runtime,
    Victim::Kubelet,
    Victim::Proxy,
];

/// Kills one with signal 9 and starts it again.
fn kill(victim: Victim, node: &mut Node, kubelet: &mut Kubelet) -> Result<()> {
    match victim {
        // There is none in a churn without us.
        Victim::Proxy if node.proxy.pid().is_none() => Ok(()),
        Victim::Proxy => {
            node.proxy.kill9()?;
            node.launch_proxy()
        }
        Victim::Runtime => {
            node.containerd.kill9()?;
            Ok(node.containerd.restart()?)
        }
        Victim::Kubelet => {
            kubelet.kill()?;
            Ok(kubelet.launch(node.testbed())?)
        }
    }
}

/// When kills were.
struct Kills {
    /// Lines that the kubelet had logged before the first.
    lines_before: usize,
    last: Instant,
}

/// What the kubelet could not do for a pod.
fn failures(kubelet: &Kubelet) -> Vec<String> {
    let log = kubelet.log();
    let errors = log.lines().filter(|it| it.contains(FAILED));
    errors.map(str::to_owned).collect()
}

/// How many lines the kubelet has logged.
fn lines(kubelet: &Kubelet) -> usize {
    kubelet.log().lines().count()
}

fn is_cut_off(line: &str) -> bool {
    CUT_OFF.iter().any(|it| line.contains(it))
}

/// The failures of calls that were cut off in the first `before` lines of a kubelet's log, or behind
/// `after` of them.
fn cut_off_in_calm(log: &str, before: usize, after: usize) -> Vec<&str> {
    let calm = log.lines().enumerate();
    let calm = calm.filter(|(number, _)| *number < before || *number >= after);
    let failed = calm.filter(|(_, line)| line.contains(FAILED) && is_cut_off(line));
    failed.map(|(_, line)| line).collect()
}

/// What the proxy has ended of itself, and what of it has died: counted by the last of its processes, or
/// told by any of them.
fn ended_by_us(node: &Node) -> Result<Vec<String>> {
    let mut ended = Vec::new();
    for name in ENDED_BY_US {
        let metric = format!("koord_runtime_proxy_{name}_total");
        let count = node.proxy.metric(&metric, &[])?;
        if count > 0.5 {
            ended.push(format!("{metric} {count}"));
        }
    }
    let log = node.proxy.log();
    let died = log.lines();
    let died = died.filter(|line| DIED.iter().any(|it| line.contains(it)));
    ended.extend(died.map(str::to_owned));
    Ok(ended)
}

/// What kind of failure a line tells of, whichever pod it was; none if it is of a call that was cut off,
/// or of no call.
fn kind(line: &str) -> Option<String> {
    let of_its_own = OF_ITS_OWN.iter().all(|it| line.contains(it));
    if of_its_own || is_cut_off(line) {
        return None;
    }
    let (_, error) = line.split_once("err=").unwrap_or(("", line));
    let (error, _) = error.split_once("\" pod=").unwrap_or((error, ""));
    // Names, ids, times and paths have digits or slashes.
    let words = error.split(|it: char| it.is_whitespace() || "\\\"'()[]{}:,;".contains(it));
    let plain =
        |it: &&str| !it.is_empty() && !it.contains(|c: char| c.is_ascii_digit() || c == '/');
    Some(words.filter(plain).collect::<Vec<_>>().join(" "))
}

/// The pod that a line is of, as it ends with.
fn pod_of(line: &str) -> Option<&str> {
    line.rsplit_once("\" pod=").map(|(_, pod)| pod)
}

/// The kinds of these failures, each with one that is of it. A wait is of none if something of its pod
/// failed before: that is judged by itself. Of a start that was cut off the runtime makes a container
/// that has ended, so that one more call cut off has the kubelet wait.
fn kinds(failures: &[String]) -> BTreeMap<String, String> {
    let mut failed = BTreeSet::new();
    let mut kinds = BTreeMap::new();
    for line in failures {
        let follows = line.contains(WAITS) && failed.contains(&pod_of(line));
        if !line.contains(WAITS) {
            failed.insert(pod_of(line));
        }
        if let Some(kind) = kind(line).filter(|_| !follows) {
            kinds.insert(kind, line.clone());
        }
    }
    kinds
}

/// What has failed in churns without us.
#[derive(Default)]
struct Without {
    runs: usize,
    kinds: BTreeSet<String>,
}

/// Set to have the churn without us run where no failure asks for it, too.
const ALWAYS: &str = "KOORD_CHURN_WITHOUT";

/// Failures of which the same churn without us has none of the kind. It is run when there is a kind to be
/// held against it, and again for what it has not shown yet; all tests share its runs.
fn without_precedent(failures: &[String]) -> Result<BTreeMap<String, String>> {
    static WITHOUT: Mutex<Option<Without>> = Mutex::new(None);
    let mut without = WITHOUT
        .lock()
        .map_err(|_| anyhow!("a run without us failed"))?;
    let without = without.get_or_insert_default();
    let mut unknown = kinds(failures);
    loop {
        unknown.retain(|kind, _| !without.kinds.contains(kind));
        let enough = without.runs > 0 || env::var_os(ALWAYS).is_none();
        if unknown.is_empty() && enough || without.runs == RUNS_WITHOUT {
            return Ok(unknown);
        }
        let mut stage = Stage::start(None)?;
        stage.settle();
        stage.stir()?;
        stage.settle();
        let failures = self::failures(&stage.kubelet);
        println!("{} syncs failed without us: {failures:#?}", failures.len());
        without.kinds.extend(kinds(&failures).into_keys());
        without.runs += 1;
    }
}

/// Whether the kubelet says that the pod is ready, however often it was started.
fn is_ready(kubelet: &Kubelet, pod: &PodSpecOf) -> bool {
    let name = format!("{}-node", pod.name);
    kubelet.pods().is_ok_and(|pods| {
        let pod = pods.iter().find(|it| it["metadata"]["name"] == *name);
        pod.is_some_and(|it| it["status"]["containerStatuses"][0]["ready"] == true)
    })
}

/// Pods of which one kind stays and the others come and go.
struct Stage {
    with_us: bool,
    node: Node,
    kubelet: Kubelet,
    staying: Vec<PodSpecOf>,
    passing: Vec<PodSpecOf>,
    gone: Vec<PodSpecOf>,
}

// === impl Stage ===

impl Stage {
    /// With us as this front, or without us.
    fn start(front: Option<Front>) -> Result<Self> {
        let share_pool = classes::share_pool()?;
        let options = ProxyOptions {
            policy: Some(classes::node_policy(&share_pool)),
            args: ["--feature-gates", classes::FEATURE_GATES]
                .map(str::to_owned)
                .into(),
            front: front.unwrap_or_default(),
            as_shipped: true,
            ..ProxyOptions::default()
        };
        let mut node = Node::start(ContainerdVersion::V2, options)?;
        let runtime = match front {
            Some(_) => node.socket(),
            None => {
                node.proxy.stop()?;
                node.containerd.socket()
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

    /// Kills one after the other amid pods that come and go, and says when.
    fn stir(&mut self) -> Result<Kills> {
        let share_pool = classes::share_pool()?;
        // They ask for so little that they have room beside those that are about to end.
        let is_small = |number: &usize| !number.is_multiple_of(4);
        let mut numbers = (STAYING..).filter(is_small);
        let mut last = Instant::now();
        let mut lines_before = None;
        for (number, victim) in (0_u64..).zip(KILLS) {
            for number in numbers.by_ref().take(2) {
                self.pass(number, &share_pool)?;
            }
            // At another moment of their starts each time; the kubelet sees manifests at once.
            thread::sleep(Duration::from_millis(150 + number * 230 % 700));
            lines_before.get_or_insert_with(|| lines(&self.kubelet));
            last = Instant::now();
            kill(victim, &mut self.node, &mut self.kubelet)
                .with_context(|| format!("kill {victim:?}"))?;
        }
        Ok(Kills {
            lines_before: lines_before.unwrap_or_default(),
            last,
        })
    }

    /// Has one more pod come when all is calm again. What was cut off then, or before the first kill, is
    /// no kill's doing, and nothing else is to have been ended by us.
    fn stay_calm(&mut self, kills: &Kills) -> Result<()> {
        thread::sleep(CALM.saturating_sub(kills.last.elapsed()));
        let after = lines(&self.kubelet);
        self.pass(LATE, &classes::share_pool()?)?;
        self.settle();
        let log = self.kubelet.log();
        let cut_off = cut_off_in_calm(&log, kills.lines_before, after);
        ensure!(cut_off.is_empty(), "no kill cut these off: {cut_off:#?}");
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
            let client = CriClient::connect(&self.node.containerd.socket()).await?;
            living(&client, &self.node.cgroups, &share_pool).await
        });
        let living = living.ok()?;
        let mut wrong = living.iter().map(Living::wrong);
        wrong.all(|it| it.is_empty()).then_some(living.len())
    }

    /// Waits until what is wanted is there, and nothing else.
    fn settle(&self) {
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

/// What fails with us alone may be rare and no more: what we cause shows again.
fn outlives_kills(front: Front) -> Result<()> {
    let mut with_us = churn(front)?;
    if !with_us.is_empty() {
        println!("with us alone, for now: {with_us:#?}");
        let again = churn(front)?;
        with_us.retain(|kind, _| again.contains_key(kind));
    }
    ensure!(with_us.is_empty(), "these fail with us alone: {with_us:#?}");
    Ok(())
}

/// The failures of which a churn without us has none of the kind.
fn churn(front: Front) -> Result<BTreeMap<String, String>> {
    let mut stage = Stage::start(Some(front))?;
    let staying = |stage: &Stage| settled(&stage.node.cgroups, &stage.kubelet, &stage.staying);
    let before = staying(&stage);
    let kills = stage.stir()?;
    let mut alive = None;
    wait_until("every container has its values", || {
        alive = stage.all_right();
        alive.is_some()
    });
    let what = format!("{alive:?} containers have their values after the last kill");
    promise::within(&what, kills.last.elapsed(), MOST)?;

    assert_eq!(
        staying(&stage),
        before,
        "what ran from the beginning runs on"
    );
    stage.settle();
    stage.stay_calm(&kills)?;
    let kubelet = &stage.kubelet;
    let talking = format!("default/{}-node/main", stage.staying[0].name);
    let logs = kubelet.ask("GET", &format!("/containerLogs/{talking}?tailLines=1"))?;
    ensure!(logs.contains("alive"), "its log says {logs:?}");
    let said = kubelet.ask("POST", &format!("/run/{talking}?cmd=echo%20hello"))?;
    ensure!(said.contains("hello"), "a command says {said:?}");

    let failures = failures(kubelet);
    println!("{} syncs failed: {failures:#?}", failures.len());
    let is_ours = |line: &&String| OURS.iter().any(|it| line.contains(it));
    let ours: Vec<_> = failures.iter().filter(is_ours).collect();
    ensure!(ours.is_empty(), "pods failed because of us: {ours:#?}");
    without_precedent(&failures)
}

#[test]
fn a_kubelets_churn_outlives_kills_of_all_three() -> Result<()> {
    outlives_kills(Front::Cri)
}

#[test]
fn a_kubelets_churn_outlives_kills_of_all_three_by_nri() -> Result<()> {
    outlives_kills(Front::Nri)
}

#[test]
fn failures_are_of_one_kind_whichever_pod_they_are_of() {
    let line = |call: &str, id: &str, why: &str| {
        format!(
            "E1122 01:02:03.4 1 pod_workers.go:1324] \"Error syncing pod, skipping\" err=\"failed to \\\"{call}\\\" \
             for \\\"main\\\": rpc error: code = Unknown desc = {why} {id}\" pod=\"default/churn-{id}\""
        )
    };
    let first = kind(&line("StartContainer", "5f", "no container"));
    assert_eq!(
        first.as_deref(),
        Some("failed to StartContainer for main rpc error code = Unknown desc = no container")
    );
    assert_eq!(kind(&line("StartContainer", "77", "no container")), first);
    assert_ne!(kind(&line("StopContainer", "5f", "no container")), first);
    assert_eq!(kind(&line("StartContainer", "5f", "read: EOF")), None);
    let missing = "open /tmp/it/kubelet/root/pods/uid/etc-hosts: no such file";
    assert_eq!(kind(&line("StartContainer", "5f", missing)), None);
}

#[test]
fn a_call_that_was_cut_off_before_the_kills_or_long_after_them_was_so_by_none() {
    let line = |why: &str| format!("E1122 \"Error syncing pod, skipping\" err=\"{why}\"\n");
    let (cut_off, other) = (line("read: EOF"), line("no image"));
    let log = format!("{cut_off}I1122 EOF\n{cut_off}{cut_off}{other}");
    let found = |before, after| cut_off_in_calm(&log, before, after).len();
    assert_eq!(found(0, 4), 0);
    assert_eq!(found(1, 4), 1);
    assert_eq!(found(0, 3), 1);
    assert_eq!(found(1, 2), 3);
}

#[test]
fn a_wait_is_judged_where_nothing_of_its_pod_failed_before() {
    let line = |pod: &str, call: &str, why: &str| {
        format!(
            "E1122 \"Error syncing pod, skipping\" err=\"failed to \\\"{call}\\\": {why}\" pod=\"default/{pod}\""
        )
    };
    let cut_off = line("churn-1", "StartContainer", "read: EOF");
    let waits = |pod| line(pod, "StartContainer", "CrashLoopBackOff");
    let kinds = |lines: &[String]| kinds(lines).into_keys().collect::<Vec<_>>();
    let none: Vec<String> = Vec::new();
    assert_eq!(kinds(&[cut_off.clone(), waits("churn-1")]), none);
    let waited = ["failed to StartContainer CrashLoopBackOff".to_owned()];
    assert_eq!(kinds(&[cut_off.clone(), waits("churn-2")]), waited);
    assert_eq!(kinds(&[waits("churn-1"), waits("churn-1")]), waited);
    assert_eq!(kinds(&[waits("churn-1"), cut_off]), waited);
}

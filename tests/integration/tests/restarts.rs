//! The runtime restarted again and again under a plugin, with pods running and pods being made: the
//! plugin is back each time, once, and neither a pod's start nor a value is lost by it.

use anyhow::{Context, Result, anyhow, ensure};
use koord_integration::{
    Front, Node, ProxyOptions, RunningPod,
    churn::{Living, is_left_by_a_kill, living, pod},
    classes, promise,
};
use koord_testkit::{
    ContainerdVersion, PodCgroups, Runtime, RuntimeKind,
    cri::CriClient,
    poll::{wait_patiently, wait_until},
};
use std::{
    collections::{BTreeSet, VecDeque},
    fs,
    path::Path,
    sync::{
        Arc, Weak,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    thread,
    time::{Duration, SystemTime},
};

/// The runtime is killed and asked to stop in turn.
const RESTARTS: u32 = 20;
/// Who makes pods meanwhile, one after the other.
const WORKERS: usize = 2;
/// Pods that one of them keeps before it removes its oldest.
const KEPT: usize = 4;
/// Pods that start between two restarts, at least.
const BETWEEN: usize = 2;
const PAUSE: Duration = Duration::from_millis(10);
/// From the return of the runtime's socket until its plugin is asked again, as promised, each time.
const BACK: Duration = Duration::from_secs(1);
/// And until every container has its values; a tenth of it is usual.
const RIGHT: Duration = Duration::from_secs(2);

/// What those who make pods and who restarts the runtime know of one another.
#[derive(Default)]
struct Scene {
    /// Odd while the runtime is away.
    outages: AtomicUsize,
    over: AtomicBool,
    next: AtomicUsize,
    /// Pods that run, or did.
    started: AtomicUsize,
}

/// What a worker did.
#[derive(Debug, Default)]
struct Work {
    cut_off: usize,
    /// What went wrong though the runtime was there all the time.
    failures: Vec<String>,
}

// === impl Scene ===

impl Scene {
    /// What came of one thing done, if the runtime was there from its beginning to its end.
    fn judge<T>(&self, work: &mut Work, before: usize, done: Result<T>) -> Option<T> {
        match done {
            Ok(done) => return Some(done),
            Err(error) => {
                let error = format!("{error:#}");
                let undisturbed = before.is_multiple_of(2) && self.outages.load(SeqCst) == before;
                // Not "koord" alone: the image is koord.test/busybox.
                let by_us = error.contains("koord-runtime-proxy");
                if is_left_by_a_kill(&error) {
                    println!("of the runtime's own: {error}");
                } else if undisturbed || by_us {
                    work.failures.push(error);
                } else {
                    work.cut_off += 1;
                }
            }
        }
        None
    }

    /// Makes pods and removes the oldest until it is over.
    async fn work(&self, runtime: &Path, cgroups: &PodCgroups, share_pool: &str) -> Work {
        let mut work = Work::default();
        let mut kept = VecDeque::new();
        while !self.over.load(SeqCst) {
            let before = self.outages.load(SeqCst);
            let Ok(client) = CriClient::connect(runtime).await else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            let pod = pod(self.next.fetch_add(1, SeqCst), share_pool);
            let started = RunningPod::start(cgroups, &client, &pod).await;
            let Some(running) = self.judge(&mut work, before, started) else {
                tokio::time::sleep(PAUSE).await;
                continue;
            };
            kept.push_back(running);
            self.started.fetch_add(1, SeqCst);
            if kept.len() > KEPT
                && let Some(oldest) = kept.pop_front()
            {
                // The runtime may have gone and come back since.
                let before = self.outages.load(SeqCst);
                let removed = oldest.remove(&client).await;
                self.judge(&mut work, before, removed);
            }
        }
        work
    }
}

/// Has the workers stop when it goes, also where a restart failed by a panic: they are waited for.
struct Over<'a>(&'a AtomicBool);

impl Drop for Over<'_> {
    fn drop(&mut self) {
        self.0.store(true, SeqCst);
    }
}

/// What one restart showed.
struct Round {
    back: Duration,
    right: Duration,
    containers: usize,
}

fn since(time: SystemTime) -> Result<Duration> {
    Ok(SystemTime::now().duration_since(time)?)
}

/// Connections to a listening socket, as the kernel counts them.
fn connections(socket: &Path) -> Result<usize> {
    let path = socket.to_str().context("its path is text")?;
    let all = fs::read_to_string("/proc/net/unix")?;
    let connected = |line: &&str| {
        let fields: Vec<&str> = line.split_ascii_whitespace().collect();
        fields.get(5) == Some(&"03") && fields.get(7) == Some(&path)
    };
    Ok(all.lines().filter(connected).count())
}

/// How many containers live, and which of them have a wrong value and still have it when they are
/// looked for a second time: those that went meanwhile have none.
async fn wrong(containerd: &Runtime, cgroups: &PodCgroups) -> Result<(usize, Vec<String>)> {
    let share_pool = classes::share_pool()?;
    let client = CriClient::connect(&containerd.socket()).await?;
    let now = living(&client, cgroups, &share_pool).await?;
    let wrong: Vec<&Living> = now.iter().filter(|it| !it.wrong().is_empty()).collect();
    if wrong.is_empty() {
        return Ok((now.len(), Vec::new()));
    }
    let later = living(&client, cgroups, &share_pool).await?;
    let alive: BTreeSet<&str> = later.iter().map(|it| &*it.container).collect();
    let still = wrong
        .iter()
        .filter(|it| alive.contains(&*it.container))
        .flat_map(|it| it.wrong());
    Ok((now.len(), still.collect()))
}

/// How often the runtime has taken the plugin.
fn sessions(node: &Node) -> Result<f64> {
    let ok = ["result=\"ok\""];
    node.proxy
        .metric("koord_runtime_proxy_plugin_sessions_total", &ok)
}

/// The most connections that there are at a time while that is under way.
fn most_connections(socket: &Path, under_way: &Weak<()>) -> Result<usize> {
    let mut most = 0;
    while under_way.strong_count() > 0 {
        most = most.max(connections(socket)?);
        thread::sleep(Duration::from_millis(2));
    }
    Ok(most.max(connections(socket)?))
}

/// Starts the runtime again. When its socket has returned, and how soon after that it asks us.
fn comes_back(node: &mut Node, scene: &Scene, before: f64) -> Result<(SystemTime, Duration)> {
    node.runtime.restart()?;
    scene.outages.fetch_add(1, SeqCst);
    wait_until("the runtime asks us again", || {
        sessions(node).is_ok_and(|now| now > before + 0.5) && node.proxy.serves()
    });
    let returned = fs::metadata(node.runtime.nri_socket())?.modified()?;
    Ok((returned, since(returned)?))
}

/// Restarts the runtime and waits until all is as it was.
fn round(node: &mut Node, scene: &Scene, number: u32) -> Result<Round> {
    let before = sessions(node)?;
    let started = scene.started.load(SeqCst);
    wait_patiently("pods start", || {
        scene.started.load(SeqCst) >= started + BETWEEN
    });
    // At another moment of a pod's life each time.
    thread::sleep(Duration::from_millis(u64::from(number) * 37 % 200));
    scene.outages.fetch_add(1, SeqCst);
    match number.is_multiple_of(2) {
        true => node.runtime.kill9()?,
        false => node.runtime.stop()?,
    }
    let socket = node.runtime.nri_socket();
    let counted = thread::scope(|scope| {
        // It goes with a panic too, which would wait for the other thread for good.
        let under_way = Arc::new(());
        let (socket, watched) = (&socket, Arc::downgrade(&under_way));
        let most = scope.spawn(move || most_connections(socket, &watched));
        let back = comes_back(node, scene, before);
        drop(under_way);
        let most = most
            .join()
            .map_err(|_| anyhow!("who counts has panicked"))?;
        Ok::<_, anyhow::Error>((back?, most?))
    });
    let ((returned, back), most) = counted?;
    ensure!(most == 1, "{most} connections of one plugin at a time");
    ensure!(sessions(node)? < before + 1.5, "registered more than once");
    wait_until("the runtime has one connection of plugins", || {
        connections(&socket).is_ok_and(|it| it == 1)
    });

    let tokio = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()?;
    let (mut containers, mut last) = (0, Vec::new());
    wait_until("every container has its values", || {
        match tokio.block_on(wrong(&node.runtime, &node.cgroups)) {
            Ok((alive, wrong)) => (containers, last) = (alive, wrong),
            Err(error) => last = vec![format!("{error:#}")],
        }
        last.is_empty()
    });
    // As many have started before the first, and what a worker keeps outlives each.
    ensure!(containers >= WORKERS, "{containers} containers live");
    Ok(Round {
        back,
        right: since(returned)?,
        containers,
    })
}

fn median(mut times: Vec<Duration>) -> Duration {
    times.sort();
    times[times.len() / 2]
}

fn it_is_back_each_time(kind: impl Into<RuntimeKind> + Copy) -> Result<()> {
    let share_pool = classes::share_pool()?;
    let options = ProxyOptions {
        policy: Some(classes::node_policy(&share_pool)),
        args: ["--feature-gates", classes::FEATURE_GATES]
            .map(str::to_owned)
            .into(),
        front: Front::Nri,
        // On a machine that is busy with other tests too, a plugin may stand still for longer than a runtime
        // waits for it by itself.
        as_shipped: promise::are_held(),
        ..ProxyOptions::default()
    };
    let mut node = Node::start(kind, options)?;
    let (runtime, cgroups) = (node.runtime.socket(), node.cgroups.clone());
    let scene = Scene::default();
    let worker = || -> Result<Work> {
        let tokio = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()?;
        Ok(tokio.block_on(scene.work(&runtime, &cgroups, &share_pool)))
    };
    let (rounds, works) = thread::scope(|scope| {
        let workers: Vec<_> = (0..WORKERS).map(|_| scope.spawn(worker)).collect();
        let over = Over(&scene.over);
        let rounds = (0..RESTARTS).map(|number| {
            round(&mut node, &scene, number).with_context(|| format!("restart {number}"))
        });
        let rounds = rounds.collect::<Result<Vec<_>>>();
        drop(over);
        let works = workers.into_iter().map(|it| it.join().expect("a worker"));
        (rounds, works.collect::<Result<Vec<_>>>())
    });
    let (rounds, works) = (rounds?, works?);
    // Between the rounds too it was taken no second time.
    let taken = sessions(&node)?;
    ensure!(taken < f64::from(RESTARTS) + 1.5, "taken {taken} times");
    for Round {
        back,
        right,
        containers,
    } in &rounds
    {
        println!("asked again after {back:?}, {containers} containers right after {right:?}");
    }
    let failures: Vec<_> = works.iter().flat_map(|work| &work.failures).collect();
    ensure!(
        failures.is_empty(),
        "failed with the runtime there: {failures:#?}"
    );
    let started = scene.started.load(SeqCst);
    let cut_off: usize = works.iter().map(|work| work.cut_off).sum();
    println!("{started} pods started, {cut_off} calls cut off");
    let usual = median(rounds.iter().map(|it| it.back).collect());
    println!("asked again within {usual:?} half of the times");
    let longest = |time: fn(&Round) -> Duration| {
        let times = rounds.iter().map(time);
        times.max().context("there was no restart")
    };
    promise::within("the plugin is asked again", longest(|it| it.back)?, BACK)?;
    promise::within("every container is right", longest(|it| it.right)?, RIGHT)?;
    Ok(())
}

#[test]
fn a_plugin_is_back_after_twenty_restarts_of_containerd_1_7() -> Result<()> {
    it_is_back_each_time(ContainerdVersion::V1_7)
}

#[test]
fn a_plugin_is_back_after_twenty_restarts_of_containerd_2() -> Result<()> {
    it_is_back_each_time(ContainerdVersion::V2)
}

#[test]
fn a_plugin_is_back_after_twenty_restarts_of_cri_o() -> Result<()> {
    it_is_back_each_time(RuntimeKind::Crio)
}

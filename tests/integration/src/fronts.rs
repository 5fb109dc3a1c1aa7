//! Both fronts with every hook on but that which makes queues of the machine's own network: of the same
//! pods the ledger and the kernel have the same, whichever of the two they came by, from their creation
//! until all hooks are off, and what the hooks set is what their page says.
//!
//! What each value is to be a machine says for itself, or leaves it to other tests, but for what none of
//! them shows on every kernel: the score of a process, what shows a container its GPUs, the devices that
//! it has, and that all is given back.

mod asked;
mod found;
mod made;
mod meddled;
mod page;
mod rest;

use self::{
    asked::{Asked, CpuPolicy, Figures},
    found::{
        Decided, Found, caches, decided, different, files_of_root, given_back, held, hold, network,
        shared,
    },
};
use crate::{
    Front, Node, ProxyOptions, RunningPod, classes::NO_POLICY, rdma::RdmaMachine, witness,
};
use anyhow::{Context, Result, ensure};
use koord_testkit::{
    cri::CriClient,
    poll::{bound, comes_true, wait_until},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

/// A node that runs such pods, and what is its own.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// What the page calls its kernel.
    pub kernel: &'a str,
    /// The hooks that have something to do there.
    pub hooks: &'a [&'a str],
    /// The CPUs that pods share.
    pub share_pool: &'a str,
    /// Scores that processes there can be given: at first, and once their pods have changed.
    pub scores: [&'a str; 2],
    /// What is there by plain reads, in each state of which something is said.
    pub expected: &'a [Expected],
    /// What is there by its file wherever nothing is said of it; with none, what is not said is not looked
    /// at.
    pub otherwise: &'a [(&'a str, &'a str)],
    /// The front by which it is left alone for a minute, to see that nothing is written then. By another
    /// others write in that minute.
    pub rests_by: Front,
    /// What they write there, of the values that there are as the pods are created.
    pub meddled: Values,
    /// For the files that stand for what else a node has.
    pub directory: &'a Path,
    pub rdma: &'a RdmaMachine,
}

/// A state of the node, and values that are there in it: what is said later counts.
#[derive(Clone, Copy, Debug)]
pub struct Expected {
    pub state: &'static str,
    pub values: &'static [Values],
}

/// Values by what they are of.
pub type Values = &'static [(&'static str, &'static str)];

/// What came of the pods by one front.
#[derive(Debug, Default)]
pub struct Seen {
    /// In the order in which the policy was changed.
    states: Vec<(&'static str, Decided)>,
    /// Hooks, and settings of theirs that the kernel had as they decided.
    in_force: BTreeSet<(String, String)>,
}

/// The directory in which HAMi-core locks, which every node with it has; goes again if it was not
/// there.
#[derive(Debug)]
pub struct HamiLock {
    was_there: bool,
}

/// The names of pods that are created with all hooks off end so.
const BARE: &str = "-bare";

/// The state in which the proxy is killed and started.
const AGAIN: &str = "with all hooks on again";

// === impl Machine ===

impl Machine<'_> {
    /// With these a node is to be started. The files that they name are there then.
    pub fn options(&self, front: Front) -> Result<ProxyOptions> {
        fs::create_dir_all(self.directory)?;
        fs::write(self.library(), "a library")?;
        fs::write(self.source(), self.at_first().told())?;
        Ok(ProxyOptions {
            policy: Some(NO_POLICY.to_owned()),
            args: vec![
                "--feature-gates=AllAlpha=true,BECPUIdle=true,MidResource=true,ResctrlMonitor=true"
                    .to_owned(),
                format!(
                    "--hami-core-library-directory-path={}",
                    self.library().display()
                ),
                format!("--pods={}", self.source().display()),
                format!("--terway-qos-dir={}", self.network().display()),
                self.rdma.argument(),
            ],
            front,
            ..ProxyOptions::default()
        })
    }

    /// Runs pods on it, under policies that together have every hook decide something but `TCNetworkQoS`,
    /// and without one; changes the pods; with all hooks off and on again, and over a restart. Ends with the
    /// proxy gone, what it has set given back, and nothing of it left that another could meet.
    pub async fn see(&self, node: &mut Node) -> Result<Seen> {
        let mut seen = Seen::default();
        node.cgroups.beside_pods(asked::HOST_APPLICATION)?;
        let figures = Figures::first(self.share_pool);
        let cores = figures.policy(CpuPolicy::CoreSched);
        node.proxy.put_in_force(&cores)?;
        let client = node.client().await?;
        let pods = self.run(node, &client, "").await?;
        self.settled("as created", node, &pods, &mut seen)?;
        if node.proxy.front() == self.rests_by {
            self.rest(node, &pods[0])?;
        } else {
            self.meddle(node, &pods)?;
        }
        have_score(&pods[0], self.scores[0]);
        self.has_its_devices(&client, &pods[1], "").await?;
        self.change(node)?;
        self.settled("once the pods have changed", node, &pods, &mut seen)?;
        have_score(&pods[0], self.scores[1]);
        let other = Figures::later().policy(CpuPolicy::GroupIdentity);
        for (state, policy) in [
            ("under another policy", &*other),
            ("without a policy", NO_POLICY),
        ] {
            node.proxy.put_in_force(policy)?;
            self.settled(state, node, &pods, &mut seen)?;
        }
        switch_all(node, "off")?;
        self.settled("with all hooks off", node, &pods, &mut seen)?;
        have_score(&pods[0], &asked::SCORE.to_string());
        // Nobody has decided anything of these.
        let bare = self.run(node, &client, BARE).await?;
        given_back(&pods, &bare)?;
        self.has_no_devices(&client, &bare[1]).await?;
        node.proxy.put_in_force(&cores)?;
        switch_all(node, "on")?;
        let before = self.settled(AGAIN, node, &pods, &mut seen)?;
        self.outlives_us(node, &pods, before)?;
        let client = node.client().await?;
        self.has_its_devices(&client, &pods[1], "").await?;
        self.has_its_devices_from_a_later_process(node, &client)
            .await?;
        switch_all(node, "off")?;
        let state = "with all hooks off after a restart";
        let (_, off) = self.settled(state, node, &pods, &mut seen)?;
        node.proxy.kill9()?;
        self.is_taken_back(node, &pods, &off)?;
        self.is_complete(&seen)?;
        Ok(seen)
    }

    /// Nothing is left to do: nobody writes anything.
    fn rest(&self, node: &Node, pod: &RunningPod) -> Result<()> {
        let mut places = witness::groups(node.testbed());
        places.extend(Some(self.network()).filter(|it| it.exists()));
        places.extend(files_of_root(node.testbed().hierarchies()));
        let own = pod.cgroup.file("cpu", None, "cpu.idle");
        rest::nothing_is_written(&node.proxy, &places, &own)
    }

    /// Kills the proxy and starts it again, which changes nothing.
    fn outlives_us(&self, node: &mut Node, pods: &[RunningPod], before: Found) -> Result<()> {
        let decided = |found: Found| decided(found, &["asked", "desired", "owner", "kernel"]);
        let before = decided(before);
        let mut held = Decided::new();
        node.proxy.kill9()?;
        node.launch_proxy()?;
        let mut after = Decided::new();
        let is_as_before = comes_true(|| {
            let found = self.find(node, pods).unwrap_or_default();
            held.clone_from(&found.1);
            after = decided(found);
            after == before
        });
        ensure!(
            is_as_before,
            "before and after a restart: {:#?}",
            different(&before, &after)
        );
        self.is_as_expected(AGAIN, &held)
    }

    /// Starts the proxy once more, with all hooks on, and kills it. What it has set is then given back
    /// without it, which leaves what there is with all hooks off.
    fn is_taken_back(&self, node: &mut Node, pods: &[RunningPod], off: &Decided) -> Result<()> {
        node.launch_proxy()?;
        wait_until("hooks that are on set something", || {
            self.held(node, pods).is_ok_and(|held| held != *off)
        });
        self.settle(node, pods)?;
        node.proxy.kill9()?;
        let reverted = node.proxy.revert(node.testbed())?;
        let held = self.held(node, pods)?;
        ensure!(
            held == *off,
            "with all hooks off, and given back: {:#?}, {reverted:?}",
            different(off, &held)
        );
        Ok(())
    }

    /// Waits until nothing is left to do, and takes down what there is then.
    fn settled(
        &self,
        state: &'static str,
        node: &Node,
        pods: &[RunningPod],
        seen: &mut Seen,
    ) -> Result<Found> {
        let found = self.settle(node, pods).context(state)?;
        self.is_as_expected(state, &found.1)?;
        seen.settled(state, found.clone())?;
        Ok(found)
    }

    /// Fails unless everything is there that is said of this state, and nothing else that counts.
    fn is_as_expected(&self, state: &str, held: &Decided) -> Result<()> {
        let mut said = BTreeMap::new();
        let of_state = self.expected.iter().filter(|it| it.state == state);
        for values in of_state.flat_map(|it| it.values) {
            said.extend(values.iter().copied());
        }
        let mut wrong = Vec::new();
        for (what, value) in &said {
            let found = held.get(*what).map_or(Expected::GONE, String::as_str);
            if found != *value {
                wrong.push(format!("{what}: {found:?}, not {value:?}"));
            }
        }
        for (what, found) in held {
            // Of the plugin's file each pod is looked at by itself.
            let is_said = said.contains_key(&**what) || what == "pod.json";
            if is_said || self.otherwise.is_empty() {
                continue;
            }
            let mut files = self.otherwise.iter();
            let usual = files.find(|(file, _)| what.split(' ').next_back() == Some(file));
            if usual.is_none_or(|(_, value)| found != value) {
                wrong.push(format!("{what}: {found:?}, of which nothing is said"));
            }
        }
        ensure!(wrong.is_empty(), "{state}: {wrong:#?}");
        Ok(())
    }

    /// Fails unless there was every state of which something is said.
    fn is_complete(&self, seen: &Seen) -> Result<()> {
        for Expected { state, .. } in self.expected {
            let was = seen.states.iter().any(|(it, _)| it == state);
            ensure!(was, "there is no state {state:?}");
        }
        Ok(())
    }

    async fn run(&self, node: &Node, client: &CriClient, suffix: &str) -> Result<Vec<RunningPod>> {
        let mut running = Vec::new();
        for pod in self.at_first().pods(suffix, self.share_pool) {
            running.push(node.run(client, &pod).await?);
        }
        Ok(running)
    }

    /// What there is once nothing is left to do and nothing changes any more.
    fn settle(&self, node: &Node, pods: &[RunningPod]) -> Result<Found> {
        let quiet = bound() / 30;
        let (mut last, mut since) = (self.find(node, pods), Instant::now());
        let is_done = comes_true(|| {
            thread::sleep(quiet / 10);
            let now = self.find(node, pods);
            if now.as_ref().ok() != last.as_ref().ok() {
                since = Instant::now();
            }
            last = now;
            let mut settings = last.iter().flat_map(|(settings, _)| settings.values());
            let is_pending = settings.any(|it| it["applied"] == "pending");
            last.is_ok() && !is_pending && since.elapsed() > quiet
        });
        let found = last.context("the ledger or the kernel cannot be read")?;
        ensure!(is_done, "something is left to do: {:#?}", found.0);
        Ok(found)
    }

    fn find(&self, node: &Node, pods: &[RunningPod]) -> Result<Found> {
        let held = self.held(node, pods)?;
        Ok((node.settings()?, held))
    }

    /// What is there by plain reads.
    fn held(&self, node: &Node, pods: &[RunningPod]) -> Result<Decided> {
        let mut held = held(pods)?;
        let batch = &pods[2].cgroup;
        for (tier, above) in [("best-effort pods", ".."), ("all pods", "../..")] {
            hold(tier, |it| batch.directory(it).join(above), &mut held)?;
        }
        let beside = |it: &str| {
            batch
                .directory(it)
                .join("../..")
                .join(asked::HOST_APPLICATION)
        };
        hold("host application", beside, &mut held)?;
        shared(node.testbed().hierarchies(), &mut held)?;
        caches(&mut held)?;
        let root = node.testbed().cgroup_root();
        network(&self.network(), &root, &mut held)?;
        Ok(held)
    }

    fn at_first(&self) -> Asked<'_> {
        Asked::first(self.scores[0])
    }

    /// Has the source of pods say something else of them.
    fn change(&self, node: &Node) -> Result<()> {
        let answers = || {
            let metric = "koord_runtime_proxy_pods_answers_total";
            node.proxy.metric(metric, &["ok"]).unwrap_or_default()
        };
        let before = answers();
        let later = Asked::later(self.scores[1], self.share_pool);
        let fresh = self.directory.join("pods.new");
        fs::write(&fresh, later.told())?;
        fs::rename(fresh, self.source())?;
        wait_until("the source of pods is read", || answers() > before + 0.5);
        Ok(())
    }

    /// What tells of pods that have changed.
    fn source(&self) -> PathBuf {
        self.directory.join("pods.json")
    }

    /// A file that can stand for HAMi-core's library.
    fn library(&self) -> PathBuf {
        self.directory.join("library.so")
    }

    /// The folder that Terway reads.
    fn network(&self) -> PathBuf {
        self.directory.join("qos")
    }
}

// === impl Expected ===

impl Expected {
    /// Of what there is a file or a group of no more.
    pub const GONE: &str = "not there";
}

// === impl Seen ===

impl Seen {
    /// Adds a state of a node on which nothing is left to do.
    fn settled(&mut self, state: &'static str, found: Found) -> Result<()> {
        for (what, it) in &found.0 {
            let applied = it["applied"].as_str().unwrap_or_default();
            ensure!(!applied.starts_with("refused"), "{state}, {what}: {it}");
            if let ("equal" | "written", Some(owner), Some(setting)) =
                (applied, it["owner"].as_str(), it["setting"].as_str())
            {
                let pair = (owner.to_owned(), setting.to_owned());
                self.in_force.insert(pair);
            }
        }
        let words = ["asked", "desired", "owner", "kernel"];
        self.states.push((state, decided(found, &words)));
        Ok(())
    }
}

// === impl HamiLock ===

impl HamiLock {
    /// Upstream's.
    pub const PATH: &str = "/tmp/vgpulock";

    pub fn make() -> Result<Self> {
        let was_there = Path::new(Self::PATH).exists();
        if !was_there {
            fs::create_dir(Self::PATH)?;
        }
        Ok(Self { was_there })
    }
}

impl Drop for HamiLock {
    fn drop(&mut self) {
        if !self.was_there {
            fs::remove_dir(Self::PATH).ok();
        }
    }
}

/// Turns every hook on, or off.
fn switch_all(node: &Node, state: &str) -> Result<()> {
    let status = node.proxy.status()?;
    for hook in status["hooks"].as_array().context("hooks")? {
        let switch = format!("{}={state}", hook["name"].as_str().context("a name")?);
        node.proxy.switch(&switch)?;
    }
    Ok(())
}

/// Waits until every process of a container has this score.
fn have_score(pod: &RunningPod, score: &str) {
    wait_until(&format!("a score of {score}"), || {
        let processes = pod.cgroup.read("cpu", Some(&pod.container), "cgroup.procs");
        let processes = processes.unwrap_or_default();
        let has = |process: &str| {
            let held = fs::read_to_string(format!("/proc/{process}/oom_score_adj"));
            held.is_ok_and(|held| held.trim() == score)
        };
        !processes.is_empty() && processes.lines().all(has)
    });
}

//! Both fronts with every hook on: of the same pods the ledger and the kernel have the same, whichever
//! of the two they came by, from their creation until all hooks are off, and what the hooks set is what
//! their page says.
//!
//! What each value is to be is the business of other tests, but for what none of them shows on every
//! kernel: the score of a process, what shows a container its GPUs, the devices that it has, and that
//! all is given back.

mod found;

use self::found::{Decided, Found, decided, different, given_back, held, hold, text};
use crate::{
    Front, Node, ProxyOptions, RunningPod,
    classes::{self, NO_POLICY, PodSpecOf},
    rdma::RdmaMachine,
};
use anyhow::{Context, Result, ensure};
use koord_testkit::{
    cri::{CriClient, PodSpec, message::LinuxContainerResources},
    poll::{bound, comes_true, wait_until},
};
use std::{
    collections::BTreeSet,
    fs,
    path::{Path, PathBuf},
    thread,
    time::Instant,
};

/// Says of each setting of each hook on which kernel it was shown.
const PAGE: &str = include_str!("../../../docs/hooks.md");

/// A node that runs such pods, and what is its own.
#[derive(Clone, Copy, Debug)]
pub struct Machine<'a> {
    /// What the page calls its kernel.
    pub kernel: &'a str,
    /// The hooks that have something to do there.
    pub hooks: &'a [&'a str],
    /// The CPUs that pods share.
    pub share_pool: &'a str,
    /// A score that processes there can be given.
    pub score: &'a str,
    /// For the files that stand for what else a node has.
    pub directory: &'a Path,
    pub rdma: &'a RdmaMachine,
}

/// What came of the pods by one front.
#[derive(Debug)]
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

/// The directory, below that of all pods, of the host application in the policy.
pub const HOST_APPLICATION: &str = "nginx";

/// The names of pods that are created with all hooks off end so.
const BARE: &str = "-bare";

/// What the kubelet asks for.
const ASKED_SCORE: i64 = 100;

/// Half of the cache, and of the bandwidth a little more.
const HALF: &str = r#"{"llc":{"schemata":{"range":[0,50]}},"mb":{"schemata":{"percent":55}}}"#;

/// Half of a GPU, and an RDMA device.
const PART: &str = r#"{"gpu":[{"minor":3,"resources":{"koordinator.sh/gpu-core":"50",
    "koordinator.sh/gpu-memory":"8Gi","koordinator.sh/gpu-memory-ratio":"50"}}],
    "rdma":[{"minor":0,"id":"ffff:ff:00.0"}]}"#;

/// What a pod with mid resources asks for, which no request tells.
const PODS: &str = r#"{"apiVersion":"v1","kind":"List","items":[{"apiVersion":"v1","kind":"Pod",
    "metadata":{"name":"mid","namespace":"default","uid":"uid-mid",
        "labels":{"koordinator.sh/qosClass":"LS"}},
    "spec":{"containers":[{"name":"main","resources":{
        "requests":{"kubernetes.io/mid-cpu":"250","kubernetes.io/mid-memory":"64Mi"},
        "limits":{"kubernetes.io/mid-cpu":"500","kubernetes.io/mid-memory":"64Mi"}}}]}}]}"#;

/// What Terway reads.
const OF_NETWORK: [&str; 2] = ["global_bps_config", "pod.json"];

/// Of a device that nobody has to have anything on for the kernel to take limits of it.
const SLOW: &str = r#"{"blocks":[{"name":"loop7","type":"device","ioCfg":{"writeBPS":4096}}]}"#;

// === impl Machine ===

impl Machine<'_> {
    /// With these a node is to be started. The files that they name are there then.
    pub fn options(&self, front: Front) -> Result<ProxyOptions> {
        fs::create_dir_all(self.directory)?;
        fs::write(self.library(), "a library")?;
        let pods = self.directory.join("pods.json");
        fs::write(&pods, PODS)?;
        Ok(ProxyOptions {
            policy: Some(NO_POLICY.to_owned()),
            args: vec![
                "--feature-gates=AllAlpha=true,BECPUIdle=true,MidResource=true".to_owned(),
                format!(
                    "--hami-core-library-directory-path={}",
                    self.library().display()
                ),
                format!("--pods={}", pods.display()),
                format!("--terway-qos-dir={}", self.network().display()),
                self.rdma.argument(),
            ],
            front,
            ..ProxyOptions::default()
        })
    }

    /// Runs pods on it, under policies that together have every hook decide something, without one,
    /// with all hooks off and on again, and over a restart. Ends with the proxy gone and nothing of it
    /// left that another could meet.
    pub async fn see(&self, node: &mut Node) -> Result<Seen> {
        let mut seen = Seen {
            states: Vec::new(),
            in_force: BTreeSet::new(),
        };
        wait_until("the first policy is read", || loads(node) > 0.5);
        let cores = policy("coreSched", self.share_pool);
        put_in_force(node, &cores)?;
        let client = node.client().await?;
        let pods = self.run(node, &client, "").await?;
        seen.settled("under core scheduling", self.settle(node, &pods)?)?;
        have_score(&pods[0], self.score);
        self.sees_its_gpu(&client, &pods[1]).await?;
        has_its_device(&client, &pods[1]).await?;
        for (state, policy) in [
            (
                "under group identity",
                policy("groupIdentity", self.share_pool),
            ),
            ("without a policy", NO_POLICY.to_owned()),
        ] {
            put_in_force(node, &policy)?;
            seen.settled(state, self.settle(node, &pods)?)?;
        }
        switch_all(node, "off")?;
        seen.settled("with all hooks off", self.settle(node, &pods)?)?;
        have_score(&pods[0], &ASKED_SCORE.to_string());
        // Nobody has decided anything of these.
        let bare = self.run(node, &client, BARE).await?;
        given_back(&pods, &bare)?;
        put_in_force(node, &cores)?;
        switch_all(node, "on")?;
        let before = self.settle(node, &pods)?;
        seen.settled("with all hooks on again", before.clone())?;
        self.outlives_us(node, &pods, before)?;
        Ok(seen)
    }

    /// Kills the proxy and starts it again, which changes nothing; then has it give back what it can.
    fn outlives_us(&self, node: &mut Node, pods: &[RunningPod], before: Found) -> Result<()> {
        // What was there before the first value only the one who wrote it knew, and nothing tells what
        // those asked for whose creation was left as it was.
        let decided = |found| {
            let mut all = decided(found, &["desired", "owner", "kernel"]);
            all.retain(|what, _| !what.contains(BARE));
            all
        };
        let before = decided(before);
        node.proxy.kill9()?;
        node.launch_proxy()?;
        let mut after = Decided::new();
        let is_as_before = comes_true(|| {
            after = self.find(node, pods).map(decided).unwrap_or_default();
            after == before
        });
        ensure!(
            is_as_before,
            "before and after a restart: {:#?}",
            different(&before, &after)
        );
        switch_all(node, "off")?;
        self.settle(node, pods)?;
        node.proxy.kill9()
    }

    /// Fails unless both are alike, and as the page says.
    pub fn compare(&self, by_cri: &Seen, by_nri: &Seen) -> Result<()> {
        ensure!(by_cri.states.len() == by_nri.states.len(), "other states");
        for ((state, by_cri), (_, by_nri)) in by_cri.states.iter().zip(&by_nri.states) {
            let different = different(by_cri, by_nri);
            ensure!(
                different.is_empty(),
                "{state}, by CRI and by NRI: {different:#?}"
            );
        }
        let said = said_of(self.kernel);
        for hook in self.hooks {
            let said: BTreeSet<&str> = of(hook, said.iter().copied());
            for seen in [by_cri, by_nri] {
                let pairs = seen.in_force.iter();
                let shown = of(hook, pairs.map(|(hook, setting)| (&**hook, &**setting)));
                ensure!(
                    shown == said,
                    "{hook} sets {shown:?}, the page says {said:?}"
                );
                ensure!(!shown.is_empty(), "{hook} has decided nothing");
            }
        }
        Ok(())
    }

    /// One of each class and one with mid resources, which together ask something of every hook.
    fn pods(&self, suffix: &str) -> [PodSpecOf; 5] {
        let named = |name: &str| format!("{name}{suffix}");
        let group = ("koordinator.sh/core-sched-group-id", "a");
        let mut pinned = classes::lsr(&named("pinned"));
        pinned.container = pinned.container.resources(LinuxContainerResources {
            oom_score_adj: ASKED_SCORE,
            ..resources(512, 1 << 30)
        });
        pinned.pod = pinned
            .pod
            .annotation("koordinator.sh/oom-score-adj", self.score)
            .annotation("node.koordinator.sh/resctrl", HALF);
        let mut web = classes::ls(&named("web"), self.share_pool);
        web.container = web.container.resources(resources(256, 256 << 20));
        web.pod = web
            .pod
            .label(group.0, group.1)
            .label("koordinator.sh/gpu-isolation-provider", "HAMi-core")
            .annotation("koordinator.sh/networkQOS", r#"{"egressLimit":"8M"}"#)
            .annotation("scheduling.koordinator.sh/device-allocated", PART);
        let mut batch = classes::be(&named("batch"));
        batch.pod = batch
            .pod
            .label(group.0, group.1)
            .annotation("koordinator.sh/blkioQOS", SLOW);
        let mut mid = classes::be(&named("mid"));
        mid.pod = PodSpec::new(&mid.name).label("koordinator.sh/qosClass", "LS");
        let plain = classes::plain(&named("plain"), self.share_pool);
        [pinned, web, batch, mid, plain]
    }

    async fn run(&self, node: &Node, client: &CriClient, suffix: &str) -> Result<Vec<RunningPod>> {
        let mut running = Vec::new();
        for pod in self.pods(suffix) {
            running.push(node.run(client, &pod).await?);
        }
        Ok(running)
    }

    /// What there is once nothing is left to do and nothing changes any more.
    fn settle(&self, node: &Node, pods: &[RunningPod]) -> Result<Found> {
        let quiet = bound() / 30;
        let (mut last, mut since) = (None, Instant::now());
        let is_done = comes_true(|| {
            thread::sleep(quiet / 10);
            let now = self.find(node, pods).ok();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            let mut settings = last.iter().flat_map(|(settings, _)| settings.values());
            let is_pending = settings.any(|it| it["applied"] == "pending");
            last.is_some() && !is_pending && since.elapsed() > quiet
        });
        let found = last.context("the ledger or the kernel cannot be read")?;
        ensure!(is_done, "something is left to do: {:#?}", found.0);
        Ok(found)
    }

    fn find(&self, node: &Node, pods: &[RunningPod]) -> Result<Found> {
        let mut held = held(pods)?;
        let batch = &pods[2].cgroup;
        for (tier, above) in [("best-effort pods", ".."), ("all pods", "../..")] {
            hold(tier, |it| batch.directory(it).join(above), &mut held)?;
        }
        let root = node.testbed().cgroup_root();
        for file in OF_NETWORK {
            if let Some(told) = text(&self.network().join(file))? {
                held.insert(file.to_owned(), told.replace(&root, ""));
            }
        }
        Ok((node.settings()?, held))
    }

    /// A file that can stand for HAMi-core's library.
    fn library(&self) -> PathBuf {
        self.directory.join("library.so")
    }

    /// The folder that Terway reads.
    fn network(&self) -> PathBuf {
        self.directory.join("qos")
    }

    async fn sees_its_gpu(&self, client: &CriClient, pod: &RunningPod) -> Result<()> {
        let library = self.library();
        let library = library.to_str().context("a path of a test")?;
        let told = client.exec(&pod.container, ["env"]).await?;
        let told = String::from_utf8(told.stdout)?;
        for line in [
            "NVIDIA_VISIBLE_DEVICES=3",
            "CUDA_DEVICE_MEMORY_LIMIT=8589934592",
            "CUDA_DEVICE_SM_LIMIT=50",
            &format!("LD_PRELOAD={library}"),
        ] {
            ensure!(told.lines().any(|it| it == line), "no {line} in {told}");
        }
        let mounted = client.exec(&pod.container, ["cat", library]).await?;
        ensure!(mounted.stdout == b"a library", "{mounted:?}");
        Ok(())
    }
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

async fn has_its_device(client: &CriClient, pod: &RunningPod) -> Result<()> {
    let device = "/dev/infiniband/uverbs9000";
    let there = client.exec(&pod.container, ["test", "-c", device]).await?;
    ensure!(there.exit_code == 0, "no {device}");
    Ok(())
}

/// The two alternatives of CPU QoS exclude each other; all else is the same with both.
fn policy(cpu_policy: &str, share_pool: &str) -> String {
    format!(
        r#"apiVersion: topology.node.k8s.io/v1alpha1
kind: NodeResourceTopology
metadata:
  name: node-1
  annotations:
    node.koordinator.sh/cpu-shared-pools: '[{{"socket":0,"node":0,"cpuset":"{share_pool}"}}]'
---
apiVersion: v1
kind: Node
metadata:
  name: node-1
  annotations:
    node.koordinator.sh/cpu-normalization-ratio: "1.25"
---
apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {{name: node-1}}
spec:
  cpuBurstStrategy: {{policy: auto}}
  systemStrategy: {{totalNetworkBandwidth: 1G}}
  hostApplications:
  - {{name: nginx, qos: LS, cgroupPath: {{base: Kubepods, relativePath: {HOST_APPLICATION}}}}}
  resourceQOSStrategy:
    policies: {{cpuPolicy: {cpu_policy}, netQOSPolicy: terway-qos}}
    lsrClass:
      cpuQOS: {{enable: true}}
      memoryQOS: {{enable: true, minLimitPercent: 50}}
      resctrlQOS: {{enable: true}}
    lsClass:
      cpuQOS: {{enable: true, coreExpeller: true}}
      resctrlQOS: {{enable: true, catRangeStartPercent: 20, mbaPercent: 90}}
      networkQOS: {{enable: true, egressRequest: 40, ingressRequest: 300M}}
    beClass:
      cpuQOS: {{enable: true, schedIdle: 1}}
      memoryQOS: {{enable: true, lowLimitPercent: 50, throttlingPercent: 50, oomKillGroup: 1}}
      resctrlQOS: {{enable: true, mbaPercent: 20}}
      networkQOS: {{enable: true, egressLimit: 20}}
      blkioQOS: {{enable: true, blocks: [
        {{name: /dev/loop6, type: device, ioCfg: {{
          readBPS: 1048576, writeBPS: 2097152, readIOPS: 100, writeIOPS: 200, ioWeightPercent: 50}}}}]}}
    cgroupRoot:
      blkioQOS: {{enable: true, blocks: [
        {{name: /dev/loop6, type: device, ioCfg: {{readLatency: 4000, enableUserModel: true,
          modelReadBPS: 1000001, modelReadSeqIOPS: 1002, modelReadRandIOPS: 1003,
          modelWriteBPS: 1000004, modelWriteSeqIOPS: 1005, modelWriteRandIOPS: 1006}}}}]}}
"#
    )
}

/// Half a CPU at most.
fn resources(cpu_shares: i64, memory_limit_in_bytes: i64) -> LinuxContainerResources {
    LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: 50_000,
        cpu_shares,
        memory_limit_in_bytes,
        ..Default::default()
    }
}

/// How many policies were read.
fn loads(node: &Node) -> f64 {
    let metric = "koord_runtime_proxy_policy_loads_total";
    node.proxy.metric(metric, &["ok"]).unwrap_or_default()
}

fn put_in_force(node: &Node, policy: &str) -> Result<()> {
    let before = loads(node);
    node.proxy.write_policy(policy)?;
    wait_until("the policy is read", || loads(node) > before + 0.5);
    Ok(())
}

fn switch_all(node: &Node, state: &str) -> Result<()> {
    let status = node.proxy.status()?;
    for hook in status["hooks"].as_array().context("hooks")? {
        let switch = format!("{}={state}", hook["name"].as_str().context("a name")?);
        let (code, text) = node.proxy.admin("PUT", "/hooks", &switch)?;
        ensure!(code == 200, "{text}");
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

/// Hooks and settings that the page says were shown on a kernel.
fn said_of(kernel: &str) -> Vec<(&'static str, &'static str)> {
    let mut said = Vec::new();
    for line in PAGE.lines() {
        let row: Vec<&str> = line.split('|').map(str::trim).collect();
        if let ["", hook, settings, on, _, ""] = row[..]
            && on == kernel
        {
            let settings = settings.split(", ").map(|it| it.trim_matches('`'));
            said.extend(settings.map(|setting| (hook, setting)));
        }
    }
    said
}

/// The settings of one hook.
fn of<'a>(hook: &str, all: impl Iterator<Item = (&'a str, &'a str)>) -> BTreeSet<&'a str> {
    let own = all.filter(|(owner, _)| *owner == hook);
    own.map(|(_, setting)| setting).collect()
}

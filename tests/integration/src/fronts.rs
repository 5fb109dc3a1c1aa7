//! Both fronts with every hook on: of the same pods the ledger and the kernel have the same, whichever
//! of the two they came by, and what the hooks set is what their page says.
//!
//! What each value is to be is the business of other tests, but for what none of them shows on every
//! kernel: the score of a process, what shows a container its GPUs, and the devices that it has.

use crate::{
    Front, Node, ProxyOptions, RunningPod,
    classes::{self, NO_POLICY, PodSpecOf},
    rdma::RdmaMachine,
};
use anyhow::{Result, ensure};
use koord_testkit::{
    cri::{CriClient, message::LinuxContainerResources},
    poll::{comes_true, wait_until},
};
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
    path::Path,
    thread,
    time::{Duration, Instant},
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
    /// A file that can stand for HAMi-core's library.
    pub library: &'a str,
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

/// What was asked, what is decided, by whom, and what the kernel has, of each setting of each group.
type Decided = BTreeMap<String, String>;

/// The directory, below that of all pods, of the host application in the policy.
pub const HOST_APPLICATION: &str = "nginx";

/// What the kubelet asks for.
const ASKED_SCORE: i64 = 100;

/// Half of the cache, and of the bandwidth a little more.
const HALF: &str = r#"{"llc":{"schemata":{"range":[0,50]}},"mb":{"schemata":{"percent":55}}}"#;

/// Half of a GPU, and an RDMA device.
const PART: &str = r#"{"gpu":[{"minor":3,"resources":{"koordinator.sh/gpu-core":"50",
    "koordinator.sh/gpu-memory":"8Gi","koordinator.sh/gpu-memory-ratio":"50"}}],
    "rdma":[{"minor":0,"id":"ffff:ff:00.0"}]}"#;

/// Of a device that nobody has to have anything on for the kernel to take limits of it.
const SLOW: &str = r#"{"blocks":[{"name":"loop7","type":"device","ioCfg":{"writeBPS":4096}}]}"#;

// === impl Machine ===

impl Machine<'_> {
    /// With these a node is to be started.
    pub fn options(&self, front: Front) -> ProxyOptions {
        ProxyOptions {
            policy: Some(NO_POLICY.to_owned()),
            args: vec![
                "--feature-gates=AllAlpha=true,BECPUIdle=true".to_owned(),
                format!("--hami-core-library-directory-path={}", self.library),
                self.rdma.argument(),
            ],
            front,
            ..ProxyOptions::default()
        }
    }

    /// Runs pods on it, under policies that together have every hook decide something, without one, and
    /// with all hooks off.
    pub async fn see(&self, node: &Node) -> Result<Seen> {
        let mut seen = Seen {
            states: Vec::new(),
            in_force: BTreeSet::new(),
        };
        wait_until("the first policy is read", || loads(node) > 0.5);
        put_in_force(node, &policy("coreSched", self.share_pool))?;
        let client = node.client().await?;
        let mut running = Vec::new();
        for pod in self.pods() {
            running.push(node.run(&client, &pod).await?);
        }
        seen.settled(node, "under core scheduling")?;
        have_score(&running[0], self.score);
        self.sees_its_gpu(&client, &running[1]).await?;
        has_its_device(&client, &running[1]).await?;
        for (state, policy) in [
            (
                "under group identity",
                policy("groupIdentity", self.share_pool),
            ),
            ("without a policy", NO_POLICY.to_owned()),
        ] {
            put_in_force(node, &policy)?;
            seen.settled(node, state)?;
        }
        let status = node.proxy.status()?;
        for hook in status["hooks"].as_array().into_iter().flatten() {
            let switch = format!("{}=off", hook["name"].as_str().unwrap_or_default());
            let (code, text) = node.proxy.admin("PUT", "/hooks", &switch)?;
            ensure!(code == 200, "{text}");
        }
        seen.settled(node, "with all hooks off")?;
        have_score(&running[0], &ASKED_SCORE.to_string());
        Ok(seen)
    }

    /// Fails unless both are alike, and as the page says.
    pub fn compare(&self, by_cri: &Seen, by_nri: &Seen) -> Result<()> {
        for ((state, by_cri), (_, by_nri)) in by_cri.states.iter().zip(&by_nri.states) {
            let keys: BTreeSet<&String> = by_cri.keys().chain(by_nri.keys()).collect();
            let both = keys.into_iter();
            let both = both.map(|it| (it, by_cri.get(it), by_nri.get(it)));
            let different: Vec<_> = both.filter(|(_, cri, nri)| cri != nri).collect();
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

    /// One of each class, which together ask something of every hook.
    fn pods(&self) -> [PodSpecOf; 4] {
        let group = ("koordinator.sh/core-sched-group-id", "a");
        let mut pinned = classes::lsr("pinned");
        pinned.container = pinned.container.resources(LinuxContainerResources {
            oom_score_adj: ASKED_SCORE,
            ..resources(512, 1 << 30)
        });
        pinned.pod = pinned
            .pod
            .annotation("koordinator.sh/oom-score-adj", self.score)
            .annotation("node.koordinator.sh/resctrl", HALF);
        let mut web = classes::ls("web", self.share_pool);
        web.container = web.container.resources(resources(256, 256 << 20));
        web.pod = web
            .pod
            .label(group.0, group.1)
            .label("koordinator.sh/gpu-isolation-provider", "HAMi-core")
            .annotation("scheduling.koordinator.sh/device-allocated", PART);
        let mut batch = classes::be("batch");
        batch.pod = batch
            .pod
            .label(group.0, group.1)
            .annotation("koordinator.sh/blkioQOS", SLOW);
        [pinned, web, batch, classes::plain("plain", self.share_pool)]
    }

    async fn sees_its_gpu(&self, client: &CriClient, pod: &RunningPod) -> Result<()> {
        let told = client.exec(&pod.container, ["env"]).await?;
        let told = String::from_utf8(told.stdout)?;
        for line in [
            "NVIDIA_VISIBLE_DEVICES=3",
            "CUDA_DEVICE_MEMORY_LIMIT=8589934592",
            "CUDA_DEVICE_SM_LIMIT=50",
            &format!("LD_PRELOAD={}", self.library),
        ] {
            ensure!(told.lines().any(|it| it == line), "no {line} in {told}");
        }
        let mounted = client.exec(&pod.container, ["cat", self.library]).await?;
        ensure!(mounted.stdout == fs::read(self.library)?, "{mounted:?}");
        Ok(())
    }
}

// === impl Seen ===

impl Seen {
    /// Adds a state, once nothing is left to do and nothing changes any more.
    fn settled(&mut self, node: &Node, state: &'static str) -> Result<()> {
        const QUIET: Duration = Duration::from_secs(1);
        let (mut last, mut since) = (BTreeMap::new(), Instant::now());
        let settled = comes_true(|| {
            thread::sleep(QUIET / 10);
            let now = node.settings().unwrap_or_default();
            if now != last {
                (last, since) = (now, Instant::now());
            }
            let is_pending = last.values().any(|it| it["applied"] == "pending");
            !is_pending && since.elapsed() > QUIET
        });
        ensure!(settled, "{state} something is left to do: {last:#?}");
        for (what, it) in &last {
            let applied = it["applied"].as_str().unwrap_or_default();
            ensure!(!applied.starts_with("refused"), "{state}, {what}: {it}");
            if let ("equal" | "written", Some(owner), Some(setting)) =
                (applied, it["owner"].as_str(), it["setting"].as_str())
            {
                let pair = (owner.to_owned(), setting.to_owned());
                self.in_force.insert(pair);
            }
        }
        let mut decided = node.decided()?;
        same_cookies(&mut decided);
        self.states.push((state, decided));
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
  hostApplications:
  - {{name: nginx, qos: LS, cgroupPath: {{base: Kubepods, relativePath: {HOST_APPLICATION}}}}}
  resourceQOSStrategy:
    policies: {{cpuPolicy: {cpu_policy}}}
    lsrClass:
      cpuQOS: {{enable: true}}
      memoryQOS: {{enable: true, minLimitPercent: 50}}
      resctrlQOS: {{enable: true}}
    lsClass:
      cpuQOS: {{enable: true, coreExpeller: true}}
      resctrlQOS: {{enable: true, catRangeStartPercent: 20, mbaPercent: 90}}
    beClass:
      cpuQOS: {{enable: true, schedIdle: 1}}
      memoryQOS: {{enable: true, lowLimitPercent: 50, throttlingPercent: 50, oomKillGroup: 1}}
      resctrlQOS: {{enable: true, mbaPercent: 20}}
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

/// Cookies are numbers that the kernel gives but once: what counts is who has the same.
fn same_cookies(all: &mut Decided) {
    let mut known: Vec<String> = Vec::new();
    let of_cores = |(key, _): &(&String, &mut String)| key.ends_with("\"core_sched\"");
    for (_, value) in all.iter_mut().filter(of_cores) {
        let Some((decided, cookie)) = value.rsplit_once(' ') else {
            continue;
        };
        let digits = cookie.trim_matches('"');
        if digits.len() != 8 || u32::from_str_radix(digits, 16).is_err() {
            continue;
        }
        let at = known.iter().position(|it| it == digits);
        let at = at.unwrap_or(known.len());
        if at == known.len() {
            known.push(digits.to_owned());
        }
        *value = format!("{decided} cookie {at}");
    }
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

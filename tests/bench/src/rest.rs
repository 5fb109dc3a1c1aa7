//! A node full of pods that want nothing: what the proxy costs then, and how soon all of them have what
//! another policy says.
//!
//! The runtime is the test kit's double, which keeps what it is told to make. Control groups are this
//! machine's own, with a process in each container, and so is what the proxy writes there.

use crate::{
    load::Stack,
    parts::{instant_runtime, proxy_options},
    state::median,
};
use anyhow::{Context, Result, ensure};
use koord_integration::{
    Proxy, ProxyOptions,
    classes::{self, PodSpecOf},
    every_hook::BusyPolicy,
    witness::{self, Witness},
};
use koord_testkit::{
    PodCgroups, PodQos, Testbed,
    cri::{ContainerSpec, CriClient, message::LinuxContainerResources},
    poll::{bound, wait_until},
    process,
};
use serde::Serialize;
use std::{
    fs,
    path::PathBuf,
    process::{Child, Stdio},
    thread,
    time::{Duration, Instant},
};

/// What [`Arguments::only`](crate::Arguments) may name.
pub(crate) const NAME: &str = "300 pods at rest";
/// Pods that the policy is about.
pub(crate) const PODS: usize = 300;
/// Pods beside them with CPUs of their own: of these no policy changes anything on cgroup v1.
const APART: usize = 30;
/// As long as from one look at everything to the next, and a little longer.
const REST: Duration = Duration::from_secs(61);
/// Longer than from a list to its last afterthought.
const SETTLING: Duration = Duration::from_secs(8);
/// Until nothing of a change of policy is under way any more.
const PAUSE: Duration = Duration::from_millis(500);
const LOOK: Duration = Duration::from_millis(1);

/// What a container may do in 100 ms of nominal CPUs: 40,000 or 31,250 µs of faster ones.
const LIMIT_US: i64 = 50_000;

/// The two policies that follow each other.
const TURNS: [Turn; 2] = [
    Turn {
        pool: "1",
        be_is_ranked: true,
        burst_percent: 100,
        faster: "1.25",
        disk_bps: 1_073_741_824,
    },
    Turn {
        pool: "0",
        be_is_ranked: false,
        burst_percent: 50,
        faster: "1.6",
        disk_bps: 2_147_483_648,
    },
];

/// The pools of [`TURNS`].
const POOLS: [&str; 2] = ["1", "0"];
/// A file's controller and name, which one version of control groups has, and what it is to hold by each
/// policy.
type Named<'a> = (&'a str, &'a str, [&'a str; 2]);

const CPUS: Named<'_> = ("cpuset", "cpuset.cpus", POOLS);
/// What a container may do.
const LIMIT: [Named<'_>; 2] = [
    ("cpu", "cpu.cfs_quota_us", ["40000", "31250"]),
    ("cpu", "cpu.max", ["40000 100000", "31250 100000"]),
];
/// What it may save up: all of that, and half.
const BURST: [Named<'_>; 2] = [
    ("cpu", "cpu.cfs_burst_us", ["40000", "15625"]),
    ("cpu", "cpu.max.burst", ["40000", "15625"]),
];
/// Best-effort pods that the policy ranks are idle.
const IDLE: Named<'_> = ("cpu", "cpu.idle", ["1", "0"]);

/// In what the policies differ: something for each of the pods.
struct Turn {
    pool: &'static str,
    be_is_ranked: bool,
    burst_percent: u32,
    faster: &'static str,
    /// Bytes a second that best-effort pods may read of the disk.
    disk_bps: u64,
}

/// A file of the kernel, and what it is to hold by each policy.
struct Wanted {
    file: PathBuf,
    texts: [String; 2],
}

/// A disk of this machine, by its name and by its numbers.
struct Disk {
    name: String,
    numbers: String,
}

/// With [`PODS`] pods and some more.
#[derive(Clone, Debug, Serialize)]
pub(crate) struct Rest {
    pods: usize,
    containers: usize,
    /// Values that were held against the kernel while nothing happened, and those written.
    pub(crate) looked_at: f64,
    pub(crate) written: f64,
    /// Files, groups and notes that anybody wrote, made or removed meanwhile, as the kernel tells.
    pub(crate) touched: usize,
    /// CPU time of the process meanwhile, percent of one core.
    pub(crate) cpu_percent: f64,
    /// From the replacement of the policy file until every value that follows from it is in the
    /// kernel, milliseconds: the median, and the most.
    pub(crate) policy_ms: f64,
    pub(crate) most_ms: f64,
}

/// The node: pods, what their files are to hold, and the processes in them.
struct Node {
    proxy: Proxy,
    cgroups: PodCgroups,
    disk: Option<Disk>,
    wanted: Vec<Wanted>,
    containers: usize,
    processes: Vec<Child>,
    runtime: Child,
    // Last: whatever is left is killed and removed when it goes.
    testbed: Testbed,
}

pub(crate) async fn measure(rounds: usize) -> Result<Rest> {
    let mut node = Node::start()?;
    let client = CriClient::connect(&node.proxy.socket()).await?;
    for number in 0..PODS + APART {
        node.run(&client, number).await?;
    }
    drop(client);
    node.want_of_tier()?;
    node.follow(0, Instant::now())?;
    node.settle()?;
    let witness = Witness::of(&witness::groups(&node.testbed))?;

    let (looked_at, written) = (node.count(&[])?, node.count(&["written"])?);
    let (start, spent) = (Instant::now(), node.cpu_time()?);
    thread::sleep(REST);
    let spent = node.cpu_time()? - spent;
    let cpu_percent = spent.as_secs_f64() / start.elapsed().as_secs_f64() * 100.0;
    let looked_at = node.count(&[])? - looked_at;
    let written = node.count(&["written"])? - written;
    let touched = witness.written()?;
    // That is no time, which would be the machine's too.
    ensure!(
        written < 0.5 && touched.is_empty(),
        "{written} values were written at rest, and {touched:#?}"
    );
    let wanted = node.wanted.first().context("nothing is wanted")?;
    witness.sees(&wanted.file)?;
    drop(witness);
    ensure!(
        looked_at >= f64::from(u32::try_from(PODS)?),
        "nothing was looked at in a whole minute"
    );

    let mut took = Vec::new();
    // The first round warms up and is thrown away.
    for round in 0..=rounds {
        for turn in [1, 0] {
            let time = node.replace_policy(turn)?;
            if round > 0 {
                took.push(time.as_secs_f64() * 1e3);
            }
            thread::sleep(PAUSE);
        }
    }
    node.proxy.stop()?;
    Ok(Rest {
        pods: PODS + APART,
        containers: node.containers,
        looked_at,
        written,
        touched: touched.len(),
        cpu_percent,
        most_ms: took.iter().copied().fold(0.0, f64::max),
        policy_ms: median(took),
    })
}

// === impl Node ===

impl Node {
    fn start() -> Result<Self> {
        let testbed = Testbed::new()?;
        let socket = testbed.directory().join("runtime.sock");
        let runtime = instant_runtime(Stack::Frames, &testbed, &socket, &["--keep"])?;
        let cgroups = PodCgroups::new(&testbed)?;
        let disk = disk();
        let options = ProxyOptions {
            policy: Some(policy(&TURNS[0], disk.as_ref())),
            ..proxy_options()?
        };
        Ok(Self {
            proxy: Proxy::start(&testbed, &socket, options)?,
            cgroups,
            disk,
            wanted: Vec::new(),
            containers: 0,
            processes: Vec::new(),
            runtime,
            testbed,
        })
    }

    /// A pod by its number, as kubelet and runtime would make it.
    async fn run(&mut self, client: &CriClient, number: usize) -> Result<()> {
        let (pod, containers) = spec(number, self.disk.as_ref());
        let cgroup = self.cgroups.pod(pod.pod.uid(), pod.qos)?;
        let spec = pod.pod.clone().cgroup(&cgroup);
        let sandbox = client.run_pod(&spec).await?;
        self.cgroups.container(&cgroup, &sandbox)?;
        if pod.class == "BE" {
            self.want(&[IDLE], |controller, name| {
                cgroup.file(controller, None, name)
            })?;
        }
        for container in &containers {
            let id = client.create_container(&sandbox, container, &spec).await?;
            self.cgroups.container(&cgroup, &id)?;
            cgroup.enter(&id, self.process()?)?;
            client.start_container(&id).await?;
            self.containers += 1;
            if matches!(pod.class, "LS" | "-") {
                let file = |controller: &str, name: &str| cgroup.file(controller, Some(&id), name);
                self.want(&[CPUS], file)?;
                self.want(&LIMIT, file)?;
                self.want(&BURST, file)?;
            }
        }
        Ok(())
    }

    /// Notes what the first of these files is to hold that this kernel has.
    fn want(&mut self, names: &[Named<'_>], file: impl Fn(&str, &str) -> PathBuf) -> Result<()> {
        let mut files = names.iter().map(|(controller, name, texts)| Wanted {
            file: file(controller, name),
            texts: texts.map(str::to_owned),
        });
        let wanted = files.find(|it| it.file.exists());
        let wanted = wanted.with_context(|| format!("this kernel has none of {names:?}"))?;
        self.wanted.push(wanted);
        Ok(())
    }

    /// What all best-effort pods may read of the disk, if there is one.
    fn want_of_tier(&mut self) -> Result<()> {
        let Some(Disk { numbers, .. }) = &self.disk else {
            return Ok(());
        };
        let texts = TURNS.each_ref().map(|turn| {
            let bps = turn.disk_bps;
            [
                format!("{numbers} {bps}"),
                format!("{numbers} rbps={bps} wbps=max riops=max wiops=max"),
            ]
        });
        let [v1, v2] = [0, 1].map(|version| texts.each_ref().map(|it| &*it[version]));
        let names = [
            ("blkio", "blkio.throttle.read_bps_device", v1),
            ("io", "io.max", v2),
        ];
        // That of any pod is below it.
        let pod = self.cgroups.existing_pod("", PodQos::BestEffort);
        self.want(&names, |controller, name| {
            pod.directory(controller).with_file_name(name)
        })
    }

    /// A process that does nothing.
    fn process(&mut self) -> Result<u32> {
        let mut command = self.testbed.command("sleep");
        let child = command.arg("1d").stdout(Stdio::null()).spawn()?;
        let pid = child.id();
        self.processes.push(child);
        // Before that it is on its way into the testbed.
        wait_until("a process sleeps", || {
            fs::read_to_string(format!("/proc/{pid}/comm")).is_ok_and(|name| name.trim() == "sleep")
        });
        Ok(pid)
    }

    /// Waits until no value is written any more.
    fn settle(&self) -> Result<()> {
        let start = Instant::now();
        let mut before = -1.0;
        loop {
            let written = self.count(&["written"])?;
            if (written - before).abs() < 0.5 {
                return Ok(());
            }
            ensure!(start.elapsed() < bound(), "values are written on and on");
            before = written;
            thread::sleep(SETTLING);
        }
    }

    fn replace_policy(&self, turn: usize) -> Result<Duration> {
        let start = Instant::now();
        let text = policy(&TURNS[turn], self.disk.as_ref());
        self.proxy.write_policy(&text)?;
        self.follow(turn, start)?;
        Ok(start.elapsed())
    }

    /// Looks until every file holds what it is to hold.
    fn follow(&self, turn: usize, start: Instant) -> Result<()> {
        for Wanted { file, texts } in &self.wanted {
            while fs::read_to_string(file)?.trim() != texts[turn].as_str() {
                let file = file.display();
                let wanted = &texts[turn];
                ensure!(start.elapsed() < bound(), "{file} is not {wanted}");
                thread::sleep(LOOK);
            }
        }
        Ok(())
    }

    /// Values that the proxy has held against the kernel, with these labels.
    fn count(&self, labels: &[&str]) -> Result<f64> {
        let counter = "koord_runtime_proxy_kernel_settings_total";
        self.proxy.metric(counter, labels)
    }

    fn cpu_time(&self) -> Result<Duration> {
        let pid = self.proxy.pid().context("the proxy runs")?;
        let time = process::cpu_time(pid).context("the proxy's CPU time")?;
        Ok(time.total())
    }
}

impl Drop for Node {
    fn drop(&mut self) {
        eprintln!("clearing away {}", self.testbed.directory().display());
        for child in self.processes.iter_mut().chain([&mut self.runtime]) {
            drop(child.kill().and_then(|()| child.wait()));
        }
    }
}

/// A pod and its containers: by turns latency-sensitive, without a class and best-effort; the last of
/// them have CPUs of their own. Every second one that may has two containers.
fn spec(number: usize, disk: Option<&Disk>) -> (PodSpecOf, Vec<ContainerSpec>) {
    let name = format!("rest-{number}");
    let mut pod = match number % 3 {
        _ if number >= PODS => classes::lsr(&name),
        0 => classes::ls(&name, POOLS[0]),
        1 => classes::plain(&name, POOLS[0]),
        _ => classes::be(&name),
    };
    let annotation = match pod.class {
        "LS" => Some(("koordinator.sh/oom-score-adj", "500".to_owned())),
        "BE" => disk.map(|disk| ("koordinator.sh/blkioQOS", blocks(disk))),
        _ => None,
    };
    if let Some((key, value)) = annotation {
        pod.pod = pod.pod.annotation(key, &value);
    }
    if !matches!(pod.class, "LS" | "-") {
        let container = pod.container.clone();
        return (pod, vec![container]);
    }
    let names: &[&str] = match number % 2 {
        0 => &["main"],
        _ => &["main", "side"],
    };
    let limited = LinuxContainerResources {
        cpu_period: 100_000,
        cpu_quota: LIMIT_US,
        cpu_shares: 256,
        ..Default::default()
    };
    let container = |name: &&str| ContainerSpec::new(name).resources(limited.clone());
    (pod, names.iter().map(container).collect())
}

/// The policy of a turn.
fn policy(turn: &Turn, disk: Option<&Disk>) -> String {
    BusyPolicy {
        be_is_ranked: turn.be_is_ranked,
        burst_percent: turn.burst_percent,
        faster: turn.faster,
        disk: disk.map(|disk| (&*disk.name, turn.disk_bps)),
        ..BusyPolicy::new(turn.pool)
    }
    .text()
}

/// What a best-effort pod asks for itself: more than any disk does.
fn blocks(Disk { name, .. }: &Disk) -> String {
    format!(
        r#"{{"blocks":[{{"name":"{name}","type":"device","ioCfg":{{"writeBPS":1073741824}}}}]}}"#
    )
}

/// A disk of this machine, if it has one.
fn disk() -> Option<Disk> {
    let devices = fs::read_dir("/sys/block").ok()?.flatten();
    let mut names: Vec<String> = devices
        .filter_map(|device| device.file_name().into_string().ok())
        .filter(|name| {
            !["loop", "ram", "zram", "dm-", "sr"]
                .iter()
                .any(|it| name.starts_with(it))
        })
        .collect();
    names.sort();
    let name = names.into_iter().next()?;
    let numbers = fs::read_to_string(format!("/sys/block/{name}/dev")).ok()?;
    Some(Disk {
        name,
        numbers: numbers.trim().to_owned(),
    })
}

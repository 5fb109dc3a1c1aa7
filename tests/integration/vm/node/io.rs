//! Limits of block devices by the kernel's own files, and what a limit is worth: on loop devices, of
//! which one has a file system that is a pod's volume.

use crate::{
    SmallNode, check,
    machine::{command, make},
    node,
};
use anyhow::{Context, Result, anyhow, ensure};
use koord_integration::{
    Front, Node, ProxyOptions, RunningPod,
    classes::{NO_POLICY, PodSpecOf},
};
use koord_kernel::proof::{
    Hierarchies, RealGround,
    raw_writes_about_a_device_are_answered_as_the_script_says as about_a_device,
};
use koord_testkit::{
    PodQos,
    cri::{ContainerSpec, CriClient, PodSpec},
    poll::{comes_true, wait_until},
};
use rustix::{
    fs::{Mode, OFlags, open},
    io::{pread, pwrite},
};
use std::{
    env, fmt, fs,
    io::{self, BufRead, BufReader, Write},
    path::Path,
    process::{Child, ChildStdout, Command, Stdio},
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    thread,
    time::{Duration, Instant},
};

const MIB: u64 = 1 << 20;

/// What best-effort pods may do to the first device, and how the time of that is shared out.
fn policy(limits: &str, cost: &str) -> String {
    format!(
        "apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {{name: node-1}}
spec:
  resourceQOSStrategy:
    beClass: {{blkioQOS: {{enable: true, blocks: [
      {{name: none, type: volumegroup, ioCfg: {{readBPS: 1}}}},
      {{name: /dev/loop0, type: device, ioCfg: {{{limits}}}}}]}}}}
    cgroupRoot: {{blkioQOS: {{enable: true, blocks: [{cost}]}}}}
"
    )
}

const ALL: &str =
    "readBPS: 1048576, writeBPS: 2097152, readIOPS: 100, writeIOPS: 200, ioWeightPercent: 50";
const COST: &str = "{name: /dev/loop0, type: device, ioCfg: {readLatency: 4000, \
    enableUserModel: true, modelReadBPS: 1000001, modelReadSeqIOPS: 1002, modelReadRandIOPS: 1003, \
    modelWriteBPS: 1000004, modelWriteSeqIOPS: 1005, modelWriteRandIOPS: 1006}}";

/// What the pod asks for its own volume.
const OWN: &str =
    r#"{"blocks":[{"name":"pvc-1","type":"podvolume","ioCfg":{"writeBPS":4194304}}]}"#;

/// `io.max` and `io.weight` of the directory of best-effort pods, `io.max` of the pod, and
/// `io.cost.qos` and `io.cost.model` of the root.
type Held = [String; 5];

const WEIGHT: &str = "default 100";
const VOLUME: &str = "7:1 rbps=max wbps=4194304 riops=max wiops=max";
const SHARED: [&str; 2] = [
    "7:0 enable=1 ctrl=user rpct=95.00 rlat=4000 wpct=95.00 wlat=3000",
    "7:0 ctrl=user rbps=1000001 rseqiops=1002 rrandiops=1003 wbps=1000004 wseqiops=1005 \
     wrandiops=1006",
];
const WHOLE: [&str; 5] = [
    "7:0 rbps=1048576 wbps=2097152 riops=100 wiops=200",
    "default 100, 7:0 50",
    VOLUME,
    SHARED[0],
    SHARED[1],
];
const LESS: [&str; 5] = [
    "7:0 rbps=max wbps=max riops=max wiops=7",
    WEIGHT,
    VOLUME,
    SHARED[0],
    SHARED[1],
];
const NOTHING: [&str; 5] = ["", WEIGHT, "", "", ""];

pub(super) fn check_all() {
    for device in ["loop0", "loop1", "loop5"] {
        let file = format!("/tmp/{device}");
        command("truncate", &["-s", "64M", &file]);
        command("losetup", &[&format!("/dev/{device}"), &file]);
    }
    command("mke2fs", &["/dev/loop1"]);
    check("this_kernel_answers_as_the_fake_tree", async || {
        let hierarchies = Hierarchies::v2(Path::new("/sys/fs/cgroup"));
        about_a_device(&mut RealGround::new(hierarchies, "devices"));
        Ok(())
    });
    check("devices_are_limited_and_shared_out_by_cri", || {
        follows(Front::Cri)
    });
    check("devices_are_limited_and_shared_out_by_nri", || {
        follows(Front::Nri)
    });
    check("a_limit_is_kept_and_others_keep_their_rate_by_cri", || {
        measured(Front::Cri, Work::Read)
    });
    check("a_limit_is_kept_and_others_keep_their_rate_by_nri", || {
        measured(Front::Nri, Work::Write)
    });
}

fn start(front: Front, policy: String) -> SmallNode {
    node(ProxyOptions {
        policy: Some(policy),
        args: vec!["--feature-gates=BlkIOReconcile=true".to_owned()],
        front,
        ..ProxyOptions::default()
    })
}

async fn follows(front: Front) -> Result<()> {
    let mut node = start(front, policy(ALL, COST));
    let client = node.client().await?;
    let name = match front {
        Front::Nri => "by-nri",
        _ => "by-cri",
    };
    let pod = run(&node, &client, (name, "BE", PodQos::BestEffort)).await?;
    let wait = |when: &str, expected: [&str; 5]| {
        let came = comes_true(|| held(&pod).is_ok_and(|held| held == expected));
        let held = held(&pod)?;
        ensure!(came, "{when}: {held:#?}, not {expected:#?}");
        Ok(())
    };
    wait("at the start", WHOLE)?;
    let missing = "not for all devices: volume group none";
    wait_until(missing, || {
        let ledger = node.proxy.ledger();
        ledger.is_ok_and(|ledger| ledger.to_string().contains(missing))
    });

    node.proxy.write_policy(&policy("writeIOPS: 7", COST))?;
    wait("under another policy", LESS)?;
    for (state, expected) in [("off", NOTHING), ("on", LESS)] {
        node.proxy.switch(&format!("BlkIOReconcile={state}"))?;
        wait(state, expected)?;
    }
    node.proxy.kill9()?;
    ensure!(held(&pod)? == LESS, "values outlive us");
    node.launch_proxy()?;
    node.proxy.write_policy(&policy(ALL, ""))?;
    let mut unshared = WHOLE;
    // The kernel tells no model of a device whose time it does not share out by one.
    (unshared[3], unshared[4]) = ("", "");
    wait("under another policy after a restart", unshared)?;
    node.proxy.write_policy(NO_POLICY)?;
    let mut own = NOTHING;
    own[2] = VOLUME;
    wait("without a policy", own)?;
    node.proxy.stop()?;
    Ok(())
}

/// A pod with a volume on the second device.
async fn run(
    node: &Node,
    client: &CriClient,
    (name, class, qos): (&str, &str, PodQos),
) -> Result<RunningPod> {
    let spec = PodSpec::new(name).label("koordinator.sh/qosClass", class);
    let pods = Path::new("/var/lib/kubelet/pods").join(spec.uid());
    let volume = pods.join("volumes/kubernetes.io~csi/pvc-1/mount");
    let volume = volume.to_str().context("a path of a check")?;
    make(volume);
    command("mount", &["-t", "ext4", "/dev/loop1", volume]);
    let spec = PodSpecOf {
        name: name.to_owned(),
        class: "-",
        qos,
        pod: spec.annotation("koordinator.sh/blkioQOS", OWN),
        container: ContainerSpec::new("main"),
        expected: Vec::new(),
    };
    node.run(client, &spec).await
}

fn held(pod: &RunningPod) -> Result<Held> {
    let own = pod.cgroup.directory("io");
    let lines = |file: &Path| {
        let text = fs::read_to_string(file).with_context(|| file.display().to_string())?;
        anyhow::Ok(text.lines().collect::<Vec<_>>().join(", "))
    };
    let of_first = |file: &str| {
        let text = fs::read_to_string(Path::new("/sys/fs/cgroup").join(file))?;
        let line = text.lines().find(|line| line.starts_with("7:0 "));
        anyhow::Ok(line.unwrap_or_default().to_owned())
    };
    let qos = of_first("io.cost.qos")?;
    let model = of_first("io.cost.model")?;
    Ok([
        lines(&own.join("../io.max"))?,
        lines(&own.join("../io.weight"))?,
        lines(&own.join("io.max"))?,
        said(&qos, "enable=1", &["min=", "max="]),
        said(&model, "ctrl=user", &["model="]),
    ])
}

/// A line without some of its words, if it says this.
fn said(line: &str, wanted: &str, without: &[&str]) -> String {
    let words = line.split(' ');
    let words = words.filter(|word| !without.iter().any(|it| word.starts_with(it)));
    let words: Vec<&str> = words.collect();
    match words.contains(&wanted) {
        true => words.join(" "),
        false => String::new(),
    }
}

/// Bytes that the device gives in a second to all pods together, by the kernel's own limit above them:
/// what a device of memory gives is the host's time, and not the same from one second to the next.
const WHOLE_DEVICE: u64 = 8 * MIB;

/// Those of them that best-effort pods have.
const LIMIT: u64 = MIB / 4;

/// Rounds at most until five count.
const ROUNDS: usize = 40;

/// What is done to a device, and limited there.
#[derive(Clone, Copy)]
enum Work {
    Read,
    Write,
}

// === impl Work ===

impl Work {
    const ALL: [Self; 2] = [Self::Read, Self::Write];

    /// What this program is called with to do it.
    fn name(self) -> &'static str {
        match self {
            Self::Read => "read",
            Self::Write => "write",
        }
    }

    /// The key of its limit in the policy, and in the kernel's file.
    fn keys(self) -> [&'static str; 2] {
        match self {
            Self::Read => ["readBPS", "rbps"],
            Self::Write => ["writeBPS", "wbps"],
        }
    }
}

/// A best-effort pod that is kept to its limit, and one that is not limited beside it.
async fn measured(front: Front, work: Work) -> Result<()> {
    let [policy_key, key] = work.keys();
    let node = start(front, policy(&format!("{policy_key}: {LIMIT}"), ""));
    let client = node.client().await?;
    let named = |name: &str| format!("{name}-{}", work.name());
    let limited = named("limited");
    let limited = run(&node, &client, (&limited, "BE", PodQos::BestEffort)).await?;
    let burstable = PodQos::Burstable { milli_cpu: 500 };
    let free = run(&node, &client, (&named("free"), "LS", burstable)).await?;
    wait_until("the limit is there", || {
        held(&limited).is_ok_and(|held| held[0].contains(&format!("{key}={LIMIT}")))
    });
    let all_pods = limited.cgroup.directory("io").join("../../io.max");
    fs::write(&all_pods, format!("7:0 {key}={WHOLE_DEVICE}"))?;
    let measured = kept(&free, &limited, work);
    fs::write(&all_pods, format!("7:0 {key}=max"))?;
    measured
}

/// Fails unless one is kept to its limit, and the other keeps nine tenths of its rate beside it.
fn kept(free: &RunningPod, limited: &RunningPod, work: Work) -> Result<()> {
    let rounds = rounds(free, limited, work)?;
    let lines = rounds.each_ref().map(Round::to_string);
    for line in &lines {
        println!("koord-guest: {}: {line}", work.name());
    }
    let median = |of: fn(&Round) -> u64| median(rounds.each_ref().map(of));
    let kept = median(|it| it.limited);
    let percent = median(Round::percent);
    let all = lines.join("\n");
    ensure!(
        kept > LIMIT / 2 && kept < LIMIT * 5 / 4,
        "{kept} bytes a second, not {LIMIT}:\n{all}"
    );
    ensure!(percent >= 90, "{percent} % of its rate:\n{all}");
    Ok(())
}

/// What the two read or write in a second.
struct Round {
    /// The one that is not limited, by itself: before and after the other half of the round, because the
    /// host may have given the machine more or less meanwhile.
    alone: u64,
    beside: u64,
    limited: u64,
}

// === impl Round ===

impl Round {
    /// How much of its rate it keeps.
    fn percent(&self) -> u64 {
        self.beside * 100 / self.alone.max(1)
    }
}

impl fmt::Display for Round {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self {
            alone,
            beside,
            limited,
        } = self;
        let percent = self.percent();
        write!(
            f,
            "{alone} bytes a second alone, {beside} ({percent} %) beside {limited}"
        )
    }
}

/// In turn by itself and beside the other, which works for as long and longer. A round counts if by itself one
/// has about all that the kernel lets it have, before and after: where the host has no time for that, it has none
/// to tell by whom it is taken.
fn rounds(free: &RunningPod, limited: &RunningPod, work: Work) -> Result<[Round; 5]> {
    let full = WHOLE_DEVICE * 9 / 10..WHOLE_DEVICE * 5 / 4;
    let mut before = Worker::inside(free, work)?.rate_of(WHILE)?;
    let (mut counted, mut others) = (Vec::new(), Vec::new());
    for _ in 0..ROUNDS {
        let other = Worker::inside(limited, work)?;
        let beside = Worker::inside(free, work)?.rate_of(WHILE)?;
        let limited = other.rate()?;
        let after = Worker::inside(free, work)?.rate_of(WHILE)?;
        let round = Round {
            alone: before.midpoint(after),
            beside,
            limited,
        };
        match full.contains(&before) && full.contains(&after) {
            true => counted.push(round),
            false => others.push(round.to_string()),
        }
        before = after;
        if counted.len() == 5 {
            break;
        }
    }
    let count = counted.len();
    let too_few =
        || anyhow!("{count} rounds count: by itself it has not {WHOLE_DEVICE}: {others:#?}");
    counted.try_into().map_err(|_| too_few())
}

fn median(mut figures: [u64; 5]) -> u64 {
    figures.sort_unstable();
    figures[2]
}

/// A process of a pod that works on the first device until it is told to end. It is beside the
/// containers, which may open no device.
struct Worker {
    process: Child,
    output: BufReader<ChildStdout>,
}

/// What it says once it has begun.
const WORKS: &str = "works";
const WHILE: Duration = Duration::from_secs(3);
const BLOCK: usize = 64 << 10;

// === impl Worker ===

impl Worker {
    /// One that has begun.
    fn inside(pod: &RunningPod, work: Work) -> Result<Self> {
        let mut process = Command::new(env::current_exe()?)
            .arg(work.name())
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let group = pod.cgroup.directory("io").join("worker");
        fs::create_dir_all(&group)?;
        fs::write(group.join("cgroup.procs"), process.id().to_string())?;
        let stdin = process.stdin.as_mut().context("it is piped")?;
        stdin.write_all(b"go\n")?;
        let output = process.stdout.take().context("it is piped")?;
        let mut worker = Self {
            process,
            output: BufReader::new(output),
        };
        let said = worker.line()?;
        ensure!(said == WORKS, "the worker says {said:?}");
        Ok(worker)
    }

    /// Bytes in a second, over a while.
    fn rate_of(self, a_while: Duration) -> Result<u64> {
        thread::sleep(a_while);
        self.rate()
    }

    /// Bytes in a second, from its beginning until now.
    fn rate(mut self) -> Result<u64> {
        // It ends with its input.
        drop(self.process.stdin.take());
        let rate = self.line()?;
        ensure!(self.process.wait()?.success(), "the worker failed");
        Ok(rate.parse()?)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

/// What the worker does, if this is one: past the cache, because it is the device that is limited.
pub(super) fn work_if_told() -> bool {
    let told = env::args().nth(1);
    let Some(work) = Work::ALL
        .into_iter()
        .find(|it| told.as_deref() == Some(it.name()))
    else {
        return false;
    };
    wait_for_a_line();
    let is_over = Arc::new(AtomicBool::new(false));
    let end = is_over.clone();
    thread::spawn(move || {
        wait_for_a_line();
        end.store(true, Ordering::Relaxed);
    });
    let flags = OFlags::RDWR | OFlags::DIRECT | OFlags::CLOEXEC;
    let device = open("/dev/loop0", flags, Mode::empty()).expect("a device of this machine");
    let mut memory = vec![0; 2 * BLOCK];
    let start = memory.as_ptr().align_offset(4096);
    let block = &mut memory[start..start + BLOCK];
    let (begin, mut bytes) = (Instant::now(), 0);
    while !is_over.load(Ordering::Relaxed) {
        let at = bytes % (32 * MIB);
        let done = match work {
            Work::Read => pread(&device, &mut *block, at),
            Work::Write => pwrite(&device, block, at),
        };
        if bytes == 0 {
            println!("{WORKS}");
        }
        bytes += u64::try_from(done.expect("the device works")).expect("a block is small");
    }
    let micros = begin.elapsed().as_micros();
    println!("{}", u128::from(bytes) * 1_000_000 / micros);
    true
}

/// The end of the input is as good as one.
fn wait_for_a_line() {
    let mut line = String::new();
    io::stdin().read_line(&mut line).expect("it is piped");
}

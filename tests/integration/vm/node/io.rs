//! Limits of block devices by the kernel's own files, and what a limit is worth: on loop devices, of
//! which one has a file system that is a pod's volume.

use crate::{
    SmallNode, check,
    machine::{command, make},
    node,
};
use anyhow::{Context, Result, bail, ensure};
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
use rustix::fs::{Mode, OFlags, open};
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
    check("a_limit_is_kept_and_others_keep_their_rate", measured);
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
        let switch = format!("BlkIOReconcile={state}");
        let (code, text) = node.proxy.admin("PUT", "/hooks", &switch)?;
        ensure!(code == 200, "{text}");
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
const WHOLE_DEVICE: u64 = 32 * MIB;

/// A best-effort pod that may read a MiB in a second, and one that is not limited beside it.
async fn measured() -> Result<()> {
    let limit = MIB;
    let node = start(Front::Cri, policy(&format!("readBPS: {limit}"), ""));
    let client = node.client().await?;
    let limited = run(&node, &client, ("limited", "BE", PodQos::BestEffort)).await?;
    let burstable = PodQos::Burstable { milli_cpu: 500 };
    let free = run(&node, &client, ("free", "LS", burstable)).await?;
    wait_until("the limit is there", || {
        held(&limited).is_ok_and(|held| held[0].contains("rbps=1048576"))
    });
    let all_pods = limited.cgroup.directory("io").join("../../io.max");
    fs::write(all_pods, format!("7:0 rbps={WHOLE_DEVICE}"))?;
    let mut all = String::new();
    for _ in 0..SETS {
        let (percent, lines) = kept(&free, &limited, limit)?;
        if percent >= 90 {
            return Ok(());
        }
        all += &format!("{percent} %:\n{lines}\n");
    }
    bail!("{all}")
}

/// Sets of rounds at most. A neighbour on the host has all rounds of one set slower, by no limit of ours; a
/// limit that others pay for shows in each set.
const SETS: usize = 3;

/// How much of its rate one keeps beside the other, which is kept to its limit, in percent; and what was
/// measured.
fn kept(free: &RunningPod, limited: &RunningPod, limit: u64) -> Result<(u64, String)> {
    let rounds = rounds(free, limited)?;
    let lines = rounds.each_ref().map(Round::to_string);
    for line in &lines {
        println!("koord-guest: {line}");
    }
    let median = |of: fn(&Round) -> u64| median(rounds.each_ref().map(of));
    let [alone, kept] = [median(|it| it.alone), median(|it| it.limited)];
    let percent = median(Round::percent);
    let all = lines.join("\n");
    ensure!(
        alone > WHOLE_DEVICE / 2 && alone < WHOLE_DEVICE * 5 / 4,
        "{alone} bytes a second alone, not {WHOLE_DEVICE}:\n{all}"
    );
    ensure!(
        kept > limit / 2 && kept < limit * 5 / 4,
        "{kept} bytes a second, not {limit}:\n{all}"
    );
    Ok((percent, all))
}

/// What the two read in a second.
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

/// In turn by itself and beside the other, which reads for as long and longer.
fn rounds(free: &RunningPod, limited: &RunningPod) -> Result<[Round; 5]> {
    let mut before = Reader::inside(free)?.rate_of(WHILE)?;
    let mut round = || {
        let other = Reader::inside(limited)?;
        let beside = Reader::inside(free)?.rate_of(WHILE)?;
        let limited = other.rate()?;
        let after = Reader::inside(free)?.rate_of(WHILE)?;
        let alone = before.midpoint(after);
        before = after;
        anyhow::Ok(Round {
            alone,
            beside,
            limited,
        })
    };
    Ok([round()?, round()?, round()?, round()?, round()?])
}

fn median(mut figures: [u64; 5]) -> u64 {
    figures.sort_unstable();
    figures[2]
}

/// A process of a pod that reads from the first device until it is told to end. It is beside the
/// containers, which may open no device.
struct Reader {
    process: Child,
    output: BufReader<ChildStdout>,
}

/// What this program is called with to be that.
const READ: &str = "read";
/// What it says once it has read something.
const READS: &str = "reads";
const WHILE: Duration = Duration::from_secs(2);
const BLOCK: usize = 64 << 10;

// === impl Reader ===

impl Reader {
    /// One that has begun.
    fn inside(pod: &RunningPod) -> Result<Self> {
        let mut process = Command::new(env::current_exe()?)
            .arg(READ)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let group = pod.cgroup.directory("io").join("reader");
        fs::create_dir_all(&group)?;
        fs::write(group.join("cgroup.procs"), process.id().to_string())?;
        let stdin = process.stdin.as_mut().context("it is piped")?;
        stdin.write_all(b"go\n")?;
        let output = process.stdout.take().context("it is piped")?;
        let mut reader = Self {
            process,
            output: BufReader::new(output),
        };
        let said = reader.line()?;
        ensure!(said == READS, "the reader says {said:?}");
        Ok(reader)
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
        ensure!(self.process.wait()?.success(), "the reader failed");
        Ok(rate.parse()?)
    }

    fn line(&mut self) -> Result<String> {
        let mut line = String::new();
        self.output.read_line(&mut line)?;
        Ok(line.trim().to_owned())
    }
}

/// What the reader does, if this is one: past the cache, because it is the device that is limited.
pub(super) fn read_if_told() -> bool {
    if env::args().nth(1).as_deref() != Some(READ) {
        return false;
    }
    wait_for_a_line();
    let is_over = Arc::new(AtomicBool::new(false));
    let end = is_over.clone();
    thread::spawn(move || {
        wait_for_a_line();
        end.store(true, Ordering::Relaxed);
    });
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let device = open("/dev/loop0", flags, Mode::empty()).expect("a device of this machine");
    let mut memory = vec![0; 2 * BLOCK];
    let start = memory.as_ptr().align_offset(4096);
    let block = &mut memory[start..start + BLOCK];
    let (begin, mut bytes) = (Instant::now(), 0);
    while !is_over.load(Ordering::Relaxed) {
        let at = bytes % (32 * MIB);
        let read = rustix::io::pread(&device, &mut *block, at).expect("it can be read");
        if bytes == 0 {
            println!("{READS}");
        }
        bytes += u64::try_from(read).expect("a block is small");
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

//! Limits of block devices by the kernel's own files, and what a limit is worth: on loop devices, of
//! which one has a file system that is a pod's volume.

use crate::{
    check,
    machine::{command, make},
    node,
};
use anyhow::{Context, Result, ensure};
use koord_integration::{
    Front, Node, ProxyOptions, RunningPod,
    classes::{NO_POLICY, PodSpecOf},
};
use koord_testkit::{
    PodQos,
    cri::{ContainerSpec, CriClient, PodSpec},
    poll::{comes_true, wait_until},
};
use rustix::fs::{Mode, OFlags, open};
use std::{
    env, fs,
    io::{BufRead, BufReader, Write},
    path::Path,
    process::{Child, Command, Stdio},
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
    for device in ["loop0", "loop1"] {
        let file = format!("/tmp/{device}");
        command("truncate", &["-s", "64M", &file]);
        command("losetup", &[&format!("/dev/{device}"), &file]);
    }
    command("mke2fs", &["/dev/loop1"]);
    check("devices_are_limited_and_shared_out_by_cri", || {
        follows(Front::Cri)
    });
    check("devices_are_limited_and_shared_out_by_nri", || {
        follows(Front::Nri)
    });
    check("a_limit_is_kept_and_others_keep_their_rate", measured);
}

fn start(front: Front, policy: String) -> std::mem::ManuallyDrop<Node> {
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
    let root = Path::new("/sys/fs/cgroup");
    let qos = lines(&root.join("io.cost.qos"))?;
    let model = lines(&root.join("io.cost.model"))?;
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
    // What the host does meanwhile is in every figure, so one bad round says nothing.
    let mut rounds = 0;
    loop {
        rounds += 1;
        let [alone, beside, kept] = round(&free, &limited)?;
        println!("koord-guest: {alone} bytes a second alone, {beside} beside {kept}");
        ensure!(kept < limit * 5 / 4, "{kept}");
        let is_shown = alone > 4 * limit && kept > limit / 2 && beside * 10 >= alone * 9;
        if is_shown {
            return Ok(());
        }
        ensure!(rounds < 20, "{beside} of {alone} beside {kept}");
    }
}

/// What one reads alone and beside the other, and the other: medians of five.
fn round(free: &RunningPod, limited: &RunningPod) -> Result<[u64; 3]> {
    let (mut alone, mut beside, mut kept) = (Vec::new(), Vec::new(), Vec::new());
    for _ in 0..5 {
        alone.push(Reader::inside(free)?.started()?.rate()?);
        let other = Reader::inside(limited)?.started()?;
        beside.push(Reader::inside(free)?.started()?.rate()?);
        kept.push(other.rate()?);
    }
    Ok([alone, beside, kept].map(median))
}

fn median(mut rates: Vec<u64>) -> u64 {
    rates.sort_unstable();
    rates[rates.len() / 2]
}

/// A process of a pod that reads from the first device for a second. It is beside the containers,
/// which may open no device.
struct Reader(Child);

/// What this program is called with to be that.
const READ: &str = "read";
const WHILE: Duration = Duration::from_secs(1);
const BLOCK: usize = 64 << 10;

impl Reader {
    fn inside(pod: &RunningPod) -> Result<Self> {
        let child = Command::new(env::current_exe()?)
            .arg(READ)
            .stdin(Stdio::piped())
            .stdout(Stdio::piped())
            .spawn()?;
        let group = pod.cgroup.directory("io").join("reader");
        fs::create_dir_all(&group)?;
        fs::write(group.join("cgroup.procs"), child.id().to_string())?;
        Ok(Self(child))
    }

    /// Lets it begin, and waits until it has.
    fn started(mut self) -> Result<Self> {
        let stdin = self.0.stdin.as_mut().context("it is piped")?;
        stdin.write_all(b"go\n")?;
        Ok(self)
    }

    /// Bytes in a second.
    fn rate(mut self) -> Result<u64> {
        let stdout = self.0.stdout.take().context("it is piped")?;
        let mut line = String::new();
        BufReader::new(stdout).read_line(&mut line)?;
        ensure!(self.0.wait()?.success(), "the reader failed");
        Ok(line.trim().parse()?)
    }
}

/// What the reader does, if this is one: past the cache, because it is the device that is limited.
pub(super) fn read_if_told() -> bool {
    if env::args().nth(1).as_deref() != Some(READ) {
        return false;
    }
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).expect("it is piped");
    let flags = OFlags::RDONLY | OFlags::DIRECT | OFlags::CLOEXEC;
    let device = open("/dev/loop0", flags, Mode::empty()).expect("a device of this machine");
    let mut memory = vec![0; 2 * BLOCK];
    let start = memory.as_ptr().align_offset(4096);
    let block = &mut memory[start..start + BLOCK];
    let (begin, mut bytes) = (Instant::now(), 0);
    while begin.elapsed() < WHILE {
        let at = bytes % (32 * MIB);
        let read = rustix::io::pread(&device, &mut *block, at).expect("it can be read");
        bytes += u64::try_from(read).expect("a block is small");
    }
    let micros = begin.elapsed().as_micros();
    println!("{}", u128::from(bytes) * 1_000_000 / micros);
    true
}

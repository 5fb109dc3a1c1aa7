//! Pods whose labels and annotations are malformed, on a real containerd and this machine's kernel: they
//! start with all that is decided without the hook that cannot read them. Where that hook insists, the call
//! is refused, and the kernel holds what it held.

use anyhow::{Context, Result, bail, ensure};
use koord_integration::{
    Front, Node, ProxyOptions, RunningPod,
    classes::{self, PodSpecOf},
    every_hook::{self, BusyPolicy},
};
use koord_testkit::{
    ContainerdVersion, PodCgroup,
    cri::{CallError, CriClient, PodSpec},
    poll::{comes_true, wait_until},
};
use serde_json::Value;
use std::{
    collections::{BTreeMap, BTreeSet},
    fs,
};

const EXTENDED_RESOURCE_SPEC: &str = "node.koordinator.sh/extended-resource-spec";
const RESOURCE_STATUS: &str = "scheduling.koordinator.sh/resource-status";
const DEVICE_ALLOCATED: &str = "scheduling.koordinator.sh/device-allocated";
const NETWORK_QOS: &str = "koordinator.sh/networkQOS";
const QOS_CLASS: &str = "koordinator.sh/qosClass";

/// Says of each hook which labels and annotations it reads.
const PAGE: &str = include_str!("../../../docs/hooks.md");

/// Bytes of a value that is huge and would still be read.
const HUGE: usize = 24 << 10;
/// Bytes of a label that are huge and that containerd takes: 4,096 with its key.
const LONG: usize = 4_000;

/// What hooks may write of a pod and of its container, what goes with that, and what is there where nobody
/// has decided anything or asked for it.
const FILES: [(&str, &str, &str); 12] = [
    ("cpu", "cpu.shares", "2"),
    ("cpu", "cpu.cfs_quota_us", "-1"),
    ("cpu", "cpu.cfs_period_us", "100000"),
    ("cpu", "cpu.cfs_burst_us", "0"),
    ("cpu", "cpu.idle", "0"),
    ("cpuset", "cpuset.cpus", "0-1"),
    ("memory", "memory.limit_in_bytes", "9223372036854771712"),
    (
        "memory",
        "memory.memsw.limit_in_bytes",
        "9223372036854771712",
    ),
    ("blkio", "blkio.throttle.read_bps_device", ""),
    ("blkio", "blkio.throttle.write_bps_device", ""),
    ("blkio", "blkio.throttle.read_iops_device", ""),
    ("blkio", "blkio.throttle.write_iops_device", ""),
];

/// What the kernel holds, by whose it is and its file.
type Held = BTreeMap<String, String>;
/// The part of it that is not as in [`FILES`].
type Apart = &'static [(&'static str, &'static str)];

/// A pod without any annotation, of which everything is right.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
enum Kind {
    Be,
    Ls,
    Lsr,
    BestEffortWithoutClass,
    BurstableWithoutClass,
}

/// A label or an annotation of one pod, which has no other but its class.
struct Odd {
    kind: Kind,
    /// Who reads it; `-` for what is no hook's own.
    hook: &'static str,
    key: &'static str,
    is_label: bool,
    value: String,
    /// What is said of it; `None` where any value is as good as another.
    reason: Option<&'static str>,
    /// What the kernel holds otherwise than for the pod without it, because the hook that fails would
    /// have decided something all the same.
    lost: Apart,
}

// === impl Kind ===

impl Kind {
    const ALL: [Self; 5] = [
        Self::Be,
        Self::Ls,
        Self::Lsr,
        Self::BestEffortWithoutClass,
        Self::BurstableWithoutClass,
    ];

    /// It is killed for want of memory at 500, as its kubelet asked.
    fn pod(self, name: &str) -> PodSpecOf {
        let (mut pod, class) = match self {
            Self::Be => (classes::be(name), Some("BE")),
            Self::Ls => (classes::ls(name, "1"), Some("LS")),
            Self::Lsr => (classes::lsr(name), Some("LSR")),
            Self::BestEffortWithoutClass => (classes::be(name), None),
            Self::BurstableWithoutClass => (classes::ls(name, "1"), None),
        };
        pod.pod = PodSpec::new(name);
        if let Some(class) = class {
            pod.pod = pod.pod.label(QOS_CLASS, class);
        }
        let linux = pod.container.config.linux.get_or_insert_default();
        let resources = linux.resources.get_or_insert_default();
        resources.oom_score_adj = 500;
        if matches!(self, Self::Ls | Self::BurstableWithoutClass) {
            resources.cpu_quota = 50_000;
        }
        pod
    }

    /// On a node whose CPUs are a quarter faster than nominal, half a CPU is 40 ms.
    fn expected(self) -> Apart {
        match self {
            // The kernel gives an idle group three shares.
            Self::Be => &[("pod cpu.idle", "1"), ("pod cpu.shares", "3")],
            Self::BestEffortWithoutClass => &[],
            Self::Ls | Self::BurstableWithoutClass => &[
                ("pod cpu.shares", "256"),
                ("pod cpu.cfs_burst_us", "50000"),
                ("container cpu.shares", "256"),
                ("container cpu.cfs_quota_us", "40000"),
                ("container cpu.cfs_burst_us", "40000"),
                ("container cpuset.cpus", "1"),
            ],
            Self::Lsr => &[
                ("pod cpu.shares", "512"),
                ("pod cpu.cfs_quota_us", "50000"),
                ("pod memory.limit_in_bytes", "1073741824"),
                ("container cpu.shares", "512"),
                ("container cpu.cfs_quota_us", "50000"),
                ("container memory.limit_in_bytes", "1073741824"),
                ("container memory.memsw.limit_in_bytes", "1073741824"),
                ("container cpuset.cpus", "1"),
            ],
        }
    }
}

// === impl Odd ===

impl Odd {
    fn annotation(
        kind: Kind,
        (hook, key): (&'static str, &'static str),
        value: impl Into<String>,
        reason: &'static str,
    ) -> Self {
        Self {
            kind,
            hook,
            key,
            is_label: false,
            value: value.into(),
            reason: Some(reason),
            lost: &[],
        }
    }

    fn label(
        kind: Kind,
        key: &'static str,
        value: impl Into<String>,
        reason: Option<&'static str>,
    ) -> Self {
        Self {
            kind,
            hook: "-",
            key,
            is_label: true,
            value: value.into(),
            reason,
            lost: &[],
        }
    }

    fn loses(self, lost: Apart) -> Self {
        Self { lost, ..self }
    }

    fn pod(&self, name: &str) -> PodSpecOf {
        let mut pod = self.kind.pod(name);
        pod.pod = match self.is_label {
            true => pod.pod.label(self.key, &self.value),
            false => pod.pod.annotation(self.key, &self.value),
        };
        pod
    }

    fn failures(&self, node: &Node) -> Result<f64> {
        let hook = format!("hook=\"{}\"", self.hook);
        match self.hook {
            "-" => node
                .proxy
                .metric("koord_runtime_proxy_hook_notices_total", &[]),
            _ => node.proxy.metric(
                "koord_runtime_proxy_hook_runs_total",
                &[&hook, "result=\"error\""],
            ),
        }
    }

    /// One line with all that a person needs, or none.
    fn assert_told(&self, node: &Node, name: &str) {
        let told = || {
            let log = node.proxy.log();
            let lines = log.lines().filter_map(|line| line.parse::<Value>().ok());
            let about = lines.filter(|line| {
                line["pod"] == name && (self.reason.is_none() || line["hook"] == self.hook)
            });
            about.collect::<Vec<_>>()
        };
        let Some(reason) = self.reason else {
            assert_eq!(told(), [] as [Value; 0]);
            return;
        };
        wait_until(&format!("a line about {name} and {}", self.key), || {
            !told().is_empty()
        });
        let lines = told();
        assert_eq!(lines.len(), 1, "{lines:#?}");
        let line = &lines[0];
        assert_eq!(line["level"], "WARN");
        assert_eq!(line["namespace"], "default");
        assert_eq!(line["key"], self.key);
        let why = line["reason"].as_str().unwrap_or_default();
        assert!(why.contains(reason), "{why}, not {reason}");
    }
}

/// One malformed value for each pair of a hook and an annotation.
fn annotations() -> Vec<Odd> {
    use Kind::{Be, Ls, Lsr};
    let limit = |amount: &str| {
        format!(
            r#"{{"containers":{{"main":{{"limits":{{"kubernetes.io/batch-cpu":{amount}}}}}}}}}"#
        )
    };
    let digits = "9".repeat(HUGE);
    let too_long = format!("{{\"x\":\"{}\"}}", "y".repeat(300 << 10));
    let nowhere = format!(r#"{{"rdma":[{{"id":"{}"}}]}}"#, "../".repeat(8 << 10));
    #[rustfmt::skip]
    let all = vec![
        Odd::annotation(Be, ("BatchResource", EXTENDED_RESOURCE_SPEC), limit("true"), "value is true, not a quantity up to 9223372036854775807, as 2, 500m or 1.5Gi"),
        Odd::annotation(Be, ("MemoryQOS", EXTENDED_RESOURCE_SPEC), limit(&format!("\"{digits}\"")), "no quantity"),
        Odd::annotation(Ls, ("CPUNormalization", RESOURCE_STATUS), r#"{"cpuset":"1-0"}"#, "no CPU list")
            .loses(&[
                ("container cpu.cfs_quota_us", "50000"),
                ("container cpu.cfs_burst_us", "50000"),
                ("container cpuset.cpus", "0-1"),
            ]),
        Odd::annotation(Lsr, ("CPUSetAllocator", RESOURCE_STATUS), r#"{"cpuset":"4095"}"#, "of which pods may use none")
            .loses(&[("container cpuset.cpus", "0-1")]),
        Odd::annotation(Ls, ("CPUBurst", "koordinator.sh/cpuBurst"), r#"{"cpuBurstPercent":10001}"#, "out of range")
            .loses(&[("pod cpu.cfs_burst_us", "0"), ("container cpu.cfs_burst_us", "0")]),
        Odd::annotation(Ls, ("MemoryQOS", "koordinator.sh/memoryQOS"), r#"{"wmarkRatio":"95"}"#, "value is \"95\""),
        Odd::annotation(Ls, ("GroupIdentity", "koordinator.sh/cpuQOS"), r#"{"groupIdentity":3}"#, "out of range"),
        Odd::annotation(Lsr, ("Resctrl", "node.koordinator.sh/resctrl"), r#"{"llc":{"schemata":{"range":[30,20]}}}"#, "end 20 is outside 31 to 100"),
        Odd::annotation(Be, ("OOMScoreAdj", "koordinator.sh/oom-score-adj"), "1001", "oom_score_adj 1001 is outside -1000 to 1000"),
        Odd::annotation(Be, ("OOMScoreAdj", "koordinator.sh/oom-score-adj-spec"), format!(r#"{{"main":{digits}}}"#), "value is 9999"),
        Odd::annotation(Be, ("BlkIOReconcile", "koordinator.sh/blkioQOS"), "{", "is not JSON"),
        Odd::annotation(Ls, ("GPUEnvInject", DEVICE_ALLOCATED), "[".repeat(20_000), "nesting is deeper than"),
        Odd::annotation(Ls, ("RDMADeviceInject", DEVICE_ALLOCATED), nowhere, "not a PCI address"),
        Odd::annotation(Be, ("TerwayQoS", NETWORK_QOS), too_long, "bytes long"),
        Odd::annotation(Be, ("TCNetworkQoS", NETWORK_QOS), r#"{"egressLimit":-1}"#, "no quantity"),
    ];
    all
}

/// Values of each label. Of a class that does not exist no hook knows; the others take any text.
fn labels() -> Vec<Odd> {
    let long = "x".repeat(LONG);
    let no_class = Some("is no Koordinator QoS class");
    #[rustfmt::skip]
    let all = vec![
        Odd::label(Kind::BestEffortWithoutClass, QOS_CLASS, "be", no_class),
        Odd::label(Kind::BurstableWithoutClass, QOS_CLASS, &long, no_class),
        Odd::label(Kind::Be, "koordinator.sh/core-sched-group-id", &long, None),
        Odd::label(Kind::Ls, "koordinator.sh/core-sched-policy", &long, None),
        Odd::label(Kind::Lsr, "koordinator.sh/gpu-isolation-provider", &long, None),
    ];
    all
}

/// What the kernel holds for the directory of a pod, or for the container in it.
fn held(cgroup: &PodCgroup, container: Option<&str>) -> Result<Held> {
    let whose = container.map_or("pod", |_| "container");
    let mut all = Held::new();
    for (controller, file, _) in FILES {
        let value = cgroup.read(controller, container, file)?;
        all.insert(format!("{whose} {file}"), value);
    }
    Ok(all)
}

/// The same of both, and how soon the container's processes are killed for want of memory.
fn all_held(pod: &RunningPod) -> Result<Held> {
    let container = Some(pod.container.as_str());
    let mut all = held(&pod.cgroup, None)?;
    all.extend(held(&pod.cgroup, container)?);
    let processes = pod.cgroup.read("cpu", container, "cgroup.procs")?;
    let scores = processes.lines().map(|process| {
        let score = fs::read_to_string(format!("/proc/{process}/oom_score_adj"))?;
        Ok(score.trim_end().to_owned())
    });
    let scores: BTreeSet<_> = scores.collect::<Result<_>>()?;
    let scores = scores.into_iter().collect::<Vec<_>>().join(" ");
    all.insert("container oom_score_adj".to_owned(), scores);
    Ok(all)
}

/// What is to be held of pod and container, each of these in the place of what was there before it.
fn expected(apart: &[Apart]) -> Held {
    let mut all = Held::from([("container oom_score_adj".to_owned(), "500".to_owned())]);
    for whose in ["pod", "container"] {
        let files = FILES.map(|(_, file, value)| (format!("{whose} {file}"), value.to_owned()));
        all.extend(files);
    }
    for (name, value) in apart.iter().copied().flatten() {
        let before = all.insert((*name).to_owned(), (*value).to_owned());
        assert_ne!(before.as_deref(), Some(*value), "{name} says nothing");
    }
    all
}

/// Waits until the kernel holds that of a pod.
fn comes_to(pod: &RunningPod, what: &str, expected: &Held) -> Result<()> {
    if comes_true(|| all_held(pod).is_ok_and(|held| held == *expected)) {
        return Ok(());
    }
    let held = all_held(pod).with_context(|| what.to_owned())?;
    let wrong = held.iter().filter(|(name, it)| expected[*name] != **it);
    bail!("{what} holds {:#?}", wrong.collect::<Vec<_>>());
}

#[test]
fn each_key_that_a_hook_reads_has_a_malformed_value_here() {
    let mut read = BTreeSet::new();
    for line in PAGE.lines() {
        let row: Vec<&str> = line.split('|').map(str::trim).collect();
        // Of the hooks' own table, of which each row has ten cells.
        let ["", hook, _, _, _, _, _, _, _, reads, _, ""] = row[..] else {
            continue;
        };
        for key in reads.split(", ") {
            match key.split_once(' ') {
                Some(("label", key)) => read.insert(("-", key.trim_matches('`'))),
                Some(("annotation", key)) => read.insert((hook, key.trim_matches('`'))),
                _ => false,
            };
        }
    }
    let rows = annotations().into_iter().chain(labels());
    let here: BTreeSet<_> = rows.map(|it| (it.hook, it.key)).collect();
    assert_eq!(here, read);
}

#[tokio::test]
async fn a_malformed_annotation_costs_its_pod_that_hook_alone_on_containerd_1_7() -> Result<()> {
    let online = fs::read_to_string("/sys/devices/system/cpu/online")?;
    ensure!(online == "0-1\n", "this takes a machine with two CPUs");
    let options = ProxyOptions {
        policy: Some(BusyPolicy::new("1").text()),
        args: [
            "--log-format=json",
            "--feature-gates",
            every_hook::FEATURE_GATES,
        ]
        .map(str::to_owned)
        .to_vec(),
        ..ProxyOptions::default()
    };
    let node = Node::start(ContainerdVersion::V1_7, options)?;
    let client = node.client().await?;
    let odd: Vec<Odd> = annotations().into_iter().chain(labels()).collect();
    let mut pods = Vec::new();
    for (number, odd) in odd.iter().enumerate() {
        let name = format!("odd-{number}");
        let before = odd.failures(&node)?;
        let running = node.run(&client, &odd.pod(&name)).await?;
        let moved = odd.failures(&node)? > before;
        assert!(moved || odd.reason.is_none(), "{} {}", odd.hook, odd.key);
        pods.push((odd, name, running));
    }
    // After them, so that whatever is written late of the others is there.
    for kind in Kind::ALL {
        let running = node
            .run(&client, &kind.pod(&format!("{kind:?}").to_lowercase()))
            .await?;
        comes_to(
            &running,
            &format!("{kind:?}"),
            &expected(&[kind.expected()]),
        )?;
    }
    for (odd, name, running) in &pods {
        let what = format!("{name} with {} for {}", odd.key, odd.hook);
        comes_to(running, &what, &expected(&[odd.kind.expected(), odd.lost]))?;
        odd.assert_told(&node, name);
    }
    Ok(())
}

/// A hook that insists on what it decides.
const CLOSED: &str = "--hook-fail-policy=BatchResource=Closed";

/// What the directory of the pod holds, with this in the place of what its kubelet wrote.
fn pod_holds(cgroup: &PodCgroup, apart: Apart) -> bool {
    let mut expected = expected(&[apart]);
    expected.retain(|name, _| name.starts_with("pod "));
    held(cgroup, None).is_ok_and(|held| held == expected)
}

fn assert_refused<T>(reply: Result<T, CallError>) {
    let Err(CallError::Status { code, message, .. }) = reply else {
        panic!("it is not refused");
    };
    assert_eq!(code, 9, "{message}");
    for word in [
        "hook BatchResource failed for pod default/odd and has fail policy Closed",
        EXTENDED_RESOURCE_SPEC,
        "is not JSON",
    ] {
        assert!(message.contains(word), "{message}");
    }
}

async fn refuses(front: Front) -> Result<()> {
    let options = ProxyOptions {
        policy: Some(classes::node_policy(&classes::share_pool()?)),
        args: ["--feature-gates", classes::FEATURE_GATES, CLOSED]
            .map(str::to_owned)
            .to_vec(),
        front,
        ..ProxyOptions::default()
    };
    let node = Node::start(ContainerdVersion::V1_7, options)?;
    // Of all that is called here.
    let client = node.client().await?;
    let good = classes::be("odd");
    let cgroup = node.cgroups.pod(good.pod.uid(), good.qos)?;
    let corrected = good.pod.clone().cgroup(&cgroup);
    let malformed = corrected.clone().annotation(EXTENDED_RESOURCE_SPEC, "{");

    assert_refused(client.run_pod(&malformed).await);
    assert_eq!(client.list_pods().await?, []);
    assert!(pod_holds(&cgroup, &[]), "{:#?}", held(&cgroup, None));

    node.proxy.switch("BatchResource=off")?;
    let sandbox = client.run_pod(&malformed).await?;
    node.proxy.switch("BatchResource=on")?;
    let beside = classes::be("beside");
    let running = node.run(&client, &beside).await?;
    // Its class alone says this.
    let idle: Apart = &[("pod cpu.idle", "1"), ("pod cpu.shares", "3")];
    wait_until("what the other hooks decided", || {
        pod_holds(&cgroup, idle) && beside.wrong(&running).is_empty()
    });
    let listed = client.list_containers().await?;
    let refused = client.create_container(&sandbox, &good.container, &malformed);
    assert_refused(refused.await);
    assert_eq!(client.list_containers().await?, listed);
    assert!(pod_holds(&cgroup, idle), "{:#?}", held(&cgroup, None));
    assert_eq!(beside.wrong(&running), [""; 0]);

    let running = match front {
        Front::Nri => {
            // The runtime asks about the annotations that the sandbox was run with.
            client.stop_pod(&sandbox).await?;
            client.remove_pod(&sandbox).await?;
            cgroup.remove()?;
            node.run(&client, &good).await?
        }
        _ => retried(&client, sandbox, cgroup, (&good, &corrected)).await?,
    };
    wait_until("the values of the corrected pod", || {
        good.wrong(&running).is_empty()
    });
    Ok(())
}

/// The container of a sandbox that is there, whose pod was corrected.
async fn retried(
    client: &CriClient,
    sandbox: String,
    cgroup: PodCgroup,
    (of, corrected): (&PodSpecOf, &PodSpec),
) -> Result<RunningPod> {
    let container = client.create_container(&sandbox, &of.container, corrected);
    let container = container.await?;
    client.start_container(&container).await?;
    Ok(RunningPod {
        sandbox,
        container,
        cgroup,
    })
}

#[tokio::test]
async fn a_hook_that_insists_refuses_a_malformed_pod_until_it_is_corrected_on_containerd_1_7()
-> Result<()> {
    refuses(Front::Cri).await
}

#[tokio::test]
async fn a_hook_that_insists_refuses_a_malformed_pod_until_it_is_corrected_by_nri() -> Result<()> {
    refuses(Front::Nri).await
}

//! Pods whose labels and annotations are wrong in every way: they start, the hook that could not
//! read them is as if it were not there, and it is told once and counted.
//!
//! The keys are those that the built-in hooks declare: a hook that reads one more fails here until
//! it has its cases.
#![forbid(unsafe_code)]
#![allow(clippy::unwrap_used, reason = "a test may panic")]

mod support;

use h2::Reason;
use http::HeaderValue;
use koord_hooks::{Chain, FailPolicy, testing::OPEN};
use koord_proto::keys::{
    annotation::{DEVICE_ALLOCATED, MEMORY_QOS, NETWORK_QOS, OOM_SCORE_ADJ, OOM_SCORE_ADJ_SPEC},
    label::{CORE_SCHED_GROUP_ID, CORE_SCHED_POLICY, GPU_ISOLATION_PROVIDER},
};
use koord_testkit::{
    Frame, RawReply, RawRequest,
    scripted::{Call, CallEnd, Reply},
};
use std::{collections::BTreeSet, time::Instant};
use support::{
    asked::{Asked, asked, asked_to_be_made_with, made_with, made_with_words},
    method,
    node::{Node, listed_once, script},
    pod::{
        ASKED_SHARES, BATCH_MEMORY, BATCH_QUOTA, BATCH_SHARES, BLKIO_QOS, CPU_BURST, CPU_QOS,
        EXTENDED_RESOURCE_SPEC, Pod, QOS_CLASS, RESCTRL, RESOURCE_STATUS,
    },
    scripted_hook,
    wire::Tree,
};

/// Bytes of a value that is huge and would still be read.
const HUGE: usize = 24 << 10;
/// The longest line that anybody wants in a log, in bytes.
const LONG_LINE: usize = 2 << 10;

const FAILED_PRECONDITION: i32 = 9;

/// Said of devices that hooks of other devices pass over.
const NO_ADDRESS: &str = "not a PCI address";
const NO_RDMA: &str = "is no RDMA device of this node";

/// A value that a hook cannot use, and what the log says of it.
struct Bad {
    value: String,
    reason: &'static str,
}

fn bad(value: impl Into<String>, reason: &'static str) -> Bad {
    let value = value.into();
    Bad { value, reason }
}

/// Every way in which an annotation of this key can be wrong.
fn bad_annotations(key: &str) -> Vec<Bad> {
    if key == OOM_SCORE_ADJ {
        return bad_scores();
    }
    let mut cases = vec![
        bad("", "is not JSON"),
        bad("{", "is not JSON"),
        bad("x".repeat(HUGE), "is not JSON"),
        bad("7", "value is 7, not an object"),
        bad("[]", "value is a list, not an object"),
        bad("[".repeat(20_000), "nesting is deeper than"),
        bad(
            format!("{{\"x\":\"{}\"}}", "y".repeat(300 << 10)),
            "bytes long",
        ),
    ];
    let limits = |resource: &str, amount: &str| {
        format!(
            r#"{{"containers":{{"main":{{"limits":{{"kubernetes.io/{resource}":{amount}}}}}}}}}"#
        )
    };
    let cpu = |amount: &str| limits("batch-cpu", amount);
    let digits = "9".repeat(HUGE);
    cases.extend(match key {
        EXTENDED_RESOURCE_SPEC => vec![
            bad(r#"{"containers":[]}"#, "value is a list, not an object"),
            bad(
                cpu("true"),
                "value is true, not a quantity up to 9223372036854775807, as 2, 500m or 1.5Gi",
            ),
            bad(cpu("\"one\""), "no quantity"),
            bad(cpu("\"-1\""), "no quantity"),
            bad(cpu("\"9e30\""), "no quantity"),
            bad(cpu(&format!("\"{digits}\"")), "no quantity"),
            bad(limits("batch-memory", "1"), "to start one"),
            bad(limits("batch-memory", "\"4095Ki\""), "to start one"),
        ],
        RESOURCE_STATUS => vec![
            bad(r#"{"cpuset":7}"#, "value is 7, not a string"),
            bad(r#"{"cpuset":"1-0"}"#, "no CPU list"),
            bad(r#"{"cpuset":"0-99999999"}"#, "no CPU list"),
            bad(r#"{"cpuset":"4095"}"#, "of which pods may use none"),
            bad(format!(r#"{{"cpuset":"{digits}"}}"#), "no CPU list"),
            bad(r#"{"numaNodeResources":7}"#, "value is 7, not a list"),
        ],
        _ => bad_strategies(key),
    });
    cases
}

/// The same of annotations that are laid over a strategy of the node.
fn bad_strategies(key: &str) -> Vec<Bad> {
    let digits = "9".repeat(HUGE);
    match key {
        CPU_QOS => vec![
            bad(r#"{"groupIdentity":"high"}"#, "value is \"high\""),
            bad(r#"{"groupIdentity":3}"#, "out of range"),
            bad(r#"{"enable":1}"#, "value is 1, not a boolean"),
            bad(format!(r#"{{"groupIdentity":{digits}}}"#), "value is 9999"),
        ],
        CPU_BURST => vec![
            bad(r#"{"policy":"always"}"#, "value \"always\" is none of"),
            bad(r#"{"cpuBurstPercent":10001}"#, "out of range"),
            bad(r#"{"cpuBurstPercent":"100"}"#, "value is \"100\""),
        ],
        MEMORY_QOS => vec![
            bad(r#"{"policy":"always"}"#, "value \"always\" is none of"),
            bad(
                r#"{"minLimitPercent":101}"#,
                "percentage 101 is outside 0 to 100",
            ),
            bad(r#"{"wmarkRatio":"95"}"#, "value is \"95\""),
            bad(
                r#"{"pageCacheLimitSize":-1}"#,
                "memory.pagecache_limit.size -1 is outside 0 to",
            ),
            bad(r#"{"pageCacheEnable":1}"#, "not a boolean"),
            bad(format!(r#"{{"priority":{digits}}}"#), "value is 9999"),
        ],
        RESCTRL => bad_shares(),
        DEVICE_ALLOCATED => bad_devices(),
        OOM_SCORE_ADJ_SPEC => vec![
            bad(
                r#"{"main":1001}"#,
                "oom_score_adj 1001 is outside -1000 to 1000",
            ),
            bad(r#"{"main":"500"}"#, "value is \"500\""),
            bad(r#"{"other":[]}"#, "value is a list"),
            bad(format!(r#"{{"main":{digits}}}"#), "value is 9999"),
        ],
        BLKIO_QOS => bad_blocks(),
        NETWORK_QOS => bad_rates(),
        _ => panic!("a hook reads the annotation {key}: add what can be wrong with it"),
    }
}

/// Devices that are none, of which GPUs are told by numbers and those of RDMA by where they are.
fn bad_devices() -> Vec<Bad> {
    vec![
        bad(r#"{"gpu":{}}"#, "value is an object, not a list"),
        bad(r#"{"gpu":[{"minor":-1}]}"#, "minor -1 is outside 0 to"),
        bad(r#"{"gpu":[{"minor":"0"}]}"#, "value is \"0\""),
        bad(
            r#"{"gpu":[{"resources":{"koordinator.sh/gpu-memory":"much"}}]}"#,
            "no quantity",
        ),
        bad(r#"{"rdma":[{"id":7}]}"#, "value is 7"),
        bad(r#"{"rdma":[{"id":"mlx5_0"}]}"#, NO_ADDRESS),
        bad(
            format!(r#"{{"rdma":[{{"id":"{}"}}]}}"#, "../".repeat(8 << 10)),
            NO_ADDRESS,
        ),
        bad(
            r#"{"rdma":[{"extension":{"vfs":[{"busID":"ffff:ff:1f.7"}]}}]}"#,
            NO_RDMA,
        ),
    ]
}

/// Parts of the cache and of the bandwidth to memory that are none.
fn bad_shares() -> Vec<Bad> {
    vec![
        bad(
            r#"{"llc":{"schemata":{"range":[30,20]}}}"#,
            "end 20 is outside 31 to 100",
        ),
        bad(
            r#"{"llc":{"schemata":{"range":"0-30"}}}"#,
            "value is \"0-30\", not a list",
        ),
        bad(
            r#"{"mb":{"schemata":{"percent":101}}}"#,
            "percent 101 is outside 0 to 100",
        ),
        bad(
            r#"{"mb":{"schemataPerCache":[{"cacheID":-1,"percent":50}]}}"#,
            "cacheID -1 is outside 0 to",
        ),
    ]
}

/// What a pod may receive and send, and what is none of that.
fn bad_rates() -> Vec<Bad> {
    let digits = "9".repeat(HUGE);
    vec![
        bad(r#"{"ingressLimit":"fast"}"#, "no quantity"),
        bad(r#"{"egressLimit":"50%"}"#, "no quantity"),
        bad(r#"{"egressLimit":-1}"#, "no quantity"),
        bad(format!(r#"{{"ingressLimit":"{digits}"}}"#), "no quantity"),
        bad(
            r#"{"ingressLimit":"1M","egressLimit":[]}"#,
            "value is a list, not a quantity up to 9223372036854775807, as 2, 500m or 1.5Gi",
        ),
    ]
}

/// What is no score in an annotation that is a plain number.
fn bad_scores() -> Vec<Bad> {
    let digits = "9".repeat(HUGE);
    vec![
        bad("", "value is \"\", not a whole number from -1000 to 1000"),
        bad(
            "high",
            "value is \"high\", not a whole number from -1000 to 1000",
        ),
        bad(
            "{}",
            "value is \"{}\", not a whole number from -1000 to 1000",
        ),
        bad(digits, "\", not a whole number from -1000 to 1000"),
        bad("1001", "oom_score_adj 1001 is outside -1000 to 1000"),
        bad("-1001", "oom_score_adj -1001 is outside -1000 to 1000"),
    ]
}

/// Limits of block devices that are none, or of devices that are none.
fn bad_blocks() -> Vec<Bad> {
    let block = |text: &str| format!(r#"{{"blocks":[{{{text}}}]}}"#);
    let vdb = |limit: &str| {
        block(&format!(
            r#""name":"vdb","type":"device","ioCfg":{{{limit}}}"#
        ))
    };
    let up = "../".repeat(8 << 10);
    vec![
        bad(r#"{"blocks":{}}"#, "value is an object, not a list"),
        bad(block(r#""name":"vdb""#), "value \"\" is none of device"),
        bad(
            block(r#""name":"/etc/passwd","type":"device""#),
            "is no name of a block device",
        ),
        bad(
            block(&format!(r#""name":"{up}","type":"podvolume""#)),
            "is no name of a volume",
        ),
        bad(vdb(r#""readBPS":-1"#), "rate -1 is outside 0 to"),
        bad(vdb(r#""writeIOPS":"5""#), "value is \"5\""),
        bad(
            vdb(r#""ioWeightPercent":101"#),
            "percent 101 is outside 1 to 100",
        ),
    ]
}

/// Labels of which no value is wrong: any text is the name of a group, and a policy or a provider that
/// nobody knows is that of no label.
const TAKE_ANY_TEXT: [&str; 3] = [
    CORE_SCHED_GROUP_ID,
    CORE_SCHED_POLICY,
    GPU_ISOLATION_PROVIDER,
];

/// Values of a label that mean nothing.
fn bad_labels(key: &str) -> Vec<String> {
    match key {
        QOS_CLASS => ["be", "BE ", "LSRX", "\u{0}", "x".repeat(HUGE).as_str()]
            .map(str::to_owned)
            .to_vec(),
        _ if TAKE_ANY_TEXT.contains(&key) => Vec::new(),
        _ => panic!("a hook reads the label {key}: add what can be wrong with it"),
    }
}

/// The same as [`pod_for`] says, in other words that mean as much.
fn other_words(key: &str) -> Vec<String> {
    let batch = r#""main":{
        "Requests":{"kubernetes.io/batch-cpu":500},
        "LIMITS":{"kubernetes.io/batch-cpu":"1","kubernetes.io/batch-cpu":"1e3",
                  "kubernetes.io/batch-memory":"1048576Ki"}}"#;
    let padding = "y".repeat(HUGE - 1_024);
    match key {
        EXTENDED_RESOURCE_SPEC => vec![
            format!(r#"{{"CONTAINERS":{{{batch}}}}}"#),
            format!(r#"{{"x":"{padding}","containers":{{{batch}}}}}"#),
        ],
        RESOURCE_STATUS => vec![
            r#"{"CPUSet":"0"}"#.to_owned(),
            format!(r#"{{"cpuset":"{}"}}"#, vec!["0"; HUGE / 2 - 512].join(",")),
        ],
        CPU_QOS => vec![r#"{"Enable":true,"GROUPIDENTITY":2,"unheard":{}}"#.to_owned()],
        CPU_BURST => vec![r#"{"Policy":"auto","CPUBURSTPERCENT":150,"unheard":[]}"#.to_owned()],
        MEMORY_QOS => {
            vec![r#"{"Policy":"auto","MINLIMITPERCENT":50,"unheard":[]}"#.to_owned()]
        }
        RESCTRL => vec![r#"{"LLC":{"Schemata":{"RANGE":[0,30]}},"unheard":[]}"#.to_owned()],
        NETWORK_QOS => vec![r#"{"EGRESSLIMIT":"8e6","unheard":[]}"#.to_owned()],
        DEVICE_ALLOCATED => vec![r#"{"GPU":[{"Minor":0,"unheard":1}]}"#.to_owned()],
        OOM_SCORE_ADJ => vec!["+500".to_owned(), "0500".to_owned()],
        OOM_SCORE_ADJ_SPEC => vec![r#"{"other":null,"main":500}"#.to_owned()],
        BLKIO_QOS => vec![
            r#"{"Blocks":[{"NAME":"vdb","Type":"device","IOCfg":{"READBPS":5}}],"unheard":[]}"#
                .to_owned(),
        ],
        _ => panic!("a hook reads the annotation {key}: say it in other words"),
    }
}

/// A pod in which the hook that reads this key has something to say, and others too.
fn pod_for(hook: &str, key: &str, name: &str) -> Pod {
    let pod = Pod::best_effort(name).annotation(RESOURCE_STATUS, r#"{"cpuset":"0"}"#);
    match (hook, key) {
        // Counts for this class only.
        (_, CPU_QOS) => pod
            .label(QOS_CLASS, "LS")
            .annotation(CPU_QOS, r#"{"enable":true,"groupIdentity":2}"#),
        // Not for best-effort pods.
        (_, CPU_BURST) | ("CPUNormalization", _) => pod
            .label(QOS_CLASS, "LS")
            .annotation(CPU_BURST, r#"{"policy":"auto"}"#),
        _ => pod,
    }
}

/// What is asked for the pod of [`pod_for`] when this hook takes no part.
fn asked_without(hook: &str, key: &str) -> Asked {
    match (hook, key) {
        // Nobody can read which CPUs it has.
        ("CPUNormalization", _) => (ASKED_SHARES, 0, 0, String::new()),
        // Two hooks read what it was given.
        ("BatchResource", _) | ("MemoryQOS", EXTENDED_RESOURCE_SPEC) | (_, CPU_QOS | CPU_BURST) => {
            (ASKED_SHARES, 0, 0, "0".to_owned())
        }
        ("CPUSetAllocator", _) => (BATCH_SHARES, BATCH_QUOTA, BATCH_MEMORY, String::new()),
        // A pod with CPUs of its own has no quota, and none was asked for.
        (_, _) => (BATCH_SHARES, 0, BATCH_MEMORY, "0".to_owned()),
    }
}

/// What a hook decides of the pod of [`pod_for`] or its sandbox, and then of its container; `None`
/// where that depends on the kernel or on a policy.
fn decided_anywhere(hook: &str) -> Option<&'static [&'static str]> {
    const LIMITS: [&str; 2] = ["cpu.shares", "memory.limit_in_bytes"];
    const CPUS: [&str; 2] = ["cpu.cfs_quota_us", "cpuset.cpus"];
    match hook {
        "BatchResource" => Some(&[LIMITS[0], LIMITS[1], LIMITS[0], LIMITS[1]]),
        "CPUSetAllocator" => Some(&[CPUS[0], CPUS[1], CPUS[0], CPUS[1]]),
        "OOMScoreAdj" => Some(&["oom_score_adj"]),
        "GPUEnvInject" => Some(&["gpu"]),
        _ => None,
    }
}

/// The pairs of hook and annotation.
fn read_annotations() -> Vec<(&'static str, &'static str)> {
    let of = |meta: &'static koord_hooks::HookMeta| {
        meta.inputs.annotations.iter().map(|key| (meta.name, *key))
    };
    Chain::builtin_table().flat_map(of).collect()
}

async fn run(node: &Node, pod: &Pod) -> RawReply {
    node.call(RawRequest::unary(method::RUN, pod.run().encode()))
        .await
}

async fn create(node: &Node, pod: &Pod) -> RawReply {
    node.call(RawRequest::unary(method::CREATE, pod.create().encode()))
        .await
}

/// A node whose log is one JSON object a line.
fn node(args: &[&str]) -> Node {
    let every_hook = "--feature-gates=CPUNormalization=true,CgroupReconcile=true,Resctrl=true,\
                      OOMScoreAdj=true,BlkIOReconcile=true,GPUEnvInject=true,MidResource=true,\
                      RDMADeviceInject=true,TerwayQoS=true,TCNetworkQoS=true,\
                      CoreSched=true";
    Node::with(
        listed_once(),
        &[args, &["--log-format=json", every_hook]].concat(),
    )
}

/// The lines about a hook and a key.
fn complaints(mut lines: Vec<serde_json::Value>) -> Vec<serde_json::Value> {
    lines.retain(|line| line.get("hook").is_some() && line.get("key").is_some());
    lines
}

/// All lines of a node of [`node`].
fn logged(node: &Node) -> Vec<serde_json::Value> {
    let log = node.log();
    let lines = log.lines().map(serde_json::from_str);
    lines.collect::<Result<_, _>>().unwrap()
}

fn failures(node: &Node, hook: &str) -> u64 {
    node.metric(&format!(
        "hook_runs_total{{hook=\"{hook}\",result=\"error\"}}"
    ))
}

/// One line, with all that a person needs and not more than they can read.
fn assert_told(node: &Node, pod: &Pod, hook: &str, key: &str, reason: &str) {
    let mut lines = complaints(logged(node));
    lines.retain(|line| line["hook"] == hook);
    let [line] = &lines[..] else {
        panic!("{} lines of {key} ({reason}): {lines:#?}", lines.len());
    };
    assert_eq!(line["level"], "WARN");
    assert_eq!(line["pod"], pod.name.as_str());
    assert_eq!(line["namespace"], "default");
    assert_eq!(line["hook"], hook);
    assert_eq!(line["key"], key);
    let told = line["reason"].as_str().unwrap();
    assert!(told.contains(reason), "{told}, not {reason}");
    assert!(line.to_string().len() < LONG_LINE, "{line}");
}

/// The ledger says of the only pod, or of its container, that a hook failed and why.
fn assert_left_out(node: &Node, hook: &str, reason: &str) {
    let ledger = node.ledger();
    let pod = &ledger["pods"][0];
    let places = [pod, &pod["containers"][0]].map(|place| place["leftOut"].as_array());
    let mut told = places.into_iter().flatten().flatten();
    let is_it = |it: &serde_json::Value| {
        let told = it["reason"].as_str().unwrap();
        it["hook"] == hook && told.contains(reason) && told.chars().count() <= 200
    };
    assert!(told.any(is_it), "{hook} {reason}: {pod:#}");
    assert_eq!(owned(&ledger, hook), [""; 0], "{reason}");
}

/// The settings that a hook has decided for the only pod, its sandbox and its container.
fn owned(ledger: &serde_json::Value, hook: &str) -> Vec<String> {
    let pod = &ledger["pods"][0];
    let container = &pod["containers"][0]["settings"];
    let places = [&pod["settings"], &pod["sandboxSettings"], container];
    let settings = places.into_iter().flat_map(|it| it.as_array().unwrap());
    let owned = settings.filter(|it| it["owner"] == hook);
    owned
        .map(|it| it["setting"].as_str().unwrap().to_owned())
        .collect()
}

#[tokio::test]
async fn a_pod_whose_annotation_cannot_be_read_starts_without_that_hook() {
    for (hook, key) in read_annotations() {
        for Bad { value, reason } in bad_annotations(key) {
            if hook == "CPUNormalization" && reason == "of which pods may use none" {
                // It looks whether there are any, not which.
                continue;
            }
            if hook == "GPUEnvInject" && [NO_ADDRESS, NO_RDMA].contains(&reason) {
                // It does not ask where other devices are.
                continue;
            }
            if hook == "MemoryQOS" && reason == "to start one" {
                // It limits nobody.
                continue;
            }
            let node = node(&[]);
            let pod = pod_for(hook, key, "odd").annotation(key, &value);
            assert_eq!(run(&node, &pod).await.grpc_status(), Some(0));
            assert_eq!(node.arrived(method::RUN), pod.run().encode());
            assert_eq!(create(&node, &pod).await.grpc_status(), Some(0));
            assert!(
                failures(&node, hook) > 0,
                "{hook} took {key} of {value:.40}"
            );
            assert_told(&node, &pod, hook, key, reason);

            let arrived = node.arrived(method::CREATE);
            assert!(arrived.starts_with(&pod.create().encode()));
            assert_eq!(asked(&arrived), asked_without(hook, key), "{value:.40}");
            assert_eq!(made_with(&arrived), asked_to_be_made_with(), "{value:.40}");
            assert_left_out(&node, hook, reason);
            for (other, _) in read_annotations() {
                let reads = read_annotations().contains(&(other, key));
                assert!(reads || failures(&node, other) == 0, "{other}");
            }
        }
    }
}

#[tokio::test]
async fn a_creation_tells_of_its_bad_annotation_once() {
    for (hook, key) in read_annotations() {
        if [CPU_QOS, BLKIO_QOS, NETWORK_QOS].contains(&key) {
            // Read about pods, not about containers.
            continue;
        }
        let node = node(&[]);
        let pod = pod_for(hook, key, "odd").annotation(key, "{");
        create(&node, &pod).await;
        let reason = match key {
            OOM_SCORE_ADJ => "not a whole number from -1000 to 1000",
            _ => "is not JSON",
        };
        assert_told(&node, &pod, hook, key, reason);
        assert_eq!(failures(&node, hook), 1);
    }
}

#[tokio::test]
async fn annotations_in_other_words_are_understood() {
    for (hook, key) in read_annotations() {
        for value in other_words(key) {
            let node = node(&[]);
            let pod = pod_for(hook, key, "odd").annotation(key, &value);
            run(&node, &pod).await;
            create(&node, &pod).await;
            assert_eq!(complaints(logged(&node)), [] as [serde_json::Value; 0]);
            assert_eq!(failures(&node, hook), 0);
            let arrived = asked(&node.arrived(method::CREATE));
            let key = match hook {
                // It looks at pods of another class.
                "CPUNormalization" => CPU_QOS,
                _ => key,
            };
            assert_eq!(arrived, asked_without("nobody", key), "{value:.60}");
            let made = made_with(&node.arrived(method::CREATE));
            assert_eq!(made, made_with_words(key), "{value:.60}");
            if let Some(settings) = decided_anywhere(hook) {
                assert_eq!(owned(&node.ledger(), hook), settings, "{value:.60}");
            }
        }
    }
}

#[tokio::test]
async fn a_class_that_does_not_exist_counts_as_none_and_is_told() {
    let labels: BTreeSet<&str> = Chain::builtin_table()
        .flat_map(|meta| meta.inputs.labels)
        .copied()
        .collect();
    for key in labels {
        for value in bad_labels(key) {
            let node = node(&[]);
            let pod = pod_for("nobody", key, "odd").label(key, &value);
            assert_eq!(create(&node, &pod).await.grpc_status(), Some(0));
            // Without a class nobody reads batch resources; CPUs of its own it has all the same.
            let expected = (ASKED_SHARES, 0, 0, "0".to_owned());
            assert_eq!(asked(&node.arrived(method::CREATE)), expected);
            assert_eq!(node.metric("hook_notices_total"), 1);
            assert_told(&node, &pod, "-", key, "is no Koordinator QoS class");
            run(&node, &pod).await;
            assert_eq!(node.arrived(method::RUN), pod.run().encode());
            for meta in Chain::builtin_table() {
                assert_eq!(failures(&node, meta.name), 0);
            }
        }
    }
}

#[tokio::test]
async fn a_label_that_takes_any_text_fills_neither_log_nor_ledger() {
    for key in TAKE_ANY_TEXT {
        let node = node(&["--log-filter=debug"]);
        let pod = pod_for("nobody", key, "odd").label(key, &"x".repeat(HUGE));
        assert_eq!(run(&node, &pod).await.grpc_status(), Some(0));
        assert_eq!(create(&node, &pod).await.grpc_status(), Some(0));
        let arrived = asked(&node.arrived(method::CREATE));
        assert_eq!(arrived, asked_without("nobody", key));
        let lines = logged(&node);
        assert!(lines.iter().any(|line| line["level"] == "DEBUG"));
        for line in lines {
            assert!(line.to_string().len() < LONG_LINE, "{line}");
        }
        let ledger = node.ledger().to_string();
        assert!(ledger.contains("\"odd\"") && ledger.len() < HUGE, "{key}");
    }
}

#[tokio::test]
async fn a_hundred_bad_pods_are_a_handful_of_lines() {
    let node = node(&[]);
    let client = node.client().await;
    let start = Instant::now();
    for number in 0..100 {
        let pod =
            Pod::best_effort(&format!("odd-{number}")).annotation(EXTENDED_RESOURCE_SPEC, "{");
        let request = RawRequest::unary(method::CREATE, pod.create().encode());
        let reply = client.call(request).await.unwrap();
        assert_eq!(reply.grpc_status(), Some(0));
    }
    assert_eq!(failures(&node, "BatchResource"), 100);
    let mut lines = complaints(logged(&node));
    // Another hook reads the same annotation, and has lines of its own.
    lines.retain(|line| line["hook"] == "BatchResource");
    let lines = u64::try_from(lines.len()).unwrap();
    // Five at once, and one more for every ten seconds.
    let most = 5 + start.elapsed().as_secs() / 10;
    assert!((5..=most).contains(&lines), "{lines} lines");
}

/// Our own refusal: one block of headers, nothing else.
fn assert_refused(reply: &RawReply, words: &[&str]) {
    assert_eq!(reply.status.map(|status| status.as_u16()), Some(200));
    assert_eq!(reply.headers["content-type"], "application/grpc");
    assert_eq!(reply.grpc_status(), Some(FAILED_PRECONDITION));
    assert_eq!((&reply.trailers, &reply.messages[..]), (&None, &[][..]));
    let message = reply.headers["grpc-message"].to_str().unwrap();
    for word in words {
        assert!(message.contains(word), "{message}");
    }
}

/// The runtime heard of a call, but no word of what was called for.
fn assert_unsaid(call: &Call) {
    assert_eq!((&call.messages[..], &call.rest[..]), (&[][..], &[][..]));
    assert_eq!(call.end, CallEnd::Reset(Reason::CANCEL));
}

#[tokio::test]
async fn a_hook_that_must_not_fail_refuses_nothing_where_we_only_observe() {
    let node = node(&["--hook-fail-policy=BatchResource=Closed", "--mode=observe"]);
    let client = node.client().await;
    let odd = pod_for("BatchResource", EXTENDED_RESOURCE_SPEC, "odd")
        .annotation(EXTENDED_RESOURCE_SPEC, "{");
    for (method, message) in [
        (method::RUN, odd.run().encode()),
        (method::CREATE, odd.create().encode()),
    ] {
        let request = RawRequest::unary(method, message.clone());
        let reply = client.call(request).await.unwrap();
        assert_eq!(reply.grpc_status(), Some(0), "{method}");
        let calls = node.ended_calls(method, 1);
        assert_eq!(calls[0].messages[0].message, message, "{method}");
    }
}

#[tokio::test]
async fn a_hook_that_must_not_fail_refuses_the_call_and_nothing_is_changed() {
    let node = node(&["--hook-fail-policy=BatchResource=Closed"]);
    let client = node.client().await;
    let odd = pod_for("BatchResource", EXTENDED_RESOURCE_SPEC, "odd")
        .annotation(EXTENDED_RESOURCE_SPEC, "{");
    for (method, message) in [
        (method::RUN, odd.run().encode()),
        (method::CREATE, odd.create().encode()),
    ] {
        let reply = client.call(RawRequest::unary(method, message)).await;
        let words = [
            "BatchResource",
            "default/odd",
            "Closed",
            EXTENDED_RESOURCE_SPEC,
        ];
        assert_refused(&reply.unwrap(), &words);
        // Headers go on at once, so there was a stream; it said nothing and was cancelled.
        let calls = node.ended_calls(method, 1);
        assert_unsaid(&calls[0]);
    }
    let refused = |method| {
        node.metric(&format!(
            "calls_total{{method=\"{method}\",result=\"refused\"}}"
        ))
    };
    assert_eq!(refused("RunPodSandbox"), 1);
    assert_eq!(refused("CreateContainer"), 1);
    let empty = serde_json::json!({"pods": [], "node": [], "leftSettings": []});
    assert_eq!(node.ledger(), empty);

    // Others on the same connection are served, bad input of other hooks included.
    let pod = pod_for("CPUSetAllocator", RESOURCE_STATUS, "web").annotation(RESOURCE_STATUS, "{");
    let request = RawRequest::unary(method::CREATE, pod.create().encode());
    assert_eq!(client.call(request).await.unwrap().grpc_status(), Some(0));
    let arrived = asked(&node.arrived(method::CREATE));
    assert_eq!(arrived, asked_without("CPUSetAllocator", RESOURCE_STATUS));
}

/// A request of exactly 64 KiB, which is all that [`full`] lets the runtime have: filled up with
/// a field that nobody knows.
fn filled(message: &[u8]) -> Vec<u8> {
    const FULL: usize = 64 << 10;
    let head = Tree::new().bytes(1_000, vec![0; 32 << 10]).encode().len() - (32 << 10);
    let rest = FULL - message.len() - head;
    let filled = [message, &Tree::new().bytes(1_000, vec![0; rest]).encode()].concat();
    assert_eq!(filled.len(), FULL);
    filled
}

#[tokio::test]
async fn what_cannot_be_said_refuses_the_call_only_for_a_hook_that_must_not_fail() {
    let full = |args: &[&str]| node(&[&["--max-message-bytes=64KiB"], args].concat());
    // Only this one hook has a say in the container of this pod.
    let pod = Pod::best_effort("be");
    let update = Tree::new()
        .bytes(1, "container-1")
        .message(2, Tree::new().number(3, 9))
        .encode();
    for args in [&[][..], &["--hook-fail-policy=CPUSetAllocator=Closed"]] {
        let node = full(args);
        run(&node, &pod).await;
        for (method, message) in [
            (method::CREATE, filled(&pod.create().encode())),
            (method::UPDATE, filled(&update)),
        ] {
            let request = RawRequest::unary(method, message.clone());
            assert_eq!(node.call(request).await.grpc_status(), Some(0));
            assert_eq!(node.arrived(method), message);
        }
        for method in ["CreateContainer", "UpdateContainerResources"] {
            let series =
                format!("calls_total{{method=\"{method}\",result=\"unhooked_too_large\"}}");
            assert_eq!(node.metric(&series), 1, "{method}");
        }
    }

    let node = full(&["--hook-fail-policy=BatchResource=Closed"]);
    run(&node, &pod).await;
    create(&node, &pod).await;
    for (method, message) in [
        (method::CREATE, filled(&pod.create().encode())),
        (method::UPDATE, filled(&update)),
    ] {
        let calls = node.calls(method).len();
        let reply = node.call(RawRequest::unary(method, message)).await;
        let words = [
            "BatchResource",
            "default/be",
            "Closed",
            "the limit of 65536",
        ];
        assert_refused(&reply, &words);
        assert_unsaid(&node.ended_calls(method, calls + 1)[calls]);
    }
}

#[tokio::test]
async fn values_of_the_environment_are_never_logged() {
    const SECRET: &str = "hunter2-of-the-environment";
    let node = Node::with(
        script().once(method::CREATE, Reply::error(13, "no")),
        &[
            "--log-filter=trace",
            "--hook-fail-policy=CPUSetAllocator=Closed",
        ],
    );
    let good = Pod::best_effort("good").env("PASSWORD", SECRET);
    let odd = good.clone().annotation(EXTENDED_RESOURCE_SPEC, "{");
    let refused = good.clone().annotation(RESOURCE_STATUS, "{");
    let classless = good.clone().label(QOS_CLASS, "none");
    for pod in [&good, &odd, &refused, &classless, &good] {
        run(&node, pod).await;
        create(&node, pod).await;
    }
    let message = good.create().encode();
    let half = message[..message.len() - 1].to_vec();
    node.call(RawRequest::unary(method::CREATE, half)).await;
    let mut compressed = RawRequest::unary(method::CREATE, "")
        .header("grpc-encoding", HeaderValue::from_static("identity"));
    compressed.messages = vec![Frame {
        compressed: true,
        message: message.into(),
    }];
    node.call(compressed).await;
    let log = node.log();
    assert!(log.contains("TRACE") && log.contains("DEBUG"), "{log}");
    assert!(!log.contains(SECRET) && !log.contains("PASSWORD"), "{log}");
}

#[tokio::test]
async fn a_hook_that_panics_or_conflicts_is_as_if_it_were_not_there() {
    for (told, result, reason) in [
        ("panic", "panic", "it panicked: "),
        ("700", "conflict", "ScriptedOpen"),
        ("nonsense", "error", OPEN),
    ] {
        let counted = format!("hook_runs_total{{hook=\"ScriptedOpen\",result=\"{result}\"}}");
        let (reply, call, lines) = scripted_hook::create(FailPolicy::Open, told, &counted).await;
        let lines = complaints(lines);
        assert_eq!(reply.grpc_status(), Some(0));
        let without = (BATCH_SHARES, BATCH_QUOTA, BATCH_MEMORY, String::new());
        assert_eq!(asked(&call.messages[0].message), without, "{told}");
        assert_eq!(lines.len(), 1);
        assert_eq!(lines[0]["pod"], "odd");
        assert_eq!(lines[0]["hook"], "ScriptedOpen");
        let line = lines[0]["reason"].as_str().unwrap();
        assert!(line.contains(reason), "{line}");
    }
}

#[tokio::test]
async fn a_panic_of_a_hook_that_must_not_fail_refuses_the_call() {
    let counted = "hook_runs_total{hook=\"ScriptedClosed\",result=\"panic\"}";
    let (reply, call, lines) = scripted_hook::create(FailPolicy::Closed, "panic", counted).await;
    let lines = complaints(lines);
    assert_refused(&reply, &["ScriptedClosed", "default/odd", "it panicked"]);
    assert_unsaid(&call);
    assert_eq!(lines.len(), 1);
}

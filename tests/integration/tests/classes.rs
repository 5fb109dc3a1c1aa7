//! Each class of pod on a real containerd and this machine's kernel: the values after creation,
//! after updates, after a change of policy, and where hooks have to stay away.

use anyhow::{Context, Result, ensure};
use koord_integration::{
    Node, ProxyOptions, RunningPod,
    classes::{self, PodSpecOf},
    update::{cpus, memory_limit, mems, oom_score, period, quota, shares, swap_limit},
};
use koord_testkit::{
    ContainerdVersion, OTHER_HANDLER, PodCgroup, PodQos, RuntimeKind,
    cri::{CriClient, PodSpec, message::LinuxContainerResources},
    poll::wait_until,
};
use std::{collections::BTreeMap, fs};

fn options() -> Result<ProxyOptions> {
    Ok(ProxyOptions {
        policy: Some(classes::node_policy(&classes::share_pool()?)),
        args: vec![
            "--feature-gates".to_owned(),
            classes::FEATURE_GATES.to_owned(),
        ],
        ..ProxyOptions::default()
    })
}

/// How the names of files end that count, measure, or list who is there: they change by themselves.
const COUNTERS: [&str; 28] = [
    ".current",
    ".events",
    ".events.local",
    ".failcnt",
    ".io_service_bytes",
    ".io_service_bytes_recursive",
    ".io_serviced",
    ".io_serviced_recursive",
    ".peak",
    ".procs",
    ".slabinfo",
    ".stat",
    ".stat.local",
    ".threads",
    ".usage",
    ".usage_all",
    ".usage_percpu",
    ".usage_percpu_sys",
    ".usage_percpu_user",
    ".usage_sys",
    ".usage_user",
    "cpu.pressure",
    "io.pressure",
    "memory.pressure",
    "memory_pressure",
    "numa_stat",
    "tasks",
    "usage_in_bytes",
];

/// What the control groups of a container and of its pod hold: every file that can be read, in the
/// directories of all controllers, but for those that change by themselves. And how soon each of its
/// processes is killed for want of memory, which no group holds.
fn snapshot(cgroup: &PodCgroup, container: &str) -> Result<BTreeMap<String, String>> {
    let mut all = BTreeMap::new();
    let groups = [("", Some(container)), ("pod ", None)];
    let directories = groups.into_iter().flat_map(|(group, of)| {
        let directories = cgroup.directories(of).into_iter();
        directories.map(move |it| (group, it))
    });
    for (group, directory) in directories {
        for entry in fs::read_dir(directory)? {
            let file = entry?.path();
            let name = file.file_name().unwrap_or_default().to_string_lossy();
            let counts = COUNTERS.iter().any(|ending| name.ends_with(ending));
            if counts || !file.is_file() {
                continue;
            }
            // Some can be written only.
            let Ok(held) = fs::read_to_string(&file) else {
                continue;
            };
            // Each hierarchy has these.
            let is_everywhere = name.starts_with("cgroup.") || name == "notify_on_release";
            let name = if is_everywhere {
                file.display().to_string()
            } else {
                format!("{group}{name}")
            };
            let before = all.insert(name, held.trim_end().to_owned());
            ensure!(before.is_none(), "two of {}", file.display());
        }
    }
    let processes = cgroup.read("cpu", Some(container), "cgroup.procs")?;
    for process in processes.lines() {
        let file = format!("/proc/{process}/oom_score_adj");
        let held = fs::read_to_string(&file)?;
        all.insert(file, held.trim_end().to_owned());
    }
    Ok(all)
}

async fn each_class_has_its_values(kind: impl Into<RuntimeKind> + Copy) -> Result<()> {
    let node = Node::start(kind, options()?)?;
    let client = node.client().await?;
    for pod in classes::all(&classes::share_pool()?) {
        let running = node.run(&client, &pod).await?;
        wait_until(&format!("the values of {}", pod.name), || {
            pod.wrong(&running).is_empty()
        });
        client.stop_container(&running.container, 0).await?;
        client.remove_container(&running.container).await?;
        client.stop_pod(&running.sandbox).await?;
        client.remove_pod(&running.sandbox).await?;
    }
    wait_until("the ledger is empty", || {
        node.proxy
            .ledger()
            .is_ok_and(|ledger| ledger["pods"].as_array().is_some_and(Vec::is_empty))
    });
    Ok(())
}

#[tokio::test]
async fn each_class_has_its_values_on_containerd_1_6() -> Result<()> {
    each_class_has_its_values(ContainerdVersion::V1_6).await
}

#[tokio::test]
async fn each_class_has_its_values_on_cri_o() -> Result<()> {
    each_class_has_its_values(RuntimeKind::Crio).await
}

#[tokio::test]
async fn each_class_has_its_values_on_containerd_1_7() -> Result<()> {
    each_class_has_its_values(ContainerdVersion::V1_7).await
}

#[tokio::test]
async fn each_class_has_its_values_on_containerd_2() -> Result<()> {
    each_class_has_its_values(ContainerdVersion::V2).await
}

#[tokio::test]
async fn the_pods_of_an_old_client_have_their_values_too() -> Result<()> {
    let node = Node::start(ContainerdVersion::V1_6, options()?)?;
    let client = node.client().await?.v1alpha2();
    let pod = classes::be("old");
    let running = node.run(&client, &pod).await?;
    wait_until("the values by runtime.v1alpha2", || {
        pod.wrong(&running).is_empty()
    });
    let shares = LinuxContainerResources {
        cpu_shares: 9,
        ..Default::default()
    };
    let changed = changed_by(&client, &running.cgroup, &running.container, shares).await?;
    assert_eq!(changed, BTreeMap::new(), "the hook's shares stay");
    client.stop_container(&running.container, 0).await?;
    let ledger = node.proxy.ledger()?;
    let container = &ledger["pods"][0]["containers"][0];
    assert_eq!(container["state"], "exited", "{container}");
    client.remove_container(&running.container).await?;
    let ledger = node.proxy.ledger()?;
    assert_eq!(ledger["pods"][0]["containers"], serde_json::json!([]));
    client.stop_pod(&running.sandbox).await?;
    let ledger = node.proxy.ledger()?;
    assert_eq!(ledger["pods"][0]["ready"], false, "{ledger}");
    client.remove_pod(&running.sandbox).await?;
    assert_eq!(node.proxy.ledger()?["pods"], serde_json::json!([]));
    Ok(())
}

/// Updates one field and gives the files that are different afterwards.
async fn changed_by(
    client: &CriClient,
    cgroup: &PodCgroup,
    container: &str,
    update: LinuxContainerResources,
) -> Result<BTreeMap<String, String>> {
    let before = snapshot(cgroup, container)?;
    client.update_resources(container, update).await?;
    let mut after = snapshot(cgroup, container)?;
    ensure!(
        before.keys().eq(after.keys()),
        "files come or go: {before:?} {after:?}"
    );
    after.retain(|file, value| before[file] != *value);
    Ok(after)
}

/// An update of one field, and the files that are different afterwards, with what they hold then.
type Field = (
    LinuxContainerResources,
    &'static [(&'static str, &'static str)],
);

/// containerd lets a container swap no more than it may have.
const OF_64_MIB: &[(&str, &str)] = &[
    ("memory.limit_in_bytes", "67108864"),
    ("memory.memsw.limit_in_bytes", "67108864"),
];
const SWAP_TO_128_MIB: &[(&str, &str)] = &[("memory.memsw.limit_in_bytes", "134217728")];

/// The hooks' CPUs and the quota that they have lifted stay. No runtime looks at the score of an update,
/// and every container has the one node of memory.
fn of_lsr() -> [Field; 9] {
    [
        (shares(1024), &[("cpu.shares", "1024")]),
        (quota(40_000), &[]),
        (period(50_000), &[("cpu.cfs_period_us", "50000")]),
        (memory_limit(64 << 20), OF_64_MIB),
        (swap_limit(128 << 20), SWAP_TO_128_MIB),
        (cpus("1"), &[]),
        (mems("0"), &[]),
        (oom_score(900), &[]),
        (LinuxContainerResources::default(), &[]),
    ]
}

/// The hooks' shared pool stays.
fn of_ls() -> [Field; 10] {
    [
        (shares(700), &[("cpu.shares", "700")]),
        (quota(60_000), &[("cpu.cfs_quota_us", "60000")]),
        (period(80_000), &[("cpu.cfs_period_us", "80000")]),
        (quota(-1), &[("cpu.cfs_quota_us", "-1")]),
        (memory_limit(64 << 20), OF_64_MIB),
        (swap_limit(128 << 20), SWAP_TO_128_MIB),
        (cpus("0"), &[]),
        (mems("0"), &[]),
        (oom_score(900), &[]),
        (LinuxContainerResources::default(), &[]),
    ]
}

/// The hooks' shares and memory stay, and so does the whole CPU that their quota is. No request can say
/// that they let it run on all CPUs: of a list these come back only after the answer.
fn of_be() -> [Field; 11] {
    [
        (shares(9), &[]),
        (quota(40_000), &[]),
        (
            period(50_000),
            &[
                ("cpu.cfs_period_us", "50000"),
                ("cpu.cfs_quota_us", "50000"),
            ],
        ),
        (memory_limit(64 << 20), &[]),
        (mems("0"), &[]),
        (oom_score(900), &[]),
        (LinuxContainerResources::default(), &[]),
        (
            swap_limit(256 << 20),
            &[("memory.memsw.limit_in_bytes", "268435456")],
        ),
        // What says nothing of it leaves it, though the hooks' memory goes with it.
        (shares(9), &[]),
        (LinuxContainerResources::default(), &[]),
        // containerd lets one whose memory is told and no swap have none, and so with the hooks' memory.
        (
            memory_limit(64 << 20),
            &[("memory.memsw.limit_in_bytes", "134217728")],
        ),
    ]
}

/// The hooks' CPUs stay.
fn of_plain() -> [Field; 9] {
    [
        (shares(300), &[("cpu.shares", "300")]),
        (quota(40_000), &[("cpu.cfs_quota_us", "40000")]),
        (period(50_000), &[("cpu.cfs_period_us", "50000")]),
        (memory_limit(64 << 20), OF_64_MIB),
        (swap_limit(128 << 20), SWAP_TO_128_MIB),
        (cpus("0"), &[]),
        (mems("0"), &[]),
        (oom_score(900), &[]),
        (LinuxContainerResources::default(), &[]),
    ]
}

/// CRI-O writes the swap of an update only where that tells the memory as well, and then that.
fn is_of_swap_alone((_, expected): &Field) -> bool {
    matches!(expected, [("memory.memsw.limit_in_bytes", _)])
}

/// Updates one field after the other, and compares what each changes.
async fn each_alone_changes(node: &Node, pod: &RunningPod, fields: &[Field]) -> Result<()> {
    let client = &node.client().await?;
    let is_left_out = |field| node.runtime.kind() == RuntimeKind::Crio && is_of_swap_alone(field);
    for (update, expected) in fields.iter().filter(|field| !is_left_out(field)) {
        let changed = changed_by(client, &pod.cgroup, &pod.container, update.clone()).await?;
        let changed: Vec<(&str, &str)> =
            changed.iter().map(|(file, it)| (&**file, &**it)).collect();
        assert_eq!(changed, *expected, "{update:?}");
    }
    Ok(())
}

/// Hooks let it run on all CPUs, which no request can say: they come back after the answer.
async fn all_cpus_come_back(client: &CriClient, pod: &RunningPod) -> Result<()> {
    let before = snapshot(&pod.cgroup, &pod.container)?;
    assert_eq!(before["cpuset.cpus"], before["pod cpuset.cpus"]);
    client.update_resources(&pod.container, cpus("0")).await?;
    wait_until("all CPUs are back and nothing else is different", || {
        let after = snapshot(&pod.cgroup, &pod.container);
        after.is_ok_and(|after| after == before)
    });
    Ok(())
}

/// That what is there already may be asked for does not show that the runtime is asked for it.
async fn a_node_of_memory_that_is_not_there_is_refused(
    client: &CriClient,
    pod: &RunningPod,
) -> Result<()> {
    let before = snapshot(&pod.cgroup, &pod.container)?;
    let refused = client.update_resources(&pod.container, mems("63")).await;
    let refused = refused.expect_err("no machine has it").to_string();
    ensure!(refused.contains("cpuset.mems"), "{refused}");
    assert_eq!(snapshot(&pod.cgroup, &pod.container)?, before);
    Ok(())
}

async fn an_update_changes_only_what_it_names(kind: impl Into<RuntimeKind> + Copy) -> Result<()> {
    let node = Node::start(kind, options()?)?;
    let client = node.client().await?;
    let share_pool = classes::share_pool()?;
    let lsr = node.run(&client, &classes::lsr("redis")).await?;
    let ls = node.run(&client, &classes::ls("web", &share_pool)).await?;
    let be = node.run(&client, &classes::be("batch")).await?;
    let plain = node
        .run(&client, &classes::plain("plain", &share_pool))
        .await?;
    // What is written beside the calls is there.
    all_are_looked_at(&node, &client, "before").await?;

    each_alone_changes(&node, &lsr, &of_lsr()).await?;
    each_alone_changes(&node, &ls, &of_ls()).await?;
    each_alone_changes(&node, &be, &of_be()).await?;
    each_alone_changes(&node, &plain, &of_plain()).await?;
    for pod in [&lsr, &ls, &be, &plain] {
        a_node_of_memory_that_is_not_there_is_refused(&client, pod).await?;
    }
    all_cpus_come_back(&client, &be).await?;

    // Nor is anything else written once the answer has come.
    let all = || -> Result<Vec<_>> {
        let pods = [&lsr, &ls, &be, &plain].into_iter();
        pods.map(|pod| snapshot(&pod.cgroup, &pod.container))
            .collect()
    };
    let before = all()?;
    all_are_looked_at(&node, &client, "after").await?;
    assert_eq!(all()?, before);
    Ok(())
}

#[tokio::test]
async fn an_update_changes_only_what_it_names_on_containerd_1_6() -> Result<()> {
    an_update_changes_only_what_it_names(ContainerdVersion::V1_6).await
}

#[tokio::test]
async fn an_update_changes_only_what_it_names_on_cri_o() -> Result<()> {
    an_update_changes_only_what_it_names(RuntimeKind::Crio).await
}

#[tokio::test]
async fn an_update_changes_only_what_it_names_on_containerd_1_7() -> Result<()> {
    an_update_changes_only_what_it_names(ContainerdVersion::V1_7).await
}

#[tokio::test]
async fn an_update_changes_only_what_it_names_on_containerd_2() -> Result<()> {
    an_update_changes_only_what_it_names(ContainerdVersion::V2).await
}

#[tokio::test]
async fn a_changed_policy_reaches_containers_that_run() -> Result<()> {
    let node = Node::start(ContainerdVersion::V1_7, options()?)?;
    let client = node.client().await?;
    let pod = classes::ls("web", &classes::share_pool()?);
    let running = node.run(&client, &pod).await?;
    let cpuset = |cpus: &str| {
        let held = running
            .cgroup
            .read("cpuset", Some(&running.container), "cpuset.cpus");
        held.is_ok_and(|held| held == cpus)
    };
    node.proxy.write_policy(&classes::node_policy("0"))?;
    wait_until("the new pool is in force", || cpuset("0"));
    node.proxy.write_policy("kind: [what")?;
    wait_until("it is said what is wrong", || {
        let said = node.proxy.admin("GET", "/policy", "");
        let policy = said
            .ok()
            .and_then(|(_, text)| text.parse::<serde_json::Value>().ok());
        policy.is_some_and(|policy| policy["error"].is_string())
    });
    assert!(cpuset("0"), "the last good policy stays");
    Ok(())
}

/// As a container engine within a container has them.
#[tokio::test]
async fn an_update_succeeds_though_a_container_cannot_have_the_cpus_of_a_new_policy() -> Result<()>
{
    let node = Node::start(ContainerdVersion::V1_7, options()?)?;
    let client = node.client().await?;
    let pool = classes::share_pool()?;
    ensure!(pool == "1", "this takes a machine with two CPUs");
    let pod = classes::ls("web", &pool);
    let running = node.run(&client, &pod).await?;
    let held = |controller, file| {
        running
            .cgroup
            .read(controller, Some(&running.container), file)
    };
    wait_until("the CPUs of the first policy", || {
        held("cpuset", "cpuset.cpus").is_ok_and(|cpus| cpus == "1")
    });
    let within = format!("{}/within", running.container);
    node.cgroups.container(&running.cgroup, &within)?;
    let inherited = running
        .cgroup
        .read("cpuset", Some(&within), "cpuset.cpus")?;
    assert_eq!(inherited, "1");
    node.proxy.write_policy(&classes::node_policy("0"))?;
    wait_until("the kernel refuses the CPUs of the second policy", || {
        let ledger = node.proxy.ledger().map(|ledger| ledger.to_string());
        ledger.is_ok_and(|ledger| ledger.contains("refused: Device or resource busy"))
    });
    let asked = [
        (shares(300), ("cpu", "cpu.shares"), "300"),
        (cpus("0-1"), ("cpuset", "cpuset.cpus"), "0-1"),
    ];
    for (update, (controller, file), expected) in asked {
        client.update_resources(&running.container, update).await?;
        assert_eq!(held(controller, file)?, expected);
    }
    // With the group that kept CPU 1.
    for directory in running.cgroup.directories(Some(&within)) {
        fs::remove_dir(directory)?;
    }
    client
        .update_resources(&running.container, shares(300))
        .await?;
    wait_until("the CPUs of the second policy", || {
        held("cpuset", "cpuset.cpus").is_ok_and(|cpus| cpus == "0")
    });
    Ok(())
}

/// Writes other values to the files of a pod and its container, as somebody beside us may. While
/// something is still written back the kernel may refuse one.
fn spoil(pod: &RunningPod, files: &[(Option<&str>, &str, &str)]) {
    let write = |(container, file, value): &(Option<&str>, &str, &str)| {
        let (controller, _) = file.split_once('.').expect("a controller");
        pod.cgroup.write(controller, *container, file, value)
    };
    wait_until("other values are written", || {
        files.iter().all(|file| write(file).is_ok())
    });
}

#[tokio::test]
async fn what_is_written_from_outside_is_written_back() -> Result<()> {
    let mut node = Node::start(ContainerdVersion::V1_7, options()?)?;
    let client = node.client().await?;
    let (batch, redis) = (classes::be("batch"), classes::lsr("redis"));
    let be = node.run(&client, &batch).await?;
    let lsr = node.run(&client, &redis).await?;
    let all_right = || {
        let be = batch.wrong(&be);
        be.is_empty() && redis.wrong(&lsr).is_empty()
    };
    wait_until("the values", all_right);
    let shares = || LinuxContainerResources {
        cpu_shares: 512,
        ..Default::default()
    };
    let of_be = Some(be.container.as_str());
    let of_lsr = Some(lsr.container.as_str());
    for by_list in [false, true] {
        spoil(
            &be,
            &[
                (None, "cpu.idle", "0"),
                (None, "cpu.cfs_quota_us", "-1"),
                (None, "memory.limit_in_bytes", "268435456"),
                (of_be, "cpu.shares", "7"),
                (of_be, "cpu.cfs_quota_us", "200000"),
                (of_be, "memory.limit_in_bytes", "67108864"),
            ],
        );
        let everything = "0-1";
        spoil(
            &lsr,
            &[
                (of_lsr, "cpuset.cpus", everything),
                (of_lsr, "cpu.cfs_quota_us", "30000"),
                (None, "cpu.cfs_quota_us", "70000"),
            ],
        );
        if by_list {
            // The first one looks at everything, as one of each minute does.
            node.proxy.kill9()?;
            node.launch_proxy()?;
        } else {
            client.update_resources(&be.container, shares()).await?;
            client.update_resources(&lsr.container, shares()).await?;
        }
        wait_until("what was written has been written over", all_right);
    }
    Ok(())
}

#[tokio::test]
async fn a_pod_that_is_idle_no_more_has_the_shares_of_before() -> Result<()> {
    let node = Node::start(ContainerdVersion::V1_7, options()?)?;
    let client = node.client().await?;
    let labelled = |name: &str, qos| PodSpecOf {
        pod: PodSpec::new(name).label("koordinator.sh/qosClass", "BE"),
        qos,
        ..classes::be(name)
    };
    let mut pods = Vec::new();
    for (pod, before, after) in [
        (labelled("bare", PodQos::BestEffort), "2", "2"),
        // Its tier does not say what it had.
        (
            labelled("odd", PodQos::Burstable { milli_cpu: 250 }),
            "256",
            "256",
        ),
        (classes::be("batch"), "2", "512"),
    ] {
        let made = node.cgroups.pod(pod.pod.uid(), pod.qos)?;
        assert_eq!(made.read("cpu", None, "cpu.shares")?, before);
        let running = node.run(&client, &pod).await?;
        wait_until(&format!("{} is idle", pod.name), || {
            let idle = running.cgroup.read("cpu", None, "cpu.idle");
            idle.is_ok_and(|idle| idle == "1")
        });
        pods.push((running.cgroup, after));
    }
    let awake = classes::node_policy("0").replace("enable: true", "enable: false");
    node.proxy.write_policy(&awake)?;
    for (cgroup, after) in pods {
        wait_until("the pod is idle no more and has its shares", || {
            let held = |file| cgroup.read("cpu", None, file).unwrap_or_default();
            held("cpu.idle") == "0" && held("cpu.shares") == after
        });
    }
    // The kernel is written before the ledger is told that it is.
    wait_until("nothing is known of the idleness that was", || {
        let known = node.proxy.ledger().map(|ledger| ledger.to_string());
        known.is_ok_and(|known| !known.contains("cpu.idle"))
    });
    Ok(())
}

/// Waits until all pods that have started have been held against the kernel. They are one after the
/// other, as they come, so one that comes last and has a value back that was written over is proof.
async fn all_are_looked_at(node: &Node, client: &CriClient, name: &str) -> Result<()> {
    let pod = classes::be(name);
    let last = node.run(client, &pod).await?;
    wait_until("the values of the last", || pod.wrong(&last).is_empty());
    last.cgroup.write("cpu", None, "cpu.idle", "0")?;
    let shares = LinuxContainerResources {
        cpu_shares: 512,
        ..Default::default()
    };
    client.update_resources(&last.container, shares).await?;
    wait_until("the last has its value back", || {
        pod.wrong(&last).is_empty()
    });
    Ok(())
}

const UNLIMITED: &str = "9223372036854771712";
/// The container of a pod of class `BE` of which nothing is set: shares, quota and limit of memory.
const AS_ASKED: [&str; 3] = ["2", "-1", UNLIMITED];
/// That pod's own group: whether it is idle, quota and limit of memory.
const UNTOUCHED: [&str; 3] = ["0", "-1", UNLIMITED];

/// The same, as the kernel has it.
fn held_by_be(running: &RunningPod) -> Result<[[String; 3]; 2]> {
    let read = |group, controller, file| running.cgroup.read(controller, group, file);
    let all = |group, first| -> Result<[String; 3]> {
        Ok([
            read(group, "cpu", first)?,
            read(group, "cpu", "cpu.cfs_quota_us")?,
            read(group, "memory", "memory.limit_in_bytes")?,
        ])
    };
    let container = Some(&*running.container);
    Ok([all(container, "cpu.shares")?, all(None, "cpu.idle")?])
}

#[tokio::test]
async fn pods_that_are_exempt_are_left_alone() -> Result<()> {
    let mut options = options()?;
    options
        .args
        .extend(["--excluded-namespaces", "kube-system"].map(str::to_owned));
    options
        .args
        .extend(["--excluded-runtime-handlers", OTHER_HANDLER].map(str::to_owned));
    let node = Node::start(ContainerdVersion::V1_7, options)?;
    let client = node.client().await?;
    let mut skipped = classes::be("skipped");
    skipped.pod = skipped
        .pod
        .label("runtimeproxy.koordinator.sh/skip-hookserver", "true");
    let mut excluded = classes::be("excluded");
    excluded.pod = excluded.pod.namespace("kube-system");
    let mut handled = classes::be("handled");
    handled.pod = handled.pod.handler(OTHER_HANDLER);
    let mut pods = Vec::new();
    // Of a handler's pods the group is the kubelet's, and has what is decided for it.
    let decided = ["1", "100000", "134217728"];
    let cases = [
        (skipped, UNTOUCHED),
        (excluded, UNTOUCHED),
        (handled, decided),
    ];
    for (pod, of_pod) in cases {
        pods.push((node.run(&client, &pod).await?, pod.name, of_pod));
    }
    all_are_looked_at(&node, &client, "last").await?;
    for (running, name, of_pod) in pods {
        let held = held_by_be(&running)?;
        assert_eq!(
            held,
            [AS_ASKED, of_pod].map(|it| it.map(str::to_owned)),
            "{name}"
        );
    }
    Ok(())
}

#[tokio::test]
async fn observing_changes_nothing_and_knows_everything() -> Result<()> {
    let mut options = options()?;
    options
        .args
        .extend(["--mode", "observe"].map(str::to_owned));
    let node = Node::start(ContainerdVersion::V1_7, options)?;
    let client = node.client().await?;
    let running = node.run(&client, &classes::be("batch")).await?;
    let lists = || {
        let ok = ["result=\"ok\""];
        node.proxy.metric("koord_runtime_proxy_relists_total", &ok)
    };
    let before = lists()?;
    // What nobody knows is asked for in a list, which is followed by another a second later.
    let unknown = client.update_resources("unknown", LinuxContainerResources::default());
    assert!(unknown.await.is_err());
    wait_until("a list is begun and taken after the start", || {
        lists().is_ok_and(|now| now > before + 1.5)
    });
    let as_asked = [AS_ASKED, UNTOUCHED].map(|it| it.map(str::to_owned));
    assert_eq!(held_by_be(&running)?, as_asked);
    let ledger = node.proxy.ledger()?.to_string();
    assert!(ledger.contains("\"desired\":\"512\""), "{ledger}");
    Ok(())
}

#[tokio::test]
async fn originals_outlive_the_proxy() -> Result<()> {
    let mut node = Node::start(ContainerdVersion::V1_7, options()?)?;
    let client = node.client().await?;
    let running = node.run(&client, &classes::lsr("redis")).await?;
    let asked = |node: &Node| -> Result<Option<String>> {
        let ledger = node.proxy.ledger()?;
        let settings = &ledger["pods"][0]["containers"][0]["settings"];
        let quota = settings
            .as_array()
            .and_then(|all| all.iter().find(|s| s["setting"] == "cpu.cfs_quota_us"));
        Ok(quota.and_then(|quota| quota["asked"].as_str().map(str::to_owned)))
    };
    assert_eq!(asked(&node)?.as_deref(), Some("50000"));
    assert!(node.proxy.stop()?.success());
    node.launch_proxy()?;
    wait_until("the ledger is whole", || {
        asked(&node).is_ok_and(|asked| asked.is_some())
    });
    assert_eq!(asked(&node)?.as_deref(), Some("50000"));
    let status = node
        .client()
        .await?
        .container_status(&running.container)
        .await?;
    let annotations = &status.status.context("a status")?.annotations;
    assert!(
        annotations.contains_key("runtimeproxy.koordinator.sh/originals"),
        "{annotations:?}"
    );
    Ok(())
}

#[tokio::test]
async fn a_hook_that_is_off_since_a_restart_has_given_back_what_was_asked() -> Result<()> {
    let mut node = Node::start(ContainerdVersion::V1_7, options()?)?;
    let client = node.client().await?;
    let running = node.run(&client, &classes::lsr("redis")).await?;
    let quota = || {
        let held = (running.cgroup).read("cpu", Some(&running.container), "cpu.cfs_quota_us");
        held.unwrap_or_default()
    };
    wait_until("the quota is lifted", || quota() == "-1");
    assert!(node.proxy.stop()?.success());
    node.proxy
        .set_args(&["--feature-gates", "CPUSetAllocator=false"]);
    node.launch_proxy()?;
    wait_until("the quota is what was asked for", || quota() == "50000");
    Ok(())
}

#[tokio::test]
async fn a_runtime_that_was_away_is_served_again() -> Result<()> {
    let mut node = Node::start(ContainerdVersion::V1_7, options()?)?;
    let client = node.client().await?;
    let before = node.run(&client, &classes::be("before")).await?;
    node.runtime.stop()?;
    let refused = CriClient::connect(&node.proxy.socket()).await;
    let answered = match refused {
        Ok(client) => client.version().await.is_ok(),
        Err(_) => false,
    };
    assert!(!answered, "nobody is there to answer");
    node.runtime.restart()?;
    let client = node.client().await?;
    let after = node.run(&client, &classes::be("after")).await?;
    for (name, running) in [("before", &before), ("after", &after)] {
        let pod = classes::be(name);
        wait_until(&format!("the values of {name}"), || {
            pod.wrong(running).is_empty()
        });
    }
    Ok(())
}

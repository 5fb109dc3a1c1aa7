//! `--revert`: with the proxy gone its values are taken back, and the kernel has what was asked for.

use anyhow::{Context, Result, ensure};
use koord_integration::{Front, Node, ProxyOptions, RunningPod, classes};
use koord_testkit::{ContainerdVersion, RuntimeKind, poll::wait_until};
use std::{fs, process::Output};

/// What cgroup v1 shows where there is no limit.
const UNLIMITED: &str = "9223372036854771712";

fn options(front: Front) -> Result<ProxyOptions> {
    Ok(ProxyOptions {
        policy: Some(classes::node_policy(&classes::share_pool()?)),
        args: vec![format!("--feature-gates={}", classes::FEATURE_GATES)],
        front,
        ..ProxyOptions::default()
    })
}

/// What it printed.
fn printed(output: &Output) -> Result<&str> {
    Ok(std::str::from_utf8(&output.stdout)?)
}

/// What a person reads when it fails.
fn all_of(output: &Output) -> String {
    let texts = [&output.stdout, &output.stderr].map(|it| String::from_utf8_lossy(it));
    format!("{}: {}{}", output.status, texts[0], texts[1])
}

/// Fails unless the kernel has these, each of the pod's own directory or of its container.
fn has(pod: &RunningPod, files: &[(bool, &str, &str, &str)]) -> Result<()> {
    for (of_container, controller, file, text) in files {
        let container = of_container.then_some(pod.container.as_str());
        let held = pod.cgroup.read(controller, container, file)?;
        ensure!(held == *text, "{container:?} {file}: {held}, not {text}");
    }
    Ok(())
}

/// The CPUs that a container has are those that its pod has, which nobody has limited.
fn has_all_cpus(pod: &RunningPod) -> Result<()> {
    let cpus = |of: Option<&str>| pod.cgroup.read("cpuset", of, "cpuset.effective_cpus");
    let (held, all) = (cpus(Some(&pod.container))?, cpus(None)?);
    ensure!(held == all, "it has the CPUs {held} of {all}");
    Ok(())
}

async fn all_that_hooks_have_set_is_given_back(
    kind: impl Into<RuntimeKind>,
    options: ProxyOptions,
) -> Result<()> {
    let mut node = Node::start(kind, options)?;
    let client = node.client().await?;
    let (batch, web) = (
        classes::be("batch"),
        classes::ls("web", &classes::share_pool()?),
    );
    let (be, ls) = (
        node.run(&client, &batch).await?,
        node.run(&client, &web).await?,
    );
    let all_right = || batch.wrong(&be).is_empty() && web.wrong(&ls).is_empty();
    wait_until("the values of the classes", all_right);

    let refused = node.proxy.revert(node.testbed())?;
    ensure!(refused.status.code() == Some(1), "{}", all_of(&refused));
    let said = String::from_utf8_lossy(&refused.stderr);
    ensure!(said.contains("a koord-runtime-proxy runs here"), "{said}");
    ensure!(all_right(), "one that is refused touches nothing");

    ensure!(node.proxy.stop()?.success(), "{}", node.proxy.log());
    ensure!(all_right(), "values stay when the proxy stops");
    let reverted = node.proxy.revert(node.testbed())?;
    ensure!(reverted.status.success(), "{}", all_of(&reverted));
    let values = [
        (false, "cpu", "cpu.idle", "0"),
        (false, "cpu", "cpu.shares", "2"),
        (false, "cpu", "cpu.cfs_quota_us", "-1"),
        (false, "memory", "memory.limit_in_bytes", UNLIMITED),
        (true, "cpu", "cpu.shares", "2"),
        (true, "cpu", "cpu.cfs_quota_us", "-1"),
        (true, "memory", "memory.limit_in_bytes", UNLIMITED),
    ];
    has(&be, &values).with_context(|| all_of(&reverted))?;
    has(&ls, &[(true, "cpu", "cpu.shares", "256")])?;
    has_all_cpus(&ls).with_context(|| all_of(&reverted))?;
    for line in [
        "  default/batch cpu.idle: 1 -> 0",
        "  default/batch main cpu.shares: 512 -> 2",
        "  default/batch main memory.limit_in_bytes: 134217728 -> 9223372036854771712",
    ] {
        let is_told = printed(&reverted)?.lines().any(|it| it == line);
        ensure!(is_told, "{line:?} is not in {}", all_of(&reverted));
    }

    let again = node.proxy.revert(node.testbed())?;
    ensure!(again.status.success(), "{}", all_of(&again));
    ensure!(
        printed(&again)? == "there is nothing to give back\n",
        "{}",
        all_of(&again)
    );
    has(&be, &values)
}

#[tokio::test]
async fn all_that_hooks_have_set_is_given_back_on_containerd_1_6() -> Result<()> {
    let options = options(Front::Cri)?;
    all_that_hooks_have_set_is_given_back(ContainerdVersion::V1_6, options).await
}

#[tokio::test]
async fn all_that_hooks_have_set_is_given_back_on_cri_o() -> Result<()> {
    let options = options(Front::Cri)?;
    all_that_hooks_have_set_is_given_back(RuntimeKind::Crio, options).await
}

/// As with systemd's units: the socket is there though nobody serves it.
#[tokio::test]
async fn all_that_hooks_have_set_is_given_back_while_the_socket_is_kept() -> Result<()> {
    let options = ProxyOptions {
        handed_over: true,
        ..options(Front::Cri)?
    };
    all_that_hooks_have_set_is_given_back(ContainerdVersion::V2, options).await
}

#[tokio::test]
async fn all_that_a_plugin_has_set_is_given_back_on_containerd_1_7() -> Result<()> {
    let options = options(Front::Nri)?;
    all_that_hooks_have_set_is_given_back(ContainerdVersion::V1_7, options).await
}

#[tokio::test]
async fn all_that_was_set_unasked_is_given_back_on_containerd_2() -> Result<()> {
    let options = options(Front::Watch)?;
    all_that_hooks_have_set_is_given_back(ContainerdVersion::V2, options).await
}

/// What a best-effort pod's directory has that no hook sets.
const OF_NO_HOOK: [(bool, &str, &str, &str); 4] = [
    (false, "cpu", "cpu.idle", "0"),
    (false, "cpu", "cpu.shares", "2"),
    (false, "cpu", "cpu.cfs_quota_us", "-1"),
    (false, "memory", "memory.limit_in_bytes", UNLIMITED),
];

/// Reverts three times, after which a pod always has what no hook sets.
fn is_given_back_for_good(node: &Node, be: &RunningPod, case: &str) -> Result<()> {
    for turn in 0..3 {
        let reverted = node.proxy.revert(node.testbed())?;
        let said = all_of(&reverted);
        ensure!(reverted.status.success(), "{case}, {turn}: {said}");
        has(be, &OF_NO_HOOK).with_context(|| format!("{case}, {turn}: {said}"))?;
        let nothing = printed(&reverted)? == "there is nothing to give back\n";
        ensure!(turn == 0 || nothing, "{case}, {turn}: {said}");
    }
    Ok(())
}

#[tokio::test]
async fn after_hooks_were_switched_off_every_revert_leaves_what_was_asked_for() -> Result<()> {
    // Each with what tells that it has given back what it could.
    let batch = ("BatchResource", "cpu.cfs_quota_us", "-1");
    let identity = ("GroupIdentity", "cpu.idle", "0");
    for switched_off in [
        &[batch, identity][..],
        &[identity, batch],
        &[batch],
        &[identity],
    ] {
        let mut node = Node::start(ContainerdVersion::V2, options(Front::Cri)?)?;
        let client = node.client().await?;
        let pod = classes::be("batch");
        let be = node.run(&client, &pod).await?;
        wait_until("the values of the class", || pod.wrong(&be).is_empty());
        for (hook, file, text) in switched_off {
            node.proxy.switch(&format!("{hook}=off"))?;
            wait_until("the hook has given back", || {
                has(&be, &[(false, "cpu", file, text)]).is_ok()
            });
        }
        ensure!(node.proxy.stop()?.success(), "{}", node.proxy.log());
        is_given_back_for_good(&node, &be, &format!("{switched_off:?}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn what_somebody_else_has_noted_on_a_pod_spoils_no_revert() -> Result<()> {
    let out_of_range = b"cpu.shares 999999999 512\nmemory.limit_in_bytes 0 1073741824\n";
    for note in [
        &b"\xff\xfe\n"[..],
        b"another version's\n",
        out_of_range,
        b"",
    ] {
        let mut node = Node::start(ContainerdVersion::V2, options(Front::Cri)?)?;
        let client = node.client().await?;
        let pod = classes::be("batch");
        let be = node.run(&client, &pod).await?;
        wait_until("the values of the class", || pod.wrong(&be).is_empty());
        ensure!(node.proxy.stop()?.success(), "{}", node.proxy.log());
        let directory = be.cgroup.directory("cpu");
        let name = "user.koordinator.originals";
        rustix::fs::setxattr(&directory, name, note, rustix::fs::XattrFlags::empty())?;
        is_given_back_for_good(&node, &be, &format!("{note:?}"))?;
    }
    Ok(())
}

#[tokio::test]
async fn what_a_killed_proxy_has_replaced_comes_back() -> Result<()> {
    let mut node = Node::start(ContainerdVersion::V2, options(Front::Cri)?)?;
    let client = node.client().await?;
    let redis = classes::lsr("redis");
    let lsr = node.run(&client, &redis).await?;
    wait_until("the values of the class", || redis.wrong(&lsr).is_empty());
    node.proxy.kill9()?;
    let reverted = node.proxy.revert(node.testbed())?;
    ensure!(reverted.status.success(), "{}", all_of(&reverted));
    has(&lsr, &[(true, "cpu", "cpu.cfs_quota_us", "50000")])?;
    has_all_cpus(&lsr)?;
    // As the kubelet had given it to the pod.
    has(&lsr, &[(false, "cpu", "cpu.cfs_quota_us", "50000")])?;
    let line = "  default/redis cpu.cfs_quota_us: -1 -> 50000";
    let is_told = printed(&reverted)?.lines().any(|it| it == line);
    ensure!(is_told, "{}", all_of(&reverted));
    Ok(())
}

#[tokio::test]
async fn where_we_only_observed_what_somebody_else_has_set_stays() -> Result<()> {
    let mut options = options(Front::Cri)?;
    options.args.push("--mode=observe".to_owned());
    let mut node = Node::start(ContainerdVersion::V2, options)?;
    let client = node.client().await?;
    let be = node.run(&client, &classes::be("batch")).await?;
    let lsr = node.run(&client, &classes::lsr("redis")).await?;
    ensure!(node.proxy.stop()?.success(), "{}", node.proxy.log());
    let directory = be.cgroup.directory("cpu");
    fs::write(directory.join(&be.container).join("cpu.shares"), "78")?;
    fs::write(directory.join("cpu.shares"), "77")?;
    let reverted = node.proxy.revert(node.testbed())?;
    ensure!(reverted.status.success(), "{}", all_of(&reverted));
    let said = printed(&reverted)?;
    let nothing = "there is nothing to give back\nby mode observe only what is marked";
    ensure!(said.starts_with(nothing), "{said}");
    has(
        &be,
        &[
            (false, "cpu", "cpu.shares", "77"),
            (true, "cpu", "cpu.shares", "78"),
        ],
    )?;
    has(&lsr, &[(true, "cpu", "cpu.cfs_quota_us", "50000")])
}

//! A node that has no thread to give, as one has none on which a pod has used up all process ids: what
//! the proxy needs a thread for waits until there is one, and nothing else does.

use anyhow::{Context, Result, ensure};
use koord_integration::{Front, Proxy, ProxyOptions, RunningPod, classes};
use koord_testkit::{
    PodCgroups, Testbed,
    cri::CriClient,
    poll::wait_until,
    scripted::{Otherwise, Reply, Script, ScriptedRuntime},
};
use std::{fs, path::PathBuf};

const EXTENDED_RESOURCE_SPEC: &str = "node.koordinator.sh/extended-resource-spec";

/// A runtime that gives every sandbox and container this id, and knows of none.
fn script() -> Script {
    let method = |name: &str| format!("/runtime.v1.RuntimeService/{name}");
    let id = || Reply::message(b"\x0a\x04id-1".as_slice());
    let nothing = || Reply::message(b"".as_slice());
    Script::new(Otherwise::Echo)
        .always(&method("RunPodSandbox"), id())
        .always(&method("CreateContainer"), id())
        .always(&method("StartContainer"), nothing())
}

/// Says how many threads there may be in the control group that a testbed starts processes in.
fn limit_of_threads(testbed: &Testbed) -> Result<impl Fn(&str) -> Result<()>> {
    let mut hierarchies = testbed.hierarchies().iter();
    let pids = hierarchies.find(|it| it.has("pids")).context("pids")?;
    let root = testbed.cgroup_root();
    let group: PathBuf = pids.mount_point().join(root.trim_start_matches('/'));
    Ok(move |most: &str| Ok(fs::write(group.join("runtime/pids.max"), most)?))
}

/// Runs a best-effort pod that has 5 % of a CPU, and waits until its directory has this quota.
async fn run(cgroups: &PodCgroups, client: &CriClient, name: &str, quota: &str) -> Result<()> {
    let mut pod = classes::be(name);
    let spec = r#"{"containers":{"main":{"limits":{"kubernetes.io/batch-cpu":50}}}}"#;
    pod.pod = pod.pod.annotation(EXTENDED_RESOURCE_SPEC, spec);
    let running = RunningPod::start(cgroups, client, &pod).await?;
    wait_until(&format!("{name} has the quota {quota}"), || {
        let held = running.cgroup.read("cpu", None, "cpu.cfs_quota_us");
        held.is_ok_and(|held| held == quota)
    });
    Ok(())
}

#[tokio::test]
async fn what_needs_a_thread_waits_where_none_can_be_had_and_nothing_else_does() -> Result<()> {
    let testbed = Testbed::new()?;
    let cgroups = PodCgroups::new(&testbed)?;
    let limit = limit_of_threads(&testbed)?;
    let runtime = testbed.directory().join("runtime.sock");
    let _runtime = ScriptedRuntime::listen(&runtime, script())?;
    let policy = classes::node_policy(&classes::share_pool()?);
    // The proxy's own thread, those that write, and those that read the policy and look for koordlet.
    for (most, quota) in [("1", "-1"), ("2", "5000"), ("3", "5000"), ("4", "5000")] {
        limit(most)?;
        let options = ProxyOptions {
            policy: Some(policy.clone()),
            // This thread lets no connection end while it waits for the stop.
            args: vec!["--grace-period=0s".to_owned()],
            ..ProxyOptions::default()
        };
        let mut proxy = Proxy::start(&testbed, &runtime, options)?;
        let client = CriClient::connect(&proxy.socket()).await?;
        run(&cgroups, &client, &format!("without-{most}"), quota).await?;

        limit("max")?;
        run(&cgroups, &client, &format!("with-{most}"), "5000").await?;
        proxy.write_policy(&format!("{policy}\n"))?;
        wait_until("the policy is read again", || {
            let read = proxy.metric("koord_runtime_proxy_policy_loads_total", &["ok"]);
            read.is_ok_and(|read| read > 1.5)
        });
        assert_eq!(proxy.status()?["mode"], "enforce", "{most}");
        let log = proxy.log();
        ensure!(log.contains("a thread cannot be started"), "{most}: {log}");
        ensure!(!log.contains("panicked"), "{most}: {log}");
        ensure!(proxy.stop()?.success(), "{most}: {}", proxy.log());
    }
    Ok(())
}

#[tokio::test]
async fn a_plugin_starts_where_no_thread_can_be_had_for_its_watchdog() -> Result<()> {
    let testbed = Testbed::new()?;
    limit_of_threads(&testbed)?("1")?;
    let runtime = testbed.directory().join("runtime.sock");
    let options = ProxyOptions {
        front: Front::Nri,
        ..ProxyOptions::default()
    };
    let mut proxy = Proxy::new(&testbed, &runtime, options)?;
    proxy.spawn(&testbed)?;
    // No runtime is there, so what it says of itself is all that shows it.
    wait_until("it has started", || proxy.status().is_ok());
    assert_eq!(proxy.status()?["mode"], "enforce");
    let log = proxy.log();
    ensure!(log.contains("the watchdog cannot be started"), "{log}");
    ensure!(!log.contains("panicked"), "{log}");
    ensure!(proxy.stop()?.success(), "{}", proxy.log());
    Ok(())
}

#[tokio::test]
async fn passing_through_needs_no_thread() -> Result<()> {
    let testbed = Testbed::new()?;
    let cgroups = PodCgroups::new(&testbed)?;
    limit_of_threads(&testbed)?("1")?;
    let runtime = testbed.directory().join("runtime.sock");
    let _runtime = ScriptedRuntime::listen(&runtime, script())?;
    let options = ProxyOptions {
        args: vec!["--mode=pass-through".to_owned()],
        ..ProxyOptions::default()
    };
    let mut proxy = Proxy::start(&testbed, &runtime, options)?;
    let client = CriClient::connect(&proxy.socket()).await?;
    run(&cgroups, &client, "through", "-1").await?;
    ensure!(proxy.stop()?.success(), "{}", proxy.log());
    ensure!(!proxy.log().contains("thread"), "{}", proxy.log());
    Ok(())
}

//! The README's two ways to be the runtime's plugin: by registration as a service, and launched by the
//! runtime; and the way back from each.

use crate::{
    Check,
    node::Node,
    reader::{Answer, Reader, run},
    remnant::{is_given_back, nothing_is_left},
    service::is_hardened,
    wait,
};
use anyhow::{Context, Result, ensure};
use koord_integration::classes;
use koord_testkit::poll::wait_until;
use serde_json::Value;
use std::fs;

pub(super) const CHECKS: &[Check<Stage>] = &[
    ("a_plugin_registers_and_observes", it_registers),
    ("a_plugin_has_values_come_into_force", it_enforces),
    ("a_plugin_that_registers_is_gone", it_leaves),
    ("a_launched_plugin_observes", it_is_launched),
    (
        "a_launched_plugin_has_values_come_into_force",
        it_enforces_where_it_is_launched,
    ),
    ("a_launched_plugin_is_gone", it_is_launched_no_more),
];

const CONFIG: &str = "/etc/koord-runtime-proxy/config.yaml";
const POLICY: &str = "/etc/koord-policy.yaml";
const REGISTERED: &str = "koord-runtime-proxy";
/// As docs/nri.md asks one that the runtime launches.
const LAUNCHED: &str =
    "koord-runtime-proxy --admin-endpoint=/run/10-koord-runtime-proxy/admin.sock";
const LAUNCHED_CONFIG: &str = "/etc/nri/conf.d/10-koord-runtime-proxy.conf";

/// How far it has come.
pub(super) struct Stage {
    node: Node,
    steps: Reader,
}

// === impl Stage ===

impl Stage {
    pub(super) fn new() -> Result<Self> {
        fs::write(POLICY, classes::node_policy("1"))?;
        let heading = "### As the runtime's NRI plugin";
        Ok(Self {
            node: Node::of_each_class()?,
            steps: Reader::opens("README.md", heading)?,
        })
    }
}

fn it_registers(stage: &mut Stage) -> Result<()> {
    stage.steps.types()?;
    stage.steps.types()?;
    is_up(REGISTERED, "observe")?;
    is_hardened()?;
    wait("observed", || stage.node.not_as_asked())
}

fn it_enforces(stage: &mut Stage) -> Result<()> {
    fs::write(CONFIG, format!("front: nri\n{}", policy()))?;
    run("systemctl restart koord-runtime-proxy")?.ended(0)?;
    is_up(REGISTERED, "enforce")?;
    has_values(&mut stage.node, "registered")
}

/// The README's way back, from where the kubelet has nothing to do with it.
fn it_leaves(stage: &mut Stage) -> Result<()> {
    let mut steps = Reader::opens("README.md", "### Undo")?;
    steps.passes_over()?;
    steps.passes_over()?;
    steps.passes_over()?;
    let mut of_plugins = Reader::opens("docs/undo.md", "# Leaving a node")?;
    of_plugins.passes_over()?;
    goes_back(&mut of_plugins, &["redis", "web", "batch"])?;
    steps.types()?;
    steps.closes()?;
    nothing_is_left()?;
    as_before(&stage.node, "registered")
}

fn it_is_launched(stage: &mut Stage) -> Result<()> {
    // As before the first way.
    let mut steps = Reader::opens("README.md", "### As the runtime's NRI plugin")?;
    steps.types()?;
    stage.steps.types()?;
    stage.steps.closes()?;
    is_up(LAUNCHED, "observe")?;
    // Those that were there have what nobody could give back.
    stage.node = Node::default();
    let pods = vec![classes::ls("front", "1"), classes::be("back")];
    stage.node.start(pods)?;
    wait("observed", || stage.node.not_as_asked())
}

fn it_enforces_where_it_is_launched(stage: &mut Stage) -> Result<()> {
    fs::write(LAUNCHED_CONFIG, policy())?;
    run("systemctl restart containerd")?.ended(0)?;
    is_up(LAUNCHED, "enforce")?;
    has_values(&mut stage.node, "launched")
}

/// The way back of docs/undo.md.
fn it_is_launched_no_more(stage: &mut Stage) -> Result<()> {
    run("rm /opt/nri/plugins/10-koord-runtime-proxy")?.ended(0)?;
    run("systemctl restart containerd")?.ended(0)?;
    let mut steps = Reader::opens("docs/undo.md", "# Leaving a node")?;
    steps.passes_over()?;
    steps.passes_over()?;
    goes_back(&mut steps, &["redis", "web", "batch", "front", "back"])?;
    // Of a DaemonSet.
    steps.passes_over()?;
    steps.closes()?;
    for what in [
        LAUNCHED_CONFIG,
        "/var/lib/10-koord-runtime-proxy",
        "/run/10-koord-runtime-proxy",
        "/usr/local/bin/koord-runtime-proxy",
    ] {
        run(&format!("rm -r {what}"))?.ended(0)?;
    }
    nothing_is_left()?;
    as_before(&stage.node, "launched")
}

/// What is configured where pods have classes.
fn policy() -> String {
    let gates = classes::FEATURE_GATES;
    format!("node-policy: {POLICY}\nnode-name: node-1\nfeature-gates: {gates}\n")
}

/// Waits until the runtime asks the plugin, and fails unless it is in this mode.
fn is_up(proxy: &str, mode: &str) -> Result<()> {
    let status = || -> Result<Value> {
        let answer: Answer = run(&format!("{proxy} status --json"))?.ended(0)?;
        Ok(serde_json::from_str(&answer.text)?)
    };
    wait_until("the runtime asks it", || {
        status().is_ok_and(|it| it["pluginUp"] == true && it["runtimeUp"] == true)
    });
    let status = status().context("it has answered before")?;
    ensure!(status["front"] == "nri", "{status:#}");
    ensure!(status["mode"] == mode, "{status:#}");
    Ok(())
}

/// Those that run, and one that starts now.
fn has_values(node: &mut Node, name: &str) -> Result<()> {
    wait("enforced", || node.not_as_decided())?;
    node.start(vec![classes::be(name)])?;
    wait("enforced from the start", || node.not_as_decided())?;
    node.runs_on()
}

/// Types what stops a plugin and gives back what it has set, but to pods that were there before it.
fn goes_back(steps: &mut Reader, were_there: &[&str]) -> Result<()> {
    let answers = steps.types_whatever_comes()?;
    let (reverted, stops) = answers.split_last().context("there are commands")?;
    for stop in stops {
        ensure!(stop.status == Some(0), "{stop:#?}");
    }
    let unknown: Vec<String> = were_there
        .iter()
        .map(|pod| format!("  default/{pod}-node "))
        .collect();
    let unknown: Vec<&str> = unknown.iter().map(String::as_str).collect();
    is_given_back(reverted, &unknown)
}

/// Fails unless a pod has what the kubelet asked for, also once systemd has written what it knows.
fn as_before(node: &Node, pod: &str) -> Result<()> {
    run("systemctl daemon-reload")?.ended(0)?;
    wait("given back", || {
        let mut wrong = node.not_as_asked();
        wrong.retain(|it| it.contains(&format!(" of {pod} ")));
        wrong
    })?;
    node.runs_on()
}

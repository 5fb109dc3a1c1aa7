//! Drop-ins of the service, each with the hook or the source that needs it: what they allow works, and what
//! they do not allow is denied.

use crate::{
    Check,
    node::Node,
    reader::{Reader, run},
    service::{process, status},
};
use anyhow::{Context, Result, ensure};
use koord_kernel::core_sched::{Cookie, CoreSched, Kernel, Tid};
use koord_testkit::{CLIENT_PEM, poll::wait_until};
use serde_json::Value;
use std::{collections::BTreeSet, fs, net::TcpStream};

pub(super) const CHECKS: &[Check<Stage>] = &[
    ("cores_are_shared_by_groups_with_the_drop_in", with_cores),
    (
        "without_the_drop_in_it_is_told_what_is_missing",
        without_cores,
    ),
    ("the_kubelet_is_asked_with_the_drop_in", with_kubelet),
    ("no_other_address_can_be_reached", no_other_address),
];

const CONFIG: &str = "/etc/koord-runtime-proxy/config.yaml";
const POLICY: &str = "/etc/koord-runtime-proxy/policy.yaml";
const DROP_INS: &str = "/etc/systemd/system/koord-runtime-proxy.service.d";
/// Where docs/configuration.md has it.
const CERTIFICATE: &str = "/var/lib/kubelet/pki/koord-runtime-proxy.pem";

/// The policy that leaves CPU time to core scheduling.
const CORES: &str = "apiVersion: slo.koordinator.sh/v1alpha1
kind: NodeSLO
metadata: {name: node}
spec:
  resourceQOSStrategy:
    policies: {cpuPolicy: coreSched}
    lsClass: {cpuQOS: {enable: true, coreExpeller: true}}
    beClass: {cpuQOS: {enable: true, schedIdle: 1}}
";

/// `CAP_SYS_PTRACE`, and no other.
const PTRACE: &str = "0000000000080000";
const NONE: &str = "0000000000000000";

/// A node whose pods are of two groups, beside the service.
pub(super) struct Stage {
    node: Node,
}

// === impl Stage ===

impl Stage {
    pub(super) fn new() -> Result<Self> {
        let node = Node::of_groups()?;
        let mut steps = Reader::opens("README.md", "## On a node")?;
        steps.types()?;
        steps.types()?;
        fs::write(POLICY, CORES)?;
        fs::write(CONFIG, format!("node-policy: {POLICY}\n"))?;
        steps.types()?;
        Ok(Self { node })
    }
}

fn with_cores(stage: &mut Stage) -> Result<()> {
    let mut steps = Reader::opens("docs/hook-requirements.md", "# What each hook needs")?;
    steps.knows("NAME", "core-scheduling");
    steps.types()?;
    steps.closes()?;
    for set in ["CapBnd", "CapEff"] {
        has_capabilities(set, PTRACE)?;
    }
    let kernel = Kernel::open(false)?;
    wait_until("groups have cookies", || {
        cookies(&kernel, &stage.node).is_ok_and(|all| !all.contains(&None))
    });
    let all = cookies(&kernel, &stage.node)?;
    let groups: BTreeSet<_> = all.iter().collect();
    ensure!(all.len() == 3 && all[0] == all[1], "{all:?}");
    ensure!(groups.len() == 2, "{all:?} of two groups");
    stage.node.runs_on()
}

fn without_cores(stage: &mut Stage) -> Result<()> {
    run(&format!("rm -r {DROP_INS}"))?.ended(0)?;
    run("systemctl daemon-reload")?.ended(0)?;
    run("systemctl restart koord-runtime-proxy")?.ended(0)?;
    has_capabilities("CapEff", NONE)?;
    let missing = "core scheduling wants CAP_SYS_PTRACE, which this process does not have";
    let remarks = status()?["remarks"].take();
    let is_told = remarks
        .as_array()
        .is_some_and(|all| all.iter().any(|it| it == missing));
    ensure!(is_told, "{remarks:#}");
    stage.node.runs_on()
}

/// The one cookie of each container.
fn cookies(kernel: &Kernel, node: &Node) -> Result<Vec<Option<Cookie>>> {
    let of = |threads: Vec<Tid>| {
        let all = threads.into_iter().map(|thread| kernel.cookie(thread));
        let all: BTreeSet<_> = all.collect::<Result<_, _>>()?;
        ensure!(all.len() == 1, "{all:?} in one container");
        all.first().copied().context("no thread is there")
    };
    node.threads()?.into_iter().map(of).collect()
}

fn has_capabilities(set: &str, expected: &str) -> Result<()> {
    let process = process()?;
    let held = process.get(set);
    ensure!(held.is_some_and(|held| held == expected), "{set}: {held:?}");
    Ok(())
}

fn with_kubelet(_: &mut Stage) -> Result<()> {
    fs::write(CONFIG, format!("node-policy: {POLICY}\n"))?;
    fs::write(CERTIFICATE, CLIENT_PEM)?;
    let mut steps = Reader::opens("docs/configuration.md", "### `--pods kubelet`")?;
    // There is no cluster: the certificate is another way to be let in.
    steps.passes_over()?;
    steps.types()?;
    steps.closes()?;
    wait_until("the kubelet has said its pods", || {
        pods().is_ok_and(|it| it["pods"] == 3 && it["error"].is_null())
    });
    has_capabilities("CapEff", NONE)
}

/// The same kubelet by another address of this machine.
fn no_other_address(_: &mut Stage) -> Result<()> {
    run("busybox ip address add 192.0.2.1/32 dev lo")?.ended(0)?;
    let config = fs::read_to_string(CONFIG)?;
    fs::write(
        CONFIG,
        format!("{config}kubelet-url: https://192.0.2.1:10250/pods\n"),
    )?;
    run("systemctl restart koord-runtime-proxy")?.ended(0)?;
    let denied =
        "the kubelet does not say them at https://192.0.2.1:10250/pods: it did not answer in time";
    wait_until("it is told that the kubelet cannot be asked", || {
        pods().is_ok_and(|it| it["error"] == denied)
    });
    // Anybody else can.
    TcpStream::connect("192.0.2.1:10250")?;
    Ok(())
}

/// What is known by the source of pods.
fn pods() -> Result<Value> {
    Ok(status()?["pods"].take())
}

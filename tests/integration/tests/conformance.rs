//! CRI conformance: the same scenarios straight at the runtime and through the proxy with all hooks
//! on give the same replies, but for the differences that hooks announce; and so they do straight at
//! a runtime that asks the proxy as its plugin.
//!
//! The scenarios and the comparison are the Go program in `tests/conformance`, which uses the
//! official CRI types and client library; here are the real runtimes and the proxy around it.

use anyhow::{Context, Result, bail, ensure};
use koord_integration::{
    Front, Node, ProxyOptions, classes,
    every_hook::{self, BusyPolicy},
};
use koord_testkit::{ContainerdVersion, RuntimeKind, poll::wait_until};
use std::{
    fs,
    path::{Path, PathBuf},
    process::{Child, Command},
    sync::LazyLock,
    thread,
    time::{Duration, Instant},
};

/// One run of the scenarios takes half a minute.
const BOUND: Duration = Duration::from_secs(600);

/// The differences that the hooks make on purpose, each with its values. Where a reply lists the
/// CPUs of the machine, they are those of a machine with two.
fn announced(kind: RuntimeKind, front: &str) -> PathBuf {
    let runtime = match kind {
        RuntimeKind::Containerd(ContainerdVersion::V1_6) => "1.6",
        RuntimeKind::Containerd(
            ContainerdVersion::V1_7_6 | ContainerdVersion::V1_7_13 | ContainerdVersion::V1_7,
        ) => "1.7",
        RuntimeKind::Containerd(_) => "2",
        RuntimeKind::Crio => "cri-o",
    };
    Path::new(env!("CARGO_MANIFEST_DIR"))
        .join("../conformance")
        .join(format!("{front}-{runtime}.json"))
}

/// The program, built once for all tests: what one of them runs no other replaces.
fn program() -> Result<&'static Path> {
    static PROGRAM: LazyLock<Result<PathBuf>> = LazyLock::new(build);
    match &*PROGRAM {
        Ok(program) => Ok(program),
        Err(error) => bail!("{error:#}"),
    }
}

/// Builds the program, or finds that Go's cache has it.
fn build() -> Result<PathBuf> {
    let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("../conformance");
    let program = Path::new(env!("CARGO_TARGET_TMPDIR")).join("conformance");
    let built = Command::new("go")
        .args(["build", "-mod=readonly", "-o"])
        .arg(&program)
        .arg(".")
        .current_dir(source)
        .env("GOTOOLCHAIN", "local")
        .status()
        .context("run go")?;
    ensure!(built.success(), "the conformance program does not build");
    Ok(program)
}

/// Waits for a child that may ask for a restart of the runtime by making a file.
fn attend(child: &mut Child, node: &mut Node, request: &Path, done: &Path) -> Result<()> {
    let start = Instant::now();
    loop {
        if let Some(status) = child.try_wait()? {
            ensure!(status.success(), "the scenarios ended with {status}");
            return Ok(());
        }
        if fs::remove_file(request).is_ok() {
            node.runtime.restart()?;
            if node.proxy.front() == Front::Nri && node.proxy.pid().is_some() {
                wait_until("the runtime asks us again", || node.proxy.serves());
            }
            fs::File::create(done)?;
        }
        if start.elapsed() > BOUND {
            child.kill()?;
            anyhow::bail!("the scenarios do not end");
        }
        thread::sleep(Duration::from_millis(20));
    }
}

fn record(program: &Path, node: &mut Node, socket: &Path, name: &str) -> Result<PathBuf> {
    let out = node.testbed().directory().join(format!("{name}.json"));
    let to = format!("--out={}", out.display());
    let path = format!("--path=testbed={}", node.testbed().directory().display());
    run(program, node, socket, &["run", &to, &path]).with_context(|| name.to_owned())?;
    Ok(out)
}

/// Runs the scenarios as often as `command` does, and restarts the runtime whenever they ask for it.
fn run(program: &Path, node: &mut Node, socket: &Path, command: &[&str]) -> Result<()> {
    let directory = node.testbed().directory().to_owned();
    let (request, done) = (directory.join("restart"), directory.join("restarted"));
    let restart = format!(
        "rm -f {done}; touch {request}; until [ -e {done} ]; do sleep 0.05; done",
        done = done.display(),
        request = request.display()
    );
    let mut run = node.testbed().command(program);
    run.args(command)
        .arg("--endpoint")
        .arg(socket)
        .arg("--cgroup-parent")
        .arg(format!(
            "{}/conformance/kubepods",
            node.testbed().cgroup_root()
        ))
        .arg("--restart-cmd")
        .arg(restart);
    let mut child = run.spawn().context("start the scenarios")?;
    attend(&mut child, node, &request, &done).context("the scenarios")
}

fn node(kind: RuntimeKind, front: Front) -> Result<Node> {
    let options = ProxyOptions {
        policy: Some(BusyPolicy::new(&classes::share_pool()?).text()),
        args: ["--feature-gates", every_hook::FEATURE_GATES]
            .map(str::to_owned)
            .to_vec(),
        front,
        ..ProxyOptions::default()
    };
    Node::start(kind, options)
}

/// With us and without; and whatever a containerd says, another word of it would be noticed. CRI-O makes up
/// ids that it tells once, of which one is as good as another.
fn replies_are_equal(kind: impl Into<RuntimeKind>) -> Result<()> {
    let (program, kind) = (program()?, kind.into());
    let mut node = node(kind, Front::Cri)?;
    let (runtime, proxy) = (node.runtime.socket(), node.proxy.socket());
    let direct = record(program, &mut node, &runtime, "direct")?;
    let through = record(program, &mut node, &proxy, "through")?;
    equal(program, kind, "hooked", [&direct, &through])?;
    match kind {
        RuntimeKind::Containerd(_) => alterations_are_noticed(program, &direct),
        RuntimeKind::Crio => Ok(()),
    }
}

/// Each leaf of each reply that was recorded, altered one at a time: some 40,000 alterations, of which none
/// may pass the comparison but for the kinds that its README names.
fn alterations_are_noticed(program: &Path, transcript: &Path) -> Result<()> {
    let altered = Command::new(program)
        .arg("mutate")
        .arg(transcript)
        .status()?;
    ensure!(altered.success(), "an altered reply passes the comparison");
    Ok(())
}

/// The runtime is asked twice, alone and with us as its plugin.
fn replies_are_equal_with_the_plugin(kind: impl Into<RuntimeKind>) -> Result<()> {
    let (program, kind) = (program()?, kind.into());
    let mut node = node(kind, Front::Nri)?;
    let runtime = node.runtime.socket();
    node.proxy.stop()?;
    let alone = record(program, &mut node, &runtime, "alone")?;
    node.launch_proxy()?;
    let asked = record(program, &mut node, &runtime, "asked")?;
    has_answered_itself(&node)?;
    equal(program, kind, "asked", [&alone, &asked])
}

/// The replies are those of a runtime that was told what was decided: not once did the watchdog answer
/// "no change" for a plugin that was late.
fn has_answered_itself(node: &Node) -> Result<()> {
    let late = node
        .proxy
        .metric("koord_runtime_proxy_plugin_late_answers_total", &[])?;
    let patched = node.proxy.creations(Some("patched"))?;
    println!("{patched} creations were adjusted, {late} answers were late");
    ensure!(late < 0.5, "{late} answers were late");
    ensure!(patched > 0.5, "no creation was adjusted");
    Ok(())
}

/// Holds a record of the scenarios with us against one without.
fn equal(program: &Path, kind: RuntimeKind, front: &str, transcripts: [&PathBuf; 2]) -> Result<()> {
    if let Ok(directory) = std::env::var("KOORD_KEEP_TRANSCRIPTS") {
        for transcript in transcripts {
            let name = transcript.file_name().context("a file")?.to_string_lossy();
            let kept = Path::new(&directory).join(format!("{kind}-{name}"));
            fs::copy(transcript, kept)?;
        }
    }
    let compared = Command::new(program)
        .args(["compare", "--allow"])
        .arg(announced(kind, front))
        .args(transcripts)
        .status()?;
    ensure!(compared.success(), "replies with us differ on {kind}");
    Ok(())
}

#[test]
fn replies_are_equal_on_containerd_1_6() -> Result<()> {
    replies_are_equal(ContainerdVersion::V1_6)
}

#[test]
fn replies_are_equal_on_containerd_1_7() -> Result<()> {
    replies_are_equal(ContainerdVersion::V1_7)
}

#[test]
fn replies_are_equal_on_containerd_2() -> Result<()> {
    replies_are_equal(ContainerdVersion::V2)
}

#[test]
fn replies_are_equal_with_the_plugin_on_containerd_1_7() -> Result<()> {
    replies_are_equal_with_the_plugin(ContainerdVersion::V1_7)
}

#[test]
fn replies_are_equal_with_the_plugin_on_containerd_2() -> Result<()> {
    replies_are_equal_with_the_plugin(ContainerdVersion::V2)
}

#[test]
fn replies_are_equal_on_cri_o() -> Result<()> {
    replies_are_equal(RuntimeKind::Crio)
}

#[test]
fn replies_are_equal_with_the_plugin_on_cri_o() -> Result<()> {
    replies_are_equal_with_the_plugin(RuntimeKind::Crio)
}

/// Scenarios that take a few seconds together, three times over. One that calls v1alpha2 is not among
/// them: containerd 1.7 tells of that in its status until it is restarted.
const BRIEF: [&str; 2] = [
    "--rounds=3",
    "--only=life-cycle,lists,exec-sync-large,streaming,pulls,unknown-ids,empty-requests,\
     invalid-requests,updates,payloads",
];

/// All scenarios, once.
const WHOLE: [&str; 1] = ["--rounds=1"];

/// A proxy that alters one field of one reply of each scenario is found out in each; the one that does
/// so here alters nothing first, which makes no difference.
fn altered_fields_are_noticed(version: ContainerdVersion, which: &[&str]) -> Result<()> {
    let program = program()?;
    let mut node = node(version.into(), Front::Cri)?;
    let runtime = node.runtime.socket();
    let command = [&["mutate-live", "--seed=1"][..], which].concat();
    run(program, &mut node, &runtime, &command)
}

#[test]
fn a_proxy_that_alters_fields_on_their_way_is_noticed_on_containerd_1_6() -> Result<()> {
    altered_fields_are_noticed(ContainerdVersion::V1_6, &BRIEF)
}

#[test]
fn a_proxy_that_alters_fields_on_their_way_is_noticed_on_containerd_1_7() -> Result<()> {
    altered_fields_are_noticed(ContainerdVersion::V1_7, &BRIEF)
}

#[test]
fn a_proxy_that_alters_fields_on_their_way_is_noticed_on_containerd_2() -> Result<()> {
    altered_fields_are_noticed(ContainerdVersion::V2, &WHOLE)
}

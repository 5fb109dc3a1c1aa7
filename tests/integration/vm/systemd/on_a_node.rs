//! The README's steps "On a node", and "Undo", on a node whose kubelet has pods already.

use crate::{
    Check,
    node::{Node, kubelet_answers},
    reader::{Answer, Reader, run},
    remnant::{is_given_back, nothing_is_left},
    service::{SERVICE, is_hardened, main_pid, property, status},
    wait,
};
use anyhow::{Context, Result, anyhow, ensure};
use koord_integration::classes;
use koord_testkit::{
    cri::CriClient,
    poll::{wait_patiently, wait_until},
};
use serde_json::{Value, json};
use std::{
    fs,
    os::unix::fs::{FileTypeExt, MetadataExt, PermissionsExt},
    path::Path,
    process::Command,
    time::{Duration, Instant},
};

pub(super) const CHECKS: &[Check<Stage>] = &[
    ("systemd_is_the_first_program", systemd_is_first),
    ("pods_are_in_slices_and_scopes", pods_are_in_slices),
    ("the_service_starts_and_observes", the_service_starts),
    ("the_service_is_hardened", the_service_is_hardened),
    ("the_kubelet_goes_through_the_proxy", the_kubelet_is_moved),
    ("values_come_into_force", values_come_into_force),
    ("values_are_back_after_a_daemon_reload", daemon_reload),
    ("values_outlive_a_restart_and_a_kill", restart_and_kill),
    ("three_kills_lead_to_pass_through", three_kills),
    ("the_node_is_as_before", undo),
];

const CONFIG: &str = "/etc/koord-runtime-proxy/config.yaml";
const STARTS: &str = "/var/lib/koord-runtime-proxy/starts.json";
const POLICY: &str = "/etc/koord-runtime-proxy/policy.yaml";
const SOCKET: &str = "/run/koord-runtimeproxy/runtimeproxy.sock";
const KUBELET_CONFIG: &str = "/var/lib/kubelet/config.yaml";
const OLD_ENDPOINT: &str = "containerRuntimeEndpoint: unix:///var/run/containerd/containerd.sock\n";
/// Where a kubeadm since 1.34 has it.
const INSTANCE_CONFIG: &str = "/var/lib/kubelet/instance-config.yaml";

/// How long values may be wrong after systemd has written over them, on a machine this slow.
const WITHIN: Duration = Duration::from_secs(30);

/// How far it has come.
pub(super) struct Stage {
    node: Node,
    steps: Reader,
    /// As it was.
    instance_config: String,
}

// === impl Stage ===

impl Stage {
    pub(super) fn new() -> Result<Self> {
        Ok(Self {
            node: Node::default(),
            steps: Reader::opens("README.md", "## On a node")?,
            instance_config: String::new(),
        })
    }
}

fn systemd_is_first(_: &mut Stage) -> Result<()> {
    let first = fs::read_to_string("/proc/1/comm")?;
    ensure!(first == "systemd\n", "{first}");
    let own = fs::read_to_string("/proc/self/cgroup")?;
    ensure!(own == "0::/system.slice/koord-guest.service\n", "{own}");
    // It ends where the runtime is late, and systemd starts it again.
    wait_patiently("the kubelet answers", kubelet_answers);
    for unit in ["containerd", "kubelet"] {
        let state = property(unit, "ActiveState")?;
        ensure!(state == "active", "{unit} is {state}");
    }
    Ok(())
}

fn pods_are_in_slices(stage: &mut Stage) -> Result<()> {
    stage.node = Node::of_each_class()?;
    wait("as asked", || stage.node.not_as_asked())
}

/// Steps 1 to 3.
fn the_service_starts(stage: &mut Stage) -> Result<()> {
    stage.steps.types()?;
    stage.steps.types()?;
    // What docs/configuration.md adds where pods have classes.
    fs::write(POLICY, classes::node_policy("1"))?;
    let mut config = fs::read_to_string(CONFIG)?;
    ensure!(config == "mode: observe\n", "{config}");
    config += &format!(
        "node-policy: {POLICY}\nnode-name: node-1\nfeature-gates: {}\n",
        classes::FEATURE_GATES
    );
    fs::write(CONFIG, config)?;

    let mut answers = stage.steps.types()?;
    let mut shown = answers.pop().context("the status is shown")?;
    ensure!(shown.command == "koord-runtime-proxy status", "{shown:?}");
    // It waits three seconds for the runtime's first answer, which may take longer on a machine this slow.
    wait_until("the runtime was asked", || {
        let is_early = shows(&shown, "runtimeUp unknown: nobody has asked it");
        if is_early && let Ok(again) = run("koord-runtime-proxy status") {
            shown = again;
        }
        !is_early
    });
    for line in ["mode observe", "runtimeUp true", "remarks -"] {
        ensure!(shows(&shown, line), "{line}: {shown:#?}");
    }
    let socket = fs::metadata(SOCKET)?;
    let is_for_root = socket.uid() == 0 && socket.permissions().mode() & 0o777 == 0o600;
    ensure!(socket.file_type().is_socket() && is_for_root, "{socket:?}");
    crate::block_on(async {
        let client = CriClient::connect(Path::new(SOCKET)).await?;
        let containers = client.list_containers().await?;
        ensure!(containers.len() == 3, "{containers:?}");
        Ok(())
    })
}

/// Whether this is a line of an answer, whatever is between its words.
fn shows(answer: &Answer, line: &str) -> bool {
    let lines = answer.text.lines().map(|it| it.split_whitespace());
    let mut lines = lines.map(|it| it.collect::<Vec<_>>().join(" "));
    lines.any(|it| it == line)
}

fn the_service_is_hardened(_: &mut Stage) -> Result<()> {
    is_hardened()
}

/// Step 4, and what of step 5 needs no cluster.
fn the_kubelet_is_moved(stage: &mut Stage) -> Result<()> {
    let found = run_first(&mut stage.steps)?;
    ensure!(
        found == format!("{KUBELET_CONFIG}:{OLD_ENDPOINT}"),
        "{found}"
    );
    let new_endpoint = stage.steps.copies("yaml")?;
    replace(KUBELET_CONFIG, OLD_ENDPOINT, &new_endpoint)?;
    stage.steps.types()?;
    wait_patiently("the kubelet is back", kubelet_answers);
    stage.node.start(vec![classes::be("next")])?;
    let calls = stage.steps.types()?;
    let observed = "koord_runtime_proxy_calls_total{method=\"CreateContainer\",result=\"unhooked_observing\"} 1\n";
    ensure!(calls.len() == 1 && calls[0].text == observed, "{calls:?}");
    let ledger = run("koord-runtime-proxy ledger --json")?.ended(0)?.text;
    ensure!(ledger.contains(r#""next-node""#), "{ledger}");
    let nothing = stage.steps.types()?;
    ensure!(nothing.is_empty(), "{nothing:?}");
    stage.instance_config = fs::read_to_string(INSTANCE_CONFIG)?;
    replace(INSTANCE_CONFIG, OLD_ENDPOINT, &new_endpoint)?;

    stage.node.runs_on()?;
    wait("observed", || stage.node.not_as_asked())
}

/// Step 6.
fn values_come_into_force(stage: &mut Stage) -> Result<()> {
    let Stage { node, steps, .. } = stage;
    steps.types()?;
    steps.closes()?;
    wait("enforced", || node.not_as_decided())?;
    node.start(vec![classes::lsr("later"), classes::be("late")])?;
    wait("enforced from the start", || node.not_as_decided())?;
    let status = status()?;
    ensure!(status["mode"] == "enforce", "{status:#}");
    node.runs_on()
}

/// systemd writes what it knows of its units, which is what the kubelet and the runtime have told it. Twice:
/// the list of each minute may come right after the first time.
fn daemon_reload(stage: &mut Stage) -> Result<()> {
    for _ in 0..2 {
        let mut reload = Command::new("systemctl").arg("daemon-reload").spawn()?;
        let mut rewritten = Vec::new();
        let ended = loop {
            rewritten.extend(stage.node.not_as_decided());
            if let Some(ended) = reload.try_wait()? {
                break ended;
            }
        };
        ensure!(ended.success(), "{ended}");
        let start = Instant::now();
        wait("after a daemon-reload", || {
            let wrong = stage.node.not_as_decided();
            rewritten.extend(wrong.clone());
            wrong
        })?;
        let took = start.elapsed();
        ensure!(took < WITHIN, "values were wrong for {took:?}");
        let by_systemd = "batch memory.limit_in_bytes";
        let seen = rewritten.iter().any(|it| it.starts_with(by_systemd));
        ensure!(seen, "systemd has written nothing: {rewritten:#?}");
    }
    stage.node.runs_on()
}

fn restart_and_kill(stage: &mut Stage) -> Result<()> {
    for command in [
        "systemctl restart koord-runtime-proxy",
        "systemctl kill -s KILL koord-runtime-proxy.service",
    ] {
        let before = main_pid()?;
        run(command)?.ended(0)?;
        let mut all_the_time = Vec::new();
        wait_until("another process serves", || {
            all_the_time.extend(stage.node.not_as_decided());
            let is_another = main_pid().is_ok_and(|pid| pid != before);
            is_another && status().is_ok_and(|status| status["runtimeUp"] == true)
        });
        all_the_time.extend(stage.node.not_as_decided());
        ensure!(all_the_time.is_empty(), "{command}: {all_the_time:#?}");
        wait_until("the kubelet is served", kubelet_answers);
        stage.node.runs_on()?;
    }
    let restarts = property(SERVICE, "NRestarts")?;
    ensure!(restarts == "1", "{restarts} restarts by systemd");
    Ok(())
}

fn three_kills(stage: &mut Stage) -> Result<()> {
    // The kill before counts, if that was within two minutes.
    run("systemctl restart koord-runtime-proxy")?.ended(0)?;
    for _ in 0..3 {
        let before = main_pid()?;
        run("systemctl kill -s KILL koord-runtime-proxy.service")?.ended(0)?;
        wait_until("another process serves", || {
            let is_another = main_pid().is_ok_and(|pid| pid != before);
            is_another && status().is_ok()
        });
    }
    let told = status()?;
    ensure!(told["mode"] == "pass-through", "{told:#}");
    let remark = "3 starts within 124 s ended badly: hooks are off until a clean restart";
    ensure!(told["remarks"] == json!([remark]), "{told:#}");
    let notes: Value = serde_json::from_slice(&fs::read(STARTS)?)?;
    let boot = fs::read_to_string("/proc/sys/kernel/random/boot_id")?;
    let boot = boot.trim_end();
    let boots = notes["inBoots"].as_array().context("of no known boot")?;
    let ids: Vec<_> = boots.iter().map(|it| &it["id"]).collect();
    ensure!(ids == [&json!(boot); 4], "{notes:#}");
    stage.node.runs_on()?;
    run("systemctl restart koord-runtime-proxy")?.ended(0)?;
    wait_until("the runtime is up", || {
        status().is_ok_and(|status| status["runtimeUp"] == true)
    });
    let told = status()?;
    ensure!(told["mode"] == "enforce", "{told:#}");
    wait("enforced again", || stage.node.not_as_decided())
}

/// All of "Undo".
fn undo(stage: &mut Stage) -> Result<()> {
    let mut steps = Reader::opens("README.md", "### Undo")?;
    let copy = format!("{KUBELET_CONFIG}.before-koord-runtime-proxy");
    fs::rename(copy, KUBELET_CONFIG)?;
    fs::write(INSTANCE_CONFIG, &stage.instance_config)?;
    steps.types()?;
    wait_patiently("the kubelet is back", kubelet_answers);
    let open = steps.types()?;
    let nobodys = "koord_runtime_proxy_connections_open 0\n";
    ensure!(open.len() == 1 && open[0].text == nobodys, "{open:?}");
    let answers = steps.types_whatever_comes()?;
    let [stopped, reverted] = <[Answer; 2]>::try_from(answers).map_err(unexpected)?;
    stopped.ended(0)?;
    // The kubelet has given these a quota, which systemd has mostly written again by now.
    let unknown = ["redis", "later"].map(|it| format!("  default/{it}-node cpu.cfs_quota_us: "));
    is_given_back(&reverted, &unknown.each_ref().map(|it| &**it))?;
    steps.types()?;
    steps.closes()?;
    nothing_is_left()?;
    wait("given back", || stage.node.not_as_asked())?;

    // From here on the node does not know that there ever was a proxy.
    run("systemctl daemon-reload")?.ended(0)?;
    stage.node.start(vec![classes::be("afterwards")])?;
    wait("without a proxy", || stage.node.not_as_asked())?;
    stage.node.runs_on()
}

/// The command that finds the kubelet's endpoint, and the copy of that file.
fn run_first(steps: &mut Reader) -> Result<String> {
    steps.knows("FILE", KUBELET_CONFIG);
    let answers = steps.types_whatever_comes()?;
    let [found, copied] = <[Answer; 2]>::try_from(answers).map_err(unexpected)?;
    copied.ended(0)?;
    // Of the files that the README names some are not there, which `grep` says with its status alone.
    ensure!(found.complaint.is_empty(), "{found:?}");
    Ok(found.ended(2)?.text)
}

fn unexpected(answers: Vec<Answer>) -> anyhow::Error {
    anyhow!("another number of commands: {answers:#?}")
}

/// What somebody does with an editor.
fn replace(file: &str, old: &str, new: &str) -> Result<()> {
    let text = fs::read_to_string(file)?;
    ensure!(text.matches(old).count() == 1, "{file}: {text}");
    Ok(fs::write(file, text.replace(old, new))?)
}

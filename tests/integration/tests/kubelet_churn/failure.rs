//! What a kubelet could not do for a pod: which of it a kill cut off, which is of one kind, for what it
//! found no runtime, and what the proxy has ended of itself.

use crate::stage::End;
use anyhow::Result;
use koord_integration::{Node, churn::is_left_by_a_kill};
use koord_testkit::Kubelet;
use std::collections::{BTreeMap, BTreeSet};

/// What is in a line of a kubelet that could not do something for a pod.
const FAILED: &str = "Error syncing pod";

/// What counts connections that the proxy ends of itself.
const ENDED_BY_US: [&str; 3] = [
    "violations",
    "connections_refused",
    "connections_asked_to_go",
];

/// What its log says where it does so, or where something of it died.
const DIED: [&str; 5] = [
    "closed a connection",
    "a connection's task died",
    "a decision died",
    "an answer died",
    "a thread panicked",
];

/// What is in an error of which we are the cause: our own replies to clients, and those to a runtime.
pub(super) const OURS: &[&str] = &["FailedPrecondition", "hook", "NRI", "nri", "plugin"];

/// What is in that of a call which a kill cut off, or which came before the next process was there: the
/// killed one's own, whichever it was.
const CUT_OFF: &[&str] = &[
    "EOF",
    "broken pipe",
    "connect: ",
    "connection reset",
    "transport is closing",
    "use of closed network connection",
];

/// What is in a line of a kubelet whose client has given up a new connection: nobody said a word on it, for
/// 5 s or until it ended, or nobody listens.
const UNREACHED: [&str; 2] = ["error reading server preface", "connection refused"];

/// What is in that of a call which nobody answered in time, and in that of a probe: of a command that takes
/// longer than its probe allows the runtime itself says so.
const OVERDUE: [&str; 2] = ["rpc error", "context deadline exceeded"];
const PROBE: &str = "ExecSync";

/// What is in that of a kubelet which misses a file of its own: no runtime was asked. One that is killed
/// while it starts a pod which is to go has made half of the pod's places, or removed half of them; and the
/// housekeeping of any (`HandlePodCleanups`, 1.36) spares only what is wanted and what runs, so that such a
/// pod loses its places if its sandbox takes long to run, as on a busy machine.
const OF_ITS_OWN: [&str; 2] = ["open /", "/kubelet/root/pods/"];

/// What is in that of a kubelet which waits, because what it did for the pod before failed.
const WAITS: &str = "CrashLoopBackOff";

/// What the kubelet that logged this could not do for a pod.
pub(super) fn failures(log: &str) -> Vec<&str> {
    log.lines().filter(|it| it.contains(FAILED)).collect()
}

/// How many lines the kubelet has logged.
pub(super) fn lines(kubelet: &Kubelet) -> usize {
    kubelet.log().lines().count()
}

fn is_cut_off(line: &str) -> bool {
    CUT_OFF.iter().any(|it| line.contains(it))
}

fn is_of_its_own(line: &str) -> bool {
    OF_ITS_OWN.iter().all(|it| line.contains(it))
}

/// The failures for which somebody else was asked.
pub(super) fn failures_of_others(log: &str) -> Vec<&str> {
    let mut failures = failures(log);
    failures.retain(|line| !is_of_its_own(line));
    failures
}

/// Every error of a call that was cut off, whichever call it was.
pub(super) fn cut_off(log: &str) -> Vec<&str> {
    let errors = log.lines().filter(|it| it.starts_with('E'));
    errors.filter(|it| is_cut_off(it)).collect()
}

/// Every warning and error that there was no runtime to be reached, whether or not a call waited for it.
pub(super) fn unreached(log: &str) -> Vec<&str> {
    let told = log.lines().filter(|it| it.starts_with(['W', 'E']));
    let is_unreached = |line: &&str| {
        let is_overdue = OVERDUE.iter().all(|it| line.contains(it)) && !line.contains(PROBE);
        is_overdue || UNREACHED.iter().any(|it| line.contains(it))
    };
    told.filter(is_unreached).collect()
}

/// The failures of calls that were cut off in the first `before` lines of a kubelet's log, or behind
/// `after` of them.
pub(super) fn cut_off_in_calm(log: &str, before: usize, after: usize) -> Vec<&str> {
    let calm = log.lines().enumerate();
    let calm = calm.filter(|(number, _)| *number < before || *number >= after);
    let failed = calm.filter(|(_, line)| line.contains(FAILED) && is_cut_off(line));
    failed.map(|(_, line)| line).collect()
}

/// What the proxy has ended of itself, and what of it has died: counted by the last of its processes, or
/// told by any of them.
pub(super) fn ended_by_us(node: &Node) -> Result<Vec<String>> {
    let mut ended = Vec::new();
    for name in ENDED_BY_US {
        let metric = format!("koord_runtime_proxy_{name}_total");
        let count = node.proxy.metric(&metric, &[])?;
        if count > 0.5 {
            ended.push(format!("{metric} {count}"));
        }
    }
    let log = node.proxy.log();
    let died = log.lines();
    let died = died.filter(|line| DIED.iter().any(|it| line.contains(it)));
    ended.extend(died.map(str::to_owned));
    Ok(ended)
}

/// What kind of failure a line tells of, whichever pod it was; none if it is of a call that was cut off,
/// of no call, or of what a containerd that was killed has left behind.
fn kind(end: End, line: &str) -> Option<String> {
    let is_left = end == End::Kill && is_left_by_a_kill(line);
    if is_of_its_own(line) || is_cut_off(line) || is_left {
        return None;
    }
    let (_, error) = line.split_once("err=").unwrap_or(("", line));
    let (error, _) = error.split_once("\" pod=").unwrap_or((error, ""));
    // Names, ids, times and paths have digits or slashes.
    let words = error.split(|it: char| it.is_whitespace() || "\\\"'()[]{}:,;".contains(it));
    let plain =
        |it: &&str| !it.is_empty() && !it.contains(|c: char| c.is_ascii_digit() || c == '/');
    Some(words.filter(plain).collect::<Vec<_>>().join(" "))
}

/// The pod that a line is of, as it ends with.
fn pod_of(line: &str) -> Option<&str> {
    line.rsplit_once("\" pod=").map(|(_, pod)| pod)
}

/// The kinds of these failures, each with one that is of it. A wait is of none if something of its pod
/// failed before: that is judged by itself. Of a start that was cut off the runtime makes a container
/// that has ended, so that one more call cut off has the kubelet wait.
pub(super) fn kinds(end: End, failures: &[&str]) -> BTreeMap<String, String> {
    let mut failed = BTreeSet::new();
    let mut kinds = BTreeMap::new();
    for line in failures {
        let follows = line.contains(WAITS) && failed.contains(&pod_of(line));
        if !line.contains(WAITS) {
            failed.insert(pod_of(line));
        }
        if let Some(kind) = kind(end, line).filter(|_| !follows) {
            kinds.insert(kind, (*line).to_owned());
        }
    }
    kinds
}

#[test]
fn failures_are_of_one_kind_whichever_pod_they_are_of() {
    let line = |call: &str, id: &str, why: &str| {
        format!(
            "E1122 01:02:03.4 1 pod_workers.go:1324] \"Error syncing pod, skipping\" err=\"failed to \\\"{call}\\\" \
             for \\\"main\\\": rpc error: code = Unknown desc = {why} {id}\" pod=\"default/churn-{id}\""
        )
    };
    let kind = |line: &str| self::kind(End::Kill, line);
    let first = kind(&line("StartContainer", "5f", "no container"));
    assert_eq!(
        first.as_deref(),
        Some("failed to StartContainer for main rpc error code = Unknown desc = no container")
    );
    assert_eq!(kind(&line("StartContainer", "77", "no container")), first);
    assert_ne!(kind(&line("StopContainer", "5f", "no container")), first);
    assert_eq!(kind(&line("StartContainer", "5f", "read: EOF")), None);
    let missing = "open /tmp/it/kubelet/root/pods/uid/etc-hosts: no such file";
    assert_eq!(kind(&line("StartContainer", "5f", missing)), None);
    let log = line("StartContainer", "5f", missing)
        + "\n"
        + &line("StartContainer", "5f", "no container");
    assert_eq!(failures(&log).len(), 2);
    assert_eq!(
        failures_of_others(&log),
        [line("StartContainer", "5f", "no container")]
    );
    let left = "failed to rename: rename /tmp/it/root/io.containerd.snapshotter.v1.overlayfs/snapshots/new-1 \
                /tmp/it/root/io.containerd.snapshotter.v1.overlayfs/snapshots/18: file exists";
    assert_eq!(kind(&line("StartContainer", "5f", left)), None);
    assert_ne!(
        self::kind(End::Stop, &line("StartContainer", "5f", left)),
        None
    );
    assert_ne!(kind(&line("StartContainer", "5f", "file exists")), None);
}

#[test]
fn a_call_that_was_cut_off_before_the_kills_or_long_after_them_was_so_by_none() {
    let line = |why: &str| format!("E1122 \"Error syncing pod, skipping\" err=\"{why}\"\n");
    let (cut_off, other) = (line("read: EOF"), line("no image"));
    let log = format!("{cut_off}I1122 EOF\n{cut_off}{cut_off}{other}");
    let found = |before, after| cut_off_in_calm(&log, before, after).len();
    assert_eq!(found(0, 4), 0);
    assert_eq!(found(1, 4), 1);
    assert_eq!(found(0, 3), 1);
    assert_eq!(found(1, 2), 3);
}

#[test]
fn a_runtime_that_is_not_reached_is_told_from_a_command_that_takes_long() {
    let silent = "W1122 logging.go:55] [core] [Channel #1 SubChannel #2]grpc: \
                  addrConn.createTransport failed to connect to {Addr: \"/it/handed.sock\", }. \
                  Err: connection error: desc = \"error reading server preface: read unix \
                  @->/it/handed.sock: use of closed network connection\"";
    let error = |call: &str, why: &str| {
        format!("E1122 log.go:32] \"{call} from runtime service failed\" err=\"rpc error: {why}\"")
    };
    let overdue = error(
        "StopContainer",
        "code = DeadlineExceeded desc = context deadline exceeded",
    );
    let probe = error(
        "ExecSync cmd",
        "code = DeadlineExceeded desc = timeout 1s exceeded: context deadline exceeded",
    );
    let other = error("StartContainer", "code = Unknown desc = no image");
    let log = format!("{silent}\n{overdue}\n{probe}\n{other}\nI1122 connection refused\n");
    assert_eq!(unreached(&log), [silent, overdue.as_str()]);
}

#[test]
fn a_wait_is_judged_where_nothing_of_its_pod_failed_before() {
    let line = |pod: &str, call: &str, why: &str| {
        format!(
            "E1122 \"Error syncing pod, skipping\" err=\"failed to \\\"{call}\\\": {why}\" pod=\"default/{pod}\""
        )
    };
    let cut_off = line("churn-1", "StartContainer", "read: EOF");
    let waits = |pod| line(pod, "StartContainer", "CrashLoopBackOff");
    let kinds = |lines: &[String]| {
        let lines: Vec<&str> = lines.iter().map(String::as_str).collect();
        kinds(End::Kill, &lines).into_keys().collect::<Vec<_>>()
    };
    let none: Vec<String> = Vec::new();
    assert_eq!(kinds(&[cut_off.clone(), waits("churn-1")]), none);
    let waited = ["failed to StartContainer CrashLoopBackOff".to_owned()];
    assert_eq!(kinds(&[cut_off.clone(), waits("churn-2")]), waited);
    assert_eq!(kinds(&[waits("churn-1"), waits("churn-1")]), waited);
    assert_eq!(kinds(&[waits("churn-1"), cut_off]), waited);
}

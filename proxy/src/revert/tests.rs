//! The best-effort pod of the bench, whose values a process before us has set, on a scripted runtime.

mod scopes;

use super::*;
use crate::{
    apply::{
        terway::Terway,
        traffic::{Traffic, TrafficError},
    },
    hub::testing::{Bench, listed_container, listed_pod, script},
};
use koord_kernel::{
    cgroup::{Cgroups, Controller, Generation, Marked, Note, Tree},
    fake::{FakeCores, FakeResctrl, FakeTree},
    resctrl::Groups,
};
use koord_model::{CgroupPath, PodUid, SchedSwitch, Value};
use koord_proto::{
    cri,
    keys::{annotation, label},
    pods,
};
use koord_testkit::scripted::ScriptedRuntime;
use std::{
    collections::BTreeSet,
    fs::{self, Permissions},
    os::unix::fs::PermissionsExt as _,
    process::{Child, Command},
};
use tempfile::TempDir;
use tokio::time::Instant;

/// A creation that asked for 204 shares and a fifth of a CPU, and nobody has changed it since.
const ASKED: &str = r#"{"config":{"linux":{"resources":{"cpu_shares":204,"cpu_quota":20000}}},
    "runtimeSpec":{"process":{"oomScoreAdj":1000},
        "linux":{"resources":{"cpu":{"shares":204,"quota":20000}}}}}"#;

struct Node {
    tree: FakeTree,
    endpoint: Arc<Path>,
    runtime: ScriptedRuntime,
    _dir: TempDir,
}

// === impl Node ===

impl Node {
    /// Its pod and container have what is decided of them: 512 shares, a quota of 100 ms. The runtime
    /// says this of the container.
    fn with(info: &str) -> Self {
        Self::of(listed_container(), info)
    }

    fn of(container: cri::Container, info: &str) -> Self {
        Self::on(listed_pod(), container, info)
    }

    fn on(mut pod: cri::PodSandbox, container: cri::Container, info: &str) -> Self {
        pod.set_state(cri::PodSandboxState::SandboxReady);
        let script = script(pod, container, info);
        let dir = tempfile::tempdir().unwrap();
        let socket = dir.path().join("runtime.sock");
        let node = Self {
            tree: FakeTree::new(Generation::V1, 2),
            runtime: ScriptedRuntime::listen(&socket, script).unwrap(),
            endpoint: socket.into(),
            _dir: dir,
        };
        let Bench { pod, container, .. } = node.bench();
        for at in [&pod, &container] {
            for (file, text) in [("cpu.shares", "512"), ("cpu.cfs_quota_us", "100000")] {
                node.tree.write(Controller::Cpu, at, file, text).unwrap();
            }
        }
        node
    }

    /// A process that knows nothing yet.
    fn bench(&self) -> Bench {
        Bench::new(self.tree.clone())
    }

    async fn give_back(&self) -> Answer {
        self.give_back_beside(Resting::new()).await
    }

    /// The same beside a koordlet that has these hooks on.
    async fn give_back_beside(&self, covered: Resting) -> Answer {
        self.give_back_in(Mode::Enforce, covered).await
    }

    /// The same by a configuration that says this mode.
    async fn give_back_in(&self, mode: Mode, covered: Resting) -> Answer {
        let hub = self.bench().hub;
        let unsaid = self.list(&hub).await;
        give_back(&hub, &CgroupPath::root(), mode, covered, unsaid)
            .await
            .answer()
    }

    async fn list(&self, hub: &Rc<Hub>) -> Unsaid {
        let listed = relist::once(hub, &self.endpoint, &CgroupPath::root()).await;
        listed.unwrap()
    }

    /// Gives pod and container other values than are decided, past all of us.
    fn hold(&self, [pod_shares, pod_quota, shares, quota]: [&str; 4]) {
        let Bench { pod, container, .. } = self.bench();
        for (at, file, text) in [
            (&container, "cpu.shares", shares),
            (&container, "cpu.cfs_quota_us", quota),
            (&pod, "cpu.shares", pod_shares),
            (&pod, "cpu.cfs_quota_us", pod_quota),
        ] {
            self.tree.write(Controller::Cpu, at, file, text).unwrap();
        }
    }

    /// Shares and quota of the pod, then those of its container.
    fn held(&self) -> [String; 4] {
        let Bench { pod, container, .. } = self.bench();
        let read = |(at, file)| {
            let text = self.tree.read(Controller::Cpu, at, file).unwrap();
            text.trim_end().to_owned()
        };
        [
            (&pod, "cpu.shares"),
            (&pod, "cpu.cfs_quota_us"),
            (&container, "cpu.shares"),
            (&container, "cpu.cfs_quota_us"),
        ]
        .map(read)
    }
}

#[tokio::test]
async fn what_a_process_before_us_has_set_is_given_back_and_told_once() {
    let node = Node::with(ASKED);
    let answer = node.give_back().await;
    assert_eq!(node.held(), ["2", "-1", "204", "20000"], "{}", answer.text);
    assert!(answer.good, "{}", answer.text);
    for line in [
        "  default/batch cpu.shares: 512 -> 2",
        "  default/batch cpu.cfs_quota_us: 100000 -> -1",
        "  default/batch main cpu.shares: 512 -> 204",
        "  default/batch main cpu.cfs_quota_us: 100000 -> 20000",
    ] {
        assert!(answer.text.lines().any(|it| it == line), "{}", answer.text);
    }
    let again = node.give_back().await;
    assert_eq!(again.text, "there is nothing to give back\n");
    assert!(again.good);
    assert_eq!(node.held(), ["2", "-1", "204", "20000"]);
}

#[tokio::test]
async fn what_was_noted_by_others_and_no_file_takes_is_no_work_of_ours() {
    let node = Node::with(ASKED);
    assert!(node.give_back().await.good);
    let at = node.bench().pod;
    let file = "memory.limit_in_bytes";
    (node.tree.write(Controller::Memory, &at, file, "3221225472")).unwrap();
    let note = "memory.limit_in_bytes 0 3221225472\n";
    (node
        .tree
        .set_note(Controller::Cpu, &at, Note::Originals, note))
    .unwrap();
    let answer = node.give_back().await;
    assert_eq!(answer.text, "there is nothing to give back\n");
    assert!(answer.good);
    let held = node.tree.read(Controller::Memory, &at, file).unwrap();
    assert_eq!(held, "3221225472\n");
}

#[tokio::test]
async fn what_was_asked_for_and_nobody_knows_stays_and_is_told_each_time() {
    let node = Node::with(r#"{"pid":1}"#);
    for _ in 0..2 {
        let answer = node.give_back().await;
        assert_eq!(node.held(), ["2", "-1", "512", "100000"], "{}", answer.text);
        assert!(!answer.good, "{}", answer.text);
        let line = "  default/batch main cpu.shares: 512 stays, left: what was before is unknown";
        assert!(answer.text.lines().any(|it| it == line), "{}", answer.text);
    }
}

/// A pod that has a CPU of its own, and no quota, as is decided of it and its container. The runtime says
/// this of the container.
fn with_own_cpu(info: &str) -> Node {
    let mut pod = listed_pod();
    pod.metadata.as_mut().unwrap().uid = "uid-2".to_owned();
    pod.labels = [(label::QOS_CLASS.to_owned(), "LSR".to_owned())].into();
    let status = r#"{"cpuset":"0"}"#.to_owned();
    pod.annotations = [(annotation::RESOURCE_STATUS.to_owned(), status)].into();
    let node = Node::on(pod, listed_container(), info);
    let container = CgroupPath::parse("kubepods/poduid-2/container-1").unwrap();
    node.tree.make(&container);
    node
}

#[tokio::test]
async fn a_pod_whose_containers_ask_for_no_quota_has_none_by_itself_and_one_that_was_lifted_is_told()
 {
    const NO_QUOTA: &str = r#"{"config":{"linux":{"resources":{"cpu_shares":204}}},
        "runtimeSpec":{"process":{"oomScoreAdj":1000},"linux":{"resources":{"cpu":{"shares":204}}}}}"#;
    let answer = with_own_cpu(NO_QUOTA).give_back().await;
    assert_eq!(answer.text, "there is nothing to give back\n");
    assert!(answer.good);
    // It had that of its containers, or may have had one.
    for info in [ASKED, r#"{"pid":1}"#] {
        let answer = with_own_cpu(info).give_back().await;
        let line = "  default/batch cpu.cfs_quota_us: -1 stays, left: what was before is unknown";
        assert!(answer.text.lines().any(|it| it == line), "{}", answer.text);
        assert!(!answer.good);
    }
}

#[tokio::test]
async fn what_never_was_in_force_and_nobody_knows_is_not_called_ours() {
    let node = Node::with(r#"{"pid":1}"#);
    let others = ["77", "60000", "78", "55000"];
    node.hold(others);
    let answer = node.give_back().await;
    assert_eq!(node.held(), others, "{}", answer.text);
    assert_eq!(answer.text, "there is nothing to give back\n");
}

#[tokio::test]
async fn what_the_kernel_has_otherwise_than_it_is_decided_stays_though_it_is_known_what_was_asked()
{
    let node = Node::with(ASKED);
    let others = ["77", "60000", "78", "55000"];
    node.hold(others);
    let answer = node.give_back().await;
    assert_eq!(node.held(), others, "{}", answer.text);
    assert_eq!(answer.text, "there is nothing to give back\n");
    assert!(answer.good);
    // Of what is ours of one group nothing follows for the rest.
    node.hold(["77", "100000", "512", "55000"]);
    let answer = node.give_back().await;
    assert_eq!(node.held(), ["77", "-1", "204", "55000"], "{}", answer.text);
}

/// A container whose creation was changed under an earlier policy.
fn annotated() -> cri::Container {
    const ORIGINALS: &str = r#"{"cpuShares":204,"cpuQuota":20000,"cpuPeriod":100000,
        "ours":{"cpuShares":300,"cpuQuota":90000}}"#;
    let mut container = listed_container();
    let key = "runtimeproxy.koordinator.sh/originals".to_owned();
    container.annotations.insert(key, ORIGINALS.to_owned());
    container
}

#[tokio::test]
async fn what_a_creation_was_changed_to_say_is_given_back_though_another_value_is_decided_now() {
    let node = Node::of(annotated(), "");
    node.hold(["2", "-1", "300", "90000"]);
    let answer = node.give_back().await;
    assert_eq!(node.held(), ["2", "-1", "204", "20000"], "{}", answer.text);
    assert!(answer.good, "{}", answer.text);
}

/// What is told by a mode in which hooks are not in force.
fn not_looked_for(mode: &str) -> String {
    format!(
        "by mode {mode} only what is marked as ours is given back: values of an earlier run with mode \
         enforce are not looked for, --mode=enforce has them given back\n"
    )
}

#[tokio::test]
async fn where_we_only_observed_that_is_ours_alone_of_which_something_says_so() {
    let node = Node::with(ASKED);
    let as_decided = ["512", "100000", "512", "100000"];
    assert_eq!(node.held(), as_decided);
    let nothing = "there is nothing to give back\n";
    for (mode, name) in [
        (Mode::Observe, "observe"),
        (Mode::PassThrough, "pass-through"),
    ] {
        let answer = node.give_back_in(mode, Resting::new()).await;
        assert_eq!(node.held(), as_decided, "{}", answer.text);
        assert_eq!(answer.text, format!("{nothing}{}", not_looked_for(name)));
        assert!(answer.good);
    }
    // As this says.
    let answer = node.give_back_in(Mode::Enforce, Resting::new()).await;
    assert_eq!(node.held(), ["2", "-1", "204", "20000"], "{}", answer.text);
    // A creation was changed before that.
    let node = Node::of(annotated(), "");
    node.hold(["512", "100000", "300", "90000"]);
    let answer = node.give_back_in(Mode::Observe, Resting::new()).await;
    assert_eq!(
        node.held(),
        ["512", "100000", "204", "20000"],
        "{}",
        answer.text
    );
    assert!(answer.good, "{}", answer.text);
}

/// A process in the container of a node, with a score that it may have given itself.
struct Process(Child);

impl Process {
    #[expect(clippy::disallowed_methods, reason = "the process is this test's own")]
    fn start(node: &Node, score: &str) -> Self {
        let process = Self(Command::new("sleep").arg("1000").spawn().unwrap());
        fs::write(process.file(), score).unwrap();
        let Bench { pod, container, .. } = node.bench();
        let tier = pod.parent().unwrap();
        // Without CPUs nobody may be in it.
        for at in [&tier.parent().unwrap(), &tier, &pod, &container] {
            let all = node
                .tree
                .write(Controller::Cpuset, at, "cpuset.cpus", "0-1");
            all.unwrap();
        }
        node.tree.enter(&container, process.0.id());
        process
    }

    fn score(&self) -> String {
        fs::read_to_string(self.file()).unwrap().trim().to_owned()
    }

    fn file(&self) -> PathBuf {
        format!("/proc/{}/oom_score_adj", self.0.id()).into()
    }
}

impl Drop for Process {
    fn drop(&mut self) {
        self.0.kill().ok();
        self.0.wait().ok();
    }
}

#[tokio::test]
async fn one_process_with_another_score_does_not_keep_ours_with_the_rest() {
    let mut pod = listed_pod();
    let key = annotation::OOM_SCORE_ADJ.to_owned();
    pod.annotations.insert(key, "500".to_owned());
    // Nobody knows what was asked for.
    let node = Node::on(pod.clone(), listed_container(), r#"{"pid":1}"#);
    let processes = ["500", "700"].map(|score| Process::start(&node, score));
    let scores = || processes.each_ref().map(Process::score);
    let answer = node.give_back().await;
    assert_eq!(scores(), ["500", "700"]);
    let line =
        "  default/batch main oom_score_adj: 500 700 stays, left: what was before is unknown";
    assert!(answer.text.lines().any(|it| it == line), "{}", answer.text);

    let node = Node::on(pod, listed_container(), ASKED);
    let processes = ["500", "700"].map(|score| Process::start(&node, score));
    let scores = || processes.each_ref().map(Process::score);
    let answer = node.give_back().await;
    assert_eq!(scores(), ["1000", "1000"], "{}", answer.text);
}

/// What a kubelet says that has started these pods.
fn said(names: &[&str]) -> PodsState {
    let pods = names.iter().map(|name| pods::Pod {
        uid: PodUid::new("uid-1").unwrap(),
        namespace: "default".to_owned(),
        name: (*name).to_owned(),
        labels: BTreeMap::new(),
        annotations: BTreeMap::new(),
        spec: Arc::default(),
    });
    let answer = PodsAnswer {
        pods: pods.map(Arc::new).collect(),
        asked: Instant::now(),
        word: Word::OfItsTime,
    };
    PodsState {
        answer: Some(answer),
        ..PodsState::default()
    }
}

#[tokio::test]
async fn an_answer_of_the_kubelet_is_whole_if_it_has_each_pod_that_runs() {
    let node = Node::with(ASKED);
    let hub = node.bench().hub;
    assert_eq!(take_pods(&hub, said(&[])).unwrap(), Vec::<String>::new());
    node.list(&hub).await;
    let nothing = take_pods(&hub, said(&[]));
    assert!(matches!(nothing, Err(RevertError::NoPods)));
    // Of a kubelet that has just started, which starts static pods by itself.
    let unknown = take_pods(&hub, said(&["static"])).unwrap();
    assert_eq!(unknown, ["default/batch"]);
    let unknown = take_pods(&hub, said(&["static", "batch"])).unwrap();
    assert_eq!(unknown, Vec::<String>::new());
    hub.sandbox_stopped("sandbox-1");
    let unknown = take_pods(&hub, said(&["static"])).unwrap();
    assert_eq!(unknown, Vec::<String>::new());
}

#[tokio::test]
async fn what_is_unknown_or_odd_of_a_node_is_told_and_who_is_odd_fails_nothing() {
    let hub = Bench::new(FakeTree::new(Generation::V1, 2)).hub;
    hub.list_taken();
    let unsaid = Unsaid {
        sandboxes: 1,
        nowhere: 0,
        containers: 2,
    };
    let mut told = give_back(
        &hub,
        &CgroupPath::root(),
        Mode::Enforce,
        Resting::new(),
        unsaid,
    )
    .await;
    told.add_unknown(&["default/batch".to_owned()]);
    let answer = told.answer();
    assert_eq!(
        answer.text,
        "could not be given back:\n  \
         1 sandboxes: it is not known where they are\n  \
         2 containers: the runtime does not say what they asked for\n  \
         default/batch: the kubelet does not know it: what was set by its word stays\n"
    );
    assert!(!answer.good);
    let mut told = Told::beside(Resting::new());
    told.add_strangers(&[7], "operators");
    let answer = told.answer();
    assert_eq!(
        answer.text,
        "there is nothing to give back\nprocess (pid 7) is called as a koord-runtime-proxy, in a pod \
         outside of the namespace operators: it is not taken for one\n"
    );
    assert!(answer.good);
}

#[test]
fn who_was_started_meanwhile_or_may_have_been_is_told() {
    let said = |others: Option<Others>| {
        let mut told = Told::beside(Resting::new());
        told.add_others(others.as_ref());
        told.answer().text
    };
    let others = |acting: &[u32], unplaced: &[u32]| Others {
        acting: acting.to_vec(),
        unplaced: unplaced.to_vec(),
        strangers: vec![5],
    };
    assert_eq!(
        said(Some(others(&[], &[]))),
        "there is nothing to give back\n"
    );
    let runs = |id| {
        format!(
            "process (pid {id}), called as a koord-runtime-proxy, runs by now: it may put in force again \
             what was given back\n"
        )
    };
    let (nine, ten) = (runs(9), runs(10));
    assert_eq!(
        said(Some(others(&[9], &[10]))),
        format!("could not be given back:\n  {nine}  {ten}")
    );
    assert_eq!(
        said(None),
        "could not be given back:\n  whether a koord-runtime-proxy runs by now cannot be known\n"
    );
}

#[test]
fn whoever_waits_for_our_lock_refuses_and_one_in_a_pod_is_a_strangers_only_where_all_pods_are_known()
 {
    let (waits, unplaced, of_pod) = (
        Others {
            acting: vec![3],
            ..Others::default()
        },
        Others {
            unplaced: vec![4],
            ..Others::default()
        },
        Others {
            strangers: vec![5],
            ..Others::default()
        },
    );
    for has_lock in [true, false] {
        let runs = strangers(Some(&waits), has_lock, true);
        let other = Another::Process { id: 3 };
        assert_eq!(
            runs.unwrap_err().to_string(),
            RevertError::Runs(other).to_string()
        );
    }
    let none: &[u32] = &[];
    for others in [None, Some(&unplaced), Some(&of_pod)] {
        assert_eq!(strangers(others, true, false).unwrap(), none);
    }
    assert!(matches!(
        strangers(None, false, true),
        Err(RevertError::InDoubt(Doubt::Unseen))
    ));
    assert!(matches!(
        strangers(Some(&unplaced), false, true),
        Err(RevertError::InDoubt(Doubt::Unplaced { id: 4 }))
    ));
    assert_eq!(strangers(Some(&of_pod), false, true).unwrap(), [5]);
    assert!(matches!(
        strangers(Some(&of_pod), false, false),
        Err(RevertError::InDoubt(Doubt::Unlisted { id: 5 }))
    ));
}

#[tokio::test]
async fn a_container_that_is_created_and_will_start_with_our_values_is_told() {
    let mut container = annotated();
    container.set_state(cri::ContainerState::ContainerCreated);
    let node = Node::of(container, "");
    let answer = node.give_back().await;
    assert!(!answer.good, "{}", answer.text);
    let line = "  default/batch main is created and not started: it starts with our cpu.shares, \
                cpu.cfs_quota_us";
    assert!(answer.text.lines().any(|it| it == line), "{}", answer.text);
}

#[tokio::test]
async fn what_koordlet_covers_is_left_to_it() {
    let node = Node::with(ASKED);
    let answer = node.give_back_beside(["BatchResource"].into()).await;
    assert_eq!(node.held(), ["512", "100000", "512", "100000"]);
    assert_eq!(
        answer.text,
        "there is nothing to give back\nleft to koordlet, which does the part of these hooks here: \
         BatchResource\n"
    );
    assert!(answer.good);
    let answer = node.give_back_beside(["CPUBurst"].into()).await;
    assert_eq!(node.held(), ["2", "-1", "204", "20000"], "{}", answer.text);
}

/// What is told on a node without pods on whose network this comes of having no queues.
async fn without_queues(done: fn() -> Result<bool, TrafficError>, covered: Resting) -> Answer {
    let traffic = Traffic::by(move |shape| {
        assert_eq!(shape, None, "there are to be none");
        done()
    });
    let hub = Bench::with_traffic(FakeTree::new(Generation::V1, 2), traffic, true).hub;
    hub.list_taken();
    give_back_here(&hub, covered).await
}

/// What is told where the runtime has left nothing unsaid.
async fn give_back_here(hub: &Rc<Hub>, covered: Resting) -> Answer {
    let unsaid = Unsaid::default();
    give_back(hub, &CgroupPath::root(), Mode::Enforce, covered, unsaid)
        .await
        .answer()
}

#[tokio::test]
async fn queues_of_the_network_are_removed_and_told_unless_koordlet_has_them() {
    let answer = without_queues(|| Ok(true), Resting::new()).await;
    assert_eq!(
        answer.text,
        "given back:\n  queues of the network: removed\n"
    );
    assert!(answer.good);
    let answer = without_queues(|| Ok(false), Resting::new()).await;
    assert_eq!(answer.text, "there is nothing to give back\n");
    let answer = without_queues(|| Err(TrafficError::NoRoute), Resting::new()).await;
    assert_eq!(
        answer.text,
        "could not be given back:\n  queues of the network: no interface has a default route\n"
    );
    assert!(!answer.good);
    let answer = without_queues(|| Ok(true), ["TCNetworkQoS"].into()).await;
    assert_eq!(
        answer.text,
        "there is nothing to give back\nleft to koordlet, which does the part of these hooks here: \
         TCNetworkQoS\n"
    );
}

#[tokio::test]
async fn what_has_no_thread_to_do_it_is_not_taken_for_nothing_to_do() {
    let undone = |what: &[&str]| {
        let line = |what: &&str| format!("  {what}: not done, no thread can be had for it\n");
        let lines: String = what.iter().map(line).collect();
        format!("could not be given back:\n{lines}")
    };
    // A job over which a thread panics has no answer either.
    let answer = without_queues(|| panic!("of this test"), Resting::new()).await;
    assert_eq!(answer.text, undone(&["queues of the network"]));
    assert!(!answer.good);

    let tree = || FakeTree::new(Generation::V2, 2);
    let unanswered = Terway::doing(|| {});
    let hub = Bench::with_terway(tree(), unanswered, true).hub;
    hub.list_taken();
    let answer = give_back_here(&hub, Resting::new()).await;
    assert_eq!(answer.text, undone(&["Terway's files"]));
    assert!(!answer.good);

    let processor = FakeResctrl::new(7);
    processor.own("BE").unwrap();
    let hub = Bench::sharing(tree(), &processor).hub;
    hub.list_taken();
    hub.writer().deny_threads(true);
    let answer = give_back_here(&hub, Resting::new()).await;
    let noted = "reading what control groups have noted";
    assert_eq!(answer.text, undone(&[noted, "groups of threads"]));
    assert!(!answer.good);
}

#[tokio::test]
async fn what_threads_have_and_cannot_be_read_for_want_of_one_of_ours_is_told() {
    let mut pod = listed_pod();
    let key = annotation::OOM_SCORE_ADJ.to_owned();
    pod.annotations.insert(key, "500".to_owned());
    let node = Node::on(pod, listed_container(), ASKED);
    let process = Process::start(&node, "500");
    let hub = node.bench().hub;
    let unsaid = node.list(&hub).await;
    hub.writer().deny_threads(true);
    let told = give_back(
        &hub,
        &CgroupPath::root(),
        Mode::Enforce,
        Resting::new(),
        unsaid,
    )
    .await;
    let answer = told.answer();
    assert_eq!(process.score(), "500");
    has(
        &answer,
        "  reading what threads have, which stays: not done, no thread can be had for it",
    );
    assert!(!answer.good, "{}", answer.text);
}

#[tokio::test]
async fn groups_of_caches_go_but_those_that_koordlet_may_fill() {
    const KOORDLETS: &str = "left to koordlet, which does the part of these hooks here:";
    const MONITOR: &str = "BE/mon_groups/koordlet-uid-1";
    for (covered, text, left) in [
        (
            Resting::new(),
            "given back:\n  groups of caches: 2 removed\n".to_owned(),
            [false, false],
        ),
        (
            Resting::from(["RdtResctrl"]),
            format!("given back:\n  groups of caches: 1 removed\n{KOORDLETS} RdtResctrl\n"),
            [true, false],
        ),
        (
            Resting::from(["Resctrl"]),
            format!("there is nothing to give back\n{KOORDLETS} Resctrl\n"),
            [true, true],
        ),
    ] {
        // By a process before us, for a pod that has gone since.
        let processor = FakeResctrl::new(7).monitoring(1);
        processor.own("BE").unwrap();
        processor.own(MONITOR).unwrap();
        let hub = Bench::monitoring(FakeTree::new(Generation::V2, 2), &processor).hub;
        hub.list_taken();
        let answer = give_back_here(&hub, covered).await;
        assert_eq!(answer.text, text);
        let groups = [processor.owned().unwrap(), processor.monitors().unwrap()];
        assert_eq!(groups.map(|names| !names.is_empty()), left, "{text}");
    }
}

/// Folders of HAMi-core that are ours.
fn fill(containers: &Path) {
    for name in [".gone-7", "uid-1_main", "uid-1_old", "uid-2_main"] {
        fs::create_dir_all(containers.join(name).join("a")).unwrap();
    }
    fs::set_permissions(containers, Permissions::from_mode(0o700)).unwrap();
}

fn has(answer: &Answer, line: &str) {
    let is_told = answer.text.lines().any(|it| it == line);
    assert!(is_told, "{line}\nis not in\n{}", answer.text);
}

#[tokio::test]
async fn folders_of_hami_core_go_but_those_of_pods_that_live() {
    let node = tempfile::tempdir().unwrap();
    let library = node.path().join("lib.so");
    let containers = node.path().join("containers");
    fill(&containers);
    let left = || {
        let names = fs::read_dir(&containers).unwrap();
        let names = names.map(|it| it.unwrap().file_name().into_string().unwrap());
        names.collect::<BTreeSet<_>>()
    };
    let bench = || Bench::with_hami_core(FakeTree::new(Generation::V1, 2), &library);
    let hub = bench().knowing_pod().hub;
    hub.list_taken();
    let answer = give_back_here(&hub, ["HamiCoreVGPUMonitor"].into()).await;
    has(&answer, "  folders of HAMi-core: 1 removed");
    let all = ["uid-1_main", "uid-1_old", "uid-2_main"];
    assert_eq!(left(), BTreeSet::from(all.map(str::to_owned)));

    let hub = bench().knowing_pod().hub;
    hub.list_taken();
    let unsaid = Unsaid {
        sandboxes: 1,
        ..Unsaid::default()
    };
    let told = give_back(
        &hub,
        &CgroupPath::root(),
        Mode::Enforce,
        Resting::new(),
        unsaid,
    )
    .await;
    let line = "folders of HAMi-core stay but those that were set aside: it is not known of all \
                pods whether they live";
    has(&told.answer(), line);
    assert_eq!(left(), BTreeSet::from(all.map(str::to_owned)));

    let hub = bench().knowing_pod().hub;
    hub.list_taken();
    let answer = give_back_here(&hub, Resting::new()).await;
    has(&answer, "  folders of HAMi-core: 1 removed");
    let stays = containers.join("uid-1_main");
    let stays = format!(
        "{} stays while its pod lives, which may have it mounted",
        stays.display()
    );
    has(&answer, &stays);
    assert!(answer.good, "{}", answer.text);
    assert_eq!(
        left(),
        BTreeSet::from(["uid-1_main", "uid-1_old"].map(str::to_owned))
    );

    // Another runtime may have it.
    let bench = bench();
    bench.hub.list_taken();
    let answer = give_back_here(&bench.hub, Resting::new()).await;
    has(&answer, &stays);

    // It has gone.
    bench.tree.remove(&bench.container);
    bench.tree.remove(&bench.pod);
    let answer = give_back_here(&bench.hub, Resting::new()).await;
    has(&answer, "  folders of HAMi-core: 2 removed");
    assert!(!containers.exists());
}

#[tokio::test]
async fn switches_come_back_by_their_note_alone() {
    let tree = FakeTree::new(Generation::V1, 2)
        .with_sysctl("sched_group_identity_enabled", "0")
        .with_sysctl("sched_core", "1");
    let written = async || {
        let hub = Bench::with_cores(tree.clone(), FakeCores::default()).hub;
        hub.list_taken();
        // By this mode nothing is shown to be ours but by a mark.
        let told = give_back(
            &hub,
            &CgroupPath::root(),
            Mode::Observe,
            Resting::new(),
            Unsaid::default(),
        )
        .await;
        (told.answer().text, tree.take_writes().len())
    };
    let remark = not_looked_for("observe");
    let nothing = format!("there is nothing to give back\n{remark}");
    assert_eq!(written().await, (nothing.clone(), 0));
    let before_us = Cgroups::over(tree.clone()).with_sysctls(tree.clone());
    let ours = Value::SchedSwitch(SchedSwitch::GroupIdentity);
    before_us.write(&CgroupPath::root(), &ours).unwrap();
    tree.take_writes();
    let (text, writes) = written().await;
    let expected = "sched_switch: sched_core=0 sched_group_identity_enabled=1 \
                    -> sched_core=1 sched_group_identity_enabled=0\n";
    let expected = format!("{expected}{remark}");
    assert!(
        text.starts_with("given back:\n") && text.ends_with(&expected),
        "{text}"
    );
    assert_eq!(writes, 2);
    assert_eq!(written().await, (nothing, 0));
}

#[tokio::test]
async fn a_cookie_that_nobody_decides_comes_back_by_its_mark_alone() {
    let (tree, threads) = (FakeTree::new(Generation::V2, 2), FakeCores::default());
    threads.fork(None, 11);
    threads.set(11, 7);
    let cookie = async || {
        let bench = Bench::with_cores(tree.clone(), threads.clone()).knowing_pod();
        tree.enter(&bench.container, 11);
        bench.hub.list_taken();
        give_back_here(&bench.hub, Resting::new()).await;
        threads.number(11)
    };
    assert_eq!(cookie().await, 7);
    let bench = Bench::with_cores(tree.clone(), threads.clone());
    let marked = [Setting::CoreSched].into();
    let cgroups = bench.hub.writer().cgroups();
    cgroups.mark(&bench.container, Marked::Threads, &marked);
    drop(bench);
    assert_eq!(cookie().await, 0);
}
